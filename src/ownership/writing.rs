//! What a write does first, as a statement of its own before the statement that writes.
//!
//! 1. The collection's lock, shared. A move waits for the holders that were there when it began to capture.
//! 2. The captures that meet the range, with the newest snapshot; and where there is one, that migration's lock, shared. A
//!    hand-over holds it exclusively, so who gets it either comes before the hand-over or sees its version.
//! 3. The version, with the newest snapshot.
//!
//! The version comes last: a capture that is not there is either yet to come, and then its move waits for this
//! transaction, or its hand-over is over, and then the version tells. In the other order a hand-over between the two looks
//! would go unnoticed. So after this no hand-over can pass the transaction, whatever snapshots its statements take.
//!
//! The captures are also noted for the row trigger, [`capture`], which so need not look again.
//!
//! Locks are taken only for a user who may write to the collection: any role may call this, and whoever holds them keeps moves
//! and index builds from their end.
//!
//! Locks are never named by chunk, so a split or a merge changes nothing here. They are held to the end of the
//! transaction, prepared ones included.

use super::placement::{Placement, check};
use super::table;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::security::permission;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::pg::transaction::snapshot;
use crate::storage::lock::{Mode, Tag, acquire, is_excluded};
use crate::storage::rows::capture::{self, Capture, captures};
use crate::storage::scan::Look;
use docshard_core::error::Kind;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long an excluded writer waits for the end of a decided move before it tells its router.
const LONGEST_STAND_BY: Duration = Duration::from_millis(100);

/// What the last call found in order, as long as its locks are held.
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
/// A router that is a shard itself comes here twice: before its statement, where a stale map is an answer, and in it, where
/// it would be an ERROR. The second time nothing is left to do: no hand-over of the range can have passed the locks, and
/// other ranges do not matter.
///
/// # Errors
/// `STALE`; PostgreSQL's own (42501) for a user who may not write to it; `WriteConflict` (40001) if the transaction's snapshot is older than the version.
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
        acquire(Tag::Migration(capture.migration), Mode::Shared);
    }
    if let Err(stale) = check(collection, assumed, Look::Latest) {
        captured.iter().filter(|c| c.overlaps(lo, hi)).for_each(stand_by);
        return Err(stale);
    }
    capture::set(collection, captured);
    fault::point("write.checked")?;
    if !snapshot::per_statement() {
        check(collection, assumed, Look::Active).map_err(|_| {
            Error::new(
                Kind::WriteConflict,
                "could not serialize access: a chunk was moved after this transaction's snapshot was taken",
            )
            .with_hint("Run the transaction again.")
        })?;
    }
    let owned = |key: Option<&[u8]>| key.map(<[u8]>::to_vec);
    let checked = Checked { epoch: epoch::now(), collection, assumed, lo: owned(lo), hi: owned(hi) };
    CHECKED.set(Some(checked));
    Ok(())
}

/// Raises PostgreSQL's own error (42501) if the user may not write to the collection. One that has no table here is stale.
fn permit(collection: i32, assumed: Placement) -> Result<()> {
    let table = match table::oid(collection) {
        Ok(table) => table,
        Err(_) => {
            check(collection, assumed, Look::Latest)?;
            // It has come just now.
            table::oid(collection)?
        }
    };
    permission::require_any_write(table);
    Ok(())
}

/// Waits a little for the end of a hand-over whose range this transaction wanted to write to. All whom it has excluded wake
/// up when the donor's part is committed, with nowhere to go yet: the processors then belong to those who bring it to its end,
/// and to readers.
fn stand_by(capture: &Capture) {
    let began = Instant::now();
    while began.elapsed() < LONGEST_STAND_BY && is_excluded(Tag::HandOver(capture.migration)) {
        sleep_ms(2);
    }
}

/// Excludes every writer of a collection on this shard until the transaction ends.
pub fn exclude_writers(collection: i32) {
    acquire(Tag::Collection(collection), Mode::Exclusive);
}

/// Lets the upserts of a collection that share a number come one after the other, until the transaction ends.
///
/// # Errors
/// `NamespaceNotFound` if the collection has no table here; PostgreSQL's own (42501) for a user who may not write to it.
pub fn lock_upsert(collection: i32, number: i64) -> Result<()> {
    permission::require_any_write(table::oid(collection)?);
    acquire_upsert(collection, number);
    Ok(())
}

/// As [`lock_upsert`], for a user of whom it is known that he may.
pub fn acquire_upsert(collection: i32, number: i64) {
    acquire(Tag::Upsert(collection, number), Mode::Exclusive);
}
