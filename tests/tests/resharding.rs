//! Changes of a collection's layout: another shard key, unsharding, moving, refining, compacting; beside writers, with crashes at every
//! fault point, with cancels and aborts, and with input for which MongoDB has error codes.

use docshard_tests::faults::Fault;
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const NS: &str = "test.resharded";
const LONG: Duration = Duration::from_secs(60);

/// Three nodes; keys `k` below 100 are on `local`, below 200 on `shard0`, others on `shard1`. Documents `{_id, k, u, n, text}` with
/// `_id` and `k` from 0.
fn cluster(documents: i64) -> Cluster {
    let cluster = Cluster::spread(NS);
    run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    let sql = format!(
        "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', (i * 7919) % 1000003, 'n', 0, \
         'text', repeat('x', 200)) FROM generate_series(0, {documents} - 1) i$$)"
    );
    run(&cluster, &sql);
    cluster
}

fn run(cluster: &Cluster, sql: &str) {
    cluster.router.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

fn json(client: &mut Client, sql: &str) -> Result<Value, postgres::Error> {
    client.query_one(sql, &[])?.try_get(0)
}

fn reshard(key: &str, options: &str) -> String {
    format!("SELECT docshard.reshard_collection('{NS}', '{key}', '{options}')")
}

/// MongoDB's code of what failed at the server.
fn code(error: &postgres::Error) -> String {
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    detail.split('.').next().unwrap_or_default().to_owned()
}

fn start(cluster: &Cluster, sql: String) -> JoinHandle<Result<Value, postgres::Error>> {
    let mut client = cluster.router.client();
    thread::spawn(move || json(&mut client, &sql))
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

/// Checks that every document is there once, found by any of its fields, and stored where the map says.
fn check(cluster: &Cluster, documents: i64) {
    let router = &cluster.router;
    assert_eq!(router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), documents);
    let distinct = format!("SELECT count(DISTINCT d -> '_id') FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(router.value::<i64>(&distinct), documents);
    let found: i64 = router.value(&format!(
        "SELECT count(*) FROM generate_series(0, {documents} - 1, 17) i, \
         LATERAL docshard.find('{NS}', json_build_object('k', i)) d WHERE d -> 'k' = to_jsonb(i)"
    ));
    assert_eq!(found, (documents + 16) / 17);
    let checked: Value = router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert_eq!(checked["ok"], 1, "{checked}");
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
}

/// Ends what dead coordinators have left, and checks that nothing is left.
fn check_clean(cluster: &Cluster) {
    wait_until("recovery", LONG, || {
        cluster.router.try_client().is_ok_and(|mut client| {
            let _ = client.execute("SELECT docshard.recover_moves()", &[]);
            let left = "SELECT count(*) FROM docshard.resharding WHERE state <> 'done'";
            client.query_one(left, &[]).is_ok_and(|row| row.get::<_, i64>(0) == 0)
        })
    });
    let collections: i64 = cluster.router.value("SELECT count(*) FROM docshard_catalog.collections");
    assert_eq!(collections, 1, "copies");
    for node in nodes(cluster) {
        wait_until("the server is back", LONG, || node.try_client().is_ok());
        for (what, sql) in [
            ("captures", "SELECT count(*) FROM docshard_data.capture"),
            ("parts", "SELECT count(*) FROM docshard_data.capture_parts"),
            ("prepared transactions", "SELECT count(*) FROM pg_prepared_xacts"),
            (
                "tables of changes",
                "SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^m[0-9]+_'",
            ),
            (
                "tables",
                "SELECT count(*) - (SELECT count(*) FROM docshard_data.placement) FROM pg_class \
                 WHERE relnamespace = 'docshard_data'::regnamespace AND relkind = 'r' AND relname ~ '^c[0-9]+$'",
            ),
            ("other collections", "SELECT greatest(count(*) - 1, 0) FROM docshard_data.placement"),
        ] {
            wait_until(&format!("{what} on {} are gone", node.name), LONG, || {
                node.try_client()
                    .is_ok_and(|mut client| client.query_one(sql, &[]).is_ok_and(|row| row.get::<_, i64>(0) == 0))
            });
        }
        wait_until("the log is swept", LONG, || {
            let log: i64 = node.value("SELECT count(*) FROM docshard_data.capture_log");
            if log > 0 {
                run(cluster, "SELECT docshard.recover_moves()");
            }
            log == 0
        });
    }
}

fn key(cluster: &Cluster) -> Option<String> {
    let sql = format!("SELECT key::text FROM docshard.collections WHERE namespace = '{NS}'");
    cluster.router.client().query_one(&sql, &[]).expect("a query").get(0)
}

#[test]
fn a_collection_gets_another_shard_key() {
    let cluster = cluster(3000);
    for (key, options) in [
        (r#"{"u": 1}"#, "{}"),
        (r#"{"_id": "hashed"}"#, r#"{"numInitialChunks": 9}"#),
        (r#"{"n": 1, "k": 1}"#, "{}"),
        (r#"{"_id": 1}"#, r#"{"numInitialChunks": 5}"#),
        (r#"{"k": 1}"#, r#"{"unique": true}"#),
        (r#"{"k": 1}"#, r#"{"forceRedistribution": true, "numInitialChunks": 7}"#),
    ] {
        if options.contains("unique") {
            // The former shard key has kept its index, which is not unique.
            run(&cluster, &format!("SELECT docshard.drop_index('{NS}', 'k_1')"));
        }
        let done =
            json(&mut cluster.router.client(), &reshard(key, options)).unwrap_or_else(|e| panic!("{key}: {e:?}"));
        println!("{key}: {done}");
        assert_eq!((&done["ok"], &done["documents"]), (&1.into(), &3000.into()), "{key}: {done}");
        check(&cluster, 3000);
        assert_eq!(self::key(&cluster).map(|key| key.replace(' ', "")), Some(key.replace(' ', "")));
        let shards: i64 = cluster
            .router
            .value(&format!("SELECT count(DISTINCT shard) FROM docshard.chunks WHERE namespace = '{NS}'"));
        assert_eq!(shards, 3, "{key}");
        let names: Vec<String> = cluster
            .router
            .client()
            .query(&format!("SELECT name FROM docshard.list_indexes('{NS}')"), &[])
            .expect("the indexes")
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(names.iter().any(|name| name == "n_1"), "{names:?}");
        check_clean(&cluster);
    }
    let error = cluster
        .router
        .client()
        .execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": -1, \"k\": 5}}')"), &[])
        .expect_err("k is unique");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)");
}

/// Number of clients that write.
const CLIENTS: i64 = 4;

/// Clients that update, insert and delete documents, until they are told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    /// the longest statement, in milliseconds
    longest: Arc<AtomicI64>,
    /// each returns `n` of its documents by `_id`
    threads: Vec<JoinHandle<BTreeMap<i64, i64>>>,
}

impl Writers {
    /// Each client has documents of its own: those whose number is congruent to its own.
    fn start(cluster: &Cluster, documents: i64) -> Self {
        let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let start = |number| {
            let (stop, longest, mut client) = (stop.clone(), longest.clone(), cluster.router.client());
            thread::spawn(move || write(&mut client, number, documents, &stop, &longest))
        };
        let threads = (0..CLIENTS).map(start).collect();
        Self { stop, longest, threads }
    }

    /// Stops them, and checks that the collection has exactly what they have written; returns the longest statement.
    fn stop_and_check(self, cluster: &Cluster) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut expected = BTreeMap::new();
        for client in self.threads {
            expected.extend(client.join().expect("a client"));
        }
        let sql = format!("SELECT (d ->> '_id')::int8, (d ->> 'n')::int8 FROM docshard.find('{NS}', '{{}}') d");
        let rows = cluster.router.client().query(&sql, &[]).expect("the documents");
        assert_eq!(rows.len(), expected.len(), "documents that were found");
        let found: BTreeMap<i64, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let differs = |(id, n): &(&i64, &i64)| found.get(id) != Some(n);
        let wrong: Vec<_> = expected.iter().filter(differs).map(|(id, n)| (id, n, found.get(id))).take(10).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        self.longest.load(Ordering::Relaxed)
    }
}

fn write(
    client: &mut Client,
    number: i64,
    documents: i64,
    stop: &AtomicBool,
    longest: &AtomicI64,
) -> BTreeMap<i64, i64> {
    let mut own: BTreeMap<i64, i64> = (number..documents).step_by(CLIENTS as usize).map(|id| (id, 0)).collect();
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let id = (turn * 37 % documents / CLIENTS) * CLIENTS + number;
        let is_there = own.contains_key(&id);
        let (statement, count) = match turn % 6 {
            _ if !is_there => {
                own.insert(id, 0);
                (
                    format!("docshard.insert_one('{NS}', '{{\"_id\": {id}, \"k\": {id}, \"u\": {turn}, \"n\": 0}}')"),
                    "insertedId",
                )
            }
            1 => {
                own.remove(&id);
                (format!("docshard.delete_one('{NS}', '{{\"_id\": {id}}}')"), "deletedCount")
            }
            // The value of a shard key changes, perhaps to that of another shard.
            2 => (change(id, &format!("{{\"$set\": {{\"u\": {}}}}}", turn * 7919 % 1_000_003)), "matchedCount"),
            3 => (change(id, &format!("{{\"$set\": {{\"k\": {}}}}}", turn % 300)), "matchedCount"),
            _ => {
                *own.get_mut(&id).expect("it is there") += 1;
                (change(id, "{\"$inc\": {\"n\": 1}}"), "matchedCount")
            }
        };
        let began = Instant::now();
        let answer = retry(client, &statement);
        longest.fetch_max(began.elapsed().as_millis() as i64, Ordering::Relaxed);
        assert!(count == "insertedId" || answer[count] == 1, "{statement}: {answer}");
    }
    own
}

fn change(id: i64, update: &str) -> String {
    format!("docshard.update_one('{NS}', '{{\"_id\": {id}}}', '{update}')")
}

/// Runs a statement until it succeeds; errors other than those that ask for it are none of a change of layout.
fn retry(client: &mut Client, statement: &str) -> Value {
    loop {
        match json(client, &format!("SELECT to_jsonb({statement})")) {
            Ok(answer) => return answer,
            Err(error) if error.code().is_some_and(|code| code.code().starts_with("40")) => {}
            Err(error) => panic!("{statement}: {error:?}"),
        }
    }
}

#[test]
fn writers_go_on_while_a_collection_gets_other_layouts() {
    let documents = 6000;
    let cluster = cluster(documents);
    let writers = Writers::start(&cluster, documents);
    for sql in [
        reshard(r#"{"u": 1}"#, "{}"),
        reshard(r#"{"_id": "hashed"}"#, "{}"),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"),
        format!("SELECT docshard.move_collection('{NS}', 'shard1')"),
    ] {
        let done = json(&mut cluster.router.client(), &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        println!("{sql}: {done}");
        assert_eq!(done["ok"], 1, "{done}");
    }
    let longest = writers.stop_and_check(&cluster);
    println!("the longest statement took {longest} ms");
    assert_eq!(key(&cluster), None);
    let shards: Vec<String> = cluster
        .router
        .client()
        .query(&format!("SELECT shard FROM docshard.chunks WHERE namespace = '{NS}'"), &[])
        .expect("the chunks")
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(shards, ["shard1"]);
    check_clean(&cluster);
    assert!(cluster.router.value::<i32>("SELECT max(rounds) FROM docshard.resharding") > 0, "writes were copied");
}

#[test]
fn a_crash_at_any_step_leaves_one_layout_or_the_other() {
    let documents = 1500;
    let cluster = cluster(documents);
    let points: Vec<&str> = docshard_tests::faults::names("point", "router")
        .into_iter()
        .filter(|name| name.starts_with("reshard."))
        .collect();
    assert!(points.len() > 10, "{points:?}");
    for (number, point) in points.iter().enumerate() {
        for fault in [Fault::Error, Fault::Kill] {
            // Some points are reached only by an abort.
            let aborts = *point == "reshard.aborted";
            println!("{fault:?} at {point}");
            let before = key(&cluster);
            let target =
                if before.as_deref().is_some_and(|key| key.contains('u')) { r#"{"k": 1}"# } else { r#"{"u": 1}"# };
            if aborts {
                cluster.router.arm("reshard.cloned", Fault::Error);
            }
            cluster.router.arm(point, fault);
            // With changes, so that there is a round.
            let logged = matches!(*point, "reshard.pulled" | "reshard.applied");
            if logged {
                cluster.router.arm("reshard.cloned", Fault::Pause);
            }
            let pending = start(&cluster, reshard(target, "{}"));
            if logged {
                cluster.router.await_fault("reshard.cloned");
                run(
                    &cluster,
                    &format!(
                        "SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$lt\": 250}}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
                    ),
                );
                cluster.router.release("reshard.cloned");
            }
            let ended = pending.join().expect("a thread");
            cluster.router.await_fault(point);
            wait_until("the router is back", LONG, || cluster.router.try_client().is_ok());
            check_clean(&cluster);
            let is_decided = ["reshard.decided", "reshard.cleaned"].contains(point);
            let now = key(&cluster);
            if is_decided {
                assert_ne!(now, before, "{point}");
            } else {
                assert!(ended.is_err(), "{point}: {ended:?}");
                assert_eq!(now, before, "{point}");
            }
            assert_eq!(
                cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")),
                documents,
                "{point}"
            );
            if number % 4 == 0 {
                check(&cluster, documents);
            }
        }
    }
    check(&cluster, documents);
}

#[test]
fn a_change_of_layout_can_be_aborted_and_cancelled() {
    let cluster = cluster(1000);
    let mut client = cluster.router.client();
    let missing =
        client.query(&format!("SELECT docshard.abort_reshard_collection('{NS}')"), &[]).expect_err("none runs");
    assert_eq!(code(&missing), "MongoDB error 339 (NoSuchReshardCollection)");
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");

    // Meanwhile, nothing else changes the collection's metadata, and statements work.
    for statement in [
        format!("docshard.drop_collection('{NS}')"),
        format!("docshard.rename_collection('{NS}', 'test.other')"),
        format!("docshard.create_index('{NS}', '{{\"x\": 1}}')"),
        format!("docshard.split_at('{NS}', '{{\"k\": 50}}')"),
        format!("docshard.move_chunk('{NS}', '{{\"k\": 50}}', 'shard1')"),
        format!("docshard.modify_collection('{NS}', '{{\"validator\": {{\"k\": {{\"$gt\": -1}}}}}}')"),
        format!("docshard.reshard_collection('{NS}', '{{\"n\": 1}}')"),
    ] {
        let error = client.query(&format!("SELECT {statement}"), &[]).expect_err(&statement);
        assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{statement}: {error:?}");
    }
    let progress = client
        .query_one(
            "SELECT namespace, command, state, step, documents FROM docshard.resharding WHERE state = 'running'",
            &[],
        )
        .expect("the progress");
    assert_eq!(progress.get::<_, &str>(0), NS);
    assert_eq!((progress.get::<_, &str>(1), progress.get::<_, &str>(3)), ("reshardCollection", "cloning"));
    assert_eq!(progress.get::<_, i64>(4), 1000);
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("reshardCollection: cloning, 1000 of about"), "{status}");
    let names: Vec<Value> = client
        .query_one("SELECT docshard.run_command('test', '{\"listCollections\": 1}') #> '{cursor,firstBatch}'", &[])
        .map(|row| row.get::<_, Value>(0).as_array().cloned().unwrap_or_default())
        .expect("the collections");
    assert_eq!(names.len(), 1, "{names:?}");

    let answer = json(&mut client, &format!("SELECT docshard.abort_reshard_collection('{NS}')")).expect("an abort");
    assert_eq!(answer["ok"], 1);
    let error = pending.join().expect("a thread").expect_err("it was aborted");
    assert_eq!(code(&error), "MongoDB error 341 (ReshardCollectionAborted)", "{error:?}");
    check_clean(&cluster);

    cluster.router.arm("reshard.cloned", Fault::Pause);
    let mut cancelled = cluster.router.client();
    let token = cancelled.cancel_token();
    let pending = thread::spawn(move || json(&mut cancelled, &reshard(r#"{"u": 1}"#, "{}")));
    cluster.router.await_fault("reshard.cloned");
    token.cancel_query(postgres::NoTls).expect("a cancel");
    let error = pending.join().expect("a thread").expect_err("it was cancelled");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    check_clean(&cluster);
    check(&cluster, 1000);
}

#[test]
fn a_change_of_layout_is_seen_only_as_itself() {
    let cluster = cluster(1000);
    let mut client = cluster.router.client();
    // A name behind that of a copy, in the order in which a database's collections are dropped.
    run(&cluster, "SELECT docshard.shard_collection('other.users', '{\"k\": 1}')");
    run(
        &cluster,
        "SELECT docshard.insert_select('other.users', $$SELECT jsonb_build_object('_id', i, 'k', i) FROM generate_series(1, 100) i$$)",
    );
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, "SELECT docshard.reshard_collection('other.users', '{\"_id\": 1}')".to_owned());
    cluster.router.await_fault("reshard.cloned");
    let stats = json(&mut client, "SELECT docshard.run_command('other', '{\"dbStats\": 1}')").expect("statistics");
    assert_eq!((&stats["objects"], &stats["collections"]), (&100.into(), &1.into()), "{stats}");
    let listed = json(&mut client, "SELECT docshard.run_command('admin', '{\"listDatabases\": 1}')").expect("a list");
    let size = |answer: &Value| {
        answer["databases"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "other").cloned())
    };
    let during = size(&listed).expect("the database")["sizeOnDisk"].as_f64();
    assert_eq!(during, stats["totalSize"].as_f64(), "{listed} {stats}");
    for view in ["chunks", "collections", "indexes"] {
        let sql = format!("SELECT count(*) FROM docshard.{view} WHERE namespace LIKE 'other.system.%'");
        assert_eq!(cluster.router.value::<i64>(&sql), 0, "{view}");
    }
    assert_eq!(cluster.router.value::<i64>("SELECT collections FROM docshard.databases WHERE name = 'other'"), 1);
    let counted = "SELECT sum(s.chunks)::int8 - (SELECT count(*) FROM docshard.chunks) FROM docshard.shards s";
    assert_eq!(cluster.router.value::<i64>(counted), 0, "chunks of shards");
    let error = client.query("SELECT docshard.drop_database('other')", &[]).expect_err("its layout changes");
    assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{error:?}");
    // Each command ends only its own kind of change.
    for command in ["abortMoveCollection", "abortUnshardCollection"] {
        let answer =
            json(&mut client, &format!("SELECT docshard.run_command('admin', '{{\"{command}\": \"other.users\"}}')"))
                .expect(command);
        assert_eq!(answer["code"], 339, "{command}: {answer}");
    }
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("nothing has ended it");
    run(&cluster, "SELECT docshard.drop_database('other')");
    check(&cluster, 1000);
}

#[test]
fn zones_are_not_set_while_a_layout_changes() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(&cluster, "SELECT docshard.add_shard_to_zone('shard0', 'Z')");
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");
    for zone in ["'Z'", "NULL"] {
        let statement = format!("docshard.update_zone_key_range('{NS}', '{{\"k\": 1}}', '{{\"k\": 50}}', {zone})");
        let error = client.query(&format!("SELECT {statement}"), &[]).expect_err(&statement);
        assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{statement}: {error:?}");
    }
    // Other collections have nothing to do with it.
    run(&cluster, "SELECT docshard.update_zone_key_range('test.later', '{\"k\": 1}', '{\"k\": 50}', 'Z')");
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("the change");
    assert_eq!(
        cluster.router.value::<i64>(&format!("SELECT count(*) FROM docshard.zone_ranges WHERE namespace = '{NS}'")),
        0
    );
    run(&cluster, &format!("SELECT docshard.update_zone_key_range('{NS}', '{{\"u\": 1}}', '{{\"u\": 50}}', 'Z')"));
    check_clean(&cluster);
}

#[test]
fn draining_names_the_collections_that_must_be_moved() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(&cluster, &format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"));
    let primary: String = cluster.router.value("SELECT primary_shard FROM docshard.databases WHERE name = 'test'");
    assert_ne!(primary, "shard1");
    for state in ["started", "ongoing"] {
        let answer = json(&mut client, "SELECT docshard.remove_shard('shard1')").expect("draining");
        assert_eq!(answer["state"], state, "{answer}");
        assert_eq!(answer["collectionsToMove"], serde_json::json!([NS]), "{answer}");
        assert_eq!(answer["dbsToMove"], serde_json::json!([]), "{answer}");
        assert!(answer["note"].as_str().is_some_and(|note| note.contains("docshard.move_collection()")), "{answer}");
    }
    let progress = json(&mut client, "SELECT docshard.run_command('admin', '{\"shardDrainingStatus\": \"shard1\"}')")
        .expect("the progress");
    assert_eq!(progress["collectionsToMove"], serde_json::json!([NS]), "{progress}");
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains(&format!("docshard.move_collection('{NS}', ")), "{status}");
    run(&cluster, &format!("SELECT docshard.move_collection('{NS}', 'shard0')"));
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(!status.contains("docshard.move_collection("), "{status}");
    wait_until("shard1 is removed", LONG, || {
        let answer = json(&mut cluster.router.client(), "SELECT docshard.remove_shard('shard1')");
        answer.is_ok_and(|answer| answer["state"] == "completed")
    });
    check(&cluster, 300);
}

#[test]
fn stored_errors_have_no_values_of_documents() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    for k in [1, 250] {
        run(
            &cluster,
            &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"bob@secret.example\", \"k\": {k}, \"n\": 0}}')"),
        );
    }
    let error = client.query(&reshard(r#"{"_id": 1}"#, "{}"), &[]).expect_err("two documents have one _id");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)");
    // The caller, who may read the collection, gets the value.
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default().to_owned();
    assert!(detail.contains("bob@secret.example"), "{error:?}");
    // A document that is not stored by its key cannot move.
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    cluster.shards[1]
        .client()
        .batch_execute(&format!(
            "UPDATE {table} SET doc = jsonb_set(doc, '{{k}}', '260') WHERE doc ->> '_id' = 'bob@secret.example'"
        ))
        .expect("a slip");
    let moved = client
        .query(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 250}}', 'shard0')"), &[])
        .expect_err("a wrong key");
    assert!(moved.as_db_error().is_some_and(|error| error.message().contains("another shard key")), "{moved:?}");
    for (what, least) in [
        ("error FROM docshard.resharding", 1_i64),
        ("error FROM docshard_catalog.resharding", 1),
        ("error FROM docshard.migrations", 1),
        ("details::text FROM docshard.changelog", 1),
        ("docshard.balancer_status()::text", 1),
    ] {
        let stored: Vec<Option<String>> =
            client.query(&format!("SELECT {what}"), &[]).expect(what).iter().map(|row| row.get(0)).collect();
        assert!(stored.iter().flatten().count() as i64 >= least, "{what}");
        assert!(stored.iter().flatten().all(|text| !text.contains("secret")), "{what}: {stored:?}");
    }
}

/// The largest memory that a process of a server of this machine has had, in MiB, without the shared memory.
fn peak_mb(pid: i32) -> i64 {
    let field = |name: &str| -> i64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let line = status.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    (field("VmHWM:") - field("RssShmem:")) / 1024
}

#[test]
fn large_documents_that_change_are_copied_in_bounded_memory() {
    let cluster = cluster(600);
    // A sample finds small documents only.
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'n', 0, 'text', \
             repeat('x', 1500000)) FROM generate_series(600, 699) i$$)"
        ),
    );
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    cluster.router.await_fault("reshard.cloned");
    let update =
        format!("SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$gte\": 600}}}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    run(&cluster, &update);
    cluster.router.arm("reshard.verified", Fault::Pause);
    cluster.router.release("reshard.cloned");
    cluster.router.await_fault("reshard.verified");
    let pullers =
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard%' AND backend_type = 'client backend'";
    let mut shard = cluster.shards[0].client();
    let peaks: Vec<i64> = shard.query(pullers, &[]).expect("sessions").iter().map(|row| peak_mb(row.get(0))).collect();
    assert!(!peaks.is_empty());
    cluster.router.release("reshard.verified");
    pending.join().expect("a thread").expect("the change");
    // 100 documents of 1.5 MB.
    assert!(peaks.iter().all(|peak| *peak < 150), "{peaks:?} MiB");
    check(&cluster, 700);
    let n: i64 = cluster.router.value(&format!("SELECT docshard.count_documents('{NS}', '{{\"n\": 1}}')"));
    assert_eq!(n, 100);
}

