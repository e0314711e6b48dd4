//! Copying a range while others write to it: the clone, and rounds that catch up with what changed meanwhile.
//!
//! S pulls and commits into the staging table, part by part; R loads one while S pulls the next. No batch and no
//! round holds a snapshot on the donor for longer than it reads.
//!
//! INVARIANT: after a round, R holds the range as the donor had it in the round's snapshot: what was read before and
//! changed since has its key in the log, as the log began before the first read. Each round reads log and documents in
//! one statement, and forgets exactly the log's rows that it has applied. So a round with all writers excluded makes R
//! equal to the donor.

use super::donor;
use super::names;
use super::recipient::{self, Expected};
use super::record::{self, Record};
use super::shard::Remote;
use super::sides;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::transaction;
use crate::protocol::Call;
use crate::protocol::migration::ApplyChanges;
use crate::remote::Row;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A round of so few keys may be run with writers excluded, if it is quick enough.
const SMALL_ROUND: usize = 1000;
/// So many rows of the log are copied at once, so that a round's documents take little memory and their transaction is short.
const LARGEST_ROUND: usize = 10_000;
/// After so many rounds it is taken for granted that they do not become smaller.
const MANY_ROUNDS: i32 = 10;
/// So many full rounds are enough: writers are quicker.
const MOST_ROUNDS: i32 = 1000;
/// How often progress is noted in the catalog.
const NOTE: Duration = Duration::from_millis(500);

/// A copy under way.
pub(super) struct Copy<'a> {
    record: &'a Record,
    end: Option<&'a [u8]>,
    /// T, as long as it has not begun
    pub(super) donor: &'a mut Remote,
    /// R
    pub(super) recipient: &'a mut Remote,
    /// S
    puller: &'a mut Remote,
    /// how many parts the range has
    parts: i64,
    /// the recipient's table has a unique index beside its primary key
    unique: bool,
    expected: Expected<'a>,
    /// what the donor must say of itself
    sender: String,
    batch: i32,
    rounds: i32,
    /// the rows of the log in the last round, and how long that took
    lag: usize,
    took: Duration,
    /// what the donor has noted of the range's documents is of use
    noted_well: bool,
    /// documents that R holds, and the bytes that came for them
    pub(super) documents: i64,
    pub(super) bytes: i64,
    noted: Instant,
}

impl<'a> Copy<'a> {
    pub(super) fn new(
        record: &'a Record,
        end: Option<&'a [u8]>,
        donor: &'a mut Remote,
        recipient: &'a mut Remote,
        puller: &'a mut Remote,
        parts: i64,
        unique: bool,
    ) -> Result<Self> {
        let noted = Instant::now();
        let expected = Expected::of(record, end)?;
        let sender = recipient::expected_donor(record)?;
        Ok(Self {
            record,
            end,
            donor,
            recipient,
            puller,
            parts,
            unique,
            expected,
            sender,
            batch: 0,
            rounds: 0,
            lag: 0,
            took: Duration::ZERO,
            noted_well: true,
            documents: 0,
            bytes: 0,
            noted,
        })
    }

    fn note(&mut self) -> Result<()> {
        if self.noted.elapsed() < NOTE {
            return Ok(());
        }
        self.noted = Instant::now();
        self.note_now()
    }

    /// Notes in the catalog how far it is.
    pub(super) fn note_now(&self) -> Result<()> {
        transaction::run(|| self.note_size())
    }

    /// As [`Copy::note_now`], in the caller's transaction.
    pub(super) fn note_size(&self) -> Result<()> {
        let lag = i64::try_from(self.lag).unwrap_or(i64::MAX);
        record::set_progress(self.record.id, self.documents, self.bytes, self.rounds, lag)
    }

