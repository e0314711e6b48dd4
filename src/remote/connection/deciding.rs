//! A write that decides: the whole local transaction is this one statement at this one shard, so it is sent without a
//! transaction around it, and its success commits.
//!
//! # Invariants
//! - From its sending on, the outcome is the shard's: a cancel is passed on to the shard, and what counts is the shard's
//!   answer. Only a shutdown of this process, a lost connection, or a shard that does not answer leaves it unknown.
//! - From a success until the local transaction's end no cancel is served, so nothing keeps the local one from committing.

use super::super::ffi::{self, HoldCancel};
use super::super::wire::Limit;
use super::{Connection, Deciding, PROMPT};
use crate::pg::error::Error;
use std::time::Instant;

impl Deciding {
    pub(super) fn begin() -> Self {
        Self { _hold: HoldCancel::new(), cancelling: None, done: false }
    }
}

impl Connection {
    /// True while it is open whether a write that decides commits.
    pub(super) fn is_deciding(&self) -> bool {
        self.deciding.as_ref().is_some_and(|deciding| !deciding.done)
    }

    /// How long to wait for the next answer, where the caller would wait for ever, and serve a cancel.
    pub(super) fn patience(&self, limit: Limit) -> Limit {
        match (&self.deciding, limit) {
            (Some(Deciding { done: false, cancelling: None, .. }), Limit::Served) => Limit::Outcome,
            (Some(Deciding { done: false, cancelling: Some((_, deadline)), .. }), Limit::Served) => {
                Limit::ServedUntil(*deadline)
            }
            _ => limit,
        }
    }

    /// Passes a cancel on that this process was asked for.
    pub(super) fn pass_cancel_on(&mut self) {
        let request = self.canceller().map(|cancel| (cancel.send(), Instant::now() + PROMPT));
        if let Some(deciding) = &mut self.deciding {
            deciding.cancelling = request;
        }
    }

    /// The shard has answered, and this connection is in order again. May unwind if nothing was committed: a cancel that took
    /// effect at the shard is then served here.
    pub(super) fn decided(&mut self, committed: bool) {
        let Some(deciding) = self.deciding.as_mut().filter(|deciding| !deciding.done) else { return };
        deciding.done = true;
        let cancelling = deciding.cancelling.take();
        if let Some((request, deadline)) = &cancelling
            && !ffi::await_cancel(request, *deadline)
        {
            // It could still hit another statement.
            self.state.doom();
        }
        if !committed {
            self.deciding = None;
            if cancelling.is_some() {
                ffi::check_for_interrupts();
            }
        }
    }

    /// The local transaction has ended. True if a write had decided that it commits.
    pub(in crate::remote) fn release(&mut self) -> bool {
        self.deciding.take().is_some_and(|deciding| deciding.done)
    }

    /// The error of a connection that was lost while it was open whether the shard commits.
    pub(in crate::remote) fn in_doubt(&self) -> Error {
        let message = format!("lost the connection to shard \"{}\" while it was committing", self.wire.shard());
        let detail = Some("Whether the transaction was committed is unknown.".into());
        Error { detail, ..Error::of_sqlstate(*b"08007", message) }
            .with_hint("Look at the data before you repeat the transaction.")
    }
}
