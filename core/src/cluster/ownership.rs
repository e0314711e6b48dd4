//! Reconstructs the chunk map from the documents that shards hold, when the catalog misses recent moves.
//!
//! Each shard advances its version of a collection with every change of its ownership. So a chunk of a shard that is at the
//! catalog's version still is that shard's. A chunk of a shard that is *ahead* may have gone, whole or in parts, to any shard
//! that is ahead. As a shard has no documents of keys that it does not own, the documents show where. A chunk without documents
//! stays where the catalog has it. In other chunks, a key without a document belongs to the owner of the preceding document;
//! before the chunk's first document, to the owner of that one.
//!
//! It is a contradiction if two shards have documents of the same key, or if a shard has documents of a key that it cannot own. Then it
//! is unknown which documents are right, and no owner is chosen.

use super::chunk_map::{Chunk, ShardId};
use std::collections::HashMap;

/// The owners of a chunk's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// the parts of the chunk, by key; the only part of a chunk that has not moved is the chunk itself
    Parts(Vec<Chunk>),
    /// two shards that cannot both be right: they have documents of the same key, or one has documents of the other's chunk that it cannot own
    Contradiction(ShardId, ShardId),
    /// the parts of all chunks so far would be more than the limit
    TooMany,
}

/// Divides chunks, which must be given in the order of their keys.
pub struct Division {
    ahead: Vec<ShardId>,
    all: Vec<ShardId>,
    /// for each shard that was asked: the key that it last returned; None if it had no key at or above the one that was asked for
    next: HashMap<ShardId, Option<Vec<u8>>>,
    /// how many parts may still be found
    remaining: usize,
}

impl Division {
    /// `all` are the shards of a collection; those in `ahead` are ahead of the catalog. `limit` is the largest number of parts of all chunks
    /// together. Only chunks of shards that are ahead count, if they have documents.
    pub fn new(all: Vec<ShardId>, ahead: Vec<ShardId>, limit: usize) -> Self {
        Self { ahead, all, next: HashMap::new(), remaining: limit }
    }

