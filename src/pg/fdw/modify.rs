//! The callbacks of writes: INSERT, UPDATE, DELETE, COPY FROM and TRUNCATE.
//!
//! A row that is updated or deleted is found again by its origin, which the scan adds to the row. An origin is bytes that only the table
//! understands. Its type is the same for every table, so that all partitions share one column of the plan. The memory of a row is
//! reset before the next row. COPY hands over one row at a time; the table collects them, unless a trigger could notice that they are not
//! inserted yet.
//!
//! An UPDATE writes the columns that SET names, generated ones, and those that a BEFORE trigger has changed. Other columns of the new row
//! may be missing, because they were not read.

use super::collected;
use super::define;
use super::interface::{Access, Modify, ORIGIN, RowValues, raise, with_rights_of};
use super::plan::{numbers, string_list, string_of};
use super::value::{self, Kind, SqlValue};
use crate::pg::error::{Error, Result};
use crate::pg::memory::context;
use crate::pg::security::user;
use crate::pg::{server, version};
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, PgMemoryContexts, pg_guard, pg_sys};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

/// The largest number of rows that PostgreSQL hands over in one call. Large rows are fewer: see [`collected`].
const BATCH_ROWS: c_int = 1000;

/// The name of the plan's column with the origin.
const ORIGIN_NAME: &CStr = c"docshard_origin";

/// What a plan says about a write.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Private {
    /// columns that an UPDATE sets
    updated: Vec<i16>,
    /// columns that RETURNING names
    returned: Vec<i16>,
    /// `ON CONFLICT DO NOTHING`
    skips_conflicts: bool,
}

/// A type, its OID and its modifier.
type Typed = (Kind, pg_sys::Oid, i32);

struct State {
    modify: Box<dyn Modify>,
    /// number, type and modifier of each column
    columns: Vec<(i16, Option<Typed>)>,
    updated: Vec<i16>,
    /// a BEFORE trigger may change columns that SET does not name
    is_triggered: bool,
    /// the position of the origin in the plan's rows
    origin: i16,
    /// the plan's node below the write; null for COPY and for rows that an UPDATE routes to a partition
    source: *mut pg_sys::PlanState,
    skips_conflicts: bool,
    /// the kind of the row-security policies that inserted rows must satisfy
    policies: pg_sys::WCOKind::Type,
    /// the table may insert the rows later: when the write ends, at the latest
    collects: bool,
    /// the user whose privileges count
    user: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
}

