//! The planner's callback for what comes above a scan: groups and distinct rows, and LIMIT.
//!
//! If the table can evaluate all conditions, and each key and aggregate of `GROUP BY`, a path replaces the groups of PostgreSQL's executor:
//! a scan whose rows are groups. `HAVING`, expressions over the results, and an order are evaluated here. For a statement over one table
//! that evaluates all conditions and the order, another path ends after LIMIT and OFFSET; PostgreSQL's own Limit node stays above it.

use super::clause::{Reader, collation_of, operator_of, without_relabel};
use super::define::open;
use super::interface::{AggregateCall, Function, Groups};
use super::plan::{Divided, ROUND_TRIP, ROW_SEEN, ROW_SENT, divide, numbers, order, private, string_list, user_of};
use super::value::Kind;
use crate::pg::fdw::clause::Operator;
use crate::pg::security::user;
use crate::pg::version;
use pgrx::{PgList, pg_guard, pg_sys};
use serde_json::{Value as Json, json};
use std::ffi::c_void;
use std::ptr::null_mut;

type Stage = pg_sys::UpperRelationKind::Type;

/// Groups, and the expressions of a row of them: the keys, and then the aggregates.
pub(super) struct Grouped {
    pub groups: Groups,
    pub expressions: Vec<*mut pg_sys::Node>,
    /// the conditions on the rows that are grouped
    pub divided: Divided,
}

/// Adds paths for groups and for LIMIT.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn paths(
    root: *mut pg_sys::PlannerInfo,
    stage: Stage,
    input: *mut pg_sys::RelOptInfo,
    output: *mut pg_sys::RelOptInfo,
    extra: *mut c_void,
) {
    // SAFETY: PostgreSQL's planner calls this when all paths of the stage below are known.
    unsafe {
        match stage {
            pg_sys::UpperRelationKind::UPPERREL_GROUP_AGG | pg_sys::UpperRelationKind::UPPERREL_DISTINCT => {
                group(root, stage, input, output);
            }
            pg_sys::UpperRelationKind::UPPERREL_FINAL => limit(root, output, extra),
            _ => {}
        }
    }
}

/// Adds a path whose rows are groups.
///
/// # Safety
/// The same as for [`paths`].
unsafe fn group(
    root: *mut pg_sys::PlannerInfo,
    stage: Stage,
    input: *mut pg_sys::RelOptInfo,
    output: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: promised by the caller.
    unsafe {
        if !is_one_table(root, input) {
            return;
        }
        let Some(Grouped { divided, .. }) = grouped(root, stage, input) else { return };
        let conditions = conditions(&divided);
        let opened = open((*pg_sys::planner_rt_fetch((*input).relid, root)).relid);
        let narrows = user::as_checked_user(user_of(input), || opened.narrows(&conditions));
        let seen = if narrows { (*input).rows } else { (*input).tuples.max((*input).rows) };
        // PostgreSQL has estimated the groups for its own path.
        let known = PgList::<pg_sys::Path>::from_pg((*output).pathlist);
        let rows = known.get_ptr(0).map_or((*input).rows, |path| (*path).rows);
        let total = (ROUND_TRIP + seen * ROW_SEEN / opened.parallelism() as f64 + rows * ROW_SENT) * 0.9;
        let private = string_list(&json!({"relation": (*input).relid, "stage": stage}).to_string());
        let target = (*root).upper_targets[stage as usize];
        let path = version::foreign_upper_path(root, output, target, rows, (total - rows * ROW_SENT, total), private);
        pg_sys::add_path(output, path.cast());
    }
}

/// The groups of a path that [`group`] has made, and the table below them; None for another path.
///
/// # Safety
/// `remembered` must come from a path that [`paths`] has made for this plan.
pub(super) unsafe fn of_path(
    root: *mut pg_sys::PlannerInfo,
    remembered: &Json,
) -> Option<(*mut pg_sys::RelOptInfo, Stage, Grouped)> {
    let number = |name: &str| remembered.get(name).and_then(Json::as_u64).and_then(|number| u32::try_from(number).ok());
    let (relation, stage) = (number("relation")?, number("stage")?);
    // SAFETY: promised by the caller.
    unsafe {
        let rel = pg_sys::find_base_rel(root, relation as i32);
        Some((rel, stage, grouped(root, stage, rel)?))
    }
}

fn conditions(divided: &Divided) -> Vec<Json> {
    divided.plan.conditions.iter().map(|(condition, _)| condition.clone()).collect()
}

