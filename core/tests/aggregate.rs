//! Stages and accumulators: what they make of documents, and what they refuse.

mod common;

use common::canonical;
use common::pipelines::aggregate;
use docshard_core::error::Kind;
use serde_json::{Value as Json, json};

fn check(cases: &[(Json, Json)], documents: &Json) {
    for (stages, expected) in cases {
        let found = aggregate(stages, documents).unwrap_or_else(|error| panic!("{stages}: {error:?}"));
        assert_eq!(Json::from(found), *expected, "{stages}");
    }
}

#[test]
fn unwind() {
    let documents = json!([
        {"_id": 1, "a": [1, [2], {"x": 3}], "o": {"p": ["y", "z"], "q": 0}},
        {"_id": 2, "a": []},
        {"_id": 3, "a": null, "o": {"p": 5}},
        {"_id": 4, "a": "s", "o": [{"p": [1]}]},
        {"_id": 5, "o": 7},
    ]);
    check(
        &[
            (
                json!([{"$unwind": "$a"}, {"$unset": "o"}]),
                json!([{"_id": 1, "a": 1}, {"_id": 1, "a": [2]}, {"_id": 1, "a": {"x": 3}}, {"_id": 4, "a": "s"}]),
            ),
            (
                json!([{"$unwind": {"path": "$a", "preserveNullAndEmptyArrays": true, "includeArrayIndex": "at"}}, {"$match": {"_id": {"$gt": 1}}}, {"$unset": "o"}]),
                json!([{"_id": 2, "at": null}, {"_id": 3, "a": null, "at": null}, {"_id": 4, "a": "s", "at": null}, {"_id": 5, "at": null}]),
            ),
            (
                json!([{"$unwind": {"path": "$o.p", "includeArrayIndex": "o.at"}}, {"$unset": "a"}]),
                json!([
                    {"_id": 1, "o": {"p": "y", "q": 0, "at": 0}},
                    {"_id": 1, "o": {"p": "z", "q": 0, "at": 1}},
                    {"_id": 3, "o": {"p": 5, "at": null}},
                ]),
            ),
            (
                json!([{"$match": {"_id": 5}}, {"$unwind": {"path": "$o.p", "preserveNullAndEmptyArrays": true, "includeArrayIndex": "o.at"}}]),
                json!([{"_id": 5, "o": {"at": null}}]),
            ),
        ],
        &documents,
    );
}

#[test]
fn groups() {
    let documents = json!([
        {"_id": 1, "k": 1, "v": 3, "o": {"a": 1}},
        {"_id": 2, "k": 1.0, "v": 5, "o": {"b": 2}},
        {"_id": 3, "k": null, "v": 7},
        {"_id": 4, "v": 1, "o": {"a": 4}},
        {"_id": 5, "k": "x", "v": "none"},
    ]);
    check(
        &[
            (
                json!([{"$group": {"_id": "$k", "sum": {"$sum": "$v"}, "ids": {"$push": "$_id"}, "n": {"$count": {}}}}]),
                json!([
                    {"_id": 1, "sum": 8, "ids": [1, 2], "n": 2},
                    {"_id": null, "sum": 8, "ids": [3, 4], "n": 2},
                    {"_id": "x", "sum": 0, "ids": [5], "n": 1},
                ]),
            ),
            // A missing field is not there in a key of several, and is another than null.
            (
                json!([{"$group": {"_id": {"k": "$k", "l": "$l"}, "n": {"$sum": 1}}}, {"$match": {"n": 1}}]),
                json!([{"_id": {"k": null}, "n": 1}, {"_id": {}, "n": 1}, {"_id": {"k": "x"}, "n": 1}]),
            ),
            // In a key of one field it counts as null.
            (
                json!([{"$group": {"_id": {"k": "$k"}, "ids": {"$push": "$_id"}}}]),
                json!([
                    {"_id": {"k": 1}, "ids": [1, 2]},
                    {"_id": {"k": null}, "ids": [3, 4]},
                    {"_id": {"k": "x"}, "ids": [5]},
                ]),
            ),
            (json!([{"$group": {"_id": {"$literal": {}}}}]), json!([{"_id": {}}])),
            (
                json!([{"$group": {"_id": null, "o": {"$mergeObjects": "$o"}, "first": {"$first": "$k"}, "last": {"$last": "$o"}}}]),
                json!([{"_id": null, "o": {"a": 4, "b": 2}, "first": 1, "last": null}]),
            ),
            (
                json!([{"$group": {"_id": null, "t": {"$top": {"sortBy": {"k": -1, "v": 1}, "output": ["$_id", "$v"]}}, "b": {"$bottom": {"sortBy": {"v": 1}, "output": "$nothing"}}}}]),
                json!([{"_id": null, "t": [5, "none"], "b": null}]),
            ),
            (
                json!([{"$group": {"_id": null, "t": {"$topN": {"sortBy": {"v": -1}, "output": "$_id", "n": 2}}, "b": {"$bottomN": {"sortBy": {"v": -1}, "output": "$_id", "n": 2}}}}]),
                json!([{"_id": null, "t": [5, 3], "b": [1, 4]}]),
            ),
            // How many values are kept may depend on the group.
            (
                json!([{"$group": {"_id": {"key": "$k"}, "v": {"$firstN": {"input": "$v", "n": {"$cond": [{"$eq": ["$key", 1]}, 1, 5]}}}}}, {"$limit": 2}]),
                json!([{"_id": {"key": 1}, "v": [3]}, {"_id": {"key": null}, "v": [7, 1]}]),
            ),
            (
                json!([{"$group": {"_id": null, "p": {"$percentile": {"input": "$v", "p": [0, 0.5, 1], "method": "continuous"}}}}]),
                json!([{"_id": null, "p": [1.0, 4.0, 7.0]}]),
            ),
            (json!([{"$match": {"_id": 9}}, {"$group": {"_id": null}}]), json!([])),
            (json!([{"$count": "n"}]), json!([{"n": 5}])),
            (json!([{"$match": {"_id": 9}}, {"$count": "n"}]), json!([])),
            (json!([{"$sortByCount": {"$type": "$k"}}, {"$limit": 1}]), json!([{"_id": "int", "count": 1}])),
        ],
        &documents,
    );
}

