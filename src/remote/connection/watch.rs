//! Writes that wait long at a shard, and so may be part of a deadlock over several nodes. Who looks for those is told; and who
//! found one holds a lock that tells this process that it is the one to end it: see [`Coordinator`].
//!
//! [`Coordinator`]: crate::remote::Coordinator

use crate::pg::error::Error;
use crate::remote::coordinator::coordinator;
use crate::remote::ffi;
use crate::storage::lock::{self, Tag};
use docshard_core::error::Kind;
use std::time::{Duration, Instant};

/// How often a process that waits looks whether it was chosen, once it is suspicious.
const GLANCE: Duration = Duration::from_millis(100);

/// One wait.
pub(super) struct Watch {
    /// when it becomes suspicious, again
    suspicious: Instant,
    /// how long after that, the next time
    pause: Duration,
    next: Instant,
}

impl Watch {
    /// Of a wait that begins now.
    pub(super) fn new() -> Self {
        let pause = ffi::deadlock_timeout();
        let suspicious = Instant::now() + pause;
        Self { suspicious, pause, next: suspicious }
    }

    /// When to look.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Looks. Unwinds, as for a cancel, if this process is to end a deadlock.
    pub(super) fn look(&mut self) {
        if lock::is_excluded(Tag::Victim(ffi::process_id())) {
            deadlock().raise();
        }
        if Instant::now() >= self.suspicious {
            if let Some(coordinator) = coordinator() {
                coordinator.suspect_deadlock();
            }
            self.pause *= 2;
            self.suspicious = Instant::now() + self.pause;
        }
        self.next = self.suspicious.min(Instant::now() + GLANCE);
    }
}

fn deadlock() -> Error {
    let error =
        Error::new(Kind::WriteConflict, "deadlock detected: transactions wait for each other at several shards");
    Error { sqlstate: *b"40P01", ..error }
        .with_hint("Run the transaction again. The router's log tells who waited for whom.")
}
