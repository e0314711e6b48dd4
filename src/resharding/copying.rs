//! Copies the documents of all donors to all recipients: first all of them, part by part, then in rounds what has changed.
//!
//! A donor packs for each recipient only the documents of its share. While a recipient loads a part, it pulls the next one, and all
//! recipients do so at the same time. Each part, and each recipient's part of a round, is committed at once.
//!
//! INVARIANT: the logs began before the first read, so they have the key of each document that has changed since it was read. A round takes
//! some rows of each log, and copies the documents that they name, in parts of limited size. Every recipient removes its versions of these
//! documents, and stores the current versions of those in its share. Then exactly these rows of the logs are deleted. A document that could
//! not be stored is logged again before that. If several rows name the same document, only the newest is needed, and the others may be
//! deleted at once. So when nobody writes and all logs are empty, the recipients have the same documents as the donors.

use super::refused::{self, DonorKey};
use super::register::Registered;
use super::sessions::{Blockers, Donor, Recipient, Sessions};
use crate::pg::error::Result;
use crate::pg::{fault, transaction};
use crate::shard::leftovers::{self, STAGING};
use crate::store::resharding;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::Connection as _;
use docshard_core::routing::protocol::migration::DeleteCopiedChanges;
use docshard_core::routing::protocol::resharding::{
    ApplyShare, CountChanges, InsertChanges, LoadShare, ReadChangeNumbers, Stored,
};
use docshard_core::routing::protocol::sql;
use docshard_core::sql::param::Param;
use docshard_core::sql::record::{Record as _, decode_only};
use std::time::{Duration, Instant};

/// The largest number of log rows of each donor in a round.
pub(super) const MAX_ROUND: i64 = 10_000;
/// About this many bytes of a donor's changed documents are pulled and applied at once: a recipient has many fetched rows in memory.
const CHANGES_BYTES: i64 = 4 << 20;
/// The largest number of log rows of a donor whose documents are pulled and applied at once.
const MOST_CHANGES: usize = 10_000;
/// The staging tables are emptied when one of them has about this many bytes.
const STAGED_BYTES: i64 = 64 << 20;
/// About the bytes of a change in a staging table without its document.
const ROW_BYTES: i64 = 100;
/// The shortest interval at which progress is written to the catalog.
const PROGRESS: Duration = Duration::from_millis(500);

/// The state of a running copy.
pub(super) struct Copying {
    pub(super) change: Registered,
    pub(super) sessions: Sessions,
    /// the texts of the shard keys
    old_key: String,
    key: String,
    batch: i32,
    /// an upper bound of the bytes in any staging table, since the tables were truncated
    staged: i64,
    pub(super) rounds: i32,
    lag: usize,
    /// a document that was refused in the last round
    pub(super) refused: Option<DonorKey>,
    /// a document that was refused during the clone
    pub(super) first_refused: Option<DonorKey>,
    /// the sessions that used the old table when an attempt last failed to lock it
    pub(super) blocking: Blockers,
    /// the number of documents that the recipients have
    pub(super) documents: i64,
    pub(super) bytes: i64,
    /// the version that the copy gets by the present attempt to decide
    pub(super) version: i64,
    /// the version of the copy in the router's own database, if that is a recipient
    pub(super) local_version: i64,
    progress_at: Instant,
}

/// A recipient's progress in the clone.
#[derive(Default)]
struct Turn {
    /// the number of donors from which all parts are taken, and the last part that was taken from the next donor; 0: none
    next: (usize, i64),
    /// the position of its first donor: each recipient begins with another one, so that not all pull from the same donor
    first: usize,
    /// the batch that it is pulling, and its donor
    pulls: Option<(i32, usize)>,
    /// the batch that it has pulled, and its donor
    loads: Option<(i32, usize)>,
}

