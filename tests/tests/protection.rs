//! Objects that a cluster needs cannot be dropped by mistake; and how a cluster is dismantled on purpose.

use docshard_tests::{Cluster, Fault, Node, wait_until};
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
    // As after a take-over.
    router.psql("SELECT setval('docshard_catalog.migrations_id_seq', 5::int8 << 32)");
    router.psql(&format!("SELECT docshard.dismantle('{identity}')"));
    assert_eq!(
        router.value::<i64>("SELECT last_value FROM docshard_catalog.migrations_id_seq"),
        1,
        "moves of the new cluster"
    );
    for node in std::iter::once(router).chain(&cluster.shards) {
        let left = "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^[cm][0-9]'";
        assert_eq!(node.value::<Option<String>>(left), None, "{}", node.name);
        assert_eq!(node.psql("SELECT srvname FROM pg_foreign_server").trim(), "docshard", "{}", node.name);
        assert_eq!(node.value::<i64>("SELECT count(*) FROM docshard_data.node"), 0, "{}", node.name);
        assert_eq!(
            node.value::<i64>("SELECT count(*) FROM pg_roles WHERE rolname = 'app' AND NOT rolcanlogin"),
            0,
            "{}",
            node.name
        );
    }
    assert_ne!(router.value::<String>("SELECT docshard.dismantle() ->> 'confirm'"), identity);
    router.psql("DROP ROLE app");
    // What remains is a new cluster: it can be used, join another cluster, or be dropped.
    router.psql("SELECT docshard.insert_one('test.c', '{\"_id\": 1}')");
    router.psql(&format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard1\"}}')", cluster.shards[1].url()));
    assert_eq!(refusal(router, "postgres", "DROP EXTENSION docshard CASCADE").0, "2BP01");
    shard.psql("DROP EXTENSION docshard CASCADE");
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'docshard_%'"), 0);
}

