//! Chunk maps and targeting, compared with a search of all chunks and all documents.

use docshard_core::cluster::chunk_map::{Chunk, ChunkMap};
use docshard_core::cluster::targeting::{deciding_fields, exact_key, has_regex, key_decides, key_ranges};
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_core::values::key::{KeyPattern, KeyRange, KeyRanges};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(0x10), Just(0x80), Just(0xF0)], 0..4)
}

fn map() -> impl Strategy<Value = ChunkMap> {
    (proptest::collection::btree_set(key(), 1..40), proptest::collection::vec(1..8i32, 40)).prop_map(
        |(bounds, shards)| {
            let bounds: Vec<Vec<u8>> = bounds.into_iter().collect();
            let ends = bounds.iter().skip(1).cloned().chain([vec![0xFF; 4]]);
            let chunks = bounds.iter().zip(ends).zip(shards);
            let chunks = chunks.map(|((min, max), shard)| Chunk { min: min.clone(), max, shard });
            ChunkMap::new(chunks).expect("no gap")
        },
    )
}

fn range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        (key(), proptest::option::weighted(0.8, key())).prop_map(|(lo, hi)| KeyRange { lo, hi }),
        key().prop_map(|key| KeyRange::point(&key)),
    ]
}

/// True if a key can lie in both.
fn touches(map: &ChunkMap, index: usize, range: &KeyRange) -> bool {
    let chunk = &map.chunks().nth(index).expect("a chunk");
    let hi = (index + 1 < map.len()).then(|| chunk.max.clone());
    let chunk = KeyRanges::new(vec![KeyRange { lo: chunk.min.clone(), hi }]);
    !chunk.intersect(&KeyRanges::new(vec![range.clone()])).is_none()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_chunk_with_another_owner(map in map(), at in any::<proptest::sample::Index>(), shard in 1..9i32, key in key()) {
        let mut chunks: Vec<Chunk> = map.chunks().collect();
        let chunk = at.get(&chunks).clone();
        let changed = map.with_owner(&chunk.min, &chunk.max, shard).expect("the chunk is there");
        chunks[at.index(map.len())].shard = shard;
        prop_assert_eq!(changed.shards(), ChunkMap::new(chunks.clone()).unwrap().shards());
        prop_assert_eq!(changed.chunks().collect::<Vec<_>>(), chunks);
        // No chunk has these bounds, although one contains the lower bound.
        prop_assert!(map.with_owner(&chunk.min, &[&chunk.max[..], &[1]].concat(), shard).is_none());
        if map.chunks().all(|chunk| chunk.min != key) {
            prop_assert!(map.with_owner(&key, &map.find(&key).max, shard).is_none());
        }
    }

    /// Bounds that give only the first field do not part documents of one first value; others may.
    #[test]
    fn fields_that_decide_the_shard(
        bounds in proptest::collection::btree_set((0..4i64, proptest::option::weighted(0.2, 0..4i64)), 0..5),
        shards in proptest::collection::vec(1..4i32, 6),
        hashed: bool,
    ) {
        let kind = if hashed { json!("hashed") } else { json!(1) };
        let pattern = KeyPattern::parse(&json!({"a": kind, "b": 1})).unwrap();
        let bound = |(a, b): &(i64, Option<i64>)| {
            let b = b.map_or_else(|| json!({"$minKey": 1}), Json::from);
            pattern.bound_from_json(&json!({"a": a, "b": b})).unwrap()
        };
        let bounds: Vec<_> = std::iter::once(pattern.min_bound()).chain(bounds.iter().map(bound)).chain([pattern.max_bound()]).collect();
        let chunks = bounds.windows(2).zip(shards).map(|(pair, shard)| Chunk { min: pair[0].clone(), max: pair[1].clone(), shard });
        let map = ChunkMap::new(chunks).unwrap();
        let owners = |a: i64| (0..5i64).map(|b| map.owner(&bound(&(a, Some(b))))).collect::<BTreeSet<_>>();
        let parted = (0..4).any(|a| owners(a).len() > 1);
        let deciding = deciding_fields(&pattern, &map);
        prop_assert!(deciding == 2 || deciding == 1 && !parted);
        let gives_both = |cut: &[u8]| pattern.bound_to_json(cut)["b"] != json!({"$minKey": 1});
        prop_assert_eq!(deciding == 2, map.cuts().any(gives_both));
        prop_assert_eq!(deciding_fields(&KeyPattern::unsharded(), &map), 0);
    }

    /// Adjacent chunks of one owner change the owner together.
    #[test]
    fn neighbours_with_another_owner(map in map(), at in any::<proptest::sample::Index>(), count in 1..5usize, shard in 1..9i32) {
        let mut chunks: Vec<Chunk> = map.chunks().collect();
        let start = at.index(chunks.len());
        let end = (start + count).min(chunks.len());
        let changed = map.with_owner(&chunks[start].min, &chunks[end - 1].max, shard);
        let owner = chunks[start].shard;
        prop_assert_eq!(changed.is_some(), chunks[start..end].iter().all(|chunk| chunk.shard == owner));
        if let Some(changed) = changed {
            chunks[start..end].iter_mut().for_each(|chunk| chunk.shard = shard);
            prop_assert_eq!(changed.chunks().collect::<Vec<_>>(), chunks);
        }
    }

    /// All changes since a map was read turn it into the newest map, in any order and with repetitions.
    #[test]
    fn a_map_with_changes(map in map(), changes in proptest::collection::vec(any::<(u8, u16, u16, u8)>(), 0..12)) {
        let mut chunks: Vec<(Chunk, bool)> = map.chunks().map(|chunk| (chunk, false)).collect();
        for (what, at, other, shard) in changes {
            let at = usize::from(at) % chunks.len();
            match what % 3 {
                0 => {
                    chunks[at].0.shard = i32::from(shard % 9);
                    chunks[at].1 = true;
                }
                1 => {
                    let chunk = chunks[at].0.clone();
                    let point = [&chunk.min[..], &[shard]].concat();
                    if point < chunk.max {
                        chunks[at] = (Chunk { max: point.clone(), ..chunk.clone() }, true);
                        chunks.insert(at + 1, (Chunk { min: point, ..chunk }, true));
                    }
                }
                _ => {
                    let last = (at + usize::from(other) % 4).min(chunks.len() - 1);
                    if last > at {
                        let max = chunks[last].0.max.clone();
                        chunks.drain(at + 1..=last);
                        chunks[at].0.max = max;
                        chunks[at].1 = true;
                    }
                }
            }
        }
        let changed: Vec<Chunk> = chunks.iter().filter(|(_, changed)| *changed).map(|(chunk, _)| chunk.clone()).collect();
        let newest: Vec<Chunk> = chunks.into_iter().map(|(chunk, _)| chunk).collect();
        let made = map.with_changes(&changed).expect("it fits");
        prop_assert_eq!(made.shards(), ChunkMap::new(newest.clone()).unwrap().shards());
        prop_assert_eq!(made.chunks().collect::<Vec<_>>(), newest);
    }

    #[test]
    fn the_map_agrees_with_looking_at_every_chunk(
        map in map(),
        wanted in key(),
        ranges in proptest::collection::vec(range(), 0..6),
    ) {
        let all: Vec<Chunk> = map.chunks().collect();
        if wanted >= all[0].min {
            let holder = all.iter().rfind(|chunk| chunk.min <= wanted).unwrap();
            prop_assert_eq!(&map.find(&wanted), holder);
            prop_assert_eq!(map.owner(&wanted), holder.shard);
        }
        let ranges = KeyRanges::new(ranges);
        let targets = map.targets(&ranges);
        prop_assert!(targets.windows(2).all(|pair| pair[0].shard < pair[1].shard));
        for shard in map.shards() {
            let owned: Vec<usize> = (0..all.len()).filter(|&i| all[i].shard == shard).collect();
            let touched = |range: &KeyRange| owned.iter().filter(|&&i| touches(&map, i, range)).count();
            let chunks = owned.iter().filter(|&&i| ranges.as_slice().iter().any(|r| touches(&map, i, r))).count();
            match targets.iter().find(|target| target.shard == shard) {
                Some(target) => {
                    prop_assert_eq!(target.chunks, chunks);
                    for range in ranges.as_slice().iter().filter(|range| touched(range) > 0) {
                        prop_assert!(target.ranges.as_slice().contains(range));
                    }
                }
                None => prop_assert_eq!(chunks, 0),
            }
        }
    }

    #[test]
    fn targeting_never_misses_a_document(
        pattern in select(vec![
            json!({"a": 1}), json!({"a": "hashed"}), json!({"a": 1, "b": 1}), json!({"a": 1, "b": "hashed"}),
            json!({"a": "hashed", "b": 1}), json!({"b": 1, "c.d": 1, "a": 1}), json!({"c.d": 1}), json!({"c.d": "hashed", "a": 1}),
        ]),
        filter in filter(),
        documents in proptest::collection::vec(document(), 30),
    ) {
        let pattern = KeyPattern::parse(&pattern).unwrap();
        let parsed = Filter::parse(&filter).unwrap();
        let ranges = key_ranges(&pattern, &parsed);
        let exact = exact_key(&pattern, &parsed);
        for document in documents {
            let bytes = write::value(&ext_json::from_json(&document).unwrap()).unwrap();
            let raw = raw::document(&bytes).unwrap();
            let key = pattern.key_of(raw).unwrap();
            if exact.as_ref() == Some(&key) && key_decides(&pattern, &parsed, false) {
                prop_assert!(parsed.matches(raw), "{} does not match {}", document, filter);
            }
            if parsed.matches(raw) {
                prop_assert!(ranges.contains(&key), "{} matches {}: {:?} not in {:?}", document, filter, key, ranges);
                prop_assert!(exact.as_ref().is_none_or(|exact| *exact == key));
            }
        }
    }
}

