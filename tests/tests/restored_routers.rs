//! Routers that were restored from a backup, after the lost router had gone on: what they do not know stays as it is.

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

/// The backup is from the point `from` of a move. The lost router went on with it until `point`; then the backup is started in its place.
fn older_files_in_a_move(from: &'static str, point: &'static str) -> Cluster {
    let mut cluster = cluster(2);
    // The counters would show that the catalog is older.
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    cluster.router.arm(from, Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault(from);
    let backup = cluster.router.backup();
    cluster.router.arm(point, Fault::Pause);
    cluster.router.release(from);
    cluster.router.await_fault(point);
    cluster.router.restore(backup);
    moving.join().expect("it ends").expect_err("the router is gone");
    cluster
}

/// Like [`older_files_in_a_move`], and the router takes the cluster over.
fn restored_in_a_move(from: &'static str, point: &'static str) -> (Cluster, Value) {
    let cluster = older_files_in_a_move(from, point);
    let taken = take_over(&cluster);
    (cluster, taken)
}

/// Waits until the router has ended the move of the lost one, and returns its outcome.
fn await_end(cluster: &Cluster) -> String {
    wait_until("the move is ended", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    cluster.router.value("SELECT outcome FROM docshard_catalog.migrations WHERE id = 1")
}

/// Waits until the router has found out that it cannot end the move of the lost one.
fn await_doubt(cluster: &Cluster) {
    let error = "SELECT coalesce(error, '') FROM docshard_catalog.migrations WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<String>(error).contains("may have decided it")
    });
}

/// Ends what is prepared on a shard.
fn end_prepared(how: &str, shard: &Node) {
    let gid: String = shard.value("SELECT gid FROM pg_prepared_xacts");
    shard.psql(&format!("{how} PREPARED '{gid}'"));
}

/// The donor's part is committed, so the lost router has decided the move.
#[test]
fn a_move_that_a_lost_router_has_decided_is_completed() {
    let (cluster, taken) = restored_in_a_move("move.cloned", "move.donor_committed");
    assert!(taken["preparedTransactions"].is_array(), "{taken}");
    assert_eq!(await_end(&cluster), "committed");
    assert_eq!((count(&cluster), there(&cluster.shards[0]), there(&cluster.shards[1])), (6, 3, 3));
    cluster.router.psql(&insert(103));
}

/// The router fails over to a standby that lacks its last commits, or starts from a copy of its files: it has begun the move itself, but
/// not in this server.
#[test]
fn a_move_that_a_former_server_of_the_router_has_decided_is_completed() {
    for (from, point) in [
        ("move.cloned", "move.donor_committed"),
        ("move.registered", "move.donor_committed"),
        ("move.cloned", "move.recipient_committed"),
        ("move.cloned", "move.cleaned"),
    ] {
        let cluster = older_files_in_a_move(from, point);
        cluster.router.clear_faults();
        assert_eq!(await_end(&cluster), "committed", "{from} {point}");
        assert_eq!((count(&cluster), there(&cluster.shards[0]), there(&cluster.shards[1])), (6, 3, 3), "{point}");
        cluster.router.psql(&insert(103));
    }
}

/// No shard has committed, so it does not matter what the former server has decided.
#[test]
fn a_move_that_a_former_server_of_the_router_has_only_prepared_is_aborted() {
    for point in ["move.recipient_prepared", "move.decided"] {
        let cluster = older_files_in_a_move("move.cloned", point);
        cluster.router.clear_faults();
        assert_eq!(await_end(&cluster), "aborted", "{point}");
        assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [0, 0]);
        assert_eq!((count(&cluster), there(&cluster.shards[0])), (6, 6));
        cluster.router.psql(&insert(103));
        move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
        assert_eq!((count(&cluster), there(&cluster.shards[1])), (7, 4));
    }
}

/// The catalog does not even know that the recipient has the collection.
#[test]
fn a_move_to_a_shard_that_was_new_to_the_collection_is_completed() {
    let (cluster, _) = restored_in_a_move("move.registered", "move.donor_committed");
    assert_eq!(await_end(&cluster), "committed");
    assert_eq!((count(&cluster), there(&cluster.shards[0]), there(&cluster.shards[1])), (6, 3, 3));
    cluster.router.psql(&insert(103));
    move_chunk(&mut cluster.router.client(), 100, "shard0").expect("a move");
    assert_eq!((count(&cluster), there(&cluster.shards[0])), (7, 7));
}

/// The donor has never prepared, so the lost router cannot have decided the move; meanwhile the donor accepts writes.
#[test]
fn a_move_that_a_lost_router_cannot_have_decided_is_aborted() {
    let (cluster, taken) = restored_in_a_move("move.cloned", "move.recipient_prepared");
    assert_eq!(taken["preparedTransactions"].as_array().map(Vec::len), Some(1), "{taken}");
    cluster.router.psql(&insert(200));
    assert_eq!(await_end(&cluster), "aborted");
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [0, 0]);
    assert_eq!((count(&cluster), there(&cluster.shards[0])), (7, 7));
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    assert_eq!((count(&cluster), there(&cluster.shards[1])), (7, 4));
}

