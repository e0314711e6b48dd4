//! Pipelines: stages one after the other, parsed, rearranged, run over documents or divided over shards.

use super::division::{self, Divided, Find};
use super::measured::{self, Measurements};
use super::needed;
use super::operation::{Context, Outcome, Parsed, Parser, Shape, Stage, check_first, run};
use super::rearrange;
use super::resources::Resources;
use super::sink::Sink;
use super::statistics::Statistics;
use super::stream::{Given, Input, Memory};
use super::table::{self, Asker};
use crate::budget::Evaluation;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::environment::Environment;
use crate::values::document::raw::{self, RawObject};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A parsed pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    stages: Vec<Stage>,
    environment: Environment,
}

/// The most stages of a pipeline that a client gives, also within a stage: MongoDB's limit.
const MAX_STAGES: usize = 1000;

/// A pipeline that is divided over shards.
#[derive(Debug)]
pub struct Division {
    /// what runs at each shard
    pub at_shards: Pipeline,
    /// the order that each shard's documents are in, as a sort that explanations show: they are merged by the keys of their streams
    /// ([`Stream::key`](super::Stream::key)). None if their order does not matter
    pub order: Option<Json>,
    /// what runs where they come together
    pub merging: Pipeline,
}

impl Pipeline {
    /// Parses the stages of an aggregation.
    ///
    /// # Errors
    /// `Location7749501` for too many stages; `TypeMismatch` and `Location40323` for what is no stage, `Location40324` for an unknown
    /// one, `NotImplemented` for one that is not understood, `Location40602` for one that must be the first, `Location40601` for one
    /// that must be the last; those of stages, filters, projections, accumulators and expressions.
    pub fn parse(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Asker::Client)
    }

    /// As [`parse`](Self::parse), of any number of stages that a [`Division`] has made.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_divided(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Asker::Division)
    }

    /// As [`parse`](Self::parse), of an update's stages, each of which makes one document of one.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse); `InvalidOptions` for a stage that an update may not have.
    pub(crate) fn parse_update(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, Asker::Update)
    }

    fn parse_for(stages: &[Json], environment: &Environment, asker: Asker) -> Result<Pipeline> {
        let _evaluation = Evaluation::begin();
        if !matches!(asker, Asker::Division) {
            check_length(stages)?;
        }
        let mut parsed = Vec::with_capacity(stages.len());
        parse_into(stages, environment, (asker, 0), &mut parsed)?;
        check_first(&parsed)?;
        if let Some(stage) = parsed.iter().rev().skip(1).find(|stage| stage.operator.ends) {
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

    /// True if it makes its documents itself, and reads no collection.
    pub fn begins(&self) -> bool {
        self.stages.first().is_some_and(|stage| stage.operator.begins && !stage.operator.describes)
    }

    /// What it describes of its collection, instead of reading documents.
    pub fn statistics(&self) -> Option<&Statistics> {
        match self.stages.first()?.operation.shape() {
            Shape::Statistics(statistics) => Some(statistics),
            _ => None,
        }
    }

    /// Where its documents go; None if they are its result.
    pub fn sink(&self) -> Option<&Sink> {
        match self.stages.last()?.operation.shape() {
            Shape::Sink(sink) => Some(sink),
            _ => None,
        }
    }

    fn of(&self, stages: Vec<Stage>) -> Pipeline {
        Pipeline { stages, environment: self.environment.clone() }
    }

    /// Parses a stage of its own once more, or one that stands for it.
    fn parse_stage(&self, json: &Json) -> Result<Stage> {
        let mut parsed = Vec::with_capacity(1);
        parse_into(std::slice::from_ref(json), &self.environment, (Asker::Division, 0), &mut parsed)?;
        match parsed.pop() {
            Some(stage) if parsed.is_empty() => Ok(stage),
            _ => bail!(Kind::InternalError, "a stage stands for several"),
        }
    }

    /// The same result with less work: see [`rearrange`].
    ///
    /// # Errors
    /// None that parsing has not had.
    pub fn rearranged(&self) -> Result<Pipeline> {
        Ok(self.of(rearrange::rearranged(self.stages.clone(), &|json| self.parse_stage(json))?))
    }

    /// The beginning that a find answers, and the rest.
    pub fn find(&self) -> (Find, Pipeline) {
        let (find, count) = division::find(&self.stages, needed);
        (find, self.of(self.stages.get(count..).unwrap_or_default().to_vec()))
    }

    /// Divides it over shards whose documents come in no order. `shard_key` has the paths of the shard key, if documents of equal
    /// keys are on one shard.
    ///
    /// # Errors
    /// None that parsing has not had.
    pub fn divided(&self, shard_key: Option<&[&str]>) -> Result<Division> {
        self.division(division::divided(&self.stages, shard_key, &|json| self.parse_stage(json))?)
    }

    /// Divides it between the only shard that has documents and the router.
    ///
    /// # Errors
    /// None that parsing has not had.
    pub fn at_one_shard(&self) -> Result<Division> {
        self.division(division::at_one_shard(&self.stages))
    }

    /// All of it at the router.
    pub fn undivided(&self) -> Division {
        Division { at_shards: self.of(Vec::new()), order: None, merging: self.clone() }
    }

    fn division(&self, divided: Divided) -> Result<Division> {
        let divided = division::narrowed(divided, needed, &|json| self.parse_stage(json))?;
        Ok(Division { at_shards: self.of(divided.at_shards), order: divided.order, merging: self.of(divided.merging) })
    }

    /// True if of the documents nothing but their number is asked.
    pub fn only_counts(&self) -> bool {
        matches!(self.first_shape(), Some(Shape::Group(group)) if group.only_counts())
    }

    /// Runs a pipeline that [only counts](Self::only_counts) over this number of documents.
    ///
    /// # Errors
    /// Those of stages.
    pub fn run_counted<'s>(&self, count: u64, resources: &Resources) -> Result<Input<'s>> {
        let group = match self.first_shape() {
            Some(Shape::Group(group)) if count > 0 => Some(group.counted(count)?),
            _ => None,
        };
        run(self.stages.get(1..).unwrap_or_default(), Box::new(Given::new(group)), &Context::new(resources))
    }

    /// True if its first stage keeps nothing of a document but values, so that documents without other fields are of no use to it.
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
        self.run_among(input, &Resources::of_memory(memory))
    }

    /// As [`run`](Self::run), with stages that may read other collections.
    ///
    /// # Errors
    /// Those of the memory and of collections.
    pub fn run_among<'s>(&self, input: Input<'s>, resources: &Resources) -> Result<Input<'s>> {
        run(&self.stages, input, &Context::new(resources))
    }

    /// The names of the other collections that its stages read, also those of pipelines within them.
    pub fn collections(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.stages.iter().for_each(|stage| stage.operation.collections(&mut names));
        names
    }

    /// As [`run`](Self::run), and measures each stage.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn run_measured<'s>(&self, input: Input<'s>, resources: &Resources) -> Result<(Input<'s>, Measurements)> {
        measured::run(&self.stages, input, resources)
    }

    /// Its stages as explanations show them, under the names that clients know.
    pub fn shown(&self) -> Vec<Json> {
        self.stages.iter().map(|stage| table::shown(stage.operator, &stage.argument)).collect()
    }

    /// What an update's pipeline makes of a document.
    ///
    /// # Errors
    /// Those of expressions; `Location40228` if a stage makes something else than a document.
    pub(crate) fn updated<'d>(&self, document: RawObject<'d>) -> Result<Cow<'d, [u8]>> {
        let mut made: Option<Vec<u8>> = None;
        for stage in &self.stages {
            let now = made.as_deref().and_then(raw::document).unwrap_or(document);
            if let Outcome::One(Cow::Owned(bytes)) = stage.operation.apply(now)? {
                made = Some(bytes);
            }
        }
        Ok(made.map_or(Cow::Borrowed(document.bytes()), Cow::Owned))
    }
}

