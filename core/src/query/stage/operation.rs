//! The types of a stage: its row in the table, its parsed argument, and the trait of its operation.

use super::fields::Fields;
use super::runtime::resources::Resources;
use super::runtime::sink::Sink;
use super::runtime::statistics::Statistics;
use super::runtime::stream::Input;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use crate::query::sort::Sort;
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A row of the table of stages: the name of a stage, its parser, and its properties.
pub struct StageOperator {
    /// such as `$match`
    pub name: &'static str,
    pub(super) parse: Parse,
    /// true if an update's pipeline may have it
    pub in_updates: bool,
    /// true if a pipeline of `$facet` may have it
    pub in_facets: bool,
    /// true if only the division of a pipeline makes it; clients may not use it
    pub is_internal: bool,
    /// true if it must come first: it makes the documents itself, or returns statistics
    pub comes_first: bool,
    /// true if it returns statistics of the collection or the cluster, and reads no documents
    pub reads_statistics: bool,
    /// true if it must come last: it writes the documents and returns none
    pub writes: bool,
    /// true if it returns exactly one document for each input document
    pub one_to_one: bool,
    /// true if its results are in the order of the input documents
    pub keeps_order: bool,
    /// true unless each result comes from one input document and does not depend on the others
    pub is_stateful: bool,
    /// how its results at several shards are merged
    pub merge: Merge,
}

/// How a stage is divided over shards, and what merges the shards' results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// each shard runs the stage; the results are concatenated
    Union,
    /// each shard runs the stage, and the router runs it again over their results
    Repeated,
    /// each shard runs the stage, and a `$limit` that follows a `$sort`; the router merges the results by the keys of the stage's order
    Ordered,
    /// each shard computes partial states of the groups, and the router merges them
    States,
    /// only the router runs the stage, over all documents
    Undivided,
}

impl StageOperator {
    /// True for a first stage that makes documents, so that its pipeline reads no collection.
    pub(super) fn makes_documents(&self) -> bool {
        self.comes_first && !self.reads_statistics
    }
}

impl fmt::Debug for StageOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Parses the argument of a stage.
pub(super) type Parse = fn(&Parser<'_>, &Json) -> Result<Parsed>;

/// The result of parsing a stage's argument.
pub(super) enum Parsed {
    /// the stage
    One(Arc<dyn Operation>),
    /// the stages that replace it
    Many(Vec<Json>),
}

/// The context in which a stage's argument is parsed.
pub(super) struct Parser<'p> {
    /// the stage's name
    pub name: &'static str,
    pub environment: &'p Environment,
    /// the number of enclosing pipelines over other collections
    pub depth: usize,
    /// parses the pipeline in a stage's argument
    pub nested: Nested,
    /// checks the pipeline of an update
    pub check_update: fn(&[Json], &Environment) -> Result<()>,
}

/// Parses the pipeline in a stage's argument; the last parameter is its depth.
pub(super) type Nested = fn(&[Json], &Environment, usize) -> Result<Vec<Stage>>;

/// The deepest nesting of pipelines over other collections: MongoDB's limit.
const MAX_DEPTH: usize = 20;

impl Parser<'_> {
    /// The parsed stage.
    pub fn one(operation: impl Operation + 'static) -> Result<Parsed> {
        Ok(Parsed::One(Arc::new(operation)))
    }

    /// Parses a pipeline over another collection. `write_code`: the error if it has a stage that writes.
    pub fn other_pipeline(&self, stages: &[Json], environment: &Environment, write_code: i32) -> Result<Vec<Stage>> {
        ensure!(
            self.depth < MAX_DEPTH,
            Kind::MaxSubPipelineDepthExceeded,
            "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_DEPTH}"
        );
        let parsed = (self.nested)(stages, environment, self.depth + 1)?;
        if let Some(stage) = parsed.iter().find(|stage| stage.operator.writes) {
            bail!(write_code, "{} is not allowed within a {}'s sub-pipeline", stage.operator.name, self.name);
        }
        check_first(&parsed)?;
        Ok(parsed)
    }

    /// Reads the argument `from`; None if it is missing.
    pub fn other_collection<'j>(&self, from: Option<&'j Json>) -> Result<Option<&'j str>> {
        let stage = self.name;
        match from {
            None => Ok(None),
            Some(Json::String(name)) => Ok(Some(name)),
            Some(other @ Json::Object(fields)) if ext_json::is_document(fields) => {
                for (name, value) in fields {
                    ensure!(
                        ["db", "coll"].contains(&name.as_str()),
                        Kind::UnknownOption,
                        "BSON field '{stage}.from.{name}' is an unknown field."
                    );
                    ensure!(value.is_string(), Kind::TypeMismatch, "'{stage}.from.{name}' must be a string");
                }
                bail!(
                    Kind::FailedToParse,
                    "{stage} with syntax {{from: {{db:<>, coll:<>}}}} is not supported for: {other}"
                )
            }
            Some(other) => bail!(Kind::FailedToParse, "{stage} 'from' field must be a string, but found: {other}"),
        }
    }

    /// Checks the name of another collection. `makes_documents`: the pipeline begins with a stage that makes documents.
    pub fn check_other(&self, name: &str, makes_documents: bool) -> Result<()> {
        let stage = self.name;
        ensure!(!name.is_empty(), Kind::InvalidNamespace, "{stage}: the name of a collection cannot be empty");
        ensure!(
            !makes_documents,
            Kind::InvalidNamespace,
            "{stage}: the pipeline begins with a stage that reads no collection, so it has no 'from' or 'coll'"
        );
        Ok(())
    }

    /// Returns the fields of an argument. `codes`: the errors if it is not an object, and if a field is not among the known
    /// ones.
    pub fn named<'j>(
        &self,
        argument: &'j Json,
        known: &[&str],
        codes: [impl Into<Kind>; 2],
    ) -> Result<&'j Map<String, Json>> {
        let [wrong_type, unknown] = codes;
        let name = self.name;
        let Some(fields) = ext_json::document(argument) else {
            return Err(error!(wrong_type, "the argument of {name} must be an object, but found: {argument}"));
        };
        match fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(error!(unknown, "Unrecognized option to {name}: {field}")),
            None => Ok(fields),
        }
    }
}

