//! Objects that a cluster needs cannot be dropped by mistake; and how a cluster is dismantled on purpose.

use docshard_tests::{Cluster, Node, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// SQLSTATE of a statement's error, and a text of its message and hint.
fn refusal(node: &Node, database: &str, sql: &str) -> (String, String) {
    let mut client = node.try_client_as("postgres", database).expect("a connection");
    let error = client.batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().code().to_owned(), format!("{}; {}", error.message(), error.hint().unwrap_or_default()))
}

/// Tries different statements that drop the same objects, and checks that all are refused.
fn assert_protected(node: &Node, table: &str, servers: &[&str]) {
    let mut drops = vec![
        "DROP EXTENSION docshard".to_owned(),
        "DROP EXTENSION docshard CASCADE".to_owned(),
        "DROP EXTENSION postgres_fdw CASCADE".to_owned(),
        "DROP FOREIGN DATA WRAPPER postgres_fdw CASCADE".to_owned(),
        "DROP SCHEMA docshard CASCADE".to_owned(),
        "DROP SCHEMA docshard_data CASCADE".to_owned(),
        "BEGIN; SAVEPOINT s; DROP EXTENSION docshard CASCADE; COMMIT".to_owned(),
        "DO $$ BEGIN EXECUTE 'DROP EXTENSION docshard CASCADE'; END $$".to_owned(),
        format!("DROP TABLE {table}"),
        format!("DROP TABLE {table} CASCADE"),
        format!("ALTER TABLE {table} DROP COLUMN doc"),
    ];
    if let Some(owner) = node
        .psql(&format!("SELECT tableowner FROM pg_tables WHERE 'docshard_data.' || tablename = '{table}'"))
        .trim()
        .strip_prefix("docshard_")
    {
        drops.push(format!("DROP OWNED BY docshard_{owner} CASCADE"));
    }
    for server in servers {
        drops.push(format!("DROP SERVER {server} CASCADE"));
        let users = node.psql(&format!("SELECT usename FROM pg_user_mappings WHERE srvname = '{server}' ORDER BY 1"));
        assert!(!users.trim().is_empty(), "{server} has a mapping");
        drops.extend(users.lines().map(|user| format!("DROP USER MAPPING FOR {user} SERVER {server}")));
    }
    for sql in &drops {
        let (code, message) = refusal(node, "postgres", sql);
        assert_eq!(code, "2BP01", "{sql}: {message}");
        assert!(message.starts_with("cannot drop "), "{sql}: {message}");
    }
    let (_, message) = refusal(node, "postgres", &drops[1]);
    assert!(message.contains("docshard.dismantle()"), "{message}");
}

fn counted(cluster: &Cluster) -> i64 {
    cluster.router.value("SELECT docshard.count_documents('test.c')")
}

fn fill(cluster: &Cluster) -> String {
    cluster.router.psql(
        "SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n",
    );
    cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'")
}

