//! Sort specifications and sort keys.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::index::IndexKeys;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::value::Value;
use docshard_core::values::order::compare_values;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

fn key(sort: &Json, of: &Json) -> Vec<u8> {
    Sort::parse(sort).unwrap_or_else(|error| panic!("{sort}: {error}")).key_of(document(&bytes(of)))
}

/// Asserts that the documents are in strictly rising order.
fn check_order(sort: Json, documents: Vec<Json>) {
    for pair in documents.windows(2) {
        assert!(key(&sort, &pair[0]) < key(&sort, &pair[1]), "{sort}: {} before {}", pair[0], pair[1]);
    }
}

#[test]
fn types_have_an_order() {
    let documents = vec![
        json!({"a": {"$minKey": 1}}),
        json!({"a": []}),
        json!({"a": null}),
        json!({"a": {"$numberDouble": "NaN"}}),
        json!({"a": -1}),
        json!({"a": 1.5}),
        json!({"a": 2}),
        json!({"a": ""}),
        json!({"a": "a"}),
        json!({"a": {}}),
        json!({"a": {"$oid": "0123456789abcdef01234567"}}),
        json!({"a": false}),
        json!({"a": true}),
        json!({"a": {"$date": "2020-01-01T00:00:00Z"}}),
        json!({"a": {"$maxKey": 1}}),
    ];
    check_order(json!({"a": 1}), documents.clone());
    check_order(json!({"a": -1}), documents.into_iter().rev().collect());
    assert_eq!(key(&json!({"a": 1}), &json!({})), key(&json!({"a": 1}), &json!({"a": null})));
    assert_eq!(key(&json!({"a": -1}), &json!({"a": 2})), key(&json!({"a": -1}), &json!({"a": 2.0})));
}

#[test]
fn arrays_sort_by_their_least_or_greatest_element() {
    check_order(
        json!({"a": 1}),
        vec![json!({"a": []}), json!({}), json!({"a": [9, 1]}), json!({"a": 2}), json!({"a": [3]})],
    );
    check_order(
        json!({"a": -1}),
        vec![json!({"a": [9, 1]}), json!({"a": [3]}), json!({"a": 2}), json!({}), json!({"a": []})],
    );
    // An element that is an array is compared as a whole.
    check_order(json!({"a": 1}), vec![json!({"a": [1]}), json!({"a": [[1]]})]);
}

#[test]
fn paths_consider_all_values() {
    check_order(
        json!({"a.b": 1}),
        vec![
            json!({"a": [{"b": 5}, {}]}),
            json!({"a": [{"b": 5}, {"b": [1, 9]}]}),
            json!({"a": {"b": 2}}),
            json!({"a": [{"b": 3}, {"b": 4}]}),
        ],
    );
    check_order(
        json!({"a.b": -1}),
        vec![
            json!({"a": [{"b": 5}, {"b": [1, 9]}]}),
            json!({"a": [{"b": 5}, {}]}),
            json!({"a": {"b": 2}}),
            json!({"a": 1}),
        ],
    );
    check_order(
        json!({"a.1": 1}),
        vec![json!({"a": [9]}), json!({"a": [9, 1]}), json!({"a": [0, 2]}), json!({"a": {"1": 3}})],
    );
    check_order(json!({"a.0.b": 1}), vec![json!({"a": [{"b": 1}, {"b": 0}]}), json!({"a": [{"b": 2}]})]);
    assert_eq!(key(&json!({"a.b": 1}), &json!({"a": []})), key(&json!({"a.b": 1}), &json!({})));
}

#[test]
fn several_fields() {
    check_order(
        json!({"a": 1, "b": -1}),
        vec![json!({"a": "x", "b": 2}), json!({"a": "x", "b": 1}), json!({"a": "x"}), json!({"a": "xx", "b": 3})],
    );
    check_order(json!({"a": -1, "b": 1}), vec![json!({"a": "xx"}), json!({"a": "x"}), json!({"a": "x", "b": 1})]);
    assert_eq!(key(&json!({}), &json!({"a": 1})), Vec::<u8>::new());
}

