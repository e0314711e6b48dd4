//! Updates by a pipeline; sorts and filters under a collation.

mod common;

use common::*;
use docshard_core::error::Error;
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::sort::Sort;
use docshard_core::query::update::Update;
use docshard_core::values::key::KeyRanges;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn updated(pipeline: &Json, from: &Json) -> Result<Option<Json>, Error> {
    let environment = Environment::parse(&json!({"now": 1000, "let": {"n": 5}}))?;
    let update = Update::parse_in(pipeline, &[], &environment)?;
    Ok(update.apply(document(&bytes(from)), &[])?.map(|bytes| read(&bytes)))
}

#[test]
fn stages_follow_each_other() {
    let from = json!({"_id": 1, "a": 2, "l": [{"x": 1}, 7], "o": {"p": 1}});
    for (pipeline, expected) in [
        (
            json!([{"$set": {"a": {"$add": ["$a", 1]}}}, {"$set": {"b": "$a"}}]),
            json!({"_id": 1, "a": 3, "b": 3, "l": [{"x": 1}, 7], "o": {"p": 1}}),
        ),
        (
            json!([{"$addFields": {"o.q": "$$n", "o.p": "$$REMOVE"}}]),
            json!({"_id": 1, "a": 2, "l": [{"x": 1}, 7], "o": {"q": 5}}),
        ),
        (json!([{"$set": {"l.y": 0}}]), json!({"_id": 1, "a": 2, "l": [{"x": 1, "y": 0}, {"y": 0}], "o": {"p": 1}})),
        (json!([{"$set": {"o": {"r": 2}}}]), json!({"_id": 1, "a": 2, "l": [{"x": 1}, 7], "o": {"p": 1, "r": 2}})),
        (json!([{"$unset": ["l", "o.p"]}]), json!({"_id": 1, "a": 2, "o": {}})),
        (json!([{"$project": {"a": 1}}]), json!({"_id": 1, "a": 2})),
        (json!([{"$project": {"_id": 0, "x": "$o"}}]), json!({"_id": 1, "x": {"p": 1}})),
        (json!([{"$replaceWith": "$o"}]), json!({"_id": 1, "p": 1})),
        (
            json!([{"$replaceRoot": {"newRoot": {"t": "$$NOW"}}}]),
            json!({"_id": 1, "t": {"$date": "1970-01-01T00:00:01Z"}}),
        ),
    ] {
        assert_eq!(updated(&pipeline, &from).unwrap(), Some(expected), "{pipeline}");
    }
    for same in [json!([]), json!([{"$set": {"a": 2}}]), json!([{"$unset": "nothing"}])] {
        assert_eq!(updated(&same, &from).unwrap(), None, "{same}");
    }
}

#[test]
fn what_no_pipeline_may_do() {
    for (pipeline, code) in [
        (json!([{"$set": {"_id": 2}}]), 66),
        (json!([{"$match": {}}]), 72),
        (json!([{"$nope": {}}]), 40324),
        (json!([{}]), 40323),
        (json!([1]), 14),
        (json!([{"$set": 1}]), 40272),
        (json!([{"$unset": []}]), 31119),
        (json!([{"$project": 1}]), 15969),
        (json!([{"$unset": 1}]), 31002),
        (json!([{"$project": {}}]), 51272),
        (json!([{"$replaceWith": "$a"}]), 40228),
        (json!([{"$replaceRoot": 1}]), 40229),
        (json!([{"$replaceWith": {"$arrayToObject": [[[{"$literal": "$oid"}, 1]]]}}]), 52),
        (json!([{"$set": {"a": 1, "a.b": 1}}]), 40176),
        (json!([{"$addFields": {"a.b": 1, "a": {"b": 2}}}]), 40176),
        (json!([{"$set": {"a": {"$add": [1, 2], "b": 1}}}]), 40181),
        (json!([{"$set": {"a": {"b": 1, "$add": [1, 2]}}}]), 40181),
        (json!([{"$project": {"a": {"$add": [1, 2], "b": 1}}}]), 16410),
        (json!([{"$set": {"a": {"b.c": 1}}}]), 40183),
        (json!([{"$project": {"a": {"$nope": 1}}}]), 31325),
    ] {
        let error = updated(&pipeline, &json!({"_id": 1, "a": 2})).expect_err(&pipeline.to_string());
        assert_eq!(error.kind.code(), code, "{pipeline}: {error}");
    }
    let error = Update::parse_in(&json!([]), &[json!({"x": 1})], &Environment::default()).unwrap_err();
    assert_eq!(error.kind.code(), 9);
}

