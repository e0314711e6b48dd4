//! Moves under writers and readers.

use crate::{point_read, upsert, with_old_map};
use docshard_tests::moving::{Moving, NS, count, delete, increment, insert, sqlstate};
use docshard_tests::{Fault, wait_until};
use postgres::Client;
use std::time::{Duration, Instant};

#[test]
fn i01_writers_that_wait_for_the_moves_lock_write_at_the_recipient() {
    let mut moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.arm("move.frozen", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.frozen");
    let update = moving.spawn(increment(1));
    let insert = moving.spawn(insert(2, 1_002));
    let upsert = moving.spawn(upsert(-3));
    let nothing = moving.spawn_value::<serde_json::Value>(delete(4, 99_999));
    let delete = moving.spawn(delete(5, 5));
    moving.await_waiting("shard0", 5);
    router.release("move.frozen");
    mover.join().unwrap().expect("a move");
    for writer in [update, insert, upsert, delete] {
        writer.join().unwrap().expect("a write of one statement never fails");
    }
    assert_eq!(nothing.join().unwrap().expect("a delete")["deletedCount"], 0);
    assert_eq!(moving.owner(), "shard1");
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    assert_eq!(moving.field(-3, "n").as_deref(), Some("1"));
    assert_eq!(moving.field(5, "n"), None);
    assert_eq!(moving.halves(), (0, 101));
    // Two documents were inserted and one was deleted.
    moving.documents += 1;
    assert_eq!(count(&mut moving.cluster.router.client()), moving.documents);
    moving.check_clean();
}

#[test]
fn i02_a_snapshot_from_before_the_capture_writes_after_the_drain() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let mut old = router.client();
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(count(&mut old), 200);
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");
    // The move has already copied what this transaction writes. Its writes are captured although its snapshot does not contain
    // the capture.
    for k in [1, 99] {
        old.batch_execute(&increment(k)).expect("nothing was handed over");
    }
    router.release("move.cloned");
    wait_until("handing over", Duration::from_secs(60), || moving.step() == "handing over");
    // While it is open it postpones the hand-over.
    old.batch_execute(&increment(50)).expect("nothing was handed over");
    assert_eq!(moving.step(), "handing over");
    old.batch_execute("COMMIT").expect("nothing was handed over");
    mover.join().unwrap().expect("a move");
    for k in [1, 50, 99] {
        assert_eq!(moving.field(k, "n").as_deref(), Some("1"), "document {k}");
    }
    moving.check();
}

#[test]
fn i03_a_snapshot_from_before_the_hand_over_fails_after_it() {
    let moving = Moving::start(200);
    for (sql, what) in [
        (insert(1, 1_001), "an insert"),
        (increment(1), "an update"),
        (increment(199), "an update of another chunk"),
        (delete(1, 1), "a delete"),
        (point_read(1), "a read"),
        (format!("SELECT docshard.count_documents('{NS}')"), "a count"),
    ] {
        let mut old = moving.cluster.router.client();
        old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        assert_eq!(count(&mut old), 200);
        moving.move_to(&moving.other()).expect("a move");
        let error = old.batch_execute(&sql).expect_err(what);
        assert_eq!(sqlstate(&error), "40001", "{what}: {error:?}");
        old.batch_execute("ROLLBACK").unwrap();
        moving.check();
    }
}

#[test]
fn i04_a_map_from_before_a_split_or_merge_meets_the_hand_over() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let mut expected = 0;
    for (change, back) in [
        (
            format!("SELECT docshard.split_at('{NS}', '{{\"k\": 50}}')"),
            format!("SELECT docshard.merge_chunks('{NS}', '[{{\"k\": {{\"$minKey\": 1}}}}, {{\"k\": 100}}]')"),
        ),
        (
            format!("SELECT docshard.merge_chunks('{NS}', '[{{\"k\": {{\"$minKey\": 1}}}}, {{\"k\": 100}}]')"),
            format!("SELECT docshard.split_at('{NS}', '{{\"k\": 50}}')"),
        ),
    ] {
        // A writer to the moving part waits, and then writes at the recipient. A writer to the other part does not wait in the
        // first case, and writes to the moving chunk in the second.
        for k in [10, 90] {
            let writer = with_old_map(&moving, || moving.spawn(increment(k)));
            moving.run(&change);
            router.arm("move.frozen", Fault::Pause);
            let mover = moving.start_move(&moving.other());
            router.await_fault("move.frozen");
            router.release("dispatch.sending");
            if k == 90 && change.contains("split_at") {
                writer.join().unwrap().expect("it is beside the moving chunk");
                router.release("move.frozen");
            } else {
                moving.await_waiting("shard0", 1);
                router.release("move.frozen");
                writer.join().unwrap().expect("a write");
            }
            mover.join().unwrap().expect("a move");
            moving.move_to("shard0").expect("a move back");
            moving.run(&back);
        }
        moving.run(&change);
        expected += 1;
        for k in [10, 90] {
            assert_eq!(moving.field(k, "n"), Some(expected.to_string()), "document {k}");
        }
    }
    moving.check();
}

