//! The end of a move: committing on both shards and flipping the map, or rolling back.
//!
//! Everything here may be repeated, by whoever holds the coordinator's lock, from any state in which the attempt was
//! left. `core::migration::next_action` says what comes next.

use super::cleanup::clean;
use super::donor;
use super::names;
use super::record::{self, Record};
use super::sides::{Sides, commit_prepared, part};
use crate::catalog::change;
use crate::catalog::cluster::cluster_id;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, migrations, placements};
use docshard_core::cluster::migration::{Action, Outcome, Part, State, next_action};
use docshard_core::error::Kind;
use serde_json::json;

/// The quick way to the end for the coordinator, whose own sessions have just prepared both parts.
pub(super) fn finish_prepared(record: &Record, sides: &mut Sides) -> Result<()> {
    // So that who finds the donor changed knows when to ask the recipient; nothing depends on it.
    let settling = Tag::Settling(record.id);
    let is_told = lock::try_acquire_for_session(settling, Mode::Exclusive);
    let committed = transaction::guarded(|| commit_both(record, sides));
    if is_told {
        lock::release_for_session(settling, Mode::Exclusive);
    }
    committed?;
    fault::point("move.recipient_committed")?;
    transaction::run(|| flip(record))?;
    fault::point("move.flipped")?;
    transaction::guarded(|| donor::tell_writers(sides.donor(record)?, record))?;
    settle_by(record.id, sides)
}

/// The donor's part first.
fn commit_both(record: &Record, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    if fault::is_off("donor_first") {
        let recipient = sides.recipient(record)?;
        commit_prepared(recipient, &names::recipient_gid(cluster, record.id))?;
        fault::point("move.recipient_first")?;
    }
    commit_prepared(sides.donor(record)?, &names::donor_gid(cluster, record.id))?;
    fault::point("move.donor_committed")?;
    commit_prepared(sides.recipient(record)?, &names::recipient_gid(cluster, record.id))
}

/// Brings an attempt to its end, from whatever state. Whoever calls holds the coordinator's lock.
///
/// # Errors
/// What the shards answer, an unreachable one above all: then it is to be called again later.
pub(super) fn settle(id: i64) -> Result<()> {
    settle_by(id, &mut Sides::default())
}

/// The same, by these sessions.
fn settle_by(id: i64, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    let (donor_gid, recipient_gid) = (names::donor_gid(cluster, id), names::recipient_gid(cluster, id));
    loop {
        let record = transaction::run(|| record::load(id))?;
        let (donor, recipient) = if record.state == State::Committed {
            transaction::guarded(|| {
                let donor = part(sides.donor(&record)?, &record, &donor_gid)?;
                let recipient = part(sides.recipient(&record)?, &record, &recipient_gid)?;
                Ok((donor, recipient))
            })?
        } else {
            (Part::Nothing, Part::Nothing)
        };
        fault::point("recover.step")?;
        match next_action(record.state, donor, recipient) {
            Action::Abort => transaction::run(|| {
                let vanished = Error::new(Kind::OperationFailed, "the process that moved the chunk vanished");
                record::note_error(id, &vanished)?;
                record::advance(id, State::Running, State::Aborted)
            })
            .map(drop)?,
            Action::CommitDonor => transaction::guarded(|| commit_prepared(sides.donor(&record)?, &donor_gid))?,
            Action::CommitRecipient => {
                transaction::guarded(|| commit_prepared(sides.recipient(&record)?, &recipient_gid))?
            }
            Action::Flip => transaction::run(|| flip(&record))?,
            Action::Clean => {
                clean(&record, cluster, sides)?;
                fault::point("move.cleaned")?;
                transaction::run(|| record::advance(id, record.state, State::Done))?;
            }
            Action::Lost => return Err(lost(&record, donor)),
            Action::Nothing => return Ok(()),
        }
    }
}

/// Cleans once more after an attempt that somebody else has taken back, because its coordinator seemed dead: which then
/// went on, and may even have prepared. False if it was not taken back.
pub(super) fn clean_late(id: i64) -> Result<bool> {
    let (record, cluster) = transaction::run(|| Ok((record::load(id)?, cluster_id()?)))?;
    let standing = transaction::run(|| migrations::standing(id))?;
    let aborted = (standing.state, standing.outcome) == (State::Done, Outcome::Aborted);
    if aborted {
        clean(&Record { state: State::Aborted, ..record }, cluster, &mut Sides::default())?;
    }
    Ok(aborted)
}

fn lost(record: &Record, donor: Part) -> Error {
    let side = if donor == Part::Nothing { "donor" } else { "recipient" };
    Error::new(
        Kind::InternalError,
        format!("what the {side} prepared for migration {} is neither there nor committed", record.id),
    )
    .with_hint("Was the prepared transaction rolled back by hand, or the shard restored from a backup?")
}

/// The map's change: chunk, placements of both shards, changelog, *moved*; one transaction.
pub(super) fn flip(record: &Record) -> Result<()> {
    let collection = change::lock(&record.namespace)?;
    if !record::advance(record.id, State::Committed, State::Moved)? {
        return Ok(());
    }
    let range = (record.min.as_slice(), record.max.as_slice());
    let chunks = chunks::set_owner(collection.id, range, record.donor, record.recipient, record.version)?;
    let placed = placements::set_version(collection.id, &[record.donor, record.recipient], record.version)?;
    if collection.id != record.collection || chunks == 0 || placed != 2 {
        return Err(Error::new(
            Kind::InternalError,
            format!("the catalog changed under migration {}: its chunk or placements are gone", record.id),
        ));
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
