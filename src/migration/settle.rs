//! Ends a move: commits on both shards and changes the map, or rolls back.
//!
//! The holder of the coordinator's lock may repeat every step, from any state in which the move was left:
//! `core::cluster::migration::next_action` returns the next one.

use super::cleanup::{clean, end_sessions, roll_back};
use super::names;
use super::record::{self, Record};
use super::shard::{ShardSession, Sides};
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::{behind, identity};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, migrations, placements};
use docshard_core::cluster::migration::{
    Action, Found, Outcome, Part, State, action_after_failover, action_after_take_over, next_action,
};
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::ReleaseRangeWriters;
use serde_json::json;

/// Ends the move in the coordinator's own sessions, which have just prepared both parts.
pub(super) fn finish_prepared(record: &Record, sides: &mut Sides) -> Result<()> {
    // Statements that a shard refuses wait while this lock is held, because perhaps only one part is committed yet.
    // Correctness does not depend on it.
    let settling = Tag::Settling(record.id);
    let is_locked = lock::try_acquire_for_session(settling, Mode::Exclusive);
    let committed = transaction::guarded(|| commit_both(record, sides));
    if is_locked {
        lock::release_for_session(settling, Mode::Exclusive);
    }
    committed?;
    fault::point("move.recipient_committed")?;
    transaction::run(|| flip(record))?;
    fault::point("move.flipped")?;
    transaction::guarded(|| ReleaseRangeWriters { migration: record.id }.call(sides.donor(record)?))?;
    settle_by(record.id, sides)
}

/// Commits both parts, the donor's first.
fn commit_both(record: &Record, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    if fault::is_off("donor_first") {
        sides.recipient(record)?.commit_prepared(&names::recipient_gid(cluster, record.id))?;
        fault::point("move.recipient_first")?;
    }
    sides.donor(record)?.commit_prepared(&names::donor_gid(cluster, record.id))?;
    fault::point("move.donor_committed")?;
    sides.recipient(record)?.commit_prepared(&names::recipient_gid(cluster, record.id))
}

/// Ends a move from any state. The caller holds the coordinator's lock. After an error, for example because a shard is
/// unreachable, it may be called again.
pub(super) fn settle(id: i64) -> Result<()> {
    settle_by(id, &mut Sides::default())
}

/// Returns the next action, and the state of the shards' parts on which it depends.
fn next(record: &Record, gids: &[String; 2], sides: &mut Sides) -> Result<(Action, (Part, Part))> {
    match record.state {
        State::Committed => transaction::guarded(|| {
            let donor = sides.donor(record)?.part(record, &gids[0])?;
            let recipient = sides.recipient(record)?.part(record, &gids[1])?;
            Ok((next_action(record.state, donor, recipient), (donor, recipient)))
        }),
        State::Running if !transaction::run(|| record::is_of_this_server(record.id))? => {
            Ok((of_other_server(record, gids, sides)?, (Part::Nothing, Part::Nothing)))
        }
        state => Ok((next_action(state, Part::Nothing, Part::Nothing), (Part::Nothing, Part::Nothing))),
    }
}

