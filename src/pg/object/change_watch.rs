//! Watches statements that change tables: which relations a statement has changed, and what PostgreSQL's catalogs contained before.
//!
//! Event triggers call [`begin`] and [`end`], because PostgreSQL runs event triggers even in a session that has not loaded the library
//! before. For REASSIGN OWNED, which has no event triggers, a hook calls [`begin`], and [`end`] is called afterwards. The changed relations
//! are those that PostgreSQL's own invalidations name, so no kind of change is overlooked; changes of other sessions are among them.
//! The state before is read with a snapshot that has the statement's first command number, which does not show what the statement has done.
//! The state after is read with the same snapshot and the present command number, so that other sessions' changes are in both states or in
//! none.

use super::invalidation;
use super::own_statement::is_own_statement;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::security::pinned::Pinned;
use crate::pg::spi::{self, SpiRow};
use crate::pg::version::local_transaction;
use docshard_core::sql::param::Param;
use pgrx::pg_sys;
use std::cell::RefCell;

/// A statement that has begun. Statements nest. [`end`] is not called for a statement that fails in a subtransaction, so [`begin`] removes
/// its entry.
#[derive(Clone, Copy)]
struct Begun {
    transaction: u32,
    subtransaction: pg_sys::SubTransactionId,
    command: pg_sys::CommandId,
}

thread_local! {
    static BEGUN: RefCell<Vec<Begun>> = const { RefCell::new(Vec::new()) };
}

/// The changes of a statement that has ended.
pub struct Changed {
    /// the relations that may have changed; None: any relation may have
    pub relations: Option<Vec<i64>>,
    before: pg_sys::CommandId,
}

impl Changed {
    /// Runs a query of the catalogs as they were before the statement, and as they are now. Both results show the same state of other
    /// transactions, so that all differences are this statement's own.
    pub fn read(&self, sql: &str, params: &[Param<'_>]) -> Result<(Vec<SpiRow>, Vec<SpiRow>)> {
        let _pinned = Pinned::of_catalogs();
        // SAFETY: inside a transaction. PushActiveSnapshot copies the static snapshot that GetLatestSnapshot returns. The copy is popped
        // below, or by the abort of the transaction.
        unsafe {
            let snapshot = pg_sys::GetLatestSnapshot();
            (*snapshot).curcid = self.before;
            pg_sys::PushActiveSnapshot(snapshot);
        }
        let rows = spi::read(sql, params).and_then(|before| {
            fault::point("guard.read_before")?;
            // SAFETY: the active snapshot was pushed above, and nothing else refers to it.
            unsafe { pg_sys::UpdateActiveSnapshotCommandId() };
            Ok((before, spi::read(sql, params)?))
        });
        // SAFETY: pushed above.
        unsafe { pg_sys::PopActiveSnapshot() };
        rows
    }
}

/// Called before a statement that may change tables.
pub fn begin() {
    if is_own_statement() {
        return;
    }
    invalidation::record();
    let transaction = local_transaction();
    // SAFETY: inside a transaction.
    let (subtransaction, command) =
        unsafe { (pg_sys::GetCurrentSubTransactionId(), pg_sys::GetCurrentCommandId(false)) };
    BEGUN.with_borrow_mut(|begun| {
        // A subtransaction with a higher number than the present one has ended, and its statement with it.
        begun.retain(|begun| begun.transaction == transaction && begun.subtransaction <= subtransaction);
        begun.push(Begun { transaction, subtransaction, command });
    });
}

/// Called after the statement. None if the statement is not watched.
pub fn end() -> Option<Changed> {
    if is_own_statement() {
        return None;
    }
    let transaction = local_transaction();
    // SAFETY: inside a transaction. Makes what the statement has changed visible, and processes its invalidations.
    let subtransaction = unsafe {
        pg_sys::CommandCounterIncrement();
        pg_sys::GetCurrentSubTransactionId()
    };
    let (found, is_last) = BEGUN.with_borrow_mut(|begun| {
        let is_this = |begun: &Begun| (begun.transaction, begun.subtransaction) == (transaction, subtransaction);
        let found = begun.iter().rposition(is_this).map(|at| begun.drain(at..).next());
        (found.flatten(), begun.is_empty())
    });
    let recorded = invalidation::recorded();
    if is_last {
        invalidation::stop_recording();
    }
    let relations = (!recorded.contains(&0)).then(|| recorded.into_iter().map(i64::from).collect());
    found.map(|begun| Changed { relations, before: begun.command })
}
