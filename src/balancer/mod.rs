//! The balancer's work, in a database's worker: measure, ask the policy (`docshard_core::cluster::balancer`), split, move.
//!
//! # A round
//! 1. Moves that somebody left unfinished are recovered, also while the balancer is off.
//! 2. The catalog is read, and every shard measured where PostgreSQL's statistics tell of changes; a shard that fails rests, and takes no part meanwhile.
//! 3. Splits. Where a chunk has only one key, it is marked jumbo. After splits the round ends, and the next begins.
//! 4. Moves, of disjoint pairs of shards at the same time ([`moving`]). A chunk is counted exactly before it moves; if it is
//!    not what it seemed, the policy is asked again. After each move the policy is asked again on what is known now, until it
//!    has no more moves.
//! 5. Where nothing is to be split or moved: tiny neighbours are merged, if they were tiny for long.
//!
//! Every step is a transaction of its own. INVARIANTS:
//! * An error of a shard or of a collection makes that one rest, ever longer, and never stops the others; so does a shard that
//!   does not answer (`remote::hung`). What a resting shard holds counts as it was measured last.
//! * While steps run this process holds `Tag::Worker(STEP)`; it begins none while somebody holds
//!   `Tag::Worker(STOP)`, nor while the balancer is off. So who takes STOP and then gets STEP knows that nothing moves.
//! * A chunk that was moved is pinned for [`PIN`], or until shards or zones change.

mod compliance;
pub mod control;
mod measured;
mod moving;
mod rest;
mod steps;
mod view;

use crate::catalog::model::Place;
use crate::catalog::settings;
use crate::catalog::sizes::{self, COUNTED_OFTEN_MB, Collection};
use crate::migration;
use crate::pg::error::{Error, Result};
use crate::pg::{process, transaction};
use crate::remote::hung;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::balancer_state;
pub use compliance::collection_status;
use control::STEP;
use docshard_core::cluster::balancer::{self as policy, Cut};
use docshard_core::cluster::chunk_map::ShardId;
use measured::Measured;
use rest::Rests;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use view::{Goal, Known, View};

/// How long a chunk that was moved stays where it is.
const PIN: Duration = Duration::from_secs(600);
/// Measurements are taken anew after that time.
const FRESH: Duration = Duration::from_secs(30);

/// What a round came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// there may be more to do at once
    pub again: bool,
    /// something went wrong
    pub failed: bool,
    /// how long to rest, where that is not as usual
    pub rest: Option<Duration>,
}

/// The balancer's memory from round to round; nothing of it must survive a restart.
#[derive(Debug, Default)]
pub struct Balancer {
    shards: Rests<ShardId>,
    /// do not answer this worker
    silent: HashSet<ShardId>,
    collections: Rests<i32>,
    pinned: HashMap<(i32, Vec<u8>), Instant>,
    goal: Goal,
    paused_until: Option<Instant>,
    measured: Measured,
    tiny: HashMap<(i32, Vec<u8>), Instant>,
    /// who rests, as it was shown last
    resting: serde_json::Value,
    failed: bool,
    /// this round has looked at all that it works on
    looked: bool,
}

impl Balancer {
    /// One round. Called outside any transaction; raises nothing.
    pub fn round(&mut self) -> Outcome {
        (self.failed, self.looked) = (false, false);
        self.tell_of_silence();
        let again = self.work().unwrap_or_else(|error| {
            self.note(&error, "");
            false
        });
        self.tell_of_silence();
        let resting = self.all_who_rest();
        let well = self.looked && !self.failed && resting.as_array().is_none_or(Vec::is_empty);
        if let Err(error) = transaction::run(|| balancer_state::set_round(again, &resting, well)) {
            pgrx::log!("docshard balancer: {}", error.message);
        }
        let rest = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
        Outcome { again: again && rest.is_none(), failed: self.failed, rest }
    }

