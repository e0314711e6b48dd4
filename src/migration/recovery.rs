//! Completing or taking back moves whose coordinator is gone.
//!
//! A coordinator holds a lock on its migration as long as its process lives, so whoever gets that lock knows that the
//! attempt is nobody's, and is alone in working on it.

use super::cleanup::sweep;
use super::record::{self, Record};
use super::settle::settle;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::transactions;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a process that recovers again and again also sweeps.
const SWEEP: Duration = Duration::from_secs(300);

thread_local! {
    static SWEPT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Brings every attempt without a living coordinator to its end, and [`sweep`]s now and then. A shard that cannot be reached leaves its attempts
/// where they are, with the error in their rows; returns how many. Runs outside any transaction.
pub fn recover() -> Result<usize> {
    let left = recover_some(|_| true)?;
    if SWEPT.get().is_none_or(|at| at.elapsed() >= SWEEP) {
        SWEPT.set(Some(Instant::now()));
        sweep()?;
    }
    Ok(left)
}

/// As [`recover`], for the attempts of one collection.
///
/// # Errors
/// As [`recover`].
pub fn recover_collection(namespace: &str) -> Result<usize> {
    recover_some(|record| record.namespace == namespace)
}

/// As [`recover`], for one attempt; where somebody else works on it, nothing is done.
///
/// # Errors
/// As [`recover`].
pub(super) fn recover_one(id: i64) -> Result<usize> {
    recover_some(|record| record.id == id)
}

/// True if a process works on the attempt: its coordinator, or one that recovers it. Runs in the caller's transaction.
pub(super) fn is_in_hands(id: i64) -> Result<bool> {
    // Taking the lock for a look could keep the one away who wants to recover.
    Ok(!lock::holding_processes(Tag::Coordinator(id))?.is_empty())
}

fn recover_some(wanted: impl Fn(&Record) -> bool) -> Result<usize> {
    let mut left = 0;
    for found in transaction::run(record::unfinished)?.into_iter().filter(wanted) {
        let tag = Tag::Coordinator(found.id);
        let mine = transaction::guarded(|| Ok(lock::try_acquire_for_session(tag, Mode::Exclusive)))?;
        if !mine && !fault::is_off("coordinator_lock") {
            continue;
        }
        let ended = transaction::guarded(|| fault::point("recover.begin")).and_then(|()| settle(found.id));
        if let Err(error) = ended {
            left += 1;
            let _ = transaction::run(|| record::note_error(found.id, &error));
        }
        if mine {
            lock::release_for_session(tag, Mode::Exclusive);
        }
    }
    Ok(left)
}

/// The moves of the collection that are decided but not yet in the map: then a stale answer is no error but a reason to
/// wait. Runs in the caller's transaction.
pub fn decided(collection: i32) -> Result<Vec<i64>> {
    Ok(record::decided(collection)?.into_iter().map(|migration| migration.id).collect())
}

/// True if something is under way that changes, or has just changed, at which version a shard is of the collection: a
/// move, or a transaction that is decided and that some shard has perhaps not committed yet. If not, a shard that differs
/// from the map will not come round. Runs in the caller's transaction.
pub fn may_change_placement(collection: i32) -> Result<bool> {
    Ok(!record::undecided(collection)?.is_empty() || transactions::exist()?)
}