/// Adds the column by which a row is found again.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn add_targets(
    root: *mut pg_sys::PlannerInfo,
    number: pg_sys::Index,
    _entry: *mut pg_sys::RangeTblEntry,
    _relation: pg_sys::Relation,
) {
    // SAFETY: PostgreSQL's planner calls this for the target of an UPDATE or DELETE, also for a partition. `plan` of the scan makes the
    // column.
    unsafe {
        let var = pg_sys::makeVar(number as _, ORIGIN, pg_sys::BYTEAOID, -1, pg_sys::InvalidOid, 0);
        pg_sys::add_row_identity_var(root, var, number, ORIGIN_NAME.as_ptr());
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn plan(
    _root: *mut pg_sys::PlannerInfo,
    plan: *mut pg_sys::ModifyTable,
    number: pg_sys::Index,
    which: c_int,
) -> *mut pg_sys::List {
    // SAFETY: PostgreSQL's planner calls this for a target of a statement; the lists have an entry for each, or are empty.
    unsafe {
        let of_target = |lists: *mut pg_sys::List| -> *mut pg_sys::List {
            PgList::<pg_sys::List>::from_pg(lists).get_ptr(which as usize).unwrap_or(null_mut())
        };
        let set = PgList::<i32>::from_pg(of_target((*plan).updateColnosLists));
        let updated = set.iter_int().filter_map(|number| i16::try_from(number).ok()).collect();
        let mut returned = null_mut();
        pg_sys::pull_varattnos(of_target((*plan).returningLists).cast(), number, &raw mut returned);
        let returned = numbers(returned, pg_sys::MaxHeapAttributeNumber as i16);
        let skips_conflicts = (*plan).onConflictAction == pg_sys::OnConflictAction::ONCONFLICT_NOTHING;
        string_list(&serde_json::to_string(&Private { updated, returned, skips_conflicts }).unwrap_or_default())
    }
}

/// # Safety
/// A target of a statement that is being started.
unsafe fn begin_state(
    mtstate: *mut pg_sys::ModifyTableState,
    target: *mut pg_sys::ResultRelInfo,
    private: Private,
    source: *mut pg_sys::PlanState,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let targets = if source.is_null() { null_mut() } else { (*(*source).plan).targetlist };
        let estate = (*mtstate).ps.state;
        let relation = (*target).ri_RelationDesc;
        let attributes = version::attributes((*relation).rd_att);
        let triggers = (*target).ri_TrigDesc.as_ref();
        let mut columns = Vec::new();
        let mut updated = private.updated;
        for attribute in attributes.iter().filter(|attribute| !attribute.attisdropped) {
            let kind = Kind::of(attribute.atttypid, attribute.atttypmod);
            match attribute.attgenerated as u8 {
                0 => {}
                // The value depends on other columns, so an UPDATE writes it, too.
                pg_sys::ATTRIBUTE_GENERATED_STORED => updated.push(attribute.attnum),
                // A virtual generated column is computed when it is read, and not stored.
                _ => continue,
            }
            columns.push((attribute.attnum, kind.map(|kind| (kind, attribute.atttypid, attribute.atttypmod))));
        }
        let is_triggered = triggers.is_some_and(|triggers| triggers.trig_update_before_row);
        let origin = pg_sys::ExecFindJunkAttributeInTlist(targets, ORIGIN_NAME.as_ptr());
        let is_copy = (*mtstate).ps.plan.is_null();
        // If rows are routed to a partition, the statement's triggers are those of the parent.
        let of_root = (*mtstate).rootResultRelInfo.as_ref().and_then(|root| root.ri_TrigDesc.as_ref());
        let notices = triggers
            .is_some_and(|triggers| triggers.trig_insert_before_row || triggers.trig_insert_after_row)
            || triggers.into_iter().chain(of_root).any(|triggers| triggers.trig_insert_after_statement);
        let user = version::user_of_target(target, estate);
        let user = if user == pg_sys::InvalidOid { server::current_user() } else { user };
        let table = define::open((*relation).rd_id);
        raise(define::check_owner(relation, user, &*table, Access::Write));
        let modify = raise(user::as_checked_user(user, || table.modify(private.returned)));
        let memory = context::of_execution((*estate).es_query_cxt, c"docshard foreign modify");
        let state = State {
            modify,
            columns,
            updated,
            is_triggered,
            origin,
            source,
            skips_conflicts: private.skips_conflicts,
            // An UPDATE may move rows into a partition.
            policies: match (*mtstate).operation {
                pg_sys::CmdType::CMD_UPDATE => pg_sys::WCOKind::WCO_RLS_UPDATE_CHECK,
                _ => pg_sys::WCOKind::WCO_RLS_INSERT_CHECK,
            },
            collects: is_copy && !notices,
            user,
            memory,
        };
        (*target).ri_FdwState =
            PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(Some(state)).cast();
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn begin(
    mtstate: *mut pg_sys::ModifyTableState,
    target: *mut pg_sys::ResultRelInfo,
    private: *mut pg_sys::List,
    _subplan: c_int,
    flags: c_int,
) {
    // SAFETY: PostgreSQL's executor calls this with what `plan` has returned.
    unsafe {
        if flags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as c_int != 0 {
            return;
        }
        let private = serde_json::from_str(&string_of(private)).unwrap_or_default();
        let source = (*mtstate).ps.lefttree;
        begin_state(mtstate, target, private, source);
        collected::collect(source);
    }
}

/// Begins COPY FROM, or the insertion of rows that are routed to a partition.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn begin_insert(
    mtstate: *mut pg_sys::ModifyTableState,
    target: *mut pg_sys::ResultRelInfo,
) {
    // SAFETY: PostgreSQL's executor calls this for a target without a plan of its own.
    unsafe {
        let plan = (*mtstate).ps.plan.cast::<pg_sys::ModifyTable>();
        // If the table is also a target of the UPDATE, rows that are moved into it could be updated once more.
        if !(*target).ri_FdwState.is_null() {
            let name = define::name_of((*target).ri_RelationDesc);
            let error = Error::new(
                ErrorKind::NotImplemented,
                format!("an UPDATE cannot move rows into the foreign table \"{name}\", which it updates, too"),
            );
            raise::<()>(Err(error.with_hint("Its condition must exclude the rows of that partition.")));
        }
        if let Some(plan) = plan.as_ref()
            && plan.onConflictAction == pg_sys::OnConflictAction::ONCONFLICT_UPDATE
        {
            raise::<()>(Err(Error::new(
                ErrorKind::NotImplemented,
                "ON CONFLICT DO UPDATE is not supported on a foreign table",
            )));
        }
        let skips_conflicts =
            plan.as_ref().is_some_and(|plan| plan.onConflictAction == pg_sys::OnConflictAction::ONCONFLICT_NOTHING);
        let source = (*mtstate).ps.lefttree;
        let is_insert = !source.is_null() && (*mtstate).operation == pg_sys::CmdType::CMD_INSERT;
        let source = if is_insert { source } else { null_mut() };
        begin_state(mtstate, target, Private { skips_conflicts, ..Private::default() }, source);
        if is_insert {
            collected::collect(source);
        }
    }
}

/// # Safety
/// A target that [`begin_state`] has prepared.
unsafe fn state<'a>(target: *mut pg_sys::ResultRelInfo) -> &'a mut State {
    // SAFETY: promised by the caller.
    match unsafe { (*target).ri_FdwState.cast::<Option<State>>().as_mut() } {
        Some(Some(state)) => state,
        _ => raise(Err(Error::new(ErrorKind::InternalError, "a write of a foreign table was not started"))),
    }
}

impl State {
    /// Runs `work` as the user whose privileges count, in the memory of one row.
    ///
    /// # Safety
    /// While the statement is executed.
    unsafe fn run<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> T {
        // SAFETY: what the last call has returned is no longer used.
        unsafe {
            pg_sys::MemoryContextReset(self.memory);
            let before = pg_sys::MemoryContextSwitchTo(self.memory);
            let done = raise(with_rights_of(self.user, || work(self)));
            pg_sys::MemoryContextSwitchTo(before);
            done
        }
    }

    /// The value of a column, None for NULL.
    ///
    /// # Safety
    /// A slot with a row of the table, whose columns have been read.
    unsafe fn value(slot: *mut pg_sys::TupleTableSlot, number: i16, kind: Option<Typed>) -> Result<Option<SqlValue>> {
        let at = number as usize - 1;
        // SAFETY: promised by the caller.
        unsafe {
            if *(*slot).tts_isnull.add(at) {
                return Ok(None);
            }
            let datum = *(*slot).tts_values.add(at);
            if kind.is_some_and(|(kind, ..)| kind.is_array) && value::has_dimensions(datum) {
                let message = "a document's array has one dimension, and begins with the element 1";
                return Err(Error::new(ErrorKind::NotImplemented, message)
                    .with_hint("Nested arrays can be in a column of type jsonb."));
            }
            let value = kind.and_then(|(_, oid, _)| value::of_datum(datum, oid));
            value.map(Some).ok_or_else(unknown_type)
        }
    }

    /// The values of all columns.
    ///
    /// # Safety
    /// A slot with a row of the table.
    unsafe fn row(&self, slot: *mut pg_sys::TupleTableSlot) -> Result<RowValues> {
        // SAFETY: promised by the caller.
        unsafe {
            pg_sys::slot_getallattrs(slot);
            let columns = self.columns.iter();
            columns.map(|(number, kind)| Ok((*number, Self::value(slot, *number, *kind)?))).collect()
        }
    }

    /// The values of the columns that an UPDATE changes.
    ///
    /// # Safety
    /// Slots with the new row and, if there are triggers, the old row.
    unsafe fn changed(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        before: *mut pg_sys::TupleTableSlot,
    ) -> Result<RowValues> {
        let mut row = Vec::new();
        // SAFETY: promised by the caller.
        unsafe {
            pg_sys::slot_getallattrs(slot);
            if self.is_triggered {
                pg_sys::slot_getallattrs(before);
            }
            for (number, kind) in &self.columns {
                if self.updated.contains(number) {
                    row.push((*number, Self::value(slot, *number, *kind)?));
                } else if self.is_triggered {
                    let value = Self::value(slot, *number, *kind)?;
                    if !is_same(value.as_ref(), Self::value(before, *number, *kind)?.as_ref()) {
                        row.push((*number, value));
                    }
                }
            }
        }
        Ok(row)
    }

    /// The origin of a row.
    ///
    /// # Safety
    /// A slot with a row of the plan.
    unsafe fn origin(&self, slot: *mut pg_sys::TupleTableSlot) -> Result<Vec<u8>> {
        let mut is_null = true;
        // SAFETY: promised by the caller; the position was found in the plan's targets, and the column is bytea.
        let datum = unsafe {
            if self.origin > 0 { pg_sys::slot_getattr(slot, self.origin.into(), &raw mut is_null) } else { 0.into() }
        };
        // SAFETY: as above.
        match (!is_null).then(|| unsafe { value::of_datum(datum, pg_sys::BYTEAOID) }) {
            Some(Some(SqlValue::Bytes(origin))) => Ok(origin),
            _ => Err(Error::new(ErrorKind::InternalError, "a row of a foreign table has no origin")),
        }
    }

    /// True if a row was written. If `is_read`, puts its values into the slot.
    ///
    /// # Safety
    /// The same as for [`fill`](Self::fill).
    unsafe fn has_written(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        stored: Option<RowValues>,
        is_read: bool,
    ) -> Result<bool> {
        match stored {
            // SAFETY: promised by the caller.
            Some(stored) if is_read => unsafe { self.fill(slot, stored) }.map(|()| true),
            stored => Ok(stored.is_some()),
        }
    }

    /// Puts the values that are stored into a slot.
    ///
    /// # Safety
    /// A slot of the table.
    unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, stored: RowValues) -> Result<()> {
        // SAFETY: promised by the caller; the values are in the memory of this row.
        unsafe {
            pg_sys::ExecClearTuple(slot);
            let count = (*(*slot).tts_tupleDescriptor).natts as usize;
            std::slice::from_raw_parts_mut((*slot).tts_isnull, count).fill(true);
            for (number, value) in stored {
                let kind = self.columns.iter().find(|(known, _)| *known == number).and_then(|(_, kind)| *kind);
                if let (Some(value), Some((kind, _, modifier))) = (value, kind) {
                    *(*slot).tts_values.add(number as usize - 1) = value::to_datum(&value, kind, modifier)?;
                    *(*slot).tts_isnull.add(number as usize - 1) = false;
                }
            }
            pg_sys::ExecStoreVirtualTuple(slot);
        }
        Ok(())
    }
}

/// True if an UPDATE need not write a column, because its old and new values are the same.
fn is_same(one: Option<&SqlValue>, other: Option<&SqlValue>) -> bool {
    match (one, other) {
        (Some(SqlValue::Float(one)), Some(SqlValue::Float(other))) => one.to_bits() == other.to_bits(),
        (Some(SqlValue::Array(one)), Some(SqlValue::Array(other))) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one.as_ref(), other.as_ref()))
        }
        _ => one == other,
    }
}

