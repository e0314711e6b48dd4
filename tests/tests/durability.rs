//! Acknowledged writes, and commits on which other nodes have acted, survive a crash and a failover to a synchronous
//! standby with any `synchronous_commit`. A node does not act on commits that its standby does not have.

use docshard_tests::{Cluster, Node, Standby, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NS: &str = "test.things";
const PATIENCE: Duration = Duration::from_secs(60);

/// The first account of each shard: see `Cluster::spread`.
const LOCAL: i64 = 1;
const SHARD0: i64 = 100;
const SHARD1: i64 = 200;

/// The number of accounts on a shard, so that transfers need not wait for each other.
const ACCOUNTS: i64 = 10;

/// A cluster whose accounts have a balance of 100 each.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.set_setting('balancer_interval_ms', '500')").expect("a setting");
    for first in [LOCAL, SHARD0, SHARD1] {
        for k in first..first + ACCOUNTS {
            let document = json!({"_id": k, "k": k, "n": 100});
            client.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{document}')")).expect("an account");
        }
    }
    cluster
}

/// The statements of a transfer, without COMMIT.
fn transfer(from: i64, to: i64) -> String {
    let add = |k: i64, n: i64| {
        let (filter, update) = (json!({"k": k, "_id": k}), json!({"$inc": {"n": n}}));
        format!("SELECT docshard.update_one('{NS}', '{filter}', '{update}');")
    };
    format!("BEGIN; {}{}", add(from, -1), add(to, 1))
}

fn balance(client: &mut Client, k: i64) -> i64 {
    let filter = json!({"k": k, "_id": k});
    let found = client.query_one(&format!("SELECT docshard.find_one('{NS}', '{filter}')"), &[]).expect("a find");
    found.get::<_, Value>(0)["n"].as_i64().expect("a number")
}

fn prepared(node: &Node) -> i64 {
    node.value("SELECT count(*) FROM pg_prepared_xacts")
}

/// Waits until all prepared transactions at shards have ended and no decision is left.
fn all_resolved(cluster: &Cluster) {
    wait_until("prepared transactions are resolved", PATIENCE, || {
        cluster.shards.iter().map(prepared).sum::<i64>() == 0
    });
    wait_until("decisions are forgotten", PATIENCE, || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.transactions") == 0
    });
}

/// Waits until the given number of a node's sessions wait for its standby; workers do not count.
fn await_waiting(node: &Node, sessions: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'";
    wait_until("commits wait for the standby", PATIENCE, || node.value::<i64>(sql) >= sessions);
}

type Running = JoinHandle<Result<(), postgres::Error>>;

fn start(mut client: Client, sql: String) -> Running {
    thread::spawn(move || client.batch_execute(&sql))
}

/// A synchronous standby that receives nothing.
fn lost_standby(node: &Node) -> Standby {
    let standby = node.standby();
    standby.cut_off();
    standby
}

#[test]
fn an_acknowledged_commit_on_several_shards_survives_a_crash_of_the_router() {
    let mut cluster = cluster();
    // Commits that are not flushed at once are lost in the crash.
    cluster.router.configure("wal_writer_delay = '10s'");
    cluster.router.stop();
    cluster.router.start();
    for round in 1..=3 {
        let mut client = cluster.router.client();
        client.batch_execute("SET synchronous_commit = off").unwrap();
        // Reads the chunk maps first, so that the commit is the last WAL record.
        client.batch_execute(&format!("{}ROLLBACK", transfer(LOCAL, SHARD0))).unwrap();
        client.batch_execute(&format!("{}COMMIT", transfer(LOCAL, SHARD0))).unwrap();
        cluster.router.crash();
        cluster.router.start();
        all_resolved(&cluster);
        let mut client = cluster.router.client();
        assert_eq!([balance(&mut client, LOCAL), balance(&mut client, SHARD0)], [100 - round, 100 + round]);
    }
}

#[test]
fn a_decision_waits_for_the_standby() {
    let mut cluster = cluster();
    let mut preparing = cluster.router.client();
    preparing.batch_execute(&format!("{}PREPARE TRANSACTION 'by client'", transfer(LOCAL, SHARD0))).unwrap();
    let standby = lost_standby(&cluster.router);
    let levels = ["off", "local", "remote_write"];
    let mut running: Vec<Running> = Vec::new();
    for (n, level) in (1..).zip(levels) {
        let client = || {
            let mut client = cluster.router.client();
            client.batch_execute(&format!("SET synchronous_commit = {level}")).unwrap();
            client
        };
        running.push(start(client(), format!("{}COMMIT", transfer(LOCAL + n, SHARD0 + n))));
        running.push(start(client(), format!("{}COMMIT", transfer(SHARD0 + 3 + n, SHARD1 + n))));
        let named = format!("{}PREPARE TRANSACTION 'in {level}'", transfer(LOCAL + 3 + n, SHARD1 + 3 + n));
        running.push(start(client(), named));
    }
    preparing.batch_execute("SET synchronous_commit = off").unwrap();
    running.push(start(preparing, "COMMIT PREPARED 'by client'".to_owned()));
    await_waiting(&cluster.router, i64::try_from(running.len()).unwrap());
    assert!(running.iter().all(|statement| !statement.is_finished()), "none is acknowledged");
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [7, 6], "no shard was told");
    cluster.router.fail_over(standby);
    for statement in running {
        statement.join().unwrap().expect_err("the router is gone");
    }

    // A transfer that was not acknowledged has no effect. The transaction that the client had prepared before can be committed.
    let others = || cluster.shards.iter().map(prepared).collect::<Vec<_>>() == [1, 0];
    wait_until("what was not decided is rolled back", PATIENCE, others);
    let mut client = cluster.router.client();
    client.batch_execute("COMMIT PREPARED 'by client'").unwrap();
    all_resolved(&cluster);
    for first in [LOCAL, SHARD0, SHARD1] {
        for k in first..first + ACCOUNTS {
            let moved = match k {
                LOCAL => -1,
                SHARD0 => 1,
                _ => 0,
            };
            assert_eq!(balance(&mut client, k), 100 + moved, "{k}");
        }
    }
}