/// The points inside the hand-over in order. For each: whether a read with the old map is answered there, and whether a write
/// is.
const HAND_OVER: [(&str, bool, bool); 9] = [
    ("move.frozen", true, false),
    ("move.deleting", true, false),
    ("move.last_round", true, false),
    ("move.recipient_prepared", true, false),
    ("move.prepared", true, false),
    ("move.decided", true, false),
    ("move.donor_committed", false, false),
    ("move.recipient_committed", true, true),
    ("move.flipped", true, true),
];

#[test]
fn i05_a_read_with_the_old_map_is_never_older_than_a_write_with_the_new() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for (round, (point, reads_go_on, writes_go_on)) in HAND_OVER.into_iter().enumerate() {
        let round = i64::try_from(round).unwrap();
        router.arm(point, Fault::Pause);
        let donor = moving.owner();
        let reader = with_old_map(&moving, || moving.spawn_value::<i64>(point_read(1)));
        let mover = moving.start_move(&moving.other());
        router.await_fault(point);
        let writer = moving.spawn(increment(1));
        if writes_go_on {
            writer.join().unwrap().expect("a write");
            router.release("dispatch.sending");
            assert_eq!(reader.join().unwrap().expect("a read"), round + 1, "{point}: the write was acknowledged");
            router.release(point);
        } else {
            if reads_go_on {
                moving.await_waiting(&donor, 1);
                router.release("dispatch.sending");
                assert_eq!(reader.join().unwrap().expect("a read"), round, "{point}: nobody has written");
                router.release(point);
            } else {
                router.release("dispatch.sending");
                router.release(point);
                let read = reader.join().unwrap().expect("a read");
                assert!((round..=round + 1).contains(&read), "{point}: read {read} in round {round}");
            }
            writer.join().unwrap().expect("a write");
        }
        mover.join().unwrap().expect("a move");
        assert_eq!(moving.field(1, "n"), Some((round + 1).to_string()), "{point}");
        moving.check();
    }
}

#[test]
fn i06_a_scatter_that_sees_the_donor_before_and_the_recipient_after() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let find = format!("SELECT count(DISTINCT d->>'_id') FROM docshard.find('{NS}', '{{}}') d");
    let count = format!("SELECT docshard.count_documents('{NS}')");
    for sql in [&count, &find, &count, &find] {
        // `shard0` is asked first. It is the donor in the first round and the recipient in the second.
        moving.cluster.shards[0].arm("read.checking", Fault::Pause);
        router.arm("dispatch.sent", Fault::Pause);
        let scatter = moving.spawn_value::<i64>(sql.clone());
        router.await_fault("dispatch.sent");
        moving.cluster.shards[0].await_fault("read.checking");
        moving.move_to(&moving.other()).expect("a move");
        router.release("dispatch.sent");
        moving.cluster.shards[0].release("read.checking");
        assert_eq!(scatter.join().unwrap().expect("a scatter"), 200, "{sql}");
    }
    moving.check();
}

