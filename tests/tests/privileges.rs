//! Privileges: `tests/privileges.txt` lists every function and every relation of the extension for every kind of role. An object
//! missing from the list fails the test, and so does a wrong line.

use docshard_tests::{Cluster, Node};
use postgres::{Client, SimpleQueryMessage};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const TABLE: &str = include_str!("../privileges.txt");

/// The roles of the table's columns. The service role, in the last column, has another name in each cluster.
const ROLES: &[&str] = &["nobody", "application", "reader", "monitor"];

/// A cluster with roles that may write, or read, the collection `test.own` but not `test.other`. Both collections are on
/// `shard0`, too.
fn cluster() -> (Cluster, String) {
    let cluster = Cluster::spread("test.own");
    let router = &cluster.router;
    router.psql("SELECT docshard.shard_collection('test.other', '{\"k\": 1}')");
    router.psql("SELECT docshard.split_at('test.other', '{\"k\": 100}')");
    router.psql("SELECT docshard.move_chunk('test.other', '{\"k\": 100}', 'shard0')");
    for namespace in ["test.own", "test.other"] {
        router.psql(&format!(
            "SELECT docshard.insert_many('{namespace}', ARRAY['{{\"_id\": 1, \"k\": 1}}', '{{\"_id\": 100, \"k\": 100}}']::jsonb[])"
        ));
    }
    router.psql("SELECT docshard.create_index('test.own', '{\"n\": 1}')");
    for node in [router, &cluster.shards[0]] {
        node.psql("CREATE ROLE nobody LOGIN");
        node.psql("CREATE ROLE monitor LOGIN IN ROLE pg_monitor");
    }
    for (role, granted) in [("application", "write"), ("reader", "read")] {
        router.psql(&format!("CREATE ROLE {role} LOGIN"));
        router.psql(&format!("SELECT docshard.grant_access('{role}', '{{\"{granted}\": \"test.own\"}}')"));
    }
    let service = cluster.shards[0].psql("SELECT role FROM docshard_data.service").trim().to_owned();
    (cluster, service)
}

/// A session of a role. At a shard, where application roles cannot log in, it is created as the router does.
fn session(node: &Node, role: &str, service: &str) -> Client {
    let acts_for = node.name != "router" && ["application", "reader"].contains(&role);
    let mut client = node
        .try_client_as(if acts_for { service } else { role }, "postgres")
        .unwrap_or_else(|e| panic!("{} as {role}: {e}", node.name));
    if acts_for {
        client.batch_execute(&format!("SET ROLE {role}")).expect("the service role acts for it");
    }
    client
}

/// Tries a statement and rolls it back. Returns `yes`, `refused` for missing privileges, or another SQLSTATE.
fn attempt(client: &mut Client, sql: &str) -> String {
    client.batch_execute("BEGIN").expect("a transaction");
    let result = client.simple_query(sql);
    client.batch_execute("ROLLBACK").unwrap_or_else(|e| panic!("{sql}: {e}"));
    match result {
        Ok(_) => "yes".to_owned(),
        Err(error) => match error.code().unwrap_or_else(|| panic!("{sql}: {error}")).code() {
            "42501" => "refused".to_owned(),
            code => code.to_owned(),
        },
    }
}

fn rows(node: &Node, sql: &str) -> Vec<Vec<String>> {
    let messages = node.client().simple_query(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    });
    rows.collect()
}

/// The lines of a section of the table without its heading, by first column.
fn section(name: &str) -> BTreeMap<String, (String, String)> {
    let lines = TABLE.lines().skip_while(|line| *line != format!("== {name}")).skip(1);
    let lines =
        lines.take_while(|line| !line.starts_with("==")).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = |line: &str| {
        let mut columns = line.splitn(3, " | ").map(str::trim);
        let mut next = || columns.next().unwrap_or_default();
        let (key, marks, call) = (next(), next(), next());
        (key.to_owned(), (marks.split_whitespace().collect::<Vec<_>>().join(" "), call.to_owned()))
    };
    let all: Vec<_> = lines.map(line).collect();
    let map: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(map.len(), all.len(), "a line stands twice in section {name}");
    assert!(!map.is_empty(), "section {name} is not in the table");
    map
}

/// Fails if the lines differ from the table; prints the correct ones.
fn compare(name: &str, found: &BTreeMap<String, (String, String)>) {
    let expected = section(name);
    let mut differences = String::new();
    let line = |sign: &str, key: &String, (marks, call): &(String, String)| {
        format!("{sign}{key} | {marks}{}\n", if call.is_empty() { String::new() } else { format!(" | {call}") })
    };
    for (key, value) in &expected {
        if found.get(key) != Some(value) {
            differences += &line("-", key, value);
        }
    }
    for (key, value) in found {
        if expected.get(key) != Some(value) {
            differences += &line("+", key, value);
        }
    }
    assert!(
        differences.is_empty(),
        "tests/privileges.txt, section {name}, says otherwise (-) than is (+):\n{differences}"
    );
}

