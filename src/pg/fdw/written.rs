//! What a running statement has written to foreign tables. A scan that began after it would see that, other than in PostgreSQL's own tables. So it is refused: in `RETURNING`, in
//! the check of a view, in what surrounds a WITH that writes, and in rows that are routed to a foreign part, which are not [collected](super::collected).

use super::interface::{Scan, raise};
use super::modify;
use crate::pg::error::Error;
use docshard_core::error::Kind;
use pgrx::{PgList, pg_sys};
use std::ffi::CString;

/// Notes what a direct write has written. Its target has no other state.
///
/// # Safety
/// The node of a direct write.
pub(super) unsafe fn note(node: *mut pg_sys::ForeignScanState, name: &str) {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: promised by the caller; the copy lives as long as the statement.
    unsafe {
        if let Some(target) = (*node).resultRelInfo.as_mut() {
            target.ri_FdwState = pg_sys::MemoryContextStrdup((*(*node).ss.ps.state).es_query_cxt, name.as_ptr()).cast();
        }
    }
}

/// What was written to a target of a running statement, if it is a foreign table.
///
/// # Safety
/// A target of a running statement, for the duration of this call.
unsafe fn written(target: *mut pg_sys::ResultRelInfo) -> Option<String> {
    // SAFETY: promised by the caller; a state is that of `modify`, or of [`note`].
    unsafe {
        let begin = (*target).ri_FdwRoutine.as_ref()?.BeginForeignModify?;
        let is_own = begin as usize == modify::begin as *const () as usize;
        if !is_own || (*target).ri_FdwState.is_null() {
            return None;
        }
        if (*target).ri_usesFdwDirectModify {
            return Some(super::clause::text((*target).ri_FdwState.cast()));
        }
        modify::written(target)
    }
}

/// Refuses to start a scan that would see what its statement has written.
///
/// # Safety
/// A running statement.
pub(super) unsafe fn refuse_after(estate: *mut pg_sys::EState, scan: &dyn Scan) {
    // SAFETY: promised by the caller.
    let written = unsafe {
        let lists = [(*estate).es_opened_result_relations, (*estate).es_tuple_routing_result_relations];
        let targets = lists.map(|list| PgList::<pg_sys::ResultRelInfo>::from_pg(list));
        let mut written = targets.iter().flat_map(PgList::iter_ptr).filter_map(|target| written(target));
        written.any(|name| scan.may_see(&name))
    };
    if written {
        let message = "a statement that has written to a collection cannot begin to read it again";
        let error = Error::new(Kind::NotImplemented, message);
        raise::<()>(Err(error.with_hint("Read it in a statement before or after this one.")));
    }
}
