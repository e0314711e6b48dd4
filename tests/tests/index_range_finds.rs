//! The fast path for small result sets: finds by one index range, which a shard answers without PostgreSQL's planner. They return
//! the same documents as planned ones, also when a shard falls back to PostgreSQL, in every kind of transaction, and while chunks
//! move.

use docshard_tests::Cluster;
use fastrand::Rng;
use postgres::{Client, GenericClient, IsolationLevel};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const NAMESPACE: &str = "few.documents";
const INDEXES: &str = r#"[{"key": {"a": 1}}, {"key": {"a": -1, "b": 1}}, {"key": {"b": 1, "_id": -1}},
    {"key": {"c.d": -1, "a": 1}, "unique": false}, {"key": {"g": 1, "b": -1}}, {"key": {"e": 1}, "sparse": true}]"#;

/// Two shards with half of the shard keys each, and with statistics of function calls.
fn cluster(documents: &[Value]) -> Cluster {
    let cluster = Cluster::start(2);
    let mut client = cluster.router.client();
    for shard in &cluster.shards {
        shard.psql("ALTER SYSTEM SET track_functions = 'all'");
        shard.psql("SELECT pg_reload_conf()");
    }
    client.batch_execute("SELECT docshard.stop_balancer(), docshard.enable_sharding('few', 'shard0')").unwrap();
    client.execute("SELECT docshard.shard_collection($1, '{\"g\": 1, \"k\": 1}')", &[&NAMESPACE]).unwrap();
    client.execute(&format!("SELECT docshard.create_indexes($1, '{INDEXES}')"), &[&NAMESPACE]).unwrap();
    client.execute("SELECT docshard.split_at($1, '{\"g\": 3, \"k\": 0}')", &[&NAMESPACE]).unwrap();
    client.execute("SELECT docshard.insert_many($1, $2)", &[&NAMESPACE, &documents]).unwrap();
    client.execute("SELECT docshard.move_chunk($1, '{\"g\": 3, \"k\": 0}', 'shard1')", &[&NAMESPACE]).unwrap();
    cluster
}

/// How often shards called a function, in sessions that have ended.
fn asked(cluster: &Cluster, function: &str) -> i64 {
    let sql = format!(
        "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_user_functions WHERE funcname IN ('{function}', 'find_in_index_range')"
    );
    cluster.shards.iter().map(|shard| shard.value::<i64>(&sql)).sum()
}

fn found(client: &mut impl GenericClient, filter: &Value, options: &str) -> Vec<Value> {
    let sql = "SELECT coalesce(jsonb_agg(d), '[]') FROM docshard.find($1, $2::jsonb::json, $3::text::json) d";
    let row = client.query_one(sql, &[&NAMESPACE, filter, &options]);
    serde_json::from_value(row.unwrap_or_else(|e| panic!("{filter} {options}: {e:?}")).get(0)).unwrap()
}

fn scalar(rng: &mut Rng) -> Value {
    match rng.u8(0..12) {
        0..=6 => json!(rng.i64(0..6)),
        7 | 8 => json!(["x", "y", "xy"][rng.usize(0..3)]),
        9 => Value::Null,
        10 => json!(f64::from(rng.u8(0..10)) / 2.0),
        _ => json!(rng.bool()),
    }
}

fn document(rng: &mut Rng, id: i64) -> Value {
    let mut fields = Map::new();
    fields.insert("_id".to_owned(), json!(id));
    fields.insert("g".to_owned(), json!(rng.i64(0..6)));
    fields.insert("k".to_owned(), json!(id));
    for name in ["a", "b", "e"] {
        if rng.u8(0..5) > 0 {
            fields.insert(name.to_owned(), scalar(rng));
        }
    }
    fields.insert("c".to_owned(), json!({"d": scalar(rng), "pad": "p".repeat(rng.usize(0..300))}));
    Value::Object(fields)
}

fn condition(rng: &mut Rng) -> Value {
    match rng.u8(0..10) {
        0..=5 => scalar(rng),
        6 | 7 => json!({["$gt", "$gte", "$lt", "$lte"][rng.usize(0..4)]: scalar(rng)}),
        8 => json!({"$gte": rng.i64(0..3), "$lt": rng.i64(1..6)}),
        _ => json!({"$in": [scalar(rng), scalar(rng)]}),
    }
}