/// A call that ended half way is repeated, by two sessions at once. One of them completes it.
#[test]
fn a_cluster_is_dismantled_once() {
    let cluster = Cluster::spread("test.c");
    let table = fill(&cluster);
    let router = &cluster.router;
    let identity: String = router.value("SELECT docshard.dismantle() ->> 'confirm'");
    let dismantle = format!("SELECT docshard.dismantle('{identity}')::text");
    let mut reader = cluster.shards[1].client();
    reader.batch_execute(&format!("BEGIN; LOCK TABLE {table}")).expect("a lock");
    let mut hasty = router.client();
    hasty.batch_execute("SET statement_timeout = '3s'").expect("a setting");
    hasty.batch_execute(&dismantle).expect_err("it waits for the lock");
    let left = |node: &Node| node.value::<i64>("SELECT count(*) FROM docshard_data.node");
    assert_eq!((left(&cluster.shards[0]), left(&cluster.shards[1])), (0, 1));
    let answers = std::thread::scope(|scope| {
        let calls = [(); 2].map(|()| scope.spawn(|| router.client().query_one(&dismantle, &[])));
        wait_until("both wait", PATIENCE, || {
            router.value("SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE 'SELECT docshard.dismantle(''%' AND state = 'active'")
        });
        reader.batch_execute("ROLLBACK").expect("no lock");
        calls.map(|call| call.join().expect("it ends"))
    });
    let (done, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let done: Vec<String> = done.into_iter().flatten().map(|row| row.get(0)).collect();
    assert!(done.len() == 1 && !done[0].contains("unreachable"), "{done:?}");
    let refused = refused.into_iter().find_map(Result::err).expect("the other one");
    assert!(format!("{refused:?}").contains("another session has just dismantled this cluster"), "{refused:?}");
    assert_eq!((left(&cluster.shards[0]), left(&cluster.shards[1])), (0, 0));
}

/// A running change of layout prevents it; of those that have ended, nothing is left.
#[test]
fn a_cluster_is_not_dismantled_while_a_layout_changes() {
    let cluster = Cluster::spread("test.c");
    fill(&cluster);
    let router = &cluster.router;
    let dismantle =
        format!("SELECT docshard.dismantle('{}')", router.value::<String>("SELECT docshard.dismantle() ->> 'confirm'"));
    router.arm("reshard.caught_up", Fault::Pause);
    std::thread::scope(|scope| {
        let change = "SELECT docshard.unshard_collection('test.c', 'shard1')";
        let changing = scope.spawn(|| router.client().batch_execute(change));
        router.await_fault("reshard.caught_up");
        let (code, message) = refusal(router, "postgres", &dismantle);
        assert_eq!(code, "55006", "{message}");
        assert!(message.contains("docshard.abort_reshard_collection('test.c')"), "{message}");
        router.release("reshard.caught_up");
        changing.join().expect("it ends").expect("it is not disturbed");
    });
    assert_eq!(counted(&cluster), 300);
    router.psql(&dismantle);
    assert_eq!(router.value::<i64>("SELECT count(*) FROM docshard_catalog.resharding"), 0);
}

/// A database that could not be added is no shard, and the applications' roles have no rights there.
#[test]
fn a_shard_that_cannot_be_added_is_no_shard() {
    let cluster = Cluster::servers(2);
    let (router, new) = (&cluster.router, &cluster.shards[1]);
    router.psql("CREATE EXTENSION docshard CASCADE");
    router.psql(&format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard0\"}}')", cluster.shards[0].url()));
    router.psql("CREATE ROLE app LOGIN; SELECT docshard.grant_access('app', '{\"write\": \"test\"}')");
    // A role of the name that one of its siblings logs in with.
    let puller: String = cluster.shards[0]
        .value("SELECT rolname FROM pg_roles WHERE rolname LIKE 'docshard\\_%' AND rolname !~ '_s[0-9]+$'");
    new.psql(&format!("CREATE ROLE {puller} LOGIN"));
    let add = format!("SELECT docshard.add_shard('{}', '{{\"name\": \"shard1\"}}')", new.url());
    let (_, message) = refusal(router, "postgres", &add);
    assert!(message.contains("does not belong to this database's router"), "{message}");
    assert_eq!(new.value::<i64>("SELECT count(*) FROM docshard_data.node"), 0);
    assert_eq!(new.value::<i64>("SELECT count(*) FROM pg_roles WHERE rolname = 'app'"), 0);
    new.psql("DROP EXTENSION docshard CASCADE");
    new.psql(&format!("DROP ROLE {puller}"));
    router.psql(&add);
    router.psql("SELECT docshard.enable_sharding('test', 'shard1')");
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

/// A router and two shards with documents on each, a secondary index, and objects of an administrator. The second shard does not preload
/// docshard.
fn with_tables() -> (Cluster, String, String) {
    let mut cluster = Cluster::spread("test.c");
    cluster.shards[1].stop();
    cluster.shards[1].configure("shared_preload_libraries = ''\nmax_prepared_transactions = 64");
    cluster.shards[1].start();
    let table = fill(&cluster);
    cluster.router.psql("SELECT docshard.create_index('test.c', '{\"n\": 1, \"tags\": 1}', '{\"name\": \"by_n\"}')");
    let index =
        cluster.router.value("SELECT 'docshard_data.i' || id FROM docshard_catalog.indexes WHERE name = 'by_n'");
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        node.psql(&format!(
            "CREATE SCHEMA own; CREATE ROLE other; GRANT CREATE ON SCHEMA docshard_data TO other;
             CREATE FUNCTION own.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TABLE own.parent (skey bytea NOT NULL, id bytea NOT NULL, doc docshard.document NOT NULL);
             CREATE TABLE own.parts (LIKE {table}) PARTITION BY RANGE (skey);
             CREATE TABLE own.child (LIKE {table})"
        ));
    }
    (cluster, table, index)
}

fn check(cluster: &Cluster) -> serde_json::Value {
    serde_json::from_str(&cluster.router.psql("SELECT docshard.check_collection('test.c')")).expect("a report")
}

