//! The workers balance and drain shards, resolve prepared transactions, and survive failures.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Documents of about 400 bytes with keys 0 … n-1, in a collection sharded by `{"k": 1}`.
fn load(client: &mut Client, namespace: &str, documents: i32) {
    client
        .execute("SELECT docshard.shard_collection($1, '{\"k\": 1}')", &[&namespace])
        .expect("the collection can be sharded");
    insert(client, namespace, 0, documents);
}

fn insert(client: &mut Client, namespace: &str, from: i32, to: i32) {
    client
        .execute(
            "SELECT docshard.insert_many($1, array_agg(jsonb_build_object('k', k, 'text', repeat(md5(k::text), 12)))) \
             FROM generate_series($2::int, $3::int - 1) AS k",
            &[&namespace, &from, &to],
        )
        .expect("documents can be inserted");
}

/// A cluster with a short balancer interval, whose own database `local` is drained from the start.
fn cluster(shards: usize) -> Cluster {
    let cluster = Cluster::start(shards);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.set_setting('balancer_interval_ms', '200'); SELECT docshard.set_setting('chunk_size_mb', '1'); \
             SELECT docshard.remove_shard('local'); SELECT docshard.enable_sharding('t', 'shard0')",
        )
        .expect("settings can be set");
    cluster
}

/// The number of the collection's documents on each shard, by shard name.
fn spread(node: &Node, namespace: &str) -> Vec<(String, i64)> {
    let rows = node
        .client()
        .query(
            "SELECT shard, coalesce(documents, 0) FROM docshard.get_shard_distribution($1, '{\"count\": true}') ORDER BY shard",
            &[&namespace],
        )
        .expect("the distribution");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn status(node: &Node) -> Value {
    serde_json::from_str(&node.value::<String>("SELECT docshard.balancer_status()::text")).expect("JSON")
}

fn count(node: &Node, namespace: &str) -> i64 {
    node.client().query_one("SELECT docshard.count_documents($1, '{}')", &[&namespace]).expect("a count").get(0)
}

/// True if every shard has its share of the documents, within a quarter.
fn is_even(spread: &[(String, i64)], shards: usize) -> bool {
    let ideal = spread.iter().map(|(_, n)| n).sum::<i64>() / i64::try_from(shards).unwrap();
    spread.len() == shards && spread.iter().all(|(_, n)| (n - ideal).abs() * 4 <= ideal)
}

fn worker(node: &Node) -> Option<i32> {
    let rows = node.client().query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard worker'", &[]);
    rows.expect("pg_stat_activity").first().map(|row| row.get(0))
}

/// Checks that no chunk is being moved and no leftovers of moves exist.
fn is_quiet(node: &Node) -> bool {
    node.value("SELECT NOT EXISTS (SELECT FROM docshard_catalog.migrations WHERE state <> 'done')")
}

#[test]
fn a_young_collection_is_split_and_spread_and_then_left_alone() {
    let cluster = cluster(3);
    load(&mut cluster.router.client(), "t.c", 20_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 3) && is_quiet(&cluster.router));
    assert_eq!(count(&cluster.router, "t.c"), 20_000);

    std::thread::sleep(Duration::from_secs(1));
    let moves: i64 = cluster.router.value("SELECT count(*) FROM docshard.migrations");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.migrations"), moves, "it goes on moving");
    let again: i64 = cluster.router.value(
        "SELECT count(*) FROM (SELECT namespace, min::text FROM docshard.migrations WHERE documents > 0 \
         GROUP BY 1, 2 HAVING count(*) > 1) AS twice",
    );
    assert_eq!(again, 0, "chunks were moved twice");
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
}

