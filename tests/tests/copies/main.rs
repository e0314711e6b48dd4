//! Copies of the router: a restored dump, and a copy of its files. Only one of them acts as the router, the others change nothing.
//!
//! [`take_over`], [`dismantled`]: copies that become the router, and copies that leave the cluster. [`refused_logins`]: routers whose
//! login shards refuse.

mod dismantled;
mod refused_logins;
mod take_over;

use docshard_tests::{Cluster, Fault, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::time::Duration;

const NS: &str = "test.things";
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of `Cluster::spread` with documents on all nodes.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    cluster.router.psql("SELECT docshard.set_setting('balancer_interval_ms', '500')");
    cluster.router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', 0)))
           FROM generate_series(0, 290, 10) AS k"
    ));
    cluster
}

/// Restores a dump of the router into another database of its server.
fn restore(cluster: &Cluster, database: &str) {
    let file = cluster.router.scratch_file("dump");
    let file = file.to_str().expect("a path in UTF-8");
    cluster.router.program("pg_dump", &["-Fc", "-f", file]);
    cluster.router.psql(&format!("CREATE DATABASE {database}"));
    cluster.router.program("pg_restore", &["--exit-on-error", "-d", database, file]);
}

fn client(node: &Node, database: &str) -> Client {
    node.try_client_as("postgres", database).unwrap_or_else(|e| panic!("{database}: {e}"))
}

fn count(client: &mut Client, filter: &str) -> i64 {
    let sql = format!("SELECT docshard.count_documents('{NS}', '{filter}')");
    client.query_one(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
}

/// SQLSTATE and message of a statement that must fail.
fn refused(client: &mut Client, sql: &str) -> (String, String) {
    let error = client.batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().code().to_owned(), error.message().to_owned())
}

fn prepared(node: &Node) -> i64 {
    node.value("SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'docshard%'")
}

/// Makes the workers' launcher check all databases now.
fn wake_workers(cluster: &Cluster) {
    cluster.router.psql("SELECT docshard.set_setting('balancer_enabled', 'false')");
}

