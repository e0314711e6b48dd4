//! Calls watchers around utility statements, by PostgreSQL's `ProcessUtility_hook`.

use crate::pg::error::keeping_all;
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::OnceLock;

/// Called with the statement that PostgreSQL is about to run. Returns a function to call after the statement has succeeded, or None.
///
/// # Safety
/// `statement` points to a statement that lives during the call.
pub type Watcher = unsafe fn(statement: *mut pg_sys::PlannedStmt) -> Option<Box<dyn FnOnce()>>;

static NEXT: OnceLock<pg_sys::ProcessUtility_hook_type> = OnceLock::new();

thread_local! {
    /// The watchers. A process inherits those that the postmaster has set before the fork.
    static WATCHERS: RefCell<Vec<Watcher>> = const { RefCell::new(Vec::new()) };
}

/// Adds a watcher. Called from `_PG_init`.
pub fn watch(watcher: Watcher) {
    WATCHERS.with_borrow_mut(|watchers| watchers.push(watcher));
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if NEXT.set(pg_sys::ProcessUtility_hook).is_ok() {
            pg_sys::ProcessUtility_hook = Some(on_utility);
        }
    }
}

#[pg_guard]
#[allow(clippy::too_many_arguments, reason = "PostgreSQL's own signature")]
unsafe extern "C-unwind" fn on_utility(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    keep_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    let watchers = WATCHERS.with_borrow(Vec::clone);
    // SAFETY: the arguments are PostgreSQL's, and passed on as they are.
    unsafe {
        let after: Vec<_> = watchers.iter().filter_map(|watcher| watcher(statement)).collect();
        let (of, to) = (environment, destination);
        keeping_all(|| match NEXT.get().copied().flatten() {
            // The guard turns an ERROR raised in the other hook into a panic, so that Rust's destructors run. The binding of
            // `standard_ProcessUtility` has such a guard already.
            Some(next) => pg_sys::ffi::pg_guard_ffi_boundary(|| {
                next(statement, text, keep_tree, context, params, of, to, completion);
            }),
            None => {
                pg_sys::standard_ProcessUtility(statement, text, keep_tree, context, params, of, to, completion);
            }
        });
        after.into_iter().for_each(|call| call());
    }
}
