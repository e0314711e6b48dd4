//! Completes a change of layout that a lost router has decided. The present router does not have the decision: it was restored from an
//! older backup, or is a standby that lacks it.
//!
//! INVARIANT: shards commit their parts of the decision after the router. So if a shard has a newer version of the copy than the catalog,
//! the change was decided. Then the old tables are gone, and only the copy has the documents. The router's own part of the copy has all
//! its documents if it has the version of the decision, which it gets after them. If the router has the whole copy, no shard has a version to
//! compare with; then the change was decided if a shard has dropped the collection's table.

use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::layout;
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::store::resharding::{self, Resharding};
use crate::store::{collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::shard_tables::ReadPlacements;
use serde_json::json;

/// What the shards show of the copy.
struct Shards {
    /// those whose version of the copy is newer than the catalog's, with their names and versions
    newer: Vec<(ShardId, String, i64)>,
    /// the names of those whose version is not, and of those that cannot be reached
    others: Vec<String>,
    /// the names of those that do not have the collection's table; read only if the router's own database has the whole copy
    without_table: Vec<String>,
}

impl Shards {
    /// True if they show that the change was decided.
    fn show_decision(&self) -> bool {
        !self.newer.is_empty() || !self.without_table.is_empty()
    }

    fn describe(&self) -> String {
        let newer: Vec<_> = self.newer.iter().map(|(_, name, _)| name.as_str()).collect();
        match (&*newer, &*self.without_table) {
            ([], without) => format!("shards {} have dropped the former table", without.join(", ")),
            (newer, _) => format!("shards {} have the new layout", newer.join(", ")),
        }
    }
}

/// Completes the catalog's part of a change if shards show that it is decided. False if they do not. Runs in the caller's transaction.
/// The session holds the coordinator's lock.
///
/// # Errors
/// `OperationFailed` if only some shards show it; `ReshardCollectionAborted` if the change was aborted meanwhile; those of
/// [`change::lock`].
pub(super) fn complete(row: &Resharding) -> Result<bool> {
    if row.state != State::Running {
        return Ok(false);
    }
    let Some(shards) = compare(row)?.filter(Shards::show_decision) else { return Ok(false) };
    if !shards.others.is_empty() {
        return Err(error!(
            Kind::OperationFailed,
            "another router has decided {} of {}: {}, but shards {} have another version of the copy, or cannot be reached",
            row.command,
            row.namespace,
            shards.describe(),
            shards.others.join(", ")
        )
        .with_hint(
            "Nothing is dropped. If a shard has a prepared transaction of the former router, commit it there. If a shard or the router itself \
             was restored, or promoted from a standby, it lacks documents of the copy: restore it to a later time.",
        ));
    }
    change::lock(&row.namespace)?;
    let versions: Vec<_> = shards.newer.iter().map(|(shard, _, version)| (*shard, *version)).collect();
    layout::take_name(row.collection, row.copy_id, &row.namespace, row.keeps_key, &versions)?;
    if !resharding::advance(row.id, State::Running, State::Committed)? {
        return Err(error!(
            Kind::ReshardCollectionAborted,
            "{} of {} was aborted meanwhile", row.command, row.namespace
        ));
    }
    let details = json!({"resharding": row.id, "decidedBy": "a former router"});
    change::log(&format!("{}.end", row.command), Some(&row.namespace), &details)?;
    Ok(true)
}

/// Refuses to drop a copy if a shard shows that it has become the collection. Runs in the caller's transaction.
///
/// # Errors
/// `OperationFailed`.
pub(super) fn check_droppable(row: &Resharding) -> Result<()> {
    match compare(row)? {
        Some(shards) if shards.show_decision() => Err(error!(
            Kind::OperationFailed,
            "{} of {} is aborted, but another router has decided it: {}; only the copy has the documents",
            row.command,
            row.namespace,
            shards.describe()
        )
        .with_hint(
            "Nothing is dropped. Restore the router to another time, or copy the documents from the shards' tables.",
        )),
        _ => Ok(()),
    }
}

/// Locks the copy's row, and compares the shards' versions of the copy with the catalog's; None if there is no copy.
///
/// # Errors
/// Those of the connections, if the router's own database has the whole copy.
fn compare(row: &Resharding) -> Result<Option<Shards>> {
    let Some(known) = collections::lock_id(row.copy_id)? else { return Ok(None) };
    let mut shards = Shards { newer: Vec::new(), others: Vec::new(), without_table: Vec::new() };
    let mut own = None;
    for id in placements::shards(row.copy_id)? {
        let shard = cache::shard(id)?;
        let found = match version_at(&shard, row.copy_id, known.token) {
            Ok(found) => found,
            Err(error) if error.is_out_of_reach() => None,
            Err(error) => return Err(error),
        };
        let before = placements::version(row.copy_id, id)?;
        match found {
            Some(found) if shard.is_local() => own = Some((id, shard.name.clone(), found)),
            Some(found) if Some(found) > before => shards.newer.push((id, shard.name.clone(), found)),
            _ => shards.others.push(shard.name.clone()),
        }
    }
    if let Some(own) = own {
        if shards.newer.is_empty() && shards.others.is_empty() {
            shards.without_table = donors_without_table(row.collection)?;
        }
        let is_same = |(_, _, version): &(_, _, i64)| *version == own.2;
        let is_complete = !shards.newer.is_empty() && shards.newer.iter().all(is_same);
        if is_complete { shards.newer.push(own) } else { shards.others.push(own.1) }
    }
    Ok(Some(shards))
}

/// The donors that have no table of the collection any more.
fn donors_without_table(collection: i32) -> Result<Vec<String>> {
    let Some(known) = collections::lock_id(collection)? else { return Ok(Vec::new()) };
    let mut without = Vec::new();
    for id in placements::shards(collection)? {
        let shard = cache::shard(id)?;
        if !shard.is_local() && version_at(&shard, collection, known.token)?.is_none() {
            without.push(shard.name.clone());
        }
    }
    Ok(without)
}

/// A shard's version of a collection; None if it does not have it.
fn version_at(shard: &Shard, collection: i32, token: i64) -> Result<Option<i64>> {
    let rows = read_call_on(shard, &ReadPlacements { collection: Some(collection) })?;
    Ok(rows.into_iter().find(|row| row.token == token).map(|row| row.version))
}
