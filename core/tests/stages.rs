//! Stages: rearranged, divided over shards, with little memory and after a find, they have the same results as one after the other.

mod common;

use common::pipelines::*;
use common::*;
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{IterStream, Pipeline, Resources, STAGES, Written};
use docshard_core::values::document::raw;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// Stages that make of each document what they make of it alone.
fn per_document_stage() -> impl Strategy<Value = Json> {
    prop_oneof![
        (0i64..4).prop_map(|a| json!({"$match": {"a": {"$gte": a}}})),
        (0i64..4).prop_map(|b| json!({"$match": {"b": {"$ne": b}, "c.d": {"$lt": 3}}})),
        (0i64..4).prop_map(|b| json!({"$match": {"$and": [{"b": b}, {"$or": [{"a": 1}, {"c": null}]}]}})),
        Just(json!({"$match": {"c.d": null}})),
        Just(json!({"$match": {"$expr": {"$gt": ["$a", "$b"]}}})),
        Just(json!({"$match": {}})),
        Just(json!({"$set": {"b": {"$ifNull": ["$a", 1]}}})),
        Just(json!({"$set": {"c.d": 1}})),
        Just(json!({"$addFields": {"a": "$b"}})),
        Just(json!({"$addFields": {"e": {"$sum": ["$a", "$b"]}}})),
        Just(json!({"$unset": "b"})),
        Just(json!({"$unset": ["c.d", "a"]})),
        Just(json!({"$project": {"a": 1}})),
        Just(json!({"$project": {"_id": 0, "a": 1, "c.d": 1, "x": "$b"}})),
        Just(json!({"$project": {"b": 0}})),
        Just(json!({"$project": {"c.e": "$b", "a": 1}})),
        Just(json!({"$replaceWith": {"a": "$b", "c": "$$ROOT"}})),
        Just(json!({"$replaceRoot": {"newRoot": "$$ROOT"}})),
        Just(json!({"$redact": {"$cond": [{"$gte": ["$d", 2]}, "$$PRUNE", "$$DESCEND"]}})),
        Just(json!({"$unwind": "$a"})),
        Just(json!({"$unwind": {"path": "$c.d", "includeArrayIndex": "i.n", "preserveNullAndEmptyArrays": true}})),
        Just(json!({"$unwind": {"path": "$b", "includeArrayIndex": "b", "preserveNullAndEmptyArrays": true}})),
    ]
}

fn group() -> impl Strategy<Value = Json> {
    let keys = [
        json!("$a"),
        json!("$c.d"),
        json!(null),
        json!({"x": "$a", "y": "$b"}),
        json!({"$mod": [{"$ifNull": [{"$size": {"$ifNull": [{"$objectToArray": {"v": "$c"}}, []]}}, 1]}, 2]}),
    ];
    let fields = [
        json!({"n": {"$sum": 1}}),
        json!({"s": {"$sum": "$b"}, "g": {"$avg": "$b"}, "least": {"$min": "$b"}, "most": {"$max": "$b"}}),
        json!({"all": {"$push": "$b"}, "first": {"$first": "$a"}, "last": {"$last": "$c"}}),
        json!({"set": {"$addToSet": "$b"}, "n": {"$count": {}}}),
        json!({"set": {"$setUnion": {"$cond": [{"$isArray": "$b"}, "$b", ["$b"]]}}}),
        json!({"all": {"$concatArrays": {"$cond": [{"$isArray": "$b"}, "$b", ["$a", "$b"]]}}}),
        json!({"f": {"$firstN": {"input": "$b", "n": 2}}, "l": {"$lastN": {"input": "$b", "n": 2}}}),
        json!({"f": {"$minN": {"input": "$b", "n": 2}}, "l": {"$maxN": {"input": "$b", "n": 3}}}),
        json!({"t": {"$top": {"sortBy": {"b": -1}, "output": "$a"}}, "u": {"$bottomN": {"sortBy": {"b": 1, "a": -1}, "output": ["$a", "$b"], "n": 2}}}),
        json!({"m": {"$median": {"input": "$b", "method": "approximate"}}, "c": {"$mergeObjects": {"v": "$b", "w": "$c"}}}),
        json!({}),
    ];
    (prop::sample::select(keys.to_vec()), prop::sample::select(fields.to_vec())).prop_map(|(key, fields)| {
        let mut group = fields;
        group["_id"] = key;
        json!({"$group": group})
    })
}

