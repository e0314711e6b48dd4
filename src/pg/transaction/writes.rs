//! The writes of the present transaction to other servers, by the numbers of PostgreSQL's commands.
//!
//! A snapshot shows its own transaction's writes by commands with a smaller number than the snapshot's. PostgreSQL's own tables have
//! versions of rows, so a reader with an older snapshot (a cursor, a function that is not volatile, or another part of a statement that
//! writes) does not see newer writes. Other servers show all that the transaction has written there. So a reader with an older snapshot
//! asks here whether there are newer writes.
//!
//! A write counts from when it is sent, whether it changes something or not. When a subtransaction is rolled back, its writes are
//! forgotten.

use crate::pg::events::{self, Event};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

/// The last write to a collection at a nesting level.
struct Written {
    namespace: String,
    level: i32,
    command: pg_sys::CommandId,
}

thread_local! {
    static WRITES: RefCell<Vec<Written>> = const { RefCell::new(Vec::new()) };
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the transaction writes to a collection. Snapshots of later commands will show it.
pub fn note(namespace: &str) {
    if !IS_REGISTERED.replace(true) {
        events::register(on_event);
    }
    // SAFETY: reads backend-local state, and makes the next command have another number.
    let (level, command) = unsafe { (pg_sys::GetCurrentTransactionNestLevel(), pg_sys::GetCurrentCommandId(true)) };
    add(level, command, namespace);
}

fn add(level: i32, command: pg_sys::CommandId, namespace: &str) {
    WRITES.with_borrow_mut(|writes| {
        match writes.iter_mut().find(|known| known.level == level && known.namespace == namespace) {
            Some(known) => known.command = known.command.max(command),
            None => writes.push(Written { namespace: namespace.to_owned(), level, command }),
        }
    });
}

/// The collections with writes that a snapshot with this command number must not show.
pub fn since(command: pg_sys::CommandId) -> Vec<String> {
    WRITES.with_borrow(|writes| {
        writes.iter().filter(|written| written.command >= command).map(|written| written.namespace.clone()).collect()
    })
}

fn on_event(event: Event) {
    match event {
        Event::PreCommit | Event::PrePrepare => {}
        Event::Committed | Event::Prepared | Event::Aborted => WRITES.with_borrow_mut(Vec::clear),
        Event::AbortedSub(level) => WRITES.with_borrow_mut(|writes| writes.retain(|written| written.level < level)),
        Event::PreCommitSub(level) => {
            let (ended, kept) = WRITES.take().into_iter().partition(|written| written.level >= level);
            WRITES.set(kept);
            let ended: Vec<Written> = ended;
            ended.iter().for_each(|written| add(level - 1, written.command, &written.namespace));
        }
    }
}
