//! Functions that change one document and return it.

use super::{run, with_options};
use crate::catalog;
use crate::operation::find_and_modify::FindAndModify;
use crate::operation::source::Source;
use crate::operation::table::{self, Operation};
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use docshard_core::query::update::Style;
use pgrx::prelude::*;

/// What the drivers' three functions have in common; `update` is the update and its style, None deletes.
fn find_one_and(
    ns: &str,
    filter: &Json,
    update: Option<(&Json, Style)>,
    options: &Json,
    operation: &'static Operation,
) -> Result<Option<RawJsonb>> {
    catalog::namespace::split(ns)?;
    let (filter, update) = (Source::Text(&filter.0), update.map(|(text, style)| (Source::Text(&text.0), style)));
    let found = with_options(options, operation, |options| FindAndModify::of(filter, update, options).run(ns))?;
    Ok(found.document.map(|document| RawJsonb::from_bytes(&document)))
}

/// Updates one document, named by the full shard key or by `_id`, and returns it as it was, or as it is; null if there is
/// none. Options: sort, projection, upsert, returnDocument ("before", "after"), arrayFilters.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_update(ns: &str, filter: Json, update: Json, options: default!(Json, "'{}'")) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, Some((&update, Style::Operators)), &options, &table::FIND_ONE_AND_UPDATE))
}

/// Replaces one document, named by the full shard key or by `_id`, and returns it as it was, or as it is; null if there is
/// none. Options: sort, projection, upsert, returnDocument ("before", "after").
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_replace(
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, Some((&replacement, Style::Replacement)), &options, &table::FIND_ONE_AND_REPLACE))
}

/// Deletes one document, named by the full shard key or by `_id`, and returns it; null if there is none. Options: sort,
/// projection.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_delete(ns: &str, filter: Json, options: default!(Json, "'{}'")) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, None, &options, &table::FIND_ONE_AND_DELETE))
}

/// The shell's `findAndModify`: `{"query": …, "sort": …, "update": … or "remove": true, "new": …, "fields": …, "upsert": …,
/// "arrayFilters": …}`. Returns the document, or null.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_and_modify(ns: &str, spec: Json) -> Option<RawJsonb> {
    run(|| {
        catalog::namespace::split(ns)?;
        let found = with_options(&spec, &table::FIND_AND_MODIFY, |spec| FindAndModify::of_specification(spec).run(ns))?;
        Ok(found.document.map(|document| RawJsonb::from_bytes(&document)))
    })
}
