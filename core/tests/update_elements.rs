//! Updates whose paths name one element in several ways, and the element to which `$` refers.

mod common;

use common::*;
use docshard_core::error::{Kind, Result};
use docshard_core::query::environment::Environment;
use docshard_core::query::update::{self, Instruction, Style};
use serde_json::{Value as Json, json};

/// Applies an update to a document of a filter, as a router sends it and a shard reads it.
fn apply(update: &Json, array_filters: &Json, filter: &Json, to: &Json) -> Result<Option<Json>> {
    let instruction = Instruction {
        update,
        text: &update.to_string(),
        style: Style::Operators,
        array_filters: Some(array_filters).filter(|filters| !filters.is_null()),
        filter: &filter.to_string(),
        now: 0,
        keeps_key: false,
        environment: &Environment::default(),
    };
    let text = instruction.compile()?.text;
    let update = update::read(&serde_json::from_str(&text).unwrap())?;
    Ok(update.apply(document(&bytes(to)), &[])?.map(|bytes| read(&bytes)))
}

fn all_conflict(cases: &[(Json, Json, Json, Json)]) {
    for (update, filters, filter, before) in cases {
        let error = apply(update, filters, filter, before).expect_err(&update.to_string());
        assert_eq!(error.kind, Kind::ConflictingUpdateOperators, "{update} on {before}: {error}");
    }
}

/// Conflicts are those of the elements that a document has.
#[test]
fn filters_that_meet() {
    let filters = json!([{"i.x": {"$lt": 3}}, {"j.x": {"$gt": 1}}, {"k.y": 1}]);
    let set = |one: &str, other: &str| json!({"$set": {one: 1, other: 2}});
    let nested = |x: i64, b: Json| json!({"a": [{"x": x, "b": b}]});
    for (update, before, after) in [
        (
            set("a.$[i].b.$[k].c", "a.$[j].b.$[k].d"),
            nested(2, json!([{"y": 1}, {"y": 2}])),
            nested(2, json!([{"y": 1, "c": 1, "d": 2}, {"y": 2}])),
        ),
        (
            set("a.$[i].b.$[k].c", "a.$[j].b.$[].d"),
            nested(2, json!([{"y": 1}, {"y": 2}])),
            nested(2, json!([{"y": 1, "c": 1, "d": 2}, {"y": 2, "d": 2}])),
        ),
        (
            set("a.$[i].b.$[k].c", "a.$[j].b.$[k].c"),
            json!({"a": [{"x": 1, "b": [{"y": 1}]}, {"x": 3, "b": [{"y": 1}]}]}),
            json!({"a": [{"x": 1, "b": [{"y": 1, "c": 1}]}, {"x": 3, "b": [{"y": 1, "c": 2}]}]}),
        ),
        (set("a.$[i].b.0", "a.$[j].b.1"), nested(2, json!([7, 8])), nested(2, json!([1, 2]))),
        (set("a.$[i].b.0.p", "a.$[j].b.00.q"), nested(2, json!([{}])), nested(2, json!([{"p": 1, "q": 2}]))),
        (set("a.$[i].b.c.d", "a.$[j].b.c.e"), nested(2, json!({})), nested(2, json!({"c": {"d": 1, "e": 2}}))),
        (
            json!({"$unset": {"a.$[i].b": 1}, "$push": {"a.$[j].c": 5}}),
            nested(2, json!(1)),
            json!({"a": [{"x": 2, "c": [5]}]}),
        ),
    ] {
        let filters = used(&filters, &update);
        assert_eq!(apply(&update, &filters, &json!({}), &before).unwrap(), Some(after), "{update}");
    }
    let conflicts = [
        (set("a.$[i].b.$[k].c", "a.$[j].b.$[k].c"), nested(2, json!([{"y": 1}]))),
        (set("a.$[i].b.$[k].c", "a.$[j].b.$[].c"), nested(2, json!([{"y": 1}]))),
        (set("a.$[i].b.$[k]", "a.$[j].b.$[].c"), nested(2, json!([{"y": 1}]))),
        (set("a.$[i].b.0", "a.$[j].b.00"), nested(2, json!([{"y": 1}]))),
        (set("a.$[i].b.0", "a.$[j].b.$[]"), nested(2, json!([{"y": 1}]))),
        // Also where the second array has no elements, or is missing.
        (set("a.$[i].b.$[]", "a.$[j].b.$[].c"), nested(2, json!([]))),
        (set("a.$[i].b.$[k].c", "a.$[j].b.$[k].c"), nested(2, json!(null))),
        (set("a.$[i].c.$[]", "a.$[j].c.$[]"), nested(2, json!(null))),
    ];
    all_conflict(&conflicts.map(|(update, before)| (update.clone(), used(&filters, &update), json!({}), before)));
}

