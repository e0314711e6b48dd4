//! Projections: the returned parts of a document.

mod common;

use common::*;
use docshard_core::query::projection::Projection;
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

fn project(projection: &Json, from: &Json) -> Json {
    let projection = Projection::parse(projection).unwrap_or_else(|error| panic!("{projection}: {error}"));
    read(&projection.apply(document(&bytes(from))).unwrap_or_else(|error| panic!("{from}: {error}")))
}

fn check(cases: Vec<(Json, Json, Json)>) {
    for (projection, from, expected) in cases {
        assert_eq!(project(&projection, &from), expected, "{projection} of {from}");
    }
}

#[test]
fn inclusion() {
    let from = json!({"_id": 1, "a": {"b": 1, "c": 2}, "d": 3});
    check(vec![
        (json!({"d": 1}), from.clone(), json!({"_id": 1, "d": 3})),
        (json!({"d": true, "_id": 0}), from.clone(), json!({"d": 3})),
        (json!({"_id": false, "d": 2.5}), from.clone(), json!({"d": 3})),
        (json!({"_id": 1}), from.clone(), json!({"_id": 1})),
        (json!({"a.b": 1}), from.clone(), json!({"_id": 1, "a": {"b": 1}})),
        (json!({"a": {"b": 1}}), from.clone(), json!({"_id": 1, "a": {"b": 1}})),
        (json!({"a.x": 1, "d.x": 1, "e.x": 1}), from.clone(), json!({"_id": 1, "a": {}})),
        (json!({"d": {"$numberInt": "1"}}), from, json!({"_id": 1, "d": 3})),
        (json!({"_id.x": 1}), json!({"_id": {"x": 1, "y": 2}, "a": 1}), json!({"_id": {"x": 1}})),
    ]);
}

#[test]
fn exclusion() {
    let from = json!({"_id": 1, "a": {"b": 1, "c": 2}, "d": 3});
    check(vec![
        (json!({}), from.clone(), from.clone()),
        (json!({"d": 0}), from.clone(), json!({"_id": 1, "a": {"b": 1, "c": 2}})),
        (json!({"_id": 0}), from.clone(), json!({"a": {"b": 1, "c": 2}, "d": 3})),
        (json!({"_id": 1, "a": 0}), from.clone(), json!({"_id": 1, "d": 3})),
        (json!({"a.b": 0, "d.x": 0, "_id": 0}), from.clone(), json!({"a": {"c": 2}, "d": 3})),
        (json!({"a": {"b": 0, "c": false}}), from, json!({"_id": 1, "a": {}, "d": 3})),
    ]);
}

#[test]
fn through_arrays() {
    let from = json!({"_id": 1, "a": [{"b": 1, "c": 2}, 5, [{"b": 3}, 6], {"$oid": "0123456789abcdef01234567"}, {}]});
    check(vec![
        (json!({"a.b": 1}), from.clone(), json!({"_id": 1, "a": [{"b": 1}, [{"b": 3}], {}]})),
        (
            json!({"a.b": 0}),
            from.clone(),
            json!({"_id": 1, "a": [{"c": 2}, 5, [{}, 6], {"$oid": "0123456789abcdef01234567"}, {}]}),
        ),
        // A number is the name of a field, not a position.
        (json!({"a.0": 1}), from, json!({"_id": 1, "a": [{}, [{}], {}]})),
    ]);
}

#[test]
fn slices() {
    let from = json!({"_id": 1, "a": [1, 2, 3, 4], "b": 5});
    for (slice, kept) in [
        (json!(2), json!([1, 2])),
        (json!(0), json!([])),
        (json!(9), json!([1, 2, 3, 4])),
        (json!(-1), json!([4])),
        (json!(-9), json!([1, 2, 3, 4])),
        (json!(1.9), json!([1])),
        (json!({"$numberDecimal": "NaN"}), json!([])),
        (json!({"$numberDecimal": "1E+30"}), json!([1, 2, 3, 4])),
        (json!([1, 2]), json!([2, 3])),
        (json!([-3, 2]), json!([2, 3])),
        (json!([-9, 2]), json!([1, 2])),
        (json!([9, 2]), json!([])),
    ] {
        let expected = json!({"_id": 1, "a": kept, "b": 5});
        assert_eq!(project(&json!({"a": {"$slice": slice}}), &from), expected, "{slice}");
    }
    check(vec![
        (json!({"a": {"$slice": 1}, "b": 0}), from.clone(), json!({"_id": 1, "a": [1]})),
        (json!({"a": {"$slice": 1}, "b": 1}), from.clone(), json!({"_id": 1, "a": [1], "b": 5})),
        (json!({"a": {"$slice": 1}, "c": 1}), from.clone(), json!({"_id": 1, "a": [1]})),
        (json!({"b": {"$slice": 1}, "_id": 0}), from, json!({"a": [1, 2, 3, 4], "b": 5})),
        (
            json!({"a.b": {"$slice": 1}}),
            json!({"a": [{"b": [1, 2], "c": 3}, 5, [{"b": [1, 2]}]]}),
            json!({"a": [{"b": [1], "c": 3}, 5, [{"b": [1, 2]}]]}),
        ),
        (
            json!({"a.b.c": {"$slice": 1}}),
            json!({"a": [{"b": [{"c": [1, 2]}, {"c": [3, 4]}, [{"c": [5, 6]}]]}]}),
            json!({"a": [{"b": [{"c": [1]}, {"c": [3]}, [{"c": [5, 6]}]]}]}),
        ),
    ]);
}

