//! Returns the distinct values of a field. Each shard returns its own values in order; the router drops duplicates while it
//! merges them.

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

pub struct Values {
    rows: MergedRows,
    last: Option<Vec<u8>>,
}

impl Values {
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

/// Returns the distinct values of a field in the matching documents; arrays contribute their elements. Numbers are
/// compared by value, strings by the collation. A collection that does not exist has none.
pub fn distinct(namespace: &str, field: &str, query: &Query) -> Result<Values> {
    Distinct::parse(field, &parsed_setting(query.setting.as_ref())?)?;
    with_fresh_map(namespace, |collection| {
        let rows = match collection {
            None => {
                let config = config::is_of(namespace);
                let streams =
                    if config { config::rows(config::distinct(namespace, field, query)?)? } else { Vec::new() };
                MergedRows::new(streams, Order::Ascending)
            }
            Some(collection) => {
                execute::merged(&collection, &plan::distinct(&Search::new(&collection, query)?, field)?)?
            }
        };
        Ok(Values { rows, last: None })
    })
}
