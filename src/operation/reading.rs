//! The operations find, aggregate, count and distinct, over collections and views.

use super::arguments::Arguments;
use super::concerns;
use super::request_parts::{self, Shared, Specification};
use super::sink;
use crate::catalog::collections::views::{self, Resolved};
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::memory::stages::StageMemory;
use crate::router::execute::{Documents, Part};
use crate::router::explain::pipeline::{self, ExplainedPipeline};
use crate::router::explain::statement::Verbosity;
use crate::router::reads::aggregate::{self, Execution, Results};
use crate::router::reads::distinct::{self, Values};
use crate::router::reads::find;
use crate::router::reads::statistics;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::distinct::Distinct;
use docshard_core::query::environment::Environment;
use docshard_core::query::index::Bounds;
use docshard_core::query::projection::Projection;
use docshard_core::query::specification::Role;
use docshard_core::query::stage::{Collections, Find, Input, Pipeline, STAGES, Sink, Statistics};
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, raw, write};
use serde_json::{Value as Json, json};
use std::rc::Rc;
use std::sync::Arc;

/// The collection name in the namespace of a pipeline that reads no collection, as in MongoDB.
pub const WITHOUT_COLLECTION: &str = "$cmd.aggregate";

/// Parses the options of a find. A limit of 0 means no limit; a negative one means its absolute value, as in MongoDB's drivers.
pub fn find_options(namespace: &str, arguments: &Arguments<'_>) -> Result<FindOptions> {
    let shared = Shared::of(arguments, None);
    let projection = arguments.get("projection");
    let environment = shared.environment(namespace)?;
    let sort = request_parts::sort(arguments.get("sort"), &environment)?;
    let parsed = projection.map(|spec| Projection::parse_in(spec, &environment)).transpose()?;
    Ok(FindOptions {
        sort,
        positional: parsed.as_ref().is_some_and(Projection::is_positional),
        included: parsed.as_ref().and_then(Projection::included),
        projection: projection.filter(|_| parsed.is_some_and(|parsed| !parsed.is_identity())).map(Json::to_string),
        environment,
        skip: arguments.count("skip")?.unwrap_or(0),
        limit: arguments.safe_integer("limit").map(i64::unsigned_abs).filter(|limit| *limit > 0),
        hint: shared.hint.cloned(),
        bounds: Bounds::parse(arguments.get("min"), arguments.get("max"))?,
        allow_partial: arguments.flag("allowPartialResults"),
    })
}

pub fn find_query(filter: Specification<'_>, options: &FindOptions) -> Result<Query> {
    let mut query = request_parts::query(filter, options.environment.clone(), options.hint.as_ref())?;
    query.bounds.clone_from(&options.bounds);
    Ok(query)
}

/// The documents of a find.
pub enum Found {
    Collection(Documents),
    View(Box<Results>),
}

impl Found {
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        match self {
            Found::Collection(documents) => documents.next_document(),
            Found::View(results) => results.next_document(),
        }
    }

    /// True if documents are missing so far, because shards could not be reached.
    pub fn is_partial(&self) -> bool {
        matches!(self, Found::Collection(documents) if documents.is_partial())
    }
}

/// Finds documents. A find over a view becomes stages after those of the view.
pub fn find(namespace: &str, filter: Specification<'_>, arguments: &Arguments<'_>) -> Result<Found> {
    if let Some(view) = views::resolve(namespace)? {
        let stages = find_stages(filter, arguments)?;
        let shared = Shared::of(arguments, None);
        return Ok(Found::View(Box::new(Aggregation { stages: &stages, shared, may_use_disk: true }.run_view(&view)?)));
    }
    let options = find_options(namespace, arguments)?;
    Ok(Found::Collection(find::find(namespace, &find_query(filter, &options)?, &options)?))
}

