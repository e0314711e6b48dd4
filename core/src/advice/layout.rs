//! The chunks that a collection would have under a key, and the shards that would own them, according to a sample.
//!
//! Neighbouring chunks are on different shards, as they are after a balancer has moved chunks for some time.

use super::characteristics::sorted;
use crate::cluster::chunk_map::{Chunk, ChunkMap, ShardId};
use crate::error::Result;
use crate::values::key::{KeyPattern, KeyRanges};

/// The most chunks of a simulation.
const MAX_CHUNKS: u64 = 4096;
/// The fewest chunks on each shard, as far as the key has enough values: a small collection is judged as if it had grown.
const CHUNKS_PER_SHARD: u64 = 64;

/// The cluster that is assumed.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// the number of shards, at least one
    pub shards: usize,
    /// the size of a chunk, in bytes
    pub chunk_bytes: u64,
}

/// Chunks on shards.
#[derive(Debug)]
pub struct Layout {
    map: ChunkMap,
    /// the chunks' lower bounds
    bounds: Vec<Vec<u8>>,
    shards: usize,
}

impl Layout {
    /// Divides keys into chunks of about the same number of documents. `bytes`: the size of the whole collection.
    ///
    /// # Errors
    /// None that a pattern and its keys can cause.
    pub fn of(pattern: &KeyPattern, keys: &[Vec<u8>], bytes: u64, cluster: Cluster) -> Result<Self> {
        let least = CHUNKS_PER_SHARD * cluster.shards as u64;
        let wanted = (bytes / (cluster.chunk_bytes / 2).max(1) + 1).clamp(least, MAX_CHUNKS.max(least));
        let wanted = usize::try_from(wanted).unwrap_or(1);
        let bounds = match pattern.hashed_field() {
            Some(0) => pattern.even_hash_bounds(wanted),
            _ => quantiles(keys, wanted),
        };
        let lowest = pattern.min_bound();
        let mut all = vec![lowest.clone()];
        all.extend(bounds.into_iter().filter(|bound| *bound > lowest));
        let ends = all.iter().skip(1).cloned().chain([pattern.max_bound()]);
        let chunks = all.iter().zip(ends).enumerate().map(|(number, (min, max))| Chunk {
            min: min.clone(),
            max,
            shard: shard(number, cluster.shards),
        });
        let map = ChunkMap::new(chunks)?;
        Ok(Self { map, bounds: all, shards: cluster.shards })
    }

    /// The chunks.
    pub fn map(&self) -> &ChunkMap {
        &self.map
    }

    /// The number of shards of the cluster.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The number of the chunk that has a key, and that of its shard.
    pub fn place(&self, key: &[u8]) -> (usize, usize) {
        let chunk = self.bounds.partition_point(|bound| bound.as_slice() <= key).saturating_sub(1);
        (chunk, chunk % self.shards)
    }

    /// The number of chunks.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bounds.len()
    }

    /// The numbers of shards and of chunks that these keys are on.
    pub fn touched(&self, keys: &KeyRanges) -> (usize, usize) {
        let targets = self.map.targets(keys);
        (targets.len(), targets.iter().map(|target| target.chunks).sum())
    }
}

/// The shard of a chunk, both by number.
fn shard(chunk: usize, shards: usize) -> ShardId {
    ShardId::try_from(chunk % shards).unwrap_or_default()
}

/// Keys at which all keys are divided into `parts` parts of about the same size. Each is returned once, so there may be fewer parts.
fn quantiles(keys: &[Vec<u8>], parts: usize) -> Vec<Vec<u8>> {
    let sorted = sorted(keys);
    let at = (1..parts).filter_map(|part| sorted.get(part * sorted.len() / parts));
    let mut bounds: Vec<Vec<u8>> = at.map(|key| key.to_vec()).collect();
    bounds.dedup();
    // A bound at the lowest key would leave no keys to the first chunk, which begins at the pattern's minimum.
    bounds.retain(|bound| sorted.first().is_some_and(|first| bound.as_slice() > *first));
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::number::Number;
    use crate::values::document::value::Value;
    use crate::values::key::KeyRange;
    use crate::values::key::encode::encode_value;
    use proptest::prelude::*;
    use serde_json::json;

    fn key(value: i64) -> Vec<u8> {
        let mut key = Vec::new();
        encode_value(&Value::Number(Number::int(value)), &mut key);
        key
    }

    proptest! {
        #[test]
        fn every_key_is_in_the_chunk_that_the_map_has_it_in(
            values in prop::collection::vec(-50_i64..50, 0..300), shards in 1_usize..6, megabytes in 0_u64..2000
        ) {
            let pattern = KeyPattern::parse(&json!({"k": 1})).unwrap();
            let keys: Vec<Vec<u8>> = values.iter().map(|value| key(*value)).collect();
            let cluster = Cluster { shards, chunk_bytes: 128 << 20 };
            let layout = Layout::of(&pattern, &keys, megabytes << 20, cluster).unwrap();
            let mut distinct = values.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert!(layout.len() <= distinct.len() + 1);
            prop_assert_eq!(layout.map().len(), layout.len());
            for probe in (-60..60).map(key) {
                let (_, shard) = layout.place(&probe);
                prop_assert_eq!(layout.map().owner(&probe) as usize, shard);
                let point = KeyRanges::new(vec![KeyRange::point(&probe)]);
                prop_assert_eq!(layout.touched(&point), (1, 1));
            }
            let (touched, chunks) = layout.touched(&KeyRanges::all());
            prop_assert_eq!((touched, chunks), (layout.len().min(shards), layout.len()));
        }
    }
}
