//! The cases of the core's benchmarks, each for one document (or call, or row): criterion measures their time
//! (`benches/language.rs`), valgrind their instructions (`benches/instructions.rs`).

use docshard_core::cluster::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::cluster::merge::Heads;
use docshard_core::cluster::targeting;
use docshard_core::query::filter::Filter;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::query::update::Update;
use docshard_core::values::document::bson::read as bson;
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::normalise::for_insert;
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use docshard_core::values::document::{ext_json, write};
use docshard_core::values::key::KeyPattern;
use docshard_core::values::key::encode::encode_value;
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

fn document(bytes: &[u8]) -> RawObject<'_> {
    raw::document(bytes).expect("an object")
}

/// Runs a case once, on another document each time; after a thousand calls documents repeat.
pub type Work = Box<dyn FnMut()>;

/// A case: its name, `area: what`, and its preparation.
pub struct Case {
    /// unique, and never changed for the same work, since counts are recorded under it
    pub name: &'static str,
    prepare: Box<dyn Fn() -> Work>,
}

impl Case {
    fn new(name: &'static str, prepare: impl Fn() -> Work + 'static) -> Self {
        Self { name, prepare: Box::new(prepare) }
    }

    /// Parses the case's operation and creates its documents.
    pub fn prepare(&self) -> Work {
        (self.prepare)()
    }
}

/// The number of calls after which documents repeat.
pub const ROUND: usize = 1000;

/// All cases.
pub fn all() -> Vec<Case> {
    [matching(), updating(), shaping(), ordered(), keys(), targets(), merging()].into_iter().flatten().collect()
}

