//! The interface between a wrapper's callbacks and the layer above: the definition of a table, and the traits that the layer above
//! implements.

use super::clause::{self, Clause};
use super::value::{Kind, SqlValue};
use crate::pg::error::{Error, Raise as _, Result};
use crate::pg::security::user;
use crate::pg::server;
use docshard_core::error::Kind as ErrorKind;
use pgrx::pg_sys;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::any::Any;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::OnceLock;

/// A name with its text, as `OPTIONS (name 'text')`.
pub type Setting = (String, String);

/// The column number under which a scan returns the *origin* of a row, by which [`Modify`] finds the row again. All tables have a system
/// column of this number, so one column of a plan serves all partitions.
pub const ORIGIN: i16 = -5;

/// The kind of object that options belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Wrapper,
    Server,
    UserMapping,
    Table,
    Column,
}

/// A foreign table as the catalog has it.
#[derive(Clone, Debug)]
pub struct Definition {
    /// the table's name, for messages
    pub name: String,
    pub options: Vec<Setting>,
    pub columns: Vec<ColumnDefinition>,
}

/// What a statement does with a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

#[derive(Clone, Debug)]
pub struct ColumnDefinition {
    /// from 1
    pub number: i16,
    pub name: String,
    /// None: a type that a foreign table cannot have
    pub kind: Option<Kind>,
    /// the type's name, for messages
    pub type_name: String,
    pub not_null: bool,
    pub options: Vec<Setting>,
}

/// What `IMPORT FOREIGN SCHEMA` asks for.
#[derive(Clone, Debug)]
pub struct Import {
    /// the server's name
    pub server: String,
    pub remote_schema: String,
    /// the tables of LIMIT TO or EXCEPT
    pub tables: Vec<String>,
    pub limit_to: bool,
    pub except: bool,
    pub options: Vec<Setting>,
}

/// A condition that a table evaluates.
#[derive(Clone, Debug)]
pub struct Translation {
    /// the condition, for [`Table::scan`]; its operands have the same numbers as those of the clause
    pub condition: Json,
    /// true: the condition is true for the same rows as the clause; false: it may be true for more rows, and PostgreSQL evaluates the
    /// clause again
    pub is_exact: bool,
    /// columns that cannot be NULL in the rows for which the condition is true
    pub not_null: Vec<i16>,
}

/// A key of an order.
#[derive(Clone, Copy, Debug)]
pub struct SortKey {
    pub column: i16,
    pub descending: bool,
    pub nulls_first: bool,
    /// the conditions exclude NULL
    pub is_not_null: bool,
    /// how strings are ordered
    pub collation: clause::Collation,
}

/// An aggregate function, with SQL's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    Count,
    Sum,
    Avg,
    Min,
    Max,
}

/// A call of an aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateCall {
    pub function: Function,
    /// None: `count(*)`
    pub column: Option<i16>,
    /// how strings are compared
    pub collation: clause::Collation,
}

/// `GROUP BY` with aggregates. A row has the keys, and then the results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Groups {
    pub keys: Vec<(i16, clause::Collation)>,
    pub calls: Vec<AggregateCall>,
    /// there are no keys: the result is one row, even if the table has none
    pub is_whole: bool,
    /// the columns of the conditions
    pub compared: Vec<i16>,
}

pub trait Wrapper: Sync {
    /// Checks options.
    fn validate(&self, owner: Owner, options: &[Setting]) -> Result<()>;
    fn open(&self, definition: Definition) -> Result<Rc<dyn Table>>;
    /// The statements that create the foreign tables of a schema.
    fn import(&self, import: &Import) -> Result<Vec<String>>;
}

