//! What a move does at the donor, by the donor session: capture, exclusion of writers, hand-over.
//!
//! INVARIANT: from `try_exclude_writers` to the end of the donor's part no transaction writes to the range. The move has waited for all
//! transactions that held the collection's lock before the capture row was visible. Later transactions also take the migration's lock,
//! shared, and that lock excludes them.

use super::attempt::{Attempt, range};
use super::record::Record;
use super::shard::ShardSession;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::storage::lock::{self, Mode, Tag, acquire};
use crate::storage::rows::capture;
use docshard_core::error::sqlstate::LOCK_NOT_AVAILABLE;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::{
    CollectionWriters, DeleteCopiedChanges, DeleteRange, Deleted, DivideRange, ExcludeRangeWriters, LocateRange,
    LockHolder, RangeWriters, ReleaseRangeWriters,
};
use docshard_core::routing::protocol::shard_tables::{
    DeleteChanges, EndCapture, ExplainScan, InsertCapture, SampleDocumentSize, SetVersion,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// The largest number of parts that a donor may report.
const MAX_PARTS: i64 = 1 << 40;

/// How long the donor's part waits for the migration's lock before it gives up, in milliseconds: below PostgreSQL's `deadlock_timeout`, and
/// short, as writers queue behind it.
const QUEUE_MS: i64 = 100;

/// The transactions that hold a lock, by name, each with its process; None: the transaction is prepared.
pub(super) type Writers = BTreeMap<String, Option<i32>>;

/// Excludes all writers to a migration's range on this shard until the transaction ends; the transaction's own writes
/// are not captured.
pub fn exclude_range_writers(migration: i64) {
    acquire(Tag::Migration(migration), Mode::Exclusive);
    // Excluded writers poll this lock to see when they may continue. Correctness does not depend on it, so taking it
    // may fail.
    let _ = lock::try_acquire_for_session(Tag::HandOver(migration), Mode::Exclusive);
    capture::bypass();
}

/// Ends the wait of the writers that this session has excluded.
pub fn release_range_writers(migration: i64) {
    lock::release_for_session(Tag::HandOver(migration), Mode::Exclusive);
}

impl Attempt {
    /// Returns the length of the longest of a hundred documents of the range, in bytes of text.
    pub(super) fn sample_document_size(&mut self) -> Result<i64> {
        let sample = SampleDocumentSize(range(&self.record, self.end.as_deref()));
        Ok(sample.call(&mut self.donor)?.unwrap_or(1))
    }

    /// Returns the donor planner's estimate of the number of documents in the range.
    pub(super) fn estimate_documents(&mut self) -> Result<i64> {
        let plans = ExplainScan(range(&self.record, self.end.as_deref())).call(&mut self.donor)?;
        Ok(plans.first().and_then(|plan| plan[0]["Plan"]["Plan Rows"].as_i64()).unwrap_or(0))
    }

    /// Starts to divide the range into parts, each of which is pulled by one statement.
    pub(super) fn start_dividing(&mut self, documents: i64) -> Result<()> {
        let Record { id: migration, collection, ref min, .. } = self.record;
        DivideRange { migration, collection, lo: Some(min), hi: self.end.as_deref(), documents }.start(&mut self.donor)
    }

    /// Waits for the division; returns the number of parts, which are numbered from 1.
    pub(super) fn finish_dividing(&mut self) -> Result<i64> {
        let parts = DivideRange::decode(&self.donor.finish()?)?;
        match parts {
            0..=MAX_PARTS => Ok(parts),
            _ => Err(error!(Kind::InternalError, "malformed answer to divide_range: {parts} parts")),
        }
    }

    /// Commits the capture row: transactions that begin to write after this share the migration's lock.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let Record { id: migration, collection, ref min, .. } = self.record;
        InsertCapture { collection, migration, min, max: self.end.as_deref() }.call(&mut self.donor).map(drop)
    }

    /// Waits for the transactions that hold the collection's lock now, including prepared ones; later ones have read the capture
    /// row. This wait blocks no one else.
    pub(super) fn wait_for_writers(&mut self, deadline: Instant) -> Result<()> {
        if fault::is_off("wait_for_writers") {
            return Ok(());
        }
        let writers = CollectionWriters { collection: self.record.collection };
        let mut waited_for = by_name(writers.call(&mut self.donor)?);
        while !waited_for.is_empty() {
            if Instant::now() >= deadline {
                return Err(self.blocked_by(&waited_for));
            }
            sleep_ms(20);
            let now = by_name(writers.call(&mut self.donor)?);
            waited_for.retain(|name, _| now.contains_key(name));
        }
        Ok(())
    }

    /// Returns the transactions that write to the range.
    pub(super) fn range_writers(&mut self) -> Result<Writers> {
        Ok(by_name(RangeWriters { migration: self.record.id }.call(&mut self.donor)?))
    }

    /// Returns the error of a move that has waited too long for these writers.
    pub(super) fn blocked_by(&self, writers: &Writers) -> Error {
        let describe = |(name, pid): (&String, &Option<i32>)| match pid {
            Some(pid) => format!("process {pid}"),
            None => format!("prepared transaction {name}"),
        };
        let whom = writers.iter().map(describe).collect::<Vec<_>>().join(", ");
        let shard = &self.donor.name;
        error!(
            Kind::LockTimeout,
            "gave up waiting for transactions that write to the collection on shard \"{shard}\": {whom}"
        )
        .with_hint("Wait until they have ended, or raise the setting move_wait_ms, and move the chunk again.")
    }

    /// Deletes copied rows of the log: exactly these, as rows with lower numbers may have been committed since. False
    /// if the range's documents should be located again.
    pub(super) fn forget_changes(&mut self, applied: &[i64]) -> Result<bool> {
        let migration = self.record.id;
        if fault::is_off("exact_log") {
            let last = applied.iter().copied().max().unwrap_or(0);
            DeleteChanges { migration, last }.call(&mut self.donor)?;
            return Ok(true);
        }
        Ok(applied.is_empty() || DeleteCopiedChanges { migration, applied }.call(&mut self.donor)?)
    }

    /// Starts to locate the range's documents, so that they can be deleted quickly. From then on [`Attempt::forget_changes`]
    /// must be called in the same session.
    pub(super) fn start_locating(&mut self) -> Result<()> {
        if fault::is_off("exact_log") {
            return Ok(());
        }
        let Record { id: migration, collection, ref min, .. } = self.record;
        LocateRange { migration, collection, lo: min, hi: self.end.as_deref() }.start(&mut self.donor)
    }

    /// Waits until the documents are located, after [`Attempt::start_locating`].
    pub(super) fn finish_locating(&mut self) -> Result<()> {
        if fault::is_off("exact_log") {
            return Ok(());
        }
        LocateRange::decode(&self.donor.finish()?).map(drop)
    }

    /// Begins the donor's part and takes the migration's lock exclusively; false if that needs more than a short wait.
    pub(super) fn try_exclude_writers(&mut self) -> Result<bool> {
        let donor = &mut self.donor;
        donor.execute(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {QUEUE_MS}"))?;
        match (ExcludeRangeWriters { migration: self.record.id }.call(donor)) {
            Ok(()) => donor
                .execute(
                    // The planner has no statistics of a log that is being filled; an index scan is always a good plan.
                    "SET LOCAL lock_timeout = '10s'; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
                     SET LOCAL enable_seqscan = off",
                )
                .map(|()| true),
            Err(error) if error.sqlstate == LOCK_NOT_AVAILABLE => donor.execute("ROLLBACK").map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// In the donor's part: starts to delete the range.
    pub(super) fn start_delete(&mut self) -> Result<()> {
        let Record { id: migration, collection, ref min, .. } = self.record;
        DeleteRange { migration, collection, lo: min, hi: self.end.as_deref() }.start(&mut self.donor)
    }

    /// In the donor's part: waits for the deletion until the deadline, if there is one; None if it has not finished by then.
    pub(super) fn finish_delete(&mut self, deadline: Option<Instant>) -> Result<Option<Deleted>> {
        let rows = match deadline {
            Some(deadline) => self.donor.poll(milliseconds_until(deadline))?,
            None => Some(self.donor.finish()?),
        };
        rows.map(|rows| DeleteRange::decode(&rows)).transpose()
    }

    /// In the donor's part: compares the number of deleted documents with the number of loaded ones, advances the version, and deletes the
    /// capture and its log. A missing capture means that changes may be missing: another process has deleted it because it
    /// considered the move dead.
    pub(super) fn hand_over(&mut self, deleted: i64, arrived: i64) -> Result<()> {
        if deleted != arrived && !fault::is_off("count") {
            return Err(error!(Kind::OperationFailed, "{arrived} documents arrived but {deleted} were to leave; nothing was changed")
            .with_hint(format!(
                "Does the foreign server {} on the recipient lead to the same database as this router's? In a restored copy of a \
                 cluster it may lead to the original.",
                self.donor.server
            )));
        }
        let Self { record, donor, .. } = self;
        set_version(donor, record, record.donor_version)?;
        let Record { id: migration, collection, .. } = *record;
        let ended = EndCapture { collection, migration }.call(donor)?;
        if ended.len() != 1 {
            return Err(error!(
                Kind::OperationFailed,
                "shard \"{}\" does not capture the range any more; nothing was changed", donor.name
            )
            .with_hint("Another router may work on this cluster's shards."));
        }
        DeleteChanges { migration, last: i64::MAX }.call(donor).map(drop)
    }
}

fn by_name(holders: Vec<LockHolder>) -> Writers {
    holders.into_iter().map(|writer| (writer.holder, writer.pid)).collect()
}

/// Rolls the donor's part back and releases the excluded writers. The session keeps the located documents.
pub(super) fn resume_writers(donor: &mut ShardSession, migration: i64) -> Result<()> {
    donor.cancel();
    donor.execute("ROLLBACK")?;
    ReleaseRangeWriters { migration }.call(donor)
}

/// Returns the time left before a deadline.
pub(super) fn milliseconds_until(deadline: Instant) -> i64 {
    i64::try_from(deadline.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(i64::MAX)
}

/// Compares and sets a shard's placement version, in the session's transaction.
pub(super) fn set_version(shard: &mut ShardSession, record: &Record, before: i64) -> Result<()> {
    let Record { collection, token, version, .. } = *record;
    let set = SetVersion { collection, token, before, version }.call(shard)?;
    if set.len() == 1 { Ok(()) } else { Err(version_differs(shard, record, before)) }
}

/// Checks, before anything is copied, that a shard's version is the one in the catalog.
pub(super) fn check_version(shard: &mut ShardSession, record: &Record, version: i64) -> Result<()> {
    if shard.version(record)? == Some(version) { Ok(()) } else { Err(version_differs(shard, record, version)) }
}

fn version_differs(shard: &ShardSession, record: &Record, version: i64) -> Error {
    error!(
        Kind::OperationFailed,
        "shard \"{}\" is not at version {version} of {}, as the catalog says", shard.name, record.namespace
    )
    .with_hint("The shard or the router may have been restored from a backup.")
}
