//! A list of rows for several readers, by PostgreSQL's tuplestore: in memory up to `work_mem`, and in a temporary file beyond.
//!
//! The store has a memory context of its own, as a sort has.
//!
//! INVARIANT: no reader tries to read after the last row. The tuplestore would mark that reader as being at the end, and the reader would
//! miss rows that are added later.

use super::context::OwnContext;
use super::sorter::{MAX_BYTES, disk_is_needed, row_type};
use crate::pg::datum::jsonb::{detoasted_bytes, new_varlena};
use docshard_core::error::Result;
use docshard_core::query::stage::Rows;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;
use std::rc::Rc;

pub(super) struct TupleRows {
    /// the memory of the other fields
    memory: OwnContext,
    state: *mut pg_sys::Tuplestorestate,
    /// the row type: one bytea
    descriptor: pg_sys::TupleDesc,
    slot: *mut pg_sys::TupleTableSlot,
    readers: c_int,
    may_use_disk: bool,
    /// set when the store writes a file
    used_disk: Rc<Cell<bool>>,
    /// the bytes of all rows added since the last `clear`
    bytes: usize,
}

impl TupleRows {
    pub fn new(may_use_disk: bool, used_disk: Rc<Cell<bool>>) -> Self {
        let memory = OwnContext::of_transaction(c"docshard rows");
        // SAFETY: within a transaction. What is made is in the context, which is dropped with the store.
        let (state, descriptor, slot) = memory.within(|| unsafe {
            let descriptor = row_type();
            let slot = pg_sys::MakeSingleTupleTableSlot(descriptor, &raw const pg_sys::TTSOpsMinimalTuple);
            let state = pg_sys::tuplestore_begin_heap(false, false, pg_sys::work_mem);
            // No reader moves backward or rewinds, so rows that all of them have read can be removed.
            pg_sys::tuplestore_set_eflags(state, 0);
            (state, descriptor, slot)
        });
        Self { memory, state, descriptor, slot, readers: 0, may_use_disk, used_disk, bytes: 0 }
    }
}

fn pointer(reader: usize) -> c_int {
    c_int::try_from(reader).unwrap_or(c_int::MAX)
}

impl Rows for TupleRows {
    fn add(&mut self, row: &[u8]) -> Result<()> {
        self.bytes = self.bytes.saturating_add(row.len());
        // SAFETY: the store has not been ended, and copies the datum.
        let in_memory = unsafe {
            let varlena = new_varlena(row);
            let (mut datum, mut is_null) = (pg_sys::Datum::from(varlena), false);
            pg_sys::tuplestore_putvalues(self.state, self.descriptor, &raw mut datum, &raw mut is_null);
            pg_sys::pfree(varlena.cast());
            pg_sys::tuplestore_in_memory(self.state)
        };
        if in_memory {
            return Ok(());
        }
        self.used_disk.set(true);
        if !self.may_use_disk && self.bytes > MAX_BYTES { Err(disk_is_needed()) } else { Ok(()) }
    }

    fn reader(&mut self) -> usize {
        self.readers += 1;
        let reader = match self.readers {
            // The store has one read pointer from the beginning.
            1 => 0,
            // SAFETY: the store has not been ended.
            _ => unsafe { pg_sys::tuplestore_alloc_read_pointer(self.state, 0) },
        };
        usize::try_from(reader).unwrap_or_default()
    }

    fn next(&mut self, reader: usize) -> Result<&[u8]> {
        // SAFETY: the store has not been ended. The row stays in the slot until the next row is read, and the returned slice
        // borrows `self` until then.
        unsafe {
            pg_sys::tuplestore_select_read_pointer(self.state, pointer(reader));
            if !pg_sys::tuplestore_gettupleslot(self.state, true, false, self.slot) {
                return Ok(&[]);
            }
            pg_sys::slot_getsomeattrs(self.slot, 1);
            Ok(detoasted_bytes(*(*self.slot).tts_values))
        }
    }

    fn follow(&mut self, reader: usize, other: usize) {
        // SAFETY: the store has not been ended, and has both readers.
        unsafe { pg_sys::tuplestore_copy_read_pointer(self.state, pointer(other), pointer(reader)) }
    }

    fn trim(&mut self) {
        // SAFETY: the store has not been ended. The slot's row is released first.
        unsafe {
            pg_sys::ExecClearTuple(self.slot);
            pg_sys::tuplestore_trim(self.state);
        }
    }

    fn clear(&mut self) {
        self.bytes = 0;
        // SAFETY: as above.
        unsafe {
            pg_sys::ExecClearTuple(self.slot);
            pg_sys::tuplestore_clear(self.state);
        }
    }
}

impl Drop for TupleRows {
    fn drop(&mut self) {
        // SAFETY: called only if the store's memory exists and its file is open. The slot and its descriptor are in the same memory, and
        // nothing else refers to them.
        self.memory.close(|| unsafe { pg_sys::tuplestore_end(self.state) });
    }
}
