//! Settings of a client's session that must not change what docshard does in it.
//!
//! A client, or `ALTER ROLE … SET`, may set anything in a session of the router, which is also the shard `local`. Settings that only
//! change how literals are read need no entry here: docshard's statements contain no such literal.

use super::search_path;
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

// Not in pgrx's bindings (utils/bytea.h).
unsafe extern "C" {
    static bytea_output: c_int;
}
const BYTEA_OUTPUT_HEX: c_int = 1;

struct Setting {
    name: &'static CStr,
    value: &'static CStr,
    /// true if the setting has this value already, or one with the same effect
    is_set: fn() -> bool,
}

const PATH: Setting = Setting {
    name: c"search_path",
    value: search_path::PATH,
    // SAFETY: a setting's value, which PostgreSQL keeps.
    is_set: || unsafe { CStr::from_ptr(pg_sys::namespace_search_path) } == search_path::PATH,
};

/// With a limit, a search in an inverted index returns only some of the rows.
const GIN_LIMIT: Setting = Setting {
    name: c"gin_fuzzy_search_limit",
    value: c"0",
    // SAFETY: reads a variable of this process.
    is_set: || unsafe { pg_sys::GinFuzzySearchLimit } == 0,
};

/// PostgreSQL's error for a duplicate key prints the key as bytea, which `catalog::collections::duplicate` parses as hexadecimal.
const BYTEA_OUTPUT: Setting = Setting {
    name: c"bytea_output",
    value: c"hex",
    // SAFETY: reads a variable of this process.
    is_set: || unsafe { bytea_output } == BYTEA_OUTPUT_HEX,
};

/// With the value `replica`, foreign keys of the catalog would not delete the rows that refer to a deleted row.
const TRIGGERS: Setting = Setting {
    name: c"session_replication_role",
    value: c"origin",
    // SAFETY: reads a variable of this process.
    is_set: || unsafe { pg_sys::SessionReplicationRole } != pg_sys::SESSION_REPLICATION_ROLE_REPLICA as c_int,
};

/// Compiling a query of the catalogs takes longer than the query.
const JIT: Setting = Setting {
    name: c"jit",
    value: c"off",
    // SAFETY: reads a variable of this process.
    is_set: || unsafe { !pg_sys::jit_enabled },
};

const OF_STATEMENTS: [Setting; 4] = [PATH, GIN_LIMIT, BYTEA_OUTPUT, TRIGGERS];

/// Pins settings until it is dropped. Contains the nesting level of the changed settings; None if all of them had their values already.
pub struct Pinned(Option<c_int>);

impl Pinned {
    /// For docshard's own statements.
    pub fn new() -> Self {
        Self::of(&OF_STATEMENTS)
    }

    /// For fetching further rows of a portal. No other setting is pinned, as the portal may run functions of a user, which need the user's
    /// settings.
    pub fn of_search() -> Self {
        Self::of(&[GIN_LIMIT])
    }

    /// For queries of PostgreSQL's catalogs that are large enough to be compiled.
    pub fn of_catalogs() -> Self {
        Self::of(&[JIT])
    }

    /// For a change of an index, which may raise an error for a duplicate key.
    pub fn of_index_entries() -> Self {
        Self::of(&[BYTEA_OUTPUT])
    }

    fn of(settings: &[Setting]) -> Self {
        if settings.iter().all(|setting| (setting.is_set)()) {
            return Self(None);
        }
        // SAFETY: a setting of this level is undone by `drop`, or by the abort of the transaction after an ERROR.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            for setting in settings.iter().filter(|setting| !(setting.is_set)()) {
                pg_sys::set_config_option(
                    setting.name.as_ptr(),
                    setting.value.as_ptr(),
                    pg_sys::GucContext::PGC_SUSET,
                    pg_sys::GucSource::PGC_S_SESSION,
                    pg_sys::GucAction::GUC_ACTION_SAVE,
                    true,
                    0,
                    false,
                );
            }
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
