//! A list of rows that several readers read, each at its own position.
//!
//! Stages that look at the documents before and after the current one keep documents in such a list. Readers only move forward, so
//! rows that all readers have read need not be kept.

use crate::budget;
use crate::error::{Kind, Result, error};
use std::collections::VecDeque;

/// A list of rows, in the order of their addition. The implementation limits its memory.
pub trait Rows {
    /// Appends a row.
    ///
    /// # Errors
    /// Those of the implementation.
    fn add(&mut self, row: &[u8]) -> Result<()>;

    /// Creates a reader before the first row. Only allowed while there are no rows.
    fn reader(&mut self) -> usize;

    /// Returns the next row of a reader and moves the reader forward. There must be one.
    ///
    /// # Errors
    /// Those of the implementation.
    fn next(&mut self, reader: usize) -> Result<&[u8]>;

    /// Moves a reader to the position of another.
    fn follow(&mut self, reader: usize, other: usize);

    /// Removes rows that all readers have read, if that frees memory.
    fn trim(&mut self);

    /// Removes all rows, and moves all readers to the beginning.
    fn clear(&mut self);
}

/// Rows in the process's memory.
#[derive(Debug, Default)]
pub(in crate::query::stage) struct RowsInMemory {
    rows: VecDeque<Vec<u8>>,
    /// the number of rows removed so far
    forgotten: usize,
    /// the number of rows that each reader has read
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