#[test]
fn a_restored_dump_changes_nothing_until_it_takes_over() {
    let cluster = cluster();
    let mut router = cluster.router.client();
    let written = format!(
        "BEGIN; SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', 'p' || k, 'k', k, 'p', 1)))
           FROM generate_series(150, 249, 2) AS k; PREPARE TRANSACTION 'of the client'"
    );
    router.batch_execute(&written).expect("a prepared transaction");
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [1, 1]);
    restore(&cluster, "restored");
    wake_workers(&cluster);
    // The copy's worker only reports that it is a copy.
    wait_until("the copy knows what it is", PATIENCE, || {
        cluster.router.log().contains("is a copy of its cluster's router")
    });
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [1, 1]);
    router.batch_execute("COMMIT PREPARED 'of the client'").expect("the router's decision");
    assert_eq!(count(&mut router, "{\"p\": 1}"), 50);

    // The copy can read, but not write.
    let mut copy = client(&cluster.router, "restored");
    assert_eq!(count(&mut copy, "{\"k\": {\"$gte\": 100}}"), 70);
    for sql in [
        "SELECT docshard.insert_one('test.things', '{\"k\": 150}')",
        "SELECT docshard.insert_one('test.things', '{\"k\": 1}')",
        "SELECT docshard.update_many('test.things', '{}', '{\"$set\": {\"n\": 2}}')",
        "SELECT docshard.delete_one('test.things', '{\"k\": 100}')",
        "SELECT docshard.insert_one('test.new', '{\"k\": 150}')",
        "SELECT docshard.run_command('test', '{\"insert\": \"things\", \"documents\": [{\"k\": 1}]}')",
        "SELECT docshard.run_command('admin', '{\"shardCollection\": \"test.more\", \"key\": {\"k\": 1}}')",
        "SELECT docshard.shard_collection('test.more', '{\"k\": 1}')",
        "SELECT docshard.create_index('test.things', '{\"n\": 1}')",
        "SELECT docshard.drop_collection('test.things')",
        "SELECT docshard.drop_database('test')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.split_at('test.things', '{\"k\": 150}')",
        "SELECT docshard.remove_shard('shard1')",
        "SELECT docshard.start_balancer()",
        "SELECT docshard.recover_moves()",
        "SELECT docshard.dismantle()",
        "SELECT docshard.rotate_service_password()",
        "SELECT docshard.set_setting('chunk_size_mb', '7')",
    ] {
        if sql.contains("run_command") {
            let answer: Value = copy.query_one(sql, &[]).expect(sql).get(0);
            assert_eq!(answer["code"], 10107, "{sql}: {answer}");
            continue;
        }
        let (state, message) = refused(&mut copy, sql);
        assert_eq!(state, "25006", "{sql}: {message}");
        assert!(message.contains("a copy of the cluster's router"), "{sql}: {message}");
    }
    let status: String = copy.query_one("SELECT docshard.status()", &[]).expect("the status").get(0);
    assert!(status.contains("a copy of the cluster's router"), "{status}");
    let status: String = router.query_one("SELECT docshard.status()", &[]).expect("the status").get(0);
    assert!(!status.contains("copy"), "{status}");
    assert_eq!(count(&mut router, "{}"), 80);

    // After `take_over_cluster()` the copy is the router, and no shard accepts the other one.
    router.batch_execute("BEGIN").expect("a transaction");
    router
        .batch_execute(&format!(
            "SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$gte\": 100}}}}', '{{\"$set\": {{\"n\": 3}}}}')"
        ))
        .expect("a write");
    let taken: Value = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    let epoch = taken["epoch"].as_i64().expect("a number");
    assert!(epoch > 1, "{taken}");
    assert_eq!(taken.get("unreachable").or(taken.get("preparedTransactions")), None, "{taken}");
    for shard in &cluster.shards {
        assert_eq!(shard.value::<i64>("SELECT epoch FROM docshard_data.node"), epoch, "{}", shard.name);
    }
    router.batch_execute("COMMIT").expect_err("its sessions at the shards have ended");
    wait_until("the other one knows that it is a copy", PATIENCE, || {
        let status: String = cluster.router.value("SELECT docshard.status()");
        status.contains("a copy of the cluster's router")
    });
    let (state, message) = refused(&mut router, "SELECT docshard.insert_one('test.things', '{\"k\": 1}')");
    assert_eq!(state, "25006", "{message}");
    assert!(message.contains(&format!("epoch {epoch}")), "{message}");
    for k in [1, 150, 250] {
        let insert = format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"t{k}\", \"k\": {k}}}')");
        copy.batch_execute(&insert).unwrap_or_else(|e| panic!("{insert}: {e:?}"));
    }
    copy.batch_execute(&format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$set\": {{\"m\": 1}}}}')"))
        .expect("a write on all shards");
    assert_eq!(count(&mut copy, "{\"n\": 3}"), 0);
    copy.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')").expect("a move");
    let id: i64 = copy.query_one("SELECT max(id) FROM docshard_catalog.migrations", &[]).expect("a move").get(0);
    assert!(id >= epoch << 32, "{id}");
    copy.batch_execute("SELECT docshard.create_collection('test.more')").expect("a collection");
    // Either of the two may become the router; now this one lacks what the other has done.
    let (state, message) = refused(&mut router, "SELECT docshard.take_over_cluster()");
    assert_eq!(state, "55000", "{message}");
    assert!(message.contains("test.things is at version"), "{message}");
    let force = "SELECT to_jsonb(docshard.take_over_cluster('{\"force\": true}'))";
    let taken: Value = router.query_one(force, &[]).expect("the answer").get(0);
    assert!(taken["epoch"].as_i64() > Some(epoch), "{taken}");
    assert!(taken["newerAtShards"].to_string().contains("test.things is at version"), "{taken}");
    router
        .batch_execute("SELECT docshard.insert_one('test.things', '{\"_id\": \"back\", \"k\": 1}')")
        .expect("a write");
}

