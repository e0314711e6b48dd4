//! What happens on the donor: capture, forgetting what was captured, exclusion of writers, hand-over.
//!
//! INVARIANT: from `try_freeze` to the end of T no transaction writes to the range. Those that began before the capture
//! row was visible held the collection's lock then, and have been waited for; the others share the migration's lock.

use super::record::Record;
use super::shard::Remote;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::spi::param::Param;
use crate::protocol::Call;
use crate::protocol::migration::{
    CollectionWriters, DeleteCopiedChanges, DeleteRange, Deleted, DivideRange, ExcludeRangeWriters, LocateRange,
    RangeWriters, ReleaseRangeWriters,
};
use crate::storage::lock::{self, Mode, Tag, acquire};
use crate::storage::rows::capture;
use docshard_core::error::Kind;
use std::collections::BTreeMap;
use std::time::Instant;

/// SQLSTATE of a lock that was not to be had in time.
const LOCK_NOT_AVAILABLE: [u8; 5] = *b"55P03";

/// Parts of a range that no shard has as many documents for.
const MOST_PARTS: i64 = 1 << 40;

/// How long T queues for the migration's lock before it steps back, in milliseconds: below PostgreSQL's
/// `deadlock_timeout`, and short, as writers queue behind it.
const QUEUE_MS: i64 = 100;

/// Excludes all writers to a migration's range on this shard until the transaction ends; the transaction's own writes
/// are not captured.
pub fn exclude_range_writers(migration: i64) {
    acquire(Tag::Migration(migration), Mode::Exclusive);
    // Nothing depends on it: whom this holds up is told a little later what it is told anyway.
    let _ = lock::try_acquire_for_session(Tag::HandOver(migration), Mode::Exclusive);
    capture::bypass();
}

/// Lets those writers know of the hand-over whom it excluded; in the session that did.
pub fn release_range_writers(migration: i64) {
    lock::release_for_session(Tag::HandOver(migration), Mode::Exclusive);
}

/// The condition of the range on a collection's table; `$1` is its lower bound, `$2` its upper, if there is one.
pub(super) fn range(end: Option<&[u8]>) -> &'static str {
    if end.is_some() { "skey >= $1 AND skey < $2" } else { "skey >= $1" }
}

/// The values of [`range`].
pub(super) fn range_params<'a>(record: &'a Record, end: Option<&'a [u8]>) -> Vec<Param<'a>> {
    std::iter::once(record.min.as_slice()).chain(end).map(Param::Bytea).collect()
}

