//! Subtransactions of this extension: all effects of a piece of work are kept, or none.

use crate::pg::error::{Result, from_caught};
use pgrx::{PgTryBuilder, pg_sys};
use std::cell::Cell;
use std::panic::AssertUnwindSafe;

thread_local! {
    /// The number of open subtransactions of [`attempt`].
    static OWN: Cell<i32> = const { Cell::new(0) };
    /// The nesting level outside of the outermost of them, and whether that level was in a transaction block of the user.
    static AROUND: Cell<(i32, bool)> = const { Cell::new((0, false)) };
}

/// True in a transaction block (BEGIN … COMMIT) or subtransaction of the user, where a function cannot commit on its own.
pub fn in_transaction_block() -> bool {
    // SAFETY: reads backend-local state.
    let (level, block) = unsafe { (pg_sys::GetCurrentTransactionNestLevel(), pg_sys::IsTransactionBlock()) };
    let (outer, outer_block) = AROUND.get();
    if OWN.get() > 0 && level == outer + OWN.get() { outer_block } else { level > 1 || block }
}

struct Counted;

impl Counted {
    fn new() -> Self {
        if OWN.get() == 0 {
            // SAFETY: reads backend-local state.
            let level = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
            AROUND.set((level, in_transaction_block()));
        }
        OWN.set(OWN.get() + 1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
    }
}

/// Runs `work` in a subtransaction, which is rolled back after an error. An ERROR or a panic becomes an `Err`. The caller must not continue
/// after a cancel, which must end the statement.
pub fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _counted = Counted::new();
    // SAFETY: backend-local pointers, put back below as every caller of BeginInternalSubTransaction does.
    let (context, owner, callbacks) = unsafe {
        let before = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner, pg_sys::error_context_stack);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = before.0;
        before
    };
    let restore = || {
        // SAFETY: they belong to what surrounds the subtransaction, which is still there.
        unsafe {
            pg_sys::CurrentMemoryContext = context;
            pg_sys::CurrentResourceOwner = owner;
            pg_sys::error_context_stack = callbacks;
        }
    };
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        let done = work()?;
        // SAFETY: the innermost subtransaction is the one begun above, as those that `work` began have ended.
        unsafe { pg_sys::ReleaseCurrentSubTransaction() };
        Ok(done)
    }))
    .catch_others(|caught| Err(from_caught(caught)))
    .execute();
    restore();
    if result.is_err() {
        // SAFETY: as above; it was not released, as releasing is the last step that can fail.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() };
        restore();
    }
    result
}
