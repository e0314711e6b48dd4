//! Watches PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED, so that the transaction's parts on other servers are ended, too.

use crate::pg::utility;
use pgrx::{PgBox, pg_sys};
use std::ffi::CStr;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Committed,
    RolledBack,
}

/// Functions that are called inside the command's own transaction.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// called before PREPARE TRANSACTION; may raise an error
    pub prepares: fn(gid: &str),
    /// called before the command; returns the number to pass to `after`, or None if `after` is not to be called
    pub before: fn(gid: &str) -> Option<u32>,
    /// called after success; it cannot undo the command
    pub after: fn(transaction: u32, ended: Ended),
}

static WATCH: OnceLock<Watch> = OnceLock::new();

/// Called from `_PG_init`.
pub fn watch(watch: Watch) {
    if WATCH.set(watch).is_ok() {
        utility::watch(before_utility);
    }
}

/// # Safety
/// `statement` is about to be executed by PostgreSQL.
unsafe fn before_utility(statement: *mut pg_sys::PlannedStmt) -> Option<Box<dyn FnOnce()>> {
    // SAFETY: promised by the caller.
    let (kind, gid) = unsafe { command(statement) }?;
    let watch = WATCH.get()?;
    let ended = match kind {
        pg_sys::TransactionStmtKind::TRANS_STMT_PREPARE => {
            (watch.prepares)(&gid);
            return None;
        }
        pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED => Ended::Committed,
        pg_sys::TransactionStmtKind::TRANS_STMT_ROLLBACK_PREPARED => Ended::RolledBack,
        _ => return None,
    };
    // PostgreSQL refuses both commands in a transaction block.
    // SAFETY: reads this process's state.
    if unsafe { !pg_sys::IsTransactionState() || pg_sys::IsTransactionBlock() } {
        return None;
    }
    let transaction = (watch.before)(&gid)?;
    Some(Box::new(move || (watch.after)(transaction, ended)))
}

/// Returns the kind and the gid of a command for a prepared transaction; None for any other statement.
///
/// # Safety
/// `statement` is about to be executed by PostgreSQL.
unsafe fn command(statement: *mut pg_sys::PlannedStmt) -> Option<(pg_sys::TransactionStmtKind::Type, String)> {
    // SAFETY: promised by the caller; PostgreSQL's nodes are as their tags say.
    unsafe {
        let node = (*statement).utilityStmt;
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_TransactionStmt {
            return None;
        }
        let command = PgBox::<pg_sys::TransactionStmt>::from_pg(node.cast());
        if command.gid.is_null() {
            return None;
        }
        Some((command.kind, CStr::from_ptr(command.gid).to_str().ok()?.to_owned()))
    }
}