#[test]
fn a_long_transaction_puts_the_decision_off() {
    let cluster = cluster(500);
    let mut writer = cluster.router.client();
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 2000}"#));
    cluster.router.await_fault("reshard.cloned");
    writer
        .batch_execute(&format!(
            "BEGIN; SELECT docshard.update_one('{NS}', '{{\"k\": 7}}', '{{\"$set\": {{\"n\": 5}}}}')"
        ))
        .expect("a write");
    cluster.router.release("reshard.cloned");
    let error = pending.join().expect("a thread").expect_err("a transaction stays");
    assert_eq!(code(&error), "MongoDB error 24 (LockTimeout)", "{error:?}");
    writer.batch_execute("COMMIT").expect("the writer was not disturbed");
    check_clean(&cluster);
    check(&cluster, 500);
    json(&mut writer, &reshard(r#"{"u": 1}"#, "{}")).expect("it works afterwards");
    assert_eq!(
        cluster.router.value::<String>(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": 7}}') ->> 'n'")),
        "5"
    );
}

#[test]
fn transactions_of_several_statements_let_the_decision_pass() {
    let cluster = cluster(1000);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |number: i64| {
        let (stop, mut client) = (stop.clone(), cluster.router.client());
        thread::spawn(move || {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                let update = change(number, "{\"$inc\": {\"n\": 1}}");
                let run = client.batch_execute(&format!("BEGIN; SELECT {update}; SELECT pg_sleep(0.3); COMMIT"));
                match run {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert!(error.code().is_some_and(|code| code.code().starts_with("40")), "{error:?}");
                        client.batch_execute("ROLLBACK").expect("a rollback");
                    }
                }
            }
            written
        })
    };
    let writers: Vec<_> = (0..12).map(|number| writer(number * 20)).collect();
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 40000}"#));
    cluster.router.await_fault("reshard.cloned");
    run(&cluster, &format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("writers wait for it");
    stop.store(true, Ordering::Relaxed);
    let written: i64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    let sum = format!("SELECT sum((d ->> 'n')::int8)::int8 FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(cluster.router.value::<i64>(&sum), written);
    check(&cluster, 1000);
}

#[test]
fn a_reader_that_keeps_the_decision_from_its_locks_is_named() {
    let cluster = cluster(300);
    let mut reader = cluster.router.client();
    reader
        .batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT docshard.count_documents('{NS}', '{{\"k\": {{\"$gte\": 200}}}}')"))
        .expect("a read");
    let error = json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 3000}"#))
        .expect_err("a reader stays");
    assert_eq!(code(&error), "MongoDB error 24 (LockTimeout)", "{error:?}");
    assert!(
        error.to_string().contains("on shard") || format!("{error:?}").contains("on shard \\\"shard1"),
        "{error:?}"
    );
    reader.batch_execute("COMMIT").expect("the reader was not disturbed");
    check_clean(&cluster);
    json(&mut reader, &reshard(r#"{"u": 1}"#, "{}")).expect("it works afterwards");
}

#[test]
fn many_documents_that_are_no_longer_unique_end_the_change() {
    let cluster = cluster(4000);
    run(
        &cluster,
        &format!(
            "SELECT docshard.update_many('{NS}', '{{}}', '[{{\"$set\": {{\"u\": {{\"$floor\": {{\"$divide\": [\"$k\", 2]}}}}}}}}]')"
        ),
    );
    let began = Instant::now();
    let error =
        json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, r#"{"unique": true, "commitTimeoutMS": 20000}"#))
            .expect_err("u is not unique");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)", "{error:?}");
    assert!(began.elapsed() < LONG);
    check_clean(&cluster);
    check(&cluster, 4000);
}

#[test]
fn a_snapshot_from_before_the_decision_does_not_see_the_copy() {
    let cluster = cluster(500);
    let mut reader = cluster.router.client();
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT docshard.count_documents('test.none')")
        .expect("a snapshot");
    // A snapshot at each shard, without a lock of the collection's table.
    run(&cluster, "SELECT docshard.shard_collection('test.beside', '{\"_id\": \"hashed\"}')");
    run(&cluster, "SELECT docshard.drop_collection('test.beside')");
    json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, "{}")).expect("the change");
    match reader.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]) {
        Ok(row) => assert_eq!(row.get::<_, i64>(0), 500),
        Err(error) => {
            assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error:?}");
            let message = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
            assert!(message.contains("layout"), "{message}");
        }
    }
}

