//! Ends a change of layout, from any state: removes what it has left, and aborts it if it is not decided.
//!
//! The holder of the coordinator's lock may repeat every step: `core::cluster::resharding::next_action` returns the next one.

use super::evidence;
use super::restored::{self, Answered, Ending};
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::collections::layout;
use crate::catalog::{cache, change};
use crate::migration::follow::{self, Holders};
use crate::migration::names;
use crate::migration::shard::{RECOVERY, ShardSession};
use crate::pg::error::{Error, Result};
use crate::pg::transaction::subtransaction::attempt;
use crate::pg::{fault, transaction};
use crate::shard::leftovers;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::resharding::{self, Resharding};
use crate::store::{collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::resharding::{Action, State, next_action};
use docshard_core::error::{Kind, bail, ensure};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{DeleteCaptures, HoldPlacement, ReadMoveTables, ReadPlacements};
use docshard_core::routing::protocol::table::DropTable;
use std::collections::BTreeMap;

/// Ends every change without a living coordinator; returns how many could not be ended because a shard is unreachable: the error is in
/// their rows. Must be called outside any transaction.
pub fn recover() -> Result<usize> {
    if fault::is_off("layout_recovery") {
        return Ok(0);
    }
    let mut left = 0;
    for Resharding { id, .. } in transaction::run(resharding::unfinished)? {
        let tag = Tag::Coordinator(id);
        if !transaction::guarded(|| Ok(lock::try_acquire_for_session(tag, Mode::Exclusive)))? {
            continue;
        }
        let ended = settle(id);
        lock::release_for_session(tag, Mode::Exclusive);
        if let Err(error) = ended {
            left += 1;
            let _ = transaction::run(|| resharding::set_error(id, &error.text_without_values()));
        }
    }
    Ok(left)
}

/// True if there is a change that is not done.
pub fn exist_unfinished() -> Result<bool> {
    Ok(!resharding::unfinished()?.is_empty())
}

/// Ends a change from any state. The caller holds the coordinator's lock. After an error, for example because a shard is
/// unreachable, it may be called again.
pub(super) fn settle(id: i64) -> Result<()> {
    loop {
        let row = transaction::run(|| resharding::get(id))?;
        match next_action(row.state) {
            Action::Abort => {
                transaction::run(|| restored::end_prepared(&row))?;
                if transaction::run(|| complete_or_abort(&row, &[], Answered::Nothing))? == Ending::Completed
                    && let Err(error) = follow::follow(&row.namespace)
                {
                    // The shards stay ahead of the catalog, as after other lost moves, until an administrator adopts
                    // them.
                    transaction::run(|| resharding::set_error(id, &error.text_without_values()))?;
                }
            }
            Action::RemoveCopy | Action::RemoveTables => {
                clean(&row)?;
                fault::point("reshard.cleaned")?;
                transaction::run(|| resharding::advance(id, row.state, State::Done))?;
            }
            Action::Nothing => return Ok(()),
        }
    }
}

/// Completes a change that shards show to be decided, or else aborts it, in the catalog.
fn complete_or_abort(row: &Resharding, lost: &[ShardId], answered: Answered<'_>) -> Result<Ending> {
    let ending = restored::complete(row, lost, answered)?;
    let why = match ending {
        Ending::Completed => return Ok(ending),
        Ending::Aborted => "the process that copied the collection ended unexpectedly",
        Ending::Denied => {
            "it was aborted, although the former router may have decided it, or a shard with documents is lost; the copy's tables are orphaned \
             relations"
        }
    };
    resharding::set_error(row.id, why)?;
    // The new revision lets statements that have waited for the decision continue.
    change::touch(row.collection)?;
    resharding::advance(row.id, State::Running, State::Aborted)?;
    Ok(ending)
}

/// How an administrator decides what the shards leave open of changes of layout: true completes, false aborts.
#[derive(Clone, Debug)]
pub enum Answer {
    /// of the only change
    One(bool),
    /// of each change, by namespace
    Each(BTreeMap<String, bool>),
}

/// Completes or aborts the changes that another server may have decided, and in which lost shards have parts, by what the other shards show.
/// Runs in the transaction that removes one of them, before anything else: afterwards nothing shows the decision. `answer`: how an
/// administrator decides what the shards leave open.
///
/// # Errors
/// `ConflictingOperationInProgress` if recovery is ending such a change now; `BadValue` if one answer is given to several changes; those of
/// [`restored::complete`], of all changes.
pub fn end_without(lost: &[ShardId], answer: Option<&Answer>) -> Result<()> {
    let open = open_at(lost)?;
    check_answer(&open, answer)?;
    let (mut questions, mut completed, mut aborted) = (None::<Error>, Vec::new(), Vec::new());
    for row in open {
        ensure!(
            lock::try_acquire(Tag::Coordinator(row.id), Mode::Exclusive),
            Kind::ConflictingOperationInProgress,
            "{} of {} is being ended; run it again in a moment",
            row.command,
            row.namespace
        );
        match (restored::check(&row, lost, answered(answer, &row)), &mut questions) {
            (Ok(Ending::Completed), _) => completed.push(row),
            (Ok(_), _) => aborted.push(row),
            (Err(error), None) => questions = Some(error),
            (Err(error), Some(first)) => first.message = format!("{}; {}", first.message, error.message),
        }
    }
    // Only when every change may be ended: prepared transactions are ended for good, also if this transaction is rolled back.
    questions.map_or(Ok(()), Err)?;
    // Those that are aborted come last: the tables of their copies become orphaned relations, which make other changes doubtful.
    for row in completed.into_iter().chain(aborted) {
        let ending = complete_or_abort(&row, lost, answered(answer, &row))?;
        if ending == Ending::Completed {
            follow_shards(&row, lost)?;
        }
        // The shards may show the opposite of the answer, or show it after an earlier call was interrupted.
        let became = match ending {
            Ending::Completed => "completed",
            Ending::Aborted => "aborted",
            Ending::Denied => "aborted, and the tables of its copy are kept as orphaned relations",
        };
        pgrx::notice!("{} of {} is {became}", row.command, row.namespace);
    }
    Ok(())
}

/// Checks that an answer is for these changes.
fn check_answer(open: &[Resharding], answer: Option<&Answer>) -> Result<()> {
    let names: Vec<&str> = open.iter().map(|row| row.namespace.as_str()).collect();
    match answer {
        Some(Answer::One(_)) if names.len() > 1 => {
            bail!(Kind::BadValue, "completeChanges must be an object with an answer for each of {}", names.join(", "))
        }
        Some(Answer::Each(each)) => match each.keys().find(|name| !names.contains(&name.as_str())) {
            Some(other) => {
                bail!(Kind::BadValue, "completeChanges names {other}, which has no change of layout to decide")
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// What an answer says of a change.
fn answered<'a>(answer: Option<&Answer>, row: &Resharding) -> Answered<'a> {
    let completes = match answer {
        Some(Answer::One(completes)) => Some(completes),
        Some(Answer::Each(each)) => each.get(&row.namespace),
        None => None,
    };
    completes.map_or(Answered::Nothing, |completes| Answered::Any(*completes))
}

/// The running changes of other servers in which these shards have parts.
fn open_at(lost: &[ShardId]) -> Result<Vec<Resharding>> {
    let mut open = Vec::new();
    for row in resharding::unfinished()?.into_iter().filter(|row| row.state == State::Running) {
        let parts = [placements::shards(row.collection)?, placements::shards(row.copy_id)?].concat();
        if parts.iter().any(|shard| lost.contains(shard)) && !row.is_of_this_server()? {
            open.push(row);
        }
    }
    Ok(open)
}

/// Makes the catalog follow the shards in what they have moved since the decision. If the shards contradict each other,
/// they stay ahead of the catalog, as in [`settle`].
fn follow_shards(row: &Resharding, lost: &[ShardId]) -> Result<()> {
    match attempt(|| follow::follow_in(&row.namespace, lost, &mut Holders::default())) {
        Err(error) if error.kind == Kind::IllegalOperation => {
            resharding::set_error(row.id, &error.text_without_values())
        }
        followed => followed.map(drop),
    }
}

/// Completes a change that another server has probably decided, because an administrator confirms the question that
/// recovery has stored as the error in the change's row. Runs in the caller's transaction.
///
/// INVARIANT: what is confirmed is what the shards show now. If recovery has asked something else, or nothing yet, that is an error.
///
/// # Errors
/// The question, if it is not the one that was asked; `ReshardCollectionCommitted` if the change has ended meanwhile; `IllegalOperation` if the
/// shards show that the change is not decided; those of [`restored::complete`].
pub fn confirm(id: i64) -> Result<()> {
    lock::acquire(Tag::Coordinator(id), Mode::Exclusive);
    let row = resharding::get(id)?;
    ensure!(
        row.state == State::Running,
        Kind::ReshardCollectionCommitted,
        "{} of {} has ended",
        row.command,
        row.namespace
    );
    let asked = resharding::error(id)?.unwrap_or_default();
    let ending = restored::complete(&row, &[], Answered::Question(&asked, true))?;
    ensure!(
        ending == Ending::Completed,
        Kind::IllegalOperation,
        "no shard shows that {} of {} is decided: it is aborted in a moment",
        row.command,
        row.namespace
    );
    follow_shards(&row, &[])
}

/// Ends a change as [`settle`] does. If it may be decided, so that recovery asks, it is aborted: the former tables stay in use, and those of the
/// copy stay as orphaned relations. The caller holds the coordinator's lock.
///
/// INVARIANT: what is answered is the question that recovery has stored, as in [`confirm`].
pub(super) fn settle_or_deny(id: i64) -> Result<()> {
    let asked = transaction::run(|| resharding::error(id))?.unwrap_or_default();
    let Err(refused) = settle(id) else { return Ok(()) };
    transaction::run(|| {
        let row = resharding::get(id)?;
        if row.state != State::Running {
            return Err(refused);
        }
        if complete_or_abort(&row, &[], Answered::Question(&asked, false))? == Ending::Completed {
            follow_shards(&row, &[])?;
        }
        Ok(())
    })?;
    settle(id)
}

/// Removes what a change has left.
fn clean(row: &Resharding) -> Result<()> {
    let cleaned = clean_shards(row.id);
    if row.state == State::Aborted {
        drop_copy(row)?;
    }
    cleaned
}

/// Drops the copy of an aborted change.
///
/// INVARIANT: a shard drops its table of the copy only at the version that the catalog knows. Another router's
/// decision, even one that is only prepared at the shard, gives the table another version.
fn drop_copy(row: &Resharding) -> Result<()> {
    let (may_drop_own, recipients) = transaction::run(|| {
        let may_drop_own = restored::check_droppable(row)?;
        let Some(known) = collections::lock_id(row.copy_id)? else { return Ok((may_drop_own, Vec::new())) };
        let mut recipients = Vec::new();
        for id in placements::shards(row.copy_id)? {
            let version = placements::version(row.copy_id, id)?.unwrap_or_default();
            recipients.push((id, HoldPlacement { collection: row.copy_id, token: known.token, version }));
        }
        Ok((may_drop_own, recipients))
    })?;
    for (id, known) in recipients {
        let shard = transaction::run(|| cache::shard(id))?;
        if !shard.is_local() {
            drop_table(&mut transaction::run(|| ShardSession::open(&shard, RECOVERY))?, &known)?;
        }
    }
    transaction::run(|| layout::forget_copy(row.copy_id, &row.copy, may_drop_own))
}

/// Drops a shard's table of the copy, unless it does not have it.
fn drop_table(shard: &mut ShardSession, known: &HoldPlacement) -> Result<()> {
    let collection = known.collection;
    shard.execute("BEGIN")?;
    if known.call(shard)?.is_empty() {
        let found = ReadPlacements { collection: Some(collection) }.call(shard)?;
        if found.iter().any(|row| row.token == known.token) {
            return Err(evidence::may_be_decided(&shard.name));
        }
    } else {
        DropTable { collection }.call(shard)?;
    }
    shard.execute("COMMIT")
}

/// Removes captures and tables on all shards. If one cannot be cleaned, the others are cleaned nevertheless, and an error is returned.
fn clean_shards(id: i64) -> Result<()> {
    let mut result = Ok(());
    let application = names::application(transaction::run(cluster_id)?, id);
    for shard in transaction::run(cache::shards)?.values() {
        let cleaned = transaction::guarded(|| {
            let mut session = transaction::run(|| ShardSession::open(shard, RECOVERY))?;
            clean_shard(&mut session, id, &application)
        });
        result = result.and(cleaned);
    }
    result
}

fn clean_shard(shard: &mut ShardSession, id: i64, application: &str) -> Result<()> {
    if shard.end_sessions(application)? > 0 {
        bail!(Kind::OperationFailed, "sessions of resharding {id} on shard \"{}\" do not end", shard.name);
    }
    // A writer that read the capture may log more rows until it ends; the sweep deletes those.
    DeleteCaptures { migration: Some(id), collection: None }.call(shard)?;
    let tables = ReadMoveTables { names: &leftovers::move_tables() }.call(shard)?;
    for table in tables.iter().filter(|table| table.migration == id) {
        shard.execute(&table.drop())?;
    }
    Ok(())
}
