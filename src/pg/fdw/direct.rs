//! The callbacks of an UPDATE or DELETE that the table executes alone: rows are written where they are, and not returned first.
//!
//! The statement must write one table only, whose conditions the table evaluates exactly, and have no RETURNING. The new values must be
//! operands, which are evaluated once. PostgreSQL does not call these callbacks if there are row triggers, generated columns, or the check
//! of a view.

use super::clause::Reader;
use super::define::open;
use super::interface::{DirectWrite, ScanPlan, raise};
use super::plan::{string_list, string_of, user_of};
use super::scan;
use super::value::Kind;
use crate::pg::security::user;
use pgrx::{PgList, pg_guard, pg_sys};
use serde_json::Value as Json;
use std::ptr::null_mut;

/// Without an index, a direct write reads all rows twice, as it first searches for values that do not fit. This takes less time than
/// returning the rows to PostgreSQL if at least one row in this many is written.
const ROWS_OF_ONE_WRITE: f64 = 256.0;

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn plan(
    root: *mut pg_sys::PlannerInfo,
    plan: *mut pg_sys::ModifyTable,
    number: pg_sys::Index,
    _which: std::ffi::c_int,
) -> bool {
    // SAFETY: PostgreSQL's planner calls this for a target of an UPDATE or DELETE, with the plan below it.
    unsafe {
        let below = (*plan).plan.lefttree;
        let is_alone = (*(*root).parse).resultRelation as i64 == i64::from(number)
            && (*plan).rootRelation == 0
            && (*plan).returningLists.is_null()
            // The new values of `SET (a, b) = (SELECT …)` look like constants, but are computed for each row.
            && (*root).multiexpr_params.is_null()
            && !below.is_null()
            && (*below).type_ == pg_sys::NodeTag::T_ForeignScan;
        if !is_alone {
            return false;
        }
        let foreign = below.cast::<pg_sys::ForeignScan>();
        if (*foreign).scan.scanrelid != number || !(*foreign).scan.plan.qual.is_null() {
            return false;
        }
        let Ok(mut scan) = serde_json::from_str::<ScanPlan>(&string_of((*foreign).fdw_private)) else { return false };
        let is_update = (*plan).operation == pg_sys::CmdType::CMD_UPDATE;
        let Some(new) = (if is_update { new_values(root, number) } else { Some(Vec::new()) }) else { return false };
        let rel = pg_sys::find_base_rel(root, number as i32);
        let opened = open((*pg_sys::planner_rt_fetch(number, root)).relid);
        let set: Vec<i16> = new.iter().map(|(column, _)| *column).collect();
        let conditions: Vec<Json> = scan.conditions.iter().map(|(condition, _)| condition.clone()).collect();
        let pays = conditions.is_empty()
            || (*rel).rows * ROWS_OF_ONE_WRITE >= (*rel).tuples
            || user::as_checked_user(user_of(rel), || opened.narrows(&conditions));
        if !pays || !user::as_checked_user(user_of(rel), || opened.can_write(&scan.columns, &set)) {
            return false;
        }
        // If the answer may have changed, this relation is invalidated, and PostgreSQL plans a cached statement anew.
        if let Some(relation) = opened.watched() {
            let global = &mut *(*root).glob;
            global.relationOids = pg_sys::lappend_oid(global.relationOids, relation);
        }
        let mut operands = PgList::<pg_sys::Node>::from_pg((*foreign).fdw_exprs);
        let first = operands.len();
        let set = set.into_iter().enumerate().map(|(at, column)| (column, first + at)).collect();
        for (_, expression) in new {
            operands.push(pg_sys::copyObjectImpl(expression.cast()).cast());
        }
        scan.write = Some(DirectWrite { set: is_update.then_some(set), counts: (*plan).canSetTag });
        scan.is_target = false;
        (*foreign).fdw_exprs = operands.into_pg();
        (*foreign).fdw_private = string_list(&serde_json::to_string(&scan).unwrap_or_default());
        (*foreign).operation = (*plan).operation;
        (*foreign).resultRelation = number;
        true
    }
}

/// The columns that an UPDATE sets, with their new values. None if a value depends on a row, or cannot be an operand.
///
/// # Safety
/// A target of the planner's UPDATE.
unsafe fn new_values(root: *mut pg_sys::PlannerInfo, number: pg_sys::Index) -> Option<Vec<(i16, *mut pg_sys::Node)>> {
    // SAFETY: promised by the caller. The lists begin with the columns that are set, in the same order.
    unsafe {
        let (mut targets, mut columns) = (null_mut(), null_mut());
        pg_sys::get_translated_update_targetlist(root, number, &raw mut targets, &raw mut columns);
        let mut reader = Reader::new(root, number);
        let targets = PgList::<pg_sys::TargetEntry>::from_pg(targets);
        let columns = PgList::<i32>::from_pg(columns);
        let mut new = Vec::new();
        for (target, column) in targets.iter_ptr().zip(columns.iter_int()) {
            let expression: *mut pg_sys::Node = (*target).expr.cast();
            // Not an array: an operand loses its dimensions.
            Kind::of(pg_sys::exprType(expression), -1).filter(|kind| !kind.is_array)?;
            reader.operand(expression)?;
            new.push((i16::try_from(column).ok()?, expression));
        }
        Some(new)
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn iterate(node: *mut pg_sys::ForeignScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this after `scan::begin`, with a plan that `plan` has changed.
    unsafe {
        let slot = (*node).ss.ss_ScanTupleSlot;
        pg_sys::ExecClearTuple(slot);
        if let Some((written, counts)) = raise(scan::write(node)) {
            if counts {
                (*(*node).ss.ps.state).es_processed += written;
            }
            if let Some(measured) = (*node).ss.ps.instrument.as_mut() {
                measured.tuplecount += written as f64;
            }
        }
        slot
    }
}
