//! Declares the rows and statements of the catalog's tables, and of a shard's own.
//!
//! [`rows!`] declares a struct whose fields are columns of a table:
//!
//! ```text
//! rows! {
//!     /// A database.
//!     Database from "databases" { name: String, primary: ShardId = "primary_shard" }
//! }
//! ```
//!
//! A field is the column of its name, or the SQL expression after `=`. [`statements!`] declares functions that run one statement each:
//!
//! ```text
//! statements! {
//!     /// All databases, by name.
//!     pub fn all() -> Vec<Database> { select "ORDER BY name" }
//!
//!     /// Sets the primary shard.
//!     pub fn set_primary(name: &str, shard: ShardId) { run "UPDATE … SET primary_shard = $2 WHERE name = $1" }
//! }
//! ```
//!
//! * `run` runs the statement. `select` puts `SELECT … FROM …` before it, for the row that the function returns. Both use a new snapshot;
//!   `run_active` and `select_active` use the active one.
//! * The parameters `$1`, `$2`, … are the function's arguments in their order, or the list after the statement.
//! * The function returns a `Result` of its type: see the implementations of [`FromStatement`].

use crate::pg::error::Result;
use crate::pg::spi::cursor::Cursor;
use crate::pg::spi::{self, StatementResult};
use docshard_core::sql::param::Param;
use docshard_core::sql::record::{Record, decode, decode_all, decode_only};

/// A row of a table, or of some of its columns.
pub trait Stored: Record {
    /// the table in schema `docshard_catalog`, and what is joined with it
    const TABLE: &'static str;
    /// The columns, as SQL expressions, in the order of the fields.
    fn columns() -> String;
}

/// A type that can be decoded from a statement's result.
pub trait FromStatement: Sized {
    /// the type of the result's rows
    type Row;
    /// Decodes a statement's result; `statement` names the statement in errors.
    /// Errors: `InternalError` if a column has another type.
    fn decode(statement: &str, found: StatementResult) -> Result<Self>;
}

macro_rules! answers {
    ($([$($generic:tt)*] $type:ty, $row:ty, $statement:ident, $found:ident => $decoded:expr;)*) => {$(
        impl $($generic)* FromStatement for $type {
            type Row = $row;
            fn decode($statement: &str, $found: StatementResult) -> Result<Self> {
                $decoded
            }
        }
    )*};
}

answers! {
    // The result is ignored.
    [] (), (), _statement, _found => Ok(());
    // True if the statement returned or changed rows.
    [] bool, (), _statement, found => Ok(found.processed > 0);
    // The number of rows that the statement returned or changed.
    [] u64, (), _statement, found => Ok(found.processed);
    // The value of the only row.
    [] i32, i32, statement, found => decode_only(statement, &found.rows);
    [] i64, i64, statement, found => decode_only(statement, &found.rows);
    // The first row or value; None if there is none.
    [<T: Record>] Option<T>, T, statement, found => found.rows.first().map(|row| decode(statement, row)).transpose();
    // All rows or values.
    [<T: Record>] Vec<T>, T, statement, found => decode_all(statement, &found.rows);
}

