//! Partitions of documents, one after the other, each in its order.
//!
//! The documents of a partition go into [`Rows`] when a reader gets there, and are forgotten when the last reader has passed them. So
//! memory holds what lies between the readers.

use crate::budget;
use crate::error::{Kind, Result, error};
use crate::query::stage::arranged::{Arranged, Layout};
use crate::query::stage::rows::Rows;
use crate::query::stage::stream::{Input, Memory};
use crate::values::document::raw::{self, RawObject};
use std::sync::Arc;

/// The documents of the present partition.
pub(super) struct Partition<'s> {
    source: Arranged<'s>,
    /// true if the source is at a document of the next partition
    is_next: bool,
    /// true if the source has no further document
    ended: bool,
    key: Vec<u8>,
    rows: Box<dyn Rows>,
    /// how many documents have been put into the rows
    count: u64,
    /// true if all have been put there
    complete: bool,
}

/// A place in the present partition.
#[derive(Debug)]
pub(super) struct Reader {
    id: usize,
    /// how many documents are behind it
    pub next: u64,
}

impl<'s> Partition<'s> {
    pub fn new(layout: Arc<Layout>, input: Input<'s>, memory: &dyn Memory) -> Result<Self> {
        Ok(Self {
            source: Arranged::new(layout, input, memory)?,
            is_next: false,
            ended: false,
            key: Vec::new(),
            rows: memory.rows()?,
            count: 0,
            complete: false,
        })
    }

    /// Makes a reader, before the first partition begins.
    pub fn reader(&mut self) -> Reader {
        Reader { id: self.rows.reader(), next: 0 }
    }

    fn advance(&mut self) -> Result<bool> {
        self.ended = self.ended || !self.source.advance()?;
        Ok(!self.ended)
    }

    /// Begins the next partition, after all documents of the present one have been read; false if there is none. Its readers are
    /// to be [restarted](Reader::restart).
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

    /// The next document of a reader, which moves on; None if there is none.
    pub fn read(&mut self, reader: &mut Reader) -> Result<Option<RawObject<'_>>> {
        if !self.has(reader.next)? {
            return Ok(None);
        }
        budget::step();
        reader.next += 1;
        let row = self.rows.next(reader.id)?;
        raw::document(row).map(Some).ok_or_else(|| error!(Kind::InternalError, "a row of a partition is damaged"))
    }

    /// Moves a reader to where another one is.
    pub fn follow(&mut self, reader: &mut Reader, other: &Reader) {
        self.rows.follow(reader.id, other.id);
        reader.next = other.next;
    }

    /// Forgets documents that all readers have passed.
    pub fn trim(&mut self) {
        self.rows.trim();
    }
}

impl Reader {
    /// Stands before the first document of a partition that has just begun.
    pub fn restart(&mut self) {
        self.next = 0;
    }
}
