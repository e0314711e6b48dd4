//! Routers that were restored from a backup, after the lost router had gone on: what they do not know stays as it is.

use docshard_tests::moving::{NS, move_chunk, start_move};
use docshard_tests::{Cluster, Fault, Installation, Node, wait_until};
use serde_json::Value;
use std::thread::JoinHandle;
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
    older_files_of(cluster(2), from, point, |_| ()).0
}

/// As [`older_files_in_a_move`]; `meanwhile` is called before the lost router ends.
fn older_files_of<T>(
    mut cluster: Cluster,
    from: &'static str,
    point: &'static str,
    meanwhile: impl FnOnce(&Cluster) -> T,
) -> (Cluster, T) {
    // The counters would show that the catalog is older.
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    cluster.router.arm(from, Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault(from);
    let backup = cluster.router.backup();
    cluster.router.arm(point, Fault::Pause);
    cluster.router.release(from);
    cluster.router.await_fault(point);
    let kept = meanwhile(&cluster);
    cluster.router.restore(backup);
    moving.join().expect("it ends").expect_err("the router is gone");
    (cluster, kept)
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

/// The router is restarted while a shard is down: the other one shows that the move is not decided.
#[test]
fn a_running_move_is_aborted_by_a_restarted_router_while_one_shard_is_down() {
    for down in [0, 1] {
        let mut cluster = cluster(2);
        cluster.router.arm("move.cloned", Fault::Pause);
        let moving = start_move(&cluster, 100, "shard1");
        cluster.router.await_fault("move.cloned");
        cluster.router.crash();
        cluster.shards[down].crash();
        moving.join().expect("it ends").expect_err("the router is gone");
        cluster.router.start();
        cluster.router.clear_faults();
        let state = "SELECT state FROM docshard_catalog.migrations WHERE id = 1";
        wait_until("the move is aborted", PATIENCE, || {
            recover(&cluster);
            cluster.router.value::<String>(state) != "running"
        });
        cluster.router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": 101}}')"));
        cluster.shards[down].start();
        assert_eq!(await_end(&cluster), "aborted");
        assert_eq!((count(&cluster), there(&cluster.shards[0])), (6, 6));
    }
}

/// The former server may only have been frozen: its sessions at the shards end before the router judges its move.
#[test]
fn sessions_of_a_former_server_s_move_end_before_it_is_judged() {
    let (cluster, (session, pid)) = older_files_of(cluster(2), "move.cloned", "move.recipient_prepared", |cluster| {
        let donor = &cluster.shards[0];
        let name: String = donor.value("SELECT 'docshard m ' || cluster_id || ' 1' FROM docshard_data.node");
        let mut session = donor.try_client_as(&donor.service_role(), "postgres").expect("a session");
        session.batch_execute(&format!("SET application_name = '{name}'")).expect("a session of the move");
        let pid: i32 = session.query_one("SELECT pg_backend_pid()", &[]).expect("its process").get(0);
        // The router cannot end a session that hangs.
        donor.freeze(pid.unsigned_abs());
        (session, pid.unsigned_abs())
    });
    cluster.router.clear_faults();
    let error = "SELECT coalesce(error, '') FROM docshard_catalog.migrations WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || {
        recover(&cluster);
        !cluster.router.value::<String>(error).is_empty()
    });
    assert_eq!(prepared(&cluster.shards[1]), 1, "the session might still prepare the donor's part");
    cluster.shards[0].thaw(pid);
    drop(session);
    assert_eq!(await_end(&cluster), "aborted");
    assert_eq!((count(&cluster), there(&cluster.shards[0])), (6, 6));
}

/// The router fails over to a standby that does not even have the move's row. What the move has prepared may be the only copy of documents.
#[test]
fn what_an_unknown_move_of_a_former_server_has_prepared_stays() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.router.backup();
    cluster.router.arm("move.donor_committed", Fault::Pause);
    let moving = start_move(&cluster, 100, "shard1");
    cluster.router.await_fault("move.donor_committed");
    cluster.router.restore(backup);
    moving.join().expect("it ends").expect_err("the router is gone");
    let error = "SELECT coalesce(string_agg(error, ' '), '') FROM docshard.health";
    let gid: String = cluster.shards[1].value("SELECT gid FROM pg_prepared_xacts");
    wait_until("it is reported", PATIENCE, || {
        recover(&cluster);
        cluster.router.value::<String>(error).contains(&gid)
    });
    // Another move gets another number, and so cannot end it.
    let _ = move_chunk(&mut cluster.router.client(), 1, "shard1");
    assert_eq!((prepared(&cluster.shards[1]), there(&cluster.shards[0])), (1, 3));
    let refused = adopt(&cluster, "shard0").expect_err("documents may be hidden");
    assert!(refused.message().contains(&gid), "{refused:?}");
    assert!(refused.hint().unwrap_or_default().contains("COMMIT PREPARED"), "{refused:?}");
    end_prepared("COMMIT", &cluster.shards[1]);
    adopt(&cluster, "shard0").expect("the catalog follows");
    assert_sound(&cluster, 6, [3, 3]);
}

