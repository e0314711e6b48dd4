//! Reports the load of chunks.

use crate::catalog::cluster::survey;
use crate::catalog::collections::loads::{self, Loads};
use crate::catalog::collections::sizes::{self, Collection};
use crate::pg::error::Result;
use docshard_core::cluster::load::{ChunkLoad, Division};
use std::time::Duration;

/// The load of a chunk, or why there is none.
#[derive(Debug)]
pub struct LoadRow {
    /// the collection; None: the row is about the whole shard
    pub namespace: Option<String>,
    pub shard: String,
    /// the chunk's bounds, and its encoded lower bound; None: the row is about statements that are for no particular chunk
    pub chunk: Option<(String, String, Vec<u8>)>,
    /// reads in a second
    pub reads: f64,
    /// writes in a second
    pub writes: f64,
    /// the chunk's share of the collection's operations, in percent
    pub share: Option<f64>,
    pub note: Option<String>,
}

impl LoadRow {
    fn rate(&self) -> f64 {
        self.reads + self.writes
    }
}

/// The note in rows about statements that are for no particular chunk.
const UNLOCATED: &str = "statements without a condition on the shard key, or for many chunks";

/// Asks every shard, at most for `limit`; the busiest chunks come first.
pub fn of_chunks(limit: Duration) -> Result<Vec<LoadRow>> {
    let collections = sizes::collections(false)?;
    let mut loads = Loads::default();
    let mut rows = Vec::new();
    let mut shards = Vec::new();
    let shard_count = crate::catalog::cache::shards()?.len();
    for survey::ShardAnswer { shard, answer, .. } in survey::call(&loads::call(shard_count), limit)? {
        match answer {
            Ok(accesses) => loads.add(&shard, &collections, accesses),
            Err(error) => rows.push(LoadRow {
                namespace: None,
                shard: shard.name.clone(),
                chunk: None,
                reads: 0.0,
                writes: 0.0,
                share: None,
                note: Some(error.message_without_values().into_owned()),
            }),
        }
        shards.push(shard);
    }
    for collection in &collections {
        let start = rows.len();
        for shard in &shards {
            if let Some((reads, writes)) = loads.unlocated(collection.id, shard.id) {
                rows.push(row(collection, &shard.name, None, (reads, writes), Some(UNLOCATED.to_owned())));
            }
        }
        for chunk in &collection.chunks {
            let Some(load) = loads.of_chunk(collection.id, &chunk.min) else { continue };
            let Some(shard) = shards.iter().find(|shard| shard.id == chunk.shard) else { continue };
            let json = |bound: &[u8]| collection.key.bound_to_json(bound).to_string();
            let bounds = (json(&chunk.min), json(&chunk.max), chunk.min.clone());
            rows.push(row(collection, &shard.name, Some(bounds), (load.reads, load.writes), note(load)));
        }
        let all: f64 = rows[start..].iter().map(LoadRow::rate).sum();
        rows[start..].iter_mut().for_each(|row| row.share = Some(row.rate() * 100.0 / all.max(f64::MIN_POSITIVE)));
    }
    rows.sort_by(|one, other| other.rate().total_cmp(&one.rate()));
    Ok(rows)
}

type Bounds = (String, String, Vec<u8>);

fn row(
    collection: &Collection,
    shard: &str,
    chunk: Option<Bounds>,
    (reads, writes): (u64, u64),
    note: Option<String>,
) -> LoadRow {
    let (reads, writes) = (reads as f64 / 1000.0, writes as f64 / 1000.0);
    LoadRow {
        namespace: Some(collection.namespace.clone()),
        shard: shard.to_owned(),
        chunk,
        reads,
        writes,
        share: None,
        note,
    }
}

fn note(load: &ChunkLoad) -> Option<String> {
    match load.division {
        Division::OneKey(percent) => {
            Some(format!("one key has {percent} % of the operations: the chunk cannot be split by load"))
        }
        Division::Unknown | Division::At(..) => None,
    }
}