/// Statements that change what docshard created, in every session, preloaded or not.
#[test]
fn a_collections_table_is_not_changed() {
    let (cluster, table, index) = with_tables();
    let name = table.strip_prefix("docshard_data.").expect("a table");
    let entries = index.strip_prefix("docshard_data.").expect("an index");
    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        let owner = node.psql(&format!("SELECT tableowner FROM pg_tables WHERE tablename = '{name}'"));
        let owner = owner.trim();
        let mut refused: Vec<String> = [
            "RENAME TO elsewhere",
            "SET SCHEMA own",
            "RENAME COLUMN doc TO document",
            "ADD COLUMN extra int",
            "SET (fillfactor = 90), ADD COLUMN extra int",
            "DROP COLUMN doc",
            "ALTER COLUMN doc TYPE jsonb",
            "ALTER COLUMN doc DROP NOT NULL",
            "ALTER COLUMN doc SET DEFAULT '{}'",
            &format!("DROP CONSTRAINT {name}_pkey"),
            &format!("RENAME CONSTRAINT {name}_pkey TO other"),
            "DISABLE TRIGGER capture",
            "DISABLE TRIGGER refuse_truncate",
            "DISABLE TRIGGER ALL",
            "DISABLE TRIGGER USER",
            "ENABLE TRIGGER capture",
            "ENABLE REPLICA TRIGGER capture",
            "SET UNLOGGED",
            "INHERIT own.parent",
            "ENABLE ROW LEVEL SECURITY",
            "FORCE ROW LEVEL SECURITY",
            "OWNER TO other",
        ]
        .iter()
        .map(|change| format!("ALTER TABLE {table} {change}"))
        .collect();
        refused.extend([
            format!("TRUNCATE {table}"),
            format!("TRUNCATE own.child, {table} CASCADE"),
            format!("DROP INDEX {index}"),
            format!("DROP INDEX CONCURRENTLY {index}"),
            format!("DROP INDEX {index}_entries CASCADE"),
            format!("ALTER INDEX {index} RENAME TO other"),
            format!("ALTER INDEX {table}_pkey RENAME TO other"),
            format!("DROP TRIGGER capture ON {table}"),
            format!("DROP TRIGGER refuse_truncate ON {table}"),
            format!("ALTER TRIGGER capture ON {table} RENAME TO other"),
            format!("CREATE RULE r AS ON INSERT TO {table} DO INSTEAD NOTHING"),
            format!("ALTER TABLE own.child INHERIT {table}"),
            format!("ALTER TABLE own.parts ATTACH PARTITION {table} DEFAULT"),
            format!("SET session_replication_role = replica; ALTER TABLE {table} ADD COLUMN extra int"),
            format!("SET session_replication_role = replica; TRUNCATE {table}"),
            format!("BEGIN; SAVEPOINT s; ALTER TABLE {table} ADD COLUMN extra int; COMMIT"),
            format!("BEGIN; ALTER TABLE own.child ADD COLUMN extra int; ALTER TABLE {table} ADD COLUMN extra int; COMMIT"),
            format!("DO $$ BEGIN EXECUTE 'ALTER TABLE {table} ADD COLUMN extra int'; END $$"),
            format!(
                "DO $$ BEGIN BEGIN ALTER TABLE own.child ADD COLUMN skey int; EXCEPTION WHEN duplicate_column THEN NULL; END;
                 ALTER TABLE {table} RENAME TO elsewhere; END $$"
            ),
            "ALTER SCHEMA docshard_data RENAME TO other".to_owned(),
            "DROP SCHEMA docshard_data CASCADE".to_owned(),
        ]);
        if owner != "postgres" {
            refused.push(format!("DROP OWNED BY {owner} CASCADE"));
            refused.push(format!("LOAD 'docshard'; REASSIGN OWNED BY {owner} TO other"));
        }
        for sql in &refused {
            let (code, message) = refusal(node, "postgres", sql);
            assert_eq!(code, "2BP01", "{}: {sql}: {message}", node.name);
            assert!(message.starts_with("cannot ") && message.contains("docshard"), "{sql}: {message}");
            assert!(!message.ends_with("; "), "{sql} has no hint: {message}");
        }
        // What administrators need.
        for sql in [
            "VACUUM {t}",
            "VACUUM (FULL) {t}",
            "ANALYZE {t}",
            "REINDEX TABLE {t}",
            "REINDEX INDEX CONCURRENTLY {i}",
            "CLUSTER {t} USING {n}_pkey",
            "ALTER TABLE {t} SET (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.1)",
            "ALTER TABLE {t} RESET (fillfactor)",
            "ALTER TABLE {t} ALTER COLUMN doc SET STATISTICS 500",
            "ALTER TABLE {t} ALTER COLUMN doc SET STORAGE EXTERNAL",
            "ALTER TABLE {t} ALTER COLUMN doc SET COMPRESSION pglz",
            "ALTER TABLE {t} SET TABLESPACE pg_default",
            "ALTER TABLE {t} REPLICA IDENTITY FULL",
            "ALTER INDEX {i} SET (fillfactor = 80)",
            "GRANT SELECT ON {t} TO other; REVOKE SELECT ON {t} FROM other",
            "COMMENT ON TABLE {t} IS 'documents'",
            "CREATE INDEX mine ON {t} (octet_length(doc::text)); ALTER INDEX docshard_data.mine RENAME TO mine2; DROP INDEX docshard_data.mine2",
            "CREATE TRIGGER mine AFTER INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION own.nothing()",
            "ALTER TABLE {t} DISABLE TRIGGER mine",
            "DROP TRIGGER mine ON {t}",
            "CREATE STATISTICS docshard_data.mine ON skey, id FROM {t}",
            "ALTER TABLE own.child ADD COLUMN extra int, ADD COLUMN extra2 int; ALTER TABLE own.child DROP COLUMN extra; TRUNCATE own.child",
            "ALTER TABLE own.child RENAME TO child2; ALTER TABLE own.child2 RENAME TO child",
            "CREATE TEMP TABLE t (a int); ALTER TABLE t ADD COLUMN b int; TRUNCATE t; DROP TABLE t",
        ] {
            let sql = sql.replace("{t}", &table).replace("{i}", &index).replace("{n}", name);
            let mut client = node.client();
            for sql in sql.split("; ") {
                client.batch_execute(sql).unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", node.name));
            }
        }
    }
    assert!(entries.starts_with('i'));
    assert_eq!(counted(&cluster), 300);
    let report = check(&cluster);
    assert_eq!(report["valid"], true, "{report}");
    // docshard's own changes.
    for sql in [
        "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'local')",
        "SELECT docshard.create_index('test.c', '{\"m\": 1}')",
        "SELECT docshard.drop_index('test.c', 'by_n')",
        "SELECT docshard.drop_collection('test.c')",
    ] {
        cluster.router.psql(sql);
    }
}

