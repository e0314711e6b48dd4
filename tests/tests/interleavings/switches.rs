//! Each mechanism is necessary: when it is switched off, the same order of events violates an invariant that holds
//! otherwise.

use crate::with_old_map;
use docshard_tests::moving::{Moving, NS, PATIENCE, increment, insert};
use docshard_tests::{Fault, wait_until};

fn off_at_shards(moving: &Moving, mechanism: &str) {
    moving.cluster.shards.iter().for_each(|shard| shard.switch_off(mechanism));
}

/// Lets recovery try once, and ignores its result.
fn recover_once(moving: &Moving) {
    moving.run("SELECT docshard.recover_moves()");
}

#[test]
fn without_the_version_check_a_read_misses_what_has_moved() {
    let moving = Moving::start(200);
    for off in [false, true] {
        if off {
            off_at_shards(&moving, "version_check");
        }
        let sql = format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"k\": 1, \"_id\": 1}}')");
        let reader = with_old_map(&moving, || moving.spawn_value::<i64>(sql));
        moving.move_to(&moving.other()).expect("a move");
        moving.cluster.router.release("dispatch.sending");
        assert_eq!(reader.join().unwrap().expect("a read"), i64::from(!off));
    }
}

#[test]
fn without_confirmation_a_scatter_fails_half_way() {
    let moving = Moving::start(200);
    for off in [false, true] {
        if off {
            moving.cluster.router.switch_off("confirm_first");
        }
        let sql = format!("SELECT count(*) FROM docshard.find('{NS}', '{{}}')");
        let reader = with_old_map(&moving, || moving.spawn_value::<i64>(sql));
        moving.move_to(&moving.other()).expect("a move");
        moving.cluster.router.release("dispatch.sending");
        match reader.join().unwrap() {
            Ok(found) => assert!(!off && found == 200, "found {found}"),
            Err(error) => assert!(off, "{error:?}"),
        }
    }
}

#[test]
fn without_the_version_check_a_write_goes_astray() {
    let moving = Moving::start(200);
    for off in [false, true] {
        if off {
            off_at_shards(&moving, "version_check");
        }
        let donor = moving.owner();
        let router = &moving.cluster.router;
        // The write begins after the move has waited for older writers, and checks for captures after the hand-over has removed
        // its own.
        router.arm("move.cloned", Fault::Pause);
        let mover = moving.start_move(&moving.other());
        router.await_fault("move.cloned");
        moving.shard(&donor).arm("write.locked", Fault::Pause);
        let writer = moving.spawn(insert(1, 1_000 + i64::from(off)));
        moving.shard(&donor).await_fault("write.locked");
        router.release("move.cloned");
        mover.join().unwrap().expect("a move");
        moving.shard(&donor).release("write.locked");
        writer.join().unwrap().expect("a write");
        // The first move goes to shard1, the second one back.
        let astray = if donor == "shard0" { moving.halves().0 } else { moving.halves().1 };
        assert_eq!(astray, i64::from(off), "documents at a shard that does not own them");
    }
}

#[test]
fn without_lock_and_check_a_write_goes_astray() {
    let moving = Moving::start(200);
    off_at_shards(&moving, "lock_and_check");
    moving.cluster.shards[0].arm("write.arrived", Fault::Pause);
    let writer = moving.spawn(insert(1, 1_001));
    moving.cluster.shards[0].await_fault("write.arrived");
    moving.move_to("shard1").expect("a move: nobody holds a lock");
    moving.cluster.shards[0].release("write.arrived");
    writer.join().unwrap().expect("a write");
    assert_eq!(moving.halves(), (1, 100), "a document at a shard that does not own it");
}

#[test]
fn without_the_moves_lock_a_write_goes_astray() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    off_at_shards(&moving, "migration_lock");
    router.arm("move.prepared", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.prepared");
    moving.cluster.shards[0].arm("write.checked", Fault::Pause);
    let writer = moving.spawn(insert(1, 1_001));
    moving.cluster.shards[0].await_fault("write.checked");
    router.release("move.prepared");
    mover.join().unwrap().expect("a move");
    moving.cluster.shards[0].release("write.checked");
    writer.join().unwrap().expect("a write");
    assert_eq!(moving.halves(), (1, 100), "a document at a shard that does not own it");
}

