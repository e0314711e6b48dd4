//! Aggregations over shards return the same as core does for all documents in one place, also while chunks move. An aborted
//! aggregation leaves no files or memory behind.

use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{InMemory, IterStream, Memory, Pipeline};
use docshard_core::values::document::value::Value as Document;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_tests::logins::create_role;
use docshard_tests::{Cluster, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::fs;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

const NS: &str = "test.orders";

/// Documents with keys on all nodes. Some fields are missing, null, or arrays.
fn orders() -> Vec<Value> {
    (0..3000)
        .map(|k| {
            let mut order =
                json!({"_id": k, "k": k % 300, "item": format!("item{}", k % 17), "price": f64::from(k % 40) * 0.25});
            match k % 5 {
                0 => order["tags"] = json!(["a", format!("t{}", k % 3), k % 4]),
                1 => order["tags"] = json!([]),
                2 => order["tags"] = Value::Null,
                3 => order["tags"] = json!("single"),
                _ => {}
            }
            order
        })
        .collect()
}

fn pipelines() -> Vec<Value> {
    vec![
        json!([{"$group": {"_id": "$item", "n": {"$sum": 1}, "total": {"$sum": "$price"}, "mean": {"$avg": "$price"}}}]),
        json!([{"$match": {"k": {"$gte": 90, "$lt": 210}}}, {"$unwind": "$tags"}, {"$group": {"_id": "$tags", "n": {"$sum": 1}}}]),
        json!([{"$match": {"k": 150}}, {"$group": {"_id": "$k", "all": {"$addToSet": "$item"}}}, {"$project": {"n": {"$size": "$all"}}}]),
        json!([{"$group": {"_id": "$k", "least": {"$min": "$price"}, "most": {"$max": "$price"}}}, {"$match": {"most": {"$gt": 9}}}]),
        json!([{"$sort": {"price": -1, "_id": 1}}, {"$skip": 5}, {"$limit": 20}, {"$set": {"rank": {"$multiply": ["$price", 2]}}}]),
        json!([{"$set": {"x": {"$mod": ["$_id", 7]}}}, {"$match": {"x": 3, "k": {"$lt": 150}}}, {"$sort": {"x": 1, "_id": -1}}, {"$limit": 9}]),
        json!([{"$bucket": {"groupBy": "$price", "boundaries": [0, 2, 5], "default": "more", "output": {"n": {"$sum": 1}}}}]),
        json!([{"$facet": {"n": [{"$count": "n"}], "dear": [{"$sort": {"price": -1, "_id": 1}}, {"$limit": 3}]}}]),
        json!([{"$sortByCount": {"$type": "$tags"}}]),
        json!([{"$group": {"_id": null, "top": {"$topN": {"n": 3, "sortBy": {"price": -1, "_id": 1}, "output": "$_id"}}, "median": {"$median": {"input": "$price", "method": "approximate"}}}}]),
        json!([{"$match": {"k": -1}}, {"$count": "n"}]),
    ]
}

/// Core's result for the documents, stage by stage; sorted, as most pipelines do not define an order.
fn expected(pipeline: &Value, documents: &[Value]) -> Vec<String> {
    let documents: Vec<_> = documents.iter().map(|d| write::value(&ext_json::from_json(d).unwrap()).unwrap()).collect();
    let memory: Rc<dyn Memory> = Rc::new(InMemory { stage_bytes: usize::MAX });
    let pipeline = Pipeline::parse(pipeline.as_array().unwrap(), &Environment::default()).unwrap();
    let mut stream = pipeline.run(Box::new(IterStream::new(documents)), &memory).unwrap();
    let mut results = Vec::new();
    while stream.advance().unwrap() {
        results.push(ext_json::to_json(&Document::from_raw(raw::root(stream.bytes()))).to_string());
    }
    results.sort_unstable();
    results
}

fn aggregate(client: &mut Client, pipeline: &Value) -> Result<Vec<String>, postgres::Error> {
    let sql = "SELECT docshard.aggregate($1::text, $2::text::json)";
    let rows = client.query(sql, &[&NS, &pipeline.to_string()])?;
    let mut results: Vec<String> = rows.iter().map(|row| row.get::<_, Value>(0).to_string()).collect();
    results.sort_unstable();
    Ok(results)
}

fn fill(cluster: &Cluster) -> Vec<Value> {
    let orders = orders();
    let texts: Vec<String> = orders.iter().map(Value::to_string).collect();
    cluster
        .router
        .client()
        .execute("SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])", &[&NS, &texts])
        .expect("documents are inserted");
    orders
}

/// Waits until no session of any node has a temporary file: an error reaches the client before the transaction has ended.
fn await_no_files(cluster: &Cluster, after: &str) {
    wait_until(&format!("the end of temporary files after {after}"), Duration::from_secs(10), || {
        let mut nodes = cluster.shards.iter().chain([&cluster.router]);
        nodes.all(|node| fs::read_dir(node.data().join("base/pgsql_tmp")).map_or(0, |files| files.count()) == 0)
    });
}

/// A sort must outlive the savepoint in which its cursor was first read, even if that is rolled back. An abandoned sort must
/// free its memory.
#[test]
fn a_cursor_outlives_the_savepoint_of_its_first_row() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let mut client = cluster.router.client();
    let declare = format!(
        "DECLARE c CURSOR FOR SELECT docshard.aggregate('{NS}', \
         '[{{\"$group\": {{\"_id\": \"$_id\", \"item\": {{\"$first\": \"$item\"}}}}}}, {{\"$sort\": {{\"_id\": 1}}}}]')"
    );
    for work_mem in ["64kB", "32MB"] {
        client
            .batch_execute(&format!(
                "BEGIN; SET LOCAL work_mem = '{work_mem}'; {declare}; SAVEPOINT s; FETCH 1 FROM c; ROLLBACK TO s"
            ))
            .unwrap();
        client.query("SELECT repeat('x', g) FROM generate_series(1, 3000) g", &[]).unwrap();
        let rest = client.query("FETCH ALL FROM c", &[]).unwrap();
        let ids: Vec<Value> = rest.iter().map(|row| row.get::<_, Value>(0)["_id"].clone()).collect();
        assert_eq!(ids, (1..3000).map(Value::from).collect::<Vec<_>>(), "{work_mem}");
        client.batch_execute("CLOSE c; COMMIT").unwrap();
    }
    client.batch_execute("BEGIN").unwrap();
    let used = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'docshard sort'";
    for _ in 0..3 {
        client.batch_execute(&format!("SAVEPOINT s; {declare}; FETCH 1 FROM c")).unwrap();
        assert!(client.query_one(used, &[]).unwrap().get::<_, i64>(0) > 0);
        client.batch_execute("ROLLBACK TO s").unwrap();
        assert_eq!(client.query_one(used, &[]).unwrap().get::<_, i64>(0), 0);
    }
    client.batch_execute("ROLLBACK").unwrap();
}

