//! Updates: their results, their errors, and the documents that upserts insert.

mod common;

use common::*;
use docshard_core::error::{Kind, Result};
use docshard_core::query::filter::Filter;
use docshard_core::query::update::Update;
use docshard_core::query::vocabulary;
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

fn apply(update: &Json, to: &Json, immutable: &[&str]) -> Result<Option<Json>> {
    let update = match update.as_object().and_then(|fields| fields.keys().next()) {
        Some(name) if name.starts_with('$') => Update::parse(update)?,
        _ => Update::parse_replacement(update)?,
    };
    let immutable: Vec<String> = immutable.iter().map(|path| (*path).to_owned()).collect();
    Ok(update.apply(document(&bytes(to)), &immutable)?.map(|bytes| read(&bytes)))
}

/// Each case: an update, a document, the changed document (None: no change).
fn check(cases: Vec<(Json, Json, Option<Json>)>) {
    for (update, before, after) in cases {
        let result = apply(&update, &before, &[]).unwrap_or_else(|error| panic!("{update} on {before}: {error}"));
        assert_eq!(result, after, "{update} on {before}");
    }
}

fn check_refusals(cases: Vec<(Json, Json, Kind, &str)>) {
    for (update, before, kind, message) in cases {
        let error = apply(&update, &before, &[]).expect_err(&update.to_string());
        assert!(
            error.kind == kind && error.message.contains(message),
            "{update} on {before}: {:?} {error}",
            error.kind
        );
    }
}

#[test]
fn set() {
    check(vec![
        (json!({"$set": {"a": 2}}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "a": 2}))),
        (json!({"$set": {"b": {"c": [1]}}}), json!({"_id": 1}), Some(json!({"_id": 1, "b": {"c": [1]}}))),
        (json!({"$set": {"a.b": 2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"b": 2}}))),
        (
            json!({"$set": {"a.b": 2}}),
            json!({"_id": 1, "a": {"b": 1, "c": 1}}),
            Some(json!({"_id": 1, "a": {"b": 2, "c": 1}})),
        ),
        (json!({"$set": {"a.0": 2}}), json!({"_id": 1, "a": [1, 3]}), Some(json!({"_id": 1, "a": [2, 3]}))),
        (json!({"$set": {"a.0": 2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"0": 2}}))),
        (json!({"$set": {"a.3": 2}}), json!({"_id": 1, "a": [1]}), Some(json!({"_id": 1, "a": [1, null, null, 2]}))),
        (json!({"$set": {"a.1.b": 2}}), json!({"_id": 1, "a": [1]}), Some(json!({"_id": 1, "a": [1, {"b": 2}]}))),
        (
            json!({"$set": {"a.3": 3, "a.2": 2, "a.10": 10}}),
            json!({"_id": 1, "a": []}),
            Some(json!({"_id": 1, "a": [null, null, 2, 3, null, null, null, null, null, null, 10]})),
        ),
        (
            json!({"$set": {"a": {"$numberLong": "5"}, "b": {"$date": {"$numberLong": "0"}}}}),
            json!({"_id": 1}),
            Some(json!({"_id": 1, "a": 5, "b": {"$date": "1970-01-01T00:00:00Z"}})),
        ),
        (
            json!({"$set": {"a.$id": 2}}),
            json!({"_id": 1, "a": {"$ref": "c"}}),
            Some(json!({"_id": 1, "a": {"$ref": "c", "$id": 2}})),
        ),
    ]);
}

