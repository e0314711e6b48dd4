//! The settings of processes that serve no client.
//!
//! PostgreSQL gives every process the settings of `ALTER DATABASE … SET`, which the database's owner chooses for its clients. Those that
//! would stop a background worker, or change what its statements do, are overridden.

use crate::pg::security::search_path;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The settings that are overridden, with their values. Read-only transactions and timeouts are meant for clients. `exit_on_error` would
/// end a worker at its first error. The others choose how values are read and printed, or what a statement does.
const SETTINGS: [(&CStr, &CStr); 16] = [
    (c"search_path", search_path::PATH),
    (c"standard_conforming_strings", c"on"),
    (c"bytea_output", c"hex"),
    (c"DateStyle", c"ISO, MDY"),
    (c"IntervalStyle", c"postgres"),
    (c"extra_float_digits", c"1"),
    (c"gin_fuzzy_search_limit", c"0"),
    (c"session_replication_role", c"origin"),
    (c"exit_on_error", c"off"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"statement_timeout", c"0"),
    (c"lock_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    (c"transaction_timeout", c"0"),
];

/// Overrides the database's settings, at the start of the process, outside any transaction.
pub(super) fn pin() {
    for (name, value) in SETTINGS {
        // SAFETY: a C string. Not every version of PostgreSQL has every setting.
        if !unsafe { pg_sys::GetConfigOption(name.as_ptr(), true, false) }.is_null() {
            set(name, value);
        }
    }
}

/// The value of a setting; None if there is no setting of this name.
pub fn current(name: &CStr) -> Option<String> {
    // SAFETY: a C string; the value is copied before anything else runs.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// Sets `lock_timeout` for this process.
pub fn limit_lock_waits(limit: &CStr) {
    set(c"lock_timeout", limit);
}

fn set(name: &CStr, value: &CStr) {
    // SAFETY: a setting that a superuser may change in a session; a value that PostgreSQL does not accept is an ERROR.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}
