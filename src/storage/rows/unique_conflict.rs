//! Finds, before an insert, a row that conflicts with the new one in a unique index other than the primary key.

use super::changing::FoundRow;
use super::index::Held;
use super::row::{TableRow, store};
use super::writer::Writer;
use crate::pg::version::index_beginscan;
use crate::storage::scan::{Bound, scan_keys};
use crate::storage::unique;
use pgrx::pg_sys;
use std::ffi::CStr;
use std::ptr::null_mut;

/// The first key of a new row that another row already has in a unique index.
#[derive(Debug)]
pub struct Conflict {
    pub index: String,
    pub key: Vec<u8>,
}

impl Writer {
    /// Returns a key of the row that another row, with another shard key or `_id`, has in a unique index; None if there is no such key.
    ///
    /// It checks the current state, not a snapshot, and waits for transactions that insert or delete such a row. A concurrent transaction
    /// may still insert one afterwards; then inserting the row raises 23505.
    pub fn conflict(&mut self, row: &TableRow<'_>) -> Option<Conflict> {
        let [met, _, offered] = self.change_slots();
        // SAFETY: see the type's invariants; as in `insert_by_index`. The slots are of the table's kind.
        unsafe {
            store(offered, row);
            let context = pg_sys::MakePerTupleExprContext(self.estate);
            let former = pg_sys::MemoryContextSwitchTo((*context).ecxt_per_tuple_memory);
            let held = Held { slot: offered, doc: row.doc };
            let conflict = self.indexes.iter().filter(|index| index.is_ready()).find_map(|index| {
                if !unique::is_unique(index.rel) || !index.holds(held, self.estate) {
                    return None;
                }
                let (values, _) = index.values(held, self.estate);
                let keys = unique::keys_in(values[0]);
                let key = keys.into_iter().find(|key| self.conflicts(index.rel, key, row, met))?;
                let name = CStr::from_ptr((*(*index.rel).rd_rel).relname.data.as_ptr());
                Some(Conflict { index: name.to_string_lossy().into_owned(), key: key.to_vec() })
            });
            pg_sys::ExecClearTuple(offered);
            pg_sys::MemoryContextSwitchTo(former);
            self.reset_row();
            conflict
        }
    }

    /// True if another row has the key.
    ///
    /// # Safety
    /// The index is a unique one of the table; the slot is of the table's kind.
    unsafe fn conflicts(
        &self,
        index: pg_sys::Relation,
        key: &[u8],
        row: &TableRow<'_>,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> bool {
        loop {
            let (mut met, mut waits_for) = (false, None);
            // SAFETY: promised by the caller; the b-tree's keys are bytea. The snapshot lives as long as the scan, which stores in it the
            // transaction that is inserting or deleting the row.
            unsafe {
                let mut dirty =
                    pg_sys::SnapshotData { snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY, ..Default::default() };
                let mut scan_key = scan_keys(&[Bound::Is(key)]);
                let scan = index_beginscan(self.rel, index, &mut dirty, 1);
                pg_sys::index_rescan(scan, scan_key.as_mut_ptr(), 1, null_mut(), 0);
                while !met && pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
                    let other = FoundRow::in_slot(slot);
                    met = (other.skey(), other.id()) != (row.skey, row.id);
                    if met {
                        let running =
                            [dirty.xmin, dirty.xmax].into_iter().find(|id| *id != pg_sys::InvalidTransactionId);
                        waits_for = running.map(|id| (id, (*slot).tts_tid));
                    }
                }
                pg_sys::ExecClearTuple(slot);
                pg_sys::index_endscan(scan);
                match waits_for {
                    None => return met,
                    Some((running, _)) if dirty.speculativeToken != 0 => {
                        pg_sys::SpeculativeInsertionWait(running, dirty.speculativeToken);
                    }
                    Some((running, mut place)) => {
                        let why = pg_sys::XLTW_Oper::XLTW_InsertIndex;
                        pg_sys::XactLockTableWait(running, self.rel, &mut place, why);
                    }
                }
            }
        }
    }
}