impl Turn {
    /// Takes the next part: the position of its donor, and its number. None if there is none.
    fn step(&mut self, donors: &[Donor]) -> Option<(usize, i64)> {
        while self.next.0 < donors.len() {
            let donor = (self.first + self.next.0) % donors.len();
            self.next.1 += 1;
            if self.next.1 <= donors[donor].parts {
                return Some((donor, self.next.1));
            }
            self.next = (self.next.0 + 1, 0);
        }
        None
    }
}

impl Copying {
    pub(super) fn new(change: Registered, sessions: Sessions) -> Self {
        let text = |key: &docshard_core::values::key::KeyPattern| key.to_json().to_string();
        let (old_key, key) = (text(&change.of.key), text(&change.layout.key));
        let version = change.copy.version;
        Self {
            change,
            sessions,
            old_key,
            key,
            batch: 0,
            staged: 0,
            rounds: 0,
            lag: 0,
            refused: None,
            first_refused: None,
            blocking: Blockers::new(),
            documents: 0,
            bytes: 0,
            version,
            local_version: version,
            progress_at: Instant::now(),
        }
    }

    /// The new shard key's text.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Writes the progress to the catalog: at most once in [`PROGRESS`], unless `now` is true.
    pub(super) fn store_progress(&mut self, now: bool) -> Result<()> {
        if !now && self.progress_at.elapsed() < PROGRESS {
            return Ok(());
        }
        self.progress_at = Instant::now();
        let lag = i64::try_from(self.lag).unwrap_or(i64::MAX);
        let set = || resharding::set_progress(self.change.id, self.documents, self.bytes, self.rounds, lag);
        if transaction::run(set)? { Ok(()) } else { Err(super::abort::aborted()) }
    }

    /// Copies all documents once.
    pub(super) fn clone_all(&mut self) -> Result<()> {
        let count = self.sessions.recipients.len();
        let mut turns: Vec<Turn> = (0..count).map(|first| Turn { first, ..Turn::default() }).collect();
        loop {
            self.batch += 1;
            let is_last_of_table = self.staged >= STAGED_BYTES;
            for (position, turn) in turns.iter_mut().enumerate() {
                // Before staging tables are truncated, only what they already have is loaded.
                let next = if is_last_of_table { None } else { turn.step(&self.sessions.donors) };
                if let Some((donor, part)) = next {
                    self.start_pull(position, donor, Recipient::part(position, part))?;
                }
                turn.pulls = next.map(|(donor, _)| (self.batch, donor));
            }
            self.load_pulled(&mut turns)?;
            let mut most = 0;
            for (position, turn) in turns.iter_mut().enumerate() {
                turn.loads = None;
                if let Some(pulled) = turn.pulls.take() {
                    let answer = self.sessions.recipients[position].puller.finish()?;
                    let (documents, bytes): (i64, i64) = decode_only("a pull", &answer)?;
                    self.bytes += bytes;
                    most = most.max(bytes);
                    turn.loads = (documents > 0).then_some(pulled);
                }
            }
            self.staged += most;
            if is_last_of_table {
                self.empty_staging()?;
            } else if turns.iter().all(|turn| turn.loads.is_none() && turn.next.0 >= self.sessions.donors.len()) {
                return Ok(());
            }
            self.store_progress(false)?;
            fault::point("reshard.cloning")?;
        }
    }

    fn start_pull(&mut self, recipient: usize, donor: usize, part: i64) -> Result<()> {
        let staging = leftovers::table(self.change.id, STAGING);
        let expected = &self.sessions.donors[donor].expected;
        let Recipient { puller, sources, .. } = &mut self.sessions.recipients[recipient];
        let source = &sources[donor];
        let (received, check, batch) = (sql::decode_part("packed"), source.check_donor(3), self.batch);
        puller.start(
            &format!(
                "WITH pulled AS (INSERT INTO {staging} (batch, documents, packed) \
                 SELECT {batch}, documents, {received} FROM {} WHERE migration_id = $1 AND part = $2 AND {check} \
                 RETURNING documents, octet_length(packed) AS size) \
                 SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(size), 0)::int8 FROM pulled",
                source.packed
            ),
            &[Param::Int8(self.change.id), Param::Int8(part), Param::Text(expected)],
            <(i64, i64)>::WIRE,
        )
    }

