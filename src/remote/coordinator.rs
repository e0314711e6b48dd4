//! Who decides transactions over several shards, and is told of writes that may be in a deadlock: a layer above sets it.

use crate::pg::error::Result;
use pgrx::pg_sys::Oid;
use std::cell::Cell;

/// Who decides the outcome of a transaction that was prepared on shards.
pub trait Coordinator {
    /// The part of the prepared transactions' names that tells this cluster from others: letters and digits, short.
    fn token(&self) -> Result<String> {
        Ok("0".into())
    }
    /// Writes the decision into the local transaction, after all shards have prepared. It runs in the local
    /// pre-commit with a snapshot; an error aborts the transaction everywhere. If it does not commit `at_once` but is
    /// being prepared, other transactions may run for long before it ends.
    fn decide(&self, gids: &[(Oid, String)], at_once: bool) -> Result<()>;
    /// A write has waited at a shard for so long that it may be part of a deadlock. May unwind, as any wait may.
    fn suspect_deadlock(&self) {}
    /// The shards have committed these. Called after the local commit: no access to tables, no errors.
    fn finished(&self, gids: &[(Oid, String)]);
}

thread_local! {
    static COORDINATOR: Cell<Option<&'static dyn Coordinator>> = const { Cell::new(None) };
}

/// Who decides, in this process.
pub(super) fn coordinator() -> Option<&'static dyn Coordinator> {
    COORDINATOR.get()
}

/// Sets who decides two-phase commits. Set in a process before it forks, it holds in all its children.
pub fn set_coordinator(coordinator: &'static dyn Coordinator) {
    COORDINATOR.set(Some(coordinator));
}
