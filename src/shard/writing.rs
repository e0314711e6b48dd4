//! Takes the locks and makes the checks that a write needs: in a separate statement before the one that writes, or at
//! the beginning of a call ([`super::documents`]). [`lock_and_check`]:
//!
//! 1. Takes the collection's lock, shared. A move waits for the transactions that held it when it began to capture.
//! 2. Reads, by the newest snapshot, the captures that overlap the range, and takes the lock of each one's migration, shared. A
//!    hand-over holds it exclusively, so a transaction that gets it either precedes the hand-over or sees its version.
//! 3. Checks the version, by the newest snapshot.
//!
//! The version must be checked last. If step 2 did not see a capture, either the capture is later, and then its move waits for this
//! transaction; or its hand-over has ended, and then the version has changed. In the other order, a hand-over between the two steps would
//! be missed. So afterwards no hand-over of the range can happen before the transaction ends, whatever snapshots its statements use.
//!
//! The captures and the collection's validator are also stored for the row trigger ([`capture`], [`validation`]). Locks are taken only for
//! a user who may write to the collection, as they block moves and index builds. Their names contain no chunk, so splits and merges do not
//! matter. They are held to the end of the transaction; a prepared transaction holds them, too.

use super::placement::{Placement, check};
use super::table;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::security::permission;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::pg::transaction::snapshot::{self, ActiveSnapshot};
use crate::storage::lock::{Mode, Tag, acquire, is_excluded, try_acquire};
use crate::storage::rows::capture::{self, Capture, captures};
use crate::storage::rows::validation;
use crate::storage::scan::Look;
use docshard_core::error::{Kind, error};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The longest time that an excluded writer waits for the end of a hand-over. Then its router gets the error that its map is stale.
const MAX_STAND_BY: Duration = Duration::from_millis(100);

/// How long a writer waits for a hand-over that only a prepared transaction still holds. A router that runs ends it at once, and after a
/// restart within seconds.
const MAX_PREPARED: Duration = Duration::from_secs(5);

/// The range and version that the last call of [`lock_and_check`] has checked. The check stays valid as long as the
/// locks of that call are held.
struct Checked {
    epoch: Epoch,
    collection: i32,
    assumed: Placement,
    lo: Option<Vec<u8>>,
    hi: Option<Vec<u8>>,
}

impl Checked {
    fn covers(&self, collection: i32, assumed: Placement, lo: Option<&[u8]>, hi: Option<&[u8]>) -> bool {
        (self.epoch, self.collection, self.assumed) == (epoch::now(), collection, assumed)
            && self.lo.as_deref().is_none_or(|least| lo.is_some_and(|lo| lo >= least))
            && self.hi.as_deref().is_none_or(|end| hi.is_some_and(|hi| hi <= end))
    }
}

thread_local! {
    static CHECKED: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// Takes the locks that a write to `[lo, hi)` needs (None: no bound), and checks the version under them.
///
/// For a write to the router's own database, this is called twice in one process: before the statement, where the router can handle a stale
/// map, and in the statement, where it would be an ERROR. The second call returns at once, as the first one's locks are still held.
///
/// # Errors
/// `STALE`; 42501 for a user who may not write; `WriteConflict` (40001) if the transaction's snapshot is older than the version.
pub fn lock_and_check(collection: i32, assumed: Placement, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<()> {
    if CHECKED.with_borrow(|checked| checked.as_ref().is_some_and(|c| c.covers(collection, assumed, lo, hi))) {
        return Ok(());
    }
    fault::point("write.arrived")?;
    if fault::is_off("lock_and_check") {
        return Ok(());
    }
    permit(collection, assumed)?;
    acquire(Tag::Collection(collection), Mode::Shared);
    fault::point("write.locked")?;
    let captured = captures(collection)?;
    for capture in captured.iter().filter(|c| c.overlaps(lo, hi)) {
        fault::point("write.captured")?;
        if fault::is_off("migration_lock") {
            continue;
        }
        share_migration(capture.migration)?;
    }
    match check(collection, assumed, Look::Latest) {
        Ok(validator) => validation::set(collection, validator),
        Err(stale) => {
            captured.iter().filter(|c| c.overlaps(lo, hi)).for_each(stand_by);
            return Err(stale);
        }
    }
    capture::set(collection, captured);
    fault::point("write.checked")?;
    // The statement itself may have created the collection: then only a new snapshot shows it.
    let is_visible = || check(collection, assumed, Look::Active);
    if !snapshot::per_statement() && is_visible().is_err() {
        let _snapshot = ActiveSnapshot::of_statement();
        is_visible().map_err(|_| {
            error!(
                Kind::WriteConflict,
                "could not serialize access: a chunk was moved, or the collection's layout was changed, after this transaction's snapshot was taken"
            )
            .with_hint("Run the transaction again.")
        })?;
    }
    let owned = |key: Option<&[u8]>| key.map(<[u8]>::to_vec);
    let checked = Checked { epoch: epoch::now(), collection, assumed, lo: owned(lo), hi: owned(hi) };
    CHECKED.set(Some(checked));
    Ok(())
}

/// Raises 42501 if the user may not write to the collection. Returns `STALE` if this shard has no table for it.
fn permit(collection: i32, assumed: Placement) -> Result<()> {
    let table = match table::oid(collection) {
        Ok(table) => table,
        Err(_) => {
            check(collection, assumed, Look::Latest)?;
            // The table was created after the lookup.
            table::oid(collection)?
        }
    };
    permission::require_any_write(table);
    Ok(())
}

/// Shares the lock of a move that is about to take a captured range away. If no session of the move is left that could end its hand-over, but
/// only the part that it has prepared, the wait ends after [`MAX_PREPARED`]: the move may be in doubt.
///
/// # Errors
/// `LockTimeout`.
fn share_migration(migration: i64) -> Result<()> {
    let tag = Tag::Migration(migration);
    let began = Instant::now();
    while !try_acquire(tag, Mode::Shared) {
        if is_excluded(Tag::HandOver(migration)) {
            acquire(tag, Mode::Shared);
            return Ok(());
        }
        if began.elapsed() > MAX_PREPARED {
            return Err(error!(
                Kind::LockTimeout,
                "a prepared transaction of migration {migration} has excluded writers for more than {} s", MAX_PREPARED.as_secs()
            )
            .with_hint("The router ends the move when it can: docshard.health and docshard.migrations there show what is wrong."));
        }
        sleep_ms(2);
    }
    Ok(())
}

/// Waits, at most [`MAX_STAND_BY`], for the end of a hand-over that has excluded this transaction. All excluded writers wake up when the
/// donor commits, before the map has changed; to retry at once would only take processor time from the move.
fn stand_by(capture: &Capture) {
    let began = Instant::now();
    while began.elapsed() < MAX_STAND_BY && is_excluded(Tag::HandOver(capture.migration)) {
        sleep_ms(2);
    }
}

/// Excludes every writer of a collection on this shard until the transaction ends.
pub fn exclude_writers(collection: i32) {
    acquire(Tag::Collection(collection), Mode::Exclusive);
}

/// Serializes the upserts of a collection that have the same number, a hash of the document's keys, until the transaction ends.
pub fn lock_upsert(collection: i32, number: i64) -> Result<()> {
    permission::require_any_write(table::oid(collection)?);
    acquire_upsert(collection, number);
    Ok(())
}

/// Like [`lock_upsert`], for a user whose rights have been checked.
pub fn acquire_upsert(collection: i32, number: i64) {
    acquire(Tag::Upsert(collection, number), Mode::Exclusive);
}
