//! Counts the documents that match a filter, by a sequential scan without the executor, with as many parallel workers as PostgreSQL's
//! planner would use. In the executor, most of the time would be spent on passing rows from node to node and on calling functions.

use super::counting::heap_getnextslot;
use crate::pg::datum::jsonb::{is_plain, plain_bytes};
use crate::pg::error::{Error, Raise as _, Result};
use crate::storage::open_readable;
use docshard_core::query::filter::Filter;
use docshard_core::query::specification;
use docshard_core::values::document::raw;
use pgrx::{pg_guard, pg_sys};
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

// Called for each row, inside one guard for all of them.
unsafe extern "C-unwind" {
    fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, attnum: c_int);
    fn pg_detoast_datum(datum: *mut pg_sys::varlena) -> *mut pg_sys::varlena;
    fn pfree(pointer: *mut c_void);
}

/// The shared state of the processes of one count. The filter's text follows it.
#[repr(C)]
struct Shared {
    table: pg_sys::Oid,
    /// the attribute number of the documents
    column: c_int,
    text_length: usize,
    /// the rows that the workers have counted
    counted: AtomicU64,
}

// Keys of the shared memory's table of contents.
const SHARED: u64 = 1;
const SCAN: u64 = 2;

/// Counts the visible rows whose document, in the column with that attribute number, matches a filter. None if row-level security applies
/// to the current user: see [`open_readable`].
pub fn rows(table: pg_sys::Oid, column: c_int, text: &str) -> Result<Option<u64>> {
    let filter = read(text)?;
    // SAFETY: the table, a heap with a jsonb column there, exists (the caller looked it up in this transaction); all that
    // is opened is closed here, or by PostgreSQL's abort if an ERROR unwinds.
    unsafe {
        let Some(rel) = open_readable(table) else { return Ok(None) };
        let count = match workers(rel) {
            0 => {
                let scan = pg_sys::table_beginscan(rel, pg_sys::GetActiveSnapshot(), 0, null_mut());
                search(rel, scan, column, &filter)
            }
            workers => with_workers(rel, column, (text, &filter), workers),
        };
        pg_sys::table_close(rel, pg_sys::AccessShareLock as c_int);
        count.map(Some)
    }
}

fn read(text: &str) -> Result<Filter> {
    Filter::read(&specification::parse(text)?)
}

/// Returns the number of workers that PostgreSQL's planner would use.
///
/// # Safety
/// The relation is open.
unsafe fn workers(rel: pg_sys::Relation) -> c_int {
    // SAFETY: promised by the caller; the planner's function reads these two fields alone.
    unsafe {
        if pg_sys::IsInParallelMode() || pg_sys::max_parallel_workers_per_gather == 0 {
            return 0;
        }
        let mut planned = pg_sys::RelOptInfo {
            reloptkind: pg_sys::RelOptKind::RELOPT_BASEREL,
            rel_parallel_workers: -1,
            ..pg_sys::RelOptInfo::default()
        };
        let pages = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        pg_sys::compute_parallel_worker(&mut planned, f64::from(pages), -1.0, pg_sys::max_parallel_workers_per_gather)
    }
}

/// Scans the table together with workers. After an ERROR or an early return the transaction's abort cleans up.
///
/// # Safety
/// The same as for [`search`]; the filter must be the one that the text describes.
unsafe fn with_workers(
    rel: pg_sys::Relation,
    column: c_int,
    (text, filter): (&str, &Filter),
    workers: c_int,
) -> Result<u64> {
    // SAFETY: promised by the caller; the calls are in the order that PostgreSQL's README.parallel asks for. Both chunks are
    // as large as estimated, and the shared memory is there until the context is destroyed.
    unsafe {
        pg_sys::EnterParallelMode();
        let context =
            pg_sys::CreateParallelContext(c"docshard".as_ptr(), c"docshard_match_in_parallel".as_ptr(), workers);
        let snapshot = pg_sys::GetActiveSnapshot();
        let sizes = [size_of::<Shared>() + text.len(), pg_sys::table_parallelscan_estimate(rel, snapshot)];
        for size in sizes {
            let estimator = &mut (*context).estimator;
            estimator.space_for_chunks += size.next_multiple_of(pg_sys::ALIGNOF_BUFFER as usize);
            estimator.number_of_keys += 1;
        }
        pg_sys::InitializeParallelDSM(context);
        let toc = (*context).toc;
        let shared: *mut Shared = pg_sys::shm_toc_allocate(toc, sizes[0]).cast();
        shared.write(Shared { table: (*rel).rd_id, column, text_length: text.len(), counted: AtomicU64::new(0) });
        std::ptr::copy_nonoverlapping(text.as_ptr(), shared.add(1).cast(), text.len());
        pg_sys::shm_toc_insert(toc, SHARED, shared.cast());
        let parts: pg_sys::ParallelTableScanDesc = pg_sys::shm_toc_allocate(toc, sizes[1]).cast();
        pg_sys::table_parallelscan_initialize(rel, parts, snapshot);
        pg_sys::shm_toc_insert(toc, SCAN, parts.cast());

        pg_sys::LaunchParallelWorkers(context);
        let own = search(rel, pg_sys::table_beginscan_parallel(rel, parts), column, filter)?;
        pg_sys::WaitForParallelWorkersToFinish(context);
        let count = own + (*shared).counted.load(Ordering::Acquire);
        pg_sys::DestroyParallelContext(context);
        pg_sys::ExitParallelMode();
        Ok(count)
    }
}

