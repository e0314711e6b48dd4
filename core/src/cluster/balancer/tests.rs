//! Properties of the policy, on generated clusters whose plans are executed until there is none.

use super::state::*;
use super::*;
use crate::cluster::chunk_map::ShardId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

const MB: u64 = 1 << 20;

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

fn chunk(shard: ShardId, bytes: u64) -> Chunk {
    Chunk {
        shard,
        documents: bytes / 500,
        bytes,
        zone: None,
        straddles: false,
        jumbo: false,
        pinned: false,
        resting: false,
        load: Load::default(),
    }
}

fn cluster(shards: i32, chunks: Vec<Chunk>) -> Cluster {
    let collection =
        Collection { chunk_size: 128 * MB, balance: true, by_load: false, chunks, resting: BTreeSet::new() };
    Cluster { shards: (1..=shards).map(shard).collect(), collections: vec![collection] }
}

fn weights(cluster: &Cluster, collection: usize) -> BTreeMap<ShardId, u64> {
    let mut weights: BTreeMap<_, _> = cluster.shards.iter().map(|shard| (shard.id, 0)).collect();
    for chunk in &cluster.collections[collection].chunks {
        *weights.get_mut(&chunk.shard).expect("a shard of the cluster") += weight(chunk);
    }
    weights
}

/// The excess of each shard over its target of a class.
fn excess(cluster: &Cluster, collection: usize, zone: Option<ZoneId>) -> BTreeMap<ShardId, i128> {
    let classes = targets::classes(&targets::Shards::of(cluster), collection);
    let class = classes.iter().find(|class| class.zone == zone).expect("a class");
    let shards = cluster.shards.iter().enumerate();
    shards.map(|(i, shard)| (shard.id, i128::from(class.has[i]) - i128::from(class.target[i]))).collect()
}

/// True if no chunk is outside its zone, where the zone has a shard for it.
fn respects_zones(cluster: &Cluster) -> bool {
    let zones = |id: ShardId| &cluster.shards.iter().find(|shard| shard.id == id).expect("a shard").zones;
    let open = |zone: ZoneId| cluster.shards.iter().any(|shard| !shard.draining && shard.zones.contains(&zone));
    let chunks = cluster.collections.iter().filter(|collection| collection.balance).flat_map(|c| &c.chunks);
    chunks
        .filter_map(|chunk| Some((chunk, chunk.zone?)))
        .all(|(chunk, zone)| !open(zone) || zones(chunk.shard).contains(&zone))
}

fn used(cluster: &Cluster, shard: ShardId) -> u64 {
    let chunks = cluster.collections.iter().flat_map(|collection| &collection.chunks);
    chunks.filter(|chunk| chunk.shard == shard).map(|chunk| chunk.bytes).sum()
}

/// The effort of a convergence.
#[derive(Debug, Default)]
struct Report {
    rounds: usize,
    moves: usize,
    merges: usize,
    moved_bytes: u64,
}

