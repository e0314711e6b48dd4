//! Names of fields that start with `$`: a document that a client of MongoDB sends either comes back byte for byte, or is refused. No value
//! becomes one of another type.

mod common;

use bson::{Bson, Document, doc};
use common::bson_documents::documents_with_dollars;
use common::pipelines::aggregate;
use docshard_core::error::{Error, Kind, Result};
use docshard_core::query::filter::Filter;
use docshard_core::query::specification::{Role, read_bson};
use docshard_core::query::update::Update;
use docshard_core::values::document::bson::read;
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::normalise::{check_stored, for_insert};
use docshard_core::values::document::{ext_json, raw, write};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// The reply's form of a stored document.
fn sent_back(stored: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (name, value) in raw::document(stored).unwrap().in_order() {
        writer.field(name, Item::Stored(value)).unwrap();
    }
    writer.finish().unwrap()
}

fn stored(bytes: &[u8]) -> Result<Vec<u8>> {
    let stored = for_insert(raw::document(bytes).unwrap(), || [7; 12])?.bytes.into_owned();
    check_stored(&stored).unwrap();
    Ok(stored)
}

/// Inserts a document as the command `insert` does.
fn inserted(document: &Document) -> Result<Vec<u8>> {
    stored(&write::value(&read::value(&document.to_vec().unwrap())?)?)
}

/// The update of a command `update`.
fn update_of(update: Document) -> Result<Json> {
    let command = doc! { "update": "c", "updates": [{ "q": {}, "u": update }] };
    Ok(read_bson(&command.to_vec().unwrap(), Role::Request, None)?.0["updates"][0]["u"].take())
}

fn is_refusal(error: &Error) -> bool {
    // A random document may name a field twice.
    matches!(error.kind, Kind::DollarPrefixedFieldName | Kind::FailedToParse | Kind::Location(40413))
}

fn with_id(document: Document) -> Document {
    let mut with_id = doc! { "_id": 1 };
    with_id.extend(document.into_iter().filter(|(name, _)| name != "_id"));
    with_id
}