    /// All recipients load what they have pulled, at the same time.
    fn load_pulled(&mut self, turns: &mut [Turn]) -> Result<()> {
        let (resharding, collection, key) = (self.change.id, self.change.copy.id, self.key.as_str());
        for (Recipient { loader, share, .. }, turn) in self.sessions.recipients.iter_mut().zip(&mut *turns) {
            if let Some((batch, _)) = turn.loads {
                LoadShare { resharding, collection, batch, key, share }.start(loader)?;
            }
        }
        for (position, turn) in turns.iter().enumerate() {
            if let Some((_, donor)) = turn.loads {
                let stored = LoadShare::decode(&self.sessions.recipients[position].loader.finish()?)?;
                self.documents += stored.documents;
                let again = refused::read(&self.change.of.namespace, &stored.refused)?;
                self.first_refused = self.first_refused.take().or_else(|| again.first().cloned());
                self.log_again(donor, &again)?;
            }
        }
        Ok(())
    }

    fn empty_staging(&mut self) -> Result<()> {
        let staging = leftovers::table(self.change.id, STAGING);
        for Recipient { puller, .. } in &mut self.sessions.recipients {
            puller.execute(&format!("TRUNCATE {staging}"))?;
        }
        self.staged = 0;
        Ok(())
    }

    fn log_again(&mut self, donor: usize, keys: &[DonorKey]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let (skeys, ids): (Vec<&[u8]>, Vec<&[u8]>) = keys.iter().map(|(skey, id)| (&skey[..], &id[..])).unzip();
        let (resharding, collection) = (self.change.id, self.change.of.id);
        let again = InsertChanges { resharding, collection, skeys: &skeys, ids: &ids };
        again.call(&mut self.sessions.donors[donor].session).map(drop)
    }

    /// Copies at most `most` changes of each donor. Returns the number of log rows that were copied, and the documents that were refused.
    pub(super) fn round(&mut self, most: i64) -> Result<(usize, Vec<DonorKey>)> {
        let resharding = self.change.id;
        for Donor { session, .. } in &mut self.sessions.donors {
            ReadChangeNumbers { resharding, most }.start(session)?;
        }
        let mut numbers: Vec<Vec<i64>> = Vec::new();
        self.lag = 0;
        for Donor { session, .. } in &mut self.sessions.donors {
            let logged = ReadChangeNumbers::decode(&session.finish()?)?;
            self.lag += logged.iter().map(|logged| usize::try_from(logged.rows).unwrap_or(0)).sum::<usize>();
            numbers.push(logged.iter().map(|logged| logged.number).collect());
        }
        let mut again = Vec::new();
        let mut rest: Vec<&[i64]> = numbers.iter().map(Vec::as_slice).collect();
        while rest.iter().any(|rest| !rest.is_empty()) {
            let taken = self.take(&mut rest)?;
            again.extend(self.copy_changes(&taken)?);
        }
        Ok((self.lag, again))
    }