/// Executes plans until there is none, and checks each step; with `pin`, moved chunks are pinned as by the worker.
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
        // From the last to the first, so that positions stay valid.
        for split in plan.splits.iter().rev() {
            let chunks = &mut cluster.collections[split.collection].chunks;
            let whole = chunks[split.chunk].clone();
            let Cut::Parts(into) = split.cut else {
                assert!(whole.straddles);
                // Half of it lies in the first zone.
                let half = |zone| Chunk {
                    bytes: whole.bytes / 2,
                    documents: whole.documents / 2,
                    straddles: false,
                    jumbo: false,
                    zone,
                    ..whole.clone()
                };
                chunks.splice(split.chunk..=split.chunk, [half(Some(0)), half(None)]);
                continue;
            };
            let into = into as u64;
            assert!(into >= 2 && into <= whole.documents && !whole.jumbo && !whole.straddles);
            let part = |i: u64| Chunk {
                documents: whole.documents * (i + 1) / into - whole.documents * i / into,
                bytes: whole.bytes * (i + 1) / into - whole.bytes * i / into,
                ..whole.clone()
            };
            chunks.splice(split.chunk..=split.chunk, (0..into).map(part));
        }
        for merge in plan.merges.iter().rev() {
            let chunks = &mut cluster.collections[merge.collection].chunks;
            let merged = chunks[merge.chunks.clone()].to_vec();
            assert!(merged.len() > 1);
            assert!(merged.iter().all(|chunk| (chunk.shard, chunk.zone) == (merged[0].shard, merged[0].zone)));
            let whole = Chunk {
                bytes: merged.iter().map(|chunk| chunk.bytes).sum(),
                documents: merged.iter().map(|chunk| chunk.documents).sum(),
                pinned: merged.iter().any(|chunk| chunk.pinned),
                ..merged[0].clone()
            };
            chunks.splice(merge.chunks.clone(), [whole]);
            report.merges += merged.len();
            // Chunks are identified by position.
            moved.clear();
        }
        let mut taking_part = HashSet::new();
        // Another move of this round may take room that targets depend on, so they are computed as at the time of planning.
        let planned = cluster.clone();
        for step in &plan.moves {
            assert!(taking_part.insert(step.from) && taking_part.insert(step.to), "one move a shard");
            let to = cluster.shards.iter().find(|shard| shard.id == step.to).expect("a shard of the cluster").clone();
            assert!(!to.draining && !to.unavailable);
            assert!(!cluster.collections[step.collection].resting.contains(&(step.from, step.to)), "the pair rests");
            let moving = cluster.collections[step.collection].chunks[step.chunks.clone()].to_vec();
            let zone = moving[0].zone;
            assert!(moving.iter().all(|chunk| (chunk.shard, chunk.zone) == (step.from, zone) && !chunk.resting));
            let before = excess(&planned, step.collection, zone);
            assert!(zone.is_none_or(|zone| to.zones.contains(&zone)), "never out of the zone");
            let bytes: u64 = moving.iter().map(|chunk| chunk.bytes).sum();
            if let [chunk] = &moving[..]
                && step.reason == Reason::Evenness
            {
                assert!(!chunk.jumbo && !chunk.pinned && cluster.collections[step.collection].balance);
                let weight = i128::from(weight(chunk));
                assert!(before[&step.to] + weight <= before[&step.from] - weight, "never past each other");
            } else if moving.len() > 1 {
                assert_ne!(step.reason, Reason::Evenness, "one after the other");
                assert!(bytes <= MB, "tiny ones only");
            }
            for chunk in &mut cluster.collections[step.collection].chunks[step.chunks.clone()] {
                chunk.shard = step.to;
                chunk.pinned |= pin;
            }
            assert!(to.max_bytes.is_none_or(|max| used(cluster, step.to) <= max), "never past max_size");
            if pin && step.reason == Reason::Evenness {
                assert!(moved.insert((step.collection, step.chunks.start)), "no chunk twice");
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
fn a_pair_that_rests_does_not_stop_the_others() {
    let mut cluster = cluster(3, (0..30).map(|_| chunk(1, 100 * MB)).collect());
    cluster.collections[0].resting.insert((1, 2));
    converge(&mut cluster, false);
    let weights = weights(&cluster, 0);
    assert!(weights[&2] == 0 && weights[&3] >= 900 * MB, "{weights:?}");
    // A draining shard gives its chunks to the other one.
    cluster.shards[0].draining = true;
    converge(&mut cluster, false);
    assert_eq!(used(&cluster, 1), 0);
}

#[test]
fn large_collections_tolerate_three_chunks_of_difference() {
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
fn empty_neighbours_leave_a_draining_shard_together() {
    let mut cluster = cluster(3, (0..10_000).map(|_| chunk(1, 0)).collect());
    cluster.shards[0].draining = true;
    // This prevents merges of tiny chunks.
    cluster.collections[0].balance = false;
    // One chunk in between is not empty, and one must stay.
    cluster.collections[0].chunks[500].bytes = 8 * MB;
    cluster.collections[0].chunks[7000].resting = true;
    let report = converge(&mut cluster, true);
    assert!(report.moves <= 20, "{report:?}");
    let count = |shard| cluster.collections[0].chunks.iter().filter(|chunk| chunk.shard == shard).count();
    assert_eq!(count(1), 1, "the one that rests");
    // 8 MiB weigh as much as 8192 empty chunks.
    assert!(count(2).min(count(3)) >= 900, "{} and {}", count(2), count(3));
}

#[test]
fn neighbours_do_not_leave_together_over_the_bounds_of_zones_or_of_other_shards() {
    let mut cluster = cluster(3, (0..60).map(|i| chunk(if i < 40 { 1 } else { 2 }, 0)).collect());
    cluster.shards[0].draining = true;
    cluster.shards[2].zones = vec![1];
    cluster.collections[0].chunks[20..30].iter_mut().for_each(|chunk| chunk.zone = Some(1));
    let report = converge(&mut cluster, true);
    assert!(report.moves <= 12, "{report:?}");
    assert!(respects_zones(&cluster));
    assert!(cluster.collections[0].chunks.iter().all(|chunk| chunk.shard != 1));
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
fn pending_splits_of_a_shard_that_is_down_do_not_block_other_moves() {
    let mut chunks: Vec<_> = (0..6).map(|_| chunk(1, 100 * MB)).collect();
    chunks.push(chunk(3, 900 * MB));
    chunks.push(Chunk { straddles: true, ..chunk(3, 100 * MB) });
    let mut cluster = cluster(3, chunks);
    let splits = plan(&cluster).splits;
    assert_eq!(splits.iter().map(|split| split.chunk).collect::<Vec<_>>(), [6, 7]);
    cluster.shards[2].unavailable = true;
    let plan = plan(&cluster);
    assert_eq!(plan.splits, []);
    assert!(plan.moves.iter().any(|step| (step.from, step.to) == (1, 2)), "{:?}", plan.moves);
}

#[test]
fn chunks_of_a_shard_that_is_down_count() {
    // 6 + 0 + 12 chunks of equal size: a third is 6.
    let chunks = (0..18).map(|i| chunk(if i < 6 { 1 } else { 3 }, MB)).collect();
    let mut cluster = cluster(3, chunks);
    cluster.shards[2].unavailable = true;
    assert_eq!(plan(&cluster).moves, [], "the first has its part");
    for chunk in cluster.collections[0].chunks.iter_mut().filter(|chunk| chunk.shard == 3) {
        (chunk.bytes, chunk.documents) = (0, 0);
    }
    assert_ne!(plan(&cluster).moves, [], "if its chunks were forgotten");
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

#[test]
fn violated_zones_come_first_and_take_jumbo_ones_too() {
    let mut cluster = cluster(3, (0..12).map(|i| chunk(i % 3 + 1, 60 * MB)).collect());
    cluster.shards[0].zones = vec![7];
    let chunks = &mut cluster.collections[0].chunks;
    (chunks[1].zone, chunks[1].jumbo, chunks[2].zone, chunks[2].pinned) = (Some(7), true, Some(7), true);
    let first = plan(&cluster).moves;
    assert_eq!((first.len(), first[0].reason, first[0].to), (1, Reason::Zone, 1));
    converge(&mut cluster, true);
    assert!(respects_zones(&cluster));
    let weights = weights(&cluster, 0);
    assert!(weights.values().all(|&w| (180 * MB..300 * MB).contains(&w)), "{weights:?}");
}

#[test]
fn chunks_outside_zones_make_room_for_chunks_in_zones() {
    // Zone 1 fills shard 1 with 4 of 12 chunks: the rest is for the others.
    let mut chunks: Vec<_> = (0..12).map(|i| chunk(i % 3 + 1, 60 * MB)).collect();
    chunks[..4].iter_mut().for_each(|chunk| chunk.zone = Some(1));
    let mut cluster = cluster(3, chunks);
    cluster.shards[0].zones = vec![1];
    converge(&mut cluster, true);
    let weights = weights(&cluster, 0);
    assert!(weights.values().all(|&w| w == 4 * 60 * MB + 4 * CHUNK_WEIGHT), "{weights:?}");
    let owners: HashSet<_> = cluster.collections[0].chunks[4..].iter().map(|chunk| chunk.shard).collect();
    assert_eq!(owners, HashSet::from([2, 3]));
}

#[test]
fn a_zone_is_even_within_its_shards() {
    let mut cluster = cluster(4, (0..40).map(|_| chunk(1, 60 * MB)).collect());
    cluster.collections[0].chunk_size = 64 * MB;
    cluster.collections[0].chunks.iter_mut().for_each(|chunk| chunk.zone = Some(3));
    (cluster.shards[2].zones, cluster.shards[3].zones) = (vec![3], vec![1, 3]);
    let report = converge(&mut cluster, true);
    assert_eq!(report.moves, 40);
    let weights = weights(&cluster, 0);
    assert_eq!((weights[&1], weights[&2], weights[&3]), (0, 0, weights[&4]));
}

#[test]
fn a_zone_without_a_shard_leaves_chunks_where_they_are() {
    let mut cluster = cluster(2, (0..8).map(|_| chunk(1, 60 * MB)).collect());
    cluster.collections[0].chunks.iter_mut().for_each(|chunk| chunk.zone = Some(9));
    assert!(plan(&cluster).is_empty());
    cluster.shards[1].zones = vec![9];
    cluster.shards[1].draining = true;
    assert!(plan(&cluster).is_empty());
}

#[test]
fn a_draining_shard_gives_into_the_zone_only() {
    let mut cluster = cluster(3, (0..4).map(|_| chunk(1, 60 * MB)).collect());
    cluster.collections[0].chunks.iter_mut().for_each(|chunk| chunk.zone = Some(9));
    (cluster.shards[0].zones, cluster.shards[2].zones) = (vec![9], vec![9]);
    cluster.shards[0].draining = true;
    converge(&mut cluster, true);
    assert!(cluster.collections[0].chunks.iter().all(|chunk| chunk.shard == 3));
}

#[test]
fn chunks_that_straddle_zones_are_cut_there_also_jumbo_ones() {
    let mut cluster = cluster(2, vec![Chunk { straddles: true, jumbo: true, ..chunk(1, 60 * MB) }]);
    cluster.shards[1].zones = vec![0];
    let first = plan(&cluster);
    assert_eq!(first.splits, [Split { collection: 0, chunk: 0, cut: Cut::Zones }]);
    converge(&mut cluster, true);
    assert!(respects_zones(&cluster));
}

#[test]
fn a_shard_above_its_limit_gets_not_even_an_empty_chunk() {
    let mut cluster = cluster(2, vec![chunk(1, 0), chunk(2, 2 * MB)]);
    cluster.shards[0].draining = true;
    cluster.shards[1].max_bytes = Some(2 * MB);
    assert_eq!(plan(&cluster).moves.len(), 1, "it has no more than that");
    cluster.shards[1].max_bytes = Some(MB);
    assert!(plan(&cluster).moves.is_empty());
}

#[test]
fn compliance_names_the_gravest_reason() {
    let mut cluster = cluster(2, (0..20).map(|i| chunk(i % 2 + 1, 100 * MB)).collect());
    assert_eq!(compliance(&cluster, 0), Compliance::Compliant);
    cluster.collections[0].chunks.iter_mut().for_each(|chunk| chunk.shard = 1);
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Evenness));
    cluster.shards[0].draining = true;
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Draining));
    cluster.shards[1].zones = vec![4];
    cluster.collections[0].chunks[3].zone = Some(4);
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Zone));
    cluster.collections[0].balance = false;
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Zone));
}

