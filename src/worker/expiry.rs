//! Deleting what has expired: documents whose field, indexed with `expireAfterSeconds`, holds a date that long ago.
//!
//! Each index is served by one delete in a transaction of its own, routed as a user's `delete_many` would be. As in MongoDB, of
//! several dates in an array the earliest counts, and documents without a date there never expire.
//!
//! The worker has other duties, among them to end the very transactions that a delete may wait for. So each delete has a
//! deadline, and more time at the next try.

use super::own_process::report;
use crate::catalog::settings;
use crate::pg::error::Result;
use crate::pg::process::timeout::Deadline;
use crate::pg::{process, spi, transaction};
use crate::remote::hung;
use crate::router::query::Query;
use crate::router::{change, options};
use crate::store;
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// How long a delete may take at first, and at most, in milliseconds.
const PATIENCE: std::ops::RangeInclusive<i64> = 10_000..=3_600_000;

/// When expired documents are deleted.
#[derive(Debug)]
pub(super) struct Expiry {
    /// until then nothing need be done
    due: Option<Instant>,
    /// how long a delete may take, in milliseconds
    patience: i64,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { due: None, patience: *PATIENCE.start() }
    }
}

/// An index that documents expire by.
struct Expiring {
    namespace: String,
    name: String,
    path: String,
    /// the filter of a partial index: only what it holds expires
    partial: Option<Json>,
    /// what it compares strings by
    collation: Json,
    /// documents with an earlier date, or that very one, have expired; milliseconds since 1970
    until: i64,
}

impl Expiry {
    /// Deletes what has expired, if it is time. Errors go to the log; the next round tries again.
    pub(super) fn round(&mut self) {
        if self.due.is_some_and(|due| due > Instant::now()) {
            return;
        }
        let interval = transaction::run(|| settings::integer("ttl_interval_s")).unwrap_or(60);
        match transaction::run(expiring) {
            Ok(indexes) => {
                let mut failed = false;
                for index in &indexes {
                    process::show_activity(Some("docshard: deleting expired documents"));
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

    /// When the next round is due.
    pub(super) fn due(&self) -> Instant {
        self.due.unwrap_or_else(Instant::now)
    }

    /// The next round comes at once: an index may be new, or the interval another.
    pub(super) fn hasten(&mut self) {
        self.due = None;
    }
}

fn expiring() -> Result<Vec<Expiring>> {
    let index = |index: store::indexes::Expiring| Expiring {
        namespace: index.namespace,
        name: index.name,
        path: index.path,
        until: index.until,
        partial: index.partial_filter,
        collation: index.collation.unwrap_or_else(|| json!({"locale": "simple"})),
    };
    Ok(store::indexes::expiring()?.into_iter().map(index).collect())
}

fn delete(index: &Expiring, patience: i64) -> Result<()> {
    let _deadline = Deadline::after(patience);
    let expired = json!({&index.path: {"$lte": {"$date": {"$numberLong": index.until.to_string()}}}});
    let filter = match &index.partial {
        Some(partial) => json!({"$and": [partial, expired]}),
        None => expired,
    };
    // The index may be hidden, and then nothing serves the filter.
    spi::query("SELECT pg_catalog.set_config('docshard.notablescan', 'off', true)", &[])?;
    let setting = options::setting(&index.namespace, Some(&index.collation), None, &[])?;
    change::delete(&index.namespace, &Query::of(&filter, &filter.to_string(), setting.as_ref())?, true)?;
    Ok(())
}
