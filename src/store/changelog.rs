//! `docshard_catalog.changelog`: what happened to the cluster.

use super::row;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;

/// Inserts an entry; `details` is a JSON object.
pub fn insert(what: &str, namespace: Option<&str>, details: &serde_json::Value) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.changelog (what, namespace, details) VALUES ($1, $2, $3::text::json)",
        &[Param::Text(what), Param::OptText(namespace), Param::Text(&details.to_string())],
    )
}

/// Deletes entries older than so many days, the oldest first; returns how many, at most `limit`.
pub fn delete_old(days: i32, limit: i64) -> Result<u64> {
    row::count_changed(
        "DELETE FROM docshard_catalog.changelog WHERE id IN (SELECT id FROM docshard_catalog.changelog \
           WHERE at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)",
        &[Param::Int4(days), Param::Int8(limit)],
    )
}
