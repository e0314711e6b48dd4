//! Deleting many rows of a table by their places, which were found beforehand: without executor, plan and triggers.
//!
//! Deleting needs no work in indexes, so what a row costs is a look at it and a line of WAL; the first change of a page
//! after a checkpoint also logs the whole page, which [`log_pages`] does ahead.

use super::capture;
use crate::pg::error::Result;
use pgrx::pg_sys;
use std::ffi::c_int;

// Not in pgrx's bindings; called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn HeapTupleSatisfiesVisibility(
        tuple: *mut pg_sys::HeapTupleData,
        snapshot: pg_sys::Snapshot,
        buffer: pg_sys::Buffer,
    ) -> bool;
}

/// A row's place: block and line, as `tidsend` writes them.
pub const PLACE_BYTES: usize = 6;

/// Where a table's rows are, as `tidsend` of each, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a>(pub &'a [u8]);

impl Places<'_> {
    fn iter(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        let (places, _) = self.0.as_chunks::<PLACE_BYTES>();
        places.iter().map(|[a, b, c, d, e, f]| (u32::from_be_bytes([*a, *b, *c, *d]), u16::from_be_bytes([*e, *f])))
    }
}

/// True if rows of the table may be deleted by [`delete`]: it is a heap, and nobody else's trigger wants to know of a
/// deleted row.
pub fn is_plain(table: pg_sys::Oid) -> bool {
    // SAFETY: the table exists, and is open while it is looked at.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let triggers = (*rel).trigdesc;
        let plain = std::ptr::eq((*rel).rd_tableam, pg_sys::GetHeapamTableAmRoutine())
            && (triggers.is_null() || (*triggers).numtriggers <= 1)
            && (*rel).rd_rules.is_null();
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        plain
    }
}

/// Deletes the rows at these places that the active snapshot sees and whose first column, a bytea, is wanted; returns how
/// many. The place of a row that is gone may have another one since: that is why `wanted` is asked.
///
/// The caller has excluded everybody who might change such a row. Fires no trigger, and captures as one would.
///
/// # Errors
/// Those of [`capture`].
pub fn delete(collection: i32, table: pg_sys::Oid, places: Places<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<u64> {
    let captured = capture::is_captured(collection)?;
    let mut deleted = 0;
    let mut lines = Vec::new();
    let mut places = places.iter().peekable();
    // SAFETY: the table is a heap ([`is_plain`]) and stays locked until the transaction ends. Each of its pages is pinned as
    // long as one of its tuples is in use: such a tuple, which the snapshot sees, is neither pruned nor moved.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
        assert!((*(*rel).rd_att).natts <= 8, "a table of docshard's own");
        let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        let snapshot = pg_sys::GetActiveSnapshot();
        let command = pg_sys::GetCurrentCommandId(true);
        while let Some((block, line)) = places.next() {
            lines.clear();
            lines.push(line);
            while let Some((_, line)) = places.next_if(|(next, _)| *next == block) {
                lines.push(line);
            }
            if block >= blocks {
                continue;
            }
            pgrx::check_for_interrupts!();
            let buffer = pg_sys::ReadBuffer(rel, block);
            for mut tuple in visible(rel, buffer, block, &lines, snapshot) {
                if !wanted(column(rel, &mut tuple, 0)) {
                    continue;
                }
                if captured {
                    let (skey, id) = (column(rel, &mut tuple, 0).to_vec(), column(rel, &mut tuple, 1).to_vec());
                    capture::log_key(collection, &skey, &id)?;
                }
                let mut failure = pg_sys::TM_FailureData::default();
                let place = &raw mut tuple.t_self;
                let no_crosscheck = std::ptr::null_mut();
                let result = pg_sys::heap_delete(rel, place, command, no_crosscheck, true, &mut failure, false);
                deleted += u64::from(result == pg_sys::TM_Result::TM_Ok);
            }
            pg_sys::ReleaseBuffer(buffer);
        }
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
    }
    Ok(deleted)
}

