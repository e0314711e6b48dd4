//! Moves between disjoint pairs of shards run at the same time, started manually and by the balancer.

use docshard_tests::moving::{
    NS, check_clean, count, create, in_tables, increment, keep_from_loading, move_chunk, owner, recover, sqlstate,
    start_move, table,
};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const CHUNKS: i64 = 16;
const DOCUMENTS: i64 = 8_000;

/// A cluster with documents of about 400 bytes and keys from 0 in equal chunks: seven on each of `shard0` and `shard1`, one on
/// each of `shard2` and `shard3`. The balancer is off.
fn cluster() -> Cluster {
    let cluster = Cluster::start(4);
    let text = "'n', 0, 'text', repeat(md5(k::text), 12)";
    create(&cluster, "shard0", DOCUMENTS, text, (1..CHUNKS).map(key));
    run(&cluster.router, "SELECT docshard.set_setting('balancer_interval_ms', '200')");
    run(&cluster.router, "SELECT docshard.set_setting('chunk_size_mb', '1'), docshard.remove_shard('local')");
    for chunk in 0..CHUNKS {
        let to = match chunk {
            0..7 => "shard0",
            7..14 => "shard1",
            14 => "shard2",
            _ => "shard3",
        };
        move_chunk(&mut cluster.router.client(), key(chunk), to).expect("a move");
    }
    cluster
}

/// The lower bound of a chunk.
fn key(chunk: i64) -> i64 {
    chunk * (DOCUMENTS / CHUNKS)
}

fn hold(cluster: &Cluster, shard: usize) -> Client {
    keep_from_loading(cluster, &cluster.shards[shard])
}

fn running(node: &Node) -> i64 {
    node.value("SELECT count(*) FROM docshard.migrations WHERE state = 'running' AND step = 'cloning'")
}

/// Checks that every document exists once, on the shard that owns it, and that no leftovers of moves exist.
fn check(cluster: &Cluster) {
    recover(cluster);
    check_clean(cluster);
    for shard in &cluster.shards {
        let here: i64 = shard.value(&format!("SELECT count(*) FROM {}", table(cluster)));
        let owned: i64 = cluster.router.value(&format!(
            "SELECT coalesce(sum(documents), 0)::bigint FROM docshard.get_shard_distribution('{NS}', '{{\"count\": true}}') WHERE shard = '{}'",
            shard.name
        ));
        assert_eq!(here, owned, "{}", shard.name);
    }
    assert_eq!(in_tables(cluster), DOCUMENTS);
    let sql = format!("SELECT count(DISTINCT d->>'_id') FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(cluster.router.value::<i64>(&sql), DOCUMENTS);
}

#[test]
fn moves_of_one_collection_between_other_shards_do_not_wait_for_each_other() {
    let cluster = cluster();
    let mut holder = hold(&cluster, 2);
    let first = start_move(&cluster, key(0), "shard2");
    wait_until("it clones", LONG, || running(&cluster.router) == 1);

    // A move between two other shards succeeds, and so do writes to these shards and reads of both.
    start_move(&cluster, key(7), "shard3").join().unwrap().expect("a move between other shards");
    assert_eq!(owner(&cluster.router, key(7)), "shard3");
    assert_eq!(owner(&cluster.router, key(0)), "shard0");
    run(&cluster.router, &increment(key(0)));
    run(&cluster.router, &increment(key(7)));
    assert_eq!(count(&mut cluster.router.client()), DOCUMENTS);

    // A move with one of the busy shards is refused, as donor and as recipient.
    for (chunk, to) in [(1, "shard1"), (8, "shard0"), (8, "shard2"), (14, "shard3")] {
        let error = move_chunk(&mut cluster.router.client(), key(chunk), to).expect_err("the shard is busy");
        assert_eq!(sqlstate(&error), "55006", "{chunk} to {to}: {error:?}");
    }
    holder.batch_execute("ROLLBACK").expect("the lock is released");
    first.join().unwrap().expect("the first move");
    assert_eq!(owner(&cluster.router, key(0)), "shard2");
    for chunk in [0, 7] {
        let n: String =
            cluster.router.value(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": {}}}') ->> 'n'", key(chunk)));
        assert_eq!(n, "1");
    }
    check(&cluster);
}

#[test]
fn abort_migration_by_namespace_ends_all_of_them() {
    let cluster = cluster();
    let holders = [hold(&cluster, 2), hold(&cluster, 3)];
    let moves = [start_move(&cluster, key(0), "shard2"), start_move(&cluster, key(7), "shard3")];
    wait_until("both clone", LONG, || running(&cluster.router) == 2);
    let answer: Value = cluster.router.value(&format!("SELECT docshard.abort_migration('{NS}')"));
    assert_eq!(answer["aborted"], true, "{answer}");
    assert_eq!(answer["migrations"].as_array().map(Vec::len), Some(2), "{answer}");
    for moving in moves {
        moving.join().unwrap().expect_err("it was aborted");
    }
    drop(holders);
    assert_eq!([0, 7].map(|chunk| owner(&cluster.router, key(chunk))), ["shard0", "shard1"]);
    check(&cluster);
}

fn status(node: &Node) -> Value {
    serde_json::from_str(&node.value::<String>("SELECT docshard.balancer_status()::text")).expect("JSON")
}

