//! Properties of the policy for load, on generated clusters whose plans are executed until there is none.

use super::load::LEAST_DIFFERENCE;
use super::state::*;
use super::*;
use crate::cluster::chunk_map::ShardId;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

/// Operations a second, in the policy's unit.
const S: u64 = 1000;

fn shard(id: ShardId) -> Shard {
    Shard {
        id,
        draining: false,
        max_bytes: None,
        unavailable: false,
        zones: Vec::new(),
        other_load: 0,
        settling: false,
        waiting: false,
    }
}

fn load(total: u64) -> Load {
    Load { total, halves: (total > 1).then_some((total / 2, total - total / 2)) }
}

fn chunk(shard: ShardId, total: u64) -> Chunk {
    Chunk {
        shard,
        documents: 1000,
        bytes: 1 << 20,
        zone: None,
        straddles: false,
        jumbo: false,
        pinned: false,
        resting: false,
        load: load(total),
    }
}

/// A chunk whose accesses are all to one key, so that it cannot be split.
fn one_key(shard: ShardId, total: u64) -> Chunk {
    Chunk { load: Load { total, halves: None }, ..chunk(shard, 0) }
}

fn cluster(shards: i32, chunks: Vec<Chunk>) -> Cluster {
    let collection =
        Collection { chunk_size: 128 << 20, balance: true, by_load: true, chunks, resting: BTreeSet::new() };
    Cluster { shards: (1..=shards).map(shard).collect(), collections: vec![collection] }
}

fn loads(cluster: &Cluster) -> Vec<u64> {
    let chunks = || cluster.collections.iter().flat_map(|collection| &collection.chunks);
    let of = |shard: &Shard| -> u64 { chunks().filter(|c| c.shard == shard.id).map(|chunk| chunk.load.total).sum() };
    cluster.shards.iter().map(|shard| shard.other_load + of(shard)).collect()
}

fn squares(cluster: &Cluster) -> u128 {
    loads(cluster).iter().map(|load| u128::from(*load).pow(2)).sum()
}

/// Executes plans until there is none, and checks each step. Returns the numbers of splits and of moves.
fn converge(cluster: &mut Cluster) -> (usize, usize) {
    let (mut splits, mut moves) = (0, 0);
    for _ in 0..10_000 {
        let plan = plan(cluster);
        if plan.is_empty() {
            return (splits, moves);
        }
        assert!(plan.splits.is_empty() || plan.moves.is_empty());
        for split in plan.splits.iter().rev() {
            assert_eq!(split.cut, Cut::Load);
            let collection = &mut cluster.collections[split.collection];
            let whole = collection.chunks[split.chunk].clone();
            let (below, above) = whole.load.halves.expect("only what can be divided");
            assert!(collection.by_load && collection.balance && !whole.jumbo);
            let halves = [below, above].map(|total| Chunk { load: load(total), ..whole.clone() });
            collection.chunks.splice(split.chunk..=split.chunk, halves);
            splits += 1;
        }
        let mut busy = BTreeSet::new();
        for step in &plan.moves {
            assert!(busy.insert(step.from) && busy.insert(step.to), "one move a shard");
            let at = |id| cluster.shards.iter().position(|shard| shard.id == id).expect("a shard");
            let (from, to) = (at(step.from), at(step.to));
            let before = loads(cluster);
            let squared = squares(cluster);
            let recipient = cluster.shards[to].clone();
            let collection = &mut cluster.collections[step.collection];
            let chunk = &mut collection.chunks[step.chunks.start];
            assert_eq!((step.chunks.len(), chunk.shard, step.reason), (1, step.from, Reason::Load));
            assert!(collection.by_load && collection.balance && !chunk.jumbo && !chunk.pinned && !chunk.resting);
            assert!(!recipient.draining && !recipient.unavailable && !recipient.settling);
            assert!(!cluster.shards[from].settling && chunk.zone.is_none_or(|zone| recipient.zones.contains(&zone)));
            assert!(!collection.resting.contains(&(step.from, step.to)), "the pair rests");
            assert!(before[from] - before[to] > LEAST_DIFFERENCE);
            chunk.shard = step.to;
            let after = loads(cluster);
            assert!(after[to] <= after[from], "never past each other: {before:?} {after:?}");
            assert!(squares(cluster) < squared);
            moves += 1;
        }
        assert!(plan.merges.is_empty());
    }
    panic!("does not converge");
}

/// True if no two shards differ by more than the threshold.
fn is_even(cluster: &Cluster) -> bool {
    let loads = loads(cluster);
    let mean = loads.iter().sum::<u64>() / loads.len() as u64;
    let threshold = LEAST_DIFFERENCE.max(mean / 4);
    loads.iter().max().unwrap() - loads.iter().min().unwrap() <= threshold
}