#[test]
fn a_draining_shard_gives_everything_away_and_is_removed() {
    let cluster = cluster(3);
    let mut client = cluster.router.client();
    load(&mut client, "t.c", 9_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 3));
    let remove = || cluster.router.value::<String>("SELECT docshard.remove_shard('shard2')::text");
    assert!(remove().contains("\"started\""));
    wait_until("it is removed", LONG, || remove_is_complete(&remove()));
    assert!(is_even(&spread(&cluster.router, "t.c"), 2));
    assert_eq!(count(&cluster.router, "t.c"), 9_000);
}

fn remove_is_complete(answer: &str) -> bool {
    answer.contains("\"completed\"")
}

#[test]
fn a_chunk_of_one_key_becomes_jumbo_and_others_do_not() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    load(&mut client, "t.c", 1_000);
    client
        .execute(
            "SELECT docshard.insert_many('t.c', array_agg(jsonb_build_object('k', 500, 'text', repeat(md5(i::text), 12)))) \
             FROM generate_series(1, 6000) AS i",
            &[],
        )
        .unwrap();
    wait_until("a chunk is jumbo", LONG, || {
        cluster.router.value("SELECT count(*) = 1 FROM docshard.chunks WHERE jumbo")
    });
    let bounds: String = cluster.router.value("SELECT min::text || max::text FROM docshard.chunks WHERE jumbo");
    assert_eq!(bounds, r#"{"k":500}{"k":501}"#);
    assert!(cluster.router.value::<String>("SELECT docshard.status()").contains("jumbo"));
    assert_eq!(count(&cluster.router, "t.c"), 7_000);
}

/// Counts chunks of zones' ranges that are on other shards, and chunks that lie only partly in a zone.
fn out_of_zone(node: &Node, namespace: &str) -> i64 {
    let row = node.client().query_one(
        "SELECT count(*) FROM docshard.chunks c JOIN docshard.zone_ranges r USING (namespace) \
         WHERE c.namespace = $1 AND c.min_key < r.max_key AND c.max_key > r.min_key \
           AND (c.min_key < r.min_key OR c.max_key > r.max_key \
                OR NOT EXISTS (SELECT FROM docshard.zones z WHERE (z.zone, z.shard) = (r.zone, c.shard)))",
        &[&namespace],
    );
    row.expect("a count").get(0)
}

#[test]
fn zones_are_filled_and_the_rest_gives_way() {
    let cluster = cluster(3);
    let mut client = cluster.router.client();
    load(&mut client, "t.c", 18_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 3));
    client
        .batch_execute(
            "SELECT docshard.add_shard_to_zone('shard2', 'cold'); \
             SELECT docshard.update_zone_key_range('t.c', '{\"k\": {\"$minKey\": 1}}', '{\"k\": 5555}', 'cold')",
        )
        .unwrap();
    wait_until("the zone has what is its", LONG, || out_of_zone(&cluster.router, "t.c") == 0);
    wait_until("the others are even", LONG, || {
        is_even(&spread(&cluster.router, "t.c"), 3) && is_quiet(&cluster.router)
    });
    assert_eq!(out_of_zone(&cluster.router, "t.c"), 0);
    assert_eq!(count(&cluster.router, "t.c"), 18_000);
    assert!(cluster.router.value::<bool>("SELECT bool_or(reason = 'zone') FROM docshard.migrations"));
    let error = client.batch_execute("SELECT docshard.remove_shard('shard2')").unwrap_err();
    assert!(error.as_db_error().is_some_and(|e| e.detail() == Some("MongoDB error 163 (ZoneStillInUse).")), "{error}");

    // A range that is reassigned to another zone moves there; after its removal the chunks spread again.
    client
        .batch_execute(
            "SELECT docshard.add_shard_to_zone('shard0', 'warm'); \
             SELECT docshard.update_zone_key_range('t.c', '{\"k\": {\"$minKey\": 1}}', '{\"k\": 5555}', 'warm'); \
             SELECT docshard.remove_shard_from_zone('shard2', 'cold')",
        )
        .unwrap();
    wait_until("the zone has what is its", LONG, || out_of_zone(&cluster.router, "t.c") == 0);
    assert_eq!(count(&cluster.router, "t.c"), 18_000);
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
}