/// A function in PostgreSQL's catalog.
struct Function {
    signature: String,
    /// a statement that calls it with nulls, so that PostgreSQL cannot skip the call even of a strict function; None if SQL
    /// cannot call it
    with_nulls: Option<String>,
    /// it may write, or takes a collection: only a call shows whether it checks privileges itself
    looks_itself: bool,
    is_internal: bool,
}

fn functions(node: &Node) -> Vec<Function> {
    let sql = "SELECT p.oid::regprocedure, format('SELECT %s.%I(%s) FROM (SELECT %s OFFSET 0) AS nulls',
                 p.pronamespace::regnamespace, p.proname,
                 (SELECT string_agg(CASE WHEN p.provariadic <> 0 AND n = p.pronargs THEN 'VARIADIC ' ELSE '' END || 'a' || n, ', ' ORDER BY n)
                    FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n)),
                 (SELECT string_agg(format('NULL::%s AS a%s', format_type(t, NULL), n), ', ' ORDER BY n)
                    FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n))),
                 'internal'::regtype = ANY (p.proargtypes), p.provolatile = 'v' OR coalesce('collection' = ANY (p.proargnames), false), p.pronamespace = 'docshard_internal'::regnamespace
               FROM pg_proc p WHERE p.pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace,
                 'docshard_catalog'::regnamespace, 'docshard_data'::regnamespace)";
    let function = |row: Vec<String>| {
        let [signature, call, takes_internal, looks_itself, is_internal] =
            <[String; 5]>::try_from(row).expect("five columns");
        Function {
            signature,
            with_nulls: (takes_internal == "f").then_some(call),
            looks_itself: looks_itself == "t",
            is_internal: is_internal == "t",
        }
    };
    let all: Vec<_> = rows(node, sql).into_iter().map(function).collect();
    assert!(all.len() > 100, "only {} functions", all.len());
    all
}

/// For each function, whether a role may use its schema and execute it.
fn may_execute(node: &Node, role: &str) -> BTreeMap<String, bool> {
    let sql = format!(
        "SELECT p.oid::regprocedure, has_schema_privilege('{role}', p.pronamespace, 'USAGE') AND has_function_privilege('{role}', p.oid, 'EXECUTE')
           FROM pg_proc p WHERE p.pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace,
             'docshard_catalog'::regnamespace, 'docshard_data'::regnamespace)"
    );
    rows(node, &sql).into_iter().map(|row| (row[0].clone(), row[1] == "t")).collect()
}

/// The placeholders in calls, with their values for the collections of this cluster.
fn placeholders(cluster: &Cluster) -> Vec<(String, String)> {
    let sql = "SELECT CASE namespace WHEN 'test.own' THEN 'own' ELSE 'other' END, substring(\"table\" FROM '[0-9]+$')
                 FROM docshard.collections WHERE namespace LIKE 'test.%'";
    let mut all = Vec::new();
    for row in rows(&cluster.router, sql) {
        let placed = rows(
            &cluster.shards[0],
            &format!("SELECT token, version FROM docshard_data.placement WHERE collection_id = {}", row[1]),
        );
        all.push((format!("<{}>", row[0]), row[1].clone()));
        all.push((format!("<{} version>", row[0]), format!("{}, {}", placed[0][0], placed[0][1])));
        let document = format!("SELECT ctid, skey, id FROM docshard_data.c{}", row[1]);
        if let [place, skey, id] = &rows(&cluster.shards[0], &document).concat()[..] {
            all.push((format!("<{} place>", row[0]), format!("'{place}'::tid")));
            all.push((format!("<{} key>", row[0]), format!("'{skey}'::bytea, '{id}'::bytea")));
        }
    }
    // A document that no longer exists, as a router sends it.
    cluster.router.psql("SELECT docshard.insert_one('test.own', '{\"_id\": 150, \"k\": 150}')");
    let new = format!(
        "SELECT string_agg(int4send(length(part)) || part, '' ORDER BY n) FROM docshard_data.c{},
           unnest(ARRAY[skey, id, docshard_internal.pack(doc)]) WITH ORDINALITY AS u (part, n) WHERE doc -> 'k' = '150'",
        all.iter().find(|(name, _)| name == "<own>").map_or("", |(_, id)| id)
    );
    all.push(("<own new>".to_owned(), format!("'{}'::bytea", cluster.shards[0].psql(&new).trim())));
    cluster.router.psql("SELECT docshard.delete_one('test.own', '{\"k\": 150}')");
    let index =
        "SELECT substring(relation FROM '[0-9]+$') FROM docshard.indexes WHERE namespace = 'test.own' AND name = 'n_1'";
    let search = json!({"index": cluster.router.psql(index).trim().parse::<i32>().expect("a number"), "most": 10, "all": true,
        "backward": false, "inOrder": true, "keyed": true});
    all.push(("<search>".to_owned(), format!("'{search}'")));
    all
}

