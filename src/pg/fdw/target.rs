//! The rows of a scan whose table the statement updates or deletes.
//!
//! Such a scan has rows of its own, which `fdw_scan_tlist` describes: the columns that the statement reads, the [`ORIGIN`] as `bytea`, and
//! the whole row, of which PostgreSQL makes the new row. In the whole row only the columns that something reads have values.

use super::interface::{ORIGIN, raise};
use super::value::{self, Kind, Scalar, SqlValue};
use crate::pg::error::{Error, Result};
use crate::pg::version;
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, pg_sys};
use std::ptr::null_mut;

/// The type of the origin.
const BYTEA: Kind = Kind { scalar: Scalar::Bytea, is_array: false, length: None, rounding: None };

/// The number of the whole row.
pub(super) const WHOLE: i16 = 0;
const TABLE: i16 = pg_sys::TableOidAttributeNumber as i16;

/// What the plan of a scan needs to know about rows that are written.
pub(super) struct Written {
    /// the scan's rows
    pub row: *mut pg_sys::List,
    /// the columns that are read, as `pull_varattnos` returns them
    pub read: *mut pg_sys::Bitmapset,
    /// all columns of a row are needed: see [`shows_rows`]
    pub shows_rows: bool,
}

/// Makes all whole rows in the plan of an UPDATE have one type, because a plan does not distinguish whole rows by their types. The whole
/// row that PostgreSQL itself adds has the type `record`. If the statement names whole rows, which have the table's type, the added row gets
/// that type, too.
///
/// # Safety
/// A base relation whose paths have not been made.
pub(super) unsafe fn unify_whole_rows(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
) {
    // SAFETY: promised by the caller; the targets are the planner's own copy.
    unsafe {
        if (*(*root).parse).resultRelation as i64 != i64::from((*rel).relid) {
            return;
        }
        let of_scan = vars(rel, (*(*rel).reltarget).exprs);
        let of_conditions = vars(rel, pg_sys::extract_actual_clauses((*rel).baserestrictinfo, false));
        if !of_scan.iter().chain(&of_conditions).any(|var| is_named_row(&**var)) {
            return;
        }
        for var in of_scan.into_iter().chain(vars(rel, (*root).processed_tlist)).filter(|var| is_new_row(&**var)) {
            (*var).vartype = pg_sys::get_rel_type_id(table);
        }
    }
}

/// Plans the rows of a scan for a write. None if the table is only read.
///
/// # Safety
/// A base relation, and the conditions on it that are evaluated here.
pub(super) unsafe fn plan(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    table: pg_sys::Oid,
    conditions: *mut pg_sys::List,
) -> Option<Written> {
    // SAFETY: promised by the caller.
    unsafe {
        // The scan's targets are taken from the relation: PostgreSQL passes an empty list of them where it replaces them later.
        let mut used = vars(rel, (*(*rel).reltarget).exprs);
        if !used.iter().any(|var| is_origin(&**var)) {
            return None;
        }
        used.append(&mut vars(rel, conditions));
        if used.iter().any(|var| is_new_row(&**var)) && used.iter().any(|var| is_named_row(&**var)) {
            let message = "an UPDATE of a table with parts cannot use whole rows, if a part is a table of docshard";
            raise::<()>(Err(Error::new(ErrorKind::NotImplemented, message)));
        }
        let shows_rows = shows_rows(root, table);
        let (mut row, mut numbers, mut read) = (PgList::<pg_sys::TargetEntry>::new(), Vec::new(), null_mut());
        for var in used {
            let number = (*var).varattno;
            if number > WHOLE || is_named_row(&*var) || is_new_row(&*var) && shows_rows {
                pg_sys::pull_varattnos(var.cast(), (*rel).relid, &raw mut read);
            }
            if numbers.contains(&number) {
                continue;
            }
            if !is_origin(&*var) {
                refuse_system_column(number);
            }
            numbers.push(number);
            let copy = pg_sys::copyObjectImpl(var.cast()).cast();
            row.push(pg_sys::makeTargetEntry(copy, numbers.len() as i16, null_mut(), false));
        }
        Some(Written { row: row.into_pg(), read, shows_rows })
    }
}

/// Refuses system columns, which documents do not have. If all rows had the same `ctid`, a condition on it would select all of them.
pub(super) fn refuse_system_column(number: i16) {
    if number < WHOLE && number != TABLE {
        let message = "a foreign table of docshard has no system columns but tableoid";
        let error = Error::new(ErrorKind::NotImplemented, message);
        raise::<()>(Err(error.with_hint("Rows are identified by _id and the shard key.")));
    }
}

