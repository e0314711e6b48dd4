//! Transactions of background workers. All work of a worker goes through [`run`] or [`guarded`], so that no ERROR ends it.

pub mod durability;
pub mod epoch;
pub mod prepared;
pub mod setting;
pub mod snapshot;
pub mod subtransaction;
pub mod top_level;
pub mod writes;

use crate::pg::error::{Result, from_caught};
use pgrx::{PgTryBuilder, pg_sys};
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// Raises an ERROR (25006) that names the command, if the transaction is read-only.
pub fn refuse_if_read_only(command: &CStr) {
    // SAFETY: a C string; the ERROR unwinds as every other one.
    unsafe { pg_sys::PreventCommandIfReadOnly(command.as_ptr()) };
}

/// True in a process that computes a part of another session's plan.
pub fn is_parallel_worker() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Runs `read` in this process's transaction, or in a new one if there is none. None if the transaction has failed.
pub fn within<T>(read: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
    // SAFETY: reads variables of this process.
    match unsafe { (pg_sys::IsTransactionState(), pg_sys::IsTransactionOrTransactionBlock()) } {
        (true, _) => Some(read()),
        (false, false) => Some(run(read)),
        (false, true) => None,
    }
}

/// Runs `work` outside a transaction. An ERROR or a panic becomes an `Err`, and a transaction that is left open is rolled back.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: a backend-local pointer; restored below as every PG_CATCH does.
    let callbacks = unsafe { pg_sys::error_context_stack };
    let result = PgTryBuilder::new(AssertUnwindSafe(work)).catch_others(|caught| Err(from_caught(caught))).execute();
    if result.is_err() {
        // SAFETY: outside a transaction block of anybody else's: callers run outside any transaction.
        unsafe {
            pg_sys::error_context_stack = callbacks;
            pg_sys::AbortOutOfAnyTransaction();
        }
    }
    result
}

/// Runs `work` in the current transaction, which continues if `work` raises an ERROR. Only for work that may fail without consequence, and
/// that holds nothing that the end of the transaction does not release.
pub fn attempt(work: impl FnOnce()) {
    // SAFETY: backend-local counters; an ERROR resets them, although what holds interrupts still lives.
    let held = unsafe { (pg_sys::InterruptHoldoffCount, pg_sys::QueryCancelHoldoffCount) };
    let work = AssertUnwindSafe(|| {
        work();
        true
    });
    if !PgTryBuilder::new(work).catch_others(|_| false).execute() {
        // SAFETY: as above.
        unsafe { (pg_sys::InterruptHoldoffCount, pg_sys::QueryCancelHoldoffCount) = held };
    }
}

/// Runs `work` in a READ COMMITTED transaction that commits if it returns Ok. The commit survives a crash, and a failover to a
/// synchronous standby, whatever `synchronous_commit` says.
pub fn run<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    guarded(|| {
        // SAFETY: outside a transaction; the snapshot is popped before the commit, and by the abort otherwise.
        unsafe {
            debug_assert!(!pg_sys::IsTransactionState(), "a transaction of its own");
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let result = work()?;
        durability::require();
        // SAFETY: pairs with the above; ForceSyncCommit makes even a commit without a transaction id wait for the disk.
        unsafe {
            pg_sys::PopActiveSnapshot();
            pg_sys::ForceSyncCommit();
            pg_sys::CommitTransactionCommand();
            pg_sys::pgstat_report_stat(false);
        }
        Ok(result)
    })
}
