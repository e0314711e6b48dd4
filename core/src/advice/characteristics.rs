//! What the values of a shard key are like: their number, the most common ones, and whether they ascend.

use crate::budget;
use crate::values::key::KeyPattern;

/// The number of most common values that are kept.
pub const MOST_COMMON: usize = 5;

/// A shard key is coarse if each of its values has at least this number of documents, on average.
const COARSE: u64 = 10;

/// The least correlation, positive or negative, at which keys count as ascending or descending: MongoDB's value.
const MONOTONIC: f64 = 0.7;

/// Keys in order.
pub(super) fn sorted(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    let mut sorted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    sorted.sort_by(|a, b| {
        budget::step();
        a.cmp(b)
    });
    sorted
}

/// Counts keys that come in order.
#[derive(Debug, Default)]
pub struct Counter {
    documents: u64,
    distinct: u64,
    last: Option<Vec<u8>>,
    /// how often the last key has come
    run: u64,
    /// the most common values so far, the most common one first
    common: Vec<(Vec<u8>, u64)>,
}

impl Counter {
    /// Counts a key that is not less than the one before.
    pub fn add(&mut self, key: &[u8]) {
        budget::step();
        self.documents += 1;
        if self.last.as_deref() == Some(key) {
            self.run += 1;
            return;
        }
        self.end_run();
        self.distinct += 1;
        self.last = Some(key.to_vec());
        self.run = 1;
    }

    fn end_run(&mut self) {
        let Some(key) = self.last.take() else { return };
        let at = self.common.partition_point(|(_, count)| *count >= self.run);
        if at < MOST_COMMON {
            self.common.insert(at, (key, self.run));
            self.common.truncate(MOST_COMMON);
        }
    }

    /// Returns the counts.
    pub fn finish(mut self) -> Counted {
        self.end_run();
        Counted { documents: self.documents, distinct: self.distinct, common: self.common }
    }
}

/// The result of a [`Counter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// the number of keys
    pub documents: u64,
    /// the number of different ones
    pub distinct: u64,
    /// the most common ones, with their numbers, the most common one first
    pub common: Vec<(Vec<u8>, u64)>,
}

impl Counted {
    /// Counts keys in any order.
    pub fn of(keys: &[Vec<u8>]) -> Self {
        let mut counter = Counter::default();
        sorted(keys).into_iter().for_each(|key| counter.add(key));
        counter.finish()
    }

    /// True if each key has many documents on average.
    pub fn is_coarse(&self) -> bool {
        self.distinct * COARSE <= self.documents
    }

    /// True if no two documents have the same key.
    pub fn is_unique(&self) -> bool {
        self.documents == self.distinct
    }

    /// The share of the documents that have the most common key, from 0 to 1.
    pub fn largest_share(&self) -> f64 {
        self.common.first().map_or(0.0, |(_, count)| *count as f64 / self.documents.max(1) as f64)
    }
}

/// Whether new documents have higher or lower keys than older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trend {
    /// they have higher keys, or they have lower keys
    Monotonic,
    /// neither
    NotMonotonic,
    /// nothing can be said: there are fewer than two keys
    Unknown,
}

impl Trend {
    /// MongoDB's name of the trend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Monotonic => "monotonic",
            Self::NotMonotonic => "not monotonic",
            Self::Unknown => "unknown",
        }
    }

    /// The trend of keys in the order of their insertion, with the correlation of key and position. A key that begins with a hash
    /// is not monotonic.
    pub fn of(pattern: &KeyPattern, keys: &[Vec<u8>]) -> (Self, Option<f64>) {
        if pattern.hashed_field() == Some(0) {
            return (Self::NotMonotonic, None);
        }
        match rank_correlation(keys) {
            Some(found) if found.abs() >= MONOTONIC => (Self::Monotonic, Some(found)),
            Some(found) => (Self::NotMonotonic, Some(found)),
            None if keys.len() > 1 => (Self::NotMonotonic, None),
            None => (Self::Unknown, None),
        }
    }
}

/// The rank correlation of keys with their positions, from -1 to 1; equal keys have the mean of their ranks. None if all are equal.
pub fn rank_correlation(keys: &[Vec<u8>]) -> Option<f64> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| {
        budget::step();
        keys[*a].cmp(&keys[*b])
    });
    let mean = (keys.len() as f64 - 1.0) / 2.0;
    let (mut product, mut of_ranks, mut of_positions) = (0.0, 0.0, 0.0);
    let mut start = 0;
    for run in order.chunk_by(|a, b| keys[*a] == keys[*b]) {
        let rank = start as f64 + (run.len() as f64 - 1.0) / 2.0 - mean;
        for position in run {
            budget::step();
            let position = *position as f64 - mean;
            product += rank * position;
            of_ranks += rank * rank;
            of_positions += position * position;
        }
        start += run.len();
    }
    let scale = (of_ranks * of_positions).sqrt();
    (scale > 0.0).then(|| (product / scale).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(values: &[u8]) -> Vec<Vec<u8>> {
        values.iter().map(|value| vec![*value]).collect()
    }

    #[test]
    fn correlation_is_that_of_ranks() {
        assert_eq!(rank_correlation(&keys(&[1, 2, 3, 9])), Some(1.0));
        assert_eq!(rank_correlation(&keys(&[9, 3, 2, 1])), Some(-1.0));
        assert_eq!(rank_correlation(&keys(&[5, 5, 5])), None);
        assert_eq!(rank_correlation(&[]), None);
        assert!(rank_correlation(&keys(&[1, 9, 2, 8, 3, 7, 4, 6])).unwrap().abs() < 0.5);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_map(values in prop::collection::vec(0_u8..20, 0..200)) {
            let keys = keys(&values);
            let counted = Counted::of(&keys);
            let mut expected = std::collections::BTreeMap::new();
            values.iter().for_each(|value| *expected.entry(*value).or_insert(0_u64) += 1);
            prop_assert_eq!(counted.documents, values.len() as u64);
            prop_assert_eq!(counted.distinct, expected.len() as u64);
            prop_assert_eq!(counted.is_unique(), expected.values().all(|count| *count == 1));
            let mut counts: Vec<u64> = expected.values().copied().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts.truncate(MOST_COMMON);
            prop_assert_eq!(counted.common.iter().map(|(_, count)| *count).collect::<Vec<_>>(), counts);
            for (key, count) in &counted.common {
                prop_assert_eq!(expected.get(&key[0]), Some(count));
            }
        }

        #[test]
        fn correlation_is_within_bounds_and_turns_with_the_order(values in prop::collection::vec(0_u8..50, 0..100)) {
            let mut keys = keys(&values);
            let forward = rank_correlation(&keys);
            keys.reverse();
            match (forward, rank_correlation(&keys)) {
                (Some(one), Some(other)) => prop_assert!((one + other).abs() < 1e-9 && one.abs() <= 1.0),
                (None, None) => prop_assert!(values.iter().all(|value| Some(value) == values.first())),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
