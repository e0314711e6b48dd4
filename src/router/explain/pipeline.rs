//! Explains a pipeline in MongoDB's form: how its stages are divided between shards and router, and the stages of each shard. The first of
//! these is `$cursor`, which says how the shard finds the documents. If the pipeline is executed, each stage also has the number of its
//! results, its time, and whether it used the disk.
//!
//! The pipeline is executed once: the shards' results are followed by what the shards have measured (`PipelineRequest::explained`). Each
//! shard's part runs to its end, even if the router's stages need only its first results.

use crate::pg::error::Result;
use crate::pg::stages::{DocumentSource, StageResults};
use crate::router::execute::{self, Documents};
use crate::router::explain::statement::{self, Explained, Verbosity};
use crate::router::fresh_map::read_with_fresh_map;
use crate::router::reads::aggregate::Execution;
use crate::router::rows::ShardRow;
use crate::router::session;
use docshard_core::query::stage::{Find, Pipeline};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::pipeline::{self, PlannedPipeline};
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::{Allowed, Read};
use docshard_core::routing::protocol::pipeline::{PipelineMeasurements, StageMeasurements, milliseconds};
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// A pipeline to explain, split into the find that replaces its first stages, and the rest.
pub struct ExplainedPipeline<'a> {
    pub beginning: &'a Find,
    pub query: &'a Query,
    pub options: &'a FindOptions,
    pub rest: &'a Pipeline,
    pub execution: &'a Execution,
}

/// Explains a pipeline by the plan that would be executed.
pub fn explain(namespace: &str, explained: &ExplainedPipeline<'_>, verbosity: Verbosity) -> Result<Json> {
    let &ExplainedPipeline { query, options, rest, .. } = explained;
    if rest.only_counts() {
        let count = CountOptions { skip: options.skip, limit: options.limit };
        let mut answer = statement::explain(namespace, query, Explained::Read(Read::Count(&count)), verbosity)?;
        let divided = rest.divided(None)?;
        let at_shards = [beginning(explained.beginning), divided.at_shards.shown()].concat();
        split(&mut answer, at_shards, divided.merging.shown());
        return Ok(answer);
    }
    let how = Explained::Read(Read::Find(options));
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            let mut answer = statement::explain(namespace, query, how, verbosity)?;
            if answer.get("exists").is_none() {
                split(&mut answer, beginning(explained.beginning), rest.shown());
            }
            return Ok(answer);
        };
        let search = session::counted_search(&collection, query)?;
        execute::unless_declined(Allowed::AllToExplain(&session::declined()), |allowed| {
            let planned = pipeline::plan(&search, options, (rest, explained.execution.may_use_disk), allowed)?;
            let mut answer = explained.by_plan(&search, &planned, verbosity)?;
            if let Some(answer) = &mut answer {
                statement::warn(answer, namespace, query)?;
            }
            Ok(answer)
        })
    })
}

impl ExplainedPipeline<'_> {
    /// Explains by this plan; None if the plan was executed and a shard declined.
    fn by_plan(&self, search: &Search<'_>, planned: &PlannedPipeline, verbosity: Verbosity) -> Result<Option<Json>> {
        let (collection, find) = (search.collection, planned.find());
        let how = Explained::Read(Read::Find(self.options));
        let executed = match verbosity {
            Verbosity::Planned => None,
            Verbosity::Run => {
                let Some(executed) = self.executed(collection, planned)? else { return Ok(None) };
                Some(executed)
            }
        };
        let mut shown = match &executed {
            Some(executed) => statement::executed(collection, &find, &executed.runs)?,
            None => statement::shards(collection, &find, how, Verbosity::Planned)?.unwrap_or_default(),
        };
        let mut answer = statement::targets(search, how.stage(&planned.plan), &find);
        let division = &planned.division;
        let mut at_shards = beginning(self.beginning);
        if planned.inner.is_none() {
            at_shards.extend(self.beginning.projection().map(|projection| json!({"$project": projection})));
        }
        at_shards.extend(division.at_shards.shown());
        let single = planned.plan.destinations.len() == 1;
        let mut merging = Vec::new();
        if !single {
            let sort = division.order.clone().or_else(|| self.options.sort.as_ref().map(|(sort, _)| sort.to_json()));
            merging.extend(sort.map(|sort| json!({"$mergeCursors": {"sort": sort}})));
            // A shard does not skip. It returns up to skip + limit documents, and the router skips.
            let bounds = [("$skip", Some(self.options.skip).filter(|skip| *skip > 0)), ("$limit", self.options.limit)];
            merging.extend(bounds.into_iter().filter_map(|(name, count)| Some(json!({name: count?}))));
        }
        merging.extend(division.merging.shown());
        split(&mut answer, at_shards, merging);
        let finds = std::mem::take(&mut shown.runs);
        for (at, shard) in shown.shards.iter_mut().enumerate() {
            let run = executed.as_ref().map(|executed| &executed.runs[at]);
            let stages = stages(planned, (shard["winningPlan"].take(), finds.get(at)), run);
            if let Some(shard) = shard.as_object_mut() {
                shard.shift_remove("winningPlan");
                shard.insert("stages".to_owned(), stages.into());
            }
        }
        answer["shards"] = shown.shards.into();
        if let Some(executed) = executed {
            answer["executionStats"] = executed.statistics;
        }
        Ok(Some(answer))
    }

    /// Executes the pipeline; None if a shard declined.
    fn executed(&self, collection: &Collection, planned: &PlannedPipeline) -> Result<Option<Executed>> {
        let began = Instant::now();
        let Some(observed) = execute::observed_rows(collection, &planned.plan)? else { return Ok(None) };
        let (streams, observed): (Vec<_>, Vec<_>) = observed.into_iter().unzip();
        let documents = Rc::new(RefCell::new(Documents::of_plan(streams, &planned.plan)));
        let resources = &self.execution.resources;
        let merging = &planned.division.merging;
        let source = SharedDocuments { documents: Rc::clone(&documents), row: None };
        let (mut results, measurements) = StageResults::measured(source, merging, resources)?;
        let mut returned = 0;
        while results.advance()? {
            returned += 1;
        }
        documents.borrow_mut().drain()?;
        let stages = merging.shown().into_iter().zip(StageMeasurements::of(&measurements));
        let statistics = statistics(returned, began, stages.map(|(stage, run)| with_run(stage, run)).collect());
        Ok(Some(Executed { runs: observed.iter().map(|observed| observed.borrow().clone()).collect(), statistics }))
    }
}

