//! The server's log: writes a line to it, and hides errors of one SQLSTATE, which are frequent and which the router handles. They are
//! logged if `log_min_messages` is `debug1` or below.

use super::pack_sqlstate;
use docshard_core::error::sqlstate::SqlState;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_guard, pg_sys};
use std::sync::OnceLock;

/// Writes a line to the server's log, which the client does not get.
pub fn write(message: &'static str, detail: String) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "docshard")
        .set_detail(detail)
        .report(PgLogLevel::LOG);
}

/// The packed SQLSTATE that is hidden, and the previous hook.
static HIDDEN: OnceLock<(i32, pg_sys::emit_log_hook_type)> = OnceLock::new();

/// Hides errors of this SQLSTATE. Called from `_PG_init`.
pub fn hide(sqlstate: SqlState) {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if HIDDEN.set((pack_sqlstate(sqlstate), pg_sys::emit_log_hook)).is_ok() {
            pg_sys::emit_log_hook = Some(emit_log);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn emit_log(error: *mut pg_sys::ErrorData) {
    let Some((hidden, next)) = HIDDEN.get() else { return };
    // SAFETY: PostgreSQL calls it with the error that it is about to log.
    unsafe {
        let is_hidden = (*error).sqlerrcode == *hidden && (*error).elevel == pgrx::PgLogLevel::ERROR as i32;
        if is_hidden && pg_sys::log_min_messages > pg_sys::DEBUG1 as i32 {
            (*error).output_to_server = false;
        } else if let Some(next) = next {
            next(error);
        }
    }
}
