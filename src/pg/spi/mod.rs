//! SQL in this backend, with cached plans.
//!
//! Results come in the binary form that libpq delivers from other servers (integers big-endian, bytea and text as their
//! bytes), so everything above reads one kind of row.

pub mod cursor;
pub mod param;
pub mod quote;

use crate::pg::error::{Error, Result};
use crate::pg::security::search_path::{self, Pinned};
use crate::pg::spi::param::Param;
use docshard_core::error::Kind;
use pgrx::{FromDatum, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// A row in binary form.
#[derive(Debug, Clone, Default)]
pub struct Row(Vec<Option<Vec<u8>>>);

impl Row {
    /// A row of these cells.
    pub fn new(cells: Vec<Option<Vec<u8>>>) -> Self {
        Row(cells)
    }
    /// A column's bytes; None for null.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column).and_then(|cell| cell.as_deref())
    }
    /// A column that is not null. A null, or a value of another type, is a mistake in the statement, or in another server's
    /// answer.
    ///
    /// # Panics
    /// With an ERROR of PostgreSQL's, where the value is not to be had.
    fn value<'a, T>(&'a self, column: usize, read: impl FnOnce(&'a [u8]) -> Option<T>) -> T {
        let cell = self.get(column);
        cell.and_then(read).unwrap_or_else(|| {
            let found = cell.map_or_else(|| "null".to_owned(), |bytes| format!("{} bytes", bytes.len()));
            Error::new(Kind::InternalError, format!("column {column} of an answer is {found}, not what was asked for"))
                .raise()
        })
    }
    /// An int8 column (int4 widens).
    pub fn i64(&self, column: usize) -> i64 {
        self.value(column, |bytes| match bytes.len() {
            8 => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
            4 => Some(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            _ => None,
        })
    }
    /// An int4 column.
    pub fn i32(&self, column: usize) -> i32 {
        self.value(column, |bytes| Some(i32::from_be_bytes(bytes.try_into().ok()?)))
    }
    /// A boolean column.
    pub fn bool(&self, column: usize) -> bool {
        self.value(column, |bytes| match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        })
    }
    /// A text column.
    pub fn text(&self, column: usize) -> &str {
        self.value(column, |bytes| std::str::from_utf8(bytes).ok())
    }
    /// A text column; None for null.
    pub fn opt_text(&self, column: usize) -> Option<&str> {
        self.get(column).map(|_| self.text(column))
    }
    /// A bytea column, owned.
    pub fn bytes(&self, column: usize) -> Vec<u8> {
        self.value(column, |bytes| Some(bytes.to_vec()))
    }
}

/// SPI_connect and SPI_finish around a piece of work.
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
            // SAFETY: pairs with SPI_connect.
            unsafe { pg_sys::SPI_finish() };
        }
    }
}

/// A kept plan. Who runs it holds it: calls nest, so others may be prepared meanwhile, and put this one out of [`PLANS`].
pub(in crate::pg) struct Plan {
    plan: pg_sys::SPIPlanPtr,
    /// when it was asked for last, by [`CLOCK`]
    used: Cell<u64>,
}

impl Plan {
    /// For a call of SPI, for as long as this is held.
    pub(in crate::pg) fn as_ptr(&self) -> pg_sys::SPIPlanPtr {
        self.plan
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // An ERROR may be unwinding: it is freed at a quiet moment.
        let _ = GARBAGE.try_with(|garbage| garbage.borrow_mut().push(self.plan));
    }
}

