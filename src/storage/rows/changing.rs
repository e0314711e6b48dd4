//! Changing rows that a scan has found.
//!
//! As PostgreSQL's own statements do, a change is tried at the version that the scan saw. Only if another transaction has
//! changed that meanwhile is the newest version locked, and looked at again: to lock every row first would double the
//! work, and its WAL.

use super::row::{DOC, Purpose, fill};
use super::writer::Writer;
use crate::pg::datum::jsonb::{RawJsonb, new_varlena};
use crate::pg::error::{Error, Result};
use crate::storage::scan::{Bound, has_block, scan_keys};
use docshard_core::error::Kind;
use pgrx::{FromDatum, IntoDatum, pg_sys};
use std::ffi::c_int;
use std::ptr::null_mut;

/// What becomes of a row.
#[derive(Debug)]
pub enum Change {
    /// it stays as it is
    Nothing,
    /// it gets this document: jsonb's bytes
    Update(Vec<u8>),
    /// it goes away
    Delete,
}

/// A row as a scan of the running statement has found it: its place, and what is in its columns, which stays where it is
/// while the row is changed.
#[derive(Clone, Copy)]
pub struct Found {
    place: pg_sys::ItemPointerData,
    pub(super) columns: [pg_sys::Datum; DOC + 1],
    /// only somebody says so, who calls with what he likes
    said: bool,
}

impl Found {
    /// The row at a place of the table, and what is in its columns, as a caller says; good as long as the document and the
    /// present memory context.
    pub fn new(place: pg_sys::ItemPointerData, skey: &[u8], id: &[u8], doc: &RawJsonb) -> Self {
        let doc = doc.into_datum().expect("a document is not null");
        Self { place, columns: [new_varlena(skey).into(), new_varlena(id).into(), doc], said: true }
    }

    /// # Safety
    /// The slot holds a row of a collection's table, and keeps it as long as this is used.
    pub(super) unsafe fn in_slot(slot: *mut pg_sys::TupleTableSlot) -> Self {
        // SAFETY: promised by the caller; the table has these columns (`permit`), all not null.
        unsafe {
            pg_sys::slot_getallattrs(slot);
            let columns = std::array::from_fn(|column| *(*slot).tts_values.add(column));
            Self { place: (*slot).tts_tid, columns, said: false }
        }
    }

    /// The shard key.
    pub fn skey(&self) -> &[u8] {
        self.bytes(0)
    }

    /// The `_id`.
    pub fn id(&self) -> &[u8] {
        self.bytes(1)
    }

    fn bytes(&self, column: usize) -> &[u8] {
        // SAFETY: the column is a bytea that is not null, and stays where it is; what is detoasted is in PostgreSQL's
        // memory.
        unsafe {
            let packed = pg_sys::pg_detoast_datum_packed(self.columns[column].cast_mut_ptr());
            std::slice::from_raw_parts(pgrx::vardata_any(packed).cast(), pgrx::varsize_any_exhdr(packed))
        }
    }

