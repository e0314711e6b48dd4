//! Makes a statement that writes foreign tables read them as they were before the statement.
//!
//! PostgreSQL's own tables have versions of rows, so that no part of a statement sees what another part writes. A request to a shard sees
//! all that the transaction has written before, also by the same statement. So:
//!
//! * All rows of the plan below a write are computed before the first one is written. They are kept in memory up to `work_mem`, and on
//!   disk beyond. So sub-queries, joins and functions of the statement have read what they need before the first write.
//! * After a write, nothing that has the statement's snapshot can start a scan of the collection: see
//!   [`super::interface::Scan::refuse_newer`].
//!
//! For this, the node's function that returns rows, which only ModifyTable calls, is replaced. For an INSERT, the replacement also limits
//! the bytes of the rows that PostgreSQL collects for a batch.

use super::interface::raise;
use super::plan;
use crate::pg::error::Error;
use docshard_core::error::Kind;
use pgrx::{PgList, PgMemoryContexts, pg_guard, pg_sys};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::null_mut;

/// PostgreSQL hands over a batch of an INSERT when its rows have about this many bytes, or earlier.
const BATCH_BYTES: u32 = 4 * 1024 * 1024;

/// A plan's node, and the rows that it has returned.
#[derive(Clone, Copy)]
struct Collected {
    /// the node's own function
    run: pg_sys::ExecProcNodeMtd,
    /// null before the first row is read, and after the rows were dropped
    rows: *mut pg_sys::Tuplestorestate,
    /// the slot for a row as `rows` stores it; null if the plan returns no rows
    kept: *mut pg_sys::TupleTableSlot,
    /// a slot of the kind that the node returns; null if the plan returns no rows
    returned: *mut pg_sys::TupleTableSlot,
    is_filled: bool,
    /// the bytes of the rows that were returned since the last call of [`end_batches`]
    bytes: u32,
}

thread_local! {
    /// by the address of the plan's node
    static NODES: RefCell<HashMap<usize, Collected>> = RefCell::default();
}

/// Belongs to the memory of a statement. Removes the node from [`NODES`] when that memory is freed.
struct Known(usize);

impl Drop for Known {
    fn drop(&mut self) {
        NODES.with_borrow_mut(|nodes| nodes.remove(&self.0));
    }
}

/// Makes the plan below a write compute all its rows before it returns the first one. Does nothing for a plan that is one row of values.
///
/// # Safety
/// The node below a ModifyTable that is being started.
pub(super) unsafe fn collect(node: *mut pg_sys::PlanState) {
    // SAFETY: promised by the caller; the entry is dropped before the node's memory can be used again.
    unsafe {
        let is_one_row = (*node).type_ == pg_sys::NodeTag::T_ResultState && (*node).lefttree.is_null();
        if is_one_row || NODES.with_borrow(|nodes| nodes.contains_key(&(node as usize))) {
            return;
        }
        let (rows, kept, returned) = (null_mut(), null_mut(), null_mut());
        let collected = Collected { run: (*node).ExecProcNodeReal, rows, kept, returned, is_filled: false, bytes: 0 };
        NODES.with_borrow_mut(|nodes| nodes.insert(node as usize, collected));
        PgMemoryContexts::For((*(*node).state).es_query_cxt).leak_and_drop_on_delete(Known(node as usize));
        pg_sys::ExecSetExecProcNode(node, Some(next));
    }
}

/// Drops the rows that were not returned.
///
/// # Safety
/// At the end of the ModifyTable above the node.
pub(super) unsafe fn end(node: *mut pg_sys::PlanState) {
    let rows = NODES.with_borrow_mut(|nodes| {
        nodes.get_mut(&(node as usize)).map_or(null_mut(), |known| std::mem::replace(&mut known.rows, null_mut()))
    });
    if !rows.is_null() {
        // SAFETY: made by `fill`, and forgotten above.
        unsafe { pg_sys::tuplestore_end(rows) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn next(node: *mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot {
    let Some(mut collected) = NODES.with_borrow(|nodes| nodes.get(&(node as usize)).copied()) else {
        return raise(Err(Error::new(Kind::InternalError, "the rows of a write are lost")));
    };
    // SAFETY: PostgreSQL's executor calls this for a node that `collect` was given; the slots and rows live as long as the statement.
    unsafe {
        if !collected.is_filled {
            collected.fill(node);
            NODES.with_borrow_mut(|nodes| nodes.insert(node as usize, collected));
        }
        if collected.returned.is_null() || collected.rows.is_null() {
            return null_mut();
        }
        if !pg_sys::tuplestore_gettupleslot(collected.rows, true, false, collected.kept) {
            end(node);
            return pg_sys::ExecClearTuple(collected.returned);
        }
        let row = pg_sys::ExecFetchSlotMinimalTuple(collected.kept, null_mut());
        collected.bytes = collected.bytes.saturating_add((*row).t_len);
        if collected.bytes >= BATCH_BYTES {
            end_batches((*node).state);
            collected.bytes = 0;
        }
        NODES.with_borrow_mut(|nodes| nodes.insert(node as usize, collected));
        pg_sys::ExecCopySlot(collected.returned, collected.kept)
    }
}

/// Makes PostgreSQL hand over the batches that it has collected for tables of this wrapper, each before the table's next row.
///
/// # Safety
/// While a statement is executed.
unsafe fn end_batches(estate: *mut pg_sys::EState) {
    // SAFETY: promised by the caller; the list has the targets for which rows are kept. PostgreSQL compares the two numbers for equality,
    // and takes a table whose batches have one row for one without batches.
    unsafe {
        let targets = PgList::<pg_sys::ResultRelInfo>::from_pg((*estate).es_insert_pending_result_relations);
        for target in targets.iter_ptr().filter(|target| plan::is_own((**target).ri_FdwRoutine)) {
            (*target).ri_BatchSize = (*target).ri_NumSlots.max(2);
        }
    }
}

impl Collected {
    /// # Safety
    /// While the node is executed.
    unsafe fn fill(&mut self, node: *mut pg_sys::PlanState) {
        // SAFETY: promised by the caller; the node's own function is called as the executor does.
        unsafe {
            let estate = (*node).state;
            let before = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
            self.is_filled = true;
            self.rows = pg_sys::tuplestore_begin_heap(false, false, pg_sys::work_mem);
            let Some(run) = self.run else { return };
            loop {
                let row = pg_sys::ffi::pg_guard_ffi_boundary(|| run(node));
                if row.is_null() || (*row).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                    break;
                }
                if self.returned.is_null() {
                    // The compiled expressions above this node expect slots of this kind.
                    let description = (*row).tts_tupleDescriptor;
                    self.returned = pg_sys::ExecInitExtraTupleSlot(estate, description, (*row).tts_ops);
                    self.kept =
                        pg_sys::ExecInitExtraTupleSlot(estate, description, &raw const pg_sys::TTSOpsMinimalTuple);
                }
                pg_sys::tuplestore_puttupleslot(self.rows, row);
            }
            pg_sys::MemoryContextSwitchTo(before);
        }
    }
}
