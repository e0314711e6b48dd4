//! What a call returns: nothing, a value, a row, or rows. Answers are decoded strictly: see [`record`](crate::sql::record).

use super::signature::Shape;
use crate::error::Result;
use crate::sql::column::Column;
use crate::sql::record::{Record, Row, Value, decode_all, decode_only, malformed};

/// The result of a call.
pub trait Answer: Sized {
    /// what the function returns
    const SHAPE: Shape;
    /// the columns of its rows
    const COLUMNS: &'static [Column];
    /// Decodes the rows that the call of this name returned.
    /// Errors: 08P01, naming the call, for anything else than the declared columns.
    fn decode<R: Row>(of: &str, rows: &[R]) -> Result<Self>;
}

impl Answer for () {
    const SHAPE: Shape = Shape::Void;
    const COLUMNS: &'static [Column] = &[Column::BYTES];
    fn decode<R: Row>(of: &str, rows: &[R]) -> Result<Self> {
        decode_only(of, rows)
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Answer for $type {
            const SHAPE: Shape = Shape::Value(<$type as Value>::TYPE);
            const COLUMNS: &'static [Column] = &[<$type as Value>::COLUMN];
            fn decode<R: Row>(of: &str, rows: &[R]) -> Result<Self> {
                decode_only(of, rows)
            }
        }
    )*};
}

values!(i64, bool, String, Option<i64>, Option<String>, Option<Vec<u8>>);

/// The answer of a statement that returns no rows.
#[derive(Debug)]
pub struct NoRows;

impl Answer for NoRows {
    const SHAPE: Shape = Shape::Table(&[]);
    const COLUMNS: &'static [Column] = &[];
    fn decode<R: Row>(of: &str, rows: &[R]) -> Result<Self> {
        if rows.is_empty() { Ok(Self) } else { Err(malformed(of, &format!("{} rows, not none", rows.len()))) }
    }
}

impl<T: Record> Answer for Vec<T> {
    const SHAPE: Shape = match T::COLUMNS {
        [(name, of_type)] if name.is_empty() => Shape::Set(of_type),
        columns => Shape::Table(columns),
    };
    const COLUMNS: &'static [Column] = T::WIRE;
    fn decode<R: Row>(of: &str, rows: &[R]) -> Result<Self> {
        decode_all(of, rows)
    }
}
