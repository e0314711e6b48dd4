//! Runs several moves at a time. No shard takes part in two of them. Each move runs in a background worker; a single move runs
//! in the balancer's process.
//!
//! When a move ends, the policy is asked again for moves between shards that are in no running move, so no shard waits for the
//! moves of others. The setting `parallel_moves`, half of the server's background workers, and the number of free workers limit
//! the number of parallel moves.
//!
//! INVARIANT: all moves together copy at most `throttle_mb_per_s`: new moves share the rate that running ones do not use.

use super::{Balancer, FRESH, Step, control, steps};
use crate::balancer::view::View;
use crate::catalog::cluster::settings;
use crate::catalog::collections::sizes;
use crate::migration::{self, MoveResult};
use crate::pg::error::{Error, Result};
use crate::pg::process::job::Jobs;
use crate::pg::{process, transaction};
use docshard_core::cluster::balancer::{self as policy, Reason};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::sqlstate::{self, SqlState};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// SQLSTATE `out_of_memory`, which here means that no background worker is free.
const NO_WORKER: SqlState = sqlstate::OUT_OF_MEMORY;
/// SQLSTATE `object_in_use`: another operation on the collection is running.
const CONFLICT: SqlState = sqlstate::OBJECT_IN_USE;
/// SQLSTATE `query_canceled`: the move was aborted on request.
const CANCELLED: SqlState = sqlstate::QUERY_CANCELED;

struct RunningMove {
    collection: i32,
    namespace: String,
    min: Vec<u8>,
    max: Vec<u8>,
    from: ShardId,
    to: ShardId,
    /// The rate limit in bytes per second; 0: no limit.
    rate: u64,
    began: Instant,
    _step: Step,
}

/// The moves of one round.
struct Batch {
    running: Jobs<RunningMove>,
    /// The largest number of parallel moves.
    limit: usize,
    /// The rate limit of all moves together in bytes per second; 0: no limit.
    throttle: u64,
    /// Chunks that were measured exactly, by collection and lower bound.
    exact: HashSet<(i32, Vec<u8>)>,
    /// True: no further move begins.
    ending: bool,
    moved: bool,
}

impl Batch {
    fn new() -> Result<Self> {
        let [limit, throttle] = transaction::run(|| {
            Ok([settings::integer("parallel_moves")?, settings::integer("throttle_mb_per_s")?].map(i64::unsigned_abs))
        })?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(process::max_workers() / 2).max(1);
        let throttle = throttle << 20;
        Ok(Self { running: Jobs::default(), limit, throttle, exact: HashSet::new(), ending: false, moved: false })
    }

    fn is_busy(&self, shard: ShardId) -> bool {
        self.running.iter().any(|running_move| [running_move.from, running_move.to].contains(&shard))
    }

    /// Returns the rate limit for each of `moves` new moves, in bytes per second. None if running moves use the whole limit; 0: no limit.
    fn share(&self, moves: usize) -> Option<u64> {
        if self.throttle == 0 {
            return Some(0);
        }
        let used: u64 = self.running.iter().map(|running_move| running_move.rate).sum();
        Some(self.throttle.saturating_sub(used) / moves.max(1) as u64).filter(|rate| *rate > 0)
    }

    fn show(&self, view: &View, more: &policy::Move) {
        let name = |id| view.shards.iter().find(|shard| shard.id == id).map_or("?", |shard| shard.name.as_str());
        let describe = |namespace: &str, from, to| format!("of {namespace} from {} to {}", name(from), name(to));
        let mut all: Vec<_> = self.running.iter().map(|f| describe(&f.namespace, f.from, f.to)).collect();
        all.push(describe(&view.collections[more.collection].namespace, more.from, more.to));
        let what = if all.len() == 1 { "moving a chunk" } else { "moving chunks" };
        control::show(&format!("{what} {}", all.join(", ")));
    }
}

