//! Plans a pipeline: which stages run at the shards, and which documents they read.
//!
//! At a shard the stages run inside one function (`shard::pipeline`), which reads the documents itself: by a scan of the table
//! without the executor where no index narrows the search, or else by the statement of the find.

use super::conditions::Conditions;
use super::order::Order;
use super::search::Search;
use super::select::{Find, bounded_sort, run_pipeline};
use super::statement::Statement;
use super::{AccessPath, Allowed, Plan, find, planned_find, unplanned_find};
use crate::cluster::targeting;
use crate::error::Result;
use crate::query::specification;
use crate::query::stage::{Division, Pipeline, Stage};
use crate::routing::model::Collection;
use crate::routing::protocol::checked::Parameter;
use crate::routing::protocol::pipeline::{PipelineRequest, PipelineSource};
use crate::routing::request::options::FindOptions;
use crate::values::document::field_order::{Keeping, keeps_order};
use serde_json::{Value as Json, json};

#[derive(Debug)]
pub struct PlannedPipeline {
    /// the statement for the shards: their part of the pipeline, or a find if they run no stages
    pub plan: Plan,
    /// the access path and the statement for the documents that the shards' stages read; a scan has no statement. None if the
    /// shards run no stages
    pub inner: Option<(AccessPath, Option<Statement>)>,
    /// the stages and settings that are sent to each shard
    pub work: Option<PipelineRequest>,
    pub division: Division,
}

impl PlannedPipeline {
    /// Returns the plan that finds the documents for the stages.
    pub fn find(&self) -> Plan {
        let Some((path, inner)) = &self.inner else { return self.plan.clone() };
        let statement = inner.clone().unwrap_or_else(Statement::none);
        Plan::unordered(self.plan.destinations.clone(), *path, statement)
    }

    /// Returns the stages at each shard as `explain` shows them.
    pub fn at_shards(&self) -> Vec<Json> {
        let mut shown = self.division.at_shards.shown();
        let more = self.work.iter().flat_map(|work| &work.stages).count().saturating_sub(shown.len());
        let first = self.work.iter().flat_map(|work| work.stages.iter().take(more)).cloned();
        shown.splice(0..0, first);
        shown
    }
}

/// Plans the stages that follow a find. `on_disk`: they may use temporary files.
///
/// If the find can run without PostgreSQL's planner (one document by its key, or few by an index), the router runs all stages:
/// planning at the shard would take longer than running stages there saves.
pub fn plan(
    search: &Search<'_>,
    options: &FindOptions,
    (pipeline, on_disk): (&Pipeline, bool),
    allowed: Allowed<'_>,
) -> Result<PlannedPipeline> {
    let division = division(search, options, pipeline)?;
    let at_router = if division.at_shards.stages().is_empty() {
        Some(find(search, options, allowed)?)
    } else {
        unplanned_find(search, options, allowed)?
    };
    if let Some(plan) = at_router {
        return Ok(PlannedPipeline { plan, inner: None, work: None, division: pipeline.undivided() });
    }
    let destinations = search.destinations()?;
    let order = if division.order.is_some() { Order::Ascending } else { Order::None };
    let (inner, source, mut stages) = {
        // `$group` returns only computed values, so the order of the fields that it reads is not needed.
        let _keeping = Keeping::order_only_if(!division.at_shards.begins_with_group());
        source(search, options, destinations.len() == 1)?
    };
    // A scan reads whole documents. Projecting them first keeps stages from copying fields that are not needed.
    if inner.0 == AccessPath::Scan
        && !division.at_shards.begins_with_group()
        && let Some(projection) = &options.projection
    {
        stages.push(json!({"$project": specification::parse(projection)?}));
    }
    stages.extend(division.at_shards.stages().iter().map(Stage::to_json));
    let work = PipelineRequest {
        stages,
        environment: options.environment.json(),
        keyed: division.order.is_some(),
        projection: None,
        on_disk,
        measured: false,
        explained: false,
        ordered: keeps_order(),
        source,
    };
    let statement = run_pipeline(search.collection, &work);
    let plan = Plan { order, ..Plan::unordered(destinations, AccessPath::Pipeline, statement) };
    Ok(PlannedPipeline { plan, inner: Some(inner), work: Some(work), division })
}

fn division(search: &Search<'_>, options: &FindOptions, pipeline: &Pipeline) -> Result<Division> {
    let key = &search.collection.key;
    let is_whole = options.sort.is_none() && options.limit.is_none() && options.skip == 0;
    Ok(match search.destinations()?.len() {
        0 => pipeline.undivided(),
        1 => pipeline.at_one_shard()?,
        _ if is_whole => {
            let deciding = targeting::deciding_fields(key, &search.collection.map);
            let paths: Vec<&str> = key.fields.iter().take(deciding).map(|(path, _)| path.as_str()).collect();
            pipeline.divided(Some(&paths))?
        }
        // The router must merge the shards' documents first.
        _ => pipeline.undivided(),
    })
}

/// Returns a statement that has the results of the plan's statement, and what the shard measures meanwhile (`PipelineRequest::explained`).
/// None for a path whose functions measure nothing. Errors: those of [`PipelineRequest::parse`].
pub fn explained(collection: &Collection, plan: &Plan) -> Result<Option<Statement>> {
    let work = match plan.path {
        AccessPath::Pipeline | AccessPath::BoundedSort { .. } => {
            let Some(Parameter::Text(work)) = plan.statement.params.last() else { return Ok(None) };
            PipelineRequest::parse(work)?
        }
        path if path.is_direct() => return Ok(None),
        _ => PipelineRequest {
            stages: Vec::new(),
            environment: None,
            keyed: plan.order != Order::None,
            projection: None,
            on_disk: true,
            measured: false,
            explained: true,
            ordered: keeps_order(),
            source: selected(&plan.statement),
        },
    };
    Ok(Some(run_pipeline(collection, &PipelineRequest { explained: true, ..work })))
}

/// The documents of a find's statement as the input of stages.
fn selected(statement: &Statement) -> PipelineSource {
    // The first two parameters are the collection's token and the version, which the function knows.
    PipelineSource::Select { sql: statement.sql.clone(), params: statement.params.iter().skip(2).cloned().collect() }
}

type Inner = (AccessPath, Option<Statement>);

/// Returns what the stages at a shard read, and the stages that run before them: for a scan, those that do the find's sort, skip and limit.
fn source(
    search: &Search<'_>,
    options: &FindOptions,
    single_target: bool,
) -> Result<(Inner, PipelineSource, Vec<Json>)> {
    let (path, statement, _) = planned_find(search, options, single_target)?;
    let is_whole = options.sort.is_none() && options.limit.is_none() && options.skip == 0;
    if matches!(path, AccessPath::BoundedSort { .. }) || path == AccessPath::Conditions && is_whole {
        let most = Find { search, options, single_target }.most();
        let sort = options.sort.as_ref().zip(most).map(|((sort, _), most)| bounded_sort(sort, most, options.skip));
        if let Some(filter) = Conditions::of_search(search)?.filter_of_scan(search) {
            let inner = (AccessPath::Scan, None);
            return Ok((inner, PipelineSource::Scan { filter }, sort.unwrap_or_default()));
        }
    }
    let source = selected(&statement);
    Ok(((path, Some(statement)), source, Vec::new()))
}
