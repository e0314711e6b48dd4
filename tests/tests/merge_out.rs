//! `$merge` writes the same into collections of any layout, all or nothing, also while chunks move. `$out` replaces a collection at
//! once.

use docshard_tests::{Cluster, Proxy, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

const SOURCE: &str = "test.source";
const DOCUMENTS: i64 = 300;

/// Layouts of the target: none is unsharded.
const LAYOUTS: [Option<&str>; 3] = [None, Some(r#"{"k": 1}"#), Some(r#"{"k": "hashed"}"#)];

fn run(client: &mut Client, sql: &str) -> Result<(), postgres::Error> {
    client.batch_execute(sql)
}

fn aggregate(client: &mut Client, namespace: &str, pipeline: &Value) -> Result<Vec<Value>, postgres::Error> {
    let sql = "SELECT docshard.aggregate($1::text, $2::text::json)";
    let rows = client.query(sql, &[&namespace, &pipeline.to_string()])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn insert(client: &mut Client, namespace: &str, documents: impl Iterator<Item = Value>) {
    let texts: Vec<String> = documents.map(|document| document.to_string()).collect();
    let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
    client.execute(sql, &[&namespace, &texts]).expect("documents are inserted");
}

fn all(client: &mut Client, namespace: &str) -> Vec<Value> {
    aggregate(client, namespace, &json!([{"$sort": {"_id": 1}}])).expect("all documents")
}

fn code(error: &postgres::Error) -> String {
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    format!("{} {}", error.code().code(), error.detail().unwrap_or_default())
}

/// A document of the source: of every second key, the target has one, too.
fn new(k: i64) -> Value {
    json!({"_id": k, "k": k, "new": k * 2})
}

fn old(k: i64) -> Value {
    json!({"_id": k, "k": k, "old": true})
}

fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::spread(SOURCE);
    let mut client = cluster.router.client();
    insert(&mut client, SOURCE, (0..DOCUMENTS).map(new));
    (cluster, client)
}

/// Makes the target in a layout, with chunks on all shards, and documents of odd keys.
fn lay_out(client: &mut Client, target: &str, layout: Option<&str>) {
    run(client, &format!("SELECT docshard.drop_collection('{target}')")).unwrap();
    match layout {
        None => run(client, &format!("SELECT docshard.create_collection('{target}')")).unwrap(),
        Some(key) => {
            run(client, &format!("SELECT docshard.shard_collection('{target}', '{key}')")).unwrap();
            if !key.contains("hashed") {
                for (k, shard) in [(100, "shard0"), (200, "shard1")] {
                    run(client, &format!("SELECT docshard.split_at('{target}', '{{\"k\": {k}}}')")).unwrap();
                    let sql = format!("SELECT docshard.move_chunk('{target}', '{{\"k\": {k}}}', '{shard}')");
                    run(client, &sql).unwrap();
                }
            }
        }
    }
    insert(client, target, (0..DOCUMENTS).filter(|k| k % 2 == 1).map(old));
}

#[test]
fn every_mode_into_every_layout() {
    let (_cluster, mut client) = cluster();
    let pipeline = json!([{"$set": {"sum": {"$add": ["$$new.new", "$$n"]}}}]);
    let matched = |mode: &Value, k: i64| match mode.as_str() {
        Some("replace") => new(k),
        Some("keepExisting") => old(k),
        Some("merge") => json!({"_id": k, "k": k, "old": true, "new": k * 2}),
        _ => json!({"_id": k, "k": k, "old": true, "sum": k * 2 + k}),
    };
    for layout in LAYOUTS {
        for mode in [json!("replace"), json!("keepExisting"), json!("merge"), json!("fail"), pipeline.clone()] {
            for otherwise in ["insert", "discard", "fail"] {
                let what = format!("{layout:?} {mode} {otherwise}");
                lay_out(&mut client, "test.target", layout);
                let mut merge = json!({"into": "target", "whenMatched": mode, "whenNotMatched": otherwise});
                if mode.is_array() {
                    merge["let"] = json!({"n": "$k"});
                }
                let stages = json!([{"$merge": merge}]);
                let before = all(&mut client, "test.target");

                run(&mut client, "BEGIN").unwrap();
                let done = aggregate(&mut client, SOURCE, &stages);
                let inside = done.is_ok().then(|| all(&mut client, "test.target"));
                run(&mut client, "ROLLBACK").unwrap();
                assert_eq!(all(&mut client, "test.target"), before, "{what} is rolled back");
                let again = aggregate(&mut client, SOURCE, &stages);
                let after = all(&mut client, "test.target");

                let inserts_only = ["keepExisting", "fail"].contains(&mode.as_str().unwrap_or_default());
                let expected = match (mode.as_str(), otherwise) {
                    (_, "discard" | "fail") if inserts_only => Err("22023 Location51181 (code 51181)"),
                    (Some("fail"), _) => Err("23505 DuplicateKey (code 11000)"),
                    (_, "fail") => Err("42704 MergeStageNoMatchingDocument (code 13113)"),
                    (_, "discard") => Ok(false),
                    _ => Ok(true),
                };
                match expected {
                    Err(expected) => {
                        for done in [done, again] {
                            let error = code(&done.expect_err(&what));
                            let [state, name, ..] = expected.split(' ').collect::<Vec<_>>()[..] else { panic!() };
                            assert!(error.starts_with(state) && error.contains(name), "{what}: {error}");
                        }
                        assert_eq!(after, before, "{what} has changed nothing");
                    }
                    Ok(inserts) => {
                        assert!(again.unwrap_or_else(|e| panic!("{what}: {e:?}")).is_empty(), "{what} returns nothing");
                        let expected: Vec<Value> = (0..DOCUMENTS)
                            .filter(|k| inserts || k % 2 == 1)
                            .map(|k| if k % 2 == 1 { matched(&mode, k) } else { new(k) })
                            .collect();
                        assert_eq!(after, expected, "{what}");
                        assert_eq!(inside.as_ref(), Some(&expected), "{what} within the transaction");
                    }
                }
            }
        }
    }
}

/// The source is read in the snapshot of the statement, so new documents are not read again.
#[test]
fn into_the_collection_that_is_read() {
    let (_cluster, mut client) = cluster();
    let stages = json!([
        {"$set": {"_id": {"$add": ["$_id", DOCUMENTS]}, "k": {"$mod": [{"$add": ["$k", 7]}, DOCUMENTS]}}},
        {"$merge": "source"}
    ]);
    assert!(aggregate(&mut client, SOURCE, &stages).unwrap().is_empty());
    let found = all(&mut client, SOURCE);
    assert_eq!(found.len() as i64, 2 * DOCUMENTS);
    for (at, document) in found.iter().enumerate() {
        let (at, id) = (at as i64, document["_id"].as_i64().unwrap());
        assert_eq!(id, at);
        let k = if at < DOCUMENTS { at } else { (at - DOCUMENTS + 7) % DOCUMENTS };
        assert_eq!(document["k"], json!(k), "{document}");
    }
    // Larger than a batch, and each document changes once.
    insert(&mut client, SOURCE, (2 * DOCUMENTS..5000).map(|k| json!({"_id": k, "k": k % DOCUMENTS, "new": 0})));
    let change = json!([{"$merge": {"into": "source", "whenMatched": [{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}]}}]);
    aggregate(&mut client, SOURCE, &change).unwrap();
    let changed = aggregate(&mut client, SOURCE, &json!([{"$match": {"n": 1}}, {"$count": "n"}])).unwrap();
    assert_eq!(changed, [json!({"n": 5000})]);
}

/// The target's chunks, and the source's, move while they are merged again and again.
#[test]
fn while_chunks_move() {
    let (cluster, mut client) = cluster();
    lay_out(&mut client, "test.target", LAYOUTS[1]);
    let count = json!([{"$merge": {"into": "target", "whenMatched": [{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}]}}]);
    let rounds = thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut mover = cluster.router.client();
            for (k, shard) in [(150, "shard1"), (50, "shard0"), (250, "local"), (150, "local"), (50, "shard1")] {
                for namespace in ["test.target", SOURCE] {
                    let sql = format!("SELECT docshard.move_chunk('{namespace}', '{{\"k\": {k}}}', '{shard}')");
                    mover.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
                }
            }
        });
        let mut rounds = 0;
        while rounds == 0 || !mover.is_finished() {
            match aggregate(&mut client, SOURCE, &count) {
                Ok(_) => rounds += 1,
                // A transaction that has written cannot begin again by itself.
                Err(error) => assert!(code(&error).starts_with("40001"), "{error:?}"),
            }
        }
        mover.join().expect("the moves");
        rounds
    });
    // The first round inserts documents of even keys, and changes those of odd ones.
    let found = all(&mut client, "test.target");
    assert_eq!(found.len() as i64, DOCUMENTS);
    for document in found {
        let k = document["_id"].as_i64().unwrap();
        let expected = rounds - i64::from(k % 2 == 0);
        assert_eq!(document["n"].as_i64().unwrap_or(0), expected, "{document}");
    }
}

