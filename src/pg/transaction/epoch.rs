//! Tells whether a fact about a transaction, such as a lock that was taken, still holds: until the transaction ends, or a part of it is
//! rolled back.

use crate::pg::events::{self, Event};
use crate::pg::version::local_transaction;
use std::cell::Cell;

thread_local! {
    static ROLLED_BACK: Cell<u32> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// A part of a transaction in which nothing was rolled back. Locks that were taken in the present epoch are still held.
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

/// The present epoch. It differs after the transaction has ended, or any part of it was rolled back.
pub fn now() -> Epoch {
    if !REGISTERED.replace(true) {
        events::register(on_event);
    }
    Epoch { transaction: local_transaction(), rolled_back: ROLLED_BACK.get() }
}
