//! Collections' tables: rows, scans, indexes and access methods, locks. Hot paths bypass PostgreSQL's executor. This
//! module knows no shards, chunks or routers.
#![allow(unsafe_code)]

pub mod counting;
pub mod covering;
pub mod documents;
pub mod gin;
pub mod lock;
pub mod matching;
pub mod planning;
pub mod rows;
pub mod scan;
mod unique;

use crate::pg::error::{Error, Raise, Result};
use crate::pg::object::lookup_cache;
use crate::pg::security::permission;
use crate::pg::server::relation_oid;
use docshard_core::error::sqlstate::STALE;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;
use std::ffi::CStr;

pub use docshard_core::routing::names::C_SCHEMA as SCHEMA;

/// Returns the OIDs of one of docshard's own tables and of an index or a sequence of it.
pub fn own_table(table: &'static CStr, index: &'static CStr) -> Result<(pg_sys::Oid, pg_sys::Oid)> {
    // Collections' numbers begin with 1, so 0 is free for docshard's own tables.
    let oid = |name: &'static CStr| lookup_cache::relation((0, name), || relation_oid(SCHEMA, name));
    oid(table).zip(oid(index)).ok_or_else(|| error!(Kind::InternalError, "docshard's tables are missing on this node"))
}

/// Returns the number of the collection whose table has this name, without schema.
pub fn collection_of(table: &str) -> Option<i32> {
    table.strip_prefix('c')?.parse().ok()
}

fn dropped() -> Error {
    let message = "stale version: the collection's table was dropped while this statement began";
    error!(Kind::StaleShardVersion, "{message}").with_sqlstate(STALE)
}

/// Keeps a collection's table, which was looked up in this transaction, from being dropped until the transaction ends. Waits for a change
/// of the collection's layout that is dropping it.
///
/// # Errors
/// [`STALE`] if it was dropped.
pub fn keep(table: pg_sys::Oid) -> Result<()> {
    // SAFETY: the lock stays until the transaction ends.
    unsafe {
        let rel = pg_sys::try_table_open(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        if rel.is_null() {
            return Err(dropped());
        }
        pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
    }
    Ok(())
}

/// Opens a collection's table that was looked up in this transaction. A change of the collection's layout may have
/// dropped it since: then it raises [`STALE`], so that the router runs the statement again with the new map. In the
/// router's own database nothing catches that error, so [`keep`] is called first there.
///
/// # Safety
/// The same as for PostgreSQL's `table_open`.
unsafe fn open_looked_up(table: pg_sys::Oid, lock: u32) -> pg_sys::Relation {
    // SAFETY: promised by the caller.
    let rel = unsafe { pg_sys::try_table_open(table, lock as pg_sys::LOCKMODE) };
    if rel.is_null() {
        dropped().raise();
    }
    rel
}

/// Opens a table for reading by the current user. None if row-level security applies: then the executor must read it. Raises
/// PostgreSQL's error (42501) if the user lacks the privilege.
///
/// # Safety
/// The table existed in this transaction.
unsafe fn open_readable(table: pg_sys::Oid) -> Option<pg_sys::Relation> {
    // SAFETY: promised by the caller.
    unsafe {
        let rel = open_looked_up(table, pg_sys::AccessShareLock);
        permission::require(rel, pg_sys::ACL_SELECT);
        if permission::hides_rows(rel) {
            pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
            return None;
        }
        Some(rel)
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test(error = "stale version: the collection's table was dropped while this statement began")]
    fn a_table_that_is_gone_is_read_by_a_newer_map() {
        // No relation has this number.
        counting::rows(pg_sys::Oid::from(1), pg_sys::Oid::from(1));
    }
}
