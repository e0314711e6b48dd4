//! Filters: matching, errors, and the analysis of single fields.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{IN_ENTRIES, IndexKeys};
use docshard_core::values::document::value::Value;
use docshard_core::values::key::encode::{encode_value, prefix_successor};
use docshard_core::values::key::{KeyRange, KeyRanges};
use docshard_core::values::order::{Class, compare_values};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

fn matches(filter: &Json, against: &Json) -> bool {
    let filter = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
    filter.matches(document(&bytes(against)))
}

/// Each case: a filter, documents that match, documents that do not.
fn check(cases: Vec<(Json, Vec<Json>, Vec<Json>)>) {
    for (filter, yes, no) in cases {
        for against in yes {
            assert!(matches(&filter, &against), "{filter} should match {against}");
        }
        for against in no {
            assert!(!matches(&filter, &against), "{filter} should not match {against}");
        }
    }
}

#[test]
fn equality() {
    check(vec![
        (json!({}), vec![json!({}), json!({"a": 1})], vec![]),
        (
            json!({"a": 2}),
            vec![json!({"a": 2}), json!({"a": 2.0}), json!({"a": {"$numberDecimal": "2.0"}}), json!({"a": [1, 2]})],
            vec![json!({"a": "2"}), json!({"a": 3}), json!({}), json!({"a": [[2]]}), json!({"a": {"a": 2}})],
        ),
        (json!({"a": "x"}), vec![json!({"a": "x"}), json!({"a": ["x"]})], vec![json!({"a": "xx"}), json!({"a": null})]),
        (
            json!({"a": {"x": 1, "y": 2}}),
            vec![json!({"a": {"y": 2, "x": 1}}), json!({"a": [{"x": 1, "y": 2}]})],
            vec![json!({"a": {"x": 1}}), json!({"a": {"x": 1, "y": 2, "z": 3}})],
        ),
        (
            json!({"a": [1, 2]}),
            vec![json!({"a": [1, 2]}), json!({"a": [[1, 2], 3]})],
            vec![json!({"a": [2, 1]}), json!({"a": [1, 2, 3]}), json!({"a": 1})],
        ),
        (json!({"a": []}), vec![json!({"a": []}), json!({"a": [[]]})], vec![json!({"a": [1]}), json!({})]),
        (json!({"a": {}}), vec![json!({"a": {}})], vec![json!({"a": {"b": 1}}), json!({"a": []})]),
        (
            json!({"_id": {"$oid": "0123456789abcdef01234567"}}),
            vec![json!({"_id": {"$oid": "0123456789abcdef01234567"}})],
            vec![json!({"_id": "0123456789abcdef01234567"}), json!({"_id": {"$oid": "1123456789abcdef01234567"}})],
        ),
        (json!({"a": {"$eq": 1}, "b": {"$eq": {"c": 1}}}), vec![json!({"a": 1, "b": {"c": 1}})], vec![json!({"a": 1})]),
        (json!({"a": 1, "b": 1}), vec![json!({"a": 1, "b": 1})], vec![json!({"a": 1}), json!({"b": 1})]),
    ]);
}

#[test]
fn null_equals_missing() {
    check(vec![
        (
            json!({"a": null}),
            vec![json!({}), json!({"a": null}), json!({"a": [1, null]}), json!({"a": {"$undefined": true}})],
            vec![json!({"a": 0}), json!({"a": []}), json!({"a": {}})],
        ),
        (
            json!({"a.b": null}),
            vec![
                json!({}),
                json!({"a": 4}),
                json!({"a": {}}),
                json!({"a": null}),
                json!({"a": [{"b": 3}, {}]}),
                json!({"a": {"$date": "2020-01-01T00:00:00Z"}}),
            ],
            // An array without documents has no value at the path, not even a missing one.
            vec![json!({"a": []}), json!({"a": [1, 2]}), json!({"a": [[]]}), json!({"a": [{"b": 3}]})],
        ),
        (json!({"a": {"$gte": null}}), vec![json!({}), json!({"a": null})], vec![json!({"a": 1})]),
        (json!({"a": {"$lte": null}}), vec![json!({}), json!({"a": null})], vec![json!({"a": 1})]),
        (json!({"a": {"$gt": null}}), vec![], vec![json!({}), json!({"a": null}), json!({"a": 1})]),
        (json!({"a": {"$lt": null}}), vec![], vec![json!({}), json!({"a": null}), json!({"a": 1})]),
        (json!({"a": {"$ne": null}}), vec![json!({"a": 1}), json!({"a": []})], vec![json!({}), json!({"a": [null]})]),
        (json!({"a": {"$in": [null, 1]}}), vec![json!({}), json!({"a": null}), json!({"a": 1})], vec![json!({"a": 2})]),
    ]);
}

