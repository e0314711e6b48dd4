//! What the document language costs, in nanoseconds a document: `cargo bench -p docshard-core`.

#![allow(missing_docs)] // of what criterion makes

use criterion::{Criterion, criterion_group, criterion_main};
use docshard_core::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::document::normalise::for_insert;
use docshard_core::document::raw::{self, RawObject};
use docshard_core::document::{ext_json, write};
use docshard_core::filter::Filter;
use docshard_core::key::KeyPattern;
use docshard_core::projection::Projection;
use docshard_core::sort::Sort;
use docshard_core::targeting;
use docshard_core::update::Update;
use serde_json::{Value as Json, json};
use std::hint::black_box;

/// A message of an inbox, about 500 bytes.
fn message(n: usize) -> Vec<u8> {
    let document = json!({
        "_id": {"$oid": format!("{n:024x}")},
        "recipient": format!("user_{}", n % 5000),
        "from": format!("user_{}", n * 7919 % 5000),
        "to": ["ada_00", "alan_01", "anita_02"],
        "likes": n * 7919 % 1024,
        "read": n.is_multiple_of(3),
        "folder": (["inbox", "archive", "spam", "sent"][n % 4]),
        "sent": {"$date": {"$numberLong": (1_767_225_600_000 + n * 7000).to_string()}},
        "size": {"w": n % 640, "h": n % 480},
        "replies": [
            {"from": format!("user_{}", n % 77), "likes": n * 31 % 128},
            {"from": format!("user_{}", n % 99), "likes": n * 37 % 128},
            {"from": format!("user_{}", n % 55), "likes": n * 41 % 128},
        ],
        "text": "the a our this every some morning train river coffee market garden window letter song ".repeat(2),
    });
    write::value(&ext_json::from_json(&document).expect("well-formed")).expect("writable")
}

fn messages() -> Vec<Vec<u8>> {
    (0..1000).map(message).collect()
}

fn document(bytes: &[u8]) -> RawObject<'_> {
    raw::document(bytes).expect("an object")
}

/// Measures something for one document after the other.
fn each(criterion: &mut Criterion, name: &str, mut work: impl FnMut(RawObject<'_>)) {
    let messages = messages();
    let mut n = 0;
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            n = (n + 1) % messages.len();
            work(black_box(document(&messages[n])));
        });
    });
}

fn matching(criterion: &mut Criterion) {
    for (name, filter) in [
        ("match: likes > N", json!({"likes": {"$gt": 1000}})),
        ("match: a string", json!({"folder": "spam"})),
        (
            "match: five conditions",
            json!({"likes": {"$gt": 100}, "read": false, "folder": {"$in": ["inbox", "archive"]},
                "size.w": {"$lt": 600}, "from": {"$ne": "user_1"}}),
        ),
        ("match: $elemMatch", json!({"replies": {"$elemMatch": {"from": "user_5", "likes": {"$gt": 100}}}})),
        ("match: an element of an array", json!({"to": "alan_01"})),
        ("match: a date", json!({"sent": {"$gt": {"$date": "2026-01-01T01:00:00Z"}}})),
        ("match: an ObjectId", json!({"_id": {"$oid": format!("{:024x}", 77)}})),
        ("match: a regular expression", json!({"text": {"$regex": "song.*river"}})),
    ] {
        let filter = Filter::parse(&filter).expect("a filter");
        each(criterion, name, |document| {
            black_box(filter.matches(document));
        });
    }
}

fn updating(criterion: &mut Criterion) {
    for (name, update) in [
        ("update: $set of a field", json!({"$set": {"likes": -1}})),
        ("update: $inc of a field", json!({"$inc": {"likes": 1}})),
        ("update: $set deep inside", json!({"$set": {"size.w": -1}})),
        ("update: $push", json!({"$push": {"to": "x"}})),
    ] {
        let update = Update::parse(&update).expect("an update");
        each(criterion, name, |document| {
            let _ = black_box(update.apply(document, &[]));
        });
    }
}

fn shaping(criterion: &mut Criterion) {
    let projection = Projection::parse(&json!({"from": 1, "size.w": 1})).expect("a projection");
    each(criterion, "project: two fields", |document| {
        let _ = black_box(projection.apply(document));
    });
    let sort = Sort::parse(&json!({"sent": -1, "from": 1})).expect("a sort");
    each(criterion, "sort key: two fields", |document| {
        let _ = black_box(sort.key_of(document));
    });
    each(criterion, "insert: check and normalise", |document| {
        let _ = black_box(for_insert(document, || [7; 12]));
    });
}

fn keys(criterion: &mut Criterion) {
    for (name, pattern) in
        [("key: two fields", json!({"recipient": 1, "sent": 1})), ("key: hashed", json!({"_id": "hashed"}))]
    {
        let pattern = KeyPattern::parse(&pattern).expect("a pattern");
        each(criterion, name, |document| {
            let _ = black_box(pattern.key_of(document));
        });
    }
}

fn targets(criterion: &mut Criterion) {
    let pattern = KeyPattern::parse(&json!({"recipient": 1, "sent": 1})).expect("a pattern");
    let bound = |n: usize| {
        let bound = json!({"recipient": format!("user_{n:04}"), "sent": {"$minKey": 1}});
        pattern.bound_from_json(&bound).expect("a bound")
    };
    let mut bounds = vec![pattern.min_bound()];
    bounds.extend((0..1000).map(bound));
    bounds.push(pattern.max_bound());
    let chunks = bounds.windows(2).enumerate().map(|(i, pair)| Chunk {
        min: pair[0].clone(),
        max: pair[1].clone(),
        shard: (i % 3) as ShardId,
    });
    let map = ChunkMap::new(chunks.collect()).expect("a map");
    for (name, filter) in [
        ("target: a whole key", json!({"recipient": "user_0500", "sent": {"$date": "2026-01-01T01:00:00Z"}})),
        ("target: a prefix", json!({"recipient": "user_0500", "likes": 5})),
        ("target: a list", json!({"recipient": {"$in": ["user_0001", "user_0500", "user_0900"]}})),
        ("target: everything", json!({"likes": 5})),
    ] {
        let filter: Json = filter;
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let filter = Filter::parse(black_box(&filter)).expect("a filter");
                black_box(map.targets(&targeting::key_ranges(&pattern, &filter)))
            });
        });
    }
}

criterion_group!(benches, matching, updating, shaping, keys, targets);
criterion_main!(benches);
