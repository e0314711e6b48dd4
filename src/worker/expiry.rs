//! Deletes expired documents. A document expires when a date in a field indexed with `expireAfterSeconds` is that many seconds
//! old.
//!
//! Each index gets one delete in a transaction of its own, routed like a user's `delete_many`. As in MongoDB, the earliest date
//! in an array counts, and documents without a date never expire.
//!
//! The worker also ends the transactions that a delete may wait for. So each delete has a deadline, which increases with each
//! failure.

use super::activity;
use super::own_process::report;
use crate::catalog::settings;
use crate::pg::error::Result;
use crate::pg::process::timeout::Deadline;
use crate::pg::{process, spi, transaction};
use crate::remote::hung;
use crate::router::modification::Write;
use crate::router::query::Query;
use crate::router::{options, write};
use crate::store::indexes::{self, Expiring};
use serde_json::json;
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
                    if let Err(error) = transaction::run(|| delete(index, self.patience)) {
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

fn delete(index: &Expiring, patience: i64) -> Result<()> {
    let _deadline = Deadline::after(patience);
    let expired = json!({&index.path: {"$lte": {"$date": {"$numberLong": index.until.to_string()}}}});
    let filter = match &index.partial_filter {
        Some(partial) => json!({"$and": [partial, expired]}),
        None => expired,
    };
    // If the index is hidden, the delete scans the table.
    spi::query("SELECT pg_catalog.set_config('docshard.notablescan', 'off', true)", &[])?;
    let simple = json!({"locale": "simple"});
    let collation = index.collation.as_ref().unwrap_or(&simple);
    let environment = options::environment(&index.namespace, Some(collation), None, &[])?;
    let query = &Query::of(&filter, &filter.to_string(), environment.as_ref())?;
    let write = Write { many: true, ..Write::of_one(query, None) };
    write::write(&index.namespace, &write).map(drop)
}
