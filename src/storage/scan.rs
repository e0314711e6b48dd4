//! Reading and writing single rows of docshard's own tables without SPI: for checks on hot paths, and inside triggers.

use crate::pg::datum::jsonb::{RawJsonb, new_varlena};
use crate::pg::security::permission;
use pgrx::pg_sys;

// Not in pgrx's bindings; called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// Deformed columns of one row.
pub struct Columns<'a> {
    values: &'a [pg_sys::Datum],
    nulls: &'a [bool],
    place: pg_sys::ItemPointerData,
}

impl Columns<'_> {
    /// An int4 column.
    pub fn i32(&self, column: usize) -> i32 {
        self.values[column].value() as i32
    }
    /// An int8 column.
    pub fn i64(&self, column: usize) -> i64 {
        self.values[column].value() as i64
    }
    /// The bytes of a bytea column, or of a jsonb one; a null has none.
    pub fn slice(&self, column: usize) -> &[u8] {
        if self.nulls[column] {
            return &[];
        }
        // SAFETY: a non-null bytea or jsonb datum is a varlena that lives as long as the row; what has to be detoasted is in
        // the present memory context, which outlives it.
        unsafe {
            let packed = pg_sys::pg_detoast_datum_packed(self.values[column].cast_mut_ptr());
            std::slice::from_raw_parts(pgrx::vardata_any(packed).cast::<u8>(), pgrx::varsize_any_exhdr(packed))
        }
    }
    /// A bytea column, owned; None for null.
    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        (!self.nulls[column]).then(|| {
            let mut bytes = Vec::new();
            self.append(column, &mut bytes);
            bytes
        })
    }
    /// Where the row is, as `tidsend` writes it: block and line.
    pub fn place(&self) -> [u8; 6] {
        let pg_sys::BlockIdData { bi_hi, bi_lo } = self.place.ip_blkid;
        let [[a, b], [c, d], [e, f]] = [bi_hi, bi_lo, self.place.ip_posid].map(u16::to_be_bytes);
        [a, b, c, d, e, f]
    }
    /// Adds the bytes of a bytea column, or of a jsonb one, to others; a null has none.
    pub fn append(&self, column: usize, to: &mut Vec<u8>) {
        to.extend_from_slice(self.slice(column));
    }
}

/// Which snapshot to look with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// the one that is active: a statement's own
    Active,
    /// the newest there is
    Latest,
}