#[test]
fn buckets() {
    let documents = json!([{"_id": 1, "v": 5}, {"_id": 2, "v": 1}, {"_id": 3, "v": 9}, {"_id": 4}, {"_id": 5, "v": 1}]);
    check(
        &[
            (
                json!([{"$bucket": {"groupBy": "$v", "boundaries": [0, 5, {"$add": [8, 2]}], "default": "other"}}]),
                json!([{"_id": 0, "count": 2}, {"_id": 5, "count": 2}, {"_id": "other", "count": 1}]),
            ),
            (
                json!([{"$bucketAuto": {"groupBy": "$v", "buckets": 2, "output": {"ids": {"$push": "$_id"}}}}]),
                json!([{"_id": {"min": null, "max": 5}, "ids": [2, 4, 5]}, {"_id": {"min": 5, "max": 9}, "ids": [1, 3]}]),
            ),
            // Accumulators get the documents of a bucket in the order of the input.
            (
                json!([{"$sort": {"_id": -1}}, {"$bucketAuto": {"groupBy": "$v", "buckets": 1, "output": {
                    "first": {"$first": "$_id"}, "last": {"$lastN": {"input": "$_id", "n": 2}}, "least": {"$min": "$_id"}}}}]),
                json!([{"_id": {"min": null, "max": 9}, "first": 5, "last": [2, 1], "least": 1}]),
            ),
            (
                json!([{"$match": {"v": {"$exists": true}}}, {"$bucketAuto": {"groupBy": "$v", "buckets": 4, "granularity": "1-2-5"}}]),
                json!([
                    {"_id": {"min": 0.5, "max": 2.0}, "count": 2},
                    {"_id": {"min": 2.0, "max": 10.0}, "count": 2},
                ]),
            ),
            (json!([{"$match": {"_id": 9}}, {"$bucketAuto": {"groupBy": "$v", "buckets": 4}}]), json!([])),
            (
                json!([{"$bucketAuto": {"groupBy": "$v", "buckets": 1, "output": {}}}]),
                json!([{"_id": {"min": null, "max": 9}, "count": 5}]),
            ),
            (
                json!([{"$bucket": {"groupBy": {"$ifNull": ["$v", 9]}, "boundaries": [0, 10], "output": {}}}]),
                json!([{"_id": 0}]),
            ),
        ],
        &documents,
    );
    let zeros = json!([{"v": 0}, {"v": 0}, {"v": 0}, {"v": 0}, {"v": 10}, {"v": {"$numberDecimal": "20"}}]);
    let rounded = json!([{"$bucketAuto": {"groupBy": "$v", "buckets": 3, "granularity": "R5"}}]);
    // All zeros are in the first bucket; a decimal has a decimal boundary.
    check(
        &[(
            rounded,
            json!([
                {"_id": {"min": 0, "max": 63.0 * 0.1}, "count": 4},
                {"_id": {"min": 63.0 * 0.1, "max": {"$numberDecimal": "25"}}, "count": 2},
            ]),
        )],
        &zeros,
    );
    let error = aggregate(&json!([{"$bucket": {"groupBy": "$v", "boundaries": [0, 5]}}]), &documents).unwrap_err();
    assert_eq!(error.kind, Kind::Location(40066));
}

