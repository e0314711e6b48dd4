//! What routers call at a shard: checks, locks and tables.

use crate::ownership::placement::{Placement, check};
use crate::ownership::{table, writing};
use crate::pg::scan::Look;
use pgrx::prelude::*;

/// True if this shard is at the version that the router assumed, in the snapshot of the statement that asks;
/// otherwise an ERROR. STABLE, so that it looks with the statement's own snapshot, once.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn at_version(collection: i32, token: i64, version: i64) -> bool {
    check(collection, Placement { token, version }, Look::Active).unwrap_or_else(|e| e.raise());
    true
}

/// Takes the locks that a write to `[lo, hi)` needs and checks the version under them; null means no bound.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn lock_and_check(collection: i32, token: i64, version: i64, lo: Option<&[u8]>, hi: Option<&[u8]>) -> bool {
    writing::lock_and_check(collection, Placement { token, version }, lo, hi).unwrap_or_else(|e| e.raise());
    true
}

/// Excludes every writer of a collection on this shard until the transaction ends.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_writers(collection: i32) {
    writing::exclude_writers(collection);
}

/// Makes a collection's table and places it at a version.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table(collection: i32, token: i64, version: i64, id_index: bool) {
    table::create(collection, token, version, id_index).unwrap_or_else(|e| e.raise());
}

/// Drops a collection's table and its placement.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table(collection: i32) {
    table::drop(collection).unwrap_or_else(|e| e.raise());
}

/// Makes a secondary index of a collection's table.
#[pg_extern(name = "create_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table_index(collection: i32, index: i32, keys: &str, is_unique: bool) {
    table::create_index(collection, index, keys, is_unique).unwrap_or_else(|e| e.raise());
}

/// Drops a secondary index.
#[pg_extern(name = "drop_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table_index(index: i32) {
    table::drop_index(index).unwrap_or_else(|e| e.raise());
}
