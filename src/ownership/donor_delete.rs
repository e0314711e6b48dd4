//! Removing a range that has been moved away, while writers to it wait: what can be found out before that, is.
//!
//! 1. [`note`], while writers go on: where the range's documents are. Their pages are written into the WAL, so that their
//!    deletion needs not.
//! 2. [`forget`], from then on: the keys of changes that the move has copied are noted, as they leave the log.
//! 3. [`remove`], when writers are excluded: what is still where it was noted, and what was changed since.
//!
//! What was noted is this process's own, and for one move. INVARIANT: a document of the range that [`note`] did not see was
//! written by a change that is in the log or was forgotten since, and the same process forgot it. A mistake would show: the
//! move counts what it removes.

use super::{clone_parts, table};
use crate::pg::error::Result;
use crate::pg::server::relation_oid;
use crate::pg::spi::param::Param;
use crate::pg::{spi, transaction::snapshot::ActiveSnapshot};
use crate::protocol::migration::{DeleteRange, Deleted, LocateRange};
use crate::storage::SCHEMA;
use crate::storage::rows::bulk::{self, PLACE_BYTES, Places};
use crate::storage::rows::{Change, Purpose};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::ffi::CString;
use std::rc::Rc;
use std::time::Instant;

/// At most so many documents are noted (6 bytes each), so that memory does not grow with the chunk; others are searched for
/// when they are removed.
const MOST_PLACES: usize = 4_000_000;
/// With more changes than this, what was noted is of little worth.
const MOST_CHANGES: usize = 20_000;
/// So many documents that were not noted are removed at once.
const MOST_AT_ONCE: usize = 1_000_000;

/// Where the documents of a range are that a move takes away.
struct LocatedRange {
    migration: i64,
    /// `tidsend` of each document, in the order of the table
    places: Rc<[u8]>,
    /// keys that changed since
    changed: Vec<(Vec<u8>, Vec<u8>)>,
}

thread_local! {
    static LOCATED: RefCell<Option<LocatedRange>> = const { RefCell::new(None) };
}

fn range(hi: Option<&[u8]>) -> &'static str {
    if hi.is_some() { "skey >= $1 AND skey < $2" } else { "skey >= $1" }
}

fn params<'a>(lo: &'a [u8], hi: Option<&'a [u8]>) -> Vec<Param<'a>> {
    std::iter::once(lo).chain(hi).map(Param::Bytea).collect()
}

fn oid_of(collection: i32) -> Option<Oid> {
    let name = CString::new(format!("c{collection}")).ok()?;
    relation_oid(SCHEMA, &name)
}

/// Notes where the documents of a range are that a move takes away; returns how many. From now on this process calls
/// [`forget`] for the move.
pub fn note(range: &LocateRange<'_>) -> Result<i64> {
    let &LocateRange { migration, collection, lo, hi } = range;
    LOCATED.set(None);
    let Some(oid) = oid_of(collection).filter(|oid| bulk::is_plain(*oid)) else { return Ok(0) };
    let mut places: Vec<[u8; PLACE_BYTES]> = Vec::new();
    let all = clone_parts::visit(collection, lo, hi, |row| {
        places.push(row.place());
        places.len() <= MOST_PLACES
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

/// Removes rows from the log of a move, which have been copied: exactly these. False if too many have changed since the
/// range's documents were noted: then they should be noted again before they are removed.
pub fn forget(migration: i64, applied: &[i64]) -> Result<bool> {
    let gone = spi::query(
        "DELETE FROM docshard_data.capture_log WHERE migration_id = $1 AND seq = ANY ($2) RETURNING skey, id",
        &[Param::Int8(migration), Param::Int8Array(applied)],
    )?;
    LOCATED.with_borrow_mut(|known| {
        let Some(range) = known.as_mut().filter(|range| range.migration == migration) else { return Ok(true) };
        range.changed.extend(gone.iter().map(|row| (row.bytes(0), row.bytes(1))));
        if range.changed.len() <= MOST_CHANGES {
            return Ok(true);
        }
        *known = None;
        Ok(false)
    })
}

/// Removes the documents of a range, from which the caller's transaction has excluded all writers. What was noted stays, as
/// the transaction may be rolled back and the range be removed later.
pub fn remove(range: &DeleteRange<'_>) -> Result<Deleted> {
    let began = Instant::now();
    let documents = count_removed(range)?;
    Ok(Deleted { documents, micros: i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX) })
}

fn count_removed(deleting: &DeleteRange<'_>) -> Result<i64> {
    let &DeleteRange { migration, collection, lo, hi } = deleting;
    let (oid, primary) = table::oids(collection)?;
    let is_inside = |key: &[u8]| lo <= key && hi.is_none_or(|hi| key < hi);
    let count = |deleted: u64| i64::try_from(deleted).unwrap_or(i64::MAX);
    let known = LOCATED.with_borrow(|known| {
        let known = known.as_ref().filter(|range| range.migration == migration)?;
        Some((Rc::clone(&known.places), known.changed.clone()))
    });
    let Some((places, mut changed)) = known else {
        if bulk::is_plain(oid) {
            return Ok(count(remove_as_found(oid, collection, lo, hi)?));
        }
        let sql = format!("DELETE FROM {} WHERE {}", table::name(collection), range(hi));
        return Ok(count(spi::execute(&sql, &params(lo, hi))?.processed as u64));
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
    // Does not show what has just been deleted.
    let _snapshot = ActiveSnapshot::of_statement();
    let mut writer = table::writer(collection, Purpose::Delete)?;
    for (skey, id) in &changed {
        let found = writer.change_one(primary, skey, Some(id), |_| Ok(Some((Change::Delete, ()))))?;
        deleted += u64::from(found.is_some());
    }
    writer.finish();
    Ok(count(deleted))
}

/// Finds the range's documents by the primary key, and removes them by their places.
fn remove_as_found(oid: Oid, collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<u64> {
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
        if places.len() >= MOST_AT_ONCE {
            flushed = flush(&mut places);
        }
        flushed.is_ok()
    })?;
    flushed?;
    flush(&mut places)?;
    Ok(deleted)
}
