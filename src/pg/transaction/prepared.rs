//! Watches COMMIT PREPARED and ROLLBACK PREPARED: whoever has parts of the transaction elsewhere ends them, too.

use pgrx::{PgBox, pg_guard, pg_sys};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// How a prepared transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// COMMIT PREPARED
    Committed,
    /// ROLLBACK PREPARED
    RolledBack,
}

/// What is called around it, inside the transaction that the command itself is.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// before it: names the transaction by a number, if it is of interest
    pub before: fn(gid: &str) -> Option<u32>,
    /// after it has succeeded; what is done then cannot undo it
    pub after: fn(transaction: u32, ended: Ended),
}

static WATCH: OnceLock<(Watch, pg_sys::ProcessUtility_hook_type)> = OnceLock::new();

/// Begins to watch; called from `_PG_init`.
pub fn watch(watch: Watch) {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if WATCH.set((watch, pg_sys::ProcessUtility_hook)).is_ok() {
            pg_sys::ProcessUtility_hook = Some(process_utility);
        }
    }
}

/// What the statement is to end, if it is one of the two, and can succeed: they are refused in a transaction block.
///
/// # Safety
/// `statement` is what PostgreSQL is about to run.
unsafe fn ends(statement: *mut pg_sys::PlannedStmt) -> Option<(Ended, String)> {
    // SAFETY: promised by the caller; PostgreSQL's nodes are as their tags say.
    unsafe {
        let node = (*statement).utilityStmt;
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_TransactionStmt {
            return None;
        }
        let command = PgBox::<pg_sys::TransactionStmt>::from_pg(node.cast());
        let ended = match command.kind {
            pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED => Ended::Committed,
            pg_sys::TransactionStmtKind::TRANS_STMT_ROLLBACK_PREPARED => Ended::RolledBack,
            _ => return None,
        };
        if command.gid.is_null() || !pg_sys::IsTransactionState() || pg_sys::IsTransactionBlock() {
            return None;
        }
        Some((ended, CStr::from_ptr(command.gid).to_str().ok()?.to_owned()))
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments, reason = "PostgreSQL's own signature")]
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    keep_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    let Some((watch, next)) = WATCH.get() else { return };
    // SAFETY: the arguments are PostgreSQL's, and passed on as they are.
    unsafe {
        let ended = ends(statement).and_then(|(ended, gid)| Some((ended, (watch.before)(&gid)?)));
        match next {
            Some(next) => next(statement, text, keep_tree, context, params, environment, destination, completion),
            None => pg_sys::standard_ProcessUtility(
                statement,
                text,
                keep_tree,
                context,
                params,
                environment,
                destination,
                completion,
            ),
        }
        if let Some((ended, transaction)) = ended {
            (watch.after)(transaction, ended);
        }
    }
}