thread_local! {
    static PLANS: RefCell<HashMap<String, Rc<Plan>>> = RefCell::new(HashMap::new());
    /// Counts the uses of plans.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// Plans that nobody holds any more.
    static GARBAGE: RefCell<Vec<pg_sys::SPIPlanPtr>> = const { RefCell::new(Vec::new()) };
    /// Cursors whose reader went away at a moment when nothing could be closed.
    static ABANDONED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// How many plans are kept; statements have few shapes, so more means somebody builds text from values.
const MAX_PLANS: usize = 512;

pub(in crate::pg) fn failed(what: &str, code: i32) -> Error {
    // SAFETY: returns a static C string.
    let name = unsafe { CStr::from_ptr(pg_sys::SPI_result_code_string(code)) };
    Error::new(Kind::InternalError, format!("{what} answered {}", name.to_string_lossy()))
}

fn plan(sql: &str, params: &[Param<'_>]) -> Result<Rc<Plan>> {
    plan_with(sql, params, 0)
}

/// Makes room for another plan: the one goes that was not used for the longest time.
fn make_room(plans: &mut HashMap<String, Rc<Plan>>) {
    if plans.len() >= MAX_PLANS {
        let idle = plans.iter().filter(|(_, plan)| Rc::strong_count(plan) == 1);
        let oldest = idle.min_by_key(|(_, plan)| plan.used.get()).map(|(sql, _)| sql.clone());
        oldest.and_then(|sql| plans.remove(&sql));
    }
    for plan in GARBAGE.take() {
        // SAFETY: kept by us, and nobody holds it. A cursor over it has what it needs of it.
        unsafe { pg_sys::SPI_freeplan(plan) };
    }
}

/// A kept plan, for a cursor with these options of PostgreSQL's (`CURSOR_OPT_…`).
pub(in crate::pg) fn plan_with(sql: &str, params: &[Param<'_>], options: i32) -> Result<Rc<Plan>> {
    let marked;
    let sql = if options == 0 {
        sql
    } else {
        marked = format!("/* {options} */ {sql}");
        &marked
    };
    let now = CLOCK.get() + 1;
    CLOCK.set(now);
    if let Some(plan) = PLANS.with_borrow(|plans| plans.get(sql).cloned()) {
        plan.used.set(now);
        return Ok(plan);
    }
    let text = CString::new(sql).map_err(|_| Error::new(Kind::BadValue, "SQL text with a zero byte"))?;
    search_path::check(&text)?;
    let mut types: Vec<pg_sys::Oid> = params.iter().map(Param::type_oid).collect();
    // SAFETY: connected; the plan is kept in memory of its own, and PostgreSQL replans it when objects change.
    let plan = unsafe {
        let plan = pg_sys::SPI_prepare_cursor(text.as_ptr(), types.len() as i32, types.as_mut_ptr(), options);
        if plan.is_null() {
            return Err(failed("SPI_prepare", pg_sys::SPI_result));
        }
        pg_sys::SPI_keepplan(plan);
        plan
    };
    let plan = Rc::new(Plan { plan, used: Cell::new(now) });
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
    let mut bound = Bound { values: Vec::with_capacity(params.len()), nulls: Vec::with_capacity(params.len()) };
    for param in params {
        let datum = param.datum();
        bound.nulls.push(if datum.is_some() { b' ' } else { b'n' } as std::ffi::c_char);
        bound.values.push(datum.unwrap_or(pg_sys::Datum::from(0)));
    }
    bound
}

/// The answer of a statement.
#[derive(Debug, Default)]
pub struct Answer {
    /// the rows, if it returned any
    pub rows: Vec<Row>,
    /// how many rows it returned or changed
    pub processed: u64,
}

fn run(sql: &str, params: &[Param<'_>], snapshot: pg_sys::Snapshot, read_only: bool) -> Result<Answer> {
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    let plan = plan(sql, params)?;
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
        Ok(Answer { rows, processed })
    }
}

/// Runs a statement as the present user, in a snapshot of its own.
///
/// # Errors
/// Internal ones; what the statement itself raises is a PostgreSQL ERROR.
pub fn execute(sql: &str, params: &[Param<'_>]) -> Result<Answer> {
    run(sql, params, std::ptr::null_mut(), false)
}

/// The rows of a statement that may write.
///
/// # Errors
/// As [`execute`].
pub fn query(sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
    Ok(execute(sql, params)?.rows)
}

/// The rows of a reading statement in the active snapshot.
///
/// # Errors
/// As [`execute`].
pub fn read(sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
    // SAFETY: a null snapshot and read_only = true mean the active snapshot.
    Ok(run(sql, params, std::ptr::null_mut(), true)?.rows)
}

/// Runs a writing statement in the active snapshot (which the caller has just checked something in).
///
/// # Errors
/// As [`execute`].
pub fn write_in_active_snapshot(sql: &str, params: &[Param<'_>]) -> Result<Answer> {
    // SAFETY: the caller pushed a snapshot; SPI copies it.
    let snapshot = unsafe { pg_sys::GetActiveSnapshot() };
    run(sql, params, snapshot, false)
}

/// Statements without parameters or plans: DDL.
///
/// # Errors
/// As [`execute`].
pub fn run_script(sql: &str) -> Result<()> {
    let text = CString::new(sql).map_err(|_| Error::new(Kind::BadValue, "SQL text with a zero byte"))?;
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    search_path::check(&text)?;
    // SAFETY: connected.
    let code = unsafe { pg_sys::SPI_execute(text.as_ptr(), false, 0) };
    if code < 0 { Err(failed("SPI_execute", code)) } else { Ok(()) }
}

/// SAFETY: `table` is SPI's result with `count` rows.
pub(in crate::pg) unsafe fn rows(table: *mut pg_sys::SPITupleTable, count: u64) -> Result<Vec<Row>> {
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
            rows.push(Row(cells));
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
                let packed = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
                let length = pgrx::varsize_any_exhdr(packed);
                std::slice::from_raw_parts(pgrx::vardata_any(packed).cast::<u8>(), length).to_vec()
            }
            pg_sys::NAMEOID => CStr::from_ptr(datum.cast_mut_ptr()).to_bytes().to_vec(),
            pg_sys::INT8OID => i64::from_datum(datum, false).unwrap_or(0).to_be_bytes().to_vec(),
            pg_sys::INT4OID => i32::from_datum(datum, false).unwrap_or(0).to_be_bytes().to_vec(),
            pg_sys::OIDOID => datum_u32(datum).to_be_bytes().to_vec(),
            pg_sys::VOIDOID => Vec::new(),
            pg_sys::BOOLOID => vec![u8::from(bool::from_datum(datum, false).unwrap_or(false))],
            other => {
                return Err(Error::new(Kind::InternalError, format!("column of unexpected type {}", u32::from(other))));
            }
        })
    }
}

fn datum_u32(datum: pg_sys::Datum) -> u32 {
    datum.value() as u32
}

/// A cursor over a reading statement, in the snapshot that was active when it was opened. Lives to its end, or to the
/// end of the transaction.
#[derive(Debug)]
pub struct Cursor {
    name: String,
    buffer: std::vec::IntoIter<Row>,
    finished: bool,
}

/// Rows fetched at once by a [`Cursor`]: few enough to keep memory flat, enough to hide the cost of a call.
const FETCH: i64 = 256;

impl Cursor {
    /// Opens a cursor in the active snapshot.
    ///
    /// # Errors
    /// As [`execute`].
    pub fn open(sql: &str, params: &[Param<'_>]) -> Result<Self> {
        close_abandoned();
        let _connection = Connection::open();
        let _pinned = Pinned::new();
        let plan = plan(sql, params)?;
        let mut bound = bind(params);
        // SAFETY: connected; values and nulls match the plan's parameters; read_only uses the active snapshot.
        unsafe {
            let portal = pg_sys::SPI_cursor_open(
                std::ptr::null(),
                plan.as_ptr(),
                bound.values.as_mut_ptr(),
                bound.nulls.as_ptr(),
                true,
            );
            if portal.is_null() {
                return Err(failed("SPI_cursor_open", pg_sys::SPI_result));
            }
            let name = CStr::from_ptr((*portal).name).to_string_lossy().into_owned();
            Ok(Self { name, buffer: Vec::new().into_iter(), finished: false })
        }
    }

    /// The next row.
    ///
    /// # Errors
    /// `QueryPlanKilled` if the transaction that opened it is over.
    pub fn next_row(&mut self) -> Result<Option<Row>> {
        if let Some(row) = self.buffer.next() {
            return Ok(Some(row));
        }
        if self.finished {
            return Ok(None);
        }
        let name = CString::new(self.name.as_str()).expect("portal names hold no zero byte");
        let _connection = Connection::open();
        // SAFETY: connected; the portal is looked up anew each time.
        unsafe {
            let portal = pg_sys::SPI_cursor_find(name.as_ptr());
            if portal.is_null() {
                self.finished = true;
                return Err(Error::new(Kind::QueryPlanKilled, "the cursor's transaction has ended"));
            }
            pg_sys::SPI_cursor_fetch(portal, true, FETCH);
            let count = pg_sys::SPI_processed;
            self.buffer = rows(pg_sys::SPI_tuptable, count)?.into_iter();
            pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable);
            if count < FETCH as u64 {
                self.finished = true;
                pg_sys::SPI_cursor_close(portal);
            }
        }
        Ok(self.buffer.next())
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if !self.finished {
            ABANDONED.with_borrow_mut(|names| names.push(std::mem::take(&mut self.name)));
        }
    }
}

/// Closes them if they are still open: the end of their transaction has closed them too, and names are never reused.
fn close_abandoned() {
    let names = ABANDONED.with_borrow_mut(std::mem::take);
    if names.is_empty() {
        return;
    }
    let _connection = Connection::open();
    for name in names {
        let name = CString::new(name).expect("portal names hold no zero byte");
        // SAFETY: connected; a portal that is gone is null.
        unsafe {
            let portal = pg_sys::SPI_cursor_find(name.as_ptr());
            if !portal.is_null() {
                pg_sys::SPI_cursor_close(portal);
            }
        }
    }
}
