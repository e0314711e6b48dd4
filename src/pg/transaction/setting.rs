//! Settings of PostgreSQL that hold for a time.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Sets a setting that every user may set, for the rest of the current transaction, as `SET LOCAL` does.
pub fn set_local(name: &'static CStr, value: &'static CStr) {
    set(name, value, pg_sys::GucAction::GUC_ACTION_LOCAL);
}

/// Sets a setting that every user may set, until the present nesting level of settings ends.
pub(in crate::pg) fn set_for_level(name: &'static CStr, value: &'static CStr) {
    set(name, value, pg_sys::GucAction::GUC_ACTION_SAVE);
}

fn set(name: &'static CStr, value: &'static CStr, action: pg_sys::GucAction::Type) {
    // SAFETY: inside a transaction; PostgreSQL copies both strings.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            action,
            true,
            0,
            false,
        );
    }
}
