//! The users of a session, and code that runs as another user: the extension's owner, or the user whose privileges PostgreSQL checks.

use crate::pg::error::Result;
use crate::pg::object::extension;
use crate::pg::security::pinned::Pinned;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;

pub fn extension_owner() -> Result<pg_sys::Oid> {
    extension::find()
        .map(|extension| extension.owner)
        .ok_or_else(|| error!(Kind::InternalError, "the extension docshard is not installed in this database"))
}

/// The user that logged in, or the one of SET SESSION AUTHORIZATION.
pub fn session_user() -> pg_sys::Oid {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::GetSessionUserId() }
}

/// True if the current user is the session's own. False in a SECURITY DEFINER function, after SET ROLE, and in maintenance such as ANALYZE,
/// which runs as a table's owner.
pub fn is_session_users_own() -> bool {
    let (user, context) = current();
    user == session_user() && context == 0
}

/// True if the current code may run RESET ROLE, as it may after SET ROLE, but not in a SECURITY DEFINER function or in maintenance.
pub fn may_become_session_user() -> bool {
    current().1 == 0
}

/// The current user, and PostgreSQL's security context: 0 outside of SECURITY DEFINER functions and maintenance.
fn current() -> (pg_sys::Oid, i32) {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: reads variables of this process.
    unsafe { pg_sys::GetUserIdAndSecContext(&mut user, &mut context) };
    (user, context)
}

/// Makes this process, which serves no client, run as `user` from now on.
pub fn become_for_session(user: pg_sys::Oid) {
    // SAFETY: a background worker starts as the bootstrap superuser, which may become any user.
    unsafe { pg_sys::SetUserIdAndSecContext(user, 0) };
}

/// Restores the user when dropped.
pub(super) struct Restore(pg_sys::Oid, i32);

impl Restore {
    /// Switches to a user, as a SECURITY DEFINER function does.
    pub(super) fn after_becoming(user: pg_sys::Oid) -> Self {
        let mut before = Self(pg_sys::InvalidOid, 0);
        // SAFETY: saved, and put back by `drop`.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut before.0, &mut before.1);
            pg_sys::SetUserIdAndSecContext(user, before.1 | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        }
        before
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: what GetUserIdAndSecContext answered before; raises nothing.
        unsafe { pg_sys::SetUserIdAndSecContext(self.0, self.1) };
    }
}

/// Runs `work` as the extension's owner, like a SECURITY DEFINER function with a fixed `search_path`: for writes to docshard's
/// own tables in users' transactions. `work` must not run code that a user wrote.
pub fn as_extension_owner<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _user = Restore::after_becoming(extension_owner()?);
    let _pinned = Pinned::new();
    work()
}

/// Runs `work` as the user whose privileges PostgreSQL has checked for a relation: for a view, its owner.
pub(in crate::pg) fn as_checked_user<T>(user: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    // SAFETY: reads a variable of this process.
    let is_current = user == pg_sys::InvalidOid || unsafe { pg_sys::GetUserId() } == user;
    let _user = (!is_current).then(|| Restore::after_becoming(user));
    work()
}
