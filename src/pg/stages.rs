//! Runs the stages of a pipeline over documents that this process reads.
//!
//! Stages are in `docshard_core`, whose error type cannot hold all parts of a PostgreSQL error, such as a remote SQLSTATE. So an
//! error of the source is kept in a [`Failure`], and the caller gets that.

use crate::pg::error::{Error, Result};
use docshard_core::error::{Error as CoreError, Kind, Result as CoreResult};
use docshard_core::query::stage::{Input, IterStream, Measurements, Memory, Pipeline, Resources, Stream};
use std::cell::RefCell;
use std::rc::Rc;

/// A source of documents for stages.
pub trait DocumentSource {
    /// Moves on to the next document; false if there is none. Not called again after that, nor after an error.
    fn advance(&mut self) -> Result<bool>;

    /// The document's jsonb.
    fn bytes(&self) -> &[u8];

    /// The key by which the document is merged; empty if there is none.
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
pub struct StageResults {
    stream: Input<'static>,
    failure: Failure,
}

/// The error with which reading has failed, shared by a pipeline and its inner pipelines.
#[derive(Clone, Debug, Default)]
pub struct Failure(Rc<RefCell<Option<Error>>>);

impl Failure {
    /// Keeps an error, and returns a core error that stands for it.
    pub fn keep(&self, error: Error) -> CoreError {
        let message = error.message.clone();
        self.0.replace(Some(error));
        CoreError::new(Kind::UnknownError, message)
    }
}

struct Source<D> {
    documents: D,
    failure: Failure,
}

impl<D: DocumentSource> Stream for Source<D> {
    fn advance(&mut self) -> CoreResult<bool> {
        self.documents.advance().map_err(|error| self.failure.keep(error))
    }

    fn bytes(&self) -> &[u8] {
        self.documents.bytes()
    }

    fn key(&self) -> &[u8] {
        self.documents.key()
    }
}

impl StageResults {
    /// Runs stages over documents in memory.
    pub fn over_documents(
        documents: Vec<Vec<u8>>,
        pipeline: &Pipeline,
        resources: &Resources,
        failure: Failure,
    ) -> Result<Self> {
        Ok(Self { stream: pipeline.run_with(Box::new(IterStream::new(documents)), resources)?, failure })
    }

    /// Returns these documents.
    pub fn of(documents: Vec<Vec<u8>>) -> Self {
        Self { stream: Box::new(IterStream::new(documents)), failure: Failure::default() }
    }

    /// Runs stages that read no other collections.
    pub fn over(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        memory: &Rc<dyn Memory>,
    ) -> Result<Self> {
        Self::with_resources(documents, pipeline, &Resources::of_memory(memory), Failure::default())
    }

    /// Runs stages that may read other collections, whose errors are kept in the same [`Failure`].
    pub fn with_resources(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        resources: &Resources,
        failure: Failure,
    ) -> Result<Self> {
        let source = Source { documents, failure: failure.clone() };
        Ok(Self { stream: pipeline.run_with(Box::new(source), resources)?, failure })
    }

    /// As [`with_resources`](Self::with_resources), and measures each stage.
    pub fn measured(
        documents: impl DocumentSource + 'static,
        pipeline: &Pipeline,
        resources: &Resources,
        failure: Failure,
    ) -> Result<(Self, Measurements)> {
        let source = Source { documents, failure: failure.clone() };
        let (stream, measurements) = pipeline.run_measured(Box::new(source), resources)?;
        Ok((Self { stream, failure }, measurements))
    }

    /// Runs a pipeline that only counts its input documents. `count` is their number.
    pub fn of_count(count: u64, pipeline: &Pipeline, resources: &Resources, failure: Failure) -> Result<Self> {
        Ok(Self { stream: pipeline.run_counted(count, resources)?, failure })
    }

    /// Returns the results as the input of another pipeline, which must have the same [`Failure`].
    pub fn into_stream(self) -> Input<'static> {
        self.stream
    }

    /// Moves on to the next result; false if there is none. Not to be called again after that, nor after an error.
    pub fn advance(&mut self) -> Result<bool> {
        self.stream.advance().map_err(|error| self.failure.0.take().unwrap_or_else(|| error.into()))
    }

    /// The result's jsonb.
    pub fn bytes(&self) -> &[u8] {
        self.stream.bytes()
    }

    /// The key by which the results are in order; empty if they are in none.
    pub fn key(&self) -> &[u8] {
        self.stream.key()
    }
}