/// Like [`find`]; also returns what is observed of each shard. For a view there are no observations.
pub fn find_observed(
    namespace: &str,
    filter: Specification<'_>,
    arguments: &Arguments<'_>,
) -> Result<(Found, Vec<Part>)> {
    if views::resolve(namespace)?.is_some() {
        return Ok((find(namespace, filter, arguments)?, Vec::new()));
    }
    let options = find_options(namespace, arguments)?;
    let (documents, parts) = find::find_observed(namespace, &find_query(filter, &options)?, &options)?;
    Ok((Found::Collection(documents), parts))
}

/// Returns the stages of a find over a view.
/// Errors: `InvalidPipelineOperator` for options that have no stage.
pub fn find_stages(filter: Specification<'_>, arguments: &Arguments<'_>) -> Result<Vec<Json>> {
    if let Some(option) = ["min", "max"].into_iter().find(|option| arguments.get(option).is_some()) {
        bail!(Kind::InvalidPipelineOperator, "the option {option} is not supported on a view");
    }
    let limit = arguments.safe_integer("limit").map(i64::unsigned_abs).filter(|limit| *limit > 0);
    let given = |name| arguments.get(name).filter(|json| !is_empty(json)).cloned();
    let mut stages = match_stage(filter)?;
    stages.extend(given("sort").map(|sort| json!({"$sort": sort})));
    stages.extend(arguments.count("skip")?.filter(|skip| *skip > 0).map(|skip| json!({"$skip": skip})));
    stages.extend(limit.map(|limit| json!({"$limit": limit})));
    stages.extend(given("projection").map(|projection| json!({"$project": projection})));
    Ok(stages)
}

fn match_stage(filter: Specification<'_>) -> Result<Vec<Json>> {
    let filter = filter.value(Role::Filter)?;
    Ok(if is_empty(&filter) { Vec::new() } else { vec![json!({"$match": filter})] })
}

fn is_empty(json: &Json) -> bool {
    json.as_object().is_some_and(serde_json::Map::is_empty)
}

#[derive(Debug)]
pub struct Count<'a> {
    pub filter: Specification<'a>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub shared: Shared<'a>,
}

impl<'a> Count<'a> {
    pub fn of_options(filter: Specification<'a>, options: &Arguments<'a>) -> Result<Self> {
        let limit = options.count("limit")?;
        if limit == Some(0) {
            bail!(Kind::BadValue, "the limit must be positive");
        }
        let skip = options.count("skip")?.unwrap_or(0);
        Ok(Self { filter, skip, limit, shared: Shared::of(options, None) })
    }

    pub fn parts(&self, namespace: &str) -> Result<(Query, CountOptions)> {
        let query = self.shared.query(namespace, self.filter)?;
        Ok((query, CountOptions { skip: self.skip, limit: self.limit }))
    }

    pub fn run(&self, namespace: &str) -> Result<i64> {
        if let Some(view) = views::resolve(namespace)? {
            return self.run_view(&view);
        }
        let (query, options) = self.parts(namespace)?;
        find::count(namespace, &query, &options)
    }

    /// Returns the stages of a count over a view.
    pub fn stages(&self) -> Result<Vec<Json>> {
        let mut stages = match_stage(self.filter)?;
        stages.extend((self.skip > 0).then(|| json!({"$skip": self.skip})));
        stages.extend(self.limit.map(|limit| json!({"$limit": limit})));
        stages.push(json!({"$count": "n"}));
        Ok(stages)
    }

    fn run_view(&self, view: &Resolved) -> Result<i64> {
        let stages = self.stages()?;
        let mut counted = Aggregation { stages: &stages, shared: self.shared, may_use_disk: true }.run_view(view)?;
        let Some(found) = counted.next_document()? else { return Ok(0) };
        let number = raw::document(found.bytes()).and_then(|document| document.get("n")).map(Value::from_raw);
        match number {
            Some(Value::Number(number)) => Ok(number.to_i64_truncated()),
            _ => Err(error!(Kind::InternalError, "a count is not a number")),
        }
    }
}

/// Returns the number of documents from PostgreSQL's statistics. The documents of a view are counted.
pub fn estimated_count(namespace: &str) -> Result<i64> {
    if let Some(view) = views::resolve(namespace)? {
        return Count { filter: Specification::EMPTY, skip: 0, limit: None, shared: Shared::default() }.run_view(&view);
    }
    find::estimated_count(namespace)
}

