//! Collections' documents as PostgreSQL stores them: rows, scans, indexes and access methods, locks; what goes round the
//! executor because it is on a hot path.
//!
//! It knows tables and their columns, not shards, chunks or routers.
#![allow(unsafe_code)]

pub mod counting;
pub mod covering;
pub mod gin;
pub mod lock;
pub mod matching;
pub mod planning;
pub mod rows;
pub mod scan;
mod unique;

use crate::pg::error::{Error, Result};
use crate::pg::object::lookup_cache;
use crate::pg::server::relation_oid;
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The schema of all collections' tables, and of what a node knows of them.
pub const SCHEMA: &CStr = c"docshard_data";

/// A table of docshard's own in that schema, with an index or a sequence of it.
///
/// # Errors
/// `InternalError` if they are missing.
pub fn own_table(table: &'static CStr, index: &'static CStr) -> Result<(pg_sys::Oid, pg_sys::Oid)> {
    // They belong to no collection, whose numbers begin with 1.
    let oid = |name: &'static CStr| lookup_cache::relation((0, name), || relation_oid(SCHEMA, name));
    oid(table)
        .zip(oid(index))
        .ok_or_else(|| Error::new(Kind::InternalError, "docshard's tables are missing on this node"))
}

/// The collection of a table's name, without schema.
pub fn collection_of(table: &str) -> Option<i32> {
    table.strip_prefix('c')?.parse().ok()
}
