//! The protocol for changes of metadata: lock, write, advance the revision, announce.
//!
//! RULE: a transaction that changes a collection's chunks, placements or indexes first locks the collection's row ([`lock`]), and ends with
//! [`touch`]. So changes of one collection are serialized, and every cached map is invalidated. Whoever deletes a chunk also gives the new
//! revision to chunks that cover its range: a cache reads only chunks of newer revisions.
//!
//! INVARIANT: a copy of the router changes nothing: [`lock`], [`touch`] and [`log`] refuse it. [`lock`] also refuses a database whose
//! keeper does not hold the shards' locks: it may be a copy. Only the repair of a shard's login is allowed while shards refuse the router's
//! login.

use super::cache;
use crate::catalog::cluster::identity;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::epoch::{self, Epoch};
use crate::storage::lock::{self, Tag};
use crate::store;
use crate::store::collections;
use crate::store::index_builds::Build;
use docshard_core::error::{Kind, error};
use std::cell::RefCell;

pub use crate::store::collections::{Locked, next_version};

thread_local! {
    /// Collections whose rows this transaction has locked.
    static LOCKED: RefCell<(Epoch, Vec<i32>)> = RefCell::default();
}

/// True if this transaction has locked the collection's metadata. After a ROLLBACK TO SAVEPOINT, returns false even if the lock is still
/// held.
pub fn is_locked_here(collection: i32) -> bool {
    LOCKED.with_borrow(|(epoch, locked)| *epoch == epoch::now() && locked.contains(&collection))
}

fn note_locked(collection: i32) {
    LOCKED.with_borrow_mut(|known| {
        let now = epoch::now();
        if known.0 != now {
            *known = (now, Vec::new());
        }
        known.1.push(collection);
    });
}

/// Locks a collection's metadata.
/// Errors: `NamespaceNotFound`; `NotWritablePrimary` at a copy of the router; `NotPrimaryOrSecondary` at a database that may be a copy.
pub fn lock(namespace: &str) -> Result<Locked> {
    identity::require_free()?;
    let locked = collections::lock(namespace)?.ok_or_else(|| cache::not_found(namespace))?;
    note_locked(locked.id);
    Ok(locked)
}

/// Refuses a change while an index of the collection is being built. The remains of an interrupted build do not count.
/// Errors: `ConflictingOperationInProgress`.
pub fn refuse_while_building(id: i32, name: &str) -> Result<()> {
    running_build(id)?.map_or(Ok(()), |build| Err(index_is_being_built_error(&build, name)))
}

/// The running build of one of the collection's indexes: one whose builder holds its lock. None if no build runs.
pub fn running_build(id: i32) -> Result<Option<Build>> {
    let builds = store::index_builds::of_collection(id)?;
    Ok(builds.into_iter().find(|build| !lock::is_free(Tag::Builder(build.id))))
}

/// The error of a change of a collection that a running index build does not allow.
pub fn index_is_being_built_error(build: &Build, name: &str) -> Error {
    error!(Kind::ConflictingOperationInProgress, "the index {} of {name} is being built", build.name)
        .with_hint("Try again when the build has ended; docshard.list_index_builds() shows its progress.")
}

/// Advances a collection's revision and announces the change.
/// Errors: `NotWritablePrimary` at a copy of the router.
pub fn touch(collection: i32) -> Result<()> {
    identity::require_router()?;
    collections::advance_revision(collection)?;
    announce();
    Ok(())
}

pub use super::cache::announce;

/// Writes a line into the changelog; `details` is a JSON object. Announces a change of definitions, so that the keeper looks for it.
/// Errors: `NotWritablePrimary` at a copy of the router.
pub fn log(what: &str, namespace: Option<&str>, details: &serde_json::Value) -> Result<()> {
    identity::require_router()?;
    if store::changelog::changes_definitions(what) {
        announce();
    }
    store::changelog::insert(what, namespace, details)
}

/// Writes a line about a repair into the changelog, also at a router that is locked out. The caller has called [`identity::check_may_repair`].
pub fn log_repair(what: &str, details: &serde_json::Value) -> Result<()> {
    store::changelog::insert(what, None, details)
}
