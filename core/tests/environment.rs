//! The environment of a statement: what it takes from its session is sent to shards only if a part of the statement uses it.

use docshard_core::error::Result;
use docshard_core::query::environment::{Environment, Session};
use docshard_core::query::filter::Filter;
use docshard_core::query::stage::Pipeline;
use docshard_core::routing::request::query::Query;
use serde_json::{Map, Value as Json, json};
use std::cell::Cell;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn roles() -> Result<Vec<String>> {
    ASKED.set(ASKED.get() + 1);
    Ok(vec!["reader".to_owned()])
}

const SESSION: Session = Session { now: 1_500, roles };

fn statement(variables: Option<&Json>) -> Environment {
    Environment::of_statement(None, variables, SESSION).unwrap()
}

#[test]
fn the_time_and_the_roles_are_sent_if_they_are_used() {
    for (stage, sent) in [
        (json!({"$match": {"at": {"$lt": 5}}}), None),
        (json!({"$match": {"at": "$$NOW"}}), None),
        (json!({"$set": {"at": {"$literal": "$$USER_ROLES"}}}), None),
        (json!({"$match": {"$expr": {"$lt": ["$at", "$$NOW"]}}}), Some(json!({"now": 1_500}))),
        (json!({"$set": {"at": "$$NOW", "of": "$$USER_ROLES"}}), Some(json!({"now": 1_500, "roles": ["reader"]}))),
        (
            json!({"$lookup": {"from": "o", "pipeline": [{"$set": {"at": "$$NOW"}}], "as": "o"}}),
            Some(json!({"now": 1_500})),
        ),
    ] {
        let environment = statement(None);
        Pipeline::parse(std::slice::from_ref(&stage), &environment).unwrap();
        assert_eq!(environment.json(), sent, "{stage}");
    }
}

/// A filter's text has what the filter uses, not what a later part will use.
#[test]
fn each_part_is_sent_with_what_it_needs() {
    let (environment, plain) = (statement(None), json!({"a": 1}));
    let query = |filter: &Json| Query::of(filter, &filter.to_string(), environment.clone()).unwrap().text();
    assert_eq!(query(&plain), r#"{"a":1}"#);
    let timed = json!({"$expr": {"$lt": ["$at", "$$NOW"]}});
    assert_eq!(query(&timed), format!(r#"{{"$setting":{{"now":1500}},"$of":{timed}}}"#));
}

#[test]
fn a_variable_may_use_the_time() {
    let variables = json!({"late": {"$add": ["$$NOW", 1]}});
    assert_eq!(statement(Some(&variables)).json(), Some(json!({"let": variables, "now": 1_500})));
}

/// A random variable has one value, which shards get; others that read no document are evaluated wherever they are.
#[test]
fn a_variable_is_evaluated_once() {
    let variables = json!({"r": {"$rand": {}}, "twice": ["$$r", "$$r"], "n": {"$filter": {"input": [1, 5], "cond": {"$gt": ["$$this", 2]}}}});
    let environment = statement(Some(&variables));
    let sent = environment.json().unwrap();
    let random = sent["let"]["r"]["$literal"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&random));
    assert_eq!(sent["let"]["twice"], json!({"$literal": [random, random]}));
    assert_eq!(sent["let"]["n"], json!({"$literal": [5]}));
    assert_eq!(environment.within().unwrap().json(), environment.json());
    for wrong in
        [json!({"$rand": {"a": "$b"}}), json!({"$add": [{"$rand": {}}, "$b"]}), json!({"$concatArrays": [["$$ROOT"]]})]
    {
        assert!(Environment::of_statement(None, Some(&json!({"x": wrong})), SESSION).is_err(), "{wrong}");
    }
}

/// The roles are read once for a statement with all its parts.
#[test]
fn roles_are_read_when_they_are_used_and_once() {
    ASKED.set(0);
    let environment = statement(None);
    let used = |environment: &Environment| {
        Filter::parse_in(&json!({"$expr": {"$eq": ["$r", "$$USER_ROLES"]}}), environment).unwrap();
    };
    assert_eq!(ASKED.get(), 0);
    used(&environment);
    used(&environment.within().unwrap());
    used(&environment.and(Map::from_iter([("new".to_owned(), json!(1))])).unwrap());
    assert_eq!(ASKED.get(), 1);
}

/// A part's environment has the statement's time, also if the statement itself does not use it.
#[test]
fn parts_share_the_time() {
    let environment = statement(Some(&json!({"x": 1})));
    let inner = environment.within().unwrap();
    assert_eq!(inner.json(), Some(json!({"let": {"x": {"$literal": 1}}})));
    Filter::parse_in(&json!({"$expr": {"$lt": ["$at", "$$NOW"]}}), &inner).unwrap();
    assert_eq!(inner.json(), Some(json!({"let": {"x": {"$literal": 1}}, "now": 1_500})));
    let more = environment.and(Map::from_iter([("y".to_owned(), json!("$$NOW"))])).unwrap();
    assert_eq!(more.json(), Some(json!({"let": {"x": 1, "y": "$$NOW"}, "now": 1_500})));
    assert_eq!(environment.timed(7).json(), Some(json!({"let": {"x": 1}, "now": 1_500})));
    assert_eq!(Environment::default().timed(7).json(), Some(json!({"now": 7})));
}
