//! The end of a move: committing on both shards and flipping the map, or rolling back; and cleaning.
//!
//! Everything here may be repeated, by whoever holds the coordinator's lock, from any state in which the attempt was
//! left. `core::migration::next_action` says what comes next.

use super::donor;
use super::recipient::drop_staging;
use super::record::{self, Record, names};
use super::shard::{self, Remote};
use crate::catalog::shards::cluster_id;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::spi::param::Param;
use crate::pg::transaction;
use crate::protocol::Call;
use crate::protocol::table::DropTable;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, collections, migrations, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Action, Outcome, Part, State, next_action};
use docshard_core::error::Kind;
use serde_json::json;

/// SQLSTATE of a prepared transaction that is not there.
const UNDEFINED_OBJECT: [u8; 5] = *b"42704";

/// Sessions on both shards, opened when they are needed.
#[derive(Default)]
pub(super) struct Sides {
    pub(super) donor: Option<Remote>,
    pub(super) recipient: Option<Remote>,
    /// S, which has read at the donor
    pub(super) puller: Option<Remote>,
}

fn session(side: &mut Option<Remote>, shard: ShardId) -> Result<&mut Remote> {
    match side {
        Some(session) => Ok(session),
        // Not the application name of the move's own sessions: the cleaning ends those, but for the one that it uses.
        None => Ok(side.insert(shard::connect(shard, "docshard recovery")?)),
    }
}

/// Prepares the session's transaction, and makes sure that it is: a failed one is rolled back by PREPARE, without error.
pub(super) fn prepare(shard: &mut Remote, gid: &str) -> Result<()> {
    shard.execute(&format!("PREPARE TRANSACTION {}", crate::pg::spi::quote::quote_literal(gid)))?;
    if is_prepared(shard, gid)? {
        return Ok(());
    }
    Err(Error::new(Kind::OperationFailed, format!("shard \"{}\" did not prepare its part of the move", shard.name)))
}

fn is_prepared(shard: &mut Remote, gid: &str) -> Result<bool> {
    let rows = shard.query(
        "SELECT 1 FROM pg_catalog.pg_prepared_xacts WHERE gid = $1 AND database = current_database()",
        &[Param::Text(gid)],
    )?;
    Ok(!rows.is_empty())
}

/// Commits what is prepared; being told that it is not there is no error, as somebody may have committed it before.
pub(super) fn commit_prepared(shard: &mut Remote, gid: &str) -> Result<()> {
    match shard.execute(&format!("COMMIT PREPARED {}", crate::pg::spi::quote::quote_literal(gid))) {
        Err(error) if error.sqlstate == UNDEFINED_OBJECT => Ok(()),
        other => other,
    }
}

/// What a shard has of a committed move.
pub(super) fn part(shard: &mut Remote, record: &Record, gid: &str) -> Result<Part> {
    if is_prepared(shard, gid)? {
        return Ok(Part::Prepared);
    }
    let version = shard.number(
        "SELECT version FROM docshard_data.placement WHERE collection_id = $1 AND token = $2",
        &[Param::Int4(record.collection), Param::Int8(record.token)],
    )?;
    Ok(if version.is_some_and(|v| v >= record.version) { Part::Committed } else { Part::Nothing })
}

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
    transaction::guarded(|| donor::tell_writers(session(&mut sides.donor, record.donor)?, record))?;
    settle_by(record.id, sides)
}