#[test]
fn what_is_about_to_be_split_does_not_comply() {
    let mut cluster = cluster(2, (0..20).map(|i| chunk(i % 2 + 1, 100 * MB)).collect());
    cluster.collections[0].chunks[4].bytes = 140 * MB;
    cluster.shards[0].unavailable = true;
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Evenness));
    // A large chunk that cannot be split is not a violation.
    cluster.collections[0].chunks[4].jumbo = true;
    assert_eq!(compliance(&cluster, 0), Compliance::Compliant);
    cluster.collections[0].chunks[5].straddles = true;
    assert_eq!(compliance(&cluster, 0), Compliance::Violated(Reason::Zone));
    // The balancer leaves a single shard alone.
    let mut single = self::cluster(1, vec![chunk(1, 500 * MB)]);
    assert_eq!(compliance(&single, 0), Compliance::Compliant);
    single.shards.push(shard(2));
    assert_eq!(compliance(&single, 0), Compliance::Violated(Reason::Evenness));
}

#[test]
fn tiny_neighbours_are_merged_within_shards_and_zones() {
    let mut chunks: Vec<_> = (0..20).map(|_| chunk(1, 100 * MB)).collect();
    chunks.extend((0..20).map(|_| chunk(2, 100 * MB)));
    for tiny in [2, 3, 4, 5, 8, 10, 11, 19, 20] {
        (chunks[tiny].bytes, chunks[tiny].documents) = (1000, 2);
    }
    chunks[4].zone = Some(0);
    chunks[5].zone = Some(0);
    chunks[11].jumbo = true;
    let mut cluster = cluster(2, chunks);
    cluster.shards[0].zones = vec![0];
    let merges: Vec<_> = merge::merges(&cluster).into_iter().map(|merge| merge.chunks).collect();
    assert_eq!(merges, [2..4, 4..6]);
    cluster.collections[0].balance = false;
    assert!(merge::merges(&cluster).is_empty());
}