#[test]
fn i07_a_broadcast_update_checked_early_and_executed_late() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let broadcast = format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    // The recipient has checked the version. The donor waits for the hand-over, and then finds its version stale.
    router.arm("move.frozen", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.frozen");
    let writer = moving.spawn(&broadcast);
    moving.await_waiting("shard0", 1);
    router.release("move.frozen");
    writer.join().unwrap().expect("nothing was written before all had checked");
    mover.join().unwrap().expect("a move");
    // Both shards have checked the version, and none has written: the hand-over must wait.
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard0");
    router.await_fault("move.cloned");
    router.arm("dispatch.checked", Fault::Pause);
    let writer = moving.spawn(&broadcast);
    router.await_fault("dispatch.checked");
    router.release("move.cloned");
    wait_until("handing over", Duration::from_secs(60), || moving.step() == "handing over");
    router.release("dispatch.checked");
    writer.join().unwrap().expect("a write");
    mover.join().unwrap().expect("a move");
    let sql = format!("SELECT string_agg(DISTINCT d->>'n', ' ') FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(moving.cluster.router.value::<String>(&sql), "2", "each document was incremented twice");
    moving.check();
}

/// The router is a shard, too: one of its chunks moves away after it has checked its map, before it writes.
#[test]
fn a_map_that_grows_old_between_check_and_write_at_the_router_itself() {
    let moving = Moving::start(10);
    let router = &moving.cluster.router;
    moving.run(
        "SELECT docshard.enable_sharding('here', 'local'); SELECT docshard.shard_collection('here.c', '{\"k\": 1}'); \
         SELECT docshard.split_at('here.c', '{\"k\": 100}'); SELECT docshard.insert_one('here.c', '{\"_id\": 1, \"k\": 1}')",
    );
    let writes = [
        "SELECT docshard.update_one('here.c', '{\"k\": 1}', '{\"$inc\": {\"n\": 1}}')",
        "SELECT docshard.insert_one('here.c', '{\"_id\": 2, \"k\": 1}')",
        "SELECT docshard.delete_one('here.c', '{\"k\": 1, \"_id\": 1}')",
    ];
    for (write, to) in writes.into_iter().zip(["shard0", "local", "shard1"]) {
        router.arm("move.cloned", Fault::Pause);
        let mover = moving.spawn(format!("SELECT docshard.move_chunk('here.c', '{{\"k\": 100}}', '{to}')"));
        router.await_fault("move.cloned");
        router.arm("dispatch.writing", Fault::Pause);
        let writer = moving.spawn(write);
        router.await_fault("dispatch.writing");
        router.release("move.cloned");
        mover.join().unwrap().expect("a move");
        router.release("dispatch.writing");
        writer.join().unwrap().unwrap_or_else(|e| panic!("{write}: {e:?}"));
    }
    let found = router.value::<String>("SELECT string_agg(d::text, ' ') FROM docshard.find('here.c') d");
    assert_eq!(found, r#"{"k": 1, "_id": 2}"#);
}

#[test]
fn i08_commits_between_reading_and_applying_the_log() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");
    // This transaction has the lowest numbers in the log, and commits last.
    let mut late = router.client();
    late.batch_execute(&format!("BEGIN; {}; {}", increment(1), delete(90, 90))).unwrap();
    moving.run(&increment(2));
    moving.run(&format!(
        "BEGIN; {}; SAVEPOINT a; {}; {}; ROLLBACK TO a; {}; COMMIT",
        increment(3),
        increment(4),
        delete(5, 5),
        increment(6)
    ));
    router.arm("move.pulled", Fault::Pause);
    router.release("move.cloned");
    router.await_fault("move.pulled");
    // No round has read these changes yet; some are of documents that the current round has read.
    moving.run(&increment(2));
    moving.run(&increment(7));
    router.arm("move.applied", Fault::Pause);
    router.release("move.pulled");
    router.await_fault("move.applied");
    late.batch_execute("COMMIT").unwrap();
    moving.run(&increment(8));
    router.release("move.applied");
    mover.join().unwrap().expect("a move");
    for (k, n) in [(1, "1"), (2, "2"), (3, "1"), (4, "0"), (5, "0"), (6, "1"), (7, "1"), (8, "1"), (9, "0")] {
        assert_eq!(moving.field(k, "n").as_deref(), Some(n), "document {k}");
    }
    assert_eq!(moving.field(90, "n"), None);
    moving.run(&insert(90, 90));
    moving.check();
}

#[test]
fn i09_a_document_changes_its_shard_key_into_and_out_of_the_range() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let table = moving.table();
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");
    // 160 and 170 are outside the range on the donor, 120 is on the recipient.
    let rekey = |from: i64, to: i64| {
        format!(
            "UPDATE {table} SET skey = docshard_internal.shard_key('{{\"k\": {to}}}', '{{\"k\": 1}}'), \
             doc = doc || '{{\"k\": {to}, \"from\": {from}}}' WHERE doc->>'k' = '{from}'"
        )
    };
    let mut donor = moving.cluster.shards[0].client();
    for (from, to) in [(160, 10), (11, 170), (12, 13)] {
        donor.batch_execute(&rekey(from, to)).unwrap();
    }
    donor.batch_execute(&format!("BEGIN; {}; ROLLBACK", rekey(14, 171))).unwrap();
    // A client changes the key to one of another shard, in one transaction.
    let rebirth = |from: i64, to: i64| {
        let document = format!("{{\"_id\": {from}, \"k\": {to}, \"from\": {from}}}");
        format!("BEGIN; {}; SELECT docshard.insert_one('{NS}', '{document}'); COMMIT", delete(from, from))
    };
    moving.run(&rebirth(120, 15));
    moving.run(&rebirth(16, 121));
    router.release("move.cloned");
    mover.join().unwrap().expect("a move");
    let sql = format!(
        "SELECT string_agg((d->>'from') || '>' || (d->>'k'), ' ' ORDER BY (d->>'from')::int) \
         FROM docshard.find('{NS}', '{{\"from\": {{\"$exists\": true}}}}') d"
    );
    assert_eq!(router.value::<String>(&sql), "11>170 12>13 16>121 120>15 160>10");
    // Each document is on the owner of its new key.
    for (from, to) in [(160, 10), (11, 170), (12, 13), (120, 15), (16, 121)] {
        let sql = format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"k\": {to}, \"_id\": {from}}}')",);
        assert_eq!(router.value::<i64>(&sql), 1, "{from} > {to}");
    }
    moving.check();
}

