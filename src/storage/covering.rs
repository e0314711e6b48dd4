//! Index-only scans by expression indexes.
//!
//! An index over expressions of a column covers a statement that uses the column only in those expressions. PostgreSQL's executor can
//! read them from the index, but its planner requires the column itself. So for such statements the column is added to the planner's
//! description of the index, and the planner decides by costs, as for any index.
//!
//! Invariant: an index is changed only if no plan can need the column elsewhere: the statement is a SELECT from one table, and its
//! target list is computed in the scan. A violation makes planning fail ("variable not found in subplan target list"); it cannot cause
//! wrong results.

use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

struct Hook {
    next: pg_sys::get_relation_info_hook_type,
}

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Called from `_PG_init`.
pub fn init() {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if HOOK.set(Hook { next: pg_sys::get_relation_info_hook }).is_ok() {
            pg_sys::get_relation_info_hook = Some(cover);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn cover(
    root: *mut pg_sys::PlannerInfo,
    table: pg_sys::Oid,
    inherited: bool,
    rel: *mut pg_sys::RelOptInfo,
) {
    let Some(hook) = HOOK.get() else { return };
    // SAFETY: PostgreSQL calls this with a planner's state and a relation of it, whose list of indexes is its own.
    unsafe {
        if let Some(next) = hook.next {
            next(root, table, inherited, rel);
        }
        if inherited || (*rel).indexlist.is_null() || !is_simple(root, rel) || !is_in(table, super::SCHEMA) {
            return;
        }
        for index in PgList::<pg_sys::IndexOptInfo>::from_pg((*rel).indexlist).iter_ptr() {
            if !(*index).indexprs.is_null() && has_tree(index) && is_all_of(index, root) {
                add_columns(index);
            }
        }
    }
}

/// True if the statement reads only this table.
///
/// # Safety
/// `root` is a planner's state, `rel` a relation of it.
unsafe fn is_simple(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        let parse = (*root).parse;
        if parse.is_null()
            || (*parse).commandType != pg_sys::CmdType::CMD_SELECT
            || !(*parse).rowMarks.is_null()
            || !(*parse).setOperations.is_null()
            || (*parse).hasTargetSRFs
            || (*parse).jointree.is_null()
        {
            return false;
        }
        // Row-level security adds conditions that are not among the statement's.
        let entries = (*root).simple_rte_array;
        if entries.is_null() || !(*(*entries.add((*rel).relid as usize))).securityQuals.is_null() {
            return false;
        }
        let from = PgList::<pg_sys::Node>::from_pg((*(*parse).jointree).fromlist);
        let only = from.get_ptr(0).filter(|_| from.len() == 1);
        only.is_some_and(|node| {
            (*node).type_ == pg_sys::NodeTag::T_RangeTblRef
                && u32::try_from((*node.cast::<pg_sys::RangeTblRef>()).rtindex) == Ok((*rel).relid)
        })
    }
}

fn is_in(table: pg_sys::Oid, schema: &CStr) -> bool {
    // SAFETY: the name is null or ends with a zero byte.
    unsafe {
        let name = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table));
        !name.is_null() && CStr::from_ptr(name) == schema
    }
}

/// True if the index can return the values that it stores.
///
/// # Safety
/// `index` is one that is being planned with.
unsafe fn has_tree(index: *mut pg_sys::IndexOptInfo) -> bool {
    // SAFETY: promised by the caller; there are as many entries as columns.
    unsafe { !(*index).canreturn.is_null() && (0..(*index).ncolumns).all(|at| *(*index).canreturn.offset(at as isize)) }
}

/// The context of [`looks_elsewhere`].
struct Search {
    index: *mut pg_sys::IndexOptInfo,
    /// columns inside of the index's expressions do not count, because the index has the expressions' values
    expressions: bool,
}

