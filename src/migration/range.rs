//! Moves a range of keys: splits chunks at its bounds, and moves each part that is on another shard.
//!
//! Each move is decided separately. If one fails, the earlier ones stay at the recipient; the error says how many there were.

use super::coordinator::run;
use super::request::{MANUAL, MoveRequest, MoveResult, RangeRequest};
use super::{pieces, recovery, register};
use crate::catalog::cluster::settings;
use crate::catalog::collections::chunks;
use crate::catalog::collections::sizes::{Chunk, Collection};
use crate::pg::error::Result;
use crate::pg::transaction;
use docshard_core::error::{Kind, error};

/// Moves all parts of a range that are on other shards; returns the sum of the results, and the number of moves. Like [`run`] it
/// must be called outside any transaction.
pub fn run_range(request: &RangeRequest) -> Result<(MoveResult, usize)> {
    recovery::recover_collection(&request.namespace)?;
    let (collection, min, max) = transaction::run(|| bounds(request))?;
    let must_move = |chunk: &&Chunk| chunk.shard != request.to && chunk.min < max && min < chunk.max;
    let elsewhere: Vec<&Chunk> = collection.chunks.iter().filter(must_move).collect();
    let request_of = |min: &[u8], max: &[u8]| MoveRequest {
        namespace: request.namespace.clone(),
        min: min.to_vec(),
        max: max.to_vec(),
        to: request.to,
        force_jumbo: request.force_jumbo,
        bytes_per_second: 0,
        reason: MANUAL.to_owned(),
    };
    let cuts: Vec<Vec<u8>> = [&min, &max]
        .into_iter()
        .filter(|bound| elsewhere.iter().any(|chunk| chunk.min < **bound && **bound < chunk.max))
        .cloned()
        .collect();
    if !cuts.is_empty() {
        // Nothing is split if the move is impossible.
        for chunk in &elsewhere {
            register::check(&request_of(&chunk.min, &chunk.max))?;
        }
        transaction::run(|| {
            let (locked, pattern) = chunks::lock(&request.namespace)?;
            let mut missing = Vec::new();
            for cut in cuts {
                if chunks::containing(locked.id, &cut)?.min != cut {
                    missing.push(cut);
                }
            }
            chunks::split(&locked, &request.namespace, &pattern, &missing).map(drop)
        })?;
    }
    let parts: Vec<_> =
        elsewhere.iter().map(|chunk| request_of((&chunk.min).max(&min), (&chunk.max).min(&max))).collect();
    MoveResult::of_all(&parts, "chunks of the range", run)
}

/// Returns the collection with its chunks, and the range's bounds.
fn bounds(request: &RangeRequest) -> Result<(Collection, Vec<u8>, Vec<u8>)> {
    let gone = || error!(Kind::NamespaceNotFound, "ns not found: {}", request.namespace);
    let collection = pieces::collection(&request.namespace)?.ok_or_else(gone)?;
    let (min, max) = match (&request.min, &request.max) {
        (Some(min), Some(max)) => (min.clone(), max.clone()),
        (Some(min), None) => (min.clone(), end_from(&collection, min)?),
        (None, Some(max)) => (start_below(&collection, max)?, max.clone()),
        (None, None) => {
            return Err(error!(Kind::BadValue, "a range needs min, max, or both")
                .with_hint("{\"$minKey\": 1} and {\"$maxKey\": 1} are also allowed as bounds."));
        }
    };
    if min >= max {
        let shown = [&min, &max].map(|bound| collection.key.bound_to_json(bound));
        return Err(error!(Kind::BadValue, "the range from {} to {} is empty", shown[0], shown[1])
            .with_hint("Its min must be less than its max."));
    }
    Ok((collection, min, max))
}

/// Returns the upper bound of a range that begins at `min` and has at most about the size of a chunk. The range ends no later than the chunk in
/// which it begins.
fn end_from(collection: &Collection, min: &[u8]) -> Result<Vec<u8>> {
    let Some(chunk) = collection.chunks.iter().rev().find(|chunk| chunk.min.as_slice() <= min) else {
        return Ok(collection.key.max_bound());
    };
    let part = Chunk { min: min.to_vec(), ..chunk.clone() };
    Ok(cuts(collection, &part)?.first().cloned().unwrap_or(part.max))
}

/// Returns the lower bound of a range that ends at `max` and has at most about the size of a chunk. The range begins no earlier than the chunk in
/// which it ends.
fn start_below(collection: &Collection, max: &[u8]) -> Result<Vec<u8>> {
    let Some(chunk) = collection.chunks.iter().rev().find(|chunk| chunk.min.as_slice() < max) else {
        return Ok(collection.key.min_bound());
    };
    let part = Chunk { max: max.to_vec(), ..chunk.clone() };
    Ok(cuts(collection, &part)?.last().cloned().unwrap_or(part.min))
}

/// Returns keys that divide a part of a chunk into pieces of about the chunk size; none if the part is not larger than that.
fn cuts(collection: &Collection, part: &Chunk) -> Result<Vec<Vec<u8>>> {
    if part.min >= part.max {
        return Ok(Vec::new());
    }
    let size = match collection.chunk_size_mb {
        Some(mb) => i64::from(mb),
        None => settings::integer("chunk_size_mb")?,
    };
    let size = size.unsigned_abs().max(1) << 20;
    pieces::points(collection, part, |bytes| usize::try_from(bytes.div_ceil(size)).unwrap_or(usize::MAX))
}
