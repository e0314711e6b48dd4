//! Detects that cached metadata is stale, by PostgreSQL's relcache invalidation.

use crate::pg::events::{self, Event};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// The largest number of relations that are recorded; beyond it, 0 is recorded, which stands for all.
const MAX_RECORDED: usize = 4096;

thread_local! {
    /// Counts the invalidations of the watched relation.
    static GENERATION: Cell<u64> = const { Cell::new(1) };
    /// The relation of [`watch`]; invalid: every relation counts.
    static WATCHED: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
    /// Counts the invalidations of all relations.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    /// The relations that became invalid since [`record`]; None: nothing is recorded.
    static RECORDED: RefCell<Option<BTreeSet<u32>>> = const { RefCell::new(None) };
}

/// Begins to record which relations become invalid. Does nothing if recording has begun already.
pub(super) fn record() {
    register();
    RECORDED.with_borrow_mut(|recorded| _ = recorded.get_or_insert_default());
}

/// The OIDs of the relations that were recorded. If 0 is one of them, any relation may have become invalid.
pub(super) fn recorded() -> BTreeSet<u32> {
    RECORDED.with_borrow(|recorded| recorded.clone().unwrap_or_default())
}

pub(super) fn stop_recording() {
    RECORDED.take();
}

unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relid: pg_sys::Oid) {
    CHANGES.set(CHANGES.get() + 1);
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            recorded.insert(if recorded.len() < MAX_RECORDED { relid.to_u32() } else { 0 });
        }
    });
    if relid == pg_sys::InvalidOid || relid == WATCHED.get() || WATCHED.get() == pg_sys::InvalidOid {
        GENERATION.set(GENERATION.get() + 1);
    }
}

fn register() {
    if !REGISTERED.replace(true) {
        // SAFETY: a permanent callback of this process, registered once.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0)) };
    }
}

/// Returns a number that grows with each relation invalidation that this process handles. PostgreSQL handles them at the start
/// of a transaction, when it takes a lock, and after each of its commands.
pub fn relation_changes() -> u64 {
    register();
    CHANGES.get()
}

/// Processes pending invalidations. Returns a number that grows with each invalidation of the watched relation.
pub fn generation() -> u64 {
    register();
    // SAFETY: inside a transaction; processes messages of other backends.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    GENERATION.get()
}

pub fn watch(relation: pg_sys::Oid) {
    WATCHED.set(relation);
}

thread_local! {
    /// The present transaction has announced a change.
    static CHANGED: Cell<bool> = const { Cell::new(false) };
    /// See [`take_tainted`].
    static TAINTED: Cell<bool> = const { Cell::new(false) };
    static CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

fn on_event(event: Event) {
    match event {
        // A prepared transaction counts as rolled back, because another session may roll it back.
        Event::Aborted | Event::Prepared if CHANGED.replace(false) => TAINTED.set(true),
        Event::AbortedSub(_) if CHANGED.get() => TAINTED.set(true),
        Event::Committed => CHANGED.set(false),
        _ => {}
    }
}

/// True if a (sub)transaction that had announced a change was rolled back or prepared since the last call: the cache may contain its
/// changes, with a version number that will be used again.
pub fn take_tainted() -> bool {
    TAINTED.replace(false)
}

/// Invalidates the relation: in this backend at once, in all others when the transaction commits.
pub fn announce(relation: pg_sys::Oid) {
    CHANGED.set(true);
    if !CALLBACKS.replace(true) {
        events::register(on_event);
    }
    // PostgreSQL processes its own message in this backend only at the next command, so the number grows here.
    GENERATION.set(GENERATION.get() + 1);
    // SAFETY: inside a transaction; the relation exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}