/// Transactions that another router has prepared are left to the administrator after a take-over, except those that this
/// catalog has decided.
#[test]
fn what_the_replaced_router_has_prepared_is_left_alone() {
    let cluster = cluster();
    let mut router = cluster.router.client();
    for (name, k) in [("decided", 0), ("open", 1)] {
        let write = format!(
            "BEGIN; SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', '{name}' || k, 'k', k)))
               FROM generate_series(150 + {k}, 249, 50) AS k; PREPARE TRANSACTION '{name}'"
        );
        router.batch_execute(&write).expect("a prepared transaction");
    }
    let gids = |node: &Node| -> Vec<String> {
        let sql = "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'docshard%' ORDER BY prepared";
        node.client().query(sql, &[]).expect("a list").iter().map(|row| row.get(0)).collect()
    };
    let (first, second) = (gids(&cluster.shards[0]), gids(&cluster.shards[1]));
    assert_eq!((first.len(), second.len()), (2, 2));
    // The copy's catalog has a decided transaction, as if it had been dumped before the shards were informed.
    restore(&cluster, "restored");
    let mut copy = client(&cluster.router, "restored");
    for (gid, server) in [(&first[0], "docshard_shard0"), (&second[0], "docshard_shard1")] {
        copy.execute(
            "INSERT INTO docshard_catalog.transactions (gid, server) VALUES ($1, $2::text::name)",
            &[gid, &server],
        )
        .expect("a decision");
    }
    let taken: Value = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    assert_eq!(taken["preparedTransactions"].as_array().map(Vec::len), Some(4), "{taken}");
    wait_until("what was decided is committed", PATIENCE, || {
        gids(&cluster.shards[0]) == first[1..] && gids(&cluster.shards[1]) == second[1..]
    });
    wait_until("the log tells of the other", PATIENCE, || {
        let log = cluster.router.log();
        [&first[1], &second[1]].iter().all(|gid| log.contains(&format!("prepared transaction {gid} at shard")))
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((gids(&cluster.shards[0]), gids(&cluster.shards[1])), (first[1..].to_vec(), second[1..].to_vec()));
    assert_eq!(count(&mut copy, "{\"_id\": {\"$regex\": \"^decided\"}}"), 2);
}

/// `docshard.router_lock_timeout` of the routers in these tests.
const LOCK_TIMEOUT: &str = "6s";

/// A cluster whose router uses `LOCK_TIMEOUT`.
fn impatient() -> Cluster {
    let cluster = cluster();
    cluster.router.psql(&format!("ALTER SYSTEM SET docshard.router_lock_timeout = '{LOCK_TIMEOUT}'"));
    cluster.router.psql("SELECT pg_reload_conf()");
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    cluster
}

#[test]
fn a_copy_of_the_routers_files_finds_out_and_remembers() {
    let cluster = impatient();
    let mut router = cluster.router.client();
    let mut twin = cluster.router.clone_disk();
    router
        .batch_execute(&format!(
            "BEGIN; SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', 'p' || k, 'k', k, 'p', 1)))
               FROM generate_series(150, 249, 2) AS k; PREPARE TRANSACTION 'of the client'"
        ))
        .expect("a prepared transaction");
    wait_until("the twin knows what it is", PATIENCE, || twin.0.log().contains("is a copy of its cluster's router"));
    assert_eq!(cluster.shards.iter().map(prepared).collect::<Vec<_>>(), [1, 1]);
    router.batch_execute("COMMIT PREPARED 'of the client'").expect("the router's decision");
    assert_eq!(count(&mut router, "{\"p\": 1}"), 50);
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(!status.contains("copy"), "{status}");

    // After a restart it knows at once that it is a copy.
    twin.0.stop();
    twin.0.start();
    let mut copy = twin.0.client();
    let insert = "SELECT docshard.insert_one('test.things', '{\"_id\": \"t\", \"k\": 150}')";
    let (state, message) = refused(&mut copy, insert);
    assert_eq!(state, "25006", "{message}");
    assert!(message.contains("holds the lock on shard"), "{message}");
    assert_eq!(count(&mut copy, "{\"p\": 1}"), 50);
    assert_eq!(cluster.lock_holders(), [Some(true), Some(true)]);

    // It may take over the cluster; then the other database is the copy.
    let taken: Value = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    assert!(taken["epoch"].as_i64() > Some(1), "{taken}");
    copy.batch_execute(insert).expect("a write");
    wait_until("the other one knows that it is a copy", PATIENCE, || {
        cluster.router.log().contains("is a copy of its cluster's router")
    });
    let (state, message) = refused(&mut router, insert);
    assert_eq!(state, "25006", "{message}");
}

/// Everything that changes of metadata leave at a shard.
fn traces(node: &Node) -> String {
    node.psql(
        "SELECT collection_id, version FROM docshard_data.placement UNION ALL \
         SELECT oid::bigint, 0 FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace ORDER BY 1, 2",
    )
}

/// A copy that is still waiting for the locks may not change the cluster.
#[test]
fn a_copy_of_the_routers_files_changes_no_metadata_before_it_finds_out() {
    let mut cluster = cluster();
    // It never finds out by itself, and no counter shows that its catalog is older.
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '3600000')");
    cluster.router.psql("ALTER SYSTEM SET docshard.router_lock_timeout = '1h'");
    cluster.router.psql("SELECT pg_reload_conf()");
    let mut twin = cluster.router.clone_disk();
    let before: Vec<_> = cluster.shards.iter().map(traces).collect();
    std::thread::scope(|scope| {
        let twin = &twin;
        for sql in [
            "SELECT docshard.create_collection('other.things')",
            "SELECT docshard.insert_one('other.more', '{\"k\": 1}')",
            "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')",
            "SELECT docshard.create_index('test.things', '{\"n\": 1}')",
            "SELECT docshard.split_at('test.things', '{\"k\": 150}')",
            "SELECT docshard.drop_collection('test.things')",
            "SELECT docshard.set_setting('chunk_size_mb', '7')",
            "SELECT docshard.start_balancer()",
            "SELECT docshard.set_shard_address('shard0', 'host=127.0.0.1')",
            "SELECT docshard.dismantle((SELECT docshard.dismantle() ->> 'confirm'))",
        ] {
            scope.spawn(move || {
                let error = twin.0.client().batch_execute(sql).expect_err(sql);
                let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
                assert_eq!(error.code().code(), "57P03", "{sql}: {error:?}");
                assert!(error.message().contains("does not hold the lock"), "{sql}: {error:?}");
                assert!(error.hint().unwrap_or_default().contains("Try again"), "{sql}: {error:?}");
            });
        }
    });
    assert_eq!(cluster.shards.iter().map(traces).collect::<Vec<_>>(), before);
    // The router itself is not disturbed.
    cluster.router.psql("SELECT docshard.create_collection('test.more')");
    cluster.router.psql("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')");
    cluster.router.psql("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard0')");
    // When the router is gone, the copy gets the locks.
    cluster.router.stop();
    twin.0.psql("SELECT docshard.set_setting('chunk_size_mb', '7')");
    twin.0.stop();
}

/// A copy that has become the router reads and moves its own documents, while the former router still runs at the old address.
#[test]
fn documents_of_a_new_router_are_its_own() {
    moves_its_own_documents(false);
}

/// As on another machine, if the stored address is 127.0.0.1: it leads to the copy itself, but from a shard to the former router.
#[test]
fn shards_reach_a_new_router_whose_own_address_was_right() {
    moves_its_own_documents(true);
}

fn moves_its_own_documents(is_address_right: bool) {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.stop_balancer()");
    let twin = cluster.router.clone_disk();
    let mut copy = twin.0.client();
    if is_address_right {
        twin.0.psql(&format!("ALTER SERVER docshard_local OPTIONS (SET port '{}')", twin.0.port));
    }
    let address = format!(":{}/", twin.0.port);
    let taken: Value = copy.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    assert_eq!(
        taken["localAddress"].as_str().is_some_and(|local| local.contains(&address)),
        !is_address_right,
        "{taken}"
    );
    let in_local = "{\"k\": {\"$lt\": 100}}";
    let changed = format!("SELECT docshard.update_many('{NS}', '{in_local}', '{{\"$set\": {{\"n\": 1}}}}')");
    wait_until("the copy holds the locks", PATIENCE, || copy.batch_execute(&changed).is_ok());
    copy.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 5, \"k\": 5, \"n\": 1}}')"))
        .expect("an insert");
    let move_to = |shard: &str| format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 5}}', '{shard}')");
    let ones = "{\"k\": {\"$lt\": 100}, \"n\": 1}";
    for shard in ["shard0", "local"] {
        wait_until("the chunk moves", PATIENCE, || copy.batch_execute(&move_to(shard)).is_ok());
        assert_eq!(count(&mut copy, ones), 11, "in {shard}");
    }
    assert!(twin.0.value::<bool>(&format!("SELECT (docshard.check_collection('{NS}')::jsonb -> 'valid')::bool")));
    let table: String = twin
        .0
        .value("SELECT 'docshard_data.c' || id FROM docshard_catalog.collections WHERE namespace = 'test.things'");
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT count(*) FROM {table}")), 10);

    // An administrator's mistake: the server leads to the former router, here or at a shard.
    let former = format!("ALTER SERVER docshard_local OPTIONS (SET port '{}')", cluster.router.port);
    let own = format!("ALTER SERVER docshard_local OPTIONS (SET port '{}')", twin.0.port);
    for node in [&twin.0, &cluster.shards[0]] {
        node.psql(&former);
        let error = copy.batch_execute(&move_to("shard0")).expect_err("another database");
        let error = error.as_db_error().expect("an error of the server");
        assert!(error.message().contains("the database that was reached is another one"), "{error:?}");
        assert!(error.hint().unwrap_or_default().contains("set_local_address"), "{error:?}");
        node.psql(&own);
    }
    assert_eq!(count(&mut copy, ones), 11);
    copy.batch_execute(&move_to("shard0")).expect("a move");
    assert_eq!(count(&mut copy, ones), 11);
}