#[test]
fn a_collection_with_zones_starts_in_them() {
    let cluster = cluster(3);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.stop_balancer(); SELECT docshard.add_shard_to_zone('shard1', 'a'); \
             SELECT docshard.add_shard_to_zone('shard2', 'b'); \
             SELECT docshard.update_zone_key_range('t.c', '{\"k\": 0}', '{\"k\": 100}', 'a'); \
             SELECT docshard.update_zone_key_range('t.c', '{\"k\": 100}', '{\"k\": 250}', 'b')",
        )
        .unwrap();
    load(&mut client, "t.c", 250);
    assert_eq!(out_of_zone(&cluster.router, "t.c"), 0);
    let spread = spread(&cluster.router, "t.c");
    for (shard, documents) in [("shard1", 100), ("shard2", 150)] {
        assert!(spread.contains(&(shard.to_owned(), documents)), "{spread:?}");
    }
}

#[test]
fn what_a_purge_left_is_merged() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.set_setting('merge_delay_s', '1')").unwrap();
    load(&mut client, "t.c", 20_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2) && is_quiet(&cluster.router));
    let chunks = || cluster.router.value::<i64>("SELECT count(*) FROM docshard.chunks WHERE namespace = 't.c'");
    let before = chunks();
    client.batch_execute("SELECT docshard.delete_many('t.c', '{\"k\": {\"$lt\": 12000}}')").unwrap();
    wait_until("chunks are merged", LONG, || {
        cluster.router.value("SELECT count(*) > 0 FROM docshard.changelog WHERE what = 'merge'")
    });
    assert!(chunks() < before);
    assert_eq!(count(&cluster.router, "t.c"), 8_000);
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
}

#[test]
fn what_does_not_change_is_not_measured_again() {
    let cluster = cluster(2);
    load(&mut cluster.router.client(), "t.c", 4_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2) && is_quiet(&cluster.router));
    // For a table this small, measuring reads all documents.
    let scans = || -> i64 {
        cluster
            .shards
            .iter()
            .map(|shard| {
                shard.value::<i64>("SELECT sum(seq_scan)::int8 FROM pg_stat_user_tables WHERE relname ~ '^c\\d+$'")
            })
            .sum()
    };
    let mut before = -1;
    wait_until("nobody measures", LONG, || {
        std::thread::sleep(Duration::from_secs(3));
        std::mem::replace(&mut before, scans()) == before
    });
    insert(&mut cluster.router.client(), "t.c", 4_000, 12_000);
    wait_until("it is even again", LONG, || {
        count(&cluster.router, "t.c") == 12_000 && is_even(&spread(&cluster.router, "t.c"), 2)
    });
}

#[test]
fn it_works_within_its_window_and_pauses_and_leaves_alone_what_it_must() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    let moves = || cluster.router.value::<i64>("SELECT count(*) FROM docshard.migrations");
    // A window that begins in six hours and ends in seven.
    client
        .batch_execute(
            "SELECT docshard.set_setting('active_window_start', to_char(now() + interval '6 hours', 'HH24:MI')), \
                    docshard.set_setting('active_window_stop', to_char(now() + interval '7 hours', 'HH24:MI'))",
        )
        .unwrap();
    load(&mut client, "t.c", 9_000);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(moves(), 0, "it works outside of its window");
    assert_eq!(status(&cluster.router)["activeWindow"]["open"], false);
    // From an hour ago on, for two hours; the window may cross midnight.
    client
        .batch_execute(
            "SELECT docshard.disable_balancing('t.c'), docshard.set_setting('pause_ms', '3000'), \
                    docshard.set_setting('active_window_start', to_char(now() - interval '1 hours', 'HH24:MI')), \
                    docshard.set_setting('active_window_stop', to_char(now() + interval '1 hours', 'HH24:MI'))",
        )
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(moves(), 0, "it moves what it must leave alone");
    client.batch_execute("SELECT docshard.enable_balancing('t.c')").unwrap();
    wait_until("it moves", LONG, || moves() > 0);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(moves(), 1, "it does not pause");
    client.batch_execute("SELECT docshard.set_setting('pause_ms', NULL)").unwrap();
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2) && is_quiet(&cluster.router));
    let compliant =
        || cluster.router.value::<String>("SELECT docshard.balancer_collection_status('t.c') ->> 'balancerCompliant'");
    wait_until("the balancer is content", LONG, || compliant() == "true");
    assert_eq!(status(&cluster.router)["lastError"], Value::Null);
}

