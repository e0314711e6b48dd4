//! Copies that take the cluster over: which ones may, and what the new router knows.

use super::{PATIENCE, client, cluster, count, impatient, refused, restore};
use docshard_tests::{Cluster, DiskClone, Fault, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::time::Duration;

#[test]
fn an_older_catalog_takes_the_cluster_over_only_if_it_is_forced() {
    let cluster = impatient();
    let mut twin = cluster.router.clone_disk();
    twin.0.stop();
    cluster.router.psql("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')");
    cluster.router.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    cluster.router.psql("SELECT docshard.insert_one('other.things', '{\"_id\": 1}')");
    cluster.router.psql("SELECT docshard.create_index('test.things', '{\"n\": 1}')");
    twin.0.start();
    let mut copy = twin.0.client();
    // It reads, unless a shard has newer chunks. Then it says that it is a copy, and where the router is.
    wait_until("the twin knows what it is", PATIENCE, || twin.0.log().contains("is a copy of its cluster's router"));
    assert_eq!(count(&mut copy, "{\"k\": 10}"), 1);
    let error = copy.batch_execute("SELECT docshard.find_one('test.things', '{\"k\": 100}')").expect_err("it is older");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55000", "{error:?}");
    assert!(error.message().contains("this database is a copy of the cluster's router"), "{error:?}");
    assert!(error.hint().unwrap_or_default().contains("(host 127.0.0.1)"), "{error:?}");
    let error = copy.batch_execute("SELECT docshard.take_over_cluster()").expect_err("it is older");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55000", "{error:?}");
    for shown in ["shard \"shard0\" (counter ", "test.things is at version ", "docshard_data.c", "docshard_data.i"] {
        assert!(error.message().contains(shown), "{shown}: {error:?}");
    }
    let hint = error.hint().unwrap_or_default();
    assert!(hint.starts_with("Connect to that router, which holds the lock on its shards (host 127.0.0.1)"), "{hint}");
    assert!(hint.contains("force"), "{hint}");
    for shard in &cluster.shards {
        assert_eq!(shard.value::<i64>("SELECT epoch FROM docshard_data.node"), 1, "{}", shard.name);
    }
    cluster.router.psql("SELECT docshard.insert_one('other.things', '{\"_id\": 2}')");

    // By force. What is newer at a shard is still refused there.
    let taken: Value = copy
        .query_one("SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))", &[])
        .expect("the answer")
        .get(0);
    assert!(taken["epoch"].as_i64() > Some(1), "{taken}");
    assert!(taken["newerAtShards"].as_array().is_some_and(|newer| newer.len() >= 4), "{taken}");
    for sql in [
        "SELECT docshard.find_one('test.things', '{\"k\": 100}')",
        "SELECT docshard.insert_one('test.things', '{\"k\": 101}')",
    ] {
        // What nobody can repeat with success is no serialization failure.
        assert_eq!(refused(&mut copy, sql).0, "55000", "{sql}");
        // Also in transactions, of a session that repeats them.
        for begin in ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"] {
            let insert = "SELECT docshard.insert_one('test.things', '{\"k\": 1}')";
            let transaction = format!("{begin}; {insert}; {sql}");
            let mut said = String::new();
            wait_until("the loop ends", PATIENCE, || {
                let error = copy.batch_execute(&transaction).expect_err("a newer chunk");
                said = error.code().expect("an error of the server").code().to_owned();
                copy.batch_execute("ROLLBACK").expect("the transaction ends");
                said != "40001"
            });
            assert_eq!(said, "55000", "{transaction}");
        }
    }
    let orphans = twin.0.psql("SELECT * FROM docshard.list_orphaned_relations()");
    assert!(orphans.contains("shard0|docshard_data.c"), "{orphans}");

    // The other one names it. It has lost nothing, so it may take over again.
    let mut router = cluster.router.client();
    let insert = "SELECT docshard.insert_one('test.things', '{\"_id\": \"back\", \"k\": 1}')";
    let is_copy =
        || cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.cluster WHERE copy IS NOT NULL") == 1;
    wait_until("the other one knows that it is a copy", PATIENCE, is_copy);
    let error = router.batch_execute(insert).expect_err("it is a copy");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "25006", "{error:?}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.starts_with("Connect to the cluster's router"), "{hint}");
    router.batch_execute("SELECT docshard.take_over_cluster()").expect("nothing is newer than its catalog");
    router.batch_execute(insert).expect("a write");
    assert_eq!(count(&mut router, "{}"), 31);
}

