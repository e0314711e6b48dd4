//! Pipelines over every layout of a collection return what core computes from the same documents, also while chunks move and with
//! little memory. A session that ends early leaves no processes or temporary files.

use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{InMemory, IterStream, Memory, Pipeline};
use docshard_core::values::document::value::Value as Document;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_tests::{Cluster, Node, wait_until};
use fastrand::Rng;
use postgres::Client;
use serde_json::{Value, json};
use std::fs;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

/// The same documents in collections of every layout.
const LAYOUTS: [&str; 5] = ["test.unsharded", "test.ranged", "test.compound", "test.hashed", "test.one"];

/// Starts a cluster whose collections are on one shard, or in several chunks on three.
fn cluster() -> Cluster {
    let cluster = Cluster::spread("test.ranged");
    let mut client = cluster.router.client();
    let mut run = |sql: String| client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    run("SELECT docshard.create_collection('test.unsharded')".to_owned());
    for (namespace, key) in
        [("compound", r#"{"k": 1, "price": 1}"#), ("hashed", r#"{"k": "hashed"}"#), ("one", r#"{"k": 1}"#)]
    {
        run(format!("SELECT docshard.shard_collection('test.{namespace}', '{key}')"));
    }
    for (k, shard) in [(100, "shard0"), (200, "shard1")] {
        // A boundary inside the documents of one `k`.
        let key = format!(r#"{{"k": {k}, "price": 3}}"#);
        run(format!("SELECT docshard.split_at('test.compound', '{key}')"));
        run(format!("SELECT docshard.move_chunk('test.compound', '{key}', '{shard}')"));
    }
    run("SELECT docshard.move_chunk('test.one', '{\"k\": 1}', 'shard1')".to_owned());
    cluster
}

/// Returns documents in which some fields are missing, null, or arrays.
fn documents() -> Vec<Value> {
    (0..1500)
        .map(|n| {
            let mut document = json!({
                "_id": n, "k": n % 300, "item": format!("item{}", n % 17), "price": f64::from(n % 40) * 0.25, "o": {"p": n % 3, "q": [n % 2]},
            });
            match n % 5 {
                0 => document["tags"] = json!(["a", format!("t{}", n % 3), n % 4]),
                1 => document["tags"] = json!([]),
                2 => document["tags"] = Value::Null,
                3 => document["tags"] = json!("single"),
                _ => {}
            }
            if n % 7 == 0 {
                document.as_object_mut().unwrap().shift_remove("price");
            }
            document
        })
        .collect()
}

fn fill(cluster: &Cluster) -> Vec<Value> {
    let documents = documents();
    let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
    let mut client = cluster.router.client();
    for namespace in LAYOUTS {
        let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
        client.execute(sql, &[&namespace, &texts]).unwrap_or_else(|e| panic!("{namespace}: {e:?}"));
    }
    client.batch_execute("SELECT docshard.create_index('test.ranged', '{\"item\": 1}')").unwrap();
    documents
}

fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

/// A stage whose results for a document do not depend on other documents.
fn per_document_stage(rng: &mut Rng) -> Value {
    match rng.u8(0..12) {
        0 => json!({"$match": {"k": {"$gte": rng.i64(0..250), "$lt": rng.i64(50..320)}}}),
        1 => json!({"$match": {"item": pick(rng, &["item3", "item16", "none"])}}),
        2 => json!({"$match": {"$or": [{"price": {"$lt": 4}}, {"tags": null}]}}),
        3 => json!({"$match": {"$expr": {"$gt": ["$k", {"$multiply": ["$price", 10]}]}}}),
        4 => json!({"$set": {"m": {"$mod": ["$_id", rng.i64(2..9)]}, "o.r": "$k"}}),
        5 => json!({"$addFields": {"price": {"$ifNull": ["$price", -1]}}}),
        6 => json!({"$unset": pick(rng, &["tags", "o.q", "price"])}),
        7 => json!({"$project": {"k": 1, "price": 1, "tags": 1, "m": {"$mod": ["$_id", 4]}}}),
        8 => json!({"$unwind": "$tags"}),
        9 => json!({"$unwind": {"path": "$o.q", "preserveNullAndEmptyArrays": true, "includeArrayIndex": "at"}}),
        10 => json!({"$replaceWith": {"_id": "$_id", "k": "$k", "price": "$price", "tags": "$tags", "was": "$$ROOT"}}),
        _ => json!({"$redact": {"$cond": [{"$eq": ["$p", 2]}, "$$PRUNE", "$$DESCEND"]}}),
    }
}

/// A sort of the stages' documents without ties: by these fields, and by the arrays that the stages unwind. A sort by two arrays that are
/// not unwound would be an error.
fn order(stages: &[Value], fields: &[(&str, i32)]) -> Value {
    let mut order: serde_json::Map<String, Value> =
        fields.iter().map(|(name, direction)| ((*name).to_owned(), json!(direction))).collect();
    for (name, stage) in [("tags", json!("$tags")), ("o.q", json!("$o.q"))] {
        let unwinds = |other: &Value| other["$unwind"] == stage || other["$unwind"]["path"] == stage;
        if stages.iter().any(unwinds) {
            order.insert(name.to_owned(), json!(1));
        }
    }
    Value::Object(order)
}

/// A `$group` behind these stages whose results do not depend on the order of documents.
fn group(rng: &mut Rng, stages: &[Value]) -> Value {
    let mut group = pick(
        rng,
        &[
            json!({"n": {"$sum": 1}}),
            json!({"n": {"$count": {}}, "s": {"$sum": "$price"}, "mean": {"$avg": "$price"}, "least": {"$min": "$k"}, "most": {"$max": "$tags"}}),
            json!({"top": {"$topN": {"n": 3, "sortBy": order(stages, &[("price", -1), ("_id", 1)]), "output": ["$_id", "$price"]}}}),
            json!({"few": {"$minN": {"input": "$k", "n": 4}}, "median": {"$median": {"input": "$k", "method": "approximate"}}}),
            json!({"first": {"$top": {"sortBy": order(stages, &[("_id", -1)]), "output": "$_id"}}, "any": {"$max": {"$cond": [{"$gt": ["$price", 5]}, 1, 0]}}}),
            json!({}),
        ],
    );
    group["_id"] = pick(
        rng,
        &[
            json!(null),
            json!("$k"),
            json!("$item"),
            json!({"k": "$k", "price": "$price"}),
            json!("$tags"),
            json!("$m"),
            json!({"$gt": ["$price", 5]}),
        ],
    );
    json!({"$group": group})
}

/// A pipeline whose results do not depend on the order of documents.
fn pipeline(rng: &mut Rng) -> Value {
    let mut stages: Vec<Value> = (0..rng.usize(0..4)).map(|_| per_document_stage(rng)).collect();
    let total = json!({"$sort": order(&stages, &[("price", pick(rng, &[1, -1])), ("_id", 1)])});
    stages.extend(match rng.u8(0..10) {
        0..4 => vec![group(rng, &stages)],
        4 => vec![total, json!({"$skip": rng.u8(0..9)}), json!({"$limit": rng.u8(1..30)})],
        5 => vec![json!({"$count": "n"})],
        6 => vec![json!({"$sortByCount": {"$type": "$tags"}})],
        7 => vec![json!({"$bucket": {"groupBy": "$k", "boundaries": [0, 50, 250], "default": "other", "output": {"n": {"$sum": 1}}}})],
        8 => vec![json!({"$facet": {"n": [{"$count": "n"}], "few": [total, {"$limit": 5}]}})],
        _ => vec![],
    });
    stages.extend(match rng.u8(0..6) {
        0 => vec![json!({"$match": {"n": {"$gt": 20}}})],
        1 => vec![json!({"$group": {"_id": {"$type": "$_id"}, "groups": {"$sum": 1}, "n": {"$sum": "$n"}}})],
        2 => vec![json!({"$project": {"n": 1, "k": 1}})],
        3 => vec![json!({"$set": {"x": {"$type": "$_id"}}}), json!({"$unset": "was"})],
        _ => vec![],
    });
    json!(stages)
}

/// Returns the results of core, which runs the stages in their order; sorted. None if core reports an error.
fn expected(pipeline: &Value, documents: &[Value]) -> Option<Vec<String>> {
    let mut results = in_order(pipeline, documents)?;
    results.sort_unstable();
    Some(results)
}

fn in_order(pipeline: &Value, documents: &[Value]) -> Option<Vec<String>> {
    let documents: Vec<_> = documents.iter().map(|d| write::value(&ext_json::from_json(d).unwrap()).unwrap()).collect();
    let memory: Rc<dyn Memory> = Rc::new(InMemory { stage_bytes: usize::MAX });
    let parsed = Pipeline::parse(pipeline.as_array().unwrap(), &Environment::default()).unwrap();
    let mut stream = parsed.run(Box::new(IterStream::new(documents)), &memory).ok()?;
    let mut results = Vec::new();
    while stream.advance().ok()? {
        results.push(ext_json::to_json(&Document::from_raw(raw::root(stream.bytes()))).to_string());
    }
    Some(results)
}

fn aggregate(client: &mut Client, namespace: &str, pipeline: &Value) -> Result<Vec<String>, postgres::Error> {
    let sql = "SELECT docshard.aggregate($1::text, $2::text::json)";
    let rows = client.query(sql, &[&namespace, &pipeline.to_string()])?;
    let mut results: Vec<String> = rows.iter().map(|row| row.get::<_, Value>(0).to_string()).collect();
    results.sort_unstable();
    Ok(results)
}

/// Compares results. If core reports an error, the servers may or may not, as they may run the stages in another order.
fn check(client: &mut Client, namespace: &str, pipeline: &Value, expected: &Option<Vec<String>>, when: &str) {
    match (aggregate(client, namespace, pipeline), expected) {
        (Ok(found), Some(expected)) => assert_eq!(&found, expected, "{pipeline} of {namespace} {when}"),
        (Err(error), Some(_)) => panic!("{pipeline} of {namespace} {when}: {error:?}"),
        (_, None) => {}
    }
}

/// How many times shards have run stages.
fn runs(cluster: &Cluster) -> i64 {
    let sql = "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_user_functions WHERE funcname = 'run_pipeline'";
    cluster.shards.iter().map(|shard| shard.value::<i64>(sql)).sum()
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.shards.iter().chain([&cluster.router])
}

fn configure(cluster: &Cluster, line: &str) {
    for node in nodes(cluster) {
        node.configure(line);
        node.psql("SELECT pg_reload_conf()");
    }
}

/// How many rows of the collection's tables all nodes read while a client runs a statement.
fn rows_read(cluster: &Cluster, namespace: &str, sql: &str) -> i64 {
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{namespace}'"));
    let read = || -> i64 {
        let sql = format!(
            "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int8 FROM pg_stat_all_tables \
              WHERE relid = to_regclass('{table}')"
        );
        nodes(cluster).map(|node| node.value::<i64>(&sql)).sum()
    };
    // A session reports its statistics at the latest when it ends.
    let settled = || loop {
        let found = read();
        thread::sleep(Duration::from_secs(1));
        if found == read() {
            return found;
        }
    };
    let before = settled();
    cluster.router.client().query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    wait_until("statistics", Duration::from_secs(20), || read() > before);
    settled() - before
}

#[test]
fn explain_executes_a_pipeline_once() {
    const NS: &str = "test.ranged";
    let cluster = cluster();
    fill(&cluster);
    let class = r#"[{"$set": {"class": {"$mod": ["$k", 17]}}}]"#;
    cluster.router.psql(&format!("SELECT docshard.update_many('{NS}', '{{}}', '{class}')"));
    cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"class\": 1}}')"));
    for (pipeline, path) in [
        (json!([{"$group": {"_id": "$item", "n": {"$sum": 1}}}]), "SCAN"),
        (json!([{"$match": {"class": 3}}, {"$group": {"_id": "$price"}}]), "INDEX_RANGE"),
        (json!([{"$match": {"k": 150}}, {"$group": {"_id": "$item"}}]), "CONDITIONS"),
        (json!([{"$match": {"o.p": 1}}, {"$bucketAuto": {"groupBy": "$price", "buckets": 3}}]), "CONDITIONS"),
        (json!([{"$sort": {"price": -1}}, {"$limit": 5}, {"$group": {"_id": "$item"}}]), "BOUNDED_SORT"),
        (json!([{"$limit": 7}, {"$facet": {"n": [{"$count": "n"}]}}]), "CONDITIONS"),
    ] {
        let run = format!("SELECT docshard.aggregate('{NS}', '{pipeline}')");
        let returned = cluster.router.client().query(&run, &[]).unwrap().len();
        let once = rows_read(&cluster, NS, &run);
        assert!(once > 0, "{pipeline}");
        let explain = format!("docshard.explain('{NS}', '{pipeline}', '{{}}', 'executionStats')");
        // PostgreSQL's planner may look at the ends of an index.
        let again = rows_read(&cluster, NS, &format!("SELECT {explain}"));
        assert!(again <= once + once / 2 + 2, "{pipeline}: {again} rows, not {once}");
        let explained: Value = cluster.router.value(&format!("SELECT to_jsonb({explain})"));
        assert_eq!(explained["accessPath"], path, "{explained}");
        assert_eq!(explained["executionStats"]["nReturned"], returned, "{explained}");
        for shard in explained["shards"].as_array().unwrap() {
            let cursor = &shard["stages"][0];
            let found = cursor["$cursor"]["executionStats"]["nReturned"].as_u64();
            assert!(found.is_some() && found >= cursor["nReturned"].as_u64(), "{explained}");
            assert!(cursor["$cursor"]["executionStats"]["totalDocsExamined"].as_u64() >= found, "{explained}");
        }
    }
    // Where a field is compared with a string, explain also reads 100 documents of each node, to see whether the field contains dates.
    let pipeline = json!([{"$match": {"item": "item3"}}, {"$group": {"_id": "$price"}}]);
    let explain = |verbosity: &str| {
        rows_read(&cluster, NS, &format!("SELECT docshard.explain('{NS}', '{pipeline}', '{{}}', '{verbosity}')"))
    };
    assert!((1..=300).contains(&explain("queryPlanner")), "only the sample is read");
}

#[test]
fn random_pipelines_return_the_same_in_every_layout_and_while_chunks_move() {
    let seed =
        std::env::var("DOCSHARD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("DOCSHARD_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let cluster = cluster();
    configure(&cluster, "track_functions = 'all'");
    let documents = fill(&cluster);
    let cases: Vec<_> = (0..80)
        .map(|_| {
            let pipeline = pipeline(&mut rng);
            let expected = expected(&pipeline, &documents);
            (pipeline, expected)
        })
        .collect();
    assert!(cases.iter().filter(|(_, expected)| expected.is_some()).count() > 75, "few cases have results");
    for work_mem in ["4MB", "64kB"] {
        configure(&cluster, &format!("work_mem = '{work_mem}'"));
        let mut client = cluster.router.client();
        for (pipeline, expected) in &cases {
            for namespace in LAYOUTS {
                check(&mut client, namespace, pipeline, expected, work_mem);
            }
        }
    }
    wait_until("the shards' statistics", Duration::from_secs(20), || runs(&cluster) > 300);

    let mut client = cluster.router.client();
    let moves: Vec<_> = [(150, "shard1"), (50, "shard0"), (250, "local"), (150, "local"), (50, "shard1")]
        .into_iter()
        .flat_map(|(k, shard)| {
            [("test.ranged", json!({"k": k}), shard), ("test.compound", json!({"k": k, "price": 1}), shard)]
        })
        .collect();
    let mut next = cases.iter().cycle();
    cluster.while_chunks_move(&moves, || {
        let (pipeline, expected) = next.next().expect("there are cases");
        check(&mut client, "test.ranged", pipeline, expected, "during moves");
        check(&mut client, "test.compound", pipeline, expected, "during moves");
    });
}

/// A sort with a limit keeps the first documents at each shard, in a find as in a pipeline.
#[test]
fn a_sort_with_a_limit_has_the_first_documents() {
    let cluster = cluster();
    let documents = fill(&cluster);
    let mut rng = Rng::with_seed(28);
    for work_mem in ["4MB", "64kB"] {
        configure(&cluster, &format!("work_mem = '{work_mem}'"));
        let mut client = cluster.router.client();
        for _ in 0..40 {
            let filter = pick(
                &mut rng,
                &[json!({}), json!({"price": {"$gte": 3}}), json!({"k": {"$lt": 250}}), json!({"k": 7})],
            );
            let sort = pick(
                &mut rng,
                &[
                    json!({"price": 1, "_id": 1}),
                    json!({"tags": -1, "_id": -1}),
                    json!({"o.q": 1, "item": -1, "_id": 1}),
                ],
            );
            let (skip, limit) = (pick(&mut rng, &[0, 5, 1000]), pick(&mut rng, &[1, 20, 700]));
            let projection =
                pick(&mut rng, &[json!({"tags": 0}), json!({"item": 1}), json!({"_id": 0, "o.q": 1, "k": 1})]);
            let found = json!([{"$match": filter}, {"$sort": sort}, {"$skip": skip}, {"$limit": limit}]);
            let projected = json!([found[0], found[1], found[2], found[3], {"$project": projection}]);
            let first = in_order(&projected, &documents).unwrap();
            let options = json!({"sort": sort, "skip": skip, "limit": limit, "projection": projection});
            let grouped =
                json!([found[0], found[1], found[2], found[3], {"$group": {"_id": "$item", "n": {"$sum": "$k"}}}]);
            let groups = expected(&grouped, &documents);
            for namespace in LAYOUTS {
                let sql = "SELECT docshard.find($1::text, $2::text::json, $3::text::json)";
                let rows = client.query(sql, &[&namespace, &filter.to_string(), &options.to_string()]).unwrap();
                let rows: Vec<String> = rows.iter().map(|row| row.get::<_, Value>(0).to_string()).collect();
                assert_eq!(rows, first, "{filter} {options} of {namespace} with {work_mem}");
                check(&mut client, namespace, &grouped, &groups, work_mem);
            }
        }
    }
}

/// Every document is as likely to be in a sample as any other, however documents are divided.
#[test]
fn a_sample_is_uniform_whatever_the_chunks() {
    const TIMES: usize = 300;
    const SIZE: usize = 10;
    let cluster = cluster();
    let documents = fill(&cluster);
    let mut client = cluster.router.client();
    for namespace in LAYOUTS {
        let mut drawn = vec![0; 3];
        for _ in 0..TIMES {
            let sample =
                aggregate(&mut client, namespace, &json!([{"$sample": {"size": SIZE}}, {"$project": {"k": 1}}]))
                    .unwrap();
            assert_eq!(sample.len(), SIZE);
            for document in sample {
                let document: Value = serde_json::from_str(&document).unwrap();
                drawn[document["k"].as_u64().unwrap() as usize / 100] += 1;
            }
        }
        // Each third is expected 1,000 times, with a standard deviation of 26.
        assert!(drawn.iter().all(|times| (750..1250).contains(times)), "{namespace}: {drawn:?}");
        let all = aggregate(&mut client, namespace, &json!([{"$sample": {"size": 5000}}])).unwrap();
        assert_eq!(Some(all), expected(&json!([]), &documents), "{namespace}");
    }
}

/// A damaged shard must not make results disappear.
#[test]
fn a_part_without_documents_is_an_error() {
    let cluster = cluster();
    fill(&cluster);
    let parameters: String =
        cluster.shards[0].value("SELECT pg_get_function_arguments('docshard_internal.run_pipeline'::regproc)");
    let stages = json!([{"$group": {"_id": "$item", "n": {"$sum": 1}}}]);
    cluster.shards[0].unguard();
    for (part, refused) in [("NULL::bytea", "column 1 of a row is NULL"), ("''::bytea", "a part without documents")] {
        cluster.shards[0].psql(&format!(
            "CREATE OR REPLACE FUNCTION docshard_internal.run_pipeline({parameters}) RETURNS SETOF bytea LANGUAGE sql AS $$SELECT {part}$$",
        ));
        let mut client = cluster.router.client();
        let sql = format!("SELECT docshard.aggregate('test.ranged', '{stages}')");
        let error = client.query(&sql, &[]).expect_err(part);
        assert!(format!("{error:?}").contains(refused), "{part}: {error:?}");
    }
}

/// Waits until no node runs a pipeline or has temporary files.
fn wait_until_idle(cluster: &Cluster, after: &str) {
    wait_until(&format!("the end of sessions and files after {after}"), Duration::from_secs(20), || {
        nodes(cluster).all(|node| {
            let busy: i64 = node.value(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%run_pipeline%' AND state = 'active' AND pid <> pg_backend_pid()",
            );
            busy == 0 && fs::read_dir(node.data().join("base/pgsql_tmp")).map_or(0, |files| files.count()) == 0
        })
    });
}

#[test]
fn a_pipeline_whose_session_ends_leaves_nothing_at_its_shards() {
    let cluster = cluster();
    fill(&cluster);
    configure(&cluster, "work_mem = '64kB'");
    let wide = json!({"$set": {"s": {"$range": [0, 400]}}});
    let sort = json!({"$sort": {"s": 1, "price": 1}});
    let group = json!({"$group": {"_id": "$_id", "all": {"$push": "$s"}}});
    let whole = json!({"$group": {"_id": {"k": "$k", "price": "$price"}, "all": {"$push": "$s"}}});
    // 815: the pairs of `k` and `price` in the documents.
    for (stages, results) in
        [(json!([wide, sort]), 1500), (json!([wide, group]), 1500), (json!([wide, whole, sort]), 815)]
    {
        let sql = format!("SELECT docshard.aggregate('test.ranged', '{stages}')");
        // Cancelled or terminated at the router, and terminated at a shard.
        for (node, function) in [
            (&cluster.router, "pg_cancel_backend"),
            (&cluster.router, "pg_terminate_backend"),
            (&cluster.shards[0], "pg_terminate_backend"),
            (&cluster.shards[1], "pg_cancel_backend"),
        ] {
            let mut client = cluster.router.client();
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
            let running = thread::spawn({
                let sql = sql.clone();
                move || client.query(&sql, &[]).map(|rows| rows.len())
            });
            thread::sleep(Duration::from_millis(fastrand::u64(20..300)));
            let which = if std::ptr::eq(node, &cluster.router) {
                format!("pid = {pid}")
            } else {
                "query LIKE '%run_pipeline%' AND state = 'active' AND pid <> pg_backend_pid()".to_owned()
            };
            node.psql(&format!("SELECT {function}(pid) FROM pg_stat_activity WHERE {which}"));
            match running.join().unwrap() {
                Ok(count) => assert_eq!(count, results, "{sql}"),
                Err(error) => assert!(error.code().is_some() || error.is_closed(), "{error:?}"),
            }
            wait_until_idle(&cluster, &format!("{function} at {} in {stages}", node.name));
        }
        // A cursor that is left, and a savepoint that is rolled back.
        let mut client = cluster.router.client();
        client
            .batch_execute(&format!("BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR {sql}; FETCH 3 FROM c; ROLLBACK TO s"))
            .unwrap();
        client.batch_execute(&format!("DECLARE c CURSOR FOR {sql}; FETCH 3 FROM c; CLOSE c")).unwrap();
        client.batch_execute(&format!("DECLARE c CURSOR FOR {sql}; FETCH 3 FROM c; COMMIT")).unwrap();
        assert_eq!(client.query(&format!("{sql} LIMIT 2"), &[]).unwrap().len(), 2);
        wait_until_idle(&cluster, &format!("cursors over {stages}"));
    }
}