/// Stages that look at the documents around one.
fn window() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!({"$setWindowFields": {"output": {"n": {"$count": {}}, "b": {"$sum": "$b"}}}}),
        json!({"$setWindowFields": {"partitionBy": "$e", "sortBy": {"b": 1, "a": -1}, "output": {
            "r": {"$first": "$a"}, "c.d": {"$last": "$b", "window": {"documents": [-1, 1]}}}}}),
        json!({"$setWindowFields": {"partitionBy": {"x": "$a"}, "sortBy": {"b": 1}, "output": {"r": {"$rank": {}}, "s": {"$push": "$c.d"}}}}),
        json!({"$setWindowFields": {"sortBy": {"a": 1}, "output": {"x": {"$shift": {"output": "$b", "by": 1}}}}}),
        json!({"$fill": {"sortBy": {"_id": 1}, "output": {"a": {"method": "locf"}, "b": {"value": "$a"}}}}),
        json!({"$fill": {"partitionByFields": ["a", "c.d"], "sortBy": {"_id": 1}, "output": {"b": {"method": "linear"}}}}),
        json!({"$densify": {"field": "_id", "range": {"step": 1, "bounds": "full"}}}),
        json!({"$densify": {"field": "b", "partitionByFields": ["a"], "range": {"step": 1, "bounds": [0, 3]}}}),
    ])
}

fn stage() -> impl Strategy<Value = Json> {
    prop_oneof![
        2 => window(),
        6 => per_document_stage(),
        2 => group(),
        2 => (1i64..8).prop_map(|most| json!({"$limit": most})),
        2 => (0i64..6).prop_map(|first| json!({"$skip": first})),
        3 => prop::sample::select(vec![
            json!({"$sort": {"a": 1}}),
            json!({"$sort": {"b": -1, "a": 1}}),
            json!({"$sort": {"c.d": 1}}),
            json!({"$count": "n"}),
            json!({"$sortByCount": "$b"}),
            json!({"$bucket": {"groupBy": {"$ifNull": [{"$min": "$a"}, 0]}, "boundaries": [0, 2, 4], "default": "other", "output": {"s": {"$sum": "$b"}, "v": {"$push": "$a"}}}}),
            json!({"$bucketAuto": {"groupBy": "$a", "buckets": 3}}),
            json!({"$facet": {"x": [{"$match": {"a": 1}}, {"$count": "n"}], "y": [{"$sort": {"b": 1}}, {"$limit": 2}]}}),
        ]),
    ]
}

fn documents() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let value = || {
        prop_oneof![
            5 => (0i64..5).prop_map(Json::from),
            1 => Just(Json::Null),
            1 => prop::collection::vec(0i64..5, 0..3).prop_map(Json::from),
            1 => Just(json!("s")),
        ]
    };
    let inner = prop_oneof![
        value().prop_map(|d| json!({"d": d})),
        prop::collection::vec(prop_oneof![value().prop_map(|d| json!({"d": d})), value()], 0..3).prop_map(Json::from),
        value(),
    ];
    let document = (prop::option::of(value()), prop::option::of(value()), prop::option::of(inner));
    prop::collection::vec(document, 0..20).prop_map(|all| {
        let mut documents = Vec::new();
        for (id, (a, b, c)) in all.into_iter().enumerate() {
            let fields = [("_id", Some(json!(id))), ("a", a), ("b", b), ("c", c)];
            let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            documents.push(bytes(&Json::Object(fields.collect())));
        }
        documents
    })
}

/// Parts of documents, as on shards.
fn parts<'d>(documents: &'d [Vec<u8>], cuts: &[usize]) -> Vec<&'d [Vec<u8>]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(documents.len())).chain([0, documents.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|part| &documents[part[0]..part[1]]).collect()
}

/// True if another way of running has the results of the plain one. Where that fails, the other may, too, or drop the document first
/// that it fails for; where it does not, the other must not.
fn same(plain: docshard_core::error::Result<Vec<Vec<u8>>>, other: docshard_core::error::Result<Vec<Vec<u8>>>) -> bool {
    match (plain, other) {
        (Ok(plain), Ok(other)) => plain == other,
        (Ok(_), Err(_)) => false,
        (Err(_), _) => true,
    }
}

fn shown(results: &docshard_core::error::Result<Vec<Vec<u8>>>) -> Vec<Json> {
    results.iter().flatten().map(|bytes| read(bytes)).collect()
}

