//! The sizes of collections on each shard, as the shards measure them.

use crate::catalog::cluster::nodes::{read_call_on, read_calls_at_once};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::survey;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store;
use crate::store::chunks::StoredChunk;
use crate::store::collections::Balanced;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::routing::protocol::measure::{
    ChunkSize, Estimate, EstimateSizes, FindSplitPoints, MeasureChunks, MeasureRange,
};
use docshard_core::routing::protocol::shard_tables::CountWrites;
use docshard_core::values::key::KeyPattern;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// A chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// the lower bound
    pub min: Vec<u8>,
    /// the upper bound, as in the catalog
    pub max: Vec<u8>,
    pub shard: ShardId,
    /// it cannot be split
    pub jumbo: bool,
    /// the number of documents, counted or estimated; 0 until measured
    pub documents: u64,
    /// the size of the documents in bytes, measured as their number is
    pub bytes: u64,
}

/// A collection with all its chunks.
#[derive(Clone, Debug)]
pub struct Collection {
    pub id: i32,
    /// `db.coll`
    pub namespace: String,
    /// the shard key; unsharded if it has no fields
    pub key: KeyPattern,
    /// its own chunk size in MiB
    pub chunk_size_mb: Option<i32>,
    /// the balancer may move its chunks: balancing is enabled, no index is being built, and the collection is not being copied
    pub balance: bool,
    /// no two documents have the same shard key
    pub unique: bool,
    /// its chunks, by lower bound
    pub chunks: Vec<Chunk>,
}

impl Collection {
    /// The upper bound of a chunk for statements at a shard; None for the last chunk, which is unbounded.
    fn end_of<'a>(&self, chunk: &'a Chunk) -> Option<&'a [u8]> {
        (chunk.max != self.key.max_bound()).then_some(chunk.max.as_slice())
    }
}

/// All collections by namespace, in one snapshot, not yet measured. Copies of running changes of layout are left out.
/// Errors: `InternalError` if the catalog holds a bad key.
pub fn collections(sharded_only: bool) -> Result<Vec<Collection>> {
    let _snapshot = ActiveSnapshot::latest();
    let mut collections = Vec::new();
    let mut position = HashMap::new();
    let in_copying = store::resharding::running()?;
    for collection in store::collections::read_balanced(sharded_only)? {
        let Balanced { id, namespace, key, chunk_size_mb, balance, unique } = collection;
        if in_copying.iter().any(|change| change.copy_id == id) {
            continue;
        }
        let balance = balance && !in_copying.iter().any(|change| change.collection == id);
        let key = store::collections::pattern(key.as_ref())?;
        position.insert(id, collections.len());
        collections.push(Collection { id, namespace, key, chunk_size_mb, balance, unique, chunks: Vec::new() });
    }
    for chunk in store::chunks::read_of_all_collections()? {
        if let Some(&at) = position.get(&chunk.collection) {
            let StoredChunk { min, max, shard, jumbo, .. } = chunk;
            collections[at].chunks.push(Chunk { min, max, shard, jumbo, documents: 0, bytes: 0 });
        }
    }
    Ok(collections)
}

/// The size of the largest table whose documents are counted for the balancer, in MiB. Larger ones are estimated, because the balancer
/// measures often.
pub const COUNTED_OFTEN_MB: i32 = 50;

/// The size of a collection on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// the number of documents; None if there are no statistics
    pub documents: Option<i64>,
    /// bytes of the documents
    pub bytes: i64,
}

/// A shard, with the sizes of its collections by collection number, or an error.
pub type Estimates = (Rc<Shard>, Result<HashMap<i32, Amount>>);

/// Sizes of collections on every shard by PostgreSQL's statistics. All shards are asked at once, each for at most `limit`.
pub fn estimate(collections: &[i32], limit: Duration) -> Result<Vec<Estimates>> {
    let of = |found: Vec<Estimate>| -> HashMap<i32, Amount> {
        let amount = |one: &Estimate| Amount {
            documents: one.documents.map(|n| plausible(n).cast_signed()),
            bytes: plausible(one.bytes).cast_signed(),
        };
        found.iter().map(|one| (one.collection, amount(one))).collect()
    };
    let answers = survey::call(&EstimateSizes { collections }, limit)?;
    Ok(answers.into_iter().map(|called| (called.shard, called.answer.map(of))).collect())
}

