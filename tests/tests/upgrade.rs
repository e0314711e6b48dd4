//! Upgrades an earlier release to the working tree: the cluster keeps its data and its functions, and the extension equals a
//! fresh one.
//!
//! Run by `make test-upgrade`, which builds the releases first.

use docshard_tests::{Cluster, Node, Release};
use postgres::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The statements of an administrator and an application before the upgrade.
const BEFORE: &[&str] = &[
    "SELECT docshard.stop_balancer()",
    "SELECT docshard.enable_sharding('shop', 'local')",
    "SELECT docshard.set_setting('chunk_size_mb', '7')",
    "SELECT docshard.shard_collection('shop.things', '{\"k\": 1}')",
    "SELECT docshard.create_index('shop.things', '{\"n\": 1, \"k\": -1}')",
    "SELECT docshard.create_index('shop.things', '{\"k\": 1, \"u\": 1}',
       '{\"unique\": true, \"partialFilterExpression\": {\"u\": {\"$gt\": 5}}}')",
    "SELECT docshard.create_index('shop.things', '{\"tags.$**\": 1}')",
    "SELECT docshard.create_index('shop.things', '{\"n\": \"hashed\"}')",
    "SELECT docshard.insert_many('shop.things', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', k % 10, 'u', k,
       'tags', jsonb_build_object('a', jsonb_build_array(k % 3, k % 5))))) FROM generate_series(0, 299) k",
    "SELECT docshard.split_at('shop.things', '{\"k\": 100}')",
    "SELECT docshard.split_at('shop.things', '{\"k\": 200}')",
    "SELECT docshard.move_chunk('shop.things', '{\"k\": 100}', 'shard0')",
    "SELECT docshard.move_chunk('shop.things', '{\"k\": 200}', 'shard1')",
    "SELECT docshard.shard_collection('shop.hashed', '{\"_id\": \"hashed\"}')",
    "SELECT docshard.insert_many('shop.hashed', array_agg(jsonb_build_object('_id', k))) FROM generate_series(0, 99) k",
    "SELECT docshard.add_shard_to_zone('shard1', 'far')",
    "SELECT docshard.update_zone_key_range('shop.things', '{\"k\": 200}', '{\"k\": {\"$maxKey\": 1}}', 'far')",
    "SELECT docshard.insert_one('shop.notes', '{\"_id\": 1, \"text\": \"unsharded\"}')",
    "CREATE ROLE clerk",
    "SELECT docshard.grant_access('clerk', '{\"write\": [\"shop\"]}')",
];

/// Further statements, which need 0.2.0 or later.
const BEFORE_0_2: &[&str] = &[
    "SELECT docshard.create_collection('shop.fives', '{\"viewOn\": \"things\", \"pipeline\": [{\"$match\": {\"n\": 5}}]}')",
];

/// Queries that return the same before and after the upgrade.
const QUESTIONS: &[&str] = &[
    "SELECT docshard.find('shop.things', '{}', '{\"sort\": {\"_id\": 1}}')",
    "SELECT docshard.find('shop.things', '{\"n\": 3}', '{\"sort\": {\"k\": 1}, \"hint\": {\"n\": 1, \"k\": -1}}')",
    "SELECT docshard.find('shop.things', '{\"tags.a\": 4}', '{\"sort\": {\"_id\": 1}}')",
    "SELECT docshard.find('shop.things', '{\"k\": 250}')",
    "SELECT to_jsonb(docshard.count_documents('shop.hashed'))",
    "SELECT docshard.find('shop.notes')",
    "SELECT to_jsonb(c) - 'version' FROM docshard.chunks c ORDER BY namespace, min_key",
    "SELECT to_jsonb(s) FROM docshard.shards s ORDER BY name",
    "SELECT to_jsonb(i) FROM docshard.indexes i ORDER BY namespace, name",
    "SELECT to_jsonb(g) FROM docshard.grants g",
    "SELECT to_jsonb(z) FROM docshard.zones z",
];

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

