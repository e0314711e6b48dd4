//! The operations find, aggregate, count and distinct.

use super::arguments::{Arguments, Form};
use super::source::{self, Shared, Source};
use super::table::Operation;
use crate::pg::error::{Error, Result};
use crate::pg::memory::sorter::SortMemory;
use crate::router::aggregate::{self, Results};
use crate::router::distinct::{self, Values};
use crate::router::execute::Documents;
use crate::router::options::{CountOptions, FindOptions, parsed_setting};
use crate::router::query::Query;
use crate::router::read;
use docshard_core::error::Kind;
use docshard_core::query::index::Bounds;
use docshard_core::query::projection::Projection;
use docshard_core::query::stage::Pipeline;
use serde_json::Value as Json;

/// The name, in each database, under which pipelines run that read no collection, as in MongoDB.
pub const WITHOUT_COLLECTION: &str = "$cmd.aggregate";

/// Parses the options of `find`, `find_one` or `explain`.
pub fn find_options_of_call(namespace: &str, text: &str, operation: &'static Operation) -> Result<FindOptions> {
    let json = crate::pg::datum::json::parse(text)?;
    find_options(namespace, &Arguments::parse(&json, Form::Options(operation.function), operation.options)?)
}

/// A limit of 0 means no limit, and a negative one its absolute value, as in MongoDB's drivers.
pub fn find_options(namespace: &str, arguments: &Arguments<'_>) -> Result<FindOptions> {
    let shared = Shared::of(arguments, None);
    let projection = arguments.get("projection");
    let setting = shared.setting(namespace, projection)?;
    let sort = source::sort(arguments.get("sort"), setting.as_ref())?;
    let parsed = match projection {
        Some(spec) => Some(Projection::parse_in(spec, &parsed_setting(setting.as_ref())?)?),
        None => None,
    };
    Ok(FindOptions {
        sort,
        positional: parsed.as_ref().is_some_and(Projection::is_positional),
        included: parsed.as_ref().and_then(Projection::included),
        projection: projection.filter(|_| parsed.is_some_and(|parsed| !parsed.is_identity())).map(Json::to_string),
        setting,
        skip: arguments.count("skip")?.unwrap_or(0),
        limit: arguments.truncated("limit").map(i64::unsigned_abs).filter(|limit| *limit > 0),
        hint: shared.hint.cloned(),
        bounds: Bounds::parse(arguments.get("min"), arguments.get("max"))?,
        allow_partial: arguments.flag("allowPartialResults"),
    })
}

pub fn find_query(filter: Source<'_>, options: &FindOptions) -> Result<Query> {
    let query = source::query(filter, options.setting.as_ref(), options.hint.as_ref())?;
    Ok(Query { bounds: options.bounds.clone(), ..query })
}

pub fn find(namespace: &str, filter: Source<'_>, options: &FindOptions) -> Result<Documents> {
    read::find(namespace, &find_query(filter, options)?, options)
}

#[derive(Debug)]
pub struct Count<'a> {
    pub filter: Source<'a>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub shared: Shared<'a>,
}

impl<'a> Count<'a> {
    pub fn of_options(filter: Source<'a>, options: &Arguments<'a>) -> Result<Self> {
        let limit = options.count("limit")?;
        if limit == Some(0) {
            return Err(Error::new(Kind::BadValue, "the limit must be positive"));
        }
        let skip = options.count("skip")?.unwrap_or(0);
        Ok(Self { filter, skip, limit, shared: Shared::of(options, None) })
    }

    pub fn parts(&self, namespace: &str) -> Result<(Query, CountOptions)> {
        let query = self.shared.query(namespace, self.filter, None)?;
        Ok((query, CountOptions { skip: self.skip, limit: self.limit }))
    }

    pub fn run(&self, namespace: &str) -> Result<i64> {
        let (query, options) = self.parts(namespace)?;
        read::count(namespace, &query, &options)
    }
}

/// Runs a pipeline over a collection. Its beginning is a find; the rest runs over the documents that this returns.
pub fn aggregate(namespace: &str, stages: &Json, arguments: &Arguments<'_>) -> Result<Results> {
    let Json::Array(list) = stages else {
        return Err(Error::new(Kind::TypeMismatch, "'pipeline' option must be specified as an array"));
    };
    let shared = Shared::of(arguments, None);
    let setting = shared.setting(namespace, Some(stages))?;
    let pipeline = Pipeline::parse(list, &parsed_setting(setting.as_ref())?)?.rearranged()?;
    let memory = SortMemory::new(arguments.get("allowDiskUse") != Some(&Json::Bool(false)));
    let has_collection = namespace.split_once('.').is_none_or(|(_, name)| name != WITHOUT_COLLECTION);
    if pipeline.begins() == has_collection {
        let message = match has_collection {
            true => format!("the first stage of this pipeline needs the namespace 'database.{WITHOUT_COLLECTION}'"),
            false => "{aggregate: 1} is not valid for this pipeline: a collection is required".to_owned(),
        };
        return Err(Error::new(Kind::InvalidNamespace, message));
    }
    if !has_collection {
        return Results::new(Documents::of_streams(Vec::new(), 0), &pipeline, memory);
    }
    let (find, rest) = pipeline.find();
    let projection = find.projection();
    let parsed = projection.as_ref().map(Projection::parse).transpose()?;
    let options = FindOptions {
        sort: source::sort(find.sort.as_ref(), setting.as_ref())?,
        included: parsed.as_ref().and_then(Projection::included),
        projection: projection.as_ref().map(Json::to_string),
        setting,
        skip: find.skip,
        limit: find.limit,
        hint: shared.hint.cloned(),
        ..FindOptions::default()
    };
    let query = find_query(Source::Value(&find.filter), &options)?;
    if rest.stages().is_empty() {
        return Results::new(read::find(namespace, &query, &options)?, &rest, memory);
    }
    aggregate::aggregate(namespace, &query, &options, &rest, memory)
}

pub fn distinct(namespace: &str, field: &str, filter: Source<'_>, shared: &Shared<'_>) -> Result<Values> {
    distinct::distinct(namespace, field, &shared.query(namespace, filter, None)?)
}
