//! Runs SQL in this backend, with cached plans. Results have libpq's binary format, like the results of statements on other servers.

pub mod cursor;
pub mod instrumentation;
pub mod param;

use crate::pg::datum::jsonb::detoasted_bytes;
use crate::pg::error::{Error, Raise as _, Result};
use crate::pg::security::pinned::Pinned;
use crate::pg::security::search_path;
use docshard_core::error::{Kind, bail, error};
use docshard_core::sql::param::Param;
use docshard_core::sql::record;
use pgrx::{FromDatum, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// A row in binary format.
#[derive(Debug, Clone, Default)]
pub struct SpiRow(Vec<Option<Vec<u8>>>);

impl record::Row for SpiRow {
    fn column(&self, column: usize) -> Option<&[u8]> {
        self.get(column)
    }
}

impl SpiRow {
    pub fn new(cells: Vec<Option<Vec<u8>>>) -> Self {
        SpiRow(cells)
    }
    /// None for null.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column).and_then(|cell| cell.as_deref())
    }
    /// The bytes of all columns together.
    fn bytes_of_all(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }
    /// Reads a column. Raises an ERROR for null or a value of another type: then the statement, or another server's answer, is wrong.
    fn value<'a, T>(&'a self, column: usize, read: impl FnOnce(&'a [u8]) -> Option<T>) -> T {
        let cell = self.get(column);
        cell.and_then(read).unwrap_or_else(|| {
            let found = cell.map_or_else(|| "null".to_owned(), |bytes| format!("{} bytes", bytes.len()));
            error!(Kind::InternalError, "unexpected value in column {column} of an answer: {found}").raise()
        })
    }
    /// Reads an int8 or an int4.
    pub fn i64(&self, column: usize) -> i64 {
        self.value(column, |bytes| match bytes.len() {
            8 => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
            4 => Some(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            _ => None,
        })
    }
    pub fn i32(&self, column: usize) -> i32 {
        self.value(column, |bytes| Some(i32::from_be_bytes(bytes.try_into().ok()?)))
    }
    pub fn bool(&self, column: usize) -> bool {
        self.value(column, |bytes| match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        })
    }
    pub fn text(&self, column: usize) -> &str {
        self.value(column, |bytes| std::str::from_utf8(bytes).ok())
    }
    pub fn opt_text(&self, column: usize) -> Option<&str> {
        self.get(column).map(|_| self.text(column))
    }
    pub fn bytes(&self, column: usize) -> Vec<u8> {
        self.value(column, |bytes| Some(bytes.to_vec()))
    }
}

/// Calls SPI_connect, and SPI_finish when dropped.
pub(in crate::pg) struct Connection;

impl Connection {
    pub(in crate::pg) fn open() -> Self {
        // SAFETY: finished on drop; if an ERROR unwinds, PostgreSQL's abort processing finishes it.
        let code = unsafe { pg_sys::SPI_connect() };
        assert!(code == pg_sys::SPI_OK_CONNECT as i32, "SPI_connect answered {code}");
        Self
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: pairs with SPI_connect, as this is only ever a local variable: what was connected later has finished. After an ERROR
            // that was caught without a subtransaction the transaction fails, and its abort finishes what is left.
            unsafe { pg_sys::SPI_finish() };
        }
    }
}

/// A cached plan. The caller holds a reference while the plan runs, because a nested call may replace or evict the cache's.
pub(in crate::pg) struct Plan {
    plan: pg_sys::SPIPlanPtr,
    /// the types of its parameters
    types: Vec<pg_sys::Oid>,
    /// the user for whom it was made
    user: pg_sys::Oid,
    /// time of the last use, by [`CLOCK`]
    used: Cell<u64>,
}

impl Plan {
    pub(in crate::pg) fn as_ptr(&self) -> pg_sys::SPIPlanPtr {
        self.plan
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // An ERROR may be unwinding, or the process ending, so `make_room` frees the plan later. SPI_keepplan has made the plan outlive
        // transactions.
        let _ = GARBAGE.try_with(|garbage| garbage.borrow_mut().push(self.plan));
    }
}

thread_local! {
    static PLANS: RefCell<HashMap<String, Rc<Plan>>> = RefCell::new(HashMap::new());
    /// Counts the uses of plans.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// Evicted plans, to be freed.
    static GARBAGE: RefCell<Vec<pg_sys::SPIPlanPtr>> = const { RefCell::new(Vec::new()) };
}