#[test]
fn a_hot_chunk_is_split_and_a_half_moves() {
    let mut cluster = cluster(2, vec![chunk(1, 1000 * S), chunk(2, 0)]);
    assert_eq!(converge(&mut cluster), (1, 1));
    assert_eq!(loads(&cluster), [500 * S, 500 * S]);
}

#[test]
fn a_hot_range_is_divided_over_all_shards() {
    let mut cluster = cluster(10, (1..=10).map(|at| chunk(at, if at == 3 { 5000 * S } else { 0 })).collect());
    let (splits, moves) = converge(&mut cluster);
    assert!(is_even(&cluster) && splits <= 40 && moves <= 40, "{splits} {moves} {:?}", loads(&cluster));
}

#[test]
fn differences_that_are_small_stay() {
    // Differences below a quarter of the mean, and below `LEAST_DIFFERENCE`.
    for rates in [[1000, 1100, 1200], [0, 5, 19]] {
        let chunks = rates.iter().zip(1..).flat_map(|(rate, id)| vec![chunk(id, rate * S / 10); 10]).collect();
        assert_eq!(converge(&mut cluster(3, chunks)), (0, 0));
    }
}

#[test]
fn a_hot_key_stays_and_the_rest_of_its_shard_moves() {
    let mut chunks = vec![one_key(1, 2000 * S)];
    chunks.extend(vec![chunk(1, 100 * S); 6]);
    chunks.extend((2..=4).map(|id| chunk(id, 200 * S)));
    let mut cluster = cluster(4, chunks);
    let (splits, moves) = converge(&mut cluster);
    assert_eq!((splits, moves), (0, 6));
    assert_eq!(cluster.collections[0].chunks[0].shard, 1);
    assert_eq!(loads(&cluster), [2000 * S, 400 * S, 400 * S, 400 * S]);
}

#[test]
fn a_shard_that_settles_takes_part_in_nothing() {
    for settling in [0, 1] {
        let mut cluster = cluster(2, vec![chunk(1, 500 * S), chunk(1, 500 * S)]);
        cluster.shards[settling].settling = true;
        assert!(plan(&cluster).is_empty());
        // Draining does not wait.
        cluster.shards[0].draining = true;
        assert_eq!(plan(&cluster).moves.len(), 1);
    }
}

#[test]
fn only_a_shard_that_has_been_busy_for_long_gives_chunks_away() {
    let mut chunks = vec![chunk(1, 250 * S); 4];
    chunks.push(chunk(2, 100 * S));
    let mut cluster = cluster(3, chunks);
    let (mut patience, delay) = (Patience::default(), Duration::from_secs(300));
    let mut plans = |cluster: &mut Cluster, seconds: u64| {
        let now = Duration::from_secs(seconds);
        patience.note(cluster, now);
        patience.mark(cluster, now, delay);
        (cluster.shards.iter().map(|shard| shard.waiting).collect::<Vec<_>>(), plan(cluster).moves.len())
    };
    assert_eq!(plans(&mut cluster, 0), (vec![true; 3], 0));
    assert_eq!(plans(&mut cluster, 299), (vec![true; 3], 0));
    // A measurement without load restarts the delay.
    let mut quiet = cluster.clone();
    quiet.collections[0].chunks.iter_mut().for_each(|chunk| chunk.load = Load::default());
    assert_eq!(plans(&mut quiet, 299), (vec![true; 3], 0));
    assert_eq!(plans(&mut cluster, 310), (vec![true; 3], 0));
    assert_eq!(plans(&mut cluster, 609), (vec![true; 3], 0));
    assert_eq!(plans(&mut cluster, 610), (vec![false, false, true], 1));
    // Only moves for load wait.
    cluster.shards[0].draining = true;
    assert_eq!(plans(&mut cluster, 0).1, 1);
}

#[test]
fn the_load_of_other_collections_counts_but_does_not_move() {
    // The second collection is balanced by bytes, and even.
    let mut cluster = cluster(2, vec![chunk(1, 100 * S), chunk(2, 100 * S)]);
    let bytes =
        Collection { by_load: false, chunks: vec![chunk(1, 1000 * S), chunk(2, 0)], ..cluster.collections[0].clone() };
    cluster.collections.push(bytes);
    converge(&mut cluster);
    assert_eq!(loads(&cluster), [1000 * S, 200 * S]);
    // The same holds for the load of collections that are not listed.
    cluster.collections.pop();
    cluster.collections[0].chunks.iter_mut().for_each(|chunk| chunk.shard = 1);
    cluster.shards[1].other_load = 1000 * S;
    assert_eq!(converge(&mut cluster), (0, 0));
}

