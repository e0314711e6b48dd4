//! Deletes many rows by their places (block and line number), without executor and triggers.
//!
//! Each row costs a visibility check and a WAL record. The first change of a page after a checkpoint logs the whole page, which
//! [`log_pages`] does in advance.

use super::capture;
use super::trigger::are_own;
use crate::pg::error::Result;
use crate::storage::open_looked_up;
use crate::storage::scan::visit_tuple;
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

/// The length of an encoded place.
pub const PLACE_BYTES: usize = 6;

/// Encoded places of rows, in the format of `tidsend`.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a>(pub &'a [u8]);

impl Places<'_> {
    fn iter(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        let (places, _) = self.0.as_chunks::<PLACE_BYTES>();
        places.iter().map(|[a, b, c, d, e, f]| (u32::from_be_bytes([*a, *b, *c, *d]), u16::from_be_bytes([*e, *f])))
    }
}

/// True if [`delete`] may be used: the table is a heap without rules and triggers other than docshard's.
pub fn is_plain(table: pg_sys::Oid) -> bool {
    // SAFETY: the table exists, and is open while it is looked at.
    unsafe {
        let rel = open_looked_up(table, pg_sys::AccessShareLock);
        let triggers = (*rel).trigdesc;
        let plain = std::ptr::eq((*rel).rd_tableam, pg_sys::GetHeapamTableAmRoutine())
            && (triggers.is_null() || are_own(&*triggers))
            && (*rel).rd_rules.is_null();
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        plain
    }
}

/// Deletes the visible rows at these places and returns their number. As another row may have taken a place meanwhile, it skips rows whose
/// shard key is not wanted. The caller must have excluded other writers. Deleted rows are captured as by the trigger.
pub fn delete(collection: i32, table: pg_sys::Oid, places: Places<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<u64> {
    let captured = capture::is_captured(collection)?;
    let mut deleted = 0;
    let mut lines = Vec::new();
    let mut places = places.iter().peekable();
    // SAFETY: the table is a heap ([`is_plain`]) and stays locked until the transaction ends. Each of its pages is pinned as
    // long as one of its tuples is in use: such a tuple, which the snapshot sees, is neither pruned nor moved.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
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
                let key = visit_tuple(rel, &mut tuple, |row| {
                    wanted(row.slice(0)).then(|| row.bytes(0).zip(row.bytes(1)).filter(|_| captured))
                });
                let Some(key) = key else { continue };
                if let Some((skey, id)) = key {
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

/// Returns the visible tuples of a page at these lines. They point into the page.
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
    const LP_NORMAL: u32 = 1;
    // SAFETY: promised by the caller; the page is locked while its lines are read, and a line is checked to have a tuple first.
    // If anything here raises an ERROR, it unwinds from the boundary while the page is locked; PostgreSQL's abort releases the lock.
    unsafe {
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
        let page = pg_sys::BufferGetPage(buffer);
        let most = pg_sys::PageGetMaxOffsetNumber(page);
        // Allocated outside of the boundary, because an ERROR skips destructors inside.
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

/// Logs the pages of these places as a whole, and flushes the WAL. It logs only pages whose next change would log the whole page; the
/// deletes then need little WAL. Changes no row.
pub fn log_pages(table: pg_sys::Oid, places: Places<'_>) {
    // SAFETY: the table is open; each buffer is pinned and locked exclusively while its page is read and logged, and unlocked
    // afterwards; the calls are in a critical section, as WAL logging requires, and none of them raises.
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

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use pgrx::pg_test;

    #[pg_test]
    fn a_collection_is_plain_until_it_has_a_trigger_of_a_user() {
        let run = |sql: &str| drop(spi::execute(sql, &[]).unwrap());
        run("SELECT docshard.insert_one('bulk.t', '{}')");
        let named = spi::query(
            "SELECT \"table\", \"table\"::regclass::oid::int8 FROM docshard.collections WHERE namespace = 'bulk.t'",
            &[],
        )
        .unwrap();
        let (name, table) = (named[0].text(0), pg_sys::Oid::from(u32::try_from(named[0].i64(1)).unwrap()));
        assert!(is_plain(table));
        run("ALTER EVENT TRIGGER docshard_check_changes DISABLE");
        let function = "suppress_redundant_updates_trigger()";
        run(&format!("CREATE TRIGGER a BEFORE DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION {function}"));
        assert!(!is_plain(table));
    }
}
