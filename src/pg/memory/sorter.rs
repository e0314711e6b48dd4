//! A sorter for the stages of pipelines, by PostgreSQL's tuplesort: in memory up to `work_mem`, and in temporary files beyond.
//!
//! A row is one bytea: the key, the value, and the key's length. As no key is a proper prefix of another, rows are sorted by key,
//! and rows of equal keys by value. Rows are sorted as tuples of one column: PostgreSQL 18's sort of datums does not count the datums'
//! memory towards `work_mem`.
//!
//! The sort is in a memory context of its own ([`OwnContext`]), and is ended when it is dropped, which closes its files. Where the
//! transaction or subtransaction fails, PostgreSQL closes the files, and only the memory is freed here.

use super::context::OwnContext;
use crate::pg::datum::jsonb::{detoasted_bytes, new_varlena};
use docshard_core::error::{Error, Kind, Result};
use docshard_core::query::stage::Sorter;
use pgrx::pg_sys;
use std::cell::Cell;
use std::rc::Rc;

/// With `allowDiskUse: false`, the most bytes that a sort or a row store may hold: MongoDB's limit. Beyond `work_mem` PostgreSQL writes
/// temporary files even then.
pub(super) const MAX_BYTES: usize = 100 << 20;

/// Returns the error of a stage that needs temporary files but may not use them.
pub(super) fn disk_is_needed() -> Error {
    let message = format!("a stage used more than {MAX_BYTES} bytes, and allowDiskUse is false");
    Error::new(Kind::QueryExceededMemoryLimitNoDiskUseAllowed, message).with_hint("Pass allowDiskUse: true.")
}

pub(super) struct TupleSorter {
    /// the memory of the other fields
    memory: OwnContext,
    state: *mut pg_sys::Tuplesortstate,
    /// holds a row that is added
    added: *mut pg_sys::TupleTableSlot,
    /// holds a row that is read, which belongs to `state`
    found: *mut pg_sys::TupleTableSlot,
    sorted: bool,
    /// the largest number of rows to return; PostgreSQL raises an error if more are read
    bound: Option<i64>,
    /// how many rows it has returned
    returned: i64,
    /// the bytes of all rows that were added
    added_bytes: usize,
    /// beyond this, `add` returns an error
    max_added_bytes: usize,
    /// set when the sort writes files
    used_disk: Rc<Cell<bool>>,
    /// the current row
    row: Vec<u8>,
    key_length: usize,
}

/// The number of bytes that store a key's length.
const LENGTH: usize = size_of::<u32>();

/// Creates the row type of sorts and row stores in the current memory context: one bytea.
///
/// # Safety
/// Within a transaction.
pub(super) unsafe fn row_type() -> pg_sys::TupleDesc {
    // SAFETY: promised by the caller.
    unsafe {
        let descriptor = pg_sys::CreateTemplateTupleDesc(1);
        pg_sys::TupleDescInitEntry(descriptor, 1, std::ptr::null(), pg_sys::BYTEAOID, -1, 0);
        descriptor
    }
}

impl TupleSorter {
    pub fn new(bound: Option<i64>, rereadable: bool, max_added_bytes: usize, used_disk: Rc<Cell<bool>>) -> Self {
        let mut options = if rereadable { pg_sys::TUPLESORT_RANDOMACCESS } else { pg_sys::TUPLESORT_NONE };
        if bound.is_some() {
            options |= pg_sys::TUPLESORT_ALLOWBOUNDED;
        }
        let memory = OwnContext::of_transaction(c"docshard sort");
        // SAFETY: within a transaction. What is made is in the context, which is dropped with the sort.
        let (state, added, found) = memory.within(|| unsafe {
            let descriptor = row_type();
            let (mut column, mut collation, mut nulls_first) = (1, pg_sys::InvalidOid, false);
            let mut less = pg_sys::Oid::from(pg_sys::ByteaLessOperator);
            let state = pg_sys::tuplesort_begin_heap(
                descriptor,
                1,
                &raw mut column,
                &raw mut less,
                &raw mut collation,
                &raw mut nulls_first,
                pg_sys::work_mem,
                std::ptr::null_mut(),
                options.cast_signed(),
            );
            if let Some(bound) = bound {
                pg_sys::tuplesort_set_bound(state, bound);
            }
            let added = pg_sys::MakeSingleTupleTableSlot(descriptor, &raw const pg_sys::TTSOpsVirtual);
            let found = pg_sys::MakeSingleTupleTableSlot(descriptor, &raw const pg_sys::TTSOpsMinimalTuple);
            (state, added, found)
        });
        Self {
            memory,
            state,
            added,
            found,
            sorted: false,
            bound,
            returned: 0,
            added_bytes: 0,
            max_added_bytes,
            used_disk,
            row: Vec::new(),
            key_length: 0,
        }
    }
}

impl Sorter for TupleSorter {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.row.clear();
        self.row.extend(key);
        self.row.extend(value);
        self.row.extend(u32::try_from(key.len()).unwrap_or(u32::MAX).to_ne_bytes());
        self.added_bytes = self.added_bytes.saturating_add(self.row.len());
        if self.added_bytes > self.max_added_bytes {
            return Err(disk_is_needed());
        }
        // SAFETY: the sort has not been ended, and copies the row.
        unsafe {
            let varlena = new_varlena(&self.row);
            pg_sys::ExecClearTuple(self.added);
            *(*self.added).tts_values = pg_sys::Datum::from(varlena);
            *(*self.added).tts_isnull = false;
            pg_sys::ExecStoreVirtualTuple(self.added);
            pg_sys::tuplesort_puttupleslot(self.state, self.added);
            pg_sys::pfree(varlena.cast());
        }
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
        self.returned = 0;
        // SAFETY: the sort has not been ended.
        unsafe {
            if self.sorted {
                pg_sys::tuplesort_rescan(self.state);
            } else {
                pg_sys::tuplesort_performsort(self.state);
                self.sorted = true;
                let mut statistics = pg_sys::TuplesortInstrumentation::default();
                pg_sys::tuplesort_get_stats(self.state, &mut statistics);
                if statistics.spaceType == pg_sys::TuplesortSpaceType::SORT_SPACE_TYPE_DISK {
                    self.used_disk.set(true);
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        self.row.clear();
        self.key_length = 0;
        if self.bound.is_some_and(|bound| self.returned >= bound) {
            return Ok(false);
        }
        self.returned += 1;
        // SAFETY: the sort has been performed and not been ended. The row stays in place until the next one is read.
        unsafe {
            if !pg_sys::tuplesort_gettupleslot(self.state, true, false, self.found, std::ptr::null_mut()) {
                return Ok(false);
            }
            pg_sys::slot_getsomeattrs(self.found, 1);
            self.row.extend(detoasted_bytes(*(*self.found).tts_values));
        }
        let length = self.row.get(self.row.len().saturating_sub(LENGTH)..).and_then(|length| length.try_into().ok());
        self.key_length = length.map_or(0, |length| u32::from_ne_bytes(length) as usize);
        Ok(true)
    }

    fn key(&self) -> &[u8] {
        self.row.get(..self.key_length).unwrap_or_default()
    }

    fn value(&self) -> &[u8] {
        self.row.get(self.key_length..self.row.len().saturating_sub(LENGTH)).unwrap_or_default()
    }
}

impl Drop for TupleSorter {
    fn drop(&mut self) {
        // SAFETY: called only if the sort's memory exists and its files are open.
        self.memory.close(|| unsafe { pg_sys::tuplesort_end(self.state) });
    }
}
