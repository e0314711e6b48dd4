//! Explains a read, or how a write finds its documents: the target shards and the reason for them, the access path, the statement
//! sent to each shard, and each shard's own plan. If the statement is executed, also rows and times.

use crate::catalog::cache;
use crate::catalog::collections::grants::{self, Level};
use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::router::dispatch::reading;
use crate::router::execute;
use crate::router::explain::bounds::bounds;
use crate::router::explain::stages::{self, Examined};
use crate::router::fresh_map::with_fresh_map;
use crate::router::merged_rows::MergedRows;
use crate::router::reads::find;
use crate::router::rows::{RowStream, ShardRow};
use crate::router::session;
use crate::router::source::Source;
use docshard_core::error::{Kind, error};
use docshard_core::query::filter::strings::StringFields;
use docshard_core::routing::model::Collection;
use docshard_core::routing::names;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::select;
use docshard_core::routing::plan::{self, AccessPath, Allowed, Plan, Read};
use docshard_core::routing::protocol::documents::SHARD_KEY;
use docshard_core::routing::protocol::pipeline::PipelineMeasurements;
use docshard_core::routing::request::options::FindOptions;
use docshard_core::routing::request::query::Query;
use docshard_core::sql::record::parse_json;
use docshard_core::values::document::raw;
use docshard_core::values::key::KeyRanges;
use serde_json::{Map, Value as Json, json};
use std::time::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// the plan alone
    #[default]
    Planned,
    /// the plan is also executed
    Run,
}

impl Verbosity {
    /// `allPlansExecution` means the same as `executionStats`: PostgreSQL's planner does not report rejected plans.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "queryPlanner" => Ok(Self::Planned),
            "executionStats" | "allPlansExecution" => Ok(Self::Run),
            other => Err(error!(
                Kind::BadValue,
                "Enumeration value '{other}' for field 'explain.verbosity' is not a valid value."
            )
            .with_hint("It is one of queryPlanner, executionStats, allPlansExecution.")),
        }
    }
}

#[derive(Clone, Copy)]
pub enum Explained<'a> {
    Read(Read<'a>),
    /// how a write finds its documents
    Write {
        /// MongoDB's stage on a shard
        stage: &'static str,
        /// the command has a batch of writes
        batch: bool,
    },
}

impl Explained<'_> {
    /// True if rows are documents.
    fn is_find(self) -> bool {
        matches!(self, Self::Read(Read::Find(_)) | Self::Write { .. })
    }

    /// The router's stage.
    pub(super) fn stage(self, plan: &Plan) -> &'static str {
        match (self, plan.destinations.len()) {
            (_, 0) => "EOF",
            (Self::Write { batch: true, .. }, _) => "SHARD_WRITE",
            (_, 1) => "SINGLE_SHARD",
            (Self::Write { .. }, _) => "SHARD_WRITE",
            _ if plan.order != Order::None => "SHARD_MERGE_SORT",
            _ => "SHARD_MERGE",
        }
    }

    /// A shard's stages; `found` are those that find its documents.
    fn shard_stages(self, found: Json) -> Json {
        match self {
            Self::Write { stage, .. } => json!({"stage": stage, "inputStage": found}),
            _ => found,
        }
    }

    /// The search of the statement. A read's statement counts as load of its chunks; the search of a write does not, because
    /// shards count the write itself.
    fn search<'a>(self, collection: &'a Collection, query: &'a Query) -> Result<Search<'a>> {
        match self {
            Self::Read(_) => session::counted_search(collection, query),
            Self::Write { .. } => session::search(collection, query),
        }
    }

    fn plan(self, search: &Search<'_>, allowed: Allowed<'_>) -> Result<Plan> {
        match self {
            Self::Read(read) => read.plan(search, allowed),
            Self::Write { .. } => plan::find(search, &FindOptions::default(), Allowed::Planned),
        }
    }
}

/// The largest number of documents in which [`warnings`] looks at the types of fields.
const SAMPLE: u64 = 100;