#[test]
fn functions_are_allowed_or_refused_as_the_table_says() {
    let (cluster, service) = cluster();
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    let placeholders = placeholders(&cluster);
    let calls = section("functions");
    let all = functions(router);
    let names = |functions: &[Function]| {
        let mut names: Vec<_> = functions.iter().map(|function| function.signature.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&functions(shard)), names(&all));

    let mut found: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut wrong = String::new();
    for role in ROLES.iter().copied().chain([service.as_str()]) {
        let allowed = may_execute(shard, role);
        if role != service {
            assert_eq!(may_execute(router, role), allowed, "{role} is the same at both nodes");
        }
        let mut at_router = (role != service).then(|| session(router, role, &service));
        let mut at_shard = session(shard, role, &service);
        for function in &all {
            let call = calls.get(&function.signature).map_or("", |(_, call)| call);
            // Routers call what is internal; everything else is called at the router.
            let client = match &mut at_router {
                Some(client) if !function.is_internal => client,
                _ => &mut at_shard,
            };
            let mark = if !allowed[&function.signature] {
                if let Some(sql) = &function.with_nulls {
                    let answer = attempt(client, sql);
                    if answer != "refused" {
                        let _ = writeln!(wrong, "{role}: {sql}: {answer}");
                    }
                }
                "no".to_owned()
            } else if call.is_empty() {
                if function.looks_itself && role != service && function.with_nulls.is_some() {
                    let _ =
                        writeln!(wrong, "{}: {role} may call it, so it needs a call in the table", function.signature);
                }
                "yes".to_owned()
            } else {
                let sql = placeholders.iter().fold(call.to_owned(), |sql, (from, to)| sql.replace(from, to));
                attempt(client, &format!("SELECT {sql}"))
            };
            let entry = found.entry(function.signature.clone()).or_insert_with(|| (String::new(), call.to_owned()));
            if !entry.0.is_empty() {
                entry.0.push(' ');
            }
            entry.0 += &mark;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    compare("functions", &found);
}

/// The privileges of a role on each relation, as letters.
fn relations(cluster: &Cluster, node: &Node, role: &str) -> Vec<(String, String)> {
    let sql = format!(
        "SELECT c.oid::regclass, concat(
           CASE WHEN CASE c.relkind WHEN 'S' THEN has_sequence_privilege('{role}', c.oid, 'SELECT')
             ELSE has_any_column_privilege('{role}', c.oid, 'SELECT') END THEN 'r' END,
           CASE WHEN CASE c.relkind WHEN 'S' THEN has_sequence_privilege('{role}', c.oid, 'USAGE, UPDATE')
             ELSE has_any_column_privilege('{role}', c.oid, 'INSERT, UPDATE') OR has_table_privilege('{role}', c.oid, 'DELETE') END THEN 'w' END,
           CASE WHEN c.relkind <> 'S' AND (has_table_privilege('{role}', c.oid, 'TRUNCATE, TRIGGER')
             OR has_any_column_privilege('{role}', c.oid, 'REFERENCES')) THEN 'a' END),
           has_schema_privilege('{role}', c.relnamespace, 'USAGE'), has_schema_privilege('{role}', c.relnamespace, 'CREATE')
         FROM pg_class c WHERE c.relkind IN ('r', 'v', 'm', 'S', 'f', 'p') AND c.relnamespace IN ('docshard'::regnamespace,
           'docshard_internal'::regnamespace, 'docshard_catalog'::regnamespace, 'docshard_data'::regnamespace)"
    );
    let placeholders = placeholders(cluster);
    let name = |table: &str| match placeholders.iter().find(|(_, id)| table == format!("docshard_data.c{id}")) {
        Some((collection, _)) => format!("docshard_data.c{collection}"),
        None => table.to_owned(),
    };
    let mark = |row: &[String]| if row[2] == "f" || row[1].is_empty() { "-".to_owned() } else { row[1].clone() };
    rows(node, &sql).iter().map(|row| (name(&row[0]), mark(row))).collect()
}

#[test]
fn relations_are_allowed_or_refused_as_the_table_says() {
    let (cluster, service) = cluster();
    for (name, node, roles) in [
        ("relations at the router", &cluster.router, ROLES.to_vec()),
        ("relations at a shard", &cluster.shards[0], [ROLES, &[service.as_str()]].concat()),
    ] {
        let mut found: BTreeMap<String, (String, String)> = BTreeMap::new();
        for role in roles {
            for (relation, mark) in relations(&cluster, node, role) {
                let marks = &mut found.entry(relation).or_default().0;
                if !marks.is_empty() {
                    marks.push(' ');
                }
                *marks += &mark;
            }
        }
        compare(name, &found);
    }
}

/// No function runs as another role with the caller's search path.
#[test]
fn functions_that_run_as_their_owner_name_their_search_path() {
    let (cluster, _) = cluster();
    let sql = "SELECT p.oid::regprocedure, p.proconfig FROM pg_proc p WHERE p.prosecdef AND p.pronamespace IN (
                 'docshard'::regnamespace, 'docshard_internal'::regnamespace, 'docshard_catalog'::regnamespace, 'docshard_data'::regnamespace)";
    let all = rows(&cluster.router, sql);
    assert!(all.len() > 20, "only {}", all.len());
    for function in all {
        assert!(function[1].contains("search_path=pg_catalog, pg_temp"), "{function:?}");
    }
    // Besides superusers only the service role can create objects in the extension's schemas: it creates the collections'
    // tables.
    let sql = "SELECT n.nspname || ' ' || r.rolname FROM pg_namespace n, pg_roles r
                WHERE n.nspname LIKE 'docshard%' AND has_schema_privilege(r.oid, n.oid, 'CREATE') AND NOT r.rolsuper";
    for node in [&cluster.router, &cluster.shards[0]] {
        assert_eq!(rows(node, sql), [[format!("docshard_data {}", node.service_role())]], "{}", node.name);
    }
}

