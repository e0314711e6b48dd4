//! Updates: the operators on numbers, names, bits and arrays.

mod common;

use common::*;
use docshard_core::error::{Kind, Result};
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::update::{self, Instruction, Style, Update};
use docshard_core::values::order::compare_values;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn apply(update: &Json, array_filters: &[Json], to: &Json) -> Result<Option<Json>> {
    let update = Update::parse_with_array_filters(update, array_filters)?;
    Ok(update.apply(document(&bytes(to)), &[])?.map(|bytes| read(&bytes)))
}

/// Applies an update to a document of a filter, at 1,500 ms since 1970, as a router sends it and a shard reads it.
fn instructed(update: &Json, array_filters: Option<&str>, filter: &str, to: &Json) -> Result<Option<Json>> {
    let array_filters = array_filters.map(|text| serde_json::from_str::<Json>(text).unwrap());
    let instruction = Instruction {
        update,
        text: &update.to_string(),
        style: Style::Either,
        array_filters: array_filters.as_ref(),
        filter,
        now: 1_500,
        keeps_key: false,
        environment: &Environment::default(),
    };
    let text = instruction.compile()?.text;
    let update = update::read(&serde_json::from_str(&text).unwrap())?;
    Ok(update.apply(document(&bytes(to)), &[])?.map(|bytes| read(&bytes)))
}

/// Each case: an update, a document, the changed document (None: no change).
fn check(cases: Vec<(Json, Json, Option<Json>)>) {
    for (update, before, after) in cases {
        let result = apply(&update, &[], &before).unwrap_or_else(|error| panic!("{update} on {before}: {error}"));
        assert_eq!(result, after, "{update} on {before}");
    }
}

fn check_refusals(cases: Vec<(Json, Json, Kind, &str)>) {
    for (update, before, kind, message) in cases {
        let error = apply(&update, &[], &before).expect_err(&update.to_string());
        let canonical = canonical(&update);
        assert_eq!(apply(&canonical, &[], &before).expect_err(&canonical.to_string()).kind, kind, "{canonical}");
        assert!(
            error.kind == kind && error.message.contains(message),
            "{update} on {before}: {:?} {error}",
            error.kind
        );
    }
}

#[test]
fn multiply() {
    check(vec![
        (json!({"$mul": {"a": 3}}), json!({"a": 2}), Some(json!({"a": 6}))),
        (json!({"$mul": {"a": 1.5}}), json!({"a": 2}), Some(json!({"a": 3.0}))),
        (json!({"$mul": {"a.b": 3}}), json!({}), Some(json!({"a": {"b": 0}}))),
        (json!({"$mul": {"a": 3.5}}), json!({}), Some(json!({"a": 0.0}))),
        (json!({"$mul": {"a": 1}}), json!({"a": 7}), None),
    ]);
    check_refusals(vec![
        (
            json!({"$mul": {"a": "x"}}),
            json!({}),
            Kind::TypeMismatch,
            "Cannot multiply with non-numeric argument: {a: \"x\"}",
        ),
        (
            json!({"$mul": {"a": 2}}),
            json!({"_id": 1, "a": "x"}),
            Kind::TypeMismatch,
            "Cannot apply $mul to a value of non-numeric type. {_id: 1}",
        ),
        (json!({"$mul": {"a": 2}}), json!({"a": i64::MAX}), Kind::BadValue, "Failed to apply $mul operations"),
    ]);
}

#[test]
fn minimum_and_maximum() {
    check(vec![
        (json!({"$min": {"a": 1}}), json!({"a": 2}), Some(json!({"a": 1}))),
        (json!({"$min": {"a": 3}}), json!({"a": 2}), None),
        (json!({"$min": {"a": 2.0}}), json!({"a": 2}), None),
        (json!({"$max": {"a": 3}}), json!({"a": 2}), Some(json!({"a": 3}))),
        (json!({"$max": {"a": "x"}}), json!({"a": 2}), Some(json!({"a": "x"}))),
        (json!({"$max": {"a": null}}), json!({"a": 2}), None),
        (json!({"$max": {"a": 1}, "$min": {"b.c": 2}}), json!({}), Some(json!({"a": 1, "b": {"c": 2}}))),
    ]);
}

#[test]
fn negative_zero_that_stays_zero_is_kept() {
    let zero = json!({"$numberDouble": "-0.0"});
    check(vec![
        (json!({"$inc": {"a": 0.0}}), json!({"a": zero}), None),
        (json!({"$mul": {"a": zero}}), json!({"a": zero}), None),
        (json!({"$inc": {"a": 1.0}}), json!({"a": zero}), Some(json!({"a": 1.0}))),
        (json!({"$mul": {"a": zero}}), json!({"a": 2}), Some(json!({"a": zero}))),
    ]);
}

