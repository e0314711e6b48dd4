//! Runs the stages of a pipeline over the documents of a find. They stream: a document is read from the shards when a stage asks for
//! it.

use super::execute::Documents;
use super::rows::ShardRow;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Error as CoreError, Kind, Result as CoreResult};
use docshard_core::query::stage::{Input, Memory, Pipeline, Stream};
use std::cell::RefCell;
use std::rc::Rc;

/// The documents that a pipeline makes.
pub struct Results {
    stream: Input<'static>,
    failure: Failure,
}

/// What reading has failed with: an error of another server says more than core's errors can.
type Failure = Rc<RefCell<Option<Error>>>;

impl Results {
    pub fn new(documents: Documents, pipeline: &Pipeline, memory: impl Memory + 'static) -> Result<Self> {
        let failure = Failure::default();
        let source = Source { documents, row: None, failure: Rc::clone(&failure) };
        let memory: Rc<dyn Memory> = Rc::new(memory);
        Ok(Self { stream: pipeline.run(Box::new(source), &memory)?, failure })
    }

    /// Returns the next document. Not to be called again after it has returned None or an error.
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        match self.stream.advance() {
            Ok(true) => Ok(Some(RawJsonb::from_bytes(self.stream.bytes()))),
            Ok(false) => Ok(None),
            Err(error) => Err(self.failure.take().unwrap_or_else(|| error.into())),
        }
    }
}

/// The documents of a find, as stages read them.
struct Source {
    documents: Documents,
    row: Option<ShardRow>,
    failure: Failure,
}

impl Stream for Source {
    fn advance(&mut self) -> CoreResult<bool> {
        match self.documents.next_row() {
            Ok(row) => self.row = row,
            Err(error) => {
                let message = error.message.clone();
                self.failure.replace(Some(error));
                return Err(CoreError::new(Kind::UnknownError, message));
            }
        }
        Ok(self.row.is_some())
    }

    fn bytes(&self) -> &[u8] {
        self.row.as_ref().and_then(|row| row.get(0)).unwrap_or_default()
    }
}