/// A shard's PREPARE and COMMIT PREPARED are on its standby before the router relies on them.
#[test]
fn a_shards_part_waits_for_the_shards_standby() {
    let mut cluster = cluster();
    for level in ["off", "local"] {
        cluster.shards[0].psql(&format!("ALTER SYSTEM SET synchronous_commit = {level}"));
        cluster.shards[0].psql("SELECT pg_reload_conf()");
        let before = [SHARD0, SHARD1].map(|k| balance(&mut cluster.router.client(), k));

        // PREPARE.
        let standby = lost_standby(&cluster.shards[0]);
        let waiting = start(cluster.router.client(), format!("{}COMMIT", transfer(SHARD0, SHARD1)));
        await_waiting(&cluster.shards[0], 1);
        assert!(!waiting.is_finished());
        cluster.shards[0].fail_over(standby);
        waiting.join().unwrap().expect_err("the shard has lost it");
        all_resolved(&cluster);
        let after = [SHARD0, SHARD1].map(|k| balance(&mut cluster.router.client(), k));
        assert_eq!(after, before, "{level}");

        // COMMIT PREPARED: the router deletes the decision only after the standby has it.
        let standby = cluster.shards[0].standby();
        let mut holder = cluster.router.client();
        holder.batch_execute("BEGIN; LOCK TABLE docshard_catalog.transactions IN EXCLUSIVE MODE").unwrap();
        let waiting = start(cluster.router.client(), format!("{}COMMIT", transfer(SHARD0, SHARD1)));
        wait_until("both have prepared", PATIENCE, || cluster.shards.iter().map(prepared).sum::<i64>() == 2);
        standby.cut_off();
        holder.batch_execute("COMMIT").unwrap();
        await_waiting(&cluster.shards[0], 1);
        waiting.join().unwrap().expect("it is decided");
        // For this update the shard's default setting applies again, so it does not wait for the standby.
        let update = "SELECT docshard.update_one('test.things', '{\"k\": 105}', '{\"$inc\": {\"x\": 1}}')";
        cluster.router.client().batch_execute(update).unwrap();
        cluster.shards[0].fail_over(standby);
        all_resolved(&cluster);
        let after = [SHARD0, SHARD1].map(|k| balance(&mut cluster.router.client(), k));
        assert_eq!(after, [before[0] - 1, before[1] + 1], "{level}");
    }
}

/// A standby of a shard does not show transactions that are prepared at the shard. The router must not conclude that they have
/// ended.
#[test]
fn a_standby_is_not_taken_for_a_shard() {
    let cluster = cluster();
    let standby = cluster.shards[0].standby();
    let mut holder = cluster.router.client();
    holder.batch_execute("BEGIN; LOCK TABLE docshard_catalog.transactions IN EXCLUSIVE MODE").unwrap();
    let transfer = start(cluster.router.client(), format!("{}COMMIT", transfer(SHARD0, SHARD1)));
    wait_until("both have prepared", PATIENCE, || cluster.shards.iter().map(prepared).sum::<i64>() == 2);
    // The decision is made, but the router cannot send it to the shard, whose session is frozen.
    let session = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard %' AND query LIKE '%PREPARE TRANSACTION%'";
    let session = cluster.shards[0].value::<i32>(session).unsigned_abs();
    cluster.shards[0].freeze(session);
    holder.batch_execute("COMMIT").unwrap();
    let sql = "SELECT count(*) FROM docshard_catalog.transactions WHERE server = 'docshard_shard0'";
    let decided = || cluster.router.value::<i64>(sql) == 1;
    wait_until("it is decided", PATIENCE, decided);
    let aim = |port: u16| {
        let sql = format!("ALTER SERVER docshard_shard0 OPTIONS (SET port '{port}')");
        cluster.router.client().batch_execute(&sql).unwrap();
    };
    aim(standby.port());
    let find = format!("SELECT docshard.find_one('{NS}', '{{\"k\": {SHARD0}}}')");
    let error = cluster.router.client().batch_execute(&find).expect_err("a standby answers for a shard");
    let error = error.as_db_error().expect("the server's");
    assert_eq!(error.code().code(), "08001", "{error:?}");
    assert!(error.message().contains("standby"), "{error:?}");
    // The worker or its keeper has connected to the standby, and refused it.
    let said = "could not connect to shard \"docshard_shard0\": the server is a standby";
    wait_until("the worker looks", PATIENCE, || cluster.router.log_tail(200).contains(said) || !decided());
    assert!(decided(), "the decision for the shard is kept");
    aim(cluster.shards[0].port);
    assert!(cluster.shards[0].kill(session), "it ran");
    let _ = transfer.join().unwrap();
    all_resolved(&cluster);
    let mut client = cluster.router.client();
    assert_eq!([balance(&mut client, SHARD0), balance(&mut client, SHARD1)], [99, 101]);
    cluster.shards[0].remove_standby(standby);
}
