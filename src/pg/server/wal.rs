//! The state of this server's write-ahead log.

use pgrx::pg_sys;
use std::cell::Cell;

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

thread_local! {
    /// the top transaction's id that was last flushed
    static FLUSHED: Cell<pg_sys::TransactionId> = const { Cell::new(pg_sys::InvalidTransactionId) };
}

/// Flushes the records of the current transaction, if it has an id that has not been flushed. After a crash, PostgreSQL assigns an id again if the
/// write-ahead log on disk has no record with it. Once a record is on disk, no other transaction gets this id.
pub fn flush_transaction_id() {
    // SAFETY: inside a transaction; the position is one that this backend has written up to, or zero.
    unsafe {
        let id = pg_sys::GetTopTransactionIdIfAny();
        if id != pg_sys::InvalidTransactionId && FLUSHED.get() != id {
            pg_sys::XLogFlush(pg_sys::XactLastRecEnd);
            FLUSHED.set(id);
        }
    }
}
