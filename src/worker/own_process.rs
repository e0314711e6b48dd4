//! What a worker's and a keeper's process begin with: kinds, locks, whose rights they take.

use crate::pg::error::Error;
use crate::pg::object::extension;
use crate::pg::security::user;
use crate::remote::hung;
use crate::storage::lock::Tag;
use crate::store;
use std::ffi::CStr;

/// The workers' kinds, as `pg_stat_activity` shows them.
pub(super) const WORKER_KIND: &str = "docshard worker";
pub(super) const KEEPER_KIND: &str = "docshard keeper";

/// Held by the worker: there is one a database.
pub(super) const WORKER: Tag = Tag::Worker(1);

/// Held by the keeper while no shard's lock is another router's.
pub(super) const FREE: Tag = Tag::Worker(9);

/// The relations that a worker looks into.
const LOOKED_INTO: [&CStr; 5] = [c"shards", c"migrations", c"transactions", c"index_builds", c"indexes"];

/// Makes this process the extension's owner; false if the database does not have the extension.
///
/// INVARIANT: nothing that is named is used before. In a database without the extension everything may be a stranger's, who
/// would have it run by the superuser that a worker is at first.
pub(super) fn enter() -> bool {
    let Some(extension) = extension::find() else { return false };
    let is_ours = |name: &&CStr| store::relation(name).is_some_and(|oid| extension.has(oid));
    if !LOOKED_INTO.iter().all(is_ours) {
        return false;
    }
    user::become_for_session(extension.owner);
    true
}

/// Tells the log of an error, unless it is only that a shard does not answer, which the log knows.
pub(super) fn report(error: &Error, what: &str) {
    if !hung::is_known(error) {
        pgrx::log!("docshard worker: {what}{}", error.message);
    }
}
