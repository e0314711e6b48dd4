//! Runs the stages of a pipeline over documents that this process reads.

use docshard_core::error::Result;
use docshard_core::query::stage::{Input, IterStream, Measurements, Memory, Pipeline, Resources, Stream};
use std::rc::Rc;

/// A source of documents for stages.
pub trait DocumentSource {
    /// Advances to the next document; false if there is none. Not called again after false or an error.
    fn advance(&mut self) -> Result<bool>;

    /// The document's jsonb.
    fn bytes(&self) -> &[u8];

    /// The sort key by which the router merges the document with those of other shards; empty if the documents are in no order.
    fn key(&self) -> &[u8] {
        &[]
    }
}

impl DocumentSource for Box<dyn DocumentSource> {
    fn advance(&mut self) -> Result<bool> {
        (**self).advance()
    }

    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn key(&self) -> &[u8] {
        (**self).key()
    }
}

/// A source without documents.
impl DocumentSource for () {
    fn advance(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// The results of stages.
pub struct StageResults(Input<'static>);

struct Source<D>(D);

impl<D: DocumentSource> Stream for Source<D> {
    fn advance(&mut self) -> Result<bool> {
        self.0.advance()
    }

    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn key(&self) -> &[u8] {
        self.0.key()
    }
}

impl StageResults {
    /// Runs stages over documents in memory.
    pub fn over_documents(documents: Vec<Vec<u8>>, pipeline: &Pipeline, resources: &Resources) -> Result<Self> {
        Ok(Self(pipeline.run_with(Box::new(IterStream::new(documents)), resources)?))
    }

    /// Returns these documents.
    pub fn of(documents: Vec<Vec<u8>>) -> Self {
        Self(Box::new(IterStream::new(documents)))
    }

    /// Runs stages that read no other collections.
    pub fn over(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        memory: &Rc<dyn Memory>,
    ) -> Result<Self> {
        Self::with_resources(documents, pipeline, &Resources::of_memory(memory))
    }

    /// Runs stages that may read other collections.
    pub fn with_resources(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        resources: &Resources,
    ) -> Result<Self> {
        Ok(Self(pipeline.run_with(Box::new(Source(documents)), resources)?))
    }

    /// Like [`with_resources`](Self::with_resources), and measures each stage.
    pub fn measured(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        resources: &Resources,
    ) -> Result<(Self, Measurements)> {
        let (stream, measurements) = pipeline.run_measured(Box::new(Source(documents)), resources)?;
        Ok((Self(stream), measurements))
    }

    /// Runs a pipeline that only counts its input documents. `count` is their number.
    pub fn of_count(count: u64, pipeline: &Pipeline, resources: &Resources) -> Result<Self> {
        Ok(Self(pipeline.run_counted(count, resources)?))
    }

    /// Runs further stages over the results.
    pub fn then(self, pipeline: &Pipeline, resources: &Resources) -> Result<Self> {
        Ok(Self(pipeline.run_with(self.0, resources)?))
    }

    /// Returns the results as the input of another pipeline.
    pub fn into_stream(self) -> Input<'static> {
        self.0
    }

    /// Advances to the next result; false if there is none. Must not be called again after false or an error.
    pub fn advance(&mut self) -> Result<bool> {
        self.0.advance()
    }

    /// The result's jsonb.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The sort key by which the results are ordered; empty if they are in no order.
    pub fn key(&self) -> &[u8] {
        self.0.key()
    }
}
