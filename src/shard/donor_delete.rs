//! Deletes a range that has been moved away. Writers wait meanwhile, so most of the work is done before they are excluded:
//!
//! 1. [`locate`], while writers continue: finds the places (TIDs) of the range's documents. It also WAL-logs full-page images of their
//!    pages, so that the deletion writes little WAL.
//! 2. [`delete_copied_changes`], while writers continue: deletes copied changes from the capture log, and remembers their keys.
//! 3. [`delete`], with writers excluded: deletes the documents that are still at their places, and those with the changed keys.
//!
//! The places are kept by this process, for one move. INVARIANT: if [`locate`] did not see a document of the range, the change
//! that wrote it is in the capture log, or this process has deleted that change from it. A violation would be detected, because the
//! move compares the number of deleted documents with the number of documents that the recipient has loaded.

use super::{clone_parts, table};
use crate::pg::error::Result;
use crate::pg::{spi, transaction::snapshot::ActiveSnapshot};
use crate::storage::rows::bulk::{self, PLACE_BYTES, Places};
use crate::storage::rows::{Change, Purpose};
use docshard_core::routing::names;
use docshard_core::routing::protocol::migration::{DeleteRange, Deleted, LocateRange};
use docshard_core::routing::protocol::shard_tables::key_range;
use docshard_core::sql::param::Param;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// The largest number of documents that are located, as each place takes 6 bytes of memory.
const MAX_PLACES: usize = 4_000_000;
/// The largest number of changes whose keys are remembered. Beyond it, the places are forgotten, and the range should be located again.
const MAX_CHANGES: usize = 20_000;
/// Documents that were not located are deleted in batches of this number.
const BATCH: usize = 1_000_000;

struct LocatedRange {
    migration: i64,
    /// The TID of each document in the format of `tidsend`, in the order of the table.
    places: Rc<[u8]>,
    /// Keys that have changed since the documents were located.
    changed: Vec<(Vec<u8>, Vec<u8>)>,
}

thread_local! {
    static LOCATED: RefCell<Option<LocatedRange>> = const { RefCell::new(None) };
}

/// Locates the documents of a range. Returns their number; 0 if they are not located: there are none or too many, or the table is not plain
/// ([`bulk::is_plain`]). Afterwards only this process may delete changes of the move from the capture log, by [`delete_copied_changes`].
pub fn locate(range: &LocateRange<'_>) -> Result<i64> {
    let &LocateRange { migration, collection, lo, hi } = range;
    LOCATED.set(None);
    let Some(oid) = table::oid(collection).ok().filter(|oid| bulk::is_plain(*oid)) else { return Ok(0) };
    let mut places: Vec<[u8; PLACE_BYTES]> = Vec::new();
    let all = clone_parts::visit(collection, lo, hi, |row| {
        places.push(row.place());
        places.len() <= MAX_PLACES
    })?;
    if !all || places.is_empty() {
        return Ok(0);
    }
    places.sort_unstable();
    let count = i64::try_from(places.len()).unwrap_or(i64::MAX);
    let places = Rc::from(places.into_flattened());
    bulk::log_pages(oid, Places(&places));
    LOCATED.set(Some(LocatedRange { migration, places, changed: Vec::new() }));
    Ok(count)
}

/// Deletes the rows with the numbers `applied`, whose changes have been copied, from a move's capture log. Returns false if so much has
/// changed since the range was located that it should be located again.
pub fn delete_copied_changes(migration: i64, applied: &[i64]) -> Result<bool> {
    let deleted = spi::query(
        "DELETE FROM docshard_data.capture_log WHERE migration_id = $1 AND seq = ANY ($2) RETURNING skey, id",
        &[Param::Int8(migration), Param::Int8Array(applied)],
    )?;
    LOCATED.with_borrow_mut(|located| {
        let Some(range) = located.as_mut().filter(|range| range.migration == migration) else { return Ok(true) };
        range.changed.extend(deleted.iter().map(|row| (row.bytes(0), row.bytes(1))));
        if range.changed.len() <= MAX_CHANGES {
            return Ok(true);
        }
        *located = None;
        Ok(false)
    })
}

/// Deletes the documents of a range, from which the caller's transaction has excluded all writers. The places are kept, because the
/// transaction may be rolled back and the deletion repeated.
pub fn delete(range: &DeleteRange<'_>) -> Result<Deleted> {
    let began = Instant::now();
    let documents = i64::try_from(delete_all(range)?).unwrap_or(i64::MAX);
    Ok(Deleted { documents, micros: i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX) })
}

fn delete_all(range: &DeleteRange<'_>) -> Result<u64> {
    let &DeleteRange { migration, collection, lo, hi } = range;
    let (oid, primary_index) = table::oids(collection)?;
    let is_inside = |key: &[u8]| lo <= key && hi.is_none_or(|hi| key < hi);
    let located = LOCATED.with_borrow(|located| {
        let range = located.as_ref().filter(|range| range.migration == migration)?;
        Some((Rc::clone(&range.places), range.changed.clone()))
    });
    let Some((places, mut changed)) = located else {
        if bulk::is_plain(oid) {
            return delete_unlocated(oid, collection, lo, hi);
        }
        let (range, params) = key_range(lo, hi);
        let sql = format!("DELETE FROM {} WHERE {range}", names::table(collection));
        return Ok(spi::execute(&sql, &params)?.processed as u64);
    };
    let mut deleted = {
        let _snapshot = ActiveSnapshot::latest();
        bulk::delete(collection, oid, Places(&places), is_inside)?
    };
    let logged = spi::query(
        "SELECT skey, id FROM docshard_data.capture_log WHERE migration_id = $1",
        &[Param::Int8(migration)],
    )?;
    changed.extend(logged.iter().map(|row| (row.bytes(0), row.bytes(1))));
    changed.retain(|(skey, _)| is_inside(skey));
    changed.sort_unstable();
    changed.dedup();
    // A new snapshot, which does not show the rows that have just been deleted.
    let _snapshot = ActiveSnapshot::of_statement();
    let mut writer = table::writer(collection, Purpose::Delete)?;
    for (skey, id) in &changed {
        let found = writer.change_one(primary_index, skey, Some(id), |_| Ok(Some((Change::Delete, ()))))?;
        deleted += u64::from(found.is_some());
    }
    writer.finish();
    Ok(deleted)
}

/// Finds the range's documents by the primary key, and deletes them by their places.
fn delete_unlocated(oid: Oid, collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<u64> {
    let _snapshot = ActiveSnapshot::latest();
    let mut places: Vec<[u8; PLACE_BYTES]> = Vec::new();
    let mut deleted = 0;
    let mut flush = |places: &mut Vec<[u8; PLACE_BYTES]>| -> Result<()> {
        places.sort_unstable();
        deleted += bulk::delete(collection, oid, Places(places.as_flattened()), |_| true)?;
        places.clear();
        Ok(())
    };
    let mut flushed = Ok(());
    clone_parts::visit(collection, lo, hi, |row| {
        places.push(row.place());
        if places.len() >= BATCH {
            flushed = flush(&mut places);
        }
        flushed.is_ok()
    })?;
    flushed?;
    flush(&mut places)?;
    Ok(deleted)
}
