//! The row trigger of the collections' tables: a C-language function that captures what SQL statements change.
//!
//! `CREATE FUNCTION … RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'docshard_row_changed'`; AFTER … FOR EACH ROW.

use super::capture;
use crate::pg::error::{Error, Result};
use crate::storage::collection_of;
use docshard_core::error::Kind;
use pgrx::{pg_guard, pg_sys};
use std::ffi::CStr;

/// The trigger's name on every table.
pub(super) const NAME: &CStr = c"capture";

/// A changed row: how it was before (not for INSERT) and how it is now (not for DELETE).
struct RowChange {
    relation: pg_sys::Relation,
    old: pg_sys::HeapTuple,
    new: pg_sys::HeapTuple,
}

impl RowChange {
    /// The table's name, without its schema.
    fn table(&self) -> &str {
        // SAFETY: the relation is open while its trigger runs, and its name ends with a zero byte.
        unsafe { CStr::from_ptr((*(*self.relation).rd_rel).relname.data.as_ptr()) }.to_str().unwrap_or("")
    }

    /// The first two columns, both bytea and not null, of the row before; None for INSERT.
    fn old_key(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.key(self.old)
    }

    /// As [`RowChange::old_key`] of the row now; None for DELETE.
    fn new_key(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.key(self.new)
    }

    fn key(&self, tuple: pg_sys::HeapTuple) -> Option<(Vec<u8>, Vec<u8>)> {
        if tuple.is_null() {
            return None;
        }
        // SAFETY: the tuple is one of the relation's, which has at most 8 columns; bytea datums are varlenas.
        unsafe {
            let desc = (*self.relation).rd_att;
            assert!((2..=8).contains(&(*desc).natts), "a table of docshard's own");
            let mut values = [pg_sys::Datum::from(0); 8];
            let mut nulls = [false; 8];
            pg_sys::heap_deform_tuple(tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            let bytes = |column: usize| {
                let packed = pg_sys::pg_detoast_datum_packed(values[column].cast_mut_ptr());
                let length = pgrx::varsize_any_exhdr(packed);
                std::slice::from_raw_parts(pgrx::vardata_any(packed).cast::<u8>(), length).to_vec()
            };
            (!nulls[0] && !nulls[1]).then(|| (bytes(0), bytes(1)))
        }
    }
}

fn capture_change(change: &RowChange) -> Result<()> {
    let Some(collection) = collection_of(change.table()) else { return Ok(()) };
    if !capture::is_captured(collection)? {
        return Ok(());
    }
    let (old, new) = (change.old_key(), change.new_key());
    let old = old.filter(|old| Some(old) != new.as_ref());
    old.iter().chain(&new).try_for_each(|(skey, id)| capture::log_key(collection, skey, id))
}

/// The version of the calling convention, as PG_FUNCTION_INFO_V1 would say.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_docshard_row_changed() -> *const pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// The trigger function. What an AFTER trigger returns is ignored: a null pointer will do.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn docshard_row_changed(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by the trigger manager, or else `context` is no TriggerData, which is looked at first.
    let change = unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            Error::new(Kind::InternalError, "called outside a trigger").raise();
        }
        let data = &*context.cast::<pg_sys::TriggerData>();
        let (old, new) = match data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => (std::ptr::null_mut(), data.tg_trigtuple),
            pg_sys::TRIGGER_EVENT_DELETE => (data.tg_trigtuple, std::ptr::null_mut()),
            _ => (data.tg_trigtuple, data.tg_newtuple),
        };
        RowChange { relation: data.tg_relation, old, new }
    };
    capture_change(&change).unwrap_or_else(|e| e.raise());
    pg_sys::Datum::from(0)
}
