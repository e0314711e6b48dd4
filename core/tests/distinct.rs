//! The distinct values of a field.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::distinct::Distinct;
use docshard_core::query::environment::Environment;
use serde_json::{Value as Json, json};

fn values(path: &str, of: &Json) -> Vec<Json> {
    let values = Distinct::parse(path, &Environment::default()).unwrap().values(document(&bytes(of))).unwrap();
    values.iter().map(|(_, value)| read(value)).collect()
}

#[test]
fn arrays_give_their_elements() {
    for (path, of, found) in [
        ("a", json!({"a": 1}), json!([1])),
        ("a", json!({"a": [1, [2, 3], {"b": 4}]}), json!([1, [2, 3], {"b": 4}])),
        ("a", json!({"a": []}), json!([])),
        ("a", json!({"a": null}), json!([null])),
        ("a", json!({"b": 1}), json!([])),
        ("a.b", json!({"a": {"b": [1, 2]}}), json!([1, 2])),
        ("a.b", json!({"a": [{"b": 1}, {"b": [2, 3]}, {"c": 4}, 5, [{"b": 6}]]}), json!([1, 2, 3])),
        ("a.1", json!({"a": [7, 8, 9]}), json!([8])),
        ("a.1.b", json!({"a": [7, {"b": [8, 9]}]}), json!([8, 9])),
        ("a.1", json!({"a": {"1": 5}}), json!([5])),
        ("a.b.c", json!({"a": {"b": 5}}), json!([])),
        ("a.$date", json!({"b": 5}), json!([])),
        ("a", json!({"a": {"$date": "2020-01-01T00:00:00Z"}}), json!([{"$date": "2020-01-01T00:00:00Z"}])),
    ] {
        if path.contains('$') {
            assert_eq!(Distinct::parse(path, &Environment::default()).unwrap_err().kind, Kind::Location(16410));
            continue;
        }
        assert_eq!(Json::Array(values(path, &of)), found, "{path} of {of}");
    }
    for (path, found) in [("", json!([2])), ("a..b", json!([1])), ("a.", json!([{"b": 1}])), (".", json!([]))] {
        let of = json!({"": 2, "a": {"": {"b": 1}}});
        assert_eq!(Json::Array(values(path, &of)), found, "{path}");
    }
}

#[test]
fn equal_values_have_one_key() {
    let keys = |of: &Json| -> Vec<Vec<u8>> {
        let found = Distinct::parse("a", &Environment::default()).unwrap().values(document(&bytes(of))).unwrap();
        found.into_iter().map(|(key, _)| key).collect()
    };
    let numbers = keys(&json!({"a": [2, 2.0, {"$numberDecimal": "2.00"}, 3, "2"]}));
    assert!(numbers[0] == numbers[1] && numbers[1] == numbers[2]);
    assert!(numbers[2] < numbers[3] && numbers[3] < numbers[4]);
}