/// Explains a read by the plan that would be executed. For a path that shards may decline, the fallback plan is shown
/// beside it; if the read is executed and a shard declines, only the fallback is shown.
pub fn explain(namespace: &str, query: &Query, explained: Explained<'_>, verbosity: Verbosity) -> Result<Json> {
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return explain_without_shards(namespace, query, explained, verbosity);
        };
        let search = explained.search(&collection, query)?;
        let plan = explained.plan(&search, Allowed::AllToExplain(&session::declined()))?;
        let may_decline = matches!(plan.path, AccessPath::IndexRange { .. });
        let otherwise = may_decline.then(|| explained.plan(&search, Allowed::Planned)).transpose()?;
        let (plan, shown, otherwise) = match (shards(&collection, &plan, explained, verbosity)?, otherwise) {
            (Some(shown), Some(planned)) => (
                plan,
                shown,
                shards(&collection, &planned, explained, Verbosity::Planned)?.map(|shown| (planned, shown)),
            ),
            (Some(shown), None) => (plan, shown, None),
            (None, otherwise) => {
                let planned = otherwise.unwrap_or(plan);
                let shown = shards(&collection, &planned, explained, verbosity)?.unwrap_or_default();
                (planned, shown, None)
            }
        };
        let mut answer = targets(&search, explained.stage(&plan), &plan);
        answer["shards"] = json!(shown.shards);
        if let Some((planned, shown)) = otherwise {
            answer["ifDeclined"] = json!({
                "accessPath": planned.path.name(), "sql": planned.statement.sql, "shards": shown.shards,
            });
        }
        if verbosity == Verbosity::Run {
            let returned = shown.returned.saturating_sub(plan.skip);
            let returned = plan.limit.map_or(returned, |limit| returned.min(limit));
            answer["executionStats"] = shown.statistics(if explained.is_find() { returned } else { 0 });
        }
        warn(&mut answer, namespace, query)?;
        Ok(answer)
    })
}

/// Returns which shards a find would go to, and why, without asking any; None if the collection does not exist.
pub fn targets_of_find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Option<Json>> {
    let Some(collection) = cache::find(namespace)? else { return Ok(None) };
    let search = session::counted_search(&collection, query)?;
    let plan = plan::find(&search, options, Allowed::AllToExplain(&session::declined()))?;
    Ok(Some(targets(&search, Explained::Read(Read::Find(options)).stage(&plan), &plan)))
}

/// Adds warnings of fields that the filter compares with strings, if a sample of the documents has only dates there.
pub(super) fn warn(answer: &mut Json, namespace: &str, query: &Query) -> Result<()> {
    let Some(mut fields) = StringFields::of(&query.filter) else { return Ok(()) };
    let any = Query::all()?;
    let mut sample = find::find(namespace, &any, &FindOptions { limit: Some(SAMPLE), ..FindOptions::default() })?;
    while let Some(document) = sample.next_document()? {
        if let Some(document) = raw::document(document.bytes()) {
            fields.observe(document);
        }
    }
    let warning = |field: &str| {
        format!(
            "the filter compares {field} with a string, but in a sample of the documents it is a date: {{\"$date\": …}}"
        )
    };
    let warnings: Vec<_> = fields.with_dates_only().map(warning).collect();
    if !warnings.is_empty() {
        answer["warnings"] = json!(warnings);
    }
    Ok(())
}

/// Returns which shards a plan goes to, and why.
pub(super) fn targets(search: &Search<'_>, stage: &str, plan: &Plan) -> Json {
    let (collection, destinations) = (search.collection, &plan.destinations);
    let targeted: usize = destinations.iter().map(|d| d.chunks).sum();
    json!({
        "namespace": collection.namespace,
        "shardKey": if collection.key.is_unsharded() { Json::Null } else { collection.key.to_json() },
        "stage": stage,
        "reason": reason(collection, &search.keys, destinations.len()),
        "keyBounds": bounds(collection, &search.keys),
        "targetedShards": destinations.len(),
        "totalShards": collection.map.shards().len(),
        "targetedChunks": targeted,
        "totalChunks": collection.map.len(),
        "accessPath": plan.path.name(),
        "sql": Some(&plan.statement.sql).filter(|sql| !sql.is_empty()),
    })
}

