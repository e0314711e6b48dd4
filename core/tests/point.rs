//! The fast path that reads a filter's text into a key has the same result as the filter's analysis.

mod common;

use common::{any_value, object, scalar};
use docshard_core::cluster::targeting::point::{Point, of_text};
use docshard_core::cluster::targeting::{exact_key, key_decides};
use docshard_core::query::filter::Filter;
use docshard_core::values::key::KeyPattern;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn patterns() -> Vec<KeyPattern> {
    let keys = [
        json!({"a": 1}),
        json!({"a": 1, "b": 1}),
        json!({"b": 1, "a.b": 1}),
        json!({"_id": 1}),
        json!({"_id": "hashed"}),
        json!({"a": "hashed"}),
        json!({"a": 1, "_id": "hashed"}),
        json!({"b": "hashed", "a": 1}),
    ];
    let sharded = keys.iter().map(|keys| KeyPattern::parse(keys).unwrap());
    std::iter::once(KeyPattern::unsharded()).chain(sharded).collect()
}

/// The result of the parsed filter's analysis, if it determines one document or one key.
fn analysed(pattern: &KeyPattern, filter: &Filter) -> Option<Point> {
    let id = filter.ranges_of("_id").as_point().map(<[u8]>::to_vec);
    let skey = match pattern.is_unsharded() {
        true => id.as_ref().map(|_| Vec::new()),
        false => exact_key(pattern, filter),
    };
    skey.filter(|_| key_decides(pattern, filter, id.is_some())).map(|skey| Point { skey, id })
}

fn value() -> impl Strategy<Value = Json> {
    let special = vec![
        json!({"$date": "2026-11-23T12:00:00.5Z"}),
        json!({"$date": "2026-11-23T12:00:00+01:00"}),
        json!({"$date": "1969-12-31T23:59:59.999Z"}),
        json!({"$date": 1}),
        json!({"$oid": "0123456789ABCDEF01234567"}),
        json!({"$oid": "x"}),
        json!({"$eq": 1}),
        json!({"$date": "2026-11-23T12:00:00Z", "$gt": 1}),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(-0.0),
        json!("a\u{0}\u{1}\u{ff}漢"),
    ];
    prop_oneof![4 => scalar(), 2 => proptest::sample::select(special), 1 => any_value(scalar(), true)]
}

fn filter() -> impl Strategy<Value = Json> {
    let name = proptest::sample::select(vec!["a", "b", "a.b", "_id", "$and", "c"]).prop_map(str::to_owned);
    proptest::collection::vec((name, value()), 0..4).prop_map(object)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn what_is_read_is_what_is_analysed(filter in filter()) {
        let parsed = Filter::parse(&filter);
        for pattern in patterns() {
            if let Some(point) = of_text(&pattern, &filter.to_string()) {
                let parsed = parsed.as_ref().expect("what was read is well-formed");
                prop_assert_eq!(Some(point), analysed(&pattern, parsed), "{} {:?}", filter, pattern);
            }
        }
    }
}

#[test]
fn keys_are_read() {
    let date = json!({"$date": "2026-11-23T12:00:00Z"});
    for (filter, read) in [
        (json!({"a": "ann"}), 1),
        (json!({"b": -7, "a": true}), 1),
        (json!({"a": date, "_id": {"$oid": "0123456789abcdef01234567"}}), 2),
        (json!({"a.b": 1, "b": "x"}), 1),
        (json!({"_id": 5}), 3),
        (json!({"a": 1.5}), 0),
        (json!({"a": null}), 0),
        (json!({}), 0),
    ] {
        let parsed = Filter::parse(&filter).unwrap();
        let read_as: Vec<Point> =
            patterns().iter().filter_map(|pattern| of_text(pattern, &filter.to_string())).collect();
        let analysed: Vec<Point> = patterns().iter().filter_map(|pattern| analysed(pattern, &parsed)).collect();
        assert_eq!(read_as.len(), read, "{filter}");
        assert!(read == 0 || read_as == analysed, "{filter}");
    }
}

#[test]
fn other_texts_are_left_to_others() {
    let pattern = KeyPattern::parse(&json!({"a": 1})).unwrap();
    for text in
        [r#"{"a": 1, "a": 2}"#, r#"{"a": 1} x"#, r#"{"a": 1"#, r#"["a"]"#, r#"{"a": [1]}"#, r#"{"a": {"b": 1}}"#, ""]
    {
        assert_eq!(of_text(&pattern, text), None, "{text}");
    }
}
