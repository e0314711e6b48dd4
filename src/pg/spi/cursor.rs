//! Cursors: a [`Cursor`] lives at most as long as its transaction; the portals of [`open`] outlive their transactions.
//!
//! Until its transaction commits, a holdable portal reads rows when they are fetched. The commit reads the rest, into memory up to
//! `work_mem` and into a file beyond. Such a portal ends with the session, with `DISCARD ALL`, or if the transaction that opened it is
//! rolled back.
//!
//! A client may open a portal, set a savepoint, read from the portal, roll back to the savepoint, and read on. So the resources of a
//! [`Cursor`] belong to the subtransaction of the portal that reads it, not to the current one.
//!
//! When PL/pgSQL commits or rolls back in a loop over a query, PostgreSQL first *holds* the query's portal: reads it to its end. It does
//! this while it iterates over its table of portals, and the iterator points to another entry, which must not be removed. So a portal that
//! is older than such a hold is closed only after the hold: see [`hold_began`].
//!
//! A client sees all of these portals. It can move and close them, and open others with the same names, whose rows must not be taken for
//! documents. So a [`Portal`] is identified by its address, and PostgreSQL reports its end.

use crate::pg::error::Result;
use crate::pg::security::pinned::Pinned;
use crate::pg::spi::instrumentation::{executed_plan, instrumented};
use crate::pg::spi::{Connection, SpiRow, bind, failed, plan, rows};
use crate::pg::transaction::setting::set_local;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, bail, error};
use docshard_core::sql::param::Param;
use docshard_core::values::document::field_order::keeps_order;
use pgrx::{PgMemoryContexts, pg_sys};
use serde_json::Value as Json;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::rc::Rc;

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| error!(Kind::BadValue, "a cursor's name with a zero byte"))
}

