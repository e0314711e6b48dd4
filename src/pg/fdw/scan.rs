//! The executor's callbacks: a scan of a foreign table.
//!
//! Operands are evaluated when the first row is read, as parameters of a nested loop and of sub-queries have values only then. A scan
//! allocates in a memory context of its own, which is reset before each start; the values of a row are in the row's memory context.

use super::define;
use super::interface::{Access, RemotePart, Scan, ScanPlan, raise, with_rights_of};
use super::plan::{constant, string_of};
use super::target::Rows;
use super::value::{self, Kind, SqlValue};
use crate::pg::client::text_output;
use crate::pg::error::{Error, Result, keeping_all};
use crate::pg::memory::context;
use crate::pg::memory::small_cache::SmallCache;
use crate::pg::security::user;
use crate::pg::{server, version};
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, PgMemoryContexts, pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::{CString, c_int};
use std::rc::Rc;

/// The largest number of elements of an array in a condition. The filter for a shard has all of them, and takes some hundreds of bytes for
/// each.
const MAX_ELEMENTS: usize = 100_000;

/// Prepared statements start the same plans again and again; this many are cached.
const MAX_KEPT: usize = 16;
/// Longer plans, in bytes, are not cached.
const MAX_KEPT_BYTES: usize = 4096;

thread_local! {
    /// Parsed plans, by their text in PostgreSQL's plan.
    static KEPT: RefCell<SmallCache<String, Rc<ScanPlan>, MAX_KEPT>> = const { RefCell::new(SmallCache::NONE) };
}

fn plan_of(text: String) -> Result<Rc<ScanPlan>> {
    if let Some(known) = KEPT.with_borrow(|kept| kept.find(|known| *known == text)) {
        return Ok(known);
    }
    let plan = serde_json::from_str(&text)
        .map_err(|_| Error::new(ErrorKind::InternalError, "malformed plan of a foreign scan"))?;
    let plan = Rc::new(plan);
    if text.len() <= MAX_KEPT_BYTES {
        KEPT.with_borrow_mut(|kept| kept.insert(text, Rc::clone(&plan)));
    }
    Ok(plan)
}

/// The state of a scan, which lives in the executor's memory.
struct State {
    scan: Box<dyn Scan>,
    /// empty if the statement is only explained
    operands: Vec<*mut pg_sys::ExprState>,
    types: Vec<pg_sys::Oid>,
    limit: Option<usize>,
    offset: Option<usize>,
    /// the last operand, which a batched join sets; None: the scan has no such operand; Some(None): the join has not set it yet
    batch: Option<Option<SqlValue>>,
    /// None: the scan only reads. Otherwise it writes the rows (see [`super::direct`]); true if they count in the command tag
    write: Option<bool>,
    /// the type and modifier of each column; None if it is not read
    columns: Vec<Option<(Kind, i32)>>,
    /// see [`ScanPlan::deciding`]
    deciding: Vec<Option<Vec<i16>>>,
    /// the conditions that are evaluated here, in the same order; empty before the first value that does not fit
    quals: Vec<*mut pg_sys::ExprState>,
    /// makes the scan's rows, if the statement updates or deletes them
    rows: Option<Rows>,
    /// the user whose privileges count
    user: pg_sys::Oid,
    memory: pg_sys::MemoryContext,
    is_started: bool,
}

