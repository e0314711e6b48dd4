//! Deletes expired documents from time to time: see `router::expiry`. Each index gets one delete in a transaction of its own.
//!
//! A delete may wait for a transaction that this same worker must end. So each delete has a deadline, which increases with each
//! failure, up to `docshard.worker_timeout`. After a failure, several deletes follow one another, by age: the first one takes the documents
//! that expired long ago. If a later one fails, the deletes before it are committed.
//!
//! A role that may write to collections can lock their tables, so that deletes fail. So a round ends when failed deletes have taken
//! [`LONGEST_WAIT`] together, and databases take turns: see [`Turns`].

use super::activity;
use super::own_process::report;
use crate::catalog::cluster::settings;
use crate::pg::process::timeout::Deadline;
use crate::pg::{process, transaction};
use crate::remote::hung;
use crate::router::writes::expiry;
use crate::store::indexes::{self, Expiring};
use docshard_core::cluster::turns::Turns;
use std::time::{Duration, Instant};

/// The initial time limit of a delete, in milliseconds, unless `docshard.worker_timeout` is less.
const PATIENCE: i64 = 10_000;

/// After a failure, the number of deletes before the last one. The first takes what expired at least 17 years ago (two to the power of 29
/// seconds), each next one what expired at least half as long ago.
const AGES: u32 = 30;

/// A round ends after failures that together took this time.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

pub(super) struct Expiry {
    due: Option<Instant>,
    /// The current time limit of a delete, in milliseconds.
    patience: i64,
    /// A delete of the last round has failed.
    has_failed: bool,
    /// The indexes whose deletes have failed, by database.
    turns: Turns<String>,
}

/// Deletes the documents that have expired by an index; if `in_parts` is true, by several deletes, the oldest documents first. Logs an
/// error, and returns false; but true if a shard is silent and this is known.
fn delete(index: &Expiring, patience: i64, in_parts: bool) -> bool {
    let ages = (0..if in_parts { AGES } else { 0 }).rev().map(|power| 1000_i64 << power);
    for age in ages.chain(std::iter::once(0)) {
        activity::show("deleting expired documents");
        // The limit for a silent shard is later than the delete's deadline, because a shard that deletes many documents
        // has not failed.
        let _limit = hung::limit(Duration::from_millis(patience.unsigned_abs()) + hung::worker_timeout());
        let deleted = transaction::run(|| {
            let _deadline = Deadline::after(patience);
            expiry::delete(index, index.until - age).map(drop)
        });
        if let Err(error) = deleted {
            report(&error, &format!("documents of {} expire by {}: ", index.namespace, index.name));
            return hung::is_known(&error);
        }
    }
    true
}

impl Default for Expiry {
    fn default() -> Self {
        Self { due: None, patience: PATIENCE, has_failed: false, turns: Turns::default() }
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
            Ok(mut indexes) => {
                let database = |index: &Expiring| index.namespace.split('.').next().unwrap_or_default().to_owned();
                indexes.sort_by_cached_key(|index| self.turns.place(&database(index), index.id));
                let (mut failed, mut waited) = (false, Duration::ZERO);
                let longest = i64::try_from(hung::worker_timeout().as_millis()).unwrap_or(i64::MAX);
                let patience = self.patience.min(longest);
                for index in &indexes {
                    let began = Instant::now();
                    if !delete(index, patience, self.has_failed) {
                        failed = true;
                        waited += began.elapsed();
                        self.turns.pass(database(index), index.id);
                    }
                    if waited >= LONGEST_WAIT {
                        break;
                    }
                }
                self.has_failed = failed;
                self.patience = if failed { (patience * 2).min(longest) } else { PATIENCE };
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
