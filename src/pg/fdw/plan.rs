//! The planner's callbacks: the size of a table, and its paths.
//!
//! A table has these paths: all rows that its conditions select; the same in the statement's order, if the table can return it; and, for
//! each set of other tables, the rows that join conditions with them select, for a nested loop. [`super::upper`] adds paths that also group
//! rows, or end after LIMIT.

use super::barrier::{Barrier, Misfits};
use super::clause::{Reader, collation_of, is_family, text};
use super::define::open;
use super::interface::{ScanPlan, SortKey, Table, raise};
use super::target;
use super::value;
use crate::pg::security::user;
use crate::pg::version;
use pgrx::{PgList, pg_guard, pg_sys};
use serde_json::{Value as Json, json};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// The number of rows that is assumed if there is no estimate.
const DEFAULT_ROWS: f64 = 1000.0;
/// The cost of a round trip to the shards, in the planner's units.
pub(super) const ROUND_TRIP: f64 = 25.0;
/// The cost of a row that is sent to the router.
pub(super) const ROW_SENT: f64 = 0.02;
/// The cost of a row that a shard looks at.
pub(super) const ROW_SEEN: f64 = 0.01;

/// The user whose privileges count for a relation.
///
/// # Safety
/// A base relation.
pub(super) unsafe fn user_of(rel: *mut pg_sys::RelOptInfo) -> pg_sys::Oid {
    // SAFETY: promised by the caller.
    unsafe { (*rel).userid }
}

