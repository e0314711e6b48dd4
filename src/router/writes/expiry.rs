//! Deletes expired documents. A document expires when a date in a field indexed with `expireAfterSeconds` is that many seconds
//! old. The delete is routed like a user's `delete_many`. As in MongoDB, the earliest date in an array counts, and documents without a
//! date never expire.

use super::modify;
use crate::pg::error::Result;
use crate::pg::spi;
use crate::router::session;
use crate::store::indexes::Expiring;
use docshard_core::routing::request::modification::Write;
use docshard_core::routing::request::query::Query;
use docshard_core::sql::param::Param;
use serde_json::json;

/// Deletes the documents whose date in the field of an index is not after `until`, in milliseconds since 1970; returns how many.
pub fn delete(index: &Expiring, until: i64) -> Result<i64> {
    let expired = json!({&index.path: {"$lte": {"$date": {"$numberLong": until.to_string()}}}});
    let filter = match &index.partial_filter {
        Some(partial) => json!({"$and": [partial, expired]}),
        None => expired,
    };
    // If the index is hidden, the delete scans the table, which this setting would refuse.
    let before = set_notablescan("off")?;
    let simple = json!({"locale": "simple"});
    let collation = index.collation.as_ref().unwrap_or(&simple);
    let environment = session::environment(&index.namespace, Some(collation), None)?;
    let query = &Query::of(&filter, &filter.to_string(), environment)?;
    let write = Write { many: true, ..Write::of_one(query, None) };
    let deleted = modify::write(&index.namespace, &write)?.matched;
    set_notablescan(&before)?;
    Ok(deleted)
}

/// Sets `docshard.notablescan` until the transaction ends; returns the value that it had.
fn set_notablescan(value: &str) -> Result<String> {
    let before = spi::query("SELECT pg_catalog.current_setting('docshard.notablescan')", &[])?;
    spi::query("SELECT pg_catalog.set_config('docshard.notablescan', $1, true)", &[Param::Text(value)])?;
    Ok(before.first().map(|row| row.text(0).to_owned()).unwrap_or_default())
}