/// A standby of the router that is promoted while a move is decided and not yet in the map has everything that it needs.
#[test]
fn a_decided_move_is_nothing_new_to_a_take_over() {
    for point in ["move.decided", "move.donor_committed", "move.recipient_committed"] {
        let mut cluster = cluster();
        cluster.router.arm(point, Fault::Pause);
        let mut mover = cluster.router.client();
        let moving = std::thread::spawn(move || {
            mover.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')")
        });
        cluster.router.await_fault(point);
        let twin = cluster.router.clone_disk();
        cluster.router.stop_immediately();
        moving.join().expect("it ends").expect_err("the router is gone");
        let mut copy = twin.0.client();
        let taken = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]);
        let taken: Value = taken.unwrap_or_else(|e| panic!("{point}: {e:?}")).get(0);
        assert_eq!(taken.get("newerAtShards"), None, "{point}: {taken}");
        copy.batch_execute("SELECT docshard.recover_moves()").expect("the move is settled");
        assert_eq!(count(&mut copy, "{}"), 30, "{point}");
        copy.batch_execute("SELECT docshard.insert_one('test.things', '{\"k\": 150}')").expect("a write");
        let there: i64 =
            copy.query_one("SELECT count(*) FROM docshard.chunks WHERE shard = 'shard1'", &[]).expect("a count").get(0);
        assert_eq!(there, 2, "{point}");
    }
}

/// The former router is down. It had the same port at another host.
#[test]
fn the_address_of_a_router_that_is_gone_is_not_kept() {
    let mut cluster = cluster();
    let twin = cluster.router.clone_disk();
    cluster.router.stop();
    let mut copy = twin.0.client();
    let former = format!("ALTER SERVER docshard_local OPTIONS (SET host '127.0.0.9', SET port '{}')", twin.0.port);
    copy.batch_execute(&former).expect("the former router's address");
    let taken: Value = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    assert!(taken["localAddress"].as_str().is_some_and(|address| address.contains("127.0.0.1")), "{taken}");
    copy.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'local')")
        .expect("a move from a shard");
    copy.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 1}', 'shard0')").expect("a move to a shard");
    assert_eq!(count(&mut copy, "{}"), 30);
}

/// Two copies take over while each reaches another shard only: no shard may accept both.
#[test]
fn two_routers_never_have_one_epoch() {
    let mut cluster = impatient();
    let (mut one, mut other) = (cluster.router.clone_disk(), cluster.router.clone_disk());
    cluster.router.stop();
    let mut take_over = |at: &mut DiskClone, away: usize| -> i64 {
        cluster.shards[away].stop();
        let mut copy = at.0.client();
        let taken: Value =
            copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
        assert!(taken["unreachable"].is_array() || taken["unreachable"].is_object(), "{taken}");
        at.0.stop();
        cluster.shards[away].start();
        taken["epoch"].as_i64().expect("a number")
    };
    let epochs = [take_over(&mut one, 1), take_over(&mut other, 0)];
    assert!(epochs[0] != epochs[1] && epochs.iter().all(|epoch| *epoch > 1), "{epochs:?}");
    // Both meet both shards: the one with the higher epoch is the router.
    one.0.start();
    other.0.start();
    let (last, first) = if epochs[0] > epochs[1] { (&one, &other) } else { (&other, &one) };
    wait_until("the other one knows that it is a copy", PATIENCE, || {
        first.0.log().contains("is a copy of its cluster's router")
    });
    wait_until("both shards belong to the router", PATIENCE, || {
        let of = |shard: &Node| shard.value::<i64>("SELECT epoch FROM docshard_data.node");
        cluster.shards.iter().all(|shard| Some(of(shard)) == epochs.iter().max().copied())
    });
    let insert = "SELECT docshard.insert_many('test.things', ARRAY['{\"k\": 150}', '{\"k\": 250}']::jsonb[])";
    assert_eq!(refused(&mut first.0.client(), insert).0, "25006");
    last.0.client().batch_execute(insert).expect("a write at both shards");
}

/// The changes of definitions in the router's changelog that shards have noted.
fn noted(cluster: &Cluster) -> Vec<Option<i64>> {
    cluster.shards.iter().map(|shard| shard.value("SELECT definitions FROM docshard_data.node")).collect()
}

/// Runs a statement at the router that changes a definition, and waits until all shards have noted the change.
fn change(cluster: &Cluster, sql: &str) {
    let before = noted(cluster);
    cluster.router.psql(sql);
    wait_until(&format!("shards have noted: {sql}"), PATIENCE, || {
        noted(cluster).iter().zip(&before).all(|(now, before)| now > before)
    });
}

