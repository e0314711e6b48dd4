//! Opens a collection's table for writing, and inserts rows. [`super::changing`] updates and deletes.

use super::capture;
use super::index::{Held, Index, Values};
use super::owner::Owner;
use super::row::{DOC, Purpose, TableRow, store};
use super::trigger;
use super::validation;
use crate::pg::datum::jsonb::detoasted_bytes;
use crate::pg::error::{Error, Result};
use crate::pg::security::permission;
use crate::pg::security::pinned::Pinned;
use crate::pg::version;
use crate::storage::open_looked_up;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::validator::Validator;
use docshard_core::routing::names;
use docshard_core::sql::quote::quote_ident;
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::rc::Rc;

/// The number of rows that are written to the table before their index entries are written. COPY works the same way.
const CHUNK: usize = 1000;

/// A table that is open for writing.
///
/// Invariant: the pointers are PostgreSQL's objects, which `open` has created and which live until `finish`. After an ERROR PostgreSQL's
/// abort releases everything, so the writer has no `Drop`.
pub struct Writer {
    collection: i32,
    pub(super) rel: pg_sys::Relation,
    pub(super) estate: *mut pg_sys::EState,
    pub(super) info: *mut pg_sys::ResultRelInfo,
    /// triggers are fired, including the capture trigger
    pub(super) fires: bool,
    pub(super) purpose: Purpose,
    /// empty for deletes
    pub(super) indexes: Rc<[Index]>,
    /// checks new documents; None if the collection has no validator, if the trigger checks them, or for deletes
    validator: Option<Rc<Validator>>,
    /// slots for changes: the found version, the locked one, the new one
    pub(super) change_slots: Option<[*mut pg_sys::TupleTableSlot; 3]>,
    /// the slot of an old row for the comparison with the new one
    pub(super) compared: Option<*mut pg_sys::TupleTableSlot>,
}

