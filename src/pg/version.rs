//! Hides the differences between PostgreSQL 15, 17 and 18 from the rest of this crate. No other file asks for the version.
//!
//! Most functions have the names and the safety conditions of PostgreSQL's functions. Arguments that are the same in every call are left
//! out.

use pgrx::pg_sys;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

// Not in pgrx's bindings; called with a guard where an ERROR is possible.
unsafe extern "C-unwind" {
    #[cfg(feature = "pg15")]
    fn pq_buffer_has_data() -> bool;
    #[cfg(not(feature = "pg15"))]
    fn pq_buffer_remaining_data() -> isize;
    #[cfg_attr(not(feature = "pg15"), link_name = "raw_expression_tree_walker_impl")]
    fn raw_expression_tree_walker(node: *mut pg_sys::Node, visit: Visit, context: *mut c_void) -> bool;
}

/// The transaction's number in this process.
pub fn local_transaction() -> u32 {
    // SAFETY: this process's own entry, which is there as long as the process.
    let own = unsafe { &*pg_sys::MyProc };
    cfg_select! {
        feature = "pg15" => own.lxid,
        _ => own.vxid.lxid,
    }
}

/// True if input that follows the client's present message was received already.
pub(in crate::pg) fn has_unread_input() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe {
        cfg_select! {
            feature = "pg15" => pq_buffer_has_data(),
            _ => pq_buffer_remaining_data() > 0,
        }
    }
}

pub(in crate::pg) type Visit = unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool;

/// # Safety
/// A statement's node, as the parser has made it; the context is of the type that `visit` expects.
pub(in crate::pg) unsafe fn walk_raw_expressions(node: *mut pg_sys::Node, visit: Visit, context: *mut c_void) -> bool {
    // SAFETY: promised by the caller.
    unsafe { raw_expression_tree_walker(node, visit, context) }
}

/// # Safety
/// In a process that PostgreSQL has started; the handler is one for signals.
pub(in crate::pg) unsafe fn handle_signal(signal: u32, handler: unsafe extern "C-unwind" fn(c_int)) {
    let signal = signal as c_int;
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg18" => pg_sys::pqsignal_be(signal, Some(handler)),
            _ => {
                pg_sys::pqsignal(signal, Some(handler));
            }
        }
    }
}

/// # Safety
/// The name ends with a zero byte.
pub(in crate::pg) unsafe fn qualified_name(name: *const std::ffi::c_char) -> *mut pg_sys::List {
    // SAFETY: promised by the caller. Without a context for errors they are raised.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::stringToQualifiedNameList(name),
            _ => pg_sys::stringToQualifiedNameList(name, null_mut()),
        }
    }
}

/// Checks whether the user may execute the function.
///
/// # Safety
/// In a transaction.
pub(in crate::pg) unsafe fn may_execute(function: pg_sys::Oid, user: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let wanted = pg_sys::AclMode::from(pg_sys::ACL_EXECUTE);
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::pg_proc_aclcheck(function, user, wanted),
            _ => pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, user, wanted),
        }
    }
}

/// True if the user may use the objects of a schema.
///
/// # Safety
/// In a transaction.
pub(in crate::pg) unsafe fn may_use_schema(schema: pg_sys::Oid, user: pg_sys::Oid) -> bool {
    let wanted = pg_sys::AclMode::from(pg_sys::ACL_USAGE);
    // SAFETY: promised by the caller.
    let answer = unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::pg_namespace_aclcheck(schema, user, wanted),
            _ => pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, user, wanted),
        }
    };
    answer == pg_sys::AclResult::ACLCHECK_OK
}

/// The columns of a row description.
///
/// # Safety
/// The description lives as long as the result is used.
pub unsafe fn attributes<'a>(rows: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: promised by the caller; PostgreSQL 18 has a compact form of all columns before them.
    unsafe {
        let count = (*rows).natts as usize;
        let first = cfg_select! {
            feature = "pg18" => (*rows).compact_attrs.as_ptr().add(count).cast(),
            _ => (*rows).attrs.as_ptr(),
        };
        std::slice::from_raw_parts(first, count)
    }
}

/// Creates a set for this many events, which lives until it is freed.
///
/// # Safety
/// In a backend's main thread.
pub unsafe fn wait_event_set(events: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: promised by the caller. Without a resource owner, a set is allocated in TopMemoryContext.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, events),
            _ => pg_sys::CreateWaitEventSet(null_mut(), events),
        }
    }
}

/// True if this process has the lock, in this mode.
///
/// # Safety
/// A well-formed tag.
pub unsafe fn holds_lock(tag: &pg_sys::LOCKTAG, mode: pg_sys::LOCKMODE) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::LockHeldByMe(tag, mode),
            _ => pg_sys::LockHeldByMe(tag, mode, false),
        }
    }
}

