//! Simulates the balancer's policy for load on large clusters, and reports its effort:
//!
//!     cargo run --release -p docshard-core --example simulate_load [SHARDS [SCENARIO]]
//!
//! A key has a rate; rates follow Zipf's law. Each step of 30 seconds the shards' smoothed rates are measured, with the error that
//! samples of them have, the policy is asked, and what it plans is done: splits at once, moves by the next step, at most as many at a time as
//! the setting `parallel_moves` may say. A shard that has got a chunk settles, a moved chunk is pinned, and a shard gives chunks away only after it
//! has been busy for a while, as by the worker.
//!
//! *excess*: the load above the threshold on all shards, in percent of all load, without that of single hot keys. *returned*: the moves
//! that brought a chunk back to a shard that it had left within an hour. A scenario whose loads do not
//! change fails if any returned, or if moves go on in its last hour; each fails if the excess at its end is more than it says.

use docshard_core::cluster::balancer::{Chunk, Cluster, Collection, Cut, Load, Patience, Reason, Shard, plan};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The length of a step, and the times that the worker has, in seconds.
const STEP_S: u32 = 30;
const HALF_LIFE_S: f64 = 60.0;
const SETTLE_S: u32 = 180;
const PIN_S: u32 = 600;
const DELAY: Duration = Duration::from_secs(300);
const PARALLEL_MOVES: usize = 100;
/// The samples of a shard.
const SAMPLES: f64 = 4000.0;

/// A reproducible generator of random numbers.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// About normal, with mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

struct Part {
    /// its keys, from start up to end
    keys: std::ops::Range<usize>,
    shard: usize,
    pinned_until: u32,
    /// the shards that it has left, and when
    left: Vec<(usize, u32)>,
}

/// A collection whose chunks have these keys.
struct World {
    /// the true rate of each key, in operations a second
    rates: Vec<f64>,
    /// the rates as the shards have smoothed them
    smoothed: Vec<f64>,
    chunks: Vec<Part>,
    shards: usize,
    settling_until: Vec<u32>,
    patience: Patience,
    dice: Dice,
}

#[derive(Default)]
struct Report {
    splits: usize,
    moves: usize,
    returned: usize,
    /// the time of the last move
    last_move: u32,
    /// the most moves within an hour
    in_hour: Vec<u32>,
}

impl World {
    fn new(shards: usize, chunks: usize, keys: usize, dice: Dice) -> Self {
        let part = |at: usize| Part {
            keys: at * keys / chunks..(at + 1) * keys / chunks,
            shard: at * shards / chunks,
            pinned_until: 0,
            left: Vec::new(),
        };
        let chunks = (0..chunks).map(part).collect();
        Self {
            rates: vec![0.0; keys],
            smoothed: vec![0.0; keys],
            chunks,
            shards,
            settling_until: vec![0; shards],
            patience: Patience::default(),
            dice,
        }
    }

    /// Gives keys rates by Zipf's law: the hottest one is at the key that `place` gives rank 0.
    fn zipf(&mut self, total: f64, exponent: f64, place: impl Fn(usize) -> usize) {
        let keys = self.rates.len();
        let weights: Vec<f64> = (0..keys).map(|rank| 1.0 / ((rank + 1) as f64).powf(exponent)).collect();
        let sum: f64 = weights.iter().sum();
        for (rank, weight) in weights.iter().enumerate() {
            self.rates[place(rank) % keys] = total * weight / sum;
        }
    }

