//! Writes that are the whole local transaction: such a write is sent without a surrounding transaction, and its success commits.
//!
//! Once the write is sent, the shard decides the outcome: a cancel is passed on to the shard, and the shard's answer counts. The
//! outcome is unknown only if this process shuts down, the connection is lost, or the shard does not answer. After a success no
//! cancel is served until the local transaction has ended, so nothing prevents its commit.

use super::super::ffi::{self, Cancel, HoldCancel};
use super::super::wire::Limit;
use super::{Connection, Deciding, PROMPT};
use crate::pg::error::Error;
use docshard_core::error::sqlstate;
use std::time::Instant;

impl Deciding {
    pub(super) fn begin() -> Self {
        Self { _hold: HoldCancel::new(), cancelling: None, deadline: None, is_victim: false, committed: false }
    }
}

impl Connection {
    /// True while the outcome of a write that commits by itself is unknown.
    pub(super) fn is_deciding(&self) -> bool {
        self.deciding.as_ref().is_some_and(|deciding| !deciding.committed)
    }

    /// True if a write that commits by itself was cancelled because this process was chosen to end a deadlock.
    pub(super) fn is_victim(&self) -> bool {
        self.deciding.as_ref().is_some_and(|deciding| deciding.is_victim)
    }

    /// Returns the limit for the next wait. While the shard decides, [`Limit::Served`] is replaced: the wait ends when a cancel is pending,
    /// or at the deadline of a cancel that was passed on.
    pub(super) fn patience(&self, limit: Limit) -> Limit {
        match (&self.deciding, limit) {
            (Some(Deciding { committed: false, deadline, .. }), Limit::Served) => {
                deadline.map_or(Limit::Outcome, Limit::ServedUntil)
            }
            _ => limit,
        }
    }

    /// Passes a cancel on to the shard, because this process was cancelled, or to end a deadlock (`is_victim`). In the latter case no
    /// client waits for the effect, so there is no deadline until this process is cancelled, too.
    pub(super) fn pass_cancel_on(&mut self, is_victim: bool) {
        let cancels = self.deciding.as_ref().is_some_and(|deciding| deciding.cancelling.is_none());
        let request = if cancels { self.canceller().map(Cancel::send) } else { None };
        if let Some(deciding) = &mut self.deciding {
            deciding.cancelling = deciding.cancelling.take().or(request);
            deciding.is_victim |= is_victim;
            if !is_victim {
                deciding.deadline = Some(Instant::now() + PROMPT);
            }
        }
    }

    /// Called when the shard has answered. If nothing was committed, serves a cancel by unwinding.
    pub(super) fn decided(&mut self, committed: bool) {
        let Some(deciding) = self.deciding.as_mut().filter(|deciding| !deciding.committed) else { return };
        deciding.committed = committed;
        let (cancelling, deadline) = (deciding.cancelling.take(), deciding.deadline);
        if let Some(request) = &cancelling
            && !ffi::await_cancel(request, deadline.unwrap_or_else(|| Instant::now() + PROMPT))
        {
            // The request could still cancel a later statement.
            self.state.doom();
        }
        if !committed {
            self.deciding = None;
            if deadline.is_some() {
                ffi::check_for_interrupts();
            }
        }
    }

    /// Called when the local transaction has ended. True if a write in it has committed by itself.
    pub fn release(&mut self) -> bool {
        self.deciding.take().is_some_and(|deciding| deciding.committed)
    }

    /// The error of a connection that was lost before the shard confirmed the commit.
    pub fn in_doubt(&self) -> Error {
        let message = format!("lost the connection to shard \"{}\" while it was committing", self.wire.shard());
        Error::of_sqlstate(sqlstate::TRANSACTION_RESOLUTION_UNKNOWN, message)
            .with_detail("Whether the transaction was committed is unknown.")
            .with_hint("Look at the data before you repeat the transaction.")
    }
}