fn scalar() -> impl Strategy<Value = Json> + Clone {
    select(vec![
        json!(null),
        json!(0),
        json!(1),
        json!(2),
        json!(1.0),
        json!(1.5),
        json!(""),
        json!("a"),
        json!("b"),
        json!(true),
        json!({"$minKey": 1}),
        json!({"$maxKey": 1}),
        json!({"$numberDecimal": "1.50"}),
        json!({"d": 1}),
        json!({"$numberDouble": "NaN"}),
    ])
}

fn document() -> impl Strategy<Value = Json> {
    let field = || proptest::option::weighted(0.8, scalar());
    (field(), field(), field()).prop_map(|(a, b, d)| {
        let mut document = Map::new();
        document.extend(a.map(|a| ("a".to_owned(), a)));
        document.extend(b.map(|b| ("b".to_owned(), b)));
        document.extend(d.map(|d| ("c".to_owned(), json!({"d": d}))));
        Json::Object(document)
    })
}

fn filter() -> impl Strategy<Value = Json> {
    let condition = prop_oneof![
        4 => scalar(),
        4 => (select(vec!["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"]), scalar()).prop_map(|(name, value)| json!({name: value})),
        1 => (scalar(), scalar()).prop_map(|(lo, hi)| json!({"$gte": lo, "$lt": hi})),
        2 => proptest::collection::vec(scalar(), 0..4).prop_map(|values| json!({"$in": values})),
        1 => any::<bool>().prop_map(|exists| json!({"$exists": exists})),
    ];
    let fields =
        proptest::collection::hash_map(select(vec!["a", "b", "c.d"]), condition, 0..4).prop_map(|fields| json!(fields));
    let whole = || scalar().prop_map(|d| json!({"d": d}));
    let wholes = prop_oneof![
        whole().prop_map(|c| json!({"c": c})),
        whole().prop_map(|c| json!({"c": {"$eq": c}})),
        (whole(), whole()).prop_map(|(one, other)| json!({"c": {"$in": [one, other]}})),
    ];
    prop_oneof![4 => fields, 1 => wholes].prop_recursive(2, 8, 3, |inner| {
        (select(vec!["$and", "$or"]), proptest::collection::vec(inner, 1..3))
            .prop_map(|(name, list)| json!({name: list}))
    })
}

