//! Deletes expired documents from time to time: see `router::expiry`. Each index gets one delete in a transaction of its own.
//!
//! The worker also ends the transactions that a delete may wait for. So each delete has a deadline, which increases with each
//! failure.

use super::activity;
use super::own_process::report;
use crate::catalog::settings;
use crate::pg::process::timeout::Deadline;
use crate::pg::{process, transaction};
use crate::remote::hung;
use crate::router::expiry;
use crate::store::indexes;
use std::time::{Duration, Instant};

/// The initial and the longest time limit of a delete, in milliseconds.
const PATIENCE: std::ops::RangeInclusive<i64> = 10_000..=3_600_000;

pub(super) struct Expiry {
    due: Option<Instant>,
    /// The current time limit of a delete, in milliseconds.
    patience: i64,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { due: None, patience: *PATIENCE.start() }
    }
}

impl Expiry {
    /// Deletes expired documents, if a round is due. Errors are logged; the next round tries again.
    pub(super) fn round(&mut self) {
        if self.due.is_some_and(|due| due > Instant::now()) {
            return;
        }
        let interval = transaction::run(|| settings::integer("ttl_interval_s")).unwrap_or(60);
        match transaction::run(indexes::expiring) {
            Ok(indexes) => {
                let mut failed = false;
                for index in &indexes {
                    activity::show("deleting expired documents");
                    // The deadline comes first: a shard that deletes many documents has not failed.
                    let time = Duration::from_millis(self.patience.unsigned_abs()) + hung::worker_timeout();
                    let _limit = hung::limit(time);
                    if let Err(error) = transaction::run(|| {
                        let _deadline = Deadline::after(self.patience);
                        expiry::delete(index).map(drop)
                    }) {
                        let (namespace, name) = (&index.namespace, &index.name);
                        report(&error, &format!("documents of {namespace} expire by {name}: "));
                        failed |= !hung::is_known(&error);
                    }
                }
                self.patience = if failed { (self.patience * 2).min(*PATIENCE.end()) } else { *PATIENCE.start() };
                process::show_activity(None);
            }
            Err(error) => pgrx::log!("docshard worker: {}", error.message),
        }
        self.due = Some(Instant::now() + Duration::from_secs(u64::try_from(interval).unwrap_or(60)));
    }

    pub(super) fn due(&self) -> Instant {
        self.due.unwrap_or_else(Instant::now)
    }

    /// Makes the next round due: there may be a new index, or a new interval.
    pub(super) fn hasten(&mut self) {
        self.due = None;
    }
}
