//! Properties of this server, this database and this session.

pub mod disk;
pub mod wal;

pub use crate::pg::transaction::subtransaction::in_transaction_block;

use crate::pg::error::Error;
use crate::pg::version::local_transaction;
use docshard_core::error::Parts;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};
use std::ffi::{CStr, CString};

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

pub fn foreign_server_oid(name: &str) -> Option<pg_sys::Oid> {
    let name = CString::new(name).ok()?;
    // SAFETY: a syscache look-up with missing_ok.
    let oid = unsafe { pg_sys::get_foreign_server_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Returns the server's system identifier. A standby has that of its primary.
pub fn system_identifier() -> u64 {
    // SAFETY: reads what every process has of pg_control from the server's start.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// When the server was started, in microseconds since 2000. This tells apart servers with copies of the same files.
pub fn started() -> i64 {
    // SAFETY: the postmaster sets it before it starts any process.
    unsafe { pg_sys::PgStartTime }
}

pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetUserId() }
}

/// Ends this session with an error, as `pg_terminate_backend` does.
pub fn end_session(error: Error) -> ! {
    let Parts { message, hint, .. } = error.into_parts();
    let mut report = ErrorReport::new(PgSqlErrorCode::ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST, message, "docshard");
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::FATAL);
    unreachable!("a FATAL error does not return")
}

/// True in a background worker.
pub fn is_background_worker() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { !pg_sys::MyBgworkerEntry.is_null() }
}

/// True if the current user is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: a cached look-up inside a transaction.
    unsafe { pg_sys::superuser() }
}

/// True if the transaction may write.
pub fn may_write() -> bool {
    // SAFETY: reads variables of this process.
    unsafe { !pg_sys::XactReadOnly && !pg_sys::RecoveryInProgress() }
}

/// Returns a role's name; empty if the role was dropped.
pub fn user_name(user: pg_sys::Oid) -> String {
    // SAFETY: a syscache look-up inside a transaction; the name is palloc'd and copied.
    unsafe {
        let name = pg_sys::GetUserNameFromId(user, true);
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// The role of the session, as SET ROLE has set it, whatever the owner of a SECURITY DEFINER function that is running.
pub fn outer_user() -> pg_sys::Oid {
    // SAFETY: reads backend-local state.
    unsafe { pg_sys::GetOuterUserId() }
}

pub fn outer_user_name() -> String {
    user_name(outer_user())
}

pub fn outer_user_is_superuser() -> bool {
    // SAFETY: a cached look-up inside a transaction.
    unsafe { pg_sys::superuser_arg(outer_user()) }
}

/// True if `role` is `other`, or has its privileges.
pub fn has_privileges_of(role: pg_sys::Oid, other: pg_sys::Oid) -> bool {
    // SAFETY: a cached look-up inside a transaction.
    unsafe { pg_sys::has_privs_of_role(role, other) }
}

/// Returns `lock_timeout` in milliseconds; 0 means no limit.
pub fn lock_timeout_ms() -> u64 {
    // SAFETY: reads a variable of this process.
    u64::try_from(unsafe { pg_sys::LockTimeout }).unwrap_or(0)
}

/// Sleeps for this time, or until the latch is set. Serves interrupts.
pub fn sleep_ms(milliseconds: i64) {
    wait(milliseconds);
    pgrx::check_for_interrupts!();
}

/// Like [`sleep_ms`], but does not serve interrupts.
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

pub fn foreign_server_name(server: pg_sys::Oid) -> Option<String> {
    // SAFETY: a syscache look-up with missing_ok; the name is palloc'd and copied.
    unsafe {
        let server = pg_sys::GetForeignServerExtended(server, pg_sys::FSV_MISSING_OK as u16);
        (!server.is_null()).then(|| CStr::from_ptr((*server).servername).to_string_lossy().into_owned())
    }
}

/// The transaction's id. Assigns one if the transaction has none yet.
pub fn transaction_id() -> u32 {
    // SAFETY: inside a transaction.
    unsafe { u32::from(pg_sys::GetTopTransactionId()) }
}

/// Converts a bigint that SQL has returned to an OID; 0 if it is not one.
pub fn oid(number: i64) -> pg_sys::Oid {
    u32::try_from(number).unwrap_or_default().into()
}

/// Identifies the client's current statement within this process: by its transaction and its start.
pub fn present_statement() -> (u32, i64) {
    // SAFETY: reads backend-local state.
    (local_transaction(), unsafe { pg_sys::GetCurrentStatementStartTimestamp() })
}
