//! Copies a range while clients write to it: first the clone, then rounds that copy the changes since.
//!
//! The pull session pulls one part after the other into the staging table, and commits each. The load session loads a part while the next
//! one is pulled. A part or a round holds a snapshot on the donor only while it reads.
//!
//! INVARIANT: after a round, the recipient's part holds the range as the donor had it in the round's snapshot. The log began before the
//! first read, so it contains the key of every document that has changed since it was read. Each round reads log and documents in one
//! statement, and deletes exactly the rows of the log that it has applied. So a round with all writers excluded makes the
//! recipient's part equal to the donor.

use super::attempt::Attempt;
use super::donor::{self, Writers};
use super::names;
use super::recipient;
use super::record;
use super::shard::ShardSession;
use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::transaction;
use crate::remote::RemoteRow;
use crate::store::indexes;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::ApplyChanges;
use docshard_core::sql::record::decode_only;
use std::time::{Duration, Instant};

/// Writers are excluded after a round with fewer log rows than this, if it was fast enough.
const SMALL_ROUND: usize = 1000;
/// The largest number of log rows in a round, so that its documents take little memory and its transaction is short.
const MAX_ROUND: usize = 10_000;
/// After this many rounds, catching up is given up at the first one that is not smaller than all before.
const MAX_ROUNDS: i32 = 10;
/// After this many rounds, catching up is given up if a round is still full: writers are faster than the copy.
const MAX_FULL_ROUNDS: i32 = 1000;
/// The shortest interval at which progress is written to the catalog.
const PROGRESS: Duration = Duration::from_millis(500);

/// The state of a running copy.
pub(super) struct Copy {
    pub(super) attempt: Attempt,
    parts: i64,
    /// The recipient's table has a unique index besides its primary key.
    is_unique: bool,
    /// The shard key's text, with which the recipient checks each document.
    key: String,
    expected_donor: String,
    batch: i32,
    rounds: i32,
    /// The number of log rows in the last round, and how long it took.
    lag: usize,
    took: Duration,
    /// False if the donor should locate the range's documents again.
    is_located: bool,
    /// Both shards know numbered writes.
    has_numbers: bool,
    /// The number of documents that the recipient's part holds, and the bytes that were pulled for it.
    pub(super) documents: i64,
    pub(super) bytes: i64,
    progress_at: Instant,
}

/// The result of a hand-over.
pub(super) enum HandOver {
    Prepared {
        /// The time in which the donor deleted the range.
        micros: i64,
    },
    /// Writers would have waited longer than allowed.
    TimedOut {
        /// The donor had not yet deleted the range.
        in_delete: bool,
    },
}

/// The rounds of one attempt to catch up.
struct Rounds {
    limit: Option<Duration>,
    count: i32,
    least: usize,
}

impl Rounds {
    /// Called after a round. Some(true): a round like it may be run with writers excluded. Some(false): rounds do not become
    /// smaller. None: another round must follow.
    fn after(&mut self, lag: usize, took: Duration, is_full: bool) -> Option<bool> {
        self.count += 1;
        // A hand-over includes more work than the last round.
        let is_quick = lag == 0 || self.limit.is_none_or(|limit| took <= limit / 4);
        if lag < SMALL_ROUND && is_quick {
            return Some(true);
        }
        let gives_up = if is_full {
            self.count >= MAX_FULL_ROUNDS
        } else {
            let is_smaller = lag < self.least;
            self.least = self.least.min(lag);
            self.count >= MAX_ROUNDS && !is_smaller
        };
        gives_up.then_some(false)
    }
}

impl Copy {
    pub(super) fn new(attempt: Attempt, parts: i64) -> Result<Self> {
        let record = &attempt.record;
        let (key, is_unique) = transaction::run(|| {
            let key = cache::get(&record.namespace)?.key.to_json().to_string();
            Ok((key, indexes::has_unique(record.collection)?))
        })?;
        let expected_donor = recipient::expected_donor(record)?;
        Ok(Self {
            attempt,
            parts,
            is_unique,
            key,
            expected_donor,
            batch: 0,
            rounds: 0,
            lag: 0,
            took: Duration::ZERO,
            is_located: true,
            has_numbers: false,
            documents: 0,
            bytes: 0,
            progress_at: Instant::now(),
        })
    }

    fn note_progress(&mut self) -> Result<()> {
        if self.progress_at.elapsed() < PROGRESS {
            return Ok(());
        }
        self.progress_at = Instant::now();
        transaction::run(|| self.store_progress())
    }

    /// Writes the progress to the catalog, in the caller's transaction.
    pub(super) fn store_progress(&self) -> Result<()> {
        let lag = i64::try_from(self.lag).unwrap_or(i64::MAX);
        record::set_progress(self.attempt.record.id, self.documents, self.bytes, self.rounds, lag)
    }

