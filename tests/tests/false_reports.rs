//! A shard that reports what no shard can have, such as an impossible epoch, decides nothing about the router and other shards.

use docshard_tests::faults::Fault;
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
    for epoch in [i64::MAX, (1 << 30) - 2, (1 << 30) - (1 << 16)] {
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

/// A router takes itself for replaced at each epoch that a take-over may write: up to the highest one that it accepts and what it adds, and
/// above that after several take-overs. A forced take-over makes this router the cluster's again.
#[test]
fn an_epoch_that_a_take_over_may_write_is_seen_by_the_former_router() {
    for steps in [65, 70, 1000, 2000, 16_000] {
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

/// A take-over writes an epoch above the highest report that it believes. An older copy of the router never lowers that epoch.
#[test]
fn an_older_copy_does_not_lower_what_a_take_over_has_written() {
    let cluster = cluster();
    let old = own(&cluster);
    cluster.shards[0].psql(&format!("UPDATE docshard_data.node SET epoch = {}", old + 64 * (1 << 16)));
    cluster.router.psql("SELECT docshard.take_over_cluster()");
    let new = epochs(&cluster);
    assert!(new[0] > old + 64 * (1 << 16), "{new:?}");
    assert!(
        new[1] <= old + (1 << 16) && new[1] == own(&cluster),
        "one shard's report is not written to others: {new:?}"
    );
    forget_take_overs(&cluster, old);
    let error = cluster.router.client().batch_execute("SELECT docshard.take_over_cluster()").unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("far ahead"), "{error:?}");
    assert_eq!(epochs(&cluster), new);
}

fn own(cluster: &Cluster) -> i64 {
    cluster.router.value("SELECT epoch FROM docshard_catalog.cluster")
}

fn epochs(cluster: &Cluster) -> Vec<i64> {
    cluster.shards.iter().map(|shard| shard.value("SELECT epoch FROM docshard_data.node")).collect()
}

/// Gives the router the catalog that a copy from before all take-overs has.
fn forget_take_overs(cluster: &Cluster, epoch: i64) {
    cluster.router.unguard();
    cluster.router.psql(&format!(
        "UPDATE docshard_catalog.cluster SET epoch = {epoch}, copy = NULL; UPDATE docshard_catalog.contacts SET epoch = NULL"
    ));
}

fn end_keepers(cluster: &Cluster) {
    for shard in &cluster.shards {
        shard.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard keeper'");
    }
}

fn is_copy(cluster: &Cluster) -> bool {
    cluster.router.value::<String>("SELECT docshard.status()").contains("a copy of the cluster's router")
}

/// A shard that reports a high epoch and cannot get another one keeps no other shard from being taken over.
#[test]
fn a_take_over_that_one_shard_makes_fail_leaves_the_others_usable() {
    let cluster = cluster();
    let old = own(&cluster);
    cluster.shards[1].unguard();
    cluster.shards[1].psql(&format!(
        "UPDATE docshard_data.node SET epoch = {}; \
         CREATE FUNCTION public.stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
         CREATE TRIGGER stays BEFORE UPDATE ON docshard_data.node FOR EACH ROW EXECUTE FUNCTION public.stays()",
        old + 1024 * (1 << 16)
    ));
    for _ in 0..3 {
        let sql = "SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))";
        let taken: Value = cluster.router.client().query_one(sql, &[]).expect("the answer").get(0);
        assert_eq!(taken["unreachable"][0]["shard"], "shard1", "{taken}");
    }
    assert!(epochs(&cluster)[0] <= old + 4 * (1 << 16), "{:?}", epochs(&cluster));
    wait_until("the router has the other shard's lock", PATIENCE, || cluster.lock_holders()[0] == Some(true));
    assert!(!is_copy(&cluster));
    for k in [50, 150] {
        cluster.router.psql(&format!("SELECT docshard.insert_one('test.things', '{{\"k\": {k}}}')"));
    }
}

/// Whatever a shard answers, the others can be taken over, and it can be removed as lost.
#[test]
fn a_shard_that_answers_wrongly_keeps_no_other_from_being_taken_over() {
    let cluster = cluster();
    cluster.shards[1].unguard();
    cluster.shards[1].psql("ALTER TABLE docshard_data.placement RENAME TO placement_of_before");
    let take_over = "SELECT to_jsonb(docshard.take_over_cluster())";
    let taken: Value = cluster.router.client().query_one(take_over, &[]).expect("the answer").get(0);
    assert_eq!(taken["unreachable"][0]["shard"], "shard1", "{taken}");
    cluster.router.psql("SELECT docshard.insert_one('test.things', '{\"k\": 150}')");
    let lost = "SELECT docshard.remove_shard('shard1', '{\"lost\": true}')::json ->> 'token'";
    let mut token = String::new();
    wait_until("the router has the other shard's lock", PATIENCE, || {
        let answer = cluster.router.client().query_one(lost, &[]);
        answer.map(|row| token = row.get(0)).is_ok()
    });
    cluster
        .router
        .psql(&format!("SELECT docshard.remove_shard('shard1', '{{\"lost\": true, \"token\": \"{token}\"}}')"));
    cluster.router.psql("SELECT docshard.insert_one('test.things', '{\"k\": 250}')");
}

/// The keeper dies after it has raised a shard's epoch: the next one ends the other router's sessions.
#[test]
fn sessions_of_a_replaced_router_end_though_the_keeper_dies() {
    let cluster = cluster();
    let shard = &cluster.shards[0];
    let service: String = shard.value("SELECT role::regrole::text FROM docshard_data.service");
    let mut other = shard.try_client_as(&service, "postgres").expect("a session of the other router");
    cluster.router.arm("takeover.raised", Fault::Kill);
    cluster.router.unguard();
    cluster.router.psql("UPDATE docshard_catalog.cluster SET epoch = epoch + 10");
    end_keepers(&cluster);
    wait_until("the epoch is raised", PATIENCE, || epochs(&cluster)[0] == 11);
    wait_until("the session ends", PATIENCE, || other.simple_query("SELECT 1").is_err());
}

/// Take-overs that a copy does not know, however many: it learns that it is a copy, and an administrator can still make it the router.
#[test]
fn a_copy_from_before_many_take_overs_learns_it_and_can_take_over() {
    let cluster = cluster();
    let old = own(&cluster);
    let far = old + 2_000 * (1 << 16);
    for shard in &cluster.shards {
        shard.psql(&format!("UPDATE docshard_data.node SET epoch = {far}"));
    }
    end_keepers(&cluster);
    wait_until("it is a copy", PATIENCE, || is_copy(&cluster));
    let error = cluster.router.client().batch_execute("SELECT docshard.take_over_cluster()").unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("far ahead"), "{error:?}");
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    assert!(!is_copy(&cluster));
    assert!(own(&cluster) > old && epochs(&cluster).iter().all(|epoch| *epoch > far), "{:?}", epochs(&cluster));
    cluster.router.psql("SELECT docshard.insert_one('test.things', '{\"k\": 50}')");
}

/// The numbers that one shard reports do not become the router's, so that a backup from before still believes the other shards.
#[test]
fn the_numbers_of_one_shard_do_not_spread() {
    let cluster = cluster();
    let next = |of: &str| -> i64 {
        let sequence = format!("pg_get_serial_sequence('docshard_catalog.{of}', 'id')::regclass");
        cluster.router.value(&format!("SELECT pg_sequence_last_value({sequence})"))
    };
    cluster.shards[1].unguard();
    cluster.shards[1]
        .psql("INSERT INTO docshard_data.placement (collection_id, token, version) VALUES (1000000, 1, 1)");
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    assert!(next("collections") < 1_000, "{}", next("collections"));
    // What is near is followed, also beside what is not.
    cluster.shards[1].psql("INSERT INTO docshard_data.placement (collection_id, token, version) VALUES (50000, 1, 1)");
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    assert_eq!(next("collections"), 50_000);
}

/// A shard's description of the holder of its lock is shortened, and names no host that is none.
#[test]
fn a_shard_cannot_write_its_text_into_hints() {
    let cluster = cluster();
    cluster.shards[1].unguard();
    cluster.shards[1].psql(
        "CREATE FUNCTION public.hostile() RETURNS text LANGUAGE sql AS $$ \
           SELECT 'process 1 of this shard, from evil.example). Call docshard.dismantle(). (, since ' || repeat('x', 1000000) $$; \
         UPDATE pg_proc SET prosrc = 'SELECT public.hostile()', probin = NULL, proisstrict = false, \
           prolang = (SELECT oid FROM pg_language WHERE lanname = 'sql') WHERE proname = 'hold_router_lock'",
    );
    cluster.router.psql("ALTER SYSTEM SET docshard.router_lock_timeout = '3s'");
    cluster.router.psql("SELECT pg_reload_conf()");
    end_keepers(&cluster);
    wait_until("it is a copy", PATIENCE, || is_copy(&cluster));
    assert!(cluster.router.value::<String>("SELECT copy FROM docshard_catalog.cluster").len() < 1_000);
    let error =
        cluster.router.client().batch_execute("SELECT docshard.insert_one('test.things', '{\"k\": 50}')").unwrap_err();
    let error = error.as_db_error().unwrap();
    assert!(!error.hint().unwrap_or_default().contains("evil"), "{error:?}");
}

/// The former router sees that it was replaced, whatever one shard reports.
#[test]
fn a_forced_take_over_beside_a_damaged_shard_tells_the_former_router() {
    let cluster = cluster();
    let old = own(&cluster);
    cluster.shards[1].psql(&format!("UPDATE docshard_data.node SET epoch = {}", old + 1024 * (1 << 16)));
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    let written = epochs(&cluster);
    assert!(written[0] <= old + (1 << 16) && written[1] > old + 1024 * (1 << 16), "{written:?}");
    let known = "SELECT greatest(c.epoch, k.epoch) FROM docshard_catalog.cluster c, docshard_catalog.contacts k \
                 JOIN docshard_catalog.shards s ON s.id = k.shard_id WHERE s.name = 'shard1'";
    assert_eq!(cluster.router.value::<i64>(known), written[1]);
    cluster.router.psql(
        "SELECT docshard.insert_one('test.things', jsonb_build_object('k', k)) FROM unnest('{50, 150, 250}'::int[]) k",
    );
    // The router that was replaced.
    forget_take_overs(&cluster, old);
    end_keepers(&cluster);
    wait_until("it is a copy", PATIENCE, || is_copy(&cluster));
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
        assert!(taken.get("unreachable").is_none(), "{damage}: {taken}");
        assert!(!taken.to_string().contains("shard1"), "{damage}: {taken}");
        let last: i64 = cluster
            .router
            .value(&format!("SELECT nextval(pg_get_serial_sequence('docshard_catalog.{next}', 'id')::regclass)"));
        assert!(last < 1000, "{damage}: {last}");
    }
}

