//! Arguments and answers in PostgreSQL's binary format. An answer is decoded strictly: a missing column, a NULL where none is
//! declared, or a value of another width is an error that names the call.

use super::signature::{Column, SCHEMA, Shape, Signature};
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use docshard_core::error::Kind;

/// A row of an answer, whichever way it came.
pub trait Row {
    /// A column's value in PostgreSQL's binary format; None for NULL, and for a column that the row does not have.
    fn column(&self, column: usize) -> Option<&[u8]>;
}

impl Row for spi::Row {
    fn column(&self, column: usize) -> Option<&[u8]> {
        self.get(column)
    }
}

/// The type of an argument.
pub trait Argument {
    /// the SQL type, as PostgreSQL prints it
    const TYPE: &'static str;
    /// The value as it is sent.
    fn param(&self) -> Param<'_>;
}

macro_rules! arguments {
    ($($type:ty, $sql:literal, $value:ident => $param:expr;)*) => {$(
        impl Argument for $type {
            const TYPE: &'static str = $sql;
            fn param(&self) -> Param<'_> {
                let $value = *self;
                $param
            }
        }
    )*};
}

arguments! {
    i32, "integer", value => Param::Int4(value);
    i64, "bigint", value => Param::Int8(value);
    bool, "boolean", value => Param::Bool(value);
    &str, "text", value => Param::Text(value);
    Option<&str>, "text", value => Param::OptText(value);
    &[u8], "bytea", value => Param::Bytea(value);
    Option<&[u8]>, "bytea", value => Param::OptBytea(value);
    &[&str], "text[]", value => Param::TextArray(value);
    &[&[u8]], "bytea[]", value => Param::ByteaArray(value);
    &[i32], "integer[]", value => Param::Int4Array(value);
    &[i64], "bigint[]", value => Param::Int8Array(value);
}

/// The type of an answer's column.
pub trait Value: Sized {
    /// the SQL type, as PostgreSQL prints it
    const TYPE: &'static str;
    /// The value of a column; None if it is not one of this type.
    fn of(bytes: Option<&[u8]>) -> Option<Self>;
}

impl Value for i32 {
    const TYPE: &'static str = "integer";
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        Some(i32::from_be_bytes(bytes?.try_into().ok()?))
    }
}

impl Value for i64 {
    const TYPE: &'static str = "bigint";
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        Some(i64::from_be_bytes(bytes?.try_into().ok()?))
    }
}

impl Value for bool {
    const TYPE: &'static str = "boolean";
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        match bytes? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Value for String {
    const TYPE: &'static str = "text";
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        std::str::from_utf8(bytes?).ok().map(str::to_owned)
    }
}

impl Value for Vec<u8> {
    const TYPE: &'static str = "bytea";
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        bytes.map(<[u8]>::to_vec)
    }
}

impl<V: Value> Value for Option<V> {
    const TYPE: &'static str = V::TYPE;
    fn of(bytes: Option<&[u8]>) -> Option<Self> {
        match bytes {
            None => Some(None),
            some => V::of(some).map(Some),
        }
    }
}

/// What a call is answered.
pub trait Answer: Sized {
    /// what the function returns
    const SHAPE: Shape;
    /// Reads the rows of the answer.
    ///
    /// # Errors
    /// `InternalError`, naming the call, for anything else.
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self>;
}

/// A row of an answer with named columns.
pub trait Record: Sized {
    /// the columns
    const COLUMNS: &'static [Column];
    /// Reads the columns, in their order.
    ///
    /// # Errors
    /// As [`Answer::decode`].
    fn decode(columns: &mut Columns<'_, impl Row>) -> Result<Self>;
}

/// The columns of a row that have not been read.
pub struct Columns<'a, R> {
    of: &'a Signature,
    row: &'a R,
    next: usize,
}

impl<'a, R: Row> Columns<'a, R> {
    fn new(of: &'a Signature, row: &'a R) -> Self {
        Self { of, row, next: 0 }
    }

    /// The next column's value.
    ///
    /// # Errors
    /// As [`Answer::decode`].
    pub fn next<V: Value>(&mut self) -> Result<V> {
        let at = self.next;
        self.next += 1;
        let bytes = self.row.column(at);
        V::of(bytes).ok_or_else(|| {
            let found = bytes.map_or_else(|| "NULL or missing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
            let column = self.of.columns().get(at).copied().unwrap_or_default();
            malformed(self.of, &format!("column \"{column}\" is {found}, not of type {}", V::TYPE))
        })
    }
}

fn malformed(of: &Signature, what: &str) -> Error {
    Error::new(Kind::InternalError, format!("malformed answer to {}.{}: {what}", SCHEMA, of.function))
}

/// Reads an answer of one row.
///
/// # Errors
/// As [`Answer::decode`].
pub fn only_row<T: Record, R: Row>(of: &Signature, rows: &[R]) -> Result<T> {
    T::decode(&mut only(of, rows)?)
}

fn only<'a, R: Row>(of: &'a Signature, rows: &'a [R]) -> Result<Columns<'a, R>> {
    match rows {
        [row] => Ok(Columns::new(of, row)),
        _ => Err(malformed(of, &format!("{} rows, not one", rows.len()))),
    }
}

impl Answer for () {
    const SHAPE: Shape = Shape::Void;
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
        only(of, rows).map(drop)
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Answer for $type {
            const SHAPE: Shape = Shape::Value(<$type as Value>::TYPE);
            fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
                only(of, rows)?.next()
            }
        }
    )*};
}

values!(i64, bool, String, Option<String>, Option<Vec<u8>>);

impl<T: Record> Answer for Vec<T> {
    const SHAPE: Shape = Shape::Table(T::COLUMNS);
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
        rows.iter().map(|row| T::decode(&mut Columns::new(of, row))).collect()
    }
}

impl Answer for Vec<Vec<u8>> {
    const SHAPE: Shape = Shape::Set(<Vec<u8> as Value>::TYPE);
    fn decode<R: Row>(of: &Signature, rows: &[R]) -> Result<Self> {
        rows.iter().map(|row| Columns::new(of, row).next()).collect()
    }
}