#[test]
fn a_full_shard_takes_nothing() {
    let cluster = cluster(3);
    let mut client = cluster.router.client();
    client.batch_execute("UPDATE docshard_catalog.shards SET max_size_mb = 1 WHERE name = 'shard2'").unwrap();
    load(&mut client, "t.c", 20_000);
    let documents =
        |shard: &str| spread(&cluster.router, "t.c").into_iter().find(|(name, _)| name == shard).map_or(0, |(_, n)| n);
    wait_until("two are even", LONG, || (documents("shard0") - documents("shard1")).abs() < 2_500);
    std::thread::sleep(Duration::from_secs(2));
    let rows = client
        .query(
            "SELECT bytes FROM docshard.get_shard_distribution('t.c', '{\"count\": true}') WHERE shard = 'shard2'",
            &[],
        )
        .unwrap();
    let bytes: i64 = rows.first().map_or(0, |row| row.get(0));
    assert!(bytes <= 1 << 20, "{bytes}");
}

#[test]
fn stop_waits_for_the_move_and_start_goes_on() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    load(&mut client, "t.c", 20_000);
    wait_until("it moves", LONG, || cluster.router.value("SELECT count(*) > 0 FROM docshard.migrations"));
    let answer: String = cluster.router.value("SELECT docshard.stop_balancer()::text");
    assert!(answer.contains("\"stopped\":true"), "{answer}");
    assert!(is_quiet(&cluster.router), "a chunk is still being moved");
    let moves: i64 = cluster.router.value("SELECT count(*) FROM docshard.migrations");
    assert_eq!(status(&cluster.router)["mode"], "off");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.migrations"), moves, "it went on");
    client.batch_execute("SELECT docshard.start_balancer()").unwrap();
    assert_eq!(status(&cluster.router)["mode"], "full");
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2));
    assert_eq!(count(&cluster.router, "t.c"), 20_000);
}

#[test]
fn a_collection_that_is_not_to_be_balanced_stays() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    load(&mut client, "t.still", 6_000);
    load(&mut client, "t.moves", 6_000);
    client
        .batch_execute("UPDATE docshard_catalog.collections SET balance = false WHERE namespace = 't.still'")
        .unwrap();
    client.batch_execute("SELECT docshard.start_balancer()").unwrap();
    wait_until("the other is even", LONG, || is_even(&spread(&cluster.router, "t.moves"), 2));
    assert_eq!(spread(&cluster.router, "t.still"), [("shard0".to_owned(), 6_000)]);
}

#[test]
fn a_terminated_worker_comes_back() {
    let cluster = cluster(2);
    wait_until("the worker stays", LONG, || worker(&cluster.router).is_some());
    let first = worker(&cluster.router).unwrap();
    cluster.router.psql(&format!("SELECT pg_terminate_backend({first})"));
    wait_until("another comes", LONG, || worker(&cluster.router).is_some_and(|pid| pid != first));
    let launcher: i32 =
        cluster.router.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard launcher'");
    cluster.router.psql(&format!("SELECT pg_terminate_backend({launcher})"));
    wait_until("another launcher comes", LONG, || {
        cluster.router.value("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'docshard launcher'")
    });
    load(&mut cluster.router.client(), "t.c", 6_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2));
}

