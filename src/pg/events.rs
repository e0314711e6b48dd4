//! Events of the local transaction and its subtransactions, for all parts of docshard: one registration with PostgreSQL.

use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;

/// An event of the local transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// the handler may raise
    PreCommit,
    /// the handler may raise
    PrePrepare,
    Committed,
    Prepared,
    Aborted,
    /// with the nesting level of the subtransaction; the handler may raise
    PreCommitSub(i32),
    /// with the nesting level of the subtransaction
    AbortedSub(i32),
}

thread_local! {
    static HANDLERS: RefCell<Vec<fn(Event)>> = const { RefCell::new(Vec::new()) };
}

/// Registers a handler for all later events in this process. The caller must register it only once.
pub fn register(handler: fn(Event)) {
    let is_first = HANDLERS.with_borrow_mut(|handlers| {
        handlers.push(handler);
        handlers.len() == 1
    });
    if is_first {
        // SAFETY: the callbacks are static functions, and an extension library is never unloaded.
        unsafe {
            pg_sys::RegisterXactCallback(Some(on_transaction), null_mut());
            pg_sys::RegisterSubXactCallback(Some(on_subtransaction), null_mut());
        }
    }
}

/// Calls the handlers, those that were registered last first, as PostgreSQL does.
fn tell(event: Event) {
    let may_raise = matches!(event, Event::PreCommit | Event::PrePrepare | Event::PreCommitSub(_));
    // A handler may register another one.
    for at in (0..HANDLERS.with_borrow(Vec::len)).rev() {
        let handler = HANDLERS.with_borrow(|handlers| handlers[at]);
        if may_raise {
            handler(event);
        } else {
            // An error would make PostgreSQL abort during an abort, or panic during a commit.
            drop(std::panic::catch_unwind(|| handler(event)));
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => tell(Event::PreCommit),
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => tell(Event::PrePrepare),
        pg_sys::XactEvent::XACT_EVENT_COMMIT => tell(Event::Committed),
        pg_sys::XactEvent::XACT_EVENT_PREPARE => tell(Event::Prepared),
        pg_sys::XactEvent::XACT_EVENT_ABORT => tell(Event::Aborted),
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _this: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    // SAFETY: reads backend-local state.
    let level = || unsafe { pg_sys::GetCurrentTransactionNestLevel() };
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_PRE_COMMIT_SUB => tell(Event::PreCommitSub(level())),
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => tell(Event::AbortedSub(level())),
        _ => {}
    }
}
