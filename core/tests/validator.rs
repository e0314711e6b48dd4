//! Validators of collections: definitions, levels and actions, and what a document violates, in MongoDB's form.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::validator::{Action, Level, MAX_INFO_BYTES, MAX_INFO_DEPTH, Validator};
use serde_json::{Value as Json, json};

fn validator(filter: &Json) -> Validator {
    Validator::parse(&json!({"validator": filter})).unwrap_or_else(|error| panic!("{filter}: {error}"))
}

/// What a new document violates; None if it is valid.
fn violation(filter: &Json, of: &Json) -> Option<Json> {
    validator(filter).violation(None, document(&bytes(of))).map(|violation| violation.info())
}

fn details(filter: &Json, of: &Json) -> Json {
    violation(filter, of).unwrap_or_else(|| panic!("{filter} should refuse {of}"))["details"].clone()
}

#[test]
fn a_violated_condition_is_described() {
    let compared = |filter: Json, name: &str, value: Json| json!({"operatorName": name, "specifiedAs": filter, "reason": "comparison failed", "consideredValue": value});
    for (filter, of, expected) in [
        (json!({"a": 2}), json!({"a": 1}), compared(json!({"a": 2}), "$eq", json!(1))),
        (json!({"a": {"$lt": 0}}), json!({"a": 1}), compared(json!({"a": {"$lt": 0}}), "$lt", json!(1))),
        (
            json!({"a.b": {"$gte": 4}}),
            json!({"a": [{"b": 3}]}),
            compared(json!({"a.b": {"$gte": 4}}), "$gte", json!(3)),
        ),
        (
            json!({"a": {"$eq": 2}}),
            json!({"b": 1}),
            json!({"operatorName": "$eq", "specifiedAs": {"a": {"$eq": 2}}, "reason": "field was missing"}),
        ),
        (
            json!({"a.b": {"$eq": 0}}),
            json!({"a": [{"b": [1, 2]}, {"b": [3, 4]}]}),
            json!({"operatorName": "$eq", "specifiedAs": {"a.b": {"$eq": 0}}, "reason": "comparison failed",
                   "consideredValues": [1, 2, 3, 4]}),
        ),
        (
            json!({"a": {"$gt": 0}}),
            json!({"a": []}),
            json!({"operatorName": "$gt", "specifiedAs": {"a": {"$gt": 0}}, "reason": "comparison failed",
                   "consideredValues": []}),
        ),
        (
            json!({"a": {"$ne": 2}}),
            json!({"a": 2}),
            json!({"operatorName": "$ne", "specifiedAs": {"a": {"$ne": 2}}, "reason": "comparison succeeded",
                   "consideredValue": 2}),
        ),
        (
            json!({"a": {"$in": [1, 2]}}),
            json!({"a": 4}),
            json!({"operatorName": "$in", "specifiedAs": {"a": {"$in": [1, 2]}},
                   "reason": "no matching value found in array", "consideredValue": 4}),
        ),
        (
            json!({"a": {"$nin": [4]}}),
            json!({"a": 4}),
            json!({"operatorName": "$nin", "specifiedAs": {"a": {"$nin": [4]}},
                   "reason": "matching value found in array", "consideredValue": 4}),
        ),
        (
            json!({"a": {"$exists": true}}),
            json!({"b": 1}),
            json!({"operatorName": "$exists", "specifiedAs": {"a": {"$exists": true}}, "reason": "path does not exist"}),
        ),
        (
            json!({"a": {"$exists": false}}),
            json!({"a": 1}),
            json!({"operatorName": "$exists", "specifiedAs": {"a": {"$exists": false}}, "reason": "path does exist"}),
        ),
        (
            json!({"a": {"$type": "int"}}),
            json!({"a": "one"}),
            json!({"operatorName": "$type", "specifiedAs": {"a": {"$type": "int"}}, "reason": "type did not match",
                   "consideredValue": "one", "consideredType": "string"}),
        ),
        (
            json!({"a": {"$type": "double"}}),
            json!({"a": ["x", true]}),
            json!({"operatorName": "$type", "specifiedAs": {"a": {"$type": "double"}}, "reason": "type did not match",
                   "consideredValues": ["x", true], "consideredTypes": ["bool", "string"]}),
        ),
        (
            json!({"a": {"$regex": "^x", "$options": "i"}}),
            json!({"a": "yes"}),
            json!({"operatorName": "$regex", "specifiedAs": {"a": {"$regex": "^x", "$options": "i"}},
                   "reason": "regular expression did not match", "consideredValue": "yes"}),
        ),
        (
            json!({"a": {"$size": 2}}),
            json!({"a": [1]}),
            json!({"operatorName": "$size", "specifiedAs": {"a": {"$size": 2}},
                   "reason": "array length was not equal to given size", "consideredValue": [1]}),
        ),
        (
            json!({"$expr": {"$lt": ["$a", "$b"]}}),
            json!({"a": 2, "b": 1}),
            json!({"operatorName": "$expr", "specifiedAs": {"$expr": {"$lt": ["$a", "$b"]}},
                   "reason": "expression did not match", "expressionResult": false}),
        ),
        (
            json!({"$expr": {"$divide": ["$a", "$b"]}}),
            json!({"a": 2, "b": 0}),
            json!({"operatorName": "$expr", "specifiedAs": {"$expr": {"$divide": ["$a", "$b"]}},
                   "reason": "failed to evaluate aggregation expression",
                   "details": {"code": 2, "codeName": "BadValue", "errmsg": "can't $divide by zero"}}),
        ),
        // Several conditions, also where they are not written as `$and`.
        (
            json!({"a": {"$gt": 0, "$lt": 10}, "b": 1}),
            json!({"a": 11, "b": 2}),
            json!({"operatorName": "$and", "clausesNotSatisfied": [
                {"index": 1, "details": compared(json!({"a": {"$lt": 10}}), "$lt", json!(11))},
                {"index": 2, "details": compared(json!({"b": 1}), "$eq", json!(2))}]}),
        ),
        (
            json!({"$and": [{"$or": [{"p": {"$gt": 50}}, {"p": {"$lt": 20}}]}, {"q": 1}]}),
            json!({"p": 30, "q": 1}),
            json!({"operatorName": "$and", "clausesNotSatisfied": [{"index": 0, "details":
                {"operatorName": "$or", "clausesNotSatisfied": [
                    {"index": 0, "details": compared(json!({"p": {"$gt": 50}}), "$gt", json!(30))},
                    {"index": 1, "details": compared(json!({"p": {"$lt": 20}}), "$lt", json!(30))}]}}]}),
        ),
        (
            json!({"$nor": [{"a": {"$gt": 10}}, {"b": {"$lt": 10}}]}),
            json!({"a": 9, "b": 9}),
            json!({"operatorName": "$nor", "clausesSatisfied": [{"index": 1, "details":
                {"operatorName": "$lt", "specifiedAs": {"b": {"$lt": 10}}, "reason": "comparison succeeded",
                 "consideredValue": 9}}]}),
        ),
        (
            json!({"a": {"$not": {"$not": {"$lt": 10}}}}),
            json!({"a": 11}),
            json!({"operatorName": "$not", "details": {"operatorName": "$not",
                   "details": compared(json!({"a": {"$lt": 10}}), "$lt", json!(11))}}),
        ),
        (
            json!({"$nor": [{"$jsonSchema": {"required": ["a"]}}]}),
            json!({"a": 1}),
            json!({"operatorName": "$nor", "clausesSatisfied": [{"index": 0, "details":
                {"operatorName": "$jsonSchema", "reason": "schema matched"}}]}),
        ),
    ] {
        assert_eq!(details(&filter, &of), expected, "{filter} of {of}");
    }
}

