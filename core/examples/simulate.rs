//! Simulates the balancer's policy on clusters far larger than fit on a machine, and reports its effort:
//!
//!     cargo run --release -p docshard-core --example simulate [SHARDS CHUNKS [SCENARIO]]
//!
//! Each scenario runs until the plan is empty: splits, moves and merges are executed at once, all moves of a round in parallel. A
//! chunk that moved is pinned, as by the worker. *moved/least*: the bytes that moved, compared with the least number that leads to
//! the same distribution. *astray*: the fraction of the bytes that were on a wrong shard initially and are still off the exact
//! target. A chunk that moves twice, a violated zone at the end, and a shard in two moves at once are failures.

use docshard_core::cluster::balancer::{Chunk, Cluster, Collection, Cut, Load, Shard, ZoneId, plan, spread};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

const MB: u64 = 1 << 20;

/// A reproducible generator of random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn shard(id: usize) -> Shard {
    Shard {
        id: id as ShardId,
        draining: false,
        max_bytes: None,
        unavailable: false,
        zones: Vec::new(),
        other_load: 0,
        settling: false,
        waiting: false,
    }
}

fn chunk(shard: usize, bytes: u64) -> Chunk {
    let documents = bytes / 1024;
    Chunk {
        shard: shard as ShardId,
        documents,
        bytes,
        zone: None,
        straddles: false,
        jumbo: false,
        pinned: false,
        resting: false,
        load: Load::default(),
    }
}

/// Chunks of 40 … 120 MB, equally many on each shard.
fn even(shards: usize, chunks: usize, collections: usize, dice: &mut Dice) -> Cluster {
    let collection = |_| Collection {
        chunk_size: 128 * MB,
        balance: true,
        by_load: false,
        chunks: (0..chunks / collections).map(|i| chunk(i % shards, (40 + dice.roll(80)) * MB)).collect(),
        resting: BTreeSet::new(),
    };
    Cluster { shards: (0..shards).map(shard).collect(), collections: (0..collections).map(collection).collect() }
}

/// The effort of a convergence.
#[derive(Default)]
struct Report {
    rounds: usize,
    moves: usize,
    moved: u64,
    least: u64,
    astray_before: u64,
    astray: u64,
    planning: Duration,
    slowest: Duration,
    failures: Vec<String>,
}

type Places = HashMap<(usize, Option<ZoneId>, ShardId), u64>;

/// The bytes of each class on each shard.
fn places(cluster: &Cluster) -> Places {
    let mut places = Places::new();
    for (i, collection) in cluster.collections.iter().enumerate() {
        for chunk in &collection.chunks {
            *places.entry((i, chunk.zone, chunk.shard)).or_default() += chunk.bytes;
        }
    }
    places
}

fn carry_out_splits(cluster: &mut Cluster, splits: &[docshard_core::cluster::balancer::Split]) {
    let mut cuts: HashMap<usize, HashMap<usize, u64>> = HashMap::new();
    for split in splits {
        let Cut::Parts(parts) = split.cut else { panic!("nothing straddles here") };
        cuts.entry(split.collection).or_default().insert(split.chunk, parts as u64);
    }
    for (collection, cuts) in cuts {
        let chunks = std::mem::take(&mut cluster.collections[collection].chunks);
        let parts = chunks.into_iter().enumerate().flat_map(|(i, whole)| {
            let n = cuts.get(&i).copied().unwrap_or(1);
            (0..n).map(move |_| Chunk { bytes: whole.bytes / n, documents: whole.documents / n, ..whole.clone() })
        });
        cluster.collections[collection].chunks = parts.collect();
    }
}

