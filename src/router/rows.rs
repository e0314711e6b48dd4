//! Rows that shards answer, wherever they come from.

use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::remote;
use docshard_core::error::Kind;
use docshard_core::values::document::packed;
use std::rc::Rc;

/// Another node's numbers count documents and bytes. Whatever it says, sums of them do not overflow.
pub const LARGEST_NUMBER: i64 = 1 << 53;

/// A row, from here or from a shard.
pub enum Answer {
    /// of this database
    Local(spi::Row),
    /// of another node
    Remote(remote::Row),
    /// one of those that were packed into a column, by its number, its columns being what is told of it and its key
    Packed(Rc<Packed>, usize),
}

impl Answer {
    /// A column in binary form.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        match self {
            Answer::Local(row) => row.get(column),
            Answer::Remote(row) => row.get(column),
            Answer::Packed(packed, number) => match column {
                0 => packed.documents.document(*number),
                1 => packed.documents.key(*number),
                _ => None,
            },
        }
    }

    /// An int8 column; null reads as 0.
    pub fn i64(&self, column: usize) -> i64 {
        let number = self.get(column).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes);
        if self.is_foreign() { number.clamp(-LARGEST_NUMBER, LARGEST_NUMBER) } else { number }
    }

    /// True if the bytes come from another node, and so have to be checked before PostgreSQL reads them as jsonb.
    pub fn is_foreign(&self) -> bool {
        match self {
            Answer::Local(_) => false,
            Answer::Remote(_) => true,
            Answer::Packed(packed, _) => packed.is_foreign,
        }
    }
}

/// Documents that came in one piece: see `ownership::index_range`.
pub struct Packed {
    documents: packed::Documents,
    is_foreign: bool,
}

/// The rows of one destination.
pub enum RowStream {
    /// a cursor here
    Local(spi::Cursor),
    /// rows already here
    Rows(std::vec::IntoIter<spi::Row>),
    /// a stream from another node
    Remote(remote::Stream),
    /// documents that came in one piece, from a number on
    Packed(Rc<Packed>, usize),
}

impl RowStream {
    /// The documents that are packed into a row's first column.
    ///
    /// # Errors
    /// `InternalError` if they are not whole.
    pub fn packed(row: &Answer) -> Result<Self> {
        let documents = packed::Documents::unpack(row.get(0).unwrap_or_default())
            .ok_or_else(|| Error::new(Kind::InternalError, "documents arrived cut off"))?;
        Ok(RowStream::Packed(Rc::new(Packed { documents, is_foreign: row.is_foreign() }), 0))
    }

    /// The next row.
    ///
    /// # Errors
    /// The shard's.
    pub fn next_row(&mut self) -> Result<Option<Answer>> {
        Ok(match self {
            RowStream::Local(cursor) => cursor.next_row()?.map(Answer::Local),
            RowStream::Rows(rows) => rows.next().map(Answer::Local),
            RowStream::Remote(stream) => stream.next()?.map(Answer::Remote),
            RowStream::Packed(packed, next) => {
                let number = *next;
                *next += 1;
                (number < packed.documents.count()).then(|| Answer::Packed(Rc::clone(packed), number))
            }
        })
    }
}