fn take_over(copy: &mut Client, options: &str) -> Result<Value, postgres::Error> {
    let taken = copy.query_one(&format!("SELECT to_jsonb(docshard.take_over_cluster('{options}'))"), &[])?;
    Ok(taken.get(0))
}

/// What a router changes in its own database alone.
#[test]
fn a_catalog_without_a_change_of_the_routers_own_database_does_not_take_over() {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.enable_sharding('own', 'local')");
    cluster.router.psql("SELECT docshard.create_collection('own.first')");
    change(&cluster, "CREATE ROLE clerk; SELECT docshard.create_collection('own.second')");
    for (number, sql) in [
        "SELECT docshard.insert_one('own.new', '{\"_id\": 1}')",
        "SELECT docshard.create_collection('own.seen', '{\"viewOn\": \"first\", \"pipeline\": []}')",
        "SELECT docshard.create_index('own.first', '{\"n\": 1}')",
        "SELECT docshard.modify_collection('own.first', '{\"index\": {\"name\": \"n_1\", \"hidden\": true}}')",
        "SELECT docshard.drop_collection('own.second')",
        "SELECT docshard.grant_access('clerk', '{\"read\": [\"own\"]}')",
        "SELECT docshard.revoke_access('clerk')",
        "SELECT docshard.set_setting('chunk_size_mb', '64')",
        "SELECT docshard.set_setting('chunk_size_mb', NULL)",
        "SELECT docshard.add_shard_to_zone('local', 'near')",
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("copy{number}");
        restore(&cluster, &database);
        change(&cluster, sql);
        let mut copy = client(&cluster.router, &database);
        let (state, message) = refused(&mut copy, "SELECT docshard.take_over_cluster()");
        assert_eq!(state, "55000", "{sql}: {message}");
        for shown in ["another router has changed the cluster since", "shard \"shard0\" (", "shard \"shard1\" ("] {
            assert!(message.contains(shown), "{sql}: {message}");
        }
        assert!(message.contains("its router has changed definitions at entry "), "{sql}: {message}");
    }
    assert_eq!(cluster.router.psql("SELECT docshard.find_one('own.new', '{}')").trim(), "{\"_id\": 1}");
}

#[test]
fn a_catalog_that_lacks_no_change_takes_over() {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.enable_sharding('own', 'local')");
    change(&cluster, "SELECT docshard.create_collection('own.last')");
    // The last change stays in the changelog, and in its dump, after all older entries.
    cluster.router.psql("UPDATE docshard_catalog.changelog SET at = at - interval '10 days'");
    change(&cluster, "SELECT docshard.set_setting('changelog_days', '1')");
    cluster.router.psql("UPDATE docshard_catalog.changelog SET at = at - interval '10 days'");
    // The worker looks at them when the setting has changed. A repetition changes nothing.
    let entries = || cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.changelog");
    change(&cluster, "SELECT docshard.set_setting('changelog_days', '2')");
    cluster.router.psql("UPDATE docshard_catalog.changelog SET at = at - interval '10 days'");
    wait_until("old entries are deleted", PATIENCE, || {
        cluster.router.psql("SELECT docshard.set_setting('changelog_days', '2')");
        entries() == 1
    });
    let before = noted(&cluster);
    restore(&cluster, "equal");
    // What is no definition, what is rolled back, and what was so already.
    cluster.router.psql("BEGIN; SELECT docshard.create_collection('own.undone'); ROLLBACK");
    cluster.router.psql("SELECT docshard.stop_balancer()");
    cluster.router.psql("SELECT docshard.split_at('test.things', '{\"k\": 50}')");
    cluster.router.psql("SELECT docshard.set_setting('changelog_days', '2')");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(noted(&cluster), before);
    let mut copy = client(&cluster.router, "equal");
    let taken = take_over(&mut copy, "{}").expect("nothing is missing");
    assert_eq!(taken.get("newerAtShards"), None, "{taken}");
    assert_eq!(count(&mut copy, "{}"), 30);
}