/// Runs a pipeline over a collection or a view; with the option `explain`, the only result is its plan.
pub fn aggregate(namespace: &str, stages: &Json, arguments: &Arguments<'_>) -> Result<Results> {
    if arguments.flag("explain") {
        let plan = explain_aggregate(namespace, stages, arguments, Verbosity::default())?;
        return Ok(Results::of(vec![write::value(&ext_json::from_json(&plan)?)?]));
    }
    Aggregation::of(stages, arguments)?.run(namespace)
}

/// Checks that the caller may read a collection, or all that a view reads.
/// Errors: `Unauthorized`; `InvalidNamespace`; `MaxSubPipelineDepthExceeded`.
pub fn check_may_read(namespace: &str) -> Result<()> {
    check_may_read_within(namespace, 0)
}

fn check_may_read_within(namespace: &str, depth: usize) -> Result<()> {
    let Some(view) = views::resolve(namespace)? else { return find::check(namespace) };
    if depth == MAX_DEPTH {
        return Err(too_deep());
    }
    find::check(&view.namespace)?;
    let shared = Shared { collation: Some(&view.collation), ..Shared::default() };
    let pipeline = parsed(&view.namespace, &view.stages, &shared.environment(&view.namespace)?)?;
    let (database, _) = view.namespace.split_once('.').unwrap_or_default();
    pipeline
        .collections()
        .into_iter()
        .try_for_each(|other| check_may_read_within(&format!("{database}.{other}"), depth + 1))
}

/// True if the namespace is a view with a collation other than simple.
pub fn is_collated_view(namespace: &str) -> Result<bool> {
    Ok(collated_view(namespace)?.is_some())
}

fn collated_view(namespace: &str) -> Result<Option<Resolved>> {
    Ok(views::resolve(namespace)?.filter(|view| view.collation != json!({"locale": "simple"})))
}

/// For a view with a collation other than simple: runs the view's stages under that collation, and then `stages` at the router over their
/// results, comparing strings by their bytes. None if the namespace is not such a view.
pub fn over_collated_view(namespace: &str, stages: impl FnOnce() -> Result<Vec<Json>>) -> Result<Option<Results>> {
    let Some(view) = collated_view(namespace)? else { return Ok(None) };
    let seen = Aggregation { stages: &[], shared: Shared::default(), may_use_disk: true }.run_view(&view)?;
    let simple = json!({"locale": "simple"});
    let shared = Shared { collation: Some(&simple), ..Shared::default() };
    let own = Aggregation { stages: &stages()?, shared, may_use_disk: true };
    let pipeline = parsed(namespace, own.stages, &shared.environment(namespace)?)?;
    let execution = own.settings().execution(namespace);
    seen.then(&pipeline, &execution).map(Some)
}

/// Explains a pipeline over a collection or a view.
pub fn explain_aggregate(
    namespace: &str,
    stages: &Json,
    arguments: &Arguments<'_>,
    verbosity: Verbosity,
) -> Result<Json> {
    Aggregation::of(stages, arguments)?.explain(namespace, verbosity)
}

/// Explains a read of a view, given the stages of the read; None if the namespace is not a view.
pub fn explain_view(
    namespace: &str,
    stages: impl FnOnce() -> Result<Vec<Json>>,
    shared: Shared<'_>,
    verbosity: Verbosity,
) -> Result<Option<Json>> {
    if views::resolve(namespace)?.is_none() {
        return Ok(None);
    }
    Aggregation { stages: &stages()?, shared, may_use_disk: true }.explain(namespace, verbosity).map(Some)
}

/// A pipeline with the arguments of its request.
#[derive(Clone, Copy, Debug)]
struct Aggregation<'a> {
    stages: &'a [Json],
    shared: Shared<'a>,
    /// true: stages may use temporary files; false: more than MongoDB's limit of memory is an error
    may_use_disk: bool,
}

