//! `bulk_write`: many writes in one call, each of which succeeds or fails by itself.

use super::documents::write_error;
use super::{run, with_options};
use crate::catalog;
use crate::operation::bulk_write::{self, Write};
use crate::operation::{table, writing};
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write;
use pgrx::prelude::*;
use serde_json::Value as Document;

/// Runs writes such as `{"insertOne": {"document": …}}`, `updateOne`, `updateMany`, `replaceOne`, `deleteOne`, `deleteMany`, one
/// after the other. Those that fail are reported in `writeErrors`, and the others stay. Options: ordered (default true),
/// which ends the work at the first that fails; let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn bulk_write(ns: &str, operations: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| {
        catalog::namespace::split(ns)?;
        with_options(&options, &table::BULK_WRITE, |options| {
            let json = operations.parse()?;
            let Document::Array(operations) = &json else {
                return Err(Error::new(Kind::TypeMismatch, "operations of bulk_write must be an array"));
            };
            writing::check_size(operations.len())?;
            let parse = |(index, json)| Write::parse(index, json, options.get("let"));
            let writes = operations.iter().enumerate().map(parse).collect::<Result<Vec<_>>>()?;
            printed(bulk_write::run(ns, &writes, options.flag("ordered"))?)
        })
    })
}

fn printed(totals: bulk_write::Totals) -> Result<RawJsonb> {
    let count = |n: i64| Value::Number(Number::Int(n));
    let mut fields = vec![
        ("acknowledged".to_owned(), Value::Bool(true)),
        ("insertedCount".to_owned(), count(totals.inserted.len() as i64)),
        ("insertedIds".to_owned(), Value::Object(totals.inserted)),
        ("matchedCount".to_owned(), count(totals.matched)),
        ("modifiedCount".to_owned(), count(totals.modified)),
        ("deletedCount".to_owned(), count(totals.deleted)),
        ("upsertedCount".to_owned(), count(totals.upserted.len() as i64)),
        ("upsertedIds".to_owned(), Value::Object(totals.upserted)),
    ];
    if !totals.errors.is_empty() {
        let errors = totals.errors.iter().map(|failed| write_error(failed.index, &failed.error));
        fields.push(("writeErrors".to_owned(), Value::Array(errors.collect())));
    }
    Ok(RawJsonb::from_bytes(&write::value(&Value::Object(fields))?))
}
