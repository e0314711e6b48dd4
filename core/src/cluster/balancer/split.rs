//! Which chunks are too big, or lie in several zones.

use super::state::{Cluster, Collection, Cut, MAX_PARTS, MIN_SPLIT_SIZE, Split, YOUNG_CHUNKS, homes};
use crate::cluster::chunk_map::ShardId;
use std::collections::HashSet;

/// A chunk of more documents is split whatever its bytes: a hand-over stalls writers for as long as it takes to delete
/// them.
pub(super) const MAX_DOCUMENTS: u64 = 250_000;

/// Every chunk to be cut; not those of shards that cannot take part now, for which nothing else may have to wait.
pub(super) fn splits(cluster: &Cluster) -> Vec<Split> {
    let homes = homes(cluster);
    let unavailable: HashSet<ShardId> =
        cluster.shards.iter().filter(|shard| shard.unavailable).map(|shard| shard.id).collect();
    let mut splits = Vec::new();
    for (position, collection) in cluster.collections.iter().enumerate() {
        let limit = split_size(collection, homes);
        for (chunk, state) in collection.chunks.iter().enumerate() {
            if unavailable.contains(&state.shard) {
                continue;
            }
            if state.straddles {
                splits.push(Split { collection: position, chunk, cut: Cut::Zones });
                continue;
            }
            if state.jumbo || state.documents < 2 || (state.bytes <= limit && state.documents <= MAX_DOCUMENTS) {
                continue;
            }
            // Parts of two thirds of the limit: room to grow before the next cut.
            let parts = (state.bytes * 3).div_ceil(limit * 2).max((state.documents * 3).div_ceil(MAX_DOCUMENTS * 2));
            // The first cut of a whole collection gives every shard as many parts.
            let parts = if collection.chunks.len() == 1 { parts.next_multiple_of(homes.max(1)) } else { parts };
            let into = parts.clamp(2, MAX_PARTS.min(state.documents)) as usize;
            splits.push(Split { collection: position, chunk, cut: Cut::Parts(into) });
        }
    }
    splits
}

/// Above how many bytes a chunk of the collection is cut: the chunk size, or less while the collection is young.
pub(super) fn split_size(collection: &Collection, homes: u64) -> u64 {
    if homes < 2 || !collection.balance {
        return collection.chunk_size;
    }
    let total: u64 = collection.chunks.iter().map(|chunk| chunk.bytes).sum();
    (total / (homes * YOUNG_CHUNKS)).max(MIN_SPLIT_SIZE).min(collection.chunk_size)
}