/// In an existing document only a pipeline sets a field at the root whose name starts with `$`; such names are allowed inside.
#[test]
fn names_that_start_with_a_dollar() {
    let before = json!({"_id": 1, "$a": {"b": 1, "c": [1, 2]}, "$l": [1, 2]});
    let after = |path: &str, value: Json| {
        let mut after = before.clone();
        *after.pointer_mut(path).unwrap() = value;
        Some(after)
    };
    check(vec![
        (json!({"$set": {"a.$b": 2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"$b": 2}}))),
        (json!({"$set": {"a.$[b": 2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"$[b": 2}}))),
        (
            json!({"$set": {"a": {"$b": [{"$c": 1}]}}}),
            json!({"_id": 1}),
            Some(json!({"_id": 1, "a": {"$b": [{"$c": 1}]}})),
        ),
        (json!({"$push": {"a": {"$b": 1}}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": [{"$b": 1}]}))),
        (json!({"$rename": {"b": "a.$b"}}), json!({"_id": 1, "b": 2}), Some(json!({"_id": 1, "a": {"$b": 2}}))),
        (json!({"a": {"$b": 1}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"$b": 1}}))),
        (json!({"$set": {"$a.b": 2}}), before.clone(), after("/$a/b", json!(2))),
        (json!({"$inc": {"$a.c.0": 2}}), before.clone(), after("/$a/c", json!([3, 2]))),
        (json!({"$pull": {"$l": 1}}), before.clone(), after("/$l", json!([2]))),
        (json!({"$pop": {"$l": 1}}), before.clone(), after("/$l", json!([1]))),
        (json!({"$unset": {"$a": 1, "$l": 1, "$x": 1}}), before.clone(), Some(json!({"_id": 1}))),
        (json!({"$rename": {"$l": "l"}, "$unset": {"$a": 1}}), before.clone(), Some(json!({"_id": 1, "l": [1, 2]}))),
        (json!({"$setOnInsert": {"$x": 1}}), before.clone(), None),
        (json!({"$set": {"$l": [1, 2]}}), before.clone(), None),
    ]);
    for update in [
        json!({"$set": {"$x": 1}}),
        json!({"$set": {"$l": 1}}),
        json!({"$set": {"$ref": "c", "$id": 1}}),
        json!({"$inc": {"$x": 1}}),
        json!({"$push": {"$l": 1}}),
        json!({"$rename": {"$a": "$b"}}),
        json!({"$set": {"$x.y": 1}}),
        json!({"_id": 1, "$a": 1}),
    ] {
        let error = apply(&update, &before, &[]).expect_err(&update.to_string());
        assert_eq!(error.kind, Kind::DollarPrefixedFieldName, "{update}");
    }
    for (update, filter, expected) in [
        (json!({"$set": {"$x": 1}}), json!({"_id": 1}), json!({"_id": 1, "$x": 1})),
        (json!({"$setOnInsert": {"$x.y": 1}}), json!({"_id": 1}), json!({"_id": 1, "$x": {"y": 1}})),
        (json!({"$inc": {"n": 1}}), json!({"_id": 1, "a": {"$eq": {"$b": 1}}}), {
            json!({"_id": 1, "a": {"$b": 1}, "n": 1})
        }),
    ] {
        let filter = Filter::parse(&filter).unwrap();
        assert_eq!(read(&Update::parse(&update).unwrap().upsert(&filter).unwrap()), expected, "{update}");
    }
    let replacement = Update::parse_replacement(&json!({"a": 1, "$b": 1})).unwrap();
    let inserted = replacement.upsert(&Filter::parse(&json!({"_id": 1})).unwrap()).unwrap();
    assert_eq!(read(&inserted), json!({"_id": 1, "a": 1, "$b": 1}));
    let pipeline = |stages: Json| {
        let update = Update::parse(&stages)?;
        Ok::<_, docshard_core::error::Error>(read(&update.apply(document(&bytes(&before)), &[])?.unwrap()))
    };
    let replaced = pipeline(json!([{"$replaceWith": {"$literal": {"_id": 1, "$x": {"$y": 1}}}}]));
    assert_eq!(replaced.unwrap(), json!({"_id": 1, "$x": {"$y": 1}}));
    let set = json!({"$setField": {"field": {"$literal": "$a"}, "input": "$$ROOT", "value": 7}});
    assert_eq!(pipeline(json!([{"$replaceWith": set}])).unwrap()["$a"], json!(7));
    let error = pipeline(json!([{"$replaceWith": {"$literal": {"_id": {"$x": 1}}}}])).unwrap_err();
    assert_eq!(error.kind, Kind::ImmutableField);
}