/// The recipient has rolled its part back, which it prepares first: the lost router has aborted the move.
#[test]
fn a_move_of_which_only_the_donor_has_a_part_is_aborted() {
    let (cluster, _) = restored_in_a_move("move.cloned", "move.decided");
    end_prepared("ROLLBACK", &cluster.shards[1]);
    assert_eq!(await_end(&cluster), "aborted");
    assert_eq!(prepared(&cluster.shards[0]), 0);
    cluster.router.psql(&insert(200));
    assert_eq!((count(&cluster), there(&cluster.shards[0])), (7, 7));
}

/// Both parts are prepared: the lost router may have decided the move.
#[test]
fn a_move_that_a_lost_router_may_have_decided_is_left_to_the_administrator() {
    for how in ["COMMIT", "ROLLBACK"] {
        let (cluster, taken) = restored_in_a_move("move.cloned", "move.decided");
        assert_eq!(taken["preparedTransactions"].as_array().map(Vec::len), Some(2), "{taken}");
        await_doubt(&cluster);
        // Neither recovery nor a request ends it.
        recover(&cluster);
        let refused = cluster.router.client().batch_execute("SELECT docshard.abort_migration(1)");
        let refused = refused.expect_err("it cannot be aborted");
        let refused = refused.as_db_error().expect("an error of the server");
        assert!(refused.message().contains("may have decided it"), "{refused:?}");
        assert!(refused.hint().unwrap_or_default().contains("ROLLBACK PREPARED both"), "{refused:?}");
        assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [1, 1]);
        let gid = |node: &Node| node.value::<String>("SELECT gid FROM pg_prepared_xacts");
        let shown: String = cluster.router.value("SELECT docshard.status()");
        assert!(shown.contains(&gid(&cluster.shards[1])), "{shown}");
        // The administrator ends one part, and the router the other one.
        end_prepared(how, &cluster.shards[0]);
        let (outcome, at_donor) = if how == "COMMIT" { ("committed", 3) } else { ("aborted", 6) };
        assert_eq!(await_end(&cluster), outcome);
        assert_eq!((count(&cluster), there(&cluster.shards[0])), (6, at_donor));
        cluster.router.psql(&insert(103));
    }
}

/// The lost router has aborted the move while the recipient was down, and moved another chunk of the donor, which so is at a later version
/// than the move's. A donor looks the same after a move that was decided.
#[test]
fn what_a_recipient_has_prepared_is_in_doubt_if_the_donor_has_gone_on() {
    let mut cluster = cluster(3);
    cluster.router.arm("move.cloned", Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault("move.cloned");
    let backup = cluster.router.backup();
    cluster.router.arm("move.recipient_prepared", Fault::Error);
    cluster.router.arm("move.aborted", Fault::Pause);
    cluster.router.release("move.cloned");
    cluster.router.await_fault("move.aborted");
    cluster.shards[1].stop();
    cluster.router.release("move.aborted");
    moving.join().expect("it ends").expect_err("the fault");
    wait_until("another chunk moves", PATIENCE, || move_chunk(&mut cluster.router.client(), 1, "shard2").is_ok());
    cluster.router.psql(&insert(200));
    cluster.router.restore(backup);
    cluster.shards[1].start();
    take_over(&cluster);
    await_doubt(&cluster);
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [0, 1, 0]);
    // The donor has the documents of the range.
    assert_eq!(there(&cluster.shards[0]), 4);
    end_prepared("ROLLBACK", &cluster.shards[1]);
    assert_eq!(await_end(&cluster), "aborted");
    assert_eq!(there(&cluster.shards[0]), 4);
}

/// The backup has a change of layout under way, which the lost router has decided since: the copy has the only documents.
fn restored_in_a_change(statement: String) -> Cluster {
    let mut cluster = cluster(2);
    cluster.router.arm("reshard.verified", Fault::Pause);
    let mut client = cluster.router.client();
    let changing = std::thread::spawn(move || client.execute(&statement, &[]));
    cluster.router.await_fault("reshard.verified");
    let backup = cluster.router.backup();
    cluster.router.release("reshard.verified");
    changing.join().expect("it ends").expect("it is decided");
    cluster.router.restore(backup);
    take_over(&cluster);
    cluster
}

#[test]
fn a_change_of_layout_that_a_lost_router_has_decided_is_completed() {
    let cluster = restored_in_a_change(format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"));
    wait_until("the change is completed", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding WHERE state <> 'done'") == 0
    });
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.collections WHERE key IS NULL"), 1);
    assert_eq!(count(&cluster), 6);
    cluster.router.psql(&insert(103));
    let checked: Value = cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
    assert_eq!(orphans(&cluster).trim(), "");
}

/// The router itself has a part of the copy, which is as old as the backup: it cannot be completed, and nothing may be dropped.
#[test]
fn a_change_of_layout_that_the_backup_has_only_a_part_of_is_left_to_the_administrator() {
    let cluster = restored_in_a_change(format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}')"));
    let stored = |node: &Node| {
        let table: String = node.value("SELECT 'docshard_data.c' || collection_id FROM docshard_data.placement");
        node.value::<i64>(&format!("SELECT count(*) FROM {table}"))
    };
    let documents = || cluster.shards.iter().map(stored).sum::<i64>();
    let before = documents();
    assert!(before > 0, "the shards have documents of the new layout");
    let error = "SELECT coalesce(error, '') FROM docshard.resharding WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<String>(error).contains("another router has decided")
    });
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("it is decided");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("another router")), "{refused:?}");
    recover(&cluster);
    assert_eq!(documents(), before);
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
