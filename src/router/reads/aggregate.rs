//! Runs pipelines. The shards run their part, and the router runs the rest over their results. Results stream: the router reads
//! them from the shards when a stage asks for them.

use super::find;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::memory::stages::StageMemory;
use crate::pg::stages;
use crate::router::execute::{self, Documents};
use crate::router::rows::ShardRow;
use crate::router::source;
use docshard_core::query::stage::{Collections, Input, Memory, Pipeline, Resources};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::Read;
use docshard_core::routing::plan::pipeline::{self, PlannedPipeline};
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use std::rc::Rc;

/// What the pipelines of a statement share: the memory of the stages, and the access to other collections.
#[derive(Clone)]
pub struct Execution {
    pub resources: Resources,
    /// true: stages may use temporary files; false: more than MongoDB's limit of memory is an error
    pub may_use_disk: bool,
}

impl Execution {
    /// Creates the memory of the stages. `may_use_disk`: see the field.
    pub fn new(may_use_disk: bool, collections: Rc<dyn Collections>) -> Self {
        let memory: Rc<dyn Memory> = Rc::new(StageMemory::new(may_use_disk));
        Self { resources: Resources { memory, collections }, may_use_disk }
    }
}

/// The results of a pipeline at the router.
pub struct Results(stages::StageResults);

impl Results {
    /// Runs stages over the documents of a find, or over the shards' results.
    pub fn over(documents: Documents, pipeline: &Pipeline, execution: &Execution) -> Result<Self> {
        stages::StageResults::with_resources(ShardDocuments::new(documents), pipeline, &execution.resources).map(Self)
    }

    /// Runs further stages over the results.
    pub fn then(self, pipeline: &Pipeline, execution: &Execution) -> Result<Self> {
        self.0.then(pipeline, &execution.resources).map(Self)
    }

    /// Returns the results as the input of another pipeline.
    pub fn into_stream(self) -> Input<'static> {
        self.0.into_stream()
    }

    /// Runs stages over documents in memory.
    pub fn over_documents(documents: Vec<Vec<u8>>, pipeline: &Pipeline, execution: &Execution) -> Result<Self> {
        stages::StageResults::over_documents(documents, pipeline, &execution.resources).map(Self)
    }

    /// Returns these documents.
    pub fn of(documents: Vec<Vec<u8>>) -> Self {
        Self(stages::StageResults::of(documents))
    }

    /// Returns the next document. Not to be called again after it has returned None or an error.
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        Ok(self.next_bytes()?.map(RawJsonb::from_bytes))
    }

    /// Returns the bytes of the next document, which are valid until the next call. See [`next_document`](Self::next_document).
    pub fn next_bytes(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.advance()?.then(|| self.0.bytes()))
    }
}

/// Runs a pipeline over the documents of a find.
pub fn aggregate(
    namespace: &str,
    query: &Query,
    options: &FindOptions,
    pipeline: &Pipeline,
    execution: &Execution,
) -> Result<Results> {
    let Execution { resources, may_use_disk } = execution;
    let sampled = (query, "aggregate");
    if pipeline.stages().is_empty() {
        return Results::over(source::read_as(namespace, sampled, Read::Find(options))?, pipeline, execution);
    }
    if pipeline.only_counts() {
        let options = CountOptions { skip: options.skip, limit: options.limit };
        let count = find::limited(source::read_as(namespace, sampled, Read::Count(&options))?, &options)?;
        return stages::StageResults::of_count(count.unsigned_abs(), pipeline, resources).map(Results);
    }
    source::answer(
        namespace,
        sampled,
        |search, allowed| {
            let planned = pipeline::plan(search, options, (pipeline, *may_use_disk), allowed)?;
            let results = |documents| Results::over(documents, &planned.division.merging, execution);
            documents(search.collection, &planned)?.map(results).transpose()
        },
        |source| Results::over(source.without_shards(query, Read::Find(options))?, pipeline, execution),
    )
}

/// Sends the plan to the shards and returns their results; None if a shard declined.
fn documents(collection: &Collection, planned: &PlannedPipeline) -> Result<Option<Documents>> {
    let PlannedPipeline { plan, inner, .. } = planned;
    match inner {
        None => execute::documents(collection, plan),
        Some(_) => execute::in_parts(collection, plan).map(Some),
    }
}

/// Adapts the documents of shards to the input of stages.
struct ShardDocuments {
    documents: Documents,
    row: Option<ShardRow>,
}

impl ShardDocuments {
    pub fn new(documents: Documents) -> Self {
        Self { documents, row: None }
    }
}

impl stages::DocumentSource for ShardDocuments {
    fn advance(&mut self) -> Result<bool> {
        self.row = self.documents.next_row()?;
        Ok(self.row.is_some())
    }

    fn bytes(&self) -> &[u8] {
        self.row.as_ref().map_or(&[], |row| row.bytes(0))
    }
}
