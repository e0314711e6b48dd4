//! Cursors that outlive their transaction: PostgreSQL's holdable portals.
//!
//! Until the transaction commits, rows are read as they are asked for; its commit reads the rest into a file of the server
//! (in memory up to `work_mem`), so that memory does not grow with the result. A portal goes with the session, with
//! `DISCARD ALL`, or with the transaction that opened it if that is rolled back.

use crate::pg::error::{Error, Result};
use crate::pg::security::search_path::Pinned;
use crate::pg::spi::param::Param;
use crate::pg::spi::{Connection, Row, bind, failed, plan_with, rows};
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::ffi::CString;

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::new(Kind::BadValue, "a cursor's name with a zero byte"))
}

/// Opens a portal of that name over a reading statement.
///
/// # Errors
/// `Unauthorized` in an operation that PostgreSQL runs as a table's owner, such as REINDEX, for whoever started it: the portal would
/// be read to its end by the commit, as the latter. DECLARE … WITH HOLD is refused there, too. What the statement raises is a
/// PostgreSQL ERROR.
pub fn open(name: &str, sql: &str, params: &[Param<'_>]) -> Result<()> {
    // SAFETY: reads backend-local state.
    if unsafe { pg_sys::InSecurityRestrictedOperation() } {
        return Err(Error::new(Kind::Unauthorized, "cannot open a cursor within security-restricted operation")
            .with_hint("A find with a limit that one batch holds needs no cursor."));
    }
    let name = c_name(name)?;
    let _connection = Connection::open();
    let _pinned = Pinned::new();
    let options = pg_sys::CURSOR_OPT_HOLD | pg_sys::CURSOR_OPT_NO_SCROLL;
    let plan = plan_with(sql, params, options.cast_signed())?;
    let mut bound = bind(params);
    // SAFETY: connected; values and nulls match the plan's parameters; read_only = false takes a new snapshot.
    let portal = unsafe {
        pg_sys::SPI_cursor_open(name.as_ptr(), plan.as_ptr(), bound.values.as_mut_ptr(), bound.nulls.as_ptr(), false)
    };
    // SAFETY: reads what the call above set.
    if portal.is_null() { Err(failed("SPI_cursor_open", unsafe { pg_sys::SPI_result })) } else { Ok(()) }
}

/// The next rows of a portal, at most so many; None if there is no such portal. Fewer rows than asked for: it is at its end.
///
/// # Errors
/// Internal ones; what the statement raises is a PostgreSQL ERROR.
pub fn fetch(name: &str, count: usize) -> Result<Option<Vec<Row>>> {
    let name = c_name(name)?;
    let _connection = Connection::open();
    // SAFETY: connected; the portal is looked up anew each time.
    unsafe {
        let portal = pg_sys::SPI_cursor_find(name.as_ptr());
        if portal.is_null() {
            return Ok(None);
        }
        pg_sys::SPI_cursor_fetch(portal, true, i64::try_from(count).unwrap_or(i64::MAX));
        let fetched = rows(pg_sys::SPI_tuptable, pg_sys::SPI_processed)?;
        pg_sys::SPI_freetuptable(pg_sys::SPI_tuptable);
        Ok(Some(fetched))
    }
}

/// Closes a portal; tells whether there was one.
pub fn close(name: &str) -> Result<bool> {
    let name = c_name(name)?;
    let _connection = Connection::open();
    // SAFETY: connected; a portal that is gone is null.
    unsafe {
        let portal = pg_sys::SPI_cursor_find(name.as_ptr());
        if portal.is_null() {
            return Ok(false);
        }
        pg_sys::SPI_cursor_close(portal);
    }
    Ok(true)
}
