//! Chooses splits and moves that even out the operations of the shards, for collections that are balanced by load.
//!
//! A shard's load is that of all its chunks, also of collections that are balanced by bytes or not at all: a shard that is busy with one
//! collection must not get another one's hot chunks. Loads are smoothed where they are measured.
//!
//! Moves go from the busiest shards to the least busy ones while the two differ by more than a threshold: a quarter of the mean, and at
//! least [`LEAST_DIFFERENCE`]. A chunk *fits* if its load is at most half of the difference, and brings the recipient at most half of a
//! threshold above the mean, or adds at most that to a recipient that is above the mean already. For a donor and a recipient, [`choose`] takes the first of these steps that is possible:
//!
//! 1. The largest chunk that fits moves, if it has at least half of the load that would fit.
//! 2. Of the chunks that do not fit and can be split, the hottest is split at the median of its accesses. A chunk cannot be split if most
//!    of its accesses are to one key.
//! 3. The largest chunk that fits moves, if its load is at least a 16th of the threshold. This relieves a shard whose hottest
//!    chunk can neither move nor be split.
//! 4. The smallest chunk that does not fit moves, if its load is at most half of the difference.
//!
//! INVARIANTS, held by property tests:
//! * After a move the recipient's load is at most the donor's. So the sum of squares of the loads falls with each move, and moves end
//!   unless loads change.
//! * A settling shard, which has received a chunk recently, takes part in no move for load: its new load is not measured yet. A
//!   donor does not settle, since the loads of its other chunks are measured.
//! * A shard gives chunks away for load only after it has been busier than others for a while ([`Patience`]), measured again and again: so
//!   neither bursts nor errors of measurement move chunks.
//! * Only chunks of collections that are balanced by load move or are split.

use super::round::Round;
use super::state::{Cluster, Cut, Reason, Split};
use crate::cluster::chunk_map::ShardId;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// Shards are even if their loads differ by at most this many operations in 1,000 seconds.
pub(super) const LEAST_DIFFERENCE: u64 = 20_000;
/// Largest number of recipients that are tried for a donor.
const TRIED_RECIPIENTS: usize = 8;

/// A chunk that may move or be split for its load.
#[derive(Clone, Copy)]
struct Candidate {
    collection: usize,
    chunk: usize,
    load: u64,
    divisible: bool,
}

enum Step {
    Move(Candidate),
    Split(Candidate),
}

/// Since when shards have been busier than others: the policy's memory between plans.
#[derive(Debug, Default)]
pub struct Patience {
    since: HashMap<ShardId, Duration>,
}

impl Patience {
    /// Notes loads that were measured at this time. A shard is busy if its load exceeds the lowest one by more than the
    /// threshold.
    pub fn note(&mut self, cluster: &Cluster, now: Duration) {
        let mut loads: HashMap<ShardId, u64> =
            cluster.shards.iter().map(|shard| (shard.id, shard.other_load)).collect();
        for chunk in cluster.collections.iter().flat_map(|collection| &collection.chunks) {
            if let Some(load) = loads.get_mut(&chunk.shard) {
                *load = load.saturating_add(chunk.load.total);
            }
        }
        let homes = || cluster.shards.iter().filter(|shard| !shard.draining);
        // Only shards whose present load is measured count for the lowest load.
        let measured = homes().filter(|shard| !shard.unavailable && !shard.settling);
        let least = measured.map(|shard| loads[&shard.id]).min().unwrap_or_default();
        let threshold = threshold(mean(loads.values(), homes().count()));
        self.since.retain(|shard, _| loads.contains_key(shard));
        for (shard, load) in loads {
            if load.saturating_sub(least) > threshold {
                self.since.entry(shard).or_insert(now);
            } else {
                self.since.remove(&shard);
            }
        }
    }

    /// Marks as waiting the shards that have not been busy for at least `delay`.
    pub fn mark(&self, cluster: &mut Cluster, now: Duration, delay: Duration) {
        for shard in &mut cluster.shards {
            shard.waiting = self.since.get(&shard.id).is_none_or(|since| now.saturating_sub(*since) < delay);
        }
    }
}

fn mean<'a>(loads: impl Iterator<Item = &'a u64>, homes: usize) -> u64 {
    loads.fold(0_u64, |sum, load| sum.saturating_add(*load)) / homes.max(1) as u64
}

fn threshold(mean: u64) -> u64 {
    LEAST_DIFFERENCE.max(mean / 4)
}

/// The loads of the shards, by position.
struct Loads {
    of: Vec<u64>,
    mean: u64,
    threshold: u64,
    candidates: Vec<Vec<Candidate>>,
}

