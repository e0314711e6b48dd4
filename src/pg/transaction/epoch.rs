//! Telling whether something noted in this process still holds: the same transaction, and nothing of it rolled back since.

use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    static ROLLED_BACK: Cell<u32> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// A stretch of a transaction in which no subtransaction is rolled back; with that, locks taken in it are still held.
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

/// The present one.
pub fn now() -> Epoch {
    if !REGISTERED.get() {
        REGISTERED.set(true);
        // SAFETY: a permanent callback of this process, registered once; it only counts.
        unsafe { pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut()) };
    }
    Epoch { transaction: local_id(), rolled_back: ROLLED_BACK.get() }
}

/// The number of the present transaction among those of this process.
pub fn local_id() -> u32 {
    // SAFETY: this process's own entry, which is there as long as the process.
    unsafe { (*pg_sys::MyProc).lxid }
}
