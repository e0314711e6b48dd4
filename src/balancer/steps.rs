//! Splits and merges chunks, and makes the requests for moves.

use super::control;
use super::view::View;
use crate::catalog::change::{self, Locked};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::loads::Loads;
use crate::catalog::collections::sizes::{self, Chunk, Collection};
use crate::catalog::collections::{chunks, zones};
use crate::migration::MoveRequest;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::store;
use docshard_core::cluster::balancer::{self as policy, Reason};
use docshard_core::cluster::chunk_map::Chunk as MapChunk;
use docshard_core::cluster::load::Division;
use docshard_core::values::key::KeyPattern;
use serde_json::json;

/// Splits a chunk at keys that its shard proposes. Marks the chunk jumbo if there are none.
pub(super) fn split(shard: &Shard, collection: &Collection, chunk: &Chunk, parts: usize) -> Result<()> {
    control::show(&format!("splitting a chunk of {}", collection.namespace));
    let points = transaction::run(|| sizes::split_points(shard, collection, chunk, parts))?;
    with_locked(collection, chunk, |locked, pattern| {
        if points.is_empty() {
            return mark_jumbo(collection, chunk);
        }
        chunks::split(locked, &collection.namespace, pattern, &points).map(drop)
    })
}

/// Splits a chunk at the bounds of the zones that it overlaps.
pub(super) fn split_at_zones(collection: &Collection, chunk: &Chunk) -> Result<()> {
    control::show(&format!("splitting a chunk of {} at the bounds of zones", collection.namespace));
    with_locked(collection, chunk, |locked, pattern| {
        let points = zones::of(&collection.namespace)?.cuts(&chunk.min, &chunk.max);
        chunks::split(locked, &collection.namespace, pattern, &points).map(drop)
    })
}

/// Splits a chunk at the median of its accesses.
pub(super) fn split_by_load(loads: &Loads, collection: &Collection, chunk: &Chunk) -> Result<()> {
    let load = loads.of_chunk(collection.id, &chunk.min);
    let Some(Division::At(bound, ..)) = load.map(|load| &load.division) else { return Ok(()) };
    if *bound >= chunk.max {
        return Ok(());
    }
    control::show(&format!("splitting a busy chunk of {}", collection.namespace));
    with_locked(collection, chunk, |locked, pattern| {
        chunks::split(locked, &collection.namespace, pattern, std::slice::from_ref(bound)).map(drop)
    })
}

pub(super) fn merge(collection: &Collection, run: &[Chunk]) -> Result<()> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    control::show(&format!("merging chunks of {}", collection.namespace));
    with_locked(collection, first, |locked, pattern| {
        if zones::of(&collection.namespace)?.straddles(&first.min, &last.max) {
            return Ok(());
        }
        chunks::merge(locked, &collection.namespace, pattern, &first.min, &last.max).map(drop)
    })
}

/// Changes a chunk under its collection's lock, unless it was changed meanwhile.
fn with_locked(
    collection: &Collection,
    chunk: &Chunk,
    change: impl FnOnce(&Locked, &KeyPattern) -> Result<()>,
) -> Result<()> {
    transaction::run(|| {
        let (locked, pattern) = chunks::lock_now(&collection.namespace)?;
        let bounds = MapChunk { min: chunk.min.clone(), max: chunk.max.clone(), shard: chunk.shard };
        if locked.id != collection.id || !store::chunks::exists(locked.id, &bounds)? {
            return Ok(());
        }
        change(&locked, &pattern)
    })
}

fn mark_jumbo(collection: &Collection, chunk: &Chunk) -> Result<()> {
    store::chunks::set_jumbo(collection.id, &chunk.min, true)?;
    let details = json!({
        "min": collection.key.bound_to_json(&chunk.min), "max": collection.key.bound_to_json(&chunk.max),
        "documents": chunk.documents, "bytes": chunk.bytes,
    });
    change::log("markJumbo", Some(&collection.namespace), &details)?;
    change::touch(collection.id)
}

/// Measures a move's first chunk exactly. Returns its documents and bytes if the estimate was wrong by more than a fifth plus 64 KiB;
/// otherwise None.
pub(super) fn confirm(view: &View, step: &policy::Move) -> Result<Option<(u64, u64)>> {
    let collection = &view.collections[step.collection];
    let chunk = &collection.chunks[step.chunks.start];
    let Some(shard) = view.shards.iter().find(|shard| shard.id == step.from) else { return Ok(None) };
    let (documents, bytes) = transaction::run(|| sizes::measure_exactly(shard, collection, chunk))?;
    Ok((chunk.bytes.abs_diff(bytes) > chunk.bytes / 5 + 64 * 1024).then_some((documents, bytes)))
}

/// The common bounds of the chunks that move.
pub(super) fn bounds(view: &View, step: &policy::Move) -> (Vec<u8>, Vec<u8>) {
    let chunks = &view.collections[step.collection].chunks[step.chunks.clone()];
    let (first, last) = (&chunks[0], &chunks[chunks.len() - 1]);
    (first.min.clone(), last.max.clone())
}

pub(super) fn request(view: &View, step: &policy::Move, bytes_per_second: u64) -> MoveRequest {
    let collection = &view.collections[step.collection];
    let (min, max) = bounds(view, step);
    MoveRequest {
        namespace: collection.namespace.clone(),
        min,
        max,
        to: step.to,
        force_jumbo: matches!(step.reason, Reason::Zone | Reason::Draining),
        bytes_per_second,
        reason: step.reason.name().into(),
    }
}