    fn work(&mut self) -> Result<bool> {
        if let Err(error) = migration::recovery::recover() {
            self.note(&error, "recovering moves: ");
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
        // Where there is another goal, what was moved for the last one may have to move again.
        let goal = view.goal();
        if self.goal != goal {
            self.pinned.clear();
            self.goal = goal;
        }
        if view.shards.len() < 2 || view.collections.is_empty() {
            (self.looked, self.resting) = (true, serde_json::Value::Null);
            return Ok(false);
        }
        self.measure(&mut view);
        let plan = policy::plan(&self.describe(&view, &|_| false));
        let done = if !plan.splits.is_empty() {
            Ok(self.split(&view, &plan.splits))
        } else if plan.moves.is_empty() {
            self.merge(&view, &plan.merges)
        } else {
            self.balance(&mut view, plan.moves)
        };
        self.resting = self.who_rests(&view);
        self.looked = done.is_ok();
        done
    }

    /// Merges those of the chunks that were tiny for a while. True if there were some.
    fn merge(&mut self, view: &View, merges: &[policy::Merge]) -> Result<bool> {
        let delay = transaction::run(|| settings::integer("merge_delay_s"))?;
        let delay = Duration::from_secs(delay.unsigned_abs());
        let before = std::mem::take(&mut self.tiny);
        let mut done = false;
        for merge in merges {
            let collection = &view.collections[merge.collection];
            // What could not be measured is not tiny.
            let chunks = &collection.chunks[merge.chunks.clone()];
            if chunks.iter().any(|chunk| self.rests(&chunk.shard)) || self.collections.rests(&collection.id) {
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

    /// Tells `balancer_status()` of shards that do not answer any more, or do again, whoever in this worker has noticed.
    fn tell_of_silence(&mut self) {
        for change in hung::changes() {
            let alarm = format!("shard \"{}\" does not answer: ", change.shard);
            let told = transaction::run(|| match &change.error {
                Some(why) => balancer_state::set_error(&format!("{alarm}{why}")),
                None => balancer_state::clear_error(&alarm),
            });
            if let Err(error) = told {
                pgrx::log!("docshard balancer: {}", error.message);
            }
        }
    }

    /// The shards that do not answer this worker, and then what else is left alone.
    fn all_who_rest(&self) -> serde_json::Value {
        let silent = hung::silent();
        let is_told = |entry: &&serde_json::Value| {
            entry["shard"].as_str().is_none_or(|shard| silent.iter().all(|(silent, _)| silent != shard))
        };
        let others = self.resting.as_array().into_iter().flatten().filter(is_told).cloned();
        let silent = silent.iter().map(|(shard, why)| serde_json::json!({"shard": shard, "error": why}));
        silent.chain(others).collect()
    }

    /// True if the shard is left alone, as it does not answer, or after another error.
    fn rests(&self, shard: &ShardId) -> bool {
        self.silent.contains(shard) || self.shards.rests(shard)
    }

    /// Looks which shards do not answer this worker.
    fn look_for_silence(&mut self, view: &View) {
        self.silent = view.shards.iter().filter(|shard| hung::is_silent(&shard.name)).map(|shard| shard.id).collect();
    }

    /// The shards and collections that are left alone after an error, and why.
    fn who_rests(&self, view: &View) -> serde_json::Value {
        let shards = view.shards.iter().filter(|shard| self.shards.rests(&shard.id));
        let shards = shards.map(|shard| serde_json::json!({"shard": shard.name, "error": self.shards.why(&shard.id)}));
        let collections = view.collections.iter().filter(|collection| self.collections.rests(&collection.id));
        let collections = collections.map(|collection| {
            serde_json::json!({"namespace": collection.namespace, "error": self.collections.why(&collection.id)})
        });
        shards.chain(collections).collect()
    }

    /// How long to pause after a move of so many bytes that took so long.
    fn pause(bytes: u64, took: Duration) -> Result<Duration> {
        transaction::run(|| {
            let rate = settings::integer("throttle_mb_per_s")?.unsigned_abs() << 20;
            let due = if rate == 0 { 0.0 } else { bytes as f64 / rate as f64 };
            let throttled = Duration::from_secs_f64(due).saturating_sub(took);
            Ok(throttled.max(Duration::from_millis(settings::integer("pause_ms")?.unsigned_abs())))
        })
    }

    /// Measures what has changed, at all shards at once; where that fails, one by one, so that it shows who failed.
    fn measure(&mut self, view: &mut View) {
        self.measured.retain(&view.collections);
        let ids: Vec<i32> = view.collections.iter().map(|collection| collection.id).collect();
        let awake = |balancer: &Self| -> Vec<_> {
            view.shards.iter().filter(|shard| !balancer.rests(&shard.id)).cloned().collect()
        };
        // Asked before measuring: what is written in between counts as a change next time.
        self.look_for_silence(view);
        let activity = transaction::run(|| sizes::activity(&awake(self), &ids)).unwrap_or_default();
        self.look_for_silence(view);
        for collection in &mut view.collections {
            let mut due: Vec<_> = view.shards.iter().filter(|shard| !self.rests(&shard.id)).cloned().collect();
            due.retain(|shard| {
                let now = activity.get(&(shard.id, collection.id)).copied();
                collection.chunks.iter().any(|chunk| chunk.shard == shard.id)
                    && !self.measured.fill(collection, shard.id, now)
            });
            // Also where nobody is due there may be a shard that rests, below.
            let at_once = due.is_empty()
                || transaction::run(|| sizes::measure_at_once(&due, collection, COUNTED_OFTEN_MB)).is_ok();
            for shard in due {
                let outcome = if at_once {
                    Ok(())
                } else {
                    transaction::run(|| sizes::measure(&shard, collection, COUNTED_OFTEN_MB))
                };
                if outcome.is_err() && hung::is_silent(&shard.name) {
                    self.silent.insert(shard.id);
                } else if let Err(error) = outcome {
                    self.note(&error, &format!("measuring {} at shard \"{}\": ", collection.namespace, shard.name));
                    if shard.place == Place::Local || !is_connection_lost(&error) {
                        self.collections.failed(collection.id, &error.message);
                    } else {
                        self.shards.failed(shard.id, &error.message);
                    }
                } else {
                    self.shards.succeeded(&shard.id);
                    let now = activity.get(&(shard.id, collection.id)).copied();
                    self.measured.keep(collection, shard.id, now);
                }
            }
            // A shard that cannot be asked is not empty: what it had last counts. Where that is not known, nobody can tell
            // what would be even.
            for shard in view.shards.iter().filter(|shard| self.rests(&shard.id)) {
                if !self.measured.fill_old(collection, shard.id) {
                    collection.balance = false;
                }
            }
        }
    }

    /// The cluster as the policy sees it, with the shards that take part in a move already.
    fn describe(&self, view: &View, busy: &dyn Fn(ShardId) -> bool) -> policy::Cluster {
        view.describe(&Known {
            unavailable: &|shard| busy(shard) || self.rests(&shard),
            resting: &|collection| self.collections.rests(&collection),
            pinned: &|collection, min| self.pinned.contains_key(&(collection, min.to_vec())),
        })
    }

    fn split(&mut self, view: &View, splits: &[policy::Split]) -> bool {
        let mut done = false;
        for split in splits {
            let collection = &view.collections[split.collection];
            let chunk = &collection.chunks[split.chunk];
            if self.collections.rests(&collection.id) || self.rests(&chunk.shard) {
                continue;
            }
            let Some(_step) = Step::begin() else { return false };
            let shard = view.shards.iter().find(|shard| shard.id == chunk.shard);
            let Some(shard) = shard else { continue };
            let outcome = match split.cut {
                Cut::Parts(parts) => steps::split(shard, collection, chunk, parts),
                Cut::Zones => steps::split_at_zones(collection, chunk),
            };
            match outcome {
                Ok(()) => {
                    done = true;
                    self.collections.succeeded(&collection.id);
                }
                Err(error) => self.collection_failed(collection, &error, "splitting a chunk of"),
            }
        }
        done
    }

    fn collection_failed(&mut self, collection: &Collection, error: &Error, what: &str) {
        self.collections.failed(collection.id, &error.message);
        self.note(error, &format!("{what} {}: ", collection.namespace));
    }

    /// Writes an error into the server's log and into `balancer_status()`.
    fn note(&mut self, error: &Error, what: &str) {
        // That a shard does not answer is told already.
        if hung::is_known(error) {
            return;
        }
        self.failed = true;
        let context = error.context.as_ref().map_or(String::new(), |context| format!(" ({context})"));
        let text = format!("{what}{}{context}", error.message);
        pgrx::log!("docshard balancer: {text}");
        if let Err(error) = transaction::run(|| balancer_state::set_error(&text)) {
            pgrx::log!("docshard balancer: {}", error.message);
        }
    }
}

fn is_connection_lost(error: &Error) -> bool {
    error.sqlstate.starts_with(b"08") || error.sqlstate.starts_with(b"57P")
}

/// A split or a move under way.
struct Step;

impl Step {
    /// None if the balancer is off, or somebody wants it to stop.
    fn begin() -> Option<Self> {
        let on = transaction::run(control::may_work).unwrap_or(false);
        // Who looks whether a step is under way holds the lock for a moment.
        let mut tries = 0;
        while !lock::try_acquire_for_session(Tag::Worker(STEP), Mode::Exclusive) {
            tries += 1;
            if tries == 50 {
                return None;
            }
            process::sleep(Duration::from_millis(10));
        }
        let step = on.then_some(Self)?;
        control::stop_is_not_wanted().then_some(step)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        lock::release_for_session(Tag::Worker(STEP), Mode::Exclusive);
    }
}