/// Opens a portal. Without a name, PostgreSQL chooses one. `read_only`: reads in the active snapshot.
fn open_portal(name: Option<&CStr>, sql: &str, params: &[Param<'_>], options: u32, read_only: bool) -> Result<Portal> {
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    let plan = plan(sql, params, options.cast_signed())?;
    let mut bound = bind(params);
    let (name, values) = (name.map_or(null(), CStr::as_ptr), bound.values.as_mut_ptr());
    // SAFETY: connected; values and nulls match the plan's parameters.
    unsafe {
        let portal = pg_sys::SPI_cursor_open(name, plan.as_ptr(), values, bound.nulls.as_ptr(), read_only);
        if portal.is_null() {
            return Err(failed("SPI_cursor_open", pg_sys::SPI_result));
        }
        if name.is_null()
            && let Some(reader) = older_reader()
        {
            (*portal).createSubid = reader.createSubid;
            pg_sys::ResourceOwnerNewParent((*portal).resowner, pg_sys::ResourceOwnerGetParent(reader.resowner));
        }
        Ok(Portal::new(portal))
    }
}

/// Limits the memory for the rows of holdable portals that the commit stores to 1 MB a portal. What exceeds it goes into a file. A session may have
/// many such portals, whose rows may never be read.
pub fn limit_held_memory() {
    const LIMIT_KB: i32 = 1024;
    // SAFETY: a setting of this process, which has one thread.
    if unsafe { pg_sys::work_mem } > LIMIT_KB {
        set_local(c"work_mem", c"1MB");
    }
}

/// During a hold (see the header), returns how many portals had been opened when the hold was first noticed; only younger portals may be
/// closed meanwhile. None if there is no hold.
fn hold_began() -> Option<u64> {
    // SAFETY: the portal that runs, or null.
    let running = unsafe { pg_sys::ActivePortal.as_ref() }.filter(|portal| !portal.holdStore.is_null());
    let Some(running) = running.map(std::ptr::from_ref) else {
        let enclosing = ENCLOSING_HOLD.get();
        if enclosing.is_none() {
            HOLD.set(None);
        }
        return enclosing;
    };
    let began = match HOLD.get() {
        Some((of, began)) if of == running => began,
        _ => OPENED.get(),
    };
    HOLD.set(Some((running, began)));
    Some(began)
}

/// Keeps the result of [`hold_began`] while a portal is read here. That portal is then PostgreSQL's active one, so the held portal cannot
/// be found.
struct EnclosingHold(Option<u64>);

impl EnclosingHold {
    fn enter() -> Self {
        Self(ENCLOSING_HOLD.replace(hold_began()))
    }
}

impl Drop for EnclosingHold {
    fn drop(&mut self) {
        ENCLOSING_HOLD.set(self.0);
    }
}

/// Opens a holdable portal with that name, for a statement that reads.
///
/// # Errors
/// `Unauthorized` in an operation that PostgreSQL runs as a table's owner, such as REINDEX: the commit would read the portal as the
/// user who started the operation. PostgreSQL refuses DECLARE … WITH HOLD there, too.
pub fn open(name: &str, sql: &str, params: &[Param<'_>]) -> Result<()> {
    // SAFETY: reads backend-local state.
    if unsafe { pg_sys::InSecurityRestrictedOperation() } {
        return Err(error!(Kind::Unauthorized, "cannot open a cursor within security-restricted operation")
            .with_hint("Use a find whose limit fits into one batch: it needs no cursor."));
    }
    let options = pg_sys::CURSOR_OPT_HOLD | pg_sys::CURSOR_OPT_NO_SCROLL;
    let portal = Rc::new(open_portal(Some(&c_name(name)?), sql, params, options, false)?);
    OPEN.with_borrow_mut(|open| {
        open.insert(name.to_owned(), Open { portal, is_partial: false, keeps_order: keeps_order() })
    });
    Ok(())
}

/// True if the running portal is one that [`open`] has opened while `keeps_order()` was true. The portal keeps this, because it may be read
/// first by the commit, when `keeps_order()` is false.
pub fn running_keeps_order() -> bool {
    // SAFETY: reads a variable of this process.
    let running = unsafe { pg_sys::ActivePortal };
    let is_running = |open: &Open| !running.is_null() && open.portal.open.get() == running;
    OPEN.with_borrow(|open| open.values().any(|open| open.keeps_order && is_running(open)))
}

/// Marks the result of the running portal as partial, if [`open`] has opened it. The portal also runs while the commit reads the rest.
pub fn mark_partial() {
    // SAFETY: reads a variable of this process.
    let running = unsafe { pg_sys::ActivePortal };
    let is_running = |open: &&mut Open| !running.is_null() && open.portal.open.get() == running;
    OPEN.with_borrow_mut(|open| open.values_mut().find(is_running).map(|open| open.is_partial = true));
}

/// True if the portal's result was marked as partial. Reading further rows may still mark it.
pub fn is_partial(name: &str) -> bool {
    OPEN.with_borrow(|open| open.get(name).is_some_and(|open| open.is_partial))
}

/// Returns the next rows of a portal that [`open`] has opened; None if there is no such portal. Fewer rows than `count` are the last ones.
pub fn fetch(name: &str, count: usize) -> Result<Option<Vec<SpiRow>>> {
    let Some(portal) = OPEN.with_borrow(|open| open.get(name).map(|open| Rc::clone(&open.portal))) else {
        return Ok(None);
    };
    let fetched = portal.fetch(count)?;
    if fetched.is_none() {
        OPEN.with_borrow_mut(|open| open.remove(name));
    }
    Ok(fetched)
}

/// Closes a portal that [`open`] has opened; false if there was none.
pub fn close(name: &str) -> Result<bool> {
    OPEN.with_borrow_mut(|open| open.remove(name)).map_or(Ok(false), |open| open.portal.close())
}

/// A portal of [`open`].
struct Open {
    portal: Rc<Portal>,
    is_partial: bool,
    /// see [`running_keeps_order`]
    keeps_order: bool,
}

/// A portal that was opened here. A `Portal` may be dropped where nothing can be executed, so dropping it does not close the portal; the
/// next [`Cursor`] that is opened does.
#[derive(Debug)]
struct Portal {
    /// null after the portal was closed, also by a client
    open: Rc<Cell<pg_sys::Portal>>,
    /// the number of rows that were fetched
    position: Cell<u64>,
    /// how many portals this process had opened before
    number: u64,
}

/// Belongs to a portal's memory. It is dropped with that memory, whether the portal is closed, or ends with its transaction, its
/// subtransaction or the process.
struct Closing(Rc<Cell<pg_sys::Portal>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.set(null_mut());
    }
}

impl Portal {
    /// SAFETY: a portal that was just opened.
    unsafe fn new(portal: pg_sys::Portal) -> Self {
        let open = Rc::new(Cell::new(portal));
        // SAFETY: promised by the caller. The context lives until the portal is closed.
        let mut memory = unsafe { PgMemoryContexts::For((*portal).portalContext) };
        memory.leak_and_drop_on_delete(Closing(Rc::clone(&open)));
        // Notes a hold that has begun, before this portal is counted.
        let _ = hold_began();
        let number = OPENED.replace(OPENED.get() + 1);
        Self { open, position: Cell::new(0), number }
    }

    /// Like [`fetch`].
    fn fetch(&self, count: usize) -> Result<Option<Vec<SpiRow>>> {
        let portal = self.open.get();
        if portal.is_null() {
            return Ok(None);
        }
        let _connection = Connection::open();
        // SAFETY: connected; the portal is open, and stays so while it runs.
        unsafe {
            if (*portal).portalPos != self.position.get() {
                let moved = error!(Kind::QueryPlanKilled, "another statement has moved a portal that docshard reads");
                return Err(moved.with_sqlstate(sqlstate::INVALID_CURSOR_STATE));
            }
            let _pinned = Pinned::of_search();
            let _hold = EnclosingHold::enter();
            pg_sys::SPI_cursor_fetch(portal, true, i64::try_from(count).unwrap_or(i64::MAX));
            self.position.set((*portal).portalPos);
            let fetched = rows(pg_sys::SPI_tuptable, pg_sys::SPI_processed)?;
            pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable);
            Ok(Some(fetched))
        }
    }

    /// Closes the portal; false if it was closed already. During a hold that is younger than the portal, the portal stays open until this
    /// value is dropped and the next [`Cursor`] is opened.
    fn close(&self) -> Result<bool> {
        let _connection = Connection::open();
        let portal = self.open.get();
        if portal.is_null() {
            return Ok(false);
        }
        if hold_began().is_some_and(|began| self.number < began) {
            return Ok(true);
        }
        // SAFETY: connected; the portal is open.
        unsafe { pg_sys::SPI_cursor_close(portal) };
        Ok(true)
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        if !self.open.get().is_null() {
            let (open, position, number) = (Rc::clone(&self.open), Cell::new(0), self.number);
            // In a process that ends, the list may have been dropped already.
            let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(Portal { open, position, number }));
        }
    }
}