/// The router fails over to a standby that lacks a move and an index. What it begins itself has other versions and numbers, so that the
/// shards' versions prove nothing of it, and no shard takes the lost index for its own.
#[test]
fn a_promoted_router_repeats_no_version_and_no_number() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let standby = cluster.router.asynchronous_standby();
    let receiver = standby.freeze_receiver();
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    cluster.router.fail_over_without(standby, &receiver);

    cluster.router.psql("SELECT docshard.create_collection('test.other')");
    let other: i32 = cluster.router.value("SELECT id FROM docshard_catalog.collections WHERE namespace = 'test.other'");
    cluster.router.psql("SELECT docshard.create_index('test.other', '{\"m\": 1}')");
    let index: i32 = cluster.router.value("SELECT max(id) FROM docshard_catalog.indexes");
    assert!(other > 60_000 && index > 60_000, "{other}, {index}");

    assert_a_move_that_ends_early_is_aborted(&mut cluster);
}

/// The router is restored in its timeline, without a move. Its next move does not have the version of that one.
#[test]
fn a_restored_router_repeats_no_version() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.router.backup();
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    cluster.router.restore(backup);
    assert_a_move_that_ends_early_is_aborted(&mut cluster);
}

/// A move gets no further than its row, and the server restarts.
fn assert_a_move_that_ends_early_is_aborted(cluster: &mut Cluster) {
    cluster.router.arm("move.registered", Fault::Pause);
    let moving = start_move(cluster, 1, "shard1");
    cluster.router.await_fault("move.registered");
    cluster.router.crash();
    cluster.router.start();
    moving.join().expect("it ends").expect_err("the router is gone");
    wait_until("the move is ended", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    let outcome: String = cluster.router.value("SELECT outcome FROM docshard_catalog.migrations");
    assert_eq!(outcome, "aborted");
    for shard in ["shard0", "shard1"] {
        adopt(cluster, shard).expect("the catalog follows");
    }
    assert_sound(cluster, 6, [3, 3]);
}

/// A shard has an index of a number that the router gives away again.
#[test]
fn another_index_of_the_same_number_is_not_taken() {
    let cluster = cluster(2);
    cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    cluster.router.psql("SELECT docshard.create_collection('test.other')");
    cluster.router.psql("DELETE FROM docshard_catalog.indexes");
    let mut client = cluster.router.client();
    for collection in ["test.other", NS] {
        cluster.router.psql("SELECT setval(pg_get_serial_sequence('docshard_catalog.indexes', 'id'), 1, false)");
        client.batch_execute("BEGIN").expect("a transaction");
        let create =
            format!("SELECT docshard.create_index('{collection}', '{{\"k\": 1, \"m\": 1}}', '{{\"unique\": true}}')");
        let refused = client.execute(&create, &[]).expect_err("the number is taken");
        let refused = refused.as_db_error().expect("an error of the server");
        assert!(refused.message().contains("is not an index of collection"), "{refused:?}");
        client.batch_execute("ROLLBACK").expect("the end");
    }
}

/// Has the router bring a shard and its catalog together.
fn adopt(cluster: &Cluster, shard: &str) -> Result<Value, Box<postgres::error::DbError>> {
    let sql = format!("SELECT docshard.accept_shard('{shard}', '{{\"adopt\": true}}')::json");
    let answer = cluster.router.client().query_one(&sql, &[]);
    answer.map(|row| row.get(0)).map_err(|e| Box::new(e.as_db_error().expect("an error of the server").clone()))
}

/// The catalog and the shards agree, and the collection works.
fn assert_sound(cluster: &Cluster, documents: i64, at_shards: [i64; 2]) {
    assert_eq!((count(cluster), [0, 1].map(|n| there(&cluster.shards[n]))), (documents, at_shards));
    let checked: Value = cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
    for k in [0, 99, 150, 300] {
        cluster.router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {}, \"k\": {k}}}')", 1000 + k));
    }
    assert_eq!(count(cluster), documents + 4);
    for to in ["shard0", "shard1"] {
        move_chunk(&mut cluster.router.client(), 100, to).expect("a move");
    }
    assert_eq!(count(cluster), documents + 4);
}

