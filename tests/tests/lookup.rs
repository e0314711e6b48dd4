//! Pipelines that read several collections, over shards: they come to what core makes of the same documents in one place, also while
//! the chunks of these collections move, and leave nothing behind when they are cut off.

use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Database, InMemory, IterStream, Memory, Pipeline, Resources};
use docshard_core::values::document::value::Value as Document;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_tests::Cluster;
use postgres::Client;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

/// Sharded by ranges of `k`, as [`Cluster::spread`] does.
const NS: &str = "test.orders";

/// Orders of each of the range-sharded collection's shards.
fn orders() -> Vec<Value> {
    let item = |k: i64| match k % 7 {
        0 => json!([k % 40, k % 9]),
        1 => Value::Null,
        2 => json!(f64::from(k as i32 % 40)),
        _ => json!(k % 60),
    };
    (0..1500)
        .map(|k| match k % 11 {
            0 => json!({"_id": k, "k": k % 300}),
            _ => json!({"_id": k, "k": k % 300, "item": item(k), "o": {"who": k % 50}}),
        })
        .collect()
}

fn items() -> Vec<Value> {
    (0..50)
        .map(|n| match n % 10 {
            0 => json!({"_id": n, "tags": [n, n + 1], "price": n}),
            _ => json!({"_id": n, "code": n, "tags": [n % 5, {"x": n}], "price": n}),
        })
        .collect()
}

fn people() -> Vec<Value> {
    (0..120).map(|n| json!({"_id": format!("p{n}"), "n": n, "boss": n / 3, "likes": [n % 7, n % 5]})).collect()
}