/// A role that may write a collection can damage only that collection's documents. Its statements run directly at a shard, as
/// if it could log in there.
#[test]
fn a_writer_of_a_collection_can_damage_only_that() {
    let (cluster, service) = cluster();
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    let named = |sql: &str| placeholders(&cluster).iter().fold(sql.to_owned(), |sql, (from, to)| sql.replace(from, to));
    // A running move creates such a table at a shard, under a name that the worker does not consider a leftover.
    shard.psql(&format!(
        "SET ROLE {service}; CREATE TABLE docshard_data.a_staging (skey bytea, id bytea, doc jsonb); \
         INSERT INTO docshard_data.a_staging VALUES ('', '', '{{}}')"
    ));
    let mut client = session(shard, "application", &service);
    for sql in [
        "SELECT FROM docshard_data.c<other>",
        "INSERT INTO docshard_data.c<other> SELECT * FROM docshard_data.c<own>",
        "UPDATE docshard_data.c<other> SET doc = '{}'",
        "DELETE FROM docshard_data.c<other>",
        "SELECT docshard_internal.lock_and_check(<other>, <other version>, NULL, NULL)",
        "SELECT docshard_internal.count_all(<other>)",
        "SELECT docshard_internal.replace_document(<other>, <other place>, <other key>, '{\"_id\": 100, \"k\": 100}', '{\"_id\": 100, \"k\": 100, \"x\": 1}')",
        "SELECT docshard_internal.pack_part(<other>, <other key>, NULL, NULL)",
        "SELECT * FROM docshard_data.a_staging",
        "INSERT INTO docshard_data.a_staging VALUES ('', '', '{}')",
        "UPDATE docshard_data.a_staging SET doc = '{\"$bad\": 1}'",
        "UPDATE docshard_data.placement SET version = version + 1",
        "DELETE FROM docshard_data.placement",
        "INSERT INTO docshard_data.capture VALUES (<own>, 1, '', NULL)",
        "DELETE FROM docshard_data.capture_log",
        "INSERT INTO docshard_data.capture_log VALUES (1, 1, <own>, '', '')",
        "SELECT * FROM docshard_data.capture_packed",
        "SELECT * FROM docshard_data.capture_changes",
        "SELECT * FROM docshard_data.service",
        "UPDATE docshard_data.node SET shard = 'x'",
        "UPDATE docshard_catalog.chunks SET jumbo = true",
        "INSERT INTO docshard_catalog.grants VALUES ('application'::regrole, '*', 'write')",
        "DELETE FROM docshard_catalog.transactions",
        "SELECT * FROM docshard_catalog.rotation",
        // Changes of the table itself, or of objects that belong to it.
        "TRUNCATE docshard_data.c<own>",
        "DROP TABLE docshard_data.c<own>",
        "ALTER TABLE docshard_data.c<own> DISABLE TRIGGER capture",
        "ALTER TABLE docshard_data.c<own> ADD COLUMN more text",
        "CREATE TRIGGER mine BEFORE INSERT ON docshard_data.c<own> FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE RULE mine AS ON DELETE TO docshard_data.c<own> DO INSTEAD NOTHING",
        "CREATE INDEX ON docshard_data.c<own> (id)",
        "CREATE POLICY mine ON docshard_data.c<own>",
        "GRANT SELECT ON docshard_data.c<own> TO PUBLIC WITH GRANT OPTION",
        "CREATE TABLE docshard_data.mine ()",
        "CREATE FUNCTION docshard_internal.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SET session_replication_role = replica",
        "CREATE ROLE other_role",
        "CREATE SERVER mine FOREIGN DATA WRAPPER postgres_fdw",
        "CREATE USER MAPPING FOR CURRENT_USER SERVER docshard_local",
        "SELECT docshard.accept_router('application')",
        "SELECT docshard_internal.create_role('application')",
        "SELECT docshard_internal.drop_table(<other>)",
    ] {
        let sql = named(sql);
        let expected = match sql.split(' ').next() {
            // A GRANT of a privilege that the role cannot grant is a warning, unless the role has no privilege on the object.
            Some("GRANT") => "0LP01",
            _ => "refused",
        };
        assert_eq!(attempt(&mut client, &sql), expected, "{sql}");
    }

    // The role may write documents, but nothing that is not a document, nor a document with a wrong key.
    for sql in
        ["UPDATE docshard_data.c<own> SET doc = '{\"_id\": 1, \"broken\": true}'", "DELETE FROM docshard_data.c<own>"]
    {
        assert_eq!(attempt(&mut client, &named(sql)), "yes", "{sql}");
    }
    assert_eq!(attempt(&mut client, &named("UPDATE docshard_data.c<own> SET doc = '[]'")), "42804");
    client.batch_execute(&named("UPDATE docshard_data.c<own> SET doc = '{\"_id\": 5, \"k\": 5}'")).unwrap();
    let wrong =
        |namespace: &str| -> String { router.value(&format!("SELECT docshard.check_collection('{namespace}')::text")) };
    assert!(wrong("test.own").contains("shard0"), "{}", wrong("test.own"));
    assert_eq!(router.value::<i64>("SELECT docshard.count_documents('test.other', '{\"k\": {\"$gt\": 0}}')"), 2);
}

