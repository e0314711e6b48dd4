//! Moves with a coordinator, sessions or servers that crash or hang.

use crate::{AFTER_THE_DECISION, BEFORE_THE_DECISION, with_old_map};
use docshard_tests::moving::{Moving, NS, PATIENCE, count, delete, increment, nodes};
use docshard_tests::{Fault, wait_until};
use postgres::NoTls;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn i10_the_puller_dies_between_a_round_and_the_next() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for (round, point) in (1..).zip(["move.pulled", "move.applied"]) {
        router.arm("move.cloned", Fault::Pause);
        let mover = moving.start_move("shard1");
        router.await_fault("move.cloned");
        moving.run(&increment(1));
        moving.run(&delete(2, 2));
        router.arm(point, Fault::Pause);
        router.release("move.cloned");
        router.await_fault(point);
        // The load session has an open transaction, the pull session has none.
        let puller = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                      WHERE application_name LIKE 'docshard m %' AND state = 'idle'";
        assert_eq!(moving.cluster.shards[1].value::<i64>(puller), 1, "{point}: S");
        router.release(point);
        // If nothing remains to be pulled, the move succeeds; otherwise it is aborted.
        let outcome = mover.join().unwrap();
        moving.recover();
        assert_eq!(moving.owner(), if outcome.is_ok() { "shard1" } else { "shard0" }, "{point}: {outcome:?}");
        assert!(outcome.is_err(), "{point}: a round needs S");
        assert_eq!(moving.field(1, "n"), Some(round.to_string()), "{point}");
        moving.run(&docshard_tests::moving::insert(2, 2));
        moving.check();
    }
    moving.move_to("shard1").expect("a later move");
    assert_eq!(moving.field(1, "n").as_deref(), Some("2"));
    moving.check();
}

#[test]
fn i11_a_coordinator_that_was_taken_for_dead_comes_back() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for point in BEFORE_THE_DECISION.into_iter().chain(AFTER_THE_DECISION) {
        let (from, to) = (moving.owner(), moving.other());
        router.arm(point, Fault::Pause);
        let mover = moving.start_move(&to);
        router.await_fault(point);
        // The lock is switched off as if the router had failed over: its successor does not see its predecessor's locks.
        router.switch_off("coordinator_lock");
        moving.recover();
        let decided = AFTER_THE_DECISION.contains(&point);
        let owner = if decided { &to } else { &from };
        assert_eq!(moving.owner(), *owner, "{point}");
        moving.check();
        router.switch_on("coordinator_lock");
        router.release(point);
        let outcome = mover.join().unwrap();
        assert_eq!(outcome.is_ok(), decided, "{point}: {outcome:?}");
        assert_eq!(moving.owner(), *owner, "{point}: the coordinator came back");
        moving.check();
    }
    moving.move_to(&moving.other()).expect("a later move");
    moving.check();
}

#[test]
fn i11_what_arrives_after_the_abort_is_taken_back() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    // The move's sessions have no name yet, so recovery cannot end them: the coordinator continues until it reads its row.
    router.arm("move.registering", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.registering");
    router.switch_off("coordinator_lock");
    moving.recover();
    assert_eq!(moving.owner(), "shard0");
    router.clear_faults();
    let error = mover.join().unwrap().expect_err("it was aborted");
    let error = error.as_db_error().expect("an error of the server");
    assert!(error.message().contains("the move was aborted"), "{error:?}");
    moving.check();

    // A PREPARE and a capture of the aborted attempt arrive late.
    let names = "SELECT 'docshard_m_' || c.id || '_' || m.id FROM docshard_catalog.cluster c, \
                 (SELECT max(id) AS id FROM docshard_catalog.migrations) m";
    let gid: String = router.value(names);
    let id: i64 = router.value("SELECT max(id) FROM docshard_catalog.migrations");
    let table = moving.table();
    let number = table.rsplit('c').next().unwrap();
    let [service, other] = [0, 1].map(|shard| moving.cluster.shards[shard].service_role());
    moving.cluster.shards[0]
        .client()
        .batch_execute(&format!(
            "INSERT INTO docshard_data.capture (collection_id, migration_id, min) VALUES ({number}, {id}, ''); \
             BEGIN; SELECT docshard_internal.exclude_range_writers({id}); \
             DELETE FROM {table} WHERE (doc->>'k')::int8 < 100; \
             SET LOCAL ROLE {service}; PREPARE TRANSACTION '{gid}_t'"
        ))
        .unwrap();
    moving.cluster.shards[1]
        .client()
        .batch_execute(&format!(
            "BEGIN; SELECT pg_current_xact_id(); SET LOCAL ROLE {other}; PREPARE TRANSACTION '{gid}_r'"
        ))
        .unwrap();
    // A writer to the range waits until the router's worker cleans up.
    moving.run(&increment(1));
    for shard in &moving.cluster.shards {
        wait_until("what was prepared is rolled back", PATIENCE, || {
            shard.value::<i64>(
                "SELECT (SELECT count(*) FROM pg_prepared_xacts) + (SELECT count(*) FROM docshard_data.capture)",
            ) == 0
        });
    }
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    assert_eq!(moving.owner(), "shard0");
    moving.check();
    moving.move_to("shard1").expect("a later move");
    moving.check();
}