#[test]
fn specifications() {
    let direction = |json: Json| Sort::parse(&json!({"a": json})).unwrap().fields[0].1;
    for ascending in [json!(1), json!(1.0), json!({"$numberLong": "1"}), json!({"$numberDecimal": "1.0"})] {
        assert!(!direction(ascending));
    }
    for descending in [json!(-1), json!(-1.0), json!({"$numberInt": "-1"})] {
        assert!(direction(descending));
    }
    let ordered = Sort::parse(&json!({"b": 1, "a.c": -1})).unwrap();
    assert_eq!(ordered.fields, [("b".to_owned(), false), ("a.c".to_owned(), true)]);

    let many = |count: usize| object((0..count).map(|i| (format!("f{i}"), json!(1))).collect());
    assert!(Sort::parse(&many(32)).is_ok());
    let one_or_minus_one = "$sort key ordering must be 1 (for ascending) or -1 (for descending)";
    for (sort, kind, message) in [
        (json!({"a": 2}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": 0}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": 1.5}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": "asc"}), Kind::Location(15974), "Illegal key in $sort specification: a: \"asc\""),
        (json!({"a": true}), Kind::Location(15974), "Illegal key"),
        (json!({"a": {"b": 1}}), Kind::Location(17312), "$meta is the only"),
        (json!({"a": {}}), Kind::Location(17312), "$meta is the only"),
        (json!({"a": {"$date": "2026-01-01T00:00:00Z"}}), Kind::Location(15974), "Illegal key"),
        (json!({"a": {"$meta": "other"}}), Kind::Location(31138), "Illegal $meta sort"),
        (json!({"a": {"$meta": "textScore", "b": 1}}), Kind::FailedToParse, "additional keys"),
        (json!({"a": {"$meta": "textScore"}}), Kind::NotImplemented, "$meta"),
        (json!({"$natural": 1}), Kind::NotImplemented, "$natural"),
        (json!({"": 1}), Kind::Location(40352), ""),
        (json!({"a..b": 1}), Kind::Location(15998), ""),
        (json!({"a.": 1}), Kind::Location(40353), ""),
        (json!({"$a": 1}), Kind::Location(16410), ""),
        (many(33), Kind::Location(13103), "too many compound keys"),
        (json!("a"), Kind::TypeMismatch, "must be an object"),
    ] {
        let error = Sort::parse(&sort).expect_err(&sort.to_string());
        assert!(error.kind == kind && error.message.contains(message), "{sort}: {:?} {error}", error.kind);
    }
}

/// A second implementation: it lists the values of a path, and compares the least or the greatest. None is an empty array.
mod naive {
    use super::*;

    pub fn compare(fields: &[(String, bool)], a: &Value, b: &Value) -> Ordering {
        fields.iter().fold(Ordering::Equal, |ordering, (path, descending)| {
            ordering.then_with(|| {
                let path: Vec<&str> = path.split('.').collect();
                let ordering = compare_picks(&pick(a, &path, *descending), &pick(b, &path, *descending));
                if *descending { ordering.reverse() } else { ordering }
            })
        })
    }

    fn pick(document: &Value, path: &[&str], greatest: bool) -> Option<Value> {
        let mut values = Vec::new();
        collect(document, path, &mut values);
        values.sort_by(compare_picks);
        if greatest { values.pop().unwrap() } else { values.swap_remove(0) }
    }

    fn compare_picks(a: &Option<Value>, b: &Option<Value>) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) => compare_values(a, b),
            (None, None) => Ordering::Equal,
            (None, Some(Value::MinKey)) => Ordering::Greater,
            (Some(Value::MinKey), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
        }
    }

    fn collect(from: &Value, path: &[&str], into: &mut Vec<Option<Value>>) {
        match from {
            Value::Array(elements) if path.is_empty() && elements.is_empty() => into.push(None),
            Value::Array(elements) if path.is_empty() => into.extend(elements.iter().cloned().map(Some)),
            _ if path.is_empty() => into.push(Some(from.clone())),
            Value::Object(fields) => match fields.iter().find(|(name, _)| name == path[0]) {
                Some((_, value)) => collect(value, &path[1..], into),
                None => into.push(Some(Value::Null)),
            },
            Value::Array(elements) => match path[0].parse().ok().and_then(|index: usize| elements.get(index)) {
                Some(element) => collect(element, &path[1..], into),
                None if elements.is_empty() => into.push(Some(Value::Null)),
                None => elements.iter().for_each(|element| match element {
                    Value::Object(_) => collect(element, path, into),
                    _ => into.push(Some(Value::Null)),
                }),
            },
            _ => into.push(Some(Value::Null)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn keys_agree_with_the_comparator(
        fields in proptest::collection::btree_map(path(), any::<bool>(), 1..3),
        a in any_document(scalar(), true),
        b in any_document(scalar(), true),
    ) {
        let fields: Vec<(String, bool)> = fields.into_iter().collect();
        let sort = Sort { fields: fields.clone(), ..Sort::default() };
        let keys = (sort.key_of(document(&bytes(&a))), sort.key_of(document(&bytes(&b))));
        prop_assert_eq!(keys.0.cmp(&keys.1), naive::compare(&fields, &value(&a), &value(&b)));
    }

    /// So that documents in an index's order can be merged with sorted ones.
    #[test]
    fn fields_sort_as_an_index_has_them(
        path in path(),
        descending in any::<bool>(),
        of in any_document(scalar(), true),
    ) {
        let sort = Sort { fields: vec![(path.clone(), descending)], ..Sort::default() };
        let (of, direction) = (bytes(&of), if descending { -1 } else { 1 });
        let mut key = sort.field_key_of(document(&of), 0);
        if let Ok(index) = IndexKeys::parse(&json!({path: direction}))
            && !index.is_apart(document(&of))
        {
            prop_assert_eq!(&key, &index.key(document(&of), 0));
        }
        if descending {
            key.iter_mut().for_each(|byte| *byte = !*byte);
        }
        prop_assert_eq!(&key, &sort.key_of(document(&of)));
        prop_assert!(sort.field_key_of(document(&of), 1).is_empty());
    }

    #[test]
    fn no_input_panics(specification in nonsense(), of in any_document(scalar(), true)) {
        if let Ok(sort) = Sort::parse(&specification) {
            sort.key_of(document(&bytes(&of)));
        }
    }
}