/// A cursor over a reading statement, in the snapshot that was active when it was opened.
#[derive(Debug)]
pub struct Cursor {
    /// None after the last row
    portal: Option<Rc<Portal>>,
    buffer: std::vec::IntoIter<SpiRow>,
    /// the number of rows of the next fetch
    count: usize,
    /// the largest number of rows of a fetch
    max_rows: usize,
}

/// The options of a [`Cursor`]'s portal. If a holdable portal reads the cursor, the commit reads that portal to its end. The cursor's own
/// portal must not end earlier, so it is holdable, too.
fn options() -> u32 {
    // SAFETY: the portal that runs, or null.
    let running = unsafe { pg_sys::ActivePortal.as_ref() }.map_or(0, |portal| portal.cursorOptions.cast_unsigned());
    match running & pg_sys::CURSOR_OPT_HOLD {
        0 => 0,
        _ => pg_sys::CURSOR_OPT_HOLD | pg_sys::CURSOR_OPT_NO_SCROLL,
    }
}

/// The portal that runs, if it is older than the current subtransaction. None if it is not, or if a function that the portal calls has
/// begun the subtransaction.
fn older_reader() -> Option<&'static pg_sys::PortalData> {
    // SAFETY: the portal that runs, or null; the others are variables of this process.
    unsafe {
        let running = pg_sys::ActivePortal.as_ref()?;
        let is_older = running.createSubid != pg_sys::GetCurrentSubTransactionId();
        (is_older && pg_sys::CurrentResourceOwner == running.resowner).then_some(running)
    }
}

/// True if the running portal may be read further after a rollback of the current subtransaction.
pub fn outlives_subtransaction() -> bool {
    older_reader().is_some()
}

/// The number of rows of a [`Cursor`]'s first fetch, when the size of the rows is unknown. Also the factor by which the number of rows may
/// grow from fetch to fetch. A second fetch costs little: a cursor over 20 rows in PL/pgSQL takes 3.1 µs of processor time with one fetch, and
/// 3.3 µs with two (300,000 cursors).
const FIRST: usize = 8;
/// The largest number of rows of a fetch.
const MAX_ROWS: usize = 256;
/// The largest number of bytes of a fetch, estimated by the largest row of the fetch before.
const MAX_BYTES: usize = 4 << 20;

thread_local! {
    /// The portals of [`open`].
    static OPEN: RefCell<HashMap<String, Open>> = RefCell::default();
    /// Portals that were dropped before they were closed.
    static DROPPED: RefCell<Vec<Portal>> = const { RefCell::new(Vec::new()) };
    /// How many portals this process has opened.
    static OPENED: Cell<u64> = const { Cell::new(0) };
    /// The portal of the present hold, and how many portals had been opened before it.
    static HOLD: Cell<Option<(*const pg_sys::PortalData, u64)>> = const { Cell::new(None) };
    /// See [`EnclosingHold`].
    static ENCLOSING_HOLD: Cell<Option<u64>> = const { Cell::new(None) };
}