/// The system column that identifies a row of a local table.
pub(super) const MARK: i16 = pg_sys::SelfItemPointerAttributeNumber as i16;

/// The number that stands for a column in a set that `pull_varattnos` has made.
pub(super) fn member(number: i16) -> i32 {
    i32::from(number) - pg_sys::FirstLowInvalidHeapAttributeNumber
}

/// True if PostgreSQL asks for the [`MARK`] of a table, and the statement itself does not name it above the table's scan. PostgreSQL asks
/// all partitions or children of a table for their mark if one of them is a local table, whose row PostgreSQL may have to find again.
///
/// # Safety
/// A base relation, or a part of one.
pub(super) unsafe fn is_only_marked(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let mut top = (*rel).relid as i32;
        if !(*rel).top_parent_relids.is_null()
            && !pg_sys::bms_get_singleton_member((*rel).top_parent_relids, &raw mut top)
        {
            return false;
        }
        let marks = PgList::<pg_sys::PlanRowMark>::from_pg((*root).rowMarks);
        let is_marked = marks.iter_ptr().any(|mark| (*mark).rti as i32 == top && (*mark).isParent);
        if !is_marked {
            return false;
        }
        // The planner notes this only for the whole table, not for its parts. The member 0 stands for the statement's results; a member
        // above it is a table of a join whose conditions name the column.
        let whole = pg_sys::find_base_rel(root, top);
        let above = *(*whole).attr_needed.add((MARK - (*whole).min_attr) as usize);
        if pg_sys::bms_next_member(above, 0) >= 0 {
            return false;
        }
        let names = |expression: *mut pg_sys::Node| {
            let mut found = null_mut();
            pg_sys::pull_varattnos(expression, top as pg_sys::Index, &raw mut found);
            pg_sys::bms_is_member(member(MARK), found)
        };
        let results = PgList::<pg_sys::TargetEntry>::from_pg((*root).processed_tlist);
        let is_result = results.iter_ptr().any(|entry| names((*entry).expr.cast()) && !is_mark(&*entry));
        !is_result && !names((*(*root).parse).returningList.cast())
    }
}

/// True for the entry that PostgreSQL adds for a mark, such as `ctid2`.
///
/// # Safety
/// An entry of the planner.
unsafe fn is_mark(entry: &pg_sys::TargetEntry) -> bool {
    // SAFETY: promised by the caller.
    let name = || unsafe { super::clause::text(entry.resname) };
    entry.resjunk && !entry.resname.is_null() && name().starts_with("ctid")
}

/// The columns of the relation that expressions name.
///
/// # Safety
/// Expressions of the planner.
unsafe fn vars(rel: *mut pg_sys::RelOptInfo, expressions: *mut pg_sys::List) -> Vec<*mut pg_sys::Var> {
    // SAFETY: promised by the caller; only the relation's own columns are in a scan, and parameters for others.
    unsafe {
        let flags = pg_sys::PVC_RECURSE_AGGREGATES | pg_sys::PVC_RECURSE_WINDOWFUNCS | pg_sys::PVC_RECURSE_PLACEHOLDERS;
        let found = PgList::<pg_sys::Var>::from_pg(pg_sys::pull_var_clause(expressions.cast(), flags as i32));
        let is_own = |var: &*mut pg_sys::Var| (**var).varno as i64 == i64::from((*rel).relid);
        found.iter_ptr().filter(is_own).collect()
    }
}

/// True for the column that `modify::add_targets` has added; false for the system column that has the same number.
fn is_origin(var: &pg_sys::Var) -> bool {
    var.varattno == ORIGIN && var.vartype == pg_sys::BYTEAOID
}

/// True for the whole row that PostgreSQL itself asks for.
fn is_new_row(var: &pg_sys::Var) -> bool {
    var.varattno == WHOLE && var.vartype == pg_sys::RECORDOID
}

/// True for a whole row that the statement names.
fn is_named_row(var: &pg_sys::Var) -> bool {
    var.varattno == WHOLE && !is_new_row(var)
}

