//! The callbacks of writes: INSERT, UPDATE, DELETE, COPY FROM and TRUNCATE.
//!
//! A row that is updated or deleted is found again by columns that the scan adds to its rows: those that identify it, and those that the statement
//! has read, so that the table can refuse a row that has changed since. Memory of a row is reset before the next one. COPY hands over one row
//! at a time; the table collects them, unless a trigger could notice that they are missing.

use super::define::definition;
use super::interface::{Modify, RowValues, raise, wrapper};
use super::plan::{numbers, string_list, string_of};
use super::value::{self, Kind};
use crate::pg::error::{Error, Result};
use crate::pg::memory::context;
use crate::pg::security::user;
use crate::pg::{server, version};
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, PgMemoryContexts, pg_guard, pg_sys};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, c_int};
use std::ptr::null_mut;

/// Rows that PostgreSQL hands over at once.
const BATCH_ROWS: c_int = 1000;

/// What a plan says about a write.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Private {
    /// columns that an UPDATE sets
    updated: Vec<i16>,
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
    /// columns of the row before, with their positions in the plan's rows
    junk: Vec<(i16, i16)>,
    skips_conflicts: bool,
    /// rows are collected until the end
    collects: bool,
    user: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
}

fn junk_name(number: i16) -> CString {
    CString::new(format!("docshard_{number}")).unwrap_or_default()
}

