//! The executor's side of a batched join: see [`super::join`].
//!
//! A batch has up to 500 outer rows, and ends earlier when they take `work_mem`. The scan of the inner side is started with the distinct
//! values of their keys. Its rows are not kept: each one is paired with the batch's outer rows of its key. So memory does not grow with
//! the number of inner rows.

use super::interface::raise;
use super::plan::string_of;
use super::scan;
use super::value::{self, SqlValue};
use crate::pg::error::Error;
use crate::pg::memory::context;
use docshard_core::error::Kind as ErrorKind;
use pgrx::{PgList, PgMemoryContexts, pg_guard, pg_sys};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;

/// The largest number of outer rows whose keys are looked up by one scan.
pub(super) const BATCH_ROWS: usize = 500;

/// A table of PostgreSQL's callbacks, which has no state.
pub(super) struct Methods<T>(pub T);
// SAFETY: pointers to functions and names.
unsafe impl<T> Sync for Methods<T> {}

pub(super) const NAME: &std::ffi::CStr = c"docshard batched join";

/// What a plan says about the rows of its sides.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Shape {
    /// the number of columns of an outer row; a row of the join begins with them
    pub outer: usize,
    /// the number of columns of an inner row, which follow
    pub inner: usize,
    /// the position of the key in an inner row
    pub key: usize,
    /// outer rows without a partner are returned, as by LEFT JOIN
    pub keeps_outer: bool,
}

/// The node's state, which begins with PostgreSQL's.
#[repr(C)]
struct BatchedNode {
    custom: pg_sys::CustomScanState,
    own: *mut Option<State>,
}

struct OuterRow {
    tuple: pg_sys::MinimalTuple,
    has_partner: bool,
}

/// The next step of the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// read a batch of outer rows
    Fill,
    /// return the batch's rows with their partners
    Partners,
    /// return the outer rows without a partner, from this position of the batch on
    Alone(usize),
}

struct State {
    shape: Shape,
    outer: *mut pg_sys::PlanState,
    inner: *mut pg_sys::PlanState,
    /// the outer side's value of the key, and its type
    key: *mut pg_sys::ExprState,
    key_type: pg_sys::Oid,
    inner_type: pg_sys::Oid,
    /// the join conditions
    on: *mut pg_sys::ExprState,
    /// holds an outer row of the batch
    slot: *mut pg_sys::TupleTableSlot,
    /// the memory of the batch
    memory: pg_sys::MemoryContext,
    batch: Vec<OuterRow>,
    /// the positions of the batch's rows with each key
    by_key: HashMap<Key, Vec<usize>>,
    phase: Phase,
    outer_is_over: bool,
    /// the present inner row, and the positions of the outer rows of its key that were not yet paired with it
    partner: *mut pg_sys::TupleTableSlot,
    due: Vec<usize>,
}

/// A key by which inner rows find their outer rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    Bool(bool),
    Bytes(Vec<u8>),
}

impl Key {
    fn of(value: &SqlValue) -> Option<Self> {
        Some(match value {
            SqlValue::Bool(value) => Self::Bool(*value),
            SqlValue::Int(value) | SqlValue::Timestamp(value) => Self::Int(*value),
            SqlValue::Date(value) => Self::Int((*value).into()),
            SqlValue::Text(text) => Self::Bytes(text.clone().into_bytes()),
            SqlValue::Uuid(bytes) => Self::Bytes(bytes.to_vec()),
            SqlValue::Bytes(bytes) => Self::Bytes(bytes.clone()),
            _ => return None,
        })
    }
}

static SCAN_METHODS: Methods<pg_sys::CustomScanMethods> =
    Methods(pg_sys::CustomScanMethods { CustomName: NAME.as_ptr(), CreateCustomScanState: Some(create) });

pub(super) fn methods() -> *const pg_sys::CustomScanMethods {
    &raw const SCAN_METHODS.0
}

