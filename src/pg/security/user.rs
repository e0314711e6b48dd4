//! Acting as the extension's owner.

use crate::pg::error::{Error, Result};
use crate::pg::object::extension;
use crate::pg::security::search_path::Pinned;
use docshard_core::error::Kind;
use pgrx::pg_sys;

/// The owner of the extension in this database.
///
/// # Errors
/// `InternalError` if the extension is not installed.
pub fn extension_owner() -> Result<pg_sys::Oid> {
    extension::find()
        .map(|extension| extension.owner)
        .ok_or_else(|| Error::new(Kind::InternalError, "the extension docshard is not installed in this database"))
}

/// This process, which serves no client, acts as that user from now on.
pub fn become_for_session(user: pg_sys::Oid) {
    // SAFETY: a background worker starts as the bootstrap superuser, who may become anyone.
    unsafe { pg_sys::SetUserIdAndSecContext(user, 0) };
}

/// Puts the user back when dropped, also when an ERROR unwinds.
pub(super) struct Restore(pg_sys::Oid, i32);

impl Restore {
    /// This session acts as a user, as in a SECURITY DEFINER function, until the answer is dropped.
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

/// Runs `work` as the extension's owner, as a SECURITY DEFINER function does, with its own meaning of names. For writes to docshard's own tables that
/// every user's transaction needs; `work` must not run anything that a user wrote.
///
/// # Errors
/// What `work` answers.
pub fn as_extension_owner<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _user = Restore::after_becoming(extension_owner()?);
    let _pinned = Pinned::new();
    work()
}
