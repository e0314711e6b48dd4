//! The version at which this shard is, read without SPI.

use super::SCHEMA;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::memory::recently_used::RecentlyUsed;
use crate::pg::object::lookup_cache;
use crate::pg::server::relation_oid;
use crate::remote::refusal::STALE;
use crate::remote::serializable::{self, Node};
use crate::storage::scan::{Columns, Look, Spot, at_spot, by_int4};
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ffi::CStr;

/// A collection's row in `docshard_data.placement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// tells this collection from another of the same number
    pub token: i64,
    /// the last change of ownership that touched this shard
    pub version: i64,
}

impl Placement {
    fn read(row: &Columns<'_>) -> Self {
        Self { token: row.i64(1), version: row.i64(2) }
    }
}

/// Of how many collections this process remembers where their rows are.
const MOST_SPOTS: usize = 16;

thread_local! {
    /// Where the rows of collections were last.
    static SPOTS: RefCell<RecentlyUsed<i32, Spot, MOST_SPOTS>> = const { RefCell::new(RecentlyUsed::NONE) };
}

/// A range that is being moved away from this shard.
#[derive(Clone, Debug)]
pub struct Capture {
    /// the migration
    pub migration: i64,
    /// the least key inside
    pub min: Vec<u8>,
    /// the least key above; None: no upper end
    pub max: Option<Vec<u8>>,
}

impl Capture {
    /// True if the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.min.as_slice() <= key && self.max.as_ref().is_none_or(|max| key < max.as_slice())
    }

    /// True if the range has all of `[lo, hi)`; None means no upper end.
    pub fn covers(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let ends_inside = match (hi, &self.max) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(hi), Some(max)) => hi <= max.as_slice(),
        };
        self.min.as_slice() <= lo && ends_inside
    }

    /// True if the range meets `[lo, hi)`; None means no bound.
    pub fn overlaps(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> bool {
        let starts_before_end = match (lo, &self.max) {
            (Some(lo), Some(max)) => lo < max.as_slice(),
            _ => true,
        };
        let ends_after_start = hi.is_none_or(|hi| self.min.as_slice() < hi);
        starts_before_end && ends_after_start
    }
}

fn relation(table: &'static CStr, index: &'static CStr) -> Result<(pg_sys::Oid, pg_sys::Oid)> {
    // They belong to no collection, whose numbers begin with 1.
    let oid = |name: &'static CStr| lookup_cache::relation((0, name), || relation_oid(SCHEMA, name));
    oid(table)
        .zip(oid(index))
        .ok_or_else(|| Error::new(Kind::InternalError, "docshard's tables are missing on this node"))
}

/// This shard's placement of a collection; None if it has none.
///
/// # Errors
/// `InternalError` if the extension's tables are missing.
pub fn placement(collection: i32, look: Look) -> Result<Option<Placement>> {
    let mut found = None;
    if let Some(spot) = SPOTS.with_borrow(|spots| spots.find(|of| *of == collection)) {
        // A collection has one row in any snapshot, so if this is one of its, it is that.
        at_spot(spot, look, |row| found = (row.i32(0) == collection).then(|| Placement::read(&row)));
        if found.is_some() {
            return Ok(found);
        }
    }
    let (table, index) = relation(c"placement", c"placement_pkey")?;
    by_int4(table, index, collection, look, |row| {
        found = Some(Placement::read(&row));
        SPOTS.with_borrow_mut(|spots| spots.keep(collection, Spot::of(table, &row)));
    });
    Ok(found)
}

/// The captures of a collection, in the newest snapshot.
///
/// # Errors
/// `InternalError` if the extension's tables are missing.
pub fn captures(collection: i32) -> Result<Vec<Capture>> {
    let (table, index) = relation(c"capture", c"capture_pkey")?;
    let mut found = Vec::new();
    by_int4(table, index, collection, Look::Latest, |row| {
        found.push(Capture { migration: row.i64(1), min: row.bytes(2).unwrap_or_default(), max: row.bytes(3) });
    });
    Ok(found)
}

/// Holds a statement that reads to the version that the router assumed, in the statement's own snapshot.
///
/// # Errors
/// As [`check`].
pub fn check_read(collection: i32, assumed: Placement) -> Result<()> {
    fault::point("read.checking")?;
    check(collection, assumed, Look::Active)
}

/// Checks that this shard is at the version that the router assumed.
///
/// # Errors
/// [`STALE`] on any difference; `NotImplemented` if the transaction is serializable and has been to another node.
pub fn check(collection: i32, assumed: Placement, look: Look) -> Result<()> {
    serializable::touch(Node::Here)?;
    let here = placement(collection, look)?;
    if here == Some(assumed) || fault::is_off("version_check") {
        return Ok(());
    }
    let here = here.map_or_else(|| "not placed".to_owned(), |p| format!("at version {}", p.version));
    Err(Error {
        sqlstate: STALE,
        message: format!("stale version: collection {collection} is {here} on this shard, not at {}", assumed.version),
        detail: Some("MongoDB error 63 (StaleShardVersion).".to_owned()),
        hint: None,
        context: None,
        duplicate: None,
    })
}
