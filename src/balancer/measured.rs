//! A cache of measured chunk sizes. A size is used again while its table has not changed.

use crate::catalog::collections::sizes::{Chunk, Collection};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The age at which sizes are measured again even if the statistics show no change.
const MAX_AGE: Duration = Duration::from_secs(600);

type Bounds = (Vec<u8>, Vec<u8>);

/// The sizes of one collection's chunks at one shard.
#[derive(Debug)]
struct Table {
    at: Instant,
    /// `sizes::activity` just before the measurement
    activity: i64,
    sizes: HashMap<Bounds, (u64, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Measured(HashMap<(ShardId, i32), Table>);

fn bounds(chunk: &Chunk) -> Bounds {
    (chunk.min.clone(), chunk.max.clone())
}

impl Measured {
    /// Sets the sizes of a collection's chunks at a shard from the cache; false if they must be measured.
    pub(super) fn fill(&self, collection: &mut Collection, shard: ShardId, activity: Option<i64>) -> bool {
        let table = self.0.get(&(shard, collection.id));
        let Some(table) = table.filter(|table| Some(table.activity) == activity && table.at.elapsed() < MAX_AGE) else {
            return false;
        };
        // All sizes or none: if one is missing, a split or a move has changed the chunks since.
        let here = || collection.chunks.iter().enumerate().filter(|(_, chunk)| chunk.shard == shard);
        let known: Option<Vec<_>> =
            here().map(|(at, chunk)| table.sizes.get(&bounds(chunk)).map(|size| (at, *size))).collect();
        let Some(known) = known else { return false };
        for (at, (documents, bytes)) in known {
            (collection.chunks[at].documents, collection.chunks[at].bytes) = (documents, bytes);
        }
        true
    }

    /// Sets the last known sizes, of any age, for a shard that does not answer; false if a chunk there has none.
    pub(super) fn fill_old(&self, collection: &mut Collection, shard: ShardId) -> bool {
        let table = self.0.get(&(shard, collection.id));
        let mut known = true;
        for chunk in collection.chunks.iter_mut().filter(|chunk| chunk.shard == shard) {
            match table.and_then(|table| table.sizes.get(&bounds(chunk))) {
                Some(size) => (chunk.documents, chunk.bytes) = *size,
                None => known = false,
            }
        }
        known
    }

    pub(super) fn keep(&mut self, collection: &Collection, shard: ShardId, activity: Option<i64>) {
        let Some(activity) = activity else { return };
        let chunks = collection.chunks.iter().filter(|chunk| chunk.shard == shard);
        let sizes = chunks.map(|chunk| (bounds(chunk), (chunk.documents, chunk.bytes))).collect();
        self.0.insert((shard, collection.id), Table { at: Instant::now(), activity, sizes });
    }

    /// Removes collections that no longer exist.
    pub(super) fn retain(&mut self, collections: &[Collection]) {
        let ids: std::collections::HashSet<_> = collections.iter().map(|collection| collection.id).collect();
        self.0.retain(|(_, collection), _| ids.contains(collection));
    }
}