/// Adds the columns by which a row is found again.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn add_targets(
    root: *mut pg_sys::PlannerInfo,
    number: pg_sys::Index,
    entry: *mut pg_sys::RangeTblEntry,
    relation: pg_sys::Relation,
) {
    // SAFETY: PostgreSQL's planner calls this for the target of an UPDATE or DELETE.
    unsafe {
        let table = raise(wrapper().open(definition((*relation).rd_id)));
        let user = version::user_of_entry(root, entry);
        let mut wanted = raise(user::as_checked_user(user, || table.identity()));
        let parse = &*(*root).parse;
        let mut read = null_mut();
        pg_sys::pull_varattnos(parse.targetList.cast(), number, &raw mut read);
        pg_sys::pull_varattnos(parse.jointree.cast(), number, &raw mut read);
        let attributes = version::attributes((*relation).rd_att);
        wanted.extend(numbers(read, attributes.len() as i16));
        wanted.sort_unstable();
        wanted.dedup();
        for attribute in
            attributes.iter().filter(|attribute| !attribute.attisdropped && wanted.contains(&attribute.attnum))
        {
            let var = pg_sys::makeVar(
                number as _,
                attribute.attnum,
                attribute.atttypid,
                attribute.atttypmod,
                attribute.attcollation,
                0,
            );
            pg_sys::add_row_identity_var(root, var, number, pg_sys::pstrdup(junk_name(attribute.attnum).as_ptr()));
        }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn plan(
    root: *mut pg_sys::PlannerInfo,
    plan: *mut pg_sys::ModifyTable,
    number: pg_sys::Index,
    _subplan: c_int,
) -> *mut pg_sys::List {
    // SAFETY: PostgreSQL's planner calls this for a target of a statement.
    unsafe {
        let updated = if (*plan).operation == pg_sys::CmdType::CMD_UPDATE {
            numbers(version::updated_columns(root, number), i16::MAX)
        } else {
            Vec::new()
        };
        let skips_conflicts = (*plan).onConflictAction == pg_sys::OnConflictAction::ONCONFLICT_NOTHING;
        string_list(&serde_json::to_string(&Private { updated, skips_conflicts }).unwrap_or_default())
    }
}

/// # Safety
/// A target of a statement that is being started.
unsafe fn begin_state(
    mtstate: *mut pg_sys::ModifyTableState,
    target: *mut pg_sys::ResultRelInfo,
    private: Private,
    targets: *mut pg_sys::List,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let estate = (*mtstate).ps.state;
        let relation = (*target).ri_RelationDesc;
        let attributes = version::attributes((*relation).rd_att);
        let triggers = (*target).ri_TrigDesc.as_ref();
        let mut columns = Vec::new();
        let mut updated = private.updated;
        for attribute in attributes.iter().filter(|attribute| !attribute.attisdropped) {
            let kind = Kind::of(attribute.atttypid, attribute.atttypmod);
            columns.push((attribute.attnum, kind.map(|kind| (kind, attribute.atttypid, attribute.atttypmod))));
            // A trigger may have changed any column, and a generated column changes with others.
            if attribute.attgenerated != 0 || triggers.is_some_and(|triggers| triggers.trig_update_before_row) {
                updated.push(attribute.attnum);
            }
        }
        let mut junk = Vec::new();
        for (column, _) in &columns {
            let position = pg_sys::ExecFindJunkAttributeInTlist(targets, junk_name(*column).as_ptr());
            junk.extend((position > 0).then_some((*column, position)));
        }
        let is_copy = (*mtstate).ps.plan.is_null();
        let notices = triggers.is_some_and(|triggers| {
            triggers.trig_insert_before_row || triggers.trig_insert_after_row || triggers.trig_insert_after_statement
        });
        let user = version::user_of_target(target, estate);
        let user = if user == pg_sys::InvalidOid { server::current_user() } else { user };
        let table = raise(wrapper().open(definition((*relation).rd_id)));
        let modify = raise(user::as_checked_user(user, || table.modify()));
        let memory = context::of_execution((*estate).es_query_cxt, c"docshard foreign modify");
        let state = State {
            modify,
            columns,
            updated,
            junk,
            skips_conflicts: private.skips_conflicts,
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
        let targets = (*(*(*mtstate).ps.lefttree).plan).targetlist;
        begin_state(mtstate, target, private, targets);
    }
}

/// COPY FROM, and rows that are routed to a partition.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn begin_insert(
    mtstate: *mut pg_sys::ModifyTableState,
    target: *mut pg_sys::ResultRelInfo,
) {
    // SAFETY: PostgreSQL's executor calls this for a target without a plan of its own.
    unsafe {
        let plan = (*mtstate).ps.plan.cast::<pg_sys::ModifyTable>();
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
        begin_state(mtstate, target, Private { skips_conflicts, updated: Vec::new() }, null_mut());
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
            let done = raise(user::as_checked_user(self.user, || work(self)));
            pg_sys::MemoryContextSwitchTo(before);
            done
        }
    }

    /// The values of all columns, or of some.
    ///
    /// # Safety
    /// A slot with a row of the table.
    unsafe fn row(&self, slot: *mut pg_sys::TupleTableSlot, only: Option<&[i16]>) -> Result<RowValues> {
        // SAFETY: promised by the caller.
        unsafe {
            pg_sys::slot_getallattrs(slot);
            let chosen = self.columns.iter().filter(|(number, _)| only.is_none_or(|only| only.contains(number)));
            let mut row = Vec::new();
            for (number, kind) in chosen {
                let at = *number as usize - 1;
                if *(*slot).tts_isnull.add(at) {
                    row.push((*number, None));
                    continue;
                }
                let value = kind.and_then(|(_, oid, _)| value::of_datum(*(*slot).tts_values.add(at), oid));
                row.push((*number, Some(value.ok_or_else(unknown_type)?)));
            }
            Ok(row)
        }
    }

    /// The values of the row before.
    ///
    /// # Safety
    /// A slot with a row of the plan.
    unsafe fn old(&self, slot: *mut pg_sys::TupleTableSlot) -> Result<RowValues> {
        let mut row = Vec::new();
        for (number, position) in &self.junk {
            let kind = self.columns.iter().find(|(known, _)| known == number).and_then(|(_, kind)| *kind);
            let mut is_null = false;
            // SAFETY: promised by the caller; the position was found in the plan's targets.
            unsafe {
                let datum = pg_sys::slot_getattr(slot, (*position).into(), &raw mut is_null);
                let value = kind.and_then(|(_, oid, _)| value::of_datum(datum, oid)).filter(|_| !is_null);
                if !is_null && value.is_none() {
                    return Err(unknown_type());
                }
                row.push((*number, value));
            }
        }
        Ok(row)
    }

    /// True if a row was written. Its values go into the slot if something reads them.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
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

fn unknown_type() -> Error {
    Error::new(ErrorKind::NotImplemented, "a column has a type that a foreign table of docshard cannot have")
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn insert(
    _estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    _planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let is_read = !(*target).ri_projectReturning.is_null()
            || (*target).ri_TrigDesc.as_ref().is_some_and(|triggers| triggers.trig_insert_after_row);
        let is_inserted = state(target).run(|state| {
            let row = state.row(slot, None)?;
            if state.collects {
                state.modify.collect(row)?;
                return Ok(true);
            }
            let mut stored = state.modify.insert(vec![row], state.skips_conflicts, is_read)?;
            state.has_written(slot, stored.pop().flatten(), is_read)
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
    // SAFETY: as above; there are as many slots as are said.
    unsafe {
        let given = usize::try_from(*count).unwrap_or(0);
        let inserted = state(target).run(|state| {
            let rows = (0..given).map(|at| state.row(*slots.add(at), None)).collect::<Result<Vec<_>>>()?;
            let stored = state.modify.insert(rows, state.skips_conflicts, false)?;
            Ok(stored.iter().filter(|stored| stored.is_some()).count())
        });
        *count = inserted as c_int;
        slots
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn batch_size(target: *mut pg_sys::ResultRelInfo) -> c_int {
    // SAFETY: PostgreSQL's executor calls this for a target of an INSERT.
    unsafe {
        let triggers = (*target).ri_TrigDesc.as_ref();
        let by_row = !(*target).ri_projectReturning.is_null()
            || !(*target).ri_WithCheckOptions.is_null()
            || triggers.is_some_and(|triggers| triggers.trig_insert_before_row || triggers.trig_insert_after_row);
        if by_row { 1 } else { BATCH_ROWS }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn update(
    _estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let is_read = !(*target).ri_projectReturning.is_null()
            || (*target).ri_TrigDesc.as_ref().is_some_and(|triggers| triggers.trig_update_after_row);
        let is_updated = state(target).run(|state| {
            let (old, new) = (state.old(planned)?, state.row(slot, Some(&state.updated))?);
            let stored = state.modify.update(old, new, is_read)?;
            state.has_written(slot, stored, is_read)
        });
        if is_updated { slot } else { null_mut() }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn delete(
    _estate: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    planned: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: as above. RETURNING reads the row that was deleted from this slot.
    unsafe {
        let is_read = !(*target).ri_projectReturning.is_null();
        let is_deleted = state(target).run(|state| {
            let old = state.old(planned)?;
            let stored = state.modify.delete(old, is_read)?;
            state.has_written(slot, stored, is_read)
        });
        if is_deleted { slot } else { null_mut() }
    }
}

/// `TRUNCATE`. What it says of other tables and of sequences concerns no foreign table.
#[pg_guard]
pub(super) unsafe extern "C-unwind" fn truncate(
    relations: *mut pg_sys::List,
    _behavior: pg_sys::DropBehavior::Type,
    _restart_sequences: bool,
) {
    // SAFETY: PostgreSQL has locked these tables, and checked the current user's privileges.
    unsafe {
        for relation in PgList::<pg_sys::RelationData>::from_pg(relations).iter_ptr() {
            let table = raise(wrapper().open(definition((*relation).rd_id)));
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
                state.run(|state| state.modify.finish());
            }
            *kept = None;
        }
    }
}
