//! Runs pipelines: the part of the shards, and at the router the rest, over what the shards return. Results stream: they are read
//! from the shards when a stage asks for them.

use super::config;
use super::execute::{self, Documents};
use super::fresh_map::with_fresh_map;
use super::options::{CountOptions, FindOptions};
use super::plan::Allowed;
use super::plan::pipeline::{self, PlannedPipeline};
use super::plan::search::Search;
use super::query::Query;
use super::read;
use super::rows::ShardRow;
use crate::catalog::model::Collection;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::memory::stages::SortMemory;
use crate::pg::stages;
use docshard_core::query::stage::{Memory, Pipeline};
use std::rc::Rc;

/// The documents that a pipeline makes.
pub struct Results(stages::Results);

impl Results {
    /// Of stages that all run here.
    pub fn new(documents: Documents, pipeline: &Pipeline, memory: SortMemory) -> Result<Self> {
        Self::of(documents, pipeline, &(Rc::new(memory) as Rc<dyn Memory>))
    }

    fn of(documents: Documents, pipeline: &Pipeline, memory: &Rc<dyn Memory>) -> Result<Self> {
        stages::Results::of(Source::new(documents), pipeline, memory).map(Self)
    }

    /// Returns no documents.
    pub fn none() -> Self {
        Self(stages::Results::none())
    }

    /// Returns the next document. Not to be called again after it has returned None or an error.
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        Ok(self.next_bytes()?.map(RawJsonb::from_bytes))
    }

    /// As [`next_document`](Self::next_document): its bytes, until the next call.
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
    memory: SortMemory,
) -> Result<Results> {
    let on_disk = memory.is_on_disk();
    let memory: &Rc<dyn Memory> = &(Rc::new(memory) as Rc<dyn Memory>);
    if pipeline.only_counts() {
        let count = read::count(namespace, query, &CountOptions { skip: options.skip, limit: options.limit })?;
        return stages::Results::of_count(count.unsigned_abs(), pipeline, memory).map(Results);
    }
    if config::is_of(namespace) {
        return Results::of(read::find(namespace, query, options)?, pipeline, memory);
    }
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return Results::of(Documents::of_streams(Vec::new(), 0), pipeline, memory);
        };
        let search = Search::new(&collection, query)?;
        for allowed in [Allowed::All, Allowed::Planned] {
            let planned = pipeline::plan(&search, options, (pipeline, on_disk), allowed)?;
            if let Some(documents) = documents(&collection, &planned)? {
                return Results::of(documents, &planned.division.merging, memory);
            }
        }
        Results::of(Documents::of_streams(Vec::new(), 0), pipeline, memory)
    })
}

/// What the shards return; None if one declined.
pub(super) fn documents(collection: &Collection, planned: &PlannedPipeline) -> Result<Option<Documents>> {
    let PlannedPipeline { plan, inner, .. } = planned;
    match inner {
        None => execute::documents(collection, plan),
        Some(_) => execute::in_parts(collection, plan).map(Some),
    }
}

/// The documents of shards, as stages read them.
pub(super) struct Source {
    documents: Documents,
    row: Option<ShardRow>,
}

impl Source {
    pub fn new(documents: Documents) -> Self {
        Self { documents, row: None }
    }
}

impl stages::Documents for Source {
    fn advance(&mut self) -> Result<bool> {
        self.row = self.documents.next_row()?;
        Ok(self.row.is_some())
    }

    fn bytes(&self) -> &[u8] {
        self.row.as_ref().and_then(|row| row.get(0)).unwrap_or_default()
    }
}