#[test]
fn redaction_facets_and_documents() {
    let documents = json!([
        {"_id": 1, "level": 1, "in": {"level": 5, "x": 1}, "list": [{"level": 1, "y": {"level": 2}}, {"level": 5}, 7, [{"level": 5}, 8]]},
        {"_id": 2, "level": 5},
    ]);
    check(
        &[
            (
                json!([{"$redact": {"$cond": [{"$lte": ["$level", 2]}, "$$DESCEND", "$$PRUNE"]}}]),
                json!([{"_id": 1, "level": 1, "list": [{"level": 1, "y": {"level": 2}}, 7, [8]]}]),
            ),
            (
                json!([{"$redact": {"$cond": [{"$eq": ["$$ROOT._id", "$level"]}, "$$KEEP", "$$PRUNE"]}}, {"$project": {"level": 1}}]),
                json!([{"_id": 1, "level": 1}]),
            ),
            (
                json!([{"$facet": {"n": [{"$count": "n"}], "first": [{"$sort": {"level": -1}}, {"$limit": 1}, {"$project": {"level": 1}}], "none": [{"$match": {"_id": 3}}]}}]),
                json!([{"n": [{"n": 2}], "none": [], "first": [{"_id": 2, "level": 5}]}]),
            ),
            (
                json!([{"$documents": [{"a": {"$add": [1, 1]}}, {"a": 1}]}, {"$sort": {"a": 1}}]),
                json!([{"a": 1}, {"a": 2}]),
            ),
            (
                json!([{"$documents": {"$map": {"input": {"$range": [0, 2]}, "in": {"a": "$$this", "b": "$b"}}}}]),
                json!([{"a": 0}, {"a": 1}]),
            ),
        ],
        &documents,
    );
    let sampled = aggregate(&json!([{"$sample": {"size": 5}}]), &documents).unwrap();
    assert_eq!(sampled.len(), 2);
    assert_eq!(aggregate(&json!([{"$sample": {"size": 1}}]), &documents).unwrap().len(), 1);
    let error = aggregate(&json!([{"$redact": "$level"}]), &documents).unwrap_err();
    assert_eq!(error.kind, Kind::Location(17053));
}

/// A limit ends the reading of an array.
#[test]
fn an_unwound_array_is_read_element_by_element() {
    let documents = json!([{"_id": 1, "a": (0..100_000).collect::<Vec<_>>()}]);
    let found = aggregate(&json!([{"$unwind": "$a"}, {"$limit": 2}]), &documents).unwrap();
    assert_eq!(Json::from(found), json!([{"_id": 1, "a": 0}, {"_id": 1, "a": 1}]));
}

#[test]
fn what_is_made_is_no_larger_than_a_document() {
    let documents = json!((0..3).map(|id| json!({"_id": id, "s": "x".repeat(6 << 20)})).collect::<Vec<_>>());
    let error = aggregate(&json!([{"$group": {"_id": null, "all": {"$push": "$s"}}}]), &documents).unwrap_err();
    assert_eq!(error.kind, Kind::BSONObjectTooLarge);
    let error = aggregate(&json!([{"$facet": {"all": []}}]), &documents).unwrap_err();
    assert_eq!(error.kind, Kind::BSONObjectTooLarge);
}

