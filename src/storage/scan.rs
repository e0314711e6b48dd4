//! Reads and writes rows of docshard's tables without SPI, on hot paths and inside triggers.

use crate::pg::datum::jsonb::{RawJsonb, detoasted_bytes, new_varlena, plain_bytes};
use crate::pg::transaction::snapshot;
use crate::pg::version::index_beginscan;
use crate::storage::{open_looked_up, open_readable};
use pgrx::pg_sys;

// Not in pgrx's bindings; called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// The columns of one row, by position from 0.
pub struct Columns<'a> {
    values: &'a [pg_sys::Datum],
    nulls: &'a [bool],
    place: pg_sys::ItemPointerData,
}

impl Columns<'_> {
    pub fn i32(&self, column: usize) -> i32 {
        self.values[column].value() as i32
    }
    pub fn i64(&self, column: usize) -> i64 {
        self.values[column].value() as i64
    }
    /// An int8 column; None for null, and for a column that the table does not have yet.
    pub fn opt_i64(&self, column: usize) -> Option<i64> {
        self.nulls.get(column).is_some_and(|null| !null).then(|| self.i64(column))
    }
    /// Returns the bytes of a bytea or jsonb column; no bytes for null. For a value that is stored compressed or outside of the row, this
    /// allocates memory that stays until the current memory context ends; [`Self::bytes`] and [`Self::append`] free theirs.
    pub fn slice(&self, column: usize) -> &[u8] {
        if self.nulls[column] {
            return &[];
        }
        // SAFETY: a non-null varlena that lives as long as the row; the current memory context outlives the row, too.
        unsafe { detoasted_bytes(self.values[column]) }
    }
    /// A bytea column; None for null.
    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        (!self.nulls[column]).then(|| self.with_slice(column, <[u8]>::to_vec))
    }

    /// Like [`bytes`](Self::bytes); None also for a column that the table does not have.
    pub fn opt_bytes(&self, column: usize) -> Option<Vec<u8>> {
        if column < self.values.len() { self.bytes(column) } else { None }
    }
    pub fn append(&self, column: usize, to: &mut Vec<u8>) {
        if !self.nulls[column] {
            self.with_slice(column, |bytes| to.extend_from_slice(bytes));
        }
    }
    /// Calls `read` with the bytes of a column that is not null.
    fn with_slice<T>(&self, column: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        let stored = self.values[column];
        // SAFETY: a non-null varlena that lives as long as the row; a copy is freed after its last use.
        unsafe {
            let plain = pg_sys::pg_detoast_datum_packed(stored.cast_mut_ptr());
            let read = read(plain_bytes(plain));
            if !std::ptr::eq(plain, stored.cast_mut_ptr()) {
                pg_sys::pfree(plain.cast());
            }
            read
        }
    }
    /// The size of a bytea or jsonb column, without reading a value that is stored outside of the row; 0 for null.
    pub fn size(&self, column: usize) -> usize {
        if self.nulls[column] {
            return 0;
        }
        // SAFETY: a non-null varlena, of which only the header is read.
        unsafe { pg_sys::toast_raw_datum_size(self.values[column]) }
    }
    /// Returns the row's place as a number.
    pub fn place_number(&self) -> Place {
        let pg_sys::BlockIdData { bi_hi, bi_lo } = self.place.ip_blkid;
        i64::from(bi_hi) << 32 | i64::from(bi_lo) << 16 | i64::from(self.place.ip_posid)
    }
    /// Returns the row's block and line number, in the format of `tidsend`.
    pub fn place(&self) -> [u8; 6] {
        let pg_sys::BlockIdData { bi_hi, bi_lo } = self.place.ip_blkid;
        let [[a, b], [c, d], [e, f]] = [bi_hi, bi_lo, self.place.ip_posid].map(u16::to_be_bytes);
        [a, b, c, d, e, f]
    }
}