static EXEC_METHODS: Methods<pg_sys::CustomExecMethods> = Methods(pg_sys::CustomExecMethods {
    CustomName: NAME.as_ptr(),
    BeginCustomScan: Some(begin),
    ExecCustomScan: Some(next),
    EndCustomScan: Some(end),
    ReScanCustomScan: Some(rescan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: None,
    InitializeDSMCustomScan: None,
    ReInitializeDSMCustomScan: None,
    InitializeWorkerCustomScan: None,
    ShutdownCustomScan: None,
    ExplainCustomScan: None,
});

#[pg_guard]
unsafe extern "C-unwind" fn create(_scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory of the executor.
    unsafe {
        let node: *mut BatchedNode = pg_sys::palloc0(size_of::<BatchedNode>()).cast();
        (*node).custom.ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
        (*node).custom.methods = &raw const EXEC_METHODS.0;
        node.cast()
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn begin(node: *mut pg_sys::CustomScanState, estate: *mut pg_sys::EState, flags: c_int) {
    // SAFETY: PostgreSQL's executor calls this for a node that `create` has made, with the plan of `join`.
    unsafe {
        let plan = &*(*node).ss.ps.plan.cast::<pg_sys::CustomScan>();
        let malformed = || Error::new(ErrorKind::InternalError, "malformed plan of a batched join");
        let shape: Shape = raise(serde_json::from_str(&string_of(plan.custom_private)).map_err(|_| malformed()));
        let plans = PgList::<pg_sys::Plan>::from_pg(plan.custom_plans);
        let (Some(outer), Some(inner)) = (plans.get_ptr(0), plans.get_ptr(1)) else { return raise(Err(malformed())) };
        // The sides are never read backward, because the join is not.
        let flags = flags & !((pg_sys::EXEC_FLAG_BACKWARD | pg_sys::EXEC_FLAG_MARK) as c_int);
        let outer = pg_sys::ExecInitNode(outer, estate, flags);
        let inner = pg_sys::ExecInitNode(inner, estate, flags);
        if (*inner).type_ != pg_sys::NodeTag::T_ForeignScanState {
            return raise(Err(malformed()));
        }
        let mut sides = PgList::<pg_sys::PlanState>::new();
        sides.push(outer);
        sides.push(inner);
        (*node).custom_ps = sides.into_pg();
        let expressions = PgList::<pg_sys::Node>::from_pg(plan.custom_exprs);
        let (Some(key), Some(on)) = (expressions.get_ptr(0), expressions.get_ptr(1)) else {
            return raise(Err(malformed()));
        };
        let outer_rows = pg_sys::ExecGetResultType(outer);
        let inner_rows = pg_sys::ExecGetResultType(inner);
        let attributes = crate::pg::version::attributes(inner_rows);
        let inner_type = attributes.get(shape.key).map_or(pg_sys::InvalidOid, |column| column.atttypid);
        let state = State {
            outer,
            inner,
            key: pg_sys::ExecInitExpr(key.cast(), node.cast()),
            key_type: pg_sys::exprType(key),
            inner_type,
            on: pg_sys::ExecInitQual(on.cast(), node.cast()),
            slot: pg_sys::MakeSingleTupleTableSlot(outer_rows, &raw const pg_sys::TTSOpsMinimalTuple),
            memory: context::of_execution((*estate).es_query_cxt, c"docshard batched join"),
            batch: Vec::new(),
            by_key: HashMap::new(),
            phase: Phase::Fill,
            outer_is_over: false,
            partner: null_mut(),
            due: Vec::new(),
            shape,
        };
        let kept = PgMemoryContexts::For((*estate).es_query_cxt).leak_and_drop_on_delete(Some(state));
        (*node.cast::<BatchedNode>()).own = kept;
    }
}

/// # Safety
/// A node that [`begin`] has started.
unsafe fn state<'a>(node: *mut pg_sys::CustomScanState) -> Option<&'a mut State> {
    // SAFETY: promised by the caller; null before.
    unsafe { (*node.cast::<BatchedNode>()).own.as_mut()?.as_mut() }
}

impl State {
    /// Puts a pair into the node's slot for rows of the join. If `inner` is null, the inner columns are NULL.
    ///
    /// # Safety
    /// While the node is executed.
    unsafe fn pair(
        &mut self,
        node: *mut pg_sys::CustomScanState,
        outer: *mut pg_sys::TupleTableSlot,
        inner: *mut pg_sys::TupleTableSlot,
    ) {
        // SAFETY: promised by the caller; the slots have as many columns as the plan says.
        unsafe {
            let slot = (*node).ss.ss_ScanTupleSlot;
            pg_sys::ExecClearTuple(slot);
            let count = self.shape.outer + self.shape.inner;
            let values = std::slice::from_raw_parts_mut((*slot).tts_values, count);
            let nulls = std::slice::from_raw_parts_mut((*slot).tts_isnull, count);
            nulls.fill(true);
            for (side, from, columns) in [(outer, 0, self.shape.outer), (inner, self.shape.outer, self.shape.inner)] {
                if side.is_null() || columns == 0 {
                    continue;
                }
                pg_sys::slot_getallattrs(side);
                for column in 0..columns {
                    values[from + column] = *(*side).tts_values.add(column);
                    nulls[from + column] = *(*side).tts_isnull.add(column);
                }
            }
            pg_sys::ExecStoreVirtualTuple(slot);
            (*(*node).ss.ps.ps_ExprContext).ecxt_scantuple = slot;
        }
    }

    /// Reads a batch, and starts the scan of its partners. False if there are no more outer rows.
    ///
    /// # Safety
    /// While the node is executed.
    unsafe fn fill(&mut self, node: *mut pg_sys::CustomScanState) -> bool {
        // SAFETY: promised by the caller; the rows are copied into the memory of the batch.
        unsafe {
            let context = (*node).ss.ps.ps_ExprContext;
            pg_sys::ExecClearTuple(self.slot);
            self.batch.clear();
            self.by_key.clear();
            pg_sys::MemoryContextReset(self.memory);
            let most = usize::try_from(pg_sys::work_mem).unwrap_or(0) * 1024;
            let (mut bytes, mut keys) = (0, Vec::new());
            while !self.outer_is_over && self.batch.len() < BATCH_ROWS && (self.batch.is_empty() || bytes < most) {
                let row = pg_sys::ExecProcNode(self.outer);
                if row.is_null() || (*row).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                    self.outer_is_over = true;
                    break;
                }
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
                self.pair(node, row, null_mut());
                let mut is_null = false;
                let datum = pg_sys::ExecEvalExprSwitchContext(self.key, context, &raw mut is_null);
                let value = if is_null { None } else { value::of_datum(datum, self.key_type) };
                let before = pg_sys::MemoryContextSwitchTo(self.memory);
                let tuple = pg_sys::ExecCopySlotMinimalTuple(row);
                pg_sys::MemoryContextSwitchTo(before);
                bytes += (*tuple).t_len as usize;
                if let Some((value, key)) = value.and_then(|value| Key::of(&value).map(|key| (value, key))) {
                    let known = self.by_key.entry(key).or_default();
                    if known.is_empty() {
                        keys.push(Some(value));
                    }
                    known.push(self.batch.len());
                }
                self.batch.push(OuterRow { tuple, has_partner: false });
            }
            if self.batch.is_empty() {
                return false;
            }
            self.due.clear();
            self.phase = Phase::Alone(0);
            if !keys.is_empty() {
                self.phase = Phase::Partners;
                scan::set_batch(self.inner.cast(), SqlValue::Array(keys));
                pg_sys::ExecReScan(self.inner);
            }
            true
        }
    }

    /// Puts the next row of the join into its slot: a pair whose join conditions are true, or an outer row without a partner. False at the
    /// end.
    ///
    /// # Safety
    /// While the node is executed.
    unsafe fn advance(&mut self, node: *mut pg_sys::CustomScanState) -> bool {
        // SAFETY: promised by the caller.
        unsafe {
            let context = (*node).ss.ps.ps_ExprContext;
            loop {
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
                match self.phase {
                    Phase::Fill => {
                        if !self.fill(node) {
                            return false;
                        }
                    }
                    Phase::Partners => {
                        if let Some(at) = self.due.pop() {
                            pg_sys::ExecStoreMinimalTuple(self.batch[at].tuple, self.slot, false);
                            self.pair(node, self.slot, self.partner);
                            if pg_sys::ExecQual(self.on, context) {
                                self.batch[at].has_partner = true;
                                return true;
                            }
                            continue;
                        }
                        self.partner = pg_sys::ExecProcNode(self.inner);
                        if self.partner.is_null() || (*self.partner).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
                            self.phase = Phase::Alone(0);
                            continue;
                        }
                        let mut is_null = false;
                        let datum = pg_sys::slot_getattr(self.partner, self.shape.key as i32 + 1, &raw mut is_null);
                        let value = if is_null { None } else { value::of_datum(datum, self.inner_type) };
                        if let Some(found) =
                            value.and_then(|value| Key::of(&value)).and_then(|key| self.by_key.get(&key))
                        {
                            self.due.extend(found.iter().rev());
                        }
                    }
                    Phase::Alone(at) if self.shape.keeps_outer && at < self.batch.len() => {
                        self.phase = Phase::Alone(at + 1);
                        if !self.batch[at].has_partner {
                            pg_sys::ExecStoreMinimalTuple(self.batch[at].tuple, self.slot, false);
                            self.pair(node, self.slot, null_mut());
                            return true;
                        }
                    }
                    Phase::Alone(_) if self.outer_is_over => return false,
                    Phase::Alone(_) => self.phase = Phase::Fill,
                }
            }
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn next(node: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let Some(state) = state(node) else { return null_mut() };
        let ps = &raw mut (*node).ss.ps;
        let projection = (*ps).ps_ProjInfo;
        while state.advance(node) {
            if pg_sys::ExecQual((*ps).qual, (*ps).ps_ExprContext) {
                return if projection.is_null() {
                    (*node).ss.ss_ScanTupleSlot
                } else {
                    pg_sys::ExecProject(projection)
                };
            }
        }
        null_mut()
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: PostgreSQL's executor calls this between begin and end.
    unsafe {
        let Some(state) = state(node) else { return };
        state.batch.clear();
        state.by_key.clear();
        state.due.clear();
        (state.phase, state.outer_is_over) = (Phase::Fill, false);
        let changed = (*node).ss.ps.chgParam;
        for side in [state.outer, state.inner] {
            if !changed.is_null() {
                pg_sys::UpdateChangedParamSet(side, changed);
            }
        }
        if (*state.outer).chgParam.is_null() {
            pg_sys::ExecReScan(state.outer);
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: PostgreSQL's executor calls this once, after begin.
    unsafe {
        let kept = (*node.cast::<BatchedNode>()).own;
        let Some(own) = kept.as_mut() else { return };
        if let Some(state) = own.take() {
            pg_sys::ExecDropSingleTupleTableSlot(state.slot);
            pg_sys::ExecEndNode(state.outer);
            pg_sys::ExecEndNode(state.inner);
        }
    }
}
