//! Locks a collection's metadata for a change that no move of its chunks may meet: splits, merges, indexes, drops.
//!
//! Such a change waits for the moves that are under way instead of failing, for as long as `lock_timeout` says. A move of
//! the balancer can be repeated, so one that is not decided is aborted after [`BALANCER_PATIENCE`]; a user's move is
//! waited for.
//!
//! 1. The lock [`Tag::Definition`], exclusively and to the end of the transaction: from now on no move of the collection
//!    registers.
//! 2. Poll until no registered move is undecided or not yet in the map.
//! 3. Lock the collection's row.
//!
//! INVARIANT: nobody waits in 1 or 2 with a lock on the row taken here, as a move needs the row to come to its end. A move
//! that registers locks the row first and then only tries for the tag ([`try_share`]), so the two cannot wait for each other.

use super::change::{self, Locked};
use crate::pg::error::{Error, Result};
use crate::pg::process::job;
use crate::pg::server::{lock_timeout_ms, sleep_ms};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::collections;
use crate::store::migrations::{self, Undecided};
use docshard_core::error::Kind;
use serde_json::json;
use std::time::{Duration, Instant};

/// The job of a background worker that aborts a move; its request is the move's number.
pub const ABORT: &str = "abort a move";

/// How long an undecided move of the balancer is waited for.
const BALANCER_PATIENCE: Duration = Duration::from_secs(1);
/// How long moves are waited for where `lock_timeout` is 0.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two looks at the moves, in milliseconds.
const POLL_MS: i64 = 20;

/// Locks a collection's metadata once none of its chunks is being moved; until the transaction ends none will be.
///
/// # Errors
/// `NamespaceNotFound`; `LockTimeout` (55P03) if a move does not end in time; `ConflictingOperationInProgress` (55006) if
/// this transaction holds the collection's row already, for which the move would wait in turn.
pub fn lock(namespace: &str) -> Result<Locked> {
    loop {
        let id = number(namespace)?;
        lock::acquire(Tag::Definition(id), Mode::Exclusive);
        await_moves(id, namespace)?;
        let locked = change::lock(namespace)?;
        // Another collection may have taken the name meanwhile.
        if locked.id == id {
            return Ok(locked);
        }
    }
}

/// Locks a collection's metadata, if none of its chunks is being moved now: for the balancer, which has other things to do
/// than to wait.
///
/// # Errors
/// `NamespaceNotFound`; `ConflictingOperationInProgress` (55006).
pub fn lock_now(namespace: &str) -> Result<Locked> {
    let locked = change::lock(namespace)?;
    match undecided(locked.id)?.first() {
        None => Ok(locked),
        Some(found) => Err(conflict(namespace, found.id)),
    }
}

/// Keeps changes that wait for moves from going on until the transaction ends, which registers a move; false if one is
/// under way or waiting. The caller holds the collection's row.
pub fn try_share(collection: i32) -> bool {
    lock::try_acquire(Tag::Definition(collection), Mode::Shared)
}

fn number(namespace: &str) -> Result<i32> {
    let _snapshot = ActiveSnapshot::latest();
    collections::read_id(namespace)?
        .ok_or_else(|| Error::new(Kind::NamespaceNotFound, format!("ns not found: {namespace}")))
}

fn undecided(collection: i32) -> Result<Vec<Undecided>> {
    let _snapshot = ActiveSnapshot::latest();
    migrations::read_undecided(collection)
}

fn conflict(namespace: &str, migration: i64) -> Error {
    Error::new(
        Kind::ConflictingOperationInProgress,
        format!("a chunk of {namespace} is being moved (migration {migration})"),
    )
    .with_hint("Wait until it has ended; the view docshard.migrations shows it.")
}

fn await_moves(collection: i32, namespace: &str) -> Result<()> {
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
        let waited = began.elapsed();
        if waited >= limit {
            let message = format!(
                "a chunk of {namespace} is still being moved after {} ms (migration {})",
                limit.as_millis(),
                first.id
            );
            let hint = format!(
                "Run it again when the move is over, raise lock_timeout, or end the move with \
                 docshard.abort_migration({}).",
                first.id
            );
            return Err(Error::new(Kind::LockTimeout, message).with_hint(hint));
        }
        if waited >= BALANCER_PATIENCE
            && let Some(due) = moves.iter().find(|m| m.running && m.of_balancer && !aborted.contains(&m.id))
        {
            aborted.push(due.id);
            // Without a free worker the move is waited for as a user's is.
            let _ = job::run_detached(ABORT, "docshard: aborting a move", &json!(due.id), || Ok(true));
        }
        sleep_ms(POLL_MS);
    }
}
