//! How many rows of a table a snapshot shows, without the executor.
//!
//! Counting everything is the one aggregate that every user of a document store asks for all the time. The executor takes
//! two thirds of its time to hand on rows that nobody looks at.

use crate::pg::{security::permission, transaction::snapshot};
use pgrx::pg_sys;
use std::ffi::c_int;
use std::ptr::null_mut;

// Called once a row, inside one guard for all of them.
unsafe extern "C-unwind" {
    pub(super) fn heap_getnextslot(
        scan: pg_sys::TableScanDesc,
        direction: pg_sys::ScanDirection::Type,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> bool;
    fn index_getnext_tid(
        scan: pg_sys::IndexScanDesc,
        direction: pg_sys::ScanDirection::Type,
    ) -> *const pg_sys::ItemPointerData;
    fn index_fetch_heap(scan: pg_sys::IndexScanDesc, slot: *mut pg_sys::TupleTableSlot) -> bool;
    fn visibilitymap_get_status(rel: pg_sys::Relation, block: pg_sys::BlockNumber, map: *mut pg_sys::Buffer) -> u8;
}

/// Counts the rows that the active snapshot shows to the present user: by an index that has every row once, if most of the
/// table is known to be visible to all, otherwise by reading the table.
///
/// None if row-level security hides rows from this user, which the executor is for. PostgreSQL's own error (42501) without
/// the privilege to read the table.
pub fn rows(table: pg_sys::Oid, index: pg_sys::Oid) -> Option<u64> {
    // SAFETY: the table, a heap, and its index exist (the caller looked them up in this transaction); all that is opened
    // is closed here, or by PostgreSQL's abort if an ERROR unwinds.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::AccessShareLock as c_int);
        permission::require(rel, pg_sys::ACL_SELECT);
        if permission::hides_rows(rel) {
            pg_sys::table_close(rel, pg_sys::AccessShareLock as c_int);
            return None;
        }
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, pg_sys::table_slot_callbacks(rel));
        // SERIALIZABLE wants every page of the table remembered that is relied on, which reading the table does at once.
        let serializable = snapshot::is_serializable();
        let count = if !serializable && mostly_visible(&*(*rel).rd_rel) {
            by_index(rel, index, slot)
        } else {
            by_table(rel, slot)
        };
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as c_int);
        Some(count)
    }
}

/// By what the last VACUUM has seen: four pages of five are visible to all.
fn mostly_visible(form: &pg_sys::FormData_pg_class) -> bool {
    form.relpages > 0 && i64::from(form.relallvisible) * 5 >= i64::from(form.relpages) * 4
}

/// # Safety
/// The table is open, and the slot is one of it.
unsafe fn by_table(rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) -> u64 {
    // SAFETY: promised by the caller; nothing in the guarded loop has a destructor that an ERROR could skip.
    unsafe {
        let scan = pg_sys::table_beginscan(rel, pg_sys::GetActiveSnapshot(), 0, null_mut());
        let count = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut count = 0;
            while heap_getnextslot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
                count += 1;
            }
            count
        });
        pg_sys::table_endscan(scan);
        count
    }
}

/// As PostgreSQL's index-only scan: a row of a page that is not known to be visible to all is looked at.
///
/// # Safety
/// As [`by_table`]; the index has every row once.
unsafe fn by_index(rel: pg_sys::Relation, index: pg_sys::Oid, slot: *mut pg_sys::TupleTableSlot) -> u64 {
    // SAFETY: promised by the caller; as in `by_table`.
    unsafe {
        let index = pg_sys::index_open(index, pg_sys::AccessShareLock as c_int);
        let scan = pg_sys::index_beginscan(rel, index, pg_sys::GetActiveSnapshot(), 0, 0);
        // Keeps the index page pinned, so that VACUUM cannot come between an entry and the look at the map.
        (*scan).xs_want_itup = true;
        pg_sys::index_rescan(scan, null_mut(), 0, null_mut(), 0);
        let mut map = pg_sys::InvalidBuffer as pg_sys::Buffer;
        let count = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut count = 0;
            loop {
                let tid = index_getnext_tid(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tid.is_null() {
                    break;
                }
                let block = (u32::from((*tid).ip_blkid.bi_hi) << 16) | u32::from((*tid).ip_blkid.bi_lo);
                let visible = visibilitymap_get_status(rel, block, &mut map) & pg_sys::VISIBILITYMAP_ALL_VISIBLE as u8;
                if visible != 0 || index_fetch_heap(scan, slot) {
                    count += 1;
                }
            }
            count
        });
        if map != pg_sys::InvalidBuffer as pg_sys::Buffer {
            pg_sys::ReleaseBuffer(map);
        }
        pg_sys::index_endscan(scan);
        pg_sys::index_close(index, pg_sys::AccessShareLock as c_int);
        count
    }
}
