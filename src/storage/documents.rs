//! Reads a table's documents by a sequential scan, without the executor. Only documents that are stored compressed or out of line
//! are copied.
//!
//! A step finds the matching documents of one page. They are valid while the page is pinned, so the guard that catches PostgreSQL's
//! errors is set once for each page, not for each row.
//!
//! The scan has a memory context of its own until it is dropped: see [`OwnContext`].

use super::counting::heap_getnextslot;
use super::matching::fetch_ahead;
use crate::pg::datum::jsonb::{is_plain, plain_bytes};
use crate::pg::error::Result;
use crate::pg::memory::context::OwnContext;
use crate::pg::stages::DocumentSource;
use crate::storage::open_readable;
use docshard_core::error::Error;
use docshard_core::query::filter::Filter;
use docshard_core::values::document::raw;
use pgrx::pg_sys;
use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::rc::Rc;

// Called for each row, inside one guard for all of a page.
unsafe extern "C-unwind" {
    fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, attnum: c_int);
    fn pg_detoast_datum(datum: *mut pg_sys::varlena) -> *mut pg_sys::varlena;
    fn pfree(pointer: *mut c_void);
}

/// A step ends when its detoasted documents (those that were stored compressed or out of line) have more bytes than this.
const MAX_DETOASTED: usize = 256 << 10;

/// A scan of the rows that are visible in the snapshot that was active when it was opened. The snapshot must outlive the scan, as a
/// statement's snapshot outlives the functions that the statement calls.
pub struct DocumentScan {
    /// the memory of the scan
    memory: OwnContext,
    /// the memory context of the current page's detoasted documents
    copies: pg_sys::MemoryContext,
    rel: pg_sys::Relation,
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    /// the attribute number of the documents
    column: c_int,
    filter: Option<Filter>,
    /// how many documents the filter has seen
    examined: Rc<Cell<u64>>,
    /// the documents of the current page
    page: Vec<*const pg_sys::varlena>,
    /// the index in `page` after the current document
    next: usize,
}

enum ScanFailure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

impl DocumentScan {
    /// Opens a scan of the documents in a column, counted from 0, that match a filter, for the current user. None if row-level
    /// security applies: see [`open_readable`].
    pub fn open(table: pg_sys::Oid, column: usize, filter: Option<Filter>) -> Option<Self> {
        // SAFETY: the table, a heap with a jsonb column there that is never null, exists (the caller looked it up in this
        // transaction). What is opened is closed when this is dropped, or by PostgreSQL's abort.
        unsafe {
            let rel = open_readable(table)?;
            let memory = OwnContext::of_transaction(c"docshard scan");
            let copies = memory.child(c"docshard scan, copies");
            let (scan, slot) = memory.within(|| {
                let scan = pg_sys::table_beginscan(rel, pg_sys::GetActiveSnapshot(), 0, null_mut());
                (scan, pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, pg_sys::table_slot_callbacks(rel)))
            });
            let column = column as c_int + 1;
            let (examined, page) = (Rc::default(), Vec::new());
            Some(Self { memory, copies, rel, scan, slot, column, filter, examined, page, next: 0 })
        }
    }

    /// The number of documents that the scan has examined so far.
    pub fn examined(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.examined)
    }

    /// Reads the next page that has matching documents.
    fn read_page(&mut self) -> Result<()> {
        self.page.clear();
        self.next = 0;
        let Self { copies, scan, slot, column, .. } = *self;
        let (filter, page) = (self.filter.as_ref(), &mut self.page);
        let mut end = None;
        let mut examined = 0;
        // SAFETY: relation, scan and slot are open. No value with a destructor in the guarded loop lives across a call of
        // PostgreSQL, whose ERROR would skip the destructor. No panic leaves the loop, as it would skip the end of the guard.
        unsafe {
            pg_sys::MemoryContextReset(copies);
            let former = pg_sys::MemoryContextSwitchTo(copies);
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let heap: pg_sys::HeapScanDesc = scan.cast();
                let mut copied = 0;
                while heap_getnextslot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
                    fetch_ahead(heap);
                    examined += 1;
                    slot_getsomeattrs_int(slot, column);
                    let stored: *mut pg_sys::varlena = (*(*slot).tts_values.add(column as usize - 1)).cast_mut_ptr();
                    let document = if is_plain(stored) { stored } else { pg_detoast_datum(stored) };
                    let matches = match filter {
                        None => Ok(Ok(true)),
                        Some(filter) => catch_unwind(AssertUnwindSafe(|| {
                            raw::document(plain_bytes(document)).map_or(Ok(false), |found| filter.evaluate(found))
                        })),
                    };
                    match matches {
                        Ok(Ok(true)) => {
                            page.push(document.cast_const());
                            copied += if document == stored { 0 } else { plain_bytes(document).len() };
                        }
                        Ok(Ok(false)) if document != stored => pfree(document.cast()),
                        Ok(Ok(false)) => {}
                        Ok(Err(error)) => end = Some(ScanFailure::Error(error)),
                        Err(panic) => end = Some(ScanFailure::Panic(panic)),
                    }
                    // After a page's last row, the next call would release the page, which has the found documents.
                    let is_last = (*heap).rs_cindex as u64 + 1 >= (*heap).rs_ntuples as u64;
                    if end.is_some() || !page.is_empty() && (is_last || copied > MAX_DETOASTED) {
                        break;
                    }
                }
            });
            pg_sys::MemoryContextSwitchTo(former);
        }
        self.examined.set(self.examined.get() + examined);
        match end {
            None => Ok(()),
            Some(ScanFailure::Error(error)) => Err(error),
            Some(ScanFailure::Panic(panic)) => resume_unwind(panic),
        }
    }
}

impl DocumentSource for DocumentScan {
    fn advance(&mut self) -> Result<bool> {
        if self.next == self.page.len() {
            self.read_page()?;
        }
        self.next += 1;
        Ok(self.next <= self.page.len())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: a plain varlena of the page that is pinned, or a copy that is there until the next page is read.
        self.next.checked_sub(1).and_then(|at| self.page.get(at)).map_or(&[], |found| unsafe { plain_bytes(*found) })
    }
}

impl Drop for DocumentScan {
    fn drop(&mut self) {
        // SAFETY: called only if slot, scan and relation are open. The table's lock is kept until the transaction ends.
        self.memory.close(|| unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::table_endscan(self.scan);
            pg_sys::table_close(self.rel, pg_sys::NoLock as c_int);
        });
    }
}
