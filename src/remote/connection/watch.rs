//! Detects statements that wait long at a shard, and so may be part of a deadlock over several nodes. They are reported to the
//! [`Coordinator`]. To end a deadlock, the coordinator chooses a process and takes the lock `Tag::Victim` of that process.
//!
//! [`Coordinator`]: crate::remote::Coordinator

use crate::pg::error::Error;
use crate::pg::transaction;
use crate::remote::coordinator::coordinator;
use crate::remote::ffi;
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use std::time::{Duration, Instant};

/// How often a process that has reported a wait checks whether it was chosen.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Watch {
    /// when to report the wait next
    report: Instant,
    /// how long to wait after a report before the next one
    pause: Duration,
    next_check: Instant,
}

impl Watch {
    pub(super) fn new() -> Self {
        let pause = ffi::deadlock_timeout();
        let report = Instant::now() + pause;
        Self { report, pause, next_check: report }
    }

    pub(super) fn next_check(&self) -> Instant {
        self.next_check
    }

    /// True if this process was chosen to end a deadlock. If so, takes the lock `Tag::Failing` until the end of the transaction, so that no
    /// other process is chosen meanwhile. Raises nothing but a shutdown.
    pub(super) fn is_chosen(&mut self) -> bool {
        self.next_check = Instant::now() + CHECK_INTERVAL;
        let pid = ffi::process_id();
        let is_chosen = lock::is_requested(Tag::Victim(pid));
        if is_chosen {
            transaction::attempt(|| _ = lock::try_acquire(Tag::Failing(pid), Mode::Exclusive));
        }
        is_chosen
    }

    /// Reports the wait if that is due. May unwind, unless the shard `decides` about the transaction: then only a shutdown does.
    pub(super) fn report(&mut self, decides: bool) {
        if Instant::now() >= self.report {
            match coordinator() {
                None => {}
                Some(coordinator) if decides => transaction::attempt(|| coordinator.suspect_deadlock()),
                Some(coordinator) => coordinator.suspect_deadlock(),
            }
            self.pause *= 2;
            self.report = Instant::now() + self.pause;
        }
        self.next_check = self.next_check.min(self.report);
    }
}

/// The error of a process that was chosen.
pub(super) fn deadlock() -> Error {
    let error = error!(Kind::WriteConflict, "deadlock detected: transactions wait for each other at several shards");
    error
        .with_sqlstate(sqlstate::DEADLOCK_DETECTED)
        .with_hint("Run the transaction again. The router's log shows which transactions waited for each other.")
}
