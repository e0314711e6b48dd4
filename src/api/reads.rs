//! SQL functions that read documents; docs/sql-reference.md describes them.

use super::{run, with_options};
use crate::catalog::collections::namespace;
use crate::operation::reading::{self, Count};
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::table::{self, Operation};
use crate::pg::client::text_output;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::Result;
use crate::pg::process::timeout::TimeLimit;
use crate::pg::spi::cursor;
use crate::router::by_key;
use crate::router::explain::statement::{self as explaining, Explained, Verbosity};
use docshard_core::query::specification::Role;
use docshard_core::routing::plan::Read;
use docshard_core::values::document::field_order::{Keeping, keeps_order};
use pgrx::prelude::*;

fn find_documents(ns: &str, filter: &Json, options: &Json, operation: &'static Operation) -> Result<reading::Found> {
    namespace::split(ns)?;
    reading::find_of_call(ns, filter.text(Role::Filter)?, options.text(Role::Request)?, operation)
}

/// The results of a read, one by one. A command's cursor may begin and end after the command: its documents keep their order as those that
/// the command itself returns.
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
    results(|| find_documents(ns, &filter, &options, &table::FIND), reading::Found::next_document)
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
    run(|| {
        if options.is_empty()
            && let Some(found) = by_key::find_one(ns, filter.text(Role::Filter)?)?
        {
            return Ok(found);
        }
        find_documents(ns, &filter, &options, &table::FIND_ONE)?.next_document()
    })
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
    let begin = || {
        namespace::split_with(ns, Some(reading::WITHOUT_COLLECTION))?;
        with_options(&options, &table::AGGREGATE, |options| {
            let mut limit = TimeLimit::of_ms(options.max_time_ms()?);
            let results = limit.run(|| reading::aggregate(ns, &pipeline.parse(Role::Pipeline)?, options))?;
            Ok((limit, results))
        })
    };
    results(begin, |(limit, results)| limit.run(|| results.next_document()))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn count_documents(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
) -> i64 {
    run(|| {
        namespace::split(ns)?;
        with_options(&options, &table::COUNT, |options| {
            Count::of_options(Specification::Text(filter.text(Role::Filter)?), options)?.run(ns)
        })
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn distinct(
    _nulls: Option<NoNulls>,
    ns: &str,
    field: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
) -> SetOfIterator<'static, RawJsonb> {
    let begin = || {
        namespace::split(ns)?;
        with_options(&options, &table::DISTINCT, |options| {
            reading::distinct(ns, field, Specification::Text(filter.text(Role::Filter)?), &Shared::of(options, None))
        })
    };
    results(begin, |values| values.next_value())
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn estimated_document_count(_nulls: Option<NoNulls>, ns: &str) -> i64 {
    run(|| {
        namespace::split(ns)?;
        reading::estimated_count(ns)
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn explain(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    verbosity: default!(&str, "'queryPlanner'"),
) -> Json {
    run(|| {
        let verbosity = Verbosity::parse(verbosity)?;
        // An array is a pipeline, anything else a filter.
        let is_pipeline = filter.text(Role::Plain)?.trim_start().starts_with('[');
        let asked = filter.parse(if is_pipeline { Role::Pipeline } else { Role::Filter })?;
        let text = filter.text(Role::Filter)?;
        if asked.is_array() {
            namespace::split_with(ns, Some(reading::WITHOUT_COLLECTION))?;
            let explained = with_options(&options, &table::EXPLAIN_AGGREGATE, |options| {
                reading::explain_aggregate(ns, &asked, options, verbosity)
            })?;
            return Ok(Json::new(explaining::pretty(&explained)));
        }
        namespace::split(ns)?;
        let of_view = with_options(&options, &table::EXPLAIN, |options| {
            let stages = || reading::find_stages(Specification::Text(text), options);
            reading::explain_view(ns, stages, Shared::of(options, None), verbosity)
        })?;
        if let Some(explained) = of_view {
            return Ok(Json::new(explaining::pretty(&explained)));
        }
        let options = reading::find_options_of_call(ns, options.text(Role::Request)?, &table::EXPLAIN)?;
        let query = reading::find_query(Specification::Text(text), &options)?;
        let explained = explaining::explain(ns, &query, Explained::Read(Read::Find(&options)), verbosity)?;
        Ok(Json::new(explaining::pretty(&explained)))
    })
}