#[test]
fn rename() {
    check(vec![
        (json!({"$rename": {"a": "b"}}), json!({"a": 1}), Some(json!({"b": 1}))),
        (json!({"$rename": {"a": "b"}}), json!({"a": 1, "b": 2}), Some(json!({"b": 1}))),
        (json!({"$rename": {"a": "b"}}), json!({"b": 2}), None),
        (
            json!({"$rename": {"a.x": "b.y"}}),
            json!({"a": {"x": [1], "z": 2}}),
            Some(json!({"a": {"z": 2}, "b": {"y": [1]}})),
        ),
        (json!({"$rename": {"a": "b", "c": "d"}}), json!({"a": 1, "c": 2}), Some(json!({"b": 1, "d": 2}))),
        (json!({"$rename": {"a": "b.c"}}), json!({"b": 1}), None),
    ]);
    check_refusals(vec![
        (json!({"$rename": {"a": 1}}), json!({}), Kind::BadValue, "The 'to' field for $rename must be a string: a: 1"),
        (json!({"$rename": {"a": "a"}}), json!({}), Kind::BadValue, "must differ: a: \"a\""),
        (json!({"$rename": {"a": "a.b"}}), json!({}), Kind::BadValue, "must not be on the same path"),
        (json!({"$rename": {"a.b": "a"}}), json!({}), Kind::BadValue, "must not be on the same path"),
        (
            json!({"$rename": {"a.$[]": "b"}}),
            json!({}),
            Kind::BadValue,
            "The source field for $rename may not be dynamic: a.$[]",
        ),
        (
            json!({"$rename": {"a": "b.$"}}),
            json!({}),
            Kind::BadValue,
            "The destination field for $rename may not be dynamic",
        ),
        (
            json!({"$rename": {"a.0": "b"}}),
            json!({"_id": 1, "a": [1]}),
            Kind::BadValue,
            "The source field cannot be an array element, 'a.0' in doc with _id: 1 has an array field called 'a'",
        ),
        (
            json!({"$rename": {"b": "a.0"}}),
            json!({"_id": 1, "a": [1], "b": 1}),
            Kind::BadValue,
            "The destination field cannot be an array element",
        ),
        (json!({"$rename": {"a.b": "c"}}), json!({"a": 1}), Kind::PathNotViable, ""),
        (json!({"$rename": {"a": "b.c"}}), json!({"a": 1, "b": 1}), Kind::PathNotViable, "Cannot create field 'c'"),
        (json!({"$rename": {"a": "b"}, "$set": {"b": 1}}), json!({}), Kind::ConflictingUpdateOperators, "'b'"),
        (json!({"$rename": {"a": "b", "b": "c"}}), json!({}), Kind::ConflictingUpdateOperators, "'b'"),
        (json!({"$rename": {"_id": "b"}}), json!({"_id": 1}), Kind::ImmutableField, "'_id'"),
    ]);
}

#[test]
fn bits() {
    check(vec![
        (json!({"$bit": {"a": {"and": 6}}}), json!({"a": 3}), Some(json!({"a": 2}))),
        (json!({"$bit": {"a": {"or": 4, "xor": 1}}}), json!({"a": 3}), Some(json!({"a": 6}))),
        (json!({"$bit": {"a": {"or": 5}}}), json!({}), Some(json!({"a": 5}))),
    ]);
    check_refusals(vec![
        (json!({"$bit": {"a": 1}}), json!({}), Kind::BadValue, "The $bit modifier is not compatible with a int."),
        (json!({"$bit": {"a": {}}}), json!({}), Kind::BadValue, "You must pass in at least one bitwise operation."),
        (
            json!({"$bit": {"a": {"not": 1}}}),
            json!({}),
            Kind::BadValue,
            "not 'not' which is an unknown operator: {not: 1}",
        ),
        (json!({"$bit": {"a": {"and": 1.0}}}), json!({}), Kind::BadValue, "a 'double' is not supported here"),
        (
            json!({"$bit": {"a": {"and": 1}}}),
            json!({"_id": 1, "a": 1.5}),
            Kind::BadValue,
            "{_id: 1} has the field a of non-integer type double",
        ),
    ]);
}

