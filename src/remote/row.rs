//! Rows in binary format, and the spool, which keeps a stream's unread rows when another statement needs the connection.

use super::ffi::{self, PgResult, TempFile};
use std::ffi::c_int;
use std::rc::Rc;

/// A row in PostgreSQL's binary format.
#[derive(Debug)]
pub struct Row(Source);

#[derive(Debug)]
enum Source {
    /// of single-row mode
    Single(PgResult),
    /// a row of a whole result
    Shared(Rc<PgResult>, c_int),
    /// for each column its length as i32, -1 for NULL, and its bytes
    Spooled(Vec<u8>),
}

impl Row {
    pub(super) fn single(result: PgResult) -> Self {
        Self(Source::Single(result))
    }

    pub(super) fn of(result: Rc<PgResult>, row: c_int) -> Self {
        Self(Source::Shared(result, row))
    }

    pub(super) fn all(result: PgResult) -> Vec<Self> {
        let result = Rc::new(result);
        (0..result.rows()).map(|row| Self::of(result.clone(), row)).collect()
    }

    /// The number of columns; 0 for a spooled row.
    fn columns(&self) -> usize {
        let columns = match &self.0 {
            Source::Single(result) => result.columns(),
            Source::Shared(result, _) => result.columns(),
            Source::Spooled(_) => 0,
        };
        usize::try_from(columns).unwrap_or(0)
    }

    /// A column's value; None for NULL, or if there is no such column.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        match &self.0 {
            Source::Single(result) => result.value(0, column),
            Source::Shared(result, row) => result.value(*row, column),
            Source::Spooled(bytes) => {
                let mut rest = bytes.as_slice();
                let mut at = 0;
                while let Some((length, tail)) = rest.split_first_chunk::<4>() {
                    let length = usize::try_from(i32::from_ne_bytes(*length)).ok();
                    if at == column {
                        return tail.get(..length?);
                    }
                    rest = tail.get(length.unwrap_or(0)..)?;
                    at += 1;
                }
                None
            }
        }
    }

    /// An `int8` column; None for NULL or another length.
    pub fn i64(&self, column: usize) -> Option<i64> {
        Some(i64::from_be_bytes(self.get(column)?.try_into().ok()?))
    }

    pub fn i32(&self, column: usize) -> Option<i32> {
        Some(i32::from_be_bytes(self.get(column)?.try_into().ok()?))
    }

    pub fn text(&self, column: usize) -> Option<&str> {
        std::str::from_utf8(self.get(column)?).ok()
    }

    pub fn bool(&self, column: usize) -> Option<bool> {
        Some(*self.get(column)?.first()? != 0)
    }
}

impl crate::protocol::Row for Row {
    fn column(&self, column: usize) -> Option<&[u8]> {
        self.get(column)
    }
}

/// Rows in memory up to `work_mem`, then in a temporary file. Written once, then read once.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    file: Option<TempFile>,
    read: usize,
    rows: u64,
}

impl Spool {
    /// Appends a row; false if it is too long.
    pub(super) fn push(&mut self, row: &Row) -> bool {
        let start = self.memory.len();
        self.memory.extend_from_slice(&[0; 4]);
        for column in 0..row.columns() {
            match row.get(column) {
                None => self.memory.extend_from_slice(&(-1i32).to_ne_bytes()),
                Some(value) => {
                    self.memory.extend_from_slice(&(value.len() as i32).to_ne_bytes());
                    self.memory.extend_from_slice(value);
                }
            }
        }
        let Ok(length) = u32::try_from(self.memory.len() - start - 4) else { return false };
        self.memory[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.rows += 1;
        if self.memory.len() > ffi::work_mem() {
            self.file.get_or_insert_with(TempFile::create).write(&self.memory);
            self.memory.clear();
        }
        true
    }

    /// Called between writing and reading; false if the file fails.
    pub(super) fn rewind(&mut self) -> bool {
        let Some(file) = &mut self.file else { return true };
        file.write(&self.memory);
        self.memory = Vec::new();
        file.rewind()
    }

    /// The next row; None after the last, `Some(None)` if the file is too short.
    pub(super) fn next(&mut self) -> Option<Option<Row>> {
        self.rows = self.rows.checked_sub(1)?;
        Some(self.take().map(|bytes| Row(Source::Spooled(bytes))))
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let mut row = vec![0; u32::from_ne_bytes(length) as usize];
        self.fill(&mut row)?;
        Some(row)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Option<()> {
        match &mut self.file {
            Some(file) => file.read(buffer).then_some(()),
            None => {
                let end = self.read + buffer.len();
                buffer.copy_from_slice(self.memory.get(self.read..end)?);
                self.read = end;
                Some(())
            }
        }
    }
}
