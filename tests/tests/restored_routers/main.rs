//! Routers that were restored from a backup, after the lost router had gone on: what they do not know stays as it is.
//!
//! * [`moves`]: moves that the lost router had begun or decided.
//! * [`layouts`]: changes of a collection's layout that it had begun or decided.

mod changing;
mod layouts;
mod moves;
mod questions;

use docshard_tests::moving::{NS, move_chunk, start_move};
use docshard_tests::{Cluster, Fault, Node, wait_until};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with a collection on `shard0` only: three documents of keys below 100, and three from 100 on in another chunk.
fn cluster(shards: usize) -> Cluster {
    let cluster = Cluster::start(shards);
    let mut client = cluster.router.client();
    let mut run = |sql: String| client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    run("SELECT docshard.stop_balancer()".to_owned());
    run("SELECT docshard.enable_sharding('test', 'shard0')".to_owned());
    run(format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    for k in [1, 2, 3, 100, 101, 102] {
        run(insert(k));
    }
    run(format!("SELECT docshard.split_at('{NS}', '{{\"k\": 100}}')"));
    cluster
}

fn insert(k: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {k}, \"k\": {k}}}')")
}

fn count(cluster: &Cluster) -> i64 {
    cluster.router.value(&format!("SELECT docshard.count_documents('{NS}')"))
}

fn there(node: &Node) -> i64 {
    node.value("SELECT count(*) FROM docshard_data.c1")
}

fn prepared(node: &Node) -> i64 {
    node.value("SELECT count(*) FROM pg_prepared_xacts")
}

/// Makes the restored router the cluster's router.
fn take_over(cluster: &Cluster) -> Value {
    cluster.router.clear_faults();
    take_over_with_faults(cluster)
}

/// Like [`take_over`]; mechanisms that are off in the backup stay off.
fn take_over_with_faults(cluster: &Cluster) -> Value {
    let sql = "SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))";
    let taken = cluster.router.client().query_one(sql, &[]).unwrap_or_else(|e| panic!("{e:?}")).get(0);
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    taken
}

/// Waits until the catalog knows a counter of each shard; from then on they advance each second.
fn await_counters(cluster: &Cluster) {
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '1000')");
    wait_until("the counters are known", PATIENCE, || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.contacts WHERE counter > 0") == 2
    });
}

/// Ends the moves that can be ended.
fn recover(cluster: &Cluster) {
    let _ = cluster.router.client().batch_execute("SELECT docshard.recover_moves()");
}

fn orphans(cluster: &Cluster) -> String {
    cluster.router.psql("SELECT shard, relation FROM docshard.list_orphaned_relations()")
}

/// Ends what is prepared on a shard.
fn end_prepared(how: &str, shard: &Node) {
    let gid: String = shard.value("SELECT gid FROM pg_prepared_xacts");
    shard.psql(&format!("{how} PREPARED '{gid}'"));
}

/// Has the router bring a shard and its catalog together.
fn adopt(cluster: &Cluster, shard: &str) -> Result<Value, Box<postgres::error::DbError>> {
    let sql = format!("SELECT docshard.accept_shard('{shard}', '{{\"adopt\": true}}')::json");
    let answer = cluster.router.client().query_one(&sql, &[]);
    answer.map(|row| row.get(0)).map_err(|e| Box::new(e.as_db_error().expect("an error of the server").clone()))
}

/// The backup has a move that is aborted and not cleaned up; later the chunk was moved to the same shard.
#[test]
fn a_table_of_a_later_move_is_not_dropped_for_an_aborted_one() {
    let mut cluster = cluster(2);
    cluster.router.arm("move.registered", Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault("move.registered");
    cluster.shards[1].stop();
    cluster.router.release("move.registered");
    moving.join().expect("it ends").expect_err("its recipient is down");
    let state = "SELECT state FROM docshard_catalog.migrations WHERE id = 1";
    assert_eq!(cluster.router.value::<String>(state), "aborted");
    let backup = cluster.router.backup();
    cluster.shards[1].start();
    wait_until("the chunk moves", PATIENCE, || move_chunk(&mut cluster.router.client(), 100, "shard1").is_ok());
    cluster.router.psql(&insert(103));
    cluster.router.restore(backup);
    take_over(&cluster);
    wait_until("the aborted move is cleaned up", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<String>(state) == "done"
    });
    assert_eq!(there(&cluster.shards[1]), 4);
    assert_eq!(orphans(&cluster).trim(), "shard1|docshard_data.c1");
}

