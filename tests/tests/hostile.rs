//! Objects that a role creates in its own schemas are not executed by other roles. A role's settings do not change results, nor do
//! statements about portals.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const NS: &str = "test.things";

/// Types that docshard's statements compare, add and cast.
const TYPES: [&str; 16] = [
    "text",
    "name",
    "int4",
    "int8",
    "oid",
    "numeric",
    "bytea",
    "bool",
    "float8",
    "timestamptz",
    "interval",
    "jsonb",
    "json",
    "regclass",
    "regnamespace",
    "\"char\"",
];

/// Writes the role that executes it to the server's log.
const TRAP: &str = "CREATE FUNCTION {s}.trap(what text) RETURNS bool LANGUAGE plpgsql AS $$ \
     BEGIN RAISE LOG 'caught: % runs %', current_user, what; RETURN true; END $$";

/// Creates traps in a schema: operators, functions and a relation with names that PostgreSQL has too. There are operators for
/// every two types, which match better than PostgreSQL's own where that one needs a conversion.
fn set_traps(client: &mut Client, schema: &str) {
    let mut sql = TRAP.replace("{s}", schema) + ";";
    for (l, left) in TYPES.iter().enumerate() {
        for (r, right) in TYPES.iter().enumerate() {
            let function = format!("{schema}.op_{l}_{r}(pg_catalog.{left}, pg_catalog.{right})");
            sql += &format!(
                "CREATE FUNCTION {function} RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN {schema}.trap('operator'); END $$;"
            );
            for operator in ["=", "<>", "<", ">", "<=", ">=", "||", "*", "+", "-", "->>", "~", "@>"] {
                sql += &format!(
                    "CREATE OPERATOR {schema}.{operator} (LEFTARG = pg_catalog.{left}, RIGHTARG = pg_catalog.{right}, \
                     FUNCTION = {schema}.op_{l}_{r});"
                );
            }
        }
        for name in
            ["count", "sum", "max", "min", "length", "lower", "abs", "to_hex", "md5", "quote_ident", "to_regclass"]
        {
            sql += &format!(
                "CREATE FUNCTION {schema}.{name}(pg_catalog.{left}) RETURNS text LANGUAGE plpgsql AS $$ \
                 BEGIN RETURN {schema}.trap('function {name}')::text; END $$;"
            );
        }
    }
    client.batch_execute(&sql).unwrap_or_else(|e| panic!("{schema}: {e:?}"));
    set_types(client, schema);
}

/// Creates types and relations in a schema with names that PostgreSQL or docshard has too.
fn set_types(client: &mut Client, schema: &str) {
    let mut sql = String::new();
    for name in
        ["text", "name", "int4", "int8", "bytea", "jsonb", "json", "numeric", "bool", "oid", "regclass", "document"]
    {
        sql += &format!(
            "CREATE DOMAIN {schema}.{name} AS pg_catalog.text CHECK ({schema}.trap('type {name} of ' || VALUE));"
        );
    }
    for name in
        ["pg_class", "pg_extension", "pg_namespace", "pg_proc", "shards", "cluster", "transactions", "node", "pg_locks"]
    {
        sql += &format!("CREATE VIEW {schema}.{name} AS SELECT {schema}.trap('relation {name}') AS id;");
    }
    client.batch_execute(&sql).unwrap_or_else(|e| panic!("{schema}: {e:?}"));
}