impl Writer {
    /// Opens a collection's table for the current user. If the table has no other triggers than docshard's, none is fired, and the writer
    /// itself captures changes and validates documents. Raises PostgreSQL's errors for missing privileges and read-only transactions.
    pub fn open(collection: i32, table: pg_sys::Oid, purpose: Purpose, owner: &Owner) -> Result<Self> {
        // SAFETY: the table exists (the caller looked it up in this transaction); each node is allocated by PostgreSQL
        // with its tag, as makeNode does; the lock is kept to the end of the transaction, as every writer's is.
        unsafe {
            pg_sys::PreventCommandIfReadOnly(purpose.command().as_ptr());
            pg_sys::PreventCommandIfParallelMode(purpose.command().as_ptr());
            let rel = open_looked_up(table, pg_sys::RowExclusiveLock);
            permit(rel, purpose)?;
            let estate = pg_sys::CreateExecutorState();
            let context = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
            let entry: *mut pg_sys::RangeTblEntry = pg_sys::palloc0(size_of::<pg_sys::RangeTblEntry>()).cast();
            (*entry).type_ = pg_sys::NodeTag::T_RangeTblEntry;
            (*entry).rtekind = pg_sys::RTEKind::RTE_RELATION;
            (*entry).relid = table;
            (*entry).relkind = (*(*rel).rd_rel).relkind;
            (*entry).rellockmode = pg_sys::RowExclusiveLock as c_int;
            // The set of updated columns tells indexes over other columns that their keys have not changed.
            let column = DOC as c_int + 1 - pg_sys::FirstLowInvalidHeapAttributeNumber;
            let is_update = purpose == Purpose::Update;
            let updated = if is_update { pg_sys::bms_make_singleton(column) } else { null_mut() };
            version::init_range_table(estate, entry, updated);
            (*estate).es_output_cid = pg_sys::GetCurrentCommandId(true);
            (*estate).es_snapshot = pg_sys::GetActiveSnapshot();
            let info: *mut pg_sys::ResultRelInfo = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, rel, 1, null_mut(), 0);
            let triggers = (*info).ri_TrigDesc;
            if !triggers.is_null() && trigger::are_own(&*triggers) {
                (*info).ri_TrigDesc = null_mut();
            }
            let fires = !(*info).ri_TrigDesc.is_null();
            if purpose != Purpose::Delete {
                pg_sys::ExecOpenIndices(info, false);
            }
            if fires {
                // Triggers then get this table, and do not open it again.
                (*estate).es_opened_result_relations = pg_sys::lappend(null_mut(), info.cast());
                pg_sys::AfterTriggerBeginQuery();
                match purpose {
                    Purpose::Insert => pg_sys::ExecBSInsertTriggers(estate, info),
                    Purpose::Update => pg_sys::ExecBSUpdateTriggers(estate, info),
                    Purpose::Delete => pg_sys::ExecBSDeleteTriggers(estate, info),
                }
            }
            // The array of indexes and that of their infos have the same length.
            let index =
                |at| Index::new(*(*info).ri_IndexRelationDescs.add(at), *(*info).ri_IndexRelationInfo.add(at), owner);
            let indexes = (0..(*info).ri_NumIndices as usize).map(index).collect();
            pg_sys::MemoryContextSwitchTo(context);
            let validator = if fires || purpose == Purpose::Delete { None } else { validation::of(collection)? };
            let (change_slots, compared) = (None, None);
            Ok(Self { collection, rel, estate, info, fires, purpose, indexes, validator, change_slots, compared })
        }
    }

    /// Captures changes of the rows with these keys (skey, id), unless the trigger does it. Must be called for every change.
    pub(super) fn capture<'k>(&self, keys: impl IntoIterator<Item = (&'k [u8], &'k [u8])>) -> Result<()> {
        if self.fires { Ok(()) } else { capture::changed(self.collection, keys) }
    }

    /// Checks a document by the collection's validator, unless the trigger does it. `before` is the document that it replaces. Must be
    /// called for every new document.
    pub(super) fn validate(&self, before: Option<&[u8]>, after: &[u8]) -> Result<()> {
        self.validator.as_ref().map_or(Ok(()), |validator| validation::check(validator, before, after))
    }

    /// A slot for the table's rows, freed with the executor's state.
    pub(super) fn slot(&mut self) -> *mut pg_sys::TupleTableSlot {
        // SAFETY: see the type's invariants; the slot is registered in the state's tuple table.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*self.estate).es_query_cxt);
            let slot = pg_sys::table_slot_create(self.rel, &raw mut (*self.estate).es_tupleTable);
            pg_sys::MemoryContextSwitchTo(context);
            slot
        }
    }

    /// Makes many slots that share one copy of the table's description. To count references to the original would be a large part of their
    /// cost.
    fn slots(&mut self, count: usize) -> Vec<*mut pg_sys::TupleTableSlot> {
        // SAFETY: see the type's invariants; the description lives as long as the slots, in the state's context.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*self.estate).es_query_cxt);
            let description = pg_sys::CreateTupleDescCopy((*self.rel).rd_att);
            let operations = pg_sys::table_slot_callbacks(self.rel);
            let table = &raw mut (*self.estate).es_tupleTable;
            let slots = (0..count).map(|_| pg_sys::ExecAllocTableSlot(table, description, operations)).collect();
            pg_sys::MemoryContextSwitchTo(context);
            slots
        }
    }

    /// Inserts the rows. Duplicate keys raise 23505.
    pub fn insert(&mut self, rows: &[TableRow<'_>]) -> Result<()> {
        self.insert_by(CHUNK, rows)
    }

    /// Like [`Writer::insert`]; `chunk` is the largest number of rows whose index entries are inserted together. Larger
    /// chunks take more memory, and improve the locality of accesses to an index whose order is not that of the rows.
    pub fn insert_by(&mut self, chunk: usize, rows: &[TableRow<'_>]) -> Result<()> {
        rows.iter().try_for_each(|row| self.validate(None, row.doc))?;
        self.store_all(chunk, rows);
        self.capture(rows.iter().map(|row| (row.skey, row.id)))
    }

    fn store_all<'a>(&mut self, chunk: usize, rows: &[TableRow<'a>]) {
        let _pinned = Pinned::of_index_entries();
        // SAFETY: see the type's invariants; slots are of the table's kind. `permit` has checked that there are three columns.
        unsafe {
            if self.fires && (rows.len() == 1 || (*(*self.info).ri_TrigDesc).trig_insert_before_row) {
                let slot = self.slot();
                for row in rows {
                    store(slot, row);
                    pg_sys::ExecSimpleRelationInsert(self.info, self.estate, slot);
                    self.reset_row();
                }
                return;
            }
            let slots = if rows.len() == 1 { vec![self.slot()] } else { self.slots(rows.len().min(chunk)) };
            let constrained = !(*(*self.rel).rd_att).constr.is_null();
            for rows in rows.chunks(chunk) {
                let mut slots = slots[..rows.len()].to_vec();
                for (slot, row) in slots.iter().zip(rows) {
                    store(*slot, row);
                    (**slot).tts_tableOid = (*self.rel).rd_id;
                    if constrained {
                        pg_sys::ExecConstraints(self.info, *slot, self.estate);
                    }
                }
                match slots.as_mut_slice() {
                    [slot] => pg_sys::simple_table_tuple_insert(self.rel, *slot),
                    slots => {
                        let (count, command) = (slots.len() as c_int, (*self.estate).es_output_cid);
                        pg_sys::table_multi_insert(self.rel, slots.as_mut_ptr(), count, command, 0, null_mut());
                    }
                }
                let held =
                    |(slot, row): (&*mut pg_sys::TupleTableSlot, &TableRow<'a>)| Held { slot: *slot, doc: row.doc };
                let placed: Vec<_> = slots.iter().zip(rows).map(held).collect();
                if self.fires || !self.insert_by_index(&placed) {
                    for slot in &slots {
                        let all = version::NewEntries::All;
                        let recheck = version::exec_insert_index_tuples(self.info, *slot, self.estate, false, all);
                        if self.fires {
                            pg_sys::ExecARInsertTriggers(self.estate, self.info, *slot, recheck, null_mut());
                        }
                        self.reset_row();
                    }
                }
                for slot in slots {
                    pg_sys::ExecClearTuple(slot);
                }
            }
        }
    }

    /// Inserts the rows' index entries, one index after the other and in the order of its keys, so that its pages stay in the
    /// processor's cache: most of the time for loading rows is spent in searching indexes. Does nothing and returns false if an index has
    /// an exclusion constraint or is deferrable.
    ///
    /// # Safety
    /// The rows are in the table.
    unsafe fn insert_by_index(&mut self, rows: &[Held<'_>]) -> bool {
        // SAFETY: see the type's invariants. The keys live in the context of a row, which is reset after each index.
        unsafe {
            let simple =
                |index: &Index| (*index.info).ii_ExclusionOps.is_null() && (*(*index.rel).rd_index).indimmediate;
            if !self.indexes.iter().all(simple) {
                return false;
            }
            let indexes = Rc::clone(&self.indexes);
            for index in indexes.iter().filter(|index| index.is_ready()) {
                let context = pg_sys::MakePerTupleExprContext(self.estate);
                let former = pg_sys::MemoryContextSwitchTo((*context).ecxt_per_tuple_memory);
                let held = |row: &&Held<'_>| index.holds(**row, self.estate);
                let mut entries: Vec<_> =
                    rows.iter().filter(held).map(|row| Entry::new(index, *row, self.estate)).collect();
                entries.sort_by(|a, b| a.prefix.cmp(&b.prefix).then_with(|| a.order().cmp(&b.order())));
                let unique = if (*(*index.rel).rd_index).indisunique {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
                } else {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
                };
                for entry in &mut entries {
                    let tid = &raw mut (*entry.slot).tts_tid;
                    pg_sys::index_insert(
                        index.rel,
                        entry.values,
                        entry.nulls,
                        tid,
                        self.rel,
                        unique,
                        false,
                        index.info,
                    );
                }
                pg_sys::MemoryContextSwitchTo(former);
                self.reset_row();
            }
            true
        }
    }

    /// Frees the memory of index expressions for a row.
    pub(super) fn reset_row(&mut self) {
        // SAFETY: see the type's invariants; the context is made on demand and may be absent.
        unsafe {
            let context = (*self.estate).es_per_tuple_exprcontext;
            if !context.is_null() {
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            }
        }
    }

    /// Fires the triggers and closes the table. Its lock is kept to the end of the transaction.
    pub fn finish(self) {
        // SAFETY: see the type's invariants; nothing of it is used afterwards.
        unsafe {
            if self.fires {
                match self.purpose {
                    Purpose::Insert => pg_sys::ExecASInsertTriggers(self.estate, self.info, null_mut()),
                    Purpose::Update => pg_sys::ExecASUpdateTriggers(self.estate, self.info, null_mut()),
                    Purpose::Delete => pg_sys::ExecASDeleteTriggers(self.estate, self.info, null_mut()),
                }
                pg_sys::AfterTriggerEndQuery(self.estate);
            }
            pg_sys::ExecCloseIndices(self.info);
            pg_sys::ExecResetTupleTable((*self.estate).es_tupleTable, false);
            pg_sys::FreeExecutorState(self.estate);
            pg_sys::table_close(self.rel, pg_sys::NoLock as c_int);
        }
    }
}

/// An index entry to be inserted.
struct Entry {
    slot: *mut pg_sys::TupleTableSlot,
    /// one value for each column; the values and the keys are in PostgreSQL's memory
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    /// the start of the first key, which decides most comparisons
    prefix: u64,
    /// the bytes of the first two columns, empty for one that is not bytea; used only to sort entries
    keys: [(*const u8, usize); 2],
}

impl Entry {
    /// # Safety
    /// The index is of the table, and holds the row; the state is its writer's.
    unsafe fn new(index: &Index, row: Held<'_>, estate: *mut pg_sys::EState) -> Self {
        // SAFETY: promised by the caller; an index has at least one column.
        unsafe {
            // The arrays are only as long as needed, as memory accesses take most of the time here.
            let count = (*index.info).ii_NumIndexAttrs as usize;
            let (found, absent): Values = index.values(row, estate);
            let values: *mut pg_sys::Datum = pg_sys::palloc0(count * (size_of::<pg_sys::Datum>() + 1)).cast();
            let nulls: *mut bool = values.add(count).cast();
            std::ptr::copy_nonoverlapping(found.as_ptr(), values, count);
            std::ptr::copy_nonoverlapping(absent.as_ptr(), nulls, count);
            let mut keys = [(std::ptr::NonNull::<u8>::dangling().as_ptr().cast_const(), 0); 2];
            let columns = version::attributes((*index.rel).rd_att);
            for (at, key) in keys.iter_mut().enumerate().take(columns.len()) {
                if columns[at].atttypid == pg_sys::BYTEAOID && !*nulls.add(at) {
                    let value = detoasted_bytes(*values.add(at));
                    *key = (value.as_ptr(), value.len());
                }
            }
            let mut prefix = [0; 8];
            let length = keys[0].1.min(prefix.len());
            prefix[..length].copy_from_slice(std::slice::from_raw_parts(keys[0].0, length));
            Self { slot: row.slot, values, nulls, prefix: u64::from_be_bytes(prefix), keys }
        }
    }

    fn order(&self) -> [&[u8]; 2] {
        // SAFETY: the keys are dangling and empty, or live as long as the entry.
        self.keys.map(|(start, length)| unsafe { std::slice::from_raw_parts(start, length) })
    }
}

/// Makes the checks of [`Writer::open`], for a statement that may turn out to write nothing.
pub fn check_permission(table: pg_sys::Oid, purpose: Purpose) -> Result<()> {
    // SAFETY: the table exists (the caller looked it up in this transaction), and is open while it is looked at.
    unsafe {
        pg_sys::PreventCommandIfReadOnly(purpose.command().as_ptr());
        let rel = open_looked_up(table, pg_sys::RowExclusiveLock);
        let permitted = permit(rel, purpose);
        pg_sys::table_close(rel, pg_sys::NoLock as c_int);
        permitted
    }
}

/// # Safety
/// `rel` is open.
unsafe fn permit(rel: pg_sys::Relation, purpose: Purpose) -> Result<()> {
    // SAFETY: promised by the caller.
    unsafe {
        permission::require(rel, purpose.privileges());
        if permission::hides_rows(rel) {
            bail!(
                Kind::IllegalOperation,
                "a collection's table has row-level security, which docshard does not support"
            );
        }
        let columns = version::attributes((*rel).rd_att);
        if (*(*rel).rd_rel).relkind as u8 != pg_sys::RELKIND_RELATION || columns.len() <= DOC {
            return Err(damaged(rel, "does not have the columns that docshard created", String::new()));
        }
        match columns[DOC + 1..].iter().find(|column| !column.attisdropped) {
            None => Ok(()),
            Some(column) => {
                let name = CStr::from_ptr(column.attname.data.as_ptr()).to_string_lossy();
                let what = format!("has the column \"{name}\", which docshard did not create");
                Err(damaged(rel, &what, quote_ident(&name)))
            }
        }
    }
}

/// The error for a table whose columns somebody has changed. `extra`: the column that can be dropped; empty if there is none.
///
/// # Safety
/// `rel` is open.
unsafe fn damaged(rel: pg_sys::Relation, what: &str, extra: String) -> Error {
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr((*(*rel).rd_rel).relname.data.as_ptr()) }.to_string_lossy();
    let table = names::relation_name(name);
    let error = error!(Kind::IllegalOperation, "the collection's table {table} {what}");
    if extra.is_empty() {
        return error;
    }
    error.with_hint(format!("On the shard, a superuser can drop it: ALTER TABLE {table} DROP COLUMN {extra}"))
}