/// The router and the donor were restored, the recipient was not. A new move to it fails early, and says what to do.
#[test]
fn a_table_that_the_catalog_does_not_know_is_an_orphan() {
    let mut cluster = cluster(2);
    let backups = (cluster.router.backup(), cluster.shards[0].backup());
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    cluster.router.psql(&insert(103));
    cluster.router.restore(backups.0);
    cluster.shards[0].restore(backups.1);
    take_over(&cluster);
    assert_eq!(count(&cluster), 6);
    cluster.router.arm("move.registered", Fault::Error);
    let mut client = cluster.router.client();
    move_chunk(&mut client, 100, "shard1").expect_err("the fault");
    cluster.router.release("move.registered");
    assert_eq!(there(&cluster.shards[1]), 4);
    let error = move_chunk(&mut client, 100, "shard1").expect_err("there are documents");
    let error = error.as_db_error().expect("an error of the server");
    assert!(error.message().contains("documents of another router"), "{error:?}");
    assert!(error.hint().unwrap_or_default().contains("list_orphaned_relations"), "{error:?}");
    assert_eq!(there(&cluster.shards[1]), 4);
    assert_eq!(orphans(&cluster).trim(), "shard1|docshard_data.c1");
    cluster.router.psql("SELECT docshard.drop_orphaned_relation('shard1', 'docshard_data.c1')");
    assert_eq!(orphans(&cluster).trim(), "");
    move_chunk(&mut client, 100, "shard1").expect("a move");
    assert_eq!((count(&cluster), there(&cluster.shards[1])), (6, 3));
}

/// Accepting shards makes no router of a copy: only a take-over compares its catalog with the shards.
#[test]
fn an_old_copy_does_not_become_the_router_by_accepting_shards() {
    let cluster = cluster(2);
    await_counters(&cluster);
    let mut twin = cluster.router.clone_disk();
    twin.0.stop();
    let counter = "SELECT min(counter) FROM docshard_catalog.contacts";
    let before: i64 = cluster.router.value(counter);
    wait_until("the counters advance", PATIENCE, || cluster.router.value::<i64>(counter) > before + 2);
    twin.0.start();
    for shard in ["shard0", "shard1"] {
        let sql = format!("SELECT docshard.accept_shard('{shard}')");
        let error = twin.0.client().batch_execute(&sql).expect_err("its catalog is old");
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), "25006", "{error:?}");
        assert!(error.hint().unwrap_or_default().contains("take_over_cluster()"), "{error:?}");
    }
    for shard in &cluster.shards {
        assert_eq!(shard.value::<i64>("SELECT epoch FROM docshard_data.node"), 1);
    }
    cluster.router.psql(&insert(103));
}

/// A shard that was down during the take-over is taken over when it is back, and does not make the router a copy by its counter.
#[test]
fn a_shard_that_was_down_during_a_take_over_follows() {
    let mut cluster = cluster(2);
    await_counters(&cluster);
    let backup = cluster.router.backup();
    let counter = "SELECT min(counter) FROM docshard_catalog.contacts";
    let before: i64 = cluster.router.value(counter);
    wait_until("the counters advance", PATIENCE, || cluster.router.value::<i64>(counter) > before + 3);
    cluster.router.restore(backup);
    cluster.shards[1].stop();
    let taken: Value = cluster
        .router
        .client()
        .query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[])
        .expect("the answer")
        .get(0);
    assert_eq!(taken["unreachable"].as_array().map(Vec::len), Some(1), "{taken}");
    cluster.router.psql(&insert(103));
    cluster.shards[1].start();
    let epoch = taken["epoch"].as_i64().expect("a number");
    let of = |shard: &Node| shard.value::<i64>("SELECT epoch FROM docshard_data.node");
    wait_until("it follows", PATIENCE, || of(&cluster.shards[1]) == epoch);
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    let recorded = "SELECT k.counter FROM docshard_catalog.contacts k JOIN docshard_catalog.shards s ON s.id = k.shard_id \
                    WHERE s.name = 'shard1'";
    let first: i64 = cluster.router.value(recorded);
    wait_until("its counter advances", PATIENCE, || cluster.router.value::<i64>(recorded) > first + 2);
    assert_eq!(cluster.router.psql("SELECT copy FROM docshard_catalog.cluster").trim(), "");
    cluster.router.psql(&insert(104));
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
}

/// The number of the next move is that of before if a dismantling is not committed.
#[test]
fn a_dismantling_that_fails_changes_no_numbers() {
    let cluster = cluster(2);
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    take_over(&cluster);
    move_chunk(&mut cluster.router.client(), 100, "shard0").expect("a move");
    let mut client = cluster.router.client();
    let token: String = client
        .query_one("SELECT docshard.dismantle(NULL, '{\"shards\": false}') ->> 'confirm'", &[])
        .expect("a token")
        .get(0);
    let failing = format!("SELECT docshard.dismantle('{token}', '{{\"shards\": false}}'), 1 / (random() * 0)::int");
    client.batch_execute(&failing).expect_err("a division by zero");
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move with a number of its own");
    let of_router = "SELECT bool_and(m.id >> 32 = c.epoch) FROM docshard_catalog.migrations m, docshard_catalog.cluster c WHERE m.id > 1";
    assert!(cluster.router.value::<bool>(of_router));
}
