//! Decodes the rows of the catalog's tables, and runs the statements that return them.
//!
//! INVARIANT: a value that is not of its field's type is an error that names table and column, never a default.

use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::pg::spi::{self, Row};
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;

/// A type that a column's value decodes to.
pub trait Column: Sized {
    /// what PostgreSQL calls it, for errors
    const TYPE: &'static str;
    /// The value in binary form; None if it is none of this type.
    fn decode(value: &[u8]) -> Option<Self>;
    /// What a null stands for; None if there must be none.
    fn null() -> Option<Self> {
        None
    }
}

macro_rules! columns {
    ($($type:ty, $name:literal, $decode:expr;)+) => {$(
        impl Column for $type {
            const TYPE: &'static str = $name;
            fn decode(value: &[u8]) -> Option<Self> {
                ($decode)(value)
            }
        }
    )+};
}

columns! {
    i32, "int4", |value: &[u8]| Some(i32::from_be_bytes(value.try_into().ok()?));
    Oid, "oid", |value: &[u8]| Some(Oid::from(u32::from_be_bytes(value.try_into().ok()?)));
    i64, "int8", |value: &[u8]| Some(i64::from_be_bytes(value.try_into().ok()?));
    bool, "boolean", |value: &[u8]| match value {
        [byte @ (0 | 1)] => Some(*byte == 1),
        _ => None,
    };
    String, "text", |value: &[u8]| String::from_utf8(value.to_vec()).ok();
    Vec<u8>, "bytea", |value: &[u8]| Some(value.to_vec());
    serde_json::Value, "json", |value: &[u8]| docshard_core::json::parse(std::str::from_utf8(value).ok()?).ok();
}

impl<C: Column> Column for Option<C> {
    const TYPE: &'static str = C::TYPE;
    fn decode(value: &[u8]) -> Option<Self> {
        C::decode(value).map(Some)
    }
    fn null() -> Option<Self> {
        Some(None)
    }
}

fn decode<C: Column>(row: &Row, index: usize, table: &str, column: &str) -> Result<C> {
    let value = row.get(index);
    value.map_or_else(C::null, C::decode).ok_or_else(|| {
        let found = value.map_or_else(|| "NULL".to_owned(), |value| format!("a value of {} bytes", value.len()));
        // What follows the table's name in a statement are joins.
        let table = table.split(' ').next().unwrap_or(table);
        Error::new(
            Kind::InternalError,
            format!("docshard_catalog.{table}: {column} is {found}, not a value of type {}", C::TYPE),
        )
    })
}

/// The cells of a row of some table, decoded one after the other.
pub struct Cells<'a> {
    table: &'static str,
    row: &'a Row,
    index: usize,
}

impl Cells<'_> {
    /// Decodes the next one, whose column is named for errors.
    ///
    /// # Errors
    /// `InternalError` if it is not of the type.
    pub fn next<C: Column>(&mut self, column: &str) -> Result<C> {
        self.index += 1;
        decode(self.row, self.index - 1, self.table, column)
    }
}

