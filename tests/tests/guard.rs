//! The guard says when it is disabled, names the function that does what was tried, and refuses what cannot be undone.

use docshard_tests::faults::Fault;
use docshard_tests::logins::{PATIENCE, spread};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::{Value, json};

/// SQLSTATE, message and hint of a statement's error.
fn failure(node: &Node, sql: &str) -> (String, String, String) {
    let mut client = node.client();
    let error = client.batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().code().to_owned(), error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
}

/// What `docshard.health` and `docshard.status()` say of a shard.
fn reports(cluster: &Cluster, shard: &str) -> (String, String) {
    let error: Option<String> =
        cluster.router.value(&format!("SELECT error FROM docshard.health WHERE shard = '{shard}'"));
    let status = cluster.router.psql("SELECT docshard.status()");
    let own =
        |line: &&str| if shard == "local" { !line.starts_with(' ') } else { line.starts_with(&format!("  {shard}  ")) };
    (error.unwrap_or_default(), status.lines().filter(own).collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_disabled_guard_is_reported() {
    let cluster = Cluster::start(1);
    for (shard, node) in [("local", &cluster.router), ("shard0", &cluster.shards[0])] {
        assert_eq!(reports(&cluster, shard).0, "");
        for (off, name, on) in [
            (
                "ALTER EVENT TRIGGER docshard_check_changes DISABLE",
                "docshard_check_changes",
                "ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS",
            ),
            (
                "ALTER EVENT TRIGGER docshard_watch_drops ENABLE REPLICA",
                "docshard_watch_drops",
                "ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS",
            ),
            (
                "ALTER EVENT TRIGGER docshard_watch_drops ENABLE",
                "docshard_watch_drops",
                "ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS",
            ),
            (
                "ALTER EVENT TRIGGER docshard_check_changes DISABLE; ALTER TABLE docshard_data.placement DISABLE TRIGGER ALL; \
                 ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS",
                "refuse_truncate",
                "ALTER TABLE docshard_data.placement ENABLE ALWAYS TRIGGER refuse_truncate",
            ),
        ] {
            node.client().batch_execute(off).expect(off);
            let (error, line) = reports(&cluster, shard);
            for said in [&error, &line] {
                assert!(said.contains(name) && said.contains(on), "{shard}: {off}: {said:?}");
            }
            node.client().batch_execute(on).expect(on);
            let (error, line) = reports(&cluster, shard);
            assert!(error.is_empty() && !line.contains("trigger"), "{shard}: {on}: {error}; {line}");
        }
    }
}

/// Every refusal of the guard names the function for what was tried.
#[test]
fn a_refusal_names_the_function_for_what_was_tried() {
    let cluster = Cluster::spread("test.c");
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    router.psql("SELECT docshard.create_index('test.c', '{\"n\": 1}')");
    let table: String = router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    let index: String = router.value("SELECT 'docshard_data.i' || id FROM docshard_catalog.indexes WHERE name = 'n_1'");
    for (node, sql, expected) in [
        (router, "TRUNCATE docshard_catalog.collections CASCADE".to_owned(), "docshard.drop_collection()"),
        (router, "TRUNCATE docshard_catalog.databases CASCADE".to_owned(), "docshard.drop_database()"),
        (router, "TRUNCATE docshard_catalog.indexes".to_owned(), "docshard.drop_index()"),
        (router, "TRUNCATE docshard_catalog.shards CASCADE".to_owned(), "docshard.remove_shard()"),
        (router, "TRUNCATE docshard_catalog.zones".to_owned(), "docshard.remove_shard_from_zone()"),
        (router, "TRUNCATE docshard_catalog.zone_ranges".to_owned(), "docshard.update_zone_key_range()"),
        (router, "TRUNCATE docshard_catalog.grants".to_owned(), "docshard.revoke_access()"),
        (router, "TRUNCATE docshard_catalog.settings".to_owned(), "docshard.set_setting()"),
        (router, "TRUNCATE docshard_catalog.views".to_owned(), "docshard.drop_collection()"),
        (shard, "TRUNCATE docshard_data.node".to_owned(), "docshard.remove_shard()"),
        (shard, "TRUNCATE docshard_data.placement".to_owned(), "docshard.drop_collection()"),
        (shard, format!("DROP TABLE {table}"), "docshard.drop_collection()"),
        (shard, format!("DROP TRIGGER capture ON {table}"), "docshard.drop_collection()"),
        (shard, format!("DROP INDEX {index}"), "docshard.drop_index()"),
        (shard, format!("DROP INDEX CONCURRENTLY {index}"), "docshard.drop_index()"),
        (router, "DROP SERVER docshard_shard0 CASCADE".to_owned(), "docshard.remove_shard()"),
        (router, "ALTER SERVER docshard_shard0 RENAME TO other".to_owned(), "docshard.set_shard_address()"),
        (
            router,
            "ALTER TABLE docshard_catalog.shards ADD COLUMN mine int".to_owned(),
            "ALTER EXTENSION docshard UPDATE",
        ),
        (
            router,
            "ALTER FUNCTION docshard.count_documents(text, json, json) RENAME TO other".to_owned(),
            "ALTER EXTENSION docshard UPDATE",
        ),
        (router, "DROP EXTENSION docshard CASCADE".to_owned(), "docshard.dismantle()"),
        // A dump leaves members of an extension out.
        (shard, format!("ALTER EXTENSION postgres_fdw ADD TABLE {table}"), "pg_dump"),
        (router, format!("ALTER EXTENSION postgres_fdw ADD TABLE {table}"), "pg_dump"),
        (router, "ALTER EXTENSION postgres_fdw ADD SERVER docshard_shard0".to_owned(), "pg_dump"),
        (shard, "ALTER EXTENSION postgres_fdw ADD SERVER docshard_local".to_owned(), "pg_dump"),
        // A dump's data with --disable-triggers.
        (shard, format!("ALTER TABLE {table} DISABLE TRIGGER ALL"), "--disable-triggers"),
        (shard, "ALTER TABLE docshard_data.node DISABLE TRIGGER ALL".to_owned(), "--disable-triggers"),
        (router, "ALTER TABLE docshard_catalog.chunks DISABLE TRIGGER ALL".to_owned(), "--disable-triggers"),
    ] {
        let (code, message, hint) = failure(node, &sql);
        assert_eq!(code, "2BP01", "{sql}: {message}");
        assert!(hint.contains(expected), "{sql}: {message}; {hint}");
    }
}

/// Inheritance is refused whether or not the parent has columns: PostgreSQL changes nothing of the table itself if it has none.
#[test]
fn inheritance_is_refused() {
    let cluster = Cluster::spread("test.c");
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    for node in [router, shard] {
        node.psql("CREATE TABLE empty (); CREATE TABLE one (skey bytea); CREATE TABLE parent (); CREATE TABLE child () INHERITS (parent)");
        let own = if node.name == shard.name { "docshard_data.node" } else { "docshard_catalog.shards" };
        for table in [table.as_str(), own] {
            for sql in [
                format!("ALTER TABLE {table} INHERIT empty"),
                format!("ALTER TABLE {table} INHERIT parent"),
                format!("ALTER TABLE child INHERIT {table}"),
                format!("CREATE TABLE heir () INHERITS ({table})"),
            ] {
                let (code, message, _) = failure(node, &sql);
                // The last but one has not the columns.
                assert!(code == "2BP01" || sql.contains("child") && code == "42804", "{sql}: {code}: {message}");
            }
        }
        let (code, message, _) = failure(node, &format!("ALTER TABLE {table} INHERIT one"));
        assert_eq!(code, "2BP01", "{message}");
        node.psql("ALTER TABLE child INHERIT empty; ALTER TABLE child NO INHERIT parent; DROP TABLE child, parent, empty, one");
    }
    let found: Value = router.value("SELECT docshard.check_collection('test.c')::json");
    assert_eq!(found["valid"], true, "{found}");
}

/// Inheritance from before the guard was enabled can be ended.
#[test]
fn former_inheritance_can_be_ended() {
    let cluster = Cluster::spread("test.c");
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    shard.unguard();
    shard.psql(&format!("CREATE TABLE empty (); ALTER TABLE {table} INHERIT empty"));
    shard.psql("ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS");
    let check = "SELECT docshard.check_collection('test.c')::text";
    assert!(router.value::<String>(check).contains("inheritance"));
    shard.psql(&format!("ALTER TABLE {table} NO INHERIT empty"));
    assert!(!router.value::<String>(check).contains("damagedTable"));
}

/// What a cancelled REINDEX CONCURRENTLY leaves can be dropped as PostgreSQL's manual says; the index itself cannot.
#[test]
fn what_a_cancelled_reindex_leaves_can_be_dropped() {
    let cluster = Cluster::spread("test.c");
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    router.psql("SELECT docshard.create_index('test.c', '{\"n\": 1}')");
    let table: String = router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    let index: String = router.value("SELECT 'docshard_data.i' || id FROM docshard_catalog.indexes WHERE name = 'n_1'");
    let mut writer = shard.client();
    writer.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ROW EXCLUSIVE MODE")).expect("a writer");
    let mut client = shard.client();
    client.batch_execute("SET statement_timeout = '1s'").expect("a session");
    for one in [index.clone(), format!("{table}_pkey")] {
        client.batch_execute(&format!("REINDEX INDEX CONCURRENTLY {one}")).expect_err("it waits for the writer");
        let (code, message, _) = failure(shard, &format!("DROP INDEX CONCURRENTLY {one}"));
        assert_eq!(code, "2BP01", "{message}");
    }
    writer.batch_execute("COMMIT").expect("it ends");
    for one in [index, format!("{table}_pkey")] {
        shard.psql(&format!("DROP INDEX CONCURRENTLY {one}_ccnew"));
    }
}

/// A table that became a member of another extension while the guard was disabled is reported, and can be taken out.
#[test]
fn a_table_in_another_extension_is_reported() {
    let cluster = Cluster::spread("test.c");
    let shard = &cluster.shards[0];
    cluster.router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    shard.unguard();
    shard.psql(&format!("ALTER EXTENSION postgres_fdw ADD TABLE {table}"));
    shard.psql("ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS");
    let problems = "SELECT docshard.check_collection('test.c')::text";
    let found: String = cluster.router.value(problems);
    assert!(found.contains("damagedTable") && found.contains("postgres_fdw"), "{found}");
    shard.psql(&format!("ALTER EXTENSION postgres_fdw DROP TABLE {table}"));
    let found: String = cluster.router.value(problems);
    assert!(!found.contains("damagedTable"), "{found}");
    assert_eq!(failure(shard, &format!("ALTER EXTENSION postgres_fdw ADD TABLE {table}")).0, "2BP01");
}

/// A session in which anybody has called the function by which a router introduces itself is still guarded.
#[test]
fn a_session_is_no_routers_because_it_says_hello() {
    let cluster = Cluster::spread("test.c");
    let shard = &cluster.shards[0];
    cluster.router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    let hello = "SELECT docshard_internal.hello(cluster_id, shard, 'x', epoch, 1, 0, false, false, 1, 99) FROM docshard_data.node";
    let mut client = shard.client();
    client.query(hello, &[]).expect("an answer");
    for sql in [format!("ALTER TABLE {table} ADD COLUMN a int"), format!("TRUNCATE {table}")] {
        let error = client.batch_execute(&sql).expect_err(&sql);
        assert_eq!(error.code().map(postgres::error::SqlState::code), Some("2BP01"), "{sql}: {error:?}");
    }
}

/// Nor does the code of another role make a superuser's session a router's: ANALYZE runs the functions of a table's owner.
#[test]
fn a_superusers_session_is_no_routers_because_a_function_says_hello() {
    let cluster = Cluster::spread("test.c");
    let shard = &cluster.shards[0];
    cluster.router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    let id: i64 = shard.value("SELECT cluster_id FROM docshard_data.node");
    let epoch: i64 = shard.value("SELECT epoch FROM docshard_data.node");
    shard.psql(&format!(
        "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA docshard_internal TO app; CREATE SCHEMA app AUTHORIZATION app; SET ROLE app; \
         CREATE FUNCTION app.trap(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
           PERFORM set_config('application_name', 'docshard x', true); \
           PERFORM docshard_internal.hello({id}, 'shard0', 'x', {epoch}, 1, 0, false, false, 1, 99); RETURN n; END $$; \
         CREATE TABLE app.t AS SELECT n FROM generate_series(1, 100) AS n; CREATE INDEX ON app.t (app.trap(n))"
    ));
    let mut client = shard.client();
    client.batch_execute("ANALYZE app.t").expect("the function says hello");
    for sql in [format!("ALTER TABLE {table} DROP CONSTRAINT c1_pkey"), format!("TRUNCATE {table}")] {
        let error = client.batch_execute(&sql).expect_err(&sql);
        assert_eq!(error.code().map(postgres::error::SqlState::code), Some("2BP01"), "{sql}: {error:?}");
    }
}

/// PostgreSQL's own error comes first for a role without the right.
#[test]
fn a_role_without_rights_gets_the_error_of_postgresql() {
    let cluster = Cluster::spread("test.c");
    cluster.router.psql("SELECT docshard.insert_many('test.c', array_agg(jsonb_build_object('_id', n, 'k', n))) FROM generate_series(1, 300) AS n");
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.c'");
    for node in [&cluster.router, &cluster.shards[0]] {
        node.psql("CREATE ROLE other LOGIN; GRANT USAGE ON SCHEMA docshard_data, docshard_catalog TO other");
        for sql in [
            format!("TRUNCATE {table}"),
            "TRUNCATE docshard_data.node".to_owned(),
            format!("DROP TABLE {table}"),
            format!("ALTER TABLE {table} ADD COLUMN a int"),
            "DROP EXTENSION docshard CASCADE".to_owned(),
        ] {
            let mut client = node.try_client_as("other", "postgres").expect("a session");
            let error = client.batch_execute(&sql).expect_err(&sql);
            assert_eq!(
                error.code().map(postgres::error::SqlState::code),
                Some("42501"),
                "{}: {sql}: {error:?}",
                node.name
            );
        }
    }
}

/// The mark by which other databases know a cluster's database comes back.
#[test]
fn the_mark_of_a_clusters_database_comes_back() {
    let cluster = Cluster::start(1);
    let marked = |node: &Node| -> String {
        node.value("SELECT coalesce(string_agg(c, ' '), '') FROM pg_db_role_setting s, unnest(setconfig) c WHERE c LIKE 'docshard.part_of_cluster=%'")
    };
    for (node, mark) in [(&cluster.router, "router"), (&cluster.shards[0], "shard")] {
        assert_eq!(marked(node), format!("docshard.part_of_cluster={mark}"));
        node.psql("ALTER DATABASE postgres RESET ALL");
    }
    for (node, mark) in [(&cluster.router, "router"), (&cluster.shards[0], "shard")] {
        wait_until("the mark is back", 2 * PATIENCE, || marked(node) == format!("docshard.part_of_cluster={mark}"));
    }
}

/// A dump that is restored into the database of another cluster would be merged with it.
#[test]
fn a_dump_is_not_merged_with_another_cluster() {
    let dumped = Cluster::start(1);
    for sql in [
        "SELECT docshard.create_collection('b.two'); SELECT docshard.create_collection('b.three')",
        "SELECT docshard.insert_many('a.c', ARRAY['{\"_id\": 1}', '{\"_id\": 2}']::jsonb[])",
        "SELECT docshard.enable_sharding('c', 'shard0')",
    ] {
        dumped.router.psql(sql);
    }
    let (of_router, of_shard) = (dumped.router.dump("postgres"), dumped.shards[0].dump("postgres"));
    let data = dumped.router.program("pg_dump", &["--data-only"]);
    drop(dumped);

    let cluster = Cluster::start(1);
    cluster
        .router
        .psql("SELECT docshard.insert_many('z.live', ARRAY['{\"_id\": 7}', '{\"_id\": 8}', '{\"_id\": 9}']::jsonb[])");
    let state = |node: &Node| -> Value {
        let all = ["cluster", "shards", "databases", "collections", "chunks", "placements", "indexes"].map(|table| {
            format!("'{table}', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t::text) FROM docshard_catalog.{table} t)")
        });
        node.value(&format!(
            "SELECT jsonb_build_object({}, 'last', (SELECT last_value FROM docshard_catalog.collections_id_seq), \
               'node', (SELECT jsonb_agg(to_jsonb(t) - '{{counter,counted_at}}'::text[]) FROM docshard_data.node t))",
            all.join(", ")
        ))
    };
    for (node, dump, what) in [
        (&cluster.router, &of_router, "another router's"),
        (&cluster.router, &of_shard, "another shard's"),
        (&cluster.router, &data, "another router's data"),
        (&cluster.shards[0], &of_shard, "another shard's at a shard"),
    ] {
        let before = state(node);
        // psql and pg_restore go on after an error. This one ends the session.
        let script = node.scratch_file("dump.sql");
        std::fs::write(&script, dump).expect("a file");
        std::process::Command::new("chmod").arg("a+r").arg(&script).status().expect("chmod");
        let shell = format!("psql -X -q -f '{}' 2>&1; echo exit $?", script.display());
        let printed = node.program("/bin/bash", &["-c", &shell]);
        assert!(printed.contains("would be merged with this"), "{what}: {printed}");
        assert!(printed.contains("HINT:  Restore it into a new database"), "{what}: {printed}");
        assert!(printed.contains("exit 2"), "{what}: {printed}");
        assert_eq!(state(node), before, "{what}");
    }
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('z.live')"), 3);
    // What was created before the first row is not in the way.
    for node in [&cluster.router, &cluster.shards[0]] {
        node.psql(
            "DO $$ DECLARE empty regclass; BEGIN FOR empty IN SELECT oid FROM pg_class c WHERE relkind = 'r' AND relname ~ '^c[0-9]+$' \
               AND NOT EXISTS (SELECT FROM docshard_data.placement p WHERE 'c' || p.collection_id = c.relname) \
             LOOP EXECUTE 'DROP TABLE ' || empty; END LOOP; END $$",
        );
    }
    assert_eq!(cluster.router.psql("SELECT * FROM docshard.list_orphaned_relations()"), "");
    cluster.router.psql("SELECT docshard.create_collection('z.more')");
}

/// What a take-over sets at each shard: the verifiers of the service roles, and the epoch.
fn at_shards(cluster: &Cluster) -> Vec<(String, i64)> {
    let sql = "SELECT string_agg(rolpassword, ' ' ORDER BY rolname) FROM pg_authid WHERE rolname LIKE 'docshard%'";
    let of = |shard: &Node| (shard.value(sql), shard.value("SELECT epoch FROM docshard_data.node"));
    cluster.shards.iter().map(of).collect()
}

/// A shard gets the password of the router that takes over only together with its epoch.
#[test]
fn a_take_over_that_ends_half_way_locks_nobody_out() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let dump = cluster.router.dump("postgres");
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    cluster.router.psql("CREATE DATABASE restored");
    let unlogged = "SET log_statement = 'none'; SET log_min_error_statement = 'panic'; SET log_parameter_max_length_on_error = 0;\n";
    cluster.router.psql_script("restored", &["-v", "ON_ERROR_STOP=1"], &(unlogged.to_owned() + &dump));
    let password = |shard: usize| cluster.shards[shard].password().expect("a password").to_owned();
    let options = json!({"user": "postgres", "password": password(0), "logins": {"shard1": {"user": "postgres", "password": password(1)}}});
    let copy = |cluster: &Cluster| -> Client {
        let mut copy = cluster.router.try_client_as("postgres", "restored").expect("a session");
        copy.batch_execute(unlogged).expect("settings of a superuser");
        copy
    };
    let take = |client: &mut Client| client.query_one("SELECT to_jsonb(docshard.take_over_cluster($1))", &[&options]);
    let update = "SELECT docshard.update_many('test.things', '{}', '{\"$inc\": {\"n\": 1}}')";
    let before = at_shards(&cluster);

    // Something at a shard holds the take-over up, until it is cancelled.
    for held in 0..2 {
        let mut blocker = cluster.shards[held].client();
        blocker.batch_execute("BEGIN; LOCK TABLE docshard_data.node IN SHARE MODE").expect("a lock");
        let mut copy = copy(&cluster);
        copy.batch_execute("SET statement_timeout = '4s'").expect("a setting");
        take(&mut copy).expect_err("the shard is locked");
        blocker.batch_execute("ROLLBACK").expect("the lock is released");
        for (shard, (now, was)) in at_shards(&cluster).iter().zip(&before).enumerate() {
            assert_eq!(now.0 == was.0, now.1 == was.1, "shard{shard} has a password without its epoch, or the reverse");
        }
        if held == 0 {
            assert_eq!(at_shards(&cluster), before);
            cluster.router.psql(update);
        }
    }

    // The process dies between the two. All sessions of its server end with it.
    let before = at_shards(&cluster);
    cluster.router.arm("takeover.let_in", Fault::Kill);
    take(&mut copy(&cluster)).expect_err("its server has crashed");
    wait_until("the server is back", PATIENCE, || cluster.router.try_client_as("postgres", "restored").is_ok());
    for (shard, (now, was)) in at_shards(&cluster).iter().zip(&before).enumerate() {
        assert!(now.0 == was.0 || now.1 != was.1, "shard{shard} has a password without its epoch");
    }
    assert_eq!(at_shards(&cluster)[1], before[1]);
    wait_until("the take-over is repeated", PATIENCE, || take(&mut copy(&cluster)).is_ok());
    assert_eq!(
        copy(&cluster)
            .query_one("SELECT docshard.count_documents('test.things')", &[])
            .expect("a count")
            .get::<_, i64>(0),
        3
    );
    cluster.router.stop();
}

/// A REVOKE on one form of a function leaves the other one. So does a dump of a release that had one form.
#[test]
fn a_revoke_of_one_form_is_reported() {
    let cluster = Cluster::start(1);
    let own = || {
        let error: Option<String> = cluster.router.value("SELECT error FROM docshard.health WHERE shard = 'local'");
        (error.unwrap_or_default(), cluster.router.psql("SELECT docshard.status()"))
    };
    assert_eq!(own().0, "");
    cluster.router.psql("REVOKE EXECUTE ON FUNCTION docshard.delete_many(text, json, json) FROM PUBLIC");
    let (error, status) = own();
    for said in [error, status] {
        assert!(said.contains("docshard.delete_many") && said.contains("privileges"), "{said}");
    }
    cluster.router.psql(
        "DO $$ DECLARE form regprocedure; BEGIN FOR form IN SELECT oid FROM pg_proc WHERE oid::regproc::text = 'docshard.delete_many' LOOP
           EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', form); END LOOP; END $$",
    );
    assert_eq!(own().0, "");
}

/// A role to which nothing was granted learns what to ask for.
#[test]
fn a_missing_grant_is_named() {
    let cluster = Cluster::start(0);
    cluster.router.psql(
        "CREATE ROLE visitor LOGIN; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA docshard TO visitor;
         SELECT docshard.insert_one('test.c', '{}'); SELECT docshard.grant_access('reader', '{\"read\": \"other\"}')",
    );
    for (role, sql, expected) in [
        ("visitor", "SELECT docshard.find('test.c')", "docshard.grant_access('visitor', "),
        ("visitor", "SELECT docshard.count_documents('test.c')", "docshard.grant_access('visitor', "),
        ("visitor", "SELECT docshard.insert_one('test.c', '{}')", "docshard.grant_access('visitor', "),
        ("visitor", "SELECT docshard.explain('test.c')", "docshard.grant_access('visitor', "),
        ("reader", "SELECT docshard.find('test.c')", "docshard.grant_access('reader', '{\"read\":\"test.c\"}')"),
        (
            "reader",
            "SELECT docshard.insert_one('test.c', '{}')",
            "docshard.grant_access('reader', '{\"write\":\"test.c\"}')",
        ),
    ] {
        let mut client = cluster.router.try_client_as(role, "postgres").expect("a session");
        let error = client.batch_execute(sql).expect_err(sql);
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), "42501", "{role}: {sql}: {error:?}");
        assert!(error.hint().unwrap_or_default().contains(expected), "{role}: {sql}: {error:?}");
    }
}