/// Whatever ends the statement, the target has all of it, or nothing.
#[test]
fn all_or_nothing() {
    let (cluster, mut client) = cluster();
    insert(&mut client, SOURCE, (DOCUMENTS..6000).map(new));
    for layout in LAYOUTS {
        lay_out(&mut client, "test.target", layout);
        let before = all(&mut client, "test.target");
        let fails = json!([
            {"$sort": {"_id": 1}},
            {"$set": {"x": {"$divide": [1, {"$subtract": ["$_id", 5999]}]}}},
            {"$merge": "target"}
        ]);
        aggregate(&mut client, SOURCE, &fails).expect_err("the last document divides by zero");
        assert_eq!(all(&mut client, "test.target"), before, "{layout:?}");

        let merge = json!([{"$merge": {"into": "target", "whenMatched": "replace"}}]).to_string();
        for pause in [30, 120, 250] {
            let mut victim = cluster.router.client();
            let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
            let merge = merge.clone();
            let merging = thread::spawn(move || {
                victim.execute("SELECT docshard.aggregate('test.source', $1::text::json)", &[&merge]).is_ok()
            });
            thread::sleep(Duration::from_millis(pause));
            client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
            let committed = merging.join().unwrap();
            let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
            wait_until("the end of the session", Duration::from_secs(10), || cluster.router.value(&gone));
            let after = all(&mut client, "test.target").len();
            let expected = if committed { 6000 } else { before.len() };
            // A session may be ended after its commit, and before its answer.
            assert!(after == expected || after == 6000, "{layout:?}: {after} after {pause} ms, committed: {committed}");
            if after == 6000 {
                break;
            }
        }
        aggregate(&mut client, SOURCE, &serde_json::from_str(&merge).unwrap()).unwrap();
        assert_eq!(all(&mut client, "test.target").len(), 6000);
    }
}