/// Each case: a schema, a document, and the rules that it violates.
#[test]
fn a_violated_schema_is_described() {
    let property = |name: &str, rules: Json| json!([{"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": name, "details": rules}]}]);
    let minimum = |least: i64, value: i64| {
        json!({"operatorName": "minimum", "specifiedAs": {"minimum": least}, "reason": "comparison failed",
               "consideredValue": value})
    };
    let typed = |keyword: &str, wanted: &str, value: Json, found: &str| {
        json!({"operatorName": keyword, "specifiedAs": {keyword: wanted}, "reason": "type did not match",
               "consideredValue": value, "consideredType": found})
    };
    for (schema, of, expected) in [
        (json!({"properties": {"a": {"minimum": 1}}}), json!({"a": 0}), property("a", json!([minimum(1, 0)]))),
        (
            json!({"properties": {"a": {"maximum": 1, "exclusiveMaximum": true}}}),
            json!({"a": 1}),
            property(
                "a",
                json!([{"operatorName": "maximum", "specifiedAs": {"maximum": 1, "exclusiveMaximum": true},
                "reason": "comparison failed", "consideredValue": 1}]),
            ),
        ),
        (
            json!({"properties": {"a": {"properties": {"b": {"minimum": 1}}}}}),
            json!({"a": {"b": 0}}),
            property("a", property("b", json!([minimum(1, 0)]))),
        ),
        (
            json!({"properties": {"a": {"bsonType": "string"}}}),
            json!({"a": [1]}),
            property("a", json!([typed("bsonType", "string", json!([1]), "array")])),
        ),
        (
            json!({"properties": {"a": {"type": "boolean"}}}),
            json!({"a": {"$date": 0}}),
            property("a", json!([typed("type", "boolean", json!({"$date": "1970-01-01T00:00:00Z"}), "date")])),
        ),
        (
            json!({"required": ["a", "b", "c"]}),
            json!({"b": 1}),
            json!([{"operatorName": "required", "specifiedAs": {"required": ["a", "b", "c"]},
                    "missingProperties": ["a", "c"]}]),
        ),
        (
            json!({"properties": {"a": {"enum": [1, 2]}}}),
            json!({"a": 0}),
            property(
                "a",
                json!([{"operatorName": "enum", "specifiedAs": {"enum": [1, 2]},
                "reason": "value was not found in enum", "consideredValue": 0}]),
            ),
        ),
        (
            json!({"properties": {"a": {"minLength": 4}}}),
            json!({"a": "foo"}),
            property(
                "a",
                json!([{"operatorName": "minLength", "specifiedAs": {"minLength": 4},
                "reason": "specified string length was not satisfied", "consideredValue": "foo"}]),
            ),
        ),
        (
            json!({"properties": {"a": {"pattern": "^S"}}}),
            json!({"a": "slow"}),
            property(
                "a",
                json!([{"operatorName": "pattern", "specifiedAs": {"pattern": "^S"},
                "reason": "regular expression did not match", "consideredValue": "slow"}]),
            ),
        ),
        (
            json!({"properties": {"a": {"multipleOf": 2}}}),
            json!({"a": 3}),
            property(
                "a",
                json!([{"operatorName": "multipleOf", "specifiedAs": {"multipleOf": 2},
                "reason": "considered value is not a multiple of the specified value", "consideredValue": 3}]),
            ),
        ),
        (
            json!({"properties": {"a": {"minItems": 2, "uniqueItems": true}}}),
            json!({"a": [1]}),
            property(
                "a",
                json!([{"operatorName": "minItems", "specifiedAs": {"minItems": 2},
                "reason": "array did not match specified length", "consideredValue": [1]}]),
            ),
        ),
        (
            json!({"properties": {"a": {"uniqueItems": true}}}),
            json!({"a": [2, 1, 1]}),
            property(
                "a",
                json!([{"operatorName": "uniqueItems", "specifiedAs": {"uniqueItems": true},
                "reason": "found a duplicate item", "consideredValue": [2, 1, 1], "duplicatedValue": 1}]),
            ),
        ),
        (
            json!({"properties": {"a": {"items": {"minimum": 1}}}}),
            json!({"a": [1, 0]}),
            property(
                "a",
                json!([{"operatorName": "items", "reason": "At least one item did not match the sub-schema",
                "itemIndex": 1, "details": [minimum(1, 0)]}]),
            ),
        ),
        (
            json!({"properties": {"a": {"items": [{"minimum": 1}], "additionalItems": false}}}),
            json!({"a": [0, 5]}),
            property(
                "a",
                json!([
                {"operatorName": "items", "details": [{"itemIndex": 0, "details": [minimum(1, 0)]}]},
                {"operatorName": "additionalItems", "specifiedAs": {"additionalItems": false},
                 "reason": "found additional items", "additionalItems": [5]}]),
            ),
        ),
        (
            json!({"minProperties": 3}),
            json!({"a": 1}),
            json!([{"operatorName": "minProperties", "specifiedAs": {"minProperties": 3},
                    "reason": "specified number of properties was not satisfied", "numberOfProperties": 1}]),
        ),
        (
            json!({"properties": {"a": {}}, "patternProperties": {"^b": {"minimum": 1}}, "additionalProperties": false}),
            json!({"a": 1, "b1": 0, "c": 1}),
            json!([
                {"operatorName": "patternProperties", "details": [
                    {"propertyName": "b1", "regexMatched": "^b", "details": [minimum(1, 0)]}]},
                {"operatorName": "additionalProperties", "specifiedAs": {"additionalProperties": false},
                 "additionalProperties": ["c"]}]),
        ),
        (
            json!({"additionalProperties": {"minimum": 1}}),
            json!({"c": 0}),
            json!([{"operatorName": "additionalProperties",
                    "reason": "at least one additional property did not match the subschema",
                    "failingProperty": "c", "details": [minimum(1, 0)]}]),
        ),
        (
            json!({"dependencies": {"a": ["b", "c"], "d": {"required": ["e"]}}}),
            json!({"a": 1, "b": 1, "d": 1}),
            json!([{"operatorName": "dependencies", "failingDependencies": [
                {"conditionalProperty": "a", "missingProperties": ["c"]},
                {"conditionalProperty": "d", "details": [{"operatorName": "required",
                    "specifiedAs": {"required": ["e"]}, "missingProperties": ["e"]}]}]}]),
        ),
        (
            json!({"properties": {"a": {"allOf": [{"minimum": 1}, {"maximum": 3}]}}}),
            json!({"a": 0}),
            property(
                "a",
                json!([{"operatorName": "allOf", "schemasNotSatisfied": [
                {"index": 0, "details": [minimum(1, 0)]}]}]),
            ),
        ),
        (
            json!({"properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 3}]}}}),
            json!({"a": 2}),
            property(
                "a",
                json!([{"operatorName": "oneOf", "reason": "more than one subschema matched",
                "matchingSchemaIndexes": [0, 1]}]),
            ),
        ),
        (
            json!({"properties": {"a": {"not": {"minimum": 1}}}}),
            json!({"a": 2}),
            property("a", json!([{"operatorName": "not", "reason": "child expression matched"}])),
        ),
        (
            json!({"properties": {"a": {"encrypt": {}}}}),
            json!({"a": 2}),
            property("a", json!([{"operatorName": "encrypt", "reason": "value was not encrypted"}])),
        ),
    ] {
        let filter = json!({"$jsonSchema": schema});
        assert_eq!(
            details(&filter, &of),
            json!({"operatorName": "$jsonSchema", "schemaRulesNotSatisfied": expected}),
            "{schema} of {of}"
        );
    }
}

#[test]
fn titles_and_descriptions_are_repeated() {
    let schema = json!({"$jsonSchema": {"title": "student", "required": ["name"], "properties":
        {"year": {"maximum": 3017, "description": "must be an integer in [2017, 3017]"}}}});
    assert_eq!(
        violation(&schema, &json!({"_id": 7, "year": 4000})).unwrap(),
        json!({"failingDocumentId": 7, "details": {"operatorName": "$jsonSchema", "title": "student", "schemaRulesNotSatisfied": [
            {"operatorName": "required", "specifiedAs": {"required": ["name"]}, "missingProperties": ["name"]},
            {"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "year",
                "description": "must be an integer in [2017, 3017]", "details": [{"operatorName": "maximum",
                "specifiedAs": {"maximum": 3017}, "reason": "comparison failed", "consideredValue": 4000}]}]}]}})
    );
}

