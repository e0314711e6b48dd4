//! The balancer: runs in a database's worker, measures chunks, asks the policy (`docshard_core::cluster::balancer`), and splits, moves
//! and merges chunks.
//!
//! # A round
//! 1. Unfinished moves are recovered, also while the balancer is off.
//! 2. The catalog is read, and tables that have changed according to PostgreSQL's statistics are measured. If the setting `balancer_mode`
//!    is `load`, the load of chunks is measured, too ([`load`]). A shard that fails is skipped. Then the policy plans.
//! 3. If it plans splits, the round only splits. A chunk with only one key is marked jumbo. Hot chunks are split at the median of their
//!    accesses.
//! 4. Otherwise moves: they run in parallel if no two of them share a shard ([`moving`]), until the policy has no more moves. A chunk that
//!    moves for evenness is measured exactly before. If the estimate was wrong, and after each move, the policy is asked again.
//! 5. If there is nothing to split or move: neighbours that have been tiny for `merge_delay_s` are merged.
//!
//! Each step (a split, move or merge) commits by itself, so a later error does not undo it. INVARIANTS:
//! * After an error a shard or a collection *rests*: it is skipped for a while ([`backoff`]), and the others are served. If a move fails
//!   although both shards can be reached, only its combination of collection, donor and recipient rests; if this happens to many pairs of
//!   shards, the whole collection does. A shard that does not answer is also skipped (`remote::hung`). For a resting shard's chunks the
//!   last measured sizes are used.
//! * While steps run this process holds `Tag::Worker(STEP)`; it begins none while a session holds `Tag::Worker(STOP)`, nor while
//!   the balancer is off. So a session that takes STOP and then gets STEP knows that nothing moves.
//! * A chunk that was moved is not moved again for [`PIN`], or until shards or zones change.

mod backoff;
mod compliance;
pub mod control;
mod load;
mod measured;
mod moving;
mod steps;
mod view;

use crate::catalog::cluster::settings;
use crate::catalog::collections::sizes::{self, COUNTED_OFTEN_MB, Collection};
use crate::migration;
use crate::pg::error::{Error, Result};
use crate::pg::{process, transaction};
use crate::remote::hung;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::balancer_state;
use backoff::Backoff;
pub use compliance::collection_status;
use control::STEP;
use docshard_core::cluster::balancer::{self as policy, Cut};
use docshard_core::cluster::chunk_map::ShardId;
use measured::Measured;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use view::{Exceptions, Goal, View};

/// The time for which a moved chunk is not moved again.
const PIN: Duration = Duration::from_secs(600);
/// The time for which the measurements of a round are used.
const FRESH: Duration = Duration::from_secs(30);
/// After failures that together took this time, a round measures no more.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

pub struct RoundOutcome {
    /// The next round should begin at once.
    pub again: bool,
    pub failed: bool,
    /// The pause before the next round; None: the usual interval.
    pub rest: Option<Duration>,
}

/// The balancer's state between rounds, which need not survive a restart.
#[derive(Debug, Default)]
pub struct Balancer {
    shard_backoff: Backoff<ShardId>,
    /// Shards that do not answer this worker.
    silent: HashSet<ShardId>,
    collection_backoff: Backoff<i32>,
    /// By collection, donor and recipient.
    pair_backoff: Backoff<(i32, ShardId, ShardId)>,
    pinned: HashMap<(i32, Vec<u8>), Instant>,
    goal: Goal,
    paused_until: Option<Instant>,
    measured: Measured,
    loads: load::Measured,
    /// The time since which a chunk has been tiny.
    tiny: HashMap<(i32, Vec<u8>), Instant>,
    /// The resting shards and collections, for `balancer_status()`.
    resting: serde_json::Value,
    failed: bool,
    /// This round was neither skipped (the balancer is off, or pauses) nor ended early by an error. Errors of single steps set `failed`.
    is_complete: bool,
}

impl Balancer {
    /// Runs one round, outside any transaction. Returns no errors, but logs them.
    pub fn round(&mut self) -> RoundOutcome {
        (self.failed, self.is_complete) = (false, false);
        self.report_silence();
        let again = self.work().unwrap_or_else(|error| {
            self.report_error(&error, "");
            false
        });
        self.report_silence();
        let resting = self.all_resting();
        let is_healthy = self.is_complete && !self.failed && resting.as_array().is_none_or(Vec::is_empty);
        if let Err(error) = transaction::run(|| balancer_state::set_round(again, &resting, is_healthy)) {
            pgrx::log!("docshard balancer: {}", error.message);
        }
        let rest = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
        RoundOutcome { again: again && rest.is_none(), failed: self.failed, rest }
    }