fn filter(rng: &mut Rng) -> Value {
    const PATHS: [&[&str]; 12] = [
        &["a"],
        &["a", "b"],
        &["b"],
        &["c.d"],
        &["c.d", "a"],
        &["g"],
        &["g"],
        &["g", "b"],
        &["e"],
        &["g", "k"],
        &[],
        &["k"],
    ];
    let paths = PATHS[rng.usize(0..PATHS.len())];
    Value::Object(paths.iter().map(|path| ((*path).to_owned(), condition(rng))).collect())
}

/// Sort orders with a unique result: each ends with `_id`, or the filter matches one document.
const SORTS: [&str; 10] = [
    r#"{"a": 1, "_id": 1}"#,
    r#"{"b": 1, "_id": -1}"#,
    r#"{"b": -1, "_id": 1}"#,
    r#"{"g": 1, "k": 1}"#,
    r#"{"g": -1, "k": -1}"#,
    r#"{"k": 1}"#,
    r#"{"k": -1}"#,
    r#"{"_id": -1}"#,
    r#"{"c.d": -1, "a": 1, "_id": 1}"#,
    r#"{"g": 1, "b": -1, "_id": 1}"#,
];
const PROJECTIONS: [&str; 4] =
    ["{}", r#"{"a": 1}"#, r#"{"c.pad": 0}"#, r#"{"b": 1, "_id": 0, "twice": {"$concat": ["$c.d", "$c.d"]}}"#];

#[test]
fn index_range_finds_answer_like_planned_finds() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    let documents: Vec<Value> = (0..900).map(|id| document(&mut rng, id)).collect();
    let cluster = cluster(&documents);
    let mut client = cluster.router.client();
    for round in 0..240 {
        if round == 180 {
            // From here on some indexes have entries for arrays beside the b-tree.
            let arrays: Vec<Value> = (2_000..2_060)
                .map(|id| {
                    let mut document = document(&mut rng, id);
                    document["b"] = json!([scalar(&mut rng), scalar(&mut rng)]);
                    document
                })
                .collect();
            client.execute("SELECT docshard.insert_many($1, $2)", &[&NAMESPACE, &arrays]).unwrap();
        }
        let (filter, limit, skip) = (filter(&mut rng), rng.usize(1..20), rng.usize(0..4));
        let projection = PROJECTIONS[rng.usize(0..PROJECTIONS.len() - 1)];
        let sort = SORTS[rng.usize(0..SORTS.len())];
        let what = format!("SEED={seed}, round {round}: {filter} {sort} {projection}, {limit} behind {skip}");
        let told = format!("\"sort\": {sort}, \"projection\": {projection}");
        let planned = found(&mut client, &filter, &format!("{{{told}, \"hint\": {{\"$natural\": 1}}}}"));
        let few = found(&mut client, &filter, &format!("{{{told}, \"limit\": {limit}, \"skip\": {skip}}}"));
        assert_eq!(few, planned.iter().skip(skip).take(limit).cloned().collect::<Vec<_>>(), "{what}");
        assert_eq!(found(&mut client, &filter, &format!("{{{told}}}")), planned, "{what}, without a limit");
        let unsorted = format!("\"projection\": {projection}");
        let some = format!("{{{unsorted}, \"limit\": {limit}, \"skip\": {skip}}}");
        let some = found(&mut client, &filter, &some);
        assert_eq!(some.len(), few.len(), "{what}, without a sort");
        assert!(some.iter().all(|document| planned.contains(document)), "{what}, without a sort: {some:?}");
        let sorted = |mut documents: Vec<Value>| {
            documents.sort_by_cached_key(Value::to_string);
            documents
        };
        let all = found(&mut client, &filter, &format!("{{{unsorted}}}"));
        assert_eq!(sorted(all), sorted(planned), "{what}, without a sort and a limit");
    }
    drop(client);
    let asked = asked(&cluster, "find_by_index_range");
    assert!(asked > 200, "SEED={seed}: shards were asked {asked} times");
}