/// A pipeline over a collection, split into a find that replaces its first stages, and the rest.
struct SplitPipeline {
    beginning: Find,
    query: Query,
    options: FindOptions,
    rest: Pipeline,
}

impl<'a> Aggregation<'a> {
    fn of(stages: &'a Json, arguments: &Arguments<'a>) -> Result<Self> {
        let Json::Array(stages) = stages else {
            bail!(Kind::TypeMismatch, "'pipeline' option must be specified as an array");
        };
        concerns::check(arguments)?;
        arguments.count("batchSize")?;
        let level = arguments.get("readConcern").and_then(|concern| concern.get("level"));
        let last = stages.last().and_then(Json::as_object).and_then(|stage| stage.keys().next());
        if level.is_some_and(|level| level == "linearizable")
            && let Some(stage) =
                STAGES.iter().find(|stage| stage.writes && Some(stage.name) == last.map(String::as_str))
        {
            bail!(Kind::InvalidOptions, "{} cannot be used with a 'linearizable' read concern level", stage.name);
        }
        Ok(Self { stages, shared: Shared::of(arguments, None), may_use_disk: arguments.flag("allowDiskUse") })
    }

    /// Explains the pipeline.
    fn explain(&self, namespace: &str, verbosity: Verbosity) -> Result<Json> {
        self.with_collection(namespace, |aggregation, namespace| {
            let environment = aggregation.shared.environment(namespace)?;
            let pipeline = parsed(namespace, aggregation.stages, &environment)?;
            if verbosity == Verbosity::Run {
                refuse_writes(&pipeline)?;
            }
            if pipeline.statistics().is_some_and(Statistics::are_of_collection) {
                find::check(namespace)?;
            }
            if pipeline.statistics().is_some() || pipeline.makes_documents() {
                let stages = pipeline.shown();
                return Ok(json!({"namespace": namespace, "mergeType": null, "splitPipeline": null, "stages": stages}));
            }
            let SplitPipeline { beginning, query, options, rest } =
                split_off_find(&pipeline, &environment, aggregation.shared.hint)?;
            let explained = ExplainedPipeline {
                beginning: &beginning,
                query: &query,
                options: &options,
                rest: &rest,
                execution: &aggregation.settings().execution(namespace),
            };
            pipeline::explain(namespace, &explained, verbosity)
        })
    }

    fn run(&self, namespace: &str) -> Result<Results> {
        self.with_collection(namespace, |aggregation, namespace| aggregation.run_on_collection(namespace))
    }

    fn run_view(&self, view: &Resolved) -> Result<Results> {
        self.with_view(view, |aggregation, namespace| aggregation.run_on_collection(namespace))
    }

