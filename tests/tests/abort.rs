//! Aborts a move at every step, by every means.

use docshard_tests::moving::{
    NS, Pending, check_clean, count, create, keep_from_loading, move_chunk, owner, step, table,
};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::{Client, NoTls};
use serde_json::Value;
use std::thread;
use std::time::Duration;

const DOCUMENTS: i64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(30);

type Move = Pending<Value>;

/// A router and two shards with a collection of two chunks, both on `shard0`; the balancer is off.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    create(&cluster, "shard0", DOCUMENTS, "'n', 0", [DOCUMENTS / 2]);
    // Creates the collection's table on the recipient.
    move_chunk(&mut cluster.router.client(), DOCUMENTS - 1, "shard1").expect("a move");
    cluster
}

/// Holds a move at a step until it is dropped.
struct Held(#[expect(dead_code, reason = "kept open")] Vec<Client>);

/// The steps at which a move can be held.
const STEPS: [&str; 4] = ["preparing the recipient", "waiting for writers", "cloning", "handing over"];

fn open(node: &Node, sql: &str) -> Client {
    let mut client = node.client();
    client.batch_execute(&format!("BEGIN; {sql}")).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    client
}

fn write_into_the_chunk(cluster: &Cluster) -> Client {
    open(&cluster.router, &format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1, \"_id\": \"new\"}}')"))
}