/// The measurements of an executed pipeline.
struct Executed {
    /// one for each shard
    runs: Vec<PipelineMeasurements>,
    statistics: Json,
}

/// The documents of shards as the input of stages. They are shared, so that the caller can read those that the stages have not read.
struct SharedDocuments {
    documents: Rc<RefCell<Documents>>,
    row: Option<ShardRow>,
}

impl DocumentSource for SharedDocuments {
    fn advance(&mut self) -> Result<bool> {
        self.row = self.documents.borrow_mut().next_row()?;
        Ok(self.row.is_some())
    }

    fn bytes(&self) -> &[u8] {
        self.row.as_ref().map_or(&[], |row| row.bytes(0))
    }
}

fn statistics(returned: u64, began: Instant, merger_stages: Vec<Json>) -> Json {
    json!({
        "executionSuccess": true,
        "nReturned": returned,
        "executionTimeMillis": milliseconds(began.elapsed()),
        "mergerStages": merger_stages,
    })
}

/// Returns the pipeline's first stages, which a find replaces, as the shards run them.
fn beginning(find: &Find) -> Vec<Json> {
    let is_all = find.filter.as_object().is_some_and(Map::is_empty);
    let mut stages = Vec::new();
    stages.extend((!is_all).then(|| json!({"$match": *find.filter})));
    stages.extend(find.sort.as_ref().map(|(sort, _)| json!({"$sort": **sort})));
    match find.limit {
        // Shards return the documents that the router skips, too.
        Some(limit) => stages.push(json!({"$limit": limit.saturating_add(find.skip)})),
        None if find.skip > 0 => stages.push(json!({"$skip": find.skip})),
        None => {}
    }
    stages
}

/// Adds the division of the stages to the answer. Both fields are null if a single shard runs all stages.
fn split(answer: &mut Json, at_shards: Vec<Json>, merging: Vec<Json>) {
    let is_split = !merging.is_empty() || answer["targetedShards"].as_u64() != Some(1);
    answer["mergeType"] = if is_split { "mongos".into() } else { Json::Null };
    answer["splitPipeline"] = match is_split {
        true => json!({"shardsPart": at_shards, "mergerPart": merging}),
        false => Json::Null,
    };
}

/// Returns the stages of a shard: `$cursor`, which finds the documents, and the following ones.
fn stages(
    planned: &PlannedPipeline,
    (plan, find): (Json, Option<&Json>),
    run: Option<&PipelineMeasurements>,
) -> Vec<Json> {
    let mut cursor = json!({});
    match find {
        Some(find) => cursor["executionStats"] = find.clone(),
        None => {
            cursor["queryPlanner"] = json!({"winningPlan": plan});
        }
    }
    let mut first = json!({"$cursor": cursor});
    let returned = match planned.inner {
        // The shard's portal may have returned more rows than the stages have read. Only the latter are counted.
        Some(_) => run.map(|run| run.read.into()),
        None => find.map(|find| find["nReturned"].clone()),
    };
    if let Some(returned) = returned {
        first["nReturned"] = returned;
    }
    let shown = planned.at_shards().into_iter().enumerate();
    let stage = |(at, stage)| match run.and_then(|run| run.stages.get(at)) {
        Some(run) => with_run(stage, *run),
        None => stage,
    };
    std::iter::once(first).chain(shown.map(stage)).collect()
}

fn with_run(mut stage: Json, run: StageMeasurements) -> Json {
    stage["nReturned"] = run.returned.into();
    stage["executionTimeMillisEstimate"] = run.took_ms.into();
    stage["usedDisk"] = run.used_disk.into();
    stage
}