#[test]
fn a_router_killed_while_it_balances_goes_on_after_its_restart() {
    let mut cluster = cluster(3);
    load(&mut cluster.router.client(), "t.c", 30_000);
    wait_until("it moves", LONG, || cluster.router.value("SELECT count(*) > 1 FROM docshard.migrations"));
    cluster.router.kill9();
    cluster.router.start();
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 3) && is_quiet(&cluster.router));
    assert_eq!(count(&cluster.router, "t.c"), 30_000);
}

#[test]
fn a_shard_that_is_down_stops_nobody_else_and_is_told() {
    let mut cluster = cluster(3);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    load(&mut client, "t.c", 9_000);
    cluster.node("shard2").kill9();
    client.batch_execute("SELECT docshard.start_balancer()").unwrap();
    wait_until("an error is told", LONG, || status(&cluster.router)["lastError"].is_string());
    wait_until("it says who rests", LONG, || {
        status(&cluster.router)["resting"]
            .as_array()
            .is_some_and(|resting| resting[..].iter().any(|r| r["shard"] == "shard2"))
    });
    wait_until("the others share meanwhile", LONG, || {
        spread(&cluster.router, "t.c").iter().any(|(shard, documents)| shard == "shard1" && *documents > 1_000)
    });
    let text = cluster.router.value::<String>("SELECT docshard.status()");
    assert!(text.contains("last error"), "{text}");
    assert!(worker(&cluster.router).is_some());
    cluster.node("shard2").start();
    wait_until("it is even", Duration::from_secs(120), || is_even(&spread(&cluster.router, "t.c"), 3));
    assert_eq!(count(&cluster.router, "t.c"), 9_000);
}

#[test]
fn what_a_shard_that_is_down_holds_is_remembered() {
    let mut cluster = cluster(3);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    load(&mut client, "t.c", 30_000);
    for sql in [
        "SELECT docshard.move_range('t.c', '{\"k\": 12000}', '{\"k\": {\"$maxKey\": 1}}', 'shard2')",
        "SELECT docshard.split_at('t.c', json_build_object('k', k)) FROM generate_series(1000, 29000, 1000) k \
          WHERE k <> 12000",
        "SELECT docshard.disable_balancing('t.c'), docshard.start_balancer()",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    assert_eq!(spread(&cluster.router, "t.c"), [("shard0".to_owned(), 12_000), ("shard2".to_owned(), 18_000)]);
    // For a table this small, measuring reads all documents.
    let scans = "SELECT coalesce(sum(seq_scan), 0)::int8 FROM pg_stat_user_tables WHERE relname ~ '^c\\d+$'";
    let mut before = -1;
    wait_until("all is measured", LONG, || {
        std::thread::sleep(Duration::from_secs(2));
        let now = cluster.shards[2].value::<i64>(scans);
        std::mem::replace(&mut before, now) == now && now > 0
    });
    cluster.node("shard2").kill9();
    client.batch_execute("SELECT docshard.enable_balancing('t.c')").unwrap();
    let documents = |shard: &str| -> i64 {
        let sql = "SELECT coalesce(sum(documents), 0)::int8 FROM docshard.migrations \
                   WHERE recipient = $1 AND reason = 'balance' AND state = 'done' AND error IS NULL";
        cluster.router.client().query_one(sql, &[&shard]).expect("a sum").get(0)
    };
    wait_until("what is too much goes to the third", LONG, || documents("shard1") > 0);
    std::thread::sleep(Duration::from_secs(2));
    // A third is 10,000. If the shard were taken for empty, or ignored, the other two would be equal instead.
    let moved = documents("shard1");
    assert!((1_000..=3_000).contains(&moved), "{moved}");
    assert_eq!(documents("shard0"), 0);
}

#[test]
fn a_clock_that_was_set_back_stops_nothing() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    load(&mut client, "t.c", 6_000);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2) && is_quiet(&cluster.router));
    // The catalog's state after the clock was set back by a day.
    client
        .batch_execute(
            "UPDATE docshard_catalog.balancer_state SET last_round_at = now() + interval '1 day', \
                    last_error = 'earlier', last_error_at = now() + interval '1 day'; \
             UPDATE docshard_catalog.migrations SET started_at = started_at + interval '1 day', \
                    step_at = step_at + interval '1 day', updated_at = updated_at + interval '1 day'; \
             UPDATE docshard_catalog.changelog SET at = at + interval '1 day'",
        )
        .unwrap();
    let future = "SELECT last_round_at > now() FROM docshard_catalog.balancer_state";
    wait_until("a round is noted", LONG, || !cluster.router.value::<bool>(future));
    let moves = || cluster.router.value::<i64>("SELECT count(*) FROM docshard.migrations");
    let before = moves();
    insert(&mut client, "t.c", 6_000, 18_000);
    wait_until("it is even again", LONG, || {
        count(&cluster.router, "t.c") == 18_000 && is_even(&spread(&cluster.router, "t.c"), 2) && moves() > before
    });
}