/// A foreign table. It is cached until PostgreSQL reports that the relation has changed.
pub trait Table {
    /// The number of the table's rows, estimated without asking other servers; None if there is no estimate.
    fn estimate(&self) -> Result<Option<f64>>;
    /// The number of the table's rows, according to the other servers' statistics.
    fn rows(&self) -> Result<f64>;
    /// The number of servers that read the table at the same time.
    fn parallelism(&self) -> usize;
    /// Starts a sample of at most this many rows, in random order. Values that do not fit are NULL.
    fn sample(&self, most: usize) -> Result<Box<dyn Scan>>;
    /// Returns the part of a condition that the table can evaluate; None if it can evaluate nothing of it.
    fn translate(&self, clause: &Clause) -> Option<Translation>;
    /// Returns an order in the table's own terms; None if the table cannot return rows in exactly this order.
    fn order(&self, keys: &[SortKey]) -> Option<Json>;
    /// True if the conditions find rows by a key or an index.
    fn narrows(&self, conditions: &[Json]) -> bool;
    /// True if the table evaluates these groups exactly as PostgreSQL would.
    fn can_group(&self, groups: &Groups) -> bool;
    /// True if the table can update or delete rows without returning them. `compared`: the columns of the conditions, which are all exact;
    /// `set`: the columns that an UPDATE sets.
    fn can_write(&self, compared: &[i16], set: &[i16]) -> bool;
    /// The relation that is invalidated when [`can_write`](Self::can_write) may return something else.
    fn watched(&self) -> Option<pg_sys::Oid>;
    /// `is_of_other_user`: the table is read with another user's privileges, as in a view: errors must not show its rows to the current
    /// user.
    fn scan(&self, plan: &Rc<ScanPlan>, is_of_other_user: bool) -> Result<Box<dyn Scan>>;
    /// Checks that the current user may do this.
    fn check(&self, access: Access) -> Result<()>;
    /// Starts writing. `returned`: the columns that RETURNING names.
    fn modify(&self, returned: Vec<i16>) -> Result<Box<dyn Modify>>;
    /// Deletes all rows.
    fn truncate(&self) -> Result<()>;
}

/// Columns with their values; None is NULL.
pub type RowValues = Vec<(i16, Option<SqlValue>)>;

/// A statement that writes.
pub trait Modify {
    /// Inserts a row. Returns the stored values, without values unless `is_read`; None for a row that was skipped because of a conflict.
    fn insert(&mut self, row: RowValues, skips_conflicts: bool, is_read: bool) -> Result<Option<RowValues>>;
    /// Takes a row, which is inserted by [`finish`](Self::finish) or before. Returns how many rows were inserted now.
    fn collect(&mut self, row: RowValues, skips_conflicts: bool) -> Result<usize>;
    /// Inserts the rows that [`collect`](Self::collect) has taken; returns how many. `skips_conflicts`: rows with a conflict are skipped.
    fn finish(&mut self, skips_conflicts: bool) -> Result<usize>;
    /// Changes columns of the row with this origin. Returns the stored values, without values unless `is_read`; None if the row no longer
    /// exists.
    fn update(&mut self, origin: &[u8], new: RowValues, is_read: bool) -> Result<Option<RowValues>>;
    /// Deletes the row with this origin. Returns its former values, without values unless `is_read`; None if the row no longer exists.
    fn delete(&mut self, origin: &[u8], is_read: bool) -> Result<Option<RowValues>>;
}

/// A write of all rows that a scan selects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectWrite {
    /// columns, and the operands that are their new values; None: the rows are deleted
    pub set: Option<Vec<(i16, usize)>>,
    /// the rows of this write count as the statement's, in its command tag
    pub counts: bool,
}

