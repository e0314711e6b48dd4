//! Calls of the functions that read documents.

use super::with_options;
use crate::catalog::collections::namespace;
use crate::operation::arguments::{Arguments, Form};
use crate::operation::explaining::{self, Verbosity, pretty};
use crate::operation::reading::{self, Count, Found};
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::shard_key;
use crate::operation::table::{self, Operation};
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::process::timeout::TimeLimit;
use crate::router::by_key;
use crate::router::reads::aggregate::Results;
pub use crate::router::reads::distinct::Values;
use docshard_core::query::specification::Role;

/// The results of a pipeline, within its time limit.
pub struct Aggregated {
    limit: TimeLimit,
    results: Results,
}

impl Aggregated {
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        self.limit.run(|| self.results.next_document())
    }
}

pub fn find(ns: &str, filter: &Json, options: &Json) -> Result<Found> {
    find_for(ns, filter, options, &table::FIND)
}

fn find_for(ns: &str, filter: &Json, options: &Json, operation: &'static Operation) -> Result<Found> {
    namespace::split(ns)?;
    let filter = Specification::Text(filter.text(Role::Filter)?);
    let options = options.parse(Role::Request)?;
    reading::find(ns, filter, &Arguments::parse(&options, Form::Options(operation.function), operation.options)?)
}

pub fn find_one(ns: &str, filter: &Json, options: &Json) -> Result<Option<RawJsonb>> {
    if options.is_empty()
        && let Some(found) = by_key::find_one(ns, filter.text(Role::Filter)?)?
    {
        return Ok(found);
    }
    find_for(ns, filter, options, &table::FIND_ONE)?.next_document()
}

pub fn aggregate(ns: &str, pipeline: &Json, options: &Json) -> Result<Aggregated> {
    namespace::split_with(ns, Some(reading::WITHOUT_COLLECTION))?;
    with_options(options, &table::AGGREGATE, |options| {
        let mut limit = TimeLimit::of_ms(options.max_time_ms()?);
        let results = limit.run(|| reading::aggregate(ns, &pipeline.parse(Role::Pipeline)?, options))?;
        Ok(Aggregated { limit, results })
    })
}

pub fn count_documents(ns: &str, filter: &Json, options: &Json) -> Result<i64> {
    namespace::split(ns)?;
    with_options(options, &table::COUNT, |options| {
        Count::of_options(Specification::Text(filter.text(Role::Filter)?), options)?.run(ns)
    })
}

pub fn distinct(ns: &str, field: &str, filter: &Json, options: &Json) -> Result<Values> {
    namespace::split(ns)?;
    with_options(options, &table::DISTINCT, |options| {
        reading::distinct(ns, field, Specification::Text(filter.text(Role::Filter)?), &Shared::of(options, None))
    })
}

pub fn estimated_document_count(ns: &str) -> Result<i64> {
    namespace::split(ns)?;
    reading::estimated_count(ns)
}

/// Explains a find, or an aggregation if `filter` is an array.
pub fn explain(ns: &str, filter: &Json, options: &Json, verbosity: &str) -> Result<Json> {
    let verbosity = Verbosity::parse(verbosity)?;
    let is_pipeline = filter.text(Role::Plain)?.trim_start().starts_with('[');
    let asked = filter.parse(if is_pipeline { Role::Pipeline } else { Role::Filter })?;
    let text = filter.text(Role::Filter)?;
    let explained = if asked.is_array() {
        namespace::split_with(ns, Some(reading::WITHOUT_COLLECTION))?;
        with_options(options, &table::EXPLAIN_AGGREGATE, |options| {
            reading::explain_aggregate(ns, &asked, options, verbosity)
        })?
    } else {
        namespace::split(ns)?;
        let filter = Specification::Text(text);
        with_options(options, &table::EXPLAIN, |options| {
            if let Some(key) = options.get("shardKey") {
                let found = reading::find_options(ns, options)?;
                return shard_key::explain_assumed(ns, &reading::find_query(filter, &found)?, &found, key);
            }
            let stages = || reading::find_stages(filter, options);
            match reading::explain_view(ns, stages, Shared::of(options, None), verbosity)? {
                Some(explained) => Ok(explained),
                None => explaining::find(ns, filter, options, verbosity),
            }
        })?
    };
    Ok(Json::new(pretty(&explained)))
}
