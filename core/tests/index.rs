//! Every document that a filter matches has one of the keys that a search of the index visits, with arrays at any position.

mod common;
mod values;

use common::{any_document, bytes, object, read};
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{Bounds, IN_ENTRIES, IndexKeys};
use docshard_core::query::projection::Projection;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{raw, write};
use docshard_core::values::order::compare_values;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;
use std::sync::LazyLock;

fn operand() -> impl Strategy<Value = Json> + Clone {
    let few = vec![
        json!(0),
        json!(1),
        json!(2.5),
        json!("a"),
        json!("A"),
        json!(["a", "B"]),
        json!("x".repeat(1500)),
        json!(null),
        json!(true),
        json!({"$minKey": 1}),
        json!({"$maxKey": 1}),
        json!([]),
        json!([1]),
        json!([1, [0]]),
        json!({"b": 1}),
        json!({"b": [1, 2], "c": 0}),
        json!([{"b": 1, "c": 0}, {"b": 0}, {"c": [1]}]),
        json!([{"b": [0, 1], "c": 1}, 1, [{"b": 1}]]),
    ];
    proptest::sample::select(few)
}

fn condition() -> impl Strategy<Value = Json> {
    let names = vec!["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"];
    let compare = (proptest::sample::select(names), operand()).prop_map(|(name, operand)| json!({name: operand}));
    let both = (operand(), operand()).prop_map(|(low, high)| json!({"$gte": low, "$lte": high}));
    let member = proptest::collection::vec(operand(), 0..3).prop_map(|operands| json!({"$in": operands}));
    let of_values = both.clone().prop_map(|inner| json!({"$elemMatch": inner}));
    let of_documents = (operand(), operand(), any::<bool>()).prop_map(|(b, c, missing)| {
        let c = if missing { json!({"$exists": false}) } else { c };
        json!({"$elemMatch": {"b": {"$gte": b}, "c": c}})
    });
    let rest = proptest::sample::select(vec![
        json!({"$exists": false}),
        json!({"$exists": true}),
        json!({"$size": 1}),
        json!({"$not": {"$lt": 1}}),
        json!({"$type": "array"}),
        json!({"$regex": "^a"}),
    ]);
    prop_oneof![6 => compare, 2 => both, 2 => member, 2 => of_values, 3 => of_documents, 2 => rest]
}

fn filter() -> impl Strategy<Value = Json> {
    let path = || proptest::sample::select(vec!["a", "a.b", "a.c", "a.0", "a.0.b", "b"]).prop_map(str::to_owned);
    let fields = proptest::collection::vec((path(), condition()), 1..4).prop_map(object);
    fields.prop_recursive(2, 6, 2, |inner| {
        (proptest::sample::select(vec!["$and", "$or", "$nor"]), proptest::collection::vec(inner, 1..3))
            .prop_map(|(name, branches)| json!({name: branches}))
    })
}

/// Created once, since creating a collation is slow.
static INDEXES: LazyLock<Vec<IndexKeys>> = LazyLock::new(indexes);

fn indexes() -> Vec<IndexKeys> {
    let keys = [
        json!({"a": 1}),
        json!({"a": -1, "b": 1}),
        json!({"b": 1, "a": 1}),
        json!({"a.b": 1, "a.c": 1, "b": 1}),
        json!({"b": -1, "a.c": 1, "a.b": 1}),
        json!({"a.0": 1}),
        json!({"a.0.b": 1, "a.0.c": 1}),
        json!({"a.0": 1, "a.b": 1}),
        json!({"a": "hashed"}),
        json!({"a.b": "hashed", "b": -1}),
        json!({"b": 1, "a.c": "hashed", "a.b": 1}),
        json!({"$**": 1}),
        json!({"a.$**": 1}),
        json!({"b": 1, "a.$**": 1}),
        json!({"a.b.$**": 1, "b": -1}),
        json!({"b.c": -1, "a.$**": 1, "b.a": 1}),
    ];
    let plain = keys.iter().map(|keys| IndexKeys::parse(keys).unwrap());
    let projections =
        [json!({"a": 0}), json!({"a.b": 0}), json!({"a": {"b": 1}, "b": true}), json!({"_id": 1, "a.c": 0})];
    let one = projections.iter().map(|projection| (json!({"$**": 1}), projection.clone()));
    let compound = [
        (json!({"b": 1, "$**": -1}), json!({"b": 0})),
        (json!({"$**": 1, "b": 1}), json!({"a": 1})),
        (json!({"a.0": 1, "$**": -1, "b.a": 1}), json!({"a.0": 0, "b": 0})),
    ];
    let projected = one
        .chain(compound)
        .map(|(keys, projection)| IndexKeys::parse(&keys).unwrap().projected(Some(&projection)).unwrap());
    let plain = plain.chain(projected);
    let collation = environment().collator().cloned();
    plain.flat_map(|keys| [keys.clone(), keys.under(collation.clone())]).collect()
}