fn parsed(json: Json) -> (KeyPattern, Filter) {
    (KeyPattern::parse(&json["pattern"]).unwrap(), Filter::parse(&json["filter"]).unwrap())
}

#[test]
fn equality_on_the_whole_key_is_one_key() {
    let (pattern, filter) = parsed(json!({"pattern": {"a": 1, "b": "hashed"}, "filter": {"a": 1, "b": "x", "c": 5}}));
    let bytes = write::value(&ext_json::from_json(&json!({"a": 1.0, "b": "x"})).unwrap()).unwrap();
    let key = pattern.key_of(raw::document(&bytes).unwrap()).unwrap();
    assert_eq!(exact_key(&pattern, &filter), Some(key.clone()));
    assert_eq!(key_ranges(&pattern, &filter).as_slice(), [KeyRange::point(&key)]);
}

#[test]
fn a_document_that_holds_the_key_gives_it() {
    let cases = [
        (json!({"a.b": 1}), json!({"a": {"b": 7}}), Some(json!({"a": {"b": 7}}))),
        (json!({"a.b": "hashed"}), json!({"a": {"b": "x", "c": 1}}), Some(json!({"a": {"b": "x"}}))),
        (
            json!({"a.b.c": 1, "d": 1}),
            json!({"a.b": {"c": {"e": 1}}, "d": null}),
            Some(json!({"a": {"b": {"c": {"e": 1}}}})),
        ),
        (json!({"a.b": 1}), json!({"$and": [{"a": {"$eq": {"b": 7}}}, {"a.b": 7}]}), Some(json!({"a": {"b": 7}}))),
        (json!({"a.b": 1}), json!({"a": {"$in": [{"b": 7}]}}), Some(json!({"a": {"b": 7}}))),
        // Without the field, with an array, with a value that is not a key, and without an equality.
        (json!({"a.b": 1}), json!({"a": {"c": 7}}), None),
        (json!({"a.b": 1}), json!({"a": 7}), None),
        (json!({"a.b": 1}), json!({"a": {"b": [7]}}), None),
        (json!({"a.b": 1}), json!({"a": [{"b": 7}]}), None),
        (json!({"a.b": 1}), json!({"a": {"b": {"$regularExpression": {"pattern": "x", "options": ""}}}}), None),
        (json!({"a.b": 1}), json!({"a": {"$gt": {"b": 7}}}), None),
        (json!({"a.b": 1}), json!({"a": {"$ne": {"b": 7}}}), None),
        (json!({"a.b": 1}), json!({"a": {"$in": [{"b": 7}, {"b": 8}]}}), None),
        (json!({"ab": 1}), json!({"a": {"b": 7}}), None),
    ];
    for (pattern, filter, document) in cases {
        let parsed = KeyPattern::parse(&pattern).unwrap();
        let key = document.map(|document| {
            let bytes = write::value(&ext_json::from_json(&document).unwrap()).unwrap();
            parsed.key_of(raw::document(&bytes).unwrap()).unwrap()
        });
        assert_eq!(exact_key(&parsed, &Filter::parse(&filter).unwrap()), key, "{pattern} {filter}");
    }
    // A stored regular expression is found by its key, which is no equality nevertheless.
    let pattern = KeyPattern::parse(&json!({"a.b": 1})).unwrap();
    let regex = json!({"$regularExpression": {"pattern": "^x", "options": ""}});
    for (filter, ranges) in [
        (json!({"a": {"b": regex}}), 1),
        (json!({"a.b": {"$eq": regex}}), 1),
        (json!({"a.b": regex}), 2),
        (json!({"a.b": {"$in": [regex]}}), 2),
    ] {
        let parsed = Filter::parse(&filter).unwrap();
        let found = key_ranges(&pattern, &parsed);
        assert_eq!((found.as_slice().len(), has_regex(&pattern, &parsed)), (ranges, true), "{filter}: {found:?}");
        assert_eq!(exact_key(&pattern, &parsed), None, "{filter}");
    }
    assert!(!has_regex(&pattern, &Filter::parse(&json!({"a.b": {"$gt": ""}, "a.c": regex})).unwrap()));
    // A collation compares strings only.
    let english = Environment::parse(&json!({"collation": {"locale": "en", "strength": 1}})).unwrap();
    let pattern = KeyPattern::parse(&json!({"a.b": 1})).unwrap();
    let under = |filter: &Json| exact_key(&pattern, &Filter::parse_in(filter, &english).unwrap()).is_some();
    assert!(under(&json!({"a": {"b": 7}})));
    assert!(!under(&json!({"a": {"b": "x"}})));
}

