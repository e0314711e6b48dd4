//! An index access method for unique indexes with several keys for each row.
//!
//! It uses the pages, WAL and vacuum of PostgreSQL's b-tree. The indexed value is a bytea of packed keys
//! ([`docshard_core::query::index::unique`]), each of which becomes an entry that must be unique. The planner never uses such an index, as
//! queries do not contain the packed value. PostgreSQL is not told that the index is unique: for PostgreSQL that would mean that the whole
//! packed value is unique, and `INSERT … ON CONFLICT` supports only PostgreSQL's own b-trees.
//!
//! Invariant: each row has one entry for each of its keys, which points to its HOT chain. Of two transactions that insert one key, the
//! second waits for the first in the b-tree. The keys of a row are inserted in order, so that rows with common keys do not deadlock.

use crate::pg::datum::jsonb::{detoasted_bytes, new_varlena};
use crate::pg::error::Raise as _;
use crate::pg::version;
use docshard_core::error::{Kind, error};
use docshard_core::query::index::unique::unpack;
use pgrx::{PgBox, pg_guard, pg_sys};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The name of the access method.
const NAME: &CStr = c"docshard_unique";

// Not in pgrx's bindings; called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn _bt_initmetapage(page: pg_sys::Page, root: pg_sys::BlockNumber, level: u32, all_equal_image: bool);
}

fn b_tree() -> &'static pg_sys::IndexAmRoutine {
    static B_TREE: OnceLock<pg_sys::IndexAmRoutine> = OnceLock::new();
    // SAFETY: the b-tree is part of PostgreSQL; the result is copied.
    B_TREE.get_or_init(|| unsafe { *pg_sys::GetIndexAmRoutineByAmId(pg_sys::BTREE_AM_OID, false) })
}

/// The version of the calling convention, which PG_FUNCTION_INFO_V1 would declare.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_docshard_unique_handler() -> *const pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn docshard_unique_handler(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    let routine = pg_sys::IndexAmRoutine {
        // A row may have several entries, so no plan may read the index in its order or as a whole.
        amcanorder: false,
        amoptionalkey: false,
        amgetbitmap: None,
        amcanunique: false,
        amcanmulticol: false,
        amclusterable: false,
        amcanparallel: false,
        amcaninclude: false,
        ambuild: Some(build),
        aminsert: Some(insert),
        amcanreturn: None,
        amvalidate: Some(validate),
        amadjustmembers: None,
        ambuildphasename: None,
        ..version::plain_b_tree(*b_tree())
    };
    // SAFETY: a node like the b-tree's own, in the present memory context.
    let node = unsafe { PgBox::<pg_sys::IndexAmRoutine>::alloc_node(pg_sys::NodeTag::T_IndexAmRoutine) };
    let node = node.into_pg();
    // SAFETY: just allocated.
    unsafe { *node = routine };
    pg_sys::Datum::from(node)
}

#[pg_guard]
unsafe extern "C-unwind" fn validate(_class: pg_sys::Oid) -> bool {
    true
}

/// Returns the keys in an indexed value.
///
/// # Safety
/// The datum is a bytea that is not null, and outlives what is returned.
pub(super) unsafe fn keys_in<'a>(value: pg_sys::Datum) -> Vec<&'a [u8]> {
    // SAFETY: promised by the caller.
    let packed = unsafe { detoasted_bytes(value) };
    let malformed = || error!(Kind::BadValue, "malformed value of a unique index");
    unpack(packed).unwrap_or_else(|| malformed().raise())
}

/// The state for inserting keys.
struct Entering {
    index: pg_sys::Relation,
    table: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    routine: pg_sys::aminsert_function,
}

impl Entering {
    /// Inserts a key of the row at a place. A duplicate raises 23505, unless the row is dead (`gone`). `unchanged`: an update of the row
    /// did not change the key.
    ///
    /// # Safety
    /// The relations are open, the index is one of this method's.
    unsafe fn enter(&self, key: &[u8], mut place: pg_sys::ItemPointerData, gone: bool, unchanged: bool) {
        use pg_sys::IndexUniqueCheck::{UNIQUE_CHECK_NO, UNIQUE_CHECK_YES};
        let insert = self.routine.expect("the b-tree inserts");
        let check = if gone { UNIQUE_CHECK_NO } else { UNIQUE_CHECK_YES };
        // SAFETY: promised by the caller; one column, not null. The key is freed at once: a build enters many.
        unsafe {
            let value = new_varlena(key);
            let (mut datum, mut null) = (pg_sys::Datum::from(value), false);
            let Self { index, table, info, .. } = *self;
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                insert(index, &mut datum, &mut null, &mut place, table, check, unchanged, info)
            });
            pg_sys::pfree(value.cast());
        }
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments, reason = "PostgreSQL defines the signature")]
unsafe extern "C-unwind" fn insert(
    index: pg_sys::Relation,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    place: pg_sys::ItemPointer,
    table: pg_sys::Relation,
    _check: pg_sys::IndexUniqueCheck::Type,
    unchanged: bool,
    info: *mut pg_sys::IndexInfo,
) -> bool {
    // SAFETY: PostgreSQL calls this with a row of the table, and one value, as the method has no more columns.
    unsafe {
        if !*nulls {
            let entering = Entering { index, table, info, routine: b_tree().aminsert };
            for key in keys_in(*values) {
                entering.enter(key, *place, false, unchanged);
            }
        }
        false
    }
}