fn has_reserved(value: &Bson) -> bool {
    match value {
        Bson::Document(fields) => fields.iter().any(|(name, value)| ext_json::is_reserved(name) || has_reserved(value)),
        Bson::Array(items) => items.iter().any(has_reserved),
        Bson::JavaScriptCodeWithScope(code) => {
            code.scope.iter().any(|(name, value)| ext_json::is_reserved(name) || has_reserved(value))
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn what_is_inserted_comes_back(document in documents_with_dollars()) {
        let _keeping = Keeping::order();
        let document = with_id(document);
        match inserted(&document) {
            Ok(stored) => prop_assert_eq!(sent_back(&stored), document.to_vec().unwrap()),
            Err(error) => prop_assert!(is_refusal(&error) && has_reserved(&Bson::Document(document)), "{error:?}"),
        }
    }

    #[test]
    fn what_is_updated_comes_back(document in documents_with_dollars()) {
        let _keeping = Keeping::order();
        let before = inserted(&doc! { "_id": 1 }).unwrap();
        let before = raw::document(&before).unwrap();
        let expected = doc! { "_id": 1, "v": document.clone() };
        let refused = has_reserved(&Bson::Document(document.clone()));
        let check = |after: Result<Option<Vec<u8>>>| {
            match after {
                Ok(after) => prop_assert_eq!(sent_back(&after.unwrap()), expected.to_vec().unwrap()),
                Err(error) => prop_assert!(is_refusal(&error) && refused, "{error:?}"),
            }
            Ok(())
        };
        check(update_of(doc! { "$set": { "v": document.clone() } }).and_then(|update| Update::parse(&update)?.apply(before, &[])))?;
        check(update_of(doc! { "v": document.clone() }).and_then(|update| Update::parse_replacement(&update)?.apply(before, &[])))?;
        let command = doc! { "update": "c", "updates": [{ "q": {}, "u": [{ "$set": { "v": { "$literal": document } } }] }] };
        check(read_bson(&command.to_vec().unwrap(), Role::Request, None).and_then(|(json, _)| {
            Update::parse(&json["updates"][0]["u"])?.apply(before, &[])
        }))?;
    }

    #[test]
    fn what_is_stored_equals_itself(document in documents_with_dollars()) {
        let _keeping = Keeping::order();
        let Ok(stored) = inserted(&doc! { "_id": 1, "v": document.clone() }) else { return Ok(()) };
        let stored = raw::document(&stored).unwrap();
        let command = doc! { "find": "c", "filter": { "v": { "$eq": document } } };
        let filter = read_bson(&command.to_vec().unwrap(), Role::Request, None).unwrap().0["filter"].take();
        prop_assert!(Filter::parse(&filter).unwrap().matches(stored));
    }
}

#[test]
fn a_document_that_looks_like_a_value_is_refused() {
    for value in [
        doc! { "$date": "2020-01-01T00:00:00Z" },
        doc! { "$oid": "0123456789abcdef01234567" },
        doc! { "$regex": "a" },
        doc! { "$regex": "a", "$options": "i" },
        doc! { "$code": "x", "$scope": {} },
        doc! { "a": [{ "$numberLong": "5" }] },
    ] {
        let error = inserted(&doc! { "_id": 1, "v": value.clone() }).unwrap_err();
        assert!(is_refusal(&error) && error.message.contains("Extended JSON"), "{value}: {error:?}");
        assert!(update_of(doc! { "$set": { "v": value.clone() } }).is_err(), "{value}");
        assert!(update_of(doc! { "v": value.clone() }).is_err(), "{value}");
    }
    // Here `$regex` is an operator.
    let command = doc! { "update": "c", "updates": [{ "q": { "a": { "$regex": "x" } }, "u": { "$pull": { "a": { "$regex": "x" } } } }] };
    read_bson(&command.to_vec().unwrap(), Role::Request, None).unwrap();
    let command = doc! { "aggregate": "c", "pipeline": [{ "$match": { "a": { "$not": { "$regex": "x" } } } }] };
    read_bson(&command.to_vec().unwrap(), Role::Request, None).unwrap();
}

#[test]
fn expressions_read_and_make_such_names() {
    let documents = json!([{"_id": 1, "$a": {"$b": 1}, "l": [{"k": "$x", "v": 2}], "c.d": 3}]);
    let value = |expression: Json| {
        let made = aggregate(&json!([{"$project": {"_id": 0, "v": expression}}]), &documents)?;
        Ok::<_, Error>(made[0]["v"].clone())
    };
    let dollar = json!({"$getField": {"$literal": "$a"}});
    for (expression, expected) in [
        (dollar.clone(), json!({"$b": 1})),
        (json!({"$getField": {"field": {"$literal": "$b"}, "input": dollar}}), json!(1)),
        (json!({"$getField": "c.d"}), json!(3)),
        (json!({"$objectToArray": dollar}), json!([{"k": "$b", "v": 1}])),
        (json!({"$arrayToObject": "$l"}), json!({"$x": 2})),
        (json!({"$mergeObjects": [dollar, {"$arrayToObject": "$l"}]}), json!({"$b": 1, "$x": 2})),
        (json!({"$unsetField": {"field": {"$literal": "$b"}, "input": dollar}}), json!({})),
        (json!({"$setField": {"field": {"$literal": "$b"}, "input": dollar, "value": 5}}), json!({"$b": 5})),
        (json!({"$type": dollar}), json!("object")),
        (json!({"$eq": [dollar, {"$literal": {"$b": 1}}]}), json!(true)),
        (json!({"$literal": {"$b": 1}}), json!({"$b": 1})),
    ] {
        assert_eq!(value(expression.clone()).unwrap_or_else(|error| panic!("{expression}: {error:?}")), expected);
    }
    for expression in [
        json!({"$arrayToObject": {"$literal": [["$date", "2020-01-01T00:00:00Z"]]}}),
        json!({"$arrayToObject": {"$literal": [{"k": "$regex", "v": "a"}]}}),
        json!({"$setField": {"field": {"$literal": "$oid"}, "input": {}, "value": "0123456789abcdef01234567"}}),
    ] {
        assert_eq!(value(expression.clone()).unwrap_err().kind, Kind::DollarPrefixedFieldName, "{expression}");
    }
    let grouped = aggregate(&json!([{"$group": {"_id": dollar, "all": {"$push": "$$ROOT"}}}]), &documents).unwrap();
    assert_eq!(grouped, [json!({"_id": {"$b": 1}, "all": documents})]);
}

#[test]
fn filters_find_such_names() {
    let document = common::bytes(&json!({"_id": 1, "a": {"$b": 1, "xyz": 2}, "l": [{"$b": 1}], "$c": 1}));
    let document = raw::document(&document).unwrap();
    for (filter, expected) in [
        (json!({"a.$b": 1}), true),
        (json!({"l.$b": 1}), true),
        (json!({"a.$b": {"$gt": 1}}), false),
        (json!({"a": {"$eq": {"$b": 1, "xyz": 2}}}), true),
        (json!({"a": {"xyz": 2, "$b": 1}}), true),
        (json!({"l": {"$eq": {"$b": 1}}}), true),
        (json!({"l": {"$elemMatch": {"$eq": {"$b": 1}}}}), true),
        (json!({"$expr": {"$eq": [{"$getField": {"$literal": "$c"}}, 1]}}), true),
        (json!({"$jsonSchema": {"properties": {"$c": {"bsonType": "string"}}}}), false),
        (json!({"$jsonSchema": {"required": ["$c"]}}), true),
    ] {
        assert_eq!(Filter::parse(&filter).unwrap().matches(document), expected, "{filter}");
    }
    for (filter, message) in [
        (json!({"a": {"$b": 1}}), "unknown operator: $b"),
        (json!({"a": {"b": 1, "$gt": 1}}), "unknown operator: $gt"),
        (json!({"$c": 1}), "unknown top level operator: $c"),
        (json!({"a": {"$in": [{"$b": 1}]}}), "cannot nest $ under $in"),
    ] {
        let error = Filter::parse(&filter).unwrap_err();
        assert!(error.message.contains(message), "{filter}: {error:?}");
    }
}