    /// Calls `work` with the pipeline and its collection. For a view, these are the combined pipeline and the collection below.
    fn with_collection<T>(&self, namespace: &str, work: impl FnOnce(&Aggregation<'_>, &str) -> Result<T>) -> Result<T> {
        match views::resolve(namespace)? {
            Some(view) => self.with_view(&view, work),
            None => work(self, namespace),
        }
    }

    /// Calls `work` with the view's stages and this pipeline's as one pipeline over the collection, so that filters target shards.
    fn with_view<T>(&self, view: &Resolved, work: impl FnOnce(&Aggregation<'_>, &str) -> Result<T>) -> Result<T> {
        let collation = view.collation_for(self.shared.collation)?;
        let stages = view_stages_then(view, self.stages)?;
        let shared = Shared { collation: Some(collation), ..self.shared };
        work(&Aggregation { stages: &stages, shared, ..*self }, &view.namespace)
    }

    fn settings(&self) -> PipelineSettings {
        PipelineSettings { may_use_disk: self.may_use_disk, depth: 0 }
    }

    /// Runs the pipeline. If its last stage writes, the results are empty.
    fn run_on_collection(&self, namespace: &str) -> Result<Results> {
        let environment = self.shared.environment(namespace)?;
        let pipeline = parsed(namespace, self.stages, &environment)?;
        let writing = sink::prepare(namespace, &pipeline, &environment)?;
        let mut results = self.settings().run(namespace, &pipeline, &environment, self.shared.hint)?;
        let Some(writing) = writing else { return Ok(results) };
        writing.run(&mut results)?;
        Ok(Results::of(Vec::new()))
    }
}

/// Refuses a pipeline that writes: an explanation that executes it would write, too.
/// Errors: `Location51184`, `Location51029`.
fn refuse_writes(pipeline: &Pipeline) -> Result<()> {
    let (stage, code) = match pipeline.sink() {
        None => return Ok(()),
        Some(Sink::Merge(_)) => ("$merge", 51184),
        Some(Sink::Out(_)) => ("$out", 51029),
    };
    Err(error!(Kind::Location(code), "{stage} can only be explained with the verbosity 'queryPlanner'"))
}

/// Returns the stages of a view, followed by those of a pipeline over it.
/// Errors: `CommandNotSupportedOnView` for `$collStats`.
fn view_stages_then(view: &Resolved, stages: &[Json]) -> Result<Vec<Json>> {
    if stages.first().is_some_and(|stage| stage.get("$collStats").is_some()) {
        bail!(Kind::CommandNotSupportedOnView, "$collStats is not supported on a view");
    }
    Ok([&view.stages, stages].concat())
}

/// Parses a pipeline, and checks that the caller may read the other collections of its stages. A pipeline that begins with
/// documents of its own, or with statistics of the cluster, must have no collection; every other pipeline must have one.
fn parsed(namespace: &str, stages: &[Json], environment: &Environment) -> Result<Pipeline> {
    let pipeline = Pipeline::parse(stages, environment)?.rearranged()?;
    let (database, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
    let has_collection = collection != WITHOUT_COLLECTION;
    let of_cluster = pipeline.statistics().filter(|wanted| !wanted.are_of_collection());
    if (pipeline.makes_documents() || of_cluster.is_some()) == has_collection {
        let first = stages.first().and_then(Json::as_object).and_then(|stage| stage.keys().next());
        let message = match (has_collection, first) {
            (true, Some(first)) => {
                format!("a pipeline that begins with {first} needs the namespace 'database.{WITHOUT_COLLECTION}'")
            }
            _ => "{aggregate: 1} is not valid for this pipeline: a collection is required".to_owned(),
        };
        return Err(Error::new(Kind::InvalidNamespace, message));
    }
    if of_cluster.is_some_and(Statistics::are_of_admin) && database != "admin" {
        let message = "the first stage must be run against the 'admin' database with {aggregate: 1}";
        return Err(Error::new(Kind::InvalidNamespace, message));
    }
    for other in pipeline.collections() {
        let other = format!("{database}.{other}");
        let view = views::resolve(&other)?;
        find::check(view.as_ref().map_or(&other, |view| &view.namespace))?;
    }
    Ok(pipeline)
}

fn split_off_find(pipeline: &Pipeline, environment: &Environment, hint: Option<&Json>) -> Result<SplitPipeline> {
    let (beginning, rest) = pipeline.find();
    let projection = beginning.projection();
    let parsed = projection.as_ref().map(Projection::parse).transpose()?;
    let sort = beginning.sort.as_ref();
    let sort = sort.map(|(spec, sort)| request_parts::with_text(sort.clone(), spec, environment));
    let options = FindOptions {
        sort,
        included: parsed.as_ref().and_then(Projection::included),
        projection: projection.as_ref().map(Json::to_string),
        environment: environment.clone(),
        skip: beginning.skip,
        limit: beginning.limit,
        hint: hint.cloned(),
        ..FindOptions::default()
    };
    let query = match &beginning.parsed {
        Some(filter) => Query::parsed(Arc::clone(filter), Arc::clone(&beginning.filter), environment.clone()),
        None => Query::of(&beginning.filter, "{}", environment.clone())?,
    }
    .hinted(hint)?;
    Ok(SplitPipeline { beginning, query, options, rest })
}

/// The settings that a statement's pipeline shares with the pipelines which its stages run over other collections.
#[derive(Clone, Debug)]
struct PipelineSettings {
    /// true: stages may use temporary files; false: more than MongoDB's limit of memory is an error
    may_use_disk: bool,
    /// the number of enclosing pipelines
    depth: usize,
}

/// The largest number of enclosing pipelines, the same as MongoDB's. Pipelines inside the stages of views count, too. A chain of views has
/// a limit of its own.
const MAX_DEPTH: usize = 20;

fn too_deep() -> Error {
    error!(Kind::MaxSubPipelineDepthExceeded, "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_DEPTH}")
}

impl PipelineSettings {
    fn execution(&self, namespace: &str) -> Execution {
        let database = namespace.split_once('.').map_or(namespace, |(database, _)| database).to_owned();
        Execution::new(self.may_use_disk, Rc::new(InnerPipelines { database, settings: self.clone() }))
    }

    fn run(
        &self,
        namespace: &str,
        pipeline: &Pipeline,
        environment: &Environment,
        hint: Option<&Json>,
    ) -> Result<Results> {
        let execution = self.execution(namespace);
        if pipeline.makes_documents() {
            return Results::over(Documents::of_streams(Vec::new(), 0), pipeline, &execution);
        }
        if let Some(wanted) = pipeline.statistics() {
            return Results::over_documents(statistics::documents(namespace, wanted)?, pipeline, &execution);
        }
        let SplitPipeline { query, options, rest, .. } = split_off_find(pipeline, environment, hint)?;
        aggregate::aggregate(namespace, &query, &options, &rest, &execution)
    }

    /// Runs an inner pipeline, over a collection or a view.
    fn run_within(&self, namespace: &str, stages: &[Json], environment: &Environment) -> Result<Results> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep());
        }
        let settings = Self { depth: self.depth + 1, ..self.clone() };
        let environment = environment.within()?;
        let Some(view) = views::resolve(namespace)? else {
            let pipeline = parsed(namespace, stages, &environment)?;
            return settings.run(namespace, &pipeline, &environment, None);
        };
        let simple = json!({"locale": "simple"});
        view.collation_for(Some(environment.collator().map_or(&simple, |collator| collator.definition())))?;
        let pipeline = parsed(&view.namespace, &view_stages_then(&view, stages)?, &environment)?;
        settings.run(&view.namespace, &pipeline, &environment, None)
    }
}

