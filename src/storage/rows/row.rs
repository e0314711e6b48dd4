//! Rows of a collection's table.

use crate::pg::datum::jsonb::new_varlena;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The position of the column doc, from 0.
pub(super) const DOC: usize = 2;

/// The command that a writer executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Insert,
    Update,
    Delete,
}

impl Purpose {
    pub(super) const fn command(self) -> &'static CStr {
        match self {
            Self::Insert => c"INSERT",
            Self::Update => c"UPDATE",
            Self::Delete => c"DELETE",
        }
    }

    pub(super) const fn privileges(self) -> u32 {
        match self {
            Self::Insert => pg_sys::ACL_INSERT,
            Self::Update => pg_sys::ACL_SELECT | pg_sys::ACL_UPDATE,
            Self::Delete => pg_sys::ACL_SELECT | pg_sys::ACL_DELETE,
        }
    }
}

/// A row to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct TableRow<'a> {
    /// the encoded shard key
    pub skey: &'a [u8],
    /// the encoded `_id`
    pub id: &'a [u8],
    /// jsonb's bytes, which the caller has checked
    pub doc: &'a [u8],
}

/// Stores a copy of the row in a slot.
///
/// # Safety
/// The slot is of a table with the columns skey, id and doc.
pub(super) unsafe fn store(slot: *mut pg_sys::TupleTableSlot, row: &TableRow<'_>) {
    // SAFETY: promised by the caller; the values are copied into the current memory context.
    unsafe { fill(slot, [row.skey, row.id, row.doc].map(|value| new_varlena(value).into())) };
}

/// Stores a row of these values in a slot.
///
/// # Safety
/// The slot is of a collection's table; the datums are of its columns' types, and stay while the slot is in use.
pub(super) unsafe fn fill(slot: *mut pg_sys::TupleTableSlot, columns: [pg_sys::Datum; DOC + 1]) {
    // SAFETY: promised by the caller.
    unsafe {
        pg_sys::ExecClearTuple(slot);
        for (column, value) in columns.into_iter().enumerate() {
            *(*slot).tts_values.add(column) = value;
            *(*slot).tts_isnull.add(column) = false;
        }
        // Columns that were dropped.
        for column in DOC + 1..(*(*slot).tts_tupleDescriptor).natts as usize {
            *(*slot).tts_isnull.add(column) = true;
        }
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}
