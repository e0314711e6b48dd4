//! Rows in binary format, small answers in memory, and the spool, which keeps a stream's unread rows when another statement needs the
//! connection.
//!
//! The rows of every answer are read one by one, so that a shard cannot fill the memory of this process with an answer that does not
//! end. A caller that needs the whole answer collects its rows in [`Rows`], whose memory is limited.

use super::ffi::{self, TempFile};
use crate::pg::error::{Error, Result};
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, bail, error};
use std::cell::Cell;
use std::io::{self, BufReader, Read, Write};

/// A row in PostgreSQL's binary format: for each column its length as a big-endian `i32`, -1 for NULL, and its bytes.
#[derive(Debug)]
pub struct RemoteRow(Vec<u8>);

impl RemoteRow {
    /// `columns`: as in [`Answer::Row`](docshard_core::cluster::frontend::Answer::Row).
    pub(super) fn of(columns: Vec<u8>) -> Self {
        Self(columns)
    }

    /// A column's value; None for NULL, or if there is no such column.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        let mut rest = self.0.as_slice();
        let mut at = 0;
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(i32::from_be_bytes(*length)).ok();
            if at == column {
                return tail.get(..length?);
            }
            rest = tail.get(length.unwrap_or(0)..)?;
            at += 1;
        }
        None
    }

    /// An `int8` column; None for NULL or another length.
    pub fn i64(&self, column: usize) -> Option<i64> {
        Some(i64::from_be_bytes(self.get(column)?.try_into().ok()?))
    }

    pub fn text(&self, column: usize) -> Option<&str> {
        std::str::from_utf8(self.get(column)?).ok()
    }
}

impl docshard_core::sql::record::Row for RemoteRow {
    fn column(&self, column: usize) -> Option<&[u8]> {
        self.get(column)
    }
}

/// The size of the largest answer that is kept in memory, in bytes. The largest answers are the sizes of chunks, about 100 MB for a million
/// of them, and the numbers of changes while a chunk of a collection with a unique index moved, 8 MB for a million.
const MAX_BYTES: usize = 128 << 20;

/// The bytes that a row in memory takes besides its columns.
const ROW_BYTES: usize = 64;

/// All rows of an answer.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<RemoteRow>,
    bytes: usize,
}

impl Rows {
    /// Adds a row of the answer.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the answer takes more than [`MAX_BYTES`].
    pub fn add(&mut self, row: RemoteRow) -> Result<()> {
        self.bytes += ROW_BYTES + row.0.len();
        if self.bytes > MAX_BYTES {
            bail!(Kind::ExceededMemoryLimit, "a shard's answer takes more than {} MB of memory", MAX_BYTES >> 20);
        }
        self.rows.push(row);
        Ok(())
    }

    pub fn into_vec(self) -> Vec<RemoteRow> {
        self.rows
    }
}

thread_local! {
    /// The bytes that all spools of this session have in memory.
    static IN_MEMORY: Cell<usize> = const { Cell::new(0) };
}

/// Rows are written to the file in blocks of at least this size, except for the last block.
const BLOCK: usize = 8 << 10;

/// Rows that are written once, and then read once. They stay in memory while all spools together take at most `work_mem`. Beyond that,
/// full blocks go to a temporary file.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// the bytes of `memory` that [`IN_MEMORY`] includes
    counted: usize,
    /// the buffer is used only for reading
    file: Option<BufReader<TempFile>>,
    read: usize,
    rows: u64,
}

fn failed(what: &str, error: &io::Error) -> Error {
    let sqlstate = if error.kind() == io::ErrorKind::StorageFull { sqlstate::DISK_FULL } else { sqlstate::IO_ERROR };
    Error::of_sqlstate(sqlstate, format!("could not {what} a temporary file: {error}"))
}

impl Spool {
    /// Appends a row.
    pub(super) fn push(&mut self, row: &RemoteRow) -> Result<()> {
        let length =
            u32::try_from(row.0.len()).map_err(|_| error!(Kind::InternalError, "a row of a shard is too long"))?;
        self.memory.extend_from_slice(&length.to_ne_bytes());
        self.memory.extend_from_slice(&row.0);
        self.rows += 1;
        self.count(self.memory.len());
        if IN_MEMORY.get() > ffi::work_mem() && self.memory.len() >= BLOCK { self.write() } else { Ok(()) }
    }