#[test]
fn bytes_are_not_evened_out() {
    let chunks: Vec<Chunk> = (0..40).map(|_| Chunk { bytes: 100 << 20, ..chunk(1, 0) }).collect();
    let mut cluster = cluster(3, chunks);
    assert!(plan(&cluster).is_empty());
    assert_eq!(compliance(&cluster, 0), Compliance::Compliant);
    cluster.collections[0].by_load = false;
    assert!(!plan(&cluster).moves.is_empty());
}

#[test]
fn chunks_that_were_split_for_their_load_are_not_merged() {
    let rate = |at: usize| if at.is_multiple_of(10) { 30 * S } else { 0 };
    let chunks = (0..100).map(|at| Chunk { bytes: if at < 50 { 1000 } else { 10 << 20 }, ..chunk(1, rate(at)) });
    let cluster = Cluster { shards: vec![shard(1)], ..cluster(1, chunks.collect()) };
    for merge in plan(&cluster).merges {
        assert!(cluster.collections[0].chunks[merge.chunks].iter().all(|chunk| chunk.load.total == 0));
    }
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let shards = prop::collection::vec(
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.1), 0..3u32, 0..2000u64),
        2..8,
    );
    shards.prop_flat_map(|shards| {
        let shards: Vec<Shard> = shards
            .into_iter()
            .zip(1..)
            .map(|((draining, settling, unavailable, zone, other), id)| Shard {
                draining,
                settling,
                unavailable,
                other_load: if other < 1000 { 0 } else { other * S },
                zones: vec![zone],
                ..shard(id)
            })
            .collect();
        let owners = shards.len() as i32;
        let values = (1..=owners, 0..3000u64, 0..4u32, prop::bool::weighted(0.05), prop::bool::weighted(0.1), 0..12u32);
        let chunk = values.prop_map(|(shard, rate, kind, jumbo, pinned, zone)| {
            let rate = rate * S / if kind == 0 { 1 } else { 50 };
            let of = if kind == 1 { one_key(shard, rate) } else { chunk(shard, rate) };
            Chunk { jumbo, pinned, zone: (zone < 3).then_some(zone), ..of }
        });
        let collection = (prop::collection::vec(chunk, 1..40), prop::bool::weighted(0.8), prop::bool::weighted(0.9));
        let collection = collection.prop_map(|(chunks, by_load, balance)| Collection {
            chunk_size: 128 << 20,
            balance,
            by_load,
            chunks,
            resting: BTreeSet::new(),
        });
        let collections = prop::collection::vec(collection, 1..4);
        (Just(shards), collections).prop_map(|(shards, collections)| Cluster { shards, collections })
    })
}

/// Balances all collections by load, and removes the chunks that the rules for zones and draining would move.
fn only_load(mut cluster: Cluster) -> Cluster {
    for collection in &mut cluster.collections {
        collection.by_load = true;
        let shards = &cluster.shards;
        collection.chunks.retain(|chunk| {
            let shard = shards.iter().find(|shard| shard.id == chunk.shard).expect("a shard");
            !shard.draining && chunk.zone.is_none_or(|zone| shard.zones.contains(&zone))
        });
    }
    cluster
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn it_converges(cluster in any_cluster()) {
        let mut cluster = only_load(cluster);
        // Each step checks the invariants.
        converge(&mut cluster);
        prop_assert!(plan(&cluster).is_empty());
    }

    #[test]
    fn without_obstacles_it_ends_even(cluster in any_cluster()) {
        let mut cluster = only_load(cluster);
        for shard in &mut cluster.shards {
            (shard.draining, shard.settling, shard.unavailable, shard.other_load) = (false, false, false, 0);
        }
        for collection in &mut cluster.collections {
            collection.balance = true;
            for chunk in &mut collection.chunks {
                (chunk.jumbo, chunk.pinned, chunk.zone, chunk.load) = (false, false, None, load(chunk.load.total));
            }
        }
        converge(&mut cluster);
        prop_assert!(is_even(&cluster), "{:?}", loads(&cluster));
    }

    #[test]
    fn collections_by_bytes_are_planned_as_without_loads(cluster in any_cluster()) {
        let mut cluster = cluster;
        cluster.collections.iter_mut().for_each(|collection| collection.by_load = false);
        let mut idle = cluster.clone();
        idle.shards.iter_mut().for_each(|shard| (shard.other_load, shard.settling) = (0, false));
        idle.collections.iter_mut().flat_map(|collection| &mut collection.chunks).for_each(|chunk| chunk.load = Load::default());
        prop_assert_eq!(plan(&cluster), plan(&idle));
    }
}
