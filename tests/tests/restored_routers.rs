//! Routers that were restored from a backup, after the lost router had gone on: what they do not know stays as it is.

use docshard_tests::moving::{NS, move_chunk, start_move};
use docshard_tests::{Cluster, Fault, Node, wait_until};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with a collection on `shard0` only: three documents of keys below 100, and three from 100 on in another chunk.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
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
    let sql = "SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))";
    let taken = cluster.router.client().query_one(sql, &[]).unwrap_or_else(|e| panic!("{e:?}")).get(0);
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    taken
}

/// Ends the moves that can be ended.
fn recover(cluster: &Cluster) {
    let _ = cluster.router.client().batch_execute("SELECT docshard.recover_moves()");
}

fn orphans(cluster: &Cluster) -> String {
    cluster.router.psql("SELECT shard, relation FROM docshard.list_orphaned_relations()")
}

/// The backup has a move that is aborted and not cleaned up; later the chunk was moved to the same shard.
#[test]
fn a_table_of_a_later_move_is_not_dropped_for_an_aborted_one() {
    let mut cluster = cluster();
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
    let mut cluster = cluster();
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

/// The backup has a move under way. The lost router went on with it until `point`; then the backup is restored.
fn restored_in_a_move(point: &'static str) -> (Cluster, Value) {
    let mut cluster = cluster();
    cluster.router.arm("move.cloned", Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault("move.cloned");
    let backup = cluster.router.backup();
    cluster.router.arm(point, Fault::Pause);
    cluster.router.release("move.cloned");
    cluster.router.await_fault(point);
    cluster.router.restore(backup);
    moving.join().expect("it ends").expect_err("the router is gone");
    let taken = take_over(&cluster);
    (cluster, taken)
}

/// The donor's part is committed, so the lost router has decided the move.
#[test]
fn a_move_that_a_lost_router_has_decided_is_completed() {
    let (cluster, taken) = restored_in_a_move("move.donor_committed");
    assert!(taken["preparedTransactions"].is_array(), "{taken}");
    wait_until("the move is completed", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    assert_eq!((count(&cluster), there(&cluster.shards[0]), there(&cluster.shards[1])), (6, 3, 3));
    cluster.router.psql(&insert(103));
}

/// Both parts are prepared: the lost router may have decided the move, and told its client so.
#[test]
fn a_move_that_a_lost_router_may_have_decided_is_left_to_the_administrator() {
    let (cluster, taken) = restored_in_a_move("move.decided");
    assert_eq!(taken["preparedTransactions"].as_array().map(Vec::len), Some(2), "{taken}");
    let error = "SELECT coalesce(error, '') FROM docshard_catalog.migrations WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || cluster.router.value::<String>(error).contains("may have decided it"));
    // Neither recovery nor a request ends it.
    recover(&cluster);
    let _ = cluster.router.client().batch_execute("SELECT docshard.abort_migration(1)");
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [1, 1]);
    let gid = |node: &Node| node.value::<String>("SELECT gid FROM pg_prepared_xacts");
    let shown: String = cluster.router.value("SELECT docshard.status()");
    assert!(shown.contains(&gid(&cluster.shards[1])), "{shown}");
    // The administrator knows that it was decided.
    cluster.shards[0].psql(&format!("COMMIT PREPARED '{}'", gid(&cluster.shards[0])));
    wait_until("the move is completed", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    assert_eq!((count(&cluster), there(&cluster.shards[0]), there(&cluster.shards[1])), (6, 3, 3));
}