/// A row's place in its table: the block's number times 65,536, and the line's number. A row keeps its place until it
/// is changed, or until the table is rewritten, which gives the table another file: see [`file`].
pub type Place = i64;

/// The first place of a block.
pub const fn beginning(block: i64) -> Place {
    block << 16
}

/// The number of the block of a place.
pub const fn block(place: Place) -> i64 {
    place >> 16
}

/// The snapshot that a scan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Active,
    Latest,
}

impl Look {
    /// Calls `read` with the snapshot.
    ///
    /// # Safety
    /// In a transaction; `read` does not keep the snapshot.
    unsafe fn with_snapshot(self, read: impl FnOnce(pg_sys::Snapshot)) {
        // SAFETY: promised by the caller; the latest snapshot is registered while it is in use.
        unsafe {
            match self {
                Self::Active => read(pg_sys::GetActiveSnapshot()),
                Self::Latest => {
                    let snapshot = pg_sys::RegisterSnapshot(snapshot::latest());
                    read(snapshot);
                    pg_sys::UnregisterSnapshot(snapshot);
                }
            }
        }
    }
}

/// Calls `visit` with each visible row whose first column, which is also the index's first column, equals the key.
pub fn by_int4(relation: pg_sys::Oid, index: pg_sys::Oid, key: i32, look: Look, mut visit: impl FnMut(Columns<'_>)) {
    // SAFETY: the relation and its index exist (the caller looked them up in this transaction).
    unsafe {
        let rel = pg_sys::table_open(relation, pg_sys::AccessShareLock as i32);
        let mut scan_key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(
            &mut scan_key,
            1,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::Oid::from(pg_sys::F_INT4EQ),
            pg_sys::Datum::from(key),
        );
        // A table of one page is read without the index, and an empty one not at all, because every write reads the table of captures.
        // The size is read after the snapshot was taken, so all visible rows are in counted blocks.
        look.with_snapshot(|snapshot| {
            let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
            if blocks == 0 {
                return;
            }
            let scan = pg_sys::systable_beginscan(rel, index, blocks > 1, snapshot, 1, &mut scan_key);
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                visit_tuple(rel, tuple, &mut visit);
            }
            pg_sys::systable_endscan(scan);
        });
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// The place where [`by_int4`] has found a row, which may have been replaced since.
#[derive(Clone, Copy)]
pub struct Spot {
    relation: pg_sys::Oid,
    place: pg_sys::ItemPointerData,
}

impl Spot {
    pub fn of(relation: pg_sys::Oid, row: &Columns<'_>) -> Self {
        Self { relation, place: row.place }
    }
}

/// Calls `visit` with the visible row at the spot, without a search; does nothing if there is none. It may be another row than the one that
/// was found before.
pub fn at_spot(spot: Spot, look: Look, visit: impl FnOnce(Columns<'_>)) {
    // SAFETY: as in `by_int4`. The relation may be gone or shorter; heap_fetch checks the line. The buffer is pinned while the tuple
    // is in use.
    unsafe {
        let rel = pg_sys::try_table_open(spot.relation, pg_sys::AccessShareLock as i32);
        if rel.is_null() {
            return;
        }
        let block = pgrx::itemptr::item_pointer_get_block_number_no_check(spot.place);
        if has_block(rel, block) {
            look.with_snapshot(|snapshot| {
                let mut tuple = pg_sys::HeapTupleData { t_self: spot.place, ..Default::default() };
                let mut buffer = 0;
                if pg_sys::heap_fetch(rel, snapshot, &mut tuple, &mut buffer, false) {
                    visit_tuple(rel, &mut tuple, visit);
                    pg_sys::ReleaseBuffer(buffer);
                }
            });
        }
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// True if the relation has that block.
///
/// # Safety
/// The relation is open and locked.
pub(super) unsafe fn has_block(rel: pg_sys::Relation, block: pg_sys::BlockNumber) -> bool {
    const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;
    // SAFETY: promised by the caller. A cached size is valid: a relation is truncated only under a lock that excludes ours, and with
    // an invalidation.
    unsafe {
        let storage = (*rel).rd_smgr;
        let known =
            if storage.is_null() { pg_sys::InvalidBlockNumber } else { (*storage).smgr_cached_nblocks[MAIN as usize] };
        known != pg_sys::InvalidBlockNumber && block < known
            || block < pg_sys::RelationGetNumberOfBlocksInFork(rel, MAIN)
    }
}

/// # Safety
/// The tuple is one of the open relation, and stays in place.
pub(super) unsafe fn visit_tuple<T>(
    rel: pg_sys::Relation,
    tuple: pg_sys::HeapTuple,
    visit: impl FnOnce(Columns<'_>) -> T,
) -> T {
    // SAFETY: promised by the caller; at most 8 columns are deformed into arrays of that size.
    unsafe {
        let columns = (*(*rel).rd_att).natts as usize;
        assert!(columns <= 8, "a table of docshard's own");
        let mut values = [pg_sys::Datum::from(0); 8];
        let mut nulls = [false; 8];
        pg_sys::heap_deform_tuple(tuple, (*rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        visit(Columns { values: &values[..columns], nulls: &nulls[..columns], place: (*tuple).t_self })
    }
}

/// A condition on an index column.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// `=`
    Is(&'a [u8]),
    /// `>=`
    From(&'a [u8]),
    /// `>`
    Above(&'a [u8]),
    /// `<`
    Below(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// Calls `visit` with each row that is visible in the active snapshot and satisfies the bounds on the index's first columns, all
/// of them bytea, in the order of the index, until `visit` returns false. Returns false if `visit` did.
pub fn by_key(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    bounds: &[Bound<'_>],
    visit: impl FnMut(Columns<'_>) -> bool,
) -> bool {
    let keys = &mut scan_keys(bounds)[..bounds.len()];
    scan_by_keys(relation, index, keys, Direction::Forward, false, visit).unwrap_or(true)
}

/// Like [`by_key`], with the rights of the current user. None if row-level security applies: see [`open_readable`].
pub fn user_by_key(
    relation: pg_sys::Oid,
    index: pg_sys::Oid,
    bounds: &[Bound<'_>],
    visit: impl FnMut(Columns<'_>) -> bool,
) -> Option<bool> {
    let keys = &mut scan_keys(bounds)[..bounds.len()];
    scan_by_keys(relation, index, keys, Direction::Forward, true, visit)
}

/// Like [`user_by_key`], by any b-tree of the relation, with bounds on bytea columns by their positions. Also returns None if the index is
/// not such a b-tree of the relation, has no such columns, is not valid, or is not valid for all snapshots.
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
        let rel = if as_user { open_readable(relation)? } else { open_looked_up(relation, pg_sys::AccessShareLock) };
        let index_rel = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        let scan = index_beginscan(rel, index_rel, pg_sys::GetActiveSnapshot(), keys.len());
        pg_sys::index_rescan(scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
        let mut goes_on = true;
        while goes_on && pg_sys::index_getnext_slot(scan, direction, slot) {
            pgrx::check_for_interrupts!();
            goes_on = visit(columns_of(rel, slot));
        }
        pg_sys::index_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::index_close(index_rel, pg_sys::AccessShareLock as i32);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        Some(goes_on)
    }
}

/// The columns of the row in a slot.
///
/// # Safety
/// The slot has a row of the open relation, and keeps it as long as the columns are used.
unsafe fn columns_of<'a>(rel: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) -> Columns<'a> {
    // SAFETY: promised by the caller.
    unsafe {
        pg_sys::slot_getsomeattrs_int(slot, (*(*rel).rd_att).natts);
        let columns = (*slot).tts_nvalid as usize;
        Columns {
            values: std::slice::from_raw_parts((*slot).tts_values, columns),
            nulls: std::slice::from_raw_parts((*slot).tts_isnull, columns),
            place: (*slot).tts_tid,
        }
    }
}

/// The number of the file that has the relation's rows. VACUUM FULL, for example, writes another one, but not before this transaction ends.
pub fn file(relation: pg_sys::Oid) -> i64 {
    // SAFETY: the relation exists (the caller looked it up in this transaction).
    unsafe {
        let rel = open_looked_up(relation, pg_sys::AccessShareLock);
        let file = (*(*rel).rd_rel).relfilenode;
        // The lock stays.
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        i64::from(file.to_u32())
    }
}

/// The place behind the last one that the relation has now. Rows that are visible in an older snapshot lie before this
/// place.
pub fn end(relation: pg_sys::Oid) -> Place {
    // SAFETY: the relation exists (the caller looked it up in this transaction).
    unsafe {
        let rel = open_looked_up(relation, pg_sys::AccessShareLock);
        let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        beginning(i64::from(blocks))
    }
}

/// Calls `visit` with each row that is visible in the active snapshot, at the places from `from` on and below `before`,
/// in the order of the places, until `visit` returns false.
pub fn by_place(relation: pg_sys::Oid, from: Place, before: Place, mut visit: impl FnMut(Columns<'_>) -> bool) {
    let pointer = |place: Place| pg_sys::ItemPointerData {
        ip_blkid: pg_sys::BlockIdData { bi_hi: (place >> 32) as u16, bi_lo: (place >> 16) as u16 },
        ip_posid: place as u16,
    };
    let (mut first, mut last) = (pointer(from), pointer(before));
    let flags = pg_sys::ScanOptions::SO_TYPE_TIDRANGESCAN | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
    // SAFETY: the relation exists (the caller looked it up in this transaction), and it is a heap, which has such scans. Places beyond the
    // table's end are valid.
    unsafe {
        let rel = open_looked_up(relation, pg_sys::AccessShareLock);
        let methods = &*(*rel).rd_tableam;
        let slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        let begin = methods.scan_begin.expect("a heap");
        let scan = begin(rel, pg_sys::GetActiveSnapshot(), 0, std::ptr::null_mut(), std::ptr::null_mut(), flags);
        methods.scan_set_tidrange.expect("a heap")(scan, &mut first, &mut last);
        let next = methods.scan_getnextslot_tidrange.expect("a heap");
        let mut goes_on = true;
        while goes_on && next(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
            pgrx::check_for_interrupts!();
            let row = columns_of(rel, slot);
            goes_on = row.place_number() < before && visit(row);
        }
        methods.scan_end.expect("a heap")(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}

/// Returns a scan key for each bound, on an index's first columns, all of them bytea. The keys are in the current memory context.
pub(super) fn scan_keys(bounds: &[Bound<'_>]) -> [pg_sys::ScanKeyData; 2] {
    // SAFETY: zeros are an empty key.
    let mut keys: [pg_sys::ScanKeyData; 2] = unsafe { std::mem::zeroed() };
    assert!(bounds.len() <= keys.len(), "a key of docshard's own");
    for (column, bound) in bounds.iter().enumerate() {
        keys[column] = scan_key(column, *bound);
    }
    keys
}

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

/// Returns the document of the row with these keys, in the active snapshot.
pub fn document_by_key(relation: pg_sys::Oid, index: pg_sys::Oid, keys: [&[u8]; 2]) -> Option<RawJsonb> {
    let mut found = None;
    by_key(relation, index, &keys.map(Bound::Is), |row| {
        found = Some(RawJsonb::from_bytes(row.slice(2)));
        false
    });
    found
}

/// A column of a row to be written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Int4(i32),
    Int8(i64),
    /// the next value of a sequence
    Next(pg_sys::Oid),
    Bytea(&'a [u8]),
}

fn next_value(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: the sequence exists; the guard turns an ERROR into an unwinding panic.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Inserts a row of one of docshard's own tables and its index entries, without privilege checks and triggers.
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
