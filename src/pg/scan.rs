//! Reading a few rows of a small table by an int4 key in a given snapshot, without SPI: for checks on hot paths.

use pgrx::pg_sys;

/// Deformed columns of one row.
pub struct Columns<'a> {
    values: &'a [pg_sys::Datum],
    nulls: &'a [bool],
}

impl Columns<'_> {
    /// An int8 column.
    pub fn i64(&self, column: usize) -> i64 {
        self.values[column].value() as i64
    }
    /// A bytea column, owned; None for null.
    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        if self.nulls[column] {
            return None;
        }
        // SAFETY: a non-null bytea datum is a varlena that lives as long as the row.
        unsafe {
            let packed = pg_sys::pg_detoast_datum_packed(self.values[column].cast_mut_ptr());
            let length = pgrx::varsize_any_exhdr(packed);
            Some(std::slice::from_raw_parts(pgrx::vardata_any(packed).cast::<u8>(), length).to_vec())
        }
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
    // SAFETY: the relation and its index exist (the caller looked them up in this transaction); at most 8 columns are
    // deformed into arrays of that size; the latest snapshot is registered while it is in use.
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
        let scan = pg_sys::systable_beginscan(rel, index, true, snapshot, 1, &mut scan_key);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let desc = (*rel).rd_att;
            let columns = (*desc).natts as usize;
            assert!(columns <= 8, "a table of docshard's own");
            let mut values = [pg_sys::Datum::from(0); 8];
            let mut nulls = [false; 8];
            pg_sys::heap_deform_tuple(tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            visit(Columns { values: &values[..columns], nulls: &nulls[..columns] });
        }
        pg_sys::systable_endscan(scan);
        if look == Look::Latest {
            pg_sys::UnregisterSnapshot(snapshot);
        }
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}
