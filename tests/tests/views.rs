//! The administrators' views return correct values, or report them as unknown, within a time limit, even while shards are
//! down or hang.

use docshard_tests::{Cluster, Node, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of the views while shards hang.
const BOUND: Duration = Duration::from_secs(3);
/// Added to a time limit, because the machine may be busy with other tests.
const SLACK: Duration = Duration::from_secs(2);

/// A router with two shards and a collection of three hundred documents on all three.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.router.psql("SELECT docshard.set_setting('balancer_interval_ms', '200')");
    cluster.router.psql("SELECT docshard.shard_collection('a.c', '{\"_id\": \"hashed\"}')");
    cluster.router.psql(
        "SELECT docshard.insert_many('a.c', array_agg(jsonb_build_object('_id', n))) FROM generate_series(1, 300) AS n",
    );
    cluster
}

fn balancer(router: &Node) -> Value {
    router.value("SELECT docshard.balancer_status()")
}

/// The distribution of the collection: shard, documents, bytes, percent.
type Part = (String, Option<i64>, Option<i64>, Option<f64>);

fn parts(router: &Node, options: &str) -> Vec<Part> {
    let sql = format!(
        "SELECT shard, documents, bytes, percent FROM docshard.get_shard_distribution('a.c', '{options}') ORDER BY shard"
    );
    let rows = router.client().query(&sql, &[]).unwrap_or_else(|e| panic!("{e:?}"));
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

/// The lines of `status()` with the documents of a collection on each shard.
fn lines(router: &Node) -> Vec<String> {
    let text: String = router.value("SELECT docshard.status()");
    text.lines().filter(|line| line.contains(" documents ")).map(str::to_owned).collect()
}

struct Health {
    reachable: bool,
    error: Option<String>,
}

fn health(router: &Node, shard: &str) -> Health {
    let sql = "SELECT reachable, error FROM docshard.health WHERE shard = $1";
    let row = router.client().query_one(sql, &[&shard]).unwrap_or_else(|e| panic!("{e:?}"));
    Health { reachable: row.get(0), error: row.get(1) }
}

fn within(what: &str, limit: Duration, work: impl FnOnce()) {
    let began = Instant::now();
    work();
    let took = began.elapsed();
    assert!(took < limit, "{what} took {took:?}");
}

#[test]
fn a_shard_out_of_reach_is_unknown_and_not_empty() {
    let mut cluster = cluster();
    let router = &cluster.router;
    let row = router
        .client()
        .query_one(
            "SELECT count(*) FILTER (WHERE reachable AND latency_ms >= 0 AND version = $1 AND timeline = 1 AND standbys = 0 \
                AND oldest_in_doubt_s IS NULL AND free_connections > 50 AND error IS NULL \
                AND last_contact > now() - interval '1 minute'), count(*) FROM docshard.health",
            &[&env!("CARGO_PKG_VERSION")],
        )
        .expect("health");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 3));
    router.psql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE nobody LOGIN");
    let ask = |role: &str| {
        let mut client = router.try_client_as(role, "postgres").expect("it may connect");
        client.query_one("SELECT count(*) FROM docshard.health", &[]).map(|row| row.get::<_, i64>(0))
    };
    assert_eq!(ask("watcher").expect("a member of pg_monitor may read it"), 3);
    ask("nobody").expect_err("others may not read it");
    assert_eq!(balancer(router)["lastError"], Value::Null);

    cluster.node("shard1").kill9();
    let router = &cluster.router;
    for options in ["{}", "{\"count\": true}"] {
        let parts = parts(router, options);
        assert!(matches!(&parts[1], (shard, Some(documents), Some(_), None) if shard == "shard0" && *documents > 50));
        assert_eq!(parts[2], ("shard1".to_owned(), None, None, None), "{options}");
    }
    let lines = lines(router);
    assert!(lines[2].contains("shard1") && lines[2].matches("unknown").count() == 2, "{lines:?}");
    assert!(lines[1].contains('~') && !lines[1].contains("unknown") && !lines[1].contains('%'), "{lines:?}");
    let found = health(router, "shard1");
    assert!(!found.reachable);
    assert!(found.error.is_some_and(|error| error.contains("could not connect to shard \"shard1\"")));
    wait_until("the balancer reports an error", PATIENCE, || balancer(router)["lastError"].is_string());

    cluster.node("shard1").start();
    let router = &cluster.router;
    wait_until("the balancer clears the error", PATIENCE, || {
        let status = balancer(router);
        status["lastError"].is_null() && status["lastErrorAt"].is_null()
    });
    assert!(health(router, "shard1").reachable);
    assert_eq!(parts(router, "{\"count\": true}").iter().filter_map(|part| part.1).sum::<i64>(), 300);
    assert!(
        !router.value::<bool>(
            "SELECT bool_or(estimated) FROM docshard.get_shard_distribution('a.c', '{\"count\": true}')"
        )
    );

    // The shard's address leads to another shard.
    let rename = |from: &str, to: &str| {
        cluster.shards[1].psql(&format!("UPDATE docshard_data.node SET shard = '{to}' WHERE shard = '{from}'"));
    };
    rename("shard1", "shard7");
    let error = health(router, "shard1").error.expect("an error, because it is another shard");
    assert!(error.contains("expected shard \"shard1\"") && error.contains("is shard \"shard7\""), "{error}");
    assert_eq!(parts(router, "{}")[2].1, None);
    rename("shard7", "shard1");
}

