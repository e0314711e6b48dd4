//! Indexes are built on all shards in parallel while writes continue; they exist on all shards or on none.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::{Client, SimpleQueryMessage};
use serde_json::{Value, json};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NS: &str = "b.c";
const PATIENCE: Duration = Duration::from_secs(60);

/// 2,000 documents, half of them on each shard.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    let documents = "SELECT array_agg(jsonb_build_object('_id', n, 'k', n, 'v', n % 100, 'tags', jsonb_build_array(n % 7, 'x'))) \
                     FROM generate_series(0, 1999) n";
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.enable_sharding('b', 'shard0')",
        "SELECT docshard.shard_collection('b.c', '{\"k\": 1}')",
        &format!("SELECT docshard.insert_many('b.c', ({documents}))"),
        "SELECT docshard.split_at('b.c', '{\"k\": 1000}')",
        "SELECT docshard.move_chunk('b.c', '{\"k\": 1000}', 'shard1')",
    ] {
        cluster.router.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    cluster
}

fn create(keys: &str, options: &str) -> String {
    format!("SELECT docshard.create_index('{NS}', '{keys}', '{options}')")
}

fn spawn(cluster: &Cluster, sql: String) -> JoinHandle<Result<(), postgres::Error>> {
    let mut client = cluster.router.client();
    thread::spawn(move || client.batch_execute(&sql))
}

/// A writer on a shard with an open transaction; an index build there waits for it.
fn writer(cluster: &Cluster, shard: &Node) -> Client {
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    let mut client = shard.client();
    client.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ROW EXCLUSIVE MODE")).unwrap();
    client
}

fn phase(cluster: &Cluster, shard: &str) -> Option<String> {
    let sql = format!("SELECT phase FROM docshard.list_index_builds() WHERE shard = '{shard}'");
    cluster.router.client().query_opt(&sql, &[]).expect("the builds").map(|row| row.get(0))
}

fn await_phase(cluster: &Cluster, shard: &str, wanted: &str) {
    wait_until(&format!("{shard}: {wanted}"), PATIENCE, || phase(cluster, shard).is_some_and(|phase| phase == wanted));
}

