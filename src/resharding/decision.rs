//! Excludes the writers, compares the numbers of documents, and decides.
//!
//! Writers are excluded twice, each time by the collection's lock, held exclusively on all donors. The lock is
//! requested when new writes wait on the router (see `router::gate`) and earlier ones have ended. The request waits
//! only for a short time, because later writers queue behind it. It is not made while a writer that was seen at the
//! previous check still holds the lock, unless `commit_reshard_collection` lets writers wait.
//!
//! The first time, the donors' snapshots are taken while the recipients equal the donors; the documents are counted in these snapshots
//! after writers go on. The second time is the decision: the last changes are copied, and the copy becomes the collection, in the
//! transaction that excludes the writers.

use super::copying::{Copying, MAX_ROUND};
use super::refused;
use super::sessions::{Blockers, Donor, Recipient, all, blocked_by};
use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::nodes::{call_on, call_on_all, query_on};
use crate::catalog::cluster::settings;
use crate::catalog::collections::layout::{self, Copy};
use crate::migration::names;
use crate::migration::shard::ShardSession;
use crate::migration::stall;
use crate::migration::standbys::{self, Lagging, Standbys};
use crate::pg::error::{Error, Result};
use crate::pg::process::job;
use crate::pg::server::sleep_ms;
use crate::pg::{fault, spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{placements, resharding};
use crate::transactions;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::resharding::State;
use docshard_core::error::sqlstate::LOCK_NOT_AVAILABLE;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{CountDocuments, EndCapture, FindDocument, SetVersion};
use docshard_core::routing::protocol::table::ExcludeWriters;
use docshard_core::sql::param::Param;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Writers are excluded after a round that stored fewer changes than this.
const SMALL_ROUND: usize = 1000;
/// The number of rounds in a row, without writers being excluded, after which writers are considered faster than the copy.
const MAX_ROUNDS: i32 = 10_000;
/// The `lock_timeout` of an exclusion, in milliseconds: below PostgreSQL's `deadlock_timeout`, and short, because later
/// writers queue behind the request.
const QUEUE_MS: i64 = 100;
/// The largest number of log rows of each donor in a round while writers are excluded.
const LAST_ROUND: i64 = 100_000;

/// The same as [`QUEUE_MS`], if writers may wait without a limit.
const PATIENT_QUEUE_MS: i64 = 5_000;
/// Standbys get at most this time to follow before writers are excluded; then changes are copied again.
const MAX_QUICK: Duration = Duration::from_secs(1);
/// How long writers may take to end, if they may wait without a limit: less than a write waits at the gate.
const MAX_DRAIN: Duration = Duration::from_secs(50);

/// Makes new writes wait on the router; false if that is not possible in a short time.
fn close(gate: Tag) -> bool {
    // A write that checks the gate holds the gate's lock for a moment, hence the retries.
    (0..100).any(|_| {
        let closed = lock::try_acquire_for_session(gate, Mode::Exclusive);
        if !closed {
            sleep_ms(1);
        }
        closed
    })
}

/// The purpose of an exclusion of the writers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Compare,
    Decide,
}

/// The time limits of an exclusion of the writers.
#[derive(Clone, Copy)]
struct Patience {
    /// how long the writers may take to end
    drain: Duration,
    /// how long a lock is waited for, in milliseconds
    queue_ms: i64,
    /// how long writers may wait in all; None: no limit
    stall: Option<Duration>,
}

/// How an attempt to compare or decide has ended.
enum Outcome {
    Done,
    /// it will be tried again
    PutOff,
}

impl Copying {
    /// Compares, and then decides; tries until the deadline. Returns for how long writers were excluded by the decision, in milliseconds.
    pub(super) fn finish(&mut self, deadline: Instant) -> Result<i64> {
        self.repeat(Purpose::Compare, deadline)?;
        fault::point("reshard.verified")?;
        self.repeat(Purpose::Decide, deadline)
    }