/// A cursor's statement may fail at a shard while another statement needs the connection. That statement cannot run in the shard's
/// aborted transaction, and is refused with the cursor's error.
#[test]
fn a_statement_behind_a_failed_cursor_is_refused_with_its_error() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let mut client = cluster.router.client();
    // The last document on shard0, and one that a write changes.
    let (last, first) = (2899, 100);
    let fails = json!([{"$match": {"k": {"$gte": 100, "$lt": 200}}}, {"$set": {"x": {"$divide": [1, {"$subtract": ["$_id", last]}]}}}]);
    let open = format!("DECLARE c CURSOR FOR SELECT docshard.aggregate('{NS}', '{fails}'); FETCH 10 FROM c");
    let count = format!("SELECT docshard.count_documents('{NS}', '{{\"k\": {{\"$gte\": 100, \"$lt\": 200}}}}')");
    let write =
        format!("SELECT docshard.update_one('{NS}', '{{\"k\": 100, \"_id\": {first}}}', '{{\"$set\": {{\"w\": 1}}}}')");
    let is_refused = |client: &mut Client, sql: &str, begin: &str| {
        let error = client.batch_execute(sql).expect_err("the shard's transaction has failed");
        let error = error.as_db_error().unwrap_or_else(|| panic!("{begin}, {sql}: {error:?}"));
        assert_eq!(error.code().code(), "22023", "{begin}, {sql}: {error:?}");
        assert!(error.message().contains("shard \"shard0\": can't $divide by zero"), "{begin}, {sql}: {error:?}");
        assert_eq!(error.detail(), Some("MongoDB error 2 (BadValue)."), "{begin}, {sql}: {error:?}");
    };
    // What came before keeps the shard's transaction: its snapshot, or its write.
    for begin in [format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {count}"), format!("BEGIN; {write}")] {
        client.batch_execute(&format!("{begin}; {open}; SAVEPOINT s")).unwrap();
        is_refused(&mut client, &count, &begin);
        // The savepoint is younger than the cursor's statement.
        client.batch_execute("ROLLBACK TO s").unwrap();
        is_refused(&mut client, &write, &begin);
        client.batch_execute("ROLLBACK").unwrap();
        // A savepoint before the cursor's statement.
        client.batch_execute(&format!("{begin}; {count}; SAVEPOINT s; {open}")).unwrap();
        is_refused(&mut client, &count, &begin);
        client.batch_execute(&format!("ROLLBACK TO s; {count}; {write}; COMMIT")).unwrap();
    }
    // A commit needs the write's transaction.
    client.batch_execute(&format!("BEGIN; {write}; {open}; SAVEPOINT s")).unwrap();
    is_refused(&mut client, &count, "before a commit");
    client.batch_execute("ROLLBACK TO s").unwrap();
    is_refused(&mut client, "COMMIT", "at the commit");
    // Without a transaction at the shard only the cursor fails.
    client.batch_execute(&format!("BEGIN; {open}; {count}")).unwrap();
    let error = client.batch_execute("FETCH ALL FROM c").expect_err("it divides by zero");
    assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}");
}

