//! Subtransactions of this extension's own: work that either happens or leaves nothing behind, whatever goes wrong in it.

use crate::pg::error::{Error, Result};
use pgrx::{PgTryBuilder, pg_sys};
use std::cell::Cell;
use std::panic::AssertUnwindSafe;

thread_local! {
    /// How many of the open subtransactions are ours.
    static OWN: Cell<i32> = const { Cell::new(0) };
    /// The level of the transaction that the outermost of them was opened in, and whether that was in a block of the user's.
    static AROUND: Cell<(i32, bool)> = const { Cell::new((0, false)) };
}

/// True in a transaction block (BEGIN … COMMIT) or a subtransaction of the user's; those of [`attempt`] do not count.
pub fn in_transaction_block() -> bool {
    // SAFETY: reads backend-local state.
    let (level, block) = unsafe { (pg_sys::GetCurrentTransactionNestLevel(), pg_sys::IsTransactionBlock()) };
    let (outer, outer_block) = AROUND.get();
    if OWN.get() > 0 && level == outer + OWN.get() { outer_block } else { level > 1 || block }
}

/// Counts one more while it lives, also when an ERROR unwinds.
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

/// Runs `work` in a subtransaction, which is rolled back if `work` answers an error; an ERROR that it raises, or a panic,
/// becomes an `Err` too. A FATAL error ends the process as always.
///
/// Which errors the caller may go on from is its own matter: a cancelled statement, for one, must not.
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
    .catch_others(|caught| Err(Error::from_caught(caught)))
    .execute();
    restore();
    if result.is_err() {
        // SAFETY: as above; it was not released, as releasing is the last step that can fail.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() };
        restore();
    }
    result
}
