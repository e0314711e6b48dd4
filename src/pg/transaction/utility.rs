//! PostgreSQL's commands that are no part of a transaction: one of our own is run, and COMMIT PREPARED and ROLLBACK
//! PREPARED of a client's are watched: who has parts of the transaction elsewhere ends them, too.

use crate::pg::error::{Error, Result};
use crate::pg::transaction;
use docshard_core::error::Kind;
use pgrx::{PgBox, PgList, pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
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
pub fn watch_prepared(watch: Watch) {
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

/// Runs a command that is no part of a transaction, such as `CREATE INDEX CONCURRENTLY`, as if a client had sent it. Called
/// outside any transaction, in a background worker.
///
/// # Errors
/// What it raises.
pub fn run_alone(sql: &str) -> Result<()> {
    let text = CString::new(sql).map_err(|_| Error::new(Kind::InternalError, "a command with a zero byte"))?;
    // SAFETY: a context of this function's own, which no transaction's end frees.
    let memory = unsafe {
        pg_sys::AllocSetContextCreateInternal(
            pg_sys::TopMemoryContext,
            c"docshard command".as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        )
    };
    // SAFETY: outside a transaction. The command commits transactions of its own and begins others, as it does for a client;
    // its tree, and what it makes of that, is in memory that outlives them all.
    let result = transaction::guarded(|| unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::MemoryContextSwitchTo(memory);
        let parsed = PgList::<pg_sys::RawStmt>::from_pg(pg_sys::pg_parse_query(text.as_ptr()));
        let parsed = parsed.get_ptr(0).unwrap_or(null_mut());
        let queries =
            pg_sys::pg_analyze_and_rewrite_fixedparams(parsed, text.as_ptr(), std::ptr::null(), 0, null_mut());
        let planned = pg_sys::pg_plan_queries(queries, text.as_ptr(), 0, null_mut());
        let planned = PgList::<pg_sys::PlannedStmt>::from_pg(planned).get_ptr(0).unwrap_or(null_mut());
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let top = pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL;
        pg_sys::ProcessUtility(
            planned,
            text.as_ptr(),
            false,
            top,
            null_mut(),
            null_mut(),
            pg_sys::None_Receiver,
            null_mut(),
        );
        // The command may have ended the transaction of that snapshot, and begun others.
        if pg_sys::ActiveSnapshotSet() {
            pg_sys::PopActiveSnapshot();
        }
        pg_sys::CommitTransactionCommand();
        Ok(())
    });
    // SAFETY: outside a transaction again; nothing refers to it any more.
    unsafe {
        pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        pg_sys::MemoryContextDelete(memory);
    }
    result
}
