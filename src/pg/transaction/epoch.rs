//! Validity of facts about a transaction: they hold until the transaction, or a part of it, is rolled back.

use crate::pg::version::local_transaction;
use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    static ROLLED_BACK: Cell<u32> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// A part of a transaction without a rollback to a savepoint. Locks that were taken in it are still held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    transaction: u32,
    rolled_back: u32,
}

unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _this: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        ROLLED_BACK.set(ROLLED_BACK.get().wrapping_add(1));
    }
}

pub fn now() -> Epoch {
    if !REGISTERED.get() {
        REGISTERED.set(true);
        // SAFETY: a permanent callback of this process, registered once; it only counts.
        unsafe { pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut()) };
    }
    Epoch { transaction: local_transaction(), rolled_back: ROLLED_BACK.get() }
}