#[test]
fn first_matching_elements() {
    let from = json!({"_id": 1, "a": [{"x": 1}, {"x": 2}, {"x": 2, "y": 1}], "b": [1, 2, 3], "c": 5});
    check(vec![
        (json!({"a": {"$elemMatch": {"x": 2}}}), from.clone(), json!({"_id": 1, "a": [{"x": 2}]})),
        (json!({"b": {"$elemMatch": {"$gt": 1}}, "c": 1}), from.clone(), json!({"_id": 1, "b": [2], "c": 5})),
        (json!({"b": {"$elemMatch": {"$gt": 9}}}), from.clone(), json!({"_id": 1})),
        (json!({"c": {"$elemMatch": {"$gt": 1}}}), from.clone(), json!({"_id": 1})),
        (
            json!({"b": {"$elemMatch": {"$gt": 1}}, "a": {"$slice": 1}}),
            from.clone(),
            json!({"_id": 1, "a": [{"x": 1}], "b": [2], "c": 5}),
        ),
        (json!({"b": {"$elemMatch": {"$gt": 1}}, "_id": 0}), from.clone(), json!({"b": [2]})),
        (json!({"_id": 0, "b": {"$elemMatch": {"$gt": 9}}}), from.clone(), json!({})),
        (json!({"b": {"$elemMatch": {"$gt": 1}}, "a": 0, "_id": 0}), from, json!({"b": [2], "c": 5})),
    ]);
}

#[test]
fn identity() {
    for (projection, identity) in [(json!({}), true), (json!({"_id": 1}), false), (json!({"a": 0}), false)] {
        assert_eq!(Projection::parse(&projection).unwrap().is_identity(), identity, "{projection}");
    }
}