    /// Sleeps until the average rate does not exceed the limit; 0 is no limit.
    fn throttle(&self, began: Instant, bytes_per_second: u64) {
        if bytes_per_second > 0 {
            let due = Duration::from_secs_f64(self.bytes as f64 / bytes_per_second as f64);
            // A sleep ends early when the latch is set, hence the loop.
            while let Some(ahead) = due.checked_sub(began.elapsed()).filter(|ahead| ahead.as_millis() > 0) {
                sleep_ms(i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX));
            }
        }
    }

    /// Copies the whole range once, at this average rate at most; 0: no limit.
    pub(super) fn clone_range(&mut self, bytes_per_second: u64) -> Result<()> {
        let began = Instant::now();
        self.attempt.begin_load()?;
        let parts = i32::try_from(self.parts).unwrap_or(i32::MAX);
        self.attempt.start_pull(&self.expected_donor, 1)?;
        for part in 1..=parts {
            let pulled = self.attempt.finish_pull()?;
            self.batch = part;
            if part < parts {
                self.attempt.start_pull(&self.expected_donor, part + 1)?;
            }
            if pulled.documents > 0 {
                self.documents += self.attempt.load(&self.key, part, pulled.documents, self.is_unique)?;
                self.bytes += pulled.bytes;
                self.note_progress()?;
                fault::point("move.cloning")?;
                self.throttle(began, bytes_per_second);
            }
        }
        Ok(())
    }

    /// Copies the changes since the last round, or since the clone: at most [`MAX_ROUND`]. With a unique index it copies all of
    /// them, as documents may have exchanged unique values.
    fn round(&mut self) -> Result<()> {
        let began = Instant::now();
        let (applied, _) = self.apply_changes((!self.is_unique).then_some(MAX_ROUND), None)?;
        fault::point("move.applied")?;
        self.forget(&applied)?;
        (self.lag, self.took) = (applied.len(), began.elapsed());
        self.note_progress()
    }

    fn forget(&mut self, applied: &[i64]) -> Result<()> {
        self.is_located &= self.attempt.forget_changes(applied)?;
        self.rounds += 1;
        Ok(())
    }

    /// Reads rows of the log, at most `limit`, with their current documents, and applies them. Returns the rows'
    /// numbers, and whether the deadline was met. If it passes, writers are released, and the round is completed
    /// nevertheless.
    fn apply_changes(&mut self, limit: Option<usize>, deadline: Option<Instant>) -> Result<(Vec<i64>, bool)> {
        self.batch += 1;
        self.attempt.start_changes(&self.expected_donor, self.batch, limit)?;
        let mut in_time = true;
        let migration = self.attempt.record.id;
        let mut finish = |session: &mut ShardSession, donor: &mut ShardSession| -> Result<Vec<RemoteRow>> {
            if let Some(deadline) = deadline.filter(|_| in_time) {
                if let Some(rows) = session.poll(donor::milliseconds_until(deadline))? {
                    return Ok(rows);
                }
                in_time = false;
                donor::resume_writers(donor, migration)?;
            }
            session.finish()
        };
        let pulled = finish(&mut self.attempt.puller, &mut self.attempt.donor)?;
        let numbers = decode_only::<Option<Vec<u8>>, _>("a pull", &pulled)?.unwrap_or_default();
        let applied: Vec<i64> = numbers.as_chunks().0.iter().copied().map(i64::from_be_bytes).collect();
        fault::point("move.pulled")?;
        if !applied.is_empty() {
            self.attempt.start_applying(&self.key, self.batch)?;
            let answer = finish(&mut self.attempt.loader, &mut self.attempt.donor)?;
            self.documents += ApplyChanges::decode(&answer)?;
        }
        Ok((applied, in_time))
    }

    /// Locates the range's documents. Called as late as possible, so that the donor deletes them quickly, and so that the
    /// comparison of counts also detects documents that were inserted without being captured.
    pub(super) fn locate(&mut self) -> Result<()> {
        self.attempt.start_locating()?;
        self.attempt.finish_locating()?;
        self.is_located = true;
        Ok(())
    }

    /// Runs rounds until one is so small that it could be run with writers excluded for at most `limit`; false if rounds do
    /// not become smaller.
    pub(super) fn catch_up(&mut self, limit: Option<Duration>) -> Result<bool> {
        let mut rounds = Rounds { limit, count: 0, least: usize::MAX };
        loop {
            self.round()?;
            // After a full round, the number of remaining changes is unknown.
            let is_full = !self.is_unique && self.lag >= MAX_ROUND;
            if let Some(is_close) = rounds.after(self.lag, self.took, is_full) {
                return Ok(is_close);
            }
        }
    }

    /// Begins the donor's part and excludes all writers to the range, by a lock. The request for the lock blocks later writers. So the lock
    /// is requested only when all writers of the last check have ended, and only for a short time; between attempts changes are copied.
    /// False if there are too many changes.
    pub(super) fn exclude_writers(&mut self, deadline: Instant, limit: Option<Duration>) -> Result<bool> {
        let mut before = Writers::new();
        let mut pause = 5;
        self.has_numbers = self.attempt.have_numbered_writes()?;
        loop {
            // Copied now, so that only later numbered writes must be copied while writers are excluded.
            if self.has_numbers {
                self.attempt.copy_numbered_writes(None)?;
            }
            let now = self.attempt.range_writers()?;
            let some_stay = now.keys().any(|name| before.contains_key(name));
            if !some_stay && self.attempt.try_exclude_writers()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(self.attempt.blocked_by(&now));
            }
            before = now;
            sleep_ms(pause);
            pause = (pause * 2).min(200);
            if !self.catch_up(limit)? {
                return Ok(false);
            }
            if !self.is_located {
                self.locate()?;
            }
        }
    }

    /// Executes the hand-over until both shards have prepared, with writers excluded since `frozen`. If it exceeds `limit` before the
    /// recipient prepares, the donor's part is rolled back, and writers are released. The recipient's part stays: it holds the range as of
    /// a moment after `frozen`, as after any round.
    pub(super) fn hand_over(&mut self, frozen: Instant, limit: Option<Duration>, cluster: i64) -> Result<HandOver> {
        let deadline = limit.map(|limit| frozen + limit);
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        fault::point("move.frozen")?;
        self.attempt.start_delete()?;
        fault::point("move.deleting")?;
        let (applied, in_time) = self.apply_changes(None, deadline)?;
        fault::point("move.last_round")?;
        if !in_time {
            self.forget(&applied)?;
            return Ok(HandOver::TimedOut { in_delete: false });
        }
        let deleted = self.attempt.finish_delete(deadline)?;
        let mut is_complete = deleted.is_some();
        if let Some(deleted) = &deleted {
            self.attempt.hand_over(deleted.documents, self.documents)?;
            is_complete = !self.has_numbers || self.attempt.copy_numbered_writes(deadline)?;
        }
        let Some(deleted) = deleted.as_ref().filter(|_| is_complete && !is_late()) else {
            donor::resume_writers(&mut self.attempt.donor, self.attempt.record.id)?;
            self.forget(&applied)?;
            return Ok(HandOver::TimedOut { in_delete: deleted.is_none() });
        };
        let Attempt { record, donor, loader, .. } = &mut self.attempt;
        donor::set_version(loader, record, record.recipient_version)?;
        loader.prepare(&names::recipient_gid(cluster, record.id))?;
        fault::point("move.recipient_prepared")?;
        donor.prepare(&names::donor_gid(cluster, record.id))?;
        fault::point("move.prepared")?;
        Ok(HandOver::Prepared { micros: deleted.micros })
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    const QUICK: Duration = Duration::from_millis(10);
    const SLOW: Duration = Duration::from_millis(200);

    fn rounds(limit: Option<Duration>) -> Rounds {
        Rounds { limit, count: 0, least: usize::MAX }
    }

    #[pg_test]
    fn a_round_is_close_enough_if_it_is_small_and_quick() {
        let limit = Some(Duration::from_millis(500));
        assert_eq!(rounds(limit).after(0, SLOW, false), Some(true));
        assert_eq!(rounds(limit).after(999, QUICK, false), Some(true));
        assert_eq!(rounds(limit).after(999, SLOW, false), None);
        assert_eq!(rounds(limit).after(1000, QUICK, false), None);
        assert_eq!(rounds(None).after(999, SLOW, false), Some(true));
        assert_eq!(rounds(None).after(1000, QUICK, false), None);
    }

    #[pg_test]
    fn catching_up_ends_when_rounds_do_not_become_smaller() {
        let mut shrinking = rounds(None);
        assert!((0..100).all(|n| shrinking.after(9000 - n, QUICK, false).is_none()));
        assert_eq!(shrinking.after(9000, QUICK, false), Some(false));
        let mut constant = rounds(None);
        let ends: Vec<_> = (0..10).map(|_| constant.after(5000, QUICK, false)).collect();
        assert_eq!(ends.iter().position(|end| *end == Some(false)), Some(9));
        // Up to a thousand full rounds are no reason to give up.
        let mut full = rounds(None);
        assert!((1..1000).all(|_| full.after(MAX_ROUND, QUICK, true).is_none()));
        assert_eq!(full.after(MAX_ROUND, QUICK, true), Some(false));
    }
}
