//! Logging the keys that change in a range that is being moved away: what the row trigger of every collection's table
//! does.
//!
//! Whether anything is captured is known without looking: a writer passes [`super::writing::lock_and_check`] first, which
//! reads the captures with the newest snapshot under the collection's lock, and notes them here. A move waits for those
//! who held that lock when its capture was committed, so what was noted is exact as long as the lock is held. Who writes
//! to the table directly, without `lock_and_check`, takes the lock and looks in the trigger, once a transaction.
//!
//! [`super::documents`] writes without the trigger and calls [`changed`] itself.
//!
//! INVARIANT: a change of a captured range and the log's row of its key are written by the same (sub)transaction, and it
//! shares the move's lock. So whoever holds that lock exclusively sees every change, and its key in the log.

use super::placement::{Capture, captures};
use super::{SCHEMA, table};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::server::relation_oid;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::storage::lock::{self, Mode, Tag};
use crate::storage::scan::{self, Value};
use crate::storage::trigger::{self, RowChange};
use docshard_core::error::Kind;
use std::cell::RefCell;

/// What this transaction knows.
#[derive(Default)]
struct Known {
    epoch: Epoch,
    /// it is a move's own
    bypass: bool,
    /// collections whose lock it holds, with their captures
    captures: Vec<(i32, Vec<Capture>)>,
}

impl Known {
    /// Forgets what another transaction knew, or one whose locks may have been given back by ROLLBACK TO.
    fn refresh(&mut self) -> &mut Self {
        let now = epoch::now();
        if self.epoch != now {
            *self = Known { epoch: now, bypass: false, captures: Vec::new() };
        }
        self
    }

    fn set(&mut self, collection: i32, captures: Vec<Capture>) {
        match self.captures.iter_mut().find(|(known, _)| *known == collection) {
            Some(entry) => entry.1 = captures,
            None => self.captures.push((collection, captures)),
        }
    }

    /// The captures of a collection, if they are known.
    fn get(&self, collection: i32) -> Option<&[Capture]> {
        self.captures.iter().find(|(known, _)| *known == collection).map(|(_, captures)| captures.as_slice())
    }
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Makes the trigger's handler known; called from `_PG_init`.
pub fn init() {
    trigger::on_row_change(on_change);
}

/// Notes the captures of a collection, read under its lock.
pub(super) fn note(collection: i32, captures: Vec<Capture>) {
    KNOWN.with_borrow_mut(|known| known.refresh().set(collection, captures));
}

/// Logs the changes of the documents of these keys (skey, id) where they are captured. For a writer that has passed
/// `lock_and_check` and whose writing fires no trigger.
///
/// # Errors
/// As the trigger.
pub(super) fn changed<'a>(collection: i32, keys: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<()> {
    if !is_captured(collection)? {
        return Ok(());
    }
    keys.into_iter().try_for_each(|(skey, id)| log_key(collection, skey, id))
}

/// From now on this transaction's writes are not logged.
pub fn bypass() {
    KNOWN.with_borrow_mut(|known| known.refresh().bypass = true);
}

fn on_change(change: &RowChange) -> Result<()> {
    let Some(collection) = table::collection_of(change.table()) else { return Ok(()) };
    if !is_captured(collection)? {
        return Ok(());
    }
    let (old, new) = (change.old_key(), change.new_key());
    let old = old.filter(|old| Some(old) != new.as_ref());
    old.iter().chain(&new).try_for_each(|(skey, id)| log_key(collection, skey, id))
}

/// False if no change of the collection by this transaction has to be logged now.
fn is_captured(collection: i32) -> Result<bool> {
    // None: unknown.
    let known = KNOWN.with_borrow_mut(|known| {
        let known = known.refresh();
        if known.bypass { Some(false) } else { known.get(collection).map(|captured| !captured.is_empty()) }
    });
    if let Some(captured) = known {
        return Ok(captured);
    }
    lock::acquire(Tag::Collection(collection), Mode::Shared);
    let captured = captures(collection)?;
    let any = !captured.is_empty();
    note(collection, captured);
    Ok(any)
}

fn log_key(collection: i32, skey: &[u8], id: &[u8]) -> Result<()> {
    let captured =
        KNOWN.with_borrow_mut(|known| known.refresh().get(collection).map(<[_]>::to_vec).unwrap_or_default());
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
    let (table, sequence) = relation_oid(SCHEMA, c"capture_log")
        .zip(relation_oid(SCHEMA, c"capture_log_seq_seq"))
        .ok_or_else(|| Error::new(Kind::InternalError, "docshard's tables are missing on this node"))?;
    scan::insert(
        table,
        &[Value::Int8(migration), Value::Next(sequence), Value::Int4(collection), Value::Bytea(skey), Value::Bytea(id)],
    );
    Ok(())
}