/// The filters that an update uses.
fn used(filters: &Json, update: &Json) -> Json {
    let text = update.to_string();
    let is_used = |filter: &&Json| {
        let name = filter.as_object().unwrap().keys().next().unwrap();
        text.contains(&format!("$[{}]", &name[..1]))
    };
    filters.as_array().unwrap().iter().filter(is_used).cloned().collect()
}

#[test]
fn the_matched_element_and_its_position() {
    let none = Json::Null;
    for (filter, update, before, after) in [
        (
            json!({"a.x": 2}),
            json!({"$set": {"a.$.p": 1}, "$push": {"a.1.b": 2}}),
            json!({"a": [{"x": 1}, {"x": 2}]}),
            json!({"a": [{"x": 1}, {"x": 2, "p": 1, "b": [2]}]}),
        ),
        (
            json!({"a.x": 1}),
            json!({"$set": {"a.$.p.q": 1, "a.0.p.r": 2, "a.1.p": 3}}),
            json!({"a": [{"x": 1}, {"x": 2}]}),
            json!({"a": [{"x": 1, "p": {"q": 1, "r": 2}}, {"x": 2, "p": 3}]}),
        ),
        (
            json!({"a.x": 1}),
            json!({"$set": {"a.$.p": 1, "a.00.q": 2}}),
            json!({"a": [{"x": 1}]}),
            json!({"a": [{"x": 1, "p": 1, "q": 2}]}),
        ),
    ] {
        assert_eq!(apply(&update, &none, &filter, &before).unwrap(), Some(after), "{filter} {update}");
    }
    let conflicting = |update: Json| (update, none.clone(), json!({"a.x": 1}), json!({"a": [{"x": 1}]}));
    all_conflict(&[
        conflicting(json!({"$set": {"a.$.p": 1, "a.0.p": 2}})),
        conflicting(json!({"$set": {"a.$": 1, "a.0.p": 2}})),
        conflicting(json!({"$set": {"a.$.p": 1, "a.0.p.q": 2}})),
        conflicting(json!({"$set": {"a.$.p": 1, "a.00": 2}})),
    ]);
}

/// Unlike a query, an update reads `00` as a position.
#[test]
fn zeros_may_lead_a_position() {
    for (update, before, after) in [
        (json!({"$set": {"x.00": 5}}), json!({"x": [1, 2]}), Some(json!({"x": [5, 2]}))),
        (json!({"$set": {"x.03": 5}}), json!({"x": [1, 2]}), Some(json!({"x": [1, 2, null, 5]}))),
        (json!({"$inc": {"x.001.n": 5}}), json!({"x": [1, {"n": 2}]}), Some(json!({"x": [1, {"n": 7}]}))),
        (json!({"$unset": {"x.00": 1}}), json!({"x": [1, 2]}), Some(json!({"x": [null, 2]}))),
        (json!({"$unset": {"x.02": 1}}), json!({"x": [1, 2]}), None),
        (json!({"$set": {"x.0.a": 1, "x.00.b": 2}}), json!({"x": [{}]}), Some(json!({"x": [{"a": 1, "b": 2}]}))),
        // In a document it is a name.
        (json!({"$set": {"x.00": 5}}), json!({"x": {"0": 1}}), Some(json!({"x": {"0": 1, "00": 5}}))),
        (json!({"$set": {"x.0": 5, "x.00": 6}}), json!({"x": {}}), Some(json!({"x": {"0": 5, "00": 6}}))),
    ] {
        assert_eq!(apply(&update, &Json::Null, &json!({}), &before).unwrap(), after, "{update} on {before}");
    }
    let on_array = |update: Json| (update, Json::Null, json!({}), json!({"x": [1, 2]}));
    all_conflict(&[
        on_array(json!({"$set": {"x.0": 1, "x.00": 2}})),
        on_array(json!({"$set": {"x.01": 1, "x.001": 2}})),
    ]);
    for (update, kind) in [
        (json!({"$rename": {"x.00": "y"}}), Kind::BadValue),
        (json!({"$rename": {"y": "x.01"}}), Kind::BadValue),
        (json!({"$set": {"x.99999999999999999999": 1}}), Kind::PathNotViable),
        (
            json!({"$set": {format!("x.{}1", "0".repeat(5000)): {"$date": 0}, "x.1": 1}}),
            Kind::ConflictingUpdateOperators,
        ),
    ] {
        let error =
            apply(&update, &Json::Null, &json!({}), &json!({"x": [1, 2], "y": 1})).expect_err(&update.to_string());
        assert_eq!(error.kind, kind, "{update}: {error}");
    }
}

