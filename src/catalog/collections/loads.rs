//! The load of chunks, from the accesses that the shards have sampled.

use super::sizes::Collection;
use crate::catalog::cluster::shard::Shard;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::load::{Access, ChunkLoad, by_chunk};
use docshard_core::routing::protocol::measure::{SampledAccess, SampledAccesses};
use std::collections::HashMap;

/// The most samples that are read from all shards together. It is exceeded only with more than 800 shards: each may return 500.
const MOST: usize = 400_000;
/// The most samples that a shard has.
const MOST_OF_SHARD: usize = 8192;

/// The load of chunks and shards. Rates are operations in 1,000 seconds.
#[derive(Debug, Default)]
pub struct Loads {
    /// by collection and lower bound; chunks without accesses are missing
    chunks: HashMap<(i32, Vec<u8>), ChunkLoad>,
    /// the operations of other collections on each shard
    others: HashMap<ShardId, u64>,
    /// reads and writes of a collection that are for no particular chunk, on each shard
    unlocated: HashMap<(i32, ShardId), (u64, u64)>,
}

/// Returns the call that reads the sampled accesses of each of this many shards.
pub fn call(shards: usize) -> SampledAccesses {
    let most = (MOST / shards.max(1)).clamp(500, MOST_OF_SHARD);
    SampledAccesses { most: i32::try_from(most).unwrap_or(i32::MAX) }
}

/// Limits a number from a shard, so that sums cannot overflow.
fn plausible(told: i64) -> u64 {
    told.clamp(0, 1 << 40).unsigned_abs()
}

impl Loads {
    /// Adds the accesses at a shard. Accesses to keys that the shard does not own, such as those before a move, are left out.
    pub fn add(&mut self, shard: &Shard, collections: &[Collection], accesses: Vec<SampledAccess>) {
        let mut of: HashMap<i32, Vec<SampledAccess>> = HashMap::new();
        accesses.into_iter().for_each(|access| of.entry(access.collection).or_default().push(access));
        for collection in collections {
            let Some(accesses) = of.remove(&collection.id) else { continue };
            let mut keyed = Vec::with_capacity(accesses.len());
            for SampledAccess { key, reads, writes, samples, .. } in accesses {
                let (reads, writes, samples) = (plausible(reads), plausible(writes), plausible(samples));
                // An unsharded collection is one chunk, to which accesses without a key belong, too.
                match key.or_else(|| collection.key.is_unsharded().then(Vec::new)) {
                    Some(key) => keyed.push(Access::new(&collection.key, &key, reads, writes, samples)),
                    None => {
                        let sum = self.unlocated.entry((collection.id, shard.id)).or_default();
                        *sum = (sum.0 + reads, sum.1 + writes);
                    }
                }
            }
            let mins: Vec<&[u8]> = collection.chunks.iter().map(|chunk| chunk.min.as_slice()).collect();
            for (at, accesses) in by_chunk(&mins, &mut keyed) {
                if let Some(chunk) = collection.chunks.get(at).filter(|chunk| chunk.shard == shard.id) {
                    let load = ChunkLoad::of(&collection.key, &chunk.min, accesses);
                    self.chunks.insert((collection.id, chunk.min.clone()), load);
                }
            }
        }
        let rate = |access: &SampledAccess| plausible(access.reads) + plausible(access.writes);
        let others = of.values().flatten().filter(|access| access.key.is_some()).map(rate).sum();
        self.others.insert(shard.id, others);
    }

    /// The load of a chunk, by its collection and lower bound; None without accesses.
    pub fn of_chunk(&self, collection: i32, min: &[u8]) -> Option<&ChunkLoad> {
        self.chunks.get(&(collection, min.to_vec()))
    }

    /// The operations of a shard for collections that were not passed to [`Self::add`].
    pub fn of_others(&self, shard: ShardId) -> u64 {
        self.others.get(&shard).copied().unwrap_or(0)
    }

    /// Reads and writes of a collection that are for no particular chunk, on a shard.
    pub fn unlocated(&self, collection: i32, shard: ShardId) -> Option<(u64, u64)> {
        self.unlocated.get(&(collection, shard)).copied()
    }
}
