//! Rows in binary format, small answers in memory, and the spool, which keeps a stream's unread rows when another statement needs the
//! connection.
//!
//! libpq returns the rows of every answer one by one, so that a shard cannot fill the memory of this process with an answer that does
//! not end. Whoever wants all rows of an answer reads them into [`Rows`].

use super::ffi::{self, PgResult, TempFile};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use std::cell::Cell;

/// A row in PostgreSQL's binary format.
#[derive(Debug)]
pub struct Row(Source);

#[derive(Debug)]
enum Source {
    /// of single-row mode
    Single(PgResult),
    /// for each column its length as i32, -1 for NULL, and its bytes
    Copied(Vec<u8>),
}

impl Row {
    pub(super) fn single(result: PgResult) -> Self {
        Self(Source::Single(result))
    }

    /// The number of columns; 0 for a copied row.
    fn columns(&self) -> usize {
        let columns = match &self.0 {
            Source::Single(result) => result.columns(),
            Source::Copied(_) => 0,
        };
        usize::try_from(columns).unwrap_or(0)
    }

    fn values(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.columns()).map(|column| self.get(column))
    }

    /// A column's value; None for NULL, or if there is no such column.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        match &self.0 {
            Source::Single(result) => result.value(0, column),
            Source::Copied(bytes) => {
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

/// Appends the columns of a row: for each its length, and its bytes.
fn copy<'r>(columns: impl Iterator<Item = Option<&'r [u8]>>, to: &mut Vec<u8>) {
    for value in columns {
        match value {
            None => to.extend_from_slice(&(-1i32).to_ne_bytes()),
            Some(value) => {
                to.extend_from_slice(&(value.len() as i32).to_ne_bytes());
                to.extend_from_slice(value);
            }
        }
    }
}

/// The most bytes of an answer in memory. The largest answers are the sizes of chunks: about 40 MB for a million of them.
const MOST_BYTES: usize = 128 << 20;

/// What a row in memory takes besides its columns.
const ROW_BYTES: usize = 64;

/// All rows of an answer.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
    bytes: usize,
}

impl Rows {
    /// Adds a row of the answer.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the answer is larger than those of docshard's functions.
    pub fn add(&mut self, row: &Row) -> Result<()> {
        self.bytes += ROW_BYTES + row.values().flatten().map(<[u8]>::len).sum::<usize>();
        if self.bytes > MOST_BYTES {
            let message = format!("a shard's answer takes more than {} MB of memory", MOST_BYTES >> 20);
            return Err(Error::new(Kind::ExceededMemoryLimit, message));
        }
        let mut copied = Vec::new();
        copy(row.values(), &mut copied);
        self.rows.push(Row(Source::Copied(copied)));
        Ok(())
    }

    pub fn into_vec(self) -> Vec<Row> {
        self.rows
    }
}

thread_local! {
    /// The bytes that all spools of this session have in memory.
    static IN_MEMORY: Cell<usize> = const { Cell::new(0) };
}

/// Rows in memory while all spools together need at most `work_mem`, then in a temporary file. Written once, then read once.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// its part of [`IN_MEMORY`]
    counted: usize,
    file: Option<TempFile>,
    read: usize,
    rows: u64,
}

impl Spool {
    /// Appends a row; false if it is too long.
    pub(super) fn push(&mut self, row: &Row) -> bool {
        self.append(row.values())
    }

    fn append<'r>(&mut self, columns: impl Iterator<Item = Option<&'r [u8]>>) -> bool {
        let start = self.memory.len();
        self.memory.extend_from_slice(&[0; 4]);
        copy(columns, &mut self.memory);
        let Ok(length) = u32::try_from(self.memory.len() - start - 4) else { return false };
        self.memory[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.rows += 1;
        self.count(self.memory.len());
        if IN_MEMORY.get() > ffi::work_mem() {
            self.file.get_or_insert_with(TempFile::create).write(&self.memory);
            self.memory.clear();
            self.count(0);
        }
        true
    }

    /// Counts the bytes that it has in memory.
    fn count(&mut self, bytes: usize) {
        IN_MEMORY.set(IN_MEMORY.get() - self.counted + bytes);
        self.counted = bytes;
    }

    /// Called between writing and reading; false if the file fails.
    pub(super) fn rewind(&mut self) -> bool {
        let Some(file) = &mut self.file else { return true };
        file.write(&self.memory);
        let rewound = file.rewind();
        self.memory = Vec::new();
        self.count(0);
        rewound
    }

    /// The next row; None after the last, `Some(None)` if the file is too short.
    pub(super) fn next(&mut self) -> Option<Option<Row>> {
        self.rows = self.rows.checked_sub(1)?;
        Some(self.take().map(|bytes| Row(Source::Copied(bytes))))
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

impl Drop for Spool {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use pgrx::pg_test;

    #[pg_test]
    fn all_spools_share_work_mem() {
        const ROW: usize = 100_000;
        spi::query("SELECT pg_catalog.set_config('work_mem', '1MB', true)", &[]).unwrap();
        let limit = ffi::work_mem();
        let before = IN_MEMORY.get();
        let mut spools: Vec<Spool> = (0..4).map(|_| Spool::default()).collect();
        for (at, spool) in spools.iter_mut().enumerate() {
            for n in 0..8u8 {
                assert!(spool.append([Some(&vec![n + at as u8; ROW][..]), None].into_iter()));
                assert!(IN_MEMORY.get() - before <= limit, "row {n} of spool {at}");
            }
            assert!(spool.rewind());
        }
        assert!(spools[0].file.is_none(), "the first one fits");
        assert!(spools[1..].iter().all(|spool| spool.file.is_some()), "the others do not");
        let held: usize = spools.iter().map(|spool| spool.memory.len()).sum();
        assert_eq!(IN_MEMORY.get() - before, held);
        for (at, spool) in spools.iter_mut().enumerate() {
            for n in 0..8u8 {
                let row = spool.next().flatten().expect("a row");
                assert_eq!(row.get(0), Some(&vec![n + at as u8; ROW][..]));
                assert_eq!(row.get(1), None);
            }
            assert!(spool.next().is_none());
        }
        drop(spools);
        assert_eq!(IN_MEMORY.get(), before);
    }
}
