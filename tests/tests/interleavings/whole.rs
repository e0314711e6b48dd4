//! A router's process that dies between a shard's answer and its own commit.

use docshard_tests::moving::{Moving, NS, delete, increment, insert};
use docshard_tests::{Fault, wait_until};

#[test]
fn what_is_a_whole_transaction_is_committed_with_the_shards_answer() {
    let mut moving = Moving::start(20);
    for (sql, committed) in [
        (insert(1, 1_000), true),
        (increment(2), true),
        (delete(3, 3), true),
        (format!("BEGIN; {}", insert(1, 1_001)), false),
        (format!("{}; SELECT 1", increment(4)), false),
        (format!("SELECT to_jsonb(({}))", delete(5, 5)), false),
    ] {
        let before = stored(&moving);
        let mut witness = moving.cluster.router.client();
        moving.cluster.router.arm("dispatch.answered", Fault::Kill);
        moving.spawn(sql.as_str()).join().unwrap().expect_err("its process was killed");
        // Until the postmaster notices, it accepts connections, which break later.
        wait_until("all of the router's sessions are ended", docshard_tests::moving::PATIENCE, || {
            witness.batch_execute("SELECT").is_err()
        });
        wait_until("the router is back", docshard_tests::moving::PATIENCE, || {
            moving.cluster.router.try_client().is_ok()
        });
        // At the shard an aborted session may still be ending.
        wait_until("no session of the router's is left", docshard_tests::moving::PATIENCE, || {
            moving.shard("shard0").value::<i64>(
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE '%transaction%' AND pid <> pg_backend_pid()",
            ) == 0
        });
        assert_eq!(stored(&moving) != before, committed, "{sql}");
    }
    assert_eq!(moving.field(2, "n").as_deref(), Some("1"));
    assert_eq!(moving.field(4, "n").as_deref(), Some("0"));
    // One document was inserted and one deleted; this keeps the expected number.
    moving.run(&insert(6, 1_002));
    moving.documents += 1;
    moving.check_clean();
}

/// All documents, as text.
fn stored(moving: &Moving) -> String {
    let sql = format!("SELECT string_agg(d::text, '' ORDER BY d) FROM docshard.find('{NS}') d");
    moving.cluster.router.value(&sql)
}