#[test]
fn paths() {
    check(vec![
        (
            json!({"a.b": 1}),
            vec![json!({"a": {"b": 1}}), json!({"a": [{"b": 0}, {"b": 1}]}), json!({"a": {"b": [1]}})],
            vec![json!({"a": [[{"b": 1}]]}), json!({"a.b": 1}), json!({"a": 1}), json!({"b": 1})],
        ),
        (
            json!({"a.0": 5}),
            vec![json!({"a": [5, 6]}), json!({"a": {"0": 5}}), json!({"a": [{"0": 5}]})],
            vec![json!({"a": [6, 5]}), json!({"a": 5})],
        ),
        // The element at a named position is not searched.
        (json!({"a.1": [2, 4]}), vec![json!({"a": [5, [2, 4]]})], vec![]),
        (json!({"a.1": 2}), vec![], vec![json!({"a": [5, [2, 4]]})]),
        (json!({"a.01": 6}), vec![], vec![json!({"a": [5, 6]})]),
        (
            json!({"a.1.b": 4}),
            vec![json!({"a": [5, {"b": 4}]}), json!({"a": [5, [{"b": 4}]]})],
            vec![json!({"a": [{"b": 4}]})],
        ),
        (json!({"a.0.1": 2}), vec![json!({"a": [[1, 2]]})], vec![json!({"a": [[2, 1]]})]),
        (json!({"a.b.c": 1}), vec![json!({"a": [{"b": [{"c": 1}]}]})], vec![json!({"a": [[{"b": {"c": 1}}]]})]),
        // A path does not enter an extended value.
        (
            json!({"a.$oid": "0123456789abcdef01234567"}),
            vec![],
            vec![json!({"a": {"$oid": "0123456789abcdef01234567"}})],
        ),
        (json!({"a.$id": 1}), vec![json!({"a": {"$ref": "c", "$id": 1}})], vec![json!({"a": {"$ref": "c", "$id": 2}})]),
    ]);
}

#[test]
fn ranges_stay_within_a_type() {
    let date = |year: i32| json!({"$date": format!("{year}-01-01T00:00:00Z")});
    check(vec![
        (
            json!({"a": {"$gt": 1}}),
            vec![json!({"a": 1.5}), json!({"a": [0, 2]})],
            vec![json!({"a": 1}), json!({"a": "2"}), json!({})],
        ),
        (
            json!({"a": {"$gte": 1, "$lt": 3}}),
            vec![json!({"a": 1}), json!({"a": 2}), json!({"a": [0, 9]})],
            vec![json!({"a": 3}), json!({"a": [0, -1]})],
        ),
        (
            json!({"a": {"$lte": "b"}}),
            vec![json!({"a": ""}), json!({"a": "b"})],
            vec![json!({"a": "ba"}), json!({"a": 1})],
        ),
        (
            json!({"a": {"$gt": date(2020)}}),
            vec![json!({"a": date(2021)})],
            vec![json!({"a": date(2020)}), json!({"a": 1e15})],
        ),
        (
            json!({"a": {"$gt": {"x": 1}}}),
            vec![json!({"a": {"x": 2}})],
            vec![json!({"a": {"x": 1}}), json!({"a": [2]})],
        ),
        (
            json!({"a": {"$gt": [1]}}),
            vec![json!({"a": [2]}), json!({"a": [1, 0]})],
            vec![json!({"a": [1]}), json!({"a": 2})],
        ),
        (json!({"a": {"$gt": false}}), vec![json!({"a": true})], vec![json!({"a": 1}), json!({"a": false})]),
    ]);
}