/// A stage that writes runs at the router, also if one shard has all documents.
#[test]
fn stages_that_write_do_not_run_at_shards() {
    for last in [json!({"$merge": "b"}), json!({"$out": "b"})] {
        let pipeline = parse(&[json!({"$group": {"_id": "$a"}}), last.clone()]);
        let division = pipeline.at_one_shard().unwrap();
        assert_eq!(division.merging.shown(), [last], "{:?}", division.at_shards.shown());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rearranged_stages_return_the_same(stages in prop::collection::vec(stage(), 0..6), documents in documents()) {
        let pipeline = parse(&stages);
        let rearranged = pipeline.clone().rearranged().unwrap();
        let (naive, other) = (run(&pipeline, &documents), run(&rearranged, &documents));
        let shown = (shown(&naive), shown(&other));
        prop_assert!(same(naive, other), "{} became {}: {:?}", json!(stages), rearranged.to_json(), shown);
        // Rearranging again changes nothing.
        prop_assert_eq!(rearranged.clone().rearranged().unwrap().to_json(), rearranged.to_json());
    }

    #[test]
    fn a_division_comes_to_the_same(
        stages in prop::collection::vec(stage(), 0..6),
        documents in documents(),
        cuts in prop::collection::vec(0usize..21, 0..4),
    ) {
        let pipeline = parse(&stages);
        let division = pipeline.clone().rearranged().unwrap().divided(None).unwrap();
        let naive = run(&pipeline, &documents);
        let divided = run_divided(&division, &parts(&documents, &cuts), &memory(1 << 20));
        let shown = (shown(&naive), shown(&divided));
        prop_assert!(same(naive.clone(), divided), "{} {} {}: {:?}", json!(stages), division.at_shards.to_json(), division.merging.to_json(), shown);
        // One shard has all documents.
        let division = pipeline.clone().rearranged().unwrap().at_one_shard().unwrap();
        prop_assert!(division.merging.stages().is_empty() && division.order.is_none());
        prop_assert!(same(naive.clone(), run_divided(&division, &[&documents], &memory(1 << 20))));
        if pipeline.only_counts() {
            let counted = pipeline.run_counted(documents.len() as u64, &Resources::of_memory(&memory(1 << 20)));
            let counted = counted.and_then(|mut counted| {
                let mut results = Vec::new();
                while counted.advance()? {
                    results.push(counted.bytes().to_vec());
                }
                Ok(results)
            });
            prop_assert!(same(naive, counted));
        }
    }

    /// Stages that are measured make the same.
    #[test]
    fn measured_stages_return_the_same(stages in prop::collection::vec(stage(), 0..5), documents in documents()) {
        let pipeline = parse(&stages);
        let input = Box::new(IterStream::new(documents.clone()));
        let (mut stream, measurements) = pipeline.run_measured(input, &Resources::of_memory(&memory(1 << 20))).unwrap();
        let mut results = Vec::new();
        let failed = loop {
            match stream.advance() {
                Ok(true) => results.push(stream.bytes().to_vec()),
                Ok(false) => break false,
                Err(_) => break true,
            }
        };
        let naive = run(&pipeline, &documents);
        prop_assert_eq!(naive.is_err(), failed);
        let measured = measurements.stages();
        prop_assert_eq!(measured.len(), pipeline.stages().len());
        if let Ok(naive) = naive {
            prop_assert_eq!(measured.last().map_or(documents.len() as u64, |last| last.returned), naive.len() as u64);
            prop_assert_eq!(results, naive);
        }
    }

    #[test]
    fn a_count_is_that_of_documents(
        id in prop::sample::select(vec![json!(null), json!(1), json!({"$literal": "$a"}), json!({"a": {"$literal": 1}})]),
        count in 0usize..9,
    ) {
        let group = json!({"$group": {"_id": id, "n": {"$sum": 1}, "m": {"$count": {}}}});
        let pipeline = parse(&[group, json!({"$set": {"x": {"$add": ["$n", "$m"]}}})]);
        prop_assert!(pipeline.only_counts());
        let documents: Vec<_> = (0..count).map(|n| bytes(&json!({"_id": n}))).collect();
        let mut counted = pipeline.run_counted(count as u64, &Resources::of_memory(&memory(1 << 20))).unwrap();
        let mut results = Vec::new();
        while counted.advance().unwrap() {
            results.push(counted.bytes().to_vec());
        }
        prop_assert_eq!(results, run(&pipeline, &documents).unwrap());
    }

    /// A find replaces the first stages, and the rest runs over its documents, which have only the fields that the rest reads.
    #[test]
    fn a_find_and_the_rest_return_the_same(stages in prop::collection::vec(stage(), 0..6), documents in documents()) {
        let pipeline = parse(&stages);
        let (find, rest) = pipeline.clone().rearranged().unwrap().find();
        let naive = run(&pipeline, &documents);
        let found = run_find(&find, &documents).and_then(|found| run(&rest, &found));
        let shown = (shown(&naive), shown(&found));
        prop_assert!(same(naive, found), "{} {:?} {}: {:?}", json!(stages), find, rest.to_json(), shown);
    }

    /// Groups that do not fit into memory, in one place and divided.
    #[test]
    fn little_memory_comes_to_the_same(
        group in group(),
        documents in documents(),
        cuts in prop::collection::vec(0usize..21, 0..4),
        bytes in 0usize..3000,
    ) {
        let pipeline = parse(std::slice::from_ref(&group));
        let sorted = |results: docshard_core::error::Result<Vec<Vec<u8>>>| {
            results.map(|mut results| { results.sort(); results })
        };
        let naive = sorted(run(&pipeline, &documents));
        let little = sorted(run_in(&pipeline, &documents, &memory(bytes)));
        let division = pipeline.divided(None).unwrap();
        let divided = sorted(run_divided(&division, &parts(&documents, &cuts), &memory(bytes)));
        let shown = (shown(&naive), shown(&little), shown(&divided));
        prop_assert!(same(naive.clone(), little), "{}: {:?}", group, shown);
        prop_assert!(same(naive, divided), "{}: {:?}", group, shown);
    }

    /// Documents of one key are on one shard, so a group by the key is that of one shard.
    #[test]
    fn a_group_by_the_shard_key_is_not_merged(stages in prop::collection::vec(per_document_stage(), 0..3), group in group(), documents in documents()) {
        let mut stages = stages;
        stages.push(group);
        let pipeline = parse(&stages);
        let division = pipeline.clone().rearranged().unwrap().divided(Some(&["a"])).unwrap();
        // A shard key is no array.
        let documents: Vec<_> = documents.into_iter().filter(|bytes| !read(bytes)["a"].is_array()).collect();
        let mut shards = vec![Vec::new(); 3];
        for bytes in &documents {
            shards[read(bytes)["a"].as_i64().map_or(0, |a| a as usize % 3)].push(bytes.clone());
        }
        let in_order: Vec<Vec<u8>> = shards.iter().flatten().cloned().collect();
        let sorted = |results: docshard_core::error::Result<Vec<Vec<u8>>>| {
            results.map(|mut results| { results.sort(); results })
        };
        let naive = sorted(run(&pipeline, &in_order));
        let shards: Vec<&[Vec<u8>]> = shards.iter().map(Vec::as_slice).collect();
        let divided = sorted(run_divided(&division, &shards, &memory(1 << 20)));
        let shown = (shown(&naive), shown(&divided));
        prop_assert!(same(naive, divided), "{} {}: {:?}", json!(stages), division.at_shards.to_json(), shown);
    }

    /// The result of a stateless stage for a document does not depend on the other documents.
    #[test]
    fn what_remembers_nothing_looks_at_one_document(stage in stage(), documents in documents()) {
        let pipeline = parse(std::slice::from_ref(&stage));
        let operator = pipeline.stages()[0].operator();
        if operator.is_stateful || pipeline.stages().len() > 1 {
            return Ok(());
        }
        let (mut together, mut apart) = (run(&pipeline, &documents), Ok(Vec::new()));
        for document in &documents {
            apart = apart.and_then(|mut all: Vec<_>| {
                let one = run(&pipeline, std::slice::from_ref(document))?;
                assert!(!operator.one_to_one || one.len() == 1, "{stage}");
                all.extend(one);
                Ok(all)
            });
        }
        if !operator.keeps_order {
            together = together.map(|mut all| { all.sort(); all });
            apart = apart.map(|mut all| { all.sort(); all });
        }
        prop_assert!(same(together, apart), "{}", stage);
    }

    /// A field that a stage does not write stays what it is.
    #[test]
    fn what_is_not_written_stays(stage in per_document_stage(), documents in documents()) {
        let pipeline = parse(std::slice::from_ref(&stage));
        let written = pipeline.stages()[0].fields().written;
        let is_written = |name: &str| match &written {
            Written::Only(paths) => paths.iter().any(|path| path.split('.').next() == Some(name)),
            Written::AllBut(paths) => !paths.contains(name),
        };
        for document in &documents {
            for made in run(&pipeline, std::slice::from_ref(document)).into_iter().flatten() {
                let (before, after) = (raw::document(document).unwrap(), raw::document(&made).unwrap());
                for name in ["a", "b", "c"].into_iter().filter(|name| !is_written(name)) {
                    prop_assert!(before.has_same(after, name), "{} {}", stage, name);
                }
            }
        }
    }
}

/// What stages become, and where they run.
#[test]
fn stages_are_rearranged_and_divided() {
    let window = json!({"$setWindowFields": {"partitionBy": "$a", "output": {"n": {"$count": {}}}}});
    for (stages, rearranged) in [
        (json!([{"$sort": {"a": 1}}, {"$match": {"b": 1}}]), json!([{"$match": {"b": 1}}, {"$sort": {"a": 1}}])),
        (
            json!([{"$set": {"c": "$a"}}, {"$match": {"a": 1, "c": 2}}]),
            json!([{"$match": {"a": 1}}, {"$set": {"c": "$a"}}, {"$match": {"c": 2}}]),
        ),
        (
            json!([{"$match": {"a": 1}}, {"$unwind": "$b"}, {"$match": {"c": 1}}]),
            json!([{"$match": {"$and": [{"a": 1}, {"c": 1}]}}, {"$unwind": "$b"}]),
        ),
        (
            json!([{"$unwind": "$b"}, {"$match": {"$sampleRate": 0.5}}]),
            json!([{"$unwind": "$b"}, {"$match": {"$sampleRate": 0.5}}]),
        ),
        (json!([{"$limit": 3}, {"$match": {"b": 1}}]), json!([{"$limit": 3}, {"$match": {"b": 1}}])),
        (
            json!([{"$sort": {"a": 1}}, {"$set": {"b": 1}}, {"$skip": 2}, {"$limit": 3}, {"$limit": 9}]),
            json!([{"$sort": {"a": 1}}, {"$limit": 5}, {"$skip": 2}, {"$set": {"b": 1}}]),
        ),
        (
            json!([{"$project": {"a": 1}}, {"$match": {"a.b": 1}}]),
            json!([{"$match": {"a.b": 1}}, {"$project": {"a": 1}}]),
        ),
        (
            json!([window, {"$match": {"a": {"$in": [1, 2]}, "b": 1}}, {"$match": {"a": {"$exists": true}}}, {"$match": {"a": {"$ne": 1}}}]),
            json!([{"$match": {"a": {"$in": [1, 2]}}}, window, {"$match": {"$and": [{"b": 1}, {"a": {"$exists": true}}, {"a": {"$ne": 1}}]}}]),
        ),
        (
            json!([{"$match": {"a": 1, "b": 2}}, {"$match": {"$and": [{}]}}, {"$match": {"$or": [{"c": 1}, {"d": 1}]}}]),
            json!([{"$match": {"$and": [{"a": 1}, {"b": 2}, {"$or": [{"c": 1}, {"d": 1}]}]}}]),
        ),
        (json!([{"$match": {"$and": [{}]}}, {"$match": {"$and": [{}]}}]), json!([])),
        (json!([window, {"$match": {"n": 1}}]), json!([window, {"$match": {"n": 1}}])),
        (json!([{"$skip": i64::MAX}, {"$skip": 1}]), json!([{"$skip": i64::MAX}, {"$skip": 1}])),
    ] {
        let made = parse(stages.as_array().unwrap()).rearranged().unwrap();
        assert_eq!(made.to_json(), rearranged, "{stages}");
    }
    let group = json!({"_id": "$a", "n": {"$sum": 1}});
    for (stages, key, at_shards, ordered, merging) in [
        (
            json!([{"$set": {"b": 1}}, {"$group": group}, {"$sort": {"n": -1}}]),
            None,
            json!([{"$set": {"b": 1}}, {"$_partialGroup": group}]),
            false,
            json!([{"$_mergedGroup": group}, {"$sort": {"n": -1}}]),
        ),
        (
            json!([{"$group": group}, {"$sort": {"n": -1}}, {"$limit": 3}, {"$set": {"x": 1}}]),
            Some(&["a"][..]),
            json!([{"$group": group}, {"$sort": {"n": -1}}, {"$limit": 3}]),
            true,
            json!([{"$limit": 3}, {"$set": {"x": 1}}]),
        ),
        (
            json!([{"$set": {"a.b": 1}}, {"$group": group}]),
            Some(&["a"][..]),
            json!([{"$set": {"a.b": 1}}, {"$_partialGroup": group}]),
            false,
            json!([{"$_mergedGroup": group}]),
        ),
        (
            json!([{"$skip": 1}, {"$limit": 1}]),
            None,
            json!([{"$limit": 2}]),
            false,
            json!([{"$limit": 2}, {"$skip": 1}]),
        ),
        (
            json!([{"$unwind": "$a"}, {"$sample": {"size": 1}}]),
            None,
            json!([{"$unwind": "$a"}, {"$sample": {"size": 1}}]),
            true,
            json!([{"$limit": 1}]),
        ),
        (json!([window, {"$group": group}]), Some(&["a"][..]), json!([window, {"$group": group}]), false, json!([])),
        (json!([window]), Some(&["a", "b"][..]), json!([]), false, json!([window])),
    ] {
        let division = parse(stages.as_array().unwrap()).rearranged().unwrap().divided(key).unwrap();
        let found = (division.at_shards.to_json(), division.order.is_some(), division.merging.to_json());
        assert_eq!(found, (at_shards, ordered, merging), "{stages}");
    }
}

/// Every document is as likely to be in the sample as any other, however many documents its shard has.
#[test]
fn a_divided_sample_is_uniform() {
    fastrand::seed(28);
    const SIZE: usize = 10;
    const TIMES: usize = 2_000;
    let documents: Vec<_> = (0..100).map(|n| bytes(&json!({"_id": n}))).collect();
    let division = parse(&[json!({"$sample": {"size": SIZE}})]).divided(None).unwrap();
    let mut drawn = vec![0; documents.len()];
    for _ in 0..TIMES {
        let shards = [&documents[..1], &documents[1..10], &[], &documents[10..]];
        let sample = run_divided(&division, &shards, &memory(1 << 20)).unwrap();
        assert_eq!(sample.len(), SIZE);
        for document in sample {
            drawn[read(&document)["_id"].as_u64().unwrap() as usize] += 1;
        }
    }
    // The expected number is 200, and its standard deviation 13.4.
    assert!(drawn.iter().all(|times| (120..280).contains(times)), "{drawn:?}");
}

#[test]
fn a_find_begins_a_pipeline() {
    let of = |stages: Json| {
        let (find, rest) = parse(stages.as_array().unwrap()).rearranged().unwrap().find();
        let fields = find.fields.map(|fields| fields.join(" "));
        (
            Json::clone(&find.filter),
            find.sort.map(|(sort, _)| Json::clone(&sort)),
            find.skip,
            find.limit,
            fields,
            rest.stages().len(),
        )
    };
    assert_eq!(
        of(
            json!([{"$match": {"a": 1}}, {"$sort": {"b": 1}}, {"$skip": 2}, {"$limit": 3}, {"$group": {"_id": "$c.d", "n": {"$sum": "$e"}}}])
        ),
        (json!({"a": 1}), Some(json!({"b": 1})), 2, Some(3), Some("c e".to_owned()), 1)
    );
    assert_eq!(
        of(json!([{"$project": {"x": 1}}, {"$match": {"x": 1}}, {"$sort": {"x": 1}}])),
        (json!({"x": 1}), None, 0, None, Some("_id x".to_owned()), 2)
    );
    assert_eq!(
        of(json!([{"$set": {"x": "$y"}}, {"$count": "n"}])),
        (json!({}), None, 0, None, Some("y".to_owned()), 3)
    );
    assert_eq!(of(json!([{"$limit": 2}, {"$skip": 3}])), (json!({}), None, 0, Some(2), None, 1));
    assert_eq!(of(json!([{"$limit": 2}, {"$sort": {"a": 1}}])), (json!({}), None, 0, Some(2), None, 1));
}

#[test]
fn fields_are_told() {
    let of = |stage: Json| {
        let fields = parse(&[stage]).stages()[0].fields();
        let list = |paths: &BTreeSet<String>| paths.iter().cloned().collect::<Vec<_>>().join(" ");
        let written = match &fields.written {
            Written::Only(paths) => list(paths),
            Written::AllBut(paths) => format!("but {}", list(paths)),
        };
        (fields.read.as_ref().map_or("*".to_owned(), list), written)
    };
    for (stage, read, written) in [
        (json!({"$match": {"a.b": 1, "$or": [{"c": 2}]}}), "a.b c", ""),
        (json!({"$match": {"$expr": {"$eq": ["$a", "$b"]}}}), "*", ""),
        (json!({"$set": {"x.y": {"$add": ["$a", {"$let": {"vars": {"v": "$b"}, "in": "$$v"}}]}}}), "a b", "x.y"),
        (json!({"$unset": ["a", "b.c"]}), "", "a b.c"),
        (json!({"$project": {"_id": 0, "a.b": 1, "n": "$m"}}), "m", "but a.b"),
        (json!({"$project": {"_id": 0, "a.g": "$m"}}), "a m", "but "),
        (json!({"$replaceWith": "$o"}), "o", "but "),
        (json!({"$set": {"all": "$$ROOT"}}), "*", "all"),
        (json!({"$limit": 1}), "", ""),
        (json!({"$sort": {"a.b": 1, "c": -1}}), "a.b c", ""),
        (json!({"$unwind": {"path": "$a.b", "includeArrayIndex": "i"}}), "a.b", "a.b i"),
        (json!({"$group": {"_id": "$k", "n": {"$top": {"sortBy": {"s": 1}, "output": "$o"}}}}), "k o s", "but "),
        (json!({"$facet": {"x": []}}), "*", "but "),
        (
            json!({"$setWindowFields": {"partitionBy": "$p", "sortBy": {"s": 1}, "output": {
                "x.y": {"$sum": "$v"}, "z": {"$top": {"sortBy": {"t": 1}, "output": "$u"}}}}}),
            "p s t u v",
            "x.y z",
        ),
        (
            json!({"$densify": {"field": "f", "partitionByFields": ["p.q"], "range": {"step": 1, "bounds": "full"}}}),
            "f p.q",
            "",
        ),
    ] {
        assert_eq!(of(stage.clone()), (read.to_owned(), written.to_owned()), "{stage}");
    }
}

/// A count of documents needs no documents; anything else does.
#[test]
fn what_only_counts() {
    for (stages, expected) in [
        (json!([{"$count": "n"}]), true),
        (json!([{"$group": {"_id": null, "n": {"$sum": 1}}}, {"$match": {"n": 1}}]), true),
        (json!([{"$group": {"_id": null}}]), true),
        (json!([{"$group": {"_id": null, "n": {"$sum": 1.0}}}]), false),
        (json!([{"$group": {"_id": null, "n": {"$sum": 2}}}]), false),
        (json!([{"$group": {"_id": null, "n": {"$avg": 1}}}]), false),
        (json!([{"$group": {"_id": "$a", "n": {"$sum": 1}}}]), false),
        (json!([{"$unwind": "$a"}, {"$count": "n"}]), false),
        (json!([]), false),
    ] {
        assert_eq!(parse(stages.as_array().unwrap()).only_counts(), expected, "{stages}");
    }
}

#[test]
fn stages_within_bounds() {
    let too_many = vec![json!({"$match": {}}); 1001];
    let within = [
        json!({"$facet": {"f": too_many}}),
        json!({"$lookup": {"from": "c", "as": "l", "pipeline": too_many}}),
        json!({"$unionWith": {"coll": "c", "pipeline": too_many}}),
        json!({"$merge": {"into": "c", "whenMatched": vec![json!({"$set": {"a": 1}}); 1001]}}),
    ];
    for stages in within.iter().map(std::slice::from_ref).chain([too_many.as_slice()]) {
        let error = Pipeline::parse(stages, &Environment::default()).unwrap_err();
        assert_eq!(error.kind, Kind::Location(7749501), "{}", error.message);
    }
    // The parts of a pipeline over shards may have more: these stages stand for two each.
    let most = vec![json!({"$sortByCount": "$_id"}); 1000];
    let documents = [bytes(&json!({"_id": 1}))];
    let division = parse(&most).at_one_shard().unwrap();
    let results = run_divided(&division, &[&documents], &memory(1 << 20)).unwrap();
    assert_eq!(read(&results[0]), json!({"_id": 1, "count": 1}));
    assert!(STAGES.iter().all(|stage| !stage.in_updates || stage.one_to_one), "an update makes one document of one");
}