#[test]
fn a_move_is_throttled() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    client
        .batch_execute("SELECT docshard.stop_balancer(); SELECT docshard.set_setting('throttle_mb_per_s', '1')")
        .unwrap();
    load(&mut client, "t.c", 5_000);
    client
        .batch_execute(
            "SELECT docshard.disable_balancing('t.c'); SELECT docshard.set_setting('chunk_size_mb', '64'); \
             SELECT docshard.remove_shard('shard0'); SELECT docshard.start_balancer()",
        )
        .unwrap();
    wait_until("the chunk is moved", LONG, || spread(&cluster.router, "t.c") == [("shard1".to_owned(), 5_000)]);
    wait_until("it is noted", LONG, || is_quiet(&cluster.router));
    let row = client
        .query_one("SELECT bytes, (durations ->> 'cloning')::int8 FROM docshard.migrations WHERE documents = 5000", &[])
        .expect("one move");
    let (bytes, millis): (i64, i64) = (row.get(0), row.get(1));
    assert!(bytes > 1 << 20, "{bytes}");
    // A step copies as many bytes as fit into its milliseconds, except for rounding.
    assert!(millis + 10 >= bytes * 1000 / (1 << 20), "{bytes} bytes took {millis} ms");
}

/// Limits the size of files that the server's new processes may write, in bytes, as if the disk were full.
fn limit_files(node: &Node, most: Option<u64>) {
    let pid = node.pid().expect("it runs").to_string();
    let most = most.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    // Runs as the server's own user, who may certainly change the limit.
    node.program("/usr/bin/prlimit", &["--pid", &pid, &format!("--fsize={most}:")]);
}

#[test]
fn a_recipient_without_space_is_told_and_tried_again() {
    let mut cluster = cluster(2);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    // These files are smaller than the limit.
    let recipient = &mut cluster.shards[1];
    recipient.stop();
    recipient.program("pg_resetwal", &["--wal-segsize=1", "-D", recipient.data().to_str().unwrap()]);
    recipient.start();
    load(&mut client, "t.c", 20_000);
    limit_files(&cluster.shards[1], Some(3 << 20));
    client.batch_execute("SELECT docshard.start_balancer()").unwrap();
    wait_until("it is told", LONG, || {
        let status = status(&cluster.router);
        status["lastError"].as_str().is_some_and(|error| error.contains("could not extend file"))
            && status["resting"].as_array().is_some_and(|resting| resting[..].iter().any(|r| r["namespace"] == "t.c"))
    });
    let before = worker(&cluster.router);
    wait_until("nothing is left of it", LONG, || is_quiet(&cluster.router));
    assert_eq!(count(&cluster.router, "t.c"), 20_000);
    let why: String =
        cluster.router.value("SELECT error FROM docshard.migrations WHERE error <> '' ORDER BY id DESC LIMIT 1");
    assert!(why.contains("could not extend file") && why.contains("shard1"), "{why}");
    assert!(!is_even(&spread(&cluster.router, "t.c"), 2));
    limit_files(&cluster.shards[1], None);
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 2));
    assert_eq!(count(&cluster.router, "t.c"), 20_000);
    assert_eq!(worker(&cluster.router), before, "the worker has lived on");
}