/// Every attempt fails, while other objects can be dropped, and docshard's own statements work.
#[test]
fn a_cluster_is_not_dropped_but_dismantled() {
    let cluster = Cluster::spread("test.c");
    let table = fill(&cluster);
    let router = &cluster.router;
    let shard = &cluster.shards[0];
    assert_protected(router, &table, &["docshard_shard0", "docshard_local"]);
    assert_protected(shard, &table, &["docshard_shard1", "docshard_local"]);
    router.psql("CREATE DATABASE elsewhere");
    for node in [router, shard] {
        node.psql("CREATE SCHEMA own; CREATE TABLE own.t (a int, b int); CREATE TABLE own.u (a int); ALTER TABLE own.t DROP COLUMN b; DROP TABLE own.u; DROP SCHEMA own CASCADE");
        node.psql("CREATE SERVER own FOREIGN DATA WRAPPER postgres_fdw; CREATE USER MAPPING FOR postgres SERVER own; DROP SERVER own CASCADE");
    }
    router.psql("CREATE DATABASE copied");
    let (code, message) = refusal(router, "elsewhere", "DROP DATABASE postgres");
    assert_eq!((code.as_str(), message.contains("it is a router of a docshard cluster")), ("2BP01", true), "{message}");
    shard.psql("CREATE DATABASE elsewhere");
    let (code, message) = refusal(shard, "elsewhere", "DROP DATABASE postgres WITH (FORCE)");
    assert_eq!((code.as_str(), message.contains("it is a shard of a docshard cluster")), ("2BP01", true), "{message}");
    assert_eq!(counted(&cluster), 300);

    // A copy of the router can be dropped after its owner has declared it a copy. The original and the shards are not affected.
    let dump = router.dump("postgres");
    let answer = router.psql_script("copied", &["-v", "ON_ERROR_STOP=1"], &dump);
    assert!(!answer.contains("ERROR"), "{answer}");
    assert_eq!(refusal(router, "elsewhere", "DROP DATABASE copied").0, "2BP01");
    router.psql("ALTER DATABASE copied RESET docshard.part_of_cluster");
    wait_until("the copy is dropped", PATIENCE, || {
        router.client().batch_execute("DROP DATABASE copied WITH (FORCE)").is_ok()
    });

    // docshard's own functions may drop objects.
    router.psql("SELECT docshard.create_collection('test.gone'); SELECT docshard.drop_collection('test.gone')");
    assert_eq!(counted(&cluster), 300);

    // The first call of dismantle only reports.
    let told = router.psql("SELECT docshard.dismantle()");
    assert!(told.contains(r#""shards":["shard0","shard1"]"#) && told.contains(r#""collections":1"#), "{told}");
    assert_eq!(refusal(router, "postgres", "SELECT docshard.dismantle('something')").0, "22023");
    router.psql("CREATE ROLE dba LOGIN; GRANT USAGE ON SCHEMA docshard TO dba; GRANT EXECUTE ON FUNCTION docshard.dismantle TO dba");
    let mut dba = router.try_client_as("dba", "postgres").expect("a connection");
    let refused = dba.batch_execute("SELECT docshard.dismantle()").expect_err("a dba is no superuser");
    assert_eq!(refused.code().map(postgres::error::SqlState::code), Some("42501"));
    drop(dba);
    assert_eq!(counted(&cluster), 300);
    router.psql("CREATE ROLE app LOGIN; SELECT docshard.grant_access('app')");
    let identity: String = router.value("SELECT docshard.dismantle() ->> 'confirm'");
    assert_eq!(
        refusal(router, "postgres", &format!("BEGIN; SELECT docshard.dismantle('{identity}'); COMMIT")).0,
        "25001"
    );
    // A prepared transaction of the cluster does not prevent it.
    router.psql("BEGIN; SELECT docshard.insert_many('test.c', ARRAY['{\"k\": 150, \"_id\": 1000}', '{\"k\": 250, \"_id\": 1001}']::jsonb[]); PREPARE TRANSACTION 'by hand'");
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 1);
    router.psql("ROLLBACK PREPARED 'by hand'");
    router.psql(&format!("SELECT docshard.dismantle('{identity}')"));
    for node in std::iter::once(router).chain(&cluster.shards) {
        let left = "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^[cm][0-9]'";
        assert_eq!(node.value::<Option<String>>(left), None, "{}", node.name);
        assert_eq!(node.psql("SELECT srvname FROM pg_foreign_server").trim(), "", "{}", node.name);
        assert_eq!(node.value::<i64>("SELECT count(*) FROM docshard_data.node"), 0, "{}", node.name);
        assert_eq!(
            node.value::<i64>("SELECT count(*) FROM pg_roles WHERE rolname = 'app' AND NOT rolcanlogin"),
            0,
            "{}",
            node.name
        );
    }
    assert_ne!(router.value::<String>("SELECT docshard.dismantle() ->> 'confirm'"), identity);
    // What remains is a new cluster: it can be used, join another cluster, or be dropped.
    router.psql("SELECT docshard.insert_one('test.c', '{\"_id\": 1}')");
    router.psql(&format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard1\"}}')", cluster.shards[1].url()));
    assert_eq!(refusal(router, "postgres", "DROP EXTENSION docshard CASCADE").0, "2BP01");
    shard.psql("DROP EXTENSION docshard CASCADE");
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'docshard_%'"), 0);
}

