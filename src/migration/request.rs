//! The requests and results of moves.

use crate::pg::error::Result;
pub use crate::store::migrations::{MANUAL, MOVE_PRIMARY};
use docshard_core::cluster::chunk_map::ShardId;
use serde::{Deserialize, Serialize};

/// A request to move a chunk, or several neighbours of one owner, by their common bounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MoveRequest {
    pub namespace: String,
    pub min: Vec<u8>,
    pub max: Vec<u8>,
    pub to: ShardId,
    /// Also moves a chunk that is marked jumbo.
    pub force_jumbo: bool,
    /// The largest average copy rate; 0: no limit.
    pub bytes_per_second: u64,
    /// The reason in the move's row: [`MANUAL`], [`MOVE_PRIMARY`], or the name of the balancer's `Reason`.
    pub reason: String,
}

impl MoveRequest {
    /// True if a user has begun the move. The user waits for it, and can cancel it.
    pub(super) fn is_of_user(&self) -> bool {
        [MANUAL, MOVE_PRIMARY].contains(&self.reason.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveResult {
    /// False if the recipient had the chunk already.
    pub moved: bool,
    pub documents: i64,
    /// The stored size.
    pub bytes: i64,
    pub millis: i64,
}

impl MoveResult {
    /// Runs moves one after the other; returns the sum of their results, and how many moves have moved something. If one fails,
    /// the error says how many of `what` had been moved before.
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

/// A request to move a range of keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RangeRequest {
    pub namespace: String,
    /// The inclusive lower bound; None: about the size of a chunk below `max`, within its chunk.
    pub min: Option<Vec<u8>>,
    /// The exclusive upper bound; None: about the size of a chunk from `min` on, within its chunk.
    pub max: Option<Vec<u8>>,
    pub to: ShardId,
    /// Also moves chunks that are marked jumbo.
    pub force_jumbo: bool,
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use docshard_core::error::{Kind, error};
    use pgrx::pg_test;

    #[pg_test]
    fn an_error_says_how_many_moves_came_before_it() {
        let request = |to| MoveRequest {
            namespace: "shop.items".to_owned(),
            min: Vec::new(),
            max: Vec::new(),
            to,
            force_jumbo: false,
            bytes_per_second: 0,
            reason: MANUAL.to_owned(),
        };
        // Shard 1 has its part already, shard 9 fails.
        let run = |request: &MoveRequest| match request.to {
            1 => Ok(MoveResult::default()),
            9 => Err(error!(Kind::OperationFailed, "full")),
            to => Ok(MoveResult { moved: true, documents: to.into(), bytes: 10, millis: 1 }),
        };
        let sum = MoveResult { moved: true, documents: 5, bytes: 20, millis: 2 };
        assert_eq!(MoveResult::of_all(&[2, 1, 3].map(request), "parts", run).unwrap(), (sum, 2));
        let error = MoveResult::of_all(&[2, 1, 9, 3].map(request), "parts", run).unwrap_err();
        assert_eq!(error.context.as_deref(), Some("after 1 of 4 parts had been moved"));
        assert_eq!(MoveResult::of_all(&[1, 9].map(request), "parts", run).unwrap_err().context, None);
    }
}