    /// The same, its document neither compressed nor elsewhere, so that it is made so once.
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

/// What came of trying to change the version that was found.
enum Tried {
    Done,
    /// by this very statement, behind the scan's back, it has been changed already
    Gone,
    /// another transaction has changed it, or triggers ask for its newest version
    Locking,
}

/// What was there when a row was to be locked.
enum Locked {
    /// the very version that was found
    AsFound,
    /// a newer one
    Newer,
    /// nothing any more
    Gone,
}

impl Writer {
    /// Finds a row of these keys that the active snapshot shows and `accept` takes, and does with its newest version what
    /// `accept` says; tells what. None: there is none.
    ///
    /// # Errors
    /// Those of [`Writer::change_found`].
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
            let scan = pg_sys::index_beginscan(self.rel, index, snapshot, count, 0);
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), count, null_mut(), 0);
            let seen = self.slot();
            let mut done = None;
            while pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, seen) {
                let found = Found::in_slot(seen);
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

    /// Does with the row what `accept` says about its document; tells what. None: `accept` does not take it, or it is gone.
    ///
    /// It waits for a transaction that is changing the row and then looks at what became of it: `accept` is asked again.
    /// Under REPEATABLE READ that is a serialization failure (40001). What stays as it is is not locked.
    ///
    /// # Errors
    /// What `accept` answers; `WriteConflict`.
    pub fn change_found<T>(
        &mut self,
        found: &Found,
        mut accept: impl FnMut(&[u8]) -> Result<Option<(Change, T)>>,
    ) -> Result<Option<T>> {
        let found = found.plain();
        let Some((change, told)) = accept(found.document().bytes())? else { return Ok(None) };
        let there = if found.said { self.at_place_of(&found) } else { Some(found) };
        let Some(found) = &there else { return Ok(None) };
        let decision = match self.attempt(found, &change)? {
            Tried::Done => Some((change, told)),
            Tried::Gone => None,
            Tried::Locking => {
                let [_, locked, _] = self.spare();
                let decision = match self.lock(found, locked)? {
                    Locked::Gone => None,
                    Locked::AsFound => Some((change, told)),
                    Locked::Newer => {
                        // SAFETY: the slot holds the row that was locked, and is not used otherwise before the row is written.
                        let newer = unsafe { Found::in_slot(locked) };
                        // What has been waited for may have made another row of it.
                        let same = newer.skey() == found.skey() && newer.id() == found.id();
                        if same { accept(newer.document().bytes())? } else { None }
                    }
                };
                if let Some((change, _)) = &decision {
                    self.apply(locked, change);
                }
                decision
            }
        };
        let Some((change, told)) = decision else { return Ok(None) };
        if !matches!(change, Change::Nothing) {
            self.capture(std::iter::once_with(|| (found.skey(), found.id())))?;
        }
        Ok(Some(told))
    }

    /// What really is at the place where a caller says that a row is; None if that is no row of its keys. To change a place that
    /// holds none, or to take what another row's indexes hold for this one's, would be the end of the table.
    fn at_place_of(&mut self, found: &Found) -> Option<Found> {
        let [seen, ..] = self.spare();
        // SAFETY: see the type's invariants; PostgreSQL looks whether the place holds a row. Which of its versions that is, the
        // change itself will find out.
        let row = unsafe {
            // To read a block beyond the table's end is an error at best, and the last of all numbers would make it longer.
            let block = pgrx::itemptr::item_pointer_get_block_number_no_check(found.place);
            if found.place.ip_posid == 0 || !has_block(self.rel, block) {
                return None;
            }
            let (mut place, any) = (found.place, &raw mut pg_sys::SnapshotAnyData);
            pg_sys::table_tuple_fetch_row_version(self.rel, &mut place, any, seen).then(|| Found::in_slot(seen))
        };
        row.filter(|row| (row.skey(), row.id()) == (found.skey(), found.id()))
    }

    /// The slots for changes, made when they are first asked for.
    pub(super) fn spare(&mut self) -> [*mut pg_sys::TupleTableSlot; 3] {
        if let Some(spare) = self.spare {
            return spare;
        }
        let spare = [self.slot(), self.slot(), self.slot()];
        self.spare = Some(spare);
        spare
    }

    /// Tries to change the version that was found.
    fn attempt(&mut self, found: &Found, change: &Change) -> Result<Tried> {
        if matches!(change, Change::Nothing) {
            return Ok(Tried::Done);
        }
        if self.fires {
            return Ok(Tried::Locking);
        }
        let [.., new] = self.spare();
        // SAFETY: see the type's invariants; the values that the new row shares with the old one stay where they are. What
        // `new_varlena` allocates is copied into the table's tuple before this returns.
        unsafe {
            let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
            let mut place = found.place;
            let (command, snapshot) = ((*self.estate).es_output_cid, (*self.estate).es_snapshot);
            let result = match change {
                Change::Nothing => return Ok(Tried::Done),
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
                    let mut indexes = false;
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
                    drop(unmentioned);
                    if result == pg_sys::TM_Result::TM_Ok && indexes && (*self.info).ri_NumIndices > 0 {
                        pg_sys::ExecInsertIndexTuples(self.info, new, self.estate, true, false, null_mut(), null_mut());
                        self.reset_row();
                    }
                    pg_sys::ExecClearTuple(new);
                    result
                }
            };
            use pg_sys::TM_Result as R;
            match result {
                R::TM_Ok => Ok(Tried::Done),
                // Invisible: the place that a caller named holds what another transaction is still writing, or has taken back.
                R::TM_SelfModified | R::TM_Invisible => Ok(Tried::Gone),
                R::TM_Updated | R::TM_Deleted => Ok(Tried::Locking),
                _ => Err(Error::new(Kind::InternalError, format!("unexpected answer {result} to a change of a row"))),
            }
        }
    }

    /// Locks the newest version of the row and puts it into `locked`.
    fn lock(&self, found: &Found, locked: *mut pg_sys::TupleTableSlot) -> Result<Locked> {
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
                // By this very transaction, behind the scan's back.
                R::TM_SelfModified | R::TM_Invisible => Ok(Locked::Gone),
                R::TM_Deleted if !one_snapshot => Ok(Locked::Gone),
                R::TM_Updated | R::TM_Deleted => {
                    Err(Error::new(Kind::WriteConflict, "could not serialize access due to concurrent update"))
                }
                _ => Err(Error::new(Kind::InternalError, format!("unexpected answer {result} of table_tuple_lock"))),
            }
        }
    }

    /// Changes a row that this transaction has locked.
    fn apply(&mut self, locked: *mut pg_sys::TupleTableSlot, change: &Change) {
        let [.., new] = self.spare();
        // SAFETY: see the type's invariants; the row in `locked` is locked by this transaction. The new row's values
        // are the old one's, which stay while the slot does.
        unsafe {
            let mut recheck: pg_sys::EPQState = std::mem::zeroed();
            pg_sys::EvalPlanQualInit(&mut recheck, self.estate, null_mut(), null_mut(), -1);
            match change {
                Change::Nothing => {}
                Change::Delete => {
                    pg_sys::ExecSimpleRelationDelete(self.info, self.estate, &mut recheck, locked);
                }
                Change::Update(doc) => {
                    let old = Found::in_slot(locked).plain();
                    let mut columns = old.columns;
                    columns[DOC] = new_varlena(doc).into();
                    fill(new, columns);
                    // A trigger might make another row of it.
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