#[test]
fn positional() {
    let set = |path: &str| json!({"$set": {path: 9}});
    for (filter, update, before, after) in [
        (json!({"a": 2}), set("a.$"), json!({"a": [1, 2, 2]}), json!({"a": [1, 9, 2]})),
        (json!({"a": {"$gt": 1}}), json!({"$inc": {"a.$": 5}}), json!({"a": [1, 2]}), json!({"a": [1, 7]})),
        (json!({"a.b": 2}), set("a.$.b"), json!({"a": [{"b": 1}, {"b": 2}]}), json!({"a": [{"b": 1}, {"b": 9}]})),
        (
            json!({"a": {"$elemMatch": {"b": 2, "c": 3}}}),
            set("a.$.d"),
            json!({"a": [{"b": 2, "c": 1}, {"b": 2, "c": 3}]}),
            json!({"a": [{"b": 2, "c": 1}, {"b": 2, "c": 3, "d": 9}]}),
        ),
        (
            json!({"a.b": {"$elemMatch": {"$gt": 1}}}),
            set("a.b.$"),
            json!({"a": {"b": [1, 2]}}),
            json!({"a": {"b": [1, 9]}}),
        ),
        // `$` refers to the outermost array.
        (
            json!({"a.b": 2}),
            set("a.$.b"),
            json!({"a": [{"b": [1]}, {"b": [1, 2]}]}),
            json!({"a": [{"b": [1]}, {"b": 9}]}),
        ),
        (json!({"$or": [{"a": 5}, {"a": 3}]}), set("a.$"), json!({"a": [1, 2, 3]}), json!({"a": [1, 2, 9]})),
        // The position may be used in another array, and beyond its end.
        (json!({"b": 4}), set("a.$"), json!({"a": [], "b": [3, 4]}), json!({"a": [null, 9], "b": [3, 4]})),
        (json!({"b": 4}), set("a.$"), json!({"a": {}, "b": [3, 4]}), json!({"a": {"1": 9}, "b": [3, 4]})),
        (json!({"b": 4}), json!({"$unset": {"b.$": 1}}), json!({"b": [3, 4]}), json!({"b": [3, null]})),
    ] {
        let result = instructed(&update, None, &filter.to_string(), &before);
        assert_eq!(result.unwrap(), Some(after), "{filter} {update} on {before}");
    }
    for (filter, update, before, kind) in [
        (json!({}), set("a.$"), json!({"a": [1]}), Kind::BadValue),
        (json!({"b": 1}), set("a.$"), json!({"a": [1], "b": 1}), Kind::BadValue),
        (json!({"a": {"$ne": 2}}), set("a.$"), json!({"a": [1]}), Kind::BadValue),
        (json!({"a.0": 1}), set("a.$"), json!({"a": [1]}), Kind::BadValue),
        (json!({"a": [1]}), set("a.$"), json!({"a": [1]}), Kind::BadValue),
        (json!({"a": 1}), json!({"$set": {"a.$": 1, "a.0": 1}}), json!({"a": [1]}), Kind::ConflictingUpdateOperators),
    ] {
        let error = instructed(&update, None, &filter.to_string(), &before).unwrap_err();
        assert_eq!(error.kind, kind, "{filter} {update} on {before}: {error}");
    }
    let upsert = Update::parse(&set("a.$")).unwrap().upsert(&Filter::parse(&json!({"a": 1})).unwrap());
    assert_eq!(upsert.unwrap_err().kind, Kind::BadValue);
}