#[test]
fn relations_that_the_catalog_does_not_know_are_listed_and_dropped() {
    let cluster = cluster();
    let listed = || cluster.router.psql("SELECT * FROM docshard.list_orphaned_relations()");
    cluster.router.psql("SELECT docshard.create_index('test.things', '{\"k\": 1, \"n\": 1}')");
    assert_eq!(listed(), "");
    // A copy without a keeper is not detected, and does what it likes.
    let mut twin = cluster.router.clone_disk();
    twin.0.configure("shared_preload_libraries = ''");
    twin.0.stop();
    twin.0.start();
    // It would not build an index in the router's table, to which its server docshard_local leads.
    twin.0.psql(&format!("ALTER SERVER docshard_local OPTIONS (SET port '{}')", twin.0.port));
    twin.0.psql(
        "SELECT docshard.create_index('test.things', '{\"n\": 1}', '{\"unique\": false, \"name\": \"of the copy\"}')",
    );
    twin.0.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    twin.0.psql("SELECT docshard.insert_one('other.things', '{\"_id\": 1}')");
    let (table, index): (i32, i32) = {
        let numbers =
            "SELECT (SELECT max(id) FROM docshard_catalog.collections), (SELECT max(id) FROM docshard_catalog.indexes)";
        let row = twin.0.client().query_one(numbers, &[]).expect("numbers");
        (row.get(0), row.get(1))
    };
    let own: String = cluster
        .router
        .value("SELECT 'docshard_data.c' || id FROM docshard_catalog.collections WHERE namespace = 'test.things'");
    cluster.router.psql(&format!("CREATE INDEX i{index} ON {own} (id)"));
    let lines: Vec<String> =
        listed().lines().map(|line| line.rsplit_once('|').expect("columns").0.to_owned()).collect();
    let expected = [
        format!("local|docshard_data.i{index}"),
        format!("shard0|docshard_data.c{table}"),
        format!("shard0|docshard_data.i{index}"),
        format!("shard1|docshard_data.i{index}"),
    ];
    assert_eq!(lines, expected);
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("2 orphaned") && status.contains("1 orphaned"), "{status}");

    let mut router = cluster.router.client();
    let things: i32 =
        cluster.router.value("SELECT id FROM docshard_catalog.collections WHERE namespace = 'test.things'");
    for (shard, relation) in
        [("shard0", format!("c{things}")), ("shard1", format!("c{table}")), ("shard0", "node".into())]
    {
        let sql = format!("SELECT docshard.drop_orphaned_relation('{shard}', 'docshard_data.{relation}')");
        assert_eq!(refused(&mut router, &sql).0, "42P01", "{sql}");
    }
    for line in expected {
        let (shard, relation) = line.split_once('|').expect("two columns");
        router
            .batch_execute(&format!("SELECT docshard.drop_orphaned_relation('{shard}', '{relation}')"))
            .unwrap_or_else(|error| panic!("{line}: {error:?}"));
    }
    assert_eq!(listed(), "");
    assert_eq!(count(&mut router, "{}"), 30);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.changelog WHERE what = 'dropOrphan'"), 4);
}

