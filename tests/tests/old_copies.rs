//! Old copies of a shard, and of the router's catalog, are detected by the counter that the worker advances at each shard: see
//! `core/src/cluster/handshake.rs`.

use docshard_tests::logins::spread;
use docshard_tests::{Cluster, Fault, Node, wait_until};
use postgres::Client;
use postgres::error::DbError;
use serde_json::{Value, json};
use std::time::Duration;

const NS: &str = "test.things";
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with a short interval of the counter. Keys from 100 on are on `shard0`, from 200 on `shard1`: see
/// `Cluster::spread`.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '1000')");
    for k in [1, 100, 200] {
        insert(&cluster, k);
    }
    await_counts(&cluster);
    cluster
}

fn insert_sql(k: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{}')", json!({"_id": k, "k": k}))
}

fn insert(cluster: &Cluster, k: i64) {
    cluster.router.client().batch_execute(&insert_sql(k)).unwrap_or_else(|e| panic!("{k}: {e:?}"));
}

fn try_count(client: &mut Client) -> Result<i64, postgres::Error> {
    client.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]).map(|row| row.get(0))
}

fn count(cluster: &Cluster) -> i64 {
    try_count(&mut cluster.router.client()).expect("a count")
}

/// Waits until each shard's counter was advanced twice more, so that earlier writes are older than the last advance.
fn await_counts(cluster: &Cluster) {
    let counters = || {
        let sql = "SELECT coalesce(array_agg(counter ORDER BY shard_id), '{}') FROM docshard_catalog.contacts";
        cluster.router.value::<Vec<i64>>(sql)
    };
    let before = counters();
    wait_until("counters advance", PATIENCE, || {
        let now = counters();
        now.len() == cluster.shards.len()
            && now.iter().enumerate().all(|(n, now)| *now >= before.get(n).copied().unwrap_or(0) + 2)
    });
}

fn refusal(answer: Result<impl Sized, postgres::Error>) -> DbError {
    let Err(error) = answer else { panic!("not refused") };
    error.as_db_error().unwrap_or_else(|| panic!("{error}")).clone()
}

/// Checks that statements for the first shard are refused in a new session with this message.
fn refused(cluster: &Cluster, reason: &str) {
    let mut client = cluster.router.client();
    for sql in [insert_sql(150), format!("SELECT docshard.find_one('{NS}', '{{\"k\": 100}}')")] {
        let error = refusal(client.batch_execute(&sql));
        assert_eq!(error.code().code(), "08004", "{error:?}");
        let both = error.message().contains("expected shard \"shard0\"") && error.message().contains("timeline");
        assert!(both && error.message().contains(reason), "{error:?}");
        assert!(error.hint().unwrap_or_default().contains("accept_shard('shard0')"), "{error:?}");
    }
    assert_eq!(refusal(try_count(&mut client)).code().code(), "08004");
    assert!(shown(cluster, "shard0").contains(reason), "{}", shown(cluster, "shard0"));
}

/// A shard's line in `status()`.
fn shown(cluster: &Cluster, shard: &str) -> String {
    let status: String = cluster.router.value("SELECT docshard.status()");
    let line = status.lines().find(|line| line.trim().starts_with(&format!("{shard} ")));
    line.unwrap_or_else(|| panic!("{status}")).to_owned()
}

fn accept(cluster: &Cluster, shard: &str) -> Value {
    cluster.router.value(&format!("SELECT docshard.accept_shard('{shard}')::json"))
}

fn logged(cluster: &Cluster, what: &str) -> i64 {
    cluster.router.value(&format!("SELECT count(*) FROM docshard.changelog WHERE what = '{what}'"))
}

#[test]
fn a_shard_restored_from_an_older_copy_is_refused_until_it_is_accepted() {
    let mut cluster = cluster();
    let old = cluster.shards[0].backup();
    insert(&cluster, 101);
    await_counts(&cluster);
    assert_eq!(count(&cluster), 4);
    cluster.shards[0].restore(old);
    refused(&cluster, "older copy");
    wait_until("the changelog says so", PATIENCE, || logged(&cluster, "shardRefused") == 1);
    let accepted = accept(&cluster, "shard0");
    assert!(accepted["shardAccepted"] == "shard0" && accepted["lostFrom"].is_string(), "{accepted}");
    assert_eq!(count(&cluster), 3);
    insert(&cluster, 102);
    // The counter continues from the accepted position.
    await_counts(&cluster);
    assert_eq!(count(&cluster), 4);
    assert_eq!(logged(&cluster, "acceptShard"), 1);
}

