//! What a stage is: its row in the table, its argument, and what it does.

use super::fields::Fields;
use super::resources::Resources;
use super::sink::Sink;
use super::statistics::Statistics;
use super::stream::Input;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::sort::Sort;
use crate::values::document::raw::RawObject;
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A stage: `{name: argument}`.
pub struct StageOperator {
    /// such as `$match`
    pub name: &'static str,
    pub(super) parse: Parse,
    /// true if an update's pipeline may have it
    pub in_updates: bool,
    /// true if a pipeline within a stage may have it
    pub in_facets: bool,
    /// false for a stage that only pipelines divided over shards have: no client may ask for it
    pub for_clients: bool,
    /// true if it comes first: it makes the documents itself, or describes the collection
    pub begins: bool,
    /// true if it describes the collection, whose documents it does not read
    pub describes: bool,
    /// true if it writes the documents, and returns none: it comes last
    pub ends: bool,
    /// true if it makes exactly one document of each
    pub one_to_one: bool,
    /// true if what it makes of documents comes in the order of these
    pub keeps_order: bool,
    /// true if what it makes of a document depends on other documents
    pub remembers: bool,
    /// how its results at several shards become that of one
    pub merge: Merge,
}

/// How a stage is divided over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// each shard's results, together
    Union,
    /// the same stage once more, over the shards' results
    Again,
    /// each shard's results, by the keys that the stage has ordered them by, up to its limit or the one that follows
    Ordered,
    /// the shards' partial states of each group, merged
    States,
    /// it cannot be divided: it runs where all documents come together
    Undivided,
}

impl fmt::Debug for StageOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Parses the argument of a stage.
pub(super) type Parse = fn(&Parser<'_>, &Json) -> Result<Parsed>;

/// What the argument of a stage comes to.
pub(super) enum Parsed {
    /// the stage
    One(Arc<dyn Operation>),
    /// the stages that it stands for
    Many(Vec<Json>),
}

/// What parsers of arguments know.
pub(super) struct Parser<'p> {
    /// the stage's name
    pub name: &'static str,
    pub environment: &'p Environment,
    /// the number of pipelines over other collections around the stage
    pub depth: usize,
    /// parses a pipeline within a stage, at a depth
    pub nested: Nested,
    /// checks the pipeline of an update
    pub check_update: fn(&[Json], &Environment) -> Result<()>,
}

/// Parses a pipeline within a stage, at a depth.
pub(super) type Nested = fn(&[Json], &Environment, usize) -> Result<Vec<Stage>>;

/// The deepest nesting of pipelines over other collections: MongoDB's limit.
const MAX_DEPTH: usize = 20;

impl Parser<'_> {
    /// The parsed stage.
    pub fn one(operation: impl Operation + 'static) -> Result<Parsed> {
        Ok(Parsed::One(Arc::new(operation)))
    }

    /// Parses a pipeline over another collection. The code is that for a stage that writes.
    pub fn other_pipeline(&self, stages: &[Json], environment: &Environment, writes: i32) -> Result<Vec<Stage>> {
        ensure!(
            self.depth < MAX_DEPTH,
            Kind::MaxSubPipelineDepthExceeded,
            "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_DEPTH}"
        );
        let parsed = (self.nested)(stages, environment, self.depth + 1)?;
        if let Some(stage) = parsed.iter().find(|stage| stage.operator.ends) {
            bail!(writes, "{} is not allowed within a {}'s sub-pipeline", stage.operator.name, self.name);
        }
        check_first(&parsed)?;
        Ok(parsed)
    }

    /// The name of another collection in `from`; None if it is not given.
    pub fn other_collection<'j>(&self, from: Option<&'j Json>) -> Result<Option<&'j str>> {
        let stage = self.name;
        match from {
            None => Ok(None),
            Some(Json::String(name)) => Ok(Some(name)),
            Some(other @ Json::Object(_)) => bail!(
                Kind::FailedToParse,
                "{stage} with syntax {{from: {{db:<>, coll:<>}}}} is not supported for: {other}"
            ),
            Some(other) => bail!(Kind::FailedToParse, "{stage} 'from' field must be a string, but found: {other}"),
        }
    }

    /// Checks the name of another collection; `begins`: the pipeline over it makes its documents itself.
    pub fn check_other(&self, name: &str, begins: bool) -> Result<()> {
        let stage = self.name;
        ensure!(!name.is_empty(), Kind::InvalidNamespace, "{stage}: the name of a collection cannot be empty");
        ensure!(!begins, Kind::InvalidNamespace, "{stage}: a pipeline that makes its documents has no collection");
        Ok(())
    }

    /// The fields of an argument that must be an object of known names; the codes are those for what is none, and for an unknown
    /// name.
    pub fn named<'j>(
        &self,
        argument: &'j Json,
        known: &[&str],
        codes: [impl Into<Kind>; 2],
    ) -> Result<&'j Map<String, Json>> {
        let [wrong_type, unknown] = codes;
        let name = self.name;
        let Json::Object(fields) = argument else {
            return Err(error!(wrong_type, "the argument of {name} must be an object, but found: {argument}"));
        };
        match fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(error!(unknown, "Unrecognized option to {name}: {field}")),
            None => Ok(fields),
        }
    }
}