#[test]
fn refusals() {
    for (projection, code, message) in [
        (json!({"a": 0, "b": 1}), 31253, "Cannot do inclusion on field b in exclusion projection"),
        (json!({"a": 1, "b": 0}), 31254, "Cannot do exclusion on field b in inclusion projection"),
        (json!({"_id": 0, "a": 1, "b": {"c": 0}}), 31254, "Cannot do exclusion on field b.c in inclusion projection"),
        (json!({"a": 1, "_id.x": 0}), 31254, "field _id.x"),
        (json!({"a": 1, "a.b": 1}), 31249, "Path collision at a.b"),
        (json!({"a.b.c": 1, "a.b": 1}), 31250, "Path collision at a.b"),
        (json!({"a": {"b": 1}, "a.b": 1}), 31250, "Path collision at a.b"),
        (json!({"_id": 0, "_id.x": 1}), 31249, "Path collision at _id.x"),
        (json!({"a": {}}), 51270, "Found empty object at path a"),
        (json!({"": 1}), 40352, ""),
        (json!({"a.": 1}), 40353, ""),
        (json!({"a..b": 1}), 15998, ""),
        (json!({"$a": 1}), 16410, ""),
        (json!({"a.$": 0}), 31395, "positional projection"),
        (json!({"a.$": 1, "b.$": 1}), 31276, "more than one"),
        (json!({"a.$.b": 1}), 31394, "end of a path"),
        (json!({"a.$": {"$slice": 1}}), 31271, "expression or sub object"),
        (json!({"a.$": "x"}), 31308, "literal"),
        (json!({"a.$": 1, "b": {"$elemMatch": {"x": 1}}}), 31255, "$elemMatch"),
        (json!({"b": {"$elemMatch": {"x": 1}}, "a.$": 1}), 31256, "$elemMatch"),
        (json!({"c": 0, "a": {"$add": [1, 2]}}), 31252, "exclusion projection"),
        (json!({"c": 0, "a": {"$date": "2020-01-01T00:00:00Z"}}), 31310, "exclusion projection"),
        (json!({"a": {"b": {"$add": [{"$nope": 1}]}}}), 168, "Unrecognized expression"),
        (json!({"a": {"$meta": "textScore"}}), 238, "the projection operator $meta"),
        (json!({"a": {"$slice": "1"}}), 28667, "$slice"),
        (json!({"a": {"$slice": [1]}}), 28667, "$slice"),
        (json!({"a": {"$slice": [1, 2, 3]}}), 28724, "$slice"),
        (json!({"a": {"$elemMatch": {"x": 1}, "$slice": 1}}), 16410, "exactly one field"),
        (json!({"a": {"$elemMatch": {"$numberInt": "1"}}}), 31274, "object required"),
        (json!({"a": {"$slice": [1, 0]}}), 28724, "positive"),
        (json!({"a": {"$elemMatch": 1}}), 31274, "object required"),
        (json!({"a.b": {"$elemMatch": {}}}), 31275, "nested field"),
        (json!({"a": {"$elemMatch": {"$foo": 1}}}), 2, "unknown operator: $foo"),
        (json!({"a": {"$slice": 1, "$elemMatch": {}}}), 16410, "exactly one field"),
        (json!({"a": {"$slice": 1}, "a.b": 0}), 31249, "Path collision at a.b"),
        (json!({"a": 1, "a.b": {"$slice": 1}}), 31249, "Path collision at a.b"),
        (json!({"a": {"$nope": [1, 2]}}), 31325, "Unknown expression $nope"),
        (json!({"a": {"$add": [1, "x"]}}), 14, "$add"),
        (json!({"a": "$b", "c": 0}), 31254, "in inclusion projection"),
        (json!({"c": 0, "a": "$b"}), 31310, "exclusion projection"),
        (json!({"a": 0, "_id": "$b"}), 31252, "exclusion projection"),
        (json!({"a": "$b", "a.b": 1}), 31249, "Path collision at a.b"),
        (json!([]), 14, "must be an object"),
        (nested(1000, "a"), 15, "too long"),
    ] {
        let error = Projection::parse(&projection).expect_err(message);
        assert!(error.kind.code() == code && error.message.contains(message), "{projection}: {:?} {error}", error.kind);
        if code == 15 {
            continue; // nests too deeply for a recursion without optimisation
        }
        let projection = canonical(&projection);
        assert_eq!(Projection::parse(&projection).expect_err(message).kind.code(), code, "{projection}");
    }
}

#[test]
fn expressions_and_literals_make_fields() {
    let from = json!({"_id": 1, "a": 2, "o": {"p": 3, "q": 4}, "l": [{"x": 1, "y": 2}, 5, [{"x": 3}]], "s": "t"});
    for (projection, expected) in [
        (json!({"b": "$a"}), json!({"_id": 1, "b": 2})),
        (json!({"b": "$missing"}), json!({"_id": 1})),
        (json!({"_id": 0, "b": {"$add": ["$a", 1]}, "s": 1}), json!({"b": 3, "s": "t"})),
        (
            json!({"_id": 0, "b": "text", "c": null, "d": [1, "$a"], "e": {"$literal": 1}}),
            json!({"b": "text", "c": null, "d": [1, 2], "e": 1}),
        ),
        (json!({"_id": "$a"}), json!({"_id": 2})),
        (json!({"_id": 0, "o": {"p": 1, "r": "$a"}}), json!({"o": {"p": 3, "r": 2}})),
        (json!({"_id": 0, "o.r": "$a"}), json!({"o": {"r": 2}})),
        (json!({"_id": 0, "n.r": "$a"}), json!({"n": {"r": 2}})),
        (json!({"_id": 0, "s.r": "$a"}), json!({"s": {"r": 2}})),
        (json!({"_id": 0, "l.x": 1, "l.z": "$a"}), json!({"l": [{"x": 1, "z": 2}, {"z": 2}, [{"x": 3, "z": 2}]]})),
        (json!({"_id": 0, "l": {"$slice": ["$l", 1]}}), json!({"l": [{"x": 1, "y": 2}]})),
        (json!({"_id": 0, "d": {"$date": "2020-01-01T00:00:00Z"}}), json!({"d": {"$date": "2020-01-01T00:00:00Z"}})),
    ] {
        assert_eq!(project(&projection, &from), expected, "{projection}");
    }
    let divides = Projection::parse(&json!({"b": {"$divide": [1, "$a"]}})).unwrap();
    assert_eq!(divides.apply(document(&bytes(&json!({"a": 0})))).unwrap_err().kind.code(), 2);
}