/// The fields at the top that stages read; None for all.
fn needed(stages: &[Stage]) -> Option<Vec<String>> {
    needed::needed(stages).map(|fields| fields.into_iter().collect())
}

fn check_length(stages: &[Json]) -> Result<()> {
    ensure!(stages.len() <= MAX_STAGES, 7749501, "Pipeline length must be no longer than {MAX_STAGES} stages.");
    Ok(())
}

/// The stages of a pipeline within a stage.
fn nested(stages: &[Json], environment: &Environment, depth: usize) -> Result<Vec<Stage>> {
    check_length(stages)?;
    let mut parsed = Vec::with_capacity(stages.len());
    parse_into(stages, environment, (Asker::Client, depth), &mut parsed)?;
    Ok(parsed)
}

/// Checks the pipeline of an update within a stage.
fn check_update(stages: &[Json], environment: &Environment) -> Result<()> {
    Pipeline::parse_update(stages, environment).map(drop)
}

fn parse_into(
    stages: &[Json],
    environment: &Environment,
    (asker, depth): (Asker, usize),
    parsed: &mut Vec<Stage>,
) -> Result<()> {
    for json in stages {
        let (operator, argument) = table::find(json, asker)?;
        match (operator.parse)(&Parser { name: operator.name, environment, depth, nested, check_update }, argument)? {
            Parsed::One(operation) => parsed.push(Stage { operator, argument: argument.clone(), operation }),
            Parsed::Many(stages) => parse_into(&stages, environment, (asker, depth), parsed)?,
        }
    }
    Ok(())
}