/// The roles that executed a trap at a node, other than `role`.
fn caught(node: &Node, role: &str) -> BTreeSet<String> {
    let log = node.log_tail(1_000_000);
    let found = log.lines().filter_map(|line| Some(line.split_once("caught: ")?.1.to_owned()));
    found.filter(|found| !found.starts_with(&format!("{role} "))).collect()
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

/// Ordinary statements over three nodes, with their results.
fn work(client: &mut Client) -> Vec<Value> {
    let mut answers = Vec::new();
    for sql in [
        "SELECT docshard.delete_many('test.things', '{}') -> 'acknowledged'",
        "SELECT docshard.insert_many('test.things', ARRAY['{\"_id\": 1, \"k\": 1, \"n\": 1.5}', '{\"_id\": 101, \"k\": 101, \"n\": null}',
           E'{\"_id\": 201, \"k\": 201, \"n\": \"back\\\\\\\\slash ''quoted''\", \"at\": {\"$date\": \"2026-01-01T00:00:00Z\"}}']::pg_catalog.jsonb[])",
        "SELECT docshard.insert_one('test.things', '{\"_id\": 2, \"k\": 2}')",
        "BEGIN",
        "SELECT docshard.update_one('test.things', '{\"k\": 1}', '{\"$inc\": {\"m\": 1}}')",
        "SELECT docshard.update_one('test.things', '{\"k\": 101}', '{\"$inc\": {\"m\": 1}}')",
        "SELECT docshard.update_one('test.things', '{\"k\": 201}', '{\"$inc\": {\"m\": 1}}')",
        "COMMIT",
        "BEGIN",
        "SELECT docshard.update_many('test.things', '{\"k\": {\"$gt\": 50}}', '{\"$set\": {\"p\": \"a\"}}')",
        "PREPARE TRANSACTION 'theirs'",
        "COMMIT PREPARED 'theirs'",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.find('test.things', '{\"k\": {\"$gte\": 1}}', '{\"sort\": {\"k\": -1}, \"limit\": 3}') d",
        "SELECT docshard.find_one('test.things', '{\"n\": {\"$regex\": \"^back\"}}')",
        "SELECT docshard.find_one('test.things', '{\"k\": 2}')",
        "SELECT pg_catalog.to_jsonb(docshard.count_documents('test.things', '{\"m\": 1}'))",
        "SELECT pg_catalog.to_jsonb(docshard.estimated_document_count('test.things') >= 0)",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.\"distinct\"('test.things', 'p') d",
        "SELECT docshard.find_and_modify('test.things', '{\"query\": {\"k\": 2}, \"update\": {\"$set\": {\"f\": true}}, \"new\": true}') -> 'value'",
        "SELECT docshard.replace_one('test.things', '{\"k\": 2}', '{\"k\": 2, \"r\": 1}')",
        "SELECT docshard.update_one('test.things', '{\"k\": 3}', '{\"$set\": {\"up\": 1}, \"$setOnInsert\": {\"_id\": 3}}', '{\"upsert\": true}')",
        "SELECT docshard.bulk_write('test.things', '[{\"insertOne\": {\"document\": {\"_id\": 150, \"k\": 150}}}, {\"deleteOne\": {\"filter\": {\"k\": 150}}}]')",
        "SELECT docshard.delete_one('test.things', '{\"k\": 3}')",
        "SELECT pg_catalog.to_jsonb(pg_catalog.count(*)) FROM docshard.list_indexes('test.things')",
        "SELECT pg_catalog.to_jsonb(pg_catalog.count(*)) FROM docshard.list_shards()",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$group\": {\"_id\": \"$k\", \"n\": {\"$avg\": \"$n\"}}}, {\"$sort\": {\"_id\": 1}}]') d",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$sort\": {\"k\": 1}}, {\"$lookup\": {\"from\": \"things\", \"localField\": \"k\", \"foreignField\": \"_id\", \"as\": \"l\"}}, {\"$unionWith\": \"things\"}, {\"$sort\": {\"_id\": 1, \"l\": 1}}]') d",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$graphLookup\": {\"from\": \"things\", \"startWith\": \"$k\", \"connectFromField\": \"k\", \"connectToField\": \"_id\", \"as\": \"g\"}}, {\"$project\": {\"n\": {\"$size\": \"$g\"}}}, {\"$group\": {\"_id\": \"$n\"}}, {\"$sort\": {\"_id\": 1}}]') d",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$set\": {\"merged\": true}}, {\"$merge\": \"things\"}]') d",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$collStats\": {\"count\": {}}}, {\"$group\": {\"_id\": null, \"n\": {\"$sum\": \"$count\"}}}]') d",
        "SELECT pg_catalog.jsonb_agg(d) FROM docshard.aggregate('test.things', '[{\"$indexStats\": {}}, {\"$sortByCount\": \"$name\"}, {\"$sort\": {\"_id\": 1}}]') d",
        "SELECT docshard.explain('test.things', '[{\"$group\": {\"_id\": \"$k\"}}]', '{}', 'executionStats') -> 'namespace'",
        "SELECT docshard.run_command('test', '{\"count\": \"things\"}')::pg_catalog.jsonb",
        "SELECT docshard.run_command('admin', '{\"bulkWrite\": 1, \"nsInfo\": [{\"ns\": \"test.things\"}], \"ops\": [{\"insert\": 0, \"document\": {\"_id\": 151, \"k\": 151}}, {\"delete\": 0, \"filter\": {\"k\": 151}}]}') -> 'nDeleted'",
        "SELECT docshard.run_command('test', '{\"serverStatus\": 1}') -> 'process'",
        "SELECT docshard.run_command('admin', '{\"currentOp\": 1, \"$ownOps\": true}') -> 'ok'",
        "SELECT docshard.run_command('admin', '{\"killOp\": 1, \"op\": 999999999}') -> 'ok'",
        "SELECT docshard.run_command('test', '{\"connectionStatus\": 1}') -> 'ok'",
        "SELECT docshard.run_command('test', '{\"whatsmyuri\": 1}') -> 'ok'",
        "SELECT docshard.run_command('test', '{\"usersInfo\": \"app\"}') #> '{users,0,roles}'",
        "SELECT docshard.run_command('test', '{\"rolesInfo\": 1}') -> 'ok'",
        "SELECT docshard.run_command('test', '{\"dataSize\": \"test.things\"}') -> 'numObjects'",
        "SELECT pg_catalog.jsonb_agg(d -> 'type') FROM docshard.aggregate('test.$cmd.aggregate', '[{\"$listClusterCatalog\": {\"shards\": true}}]') d",
        "SELECT pg_catalog.jsonb_agg(d -> 'ns') FROM docshard.aggregate('admin.$cmd.aggregate', '[{\"$shardedDataDistribution\": {}}]') d",
        "SELECT docshard.run_command('config', '{\"find\": \"locks\"}') -> 'ok'",
        "SELECT docshard.run_command('config', '{\"find\": \"actionlog\"}') -> 'ok'",
        "SELECT docshard.run_command('config', '{\"find\": \"changelog\"}') -> 'ok'",
        "SELECT docshard.run_command('config', '{\"find\": \"shards\", \"projection\": {\"_id\": 1}}') #> '{cursor,firstBatch}'",
    ] {
        let rows = client.simple_query(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        for row in rows {
            if let postgres::SimpleQueryMessage::Row(row) = row {
                let text = row.get(0).unwrap_or("null");
                answers.push(serde_json::from_str(text).unwrap_or_else(|e| panic!("{sql}: {text}: {e}")));
            }
        }
    }
    answers
}

