//! The administrators' procedures of docs/operations.md, step by step, on clusters set up as described there: TLS everywhere,
//! passwords for all roles, applications that are not superusers, standbys.

use docshard_tests::{Cluster, Node, wait_until};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const APPLICATION: (&str, &str) = ("docs_app", "secret of the application");

/// Adds a shard under `address` with its superuser's login, which is kept out of logs.
fn add_shard(router: &Node, shard: &Node, address: &str) {
    let options = serde_json::json!({"name": shard.name, "user": "postgres", "password": shard.password()}).to_string();
    router
        .unlogged_client()
        .execute(
            "SELECT docshard.add_shard($1::text, $2::text::json)",
            &[&format!("{address} dbname=postgres"), &options],
        )
        .unwrap_or_else(|e| panic!("add_shard of {}: {e:?}", shard.name));
}

/// A cluster with a sharded collection of three hundred documents on all nodes, and an application that may write it.
fn cluster() -> Cluster {
    let cluster = Cluster::secure_servers(2);
    for shard in &cluster.shards {
        add_shard(&cluster.router, shard, &shard.verified_address());
    }
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.shard_collection('shop.orders', '{\"_id\": \"hashed\"}')");
    let (role, password) = APPLICATION;
    router.psql(&format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'"));
    router.psql(&format!("SELECT docshard.grant_access('{role}', '{{\"write\": \"shop\"}}')"));
    let loaded = application(
        router,
        "SELECT docshard.insert_many('shop.orders', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' \
         FROM generate_series(1, 300) AS n",
    );
    assert_eq!(loaded, "300");
    cluster
}

fn application(router: &Node, sql: &str) -> String {
    router.as_application(APPLICATION.0, APPLICATION.1, sql)
}

/// Checks that all documents exist and that the application can write.
fn check(router: &Node) {
    assert_eq!(application(router, "SELECT docshard.count_documents('shop.orders')"), "300");
    let updated = "SELECT docshard.update_many('shop.orders', '{}', '{\"$inc\": {\"n\": 1}}') -> 'modifiedCount'";
    assert_eq!(application(router, updated), "300");
}

/// Moves a chunk of each shard to the next one, and moves all of them back.
fn move_around(router: &Node) {
    let mut client = router.client();
    let chunks = "SELECT shard, min FROM (SELECT DISTINCT ON (shard) shard, min::text FROM docshard.chunks ORDER BY shard, min_key) AS c";
    let chunks: Vec<(String, String)> =
        client.query(chunks, &[]).expect("chunks").iter().map(|row| (row.get(0), row.get(1))).collect();
    let places: Vec<_> = chunks.iter().map(|(shard, _)| shard.clone()).collect();
    for step in [1, 0] {
        for (at, (_, min)) in chunks.iter().enumerate() {
            let to = &places[(at + step) % places.len()];
            let bounds = "SELECT docshard.move_range('shop.orders', c.min, c.max, $2) FROM docshard.chunks c WHERE c.min::text = $1";
            client.query(bounds, &[min, to]).unwrap_or_else(|e| panic!("{min} to {to}: {e:?}"));
        }
    }
}

fn call(router: &Node, call: &str) -> Value {
    router.value(&format!("SELECT docshard.{call}"))
}

/// The message of a call's error.
fn refused(router: &Node, call: &str) -> String {
    let error = router.client().batch_execute(&format!("SELECT docshard.{call}")).expect_err(call);
    error.as_db_error().unwrap_or_else(|| panic!("{call}: {error}")).message().to_owned()
}

/// Checks that shards log nothing when the router's sessions end normally. (With TLS, a server logs a reset connection if the
/// client does not announce the end.)
fn check_logs(shards: &[Node]) {
    for shard in shards {
        let log = shard.log();
        let is_accident =
            |line: &&str| ["reset by peer", "unexpected EOF", "Broken pipe"].iter().any(|one| line.contains(one));
        let accidents: Vec<_> = log.lines().filter(is_accident).collect();
        assert!(accidents.is_empty(), "{}: {accidents:?}", shard.name);
    }
}

#[test]
fn sessions_end_in_order_and_shards_come_and_go() {
    let cluster = cluster();
    let router = &cluster.router;
    check(router);
    move_around(router);
    for statement in [
        "SELECT docshard.insert_one('shop.orders', '{\"_id\": 0}')",
        "SELECT docshard.delete_one('shop.orders', '{\"_id\": 0}')",
        "SELECT * FROM docshard.find('shop.orders') LIMIT 1",
        "BEGIN; SELECT docshard.insert_one('shop.orders', '{}'); ROLLBACK",
        "BEGIN; SELECT docshard.insert_one('shop.orders', '{}')",
        "SELECT docshard.find('shop.orders', '{\"$expr\": {\"$divide\": [1, 0]}}')",
    ] {
        application(router, statement);
    }
    router.psql("SELECT * FROM docshard.health; SELECT docshard.status()");
    // A session that is terminated while it works.
    let mut client = router.client();
    client
        .batch_execute("BEGIN; SELECT docshard.update_many('shop.orders', '{}', '{\"$set\": {\"m\": 1}}')")
        .expect("it writes");
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("a number").get(0);
    router.psql(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
    check(router);

    assert_eq!(call(router, "rotate_service_password()")["ok"], 1);
    check(router);

    // The shard is removed, and added again.
    router.psql("SELECT docshard.start_balancer()");
    let remove = || call(router, "remove_shard('shard1')")["state"].as_str().unwrap_or_default().to_owned();
    assert_eq!(remove(), "started");
    wait_until("shard1 is removed", PATIENCE, || remove() == "completed");
    check(router);
    router.psql("SELECT docshard.stop_balancer()");
    add_shard(router, &cluster.shards[1], &cluster.shards[1].verified_address());
    let chunk = "docshard.move_range('shop.orders', c.min, c.max, 'shard1')";
    router.psql(&format!("SELECT {chunk} FROM docshard.chunks c WHERE shard <> 'shard1' ORDER BY min_key LIMIT 1"));
    check(router);
    check_logs(&cluster.shards);
}

#[test]
fn a_shard_moves_to_another_server() {
    let mut cluster = cluster();
    let [port0, router_port] = [cluster.shards[0].port, cluster.router.port];
    let root = cluster.router.verified_address();
    let (_, tls) = root.split_once("sslmode").expect("it says how TLS is used");
    let address = |port: u16| format!("host=127.0.0.1 port={port} sslmode{tls}");
    // The state before a chunk was moved there.
    let old = cluster.shards[1].backup();
    let chunk = "docshard.move_range('shop.orders', c.min, c.max, 'shard1')";
    cluster
        .router
        .psql(&format!("SELECT {chunk} FROM docshard.chunks c WHERE shard = 'local' ORDER BY min_key LIMIT 1"));

    // An address that leads elsewhere changes nothing.
    let router = &cluster.router;
    let set = |conn: &str| format!("set_shard_address('shard1', '{conn}')");
    let servers =
        "SELECT string_agg(srvname || array_to_string(srvoptions, ' '), ';' ORDER BY srvname) FROM pg_foreign_server";
    let all = |cluster: &Cluster| -> Vec<String> {
        std::iter::once(&cluster.router).chain(&cluster.shards).map(|node| node.value(servers)).collect()
    };
    let before = all(&cluster);
    for (conn, expected) in [
        (address(port0), "could not connect"),
        (address(router_port), "could not connect"),
        (address(1), "could not connect"),
        (format!("{} dbname=template1", address(cluster.shards[1].port)), "leads to a database that is not a shard"),
        ("port=5433".to_owned(), "the address has no host"),
        ("host=127.0.0.1 password=x".to_owned(), "must not contain a user or password"),
    ] {
        let error = refused(router, &set(&conn));
        assert!(error.contains(expected), "{conn}: {error}");
    }
    assert!(refused(router, "set_shard_address('local', 'host=127.0.0.1')").contains("router's own database"));
    // MongoDB's form of a connection string cannot contain a login, and the message must not show it.
    let login = refused(router, &set("rs0/root:s3cret@127.0.0.1:1"));
    assert!(login.contains("malformed") && !login.contains("s3cret"), "{login}");
    let mut client = router.client();
    client.batch_execute("BEGIN").expect("a transaction");
    let error =
        client.batch_execute(&format!("SELECT docshard.{}", set(&address(port0)))).expect_err("in a transaction");
    assert!(error.as_db_error().is_some_and(|error| error.message().contains("transaction block")), "{error:?}");
    drop(client);
    assert_eq!(all(&cluster), before);

    // A standby on another machine is promoted. The application gets errors until the router has the new address.
    let standby = cluster.shards[1].standby();
    cluster.shards[1].fail_over_to(standby);
    let new = cluster.shards[1].port;
    assert!(application(&cluster.router, "SELECT docshard.count_documents('shop.orders')").contains("shard1"));
    let answer = call(&cluster.router, &set(&address(new)));
    assert_eq!((&answer["ok"], &answer["pending"]), (&Value::from(1), &Value::Null), "{answer}");
    assert_eq!(answer["host"], format!("127.0.0.1:{new}/postgres"));
    check(&cluster.router);
    move_around(&cluster.router);
    let there =
        format!("SELECT 'port={new}' = ANY (srvoptions) FROM pg_foreign_server WHERE srvname = 'docshard_shard1'");
    assert!(cluster.shards[0].value::<bool>(&there));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.changelog WHERE what = 'setAddress'"), 1);

    // A shard that is down gets the address later.
    cluster.shards[0].stop();
    let answer = call(&cluster.router, &set(&address(new)));
    assert_eq!(answer["pending"][0]["shard"], "shard0", "{answer}");
    cluster.shards[0].start();
    assert_eq!(call(&cluster.router, &set(&address(new)))["pending"], Value::Null);
    check(&cluster.router);
    check_logs(&cluster.shards[1..]);

    // The address is right, but the server there is an older copy.
    let ports: Vec<u16> = cluster.shards.iter().map(|shard| shard.port).collect();
    cluster.shards[1].restore(old);
    let error = refused(&cluster.router, &set(&address(ports[1])));
    assert!(error.contains("has another version of shop.orders than the catalog"), "{error}");
}

#[test]
fn failover_behind_addresses_of_all_hosts() {
    let mut cluster = Cluster::secure_servers(2);
    let (shard_standby, router_standby) = (cluster.shards[0].standby(), cluster.router.standby());
    let root = cluster.router.verified_address();
    let (_, tls) = root.split_once("sslmode").expect("it says how TLS is used");
    let tls = format!("sslmode{tls}");
    let both = |port: u16, other: u16| {
        format!("host=127.0.0.1,127.0.0.1 port={port},{other} target_session_attrs=read-write {tls}")
    };
    let router = &cluster.router;
    add_shard(router, &cluster.shards[0], &both(cluster.shards[0].port, shard_standby.port()));
    let answer = call(router, &format!("set_local_address('{}')", both(router.port, router_standby.port())));
    assert_eq!((&answer["shard"], &answer["pending"]), (&Value::from("local"), &Value::Null), "{answer}");
    // A shard that is added later gets the same address.
    add_shard(router, &cluster.shards[1], &cluster.shards[1].verified_address());
    for shard in &cluster.shards {
        let hosts: String = shard.value(
            "SELECT option_value FROM pg_foreign_server, pg_options_to_table(srvoptions) WHERE srvname = 'docshard_local' \
             AND option_name = 'port'",
        );
        assert_eq!(hosts, format!("{},{}", router.port, router_standby.port()));
    }
    for (conn, expected) in [
        (cluster.shards[0].verified_address(), "could not connect"),
        (format!("host=127.0.0.1 port=1 {tls}"), "could not connect"),
        (format!("host=127.0.0.1 port={} sslmode=disable", router.port), "could not connect"),
    ] {
        let error = refused(router, &format!("set_local_address('{conn}')"));
        assert!(error.contains(expected), "{conn}: {error}");
    }

    let (role, password) = APPLICATION;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.enable_sharding('shop', 'local'); SELECT docshard.create_collection('shop.orders')");
    router.psql(&format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'"));
    router.psql(&format!("SELECT docshard.grant_access('{role}', '{{\"write\": \"shop\"}}')"));
    let load = "SELECT docshard.insert_many('shop.orders', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' \
                FROM generate_series(1, 300) AS n";
    assert_eq!(application(router, load), "300");
    let mut went = Vec::new();
    let mut go = |router: &Node, to: &str| {
        assert_eq!(call(router, &format!("move_primary('shop', '{to}')"))["documents"], 300);
        went.push(to.to_owned());
        check(router);
    };
    go(router, "shard0");
    go(router, "local");
    cluster.shards[0].fail_over_to(shard_standby);
    go(&cluster.router, "shard0");
    cluster.router.fail_over_to(router_standby);
    let router = &cluster.router;
    wait_until("the new router's worker is there", PATIENCE, || {
        router.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type ~ '^docshard'")
    });
    check(router);
    go(router, "local");
    go(router, "shard1");
    go(router, "shard0");
    let timelines = "SELECT string_agg(timeline::text, ' ' ORDER BY shard) FROM docshard.health";
    assert_eq!(router.value::<String>(timelines), "2 2 1");
    assert_eq!(call(router, "rotate_service_password()")["ok"], 1);
    check(router);
    let answer = call(router, &format!("set_local_address('host=127.0.0.1 port={} {tls}')", router.port));
    assert_eq!(answer["host"], format!("127.0.0.1:{}/postgres", router.port));
    go(router, "local");
}