#[test]
fn nan_only_equals_nan() {
    let nan = json!({"$numberDouble": "NaN"});
    let is_nan = json!({"a": {"$numberDecimal": "NaN"}});
    check(vec![
        (json!({"a": nan}), vec![is_nan.clone()], vec![json!({"a": 1}), json!({})]),
        (json!({"a": {"$gte": nan}}), vec![is_nan.clone()], vec![json!({"a": 1})]),
        (json!({"a": {"$lte": nan}}), vec![is_nan.clone()], vec![json!({"a": 1})]),
        (json!({"a": {"$gt": nan}}), vec![], vec![is_nan.clone(), json!({"a": 1})]),
        (json!({"a": {"$lt": nan}}), vec![], vec![is_nan.clone(), json!({"a": 1})]),
        (json!({"a": {"$lt": 5}}), vec![json!({"a": {"$numberDouble": "-Infinity"}})], vec![is_nan.clone()]),
        (json!({"a": {"$lte": 5}}), vec![json!({"a": 5})], vec![is_nan]),
    ]);
}

#[test]
fn min_key_and_max_key_compare_with_every_type() {
    let (min, max) = (json!({"$minKey": 1}), json!({"$maxKey": 1}));
    let (is_min, is_max) = (json!({"a": min}), json!({"a": max}));
    let others = || vec![json!({"a": 1}), json!({"a": "x"}), json!({"a": null}), json!({}), json!({"a": {}})];
    check(vec![
        (json!({"a": {"$gt": min}}), others(), vec![is_min.clone()]),
        (json!({"a": {"$gte": min}}), others(), vec![]),
        (json!({"a": {"$lte": min}}), vec![is_min.clone()], others()),
        (json!({"a": {"$lt": min}}), vec![], others()),
        (json!({"a": {"$lt": max}}), others(), vec![is_max.clone()]),
        (json!({"a": {"$gte": max}}), vec![is_max.clone()], others()),
        (json!({"a": max}), vec![is_max], others()),
    ]);
}

#[test]
fn membership() {
    check(vec![
        (json!({"a": {"$in": []}}), vec![], vec![json!({}), json!({"a": 1})]),
        (json!({"a": {"$nin": []}}), vec![json!({}), json!({"a": 1})], vec![]),
        (
            json!({"a": {"$in": ["x", 3, 1, 2.0, {"b": 1}, [7]]}}),
            vec![json!({"a": 2}), json!({"a": "x"}), json!({"a": {"b": 1}}), json!({"a": [7]}), json!({"a": [9, 1]})],
            vec![json!({"a": 7}), json!({}), json!({"a": "y"})],
        ),
        (json!({"a": {"$nin": [1, 2]}}), vec![json!({"a": 3}), json!({})], vec![json!({"a": [3, 1]})]),
        (json!({"a": {"$ne": 1}}), vec![json!({"a": 2}), json!({})], vec![json!({"a": 1}), json!({"a": [1, 2]})]),
    ]);
    let many = json!({"a": {"$in": (0..5000).map(|i| i * 2).collect::<Vec<_>>()}});
    let filter = Filter::parse(&many).unwrap();
    for i in [0, 1, 4998, 4999, 9998, 9999, 10000] {
        assert_eq!(filter.matches(document(&bytes(&json!({"a": i})))), i % 2 == 0 && i < 10000, "{i}");
    }
}

#[test]
fn logic() {
    check(vec![
        (json!({"$and": [{"a": 1}, {"b": 2}]}), vec![json!({"a": 1, "b": 2})], vec![json!({"a": 1})]),
        (json!({"$or": [{"a": 1}, {"b": 2}]}), vec![json!({"a": 1}), json!({"b": 2})], vec![json!({"a": 2, "b": 1})]),
        (
            json!({"$nor": [{"a": 1}, {"b": 2}]}),
            vec![json!({}), json!({"a": 2})],
            vec![json!({"a": 1}), json!({"b": 2})],
        ),
        (
            json!({"a": {"$not": {"$gt": 1}}}),
            vec![json!({"a": 1}), json!({}), json!({"a": "x"})],
            vec![json!({"a": [0, 2]})],
        ),
        (json!({"a": {"$not": {"$not": {"$eq": 1}}}}), vec![json!({"a": 1})], vec![json!({})]),
        (json!({"a": {"$not": {"$gte": 1, "$lte": 2}}}), vec![json!({"a": 0})], vec![json!({"a": 1})]),
        (json!({"$comment": "why", "a": {"$eq": 1, "$comment": 2}}), vec![json!({"a": 1})], vec![json!({"a": 2})]),
    ]);
}

