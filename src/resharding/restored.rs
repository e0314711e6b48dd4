//! Completes a change of layout that a lost router has decided. The present router does not have the decision: it was restored from an
//! older backup, or is a standby that lacks it.
//!
//! INVARIANT: shards commit their parts of the decision after the router. So if a shard has a newer version of the copy than the catalog,
//! the change was decided. Then the old tables are gone, and only the copy has the documents.

use crate::catalog::cluster::nodes::read_call_on;
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

/// The shards that have the copy.
struct Shards {
    /// those whose version of the copy is newer than the catalog's, with their names and versions
    newer: Vec<(ShardId, String, i64)>,
    /// the names of those whose version is not, and of those that cannot be reached
    others: Vec<String>,
}

impl Shards {
    fn names_of_newer(&self) -> String {
        self.newer.iter().map(|(_, name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
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
    let Some(shards) = compare(row.copy_id)? else { return Ok(false) };
    if shards.newer.is_empty() {
        return Ok(false);
    }
    if !shards.others.is_empty() {
        return Err(error!(
            Kind::OperationFailed,
            "another router has decided {} of {}: shards {} have the new layout, but shards {} do not, or cannot be reached",
            row.command,
            row.namespace,
            shards.names_of_newer(),
            shards.others.join(", ")
        )
        .with_hint(
            "Nothing is dropped. If a shard has a prepared transaction of the former router, commit it there; if it was restored, too, \
             restore it to a later time.",
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
    match compare(row.copy_id)? {
        Some(shards) if !shards.newer.is_empty() => Err(error!(
            Kind::OperationFailed,
            "{} of {} is aborted, but another router has decided it: shards {} have the new layout, with the only documents",
            row.command,
            row.namespace,
            shards.names_of_newer()
        )
        .with_hint("Nothing is dropped. Restore the router to another time, or copy the documents from the shards' tables.")),
        _ => Ok(()),
    }
}

/// Locks the copy's row, and compares the shards' versions of the copy with the catalog's; None if there is no copy.
fn compare(copy: i32) -> Result<Option<Shards>> {
    let Some(known) = collections::lock_id(copy)? else { return Ok(None) };
    let mut shards = Shards { newer: Vec::new(), others: Vec::new() };
    for id in placements::shards(copy)? {
        let shard = cache::shard(id)?;
        let found = match read_call_on(&shard, &ReadPlacements { collection: Some(copy) }) {
            Ok(rows) => rows.into_iter().find(|row| row.token == known.token && row.version > known.version),
            Err(error) if error.is_out_of_reach() => None,
            Err(error) => return Err(error),
        };
        match found {
            Some(row) => shards.newer.push((id, shard.name.clone(), row.version)),
            None => shards.others.push(shard.name.clone()),
        }
    }
    Ok(Some(shards))
}
