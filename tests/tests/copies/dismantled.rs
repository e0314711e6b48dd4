//! Copies that are dismantled: they leave the cluster, and the router keeps everything.

use super::{NS, PATIENCE, client, cluster, count, prepared, restore};
use docshard_tests::{Fault, wait_until};

/// A copy that leaves the cluster, as `dismantle` with `shards: false` lets it, reaches the router's database by docshard_local: the
/// transactions that are prepared there are the router's.
#[test]
fn a_copy_that_is_dismantled_leaves_the_router_as_it_is() {
    let cluster = cluster();
    restore(&cluster, "restored");
    let twin = cluster.router.clone_disk();
    cluster.router.arm("move.decided", Fault::Pause);
    let mut mover = cluster.router.client();
    let moving = std::thread::spawn(move || {
        mover.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'local')")
    });
    cluster.router.await_fault("move.decided");
    assert_eq!(prepared(&cluster.router), 1);
    let dismantle = "SELECT docshard.dismantle((SELECT docshard.dismantle(NULL, '{\"shards\": false}') ->> 'confirm'), '{\"shards\": false}')";
    for mut copy in [client(&cluster.router, "restored"), twin.0.client()] {
        copy.batch_execute(dismantle).expect("it leaves");
        let known: i64 = copy.query_one("SELECT count(*) FROM docshard.collections", &[]).expect("a count").get(0);
        assert_eq!((known, prepared(&cluster.router)), (0, 1));
    }
    cluster.router.release("move.decided");
    moving.join().expect("it ends").expect("a move");
    let mut router = cluster.router.client();
    assert_eq!((count(&mut router, "{}"), count(&mut router, "{\"k\": {\"$lt\": 200}}")), (30, 20));
    // The roles of the server are still the router's.
    router.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard0')").expect("a move");
    assert_eq!(count(&mut router, "{}"), 30);
}

/// Copies of a shard and of the router that are databases of the same server share its roles with them.
#[test]
fn a_copy_in_the_same_server_that_is_dismantled_takes_no_rights_away() {
    let cluster = cluster();
    cluster.router.psql("CREATE ROLE app LOGIN");
    cluster.router.psql("SELECT docshard.grant_access('app', '{\"write\": \"test\"}')");
    let dismantle = "SELECT docshard.dismantle((SELECT docshard.dismantle(NULL, '{\"shards\": false}') ->> 'confirm'), '{\"shards\": false}')";
    for node in [&cluster.shards[0], &cluster.router] {
        let roles: String =
            node.value("SELECT string_agg(quote_ident(rolname), ', ') FROM pg_roles WHERE rolname LIKE 'docshard\\_%'");
        node.psql(&format!(
            "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC; GRANT CONNECT ON DATABASE postgres TO app, {roles}; \
             GRANT CREATE ON TABLESPACE pg_default TO {roles}"
        ));
        let shared = "SELECT (SELECT datacl::text FROM pg_database WHERE datname = 'postgres') || \
                        (SELECT spcacl::text FROM pg_tablespace WHERE spcname = 'pg_default')";
        let before: String = node.value(shared);
        node.copy_database("twin");
        let mut copy = client(node, "twin");
        copy.batch_execute(dismantle).expect("it leaves");
        assert_eq!(node.value::<String>(shared), before, "{}", node.name);
        // Nothing of the roles is left in the copy.
        let left = "SELECT string_agg(d.refobjid::regrole || ' ' || pg_describe_object(d.classid, d.objid, 0), '; ') \
                    FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass \
                    AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert_eq!(copy.query_one(left, &[]).expect("an answer").get::<_, Option<String>>(0), None, "{}", node.name);
        drop(copy);
        node.psql("DROP DATABASE twin");
    }
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    let mut app = cluster.router.try_client_as("app", "postgres").expect("a session");
    assert_eq!(count(&mut app, "{}"), 30);
    for k in [1, 150, 250] {
        app.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": {k}}}')")).expect("a write");
    }
    let mut router = cluster.router.client();
    for (k, shard) in [(150, "local"), (150, "shard0"), (250, "shard0"), (1, "shard0"), (1, "local")] {
        let moved = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', '{shard}')");
        router.batch_execute(&moved).unwrap_or_else(|e| panic!("{moved}: {e:?}"));
    }
    assert_eq!(count(&mut app, "{}"), 33);
}