#[test]
fn levels_and_actions() {
    let of = |level: &str, action: &str| {
        Validator::parse(&json!({"validator": {"a": 1}, "validationLevel": level, "validationAction": action})).unwrap()
    };
    let [valid, invalid, other] = [json!({"a": 1}), json!({"a": 2}), json!({"a": 3})].map(|json| bytes(&json));
    let [valid, invalid, other] = [&valid, &invalid, &other].map(|bytes| document(bytes));
    for (level, cases) in [
        ("strict", [(None, true), (Some(valid), true), (Some(invalid), true)]),
        ("moderate", [(None, true), (Some(valid), true), (Some(invalid), false)]),
        ("off", [(None, false), (Some(valid), false), (Some(invalid), false)]),
    ] {
        for (before, refused) in cases {
            assert_eq!(of(level, "error").violation(before, other).is_some(), refused, "{level}");
            assert!(of(level, "error").violation(before, valid).is_none());
        }
    }
    assert_eq!(of("strict", "warn").action, Action::Warn);
    assert_eq!(of("moderate", "errorAndLog").level, Level::Moderate);
    assert_eq!(of("strict", "errorAndLog").action, Action::ErrorAndLog);
}

#[test]
fn a_definition_is_checked() {
    for (definition, kind) in [
        (json!({"validator": {"$where": "true"}}), Kind::NotImplemented),
        (json!({"validator": {"$text": {"$search": "x"}}}), Kind::NotImplemented),
        (json!({"validator": {"a": {"$near": [0, 0]}}}), Kind::NotImplemented),
        (json!({"validator": {"$jsonSchema": {"requires": ["a"]}}}), Kind::FailedToParse),
        (json!({"validator": {"a": {"$gg": 1}}}), Kind::BadValue),
        (json!({"validator": {"$sampleRate": 0.5}}), Kind::QueryFeatureNotAllowed),
        (json!({"validator": {"$expr": {"$lt": [{"$rand": {}}, 1]}}}), Kind::QueryFeatureNotAllowed),
        (json!({"validator": {"$expr": {"$in": ["admin.a", "$$USER_ROLES._id"]}}}), Kind::QueryFeatureNotAllowed),
        (json!({"validator": {"$expr": {"$eq": ["$a", {"$createObjectId": {}}]}}}), Kind::QueryFeatureNotAllowed),
        (json!({"validator": 1}), Kind::TypeMismatch),
        (json!({"validator": {}, "validationLevel": "loose"}), Kind::BadValue),
        (json!({"validator": {}, "validationAction": 1}), Kind::BadValue),
    ] {
        assert_eq!(Validator::parse(&definition).unwrap_err().kind, kind, "{definition}");
    }
}