#[test]
fn i12_a_node_crashes_between_decision_and_map_with_everybody_looking() {
    let mut moving = Moving::start(200);
    for point in ["move.prepared", "move.decided", "move.donor_committed", "move.recipient_committed", "move.flipped"] {
        for victim in ["router", "shard0", "shard1"] {
            let (from, to) = (moving.owner(), moving.other());
            moving.cluster.router.arm(point, Fault::Pause);
            let old =
                with_old_map(&moving, || moving.spawn_value::<i64>(format!("SELECT docshard.count_documents('{NS}')")));
            let mover = moving.start_move(&to);
            moving.cluster.router.await_fault(point);
            moving.cluster.node(victim).crash();
            moving.cluster.router.release("dispatch.sending");
            // Clients with new maps, some of which help to complete the move. They may get errors, but never a wrong count.
            let stop = Arc::new(AtomicBool::new(false));
            let others: Vec<_> = (0..4)
                .map(|role| {
                    let (stop, url) = (Arc::clone(&stop), moving.cluster.router.url());
                    thread::spawn(move || {
                        let mut counts = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            let Ok(mut client) = postgres::Client::connect(&url, NoTls) else { continue };
                            if role % 2 == 0 {
                                let sql = format!("SET statement_timeout = '20s'; SELECT docshard.find_one('{NS}')");
                                let _ = client.batch_execute(&sql);
                                let sql = format!("SELECT docshard.count_documents('{NS}')");
                                counts.extend(client.query_one(&sql, &[]).map(|row| row.get::<_, i64>(0)));
                            } else {
                                let _ = client.batch_execute("SELECT docshard.recover_moves()");
                            }
                        }
                        counts
                    })
                })
                .collect();
            moving.cluster.node(victim).start();
            moving.cluster.router.release(point);
            let outcome = mover.join().unwrap();
            moving.recover();
            stop.store(true, Ordering::Relaxed);
            let mut counts: Vec<_> = others.into_iter().flat_map(|other| other.join().unwrap()).collect();
            counts.extend(old.join().unwrap());
            assert!(counts.iter().all(|&n| n == 200), "{point}, {victim}: {counts:?}");
            // If the coordinator dies before the decision, the move is aborted.
            let expected = if point == "move.prepared" && victim == "router" { &from } else { &to };
            assert_eq!(moving.owner(), *expected, "{point}, {victim}: {outcome:?}");
            moving.check();
        }
    }
    moving.move_to(&moving.other()).expect("a later move");
    moving.check();
}

