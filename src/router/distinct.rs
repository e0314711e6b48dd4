//! The distinct values of a field: each shard sends its own in order, and what several have is told once.

use super::condition::{Bound, Conditions};
use super::config;
use super::dispatch;
use super::fresh::with_fresh_map;
use super::merge::Merged;
use super::options::parsed_setting;
use super::read::Query;
use super::statement::{Order, Statement};
use crate::catalog::model::Collection;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use docshard_core::query::distinct::Distinct;
use docshard_core::values::document::raw;

/// The values, one after the other, in their order.
pub struct Values {
    rows: Merged,
    last: Option<Vec<u8>>,
}

impl Values {
    /// The next value, as jsonb.
    ///
    /// # Errors
    /// A shard's, and `InternalError` for damaged bytes from another node.
    pub fn next_value(&mut self) -> Result<Option<RawJsonb>> {
        while let Some(row) = self.rows.next_row()? {
            let key = row.get(1).unwrap_or_default();
            if self.last.as_deref() == Some(key) {
                continue;
            }
            self.last = Some(key.to_vec());
            let bytes = row.get(0).unwrap_or_default();
            if row.is_foreign() {
                raw::validate(bytes).map_err(Error::from)?;
            }
            return Ok(Some(RawJsonb::from_bytes(bytes)));
        }
        Ok(None)
    }
}

/// Finds the values that a field has in the documents that match. Arrays give their elements; numbers are equal by value,
/// strings as the collation says.
/// A collection that does not exist has none.
///
/// # Errors
/// Those of [`Distinct::parse`]; stale maps beyond patience, and whatever the shards raise.
pub fn distinct(namespace: &str, field: &str, query: &Query) -> Result<Values> {
    Distinct::parse(field, &parsed_setting(query.setting.as_ref())?)?;
    with_fresh_map(namespace, |collection| {
        let streams = match collection {
            None if config::is_of(namespace) => config::distinct(namespace, field, query)?,
            None => Vec::new(),
            Some(collection) => {
                let destinations = query.destinations(&collection)?;
                dispatch::read(&collection, &destinations, &statement(&collection, field, query)?)?
            }
        };
        Ok(Values { rows: Merged::new(streams, Order::Ascending), last: None })
    })
}

/// Few values of many documents are told apart by hashing before they are sorted. Of those that are equal and look
/// different, such as `2` and a decimal `2.00`, the shortest is taken.
fn statement(collection: &Collection, field: &str, query: &Query) -> Result<Statement> {
    let mut conditions = Conditions::of_query(collection, query)?;
    let field = conditions.param(Bound::Text(field.to_owned()));
    let setting = conditions.param(Bound::Text(query.setting.as_ref().map(ToString::to_string).unwrap_or_default()));
    let sql = format!(
        "SELECT DISTINCT ON (d.key) d.value, d.key FROM (\
           SELECT DISTINCT v.key, v.value FROM {} t, docshard_internal.distinct_values(t.doc, {field}, {setting}) v WHERE {}\
         ) d ORDER BY d.key, pg_catalog.octet_length(d.value), d.value",
        collection.table(),
        conditions.sql()
    );
    Ok(Statement { sql, params: conditions.params })
}