impl Balancer {
    /// Moves chunks until the policy has no more moves, the balancer must stop, or everything must be measured again. True if
    /// anything moved.
    pub(super) fn balance(&mut self, view: &mut View, mut moves: Vec<policy::Move>) -> Result<bool> {
        let mut measured = Instant::now();
        let mut batch = Batch::new()?;
        loop {
            let replan = self.begin_some(view, &mut batch, &moves);
            let ended = self.await_some(view, &mut batch);
            if batch.running.is_empty() && (batch.ending || !(replan || ended) || measured.elapsed() >= FRESH) {
                return Ok(batch.moved);
            }
            moves = Vec::new();
            if batch.ending {
                continue;
            }
            if measured.elapsed() >= FRESH {
                // The moves have taken long: the next ones need new sizes.
                match transaction::run(View::load) {
                    Ok(now) => *view = now,
                    Err(error) => {
                        self.report_error(&error, "");
                        batch.ending = true;
                        continue;
                    }
                }
                self.measure(view);
                self.measure_loads(view);
                measured = Instant::now();
                batch.exact.clear();
            }
            moves = policy::plan(&self.describe(view, &|shard| batch.is_busy(shard))).moves;
        }
    }

    /// Begins as many of the moves as the limits allow. True if the policy must be asked again: a move has ended, or a size has changed.
    fn begin_some(&mut self, view: &mut View, batch: &mut Batch, moves: &[policy::Move]) -> bool {
        let mut replan = false;
        let planned = moves.len().min(batch.limit.saturating_sub(batch.running.len()));
        let Some(rate) = batch.share(planned) else { return false };
        for step in moves {
            let collection = &view.collections[step.collection];
            let resting = [step.from, step.to].iter().any(|shard| self.is_resting(shard));
            let pair = (collection.id, step.from, step.to);
            if resting || self.collection_backoff.is_resting(&collection.id) || self.pair_backoff.is_resting(&pair) {
                continue;
            }
            if batch.ending || batch.running.len() >= batch.limit {
                return replan;
            }
            let Some(guard) = Step::begin() else {
                batch.ending = true;
                return replan;
            };
            let name = (collection.id, collection.chunks[step.chunks.start].min.clone());
            if step.reason == Reason::Evenness && batch.exact.insert(name) {
                match steps::confirm(view, step) {
                    Ok(None) => {}
                    Ok(Some((documents, bytes))) => {
                        let chunk = &mut view.collections[step.collection].chunks[step.chunks.start];
                        (chunk.documents, chunk.bytes) = (documents, bytes);
                        replan = true;
                        continue;
                    }
                    Err(error) => {
                        self.move_failed(view, &Self::running_move(view, step, rate, guard), &error);
                        continue;
                    }
                }
            }
            batch.show(view, step);
            let request = steps::request(view, step, rate);
            let running_move = Self::running_move(view, step, rate, guard);
            if planned == 1 && batch.running.is_empty() {
                let result = migration::run(&request);
                self.move_ended(view, batch, &running_move, result);
                return true;
            }
            let started =
                transaction::guarded(|| migration::jobs::start_move(&mut batch.running, &request, running_move));
            if let Err(error) = started {
                if error.sqlstate != NO_WORKER {
                    self.report_error(&error, "moving chunks: ");
                    batch.ending = true;
                } else if batch.running.is_empty() {
                    // With this limit the policy plans the move again, and it runs in this process.
                    batch.limit = 1;
                    return true;
                } else {
                    batch.limit = batch.running.len();
                }
                return replan;
            }
        }
        replan
    }

    fn running_move(view: &View, step: &policy::Move, rate: u64, guard: Step) -> RunningMove {
        let collection = &view.collections[step.collection];
        let (min, max) = steps::bounds(view, step);
        RunningMove {
            collection: collection.id,
            namespace: collection.namespace.clone(),
            min,
            max,
            from: step.from,
            to: step.to,
            rate,
            began: Instant::now(),
            _step: guard,
        }
    }

