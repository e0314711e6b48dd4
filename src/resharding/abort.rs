//! Aborts a change of layout on request. If another server may have decided it, the request answers recovery's question.
//!
//! INVARIANT: an abort competes with the decision by the same compare-and-set.

use super::settle::settle_or_deny;
use crate::migration::abort::interrupt_coordinator;
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::resharding;
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, error};
use std::time::{Duration, Instant};

/// The interval at which the state is read.
const POLL_MS: i64 = 20;
/// The time limit for ending the change and cleaning up; after that, recovery does it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The error of a change that was aborted.
pub(super) fn aborted() -> Error {
    error!(Kind::ReshardCollectionAborted, "the change of the collection's layout was aborted").with_hint(
        "The request came from docshard.abort_reshard_collection(); or the router has been restarted meanwhile.",
    )
}

/// Aborts a change if it is not decided, and waits until it is cleaned up. False if it was decided instead. Runs outside any
/// transaction.
pub(super) fn abort(id: i64) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        let row = transaction::run(|| resharding::get(id))?;
        if row.state == State::Done || Instant::now() >= deadline {
            return Ok(row.outcome == State::Aborted);
        }
        let tag = Tag::Coordinator(id);
        // No process works on it: the coordinator has ended, or could not reach a shard.
        if lock::try_acquire_for_session(tag, Mode::Exclusive) {
            let settled = settle_or_deny(id);
            lock::release_for_session(tag, Mode::Exclusive);
            if let Err(error) = settled {
                transaction::run(|| resharding::set_error(id, &error.text_without_values()))?;
                let outcome = transaction::run(|| resharding::get(id))?.outcome;
                return if outcome == State::Running { Err(error) } else { Ok(outcome == State::Aborted) };
            }
            continue;
        }
        if !asked && ask(id)? {
            transaction::run(|| interrupt_coordinator(id))?;
        }
        asked = true;
        sleep_ms(POLL_MS);
    }
}

/// Sets a running change to *aborted*; true if it was running. A change that another server has begun may be decided,
/// so it is left to recovery.
fn ask(id: i64) -> Result<bool> {
    transaction::run(|| {
        if !resharding::get(id)?.is_of_this_server()? {
            return Ok(false);
        }
        let now = resharding::advance(id, State::Running, State::Aborted)?;
        if now {
            resharding::set_error(id, &aborted().message)?;
        }
        Ok(now)
    })
}
