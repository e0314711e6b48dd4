//! The distinct values of a field: each shard returns its own in order, and a value that several have is returned once.

use super::config;
use super::execute;
use super::fresh_map::with_fresh_map;
use super::merged_rows::MergedRows;
use super::options::parsed_setting;
use super::order::Order;
use super::plan;
use super::plan::search::Search;
use super::query::Query;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use docshard_core::query::distinct::Distinct;
use docshard_core::values::document::raw;

/// The values, one after the other, in their order.
pub struct Values {
    rows: MergedRows,
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
        let rows = match collection {
            None => {
                let config = config::is_of(namespace);
                let streams = if config { config::distinct(namespace, field, query)? } else { Vec::new() };
                MergedRows::new(streams, Order::Ascending)
            }
            Some(collection) => {
                execute::merged(&collection, &plan::distinct(&Search::new(&collection, query)?, field)?)?
            }
        };
        Ok(Values { rows, last: None })
    })
}