    /// Waits until a move has ended. False if none was running, or if they were stopped after an error. A cancel of this process stops its
    /// moves.
    fn await_some(&mut self, view: &mut View, batch: &mut Batch) -> bool {
        let mut stopped = false;
        while !batch.running.is_empty() {
            let ended = transaction::guarded(|| {
                let ended = batch.running.ended()?;
                if ended.is_empty() {
                    process::sleep(Duration::from_secs(1));
                }
                Ok(ended)
            });
            match ended {
                Ok(ended) if ended.is_empty() => {}
                Ok(ended) => {
                    for (running_move, answer) in ended {
                        let outcome = answer.and_then(|answer| migration::jobs::result(&answer));
                        self.move_ended(view, batch, &running_move, outcome);
                    }
                    return true;
                }
                Err(error) => {
                    self.report_error(&error, "moving chunks: ");
                    batch.ending = true;
                    if !stopped {
                        batch.running.stop();
                        stopped = true;
                    }
                }
            }
        }
        false
    }

    fn move_ended(
        &mut self,
        view: &mut View,
        batch: &mut Batch,
        running_move: &RunningMove,
        outcome: Result<MoveResult>,
    ) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.move_failed(view, running_move, &error),
        };
        batch.moved = true;
        self.loads.moved(running_move.to);
        self.collection_backoff.succeeded(&running_move.collection);
        self.pair_backoff.succeeded(&(running_move.collection, running_move.from, running_move.to));
        self.shard_backoff.succeeded(&running_move.from);
        self.shard_backoff.succeeded(&running_move.to);
        // The view may have been loaded again since the move began.
        let collection = view.collections.iter_mut().find(|collection| collection.id == running_move.collection);
        let is_moved = |chunk: &&mut sizes::Chunk| chunk.min >= running_move.min && chunk.max <= running_move.max;
        for chunk in collection.into_iter().flat_map(|collection| collection.chunks.iter_mut()).filter(is_moved) {
            self.pinned.insert((running_move.collection, chunk.min.clone()), Instant::now());
            if chunk.shard == running_move.from {
                chunk.shard = running_move.to;
            }
        }
        match Self::pause(u64::try_from(outcome.bytes).unwrap_or(0), running_move.began.elapsed()) {
            Ok(pause) if pause.is_zero() => {}
            Ok(pause) => {
                self.paused_until = self.paused_until.max(Some(Instant::now() + pause));
                batch.ending = true;
            }
            Err(error) => self.report_error(&error, ""),
        }
    }

    /// Decides what rests after a failed move. If a shard cannot be reached, that shard rests; otherwise the collection rests between these
    /// two shards. If this happens between many pairs of shards, the whole collection rests.
    fn move_failed(&mut self, view: &mut View, running_move: &RunningMove, error: &Error) {
        let names = |shard: &&std::rc::Rc<crate::catalog::cluster::shard::Shard>| {
            [running_move.from, running_move.to].contains(&shard.id) && error.is_of_shard(&shard.name)
        };
        let what = format!("moving a chunk of {}: ", running_move.namespace);
        if error.sqlstate == CONFLICT {
            pgrx::log!("docshard balancer: {what}{}", error.message);
            return self.collection_backoff.gave_way(running_move.collection, &error.message_without_values());
        }
        if error.sqlstate == CANCELLED {
            self.collection_backoff.gave_way(running_move.collection, &error.message_without_values());
            return self.report_error(error, &what);
        }
        // If the move was given up, its range rests, so the collection need not.
        match transaction::run(|| view.read_resting()) {
            Ok(()) if view.is_resting(running_move.collection, &running_move.min, &running_move.max) => {
                return self.report_error(error, &what);
            }
            _ => {}
        }
        match view.shards.iter().find(names).filter(|_| error.is_out_of_reach()) {
            Some(shard) => self.shard_backoff.failed(shard.id, &error.message_without_values()),
            None => {
                let RunningMove { collection, from, to, .. } = *running_move;
                self.pair_backoff.failed((collection, from, to), &error.message_without_values());
                if self.pair_backoff.resting().filter(|(of, ..)| *of == collection).count() > view.shards.len() {
                    self.collection_backoff.failed(collection, &error.message_without_values());
                }
            }
        }
        self.report_error(error, &what);
    }
}
