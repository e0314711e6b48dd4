//! The tables of schema `docshard_catalog`, a file each: row types, and the statements that read and change them.
//!
//! Nobody else spells a table's name or a column's; `tests/tests/architecture` sees to that. A store decides nothing: it
//! checks no privilege, takes no lock unless a function's name says so, and announces no change. Its functions run in the
//! caller's transaction, as the present user. RULE: who changes collections, chunks, placements or indexes goes by
//! `catalog::change`. Errors are internal ones, unless a function names others.

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
pub mod rotation;
mod row;
pub mod settings;
pub mod shards;
pub mod transactions;
pub mod zone_ranges;
pub mod zones;

use crate::pg::error::Result;
use crate::pg::server::relation_oid;
use crate::pg::spi;
use crate::pg::spi::param::Param;
use pgrx::pg_sys::Oid;
use row::Column;
use std::ffi::CStr;

/// The next number of a table's column `id`, an integer.
fn next_id<C: Column>(table: &str) -> Result<C> {
    let sequence = "pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')";
    row::scalar(&format!("SELECT pg_catalog.nextval({sequence})::pg_catalog.{}", C::TYPE), &[Param::Text(table)])
}

/// The relation of a table; None in a database without the extension.
pub fn relation(table: &CStr) -> Option<Oid> {
    relation_oid(c"docshard_catalog", table)
}

/// Tables that nobody but the extension's owner reads.
pub const SECRET: &str = "docshard_catalog.rotation, docshard_catalog.lost_shards";

/// Lets tables give out no number up to this one.
pub fn skip_numbers(table: &str, last: i64) -> Result<()> {
    row::scalar::<i64>(
        "SELECT pg_catalog.setval(s.name, greatest(pg_catalog.nextval(s.name), $2)) \
         FROM (SELECT pg_catalog.pg_get_serial_sequence('docshard_catalog.' || $1, 'id')::pg_catalog.regclass) AS s (name)",
        &[Param::Text(table), Param::Int8(last.max(1))],
    )
    .map(drop)
}

/// Lets no move, no build of an index and no other shard begin until the transaction ends.
pub fn lock_beginnings() -> Result<()> {
    spi::run_script(
        "LOCK TABLE docshard_catalog.migrations, docshard_catalog.index_builds, docshard_catalog.shards IN EXCLUSIVE MODE",
    )
}

/// Deletes everything that makes this database part of a cluster with others, and all collections.
pub fn clear() -> Result<()> {
    for table in [
        "collections",
        "zone_ranges",
        "zones",
        "databases",
        "grants",
        "migrations",
        "transactions",
        "rotation",
        "shards WHERE server IS NOT NULL",
    ] {
        row::execute(&format!("DELETE FROM docshard_catalog.{table}"), &[])?;
    }
    Ok(())
}
