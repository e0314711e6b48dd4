//! Moving a chunk in pieces, as handing it over at once would keep writers waiting for too long: the chunk is split, and
//! its parts move one after the other. A part that fails leaves those before it where they are.

use super::request::MoveRequest;
use crate::catalog::sizes::{self, Chunk, Collection};
use crate::catalog::{cache, chunks};
use crate::pg::error::Result;
use crate::pg::transaction;

/// Splits a chunk that is to move into about so many pieces; returns their moves, or None if the chunk cannot be split.
///
/// # Errors
/// Those of the shard, and of [`chunks::lock`].
pub(super) fn split(request: &MoveRequest, pieces: usize) -> Result<Option<Vec<MoveRequest>>> {
    let found = transaction::run(|| {
        let all = sizes::collections(true)?;
        let collection = all.into_iter().find(|collection| collection.namespace == request.namespace);
        let Some(collection) = collection else { return Ok(None) };
        points(&collection, request, pieces)
    })?;
    let Some(points) = found.filter(|points| !points.is_empty()) else { return Ok(None) };
    transaction::run(|| {
        let (locked, pattern) = chunks::lock(&request.namespace)?;
        chunks::split(&locked, &request.namespace, &pattern, &points).map(drop)
    })?;
    let starts = std::iter::once(&request.min).chain(&points);
    let ends = points.iter().chain(std::iter::once(&request.max));
    let part = |(min, max): (&Vec<u8>, &Vec<u8>)| MoveRequest { min: min.clone(), max: max.clone(), ..request.clone() };
    Ok(Some(starts.zip(ends).map(part).collect()))
}

fn points(collection: &Collection, request: &MoveRequest, pieces: usize) -> Result<Option<Vec<Vec<u8>>>> {
    let is_whole = |chunk: &&Chunk| chunk.min == request.min && chunk.max == request.max;
    let Some(chunk) = collection.chunks.iter().find(is_whole) else { return Ok(None) };
    let shard = cache::shard(chunk.shard)?;
    let (documents, bytes) = sizes::measure_exactly(&shard, collection, chunk)?;
    let chunk = Chunk { documents, bytes, ..chunk.clone() };
    sizes::split_points(&shard, collection, &chunk, pieces).map(Some)
}
