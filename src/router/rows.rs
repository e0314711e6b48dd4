//! Rows that shards return; the shard may be this database or another node.

use super::lost_shards::LostShards;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::remote;
use crate::shard::pipeline::as_router;
use docshard_core::routing::protocol::pipeline::{PipelineMeasurements, milliseconds};
use docshard_core::values::document::{packed, raw};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// Numbers from another node are counts of documents and bytes. They are clamped so that sums cannot overflow.
pub const LARGEST_NUMBER: i64 = 1 << 53;

pub enum ShardRow {
    Local(spi::SpiRow),
    Remote(remote::RemoteRow),
    /// a document in a packed value, by its position; its columns are the document and its key
    Packed(Rc<Packed>, usize),
}

impl ShardRow {
    /// A column in binary form; None for NULL. A row has the columns that its statement declares.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        match self {
            ShardRow::Local(row) => row.get(column),
            ShardRow::Remote(row) => row.get(column),
            ShardRow::Packed(packed, number) => match column {
                0 => packed.documents.document(*number),
                1 => packed.documents.key(*number),
                _ => None,
            },
        }
    }

    /// A column that is not NULL.
    pub fn bytes(&self, column: usize) -> &[u8] {
        self.get(column).unwrap_or_default()
    }

    /// A column with a document, which can be read as jsonb; None for NULL.
    pub fn document(&self, column: usize) -> Result<Option<&[u8]>> {
        let bytes = self.get(column);
        if self.is_foreign()
            && let Some(bytes) = bytes
        {
            raw::validate(bytes)
                .map_err(|error| Error::protocol_violation(format!("malformed document of a shard: {error}")))?;
        }
        Ok(bytes)
    }

    /// An int8 column that is not NULL.
    pub fn i64(&self, column: usize) -> i64 {
        let number = self.bytes(column).try_into().map_or(0, i64::from_be_bytes);
        if self.is_foreign() { number.clamp(-LARGEST_NUMBER, LARGEST_NUMBER) } else { number }
    }

    /// True if the bytes come from another node and must be validated before PostgreSQL reads them as jsonb.
    pub fn is_foreign(&self) -> bool {
        match self {
            ShardRow::Local(_) => false,
            ShardRow::Remote(_) => true,
            ShardRow::Packed(packed, _) => packed.is_foreign,
        }
    }
}

/// Documents that arrived as one value: see `shard::index_range`.
pub struct Packed {
    documents: packed::Documents,
    is_foreign: bool,
}

impl Packed {
    /// Unpacks the documents of a row's first column.
    fn of(row: &ShardRow) -> Result<Rc<Self>> {
        let documents = packed::Documents::unpack(row.bytes(0))
            .ok_or_else(|| Error::protocol_violation("malformed packed documents: truncated"))?;
        Ok(Rc::new(Self { documents, is_foreign: row.is_foreign() }))
    }

    fn row(self: &Rc<Self>, number: usize) -> Option<ShardRow> {
        (number < self.documents.count()).then(|| ShardRow::Packed(Rc::clone(self), number))
    }
}

/// The rows of one destination.
pub enum RowStream {
    Local(spi::cursor::Cursor),
    Rows(std::vec::IntoIter<spi::SpiRow>),
    Remote(remote::Stream),
    /// ends if the shard of that name cannot be reached
    Partial(remote::Stream, String, Rc<LostShards>),
    /// the position of the next document
    Packed(Rc<Packed>, usize),
    /// rows each of which has packed documents
    Parts(Box<Parts>),
    /// counts its documents and the time since they were asked for
    Counted(Box<RowStream>, Instant, Observed),
}

/// The measurements that a shard has made of its work. They are complete when its rows have been read to the end.
pub type Observed = Rc<RefCell<PipelineMeasurements>>;

pub struct Parts {
    rows: RowStream,
    /// receives the measurements that follow the documents
    observed: Option<Observed>,
    /// a part, and the position of its next document
    current: Option<(Rc<Packed>, usize)>,
}

impl RowStream {
    /// The documents that are packed into all rows.
    pub fn in_parts(rows: Self) -> Self {
        RowStream::Parts(Box::new(Parts { rows, observed: None, current: None }))
    }

    /// The documents that are packed into all rows but the last two: an empty row, and the shard's measurements.
    pub fn observed(rows: Self, observed: Observed) -> Self {
        RowStream::Parts(Box::new(Parts { rows, observed: Some(observed), current: None }))
    }

    /// Reads the documents packed into a row's first column.
    pub fn packed(row: &ShardRow) -> Result<Self> {
        Packed::of(row).map(|packed| RowStream::Packed(packed, 0))
    }

    /// Returns all rows of a statement that returns few.
    /// Errors: `ExceededMemoryLimit` if those of another node do not fit into memory.
    pub fn rows(&mut self) -> Result<Vec<ShardRow>> {
        if let RowStream::Remote(stream) = self {
            return Ok(stream.rows()?.into_iter().map(ShardRow::Remote).collect());
        }
        let mut rows = Vec::new();
        while let Some(row) = self.next_row()? {
            rows.push(row);
        }
        Ok(rows)
    }

    pub fn next_row(&mut self) -> Result<Option<ShardRow>> {
        Ok(match self {
            RowStream::Local(cursor) => as_router(|| cursor.next_row())?.map(ShardRow::Local),
            RowStream::Rows(rows) => rows.next().map(ShardRow::Local),
            RowStream::Remote(stream) => stream.next()?.map(ShardRow::Remote),
            RowStream::Partial(stream, shard, lost) => match stream.next() {
                Ok(row) => row.map(ShardRow::Remote),
                Err(error) => {
                    lost.note(shard, error)?;
                    lost.report();
                    None
                }
            },
            RowStream::Packed(packed, next) => {
                let number = *next;
                *next += 1;
                packed.row(number)
            }
            RowStream::Parts(parts) => parts.next_row()?,
            RowStream::Counted(rows, began, observed) => {
                let row = rows.next_row()?;
                let mut observed = observed.borrow_mut();
                observed.read += u64::from(row.as_ref().is_some_and(|row| row.get(0).is_some()));
                observed.took_ms = milliseconds(began.elapsed());
                row
            }
        })
    }
}

impl Parts {
    fn next_row(&mut self) -> Result<Option<ShardRow>> {
        loop {
            if let Some((packed, next)) = &mut self.current {
                *next += 1;
                if let Some(row) = packed.row(*next - 1) {
                    return Ok(Some(row));
                }
            }
            let Some(row) = self.rows.next_row()? else { return Ok(None) };
            if let Some(observed) = &self.observed
                && row.bytes(0).is_empty()
            {
                let run = self.rows.next_row()?;
                observed.replace(PipelineMeasurements::parse(run.as_ref().map_or(&[], |row| row.bytes(0)))?);
                continue;
            }
            let packed = Packed::of(&row)?;
            if packed.documents.count() == 0 {
                return Err(Error::protocol_violation("malformed packed documents: a part without documents"));
            }
            self.current = Some((packed, 0));
        }
    }
}
