//! Change capture: logs the keys of the rows that change in a range which is being copied elsewhere. Every write of a collection's
//! row passes here.
//!
//! Whether anything is captured is known without looking: a writer passes `ownership::writing::lock_and_check` first, which
//! reads the captures with the newest snapshot under the collection's lock, and gives them to [`set`]. A move waits for those
//! who held that lock when its capture was committed, so what was set is exact as long as the lock is held. Whoever writes to
//! the table directly, without `lock_and_check`, takes the lock and looks here, once a transaction.
//!
//! INVARIANT: a change of a captured range and the log's row of its key are written by the same (sub)transaction, and it
//! shares the move's lock. So whoever holds that lock exclusively sees every change, and its key in the log.

use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::storage::lock::{self, Mode, Tag};
use crate::storage::own_table;
use crate::storage::scan::{self, Look, Value, by_int4};
use docshard_core::error::Kind;
use std::cell::{Cell, RefCell};

/// A range that is being moved away from this shard.
#[derive(Clone, Debug)]
pub struct Capture {
    /// the migration
    pub migration: i64,
    /// the least key inside
    pub min: Vec<u8>,
    /// the least key above; None: no upper end
    pub max: Option<Vec<u8>>,
}

impl Capture {
    /// True if the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.min.as_slice() <= key && self.max.as_ref().is_none_or(|max| key < max.as_slice())
    }

    /// True if the range has all of `[lo, hi)`; None means no upper end.
    pub fn covers(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let ends_inside = match (hi, &self.max) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(hi), Some(max)) => hi <= max.as_slice(),
        };
        self.min.as_slice() <= lo && ends_inside
    }

    /// True if the range meets `[lo, hi)`; None means no bound.
    pub fn overlaps(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> bool {
        let starts_before_end = match (lo, &self.max) {
            (Some(lo), Some(max)) => lo < max.as_slice(),
            _ => true,
        };
        let ends_after_start = hi.is_none_or(|hi| self.min.as_slice() < hi);
        starts_before_end && ends_after_start
    }
}

/// The captures of a collection, in the newest snapshot.
///
/// # Errors
/// `InternalError` if the extension's tables are missing.
pub fn captures(collection: i32) -> Result<Vec<Capture>> {
    let (table, index) = own_table(c"capture", c"capture_pkey")?;
    let mut found = Vec::new();
    by_int4(table, index, collection, Look::Latest, |row| {
        found.push(Capture { migration: row.i64(1), min: row.bytes(2).unwrap_or_default(), max: row.bytes(3) });
    });
    Ok(found)
}

/// What this transaction has found out.
#[derive(Default)]
struct Captures {
    epoch: Epoch,
    /// collections whose lock it holds, with their captures
    of: Vec<(i32, Vec<Capture>)>,
}

impl Captures {
    /// Forgets what another transaction knew, or one whose locks may have been given back by ROLLBACK TO.
    fn refresh(&mut self) -> &mut Self {
        let now = epoch::now();
        if self.epoch != now {
            *self = Captures { epoch: now, of: Vec::new() };
        }
        self
    }

    fn set(&mut self, collection: i32, captures: Vec<Capture>) {
        match self.of.iter_mut().find(|(known, _)| *known == collection) {
            Some(entry) => entry.1 = captures,
            None => self.of.push((collection, captures)),
        }
    }

    /// The captures of a collection, if they are known.
    fn get(&self, collection: i32) -> Option<&[Capture]> {
        self.of.iter().find(|(known, _)| *known == collection).map(|(_, captures)| captures.as_slice())
    }
}

thread_local! {
    static CAPTURES: RefCell<Captures> = RefCell::default();
    /// The number of a transaction that is a move's own, which a rolled back subtransaction does not change.
    static BYPASS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Sets the captures of a collection, which were read under its lock.
pub fn set(collection: i32, captures: Vec<Capture>) {
    CAPTURES.with_borrow_mut(|known| known.refresh().set(collection, captures));
}

/// Logs the changes of the rows of these keys (skey, id) where they are captured.
///
/// # Errors
/// `WriteConflict` if the range has been handed over since this transaction looked.
pub(super) fn changed<'a>(collection: i32, keys: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<()> {
    if !is_captured(collection)? {
        return Ok(());
    }
    keys.into_iter().try_for_each(|(skey, id)| log_key(collection, skey, id))
}

/// From now on this transaction's writes are not logged.
pub fn bypass() {
    BYPASS.set(Some(epoch::local_id()));
}

/// False if no change of the collection by this transaction has to be logged now.
pub(super) fn is_captured(collection: i32) -> Result<bool> {
    if BYPASS.get() == Some(epoch::local_id()) {
        return Ok(false);
    }
    // None: unknown.
    let known = CAPTURES.with_borrow_mut(|known| known.refresh().get(collection).map(|captured| !captured.is_empty()));
    if let Some(captured) = known {
        return Ok(captured);
    }
    lock::acquire(Tag::Collection(collection), Mode::Shared);
    let captured = captures(collection)?;
    let any = !captured.is_empty();
    set(collection, captured);
    Ok(any)
}

/// Logs a change of the row of a key, if it is captured.
pub(super) fn log_key(collection: i32, skey: &[u8], id: &[u8]) -> Result<()> {
    let captured =
        CAPTURES.with_borrow_mut(|known| known.refresh().get(collection).map(<[_]>::to_vec).unwrap_or_default());
    for capture in captured.iter().filter(|capture| capture.contains(skey)) {
        if fault::is_off("capture") {
            continue;
        }
        fault::point("capture.logging")?;
        share(collection, capture.migration)?;
        log(capture.migration, collection, skey, id)?;
    }
    Ok(())
}

/// Shares the move's lock, which `lock_and_check` has taken already where the change is one that it was told of.
fn share(collection: i32, migration: i64) -> Result<()> {
    if lock::is_held(Tag::Migration(migration), Mode::Shared) || fault::is_off("migration_lock") {
        return Ok(());
    }
    lock::acquire(Tag::Migration(migration), Mode::Shared);
    if captures(collection)?.iter().any(|capture| capture.migration == migration) {
        return Ok(());
    }
    Err(Error::new(Kind::WriteConflict, "could not serialize access: a chunk was moved while this transaction ran")
        .with_hint("Run the transaction again."))
}

fn log(migration: i64, collection: i32, skey: &[u8], id: &[u8]) -> Result<()> {
    let (table, sequence) = own_table(c"capture_log", c"capture_log_seq_seq")?;
    scan::insert(
        table,
        &[Value::Int8(migration), Value::Next(sequence), Value::Int4(collection), Value::Bytea(skey), Value::Bytea(id)],
    );
    Ok(())
}
