//! A shard that reports what no shard can have, such as an impossible epoch, decides nothing about the router and other shards.

use docshard_tests::{Cluster, wait_until};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn cluster() -> Cluster {
    Cluster::spread("test.things")
}

#[test]
fn a_shard_with_an_epoch_that_none_can_have_decides_nothing() {
    // The second one is the highest whose successor is not.
    for epoch in [i64::MAX, (1 << 30) - 2, 100_000_000] {
        let cluster = cluster();
        let mut router = cluster.router.client();
        wait_until("the router has its shards' locks", PATIENCE, || {
            cluster.lock_holders().iter().all(|holder| *holder == Some(true))
        });
        let liar = &cluster.shards[0];
        liar.psql(&format!("UPDATE docshard_data.node SET epoch = {epoch}"));
        liar.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard keeper'");
        wait_until("the keeper has seen it", PATIENCE, || cluster.router.log().contains("impossible epoch"));
        std::thread::sleep(Duration::from_secs(1));
        // Writes to other shards still work.
        let insert = "SELECT docshard.insert_one('test.things', '{\"k\": 250}')";
        router.batch_execute(insert).expect("a write at another shard");
        let status: String = cluster.router.value("SELECT docshard.status()");
        assert!(!status.contains("a copy of the cluster's router"), "{status}");
        let take_over = |options: &str| -> Value {
            let sql = format!("SELECT to_jsonb(docshard.take_over_cluster('{options}'))");
            cluster.router.client().query_one(&sql, &[]).expect("the answer").get(0)
        };
        for taken in [take_over("{}"), take_over("{}"), take_over("{\"force\": true}")] {
            assert!(taken.to_string().contains("impossible epoch") && !taken.to_string().contains("shard1"), "{taken}");
        }
        router.batch_execute(insert).expect("a write after the take-over");
        let own: i64 = cluster.router.value("SELECT epoch FROM docshard_catalog.cluster");
        assert!(own < epoch, "the take-over writes no epoch that it does not believe: {own}");
        assert_eq!(liar.value::<i64>("SELECT epoch FROM docshard_data.node"), epoch, "no epoch falls");
    }
}

/// The highest epoch that a take-over accepts, and what it may add to it, tell the former router that it was replaced; and so do higher ones
/// that other take-overs may have added. A forced take-over ends that.
#[test]
fn an_epoch_that_a_take_over_may_write_is_seen_by_the_former_router() {
    for steps in [65, 70, 1000] {
        let cluster = cluster();
        let is_copy =
            || cluster.router.value::<String>("SELECT docshard.status()").contains("a copy of the cluster's router");
        let end_keepers = || {
            cluster.shards[0].psql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard keeper'",
            );
        };
        let epoch: i64 = cluster.router.value("SELECT epoch FROM docshard_catalog.cluster");
        cluster.shards[0].psql(&format!("UPDATE docshard_data.node SET epoch = {}", epoch + steps * (1 << 16)));
        end_keepers();
        wait_until("the router is a copy", PATIENCE, is_copy);
        // Another router may have it.
        let error = cluster.router.client().batch_execute("SELECT docshard.take_over_cluster()").unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains("far ahead"), "{error:?}");
        cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
        wait_until("the router has its shards' locks", PATIENCE, || {
            cluster.lock_holders().iter().all(|holder| *holder == Some(true))
        });
        end_keepers();
        wait_until("the router has its shards' locks again", PATIENCE, || {
            cluster.lock_holders().iter().all(|holder| *holder == Some(true))
        });
        assert!(!is_copy(), "{steps}");
        cluster.router.psql("SELECT docshard.insert_one('test.things', jsonb_build_object('k', k)) FROM unnest('{50, 150, 250}'::int[]) k");
    }
}

/// What a take-over writes after a report that is just believed, an older copy of the router never lowers.
#[test]
fn an_older_copy_does_not_lower_what_a_take_over_has_written() {
    let cluster = cluster();
    let epoch = || cluster.router.value::<i64>("SELECT epoch FROM docshard_catalog.cluster");
    let old = epoch();
    cluster.shards[0].psql(&format!("UPDATE docshard_data.node SET epoch = {}", old + 64 * (1 << 16)));
    cluster.router.psql("SELECT docshard.take_over_cluster()");
    let new = epoch();
    assert!(new > old + 64 * (1 << 16));
    // The catalog of the copy.
    cluster.router.unguard();
    cluster.router.psql(&format!("UPDATE docshard_catalog.cluster SET epoch = {old}"));
    let error = cluster.router.client().batch_execute("SELECT docshard.take_over_cluster()").unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("far ahead"), "{error:?}");
    for shard in &cluster.shards {
        assert_eq!(shard.value::<i64>("SELECT epoch FROM docshard_data.node"), new);
    }
}

/// A counter that no router can have reached makes only that shard unusable.
#[test]
fn a_shard_with_a_counter_that_none_can_have_decides_nothing() {
    let cluster = cluster();
    let mut router = cluster.router.client();
    cluster.shards[0].psql(&format!("UPDATE docshard_data.node SET counter = {}", i64::MAX));
    wait_until("the worker has seen it", PATIENCE, || cluster.router.log().contains("impossible position"));
    std::thread::sleep(Duration::from_secs(2));
    router
        .batch_execute("SELECT docshard.insert_one('test.things', '{\"k\": 250}')")
        .expect("a write at another shard");
    for options in ["{}", "{\"force\": true}"] {
        let sql = format!("SELECT to_jsonb(docshard.take_over_cluster('{options}'))");
        let taken: Value = cluster.router.client().query_one(&sql, &[]).expect("the answer").get(0);
        assert!(taken.to_string().contains("impossible counter") && !taken.to_string().contains("shard1"), "{taken}");
    }
    let accepted = cluster.router.client().batch_execute("SELECT docshard.accept_shard('shard0')").unwrap_err();
    assert!(accepted.as_db_error().unwrap().message().contains("impossible position"), "{accepted:?}");
}

/// A shard reports numbers of collections and indexes that none can have.
#[test]
fn a_shard_with_numbers_that_none_can_have_decides_nothing() {
    for (damage, next) in [
        (
            "INSERT INTO docshard_data.placement (collection_id, token, version) VALUES (1073741822, 1, 1)",
            "collections",
        ),
        ("INSERT INTO docshard_data.placement (collection_id, token, version) VALUES (999999998, 1, 1)", "collections"),
        ("CREATE TABLE docshard_data.t (n int); CREATE INDEX i999999998 ON docshard_data.t (n)", "indexes"),
    ] {
        let cluster = cluster();
        let liar = &cluster.shards[0];
        liar.unguard();
        liar.psql(damage);
        let mut router = cluster.router.client();
        let take_over = "SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))";
        let taken: Value = router.query_one(take_over, &[]).expect("the answer").get(0);
        assert!(taken.to_string().contains("impossible numbers"), "{damage}: {taken}");
        assert!(!taken.to_string().contains("shard1"), "{damage}: {taken}");
        let last: i64 = cluster
            .router
            .value(&format!("SELECT nextval(pg_get_serial_sequence('docshard_catalog.{next}', 'id')::regclass)"));
        assert!(last < 1000, "{damage}: {last}");
    }
}