#[test]
fn nothing_changes() {
    check(vec![
        (json!({"$set": {"a": 1}}), json!({"_id": 1, "a": 1}), None),
        (json!({"$set": {"a.b": [1, {"c": 2}]}}), json!({"_id": 1, "a": {"b": [1, {"c": 2}]}}), None),
        (json!({"$set": {}}), json!({"_id": 1}), None),
        (json!({"$inc": {"a": 0}}), json!({"_id": 1, "a": 1}), None),
        (json!({"$unset": {"b": ""}}), json!({"_id": 1, "a": 1}), None),
        (json!({"$setOnInsert": {"a": 2}}), json!({"_id": 1, "a": 1}), None),
        (json!({"$set": {"_id": 1}}), json!({"_id": 1}), None),
        (json!({"a": 1}), json!({"_id": 1, "a": 1}), None),
        // An equal number of another type is a change.
        (json!({"$set": {"a": 1.0}}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "a": 1.0}))),
    ]);
}

#[test]
fn unset() {
    check(vec![
        (json!({"$unset": {"a": 1}}), json!({"_id": 1, "a": 1, "b": 2}), Some(json!({"_id": 1, "b": 2}))),
        (json!({"$unset": {"a.b": 1}}), json!({"_id": 1, "a": {"b": 1}}), Some(json!({"_id": 1, "a": {}}))),
        (json!({"$unset": {"a.0": 1}}), json!({"_id": 1, "a": [1, 2]}), Some(json!({"_id": 1, "a": [null, 2]}))),
        (json!({"$unset": {"a.9": 1}}), json!({"_id": 1, "a": [1, 2]}), None),
        (json!({"$unset": {"a.b": 1}}), json!({"_id": 1, "a": [1, 2]}), None),
        (json!({"$unset": {"a.b.c": 1}}), json!({"_id": 1, "a": 5}), None),
    ]);
}

#[test]
fn increment() {
    check(vec![
        (json!({"$inc": {"a": 2}}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "a": 3}))),
        (json!({"$inc": {"a": 2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": 2}))),
        (json!({"$inc": {"a.b": -2}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": {"b": -2}}))),
        (json!({"$inc": {"a.1": 1}}), json!({"_id": 1, "a": [0, 1]}), Some(json!({"_id": 1, "a": [0, 2]}))),
        (json!({"$inc": {"a": 1.5}}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "a": 2.5}))),
        (json!({"$inc": {"a": 1}}), json!({"_id": 1, "a": i32::MAX}), Some(json!({"_id": 1, "a": 2_147_483_648_i64}))),
        (
            json!({"$inc": {"a": 1}}),
            json!({"_id": 1, "a": {"$numberDecimal": "0.1"}}),
            Some(json!({"_id": 1, "a": {"$numberDecimal": "1.1"}})),
        ),
    ]);
    check_refusals(vec![
        (
            json!({"$inc": {"a": "x"}}),
            json!({}),
            Kind::TypeMismatch,
            r#"Cannot increment with non-numeric argument: {a: "x"}"#,
        ),
        (
            json!({"$inc": {"a.b": 1}}),
            json!({"_id": 1, "a": {"b": "x"}}),
            Kind::TypeMismatch,
            "Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 'b' of non-numeric type string",
        ),
        (json!({"$inc": {"a": 1}}), json!({"_id": 1, "a": null}), Kind::TypeMismatch, "of non-numeric type null"),
        (
            json!({"$inc": {"a": 1}}),
            json!({"_id": 1, "a": i64::MAX}),
            Kind::BadValue,
            "Failed to apply $inc operations to current value (9223372036854775807) for document {_id: 1}",
        ),
    ]);
}

#[test]
fn replacement() {
    check(vec![
        (json!({"b": 1}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "b": 1}))),
        (json!({"_id": 1, "b": 1}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1, "b": 1}))),
        (json!({}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1}))),
        // An equal `_id` of another type does not replace the stored one.
        (json!({"_id": 1.0}), json!({"_id": 1, "a": 1}), Some(json!({"_id": 1}))),
        (json!({"a": {"$numberInt": "5"}}), json!({"_id": 1}), Some(json!({"_id": 1, "a": 5}))),
    ]);
    check_refusals(vec![
        (json!({"_id": 2}), json!({"_id": 1}), Kind::ImmutableField, "altered to _id: 2"),
        (json!({"a": {"$regex": 1}}), json!({}), Kind::DollarPrefixedFieldName, "'$regex'"),
        (json!({"a": 1, "$b": 1}), json!({}), Kind::DollarPrefixedFieldName, "'$b'"),
        (json!([]), json!({}), Kind::FailedToParse, "must be an object"),
    ]);
    let error = Update::parse_replacement(&json!({"$set": {"a": 1}})).unwrap_err();
    assert_eq!(error.kind, Kind::DollarPrefixedFieldName);
    assert!(Update::parse_replacement(&json!({})).unwrap().is_replacement());
    assert!(!Update::parse(&json!({"$set": {}})).unwrap().is_replacement());
}

