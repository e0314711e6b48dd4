//! Updates and deletes of rows that a scan has found.
//!
//! As in PostgreSQL's own statements, the row version that the scan saw is changed without locking it first, which would double the work
//! and its WAL. Only if another transaction has changed it meanwhile, the newest version is locked and checked again.

use super::row::{DOC, Purpose, fill};
use super::writer::Writer;
use crate::pg::datum::jsonb::{RawJsonb, detoasted_bytes, new_varlena};
use crate::pg::error::Result;
use crate::pg::security::pinned::Pinned;
use crate::pg::version;
use crate::storage::scan::{Bound, has_block, scan_keys};
use docshard_core::error::{Kind, error};
use pgrx::{FromDatum, IntoDatum, pg_sys};
use std::ffi::c_int;
use std::ptr::null_mut;

#[derive(Debug)]
pub enum Change {
    Nothing,
    /// the new document: jsonb's bytes
    Update(Vec<u8>),
    Delete,
}

/// A row that a scan of the running statement has found. The columns' values stay in place while the row is changed.
#[derive(Clone, Copy)]
pub struct FoundRow {
    place: pg_sys::ItemPointerData,
    pub(super) columns: [pg_sys::Datum; DOC + 1],
    /// a caller of an SQL function has named the row, so it must be verified
    unverified: bool,
}

impl FoundRow {
    /// A row that a caller of an SQL function has named. It is valid as long as the document and the current memory context.
    pub fn new(place: pg_sys::ItemPointerData, skey: &[u8], id: &[u8], doc: &RawJsonb) -> Self {
        let doc = doc.into_datum().expect("a document is not null");
        Self { place, columns: [new_varlena(skey).into(), new_varlena(id).into(), doc], unverified: true }
    }

    /// # Safety
    /// The slot holds a row of a collection's table, and keeps it as long as this is used.
    pub(super) unsafe fn in_slot(slot: *mut pg_sys::TupleTableSlot) -> Self {
        // SAFETY: promised by the caller; the table has these columns (`permit`), all not null.
        unsafe {
            pg_sys::slot_getallattrs(slot);
            let columns = std::array::from_fn(|column| *(*slot).tts_values.add(column));
            Self { place: (*slot).tts_tid, columns, unverified: false }
        }
    }

    pub fn skey(&self) -> &[u8] {
        self.bytes(0)
    }

    pub fn id(&self) -> &[u8] {
        self.bytes(1)
    }

    fn bytes(&self, column: usize) -> &[u8] {
        // SAFETY: the column is a bytea that is not null, and stays in place.
        unsafe { detoasted_bytes(self.columns[column]) }
    }

    /// The same row with a detoasted document, so that later uses need not detoast it again.
    pub(super) fn plain(&self) -> Self {
        let mut columns = self.columns;
        columns[DOC] = self.document().into_datum().expect("a document is not null");
        Self { columns, ..*self }
    }

    pub(super) fn document(&self) -> RawJsonb {
        // SAFETY: the column is jsonb and not null.
        unsafe {
            RawJsonb::from_polymorphic_datum(self.columns[DOC], false, pg_sys::JSONBOID)
                .expect("a document is not null")
        }
    }
}

/// The result of an attempt to change the version that the scan has found.
enum ChangeOutcome {
    Changed,
    /// this statement has already changed it
    Gone,
    /// the newest version must be locked: another transaction has changed it, or there are triggers
    MustLock,
}

/// The version of a row that was locked.
enum Locked {
    AsFound,
    Newer,
    Gone,
}