    /// Waits for as long as the copy is quicker than that; 0 is no limit.
    fn throttle(&self, began: Instant, bytes_per_second: u64) {
        if bytes_per_second > 0 {
            let due = Duration::from_secs_f64(self.bytes as f64 / bytes_per_second as f64);
            // A sleep ends when anything sets the latch.
            while let Some(ahead) = due.checked_sub(began.elapsed()).filter(|ahead| ahead.as_millis() > 0) {
                sleep_ms(i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX));
            }
        }
    }

    /// Copies the whole range once, at most so many bytes a second on average; 0 is no limit.
    pub(super) fn clone_range(&mut self, bytes_per_second: u64) -> Result<()> {
        let began = Instant::now();
        recipient::begin_load(self.recipient, self.record, self.end)?;
        let parts = i32::try_from(self.parts).unwrap_or(i32::MAX);
        recipient::start_pull(self.puller, self.record, &self.sender, 1)?;
        for part in 1..=parts {
            let pulled = recipient::finish_pull(self.puller)?;
            self.batch = part;
            if part < parts {
                recipient::start_pull(self.puller, self.record, &self.sender, part + 1)?;
            }
            if pulled.documents > 0 {
                self.documents += recipient::load(self.recipient, &self.expected, part, pulled.documents, self.unique)?;
                self.bytes += pulled.bytes;
                self.note()?;
                fault::point("move.cloning")?;
                self.throttle(began, bytes_per_second);
            }
        }
        Ok(())
    }

    /// Copies what has changed since the last round, or the clone: all of it, or as much as is copied at once. Some of the
    /// log must not be applied without the rest where unique values may have changed places.
    fn round(&mut self) -> Result<()> {
        let began = Instant::now();
        let most = (!self.unique).then_some(LARGEST_ROUND);
        let (applied, _) = self.apply_changes(most, None)?;
        fault::point("move.applied")?;
        self.forget(&applied)?;
        (self.lag, self.took) = (applied.len(), began.elapsed());
        self.note()
    }

    fn forget(&mut self, applied: &[i64]) -> Result<()> {
        self.noted_well &= donor::forget_changes(self.donor, self.record, applied)?;
        self.rounds += 1;
        Ok(())
    }

    /// Reads the log with the present documents, at most so many rows of it, and applies it; returns the numbers of the
    /// log's rows. If that is not over by the deadline, writers are let go on, and the rest is done without excluding
    /// them; then the answer is also false.
    fn apply_changes(&mut self, most: Option<usize>, deadline: Option<Instant>) -> Result<(Vec<i64>, bool)> {
        self.batch += 1;
        let mut in_time = true;
        let Self { record, donor, recipient, puller, expected, sender, batch, .. } = self;
        let mut finish = |session: &mut Remote| -> Result<Vec<Row>> {
            if let Some(deadline) = deadline.filter(|_| in_time) {
                if let Some(rows) = session.poll(donor::milliseconds_until(deadline))? {
                    return Ok(rows);
                }
                in_time = false;
                donor::resume_writers(donor, record)?;
            }
            session.finish()
        };
        recipient::start_changes(puller, record, sender, *batch, most)?;
        let applied = recipient::pulled_changes(&finish(puller)?);
        fault::point("move.pulled")?;
        if !applied.is_empty() {
            recipient::start_applying(recipient, expected, *batch)?;
            self.documents += ApplyChanges::decode(&finish(recipient)?)?;
        }
        Ok((applied, in_time))
    }

    /// Notes where the range's documents are, as late as can be, so that T removes them quickly and the comparison of counts
    /// also tells of documents that came without being captured.
    pub(super) fn note_leaving(&mut self) -> Result<()> {
        donor::start_noting(self.donor, self.record, self.end)?;
        donor::finish_noting(self.donor)?;
        self.noted_well = true;
        Ok(())
    }

    /// True if a round like the last one may be run with writers excluded.
    fn is_small(&self, limit: Option<Duration>) -> bool {
        match limit {
            // Other things have to be done in that time, too.
            Some(limit) => self.lag == 0 || (self.lag < SMALL_ROUND && self.took <= limit / 4),
            None => self.lag < SMALL_ROUND,
        }
    }

    /// Rounds until one is so small that it could be run with writers excluded for at most `limit`; false if rounds do not
    /// become smaller.
    pub(super) fn catch_up(&mut self, limit: Option<Duration>) -> Result<bool> {
        let mut least = usize::MAX;
        let mut rounds = 0;
        loop {
            self.round()?;
            rounds += 1;
            if self.is_small(limit) {
                return Ok(true);
            }
            // A full round says nothing of what was left.
            if self.unique || self.lag < LARGEST_ROUND {
                if rounds >= MANY_ROUNDS && self.lag >= least {
                    return Ok(false);
                }
                least = least.min(self.lag);
            } else if rounds >= MOST_ROUNDS {
                return Ok(false);
            }
        }
    }

    /// Begins T and excludes all writers to the range. Who queues for that makes later writers queue behind it, so it is
    /// tried only while no writer is there that was there before, and given up soon; changes are copied meanwhile. False
    /// if these become too many.
    pub(super) fn exclude_writers(&mut self, deadline: Instant, limit: Option<Duration>) -> Result<bool> {
        let mut before: BTreeMap<String, Option<i32>> = BTreeMap::new();
        let mut pause = 5;
        loop {
            let now = donor::writers_to_range(self.donor, self.record)?;
            let stay = now.keys().any(|name| before.contains_key(name));
            if !stay && donor::try_freeze(self.donor, self.record)? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(donor::gave_up(self.donor, &now));
            }
            before = now;
            sleep_ms(pause);
            pause = (pause * 2).min(200);
            if !self.catch_up(limit)? {
                return Ok(false);
            }
            if !self.noted_well {
                self.note_leaving()?;
            }
        }
    }

    /// The hand-over up to where both shards have prepared, with writers excluded since `frozen`. False if that takes more
    /// than `limit`: then writers go on, T is rolled back, and R holds the range as of some moment since, as it does after
    /// any round. Only what is done before R prepares is limited.
    pub(super) fn hand_over(&mut self, frozen: Instant, limit: Option<Duration>, cluster: i64) -> Result<HandOver> {
        let deadline = limit.map(|limit| frozen + limit);
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let record = self.record;
        fault::point("move.frozen")?;
        donor::start_delete(self.donor, record, self.end)?;
        fault::point("move.deleting")?;
        let (applied, in_time) = self.apply_changes(None, deadline)?;
        fault::point("move.last_round")?;
        if !in_time {
            self.forget(&applied)?;
            return Ok(HandOver::Late { removing: false });
        }
        let removed = donor::finish_delete(self.donor, deadline)?;
        let late = match &removed {
            None => true,
            Some(removed) => {
                donor::hand_over(self.donor, record, removed, self.documents)?;
                is_late()
            }
        };
        if late {
            donor::resume_writers(self.donor, record)?;
            self.forget(&applied)?;
            return Ok(HandOver::Late { removing: removed.is_none() });
        }
        donor::set_version(self.recipient, record, record.recipient_version)?;
        sides::prepare(self.recipient, &names::recipient_gid(cluster, record.id))?;
        fault::point("move.recipient_prepared")?;
        sides::prepare(self.donor, &names::donor_gid(cluster, record.id))?;
        fault::point("move.prepared")?;
        Ok(HandOver::Prepared { micros: removed.map_or(0, |removed| removed.micros) })
    }
}

/// How a hand-over ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// both shards have prepared
    Prepared {
        /// how long the donor took to remove the range's documents
        micros: i64,
    },
    /// writers would have waited for too long
    Late {
        /// the donor had not yet removed the range's documents
        removing: bool,
    },
}
