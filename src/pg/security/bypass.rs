//! Whether writes bypass the validators of collections.
//!
//! On the router, an operation requests this for its own duration. The router tells a shard by the setting [`SETTING`], which any role may
//! change, but which has an effect only in a router's sessions.

use crate::pg::object::own_statement;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::cell::Cell;

/// The name of the setting.
pub const SETTING: &str = "docshard.bypass_validation";

static GIVEN: GucSetting<bool> = GucSetting::<bool>::new(false);

thread_local! {
    static REQUESTED: Cell<bool> = const { Cell::new(false) };
}

/// Called from `_PG_init`.
pub fn init() {
    GucRegistry::define_bool_guc(
        c"docshard.bypass_validation",
        c"Set by a router, for a write that bypasses the validator of its collection.",
        c"It has no effect in other sessions.",
        &GIVEN,
        GucContext::Userset,
        GucFlags::NO_SHOW_ALL,
    );
}

/// True while the present operation bypasses validators.
pub fn is_requested() -> bool {
    REQUESTED.get()
}

/// True if a write that is made here now bypasses the validator.
pub fn is_on() -> bool {
    REQUESTED.get() || GIVEN.get() && own_statement::is_trusted_session()
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        REQUESTED.set(self.0);
    }
}

/// Runs an operation that bypasses validators if `on` is true. Otherwise it does not, even within an operation that does.
pub fn during<T>(on: bool, run: impl FnOnce() -> T) -> T {
    let _restore = Restore(REQUESTED.replace(on));
    run()
}