impl Writer {
    /// Changes the first visible row with these keys that `accept` accepts, like [`Writer::change_found`].
    pub fn change_one<T>(
        &mut self,
        index: pg_sys::Oid,
        skey: &[u8],
        id: Option<&[u8]>,
        mut accept: impl FnMut(&[u8]) -> Result<Option<(Change, T)>>,
    ) -> Result<Option<T>> {
        // SAFETY: see the type's invariants; the index is the table's primary key, whose columns are bytea; the scan and
        // the index are closed before this returns, and by PostgreSQL's abort if it unwinds.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as c_int);
            let wanted: Vec<Bound<'_>> = [Some(skey), id].into_iter().flatten().map(Bound::Is).collect();
            let mut keys = scan_keys(&wanted);
            let snapshot = pg_sys::GetActiveSnapshot();
            let count = wanted.len() as c_int;
            let scan = version::index_beginscan(self.rel, index, snapshot, wanted.len());
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), count, null_mut(), 0);
            let seen = self.slot();
            let mut done = None;
            while pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, seen) {
                let found = FoundRow::in_slot(seen);
                done = self.change_found(&found, &mut accept)?;
                if done.is_some() {
                    break;
                }
            }
            pg_sys::index_endscan(scan);
            pg_sys::index_close(index, pg_sys::AccessShareLock as c_int);
            Ok(done)
        }
    }

    /// Changes the row as `accept` decides for its document, and returns `accept`'s second value. None if `accept` declines, or if the row
    /// no longer exists.
    ///
    /// Waits for a transaction that is changing the row, and calls `accept` again for the newest version; under REPEATABLE READ it returns
    /// `WriteConflict` (40001) instead. A row that `accept` does not change is not locked.
    pub fn change_found<T>(
        &mut self,
        found: &FoundRow,
        mut accept: impl FnMut(&[u8]) -> Result<Option<(Change, T)>>,
    ) -> Result<Option<T>> {
        let found = found.plain();
        let Some(accepted) = accept(found.document().bytes())? else { return Ok(None) };
        let verified = if found.unverified { self.verify(&found) } else { Some(found) };
        let Some(found) = &verified else { return Ok(None) };
        self.validate_change(found, &accepted.0)?;
        let decision = match self.attempt(found, &accepted.0)? {
            ChangeOutcome::Changed => Some(accepted),
            ChangeOutcome::Gone => None,
            ChangeOutcome::MustLock => {
                let [_, locked, _] = self.change_slots();
                let decision = match self.lock(found, locked)? {
                    Locked::Gone => None,
                    Locked::AsFound => Some(accepted),
                    Locked::Newer => {
                        // SAFETY: the slot holds the row that was locked, and is not used otherwise before the row is written.
                        let newer = unsafe { FoundRow::in_slot(locked) };
                        // The other transaction may have changed the keys.
                        let same = newer.skey() == found.skey() && newer.id() == found.id();
                        let decision = if same { accept(newer.document().bytes())? } else { None };
                        if let Some((change, _)) = &decision {
                            self.validate_change(&newer, change)?;
                        }
                        decision
                    }
                };
                if let Some((change, _)) = &decision {
                    self.apply(locked, change);
                }
                decision
            }
        };
        let Some((change, result)) = decision else { return Ok(None) };
        if !matches!(change, Change::Nothing) {
            self.capture(std::iter::once_with(|| (found.skey(), found.id())))?;
        }
        Ok(Some(result))
    }

    fn validate_change(&self, found: &FoundRow, change: &Change) -> Result<()> {
        match change {
            Change::Update(doc) => self.validate(Some(found.document().bytes()), doc),
            Change::Nothing | Change::Delete => Ok(()),
        }
    }

    /// Reads the row at the place that a caller has named; None if there is no row with these keys. To change a place without a row, or a
    /// row with other index entries, would corrupt the table.
    fn verify(&mut self, found: &FoundRow) -> Option<FoundRow> {
        let [seen, ..] = self.change_slots();
        // SAFETY: see the type's invariants; PostgreSQL checks that the place has a row. The change checks its version.
        let row = unsafe {
            // Reading a block beyond the end of the table raises an error, and InvalidBlockNumber would extend it.
            let block = pgrx::itemptr::item_pointer_get_block_number_no_check(found.place);
            if found.place.ip_posid == 0 || !has_block(self.rel, block) {
                return None;
            }
            let (mut place, any) = (found.place, &raw mut pg_sys::SnapshotAnyData);
            pg_sys::table_tuple_fetch_row_version(self.rel, &mut place, any, seen).then(|| FoundRow::in_slot(seen))
        };
        row.filter(|row| (row.skey(), row.id()) == (found.skey(), found.id()))
    }

    /// Returns the slots for changes, which are made at the first call.
    pub(super) fn change_slots(&mut self) -> [*mut pg_sys::TupleTableSlot; 3] {
        if let Some(slots) = self.change_slots {
            return slots;
        }
        let slots = [self.slot(), self.slot(), self.slot()];
        self.change_slots = Some(slots);
        slots
    }

    /// Tries to change the version that the scan has found, without locking it first.
    fn attempt(&mut self, found: &FoundRow, change: &Change) -> Result<ChangeOutcome> {
        if matches!(change, Change::Nothing) {
            return Ok(ChangeOutcome::Changed);
        }
        if self.fires {
            return Ok(ChangeOutcome::MustLock);
        }
        let [.., new] = self.change_slots();
        // SAFETY: see the type's invariants; the values that the new row shares with the old one stay in place.
        unsafe {
            let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
            let mut place = found.place;
            let (command, snapshot) = ((*self.estate).es_output_cid, (*self.estate).es_snapshot);
            let result = match change {
                Change::Nothing => return Ok(ChangeOutcome::Changed),
                Change::Delete => pg_sys::table_tuple_delete(
                    self.rel,
                    &mut place,
                    command,
                    snapshot,
                    null_mut(),
                    true,
                    &mut failure,
                    false,
                ),
                Change::Update(doc) => {
                    let mut columns = found.columns;
                    columns[DOC] = new_varlena(doc).into();
                    fill(new, columns);
                    (*new).tts_tableOid = (*self.rel).rd_id;
                    if !(*(*self.rel).rd_att).constr.is_null() {
                        pg_sys::ExecConstraints(self.info, new, self.estate);
                    }
                    let unmentioned = self.unmentioned(found, new, doc);
                    let mut lock = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
                    let mut indexes = version::UpdatedIndexes::default();
                    let result = pg_sys::table_tuple_update(
                        self.rel,
                        &mut place,
                        new,
                        command,
                        snapshot,
                        null_mut(),
                        true,
                        &mut failure,
                        &mut lock,
                        &mut indexes,
                    );
                    let entries = version::NewEntries::after(indexes);
                    drop(unmentioned);
                    if result == pg_sys::TM_Result::TM_Ok && (*self.info).ri_NumIndices > 0 {
                        let _pinned = Pinned::of_index_entries();
                        version::exec_insert_index_tuples(self.info, new, self.estate, true, entries);
                        self.reset_row();
                    }
                    pg_sys::ExecClearTuple(new);
                    result
                }
            };
            use pg_sys::TM_Result as R;
            match result {
                R::TM_Ok => Ok(ChangeOutcome::Changed),
                // TM_Invisible: the caller has named the place of a row that an aborted or a running transaction has inserted.
                R::TM_SelfModified | R::TM_Invisible => Ok(ChangeOutcome::Gone),
                R::TM_Updated | R::TM_Deleted => Ok(ChangeOutcome::MustLock),
                _ => Err(error!(Kind::InternalError, "unexpected answer {result} to a change of a row")),
            }
        }
    }

    /// Locks the newest version of the row and stores it in `locked`.
    fn lock(&self, found: &FoundRow, locked: *mut pg_sys::TupleTableSlot) -> Result<Locked> {
        // SAFETY: see the type's invariants; the slot is of the table's kind.
        unsafe {
            let one_snapshot = pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int;
            let flags = if one_snapshot { 0 } else { pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8 };
            let mode = match self.purpose {
                Purpose::Delete => pg_sys::LockTupleMode::LockTupleExclusive,
                Purpose::Insert | Purpose::Update => pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
            };
            let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
            let mut place = found.place;
            let result = pg_sys::table_tuple_lock(
                self.rel,
                &mut place,
                (*self.estate).es_snapshot,
                locked,
                pg_sys::GetCurrentCommandId(false),
                mode,
                pg_sys::LockWaitPolicy::LockWaitBlock,
                flags,
                &mut failure,
            );
            use pg_sys::TM_Result as R;
            match result {
                R::TM_Ok => {
                    let mut place = found.place;
                    let newer = !pg_sys::ItemPointerEquals(&mut place, &raw mut (*locked).tts_tid);
                    Ok(if newer { Locked::Newer } else { Locked::AsFound })
                }
                // This statement has changed the row already.
                R::TM_SelfModified | R::TM_Invisible => Ok(Locked::Gone),
                R::TM_Deleted if !one_snapshot => Ok(Locked::Gone),
                R::TM_Updated | R::TM_Deleted => {
                    Err(error!(Kind::WriteConflict, "could not serialize access due to concurrent update"))
                }
                _ => Err(error!(Kind::InternalError, "unexpected answer {result} of table_tuple_lock")),
            }
        }
    }

    /// Changes a row that this transaction has locked.
    fn apply(&mut self, locked: *mut pg_sys::TupleTableSlot, change: &Change) {
        let [.., new] = self.change_slots();
        // SAFETY: see the type's invariants; the row in `locked` is locked by this transaction. The new row shares the old one's
        // values, which stay as long as the slot.
        unsafe {
            let mut recheck: pg_sys::EPQState = std::mem::zeroed();
            version::eval_plan_qual_init(&mut recheck, self.estate);
            match change {
                Change::Nothing => {}
                Change::Delete => {
                    pg_sys::ExecSimpleRelationDelete(self.info, self.estate, &mut recheck, locked);
                }
                Change::Update(doc) => {
                    let old = FoundRow::in_slot(locked).plain();
                    let mut columns = old.columns;
                    columns[DOC] = new_varlena(doc).into();
                    fill(new, columns);
                    // A trigger may change the new row, so its index entries cannot be compared in advance.
                    let unmentioned = if self.fires { None } else { self.unmentioned(&old, new, doc) };
                    pg_sys::ExecSimpleRelationUpdate(self.info, self.estate, &mut recheck, locked, new);
                    drop(unmentioned);
                    pg_sys::ExecClearTuple(new);
                }
            }
            pg_sys::EvalPlanQualEnd(&mut recheck);
            self.reset_row();
        }
    }
}