#[test]
fn drop_database_is_not_kept_waiting() {
    let cluster = Cluster::servers(1);
    let node = &cluster.router;
    node.psql("CREATE DATABASE other");
    let url = format!("{}/other", node.url().trim_end_matches("/postgres"));
    let mut client = Client::connect(&url, postgres::NoTls).unwrap();
    client.batch_execute("CREATE EXTENSION docshard CASCADE").unwrap();
    let options = r#"{"name": "shard0"}"#;
    client
        .execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&cluster.shards[0].url(), &options])
        .unwrap();
    wait_until("the worker stays", LONG, || worker(node).is_some());
    drop(client);
    wait_until("the session ends", LONG, || {
        node.value("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'other' AND backend_type = 'client backend')")
    });
    // Once, the worker may just have connected, or have set the mark again; a worker that kept its connection would be found every time.
    wait_until("the database can be dropped", LONG, || {
        let mut client = node.client();
        let _ = client.batch_execute("ALTER DATABASE other RESET docshard.part_of_cluster");
        client.batch_execute("DROP DATABASE IF EXISTS other").is_ok()
    });
}

#[test]
fn a_database_without_docshard_gets_no_lasting_worker() {
    let cluster = Cluster::servers(0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(worker(&cluster.router), None);
    let log = cluster.router.log_tail(50);
    assert!(!log.contains("docshard worker") && !log.contains("docshard launcher"), "{log}");
}

#[test]
fn a_server_with_a_worker_stops() {
    let mut cluster = cluster(1);
    wait_until("the worker stays", LONG, || worker(&cluster.router).is_some());
    // Fails if the server does not stop in time.
    cluster.router.stop();
}

#[test]
fn without_preloading_the_balancer_says_what_to_do() {
    let mut cluster = Cluster::servers(0);
    cluster.router.configure("shared_preload_libraries = ''");
    cluster.router.stop();
    cluster.router.start();
    let mut client = cluster.router.client();
    client.batch_execute("CREATE EXTENSION docshard CASCADE").unwrap();
    let error = client.batch_execute("SELECT docshard.start_balancer()").unwrap_err();
    let hint = error.as_db_error().and_then(|e| e.hint()).unwrap_or_default().to_owned();
    assert!(hint.contains("shared_preload_libraries"), "{error}: {hint}");
    let status = status(&cluster.router);
    assert_eq!(status["preloaded"], false);
    assert!(status["hint"].as_str().is_some_and(|hint| hint.contains("shared_preload_libraries")));
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    let text: String = cluster.router.value("SELECT docshard.status()");
    assert!(text.contains("shared_preload_libraries"), "{text}");
}

#[test]
fn a_preloaded_server_allows_prepared_transactions_unless_told_otherwise() {
    let mut cluster = Cluster::servers(0);
    // The golden tests show the default; these servers set it.
    for (setting, expected) in [("0", "0"), ("7", "7")] {
        cluster.router.configure(&format!("max_prepared_transactions = {setting}"));
        cluster.router.stop();
        cluster.router.start();
        assert_eq!(cluster.router.value::<String>("SHOW max_prepared_transactions"), expected);
    }
}

/// Prepares a transaction at the shard under the name that a router's backend with local transaction `xid` would use.
fn leave_prepared(cluster: &Cluster, xid: u32, key: i32) -> String {
    let id: String = cluster.router.value("SELECT to_hex(id) FROM docshard_catalog.cluster");
    let gid = format!("docshard_{id:0>16}{xid:08x}_1_2_3");
    let service = cluster.shards[0].service_role();
    let mut client = cluster.shards[0].client();
    client
        .batch_execute(&format!(
            "BEGIN; INSERT INTO left_over VALUES ({key}); SET LOCAL ROLE {service}; PREPARE TRANSACTION '{gid}'"
        ))
        .unwrap();
    gid
}

fn prepared(cluster: &Cluster) -> i64 {
    cluster.shards[0].value("SELECT count(*) FROM pg_prepared_xacts")
}

#[test]
fn what_a_dead_backend_left_prepared_is_resolved_as_it_decided() {
    let cluster = cluster(1);
    wait_until("the worker stays", LONG, || worker(&cluster.router).is_some());
    cluster.shards[0].psql("CREATE TABLE left_over (n int)");
    // The worker must not run between the two statements.
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN; LOCK TABLE docshard_catalog.transactions").unwrap();
    let decided = leave_prepared(&cluster, 4_000_000_000, 1);
    client
        .batch_execute(&format!(
            "INSERT INTO docshard_catalog.transactions (gid, server) VALUES ('{decided}', 'docshard_shard0'); COMMIT"
        ))
        .unwrap();
    leave_prepared(&cluster, 4_000_000_001, 2);
    // A transaction of another cluster is left alone.
    let mut shard = cluster.shards[0].client();
    shard
        .batch_execute(
            "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'docshard_0123456789abcdef00000001_1_2_3'",
        )
        .unwrap();
    wait_until("they are resolved", LONG, || prepared(&cluster) == 1);
    assert_eq!(cluster.shards[0].value::<String>("SELECT string_agg(n::text, ' ') FROM left_over"), "1");
    wait_until("the decision is forgotten", LONG, || {
        cluster.router.value("SELECT count(*) = 0 FROM docshard_catalog.transactions")
    });
}

#[test]
fn a_transaction_over_two_shards_commits_on_both_or_none() {
    let cluster = cluster(2);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.shard_collection('t.h', '{\"k\": \"hashed\"}')").unwrap();
    client.batch_execute("BEGIN").unwrap();
    insert(&mut client, "t.h", 0, 100);
    client.batch_execute("COMMIT").unwrap();
    client.batch_execute("BEGIN").unwrap();
    insert(&mut client, "t.h", 100, 200);
    client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(count(&cluster.router, "t.h"), 100);
    for shard in &cluster.shards {
        assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 0);
    }
    wait_until("the decisions are forgotten", LONG, || {
        cluster.router.value("SELECT count(*) = 0 FROM docshard_catalog.transactions")
    });
}