/// The lost router has moved a part of a chunk, of which the catalog has no row: see the functions that are called.
fn with_a_lost_move(taken_over: bool) -> Cluster {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.router.backup();
    cluster.router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": 101}}')"));
    move_chunk(&mut cluster.router.client(), 101, "shard1").expect("a move");
    cluster.router.psql(&insert(103));
    cluster.router.restore(backup);
    if taken_over {
        take_over(&cluster);
    }
    let counting = format!("SELECT docshard.count_documents('{NS}')");
    wait_until("the shard is known to be ahead", PATIENCE, || {
        let refused = cluster.router.client().query_one(&counting, &[]).expect_err("a shard is ahead");
        let refused = refused.as_db_error().expect("an error of the server");
        refused.message().contains("is ahead of the catalog") && refused.hint().unwrap_or_default().contains("adopt")
    });
    let health: String = cluster.router.value("SELECT coalesce(string_agg(error, ' '), '') FROM docshard.health");
    assert!(health.contains("shard \"shard0\" is ahead of the catalog"), "{health}");
    cluster
}

#[test]
fn the_catalog_follows_shards_that_are_ahead() {
    for (taken_over, shard) in [(false, "shard0"), (true, "shard1")] {
        let cluster = with_a_lost_move(taken_over);
        let said = adopt(&cluster, shard).expect("it is adopted");
        let followed = &said["adopted"][0]["followed"];
        assert_eq!(
            (&followed["chunks"], &followed["shards"]),
            (&1.into(), &serde_json::json!(["shard0", "shard1"])),
            "{said}"
        );
        assert_eq!(adopt(&cluster, "shard0").expect("again")["adopted"], serde_json::json!([]));
        assert_sound(&cluster, 7, [4, 3]);
    }
}

/// Both shards have a document of the same key, so nobody knows which is right.
#[test]
fn the_catalog_does_not_follow_shards_that_contradict_each_other() {
    let cluster = with_a_lost_move(false);
    let row: String = cluster.shards[1]
        .value("SELECT format('(%L::bytea, %L::bytea, %L::jsonb)', skey, id, doc) FROM docshard_data.c1 WHERE doc ->> 'k' = '102'");
    cluster.shards[0].psql(&format!("INSERT INTO docshard_data.c1 (skey, id, doc) VALUES {row}"));
    let refused = adopt(&cluster, "shard0").expect_err("both have it");
    assert!(refused.message().contains("contradict each other"), "{refused:?}");
    assert!(refused.message().contains("from {\"k\":100} to {\"k\":{\"$maxKey\":1}}"), "{refused:?}");
    cluster.shards[0].psql("DELETE FROM docshard_data.c1 WHERE doc ->> 'k' = '102'");
    adopt(&cluster, "shard0").expect("the catalog follows");
    assert_sound(&cluster, 7, [4, 3]);
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
        // Nothing waits long for it.
        let indexing = format!("SELECT docshard.create_index('{NS}', '{{\"a\": 1}}')");
        for (waiting, code, said) in
            [(indexing, "55006", "ROLLBACK PREPARED both"), (insert(104), "55P03", "docshard.migrations")]
        {
            let began = std::time::Instant::now();
            let refused = cluster.router.client().batch_execute(&waiting).expect_err("the move is in doubt");
            let refused = refused.as_db_error().expect("an error of the server");
            assert_eq!(refused.code().code(), code, "{refused:?}");
            assert!(refused.hint().unwrap_or_default().contains(said), "{refused:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        }
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

/// Begins a change of layout, and waits until it pauses at the fault point.
fn begin_change(cluster: &Cluster, statement: String, point: &str) -> JoinHandle<Result<u64, postgres::Error>> {
    cluster.router.arm(point, Fault::Pause);
    let mut client = cluster.router.client();
    let changing = std::thread::spawn(move || client.execute(&statement, &[]));
    cluster.router.await_fault(point);
    changing
}

/// The backup is from the moment at which a change of layout reached the fault point, and the lost router has decided it since: the copy has
/// the only documents. Then the lost router executes `later`, and `before` happens before the restored one takes over.
fn restored_after_a_change(
    mut cluster: Cluster,
    statement: String,
    point: &str,
    later: &[String],
    before: impl FnOnce(&mut Cluster),
) -> Cluster {
    let changing = begin_change(&cluster, statement, point);
    let backup = cluster.router.backup();
    cluster.router.release(point);
    changing.join().expect("it ends").expect("it is decided");
    later.iter().for_each(|sql| drop(cluster.router.psql(sql)));
    before(&mut cluster);
    cluster.router.restore(backup);
    cluster
}

fn restored_in_a_change(statement: String, point: &str) -> Cluster {
    let cluster = restored_after_a_change(cluster(2), statement, point, &[], |_| ());
    take_over(&cluster);
    cluster
}

/// Waits until recovery has stored an error of a change that contains this text.
fn await_error(cluster: &Cluster, text: &str) {
    let error = "SELECT coalesce(error, '') FROM docshard.resharding WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<String>(error).contains(text)
    });
}

fn await_completion(cluster: &Cluster) {
    wait_until("the change is completed", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding WHERE state <> 'done'") == 0
    });
}

