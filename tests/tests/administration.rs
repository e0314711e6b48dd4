//! Administration: removing shards, confusing a shard with the router, restoring a router, several databases.

use docshard_tests::{Cluster, wait_until};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A router with two shards and a collection of a hundred documents on all of them.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.router.psql("SELECT docshard.shard_collection('a.c', '{\"_id\": \"hashed\"}')");
    cluster.router.psql(
        "SELECT docshard.insert_many('a.c', array_agg(jsonb_build_object('_id', n))) FROM generate_series(1, 100) AS n",
    );
    cluster
}

fn count(cluster: &Cluster) -> i64 {
    cluster.router.value("SELECT docshard.count_documents('a.c')")
}

#[test]
fn a_shard_on_another_node_is_drained_removed_and_added_again() {
    let cluster = cluster();
    let remove = || cluster.router.value::<String>("SELECT docshard.remove_shard('shard1') ->> 'state'");
    assert_eq!(remove(), "started");
    wait_until("shard1 is removed", PATIENCE, || remove() == "completed");
    assert_eq!(count(&cluster), 100);
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.node"), 0);
    let url = cluster.shards[1].url();
    cluster.router.psql(&format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"shard1\"}}')"));
    assert_eq!(count(&cluster), 100);
}

/// The last call of a removal fails before the shard has left the cluster, or after it.
#[test]
fn a_removal_that_failed_is_completed_by_another_call() {
    let mut cluster = cluster();
    let remove = "SELECT docshard.remove_shard('shard1') ->> 'state'";
    assert_eq!(cluster.router.value::<String>(remove), "started");
    let left = "SELECT (SELECT count(*) FROM docshard.chunks WHERE shard = 'shard1')
                     + (SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done')";
    wait_until("shard1 is empty", PATIENCE, || cluster.router.value::<i64>(left) == 0);
    let is_member = |cluster: &Cluster| cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.node") == 1;

    cluster.shards[0].stop();
    let error = cluster.router.client().batch_execute(remove).unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("shard0"), "{error:?}");
    assert!(is_member(&cluster), "nothing has changed while another shard is down");
    cluster.shards[0].start();

    // Its own server decides afterwards.
    cluster.router.psql(&format!("BEGIN; {remove}; ROLLBACK"));
    assert!(!is_member(&cluster), "it has left");
    assert_eq!(cluster.router.value::<String>(remove), "completed");
    assert_eq!(count(&cluster), 100);
    let url = cluster.shards[1].url();
    cluster.router.psql(&format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"shard1\"}}')"));
    assert!(is_member(&cluster));
    assert_eq!(count(&cluster), 100);

    // Two at once.
    for shard in ["shard0", "shard1"] {
        cluster.router.psql(&format!("SELECT docshard.remove_shard('{shard}')"));
    }
    let left = "SELECT (SELECT count(*) FROM docshard.chunks WHERE shard <> 'local')
                     + (SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done')";
    wait_until("both are empty", PATIENCE, || cluster.router.value::<i64>(left) == 0);
    cluster
        .router
        .psql("BEGIN; SELECT docshard.remove_shard('shard0'); SELECT docshard.remove_shard('shard1'); ROLLBACK");
    for shard in ["shard0", "shard1"] {
        let state: String = cluster.router.value(&format!("SELECT docshard.remove_shard('{shard}') ->> 'state'"));
        assert_eq!(state, "completed", "{shard}");
    }
    assert_eq!(count(&cluster), 100);
}

/// Other sessions have a cached map of the old name, writers write meanwhile, and chunks move under the new name.
#[test]
fn a_collection_is_renamed_under_other_sessions() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    let mut other = router.client();
    let mut count_of = |namespace: &str| -> i64 {
        other.query_one("SELECT docshard.count_documents($1)", &[&namespace]).unwrap().get(0)
    };
    assert_eq!((count_of("a.c"), count_of("a.d")), (100, 0));
    let url = router.url();
    let writer = std::thread::spawn(move || {
        let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
        let write = "SELECT (docshard.update_one($1, jsonb_build_object('_id', $2::int)::text::json, '{\"$set\": {\"seen\": true}}') ->> 'matchedCount')::int";
        // Each document is found under one of the names.
        (1..=100_i32).all(|n| {
            let mut matched = |namespace: &str| client.query_one(write, &[&namespace, &n]).unwrap().get::<_, i32>(0);
            matched("a.c") + matched("a.d") >= 1
        })
    });
    router.psql("SELECT docshard.rename_collection('a.c', 'a.d')");
    assert!(writer.join().unwrap(), "no write is lost");
    assert_eq!((count_of("a.c"), count_of("a.d")), (0, 100));
    // A move that begins before the rename ends before it, and later ones have the new name.
    let (min, shard) = ("{\"_id\": {\"$minKey\": 1}}", "shard1");
    router.psql(&format!("SELECT docshard.move_range('a.d', '{min}', NULL, '{shard}')"));
    router.psql("SELECT docshard.rename_collection('a.d', 'a.e')");
    router.psql("SELECT docshard.recover_moves()");
    assert_eq!((count_of("a.d"), count_of("a.e")), (0, 100));
    assert!(router.value::<bool>("SELECT (docshard.check_collection('a.e') ->> 'valid')::bool"));
    let seen: i64 = router.value("SELECT docshard.count_documents('a.e', '{\"seen\": true}')");
    assert_eq!(seen, 100);
}

