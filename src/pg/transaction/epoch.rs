//! Validity of facts about a transaction: they hold until the transaction, or a part of it, is rolled back.

use crate::pg::events::{self, Event};
use crate::pg::version::local_transaction;
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

fn on_event(event: Event) {
    if matches!(event, Event::AbortedSub(_)) {
        ROLLED_BACK.set(ROLLED_BACK.get().wrapping_add(1));
    }
}

pub fn now() -> Epoch {
    if !REGISTERED.replace(true) {
        events::register(on_event);
    }
    Epoch { transaction: local_transaction(), rolled_back: ROLLED_BACK.get() }
}
