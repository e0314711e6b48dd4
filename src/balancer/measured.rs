//! What was measured before, for tables in which nothing has changed since.

use crate::catalog::sizes::{Chunk, Collection};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Measured anew after that time, whatever the statistics say.
const OLD: Duration = Duration::from_secs(600);

type Bounds = (Vec<u8>, Vec<u8>);

/// A collection's table at a shard.
#[derive(Debug)]
struct Table {
    at: Instant,
    activity: i64,
    sizes: HashMap<Bounds, (u64, u64)>,
}

/// All tables that were measured.
#[derive(Debug, Default)]
pub(super) struct Measured(HashMap<(ShardId, i32), Table>);

fn bounds(chunk: &Chunk) -> Bounds {
    (chunk.min.clone(), chunk.max.clone())
}

impl Measured {
    /// Fills in the sizes of a collection's chunks at a shard; false if they have to be measured.
    pub(super) fn fill(&self, collection: &mut Collection, shard: ShardId, activity: Option<i64>) -> bool {
        let table = self.0.get(&(shard, collection.id));
        let Some(table) = table.filter(|table| Some(table.activity) == activity && table.at.elapsed() < OLD) else {
            return false;
        };
        // Only documents that are counted where they are: a split or a move makes other chunks.
        let here = || collection.chunks.iter().enumerate().filter(|(_, chunk)| chunk.shard == shard);
        let known: Option<Vec<_>> =
            here().map(|(at, chunk)| table.sizes.get(&bounds(chunk)).map(|size| (at, *size))).collect();
        let Some(known) = known else { return false };
        for (at, (documents, bytes)) in known {
            (collection.chunks[at].documents, collection.chunks[at].bytes) = (documents, bytes);
        }
        true
    }

    /// Fills in what was measured last, however long ago, for a shard that cannot be asked; false if that is not known of
    /// every chunk there.
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

    /// Remembers what was measured when the statistics were at `activity`.
    pub(super) fn keep(&mut self, collection: &Collection, shard: ShardId, activity: Option<i64>) {
        let Some(activity) = activity else { return };
        let chunks = collection.chunks.iter().filter(|chunk| chunk.shard == shard);
        let sizes = chunks.map(|chunk| (bounds(chunk), (chunk.documents, chunk.bytes))).collect();
        self.0.insert((shard, collection.id), Table { at: Instant::now(), activity, sizes });
    }

    /// Forgets collections that are gone.
    pub(super) fn retain(&mut self, collections: &[Collection]) {
        let ids: std::collections::HashSet<_> = collections.iter().map(|collection| collection.id).collect();
        self.0.retain(|(_, collection), _| ids.contains(collection));
    }
}