/// On a server that does not preload docshard, the event trigger loads it in time. A shard whose router is gone can be
/// dismantled by its own administrator.
#[test]
fn a_shard_without_its_router_is_dismantled() {
    let mut cluster = Cluster::spread("test.c");
    let table = fill(&cluster);
    let identity: String = cluster.router.value("SELECT docshard.dismantle() ->> 'confirm'");
    cluster.shards[0].stop();
    let unreachable = refusal(&cluster.router, "postgres", &format!("SELECT docshard.dismantle('{identity}')"));
    assert!(unreachable.0.starts_with("08") && unreachable.1.contains("skipUnreachable"), "{unreachable:?}");
    assert_eq!(cluster.shards[1].value::<i64>(&format!("SELECT count(*) FROM {table}")), 101);
    cluster.shards[0].configure("shared_preload_libraries = ''");
    cluster.shards[0].start();
    let shard = &cluster.shards[0];
    assert_protected(shard, &table, &["docshard_shard1", "docshard_local"]);
    cluster.router.psql("ALTER SERVER docshard_shard0 OPTIONS (SET port '1')");
    let done =
        cluster.router.psql(&format!("SELECT docshard.dismantle('{identity}', '{{\"skipUnreachable\": true}}')"));
    assert!(done.contains(r#""unreachable":["shard0"]"#), "{done}");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.placement"), 0);

    let told = shard.psql("SELECT docshard.dismantle()");
    assert!(
        told.contains(r#""role":"shard""#) && told.contains(r#""shard":"shard0""#) && told.contains(&identity),
        "{told}"
    );
    // The router, which belongs to a new cluster now, refuses the database as its shard.
    let url = shard.url();
    let add = format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"shard0\"}}')");
    assert!(refusal(&cluster.router, "postgres", &add).1.contains("of another docshard cluster"));
    shard.psql(&format!("SELECT docshard.dismantle('{identity}')"));
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'docshard%'"), 0);
    cluster.router.psql(&add);
    cluster.router.psql("SELECT docshard.enable_sharding('test', 'shard0')");
    let (code, message) = refusal(shard, "postgres", "DROP EXTENSION docshard CASCADE");
    assert_eq!(code, "2BP01", "{message}");
    // No object depends on the extension, so PostgreSQL would drop it even without CASCADE.
    let (code, message) = refusal(&cluster.router, "postgres", "DROP EXTENSION docshard");
    assert_eq!((code.as_str(), message.contains("is the router of a cluster")), ("2BP01", true), "{message}");
}

/// A database without documents and other shards can be dropped.
#[test]
fn an_extension_without_documents_is_dropped() {
    let cluster = Cluster::servers(0);
    let router = &cluster.router;
    router.psql("CREATE EXTENSION docshard CASCADE; SELECT docshard.create_collection('a.b')");
    router.psql("DROP EXTENSION docshard CASCADE");
    router.psql("CREATE EXTENSION docshard CASCADE; SELECT docshard.insert_one('a.b', '{}')");
    let (code, message) = refusal(router, "postgres", "DROP EXTENSION docshard CASCADE");
    assert_eq!((code.as_str(), message.contains("holds documents")), ("2BP01", true), "{message}");
    let (code, message) = refusal(router, "postgres", "DROP EXTENSION docshard");
    assert_eq!(code, "2BP01", "{message}");
    router.psql("SELECT docshard.drop_database('a'); DROP EXTENSION docshard");
}