/// A shard was restored at another address, while the old server still runs.
#[test]
fn the_counter_is_advanced_at_the_server_that_the_options_lead_to() {
    let cluster = cluster();
    let clone = cluster.shards[0].clone_disk();
    let port = format!("ALTER SERVER docshard_shard0 OPTIONS (SET port '{}')", clone.0.port);
    cluster.router.psql(&port);
    cluster.shards[1].psql(&port);
    accept(&cluster, "shard0");
    let counter = |node: &Node| node.value::<i64>("SELECT counter FROM docshard_data.node");
    let (accepted, old) = (counter(&clone.0), counter(&cluster.shards[0]));
    wait_until("the clone's counter advances", PATIENCE, || counter(&clone.0) >= accepted + 3);
    assert_eq!(counter(&cluster.shards[0]), old, "the old server is not advanced any more");
    insert(&cluster, 101);
    assert_eq!(count(&cluster), 4);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.health WHERE NOT reachable"), 0);
    assert_eq!(clone.0.value::<i64>("SELECT count(*) FROM docshard_data.placement"), 1);
    // No process of the router stays at the old server, and the lock is held at the new one.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'docshard %'";
    wait_until("nobody stays", PATIENCE, || cluster.shards[0].value::<i64>(sessions) == 0);
    let keeper = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'docshard keeper'";
    wait_until("the keeper is there", PATIENCE, || clone.0.value::<i64>(keeper) == 1);
}

/// The sessions of a move stay while their password changes, and end when they would lead elsewhere.
#[test]
fn a_move_survives_a_rotation_and_no_change_of_an_address() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let move_while = |to: &str, change: &dyn Fn()| {
        cluster.router.arm("move.cloned", Fault::Pause);
        let moved = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', '{to}')");
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| cluster.router.client().batch_execute(&moved));
            cluster.router.await_fault("move.cloned");
            change();
            cluster.router.release("move.cloned");
            moving.join().expect("no panic")
        })
    };
    move_while("shard1", &|| _ = cluster.router.psql("SELECT docshard.rotate_service_password()")).expect("a move");
    let address = "ALTER SERVER docshard_shard0 OPTIONS (SET host 'localhost')";
    let error = move_while("shard0", &|| _ = cluster.router.psql(address)).expect_err("the address was changed");
    assert_eq!(error.code().map(|code| code.code()), Some("08006"), "{error:?}");
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard0')"));
}

#[test]
fn an_old_primary_that_is_started_again_is_refused() {
    let mut cluster = cluster();
    let standby = cluster.shards[0].asynchronous_standby();
    let ports = format!("{},{}", cluster.shards[0].port, standby.port());
    cluster.router.psql(&format!(
        "ALTER SERVER docshard_shard0 OPTIONS (SET host '127.0.0.1,127.0.0.1', SET port '{ports}', \
         ADD target_session_attrs 'read-write')"
    ));
    insert(&cluster, 101);
    let behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    wait_until("the standby has all", PATIENCE, || cluster.shards[0].value::<i64>(behind) == 1);
    cluster.shards[0].crash();
    standby.promote();
    insert(&cluster, 102);
    let timeline = "SELECT timeline FROM docshard_catalog.contacts k JOIN docshard_catalog.shards s ON s.id = k.shard_id \
                    WHERE s.name = 'shard0'";
    wait_until("the new timeline is noted", PATIENCE, || cluster.router.value::<i64>(timeline) == 2);
    assert_eq!(count(&cluster), 5);
    // The old server is the first of the two hosts, and considers itself the primary.
    cluster.shards[0].start();
    standby.end_keeper_session();
    for k in [103, 104] {
        insert(&cluster, k);
        assert_eq!(count(&cluster), k - 97);
    }
    let routers = "SELECT coalesce(string_agg(application_name || ': ' || query, '; '), '') FROM pg_stat_activity \
                   WHERE application_name LIKE 'docshard %'";
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(try_count(&mut client).expect("the refused host is passed over before the transaction uses it"), 7);
    client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(try_count(&mut client).expect("at the other host"), 7);
    await_counts(&cluster);
    assert_eq!(cluster.shards[0].value::<String>(routers), "", "nobody stays there");
    drop(standby);
    refused(&cluster, "old primary");
}

