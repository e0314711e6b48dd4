//! What of errors is news for the server's log.
//!
//! That a router's map is stale is how routers learn of a move: sessions are told so after each, and repeat their statements
//! by themselves. Who reads a shard's log is told so only with `log_min_messages` at `debug1` or below.

use crate::pg::error::{STALE, pack_sqlstate};
use pgrx::{pg_guard, pg_sys};
use std::sync::OnceLock;

static NEXT: OnceLock<pg_sys::emit_log_hook_type> = OnceLock::new();

/// Begins to sift; called from `_PG_init`.
pub fn init() {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if NEXT.set(pg_sys::emit_log_hook).is_ok() {
            pg_sys::emit_log_hook = Some(sift);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn sift(error: *mut pg_sys::ErrorData) {
    // SAFETY: PostgreSQL calls it with the error that it is about to log.
    unsafe {
        let is_stale = (*error).sqlerrcode == pack_sqlstate(STALE) && (*error).elevel == pgrx::PgLogLevel::ERROR as i32;
        if is_stale && pg_sys::log_min_messages > pg_sys::DEBUG1 as i32 {
            (*error).output_to_server = false;
        } else if let Some(Some(next)) = NEXT.get() {
            next(error);
        }
    }
}