#[test]
fn a_key_decides_of_equalities() {
    for (case, decided) in [
        (json!({"pattern": {"a": 1, "b.c": 1}, "filter": {"a": 1, "b.c": "x"}}), true),
        (json!({"pattern": {"a": 1, "b": 1}, "filter": {"$and": [{"a": {"$eq": true}}, {"b": null}]}}), true),
        (json!({"pattern": {"a": 1}, "filter": {"a": 1, "_id": {"$oid": "0123456789abcdef01234567"}}}), true),
        (json!({"pattern": {"_id": "hashed"}, "filter": {"_id": 5}}), true),
        (json!({"pattern": {"a": "hashed"}, "filter": {"a": 5}}), false),
        (json!({"pattern": {"a": 1}, "filter": {"a": 1, "b": 1}}), false),
        (json!({"pattern": {"a": 1}, "filter": {"$or": [{"a": 1}]}}), false),
        (json!({"pattern": {"a": 1}, "filter": {"a": {"$not": {"$eq": 1}}}}), false),
        (json!({"pattern": {"a": 1}, "filter": {"a": 1, "$expr": {"$eq": ["$b", 1]}}}), false),
    ] {
        let (pattern, filter) = parsed(case.clone());
        assert_eq!(key_decides(&pattern, &filter, true), decided, "{case}");
    }
    let (pattern, filter) = parsed(json!({"pattern": {"a": 1}, "filter": {"a": 1, "_id": {"$gt": 5}}}));
    assert!(!key_decides(&pattern, &filter, false));
}

