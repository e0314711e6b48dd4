//! The load of chunks: accesses belong to the chunks of their keys, and are divided where a chunk can be split.

use docshard_core::cluster::load::{Access, ChunkLoad, Division, MAX_SAMPLED_KEY, by_chunk};
use docshard_core::values::key::KeyPattern;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn pattern() -> KeyPattern {
    KeyPattern::parse(&json!({"k": 1, "t": 1})).unwrap()
}

fn bound(json: &Json) -> Vec<u8> {
    pattern().bound_from_json(json).unwrap()
}

fn access(key: &[u8], rate: u64) -> Access {
    Access::new(&pattern(), key, rate, 0, rate / 10)
}

fn at(k: i64, rate: u64) -> Access {
    access(&bound(&json!({"k": k, "t": 0})), rate)
}

fn load(accesses: &mut [Access]) -> ChunkLoad {
    let min = pattern().min_bound();
    let found = by_chunk(&[&min], accesses);
    assert_eq!(found.len(), 1);
    ChunkLoad::of(&pattern(), &min, found[0].1)
}

#[test]
fn accesses_belong_to_the_chunks_of_their_keys() {
    let mins = [pattern().min_bound(), bound(&json!({"k": 5})), bound(&json!({"k": "b"}))];
    let mins: Vec<&[u8]> = mins.iter().map(Vec::as_slice).collect();
    // A sampled lower bound may lack the last field. A key that was cut off is assigned to a chunk by the bytes that are left.
    let lacking = bound(&json!({"k": 5, "t": {"$minKey": 1}}));
    let lacking = &lacking[..lacking.len() - 1];
    let long = bound(&json!({"k": "c".repeat(300), "t": 1}));
    let mut accesses = [at(4, 10), at(5, 20), access(lacking, 30), at(6, 40), access(&long[..MAX_SAMPLED_KEY], 50)];
    let found = by_chunk(&mins, &mut accesses);
    let sums: Vec<(usize, u64)> = found.iter().map(|(at, of)| (*at, of.iter().map(|one| one.reads).sum())).collect();
    assert_eq!(sums, [(0, 10), (1, 90), (2, 50)]);
}

#[test]
fn accesses_are_divided_at_the_median() {
    let mut even: Vec<Access> = (0..100).map(|k| at(k, 10)).collect();
    assert_eq!(load(&mut even).division, Division::At(bound(&json!({"k": 50, "t": 0})), 500, 500));
    // A hot key is split off, before or behind.
    for (k, cut) in [(10, 11), (90, 90)] {
        let mut uneven: Vec<Access> = (0..100).map(|of| at(of, if of == k { 2000 } else { 10 })).collect();
        let below = if k == 10 { 2100 } else { 900 };
        let expected = Division::At(bound(&json!({"k": cut, "t": 0})), below, 2990 - below);
        assert_eq!(load(&mut uneven).division, expected);
    }
    let mut first: Vec<Access> = (0..50).map(|k| at(k, if k == 0 { 500 } else { 10 })).collect();
    assert_eq!(load(&mut first).division, Division::At(bound(&json!({"k": 1, "t": 0})), 500, 490));
}

#[test]
fn one_key_cannot_be_divided() {
    assert_eq!(load(&mut [at(7, 1000)]).division, Division::OneKey(100));
    assert_eq!(load(&mut [at(6, 10), at(7, 980), at(8, 10)]).division, Division::OneKey(98));
    // Accesses that cannot be told from the chunk's lower bound are one key.
    let long = bound(&json!({"k": "c".repeat(300), "t": 1}));
    assert_eq!(load(&mut [access(&long[..MAX_SAMPLED_KEY], 1000)]).division, Division::OneKey(100));
    // Few samples, or an unsharded collection: whether the load can be divided is unknown.
    assert_eq!(load(&mut [at(7, 290)]).division, Division::Unknown);
    let unsharded = ChunkLoad::of(
        &KeyPattern::unsharded(),
        b"",
        &[Access { reads: 5000, writes: 7, samples: 500, ..Access::default() }],
    );
    assert_eq!((unsharded.division.clone(), unsharded.total()), (Division::Unknown, 5007));
}

proptest! {
    #[test]
    fn parts_have_all_accesses_and_are_not_small(rates in prop::collection::vec(0..2000u64, 1..60), min in 0..60i64) {
        let mut accesses: Vec<Access> = rates.iter().zip(min..).map(|(rate, k)| at(k, *rate)).collect();
        let min = bound(&json!({"k": min}));
        let mins = [pattern().min_bound(), min.clone()];
        let mins: Vec<&[u8]> = mins.iter().map(Vec::as_slice).collect();
        let found = by_chunk(&mins, &mut accesses);
        prop_assert_eq!((found.len(), found[0].0), (1, 1));
        let load = ChunkLoad::of(&pattern(), &min, found[0].1);
        let total: u64 = rates.iter().sum();
        prop_assert_eq!(load.total(), total);
        match load.division {
            Division::At(bound, below, above) => {
                prop_assert!(bound > min && below + above == total && below.min(above) >= total / 16);
                let before: u64 = found[0].1.iter().filter(|access| access.key < bound).map(|access| access.reads).sum();
                prop_assert_eq!(before, below);
            }
            // Parts of a sixteenth are possible unless one key has most.
            Division::OneKey(percent) => prop_assert!(percent >= 87, "{percent} {rates:?}"),
            Division::Unknown => prop_assert!(rates.iter().map(|rate| rate / 10).sum::<u64>() < 30),
        }
    }
}
