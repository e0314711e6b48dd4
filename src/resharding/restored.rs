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
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::shard_tables::ReadPlacements;
use serde_json::json;

/// The names of shards: those with a newer version of the copy than the catalog's, and the others, also those that cannot be reached.
struct Shards {
    newer: Vec<String>,
    others: Vec<String>,
}

/// Completes the catalog's part of a change if shards show that it is decided. False if they do not. Runs in the caller's transaction,
/// which holds the coordinator's lock.
///
/// # Errors
/// `OperationFailed` if only some shards show it.
pub(super) fn complete(row: &Resharding) -> Result<bool> {
    if row.state != State::Running {
        return Ok(false);
    }
    let Some(Shards { newer, others }) = compare(row.copy_id)? else { return Ok(false) };
    if newer.is_empty() {
        return Ok(false);
    }
    if !others.is_empty() {
        return Err(error!(
            Kind::OperationFailed,
            "another router has decided {} of {}: shards {} have the new layout, but shards {} do not, or cannot be reached",
            row.command,
            row.namespace,
            newer.join(", "),
            others.join(", ")
        )
        .with_hint(
            "Nothing is dropped. If a shard has a prepared transaction of the former router, commit it there; if it was restored, too, \
             restore it to a later time.",
        ));
    }
    change::lock(&row.namespace)?;
    layout::take_name(row.collection, row.copy_id, &row.namespace, row.keeps_key)?;
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
        Some(Shards { newer, .. }) if !newer.is_empty() => Err(error!(
            Kind::OperationFailed,
            "{} of {} is aborted, but another router has decided it: shards {} have the new layout, with the only documents",
            row.command,
            row.namespace,
            newer.join(", ")
        )
        .with_hint("Nothing is dropped. Restore the router to another time, or copy the documents from the shards' tables.")),
        _ => Ok(()),
    }
}

/// Compares the shards' versions of the copy with the catalog's; None if there is no copy.
fn compare(copy: i32) -> Result<Option<Shards>> {
    let Some(known) = collections::lock_id(copy)? else { return Ok(None) };
    let mut shards = Shards { newer: Vec::new(), others: Vec::new() };
    for id in placements::shards(copy)? {
        let shard = cache::shard(id)?;
        let is_newer = match read_call_on(&shard, &ReadPlacements { collection: Some(copy) }) {
            Ok(rows) => rows.iter().any(|row| row.token == known.token && row.version > known.version),
            Err(error) if error.is_out_of_reach() => false,
            Err(error) => return Err(error),
        };
        if is_newer { shards.newer.push(shard.name.clone()) } else { shards.others.push(shard.name.clone()) }
    }
    Ok(Some(shards))
}
