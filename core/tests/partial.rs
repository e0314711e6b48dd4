//! Partial indexes: a filter that implies the index's filter finds the same documents among those of the index.

mod common;

use common::{any_document, bytes, document, object};
use docshard_core::error::Kind;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{IndexKeys, Partial};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn operand() -> impl Strategy<Value = Json> + Clone {
    let few = vec![
        json!(0),
        json!(1),
        json!(1.0),
        json!(2),
        json!("a"),
        json!("b"),
        json!(null),
        json!(true),
        json!({"$numberDouble": "NaN"}),
        json!({"$minKey": 1}),
        json!({"$maxKey": 1}),
        json!([]),
        json!([1]),
    ];
    proptest::sample::select(few)
}

/// Random conditions on a field, for a partial index's filter or, with the rest of the language, for a query.
fn condition(all: bool) -> impl Strategy<Value = Json> {
    let mut names = vec!["$eq", "$gt", "$gte", "$lt", "$lte"];
    if all {
        names.push("$ne");
    }
    let compare = (proptest::sample::select(names), operand()).prop_map(|(name, operand)| json!({name: operand}));
    let member = proptest::collection::vec(operand(), 0..3).prop_map(|operands| json!({"$in": operands}));
    let types = proptest::sample::select(vec!["int", "number", "string", "null", "array", "bool"])
        .prop_map(|alias| json!({"$type": alias}));
    let exists = prop_oneof![Just(true), Just(!all)].prop_map(|wanted| json!({"$exists": wanted}));
    let rest = proptest::sample::select(vec![
        json!({"$size": 1}),
        json!({"$elemMatch": {"$gte": 1}}),
        json!({"$not": {"$lt": 1}}),
        json!({"$mod": [2, 1]}),
        json!({"$regex": "^a"}),
    ]);
    let known = prop_oneof![6 => compare, 2 => member, 1 => types, 2 => exists];
    if all { prop_oneof![6 => known, 1 => rest].boxed() } else { known.boxed() }
}

fn filter(all: bool) -> impl Strategy<Value = Json> {
    let path = || proptest::sample::select(vec!["a", "a.b", "b"]).prop_map(str::to_owned);
    let fields = proptest::collection::vec((path(), condition(all)), 0..3).prop_map(object);
    fields.prop_recursive(2, 6, 2, |inner| {
        (proptest::sample::select(vec!["$and", "$or"]), proptest::collection::vec(inner, 1..3))
            .prop_map(|(name, branches)| json!({name: branches}))
    })
}

fn docs() -> impl Strategy<Value = Json> {
    any_document(operand(), true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn an_implication_holds_for_every_document(
        query in filter(true),
        partial in filter(false),
        against in proptest::collection::vec(docs(), 12),
    ) {
        let partial = Partial::parse(&partial, None).unwrap();
        // Half of the queries combine the index's conditions with others.
        for query in [query.clone(), json!({"$and": [query, serde_json::from_str::<Json>(&partial.text).unwrap()]})] {
            let parsed = Filter::parse(&query).unwrap();
            if parsed.implies(&partial.filter) {
                for against in &against {
                    let bytes = bytes(against);
                    let document = document(&bytes);
                    prop_assert!(
                        !parsed.matches(document) || partial.filter.matches(document),
                        "{} {} {}", query, partial.text, against
                    );
                }
            }
        }
    }

    /// A sparse index has all documents of queries that may use it, and lacks only documents without its fields.
    #[test]
    fn a_sparse_index_lacks_only_documents_without_its_fields(query in filter(true), against in docs()) {
        let keys = IndexKeys::parse(&json!({"a.b": 1, "b": -1})).unwrap();
        let sparse = Partial::sparse(&keys);
        let bytes = bytes(&against);
        let document = document(&bytes);
        let held = sparse.filter.matches(document);
        prop_assert_eq!(
            held,
            Filter::parse(&json!({"$nor": [{"a.b": {"$exists": false}, "b": {"$exists": false}}]})).unwrap().matches(document)
        );
        let parsed = Filter::parse(&query).unwrap();
        prop_assert!(held || !parsed.implies(&sparse.filter) || !parsed.matches(document));
    }
}

#[test]
fn what_a_query_demands_in_so_many_words_is_implied() {
    let partial = Partial::parse(&json!({"state": "open", "n": {"$gt": 5}}), None).unwrap();
    let query = Filter::parse(&json!({"state": "open", "n": {"$gte": 7}, "who": "ann"})).unwrap();
    assert!(query.implies(&partial.filter));
    let query = Filter::parse(&json!({"state": "open", "n": {"$gte": 5}})).unwrap();
    assert!(!query.implies(&partial.filter));
}

#[test]
fn what_a_partial_index_may_not_say() {
    for (json, kind) in [
        (json!({"a": {"$ne": 1}}), Kind::CannotCreateIndex),
        (json!({"a": {"$exists": false}}), Kind::CannotCreateIndex),
        (json!({"$nor": [{"a": 1}]}), Kind::CannotCreateIndex),
        (json!({"a": {"$size": 1}}), Kind::CannotCreateIndex),
        (json!({"$expr": {"$eq": ["$a", 1]}}), Kind::QueryFeatureNotAllowed),
        (json!({"$and": [{"$expr": true}]}), Kind::QueryFeatureNotAllowed),
        (json!({"$nonsense": 1}), Kind::BadValue),
        (json!(5), Kind::TypeMismatch),
    ] {
        assert_eq!(Partial::parse(&json, None).unwrap_err().kind, kind, "{json}");
    }
}