/// A router with two shards. In their databases a role with CREATE privileges set traps before the extension was created. The
/// role `app` may access one collection, and has a schema of its own with the same traps.
fn with_traps() -> Cluster {
    let cluster = Cluster::servers(2);
    for node in nodes(&cluster) {
        let mut client = node.client();
        client
            .batch_execute(
                "CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app; CREATE SCHEMA app AUTHORIZATION app",
            )
            .unwrap();
        client.batch_execute("SET ROLE app").unwrap();
        set_traps(&mut client, "public");
    }
    let router = &cluster.router;
    router.psql("CREATE EXTENSION docshard CASCADE");
    for shard in &cluster.shards {
        router.psql(&format!("SELECT docshard.add_shard('{}', '{{\"name\": \"{}\"}}')", shard.url(), shard.name));
    }
    set_traps(&mut router.try_client_as("app", "postgres").unwrap(), "app");
    cluster
}

/// Spreads the collection over the three nodes.
fn spread(cluster: &Cluster) {
    for sql in [
        "SELECT docshard.stop_balancer()".to_owned(),
        "SELECT docshard.enable_sharding('test', 'local')".to_owned(),
        format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"),
        format!("SELECT docshard.split_at('{NS}', '{{\"k\": 100}}')"),
        format!("SELECT docshard.split_at('{NS}', '{{\"k\": 200}}')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard0')"),
        format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 200}}', 'shard1')"),
        "SELECT docshard.grant_access('app', '{\"write\": \"test\"}')".to_owned(),
    ] {
        cluster.router.psql(&sql);
    }
}

