//! Transactions of a process that has none: a background worker's unit of work.
//!
//! What goes wrong inside, be it an `Err`, a PostgreSQL ERROR or a panic, aborts the transaction and comes back as an
//! `Err`, and the process goes on. FATAL (SIGTERM) ends the process, as everywhere in PostgreSQL.

use super::error::{Error, Result};
use docshard_core::error::Kind;
use pgrx::{PgTryBuilder, pg_sys};
use std::panic::AssertUnwindSafe;

/// Runs `work` in a transaction of its own, with an active snapshot, and commits it.
///
/// # Errors
/// What `work` or the commit answers or raises: then nothing of it remains. `IllegalOperation` inside a transaction.
pub fn run<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: reads backend-local state.
    if unsafe { pg_sys::IsTransactionState() } {
        return Err(Error::new(Kind::IllegalOperation, "a transaction is open already"));
    }
    // SAFETY: reads a variable of this process; put back below, as PostgreSQL's own error handling would.
    let (memory, callbacks) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::error_context_stack) };
    let outcome = catch(|| {
        begin();
        let value = work()?;
        commit();
        Ok(value)
    });
    // SAFETY: outside any transaction of the caller's. AbortCurrentTransaction also tidies a transaction that failed
    // while it began or committed, and does nothing after a commit that succeeded.
    unsafe {
        pg_sys::error_context_stack = callbacks;
        if outcome.is_err() {
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::CurrentMemoryContext = memory;
        pg_sys::pgstat_report_stat(false);
    }
    outcome
}

/// Runs `work`; an ERROR or a panic in it comes back as an `Err`. The caller must abort the transaction then.
fn catch<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    PgTryBuilder::new(AssertUnwindSafe(work)).catch_others(|caught| Err(Error::from(caught))).execute()
}

fn begin() {
    // SAFETY: no transaction is open.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
    }
}

fn commit() {
    // SAFETY: the snapshot pushed by `begin` is on top again, as snapshots nest.
    unsafe {
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
}