/// The workers' entry point, in the leader's transaction and with its snapshot.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn docshard_match_in_parallel(_segment: *mut pg_sys::dsm_segment, toc: *mut pg_sys::shm_toc) {
    // SAFETY: PostgreSQL calls this with the leader's memory, in which `with_workers` has put both chunks. The memory stays
    // while a worker runs; the leader has the table's lock, too.
    let searched = unsafe {
        let shared: *const Shared = pg_sys::shm_toc_lookup(toc, SHARED, false).cast();
        let parts: pg_sys::ParallelTableScanDesc = pg_sys::shm_toc_lookup(toc, SCAN, false).cast();
        let text = std::slice::from_raw_parts(shared.add(1).cast::<u8>(), (*shared).text_length);
        read(std::str::from_utf8_unchecked(text)).and_then(|filter| {
            let rel = pg_sys::table_open((*shared).table, pg_sys::AccessShareLock as c_int);
            let count = search(rel, pg_sys::table_beginscan_parallel(rel, parts), (*shared).column, &filter)?;
            pg_sys::table_close(rel, pg_sys::AccessShareLock as c_int);
            (*shared).counted.fetch_add(count, Ordering::Release);
            Ok(())
        })
    };
    searched.unwrap_or_else(|error| error.raise());
}

/// Prefetches the row after the next one of the scan's page into the processor's cache: evaluating a row takes less time than reading one
/// from memory.
///
/// # Safety
/// The scan is one of a heap, and has just yielded a row.
#[inline]
pub(super) unsafe fn fetch_ahead(scan: pg_sys::HeapScanDesc) {
    /// The size of a cache line.
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: promised by the caller: the page is pinned, and the positions are those of rows on it. Nothing is read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = (*scan).rs_cindex + 2;
        if at < (*scan).rs_ntuples && (*scan).rs_cbuf > 0 {
            let page = pg_sys::BufferBlocks.add(((*scan).rs_cbuf - 1) as usize * pg_sys::BLCKSZ as usize);
            let header: *const pg_sys::PageHeaderData = page.cast();
            let position = usize::from((*scan).rs_vistuples[at as usize]) - 1;
            let item = *(&raw const (*header).pd_linp).cast::<pg_sys::ItemIdData>().add(position);
            let row = page.add(item.lp_off() as usize);
            for line in 0..(item.lp_len() as usize).div_ceil(LINE) {
                _mm_prefetch::<_MM_HINT_T0>(row.add(line * LINE).cast());
            }
        }
    }
}

enum ScanFailure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// Counts the matching rows of a scan, and ends the scan.
///
/// # Safety
/// The table is open, the scan reads it, and the column with this attribute number is a jsonb that is never null.
unsafe fn search(rel: pg_sys::Relation, scan: pg_sys::TableScanDesc, column: c_int, filter: &Filter) -> Result<u64> {
    // SAFETY: promised by the caller. No value with a destructor in the guarded loop lives across a call of PostgreSQL, whose ERROR would
    // skip the destructor. No panic leaves the loop, as it would skip the end of the guard.
    unsafe {
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, pg_sys::table_slot_callbacks(rel));
        let mut end = None;
        let count = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut count = 0;
            while heap_getnextslot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
                fetch_ahead(scan.cast());
                slot_getsomeattrs_int(slot, column);
                let stored: *mut pg_sys::varlena = (*(*slot).tts_values.add(column as usize - 1)).cast_mut_ptr();
                let document = if is_plain(stored) { stored } else { pg_detoast_datum(stored) };
                let answer = catch_unwind(AssertUnwindSafe(|| {
                    raw::document(plain_bytes(document)).map_or(Ok(false), |document| filter.evaluate(document))
                }));
                match answer {
                    Ok(Ok(matches)) => count += u64::from(matches),
                    Ok(Err(error)) => end = Some(ScanFailure::Error(error)),
                    Err(panic) => end = Some(ScanFailure::Panic(panic)),
                }
                if document != stored {
                    pfree(document.cast());
                }
                if end.is_some() {
                    break;
                }
            }
            count
        });
        match end {
            None => {
                pg_sys::ExecDropSingleTupleTableSlot(slot);
                pg_sys::table_endscan(scan);
                Ok(count)
            }
            Some(ScanFailure::Error(error)) => Err(error),
            Some(ScanFailure::Panic(panic)) => resume_unwind(panic),
        }
    }
}
