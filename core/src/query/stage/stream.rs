//! Documents one after the other, and where a stage puts more of them than its memory holds.
//!
//! Streams are pulled: a stage asks the one before it for the next document only when it needs one, so nothing is read that no
//! stage asks for, and a stage that makes many documents of one makes them one by one. A document is lent, not copied, until the
//! stream moves on.

use super::rows::{Rows, RowsInMemory};
use super::sorter::{MemorySorter, Sorter};
use crate::error::{Kind, Result, error};
use crate::values::document::raw::{self, RawObject};
use std::cell::Cell;
use std::rc::Rc;

/// Documents one after the other.
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

/// What a stage reads.
pub type Input<'s> = Box<dyn Stream + 's>;

/// The document that a stream is at.
pub(super) fn document<'s>(stream: &'s Input<'_>) -> Result<RawObject<'s>> {
    raw::document(stream.bytes()).ok_or_else(|| error!(Kind::InternalError, "a stage was given no document"))
}

/// Documents that are there.
#[derive(Debug)]
pub struct Given<I: Iterator<Item = Vec<u8>>> {
    documents: I,
    current: Vec<u8>,
}

impl<I: Iterator<Item = Vec<u8>>> Given<I> {
    /// Streams jsonb documents.
    pub fn new(documents: impl IntoIterator<Item = Vec<u8>, IntoIter = I>) -> Self {
        Self { documents: documents.into_iter(), current: Vec::new() }
    }
}

impl<I: Iterator<Item = Vec<u8>>> Stream for Given<I> {
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

/// What stages that remember keep documents in.
pub trait Memory {
    /// How many bytes a stage may hold outside of sorters, about.
    fn stage_bytes(&self) -> usize;

    /// A sorter that returns the first `most` rows, or all; more than once if `again`.
    ///
    /// # Errors
    /// Those of the implementation.
    fn sorter(&self, most: Option<u64>, again: bool) -> Result<Box<dyn Sorter>>;

    /// Returns an empty list of rows that several readers can read.
    ///
    /// # Errors
    /// Those of the implementation.
    fn rows(&self) -> Result<Box<dyn Rows>>;

    /// The same memory, which sets the flag when a sorter puts rows on disk.
    fn noting(&self, used_disk: Rc<Cell<bool>>) -> Rc<dyn Memory>;
}

/// Keeps all in the process's memory.
#[derive(Clone, Copy, Debug)]
pub struct InMemory {
    /// how many bytes a stage may hold outside of sorters, about
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