/// True if all columns of a row that is updated or deleted are needed: by triggers, by generated columns, or by RETURNING of the old row.
///
/// # Safety
/// A table that the planner has locked.
unsafe fn shows_rows(root: *mut pg_sys::PlannerInfo, table: pg_sys::Oid) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let parse = &*(*root).parse;
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let shows = match (*relation).trigdesc.as_ref() {
            Some(triggers) if parse.commandType == pg_sys::CmdType::CMD_UPDATE => {
                triggers.trig_update_before_row || triggers.trig_update_after_row
            }
            Some(triggers) => triggers.trig_delete_before_row || triggers.trig_delete_after_row,
            None => false,
        };
        let is_computed = version::attributes((*relation).rd_att).iter().any(|attribute| attribute.attgenerated != 0);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        shows || is_computed || version::returns_old_rows(parse)
    }
}

/// Makes the rows of a scan from the values of the table's rows.
pub(super) struct Rows {
    relation: pg_sys::Relation,
    /// the column numbers of a row of the scan, in order
    numbers: Vec<i16>,
    /// the values of the present row, for each column of the table
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
    origin: Option<pg_sys::Datum>,
}

impl Rows {
    /// # Safety
    /// The scan's relation, which is open, and what [`plan`] has returned as its rows.
    pub(super) unsafe fn new(relation: pg_sys::Relation, row: *mut pg_sys::List) -> Self {
        // SAFETY: promised by the caller.
        unsafe {
            let entries = PgList::<pg_sys::TargetEntry>::from_pg(row);
            let numbers = entries.iter_ptr().map(|entry| (*(*entry).expr.cast::<pg_sys::Var>()).varattno).collect();
            let count = (*(*relation).rd_att).natts as usize;
            let (values, nulls) = (vec![pg_sys::Datum::from(0); count], vec![true; count]);
            Self { relation, numbers, values, nulls, origin: None }
        }
    }

    pub(super) fn clear(&mut self) {
        self.nulls.fill(true);
        self.origin = None;
    }

    /// Takes a value of the present row, or its origin.
    ///
    /// # Safety
    /// In the memory of a row.
    pub(super) unsafe fn put(&mut self, number: i16, value: &SqlValue, kinds: &[Option<(Kind, i32)>]) -> Result<()> {
        if number == ORIGIN {
            // SAFETY: promised by the caller.
            self.origin = Some(unsafe { value::to_datum(value, BYTEA, -1) }?);
            return Ok(());
        }
        let at = number as usize - 1;
        if let Some(Some((kind, modifier))) = kinds.get(at) {
            // SAFETY: promised by the caller.
            self.values[at] = unsafe { value::to_datum(value, *kind, *modifier) }?;
            self.nulls[at] = false;
        }
        Ok(())
    }

    /// Puts the row into the scan's slot.
    ///
    /// # Safety
    /// The slot has the columns of this scan; in the memory of a row.
    pub(super) unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot) {
        for (at, number) in self.numbers.iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe {
                let value = match *number {
                    ORIGIN => self.origin,
                    WHOLE => Some(self.whole()),
                    TABLE => Some((*self.relation).rd_id.into()),
                    number => {
                        let at = number as usize - 1;
                        (!self.nulls[at]).then(|| self.values[at])
                    }
                };
                *(*slot).tts_values.add(at) = value.unwrap_or(0.into());
                *(*slot).tts_isnull.add(at) = value.is_none();
            }
        }
    }

    /// The whole row. PostgreSQL's compiled expressions assume that a NOT NULL column has a value. So a NOT NULL column that was not read
    /// gets an empty value, which nothing reads.
    ///
    /// # Safety
    /// In the memory of a row.
    unsafe fn whole(&self) -> pg_sys::Datum {
        let (mut values, mut nulls) = (self.values.clone(), self.nulls.clone());
        // SAFETY: promised by the caller; an empty value of a variable length is its header.
        unsafe {
            for (at, attribute) in version::attributes((*self.relation).rd_att).iter().enumerate() {
                if !nulls[at] || !attribute.attnotnull || attribute.attisdropped {
                    continue;
                }
                nulls[at] = false;
                values[at] = match attribute.attlen {
                    _ if attribute.attbyval => pg_sys::Datum::from(0),
                    length if length > 0 => pg_sys::palloc0(length as usize).into(),
                    _ => value::to_datum(&SqlValue::Bytes(Vec::new()), BYTEA, -1).unwrap_or(0.into()),
                };
            }
            let tuple = pg_sys::heap_form_tuple((*self.relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
        }
    }
}
