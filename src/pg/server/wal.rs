//! The state of this server's write-ahead log.

use pgrx::pg_sys;

/// True on a standby, and while a server recovers.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Returns the timeline that is written, or replayed on a standby. A promotion changes it at once; the control file changes only
/// at the next checkpoint.
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
