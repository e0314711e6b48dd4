//! The interface by which a higher layer decides transactions over several shards.

use crate::pg::error::Result;
use pgrx::pg_sys::Oid;
use std::cell::Cell;

pub trait Coordinator {
    /// The cluster's part of the names of prepared transactions: a few letters and digits.
    fn token(&self) -> Result<String> {
        Ok("0".into())
    }
    /// Writes the decision into the local transaction, after all shards have prepared. Called before the local commit, with an
    /// active snapshot; an error rolls the transaction back on all nodes. If `at_once` is false, the local transaction is not
    /// committed but prepared, and may remain prepared for a long time.
    fn decide(&self, gids: &[(Oid, String)], at_once: bool) -> Result<()>;
    /// Called for a statement that has waited at a shard for so long that it may be part of a deadlock. May unwind.
    fn suspect_deadlock(&self) {}
    /// Called after the local commit, when the shards have committed these transactions. Must not access tables or raise errors.
    fn finished(&self, gids: &[(Oid, String)]);
}

thread_local! {
    static COORDINATOR: Cell<Option<&'static dyn Coordinator>> = const { Cell::new(None) };
}

pub(super) fn coordinator() -> Option<&'static dyn Coordinator> {
    COORDINATOR.get()
}

/// Called in the postmaster or at the start of a process.
pub fn set_coordinator(coordinator: &'static dyn Coordinator) {
    COORDINATOR.set(Some(coordinator));
}