/// The names of variables and operators are plain text in a string.
#[test]
fn a_string_is_no_variable() {
    for text in ["$$USER_ROLES", "$$NOW", "\"$rand\":"] {
        let validator = validator(&json!({"a": text, "$expr": {"$eq": ["$a", {"$literal": text}]}}));
        assert!(validator.violation(None, document(&bytes(&json!({"a": text})))).is_none(), "{text}");
        assert!(validator.violation(None, document(&bytes(&json!({"a": 1})))).is_some(), "{text}");
    }
}

#[test]
fn strings_compare_by_the_collation() {
    let definition = json!({"validator": {"a": "x"}, "collation": {"locale": "en", "strength": 2}});
    let validator = Validator::parse(&definition).unwrap();
    assert!(validator.violation(None, document(&bytes(&json!({"a": "X"})))).is_none());
    assert!(validator.violation(None, document(&bytes(&json!({"a": "Y"})))).is_some());
}

#[test]
fn the_time_is_that_of_the_statement() {
    let validator = validator(&json!({"$expr": {"$lte": ["$at", "$$NOW"]}}));
    assert!(validator.violation(None, document(&bytes(&json!({"at": {"$date": 0}})))).is_none());
    let late = json!({"at": {"$date": "9000-01-01T00:00:00Z"}});
    assert!(validator.violation(None, document(&bytes(&late))).is_some());
}