/// A session of a dead keeper, which the shard still considers alive.
fn lingering(node: &Node) -> Client {
    let mut client = node.try_client_as(node.service_role().trim_matches('"'), "postgres").expect("the router's role");
    let mut holder: Option<String> = None;
    wait_until("the lock is free", PATIENCE, || {
        holder = client.query_one("SELECT docshard_internal.hold_router_lock(3600000)", &[]).expect("an answer").get(0);
        holder.is_none()
    });
    client
}

#[test]
fn a_router_that_comes_back_is_no_copy_of_itself() {
    let mut cluster = impatient();
    let is_router = |cluster: &Cluster| {
        wait_until("the router has its shards' locks", PATIENCE, || {
            cluster.lock_holders().iter().all(|holder| *holder == Some(true))
        });
        let insert = format!("SELECT docshard.insert_many('{NS}', ARRAY['{{\"k\": 150}}', '{{\"k\": 250}}']::jsonb[])");
        cluster.router.client().batch_execute(&insert).expect("a write");
    };
    let mut created = 0;
    // A change of metadata waits for the locks.
    let mut changes = |cluster: &Cluster| {
        created += 1;
        cluster.router.psql(&format!("SELECT docshard.create_collection('test.created{created}')"));
        cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"created{created}\": 1}}')"));
    };
    // The router restarts; it crashes and leaves a session behind; a standby takes its place, with a session left behind.
    cluster.router.stop();
    cluster.router.start();
    changes(&cluster);
    is_router(&cluster);
    cluster.router.crash();
    let mut left = lingering(&cluster.shards[0]);
    cluster.router.start();
    changes(&cluster);
    is_router(&cluster);
    left.batch_execute("SELECT 1").expect_err("it was ended");
    let standby = cluster.router.standby();
    let shard = &cluster.shards[1];
    let mut left = std::thread::scope(|scope| {
        let left = scope.spawn(|| lingering(shard));
        cluster.router.fail_over(standby);
        left.join().expect("a session")
    });
    is_router(&cluster);
    left.batch_execute("SELECT 1").expect_err("it was ended");
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(!status.contains("copy"), "{status}");
    assert!(!cluster.router.log().contains("is a copy of"), "the log knows of a copy");
}