/// Objects of the extension itself, on which the protection depends, and children of tables.
#[test]
fn docshards_own_objects_are_not_changed() {
    let (cluster, table, _) = with_tables();
    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        node.psql(
            "CREATE SERVER own FOREIGN DATA WRAPPER postgres_fdw; CREATE TABLE own.like_node (LIKE docshard_data.node INCLUDING ALL);
             CREATE FUNCTION own.f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE DOMAIN own.d AS int; CREATE SEQUENCE own.s;
             CREATE VIEW own.v AS SELECT 1 AS a",
        );
        let tables = node.psql(
            "SELECT c.oid::regclass FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
              JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard' WHERE c.relkind = 'r'",
        );
        let tables: Vec<&str> = tables.lines().collect();
        assert!(tables.len() > 20 && tables.contains(&"docshard_data.placement"), "{tables:?}");
        let mut refused: Vec<String> = tables.iter().map(|table| format!("TRUNCATE {table} CASCADE")).collect();
        for table in &tables {
            refused.push(format!("ALTER EXTENSION docshard DROP TABLE {table}"));
            refused.push(format!("ALTER TABLE {table} RENAME TO other"));
            refused.push(format!("CREATE TABLE own.x () INHERITS ({table})"));
        }
        let server = if node.name == "shard0" { "docshard_shard1" } else { "docshard_shard0" };
        refused.extend([
            "SET session_replication_role = replica; TRUNCATE docshard_data.placement".to_owned(),
            "TRUNCATE own.child, docshard_data.node, docshard_data.placement CASCADE".to_owned(),
            "BEGIN; SAVEPOINT s; TRUNCATE docshard_data.placement; COMMIT".to_owned(),
            "DO $$ BEGIN EXECUTE 'TRUNCATE docshard_data.node'; END $$".to_owned(),
            "DROP TABLE docshard_data.placement".to_owned(),
            "DROP TABLE docshard_data.placement CASCADE".to_owned(),
            "DROP FUNCTION docshard_internal.watch_change(text)".to_owned(),
            "DROP EVENT TRIGGER docshard_check_changes".to_owned(),
            "ALTER TABLE docshard_data.placement SET SCHEMA own".to_owned(),
            "ALTER TABLE docshard_data.placement RENAME COLUMN version TO v".to_owned(),
            "ALTER TABLE docshard_data.placement ADD COLUMN extra int".to_owned(),
            "ALTER TABLE docshard_data.placement DROP COLUMN version".to_owned(),
            "ALTER TABLE docshard_data.placement DROP CONSTRAINT placement_pkey".to_owned(),
            "ALTER TABLE docshard_data.placement DISABLE TRIGGER refuse_truncate".to_owned(),
            "ALTER TABLE docshard_data.node DISABLE TRIGGER ALL".to_owned(),
            "ALTER TABLE docshard_data.placement ENABLE ROW LEVEL SECURITY".to_owned(),
            "ALTER TABLE docshard_data.capture_log SET UNLOGGED".to_owned(),
            "DROP TRIGGER note_membership ON docshard_data.node".to_owned(),
            "ALTER TRIGGER refuse_truncate ON docshard_data.tables RENAME TO other".to_owned(),
            "CREATE RULE r AS ON INSERT TO docshard_data.placement DO INSTEAD NOTHING".to_owned(),
            "ALTER TABLE own.like_node INHERIT docshard_data.node".to_owned(),
            format!("CREATE TABLE own.x () INHERITS ({table})"),
            format!("CREATE TABLE own.x () INHERITS (own.child, {table})"),
            format!("CREATE SCHEMA own3 CREATE TABLE x () INHERITS ({table})"),
            "ALTER INDEX docshard_data.placement RENAME TO other".to_owned(),
            "ALTER INDEX docshard_data.placement_pkey RENAME TO other".to_owned(),
            "ALTER TABLE docshard_data.placement ALTER COLUMN version SET DEFAULT 0".to_owned(),
            "ALTER TABLE docshard_data.placement RENAME CONSTRAINT placement_pkey TO other".to_owned(),
            format!("CREATE TEMP TABLE x () INHERITS ({table})"),
            format!("CREATE FOREIGN TABLE own.x () INHERITS ({table}) SERVER own"),
            format!("SET session_replication_role = replica; CREATE TABLE own.x () INHERITS ({table})"),
            format!("SET search_path = docshard_data; CREATE TABLE own.x () INHERITS ({})", &table["docshard_data.".len()..]),
            "ALTER EXTENSION docshard DROP FUNCTION docshard_internal.watch_change(text)".to_owned(),
            "ALTER EXTENSION docshard DROP EVENT TRIGGER docshard_check_changes".to_owned(),
            "ALTER EXTENSION docshard DROP SCHEMA docshard_data".to_owned(),
            "ALTER EXTENSION docshard ADD TABLE own.child".to_owned(),
            format!("ALTER EXTENSION docshard ADD TABLE {table}"),
            "ALTER EXTENSION docshard ADD FUNCTION own.f()".to_owned(),
            "ALTER EXTENSION docshard ADD VIEW own.v".to_owned(),
            "ALTER EXTENSION docshard ADD SEQUENCE own.s".to_owned(),
            "ALTER EXTENSION docshard ADD DOMAIN own.d".to_owned(),
            "ALTER EXTENSION docshard ADD SCHEMA own".to_owned(),
            "ALTER EXTENSION docshard ADD SERVER own".to_owned(),
            format!("ALTER EXTENSION docshard ADD SERVER {server}"),
            "SET session_replication_role = replica; ALTER EXTENSION docshard ADD FUNCTION own.f()".to_owned(),
            "BEGIN; ALTER EXTENSION docshard ADD FUNCTION own.f(); ALTER EXTENSION docshard DROP FUNCTION own.f(); COMMIT".to_owned(),
            "ALTER EXTENSION docshard DROP VIEW docshard.health".to_owned(),
            "ALTER FUNCTION docshard_internal.watch_change(text) RENAME TO other".to_owned(),
            "ALTER FUNCTION docshard_internal.watch_change(text) SET SCHEMA own".to_owned(),
            "ALTER FUNCTION docshard_internal.check_changes() RENAME TO other".to_owned(),
            "ALTER ROUTINE docshard_internal.watch_drops() RENAME TO other".to_owned(),
            "ALTER FUNCTION docshard_internal.capture_change() RENAME TO other".to_owned(),
            "ALTER FUNCTION docshard_internal.watch_drops() SECURITY INVOKER".to_owned(),
            "ALTER FUNCTION docshard_internal.watch_drops() RESET search_path".to_owned(),
            "ALTER FUNCTION docshard.count_documents(text, json, json) RENAME TO other".to_owned(),
            "ALTER AGGREGATE docshard_internal.update_found(int, tid, bytea, bytea, jsonb, text, text, text[]) RENAME TO other".to_owned(),
            "CREATE OR REPLACE FUNCTION docshard_internal.watch_drops() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'".to_owned(),
            "DO $$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW docshard.databases AS ' || pg_get_viewdef('docshard.databases'::regclass); END $$".to_owned(),
            "CREATE OR REPLACE TRIGGER note_membership AFTER INSERT ON docshard_data.node EXECUTE FUNCTION own.nothing()".to_owned(),
            "ALTER VIEW docshard.health RENAME TO other".to_owned(),
            "ALTER TABLE docshard.health RENAME TO other".to_owned(),
            "ALTER VIEW docshard.health SET SCHEMA own".to_owned(),
            "ALTER SEQUENCE docshard_catalog.collections_id_seq RENAME TO other".to_owned(),
            "ALTER DOMAIN docshard.document ADD CONSTRAINT mine CHECK (true) NOT VALID".to_owned(),
            "ALTER DOMAIN docshard.document RENAME TO other".to_owned(),
            "ALTER TYPE docshard.document RENAME TO other".to_owned(),
            "ALTER DOMAIN docshard.document SET SCHEMA own".to_owned(),
            "ALTER DOMAIN docshard.document SET NOT NULL".to_owned(),
            "ALTER SCHEMA docshard RENAME TO other".to_owned(),
            "ALTER SCHEMA docshard_internal RENAME TO other".to_owned(),
            "ALTER SCHEMA docshard_catalog RENAME TO other".to_owned(),
            format!("ALTER SERVER {server} RENAME TO other"),
            "ALTER SERVER docshard_local RENAME TO other".to_owned(),
        ]);
        let mut wrong = Vec::new();
        let mut client = node.client();
        for sql in &refused {
            let said = match client.batch_execute(sql) {
                Ok(()) => Err("it is allowed".to_owned()),
                Err(e) => e.as_db_error().map_or_else(
                    || Err(e.to_string()),
                    |e| match (e.code().code(), e.hint()) {
                        ("2BP01", Some(_))
                            if e.message().starts_with("cannot ") && e.message().contains("docshard") =>
                        {
                            Ok(())
                        }
                        (code, hint) => Err(format!("{code} {} {hint:?}", e.message())),
                    },
                ),
            };
            client.batch_execute("ROLLBACK; RESET ALL").expect("a session");
            wrong.extend(said.err().map(|said| format!("{}: {sql}: {said}", node.name)));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for sql in [
            "VACUUM (FULL) docshard_catalog.chunks",
            "VACUUM (FULL) docshard_data.placement",
            "ANALYZE docshard_data.placement",
            "REINDEX TABLE docshard_data.placement",
            "REINDEX TABLE CONCURRENTLY docshard_data.placement",
            "CLUSTER docshard_data.placement USING placement_pkey",
            "ALTER TABLE docshard_catalog.changelog SET (autovacuum_vacuum_scale_factor = 0.1)",
            "ALTER TABLE docshard_catalog.changelog SET TABLESPACE pg_default",
            "ALTER TABLE docshard_catalog.changelog ALTER COLUMN id SET STATISTICS 100",
            "GRANT SELECT ON docshard_catalog.changelog TO other; REVOKE SELECT ON docshard_catalog.changelog FROM other",
            "COMMENT ON TABLE docshard_catalog.changelog IS 'mine'",
            "CREATE INDEX mine ON docshard_catalog.changelog (at); ALTER INDEX docshard_catalog.mine RENAME TO mine2; DROP INDEX docshard_catalog.mine2",
            "CREATE SCHEMA own4 CREATE TABLE x (a int) CREATE VIEW y AS SELECT a FROM x",
            "ALTER FUNCTION docshard.count_documents(text, json, json) COST 200",
            "ALTER EXTENSION docshard UPDATE",
            "ALTER EXTENSION postgres_fdw UPDATE",
            "CREATE TABLE own.grandchild () INHERITS (own.child); DROP TABLE own.grandchild",
            "CREATE FOREIGN TABLE own.x () INHERITS (own.child) SERVER own; ALTER FOREIGN TABLE own.x NO INHERIT own.child; DROP FOREIGN TABLE own.x",
            "ALTER SERVER own RENAME TO own2; ALTER SERVER own2 RENAME TO own",
            "ALTER FUNCTION own.f() RENAME TO g; ALTER FUNCTION own.g() RENAME TO f",
            "CREATE OR REPLACE FUNCTION own.f() RETURNS int LANGUAGE sql AS 'SELECT 2'; CREATE OR REPLACE VIEW own.v AS SELECT 2 AS a",
            "ALTER DOMAIN own.d ADD CONSTRAINT mine CHECK (VALUE > 0)",
            "ALTER SEQUENCE own.s RENAME TO s2; ALTER VIEW own.v RENAME TO v2; ALTER SCHEMA own RENAME TO own2; ALTER SCHEMA own2 RENAME TO own",
        ] {
            let mut client = node.client();
            for sql in sql.split("; ") {
                client.batch_execute(sql).unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", node.name));
            }
        }
        node.psql(&format!("ALTER SERVER {server} OPTIONS (ADD fetch_size '100')"));
        // A superuser who means it.
        node.psql("ALTER EVENT TRIGGER docshard_check_changes DISABLE");
        node.psql("ALTER TABLE docshard_catalog.changelog ADD COLUMN mine int");
        node.psql("ALTER TABLE docshard_catalog.changelog DROP COLUMN mine");
        node.psql("ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS");
    }
    assert_eq!(counted(&cluster), 300);
    for sql in [
        "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'local')",
        "SELECT docshard.rotate_service_password()",
        "SELECT docshard.drop_collection('test.c')",
    ] {
        cluster.router.psql(sql);
    }
}

