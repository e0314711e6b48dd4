//! The parts of an inverted index's operator class that PostgreSQL calls with pointers of its own.
//!
//! The indexed value is `bytea[]`, some keys. What is searched for is `bytea[]` as well, ranges: `lo, hi, lo, hi, …`, each
//! from `lo` up to but not including `hi`. A value is found if one of its keys lies in one of the ranges: for each of
//! them PostgreSQL scans the keys from `lo` on until [`is_beyond`] says stop.

use super::jsonb::new_varlena;
use pgrx::datum::Internal;
use pgrx::pg_sys;

/// Where `extractQuery` leaves what it has found out; PostgreSQL's own variables.
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

/// Says that these ranges are searched for; answers the array of the keys that the scans start with.
///
/// INVARIANT: PostgreSQL calls `extractQuery` with pointers to variables of its own; memory is allocated in the context
/// that it has chosen, which lives as long as the search.
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

/// True if the key lies beyond the range that is being scanned; `extra` is what [`search`] has left for it.
#[must_use]
pub fn is_beyond(key: &[u8], extra: Internal) -> bool {
    let hi: *mut pg_sys::varlena = pointer(extra);
    // SAFETY: `search` made it for this very range, and it lives as long as the search.
    key >= unsafe { std::slice::from_raw_parts(pgrx::vardata_any(hi).cast::<u8>(), pgrx::varsize_any_exhdr(hi)) }
}

/// True if one of the scans has met the value; says that the value itself need not be looked at again.
///
/// INVARIANT: PostgreSQL calls `consistent` with an array of as many answers as there are keys, and a variable for ours.
#[must_use]
pub fn is_met(met: Internal, keys: i32, recheck: Internal) -> bool {
    // SAFETY: see the invariant.
    unsafe {
        *pointer::<bool>(recheck) = false;
        std::slice::from_raw_parts(pointer::<bool>(met), usize::try_from(keys).unwrap_or(0)).contains(&true)
    }
}
