//! Splits chunks that are too large, or lie in several zones.

use super::state::{Cluster, Collection, Cut, MAX_PARTS, MIN_SPLIT_SIZE, Split, YOUNG_CHUNKS, homes};
use crate::cluster::chunk_map::ShardId;
use std::collections::HashSet;

/// A chunk with more documents is split even if it has few bytes: a hand-over blocks writers while the documents are deleted.
pub(super) const MAX_DOCUMENTS: u64 = 250_000;

/// Returns all chunks to be split, except those of unavailable shards: nothing moves while there are chunks to be split, so an unavailable
/// shard would block all moves.
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
            // Parts of two thirds of the limit can grow before the next split.
            let parts = (state.bytes * 3).div_ceil(limit * 2).max((state.documents * 3).div_ceil(MAX_DOCUMENTS * 2));
            // While a collection has a single chunk, the number of parts is a multiple of the number of shards that take data, unless that
            // exceeds the limits below.
            let parts = if collection.chunks.len() == 1 { parts.next_multiple_of(homes.max(1)) } else { parts };
            let into = parts.clamp(2, MAX_PARTS.min(state.documents)) as usize;
            splits.push(Split { collection: position, chunk, cut: Cut::Parts(into) });
        }
    }
    splits
}

/// The size in bytes above which a chunk is split: the chunk size, or less while the collection is young.
pub(super) fn split_size(collection: &Collection, homes: u64) -> u64 {
    if homes < 2 || !collection.balance {
        return collection.chunk_size;
    }
    let total: u64 = collection.chunks.iter().map(|chunk| chunk.bytes).sum();
    (total / (homes * YOUNG_CHUNKS)).max(MIN_SPLIT_SIZE).min(collection.chunk_size)
}
