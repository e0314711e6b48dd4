//! What is to be moved, and what was.

use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::ShardId;

/// A chunk that is to be moved; or several neighbours of one owner, by their common bounds.
#[derive(Clone, Debug)]
pub struct MoveRequest {
    /// the collection
    pub namespace: String,
    /// the chunk's lower bound
    pub min: Vec<u8>,
    /// the chunk's upper bound
    pub max: Vec<u8>,
    /// the new owner
    pub to: ShardId,
    /// also a chunk that is marked jumbo
    pub force_jumbo: bool,
    /// copy at most so many bytes a second on average; 0: no limit
    pub bytes_per_second: u64,
    /// who wants it, for the changelog: `manual`, `balancer`, `draining` …
    pub reason: String,
}

/// What was moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveResult {
    /// false if the chunk was there already
    pub moved: bool,
    /// documents
    pub documents: i64,
    /// their bytes, as stored
    pub bytes: i64,
    /// how long it took, in milliseconds
    pub millis: i64,
}

impl MoveResult {
    /// Runs moves one after the other, and adds up their results. The error of one says how many of `what` had been moved before.
    ///
    /// # Errors
    /// Those of `run`.
    pub(super) fn of_all(
        moves: &[MoveRequest],
        what: &str,
        run: impl Fn(&MoveRequest) -> Result<Self>,
    ) -> Result<(Self, usize)> {
        let (mut sum, mut moved) = (Self::default(), 0);
        for request in moves {
            let result = run(request).map_err(|error| match moved {
                0 => error,
                _ => error.with_context(format!("after {moved} of {} {what} had been moved", moves.len())),
            })?;
            moved += usize::from(result.moved);
            sum.moved |= result.moved;
            sum.documents += result.documents;
            sum.bytes += result.bytes;
            sum.millis += result.millis;
        }
        Ok((sum, moved))
    }
}

/// A range of keys that is to be moved.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    /// the collection
    pub namespace: String,
    /// the least key inside; None: as much as a chunk should have below `max`, within its chunk
    pub min: Option<Vec<u8>>,
    /// the least key above; None: as much as a chunk should have from `min` on, within its chunk
    pub max: Option<Vec<u8>>,
    /// the new owner
    pub to: ShardId,
    /// also chunks that are marked jumbo
    pub force_jumbo: bool,
}