#[test]
fn paths_that_lead_nowhere() {
    let set = |path: &str| json!({"$set": {path: 1}});
    check_refusals(vec![
        (set("a.b"), json!({"a": 1}), Kind::PathNotViable, "Cannot create field 'b' in element {a: 1}"),
        (
            set("x.a.b.c"),
            json!({"x": {"a": "s"}}),
            Kind::PathNotViable,
            r#"Cannot create field 'b' in element {a: "s"}"#,
        ),
        (set("a.b"), json!({"a": null}), Kind::PathNotViable, "Cannot create field 'b' in element {a: null}"),
        (set("a.b"), json!({"a": [{"b": 1}]}), Kind::PathNotViable, "Cannot create field 'b' in element {a: [{b: 1}]}"),
        (set("a.+1"), json!({"a": [1]}), Kind::PathNotViable, "Cannot create field '+1'"),
        (
            set("a.b"),
            json!({"a": {"$oid": "0123456789abcdef01234567"}}),
            Kind::PathNotViable,
            "Cannot create field 'b'",
        ),
        (set("a.1500002"), json!({"a": [1]}), Kind::CannotBackfillArray, "1500000"),
        (set("a.99999999999999999999"), json!({"a": [1]}), Kind::PathNotViable, "Cannot create"),
        (set("a.b.$[].c"), json!({}), Kind::BadValue, "must exist in the document in order to apply array updates"),
        (
            set("a.$"),
            json!({"a": [1]}),
            Kind::BadValue,
            "The positional operator did not find the match needed from the query.",
        ),
        (
            json!({"$set": {"$[].a": 1}}),
            json!({}),
            Kind::BadValue,
            "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '$[].a'",
        ),
        (
            set("$.a"),
            json!({}),
            Kind::BadValue,
            "Cannot have positional (i.e. '$') element in the first position in path '$.a'",
        ),
        (set("a.$.b.$"), json!({}), Kind::BadValue, "Too many positional (i.e. '$') elements found in path 'a.$.b.$'"),
        (set("$a.b"), json!({}), Kind::DollarPrefixedFieldName, "'$a' in '$a.b'"),
        (set(""), json!({}), Kind::EmptyFieldName, "An empty update path is not valid."),
        (set("a."), json!({}), Kind::EmptyFieldName, "'a.' contains an empty field name"),
        (set(".a"), json!({}), Kind::EmptyFieldName, "'.a' contains an empty field name"),
        (set(&["a"; 101].join(".")), json!({}), Kind::DocumentTooDeep, "deeper than 100"),
        (json!({"$set": {"a": "\u{0}"}}), json!({}), Kind::BadValue, ""),
        (json!({"$set": {"a\u{0}": 1}}), json!({}), Kind::BadValue, ""),
        (set("a.$date"), json!({}), Kind::DollarPrefixedFieldName, "'$date'"),
        (set("a.$regex.b"), json!({}), Kind::DollarPrefixedFieldName, "'$regex'"),
        (json!({"$rename": {"b": "a.$oid"}}), json!({"b": 1}), Kind::DollarPrefixedFieldName, "'$oid'"),
        (json!({"$set": {"a": {"b": [{"$regex": {}}]}}}), json!({}), Kind::DollarPrefixedFieldName, "'$regex'"),
    ]);
    // A modifier without an effect does not create its path, so an impossible path is no error.
    check(vec![(json!({"$setOnInsert": {"a.b": 1}}), json!({"a": 1}), None)]);
}