    fn shuffled(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.rates.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.dice.below(at + 1));
        }
        order
    }

    fn smooth(&mut self) {
        let kept = (-f64::from(STEP_S) / HALF_LIFE_S).exp2();
        for (smoothed, rate) in self.smoothed.iter_mut().zip(&self.rates) {
            *smoothed = *smoothed * kept + rate * (1.0 - kept);
        }
    }

    fn loads(&self, of: &[f64]) -> Vec<f64> {
        let mut loads = vec![0.0; self.shards];
        for chunk in &self.chunks {
            loads[chunk.shard] += of[chunk.keys.clone()].iter().sum::<f64>();
        }
        loads
    }

    /// The key before which a chunk would be split, and the rates of the parts; None if one key has most accesses.
    fn halves(&self, keys: &std::ops::Range<usize>) -> Option<(usize, f64, f64)> {
        let total: f64 = self.smoothed[keys.clone()].iter().sum();
        let (mut below, mut best) = (0.0, None::<(f64, usize, f64)>);
        for key in keys.clone() {
            let apart = (total - 2.0 * below).abs();
            if key > keys.start && best.is_none_or(|(least, ..)| apart < least) {
                best = Some((apart, key, below));
            }
            below += self.smoothed[key];
        }
        let (_, key, below) = best?;
        (below.min(total - below) >= total / 16.0).then_some((key, below, total - below))
    }

    fn describe(&mut self, now: u32) -> Cluster {
        let exact = self.loads(&self.smoothed);
        let milli = |rate: f64| (rate.max(0.0) * 1000.0) as u64;
        let mut chunks = Vec::with_capacity(self.chunks.len());
        for at in 0..self.chunks.len() {
            let part = &self.chunks[at];
            let rate: f64 = self.smoothed[part.keys.clone()].iter().sum();
            let samples = if exact[part.shard] > 0.0 { SAMPLES * rate / exact[part.shard] } else { 0.0 };
            let halves = self.halves(&part.keys).filter(|_| samples >= 30.0);
            let (shard, pinned) = (part.shard as ShardId, part.pinned_until > now);
            // The number of samples of a chunk has Poisson's distribution.
            let rate = if samples > 0.0 { rate * (1.0 + self.dice.normal() / samples.sqrt().max(1.0)) } else { 0.0 };
            chunks.push(Chunk {
                shard,
                documents: 1000,
                bytes: 1 << 20,
                zone: None,
                straddles: false,
                jumbo: false,
                pinned,
                resting: false,
                load: Load { total: milli(rate), halves: halves.map(|(_, below, above)| (milli(below), milli(above))) },
            });
        }
        let shards = (0..self.shards).map(|id| Shard {
            id: id as ShardId,
            draining: false,
            max_bytes: None,
            unavailable: false,
            zones: Vec::new(),
            other_load: 0,
            settling: self.settling_until[id] > now,
            waiting: false,
        });
        let (chunk_size, balance, by_load, resting) = (128 << 20, true, true, BTreeSet::new());
        let collection = Collection { chunk_size, balance, by_load, chunks, resting };
        Cluster { shards: shards.collect(), collections: vec![collection] }
    }

    /// Splits until the policy plans moves, which begin now and have ended by the next step.
    fn step(&mut self, now: u32, report: &mut Report) {
        let time = Duration::from_secs(now.into());
        for round in 0..20 {
            let mut cluster = self.describe(now);
            if round == 0 {
                self.patience.note(&cluster, time);
            }
            self.patience.mark(&mut cluster, time, DELAY);
            let steps = plan(&cluster);
            let mut cuts: Vec<usize> =
                steps.splits.iter().filter(|split| split.cut == Cut::Load).map(|split| split.chunk).collect();
            if cuts.is_empty() {
                for step in steps.moves.iter().filter(|step| step.reason == Reason::Load).take(PARALLEL_MOVES) {
                    self.shift(step.chunks.start, step.to as usize, now, report);
                }
                return;
            }
            cuts.sort_unstable();
            for at in cuts.into_iter().rev() {
                let keys = self.chunks[at].keys.clone();
                let Some((key, ..)) = self.halves(&keys) else { continue };
                let (shard, left) = (self.chunks[at].shard, self.chunks[at].left.clone());
                self.chunks[at].keys = keys.start..key;
                self.chunks.insert(at + 1, Part { keys: key..keys.end, shard, pinned_until: 0, left });
                report.splits += 1;
            }
        }
    }

    fn shift(&mut self, chunk: usize, to: usize, now: u32, report: &mut Report) {
        let part = &mut self.chunks[chunk];
        let from = std::mem::replace(&mut part.shard, to);
        report.returned += usize::from(part.left.iter().any(|&(shard, when)| shard == to && when + 3600 > now));
        part.left.push((from, now));
        part.pinned_until = now + PIN_S;
        self.settling_until[to] = now + SETTLE_S;
        // The recipient has no samples yet.
        let keys = part.keys.clone();
        self.smoothed[keys].fill(0.0);
        report.moves += 1;
        report.last_move = now;
        report.in_hour.push(now);
    }

    /// The load above the threshold, in percent, without single hot keys.
    fn excess(&self) -> f64 {
        let mean = self.rates.iter().sum::<f64>() / self.shards as f64;
        let mut hottest: HashMap<usize, f64> = HashMap::new();
        for chunk in &self.chunks {
            let key = self.rates[chunk.keys.clone()].iter().copied().fold(0.0, f64::max);
            let most = hottest.entry(chunk.shard).or_default();
            *most = most.max(key);
        }
        let over = |(shard, load): (usize, &f64)| {
            let allowed = (mean * 1.25).max(mean + 20.0).max(hottest.get(&shard).copied().unwrap_or(0.0));
            (load - allowed).max(0.0)
        };
        let over: f64 = self.loads(&self.rates).iter().enumerate().map(over).sum();
        over * 100.0 / (mean * self.shards as f64).max(1e-9)
    }
}

struct Scenario {
    name: &'static str,
    hours: u32,
    /// sets the loads at a time, in seconds; called each step
    change: fn(&mut World, u32),
    /// the largest excess at the end, in percent
    allowed: f64,
    /// loads have not changed for the last hour, or too shortly to be followed, so nothing may move in it
    is_steady: bool,
}

/// Operations a second on each shard, on average.
const EACH: f64 = 500.0;

fn scattered(world: &mut World, now: u32) {
    if now == 0 {
        let order = world.shuffled();
        world.zipf(EACH * world.shards as f64, 0.9, |rank| order[rank]);
    }
}

fn one_range(world: &mut World, now: u32) {
    if now == 0 {
        world.zipf(EACH * world.shards as f64, 0.7, |rank| rank);
    }
}