#[test]
fn unique_values_change_places_between_two_parts_of_a_clone() {
    let moving = Moving::start(20);
    let router = &moving.cluster.router;
    moving.run(&format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}', '{{\"unique\": true}}')"));
    // Large documents, so that the clone has many parts.
    moving.run(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', 5, 'u', jsonb_build_array(n, -n), \
         'pad', repeat(md5(n::text), 6000)))) FROM generate_series(1000, 1099) AS n"
    ));
    router.arm("move.cloning", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloning");
    // The first document was copied with a value that the last document takes over; the last one is copied later, with that
    // value.
    let set = |id: i64, u: &str| {
        format!("SELECT docshard.update_one('{NS}', '{{\"k\": 5, \"_id\": {id}}}', '{{\"$set\": {{\"u\": {u}}}}}')")
    };
    moving.run(&set(1000, "[\"x\"]"));
    moving.run(&set(1099, "[1000, 1099]"));
    moving.run(&set(1000, "[-1099]"));
    router.release("move.cloning");
    mover.join().unwrap().expect("a move");
    assert_eq!(moving.owner(), "shard1");
    for (id, u) in [(1000, "[-1099]"), (1099, "[1000, 1099]"), (1050, "[1050, -1050]")] {
        let found: String =
            router.value(&format!("SELECT d->>'u' FROM docshard.find('{NS}', '{{\"k\": 5, \"_id\": {id}}}') d"));
        assert_eq!(found, u, "{id}");
    }
    let error = router.client().batch_execute(&set(1050, "1000")).expect_err("it is taken");
    assert_eq!(sqlstate(&error), "23505");
    assert_eq!(count(&mut router.client()), 120);
    moving.check_clean();
}

/// The donor's part of a hand-over, run manually: other statements wait until its session confirms the end, or until a timeout.
#[test]
fn an_excluded_writer_stands_by_for_the_end_of_the_hand_over() {
    let moving = Moving::start(200);
    let donor = &moving.cluster.shards[0];
    let (collection, token): (i32, i64) = {
        let row =
            donor.client().query_one("SELECT collection_id, token FROM docshard_data.placement", &[]).expect("one");
        (row.get(0), row.get(1))
    };
    let mut handing_over = donor.client();
    handing_over
        .batch_execute(&format!(
            "INSERT INTO docshard_data.capture (collection_id, migration_id, min) VALUES ({collection}, 77, ''); \
             BEGIN; SELECT docshard_internal.exclude_range_writers(77); COMMIT"
        ))
        .expect("a hand-over");
    // The class is 0xD0CA, which the view shows as a signed number of two bytes.
    let held = "SELECT count(*) FROM pg_locks WHERE objid = 77 AND objsubid::int8 & 65535 = 53450 AND granted";
    assert_eq!(donor.value::<i64>(held), 1);
    let write = |client: &mut Client| {
        let sql = format!("SELECT docshard_internal.lock_and_check({collection}, {token}, -1, NULL, NULL)");
        let error = client.batch_execute(&sql).expect_err("a stale version");
        assert_eq!(error.code().map(|code| code.code()), Some("DS001"));
    };
    let began = Instant::now();
    write(&mut donor.client());
    assert!(began.elapsed() >= Duration::from_millis(100));
    handing_over.batch_execute("SELECT docshard_internal.release_range_writers(77)").expect("an end");
    assert_eq!(donor.value::<i64>(held), 0);
    write(&mut donor.client());
    donor.psql("DELETE FROM docshard_data.capture WHERE migration_id = 77");
    moving.check_clean();
}