#[test]
fn an_upsert_starts_from_the_filters_equalities() {
    let update = Update::parse(&json!([{"$set": {"b": {"$concat": ["$a", "!"]}}}])).unwrap();
    let made = update.upsert(&Filter::parse(&json!({"a": "x", "n": {"$gt": 1}})).unwrap()).unwrap();
    assert_eq!(read(&made), json!({"a": "x", "b": "x!"}));
}

fn english(strength: u8) -> Environment {
    Environment::parse(&json!({"collation": {"locale": "en", "strength": strength}})).unwrap()
}

#[test]
fn filters_compare_by_the_collation() {
    let matches = |filter: Json, against: Json, strength| {
        Filter::parse_in(&filter, &english(strength)).unwrap().matches(document(&bytes(&against)))
    };
    for (filter, against, strength, expected) in [
        (json!({"a": "CAT"}), json!({"a": "cat"}), 2, true),
        (json!({"a": "CAT"}), json!({"a": "cat"}), 3, false),
        (json!({"a": "CAT"}), json!({"a": ["dog", "cat"]}), 2, true),
        (json!({"a": {"$ne": "CAT"}}), json!({"a": "cat"}), 2, false),
        (json!({"a": {"$in": ["x", "CAT", null]}}), json!({"a": "cat"}), 1, true),
        (json!({"a": {"$in": ["x", null]}}), json!({"b": 1}), 1, true),
        (json!({"a": {"$gt": "b"}}), json!({"a": "C"}), 2, true),
        (json!({"a": {"$gt": "b"}}), json!({"a": 5}), 2, false),
        (json!({"a": {"b": "X"}}), json!({"a": {"b": "x"}}), 2, true),
        (json!({"a": {"$regex": "^C"}}), json!({"a": "cat"}), 2, false),
        (json!({"$expr": {"$eq": ["$a", "CAT"]}}), json!({"a": "cat"}), 2, true),
        (json!({"$expr": {"$in": ["CAT", ["$a"]]}}), json!({"a": "cat"}), 2, true),
    ] {
        assert_eq!(matches(filter.clone(), against.clone(), strength), expected, "{filter} of {against} at {strength}");
    }
}

#[test]
fn updates_of_arrays_compare_by_the_collation() {
    let cats = json!({"a": ["cat", "Dog", "CAT", "ant"], "b": [{"s": "Cat"}, {"s": "dog"}, "cat"], "m": "b"});
    for (update, filters, expected) in [
        (json!({"$pull": {"a": "Cat"}}), json!([]), json!({"a": ["Dog", "ant"]})),
        (json!({"$pull": {"a": {"$in": ["CaT", "DOG"]}}}), json!([]), json!({"a": ["ant"]})),
        (json!({"$pull": {"a": {"$gte": "CAT"}}}), json!([]), json!({"a": ["ant"]})),
        (json!({"$pull": {"b": {"s": "CAT"}}}), json!([]), json!({"b": [{"s": "dog"}, "cat"]})),
        (json!({"$pullAll": {"a": ["Cat", "DOG", 1]}}), json!([]), json!({"a": ["ant"]})),
        (json!({"$pullAll": {"b": [{"s": "CAT"}]}}), json!([]), json!({"b": [{"s": "dog"}, "cat"]})),
        (
            json!({"$addToSet": {"a": {"$each": ["cAt", "eel", "EEL"]}}}),
            json!([]),
            json!({"a": ["cat", "Dog", "CAT", "ant", "eel"]}),
        ),
        (
            json!({"$push": {"a": {"$each": ["bee"], "$sort": 1}}}),
            json!([]),
            json!({"a": ["ant", "bee", "cat", "CAT", "Dog"]}),
        ),
        (json!({"$set": {"a.$[x]": 1}}), json!([{"x": "CAT"}]), json!({"a": [1, "Dog", 1, "ant"]})),
        (
            json!({"$set": {"b.$[x].s": 1}}),
            json!([{"x.s": {"$in": ["CAT"]}}]),
            json!({"b": [{"s": 1}, {"s": "dog"}, "cat"]}),
        ),
        (json!({"$max": {"m": "C"}}), json!([]), json!({"m": "C"})),
        (json!({"$min": {"m": "C"}}), json!([]), json!({})),
    ] {
        let filters = filters.as_array().unwrap();
        let apply = |environment: &Environment| {
            let update = Update::parse_in(&update, filters, environment).unwrap();
            update.apply(document(&bytes(&cats)), &[]).unwrap().map(|after| read(&after))
        };
        let mut after = cats.clone();
        after.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        assert_eq!(apply(&english(2)).unwrap_or_else(|| cats.clone()), after, "{update} {filters:?}");
        assert_ne!(
            apply(&Environment::default()).unwrap_or_else(|| cats.clone()),
            after,
            "{update} is the same in bytes"
        );
    }
    let none = json!({"$addToSet": {"a": "CAT"}});
    let set = bytes(&json!({"a": ["cat"]}));
    assert!(Update::parse_in(&none, &[], &english(2)).unwrap().apply(document(&set), &[]).unwrap().is_none());
}

