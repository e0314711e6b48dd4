//! Splits a chunk that cannot be handed over as a whole, because writers would wait too long. Its parts then move one after the
//! other. If a part fails, the earlier ones stay at the recipient.

use super::request::MoveRequest;
use crate::catalog::cache;
use crate::catalog::collections::chunks;
use crate::catalog::collections::sizes::{self, Chunk, Collection};
use crate::pg::error::Result;
use crate::pg::transaction;

/// Splits a chunk into about `pieces` pieces before it moves; returns their moves, or None if the chunk cannot be split.
pub(super) fn split(request: &MoveRequest, pieces: usize) -> Result<Option<Vec<MoveRequest>>> {
    let points = transaction::run(|| {
        let Some(collection) = collection(&request.namespace)? else { return Ok(Vec::new()) };
        let is_wanted = |chunk: &&Chunk| chunk.min == request.min && chunk.max == request.max;
        let chunk = collection.chunks.iter().find(is_wanted);
        chunk.map_or(Ok(Vec::new()), |chunk| points(&collection, chunk, |_| pieces))
    })?;
    if points.is_empty() {
        return Ok(None);
    }
    transaction::run(|| {
        let (locked, pattern) = chunks::lock(&request.namespace)?;
        chunks::split(&locked, &request.namespace, &pattern, &points).map(drop)
    })?;
    let starts = std::iter::once(&request.min).chain(&points);
    let ends = points.iter().chain(std::iter::once(&request.max));
    let part = |(min, max): (&Vec<u8>, &Vec<u8>)| MoveRequest { min: min.clone(), max: max.clone(), ..request.clone() };
    Ok(Some(starts.zip(ends).map(part).collect()))
}

/// Returns a sharded collection with its chunks; None if there is none of that name.
pub(super) fn collection(namespace: &str) -> Result<Option<Collection>> {
    Ok(sizes::collections(true)?.into_iter().find(|collection| collection.namespace == namespace))
}

/// Returns keys that divide a part of a chunk into about equal pieces. `pieces` returns the number of pieces for the size of the part in
/// bytes. For fewer than two pieces there are no keys.
pub(super) fn points(collection: &Collection, part: &Chunk, pieces: impl FnOnce(u64) -> usize) -> Result<Vec<Vec<u8>>> {
    let shard = cache::shard(part.shard)?;
    let (documents, bytes) = sizes::measure_exactly(&shard, collection, part)?;
    match pieces(bytes) {
        ..2 => Ok(Vec::new()),
        pieces => sizes::split_points(&shard, collection, &Chunk { documents, bytes, ..part.clone() }, pieces),
    }
}
