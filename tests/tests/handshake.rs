//! The handshake: a connection first checks which server it has reached. See `core/src/cluster/handshake.rs`.

use docshard_tests::{Cluster, Conditions, Node, Proxy};
use postgres::{Client, NoTls};
use serde_json::json;
use std::time::Duration;

const NS: &str = "test.things";

/// The document of a key; `k` from 100 on is on `shard0`, from 200 on `shard1`: see `Cluster::spread`.
fn insert(k: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{}')", json!({"_id": k, "k": k}))
}

fn find(k: i64) -> String {
    format!("SELECT docshard.find_one('{NS}', '{}')", json!({"_id": k, "k": k}))
}

fn count() -> String {
    format!("SELECT docshard.count_documents('{NS}')")
}

/// Lets the router log in to all nodes as one role, such as an administrator may create: servers cannot be distinguished by their
/// roles.
fn use_one_role(cluster: &Cluster) {
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        node.psql("CREATE ROLE docs_router LOGIN SUPERUSER");
    }
    for shard in &cluster.shards {
        let server = format!("docshard_{}", shard.name);
        cluster
            .router
            .psql(&format!("ALTER USER MAPPING FOR postgres SERVER {server} OPTIONS (SET user 'docs_router')"));
    }
}

/// A cluster with ten documents on each node.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    for k in (0..10).chain(100..110).chain(200..210) {
        client.batch_execute(&insert(k)).expect("an insert");
    }
    cluster
}

/// Lets a shard's server lead to another port, at a node.
fn lead(node: &Node, shard: &str, port: u16) {
    node.psql(&format!("ALTER SERVER docshard_{shard} OPTIONS (SET port '{port}')"));
}

/// The error of a statement that a shard's handshake refuses; it names both sides.
fn refused(client: &mut Client, sql: &str, expected: &str, found: &str) {
    let error = client.batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    assert_eq!(error.code().code(), "08004", "{sql}: {error:?}");
    for name in [expected, found] {
        assert!(error.message().contains(&format!("\"{name}\"")), "{sql}: {error:?}");
    }
    assert_eq!(error.detail(), Some("MongoDB error 6 (HostUnreachable)."), "{sql}");
}

/// All documents are there, once.
fn check(cluster: &Cluster, documents: i64) {
    let mut client = cluster.router.client();
    assert_eq!(client.query_one(&count(), &[]).unwrap().get::<_, i64>(0), documents);
    let ids = format!("SELECT count(DISTINCT d->>'_id') FROM docshard.find('{NS}') d");
    assert_eq!(client.query_one(&ids, &[]).unwrap().get::<_, i64>(0), documents);
    for k in [0, 100, 109, 200, 209] {
        assert!(client.query_one(&find(k), &[]).unwrap().get::<_, Option<serde_json::Value>>(0).is_some(), "{k}");
    }
}

#[test]
fn a_server_that_leads_to_another_shard_is_refused() {
    let cluster = cluster();
    use_one_role(&cluster);
    let [a, b] = &cluster.shards[..] else { panic!("two shards") };
    // A session that was connected before notices, too.
    let mut old = cluster.router.client();
    old.batch_execute(&count()).unwrap();

    lead(&cluster.router, "shard1", a.port);
    for client in [&mut old, &mut cluster.router.client()] {
        for sql in [
            find(205),
            insert(220),
            count(),
            format!("BEGIN; {}; {}; COMMIT", insert(60), insert(221)),
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {}; COMMIT", find(205)),
            format!(
                "SELECT docshard.insert_many('{NS}', \
                 ARRAY['{{\"_id\": 50, \"k\": 50}}', '{{\"_id\": 222, \"k\": 222}}']::jsonb[])"
            ),
            format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$set\": {{\"x\": 1}}}}')"),
            format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"),
            "SELECT docshard.create_index('test.things', '{\"x\": 1}')".to_owned(),
        ] {
            refused(client, &sql, "shard1", "shard0");
            client.batch_execute("ROLLBACK").unwrap();
        }
        client.batch_execute(&find(105)).expect("the other shard answers");
    }
    let status: String = cluster.router.value("SELECT docshard.status()");
    let line = status.lines().find(|line| line.trim().starts_with("shard1 ")).expect("a line");
    assert!(line.contains("expected shard \"shard1\"") && line.contains("is shard \"shard0\""), "{status}");

    // Two swapped.
    lead(&cluster.router, "shard0", b.port);
    let mut client = cluster.router.client();
    refused(&mut client, &insert(223), "shard1", "shard0");
    refused(&mut client, &insert(120), "shard0", "shard1");
    refused(&mut client, &find(105), "shard0", "shard1");

    // The router itself is none of its other shards.
    lead(&cluster.router, "shard0", cluster.router.port);
    let error = client.batch_execute(&find(105)).expect_err("the router");
    assert!(format!("{error:?}").contains("the router of cluster"), "{error:?}");

    lead(&cluster.router, "shard0", a.port);
    lead(&cluster.router, "shard1", b.port);
    check(&cluster, 30);
    for client in [&mut old, &mut client] {
        client.batch_execute(&find(205)).expect("put back");
    }
    old.batch_execute(&insert(220)).expect("put back");
    check(&cluster, 31);
    assert_eq!(a.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 0);
}

#[test]
fn a_shard_pulls_from_the_donor_that_is_meant_only() {
    let cluster = cluster();
    let [a, b] = &cluster.shards[..] else { panic!("two shards") };
    let move_chunk = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')");
    let mut client = cluster.router.client();
    lead(b, "shard0", cluster.router.port);
    let error = client.batch_execute(&move_chunk).expect_err("another donor");
    let error = error.as_db_error().expect("an error of the server");
    let both =
        error.message().contains("expected shard \"shard0\"") && error.message().contains("the router of cluster");
    assert!(both && error.code().code() == "08004", "{error:?}");
    check(&cluster, 30);
    lead(b, "shard0", a.port);
    client.batch_execute(&move_chunk).expect("put back");
    check(&cluster, 30);
}

/// The first statement of a session needs as many round trips to a shard as a client that logs in there and sends it.
#[test]
fn the_handshake_costs_no_round_trip() {
    let cluster = cluster();
    let proxy = Proxy::before(cluster.shards[1].port);
    lead(&cluster.router, "shard1", proxy.port);
    cluster.router.psql("ALTER SERVER docshard_shard1 OPTIONS (ADD sslmode 'disable', ADD gssencmode 'disable')");
    // So long that everything the router sends without waiting for an answer precedes the answer.
    proxy.set(Conditions { delay: Duration::from_millis(150), ..Conditions::default() });

    let url = format!("postgresql://postgres@127.0.0.1:{}/postgres?application_name=direct", proxy.port);
    let mut direct = Client::connect(&url, NoTls).expect("a client of the shard");
    direct.batch_execute("SELECT 1").expect("an answer");
    let expected = proxy.round_trips("direct");
    assert_eq!(expected, 2, "to log in and to ask");

    let update = format!(
        "SELECT docshard.update_one('{NS}', '{}', '{}')",
        json!({"_id": 200, "k": 200}),
        json!({"$inc": {"n": 1}})
    );
    for sql in [find(200), update] {
        let mut client = cluster.router.client();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("a number").get(0);
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        // The session's connections are named after it: see `src/remote/options.rs`.
        let found = proxy.round_trips(&format!(".{pid:x}\0"));
        assert_eq!(found, expected, "{sql}");
    }
}