#[test]
fn what_a_role_makes_is_run_by_nobody_else() {
    let cluster = with_traps();
    let router = &cluster.router;
    // The administrator uses PostgreSQL's default search path: "$user", public.
    spread(&cluster);
    let mut app = router.try_client_as("app", "postgres").unwrap();
    app.batch_execute("CREATE FUNCTION pg_temp.trap(what text) RETURNS bool LANGUAGE sql AS 'SELECT app.trap(what)'")
        .unwrap();
    set_types(&mut app, "pg_temp");
    for path in ["pg_temp, app, public, pg_catalog", "app, public", "public, pg_temp"] {
        app.batch_execute(&format!("SET search_path = {path}")).unwrap();
        assert!(!work(&mut app).is_empty());
    }
    // Checks that the trap works.
    app.batch_execute("SET search_path = pg_temp, app, pg_catalog; SELECT 'x'::name").unwrap();
    assert!(router.log_tail(1_000_000).contains("caught: app runs type name"));

    for sql in [
        "SELECT docshard.set_setting('ttl_interval_s', '1')",
        "SELECT docshard.insert_one('test.things', '{\"_id\": 7, \"k\": 7, \"at\": {\"$date\": \"2001-01-01T00:00:00Z\"}}')",
        "SELECT docshard.create_index('test.things', '{\"at\": 1}', '{\"expireAfterSeconds\": 60}')",
        "SELECT docshard.create_index('test.things', '{\"k\": 1, \"u\": 1}', '{\"unique\": true, \"partialFilterExpression\": {\"u\": {\"$gt\": 5}}}')",
        "SELECT docshard.status()",
        "SELECT docshard.balancer_status()",
        "SELECT * FROM docshard.get_shard_distribution('test.things', '{\"count\": true}')",
        "SELECT docshard.check_collection('test.things')",
        "SELECT docshard.find('config.chunks')",
        "SELECT docshard.find('config.collections')",
        "SELECT * FROM docshard.shards, docshard.settings",
        "SELECT docshard.rotate_service_password()",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.merge_chunks('test.things', '[{\"k\": 100}, {\"k\": {\"$maxKey\": 1}}]')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'local')",
        "SELECT docshard.create_collection('test.view', '{\"viewOn\": \"things\", \"pipeline\": [{\"$limit\": 1}]}')",
        "SELECT docshard.aggregate('test.view', '[{\"$out\": \"made\"}]')",
        "SELECT docshard.modify_collection('test.view', '{\"pipeline\": []}')",
        "SELECT docshard.drop_collection('test.view')",
        "SELECT docshard.create_collection('test.other')",
        "SELECT docshard.create_index('test.other', '{\"a\": 1}')",
        "SELECT docshard.modify_collection('test.other', '{\"index\": {\"name\": \"a_1\", \"hidden\": true}}')",
        "SELECT docshard.rename_collection('test.other', 'test.renamed')",
        "SELECT docshard.run_command('test', '{\"createRole\": \"made\", \"roles\": [\"read\"], \"privileges\": []}')",
        "SELECT docshard.run_command('test', '{\"dropRole\": \"made\"}')",
        "SELECT docshard.drop_collection('test.renamed')",
        "SELECT docshard.start_balancer()",
    ] {
        router.psql(sql);
    }
    wait_until("the worker deletes what has expired", PATIENCE, || {
        router.value("SELECT docshard.count_documents('test.things', '{\"_id\": 7}') = 0")
    });
    // A session of this role starts the job that detects deadlocks.
    app.batch_execute("SET search_path = app, public; SET deadlock_timeout = '100ms'").unwrap_or_default();
    let mut holder = router.client();
    holder
        .batch_execute("BEGIN; SELECT docshard.update_one('test.things', '{\"k\": 2}', '{\"$set\": {\"z\": 1}}')")
        .unwrap();
    app.batch_execute("SET statement_timeout = '4s'").unwrap();
    let waited = app.batch_execute("SELECT docshard.update_one('test.things', '{\"k\": 2}', '{\"$set\": {\"z\": 2}}')");
    assert_eq!(waited.unwrap_err().code().map(|c| c.code().to_owned()).as_deref(), Some("57014"));
    holder.batch_execute("ROLLBACK").unwrap();
    for node in nodes(&cluster) {
        assert_eq!(caught(node, "app"), BTreeSet::new(), "{}", node.name);
    }
}