/// A table is known as a collection's though the rows that say so are deleted.
#[test]
fn a_table_is_protected_though_the_rows_about_it_are_lost() {
    let (cluster, table, _) = with_tables();
    let name = table.strip_prefix("docshard_data.").expect("a table");
    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        node.psql(
            "CREATE TABLE own.kept AS TABLE docshard_data.placement;
             DELETE FROM docshard_data.placement; DELETE FROM docshard_data.tables",
        );
        let statements = |table: &str| {
            [
                format!("TRUNCATE {table}"),
                format!("DROP TABLE {table}"),
                format!("DROP TABLE {table} CASCADE"),
                format!("ALTER TABLE {table} RENAME TO other"),
                format!("ALTER TABLE {table} ADD COLUMN extra int"),
                format!("ALTER TABLE {table} DROP COLUMN doc"),
                format!("ALTER TABLE {table} DISABLE TRIGGER ALL"),
                format!("DROP TRIGGER capture ON {table}"),
                "DROP EXTENSION docshard CASCADE".to_owned(),
            ]
        };
        let check = |statements: &[String], what: &str| {
            for sql in statements {
                let (code, message) = refusal(node, "postgres", sql);
                assert_eq!(code, "2BP01", "{} {what}: {sql}: {message}", node.name);
            }
        };
        check(&statements(&table), "without placement");
        // Even the cluster's marks are lost. The documents are there.
        if node.name != "router" {
            let unmarked = statements(&table).map(|sql| format!("BEGIN; DELETE FROM docshard_data.node; {sql}"));
            check(&unmarked, "without marks");
        }
        // A table that was renamed nevertheless.
        node.psql(&format!(
            "ALTER EVENT TRIGGER docshard_check_changes DISABLE; ALTER TABLE {table} RENAME TO other;
             ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS"
        ));
        check(&statements("docshard_data.other")[..3], "renamed");
        node.psql(&format!(
            "ALTER EVENT TRIGGER docshard_check_changes DISABLE; ALTER TABLE docshard_data.other RENAME TO {name};
             ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS; INSERT INTO docshard_data.placement SELECT * FROM own.kept"
        ));
    }
    assert_eq!(counted(&cluster), 300);
}