/// Returns the next action for a running move that another server has begun; an error if the move is in doubt.
fn of_other_server(record: &Record, gids: &[String; 2], sides: &mut Sides) -> Result<Action> {
    let is_own = transaction::run(|| {
        if record::is_of_this_router(record.id)? {
            return Ok(true);
        }
        // The other router may go on until this one's keeper has ended its sessions.
        [record.donor, record.recipient].into_iter().try_for_each(|shard| require_ended_at(&*cache::shard(shard)?))?;
        Ok(false)
    })?;
    let cluster = transaction::run(cluster_id)?;
    // The former server may only have been frozen. After this its coordinator can prepare nothing more at the shard.
    let find = |shard: &mut ShardSession, gid: &str| {
        if is_own {
            end_sessions(shard, record, cluster)?;
        }
        shard.find_part(record, gid)
    };
    let recipient = transaction::guarded(|| find(sides.recipient(record)?, &gids[1]));
    let donor = transaction::guarded(|| find(sides.donor(record)?, &gids[0]));
    let found = match (donor, recipient) {
        (Ok(donor), Ok(recipient)) => [donor, recipient],
        // A move is decided only when both shards have prepared, so the other one does not matter.
        (Ok(Found::Before), Err(error)) | (Err(error), Ok(Found::Before)) if is_own && error.is_out_of_reach() => {
            return Ok(Action::Abort);
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    let action_of = if is_own { action_after_failover } else { action_after_take_over };
    match action_of(found[0], found[1]) {
        Action::InDoubt => Err(in_doubt(record, gids, found)?),
        action => Ok(action),
    }
}

/// Returns an error while sessions of a replaced router may go on at the shard.
pub(super) fn require_ended_at(shard: &Shard) -> Result<()> {
    let may_finish = shard.is_local() || identity::may_finish(shard.id);
    ensure!(may_finish, Kind::HostUnreachable, "this router does not hold the lock on shard \"{}\" yet", shard.name);
    Ok(())
}

/// Records that only an administrator can find out how the move ends, and returns the error.
fn in_doubt(record: &Record, gids: &[String; 2], found: [Found; 2]) -> Result<Error> {
    let sides = ["donor", "recipient"].into_iter().zip(gids).zip(found);
    let prepared: Vec<_> = sides
        .filter(|(_, found)| *found == Found::Prepared)
        .map(|((side, gid), _)| format!("{gid} at the {side}"))
        .collect();
    let doubt = error!(
        Kind::OperationFailed,
        "migration {} of {} was begun by a router that this one has replaced, or by a former server of this one, which may have decided it: \
         an administrator must end what it has prepared, {}",
        record.id,
        record.namespace,
        prepared.join(" and ")
    );
    let doubt = doubt.with_hint(match prepared.len() {
        // No documents are lost by either, as the donor refuses writes to the range meanwhile.
        2 => {
            "ROLLBACK PREPARED both leaves the chunk at the donor; COMMIT PREPARED the donor's first, and then the recipient's, moves it. Both \
             must end the same way. Then call docshard.recover_moves()."
        }
        _ => {
            "The other shard has changed since. Look for documents of the chunk's range on all shards. If only what is prepared at the recipient \
             has them: COMMIT PREPARED; otherwise ROLLBACK PREPARED. Then call docshard.recover_moves()."
        }
    });
    let said = format!("{}. {}", doubt.message, doubt.hint.as_deref().unwrap_or_default());
    transaction::run(|| migrations::set_in_doubt(record.id, &said))?;
    Ok(doubt)
}

fn settle_by(id: i64, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    let gids = [names::donor_gid(cluster, id), names::recipient_gid(cluster, id)];
    loop {
        let record = transaction::run(|| record::load(id))?;
        let (action, parts) = next(&record, &gids, sides)?;
        fault::point("recover.step")?;
        match action {
            Action::Abort => transaction::run(|| {
                note_vanished(id)?;
                record::advance(id, State::Running, State::Aborted)
            })
            .map(drop)?,
            Action::RollBackDonor => {
                transaction::guarded(|| roll_back(sides.donor(&record)?, &record, cluster, &gids[0]))?;
            }
            Action::CommitDonor => transaction::guarded(|| sides.donor(&record)?.commit_prepared(&gids[0]))?,
            Action::CommitRecipient => transaction::guarded(|| sides.recipient(&record)?.commit_prepared(&gids[1]))?,
            Action::Flip => transaction::run(|| flip(&record))?,
            Action::Clean => {
                clean(&record, cluster, sides)?;
                fault::point("move.cleaned")?;
                transaction::run(|| record::advance(id, record.state, State::Done))?;
            }
            Action::Follow => {
                transaction::run(|| record::advance(id, State::Running, State::Committed)).map(drop)?;
            }
            Action::Lost | Action::GiveUp | Action::InDoubt => return Err(lost(&record, parts)?),
            Action::Nothing => return Ok(()),
        }
    }
}

/// Stores why a move without a coordinator is aborted.
fn note_vanished(id: i64) -> Result<()> {
    if record::is_of_this_router(id)? {
        let vanished = error!(Kind::OperationFailed, "the process that moved the chunk ended unexpectedly");
        return record::note_error(id, &vanished);
    }
    // Replaces an earlier error, which says only why this router could not look at the shards.
    migrations::replace_error(id, "the router that moved the chunk was replaced, and had not decided the move")
}

/// Cleans up again after an aborted move. Another process aborted it because it considered this coordinator dead; but the
/// coordinator continued, and may have prepared transactions since. False if the move was not aborted.
pub(super) fn clean_late(id: i64) -> Result<bool> {
    let (record, cluster) = transaction::run(|| Ok((record::load(id)?, cluster_id()?)))?;
    let standing = transaction::run(|| migrations::standing(id))?;
    let aborted = (standing.state, standing.outcome) == (State::Done, Outcome::Aborted);
    if aborted {
        clean(&Record { state: State::Aborted, ..record }, cluster, &mut Sides::default())?;
    }
    Ok(aborted)
}

/// Records that a shard has lost its part of a decided move, for statements that wait for the move, and returns the error.
fn lost(record: &Record, parts: (Part, Part)) -> Result<Error> {
    let shard = if parts.0 == Part::Nothing { record.donor } else { record.recipient };
    transaction::run(|| {
        let name = cache::shard(shard)?.name.clone();
        let message = format!("shard \"{name}\" has lost its part of migration {}, which is decided", record.id);
        let hint = behind::hint(&name);
        migrations::set_lost(record.id, &format!("{message}. {hint}"))?;
        Ok(Error::new(Kind::OperationFailed, message).with_hint(hint))
    })
}

/// Changes the map, in the caller's transaction: the owner of the chunks and the placements of both shards. Sets the move to *moved*, and
/// logs it.
pub(super) fn flip(record: &Record) -> Result<()> {
    let collection = change::lock(&record.namespace)?;
    if !record::advance(record.id, State::Committed, State::Moved)? {
        return Ok(());
    }
    let (range, shards) = ((record.min.as_slice(), record.max.as_slice()), [record.donor, record.recipient]);
    let chunks = chunks::set_owner(collection.id, range, record.donor, record.recipient, record.version)?;
    let are_placed = if record::is_of_this_server(record.id)? {
        placements::set_version(collection.id, &shards, record.version)? == 2
    } else {
        // The other server may have created the recipient's table after this catalog was copied.
        placements::insert_or_set(collection.id, &shards, record.version)?;
        true
    };
    if collection.id != record.collection || chunks == 0 || !are_placed {
        bail!(
            Kind::InternalError,
            "the catalog changed under migration {}: its chunk or placements are gone",
            record.id
        );
    }
    change::touch(collection.id)?;
    let summary = migrations::summary(record.id)?;
    let details = json!({
        "migration": record.id,
        "from": summary.donor.unwrap_or_default(),
        "to": summary.recipient.unwrap_or_default(),
        "chunks": chunks,
        "documents": record.documents,
        "bytes": record.bytes,
        "rounds": summary.rounds,
        "stallMillis": summary.stall_ms,
        "millis": summary.durations,
    });
    change::log("moveChunk", Some(&record.namespace), &details)
}
