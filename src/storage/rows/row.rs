//! A row of a collection's table: its columns, and what is done to it.

use crate::pg::datum::jsonb::new_varlena;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The position of the document among the columns.
pub(super) const DOC: usize = 2;

/// What is done to the table: which privileges it takes, and how PostgreSQL calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// new rows
    Insert,
    /// other documents in rows that are there
    Update,
    /// rows go away
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

/// A row to be inserted; `doc` is jsonb's bytes, which the caller has checked.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// the shard key, encoded
    pub skey: &'a [u8],
    /// the `_id`, encoded
    pub id: &'a [u8],
    /// the document
    pub doc: &'a [u8],
}

/// # Safety
/// The slot is of a table with the columns skey, id and doc.
pub(super) unsafe fn store(slot: *mut pg_sys::TupleTableSlot, row: &Row<'_>) {
    // SAFETY: promised by the caller; the values are copied into PostgreSQL's memory.
    unsafe {
        pg_sys::ExecClearTuple(slot);
        for (column, value) in [row.skey, row.id, row.doc].into_iter().enumerate() {
            *(*slot).tts_values.add(column) = pg_sys::Datum::from(new_varlena(value));
            *(*slot).tts_isnull.add(column) = false;
        }
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}

/// Makes a row of these columns.
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
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}