/// An optional argument of a stage; null counts as missing.
pub(super) fn given<'j>(fields: &'j Map<String, Json>, name: &str) -> Option<&'j Json> {
    fields.get(name).filter(|argument| !argument.is_null())
}

/// A stage of a pipeline.
#[derive(Clone, Debug)]
pub struct Stage {
    pub(super) operator: &'static StageOperator,
    pub(super) argument: Arc<Json>,
    pub(super) operation: Arc<dyn Operation>,
}

impl Stage {
    /// The stage as it was written: `{name: argument}`.
    pub fn to_json(&self) -> Json {
        Json::Object([(self.operator.name.to_owned(), Json::clone(&self.argument))].into_iter().collect())
    }

    /// The table's row.
    pub fn operator(&self) -> &'static StageOperator {
        self.operator
    }

    /// Which fields it reads and writes.
    pub fn fields(&self) -> Fields {
        self.operation.fields()
    }

    /// True if a pipeline of `$facet` may have it.
    pub(super) fn in_facets(&self) -> bool {
        self.operator.in_facets && self.operation.in_facets()
    }
}

/// Parses a stage.
pub(super) type ParseStage<'p> = &'p dyn Fn(&Json) -> Result<Stage>;

/// Checks that a stage which begins a pipeline comes first.
pub(super) fn check_first(stages: &[Stage]) -> Result<()> {
    match stages.iter().skip(1).find(|stage| stage.operator.comes_first) {
        Some(stage) => bail!(40602, "{} is only valid as the first stage in a pipeline", stage.operator.name),
        None => Ok(()),
    }
}

/// The context in which a stage runs.
#[derive(Clone)]
pub(super) struct Context {
    pub resources: Resources,
    /// the largest number of documents that the next stages read; None if unknown
    pub most: Option<u64>,
    /// the options of a following `$unwind` of the array that the stage adds: the stage then unwinds the array, too. None if no such
    /// `$unwind` follows
    pub unwound: Option<Unwound>,
}

impl Context {
    /// Returns the context of a stage whose following stages are unknown.
    pub fn new(resources: &Resources) -> Context {
        Context { resources: resources.clone(), most: None, unwound: None }
    }
}

/// The options of `$unwind`.
#[derive(Clone, Debug)]
pub(super) struct Unwound {
    /// the path for the element's position
    pub index: Option<String>,
    /// true if a document without elements is kept
    pub preserves: bool,
}

/// The result of a stage for one document.
pub(super) enum StageOutcome<'d> {
    /// this document
    One(Cow<'d, [u8]>),
    /// no document
    Dropped,
}

/// The operation of a stage.
pub(super) trait Operation: fmt::Debug + Send + Sync {
    /// Which fields it reads and writes.
    fn fields(&self) -> Fields;

    /// Begins to run over documents.
    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>>;

    /// Returns the result for one document. Every stage that an update may have implements it.
    fn apply<'d>(&self, document: RawObject<'d>) -> Result<StageOutcome<'d>> {
        Ok(StageOutcome::One(Cow::Borrowed(document.bytes())))
    }

    /// True if the stage reads or writes other collections. It then runs at the router, even if one shard has all documents.
    fn needs_router(&self) -> bool {
        false
    }

    /// Adds the names of other collections that it reads.
    fn collections(&self, _: &mut BTreeSet<String>) {}

    /// False if the stage has a pipeline with a stage that `$facet` forbids, so that `$facet` forbids this stage, too.
    fn in_facets(&self) -> bool {
        true
    }

    /// Returns the path of the array that the stage adds, if the stage can also [unwind](Context::unwound) the array.
    fn unwinds(&self) -> Option<&str> {
        None
    }

    /// Returns what rearranging and dividing need to know about the stage.
    fn shape(&self) -> Shape<'_> {
        Shape::Other
    }
}

/// What rearranging and dividing need to know about a stage.
#[derive(Debug)]
pub(super) enum Shape<'o> {
    Match(&'o Arc<Filter>),
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
    /// adds the results of a pipeline over another collection; true if the results may have fields that the last stage of that pipeline
    /// does not name
    Union(bool),
    Statistics(&'o Statistics),
    Other,
}

/// The properties of a stage that processes each group or partition independently.
pub(super) trait Partitioning: fmt::Debug {
    /// True if all documents of a group or partition have equal values at each of these paths.
    fn determines(&self, paths: &[&str]) -> bool;
}

/// The properties of a stage that returns one document for each group.
pub(super) trait Grouping: Partitioning {
    /// True if the stage has a single group, whose result depends only on the number of documents.
    fn only_counts(&self) -> bool;

    /// Returns the result of a stage that [only counts](Self::only_counts) for this number of documents, which is not 0.
    ///
    /// # Errors
    /// Those of accumulators.
    fn counted(&self, count: u64) -> Result<Vec<u8>>;
}

/// Returns the largest number of documents that these stages read; None if it is not limited.
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
