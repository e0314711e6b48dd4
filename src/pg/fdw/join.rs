//! The planner's side of a batched join: a join whose inner side is a foreign table, read by the keys of many outer rows at once.
//!
//! A nested loop would start a scan for each outer row. This path reads the cheapest path of the outer side, and scans the table with the
//! condition that a column equals one of a batch of outer values. All join conditions are evaluated again here, on each pair of rows.
//!
//! The path is not made if the statement locks or writes rows, because PostgreSQL may have to evaluate single rows of it again; nor below a
//! security barrier, whose conditions must be evaluated before those of a join.

use super::batched::{self, BATCH_ROWS, Methods, NAME, Shape};
use super::clause::{Clause, Operator, Reader, Term};
use super::define::open;
use super::plan::{ROUND_TRIP, ROW_SEEN, ROW_SENT, is_own, string_list, user_of};
use super::upper;
use super::value::Scalar;
use crate::pg::security::user;
use crate::pg::version;
use pgrx::{PgList, pg_guard, pg_sys};
use serde_json::{Value as Json, json};
use std::ptr::null_mut;
use std::sync::OnceLock;

static NEXT: OnceLock<pg_sys::set_join_pathlist_hook_type> = OnceLock::new();

/// Sets the planner's hook that is called for each join. It ignores joins without a foreign table of this wrapper.
pub(super) fn install() {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if NEXT.set(pg_sys::set_join_pathlist_hook).is_ok() {
            pg_sys::set_join_pathlist_hook = Some(consider);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn consider(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    outer: *mut pg_sys::RelOptInfo,
    inner: *mut pg_sys::RelOptInfo,
    kind: pg_sys::JoinType::Type,
    extra: *mut pg_sys::JoinPathExtraData,
) {
    // SAFETY: PostgreSQL's planner calls this for a join of two relations that have paths.
    unsafe {
        if let Some(next) = NEXT.get().copied().flatten() {
            pg_sys::ffi::pg_guard_ffi_boundary(|| next(root, rel, outer, inner, kind, extra));
        }
        let parse = &*(*root).parse;
        let is_plain = matches!(kind, pg_sys::JoinType::JOIN_INNER | pg_sys::JoinType::JOIN_LEFT)
            && parse.commandType == pg_sys::CmdType::CMD_SELECT
            && parse.rowMarks.is_null()
            && (*root).rowMarks.is_null()
            && (*root).placeholder_list.is_null()
            && (*root).qual_security_level == 0
            && (*rel).lateral_relids.is_null()
            && is_own((*inner).fdwroutine)
            && upper::is_one_table(root, inner);
        if !is_plain {
            return;
        }
        let cheapest = (*outer).cheapest_total_path;
        if cheapest.is_null() || !(*cheapest).param_info.is_null() {
            return;
        }
        let restrictions = PgList::<pg_sys::RestrictInfo>::from_pg((*extra).restrictlist);
        if restrictions.iter_ptr().any(|restriction| (*restriction).pseudoconstant) {
            return;
        }
        let keeps_outer = kind == pg_sys::JoinType::JOIN_LEFT;
        for restriction in restrictions.iter_ptr() {
            if keeps_outer && is_above(restriction, rel) {
                continue;
            }
            if let Some(path) = path(root, rel, outer, inner, restriction, (*extra).restrictlist, keeps_outer) {
                pg_sys::add_path(rel, path.cast());
                return;
            }
        }
    }
}

/// True for a condition that is evaluated on the results of an outer join, and so does not decide which rows are partners.
///
/// # Safety
/// A condition of a join, and its relation.
unsafe fn is_above(restriction: *mut pg_sys::RestrictInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe { (*restriction).is_pushed_down || !pg_sys::bms_is_subset((*restriction).required_relids, (*rel).relids) }
}

/// Reads a join condition `column = value`, in which the value is of the outer side. Returns the column, and the condition that it is one
/// of several values. None for any other condition.
///
/// # Safety
/// A condition of a join with this table.
unsafe fn key(
    root: *mut pg_sys::PlannerInfo,
    outer: *mut pg_sys::RelOptInfo,
    inner: *mut pg_sys::RelOptInfo,
    restriction: *mut pg_sys::RestrictInfo,
) -> Option<(i16, Json)> {
    // SAFETY: promised by the caller.
    unsafe {
        let mut reader = Reader::new(root, (*inner).relid);
        let Clause::Compare { term, operator: Operator::Equal, operand, kind } =
            reader.clause((*restriction).clause.cast())
        else {
            return None;
        };
        let Term::Column(column, _) = term else { return None };
        // Only types whose equal values have equal bytes.
        let is_hashed =
            !matches!(kind.scalar, Scalar::Float4 | Scalar::Float8 | Scalar::Numeric | Scalar::Json | Scalar::Jsonb);
        let value = reader.operands[operand];
        let relations = pg_sys::pull_varnos(root, value);
        if !is_hashed || kind.is_array || relations.is_null() || !pg_sys::bms_is_subset(relations, (*outer).relids) {
            return None;
        }
        let member = Clause::Member { term, is_negated: false, operand: 0, kind };
        let opened = open((*pg_sys::planner_rt_fetch((*inner).relid, root)).relid);
        let condition = opened.translate(&member)?.condition;
        let narrows = user::as_checked_user(user_of(inner), || opened.narrows(std::slice::from_ref(&condition)));
        narrows.then_some((column, condition))
    }
}

/// # Safety
/// The same as for [`consider`].
unsafe fn path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    outer: *mut pg_sys::RelOptInfo,
    inner: *mut pg_sys::RelOptInfo,
    restriction: *mut pg_sys::RestrictInfo,
    restrictions: *mut pg_sys::List,
    keeps_outer: bool,
) -> Option<*mut pg_sys::CustomPath> {
    // SAFETY: promised by the caller; the methods live as long as the process.
    unsafe {
        let (column, condition) = key(root, outer, inner, restriction)?;
        let cheapest = (*outer).cheapest_total_path;
        let batches = ((*cheapest).rows / BATCH_ROWS as f64).ceil().max(1.0);
        // An estimate of the inner rows that have one of the keys: at least those that the join returns.
        let found = (*rel).rows.max(1.0);
        let private = string_list(&json!({"batch": condition}).to_string());
        let scan_rows = (found / batches).max(1.0);
        let scan_cost = ROUND_TRIP + scan_rows * (ROW_SEEN + ROW_SENT);
        let scan = version::foreign_scan_path(
            root,
            inner,
            null_mut(),
            scan_rows,
            (ROUND_TRIP, scan_cost),
            null_mut(),
            null_mut(),
            private,
        );
        // The node's own cost, so that for one outer row a nested loop is cheaper.
        let own = 2.0 + 0.01 * ((*cheapest).rows + found);
        let path: *mut pg_sys::CustomPath = pg_sys::palloc0(size_of::<pg_sys::CustomPath>()).cast();
        (*path).path.type_ = pg_sys::NodeTag::T_CustomPath;
        (*path).path.pathtype = pg_sys::NodeTag::T_CustomScan;
        (*path).path.parent = rel;
        (*path).path.pathtarget = (*rel).reltarget;
        (*path).path.rows = (*rel).rows;
        (*path).path.startup_cost = (*cheapest).startup_cost + ROUND_TRIP;
        (*path).path.total_cost = (*cheapest).total_cost + batches * scan_cost + own;
        (*path).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        let mut sides = PgList::<pg_sys::Path>::new();
        sides.push(cheapest);
        sides.push(scan.cast());
        (*path).custom_paths = sides.into_pg();
        let what = json!({"column": column, "inner": (*inner).relid, "keepsOuter": keeps_outer});
        let mut private = PgList::<pg_sys::Node>::from_pg(string_list(&what.to_string()));
        private.push(restrictions.cast());
        private.push(restriction.cast());
        (*path).custom_private = private.into_pg();
        (*path).methods = &raw const PATH_METHODS.0;
        Some(path)
    }
}

static PATH_METHODS: Methods<pg_sys::CustomPathMethods> = Methods(pg_sys::CustomPathMethods {
    CustomName: NAME.as_ptr(),
    PlanCustomPath: Some(plan),
    ReparameterizeCustomPathByChild: None,
});

#[pg_guard]
unsafe extern "C-unwind" fn plan(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    path: *mut pg_sys::CustomPath,
    targets: *mut pg_sys::List,
    _clauses: *mut pg_sys::List,
    plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    // SAFETY: PostgreSQL's planner calls this with a path that `path` has made, and the plans of its two sides.
    unsafe {
        let private = PgList::<pg_sys::Node>::from_pg((*path).custom_private);
        let what: Json = serde_json::from_str(&super::plan::string_of((*path).custom_private)).unwrap_or_default();
        let number = |name: &str| what.get(name).and_then(Json::as_i64).unwrap_or_default();
        let keeps_outer = what.get("keepsOuter") == Some(&Json::Bool(true));
        let restrictions: *mut pg_sys::List = private.get_ptr(1).unwrap_or(null_mut()).cast();
        let restriction: *mut pg_sys::RestrictInfo = private.get_ptr(2).unwrap_or(null_mut()).cast();
        let inner_rel = pg_sys::find_base_rel(root, number("inner") as i32);
        let sides = PgList::<pg_sys::Plan>::from_pg(plans);
        let (outer, inner) = (sides.get_ptr(0).unwrap_or(null_mut()), sides.get_ptr(1).unwrap_or(null_mut()));

        let mut reader = Reader::new(root, (*inner_rel).relid);
        let value = match reader.clause((*restriction).clause.cast()) {
            Clause::Compare { operand, .. } => reader.operands[operand],
            _ => null_mut(),
        };
        let (mut on, mut above) = (PgList::<pg_sys::Node>::new(), PgList::<pg_sys::Node>::new());
        for one in PgList::<pg_sys::RestrictInfo>::from_pg(restrictions).iter_ptr() {
            let clause = pg_sys::copyObjectImpl((*one).clause.cast()).cast();
            if keeps_outer && is_above(one, rel) {
                above.push(clause);
            } else {
                on.push(clause);
            }
        }

        // A row of the join has the columns of both sides.
        let (mut row, mut inner) = (columns_of(outer), columns_of(inner));
        let sizes = [row.len(), inner.len()];
        let wanted = (i64::from((*inner_rel).relid), number("column") as i16);
        let key = inner.iter().position(|node| var_of(*node) == Some(wanted)).unwrap_or(0);
        // The targets of the plan may be missing here: PostgreSQL sets them afterwards if they are expressions.
        rename(&mut inner, &[(*(*rel).reltarget).exprs, above.as_ptr()], on.as_ptr());
        row.extend(inner);
        let shape = Shape { outer: sizes[0], inner: sizes[1], key, keeps_outer };

        let scan: *mut pg_sys::CustomScan = pg_sys::palloc0(size_of::<pg_sys::CustomScan>()).cast();
        (*scan).scan.plan.type_ = pg_sys::NodeTag::T_CustomScan;
        (*scan).scan.plan.targetlist = targets;
        (*scan).scan.plan.qual = above.into_pg();
        (*scan).flags = (*path).flags;
        (*scan).custom_plans = plans;
        let mut expressions = PgList::<pg_sys::Node>::new();
        expressions.push(pg_sys::copyObjectImpl(value.cast()).cast());
        expressions.push(on.into_pg().cast());
        (*scan).custom_exprs = expressions.into_pg();
        (*scan).custom_private = string_list(&serde_json::to_string(&shape).unwrap_or_default());
        (*scan).custom_scan_tlist = described(&row);
        (*scan).methods = batched::methods();
        scan.cast()
    }
}

/// The expressions of a plan's columns.
///
/// # Safety
/// A plan of the planner.
unsafe fn columns_of(plan: *mut pg_sys::Plan) -> Vec<*mut pg_sys::Node> {
    // SAFETY: promised by the caller.
    unsafe {
        let columns = PgList::<pg_sys::TargetEntry>::from_pg((*plan).targetlist);
        columns.iter_ptr().map(|column| (*column).expr.cast()).collect()
    }
}

/// The columns of a row, as a list of targets.
///
/// # Safety
/// Expressions of the planner.
unsafe fn described(row: &[*mut pg_sys::Node]) -> *mut pg_sys::List {
    let mut list = PgList::<pg_sys::TargetEntry>::new();
    for (at, node) in row.iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe {
            let copy = pg_sys::copyObjectImpl((*node).cast()).cast();
            list.push(pg_sys::makeTargetEntry(copy, at as i16 + 1, null_mut(), false));
        }
    }
    list.into_pg()
}