/// The maximum number of cached plans. There are few different statements, unless texts are built from values.
const MAX_PLANS: usize = 512;

pub(in crate::pg) fn failed(what: &str, code: i32) -> Error {
    // SAFETY: returns a static C string.
    let name = unsafe { CStr::from_ptr(pg_sys::SPI_result_code_string(code)) };
    error!(Kind::InternalError, "{what} answered {}", name.to_string_lossy())
}

/// Evicts the least recently used idle plan if the cache is full, and frees the plans in [`GARBAGE`].
fn make_room(plans: &mut HashMap<String, Rc<Plan>>) {
    if plans.len() >= MAX_PLANS {
        let idle = plans.iter().filter(|(_, plan)| Rc::strong_count(plan) == 1);
        let oldest = idle.min_by_key(|(_, plan)| plan.used.get()).map(|(sql, _)| sql.clone());
        oldest.and_then(|sql| plans.remove(&sql));
    }
    for plan in GARBAGE.take() {
        // SAFETY: kept by us and no longer referenced. A cursor over it has a copy of what it needs.
        unsafe { pg_sys::SPI_freeplan(plan) };
    }
}

/// Returns the cached plan of a statement, or of a cursor with these `CURSOR_OPT_…`.
///
/// INVARIANTS: The plan's parameters have the types of `params`: a router chooses text and parameters of a shard's statement, so the same
/// text may come with other types. The plan was made for the current user: PostgreSQL checks the privileges on schemas when it parses a
/// statement, not when it executes the plan.
pub(in crate::pg) fn plan(sql: &str, params: &[Param<'_>], options: i32) -> Result<Rc<Plan>> {
    let marked;
    let sql = if options == 0 {
        sql
    } else {
        marked = format!("/* {options} */ {sql}");
        &marked
    };
    let now = CLOCK.get() + 1;
    CLOCK.set(now);
    let types = params.iter().map(param::type_oid);
    let cached = PLANS.with_borrow(|plans| plans.get(sql).cloned());
    // SAFETY: reads backend-local state.
    let user = unsafe { pg_sys::GetUserId() };
    if let Some(plan) = cached.filter(|plan| plan.user == user && types.clone().eq(plan.types.iter().copied())) {
        plan.used.set(now);
        return Ok(plan);
    }
    let text = CString::new(sql).map_err(|_| error!(Kind::BadValue, "SQL text with a zero byte"))?;
    search_path::check(&text)?;
    let mut types: Vec<pg_sys::Oid> = types.collect();
    // SAFETY: connected; the plan is kept in memory of its own, and PostgreSQL replans it when objects change.
    let plan = unsafe {
        let plan = pg_sys::SPI_prepare_cursor(text.as_ptr(), types.len() as i32, types.as_mut_ptr(), options);
        if plan.is_null() {
            return Err(failed("SPI_prepare", pg_sys::SPI_result));
        }
        pg_sys::SPI_keepplan(plan);
        plan
    };
    let plan = Rc::new(Plan { plan, types, user, used: Cell::new(now) });
    PLANS.with_borrow_mut(|plans| {
        make_room(plans);
        plans.insert(sql.to_owned(), Rc::clone(&plan));
    });
    Ok(plan)
}

pub(in crate::pg) struct Bound {
    pub(in crate::pg) values: Vec<pg_sys::Datum>,
    pub(in crate::pg) nulls: Vec<std::ffi::c_char>,
}

pub(in crate::pg) fn bind(params: &[Param<'_>]) -> Bound {
    let null = |datum: Option<_>| if datum.is_some() { b' ' } else { b'n' } as std::ffi::c_char;
    let (values, nulls) = params.iter().map(param::datum).map(|d| (d.unwrap_or(0.into()), null(d))).unzip();
    Bound { values, nulls }
}

/// The result of a statement.
#[derive(Debug, Default)]
pub struct StatementResult {
    pub rows: Vec<SpiRow>,
    /// the number of rows that it returned or changed
    pub processed: u64,
}

fn run(sql: &str, params: &[Param<'_>], snapshot: pg_sys::Snapshot, read_only: bool) -> Result<StatementResult> {
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    let plan = plan(sql, params, 0)?;
    let mut bound = bind(params);
    // SAFETY: connected; values and nulls match the plan's parameters.
    unsafe {
        let code = pg_sys::SPI_execute_snapshot(
            plan.as_ptr(),
            bound.values.as_mut_ptr(),
            bound.nulls.as_ptr(),
            snapshot,
            std::ptr::null_mut(),
            read_only,
            true,
            0,
        );
        if code < 0 {
            return Err(failed("SPI_execute_snapshot", code));
        }
        let processed = pg_sys::SPI_processed;
        let rows = if pg_sys::SPI_tuptable.is_null() { Vec::new() } else { rows(pg_sys::SPI_tuptable, processed)? };
        Ok(StatementResult { rows, processed })
    }
}

/// Runs a statement as the current user, in a new snapshot. An error in the statement is a PostgreSQL ERROR.
pub fn execute(sql: &str, params: &[Param<'_>]) -> Result<StatementResult> {
    run(sql, params, std::ptr::null_mut(), false)
}

/// Like [`execute`], but returns only the rows.
pub fn query(sql: &str, params: &[Param<'_>]) -> Result<Vec<SpiRow>> {
    Ok(execute(sql, params)?.rows)
}

/// Runs a statement that only reads, in the active snapshot, and returns its rows.
pub fn read(sql: &str, params: &[Param<'_>]) -> Result<Vec<SpiRow>> {
    // A null snapshot and read_only = true mean the active snapshot.
    Ok(run(sql, params, std::ptr::null_mut(), true)?.rows)
}

/// Runs a writing statement in the active snapshot, in which the caller has checked the version.
pub fn write_in_active_snapshot(sql: &str, params: &[Param<'_>]) -> Result<StatementResult> {
    // SAFETY: the caller pushed a snapshot; SPI copies it.
    let snapshot = unsafe { pg_sys::GetActiveSnapshot() };
    run(sql, params, snapshot, false)
}

/// Runs DDL.
pub fn run_script(sql: &str) -> Result<()> {
    let text = CString::new(sql).map_err(|_| error!(Kind::BadValue, "SQL text with a zero byte"))?;
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    search_path::check(&text)?;
    // SAFETY: connected.
    let code = unsafe { pg_sys::SPI_execute(text.as_ptr(), false, 0) };
    if code < 0 { Err(failed("SPI_execute", code)) } else { Ok(()) }
}

/// SAFETY: `table` is SPI's result with `count` rows.
pub(in crate::pg) unsafe fn rows(table: *mut pg_sys::SPITupleTable, count: u64) -> Result<Vec<SpiRow>> {
    // SAFETY: promised by the caller.
    unsafe {
        let desc = (*table).tupdesc;
        let columns = (*desc).natts as usize;
        let types: Vec<pg_sys::Oid> = (1..=columns).map(|c| pg_sys::SPI_gettypeid(desc, c as i32)).collect();
        let mut rows = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            let tuple = *(*table).vals.add(i);
            let mut cells = Vec::with_capacity(columns);
            for (c, &type_oid) in types.iter().enumerate() {
                let mut is_null = false;
                let datum = pg_sys::SPI_getbinval(tuple, desc, c as i32 + 1, &mut is_null);
                cells.push(if is_null { None } else { Some(binary(datum, type_oid)?) });
            }
            rows.push(SpiRow(cells));
        }
        Ok(rows)
    }
}

/// SAFETY: a non-null datum of that type.
unsafe fn binary(datum: pg_sys::Datum, type_oid: pg_sys::Oid) -> Result<Vec<u8>> {
    // SAFETY: promised by the caller.
    unsafe {
        Ok(match type_oid {
            pg_sys::BYTEAOID | pg_sys::TEXTOID | pg_sys::JSONOID | pg_sys::JSONBOID | pg_sys::VARCHAROID => {
                detoasted_bytes(datum).to_vec()
            }
            pg_sys::NAMEOID => CStr::from_ptr(datum.cast_mut_ptr()).to_bytes().to_vec(),
            pg_sys::INT8OID => i64::from_datum(datum, false).unwrap_or(0).to_be_bytes().to_vec(),
            pg_sys::INT4OID => i32::from_datum(datum, false).unwrap_or(0).to_be_bytes().to_vec(),
            pg_sys::OIDOID => (datum.value() as u32).to_be_bytes().to_vec(),
            pg_sys::VOIDOID => Vec::new(),
            pg_sys::BOOLOID => vec![u8::from(bool::from_datum(datum, false).unwrap_or(false))],
            other => {
                bail!(Kind::TypeMismatch, "column of unexpected type {}", u32::from(other));
            }
        })
    }
}
