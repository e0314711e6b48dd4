//! Locks a collection's metadata for changes that exclude moves of its chunks: splits, merges, indexes, drops.
//!
//! Such a change does not fail while moves run, but waits for them until `lock_timeout`. A move of the balancer that is not decided
//! is aborted after [`BALANCER_PATIENCE`], because it can be repeated; a user's move is not aborted.
//!
//! 1. Take the lock [`Tag::Definition`], exclusively and until the end of the transaction: no other move of the collection can
//!    register.
//! 2. Poll until no registered move is undecided or not yet in the map.
//! 3. Lock the collection's row.
//!
//! A collection that is being copied into another layout cannot be changed at all ([`refuse_while_resharding`]), because the copying can
//! take hours.
//!
//! INVARIANT: no transaction waits in 2 while it holds the row's lock, as a move needs the row to complete. One that has locked the row earlier may
//! wait in 1 for another change; a deadlock or a time limit ends this. A move that
//! registers locks the row first and then only tries to get the tag ([`try_share`]), so the two cannot wait for each other.

use crate::catalog::cache;
use crate::catalog::change::{self, Locked};
use crate::pg::error::{Error, Result};
use crate::pg::process::job;
use crate::pg::server::{lock_timeout_ms, sleep_ms};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::collections;
use crate::store::migrations::{self, Undecided};
use crate::store::resharding;
use docshard_core::error::{Kind, error};
use serde_json::json;
use std::time::{Duration, Instant};

/// The job of a background worker that aborts a move; its request is the move's number.
pub const ABORT: &str = "abort a move";

/// How long a change waits for an undecided move of the balancer.
const BALANCER_PATIENCE: Duration = Duration::from_secs(1);
/// How long a change waits for moves if `lock_timeout` is 0.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which moves are polled, in milliseconds.
const POLL_MS: i64 = 20;

/// Locks a collection's metadata when none of its chunks is being moved; blocks moves until the transaction ends.
/// Errors: `LockTimeout` (55P03) if a move does not end in time; `ConflictingOperationInProgress` (55006) if this transaction holds
/// the collection's row already, for which the move would wait, and at once if a move is in doubt; those of
/// [`refuse_while_resharding`] and [`change::lock`].
pub fn lock(namespace: &str) -> Result<Locked> {
    loop {
        let id = number(namespace)?;
        lock::acquire(Tag::Definition(id), Mode::Exclusive);
        await_moves(id, namespace)?;
        let locked = change::lock(namespace)?;
        // The collection may have been dropped and created anew meanwhile.
        if locked.id == id {
            return Ok(locked);
        }
    }
}

/// Locks a collection's metadata if none of its chunks is being moved now: for the balancer, which does not wait.
/// Errors: `ConflictingOperationInProgress` (55006); those of [`refuse_while_resharding`] and [`change::lock`].
pub fn lock_now(namespace: &str) -> Result<Locked> {
    let locked = change::lock(namespace)?;
    refuse_while_resharding(locked.id)?;
    match undecided(locked.id)?.first() {
        None => Ok(locked),
        Some(found) => Err(conflict(namespace, found.id)),
    }
}

/// For a transaction that registers a move: until it ends, changes that exclude moves wait. Does not wait itself: false if such a change runs, or
/// waits for moves.
/// The caller holds the collection's row.
pub fn try_share(collection: i32) -> bool {
    lock::try_acquire(Tag::Definition(collection), Mode::Shared)
}

fn number(namespace: &str) -> Result<i32> {
    let _snapshot = ActiveSnapshot::latest();
    collections::read_id(namespace)?.ok_or_else(|| cache::not_found(namespace))
}

fn undecided(collection: i32) -> Result<Vec<Undecided>> {
    let _snapshot = ActiveSnapshot::latest();
    migrations::read_undecided(collection)
}

fn conflict(namespace: &str, migration: i64) -> Error {
    error!(Kind::ConflictingOperationInProgress, "a chunk of {namespace} is being moved (migration {migration})")
        .with_hint("Wait until the move has ended; the view docshard.migrations shows it.")
}

/// Refuses a change of a collection that is being copied into another layout, or of the copy.
/// Errors: `ReshardCollectionInProgress`.
pub fn refuse_while_resharding(collection: i32) -> Result<()> {
    let _snapshot = ActiveSnapshot::latest();
    match resharding::read_running_of(collection)? {
        None => Ok(()),
        Some(running) => Err(error!(
            Kind::ReshardCollectionInProgress,
            "{} is in progress for {}", running.command, running.namespace
        )
        .with_hint(format!(
            "Wait until it has ended (the view docshard.resharding shows its progress), or end it with \
             docshard.abort_reshard_collection('{}').",
            running.namespace
        ))),
    }
}

/// The error of a change that would have to wait for a move which only an administrator can end; `doubt` says how.
fn in_doubt(namespace: &str, doubt: &str) -> Error {
    error!(Kind::ConflictingOperationInProgress, "a chunk of {namespace} is being moved, and the move is in doubt")
        .with_hint(doubt)
}

fn await_moves(collection: i32, namespace: &str) -> Result<()> {
    refuse_while_resharding(collection)?;
    let began = Instant::now();
    let limit = match lock_timeout_ms() {
        0 => PATIENCE,
        milliseconds => Duration::from_millis(milliseconds),
    };
    let mut aborted: Vec<i64> = Vec::new();
    loop {
        let moves = undecided(collection)?;
        let Some(first) = moves.first() else { return Ok(()) };
        if change::is_locked_here(collection) {
            return Err(conflict(namespace, first.id));
        }
        if let Some(doubt) = moves.iter().find_map(|one| one.doubt.as_deref()) {
            return Err(in_doubt(namespace, doubt));
        }
        let waited = began.elapsed();
        if waited >= limit {
            let message = format!(
                "a chunk of {namespace} is still being moved after {} ms (migration {})",
                limit.as_millis(),
                first.id
            );
            let hint = format!(
                "Try again when the move has ended, raise lock_timeout, or end the move with \
                 docshard.abort_migration({}).",
                first.id
            );
            return Err(Error::new(Kind::LockTimeout, message).with_hint(hint));
        }
        if waited >= BALANCER_PATIENCE
            && let Some(due) = moves.iter().find(|m| m.running && m.of_balancer && !aborted.contains(&m.id))
        {
            aborted.push(due.id);
            // If no background worker is free, wait for the move as for a user's.
            let _ = job::run_detached(ABORT, "docshard: aborting a move", &json!(due.id), || Ok(true));
        }
        sleep_ms(POLL_MS);
    }
}
