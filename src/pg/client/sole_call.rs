//! Detects that a call is the client's whole transaction: `SELECT f(…)` outside of a transaction block, and for builds of indexes
//! also `SELECT … FROM f(…)`.
//!
//! Between such a call's return and the commit PostgreSQL only sends its result, which cannot fail if the result fits into the
//! initial blocks of PostgreSQL's memory contexts and the client's encoding is the database's. So the call's writes at another
//! server may be committed there before the call returns, which saves a round trip.

use crate::pg::version::has_unread_input;
use pgrx::{PgList, pg_sys};
use std::ffi::c_int;

// SAFETY: PostgreSQL's own signature (libpq.h).
unsafe extern "C-unwind" {
    fn pq_peekbyte() -> c_int;
}

/// The largest result of such a call, in bytes. Its text is a few times as long, and still fits into the 8 kB with which memory contexts
/// begin.
pub const MAX_RESULT: usize = 256;

/// True if the call's writes at another server may be committed there before the call returns: the call is the client's whole transaction,
/// and its result needs no conversion to the client's encoding.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "PostgreSQL passes this pointer to the function")]
pub fn may_commit_first(call: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: PostgreSQL made the call, and its caller's portal and plan outlive it; the encodings are numbers of this session.
    unsafe { is_sole(call, false) && pg_sys::pg_get_client_encoding() == pg_sys::GetDatabaseEncoding() }
}

/// True if the call is the client's whole transaction, also as `SELECT … FROM f(…)`. For functions that do not commit their writes
/// before they return.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "PostgreSQL passes this pointer to the function")]
pub fn is_whole_transaction(call: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as above.
    unsafe { is_sole(call, true) }
}

/// True if the call is the client's whole statement, and the statement its whole transaction. `or_scan`: the call may also be the only
/// function of a FROM clause.
///
/// # Safety
/// `call` is the one that is running.
unsafe fn is_sole(call: pg_sys::FunctionCallInfo, or_scan: bool) -> bool {
    // SAFETY: promised by the caller; PostgreSQL's nodes are as their tags say.
    unsafe {
        let Some(portal) = pg_sys::ActivePortal.as_ref() else { return false };
        if pg_sys::whereToSendOutput != pg_sys::CommandDest::DestRemote
            || pg_sys::IsTransactionBlock()
            || pg_sys::GetCurrentTransactionNestLevel() != 1
            || portal.strategy != pg_sys::PortalStrategy::PORTAL_ONE_SELECT
            || portal.cursorOptions & pg_sys::CURSOR_OPT_HOLD as c_int != 0
        {
            return false;
        }
        // Named portals are the client's cursors, or portals that PostgreSQL runs within a client's statement.
        if portal.name.is_null() || *portal.name != 0 {
            return false;
        }
        let statements = PgList::<pg_sys::PlannedStmt>::from_pg(portal.stmts);
        let Some(statement) = statements.get_ptr(0).filter(|_| statements.len() == 1) else { return false };
        let plan = (*statement).planTree;
        if (*statement).commandType != pg_sys::CmdType::CMD_SELECT || plan.is_null() || !(*plan).lefttree.is_null() {
            return false;
        }
        let called = (*(*call).flinfo).fn_expr;
        let is_only = match (*plan).type_ {
            pg_sys::NodeTag::T_Result => is_only_target(plan, called),
            pg_sys::NodeTag::T_FunctionScan if or_scan => {
                // An init plan or a sublink may be another query.
                (*plan).initPlan.is_null() && (*statement).subplans.is_null() && is_scan_of(plan.cast(), called)
            }
            _ => false,
        };
        if !is_only {
            return false;
        }
        // A Query message is a transaction of its own, and its portal is not visible. In the extended protocol the transaction lasts
        // until the next Sync message, which has usually arrived together with this statement.
        !portal.visible || (has_unread_input() && pq_peekbyte() == c_int::from(b'S'))
    }
}

/// True if a call is the plan's only target.
///
/// # Safety
/// The plan is being executed.
pub(in crate::pg) unsafe fn is_only_target(plan: *mut pg_sys::Plan, called: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller. The same node, not an equal one: the function may also be called in its own arguments.
    unsafe {
        let targets = PgList::<pg_sys::TargetEntry>::from_pg((*plan).targetlist);
        let is_all = targets.len() == 1 && targets.get_ptr(0).is_some_and(|target| (*target).expr.cast() == called);
        is_all && !called.is_null()
    }
}

/// True if the call is the scan's only function.
///
/// # Safety
/// The plan is being executed.
pub(in crate::pg) unsafe fn is_scan_of(scan: *mut pg_sys::FunctionScan, called: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller. The same node, as in `is_only_target`.
    unsafe {
        let functions = PgList::<pg_sys::RangeTblFunction>::from_pg((*scan).functions);
        let is_it = functions.get_ptr(0).is_some_and(|function| (*function).funcexpr == called);
        is_it && functions.len() == 1 && !called.is_null()
    }
}
