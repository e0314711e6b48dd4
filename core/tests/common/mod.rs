//! Shared helpers of the query language's tests: documents from and to JSON, and random documents.
#![allow(dead_code)] // every test file is a crate of its own and uses its part

pub mod bson_documents;
pub mod pipelines;

use docshard_core::values::document::raw::{self, RawObject};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, write};
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

/// A document's jsonb.
pub fn bytes(json: &Json) -> Vec<u8> {
    write::value(&value(json)).expect("writable")
}

/// An owned value.
pub fn value(json: &Json) -> Value {
    ext_json::from_json(json).expect("well-formed")
}

/// The document in jsonb.
pub fn document(bytes: &[u8]) -> RawObject<'_> {
    raw::validate(bytes).expect("valid jsonb");
    raw::document(bytes).expect("an object")
}

/// The same JSON with every number in the canonical form of Extended JSON, as clients of MongoDB send it. It means the same.
pub fn canonical(json: &Json) -> Json {
    match json {
        Json::Number(number) => match number.as_i64() {
            Some(integer) if i32::try_from(integer).is_ok() => json!({"$numberInt": integer.to_string()}),
            Some(integer) => json!({"$numberLong": integer.to_string()}),
            None => json!({"$numberDouble": number.to_string()}),
        },
        Json::Array(items) => items.iter().map(canonical).collect(),
        Json::Object(fields) if ext_json::is_document(fields) => {
            Json::Object(fields.iter().map(|(name, value)| (name.clone(), canonical(value))).collect())
        }
        other => other.clone(),
    }
}

/// jsonb as JSON.
pub fn read(bytes: &[u8]) -> Json {
    raw::validate(bytes).expect("valid jsonb");
    ext_json::to_json(&Value::from_raw(raw::root(bytes)))
}

/// Random scalars that often compare equal.
pub fn scalar() -> impl Strategy<Value = Json> + Clone {
    prop_oneof![
        4 => (-2..4i64).prop_map(Json::from),
        3 => proptest::sample::select(vec!["", "a", "A", "b"]).prop_map(Json::from),
        1 => Just(Json::Null),
        1 => any::<bool>().prop_map(Json::from),
        3 => proptest::sample::select(vec![
            json!(1.5),
            json!(2.0),
            json!({"$numberDouble": "NaN"}),
            json!({"$numberDouble": "-Infinity"}),
            json!({"$numberDecimal": "2.00"}),
            json!({"$numberDecimal": "NaN"}),
            json!({"$oid": "0123456789abcdef01234567"}),
            json!({"$date": "2020-01-01T00:00:00Z"}),
            json!({"$minKey": 1}),
            json!({"$maxKey": 1}),
        ]),
    ]
}

/// Random names that are often equal; one is an array position, too.
pub fn name() -> impl Strategy<Value = String> + Clone {
    proptest::sample::select(vec!["a", "b", "0", "1"]).prop_map(str::to_owned)
}

/// Values; with arrays if `arrays`.
pub fn any_value(scalars: impl Strategy<Value = Json> + 'static, arrays: bool) -> impl Strategy<Value = Json> {
    scalars.prop_recursive(4, 24, 3, move |inner| {
        let object = proptest::collection::vec((name(), inner.clone()), 0..4).prop_map(object);
        let array = proptest::collection::vec(inner, 0..4).prop_map(Json::from);
        if arrays { prop_oneof![1 => object, 1 => array].boxed() } else { object.boxed() }
    })
}

/// Documents; with arrays if `arrays`.
pub fn any_document(scalars: impl Strategy<Value = Json> + 'static, arrays: bool) -> impl Strategy<Value = Json> {
    proptest::collection::vec((name(), any_value(scalars, arrays)), 0..4).prop_map(object)
}

/// Dotted paths.
pub fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(name(), 1..4).prop_map(|names| names.join("."))
}

/// Random JSON of the parsers' keywords, well-formed only by accident.
pub fn nonsense() -> impl Strategy<Value = Json> {
    let own = [
        "", "a", "a.b", "a.0", "a..b", ".", "$", "a.$", "a.$[]", "_id", "_id.a", "$foo", "and", "base64", "subType",
        "t", "i", "\u{0}", "ä",
    ];
    let names: Vec<&str> = own.into_iter().chain(docshard_core::query::vocabulary::names()).collect();
    let names = proptest::sample::select(names).prop_map(str::to_owned);
    let leaf = prop_oneof![
        scalar(),
        Just(json!(i64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(u64::MAX)),
        Just(json!(1e308)),
        Just(json!("0123456789abcdef01234567")),
        Just(json!("\u{0}")),
        Just(json!({"$undefined": true})),
        Just(json!({"$regularExpression": {"pattern": "x", "options": ""}})),
    ];
    leaf.prop_recursive(5, 32, 4, move |inner| {
        prop_oneof![
            3 => proptest::collection::vec((names.clone(), inner.clone()), 0..4).prop_map(object),
            1 => proptest::collection::vec(inner, 0..4).prop_map(Json::from),
        ]
    })
}

/// An object of the fields; the last of equal names wins.
pub fn object(fields: Vec<(String, Json)>) -> Json {
    Json::Object(fields.into_iter().collect::<Map<_, _>>())
}

/// A number inside this number of nested objects with one field each.
pub fn nested(levels: usize, name: &str) -> Json {
    (0..levels).fold(json!(1), |inner, _| wrapped(name, inner))
}

/// `{name: inner}`, moved and not copied as by `json!`.
pub fn wrapped(name: &str, inner: Json) -> Json {
    object(vec![(name.to_owned(), inner)])
}