    /// The owners of a chunk's keys. `end` is its upper bound; None if it is the last chunk. `first` returns the first key of a shard's
    /// documents that is not below the given one.
    ///
    /// # Errors
    /// Those of `first`.
    pub fn owners<E>(
        &mut self,
        chunk: &Chunk,
        end: Option<&[u8]>,
        mut first: impl FnMut(ShardId, &[u8]) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Owners, E> {
        let may_have_moved = self.ahead.contains(&chunk.shard);
        // A shard at the catalog's version owns its chunks. Only documents of shards that are ahead can contradict that.
        let asked = if may_have_moved { self.all.clone() } else { self.ahead.clone() };
        let mut parts: Vec<Chunk> = Vec::new();
        let mut from = chunk.min.clone();
        loop {
            let mut found: Vec<(Vec<u8>, ShardId)> = Vec::new();
            for shard in &asked {
                let key = self.first_from(*shard, &from, &mut first)?;
                found.extend(key.filter(|key| end.is_none_or(|end| key.as_slice() < end)).map(|key| (key, *shard)));
            }
            found.sort();
            let Some((key, shard)) = found.first() else { break };
            if !may_have_moved {
                return Ok(Owners::Contradiction(chunk.shard, *shard));
            }
            if let Some((_, other)) = found.get(1).filter(|(second, _)| second == key) {
                return Ok(Owners::Contradiction(*shard, *other));
            }
            if !self.ahead.contains(shard) {
                return Ok(Owners::Contradiction(*shard, chunk.shard));
            }
            if self.remaining == 0 {
                return Ok(Owners::TooMany);
            }
            self.remaining -= 1;
            let next = found.get(1).map(|(key, _)| key.clone());
            let max = next.clone().unwrap_or_else(|| chunk.max.clone());
            parts.push(Chunk { min: std::mem::take(&mut from), max, shard: *shard });
            let Some(next) = next else { break };
            from = next;
        }
        Ok(Owners::Parts(if parts.is_empty() { vec![chunk.clone()] } else { parts }))
    }

    fn first_from<E>(
        &mut self,
        shard: ShardId,
        from: &[u8],
        first: &mut impl FnMut(ShardId, &[u8]) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        match self.next.get(&shard) {
            Some(None) => return Ok(None),
            Some(Some(key)) if key.as_slice() >= from => return Ok(Some(key.clone())),
            _ => {}
        }
        let key = first(shard, from)?;
        self.next.insert(shard, key.clone());
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    const END: u8 = 40;

    /// Chunks of the keys 0 to [`END`], by their first keys and owners.
    fn chunks(owners: &[(u8, i32)]) -> Vec<Chunk> {
        let ends = owners.iter().skip(1).map(|(min, _)| *min).chain([END]);
        let chunk = |((min, shard), max): (&(u8, i32), u8)| Chunk { min: vec![*min], max: vec![max], shard: *shard };
        owners.iter().zip(ends).map(chunk).collect()
    }

    /// The owners of all chunks; the last one has no upper bound.
    fn divide(old: &[Chunk], all: &[i32], ahead: &[i32], documents: &BTreeSet<(u8, i32)>, limit: usize) -> Vec<Owners> {
        let mut division = Division::new(all.to_vec(), ahead.to_vec(), limit);
        let first = |shard: ShardId, from: &[u8]| {
            let of_shard = documents.iter().filter(|(key, of)| *of == shard && [*key].as_slice() >= from);
            Ok::<_, Infallible>(of_shard.map(|(key, _)| vec![*key]).min())
        };
        let end = |chunk: &Chunk| (chunk.max != [END]).then(|| chunk.max.clone());
        old.iter()
            .map(|chunk| division.owners(chunk, end(chunk).as_deref(), first))
            .map(|owners| owners.unwrap_or_else(|never| match never {}))
            .collect()
    }

    fn parts(owners: Vec<Owners>) -> Vec<Chunk> {
        let of = |owners| match owners {
            Owners::Parts(parts) => parts,
            other => panic!("{other:?}"),
        };
        owners.into_iter().flat_map(of).collect()
    }

    #[test]
    fn documents_show_the_owners_of_a_chunk_s_parts() {
        let old = chunks(&[(0, 1), (10, 1), (20, 2), (30, 3)]);
        let documents = [(11, 1), (12, 2), (13, 2), (14, 4), (21, 1), (31, 3)].into_iter().collect();
        let found = divide(&old, &[1, 2, 3, 4], &[1, 2, 4], &documents, 9);
        let all = chunks(&[(0, 1), (10, 1), (12, 2), (14, 4), (20, 1), (30, 3)]);
        assert_eq!(
            parts(found),
            all,
            "the first chunk is empty, and the last one belongs to a shard that is not ahead"
        );
    }

    #[test]
    fn what_cannot_be_right_is_a_contradiction() {
        let old = chunks(&[(0, 1), (20, 3)]);
        let first = |documents: &[(u8, i32)], limit| {
            divide(&old, &[1, 2, 3], &[1, 2], &documents.iter().copied().collect(), limit)
        };
        let whole = |at: usize| Owners::Parts(vec![old[at].clone()]);
        let [one, two, three] = [1, 2, 3];
        assert_eq!(first(&[(5, 1), (5, 2)], 9), [Owners::Contradiction(one, two), whole(1)], "both have the key");
        assert_eq!(first(&[(5, 1), (9, 3)], 9), [Owners::Contradiction(three, one), whole(1)], "it is not ahead");
        assert_eq!(
            first(&[(25, 2), (26, 3)], 9),
            [whole(0), Owners::Contradiction(three, two)],
            "the owner is not ahead"
        );
        assert_eq!(first(&[(1, 1), (2, 2), (3, 1)], 2)[0], Owners::TooMany);
    }

    #[test]
    fn the_only_chunk_of_an_unsharded_collection_moves_as_a_whole() {
        let chunk = Chunk { min: Vec::new(), max: Vec::new(), shard: 1 };
        let owners = |at: &[i32]| {
            let mut division = Division::new(vec![1, 2], vec![1, 2], 9);
            let first = |shard: ShardId, from: &[u8]| {
                Ok::<_, Infallible>(at.contains(&shard).then(Vec::new).filter(|_| from.is_empty()))
            };
            division.owners(&chunk, None, first).unwrap_or_else(|never| match never {})
        };
        assert_eq!(owners(&[2]), Owners::Parts(vec![Chunk { shard: 2, ..chunk.clone() }]));
        assert_eq!(owners(&[]), Owners::Parts(vec![chunk.clone()]));
        assert_eq!(owners(&[1, 2]), Owners::Contradiction(1, 2));
    }

    proptest! {
        /// After any moves of any ranges, every document is found, and chunks of shards that took part in none stay.
        #[test]
        fn the_owners_after_any_moves_are_found(
            owners in prop::collection::vec(1..5_i32, 4),
            moves in prop::collection::vec((0..END, 0..END, 1..5_i32), 0..6),
            keys in prop::collection::btree_set(0..END, 0..30),
        ) {
            let old = chunks(&[0_u8, 10, 20, 30].into_iter().zip(owners.iter().copied()).collect::<Vec<_>>());
            let mut owner: Vec<i32> = (0..END).map(|key| owners[usize::from(key / 10)]).collect();
            let mut ahead = BTreeSet::new();
            for (a, b, to) in moves {
                for key in a.min(b)..a.max(b) {
                    let from = std::mem::replace(&mut owner[usize::from(key)], to);
                    if from != to {
                        ahead.extend([from, to]);
                    }
                }
            }
            let documents: BTreeSet<_> = keys.iter().map(|key| (*key, owner[usize::from(*key)])).collect();
            let ahead: Vec<i32> = ahead.into_iter().collect();
            let found = parts(divide(&old, &[1, 2, 3, 4], &ahead, &documents, usize::MAX));
            prop_assert!(found.windows(2).all(|pair| pair[0].max == pair[1].min), "{found:?}");
            for (key, shard) in documents {
                let part = found.iter().rfind(|part| part.min.as_slice() <= &[key]);
                prop_assert_eq!(part.map(|part| part.shard), Some(shard));
            }
            for part in &found {
                let before = old.iter().rfind(|chunk| chunk.min <= part.min).map(|chunk| chunk.shard);
                prop_assert!(Some(part.shard) == before || before.is_some_and(|before| ahead.contains(&before)));
            }
        }
    }
}