fn assert_completed(cluster: &Cluster) {
    await_completion(cluster);
    assert_eq!(count(cluster), 6);
    cluster.router.psql(&insert(103));
    let checked: Value = cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
    assert_eq!(orphans(cluster).trim(), "");
}

#[test]
fn a_change_of_layout_that_a_lost_router_has_decided_is_completed() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let cluster = restored_in_a_change(unshard, "reshard.verified");
    assert_completed(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.collections WHERE key IS NULL"), 1);
}

/// The router itself has a part of the copy, with all of its documents.
#[test]
fn a_change_of_layout_of_which_the_backup_has_its_own_part_is_completed() {
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let cluster = restored_in_a_change(reshard, "reshard.deciding");
    assert_completed(&cluster);
    let own = cluster.router.value::<i64>("SELECT count(*) FROM docshard_data.c2");
    assert!(own > 0, "the router has documents of the new layout");
}

/// The lost router has moved a chunk of the new layout since: the versions of both shards are those of the move.
#[test]
fn a_change_of_layout_whose_chunks_have_moved_since_is_completed_with_the_moves() {
    let cluster = cluster(2);
    cluster
        .router
        .psql("SELECT docshard.add_shard_to_zone('shard0', 'low'), docshard.add_shard_to_zone('shard1', 'high')");
    let reshard = format!(
        "SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}', '{{\"zones\": [\
         {{\"zone\": \"low\", \"min\": {{\"_id\": {{\"$minKey\": 1}}}}, \"max\": {{\"_id\": 2}}}}, \
         {{\"zone\": \"high\", \"min\": {{\"_id\": 2}}, \"max\": {{\"_id\": {{\"$maxKey\": 1}}}}}}]}}')"
    );
    let moved = format!("SELECT docshard.move_chunk('{NS}', '{{\"_id\": 1}}', 'shard1')");
    let cluster = restored_after_a_change(cluster, reshard, "reshard.verified", &[moved], |_| ());
    take_over(&cluster);
    assert_completed(&cluster);
}

/// The lost shard had a part of the new layout, and the former one. The surviving part shows the decision, and is kept.
#[test]
fn a_lost_shard_does_not_take_the_other_parts_of_a_decided_change_with_it() {
    let cluster = cluster(2);
    cluster
        .router
        .psql("SELECT docshard.add_shard_to_zone('shard0', 'low'), docshard.add_shard_to_zone('shard1', 'high')");
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {{\"$minKey\": 1}}}}', 'shard1')"));
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let reshard = format!(
        "SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}', '{{\"zones\": [\
         {{\"zone\": \"low\", \"min\": {{\"_id\": {{\"$minKey\": 1}}}}, \"max\": {{\"_id\": 100}}}}, \
         {{\"zone\": \"high\", \"min\": {{\"_id\": 100}}, \"max\": {{\"_id\": {{\"$maxKey\": 1}}}}}}]}}')"
    );
    let cluster =
        restored_after_a_change(cluster, reshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "shards shard1 do not answer");
    // It was the only shard of a zone that gets ranges by the change.
    let announced: Value = cluster.router.value("SELECT docshard.remove_shard('shard1', '{\"lost\": true}')::jsonb");
    let token = announced["token"].as_str().expect("a token");
    cluster
        .router
        .psql(&format!("SELECT docshard.remove_shard('shard1', '{{\"lost\": true, \"token\": \"{token}\"}}')"));
    await_completion(&cluster);
    assert_eq!(count(&cluster), 3);
    cluster.router.psql("SELECT docshard.add_shard_to_zone('shard0', 'high')");
    cluster.router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 500, \"k\": 500}}')"));
    let found = "SELECT coalesce(string_agg(f::text, '; '), '') FROM docshard.check_metadata_consistency() f";
    assert_eq!(cluster.router.value::<String>(found), "");
}