/// # Safety
/// The same as for PostgreSQL's function of this name.
pub unsafe fn index_beginscan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: usize,
) -> pg_sys::IndexScanDesc {
    let keys = keys as c_int;
    // SAFETY: promised by the caller; null: the scan counts nothing for EXPLAIN.
    unsafe {
        cfg_select! {
            feature = "pg18" => pg_sys::index_beginscan(table, index, snapshot, null_mut(), keys, 0),
            _ => pg_sys::index_beginscan(table, index, snapshot, keys, 0),
        }
    }
}

/// The properties of an access method that uses the b-tree's code, without what the b-tree can do since PostgreSQL 17: build an index
/// in parallel, and compare by operators of several types.
pub fn plain_b_tree(b_tree: pg_sys::IndexAmRoutine) -> pg_sys::IndexAmRoutine {
    cfg_select! {
        feature = "pg15" => b_tree,
        feature = "pg17" => pg_sys::IndexAmRoutine { amcanbuildparallel: false, ..b_tree },
        _ => pg_sys::IndexAmRoutine {
            amcanbuildparallel: false,
            amconsistentequality: false,
            amconsistentordering: false,
            amtranslatestrategy: None,
            amtranslatecmptype: None,
            ..b_tree
        },
    }
}

/// True if the relation's file was created by the present transaction.
///
/// # Safety
/// The relation is open.
pub unsafe fn has_new_file(rel: pg_sys::Relation) -> bool {
    // SAFETY: promised by the caller.
    let rel = unsafe { &*rel };
    let first = cfg_select! {
        feature = "pg15" => rel.rd_firstRelfilenodeSubid,
        _ => rel.rd_firstRelfilelocatorSubid,
    };
    rel.rd_createSubid != 0 || first != 0
}

/// The relation's cached set of columns that its indexes use, by which PostgreSQL decides whether an update is heap-only. None if the set
/// was not computed yet, or was invalidated. From PostgreSQL 16 on, the set lacks columns that only summarizing indexes (BRIN) use.
///
/// # Safety
/// The relation is open.
pub unsafe fn indexed_columns<'a>(rel: pg_sys::Relation) -> Option<&'a mut *mut pg_sys::Bitmapset> {
    // SAFETY: promised by the caller.
    let rel = unsafe { &mut *rel };
    cfg_select! {
        feature = "pg15" => (!rel.rd_indexattr.is_null()).then_some(&mut rel.rd_indexattr),
        _ => rel.rd_attrsvalid.then_some(&mut rel.rd_hotblockingattr),
    }
}

/// Computes [`indexed_columns`].
///
/// # Safety
/// The relation is open.
pub unsafe fn compute_indexed_columns(rel: pg_sys::Relation) {
    use pg_sys::IndexAttrBitmapKind as Kind;
    let kind = cfg_select! {
        feature = "pg15" => Kind::INDEX_ATTR_BITMAP_ALL,
        _ => Kind::INDEX_ATTR_BITMAP_HOT_BLOCKING,
    };
    // SAFETY: promised by the caller.
    unsafe { pg_sys::bms_free(pg_sys::RelationGetIndexAttrBitmap(rel, kind)) };
}

/// Makes `entry` the only table of the executor's range table, with the columns that the statement updates.
///
/// # Safety
/// Called once for a new executor's state, in its memory context, which has the entry and the set.
pub unsafe fn init_range_table(
    estate: *mut pg_sys::EState,
    entry: *mut pg_sys::RangeTblEntry,
    updated: *mut pg_sys::Bitmapset,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let entries = pg_sys::lappend(null_mut(), entry.cast());
        cfg_select! {
            feature = "pg15" => {
                (*entry).updatedCols = updated;
                pg_sys::ExecInitRangeTable(estate, entries);
            }
            _ => {
                let mut permissions = null_mut();
                (*pg_sys::addRTEPermissionInfo(&mut permissions, entry)).updatedCols = updated;
                cfg_select! {
                    feature = "pg18" => {
                        let unpruned = pg_sys::bms_make_singleton(1);
                        pg_sys::ExecInitRangeTable(estate, entries, permissions, unpruned);
                    }
                    _ => pg_sys::ExecInitRangeTable(estate, entries, permissions),
                }
            }
        }
    }
}

/// # Safety
/// The same as for PostgreSQL's function of this name.
pub unsafe fn eval_plan_qual_init(state: &mut pg_sys::EPQState, estate: *mut pg_sys::EState) {
    // SAFETY: promised by the caller; without a plan.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::EvalPlanQualInit(state, estate, null_mut(), null_mut(), -1),
            _ => pg_sys::EvalPlanQualInit(state, estate, null_mut(), null_mut(), -1, null_mut()),
        }
    }
}