/// An `_id` matches one document at most, with and without a limit.
#[test]
fn the_document_of_an_id_is_found_without_a_plan() {
    let documents: Vec<Value> =
        (0..60).map(|id| json!({"_id": id, "g": id % 6, "k": id, "a": [id, {"b": id}]})).collect();
    let cluster = cluster(&documents);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.create_collection('few.whole', '{}')").unwrap();
    client.execute("SELECT docshard.insert_many('few.whole', $1)", &[&documents]).unwrap();
    let options =
        ["{}", "{\"limit\": 0}", "{\"limit\": 7}", "{\"sort\": {\"a\": -1}}", "{\"sort\": {\"_id\": 1}, \"limit\": 2}"];
    for (round, options) in options.into_iter().cycle().take(60).enumerate() {
        let document = &documents[round];
        let (id, g) = (&document["_id"], &document["g"]);
        let cases = [
            (json!({"g": g, "k": id, "_id": id}), true),
            (json!({"g": g, "k": id, "_id": {"$in": [id]}, "a.b": id}), true),
            (json!({"g": g, "k": id, "_id": id, "a.b": -1}), false),
            (json!({"g": g, "k": id, "_id": 1000}), false),
        ];
        for (filter, is_there) in cases {
            let expected: Vec<Value> = is_there.then(|| document.clone()).into_iter().collect();
            assert_eq!(found(&mut client, &filter, options), expected, "{filter} {options}");
        }
        let sql =
            "SELECT coalesce(jsonb_agg(d), '[]') FROM docshard.find('few.whole', $1::jsonb::json, $2::text::json) d";
        let whole: Value = client.query_one(sql, &[&json!({"_id": id}), &options]).unwrap().get(0);
        assert_eq!(whole, json!([document]), "{options}");
    }
    drop(client);
    assert_eq!(asked(&cluster, "find_by_index_range"), 0);
    assert_eq!(asked(&cluster, "find_document"), 5 * 60);
}

