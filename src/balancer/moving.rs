//! Moves, several at a time: each but a lone one in a background worker of its own, between two shards that take part in no
//! other.
//!
//! The policy is asked again whenever a move has ended, on what is known then; shards with a move under way take no part.
//! So as long as there is something to do for two shards, they do not wait for others. How many moves there are at a time is
//! limited by the setting `parallel_moves`, by half of the server's background workers, and by those that are free.
//!
//! INVARIANT: all moves together are given no more than `throttle_mb_per_s`: those that begin share what those under way
//! have left.

use super::{Balancer, FRESH, Step, control, is_connection_lost, steps};
use crate::balancer::view::View;
use crate::catalog::{settings, sizes};
use crate::migration::{self, MoveRequest, MoveResult};
use crate::pg::error::{Error, Result};
use crate::pg::process::job::Jobs;
use crate::pg::{process, transaction};
use docshard_core::cluster::balancer::{self as policy, Reason};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// SQLSTATE of a background worker that is not to be had.
const NO_WORKER: [u8; 5] = *b"53200";
/// SQLSTATE of a move that meets another operation on the collection.
const CONFLICT: [u8; 5] = *b"55006";
/// SQLSTATE of a move that somebody has aborted.
const CANCELLED: [u8; 5] = *b"57014";

/// A move under way.
struct Flight {
    collection: i32,
    namespace: String,
    min: Vec<u8>,
    max: Vec<u8>,
    from: ShardId,
    to: ShardId,
    /// at most so many bytes a second; 0 is no limit
    rate: u64,
    began: Instant,
    _step: Step,
}

/// What one stretch of moving has come to.
struct Stretch {
    flights: Jobs<Flight>,
    /// so many moves at a time
    limit: usize,
    /// for all together, in bytes a second; 0 is no limit
    throttle: u64,
    /// chunks whose sizes are known exactly
    exact: HashSet<(i32, Vec<u8>)>,
    /// no other move is to begin
    ending: bool,
    /// a chunk was moved
    moved: bool,
}

impl Stretch {
    fn new() -> Result<Self> {
        let [limit, throttle] = transaction::run(|| {
            Ok([settings::integer("parallel_moves")?, settings::integer("throttle_mb_per_s")?].map(i64::unsigned_abs))
        })?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(process::max_workers() / 2).max(1);
        let throttle = throttle << 20;
        Ok(Self { flights: Jobs::default(), limit, throttle, exact: HashSet::new(), ending: false, moved: false })
    }

    fn is_busy(&self, shard: ShardId) -> bool {
        self.flights.iter().any(|flight| [flight.from, flight.to].contains(&shard))
    }

    /// What each of so many moves that begin may copy, in bytes a second; None if those under way use it all.
    fn share(&self, moves: usize) -> Option<u64> {
        if self.throttle == 0 {
            return Some(0);
        }
        let used: u64 = self.flights.iter().map(|flight| flight.rate).sum();
        Some(self.throttle.saturating_sub(used) / moves.max(1) as u64).filter(|rate| *rate > 0)
    }

    fn show(&self, view: &View, more: &policy::Move) {
        let name = |id| view.shards.iter().find(|shard| shard.id == id).map_or("?", |shard| shard.name.as_str());
        let said = |namespace: &str, from, to| format!("of {namespace} from {} to {}", name(from), name(to));
        let mut all: Vec<_> = self.flights.iter().map(|f| said(&f.namespace, f.from, f.to)).collect();
        all.push(said(&view.collections[more.collection].namespace, more.from, more.to));
        let what = if all.len() == 1 { "moving a chunk" } else { "moving chunks" };
        control::show(&format!("{what} {}", all.join(", ")));
    }
}

impl Balancer {
    /// Moves until the policy is content, somebody wants it to stop, or it is time to look at everything again. True if
    /// anything moved.
    pub(super) fn balance(&mut self, view: &mut View, mut moves: Vec<policy::Move>) -> Result<bool> {
        let mut measured = Instant::now();
        let mut stretch = Stretch::new()?;
        loop {
            let surprised = self.begin_some(view, &mut stretch, &moves);
            let ended = self.await_some(view, &mut stretch);
            if stretch.flights.is_empty() && (stretch.ending || !(surprised || ended) || measured.elapsed() >= FRESH) {
                return Ok(stretch.moved);
            }
            moves = Vec::new();
            if stretch.ending {
                continue;
            }
            if measured.elapsed() >= FRESH {
                // While some move for long, others go on with what is true now.
                match transaction::run(View::load) {
                    Ok(now) => *view = now,
                    Err(error) => {
                        self.note(&error, "");
                        stretch.ending = true;
                        continue;
                    }
                }
                self.measure(view);
                measured = Instant::now();
                stretch.exact.clear();
            }
            moves = policy::plan(&self.describe(view, &|shard| stretch.is_busy(shard))).moves;
        }
    }