fn even(world: &mut World, now: u32) {
    if now == 0 {
        let keys = world.rates.len();
        world.rates.fill(EACH * world.shards as f64 / keys as f64);
    }
}

fn one_key(world: &mut World, now: u32) {
    even(world, now);
    let middle = world.rates.len() / 2;
    world.rates[middle] = EACH * world.shards as f64 / 10.0;
}

/// Another range is hot each hour.
fn wandering(world: &mut World, now: u32) {
    if now.is_multiple_of(3600) {
        let from = world.dice.below(world.rates.len());
        world.zipf(EACH * world.shards as f64, 0.7, |rank| from + rank);
    }
}

/// Another twentieth of the keys is four times as hot for half a minute each: too short to follow.
fn bursts(world: &mut World, now: u32) {
    even(world, 0);
    let keys = world.rates.len();
    let from = world.dice.below(keys);
    if (now / STEP_S).is_multiple_of(4) {
        (0..keys / 20).for_each(|key| world.rates[(from + key) % keys] *= 4.0);
    }
}

/// All loads rise and fall over a day of six hours.
fn daily(world: &mut World, now: u32) {
    scattered(world, now);
    let phase = |at: u32| 1.0 - 0.9 * (f64::from(at) / 21_600.0 * std::f64::consts::TAU).cos();
    if now > 0 {
        let factor = phase(now) / phase(now - STEP_S);
        world.rates.iter_mut().for_each(|rate| *rate *= factor);
    }
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "even", hours: 4, change: even, allowed: 0.0, is_steady: true },
    Scenario { name: "Zipf, hot keys scattered", hours: 8, change: scattered, allowed: 1.0, is_steady: true },
    Scenario { name: "Zipf, one hot range", hours: 8, change: one_range, allowed: 1.0, is_steady: true },
    Scenario { name: "one hot key", hours: 4, change: one_key, allowed: 1.0, is_steady: true },
    Scenario { name: "another hot range each hour", hours: 8, change: wandering, allowed: 100.0, is_steady: false },
    Scenario { name: "bursts of half a minute", hours: 4, change: bursts, allowed: 100.0, is_steady: true },
    Scenario { name: "day and night", hours: 12, change: daily, allowed: 2.0, is_steady: false },
];

fn run(scenario: &Scenario, shards: usize) -> bool {
    let mut world = World::new(shards, shards * 20, shards * 200, Dice(0x9e37_79b9_7f4a_7c15));
    let mut report = Report::default();
    let end = scenario.hours * 3600;
    let (mut before, mut slowest) = (0.0, std::time::Duration::ZERO);
    for now in (0..end).step_by(STEP_S as usize) {
        (scenario.change)(&mut world, now);
        world.smooth();
        if now == 0 {
            before = world.excess();
            // The loads have been like this for long.
            world.smoothed.clone_from(&world.rates);
        }
        let began = std::time::Instant::now();
        world.step(now, &mut report);
        slowest = slowest.max(began.elapsed());
    }
    let in_hour = report.in_hour.iter().enumerate();
    let most = in_hour.map(|(at, now)| report.in_hour[at..].partition_point(|then| *then < now + 3600)).max();
    let last_hour = report.in_hour.iter().filter(|now| **now + 3600 >= end).count();
    let after = world.excess();
    let mean = world.rates.iter().sum::<f64>() / shards as f64;
    let hottest = world.loads(&world.rates).into_iter().fold(0.0, f64::max) / mean;
    println!(
        "{:<28} {shards:>6} {:>7} {:>7} {:>10} {:>10} {:>9} {:>8.1} % {:>7.2} % {:>8.2} {:>9.1}",
        scenario.name,
        report.splits,
        report.moves,
        most.unwrap_or(0),
        last_hour,
        report.returned,
        before,
        after,
        hottest,
        slowest.as_secs_f64() * 1000.0
    );
    let good = after <= scenario.allowed && !(scenario.is_steady && (last_hour > 0 || report.returned > 0));
    if !good {
        println!("  FAILED");
    }
    good
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let sizes = arguments.first().map_or(vec![3, 30, 1000], |shards| vec![shards.parse().expect("SHARDS [SCENARIO]")]);
    let wanted = arguments.get(1).map_or("", String::as_str);
    println!(
        "{:<28} {:>6} {:>7} {:>7} {:>10} {:>10} {:>9} {:>10} {:>9} {:>8} {:>9}",
        "", "", "", "", "most in", "in the", "", "excess", "excess", "hottest/", "slowest"
    );
    println!(
        "{:<28} {:>6} {:>7} {:>7} {:>10} {:>10} {:>9} {:>10} {:>9} {:>8} {:>9}",
        "scenario", "shards", "splits", "moves", "an hour", "last hour", "returned", "before", "after", "mean", "ms"
    );
    let mut good = true;
    for shards in sizes {
        for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(wanted)) {
            good &= run(scenario, shards);
        }
    }
    if !good {
        std::process::exit(1);
    }
}
