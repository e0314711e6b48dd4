//! Conversion between Rust types and SQL: the parameters of statements, and the rows of their results in binary format.
//!
//! INVARIANT: decoding is strict. A missing column, a NULL where none is declared, or a value of another type or width is an
//! error that names the statement and the column, never a default.

use super::column;
use super::param::Param;
use crate::error::{Error, Result};
use serde_json::Value as Json;

/// A type of parameters.
pub trait Argument {
    /// the SQL type, as PostgreSQL prints it
    const TYPE: &'static str;
    /// The parameter with this value.
    fn param(&self) -> Param<'_>;
}

macro_rules! arguments {
    ($($type:ty, $sql:literal, $value:ident => $param:expr;)*) => {$(
        impl Argument for $type {
            const TYPE: &'static str = $sql;
            fn param(&self) -> Param<'_> {
                let $value = self;
                $param
            }
        }
    )*};
}

arguments! {
    i32, "integer", value => Param::Int4(*value);
    Option<i32>, "integer", value => Param::OptInt4(*value);
    i64, "bigint", value => Param::Int8(*value);
    Option<i64>, "bigint", value => Param::OptInt8(*value);
    bool, "boolean", value => Param::Bool(*value);
    &str, "text", value => Param::Text(value);
    String, "text", value => Param::Text(value);
    Option<&str>, "text", value => Param::OptText(*value);
    Option<String>, "text", value => Param::OptText(value.as_deref());
    &[u8], "bytea", value => Param::Bytea(value);
    Vec<u8>, "bytea", value => Param::Bytea(value);
    Option<&[u8]>, "bytea", value => Param::OptBytea(*value);
    &[&str], "text[]", value => Param::TextArray(value);
    &[&[u8]], "bytea[]", value => Param::ByteaArray(value);
    &[i32], "integer[]", value => Param::Int4Array(value);
    &[i64], "bigint[]", value => Param::Int8Array(value);
}

/// A type of columns.
pub trait Value: Sized {
    /// the SQL type, as PostgreSQL prints it
    const TYPE: &'static str;
    /// the column in a row of another server
    const COLUMN: column::Column;
    /// Decodes a value that is not NULL; None if it is not of this type.
    fn decode(bytes: &[u8]) -> Option<Self>;
    /// The value for NULL; None if the column must not be NULL.
    fn null() -> Option<Self> {
        None
    }
}

macro_rules! values {
    ($($type:ty, $sql:literal, $column:ident, $bytes:ident => $decoded:expr;)*) => {$(
        impl Value for $type {
            const TYPE: &'static str = $sql;
            const COLUMN: column::Column = column::Column::$column;
            fn decode($bytes: &[u8]) -> Option<Self> {
                $decoded
            }
        }
    )*};
}

values! {
    i32, "integer", INT4, bytes => bytes.try_into().ok().map(i32::from_be_bytes);
    i64, "bigint", INT8, bytes => bytes.try_into().ok().map(i64::from_be_bytes);
    u32, "oid", INT4, bytes => bytes.try_into().ok().map(u32::from_be_bytes);
    bool, "boolean", BOOL, bytes => match bytes {
        [byte @ (0 | 1)] => Some(*byte == 1),
        _ => None,
    };
    String, "text", BYTES, bytes => std::str::from_utf8(bytes).ok().map(str::to_owned);
    Vec<u8>, "bytea", BYTES, bytes => Some(bytes.to_vec());
    Json, "json", BYTES, bytes => crate::json::parse(std::str::from_utf8(bytes).ok()?).ok();
}

impl<V: Value> Value for Option<V> {
    const TYPE: &'static str = V::TYPE;
    const COLUMN: column::Column = V::COLUMN.or_null();
    fn decode(bytes: &[u8]) -> Option<Self> {
        V::decode(bytes).map(Some)
    }
    fn null() -> Option<Self> {
        Some(None)
    }
}

/// A row of a result, of this backend or of another server.
pub trait Row {
    /// A column's value in binary format; None for NULL, and for a column that the row does not have.
    fn column(&self, column: usize) -> Option<&[u8]>;
}

/// The name and SQL type of a column or an argument.
pub type Column = (&'static str, &'static str);