#[test]
fn malformed_stages_are_refused() {
    let group = |accumulator: Json| json!({"$group": {"_id": 1, "x": accumulator}});
    let bucket = |more: Json| {
        let mut bucket = json!({"groupBy": "$a", "boundaries": [1, 2]});
        bucket.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"$bucket": bucket})
    };
    for (stage, code) in [
        (json!({"$match": 1}), 15959),
        (json!({"$limit": 0}), 15958),
        (json!({"$limit": "x"}), 5107201),
        (json!({"$skip": -1}), 5107200),
        (json!({"$nope": 1}), 40324),
        (json!({"$_partialGroup": {"_id": 1}}), 40324),
        (json!({"$geoNear": {}}), 238),
        (json!({"$setWindowFields": {}}), 40414),
        (json!({}), 40323),
        (json!({"$limit": 1, "$skip": 1}), 40323),
        (json!(1), 14),
        (json!({"$unwind": 1}), 15981),
        (json!({"$unwind": "a"}), 28818),
        (json!({"$unwind": {"path": 1}}), 28808),
        (json!({"$unwind": {}}), 28812),
        (json!({"$unwind": {"path": "$a", "x": 1}}), 28811),
        (json!({"$unwind": {"path": "$a", "includeArrayIndex": "$i"}}), 28822),
        (json!({"$unwind": {"path": "$a", "includeArrayIndex": 1}}), 28810),
        (json!({"$unwind": {"path": "$a", "preserveNullAndEmptyArrays": 1}}), 28809),
        (json!({"$sort": 1}), 15973),
        (json!({"$sort": {}}), 15976),
        (json!({"$sort": {"a": 2}}), 15975),
        (json!({"$sample": 1}), 28745),
        (json!({"$sample": {"size": "x"}}), 28746),
        (json!({"$sample": {"size": -1}}), 28747),
        (json!({"$sample": {"x": 1}}), 28748),
        (json!({"$sample": {}}), 28749),
        (json!({"$group": 1}), 15947),
        (json!({"$group": {}}), 15955),
        (json!({"$group": {"_id": 1, "a.b": {"$sum": 1}}}), 40235),
        (json!({"$group": {"_id": {"a": 1}}}), 17390),
        (json!({"$project": {"a.$": 1}}), 31324),
        (json!({"$group": {"_id": {"a": "$a", "b": true}}}), 17390),
        (json!({"$group": {"_id": 1, "$a": {"$sum": 1}}}), 40236),
        (group(json!(1)), 40234),
        (group(json!({"a": 1})), 40234),
        (group(json!({})), 40234),
        (group(json!({"a": 1, "$sum": 1})), 40234),
        (json!({"$group": {"_id": 1, "a.b": 1}}), 40234),
        (group(json!({"$sum": 1, "$avg": 1})), 40238),
        (group(json!({"$sum": ["$a"]})), 40237),
        (group(json!({"$sun": 1})), 15952),
        (group(json!({"$accumulator": {}})), 238),
        (group(json!({"$count": 1})), 14),
        (group(json!({"$firstN": 1})), 5787801),
        (group(json!({"$minN": 1})), 5787900),
        (group(json!({"$firstN": {"input": 1, "n": 1, "x": 1}})), 5787901),
        (group(json!({"$lastN": {"input": 1}})), 5787906),
        (group(json!({"$minN": {"n": 1}})), 5787907),
        (group(json!({"$maxN": {"input": 1, "n": "x"}})), 7548606),
        (group(json!({"$maxN": {"input": 1, "n": 1.5}})), 7548606),
        (group(json!({"$maxN": {"input": 1, "n": 0}})), 7548606),
        (group(json!({"$top": 1})), 5788001),
        (group(json!({"$top": {"sortBy": {"a": 1}, "output": 1, "n": 1}})), 5788002),
        (group(json!({"$topN": {"sortBy": {"a": 1}, "output": 1}})), 5788003),
        (group(json!({"$bottom": {"sortBy": {"a": 1}}})), 5788004),
        (group(json!({"$bottom": {"output": 1}})), 5788005),
        (group(json!({"$bottomN": {"output": 1, "n": 1, "sortBy": 1}})), 10065),
        (group(json!({"$median": {"input": 1}})), 40414),
        (group(json!({"$median": {"input": 1, "method": "x"}})), 2),
        (group(json!({"$percentile": {"input": 1, "method": "approximate", "p": [2]}})), 7750303),
        (group(json!({"$percentile": {"input": 1, "method": "approximate", "p": "$p"}})), 7750300),
        (json!({"$count": 1}), 40156),
        (json!({"$count": ""}), 40157),
        (json!({"$count": "$a"}), 40158),
        (json!({"$count": "a.b"}), 40160),
        (json!({"$sortByCount": {"a": 1}}), 40147),
        (json!({"$sortByCount": "a"}), 40148),
        (json!({"$sortByCount": 1}), 40149),
        (json!({"$bucket": 1}), 40201),
        (json!({"$bucket": {"groupBy": "$a"}}), 40198),
        (bucket(json!({"groupBy": 1})), 40202),
        (bucket(json!({"groupBy": {"a": "$a"}})), 40202),
        (bucket(json!({"groupBy": {}})), 40202),
        (bucket(json!({"boundaries": 1})), 40200),
        (bucket(json!({"boundaries": [1, "$a"]})), 40191),
        (bucket(json!({"boundaries": [1]})), 40192),
        (bucket(json!({"boundaries": [1, "x"]})), 40193),
        (bucket(json!({"boundaries": [1, 1]})), 40194),
        (bucket(json!({"default": "$a"})), 40195),
        (bucket(json!({"default": 1.5})), 40199),
        (bucket(json!({"output": 1})), 40196),
        (bucket(json!({"x": 1})), 40197),
        (json!({"$bucketAuto": 1}), 40240),
        (json!({"$bucketAuto": {"groupBy": "$a"}}), 40246),
        (json!({"$bucketAuto": {"groupBy": "a", "buckets": 1}}), 40239),
        (json!({"$bucketAuto": {"groupBy": {"a": "$a"}, "buckets": 1}}), 40239),
        (
            json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "output": {"x": {"$maxN": {"input": "$a", "n": "$_id"}}}}}),
            4544714,
        ),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": "x"}}), 40241),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1.5}}), 40242),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 0}}), 40243),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "output": 1}}), 40244),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "x": 1}}), 40245),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": "R6"}}), 40257),
        (json!({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": 1}}), 40261),
        (json!({"$facet": {}}), 40169),
        (json!({"$facet": {"a": 1}}), 40170),
        (json!({"$facet": {"a": [1]}}), 40171),
        (json!({"$facet": {"a": [{}]}}), 40323),
        (json!({"$facet": {"a": [{"$facet": {"b": []}}]}}), 40600),
        (json!({"$facet": {"a": [{"$lookup": {"from": "o", "as": "x", "pipeline": [{"$facet": {"b": []}}]}}]}}), 40600),
        (json!({"$facet": {"a": [{"$lookup": {"as": "x", "pipeline": [{"$documents": []}]}}]}}), 40600),
        (json!({"$facet": {"a": [{"$unionWith": {"coll": "o", "pipeline": [{"$facet": {"b": []}}]}}]}}), 40600),
        (
            json!({"$facet": {"a": [{"$unionWith": {"coll": "o", "pipeline": [{"$lookup": {"from": "o", "as": "x", "pipeline": [{"$indexStats": {}}]}}]}}]}}),
            40600,
        ),
        (json!({"$facet": {"a": [{"$nope": 1}]}}), 40324),
        (json!({"$facet": {"a.b": []}}), 16412),
        (json!({"$documents": 1}), 5858203),
        (json!({"$documents": [1]}), 40228),
    ] {
        let error = aggregate(&json!([stage]), &json!([])).unwrap_err();
        assert_eq!(error.kind.code(), code, "{stage}: {}", error.message);
        let stage = canonical(&stage);
        let error = aggregate(&json!([stage]), &json!([])).unwrap_err();
        assert_eq!(error.kind.code(), code, "{stage}: {}", error.message);
    }
    let second = json!([{"$limit": 1}, {"$documents": []}]);
    assert_eq!(aggregate(&second, &json!([])).unwrap_err().kind, Kind::Location(40602));
    // MongoDB computes the accumulators of `$group` in an engine with codes of its own.
    for (expression, code) in [
        (json!({"$sum": {"$divide": ["$v", 0]}}), 4848401),
        (json!({"$sum": {"$divide": [1, 0]}}), 2),
        (json!({"$max": {"$sum": {"$map": {"input": [0], "in": {"$divide": ["$v", "$$this"]}}}}}), 4848401),
        (json!({"$push": {"$mod": ["$v", 0]}}), 4848403),
        (json!({"$mergeObjects": "$v"}), 5911200),
    ] {
        let stages = json!([{"$group": {"_id": null, "x": expression}}]);
        let error = aggregate(&stages, &json!([{"v": 1}])).unwrap_err();
        assert_eq!(error.kind.code(), code, "{stages}: {error}");
    }
    let elsewhere = [
        (json!({"$group": {"_id": {"$divide": ["$v", 0]}}}), 4848401),
        (json!({"$project": {"x": {"$divide": ["$v", 0]}}}), 2),
        (json!({"$setWindowFields": {"output": {"x": {"$sum": {"$divide": ["$v", 0]}}}}}), 2),
        (json!({"$setWindowFields": {"output": {"x": {"$sum": {"$mod": ["$v", 0]}}}}}), 16610),
    ];
    for (stage, code) in elsewhere {
        assert_eq!(aggregate(&json!([stage]), &json!([{"v": 1}])).unwrap_err().kind.code(), code, "{stage}");
    }
    let not_numbers = [(json!("x"), 40258), (json!({"$numberDouble": "NaN"}), 40259), (json!(-1), 40260)];
    for (value, code) in not_numbers {
        let stages = json!([{"$bucketAuto": {"groupBy": "$v", "buckets": 1, "granularity": "R5"}}]);
        assert_eq!(aggregate(&stages, &json!([{"v": value}])).unwrap_err().kind.code(), code);
    }
}