#[test]
fn existence() {
    let here = || vec![json!({"a": 1}), json!({"a": null}), json!({"a": []})];
    check(vec![
        (json!({"a": {"$exists": true}}), here(), vec![json!({}), json!({"b": 1})]),
        (json!({"a": {"$exists": false}}), vec![json!({}), json!({"b": 1})], here()),
        (json!({"a": {"$exists": "no"}}), here(), vec![json!({})]),
        (json!({"a": {"$exists": {"$numberInt": "0"}}}), vec![json!({})], here()),
        (json!({"a": {"$exists": null}}), vec![json!({})], here()),
        (
            json!({"a.b": {"$exists": false}}),
            vec![json!({"a": [1]}), json!({"a": []}), json!({})],
            vec![json!({"a": [{"b": 1}, 2]})],
        ),
        (json!({"a.1": {"$exists": true}}), vec![json!({"a": [1, 2]})], vec![json!({"a": [1]})]),
    ]);
}

#[test]
fn refusals() {
    let regex = json!({"$regularExpression": {"pattern": "x", "options": ""}});
    for (filter, kind, message) in [
        (json!(1), Kind::TypeMismatch, "the filter must be an object"),
        (json!({"a": {"$foo": 1}}), Kind::BadValue, "unknown operator: $foo"),
        (json!({"a": {"$gt": 1, "b": 1}}), Kind::BadValue, "unknown operator: b"),
        (json!({"a": {"b": 1, "$gt": 1}}), Kind::BadValue, "unknown operator: $gt"),
        (json!({"$foo": 1}), Kind::BadValue, "unknown top level operator: $foo. If you have a field name that starts"),
        (json!({"$and": []}), Kind::BadValue, "$and/$or/$nor must be a nonempty array"),
        (json!({"$or": {}}), Kind::BadValue, "$or must be an array"),
        (json!({"$nor": [1]}), Kind::BadValue, "$or/$and/$nor entries need to be full objects"),
        (json!({"a": {"$in": 1}}), Kind::BadValue, "$in needs an array"),
        (json!({"a": {"$nin": {}}}), Kind::BadValue, "$nin needs an array"),
        (json!({"a": {"$in": [{"$gt": 1}]}}), Kind::BadValue, "cannot nest $ under $in"),
        (json!({"a": {"$gt": regex}}), Kind::BadValue, "Can't have RegEx as arg to predicate over field 'a'."),
        (json!({"a": {"$ne": regex}}), Kind::BadValue, "Can't have regex as arg to $ne."),
        (json!({"a": {"$near": [1, 2]}}), Kind::NotImplemented, "$near is not supported yet"),
        (json!({"a": {"$not": {}}}), Kind::BadValue, "$not cannot be empty"),
        (json!({"a": {"$not": 1}}), Kind::BadValue, "$not needs a regex or a document"),
        (json!({"a": {"$not": {"b": 1}}}), Kind::BadValue, "unknown operator: b"),
        (json!({"a": {"$undefined": true}}), Kind::BadValue, "cannot compare to undefined"),
        (json!({"$where": "1"}), Kind::NotImplemented, "$where is not supported"),
    ] {
        let error = Filter::parse(&filter).expect_err(&filter.to_string());
        assert!(error.kind == kind && error.message.contains(message), "{filter}: {:?} {error}", error.kind);
        let filter = canonical(&filter);
        assert_eq!(Filter::parse(&filter).expect_err(&filter.to_string()).kind, kind, "{filter}");
    }
}