/// The length of the largest of some documents of the range, as they travel.
pub(super) fn size_of_documents(donor: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<i64> {
    let sql = format!(
        "SELECT max(octet_length(doc::text))::int8 FROM (SELECT doc FROM {} WHERE {} LIMIT 100) AS sample",
        table::name(record.collection),
        range(end)
    );
    Ok(donor.number(&sql, &range_params(record, end))?.unwrap_or(1))
}

/// How many documents the donor's planner expects in the range.
pub(super) fn estimate(donor: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<i64> {
    let sql = format!("EXPLAIN (FORMAT json) SELECT FROM {} WHERE {}", table::name(record.collection), range(end));
    let rows = donor.query(&sql, &range_params(record, end))?;
    let plan = rows.first().and_then(|row| serde_json::from_str::<serde_json::Value>(row.text(0)?).ok());
    Ok(plan.and_then(|plan| plan[0]["Plan"]["Plan Rows"].as_i64()).unwrap_or(0))
}

/// Begins to divide the range into parts of so many documents, each to be pulled at once; [`finish_dividing`] waits for it.
pub(super) fn start_dividing(donor: &mut Remote, record: &Record, end: Option<&[u8]>, documents: i64) -> Result<()> {
    let call = DivideRange { migration: record.id, collection: record.collection, lo: &record.min, hi: end, documents };
    call.start(donor)
}

/// How many parts there are, numbered from 1.
pub(super) fn finish_dividing(donor: &mut Remote) -> Result<i64> {
    let parts = DivideRange::decode(&donor.finish()?)?;
    match parts {
        0..=MOST_PARTS => Ok(parts),
        _ => Err(Error::new(Kind::InternalError, format!("malformed answer to divide_range: {parts} parts"))),
    }
}

/// Tells writers to the range of the move: committed at once.
pub(super) fn begin_capture(donor: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<()> {
    donor.query(
        "INSERT INTO docshard_data.capture (collection_id, migration_id, min, max) VALUES ($1, $2, $3, $4::bytea)",
        &[Param::Int4(record.collection), Param::Int8(record.id), Param::Bytea(&record.min), Param::OptBytea(end)],
    )?;
    Ok(())
}

/// Who holds the collection's lock: a transaction's name, and its process unless it is prepared.
fn writers(donor: &mut Remote, record: &Record) -> Result<BTreeMap<String, Option<i32>>> {
    let holders = CollectionWriters { collection: record.collection }.call(donor)?;
    Ok(holders.into_iter().map(|writer| (writer.holder, writer.pid)).collect())
}

/// As [`writers`], those that share the migration's lock.
pub(super) fn writers_to_range(donor: &mut Remote, record: &Record) -> Result<BTreeMap<String, Option<i32>>> {
    let holders = RangeWriters { migration: record.id }.call(donor)?;
    Ok(holders.into_iter().map(|writer| (writer.holder, writer.pid)).collect())
}

fn name_all(writers: &BTreeMap<String, Option<i32>>) -> String {
    let names: Vec<_> = writers
        .iter()
        .map(|(name, pid)| match pid {
            Some(pid) => format!("process {pid}"),
            None => format!("prepared transaction {name}"),
        })
        .collect();
    names.join(", ")
}

/// The error of a move that writers keep from its end.
pub(super) fn gave_up(donor: &Remote, writers: &BTreeMap<String, Option<i32>>) -> Error {
    let whom = name_all(writers);
    Error::new(
        Kind::LockTimeout,
        format!("gave up waiting for transactions that write to the collection on shard \"{}\": {whom}", donor.name),
    )
    .with_hint("Let them end, or raise the setting move_wait_ms, and move the chunk again.")
}

/// Waits for the transactions that hold the collection's lock now, prepared ones included; those that come later have
/// seen the capture row. Nobody waits for this.
pub(super) fn wait_for_writers(donor: &mut Remote, record: &Record, deadline: Instant) -> Result<()> {
    if fault::is_off("wait_for_writers") {
        return Ok(());
    }
    let mut waited_for = writers(donor, record)?;
    while !waited_for.is_empty() {
        if Instant::now() >= deadline {
            return Err(gave_up(donor, &waited_for));
        }
        sleep_ms(20);
        let now = writers(donor, record)?;
        waited_for.retain(|name, _| now.contains_key(name));
    }
    Ok(())
}

/// Forgets rows of the log that have been copied: exactly these, as others may have been committed since with lower
/// numbers. False if the range's documents should be noted again.
pub(super) fn forget_changes(donor: &mut Remote, record: &Record, applied: &[i64]) -> Result<bool> {
    if fault::is_off("exact_log") {
        let last = applied.iter().copied().max().unwrap_or(0);
        donor.query(
            "DELETE FROM docshard_data.capture_log WHERE migration_id = $1 AND seq <= $2",
            &[Param::Int8(record.id), Param::Int8(last)],
        )?;
    } else if !applied.is_empty() {
        return DeleteCopiedChanges { migration: record.id, applied }.call(donor);
    }
    Ok(true)
}

/// Begins to find out where the range's documents are, so that T removes them quickly; [`finish_noting`] waits for it. From
/// then on [`forget_changes`] must be called in the same session.
pub(super) fn start_noting(donor: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<()> {
    if fault::is_off("exact_log") {
        return Ok(());
    }
    LocateRange { migration: record.id, collection: record.collection, lo: &record.min, hi: end }.start(donor)
}

/// Waits for what [`start_noting`] began.
pub(super) fn finish_noting(donor: &mut Remote) -> Result<()> {
    if fault::is_off("exact_log") {
        return Ok(());
    }
    LocateRange::decode(&donor.finish()?).map(drop)
}

/// Begins T and takes the migration's lock exclusively, queueing only briefly; false if that was too short.
pub(super) fn try_freeze(donor: &mut Remote, record: &Record) -> Result<bool> {
    donor.execute(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {QUEUE_MS}"))?;
    match (ExcludeRangeWriters { migration: record.id }.call(donor)) {
        Ok(()) => donor
            .execute(
                // Nothing is known to the planner of a log that is being filled; the index is always right.
                "SET LOCAL lock_timeout = '10s'; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
                 SET LOCAL enable_seqscan = off",
            )
            .map(|()| true),
        Err(error) if error.sqlstate == LOCK_NOT_AVAILABLE => donor.execute("ROLLBACK").map(|()| false),
        Err(error) => Err(error),
    }
}

/// Rolls T back, whatever it is at, and lets the writers go on whom [`try_freeze`] has excluded. What the session has noted
/// of the range stays.
pub(super) fn resume_writers(donor: &mut Remote, record: &Record) -> Result<()> {
    donor.cancel();
    donor.execute("ROLLBACK")?;
    tell_writers(donor, record)
}

/// After the flip: tells writers, whom [`try_freeze`] has excluded. The session's end does so, too.
pub(super) fn tell_writers(donor: &mut Remote, record: &Record) -> Result<()> {
    ReleaseRangeWriters { migration: record.id }.call(donor)
}

/// In T: begins to delete the range, without waiting for it.
pub(super) fn start_delete(donor: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<()> {
    DeleteRange { migration: record.id, collection: record.collection, lo: &record.min, hi: end }.start(donor)
}

/// In T: waits for the delete until the deadline, if there is one; None if it is not over by then.
pub(super) fn finish_delete(donor: &mut Remote, deadline: Option<Instant>) -> Result<Option<Deleted>> {
    let rows = match deadline {
        Some(deadline) => donor.poll(milliseconds_until(deadline))?,
        None => Some(donor.finish()?),
    };
    rows.map(|rows| DeleteRange::decode(&rows)).transpose()
}

/// How long a wait may last that ends at a deadline.
pub(super) fn milliseconds_until(deadline: Instant) -> i64 {
    i64::try_from(deadline.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(i64::MAX)
}

/// In T: compares what was removed with what arrived, advances the version, forgets the capture and its log. Without its capture the
/// move has not seen all changes: whoever took that away takes the move for dead.
pub(super) fn hand_over(donor: &mut Remote, record: &Record, removed: &Deleted, documents: i64) -> Result<()> {
    let deleted = removed.documents;
    if deleted != documents && !fault::is_off("count") {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("{documents} documents arrived but {deleted} were to leave; nothing was changed"),
        ));
    }
    set_version(donor, record, record.donor_version)?;
    let captures = donor.query(
        "DELETE FROM docshard_data.capture WHERE collection_id = $1 AND migration_id = $2 RETURNING 1",
        &[Param::Int4(record.collection), Param::Int8(record.id)],
    )?;
    if captures.len() != 1 {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("shard \"{}\" does not capture the range any more; nothing was changed", donor.name),
        )
        .with_hint("Does another router work on this cluster's shards?"));
    }
    donor.query("DELETE FROM docshard_data.capture_log WHERE migration_id = $1", &[Param::Int8(record.id)])?;
    Ok(())
}

/// Compares and sets a shard's placement version, in the session's transaction.
pub(super) fn set_version(shard: &mut Remote, record: &Record, before: i64) -> Result<()> {
    let set = shard.query(
        "UPDATE docshard_data.placement SET version = $4 WHERE collection_id = $1 AND token = $2 AND version = $3 \
         RETURNING 1",
        &[Param::Int4(record.collection), Param::Int8(record.token), Param::Int8(before), Param::Int8(record.version)],
    )?;
    if set.len() == 1 { Ok(()) } else { Err(disagreement(shard, record, before)) }
}

/// Makes sure, before anything is copied, that a shard is where the catalog says.
pub(super) fn check_version(shard: &mut Remote, record: &Record, version: i64) -> Result<()> {
    let here = shard.number(
        "SELECT version FROM docshard_data.placement WHERE collection_id = $1 AND token = $2",
        &[Param::Int4(record.collection), Param::Int8(record.token)],
    )?;
    if here == Some(version) { Ok(()) } else { Err(disagreement(shard, record, version)) }
}

fn disagreement(shard: &Remote, record: &Record, version: i64) -> Error {
    Error::new(
        Kind::OperationFailed,
        format!("shard \"{}\" is not at version {version} of {}, as the catalog says", shard.name, record.namespace),
    )
    .with_hint("Was the shard, or the router, restored from a backup?")
}