/// Health, administration and moves use the successor, too, while the old primary is the first of the hosts. It is reported.
#[test]
fn an_old_primary_among_the_hosts_disturbs_nobody() {
    let mut cluster = cluster();
    let standby = cluster.shards[0].standby();
    let ports = format!("{},{}", cluster.shards[0].port, standby.port());
    for node in [&cluster.router, &cluster.shards[1]] {
        node.psql(&format!(
            "ALTER SERVER docshard_shard0 OPTIONS (SET host '127.0.0.1,127.0.0.1', SET port '{ports}', \
             ADD target_session_attrs 'read-write')"
        ));
    }
    cluster.shards[0].crash();
    standby.promote();
    standby.forget_standbys();
    let timeline = "SELECT timeline FROM docshard_catalog.contacts k JOIN docshard_catalog.shards s ON s.id = k.shard_id \
                    WHERE s.name = 'shard0'";
    wait_until("the new timeline is noted", PATIENCE, || cluster.router.value::<i64>(timeline) == 2);
    cluster.shards[0].start();
    cluster.shards[0].forget_standbys();
    standby.end_keeper_session();
    standby.end_sessions("docshard %");
    wait_until("it is reported", PATIENCE, || logged(&cluster, "shardRefused") > 0);
    let reason = "SELECT string_agg(details->>'reason', ' ') FROM docshard.changelog WHERE what = 'shardRefused'";
    let reason: String = cluster.router.value(reason);
    assert!(reason.contains("old primary") && reason.contains(&cluster.shards[0].port.to_string()), "{reason}");
    assert!(cluster.router.log().contains("is an old primary"), "the log says so");

    let mut health = cluster.router.client();
    for _ in 0..30 {
        let sql = "SELECT error, timeline FROM docshard.health WHERE shard = 'shard0'";
        let row = health.query_one(sql, &[]).expect("the health");
        assert_eq!((row.get::<_, Option<String>>(0), row.get(1)), (None, Some(2_i32)));
    }
    assert!(!shown(&cluster, "shard0").contains("unreachable"), "{}", shown(&cluster, "shard0"));
    cluster.router.psql("CREATE ROLE reader");
    for sql in [
        format!("SELECT docshard.create_index('{NS}', '{{\"x\": 1}}')"),
        format!("SELECT docshard.get_shard_distribution('{NS}', '{{\"count\": true}}')"),
        format!("SELECT docshard.grant_access('reader', '{{\"read\": [\"{NS}\"]}}')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard0')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'local')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard0')"),
        format!("SELECT docshard.split_at('{NS}', '{{\"k\": 150}}')"),
        format!("SELECT docshard.drop_index('{NS}', 'x_1')"),
        format!("SELECT docshard.check_collection('{NS}')"),
    ] {
        // Each in a session that has not yet been refused.
        cluster.router.client().batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    assert_eq!(count(&cluster), 3);
}

#[test]
fn a_failover_that_loses_writes_is_reported_or_refused() {
    let mut cluster = cluster();
    let lose = |shard: &mut Node, router: &Node, k: i64| {
        let standby = shard.asynchronous_standby();
        standby.cut_off();
        router.client().batch_execute(&insert_sql(k)).expect("acknowledged");
        standby
    };
    let (router, shards) = (&cluster.router, &mut cluster.shards);
    let mut standbys: Vec<_> = [(0, 101), (1, 201)].map(|(n, k)| lose(&mut shards[n], router, k)).into();
    await_counts(&cluster);
    cluster.shards[1].fail_over(standbys.pop().expect("two"));
    assert_eq!(count(&cluster), 4, "one is lost");
    wait_until("it is reported", PATIENCE, || logged(&cluster, "lostWrites") == 1);
    assert!(shown(&cluster, "shard1").contains("may be lost"), "{}", shown(&cluster, "shard1"));
    assert!(cluster.router.log().contains("shard \"shard1\" was promoted without all acknowledged writes"));
    let range = "SELECT (details->>'from')::timestamptz < (details->>'to')::timestamptz FROM docshard.changelog \
                 WHERE what = 'lostWrites'";
    assert!(cluster.router.value::<bool>(range));
    await_counts(&cluster);
    assert!(shown(&cluster, "shard1").contains("may be lost"), "until it is accepted");
    accept(&cluster, "shard1");
    assert!(!shown(&cluster, "shard1").contains("may be lost"));

    cluster.router.psql("ALTER SYSTEM SET docshard.on_lost_writes = 'refuse'");
    cluster.router.psql("SELECT pg_reload_conf()");
    cluster.shards[0].fail_over(standbys.pop().expect("one"));
    refused(&cluster, "promoted without all acknowledged writes");
    let accepted = accept(&cluster, "shard0");
    assert!(accepted["lostFrom"].is_string(), "{accepted}");
    assert_eq!(count(&cluster), 3);
    insert(&cluster, 102);
}

/// A shard fails over after it has advanced its counter, and the new primary is accepted before the worker has read that answer.
#[test]
fn an_answer_of_a_former_primary_does_not_replace_an_accepted_position() {
    let mut cluster = Cluster::start(1);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '1000')");
    cluster.router.psql("SELECT docshard.enable_sharding('test', 'shard0')");
    cluster.router.psql("ALTER SYSTEM SET docshard.on_lost_writes = 'refuse'");
    cluster.router.psql("SELECT pg_reload_conf()");
    insert(&cluster, 1);
    let standby = cluster.shards[0].asynchronous_standby();
    standby.cut_off();
    insert(&cluster, 2);
    await_counts(&cluster);
    cluster.router.arm("count.answered", Fault::Pause);
    cluster.router.await_fault("count.answered");
    cluster.shards[0].fail_over(standby);
    accept(&cluster, "shard0");
    assert_eq!(count(&cluster), 1);
    cluster.router.release("count.answered");
    await_counts(&cluster);
    assert_eq!(count(&cluster), 1);
}

