//! Rows that several readers go through, each at its own pace.
//!
//! A stage that looks at the documents before and after one puts them there. Readers only move forward, so rows behind the slowest
//! one need not be kept.

use crate::budget;
use crate::error::{Kind, Result, error};
use std::collections::VecDeque;

/// Rows in the order in which they were added. It bounds its own memory.
pub trait Rows {
    /// Adds a row behind all others.
    ///
    /// # Errors
    /// Those of the implementation.
    fn add(&mut self, row: &[u8]) -> Result<()>;

    /// Makes a reader, which is before the first row. Only while there are no rows.
    fn reader(&mut self) -> usize;

    /// The next row of a reader, which moves on. Only if there is one.
    ///
    /// # Errors
    /// Those of the implementation.
    fn next(&mut self, reader: usize) -> Result<&[u8]>;

    /// Moves a reader to where another one is.
    fn follow(&mut self, reader: usize, other: usize);

    /// Forgets rows that no reader will read, if that frees memory.
    fn trim(&mut self);

    /// Forgets all rows: all readers are before the first one again.
    fn clear(&mut self);
}

/// Rows in the process's memory.
#[derive(Debug, Default)]
pub(super) struct RowsInMemory {
    rows: VecDeque<Vec<u8>>,
    /// how many rows have been forgotten
    forgotten: usize,
    /// how many rows are behind each reader
    readers: Vec<usize>,
}

impl Rows for RowsInMemory {
    fn add(&mut self, row: &[u8]) -> Result<()> {
        budget::step();
        self.rows.push_back(row.to_vec());
        Ok(())
    }

    fn reader(&mut self) -> usize {
        self.readers.push(0);
        self.readers.len() - 1
    }

    fn next(&mut self, reader: usize) -> Result<&[u8]> {
        let damaged = || error!(Kind::InternalError, "a reader has passed the last row");
        let at = self.readers.get_mut(reader).ok_or_else(damaged)?;
        let row = self.rows.get(at.wrapping_sub(self.forgotten)).ok_or_else(damaged)?;
        *at += 1;
        Ok(row)
    }

    fn follow(&mut self, reader: usize, other: usize) {
        if let Some(at) = self.readers.get(other).copied()
            && let Some(reader) = self.readers.get_mut(reader)
        {
            *reader = at;
        }
    }

    fn trim(&mut self) {
        let slowest = self.readers.iter().min().copied().unwrap_or_default();
        self.rows.drain(..slowest - self.forgotten);
        self.forgotten = slowest;
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.forgotten = 0;
        self.readers.fill(0);
    }
}
