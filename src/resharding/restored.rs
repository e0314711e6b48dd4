//! Ends a change of layout that another server of the router has begun, and may have decided. This one does not have the decision if it was
//! restored from an older backup, or promoted from a standby that lags.
//!
//! Shards commit their parts of the decision after the router, each at its own time. So what they show ([`super::evidence`]) tells whether
//! the change was decided:
//!
//! | The shards show | The change |
//! |---|---|
//! | a recipient has a newer version of the copy than the catalog | is decided: the copy has all documents |
//! | no recipient has one, but a donor has dropped its table | may be decided; the donor may also have been restored from before the collection, so an administrator confirms it |
//! | all have answered, and none shows either | is not decided |
//! | one does not answer, or a prepared transaction may decide it | stays as it is |
//!
//! The router may be a recipient, too. Each attempt to decide has a version of its own, which the router's part of the copy gets when it has that
//! attempt's documents, before the decision. So the part is complete if its version is the recipients' version. Otherwise it may lack
//! documents, and an administrator confirms that it is used.
//!
//! Versions do not tell which chunks of the copy a shard has, because chunks may have moved since: [`follow`](crate::migration::follow) finds
//! that out afterwards.

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
use docshard_core::routing::protocol::node::ReadPrepared;
use serde_json::json;

/// What an administrator answers if a change may be decided. True completes it, false aborts it.
#[derive(Clone, Copy)]
pub(super) enum Answered<'a> {
    Nothing,
    /// an answer to the question with this text only
    Question(&'a str, bool),
    /// an answer to any question
    Any(bool),
}

impl Answered<'_> {
    fn completes(self) -> Option<bool> {
        match self {
            Self::Nothing => None,
            Self::Question(_, completes) | Self::Any(completes) => Some(completes),
        }
    }
}

/// How a change ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    /// It is not decided, so the copy is not needed; or it has ended already, or this server has begun it.
    Aborted,
    /// It is aborted, but the copy may have the only documents: an administrator says that it is not decided, which the shards do not show, or a
    /// donor is lost. The tables of the copy stay, as orphaned relations.
    Denied,
}

/// Ends the prepared transactions of a change's decision that the former server has left at shards, if the shards show whether it was decided.
/// Runs in a transaction.
///
/// INVARIANT: all of them end alike, also if this function is interrupted and called again, because it finds the same evidence then:
///
/// * If a shard shows the decision, they are committed. A commit adds to the evidence.
/// * If all shards have answered and none shows the decision, they are rolled back. Nobody else commits one meanwhile: this router holds the
///   locks of these shards, and the sessions of the former server that could commit have ended.
///
/// Those of a router with another epoch are not rolled back, because an administrator may commit them.
///
/// INVARIANT: a commit drops the donor's table, so they are left if completing the change is a question to an administrator.
pub(super) fn end_prepared(row: &Resharding) -> Result<()> {
    if row.state != State::Running || row.is_of_this_server()? {
        return Ok(());
    }
    let Some(evidence) = gather(row, &[])? else { return Ok(()) };
    let decided = evidence.shows_decision();
    if evidence.held.is_empty() || !evidence.silent.is_empty() || decided && evidence.question(row).is_some() {
        return Ok(());
    }
    if decided && evidence.newer.is_empty() {
        behind::check_may_be_last(row.collection, &row.namespace, &[])?;
    }
    end_parts(row, &evidence, decided, decided, SHOWN).map(drop)
}

/// For the log: why a prepared transaction is committed or rolled back.
const SHOWN: &str = "the other shards show";
const CONFIRMED: &str = "an administrator has confirmed";

/// Prepared transactions of a change's decision at one shard.
type Parts = (ShardSession, Vec<String>);

/// Finds the prepared transactions of a change's decision. None if there is none at a shard where one is assumed, or one cannot be ended now.
/// `also_others`: also those of a router with another epoch.
fn find_parts(row: &Resharding, evidence: &Evidence, commits: bool, also_others: bool) -> Result<Option<Vec<Parts>>> {
    let coordinator = identity::coordinator()?;
    let mut parts = Vec::new();
    for shard in &evidence.held {
        if !identity::may_finish(shard.id) {
            return Ok(None);
        }
        let mut session = ShardSession::open(shard, RECOVERY)?;
        let mut gids = ReadPrepared { prefixes: &[&coordinator.cluster_prefix()] }.call(&mut session)?;
        gids.retain(|gid| coordinator.change(gid) == Some(row.id));
        if gids.is_empty() {
            return Ok(None);
        }
        for gid in &gids {
            let may_end = also_others || matches!(coordinator.origin(gid), Some(Origin::Own(_)));
            // A session of the former server may be committing it, and wait for a standby.
            if !may_end || !commits && session.end_users_of(gid)? > 0 {
                return Ok(None);
            }
        }
        parts.push((session, gids));
    }
    Ok(Some(parts))
}

/// Commits or rolls back what [`find_parts`] finds. False, and nothing is ended, if it finds nothing.
fn end_parts(row: &Resharding, evidence: &Evidence, commits: bool, also_others: bool, why: &str) -> Result<bool> {
    let Some(parts) = find_parts(row, evidence, commits, also_others)? else { return Ok(false) };
    for (mut session, gids) in parts {
        for gid in gids {
            session.end_prepared(&gid, commits)?;
            let done_to = if commits { "committed" } else { "rolled back" };
            pgrx::log!("docshard: {done_to} prepared transaction {gid} at shard \"{}\", as {why}", session.name);
        }
    }
    Ok(true)
}