/// Executes plans until there is none.
fn converge(cluster: &mut Cluster) -> Report {
    let mut report = Report::default();
    let mut moved: HashSet<(usize, usize)> = HashSet::new();
    let mut before = None;
    loop {
        let began = Instant::now();
        let plan = plan(cluster);
        let took = began.elapsed();
        report.planning += took;
        report.slowest = report.slowest.max(took);
        if plan.is_empty() {
            break;
        }
        report.rounds += 1;
        if !plan.splits.is_empty() {
            carry_out_splits(cluster, &plan.splits);
            continue;
        }
        let before = before.get_or_insert_with(|| {
            report.astray_before = spread(cluster).astray;
            places(cluster)
        });
        let mut busy = HashSet::new();
        for step in &plan.moves {
            if !busy.insert(step.from) || !busy.insert(step.to) {
                report.failures.push(format!("shard {} or {} in two moves at once", step.from, step.to));
            }
            report.moves += 1;
            for at in step.chunks.clone() {
                if !moved.insert((step.collection, at)) {
                    report.failures.push(format!("chunk {at} of {} moved twice", step.collection));
                }
                let chunk = &mut cluster.collections[step.collection].chunks[at];
                report.moved += chunk.bytes;
                chunk.shard = step.to;
                chunk.pinned = true;
            }
        }
        if plan.moves.is_empty() {
            // Merges come last, so the least number is computed before positions change.
            report.least = least(before, &places(cluster));
            for merge in plan.merges.iter().rev() {
                let chunks = &mut cluster.collections[merge.collection].chunks;
                let (bytes, documents) = chunks[merge.chunks.clone()]
                    .iter()
                    .fold((0, 0), |(bytes, documents), chunk| (bytes + chunk.bytes, documents + chunk.documents));
                let whole = Chunk { bytes, documents, ..chunks[merge.chunks.start].clone() };
                chunks.splice(merge.chunks.clone(), [whole]);
            }
            moved.clear();
        }
    }
    if let Some(before) = before
        && report.least == 0
    {
        report.least = least(&before, &places(cluster));
    }
    report.astray = spread(cluster).astray;
    for chunk in cluster.collections.iter().flat_map(|collection| &collection.chunks) {
        let shard = &cluster.shards[chunk.shard as usize];
        if shard.draining || chunk.zone.is_some_and(|zone| !shard.zones.contains(&zone)) {
            report.failures.push(format!("a chunk of zone {:?} is left on shard {}", chunk.zone, shard.id));
        }
    }
    report
}

/// The least number of bytes that must move from one state to the other.
fn least(before: &Places, after: &Places) -> u64 {
    after.iter().map(|(place, bytes)| bytes.saturating_sub(before.get(place).copied().unwrap_or(0))).sum()
}

fn show(name: &str, cluster: &mut Cluster) -> bool {
    let shards = cluster.shards.len();
    let report = converge(cluster);
    let chunks: usize = cluster.collections.iter().map(|collection| collection.chunks.len()).sum();
    let gb = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    println!(
        "{name:<34} {shards:>6} {chunks:>9} {:>7} {:>8} {:>11.1} {:>11.3} {:>7.2} % {:>9.1} {:>9.1}",
        report.rounds,
        report.moves,
        gb(report.moved),
        if report.least == 0 { 1.0 } else { report.moved as f64 / report.least as f64 },
        if report.astray_before == 0 { 0.0 } else { report.astray as f64 * 100.0 / report.astray_before as f64 },
        report.planning.as_secs_f64() * 1000.0 / (report.rounds + 1) as f64,
        report.slowest.as_secs_f64() * 1000.0,
    );
    for failure in report.failures.iter().take(5) {
        println!("  FAILED: {failure}");
    }
    report.failures.is_empty()
}

