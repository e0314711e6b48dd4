//! Completes a change of layout that a lost router has decided. The present router does not have the decision: it was restored from an
//! older backup, or is a standby that lacks it.
//!
//! INVARIANT: shards commit their parts of the decision after the router, each at its own time. So the change was decided if one shard
//! shows it: a recipient has a newer version of the copy than the catalog, or the donors have no table of the collection any more. Only the
//! copy has the documents then, with all of them, because the recipients had stored them before. A donor may also lack its table because it
//! was restored from before the collection: if no recipient has a newer version, an administrator decides. The change was not decided if
//! *all* shards show that: while one of them does not answer, nothing is aborted and no copy is dropped.
//!
//! The router's own part of the copy gets the version of each attempt to decide after that attempt's documents. So it has all documents if it
//! has the version that the shards got. If they show another one, or none, it may be older: then an administrator says whether it is
//! taken. Shards may have moved chunks of the copy since, so that their versions do not tell which chunks they have: [`follow`](crate::migration::follow)
//! finds that out.

use super::evidence::{Evidence, gather};
use crate::catalog::change;
use crate::catalog::cluster::{behind, identity};
use crate::catalog::collections::layout;
use crate::migration::shard::{RECOVERY, ShardSession};
use crate::pg::error::Result;
use crate::store::placements;
use crate::store::resharding::{self, Resharding};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::prepared_name::Origin;
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::ReadAllPrepared;
use serde_json::json;

/// What an administrator has confirmed of a change that may be decided.
#[derive(Clone, Copy)]
pub(super) enum Confirmed<'a> {
    No,
    /// what this error says
    Question(&'a str),
    /// it is completed, whatever the shards show
    Any,
    /// it is aborted, unless a shard shows that it is decided
    Aborted,
}

/// Ends what the former server has prepared of a change's decision, if the shards show whether it is decided. Runs in a transaction.
///
/// INVARIANT: parts are committed if a shard shows the decision, and rolled back if none does and all have answered. If this is interrupted, the
/// shards show the same afterwards: nobody else ends a part, because this router has the locks of all these shards. After a take-over an
/// administrator may: then nothing is rolled back here.
pub(super) fn end_prepared(row: &Resharding) -> Result<()> {
    if row.state != State::Running || row.is_of_this_server()? {
        return Ok(());
    }
    let Some(evidence) = gather(row, &[])? else { return Ok(()) };
    let decided = evidence.shows_decision();
    let coordinator = identity::coordinator()?;
    let may_end = |gid: &str| decided || matches!(coordinator.origin(gid), Some(Origin::Own(_)));
    if !evidence.held.is_empty()
        && (decided || evidence.silent.is_empty())
        && evidence.held.iter().all(|shard| identity::may_finish(shard.id))
    {
        end_parts(row, &evidence, decided, may_end)?;
    }
    Ok(())
}

/// Commits or rolls back the parts of a change's decision that are prepared at shards, unless it may not end one of them.
fn end_parts(row: &Resharding, evidence: &Evidence, commits: bool, may_end: impl Fn(&str) -> bool) -> Result<()> {
    let coordinator = identity::coordinator()?;
    let mut parts = Vec::new();
    for shard in &evidence.held {
        let mut session = ShardSession::open(shard, RECOVERY)?;
        let mut gids = ReadAllPrepared { prefix: &coordinator.cluster_prefix() }.call(&mut session)?;
        gids.retain(|gid| coordinator.change(gid) == Some(row.id));
        parts.push((session, gids));
    }
    if !parts.iter().flat_map(|(_, gids)| gids).all(|gid| may_end(gid)) {
        return Ok(());
    }
    for (mut session, gids) in parts {
        for gid in gids {
            session.end_prepared(&gid, commits)?;
            let done_to = if commits { "committed" } else { "rolled back" };
            pgrx::log!(
                "docshard: {done_to} prepared transaction {gid} at shard \"{}\": the other shards show that",
                session.name
            );
        }
    }
    Ok(())
}

/// Completes the catalog's part of a change if shards show that it is decided. False if they show that it is not. Runs in the caller's
/// transaction; afterwards the catalog must follow the shards in what they have moved since. The session holds the coordinator's lock. The
/// shards `lost` are being removed, and are not asked. A shard that lacks its part is then behind the
/// catalog.
///
/// # Errors
/// `HostUnreachable` if a shard does not answer; `OperationFailed` for what an administrator must confirm; `ReshardCollectionAborted` if the
/// change was aborted meanwhile; those of [`change::lock`].
pub(super) fn complete(row: &Resharding, lost: &[ShardId], confirmed: Confirmed<'_>) -> Result<bool> {
    if row.state != State::Running || row.is_of_this_server()? {
        return Ok(false);
    }
    let Some(mut evidence) = gather(row, lost)? else { return Ok(false) };
    let is_told = matches!(confirmed, Confirmed::Any | Confirmed::Aborted);
    if is_told && !evidence.held.is_empty() && evidence.silent.is_empty() {
        // Where nothing of the copy is left, the former tables have the only documents.
        let completes = evidence.shows_decision() || matches!(confirmed, Confirmed::Any) && evidence.has_copy();
        end_parts(row, &evidence, completes, |_| true)?;
        let Some(now) = gather(row, lost)? else { return Ok(false) };
        evidence = now;
    }
    evidence.require_answers(row)?;
    let may_abort = !evidence.is_open_without(lost) || matches!(confirmed, Confirmed::Aborted);
    if !evidence.shows_decision() && may_abort {
        return Ok(false);
    }
    if evidence.newer.is_empty() {
        behind::check_may_be_last(row.collection, &row.namespace, lost)?;
    }
    if let Some(question) = evidence.question(row) {
        let is_confirmed = match confirmed {
            Confirmed::No | Confirmed::Aborted => false,
            Confirmed::Question(asked) => question.text_without_values() == asked,
            Confirmed::Any => true,
        };
        if !is_confirmed {
            return Err(question);
        }
    }
    change::lock(&row.namespace)?;
    let mut absent: Vec<ShardId> = evidence.without_copy.iter().map(|shard| shard.id).collect();
    absent.extend(lost);
    layout::take_name(row.collection, row.copy_id, &row.namespace, row.keeps_key, &absent)?;
    if let Some(newest) = evidence.newer.iter().map(|(_, version)| *version).max() {
        // They are behind the catalog then, until adopting them says what they lack.
        let older: Vec<ShardId> = evidence.older.iter().map(|shard| shard.id).collect();
        placements::set_version(row.copy_id, &older, newest)?;
    }
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

/// Refuses to drop a copy if it may have become the collection. Returns false if the router's own table of the copy must stay: the lost router
/// has decided the change and then another one, so this table may have the only copy of some documents. Runs in the caller's transaction.
///
/// # Errors
/// `OperationFailed` if a shard shows that it has; `HostUnreachable` if a shard does not answer.
pub(super) fn check_droppable(row: &Resharding) -> Result<bool> {
    if row.is_of_this_server()? {
        return Ok(true);
    }
    let Some(evidence) = gather(row, &[])? else { return Ok(true) };
    evidence.require_answers(row)?;
    if evidence.shows_decision() {
        return Err(error!(
            Kind::OperationFailed,
            "{} of {} is aborted, but another router has decided it: {}; only the copy has the documents",
            row.command,
            row.namespace,
            evidence.describe()
        )
        .with_hint(
            "Nothing is dropped. Restore the router to another time, or copy the documents from the shards' tables.",
        ));
    }
    Ok(evidence.without_table.is_empty())
}
