//! How metadata is changed.
//!
//! RULE: who changes a collection's chunks, placements or indexes first locks its row ([`lock`]), and ends with
//! [`touch`]. So changes of one collection come one after the other, and every cached map notices. What becomes of a chunk's
//! bounds or owner is written with [`NEXT_REVISION`]; a chunk that is gone is covered by others that are.
//!
//! INVARIANT: a copy of the router changes nothing: [`lock`], [`touch`] and [`log`] refuse it.

use super::cluster;
use crate::pg::error::{Error, Result};
use crate::pg::object::invalidation;
use crate::pg::server::relation_oid;
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::transaction::epoch::{self, Epoch};
use docshard_core::error::Kind;
use std::cell::RefCell;

/// A collection's row, locked until the transaction ends.
#[derive(Debug, Clone)]
pub struct Locked {
    /// the collection's number
    pub id: i32,
    /// its token
    pub token: i64,
    /// the last version given out
    pub version: i64,
    /// its shard key as JSON; None if unsharded
    pub key: Option<String>,
}

thread_local! {
    /// Collections whose rows this transaction has locked.
    static LOCKED: RefCell<(Epoch, Vec<i32>)> = RefCell::default();
}

/// True if this transaction has locked the collection's metadata. After a ROLLBACK TO it may be false nevertheless.
pub fn is_locked_here(collection: i32) -> bool {
    LOCKED.with_borrow(|(epoch, locked)| *epoch == epoch::now() && locked.contains(&collection))
}

fn note_locked(collection: i32) {
    LOCKED.with_borrow_mut(|known| {
        let now = epoch::now();
        if known.0 != now {
            *known = (now, Vec::new());
        }
        known.1.push(collection);
    });
}

/// Locks a collection's metadata.
///
/// # Errors
/// `NamespaceNotFound`; `NotWritablePrimary` at a copy of the router.
pub fn lock(namespace: &str) -> Result<Locked> {
    cluster::require_router()?;
    let rows = spi::query(
        "SELECT id, token, version, key FROM docshard_catalog.collections WHERE namespace = $1 FOR UPDATE",
        &[Param::Text(namespace)],
    )?;
    let Some(row) = rows.first() else {
        return Err(Error::new(Kind::NamespaceNotFound, format!("ns not found: {namespace}")));
    };
    note_locked(row.i32(0));
    Ok(Locked { id: row.i32(0), token: row.i64(1), version: row.i64(2), key: row.opt_text(3).map(str::to_owned) })
}

/// The next ownership version of a locked collection: never given out before, never again.
///
/// # Errors
/// Internal ones.
pub fn next_version(collection: i32) -> Result<i64> {
    let rows = spi::query(
        "UPDATE docshard_catalog.collections SET version = version + 1 WHERE id = $1 RETURNING version",
        &[Param::Int4(collection)],
    )?;
    rows.first().map(|row| row.i64(0)).ok_or_else(|| Error::new(Kind::NamespaceNotFound, "the collection is gone"))
}

/// In SQL, the revision of a chunk that is written now: what [`touch`] will make the collection's. `$1` is the collection.
pub const NEXT_REVISION: &str = "(SELECT revision + 1 FROM docshard_catalog.collections WHERE id = $1)";

/// Advances a collection's revision and announces the change.
///
/// # Errors
/// `NotWritablePrimary` at a copy of the router.
pub fn touch(collection: i32) -> Result<()> {
    cluster::require_router()?;
    spi::execute(
        "UPDATE docshard_catalog.collections SET revision = revision + 1 WHERE id = $1",
        &[Param::Int4(collection)],
    )?;
    announce();
    Ok(())
}

/// Announces a change of the catalog that concerns no single collection (shards, settings).
pub fn announce() {
    if let Some(relation) = relation_oid(c"docshard_catalog", c"collections") {
        invalidation::announce(relation);
    }
}

/// Writes a line into the changelog; `details` is a JSON object.
///
/// # Errors
/// `NotWritablePrimary` at a copy of the router.
pub fn log(what: &str, namespace: Option<&str>, details: &serde_json::Value) -> Result<()> {
    cluster::require_router()?;
    spi::execute(
        "INSERT INTO docshard_catalog.changelog (what, namespace, details) VALUES ($1, $2, $3::text::json)",
        &[Param::Text(what), Param::OptText(namespace), Param::Text(&details.to_string())],
    )?;
    Ok(())
}