/// The table and column that a node names.
///
/// # Safety
/// A node of the planner.
unsafe fn var_of(node: *mut pg_sys::Node) -> Option<(i64, i16)> {
    // SAFETY: promised by the caller.
    unsafe {
        ((*node).type_ == pg_sys::NodeTag::T_Var).then(|| {
            let var = &*node.cast::<pg_sys::Var>();
            (i64::from(var.varno), var.varattno)
        })
    }
}

/// Gives the columns of the inner side the names that they have above the join. Since PostgreSQL 16 the planner names a column otherwise above an
/// outer join that may make it NULL, and finds it by that name only. `above`: expressions that are evaluated on the join's rows; `on`: those that
/// are evaluated on pairs, which get the same names.
///
/// # Safety
/// Expressions of the planner; those of `on` belong to this plan alone.
unsafe fn rename(columns: &mut [*mut pg_sys::Node], above: &[*mut pg_sys::List], on: *mut pg_sys::List) {
    // SAFETY: promised by the caller; the nodes that are found are variables, and parts of the lists.
    unsafe {
        for list in above {
            for var in variables(*list).iter_ptr() {
                let same =
                    columns.iter_mut().find(|column| var_of(**column).is_some() && var_of(**column) == var_of(var));
                if let Some(column) = same {
                    *column = var;
                }
            }
        }
        for var in variables(on).iter_ptr() {
            if let Some(named) = columns.iter().find(|column| var_of(**column) == var_of(var)) {
                *var.cast::<pg_sys::Var>() = *named.cast::<pg_sys::Var>();
            }
        }
    }
}

/// The variables of expressions.
///
/// # Safety
/// Expressions of the planner.
unsafe fn variables(list: *mut pg_sys::List) -> PgList<pg_sys::Node> {
    let flags = pg_sys::PVC_RECURSE_AGGREGATES | pg_sys::PVC_RECURSE_WINDOWFUNCS | pg_sys::PVC_RECURSE_PLACEHOLDERS;
    // SAFETY: promised by the caller.
    unsafe { PgList::from_pg(pg_sys::pull_var_clause(list.cast(), flags as i32)) }
}