#[test]
fn initial_chunks_are_not_merged() {
    // A hashed collection that is empty, that has its first documents, and whose chunks are a quarter full.
    for bytes in [0, 10_000, 32 * MB] {
        let chunks = (0..400).map(|i| chunk(i / 200 + 1, bytes)).collect();
        assert!(merge::merges(&cluster(2, chunks)).is_empty());
    }
    let mut first = cluster(2, (0..4).map(|i| chunk(i / 2 + 1, 0)).collect());
    first.collections[0].chunks[0].bytes = 100 * MB;
    assert!(merge::merges(&first).is_empty());
}

#[test]
fn a_purged_half_is_merged_once_and_not_split_again() {
    let mut cluster =
        cluster(4, (0..400).map(|i| chunk(i / 100 + 1, if i % 2 == 0 && i < 200 { 0 } else { 90 * MB })).collect());
    for chunk in &mut cluster.collections[0].chunks[..100] {
        (chunk.bytes, chunk.documents) = (0, 0);
    }
    converge(&mut cluster, true);
    let left = cluster.collections[0].chunks.len();
    assert!(left < 330, "{left}");
    assert!(plan(&cluster).is_empty());
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    (2..8i32, 1..4usize).prop_flat_map(|(shards, collections)| {
        let shards = (1..=shards)
            .map(|id| {
                (
                    prop::bool::weighted(0.15),
                    prop::option::weighted(0.2, 0..2000u64),
                    prop::collection::btree_set(0..3u32, 0..3),
                )
                    .prop_map(move |(draining, max, zones)| Shard {
                        draining,
                        max_bytes: max.map(|mb| mb * MB),
                        zones: zones.into_iter().collect(),
                        ..shard(id)
                    })
            })
            .collect::<Vec<_>>();
        let owners = shards.len() as i32;
        let chunk =
            (1..=owners, 0..300 * MB, prop::bool::weighted(0.05), 0..4u32, 0..12u32, prop::bool::weighted(0.05))
                .prop_map(|(shard, bytes, jumbo, tiny, zone, straddles)| Chunk {
                    jumbo,
                    straddles,
                    zone: (zone < 3 && !straddles).then_some(zone),
                    ..chunk(shard, if tiny == 0 { bytes / 10_000 } else { bytes })
                });
        let collection = (prop::collection::vec(chunk, 1..40), prop::bool::weighted(0.9), 1..128u64).prop_map(
            |(chunks, balance, mb)| Collection {
                chunk_size: mb * MB,
                balance,
                by_load: false,
                chunks,
                resting: BTreeSet::new(),
            },
        );
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
        // A chunk may be evened out and later drained, hence `most + 1`. Merged chunks count as the chunks that they were made
        // of.
        let moved = report.moves;
        prop_assert!(moved <= (most + 1) * (chunks + report.merges), "{moved} moves of {chunks} chunks");
        let limited = cluster.shards.iter().any(|shard| shard.max_bytes.is_some());
        prop_assert!(limited || respects_zones(&cluster));
        let open = cluster.shards.iter().any(|shard| !shard.draining && shard.max_bytes.is_none());
        let zones = cluster.collections.iter().flat_map(|collection| &collection.chunks).any(|chunk| chunk.zone.is_some());
        for shard in cluster.shards.iter().filter(|shard| shard.draining && open && !zones) {
            prop_assert_eq!(used(&cluster, shard.id), 0);
        }
    }

    #[test]
    fn without_obstacles_it_ends_even(mut cluster in any_cluster()) {
        for shard in &mut cluster.shards {
            (shard.draining, shard.max_bytes) = (false, None);
            shard.zones.clear();
        }
        for collection in &mut cluster.collections {
            collection.balance = true;
            for chunk in &mut collection.chunks {
                (chunk.jumbo, chunk.straddles, chunk.zone) = (false, false, None);
            }
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
    fn it_converges_while_pairs_rest(mut cluster in any_cluster(), pairs in prop::collection::btree_set((1..6i32, 1..6i32), 0..12)) {
        for collection in &mut cluster.collections {
            collection.resting.clone_from(&pairs);
        }
        // `converge` asserts that no chunk moves between resting pairs.
        converge(&mut cluster, true);
    }

    #[test]
    fn an_even_cluster_stays(cluster in any_cluster()) {
        let mut cluster = cluster;
        converge(&mut cluster, false);
        let before = cluster.clone();
        prop_assert_eq!(converge(&mut cluster, false).rounds, 0);
        prop_assert_eq!(cluster, before);
    }
}