    /// Ends the pauses after failed moves, because an administrator has changed something. Shards and collections that rest go on resting.
    pub fn hasten(&mut self) {
        self.pair_backoff.hasten();
    }

    fn measure_loads(&mut self, view: &mut View) {
        let asked: Vec<_> = view.shards.iter().filter(|shard| !self.is_resting(&shard.id)).cloned().collect();
        if self.loads.measure(view, &asked) {
            let delay = transaction::run(|| settings::integer("load_delay_s")).unwrap_or_default();
            let cluster = self.describe(view, &|_| false);
            self.loads.note(&cluster, Duration::from_secs(delay.unsigned_abs()));
        }
    }

    fn work(&mut self) -> Result<bool> {
        if let Err(error) = migration::recovery::recover() {
            self.report_error(&error, "recovering moves: ");
        }
        if !transaction::run(control::may_work)? {
            return Ok(false);
        }
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return Ok(true);
        }
        self.paused_until = None;
        self.pinned.retain(|_, since| since.elapsed() < PIN);
        let mut view = transaction::run(View::load)?;
        let goal = view.goal();
        if self.goal != goal {
            self.pinned.clear();
            self.goal = goal;
        }
        if view.shards.len() < 2 || view.collections.is_empty() {
            (self.is_complete, self.resting) = (true, serde_json::Value::Null);
            return Ok(false);
        }
        self.measure(&mut view);
        self.measure_loads(&mut view);
        let plan = policy::plan(&self.describe(&view, &|_| false));
        let done = if !plan.splits.is_empty() {
            Ok(self.split(&view, &plan.splits))
        } else if plan.moves.is_empty() {
            self.merge(&view, &plan.merges)
        } else {
            self.balance(&mut view, plan.moves)
        };
        self.resting = self.resting_after_errors(&view);
        self.is_complete = done.is_ok();
        done
    }

    /// Merges the chunks that have been tiny for `merge_delay_s`. True if any were merged.
    fn merge(&mut self, view: &View, merges: &[policy::Merge]) -> Result<bool> {
        let delay = transaction::run(|| settings::integer("merge_delay_s"))?;
        let delay = Duration::from_secs(delay.unsigned_abs());
        let before = std::mem::take(&mut self.tiny);
        let mut done = false;
        for merge in merges {
            let collection = &view.collections[merge.collection];
            // The present sizes of a resting shard's chunks are unknown.
            let chunks = &collection.chunks[merge.chunks.clone()];
            if chunks.iter().any(|chunk| self.is_resting(&chunk.shard))
                || self.collection_backoff.is_resting(&collection.id)
            {
                continue;
            }
            let mut since = |chunk: &sizes::Chunk| {
                let name = (collection.id, chunk.min.clone());
                let since = before.get(&name).copied().unwrap_or_else(Instant::now);
                self.tiny.insert(name, since);
                since.elapsed() >= delay
            };
            let settled: Vec<bool> = chunks.iter().map(&mut since).collect();
            let mut start = 0;
            for run in settled.chunk_by(|one, next| one == next) {
                let chunks = &chunks[start..start + run.len()];
                start += run.len();
                if !run[0] || chunks.len() < 2 {
                    continue;
                }
                let Some(_step) = Step::begin() else { return Ok(done) };
                match steps::merge(collection, chunks) {
                    Ok(()) => done = true,
                    Err(error) => self.collection_failed(collection, &error, "merging chunks of"),
                }
            }
        }
        Ok(done)
    }

    /// Reports in `balancer_status()` which shards have stopped or resumed answering this worker.
    fn report_silence(&mut self) {
        for change in hung::changes() {
            let alarm = format!("shard \"{}\" does not answer: ", change.shard);
            let stored = transaction::run(|| match &change.error {
                Some(why) => balancer_state::set_error(&format!("{alarm}{why}")),
                None => balancer_state::clear_error(&alarm),
            });
            if let Err(error) = stored {
                pgrx::log!("docshard balancer: {}", error.message);
            }
        }
    }

    /// The shards that do not answer this worker, followed by the other resting shards and collections.
    fn all_resting(&self) -> serde_json::Value {
        let silent = hung::silent();
        let is_other = |entry: &&serde_json::Value| {
            entry["shard"].as_str().is_none_or(|shard| silent.iter().all(|(silent, _)| silent != shard))
        };
        let others = self.resting.as_array().into_iter().flatten().filter(is_other).cloned();
        let silent = silent.iter().map(|(shard, why)| serde_json::json!({"shard": shard, "error": why}));
        silent.chain(others).collect()
    }

    /// True if the shard does not answer, or rests after an error.
    fn is_resting(&self, shard: &ShardId) -> bool {
        self.silent.contains(shard) || self.shard_backoff.is_resting(shard)
    }

    /// Determines which shards do not answer this worker.
    fn find_silent(&mut self, view: &View) {
        self.silent = view.shards.iter().filter(|shard| hung::is_silent(&shard.name)).map(|shard| shard.id).collect();
    }

    /// Returns the shards, collections and pairs of shards that rest after an error.
    fn resting_after_errors(&self, view: &View) -> serde_json::Value {
        let shards = view.shards.iter().filter(|shard| self.shard_backoff.is_resting(&shard.id));
        let shards =
            shards.map(|shard| serde_json::json!({"shard": shard.name, "error": self.shard_backoff.error(&shard.id)}));
        let collections =
            view.collections.iter().filter(|collection| self.collection_backoff.is_resting(&collection.id));
        let collections = collections.map(|collection| {
            serde_json::json!({"namespace": collection.namespace, "error": self.collection_backoff.error(&collection.id)})
        });
        let name = |id: ShardId| view.shards.iter().find(|shard| shard.id == id).map(|shard| shard.name.as_str());
        let pairs = self.pair_backoff.resting().filter_map(|pair @ &(id, from, to)| {
            let collection = view.collections.iter().find(|collection| collection.id == id)?;
            let (donor, recipient) = (name(from)?, name(to)?);
            Some(serde_json::json!({
                "namespace": collection.namespace, "donor": donor, "recipient": recipient, "error": self.pair_backoff.error(pair),
            }))
        });
        shards.chain(collections).chain(pairs).collect()
    }

    /// The pause after a move: the setting `pause_ms`, or longer if copying `bytes` in `took` exceeded the rate limit.
    fn pause(bytes: u64, took: Duration) -> Result<Duration> {
        transaction::run(|| {
            let rate = settings::integer("throttle_mb_per_s")?.unsigned_abs() << 20;
            let seconds = if rate == 0 { 0.0 } else { bytes as f64 / rate as f64 };
            let throttled = Duration::from_secs_f64(seconds).saturating_sub(took);
            Ok(throttled.max(Duration::from_millis(settings::integer("pause_ms")?.unsigned_abs())))
        })
    }

    /// Measures changed tables, on all shards at once; if that fails, one by one, to find the shard that failed.
    ///
    /// A role that may write to collections can lock their tables. So a round measures no more when failures have taken [`LONGEST_WAIT`]
    /// together, and a collection that could not be measured is left out while it rests.
    fn measure(&mut self, view: &mut View) {
        self.measured.retain(&view.collections);
        let ids: Vec<i32> = view.collections.iter().map(|collection| collection.id).collect();
        let awake = |balancer: &Self| -> Vec<_> {
            view.shards.iter().filter(|shard| !balancer.is_resting(&shard.id)).cloned().collect()
        };
        self.find_silent(view);
        // Read before measuring, so that writes in between count as changes next time.
        let activity = transaction::run(|| sizes::activity(&awake(self), &ids)).unwrap_or_default();
        self.find_silent(view);
        let mut waited = Duration::ZERO;
        for collection in &mut view.collections {
            let mut to_measure: Vec<_> =
                view.shards.iter().filter(|shard| !self.is_resting(&shard.id)).cloned().collect();
            to_measure.retain(|shard| {
                let now = activity.get(&(shard.id, collection.id)).copied();
                collection.chunks.iter().any(|chunk| chunk.shard == shard.id)
                    && !self.measured.fill(collection, shard.id, now)
            });
            if waited >= LONGEST_WAIT || self.collection_backoff.is_resting(&collection.id) {
                for shard in std::mem::take(&mut to_measure) {
                    collection.balance &= self.measured.fill_old(collection, shard.id);
                }
            }
            let began = Instant::now();
            let mut failed = false;
            let at_once = to_measure.is_empty()
                || transaction::run(|| sizes::measure_at_once(&to_measure, collection, COUNTED_OFTEN_MB)).is_ok();
            for shard in to_measure {
                let outcome = if at_once {
                    Ok(())
                } else {
                    transaction::run(|| sizes::measure(&shard, collection, COUNTED_OFTEN_MB))
                };
                failed |= outcome.is_err();
                if outcome.is_err() && hung::is_silent(&shard.name) {
                    self.silent.insert(shard.id);
                } else if let Err(error) = outcome {
                    self.report_error(
                        &error,
                        &format!("measuring {} at shard \"{}\": ", collection.namespace, shard.name),
                    );
                    if shard.is_local() || !error.is_out_of_reach() {
                        self.collection_backoff.failed(collection.id, &error.message_without_values());
                    } else {
                        self.shard_backoff.failed(shard.id, &error.message_without_values());
                    }
                } else {
                    self.shard_backoff.succeeded(&shard.id);
                    let now = activity.get(&(shard.id, collection.id)).copied();
                    self.measured.keep(collection, shard.id, now);
                }
            }
            if failed {
                waited += began.elapsed();
            }
            // The policy cannot judge the balance without the sizes of a resting shard's chunks.
            for shard in view.shards.iter().filter(|shard| self.is_resting(&shard.id)) {
                if !self.measured.fill_old(collection, shard.id) {
                    collection.balance = false;
                }
            }
        }
    }

    /// Describes the cluster for the policy; `busy` shards are part of a running move.
    fn describe(&self, view: &View, busy: &dyn Fn(ShardId) -> bool) -> policy::Cluster {
        let mut cluster = view.describe(&Exceptions {
            unavailable: &|shard| busy(shard) || self.is_resting(&shard),
            settling: &|shard| self.loads.is_settling(shard),
            resting: &|collection| self.collection_backoff.is_resting(&collection),
            pinned: &|collection, min| self.pinned.contains_key(&(collection, min.to_vec())),
            pairs: &|collection| {
                let of_it = self.pair_backoff.resting().filter(|(of, ..)| *of == collection);
                of_it.map(|&(_, from, to)| (from, to)).collect()
            },
        });
        self.loads.mark(&mut cluster);
        cluster
    }

    fn split(&mut self, view: &View, splits: &[policy::Split]) -> bool {
        let mut done = false;
        for split in splits {
            let collection = &view.collections[split.collection];
            let chunk = &collection.chunks[split.chunk];
            if self.collection_backoff.is_resting(&collection.id) || self.is_resting(&chunk.shard) {
                continue;
            }
            let Some(_step) = Step::begin() else { return false };
            let shard = view.shards.iter().find(|shard| shard.id == chunk.shard);
            let Some(shard) = shard else { continue };
            let outcome = match split.cut {
                Cut::Parts(parts) => steps::split(shard, collection, chunk, parts),
                Cut::Zones => steps::split_at_zones(collection, chunk),
                Cut::Load => steps::split_by_load(&view.loads, collection, chunk),
            };
            match outcome {
                Ok(()) => {
                    done = true;
                    self.collection_backoff.succeeded(&collection.id);
                }
                Err(error) => self.collection_failed(collection, &error, "splitting a chunk of"),
            }
        }
        done
    }

    fn collection_failed(&mut self, collection: &Collection, error: &Error, what: &str) {
        self.collection_backoff.failed(collection.id, &error.message_without_values());
        self.report_error(error, &format!("{what} {}: ", collection.namespace));
    }

    /// Writes an error into the server's log and into `balancer_status()`.
    fn report_error(&mut self, error: &Error, what: &str) {
        // The shard does not answer. This was logged when it stopped answering.
        if hung::is_known(error) {
            return;
        }
        self.failed = true;
        let context = error.context_text().map_or(String::new(), |context| format!(" ({context})"));
        pgrx::log!("docshard balancer: {what}{}{context}", error.message);
        let text = format!("{what}{}", error.text_without_values());
        if let Err(error) = transaction::run(|| balancer_state::set_error(&text)) {
            pgrx::log!("docshard balancer: {}", error.message);
        }
    }
}

/// Holds the lock `STEP`, as long as a split, move or merge runs.
struct Step;

impl Step {
    /// Takes the lock. None if the balancer is off, or must begin no step, or if another process holds the lock.
    fn begin() -> Option<Self> {
        if !transaction::run(control::may_work).unwrap_or(false) {
            return None;
        }
        // Retried, because another session that calls `lock::is_free` acquires the lock for a moment.
        let mut tries = 0;
        while !lock::try_acquire_for_session(Tag::Worker(STEP), Mode::Exclusive) {
            tries += 1;
            if tries == 50 {
                return None;
            }
            process::sleep(Duration::from_millis(10));
        }
        let step = Self;
        // The balancer may have been stopped before the lock was acquired.
        let may_begin = !control::is_stop_wanted() && transaction::run(control::may_work).unwrap_or(false);
        may_begin.then_some(step)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        lock::release_for_session(Tag::Worker(STEP), Mode::Exclusive);
    }
}
