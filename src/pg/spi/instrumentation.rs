//! Runs a portal with instrumentation: the rows go to the reader, and afterwards the plan is printed with row counts, as EXPLAIN ANALYZE
//! does. PostgreSQL decides whether to measure when it starts the executor, so a hook there requests it.

use super::Connection;
use crate::pg::error::{Result, keeping_all};
use docshard_core::error::{Kind, error};
use pgrx::{pg_guard, pg_sys};
use serde_json::Value as Json;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

static NEXT: OnceLock<pg_sys::ExecutorStart_hook_type> = OnceLock::new();

thread_local! {
    /// True while an instrumented portal is being opened.
    static INSTRUMENTED: Cell<bool> = const { Cell::new(false) };
}

/// Called from `_PG_init`.
pub fn init() {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if NEXT.set(pg_sys::ExecutorStart_hook).is_ok() {
            pg_sys::ExecutorStart_hook = Some(on_start);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_start(query: *mut pg_sys::QueryDesc, flags: c_int) {
    // SAFETY: the arguments are PostgreSQL's; the executor reads the options when it starts.
    unsafe {
        if INSTRUMENTED.get() {
            (*query).instrument_options |= pg_sys::InstrumentOption::INSTRUMENT_ROWS.cast_signed();
        }
        keeping_all(|| match NEXT.get().copied().flatten() {
            // The guard turns an ERROR of another extension's hook into a panic, which unwinds.
            Some(next) => pg_sys::ffi::pg_guard_ffi_boundary(|| next(query, flags)),
            None => pg_sys::standard_ExecutorStart(query, flags),
        });
    }
}

/// Opens an instrumented portal. Other statements that PostgreSQL starts meanwhile are instrumented, too.
pub(super) fn instrumented<T>(open: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            INSTRUMENTED.set(false);
        }
    }
    INSTRUMENTED.set(true);
    let _reset = Reset;
    open()
}

/// Returns the plan of an instrumented portal with what it has done so far, as the element of the list that EXPLAIN (ANALYZE, COSTS OFF,
/// TIMING OFF, FORMAT JSON) prints. None if the portal's transaction has ended.
pub(super) fn executed_plan(portal: pg_sys::Portal) -> Result<Option<Json>> {
    let _connection = Connection::open();
    // SAFETY: connected; a closed portal is null, and a portal without an executor has no query. The text is in the memory of the
    // connection.
    let printed = unsafe {
        if portal.is_null() || (*portal).queryDesc.is_null() {
            return Ok(None);
        }
        let state = pg_sys::NewExplainState();
        (*state).analyze = true;
        (*state).costs = false;
        (*state).format = pg_sys::ExplainFormat::EXPLAIN_FORMAT_JSON;
        pg_sys::ExplainBeginOutput(state);
        pg_sys::ExplainPrintPlan(state, (*portal).queryDesc);
        pg_sys::ExplainEndOutput(state);
        let text = &*(*state).str_;
        std::slice::from_raw_parts(text.data.cast::<u8>(), usize::try_from(text.len).unwrap_or(0)).to_vec()
    };
    // PostgreSQL prints the fields of one statement within the brackets of a list.
    let fields = printed.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or_default();
    let object = [b"{", fields, b"}"].concat();
    serde_json::from_slice(&object).map(Some).map_err(|error| error!(Kind::InternalError, "malformed plan: {error}"))
}
