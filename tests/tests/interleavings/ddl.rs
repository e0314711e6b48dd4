//! Moves that meet other changes of their collection.

use crate::BEFORE_THE_DECISION;
use docshard_tests::moving::{Moving, NS, PATIENCE, increment, insert};
use docshard_tests::{Fault, wait_until};

/// Statements that change the collection's chunks or indexes, or drop it.
fn changes() -> [(&'static str, String); 7] {
    [
        ("create_index", format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')")),
        ("drop_index", format!("SELECT docshard.drop_index('{NS}', 'old_1')")),
        ("drop", format!("SELECT docshard.drop_collection('{NS}')")),
        ("split", format!("SELECT docshard.split_at('{NS}', '{{\"k\": 50}}')")),
        ("split of another chunk", format!("SELECT docshard.split_at('{NS}', '{{\"k\": 120}}')")),
        ("merge", format!("SELECT docshard.merge_chunks('{NS}', '[{{\"k\": 50}}, {{\"k\": 150}}]')")),
        ("a second move", format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', 'local')")),
    ]
}

/// What another session changes while a statement is compared with the catalogs before it is not blamed on that statement.
#[test]
fn a_statement_is_not_blamed_for_another_ones_change() {
    const INDEXES: usize = 8;
    let moving = Moving::start(20);
    for n in 0..INDEXES {
        moving.run(&format!("SELECT docshard.create_index('{NS}', '{{\"n{n}\": 1}}')"));
    }
    let mut dropped = 0;
    let mut drop_one = || {
        moving.run(&format!("SELECT docshard.drop_index('{NS}', 'n{dropped}_1')"));
        dropped += 1;
        dropped
    };
    let shard = &moving.cluster.shards[0];
    shard.psql("CREATE TABLE mine (a int)");
    let mut holder = shard.client();
    holder.batch_execute("BEGIN; LOCK mine").expect("a lock");
    shard.arm("guard.read_before", Fault::Pause);
    let mut other = shard.client();
    let altering = std::thread::spawn(move || other.batch_execute("ALTER TABLE mine ALTER a SET DEFAULT 1"));
    let waits =
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE mine%' AND wait_event_type = 'Lock'";
    wait_until("the statement waits", PATIENCE, || shard.value(waits));
    // It learns that the collection's table has changed, and so compares it, too, in several queries.
    drop_one();
    holder.batch_execute("COMMIT").expect("an end");
    let mut last = 1;
    wait_until("the statement ends", PATIENCE, || {
        if shard.reached("guard.read_before").is_some() {
            last = drop_one();
            shard.rearm("guard.read_before", Fault::Pause);
        }
        altering.is_finished()
    });
    shard.release("guard.read_before");
    altering.join().unwrap().expect("it has changed no table of docshard's");
    assert!((3..INDEXES).contains(&last), "{last} indexes were dropped");
}

#[test]
fn i15_changes_of_the_collection_wait_while_a_chunk_moves() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    moving.run(&format!("SELECT docshard.create_index('{NS}', '{{\"old\": 1}}')"));
    for point in
        ["move.registered", "move.cloned", "move.frozen", "move.prepared", "move.decided", "move.donor_committed"]
    {
        router.arm(point, Fault::Pause);
        let mover = moving.start_move(&moving.other());
        router.await_fault(point);
        for (what, sql) in changes() {
            let mut client = router.client();
            client.batch_execute("SET lock_timeout = '100ms'").unwrap();
            let error = client.batch_execute(&sql).expect_err(what);
            let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or_default().to_owned();
            let code = if what == "a second move" { "117" } else { "24 (LockTimeout)" };
            assert!(detail.contains(code), "{what} at {point}: {error:?}");
        }
        router.release(point);
        mover.join().unwrap().expect("a move");
        moving.check();
    }
    // The map has changed, and only the clean-up remains.
    router.arm("move.flipped", Fault::Pause);
    let mover = moving.start_move(&moving.other());
    router.await_fault("move.flipped");
    for (what, sql) in
        changes().into_iter().filter(|(what, _)| matches!(*what, "create_index" | "drop_index" | "split"))
    {
        router.client().batch_execute(&sql).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    }
    router.release("move.flipped");
    mover.join().unwrap().expect("a move");
    moving.check();
    // The collection is dropped while leftovers of a move exist.
    router.arm("move.flipped", Fault::Pause);
    let mover = moving.start_move(&moving.other());
    router.await_fault("move.flipped");
    moving.run(&format!("SELECT docshard.drop_collection('{NS}')"));
    router.release("move.flipped");
    mover.join().unwrap().expect("a move");
    moving.check_clean();
}

/// PostgreSQL locks all members of an extension before it checks whether the extension may be dropped. A move holds locks on
/// them, and waits for others.
#[test]
fn a_drop_of_the_extension_is_refused_at_once_while_a_chunk_moves() {
    let moving = Moving::start(20);
    let router = &moving.cluster.router;
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move(&moving.other());
    router.await_fault("move.cloned");
    let mut client = router.client();
    client.batch_execute("SET statement_timeout = '20s'").unwrap();
    let error = client.batch_execute("DROP EXTENSION docshard CASCADE").expect_err("a cluster needs it");
    assert_eq!(error.code().map(|code| code.code()), Some("2BP01"), "{error:?}");
    // A role that may not drop it learns nothing about the cluster.
    moving.run("CREATE ROLE nobody_special");
    client.batch_execute("SET ROLE nobody_special").unwrap();
    let error = client.batch_execute("DROP EXTENSION docshard").expect_err("somebody else's");
    assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{error:?}");
    router.release("move.cloned");
    mover.join().unwrap().expect("a move");
    moving.check();
}

#[test]
fn i15_innocent_writers_go_on_at_every_step_while_one_stays_in_the_way() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let mut expected = 0;
    for point in BEFORE_THE_DECISION.into_iter().chain(["move.decided"]) {
        let frozen = ["move.frozen", "move.deleting", "move.last_round", "move.recipient_prepared", "move.prepared"];
        let handing_over = frozen.contains(&point) || point == "move.decided";
        router.arm(point, Fault::Pause);
        let mover = moving.start_move(&moving.other());
        router.await_fault(point);
        // These would block forever if they waited for the move, which waits for this test.
        for k in [110, 160] {
            moving.run(&increment(k));
        }
        expected += 1;
        if !handing_over {
            moving.run(&increment(1));
        } else {
            let writer = moving.spawn(increment(1));
            moving.await_waiting(if moving.other() == "shard0" { "shard1" } else { "shard0" }, 1);
            for k in [110, 160] {
                moving.run(&increment(k));
                moving.run(&increment(k));
            }
            expected += 2;
            router.release(point);
            writer.join().unwrap().expect("a write");
        }
        router.release(point);
        mover.join().unwrap().expect("a move");
        for k in [110, 160] {
            assert_eq!(moving.field(k, "n"), Some(expected.to_string()), "document {k} at {point}");
        }
    }

    // An open transaction that wrote to the range delays the hand-over, but no other writers.
    moving.run("INSERT INTO docshard_catalog.settings VALUES ('move_wait_ms', '60000')");
    for point in ["move.writers_gone", "move.cloned"] {
        router.arm(point, Fault::Pause);
        let mover = moving.start_move(&moving.other());
        router.await_fault(point);
        let mut long = router.client();
        long.batch_execute(&format!("BEGIN; {}", insert(3, 1_003))).unwrap();
        router.release(point);
        wait_until("handing over", PATIENCE, || moving.step() == "handing over");
        for _ in 0..20 {
            for k in [1, 110, 160] {
                moving.run(&increment(k));
            }
        }
        assert_eq!(moving.step(), "handing over", "it waits for the writer that stays");
        long.batch_execute("ROLLBACK").unwrap();
        mover.join().unwrap().expect("a move");
        moving.check();
    }
}

#[test]
fn i15_an_index_under_construction_holds_up_the_beginning_of_a_move() {
    let moving = Moving::start(200);
    let mut builder = moving.cluster.router.client();
    builder.batch_execute(&format!("BEGIN; SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')")).unwrap();
    let mover = moving.start_move("shard1");
    wait_until("the move waits for the index", PATIENCE, || {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job' AND wait_event_type = 'Lock'";
        moving.cluster.router.value::<i64>(waiting) == 1
    });
    builder.batch_execute("COMMIT").unwrap();
    mover.join().unwrap().expect("a move");
    moving.check();
    // The recipient created the index before it copied documents.
    let sql = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'docshard_data' AND indexname ~ '^i[0-9]+$'";
    assert_eq!(moving.cluster.shards[1].value::<i64>(sql), 1);
}