/// Explains a read that no shard answers: of a virtual collection, which is a statement over the catalog, or of one that does not exist.
fn explain_without_shards(
    namespace: &str,
    query: &Query,
    explained: Explained<'_>,
    verbosity: Verbosity,
) -> Result<Json> {
    let documents = FindOptions::default();
    let read = if let Explained::Read(read) = explained { read } else { Read::Find(&documents) };
    let Some(statement) = Source::without_collection(namespace)?.statement(query, read)? else {
        return Ok(json!({"namespace": namespace, "exists": false, "shards": []}));
    };
    let plans = |form: &str| {
        let explained = statement.explained(form);
        let _snapshot = ActiveSnapshot::of_statement();
        Ok(vec![lines(&mut RowStream::Rows(spi::query(&explained.sql, &explained.params())?.into_iter()))?])
    };
    let began = Instant::now();
    // The indexes are those of the catalog's tables.
    let index = |name: &str| Map::from_iter([("indexName".to_owned(), name.into())]);
    let steps = planned_steps(plans, &index, verbosity)?;
    let database = namespace.split_once('.').map_or(namespace, |(database, _)| database);
    let shown = Shown::new(began, steps, std::iter::once(json!({"shard": database})));
    let mut answer = json!({
        "namespace": namespace,
        "shardKey": null,
        "stage": "SINGLE_SHARD",
        "reason": "the catalog is in the router's database",
        "targetedShards": 1,
        "totalShards": 1,
        "accessPath": AccessPath::Conditions.name(),
        "sql": statement.sql,
        "shards": &shown.shards,
    });
    if verbosity == Verbosity::Run {
        let returned = if explained.is_find() { shown.returned } else { 0 };
        answer["executionStats"] = shown.statistics(returned);
    }
    Ok(answer)
}

#[derive(Default)]
pub(super) struct Shown {
    pub shards: Vec<Json>,
    pub runs: Vec<Json>,
    returned: u64,
    examined: Examined,
    milliseconds: u64,
}

/// Explains a plan on each of its shards; None if it was executed and a shard declined.
pub(super) fn shards(
    collection: &Collection,
    plan: &Plan,
    explained: Explained<'_>,
    verbosity: Verbosity,
) -> Result<Option<Shown>> {
    let began = Instant::now();
    let steps = if plan.path.is_direct() {
        direct_steps(collection, plan, verbosity)?
    } else {
        let plans = |form: &str| postgresql_plans(collection, plan, form);
        Some(planned_steps(plans, &|index| described(collection, index), verbosity)?)
    };
    steps.map(|steps| Shown::of_plan(began, steps, plan, explained)).transpose()
}

/// Explains the find of a pipeline by what the shards have measured while they executed it.
pub(super) fn executed(collection: &Collection, find: &Plan, runs: &[PipelineMeasurements]) -> Result<Shown> {
    let began = Instant::now();
    let steps = if find.path.is_direct() {
        let stages = direct_stages(collection, find);
        runs.iter().map(|run| direct_step(&stages, find.path, run, run.took_ms)).collect()
    } else {
        let texts = postgresql_plans(collection, find, "COSTS OFF")?;
        let index = |name: &str| described(collection, name);
        let step = |(text, run): (Vec<String>, &PipelineMeasurements)| {
            let plan = run.plan.as_ref().unwrap_or(&Json::Null);
            Step::executed(text, &plan["Plan"], run.took_ms, &index)
        };
        texts.into_iter().zip(runs).map(step).collect()
    };
    Shown::of_plan(began, steps, find, Explained::Read(Read::Find(&FindOptions::default())))
}

impl Shown {
    fn of_plan(began: Instant, mut steps: Vec<Step>, plan: &Plan, explained: Explained<'_>) -> Result<Self> {
        for step in &mut steps {
            step.stages = explained.shard_stages(step.stages.take());
        }
        let shown = |to: &Destination| {
            Ok(json!({"shard": cache::shard(to.shard)?.name, "chunks": to.chunks, "version": to.version}))
        };
        let destinations: Vec<Json> = plan.destinations.iter().map(shown).collect::<Result<_>>()?;
        Ok(Shown::new(began, steps, destinations.into_iter()))
    }

    /// Builds the entries of shards from their plans. `shards`: the beginnings of the entries.
    fn new(began: Instant, steps: Vec<Step>, shards: impl Iterator<Item = Json>) -> Self {
        let mut shown = Shown { milliseconds: milliseconds(began), ..Shown::default() };
        for (mut shard, step) in shards.zip(steps) {
            match step.run {
                None => shard["winningPlan"] = step.stages,
                Some((returned, examined, took)) => {
                    shown.returned = shown.returned.saturating_add(returned);
                    shown.examined = shown.examined + examined;
                    let mut run = Map::from_iter([("shardName".to_owned(), shard["shard"].clone())]);
                    run.extend(stages::statistics(returned, took, examined));
                    run.insert("executionStages".into(), step.stages);
                    shown.runs.push(Json::Object(run));
                }
            }
            shard["plan"] = step.text.into();
            shown.shards.push(shard);
        }
        shown
    }