/// Work on one document after the other.
fn each(mut work: impl FnMut(RawObject<'_>) + 'static) -> Work {
    let messages: Vec<_> = (0..ROUND).map(message).collect();
    let mut n = 0;
    Box::new(move || {
        n = (n + 1) % messages.len();
        work(black_box(document(&messages[n])));
    })
}

fn matching() -> Vec<Case> {
    [
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
    ]
    .map(|(name, filter)| {
        Case::new(name, move || {
            let filter = Filter::parse(&filter).expect("a filter");
            each(move |document| {
                black_box(filter.matches(document));
            })
        })
    })
    .into()
}

fn updating() -> Vec<Case> {
    [
        ("update: $set of a field", json!({"$set": {"likes": -1}})),
        ("update: $inc of a field", json!({"$inc": {"likes": 1}})),
        ("update: $set deep inside", json!({"$set": {"size.w": -1}})),
        ("update: $push", json!({"$push": {"to": "x"}})),
    ]
    .map(|(name, update)| {
        Case::new(name, move || {
            let update = Update::parse(&update).expect("an update");
            each(move |document| {
                let _ = black_box(update.apply(document, &[]));
            })
        })
    })
    .into()
}

fn shaping() -> Vec<Case> {
    vec![
        Case::new("project: two fields", || {
            let projection = Projection::parse(&json!({"from": 1, "size.w": 1})).expect("a projection");
            each(move |document| {
                let _ = black_box(projection.apply(document));
            })
        }),
        Case::new("sort key: two fields", || {
            let sort = Sort::parse(&json!({"sent": -1, "from": 1})).expect("a sort");
            each(move |document| {
                let _ = black_box(sort.key_of(document));
            })
        }),
        Case::new("insert: check and normalise", || {
            each(|document| {
                let _ = black_box(for_insert(document, || [7; 12]));
            })
        }),
    ]
}

/// A message as a client sends it.
fn bson_of(message: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.field("message", Item::Stored(RawValue::Object(document(message)))).expect("writable");
    writer.finish().expect("short")
}

/// Work on the bytes of one message after the other.
type OnBytes = Box<dyn FnMut(&[u8])>;

/// What a document costs that a client of MongoDB stores and reads, in jsonb's order of fields and in the client's.
fn ordered() -> Vec<Case> {
    let mut cases = Vec::new();
    for (keeps, [insert, update, store, reply]) in [
        (
            false,
            [
                "insert: jsonb's order",
                "update: jsonb's order",
                "bson: store, jsonb's order",
                "bson: reply, jsonb's order",
            ],
        ),
        (
            true,
            [
                "insert: a client's order",
                "update: a client's order",
                "bson: store, a client's order",
                "bson: reply, a client's order",
            ],
        ),
    ] {
        let messages = move || -> Vec<Vec<u8>> {
            let _keeping = Keeping::order_if(keeps);
            (0..ROUND).map(message).collect()
        };
        let each = move |mut work: OnBytes, messages: Vec<Vec<u8>>| -> Work {
            let mut n = 0;
            Box::new(move || {
                let _keeping = Keeping::order_if(keeps);
                n = (n + 1) % messages.len();
                work(black_box(&messages[n]));
            })
        };
        cases.push(Case::new(insert, move || {
            let work = |message: &[u8]| {
                let _ = black_box(for_insert(document(message), || [7; 12]));
            };
            each(Box::new(work), messages())
        }));
        cases.push(Case::new(update, move || {
            let update = Update::parse(&json!({"$inc": {"likes": 1}})).expect("an update");
            let work = move |message: &[u8]| {
                let _ = black_box(update.apply(document(message), &[]));
            };
            each(Box::new(work), messages())
        }));
        cases.push(Case::new(store, move || {
            let work = |message: &[u8]| {
                let value = bson::value(message).expect("well-formed");
                let _ = black_box(write::value(&value));
            };
            each(Box::new(work), messages().iter().map(|message| bson_of(message)).collect())
        }));
        cases.push(Case::new(reply, move || {
            let work = |message: &[u8]| {
                black_box(bson_of(message));
            };
            each(Box::new(work), messages())
        }));
    }
    cases
}

fn keys() -> Vec<Case> {
    let patterns = [("key: two fields", json!({"recipient": 1, "sent": 1})), ("key: hashed", json!({"_id": "hashed"}))];
    let mut cases: Vec<_> = patterns
        .map(|(name, pattern)| {
            Case::new(name, move || {
                let pattern = KeyPattern::parse(&pattern).expect("a pattern");
                each(move |document| {
                    let _ = black_box(pattern.key_of(document));
                })
            })
        })
        .into();
    // One value of each type, without the search in a document.
    let values = [
        ("encode: a string", json!("user_0500")),
        ("encode: an integer", json!(1023)),
        ("encode: a double", json!(-1.5e-7)),
        ("encode: a date", json!({"$date": "2026-01-01T01:00:00Z"})),
        ("encode: an object", json!({"w": 640, "h": 480, "of": ["a", null, true]})),
    ];
    cases.extend(values.map(|(name, value)| {
        Case::new(name, move || {
            let value = ext_json::from_json(&value).expect("well-formed");
            let mut out = Vec::new();
            Box::new(move || {
                out.clear();
                encode_value(black_box(&value), &mut out);
                black_box(&out);
            })
        })
    }));
    cases
}

/// A map of 1002 chunks on three shards.
fn map(pattern: &KeyPattern) -> ChunkMap {
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
    ChunkMap::new(chunks).expect("a map")
}

fn targets() -> Vec<Case> {
    [
        ("target: a whole key", json!({"recipient": "user_0500", "sent": {"$date": "2026-01-01T01:00:00Z"}})),
        ("target: a prefix", json!({"recipient": "user_0500", "likes": 5})),
        ("target: a list", json!({"recipient": {"$in": ["user_0001", "user_0500", "user_0900"]}})),
        ("target: everything", json!({"likes": 5})),
    ]
    .map(|(name, filter)| {
        Case::new(name, move || {
            let pattern = KeyPattern::parse(&json!({"recipient": 1, "sent": 1})).expect("a pattern");
            let map = map(&pattern);
            let filter: Json = filter.clone();
            Box::new(move || {
                let filter = Filter::parse(black_box(&filter)).expect("a filter");
                black_box(map.targets(&targeting::key_ranges(&pattern, &filter)));
            })
        })
    })
    .into()
}

/// Takes the next row of several endless streams. The keys of a stream are those of one round; each further round adds an offset.
fn merging() -> Vec<Case> {
    [("merge: a row of 3 shards", 3), ("merge: a row of 24 shards", 24)]
        .map(|(name, streams)| {
            Case::new(name, move || {
                let sort = Sort::parse(&json!({"likes": 1, "_id": 1})).expect("a sort");
                let mut keys: Vec<_> = (0..ROUND).map(|n| sort.key_of(document(&message(n))).unwrap()).collect();
                keys.sort();
                let key = move |at: usize| {
                    let mut key = ((at / ROUND) as u32).to_be_bytes().to_vec();
                    key.extend_from_slice(&keys[at % ROUND]);
                    key
                };
                // Rows of the shards alternate in an irregular but reproducible order.
                let step = move |at: usize| 1 + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % (2 * streams);
                let mut heads = Heads::new(false);
                for stream in 0..streams {
                    heads.push(stream, key(stream), stream);
                }
                Box::new(move || {
                    let (stream, at) = black_box(heads.pop()).expect("streams without end");
                    let next = at + step(at);
                    heads.push(stream, key(next), next);
                })
            })
        })
        .into()
}