/// Two shards are lost with an unfinished move or change of layout between them. The removal of one does not wait for the other.
#[test]
fn two_lost_shards_with_parts_of_one_change_are_removed() {
    for (statement, point) in [
        (format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"), "reshard.caught_up"),
        (format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"), "move.cloned"),
        (format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"), "move.decided"),
    ] {
        let mut cluster = cluster(2);
        let changing = begin_change(&cluster, statement, point);
        cluster.router.crash();
        drop(changing.join());
        cluster.shards.iter_mut().for_each(Node::stop);
        cluster.router.clear_faults();
        cluster.router.start();
        let tokens = ["shard0", "shard1"].map(|shard| {
            let announced: Value =
                cluster.router.value(&format!("SELECT docshard.remove_shard('{shard}', '{{\"lost\": true}}')::jsonb"));
            (shard, announced["token"].as_str().expect("a token").to_owned())
        });
        // Asking about a shard is not saying that it is lost.
        let [(first, token), (second, other)] = tokens;
        let remove = |shard: &str, token: &str, also: Value| {
            let options = serde_json::json!({"lost": true, "token": token, "alsoLost": also});
            cluster.router.client().execute(&format!("SELECT docshard.remove_shard('{shard}', '{options}')"), &[])
        };
        remove(first, &token, serde_json::json!({})).expect_err("the other does not answer");
        remove(first, &token, serde_json::json!({second: token})).expect_err("another shard's token");
        wait_until("one is removed", PATIENCE, || remove(first, &token, serde_json::json!({second: other})).is_ok());
        wait_until("both are removed", PATIENCE, || remove(second, &other, serde_json::json!({})).is_ok());
        await_completion(&cluster);
        assert_eq!(count(&cluster), 0, "{point}: all documents were there");
        cluster.router.psql(&insert(103));
        assert_eq!(count(&cluster), 1, "{point}");
    }
}

/// What is written to the former layout would be lost. The router's own database has a part of it.
#[test]
fn writes_wait_until_it_is_known_what_a_lost_router_has_decided() {
    let cluster = cluster(2);
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'local')"));
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let mut cluster =
        restored_after_a_change(cluster, unshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    let refused = cluster.router.client().execute(&insert(103), &[]).expect_err("the shard may have the documents");
    let hint = refused.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("docshard.resharding"), "{refused:?}");
    let mut writer = cluster.router.client();
    let writing = std::thread::spawn(move || writer.execute(&insert(104), &[]));
    cluster.shards[1].start();
    await_completion(&cluster);
    let waited = writing.join().expect("it ends");
    assert_eq!(count(&cluster), 6 + i64::from(waited.is_ok()), "{waited:?}");
}

/// While the shard with the only documents does not answer, nothing is aborted or dropped.
#[test]
fn a_change_of_layout_waits_for_a_shard_that_may_have_the_only_documents() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let mut cluster =
        restored_after_a_change(cluster(2), unshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "shards shard1 do not answer");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("the shard may have the documents");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("do not answer")), "{refused:?}");
    cluster.shards[1].start();
    assert_completed(&cluster);
}

/// A router that was restored from a backup at `reshard.verified`, while the decision of the lost router is prepared at both shards.
fn restored_in_a_decision(before: impl FnOnce(&Cluster)) -> Cluster {
    let mut cluster = cluster(2);
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let changing = begin_change(&cluster, unshard, "reshard.verified");
    let backup = cluster.router.backup();
    cluster.router.arm("decide.prepared", Fault::Pause);
    cluster.router.release("reshard.verified");
    cluster.router.await_fault("decide.prepared");
    cluster.router.crash();
    drop(changing.join());
    before(&cluster);
    cluster.router.restore(backup);
    take_over(&cluster);
    cluster
}

/// The donor has committed the decision, and the recipient has not: only the missing table shows it, so an administrator confirms it.
#[test]
fn a_change_of_layout_that_only_a_donor_shows_is_completed_when_it_is_confirmed() {
    let cluster = restored_in_a_decision(|cluster| end_prepared("COMMIT", &cluster.shards[0]));
    await_error(&cluster, "has not ended may decide");
    end_prepared("ROLLBACK", &cluster.shards[1]);
    await_error(&cluster, "may lack documents");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    assert_completed(&cluster);
}