    /// Moves what is in memory to the file.
    fn write(&mut self) -> Result<()> {
        let file = self.file.get_or_insert_with(|| BufReader::new(TempFile::create())).get_mut();
        file.write_all(&self.memory).map_err(|error| failed("write", &error))?;
        self.memory.clear();
        self.count(0);
        Ok(())
    }

    /// Updates [`IN_MEMORY`]: this spool now has `bytes` in memory.
    fn count(&mut self, bytes: usize) {
        IN_MEMORY.set(IN_MEMORY.get() - self.counted + bytes);
        self.counted = bytes;
    }

    /// Called between writing and reading.
    pub(super) fn rewind(&mut self) -> Result<()> {
        if self.file.is_some() {
            self.write()?;
            self.memory = Vec::new();
        }
        if let Some(file) = &mut self.file {
            file.get_mut().rewind();
        }
        Ok(())
    }

    /// The next row; None after the last.
    pub(super) fn next(&mut self) -> Result<Option<RemoteRow>> {
        let Some(rows) = self.rows.checked_sub(1) else { return Ok(None) };
        self.rows = rows;
        let bytes = self.take().map_err(|error| failed("read", &error))?;
        Ok(Some(RemoteRow(bytes)))
    }

    fn take(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let mut row = vec![0; u32::from_ne_bytes(length) as usize];
        self.fill(&mut row)?;
        Ok(row)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.read_exact(buffer),
            None => {
                let end = self.read + buffer.len();
                buffer.copy_from_slice(self.memory.get(self.read..end).ok_or(io::ErrorKind::UnexpectedEof)?);
                self.read = end;
                Ok(())
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

    fn row(columns: &[Option<&[u8]>]) -> RemoteRow {
        let column = |value: &Option<&[u8]>| match value {
            None => (-1i32).to_be_bytes().to_vec(),
            Some(bytes) => [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat(),
        };
        RemoteRow::of(columns.iter().flat_map(column).collect())
    }

    #[pg_test]
    fn all_spools_share_work_mem() {
        const ROW: usize = 100_000;
        spi::query("SELECT pg_catalog.set_config('work_mem', '1MB', true)", &[]).unwrap();
        let limit = ffi::work_mem();
        let before = IN_MEMORY.get();
        let mut spools: Vec<Spool> = (0..4).map(|_| Spool::default()).collect();
        for (at, spool) in spools.iter_mut().enumerate() {
            for n in 0..8u8 {
                spool.push(&row(&[Some(&vec![n + at as u8; ROW]), None])).unwrap();
                assert!(IN_MEMORY.get() - before <= limit, "row {n} of spool {at}");
            }
            spool.rewind().unwrap();
        }
        assert!(spools[0].file.is_none(), "the first one fits");
        assert!(spools[1..].iter().all(|spool| spool.file.is_some()), "the others do not");
        let held: usize = spools.iter().map(|spool| spool.memory.len()).sum();
        assert_eq!(IN_MEMORY.get() - before, held);
        for (at, spool) in spools.iter_mut().enumerate() {
            for n in 0..8u8 {
                let row = spool.next().unwrap().expect("a row");
                assert_eq!(row.get(0), Some(&vec![n + at as u8; ROW][..]));
                assert_eq!(row.get(1), None);
            }
            assert!(spool.next().unwrap().is_none());
        }
        drop(spools);
        assert_eq!(IN_MEMORY.get(), before);
    }

    /// A spool that has all the memory does not make others write small rows one by one.
    #[pg_test]
    fn small_rows_are_written_in_blocks() {
        spi::query("SELECT pg_catalog.set_config('work_mem', '64kB', true)", &[]).unwrap();
        let mut large = Spool::default();
        large.push(&row(&[Some(&vec![0; ffi::work_mem() - 100])])).unwrap();
        let mut small = Spool::default();
        for n in 0..10_000i32 {
            small.push(&row(&[Some(&n.to_ne_bytes())])).unwrap();
            assert!(small.memory.len() < BLOCK, "{} bytes in memory", small.memory.len());
            assert!(small.file.is_some() || n < 1_000);
        }
        small.rewind().unwrap();
        for n in 0..10_000i32 {
            assert_eq!(small.next().unwrap().expect("a row").get(0), Some(&n.to_ne_bytes()[..]));
        }
        assert!(small.next().unwrap().is_none());
    }
}