/// Begins a move of the first chunk, and holds it at a step.
fn hold_at(cluster: &Cluster, at: &str, mut mover: Client) -> (Held, Move) {
    let to = if owner(&cluster.router, 0) == "shard0" { "shard1" } else { "shard0" };
    let (donor, recipient) = if to == "shard1" { (0, 1) } else { (1, 0) };
    let start = move || thread::spawn(move || move_chunk(&mut mover, 1, to));
    let recipient = &cluster.shards[recipient];
    let (held, moving) = match at {
        // The donor's sampling of documents blocks.
        "preparing the recipient" => {
            let held = open(&cluster.shards[donor], &format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", table(cluster)));
            (vec![held], start())
        }
        "waiting for writers" => (vec![write_into_the_chunk(cluster)], start()),
        "cloning" => (vec![keep_from_loading(cluster, recipient)], start()),
        _ => {
            let mut lock = keep_from_loading(cluster, recipient);
            let moving = start();
            wait_until("cloning", PATIENCE, || step(&cluster.router) == "cloning");
            let writer = write_into_the_chunk(cluster);
            lock.batch_execute("COMMIT").unwrap();
            (vec![writer], moving)
        }
    };
    wait_until(at, PATIENCE, || step(&cluster.router) == at);
    (Held(held), moving)
}

/// Checks that no leftovers exist, that every document exists once, and that the chunk can be moved.
fn check(cluster: &Cluster, at: &str) {
    let unfinished = "SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'";
    wait_until(&format!("{at}: the end"), PATIENCE, || cluster.router.value::<i64>(unfinished) == 0);
    check_clean(cluster);
    let mut client = cluster.router.client();
    assert_eq!(count(&mut client), DOCUMENTS, "{at}");
    let to = if owner(&cluster.router, 0) == "shard0" { "shard1" } else { "shard0" };
    move_chunk(&mut client, 1, to).unwrap_or_else(|e| panic!("{at}: a later move: {e:?}"));
    assert_eq!(owner(&cluster.router, 0), to, "{at}: a later move");
    assert_eq!(count(&mut client), DOCUMENTS, "{at}: a later move");
}

fn error_of(moving: Move) -> (String, String) {
    let error = moving.join().expect("no panic").expect_err("the move has ended");
    let error = error.as_db_error().unwrap_or_else(|| panic!("an error of the server: {error:?}"));
    (error.code().code().to_owned(), error.message().to_owned())
}

#[test]
fn abort_migration_ends_a_move_at_any_step() {
    let cluster = cluster();
    for at in STEPS {
        let before = owner(&cluster.router, 0);
        let (held, moving) = hold_at(&cluster, at, cluster.router.client());
        let answer: Value = if at == "cloning" {
            cluster.router.value("SELECT docshard.abort_migration(max(id)) FROM docshard.migrations")
        } else {
            cluster.router.value(&format!("SELECT docshard.abort_migration('{NS}')"))
        };
        assert_eq!((&answer["ok"], &answer["aborted"]), (&1.into(), &true.into()), "{at}: {answer}");
        let (sqlstate, message) = error_of(moving);
        assert_eq!(sqlstate, "57014", "{at}: {message}");
        assert!(message.contains("aborted on request"), "{at}: {message}");
        let why: String = cluster.router.value("SELECT error FROM docshard.migrations ORDER BY id DESC LIMIT 1");
        assert!(why.contains("aborted on request"), "{at}: {why}");
        assert_eq!(owner(&cluster.router, 0), before, "{at}");
        drop(held);
        check(&cluster, at);
    }
    // The move has ended; aborting it again is an error.
    let id: i64 = cluster.router.value("SELECT max(id) FROM docshard.migrations");
    let answer: Value = cluster.router.value(&format!("SELECT docshard.abort_migration({id})"));
    assert_eq!(answer["aborted"], false, "{answer}");
    assert!(answer["note"].as_str().is_some_and(|note| note.contains("on its new shard")), "{answer}");
}

#[test]
fn a_move_that_is_decided_is_completed_by_abort_migration() {
    let cluster = cluster();
    let (held, moving) = hold_at(&cluster, "handing over", cluster.router.client());
    // While this lock is held the chunk map cannot change.
    let mut map =
        open(&cluster.router, &format!("SELECT FROM docshard_catalog.collections WHERE namespace = '{NS}' FOR UPDATE"));
    drop(held);
    wait_until("the decision", PATIENCE, || step(&cluster.router) == "committed");
    let mut client = cluster.router.client();
    let aborting = thread::spawn(move || -> Value {
        client.query_one(&format!("SELECT docshard.abort_migration('{NS}')"), &[]).expect("an answer").get(0)
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
    wait_until("both wait", PATIENCE, || cluster.router.value::<i64>(waiting) == 2);
    map.batch_execute("ROLLBACK").unwrap();
    let answer = aborting.join().expect("no panic");
    assert_eq!(answer["aborted"], false, "{answer}");
    assert!(answer["note"].as_str().is_some_and(|note| note.contains("already decided")), "{answer}");
    moving.join().expect("no panic").expect("the move went through");
    assert_eq!(owner(&cluster.router, 0), "shard1");
    check(&cluster, "after the decision");
}

#[test]
fn a_cancel_ends_a_move_at_any_step() {
    let cluster = cluster();
    for at in STEPS {
        let before = owner(&cluster.router, 0);
        let client = cluster.router.client();
        let cancel = client.cancel_token();
        let (held, moving) = hold_at(&cluster, at, client);
        cancel.cancel_query(NoTls).expect("a cancel");
        assert_eq!(error_of(moving).0, "57014", "{at}");
        drop(held);
        check_unmoved(&cluster, at, &before);
    }
}

#[test]
fn a_statement_timeout_ends_a_move_at_any_step() {
    let cluster = cluster();
    for at in STEPS {
        let before = owner(&cluster.router, 0);
        let mut client = cluster.router.client();
        client.batch_execute("SET statement_timeout = '3s'").unwrap();
        let (held, moving) = hold_at(&cluster, at, client);
        let (sqlstate, message) = error_of(moving);
        assert_eq!(sqlstate, "57014", "{at}");
        assert!(message.contains("statement timeout"), "{at}: {message}");
        drop(held);
        check_unmoved(&cluster, at, &before);
    }
}

#[test]
fn a_client_that_is_terminated_takes_its_move_along() {
    let cluster = cluster();
    for at in STEPS {
        let before = owner(&cluster.router, 0);
        let mut client = cluster.router.client();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let (held, moving) = hold_at(&cluster, at, client);
        cluster.router.psql(&format!("SELECT pg_terminate_backend({pid})"));
        // The client library sometimes sees the closed connection before it returns the server's last message.
        let error = moving.join().expect("no panic").expect_err("the session has ended");
        assert!(error.is_closed() || error.code().is_some_and(|code| code.code() == "57P01"), "{at}: {error:?}");
        // The client gets its answer before the job ends.
        let jobs = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
        wait_until(&format!("{at}: the job ends"), PATIENCE, || cluster.router.value::<i64>(jobs) == 0);
        drop(held);
        check_unmoved(&cluster, at, &before);
    }
}

/// Checks that the move was aborted and the donor keeps the chunk.
fn check_unmoved(cluster: &Cluster, at: &str, before: &str) {
    let unfinished = "SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'";
    wait_until(&format!("{at}: the end"), PATIENCE, || cluster.router.value::<i64>(unfinished) == 0);
    assert_eq!(owner(&cluster.router, 0), before, "{at}");
    check(cluster, at);
}

#[test]
fn stop_balancer_aborts_what_does_not_end_in_time() {
    let cluster = cluster();
    cluster.router.psql("INSERT INTO docshard_catalog.settings VALUES ('balancer_interval_ms', '200')");
    // Writers to this table are blocked, so whatever the balancer clones to this shard waits.
    let held = keep_from_loading(&cluster, &cluster.shards[1]);
    cluster.router.psql(
        "SELECT docshard.remove_shard('shard0'); SELECT docshard.remove_shard('local'); SELECT docshard.start_balancer()",
    );
    wait_until("cloning", PATIENCE, || step(&cluster.router) == "cloning");
    let answer: Value = cluster.router.value("SELECT docshard.stop_balancer(100)");
    assert_eq!((&answer["stopped"], &answer["aborted"]), (&true.into(), &1.into()), "{answer}");
    drop(held);
    assert_eq!(owner(&cluster.router, 0), "shard0");
    let error: String = cluster.router.value("SELECT docshard.balancer_status() ->> 'lastError'");
    assert!(error.contains("aborted on request"), "{error}");
    cluster.router.psql("SELECT docshard.start_balancer()");
    wait_until("the shard is empty", PATIENCE, || owner(&cluster.router, 0) == "shard1");
}

/// The answers of `remove_shard`, which report the progress of the removal.
fn remove_shard(cluster: &Cluster, name: &str) -> String {
    cluster.router.value(&format!("SELECT docshard.remove_shard('{name}') ->> 'state'"))
}

#[test]
fn a_shard_that_is_being_removed_and_a_move_wait_for_each_other() {
    let cluster = cluster();
    for at in STEPS {
        let from = owner(&cluster.router, 0);
        let to = if from == "shard0" { "shard1" } else { "shard0" };
        let (held, moving) = hold_at(&cluster, at, cluster.router.client());
        // From now on the recipient drains. A move that is already under way still completes.
        assert_eq!(remove_shard(&cluster, to), "started", "{at}");
        assert_eq!(remove_shard(&cluster, to), "ongoing", "{at}");
        let mut client = cluster.router.client();
        let another = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 1}}', 'local')");
        let error = client.batch_execute(&another).expect_err("a second move of the chunk");
        let error = error.as_db_error().expect("an error of the server");
        assert!(error.detail().is_some_and(|detail| detail.contains("117")), "{at}: {error:?}");
        drop(held);
        moving.join().expect("no panic").unwrap_or_else(|e| panic!("{at}: {e:?}"));
        assert_eq!(owner(&cluster.router, 0), to, "{at}");
        assert_eq!(remove_shard(&cluster, to), "ongoing", "{at}: it has chunks");
        cluster.router.psql(&format!("UPDATE docshard_catalog.shards SET draining = false WHERE name = '{to}'"));
        check(&cluster, at);
        assert_eq!(owner(&cluster.router, 0), from, "{at}");
    }
    // The last chunk leaves the draining shard.
    if owner(&cluster.router, 0) == "shard0" {
        cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 1}}', 'shard1')"));
    }
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {}}}', 'shard0')", DOCUMENTS - 1));
    let (held, moving) = hold_at(&cluster, "handing over", cluster.router.client());
    assert_eq!(remove_shard(&cluster, "shard1"), "started");
    assert_eq!(remove_shard(&cluster, "shard1"), "ongoing", "a move is under way");
    drop(held);
    moving.join().expect("no panic").expect("a move off the shard");
    wait_until("nothing is left of the move", PATIENCE, || remove_shard(&cluster, "shard1") == "completed");
    let count = format!("SELECT docshard.count_documents('{NS}')");
    assert_eq!(cluster.router.value::<i64>(&count), DOCUMENTS);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.chunks WHERE shard <> 'shard0'"), 0);
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 0);
}
