//! The lock that the cluster's router holds on this shard, in one long session: see `docshard_core::cluster::router_lock`.

use crate::pg::error::Result;
use crate::pg::spi;
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::sql::param::Param;

/// An SQL expression over a row of `pg_stat_activity`: the description of a session that holds the lock.
/// `docshard_core::cluster::standing::host_of` reads the address from it.
pub const HOLDER: &str = "pg_catalog.concat('process ', pid, ' of this shard, from ', \
    coalesce(pg_catalog.host(client_addr), 'the shard''s machine'), ', since ', backend_start::timestamptz(0))";

/// The SQL query for the holder of this shard's lock. The router's service role may run it, too.
pub fn holder_query() -> String {
    let held = lock::is_held_in_pg_locks(Tag::Router);
    format!(
        "SELECT {HOLDER} FROM pg_catalog.pg_stat_activity WHERE pid IN (SELECT pid FROM pg_catalog.pg_locks WHERE {held}) LIMIT 1"
    )
}

/// Takes the lock for this session. Returns None, or a description of the holder if another session has the lock. Terminates a holder that
/// has been silent for `silence_ms` milliseconds.
pub fn hold(silence_ms: i64) -> Result<Option<String>> {
    if lock::is_held(Tag::Router, Mode::Exclusive) || lock::try_acquire_for_session(Tag::Router, Mode::Exclusive) {
        return Ok(None);
    }
    let mut holder = None;
    for pid in lock::holding_processes(Tag::Router)?.into_iter().filter_map(|(_, pid)| pid) {
        // Without PostgreSQL's `track_activities` no holder counts as silent.
        let rows = spi::query(
            &format!(
                "SELECT coalesce((extract(epoch FROM pg_catalog.clock_timestamp() - greatest(query_start, state_change)) \
                     * 1000)::int8, 0), {HOLDER} \
                 FROM pg_catalog.pg_stat_activity WHERE pid = $1"
            ),
            &[Param::Int4(pid)],
        )?;
        let Some(row) = rows.first() else { continue };
        holder = Some(row.text(1).to_owned());
        if row.i64(0) >= silence_ms {
            spi::query("SELECT pg_catalog.pg_terminate_backend($1)", &[Param::Int4(pid)])?;
        }
    }
    Ok(Some(holder.unwrap_or_else(|| "a session that has ended".to_owned())))
}
