//! Parts of a GIN operator class that PostgreSQL calls with its own pointers.
//!
//! An indexed value is a `bytea[]` of keys. A query is a `bytea[]` of half-open ranges, `lo, hi, lo, hi, …`, and matches a value with
//! a key in a range: PostgreSQL scans the keys from `lo` until [`is_beyond`].

use crate::pg::datum::jsonb::{new_varlena, plain_bytes};
use pgrx::datum::Internal;
use pgrx::pg_sys;

/// PostgreSQL's variables for the results of `extractQuery`.
pub struct Search {
    /// `int32 *nkeys`
    pub count: Internal,
    /// `bool **pmatch`
    pub partial: Internal,
    /// `Pointer **extra_data`
    pub extra: Internal,
}

fn pointer<T>(internal: Internal) -> *mut T {
    internal.unwrap().map_or(std::ptr::null_mut(), |datum| datum.cast_mut_ptr())
}

/// Returns the array of the keys at which the scans start, one for each range.
///
/// Invariant: PostgreSQL calls `extractQuery` with pointers to its variables, in a memory context that lives as long as the search.
#[must_use]
pub fn search(ranges: &[(&[u8], &[u8])], search: Search) -> Internal {
    // SAFETY: see the invariant; each array is as long as there are ranges, and is filled before PostgreSQL sees it.
    unsafe {
        let count = ranges.len();
        *pointer::<i32>(search.count) = i32::try_from(count).unwrap_or(i32::MAX);
        let keys: *mut pg_sys::Datum = pg_sys::palloc0((count + 1) * size_of::<pg_sys::Datum>()).cast();
        let partial: *mut bool = pg_sys::palloc0(count + 1).cast();
        let extra: *mut pg_sys::Pointer = pg_sys::palloc0((count + 1) * size_of::<pg_sys::Pointer>()).cast();
        for (at, (lo, hi)) in ranges.iter().enumerate() {
            *keys.add(at) = pg_sys::Datum::from(new_varlena(lo));
            *partial.add(at) = true;
            *extra.add(at) = new_varlena(hi).cast();
        }
        *pointer::<*mut bool>(search.partial) = partial;
        *pointer::<*mut pg_sys::Pointer>(search.extra) = extra;
        Internal::from(Some(pg_sys::Datum::from(keys)))
    }
}

/// True if the index is empty, so that no indexed row is visible in any snapshot: a row's entry is made before the row's commit, and is
/// removed only when no snapshot shows the row. The index must not have `fastupdate`. False if the index is not valid for all snapshots.
pub fn is_empty(index: pg_sys::Oid) -> bool {
    const ROOT: pg_sys::BlockNumber = 1;
    // SAFETY: the index exists (the caller looked it up in this transaction); its root's buffer is pinned and locked while it
    // is looked at.
    unsafe {
        let rel = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let is_valid = (*(*rel).rd_index).indisvalid && !(*(*rel).rd_index).indcheckxmin;
        let is_small = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM) == ROOT + 1;
        let mut is_empty = is_valid && is_small;
        if is_empty {
            let buffer = pg_sys::ReadBuffer(rel, ROOT);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            is_empty = pg_sys::PageGetMaxOffsetNumber(pg_sys::BufferGetPage(buffer)) == 0;
            pg_sys::UnlockReleaseBuffer(buffer);
        }
        pg_sys::index_close(rel, pg_sys::AccessShareLock as i32);
        is_empty
    }
}

/// True if the key lies after the scanned range; `extra` comes from [`search`].
#[must_use]
pub fn is_beyond(key: &[u8], extra: Internal) -> bool {
    let hi: *mut pg_sys::varlena = pointer(extra);
    // SAFETY: `search` made it for this very range, and it lives as long as the search.
    key >= unsafe { plain_bytes(hi) }
}

/// True if one of the scans has found the value. The result is exact and needs no recheck.
///
/// Invariant: PostgreSQL calls `consistent` with an array of a result for each key, and a variable for the recheck.
#[must_use]
pub fn is_met(met: Internal, keys: i32, recheck: Internal) -> bool {
    // SAFETY: see the invariant.
    unsafe {
        *pointer::<bool>(recheck) = false;
        std::slice::from_raw_parts(pointer::<bool>(met), usize::try_from(keys).unwrap_or(0)).contains(&true)
    }
}