#[test]
fn what_a_key_tells_matches() {
    let values = [
        json!(1),
        json!(1.0),
        json!({"$numberDecimal": "1.00"}),
        json!({"$numberLong": "9007199254740993"}),
        json!({"$numberDouble": "9007199254740992"}),
        json!({"$numberDouble": "-0.0"}),
        json!(0),
        json!({"$numberDouble": "NaN"}),
        json!({"$numberDecimal": "NaN"}),
        json!({"$numberDouble": "Infinity"}),
        json!({"$numberDecimal": "Infinity"}),
        json!("a"),
        json!("a\u{1}"),
        json!({"$symbol": "a"}),
        json!(""),
        json!(true),
        json!(false),
        json!({"$oid": "0123456789abcdef01234567"}),
        json!({"$date": {"$numberLong": "0"}}),
        json!({"$date": "1970-01-01T00:00:00Z"}),
        json!(null),
        json!({"b": 1}),
        json!({"b": 1.0}),
    ];
    let pattern = KeyPattern::parse(&json!({"a": 1})).unwrap();
    let mut decided = 0;
    for wanted in &values {
        let filter = Filter::parse(&json!({"a": wanted})).unwrap();
        let exact = exact_key(&pattern, &filter);
        for stored in &values {
            let bytes = write::value(&ext_json::from_json(&json!({"a": stored})).unwrap()).unwrap();
            let document = raw::document(&bytes).unwrap();
            if key_decides(&pattern, &filter, false) && exact == pattern.key_of(document).ok() {
                decided += 1;
                assert!(filter.matches(document), "{stored} does not match {wanted}");
            }
        }
    }
    assert!(decided > values.len(), "{decided}");
}

#[test]
fn ranges_narrow_as_far_as_the_key_allows() {
    for (case, ranges, everything) in [
        (json!({"pattern": {"a": 1}, "filter": {}}), 1, true),
        (json!({"pattern": {"a": 1, "b": 1}, "filter": {"b": 1}}), 1, true),
        (json!({"pattern": {"a": "hashed"}, "filter": {"a": {"$gt": 1}}}), 1, true),
        (json!({"pattern": {"a": 1, "b": 1}, "filter": {"a": 1}}), 1, false),
        (json!({"pattern": {"a": 1, "b": 1}, "filter": {"a": {"$in": [1, 2]}, "b": {"$gt": 1}}}), 2, false),
        (json!({"pattern": {"a": "hashed"}, "filter": {"a": {"$in": [1, 2, 3]}}}), 3, false),
        (json!({"pattern": {"a": 1}, "filter": {"a": {"$in": []}}}), 0, false),
    ] {
        let (pattern, filter) = parsed(case.clone());
        let found = key_ranges(&pattern, &filter);
        assert_eq!(found.as_slice().len(), ranges, "{case}: {found:?}");
        assert_eq!(found.is_all(), everything, "{case}");
        assert_eq!(exact_key(&pattern, &filter), None, "{case}");
    }
}

