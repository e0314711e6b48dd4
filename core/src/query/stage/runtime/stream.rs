//! Streams of documents between stages, and the traits of the storage in which stages keep documents.
//!
//! Streams are pulled: a stage asks the one before it for the next document only when it needs one. So no document is read or made
//! that no stage asks for. A document is borrowed, not copied, and is valid until the stream advances.

use super::rows::{Rows, RowsInMemory};
use super::sorter::{MemorySorter, Sorter};
use crate::error::{Kind, Result, error};
use crate::values::document::raw::{self, RawObject};
use std::cell::Cell;
use std::rc::Rc;

/// A stream of documents.
pub trait Stream {
    /// Moves on to the next document; false if there is none. It is not called again after that, nor after an error.
    ///
    /// # Errors
    /// Those of the source and of the stages.
    fn advance(&mut self) -> Result<bool>;

    /// The document's jsonb, after [`advance`](Self::advance) has returned true.
    fn bytes(&self) -> &[u8];

    /// The key by which a stage has ordered the documents; empty if none has.
    fn key(&self) -> &[u8] {
        &[]
    }
}

/// The input of a stage.
pub type Input<'s> = Box<dyn Stream + 's>;

/// The document that a stream is at.
pub(in crate::query::stage) fn document<'s>(stream: &'s Input<'_>) -> Result<RawObject<'s>> {
    object(stream.bytes())
}

/// Reads a document that a stage was given.
pub(in crate::query::stage) fn object(bytes: &[u8]) -> Result<RawObject<'_>> {
    raw::document(bytes).ok_or_else(|| error!(Kind::InternalError, "the input of a stage is not a document"))
}

/// A stream over documents from an iterator.
#[derive(Debug)]
pub struct IterStream<I: Iterator<Item = Vec<u8>>> {
    documents: I,
    current: Vec<u8>,
}

impl<I: Iterator<Item = Vec<u8>>> IterStream<I> {
    /// Streams jsonb documents.
    pub fn new(documents: impl IntoIterator<Item = Vec<u8>, IntoIter = I>) -> Self {
        Self { documents: documents.into_iter(), current: Vec::new() }
    }
}

impl<I: Iterator<Item = Vec<u8>>> Stream for IterStream<I> {
    fn advance(&mut self) -> Result<bool> {
        let next = self.documents.next();
        let more = next.is_some();
        self.current = next.unwrap_or_default();
        Ok(more)
    }

    fn bytes(&self) -> &[u8] {
        &self.current
    }
}

/// The storage of stages that keep documents.
pub trait Memory {
    /// The approximate number of bytes that a stage may hold besides its sorters and rows.
    fn stage_bytes(&self) -> usize;

    /// Returns whether a hash table of that many bytes must be written to a sorter.
    ///
    /// # Errors
    /// `QueryExceededMemoryLimitNoDiskUseAllowed` if it must, but temporary files are not allowed.
    fn must_spill(&self, bytes: usize) -> Result<bool> {
        Ok(bytes > self.stage_bytes())
    }

    /// Returns a sorter for the first `most` rows, or all. If `rereadable`, its rows can be read several times.
    ///
    /// # Errors
    /// Those of the implementation.
    fn sorter(&self, most: Option<u64>, rereadable: bool) -> Result<Box<dyn Sorter>>;

    /// Returns an empty list of rows that several readers can read.
    ///
    /// # Errors
    /// Those of the implementation.
    fn rows(&self) -> Result<Box<dyn Rows>>;

    /// Returns the same memory, which sets `used_disk` when a sorter or rows write to disk.
    fn noting(&self, used_disk: Rc<Cell<bool>>) -> Rc<dyn Memory>;
}

/// Storage in the process's memory, for tests.
#[derive(Clone, Copy, Debug)]
pub struct InMemory {
    /// see [`Memory::stage_bytes`]
    pub stage_bytes: usize,
}

impl Memory for InMemory {
    fn noting(&self, _: Rc<Cell<bool>>) -> Rc<dyn Memory> {
        Rc::new(*self)
    }

    fn stage_bytes(&self) -> usize {
        self.stage_bytes
    }

    fn sorter(&self, most: Option<u64>, _: bool) -> Result<Box<dyn Sorter>> {
        Ok(Box::new(MemorySorter::new(most)))
    }

    fn rows(&self) -> Result<Box<dyn Rows>> {
        Ok(Box::new(RowsInMemory::default()))
    }
}