#[test]
fn at_a_shard_collections_are_neither_made_nor_dropped() {
    let cluster = cluster();
    for call in [
        "insert_one('b.c', '{}')",
        "create_collection('b.c')",
        "drop_collection('a.c')",
        "drop_index('a.c', 'x')",
        "update_one('b.c', '{\"_id\": 1}', '{\"$set\": {\"a\": 1}}', '{\"upsert\": true}')",
    ] {
        let answer = cluster.shards[0].psql_script("postgres", &[], &format!("SELECT docshard.{call};"));
        assert!(answer.contains("of another cluster, not a router"), "{call}: {answer}");
    }
    assert_eq!(count(&cluster), 100);
}

/// VACUUM FULL, as docs/operations.md recommends after moves.
#[test]
fn the_space_of_what_was_moved_can_be_given_back() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.enable_sharding('b', 'shard0')");
    router.psql("SELECT docshard.shard_collection('b.c', '{\"_id\": 1}')");
    router.psql(
        "SELECT docshard.insert_many('b.c', array_agg(jsonb_build_object('_id', n, 'text', repeat(md5(n::text), 10))))
         FROM generate_series(1, 5000) AS n",
    );
    let table: String = router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'b.c'");
    let size = || cluster.shards[0].value::<i64>(&format!("SELECT pg_total_relation_size('{table}')"));
    router.psql("SELECT docshard.move_chunk('b.c', '{\"_id\": 1}', 'shard1')");
    let moved = size();
    assert!(moved > 1_000_000, "{moved}");
    cluster.shards[0].psql(&format!("VACUUM FULL {table}"));
    assert!(size() < moved / 10, "{} of {moved}", size());
    router.psql("SELECT docshard.move_chunk('b.c', '{\"_id\": 1}', 'shard0')");
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('b.c')"), 5000);
}

/// JIT compilation is off in the sessions at shards, unless the administrator turns it on.
#[test]
fn statements_at_shards_are_not_compiled() {
    let cluster = cluster();
    let shard = &cluster.shards[0];
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'a.c'");
    shard
        .client()
        .batch_execute(&format!(
            "CREATE TABLE seen (setting text); GRANT ALL ON seen TO PUBLIC; \
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql \
               AS $$BEGIN INSERT INTO public.seen VALUES (current_setting('jit')); RETURN NULL; END$$; \
             CREATE TRIGGER see AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION see()"
        ))
        .expect("a trigger");
    let seen = |number: i32| -> Option<String> {
        shard.psql("TRUNCATE seen");
        // Each shard has some of the twenty documents.
        cluster.router.psql(&format!(
            "SELECT docshard.insert_many('a.c', array_agg(jsonb_build_object('_id', n))) \
             FROM generate_series({number}, {number} + 19) AS n"
        ));
        shard.value("SELECT string_agg(DISTINCT setting, ' ') FROM seen")
    };
    assert_eq!(seen(1000).as_deref(), Some("off"));
    cluster.router.psql("ALTER SERVER docshard_shard0 OPTIONS (ADD options '-c jit=on')");
    assert_eq!(seen(2000).as_deref(), Some("on"));
}

#[test]
fn a_stale_map_is_no_news_for_the_log_of_a_shard() {
    let cluster = cluster();
    let shard = &cluster.shards[0];
    let fail = |settings: &str, statement: &str| {
        let mut client = shard.client();
        client.batch_execute(settings).expect("settings");
        client.batch_execute(statement).expect_err(statement).code().expect("an error of the server").code().to_owned()
    };
    let is_logged = |statement: &str| shard.log_tail(usize::MAX).contains(statement);
    let stale =
        |label: &str| format!("SELECT /* {label} */ docshard_internal.lock_and_check(1234567, 1, 1, NULL, NULL)");
    assert_eq!(fail("", &stale("quiet")), "DS001");
    assert_eq!(fail("SET log_min_messages = debug1", &stale("asked for")), "DS001");
    assert_eq!(fail("", "SELECT 1 / 0 AS other"), "22012");
    assert!(!is_logged("quiet"));
    assert!(is_logged("asked for") && is_logged("AS other"));
}

