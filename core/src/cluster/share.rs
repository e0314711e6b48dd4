//! The keys of a collection that one shard gets, as a list of ranges that is sent to other nodes.
//!
//! Encoding of a range: the lengths of its lower and its upper bound (4 bytes each, little-endian), the lower bound, the upper bound. The
//! length [`OPEN`] in the second place means that there is no upper bound.

use crate::cluster::chunk_map::{Chunk, ShardId};
use crate::error::{Kind, Result, error};

/// The length that stands for a missing upper bound.
const OPEN: u32 = u32::MAX;

/// Half-open ranges in key order; None: no upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Share {
    /// Returns the ranges that `shard` owns among `chunks`, which must be all chunks of the collection in key order. Adjacent ranges are
    /// joined.
    pub fn of(chunks: &[Chunk], shard: ShardId) -> Self {
        let mut ranges: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for (position, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.shard == shard) {
            let end = (position + 1 < chunks.len()).then(|| chunk.max.clone());
            match ranges.last_mut() {
                Some(last) if last.1.as_ref() == Some(&chunk.min) => last.1 = end,
                _ => ranges.push((chunk.min.clone(), end)),
            }
        }
        Self(ranges)
    }

    /// True if the key is in one of the ranges.
    pub fn contains(&self, key: &[u8]) -> bool {
        let next = self.0.partition_point(|(min, _)| min.as_slice() <= key);
        let range = next.checked_sub(1).and_then(|at| self.0.get(at));
        range.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < end.as_slice()))
    }

    /// The share as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = |bound: &[u8]| u32::try_from(bound.len()).unwrap_or(OPEN);
        for (min, end) in &self.0 {
            bytes.extend(length(min).to_le_bytes());
            bytes.extend(end.as_ref().map_or(OPEN, |end| length(end)).to_le_bytes());
            bytes.extend(min);
            bytes.extend(end.iter().flatten());
        }
        bytes
    }

    /// Reads what [`Share::encode`] has written.
    ///
    /// # Errors
    /// `BadValue` for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut ranges, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let (range, after) =
                decode_range(rest).ok_or_else(|| error!(Kind::BadValue, "malformed ranges of keys: truncated"))?;
            ranges.push(range);
            rest = after;
        }
        let is_ordered =
            |[one, next]: &[(Vec<u8>, Option<Vec<u8>>); 2]| one.1.as_ref().is_some_and(|end| *end <= next.0);
        if !ranges.array_windows().all(is_ordered) {
            return Err(error!(Kind::BadValue, "malformed ranges of keys: not in order"));
        }
        Ok(Self(ranges))
    }
}

type Range = (Vec<u8>, Option<Vec<u8>>);

/// Returns the first range and the bytes that follow it; None if they end within the range.
fn decode_range(bytes: &[u8]) -> Option<(Range, &[u8])> {
    let (lengths, rest) = bytes.split_at_checked(8)?;
    let length = |at: usize| lengths[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let (min, rest) = rest.split_at_checked(length(0) as usize)?;
    if length(4) == OPEN {
        return Some(((min.to_vec(), None), rest));
    }
    let (end, rest) = rest.split_at_checked(length(4) as usize)?;
    Some(((min.to_vec(), Some(end.to_vec())), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(owners: &[ShardId]) -> Vec<Chunk> {
        let bound = |at: usize| vec![u8::try_from(at * 10).unwrap()];
        owners
            .iter()
            .enumerate()
            .map(|(at, shard)| Chunk { min: bound(at), max: bound(at + 1), shard: *shard })
            .collect()
    }

    #[test]
    fn every_key_is_in_the_share_of_one_shard() {
        for owners in [&[1][..], &[1, 2], &[1, 1, 2, 1], &[2, 1, 1, 2, 2, 3]] {
            let chunks = chunks(owners);
            for key in 0..=255 {
                let owner = owners[usize::from(key / 10).min(owners.len() - 1)];
                for shard in 1..=3 {
                    let share = Share::of(&chunks, shard);
                    assert_eq!(share.contains(&[key]), shard == owner, "{owners:?} {key} {shard}");
                    assert_eq!(Share::decode(&share.encode()).unwrap(), share);
                }
            }
        }
    }

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(Share::of(&chunks(&[1, 1, 2, 1]), 1).0.len(), 2);
        assert_eq!(Share::of(&chunks(&[1]), 1).0, [(vec![0], None)]);
        assert_eq!(Share::of(&chunks(&[1]), 2), Share::default());
    }

    #[test]
    fn other_bytes_are_refused() {
        let encoded = Share::of(&chunks(&[1, 2, 1]), 1).encode();
        for length in 1..encoded.len() {
            assert!(Share::decode(&encoded[..length]).is_err() || length == 10, "{length}");
        }
        let (first, second) = encoded.split_at(10);
        assert!(Share::decode(&[second, first].concat()).is_err());
    }
}