/// True if the relation is one foreign table, and all its conditions are evaluated on its rows.
///
/// # Safety
/// A relation of the planner, below a stage.
pub(super) unsafe fn is_one_table(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        if (*rel).reloptkind != pg_sys::RelOptKind::RELOPT_BASEREL || (*rel).rtekind != pg_sys::RTEKind::RTE_RELATION {
            return false;
        }
        let entry = pg_sys::planner_rt_fetch((*rel).relid, root);
        // A condition without columns is evaluated above the scan.
        let pseudo = PgList::<pg_sys::RestrictInfo>::from_pg((*rel).baserestrictinfo);
        (*entry).relkind as u8 == pg_sys::RELKIND_FOREIGN_TABLE
            && !(*entry).inh
            && (*rel).lateral_relids.is_null()
            && !pseudo.iter_ptr().any(|restriction| (*restriction).pseudoconstant)
    }
}

/// Reads the groups of a statement over one table; None if PostgreSQL must group.
///
/// # Safety
/// The relation is below this stage of the planner.
unsafe fn grouped(root: *mut pg_sys::PlannerInfo, stage: Stage, rel: *mut pg_sys::RelOptInfo) -> Option<Grouped> {
    // SAFETY: promised by the caller.
    unsafe {
        let parse = &*(*root).parse;
        let is_distinct = stage == pg_sys::UpperRelationKind::UPPERREL_DISTINCT;
        let clauses = if is_distinct { parse.distinctClause } else { parse.groupClause };
        if !parse.groupingSets.is_null() || parse.hasTargetSRFs || !parse.rowMarks.is_null() {
            return None;
        }
        if is_distinct && (parse.hasDistinctOn || parse.hasAggs || parse.hasWindowFuncs || !parse.groupClause.is_null())
        {
            return None;
        }
        let target = &*(*root).upper_targets[stage as usize];
        let reader = Reader::new(root, (*rel).relid);
        let mut groups = Groups { is_whole: clauses.is_null(), ..Groups::default() };
        let mut keys: Vec<*mut pg_sys::Node> = Vec::new();
        let mut others = Vec::new();
        for (at, node) in PgList::<pg_sys::Node>::from_pg(target.exprs).iter_ptr().enumerate() {
            let reference = if target.sortgrouprefs.is_null() { 0 } else { *target.sortgrouprefs.add(at) };
            let clause = pg_sys::get_sortgroupref_clause_noerr(reference, clauses);
            if reference == 0 || clause.is_null() {
                others.push(node);
                continue;
            }
            if operator_of((*clause).eqop) != Some(Operator::Equal) {
                return None;
            }
            groups.keys.push((reader.column(node)?, collation_of(pg_sys::exprCollation(node))));
            keys.push(node);
        }
        if is_distinct && !others.is_empty() {
            return None;
        }
        if !is_distinct {
            others.extend(PgList::<pg_sys::Node>::from_pg(parse.havingQual.cast()).iter_ptr());
        }
        let mut calls: Vec<*mut pg_sys::Node> = Vec::new();
        let flags = pg_sys::PVC_INCLUDE_AGGREGATES | pg_sys::PVC_INCLUDE_WINDOWFUNCS | pg_sys::PVC_INCLUDE_PLACEHOLDERS;
        for node in others {
            for part in PgList::<pg_sys::Node>::from_pg(pg_sys::pull_var_clause(node, flags as i32)).iter_ptr() {
                let known =
                    |list: &[*mut pg_sys::Node]| list.iter().any(|known| pg_sys::equal((*known).cast(), part.cast()));
                match (*part).type_ {
                    pg_sys::NodeTag::T_Var if known(&keys) => {}
                    pg_sys::NodeTag::T_Aggref if known(&calls) => {}
                    pg_sys::NodeTag::T_Aggref => {
                        groups.calls.push(call(&reader, &*part.cast())?);
                        calls.push(part);
                    }
                    _ => return None,
                }
            }
        }
        let opened = open((*pg_sys::planner_rt_fetch((*rel).relid, root)).relid);
        let divided = divide(root, rel, &*opened, (*rel).baserestrictinfo);
        if !divided.local.is_empty() {
            return None;
        }
        groups.compared = numbers(divided.columns, (*rel).max_attr);
        let can = opened.can_group(&groups);
        keys.append(&mut calls);
        can.then_some(Grouped { groups, expressions: keys, divided })
    }
}