#[test]
fn without_the_capture_an_update_is_lost_and_the_count_saves_an_insert() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    off_at_shards(&moving, "capture");
    for (write, refused, count) in
        [(increment(1), false, true), (insert(2, 1_002), true, true), (insert(3, 1_003), false, false)]
    {
        let (from, to) = (moving.owner(), moving.other());
        if !count {
            router.switch_off("count");
        }
        router.arm("move.cloned", Fault::Pause);
        let mover = moving.start_move(&to);
        router.await_fault("move.cloned");
        moving.run(&write);
        router.release("move.cloned");
        let outcome = mover.join().unwrap();
        assert_eq!(outcome.is_err(), refused, "{write}: {outcome:?}");
        assert_eq!(moving.owner(), if refused { from } else { to }, "{write}");
        moving.check_clean();
    }
    assert_eq!(moving.field(1, "n").as_deref(), Some("0"), "an acknowledged update is lost");
    let sql =
        format!("SELECT string_agg(d->>'_id', ' ') FROM docshard.find('{NS}', '{{\"_id\": {{\"$gte\": 1000}}}}') d");
    assert_eq!(router.value::<String>(&sql), "1002", "the count refused to lose one insert, without it one is lost");
}

#[test]
fn without_waiting_for_earlier_writers_an_update_is_lost() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.switch_off("wait_for_writers");
    // The comparison of counts would detect a lost change of a document.
    router.switch_off("count");
    let mut early = router.client();
    early.batch_execute(&format!("BEGIN; {}", increment(1))).unwrap();
    router.arm("move.frozen", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.frozen");
    early.batch_execute("COMMIT").unwrap();
    router.release("move.frozen");
    mover.join().unwrap().expect("a move");
    assert_eq!(moving.field(1, "n").as_deref(), Some("0"), "an acknowledged update is lost");
}

#[test]
fn with_a_watermark_in_the_log_a_late_commit_is_lost() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.switch_off("exact_log");
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");
    let mut late = router.client();
    late.batch_execute(&format!("BEGIN; {}", increment(1))).unwrap();
    moving.run(&increment(2));
    router.arm("move.applied", Fault::Pause);
    router.release("move.cloned");
    router.await_fault("move.applied");
    late.batch_execute("COMMIT").unwrap();
    router.release("move.applied");
    mover.join().unwrap().expect("a move");
    assert_eq!(moving.field(2, "n").as_deref(), Some("1"));
    assert_eq!(moving.field(1, "n").as_deref(), Some("0"), "an acknowledged update is lost");
}

#[test]
fn without_the_donors_commit_first_both_own_the_chunk() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.switch_off("donor_first");
    router.arm("move.recipient_first", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.recipient_first");
    assert_eq!(moving.halves(), (100, 100), "documents of both shards' tables");
    router.release("move.recipient_first");
    mover.join().unwrap().expect("a move");
    moving.check();
}

#[test]
fn without_compare_and_set_a_decision_is_lost() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.switch_off("coordinator_lock");
    router.arm("move.prepared", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.prepared");
    moving.recover();
    router.switch_off("compare_and_set");
    router.release("move.prepared");
    mover.join().unwrap().expect_err("what it prepared is gone");
    recover_once(&moving);
    let sql = "SELECT state FROM docshard_catalog.migrations WHERE state <> 'done'";
    assert_eq!(router.value::<String>(sql), "committed", "decided, and nobody can carry it out");
    assert_eq!(moving.halves(), (100, 0));
}

#[test]
fn without_the_coordinators_lock_a_living_move_is_aborted() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for off in [false, true] {
        router.arm("move.cloned", Fault::Pause);
        let mover = moving.start_move("shard1");
        router.await_fault("move.cloned");
        if off {
            router.switch_off("coordinator_lock");
        }
        recover_once(&moving);
        router.release("move.cloned");
        assert_eq!(mover.join().unwrap().is_err(), off);
        router.clear_faults();
        moving.recover();
        moving.check();
        moving.move_to("shard0").expect("a move back");
    }
}

#[test]
fn without_ending_the_sessions_an_aborted_move_is_never_cleaned() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.switch_off("coordinator_lock");
    router.switch_off("end_sessions");
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");
    recover_once(&moving);
    let sql = "SELECT state FROM docshard_catalog.migrations WHERE state <> 'done'";
    assert_eq!(router.value::<String>(sql), "aborted", "its sessions hold on to what is to be dropped");
    router.switch_on("end_sessions");
    wait_until("recovery ends the sessions", PATIENCE, || {
        recover_once(&moving);
        router.client().query_opt(sql, &[]).expect("a query").is_none()
    });
    router.clear_faults();
    mover.join().unwrap().expect_err("it was aborted");
    moving.recover();
    moving.check();
}
