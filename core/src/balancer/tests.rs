//! Properties of the policy, on made clusters that are driven until nothing is left to do.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

const MB: u64 = 1 << 20;

fn shard(id: ShardId) -> Shard {
    Shard { id, draining: false, max_bytes: None, unavailable: false }
}

fn chunk(shard: ShardId, bytes: u64) -> Chunk {
    Chunk { shard, documents: bytes / 500, bytes, jumbo: false, pinned: false }
}

fn cluster(shards: i32, chunks: Vec<Chunk>) -> Cluster {
    let collection = Collection { chunk_size: 128 * MB, balance: true, chunks };
    Cluster { shards: (1..=shards).map(shard).collect(), collections: vec![collection] }
}

fn weights(cluster: &Cluster, collection: usize) -> BTreeMap<ShardId, u64> {
    let mut weights: BTreeMap<_, _> = cluster.shards.iter().map(|shard| (shard.id, 0)).collect();
    for chunk in &cluster.collections[collection].chunks {
        *weights.get_mut(&chunk.shard).expect("a shard of the cluster") += weight(chunk);
    }
    weights
}

fn used(cluster: &Cluster, shard: ShardId) -> u64 {
    let chunks = cluster.collections.iter().flat_map(|collection| &collection.chunks);
    chunks.filter(|chunk| chunk.shard == shard).map(|chunk| chunk.bytes).sum()
}

/// What a convergence took.
#[derive(Debug, Default)]
struct Report {
    rounds: usize,
    moves: usize,
    moved_bytes: u64,
}

/// Carries plans out until there is none, and checks each step; `pin` as the worker does.
fn converge(cluster: &mut Cluster, pin: bool) -> Report {
    let mut report = Report::default();
    let mut moved = HashSet::new();
    loop {
        let plan = plan(cluster);
        if plan.is_empty() {
            return report;
        }
        report.rounds += 1;
        assert!(report.rounds < 100_000, "does not converge");
        assert!(plan.splits.is_empty() || plan.moves.is_empty());
        // From behind, so that positions stay good.
        for split in plan.splits.iter().rev() {
            let chunks = &mut cluster.collections[split.collection].chunks;
            let whole = chunks[split.chunk].clone();
            let into = split.into as u64;
            assert!(into >= 2 && into <= whole.documents && !whole.jumbo);
            let part = |i: u64| Chunk {
                documents: whole.documents * (i + 1) / into - whole.documents * i / into,
                bytes: whole.bytes * (i + 1) / into - whole.bytes * i / into,
                ..whole.clone()
            };
            chunks.splice(split.chunk..=split.chunk, (0..into).map(part));
        }
        let mut taking_part = HashSet::new();
        for step in &plan.moves {
            assert!(taking_part.insert(step.from) && taking_part.insert(step.to), "one move a shard");
            let to = cluster.shards.iter().find(|shard| shard.id == step.to).expect("a shard of the cluster").clone();
            assert!(!to.draining && !to.unavailable);
            let before = weights(cluster, step.collection);
            let chunk = &mut cluster.collections[step.collection].chunks[step.chunk];
            assert_eq!(chunk.shard, step.from);
            let (weight, bytes) = (weight(chunk), chunk.bytes);
            if step.reason == Reason::Evenness {
                assert!(!chunk.jumbo && !chunk.pinned && cluster.collections[step.collection].balance);
                assert!(before[&step.to] + weight <= before[&step.from] - weight, "never past each other");
            }
            let chunk = &mut cluster.collections[step.collection].chunks[step.chunk];
            chunk.shard = step.to;
            chunk.pinned |= pin;
            assert!(to.max_bytes.is_none_or(|max| used(cluster, step.to) <= max), "never past max_size");
            if pin && step.reason == Reason::Evenness {
                assert!(moved.insert((step.collection, step.chunk)), "no chunk twice");
            }
            report.moves += 1;
            report.moved_bytes += bytes;
        }
    }
}

#[test]
fn a_young_collection_spreads_over_all_shards() {
    let mut cluster = cluster(3, vec![chunk(1, 90 * MB)]);
    converge(&mut cluster, true);
    let weights = weights(&cluster, 0);
    assert!(weights.values().all(|&w| (29 * MB..31 * MB).contains(&w)), "{weights:?}");
}

#[test]
fn as_many_chunks_as_shards_means_one_for_each() {
    for sizes in [[0, 0, 0], [700, 10, 3000], [9 * MB, MB, 2 * MB]] {
        let mut cluster = cluster(3, sizes.iter().map(|&bytes| chunk(2, bytes)).collect());
        cluster.collections[0].chunk_size = 128 * MB;
        converge(&mut cluster, true);
        assert!(weights(&cluster, 0).values().all(|&w| w > 0), "{cluster:?}");
    }
}

#[test]
fn a_tiny_collection_stays_whole() {
    let mut cluster = cluster(3, vec![chunk(1, 300_000)]);
    assert_eq!(converge(&mut cluster, true).rounds, 0);
}

