//! Index hints: the WHERE clause of a statement names the index that PostgreSQL's planner must use.
//!
//! The condition `docshard_internal.by_index(name)` is true for every row. During planning all other indexes are hidden from the planner,
//! and then all paths without an index are removed. If no condition can use the index, the whole index is scanned. A hint is ignored if the
//! index does not exist, or if it is partial and the planner cannot prove its condition.
//!
//! Such a statement also calls the immutable function `docshard_internal.load_library()`. The planner evaluates the call, and that loads
//! this library with its hooks.

use docshard_core::routing::names::{ANY_INDEX, is_marked};
use pgrx::{FromDatum, PgList, pg_guard, pg_sys};
use std::ffi::CStr;
use std::sync::OnceLock;

struct Hooks {
    relation_info: pg_sys::get_relation_info_hook_type,
    pathlist: pg_sys::set_rel_pathlist_hook_type,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Called from `_PG_init`.
pub fn init() {
    // SAFETY: a backend has one thread; the hooks that were there before are called by ours.
    unsafe {
        let hooks = Hooks { relation_info: pg_sys::get_relation_info_hook, pathlist: pg_sys::set_rel_pathlist_hook };
        if HOOKS.set(hooks).is_ok() {
            pg_sys::get_relation_info_hook = Some(choose_indexes);
            pg_sys::set_rel_pathlist_hook = Some(choose_paths);
        }
    }
}

/// Hides all indexes except those that the hint allows.
#[pg_guard]
unsafe extern "C-unwind" fn choose_indexes(
    root: *mut pg_sys::PlannerInfo,
    table: pg_sys::Oid,
    inherited: bool,
    rel: *mut pg_sys::RelOptInfo,
) {
    let Some(hooks) = HOOKS.get() else { return };
    // SAFETY: PostgreSQL calls this with a planner's state and a relation of it, whose list of indexes is its own; the
    // list is replaced by a shorter one in the same memory context.
    unsafe {
        if let Some(next) = hooks.relation_info {
            next(root, table, inherited, rel);
        }
        if (*rel).indexlist.is_null() {
            return;
        }
        let Some(mark) = mark(root).filter(|mark| mark != ANY_INDEX) else { return };
        let mut wanted = PgList::<pg_sys::IndexOptInfo>::new();
        for index in PgList::<pg_sys::IndexOptInfo>::from_pg((*rel).indexlist).iter_ptr() {
            let name = pg_sys::get_rel_name((*index).indexoid);
            if !name.is_null() && CStr::from_ptr(name).to_str().is_ok_and(|name| is_marked(&mark, name)) {
                wanted.push(index);
            }
        }
        (*rel).indexlist = wanted.into_pg();
    }
}

/// Removes paths without an index, if there is a hint.
#[pg_guard]
unsafe extern "C-unwind" fn choose_paths(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    number: pg_sys::Index,
    entry: *mut pg_sys::RangeTblEntry,
) {
    let Some(hooks) = HOOKS.get() else { return };
    // SAFETY: as above. The previous paths are restored if there are no others.
    unsafe {
        if let Some(next) = hooks.pathlist {
            next(root, rel, number, entry);
        }
        if (*rel).indexlist.is_null() || (*entry).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return;
        }
        let Some(mark) = mark(root) else { return };
        let before = ((*rel).pathlist, (*rel).partial_pathlist);
        (*rel).pathlist = std::ptr::null_mut();
        (*rel).partial_pathlist = std::ptr::null_mut();
        pg_sys::create_index_paths(root, rel);
        if (*rel).pathlist.is_null() && mark != ANY_INDEX {
            for index in PgList::<pg_sys::IndexOptInfo>::from_pg((*rel).indexlist).iter_ptr() {
                if ((*index).indpred.is_null() || (*index).predOK) && (*index).amoptionalkey && (*index).amhasgettuple {
                    pg_sys::add_path(rel, whole(root, index).cast());
                }
            }
        }
        if (*rel).pathlist.is_null() {
            ((*rel).pathlist, (*rel).partial_pathlist) = before;
        }
    }
}

/// Returns the path that scans a whole index.
///
/// # Safety
/// The index is one of a relation that is being planned.
unsafe fn whole(root: *mut pg_sys::PlannerInfo, index: *mut pg_sys::IndexOptInfo) -> *mut pg_sys::IndexPath {
    let none = std::ptr::null_mut();
    let forward = pg_sys::ScanDirection::ForwardScanDirection;
    // SAFETY: promised by the caller; empty lists are null.
    unsafe { pg_sys::create_index_path(root, index, none, none, none, none, forward, false, none.cast(), 1.0, false) }
}

/// Returns the statement's hint, from the AND-ed conditions of its WHERE clause.
///
/// # Safety
/// `root` is a planner's state.
unsafe fn mark(root: *mut pg_sys::PlannerInfo) -> Option<String> {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        let parse = (*root).parse;
        if parse.is_null() || (*parse).jointree.is_null() {
            return None;
        }
        let quals = (*(*parse).jointree).quals;
        if quals.is_null() || (*quals).type_ != pg_sys::NodeTag::T_List {
            return None;
        }
        PgList::<pg_sys::Node>::from_pg(quals.cast()).iter_ptr().find_map(|qual| said_by(qual))
    }
}

/// The argument of `docshard_internal.by_index`; None if the condition is not a call of it.
///
/// # Safety
/// `qual` is a node.
unsafe fn said_by(qual: *mut pg_sys::Node) -> Option<String> {
    // SAFETY: promised by the caller; a node's tag says what it is, and the names are null or end with a zero byte.
    unsafe {
        if qual.is_null() || (*qual).type_ != pg_sys::NodeTag::T_FuncExpr {
            return None;
        }
        let call = qual.cast::<pg_sys::FuncExpr>();
        let arguments = PgList::<pg_sys::Node>::from_pg((*call).args);
        let argument = arguments.get_ptr(0).filter(|_| arguments.len() == 1)?;
        if (*argument).type_ != pg_sys::NodeTag::T_Const {
            return None;
        }
        let value = argument.cast::<pg_sys::Const>();
        if (*value).consttype != pg_sys::TEXTOID || (*value).constisnull {
            return None;
        }
        let is = |name: *mut std::ffi::c_char, wanted: &CStr| !name.is_null() && CStr::from_ptr(name) == wanted;
        let ours = is(pg_sys::get_func_name((*call).funcid), c"by_index")
            && is(pg_sys::get_namespace_name(pg_sys::get_func_namespace((*call).funcid)), c"docshard_internal");
        if ours { String::from_datum((*value).constvalue, false) } else { None }
    }
}