#[test]
fn limits_of_a_document() {
    let set = |value| wrapped("$set", wrapped("a", value));
    check_refusals(vec![
        (set(nested(100, "a")), json!({}), Kind::DocumentTooDeep, ""),
        (set(nested(1000, "a")), json!({}), Kind::DocumentTooDeep, ""),
        (
            json!({"$set": {"b": "x".repeat(9_000_000)}}),
            json!({"a": "x".repeat(9_000_000)}),
            Kind::BSONObjectTooLarge,
            "",
        ),
        (
            json!({"$set": {"a.1500000": 1, "a.3000000": 1, "a.4500000": 1}}),
            json!({"a": []}),
            Kind::CannotBackfillArray,
            "",
        ),
    ]);
    let fits = set(nested(99, "a"));
    assert!(apply(&fits, &json!({}), &[]).unwrap().is_some());
}

#[test]
fn conflicts() {
    for (update, message) in [
        (json!({"$set": {"a": 1, "a.b": 2}}), "Updating the path 'a.b' would create a conflict at 'a'"),
        (json!({"$set": {"a.b": 2, "a": 1}}), "Updating the path 'a' would create a conflict at 'a'"),
        (json!({"$set": {"a.b": 2}, "$inc": {"a.b": 1}}), "Updating the path 'a.b' would create a conflict at 'a.b'"),
        (
            json!({"$unset": {"a.b.c": 1}, "$set": {"a.b": 1}}),
            "Updating the path 'a.b' would create a conflict at 'a.b'",
        ),
        (json!({"$set": {"a": 1}, "$setOnInsert": {"a": 1}}), "Updating the path 'a' would create a conflict at 'a'"),
    ] {
        let error = Update::parse(&update).expect_err(&update.to_string());
        assert_eq!((error.kind, error.message.as_str()), (Kind::ConflictingUpdateOperators, message), "{update}");
    }
    assert!(Update::parse(&json!({"$set": {"a.b": 1, "a.c": 1, "ab": 1}})).is_ok());
}

#[test]
fn malformed_updates() {
    for (update, kind, message) in [
        (
            json!({"$foo": {"a": 1}}),
            Kind::FailedToParse,
            "Unknown modifier: $foo. Expected a valid update modifier or pipeline-style update specified as an array",
        ),
        (json!({"a": 1}), Kind::FailedToParse, "Unknown modifier: a."),
        (json!({}), Kind::FailedToParse, "has none"),
        (json!("x"), Kind::FailedToParse, "must be either an object or an array"),
        (
            json!({"$set": 5}),
            Kind::FailedToParse,
            "Modifiers operate on fields but we found type int instead. For example: {$mod: {<field>: ...}} not {$set: 5}",
        ),
    ] {
        let error = Update::parse(&update).expect_err(&update.to_string());
        assert!(error.kind == kind && error.message.contains(message), "{update}: {:?} {error}", error.kind);
    }
}

