//! A parsed pipeline. It can be rearranged, divided over shards, and run over documents.

use super::measured::{self, Measurements};
use super::needed;
use super::operation::{Context, Parsed, Parser, Shape, Stage, StageOutcome, check_first, run};
use super::rearranging::division::{self, Find, SplitStages};
use super::rearranging::rearrange;
use super::runtime::resources::Resources;
use super::runtime::sink::Sink;
use super::runtime::statistics::Statistics;
use super::runtime::stream::{Input, IterStream, Memory};
use super::table::{self, Origin};
use crate::budget::{self, Evaluation};
use crate::error::{Kind, Result, bail, ensure};
use crate::query::environment::Environment;
use crate::values::document::raw::{self, RawObject};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A parsed pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    stages: Vec<Stage>,
    environment: Environment,
}

/// The largest number of stages of a client's pipeline, or of one in a stage's argument: MongoDB's limit.
const MAX_STAGES: usize = 1000;

/// The memory limit of rearranging and dividing, as a multiple of an evaluation's: arguments are copied, and parsed again.
const COPIES: usize = 8;

/// A pipeline that is divided over shards.
#[derive(Debug)]
pub struct Division {
    /// what runs at each shard
    pub at_shards: Pipeline,
    /// the order of each shard's documents, as a sort that `explain` shows; None if the order does not matter. The router merges the
    /// documents by the keys of the shards' streams ([`Stream::key`](super::Stream::key))
    pub order: Option<Json>,
    /// what runs over the merged documents
    pub merging: Pipeline,
}

impl Pipeline {
    /// Parses the stages of an aggregation.
    ///
    /// # Errors
    /// `Location7749501` for too many stages; `TypeMismatch` and `Location40323` for an element that is not a stage;
    /// `Location40324` for an unknown stage, `NotImplemented` for one that is not supported;
    /// `Location40602` for one that must come first and does not, `Location40601` for one that must come last and does not;
    /// those of stages, filters, projections, accumulators and expressions.
    pub fn parse(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Origin::Client)
    }

    /// Parses stages that dividing a pipeline has made (see [`Division`]). Their number is not limited.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_divided(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Origin::Division)
    }

    /// Parses the stages of an update. Each returns exactly one document for an input document.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse); `InvalidOptions` for a stage that an update may not have.
    pub(crate) fn parse_update(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Origin::Update)
    }

    fn parse_for(stages: &[Json], environment: &Environment, origin: Origin) -> Result<Pipeline> {
        let _evaluation = Evaluation::begin();
        if !matches!(origin, Origin::Division) {
            check_length(stages)?;
        }
        let mut parsed = Vec::with_capacity(stages.len());
        parse_into(stages, environment, (origin, 0), &mut parsed)?;
        check_first(&parsed)?;
        if let Some(stage) = parsed.iter().rev().skip(1).find(|stage| stage.operator.writes) {
            bail!(40601, "{} can only be the final stage in the pipeline", stage.operator.name);
        }
        Ok(Pipeline { stages: parsed, environment: environment.clone() })
    }

    /// Its stages.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Its stages as [`parse_divided`](Self::parse_divided) reads them.
    pub fn to_json(&self) -> Json {
        self.stages.iter().map(Stage::to_json).collect()
    }

    /// True if it begins with a stage that makes documents, and reads no collection. False for statistics, such as `$collStats`.
    pub fn makes_documents(&self) -> bool {
        self.stages.first().is_some_and(|stage| stage.operator.makes_documents())
    }

    /// Returns the statistics that its first stage asks for; None if it reads documents.
    pub fn statistics(&self) -> Option<&Statistics> {
        match self.stages.first()?.operation.shape() {
            Shape::Statistics(statistics) => Some(statistics),
            _ => None,
        }
    }

    /// Returns the target that it writes to; None if it returns its documents.
    pub fn sink(&self) -> Option<&Sink> {
        match self.stages.last()?.operation.shape() {
            Shape::Sink(sink) => Some(sink),
            _ => None,
        }
    }

    fn of(&self, stages: Vec<Stage>) -> Pipeline {
        Pipeline { stages, environment: self.environment.clone() }
    }

    /// Parses a stage that was derived from this pipeline.
    fn parse_stage(&self, json: &Json) -> Result<Stage> {
        let mut parsed = Vec::with_capacity(1);
        parse_into(std::slice::from_ref(json), &self.environment, (Origin::Division, 0), &mut parsed)?;
        match parsed.pop() {
            Some(stage) if parsed.is_empty() => Ok(stage),
            _ => bail!(Kind::InternalError, "a stage stands for several"),
        }
    }

    /// Returns a pipeline with the same result and less work: see [`rearrange`].
    ///
    /// # Errors
    /// None: the stages were parsed before.
    pub fn rearranged(mut self) -> Result<Pipeline> {
        let _evaluation = Evaluation::begin_large(COPIES);
        let stages = std::mem::take(&mut self.stages);
        self.stages = rearrange::rearranged(stages, &|json| self.parse_stage(json))?;
        Ok(self)
    }

    /// Splits off the first stages that a find can replace.
    pub fn find(&self) -> (Find, Pipeline) {
        let _evaluation = Evaluation::begin_large(COPIES);
        let (find, count) = division::find(&self.stages, needed);
        (find, self.of(self.stages.get(count..).unwrap_or_default().to_vec()))
    }

    /// Divides it over several shards. `shard_key`: paths at which no document has an array, and whose values decide the shard of
    /// a document; None if there are no such paths.
    ///
    /// # Errors
    /// None: the stages were parsed before.
    pub fn divided(&self, shard_key: Option<&[&str]>) -> Result<Division> {
        self.division(division::divided(&self.stages, shard_key, &|json| self.parse_stage(json))?)
    }

    /// Divides it between a single target shard and the router.
    ///
    /// # Errors
    /// None: the stages were parsed before.
    pub fn at_one_shard(&self) -> Result<Division> {
        self.division(division::at_one_shard(&self.stages))
    }

    /// Returns a division in which the router runs all stages.
    pub fn undivided(&self) -> Division {
        Division { at_shards: self.of(Vec::new()), order: None, merging: self.clone() }
    }

    fn division(&self, divided: SplitStages) -> Result<Division> {
        let _evaluation = Evaluation::begin_large(COPIES);
        let divided = division::narrowed(divided, needed, &|json| self.parse_stage(json))?;
        Ok(Division { at_shards: self.of(divided.at_shards), order: divided.order, merging: self.of(divided.merging) })
    }

    /// True if its result depends only on the number of input documents.
    pub fn only_counts(&self) -> bool {
        matches!(self.first_shape(), Some(Shape::Group(group)) if group.only_counts())
    }

    /// Runs a pipeline that [only counts](Self::only_counts) for this number of input documents.
    ///
    /// # Errors
    /// Those of stages.
    pub fn run_counted<'s>(&self, count: u64, resources: &Resources) -> Result<Input<'s>> {
        let group = match self.first_shape() {
            Some(Shape::Group(group)) if count > 0 => Some(group.counted(count)?),
            _ => None,
        };
        run(self.stages.get(1..).unwrap_or_default(), Box::new(IterStream::new(group)), &Context::new(resources))
    }

    /// True if its first stage is a `$group`. A `$group` copies no documents, so a projection before it saves nothing.
    pub fn begins_with_group(&self) -> bool {
        matches!(self.first_shape(), Some(Shape::Group(_)))
    }

    fn first_shape(&self) -> Option<Shape<'_>> {
        self.stages.first().map(|stage| stage.operation.shape())
    }

    /// Runs it over documents.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn run<'s>(&self, input: Input<'s>, memory: &Rc<dyn Memory>) -> Result<Input<'s>> {
        self.run_with(input, &Resources::of_memory(memory))
    }

    /// Runs it over documents, with access to other collections.
    ///
    /// # Errors
    /// Those of the memory and of collections.
    pub fn run_with<'s>(&self, input: Input<'s>, resources: &Resources) -> Result<Input<'s>> {
        run(&self.stages, input, &Context::new(resources))
    }

    /// Returns the names of the other collections that its stages and their inner pipelines read.
    pub fn collections(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.stages.iter().for_each(|stage| stage.operation.collections(&mut names));
        names
    }

    /// Like [`run`](Self::run), and measures each stage.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn run_measured<'s>(&self, input: Input<'s>, resources: &Resources) -> Result<(Input<'s>, Measurements)> {
        measured::run(&self.stages, input, resources)
    }

    /// Returns its stages as `explain` shows them, with the names that clients know.
    pub fn shown(&self) -> Vec<Json> {
        self.stages.iter().map(|stage| table::shown(stage.operator, &stage.argument)).collect()
    }

    /// True if no stage changes the top-level field of this path.
    pub(crate) fn keeps(&self, path: &str) -> bool {
        self.stages.iter().all(|stage| stage.operation.fields().written.keeps(path))
    }

    /// Applies the pipeline of an update to a document.
    ///
    /// # Errors
    /// Those of expressions; `Location40228` if the result of a stage is not a document.
    pub(crate) fn updated<'d>(&self, document: RawObject<'d>) -> Result<Cow<'d, [u8]>> {
        let mut made: Option<Vec<u8>> = None;
        for stage in &self.stages {
            let now = made.as_deref().and_then(raw::document).unwrap_or(document);
            if let StageOutcome::One(Cow::Owned(bytes)) = stage.operation.apply(now)? {
                made = Some(bytes);
            }
        }
        Ok(made.map_or(Cow::Borrowed(document.bytes()), Cow::Owned))
    }
}

