//! A lost shard is removed together with its documents; if it comes back, it is not accepted as the former shard.

use docshard_tests::faults::Fault;
use docshard_tests::moving::{NS, count, create, move_chunk, owner};
use docshard_tests::{Cluster, Node, wait_until};
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Limit for a statement that must fail without waiting: shorter than any wait of docshard, and long enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

/// SQLSTATE of a statement's error, and a text of its message, hint and context.
fn refusal(node: &Node, sql: &str) -> (String, String) {
    let error = node.client().batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    let text = [Some(error.message()), error.hint(), error.where_()].map(Option::unwrap_or_default).join("; ");
    (error.code().code().to_owned(), text)
}

fn answer(node: &Node, sql: &str) -> Value {
    serde_json::from_str(&node.value::<String>(&format!("SELECT ({sql})::text"))).expect("JSON")
}

fn lost(options: &str) -> String {
    format!("docshard.remove_shard('shard1', '{options}')")
}

fn documents(node: &Node, namespace: &str) -> i64 {
    node.value(&format!("SELECT docshard.count_documents('{namespace}')"))
}

#[test]
fn a_lost_shard_is_removed_and_refused_when_it_returns() {
    let mut cluster = Cluster::spread("test.c");
    let router = &cluster.router;
    router.psql("SELECT docshard.create_index('test.c', '{\"n\": 1}')");
    router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', k))) FROM generate_series(1, 300) AS k");
    router.psql(
        "SELECT docshard.enable_sharding('lone', 'shard1'); SELECT docshard.insert_one('lone.c', '{\"_id\": 1}'); ",
    );
    router.psql("CREATE ROLE app LOGIN; SELECT docshard.grant_access('app', '{\"write\": [\"test\", \"lone\"]}')");
    // The worker reads the shards' statistics when it starts.
    let live = "SELECT coalesce(sum(n_live_tup), 0)::int8 FROM pg_stat_user_tables WHERE relname ~ '^c[0-9]+$'";
    wait_until("the shard has statistics", PATIENCE, || cluster.shards[1].value::<i64>(live) == 102);
    router.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'docshard worker'");
    wait_until("the worker knows the sizes", PATIENCE, || {
        router.value("SELECT coalesce(sum(documents), 0) = 102 FROM docshard_catalog.last_sizes l JOIN docshard_catalog.shards s ON s.id = l.shard_id WHERE s.name = 'shard1'")
    });
    // Sessions with the old map; one of them has a connection to the shard.
    let mut old = router.client();
    let count_old = "SELECT docshard.count_documents('test.c')";
    assert_eq!(old.query_one(count_old, &[]).expect("a count").get::<_, i64>(0), 300);
    assert!(refusal(router, &format!("SELECT {}", lost(r#"{"lost": true}"#))).1.contains("it answers"));
    assert!(refusal(router, "SELECT docshard.remove_shard('local', '{\"lost\": true}')").1.contains("not lost"));
    cluster.shards[1].kill9();
    let router = &cluster.router;

    // Statements that need the lost shard fail at once, and name it.
    for sql in [
        "SELECT docshard.create_index('test.c', '{\"m\": 1}')",
        "SELECT docshard.shard_collection('test.all', '{\"a\": \"hashed\"}')",
        "SELECT docshard.create_collection('lone.new')",
        "SELECT docshard.move_chunk('test.c', '{\"k\": 250}', 'shard0')",
    ] {
        let began = Instant::now();
        let (code, message) = refusal(router, sql);
        assert!(code.starts_with("08") && message.contains("shard1"), "{sql}: {code} {message}");
        assert!(began.elapsed() < AT_ONCE, "{sql}: {:?}", began.elapsed());
    }

    let told = answer(router, &lost(r#"{"lost": true}"#));
    let expected = serde_json::json!([
        {"ns": "lone.c", "chunks": 1, "ranges": null, "documents": 1},
        {"ns": "test.c", "chunks": 1, "ranges": [{"min": {"k": 200}, "max": {"k": {"$maxKey": 1}}}], "documents": 101},
    ]);
    let mut found = told["lost"].clone();
    for collection in found.as_array_mut().expect("an array") {
        let asked = collection.as_object_mut().and_then(|collection| collection.remove("asOf"));
        assert!(asked.is_some_and(|at| at.as_str().is_some_and(|at| at.ends_with('Z'))), "{told}");
    }
    assert_eq!((found, &told["dbsToMove"]), (expected, &serde_json::json!(["lone"])));
    assert_eq!(refusal(router, &format!("SELECT {}", lost(r#"{"lost": true, "token": "a guess"}"#))).0, "22023");
    let remove = lost(&serde_json::json!({"lost": true, "token": told["token"]}).to_string());
    router.psql("UPDATE docshard_catalog.lost_shards SET asked_at = asked_at - interval '10 minutes'");
    assert!(refusal(router, &format!("SELECT {remove}")).1.contains("ten minutes"));
    router.psql("UPDATE docshard_catalog.lost_shards SET asked_at = asked_at + interval '10 minutes'");
    assert_eq!(refusal(router, &format!("BEGIN; SELECT {remove}; COMMIT")).0, "25001");
    let done = answer(router, &remove);
    assert_eq!((&done["state"], &done["dbsMoved"]), (&"completed".into(), &serde_json::json!(["lone"])));

    // The lost ranges are empty but usable; their indexes and grants exist.
    assert_eq!(old.query_one(count_old, &[]).expect("a count").get::<_, i64>(0), 199);
    assert_eq!(documents(router, "lone.c"), 0);
    let mut app = router.try_client_as("app", "postgres").expect("a connection");
    app.batch_execute("SELECT docshard.insert_many('test.c', ARRAY['{\"_id\": 250, \"k\": 250, \"n\": 1}', '{\"_id\": 251, \"k\": 251, \"n\": 1}']::jsonb[])").expect("an insert");
    app.batch_execute("SELECT docshard.insert_one('lone.c', '{\"_id\": 1}')").expect("an insert");
    assert_eq!(old.query_one(count_old, &[]).expect("a count").get::<_, i64>(0), 201);
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('test.c', '{\"n\": 1}')"), 3);
    assert_eq!(documents(router, "lone.c"), 1);
    assert_eq!(answer(router, "docshard.check_collection('test.c')")["valid"], true);
    router.psql("SELECT docshard.create_index('test.c', '{\"m\": 1}')");
    assert_eq!(router.psql("SELECT string_agg(name, ' ' ORDER BY name) FROM docshard.shards").trim(), "local shard0");
    let entry = "SELECT details #>> '{lost,1,documents}' FROM docshard.changelog WHERE what = 'removeShard.lost'";
    assert_eq!(router.psql(entry).trim(), "101");

    // When the shard returns, the cluster does not use it, and accepts it only as a new shard.
    cluster.shards[1].start();
    let (router, shard) = (&cluster.router, &cluster.shards[1]);
    assert_eq!(documents(router, "test.c"), 201);
    let add = format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard1\"}}')", shard.url());
    let (code, message) = refusal(router, &add);
    assert!(code == "55000" && message.contains("removed as lost") && message.contains("dismantle"), "{message}");
    let other_name = add.replace("shard1\"", "again\"");
    assert_eq!(refusal(router, &other_name).0, "55000");
    let identity: String = shard.value("SELECT docshard.dismantle() ->> 'confirm'");
    shard.psql(&format!("SELECT docshard.dismantle('{identity}')"));
    router.psql(&add);
    router.psql("SELECT docshard.move_chunk('test.c', '{\"k\": 250}', 'shard1')");
    assert_eq!(documents(router, "test.c"), 201);
}

/// If the other shard of a move has the documents, they are kept.
#[test]
fn moves_with_a_lost_shard_end_without_losing_more() {
    const DOCUMENTS: i64 = 1_000;
    let mut cluster = Cluster::start(3);
    create(&cluster, "shard0", DOCUMENTS, "'n', 0", [DOCUMENTS / 2]);
    let confirm = |router: &Node, shard: &str| {
        let told = answer(router, &format!("docshard.remove_shard('{shard}', '{{\"lost\": true}}')"));
        let options = serde_json::json!({"lost": true, "token": told["token"]}).to_string();
        let remove = format!("SELECT (docshard.remove_shard('{shard}', '{options}'))::text");
        // The worker may be completing the move at the same time.
        wait_until("the shard is removed", PATIENCE, || match router.client().query_one(&remove, &[]) {
            Ok(row) => row.get::<_, String>(0).contains("completed"),
            Err(error) => {
                assert_eq!(error.code().map(postgres::error::SqlState::code), Some("55006"), "{error:?}");
                false
            }
        });
    };
    // The move is undecided; it is decided and the recipient is lost; it is decided and the donor is lost.
    for (point, from, to, dead) in [("move.recipient_prepared", 0, 1, 1), ("move.decided", 0, 2, 2)] {
        cluster.router.arm(point, Fault::Pause);
        let mut mover = cluster.router.client();
        let to = format!("shard{to}");
        let moving = thread::spawn({
            let to = to.clone();
            move || move_chunk(&mut mover, 0, &to)
        });
        let coordinator = cluster.router.await_fault(point);
        cluster.shards[dead].kill9();
        assert!(cluster.router.kill(coordinator), "it ran");
        cluster.router.clear_faults();
        assert!(moving.join().expect("no panic").is_err());
        confirm(&cluster.router, &to);
        assert_eq!(owner(&cluster.router, 0), format!("shard{from}"), "{point}");
        assert_eq!(count(&mut cluster.router.client()), DOCUMENTS, "{point}");
        wait_until("the move is over", PATIENCE, || {
            cluster.router.psql("SELECT docshard.recover_moves()");
            cluster.router.value("SELECT NOT EXISTS (SELECT FROM docshard.migrations WHERE state <> 'done')")
        });
        cluster
            .router
            .psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"{point}\", \"k\": {DOCUMENTS}}}')"));
        cluster.router.psql(&format!("SELECT docshard.delete_one('{NS}', '{{\"_id\": \"{point}\"}}')"));
    }
    let point = "move.donor_committed";
    cluster.router.arm(point, Fault::Pause);
    let mut mover = cluster.router.client();
    let moving = thread::spawn(move || move_chunk(&mut mover, 0, "local"));
    let coordinator = cluster.router.await_fault(point);
    cluster.shards[0].kill9();
    assert!(cluster.router.kill(coordinator), "it ran");
    cluster.router.clear_faults();
    assert!(moving.join().expect("no panic").is_err());
    confirm(&cluster.router, "shard0");
    assert_eq!(count(&mut cluster.router.client()), DOCUMENTS / 2, "the chunk that moved is saved");
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 0);
}

/// The first connection performs the drop, before its first statement.
#[test]
fn what_is_dropped_without_a_shard_is_dropped_there_when_it_returns() {
    let mut cluster = Cluster::spread("test.c");
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.create_index('test.c', '{\"k\": 1, \"u\": 1}', '{\"unique\": true, \"name\": \"one\"}')",
    );
    router.psql("SELECT docshard.shard_collection('test.d', '{\"_id\": \"hashed\"}'); SELECT docshard.insert_many('test.d', array_agg(jsonb_build_object('_id', k))) FROM generate_series(1, 100) AS k");
    router.psql(
        "SELECT docshard.enable_sharding('gone', 'shard1'); SELECT docshard.insert_one('gone.c', '{\"_id\": 1}')",
    );
    router.psql("SELECT docshard.insert_one('test.c', '{\"_id\": 1, \"k\": 250, \"u\": 1}')");
    let tables = |node: &Node| -> i64 {
        node.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relkind = 'r' AND relname ~ '^c[0-9]+$'")
    };
    let indexes = |node: &Node| -> i64 {
        node.value(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^i[0-9]+'",
        )
    };
    assert_eq!((tables(&cluster.shards[1]), indexes(&cluster.shards[1])), (3, 3));
    cluster.shards[1].kill9();
    let router = &cluster.router;
    router.psql("BEGIN; SELECT docshard.drop_collection('test.c'); ROLLBACK");
    for (sql, dropped) in [
        ("SELECT docshard.drop_index('test.c', 'one')", "the index one of test.c"),
        ("SELECT docshard.drop_collection('test.d')", "test.d"),
        ("SELECT docshard.drop_database('gone')", "gone.c"),
    ] {
        let began = Instant::now();
        let said = router.psql_script("postgres", &[], &format!("{sql};"));
        assert!(
            !said.contains("ERROR") && said.contains(&format!("{dropped} is dropped there when it is reachable again")),
            "{said}"
        );
        assert!(began.elapsed() < AT_ONCE, "{sql}: {:?}", began.elapsed());
    }
    assert_eq!(router.value::<i64>("SELECT count(*) FROM docshard_catalog.pending_drops"), 3);
    // A new collection with the same name.
    router.psql("SELECT docshard.insert_one('test.d', '{\"_id\": \"new\"}')");
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('test.d')"), 1);

    let worker: i32 = router.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard worker'");
    router.freeze(worker.unsigned_abs());
    cluster.shards[1].start();
    let (router, shard) = (&cluster.router, &cluster.shards[1]);
    // The unique index, if it still existed, would refuse this document.
    let written =
        router.client().batch_execute("SELECT docshard.insert_one('test.c', '{\"_id\": 2, \"k\": 250, \"u\": 1}')");
    let left = (tables(shard), indexes(shard));
    router.thaw(worker.unsigned_abs());
    written.expect("the index was dropped");
    assert_eq!(left, (1, 0));
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('test.c', '{\"k\": 250}')"), 2);
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('test.d')"), 1);
    wait_until("the worker forgets it", PATIENCE, || {
        router.value("SELECT NOT EXISTS (SELECT FROM docshard_catalog.pending_drops)")
    });
}