/// A shard that hangs does not keep the keeper from locking the others.
#[test]
fn a_hung_shard_keeps_no_lock_from_being_held() {
    let cluster = impatient();
    let silence = "SELECT extract(epoch FROM clock_timestamp() - state_change)::float8 FROM pg_stat_activity
       WHERE application_name = 'docshard keeper'";
    cluster.shards[0].freeze_all();
    let mut client = cluster.shards[1].client();
    for _ in 0..14 {
        std::thread::sleep(Duration::from_millis(500));
        let seconds: f64 = client.query_one(silence, &[]).expect("one session").get(0);
        assert!(seconds < 4.0, "{seconds} s");
    }
    cluster.shards[0].thaw_all();
    wait_until("all locks are held again", PATIENCE, || cluster.lock_holders() == [Some(true), Some(true)]);
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(!status.contains("copy"), "{status}");
}

/// pg_upgrade gives a server another system identifier.
#[test]
fn upgraded_servers_are_named_anew() {
    let mut cluster = cluster();
    let (name, url) = (cluster.shards[0].name.clone(), cluster.shards[0].url());
    cluster.shards[0].change_system_identifier();
    // The function returns the unsigned number as a signed one.
    let node = "SELECT (system_identifier + CASE WHEN system_identifier < 0 THEN 2::numeric ^ 64 ELSE 0 END)::numeric(20)::text \
                FROM pg_control_system()";
    let now: String = cluster.shards[0].value(node);
    let known = format!("SELECT split_part(node, '/', 1) FROM docshard_catalog.shards WHERE name = '{name}'");
    assert_ne!(cluster.router.value::<String>(&known), now);
    let mut router = cluster.router.client();
    let insert = "SELECT docshard.insert_one('test.things', '{\"k\": 150}')";
    router.batch_execute(insert).expect("a write at a shard that was upgraded");
    let add = format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"{name}\"}}')");
    router.batch_execute(&add).expect("the same shard again");
    assert_eq!(cluster.router.value::<String>(&known), now);
    // A copy of the upgraded server is still detected as a copy.
    let url = cluster.shards[1].url();
    let other = format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"{name}\"}}')");
    assert_eq!(refused(&mut router, &other).0, "55000");

    drop(router);
    cluster.router.change_system_identifier();
    let mut router = cluster.router.client();
    assert_eq!(refused(&mut router, insert).0, "25006");
    let taken: Value =
        router.query_one("SELECT to_jsonb(docshard.take_over_cluster())", &[]).expect("the answer").get(0);
    assert!(taken["epoch"].as_i64() > Some(1), "{taken}");
    router.batch_execute(insert).expect("a write of the router that was upgraded");
    router.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')").expect("a move");
}