fn scenarios(shards: usize, chunks: usize, wanted: &str) -> bool {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut good = true;

    let mut cluster = even(shards, chunks, 1, &mut dice);
    let added = (shards / 10).max(1);
    cluster.shards.extend((shards..shards + added).map(shard));
    good &= !"a tenth more shards".contains(wanted) || show("a tenth more shards", &mut cluster);

    let mut cluster = even(shards, chunks, 1, &mut dice);
    cluster.shards.push(shard(shards));
    good &= !"one more shard".contains(wanted) || show("one more shard", &mut cluster);

    let mut cluster = even(shards, chunks, 1, &mut dice);
    for shard in cluster.shards.iter_mut().take((shards / 20).max(1)) {
        shard.draining = true;
    }
    good &= !"a twentieth drained".contains(wanted) || show("a twentieth drained", &mut cluster);

    let mut cluster = even(shards, chunks, 1, &mut dice);
    // Growth at the end of the key space: the chunks there fill up, and are split.
    let hot = cluster.collections[0].chunks.len() * 9 / 10;
    for chunk in &mut cluster.collections[0].chunks[hot..] {
        chunk.bytes += dice.roll(400) * MB * u64::from((chunk.shard as usize).is_multiple_of(3));
        chunk.documents = chunk.bytes / 1024;
    }
    good &= !"skewed growth".contains(wanted) || show("skewed growth", &mut cluster);

    let mut cluster = even(shards, chunks, 1, &mut dice);
    // Five zones of a fifth of the shards; nine tenths of the keys lie in one, none where it belongs.
    for (i, shard) in cluster.shards.iter_mut().enumerate() {
        shard.zones = vec![i as ZoneId % 5];
    }
    let total = cluster.collections[0].chunks.len();
    for (i, chunk) in cluster.collections[0].chunks.iter_mut().enumerate() {
        chunk.zone = (i % 10 > 0).then_some((i * 5 / total) as ZoneId);
    }
    good &= !"five zones, set at once".contains(wanted) || show("five zones, set at once", &mut cluster);

    let mut cluster = even(shards, chunks, 100.min(chunks / shards), &mut dice);
    cluster.shards.extend((shards..shards + added).map(shard));
    good &= !"a tenth more shards, 100 collections".contains(wanted)
        || show("a tenth more shards, 100 collections", &mut cluster);

    let mut cluster = even(shards, chunks, 1, &mut dice);
    for (i, shard) in cluster.shards.iter_mut().enumerate() {
        shard.zones = vec![i as ZoneId % 2];
        shard.draining = i % 50 == 7;
    }
    let total = cluster.collections[0].chunks.len();
    for (i, chunk) in cluster.collections[0].chunks.iter_mut().enumerate() {
        chunk.zone = (i < total / 4).then_some(1);
        if dice.roll(10) == 0 {
            (chunk.bytes, chunk.documents) = (0, 0);
        }
        chunk.jumbo = dice.roll(1000) == 0;
    }
    cluster.shards.extend((shards..shards + added).map(|id| Shard { zones: vec![1], ..shard(id) }));
    good &= !"zones, drains, purges, new shards".contains(wanted)
        || show("zones, drains, purges, new shards", &mut cluster);
    good
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("SHARDS CHUNKS [SCENARIO]");
    let sizes = match arguments.len() {
        0 => vec![(10, 1_000), (100, 10_000), (100, 100_000), (1_000, 100_000), (1_000, 1_000_000)],
        _ => vec![(number(0), number(1))],
    };
    let wanted = arguments.get(2).map_or("", String::as_str);
    println!(
        "{:<34} {:>6} {:>9} {:>7} {:>8} {:>11} {:>11} {:>9} {:>9} {:>9}",
        "", "", "", "", "", "moved", "moved/", "", "planning", "slowest"
    );
    println!(
        "{:<34} {:>6} {:>9} {:>7} {:>8} {:>11} {:>11} {:>9} {:>9} {:>9}",
        "scenario", "shards", "chunks", "rounds", "moves", "GiB", "least", "astray", "ms/round", "ms"
    );
    let mut good = true;
    for (shards, chunks) in sizes {
        good &= scenarios(shards, chunks, wanted);
    }
    if !good {
        std::process::exit(1);
    }
}
