//! Aborts a move on request.
//!
//! INVARIANT: an abort competes with the move's decision by the same compare-and-set. A request before the decision aborts the move; a
//! request after it waits for the completion. If this router has replaced another one, the shards show how the moves of the former router
//! ended ([`settle`]). If they do not show it, the move is in doubt: the request fails, and the move stays as it is.

use super::record;
use super::settle::settle;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::{process, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::migrations::{Standing, standing};
use docshard_core::cluster::migration::{Outcome, State};
use docshard_core::error::{Kind, bail};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The interval at which the state of a decided or aborted move is read.
const POLL_MS: i64 = 20;
/// The time limit for ending the move and cleaning up; after that, recovery does it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The outcome of a request to abort a move.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Aborted {
    /// This request aborted the move.
    pub now: bool,
    /// The request came too late: the recipient owns the chunk, or will.
    pub moved: bool,
    /// The move has not ended, as a shard cannot be reached.
    pub unfinished: bool,
}

/// Aborts a move if it is not decided, and waits until it is cleaned up; if it is decided, waits for its completion.
/// Runs outside any transaction.
///
/// # Errors
/// `NoMatchingDocument`; those of [`settle`], if the move is then still running; `ConflictingOperationInProgress` if
/// another process does not end a running move in time.
pub fn abort(id: i64) -> Result<Aborted> {
    let now = transaction::run(|| {
        record::require(id)?;
        let aborted = record::abort(id)?;
        if aborted {
            record::note_error(id, &record::interrupted())?;
        }
        Ok(aborted)
    })?;
    if now {
        transaction::run(|| interrupt_coordinator(id))?;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Standing { state, outcome } = transaction::run(|| standing(id))?;
        let moved = outcome == Outcome::Committed;
        if state == State::Done || Instant::now() >= deadline && state != State::Running {
            return Ok(Aborted { now, moved, unfinished: state != State::Done });
        }
        if Instant::now() >= deadline {
            bail!(Kind::ConflictingOperationInProgress, "another process works on migration {id}: try again later");
        }
        // No process works on the move: the coordinator has ended, or could not reach a shard.
        let tag = Tag::Coordinator(id);
        if lock::try_acquire_for_session(tag, Mode::Exclusive) {
            let settled = settle(id);
            lock::release_for_session(tag, Mode::Exclusive);
            if let Err(error) = settled {
                transaction::run(|| record::note_error(id, &error))?;
                return match transaction::run(|| standing(id))?.outcome {
                    Outcome::Running => Err(error),
                    outcome => Ok(Aborted { now, moved: outcome == Outcome::Committed, unfinished: true }),
                };
            }
            continue;
        }
        sleep_ms(POLL_MS);
    }
}

/// Interrupts the coordinator's wait, in the caller's transaction. The coordinator then sees that its move is aborted, and
/// cleans up.
pub fn interrupt_coordinator(id: i64) -> Result<()> {
    for (_, pid) in lock::holding_processes(Tag::Coordinator(id))? {
        if let Some(pid) = pid {
            process::cancel(pid);
        }
    }
    Ok(())
}