#[test]
fn fixed_paths() {
    let before = json!({"_id": 1, "k": {"x": 1}, "a": 1});
    let keys = ["k.x", "m"];
    for (update, path) in [
        (json!({"$set": {"_id": 2}}), "_id"),
        (json!({"$set": {"_id.a": 2}}), ""),
        (json!({"$unset": {"_id": 1}}), "_id"),
        (json!({"$set": {"k.x": 2}}), "k.x"),
        (json!({"$unset": {"k": 1}}), "k.x"),
        (json!({"$set": {"k": [{"x": 1}]}}), "k.x"),
        (json!({"$set": {"m": 0}}), "m"),
        (json!({"$set": {"m": []}}), "m"),
        (json!({"k": {"x": 2}}), "k.x"),
        (json!({"a": 5}), "k.x"),
    ] {
        let error = apply(&update, &before, &keys).expect_err(&update.to_string());
        match path {
            "" => assert_eq!(error.kind, Kind::PathNotViable),
            "_id" => assert!(error.kind == Kind::ImmutableField && error.message.contains("'_id'"), "{error}"),
            _ => assert_eq!(error.kind, Kind::InvalidOptions, "{update}: {error}"),
        }
    }
    // An equal value is no change, and a missing field has the same key as null.
    for update in [
        json!({"$set": {"k": {"x": 1.0, "y": 2}}}),
        json!({"$set": {"m": null}}),
        json!({"k": {"x": 1}}),
        json!({"$inc": {"a": 1}}),
    ] {
        assert!(apply(&update, &before, &keys).unwrap_or_else(|error| panic!("{update}: {error}")).is_some());
    }
    assert_eq!(
        apply(&json!({"$unset": {"_id": 1}}), &json!({"_id": null}), &[]).unwrap_err().kind,
        Kind::ImmutableField
    );
}

fn upsert(filter: &Json, update: &Json) -> Result<Json> {
    let filter = Filter::parse(filter).unwrap();
    let update = match update.as_object().unwrap().keys().next() {
        Some(name) if name.starts_with('$') => Update::parse(update)?,
        _ => Update::parse_replacement(update)?,
    };
    Ok(read(&update.upsert(&filter)?))
}

#[test]
fn upserts() {
    for (filter, update, expected) in [
        (json!({"_id": 1, "a": {"$gt": 1}}), json!({"$set": {"b": 2}}), json!({"_id": 1, "b": 2})),
        (json!({"a.b": 1, "c": {"$in": [3]}}), json!({"$inc": {"a.b": 1}}), json!({"a": {"b": 2}, "c": 3})),
        (json!({"a": 1}), json!({"$setOnInsert": {"b": 2}}), json!({"a": 1, "b": 2})),
        (json!({"a": 1}), json!({"$set": {"a": 2}}), json!({"a": 2})),
        (json!({"a": 1}), json!({"$unset": {"a": 1}}), json!({})),
        (json!({"a.b": 1}), json!({"$set": {"a": 2}}), json!({"a": 2})),
        (json!({}), json!({"$set": {}}), json!({})),
        (json!({"_id.x": 1}), json!({"$set": {"b": 2}}), json!({"_id": {"x": 1}, "b": 2})),
        (json!({"_id": 1, "a": 1}), json!({"b": 1}), json!({"_id": 1, "b": 1})),
        (json!({"_id": 1}), json!({"_id": 1.0}), json!({"_id": 1})),
        (json!({"a": 1}), json!({"_id": 5, "b": 1}), json!({"_id": 5, "b": 1})),
        (json!({"a": 1, "a.b": 1}), json!({"b": 1}), json!({"b": 1})),
    ] {
        let result = upsert(&filter, &update).unwrap_or_else(|error| panic!("{filter} {update}: {error}"));
        assert_eq!(result, expected, "{filter} {update}");
    }
    for (filter, update, kind) in [
        (json!({"$and": [{"a": 1}, {"a": 2}]}), json!({"$set": {"b": 1}}), Kind::NotSingleValueField),
        (json!({"$and": [{"_id": 1}, {"_id": 2}]}), json!({"b": 1}), Kind::NotSingleValueField),
        (json!({"_id": 1}), json!({"$set": {"_id": 2}}), Kind::ImmutableField),
        (json!({"_id": 1}), json!({"$unset": {"_id": 2}}), Kind::ImmutableField),
        (json!({"_id": 1}), json!({"_id": 2}), Kind::ImmutableField),
        (json!({"_id.x": 1}), json!({"b": 2}), Kind::NotExactValueField),
        (json!({"a": 1}), json!({"$set": {"a.b": 2}}), Kind::PathNotViable),
        (json!({"a": "x"}), json!({"$inc": {"a": 2}}), Kind::TypeMismatch),
        (json!({"a..b": 1}), json!({"$set": {"c": 2}}), Kind::EmptyFieldName),
    ] {
        assert_eq!(upsert(&filter, &update).expect_err(&update.to_string()).kind, kind, "{filter} {update}");
    }
}

