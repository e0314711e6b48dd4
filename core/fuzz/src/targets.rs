//! The fuzz targets. No input may cause a panic; each target also asserts properties of its results.

use super::source::Source;
use docshard_core::cluster::targeting;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{IndexKeys, unique};
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::query::update::Update;
use docshard_core::values::document::normalise::{check_stored, for_insert};
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use docshard_core::values::document::{ext_json, write as writer};
use docshard_core::values::key::KeyPattern;
use docshard_core::values::key::encode::{decode, encode_value};
use docshard_core::values::order::compare_values;
use serde_json::{Value as Json, json};

/// Bytes read as jsonb: reading never fails, and a copy of accepted bytes is identical.
pub fn jsonb(data: &[u8]) {
    let read = Value::from_raw(raw::root(data));
    let filter = json!({"$or": [{"a.b": {"$gt": 1}}, {"a": {"$elemMatch": {"$in": ["x", 2]}}}, {"0": null}]});
    let filter = Filter::parse(&filter).expect("a filter");
    if let Some(document) = raw::document(data) {
        let _ = filter.matches(document);
        let _ = document.get("a").map(Value::from_raw);
    }
    if raw::validate(data).is_ok() {
        if let Some(document) = raw::document(data) {
            for (name, value) in document.iter() {
                let found = document.get(name).expect("every field is found by its name");
                assert_eq!(Value::from_raw(found), Value::from_raw(value), "{name}");
            }
        }
        if let Ok(copy) = write::document(&Part::Raw(raw::root(data))) {
            assert_eq!(copy, data, "a copy is the same");
        }
        let _ = check_stored(data);
        if let Ok(written) = write::value(&read) {
            raw::validate(&written).expect("written jsonb is valid");
            assert_eq!(Value::from_raw(raw::root(&written)), read);
        }
    }
}

/// JSON is converted to its stored form and back.
pub fn documents(data: &[u8]) {
    let json = Source(data).object(5);
    let Ok(value) = ext_json::from_json(&json) else { return };
    let printed = ext_json::to_json(&value);
    assert_eq!(ext_json::from_json(&printed).expect("the printed text is well-formed"), value, "{printed}");
    let Ok(bytes) = writer::value(&value) else { return };
    raw::validate(&bytes).expect("written jsonb is valid");
    let Some(document) = raw::document(&bytes) else { return };
    if let Ok(stored) = for_insert(document, || [7; 12]) {
        let stored = stored.bytes.to_vec();
        check_stored(&stored).expect("a document that can be inserted can be stored");
        let again =
            for_insert(raw::document(&stored).expect("a document"), || [8; 12]).expect("it may be inserted again");
        assert_eq!(again.bytes.to_vec(), stored, "a stored document is in stored form");
    }
}

/// Filters over documents: the shard of a matching document is always among the targets.
pub fn filters(data: &[u8]) {
    let mut source = Source(data);
    let json = source.document();
    let Some(bytes) = bytes_of(&json) else { return };
    let document = document_of(&bytes);
    let filter_json = source.object(5);
    let Ok(filter) = Filter::parse(&filter_json) else { return };
    let _ = (filter.paths(), filter.is_empty(), filter.upsert_fields(), filter.equality_of("a"));
    if !matches(&filter, document) {
        return;
    }
    for pattern in
        [json!({"a": 1}), json!({"a": "hashed"}), json!({"_id": "hashed"}), json!({"a": 1, "b": 1}), json!({"a.b": 1})]
    {
        let pattern = KeyPattern::parse(&pattern).expect("a pattern");
        if let Ok(key) = pattern.key_of(document) {
            let ranges = targeting::key_ranges(&pattern, &filter);
            assert!(ranges.contains(&key), "{filter_json} matches {json}, whose key is not in the ranges");
        }
    }
}