    /// Begins as many of the moves as may be. True if something was found out, or done, after which the policy may think
    /// otherwise.
    fn begin_some(&mut self, view: &mut View, stretch: &mut Stretch, moves: &[policy::Move]) -> bool {
        let mut surprised = false;
        let planned = moves.len().min(stretch.limit.saturating_sub(stretch.flights.len()));
        let Some(rate) = stretch.share(planned) else { return false };
        for step in moves {
            let collection = &view.collections[step.collection];
            let resting = [step.from, step.to].iter().any(|shard| self.rests(shard));
            if resting || self.collections.rests(&collection.id) {
                continue;
            }
            if stretch.ending || stretch.flights.len() >= stretch.limit {
                return surprised;
            }
            let Some(guard) = Step::begin() else {
                stretch.ending = true;
                return surprised;
            };
            let name = (collection.id, collection.chunks[step.chunks.start].min.clone());
            if step.reason == Reason::Evenness && stretch.exact.insert(name) {
                match steps::confirm(view, step) {
                    Ok(None) => {}
                    Ok(Some((documents, bytes))) => {
                        let chunk = &mut view.collections[step.collection].chunks[step.chunks.start];
                        (chunk.documents, chunk.bytes) = (documents, bytes);
                        surprised = true;
                        continue;
                    }
                    Err(error) => {
                        self.move_failed(view, &Self::flight(view, step, rate, guard), &error);
                        continue;
                    }
                }
            }
            stretch.show(view, step);
            let request = steps::request(view, step, rate);
            let flight = Self::flight(view, step, rate, guard);
            // A lone move needs no other process.
            if planned == 1 && stretch.flights.is_empty() {
                self.run_here(view, stretch, &request, flight);
                return true;
            }
            let started = transaction::guarded(|| migration::jobs::start_move(&mut stretch.flights, &request, flight));
            if let Err(error) = started {
                if error.sqlstate != NO_WORKER {
                    self.note(&error, "moving chunks: ");
                    stretch.ending = true;
                } else if stretch.flights.is_empty() {
                    stretch.limit = 1;
                    // Again, now alone.
                    return true;
                } else {
                    stretch.limit = stretch.flights.len();
                }
                return surprised;
            }
        }
        surprised
    }

    fn flight(view: &View, step: &policy::Move, rate: u64, guard: Step) -> Flight {
        let collection = &view.collections[step.collection];
        let (min, max) = steps::bounds(view, step);
        Flight {
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

    fn run_here(&mut self, view: &mut View, stretch: &mut Stretch, request: &MoveRequest, flight: Flight) {
        let outcome = migration::run(request);
        self.landed(view, stretch, &flight, outcome);
    }

    /// Waits until a move has ended; true if one has. Who cancels this process ends its moves.
    fn await_some(&mut self, view: &mut View, stretch: &mut Stretch) -> bool {
        let mut stopped = false;
        while !stretch.flights.is_empty() {
            let ended = transaction::guarded(|| {
                let ended = stretch.flights.ended()?;
                if ended.is_empty() {
                    process::sleep(Duration::from_secs(1));
                }
                Ok(ended)
            });
            match ended {
                Ok(ended) if ended.is_empty() => {}
                Ok(ended) => {
                    for (flight, answer) in ended {
                        let outcome = answer.map(|answer| migration::jobs::outcome(&answer));
                        self.landed(view, stretch, &flight, outcome);
                    }
                    return true;
                }
                Err(error) => {
                    self.note(&error, "moving chunks: ");
                    stretch.ending = true;
                    if !stopped {
                        stretch.flights.stop();
                        stopped = true;
                    }
                }
            }
        }
        false
    }

    /// Notes what became of a move.
    fn landed(&mut self, view: &mut View, stretch: &mut Stretch, flight: &Flight, outcome: Result<MoveResult>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.move_failed(view, flight, &error),
        };
        stretch.moved = true;
        self.collections.succeeded(&flight.collection);
        self.shards.succeeded(&flight.from);
        self.shards.succeeded(&flight.to);
        // The view may have been read again since the move began.
        let collection = view.collections.iter_mut().find(|collection| collection.id == flight.collection);
        let is_moved = |chunk: &&mut sizes::Chunk| chunk.min >= flight.min && chunk.max <= flight.max;
        for chunk in collection.into_iter().flat_map(|collection| collection.chunks.iter_mut()).filter(is_moved) {
            self.pinned.insert((flight.collection, chunk.min.clone()), Instant::now());
            if chunk.shard == flight.from {
                chunk.shard = flight.to;
            }
        }
        match Self::pause(u64::try_from(outcome.bytes).unwrap_or(0), flight.began.elapsed()) {
            Ok(pause) if pause.is_zero() => {}
            Ok(pause) => {
                self.paused_until = self.paused_until.max(Some(Instant::now() + pause));
                stretch.ending = true;
            }
            Err(error) => self.note(&error, ""),
        }
    }

    /// Lets the shard rest that could not be reached, or else the collection.
    fn move_failed(&mut self, view: &mut View, flight: &Flight, error: &Error) {
        let names = |shard: &&std::rc::Rc<crate::catalog::model::Shard>| {
            [flight.from, flight.to].contains(&shard.id)
                && error.context.as_deref() == Some(&format!("shard \"{}\"", shard.name))
        };
        let what = format!("moving a chunk of {}: ", flight.namespace);
        if error.sqlstate == CONFLICT {
            pgrx::log!("docshard balancer: {what}{}", error.message);
            return self.collections.gave_way(flight.collection, &error.message);
        }
        if error.sqlstate == CANCELLED {
            self.collections.gave_way(flight.collection, &error.message);
            return self.note(error, &what);
        }
        // What was tried often enough rests by itself, and nobody has to rest with it.
        match transaction::run(|| view.read_resting()) {
            Ok(()) if view.rests(flight.collection, &flight.min, &flight.max) => return self.note(error, &what),
            _ => {}
        }
        match view.shards.iter().find(names).filter(|_| is_connection_lost(error)) {
            Some(shard) => self.shards.failed(shard.id, &error.message),
            None => self.collections.failed(flight.collection, &error.message),
        }
        self.note(error, &what);
    }
}
