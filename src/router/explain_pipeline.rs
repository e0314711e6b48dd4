//! Explains a pipeline in MongoDB's form: the stages of the shards and of the router, and for each shard its stages, after
//! `$cursor`, which says how it finds the documents. If the pipeline is executed, each stage also has the number of its results,
//! its time, and whether it used the disk.
//!
//! To measure, the find of each shard is executed with EXPLAIN ANALYZE unless it is a scan, the shard's stages once more by themselves, and
//! then the whole pipeline, whose results are counted, unless the router only passes results on.

use super::aggregate::{self, Execution, ShardDocuments};
use super::config;
use super::dispatch::reading;
use super::explain::{self, Explained, Verbosity};
use super::fresh_map::read_with_fresh_map;
use super::options::{CountOptions, FindOptions};
use super::plan::pipeline::{self, PlannedPipeline};
use super::plan::search::Search;
use super::plan::{AccessPath, Allowed};
use super::query::Query;
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use crate::pg::stages::StageResults;
use crate::protocol::pipeline::{PipelineMeasurements, StageMeasurements, milliseconds};
use docshard_core::error::Kind;
use docshard_core::query::stage::{Find, Pipeline};
use serde_json::{Map, Value as Json, json};
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
        let mut answer = explain::explain(namespace, query, Explained::Count(&count), verbosity)?;
        let divided = rest.divided(None)?;
        let at_shards = [beginning(explained.beginning), divided.at_shards.shown()].concat();
        split(&mut answer, at_shards, divided.merging.shown());
        return Ok(answer);
    }
    if config::is_of(namespace) {
        let mut answer = explain::explain(namespace, query, Explained::Find(options), verbosity)?;
        split(&mut answer, beginning(explained.beginning), rest.shown());
        return Ok(answer);
    }
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return Ok(json!({"namespace": namespace, "exists": false, "shards": []}));
        };
        let search = Search::new(&collection, query)?;
        for allowed in [Allowed::AllToExplain, Allowed::Planned] {
            let planned = pipeline::plan(&search, options, (rest, explained.execution.on_disk), allowed)?;
            if let Some(answer) = explained.by_plan(&search, &planned, verbosity)? {
                return Ok(answer);
            }
        }
        Err(Error::new(Kind::InternalError, "every plan was declined"))
    })
}

impl ExplainedPipeline<'_> {
    /// Explains by this plan; None if the plan was executed and a shard declined.
    fn by_plan(&self, search: &Search<'_>, planned: &PlannedPipeline, verbosity: Verbosity) -> Result<Option<Json>> {
        let (collection, find) = (search.collection, planned.find());
        let how = Explained::Find(self.options);
        // A scan has no statement of its own: it is measured together with the stages.
        let of_find = if find.path == AccessPath::Scan { Verbosity::Planned } else { verbosity };
        let Some(mut shown) = explain::shards(collection, &find, how, of_find)? else { return Ok(None) };
        let mut answer = explain::targets(search, how.stage(&planned.plan), &find);
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
        let passes_on = merging.is_empty();
        split(&mut answer, at_shards, merging);
        let began = Instant::now();
        let runs = if verbosity == Verbosity::Run { measured(collection, planned)? } else { None };
        let finds = std::mem::take(&mut shown.runs);
        for (at, shard) in shown.shards.iter_mut().enumerate() {
            let run = runs.as_ref().map(|runs| &runs[at]);
            let stages = stages(planned, (shard["winningPlan"].take(), finds.get(at)), run);
            if let Some(shard) = shard.as_object_mut() {
                shard.shift_remove("winningPlan");
                shard.insert("stages".to_owned(), stages.into());
            }
        }
        answer["shards"] = shown.shards.into();
        if verbosity == Verbosity::Run {
            let statistics = match runs {
                Some(runs) if passes_on => Some(statistics(runs.iter().map(returned).sum(), began, Vec::new())),
                _ => self.executed(collection, planned)?,
            };
            let Some(statistics) = statistics else { return Ok(None) };
            answer["executionStats"] = statistics;
        }
        Ok(Some(answer))
    }

    /// Executes the pipeline; None if a shard declined.
    fn executed(&self, collection: &Collection, planned: &PlannedPipeline) -> Result<Option<Json>> {
        let began = Instant::now();
        let Some(documents) = aggregate::documents(collection, planned)? else { return Ok(None) };
        let Execution { resources, failure, .. } = self.execution;
        let merging = &planned.division.merging;
        let (mut results, measurements) =
            StageResults::measured(ShardDocuments::new(documents), merging, resources, failure.clone())?;
        let mut returned = 0;
        while results.advance()? {
            returned += 1;
        }
        let stages = merging.shown().into_iter().zip(StageMeasurements::of(&measurements));
        Ok(Some(statistics(returned, began, stages.map(|(stage, run)| with_run(stage, run)).collect())))
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

/// How many documents a shard has returned.
fn returned(run: &PipelineMeasurements) -> u64 {
    run.stages.last().map_or(run.read, |stage| stage.returned)
}

/// Returns the stages that a find replaces, as the shards run them.
fn beginning(find: &Find) -> Vec<Json> {
    let is_all = find.filter.as_object().is_some_and(Map::is_empty);
    let mut stages = Vec::new();
    stages.extend((!is_all).then(|| json!({"$match": find.filter})));
    stages.extend(find.sort.as_ref().map(|sort| json!({"$sort": sort})));
    match find.limit {
        // Shards return the documents that the router skips, too.
        Some(limit) => stages.push(json!({"$limit": limit.saturating_add(find.skip)})),
        None if find.skip > 0 => stages.push(json!({"$skip": find.skip})),
        None => {}
    }
    stages
}

/// Adds the division of the stages to the answer; null if a single shard runs all of them.
fn split(answer: &mut Json, at_shards: Vec<Json>, merging: Vec<Json>) {
    let is_split = !merging.is_empty() || answer["targetedShards"].as_u64() != Some(1);
    answer["mergeType"] = if is_split { "mongos".into() } else { Json::Null };
    answer["splitPipeline"] = match is_split {
        true => json!({"shardsPart": at_shards, "mergerPart": merging}),
        false => Json::Null,
    };
}

/// Measures the stages of each shard; None if the shards run no stages.
fn measured(collection: &Collection, planned: &PlannedPipeline) -> Result<Option<Vec<PipelineMeasurements>>> {
    let Some(statement) = planned.measuring(collection) else { return Ok(None) };
    let mut runs = Vec::new();
    for mut stream in reading::read_ahead(collection, &planned.plan.destinations, &statement, None, None)? {
        let mut run = PipelineMeasurements::default();
        while let Some(row) = stream.next_row()? {
            run = PipelineMeasurements::parse(row.get(0).unwrap_or_default())?;
        }
        runs.push(run);
    }
    Ok(Some(runs))
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
    if let Some(returned) = run.map(|run| Json::from(run.read)).or_else(|| Some(find?["nReturned"].clone())) {
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