fn chunks(node: &Node) -> Vec<i64> {
    let rows = node.client().query("SELECT count(*) FROM docshard.chunks GROUP BY shard ORDER BY shard", &[]);
    rows.expect("chunks").iter().map(|row| row.get(0)).collect()
}

fn is_even(node: &Node) -> bool {
    let chunks = chunks(node);
    chunks.len() == 4 && chunks.iter().all(|chunks| (3..=5).contains(chunks))
}

fn run(node: &Node, sql: &str) {
    node.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

#[test]
fn the_balancer_moves_between_several_pairs_of_shards_at_a_time() {
    let cluster = cluster();
    let holders = [hold(&cluster, 2), hold(&cluster, 3)];
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("two chunks move", LONG, || running(&cluster.router) == 2);
    let action = status(&cluster.router)["action"].to_string();
    assert!(action.contains("moving chunks of test.moved from"), "{action}");
    assert_eq!(count(&mut cluster.router.client()), DOCUMENTS);
    drop(holders);
    wait_until("it is even", LONG, || is_even(&cluster.router));
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
    run(&cluster.router, "SELECT docshard.stop_balancer()");
    check(&cluster);
}

#[test]
fn a_setting_says_how_many_at_a_time() {
    let cluster = cluster();
    run(&cluster.router, "SELECT docshard.set_setting('parallel_moves', '1')");
    let holders = [hold(&cluster, 2), hold(&cluster, 3)];
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("a chunk moves", LONG, || running(&cluster.router) == 1);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(running(&cluster.router), 1);
    drop(holders);
    wait_until("it is even", LONG, || is_even(&cluster.router));
    run(&cluster.router, "SELECT docshard.stop_balancer()");
    check(&cluster);
}

#[test]
fn stop_balancer_ends_all_moves_that_do_not_end_in_time() {
    let cluster = cluster();
    let holders = [hold(&cluster, 2), hold(&cluster, 3)];
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("two chunks move", LONG, || running(&cluster.router) == 2);
    let before = chunks(&cluster.router);
    let answer: Value = cluster.router.value("SELECT docshard.stop_balancer(100)");
    assert_eq!((answer["stopped"].clone(), answer["aborted"].clone()), (true.into(), 2.into()), "{answer}");
    assert_eq!(chunks(&cluster.router), before);
    drop(holders);
    check(&cluster);
}

#[test]
fn the_moves_of_a_balancer_that_is_terminated_end_with_it() {
    let cluster = cluster();
    let holders = [hold(&cluster, 2), hold(&cluster, 3)];
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("two chunks move", LONG, || running(&cluster.router) == 2);
    let moves: Vec<i64> = {
        let rows = cluster.router.client().query("SELECT id FROM docshard.migrations WHERE state = 'running'", &[]);
        rows.expect("moves").iter().map(|row| row.get(0)).collect()
    };
    run(
        &cluster.router,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'docshard worker'",
    );
    wait_until("they are aborted", LONG, || {
        let sql =
            "SELECT count(*) FROM docshard.migrations WHERE id = ANY ($1) AND state = 'done' AND outcome = 'aborted'";
        cluster.router.client().query_one(sql, &[&moves]).expect("moves").get::<_, i64>(0) == 2
    });
    drop(holders);
    wait_until("another one goes on", LONG, || is_even(&cluster.router));
    run(&cluster.router, "SELECT docshard.stop_balancer()");
    check(&cluster);
}

#[test]
fn the_balancer_leaves_shards_alone_that_take_part_in_a_move_by_hand() {
    let cluster = cluster();
    let holder = hold(&cluster, 2);
    let by_hand = start_move(&cluster, key(0), "shard2");
    wait_until("it clones", LONG, || running(&cluster.router) == 1);
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("other shards balance", LONG, || owned(&cluster, "shard3") > 1);
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
    let of_these = "SELECT count(*) FROM docshard.migrations WHERE ARRAY[donor, recipient] && '{shard0,shard2}' \
        AND id >= (SELECT max(id) FROM docshard.migrations WHERE reason = 'manual')";
    assert_eq!(cluster.router.value::<i64>(of_these), 1, "the move by hand alone");
    drop(holder);
    by_hand.join().unwrap().expect("the move by hand");
    wait_until("it is even", LONG, || is_even(&cluster.router));
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
    run(&cluster.router, "SELECT docshard.stop_balancer()");
    check(&cluster);
}

fn owned(cluster: &Cluster, shard: &str) -> i64 {
    cluster.router.value(&format!("SELECT count(*) FROM docshard.chunks WHERE shard = '{shard}'"))
}

#[test]
fn where_workers_run_out_there_are_fewer_moves_at_a_time() {
    let mut cluster = cluster();
    // PostgreSQL's own worker, docshard's launcher, the database's worker and its keeper leave one free worker, where two moves
    // could begin.
    cluster.router.configure("max_worker_processes = 5");
    cluster.router.stop();
    cluster.router.start();
    run(&cluster.router, "SELECT docshard.start_balancer()");
    wait_until("it is even", LONG, || is_even(&cluster.router));
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
    run(&cluster.router, "SELECT docshard.stop_balancer()");
    check(&cluster);
}