/// The indexes that need an entry for a new row version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewEntries {
    None,
    /// The update is heap-only, and changed a column of a summarizing index (BRIN).
    #[cfg(not(feature = "pg15"))]
    Summarizing,
    All,
}

/// The type by which PostgreSQL reports which indexes need entries after an update.
pub type UpdatedIndexes = cfg_select! {
    feature = "pg15" => { bool }
    _ => { pg_sys::TU_UpdateIndexes::Type }
};

impl NewEntries {
    pub fn after(indexes: UpdatedIndexes) -> Self {
        cfg_select! {
            feature = "pg15" => if indexes { Self::All } else { Self::None },
            _ => match indexes {
                pg_sys::TU_UpdateIndexes::TU_None => Self::None,
                pg_sys::TU_UpdateIndexes::TU_Summarizing => Self::Summarizing,
                _ => Self::All,
            },
        }
    }
}

/// Inserts index entries for the row in the slot; returns the indexes to be checked again at the end of the statement.
///
/// # Safety
/// The same as for PostgreSQL's function of this name.
pub unsafe fn exec_insert_index_tuples(
    info: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    estate: *mut pg_sys::EState,
    is_update: bool,
    entries: NewEntries,
) -> *mut pg_sys::List {
    if entries == NewEntries::None {
        return null_mut();
    }
    let none = null_mut();
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::ExecInsertIndexTuples(info, slot, estate, is_update, false, none, null_mut()),
            _ => {
                let summarizing = entries == NewEntries::Summarizing;
                pg_sys::ExecInsertIndexTuples(info, slot, estate, is_update, false, none, null_mut(), summarizing)
            }
        }
    }
}

/// Writes to a file at an offset. Returns how many bytes it has written, or -1 with an `errno`; raises an ERROR at `temp_file_limit`.
///
/// # Safety
/// The file is open.
pub unsafe fn file_write(file: pg_sys::File, bytes: &[u8], offset: i64) -> isize {
    // SAFETY: promised by the caller; the bytes are only read.
    unsafe {
        let start = bytes.as_ptr().cast_mut().cast();
        cfg_select! {
            feature = "pg15" => {
                let length = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
                pg_sys::FileWrite(file, start, length, offset, pg_sys::PG_WAIT_EXTENSION) as isize
            }
            _ => pg_sys::FileWrite(file, start, bytes.len(), offset, pg_sys::PG_WAIT_EXTENSION),
        }
    }
}

/// Reads from a file at an offset. Returns how many bytes it has read, or -1 with an `errno`.
///
/// # Safety
/// The file is open.
pub unsafe fn file_read(file: pg_sys::File, buffer: &mut [u8], offset: i64) -> isize {
    // SAFETY: promised by the caller; the buffer is as long as said.
    unsafe {
        let start = buffer.as_mut_ptr().cast();
        cfg_select! {
            feature = "pg15" => {
                let length = c_int::try_from(buffer.len()).unwrap_or(c_int::MAX);
                pg_sys::FileRead(file, start, length, offset, pg_sys::PG_WAIT_EXTENSION) as isize
            }
            _ => pg_sys::FileRead(file, start, buffer.len(), offset, pg_sys::PG_WAIT_EXTENSION),
        }
    }
}

/// Runs a portal's statement to its end.
///
/// # Safety
/// The portal has been started, and the receiver fits its results.
pub unsafe fn portal_run(portal: pg_sys::Portal, receiver: *mut pg_sys::DestReceiver) {
    let all = i64::MAX;
    // SAFETY: promised by the caller.
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::PortalRun(portal, all, true, receiver, receiver, std::ptr::null_mut());
    }
    // SAFETY: promised by the caller.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::PortalRun(portal, all, true, true, receiver, receiver, std::ptr::null_mut());
    }
}

/// Makes a path of a foreign scan. `cost`: before the first row, and of all rows.
///
/// # Safety
/// The same as for PostgreSQL's function of this name; a path of a table alone.
#[allow(clippy::too_many_arguments, reason = "PostgreSQL's own signature")]
pub unsafe fn foreign_scan_path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    target: *mut pg_sys::PathTarget,
    rows: f64,
    cost: (f64, f64),
    keys: *mut pg_sys::List,
    outer: pg_sys::Relids,
    private: *mut pg_sys::List,
) -> *mut pg_sys::ForeignPath {
    let (none, (startup, total)) = (null_mut(), cost);
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::create_foreignscan_path(root, rel, target, rows, startup, total, keys, outer, none, private),
            feature = "pg17" => pg_sys::create_foreignscan_path(
                root, rel, target, rows, startup, total, keys, outer, none, null_mut(), private,
            ),
            _ => pg_sys::create_foreignscan_path(
                root, rel, target, rows, 0, startup, total, keys, outer, none, null_mut(), private,
            ),
        }
    }
}