/// The donor's part first.
fn commit_both(record: &Record, sides: &mut Sides) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    if fault::is_off("donor_first") {
        let recipient = session(&mut sides.recipient, record.recipient)?;
        commit_prepared(recipient, &names::recipient_gid(cluster, record.id))?;
        fault::point("move.recipient_first")?;
    }
    commit_prepared(session(&mut sides.donor, record.donor)?, &names::donor_gid(cluster, record.id))?;
    fault::point("move.donor_committed")?;
    commit_prepared(session(&mut sides.recipient, record.recipient)?, &names::recipient_gid(cluster, record.id))
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
                let donor = part(session(&mut sides.donor, record.donor)?, &record, &donor_gid)?;
                let recipient = part(session(&mut sides.recipient, record.recipient)?, &record, &recipient_gid)?;
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
            Action::CommitDonor => {
                transaction::guarded(|| commit_prepared(session(&mut sides.donor, record.donor)?, &donor_gid))?
            }
            Action::CommitRecipient => transaction::guarded(|| {
                commit_prepared(session(&mut sides.recipient, record.recipient)?, &recipient_gid)
            })?,
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

/// Removes what an attempt left on its shards; one that cannot be reached does not keep the other from being cleaned, and one
/// that was removed as lost is not cleaned.
fn clean(record: &Record, cluster: i64, sides: &mut Sides) -> Result<()> {
    let shards = transaction::run(cache::shards)?;
    let donor = transaction::guarded(|| {
        if !shards.contains_key(&record.donor) {
            return Ok(());
        }
        let shard = session(&mut sides.donor, record.donor)?;
        end_attempt(shard, record, cluster, &names::donor_gid(cluster, record.id))?;
        // A writer that saw the capture may log more until it ends; that is left to the sweep.
        for table in ["capture", "capture_log", "capture_parts"] {
            let sql = format!("DELETE FROM docshard_data.{table} WHERE migration_id = $1");
            shard.query(&sql, &[Param::Int8(record.id)])?;
        }
        Ok(())
    });
    // It would end below, too, but not in order.
    if let Some(puller) = sides.puller.take() {
        let _ = transaction::guarded(|| {
            puller.leave();
            Ok(())
        });
    }
    let recipient = transaction::guarded(|| {
        if !shards.contains_key(&record.recipient) {
            return Ok(());
        }
        let shard = session(&mut sides.recipient, record.recipient)?;
        end_attempt(shard, record, cluster, &names::recipient_gid(cluster, record.id))?;
        drop_staging(shard, record)?;
        transaction::run(|| drop_unplaced(shard, record))
    });
    let result = donor.and(recipient);
    if let Err(error) = &result {
        let _ = transaction::run(|| record::note_error(record.id, error));
    }
    result
}

/// Ends the attempt's sessions on a shard, so that none prepares any more, and rolls back what one has prepared.
fn end_attempt(shard: &mut Remote, record: &Record, cluster: i64, gid: &str) -> Result<()> {
    let mut application = names::application(cluster, record.id);
    if fault::is_off("end_sessions") {
        application.push_str(" (nobody)");
    }
    let left = shard
        .number(
            "SELECT count(*) FILTER (WHERE NOT pg_terminate_backend(pid, 5000)) FROM pg_catalog.pg_stat_activity \
             WHERE application_name = $1 AND datname = current_database() AND pid <> pg_backend_pid()",
            &[Param::Text(&application)],
        )?
        .unwrap_or(0);
    if left > 0 {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("sessions of migration {} on shard \"{}\" do not end", record.id, shard.name),
        ));
    }
    if record.state == State::Aborted && is_prepared(shard, gid)? {
        shard.execute(&format!("ROLLBACK PREPARED {}", crate::pg::spi::quote::quote_literal(gid)))?;
    }
    Ok(())
}

/// Drops the table that an aborted attempt made, unless the catalog knows of it. Under the collection's lock, so that no
/// other attempt makes it at the same time.
fn drop_unplaced(recipient: &mut Remote, record: &Record) -> Result<()> {
    if record.state != State::Aborted {
        return Ok(());
    }
    collections::lock_id(record.collection)?;
    let (id, shard) = (record.collection, record.recipient);
    if placements::version(id, shard)?.is_none() && !migrations::may_bring(id, shard)? {
        DropTable { collection: record.collection }.call(recipient)?;
    }
    Ok(())
}
