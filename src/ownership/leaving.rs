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

use super::{SCHEMA, parts, table};
use crate::pg::bulk::{self, PLACE_BYTES, Places};
use crate::pg::error::Result;
use crate::pg::param::Param;
use crate::pg::server::relation_oid;
use crate::pg::{snapshot::ActiveSnapshot, spi};
use std::cell::RefCell;
use std::ffi::CString;

/// At most so many documents are noted (6 bytes each), so that memory does not grow with the chunk; others are searched for
/// when they are removed.
const MOST_PLACES: usize = 4_000_000;
/// With more changes than this, what was noted is of little worth.
const MOST_CHANGES: usize = 20_000;

/// What is known of a range that is leaving.
struct Leaving {
    migration: i64,
    /// `tidsend` of each document, in the order of the table
    places: Vec<u8>,
    /// keys that changed since
    changed: Vec<(Vec<u8>, Vec<u8>)>,
}

thread_local! {
    static LEAVING: RefCell<Option<Leaving>> = const { RefCell::new(None) };
}

fn range(hi: Option<&[u8]>) -> &'static str {
    if hi.is_some() { "skey >= $1 AND skey < $2" } else { "skey >= $1" }
}

fn params<'a>(lo: &'a [u8], hi: Option<&'a [u8]>) -> Vec<Param<'a>> {
    std::iter::once(lo).chain(hi).map(Param::Bytea).collect()
}

fn oid_of(collection: i32) -> Option<pgrx::pg_sys::Oid> {
    let name = CString::new(format!("c{collection}")).ok()?;
    relation_oid(SCHEMA, &name)
}

/// Notes where the documents of a range are that a move takes away; returns how many. From now on this process calls
/// [`forget`] for the move.
///
/// # Errors
/// Internal ones.
pub fn note(migration: i64, collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<i64> {
    LEAVING.set(None);
    let Some(oid) = oid_of(collection).filter(|oid| bulk::is_plain(*oid)) else { return Ok(0) };
    let mut places: Vec<[u8; PLACE_BYTES]> = Vec::new();
    let all = parts::visit(collection, lo, hi, |row| {
        places.push(row.place());
        places.len() <= MOST_PLACES
    })?;
    if !all || places.is_empty() {
        return Ok(0);
    }
    places.sort_unstable();
    let count = i64::try_from(places.len()).unwrap_or(i64::MAX);
    let places = places.into_flattened();
    bulk::log_pages(oid, Places(&places));
    LEAVING.set(Some(Leaving { migration, places, changed: Vec::new() }));
    Ok(count)
}

/// Removes rows from the log of a move, which have been copied: exactly these.
///
/// # Errors
/// Internal ones.
pub fn forget(migration: i64, applied: &[i64]) -> Result<()> {
    let gone = spi::query(
        "DELETE FROM docshard_data.capture_log WHERE migration_id = $1 AND seq = ANY ($2) RETURNING skey, id",
        &[Param::Int8(migration), Param::Int8Array(applied)],
    )?;
    LEAVING.with_borrow_mut(|known| {
        if let Some(leaving) = known.as_mut().filter(|leaving| leaving.migration == migration) {
            leaving.changed.extend(gone.iter().map(|row| (row.bytes(0), row.bytes(1))));
            if leaving.changed.len() > MOST_CHANGES {
                *known = None;
            }
        }
    });
    Ok(())
}

/// Removes the documents of a range, from which the caller's transaction has excluded all writers; returns how many.
///
/// # Errors
/// Internal ones.
pub fn remove(migration: i64, collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<i64> {
    let known = LEAVING.take().filter(|leaving| leaving.migration == migration);
    let count = |deleted: u64| i64::try_from(deleted).unwrap_or(i64::MAX);
    let Some((known, oid)) = known.zip(oid_of(collection)) else {
        let sql = format!("DELETE FROM {} WHERE {}", table::name(collection), range(hi));
        return Ok(count(spi::execute(&sql, &params(lo, hi))?.processed as u64));
    };
    let unchanged = {
        let _snapshot = ActiveSnapshot::latest();
        bulk::delete(oid, Places(&known.places), |key| lo <= key && hi.is_none_or(|hi| key < hi))
    };
    let (skeys, ids): (Vec<&[u8]>, Vec<&[u8]>) =
        known.changed.iter().map(|(skey, id)| (skey.as_slice(), id.as_slice())).unzip();
    let [lower, upper] = [Some(lo), hi].map(Param::OptBytea);
    let changed = spi::execute(
        &format!(
            "DELETE FROM {} AS t USING (\
               SELECT * FROM ROWS FROM (pg_catalog.unnest($1::bytea[]), pg_catalog.unnest($2::bytea[])) AS forgotten (skey, id) \
               UNION SELECT skey, id FROM docshard_data.capture_log WHERE migration_id = $3) AS changed \
             WHERE t.skey = changed.skey AND t.id = changed.id \
               AND t.skey >= $4 AND ($5::bytea IS NULL OR t.skey < $5::bytea)",
            table::name(collection)
        ),
        &[Param::ByteaArray(&skeys), Param::ByteaArray(&ids), Param::Int8(migration), lower, upper],
    )?;
    Ok(count(unchanged) + count(changed.processed as u64))
}