/// Result sets that are too large for the fast path, and transactions for which an index has wrong entries.
#[test]
fn what_is_none_of_its_searches_is_left_to_postgresql() {
    let documents: Vec<Value> = (0..1_500)
        .map(|id| json!({"_id": id, "g": id % 6, "k": id, "a": id % 2, "b": (id * 7) % 1_500, "e": "one"}))
        .collect();
    let cluster = cluster(&documents);
    let mut client = cluster.router.client();
    let ids = |found: Vec<Value>| found.iter().map(|d| d["_id"].as_i64().unwrap()).collect::<Vec<_>>();

    // More documents than a shard sorts itself.
    let newest = |client: &mut Client| ids(found(client, &json!({"e": "one"}), r#"{"sort": {"k": -1}, "limit": 3}"#));
    for _ in 0..3 {
        assert_eq!(newest(&mut client), [1499, 1498, 1497]);
    }

    // This transaction has written an array; other sessions do not see it.
    let by_b = r#"{"sort": {"b": 1, "_id": -1}, "limit": 2}"#;
    let of_b = json!({"b": {"$gte": 1_498}});
    let mut other = cluster.router.client();
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead] {
        let mut transaction = client.build_transaction().isolation_level(level).start().unwrap();
        assert_eq!(found(&mut transaction, &of_b, by_b).len(), 2);
        let array = r#"{"_id": 5000, "g": 4, "k": 5000, "b": [0, 1600]}"#;
        transaction.execute("SELECT docshard.insert_one($1, $2::text::jsonb)", &[&NAMESPACE, &array]).unwrap();
        assert!(
            ids(found(&mut transaction, &of_b, r#"{"sort": {"b": -1, "_id": 1}, "limit": 1}"#)) == [5000],
            "{level:?}"
        );
        assert_eq!(found(&mut other, &of_b, by_b).len(), 2, "{level:?}");
        transaction.rollback().unwrap();
    }
    // The array's entry is still in the index, as the pages were not vacuumed.
    assert_eq!(ids(found(&mut other, &of_b, r#"{"sort": {"b": -1, "_id": 1}, "limit": 1}"#)).len(), 1);

    // Documents with more bytes than a shard keeps in memory.
    let big = "x".repeat(1 << 20);
    for id in 6_000..6_006 {
        let document = json!({"_id": id, "g": 5, "k": id, "a": "big", "pad": big});
        client.execute("SELECT docshard.insert_one($1, $2)", &[&NAMESPACE, &document]).unwrap();
    }
    assert_eq!(
        ids(found(&mut client, &json!({"a": "big"}), r#"{"sort": {"k": 1}, "limit": 6}"#)),
        (6_000..6_006).collect::<Vec<_>>()
    );

    // An invalid index must not be used.
    for shard in &cluster.shards {
        shard.psql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text ~ '^docshard_data.i[0-9]+$'",
        );
    }
    drop(client);
    let mut client = cluster.router.client();
    assert_eq!(newest(&mut client), [1499, 1498, 1497]);
    assert_eq!(ids(found(&mut client, &json!({"a": 1}), r#"{"sort": {"k": 1}, "limit": 2}"#)), [1, 3]);

    // Row-level security hides rows from a role.
    let mut shard = cluster.shards[1].client();
    let table: String = shard
        .query_one("SELECT c.oid::regclass::text FROM pg_class c WHERE relname ~ '^c[0-9]+$'", &[])
        .unwrap()
        .get(0);
    shard
        .batch_execute(&format!(
            "CREATE ROLE reader; GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_data TO reader; \
         GRANT SELECT ON ALL TABLES IN SCHEMA docshard_data TO reader; \
         ALTER EVENT TRIGGER docshard_check_changes DISABLE; ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; SET ROLE reader"
        ))
        .unwrap();
    shard
        .batch_execute("RESET ROLE; UPDATE pg_index SET indisvalid = true WHERE NOT indisvalid; SET ROLE reader")
        .unwrap();
    let few = "SELECT docshard_internal.find_by_index_range(collection_id, token, version, '{\"\"}', '{\"\"}', \
                 json_build_object('index', (SELECT min(substring(relname, 2)::int) FROM pg_catalog.pg_class WHERE relname ~ '^i[0-9]+$'), \
                   'most', 5, 'all', false, 'backward', false, 'inOrder', true, 'keyed', false)::text) IS NULL \
               FROM docshard_data.placement";
    assert!(shard.query_one(few, &[]).unwrap().get::<_, bool>(0));
    shard.batch_execute("RESET ROLE").unwrap();
    assert!(!shard.query_one(few, &[]).unwrap().get::<_, bool>(0));
    shard.batch_execute(&format!("REVOKE SELECT ON {table} FROM reader; SET ROLE reader")).unwrap();
    let refused = shard.query_one(few, &[]).unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "42501", "{refused:?}");
}

#[test]
fn index_range_finds_see_every_document_while_chunks_move() {
    let documents: Vec<Value> =
        (0..600).map(|id| json!({"_id": id, "g": id % 6, "k": id, "a": id % 5, "b": (id * 7) % 600})).collect();
    let cluster = cluster(&documents);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let mut client = cluster.router.client();
                let newest: Vec<Value> = (0..20).map(|n| json!(599 - n)).collect();
                let mut of_two: Vec<(i64, i64)> =
                    (0..600).filter(|id| id % 5 == 2).map(|id| ((id * 7) % 600, id)).collect();
                of_two.sort_unstable();
                let of_two: Vec<Value> = of_two.iter().take(20).map(|(_, id)| json!(id)).collect();
                let ids = |found: Vec<Value>| found.into_iter().map(|d| d["_id"].clone()).collect::<Vec<_>>();
                while !done.load(Ordering::Relaxed) {
                    let options = r#"{"sort": {"b": 1, "_id": -1}, "limit": 20}"#;
                    assert_eq!(ids(found(&mut client, &json!({"a": 2}), options)), of_two, "reader {reader}");
                    let options = r#"{"sort": {"k": -1}, "limit": 20}"#;
                    assert_eq!(
                        ids(found(&mut client, &json!({"k": {"$gt": 560}}), options)),
                        newest,
                        "reader {reader}"
                    );
                    let options = r#"{"sort": {"g": 1, "k": 1}, "limit": 128}"#;
                    let first = found(&mut client, &json!({"g": {"$gte": 2, "$lte": 3}}), options);
                    assert_eq!(first.len(), 128, "reader {reader}");
                    assert!(first.iter().take(100).all(|document| document["g"] == 2), "reader {reader}");
                }
            });
        }
        let mut client = cluster.router.client();
        for round in 0..10 {
            let to = if round % 2 == 0 { "shard0" } else { "shard1" };
            let moved =
                client.execute("SELECT docshard.move_chunk($1, '{\"g\": 3, \"k\": 0}', $2)", &[&NAMESPACE, &to]);
            if let Err(error) = moved {
                done.store(true, Ordering::Relaxed);
                panic!("{error:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(asked(&cluster, "find_by_index_range") > 40);
}

/// Indexes are created and dropped, in one transaction or concurrently, while finds use them.
#[test]
fn index_range_finds_continue_while_indexes_are_created_and_dropped() {
    let documents: Vec<Value> =
        (0..300).map(|id| json!({"_id": id, "g": id % 6, "k": id, "a": id % 5, "w": id % 7})).collect();
    let cluster = cluster(&documents);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..3 {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let expected: Vec<i64> = (0..300).filter(|id| id % 7 == 3).take(10).collect();
                while !done.load(Ordering::Relaxed) {
                    // A session whose fast path was declined once does not try it again.
                    let mut client = cluster.router.client();
                    for _ in 0..20 {
                        let found =
                            found(&mut client, &json!({"w": 3}), r#"{"sort": {"_id": 1, "k": 1}, "limit": 10}"#);
                        let ids: Vec<i64> = found.iter().map(|d| d["_id"].as_i64().unwrap()).collect();
                        assert_eq!(ids, expected, "reader {reader}");
                    }
                }
            });
        }
        let mut client = cluster.router.client();
        let mut run = |sql: &str| {
            if let Err(error) = client.batch_execute(sql) {
                done.store(true, Ordering::Relaxed);
                panic!("{sql}: {error:?}");
            }
        };
        for round in 0..12 {
            let make = format!("SELECT docshard.create_index('{NAMESPACE}', '{{\"w\": 1}}')");
            let drop = format!("SELECT docshard.drop_index('{NAMESPACE}', 'w_1')");
            match round % 2 {
                0 => {
                    run(&make);
                    run(&drop);
                }
                _ => {
                    run(&format!("BEGIN; {make}; COMMIT"));
                    run(&format!("BEGIN; {drop}; COMMIT"));
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(asked(&cluster, "find_by_index_range") > 10);
}

/// For every access path, the statement that `explain` shows is the one that shards run.
#[test]
fn explain_shows_the_statement_that_is_run() {
    let documents: Vec<Value> =
        (0..400).map(|id| json!({"_id": id, "g": id % 6, "k": id, "a": id % 5, "b": (id * 7) % 400})).collect();
    let cluster = cluster(&documents);
    for shard in &cluster.shards {
        shard.psql("ALTER SYSTEM SET log_statement = 'all'");
        shard.psql("SELECT pg_reload_conf()");
    }
    let mut client = cluster.router.client();
    let explain = |client: &mut Client, command: Value| -> Value {
        let command = json!({"explain": command}).to_string();
        let row = client.query_one("SELECT docshard.run_command('few', $1::text::json)::text", &[&command]).unwrap();
        let reply: Value = serde_json::from_str(row.get(0)).unwrap();
        reply["queryPlanner"]["winningPlan"].clone()
    };
    // How often shards ran the statement of a plan.
    let runs = |plan: &Value| -> usize {
        let sql = format!(": {}", plan["sql"].as_str().unwrap_or_else(|| panic!("{plan}")));
        cluster.shards.iter().map(|shard| shard.log().matches(&sql).count()).sum()
    };
    let finds = [
        ("KEY", json!({"g": 1, "k": 1, "_id": 1}), json!({})),
        ("KEY", json!({"g": 1, "k": 1}), json!({"limit": 1})),
        ("INDEX_RANGE", json!({"a": 2}), json!({"sort": {"b": 1, "_id": -1}, "limit": 5})),
        ("INDEX_RANGE", json!({"b": 70}), json!({})),
        ("COVERED", json!({"a": {"$gt": 3}}), json!({"projection": {"a": 1, "_id": 0}})),
        ("DIVIDED_SCAN", json!({"a": 2, "z": null}), json!({"limit": 5})),
        ("ORDERED_SCANS", json!({"a": 2, "z": null}), json!({"sort": {"b": 1}, "limit": 5})),
        ("CONDITIONS", json!({"z": null, "g": 2}), json!({"sort": {"k": -1}})),
    ];
    for (path, filter, options) in &finds {
        let mut command = json!({"find": "documents", "filter": filter});
        command.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let plan = explain(&mut client, command);
        assert_eq!(plan["accessPath"], *path, "{filter} {options}: {plan}");
        let shards = plan["targetedShards"].as_u64().unwrap() as usize;
        let before = runs(&plan);
        assert!(!found(&mut client, filter, &options.to_string()).is_empty(), "{filter} {options}");
        assert_eq!(runs(&plan), before + shards, "{filter} {options}: {plan}");
    }
    // find_one is a find with limit 1, whether or not its filter is parsed.
    let filter = json!({"g": 3, "k": 3, "_id": 3});
    let plan = explain(&mut client, json!({"find": "documents", "filter": filter, "limit": 1}));
    let before = runs(&plan);
    for options in ["{}", r#"{"skip": 0}"#] {
        let sql = "SELECT docshard.find_one($1, $2::jsonb::json, $3::text::json)";
        assert_eq!(client.query_one(sql, &[&NAMESPACE, &filter, &options]).unwrap().get::<_, Value>(0)["k"], 3);
    }
    assert_eq!(runs(&plan), before + 2, "{plan}");
    let counts = [
        ("COUNT_ALL", json!({})),
        ("COUNT_MATCHING", json!({"z": null})),
        ("COVERED", json!({"a": {"$gt": 3}})),
        ("CONDITIONS", json!({"g": 2})),
    ];
    for (path, filter) in &counts {
        let plan = explain(&mut client, json!({"count": "documents", "query": filter}));
        assert_eq!(plan["accessPath"], *path, "{filter}: {plan}");
        let (shards, before) = (plan["targetedShards"].as_u64().unwrap() as usize, runs(&plan));
        client.query_one("SELECT docshard.count_documents($1, $2::jsonb::json)", &[&NAMESPACE, filter]).unwrap();
        assert_eq!(runs(&plan), before + shards, "{filter}: {plan}");
    }
    let plan = explain(&mut client, json!({"distinct": "documents", "key": "a", "query": {"b": {"$lt": 9}}}));
    let before = runs(&plan);
    client.query("SELECT docshard.distinct($1, 'a', '{\"b\": {\"$lt\": 9}}')", &[&NAMESPACE]).unwrap();
    assert_eq!(runs(&plan), before + 2, "{plan}");

    // A shard that has an array declines the fast path, and the statement that `explain` shows for that case is run.
    let array = json!({"_id": 1_000, "g": 0, "k": 1_000, "a": [2, 7], "b": 1});
    client.execute("SELECT docshard.insert_one($1, $2)", &[&NAMESPACE, &array]).unwrap();
    let (filter, options) = (json!({"a": 2}), r#"{"limit": 3}"#);
    let plan = explain(&mut client, json!({"find": "documents", "filter": filter, "limit": 3}));
    let (asked, run) = (runs(&plan), runs(&plan["ifDeclined"]));
    assert_eq!(found(&mut client, &filter, options).len(), 3);
    assert_eq!((runs(&plan), runs(&plan["ifDeclined"])), (asked + 2, run + 2), "{plan}");
    let plan = explain(&mut client, json!({"find": "documents", "filter": filter, "limit": 3}));
    assert_eq!(plan["accessPath"], "DIVIDED_SCAN", "finds by this index are planned for a while: {plan}");
}