/// The work of a scan, as the plan keeps it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScanPlan {
    /// results of [`Table::translate`], each with the number of its first operand
    pub conditions: Vec<(Json, usize)>,
    /// a result of [`Table::order`]; None: any order
    pub order: Option<Json>,
    /// the columns that are read, in order
    pub columns: Vec<i16>,
    /// rows are updated or deleted: they have an [`ORIGIN`]
    pub is_target: bool,
    /// all columns of a row that is written are needed, as by triggers
    pub shows_rows: bool,
    /// the operands that are the statement's LIMIT and OFFSET
    pub limit: Option<usize>,
    pub offset: Option<usize>,
    /// after the operands comes an array of values that a batched join sets
    pub has_batch: bool,
    /// the rows are groups
    pub groups: Option<Groups>,
    /// the rows are not returned, but written
    pub write: Option<DirectWrite>,
    /// the columns of conditions that hide rows from the reader, such as those of a view with `security_barrier`
    pub hiding: Vec<i16>,
    /// if a view is read: for each condition that is evaluated here, its columns; None for a condition that does not decide whether a value
    /// that does not fit is an error
    pub deciding: Vec<Option<Vec<i16>>>,
    /// the conditions in the table's own form, cached as long as the plan lives
    #[serde(skip)]
    pub prepared: OnceCell<Rc<dyn Any>>,
}

/// What a shard has returned.
#[derive(Clone, Debug, Default)]
pub struct RemotePart {
    pub name: String,
    pub rows: u64,
    /// from the request to the last row that was read, in milliseconds
    pub took_ms: u64,
}

/// The values of a row that do not fit their columns.
#[derive(Clone, Debug)]
pub struct Misfit {
    pub error: Error,
    pub columns: Vec<i16>,
}

/// A scan of a foreign table. It can be started several times.
pub trait Scan {
    /// Starts from the beginning. NULL operands are None.
    fn start(&mut self, operands: Vec<Option<SqlValue>>, limit: Option<u64>) -> Result<()>;
    /// Reads the next row; false after the last one. Calls `put` with each value that is not NULL, and with the origin. A value's number is
    /// that of its column, or its position in a row of groups, from 1.
    fn next_row(&mut self, put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<bool>;
    /// Takes the error of the last row, if values of the row do not fit their columns; these columns are NULL in the row. The error is raised
    /// if the row passes the conditions that PostgreSQL evaluates on other columns.
    fn take_misfit(&mut self) -> Option<Misfit>;
    /// The number of rows that [`start`](Self::start) has written; None if the scan only reads.
    fn written(&self) -> Option<u64> {
        None
    }
    /// Begins to measure what each shard returns, for EXPLAIN ANALYZE.
    fn observe(&mut self) {}
    /// What each shard has returned so far.
    fn parts(&self) -> Vec<RemotePart> {
        Vec::new()
    }
    /// Refuses to start if the scan would see what was written after the snapshot with this command number.
    /// Errors: `NotImplemented`.
    fn refuse_newer(&self, command: u32) -> Result<()>;
    /// Releases the resources of a started scan.
    fn stop(&mut self);
    /// Returns what EXPLAIN shows: labels and texts.
    fn explain(
        &self,
        operands: Vec<Option<SqlValue>>,
        limit: Option<u64>,
        verbose: bool,
    ) -> Result<Vec<(String, String)>>;
}

static WRAPPER: OnceLock<&'static dyn Wrapper> = OnceLock::new();

/// Sets the wrapper that callbacks use.
pub(super) fn set_wrapper(wrapper: &'static dyn Wrapper) {
    let _ = WRAPPER.set(wrapper);
}

pub(super) fn wrapper() -> &'static dyn Wrapper {
    WRAPPER.get().copied().unwrap_or_else(|| unreachable!("callbacks are known after the handler was called"))
}

/// Reads or writes with the rights of `user`: the current user, or the owner of a view that the statement reads. In the second case the
/// error about a document that violates a validator has no details, as the view may hide the document's fields.
pub(super) fn with_rights_of<T>(user: pg_sys::Oid, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_other = user != pg_sys::InvalidOid && user != server::current_user();
    user::as_checked_user(user, work).map_err(|mut error| {
        if is_other && error.kind == ErrorKind::DocumentValidationFailure {
            error.detail = None;
        }
        error
    })
}

pub(super) fn raise<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| error.raise())
}