/// Relations of secondary indexes on a shard, each with true if it is valid.
fn relations(shard: &Node) -> Vec<(String, bool)> {
    let sql = "SELECT r.relname::text, i.indisvalid FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid \
               WHERE r.relname ~ '^i[0-9]+(_entries|_unique)?$' ORDER BY 1";
    let rows = shard.client().query(sql, &[]).expect("the catalog");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn assert_nothing_is_left(cluster: &Cluster) {
    wait_until("nothing is left", PATIENCE, || {
        let builds: i64 = cluster.router.value("SELECT count(*) FROM docshard_catalog.index_builds");
        builds == 0 && cluster.shards.iter().all(|shard| relations(shard).is_empty())
    });
    let known: i64 = cluster.router.value(&format!("SELECT count(*) FROM docshard.indexes WHERE namespace = '{NS}'"));
    assert_eq!(known, 0);
}

fn code(error: &postgres::Error) -> String {
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    detail.trim_start_matches("MongoDB error ").split(' ').next().unwrap_or_default().to_owned()
}

/// The caller's transaction must keep no snapshot at the shards, for which the build there would wait.
#[test]
fn a_build_does_not_wait_for_its_caller() {
    for level in ["repeatable read", "serializable"] {
        let cluster = cluster();
        let mut client = cluster.router.client();
        let settings = format!("SET default_transaction_isolation = '{level}'; SET statement_timeout = '60s'");
        client.batch_execute(&settings).unwrap();
        client.batch_execute(&create(r#"{"v": 1}"#, "{}")).unwrap_or_else(|e| panic!("{level}: {e:?}"));
        let made = relations(&cluster.shards[1]);
        assert!(!made.is_empty() && made.iter().all(|(_, valid)| *valid), "{made:?}");
        // What is not a client's whole transaction, and other administration.
        for sql in [
            format!("BEGIN; {}; COMMIT", create(r#"{"w": 1}"#, "{}")),
            format!("SELECT docshard.drop_index('{NS}', 'w_1')"),
            "SELECT docshard.shard_collection('test.more', '{\"_id\": \"hashed\"}')".to_owned(),
            "SELECT docshard.create_index('test.more', '{\"x\": 1}')".to_owned(),
            "SELECT docshard.drop_collection('test.more')".to_owned(),
        ] {
            client.batch_execute(&sql).unwrap_or_else(|e| panic!("{level}: {sql}: {e:?}"));
        }
    }
}

/// As programs do that start together.
#[test]
fn several_callers_create_the_same_index() {
    let cluster = cluster();
    let mut blocker = writer(&cluster, &cluster.shards[0]);
    let same = create(r#"{"v": 1}"#, "{}");
    let builders = [(); 3].map(|()| spawn(&cluster, same.clone()));
    await_phase(&cluster, "shard0", "waiting for writers before build");
    let other = spawn(&cluster, create(r#"{"tags": 1}"#, "{}"));
    thread::sleep(Duration::from_millis(500));
    assert!(builders.iter().chain([&other]).all(|builder| !builder.is_finished()));
    blocker.batch_execute("COMMIT").unwrap();
    for builder in builders.into_iter().chain([other]) {
        builder.join().unwrap().expect("the index");
    }
    let known: i64 = cluster.router.value(&format!("SELECT count(*) FROM docshard.indexes WHERE namespace = '{NS}'"));
    assert_eq!(known, 2);
    let builds: i64 = cluster.router.value("SELECT count(*) FROM docshard_catalog.index_builds");
    assert_eq!(builds, 0);
}

#[test]
fn writes_go_on_and_all_else_is_refused() {
    let cluster = cluster();
    let mut blocker = writer(&cluster, &cluster.shards[0]);
    let builder = spawn(&cluster, create(r#"{"v": 1, "tags": -1}"#, "{}"));
    await_phase(&cluster, "shard0", "waiting for writers before build");
    // The other shard's build does not wait for that writer.
    await_phase(&cluster, "shard1", "done");
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '20s'; SET lock_timeout = '2s'").unwrap();
    for k in [10, 1500] {
        for sql in [
            format!(
                "SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$set\": {{\"v\": 1000, \"tags\": [\"new\"]}}}}')"
            ),
            format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {}, \"k\": {}, \"v\": 1000}}')", k + 5000, k),
            format!("SELECT docshard.delete_one('{NS}', '{{\"k\": {}}}')", k + 1),
        ] {
            client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        }
    }
    let hinted = format!("SELECT docshard.count_documents('{NS}', '{{\"v\": 1000}}', '{{\"hint\": \"v_1_tags_-1\"}}')");
    assert_eq!(code(&client.batch_execute(&hinted).expect_err("not known yet")), "2");
    for sql in [
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', 'shard1')"),
        create(r#"{"w": 1}"#, "{}"),
        create(r#"{"v": 1, "tags": -1}"#, "{}"),
        format!("BEGIN; {}", create(r#"{"w": 1}"#, "{}")),
        format!("ROLLBACK; SELECT docshard.drop_collection('{NS}')"),
    ] {
        assert_eq!(code(&client.batch_execute(&sql).expect_err(&sql)), "117", "{sql}");
    }
    blocker.batch_execute("COMMIT").unwrap();
    builder.join().unwrap().expect("the index");
    let count: i64 = client.query_one(&hinted, &[]).unwrap().get(0);
    assert_eq!(count, 4);
    for shard in &cluster.shards {
        assert_eq!(relations(shard).iter().map(|(_, valid)| *valid).collect::<Vec<_>>(), [true, true]);
    }
    assert_eq!(phase(&cluster, "shard0"), None);
    // The tables can still be moved, dropped and counted.
    client.batch_execute(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', 'shard1')")).unwrap();
    let count: i64 = client.query_one(&hinted, &[]).unwrap().get(0);
    assert_eq!(count, 4);
}

#[test]
fn documents_fit_a_unique_index_before_it_is_known() {
    let cluster = cluster();
    let mut before = writer(&cluster, &cluster.shards[1]);
    let builder = spawn(&cluster, create(r#"{"k": 1, "tags": 1}"#, r#"{"unique": true}"#));
    await_phase(&cluster, "shard1", "waiting for writers before build");
    let mut meanwhile = writer(&cluster, &cluster.shards[1]);
    before.batch_execute("COMMIT").unwrap();
    await_phase(&cluster, "shard1", "waiting for writers before validation");
    let mut client = cluster.router.client();
    for sql in [
        format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 9000, \"k\": 1500, \"tags\": [\"new\", \"x\"]}}')"),
        format!("SELECT docshard.update_one('{NS}', '{{\"k\": 1501}}', '{{\"$set\": {{\"k\": 1502}}}}')"),
    ] {
        let error = client.batch_execute(&sql).expect_err(&sql);
        assert_eq!(code(&error), "11000", "{sql}");
        let error = error.as_db_error().unwrap();
        assert!(error.hint().is_some_and(|hint| hint.contains("is being built")), "{error:?}");
    }
    let some = format!(
        "SELECT docshard.insert_many('{NS}', ARRAY['{{\"_id\": 9002, \"k\": 1500, \"tags\": [\"new\", \"x\"]}}', \
         '{{\"_id\": 9003, \"k\": 1500, \"tags\": \"other\"}}']::jsonb[], '{{\"ordered\": false}}')"
    );
    let done: Value = client.query_one(&some, &[]).unwrap().get(0);
    assert_eq!((&done["insertedIds"], &done["writeErrors"][0]["code"]), (&json!([9003]), &json!(11000)), "{done}");
    let fits = format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 9000, \"k\": 1500, \"tags\": [\"new\"]}}')");
    client.batch_execute(&fits).unwrap();
    meanwhile.batch_execute("COMMIT").unwrap();
    builder.join().unwrap().expect("the index");
    let again = format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 9001, \"k\": 1500, \"tags\": \"new\"}}')");
    let error = client.batch_execute(&again).expect_err("it is taken");
    let message = error.as_db_error().unwrap().message().to_owned();
    assert!(message.contains("index: k_1_tags_1 dup key: { k: 1500, tags: \"new\" }"), "{message}");
}

#[test]
fn a_failure_on_one_shard_leaves_nothing() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let twice = format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 9000, \"k\": 1500, \"v\": 0}}')");
    client.batch_execute(&twice).unwrap();
    let error =
        client.batch_execute(&create(r#"{"k": 1}"#, r#"{"unique": true, "name": "one"}"#)).expect_err("two of a key");
    assert_eq!(code(&error), "11000");
    let message = error.as_db_error().unwrap().message();
    assert!(message.contains("b.c index: one dup key: { k: 1500 }"), "{message}");
    assert_nothing_is_left(&cluster);
    // Several indexes in one call: all are created, or none.
    let several = format!(
        r#"SELECT docshard.create_indexes('{NS}', '[{{"key": {{"v": 1}}}}, {{"key": {{"v": "hashed"}}}}, {{"key": {{"tags": "hashed"}}}}]')"#
    );
    assert_eq!(code(&client.batch_execute(&several).expect_err("arrays")), "16766");
    assert_nothing_is_left(&cluster);
    let several = several.replace(r#", {"key": {"tags": "hashed"}}"#, "");
    client.batch_execute(&several).unwrap();
    assert!(cluster.shards.iter().all(|shard| relations(shard).len() == 3));
}

#[test]
fn a_cancelled_build_leaves_nothing() {
    let cluster = cluster();
    let mut blocker = writer(&cluster, &cluster.shards[0]);
    let mut client = cluster.router.client();
    let token = client.cancel_token();
    let builder = thread::spawn(move || client.batch_execute(&create(r#"{"$**": 1}"#, "{}")));
    await_phase(&cluster, "shard0", "waiting for writers before build");
    token.cancel_query(postgres::NoTls).unwrap();
    let error = builder.join().unwrap().expect_err("cancelled");
    assert_eq!(error.code().unwrap().code(), "57014");
    blocker.batch_execute("COMMIT").unwrap();
    assert_nothing_is_left(&cluster);
    cluster.router.client().batch_execute(&create(r#"{"$**": 1}"#, "{}")).unwrap();
}

#[test]
fn what_a_dead_builder_leaves_is_cleared_away() {
    let mut cluster = cluster();
    let mut blocker = writer(&cluster, &cluster.shards[0]);
    let builder = spawn(&cluster, create(r#"{"v": 1}"#, "{}"));
    await_phase(&cluster, "shard0", "waiting for writers before build");
    cluster.router.kill9();
    builder.join().unwrap().expect_err("the router died");
    cluster.router.start();
    blocker.batch_execute("COMMIT").unwrap();
    assert_nothing_is_left(&cluster);
    cluster.router.client().batch_execute(&create(r#"{"v": 1}"#, "{}")).unwrap();
}

#[test]
fn the_routers_own_database_builds_while_its_caller_waits() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '60s'").unwrap();
    for sql in [
        "SELECT docshard.enable_sharding('own', 'local')",
        "SELECT docshard.insert_many('own.c', (SELECT array_agg(jsonb_build_object('_id', n, 'v', n)) FROM generate_series(1, 500) n))",
        "SELECT docshard.create_index('own.c', '{\"v\": -1}')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let found: Value =
        client.query_one("SELECT docshard.find('own.c', '{\"v\": 77}', '{\"hint\": \"v_-1\"}')", &[]).unwrap().get(0);
    assert_eq!(found, json!({"_id": 77, "v": 77}));
    assert_eq!(relations(&cluster.router).len(), 2);
    assert!(relations(&cluster.router).iter().all(|(_, valid)| *valid));
    // The same through a command, and with a concurrent writer.
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'own.c'");
    let mut blocker = cluster.router.client();
    blocker.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ROW EXCLUSIVE MODE")).unwrap();
    let mut other = cluster.router.client();
    let builder = thread::spawn(move || -> Value {
        let command = r#"{"createIndexes": "c", "indexes": [{"key": {"v": "hashed"}, "name": "h"}, {"key": {"$**": 1}, "name": "w"}]}"#;
        other.query_one(&format!("SELECT docshard.run_command('own', '{command}')"), &[]).unwrap().get(0)
    });
    await_phase(&cluster, "local", "waiting for writers before build");
    client.batch_execute("SELECT docshard.insert_one('own.c', '{\"_id\": 1000, \"v\": 77}')").unwrap();
    blocker.batch_execute("COMMIT").unwrap();
    let expected =
        json!({"numIndexesBefore": 2, "numIndexesAfter": 4, "createdCollectionAutomatically": false, "ok": 1});
    assert_eq!(builder.join().unwrap(), expected);
    for hint in ["h", "w"] {
        let count = format!("SELECT docshard.count_documents('own.c', '{{\"v\": 77}}', '{{\"hint\": \"{hint}\"}}')");
        assert_eq!(client.query_one(&count, &[]).unwrap().get::<_, i64>(0), 2, "{hint}");
    }
    // In a transaction block an index is built as before: the table is locked, and the build can be rolled back.
    client.batch_execute("BEGIN; SELECT docshard.create_index('own.c', '{\"z\": 1}'); ROLLBACK").unwrap();
    assert_eq!(relations(&cluster.router).len(), 4);
}

#[test]
fn a_single_node_builds_while_writes_go_on() {
    let mut cluster = Cluster::servers(0);
    let mut client = cluster.router.client();
    for sql in [
        "CREATE EXTENSION docshard CASCADE",
        "SELECT docshard.insert_many('own.c', (SELECT array_agg(jsonb_build_object('_id', n, 'v', n)) FROM generate_series(1, 500) n))",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let lock = "BEGIN; LOCK TABLE docshard_data.c1 IN ROW EXCLUSIVE MODE";
    let mut blocker = cluster.router.client();
    blocker.batch_execute(lock).unwrap();
    let builder = spawn(&cluster, "SELECT docshard.create_index('own.c', '{\"v\": -1}')".to_owned());
    await_phase(&cluster, "local", "waiting for writers before build");
    client.batch_execute("SELECT docshard.insert_one('own.c', '{\"_id\": 1000, \"v\": 77}')").unwrap();
    blocker.batch_execute("COMMIT").unwrap();
    builder.join().unwrap().expect("the index");
    let count = "SELECT docshard.count_documents('own.c', '{\"v\": 77}', '{\"hint\": \"v_-1\"}')";
    assert_eq!(client.query_one(count, &[]).unwrap().get::<_, i64>(0), 2);
    assert_eq!(relations(&cluster.router).iter().map(|(_, valid)| *valid).collect::<Vec<_>>(), [true, true]);
    // A build that fails, is cancelled, or loses its server leaves nothing behind.
    let error = client.batch_execute("SELECT docshard.create_index('own.c', '{\"v\": 1}', '{\"unique\": true}')");
    let error = error.expect_err("two of a key");
    assert_eq!(code(&error), "11000");
    let fields = error.as_db_error().map(|error| (error.schema(), error.table(), error.constraint()));
    assert_eq!(fields, Some((Some("own"), Some("c"), Some("v_1"))), "the fields pass from the worker");
    assert_eq!(relations(&cluster.router).len(), 2);
    blocker.batch_execute(lock).unwrap();
    let error =
        client.batch_execute("SET statement_timeout = '2s'; SELECT docshard.create_index('own.c', '{\"w\": 1}')");
    assert_eq!(error.expect_err("a timeout").code().unwrap().code(), "57014");
    client.batch_execute("SET statement_timeout = '2s'").unwrap();
    let error = client.batch_execute("SELECT docshard.create_index('own.c', '{\"w\": 1}')");
    assert_eq!(error.expect_err("a timeout").code().unwrap().code(), "57014");
    blocker.batch_execute("COMMIT").unwrap();
    let nothing_is_left = |cluster: &Cluster| {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.index_builds") == 0
            && relations(&cluster.router).len() == 2
    };
    wait_until("nothing is left of it", PATIENCE, || nothing_is_left(&cluster));
    let mut blocker = cluster.router.client();
    blocker.batch_execute(lock).unwrap();
    let builder = spawn(&cluster, "SELECT docshard.create_index('own.c', '{\"$**\": 1}')".to_owned());
    await_phase(&cluster, "local", "waiting for writers before build");
    cluster.router.kill9();
    builder.join().unwrap().expect_err("the server died");
    cluster.router.start();
    wait_until("the worker clears away", 2 * PATIENCE, || nothing_is_left(&cluster));
}

#[test]
fn a_build_that_hears_late_of_its_cancel_leaves_nothing() {
    let cluster = Cluster::servers(0);
    let mut client = cluster.router.client();
    for sql in ["CREATE EXTENSION docshard CASCADE", "SELECT docshard.insert_one('own.c', '{\"_id\": 1, \"w\": 1}')"] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let mut blocker = cluster.router.client();
    blocker.batch_execute("BEGIN; LOCK TABLE docshard_data.c1 IN ROW EXCLUSIVE MODE").unwrap();
    let builder = spawn(&cluster, "SELECT docshard.create_index('own.c', '{\"w\": 1}')".to_owned());
    await_phase(&cluster, "local", "waiting for writers before build");
    // The postmaster, not the session, passes the cancel on to the worker.
    let postmaster = cluster.router.pid().expect("it runs");
    cluster.router.freeze(postmaster);
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
                  WHERE query LIKE '%create_index%' AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(client.query_one(cancel, &[]).unwrap().get::<_, i64>(0), 1);
    assert_eq!(builder.join().unwrap().expect_err("cancelled").code().unwrap().code(), "57014");
    blocker.batch_execute("COMMIT").unwrap();
    let builds = "SELECT count(*) FROM docshard_catalog.index_builds";
    wait_until("the worker has ended", PATIENCE, || client.query_one(builds, &[]).unwrap().get::<_, i64>(0) == 0);
    cluster.router.thaw(postmaster);
    assert_eq!(relations(&cluster.router), []);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.indexes WHERE namespace = 'own.c'"), 0);
}

/// Otherwise owners could occupy all background workers of the server, by a snapshot that they keep open.
#[test]
fn builds_of_owners_leave_workers_to_others() {
    let cluster = Cluster::start(1);
    let router = &cluster.router;
    let owner = owned_collections(&cluster, 4);
    let mut reader = reader(&owner, 4);
    let build = |number| {
        let command = json!({"createIndexes": format!("c{number}"), "indexes": [{"key": {"k": 1}, "name": "k_1"}]});
        let mut client = owner();
        thread::spawn(move || {
            let answers = client.simple_query(&format!("SELECT docshard.run_command('own', '{command}')"));
            answers.map(|answers| answers.iter().any(|answer| {
                matches!(answer, SimpleQueryMessage::Row(row) if row.get(0).is_some_and(|answer| answer.contains("\"ok\": 1")))
            }))
        })
    };
    let builds: Vec<_> = (0..4).map(build).collect();
    let ended = || builds.iter().filter(|build| build.is_finished()).count();
    wait_until("two are built without a worker", PATIENCE, || ended() == 2);
    let with_workers = "SELECT count(DISTINCT namespace) FROM docshard.list_index_builds()";
    wait_until("two wait for the snapshot", PATIENCE, || router.value::<i64>(with_workers) == 2);
    assert_eq!(ended(), 2);
    reader.batch_execute("COMMIT").expect("the end of the snapshot");
    for build in builds {
        assert!(build.join().expect("it ends").expect("an answer"), "an index");
    }
}

/// The database `own` and its collections c0, c1, …, which belong to the role `owner`.
fn owned_collections(cluster: &Cluster, count: usize) -> impl Fn() -> Client + '_ {
    let router = &cluster.router;
    router.psql("CREATE ROLE owner LOGIN; SELECT docshard.enable_sharding('own', 'local')");
    router.psql("SELECT docshard.grant_access('owner', '{\"own\": \"own\"}')");
    let owner = || router.try_client_as("owner", "postgres").expect("a session");
    for number in 0..count {
        let insert = format!("SELECT docshard.insert_one('own.c{number}', '{{\"_id\": 1}}')");
        owner().batch_execute(&insert).expect("a collection of its own");
    }
    owner
}

/// A session with a snapshot, for which builds and drops of indexes of these collections wait.
fn reader(owner: impl Fn() -> Client, count: usize) -> Client {
    let mut reader = owner();
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    for number in 0..count {
        reader.batch_execute(&format!("SELECT docshard.count_documents('own.c{number}')")).expect("a snapshot");
    }
    reader
}

/// The worker of a build lives on when its caller has ended, because it removes what it has begun.
#[test]
fn owners_that_end_their_sessions_leave_workers_to_others() {
    const BUILDS: usize = 6;
    let cluster = Cluster::start(1);
    let router = &cluster.router;
    let owner = owned_collections(&cluster, BUILDS);
    let mut reader = reader(&owner, BUILDS);
    let mut control = owner();
    let jobs = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
    let mut most = 0;
    for number in 0..BUILDS {
        let mut client = owner();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let indexes = json!([{"key": {"k": 1}, "name": "k_1"}]);
        let command = json!({"createIndexes": format!("c{number}"), "indexes": indexes});
        let build =
            thread::spawn(move || client.simple_query(&format!("SELECT docshard.run_command('own', '{command}')")));
        let waits = format!(
            "SELECT count(*) FROM docshard_catalog.index_builds b \
             JOIN docshard_catalog.collections c ON c.id = b.collection_id AND c.namespace = 'own.c{number}' \
             JOIN pg_stat_activity a ON a.application_name = 'docshard: building index ' || b.id AND a.wait_event_type = 'Lock'"
        );
        wait_until("it waits for the snapshot, or has ended", PATIENCE, || {
            build.is_finished() || router.value::<i64>(&waits) > 0
        });
        control.execute("SELECT pg_terminate_backend($1, 5000)", &[&pid]).expect("its own session");
        drop(build.join());
        most = most.max(router.value::<i64>(jobs));
    }
    assert!(most <= 2, "{most} background workers at the same time");
    reader.batch_execute("COMMIT").expect("the end of the snapshot");
    let left = "SELECT count(*) FROM docshard_catalog.index_builds";
    wait_until("nothing is left", PATIENCE, || router.value::<i64>(left) == 0 && router.value::<i64>(jobs) == 0);
}

/// An owner can leave many failed builds that cannot be removed as long as it keeps a snapshot.
#[test]
fn failed_builds_that_cannot_be_removed_delay_nothing_else() {
    const FAILED: usize = 8;
    let cluster = Cluster::start(1);
    let router = &cluster.router;
    let owner = owned_collections(&cluster, FAILED);
    for sql in [
        "SELECT docshard.set_setting('balancer_interval_ms', '200')",
        "SELECT docshard.set_setting('shard_count_interval_ms', '1000')",
        "SELECT docshard.enable_sharding('zoo', 'local')",
        "SELECT docshard.insert_one('zoo.c', '{\"_id\": 1}')",
    ] {
        router.psql(sql);
    }
    let mut reader = reader(&owner, FAILED);
    let fail = |namespace: &str, id: usize| {
        let collection: i32 =
            router.value(&format!("SELECT id FROM docshard_catalog.collections WHERE namespace = '{namespace}'"));
        router.psql(&format!("CREATE INDEX i{id} ON docshard_data.c{collection} ((1))"));
        router.psql(&format!(
            "INSERT INTO docshard_catalog.index_builds (id, collection_id, name, keys, relations) \
             VALUES ({id}, {collection}, 'n', '{{\"k\": 1}}', '{{i{id}}}')"
        ));
    };
    for number in 0..FAILED {
        fail(&format!("own.c{number}"), 9000 + number);
    }
    let counted = || -> i64 { router.value("SELECT sum(counter)::int8 FROM docshard_catalog.contacts") };
    let left = |id: usize| -> bool {
        router.value(&format!("SELECT EXISTS (SELECT FROM docshard_catalog.index_builds WHERE id >= {id})"))
    };
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'docshard recovery' AND wait_event_type = 'Lock'";
    wait_until("the worker waits for the snapshot", PATIENCE, || router.value::<i64>(waits) > 0);
    // Of another database, and later than all others.
    fail("zoo.c", 9999);
    wait_until("it is removed", Duration::from_secs(15), || !left(9999));
    for _ in 0..3 {
        let before = counted();
        wait_until("the worker counts at shards", Duration::from_secs(10), || counted() > before);
    }
    assert!(left(9000));
    reader.batch_execute("COMMIT").expect("the end of the snapshot");
    wait_until("all are removed", PATIENCE, || !left(9000));
}