#[test]
fn bad_input_gets_codes_of_mongodb() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(
        &cluster,
        &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 1000, \"k\": 1000, \"a\": [1, 2], \"n\": 9}}')"),
    );
    run(&cluster, &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 5, \"k\": 1001, \"n\": 9}}')"));
    run(&cluster, "SELECT docshard.create_collection('test.plain')");
    for (statement, code) in [
        ("reshard_collection('test.none', '{\"u\": 1}')", "26 (NamespaceNotFound)"),
        ("reshard_collection('test.plain', '{\"u\": 1}')", "118 (NamespaceNotSharded)"),
        ("unshard_collection('test.plain')", "118 (NamespaceNotSharded)"),
        ("refine_collection_shard_key('test.plain', '{\"u\": 1}')", "118 (NamespaceNotSharded)"),
        ("move_collection('test.resharded', 'shard1')", "26 (NamespaceNotFound)"),
        ("move_collection('test.plain', 'nowhere')", "70 (ShardNotFound)"),
        ("reshard_collection('test.resharded', '{}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"u\": 5}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"u\": 1}', '{\"other\": 1}')", "40415 (UnknownOption)"),
        ("reshard_collection('test.resharded', '{\"u\": 1}', '{\"numInitialChunks\": 0}')", "72 (InvalidOptions)"),
        ("reshard_collection('test.resharded', '{\"u\": \"hashed\"}', '{\"unique\": true}')", "72 (InvalidOptions)"),
        (
            "reshard_collection('test.resharded', '{\"u\": 1}', '{\"zones\": [{\"min\": {\"u\": 1}, \"max\": {\"u\": 2}, \"zone\": \"z\"}]}')",
            "162 (ZoneNotFound)",
        ),
        // Documents that cannot have the key.
        ("reshard_collection('test.resharded', '{\"a\": 1}')", "61 (ShardKeyNotFound)"),
        // Two documents with the same _id, which would have the same shard key.
        ("reshard_collection('test.resharded', '{\"_id\": 1}')", "11000 (DuplicateKey)"),
        ("reshard_collection('test.resharded', '{\"n\": 1}', '{\"unique\": true}')", "72 (InvalidOptions)"),
        ("refine_collection_shard_key('test.resharded', '{\"n\": 1, \"k\": 1}')", "72 (InvalidOptions)"),
        ("refine_collection_shard_key('test.resharded', '{\"k\": 1, \"z\": 1}')", "72 (InvalidOptions)"),
        // Also where nothing would be done.
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"zones\": {}}')", "14 (TypeMismatch)"),
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"zones\": [1]}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"commitTimeoutMS\": -1}')", "2 (BadValue)"),
        ("refine_collection_shard_key('test.resharded', '{\"k\": 1}', '{\"commitTimeoutMS\": -1}')", "2 (BadValue)"),
        ("commit_reshard_collection('test.resharded')", "339 (NoSuchReshardCollection)"),
    ] {
        let error = client.query(&format!("SELECT docshard.{statement}"), &[]).expect_err(statement);
        assert_eq!(self::code(&error), format!("MongoDB error {code}"), "{statement}: {error:?}");
        assert_eq!(key(&cluster).as_deref(), Some(r#"{"k":1}"#), "{statement}");
    }
    let error = client
        .batch_execute(&format!("BEGIN; {}", reshard(r#"{"u": 1}"#, "{}")))
        .expect_err("not in a transaction block");
    assert_eq!(code(&error), "MongoDB error 263 (OperationNotSupportedInTransaction)");
    client.batch_execute("ROLLBACK; SELECT docshard.drop_collection('test.plain')").expect("cleaning up");
    check_clean(&cluster);
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 302);
}

#[test]
fn a_shard_key_is_refined() {
    let cluster = cluster(600);
    run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}')"));
    let bounds = format!(
        "SELECT string_agg(shard || min::text, ' ' ORDER BY min_key) FROM docshard.chunks WHERE namespace = '{NS}'"
    );
    let done = json(
        &mut cluster.router.client(),
        &format!("SELECT docshard.refine_collection_shard_key('{NS}', '{{\"k\": 1, \"u\": 1}}')"),
    )
    .expect("it is refined");
    assert_eq!(done["documents"], 600, "{done}");
    let after: String = cluster.router.value(&bounds);
    assert_eq!(
        after.replace(' ', ""),
        "local{\"k\":{\"$minKey\":1},\"u\":{\"$minKey\":1}}shard0{\"k\":100,\"u\":{\"$minKey\":1}}shard1{\"k\":200,\"u\":{\"$minKey\":1}}"
    );
    check(&cluster, 600);
    // A chunk of one value of `k` can be split now.
    run(&cluster, &format!("SELECT docshard.split_at('{NS}', '{{\"k\": 150, \"u\": 7}}')"));
    check_clean(&cluster);
}

#[test]
fn compacting_gives_back_the_space_of_documents_that_have_left() {
    let cluster = cluster(4000);
    run(&cluster, &format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$gte\": 400}}}}')"));
    let mut client = cluster.router.client();
    let dry =
        json(&mut client, &format!("SELECT docshard.compact('{NS}', '{{\"dryRun\": true}}')")).expect("an estimate");
    let size = |table: &str| -> i64 { cluster.shards[1].value(&format!("SELECT pg_table_size('{table}')")) };
    let table = |cluster: &Cluster| -> String {
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
    };
    let before = size(&table(&cluster));
    json(&mut client, &format!("SELECT docshard.compact('{NS}')")).expect("it is compacted");
    let freed = before - size(&table(&cluster));
    let estimated = dry["estimatedBytesFreed"].as_i64().expect("a number");
    assert!(freed > before / 2 && estimated > freed / 2 && estimated < freed * 2, "{before} {freed} {dry}");
    check(&cluster, 400);
    check_clean(&cluster);
}

#[test]
fn a_donor_that_is_down_ends_the_change_cleanly() {
    let mut cluster = cluster(500);
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");
    cluster.shards[1].crash();
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect_err("a donor is down");
    cluster.shards[1].start();
    check_clean(&cluster);
    check(&cluster, 500);
}

#[test]
fn commands_of_mongodb_change_layouts() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    let mut command = |command: &str| {
        json(&mut client, &format!("SELECT docshard.run_command('admin', '{command}')"))
            .unwrap_or_else(|e| panic!("{command}: {e:?}"))
    };
    for text in [
        format!(r#"{{"reshardCollection": "{NS}", "key": {{"_id": "hashed"}}, "numInitialChunks": 6}}"#),
        format!(r#"{{"unshardCollection": "{NS}", "toShard": "shard0"}}"#),
        format!(r#"{{"moveCollection": "{NS}", "toShard": "shard1"}}"#),
        format!(r#"{{"shardCollection": "{NS}", "key": {{"_id": 1}}}}"#),
        format!(
            r#"{{"reshardCollection": "{NS}", "key": {{"_id": 1}}, "forceRedistribution": true, "numInitialChunks": 6}}"#
        ),
    ] {
        assert_eq!(command(&text)["ok"], 1, "{text}");
    }
    for (name, code) in
        [("abortReshardCollection", 339), ("abortMoveCollection", 339), ("commitReshardCollection", 339)]
    {
        assert_eq!(command(&format!(r#"{{"{name}": "{NS}"}}"#))["code"], code, "{name}");
    }
    check(&cluster, 300);
    check_clean(&cluster);
}

#[test]
fn a_router_without_other_shards_changes_layouts() {
    let alone = Cluster::start(0);
    run(&alone, &format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    run(&alone, &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}')"));
    run(
        &alone,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', -i, 'n', 0) \
             FROM generate_series(0, 499) i$$)"
        ),
    );
    // It has no way to reach itself yet.
    let servers = "SELECT count(*) FROM pg_foreign_server WHERE srvname = 'docshard_local'";
    assert_eq!(alone.router.value::<i64>(servers), 0);
    for sql in [
        format!("SELECT docshard.refine_collection_shard_key('{NS}', '{{\"k\": 1, \"u\": 1}}')"),
        reshard(r#"{"u": 1}"#, r#"{"numInitialChunks": 3}"#),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'local')"),
        format!("SELECT docshard.compact('{NS}')"),
    ] {
        let done = json(&mut alone.router.client(), &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert_eq!((&done["ok"], &done["documents"]), (&1.into(), &500.into()), "{sql}: {done}");
        check(&alone, 500);
    }
    assert_eq!(alone.router.value::<i64>(servers), 1);
    check_clean(&alone);
    run(&alone, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    check(&alone, 500);
}

/// The statement of a command that a client has numbered.
fn numbered(session: u8, command: &bson::Document) -> String {
    let mut command = command.clone();
    command.extend(bson::doc! { "lsid": { "id": bson::Uuid::from_bytes([session; 16]) }, "txnNumber": 1_i64 });
    let hex: String = command.to_vec().expect("BSON").iter().map(|byte| format!("{byte:02x}")).collect();
    format!("SELECT docshard.run_command_bson('test', '\\x{hex}')")
}

#[test]
fn a_write_that_is_sent_again_after_a_change_of_layout_is_not_executed_again() {
    let cluster = cluster(300);
    let collection = NS.split_once('.').expect("a namespace").1;
    let update = |k: i32| {
        let updates = vec![bson::doc! { "q": { "_id": k, "k": k }, "u": { "$inc": { "n": 1 } } }];
        bson::doc! { "update": collection, "updates": updates }
    };
    let send = |k: i32| {
        let reply: Vec<u8> = cluster.router.value(&numbered(k as u8, &update(k)));
        bson::Document::from_reader(reply.as_slice()).expect("BSON")
    };
    // Keys of all three shards.
    let keys = [10, 20, 30, 110, 120, 130, 210, 220, 230];
    for k in keys {
        assert!(send(k).get_f64("ok").is_ok_and(|ok| ok > 0.0), "{k}");
    }
    json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, "{}")).expect("the change");
    for k in keys {
        let reply = send(k);
        let is_known =
            reply.get_f64("ok").is_ok_and(|ok| ok > 0.0) || reply.get_i32("code").is_ok_and(|code| code == 225);
        assert!(is_known, "{k}: {reply}");
        let n: String = cluster.router.value(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": {k}}}') ->> 'n'"));
        assert_eq!(n, "1", "{k}: {reply}");
    }
}