#[test]
fn expressions_have_no_place_in_what_an_update_looks_for() {
    for refused in [
        json!({"$pull": {"a": {"$expr": {"$eq": ["$b", 1]}}}}),
        json!({"$pull": {"a": {"b": 1, "$expr": true}}}),
        json!({"$pull": {"a": {"$jsonSchema": {}}}}),
    ] {
        assert_eq!(Update::parse(&refused).unwrap_err().kind, Kind::QueryFeatureNotAllowed, "{refused}");
    }
    let filters = [json!({"i.b": 5, "$expr": true})];
    let error = Update::parse_with_array_filters(&json!({"$set": {"a.$[i]": 1}}), &filters).unwrap_err();
    assert_eq!(error.kind, Kind::QueryFeatureNotAllowed);
    for filter in
        [json!({"$expr": true}), json!({"a": 1, "$or": [{"b": 1}, {"$and": [{"$expr": {"$gt": ["$a", 1]}}]}]})]
    {
        assert_eq!(
            Filter::parse(&filter).unwrap().check_upsert().unwrap_err().kind,
            Kind::QueryFeatureNotAllowed,
            "{filter}"
        );
    }
    assert!(Filter::parse(&json!({"a": {"$eq": 1}, "$or": [{"b": 1}]})).unwrap().check_upsert().is_ok());
}

/// A second, simpler implementation of `$set`, `$unset` and `$inc`: one path after the other, on JSON.
mod naive {
    use super::*;

    /// None if the update is impossible.
    pub fn apply(update: &Json, to: &Json) -> Option<Json> {
        let mut result = to.clone();
        let mut modifiers: Vec<(Vec<&str>, &str, &Json)> = Vec::new();
        for (operator, fields) in update.as_object()? {
            let fields = fields.as_object()?.iter();
            modifiers.extend(fields.map(|(path, argument)| (path.split('.').collect(), operator.as_str(), argument)));
        }
        // In the order of the paths, as in MongoDB. In another order, setting element 5 of an array could pad it with a null at
        // position 2, below which no path can be set.
        modifiers.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, operator, argument) in modifiers {
            modify(&mut result, &path, operator, argument)?;
        }
        Some(result)
    }

    fn modify(inside: &mut Json, path: &[&str], operator: &str, argument: &Json) -> Option<()> {
        let unset = operator == "$unset";
        let slot = match inside {
            Json::Object(fields) if unset && path.len() == 1 => {
                fields.remove(path[0]);
                return Some(());
            }
            Json::Object(fields) if unset && !fields.contains_key(path[0]) => return Some(()),
            Json::Object(fields) => fields.entry(path[0].to_owned()).or_insert_with(|| fresh(path)),
            Json::Array(elements) => match path[0].parse::<usize>() {
                Ok(index) if unset && index >= elements.len() => return Some(()),
                Ok(index) => {
                    while elements.len() < index {
                        elements.push(Json::Null);
                    }
                    if elements.len() == index {
                        elements.push(fresh(path));
                    }
                    &mut elements[index]
                }
                Err(_) => return unset.then_some(()),
            },
            _ => return unset.then_some(()),
        };
        match (path.len(), operator) {
            (1, "$set") => *slot = argument.clone(),
            (1, "$unset") => *slot = Json::Null,
            (1, "$inc") if slot == "fresh" => *slot = argument.clone(),
            (1, "$inc") => *slot = Json::from(slot.as_i64()? + argument.as_i64()?),
            _ => return modify(slot, &path[1..], operator, argument),
        }
        Some(())
    }

    fn fresh(path: &[&str]) -> Json {
        if path.len() == 1 { Json::from("fresh") } else { Json::Object(Map::new()) }
    }
}

