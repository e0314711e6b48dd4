//! Makes heap-only updates possible although all secondary indexes are over expressions of the document.
//!
//! PostgreSQL writes no index entries for an update if no index uses a changed column (a heap-only tuple). All secondary indexes
//! of a collection use the document, so every update would write to all of them. But an index needs no new entry if the entry's keys stay
//! the same and, in a partial index, the row had an entry before if and only if it has one afterwards. This file compares the entries of
//! both versions; if they are equal in all indexes, [`Unmentioned`] removes the document from the relation's cached set of indexed columns
//! for one update.
//!
//! It is safe because all versions in a HOT chain then have equal entries in every index. An index that is being built, or is
//! not valid, prevents it. CREATE INDEX CONCURRENTLY waits for transactions that opened the table before they knew the index, as
//! the table's lock is held to the end of the transaction. If the relation's description was rebuilt during the comparison,
//! there may be a new index; then the set is not changed, and the update writes index entries. From PostgreSQL 16 on, a summarizing index
//! (BRIN) prevents no heap-only update; it is compared like the others. `tests/tests/heap_only_updates.rs` checks this with amcheck.

use super::changing::FoundRow;
use super::index::{Held, Index};
use super::row::{DOC, fill};
use super::writer::Writer;
use crate::pg::version;
use pgrx::pg_sys;
use std::ffi::c_int;

// Not in pgrx's bindings; called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn datum_image_eq(one: pg_sys::Datum, other: pg_sys::Datum, by_value: bool, length: c_int) -> bool;
}

/// The document's number in PostgreSQL's sets of columns.
const MEMBER: c_int = DOC as c_int + 1 - pg_sys::FirstLowInvalidHeapAttributeNumber;

/// Keeps the document out of the relation's set of indexed columns until this guard is dropped.
pub(super) struct Unmentioned {
    rel: pg_sys::Relation,
    /// the set without the document, which belongs to the relation
    columns: *mut pg_sys::Bitmapset,
    /// the original set, which is put back
    before: *mut pg_sys::Bitmapset,
}

impl Unmentioned {
    /// None if the set is gone: the relation's description was rebuilt since [`is_mentioned`].
    ///
    /// # Safety
    /// The table stays open and locked while this lives, and is updated only to rows for which the invariant holds.
    unsafe fn new(rel: pg_sys::Relation) -> Option<Self> {
        // SAFETY: promised by the caller. The replacement is allocated like the original, as PostgreSQL may free it with the relation's
        // description.
        unsafe {
            let kept = version::indexed_columns(rel)?;
            let context = pg_sys::MemoryContextSwitchTo(pg_sys::CacheMemoryContext);
            let columns = pg_sys::bms_del_member(pg_sys::bms_copy(*kept), MEMBER);
            pg_sys::MemoryContextSwitchTo(context);
            let before = std::mem::replace(kept, columns);
            Some(Self { rel, columns, before })
        }
    }
}

impl Drop for Unmentioned {
    fn drop(&mut self) {
        // SAFETY: a local variable of one update. The table is open, also while an ERROR unwinds, as the abort comes later. If its
        // description was rebuilt, PostgreSQL has freed the replacement, and there is nothing to restore.
        unsafe {
            match version::indexed_columns(self.rel) {
                Some(kept) if *kept == self.columns => {
                    *kept = self.before;
                    pg_sys::bms_free(self.columns);
                }
                _ => pg_sys::bms_free(self.before),
            }
        }
    }
}

/// True if an index uses the document. Afterwards the relation has its set of indexed columns.
///
/// # Safety
/// The table is open.
unsafe fn is_mentioned(rel: pg_sys::Relation) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        if version::indexed_columns(rel).is_none() {
            version::compute_indexed_columns(rel);
        }
        version::indexed_columns(rel).is_some_and(|columns| pg_sys::bms_is_member(MEMBER, *columns))
    }
}

impl Writer {
    /// Returns a guard that makes an update of the old row to the new one, which has this document, heap-only. None if no index uses the
    /// document, or if an index entry changes.
    ///
    /// # Safety
    /// The old row is one of the table, and is updated at once to that in the slot, or not at all.
    pub(super) unsafe fn unmentioned(
        &mut self,
        old: &FoundRow,
        new: *mut pg_sys::TupleTableSlot,
        doc: &[u8],
    ) -> Option<Unmentioned> {
        let new = Held { slot: new, doc };
        // SAFETY: promised by the caller; the table is open and locked as long as the writer.
        unsafe {
            // While index functions ran, invalidations may have been handled, which rebuild the description. Then `new` returns None.
            if is_mentioned(self.rel) && self.keeps_keys(old, new) { Unmentioned::new(self.rel) } else { None }
        }
    }

    /// True if both rows have the same entries in all indexes.
    ///
    /// # Safety
    /// The same as for [`Writer::unmentioned`].
    unsafe fn keeps_keys(&mut self, old: &FoundRow, new: Held<'_>) -> bool {
        let slot = self.compared.unwrap_or_else(|| self.slot());
        self.compared = Some(slot);
        // SAFETY: as in `insert_by_index`.
        unsafe {
            let context = pg_sys::MakePerTupleExprContext(self.estate);
            let former = pg_sys::MemoryContextSwitchTo((*context).ecxt_per_tuple_memory);
            let old = old.plain();
            fill(slot, old.columns);
            let document = old.document();
            let old = Held { slot, doc: document.bytes() };
            let keeps = self.indexes.iter().all(|index| self.keeps_key(index, old, new));
            pg_sys::ExecClearTuple(slot);
            pg_sys::MemoryContextSwitchTo(former);
            self.reset_row();
            keeps
        }
    }

    /// # Safety
    /// The rows and the index are the table's; the current memory context is that of a row.
    unsafe fn keeps_key(&self, index: &Index, old: Held<'_>, new: Held<'_>) -> bool {
        // SAFETY: promised by the caller; the arrays have room for the columns of any index. There is an expression for each index column
        // that is not a column of the table.
        unsafe {
            let info = index.info;
            // The functions of an index that is being built may raise an error for the old document.
            if !(*(*index.rel).rd_index).indisvalid {
                return false;
            }
            let columns = &(&(*info).ii_IndexAttrNumbers)[..(*info).ii_NumIndexAttrs as usize];
            if (*info).ii_Expressions.is_null() && (*info).ii_Predicate.is_null() {
                return columns.iter().all(|column| usize::try_from(*column) != Ok(DOC + 1));
            }
            if index.sees_same(old.doc, new.doc) {
                return true;
            }
            let keys = |row| index.holds(row, self.estate).then(|| index.values(row, self.estate));
            let ((was, was_null), (is, is_null)) = match (keys(old), keys(new)) {
                (None, None) => return true,
                (Some(was), Some(is)) => (was, is),
                _ => return false,
            };
            let mut expression = 0;
            columns.iter().enumerate().all(|(at, column)| {
                let kind = match usize::try_from(*column) {
                    Ok(0) => {
                        let node = pg_sys::list_nth((*info).ii_Expressions, expression);
                        expression += 1;
                        pg_sys::exprType(node.cast())
                    }
                    // An update does not change the table's other columns.
                    Ok(column) if column != DOC + 1 => return true,
                    _ => return false,
                };
                let (mut length, mut by_value) = (0, false);
                pg_sys::get_typlenbyval(kind, &mut length, &mut by_value);
                let same =
                    || pg_sys::ffi::pg_guard_ffi_boundary(|| datum_image_eq(was[at], is[at], by_value, length.into()));
                was_null[at] == is_null[at] && (is_null[at] || same())
            })
        }
    }
}
