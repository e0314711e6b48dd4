//! Common parts of the processes of workers and keepers: kinds, locks, rights.

use crate::pg::error::Error;
use crate::pg::object::extension;
use crate::pg::security::user;
use crate::remote::hung;
use crate::store;
use std::ffi::CStr;

/// The processes' `backend_type` in `pg_stat_activity`.
pub(super) const WORKER_KIND: &str = "docshard worker";
pub(super) const KEEPER_KIND: &str = "docshard keeper";

pub(super) use crate::catalog::cluster::identity::{FREE, KEEPER, WORKER};

/// Catalog tables that must be members of the extension before a worker reads any table: see [`enter`].
const TABLES: [&CStr; 5] = [c"shards", c"migrations", c"transactions", c"index_builds", c"indexes"];

/// Switches this process to the extension's owner; false if the database does not have the extension.
///
/// INVARIANT: no named object is used before that. In a database without the extension any user may own such an object, whose
/// code would run with the superuser rights that a worker has at first.
pub(super) fn enter() -> bool {
    let Some(extension) = extension::find() else { return false };
    let is_ours = |name: &&CStr| store::relation(name).is_some_and(|oid| extension.has(oid));
    if !TABLES.iter().all(is_ours) {
        return false;
    }
    user::become_for_session(extension.owner);
    true
}

/// Logs an error, unless it says that a shard does not answer, which is logged once elsewhere.
pub(super) fn report(error: &Error, what: &str) {
    if !hung::is_known(error) {
        pgrx::log!("docshard worker: {what}{}", error.message);
    }
}