/// The last of several conditions decides, in MongoDB's order of operators and paths. Of alternatives only values of one field do.
#[test]
fn the_deciding_condition() {
    let before = json!({"a": [10, 20, 30], "b": [{"k": 1}, {"k": 2}, {"k": 3}], "n": 1});
    for (filter, position) in [
        (json!({"a": 10, "b.k": 3}), 2),
        (json!({"b.k": 3, "a": 10}), 2),
        (json!({"b.k": 1, "a": 30}), 0),
        (json!({"a": {"$all": [10, 30]}}), 2),
        (json!({"a": {"$all": [30, 10]}}), 0),
        (json!({"$and": [{"a": {"$gt": 10}}, {"a": {"$lt": 50}}]}), 1),
        (json!({"a": {"$lt": 50, "$gte": 15}}), 1),
        (json!({"a": 20, "b": {"$elemMatch": {"k": 3}}}), 1),
        (json!({"a": 20, "n": 1}), 1),
        (json!({"a": {"$in": [30]}, "b.k": {"$gt": 1}}), 2),
        (json!({"$or": [{"a": 30}, {"a": 20}]}), 1),
        (json!({"$or": [{"a": 30}]}), 2),
        (json!({"a": 20, "$or": [{"b.k": 1}, {"n": 1}]}), 1),
        (json!({"a": 20, "b.k": {"$ne": 7}}), 1),
    ] {
        let after = apply(&json!({"$set": {"a.$": 0}}), &Json::Null, &filter, &before).unwrap().unwrap();
        let found = after["a"].as_array().unwrap().iter().position(|element| *element == 0);
        assert_eq!(found, Some(position), "{filter}");
    }
    for filter in [
        json!({"$or": [{"a": 30}, {"b.k": 3}]}),
        json!({"$or": [{"a": 30}, {"n": 1}]}),
        json!({"$or": [{"a": {"$gt": 10}}, {"a": 10}]}),
        json!({"$nor": [{"a": 40}]}),
        json!({"n": 1}),
    ] {
        let error = apply(&json!({"$set": {"a.$": 0}}), &Json::Null, &filter, &before).expect_err(&filter.to_string());
        assert_eq!(error.kind, Kind::BadValue, "{filter}: {error}");
    }
}

/// jsonb's numbers have no negative zero, so it is stored as NaN is.
#[test]
fn negative_zero() {
    let zero = || json!({"$numberDouble": "-0.0"});
    let none = Json::Null;
    for (update, before, after) in [
        (json!({"$set": {"a": zero()}}), json!({"a": 0.0}), Some(json!({"a": zero()}))),
        (json!({"$set": {"a": {"b": [zero()]}}}), json!({}), Some(json!({"a": {"b": [zero()]}}))),
        (json!({"$mul": {"a": -1.0}}), json!({"a": 0}), Some(json!({"a": zero()}))),
        (json!({"$inc": {"a": zero()}}), json!({"a": zero()}), None),
        (json!({"$inc": {"a": zero()}}), json!({"a": 0.0}), None),
        (json!({"$inc": {"a": 1}}), json!({"a": zero()}), Some(json!({"a": 1.0}))),
        (json!({"$max": {"a": 0.0}}), json!({"a": zero()}), None),
        (json!({"$addToSet": {"a": 0}}), json!({"a": [zero()]}), None),
        (json!({"$pull": {"a": 0}}), json!({"a": [zero(), 1]}), Some(json!({"a": [1]}))),
    ] {
        assert_eq!(apply(&update, &none, &json!({}), &before).unwrap(), after, "{update} on {before}");
    }
}