/// A pair of shards between which nothing can move does not stop the collection, and the cause is shown.
#[test]
fn moves_between_other_shards_go_on() {
    let cluster = cluster(3);
    // shard1 cannot pull from shard0.
    cluster.shards[1].unguard();
    cluster.shards[1].psql("ALTER SERVER docshard_shard0 RENAME TO mistake");
    load(&mut cluster.router.client(), "t.c", 20_000);
    let has =
        |shard: &str| spread(&cluster.router, "t.c").iter().find(|(name, _)| name == shard).map_or(0, |one| one.1);
    wait_until("shard2 has its share", LONG, || has("shard2") >= 4_000);
    wait_until("the cause is shown", LONG, || {
        status(&cluster.router)["resting"].to_string().contains("docshard_shard0")
    });
    let resting = status(&cluster.router)["resting"].clone();
    let pair = resting.as_array().into_iter().flatten().find(|entry| entry["donor"] == "shard0").expect("a pair");
    assert!(pair["recipient"] == "shard1" && pair["namespace"] == "t.c", "{resting}");
    assert_eq!(count(&cluster.router, "t.c"), 20_000);

    let url = cluster.shards[1].url();
    cluster.router.psql(&format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"shard1\"}}')"));
    wait_until("it is even", LONG, || is_even(&spread(&cluster.router, "t.c"), 3));
    wait_until("the alarm is over", LONG, || status(&cluster.router)["lastError"].is_null());
}