fn pipelines() -> Vec<Value> {
    let lookup = |stage: Value| json!([{"$lookup": stage}]);
    vec![
        lookup(json!({"from": "items", "localField": "item", "foreignField": "_id", "as": "m"})),
        lookup(json!({"from": "items", "localField": "item", "foreignField": "tags", "as": "o.m"})),
        lookup(
            json!({"from": "items", "localField": "item", "foreignField": "code", "as": "m", "pipeline": [{"$match": {"price": {"$lt": 30}}}, {"$project": {"price": 1}}]}),
        ),
        json!([
            {"$match": {"k": {"$gte": 90, "$lt": 210}}},
            {"$lookup": {"from": "people", "localField": "o.who", "foreignField": "boss", "as": "p"}},
            {"$unwind": {"path": "$p", "preserveNullAndEmptyArrays": true}},
            {"$group": {"_id": "$p.n", "n": {"$sum": 1}}},
        ]),
        json!([
            {"$match": {"_id": {"$lt": 40}}},
            {"$lookup": {"from": "orders", "let": {"k": "$k"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$k", "$$k"]}}}, {"$count": "n"}], "as": "same"}},
        ]),
        json!([
            {"$match": {"_id": {"$lt": 12}}},
            {"$lookup": {"from": "people", "let": {"k": "$k"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$n", "$$k"]}}}, {"$group": {"_id": null, "s": {"$sum": "$boss"}}}], "as": "p"}},
        ]),
        lookup(
            json!({"from": "people", "pipeline": [{"$sort": {"n": -1}}, {"$limit": 2}, {"$project": {"n": 1}}], "as": "top"}),
        ),
        json!([{"$unionWith": {"coll": "people", "pipeline": [{"$match": {"n": {"$lt": 9}}}]}}, {"$unionWith": "items"}, {"$project": {"k": 1, "n": 1}}]),
        json!([
            {"$match": {"_id": {"$lt": 60}}},
            {"$graphLookup": {"from": "people", "startWith": "$o.who", "connectFromField": "n", "connectToField": "boss", "as": "below", "depthField": "d", "maxDepth": 2}},
            {"$project": {"below.n": 1, "below.d": 1}},
        ]),
        json!([
            {"$match": {"_id": {"$lt": 30}}},
            {"$lookup": {"from": "people", "localField": "k", "foreignField": "n", "as": "p", "pipeline": [
                {"$lookup": {"from": "items", "localField": "likes", "foreignField": "_id", "as": "liked", "pipeline": [{"$sort": {"_id": 1}}]}},
            ]}},
        ]),
    ]
}

/// The results as texts, sorted, with the elements of arrays sorted, too: most pipelines leave both orders open.
fn sorted(results: Vec<Value>) -> Vec<String> {
    fn order(value: &mut Value, inside: bool) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields.iter_mut() {
                    order(value, ["m", "same", "p", "below"].contains(&name.as_str()));
                }
            }
            Value::Array(items) => {
                items.iter_mut().for_each(|item| order(item, false));
                if inside {
                    items.sort_by_key(Value::to_string);
                }
            }
            _ => {}
        }
    }
    let text = |mut result: Value| {
        order(&mut result, false);
        result.to_string()
    };
    let mut texts: Vec<String> = results.into_iter().map(text).collect();
    texts.sort_unstable();
    texts
}

/// What core makes of the documents, one stage after the other.
fn expected(pipeline: &Value, collections: &HashMap<&str, Vec<Value>>) -> Vec<String> {
    let written = |documents: &Vec<Value>| {
        documents.iter().map(|d| write::value(&ext_json::from_json(d).unwrap()).unwrap()).collect::<Vec<_>>()
    };
    let all = collections.iter().map(|(name, documents)| ((*name).to_owned(), written(documents)));
    let memory = InMemory { stage_bytes: usize::MAX };
    let database = Database { collections: Rc::new(all.collect()), memory };
    let documents = database.collections["orders"].clone();
    let memory: Rc<dyn Memory> = Rc::new(memory);
    let resources = Resources { memory, collections: Rc::new(database) };
    let pipeline = Pipeline::parse(pipeline.as_array().unwrap(), &Environment::default()).unwrap();
    let mut stream = pipeline.run_with(Box::new(IterStream::new(documents)), &resources).unwrap();
    let mut results = Vec::new();
    while stream.advance().unwrap() {
        results.push(ext_json::to_json(&Document::from_raw(raw::root(stream.bytes()))));
    }
    sorted(results)
}

fn aggregate(client: &mut Client, pipeline: &Value) -> Result<Vec<String>, postgres::Error> {
    let sql = "SELECT docshard.aggregate($1::text, $2::text::json)";
    let rows = client.query(sql, &[&NS, &pipeline.to_string()])?;
    Ok(sorted(rows.iter().map(|row| row.get::<_, Value>(0)).collect()))
}

fn fill(cluster: &Cluster) -> HashMap<&'static str, Vec<Value>> {
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.shard_collection('test.people', '{\"boss\": 1, \"n\": 1}')").unwrap();
    for (boss, shard) in [(10, "shard0"), (25, "shard1")] {
        let bound = format!("'test.people', '{{\"boss\": {boss}, \"n\": {{\"$minKey\": 1}}}}'");
        client.batch_execute(&format!("SELECT docshard.split_at({bound})")).unwrap();
        client.batch_execute(&format!("SELECT docshard.move_chunk({bound}, '{shard}')")).unwrap();
    }
    let collections = HashMap::from([("orders", orders()), ("items", items()), ("people", people())]);
    for (name, documents) in &collections {
        let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
        let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
        client.execute(sql, &[&format!("test.{name}"), &texts]).expect("documents are inserted");
    }
    collections
}

#[test]
fn joins_return_the_same_over_shards_and_while_chunks_move() {
    let cluster = Cluster::spread(NS);
    let collections = fill(&cluster);
    let mut client = cluster.router.client();
    let cases: Vec<(Value, Vec<String>)> =
        pipelines().into_iter().map(|pipeline| (pipeline.clone(), expected(&pipeline, &collections))).collect();
    for work_mem in ["4MB", "64kB"] {
        client.batch_execute(&format!("SET work_mem = '{work_mem}'")).unwrap();
        for (pipeline, expected) in &cases {
            assert_eq!(&aggregate(&mut client, pipeline).unwrap(), expected, "{pipeline} with {work_mem}");
        }
    }

    let moves = [
        (NS, json!({"k": 150}), "shard1"),
        ("test.people", json!({"boss": 5, "n": 0}), "shard1"),
        (NS, json!({"k": 50}), "shard0"),
        ("test.people", json!({"boss": 30, "n": 0}), "local"),
        (NS, json!({"k": 250}), "local"),
        ("test.people", json!({"boss": 5, "n": 0}), "shard0"),
    ];
    cluster.while_chunks_move(&moves, || {
        for (pipeline, expected) in &cases {
            let found = aggregate(&mut client, pipeline);
            assert_eq!(&found.unwrap_or_else(|e| panic!("{pipeline}: {e:?}")), expected, "{pipeline} during moves");
        }
    });
}

/// Within a transaction of one snapshot all collections are read as of its beginning; and what the transaction itself has written is
/// found.
#[test]
fn a_transaction_sees_one_state_of_all_collections() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let (mut client, mut other) = (cluster.router.client(), cluster.router.client());
    let joined = json!([{"$match": {"_id": 3}}, {"$lookup": {"from": "people", "localField": "_id", "foreignField": "boss", "as": "p"}}, {"$project": {"n": {"$size": "$p"}}}]);
    let count = |client: &mut Client| aggregate(client, &joined).unwrap();
    client.batch_execute("BEGIN").unwrap();
    client.batch_execute("SELECT docshard.insert_one('test.people', '{\"boss\": 3, \"n\": -1}')").unwrap();
    assert_eq!(count(&mut client), ["{\"n\":4,\"_id\":3}"]);
    client.batch_execute("ROLLBACK").unwrap();
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(count(&mut client), ["{\"n\":3,\"_id\":3}"]);
    other.batch_execute("SELECT docshard.insert_one('test.people', '{\"boss\": 3, \"n\": -2}')").unwrap();
    assert_eq!(count(&mut client), ["{\"n\":3,\"_id\":3}"]);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(count(&mut client), ["{\"n\":4,\"_id\":3}"]);
}

#[test]
fn a_join_that_is_cut_off_leaves_nothing() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let mut client = cluster.router.client();
    let each = json!({"$lookup": {"from": "people", "let": {"k": "$k"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$n", "$$k"]}}}], "as": "p"}});
    let batches = json!({"$lookup": {"from": "people", "localField": "o.who", "foreignField": "boss", "as": "p"}});
    let fails = json!({"$set": {"x": {"$divide": [1, {"$subtract": ["$_id", 700]}]}}});
    for stage in [&each, &batches] {
        let error = aggregate(&mut client, &json!([stage, fails])).expect_err("it divides by zero");
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}");
        let sql = format!("SELECT docshard.aggregate('{NS}', '{}') LIMIT 3", json!([stage]));
        assert_eq!(client.query(&sql, &[]).unwrap().len(), 3);
    }
    let cancel = client.cancel_token();
    let mut cancelled = 0;
    for _ in 0..10 {
        let cancelling = thread::spawn({
            let cancel = cancel.clone();
            move || {
                thread::sleep(Duration::from_millis(fastrand::u64(5..150)));
                let _ = cancel.cancel_query(postgres::NoTls);
            }
        });
        if let Err(error) = aggregate(&mut client, &json!([each])) {
            assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
            cancelled += 1;
        }
        cancelling.join().unwrap();
    }
    assert!(cancelled > 0, "1,500 queries take longer than 150 ms");
    assert_eq!(aggregate(&mut client, &json!([{"$count": "n"}])).unwrap(), ["{\"n\":1500}"]);
    for node in cluster.shards.iter().chain([&cluster.router]) {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        docshard_tests::wait_until("the end of queries at the nodes", Duration::from_secs(10), || {
            node.client().query_one(sql, &[]).unwrap().get::<_, i64>(0) == 0
        });
    }
}
