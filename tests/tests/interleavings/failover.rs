//! Moves with nodes that fail over to a standby, and nodes that are restored from an old backup.

use docshard_tests::moving::{Moving, NS, PATIENCE, count, increment, insert};
use docshard_tests::{Fault, wait_until};

#[test]
fn i14_a_donor_that_fails_over_in_mid_clone_ends_the_attempt() {
    let mut moving = Moving::start(200);
    moving.cluster.router.arm("move.cloning", Fault::Pause);
    let standby = moving.cluster.shards[0].standby();
    let mover = moving.start_move("shard1");
    moving.cluster.router.await_fault("move.cloning");
    moving.run(&increment(1));
    moving.cluster.shards[0].fail_over(standby);
    moving.run(&increment(1));
    moving.cluster.router.release("move.cloning");
    mover.join().unwrap().expect_err("its sessions at the donor are gone");
    moving.recover();
    assert_eq!(moving.owner(), "shard0");
    moving.check();
    moving.move_to("shard1").expect("a later move");
    assert_eq!(moving.field(1, "n").as_deref(), Some("2"));
    moving.check();
}

/// Before the move knows that the standby has what was prepared, it is aborted; afterwards it is completed.
#[test]
fn i14_a_recipient_that_fails_over_after_its_prepare_takes_the_chunk() {
    for (point, owner) in [("move.prepared", "shard0"), ("move.replicated", "shard1")] {
        let mut moving = Moving::start(200);
        moving.cluster.router.arm(point, Fault::Pause);
        let standby = moving.cluster.shards[1].standby();
        let mover = moving.start_move("shard1");
        moving.cluster.router.await_fault(point);
        moving.cluster.shards[1].fail_over(standby);
        moving.cluster.router.release(point);
        let moved = mover.join().unwrap();
        assert_eq!(moved.is_ok(), owner == "shard1", "{point}: {moved:?}");
        moving.recover();
        assert_eq!(moving.owner(), owner, "{point}");
        moving.check();
        moving.move_to(&moving.other()).expect("a later move");
        moving.check();
    }
}

#[test]
fn i14_a_catalog_that_fails_over_after_the_decision_completes_the_move() {
    for (point, owner) in [("move.prepared", "shard0"), ("move.decided", "shard1"), ("move.donor_committed", "shard1")]
    {
        let mut moving = Moving::start(200);
        let standby = moving.cluster.router.standby();
        moving.cluster.router.arm(point, Fault::Pause);
        let mover = moving.start_move("shard1");
        moving.cluster.router.await_fault(point);
        moving.cluster.router.fail_over(standby);
        mover.join().unwrap().expect_err("the router is gone");
        moving.recover();
        assert_eq!(moving.owner(), owner, "{point}");
        moving.check();
        moving.move_to(&moving.other()).expect("a later move");
        moving.check();
    }
}

#[test]
fn i14_a_node_restored_from_before_a_move_is_refused() {
    let mut moving = Moving::start(200);
    for part in ["donor", "recipient", "router"] {
        let to = moving.other();
        let victim = match part {
            "donor" => moving.owner(),
            "recipient" => to.clone(),
            _ => "router".to_owned(),
        };
        let victim = victim.as_str();
        let old = moving.cluster.node(victim).backup();
        moving.move_to(&to).expect("a move");
        moving.run(&increment(1));
        let new = moving.cluster.node(victim).backup();
        moving.cluster.node(victim).restore(old);
        for (what, sql) in [
            ("a count", format!("SELECT docshard.count_documents('{NS}')")),
            (
                "a find of the chunk",
                format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"k\": {{\"$lt\": 100}}}}')"),
            ),
            ("an insert", insert(1, 1_001)),
            ("an update", increment(1)),
            ("a move", format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', '{}')", moving.other())),
        ] {
            // Only one node knows of the move, or does not. A statement that uses only another node may succeed, and that is
            // correct.
            let answered = moving.cluster.router.client().batch_execute(&sql);
            let asks_only_another = matches!(what, "a find of the chunk" | "an insert" | "an update")
                && moving.owner() != victim
                && victim != "router";
            match answered {
                Ok(()) => assert!(asks_only_another, "{what} with the {part} restored was not refused"),
                Err(error) => {
                    let error = error.as_db_error().expect("an error of the server").clone();
                    let said = format!("{} {}", error.message(), error.hint().unwrap_or_default());
                    assert!(said.contains("backup"), "{what} with the {part} restored: {error:?}");
                }
            }
        }
        moving.cluster.node(victim).restore(new);
        // Meanwhile the counter may have been advanced at the old copy, and the worker may be about to record that.
        let go_on = "SELECT docshard.accept_shard(name) FROM docshard.shards WHERE name <> 'local'";
        let delete = format!("SELECT docshard.delete_one('{NS}', '{{\"k\": 1, \"_id\": 1001}}')");
        wait_until("the present copy is accepted", PATIENCE, || {
            let mut client = moving.cluster.router.client();
            (client.batch_execute(go_on).is_ok() || client.batch_execute("SELECT docshard.take_over_cluster()").is_ok())
                && client.batch_execute(&delete).is_ok()
        });
        moving.check();
    }
    assert_eq!(count(&mut moving.cluster.router.client()), 200);
    // The current data are complete before the next move, too.
    moving.move_to(&moving.other()).expect("a later move");
    moving.check();
}