#[test]
fn instructions() {
    let filters = r#"[{"x": {"$gt": 1}}]"#;
    let update = json!({"$set": {"a.$[x]": 9}});
    assert_eq!(instructed(&update, Some(filters), "{}", &json!({"a": [1, 2]})).unwrap(), Some(json!({"a": [1, 9]})));
    let replacement = json!({"a": 1});
    assert_eq!(instructed(&replacement, None, "{}", &json!({"_id": 1})).unwrap(), Some(json!({"_id": 1, "a": 1})));
    assert_eq!(
        instructed(&replacement, Some("[]"), "{}", &json!({"_id": 1})).unwrap(),
        Some(json!({"_id": 1, "a": 1}))
    );
    for (update, filters, kind) in [
        (&replacement, filters, Kind::FailedToParse),
        (&update, "{}", Kind::TypeMismatch),
        (&update, "[]", Kind::BadValue),
        (&update, r#"[{"x": 1}, {"y": 1}]"#, Kind::FailedToParse),
        (&update, r#"[{"x": 1}, {"x": 2}]"#, Kind::FailedToParse),
        (&update, r#"[{"x": 1, "y": 1}]"#, Kind::FailedToParse),
        (&update, "[5]", Kind::TypeMismatch),
    ] {
        let error = instructed(update, Some(filters), "{}", &json!({})).unwrap_err();
        assert_eq!(error.kind, kind, "{update} {filters}: {error}");
    }
}

#[test]
fn current_date() {
    let update =
        json!({"$currentDate": {"a": true, "b": {"$type": "date"}, "c": {"$type": "timestamp"}}, "$set": {"d": 1}});
    assert!(Update::parse(&update).unwrap().needs_clock());
    assert!(!Update::parse(&json!({"$set": {"a": 1}})).unwrap().needs_clock());
    assert_eq!(apply(&update, &[], &json!({})).unwrap_err().kind, Kind::InternalError);
    let date = json!({"$date": "1970-01-01T00:00:01.500Z"});
    assert_eq!(
        instructed(&update, None, "{}", &json!({})).unwrap().unwrap(),
        json!({"a": date, "b": date, "c": {"$timestamp": {"t": 1, "i": 1}}, "d": 1})
    );
    let conflict = Update::parse(&json!({"$currentDate": {"a": true}, "$set": {"a": 1}})).unwrap_err();
    assert_eq!(conflict.kind, Kind::ConflictingUpdateOperators);
    check_refusals(vec![
        (json!({"$currentDate": {"a": 1}}), json!({}), Kind::BadValue, "int is not valid type for $currentDate."),
        (
            json!({"$currentDate": {"a": {"$type": "time"}}}),
            json!({}),
            Kind::BadValue,
            "required to be 'date' or 'timestamp'",
        ),
        (
            json!({"$currentDate": {"a": {"type": "date"}}}),
            json!({}),
            Kind::BadValue,
            "Unrecognized $currentDate option: type",
        ),
    ]);
}

#[test]
fn push() {
    let push = |clauses: Json| json!({"$push": {"a": clauses}});
    let array = |elements: Json| json!({"a": elements});
    check(vec![
        (push(json!(3)), array(json!([1])), Some(array(json!([1, 3])))),
        (push(json!([3])), array(json!([1])), Some(array(json!([1, [3]])))),
        (push(json!(3)), json!({}), Some(array(json!([3])))),
        (push(json!({"$each": [3, 4]})), array(json!([1])), Some(array(json!([1, 3, 4])))),
        (push(json!({"$each": []})), array(json!([1])), None),
        (push(json!({"$each": []})), json!({}), Some(array(json!([])))),
        (push(json!({"$each": [3, 4], "$position": 1})), array(json!([1, 2])), Some(array(json!([1, 3, 4, 2])))),
        (push(json!({"$each": [3, 4], "$position": -1})), array(json!([1, 2])), Some(array(json!([1, 3, 4, 2])))),
        (push(json!({"$each": [3], "$position": 9})), array(json!([1, 2])), Some(array(json!([1, 2, 3])))),
        (push(json!({"$each": [3], "$position": -9})), array(json!([1, 2])), Some(array(json!([3, 1, 2])))),
        (push(json!({"$each": [3], "$slice": 2})), array(json!([1, 2])), None),
        (push(json!({"$each": [3], "$slice": -2})), array(json!([1, 2])), Some(array(json!([2, 3])))),
        (push(json!({"$each": [3], "$slice": 0})), array(json!([1, 2])), Some(array(json!([])))),
        (
            push(json!({"$each": [2], "$sort": 1})),
            array(json!([3, "x", null, 1])),
            Some(array(json!([null, 1, 2, 3, "x"]))),
        ),
        (push(json!({"$slice": 2, "$sort": -1, "$each": [2]})), array(json!([3, 1])), Some(array(json!([3, 2])))),
        (
            push(json!({"$each": [{"x": 1, "y": 1}, 5], "$sort": {"x": 1, "y": -1}})),
            array(json!([{"x": 1, "y": 2}, {"x": 0}])),
            Some(array(json!([5, {"x": 0}, {"x": 1, "y": 2}, {"x": 1, "y": 1}]))),
        ),
        (
            push(json!({"$each": [], "$sort": {"x.y": 1}})),
            array(json!([{"x": {"y": 2}}, {"x": {"y": 1}}])),
            Some(array(json!([{"x": {"y": 1}}, {"x": {"y": 2}}]))),
        ),
    ]);
    check_refusals(vec![
        (
            push(json!(1)),
            json!({"_id": 1, "a": 5}),
            Kind::BadValue,
            "The field 'a' must be an array but is of type int in document {_id: 1}",
        ),
        (
            push(json!({"$each": 1})),
            json!({}),
            Kind::BadValue,
            "The argument to $each in $push must be an array but it was of type: int",
        ),
        (push(json!({"$each": [], "$foo": 1})), json!({}), Kind::BadValue, "Unrecognized clause in $push: $foo"),
        (
            push(json!({"$each": [], "$slice": "1"})),
            json!({}),
            Kind::BadValue,
            "The value for $slice must be an integer value but was given type: string",
        ),
        (
            push(json!({"$each": [], "$position": 1.5})),
            json!({}),
            Kind::BadValue,
            "The value for $position must be an integer",
        ),
        (
            push(json!({"$each": [], "$sort": 2})),
            json!({}),
            Kind::BadValue,
            "The $sort element value must be either 1 or -1",
        ),
        (push(json!({"$each": [], "$sort": {}})), json!({}), Kind::BadValue, "The $sort pattern is empty"),
        (push(json!({"$each": [], "$sort": {"a..b": 1}})), json!({}), Kind::BadValue, "has an empty part: a..b"),
        (push(json!({"$each": [], "$sort": "a"})), json!({}), Kind::BadValue, "The $sort is invalid"),
        (push(json!({"$each": [{"$regex": 1}]})), json!({}), Kind::DollarPrefixedFieldName, "$regex"),
    ]);
    // Without `$each` the argument is an element.
    check(vec![
        (push(json!({"$position": 1})), json!({}), Some(json!({"a": [{"$position": 1}]}))),
        (push(json!({"$each": [{"$x": 1}]})), json!({}), Some(json!({"a": [{"$x": 1}]}))),
    ]);
}

#[test]
fn add_to_set() {
    let add = |argument: Json| json!({"$addToSet": {"a": argument}});
    check(vec![
        (add(json!(2)), json!({"a": [1]}), Some(json!({"a": [1, 2]}))),
        (add(json!(1.0)), json!({"a": [1]}), None),
        (add(json!({"y": 1, "x": 2})), json!({"a": [{"x": 2, "y": 1}]}), None),
        (add(json!([1])), json!({"a": [1]}), Some(json!({"a": [1, [1]]}))),
        (add(json!({"$each": [1, 2, 2, 3]})), json!({"a": [3]}), Some(json!({"a": [3, 1, 2]}))),
        (add(json!({"$each": [1, 1]})), json!({}), Some(json!({"a": [1]}))),
        (add(json!({"$each": []})), json!({}), Some(json!({"a": []}))),
        (add(json!({"$each": []})), json!({"a": [1, 1]}), None),
        (add(json!({"x": 1, "$each": [2]})), json!({}), Some(json!({"a": [{"x": 1, "$each": [2]}]}))),
    ]);
    check_refusals(vec![
        (
            add(json!(1)),
            json!({"a": 1}),
            Kind::BadValue,
            "Cannot apply $addToSet to non-array field. Field named 'a' has non-array type int",
        ),
        (
            add(json!({"$each": 1})),
            json!({}),
            Kind::TypeMismatch,
            "The argument to $each in $addToSet must be an array but it was of type: int",
        ),
        (add(json!({"$each": [], "x": 1})), json!({}), Kind::BadValue, "Found unexpected fields after $each"),
    ]);
}

#[test]
fn pop() {
    check(vec![
        (json!({"$pop": {"a": 1}}), json!({"a": [1, 2]}), Some(json!({"a": [1]}))),
        (json!({"$pop": {"a": -1.0}}), json!({"a": [1, 2]}), Some(json!({"a": [2]}))),
        (json!({"$pop": {"a": 1}}), json!({"a": []}), None),
        (json!({"$pop": {"a.b": 1}}), json!({}), None),
    ]);
    check_refusals(vec![
        (json!({"$pop": {"a": 2}}), json!({}), Kind::FailedToParse, "$pop expects 1 or -1, found: 2"),
        (json!({"$pop": {"a": "x"}}), json!({}), Kind::FailedToParse, "Expected a number in: a: \"x\""),
        (json!({"$pop": {"a": 1}}), json!({"a": 1}), Kind::TypeMismatch, "contains an element of non-array type 'int'"),
        (json!({"$pop": {"a.b": 1}}), json!({"a": 1}), Kind::PathNotViable, ""),
    ]);
}

#[test]
fn pull() {
    let regex = json!({"$regularExpression": {"pattern": "^x", "options": ""}});
    let pull = |argument: Json| json!({"$pull": {"a": argument}});
    check(vec![
        (
            pull(json!({"$or": [{"x": 1}, {"y": {"$gt": 1}}]})),
            json!({"a": [{"x": 1}, {"y": 2}, {"y": 1}, 1]}),
            Some(json!({"a": [{"y": 1}, 1]})),
        ),
        (
            pull(json!({"$and": [{"x": 1}, {"y": 2}]})),
            json!({"a": [{"x": 1, "y": 2}, {"x": 1}]}),
            Some(json!({"a": [{"x": 1}]})),
        ),
        (pull(json!({"$nor": [{"x": 1}]})), json!({"a": [{"x": 1}, {"x": 2}, 3]}), Some(json!({"a": [{"x": 1}, 3]}))),
        (pull(json!(1)), json!({"a": [1, 2, 1.0]}), Some(json!({"a": [2]}))),
        (pull(json!([1])), json!({"a": [1, [1]]}), Some(json!({"a": [1]}))),
        (pull(json!(null)), json!({"a": [null, 1]}), Some(json!({"a": [1]}))),
        (pull(json!({"$gte": 2})), json!({"a": [1, 2, 3, "x"]}), Some(json!({"a": [1, "x"]}))),
        (pull(json!({"$in": [1, "x"]})), json!({"a": [1, 2, "x"]}), Some(json!({"a": [2]}))),
        (pull(json!({"$not": {"$gt": 1}})), json!({"a": [1, 2]}), Some(json!({"a": [2]}))),
        (pull(json!({"x": 1})), json!({"a": [{"x": 1, "y": 2}, {"x": 2}, 1]}), Some(json!({"a": [{"x": 2}, 1]}))),
        (pull(json!({"x": {"$gt": 1}})), json!({"a": [{"x": 1}, {"x": 2}]}), Some(json!({"a": [{"x": 1}]}))),
        (pull(json!({"$elemMatch": {"x": 1}})), json!({"a": [[{"x": 1}], {"x": 1}]}), Some(json!({"a": [{"x": 1}]}))),
        (pull(regex), json!({"a": ["xa", "a"]}), Some(json!({"a": ["a"]}))),
        (
            pull(json!({"$oid": "0123456789abcdef01234567"})),
            json!({"a": [{"$oid": "0123456789abcdef01234567"}, 1]}),
            Some(json!({"a": [1]})),
        ),
        (pull(json!(5)), json!({"a": [1]}), None),
        (pull(json!(5)), json!({}), None),
        (json!({"$pullAll": {"a": [1, [2]]}}), json!({"a": [1, 2, [2], 1]}), Some(json!({"a": [2]}))),
        (json!({"$pullAll": {"a": []}}), json!({"a": [1]}), None),
    ]);
    check_refusals(vec![
        (pull(json!(1)), json!({"a": 1}), Kind::BadValue, "Cannot apply $pull to a non-array value"),
        (pull(json!({"$foo": 1})), json!({}), Kind::BadValue, "unknown operator: $foo"),
        (
            json!({"$pullAll": {"a": 1}}),
            json!({}),
            Kind::BadValue,
            "$pullAll requires an array argument but was given a int",
        ),
    ]);
}

#[test]
fn every_element() {
    check(vec![
        (json!({"$inc": {"a.$[]": 1}}), json!({"a": [1, 2]}), Some(json!({"a": [2, 3]}))),
        (
            json!({"$set": {"a.$[].b": 1}}),
            json!({"a": [{}, {"c": 1}]}),
            Some(json!({"a": [{"b": 1}, {"b": 1, "c": 1}]})),
        ),
        (json!({"$inc": {"a.$[].$[]": 1}}), json!({"a": [[1], [2, 3]]}), Some(json!({"a": [[2], [3, 4]]}))),
        (json!({"$unset": {"a.$[]": 1}}), json!({"a": [1]}), Some(json!({"a": [null]}))),
        (json!({"$inc": {"a.$[]": 1}}), json!({"a": []}), None),
    ]);
    check_refusals(vec![
        (
            json!({"$inc": {"a.$[]": 1}}),
            json!({"a": 1}),
            Kind::BadValue,
            "Cannot apply array updates to non-array element a: 1",
        ),
        (
            json!({"$inc": {"a.$[]": 1}}),
            json!({"a": {"b": 1}}),
            Kind::BadValue,
            "Cannot apply array updates to non-array element",
        ),
        (
            json!({"$inc": {"a.$[]": 1}}),
            json!({}),
            Kind::BadValue,
            "must exist in the document in order to apply array updates",
        ),
        (json!({"$unset": {"a.x.$[]": 1}}), json!({"a": 0}), Kind::BadValue, "must exist in the document"),
        (json!({"$unset": {"a.x.$[]": 1}}), json!({"a": [1]}), Kind::BadValue, "must exist in the document"),
        (json!({"$set": {"a.x.$[].b": 1}}), json!({"a": 0}), Kind::BadValue, "must exist in the document"),
        (json!({"$pull": {"a.x.y.$[]": 1}}), json!({"a": [1]}), Kind::BadValue, "must exist in the document"),
        (json!({"$set": {"a.x": 1, "a.y.$[]": 1}}), json!({"a": 0}), Kind::PathNotViable, "Cannot create field"),
        (json!({"$inc": {"a.$[]": 1, "a.0": 1}}), json!({}), Kind::ConflictingUpdateOperators, "conflict at 'a'"),
    ]);
}

#[test]
fn chosen_elements() {
    for (update, filters, before, after) in [
        (
            json!({"$set": {"a.$[x]": 0}}),
            vec![json!({"x": {"$gt": 1}})],
            json!({"a": [1, 2, 3]}),
            json!({"a": [1, 0, 0]}),
        ),
        (
            json!({"$inc": {"a.$[x].n": 1}}),
            vec![json!({"x.k": "b"})],
            json!({"a": [{"k": "a"}, {"k": "b", "n": 1}]}),
            json!({"a": [{"k": "a"}, {"k": "b", "n": 2}]}),
        ),
        (
            json!({"$set": {"a.$[x]": 0, "a.$[y]": 9}}),
            vec![json!({"x": 1}), json!({"$or": [{"y": 2}, {"y": 3}]})],
            json!({"a": [1, 2, 3]}),
            json!({"a": [0, 9, 9]}),
        ),
    ] {
        assert_eq!(apply(&update, &filters, &before).unwrap(), Some(after), "{update}");
    }
    for (update, filters, kind) in [
        (json!({"$set": {"a.$[x]": 0}}), vec![], Kind::BadValue),
        (json!({"$set": {"a": 0}}), vec![json!({"x": 1})], Kind::FailedToParse),
        (json!({"$set": {"a.$[x]": 0}}), vec![json!({"x": 1}), json!({"x": 2})], Kind::FailedToParse),
        (json!({"$set": {"a.$[x]": 0}}), vec![json!({"x": 1, "y": 2})], Kind::FailedToParse),
        (json!({"$set": {"a.$[x]": 0}}), vec![json!({})], Kind::FailedToParse),
        (json!({"$set": {"a.$[X]": 0}}), vec![json!({"X": 1})], Kind::BadValue),
        (
            json!({"$set": {"a.$[x]": 0, "a.$[y]": 1}}),
            vec![json!({"x": 1}), json!({"y": 1})],
            Kind::ConflictingUpdateOperators,
        ),
    ] {
        assert_eq!(apply(&update, &filters, &json!({"a": [1]})).expect_err(&update.to_string()).kind, kind, "{update}");
    }
}

#[test]
fn upserts() {
    for (filter, update, expected) in [
        (json!({"a": 1}), json!({"$push": {"b": 2}, "$mul": {"a": 3}}), json!({"a": 3, "b": [2]})),
        (json!({"a": {"$all": [2]}}), json!({"$max": {"a": 5}, "$addToSet": {"c": 1}}), json!({"a": 5, "c": [1]})),
        (json!({"a": 2}), json!({"$rename": {"a": "b"}, "$bit": {"c": {"or": 1}}}), json!({"b": 2, "c": 1})),
        (json!({"a": [1, 2]}), json!({"$pull": {"a": 1}, "$pop": {"x": 1}}), json!({"a": [2]})),
    ] {
        let inserted = Update::parse(&update).unwrap().upsert(&Filter::parse(&filter).unwrap()).unwrap();
        assert_eq!(read(&inserted), expected, "{filter} {update}");
    }
}

/// A second, simpler implementation for one field with an array of values.
mod naive {
    use super::*;

    pub fn apply(operator: &str, argument: &Json, mut array: Vec<Json>) -> Vec<Json> {
        let same = |a: &Json, b: &Json| compare_values(&value(a), &value(b)).is_eq();
        match operator {
            "$push" => {
                let position = argument["$position"].as_i64().unwrap();
                let length = array.len() as i64;
                let at = (if position < 0 { length + position } else { position }).clamp(0, length);
                for element in argument["$each"].as_array().unwrap().iter().rev() {
                    array.insert(at as usize, element.clone());
                }
                if let Some(sign) = argument["$sort"].as_i64() {
                    array.sort_by(|a, b| compare_values(&value(a), &value(b)));
                    if sign < 0 {
                        array.sort_by(|a, b| compare_values(&value(b), &value(a)));
                    }
                }
                let slice = argument["$slice"].as_i64().unwrap();
                let count = array.len().min(slice.unsigned_abs() as usize);
                if slice < 0 { array[array.len() - count..].to_vec() } else { array[..count].to_vec() }
            }
            "$addToSet" => {
                for element in argument["$each"].as_array().unwrap() {
                    if !array.iter().any(|known| same(known, element)) {
                        array.push(element.clone());
                    }
                }
                array
            }
            "$pull" => array.into_iter().filter(|element| !same(element, argument)).collect(),
            "$pullAll" => {
                let values = argument.as_array().unwrap();
                array.into_iter().filter(|element| !values.iter().any(|value| same(value, element))).collect()
            }
            _ => unreachable!("{operator}"),
        }
    }
}

fn any_array_update() -> impl Strategy<Value = (String, Json)> {
    let values = || proptest::collection::vec(scalar(), 0..4);
    prop_oneof![
        (values(), -5..5i64, -5..5i64, proptest::sample::select(vec![Some(1), Some(-1), None])).prop_map(
            |(each, position, slice, sort)| {
                let mut push = json!({"$each": each, "$position": position, "$slice": slice});
                if let Some(sort) = sort {
                    push["$sort"] = json!(sort);
                }
                ("$push".to_owned(), push)
            }
        ),
        values().prop_map(|each| ("$addToSet".to_owned(), json!({"$each": each}))),
        scalar().prop_map(|value| ("$pull".to_owned(), value)),
        values().prop_map(|values| ("$pullAll".to_owned(), Json::from(values))),
    ]
}

#[test]
fn an_element_may_be_named_in_several_ways() {
    let before = json!({"a": [{"x": 1, "d": {"$numberDouble": "2.0"}}, {"x": 2}, {"x": 3, "b": {"c": 1}}]});
    let low = json!({"low.x": {"$lt": 3}});
    let one = json!({"one.x": 1});
    for (update, expected) in [
        (
            json!({"$set": {"a.$[low].s": 1, "a.$[].t": 2}}),
            json!([{"x": 1, "d": 2.0, "s": 1, "t": 2}, {"x": 2, "s": 1, "t": 2}, {"x": 3, "b": {"c": 1}, "t": 2}]),
        ),
        (
            json!({"$set": {"a.$[low].b.c": 1, "a.$[].b.d": 2}, "$inc": {"a.$[one].x": 5}, "$unset": {"a.$[one].d": 1}}),
            json!([{"x": 6, "b": {"c": 1, "d": 2}}, {"x": 2, "b": {"c": 1, "d": 2}}, {"x": 3, "b": {"c": 1, "d": 2}}]),
        ),
        (json!({"$set": {"a.$[low].x": 2, "a.$[].b.c": 1}, "$min": {"a.$[one].d": 9}}), {
            json!([{"x": 2, "d": 2.0, "b": {"c": 1}}, {"x": 2, "b": {"c": 1}}, {"x": 3, "b": {"c": 1}}])
        }),
    ] {
        let filters: Vec<Json> = [(&low, "$[low]"), (&one, "$[one]")]
            .into_iter()
            .filter(|(_, name)| update.to_string().contains(name))
            .map(|(filter, _)| filter.clone())
            .collect();
        assert_eq!(apply(&update, &filters, &before).unwrap(), Some(json!({"a": expected})), "{update}");
    }
    for conflicting in [
        json!({"$set": {"a.$[low].s": 1, "a.$[].s": 2}}),
        json!({"$set": {"a.$[low].s": 1, "a.$[].s.t": 2}}),
        json!({"$set": {"a.$[low]": 1, "a.$[].t": 2}}),
        json!({"$set": {"a.$[low].b.$[]": 1, "a.$[].b.$[].c": 2}}),
    ] {
        let error = apply(&conflicting, std::slice::from_ref(&low), &before).unwrap_err();
        assert_eq!(error.kind, Kind::ConflictingUpdateOperators, "{conflicting}");
    }
    // There is no conflict unless two paths name the same element.
    let apart = apply(&json!({"$set": {"a.$[low].s": 1, "a.$[one].s": 2}}), &[json!({"low.x": 3}), one], &before);
    assert!(apart.unwrap().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arrays_agree_with_the_naive_reading((operator, argument) in any_array_update(), array in proptest::collection::vec(scalar(), 0..6)) {
        let before = json!({"a": array});
        let after = apply(&json!({operator.clone(): {"a": argument}}), &[], &before).unwrap();
        let expected = bytes(&json!({"a": naive::apply(&operator, &argument, array)}));
        prop_assert_eq!(after.unwrap_or_else(|| read(&bytes(&before))), read(&expected));
    }

    #[test]
    fn extremes_are_one_of_both(a in scalar(), b in scalar()) {
        for (operator, ordering) in [("$min", std::cmp::Ordering::Less), ("$max", std::cmp::Ordering::Greater)] {
            let after = apply(&json!({operator: {"a": b}}), &[], &json!({"a": a})).unwrap();
            let replaced = compare_values(&value(&b), &value(&a)) == ordering;
            prop_assert_eq!(after.is_some(), replaced);
        }
    }

    #[test]
    fn no_array_filter_panics(update in nonsense(), filter in nonsense(), before in any_document(scalar(), true)) {
        for (update, filter) in [
            (json!({"$set": {"a.$[x]": update}}), json!({"x": filter})),
            (json!({"$push": update}), filter),
        ] {
            let _ = apply(&update, &[filter], &before);
        }
    }
}

#[test]
fn what_lasts_comes_of_operators_alone() {
    let compiled = |text: &str, style, array_filters: Option<&str>, filter| {
        let json = |text: &str| serde_json::from_str::<Json>(text).unwrap();
        let (update, array_filters) = (&json(text), array_filters.map(json));
        let array_filters = array_filters.as_ref();
        Instruction {
            update,
            text,
            style,
            array_filters,
            filter,
            now: 1_500,
            keeps_key: false,
            environment: &Environment::default(),
        }
        .compile()
        .unwrap()
    };
    for (update, array_filters, lasts) in [
        (r#"{"$inc": {"n": 1}, "$push": {"a": {"$each": [1], "$sort": 1}}}"#, None, true),
        (r#"{"$set": {"a.$[]": 1}}"#, None, true),
        (r#"{"$set": {"a.$": 1}}"#, None, false),
        (r#"{"$set": {"a.$[x]": 1}}"#, Some(r#"[{"x": 2}]"#), false),
        (r#"{"$currentDate": {"at": true}}"#, None, false),
        (r#"[{"$set": {"at": "$$NOW"}}]"#, None, false),
        (r#"{"n": 1}"#, None, false),
    ] {
        let one = compiled(update, Style::Either, array_filters, r#"{"a": 2}"#);
        assert_eq!(one.is_lasting, lasts, "{update}");
        let other = compiled(update, Style::Either, array_filters, r#"{"a": 3}"#);
        assert!(!lasts || one.text == other.text, "{update}");
    }
}

/// All updates of a statement have its time.
#[test]
fn a_time_in_the_environment_counts() {
    let (update, environment) = (json!([{"$set": {"at": "$$NOW"}}]), json!({"now": 1_000}));
    let (text, style) = (&update.to_string(), Style::Operators);
    let environment = &Environment::parse(&environment).unwrap();
    let instruction = Instruction {
        update: &update,
        text,
        style,
        array_filters: None,
        filter: "{}",
        now: 1_500,
        keeps_key: false,
        environment,
    };
    let read_back = update::read(&serde_json::from_str(&instruction.compile().unwrap().text).unwrap()).unwrap();
    let after = read_back.apply(document(&bytes(&json!({"_id": 1}))), &[]).unwrap().map(|bytes| read(&bytes));
    assert_eq!(after, Some(json!({"_id": 1, "at": {"$date": "1970-01-01T00:00:01Z"}})));
}

fn merging(new: &Json) -> Json {
    let (text, filter) = (&new.to_string(), "{}");
    let style = Style::Merge;
    let instruction = Instruction {
        update: new,
        text,
        style,
        array_filters: None,
        filter,
        now: 0,
        keeps_key: true,
        environment: &Environment::default(),
    };
    serde_json::from_str(&instruction.compile().unwrap().text).unwrap()
}

proptest! {
    /// A shard of the release 0.2.0 ignores the field `merges` and runs the stages.
    #[test]
    fn merging_equals_its_stages(new in any_document(scalar(), true), old in any_document(scalar(), true)) {
        let mut json = merging(&new);
        let merged = update::read(&json).unwrap();
        json.as_object_mut().unwrap().remove("merges").expect("the mark");
        let by_stages = update::read(&json).unwrap();
        let old = bytes(&old);
        let results = [merged, by_stages].map(|update| {
            update.apply(document(&old), &[]).map_err(|error| error.kind)
        });
        prop_assert_eq!(&results[0], &results[1]);
    }
}

#[test]
fn merging_keeps_the_id_and_the_shard_key() {
    let update = update::read(&merging(&json!({"a": 1, "b": {"c": 2}}))).unwrap();
    let apply = |old: &Json, fixed: &[&str]| {
        let fixed: Vec<String> = fixed.iter().map(|path| (*path).to_owned()).collect();
        update.apply(document(&bytes(old)), &fixed).map(|after| after.map(|after| read(&after)))
    };
    let merged = json!({"_id": 1, "a": 1, "b": {"c": 2}, "d": 3});
    assert_eq!(apply(&json!({"_id": 1, "b": 1, "d": 3}), &["d"]).unwrap(), Some(merged.clone()));
    assert_eq!(apply(&merged, &[]).unwrap(), None);
    assert_eq!(apply(&json!({"_id": 1, "b": {"c": 3}}), &["b.c"]).unwrap_err().kind, Kind::ImmutableField);
    let id = update::read(&merging(&json!({"_id": 2}))).unwrap();
    assert_eq!(id.apply(document(&bytes(&json!({"_id": 1}))), &[]).unwrap_err().kind, Kind::ImmutableField);
}
