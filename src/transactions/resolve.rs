//! Ends prepared transactions at shards after the process that prepared them has ended.

use super::decision::decisions;
use crate::catalog::cache;
use crate::catalog::cluster::identity;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::remote::Session;
use crate::storage::lock::{self, Mode, Tag};
use crate::store;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::prepared_name::Origin;
use docshard_core::cluster::resharding::State;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::ReadAllPrepared;
use std::cell::RefCell;
use std::collections::HashSet;

thread_local! {
    /// The other routers' transactions that this process has logged.
    static LOGGED: RefCell<HashSet<(ShardId, String)>> = RefCell::default();
}

/// Ends prepared transactions whose preparing process has ended, on every shard, each shard in a transaction of its own. Must be called
/// outside any transaction. Returns how many were ended. After an error at a shard the others are served; then the first error is returned.
pub fn resolve_all() -> Result<u64> {
    let shards = transaction::run(|| {
        store::transactions::delete_of_removed_shards()?;
        cache::remote_shards()
    })?;
    let mut outcome = Ok(0);
    for (shard, _) in shards {
        match transaction::run(|| resolve(&shard)) {
            Ok(done) => outcome = outcome.map(|sum: u64| sum + done),
            Err(mut error) if outcome.is_ok() => {
                error.message = format!("resolving transactions at shard \"{}\": {}", shard.name, error.message);
                outcome = Err(error);
            }
            Err(_) => {}
        }
    }
    outcome
}

/// Deletes rows of transactions that have ended at a shard, then ends transactions there. Returns how many were ended.
fn resolve(shard: &Shard) -> Result<u64> {
    let Some(server) = &shard.server else { return Ok(0) };
    if !identity::may_finish(shard.id) {
        return Ok(0);
    }
    let coordinator = identity::coordinator()?;
    // The decisions first, then the shard's prepared transactions: see the module's invariants.
    let decided = decisions(&server.name)?;
    let gids = read_call_on(shard, &ReadAllPrepared { prefix: &coordinator.cluster_prefix() })?;
    let prepared: Vec<(&str, Origin)> =
        gids.iter().filter_map(|gid| Some((gid.as_str(), coordinator.origin(gid)?))).collect();
    let is_prepared = |decided: &str| prepared.iter().any(|(gid, _)| *gid == decided);
    let over: Vec<&str> = decided.iter().map(String::as_str).filter(|gid| !is_prepared(gid)).collect();
    if !over.is_empty() {
        store::transactions::delete(&over)?;
    }
    let left: Vec<(&str, Origin)> = prepared
        .into_iter()
        .filter(|(_, origin)| match origin {
            Origin::Own(xid) => lock::try_acquire(Tag::Transaction((*xid).into()), Mode::Exclusive),
            Origin::Other => true,
        })
        .collect();
    if left.is_empty() {
        return Ok(0);
    }
    let decided = decisions(&server.name)?;
    let mut session = None;
    let mut done = 0;
    for (gid, origin) in left {
        let commits = decided.iter().any(|decided| decided == gid);
        if !commits
            && let Some(change) = coordinator.change(gid)
            && is_left_to(change)?
        {
            // Recovery ends its own in a moment.
            if matches!(origin, Origin::Other) {
                let why = format!("it is a part of the change of layout {change}, whose outcome is not known here");
                log_once(shard, gid, &why);
            }
            continue;
        }
        if !commits && matches!(origin, Origin::Other) {
            log_once(
                shard,
                gid,
                "it belongs to a router that this one has replaced, and its outcome is not known here",
            );
            continue;
        }
        let session = match &mut session {
            Some(session) => session,
            none => none.insert(Session::open(server.oid)?),
        };
        // The process that prepared the transaction may have ended it after the list was read and before it released its lock. Another
        // attempt would write an error into the shard's log.
        let found = ReadAllPrepared { prefix: gid }.call(session)?;
        if found.is_empty() {
            continue;
        }
        match session.end_prepared(gid, commits) {
            // For example, the transaction belongs to a role that this router does not log in as. The other
            // transactions are ended nevertheless.
            Err(error) if session.is_usable() => {
                log_once(shard, gid, &error.message);
                continue;
            }
            ended => ended?,
        }
        let done_to = if commits { "committed" } else { "rolled back" };
        pgrx::log!("docshard: {done_to} prepared transaction {gid} at shard \"{}\"", shard.name);
        done += 1;
    }
    Ok(done)
}

/// True if the parts of a change of layout are not ended here: the change is running, and another server has begun it, so that its decision may
/// be missing here; or it is not known at all.
fn is_left_to(change: i64) -> Result<bool> {
    match store::resharding::lookup(change)? {
        Some(row) if row.outcome == State::Running => Ok(!row.is_of_this_server()?),
        Some(_) => Ok(false),
        None => Ok(true),
    }
}

/// Logs, once for each process, why an administrator must end a prepared transaction.
fn log_once(shard: &Shard, gid: &str, why: &str) {
    if LOGGED.with_borrow_mut(|logged| logged.insert((shard.id, gid.to_owned()))) {
        pgrx::log!(
            "docshard: prepared transaction {gid} at shard \"{}\" is not ended: {why}; see \"Prepared transactions of a replaced router\" in \
             docs/operations.md",
            shard.name
        );
    }
}
