//! Ends a move: commits on both shards and changes the map, or rolls back.
//!
//! The holder of the coordinator's lock may repeat every step, from any state in which the move was left:
//! `core::cluster::migration::next_action` returns the next one.

use super::cleanup::clean;
use super::names;
use super::record::{self, Record};
use super::shard::Sides;
use crate::catalog::cluster::behind;
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, migrations, placements};
use docshard_core::cluster::migration::{Action, Outcome, Part, State, next_action};
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::ReleaseRangeWriters;
use serde_json::json;

/// Ends the move in the coordinator's own sessions, which have just prepared both parts.
pub(super) fn finish_prepared(record: &Record, sides: &mut Sides) -> Result<()> {
    // Shows sessions for which the donor's map is stale when to try the recipient; nothing depends on it.
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

fn settle_by(id: i64, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    let (donor_gid, recipient_gid) = (names::donor_gid(cluster, id), names::recipient_gid(cluster, id));
    loop {
        let record = transaction::run(|| record::load(id))?;
        let mut parts = (Part::Nothing, Part::Nothing);
        if record.state == State::Committed {
            transaction::guarded(|| {
                parts.0 = sides.donor(&record)?.part(&record, &donor_gid)?;
                parts.1 = sides.recipient(&record)?.part(&record, &recipient_gid)?;
                Ok(())
            })?;
        }
        fault::point("recover.step")?;
        match next_action(record.state, parts.0, parts.1) {
            Action::Abort => transaction::run(|| {
                let vanished = error!(Kind::OperationFailed, "the process that moved the chunk ended unexpectedly");
                record::note_error(id, &vanished)?;
                record::advance(id, State::Running, State::Aborted)
            })
            .map(drop)?,
            Action::CommitDonor => transaction::guarded(|| sides.donor(&record)?.commit_prepared(&donor_gid))?,
            Action::CommitRecipient => {
                transaction::guarded(|| sides.recipient(&record)?.commit_prepared(&recipient_gid))?
            }
            Action::Flip => transaction::run(|| flip(&record))?,
            Action::Clean => {
                clean(&record, cluster, sides)?;
                fault::point("move.cleaned")?;
                transaction::run(|| record::advance(id, record.state, State::Done))?;
            }
            Action::Lost | Action::GiveUp => return Err(lost(&record, parts)?),
            Action::Nothing => return Ok(()),
        }
    }
}

/// Cleans up again after a move that another process has aborted because it considered its coordinator dead, but whose
/// coordinator continued and may even have prepared. False if the move was not aborted.
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

/// Changes the map, in one transaction: chunk, placements of both shards, changelog, *moved*.
pub(super) fn flip(record: &Record) -> Result<()> {
    let collection = change::lock(&record.namespace)?;
    if !record::advance(record.id, State::Committed, State::Moved)? {
        return Ok(());
    }
    let range = (record.min.as_slice(), record.max.as_slice());
    let chunks = chunks::set_owner(collection.id, range, record.donor, record.recipient, record.version)?;
    let placed = placements::set_version(collection.id, &[record.donor, record.recipient], record.version)?;
    if collection.id != record.collection || chunks == 0 || placed != 2 {
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