/// Scalars with the same form in JSON and in documents.
fn plain() -> impl Strategy<Value = Json> {
    prop_oneof![(-3..3i64).prop_map(Json::from), Just(json!("x")), Just(json!(null)), Just(json!(true))]
}

fn any_update() -> impl Strategy<Value = Json> {
    let set = proptest::collection::vec((path(), any_value(plain(), true)), 0..3).prop_map(object);
    let unset = proptest::collection::vec((path(), Just(json!(""))), 0..3).prop_map(object);
    let inc = proptest::collection::vec((path(), (-3..3i64).prop_map(Json::from)), 0..3).prop_map(object);
    (set, unset, inc).prop_map(|(set, unset, inc)| json!({"$set": set, "$unset": unset, "$inc": inc}))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn updates_agree_with_the_naive_reading(update in any_update(), before in any_document(plain(), true)) {
        match apply(&update, &before, &[]) {
            Ok(after) => prop_assert_eq!(Some(after.unwrap_or(before.clone())), naive::apply(&update, &before)),
            Err(error) if error.kind == Kind::ConflictingUpdateOperators => {}
            Err(_) => prop_assert_eq!(naive::apply(&update, &before), None),
        }
    }

    #[test]
    fn a_second_set_changes_nothing(path in path(), value in any_value(scalar(), true), before in any_document(scalar(), true)) {
        let update = Update::parse(&json!({"$set": {path: value}})).unwrap();
        if let Ok(Some(after)) = update.apply(document(&bytes(&before)), &[]) {
            prop_assert_eq!(update.apply(document(&after), &[]).unwrap(), None);
        }
    }

    #[test]
    fn no_input_panics(update in nonsense(), filter in nonsense(), before in any_document(scalar(), true)) {
        let keys = ["a.b".to_owned(), "0".to_owned()];
        for update in [Update::parse(&update), Update::parse_replacement(&update)].into_iter().flatten() {
            let _ = update.apply(document(&bytes(&before)), &keys).map(|after| after.map(|after| read(&after)));
            if let Ok(filter) = Filter::parse(&filter) {
                let _ = update.upsert(&filter).map(|inserted| read(&inserted));
            }
        }
    }

    /// Existing operators with random arguments.
    #[test]
    fn no_argument_panics(argument in nonsense(), before in any_document(scalar(), true)) {
        for operator in vocabulary::update_operators() {
            for update in [
                json!({operator: argument}),
                json!({operator: {"a.b": argument}}),
                json!({operator: {"a.$[]": argument}}),
            ] {
                if let Ok(update) = Update::parse(&update) {
                    let _ = update.apply(document(&bytes(&before)), &[]).map(|after| after.map(|after| read(&after)));
                    let _ = update.upsert(&Filter::parse(&json!({"a.b": 1})).unwrap()).map(|inserted| read(&inserted));
                }
            }
        }
    }
}
