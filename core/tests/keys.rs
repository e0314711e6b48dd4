//! Keys: they compare bytewise as values do, decode to equal values, and none is a prefix of another.

mod values;

use docshard_core::error::Kind;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::number::{self, Number};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_core::values::key::encode::{
    decode, encode, encode_hash, encode_value, hash, hash_encoded, prefix_successor,
};
use docshard_core::values::key::pattern::FieldKind;
use docshard_core::values::key::{KeyPattern, KeyRange, KeyRanges, MAX_KEY_BYTES};
use docshard_core::values::order::{Class, compare_elements, compare_raw, compare_values};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode_value(value, &mut out);
    out
}

fn value(json: Json) -> Value {
    ext_json::from_json(&json).unwrap()
}

fn pattern(json: Json) -> KeyPattern {
    KeyPattern::parse(&json).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn bytes_compare_as_values(a in values::value(true), b in values::value(true)) {
        let (x, y) = (encoded(&a), encoded(&b));
        prop_assert_eq!(x.cmp(&y), compare_values(&a, &b), "{:?} {:?}", x, y);
        prop_assert_eq!(compare_values(&a, &b), compare_values(&b, &a).reverse());
        if x != y {
            prop_assert!(!y.starts_with(&x) && !x.starts_with(&y), "{:?} {:?}", x, y);
        }
    }

    #[test]
    fn numbers_compare_as_bytes(a in values::number(), b in values::number()) {
        let (a, b) = (Value::Number(a), Value::Number(b));
        prop_assert_eq!(encoded(&a).cmp(&encoded(&b)), compare_values(&a, &b));
        prop_assert!(encoded(&a).len() <= 30);
    }

    #[test]
    fn arithmetic_commutes(a in values::number(), b in values::number()) {
        for (one, other) in [(a.add(&b), b.add(&a)), (a.multiply(&b), b.multiply(&a))] {
            match (one, other) {
                (Ok(one), Ok(other)) => {
                    prop_assert_eq!(one.type_name(), other.type_name());
                    prop_assert_eq!(number::compare(&one, &other), Ordering::Equal);
                    let stored = write::value(&Value::Number(one.clone())).unwrap();
                    prop_assert_eq!(compare_raw(raw::root(&stored), &Value::Number(one)), Ordering::Equal);
                }
                (one, other) => prop_assert_eq!(one.unwrap_err().kind, other.unwrap_err().kind),
            }
        }
        if let (Number::Int(..), Number::Int(..)) = (&a, &b) {
            prop_assert!(a.add(&b).is_err() || matches!(a.add(&b), Ok(Number::Int(..))));
        }
    }

    #[test]
    fn order_is_transitive(mut values in proptest::collection::vec(values::value(true), 3)) {
        values.sort_by(compare_values);
        prop_assert_ne!(compare_values(&values[0], &values[2]), Ordering::Greater);
    }

    #[test]
    fn what_is_encoded_decodes(value in values::value(true), behind in proptest::collection::vec(any::<u8>(), 0..4)) {
        let mut bytes = encoded(&value);
        let length = bytes.len();
        bytes.extend(&behind);
        let (back, rest) = decode(&bytes).unwrap();
        prop_assert_eq!(rest, &behind[..]);
        prop_assert_eq!(&back, &value);
        prop_assert_eq!(encoded(&back), &bytes[..length]);
    }

    #[test]
    fn stored_values_compare_and_encode_as_owned_ones(a in values::value(false), b in values::value(false)) {
        let (x, y) = (write::value(&a).unwrap(), write::value(&b).unwrap());
        let (raw_a, raw_b) = (raw::root(&x), raw::root(&y));
        let (element_a, element_b) = (Element::of(raw_a), Element::of(raw_b));
        let order = compare_values(&a, &b);
        prop_assert_eq!(compare_elements(&element_a, &element_b), order);
        prop_assert_eq!(compare_raw(raw_a, &b), order);
        prop_assert_eq!(compare_raw(raw_b, &a), order.reverse());
        prop_assert_eq!(Class::of_raw(raw_a), Class::of(&a));
        let mut bytes = Vec::new();
        encode(&element_a, &mut bytes);
        prop_assert_eq!(&bytes, &encoded(&a));
        prop_assert_eq!(hash(&element_a), hash_encoded(&bytes));
    }

    #[test]
    fn any_bytes_decode_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40), class in any::<u8>()) {
        let _ = decode(&bytes);
        let mut typed = vec![class & 0xF8];
        typed.extend(bytes);
        let _ = decode(&typed);
        let _ = pattern(json!({"a": 1, "b": "hashed"})).bound_to_json(&typed);
    }

    #[test]
    fn successors_are_tight(prefix in proptest::collection::vec(prop_oneof![Just(0xFF), any::<u8>()], 0..4), more in any::<[u8; 3]>()) {
        let longer = [&prefix[..], &more[..]].concat();
        match prefix_successor(&prefix) {
            Some(successor) => prop_assert!(longer < successor && successor.len() <= prefix.len() && !successor.starts_with(&prefix)),
            None => prop_assert!(prefix.iter().all(|&byte| byte == 0xFF)),
        }
    }

    #[test]
    fn ranges_are_sets_of_keys(
        a in proptest::collection::vec(range(), 0..5),
        b in proptest::collection::vec(range(), 0..5),
        keys in proptest::collection::vec(small_key(), 20),
    ) {
        let within = |ranges: &[KeyRange], key: &[u8]| ranges.iter().any(|range| range.contains(key));
        let (left, right) = (KeyRanges::new(a.clone()), KeyRanges::new(b.clone()));
        let (both, either) = (left.intersect(&right), KeyRanges::union([left.clone(), right.clone()]));
        for key in &keys {
            prop_assert_eq!(left.contains(key), within(&a, key));
            prop_assert_eq!(both.contains(key), within(&a, key) && within(&b, key));
            prop_assert_eq!(either.contains(key), within(&a, key) || within(&b, key));
            prop_assert!(!left.contains(key) || left.hull().is_some_and(|hull| hull.contains(key)));
        }
        for ranges in [&left, &right, &both, &either] {
            prop_assert_eq!(&KeyRanges::new(ranges.as_slice().to_vec()), ranges);
            prop_assert!(ranges.as_slice().windows(2).all(|pair| pair[0].hi.as_ref().is_some_and(|hi| *hi < pair[1].lo)));
        }
    }

    #[test]
    fn a_union_is_that_of_sets(
        parts in proptest::collection::vec(proptest::collection::vec(range(), 0..4), 0..8),
        keys in proptest::collection::vec(small_key(), 20),
    ) {
        let sets: Vec<KeyRanges> = parts.iter().map(|part| KeyRanges::new(part.clone())).collect();
        let all = KeyRanges::union(sets.clone());
        for key in &keys {
            prop_assert_eq!(all.contains(key), sets.iter().any(|set| set.contains(key)));
        }
        prop_assert_eq!(&all, &KeyRanges::new(parts.concat()));
        let one_by_one = sets.into_iter().fold(KeyRanges::none(), |all, next| KeyRanges::union([all, next]));
        prop_assert_eq!(&all, &one_by_one);
    }
}

