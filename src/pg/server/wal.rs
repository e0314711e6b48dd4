//! Where this server is in its write-ahead log.

use pgrx::pg_sys;

/// True on a standby, and while a server recovers.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// The timeline of what is written now; on a standby, of what is replayed. A promotion raises it at once, which the control
/// file shows only after the next checkpoint.
pub fn timeline() -> i64 {
    if !in_recovery() {
        // SAFETY: reads shared memory; recovery never begins again in a running server.
        return unsafe { pg_sys::GetWALInsertionTimeLine() }.into();
    }
    let mut timeline = 0;
    // SAFETY: reads shared memory.
    unsafe { pg_sys::GetXLogReplayRecPtr(&raw mut timeline) };
    timeline.into()
}