fn ask(client: &mut Client, sql: &str) -> Vec<Value> {
    let rows = client.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// A cluster of two shards with the extension of a release, on which [`BEFORE`] was run.
fn used_cluster(release: &Release) -> Cluster {
    let cluster = Cluster::servers_of_release(2, release);
    for node in nodes(&cluster) {
        node.psql(&format!("CREATE EXTENSION docshard VERSION '{}' CASCADE", release.version));
    }
    for shard in &cluster.shards {
        cluster.router.add_shard(shard);
    }
    let mut client = cluster.router.client();
    BEFORE.iter().for_each(|sql| run(&mut client, sql));
    if release.is_upgraded_node_by_node() {
        BEFORE_0_2.iter().for_each(|sql| run(&mut client, sql));
    }
    cluster
}

/// The shards, which are upgraded first, and the router.
fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.shards.iter().chain([&cluster.router])
}

/// Objects of other users that exist before the upgrade. The operators, in a schema of the search path, fit their arguments better
/// than PostgreSQL's own, so an upgrade script without qualified names would call them. The function has the name of one of
/// docshard's.
const OF_OTHERS: &[&str] = &[
    "CREATE ROLE mallory",
    "GRANT CREATE ON SCHEMA public TO mallory",
    "SET ROLE mallory",
    "CREATE FUNCTION public.trap(oid, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'run as %', current_user; END $$",
    "CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = integer, FUNCTION = public.trap)",
    "CREATE FUNCTION public.trap(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'run as %', current_user; END $$",
    "CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = text, FUNCTION = public.trap)",
    "RESET ROLE",
    "CREATE FUNCTION docshard_internal.measure() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
];

/// A grant with grant option on a function of docshard. 0.1.0 had another name for the function.
fn grant_to_others(release: &Release) -> String {
    let function = if release.version == "0.1.0" { "remove_leaving" } else { "delete_range" };
    format!("GRANT EXECUTE ON FUNCTION docshard_internal.{function} TO mallory WITH GRANT OPTION")
}

/// Checks that a node still has the objects and the grant after the upgrade.
fn check_of_others(node: &Node) {
    let function = "docshard_internal.delete_range(bigint, integer, bytea, bytea)";
    for sql in [
        "docshard_internal.measure() = 1",
        &format!("has_function_privilege('mallory', '{function}', 'EXECUTE WITH GRANT OPTION')"),
    ] {
        assert!(node.value::<bool>(&format!("SELECT {sql}")), "{}: {sql}", node.name);
    }
    node.psql("DROP FUNCTION docshard_internal.measure(); DROP OWNED BY mallory; DROP ROLE mallory");
}

fn upgrade_all_at_once(cluster: &mut Cluster) {
    for node in cluster.shards.iter_mut().chain([&mut cluster.router]) {
        node.stop();
        node.use_library(&Release::present());
    }
    for node in cluster.shards.iter_mut().chain([&mut cluster.router]) {
        node.start();
        node.psql("ALTER EXTENSION docshard UPDATE");
    }
}

/// A line for each of the extension's objects: kind and name, definition and privileges.
fn objects(node: &Node) -> BTreeMap<(String, String), String> {
    let rows =
        node.client().query(include_str!("../src/objects_of_extension.sql"), &[]).expect("the extension's objects");
    let line = |row: &postgres::Row| {
        let [kind, name, definition, privileges] = [0, 1, 2, 3].map(|column| row.get::<_, String>(column));
        ((kind, name), format!("{definition} [{privileges}]"))
    };
    rows.iter().map(line).collect()
}