/// Readers see the old documents or the new ones; replacements at the same time come one after the other.
#[test]
fn readers_see_old_or_new() {
    let (cluster, mut client) = cluster();
    let stages = |mark: i64| json!([{"$set": {"mark": mark}}, {"$project": {"mark": 1}}, {"$out": "out"}]);
    aggregate(&mut client, SOURCE, &stages(0)).unwrap();
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=2)
            .map(|mark| {
                let (cluster, stages) = (&cluster, stages(mark));
                scope.spawn(move || {
                    let mut client = cluster.router.client();
                    for _ in 0..10 {
                        aggregate(&mut client, SOURCE, &stages).unwrap_or_else(|e| panic!("{e:?}"));
                    }
                })
            })
            .collect();
        let marks = json!([{"$group": {"_id": "$mark", "n": {"$sum": 1}}}]);
        while !writers.iter().all(|writer| writer.is_finished()) {
            let found = aggregate(&mut client, "test.out", &marks).unwrap();
            assert!(found.len() == 1 && found[0]["n"] == json!(DOCUMENTS), "{found:?}");
        }
        for writer in writers {
            writer.join().expect("all are replaced");
        }
    });
}

/// A pipeline over more documents than a batch has may fail at its last document, or read the target itself.
#[test]
fn out_is_all_or_nothing() {
    let (_cluster, mut client) = cluster();
    insert(&mut client, SOURCE, (DOCUMENTS..5000).map(new));
    let out = |stage: Value| json!([{"$sort": {"_id": 1}}, stage, {"$out": "out"}]);
    aggregate(&mut client, SOURCE, &out(json!({"$set": {"a": 1}}))).unwrap();
    let before = all(&mut client, "test.out");
    assert_eq!(before.len(), 5000);
    let fails = json!({"$set": {"x": {"$divide": [1, {"$subtract": ["$_id", 4999]}]}}});
    aggregate(&mut client, SOURCE, &out(fails)).expect_err("the last document divides by zero");
    aggregate(&mut client, SOURCE, &out(json!({"$set": {"_id": {"$mod": ["$_id", 4999]}}})))
        .expect_err("one _id twice");
    assert_eq!(all(&mut client, "test.out"), before);
    run(&mut client, "BEGIN").unwrap();
    aggregate(&mut client, SOURCE, &out(json!({"$limit": 3}))).unwrap();
    assert_eq!(all(&mut client, "test.out").len(), 3);
    run(&mut client, "ROLLBACK").unwrap();
    assert_eq!(all(&mut client, "test.out"), before);
    aggregate(&mut client, "test.out", &out(json!({"$match": {"_id": {"$gte": 2500}}}))).unwrap();
    assert_eq!(all(&mut client, "test.out"), before[2500..]);
}