impl Loads {
    fn of(round: &Round<'_>) -> Self {
        let cluster = round.shards.cluster;
        let mut of: Vec<u64> = cluster.shards.iter().map(|shard| shard.other_load).collect();
        let mut candidates = vec![Vec::new(); of.len()];
        for (at, collection) in cluster.collections.iter().enumerate() {
            for (number, chunk) in collection.chunks.iter().enumerate().filter(|(_, chunk)| chunk.load.total > 0) {
                let Some(shard) = round.shards.position(chunk.shard) else { continue };
                of[shard] = of[shard].saturating_add(chunk.load.total);
                if collection.by_load && collection.balance && !chunk.jumbo && !chunk.resting && !chunk.straddles {
                    let (load, divisible) = (chunk.load.total, chunk.load.halves.is_some());
                    candidates[shard].push(Candidate { collection: at, chunk: number, load, divisible });
                }
            }
        }
        let mean = mean(of.iter(), cluster.shards.iter().filter(|shard| !shard.draining).count());
        Self { of, mean, threshold: threshold(mean), candidates }
    }
}

/// Adds moves for load to the plan, between shards that take part in no move yet. Returns the splits for load, which must be done
/// before any move.
pub(super) fn even_out(round: &mut Round<'_>) -> Vec<Split> {
    if !round.shards.cluster.collections.iter().any(|collection| collection.by_load && collection.balance) {
        return Vec::new();
    }
    let loads = Loads::of(round);
    let shards = &round.shards.cluster.shards;
    let mut recipients: Vec<usize> =
        (0..shards.len()).filter(|&at| !round.busy[at] && !shards[at].draining && !shards[at].settling).collect();
    recipients.sort_by_key(|&at| (loads.of[at], round.shards.used[at], at));
    let mut donors: Vec<usize> =
        recipients.iter().copied().filter(|&at| !shards[at].waiting && !loads.candidates[at].is_empty()).collect();
    donors.sort_by_key(|&at| (Reverse(loads.of[at]), at));
    let mut splits = Vec::new();
    for from in donors {
        if round.busy[from] {
            continue;
        }
        recipients.retain(|&to| !round.busy[to]);
        let differ = |to: &usize| loads.of[from].saturating_sub(loads.of[*to]) > loads.threshold;
        let mut tried = recipients.iter().copied().take_while(differ).take(TRIED_RECIPIENTS);
        match tried.find_map(|to| choose(round, &loads, from, to).map(|step| (step, to))) {
            Some((Step::Move(Candidate { collection, chunk, .. }), to)) => {
                round.push(collection, chunk..chunk + 1, from, to, Reason::Load);
            }
            Some((Step::Split(Candidate { collection, chunk, .. }), _)) => {
                splits.push(Split { collection, chunk, cut: Cut::Load });
            }
            None => {}
        }
    }
    splits.sort_unstable_by_key(|split| (split.collection, split.chunk));
    splits
}

/// Chooses the next step that brings the loads of two shards closer to each other; None if there is none. See the header.
fn choose(round: &Round<'_>, loads: &Loads, from: usize, to: usize) -> Option<Step> {
    let cluster = round.shards.cluster;
    let difference = loads.of[from] - loads.of[to];
    let lack = loads.mean.saturating_sub(loads.of[to]);
    let limit = (difference / 2).min(lack.saturating_add(loads.threshold / 2));
    let may_take = |candidate: &&Candidate| {
        let chunk = &cluster.collections[candidate.collection].chunks[candidate.chunk];
        round.shards.allows(to, chunk.zone)
            && round.shards.has_room(to, chunk.bytes)
            && round.may_exchange(candidate.collection, from, to)
    };
    let is_movable = |candidate: &&Candidate| !cluster.collections[candidate.collection].chunks[candidate.chunk].pinned;
    let here = || loads.candidates[from].iter().filter(may_take);
    let fitting = here().filter(is_movable).filter(|one| one.load <= limit).max_by_key(|one| one.load).copied();
    if let Some(fitting) = fitting.filter(|one| one.load >= limit / 2) {
        return Some(Step::Move(fitting));
    }
    let divisible = here().filter(|one| one.divisible && one.load > limit).max_by_key(|one| one.load);
    if let Some(divisible) = divisible {
        return Some(Step::Split(*divisible));
    }
    if let Some(fitting) = fitting.filter(|one| one.load >= loads.threshold / 16) {
        return Some(Step::Move(fitting));
    }
    let larger = here().filter(is_movable).filter(|one| one.load > limit && one.load <= difference / 2);
    larger.min_by_key(|one| one.load).copied().map(Step::Move)
}