/// The check runs as the extension's owner. It runs no code of a role that may use docshard's trigger function, as service roles may.
#[test]
fn the_check_runs_no_code_of_others() {
    let (cluster, _, _) = with_tables();
    for shard in &cluster.shards {
        let service = shard.service_role();
        shard.psql(&format!(
            "CREATE TABLE own.seen (who text); GRANT INSERT ON own.seen TO PUBLIC; GRANT USAGE, CREATE ON SCHEMA own TO {service};
             SET SESSION AUTHORIZATION {service};
             CREATE FUNCTION own.spy() RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO own.seen VALUES (current_user); RETURN 1; END';
             CREATE VIEW docshard_data.v AS SELECT own.spy() AS a;
             CREATE TRIGGER capture INSTEAD OF INSERT ON docshard_data.v FOR EACH ROW EXECUTE FUNCTION docshard_internal.capture_change();
             CREATE VIEW docshard_data.c77 AS SELECT own.spy() AS a;
             CREATE TABLE own.t (a int); INSERT INTO own.t VALUES (1);
             CREATE POLICY p ON own.t USING (own.spy() > 0); ALTER TABLE own.t FORCE ROW LEVEL SECURITY; ALTER TABLE own.t ENABLE ROW LEVEL SECURITY;
             RESET SESSION AUTHORIZATION; ALTER EVENT TRIGGER docshard_check_changes DISABLE;
             CREATE TRIGGER capture AFTER INSERT ON own.t FOR EACH ROW EXECUTE FUNCTION docshard_internal.capture_change();
             ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS"
        ));
        for sql in [
            "DROP TRIGGER capture ON docshard_data.v",
            "ALTER VIEW docshard_data.v RENAME TO w",
            "DROP VIEW docshard_data.w",
            "DROP VIEW docshard_data.c77",
            "ALTER TABLE own.t ADD COLUMN b int",
            "DROP TRIGGER capture ON own.t",
            "DROP TABLE own.t",
        ] {
            let mut client = shard.client();
            client.batch_execute(&format!("SET SESSION AUTHORIZATION {service}")).expect("a role");
            // Whether it is refused is not important.
            let _ = client.batch_execute(sql);
        }
        assert_eq!(shard.psql("SELECT who FROM own.seen").trim(), "", "{}", shard.name);
    }
}