/// Those of a page's tuples that the snapshot sees. They are where they are in the page.
///
/// # Safety
/// The buffer holds that block of the table and is pinned, for as long as the tuples are used.
unsafe fn visible(
    rel: pg_sys::Relation,
    buffer: pg_sys::Buffer,
    block: u32,
    lines: &[u16],
    snapshot: pg_sys::Snapshot,
) -> Vec<pg_sys::HeapTupleData> {
    /// What `ItemIdIsNormal` compares.
    const LP_NORMAL: u32 = 1;
    // SAFETY: promised by the caller; the page is locked while its lines are looked at, and whether a line has a tuple is
    // looked at first. What raises, of which there is hardly anything, unwinds from the boundary with the lock, which
    // PostgreSQL's abort gives back.
    unsafe {
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
        let page = pg_sys::BufferGetPage(buffer);
        let most = pg_sys::PageGetMaxOffsetNumber(page);
        // Made outside the boundary, so that nothing inside has to be dropped.
        let mut tuples = Vec::with_capacity(lines.len());
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            for line in lines.iter().copied().filter(|line| (1..=most).contains(line)) {
                let item = pg_sys::PageGetItemId(page, line);
                if (*item).lp_flags() != LP_NORMAL {
                    continue;
                }
                let mut tuple = pg_sys::HeapTupleData {
                    t_len: (*item).lp_len(),
                    t_tableOid: (*rel).rd_id,
                    t_data: pg_sys::PageGetItem(page, item).cast(),
                    ..Default::default()
                };
                pgrx::itemptr::item_pointer_set_all(&mut tuple.t_self, block, line);
                if HeapTupleSatisfiesVisibility(&mut tuple, snapshot, buffer) {
                    tuples.push(tuple);
                }
            }
        });
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
        tuples
    }
}

/// A column of a tuple of the table, a bytea that is not null.
///
/// # Safety
/// The tuple is valid for as long as what this returns is used. At most 8 columns.
unsafe fn column(rel: pg_sys::Relation, tuple: &mut pg_sys::HeapTupleData, at: usize) -> &[u8] {
    // SAFETY: promised by the caller; what has to be detoasted is in PostgreSQL's memory, which outlives the tuple.
    unsafe {
        let mut values = [pg_sys::Datum::from(0); 8];
        let mut nulls = [false; 8];
        pg_sys::heap_deform_tuple(tuple, (*rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        let key = pg_sys::pg_detoast_datum_packed(values[at].cast_mut_ptr());
        std::slice::from_raw_parts(pgrx::vardata_any(key).cast::<u8>(), pgrx::varsize_any_exhdr(key))
    }
}

/// Writes those of the pages at these places into the WAL whose next change would do so, and waits for the disk: so the
/// changes that follow before the next checkpoint are short. Changes nothing, and holds up nobody.
pub fn log_pages(table: pg_sys::Oid, places: Places<'_>) {
    // SAFETY: the table is open; each buffer is pinned and locked exclusively while its page is looked at and logged, and
    // unlocked afterwards; a critical section surrounds what WAL asks it for, and nothing in it raises.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let logged =
            pg_sys::fullPageWrites && !(*rel).rd_rel.is_null() && (*(*rel).rd_rel).relpersistence == b'p' as i8;
        let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        let mut last = None;
        let mut end = 0;
        for (block, _) in places.iter().filter(|(block, _)| logged && *block < blocks) {
            if last.replace(block) == Some(block) {
                continue;
            }
            pgrx::check_for_interrupts!();
            let buffer = pg_sys::ReadBuffer(rel, block);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as c_int);
            let page = pg_sys::BufferGetPage(buffer).cast::<pg_sys::PageHeaderData>();
            let lsn = (u64::from((*page).pd_lsn.xlogid) << 32) | u64::from((*page).pd_lsn.xrecoff);
            if lsn <= pg_sys::GetRedoRecPtr() && (*page).pd_upper != 0 {
                pg_sys::CritSectionCount += 1;
                pg_sys::MarkBufferDirty(buffer);
                end = pg_sys::log_newpage_buffer(buffer, true);
                pg_sys::CritSectionCount -= 1;
            }
            pg_sys::UnlockReleaseBuffer(buffer);
        }
        if end > 0 {
            pg_sys::XLogFlush(end);
        }
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}
