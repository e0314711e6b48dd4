//! What a call returns: nothing, a value, a row, or rows. Answers are decoded strictly: see [`record`](crate::sql::record).

use super::signature::{Shape, Signature};
use crate::error::Result;
use crate::sql::column::Column;
use crate::sql::record::{Record, Row, Value, decode_all, decode_only};

/// The result of a call.
pub trait Answer: Sized {
    /// what the function returns
    const SHAPE: Shape;
    /// the columns of its rows
    const COLUMNS: &'static [Column];
    /// Decodes the rows that the call returned.
    /// Errors: 08P01, naming the call, for anything else than the declared columns.
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self>;
}

impl Answer for () {
    const SHAPE: Shape = Shape::Void;
    const COLUMNS: &'static [Column] = &[Column::BYTES];
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
        decode_only(&of.name(), rows)
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Answer for $type {
            const SHAPE: Shape = Shape::Value(<$type as Value>::TYPE);
            const COLUMNS: &'static [Column] = &[<$type as Value>::COLUMN];
            fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
                decode_only(&of.name(), rows)
            }
        }
    )*};
}

values!(i64, bool, String, Option<String>, Option<Vec<u8>>);

impl<T: Record> Answer for Vec<T> {
    const SHAPE: Shape = match T::COLUMNS {
        [(name, of_type)] if name.is_empty() => Shape::Set(of_type),
        columns => Shape::Table(columns),
    };
    const COLUMNS: &'static [Column] = T::WIRE;
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
        decode_all(&of.name(), rows)
    }
}
