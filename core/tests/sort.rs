//! Sort specifications and sort keys.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::index::IndexKeys;
use docshard_core::query::sort::Sort;
use docshard_core::query::stage::Pipeline;
use docshard_core::values::document::value::Value;
use docshard_core::values::key::KeyPattern;
use docshard_core::values::order::compare_values;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

fn key(sort: &Json, of: &Json) -> Vec<u8> {
    Sort::parse(sort).unwrap_or_else(|error| panic!("{sort}: {error}")).key_of(document(&bytes(of))).unwrap()
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

/// The fraction of a double does not count.
#[test]
fn directions() {
    let (small, large) = (json!({"a": 1}), json!({"a": 2}));
    for (direction, ascending) in [
        (json!(1.999), true),
        (json!(-1.5), false),
        (json!({"$numberLong": "-1"}), false),
        (json!({"$numberDecimal": "1.4"}), true),
        (json!({"$numberDecimal": "-0.6"}), false),
    ] {
        let sort = json!({"a": direction});
        assert_eq!(key(&sort, &small) < key(&sort, &large), ascending, "{sort}");
    }
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
        (json!({"a": 2.5}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": 0.9}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": {"$numberDouble": "NaN"}}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": {"$numberDouble": "-Infinity"}}), Kind::Location(15975), one_or_minus_one),
        // A decimal is rounded, to 2.
        (json!({"a": {"$numberDecimal": "1.5"}}), Kind::Location(15975), one_or_minus_one),
        (json!({"a": {"$numberDecimal": "1E+6144"}}), Kind::Location(15975), one_or_minus_one),
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

#[test]
fn fields_of_one_array_are_of_one_element() {
    let sort = json!({"a.x": 1, "a.y": 1});
    // The least pairs are (1, 2), (1, 3), (2, 0).
    check_order(
        sort,
        vec![
            json!({"a": [{"x": 1, "y": 2}, {"x": 2, "y": 1}]}),
            json!({"a": [{"x": 2, "y": 0}, {"x": 1, "y": 3}]}),
            json!({"a": [{"x": 2, "y": 0}, {"x": 3, "y": 0}]}),
        ],
    );
    // The greatest x, and the least y beside it.
    check_order(
        json!({"a.x": -1, "a.y": 1}),
        vec![
            json!({"a": [{"x": 2, "y": 5}, {"x": 1, "y": 0}]}),
            json!({"a": [{"x": 2, "y": 6}, {"x": 2, "y": 7}, {"x": 1, "y": 0}]}),
            json!({"a": [{"x": 1, "y": 0}]}),
        ],
    );
    // An array in the elements of an array, a field beside the array, and a field of the first element in every key.
    let of = json!({"a": [{"b": [3, 1], "c": 2}, {"b": [2], "c": 1}], "d": 5});
    for (sort, expected) in [
        (json!({"a.b": 1, "a.c": 1}), json!({"x": 1, "y": 2})),
        (json!({"a.c": 1, "a.b": 1}), json!({"x": 1, "y": 2})),
        (json!({"d": 1, "a.b": -1, "a.c": 1}), json!({"w": 5, "x": 3, "y": 2})),
        (json!({"a.0.c": 1, "a.c": 1}), json!({"x": 2, "y": 1})),
    ] {
        let directions: Vec<Json> = sort.as_object().unwrap().values().cloned().collect();
        let names: Vec<String> = expected.as_object().unwrap().keys().cloned().collect();
        let flat: Json = names.into_iter().zip(directions).collect::<serde_json::Map<_, _>>().into();
        assert_eq!(key(&sort, &of), key(&flat, &expected), "{sort}");
    }
}

#[test]
fn fields_of_different_arrays_are_refused() {
    for (sort, of) in [
        (json!({"a": 1, "b": 1}), json!({"a": [1], "b": [2]})),
        (json!({"a": 1, "b": -1}), json!({"a": [], "b": [2]})),
        (json!({"a.b": 1, "a.c": 1}), json!({"a": [{"b": [1], "c": [2]}]})),
    ] {
        let sort = Sort::parse(&sort).unwrap();
        assert_eq!(sort.key_of(document(&bytes(&of))).unwrap_err().kind, Kind::BadValue, "{of}");
    }
}

/// A field's part is that of the whole key.
#[test]
fn parts_of_a_key_are_of_one_element() {
    let sort = Sort::parse(&json!({"a.x": -1, "a.y": 1})).unwrap();
    let of = bytes(&json!({"a": [{"x": 2, "y": 5}, {"x": 1, "y": 0}]}));
    let mut first = sort.field_key_of(document(&of), 0).unwrap();
    first.iter_mut().for_each(|byte| *byte = !*byte);
    let second = sort.field_key_of(document(&of), 1).unwrap();
    assert_eq!([first, second].concat(), sort.key_of(document(&of)).unwrap());
}

/// A second implementation: it lists the values of each path, with the elements of arrays that they are in, and compares the least of
/// the combinations in which fields of one array are in one element. None is an empty array.
mod naive {
    use super::*;
    use std::collections::BTreeMap;

    /// A value, and the chosen element of each array above it, by the array's place in the document.
    type Candidate = (Option<Value>, BTreeMap<String, usize>);

    /// The values of the first fields, and the chosen elements.
    type Key = (Vec<Option<Value>>, BTreeMap<String, usize>);

    pub fn compare(fields: &[(String, bool)], a: &Value, b: &Value) -> Ordering {
        compare_keys(fields, &least(fields, a), &least(fields, b))
    }

    fn compare_keys(fields: &[(String, bool)], a: &[Option<Value>], b: &[Option<Value>]) -> Ordering {
        fields.iter().zip(a.iter().zip(b)).fold(Ordering::Equal, |ordering, ((_, descending), (a, b))| {
            let next = compare_picks(a, b);
            ordering.then(if *descending { next.reverse() } else { next })
        })
    }

    fn least(fields: &[(String, bool)], document: &Value) -> Vec<Option<Value>> {
        let mut keys: Vec<Key> = vec![Default::default()];
        for (path, _) in fields {
            let path: Vec<&str> = path.split('.').collect();
            let mut candidates = Vec::new();
            collect(document, &path, String::new(), BTreeMap::new(), &mut candidates);
            let mut longer = Vec::new();
            for (key, chosen) in &keys {
                for (value, needed) in &candidates {
                    if needed.iter().all(|(array, index)| chosen.get(array).is_none_or(|other| other == index)) {
                        let key = key.iter().cloned().chain([value.clone()]).collect();
                        longer.push((key, chosen.iter().chain(needed).map(|(at, n)| (at.clone(), *n)).collect()));
                    }
                }
            }
            keys = longer;
        }
        keys.into_iter().map(|(key, _)| key).min_by(|a, b| compare_keys(fields, a, b)).unwrap()
    }

    /// How many fields have an array on their path.
    pub fn fields_in_arrays(fields: &[(String, bool)], document: &Value) -> usize {
        let is_in_array = |path: &str| {
            let path: Vec<&str> = path.split('.').collect();
            let mut value = document;
            for (at, name) in path.iter().enumerate() {
                match value {
                    Value::Object(fields) => match fields.iter().find(|(known, _)| known == name) {
                        Some((_, inner)) if at + 1 == path.len() => return matches!(inner, Value::Array(_)),
                        Some((_, inner)) => value = inner,
                        None => return false,
                    },
                    other => return matches!(other, Value::Array(_)),
                }
            }
            false
        };
        fields.iter().filter(|(path, _)| is_in_array(path)).count()
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

    fn collect(from: &Value, path: &[&str], place: String, chosen: BTreeMap<String, usize>, into: &mut Vec<Candidate>) {
        let chosen_at = |index: usize| {
            let mut chosen = chosen.clone();
            chosen.insert(place.clone(), index);
            chosen
        };
        match from {
            Value::Array(elements) if path.is_empty() && elements.is_empty() => into.push((None, chosen)),
            Value::Array(elements) if path.is_empty() => {
                into.extend(elements.iter().enumerate().map(|(at, element)| (Some(element.clone()), chosen_at(at))));
            }
            _ if path.is_empty() => into.push((Some(from.clone()), chosen)),
            Value::Object(fields) => match fields.iter().find(|(name, _)| name == path[0]) {
                Some((_, value)) => collect(value, &path[1..], format!("{place}.{}", path[0]), chosen, into),
                None => into.push((Some(Value::Null), chosen)),
            },
            Value::Array(elements) => match path[0].parse().ok().and_then(|index: usize| elements.get(index)) {
                Some(element) => collect(element, &path[1..], format!("{place}.{}", path[0]), chosen, into),
                None if elements.is_empty() => into.push((Some(Value::Null), chosen)),
                None => elements.iter().enumerate().for_each(|(at, element)| match element {
                    Value::Object(_) => collect(element, path, format!("{place}.{at}"), chosen_at(at), into),
                    _ => into.push((Some(Value::Null), chosen_at(at))),
                }),
            },
            _ => into.push((Some(Value::Null), chosen)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn keys_agree_with_the_comparator(
        fields in proptest::collection::btree_map(path(), any::<bool>(), 1..4),
        a in any_document(scalar(), true),
        b in any_document(scalar(), true),
    ) {
        let fields: Vec<(String, bool)> = fields.into_iter().collect();
        let sort = Sort { fields: fields.clone(), ..Sort::default() };
        let keys = (sort.key_of(document(&bytes(&a))), sort.key_of(document(&bytes(&b))));
        if let (Ok(first), Ok(second)) = &keys {
            prop_assert_eq!(first.cmp(second), naive::compare(&fields, &value(&a), &value(&b)));
        }
        for (key, of) in [(keys.0, a), (keys.1, b)] {
            let Err(error) = key else { continue };
            prop_assert_eq!(error.kind, Kind::BadValue);
            prop_assert!(naive::fields_in_arrays(&fields, &value(&of)) > 1, "{}", of);
        }
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
        let mut key = sort.field_key_of(document(&of), 0).unwrap();
        if let Ok(index) = IndexKeys::parse(&json!({path: direction}))
            && !index.has_entries_of(document(&of))
        {
            prop_assert_eq!(&key, &index.key(document(&of), 0));
        }
        if descending {
            key.iter_mut().for_each(|byte| *byte = !*byte);
        }
        prop_assert_eq!(&key, &sort.key_of(document(&of)).unwrap());
        prop_assert!(sort.field_key_of(document(&of), 1).unwrap().is_empty());
    }

    #[test]
    fn no_input_panics(specification in nonsense(), of in any_document(scalar(), true)) {
        if let Ok(sort) = Sort::parse(&specification) {
            let _ = sort.key_of(document(&bytes(&of)));
        }
    }
}

/// What is neither an object nor an array of pairs is refused with the two forms of an order.
#[test]
fn what_is_no_order_is_refused_with_a_hint() {
    let malformed = [
        json!([["a"]]),
        json!([["a", 1, 2]]),
        json!([["a", 1], ["a", -1]]),
        json!(["a", 1]),
        json!([{"a": 1}]),
        json!([[1, "a"]]),
        json!([]),
    ];
    let parsed = |stage: Json| Pipeline::parse(&[stage], &Environment::default()).map(drop);
    for order in malformed {
        let errors = [
            Sort::parse(&order).map(drop),
            KeyPattern::parse(&order).map(drop),
            IndexKeys::parse(&order).map(drop),
            parsed(json!({"$sort": order})),
            parsed(json!({"$setWindowFields": {"sortBy": order, "output": {"x": {"$sum": "$y"}}}})),
            parsed(json!({"$group": {"_id": null, "x": {"$top": {"output": "$y", "sortBy": order}}}})),
        ];
        for (place, parsed) in errors.into_iter().enumerate() {
            let error = parsed.expect_err(&format!("{place}: {order}"));
            let hint = error.hint.as_deref().unwrap_or_default();
            assert!(hint.contains("array of pairs"), "{place}: {order}: {}; {hint}", error.message);
        }
    }
}

/// A message that quotes a long value keeps its beginning and its end.
#[test]
fn long_values_are_cut_out_of_messages() {
    for length in [10_000, 10_000_000] {
        let path = "ä".repeat(length);
        let error = Sort::parse(&json!({path: "down"})).expect_err("no direction");
        assert!(error.message.len() < 1500, "{} bytes", error.message.len());
        assert!(error.message.starts_with("Illegal key in $sort specification: ä"), "{}", error.message);
        assert!(error.message.contains("more bytes) …") && error.message.ends_with("ä: \"down\""), "{}", error.message);
    }
}