/// A role has no privileges on a server of the cluster unless they are granted.
#[test]
fn nobody_reaches_a_shard_by_its_servers() {
    let (cluster, service) = cluster();
    for node in [&cluster.router, &cluster.shards[0]] {
        for role in ROLES {
            let usable = format!(
                "SELECT count(*) FROM pg_foreign_server WHERE srvname LIKE 'docshard_%' AND has_server_privilege('{role}', oid, 'USAGE')"
            );
            assert_eq!(node.value::<i64>(&usable), 0, "{role} at {}", node.name);
            let mut client = session(node, role, &service);
            let told = "SELECT count(umoptions) FROM pg_user_mappings";
            assert_eq!(client.query_one(told, &[]).unwrap().get::<_, i64>(0), 0, "{role} at {}", node.name);
        }
    }
}

/// All commands, each with the corresponding function: see [`commands_demand_the_right_of_their_function`].
fn commands() -> Vec<(&'static str, &'static str, Json)> {
    let find = json!({"k": 1});
    let bulk = |write: Json| json!({"bulkWrite": 1, "ops": [write], "nsInfo": [{"ns": "test.own"}]});
    let set = |collection: &str, id: &str, fields: Json| json!({"update": collection, "updates": [{"q": {"_id": id}, "u": {"$set": fields}}]});
    let (read, readers) =
        (json!(["read"]), json!([{"resource": {"db": "test", "collection": ""}, "actions": ["find"]}]));
    vec![
        ("test", "insert_many", json!({"insert": "own", "documents": [{"k": 1}]})),
        ("test", "update_one", json!({"update": "own", "updates": [{"q": find, "u": {"$set": {"n": 1}}}]})),
        (
            "test",
            "update_many",
            json!({"update": "own", "updates": [{"q": find, "u": {"$set": {"n": 1}}, "multi": true}]}),
        ),
        ("test", "replace_one", json!({"update": "own", "updates": [{"q": find, "u": {"k": 1}}]})),
        ("test", "delete_one", json!({"delete": "own", "deletes": [{"q": find, "limit": 1}]})),
        ("test", "delete_many", json!({"delete": "own", "deletes": [{"q": find, "limit": 0}]})),
        ("admin", "insert_many", bulk(json!({"insert": 0, "document": {"k": 1}}))),
        ("admin", "update_one", bulk(json!({"update": 0, "filter": find, "updateMods": {"$set": {"n": 1}}}))),
        (
            "admin",
            "update_many",
            bulk(json!({"update": 0, "filter": find, "updateMods": {"$set": {"n": 1}}, "multi": true})),
        ),
        ("admin", "replace_one", bulk(json!({"update": 0, "filter": find, "updateMods": {"k": 1}}))),
        ("admin", "delete_one", bulk(json!({"delete": 0, "filter": find}))),
        ("admin", "delete_many", bulk(json!({"delete": 0, "filter": find, "multi": true}))),
        ("config", "set_setting", set("settings", "chunksize", json!({"value": 1}))),
        ("config", "stop_balancer", set("settings", "balancer", json!({"stopped": true}))),
        ("config", "start_balancer", set("settings", "balancer", json!({"stopped": false}))),
        ("config", "disable_balancing", set("collections", "test.own", json!({"noBalance": true}))),
        ("config", "enable_balancing", set("collections", "test.own", json!({"noBalance": false}))),
        ("test", "find", json!({"find": "own"})),
        ("test", "find", json!({"find": "own", "limit": 1})),
        ("test", "aggregate", json!({"aggregate": "own", "pipeline": [{"$count": "n"}], "cursor": {}})),
        ("test", "modify_collection", json!({"collMod": "own"})),
        ("test", "count_documents", json!({"count": "own"})),
        ("test", "distinct", json!({"distinct": "own", "key": "k"})),
        ("test", "find_and_modify", json!({"findAndModify": "own", "query": find, "remove": true})),
        ("test", "explain", json!({"explain": {"find": "own"}})),
        ("test", "create_collection", json!({"create": "new"})),
        ("test", "drop_collection", json!({"drop": "own"})),
        ("test", "drop_database", json!({"dropDatabase": 1})),
        ("test", "create_index", json!({"createIndexes": "own", "indexes": [{"key": {"m": 1}, "name": "m_1"}]})),
        ("test", "drop_indexes", json!({"dropIndexes": "own", "index": "*"})),
        ("test", "list_indexes", json!({"listIndexes": "own"})),
        ("admin", "add_shard", json!({"addShard": "host=127.0.0.1 port=1 dbname=none", "name": "new"})),
        ("admin", "rename_collection", json!({"renameCollection": "test.own", "to": "test.renamed"})),
        ("admin", "reshard_collection", json!({"reshardCollection": "test.own", "key": {"m": 1}})),
        ("admin", "abort_reshard_collection", json!({"abortReshardCollection": "test.own"})),
        ("admin", "commit_reshard_collection", json!({"commitReshardCollection": "test.own"})),
        (
            "admin",
            "refine_collection_shard_key",
            json!({"refineCollectionShardKey": "test.own", "key": {"k": 1, "m": 1}}),
        ),
        (
            "admin",
            "configure_query_analyzer",
            json!({"configureQueryAnalyzer": "test.own", "mode": "full", "samplesPerSecond": 1}),
        ),
        ("test", "check_metadata_consistency", json!({"checkMetadataConsistency": "own"})),
        ("admin", "check_metadata_consistency", json!({"checkMetadataConsistency": 1})),
        ("admin", "analyze_shard_key", json!({"analyzeShardKey": "test.own", "key": {"k": 1}})),
        ("admin", "unshard_collection", json!({"unshardCollection": "test.own"})),
        ("admin", "abort_reshard_collection", json!({"abortUnshardCollection": "test.own"})),
        ("admin", "move_collection", json!({"moveCollection": "test.own", "toShard": "shard0"})),
        ("admin", "abort_reshard_collection", json!({"abortMoveCollection": "test.own"})),
        ("test", "check_collection", json!({"validate": "own"})),
        ("test", "grant_access", json!({"createUser": "new_user", "pwd": VERIFIER, "roles": read})),
        ("test", "grant_access", json!({"updateUser": "subject", "roles": ["read", {"role": "read", "db": "other"}]})),
        ("test", "revoke_access", json!({"updateUser": "subject", "roles": []})),
        ("test", "revoke_access", json!({"dropUser": "subject"})),
        ("test", "grant_access", json!({"grantRolesToUser": "subject", "roles": read})),
        ("test", "revoke_access", json!({"revokeRolesFromUser": "subject", "roles": read})),
        ("test", "grant_access", json!({"createRole": "new_role", "roles": [], "privileges": readers})),
        ("test", "revoke_access", json!({"dropRole": "subject_role"})),
        ("test", "grant_access", json!({"grantRolesToRole": "subject_role", "roles": read})),
        ("test", "revoke_access", json!({"revokeRolesFromRole": "subject_role", "roles": read})),
        ("admin", "remove_shard", json!({"removeShard": "none"})),
        ("admin", "remove_shard", json!({"startShardDraining": "none"})),
        ("admin", "remove_shard", json!({"stopShardDraining": "none"})),
        ("admin", "remove_shard", json!({"shardDrainingStatus": "none"})),
        ("admin", "remove_shard", json!({"commitShardRemoval": "none"})),
        ("admin", "list_shards", json!({"listShards": 1})),
        ("admin", "list_shards", json!({"getShardMap": 1})),
        ("admin", "set_setting", json!({"flushRouterConfig": 1})),
        ("admin", "enable_sharding", json!({"enableSharding": "new"})),
        ("admin", "shard_collection", json!({"shardCollection": "test.new", "key": {"k": 1}})),
        ("admin", "split_at", json!({"split": "test.own", "middle": {"k": 5}})),
        ("admin", "split_find", json!({"split": "test.own", "find": find})),
        ("admin", "split_find", json!({"split": "test.own", "bounds": [{"k": {"$minKey": 1}}, {"k": 100}]})),
        ("admin", "move_chunk", json!({"moveChunk": "test.own", "find": find, "to": "shard0"})),
        (
            "admin",
            "move_range",
            json!({"moveChunk": "test.own", "bounds": [{"k": {"$minKey": 1}}, {"k": 100}], "to": "shard0"}),
        ),
        (
            "admin",
            "move_range",
            json!({"moveRange": "test.own", "min": {"k": 1}, "max": {"k": 2}, "toShard": "shard0"}),
        ),
        (
            "admin",
            "merge_chunks",
            json!({"mergeChunks": "test.own", "bounds": [{"k": {"$minKey": 1}}, {"k": {"$maxKey": 1}}]}),
        ),
        ("admin", "clear_jumbo_flag", json!({"clearJumboFlag": "test.own", "find": find})),
        ("admin", "move_primary", json!({"movePrimary": "test", "to": "shard0"})),
        ("admin", "add_shard_to_zone", json!({"addShardToZone": "shard0", "zone": "z"})),
        ("admin", "remove_shard_from_zone", json!({"removeShardFromZone": "shard0", "zone": "z"})),
        (
            "admin",
            "update_zone_key_range",
            json!({"updateZoneKeyRange": "test.own", "min": {"k": 1}, "max": {"k": 2}, "zone": null}),
        ),
        ("admin", "start_balancer", json!({"balancerStart": 1})),
        ("admin", "stop_balancer", json!({"balancerStop": 1})),
        ("admin", "balancer_status", json!({"balancerStatus": 1})),
        ("admin", "balancer_collection_status", json!({"balancerCollectionStatus": "test.own"})),
        (
            "admin",
            "configure_collection_balancing",
            json!({"configureCollectionBalancing": "test.own", "chunkSize": 1}),
        ),
    ]
}