/// Measures a collection's chunks on a shard: counts documents if its table has at most `counted_mb` MiB, else estimates them.
pub fn measure(shard: &Shard, collection: &mut Collection, counted_mb: i32) -> Result<()> {
    let mut here: Vec<_> = collection.chunks.iter_mut().filter(|chunk| chunk.shard == shard.id).collect();
    if here.is_empty() {
        return Ok(());
    }
    let bounds: Vec<&[u8]> = here.iter().map(|chunk| chunk.min.as_slice()).collect();
    let sizes = read_call_on(shard, &MeasureChunks { collection: collection.id, bounds: &bounds, counted_mb })?;
    fill_in(&mut here, &sizes);
    Ok(())
}

/// Limits a number from a shard, so that the sum over all chunks cannot overflow.
fn plausible(told: i64) -> u64 {
    told.clamp(0, 1 << 53).unsigned_abs()
}

fn fill_in(chunks: &mut [&mut Chunk], sizes: &[ChunkSize]) {
    for size in sizes {
        if let Some(chunk) = usize::try_from(size.chunk).ok().and_then(|at| chunks.get_mut(at)) {
            (chunk.documents, chunk.bytes) = (plausible(size.documents), plausible(size.bytes));
        }
    }
}

/// Like [`measure`], at several shards at once.
pub fn measure_at_once(shards: &[Rc<Shard>], collection: &mut Collection, counted_mb: i32) -> Result<()> {
    let here = |shard: &Rc<Shard>| -> Vec<&[u8]> {
        let chunks = collection.chunks.iter().filter(|chunk| chunk.shard == shard.id);
        chunks.map(|chunk| chunk.min.as_slice()).collect()
    };
    let bounds: Vec<_> = shards.iter().map(|shard| (shard, here(shard))).filter(|(_, here)| !here.is_empty()).collect();
    let call = |bounds| MeasureChunks { collection: collection.id, bounds, counted_mb };
    let asked: Vec<_> = bounds.iter().map(|(shard, here)| (&***shard, call(here))).collect();
    let answers = read_calls_at_once(&asked)?;
    let found: Vec<(ShardId, Vec<ChunkSize>)> = asked.iter().map(|(shard, _)| shard.id).zip(answers).collect();
    for (shard, sizes) in found {
        let mut here: Vec<_> = collection.chunks.iter_mut().filter(|chunk| chunk.shard == shard).collect();
        fill_in(&mut here, &sizes);
    }
    Ok(())
}

/// The number of writes to each collection's table on each shard, from PostgreSQL's statistics. These are delayed: an unchanged
/// number does not prove that nothing was written.
pub fn activity(shards: &[Rc<Shard>], collections: &[i32]) -> Result<HashMap<(ShardId, i32), i64>> {
    let asked: Vec<_> = shards.iter().map(|shard| (&**shard, CountWrites { collections })).collect();
    let rows = shards.iter().zip(read_calls_at_once(&asked)?);
    Ok(rows.flat_map(|(shard, rows)| rows.into_iter().map(|row| ((shard.id, row.collection_id), row.writes))).collect())
}

/// Counts a chunk's documents and bytes exactly; the shard reads all of them.
pub fn measure_exactly(shard: &Shard, collection: &Collection, chunk: &Chunk) -> Result<(u64, u64)> {
    let range = MeasureRange { collection: collection.id, lo: &chunk.min, hi: collection.end_of(chunk) };
    let size = read_call_on(shard, &range)?;
    Ok((plausible(size.documents), plausible(size.bytes)))
}

/// Asks a shard for keys that divide a chunk into about `parts` equal parts; none if it has only one key.
pub fn split_points(shard: &Shard, collection: &Collection, chunk: &Chunk, parts: usize) -> Result<Vec<Vec<u8>>> {
    let find = FindSplitPoints {
        collection: collection.id,
        lo: &chunk.min,
        hi: collection.end_of(chunk),
        parts: i32::try_from(parts).unwrap_or(i32::MAX),
        documents: i64::try_from(chunk.documents).unwrap_or(i64::MAX),
    };
    ask_split_points(shard, &find)
}

/// Asks a shard for keys that divide a range.
/// Errors: 08P01 if the shard returns a key outside of the range.
pub fn ask_split_points(shard: &Shard, find: &FindSplitPoints<'_>) -> Result<Vec<Vec<u8>>> {
    let points = read_call_on(shard, find)?;
    if points.iter().all(|point| point.as_slice() >= find.lo && find.hi.is_none_or(|hi| point.as_slice() < hi)) {
        return Ok(points);
    }
    let message = format!("protocol violation by shard \"{}\": a split point outside of the range", shard.name);
    Err(Error::protocol_violation(message))
}
