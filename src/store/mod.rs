//! The tables of schema `docshard_catalog`, a file each: row types, and the statements that read and change them.
//!
//! Nobody else spells a table's name or a column's; `tests/tests/architecture.rs` sees to that. A store decides nothing: it
//! checks no privilege, takes no lock unless a function's name says so, and announces no change. Its functions run in the
//! caller's transaction, as the present user. RULE: who changes collections, chunks, placements or indexes goes by
//! `catalog::change`.

pub mod chunks;
pub mod collections;
pub mod databases;
pub mod index_builds;
pub mod indexes;
pub mod migrations;
pub mod placements;
mod row;
pub mod shards;
pub mod transactions;

use crate::pg::error::Result;
use crate::pg::server::relation_oid;
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