/// The objects that differ between two nodes, or exist on one only.
fn differences(upgraded: &Node, fresh: &Node) -> String {
    let (upgraded, fresh) = (objects(upgraded), objects(fresh));
    let mut text = String::new();
    for ((kind, name), definition) in &fresh {
        match upgraded.get(&(kind.clone(), name.clone())) {
            None => writeln!(text, "the upgrade lacks {kind} {name}: {definition}").unwrap(),
            Some(other) if other != definition => {
                writeln!(text, "{kind} {name} is after the upgrade\n{other}\nand in a fresh install\n{definition}")
                    .unwrap();
            }
            Some(_) => {}
        }
    }
    for (kind, name) in upgraded.keys().filter(|key| !fresh.contains_key(*key)) {
        writeln!(text, "the upgrade did not remove {kind} {name}").unwrap();
    }
    text
}

/// The objects that a node created at run time, as SQL: tables of collections with triggers, indexes and privileges.
fn made_at_run_time(node: &Node) -> String {
    let dump = node.program("pg_dump", &["--schema-only", "--schema=docshard_data", "--dbname=postgres"]);
    // pg_dump protects its output with a random word.
    let lines = dump.lines().filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"));
    let dump = lines.collect::<Vec<_>>().join("\n");
    match node
        .value::<Option<String>>("SELECT min(rolname::text) FROM pg_roles WHERE rolname ~ '^docshard_[0-9a-f]{8}_s'")
    {
        Some(role) => dump.replace(&role[.."docshard_01234567".len()], "docshard_cluster"),
        None => dump,
    }
}

#[test]
fn an_upgrade_from_every_release_is_a_fresh_install_with_its_data() {
    let fresh = used_cluster(&Release::present());
    for release in &Release::all() {
        let mut cluster = used_cluster(release);
        let before: Vec<_> = QUESTIONS.iter().map(|sql| ask(&mut cluster.router.client(), sql)).collect();
        for node in nodes(&cluster) {
            node.psql(&OF_OTHERS.join("; "));
            node.psql(&grant_to_others(release));
        }
        upgrade_all_at_once(&mut cluster);
        nodes(&cluster).for_each(check_of_others);

        for (upgraded, fresh) in nodes(&cluster).zip(nodes(&fresh)) {
            let found = differences(upgraded, fresh);
            assert!(found.is_empty(), "{} from {}:\n{found}", upgraded.name, release.version);
            assert_eq!(
                made_at_run_time(upgraded),
                made_at_run_time(fresh),
                "{} from {}",
                upgraded.name,
                release.version
            );
        }

        let mut client = cluster.router.client();
        for (sql, before) in QUESTIONS.iter().zip(&before) {
            assert_eq!(&ask(&mut client, sql), before, "{} from {}", sql, release.version);
        }
        for (sql, expected) in [
            (
                "SELECT docshard.insert_one('shop.things', '{\"_id\": \"n\", \"k\": 250, \"u\": 1000}')->'acknowledged'",
                json!(true),
            ),
            (
                "SELECT docshard.update_many('shop.things', '{\"n\": 3}', '{\"$set\": {\"seen\": 1}}')->'modifiedCount'",
                json!(30),
            ),
            ("SELECT docshard.move_chunk('shop.things', '{\"k\": 150}', 'shard1')->'documents'", json!(100)),
            ("SELECT to_jsonb(docshard.count_documents('shop.things', '{\"seen\": 1}'))", json!(30)),
            ("SELECT docshard.delete_many('shop.hashed', '{}')->'deletedCount'", json!(100)),
        ] {
            assert_eq!(ask(&mut client, sql), [expected], "{sql} from {}", release.version);
        }
        run(&mut client, "SELECT docshard.create_index('shop.things', '{\"seen\": 1}')");
        for node in nodes(&cluster) {
            let trouble: Vec<_> = node
                .log()
                .lines()
                .filter(|line| line.contains("PANIC:") || line.contains("terminated by signal"))
                .map(str::to_owned)
                .collect();
            assert!(trouble.is_empty(), "{}: {trouble:?}", node.name);
        }
    }
}