/// The bounds of chunks, and of zones, usually are a prefix with MinKey behind it.
#[test]
fn a_range_does_not_touch_the_chunk_that_ends_where_it_begins() {
    for (pattern, filter, shards) in [
        (json!({"a": 1, "b": 1}), json!({"a": 5}), vec![2]),
        (json!({"a": 1, "b": 1}), json!({"a": {"$in": [5, 7]}}), vec![2, 3]),
        (json!({"a": 1, "b": 1}), json!({"a": {"$gte": 5}}), vec![2, 3]),
        (json!({"a": 1, "b": 1}), json!({"a": {"$gte": 5, "$lt": 7}}), vec![2]),
        (json!({"a": 1, "b": 1}), json!({"a": 5, "b": {"$gt": 1}}), vec![2]),
        (json!({"a": 1, "b": 1}), json!({"a": {"$gt": 4}}), vec![1, 2, 3]),
        (json!({"a": 1, "b": "hashed"}), json!({"a": 7, "b": {"$gt": 1}}), vec![3]),
        (json!({"a": 1, "b": 1, "c": 1}), json!({"a": 5, "c": 1}), vec![2]),
    ] {
        let key = KeyPattern::parse(&pattern).unwrap();
        let bound = |a: i64| key.bound_from_json(&json!({"a": a})).unwrap();
        let bounds = [key.min_bound(), bound(5), bound(7), key.max_bound()];
        let chunks = bounds.windows(2).zip(1..);
        let chunks = chunks.map(|(ends, shard)| Chunk { min: ends[0].clone(), max: ends[1].clone(), shard });
        let map = ChunkMap::new(chunks).unwrap();
        let found = map.targets(&key_ranges(&key, &Filter::parse(&filter).unwrap()));
        let found: Vec<_> = found.iter().map(|target| target.shard).collect();
        assert_eq!(found, shards, "{pattern} {filter}");
    }
}

#[test]
fn too_many_ranges_are_widened() {
    let many: Vec<Json> = (0..2000).map(|n| json!(2 * n)).collect();
    let (pattern, filter) = parsed(json!({"pattern": {"a": 1}, "filter": {"a": {"$in": many}}}));
    let found = key_ranges(&pattern, &filter);
    assert_eq!(found.as_slice().len(), 1);
    assert!(!found.is_all());
}

#[test]
fn an_unsharded_collection_is_targeted_whole() {
    let filter = Filter::parse(&json!({"_id": 1})).unwrap();
    assert!(key_ranges(&KeyPattern::unsharded(), &filter).is_all());
    assert_eq!(exact_key(&KeyPattern::unsharded(), &filter), None);
}

#[test]
fn a_map_with_a_flaw_cannot_be_made() {
    let chunk = |min: u8, max: u8| Chunk { min: vec![min], max: vec![max], shard: 1 };
    for chunks in [
        vec![],
        vec![chunk(0, 1), chunk(2, 3)],
        vec![chunk(0, 2), chunk(1, 3)],
        vec![chunk(1, 1), chunk(1, 2)],
        vec![chunk(2, 1)],
    ] {
        assert_eq!(ChunkMap::new(chunks).unwrap_err().kind, Kind::InternalError);
    }
    let unsharded = Chunk { min: vec![], max: vec![], shard: 3 };
    let map = ChunkMap::new(vec![unsharded.clone()]).unwrap();
    assert_eq!(map.find(b""), unsharded);
    assert_eq!(map.with_owner(b"", b"", 4).unwrap().find(b""), Chunk { shard: 4, ..unsharded });
    assert_eq!(map.targets(&KeyRanges::all()).len(), 1);
    assert_eq!(map.shards(), [3]);
}

#[test]
fn a_large_map_is_targeted_at_once() {
    let bound = |n: u32| n.to_be_bytes().to_vec();
    let chunks = (0..100_000).map(|n| Chunk { min: bound(n), max: bound(n + 1), shard: (n * 7919 % 1000) as i32 });
    let map = ChunkMap::new(chunks).unwrap();
    let everything = map.targets(&KeyRanges::all());
    assert_eq!(everything.len(), 1000);
    assert!(everything.iter().all(|target| target.chunks == 100));
    let most = map.targets(&KeyRanges::new(vec![KeyRange { lo: bound(1), hi: None }]));
    assert_eq!(most.iter().map(|target| target.chunks).sum::<usize>(), 99_999);
    let point = map.targets(&KeyRanges::new(vec![KeyRange::point(&bound(4711))]));
    assert_eq!((point.len(), point[0].chunks), (1, 1));
}