/// Gives the stages of a pipeline access to other collections of its database.
#[derive(Debug)]
struct InnerPipelines {
    database: String,
    settings: PipelineSettings,
}

impl Collections for InnerPipelines {
    fn read(&self, collection: Option<&str>, stages: &[Json], environment: &Environment) -> Result<Input<'static>> {
        let namespace = format!("{}.{}", self.database, collection.unwrap_or(WITHOUT_COLLECTION));
        let results = self.settings.run_within(&namespace, stages, environment);
        results.map(Results::into_stream)
    }
}

/// Returns the stages of a distinct over a view: of each matching document, they project only the first component of the field's path.
pub fn distinct_stages(field: &str, filter: Specification<'_>) -> Result<Vec<Json>> {
    let mut stages = match_stage(filter)?;
    // A projection cannot name a field whose name is empty: then whole documents are returned.
    let name = field.split('.').next().filter(|name| !name.is_empty());
    stages.extend(name.map(|name| json!({"$project": {"_id": 0, (name): 1}})));
    Ok(stages)
}

pub fn distinct(namespace: &str, field: &str, filter: Specification<'_>, shared: &Shared<'_>) -> Result<Values> {
    let Some(view) = views::resolve(namespace)? else {
        return distinct::distinct(namespace, field, &shared.query(namespace, filter)?);
    };
    let shared = Shared { collation: Some(view.collation_for(shared.collation)?), ..*shared };
    let environment = shared.environment(&view.namespace)?;
    let stages = distinct_stages(field, filter)?;
    let field = Distinct::parse(field, &environment)?;
    let documents = Aggregation { stages: &stages, shared, may_use_disk: true }.run_view(&view)?;
    Values::of_documents(documents, &field, &StageMemory::new(true))
}