/// True for the callbacks of this wrapper.
///
/// # Safety
/// The callbacks of a table, or null.
pub(super) unsafe fn is_own(routine: *mut pg_sys::FdwRoutine) -> bool {
    // SAFETY: promised by the caller.
    let known = unsafe { routine.as_ref() }.and_then(|routine| routine.GetForeignRelSize);
    let own: pg_sys::GetForeignRelSize_function = Some(size);
    known.map(|callback| callback as usize) == own.map(|callback| callback as usize)
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn size(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
) {
    // SAFETY: PostgreSQL's planner calls this for a base relation.
    unsafe {
        // PostgreSQL has set `tuples` to the row count of the last ANALYZE; less than 0 if there was none.
        let opened = open(table);
        let estimate = raise(user::as_checked_user(user_of(rel), || opened.estimate()));
        let known = estimate.into_iter().chain(((*rel).tuples >= 0.0).then_some((*rel).tuples)).reduce(f64::max);
        (*rel).tuples = known.unwrap_or(DEFAULT_ROWS).max(1.0);
        target::unify_whole_rows(root, rel, table);
        pg_sys::set_baserel_size_estimates(root, rel);
    }
}

/// Conditions of a relation, divided into those that the table evaluates and those that PostgreSQL evaluates here.
pub(super) struct Divided {
    /// has the conditions that the table evaluates
    pub plan: ScanPlan,
    /// the operands of the plan's conditions
    pub operands: Vec<*mut pg_sys::Node>,
    /// evaluated here, also if the table evaluates a part of them
    pub local: PgList<pg_sys::Expr>,
    /// evaluated by the table alone
    pub remote: PgList<pg_sys::Expr>,
    /// columns that cannot be NULL in the rows that the table returns
    pub not_null: Vec<i16>,
    /// the columns of all conditions
    pub columns: *mut pg_sys::Bitmapset,
}

/// The expression of a condition and its security level. None for a condition that PostgreSQL evaluates once, by a Result node above the
/// scan.
///
/// # Safety
/// A condition of the planner.
unsafe fn expression_of(clause: *mut pg_sys::Node) -> Option<(*mut pg_sys::Node, pg_sys::Index)> {
    // SAFETY: promised by the caller.
    unsafe {
        if (*clause).type_ != pg_sys::NodeTag::T_RestrictInfo {
            return Some((clause, 0));
        }
        let restriction = &*clause.cast::<pg_sys::RestrictInfo>();
        (!restriction.pseudoconstant).then(|| (restriction.clause.cast(), restriction.security_level))
    }
}

/// Divides conditions into those that the table evaluates and those that are evaluated here.
///
/// # Safety
/// Conditions on a base relation, as restrictions or expressions.
pub(super) unsafe fn divide(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: &dyn Table,
    clauses: *mut pg_sys::List,
) -> Divided {
    let mut divided = Divided {
        plan: ScanPlan::default(),
        operands: Vec::new(),
        local: PgList::new(),
        remote: PgList::new(),
        not_null: Vec::new(),
        columns: null_mut(),
    };
    // SAFETY: promised by the caller.
    unsafe {
        let mut read = Vec::new();
        // The least security level of a condition that is evaluated here.
        let mut here = pg_sys::Index::MAX;
        for clause in PgList::<pg_sys::Node>::from_pg(clauses).iter_ptr() {
            let Some((expression, level)) = expression_of(clause) else { continue };
            let mut reader = Reader::new(root, (*rel).relid);
            let translation = table.translate(&reader.clause(expression));
            if !translation.as_ref().is_some_and(|translation| translation.is_exact) {
                here = here.min(level);
            }
            read.push((clause, expression, level, translation, reader.operands));
        }
        let barrier = Barrier::above(root);
        let misfits = barrier.as_ref().map_or(Misfits::Shown, |barrier| barrier.misfits(root, rel));
        let mut hiding = match &barrier {
            // The whole row stands for all columns.
            Some(_) if misfits == Misfits::Hidden => pg_sys::bms_make_singleton(target::member(target::WHOLE)),
            Some(barrier) => barrier.hiding(root, rel),
            None => null_mut(),
        };
        let is_in_view = user_of(rel) != pg_sys::InvalidOid;
        for (clause, expression, level, translation, mut operands) in read {
            pg_sys::pull_varattnos(expression, (*rel).relid, &raw mut divided.columns);
            // If a condition of a security barrier is evaluated here, the table must not evaluate a later one: it would be evaluated on
            // hidden rows, and could raise the error of a value that does not fit.
            let is_of_view = barrier.as_ref().is_some_and(|barrier| barrier.has(clause));
            let counts = misfits != Misfits::Fixed || is_of_view;
            let is_first = counts && level <= here && (here == pg_sys::Index::MAX || barrier.is_none() || is_of_view);
            if level < (*root).qual_security_level {
                pg_sys::pull_varattnos(expression, (*rel).relid, &raw mut hiding);
            }
            let mut is_exact = false;
            if let Some(translation) = translation.filter(|_| is_first) {
                divided.plan.conditions.push((translation.condition, divided.operands.len()));
                divided.operands.append(&mut operands);
                divided.not_null.extend(translation.not_null);
                is_exact = translation.is_exact;
            }
            if is_exact {
                divided.remote.push(expression.cast());
                continue;
            }
            divided.local.push(expression.cast());
            if is_in_view {
                let mut columns = null_mut();
                pg_sys::pull_varattnos(expression, (*rel).relid, &raw mut columns);
                divided.plan.deciding.push(counts.then(|| numbers(columns, (*rel).max_attr)));
            }
        }
        divided.plan.hiding = numbers(hiding, (*rel).max_attr);
    }
    divided
}

/// Returns the table's order for pathkeys; None if it has no such order.
///
/// # Safety
/// Pathkeys of the planner's query.
pub(super) unsafe fn order(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: &dyn Table,
    pathkeys: *mut pg_sys::List,
    not_null: &[i16],
) -> Option<Json> {
    if pathkeys.is_null() {
        return None;
    }
    // SAFETY: promised by the caller.
    unsafe {
        let reader = Reader::new(root, (*rel).relid);
        let mut keys = Vec::new();
        for key in PgList::<pg_sys::PathKey>::from_pg(pathkeys).iter_ptr() {
            let class = &*(*key).pk_eclass;
            if class.ec_has_volatile || !is_family((*key).pk_opfamily) {
                return None;
            }
            let members = version::class_members((*key).pk_eclass);
            let column = members.into_iter().find_map(|member| reader.column((*member).em_expr.cast()))?;
            let (descending, nulls_first) = version::direction(key);
            let is_not_null = not_null.contains(&column);
            keys.push(SortKey {
                column,
                descending,
                nulls_first,
                is_not_null,
                collation: collation_of(class.ec_collation),
            });
        }
        table.order(&keys)
    }
}

/// The cost of a scan before its first row, and its whole cost.
///
/// # Safety
/// A base relation whose size was estimated.
unsafe fn costs(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    divided: &Divided,
    table: &dyn Table,
    is_sorted: bool,
) -> (f64, f64) {
    // SAFETY: promised by the caller.
    unsafe {
        let conditions: Vec<Json> = divided.plan.conditions.iter().map(|(condition, _)| condition.clone()).collect();
        let mut evaluated = pg_sys::QualCost::default();
        pg_sys::cost_qual_eval(&raw mut evaluated, divided.local.as_ptr(), root);
        let rows = (*rel).rows.max(1.0);
        let narrows = user::as_checked_user(user_of(rel), || table.narrows(&conditions));
        let seen = if narrows { rows } else { (*rel).tuples.max(rows) };
        let sorted = if is_sorted && !narrows { rows * 0.01 } else { 0.0 };
        let startup = ROUND_TRIP + evaluated.startup + sorted;
        (startup, startup + seen * ROW_SEEN / table.parallelism() as f64 + rows * (ROW_SENT + evaluated.per_tuple))
    }
}

/// What a path keeps for [`super::scan_plan`]. `limited`: the path returns no more rows than LIMIT and OFFSET need.
pub(super) unsafe fn private(order: Option<&Json>, limited: bool) -> *mut pg_sys::List {
    let text = json!({"order": order, "limited": limited}).to_string();
    // SAFETY: in the planner's memory context.
    unsafe { string_list(&text) }
}

/// # Safety
/// In a memory context that keeps it.
pub(super) unsafe fn string_list(text: &str) -> *mut pg_sys::List {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: copied into the current memory context.
    unsafe { pg_sys::lappend(null_mut(), pg_sys::makeString(pg_sys::pstrdup(text.as_ptr())).cast()) }
}

/// # Safety
/// A list that [`string_list`] has made.
pub(super) unsafe fn string_of(list: *mut pg_sys::List) -> String {
    // SAFETY: promised by the caller.
    unsafe {
        PgList::<pg_sys::String>::from_pg(list).get_ptr(0).map_or_else(String::new, |string| text((*string).sval))
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn paths(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
) {
    // SAFETY: PostgreSQL's planner calls this for a base relation after [`size`].
    unsafe {
        let opened = open(table);
        let divided = divide(root, rel, &*opened, (*rel).baserestrictinfo);
        let lateral = (*rel).lateral_relids;
        let (startup, total) = costs(root, rel, &divided, &*opened, false);
        let rows = (*rel).rows;
        let new = |target, rows, startup, total, keys, outer, private| {
            version::foreign_scan_path(root, rel, target, rows, (startup, total), keys, outer, private)
        };
        pg_sys::add_path(rel, new(null_mut(), rows, startup, total, null_mut(), lateral, private(None, false)).cast());
        let keys = (*root).query_pathkeys;
        if let Some(order) = order(root, rel, &*opened, keys, &divided.not_null) {
            let (startup, total) = costs(root, rel, &divided, &*opened, true);
            let private = private(Some(&order), false);
            pg_sys::add_path(rel, new(null_mut(), rows, startup, total, keys, lateral, private).cast());
        }
        for outer in outer_relations(root, rel, &*opened) {
            let info = pg_sys::get_baserel_parampathinfo(root, rel, outer);
            if info.is_null() {
                continue;
            }
            let all = pg_sys::list_concat_copy((*rel).baserestrictinfo, (*info).ppi_clauses);
            let divided = divide(root, rel, &*opened, all);
            let rows = (*info).ppi_rows;
            let conditions: Vec<Json> =
                divided.plan.conditions.iter().map(|(condition, _)| condition.clone()).collect();
            let narrows = user::as_checked_user(user_of(rel), || opened.narrows(&conditions));
            let seen = if narrows { rows } else { (*rel).tuples };
            let total = ROUND_TRIP + seen * ROW_SEEN / opened.parallelism() as f64 + rows * ROW_SENT;
            pg_sys::add_path(
                rel,
                new(null_mut(), rows, ROUND_TRIP, total, null_mut(), outer, private(None, false)).cast(),
            );
        }
    }
}

/// The sets of other relations with which this table has join conditions that it can evaluate.
///
/// # Safety
/// A base relation.
unsafe fn outer_relations(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: &dyn Table,
) -> Vec<pg_sys::Relids> {
    let mut found: Vec<pg_sys::Relids> = Vec::new();
    // SAFETY: promised by the caller.
    unsafe {
        let mut consider = |restriction: *mut pg_sys::RestrictInfo| {
            if !pg_sys::join_clause_is_movable_to(restriction, rel) {
                return;
            }
            let mut reader = Reader::new(root, (*rel).relid);
            let clause = reader.clause((*restriction).clause.cast());
            if table.translate(&clause).is_none() {
                return;
            }
            let mut outer = pg_sys::bms_union((*restriction).clause_relids, (*rel).lateral_relids);
            outer = pg_sys::bms_del_member(outer, (*rel).relid as i32);
            if !outer.is_null() && !found.iter().any(|known| pg_sys::bms_equal(*known, outer)) {
                found.push(outer);
            }
        };
        for restriction in PgList::<pg_sys::RestrictInfo>::from_pg((*rel).joininfo).iter_ptr() {
            consider(restriction);
        }
        if (*rel).has_eclass_joins {
            for number in (*rel).min_attr.max(1)..=(*rel).max_attr {
                let mut number = number;
                let derived = pg_sys::generate_implied_equalities_for_column(
                    root,
                    rel,
                    Some(is_column),
                    (&raw mut number).cast(),
                    (*rel).lateral_referencers,
                );
                for restriction in PgList::<pg_sys::RestrictInfo>::from_pg(derived).iter_ptr() {
                    consider(restriction);
                }
            }
        }
    }
    found
}

/// True if a member of an equivalence class is the column with this number.
unsafe extern "C-unwind" fn is_column(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    _class: *mut pg_sys::EquivalenceClass,
    member: *mut pg_sys::EquivalenceMember,
    number: *mut c_void,
) -> bool {
    // SAFETY: the planner passes on what `outer_relations` gave it.
    unsafe {
        let reader = Reader::new(root, (*rel).relid);
        reader.column((*member).em_expr.cast()) == Some(*number.cast::<i16>())
    }
}

/// The numbers of the columns in a set that `pull_varattnos` has made; all columns if the set has the whole row.
///
/// # Safety
/// A set of `pull_varattnos`, or null.
pub(super) unsafe fn numbers(set: *mut pg_sys::Bitmapset, greatest: i16) -> Vec<i16> {
    let mut found = Vec::new();
    let mut member = -1;
    loop {
        // SAFETY: promised by the caller.
        member = unsafe { pg_sys::bms_next_member(set, member) };
        if member < 0 {
            return found;
        }
        let number = member + pg_sys::FirstLowInvalidHeapAttributeNumber;
        if number == 0 {
            return (1..=greatest).collect();
        }
        found.extend(i16::try_from(number).ok().filter(|number| *number > 0));
    }
}

/// The value of an operand that is a constant; Some(None) for the constant NULL, None for any other expression.
///
/// # Safety
/// An expression.
pub(super) unsafe fn constant(node: *mut pg_sys::Node) -> Option<Option<value::SqlValue>> {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_Const {
            return None;
        }
        let constant = &*node.cast::<pg_sys::Const>();
        if constant.constisnull {
            return Some(None);
        }
        Some(value::of_datum(constant.constvalue, constant.consttype))
    }
}