/// Another router, whose catalog had more collections, has created a table with this number.
#[test]
fn a_table_of_another_collection_is_not_adopted() {
    let cluster = cluster();
    let next: i32 = cluster.router.value("SELECT max(id) + 1 FROM docshard_catalog.collections");
    let shard = &cluster.shards[0];
    shard.psql(&format!("SELECT docshard_internal.create_table({next}, 4711, 1, false)"));
    shard.psql(&format!("INSERT INTO docshard_data.c{next} SELECT skey, id, doc FROM docshard_data.c{}", next - 1));
    assert!(shard.value::<i64>(&format!("SELECT count(*) FROM docshard_data.c{next}")) > 0);
    let mut router = cluster.router.client();
    let create = "SELECT docshard.shard_collection('test.hashed', '{\"_id\": \"hashed\"}')";
    let (state, message) = refused(&mut router, create);
    assert_eq!(state, "42P07", "{message}");
    router.batch_execute(create).expect("it has another number then");
    let count: i64 = router.query_one("SELECT docshard.count_documents('test.hashed')", &[]).expect("a count").get(0);
    assert_eq!(count, 0);
    // A table of the same collection is reused.
    let id: i32 = cluster.router.value("SELECT id FROM docshard_catalog.collections WHERE namespace = 'test.hashed'");
    let (token, version): (i64, i64) = {
        let row = shard
            .client()
            .query_one("SELECT token, version FROM docshard_data.placement WHERE collection_id = $1", &[&id]);
        row.map(|row| (row.get(0), row.get(1))).expect("its placement")
    };
    shard.psql(&format!("SELECT docshard_internal.create_table({id}, {token}, {version}, false)"));
}

/// A router that considers a move dead removes its capture: later writes are missing in the move.
#[test]
fn a_move_without_its_capture_changes_nothing() {
    let cluster = cluster();
    cluster.router.arm("move.cloned", Fault::Pause);
    let mut mover = cluster.router.client();
    let moving = std::thread::spawn(move || {
        mover.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')")
    });
    cluster.router.await_fault("move.cloned");
    cluster.shards[0].psql("DELETE FROM docshard_data.capture");
    let mut router = cluster.router.client();
    router
        .batch_execute("SELECT docshard.update_one('test.things', '{\"k\": 150}', '{\"$set\": {\"n\": 7}}')")
        .expect("an update");
    cluster.router.release("move.cloned");
    let error = moving.join().expect("it ends").expect_err("the move is aborted");
    let error = error.as_db_error().expect("an error of the server");
    assert!(error.message().contains("does not capture the range any more"), "{error:?}");
    assert_eq!((count(&mut router, "{\"n\": 7}"), count(&mut router, "{}")), (1, 30));
    assert_eq!(cluster.router.psql("SELECT count(*) FROM docshard.chunks WHERE shard = 'shard0'").trim(), "1");
}