/// A type that a row is decoded to: a struct with a field for each column, or the value of the only column.
pub trait Record: Sized {
    /// the columns, in the order of the fields
    const COLUMNS: &'static [Column];
    /// the same, as another server sends them
    const WIRE: &'static [column::Column];
    /// Decodes the columns in their order.
    ///
    /// # Errors
    /// 08P01 if a value is not of its field's type.
    fn decode(columns: &mut Columns<'_, impl Row>) -> Result<Self>;
}

impl<V: Value> Record for V {
    /// the only column, which needs no name
    const COLUMNS: &'static [Column] = &[("", V::TYPE)];
    const WIRE: &'static [column::Column] = &[V::COLUMN];
    fn decode(columns: &mut Columns<'_, impl Row>) -> Result<Self> {
        columns.next()
    }
}

impl Record for () {
    const COLUMNS: &'static [Column] = &[];
    const WIRE: &'static [column::Column] = &[];
    fn decode(_columns: &mut Columns<'_, impl Row>) -> Result<Self> {
        Ok(())
    }
}

/// Several columns without a struct of their own.
macro_rules! tuples {
    ($(($($value:ident),*);)*) => {$(
        impl<$($value: Value),*> Record for ($($value,)*) {
            const COLUMNS: &'static [Column] = &[$(("", $value::TYPE)),*];
            const WIRE: &'static [column::Column] = &[$($value::COLUMN),*];
            fn decode(columns: &mut Columns<'_, impl Row>) -> Result<Self> {
                Ok(($(columns.next::<$value>()?,)*))
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
}

/// Makes a struct a [`Record`].
#[doc(hidden)]
#[macro_export]
macro_rules! __record {
    ($name:ident { $($field:ident: $type:ty),* }) => {
        impl $crate::sql::record::Record for $name {
            const COLUMNS: &'static [$crate::sql::record::Column] =
                &[$((stringify!($field), <$type as $crate::sql::record::Value>::TYPE)),*];
            const WIRE: &'static [$crate::sql::column::Column] =
                &[$(<$type as $crate::sql::record::Value>::COLUMN),*];

            fn decode(
                columns: &mut $crate::sql::record::Columns<'_, impl $crate::sql::record::Row>,
            ) -> $crate::error::Result<Self> {
                Ok(Self { $($field: columns.next()?),* })
            }
        }
    };
}

/// Makes an enum with a function `parse` the type of text columns; the literal describes it in errors.
#[doc(hidden)]
#[macro_export]
macro_rules! __text_columns {
    ($($type:ty: $about:literal),* $(,)?) => {$(
        impl $crate::sql::record::Value for $type {
            const COLUMN: $crate::sql::column::Column = $crate::sql::column::Column::BYTES;
            const TYPE: &'static str = $about;
            fn decode(bytes: &[u8]) -> Option<Self> {
                Self::parse(std::str::from_utf8(bytes).ok()?)
            }
        }
    )*};
}

pub use {__record as record, __text_columns as text_columns};

/// The columns of a row that have not been decoded yet.
pub struct Columns<'a, R> {
    /// the statement, for errors
    statement: &'a str,
    names: &'static [Column],
    row: &'a R,
    next: usize,
}

#[allow(clippy::should_implement_trait, reason = "each column has a type of its own")]
impl<R: Row> Columns<'_, R> {
    /// Decodes the next column.
    ///
    /// # Errors
    /// 08P01 if its value is not of this type.
    pub fn next<V: Value>(&mut self) -> Result<V> {
        let at = self.next;
        self.next += 1;
        let bytes = self.row.column(at);
        bytes.map_or_else(V::null, V::decode).ok_or_else(|| {
            let found = bytes.map_or_else(|| "NULL or missing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
            let (column, _) = self.names.get(at).copied().unwrap_or_default();
            let column = if column.is_empty() { "the value".to_owned() } else { format!("column \"{column}\"") };
            malformed(self.statement, &format!("{column} is {found}, not of type {}", V::TYPE))
        })
    }
}

/// The error for a result that is not as declared.
pub fn malformed(statement: &str, what: &str) -> Error {
    Error::protocol_violation(format!("malformed answer to {statement}: {what}"))
}

/// Parses JSON that a statement has returned, within bounds of time and memory.
///
/// # Errors
/// [`malformed`] for anything else.
pub fn parse_json(statement: &str, bytes: &[u8]) -> Result<Json> {
    let text = std::str::from_utf8(bytes).map_err(|error| malformed(statement, &error.to_string()))?;
    crate::json::parse(text).map_err(|error| malformed(statement, &error.to_string()))
}

/// Decodes a row of a statement's result.
///
/// # Errors
/// Those of [`Record::decode`].
pub fn decode<T: Record>(statement: &str, row: &impl Row) -> Result<T> {
    T::decode(&mut Columns { statement, names: T::COLUMNS, row, next: 0 })
}

/// Decodes all rows of a statement's result.
///
/// # Errors
/// Those of [`Record::decode`].
pub fn decode_all<T: Record, R: Row>(statement: &str, rows: &[R]) -> Result<Vec<T>> {
    rows.iter().map(|row| decode(statement, row)).collect()
}

/// Decodes a result that must be one row.
///
/// # Errors
/// 08P01 for another number of rows; those of [`Record::decode`].
pub fn decode_only<T: Record, R: Row>(statement: &str, rows: &[R]) -> Result<T> {
    match rows {
        [row] => decode(statement, row),
        _ => Err(malformed(statement, &format!("{} rows, not one", rows.len()))),
    }
}
