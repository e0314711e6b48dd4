//! Merges chunks that have become too small.
//!
//! A chunk is tiny if it has at most an eighth of the split size *and* of the collection's average chunk. So if all chunks are
//! equally small, as after splitting an empty collection, none is tiny. Tiny neighbours are merged while the result stays well
//! below the split size, so that it is not split again. In a collection that is balanced by load, only chunks with little load are merged:
//! a split for load must last. Merges leave a collection at least two chunks on each shard that has that many, and do not touch
//! small collections.

use super::load::LEAST_DIFFERENCE;
use super::split::{MAX_DOCUMENTS, split_size};
use super::state::{Chunk, Cluster, MIN_SPLIT_SIZE, Merge, homes};
use std::collections::HashMap;

/// Merges do not reduce the number of a collection's chunks on a shard below this.
const KEPT: u64 = 2;

/// The largest load of a chunk that may be merged if its collection is balanced by load, in operations in 1,000 seconds.
const IDLE: u64 = LEAST_DIFFERENCE / 100;

/// All runs of neighbours to be merged.
pub(super) fn merges(cluster: &Cluster) -> Vec<Merge> {
    let homes = homes(cluster);
    let mut merges = Vec::new();
    for (position, collection) in cluster.collections.iter().enumerate() {
        let chunks = &collection.chunks;
        let total: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
        if !collection.balance || total < homes * MIN_SPLIT_SIZE || chunks.len() < 2 {
            continue;
        }
        let limit = split_size(collection, homes);
        let tiny = limit.min(total / chunks.len() as u64) / 8;
        let is_idle = |chunk: &Chunk| !collection.by_load || chunk.load.total <= IDLE;
        let is_tiny = |chunk: &Chunk| chunk.bytes <= tiny && !chunk.jumbo && !chunk.straddles && is_idle(chunk);
        let mut left: HashMap<_, u64> = HashMap::new();
        for chunk in chunks {
            *left.entry(chunk.shard).or_default() += 1;
        }
        let mut start = 0;
        while start < chunks.len() {
            let first = &chunks[start];
            let (mut end, mut bytes, mut documents) = (start, 0, 0);
            let left = left.entry(first.shard).or_default();
            while let Some(chunk) = chunks.get(end) {
                let alike = is_tiny(chunk) && chunk.shard == first.shard && chunk.zone == first.zone;
                (bytes, documents) = (bytes + chunk.bytes, documents + chunk.documents);
                let fits = bytes <= limit / 4 && documents <= MAX_DOCUMENTS / 4;
                if !alike || (end > start && (!fits || *left <= KEPT)) {
                    break;
                }
                *left -= u64::from(end > start);
                end += 1;
            }
            if end > start + 1 {
                merges.push(Merge { collection: position, chunks: start..end });
            }
            start = end.max(start + 1);
        }
    }
    merges
}