#[test]
fn depth_is_bounded() {
    let in_and = |levels| (0..levels).fold(json!({"a": 1}), |inner, _| wrapped("$and", Json::Array(vec![inner])));
    let in_not = |levels| wrapped("a", (0..levels).fold(json!({"$eq": 1}), |inner, _| wrapped("$not", inner)));
    let against = bytes(&json!({"a": 1}));
    for levels in [1, 2, 99, 100] {
        assert!(Filter::parse(&in_and(levels)).unwrap().matches(document(&against)));
        assert_eq!(Filter::parse(&in_not(levels)).unwrap().matches(document(&against)), levels % 2 == 0);
    }
    for levels in [101, 102, 1000] {
        for filter in [in_and(levels), in_not(levels)] {
            let error = Filter::parse(&filter).expect_err("too deep");
            assert!(error.kind == Kind::BadValue && error.message.contains("exceeded depth"), "{error}");
        }
    }
    assert!(Filter::parse(&nested(1000, "a")).is_err());
    let long_path = json!({"a.".repeat(100_000): 1});
    assert!(!matches(&long_path, &json!({"a": {"a": [{"a": 1}]}})));
}

fn encoded(json: Json) -> Vec<u8> {
    let mut key = Vec::new();
    encode_value(&value(&json), &mut key);
    key
}

