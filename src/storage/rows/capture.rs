//! Change capture: logs the keys of rows that change in a range that is being moved. Every write of a row of a collection calls
//! this file.
//!
//! A writer calls `shard::writing::lock_and_check` first, which reads the captures with the newest snapshot under the
//! collection's lock, and passes them to [`set`]. After a move has committed its capture, it waits for the holders of that lock. So a
//! writer that holds the lock knows all captures. A direct write to the table takes the lock and reads the captures here, once in each
//! transaction.
//!
//! Invariant: a change in a captured range and its row of the log are written by the same (sub)transaction, which shares the
//! move's lock. So a process that holds that lock exclusively sees every change, and its key in the log.

use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::pg::version::local_transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::storage::own_table;
use crate::storage::scan::{self, Look, Value, by_int4};
use docshard_core::error::{Kind, error};
use std::cell::{Cell, RefCell};

/// A range `[min, max)` of shard keys that is being moved away from this shard.
#[derive(Clone, Debug)]
pub struct Capture {
    pub migration: i64,
    pub min: Vec<u8>,
    /// None: no upper bound
    pub max: Option<Vec<u8>>,
}

impl Capture {
    pub fn contains(&self, key: &[u8]) -> bool {
        self.min.as_slice() <= key && self.max.as_ref().is_none_or(|max| key < max.as_slice())
    }

    /// True if the range contains `[lo, hi)`; None: no upper bound.
    pub fn covers(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let ends_inside = match (hi, &self.max) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(hi), Some(max)) => hi <= max.as_slice(),
        };
        self.min.as_slice() <= lo && ends_inside
    }

    /// True if the range overlaps `[lo, hi)`; None: no bound.
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
pub fn captures(collection: i32) -> Result<Vec<Capture>> {
    let (table, index) = own_table(c"capture", c"capture_pkey")?;
    let mut found = Vec::new();
    by_int4(table, index, collection, Look::Latest, |row| {
        found.push(Capture { migration: row.i64(1), min: row.bytes(2).unwrap_or_default(), max: row.bytes(3) });
    });
    Ok(found)
}

/// The captures that this transaction has read.
#[derive(Default)]
struct Captures {
    epoch: Epoch,
    /// captures by collection; the transaction holds the collections' locks
    of: Vec<(i32, Vec<Capture>)>,
}

impl Captures {
    /// Forgets the captures that another transaction has read, or that were read before a ROLLBACK TO, which may have
    /// released locks.
    fn refresh(&mut self) -> &mut Self {
        let now = epoch::now();
        if self.epoch != now {
            *self = Captures { epoch: now, of: Vec::new() };
        }
        self
    }

    fn set(&mut self, collection: i32, captures: Vec<Capture>) {
        match self.of.iter_mut().find(|(of, _)| *of == collection) {
            Some(entry) => entry.1 = captures,
            None => self.of.push((collection, captures)),
        }
    }

    fn get(&self, collection: i32) -> Option<&[Capture]> {
        self.of.iter().find(|(of, _)| *of == collection).map(|(_, captures)| captures.as_slice())
    }
}

thread_local! {
    static CAPTURES: RefCell<Captures> = RefCell::default();
    /// The local id of the transaction of a move, whose writes are not captured.
    static BYPASS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Sets the captures of a collection that were read under its lock.
pub fn set(collection: i32, captures: Vec<Capture>) {
    CAPTURES.with_borrow_mut(|all| all.refresh().set(collection, captures));
}

/// Logs changes of the rows with these keys (skey, id), if they are in a captured range. `WriteConflict` if the range was handed over
/// meanwhile.
pub(super) fn changed<'a>(collection: i32, keys: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<()> {
    if !is_captured(collection)? {
        return Ok(());
    }
    keys.into_iter().try_for_each(|(skey, id)| log_key(collection, skey, id))
}

/// Stops capturing and validating the writes of this transaction, which is a move's own.
pub fn bypass() {
    BYPASS.set(Some(local_transaction()));
}

/// True if the transaction is a move's own.
pub(super) fn is_bypassed() -> bool {
    BYPASS.get() == Some(local_transaction())
}

/// True if changes of the collection by this transaction may have to be logged.
pub(super) fn is_captured(collection: i32) -> Result<bool> {
    if is_bypassed() {
        return Ok(false);
    }
    let cached = CAPTURES.with_borrow_mut(|all| all.refresh().get(collection).map(|captures| !captures.is_empty()));
    if let Some(captured) = cached {
        return Ok(captured);
    }
    lock::acquire(Tag::Collection(collection), Mode::Shared);
    let captured = captures(collection)?;
    let any = !captured.is_empty();
    set(collection, captured);
    Ok(any)
}

/// Logs a change of a row, if the row is in a captured range.
pub(super) fn log_key(collection: i32, skey: &[u8], id: &[u8]) -> Result<()> {
    let captured = CAPTURES.with_borrow_mut(|all| all.refresh().get(collection).map(<[_]>::to_vec).unwrap_or_default());
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

/// Shares the move's lock, unless the transaction does so already. `lock_and_check` has taken the lock for the rows that it knew would
/// change.
fn share(collection: i32, migration: i64) -> Result<()> {
    if lock::is_held(Tag::Migration(migration), Mode::Shared) || fault::is_off("migration_lock") {
        return Ok(());
    }
    lock::acquire(Tag::Migration(migration), Mode::Shared);
    if captures(collection)?.iter().any(|capture| capture.migration == migration) {
        return Ok(());
    }
    Err(error!(Kind::WriteConflict, "could not serialize access: a chunk was moved, or the collection's layout was changed, while this transaction ran"
    )
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
