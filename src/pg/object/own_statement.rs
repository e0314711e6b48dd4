//! Tells docshard's own statements, which may change protected objects, from those of users.

use crate::pg::object::extension;
use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    /// The number of active calls of [`unguarded`].
    static UNGUARDED: Cell<u32> = const { Cell::new(0) };
    static TRUSTED: Cell<bool> = const { Cell::new(false) };
}

/// Called when a router has identified itself in this session. From then on the session executes only statements of the router.
pub fn trust_session() {
    TRUSTED.set(true);
}

/// True if a router has identified itself in this session.
pub fn is_trusted_session() -> bool {
    TRUSTED.get()
}

/// True if the present statement is docshard's own, a router's, one of the extension's update scripts, or pg_upgrade's.
pub(super) fn is_own_statement() -> bool {
    // SAFETY: reads variables of this process; the extension is looked up inside a transaction.
    unsafe {
        let is_script = || {
            pg_sys::creating_extension && extension::find().is_some_and(|own| own.is(pg_sys::CurrentExtensionObject))
        };
        UNGUARDED.get() > 0 || TRUSTED.get() || pg_sys::IsBinaryUpgrade || !pg_sys::IsTransactionState() || is_script()
    }
}

/// True while [`unguarded`] runs.
pub(super) fn is_unguarded() -> bool {
    UNGUARDED.get() > 0
}

struct Unguarded;

impl Drop for Unguarded {
    fn drop(&mut self) {
        UNGUARDED.set(UNGUARDED.get() - 1);
    }
}

/// Runs statements of the extension that may drop guarded objects. `work` must not run anything that a user wrote.
pub fn unguarded<T>(work: impl FnOnce() -> T) -> T {
    UNGUARDED.set(UNGUARDED.get() + 1);
    let _counted = Unguarded;
    work()
}