impl Cursor {
    pub fn open(sql: &str, params: &[Param<'_>]) -> Result<Self> {
        Self::open_with(sql, params, FIRST, MAX_ROWS)
    }

    /// Like [`open`](Self::open); fetches the rows one by one.
    pub fn open_single(sql: &str, params: &[Param<'_>]) -> Result<Self> {
        Self::open_with(sql, params, 1, 1)
    }

    /// Like [`open`](Self::open), and counts what the plan does.
    pub fn open_explained(sql: &str, params: &[Param<'_>]) -> Result<(Self, Option<ExecutedPlan>)> {
        let cursor = instrumented(|| Self::open(sql, params))?;
        let plan = cursor.portal.clone().map(ExecutedPlan);
        Ok((cursor, plan))
    }

    fn open_with(sql: &str, params: &[Param<'_>], count: usize, max_rows: usize) -> Result<Self> {
        // Closes the dropped portals that are still open. One that must not be closed yet is added to the list again when it is dropped here.
        DROPPED.take().iter().try_for_each(|portal| portal.close().map(drop))?;
        let portal = open_portal(None, sql, params, options(), true)?;
        Ok(Self { portal: Some(Rc::new(portal)), buffer: Vec::new().into_iter(), count, max_rows })
    }

    /// Returns the next row; None after the last one. `QueryPlanKilled` if the transaction that opened the cursor has ended.
    pub fn next_row(&mut self) -> Result<Option<SpiRow>> {
        if let Some(row) = self.buffer.next() {
            return Ok(Some(row));
        }
        self.begin()?;
        Ok(self.buffer.next())
    }

    /// Fetches the next rows, unless some rows of the last fetch are unread.
    pub fn begin(&mut self) -> Result<()> {
        if self.buffer.len() > 0 {
            return Ok(());
        }
        let Some(portal) = &self.portal else { return Ok(()) };
        let Some(fetched) = portal.fetch(self.count)? else {
            self.portal = None;
            bail!(Kind::QueryPlanKilled, "the cursor's transaction has ended");
        };
        if fetched.len() < self.count
            && let Some(portal) = self.portal.take().and_then(Rc::into_inner)
        {
            portal.close()?;
        }
        let largest = fetched.iter().map(SpiRow::bytes_of_all).max().unwrap_or_default();
        self.count = (self.count * FIRST).min(MAX_BYTES / largest.max(1)).clamp(1, self.max_rows);
        self.buffer = fetched.into_iter();
        Ok(())
    }
}

/// The plan of an instrumented cursor. It keeps the cursor's portal open.
#[derive(Debug)]
pub struct ExecutedPlan(Rc<Portal>);

impl ExecutedPlan {
    /// Returns the plan with what it has done so far, as the element of the list that EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)
    /// prints. None if the cursor's transaction has ended.
    pub fn to_json(&self) -> Result<Option<Json>> {
        executed_plan(self.0.open.get())
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::transaction::subtransaction;
    use pgrx::pg_test;

    #[pg_test]
    fn large_rows_are_fetched_few_at_once() {
        for (bytes, expected) in [(1, [8, 64, 256, 256]), (1 << 18, [8, 16, 16, 16]), (9 << 20, [8, 1, 1, 1])] {
            let sql =
                format!("SELECT repeat('x', {bytes}) FROM generate_series(1, {}) n", expected.iter().sum::<usize>());
            let mut cursor = Cursor::open(&sql, &[]).unwrap();
            for count in expected {
                cursor.begin().unwrap();
                assert_eq!(cursor.buffer.len(), count, "{bytes} bytes");
                cursor.buffer = Vec::new().into_iter();
            }
            assert!(cursor.next_row().unwrap().is_none());
        }
    }

    #[pg_test]
    fn a_portal_that_was_rolled_back_is_forgotten() {
        let undone: Result<()> = subtransaction::attempt(|| {
            open("rolled_back", "SELECT 1", &[])?;
            Err(error!(Kind::BadValue, "to roll back"))
        });
        undone.unwrap_err();
        assert_eq!(fetch("rolled_back", 1).unwrap().map(|rows| rows.len()), None);
        assert!(OPEN.with_borrow(HashMap::is_empty));
    }
}