/// Keys that a build has not yet inserted. They are collected because inserting keys in order is much faster.
struct Pending {
    entering: Entering,
    /// a key, the place of its row, and true if the row is dead
    keys: Vec<(Vec<u8>, pg_sys::ItemPointerData, bool)>,
    /// the memory that the keys take
    bytes: usize,
    /// the keys are inserted when they take this many bytes
    limit: usize,
    /// how many keys were inserted
    entered: f64,
}

impl Pending {
    /// # Safety
    /// The same as for [`Entering::enter`].
    unsafe fn flush(&mut self) {
        self.keys.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        for (key, place, gone) in self.keys.drain(..) {
            pgrx::check_for_interrupts!();
            // SAFETY: promised by the caller.
            unsafe { self.entering.enter(&key, place, gone, false) };
            self.entered += 1.0;
        }
        self.bytes = 0;
    }
}

/// The memory that a pending key takes in addition to its bytes.
const PENDING_BYTES: usize = 64;

#[pg_guard]
unsafe extern "C-unwind" fn found(
    _index: pg_sys::Relation,
    place: pg_sys::ItemPointer,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    alive: bool,
    state: *mut c_void,
) {
    // SAFETY: called by the scan that `build` begins, with its state, for a row of the table.
    unsafe {
        let pending = &mut *state.cast::<Pending>();
        if *nulls {
            return;
        }
        for key in keys_in(*values) {
            pending.bytes += key.len() + PENDING_BYTES;
            pending.keys.push((key.to_vec(), *place, !alive));
        }
        if pending.bytes >= pending.limit {
            pending.flush();
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn build(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
) -> *mut pg_sys::IndexBuildResult {
    // SAFETY: PostgreSQL calls this with a table and an index of it, which is empty, both open and locked.
    unsafe {
        if pg_sys::RelationGetNumberOfBlocksInFork(index, pg_sys::ForkNumber::MAIN_FORKNUM) != 0 {
            error!(Kind::InternalError, "an index that is to be built has pages already").raise();
        }
        begin(index);
        let entering = Entering { index, table, info, routine: b_tree().aminsert };
        let limit = usize::try_from(pg_sys::maintenance_work_mem).unwrap_or(0) * 1024;
        let mut pending = Pending { entering, keys: Vec::new(), bytes: 0, limit, entered: 0.0 };
        let scan = (*(*table).rd_tableam).index_build_range_scan.expect("a table can be scanned for an index");
        let state = (&raw mut pending).cast();
        let rows = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let (first, all) = (0, pg_sys::InvalidBlockNumber);
            scan(table, index, info, true, false, true, first, all, Some(found), state, null_mut())
        });
        pending.flush();
        let mut result = PgBox::<pg_sys::IndexBuildResult>::alloc0();
        (result.heap_tuples, result.index_tuples) = (rows, pending.entered);
        result.into_pg()
    }
}

/// Writes the first page of a b-tree without entries.
///
/// # Safety
/// The index is open and has no pages.
unsafe fn begin(index: pg_sys::Relation) {
    const NO_ROOT: pg_sys::BlockNumber = 0;
    // SAFETY: promised by the caller; WAL is written in a critical section, in which nothing raises.
    unsafe {
        let fork = pg_sys::ForkNumber::MAIN_FORKNUM;
        let mode = pg_sys::ReadBufferMode::RBM_NORMAL;
        let buffer = pg_sys::ReadBufferExtended(index, fork, pg_sys::InvalidBlockNumber, mode, null_mut());
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as c_int);
        let page = pg_sys::BufferGetPage(buffer);
        pg_sys::CritSectionCount += 1;
        // Equal keys have the same bytes, so deduplication is safe.
        pg_sys::ffi::pg_guard_ffi_boundary(|| _bt_initmetapage(page, NO_ROOT, 0, true));
        pg_sys::MarkBufferDirty(buffer);
        if needs_wal(index) {
            pg_sys::log_newpage_buffer(buffer, true);
        }
        pg_sys::CritSectionCount -= 1;
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}

/// PostgreSQL's `RelationNeedsWAL`: with `wal_level = minimal`, a file of this transaction is synced instead.
///
/// # Safety
/// The relation is open.
unsafe fn needs_wal(rel: pg_sys::Relation) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let kept = pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_REPLICA as c_int;
        (*(*rel).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT
            && (kept || !version::has_new_file(rel))
    }
}

/// True if an index is one of this method's.
///
/// # Safety
/// The index is open.
pub(super) unsafe fn is_unique(index: pg_sys::Relation) -> bool {
    // SAFETY: promised by the caller; the catalog knows the method by its name.
    unsafe { (*(*index).rd_rel).relam == pg_sys::get_am_oid(NAME.as_ptr(), true) }
}
