//! The triggers of collections' tables. `capture` (AFTER … FOR EACH ROW) validates documents and captures changes of SQL statements.
//! `refuse_truncate` (BEFORE TRUNCATE) refuses TRUNCATE. Both call the same function.

use super::capture;
use super::row::DOC;
use super::validation;
use crate::pg::error::{Raise as _, Result};
use crate::pg::object::drop_guard;
use crate::storage::collection_of;
use crate::storage::scan::visit_tuple;
use docshard_core::error::{Kind, error};
use pgrx::{pg_guard, pg_sys};
use std::ffi::CStr;

/// The names of the triggers, in alphabetical order, as PostgreSQL lists them.
const NAMES: [&CStr; 2] = [c"capture", c"refuse_truncate"];

/// True if a table has only docshard's triggers. A table of docshard 0.2.0 has only the first one.
///
/// # Safety
/// The triggers of an open table.
pub(super) unsafe fn are_own(triggers: &pg_sys::TriggerDesc) -> bool {
    let count = usize::try_from(triggers.numtriggers).unwrap_or_default();
    // SAFETY: promised by the caller; names end with a zero byte.
    let is_named =
        |(at, name): (usize, &&CStr)| unsafe { CStr::from_ptr((*triggers.triggers.add(at)).tgname) == *name };
    count <= NAMES.len() && NAMES.iter().take(count).enumerate().all(is_named)
}

/// Checks a new document by the collection's validator. Does nothing if an update does not change the document.
///
/// # Safety
/// The same as for [`capture_change`].
unsafe fn validate(
    rel: pg_sys::Relation,
    collection: i32,
    old: pg_sys::HeapTuple,
    new: pg_sys::HeapTuple,
) -> Result<()> {
    if new.is_null() {
        return Ok(());
    }
    let Some(validator) = validation::of(collection)? else { return Ok(()) };
    // SAFETY: promised by the caller.
    let document = |tuple: pg_sys::HeapTuple| unsafe { visit_tuple(rel, tuple, |row| row.slice(DOC).to_vec()) };
    let before = (!old.is_null()).then(|| document(old));
    let after = document(new);
    if before.as_ref() == Some(&after) { Ok(()) } else { validation::check(&validator, before.as_deref(), &after) }
}

/// Validates a new row and captures a change of a row; `old` is null for INSERT, `new` for DELETE.
///
/// # Safety
/// The relation is open, and the tuples are null or the relation's.
unsafe fn capture_change(rel: pg_sys::Relation, old: pg_sys::HeapTuple, new: pg_sys::HeapTuple) -> Result<()> {
    // SAFETY: promised by the caller; the name ends with a zero byte.
    let name = unsafe { CStr::from_ptr((*(*rel).rd_rel).relname.data.as_ptr()) };
    let Some(collection) = name.to_str().ok().and_then(collection_of) else { return Ok(()) };
    // SAFETY: promised by the caller.
    unsafe { validate(rel, collection, old, new) }?;
    if !capture::is_captured(collection)? {
        return Ok(());
    }
    // SAFETY: promised by the caller.
    let key = |tuple: pg_sys::HeapTuple| unsafe {
        if tuple.is_null() { None } else { visit_tuple(rel, tuple, |row| row.bytes(0).zip(row.bytes(1))) }
    };
    let (old, new) = (key(old), key(new));
    let old = old.filter(|old| Some(old) != new.as_ref());
    old.iter().chain(&new).try_for_each(|(skey, id)| capture::log_key(collection, skey, id))
}

/// The version of the calling convention, which PG_FUNCTION_INFO_V1 would declare.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_docshard_row_changed() -> *const pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// The function of both triggers. PostgreSQL ignores its result.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn docshard_row_changed(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by the trigger manager, or else `context` is no TriggerData, which is checked first.
    let captured = unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            error!(Kind::InternalError, "called outside a trigger").raise();
        }
        let data = &*context.cast::<pg_sys::TriggerData>();
        let (old, new) = match data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => (std::ptr::null_mut(), data.tg_trigtuple),
            pg_sys::TRIGGER_EVENT_DELETE => (data.tg_trigtuple, std::ptr::null_mut()),
            pg_sys::TRIGGER_EVENT_TRUNCATE => {
                drop_guard::judge_truncate((*data.tg_relation).rd_id).unwrap_or_else(|e| e.raise());
                (std::ptr::null_mut(), std::ptr::null_mut())
            }
            _ => (data.tg_trigtuple, data.tg_newtuple),
        };
        capture_change(data.tg_relation, old, new)
    };
    captured.unwrap_or_else(|e| e.raise());
    pg_sys::Datum::from(0)
}
