//! Plans of reads, made without a server: for random collections, chunk maps, indexes, filters and options, a plan is executed here over
//! documents in memory, each shard by what its statement says, and its result is compared with that of a filter and a sort of all.

mod common;

use docshard_core::cluster::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::query::environment::{Environment, Session};
use docshard_core::query::index::IndexKeys;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::plan::index_range::Declined;
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::{self, AccessPath, Allowed, Plan};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::documents::{IndexRangeSearch, SHARD_KEY};
use docshard_core::routing::protocol::pipeline::PipelineRequest;
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::element::Element;
use docshard_core::values::key::KeyPattern;
use docshard_core::values::key::encode::encode;
use proptest::prelude::*;
use proptest::sample::{Index as Position, select};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use std::rc::Rc;

const SESSION: Session = Session { now: 0, roles: || Ok(Vec::new()) };

/// A document with what shards store of it.
#[derive(Debug)]
struct Stored {
    bytes: Vec<u8>,
    skey: Vec<u8>,
    id: Vec<u8>,
    shard: ShardId,
}

fn index(id: i32, keys: &Json) -> Index {
    let parsed = IndexKeys::parse(keys).unwrap();
    let keys_json = keys.to_string();
    Index {
        id,
        name: parsed.default_name(),
        definition: IndexKeys::definition(&keys_json, None, None),
        keys_json,
        keys: parsed,
        wildcard_projection: None,
        unique: false,
        hidden: false,
        sparse: false,
        partial: None,
        expire_after_s: None,
    }
}

/// A collection whose chunks begin at the shard keys of some of the documents.
fn collection(key: &Json, indexes: &[Json], documents: &[Json], owners: &[ShardId]) -> (Collection, Vec<Stored>) {
    let key = if key == &json!({}) { KeyPattern::unsharded() } else { KeyPattern::parse(key).unwrap() };
    let documents: Vec<Vec<u8>> = documents.iter().map(common::bytes).collect();
    let skey = |bytes: &[u8]| key.key_of(common::document(bytes)).expect("no array");
    let mut bounds = BTreeSet::from([key.min_bound()]);
    if !key.is_unsharded() {
        bounds.extend(documents.iter().step_by(3).map(|bytes| skey(bytes)));
    }
    let bounds: Vec<Vec<u8>> =
        bounds.into_iter().filter(|bound| key.is_unsharded() || *bound < key.max_bound()).collect();
    let ends = bounds.iter().skip(1).cloned().chain([key.max_bound()]);
    let chunks = bounds.iter().zip(ends).zip(owners.iter().cycle());
    let map = ChunkMap::new(chunks.map(|((min, max), &shard)| Chunk { min: min.clone(), max, shard })).unwrap();
    let stored = documents.into_iter().map(|bytes| {
        let (mut id, skey) = (Vec::new(), skey(&bytes));
        encode(&common::document(&bytes).get("_id").map_or(Element::Null, Element::of), &mut id);
        Stored { shard: map.owner(&skey), bytes, skey, id }
    });
    let stored = stored.collect();
    let collection = Collection {
        id: 7,
        namespace: "db.c".to_owned(),
        unique: false,
        has_key_index: true,
        collation: None,
        validation: None,
        token: 11,
        revision: 1,
        placements: (1..4).map(|shard| (shard, 5)).collect(),
        indexes: (1..).zip(indexes).map(|(id, keys)| index(id, keys)).collect(),
        map: Rc::new(map),
        key,
        sampled_every_us: None,
        is_undecided: false,
    };
    (collection, stored)
}

fn query(filter: &Json) -> Query {
    let environment = Environment::of_statement(None, None, SESSION).unwrap();
    Query::of(filter, &filter.to_string(), environment).unwrap()
}

fn options(sort: Option<&Json>, projection: Option<&Json>, skip: u64, limit: Option<u64>) -> FindOptions {
    FindOptions {
        sort: sort.map(|sort| (Sort::parse(sort).unwrap(), sort.to_string())),
        included: projection.and_then(|projection| Projection::parse(projection).unwrap().included()),
        projection: projection.map(Json::to_string),
        skip,
        limit,
        ..FindOptions::default()
    }
}

