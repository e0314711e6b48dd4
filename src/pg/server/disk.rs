//! The space that is free on the file system of new tables.

use crate::pg::error::Result;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;
use std::ffi::CString;
use std::mem::MaybeUninit;

/// The folder of a tablespace's tables, relative to the data directory, which is the working directory of a server's processes.
fn folder(tablespace: pg_sys::Oid) -> String {
    if tablespace == pg_sys::DEFAULTTABLESPACE_OID {
        return "base".to_owned();
    }
    format!("pg_tblspc/{}", tablespace.to_u32())
}

/// The bytes that a process without root's rights may use where the current user's new tables are stored: in `default_tablespace`, or else
/// in the database's own tablespace.
///
/// # Errors
/// `OperationFailed` if the system does not say.
pub fn free_bytes() -> Result<i64> {
    // SAFETY: looks a setting up, inside a transaction; reads what is set once at the backend's start.
    let (chosen, own) = unsafe {
        (
            pg_sys::GetDefaultTablespace(pg_sys::RELPERSISTENCE_PERMANENT as std::ffi::c_char, false),
            pg_sys::MyDatabaseTableSpace,
        )
    };
    let folder = folder(if chosen == pg_sys::InvalidOid { own } else { chosen });
    let path = CString::new(folder.as_str()).expect("a path without a zero byte");
    let mut found = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string, and a structure that the system fills.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        let cause = std::io::Error::last_os_error();
        return Err(error!(Kind::OperationFailed, "the free space of {folder} is not known: {cause}"));
    }
    // SAFETY: the call has filled it.
    let found = unsafe { found.assume_init() };
    Ok(i64::try_from(u128::from(found.f_bavail) * u128::from(found.f_frsize)).unwrap_or(i64::MAX))
}