#[test]
fn keys_of_strings_are_not_searched_under_a_collation() {
    let filter = |json: Json| Filter::parse_in(&json, &english(1)).unwrap();
    let contains = |ranges: &KeyRanges, value_of: Json| {
        let mut key = Vec::new();
        docshard_core::values::key::encode::encode_value(&value(&value_of), &mut key);
        ranges.contains(&key)
    };
    for json in [json!({"a": "x"}), json!({"a": {"$in": ["x", 1]}}), json!({"a": {"$lt": "x"}})] {
        let ranges = filter(json.clone()).ranges_of("a");
        assert!(contains(&ranges, json!("X")) && contains(&ranges, json!("zz")), "{json}");
        assert!(!contains(&ranges, json!(true)), "{json}");
    }
    assert!(filter(json!({"$expr": {"$eq": ["$a", "x"]}})).ranges_of("a").is_all());
    assert_eq!(filter(json!({"a": 5})).ranges_of("a"), Filter::parse(&json!({"a": 5})).unwrap().ranges_of("a"));
    assert_eq!(filter(json!({"_id": "x"})).equality_of("_id"), None);
    assert_eq!(filter(json!({"a": "x"})).upsert_fields().unwrap().len(), 1);
}

proptest! {
    /// Sort keys under a collation compare as the strings do under the collation.
    #[test]
    fn sort_keys_follow_the_collation(a in "[aAbBáß0-9 ]{0,6}", b in "[aAbBáß0-9 ]{0,6}", strength in 1u8..=3) {
        let environment = english(strength);
        let sort = Sort::parse_in(&json!({"s": 1}), &environment).unwrap();
        let key = |text: &str| sort.key_of(document(&bytes(&json!({"s": text})))).unwrap();
        let collator = environment.collator().unwrap();
        prop_assert_eq!(key(&a).cmp(&key(&b)), collator.compare(&a, &b));
    }

    /// Random stages return a document with its `_id`, or an error.
    #[test]
    fn pipelines_never_panic(from in any_document(scalar(), true), add in any_value(scalar(), true), path in path(), other in path()) {
        for pipeline in [
            json!([{"$set": {&path: {"$literal": add}}}, {"$unset": &other}]),
            json!([{"$project": {&path: 1, "x": format!("${other}")}}]),
            json!([{"$set": {"x": format!("${path}")}}, {"$replaceWith": {"y": "$x", "z": format!("${other}")}}]),
        ] {
            let mut from = from.clone();
            from["_id"] = json!(1);
            if let Ok(Some(after)) = updated(&pipeline, &from) {
                prop_assert_eq!(&after["_id"], &json!(1), "{}", pipeline);
            }
        }
    }
}