#[test]
fn large_collections_bear_three_chunks_of_difference() {
    let chunks: Vec<_> = (0..200).map(|i| chunk(if i < 101 { 1 } else { 2 }, 100 * MB)).collect();
    assert!(plan(&cluster(2, chunks)).is_empty());
    let chunks: Vec<_> = (0..200).map(|i| chunk(if i < 104 { 1 } else { 2 }, 100 * MB)).collect();
    assert_eq!(plan(&cluster(2, chunks)).moves.len(), 1);
}

#[test]
fn draining_comes_first_and_takes_jumbo_and_unbalanced_ones_too() {
    let mut cluster = cluster(3, (0..9).map(|i| chunk(i % 3 + 1, 60 * MB)).collect());
    cluster.shards[0].draining = true;
    cluster.collections[0].chunks[0].jumbo = true;
    cluster.collections[0].chunks[3].pinned = true;
    cluster.collections[0].balance = false;
    let report = converge(&mut cluster, true);
    assert_eq!((report.moves, used(&cluster, 1)), (3, 0));
}

#[test]
fn two_moves_at_once_where_shards_allow() {
    let mut chunks = Vec::new();
    for shard in [1, 2] {
        chunks.extend((0..40).map(|_| chunk(shard, 100 * MB)));
    }
    assert_eq!(plan(&cluster(4, chunks)).moves.len(), 2);
}

#[test]
fn unavailable_shards_rest() {
    let mut cluster = cluster(3, (0..30).map(|_| chunk(1, 100 * MB)).collect());
    cluster.shards[1].unavailable = true;
    let plan = plan(&cluster);
    assert_eq!((plan.moves.len(), plan.moves[0].to), (1, 3));
}

#[test]
fn a_new_shard_takes_little_more_than_its_part() {
    let chunks: Vec<_> = (0..400).map(|i| chunk(i % 4 + 1, (40 + u64::from(i as u32) * 7 % 60) * MB)).collect();
    let mut cluster = cluster(5, chunks);
    let total: u64 = weights(&cluster, 0).values().sum();
    let report = converge(&mut cluster, true);
    assert!(report.moved_bytes <= total / 5 * 11 / 10, "{report:?}");
    let weights = weights(&cluster, 0);
    let gap = weights.values().max().expect("shards") - weights.values().min().expect("shards");
    assert!(gap <= 3 * 128 * MB, "{weights:?}");
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    (2..8i32, 1..4usize).prop_flat_map(|(shards, collections)| {
        let shards = (1..=shards)
            .map(|id| {
                (prop::bool::weighted(0.15), prop::option::weighted(0.2, 0..2000u64))
                    .prop_map(move |(draining, max)| Shard { draining, max_bytes: max.map(|mb| mb * MB), ..shard(id) })
            })
            .collect::<Vec<_>>();
        let owners = shards.len() as i32;
        let chunk =
            (1..=owners, 0..300 * MB, prop::bool::weighted(0.05), 0..4u32).prop_map(|(shard, bytes, jumbo, tiny)| {
                Chunk { jumbo, ..chunk(shard, if tiny == 0 { bytes / 10_000 } else { bytes }) }
            });
        let collection = (prop::collection::vec(chunk, 1..40), prop::bool::weighted(0.9), 1..128u64)
            .prop_map(|(chunks, balance, mb)| Collection { chunk_size: mb * MB, balance, chunks });
        (shards, prop::collection::vec(collection, collections))
            .prop_map(|(shards, collections)| Cluster { shards, collections })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_converges(mut cluster in any_cluster(), pin: bool) {
        let report = converge(&mut cluster, pin);
        let chunks: usize = cluster.collections.iter().map(|collection| collection.chunks.len()).sum();
        let most = if pin { 1 } else { 4 };
        // A chunk that was spread and then drained counts twice.
        prop_assert!(report.moves <= (most + 1) * chunks, "{} moves of {chunks} chunks", report.moves);
        let open = cluster.shards.iter().any(|shard| !shard.draining && shard.max_bytes.is_none());
        for shard in cluster.shards.iter().filter(|shard| shard.draining && open) {
            prop_assert_eq!(used(&cluster, shard.id), 0);
        }
    }

    #[test]
    fn without_obstacles_it_ends_even(mut cluster in any_cluster()) {
        for shard in &mut cluster.shards {
            (shard.draining, shard.max_bytes) = (false, None);
        }
        for collection in &mut cluster.collections {
            collection.balance = true;
            collection.chunks.iter_mut().for_each(|chunk| chunk.jumbo = false);
        }
        converge(&mut cluster, false);
        for (i, collection) in cluster.collections.iter().enumerate() {
            let weights = weights(&cluster, i);
            let gap = weights.values().max().unwrap() - weights.values().min().unwrap();
            let ideal = weights.values().sum::<u64>() / weights.len() as u64;
            let largest = collection.chunks.iter().map(weight).max().unwrap();
            let allowed = (3 * collection.chunk_size).min(ideal / 8).max(2 * largest);
            prop_assert!(gap <= allowed, "{gap} of {allowed}, {weights:?}");
        }
    }

    #[test]
    fn what_is_even_stays(cluster in any_cluster()) {
        let mut cluster = cluster;
        converge(&mut cluster, false);
        let before = cluster.clone();
        prop_assert_eq!(converge(&mut cluster, false).rounds, 0);
        prop_assert_eq!(cluster, before);
    }
}