/// A move without a coordinator ends also before the router's extension is updated; after that, all earlier moves count as those of another
/// server, whose decisions the catalog may lack.
#[test]
fn moves_from_before_the_upgrade_are_judged_by_the_shards() {
    let release = Release::all().pop().expect("a release");
    let mut cluster = used_cluster(&release);
    for node in cluster.shards.iter_mut().chain([&mut cluster.router]) {
        node.stop();
        node.use_library(&Release::present());
        node.start();
    }
    let router = &cluster.router;
    router.psql(
        "INSERT INTO docshard_catalog.migrations (token, collection_id, namespace, min, max, donor, recipient, version, donor_version, recipient_version) \
         SELECT c.token, c.id, c.namespace, k.min, k.max, d.shard_id, r.shard_id, c.version + 1, d.version, r.version \
           FROM docshard_catalog.collections c JOIN docshard_catalog.chunks k ON k.collection_id = c.id \
           JOIN docshard_catalog.placements d ON d.collection_id = c.id AND d.shard_id = k.shard_id \
           JOIN docshard_catalog.placements r ON r.collection_id = c.id AND r.shard_id <> k.shard_id \
          WHERE c.namespace = 'shop.things' AND k.shard_id = (SELECT id FROM docshard_catalog.shards WHERE name = 'shard0') \
            AND r.shard_id = (SELECT id FROM docshard_catalog.shards WHERE name = 'shard1')",
    );
    docshard_tests::wait_until("the move is aborted", std::time::Duration::from_secs(60), || {
        router.value::<i64>(
            "SELECT count(*) FROM docshard_catalog.migrations WHERE state = 'done' AND outcome = 'aborted'",
        ) == 1
    });
    router.psql("ALTER EXTENSION docshard UPDATE");
    let own = "SELECT count(*) FROM docshard_catalog.migrations WHERE server_started_at >= pg_postmaster_start_time()";
    assert_eq!(router.value::<i64>(own), 0);
    router.psql("SELECT docshard.move_chunk('shop.things', '{\"k\": 150}', 'shard1')");
    assert_eq!(router.value::<i64>(own), 1);
}

/// Reads what an administrator looks at: all views of docshard and the commands that list things.
fn read_everything(client: &mut Client, when: &str) {
    let views = client.query("SELECT viewname::text FROM pg_views WHERE schemaname = 'docshard'", &[]).expect("views");
    assert!(views.len() > 10, "{} views", views.len());
    let mut statements: Vec<String> =
        views.iter().map(|row| format!("SELECT to_jsonb(v) FROM docshard.{} v", row.get::<_, &str>(0))).collect();
    for (database, command) in [
        ("admin", "listDatabases"),
        ("admin", "listShards"),
        ("admin", "balancerStatus"),
        ("admin", "serverStatus"),
        ("shop", "listCollections"),
        ("shop", "dbStats"),
    ] {
        statements.push(format!("SELECT docshard.run_command('{database}', '{{\"{command}\": 1}}')"));
    }
    statements.push("SELECT to_jsonb(docshard.status())".to_owned());
    for sql in statements {
        client.query(&sql, &[]).unwrap_or_else(|e| panic!("{when}: {sql}: {e:?}"));
    }
}