/// The aggregate function with this OID. None for functions of types that a column cannot have, and for those whose results depend on the
/// order of rows or are rounded.
fn function_of(number: pg_sys::Oid) -> Option<Function> {
    Some(match number.to_u32() {
        2147 | 2803 => Function::Count,
        2107..=2109 => Function::Sum,
        2100..=2102 => Function::Avg,
        2115..=2117 | 2122 | 2126 | 2127 | 2129 => Function::Max,
        2131..=2133 | 2138 | 2142 | 2143 | 2145 => Function::Min,
        _ => return None,
    })
}

/// # Safety
/// An aggregate of the planner's query.
unsafe fn call(reader: &Reader, aggregate: &pg_sys::Aggref) -> Option<AggregateCall> {
    // SAFETY: promised by the caller.
    unsafe {
        let is_plain = aggregate.aggorder.is_null()
            && aggregate.aggdistinct.is_null()
            && aggregate.aggfilter.is_null()
            && aggregate.aggdirectargs.is_null()
            && !aggregate.aggvariadic
            && aggregate.agglevelsup == 0
            && aggregate.aggsplit == pg_sys::AggSplit::AGGSPLIT_SIMPLE;
        let function = function_of(aggregate.aggfnoid).filter(|_| is_plain)?;
        let arguments = PgList::<pg_sys::TargetEntry>::from_pg(aggregate.args);
        let column = match arguments.get_ptr(0) {
            None => None,
            Some(argument) => {
                let argument = without_relabel((*argument).expr.cast());
                Kind::of(pg_sys::exprType(argument), -1)?;
                Some(reader.column(argument)?)
            }
        };
        Some(AggregateCall { function, column, collation: collation_of(aggregate.inputcollid) })
    }
}

/// Adds a path that ends after LIMIT, below PostgreSQL's Limit node.
///
/// # Safety
/// The same as for [`paths`].
unsafe fn limit(root: *mut pg_sys::PlannerInfo, output: *mut pg_sys::RelOptInfo, extra: *mut c_void) {
    // SAFETY: promised by the caller.
    unsafe {
        let parse = &*(*root).parse;
        let is_plain = parse.commandType == pg_sys::CmdType::CMD_SELECT
            && !parse.limitCount.is_null()
            && parse.limitOption == pg_sys::LimitOption::LIMIT_OPTION_COUNT
            && parse.rowMarks.is_null()
            && !parse.hasAggs
            && !parse.hasWindowFuncs
            && !parse.hasTargetSRFs
            && parse.groupClause.is_null()
            && parse.groupingSets.is_null()
            && parse.distinctClause.is_null()
            && parse.setOperations.is_null()
            && parse.havingQual.is_null();
        let mut number = 0;
        if !is_plain || !pg_sys::bms_get_singleton_member((*root).all_baserels, &raw mut number) {
            return;
        }
        let rel = pg_sys::find_base_rel(root, number);
        let plain = [parse.limitCount, parse.limitOffset]
            .into_iter()
            .all(|node| node.is_null() || !pg_sys::contain_volatile_functions(node) && !pg_sys::contain_subplans(node));
        if !is_one_table(root, rel) || !plain {
            return;
        }
        let opened = open((*pg_sys::planner_rt_fetch((*rel).relid, root)).relid);
        let divided = divide(root, rel, &*opened, (*rel).baserestrictinfo);
        if !divided.local.is_empty() {
            return;
        }
        let keys = (*root).sort_pathkeys;
        let order = order(root, rel, &*opened, keys, &divided.not_null);
        if !keys.is_null() && order.is_none() {
            return;
        }
        let target = (*root).upper_targets[pg_sys::UpperRelationKind::UPPERREL_FINAL as usize];
        let final_extra = &*extra.cast::<pg_sys::FinalPathExtraData>();
        let rows = if final_extra.limit_tuples > 0.0 { final_extra.limit_tuples.min((*rel).rows) } else { (*rel).rows };
        let conditions = conditions(&divided);
        let narrows = user::as_checked_user(user_of(rel), || opened.narrows(&conditions));
        let seen = if narrows || keys.is_null() { rows } else { (*rel).tuples };
        let total = ROUND_TRIP + seen * ROW_SEEN / opened.parallelism() as f64 + rows * ROW_SENT;
        let cost = (ROUND_TRIP * 0.9, total * 0.9);
        let private = private(order.as_ref(), true);
        let path = version::foreign_scan_path(root, rel, target, rows, cost, keys, null_mut(), private);
        let limit = pg_sys::create_limit_path(
            root,
            output,
            path.cast(),
            parse.limitOffset,
            parse.limitCount,
            parse.limitOption,
            final_extra.offset_est,
            final_extra.count_est,
        );
        pg_sys::add_path(output, limit.cast());
    }
}