fn environment() -> Environment {
    Environment::parse(&json!({"collation": {"locale": "en", "strength": 2}})).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2500))]

    #[test]
    fn a_matching_document_has_a_wanted_key(
        query in filter(),
        collated in any::<bool>(),
        documents in proptest::collection::vec(any_document(operand(), true), 12),
    ) {
        let environment = if collated { environment() } else { Environment::default() };
        let filter = Filter::parse_in(&query, &environment).unwrap();
        let mut all_wanted = None;
        for json in &documents {
            let bytes = bytes(json);
            let document = raw::document(&bytes).unwrap();
            if !filter.matches(document) {
                continue;
            }
            let all_wanted = all_wanted.get_or_insert_with(|| INDEXES.iter().map(|index| index.wanted(&filter)).collect::<Vec<_>>());
            for (index, wanted) in INDEXES.iter().zip(all_wanted) {
                if !index.has_tree() {
                    match index.entries(document) {
                        Ok(entries) => prop_assert!(
                            wanted.is_all() || entries.iter().any(|entry| wanted.entries.contains(entry)),
                            "{} {} {:?}", query, json, index
                        ),
                        Err(error) => {
                            prop_assert!(index.fields.len() > 1);
                            prop_assert!(matches!(error.kind, Kind::CannotIndexParallelArrays | Kind::Location(7246301)));
                        }
                    }
                } else if index.hashed.is_some() && index.check(document).is_err() {
                    prop_assert_eq!(index.check(document).unwrap_err().kind, Kind::Location(16766));
                } else if index.has_entries_of(document) {
                    prop_assert_eq!(index.key(document, 0), IN_ENTRIES);
                    match index.entries(document) {
                        Ok(entries) => prop_assert!(
                            entries.iter().any(|entry| wanted.entries.contains(entry)),
                            "{} {} {:?}", query, json, index
                        ),
                        Err(error) => prop_assert!(matches!(error.kind, Kind::CannotIndexParallelArrays | Kind::Location(7246301))),
                    }
                } else {
                    for (column, ranges) in wanted.columns.iter().enumerate() {
                        prop_assert!(ranges.contains(&index.key(document, column)), "{} {} {:?}", query, json, index);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_looks_the_same_is_stored_the_same(
        query in filter(),
        one in any_document(operand(), true),
        changes in any_document(operand(), true),
    ) {
        let mut other = one.clone();
        let fields = other.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        let bytes = [bytes(&one), bytes(&other)];
        let [one, other] = [0, 1].map(|at| raw::document(&bytes[at]).unwrap());
        let filter = Filter::parse(&query).unwrap();
        prop_assert!(!filter.sees_same(one, other) || filter.matches(one) == filter.matches(other));
        for index in INDEXES.iter().filter(|index| index.sees_same(one, other)) {
            prop_assert_eq!(index.entries(one).ok(), index.entries(other).ok());
            prop_assert_eq!(index.unique_keys(one).ok(), index.unique_keys(other).ok());
            if index.has_tree() {
                let stored = |document| {
                    let columns: Vec<_> = (0..index.fields.len()).map(|at| index.key(document, at)).collect();
                    (columns, index.types(document), index.has_entries_of(document), index.check(document).is_ok())
                };
                prop_assert_eq!(stored(one), stored(other));
            }
        }
    }
}

#[test]
fn an_index_does_not_see_other_fields() {
    let documents =
        [json!({"a": {"b": [1]}, "c": 1}), json!({"a": {"b": [1]}, "c": "x", "d": 0}), json!({"a": {"b": [2]}})];
    let documents = documents.map(|json| bytes(&json));
    let [one, alike, other] = [0, 1, 2].map(|at| raw::document(&documents[at]).unwrap());
    for (keys, sees_c) in
        [(json!({"a.b": 1}), false), (json!({"x": 1, "a.$**": 1}), false), (json!({"a": 1, "c": 1}), true)]
    {
        let index = IndexKeys::parse(&keys).unwrap();
        assert_eq!(index.sees_same(one, alike), !sees_c);
        assert!(!index.sees_same(one, other));
    }
    // For all fields there is no further check.
    assert!(!IndexKeys::parse(&json!({"$**": 1})).unwrap().sees_same(one, one));
    let filter = Filter::parse(&json!({"$or": [{"a.b": 1}, {"x": {"$exists": true}}]})).unwrap();
    assert!(filter.sees_same(one, alike) && !filter.sees_same(one, other));
}

/// Different values that compare equal, and missing values at several depths.
fn twins() -> impl Strategy<Value = Json> + Clone {
    let few = vec![
        json!(2),
        json!(2.0),
        json!(2.5),
        json!({"$numberDecimal": "2.00"}),
        json!({"$numberDecimal": "2.50"}),
        json!({"$numberDecimal": "0E+3"}),
        json!({"$numberDecimal": "-Infinity"}),
        json!({"$numberDouble": "NaN"}),
        json!({"$numberLong": "9007199254740993"}),
        json!(9007199254740992.0),
        json!("a"),
        json!({"$symbol": "a"}),
        json!(null),
        json!({"$undefined": true}),
        json!({"$oid": "0123456789abcdef01234567"}),
        json!({}),
        json!([2.0, null]),
    ];
    proptest::sample::select(few)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn keys_and_types_are_the_values(query in filter(), documents in proptest::collection::vec(any_document(twins(), true), 8)) {
        let filter = Filter::parse(&query).unwrap();
        for keys in [json!({"a": 1}), json!({"b": -1, "a.b": 1}), json!({"a.b.1": 1, "a.0": 1, "b": 1}), json!({"a.c": 1, "a.b": 1})] {
            let index = IndexKeys::parse(&keys).unwrap();
            prop_assert!(index.has_types());
            let mut fields = keys.as_object().unwrap().clone();
            fields.insert("_id".to_owned(), json!(0));
            let projection = Projection::parse(&Json::Object(fields)).unwrap();
            prop_assert!(projection.included().unwrap().iter().all(|path| index.covers(path)));
            for json in &documents {
                let stored = bytes(json);
                let document = raw::document(&stored).unwrap();
                if index.has_entries_of(document) {
                    prop_assert!(index.types(document).is_empty());
                    continue;
                }
                let columns: Vec<Vec<u8>> = (0..index.fields.len()).map(|column| index.key(document, column)).collect();
                let restored = index.restore_document(columns.iter().map(Vec::as_slice), &index.types(document)).unwrap();
                prop_assert_eq!(read(&restored), read(&projection.apply(document).unwrap()), "{} {}", keys, json);
                if filter.looks_only_at(|path| index.covers(path)) {
                    let matches = filter.matches(raw::document(&restored).unwrap());
                    prop_assert_eq!(matches, filter.matches(document), "{} {}", query, json);
                }
                let paths: Vec<&str> = index.fields.iter().map(|(path, _)| path.as_str()).collect();
                if filter.is_ranges_of(&paths) {
                    let inside = paths.iter().zip(&columns).all(|(path, key)| filter.ranges_of(path).contains(key));
                    prop_assert_eq!(inside, filter.matches(document), "{} {}", query, json);
                }
            }
        }
    }

    #[test]
    fn any_value_is_its_key_and_types(value in values::value(false)) {
        let stored = write::value(&Value::object(vec![("v".to_owned(), value)]).unwrap()).unwrap();
        let document = raw::document(&stored).unwrap();
        let index = IndexKeys::parse(&json!({"v": 1})).unwrap();
        if !index.has_entries_of(document) {
            let key = index.key(document, 0);
            let restored = index.restore_document(std::iter::once(key.as_slice()), &index.types(document)).unwrap();
            prop_assert_eq!(restored, stored);
        }
    }
}

#[test]
fn what_are_no_keys_restores_nothing() {
    let index = IndexKeys::parse(&json!({"a": 1, "b": 1})).unwrap();
    let stored = bytes(&json!({"a": 1, "b": "x"}));
    let document = raw::document(&stored).unwrap();
    let (a, b) = (index.key(document, 0), index.key(document, 1));
    for keys in [vec![IN_ENTRIES, IN_ENTRIES], vec![&a], vec![&a, &b[..1]], vec![&a, &[]]] {
        assert_eq!(index.restore_document(keys.into_iter(), &[]).unwrap_err().kind, Kind::BadValue);
    }
    assert_eq!(index.restore_document([a.as_slice(), &b].into_iter(), &[9]).unwrap_err().kind, Kind::BadValue);
}

fn wants(keys: &Json, filter: &Json, document: &Json) -> bool {
    let index = IndexKeys::parse(keys).unwrap();
    let wanted = index.wanted(&Filter::parse(filter).unwrap());
    let bytes = bytes(document);
    let entries = index.entries(raw::document(&bytes).unwrap()).unwrap();
    entries.iter().any(|entry| wanted.entries.contains(entry))
}

#[test]
fn directions_are_the_signs_of_numbers() {
    for (direction, descending) in [
        (json!(1), false),
        (json!(5), false),
        (json!(0.5), false),
        (json!({"$numberDouble": "Infinity"}), false),
        (json!(-1), true),
        (json!({"$numberDecimal": "-2.5"}), true),
    ] {
        let keys = IndexKeys::parse(&json!({"a": direction})).unwrap();
        assert_eq!(keys.fields, [("a".to_owned(), descending)], "{direction}");
    }
    for malformed in [json!(0), json!(-0.0), json!({"$numberDouble": "NaN"}), json!(true), json!(null), json!({"b": 1})]
    {
        assert_eq!(
            IndexKeys::parse(&json!({"a": malformed})).unwrap_err().kind,
            Kind::CannotCreateIndex,
            "{malformed}"
        );
    }
}

#[test]
fn what_is_wanted_is_narrow() {
    let keys = json!({"to": 1, "sent": 1});
    let letter = json!({"to": ["ann", "bob"], "sent": 7});
    for (filter, wanted) in [
        (json!({"to": "bob"}), true),
        (json!({"to": "cid"}), false),
        (json!({"to": "bob", "sent": 7}), true),
        (json!({"to": "bob", "sent": 8}), false),
        (json!({"to": "bob", "sent": {"$gt": 7}}), false),
        (json!({"to": "bob", "sent": {"$gte": 7}}), true),
        (json!({"to": {"$in": ["bob", "cid"]}, "sent": {"$lt": 9}}), true),
        (json!({"to": {"$regex": "^bo"}}), true),
        (json!({"to": {"$regex": "^x"}}), false),
        (json!({"to": ["ann", "bob"]}), true),
        (json!({"to": ["bob"], "sent": 8}), false),
        (json!({"to": "bob", "sent": {"$gt": 7, "$lt": 9}}), false),
        (json!({"to": "bob", "sent": {"$gt": 5, "$lt": 7}}), false),
        (json!({"to": "bob", "sent": {"$gt": 5, "$lt": 8}}), true),
    ] {
        assert_eq!(wants(&keys, &filter, &letter), wanted, "{filter}");
    }
    let keys = json!({"items.sku": 1, "items.qty": 1});
    let order = json!({"items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}]});
    for (filter, wanted) in [
        (json!({"items": {"$elemMatch": {"sku": "a", "qty": 1}}}), true),
        (json!({"items": {"$elemMatch": {"sku": "a", "qty": 2}}}), false),
        (json!({"items.sku": "a", "items.qty": 2}), true),
        (json!({"items.sku": "c", "items.qty": 2}), false),
    ] {
        assert_eq!(wants(&keys, &filter, &order), wanted, "{filter}");
    }
    let keys = json!({"from": 1, "labels.$**": 1, "sent": 1});
    let letter = json!({"from": "ann", "labels": {"color": ["red", "blue"], "size": 3}, "sent": 7});
    for (filter, wanted) in [
        (json!({"from": "ann"}), true),
        (json!({"from": "bob"}), false),
        (json!({"from": {"$gt": "ann"}, "labels.size": 3}), false),
        (json!({"from": "ann", "labels.size": 3}), true),
        (json!({"from": "ann", "labels.size": 4}), false),
        (json!({"from": "ann", "labels.size": {"$gt": 3}}), false),
        (json!({"from": "ann", "labels.color": "blue", "sent": 7}), true),
        (json!({"from": "ann", "labels.color": "blue", "sent": {"$gt": 7}}), false),
        (json!({"from": "ann", "labels.weight": {"$exists": true}}), false),
        (json!({"from": "ann", "sent": 7}), true),
        (json!({"from": "ann", "sent": 8}), false),
    ] {
        assert_eq!(wants(&keys, &filter, &letter), wanted, "{filter}");
    }
    assert!(wants(&json!({"v": 1}), &json!({"v": {"$elemMatch": {"$gt": 1, "$lt": 4}}}), &json!({"v": [0, 3]})));
    assert!(!wants(&json!({"v": 1}), &json!({"v": {"$elemMatch": {"$gt": 1, "$lt": 3}}}), &json!({"v": [0, 3]})));
}

fn bounds(min: &Json, max: &Json) -> Option<Bounds> {
    Bounds::parse(Some(min), Some(max)).unwrap()
}

/// Values for an index's fields, in its order.
fn corner(index: &IndexKeys, values: &[Json]) -> Json {
    object(index.fields.iter().zip(values).map(|((path, _), value)| (path.clone(), value.clone())).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_document_with_a_key_in_a_range_is_found(
        min in proptest::collection::vec(operand(), 3),
        max in proptest::collection::vec(operand(), 3),
        ends in 0..4,
        documents in proptest::collection::vec(any_document(operand(), true), 6),
    ) {
        for index in INDEXES.iter().filter(|index| index.has_tree() && index.hashed.is_none()) {
            let given = |end: &Json, asked: bool| if asked { end.clone() } else { json!({}) };
            let (min, max) = (corner(index, &min), corner(index, &max));
            let Some(bounds) = bounds(&given(&min, ends != 1), &given(&max, ends != 2)) else { continue };
            let span = match bounds.span(index, index.collation.as_deref()) {
                Ok(span) => span,
                Err(error) => {
                    prop_assert_eq!(error.kind, Kind::Location(51175));
                    continue;
                }
            };
            let (lo, hi) = span.ends(index);
            let wanted = index.wanted_within(&span);
            for json in &documents {
                let bytes = bytes(json);
                let document = raw::document(&bytes).unwrap();
                let within = index.first_key_within(document, &lo, &hi).is_some();
                if index.has_entries_of(document) {
                    let entries = index.entries(document).unwrap_or_default();
                    prop_assert!(
                        !within || entries.iter().any(|entry| wanted.entries.contains(entry)),
                        "{} {} {} {:?}", min, max, json, index
                    );
                    continue;
                }
                if index.collation.is_none() {
                    let at = |path: &str| path.split('.').try_fold(json, |inner, name| inner.get(name));
                    let paths = index.fields.iter().map(|(path, _)| path);
                    let values: Vec<Value> = paths.map(|path| at(path).map_or(Value::Null, common::value)).collect();
                    let against = |corner: &Json| {
                        let directed = index.fields.iter().zip(&values).map(|((path, down), value)| {
                            let order = compare_values(value, &common::value(&corner[path]));
                            if *down { order.reverse() } else { order }
                        });
                        directed.fold(Ordering::Equal, Ordering::then)
                    };
                    let expected = (ends == 1 || against(&min).is_ge()) && (ends == 2 || against(&max).is_lt());
                    prop_assert_eq!(within, expected, "{} {} {} {:?}", min, max, json, index);
                }
                let keys: Vec<Vec<u8>> = (0..index.fields.len()).map(|column| index.key(document, column)).collect();
                let in_columns = wanted.columns.iter().zip(&keys).all(|(ranges, key)| ranges.contains(key));
                let in_row = wanted.row.as_ref().is_none_or(|row| {
                    let least = row.least.as_ref().is_none_or(|least| least.as_slice() <= &keys[row.first..][..least.len()]);
                    least && row.greatest.as_ref().is_none_or(|most| most.as_slice() >= &keys[row.first..][..most.len()])
                });
                prop_assert!(!within || in_columns && in_row, "{} {} {} {:?}", min, max, json, index);
            }
        }
    }
}

#[test]
fn an_element_of_an_array_may_be_in_a_range() {
    let within = |keys: Json, min: Json, max: Json, of: Json| {
        let index = IndexKeys::parse(&keys).unwrap();
        let (lo, hi) = bounds(&min, &max).unwrap().span(&index, None).unwrap().ends(&index);
        let bytes = bytes(&of);
        index.first_key_within(raw::document(&bytes).unwrap(), &lo, &hi).is_some()
    };
    let of = json!({"a": [1, 5, 9], "b": "x"});
    assert!(within(json!({"a": 1}), json!({"a": 5}), json!({"a": 6}), of.clone()));
    assert!(!within(json!({"a": 1}), json!({"a": 2}), json!({"a": 5}), of.clone()));
    assert!(within(json!({"a": -1, "b": 1}), json!({"a": 5, "b": "x"}), json!({"a": 5, "b": "y"}), of.clone()));
    assert!(!within(json!({"a": -1, "b": 1}), json!({"a": 8, "b": ""}), json!({"a": 5, "b": "x"}), of.clone()));
    let long = |end: &str| json!({"a": "x".repeat(3000) + end});
    assert!(within(json!({"a": 1}), long("b"), long("d"), long("c")));
    assert!(!within(json!({"a": 1}), long("b"), long("d"), long("e")));
    // The first key in the index's order determines the document's position.
    let index = IndexKeys::parse(&json!({"a": -1})).unwrap();
    let (lo, hi) = bounds(&json!({"a": 8}), &json!({})).unwrap().span(&index, None).unwrap().ends(&index);
    let (doc, five) = (bytes(&of), bytes(&json!({"a": 5})));
    let (_, fields) = index.first_key_within(raw::document(&doc).unwrap(), &lo, &hi).unwrap();
    assert_eq!(fields, [index.key(raw::document(&five).unwrap(), 0)]);
    // A document that the index refuses has no key.
    assert!(!within(json!({"a": 1, "b": 1}), json!({}), json!({"a": 99, "b": 0}), json!({"a": [1], "b": [2]})));
}

#[test]
fn ranges_are_of_the_fields_of_an_index() {
    let kind = |keys: Json, min: Json, max: Json| {
        let index = IndexKeys::parse(&keys).unwrap();
        Bounds::parse(Some(&min), Some(&max)).and_then(|bounds| bounds.unwrap().span(&index, None)).map_err(|e| e.kind)
    };
    let ab = || json!({"a": 1, "b": -1});
    assert!(kind(ab(), json!({"a": 1, "b": 5}), json!({"a": 1, "b": 4})).is_ok());
    assert_eq!(kind(ab(), json!({"a": 1, "b": 4}), json!({"a": 1, "b": 5})), Err(Kind::Location(51175)));
    assert_eq!(kind(ab(), json!({"a": 1, "b": 4}), json!({"a": 1, "b": 4.0})), Err(Kind::Location(51175)));
    for wrong in [json!({"a": 1}), json!({"b": 1, "a": 1}), json!({"a": 1, "b": 1, "c": 1})] {
        assert_eq!(kind(ab(), wrong, json!({})), Err(Kind::Location(51174)));
    }
    assert_eq!(kind(ab(), json!({"a": 1, "b": 1}), json!({"a": 2})), Err(Kind::Location(51176)));
    assert_eq!(kind(json!({"a": "hashed"}), json!({"a": 1}), json!({})), Err(Kind::Location(51174)));
    assert_eq!(kind(json!({"$**": 1}), json!({"$**": 1}), json!({})), Err(Kind::Location(51174)));
    assert_eq!(Bounds::parse(Some(&json!([1])), None).unwrap_err().kind, Kind::TypeMismatch);
    assert!(Bounds::parse(Some(&json!({})), None).unwrap().is_none());
    let collated = IndexKeys::parse(&json!({"a": 1})).unwrap().under(environment().collator().cloned());
    let of = |value: Json| bounds(&json!({"a": value}), &json!({})).unwrap().span(&collated, None).map_err(|e| e.kind);
    assert!(of(json!(1)).is_ok());
    assert_eq!(of(json!("a")), Err(Kind::Location(51174)));
}