#[test]
fn aggregations_return_the_same_over_shards_and_while_chunks_move() {
    let cluster = Cluster::spread(NS);
    let orders = fill(&cluster);
    let mut client = cluster.router.client();
    let cases: Vec<(Value, Vec<String>)> =
        pipelines().into_iter().map(|pipeline| (pipeline.clone(), expected(&pipeline, &orders))).collect();
    for work_mem in ["4MB", "64kB"] {
        client.batch_execute(&format!("SET work_mem = '{work_mem}'")).unwrap();
        for (pipeline, expected) in &cases {
            assert_eq!(&aggregate(&mut client, pipeline).unwrap(), expected, "{pipeline} with {work_mem}");
        }
    }

    let moves = [(150, "shard1"), (50, "shard0"), (250, "local"), (150, "local"), (50, "shard1")];
    let moves = moves.map(|(k, shard)| (NS, json!({"k": k}), shard));
    cluster.while_chunks_move(&moves, || {
        for (pipeline, expected) in &cases {
            let found = aggregate(&mut client, pipeline);
            assert_eq!(&found.unwrap_or_else(|e| panic!("{pipeline}: {e:?}")), expected, "{pipeline} during moves");
        }
    });
}

#[test]
fn an_aggregation_that_is_cut_off_leaves_nothing() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let mut client = cluster.router.client();
    // Each pipeline needs more memory than allowed, so it has temporary files when it fails or is abandoned.
    client.batch_execute("SET work_mem = '64kB'").unwrap();
    let wide = json!({"$set": {"s": {"$range": [0, 300]}}});
    let sort = json!({"$sort": {"price": 1}});
    let group = json!({"$group": {"_id": "$_id", "all": {"$push": "$s"}}});
    let fails = json!({"$set": {"x": {"$divide": [1, {"$subtract": ["$_id", 2999]}]}}});
    for stages in
        [json!([wide, sort, fails]), json!([wide, group, sort, fails]), json!([wide, {"$facet": {"a": [sort, fails]}}])]
    {
        let error = aggregate(&mut client, &stages).expect_err("it divides by zero");
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}");
        await_no_files(&cluster, &format!("an error in {stages}"));
    }
    let sql = format!("SELECT docshard.aggregate('{NS}', '{}') LIMIT 1", json!([wide, group, sort]));
    assert_eq!(client.query(&sql, &[]).unwrap().len(), 1);
    await_no_files(&cluster, "a limit");

    let cancel = client.cancel_token();
    for _ in 0..10 {
        let cancelling = thread::spawn({
            let cancel = cancel.clone();
            move || {
                thread::sleep(Duration::from_millis(fastrand::u64(5..150)));
                let _ = cancel.cancel_query(postgres::NoTls);
            }
        });
        let found = aggregate(&mut client, &json!([wide, group, sort, {"$facet": {"n": [{"$count": "n"}]}}]));
        if let Err(error) = found {
            assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
        }
        cancelling.join().unwrap();
        await_no_files(&cluster, "a cancel");
    }
    assert_eq!(aggregate(&mut client, &json!([{"$count": "n"}])).unwrap(), ["{\"n\":3000}"]);
}

/// A `SECURITY DEFINER` function may have read documents that its caller may not. If that read fails after the function has returned,
/// the caller's next statement cannot run, and does not show why.
#[test]
fn the_error_of_another_users_read_is_not_shown() {
    let cluster = Cluster::spread(NS);
    fill(&cluster);
    let router = &cluster.router;
    router.psql("SELECT docshard.create_collection('test.open')");
    router.psql("SELECT docshard.move_primary('test', 'shard0')");
    create_role(&cluster, "caller", &json!({"read": "test.open"}));
    let stages = json!([{"$match": {"k": {"$gte": 100, "$lt": 200}}}, {"$set": {"x": {"$cond": [{"$lt": ["$_id", 2800]}, 1, {"$toInt": "$item"}]}}}]);
    router.psql(&format!(
        "CREATE FUNCTION public.first() RETURNS jsonb LANGUAGE sql SECURITY DEFINER \
         BEGIN ATOMIC SELECT docshard.aggregate('{NS}', '{stages}') LIMIT 1; END"
    ));
    let mut client = router.try_client_as("caller", "postgres").expect("a session");
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT docshard.count_documents('test.open'); SELECT public.first()").unwrap();
    let error = client
        .batch_execute("SELECT docshard.count_documents('test.open')")
        .expect_err("the shard's transaction has failed");
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "25P02", "{error:?}");
    assert!(!format!("{error:?}").contains("item"), "{error:?}");
}