/// Returns the top-level fields that stages read; None for all.
fn needed(stages: &[Stage]) -> Option<Vec<String>> {
    needed::needed(stages).map(|fields| fields.into_iter().collect())
}

fn check_length(stages: &[Json]) -> Result<()> {
    ensure!(stages.len() <= MAX_STAGES, 7749501, "Pipeline length must be no longer than {MAX_STAGES} stages.");
    Ok(())
}

/// Parses the pipeline in a stage's argument.
fn nested(stages: &[Json], environment: &Environment, depth: usize) -> Result<Vec<Stage>> {
    check_length(stages)?;
    let mut parsed = Vec::with_capacity(stages.len());
    parse_into(stages, environment, (Origin::Client, depth), &mut parsed)?;
    Ok(parsed)
}

/// Checks an update's pipeline in a stage's argument.
fn check_update(stages: &[Json], environment: &Environment) -> Result<()> {
    Pipeline::parse_update(stages, environment).map(drop)
}

fn parse_into(
    stages: &[Json],
    environment: &Environment,
    (origin, depth): (Origin, usize),
    parsed: &mut Vec<Stage>,
) -> Result<()> {
    for json in stages {
        let (operator, argument) = table::find(json, origin)?;
        match (operator.parse)(&Parser { name: operator.name, environment, depth, nested, check_update }, argument)? {
            Parsed::One(operation) => {
                let argument = budget::copying(|| Arc::new(argument.clone()));
                parsed.push(Stage { operator, argument, operation });
            }
            Parsed::Many(stages) => parse_into(&stages, environment, (origin, depth), parsed)?,
        }
    }
    Ok(())
}
