//! `docshard_catalog.cluster`, one row: the cluster's identity, and which database is its router.

use super::row::{self, row_of};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use docshard_core::cluster::prepared_name::Coordinator;
use docshard_core::cluster::standing::Registration;
use docshard_core::error::Kind;

row_of! { Coordinator from "cluster" { cluster = "id", epoch, } }

row_of! { Registration from "cluster" {
    router,
    copy,
    has_shards = "EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL)",
} }

fn nothing() -> Error {
    Error::new(Kind::NotYetInitialized, "this cluster has no identity")
}

/// The cluster's identity, and the router's epoch.
///
/// # Errors
/// `NotYetInitialized` if there is none.
pub fn coordinator() -> Result<Coordinator> {
    row::find("", &[])?.ok_or_else(nothing)
}

/// As [`coordinator`], in the active snapshot.
///
/// # Errors
/// As [`coordinator`].
pub fn read_coordinator() -> Result<Coordinator> {
    row::read("", &[])?.into_iter().next().ok_or_else(nothing)
}

/// What the catalog says of its router, in the active snapshot.
pub fn read_registration() -> Result<Registration> {
    Ok(row::read("", &[])?.into_iter().next().unwrap_or_default())
}

/// The router's epoch, locked until the transaction ends.
///
/// # Errors
/// `NotYetInitialized` if there is none.
pub fn lock_epoch() -> Result<i64> {
    row::value("cluster", "epoch", "FOR UPDATE", &[])?.ok_or_else(nothing)
}

/// True if this database has been found to be a copy of the router.
pub fn is_copy() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.cluster WHERE copy IS NOT NULL", &[])
}

/// Sets the router, unless there is another one with shards.
pub fn set_first_router(router: &str) -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.cluster SET router = $1, copy = NULL \
         WHERE (router IS DISTINCT FROM $1 OR copy IS NOT NULL) \
         AND (router IS NULL OR NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL))",
        &[Param::Text(router)],
    )
}

/// Sets the router and its epoch.
pub fn set_router(router: &str, epoch: i64) -> Result<()> {
    let sql = "UPDATE docshard_catalog.cluster SET router = $1, copy = NULL, epoch = $2";
    row::execute(sql, &[Param::Text(router), Param::Int8(epoch)])
}

/// Sets why this database is a copy of the router, if it is not set and the epoch is that one, or any; false if not.
pub fn set_copy(reason: &str, epoch: Option<i64>) -> Result<bool> {
    let epoch = epoch.map(|epoch| epoch.to_string());
    let sql = "UPDATE docshard_catalog.cluster SET copy = $1 \
               WHERE copy IS NULL AND epoch = coalesce($2::pg_catalog.int8, epoch)";
    Ok(row::count_changed(sql, &[Param::Text(reason), Param::OptText(epoch.as_deref())])? > 0)
}

/// This database is no copy any more, if the reason begins like that.
pub fn clear_copy(prefix: &str) -> Result<()> {
    let sql = "UPDATE docshard_catalog.cluster SET copy = NULL WHERE pg_catalog.starts_with(copy, $1)";
    row::execute(sql, &[Param::Text(prefix)])
}

/// Makes another cluster of it, without a router.
pub fn renew() -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.cluster SET id = ('x' || pg_catalog.substr(pg_catalog.md5( \
           pg_catalog.random()::pg_catalog.text || pg_catalog.clock_timestamp()::pg_catalog.text), 1, 16))::pg_catalog.bit(64)::pg_catalog.int8, \
           router = NULL, copy = NULL, epoch = DEFAULT",
        &[],
    )
}