/// The keeper fails after it has raised a shard's epoch: it ends the other router's sessions at its next attempt.
#[test]
fn sessions_of_a_replaced_router_end_though_the_keeper_fails() {
    let cluster = cluster();
    let shard = &cluster.shards[0];
    let service: String = shard.value("SELECT role::regrole::text FROM docshard_data.service");
    let mut other = shard.try_client_as(&service, "postgres").expect("a session of the other router");
    cluster.router.arm("takeover.raised", Fault::Error);
    cluster.router.unguard();
    cluster.router.psql("UPDATE docshard_catalog.cluster SET epoch = epoch + 10");
    end_keepers(&cluster);
    wait_until("the epoch is raised", PATIENCE, || epochs(&cluster)[0] == own(&cluster));
    wait_until("the session ends", PATIENCE, || other.simple_query("SELECT 1").is_err());
}

/// A shard that was restored from a backup, and whose former epoch was not followed, can be taken over.
#[test]
fn a_restored_shard_gets_a_higher_epoch_than_before() {
    let cluster = cluster();
    let old = own(&cluster);
    let far = (1 << 30) - (1 << 16) - 1;
    cluster.shards[1].psql(&format!("UPDATE docshard_data.node SET epoch = {far}"));
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    let written = epochs(&cluster)[1];
    assert!(written > far);
    let insert = "SELECT docshard.insert_one('test.things', '{\"k\": 250}')";
    let has_lock = || cluster.lock_holders().iter().all(|holder| *holder == Some(true));
    end_keepers(&cluster);
    wait_until("the router has its shards' locks", PATIENCE, has_lock);
    cluster.router.psql(insert);
    cluster.shards[1].psql(&format!("UPDATE docshard_data.node SET epoch = {old}"));
    cluster.router.psql("SELECT docshard.take_over_cluster()");
    assert!(epochs(&cluster)[1] > written, "{:?}", epochs(&cluster));
    wait_until("the router has its shards' locks again", PATIENCE, has_lock);
    cluster.router.psql(insert);
    assert!(!is_copy(&cluster));
}

/// A take-over records the epoch of a shard in its row, also of a new shard that no worker has visited.
#[test]
fn a_new_shard_has_a_row_for_its_epoch() {
    let cluster = Cluster::servers(1);
    for node in [&cluster.router, &cluster.shards[0]] {
        node.psql("CREATE EXTENSION docshard CASCADE");
    }
    let mut client = cluster.router.client();
    let mut transaction = client.transaction().unwrap();
    let add = format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard0\"}}')", cluster.shards[0].url());
    transaction.batch_execute(&add).unwrap();
    let rows = "SELECT count(*) FROM docshard_catalog.contacts WHERE timeline > 0";
    assert_eq!(transaction.query_one(rows, &[]).unwrap().get::<_, i64>(0), 1);
}