/// A donor was restored from a backup that is older than the collection, and the router only restarted: the missing table shows no decision
/// while the other donor has its documents.
#[test]
fn a_restored_donor_does_not_complete_a_change_of_layout() {
    let mut cluster = cluster(2);
    let backup = cluster.shards[0].backup();
    cluster.router.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    cluster.router.psql("SELECT docshard.shard_collection('other.things', '{\"k\": 1}')");
    cluster.router.psql(
        "SELECT docshard.insert_many('other.things', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(1, 6) k",
    );
    cluster.router.psql("SELECT docshard.split_at('other.things', '{\"k\": 4}')");
    cluster.router.psql("SELECT docshard.move_chunk('other.things', '{\"k\": 4}', 'shard1')");
    let unshard = "SELECT docshard.unshard_collection('other.things', 'shard1')".to_owned();
    let changing = begin_change(&cluster, unshard, "reshard.prepared");
    cluster.router.crash();
    drop(changing.join());
    cluster.shards[0].restore(backup);
    cluster.router.clear_faults();
    cluster.router.start();
    await_error(&cluster, "may be decided");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 3);
}

/// As before, with one donor: the missing table alone does not show a decision. What an administrator confirms is what recovery has asked.
#[test]
fn a_restored_donor_of_a_collection_on_one_shard_does_not_complete_a_change_of_layout() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.shards[0].backup();
    cluster.router.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    cluster.router.psql("SELECT docshard.insert_one('other.things', '{\"_id\": 1}')");
    let moved = "SELECT docshard.move_collection('other.things', 'shard1')".to_owned();
    let changing = begin_change(&cluster, moved, "reshard.prepared");
    cluster.router.crash();
    drop(changing.join());
    cluster.shards[0].stop();
    cluster.router.clear_faults();
    cluster.router.start();
    await_error(&cluster, "do not answer");
    let commit = "SELECT docshard.commit_reshard_collection('other.things')";
    let refused = cluster.router.client().execute(commit, &[]).expect_err("it is not known what is missing");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("do not answer")), "{refused:?}");
    cluster.shards[0].restore(backup);
    await_error(&cluster, "may lack documents");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c3"), 0);
    cluster.router.psql(commit);
    await_completion(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('other.things')"), 0);
}

/// The router and a shard of the new layout were restored. The administrator takes what the other shards have.
#[test]
fn a_change_of_layout_of_which_a_shard_has_lost_its_part_is_completed_without_it() {
    let cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.shards[1].backup();
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let cluster =
        restored_after_a_change(cluster, reshard, "reshard.deciding", &[], |cluster| cluster.shards[1].restore(backup));
    take_over(&cluster);
    await_error(&cluster, "shards shard1 lack documents of the copy");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    await_completion(&cluster);
    cluster.router.psql("SELECT docshard.accept_shard('shard1', '{\"adopt\": true}')");
    cluster.router.psql("SELECT docshard.accept_shard('shard0', '{\"adopt\": true}')");
    let left = count(&cluster);
    assert!((1..6).contains(&left), "{left}");
    cluster.router.psql(&insert(103));
    assert_eq!(count(&cluster), left + 1);
}

/// A shard of both layouts was restored to the moment before the decision: it has the old version of the copy, without its documents, and the
/// former table with them.
#[test]
fn a_change_of_layout_is_not_completed_if_a_shard_has_lost_its_part() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    cluster.router.psql("SELECT docshard.remove_shard('local')");
    let changing = begin_change(&cluster, reshard, "reshard.prepared");
    let (router, shard) = (cluster.router.backup(), cluster.shards[1].backup());
    cluster.router.release("reshard.prepared");
    changing.join().expect("it ends").expect("it is decided");
    cluster.shards[1].restore(shard);
    cluster.router.restore(router);
    take_over(&cluster);
    await_error(
        &cluster,
        "shards shard1 have an older version of it, and may lack documents, and shards shard1 have the former table",
    );
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c1"), 3);
}

/// The router has the whole copy, as old as the backup, and a donor is lost. Its removal asks, and completes the change when that is confirmed.
#[test]
fn the_removal_of_a_lost_shard_completes_a_change_of_layout_when_that_is_confirmed() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let cluster = cluster(2);
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    let cluster =
        restored_after_a_change(cluster, unshard, "reshard.verified", &[], |cluster| cluster.shards[0].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "do not answer");
    let announced: Value = cluster.router.value("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')::jsonb");
    let token = announced["token"].as_str().expect("a token");
    let remove = |completes: &str| {
        let options = format!("{{\"lost\": true, \"token\": \"{token}\"{completes}}}");
        cluster.router.client().execute(&format!("SELECT docshard.remove_shard('shard0', '{options}')"), &[])
    };
    let asked = remove("").expect_err("the router's part may be older");
    let hint = asked.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("completeChanges"), "{asked:?}");
    remove(", \"completeChanges\": true").expect("it is removed");
    await_completion(&cluster);
    assert_eq!(count(&cluster), 6);
}

