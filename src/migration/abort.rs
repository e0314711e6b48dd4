//! Ending a move on request.
//!
//! INVARIANT: whether a move ends here or there is decided by the same compare-and-set as ever. So a request that comes
//! before the decision aborts, one that comes after it waits for the move to complete, and nobody has to be asked.

use super::record;
use super::settle::settle;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::{process, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::migrations::{Standing, standing};
use docshard_core::cluster::migration::{Outcome, State};
use std::time::{Duration, Instant};

/// How long to wait for the end of a move that is decided or aborted before a second look is taken at who cleans up.
const GLANCE_MS: i64 = 20;
/// After so long it is left to others to clean up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of a move that was to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// this request has ended it
    pub now: bool,
    /// the chunk went to its new owner, as it was too late; otherwise it stays where it was
    pub moved: bool,
    /// something is still to be cleaned, as a shard cannot be reached
    pub unfinished: bool,
}

/// Ends a move if it is not decided, and waits until nothing is left of it; if it is decided, waits for its completion.
/// Runs outside any transaction.
///
/// # Errors
/// `NoMatchingDocument` if there is no such move.
pub fn abort(id: i64) -> Result<Aborted> {
    let now = transaction::run(|| {
        record::require(id)?;
        let aborted = record::advance(id, State::Running, State::Aborted)?;
        if aborted {
            record::note_error(id, &record::interrupted())?;
        }
        Ok(aborted)
    })?;
    if now {
        interrupt_coordinator(id)?;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Standing { state, outcome } = transaction::run(|| standing(id))?;
        let moved = outcome == Outcome::Committed;
        if state == State::Done || Instant::now() >= deadline {
            return Ok(Aborted { now, moved, unfinished: state != State::Done });
        }
        // Nobody works on it: the coordinator has gone, or could not reach a shard.
        let tag = Tag::Coordinator(id);
        if lock::try_acquire_for_session(tag, Mode::Exclusive) {
            let settled = settle(id);
            lock::release_for_session(tag, Mode::Exclusive);
            if let Err(error) = settled {
                transaction::run(|| record::note_error(id, &error))?;
                let moved = transaction::run(|| standing(id))?.outcome == Outcome::Committed;
                return Ok(Aborted { now, moved, unfinished: true });
            }
            continue;
        }
        sleep_ms(GLANCE_MS);
    }
}

/// Wakes the coordinator from whatever it waits for. It finds its move aborted, and cleans up.
fn interrupt_coordinator(id: i64) -> Result<()> {
    transaction::run(|| interrupt(id))
}

/// The same, in the caller's transaction.
pub(super) fn interrupt(id: i64) -> Result<()> {
    for (_, pid) in lock::holding_processes(Tag::Coordinator(id))? {
        if let Some(pid) = pid {
            process::cancel(pid);
        }
    }
    Ok(())
}
