//! The tables of schema `docshard_catalog`, a file each: its rows, and the statements that read and change them, as [`declare`]
//! describes.
//!
//! No other module names a table or a column; `tests/tests/architecture` checks that. A store decides nothing: it checks no
//! privilege, takes no lock unless a function's name says so, and announces no change. Its functions run in the caller's
//! transaction, as the present user. RULE: collections, chunks, placements and indexes are changed by way of
//! `catalog::change`. Errors are internal ones, unless a function names others.

#[macro_use]
pub mod declare;

pub mod balancer_state;
pub mod changelog;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod contacts;
pub mod databases;
pub mod grants;
pub mod index_builds;
pub mod indexes;
pub mod last_sizes;
pub mod lost_shards;
pub mod migrations;
pub mod pending_drops;
pub mod placements;
pub mod resharding;
pub mod rotation;
pub mod sampled_statements;
pub mod settings;
pub mod shards;
pub mod transactions;
pub mod views;
pub mod zone_ranges;
pub mod zones;

use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use crate::pg::security::permission;
use crate::pg::server::{relation_oid, wal};
use crate::pg::spi;
use docshard_core::sql::param::Param;
use docshard_core::sql::record::Value;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;

/// How many numbers of each table are left out for a failover.
const LOST_NUMBERS: i64 = 65_536;

/// After failovers, leaves out the numbers that former servers may have assigned in commits that this server has not received: shards may
/// have tables and indexes of these numbers. Two servers may have been promoted to the same timeline, so each also leaves out a random
/// number of further numbers. The keeper calls this function before it lets anyone assign a number.
pub fn leave_out_lost_numbers() -> Result<()> {
    let timeline = wal::timeline();
    // A catalog of a release before 0.4.0 has no timeline.
    let Some(known) = cluster::find_timeline()?.filter(|known| *known != timeline) else { return Ok(()) };
    let failovers = (timeline - known).clamp(1, 64);
    for table in ["collections", "indexes", "migrations", "shards", "changelog"] {
        leave_out_numbers(table, LOST_NUMBERS * failovers, LOST_NUMBERS)?;
    }
    cluster::set_timeline(timeline)
}

/// The next number for a table's column `id`.
fn next_id<N: Value + declare::FromStatement>(table: &str) -> Result<N> {
    let sequence = "pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')";
    let sql = format!("SELECT pg_catalog.nextval({sequence})::{}", N::TYPE);
    declare::run("store::next_id", &sql, &[Param::Text(table)])
}

/// The relation of a table; None in a database without the extension.
pub fn relation(table: &CStr) -> Option<Oid> {
    relation_oid(SCHEMA, table)
}

/// The schema of these tables.
pub const SCHEMA: &CStr = c"docshard_catalog";

/// True if the current user may use this schema: may read its tables, except the secret ones.
pub fn may_use() -> bool {
    permission::may_use_schema(SCHEMA)
}

/// Tables that only the extension's owner may read.
pub const SECRET: &str = "docshard_catalog.rotation, docshard_catalog.lost_shards, docshard_catalog.sampled_statements";

statements! {
    /// The last number that was assigned in a table; 0 if none was.
    pub fn last_number(table: &str) -> i64 {
        run "SELECT coalesce(pg_catalog.pg_sequence_last_value( \
             pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')::pg_catalog.regclass), 0)"
    }

    fn leave_out_numbers(table: &str, numbers: i64, random: i64) {
        run "SELECT pg_catalog.setval(s.name, pg_catalog.nextval(s.name) + $2 + (pg_catalog.random() * $3)::pg_catalog.int8) \
             FROM (SELECT pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')::pg_catalog.regclass) AS s (name)"
    }

    fn sequence_of(table: &str) -> Option<String> {
        run "SELECT pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')"
    }

    /// Makes the next number of a table greater than `last`.
    pub fn skip_numbers(table: &str, last: i64) {
        run "SELECT pg_catalog.setval(s.name, greatest(pg_catalog.nextval(s.name), $2)) \
             FROM (SELECT pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')::pg_catalog.regclass) AS s (name)",
            [table, last.max(1)]
    }
}

/// Numbers the next moves from `first`. ALTER SEQUENCE is transactional, whereas `setval` would take effect even after a rollback.
pub fn number_moves_from(first: i64) -> Result<()> {
    let (sequence, first) = (sequence_of("migrations")?.unwrap_or_default(), first.max(1));
    drop_guard::unguarded(|| spi::run_script(&format!("ALTER SEQUENCE {sequence} RESTART WITH {first}")))
}

/// Prevents that moves, changes of layout and index builds begin, or shards are added, until the transaction ends.
pub fn lock_beginnings() -> Result<()> {
    for table in [c"migrations", c"resharding", c"index_builds", c"shards"] {
        if relation(table).is_some() {
            let table = table.to_string_lossy();
            spi::run_script(&format!("LOCK TABLE docshard_catalog.{table} IN EXCLUSIVE MODE"))?;
        }
    }
    Ok(())
}

/// Deletes everything that makes this database part of a cluster with others, and all collections.
pub fn clear() -> Result<()> {
    let tables = [
        c"collections",
        c"views",
        c"zone_ranges",
        c"zones",
        c"databases",
        c"grants",
        c"migrations",
        c"resharding",
        c"sampled_statements",
        c"transactions",
        c"rotation",
        c"lost_shards",
    ];
    for table in tables.into_iter().filter(|table| relation(table).is_some()) {
        spi::execute(&format!("DELETE FROM docshard_catalog.{}", table.to_string_lossy()), &[])?;
    }
    spi::execute("DELETE FROM docshard_catalog.shards WHERE server IS NOT NULL", &[]).map(drop)
}