/// Declares structs as rows of tables: see the [module](self).
macro_rules! rows {
    ($(
        $(#[$meta:meta])*
        $name:ident from $table:literal { $($(#[$about:meta])* $field:ident: $type:ty $(= $column:expr)?),* $(,)? }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$about])* pub $field: $type),*
        }

        docshard_core::sql::record::record! { $name { $($field: $type),* } }

        $crate::store::declare::stored! { $name from $table { $($field $(= $column)?),* } }
    )*};
}

/// Makes a record a row of a table, as `rows!` does.
macro_rules! stored {
    ($name:ident from $table:literal { $($field:ident $(= $column:expr)?),* }) => {
        impl $crate::store::declare::Stored for $name {
            const TABLE: &'static str = $table;
            fn columns() -> String {
                [$(String::from($crate::store::declare::column!($field $($column)?))),*].join(", ")
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

/// Declares functions that run one statement each: see the [module](self).
macro_rules! statements {
    ($(
        $(#[$doc:meta])*
        $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $answer:ty)? {
            $how:ident $sql:expr $(, [$($param:expr),* $(,)?])? $(,)?
        }
    )*) => {$(
        $(#[$doc])*
        $visible fn $name($($argument: $type),*) -> $crate::pg::error::Result<$crate::store::declare::answer!($($answer)?)> {
            $crate::store::declare::$how(
                concat!(module_path!(), "::", stringify!($name)),
                $sql.as_ref(),
                $crate::store::declare::params!([$($argument),*] $($($param),*)?),
            )
        }
    )*};
}

macro_rules! answer {
    () => {
        ()
    };
    ($answer:ty) => {
        $answer
    };
}

macro_rules! params {
    ([$($argument:ident),*]) => { &[$(docshard_core::sql::record::Argument::param(&$argument)),*] };
    ([$($argument:ident),*] $($param:expr),+) => { &[$(docshard_core::sql::record::Argument::param(&$param)),+] };
}

pub(crate) use {answer, column, params, rows, statements, stored};

/// Runs a statement in a new snapshot.
pub fn run<A: FromStatement>(statement: &str, sql: &str, params: &[Param<'_>]) -> Result<A> {
    A::decode(statement, spi::execute(sql, params)?)
}

/// Runs a statement that only reads, in the active snapshot.
pub fn run_active<A: FromStatement>(statement: &str, sql: &str, params: &[Param<'_>]) -> Result<A> {
    let rows = spi::read(sql, params)?;
    A::decode(statement, StatementResult { processed: rows.len() as u64, rows })
}

fn completed<T: Stored>(rest: &str) -> String {
    format!("SELECT {} FROM docshard_catalog.{} {rest}", T::columns(), T::TABLE)
}

/// Like [`run`], for the statement `SELECT … FROM …` followed by `rest`; with FOR UPDATE the rows are locked.
pub fn select<A: FromStatement<Row: Stored>>(statement: &str, rest: &str, params: &[Param<'_>]) -> Result<A> {
    run(statement, &completed::<A::Row>(rest), params)
}

/// Like [`select`], in the active snapshot.
pub fn select_active<A: FromStatement<Row: Stored>>(statement: &str, rest: &str, params: &[Param<'_>]) -> Result<A> {
    run_active(statement, &completed::<A::Row>(rest), params)
}

/// Like [`select_active`], but returns the rows one by one. After an error the iterator ends.
pub fn stream<T: Stored>(rest: &str, params: &[Param<'_>]) -> Result<impl Iterator<Item = Result<T>> + use<T>> {
    let mut rows = Some(Cursor::open(&completed::<T>(rest), params)?);
    Ok(std::iter::from_fn(move || {
        let row = rows.as_mut()?.next_row();
        let next = row.and_then(|row| row.map(|row| decode(T::TABLE, &row)).transpose());
        if !matches!(next, Ok(Some(_))) {
            rows = None;
        }
        next.transpose()
    }))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_test;

    rows! {
        /// Some columns.
        Sample from "shards s JOIN docshard_catalog.cluster c ON true" { id: i32 = "s.id", server: Option<String> = "s.server" }
    }

    statements! {
        /// One row of any content.
        fn sample(id: &str, server: Option<&str>) -> Option<Sample> { run &format!("SELECT {id}, $1"), [server] }

        /// The first shard.
        fn first() -> Option<Sample> { select "ORDER BY s.id" }
    }

    #[pg_test]
    fn a_value_of_another_type_is_an_error_that_names_statement_and_column() {
        let found = sample("7", None).unwrap().unwrap();
        assert_eq!((found.id, found.server), (7, None));
        assert_eq!(sample("7", Some("a")).unwrap().unwrap().server.as_deref(), Some("a"));
        assert_eq!(first().unwrap().unwrap().server, None);
        for (id, found) in [("NULL::pg_catalog.int4", "NULL or missing"), ("7::pg_catalog.int8", "8 bytes")] {
            let message = sample(id, None).unwrap_err().into_message();
            let expected = format!("store::declare::tests::sample: column \"id\" is {found}, not of type integer");
            assert!(message.ends_with(&expected), "{message}");
        }
    }
}