#[test]
fn a_strangers_catalog_is_not_looked_into() {
    let cluster = Cluster::start(0);
    let router = &cluster.router;
    router.psql("CREATE ROLE tenant LOGIN CREATEDB");
    router.try_client_as("tenant", "postgres").unwrap().batch_execute("CREATE DATABASE theirs").unwrap();
    let mut tenant = router.try_client_as("tenant", "theirs").unwrap();
    let mut sql = "ALTER DATABASE theirs SET search_path = traps, pg_catalog; CREATE SCHEMA traps; CREATE SCHEMA docshard_catalog;".to_owned();
    sql += &TRAP.replace("{s}", "traps");
    for relation in ["shards", "migrations", "transactions", "index_builds", "indexes", "settings", "cluster"] {
        sql += &format!(
            "; CREATE VIEW docshard_catalog.{relation} AS SELECT 1 AS id, 'x'::text AS state, 1 AS expire_after_s WHERE traps.trap('{relation}')"
        );
    }
    tenant.batch_execute(&sql).unwrap();
    set_types(&mut tenant, "traps");
    let looks =
        || -> i64 { router.value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'theirs'") };
    drop(tenant);
    let before = looks();
    router.psql("SELECT docshard.stop_balancer(); SELECT docshard.start_balancer()");
    wait_until("a worker has looked", PATIENCE, || looks() > before + 1);
    router.psql("SELECT docshard.start_balancer()");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(caught(router, "tenant"), BTreeSet::new());
}

#[test]
fn a_schema_that_is_there_already_is_refused() {
    let cluster = Cluster::servers(0);
    let mut client = cluster.router.client();
    client.batch_execute("CREATE ROLE app; CREATE EXTENSION postgres_fdw").unwrap();
    for (make, drop) in [
        ("CREATE SCHEMA docshard AUTHORIZATION app", "DROP SCHEMA docshard"),
        ("CREATE SCHEMA docshard; GRANT CREATE ON SCHEMA docshard TO app", "DROP SCHEMA docshard"),
        ("CREATE SCHEMA docshard CREATE TABLE t (a int)", "DROP SCHEMA docshard CASCADE"),
        ("CREATE SCHEMA docshard_data", "DROP SCHEMA docshard_data"),
        ("CREATE SCHEMA docshard_internal AUTHORIZATION app", "DROP SCHEMA docshard_internal"),
    ] {
        client.batch_execute(make).unwrap();
        let refused = client.batch_execute("CREATE EXTENSION docshard").expect_err(make);
        let code = refused.code().expect(make).code();
        assert!(code == "42P06" || code == "55000", "{make}: {refused:?}");
        client.batch_execute(drop).unwrap();
    }
    client
        .batch_execute("CREATE DATABASE latin ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        .unwrap();
    let mut latin = cluster.router.try_client_as("postgres", "latin").unwrap();
    let refused = latin.batch_execute("CREATE EXTENSION docshard CASCADE").expect_err("it is not in UTF8");
    assert_eq!(refused.code().unwrap().code(), "0A000", "{refused:?}");
    // The state after a dump was restored: an empty schema of the same owner.
    client.batch_execute("CREATE SCHEMA docshard; CREATE EXTENSION docshard").unwrap();
}

/// PostgreSQL's settings that a user may change, with values other than the defaults, as arguments of `ALTER ROLE`. Settings
/// that change the meaning of a statement are left out.
fn odd_settings(client: &mut Client) -> Vec<(String, String)> {
    let asked_for = [
        "default_transaction_read_only",
        "transaction_read_only",
        "default_transaction_isolation",
        "transaction_isolation",
        "exit_on_error",
        "default_transaction_deferrable",
        "transaction_deferrable",
    ];
    let rows = client
        .query(
            "SELECT name, vartype, setting, enumvals FROM pg_catalog.pg_settings WHERE context = 'user' AND name !~ '^docshard' ORDER BY name",
            &[],
        )
        .unwrap();
    let mut odd: Vec<(String, String)> = vec![
        ("search_path".into(), "app, public".into()),
        ("TimeZone".into(), "'Asia/Kathmandu'".into()),
        ("DateStyle".into(), "'German, DMY'".into()),
        ("extra_float_digits".into(), "-15".into()),
        ("work_mem".into(), "64".into()),
        ("temp_buffers".into(), "100".into()),
        ("lock_timeout".into(), "'20s'".into()),
        ("statement_timeout".into(), "'50s'".into()),
        ("random_page_cost".into(), "1000".into()),
        ("from_collapse_limit".into(), "1".into()),
        ("geqo_threshold".into(), "2".into()),
        ("default_tablespace".into(), "''".into()),
        ("default_table_access_method".into(), "heap".into()),
    ];
    for row in rows {
        let (name, kind, setting): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let values: Option<Vec<String>> = row.get(3);
        if asked_for.contains(&name.as_str()) {
            continue;
        }
        let value = match (kind.as_str(), values) {
            ("bool", _) => Some(if setting == "on" { "off" } else { "on" }.to_owned()),
            ("enum", Some(values)) => {
                values.into_iter().rev().find(|value| *value != setting).map(|value| format!("'{value}'"))
            }
            _ => None,
        };
        odd.extend(value.map(|value| (name, value)));
    }
    odd
}

/// Settings that change how literals and values are read and printed, and which rows an index returns: in a client's session, where the
/// documents are in the router's own database, and at shards.
#[test]
fn settings_change_neither_literals_nor_searches() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    let keys = "generate_series(1, 900) n";
    router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 's', 's' || lpad(n::text, 4, '0'), \
           'tags', jsonb_build_array('t' || n % 7, 'u')))) FROM {keys};
         SELECT docshard.create_index('{NS}', '{{\"s\": 1}}'); SELECT docshard.create_index('{NS}', '{{\"tags\": 1}}');
         SELECT docshard.insert_many('test.plain', array_agg(jsonb_build_object('_id', 's' || n))) FROM {keys}"
    ));
    let work = |client: &mut Client| -> Vec<String> {
        let mut all = Vec::new();
        for sql in [
            "SELECT docshard.count_documents('test.things', '{\"k\": {\"$gte\": 50, \"$lt\": 250}}')",
            "SELECT docshard.count_documents('test.things', '{\"s\": {\"$gte\": \"s0250\", \"$lt\": \"s0350\"}}')",
            "SELECT docshard.count_documents('test.things', '{\"s\": {\"$regex\": \"^s01\"}}')",
            "SELECT count(*) FROM docshard.find('test.things', '{\"s\": {\"$regex\": \"^s01\"}}')",
            "SELECT docshard.count_documents('test.things', '{\"tags\": \"t3\"}')",
            "SELECT count(*) FROM docshard.find('test.things', '{\"tags\": {\"$gte\": \"t3\", \"$lt\": \"t5\"}}', '{\"sort\": {\"n\": 1}}')",
            "SELECT docshard.count_documents('test.plain', '{\"_id\": {\"$gte\": \"s1\", \"$lt\": \"s2\"}}')",
            "SELECT docshard.update_many('test.things', '{\"s\": {\"$gte\": \"s0250\", \"$lt\": \"s0350\"}}', '{\"$inc\": {\"m\": 1}}')",
            "SELECT docshard.update_many('test.things', '{\"tags\": {\"$gte\": \"t3\", \"$lt\": \"t4\"}}', '{\"$inc\": {\"m\": 1}}')",
            "SELECT docshard.delete_many('test.plain', '{\"_id\": {\"$gte\": \"s1\", \"$lt\": \"s2\"}}')",
            "SELECT docshard.insert_many('test.plain', array_agg(jsonb_build_object('_id', 's' || n))) FROM generate_series(2, 5) n",
            "SELECT docshard.insert_many('test.things', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(99, 101) n",
        ] {
            let shown = match client.query_one(&format!("SELECT ({sql})::text"), &[]) {
                Ok(row) => row.get(0),
                Err(error) => error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned()),
            };
            all.push(shown);
        }
        all
    };
    let hostile = [
        "standard_conforming_strings = off",
        "escape_string_warning = off",
        "bytea_output = escape",
        "gin_fuzzy_search_limit = 1",
        "enable_seqscan = off",
        "\"DateStyle\" = 'German, DMY'",
        "session_replication_role = replica",
    ];
    let expected = work(&mut router.client());
    assert_eq!(expected[1], "100", "{expected:?}");
    // The documents that were deleted.
    let again = format!(
        "SELECT docshard.insert_many('test.plain', array_agg(jsonb_build_object('_id', 's' || n))) FROM {keys} WHERE n::text ~ '^1'"
    );
    router.psql(&again);
    let mut client = router.client();
    for setting in hostile {
        client.batch_execute(&format!("SET {setting}")).unwrap();
    }
    assert_eq!(work(&mut client), expected);
    router.psql(&again);
    for shard in &cluster.shards {
        for setting in hostile {
            shard.psql(&format!("ALTER DATABASE postgres SET {setting}"));
        }
    }
    assert_eq!(work(&mut router.client()), expected);
}

