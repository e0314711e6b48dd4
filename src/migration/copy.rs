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
use super::recipient::{self, Expected};
use super::record::{self, Record};
use super::shard::Remote;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::transaction;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A round of so few keys is quick enough to be run with writers excluded.
const SMALL_ROUND: usize = 200;
/// After so many rounds it is taken for granted that they do not become smaller.
const MANY_ROUNDS: i32 = 10;
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
    lag: usize,
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
        record::note_progress(self.record.id, self.documents, self.bytes, self.rounds, lag)
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

    /// Copies what has changed since the last round, or the clone.
    fn round(&mut self) -> Result<()> {
        let applied = self.apply_changes()?;
        fault::point("move.applied")?;
        donor::forget_changes(self.donor, self.record, &applied)?;
        self.rounds += 1;
        self.lag = applied.len();
        self.note()
    }

    /// Reads the log with the present documents, and applies it; returns the numbers of the log's rows.
    pub(super) fn apply_changes(&mut self) -> Result<Vec<i64>> {
        self.batch += 1;
        let applied = recipient::pull_changes(self.puller, self.record, &self.sender, self.batch)?;
        fault::point("move.pulled")?;
        if !applied.is_empty() {
            self.documents += recipient::apply_changes(self.recipient, &self.expected, self.batch)?;
        }
        Ok(applied)
    }

    /// Rounds until one is small, or until they do not become smaller.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let mut least = usize::MAX;
        loop {
            self.round()?;
            if self.lag < SMALL_ROUND || (self.rounds >= MANY_ROUNDS && self.lag >= least) {
                return Ok(());
            }
            least = least.min(self.lag);
        }
    }

    /// Begins T and excludes all writers to the range. Who queues for that makes later writers queue behind it, so it is
    /// tried only while no writer is there that was there before, and given up soon; changes are copied meanwhile.
    pub(super) fn exclude_writers(&mut self, deadline: Instant) -> Result<()> {
        let mut before: BTreeMap<String, Option<i32>> = BTreeMap::new();
        let mut pause = 5;
        loop {
            let now = donor::writers_to_range(self.donor, self.record)?;
            let stay = now.keys().any(|name| before.contains_key(name));
            if !stay && donor::try_freeze(self.donor, self.record)? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(donor::gave_up(self.donor, &now));
            }
            before = now;
            sleep_ms(pause);
            pause = (pause * 2).min(200);
            self.round()?;
        }
    }
}