/// Commands without a corresponding function: they return what every role can read, or concern only the session.
const OF_NO_FUNCTION: &[&str] = &[
    "buildInfo",
    "collStats",
    "connectionStatus",
    "createSearchIndexes",
    "currentOp",
    "dataSize",
    "dbStats",
    "dropSearchIndex",
    "endSessions",
    "getCmdLineOpts",
    "getDefaultRWConcern",
    "getLastError",
    "getLog",
    "getMore",
    "getParameter",
    "hello",
    "hostInfo",
    "killAllSessions",
    "killAllSessionsByPattern",
    "killCursors",
    "killOp",
    "killSessions",
    "listCollections",
    "listCommands",
    "listDatabases",
    "ping",
    "refreshSessions",
    "rolesInfo",
    "serverStatus",
    "startSession",
    "top",
    "updateSearchIndex",
    "usersInfo",
    "whatsmyuri",
];

/// The verifier of a password.
const VERIFIER: &str = "SCRAM-SHA-256$15000:YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYg==$MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// Runs a command, rolls it back, and returns its answer.
fn run_command(client: &mut Client, db: &str, command: &Json) -> Json {
    let mut transaction = client.transaction().expect("a transaction");
    let sql = "SELECT docshard.run_command($1, $2::text::json)::text";
    let row = transaction.query_one(sql, &[&db, &command.to_string()]).unwrap_or_else(|e| panic!("{command}: {e:?}"));
    serde_json::from_str(row.get(0)).expect("JSON")
}

