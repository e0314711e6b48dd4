//! Completes or aborts moves whose coordinator has ended.
//!
//! A coordinator holds a lock on its migration as long as its process lives. So the next holder of that lock knows that the move
//! has no coordinator, and that no other process works on it.

use super::cleanup::sweep;
use super::record::{self, Record};
use super::settle::settle;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{migrations, transactions};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The interval at which a process that recovers repeatedly also sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

thread_local! {
    static SWEPT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Completes or aborts every move without a living coordinator, and calls [`sweep`] at intervals. Returns how many moves could
/// not be ended because a shard is unreachable: the error is in their rows. Must be called outside any transaction.
pub fn recover() -> Result<usize> {
    let left = recover_some(|_| true)?;
    if SWEPT.get().is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL) {
        SWEPT.set(Some(Instant::now()));
        sweep()?;
    }
    Ok(left)
}

/// Like [`recover`], for the moves of one collection.
pub fn recover_collection(namespace: &str) -> Result<usize> {
    recover_some(|record| record.namespace == namespace)
}

/// Like [`recover`], for one move.
pub(super) fn recover_one(id: i64) -> Result<usize> {
    recover_some(|record| record.id == id)
}

/// True if a process works on the move: its coordinator, or recovery. Runs in the caller's transaction.
pub(super) fn is_being_worked_on(id: i64) -> Result<bool> {
    // Reads the lock's holders instead of trying the lock: a recovery that finds the lock taken, even for a moment,
    // skips the move.
    Ok(!lock::holding_processes(Tag::Coordinator(id))?.is_empty())
}

fn recover_some(wanted: impl Fn(&Record) -> bool) -> Result<usize> {
    let mut left = 0;
    for Record { id, .. } in transaction::run(record::unfinished)?.into_iter().filter(wanted) {
        let tag = Tag::Coordinator(id);
        let is_mine = transaction::guarded(|| Ok(lock::try_acquire_for_session(tag, Mode::Exclusive)))?;
        if !is_mine && !fault::is_off("coordinator_lock") {
            continue;
        }
        let ended = transaction::guarded(|| fault::point("recover.begin")).and_then(|()| settle(id));
        if let Err(error) = ended {
            left += 1;
            let _ = transaction::run(|| record::note_error(id, &error));
        }
        if is_mine {
            lock::release_for_session(tag, Mode::Exclusive);
        }
    }
    Ok(left)
}

/// Returns the collection's moves that are decided but not yet in the map. A caller whose map was stale waits for these. Runs
/// in the caller's transaction.
pub fn decided(collection: i32) -> Result<Vec<i64>> {
    Ok(record::decided(collection)?.into_iter().map(|migration| migration.id).collect())
}

/// True if a move of the collection is decided but not yet in the map: until then its shards may be at another version than the
/// catalog. Runs in the caller's transaction.
pub fn is_decided(collection: i32) -> Result<bool> {
    Ok(!record::decided(collection)?.is_empty())
}

/// True if a shard's version of the collection may be about to change: by a move, or by a decided transaction that a shard may
/// not have committed yet. If false, a shard whose version differs from the map's keeps that version. Reads the newest snapshot.
pub fn may_change_placement(collection: i32) -> Result<bool> {
    let _snapshot = ActiveSnapshot::latest();
    Ok(!migrations::read_undecided(collection)?.is_empty() || transactions::read_exist()?)
}