/// The only donor has committed the decision and is lost, with the router, which has rolled the recipient's part back since: the copy has the only
/// documents, and nothing shows it. In the second case, a part of the copy is on the router itself.
#[test]
fn the_removal_of_a_lost_shard_does_not_drop_what_may_be_the_only_copy() {
    for (statement, lost, left) in [
        (format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"), 0, 6),
        (format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')"), 1, 0),
    ] {
        let cluster = cluster(2);
        if lost == 1 {
            cluster.router.psql("SELECT docshard.remove_shard('shard0')");
        }
        let changing = begin_change(&cluster, statement, "reshard.verified");
        let mut cluster = cluster;
        let backup = cluster.router.backup();
        cluster.router.release("reshard.verified");
        changing.join().expect("it ends").expect("it is decided");
        if lost == 0 {
            // As after a rollback of the part that shard1 has prepared.
            cluster.shards[1].psql("UPDATE docshard_data.placement SET version = 1");
        }
        cluster.shards[lost].stop();
        cluster.router.restore(backup);
        cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
        await_error(&cluster, "do not answer");
        let name = format!("shard{lost}");
        let announced: Value =
            cluster.router.value(&format!("SELECT docshard.remove_shard('{name}', '{{\"lost\": true}}')::jsonb"));
        let remove = |completes: Value| {
            let mut options = serde_json::json!({"lost": true, "token": announced["token"]});
            if completes.is_boolean() {
                options["completeChanges"] = completes;
            }
            cluster.router.client().execute(&format!("SELECT docshard.remove_shard('{name}', '{options}')"), &[])
        };
        let asked = remove(Value::Null).expect_err("it may be decided");
        let message = asked.as_db_error().map(|error| error.message()).unwrap_or_default();
        assert!(message.contains("may be decided"), "{asked:?}");
        remove(true.into()).expect("it is removed");
        await_completion(&cluster);
        let found = count(&cluster);
        assert!(if left == 6 { found == 6 } else { (1..6).contains(&found) }, "{found}");
    }
}

/// Nothing is aborted or dropped while the administrator may still commit what the lost router has prepared.
#[test]
fn a_change_of_layout_waits_for_the_end_of_prepared_transactions() {
    let cluster = restored_in_a_decision(|_| ());
    await_error(&cluster, "has not ended may decide");
    cluster.shards.iter().for_each(|shard| end_prepared("COMMIT", shard));
    assert_completed(&cluster);
}

/// The lost router has dropped the collection since. Its change is over, and the router's own part is left for the administrator.
#[test]
fn a_change_of_layout_of_a_collection_that_was_dropped_since_is_ended() {
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let dropped = format!("SELECT docshard.drop_collection('{NS}')");
    let cluster = restored_after_a_change(cluster(2), reshard, "reshard.deciding", &[dropped], |_| ());
    take_over(&cluster);
    await_completion(&cluster);
    assert!(orphans(&cluster).contains("local|docshard_data.c2"), "{}", orphans(&cluster));
    cluster.router.psql(&format!("SELECT docshard.drop_collection('{NS}')"));
    cluster.router.psql(&insert(1));
    assert_eq!(count(&cluster), 1);
}

/// The lost router has aborted its change, whose copy stayed at a shard that was down, and has decided another one since. The missing table does
/// not show the first one's decision.
#[test]
fn an_aborted_change_is_not_completed_instead_of_a_later_one() {
    let mut cluster = cluster(2);
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let changing = begin_change(&cluster, unshard, "reshard.caught_up");
    let backup = cluster.router.backup();
    cluster.shards[1].stop();
    cluster.router.release("reshard.caught_up");
    changing.join().expect("it ends").expect_err("the recipient is down");
    cluster.router.psql(&format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    cluster.router.psql(&insert(103));
    cluster.router.restore(backup);
    cluster.shards[1].start();
    take_over(&cluster);
    await_error(&cluster, "which the catalog does not know");
    assert_eq!(cluster.shards[0].value::<i64>("SELECT count(*) FROM docshard_data.c3"), 7);
}

/// A request before the failover to let writers wait is not a consent to take the router's own part.
#[test]
fn a_copy_on_the_router_needs_a_consent_of_its_own() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let mut cluster = cluster(2);
    let changing = begin_change(&cluster, unshard, "reshard.verified");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    let backup = cluster.router.backup();
    cluster.router.release("reshard.verified");
    changing.join().expect("it ends").expect("it is decided");
    cluster.router.restore(backup);
    take_over(&cluster);
    await_error(&cluster, "own part may be missing");
}

/// The router has the whole copy, which is as old as the backup, and the former table is gone.
#[test]
fn a_copy_on_the_router_is_not_dropped_when_the_former_table_is_gone() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let cluster = restored_in_a_change(unshard, "reshard.verified");
    await_error(&cluster, "have dropped the former table");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("it is decided");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
    recover(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_data.c2"), 6);
    // What statements say does not lead to an empty table.
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let refused = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = refused.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("docshard.resharding"), "{refused:?}");
    assert_eq!(
        cluster.router.psql("SELECT type FROM docshard.check_metadata_consistency() WHERE repair LIKE '%adopt%'"),
        ""
    );
    // An administrator takes it as it is.
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    assert_completed(&cluster);
}

/// The router itself has a part of the copy, which is as old as the backup: it cannot be completed, and nothing may be dropped.
#[test]
fn a_change_of_layout_that_the_backup_has_only_a_part_of_is_left_to_the_administrator() {
    let cluster = restored_in_a_change(
        format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}')"),
        "reshard.verified",
    );
    let stored = |node: &Node| {
        let table: String = node.value("SELECT 'docshard_data.c' || collection_id FROM docshard_data.placement");
        node.value::<i64>(&format!("SELECT count(*) FROM {table}"))
    };
    let documents = || cluster.shards.iter().map(stored).sum::<i64>();
    let before = documents();
    assert!(before > 0, "the shards have documents of the new layout");
    await_error(&cluster, "may be decided");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("it is decided");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
    recover(&cluster);
    assert_eq!(documents(), before);
}