/// Switches the protection of a shard that does not preload docshard off, for other sessions.
fn protect(node: &Node, table: &str, on: bool) {
    let (events, trigger) = if on { ("ENABLE ALWAYS", "ENABLE ALWAYS") } else { ("DISABLE", "DISABLE") };
    let events = ["docshard_watch_drops", "docshard_check_changes"]
        .map(|trigger| format!("ALTER EVENT TRIGGER {trigger} {events};"))
        .concat();
    let table = format!("ALTER TABLE {table} {trigger} TRIGGER refuse_truncate;");
    node.client().batch_execute(&if on { table + &events } else { events + &table }).expect("triggers are changed");
}

/// Nothing prevents what a superuser does on purpose, but it is found, and can be mended.
#[test]
fn a_table_that_was_changed_nevertheless_is_found_and_mended() {
    let (cluster, table, _) = with_tables();
    let (router, shard) = (&cluster.router, &cluster.shards[1]);
    let name = table.strip_prefix("docshard_data.").expect("a table");
    let problems = || -> Vec<String> {
        let report = check(&cluster);
        let found = report["found"].as_array().expect("problems").clone();
        assert_eq!(report["valid"], found.is_empty(), "{report}");
        found.iter().map(|found| format!("{} {} {}", found["shard"], found["problem"], found["details"])).collect()
    };
    assert_eq!(problems(), Vec::<String>::new());

    // A column too many.
    protect(shard, &table, false);
    shard.psql(&format!("ALTER TABLE {table} ADD COLUMN extra int, ADD COLUMN \"Extra 2\" int"));
    protect(shard, &table, true);
    assert_eq!(problems().len(), 2, "{:?}", problems());
    let moved = "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'shard1')";
    let (_, message) = refusal(router, "postgres", moved);
    assert!(message.contains(&format!("{table} has the column \"extra\"")), "{message}");
    assert!(message.contains(&format!("ALTER TABLE {table} DROP COLUMN \"extra\"")), "{message}");
    shard.psql(&format!("ALTER TABLE {table} DROP COLUMN extra"));
    assert_eq!(refusal(shard, "postgres", &format!("ALTER TABLE {table} RENAME \"Extra 2\" TO extra3")).0, "2BP01");
    shard.psql(&format!("ALTER TABLE {table} DROP COLUMN \"Extra 2\""));
    assert_eq!(problems(), Vec::<String>::new());
    for sql in [
        moved,
        "SELECT docshard.move_chunk('test.c', '{\"k\": 100}', 'shard0')",
        "SELECT docshard.update_many('test.c', '{}', '{\"$set\": {\"n\": 1}}')",
        "SELECT docshard.insert_many('test.c', ARRAY['{\"_id\": 301, \"k\": 301}', '{\"_id\": 302, \"k\": 302}']::jsonb[])",
        "SELECT docshard.delete_many('test.c', '{\"k\": {\"$gt\": 300}}')",
    ] {
        router.psql(sql);
    }
    assert_eq!(counted(&cluster), 300);

    // Without its key.
    protect(shard, &table, false);
    shard.psql(&format!("ALTER TABLE {table} DROP CONSTRAINT {name}_pkey"));
    protect(shard, &table, true);
    let (_, message) = refusal(router, "postgres", "SELECT docshard.find_one('test.c', '{\"k\": 250}')");
    assert!(message.contains(&format!("{table} has no primary key {name}_pkey")), "{message}");
    assert!(message.contains("PRIMARY KEY (skey, id)"), "{message}");
    assert!(problems().iter().any(|problem| problem.contains("damagedTable")), "{:?}", problems());
    shard.psql(&format!("ALTER TABLE {table} ADD CONSTRAINT {name}_pkey PRIMARY KEY (skey, id)"));
    assert_eq!(problems(), Vec::<String>::new());

    // Its rows are written anew, and it gets another tablespace.
    shard.psql(&format!("VACUUM (FULL) {table}"));
    assert_eq!(problems(), Vec::<String>::new());
    shard.psql(&format!("CLUSTER {table} USING {name}_pkey"));
    shard.psql(&format!("REINDEX TABLE {table}"));
    assert_eq!(problems(), Vec::<String>::new());

    // Truncated.
    protect(shard, &table, false);
    shard.psql(&format!("TRUNCATE {table}"));
    protect(shard, &table, true);
    router.psql("SELECT docshard.insert_one('test.c', '{\"_id\": 301, \"k\": 301}')");
    assert!(problems().iter().any(|problem| problem.contains("truncatedTable")), "{:?}", problems());
    assert_eq!(problems().len(), 1);
    shard.psql("DELETE FROM docshard_data.tables");
    assert_eq!(problems(), Vec::<String>::new());

    // Replaced by a table of the same shape.
    protect(shard, &table, false);
    shard.psql(&format!(
        "ALTER TABLE {table} RENAME TO old; ALTER INDEX {table}_pkey RENAME TO old_pkey; CREATE TABLE {table} (LIKE docshard_data.old);
         ALTER TABLE {table} ADD CONSTRAINT {name}_pkey PRIMARY KEY (skey, id);
         CREATE TRIGGER capture AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION docshard_internal.capture_change();
         CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION docshard_internal.capture_change();
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER capture; ALTER TABLE {table} OWNER TO {}",
        shard.service_role()
    ));
    protect(shard, &table, true);
    assert!(problems().iter().any(|problem| problem.contains("replacedTable")), "{:?}", problems());
    // The table is known by its OID, whatever its name.
    assert_eq!(refusal(shard, "postgres", "DROP TABLE docshard_data.old").0, "2BP01");
}