fn depth(json: &Json) -> usize {
    let deepest = match json {
        Json::Array(items) => items.iter().map(depth).max(),
        Json::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

/// A large document and many violated rules make a small report.
#[test]
fn a_report_is_bounded() {
    let long = "x".repeat(100_000);
    let info = violation(&json!({"a": {"$lt": 0}}), &json!({"_id": 1, "a": long})).unwrap();
    assert_eq!(
        info,
        json!({"failingDocumentId": 1, "truncated": true,
               "details": {"operatorName": "$lt", "specifiedAs": {"a": {"$lt": 0}}, "reason": "comparison failed"}})
    );
    let many: Vec<Json> = (0..100_000).map(|n| json!({"a": n})).collect();
    let info = violation(&json!({"$or": many}), &json!({"_id": 1, "a": -1})).unwrap();
    assert_eq!(info["truncated"], true);
    assert!(info.to_string().len() <= MAX_INFO_BYTES, "{}", info.to_string().len());
    let wide: serde_json::Map<String, Json> = (0..20_000).map(|n| (format!("p{n}"), json!(n))).collect();
    let info = violation(
        &json!({"$jsonSchema": {"patternProperties": {"^p": {"maximum": -1}, "p": {"enum": ["x"]}}}}),
        &Json::Object(wide),
    )
    .unwrap();
    assert!(info.to_string().len() <= MAX_INFO_BYTES, "{}", info.to_string().len());
    let mut deep = json!({"type": "string"});
    let mut document = json!(1);
    for _ in 0..80 {
        deep = json!({"properties": {"a": deep}});
        document = json!({"a": document});
    }
    let info = violation(&json!({"$jsonSchema": deep}), &document).unwrap();
    assert_eq!(info["truncated"], true);
    assert!(depth(&info) <= MAX_INFO_DEPTH, "{}", depth(&info));
    let values: Vec<i64> = (0..1000).collect();
    let info = violation(&json!({"a": {"$lt": 0}}), &json!({"a": values})).unwrap();
    assert_eq!(info["details"]["consideredValues"].as_array().unwrap().len(), 10);
    assert_eq!(info["details"]["consideredValuesTruncated"], true);
    let long_id = violation(&json!({"a": 1}), &json!({"_id": long})).unwrap();
    assert_eq!(long_id["truncated"], true);
    assert!(long_id.to_string().len() < 1000);
}