#[test]
fn a_dumped_router_is_restored() {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.stop_balancer()");
    cluster.router.psql("SELECT docshard.insert_one('a.u', '{\"_id\": 1}')");
    let shards = "SELECT string_agg(name, ' ' ORDER BY id) FROM docshard.shards";
    let before = cluster.router.psql(shards);
    let dump = cluster.router.dump("postgres");
    cluster.router.psql("CREATE DATABASE restored");
    let answer = cluster.router.psql_script("restored", &["-v", "ON_ERROR_STOP=1"], &dump);
    assert!(!answer.contains("ERROR"), "{answer}");
    let restored = |sql: &str| cluster.router.psql_script("restored", &["-A", "-t"], &format!("{sql};"));
    assert_eq!(restored(shards), before);
    assert_eq!(restored("SELECT docshard.count_documents('a.c')").trim(), "100");
    assert_eq!(restored("SELECT docshard.count_documents('a.u')").trim(), "1");
}

/// Regression test: a worker that could not be started made the whole server restart again and again.
#[test]
fn a_server_without_room_for_another_worker_goes_on() {
    let mut cluster = Cluster::servers(0);
    cluster.router.configure("max_worker_processes = 2");
    cluster.router.stop();
    cluster.router.start();
    for database in ["d1", "d2", "d3"] {
        cluster.router.psql(&format!("CREATE DATABASE {database}"));
    }
    wait_until("a worker finds no room", PATIENCE, || {
        let log = cluster.router.log_tail(50);
        assert!(!log.contains("terminated by signal"), "{log}");
        log.contains("max_worker_processes is used up")
    });
}

/// Without a keeper metadata cannot change: health and status say why.
#[test]
fn a_router_without_room_for_its_keeper_says_so() {
    let mut cluster = Cluster::start(1);
    let shown = |cluster: &Cluster| -> (Option<String>, bool) {
        let error = cluster.router.value("SELECT error FROM docshard.health WHERE shard = 'local'");
        let status: String = cluster.router.value("SELECT string_agg(s, e'\\n') FROM docshard.status() s");
        (error, status.contains("no docshard keeper"))
    };
    assert_eq!(shown(&cluster), (None, false));
    cluster.router.configure("max_worker_processes = 3");
    cluster.router.stop();
    cluster.router.start();
    wait_until("the keeper finds no room", PATIENCE, || {
        cluster.router.log_tail(50).contains("no keeper for this database")
    });
    let (error, is_shown) = shown(&cluster);
    assert!(is_shown && error.as_deref().unwrap_or_default().contains("max_worker_processes"), "{error:?}");
    cluster.router.configure("max_worker_processes = 16");
    cluster.router.stop();
    cluster.router.start();
    assert_eq!(shown(&cluster), (None, false));
}

/// Two calls at once, as from a client that repeats a call: the second one waits, and repairs the shard. A call that fails does not take a
/// database out of the cluster that was a shard before.
#[test]
fn a_shard_is_added_once_and_stays() {
    let cluster = Cluster::servers(1);
    for node in [&cluster.router, &cluster.shards[0]] {
        node.psql("CREATE EXTENSION docshard CASCADE");
    }
    let shard = &cluster.shards[0];
    let add = format!(
        "SELECT docshard.add_shard('host=127.0.0.1 port={} dbname=postgres user=postgres', '{{\"name\": \"shard0\"}}')",
        shard.port
    );
    let marked = || shard.value::<i64>("SELECT count(*) FROM docshard_data.node");
    let mut first = cluster.router.client();
    first.batch_execute(&format!("BEGIN; {add}; ROLLBACK")).expect("a shard");
    assert_eq!(marked(), 1);
    cluster.router.psql("CREATE SERVER docshard_shard0 FOREIGN DATA WRAPPER postgres_fdw");
    first.batch_execute(&add).expect_err("the server's name is taken");
    assert_eq!(marked(), 1);
    cluster.router.psql("DROP SERVER docshard_shard0");

    first.batch_execute(&format!("BEGIN; {add}")).expect("a shard");
    thread::scope(|scope| {
        let second = scope.spawn(|| cluster.router.client().batch_execute(&add));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%add_shard%'";
        wait_until("the second call waits", PATIENCE, || cluster.router.value::<i64>(waits) == 1);
        first.batch_execute("COMMIT").expect("a shard");
        second.join().unwrap().expect("the shard is repaired");
    });
    assert_eq!(marked(), 1);
    for sql in [
        "SELECT docshard.shard_collection('test.c', '{\"k\": 1}')",
        "SELECT docshard.insert_one('test.c', '{\"k\": 1}')",
        "SELECT docshard.move_chunk('test.c', '{\"k\": 1}', 'shard0')",
        "SELECT docshard.move_chunk('test.c', '{\"k\": 1}', 'local')",
    ] {
        cluster.router.psql(sql);
    }
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('test.c')"), 1);
}
