//! Scans of PostgreSQL's catalogs, without a statement.

use pgrx::pg_sys;

/// Calls `visit` with each row of a catalog.
///
/// # Safety
/// In a transaction; the rows begin with a `T`.
pub unsafe fn scan<T>(catalog: pg_sys::Oid, mut visit: impl FnMut(&T)) {
    // SAFETY: promised by the caller. After an ERROR the transaction's abort ends the scan.
    unsafe {
        let rel = pg_sys::table_open(catalog, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan_catalog(rel, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            visit(&*pg_sys::GETSTRUCT(tuple).cast());
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
    }
}