    /// MongoDB's `executionStats`.
    fn statistics(self, returned: u64) -> Json {
        let mut statistics = stages::statistics(returned, self.milliseconds, self.examined);
        statistics.insert("shards".into(), self.runs.into());
        Json::Object(statistics)
    }
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The plan of one shard.
struct Step {
    /// PostgreSQL's plan, line by line
    text: Vec<String>,
    /// the plan as MongoDB's stages
    stages: Json,
    /// if executed: the number of returned rows, the examined keys and documents, and the milliseconds
    run: Option<(u64, Examined, u64)>,
}

impl Step {
    /// `root`: the root of an executed plan, as EXPLAIN prints it
    fn executed(text: Vec<String>, root: &Json, took: u64, index: &dyn Fn(&str) -> Map<String, Json>) -> Self {
        let run = (stages::returned(root), stages::examined(root), took);
        Step { text, stages: stages::stages(root, index), run: Some(run) }
    }
}

/// Explains a plan that PostgreSQL's planner makes on each shard.
fn planned_steps(
    plans: impl Fn(&str) -> Result<Vec<Vec<String>>>,
    index: &dyn Fn(&str) -> Map<String, Json>,
    verbosity: Verbosity,
) -> Result<Vec<Step>> {
    let texts = plans("COSTS OFF")?;
    let form = match verbosity {
        Verbosity::Planned => "COSTS OFF, FORMAT JSON",
        Verbosity::Run => "COSTS OFF, FORMAT JSON, ANALYZE, TIMING OFF",
    };
    let trees = plans(form)?;
    let step = |(text, tree): (Vec<String>, Vec<String>)| {
        let tree = parse_json("EXPLAIN", tree.concat().as_bytes())?;
        let root = &tree[0]["Plan"];
        let took = tree[0]["Execution Time"].as_f64().unwrap_or(0.0).round() as u64;
        Ok(match verbosity {
            Verbosity::Planned => Step { text, stages: stages::stages(root, index), run: None },
            Verbosity::Run => Step::executed(text, root, took, index),
        })
    };
    texts.into_iter().zip(trees).map(step).collect()
}

/// Explains a plan that bypasses PostgreSQL's planner; None if it was executed and a shard declined. Most paths report only how many
/// documents they return, and these are shown as examined. A scan and a sort report how many they have examined; a count of matching
/// documents examines all documents.
fn direct_steps(collection: &Collection, plan: &Plan, verbosity: Verbosity) -> Result<Option<Vec<Step>>> {
    let stages = direct_stages(collection, plan);
    // A role that may not read the collection must not see a plan.
    grants::require(collection, Level::Read)?;
    if verbosity == Verbosity::Planned {
        let step = |_| Step { text: Vec::new(), stages: stages.clone(), run: None };
        return Ok(Some(plan.destinations.iter().map(step).collect()));
    }
    let began = Instant::now();
    let Some(streams) = execute::observed_rows(collection, plan)? else { return Ok(None) };
    let mut steps = Vec::new();
    for (mut stream, observed) in streams {
        let mut counted = 0;
        while let Some(row) = stream.next_row()? {
            counted = i64::saturating_add(counted, if plan.path.counts() { row.i64(0) } else { 0 });
        }
        let mut step = direct_step(&stages, plan.path, &observed.borrow(), milliseconds(began));
        if plan.path.counts() {
            step.stages["nCounted"] = counted.into();
        }
        steps.push(step);
    }
    if plan.path == AccessPath::CountMatching {
        let query = Query::all()?;
        let all = select::count_all(&session::search(collection, &query)?);
        for (step, stream) in steps.iter_mut().zip(reading::read(collection, &plan.destinations, &all)?) {
            let documents = MergedRows::new(vec![stream], Order::None).sum()?.unsigned_abs();
            if let Some((_, examined, _)) = &mut step.run {
                examined.documents = documents;
            }
        }
    }
    Ok(Some(steps))
}

/// The step of a shard that has executed a plan without PostgreSQL's planner. `took`: milliseconds.
fn direct_step(stages: &Json, path: AccessPath, run: &PipelineMeasurements, took: u64) -> Step {
    let found = if path == AccessPath::Scan { run.read } else { run.returned() };
    let examined = match path {
        AccessPath::Scan | AccessPath::BoundedSort { .. } => {
            Examined { keys: 0, documents: run.examined.unwrap_or(run.read) }
        }
        path if path.counts() => Examined::default(),
        _ => Examined { keys: found, documents: found },
    };
    let mut stages = stages.clone();
    if !path.counts() {
        stages["nReturned"] = found.into();
    }
    Step { text: Vec::new(), stages, run: Some((found, examined, took)) }
}

/// Translates a plan that bypasses PostgreSQL's planner to MongoDB's stages.
fn direct_stages(collection: &Collection, plan: &Plan) -> Json {
    let fetch = |index: &str, backward: bool| {
        let mut scan = Map::from_iter([("stage".to_owned(), Json::from("IXSCAN"))]);
        scan.extend(described(collection, index));
        scan.insert("direction".into(), if backward { "backward" } else { "forward" }.into());
        json!({"stage": "FETCH", "inputStage": scan})
    };
    match plan.path {
        AccessPath::Key => fetch(&names::primary_key(collection.id), false),
        AccessPath::IndexRange { finds, backward, sorted } => {
            let index = match finds.index {
                SHARD_KEY => names::primary_key(collection.id),
                index => names::index(index),
            };
            let fetch = fetch(&index, backward);
            let found = if sorted { json!({"stage": "SORT", "inputStage": fetch}) } else { fetch };
            if finds.unlimited { found } else { json!({"stage": "LIMIT", "inputStage": found}) }
        }
        AccessPath::BoundedSort { most } => {
            json!({"stage": "SORT", "limitAmount": most, "inputStage": {"stage": "COLLSCAN"}})
        }
        AccessPath::Scan => json!({"stage": "COLLSCAN"}),
        AccessPath::CountAll => json!({"stage": "RECORD_STORE_FAST_COUNT"}),
        AccessPath::CountMatching => json!({"stage": "COUNT", "inputStage": {"stage": "COLLSCAN"}}),
        _ => Json::Null,
    }
}

/// Returns the output of EXPLAIN on each destination, line by line.
fn postgresql_plans(collection: &Collection, plan: &Plan, form: &str) -> Result<Vec<Vec<String>>> {
    let streams = reading::explain(collection, &plan.destinations, &plan.statement.explained(form))?;
    streams.into_iter().map(|mut stream| lines(&mut stream)).collect()
}

fn lines(stream: &mut RowStream) -> Result<Vec<String>> {
    let line = |row: &ShardRow| String::from_utf8_lossy(row.bytes(0)).into_owned();
    Ok(stream.rows()?.iter().map(line).collect())
}

/// Returns the user-visible name and keys of an index of the collection's table.
fn described(collection: &Collection, index: &str) -> Map<String, Json> {
    let (name, keys) = collection.described(index).unwrap_or_default();
    let mut described = Map::from_iter([("indexName".to_owned(), name.into()), ("keyPattern".to_owned(), keys)]);
    if collection.index_of(index).is_some_and(|one| names::entries(one.id) == index) {
        described.insert("isMultiKey".to_owned(), true.into());
    }
    described
}

fn reason(collection: &Collection, keys: &KeyRanges, targets: usize) -> String {
    if collection.key.is_unsharded() {
        return "the collection is not sharded: its database's primary shard has it".to_owned();
    }
    match targets {
        0 => "no document can match the filter".to_owned(),
        _ if keys.is_all() => "the filter does not constrain the shard key: every shard with a chunk".to_owned(),
        _ => "the filter constrains the shard key: the shards whose chunks overlap its bounds".to_owned(),
    }
}

/// Prints an explanation with one field or one line of a plan on each line.
pub fn pretty(explained: &Json) -> String {
    let mut out = String::new();
    write_value(explained, 0, &mut out);
    out
}

fn write_value(value: &Json, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth + 1);
    let end = "  ".repeat(depth);
    match value {
        Json::Object(fields) if depth == 0 || fields.contains_key("plan") => {
            let lines: Vec<String> = fields
                .iter()
                .map(|(name, value)| {
                    let mut line = format!("{indent}{}: ", Json::from(name.as_str()));
                    write_value(value, depth + 1, &mut line);
                    line
                })
                .collect();
            *out += &format!("{{\n{}\n{end}}}", lines.join(",\n"));
        }
        Json::Array(items) if !items.is_empty() && items.iter().all(|item| item.is_object() || item.is_string()) => {
            let lines: Vec<String> = items
                .iter()
                .map(|item| {
                    let mut line = indent.clone();
                    write_value(item, depth + 1, &mut line);
                    line
                })
                .collect();
            *out += &format!("[\n{}\n{end}]", lines.join(",\n"));
        }
        other => *out += &other.to_string(),
    }
}