/// `.ci/regress --settings` runs the golden tests under those that are listed.
#[test]
fn every_setting_is_listed() {
    let listed = include_str!("../../pg_regress/hostile_settings");
    let listed: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let cluster = Cluster::servers(0);
    let sql = "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser') AND name !~ '^docshard'";
    let rows = cluster.router.client().query(sql, &[]).unwrap();
    let names = rows.iter().map(|row| row.get::<_, String>(0));
    let missing: Vec<String> = names.filter(|name| !listed.contains(name.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn what_a_role_may_set_changes_no_answer() {
    let cluster = with_traps();
    spread(&cluster);
    let router = &cluster.router;
    router.psql("CREATE ROLE plain LOGIN; SELECT docshard.grant_access('plain', '{\"write\": \"test\"}')");
    let expected = work(&mut router.try_client_as("plain", "postgres").unwrap());
    let mut administrator = router.client();
    let odd = odd_settings(&mut administrator);
    let mut taken = 0;
    let mut app = router.try_client_as("app", "postgres").unwrap();
    for (name, value) in &odd {
        taken += usize::from(app.batch_execute(&format!("ALTER ROLE app SET \"{name}\" = {value}")).is_ok());
    }
    assert!(taken > 60, "{taken} of {odd:?}");
    let mut app = router.try_client_as("app", "postgres").unwrap();
    assert_eq!(work(&mut app), expected);
    for node in nodes(&cluster) {
        assert_eq!(caught(node, "app"), BTreeSet::new(), "{}", node.name);
    }
    assert!(router.try_client_as("postgres", "postgres").is_ok());
}

/// The owner of a router's database, or its administrator, chooses settings for the database's clients.
#[test]
fn settings_of_the_database_stop_no_worker() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    let mut client = router.client();
    client
        .batch_execute(&format!(
            "SELECT docshard.set_setting('ttl_interval_s', '1');
             SELECT docshard.create_index('{NS}', '{{\"at\": 1}}', '{{\"expireAfterSeconds\": 60}}')"
        ))
        .unwrap();
    for (name, value) in [
        ("default_transaction_read_only", "on"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_deferrable", "on"),
        ("exit_on_error", "on"),
        ("lock_timeout", "'1ms'"),
    ] {
        client.batch_execute(&format!("ALTER DATABASE postgres SET {name} = {value}")).unwrap();
    }
    let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard worker'";
    let before: i32 = client.query_one(worker, &[]).unwrap().get(0);
    client.execute("SELECT pg_terminate_backend($1)", &[&before]).unwrap();
    wait_until("there is another worker", PATIENCE, || {
        client.query_opt(worker, &[]).unwrap().is_some_and(|row| row.get::<_, i32>(0) != before)
    });
    client
        .batch_execute(&format!(
            "SELECT docshard.insert_one('{NS}', '{{\"_id\": 7, \"k\": 7, \"at\": {{\"$date\": \"2001-01-01T00:00:00Z\"}}}}')"
        ))
        .unwrap();
    let left = format!("SELECT docshard.count_documents('{NS}', '{{\"_id\": 7}}')");
    wait_until("the worker deletes what has expired", PATIENCE, || {
        client.query_one(&left, &[]).unwrap().get::<_, i64>(0) == 0
    });
    // Jobs have processes of their own.
    for job in [r#"move_chunk('{NS}', '{"k": 7}', 'shard1')"#, r#"create_index('{NS}', '{"k": 1, "n": 1}')"#] {
        client.batch_execute(&format!("SELECT docshard.{}", job.replace("{NS}", NS))).unwrap();
    }
}

#[test]
fn a_table_that_a_role_locks_keeps_the_worker_from_nothing_else() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql("SELECT docshard.set_setting('balancer_interval_ms', '200')");
    router.psql("CREATE ROLE locker LOGIN");
    router.psql(&format!("SELECT docshard.grant_access('locker', '{{\"write\": \"{NS}\"}}')"));
    let mut locker = router.try_client_as("locker", "postgres").unwrap();
    locker.batch_execute("BEGIN; LOCK TABLE docshard_data.c1 IN ACCESS EXCLUSIVE MODE").unwrap();
    // The balancer's first round measures the collection.
    router.psql("SELECT docshard.start_balancer()");
    let blocked =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard worker' AND wait_event_type = 'Lock'";
    wait_until("the worker meets the lock", PATIENCE, || router.value::<i64>(blocked) == 1);
    let counted = || -> i64 { router.value("SELECT sum(counter)::int8 FROM docshard_catalog.contacts") };
    for _ in 0..2 {
        let before = counted();
        wait_until("it goes on to count at shards", Duration::from_secs(15), || counted() > before);
    }
    locker.batch_execute("ROLLBACK").unwrap();
}

/// A move ends the sessions that an interrupted move has left. Their names are no secret, so others may use them.
#[test]
fn sessions_that_a_role_names_as_those_of_a_move_stop_no_move() {
    let cluster = Cluster::spread(NS);
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    shard.psql("CREATE ROLE stranger LOGIN");
    let id: i64 = router.value("SELECT id FROM docshard_catalog.cluster");
    let last: i64 = router.value("SELECT max(id) FROM docshard_catalog.migrations");
    let mut strangers: Vec<Client> = (last + 1..=last + 3)
        .map(|number| {
            let mut config: postgres::Config = shard.url().parse().expect("a URL");
            config.user("stranger").application_name(&format!("docshard m {id} {number}"));
            config.connect(postgres::NoTls).expect("a session")
        })
        .collect();
    router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 200}}', 'shard0')"));
    let left = "SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'";
    assert_eq!(router.value::<i64>(left), 0);
    for stranger in &mut strangers {
        stranger.batch_execute("SELECT").expect("the session is there");
    }
}

