//! Moves that the lost router, or a former server of the router, had begun or decided.

use crate::{NS, PATIENCE, adopt, cluster, count, end_prepared, insert, prepared, recover, take_over, there};
use docshard_tests::moving::{move_chunk, start_move};
use docshard_tests::{Cluster, Fault, Node, wait_until};
use serde_json::Value;
use std::time::Duration;

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