fn small_key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xFF)], 0..4)
}

fn range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        3 => (small_key(), proptest::option::weighted(0.9, small_key())).prop_map(|(lo, hi)| KeyRange { lo, hi }),
        1 => small_key().prop_map(|key| KeyRange::point(&key)),
    ]
}

#[test]
fn points_are_recognised() {
    assert_eq!(KeyRange::point(b"ab").as_point(), Some(&b"ab"[..]));
    assert_eq!(KeyRange { lo: b"ab".to_vec(), hi: Some(b"ac".to_vec()) }.as_point(), None);
    assert_eq!(KeyRange::all().as_point(), None);
    assert!(KeyRanges::all().is_all() && KeyRanges::none().is_none());
    assert!(!KeyRanges::new(vec![KeyRange { lo: vec![0], hi: None }]).is_all());
}

#[test]
fn types_come_in_their_order() {
    let ascending = [
        json!({"$minKey": 1}),
        json!(null),
        json!(-5),
        json!({"$numberDecimal": "0.1"}),
        json!(0.1),
        json!(5),
        json!(""),
        json!("a"),
        json!("aa"),
        json!("b"),
        json!({}),
        json!({"a": 1}),
        json!({"a": 1, "b": 0}),
        json!({"b": 1}),
        json!({"a": "x"}),
        json!([]),
        json!([1]),
        json!([1, 2]),
        json!([2]),
        json!({"$binary": {"base64": "/w==", "subType": "05"}}),
        json!({"$binary": {"base64": "AAA=", "subType": "00"}}),
        json!({"$oid": "0123456789abcdef01234567"}),
        json!(false),
        json!(true),
        json!({"$date": {"$numberLong": "-5"}}),
        json!({"$date": 5}),
        json!({"$timestamp": {"t": 1, "i": 5}}),
        json!({"$timestamp": {"t": 2, "i": 1}}),
        json!({"$regularExpression": {"pattern": "a", "options": ""}}),
        json!({"$regularExpression": {"pattern": "a", "options": "i"}}),
        json!({"$dbPointer": {"$ref": "a", "$id": {"$oid": "0123456789abcdef01234567"}}}),
        json!({"$code": "a"}),
        json!({"$code": "a", "$scope": {}}),
        json!({"$maxKey": 1}),
    ]
    .map(value);
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            assert_eq!(compare_values(a, b), i.cmp(&j), "{a:?} {b:?}");
            assert_eq!(encoded(a).cmp(&encoded(b)), i.cmp(&j), "{a:?} {b:?}");
        }
    }
}

