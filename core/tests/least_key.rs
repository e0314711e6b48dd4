//! The least key that a filter can mean by its text: the same for each statement that has the text, whatever its expressions are computed
//! from.

mod common;

use common::{any_value, object, scalar};
use docshard_core::cluster::targeting::{key_ranges, least_key_as_written};
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::values::key::KeyPattern;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn patterns() -> Vec<KeyPattern> {
    let keys = [json!({"a": 1}), json!({"a": 1, "b": 1}), json!({"a": "hashed"}), json!({"b": 1, "a": "hashed"})];
    let sharded = keys.iter().map(|keys| KeyPattern::parse(keys).unwrap());
    std::iter::once(KeyPattern::unsharded()).chain(sharded).collect()
}

/// A filter's parts that depend on the statement: on its time, its roles and its variables.
fn dependent() -> Vec<Json> {
    let is = |path: &str, value: Json| json!({"$expr": {"$eq": [path, value]}});
    vec![
        is("$a", json!({"$toString": "$$NOW"})),
        is("$a", json!({"$mod": [{"$toLong": "$$NOW"}, 5]})),
        is("$a", json!({"$first": "$$USER_ROLES.role"})),
        is("$a", json!("$$given")),
        json!({"$expr": {"$and": [{"$eq": ["$a", "$$given"]}, {"$eq": ["$b", {"$toString": "$$NOW"}]}]}}),
        json!({"$expr": {"$eq": ["$$given", 1]}}),
    ]
}

fn filter() -> impl Strategy<Value = Json> {
    let name = proptest::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let condition =
        prop_oneof![3 => scalar(), 1 => any_value(scalar(), true), 1 => scalar().prop_map(|v| json!({"$gt": v}))];
    let plain = proptest::collection::vec((name, condition), 0..3).prop_map(object);
    let leaf = prop_oneof![plain, proptest::sample::select(dependent())];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let several = proptest::collection::vec(inner, 1..3);
        (several, any::<bool>()).prop_map(|(parts, all)| json!({if all { "$and" } else { "$or" }: parts}))
    })
}

/// What two statements with the same text may differ in.
fn environments() -> Vec<Environment> {
    let of = |now: i64, role: &str, given: Json| {
        let mut json = Environment::to_json(None, Some(&json!({"given": given})), None).unwrap();
        (json["now"], json["roles"]) = (now.into(), json!([role]));
        Environment::parse(&json).unwrap()
    };
    vec![of(0, "ann", json!(1)), of(86_400_001, "bob", json!("x")), of(86_400_003, "eve", json!(2))]
}

proptest! {
    #[test]
    fn it_depends_on_the_text_alone(json in filter()) {
        let parse = |environment: &Environment| Filter::parse_in(&json, environment);
        for pattern in patterns() {
            let filters: Vec<_> = environments().iter().filter_map(|environment| parse(environment).ok()).collect();
            let keys: Vec<_> = filters.iter().map(|filter| least_key_as_written(&pattern, filter)).collect();
            prop_assert!(keys.windows(2).all(|two| two[0] == two[1]), "{json} {keys:?}");
            // It is not greater than any key that is meant.
            for (filter, key) in filters.iter().zip(&keys) {
                let least = key_ranges(&pattern, filter).hull().map(|hull| hull.lo);
                prop_assert!(least.is_none_or(|least| *key <= least), "{json}");
            }
        }
    }
}

#[test]
fn plain_conditions_count() {
    let pattern = KeyPattern::parse(&json!({"a": 1})).unwrap();
    let key = |json: Json| least_key_as_written(&pattern, &Filter::parse_in(&json, &environments()[0]).unwrap());
    assert_eq!(key(json!({"a": 6, "$expr": {"$eq": ["$a", {"$toLong": "$$NOW"}]}})), key(json!({"a": 6})));
    assert!(key(json!({"a": 6})) > key(json!({"a": 5})));
    assert_eq!(key(json!({"$expr": {"$eq": ["$a", 6]}})), Vec::<u8>::new());
}