    /// Takes from the remaining rows of each log those that are copied next: their documents have about [`CHANGES_BYTES`].
    fn take<'n>(&mut self, rest: &mut [&'n [i64]]) -> Result<Vec<&'n [i64]>> {
        let mut taken = Vec::new();
        for (Donor { session, .. }, rest) in self.sessions.donors.iter_mut().zip(rest) {
            let next = &rest[..rest.len().min(MOST_CHANGES)];
            let count = match next {
                [] => 0,
                _ => CountChanges { resharding: self.change.id, numbers: next, bytes: CHANGES_BYTES }.call(session)?,
            };
            // At least one, or the round would not end.
            let count = usize::try_from(count).unwrap_or(0).clamp(next.len().min(1), next.len());
            let (first, others) = rest.split_at(count);
            taken.push(first);
            *rest = others;
        }
        Ok(taken)
    }

    /// Copies these rows of each log; returns the documents that were refused.
    fn copy_changes(&mut self, numbers: &[&[i64]]) -> Result<Vec<DonorKey>> {
        let resharding = self.change.id;
        self.batch += 1;
        self.rounds += 1;
        self.pull_changes(numbers)?;
        fault::point("reshard.pulled")?;
        let again = self.apply()?;
        fault::point("reshard.applied")?;
        for (donor, applied) in numbers.iter().copied().enumerate() {
            let shard = self.sessions.donors[donor].shard;
            let own: Vec<DonorKey> =
                again.iter().filter(|(skey, _)| self.change.of.map.owner(skey) == shard).cloned().collect();
            self.log_again(donor, &own)?;
            if !applied.is_empty() {
                let call = DeleteCopiedChanges { migration: resharding, applied };
                call.call(&mut self.sessions.donors[donor].session)?;
            }
        }
        if self.staged >= STAGED_BYTES {
            self.empty_staging()?;
        }
        Ok(again)
    }

    /// All recipients pull these rows of the logs, with their current documents.
    fn pull_changes(&mut self, numbers: &[&[i64]]) -> Result<()> {
        let staging = leftovers::table(self.change.id, STAGING);
        let batch = self.batch;
        for (donor, wanted) in numbers.iter().copied().enumerate().filter(|(_, wanted)| !wanted.is_empty()) {
            let expected = &self.sessions.donors[donor].expected;
            for Recipient { puller, sources, .. } in &mut self.sessions.recipients {
                let source = &sources[donor];
                let sql = format!(
                    "WITH pulled AS (INSERT INTO {staging} (batch, {columns}) \
                     SELECT {batch}, {columns} FROM {} WHERE migration_id = $1 AND seq = ANY ($3) AND {} \
                     RETURNING coalesce(pg_catalog.pg_column_size(doc), 0) + {ROW_BYTES} AS size) \
                     SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(size), 0)::int8 FROM pulled",
                    source.changes,
                    source.check_donor(2),
                    columns = source.change_columns()
                );
                let params = [Param::Int8(self.change.id), Param::Text(expected), Param::Int8Array(wanted)];
                puller.start(&sql, &params, <(i64, i64)>::WIRE)?;
            }
            let mut most = 0;
            for Recipient { puller, .. } in &mut self.sessions.recipients {
                let (pulled, bytes): (i64, i64) = decode_only("a pull", &puller.finish()?)?;
                most = most.max(bytes);
                if usize::try_from(pulled) != Ok(wanted.len()) {
                    return Err(error!(
                        Kind::OperationFailed,
                        "shard \"{}\" has pulled {pulled} changes of {}; nothing was changed",
                        puller.name,
                        wanted.len()
                    ));
                }
            }
            self.staged += most;
        }
        Ok(())
    }

    /// All recipients apply the changes that they have pulled. Returns the documents that were refused.
    fn apply(&mut self) -> Result<Vec<DonorKey>> {
        let (resharding, collection, batch) = (self.change.id, self.change.copy.id, self.batch);
        for Recipient { loader, share, .. } in &mut self.sessions.recipients {
            let (old_key, key) = (self.old_key.as_str(), self.key.as_str());
            ApplyShare { resharding, collection, batch, old_key, key, share }.start(loader)?;
        }
        // If one recipient fails, the others have committed what they have applied, and the attempt may be repeated: all must be counted.
        let answers: Vec<_> = self.sessions.recipients.iter_mut().map(|one| one.loader.finish()).collect();
        let (mut again, mut failed) = (Vec::new(), None);
        for answer in answers {
            match answer.and_then(|answer| ApplyShare::decode(&answer)) {
                Ok(Stored { documents, refused }) => {
                    self.documents += documents;
                    again.extend(refused::read(&self.change.of.namespace, &refused)?);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(again), Err)
    }
}