/// Updates of documents: the result can be stored, and `_id` does not change.
pub fn updates(data: &[u8]) {
    let mut source = Source(data);
    let Some(bytes) = bytes_of(&source.document()) else { return };
    let document = document_of(&bytes);
    let update = source.object(5);
    if let Ok(replacement) = Update::parse_replacement(&update) {
        check_update(&replacement, document);
    }
    let filters = [source.object(3)];
    let parsed = Update::parse(&update).or_else(|_| Update::parse_with_array_filters(&update, &filters));
    let Ok(update) = parsed else { return };
    check_update(&update, document);
    if let Ok(filter) = Filter::parse(&source.object(3))
        && let Ok(inserted) = update.upsert(&filter)
    {
        raw::validate(&inserted).expect("an upserted document is valid");
    }
}

fn check_update(update: &Update, document: RawObject<'_>) {
    if let Ok(Some(bytes)) = update.apply(document, &["a".to_owned()]) {
        raw::validate(&bytes).expect("an updated document is valid");
        let after = document_of(&bytes);
        let id = |document: RawObject<'_>| document.get("_id").map(Value::from_raw);
        assert_eq!(id(after), id(document), "an update keeps the _id");
        let a = |document: RawObject<'_>| document.get("a").map_or(Value::Null, Value::from_raw);
        assert_eq!(a(after), a(document), "an update keeps immutable fields");
    }
}

/// Projections, sorts, index keys and shard keys.
pub fn specifications(data: &[u8]) {
    let mut source = Source(data);
    let Some(bytes) = bytes_of(&source.document()) else { return };
    let document = document_of(&bytes);
    let json = source.object(4);
    if let Ok(projection) = Projection::parse(&json) {
        project(&projection, document);
    }
    if let Ok(sort) = Sort::parse(&json) {
        let _ = sort.key_of(document);
    }
    if let Ok(keys) = IndexKeys::parse(&json) {
        let _ = (keys.default_name(), keys.key(document, 0));
        if keys.wildcard.is_none()
            && let Ok(found) = keys.unique_keys(document)
        {
            assert!(
                unique::unpack(&unique::pack(&found)).is_some_and(|read| read == found),
                "keys are packed and read"
            );
        }
    }
    if let Ok(pattern) = KeyPattern::parse(&json) {
        if let Ok(key) = pattern.key_of(document) {
            let _ = pattern.decode(&key);
            let _ = pattern.bound_to_json(&key);
        }
        let _ = pattern.bound_from_json(&source.object(2));
    }
}

/// Keys: decoding any bytes does not panic, and encodings compare as their values do.
pub fn keys(data: &[u8]) {
    if let Ok((value, _)) = decode(data) {
        let mut bytes = Vec::new();
        encode_value(&value, &mut bytes);
        let (again, rest) = decode(&bytes).expect("an encoded key decodes");
        assert!(rest.is_empty());
        assert_eq!(again, value);
    }
    let pattern = KeyPattern::parse(&json!({"a": 1, "b": "hashed"})).expect("a pattern");
    let _ = (pattern.decode(data), pattern.bound_to_json(data));
    let mut source = Source(data);
    let values = [source.json(4), source.json(4)].map(|json| ext_json::from_json(&json));
    let [Ok(a), Ok(b)] = values else { return };
    let encoded = [&a, &b].map(|value| {
        let mut bytes = Vec::new();
        encode_value(value, &mut bytes);
        bytes
    });
    assert_eq!(encoded[0].cmp(&encoded[1]), compare_values(&a, &b), "{a:?} and {b:?}");
}

fn matches(filter: &Filter, document: RawObject<'_>) -> bool {
    filter.matches(document)
}

fn project(projection: &Projection, document: RawObject<'_>) {
    if let Ok(bytes) = projection.apply(document) {
        raw::validate(&bytes).expect("a projected document is valid");
    }
}

/// A document's jsonb, if it can be stored.
fn bytes_of(json: &Json) -> Option<Vec<u8>> {
    writer::value(&ext_json::from_json(json).ok()?).ok()
}

fn document_of(bytes: &[u8]) -> RawObject<'_> {
    match raw::root(bytes) {
        RawValue::Object(object) => object,
        _ => panic!("a document is an object"),
    }
}