/// Statements of an application and an administrator that work at any time of an upgrade. `round` distinguishes the runs.
fn works(cluster: &Cluster, round: usize, when: &str) {
    let mut client = cluster.router.client();
    let [one, two] = [1000 + 2 * round, 1001 + 2 * round];
    let steps = [
        (format!("SELECT docshard.insert_one('shop.things', '{{\"_id\": {one}, \"k\": {}}}')->'acknowledged'", 100 + round % 100), json!(true)),
        ("BEGIN".to_owned(), Value::Null),
        (format!("SELECT docshard.insert_one('shop.things', '{{\"_id\": {two}, \"k\": {}}}')->'acknowledged'", 200 + round), json!(true)),
        ("SELECT docshard.update_one('shop.things', '{\"k\": 150, \"_id\": 150}', '{\"$inc\": {\"seen\": 1}}')->'matchedCount'".to_owned(), json!(1)),
        ("SELECT docshard.update_many('shop.things', '{\"n\": 4}', '{\"$inc\": {\"m\": 1}}')->'matchedCount'".to_owned(), json!(30)),
        ("COMMIT".to_owned(), Value::Null),
        (format!("SELECT to_jsonb(docshard.count_documents('shop.things', '{{\"m\": {}}}'))", round + 1), json!(30)),
        ("SELECT docshard.find_one('shop.things', '{\"k\": 150, \"_id\": 150}')->'seen'".to_owned(), json!(round + 1)),
        ("SELECT docshard.find_one_and_update('shop.things', '{\"tags.a\": 4}', '{\"$set\": {\"x\": 1}}')->'x' IS NULL".to_owned(), Value::Null),
        (format!("SELECT docshard.delete_many('shop.things', '{{\"_id\": {{\"$gte\": {one}}}}}')->'deletedCount'"), json!(2)),
        ("SELECT docshard.aggregate('shop.things', '[{\"$group\": {\"_id\": null, \"n\": {\"$sum\": \"$n\"}}}]')->'n'".to_owned(), json!(1350)),
        ("SELECT to_jsonb(docshard.count_documents('shop.fives'))".to_owned(), json!(30)),
        ("SELECT docshard.move_chunk('shop.things', '{\"k\": 150}', 'shard1')->'documents'".to_owned(), json!(100)),
        ("SELECT docshard.move_chunk('shop.things', '{\"k\": 150}', 'shard0')->'documents'".to_owned(), json!(100)),
        ("SELECT docshard.create_index('shop.things', '{\"seen\": 1}')".to_owned(), Value::Null),
        ("SELECT docshard.drop_index('shop.things', 'seen_1')".to_owned(), Value::Null),
        ("SELECT to_jsonb(docshard.count_documents('shop.things'))".to_owned(), json!(300)),
    ];
    read_everything(&mut client, when);
    for (sql, expected) in &steps {
        if *expected == Value::Null {
            client.batch_execute(sql).unwrap_or_else(|e| panic!("{when}: {sql}: {e:?}"));
        } else {
            let got: Value = client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{when}: {sql}: {e:?}")).get(0);
            assert_eq!(&got, expected, "{when}: {sql}");
        }
    }
}

/// Upgrades from one release to a later one, node by node in this order. Every combination of the two releases as router and
/// shard occurs, and each library also runs with the older SQL objects.
fn upgrade_in_order(from: &Release, to: &Release, order: [&str; 3]) {
    let mut cluster = used_cluster(from);
    works(&cluster, 0, "before");
    for (at, name) in order.into_iter().enumerate() {
        let node = cluster.node(name);
        node.stop();
        node.use_library(to);
        node.start();
        works(&cluster, 2 * at + 1, &format!("{name} has the library of {}", to.version));
        cluster.node(name).psql(&format!("ALTER EXTENSION docshard UPDATE TO '{}'", to.version));
        works(&cluster, 2 * at + 2, &format!("{name} has version {}", to.version));
    }
}

#[test]
fn nodes_of_two_releases_work_together() {
    let (present, next) = (Release::present(), Release::next());
    let mut pairs = vec![(&present, &next)];
    let earlier = Release::all();
    pairs
        .extend(earlier.iter().filter(|release| release.is_upgraded_node_by_node()).map(|release| (release, &present)));
    for (from, to) in pairs {
        // Shards first, as docs/operations.md requires, and the router first, as users may do nevertheless.
        upgrade_in_order(from, to, ["shard0", "shard1", "router"]);
        upgrade_in_order(from, to, ["router", "shard1", "shard0"]);
    }
}