/// # Safety
/// A scan that [`begin`] has started.
unsafe fn state<'a>(node: *mut pg_sys::ForeignScanState) -> Option<&'a mut State> {
    // SAFETY: promised by the caller; null before and after.
    unsafe { (*node).fdw_state.cast::<Option<State>>().as_mut()?.as_mut() }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn begin(node: *mut pg_sys::ForeignScanState, flags: c_int) {
    // SAFETY: PostgreSQL's executor calls this with a plan that `plan` has made.
    unsafe {
        let foreign = &*(*node).ss.ps.plan.cast::<pg_sys::ForeignScan>();
        let estate = (*node).ss.ps.state;
        // A scan whose rows are groups has no relation of its own.
        let relation = version::range_table_relation(estate, version::relation_of_scan(foreign));
        let user = version::user_of_scan(foreign, estate);
        let user = if user == pg_sys::InvalidOid { server::current_user() } else { user };
        let plan = raise(plan_of(string_of(foreign.fdw_private)));
        let is_of_other_user = user != server::current_user();
        let table = define::open((*relation).rd_id);
        let row =
            if plan.groups.is_some() { (*(*node).ss.ss_ScanTupleSlot).tts_tupleDescriptor } else { (*relation).rd_att };
        let columns = columns(version::attributes(row), plan.groups.is_none().then_some(&*plan.columns));
        let expressions = PgList::<pg_sys::Node>::from_pg(foreign.fdw_exprs);
        let types = expressions.iter_ptr().map(|node| pg_sys::exprType(node)).collect();
        let explain_only = flags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as c_int != 0;
        let operands = if explain_only {
            Vec::new()
        } else {
            let states = pg_sys::ExecInitExprList(foreign.fdw_exprs, node.cast());
            PgList::<pg_sys::ExprState>::from_pg(states).iter_ptr().collect()
        };
        let (limit, offset, batch) = (plan.limit, plan.offset, plan.has_batch.then_some(None));
        let rows = plan.is_target.then(|| Rows::new(relation, foreign.fdw_scan_tlist));
        let write = plan.write.as_ref().map(|write| write.counts);
        raise(define::check_owner(relation, user, &*table, Access::Read));
        if write.is_some() {
            raise(define::check_owner(relation, user, &*table, Access::Write));
        }
        let scan = raise(user::as_checked_user(user, || table.scan(&plan, is_of_other_user)));
        let memory = context::of_execution((*estate).es_query_cxt, c"docshard foreign scan");
        let state = State {
            scan,
            operands,
            types,
            limit,
            offset,
            batch,
            write,
            columns,
            deciding: plan.deciding.clone(),
            quals: Vec::new(),
            rows,
            user,
            memory,
            is_started: false,
        };
        let kept = PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(Some(state));
        (*node).fdw_state = kept.cast();
    }
}

/// The kind and type modifier of each column of a row; None for a column that is not read. `read`: the numbers of the columns that are
/// read, from 1; None: all.
fn columns(attributes: &[pg_sys::FormData_pg_attribute], read: Option<&[i16]>) -> Vec<Option<(Kind, i32)>> {
    let all: Vec<i16> = (1..=attributes.len() as i16).collect();
    let mut columns = vec![None; attributes.len()];
    for at in read.unwrap_or(&all).iter().map(|number| *number as usize - 1) {
        if let Some(attribute) = attributes.get(at).filter(|attribute| !attribute.attisdropped)
            && let Some(kind) = Kind::of(attribute.atttypid, attribute.atttypmod)
        {
            columns[at] = Some((kind, attribute.atttypmod));
        }
    }
    columns
}

/// Sets the values of a batched join for the scan's next start.
///
/// # Safety
/// A scan that [`begin`] has started.
pub(super) unsafe fn set_batch(node: *mut pg_sys::ForeignScanState, values: SqlValue) {
    // SAFETY: promised by the caller.
    if let Some(state) = unsafe { state(node) } {
        state.batch = Some(Some(values));
    }
}

impl State {
    /// Evaluates the operands.
    ///
    /// # Safety
    /// While the scan's node is executed.
    unsafe fn values(&self, node: *mut pg_sys::ForeignScanState) -> Result<Vec<Option<SqlValue>>> {
        let evaluate = |(operand, oid): (&*mut pg_sys::ExprState, &pg_sys::Oid)| {
            // SAFETY: promised by the caller.
            unsafe {
                let mut is_null = false;
                let datum = pg_sys::ExecEvalExprSwitchContext(*operand, (*node).ss.ps.ps_ExprContext, &raw mut is_null);
                if is_null {
                    return Ok(None);
                }
                if Kind::of(*oid, -1).is_some_and(|kind| kind.is_array) && value::elements(datum) > MAX_ELEMENTS {
                    let message = format!(
                        "an array of more than {MAX_ELEMENTS} elements cannot be compared with a column of a foreign table"
                    );
                    let error = Error::new(ErrorKind::BSONObjectTooLarge, message);
                    return Err(error
                        .with_hint("A join with unnest() of the array asks the shards for some elements at a time."));
                }
                let value = value::of_datum(datum, *oid);
                let unknown =
                    || Error::new(ErrorKind::InternalError, "an operand of a foreign scan has an unknown type");
                value.map(Some).ok_or_else(unknown)
            }
        };
        let mut values: Vec<_> = self.operands.iter().zip(&self.types).map(evaluate).collect::<Result<_>>()?;
        values.extend(self.batch.clone());
        Ok(values)
    }

    /// The largest number of rows that LIMIT and OFFSET need; None: no limit. Invalid values are ignored here: PostgreSQL's Limit node reports
    /// them.
    fn most(&self, values: &[Option<SqlValue>]) -> Option<u64> {
        let value = |number: Option<usize>| number.and_then(|number| values.get(number)).and_then(Option::as_ref);
        let limit = match value(self.limit)? {
            SqlValue::Int(limit) => u64::try_from(*limit).ok()?,
            _ => return None,
        };
        match value(self.offset) {
            None => Some(limit),
            Some(SqlValue::Int(offset)) => Some(limit.saturating_add(u64::try_from(*offset).unwrap_or(0))),
            Some(_) => None,
        }
    }

    /// # Safety
    /// While the scan's node is executed.
    unsafe fn start(&mut self, node: *mut pg_sys::ForeignScanState) -> Result<()> {
        // SAFETY: promised by the caller; nothing is left of the last start in this memory.
        unsafe {
            self.scan.stop();
            text_output::take_over_rows((*node).ss.ps.state);
            if !(*node).ss.ps.instrument.is_null() {
                self.scan.observe();
            }
            // In this snapshot, PostgreSQL's own tables do not show writes of commands with this number or a higher one. A shard would show them.
            self.scan.refuse_newer((*(*(*node).ss.ps.state).es_snapshot).curcid)?;
            pg_sys::MemoryContextReset(self.memory);
            let values = keeping_all(|| self.values(node))?;
            let most = self.most(&values);
            let before = pg_sys::MemoryContextSwitchTo(self.memory);
            let (scan, user) = (&mut self.scan, self.user);
            with_rights_of(user, || scan.start(values, most))?;
            pg_sys::MemoryContextSwitchTo(before);
        }
        self.is_started = true;
        Ok(())
    }

    /// True if the error of a row with misfits must be raised: the row passes all conditions that are evaluated here and decide about it.
    /// Conditions on the columns that do not fit do not decide, because they could be true.
    ///
    /// # Safety
    /// While the scan's node is executed, in the memory of a row.
    unsafe fn passes(
        &mut self,
        node: *mut pg_sys::ForeignScanState,
        slot: *mut pg_sys::TupleTableSlot,
        misfits: &[i16],
    ) -> bool {
        // SAFETY: promised by the caller. The states live as long as the node. The executor sets the row again.
        unsafe {
            if self.quals.is_empty() {
                let before = pg_sys::MemoryContextSwitchTo((*(*node).ss.ps.state).es_query_cxt);
                let quals = PgList::<pg_sys::Expr>::from_pg((*(*node).ss.ps.plan).qual);
                self.quals = quals.iter_ptr().map(|qual| pg_sys::ExecInitExpr(qual, &raw mut (*node).ss.ps)).collect();
                pg_sys::MemoryContextSwitchTo(before);
            }
            let context = (*node).ss.ps.ps_ExprContext;
            (*context).ecxt_scantuple = slot;
            self.quals.iter().zip(&self.deciding).all(|(qual, columns)| {
                let decides = columns.as_ref().is_some_and(|columns| !columns.iter().any(|at| misfits.contains(at)));
                let mut is_null = false;
                !decides || {
                    let value = pg_sys::ExecEvalExprSwitchContext(*qual, context, &raw mut is_null);
                    !is_null && value.value() != 0
                }
            })
        }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn iterate(node: *mut pg_sys::ForeignScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end, in the memory context of a row.
    unsafe {
        let slot = (*node).ss.ss_ScanTupleSlot;
        pg_sys::ExecClearTuple(slot);
        let Some(state) = state(node) else { return slot };
        if !state.is_started {
            raise(state.start(node));
        }
        let columns = (*(*slot).tts_tupleDescriptor).natts as usize;
        let values = std::slice::from_raw_parts_mut((*slot).tts_values, columns);
        let nulls = std::slice::from_raw_parts_mut((*slot).tts_isnull, columns);
        nulls.fill(true);
        let (scan, kinds, rows) = (&mut state.scan, &state.columns, &mut state.rows);
        rows.iter_mut().for_each(Rows::clear);
        let mut put = |number: i16, value: SqlValue| {
            if let Some(rows) = rows {
                return rows.put(number, &value, kinds);
            }
            let at = number as usize - 1;
            if let Some(Some((kind, modifier))) = kinds.get(at) {
                values[at] = value::to_datum(&value, *kind, *modifier)?;
                nulls[at] = false;
            }
            Ok(())
        };
        if raise(with_rights_of(state.user, || scan.next_row(&mut put))) {
            if let Some(rows) = &state.rows {
                rows.fill(slot);
            }
            pg_sys::ExecStoreVirtualTuple(slot);
            if let Some(misfit) = scan.take_misfit()
                && state.passes(node, slot, &misfit.columns)
            {
                raise::<()>(Err(misfit.error));
            }
        }
        slot
    }
}

/// Writes the rows that a scan selects. Returns their number, and whether they count as the statement's; None for a scan that does not
/// write, and after the first call.
///
/// # Safety
/// Between begin and end, in the memory of a row.
pub(super) unsafe fn write(node: *mut pg_sys::ForeignScanState) -> Result<Option<(u64, bool)>> {
    // SAFETY: promised by the caller.
    unsafe {
        let Some(state) = state(node) else { return Ok(None) };
        let Some(counts) = state.write.filter(|_| !state.is_started) else { return Ok(None) };
        state.start(node)?;
        Ok(state.scan.written().map(|count| (count, counts)))
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::ForeignScanState) {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    if let Some(state) = unsafe { state(node) } {
        state.scan.stop();
        state.is_started = false;
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn end(node: *mut pg_sys::ForeignScanState) {
    // SAFETY: PostgreSQL's executor calls this after begin.
    unsafe {
        if let Some(state) = (*node).fdw_state.cast::<Option<State>>().as_mut() {
            *state = None;
        }
    }
}

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn explain(
    node: *mut pg_sys::ForeignScanState,
    explained: *mut pg_sys::ExplainState,
) {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let Some(state) = state(node) else { return };
        let foreign = &*(*node).ss.ps.plan.cast::<pg_sys::ForeignScan>();
        let expressions = PgList::<pg_sys::Node>::from_pg(foreign.fdw_exprs);
        let mut values: Vec<_> = expressions
            .iter_ptr()
            .enumerate()
            .map(|(number, node)| constant(node).unwrap_or(Some(SqlValue::Unknown(number + 1))))
            .collect();
        if state.batch.is_some() {
            values.push(Some(SqlValue::Unknown(values.len() + 1)));
        }
        let most = state.most(&values);
        let verbose = (*explained).verbose;
        let (scan, user) = (&state.scan, state.user);
        for (label, text) in raise(user::as_checked_user(user, || scan.explain(values, most, verbose))) {
            let (label, text) = (CString::new(label).unwrap_or_default(), CString::new(text).unwrap_or_default());
            pg_sys::ExplainPropertyText(label.as_ptr(), text.as_ptr(), explained);
        }
        let parts = if (*explained).analyze { user::as_checked_user(user, || scan.parts()) } else { Vec::new() };
        let part = |part: &RemotePart| match (*explained).timing {
            true => format!("{} {} in {} ms", part.name, part.rows, part.took_ms),
            false => format!("{} {}", part.name, part.rows),
        };
        if !parts.is_empty() {
            let text = CString::new(parts.iter().map(part).collect::<Vec<_>>().join(", ")).unwrap_or_default();
            pg_sys::ExplainPropertyText(c"Rows of Shards".as_ptr(), text.as_ptr(), explained);
        }
    }
}