/// A role may run a command exactly if it may execute the corresponding function. The commands and their functions are those of
/// `listCommands`, so a new command must be added here.
#[test]
fn commands_demand_the_right_of_their_function() {
    let (cluster, _) = cluster();
    let router = &cluster.router;
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    let mut of_none = Vec::new();
    let mut admin = router.client();
    for (command, entry) in
        run_command(&mut admin, "test", &json!({"listCommands": 1}))["commands"].as_object().unwrap()
    {
        let functions = entry["functions"].as_array().unwrap();
        listed.extend(functions.iter().map(|function| (command.clone(), function.as_str().unwrap().to_owned())));
        if functions.is_empty() {
            of_none.push(command.clone());
        }
    }
    of_none.sort();
    assert_eq!(of_none, OF_NO_FUNCTION);
    let name = |command: &Json| command.as_object().unwrap().keys().next().unwrap().clone();
    let tried: BTreeSet<_> =
        commands().iter().map(|(_, function, json)| (name(json), (*function).to_owned())).collect();
    assert_eq!(tried, listed, "this test has each command with each of its functions");

    // Users and roles need PostgreSQL's own right to create them, too.
    router.psql("ALTER ROLE application CREATEROLE; CREATE ROLE subject LOGIN; CREATE ROLE subject_role");
    for subject in ["subject", "subject_role"] {
        router.psql(&format!("SELECT docshard.grant_access('{subject}', '{{\"read\": \"test\"}}')"));
    }
    router.psql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA docshard FROM PUBLIC; GRANT EXECUTE ON FUNCTION docshard.run_command(text, json) TO PUBLIC");
    let mut client = session(router, "application", "");
    for (db, function, command) in commands() {
        let refused = format!("permission denied for function {function}");
        let answer = run_command(&mut client, db, &command);
        assert_eq!((&answer["code"], answer["errmsg"].as_str()), (&json!(13), Some(refused.as_str())), "{command}");
        // The form with json arguments decides.
        let form = router.psql(&format!(
            "SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'docshard'::regnamespace AND p.proname = '{function}' \
               AND NOT 'varchar'::regtype = ANY (p.proargtypes) ORDER BY p.pronargs LIMIT 1"
        ));
        let form = form.trim();
        router.psql(&format!("GRANT EXECUTE ON FUNCTION {form} TO application"));
        let answer = run_command(&mut client, db, &command);
        let error = answer["errmsg"].as_str().unwrap_or_default();
        assert!(!error.starts_with("permission denied"), "{command}: {answer}");
        router.psql(&format!("REVOKE EXECUTE ON FUNCTION {form} FROM application"));
    }

    // The command has only the rights of the function, which an administrator may restrict.
    router.psql("GRANT EXECUTE ON FUNCTION docshard.create_collection(text, json) TO application");
    let create = json!({"create": "new"});
    assert_eq!(run_command(&mut client, "test", &create), json!({"ok": 1}));
    router.psql("ALTER FUNCTION docshard.create_collection(text, json) SECURITY INVOKER");
    let answer = run_command(&mut client, "test", &create);
    assert_eq!(answer["code"], 13, "{answer}");
    assert_eq!(attempt(&mut client, "SELECT docshard.create_collection('test.new')"), "refused");
    router
        .psql("ALTER FUNCTION docshard.create_collection(text, json) SECURITY DEFINER SET log_min_messages = 'panic'");
    assert_eq!(attempt(&mut client, "SELECT docshard.create_collection('test.new')"), "yes");
    assert_eq!(run_command(&mut client, "test", &create), json!({"ok": 1}));

    // A view does not give access to a function that the role cannot name.
    router.psql(
        "CREATE SCHEMA open; GRANT USAGE ON SCHEMA open, docshard_catalog TO PUBLIC; GRANT EXECUTE ON FUNCTION docshard.create_collection(text, json) TO nobody; \
         CREATE VIEW open.door AS SELECT docshard.run_command('test', '{\"create\": \"new\"}')::text AS answer; \
         GRANT SELECT ON open.door TO PUBLIC",
    );
    let answer: String = session(router, "nobody", "").query_one("SELECT answer FROM open.door", &[]).unwrap().get(0);
    assert!(answer.contains("permission denied for schema docshard"), "{answer}");
    // Maintenance of a table runs its owner's functions as the owner. A cursor that they open does not survive: the rest would be read
    // as another role.
    router.psql(
        "GRANT EXECUTE ON FUNCTION docshard.find(text, json, json) TO application; GRANT CREATE ON SCHEMA open TO application; SET ROLE application; \
         CREATE MATERIALIZED VIEW open.answer AS SELECT docshard.run_command('test', '{\"find\": \"own\", \"batchSize\": 1}')::text AS answer WITH NO DATA",
    );
    admin.batch_execute("REFRESH MATERIALIZED VIEW open.answer").unwrap();
    let answer: String = admin.query_one("SELECT answer FROM open.answer", &[]).unwrap().get(0);
    assert!(answer.contains("cannot open a cursor within security-restricted operation"), "{answer}");
    assert_eq!(admin.query_one("SELECT count(*) FROM pg_cursors WHERE is_holdable", &[]).unwrap().get::<_, i64>(0), 0);

    // An error of another role's command is not shown.
    let failed = run_command(&mut client, "test", &json!({"getMore": 1, "collection": "own"}));
    let told = |client: &mut Client| run_command(client, "test", &json!({"getLastError": 1}))["err"].clone();
    assert_eq!(told(&mut client), failed["errmsg"]);
    router.psql(
        "GRANT USAGE ON SCHEMA docshard TO nobody; GRANT EXECUTE ON FUNCTION docshard.run_command(text, json) TO nobody; GRANT nobody TO application",
    );
    client.batch_execute("SET ROLE nobody").unwrap();
    assert_eq!(told(&mut client), json!(null));
    client.batch_execute("RESET ROLE").unwrap();
    assert_eq!(told(&mut client), failed["errmsg"]);

    // No role or setting of another command remains.
    let left = "SELECT current_user || ' ' || current_setting('search_path')";
    assert_eq!(client.query_one(left, &[]).unwrap().get::<_, String>(0), "application \"$user\", public");
}
