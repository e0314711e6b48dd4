//! The planner's callback that makes the plan of a scan from a path of [`super::plan`], [`super::upper`] or [`super::join`].

use super::define::open;
use super::interface::{ScanPlan, raise};
use super::plan::{divide, numbers, string_list, string_of};
use super::target;
use super::upper::{self, Grouped};
use crate::pg::error::Error;
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, pg_guard, pg_sys};
use serde_json::Value as Json;
use std::ptr::null_mut;

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn plan(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
    path: *mut pg_sys::ForeignPath,
    targets: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    outer: *mut pg_sys::Plan,
) -> *mut pg_sys::ForeignScan {
    // SAFETY: PostgreSQL's planner calls this with a path that this module has made.
    unsafe {
        let remembered: Json = serde_json::from_str(&string_of((*path).fdw_private)).unwrap_or_default();
        if let Some(grouped) = upper::of_path(root, &remembered) {
            return plan_groups(root, grouped, targets);
        }
        refuse_locks(root, rel);
        let opened = open(table);
        let mut divided = divide(root, rel, &*opened, clauses);
        let mut scan = std::mem::take(&mut divided.plan);
        scan.order = remembered.get("order").filter(|order| !order.is_null()).cloned();
        if remembered.get("limited") == Some(&Json::Bool(true)) {
            let parse = &*(*root).parse;
            let mut operand = |node: *mut pg_sys::Node| {
                divided.operands.extend((!node.is_null()).then_some(node));
                (!node.is_null()).then(|| divided.operands.len() - 1)
            };
            (scan.limit, scan.offset) = (operand(parse.limitCount), operand(parse.limitOffset));
        }
        if let Some(batch) = remembered.get("batch") {
            scan.conditions.push((batch.clone(), divided.operands.len()));
            scan.has_batch = true;
        }
        // The statement reads the columns that are needed above the scan, and those of all its conditions: a value that does not fit its
        // column is an error even if only a shard compares it.
        let mut needed = divided.columns;
        let local = divided.local.into_pg();
        let mut remote = divided.remote.into_pg();
        let mut row = null_mut();
        if let Some(written) = target::plan(root, rel, table, local) {
            (scan.is_target, scan.shows_rows) = (true, written.shows_rows);
            needed = pg_sys::bms_union(needed, written.read);
            // A row that is written has no conditions to be evaluated again.
            (remote, row) = (null_mut(), written.row);
        } else {
            needed = pg_sys::bms_union(needed, shown_columns(root, rel));
            for number in pg_sys::FirstLowInvalidHeapAttributeNumber + 1..0 {
                if pg_sys::bms_is_member(target::member(number as i16), needed) {
                    target::refuse_system_column(number as i16);
                }
            }
        }
        scan.columns = numbers(needed, (*rel).max_attr);
        let private = string_list(&serde_json::to_string(&scan).unwrap_or_default());
        let operands = copied(divided.operands);
        pg_sys::make_foreignscan(targets, local, (*rel).relid, operands, private, row, remote, outer)
    }
}

/// The columns that are needed above a scan, as PostgreSQL's set of columns.
///
/// # Safety
/// A relation of the planner.
unsafe fn shown_columns(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> *mut pg_sys::Bitmapset {
    // SAFETY: promised by the caller.
    unsafe {
        let mut shown = null_mut();
        pg_sys::pull_varattnos((*(*rel).reltarget).exprs.cast(), (*rel).relid, &raw mut shown);
        if target::is_only_marked(root, rel) {
            // The scan returns no valid `ctid`, and needs none: PostgreSQL reads the `ctid` only of local partitions.
            shown = pg_sys::bms_del_member(shown, target::member(target::MARK));
        }
        shown
    }
}

/// Copies expressions into a list.
///
/// # Safety
/// Expressions of the planner.
unsafe fn copied(expressions: Vec<*mut pg_sys::Node>) -> *mut pg_sys::List {
    let mut list = PgList::<pg_sys::Node>::new();
    for expression in expressions {
        // SAFETY: promised by the caller.
        list.push(unsafe { pg_sys::copyObjectImpl(expression.cast()).cast() });
    }
    list.into_pg()
}

/// The plan of a scan whose rows are groups.
///
/// # Safety
/// The second argument must be a result of [`upper::of_path`], and `targets` those of the same path.
unsafe fn plan_groups(
    root: *mut pg_sys::PlannerInfo,
    (_, stage, grouped): (*mut pg_sys::RelOptInfo, pg_sys::UpperRelationKind::Type, Grouped),
    targets: *mut pg_sys::List,
) -> *mut pg_sys::ForeignScan {
    let Grouped { groups, expressions, divided } = grouped;
    let scan = ScanPlan { groups: Some(groups), ..divided.plan };
    let text = serde_json::to_string(&scan).unwrap_or_default();
    // SAFETY: promised by the caller.
    unsafe {
        let mut row = PgList::<pg_sys::TargetEntry>::new();
        for (at, expression) in expressions.into_iter().enumerate() {
            let copy = pg_sys::copyObjectImpl(expression.cast()).cast();
            row.push(pg_sys::makeTargetEntry(copy, at as i16 + 1, null_mut(), false));
        }
        let having = match stage {
            pg_sys::UpperRelationKind::UPPERREL_GROUP_AGG => {
                pg_sys::copyObjectImpl((*(*root).parse).havingQual.cast()).cast()
            }
            _ => null_mut(),
        };
        pg_sys::make_foreignscan(
            targets,
            having,
            0,
            copied(divided.operands),
            string_list(&text),
            row.into_pg(),
            null_mut(),
            null_mut(),
        )
    }
}

/// Refuses `FOR UPDATE` and the like, which would lock nothing.
///
/// # Safety
/// A base relation.
unsafe fn refuse_locks(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) {
    // SAFETY: promised by the caller.
    unsafe {
        for mark in PgList::<pg_sys::PlanRowMark>::from_pg((*root).rowMarks).iter_ptr() {
            if (*mark).rti == (*rel).relid && (*mark).strength != pg_sys::LockClauseStrength::LCS_NONE {
                let error =
                    Error::new(ErrorKind::NotImplemented, "a table of docshard cannot lock the rows that it reads");
                raise(Err(error
                    .with_hint("Use find_one_and_update, or an update whose filter names the state that was read.")))
            }
        }
    }
}
