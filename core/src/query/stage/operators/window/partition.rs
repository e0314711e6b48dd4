//! Reads sorted documents partition by partition.
//!
//! A document is added to [`Rows`] when the first reader reads it, and removed when the last reader has read it. So memory holds
//! only the documents between the readers.

use crate::budget;
use crate::error::{Kind, Result, error};
use crate::query::stage::runtime::rows::Rows;
use crate::query::stage::runtime::sorted_partitions::{PartitionOrder, SortedPartitions};
use crate::query::stage::runtime::stream::{Input, Memory};
use crate::values::document::raw::{self, RawObject};
use std::sync::Arc;

/// The documents of the present partition.
pub(super) struct Partition<'s> {
    source: SortedPartitions<'s>,
    /// true if the source has advanced to the first document of the next partition
    is_next: bool,
    /// true if the source has no further document
    ended: bool,
    key: Vec<u8>,
    rows: Box<dyn Rows>,
    /// the number of documents added to the rows
    count: u64,
    /// true if all documents of the partition have been added
    complete: bool,
}

/// A reader's position in the present partition.
#[derive(Debug)]
pub(super) struct Reader {
    id: usize,
    /// the number of documents it has read
    pub next: u64,
}

impl<'s> Partition<'s> {
    pub fn new(order: Arc<PartitionOrder>, input: Input<'s>, memory: &dyn Memory) -> Result<Self> {
        Ok(Self {
            source: SortedPartitions::new(order, input, memory)?,
            is_next: false,
            ended: false,
            key: Vec::new(),
            rows: memory.rows()?,
            count: 0,
            complete: false,
        })
    }

    /// Creates a reader. Must be called before the first partition begins.
    pub fn reader(&mut self) -> Reader {
        Reader { id: self.rows.reader(), next: 0 }
    }

    fn advance(&mut self) -> Result<bool> {
        self.ended = self.ended || !self.source.advance()?;
        Ok(!self.ended)
    }

    /// Begins the next partition; false if there is none. All documents of the present one must have been read. Readers must be
    /// [restarted](Reader::restart).
    pub fn begin_next(&mut self) -> Result<bool> {
        if !self.is_next && !self.advance()? {
            return Ok(false);
        }
        self.is_next = false;
        self.key.clear();
        self.key.extend(self.source.partition());
        self.rows.clear();
        self.rows.add(self.source.bytes())?;
        (self.count, self.complete) = (1, false);
        Ok(true)
    }

    /// True if the partition has more than `index` documents.
    pub fn has(&mut self, index: u64) -> Result<bool> {
        while self.count <= index && !self.complete {
            budget::step();
            let more = self.advance()?;
            self.is_next = more && self.source.partition() != self.key;
            self.complete = !more || self.is_next;
            if !self.complete {
                self.rows.add(self.source.bytes())?;
                self.count += 1;
            }
        }
        Ok(self.count > index)
    }

    /// Returns the next document of a reader and moves the reader forward; None at the partition's end.
    pub fn read(&mut self, reader: &mut Reader) -> Result<Option<RawObject<'_>>> {
        if !self.has(reader.next)? {
            return Ok(None);
        }
        budget::step();
        reader.next += 1;
        let row = self.rows.next(reader.id)?;
        raw::document(row).map(Some).ok_or_else(|| error!(Kind::InternalError, "a row of a partition is damaged"))
    }

    /// Moves a reader to the position of another.
    pub fn follow(&mut self, reader: &mut Reader, other: &Reader) {
        self.rows.follow(reader.id, other.id);
        reader.next = other.next;
    }

    /// Removes documents that all readers have read.
    pub fn trim(&mut self) {
        self.rows.trim();
    }
}

impl Reader {
    /// Moves before the first document of a partition that has just begun.
    pub fn restart(&mut self) {
        self.next = 0;
    }
}