#[test]
fn equal_numbers_hash_alike() {
    let hashes: Vec<i64> = [json!(2), json!(2.0), json!({"$numberLong": "2"}), json!({"$numberDecimal": "2.00"})]
        .into_iter()
        .map(|json| hash_encoded(&encoded(&value(json))))
        .collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    // Neither the encoding nor the hash may ever change, since keys are stored.
    assert_eq!(encoded(&value(json!(2))), [0x30, 0xC0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(encoded(&value(json!("a\u{1}"))), [0x40, b'a', 1, 2, 0]);
    assert_eq!(
        encoded(&value(json!({"$numberDecimal": "-0.1"}))),
        [0x30, 0x40, 0x46, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 1, 0x7F, 0xFF, 0xF4, 0xFF]
    );
    assert_eq!(hashes[0], 951_930_788_904_984_098);
}

#[test]
fn hashes_lie_between_the_ends_in_the_order_of_integers() {
    let of = |hash: i64| {
        let mut out = Vec::new();
        encode_hash(hash, &mut out);
        out
    };
    let keys = [encoded(&Value::MinKey), of(i64::MIN), of(-1), of(0), of(i64::MAX), encoded(&Value::MaxKey)];
    assert!(keys.is_sorted());
    assert_eq!(decode(&of(-7)).unwrap().0, value(json!(-7)));
}

#[test]
fn patterns_are_parsed() {
    let parsed = pattern(json!({"recipient": 1, "sent.at": {"$numberLong": "1"}, "x": "hashed"}));
    assert_eq!(parsed.to_json(), json!({"recipient": 1, "sent.at": 1, "x": "hashed"}));
    assert_eq!(parsed.hashed_field(), Some(2));
    assert_eq!(parsed.fields[1], ("sent.at".to_owned(), FieldKind::Ranged));
    assert!(!parsed.is_in_order_of_id() && !parsed.is_unsharded());
    assert!(pattern(json!({"_id": 1.0})).is_in_order_of_id() && !pattern(json!({"_id": "hashed"})).is_in_order_of_id());
    assert!(KeyPattern::unsharded().is_in_order_of_id() && KeyPattern::unsharded().is_unsharded());
}

#[test]
fn each_malformed_pattern_has_its_own_error() {
    let many: serde_json::Map<String, Json> = (0..33).map(|n| (format!("f{n}"), json!(1))).collect();
    let mut messages = Vec::new();
    for (malformed, kind) in [
        (json!([1]), Kind::TypeMismatch),
        (json!({}), Kind::BadValue),
        (Json::Object(many), Kind::BadValue),
        (json!({"a": -1}), Kind::BadValue),
        (json!({"a": 2}), Kind::BadValue),
        (json!({"a": "2d"}), Kind::BadValue),
        (json!({"a": {"$numberInt": "x"}}), Kind::FailedToParse),
        (json!({"a": "hashed", "b": "hashed"}), Kind::BadValue),
        (json!({"a": 1, "a.b": 1}), Kind::BadValue),
        (json!({"a.b.c": 1, "a": 1}), Kind::BadValue),
        (json!({"a..b": 1}), Kind::BadValue),
        (json!({"": 1}), Kind::BadValue),
        (json!({"a.$b": 1}), Kind::BadValue),
    ] {
        let error = KeyPattern::parse(&malformed).unwrap_err();
        assert_eq!(error.kind, kind, "{malformed}: {error}");
        messages.push(error.into_message());
    }
    messages.sort();
    messages.dedup();
    assert_eq!(messages.len(), 13);
    assert!(KeyPattern::parse(&json!({"a": 1, "ab": 1})).is_ok());
}

#[test]
fn documents_have_keys() {
    let document = |json: Json| write::value(&value(json)).unwrap();
    let pattern = pattern(json!({"a.b": 1, "c": "hashed"}));
    let key_of = |json: Json| pattern.key_of(raw::document(&document(json)).unwrap());

    let key = key_of(json!({"a": {"b": 2}, "c": "x"})).unwrap();
    let hashed = hash_encoded(&encoded(&value(json!("x"))));
    assert_eq!(pattern.decode(&key).unwrap(), vec![value(json!(2)), value(json!(hashed))]);
    assert_eq!(pattern.bound_to_json(&key), json!({"a.b": 2, "c": hashed}));
    assert_eq!(key_of(json!({"a": {"b": null}})).unwrap(), key_of(json!({"a": 5, "c": null})).unwrap());

    for json in [json!({"a": {"b": [1]}}), json!({"a": [{"b": 1}]}), json!({"c": {"$undefined": true}})] {
        assert_eq!(key_of(json.clone()).unwrap_err().kind, Kind::ShardKeyNotFound, "{json}");
    }
    let regex = json!({"$regex": "x", "$options": ""});
    let key = key_of(json!({"a": {"b": regex}})).unwrap();
    assert_eq!(pattern.decode(&key).unwrap()[0], value(regex));
    let long = key_of(json!({"a": {"b": "x".repeat(MAX_KEY_BYTES)}}));
    assert_eq!(long.unwrap_err().kind, Kind::KeyTooLong);
    assert!(key_of(json!({"c": "x".repeat(MAX_KEY_BYTES)})).is_ok());
}

#[test]
fn bounds_read_and_print() {
    let compound = pattern(json!({"recipient": 1, "sent": 1}));
    let bound = compound.bound_from_json(&json!({"recipient": "m"})).unwrap();
    assert_eq!(compound.bound_to_json(&bound), json!({"recipient": "m", "sent": {"$minKey": 1}}));
    assert_eq!(compound.bound_from_json(&compound.bound_to_json(&bound)).unwrap(), bound);
    let lowest = json!({"recipient": {"$minKey": 1}, "sent": {"$minKey": 1}});
    assert_eq!(compound.bound_to_json(&compound.min_bound()), lowest);
    assert_eq!(compound.bound_from_json(&lowest).unwrap(), compound.min_bound());
    let highest = json!({"recipient": {"$maxKey": 1}, "sent": {"$maxKey": 1}});
    assert_eq!(compound.bound_from_json(&highest).unwrap(), compound.max_bound());
    for wrong in [
        json!({"sent": 1}),
        json!({"sent": 1, "recipient": 1}),
        json!({"recipient": 1, "x": 1}),
        json!({"recipient": 1, "sent": 1, "x": 1}),
        json!({"recipient": [1]}),
        json!({}),
    ] {
        assert_eq!(compound.bound_from_json(&wrong).unwrap_err().kind, Kind::BadValue, "{wrong}");
    }
    assert_eq!(compound.bound_from_json(&json!(1)).unwrap_err().kind, Kind::TypeMismatch);
    let long = compound.bound_from_json(&json!({"recipient": "x".repeat(MAX_KEY_BYTES)}));
    assert_eq!(long.unwrap_err().kind, Kind::KeyTooLong);

    let hashed = pattern(json!({"user": "hashed"}));
    let bound = hashed.bound_from_json(&json!({"user": {"$numberLong": "-5"}})).unwrap();
    assert_eq!(hashed.bound_to_json(&bound), json!({"user": -5}));
    assert!(hashed.bound_from_json(&json!({"user": {"$maxKey": 1}})).is_ok());
    for wrong in [json!({"user": "m"}), json!({"user": 5.0})] {
        assert_eq!(hashed.bound_from_json(&wrong).unwrap_err().kind, Kind::BadValue, "{wrong}");
    }
    assert_eq!(KeyPattern::unsharded().bound_from_json(&json!({})).unwrap(), Vec::<u8>::new());
}

#[test]
fn hash_bounds_cut_evenly() {
    let hashed = pattern(json!({"user": "hashed", "at": 1}));
    let bounds = hashed.even_hash_bounds(4);
    let firsts: Vec<Json> = bounds.iter().map(|bound| hashed.bound_to_json(bound)["user"].clone()).collect();
    assert_eq!(firsts, [json!(i64::MIN / 2), json!(0), json!(i64::MAX / 2 + 1)]);
    assert!(hashed.even_hash_bounds(1).is_empty() && hashed.even_hash_bounds(0).is_empty());
    assert_eq!(hashed.even_hash_bounds(1000).len(), 999);
    assert!(hashed.even_hash_bounds(1000).is_sorted());
    assert!(pattern(json!({"at": 1, "user": "hashed"})).even_hash_bounds(4).is_empty());
}

#[test]
fn keys_of_another_pattern_do_not_decode() {
    let one = pattern(json!({"a": 1}));
    let two = [encoded(&value(json!(1))), encoded(&value(json!(2)))].concat();
    assert_eq!(one.decode(&two).unwrap_err().kind, Kind::BadValue);
    assert_eq!(one.decode(&[]).unwrap_err().kind, Kind::BadValue);
}
