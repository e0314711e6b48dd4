//! Shows in `pg_stat_activity` what the worker is doing, also while it waits for a shard.

use crate::pg::error::Result;
use crate::pg::process::{self, AT};
use crate::pg::security::user;
use crate::pg::spi;
use crate::remote::hung::worker_timeout;
use docshard_core::sql::record::decode_all;
use std::time::Duration;

/// How the texts begin.
const PREFIX: &str = "docshard: ";

/// The time after which a wait for one shard counts as long ([`Activity::is_long`]), unless half of `docshard.worker_timeout` is less.
const LONG: Duration = Duration::from_secs(60);

/// What the worker of this database is doing.
#[derive(Clone, Debug)]
pub struct Activity {
    pub what: String,
    /// the shard that it waits for; None: it waits for none
    pub shard: Option<String>,
    /// when it began, as text
    pub since: String,
    /// how long ago it began, in seconds
    pub seconds: i64,
}

impl Activity {
    /// True if the worker waits longer for a shard than it should. Never for moves, which may take long.
    pub fn is_long(&self) -> bool {
        self.shard.is_some()
            && !self.what.starts_with("moving")
            && self.seconds.unsigned_abs() >= LONG.min(worker_timeout() / 2).as_secs()
    }
}

/// Shows what this worker does.
pub(super) fn show(what: &str) {
    process::show_activity(Some(&format!("{PREFIX}{what}")));
}

/// Returns what this database's worker is doing; None if it rests, if there is none, or without `track_activities`.
pub fn current() -> Result<Option<Activity>> {
    let sql = "SELECT query, state_change::pg_catalog.text, \
                 (extract(epoch FROM pg_catalog.clock_timestamp() - state_change))::pg_catalog.int8 \
               FROM pg_catalog.pg_stat_activity \
               WHERE backend_type = 'docshard worker' AND datname = pg_catalog.current_database() AND state = 'active'";
    let rows = user::as_extension_owner(|| spi::query(sql, &[]))?;
    let found: Vec<(String, String, i64)> = decode_all("pg_stat_activity", &rows)?;
    let activity = |(text, since, seconds): (String, String, i64)| {
        let text = text.strip_prefix(PREFIX)?;
        let (what, shard) = text.rsplit_once(AT).map_or((text, None), |(what, shard)| (what, Some(shard.to_owned())));
        Some(Activity { what: what.to_owned(), shard, since, seconds })
    };
    Ok(found.into_iter().find_map(activity))
}