/// Completes a change in the catalog if it is decided; else the caller aborts it there. Runs in the caller's transaction, whose session holds the coordinator's lock. The shards `lost` are being removed, and are not asked.
/// Shards that lack their parts of the copy are behind the catalog then. Chunks that have moved since are at other shards than in the catalog
/// until the caller has called [`follow`](crate::migration::follow).
///
/// # Errors
/// `HostUnreachable` if a shard does not answer; `OperationFailed` for what an administrator must confirm; `ReshardCollectionAborted` if the
/// change was aborted meanwhile; those of [`change::lock`].
pub(super) fn complete(row: &Resharding, lost: &[ShardId], answered: Answered<'_>) -> Result<Ending> {
    if row.state != State::Running || row.is_of_this_server()? {
        return Ok(Ending::Aborted);
    }
    let Some(mut evidence) = gather(row, lost)? else { return Ok(Ending::Aborted) };
    evidence.require_answers(row)?;
    let ending = ending(row, &evidence, lost, answered)?;
    let completes = ending == Ending::Completed;
    if !evidence.held.is_empty() {
        let why = if answered.completes() == Some(completes) { CONFIRMED } else { SHOWN };
        if !may_end_parts(ending, lost)
            || !end_parts(row, &evidence, completes, completes || answered.completes().is_some(), why)?
        {
            return evidence.require_ended().map(|()| Ending::Aborted);
        }
        let Some(now) = gather(row, lost)? else { return Ok(Ending::Aborted) };
        now.require_answers(row)?;
        now.require_ended()?;
        evidence = now;
    }
    if ending == Ending::Denied {
        layout::forget_copy(row.copy_id, &row.copy, false)?;
    }
    if !completes {
        return Ok(ending);
    }
    change::lock(&row.namespace)?;
    let mut absent: Vec<ShardId> = evidence.without_copy.iter().map(|shard| shard.id).collect();
    absent.extend(lost);
    layout::take_name(row.collection, row.copy_id, &row.namespace, row.keeps_key, &absent)?;
    if let Some(newest) = evidence.newer.iter().map(|(_, version)| *version).max() {
        // These shards are behind the catalog then, until an administrator has them adopted, which says what they lack.
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
    Ok(Ending::Completed)
}

/// Without a lost shard, the parts that need no administrator are ended by [`end_prepared`].
fn may_end_parts(ending: Ending, lost: &[ShardId]) -> bool {
    ending != Ending::Aborted || !lost.is_empty()
}

/// Finds out how [`complete`] would end a change, without a change of data anywhere: returns the question, if it is not answered; an error if a shard
/// does not answer, or a prepared transaction cannot be ended now.
pub(super) fn check(row: &Resharding, lost: &[ShardId], answered: Answered<'_>) -> Result<Ending> {
    let Some(evidence) = gather(row, lost)? else { return Ok(Ending::Aborted) };
    evidence.require_answers(row)?;
    let ending = ending(row, &evidence, lost, answered)?;
    let completes = ending == Ending::Completed;
    let also_others = completes || answered.completes().is_some();
    if !may_end_parts(ending, lost) || find_parts(row, &evidence, completes, also_others)?.is_none() {
        evidence.require_ended()?;
    }
    Ok(ending)
}

/// Decides how a change ends; an error if that is a question to an administrator which is not answered.
fn ending(row: &Resharding, evidence: &Evidence, lost: &[ShardId], answered: Answered<'_>) -> Result<Ending> {
    if !evidence.shows_decision() && !evidence.is_open_without(lost) {
        return Ok(if evidence.lacks_donor() { Ending::Denied } else { Ending::Aborted });
    }
    let mut may_complete = true;
    let mut question = evidence.question(row);
    if evidence.newer.is_empty()
        && let Err(error) = behind::check_may_be_last(row.collection, &row.namespace, lost)
    {
        may_complete = false;
        question = Some(error);
    }
    let Some(question) = question else { return Ok(Ending::Completed) };
    if let Answered::Question(asked, _) = answered
        && asked != question.text_without_values()
    {
        return Err(question);
    }
    match answered.completes() {
        Some(true) if may_complete && evidence.has_copy() => Ok(Ending::Completed),
        Some(false) if evidence.is_deniable(lost) => Ok(Ending::Denied),
        _ => Err(question),
    }
}

/// Refuses to drop the copy of an aborted change if it may have become the collection. Returns false if the router's own table of the copy must
/// stay: donors lack the former table, and no other part of the copy is left, so the lost router may have made a later change, and this table
/// may have the only documents. Runs in the caller's transaction.
///
/// # Errors
/// `OperationFailed` if a shard shows that the change was decided; `HostUnreachable` if a shard does not answer.
pub(super) fn check_droppable(row: &Resharding) -> Result<bool> {
    if row.is_of_this_server()? {
        return Ok(true);
    }
    let Some(evidence) = gather(row, &[])? else { return Ok(true) };
    evidence.require_answers(row)?;
    evidence.require_ended()?;
    if evidence.shows_decision() && evidence.has_copy() {
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