#[test]
fn views_answer_though_shards_hang() {
    let cluster = cluster();
    let router = &cluster.router;
    // This test is not about the worker, nor about sessions that were connected before.
    router.psql("SELECT docshard.stop_balancer()");
    // Each view shows the address of a shard.
    for (name, port) in [("shard0", cluster.shards[0].port), ("shard1", cluster.shards[1].port)] {
        let host: String = router.value(&format!("SELECT host FROM docshard.shards WHERE name = '{name}'"));
        assert!(host.contains(&format!(":{port}/")), "{host}");
        let map = "docshard.run_command('admin', '{\"getShardMap\": 1}')::text::jsonb -> 'map'";
        assert_eq!(router.value::<String>(&format!("SELECT {map} ->> '{name}'")), format!("{name}/{host}"));
        assert!(router.value::<String>("SELECT docshard.status()").contains(&format!("  {name}  {host}\n")));
    }
    for shard in &cluster.shards {
        shard.freeze_all();
    }
    within("health", BOUND + SLACK, || {
        for shard in ["shard0", "shard1"] {
            let sql = format!("SELECT error FROM docshard.shard_health(1000) WHERE shard = '{shard}'");
            let error: String = router.value(&sql);
            assert!(error.contains("did not answer within 1000 ms"), "{error}");
        }
    });
    within("health", BOUND, || {
        let reachable = "SELECT string_agg(shard, ' ') FROM docshard.health WHERE reachable";
        assert_eq!(router.value::<String>(reachable), "local");
    });
    within("status", BOUND, || assert_eq!(lines(router).iter().filter(|line| line.contains("unknown")).count(), 2));
    within("the distribution", BOUND, || {
        assert_eq!(parts(router, "{}").iter().filter(|part| part.1.is_none()).count(), 2)
    });
    // One of two hosts hangs, the other answers.
    cluster.shards[1].thaw_all();
    let [hung, alive] = [cluster.shards[0].port, cluster.shards[1].port];
    router.psql(&format!(
        "ALTER SERVER docshard_shard1 OPTIONS (SET host '127.0.0.1,127.0.0.1', SET port '{hung},{alive}')"
    ));
    within("health", BOUND, || assert!(health(router, "shard1").reachable));
    cluster.shards[0].thaw_all();
}