/// The numbers after a word in a statement.
fn numbers_after(sql: &str, word: &str) -> Vec<u64> {
    let after = sql.split(word).skip(1);
    after.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

fn text_of(plan: &Plan) -> &str {
    match plan.statement.params.last() {
        Some(Parameter::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// By what a shard's rows are in order.
fn place(collection: &Collection, plan: &Plan, options: &FindOptions, document: &Stored) -> Vec<u8> {
    let Some((sort, _)) = &options.sort else { return Vec::new() };
    let sql = &plan.statement.sql;
    let by_shard_key = matches!(plan.path, AccessPath::IndexRange { finds, .. } if finds.index == SHARD_KEY);
    if sql.contains("ORDER BY t.skey") || by_shard_key {
        return document.skey.clone();
    }
    if sql.contains("ORDER BY t.id") {
        return document.id.clone();
    }
    let raw = common::document(&document.bytes);
    if let AccessPath::IndexRange { finds, sorted: false, .. } = plan.path {
        let keys = &collection.indexes.iter().find(|index| index.id == finds.index).unwrap().keys;
        let column = |(column, (_, descending)): (usize, &(String, bool))| {
            let turned = if *descending { 0xFF } else { 0 };
            keys.key(raw, column).into_iter().map(move |byte| byte ^ turned)
        };
        return keys.fields.iter().enumerate().flat_map(column).collect();
    }
    sort.key_of(raw).unwrap()
}

/// The rows of one shard in their order; None if the shard declines.
fn at_shard<'d>(
    collection: &Collection,
    plan: &Plan,
    options: &FindOptions,
    mut found: Vec<&'d Stored>,
) -> Option<Vec<&'d Stored>> {
    let single = plan.destinations.len() == 1;
    let needed = options.limit.map(|limit| limit + options.skip);
    let backward = matches!(plan.path, AccessPath::IndexRange { backward: true, sorted: false, .. });
    let sql = &plan.statement.sql;
    let descending = backward || sql.contains("ORDER BY t.skey DESC") || sql.contains("ORDER BY t.id DESC");
    found.sort_by_key(|document| place(collection, plan, options, document));
    if descending {
        found.reverse();
    }
    let (mut skip, mut limit) = (0, u64::MAX);
    match plan.path {
        AccessPath::Nothing => unreachable!("no shard is asked"),
        AccessPath::Key => {}
        AccessPath::IndexRange { finds, .. } => {
            if finds.index != SHARD_KEY {
                let keys = &collection.indexes.iter().find(|index| index.id == finds.index).unwrap().keys;
                if found.iter().any(|document| keys.has_entries_of(common::document(&document.bytes))) {
                    return None;
                }
            }
            let search = IndexRangeSearch::parse(text_of(plan)).unwrap();
            let most = search.most as u64;
            assert!(needed.is_none_or(|needed| most >= needed), "{search:?}");
            if search.all && found.len() as u64 > most {
                return None;
            }
            limit = most;
        }
        AccessPath::BoundedSort { most } => {
            let work = PipelineRequest::parse(text_of(plan)).unwrap();
            let (sort, _) = options.sort.as_ref().unwrap();
            assert_eq!(work.stages[0], json!({"$sort": sort.to_json()}));
            assert_eq!(work.stages[1], json!({"$limit": most}));
            assert_eq!(Some(most), needed);
            limit = most;
            if let Some(stage) = work.stages.get(2) {
                skip = stage["$skip"].as_u64().unwrap();
                limit -= skip;
            }
        }
        _ => {
            let limits = numbers_after(sql, "LIMIT ");
            let outer = limits.last().copied().filter(|_| options.limit.is_some());
            let inner = &limits[..limits.len().saturating_sub(1)];
            assert!(inner.iter().all(|inner| needed.is_some_and(|needed| *inner >= needed)), "{sql}");
            if options.limit.is_none() {
                assert!(limits.is_empty(), "{sql}");
            }
            limit = outer.unwrap_or(u64::MAX);
            skip = numbers_after(sql, "OFFSET ").last().copied().unwrap_or(0);
        }
    }
    assert!(single || skip == 0, "a shard among several skips: {sql}");
    let rows = found.into_iter().skip(usize::try_from(skip).unwrap());
    Some(rows.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
}

/// The result of a plan; None if a shard declines.
fn execute<'d>(
    collection: &Collection,
    plan: &Plan,
    options: &FindOptions,
    matching: &[&'d Stored],
) -> Option<Vec<&'d Stored>> {
    let mut rows = Vec::new();
    for to in &plan.destinations {
        let found = matching.iter().copied().filter(|document| document.shard == to.shard).collect();
        rows.extend(at_shard(collection, plan, options, found)?);
    }
    if plan.destinations.len() > 1 && options.sort.is_some() {
        // Secondary indexes and searches by them send the key of the sort.
        let by_column = matches!(plan.path, AccessPath::IndexRange { finds, .. } if finds.index == SHARD_KEY)
            || plan.statement.sql.contains("ORDER BY t.");
        let key = |document: &Stored| match (&options.sort, by_column) {
            (Some((sort, _)), false) => sort.key_of(common::document(&document.bytes)).unwrap(),
            _ => place(collection, plan, options, document),
        };
        match plan.order {
            Order::None => panic!("rows of several shards are not merged: {plan:?}"),
            Order::Ascending => rows.sort_by_key(|document| key(document)),
            Order::Descending => rows.sort_by_key(|document| std::cmp::Reverse(key(document))),
        }
    }
    let left = plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    Some(rows.into_iter().skip(usize::try_from(plan.skip).unwrap()).take(left).collect())
}

fn scalar() -> impl Strategy<Value = Json> + Clone {
    select(vec![json!(0), json!(1), json!(2), json!(2.0), json!("x"), json!("y"), json!(null), json!({"d": 1})])
}

fn documents() -> impl Strategy<Value = Vec<Json>> {
    let any = prop_oneof![3 => scalar(), 1 => proptest::collection::vec(scalar(), 0..3).prop_map(Json::from)];
    let field = |value: BoxedStrategy<Json>| proptest::option::weighted(0.85, value);
    let document = (field(scalar().boxed()), field(scalar().boxed()), field(any.boxed())).prop_map(|(a, b, c)| {
        let fields = [("a", a), ("b", b), ("c", c)].into_iter().filter_map(|(name, value)| Some((name, value?)));
        fields.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
    });
    proptest::collection::vec(document, 0..14).prop_map(|documents| {
        let with_id = |(id, mut document): (usize, Map<String, Json>)| {
            document.insert("_id".to_owned(), json!(id));
            Json::Object(document)
        };
        documents.into_iter().enumerate().map(with_id).collect()
    })
}

fn filter() -> impl Strategy<Value = Json> {
    let operand = || prop_oneof![scalar(), (0..14).prop_map(Json::from)];
    let condition = prop_oneof![
        4 => operand(),
        3 => (select(vec!["$gt", "$gte", "$lt", "$lte", "$ne"]), operand()).prop_map(|(name, value)| json!({name: value})),
        1 => (operand(), operand()).prop_map(|(lo, hi)| json!({"$gte": lo, "$lt": hi})),
        2 => proptest::collection::vec(operand(), 1..4).prop_map(|values| json!({"$in": values})),
        1 => any::<bool>().prop_map(|exists| json!({"$exists": exists})),
    ];
    let fields = proptest::collection::hash_map(select(vec!["_id", "a", "b", "c"]), condition, 0..3);
    fields.prop_map(|fields| json!(fields)).prop_recursive(2, 6, 3, |inner| {
        (select(vec!["$and", "$or", "$nor"]), proptest::collection::vec(inner, 1..3))
            .prop_map(|(name, list)| json!({name: list}))
    })
}

fn sort() -> impl Strategy<Value = Option<Json>> {
    let field = || (select(vec!["_id", "a", "b", "c"]), select(vec![1, -1]));
    proptest::option::weighted(
        0.7,
        proptest::collection::vec(field(), 1..4).prop_map(|fields| {
            Json::Object(fields.into_iter().map(|(name, direction)| (name.to_owned(), json!(direction))).collect())
        }),
    )
}

const KEYS: [&str; 6] =
    ["{}", r#"{"a": 1}"#, r#"{"a": "hashed"}"#, r#"{"a": 1, "b": 1}"#, r#"{"_id": 1}"#, r#"{"b": "hashed", "a": 1}"#];
const INDEXES: [&str; 6] = [
    r#"{"a": 1}"#,
    r#"{"b": -1}"#,
    r#"{"c": 1}"#,
    r#"{"c": 1, "b": -1}"#,
    r#"{"b": 1, "a": -1, "c": 1}"#,
    r#"{"_id": 1, "a": 1}"#,
];

fn parsed(texts: &[&str]) -> Vec<Json> {
    texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_plan_finds_what_a_search_of_all_documents_finds(
        key in select(parsed(&KEYS)),
        indexes in proptest::sample::subsequence(parsed(&INDEXES), 0..=4),
        documents in documents(),
        owners in proptest::collection::vec(1..4i32, 1..5),
        filter in filter(),
        sort in sort(),
        projection in proptest::option::weighted(0.3, select(vec![json!({"a": 1}), json!({"_id": 0, "b": 1, "a": 1}), json!({"c": 0})])),
        skip in select(vec![0, 0, 1, 3]),
        limit in proptest::option::weighted(0.6, 1..6u64),
    ) {
        let (collection, stored) = collection(&key, &indexes, &documents, &owners);
        let (query, options) = (query(&filter), options(sort.as_ref(), projection.as_ref(), skip, limit));
        let is_match = |document: &&Stored| query.filter.evaluate(common::document(&document.bytes)).unwrap();
        let matching: Vec<&Stored> = stored.iter().filter(is_match).collect();
        let search = Search::new(&collection, &query, false).unwrap();
        let declined = Declined::default();
        let count = plan::count(&search, &CountOptions::default()).unwrap();
        for plan in [
            plan::find(&search, &options, Allowed::All(&declined)).unwrap(),
            plan::find(&search, &options, Allowed::Planned).unwrap(),
        ] {
            for document in &matching {
                prop_assert!(plan.destinations.iter().any(|to| to.shard == document.shard), "{plan:?} misses {document:?}");
            }
            prop_assert_eq!(&plan.destinations, &count.destinations);
            let Some(found) = execute(&collection, &plan, &options, &matching) else { continue };
            let wanted = matching.len().saturating_sub(usize::try_from(skip).unwrap());
            let wanted = limit.map_or(wanted, |limit| wanted.min(usize::try_from(limit).unwrap()));
            prop_assert_eq!(found.len(), wanted, "{:?}", plan);
            let ids: BTreeSet<&[u8]> = found.iter().map(|document| document.id.as_slice()).collect();
            prop_assert_eq!(ids.len(), found.len());
            if let Some((sort, _)) = &options.sort {
                let keys = |documents: &[&Stored]| -> Vec<Vec<u8>> {
                    documents.iter().map(|document| sort.key_of(common::document(&document.bytes)).unwrap()).collect()
                };
                let mut all = keys(&matching);
                all.sort();
                let from = usize::try_from(skip).unwrap().min(all.len());
                prop_assert_eq!(keys(&found), &all[from..from + wanted], "{:?}", plan);
            }
        }
    }

    #[test]
    fn a_declined_find_takes_another_path_for_a_while(at in any::<Position>()) {
        let finds = 1 + at.index(300);
        let (collection, _) = collection(&json!({}), &[json!({"a": 1})], &[], &[1]);
        let query = query(&json!({"a": 1}));
        let search = Search::new(&collection, &query, false).unwrap();
        let declined = Declined::default();
        let path = |allowed| plan::find(&search, &options(None, None, 0, None), allowed).unwrap().path;
        let AccessPath::IndexRange { finds: by_index, .. } = path(Allowed::All(&declined)) else { panic!("an index range") };
        declined.note(by_index);
        for number in 0..finds {
            // To explain a find does not count.
            let explained = matches!(path(Allowed::AllToExplain(&declined)), AccessPath::IndexRange { .. });
            prop_assert_eq!(explained, number >= 200);
            prop_assert_eq!(matches!(path(Allowed::All(&declined)), AccessPath::IndexRange { .. }), number >= 200);
        }
    }
}

/// The parts of a plan as text.
fn printed(plan: &Plan) -> String {
    let shards: Vec<String> = plan.destinations.iter().map(|to| format!("{} at {}", to.shard, to.version)).collect();
    let Plan { path, order, skip, limit, statement, .. } = plan;
    format!(
        "{path:?} on {shards:?}, {order:?}, skip {skip}, limit {limit:?}\n{}\n{:?}",
        statement.sql, statement.params
    )
}

#[test]
fn a_plan_can_be_made_and_printed_without_a_server() {
    let documents =
        [json!({"_id": 1, "a": 1}), json!({"_id": 2, "a": 2}), json!({"_id": 3, "a": 3}), json!({"_id": 4, "a": 4})];
    let (collection, _) = collection(&json!({"a": 1}), &[], &documents, &[1, 2, 3]);
    let query = query(&json!({"a": {"$gte": 1}, "b": "x"}));
    let search = Search::new(&collection, &query, false).unwrap();
    let plan = plan::find(&search, &options(Some(&json!({"a": -1})), None, 2, Some(3)), Allowed::Planned).unwrap();
    let printed = printed(&plan);
    println!("{printed}");
    let [first, sql, params] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!(first, r#"Conditions on ["2 at 5", "3 at 5"], Descending, skip 2, limit Some(3)"#);
    assert!(sql.starts_with("SELECT docshard_internal.pack(t.doc), t.skey FROM docshard_data.c7 t WHERE docshard_internal.at_version(7, $1, $2)"), "{sql}");
    assert!(sql.ends_with(" ORDER BY t.skey DESC LIMIT 5"), "{sql}");
    assert!(
        params.starts_with("[Int8(11), Int8(0), ") && params.contains(r#"Text("{\"a\":{\"$gte\":1},\"b\":\"x\"}")"#),
        "{params}"
    );
}