#[test]
fn a_forced_take_over_of_an_older_catalog_can_be_repeated() {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.enable_sharding('own', 'local')");
    change(&cluster, "SELECT docshard.create_collection('own.first')");
    restore(&cluster, "older");
    change(&cluster, "SELECT docshard.create_collection('own.second')");
    let mut copy = client(&cluster.router, "older");
    let (state, message) = refused(&mut copy, "SELECT docshard.take_over_cluster()");
    assert_eq!(state, "55000", "{message}");
    let taken = take_over(&mut copy, "{\"force\": true}").expect("it is forced");
    let newer = taken["newerAtShards"].to_string();
    assert!(newer.contains("its router has changed definitions at entry "), "{taken}");
    // At once, and when the shards have noted what this catalog has.
    let last: i64 = copy
        .query_one("SELECT max(id) FROM docshard_catalog.changelog WHERE what = 'createCollection'", &[])
        .expect("a number")
        .get(0);
    for noted_first in [false, true] {
        if noted_first {
            wait_until("shards have noted it", PATIENCE, || noted(&cluster).iter().all(|noted| *noted == Some(last)));
        }
        let taken = take_over(&mut copy, "{}").expect("it is the router");
        assert_eq!(taken.get("newerAtShards"), None, "{taken}");
    }
    // The former router lacks nothing until this one has changed a definition.
    copy.batch_execute("SELECT docshard.create_collection('own.third')").expect("a change by the new router");
    wait_until("shards have noted it", PATIENCE, || noted(&cluster).iter().all(|noted| *noted > Some(last)));
    let (state, message) = refused(&mut cluster.router.client(), "SELECT docshard.take_over_cluster()");
    assert_eq!(state, "55000", "{message}");
}

/// As of a release before 0.4.0, which has no place for it.
#[test]
fn a_shard_that_cannot_note_a_change_is_kept_nevertheless() {
    let cluster = impatient();
    cluster.shards[0].psql(
        "SET session_replication_role = replica; ALTER EVENT TRIGGER docshard_check_changes DISABLE;
         ALTER TABLE docshard_data.node DROP COLUMN definitions",
    );
    cluster.router.psql("SELECT docshard.enable_sharding('own', 'local')");
    cluster.router.psql("SELECT docshard.create_collection('own.first')");
    restore(&cluster, "equal");
    cluster.router.psql("SELECT docshard.create_collection('own.second')");
    wait_until("the other shard has noted it", PATIENCE, || {
        cluster.shards[1].value::<Option<i64>>("SELECT definitions FROM docshard_data.node")
            == Some(cluster.router.value("SELECT max(id) FROM docshard_catalog.changelog"))
    });
    assert_eq!(cluster.lock_holders(), [Some(true), Some(true)]);
    cluster.router.psql("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')");
    let mut copy = client(&cluster.router, "equal");
    let (_, message) = refused(&mut copy, "SELECT docshard.take_over_cluster()");
    assert!(message.contains("shard \"shard1\" (") && message.contains("changed definitions at entry "), "{message}");
}

/// A transaction at a shard has locked the row, as one that waits for a standby does. Without its lock on the shard the router would be a copy soon.
#[test]
fn a_note_that_waits_does_not_cost_the_lock() {
    let cluster = impatient();
    let keeper = "SELECT pid FROM pg_stat_activity WHERE application_name = 'docshard keeper'";
    wait_until("the locks", PATIENCE, || cluster.lock_holders() == [Some(true), Some(true)]);
    cluster.router.psql("SELECT docshard.enable_sharding('own', 'local')");
    let before: i32 = cluster.shards[0].value(keeper);
    let mut other = cluster.shards[0].client();
    other.batch_execute("BEGIN; SELECT FROM docshard_data.node FOR UPDATE").expect("a lock");
    cluster.router.psql("SELECT docshard.create_collection('own.first')");
    wait_until("the note has waited", PATIENCE, || {
        cluster.router.log().contains("canceling statement due to lock timeout")
    });
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(cluster.shards[0].value::<i32>(keeper), before);
    assert!(!cluster.router.log().contains("is lost"), "the keeper has kept the lock");
    other.batch_execute("ROLLBACK").expect("the end");

    // The same for a lock on the changelog, which the keeper reads after the change.
    let mut administrator = cluster.router.client();
    administrator.batch_execute("SELECT docshard.create_collection('own.second')").expect("a change");
    administrator.batch_execute("BEGIN; LOCK TABLE docshard_catalog.changelog").expect("a lock");
    std::thread::sleep(Duration::from_secs(5));
    let is_renewed =
        "SELECT query_start > now() - interval '4 s' FROM pg_stat_activity WHERE application_name = 'docshard keeper'";
    assert!(cluster.shards[0].value::<bool>(is_renewed), "the keeper renews the lock");
}