/// Calls `visit` with each visible row of `relation` whose first column, the first of `index`, equals `key`.
pub fn by_int4(relation: pg_sys::Oid, index: pg_sys::Oid, key: i32, look: Look, mut visit: impl FnMut(Columns<'_>)) {
    // SAFETY: the relation and its index exist (the caller looked them up in this transaction); the latest snapshot is
    // registered while it is in use.
    unsafe {
        let rel = pg_sys::table_open(relation, pg_sys::AccessShareLock as i32);
        let snapshot = match look {
            Look::Active => pg_sys::GetActiveSnapshot(),
            Look::Latest => pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()),
        };
        let mut scan_key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(
            &mut scan_key,
            1,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::Oid::from(pg_sys::F_INT4EQ),
            pg_sys::Datum::from(key),
        );
        // A single page is quicker read than searched for, and none that a visible row could be in need not be: there are
        // such tables, of captures above all, which every write asks. What the snapshot shows was there before it.
        let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        if blocks > 0 {
            let scan = pg_sys::systable_beginscan(rel, index, blocks > 1, snapshot, 1, &mut scan_key);
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                visit_tuple(rel, tuple, &mut visit);
            }
            pg_sys::systable_endscan(scan);
        }
        if look == Look::Latest {
            pg_sys::UnregisterSnapshot(snapshot);
        }
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// Where [`by_int4`] found a row once. It may have gone since, and another one come.
#[derive(Clone, Copy)]
pub struct Spot {
    relation: pg_sys::Oid,
    place: pg_sys::ItemPointerData,
}

impl Spot {
    /// The place of a row of this relation.
    pub fn of(relation: pg_sys::Oid, row: &Columns<'_>) -> Self {
        Self { relation, place: row.place }
    }
}

/// Calls `visit` with the row that is at the spot, if the snapshot shows one: much cheaper than a search. Which row that is,
/// only its columns tell.
pub fn at_spot(spot: Spot, look: Look, visit: impl FnOnce(Columns<'_>)) {
    // SAFETY: as in `by_int4`. The relation may be gone, and may have become shorter; a line that holds no tuple is no row.
    // The buffer is pinned while the tuple is looked at.
    unsafe {
        let rel = pg_sys::try_table_open(spot.relation, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return;
        }
        let block = pgrx::itemptr::item_pointer_get_block_number_no_check(spot.place);
        if has_block(rel, block) {
            let snapshot = match look {
                Look::Active => pg_sys::GetActiveSnapshot(),
                Look::Latest => pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()),
            };
            let mut tuple = pg_sys::HeapTupleData { t_self: spot.place, ..Default::default() };
            let mut buffer = 0;
            if pg_sys::heap_fetch(rel, snapshot, &mut tuple, &mut buffer, false) {
                visit_tuple(rel, &mut tuple, visit);
                pg_sys::ReleaseBuffer(buffer);
            }
            if look == Look::Latest {
                pg_sys::UnregisterSnapshot(snapshot);
            }
        }
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// True if the relation has a block of that number.
///
/// # Safety
/// The relation is open and locked.
pub(super) unsafe fn has_block(rel: pg_sys::Relation, block: pg_sys::BlockNumber) -> bool {
    const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;
    // SAFETY: promised by the caller. How many blocks there were when this process last asked is as good as asking: they become
    // fewer only under a lock that excludes ours, and who then gets ours has been told to forget it.
    unsafe {
        let storage = (*rel).rd_smgr;
        let known =
            if storage.is_null() { pg_sys::InvalidBlockNumber } else { (*storage).smgr_cached_nblocks[MAIN as usize] };
        known != pg_sys::InvalidBlockNumber && block < known
            || block < pg_sys::RelationGetNumberOfBlocksInFork(rel, MAIN)
    }
}

/// # Safety
/// The tuple is one of the open relation, and stays where it is meanwhile.
unsafe fn visit_tuple(rel: pg_sys::Relation, tuple: pg_sys::HeapTuple, visit: impl FnOnce(Columns<'_>)) {
    // SAFETY: promised by the caller; at most 8 columns are deformed into arrays of that size.
    unsafe {
        let columns = (*(*rel).rd_att).natts as usize;
        assert!(columns <= 8, "a table of docshard's own");
        let mut values = [pg_sys::Datum::from(0); 8];
        let mut nulls = [false; 8];
        pg_sys::heap_deform_tuple(tuple, (*rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        visit(Columns { values: &values[..columns], nulls: &nulls[..columns], place: (*tuple).t_self });
    }
}

/// What a column of an index must be.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// equal to it
    Is(&'a [u8]),
    /// equal or greater
    From(&'a [u8]),
    /// greater
    Above(&'a [u8]),
    /// less
    Below(&'a [u8]),
}

/// Which way an index is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// in its order
    Forward,
    /// the last first
    Backward,
}

/// Calls `visit` with each row of `relation` that the active snapshot shows and whose first columns, those of `index`, all
/// of them bytea, are as said; in the order of the index, until `visit` says false. False if it did.
pub fn by_key(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    bounds: &[Bound<'_>],
    visit: impl FnMut(Columns<'_>) -> bool,
) -> bool {
    let keys = &mut scan_keys(bounds)[..bounds.len()];
    scan_by_keys(relation, index, keys, Direction::Forward, false, visit).unwrap_or(true)
}

/// As [`by_key`], for the present user. None, and nothing was visited, if row-level security hides rows, which the executor is
/// for. PostgreSQL's own error (42501) without the privilege to read the table.
pub fn user_by_key(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    bounds: &[Bound<'_>],
    visit: impl FnMut(Columns<'_>) -> bool,
) -> Option<bool> {
    let keys = &mut scan_keys(bounds)[..bounds.len()];
    scan_by_keys(relation, index, keys, Direction::Forward, true, visit)
}

/// As [`user_by_key`], by any b-tree; each bound is one of the column of that number, which counts from 0. None also if it is
/// none of the relation's, or a column is not there or not bytea, or the planner might not use it: as long as it is not valid,
/// or some snapshots cannot rely on it.
pub fn user_in_order(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    bounds: &[(usize, Bound<'_>)],
    direction: Direction,
    visit: impl FnMut(Columns<'_>) -> bool,
) -> Option<bool> {
    if !takes(index, relation, bounds) {
        return None;
    }
    let mut keys: Vec<_> = bounds.iter().map(|(column, bound)| scan_key(*column, *bound)).collect();
    scan_by_keys(relation, index, &mut keys, direction, true, visit)
}

fn takes(index: pg_sys::Oid, relation: pg_sys::Oid, bounds: &[(usize, Bound<'_>)]) -> bool {
    // SAFETY: the index exists (the caller looked it up in this transaction); an open one has types of as many columns as it
    // has keys.
    unsafe {
        let rel = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let form = &*(*rel).rd_index;
        let is_bytea =
            |column: usize| column < form.indnkeyatts as usize && *(*rel).rd_opcintype.add(column) == pg_sys::BYTEAOID;
        let takes = (*(*rel).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indrelid == relation
            && form.indisvalid
            && !form.indcheckxmin
            && bounds.iter().all(|(column, _)| is_bytea(*column));
        pg_sys::index_close(rel, pg_sys::AccessShareLock as i32);
        takes
    }
}

fn scan_by_keys(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    keys: &mut [pg_sys::ScanKeyData],
    direction: Direction,
    as_user: bool,
    mut visit: impl FnMut(Columns<'_>) -> bool,
) -> Option<bool> {
    let direction = match direction {
        Direction::Forward => pg_sys::ScanDirection::ForwardScanDirection,
        Direction::Backward => pg_sys::ScanDirection::BackwardScanDirection,
    };
    // SAFETY: the relation and its index exist (the caller looked them up in this transaction), and the keys are of bytea
    // columns that it has; an ordered scan of a b-tree takes any of these operators.
    unsafe {
        let rel = pg_sys::table_open(relation, pg_sys::AccessShareLock as i32);
        if as_user {
            permission::require(rel, pg_sys::ACL_SELECT);
            if permission::hides_rows(rel) {
                pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
                return None;
            }
        }
        let index_rel = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        let scan = pg_sys::index_beginscan(rel, index_rel, pg_sys::GetActiveSnapshot(), keys.len() as i32, 0);
        pg_sys::index_rescan(scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
        let mut goes_on = true;
        while goes_on && pg_sys::index_getnext_slot(scan, direction, slot) {
            pgrx::check_for_interrupts!();
            pg_sys::slot_getsomeattrs_int(slot, (*(*rel).rd_att).natts);
            let columns = (*slot).tts_nvalid as usize;
            goes_on = visit(Columns {
                values: std::slice::from_raw_parts((*slot).tts_values, columns),
                nulls: std::slice::from_raw_parts((*slot).tts_isnull, columns),
                place: (*slot).tts_tid,
            });
        }
        pg_sys::index_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::index_close(index_rel, pg_sys::AccessShareLock as i32);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        Some(goes_on)
    }
}

/// What an index over bytea columns is searched for, a bound for each of its first columns; as many keys as there are bounds.
/// They live in the present memory context.
pub(super) fn scan_keys(bounds: &[Bound<'_>]) -> [pg_sys::ScanKeyData; 2] {
    // SAFETY: zeros are an empty key.
    let mut keys: [pg_sys::ScanKeyData; 2] = unsafe { std::mem::zeroed() };
    assert!(bounds.len() <= keys.len(), "a key of docshard's own");
    for (column, bound) in bounds.iter().enumerate() {
        keys[column] = scan_key(column, *bound);
    }
    keys
}

/// A bound of a bytea column of an index, which counts from 0.
fn scan_key(column: usize, bound: Bound<'_>) -> pg_sys::ScanKeyData {
    let (strategy, function, key) = match bound {
        Bound::Is(key) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_BYTEAEQ, key),
        Bound::From(key) => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_BYTEAGE, key),
        Bound::Above(key) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_BYTEAGT, key),
        Bound::Below(key) => (pg_sys::BTLessStrategyNumber, pg_sys::F_BYTEALT, key),
    };
    // SAFETY: zeros are an empty key; it is made from a datum of its operator's type.
    unsafe {
        let mut made: pg_sys::ScanKeyData = std::mem::zeroed();
        let (column, key) = (column as i16 + 1, pg_sys::Datum::from(new_varlena(key)));
        pg_sys::ScanKeyInit(&mut made, column, strategy as u16, pg_sys::Oid::from(function), key);
        made
    }
}

/// The third column, a jsonb, of the row whose first two, the columns of `index`, equal the keys; in the active snapshot.
pub fn document_by_key(relation: pg_sys::Oid, index: pg_sys::Oid, keys: [&[u8]; 2]) -> Option<RawJsonb> {
    let mut found = None;
    by_key(relation, index, &keys.map(Bound::Is), |row| {
        let mut bytes = Vec::new();
        row.append(2, &mut bytes);
        found = Some(RawJsonb::from_bytes(&bytes));
        false
    });
    found
}

/// A value of a row to be written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// an int4
    Int4(i32),
    /// an int8
    Int8(i64),
    /// an int8: the sequence's next
    Next(pg_sys::Oid),
    /// a bytea
    Bytea(&'a [u8]),
}

fn next_value(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: the sequence exists; the guard turns an ERROR into an unwinding panic.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Writes a row of these columns, and its entries in plain indexes. Asks for nobody's privileges and fires no trigger.
pub(super) fn insert(relation: pg_sys::Oid, row: &[Value<'_>]) {
    // SAFETY: the relation exists and has these columns; the lock on it is kept to the end of the transaction, as every
    // writer's is.
    unsafe {
        let rel = pg_sys::table_open(relation, pg_sys::RowExclusiveLock as i32);
        assert!((*(*rel).rd_att).natts as usize == row.len(), "a table of docshard's own");
        let mut values: Vec<pg_sys::Datum> = row
            .iter()
            .map(|value| match value {
                Value::Int4(n) => pg_sys::Datum::from(*n),
                Value::Int8(n) => pg_sys::Datum::from(*n),
                Value::Next(sequence) => pg_sys::Datum::from(next_value(*sequence)),
                Value::Bytea(bytes) => pg_sys::Datum::from(new_varlena(bytes)),
            })
            .collect();
        let mut nulls = vec![false; row.len()];
        let tuple = pg_sys::heap_form_tuple((*rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::CatalogTupleInsert(rel, tuple);
        pg_sys::heap_freetuple(tuple);
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
    }
}
