//! Facts about this server and this database.

pub mod wal;

use crate::pg::transaction::subtransaction;
use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// The OID of a relation by schema and name; None if there is none.
pub fn relation_oid(schema: &CStr, name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: syscache look-ups with missing_ok, inside a transaction.
    unsafe {
        let namespace = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        if namespace == pg_sys::InvalidOid {
            return None;
        }
        let relation = pg_sys::get_relname_relid(name.as_ptr(), namespace);
        (relation != pg_sys::InvalidOid).then_some(relation)
    }
}

/// The OID of a foreign server by name.
pub fn foreign_server_oid(name: &str) -> Option<pg_sys::Oid> {
    let name = CString::new(name).ok()?;
    // SAFETY: a syscache look-up with missing_ok.
    let oid = unsafe { pg_sys::get_foreign_server_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// This server's system identifier, which a standby has in common with its primary.
pub fn system_identifier() -> u64 {
    // SAFETY: reads what every process has of pg_control from the server's start.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// The user that the present statement runs as.
pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetUserId() }
}

/// True if the present statement runs as a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: a cached look-up inside a transaction.
    unsafe { pg_sys::superuser() }
}

/// The name of a role; empty if it is gone.
pub fn user_name(user: pg_sys::Oid) -> String {
    // SAFETY: a syscache look-up inside a transaction; the name is palloc'd and copied.
    unsafe {
        let name = pg_sys::GetUserNameFromId(user, true);
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// As [`outer_user_name`], by number.
pub fn outer_user() -> pg_sys::Oid {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetOuterUserId() }
}

/// Who called: the session's role, outside of any function that runs as its owner.
pub fn outer_user_name() -> String {
    // SAFETY: reads backend-local state.
    user_name(unsafe { pg_sys::GetOuterUserId() })
}

/// True if who called is a superuser.
pub fn outer_user_is_superuser() -> bool {
    // SAFETY: backend-local state, and a cached look-up inside a transaction.
    unsafe { pg_sys::superuser_arg(pg_sys::GetOuterUserId()) }
}

/// True if a role has another one's privileges without SET ROLE: it is that role, or inherits from it.
pub fn has_privileges_of(role: pg_sys::Oid, other: pg_sys::Oid) -> bool {
    // SAFETY: a cached look-up inside a transaction.
    unsafe { pg_sys::has_privs_of_role(role, other) }
}

/// True in a transaction block (BEGIN … COMMIT) or a subtransaction of the user's: where a function cannot commit on its
/// own.
pub fn in_transaction_block() -> bool {
    subtransaction::in_transaction_block()
}

/// The setting `lock_timeout`, in milliseconds; 0 is no limit.
pub fn lock_timeout_ms() -> u64 {
    // SAFETY: reads a variable of this process.
    u64::try_from(unsafe { pg_sys::LockTimeout }).unwrap_or(0)
}

/// Sleeps, obeying cancel and shutdown.
pub fn sleep_ms(milliseconds: i64) {
    wait(milliseconds);
    pgrx::check_for_interrupts!();
}

/// Waits until the time is over or this process's latch is set; looks at no interrupt.
pub(in crate::pg) fn wait(milliseconds: i64) {
    // SAFETY: MyLatch belongs to this process.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            milliseconds,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}

/// The name of a foreign server.
pub fn foreign_server_name(server: pg_sys::Oid) -> Option<String> {
    // SAFETY: a syscache look-up with missing_ok; the name is palloc'd and copied.
    unsafe {
        let server = pg_sys::GetForeignServerExtended(server, pg_sys::FSV_MISSING_OK as u16);
        (!server.is_null()).then(|| CStr::from_ptr((*server).servername).to_string_lossy().into_owned())
    }
}

/// The present transaction's id, assigned if it has none yet.
pub fn transaction_id() -> u32 {
    // SAFETY: inside a transaction.
    unsafe { u32::from(pg_sys::GetTopTransactionId()) }
}

/// What tells the client's present statement from every other one of this process: a number of its transaction, and its time.
pub fn present_statement() -> (u32, i64) {
    // SAFETY: reads backend-local state; MyProc is set in every process that runs statements.
    unsafe { ((*pg_sys::MyProc).lxid, pg_sys::GetCurrentStatementStartTimestamp()) }
}