/// Makes a path of a foreign scan that also does a stage above the scan; its results are in no order.
///
/// # Safety
/// The same as for PostgreSQL's function of this name.
pub unsafe fn foreign_upper_path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    target: *mut pg_sys::PathTarget,
    rows: f64,
    cost: (f64, f64),
    private: *mut pg_sys::List,
) -> *mut pg_sys::ForeignPath {
    let (keys, none, (startup, total)) = (null_mut(), null_mut(), cost);
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg15" => pg_sys::create_foreign_upper_path(root, rel, target, rows, startup, total, keys, none, private),
            feature = "pg17" => pg_sys::create_foreign_upper_path(
                root, rel, target, rows, startup, total, keys, none, null_mut(), private,
            ),
            _ => pg_sys::create_foreign_upper_path(
                root, rel, target, rows, 0, startup, total, keys, none, null_mut(), private,
            ),
        }
    }
}

/// The number of the table that a foreign scan reads, also if its rows are groups.
///
/// # Safety
/// A plan of this executor, for one table.
pub unsafe fn relation_of_scan(scan: &pg_sys::ForeignScan) -> pg_sys::Index {
    if scan.scan.scanrelid > 0 {
        return scan.scan.scanrelid;
    }
    let relations = cfg_select! {
        feature = "pg15" => scan.fs_relids,
        _ => scan.fs_base_relids,
    };
    // SAFETY: promised by the caller.
    pg_sys::Index::try_from(unsafe { pg_sys::bms_next_member(relations, -1) }).unwrap_or_default()
}

/// A relation of a statement. The executor opens it if it is not open yet, and closes it.
///
/// # Safety
/// A number of this executor's statement.
pub unsafe fn range_table_relation(estate: *mut pg_sys::EState, number: pg_sys::Index) -> pg_sys::Relation {
    // SAFETY: promised by the caller.
    unsafe {
        cfg_select! {
            feature = "pg18" => pg_sys::ExecGetRangeTableRelation(estate, number, false),
            _ => pg_sys::ExecGetRangeTableRelation(estate, number),
        }
    }
}

/// The members of an equivalence class, without those of child relations.
///
/// # Safety
/// A class of the planner.
pub unsafe fn class_members(class: *mut pg_sys::EquivalenceClass) -> Vec<*mut pg_sys::EquivalenceMember> {
    // SAFETY: promised by the caller.
    unsafe {
        let members = pgrx::PgList::<pg_sys::EquivalenceMember>::from_pg((*class).ec_members);
        members.iter_ptr().filter(|member| !(**member).em_is_child).collect()
    }
}

/// Whether a key of an order is descending, and whether NULL comes first.
///
/// # Safety
/// A path key of the planner.
pub unsafe fn direction(key: *mut pg_sys::PathKey) -> (bool, bool) {
    // SAFETY: promised by the caller.
    unsafe {
        let descending = cfg_select! {
            feature = "pg18" => (*key).pk_cmptype == pg_sys::CompareType::COMPARE_GT,
            _ => (*key).pk_strategy == pg_sys::BTGreaterStrategyNumber as c_int,
        };
        (descending, (*key).pk_nulls_first)
    }
}

/// The user whose privileges count for a foreign scan; InvalidOid for the current one.
///
/// # Safety
/// A plan of this executor, for a table.
pub unsafe fn user_of_scan(scan: &pg_sys::ForeignScan, estate: *mut pg_sys::EState) -> pg_sys::Oid {
    cfg_select! {
        feature = "pg15" => {
            // SAFETY: promised by the caller.
            unsafe { (*pg_sys::rt_fetch(relation_of_scan(scan), (*estate).es_range_table)).checkAsUser }
        }
        _ => {
            let _ = estate;
            scan.checkAsUser
        }
    }
}

/// The user whose privileges count for a target of a write; InvalidOid for the current one.
///
/// # Safety
/// A target of this executor.
pub unsafe fn user_of_target(target: *mut pg_sys::ResultRelInfo, estate: *mut pg_sys::EState) -> pg_sys::Oid {
    // SAFETY: promised by the caller. A partition has the entry of its root.
    unsafe {
        cfg_select! {
            feature = "pg15" => {
                let root = (*target).ri_RootResultRelInfo;
                let target = if (*target).ri_RangeTableIndex == 0 && !root.is_null() { root } else { target };
                let number = (*target).ri_RangeTableIndex;
                if number == 0 {
                    return pg_sys::InvalidOid;
                }
                (*pg_sys::rt_fetch(number, (*estate).es_range_table)).checkAsUser
            }
            _ => pg_sys::ExecGetResultRelCheckAsUser(target, estate),
        }
    }
}

/// True if RETURNING may show old rows.
pub fn returns_old_rows(parse: &pg_sys::Query) -> bool {
    cfg_select! {
        feature = "pg18" => !parse.returningList.is_null(),
        _ => {
            let _ = parse;
            false
        }
    }
}