#[test]
fn a_positional_path_is_the_element_that_matched() {
    let read_with = |projection: Json, filter: Json, from: Json| {
        let wrapped = docshard_core::query::envelope::wrap(&projection.to_string(), None, Some(&filter.to_string()));
        let projection = Projection::read(&serde_json::from_str(&wrapped).unwrap()).unwrap();
        assert!(projection.is_positional());
        projection.apply(document(&bytes(&from))).map(|projected| read(&projected))
    };
    let from = json!({"a": [1, 5, 9], "b": ["x", "y", "z"], "n": 3});
    assert_eq!(read_with(json!({"a.$": 1}), json!({"a": {"$gt": 4}}), from.clone()), Ok(json!({"a": [5]})));
    assert_eq!(read_with(json!({"b.$": 1, "n": 1}), json!({"a": 9}), from.clone()), Ok(json!({"b": ["z"], "n": 3})));
    assert_eq!(read_with(json!({"n.$": 1}), json!({"a": 9}), from.clone()), Ok(json!({"n": 3})));
    let error = read_with(json!({"a.$": 1}), json!({"n": 3}), from).unwrap_err();
    assert_eq!(error.kind.code(), 51246);
}

/// A second, simpler implementation: it tests for every field of the document whether it is named.
fn naive(from: &Json, prefix: &str, paths: &[&str], include: bool) -> Option<Json> {
    match from {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
            let mut kept = Map::new();
            for (name, value) in fields {
                let path = format!("{prefix}{name}");
                let below = format!("{path}.");
                if paths.contains(&path.as_str()) {
                    if include {
                        kept.insert(name.clone(), value.clone());
                    }
                } else if paths.iter().any(|named| named.starts_with(&below)) {
                    if let Some(part) = naive(value, &below, paths, include) {
                        kept.insert(name.clone(), part);
                    }
                } else if !include {
                    kept.insert(name.clone(), value.clone());
                }
            }
            Some(Json::Object(kept))
        }
        Json::Array(elements) => {
            Some(elements.iter().filter_map(|element| naive(element, prefix, paths, include)).collect())
        }
        scalar => (!include).then(|| scalar.clone()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn projecting_agrees_with_the_naive_reading(
        paths in proptest::collection::vec(path(), 1..4),
        include in any::<bool>(),
        from in any_document(scalar(), true),
    ) {
        let specification = object(paths.iter().map(|path| (path.clone(), Json::from(include))).collect());
        if Projection::parse(&specification).is_ok() {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            // Read back so that both have the stored form.
            let from = read(&bytes(&from));
            prop_assert_eq!(project(&specification, &from), naive(&from, "", &paths, include).unwrap());
        }
    }

    /// Values are copied in their stored form. Some objects have more than 32 fields, so some entries of jsonb hold offsets, not lengths.
    #[test]
    fn chosen_fields_have_the_bytes_of_a_document_without_the_others(
        fields in proptest::collection::btree_map("[a-c]{1,4}", prop_oneof![scalar(), any_document(scalar(), true)], 0..80),
        number in 1usize..5,
    ) {
        let wanted = |position: usize| !position.is_multiple_of(number);
        let chosen = |keep: bool| object(fields.iter().enumerate().filter(|(at, _)| keep || wanted(*at)).map(|(_, (name, value))| (name.clone(), value.clone())).collect());
        let mut specification = json!({"_id": 0, "missing": 1});
        for (name, _) in fields.iter().enumerate().filter(|(at, _)| wanted(*at)).map(|(_, field)| field) {
            specification[name] = json!(1);
        }
        let projection = Projection::parse(&specification).unwrap();
        prop_assert_eq!(projection.apply(document(&bytes(&chosen(true)))).unwrap(), bytes(&chosen(false)));
    }

    #[test]
    fn slices_agree_with_javascript(
        array in proptest::collection::vec(scalar(), 0..5),
        skip in -7..7i64,
        limit in 1..7i64,
    ) {
        let from = read(&bytes(&json!({"a": array})));
        let length = array.len() as i64;
        let start = (if skip < 0 { length + skip } else { skip }).clamp(0, length);
        let end = (start + limit).min(length);
        let kept = Json::from(from["a"].as_array().unwrap()[start as usize..end as usize].to_vec());
        prop_assert_eq!(project(&json!({"a": {"$slice": [skip, limit]}}), &from)["a"].clone(), kept);
    }

    #[test]
    fn no_input_panics(specification in nonsense(), from in any_document(scalar(), true)) {
        if let Ok(projection) = Projection::parse(&specification) {
            let _ = projection.apply(document(&bytes(&from))).map(|projected| read(&projected));
        }
    }
}
