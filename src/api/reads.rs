//! SQL functions that read documents; docs/sql-reference.md describes them.

use super::run;
use crate::operation::calls::reads::{self as calls, Aggregated, Values};
use crate::operation::reading::Found;
use crate::pg::client::text_output;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::Result;
use crate::pg::spi::cursor;
use docshard_core::values::document::field_order::{Keeping, keeps_order};
use pgrx::prelude::*;

/// The results of a read, one by one. A command's cursor may be read after the command has ended. Its documents keep the order of their
/// fields, like those that the command itself returns.
fn results<S: 'static>(
    begin: impl FnOnce() -> Result<S>,
    next: impl Fn(&mut S) -> Result<Option<RawJsonb>> + 'static,
) -> SetOfIterator<'static, RawJsonb> {
    let keeps_order = keeps_order() || cursor::running_keeps_order();
    let keeping = move || Keeping::order_if(keeps_order);
    let mut source = run(|| {
        let _keeping = keeping();
        begin()
    });
    SetOfIterator::new(std::iter::from_fn(move || {
        run(|| {
            let _keeping = keeping();
            next(&mut source)
        })
    }))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> SetOfIterator<'static, RawJsonb> {
    text_output::take_over(fcinfo);
    results(|| calls::find(ns, &filter, &options), Found::next_document)
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<RawJsonb> {
    text_output::take_over(fcinfo);
    run(|| calls::find_one(ns, &filter, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn aggregate(
    _nulls: Option<NoNulls>,
    ns: &str,
    pipeline: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> SetOfIterator<'static, RawJsonb> {
    text_output::take_over(fcinfo);
    results(|| calls::aggregate(ns, &pipeline, &options), Aggregated::next_document)
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn count_documents(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
) -> i64 {
    run(|| calls::count_documents(ns, &filter, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn distinct(
    _nulls: Option<NoNulls>,
    ns: &str,
    field: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
) -> SetOfIterator<'static, RawJsonb> {
    results(|| calls::distinct(ns, field, &filter, &options), Values::next_value)
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn estimated_document_count(_nulls: Option<NoNulls>, ns: &str) -> i64 {
    run(|| calls::estimated_document_count(ns))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn explain(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    verbosity: default!(&str, "'queryPlanner'"),
) -> Json {
    run(|| calls::explain(ns, &filter, &options, verbosity))
}