/// A batch takes a round trip for each of its steps, however many documents it changes.
#[test]
fn a_batch_takes_few_round_trips() {
    const CHANGED: i64 = 100;
    let (cluster, mut client) = cluster();
    let proxy = Proxy::before(cluster.shards[0].port);
    // So that the first message has the session's name.
    let options = format!("SET port '{}', ADD sslmode 'disable', ADD gssencmode 'disable'", proxy.port);
    cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({options})"));
    // The source's documents are on shard1, the target is on shard0.
    run(&mut client, "SELECT docshard.enable_sharding('other', 'shard0')").unwrap();
    let filter = json!({"$match": {"k": {"$gte": DOCUMENTS - CHANGED}}});
    let modes = || [json!("replace"), json!("merge"), json!("keepExisting"), json!([{"$set": {"sum": "$$new.new"}}])];
    let all_on = [json!("_id"), json!("k"), json!(["a.b", "k"])];
    for (on, mode) in all_on.iter().flat_map(|on| modes().map(|mode| (on, mode))) {
        for otherwise in ["insert", "discard"] {
            if (mode.as_str(), otherwise) == (Some("keepExisting"), "discard") {
                continue;
            }
            run(&mut client, "SELECT docshard.drop_collection('other.target')").unwrap();
            run(&mut client, "SELECT docshard.create_collection('other.target')").unwrap();
            run(&mut client, r#"SELECT docshard.create_index('other.target', '{"k": 1}', '{"unique": true}')"#)
                .unwrap();
            run(
                &mut client,
                r#"SELECT docshard.create_index('other.target', '{"k": 1, "a.b": -1}', '{"unique": true}')"#,
            )
            .unwrap();
            let with_pair = |mut document: Value| {
                document["a"] = json!({"b": document["k"]});
                document
            };
            insert(&mut client, "other.target", (0..DOCUMENTS).map(old).map(with_pair));
            let into = json!({"db": "other", "coll": "target"});
            let prepare = match on == "_id" {
                true => json!({"$match": {}}),
                false => json!({"$project": {"_id": 0, "k": 1, "new": 1, "a.b": "$k"}}),
            };
            let merge = json!([filter, prepare, {"$merge": {"into": into, "on": on, "whenMatched": mode, "whenNotMatched": otherwise}}]);
            let mut client = cluster.router.client();
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
            aggregate(&mut client, SOURCE, &merge).unwrap();
            // The session's connections are named after it: see `src/remote/options.rs`.
            let trips = proxy.round_trips(&format!(".{pid:x}\0"));
            // To log in, to insert, to update, and to commit.
            assert!((3..=6).contains(&trips), "{on} {mode} {otherwise}: {trips}");
            let changed =
                all(&mut client, "other.target").iter().filter(|document| document.get("old").is_none()).count();
            assert_eq!(changed as i64, if mode == "replace" { CHANGED } else { 0 }, "{on} {mode} {otherwise}");
            let changed = json!([{"$match": {"$or": [{"new": {"$gt": 0}}, {"sum": {"$gt": 0}}]}}, {"$count": "n"}]);
            let changed = aggregate(&mut client, "other.target", &changed).unwrap();
            let expected = if mode == "keepExisting" { vec![] } else { vec![json!({"n": CHANGED})] };
            assert_eq!(changed, expected, "{on} {mode} {otherwise}");
        }
    }
}

/// Long strings, which an index truncates, arrays, and plain numbers.
fn value_of(k: i64) -> Value {
    match k % 3 {
        0 => json!(format!("{}{k}", "long ".repeat(600))),
        _ => json!(k),
    }
}

/// By a unique index, of documents with arrays too; each document comes twice.
#[test]
fn by_another_unique_index() {
    let (_cluster, mut client) = cluster();
    let pipeline = json!([{"$set": {"sum": {"$add": [{"$ifNull": ["$sum", 0]}, "$$n"]}}}]);
    for layout in [None, Some(r#"{"k": 1}"#)] {
        for mode in [json!("replace"), json!("keepExisting"), json!("merge"), pipeline.clone()] {
            for otherwise in ["insert", "discard"] {
                if (mode.as_str(), otherwise) == (Some("keepExisting"), "discard") {
                    continue;
                }
                let what = format!("{layout:?} {mode} {otherwise}");
                lay_out(&mut client, "test.target", layout);
                let sql = r#"SELECT docshard.delete_many('test.target', '{}')"#;
                run(&mut client, sql).unwrap();
                let index = r#"SELECT docshard.create_index('test.target', '{"k": 1, "a": 1}', '{"unique": true}')"#;
                run(&mut client, index).unwrap();
                let target = |k: i64| {
                    let a = if k % 5 == 0 { json!([-k - 1, value_of(k)]) } else { value_of(k) };
                    json!({"_id": -k, "k": k, "a": a, "old": true})
                };
                insert(&mut client, "test.target", (0..DOCUMENTS).filter(|k| k % 2 == 1).map(target));
                run(&mut client, "SELECT docshard.drop_collection('test.pairs')").unwrap();
                let pair = |k: i64| json!({"k": k, "a": value_of(k), "n": [1, 2]});
                insert(&mut client, "test.pairs", (0..DOCUMENTS).map(pair));
                let mut merge =
                    json!({"into": "target", "on": ["a", "k"], "whenMatched": mode, "whenNotMatched": otherwise});
                if mode.is_array() {
                    merge["let"] = json!({"n": "$n"});
                }
                let stages =
                    json!([{"$unwind": "$n"}, {"$sort": {"k": 1, "n": 1}}, {"$unset": "_id"}, {"$merge": merge}]);
                aggregate(&mut client, "test.pairs", &stages).unwrap_or_else(|e| panic!("{what}: {e:?}"));
                let found = aggregate(&mut client, "test.target", &json!([{"$sort": {"k": 1}}])).unwrap();
                let expected = (0..DOCUMENTS).filter(|k| otherwise == "insert" || k % 2 == 1).map(|k| {
                    let is_old = k % 2 == 1;
                    let mut document = if is_old { target(k) } else { json!({"k": k, "a": value_of(k), "n": 1}) };
                    match mode.as_str() {
                        Some("keepExisting") => {}
                        None => document["sum"] = json!(if is_old { 3 } else { 2 }),
                        Some("replace") => document = json!({"k": k, "a": value_of(k), "n": 2}),
                        _ => (document["a"], document["n"]) = (value_of(k), json!(2)),
                    }
                    document["_id"] = if is_old { json!(-k) } else { json!("any") };
                    document
                });
                let found: Vec<Value> = found
                    .into_iter()
                    .map(|mut document| {
                        if document["_id"].is_object() {
                            document["_id"] = json!("any");
                        }
                        document
                    })
                    .collect();
                assert_eq!(found, expected.collect::<Vec<_>>(), "{what}");
            }
        }
    }
}

/// A pipeline may change the field by which the next document finds its target.
#[test]
fn a_pipeline_may_change_the_key() {
    let (_cluster, mut client) = cluster();
    run(&mut client, "SELECT docshard.create_collection('test.target')").unwrap();
    run(&mut client, r#"SELECT docshard.create_index('test.target', '{"k": 1}', '{"unique": true}')"#).unwrap();
    insert(&mut client, "test.target", [json!({"_id": "one", "k": 0})].into_iter());
    let next = json!([{"$set": {"k": {"$add": ["$k", 1]}}}]);
    let merge = json!({"into": "target", "on": "k", "whenMatched": next, "whenNotMatched": "discard"});
    aggregate(&mut client, SOURCE, &json!([{"$sort": {"k": 1}}, {"$unset": "_id"}, {"$merge": merge}])).unwrap();
    assert_eq!(all(&mut client, "test.target"), [json!({"_id": "one", "k": DOCUMENTS})]);
}

/// Another client changes the key of a document that was found, so a new document is inserted.
#[test]
fn the_key_changes_meanwhile() {
    let (cluster, mut client) = cluster();
    run(&mut client, "SELECT docshard.create_collection('test.target')").unwrap();
    run(&mut client, r#"SELECT docshard.create_index('test.target', '{"k": 1}', '{"unique": true}')"#).unwrap();
    insert(&mut client, "test.target", (0..DOCUMENTS).map(|k| json!({"_id": -k, "k": k})));
    for (otherwise, expected) in [("discard", 0), ("insert", 1)] {
        run(&mut client, r#"BEGIN; SELECT docshard.update_one('test.target', '{"_id": -7}', '{"$set": {"k": -7}}')"#)
            .unwrap();
        thread::scope(|scope| {
            let merging = scope.spawn(|| {
                let merge = json!({"into": "target", "on": "k", "whenMatched": "merge", "whenNotMatched": otherwise});
                let mut client = cluster.router.client();
                aggregate(&mut client, SOURCE, &json!([{"$unset": "_id"}, {"$merge": merge}])).unwrap();
            });
            let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            wait_until("the merge waits", Duration::from_secs(10), || {
                cluster.shards.iter().chain([&cluster.router]).any(|node| node.value(waits))
            });
            run(&mut client, "COMMIT").unwrap();
            merging.join().unwrap();
        });
        let with = |k: i64| json!([{"$match": {"k": k}}, {"$project": {"_id": 0}}]);
        let found = aggregate(&mut client, "test.target", &with(7)).unwrap();
        assert_eq!(found, vec![json!({"k": 7, "new": 14}); expected], "{otherwise}");
        assert_eq!(aggregate(&mut client, "test.target", &with(-7)).unwrap(), [json!({"k": -7})], "{otherwise}");
        assert_eq!(
            aggregate(&mut client, "test.target", &with(8)).unwrap(),
            [json!({"k": 8, "new": 16})],
            "{otherwise}"
        );
        run(&mut client, r#"SELECT docshard.delete_many('test.target', '{"k": 7}')"#).unwrap();
        run(&mut client, r#"SELECT docshard.update_one('test.target', '{"_id": -7}', '{"$set": {"k": 7}}')"#).unwrap();
    }
}

/// A document's size is its only limit, however small its values are.
#[test]
fn documents_of_a_million_values() {
    let (_cluster, mut client) = cluster();
    let sql = "SELECT docshard.insert_one('test.large', jsonb_build_object('_id', 1, 'k', 1, \
               'numbers', (SELECT jsonb_agg(n % 100) FROM generate_series(1, 1000000) n), \
               'fields', (SELECT jsonb_object_agg('f' || n, n % 100) FROM generate_series(1, 50000) n)))";
    run(&mut client, sql).unwrap_or_else(|e| panic!("{e:?}"));
    for layout in LAYOUTS {
        for mode in ["replace", "merge", "keepExisting"] {
            lay_out(&mut client, "test.target", layout);
            let merge = json!([{"$merge": {"into": "target", "whenMatched": mode}}]);
            aggregate(&mut client, "test.large", &merge).unwrap_or_else(|e| panic!("{layout:?} {mode}: {e:?}"));
            let sql = r#"SELECT jsonb_array_length(d -> 'numbers'), d ->> 'old' FROM docshard.find_one('test.target', '{"_id": 1}') AS d"#;
            let row = client.query_one(sql, &[]).unwrap();
            let found: (Option<i32>, Option<String>) = (row.get(0), row.get(1));
            let old = Some("true".to_owned());
            let expected = match mode {
                "replace" => (Some(1_000_000), None),
                "merge" => (Some(1_000_000), old),
                _ => (None, old),
            };
            assert_eq!(found, expected, "{layout:?} {mode}");
        }
    }
}

/// Another client drops the index by which documents match while the source is read. No document may be inserted as if it matched none.
#[test]
fn the_index_is_dropped_meanwhile() {
    let (cluster, mut client) = cluster();
    run(&mut client, "SELECT docshard.create_collection('test.target')").unwrap();
    run(&mut client, r#"SELECT docshard.create_index('test.target', '{"k": 1}', '{"unique": true}')"#).unwrap();
    insert(&mut client, "test.target", (0..DOCUMENTS).map(|k| json!({"_id": -k - 1, "k": k})));
    let before = all(&mut client, "test.target");
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{SOURCE}'"));
    let mut holder = cluster.router.client();
    run(&mut holder, &format!("BEGIN; LOCK TABLE {table}")).unwrap();
    let merge = json!([{"$unset": "_id"}, {"$merge": {"into": "target", "on": "k"}}]);
    let error = thread::scope(|scope| {
        let merging = scope.spawn(|| aggregate(&mut cluster.router.client(), SOURCE, &merge));
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        wait_until("the merge reads", Duration::from_secs(10), || cluster.router.value(waits));
        run(&mut client, "SELECT docshard.drop_index('test.target', 'k_1')").unwrap();
        run(&mut holder, "COMMIT").unwrap();
        merging.join().unwrap().expect_err("there is no index")
    });
    assert!(code(&error).contains("Location51183"), "{error:?}");
    assert_eq!(all(&mut client, "test.target"), before);
}

/// A document that was inserted after the transaction's snapshot can neither be changed nor inserted: the transaction may run again.
#[test]
fn a_document_that_the_snapshot_does_not_show() {
    let (cluster, mut client) = cluster();
    for primary in ["local", "shard0"] {
        run(&mut client, "SELECT docshard.drop_collection('test.target')").unwrap();
        run(&mut client, &format!("SELECT docshard.move_primary('test', '{primary}')")).unwrap();
        run(&mut client, r#"SELECT docshard.create_index('test.target', '{"k": 1}', '{"unique": true}')"#).unwrap();
        let merge = json!([{"$unset": "_id"}, {"$merge": {"into": "target", "on": "k"}}]);
        let mut session = cluster.router.client();
        run(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        assert!(all(&mut session, "test.target").is_empty());
        insert(&mut client, "test.target", std::iter::once(json!({"k": 7})));
        let error = aggregate(&mut session, SOURCE, &merge).expect_err("its key is taken");
        assert!(code(&error).starts_with("40001"), "{primary}: {error:?}");
        run(&mut session, "ROLLBACK").unwrap();
        aggregate(&mut session, SOURCE, &merge).unwrap();
        assert_eq!(all(&mut client, "test.target").len() as i64, DOCUMENTS);
    }
}
