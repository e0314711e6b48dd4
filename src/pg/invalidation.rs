//! When cached metadata must be looked at again: PostgreSQL's relcache invalidation of one relation.

use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    static GENERATION: Cell<u64> = const { Cell::new(1) };
    static WATCHED: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relid: pg_sys::Oid) {
    if relid == pg_sys::InvalidOid || relid == WATCHED.get() || WATCHED.get() == pg_sys::InvalidOid {
        GENERATION.set(GENERATION.get() + 1);
    }
}

/// Reads pending invalidations and returns a number that grows whenever the watched relation was invalidated.
pub fn generation() -> u64 {
    if !REGISTERED.replace(true) {
        // SAFETY: a permanent callback of this process, registered once.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0)) };
    }
    // SAFETY: inside a transaction; processes messages of other backends.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    GENERATION.get()
}

/// Sets the relation to watch.
pub fn watch(relation: pg_sys::Oid) {
    WATCHED.set(relation);
}

/// Tells every backend, when this transaction commits, and this one at its next command, that the relation changed.
pub fn announce(relation: pg_sys::Oid) {
    // SAFETY: inside a transaction; the relation exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}