/// True if the statement uses the table's columns only in the index's expressions, and computes its target list in the scan.
///
/// # Safety
/// `index` is one of the only relation of `root`.
unsafe fn is_all_of(index: *mut pg_sys::IndexOptInfo, root: *mut pg_sys::PlannerInfo) -> bool {
    // SAFETY: promised by the caller; the search lives as long as the walk.
    unsafe {
        let parse = (*root).parse;
        let walk = |node: *mut pg_sys::Node, expressions: bool| {
            let mut search = Search { index, expressions };
            looks_elsewhere(node, (&raw mut search).cast())
        };
        if walk((*(*parse).jointree).quals, true) {
            return false;
        }
        // In these cases a step above the scan computes the targets from columns.
        let computed_above = (*parse).hasAggs
            || (*parse).hasWindowFuncs
            || !(*parse).groupClause.is_null()
            || !(*parse).groupingSets.is_null()
            || !(*parse).distinctClause.is_null()
            || !(*parse).havingQual.is_null();
        // Expensive targets are computed from columns, after the sort. A target that is itself an expression of the index is not expensive.
        let sorted = !(*parse).sortClause.is_null();
        PgList::<pg_sys::TargetEntry>::from_pg((*parse).targetList).iter_ptr().all(|entry| {
            let node: *mut pg_sys::Node = (*entry).expr.cast();
            match () {
                () if computed_above => !walk(node, false),
                () if sorted => is_expression_of(index, node) || !walk(node, false),
                () => !walk(node, true),
            }
        })
    }
}

/// A walker over an expression. Returns true if the expression uses a column of the table that the index lacks.
#[pg_guard]
unsafe extern "C-unwind" fn looks_elsewhere(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: called by `is_all_of` and by PostgreSQL's walker, with a node or null and with the search.
    unsafe {
        if node.is_null() {
            return false;
        }
        let search = &*context.cast::<Search>();
        if (*node).type_ == pg_sys::NodeTag::T_Var {
            let var = &*node.cast::<pg_sys::Var>();
            let index = &*search.index;
            let own = u32::try_from(var.varno) == Ok((*index.rel).relid) && var.varlevelsup == 0;
            let is_column = |at: c_int| *index.indexkeys.offset(at as isize) == c_int::from(var.varattno);
            return own && !(var.varattno > 0 && (0..index.ncolumns).any(is_column));
        }
        if search.expressions && is_expression_of(search.index, node) {
            return false;
        }
        pg_sys::expression_tree_walker(node, Some(looks_elsewhere), context)
    }
}

/// True for an expression of the index, or its predicate.
///
/// # Safety
/// `index` is one that is being planned with, `node` a node.
unsafe fn is_expression_of(index: *mut pg_sys::IndexOptInfo, node: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        [(*index).indexprs, (*index).indpred].into_iter().any(|list| {
            PgList::<pg_sys::Node>::from_pg(list).iter_ptr().any(|known| pg_sys::equal(known.cast(), node.cast()))
        })
    }
}

/// Adds the columns of the index's expressions to its description.
///
/// # Safety
/// `index` is one that is being planned with.
unsafe fn add_columns(index: *mut pg_sys::IndexOptInfo) {
    // SAFETY: the arrays have as many entries as columns, and are replaced by longer ones in the planner's memory.
    unsafe {
        let relation = (*(*index).rel).relid;
        let mut attributes = std::ptr::null_mut();
        pg_sys::pull_varattnos((*index).indexprs.cast(), relation, &raw mut attributes);
        let mut keys: Vec<c_int> = entries((*index).indexkeys, (*index).ncolumns);
        let mut returned: Vec<bool> = entries((*index).canreturn, (*index).ncolumns);
        let mut member = -1;
        loop {
            member = pg_sys::bms_next_member(attributes, member);
            if member < 0 {
                break;
            }
            keys.push(member + pg_sys::FirstLowInvalidHeapAttributeNumber);
            returned.push(true);
        }
        (*index).indexkeys = in_planner(&keys);
        (*index).canreturn = in_planner(&returned);
        (*index).ncolumns = c_int::try_from(keys.len()).unwrap_or((*index).ncolumns);
    }
}

/// # Safety
/// There are `count` entries.
unsafe fn entries<T: Copy>(array: *const T, count: c_int) -> Vec<T> {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(array, usize::try_from(count).unwrap_or(0)) }.to_vec()
}

/// Copies values into the planner's memory.
///
/// # Safety
/// Called while planning.
unsafe fn in_planner<T: Copy>(values: &[T]) -> *mut T {
    // SAFETY: as much memory as is copied, of PostgreSQL's own, which is aligned for anything.
    unsafe {
        let copy = pg_sys::palloc(size_of_val(values)).cast::<T>();
        std::ptr::copy_nonoverlapping(values.as_ptr(), copy, values.len());
        copy
    }
}