/// A row of a table, or of some of its columns: see [`row!`].
pub trait CatalogRow: Sized {
    /// the table in schema `docshard_catalog`, and what is joined with it
    const TABLE: &'static str;
    /// The columns, as SQL expressions, in the order of the fields.
    fn columns() -> String;
    /// Decodes all fields.
    ///
    /// # Errors
    /// `InternalError` if a value is not of its field's type.
    fn decode(cells: Cells<'_>) -> Result<Self>;
}

/// Declares a struct as a row of a table. A field is the column of its name, or the SQL expression that it is set equal to.
macro_rules! row {
    ($(#[$meta:meta])* pub struct $name:ident from $table:literal {
        $($(#[$doc:meta])* pub $field:ident: $type:ty $(= $column:expr)?,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }
        $crate::store::row::row_of! { $name from $table { $($field $(= $column)?,)+ } }
    };
}

/// Makes a struct that is declared elsewhere a row of a table, as [`row!`] does.
macro_rules! row_of {
    ($name:ident from $table:literal { $($field:ident $(= $column:expr)?,)+ }) => {
        impl $crate::store::row::CatalogRow for $name {
            const TABLE: &'static str = $table;
            fn columns() -> String {
                [$(String::from($crate::store::row::column!($field $($column)?))),+].join(", ")
            }
            fn decode(mut cells: $crate::store::row::Cells<'_>) -> $crate::pg::error::Result<Self> {
                Ok(Self { $($field: cells.next(stringify!($field))?),+ })
            }
        }
    };
}

macro_rules! column {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $column:expr) => {
        $column
    };
}

pub(super) use {column, row, row_of};

fn decoded<T: CatalogRow>(rows: &[Row]) -> Result<Vec<T>> {
    rows.iter().map(|row| T::decode(Cells { table: T::TABLE, row, index: 0 })).collect()
}

fn select<T: CatalogRow>(rest: &str) -> String {
    format!("SELECT {} FROM docshard_catalog.{} {rest}", T::columns(), T::TABLE)
}

/// The rows of `SELECT … FROM …` and this rest, in a snapshot of its own; with FOR UPDATE they are locked.
pub(super) fn query<T: CatalogRow>(rest: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
    decoded(&spi::query(&select::<T>(rest), params)?)
}

/// As [`query`], the first row.
pub(super) fn find<T: CatalogRow>(rest: &str, params: &[Param<'_>]) -> Result<Option<T>> {
    Ok(query(rest, params)?.into_iter().next())
}

/// As [`query`], in the active snapshot.
pub(super) fn read<T: CatalogRow>(rest: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
    decoded(&spi::read(&select::<T>(rest), params)?)
}

/// The values of one column, or of an expression, over the rows of a table.
pub(super) fn values<C: Column>(table: &str, column: &str, rest: &str, params: &[Param<'_>]) -> Result<Vec<C>> {
    let rows = spi::query(&format!("SELECT {column} FROM docshard_catalog.{table} {rest}"), params)?;
    rows.iter().map(|row| decode(row, 0, table, column)).collect()
}

/// As [`values`], in the active snapshot.
pub(super) fn read_values<C: Column>(table: &str, column: &str, rest: &str, params: &[Param<'_>]) -> Result<Vec<C>> {
    let rows = spi::read(&format!("SELECT {column} FROM docshard_catalog.{table} {rest}"), params)?;
    rows.iter().map(|row| decode(row, 0, table, column)).collect()
}

/// As [`values`], the first one.
pub(super) fn value<C: Column>(table: &str, column: &str, rest: &str, params: &[Param<'_>]) -> Result<Option<C>> {
    Ok(values(table, column, rest, params)?.into_iter().next())
}

/// True if a statement returns a row.
pub(super) fn exists(sql: &str, params: &[Param<'_>]) -> Result<bool> {
    Ok(!spi::query(sql, params)?.is_empty())
}

/// Runs a statement that changes rows.
pub(super) fn execute(sql: &str, params: &[Param<'_>]) -> Result<()> {
    spi::execute(sql, params).map(drop)
}

/// As [`execute`]; returns how many rows it has changed.
pub(super) fn count_changed(sql: &str, params: &[Param<'_>]) -> Result<u64> {
    Ok(spi::execute(sql, params)?.processed)
}

/// The value that a statement returns.
pub(super) fn scalar<C: Column>(sql: &str, params: &[Param<'_>]) -> Result<C> {
    let none = || Error::new(Kind::InternalError, format!("a statement returned no row: {sql}"));
    optional_scalar(sql, params)?.ok_or_else(none)
}

/// As [`scalar`]; None if there is no row.
pub(super) fn optional_scalar<C: Column>(sql: &str, params: &[Param<'_>]) -> Result<Option<C>> {
    spi::query(sql, params)?.first().map(|row| decode(row, 0, "", sql)).transpose()
}

/// As [`read`], row by row. After an error there are no more.
pub(super) fn stream<T: CatalogRow>(
    rest: &str,
    params: &[Param<'_>],
) -> Result<impl Iterator<Item = Result<T>> + use<T>> {
    let mut rows = Some(spi::cursor::Cursor::open(&select::<T>(rest), params)?);
    Ok(std::iter::from_fn(move || {
        let row = rows.as_mut()?.next_row();
        let next =
            row.and_then(|row| row.map(|row| T::decode(Cells { table: T::TABLE, row: &row, index: 0 })).transpose());
        if !matches!(next, Ok(Some(_))) {
            rows = None;
        }
        next.transpose()
    }))
}

/// The values of a column of the rows that a statement changes.
pub(super) fn returning<C: Column>(table: &str, column: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<C>> {
    let rows = spi::query(&format!("{sql} RETURNING {column}"), params)?;
    rows.iter().map(|row| decode(row, 0, table, column)).collect()
}

/// The rows that a statement changes.
pub(super) fn changed<T: CatalogRow>(sql: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
    decoded(&spi::query(&format!("{sql} RETURNING {}", T::columns()), params)?)
}

/// How many rows of a table there are.
pub(super) fn count(table: &str, rest: &str, params: &[Param<'_>]) -> Result<i64> {
    scalar(&format!("SELECT pg_catalog.count(*) FROM docshard_catalog.{table} {rest}"), params)
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    row! {
        /// Some columns.
        pub struct Sample from "shards s JOIN docshard_catalog.cluster c ON true" {
            /// an integer
            pub id: i32,
            /// perhaps text
            pub server: Option<String>,
        }
    }

    fn sample(cells: Vec<Option<&[u8]>>) -> Result<Sample> {
        let row = Row::new(cells.into_iter().map(|cell| cell.map(<[u8]>::to_vec)).collect());
        Sample::decode(Cells { table: Sample::TABLE, row: &row, index: 0 })
    }

    #[pg_test]
    fn a_value_of_another_type_is_an_error_that_names_table_and_column() {
        let id: &[u8] = &[0, 0, 0, 7];
        let good = sample(vec![Some(id), None]).unwrap();
        assert_eq!((good.id, good.server), (7, None));
        assert_eq!(sample(vec![Some(id), Some(b"a")]).unwrap().server.as_deref(), Some("a"));
        let message = |cells| sample(cells).unwrap_err().message;
        let is = |found: &str| format!("docshard_catalog.shards: id is {found}, not a value of type int4");
        assert_eq!(message(vec![None, None]), is("NULL"));
        assert_eq!(message(vec![Some(&[0; 8]), None]), is("a value of 8 bytes"));
        assert!(message(vec![Some(id), Some(b"\xff")]).starts_with("docshard_catalog.shards: server is"));
    }
}