#[test]
fn estimates_come_from_statistics() {
    let mut cluster = cluster();
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'a.c'");
    cluster.router.psql("SELECT docshard.stop_balancer()");
    // A table that is too large to be counted if it has no statistics.
    let rows = 20_000;
    cluster.shards[0].psql(&format!(
        "INSERT INTO {table} SELECT skey || n::text::bytea, id || n::text::bytea, doc FROM {table}, generate_series(1, 1000) AS n \
         LIMIT {rows}; ANALYZE {table}"
    ));
    let exact: i64 = cluster.shards[0].value(&format!("SELECT count(*) FROM {table}"));
    let scans = format!("SELECT seq_scan + idx_scan FROM pg_stat_all_tables WHERE relid = '{table}'::regclass");
    wait_until("the scans are counted", PATIENCE, || cluster.shards[0].value::<i64>(&scans) > 2);
    std::thread::sleep(Duration::from_secs(1));
    let before: i64 = cluster.shards[0].value(&scans);
    for _ in 0..3 {
        assert_eq!(parts(&cluster.router, "{}")[1].1, Some(exact));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(cluster.shards[0].value::<i64>(&scans), before, "the table was read");
    // A crash resets PostgreSQL's counters.
    cluster.node("shard0").kill9();
    cluster.node("shard0").start();
    assert_eq!(parts(&cluster.router, "{}")[1].1, Some(exact));
}

/// Documents that were moved or deleted leave free space in the table, which is no part of a shard's share.
#[test]
fn free_space_does_not_count_as_documents() {
    let cluster = Cluster::start(2);
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('a', 'shard0')");
    // The second collection's documents are stored out of line.
    for (ns, documents, text) in [("a.small", 6_000, 10), ("a.large", 300, 600)] {
        router.psql(&format!("SELECT docshard.shard_collection('{ns}', '{{\"_id\": 1}}')"));
        let insert = |from: i64, to: i64| {
            router.psql(&format!(
                "SELECT docshard.insert_many('{ns}', array_agg(jsonb_build_object('_id', n, 'text', \
                   (SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, {text}) AS i)))) \
                 FROM generate_series({from}, {to}) AS n"
            ));
        };
        insert(1, 3 * documents);
        router.psql(&format!("SELECT docshard.split_at('{ns}', '{{\"_id\": {}}}')", 2 * documents + 1));
        router.psql(&format!("SELECT docshard.move_chunk('{ns}', '{{\"_id\": {}}}', 'shard1')", 2 * documents + 1));
        router.psql(&format!("SELECT docshard.delete_many('{ns}', '{{\"_id\": {{\"$lte\": {documents}}}}}')"));
        let table: String =
            router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{ns}'"));
        for shard in &cluster.shards {
            shard.psql(&format!("VACUUM (ANALYZE, TRUNCATE false) {table}"));
        }
        let shares = |options: &str| -> Vec<(f64, i64)> {
            let sql = "SELECT percent, bytes FROM docshard.get_shard_distribution($1, $2::text::json) ORDER BY shard";
            let rows = router.client().query(sql, &[&ns, &options]).expect("the distribution");
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        };
        let (estimated, counted) = (shares("{}"), shares("{\"count\": true}"));
        assert!(estimated.iter().all(|(percent, _)| (percent - 50.0).abs() < 5.0), "{ns}: {estimated:?}");
        for ((_, estimated), (_, counted)) in estimated.iter().zip(&counted) {
            assert!((estimated - counted).abs() * 10 < *counted, "{ns}: {estimated} of {counted}");
        }
    }
}

/// The router has a row, too, if its own database is no shard; each row shows what can be set wrongly there.
#[test]
fn health_shows_the_router_and_settings_of_all_nodes() {
    let mut cluster = Cluster::start(2);
    let rows = |cluster: &Cluster| -> Vec<(String, i32, bool)> {
        let sql = "SELECT shard, max_prepared_transactions, library = version FROM docshard.health ORDER BY shard";
        let rows = cluster.router.client().query(sql, &[]).expect("the health");
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    };
    let as_preloaded = |name: &str| (name.to_owned(), 64, true);
    assert_eq!(rows(&cluster), ["local", "shard0", "shard1"].map(as_preloaded));
    cluster.shards[1].configure("max_prepared_transactions = 0");
    cluster.shards[1].stop();
    cluster.shards[1].start();
    cluster.router.psql("SELECT docshard.remove_shard('local')");
    wait_until("local is removed", PATIENCE, || {
        cluster.router.psql("SELECT docshard.remove_shard('local')").contains("completed")
    });
    let without = ("shard1".to_owned(), 0, true);
    assert_eq!(rows(&cluster), [as_preloaded("(router)"), as_preloaded("shard0"), without]);
}

#[test]
fn the_past_is_kept_as_long_as_settings_say() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql(
        "INSERT INTO docshard_catalog.changelog (at, what) VALUES (now() - interval '3 days', 'old'), \
           (now() - interval '1 day', 'young'); \
         INSERT INTO docshard_catalog.migrations (token, collection_id, namespace, min, max, donor, recipient, version, donor_version, \
           recipient_version, state, outcome, updated_at) \
         SELECT 1, 1, 'a.c', '', '', 1, 2, 1, 1, 1, 'done', 'aborted', now() - days * interval '1 day' FROM unnest(ARRAY[1, 3]) AS days",
    );
    let kept = || -> String {
        router.value(
            "SELECT (SELECT string_agg(what, ' ' ORDER BY id) FROM docshard.changelog WHERE what IN ('old', 'young')) || ' ' || \
                    (SELECT count(*) FROM docshard.migrations)",
        )
    };
    assert_eq!(kept(), "old young 2");
    for setting in ["changelog_days", "migrations_days"] {
        router.psql(&format!("SELECT docshard.set_setting('{setting}', '2')"));
    }
    wait_until("old rows are removed", PATIENCE, || kept() == "young 1");
}
