//! What names in docshard's own statements mean.
//!
//! Whoever may create objects in a schema that is searched, be it only a temporary one, could otherwise have types,
//! functions and operators found in place of PostgreSQL's, and have them run with the rights of whoever runs the statement.
//! So every statement of this backend (see `spi`) is parsed with [`PATH`], and so are all that workers and jobs run.
//! Relations are named with their schemas. The sessions at shards have the same setting.

use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

/// PostgreSQL's own names first: where the last schema is not given, it is searched before all others for relations and types.
const PATH: &CStr = c"pg_catalog, pg_temp";

/// [`PATH`] for as long as it lives.
pub struct Pinned(Option<c_int>);

impl Pinned {
    /// Sets it, if it is not what the session has.
    pub fn new() -> Self {
        // SAFETY: a setting's value, which PostgreSQL keeps; a setting of this level is undone by `drop`, or by the abort of
        // the transaction after an ERROR.
        unsafe {
            if CStr::from_ptr(pg_sys::namespace_search_path) == PATH {
                return Self(None);
            }
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                PATH.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            Self(Some(level))
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(level) = self.0
            && !std::thread::panicking()
        {
            // SAFETY: pairs with NewGUCNestLevel; levels above it have ended.
            unsafe { pg_sys::AtEOXact_GUC(true, level) };
        }
    }
}

/// Sets it for all that this process does, which serves no client, whatever ALTER DATABASE … SET says.
pub fn pin_for_process() {
    // SAFETY: a setting that any user may change, by a value that PostgreSQL accepts.
    unsafe {
        pg_sys::SetConfigOption(
            c"search_path".as_ptr(),
            PATH.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}