fn unknown_type() -> Error {
    Error::new(ErrorKind::NotImplemented, "a column has a type that a foreign table of docshard cannot have")
}

/// True if RETURNING or the check of a view reads the rows that are written, so that the stored values are put into the slots.
///
/// # Safety
/// A target of a statement.
unsafe fn is_read(target: *mut pg_sys::ResultRelInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe { !(*target).ri_projectReturning.is_null() || !(*target).ri_WithCheckOptions.is_null() }
}

/// Checks the row-security policies that a partition has from its parent. PostgreSQL itself checks them only for local tables.
///
/// # Safety
/// A target of a statement, and a slot with its new row.
unsafe fn check_policies(
    estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    kind: pg_sys::WCOKind::Type,
) {
    // SAFETY: promised by the caller.
    unsafe {
        if !(*target).ri_WithCheckOptions.is_null() {
            pg_sys::ExecWithCheckOptions(kind, target, slot, estate);
        }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn insert(
    estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    _planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let is_read =
            is_read(target) || (*target).ri_TrigDesc.as_ref().is_some_and(|triggers| triggers.trig_insert_after_row);
        check_policies(estate, target, slot, state(target).policies);
        let is_inserted = state(target).run(|state| {
            let row = state.row(slot)?;
            if state.collects {
                return state.modify.collect(row, false).map(|_| true);
            }
            let stored = state.modify.insert(row, state.skips_conflicts, is_read)?;
            state.has_written(slot, stored, is_read)
        });
        if is_inserted { slot } else { null_mut() }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn insert_batch(
    _estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slots: *mut *mut pg_sys::TupleTableSlot,
    _planned: *mut *mut pg_sys::TupleTableSlot,
    count: *mut c_int,
) -> *mut *mut pg_sys::TupleTableSlot {
    // SAFETY: as above; there are `count` slots.
    unsafe {
        let given = usize::try_from(*count).unwrap_or(0);
        let state = state(target);
        // The memory is reset before each row, because a value that is compressed or stored externally is copied here.
        let mut inserted = 0;
        for at in 0..given {
            inserted += state.run(|state| state.modify.collect(state.row(*slots.add(at))?, state.skips_conflicts));
        }
        inserted += state.run(|state| state.modify.finish(state.skips_conflicts));
        *count = inserted as c_int;
        // `collected` may have set a smaller batch size.
        (*target).ri_BatchSize = BATCH_ROWS;
        slots
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn batch_size(target: *mut pg_sys::ResultRelInfo) -> c_int {
    // SAFETY: PostgreSQL's executor calls this for a target of an INSERT.
    unsafe {
        let triggers = (*target).ri_TrigDesc.as_ref();
        let by_row = is_read(target)
            || triggers.is_some_and(|triggers| triggers.trig_insert_before_row || triggers.trig_insert_after_row);
        if by_row { 1 } else { BATCH_ROWS }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn update(
    estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let is_read =
            is_read(target) || (*target).ri_TrigDesc.as_ref().is_some_and(|triggers| triggers.trig_update_after_row);
        let before = (*target).ri_oldTupleSlot;
        let is_updated = state(target).run(|state| {
            let (origin, new) = (state.origin(planned)?, state.changed(slot, before)?);
            let stored = state.modify.update(&origin, new, is_read)?;
            state.has_written(slot, stored, is_read)
        });
        if !is_updated {
            return null_mut();
        }
        // Not before the write, because the row then lacks columns that were not read.
        check_policies(estate, target, slot, pg_sys::WCOKind::WCO_RLS_UPDATE_CHECK);
        slot
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn delete(
    _estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as above. RETURNING reads the deleted row in this slot.
    unsafe {
        let is_read = is_read(target);
        let is_deleted = state(target).run(|state| {
            let stored = state.modify.delete(&state.origin(planned)?, is_read)?;
            state.has_written(slot, stored, is_read)
        });
        if is_deleted { slot } else { null_mut() }
    }
}

/// `TRUNCATE`. CASCADE and RESTART IDENTITY have no effect on a foreign table.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn truncate(
    relations: *mut pg_sys::List,
    _behavior: pg_sys::DropBehavior::Type,
    _restart_sequences: bool,
) {
    // SAFETY: PostgreSQL has locked these tables, and checked the current user's privileges.
    unsafe {
        for relation in PgList::<pg_sys::RelationData>::from_pg(relations).iter_ptr() {
            let table = define::open((*relation).rd_id);
            raise(define::check_owner(relation, server::current_user(), &*table, Access::Write));
            raise(table.truncate());
        }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn end(_estate: *mut pg_sys::EState, target: *mut pg_sys::ResultRelInfo) {
    // SAFETY: PostgreSQL's executor calls this after begin.
    unsafe {
        let kept = (*target).ri_FdwState.cast::<Option<State>>();
        if let Some(Some(state)) = kept.as_mut() {
            if state.collects {
                state.run(|state| state.modify.finish(false));
            }
            collected::end(state.source);
            *kept = None;
        }
    }
}