/// The lost router has added a shard and moved the collection there: no statement or repair makes it empty.
#[test]
fn a_router_that_lacks_a_shard_makes_no_collection_empty() {
    let mut cluster = Cluster::start(1);
    cluster.router.psql("SELECT docshard.stop_balancer(), docshard.enable_sharding('test', 'shard0')");
    cluster.router.psql(&insert(1));
    let backup = cluster.router.backup();
    cluster.add_server(Installation::private());
    cluster.router.add_shard(&cluster.shards[1]);
    cluster.router.psql(&format!("SELECT docshard.move_collection('{NS}', 'shard1')"));
    cluster.router.restore(backup);
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    wait_until("the router has the shard's lock", PATIENCE, || cluster.lock_holders()[0] == Some(true));
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = error.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("add_shard") && !hint.contains("adopt"), "{error:?}");
    let adopt = "SELECT docshard.accept_shard('shard0', '{\"adopt\": true}')";
    let refused = cluster.router.psql_script("postgres", &[], adopt);
    assert!(refused.contains("its documents may be in shard") || refused.contains("\"failed\""), "{refused}");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 1);
    assert_eq!(cluster.shards[0].psql("SELECT to_regclass('docshard_data.c1')"), "\n");
}

/// The backup is from before a change of layout: the shards have only a table that it does not know.
#[test]
fn a_router_that_lacks_a_change_of_layout_says_so() {
    let mut cluster = cluster(2);
    // The counters would show that the catalog is older.
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.router.backup();
    cluster.router.psql(&format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"));
    cluster.router.restore(backup);
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let error = error.as_db_error().expect("an error of the server");
    let (message, hint) = (error.message(), error.hint().unwrap_or_default());
    assert!(message.contains("the catalog has lost its last commits"), "{error:?}");
    assert!(
        message.contains("docshard_data.c2 on shard \"shard1\"") && !message.contains("shard0\" has lost"),
        "{error:?}"
    );
    assert!(hint.contains("list_orphaned_relations") && !hint.contains("adopt"), "{error:?}");
    let of_health = "SELECT coalesce(error, '') FROM docshard.health WHERE shard = 'shard0'";
    let shown: String = cluster.router.value(of_health);
    assert!(shown.contains("the catalog has lost its last commits"), "{shown}");
    let repairs = "SELECT count(*), count(repair) FROM docshard.check_metadata_consistency()";
    let row = cluster.router.client().query_one(repairs, &[]).expect("findings");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 0));
    recover(&cluster);
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 6);
    assert!(orphans(&cluster).contains("c2"));
    // No repair makes the collection empty, also while the shard that has the documents is down.
    let refused = adopt(&cluster, "shard0").expect_err("the documents are elsewhere");
    assert!(refused.message().contains("docshard_data.c2 on shard \"shard1\""), "{refused:?}");
    cluster.shards[1].stop();
    let refused = adopt(&cluster, "shard0").expect_err("the documents may be elsewhere");
    assert!(refused.message().contains("\"shard1\", which does not answer"), "{refused:?}");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = error.as_db_error().and_then(|error| error.hint().map(str::to_owned)).unwrap_or_default();
    assert!(!hint.contains("adopt"), "{error:?}");
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