/// A session's portals are the client's as well: it can move and close those by which docshard reads, and open others of their names,
/// whose rows are no documents. Then reading fails; no rows are missing, and none are taken for documents.
#[test]
fn a_client_that_uses_docshards_portals_gets_an_error() {
    let cluster = Cluster::start(0);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.insert_many('test.things', array_agg(jsonb_build_object('_id', n, 'text', repeat('x', 100)))) \
             FROM generate_series(1, 1000) n",
        )
        .unwrap();
    // An object whose only field has a name of 256 MB.
    let garbage = "'\\x01000020ffffff0f00000040'::bytea";
    let finds = [
        "SELECT docshard.find('test.things')",
        "SELECT docshard.find('test.things', '{}', '{\"sort\": {\"_id\": 1}}')",
        "SELECT docshard.aggregate('test.things', '[{\"$set\": {\"a\": 1}}]')",
        "SELECT docshard.\"distinct\"('test.things', '_id')",
    ];
    let interferences = [
        ("MOVE ALL IN {p}", "24000"),
        ("MOVE 1 IN {p}", "24000"),
        ("MOVE BACKWARD 3 IN {p}", "24000"),
        ("FETCH 5 FROM {p}", "24000"),
        ("CLOSE {p}", "57014"),
        ("CLOSE {p}; DECLARE {p} CURSOR FOR SELECT {g}, {g} FROM generate_series(1, 9)", "57014"),
        ("CLOSE {p}; DECLARE {p} CURSOR FOR SELECT jsonb_build_object('_id', 'no document')", "57014"),
    ];
    for find in finds {
        for (interference, expected) in interferences {
            let declare = format!("DECLARE c CURSOR FOR {find}; FETCH 1 FROM c");
            client.batch_execute(&format!("BEGIN; {declare}")).unwrap();
            let sql = "SELECT quote_ident(name) FROM pg_cursors WHERE name LIKE '<unnamed%'";
            let portals: Vec<String> = client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
            for portal in &portals {
                let sql = interference.replace("{p}", portal).replace("{g}", garbage);
                // Some cannot go backwards.
                client.batch_execute("SAVEPOINT s").unwrap();
                if client.batch_execute(&sql).is_err() {
                    client.batch_execute("ROLLBACK TO s").unwrap();
                }
            }
            let error = client.batch_execute("FETCH ALL FROM c").expect_err(interference);
            let found = error.code().unwrap_or_else(|| panic!("{find}: {interference}: {error:?}")).code().to_owned();
            // A portal that cannot be moved backwards has failed.
            assert!([expected, "55000"].contains(&found.as_str()), "{find}: {interference}: {error:?}");
            client.batch_execute("ROLLBACK").unwrap();
        }
    }
    // The portal of a command's cursor.
    for (interference, expected) in interferences {
        client.batch_execute("BEGIN").unwrap();
        let command = "SELECT docshard.run_command('test', '{\"find\": \"things\", \"batchSize\": 2}')";
        let opened: Value = client.query_one(command, &[]).expect("a cursor").get(0);
        let id = &opened["cursor"]["id"];
        let sql = interference.replace("{p}", &format!("docshard_cursor_{id}")).replace("{g}", garbage);
        if client.batch_execute(&sql).is_ok() {
            let more =
                format!("SELECT docshard.run_command('test', '{{\"getMore\": {id}, \"collection\": \"things\"}}')");
            let reply: Value = client.query_one(&more, &[]).expect("a reply").get(0);
            let code = if expected == "57014" { 43 } else { 175 };
            assert_eq!(reply["code"], code, "{interference}: {reply}");
        }
        client.batch_execute("ROLLBACK").unwrap();
    }
}