    /// Catches up and attempts `purpose`, again and again until an attempt succeeds or the deadline has passed. Returns
    /// for how long the successful attempt excluded writers, in milliseconds.
    fn repeat(&mut self, purpose: Purpose, deadline: Instant) -> Result<i64> {
        let mut attempts = 0;
        let mut before = Blockers::new();
        loop {
            self.catch_up(deadline)?;
            if purpose == Purpose::Decide {
                self.sessions.copy_numbered_writes(self.change.of.id, None)?;
            }
            fault::point("reshard.caught_up")?;
            let may_stall = transaction::run(|| resharding::may_stall(self.change.id))?;
            let now = self.sessions.writers(self.change.of.id)?;
            let some_stay = now.keys().any(|writer| before.contains_key(writer));
            // Writers would be excluded in vain.
            let lagging = if purpose == Purpose::Decide { self.lagging_standby()? } else { None };
            if lagging.is_none() && (!some_stay || may_stall) {
                if purpose == Purpose::Decide {
                    // This is a transaction of its own, so a later attempt gets another version even if this attempt is
                    // rolled back.
                    self.version = transaction::run(|| change::next_version(self.change.copy.id))?;
                }
                let began = Instant::now();
                let patience = match stall::limit().filter(|_| !may_stall) {
                    Some(limit) => Patience { drain: limit / 2, queue_ms: QUEUE_MS, stall: Some(limit) },
                    None => {
                        let drain = deadline.saturating_duration_since(began).min(MAX_DRAIN);
                        Patience { drain, queue_ms: PATIENT_QUEUE_MS, stall: None }
                    }
                };
                if let Outcome::Done = self.attempt(purpose, patience)? {
                    return Ok(i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX));
                }
                attempts += 1;
                transaction::run(|| resharding::set_attempts(self.change.id, attempts))?;
            }
            if Instant::now() >= deadline {
                if let Some(lagging) = lagging {
                    return Err(lagging.gave_way());
                }
                return Err(match (&self.refused, now.is_empty(), self.blocking.is_empty()) {
                    (Some(key), ..) => refused::duplicate(&self.change.of.namespace, Some(key)),
                    (None, true, true) => gave_up(),
                    (None, true, false) => blocked_by(&self.blocking),
                    (None, false, _) => blocked_by(&now),
                });
            }
            before = now;
            sleep_ms((20 * i64::from(attempts + 1)).min(500));
        }
    }

    /// Runs rounds until one stores few documents. Documents that are refused again and again do not count: [`Copying::copy_the_rest`]
    /// finds out whether they are duplicates.
    fn catch_up(&mut self, deadline: Instant) -> Result<()> {
        for _ in 0..MAX_ROUNDS {
            let (copied, refused) = self.round(MAX_ROUND)?;
            self.store_progress(false)?;
            let stored = copied.saturating_sub(refused.len());
            self.refused = refused.into_iter().next();
            if stored < SMALL_ROUND {
                return Ok(());
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(error!(Kind::OperationFailed, "the collection is written to faster than its changes can be copied")
            .with_hint("Try again at a time of fewer writes."))
    }

    /// Excludes the writers, copies the last changes, and compares or decides.
    fn attempt(&mut self, purpose: Purpose, patience: Patience) -> Result<Outcome> {
        let gate = Tag::Gate(self.change.of.id);
        if !close(gate) {
            return Ok(Outcome::PutOff);
        }
        let outcome = transaction::guarded(|| self.attempt_closed(purpose, patience));
        lock::release_for_session(gate, Mode::Exclusive);
        outcome
    }

    /// Like [`Copying::attempt`], with the gate closed: new writes wait at the router.
    fn attempt_closed(&mut self, purpose: Purpose, patience: Patience) -> Result<Outcome> {
        let frozen = Instant::now();
        while !self.sessions.writers(self.change.of.id)?.is_empty() {
            if frozen.elapsed() >= patience.drain {
                return Ok(Outcome::PutOff);
            }
            sleep_ms(1);
        }
        let tried = transaction::run(|| {
            self.exclude_writers(patience.queue_ms)?;
            fault::point("reshard.frozen")?;
            let deadline = patience.stall.map(|stall| frozen + stall);
            self.copy_the_rest(deadline)?;
            fault::point("reshard.last_round")?;
            match purpose {
                Purpose::Compare => self.take_snapshots(),
                Purpose::Decide => self.decide(frozen, deadline),
            }
        });
        match tried {
            Ok(()) if purpose == Purpose::Compare => self.compare().map(|()| Outcome::Done),
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.sqlstate == LOCK_NOT_AVAILABLE => {
                // Statements that were started on other shards at the same time may still run.
                self.sessions.all().for_each(ShardSession::cancel);
                if purpose == Purpose::Compare {
                    // Donors may have begun the transactions that hold their snapshots.
                    self.sessions.donors.iter_mut().try_for_each(|donor| donor.session.execute("ROLLBACK"))?;
                }
                let application = names::application(transaction::run(cluster_id)?, self.change.id);
                self.blocking = self.sessions.users(self.change.of.id, &application)?;
                Ok(Outcome::PutOff)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the locks of the collection at the router and at all donors, in the caller's transaction.
    fn exclude_writers(&self, queue_ms: i64) -> Result<()> {
        // The timeouts are set in this backend, and below in this transaction's sessions at the shards, which are idle
        // while the last changes are copied.
        let timeout = "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true) \
                       || pg_catalog.set_config('lock_timeout', $1, true)";
        let brief = queue_ms.to_string();
        spi::query(timeout, &[Param::Text(&brief)])?;
        let locked = change::lock(&self.change.of.namespace)?;
        if locked.id != self.change.of.id {
            return Err(error!(Kind::ConflictingOperationInProgress, "the collection was replaced meanwhile"));
        }
        for shard in self.nodes()? {
            query_on::<String>(&*cache::shard(shard)?, timeout, &[Param::Text(&brief)])?;
        }
        call_on_all(&self.change.donors(), &ExcludeWriters { collection: self.change.of.id })
    }

    /// All shards that the decision changes.
    fn nodes(&self) -> Result<BTreeSet<ShardId>> {
        Ok(placements::shards(self.change.of.id)?.into_iter().chain(self.change.layout.shards()).collect())
    }

    /// Copies all changes, while nobody writes.
    fn copy_the_rest(&mut self, deadline: Option<Instant>) -> Result<()> {
        let mut last: Option<usize> = None;
        loop {
            let (copied, refused) = self.round(LAST_ROUND)?;
            if copied == 0 {
                return Ok(());
            }
            // This round stored nothing and had as many changes as the one before. Nobody writes, so the refused
            // documents conflict with documents that stay: they are duplicates.
            if last == Some(copied) && refused.len() == copied {
                return Err(refused::duplicate(&self.change.of.namespace, refused.first()));
            }
            last = Some(copied);
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(too_late());
            }
        }
    }

    /// The donors begin transactions whose snapshots show the documents that the recipients have.
    fn take_snapshots(&mut self) -> Result<()> {
        for Donor { session, .. } in &mut self.sessions.donors {
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
            // The first statement takes the snapshot.
            FindDocument(all(self.change.of.id)).call(session)?;
        }
        Ok(())
    }

    /// Compares the number of documents that the recipients have stored with that of the donors' snapshots.
    fn compare(&mut self) -> Result<()> {
        let count = CountDocuments(all(self.change.of.id));
        for Donor { session, .. } in &mut self.sessions.donors {
            count.start(session)?;
        }
        let mut there = 0;
        for Donor { session, .. } in &mut self.sessions.donors {
            there += CountDocuments::decode(&session.finish()?)?;
            session.execute("COMMIT")?;
        }
        if there == self.documents || fault::is_off("count") {
            return Ok(());
        }
        // Documents of two donors with the same new key replace each other in every round, so fewer are stored.
        if self.documents < there
            && let Some(key) = &self.first_refused
        {
            return Err(refused::duplicate(&self.change.of.namespace, Some(key)));
        }
        Err(error!(Kind::OperationFailed, "{} documents arrived of {there}; nothing was changed", self.documents)
            .with_hint("A client may have written to the collection's tables directly."))
    }

    /// Makes the copy the collection, in the caller's transaction, which excludes the writers.
    fn decide(&mut self, frozen: Instant, deadline: Option<Instant>) -> Result<()> {
        if !self.sessions.copy_numbered_writes(self.change.of.id, deadline)? {
            return Err(too_late());
        }
        self.await_standbys(deadline)?;
        let change = &self.change;
        for shard in change.donors() {
            let capture = EndCapture { collection: change.of.id, migration: change.id };
            let shard = cache::shard(shard)?;
            // Without the capture, changes may be missing: another process has deleted it because it considered this one dead.
            if call_on(&shard, &capture)?.len() != 1 {
                return Err(error!(
                    Kind::OperationFailed,
                    "shard \"{}\" does not capture the collection any more; nothing was changed", shard.name
                )
                .with_hint("Another router may work on this cluster's shards."));
            }
        }
        transactions::decides_change(change.id);
        layout::replace(&change.of, &change.copy, &change.layout, self.version)?;
        let stall = i64::try_from(frozen.elapsed().as_millis()).unwrap_or(i64::MAX);
        resharding::set_stall(change.id, stall, self.documents, self.rounds)?;
        job::check_wanted()?;
        if !resharding::advance(change.id, State::Running, State::Committed)? {
            return Err(super::abort::aborted());
        }
        let details = json!({"resharding": change.id, "documents": self.documents, "stallMillis": stall});
        let command = resharding::get(change.id)?.command;
        change::log(&format!("{command}.end"), Some(&change.of.namespace), &details)?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(too_late());
        }
        fault::point("reshard.deciding")
    }

    /// Waits until what the recipients have survives a failover to their standbys, as a move does.
    ///
    /// INVARIANT: the router's own database gets this attempt's version of the copy after its last document, and before
    /// the decision. The other shards get the version by the decision. So a standby of the router that lacks the
    /// decision can see whether it has all documents of its part: see [`super::restored`].
    fn await_standbys(&mut self, deadline: Option<Instant>) -> Result<()> {
        for Recipient { shard, loader, .. } in &mut self.sessions.recipients {
            // The commit of `SetVersion` waits until WAL is flushed, which includes all earlier commits.
            loader.execute("SET synchronous_commit = on")?;
            let Copy { id: collection, token, version, .. } = self.change.copy;
            let set = if cache::shard(*shard)?.is_local() {
                let before = std::mem::replace(&mut self.local_version, self.version);
                SetVersion { collection, token, before, version: self.version }
            } else {
                SetVersion { collection, token, before: version, version }
            };
            set.call(loader)?;
            loader.execute("SET synchronous_commit = off")?;
        }
        if !settings::boolean(standbys::SETTING)? {
            return Ok(());
        }
        let deadline = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
        self.wait_for_standbys(false, deadline)?.map_or(Ok(()), |lagging| Err(lagging.gave_way()))
    }

    /// Returns a standby that does not follow closely, or has disconnected, although writers are not excluded.
    fn lagging_standby(&mut self) -> Result<Option<Lagging>> {
        if !transaction::run(|| settings::boolean(standbys::SETTING))? {
            return Ok(None);
        }
        let quick = stall::limit().unwrap_or(MAX_QUICK).min(MAX_QUICK);
        self.wait_for_standbys(true, Instant::now() + quick)
    }

    fn wait_for_standbys(&mut self, must_stay: bool, deadline: Instant) -> Result<Option<Lagging>> {
        for Recipient { puller, standbys, .. } in &mut self.sessions.recipients {
            if let Standbys::Lag(lagging) = standbys.wait(puller, must_stay, deadline)? {
                return Ok(Some(lagging));
            }
        }
        Ok(None)
    }
}

fn too_late() -> Error {
    Error::new(Kind::LockTimeout, "writers would have waited for too long")
}

fn gave_up() -> Error {
    error!(
        Kind::ReshardingCriticalSectionTimeout,
        "gave up: writers or readers would have waited for longer than docshard.max_write_stall"
    )
    .with_hint(
        "Try again at a time of fewer writes, raise docshard.max_write_stall or the option commitTimeoutMS, or call \
             docshard.commit_reshard_collection() while it runs: it lets writers wait.",
    )
}