/// A healthy shard is accepted, and its answer is late: the worker would advance the counter meanwhile.
#[test]
fn an_accepted_shard_makes_the_router_no_old_copy() {
    let cluster = cluster();
    cluster.router.arm("accept.asked", Fault::Pause);
    let mut client = cluster.router.client();
    let accepting = std::thread::spawn(move || client.execute("SELECT docshard.accept_shard('shard0')", &[]));
    cluster.router.await_fault("accept.asked");
    // Three intervals of the counter.
    std::thread::sleep(Duration::from_secs(3));
    cluster.router.release("accept.asked");
    accepting.join().expect("no panic").expect("accepted");
    await_counts(&cluster);
    insert(&cluster, 102);
}

/// The worker advances the counter twice between the reading of a handshake and its arrival at the shard.
#[test]
fn a_handshake_that_the_worker_has_overtaken_is_repeated() {
    let cluster = cluster();
    cluster.router.psql("CREATE ROLE reader");
    // The first statement uses a cached connection, the second a session of its own.
    for sql in [insert_sql(150), format!("SELECT docshard.grant_access('reader', '{{\"read\": [\"{NS}\"]}}')")] {
        cluster.router.arm("handshake.read", Fault::Pause);
        let mut client = cluster.router.client();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| client.batch_execute(&sql));
            cluster.router.await_fault("handshake.read");
            await_counts(&cluster);
            cluster.router.release("handshake.read");
            running.join().expect("no panic").unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        });
    }
}

#[test]
fn a_router_with_an_older_catalog_stops_writing() {
    let mut cluster = cluster();
    let old = cluster.router.backup();
    await_counts(&cluster);
    await_counts(&cluster);
    cluster.router.restore(old);
    let mut client = cluster.router.client();
    assert_eq!(try_count(&mut client).expect("it reads"), 3);
    // The same in a session that has read before.
    for k in [110, 210] {
        let error = refusal(client.batch_execute(&insert_sql(k)));
        assert_eq!(error.code().code(), "25006", "{error:?}");
    }
    let error = refusal(cluster.router.client().batch_execute(&insert_sql(111)));
    assert_eq!(error.code().code(), "25006", "{error:?}");
    let copy = "SELECT count(*) FROM docshard_catalog.cluster WHERE copy IS NOT NULL";
    wait_until("it knows", PATIENCE, || cluster.router.value::<i64>(copy) == 1);
    assert!(cluster.router.log().contains("its catalog is an older copy"));
    let all_shown =
        || ["shard0", "shard1"].iter().all(|name| shown(&cluster, name).contains("its catalog is an older copy"));
    wait_until("status() says so", PATIENCE, all_shown);
    let error = refusal(cluster.router.client().batch_execute("SELECT docshard.accept_shard('shard0')"));
    assert_eq!(error.code().code(), "25006", "{error:?}");
    assert!(error.hint().unwrap_or_default().contains("take_over_cluster()"), "{error:?}");
    assert_eq!(cluster.router.value::<i64>(copy), 1, "accepting a shard makes no router");
    let epoch = || cluster.router.value::<i64>("SELECT epoch FROM docshard_catalog.cluster");
    let before = epoch();
    cluster.router.psql("SELECT docshard.take_over_cluster()");
    assert_eq!(cluster.router.value::<i64>(copy), 0);
    // Moves and transactions that the other router had decided are not this one's, which would undo them.
    assert!(epoch() > before);
    insert(&cluster, 111);
    await_counts(&cluster);
    assert_eq!(count(&cluster), 4);
}
