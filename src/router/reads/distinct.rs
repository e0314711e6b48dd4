//! Returns the distinct values of a field. Each shard returns its own values in order; the router drops duplicates while it merges them.
//! The values of a pipeline's documents are sorted at the router.

use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::router::merged_rows::MergedRows;
use crate::router::reads::aggregate::Results;
use crate::router::source;
use docshard_core::query::distinct::Distinct;
use docshard_core::query::stage::{Memory, Sorter};
use docshard_core::routing::plan::Read;
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::raw;

pub struct Values {
    rows: Rows,
    last: Option<Vec<u8>>,
}

/// Values with their keys, in the order of the keys.
enum Rows {
    OfShards(MergedRows),
    Sorted(Box<dyn Sorter>),
}

impl Values {
    /// The distinct values in documents that a pipeline makes.
    pub fn of_documents(mut documents: Results, field: &Distinct, memory: &dyn Memory) -> Result<Self> {
        let mut sorter = memory.sorter(None, false)?;
        while let Some(bytes) = documents.next_bytes()? {
            let values = raw::document(bytes).map(|document| field.values(document)).transpose()?;
            for (key, value) in values.into_iter().flatten() {
                sorter.add(&key, &value)?;
            }
        }
        sorter.sort()?;
        Ok(Self { rows: Rows::Sorted(sorter), last: None })
    }

    pub fn next_value(&mut self) -> Result<Option<RawJsonb>> {
        match &mut self.rows {
            Rows::OfShards(rows) => {
                while let Some(row) = rows.next_row()? {
                    if !is_new(&mut self.last, row.bytes(1)) {
                        continue;
                    }
                    return Ok(row.document(0)?.map(RawJsonb::from_bytes));
                }
            }
            Rows::Sorted(sorter) => {
                while sorter.advance()? {
                    if is_new(&mut self.last, sorter.key()) {
                        return Ok(Some(RawJsonb::from_bytes(sorter.value())));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// True if a key differs from the last one, which it replaces.
fn is_new(last: &mut Option<Vec<u8>>, key: &[u8]) -> bool {
    let is_new = last.as_deref() != Some(key);
    if is_new {
        *last = Some(key.to_vec());
    }
    is_new
}

/// Returns the distinct values of a field in the matching documents; arrays contribute their elements. Numbers are compared by value,
/// strings by the collation. Empty for a collection that does not exist.
pub fn distinct(namespace: &str, field: &str, query: &Query) -> Result<Values> {
    Distinct::parse(field, &query.environment)?;
    let rows = source::read(namespace, query, Read::Distinct(field))?.into_rows();
    Ok(Values { rows: Rows::OfShards(rows), last: None })
}