#[test]
fn i13_a_users_prepared_transaction_stays_in_the_way_through_a_restart_of_the_donor() {
    let mut moving = Moving::start(200);
    let table = moving.table();
    let prepare = |moving: &Moving, k: i64| {
        let sql = format!(
            "BEGIN; UPDATE {table} SET doc = doc || '{{\"n\": 7}}' WHERE doc->>'_id' = '{k}'; PREPARE TRANSACTION 'u{k}'"
        );
        moving.cluster.shards[0].client().batch_execute(&sql).expect("a user's own transaction");
    };
    let commit = |moving: &Moving, k: i64| {
        moving.cluster.shards[0].client().batch_execute(&format!("COMMIT PREPARED 'u{k}'")).expect("it is prepared");
    };
    let await_step = |moving: &Moving, step: &str| {
        wait_until(step, PATIENCE, || moving.step() == step);
    };
    let crash = |moving: &mut Moving| {
        moving.cluster.shards[0].crash();
        moving.cluster.shards[0].start();
    };

    // This prepared transaction began before the capture. The move waits for it and dies with the donor; the next move waits
    // again.
    prepare(&moving, 1);
    let mover = moving.start_move("shard1");
    await_step(&moving, "waiting for writers");
    crash(&mut moving);
    mover.join().unwrap().expect_err("its sessions are gone");
    moving.recover();
    let mover = moving.start_move("shard1");
    await_step(&moving, "waiting for writers");
    wait_until("it waits for the prepared transaction", PATIENCE, || {
        moving.cluster.shards[0].value::<i64>("SELECT count(*) FROM docshard_data.capture") == 1
    });
    assert_eq!(moving.step(), "waiting for writers");
    commit(&moving, 1);
    mover.join().unwrap().expect("a move");
    assert_eq!(moving.field(1, "n").as_deref(), Some("7"));
    moving.check();
    moving.move_to("shard0").expect("a move back");

    // This one began during the clone, and postpones the hand-over.
    moving.cluster.router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    moving.cluster.router.await_fault("move.cloned");
    prepare(&moving, 2);
    moving.cluster.router.release("move.cloned");
    await_step(&moving, "handing over");
    crash(&mut moving);
    mover.join().unwrap().expect_err("its sessions are gone");
    moving.recover();
    assert_eq!(moving.owner(), "shard0");
    let mover = moving.start_move("shard1");
    await_step(&moving, "waiting for writers");
    commit(&moving, 2);
    mover.join().unwrap().expect("a move");
    assert_eq!(moving.field(2, "n").as_deref(), Some("7"));
    moving.check();
    moving.move_to("shard0").expect("a move back");

    // A transaction over several shards is held between its two phases.
    moving.cluster.router.arm("decide.prepared", Fault::Pause);
    let writer = moving.spawn(format!("BEGIN; {}; {}; COMMIT", increment(3), increment(110)));
    moving.cluster.router.await_fault("decide.prepared");
    let mover = moving.start_move("shard1");
    await_step(&moving, "waiting for writers");
    crash(&mut moving);
    mover.join().unwrap().expect_err("its sessions are gone");
    moving.recover();
    let mover = moving.start_move("shard1");
    await_step(&moving, "waiting for writers");
    moving.cluster.router.release("decide.prepared");
    writer.join().unwrap().expect("it was prepared everywhere");
    mover.join().unwrap().expect("a move, as soon as the transaction is resolved");
    for k in [3, 110] {
        assert_eq!(moving.field(k, "n").as_deref(), Some("1"), "document {k}");
    }
    assert_eq!(count(&mut moving.cluster.router.client()), 200);
    moving.check();
}

#[test]
fn i13_a_transaction_that_a_user_prepared_on_the_router_outlives_all_its_nodes() {
    let mut moving = Moving::start(200);
    let mut client = moving.cluster.router.client();
    for (name, commits) in [("one", true), ("two", false)] {
        // Document 110 is on the other shard.
        client
            .batch_execute(&format!("BEGIN; {}; {}; PREPARE TRANSACTION '{name}'", increment(4), increment(110)))
            .expect("a user's own transaction");
        let mover = moving.start_move("shard1");
        wait_until("the move waits", PATIENCE, || moving.step() == "waiting for writers");
        for node in ["shard0", "shard1", "router"] {
            moving.cluster.node(node).crash();
            moving.cluster.node(node).start();
        }
        mover.join().unwrap().expect_err("its sessions are gone");
        moving.recover();
        client = moving.cluster.router.client();
        let recovered =
            |moving: &Moving| moving.cluster.router.client().batch_execute("SELECT docshard.recover_moves()");
        recovered(&moving).expect("nothing to recover, or done");
        // The transaction was prepared by the user: only the user may end it.
        let prepared = |moving: &Moving| -> i64 {
            nodes(&moving.cluster).map(|node| node.value::<i64>("SELECT count(*) FROM pg_prepared_xacts")).sum()
        };
        assert_eq!(prepared(&moving), 3, "on the router and on both shards");
        let expected = moving.field(4, "n");
        let verb = if commits { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(&format!("{verb} PREPARED '{name}'")).expect("it is prepared");
        assert_eq!(prepared(&moving), 0, "the shards have been told");
        for k in [4, 110] {
            let before: i64 = expected.as_deref().unwrap_or("0").parse().expect("a number");
            let now: i64 = moving.field(k, "n").as_deref().unwrap_or("0").parse().expect("a number");
            assert_eq!(now, if commits { before + 1 } else { before }, "document {k}, {verb}");
        }
        moving.move_to("shard1").expect("nobody is in the way any more");
        moving.check();
        moving.move_to("shard0").expect("a move back");
    }
    assert_eq!(count(&mut client), 200);
    moving.check();
}
