//! Settings of PostgreSQL for the rest of the current transaction.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Sets a setting that every user may set, as `SET LOCAL` does.
pub fn set_local(name: &'static CStr, value: &'static CStr) {
    // SAFETY: inside a transaction; PostgreSQL copies both strings.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}