fn ranges(list: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> KeyRanges {
    KeyRanges::new(list.into_iter().map(|(lo, hi)| KeyRange { lo, hi }).collect())
}

fn points(values: Vec<Json>) -> KeyRanges {
    KeyRanges::new(values.into_iter().map(|value| KeyRange::point(&encoded(value))).collect())
}

#[test]
fn ranges_of_a_field() {
    let after = |json: Json| prefix_successor(&encoded(json));
    let end = |class: Class| prefix_successor(&[class as u8]);
    let nan = || after(json!({"$numberDouble": "NaN"})).unwrap();
    for (filter, expected) in [
        (json!({}), KeyRanges::all()),
        (json!({"b": 1}), KeyRanges::all()),
        (json!({"a.b": 1}), KeyRanges::all()),
        (json!({"a": 1}), points(vec![json!(1)])),
        (json!({"a": null}), points(vec![json!(null)])),
        (json!({"a": {"x": 1, "y": 2}}), points(vec![json!({"y": 2, "x": 1})])),
        (json!({"a": [1]}), KeyRanges::all()),
        (json!({"a": {"$in": [1, 3, null]}}), points(vec![json!(null), json!(1), json!(3)])),
        (json!({"a": {"$in": [1, [3]]}}), KeyRanges::all()),
        (json!({"a": {"$in": []}}), KeyRanges::none()),
        (json!({"a": {"$gt": 1}}), ranges(vec![(after(json!(1)).unwrap(), end(Class::Number))])),
        (json!({"a": {"$gte": 1}}), ranges(vec![(encoded(json!(1)), end(Class::Number))])),
        (json!({"a": {"$lt": 1}}), ranges(vec![(nan(), Some(encoded(json!(1))))])),
        (json!({"a": {"$lte": 1}}), ranges(vec![(nan(), after(json!(1)))])),
        (json!({"a": {"$gte": "a", "$lt": "b"}}), ranges(vec![(encoded(json!("a")), Some(encoded(json!("b"))))])),
        (json!({"$and": [{"a": {"$gt": 5}}, {"a": {"$lt": 3}}]}), KeyRanges::none()),
        (json!({"a": {"$gt": 5, "$lt": "x"}}), KeyRanges::none()),
        (json!({"a": {"$gt": [1]}}), KeyRanges::all()),
        (json!({"a": {"$gte": null}}), points(vec![json!(null)])),
        (json!({"a": {"$gt": null}}), KeyRanges::none()),
        (json!({"a": {"$gte": {"$minKey": 1}}}), KeyRanges::all()),
        (json!({"a": {"$lte": {"$maxKey": 1}}}), KeyRanges::all()),
        (json!({"a": {"$gt": {"$minKey": 1}}}), ranges(vec![(after(json!({"$minKey": 1})).unwrap(), None)])),
        (json!({"a": {"$lt": {"$maxKey": 1}}}), ranges(vec![(vec![], Some(encoded(json!({"$maxKey": 1}))))])),
        (json!({"$or": [{"a": 1}, {"a": 3}]}), points(vec![json!(1), json!(3)])),
        (json!({"$or": [{"a": 1}, {"b": 3}]}), KeyRanges::all()),
        (json!({"$or": [{"a": 1}, {"b": 3}], "a": 7}), points(vec![json!(7)])),
        (json!({"a": {"$ne": 1}}), KeyRanges::all()),
        (json!({"a": {"$nin": [1]}}), KeyRanges::all()),
        (json!({"a": {"$not": {"$gt": 1}}}), KeyRanges::all()),
        (json!({"$nor": [{"a": 1}]}), KeyRanges::all()),
        (json!({"a": {"$exists": true}}), KeyRanges::all()),
        (json!({"a": {"$exists": false}}), points(vec![json!(null)])),
    ] {
        assert_eq!(Filter::parse(&filter).unwrap().ranges_of("a"), expected, "{filter}");
    }
}

#[test]
fn constrained_paths() {
    for (filter, paths) in [
        (json!({}), vec![]),
        (json!({"a": 1, "b.c": {"$gt": 1, "$lt": 5}, "d": {"$ne": 1}}), vec!["a", "b.c"]),
        (json!({"$or": [{"a": 1}, {"a": 2, "b": 1}]}), vec!["a"]),
        (json!({"$and": [{"b": 1}, {"a": {"$exists": false}}]}), vec!["b", "a"]),
    ] {
        assert_eq!(Filter::parse(&filter).unwrap().paths(), paths, "{filter}");
    }
}

#[test]
fn a_required_equality() {
    for (filter, expected) in [
        (json!({"a": 1}), Some(json!(1))),
        (json!({"a": {"$eq": {"x": 1}}}), Some(json!({"x": 1}))),
        (json!({"$and": [{"b": 1}, {"$and": [{"a": null}]}]}), Some(json!(null))),
        (json!({"a": {"$in": [7]}}), Some(json!(7))),
        (json!({"a": {"$in": [7, 7.0]}}), Some(json!(7))),
        (json!({"$and": [{"a": 1}, {"a": 1}]}), Some(json!(1))),
        (json!({"$and": [{"a": 1}, {"a": 2}]}), None),
        (json!({"a": {"$in": [7, 8]}}), None),
        (json!({"$or": [{"a": 1}, {"a": 1, "b": 2}]}), None),
        (json!({"a": {"$not": {"$eq": 1}}}), None),
        (json!({"a": {"$gt": 1}}), None),
        (json!({"a.b": 1}), None),
    ] {
        assert_eq!(Filter::parse(&filter).unwrap().equality_of("a"), expected.as_ref().map(value), "{filter}");
    }
}

#[test]
fn fields_for_an_upsert() {
    for (filter, expected) in [
        (json!({}), vec![]),
        (json!({"b": 1, "a.b": {"$eq": "x"}}), vec![("b", json!(1)), ("a.b", json!("x"))]),
        (json!({"$and": [{"a": 1}, {"b": {"$in": [2]}}], "c": {"$gt": 1}}), vec![("a", json!(1)), ("b", json!(2))]),
        (json!({"$or": [{"a": 1}]}), vec![("a", json!(1))]),
        (json!({"$or": [{"a": 1}, {"a": 2}], "b": {"$ne": 1}, "c": {"$exists": false}}), vec![]),
        (json!({"a": null}), vec![("a", json!(null))]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|(path, json)| (path.to_owned(), value(&json))).collect();
        assert_eq!(Filter::parse(&filter).unwrap().upsert_fields().unwrap(), expected, "{filter}");
    }
    for (filter, message) in [
        (json!({"$and": [{"a": 1}, {"a": 1}]}), "path 'a' is matched twice"),
        (json!({"a.b": 1, "ab": 1, "a": {"b": 1}}), "both paths 'a' and 'a.b' are matched"),
        (json!({"a-b": 1, "a.b.c": 1, "a": 1}), "both paths 'a' and 'a.b.c' are matched"),
    ] {
        let error = Filter::parse(&filter).unwrap().upsert_fields().expect_err(&filter.to_string());
        assert!(error.kind == Kind::NotSingleValueField && error.message.contains(message), "{filter}: {error}");
    }
}

/// A second, slower implementation on owned values: it lists all values of a path, then tests each.
mod naive {
    use super::*;

    pub fn matches(filter: &Json, document: &Value) -> bool {
        filter.as_object().unwrap().iter().all(|(name, argument)| match name.as_str() {
            "$and" => branches(argument).all(|branch| matches(branch, document)),
            "$or" => branches(argument).any(|branch| matches(branch, document)),
            "$nor" => !branches(argument).any(|branch| matches(branch, document)),
            path => {
                let mut values = Vec::new();
                collect(document, &path.split('.').collect::<Vec<_>>(), &mut values);
                field(argument, &values)
            }
        })
    }

    fn branches(argument: &Json) -> impl Iterator<Item = &Json> {
        argument.as_array().unwrap().iter()
    }

    fn field(argument: &Json, values: &[Option<Value>]) -> bool {
        let operators = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists"];
        match argument.as_object() {
            Some(object) if object.keys().next().is_some_and(|name| operators.contains(&name.as_str())) => {
                object.iter().all(|(name, argument)| operator(name, argument, values))
            }
            _ => operator("$eq", argument, values),
        }
    }

    fn operator(name: &str, argument: &Json, values: &[Option<Value>]) -> bool {
        match name {
            "$ne" => !operator("$eq", argument, values),
            "$nin" => !operator("$in", argument, values),
            "$not" => !field(argument, values),
            "$in" => branches(argument).any(|argument| operator("$eq", argument, values)),
            "$exists" => values.iter().any(Option::is_some) == argument.as_bool().unwrap(),
            _ => values.iter().any(|found| compare(name, found.as_ref(), &value(argument))),
        }
    }

    /// As MongoDB's `ComparisonMatchExpression::matchesSingleElement`.
    fn compare(name: &str, found: Option<&Value>, bound: &Value) -> bool {
        let (inclusive, less, greater) =
            (["$eq", "$gte", "$lte"].contains(&name), name.starts_with("$lt"), name.starts_with("$gt"));
        let class = found.map_or(Class::Null, Class::of);
        if class == Class::Null && Class::of(bound) == Class::Null {
            return inclusive;
        }
        if class != Class::of(bound) {
            return match bound {
                Value::MinKey => greater,
                Value::MaxKey => less,
                _ => false,
            };
        }
        let found = found.unwrap();
        let is_nan = |value: &Value| matches!(value, Value::Number(number) if number.is_nan());
        if is_nan(found) || is_nan(bound) {
            return is_nan(found) && is_nan(bound) && inclusive;
        }
        match compare_values(found, bound) {
            Ordering::Less => less,
            Ordering::Equal => inclusive,
            Ordering::Greater => greater,
        }
    }

    fn collect(from: &Value, path: &[&str], into: &mut Vec<Option<Value>>) {
        let Value::Object(fields) = from else { unreachable!() };
        let found = fields.iter().find(|(name, _)| name == path[0]).map(|(_, value)| value);
        match (found, path.len()) {
            (Some(Value::Array(elements)), 1) => {
                into.extend(elements.iter().cloned().map(Some));
                into.push(found.cloned());
            }
            (_, 1) => into.push(found.cloned()),
            (Some(Value::Object(_)), _) => collect(found.unwrap(), &path[1..], into),
            (Some(Value::Array(elements)), _) => collect_in(elements, &path[1..], into),
            _ => into.push(None),
        }
    }

    fn collect_in(elements: &[Value], path: &[&str], into: &mut Vec<Option<Value>>) {
        for (index, element) in elements.iter().enumerate() {
            if let Value::Object(_) = element {
                collect(element, path, into);
            }
            if index.to_string() == path[0] {
                match element {
                    _ if path.len() == 1 => into.push(Some(element.clone())),
                    Value::Object(_) => collect(element, &path[1..], into),
                    Value::Array(nested) => collect_in(nested, &path[1..], into),
                    _ => {}
                }
            }
        }
    }
}

/// Random filters with all supported operators.
fn any_filter() -> impl Strategy<Value = Json> {
    let operand = || any_value(scalar(), true);
    let compare = (proptest::sample::select(vec!["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), operand())
        .prop_map(|(name, operand)| (name.to_owned(), operand));
    let member = (proptest::sample::select(vec!["$in", "$nin"]), proptest::collection::vec(operand(), 0..4))
        .prop_map(|(name, operands)| (name.to_owned(), Json::from(operands)));
    let exists = any::<bool>().prop_map(|wanted| ("$exists".to_owned(), Json::from(wanted)));
    let operators =
        proptest::collection::vec(prop_oneof![4 => compare, 2 => member, 1 => exists], 1..3).prop_map(object);
    let predicate = prop_oneof![
        2 => operand(),
        4 => operators.clone(),
        1 => operators.prop_map(|inner| json!({"$not": inner})),
    ];
    let fields = proptest::collection::vec((path(), predicate), 0..3).prop_map(object);
    fields.prop_recursive(2, 8, 3, |inner| {
        (proptest::sample::select(vec!["$and", "$or", "$nor"]), proptest::collection::vec(inner, 1..3))
            .prop_map(|(name, branches)| json!({name: branches}))
    })
}

fn collation() -> impl Strategy<Value = Json> {
    proptest::sample::select(vec![
        json!({"locale": "simple"}),
        json!({"locale": "en", "strength": 1}),
        json!({"locale": "en", "caseFirst": "upper"}),
    ])
}

fn at_path<'a>(json: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(json, |json, name| json.as_object()?.get(name))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn matching_agrees_with_the_naive_reading(filter in any_filter(), against in any_document(scalar(), true)) {
        prop_assert_eq!(matches(&filter, &against), naive::matches(&filter, &value(&against)));
    }

    /// A value from the document itself, so that equality holds often enough.
    #[test]
    fn own_values_match(against in any_document(scalar(), true), path in path()) {
        if let Some(own) = at_path(&against, &path) {
            for filter in [json!({path.clone(): own}), json!({path.clone(): {"$in": [own]}}), json!({path: {"$gte": own, "$lte": own}})] {
                prop_assert!(matches(&filter, &against), "{}", filter);
            }
        }
    }

    #[test]
    fn ranges_never_under_select(
        filter in any_filter(),
        against in any_document(scalar(), false),
        path in path(),
    ) {
        let parsed = Filter::parse(&filter).unwrap();
        let found = at_path(&against, &path).filter(|_| !path.contains('$')).cloned().unwrap_or(Json::Null);
        let key = encoded(found);
        if matches(&filter, &against) {
            prop_assert!(parsed.ranges_of(&path).contains(&key), "{:?}", parsed.ranges_of(&path));
            if let Some(equal) = parsed.equality_of(&path) {
                prop_assert_eq!(encoded(docshard_core::values::document::ext_json::to_json(&equal)), key);
            }
        }
    }

    /// For any collations of statement and index, matching documents have keys in the ranges.
    #[test]
    fn indexes_under_collations_never_under_select(
        filter in any_filter(),
        against in any_document(scalar(), true),
        path in path(),
        of_statement in collation(),
        of_index in collation(),
    ) {
        let filter = Filter::read(&json!({"$setting": {"collation": of_statement}, "$of": filter})).unwrap();
        let keys = IndexKeys::read(&json!({"$setting": {"collation": of_index}, "$of": {path: 1}})).unwrap();
        let stored = bytes(&against);
        let key = keys.key(document(&stored), 0);
        if filter.matches(document(&stored)) && key != IN_ENTRIES {
            prop_assert!(keys.wanted(&filter).columns.iter().all(|wanted| wanted.contains(&key)), "{:?}", key);
        }
    }

    #[test]
    fn no_input_panics(filter in nonsense(), against in any_document(scalar(), true)) {
        if let Ok(filter) = Filter::parse(&filter) {
            filter.matches(document(&bytes(&against)));
            filter.ranges_of("a");
            filter.paths();
            let _ = filter.upsert_fields();
        }
    }
}