/// A stage of a pipeline.
#[derive(Clone, Debug)]
pub struct Stage {
    pub(super) operator: &'static StageOperator,
    pub(super) argument: Json,
    pub(super) operation: Arc<dyn Operation>,
}

impl Stage {
    /// The stage as it was written: `{name: argument}`.
    pub fn to_json(&self) -> Json {
        Json::Object([(self.operator.name.to_owned(), self.argument.clone())].into_iter().collect())
    }

    /// The table's row.
    pub fn operator(&self) -> &'static StageOperator {
        self.operator
    }

    /// Which fields it reads and writes.
    pub fn fields(&self) -> Fields {
        self.operation.fields()
    }
}

/// Parses a stage.
pub(super) type ParseStage<'p> = &'p dyn Fn(&Json) -> Result<Stage>;

/// Checks that a stage which begins a pipeline comes first.
pub(super) fn check_first(stages: &[Stage]) -> Result<()> {
    match stages.iter().skip(1).find(|stage| stage.operator.begins) {
        Some(stage) => bail!(40602, "{} is only valid as the first stage in a pipeline", stage.operator.name),
        None => Ok(()),
    }
}

/// What stages that run are given.
#[derive(Clone)]
pub(super) struct Context {
    pub resources: Resources,
    /// how many documents the stages after this one read at most
    pub most: Option<u64>,
    /// how to unwind the array that the stage makes: the `$unwind` behind it is part of it
    pub unwound: Option<Unwound>,
}

impl Context {
    /// That of a stage about which nothing is known.
    pub fn new(resources: &Resources) -> Context {
        Context { resources: resources.clone(), most: None, unwound: None }
    }
}

/// The options of `$unwind`.
#[derive(Clone, Debug)]
pub(super) struct Unwound {
    /// where the element's position goes
    pub index: Option<String>,
    /// true if a document without elements is kept
    pub preserves: bool,
}

/// What becomes of one document.
pub(super) enum Outcome<'d> {
    /// this document
    One(Cow<'d, [u8]>),
    /// no document
    Dropped,
}

/// What a stage does.
pub(super) trait Operation: fmt::Debug + Send + Sync {
    /// Which fields it reads and writes.
    fn fields(&self) -> Fields;

    /// Begins to run over documents.
    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>>;

    /// What becomes of one document. Only of stages that updates may have.
    fn apply<'d>(&self, document: RawObject<'d>) -> Result<Outcome<'d>> {
        Ok(Outcome::One(Cow::Borrowed(document.bytes())))
    }

    /// True if it reads or writes other collections: then it does not run at a shard, even if one shard has all documents.
    fn needs_router(&self) -> bool {
        false
    }

    /// Adds the names of other collections that it reads.
    fn collections(&self, _: &mut BTreeSet<String>) {}

    /// The path of the array that it makes, if it can [unwind](Context::unwound) that itself.
    fn unwinds(&self) -> Option<&str> {
        None
    }

    /// What rearranging stages depends on.
    fn shape(&self) -> Shape<'_> {
        Shape::Other
    }
}

/// Stages that can be rearranged, or divided.
#[derive(Debug)]
pub(super) enum Shape<'o> {
    Match,
    Limit(u64),
    Skip(u64),
    Sort(&'o Sort),
    Sample(u64),
    Group(&'o dyn Grouping),
    Partitions(&'o dyn Partitioning),
    Sink(&'o Sink),
    Unwind(&'o str, &'o Unwound),
    /// puts the results of a pipeline over another collection at this path
    Lookup(&'o str),
    /// adds the results of a pipeline over another collection; true if its last stage leaves fields that it does not name
    Union(bool),
    Statistics(&'o Statistics),
    Other,
}

/// What there is to know about a stage that looks at the documents of one group, or partition, at a time.
pub(super) trait Partitioning: fmt::Debug {
    /// True if documents of one group have equal values at each of these paths.
    fn is_within(&self, paths: &[&str]) -> bool;
}

/// What there is to know about a stage that makes one document of a group.
pub(super) trait Grouping: Partitioning {
    /// True if the stage makes a single group, and needs only the number of documents.
    fn only_counts(&self) -> bool;

    /// What a stage that [only counts](Self::only_counts) makes of this number of documents, which is not 0.
    ///
    /// # Errors
    /// Those of accumulators.
    fn counted(&self, count: u64) -> Result<Vec<u8>>;
}

/// How many documents these stages read at most.
pub(super) fn most_before(stages: &[Stage]) -> Option<u64> {
    match stages.first().map(|next| next.operation.shape()) {
        Some(Shape::Limit(most)) => Some(most),
        _ => None,
    }
}

/// Runs stages over documents.
pub(super) fn run<'s>(stages: &[Stage], mut input: Input<'s>, context: &Context) -> Result<Input<'s>> {
    let mut rest = stages;
    while let [stage, after @ ..] = rest {
        rest = after;
        let mut unwound = None;
        if let ([next, after @ ..], Some(made)) = (rest, stage.operation.unwinds())
            && let Shape::Unwind(path, options) = next.operation.shape()
            && path == made
        {
            unwound = Some(options.clone());
            rest = after;
        }
        let context = Context { most: most_before(rest), unwound, ..context.clone() };
        input = Arc::clone(&stage.operation).begin(input, &context)?;
    }
    Ok(input)
}
