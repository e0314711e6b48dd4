//! A router that is dumped and restored on another server has the catalog, its own documents and its connections to the shards.
//! After it takes over the cluster, it is the router.

use docshard_tests::logins::{NS, PATIENCE, assert_not_logged, secrets, spread};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::{Value, json};

/// Everything that a client can see of a cluster.
fn seen(node: &Node, database: &str) -> Value {
    let mut client = node.try_client_as("postgres", database).unwrap_or_else(|e| panic!("{}: {e}", node.name));
    let mut look = |sql: &str| -> Value {
        let sql = format!("SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]') FROM ({sql}) t");
        client.query_one(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
    };
    json!({
        "cluster": look("SELECT id FROM docshard_catalog.cluster"),
        "shards": look("SELECT name, id, host, state, max_size_mb, server, chunks FROM docshard.shards ORDER BY name"),
        "databases": look("SELECT * FROM docshard.databases ORDER BY name"),
        "collections": look("SELECT * FROM docshard.collections ORDER BY namespace"),
        "chunks": look("SELECT * FROM docshard.chunks ORDER BY namespace, min_key"),
        "indexes": look("SELECT * FROM docshard.indexes ORDER BY namespace, name"),
        "settings": look("SELECT * FROM docshard.settings ORDER BY name"),
        "changelog": look("SELECT * FROM docshard.changelog ORDER BY id"),
        "things": look("SELECT d FROM docshard.find('shop.things', '{}', '{\"sort\": {\"_id\": 1}}') d"),
        "one": look("SELECT d FROM docshard.find('shop.things', '{\"k\": 77}') d"),
        "few": look("SELECT docshard.count_documents('shop.things', '{\"n\": {\"$lt\": 3}}') n"),
        "notes": look("SELECT d FROM docshard.find('shop.notes') d"),
        "views": look("SELECT * FROM docshard.views ORDER BY namespace"),
        "viewed": look("SELECT d FROM docshard.find('shop.few', '{}', '{\"sort\": {\"_id\": 1}}') d"),
        "foreign_table": look("SELECT * FROM shop.things WHERE n = 3 ORDER BY k"),
        "counted": look("SELECT * FROM shop.counted"),
    })
}

fn prepare(cluster: &Cluster) {
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.enable_sharding('shop', 'local')",
        "SELECT docshard.set_setting('chunk_size_mb', '7')",
        "SELECT docshard.shard_collection('shop.things', '{\"k\": 1}')",
        "SELECT docshard.insert_many('shop.things',
           array_agg(jsonb_build_object('_id', k, 'k', k, 'n', k % 10, 'at', jsonb_build_object('$date', '2026-01-01T00:00:00Z'))))
         FROM generate_series(0, 299) k",
        "SELECT docshard.create_index('shop.things', '{\"n\": 1, \"k\": -1}')",
        "SELECT docshard.create_index('shop.things', '{\"k\": 1, \"u\": 1}',
           '{\"unique\": true, \"partialFilterExpression\": {\"u\": {\"$gt\": 5}}}')",
        "SELECT docshard.create_index('shop.things', '{\"n\": 1}', '{\"sparse\": true}')",
        "SELECT docshard.split_at('shop.things', '{\"k\": 100}')",
        "SELECT docshard.split_at('shop.things', '{\"k\": 200}')",
        "SELECT docshard.move_chunk('shop.things', '{\"k\": 100}', 'shard0')",
        "SELECT docshard.move_chunk('shop.things', '{\"k\": 200}', 'shard1')",
        "SELECT docshard.create_collection('shop.few',
           '{\"viewOn\": \"things\", \"pipeline\": [{\"$match\": {\"n\": {\"$lt\": 1.0}}}], \"collation\": {\"locale\": \"en\"}}')",
        "SELECT docshard.insert_one('shop.notes', '{\"_id\": 1, \"text\": \"a note, on the router itself\"}')",
        "CREATE SCHEMA shop",
        "CREATE FOREIGN TABLE shop.things (_id int NOT NULL, k int NOT NULL, n int, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'shop.things')",
        "CREATE MATERIALIZED VIEW shop.counted AS SELECT count(*) FROM shop.things",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
}

/// The restored router takes over the cluster, and continues where the dumped one ended.
fn goes_on(node: &Node, database: &str) {
    let mut client = node.try_client_as("postgres", database).unwrap();
    let first = "SELECT docshard.insert_one('shop.things', '{\"_id\": \"l\", \"k\": 50}')";
    let error = client.batch_execute(first).expect_err("a copy of the router");
    assert_eq!(error.code().map(postgres::error::SqlState::code), Some("25006"), "{error}");
    for (sql, expected) in [
        ("SELECT to_jsonb((docshard.take_over_cluster()->>'epoch')::bigint > 1)", json!(true)),
        ("SELECT docshard.insert_one('shop.things', '{\"_id\": \"l\", \"k\": 50}')->'acknowledged'", json!(true)),
        ("SELECT docshard.insert_one('shop.things', '{\"_id\": \"r\", \"k\": 150}')->'acknowledged'", json!(true)),
        (
            "SELECT docshard.update_many('shop.things', '{}', '{\"$set\": {\"seen\": true}}')->'modifiedCount'",
            json!(302),
        ),
        ("SELECT docshard.move_chunk('shop.things', '{\"k\": 150}', 'shard1')->'documents'", json!(101)),
        ("SELECT docshard.shard_collection('shop.more', '{\"_id\": \"hashed\"}')->'ok'", json!(1)),
        ("SELECT docshard.insert_one('shop.more', '{\"_id\": 1}')->'insertedId'", json!(1)),
        ("SELECT to_jsonb(docshard.count_documents('shop.things'))", json!(302)),
        (
            "SELECT to_jsonb(count(*)) FROM docshard.chunks WHERE namespace = 'shop.things' AND shard = 'shard1'",
            json!(2),
        ),
    ] {
        let got: Value = client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0);
        assert_eq!(got, expected, "{sql}");
    }
}

#[test]
fn a_restored_router_knows_its_cluster() {
    let mut cluster = Cluster::start(3);
    // shard2 leaves the cluster, to be the server to which the dump is restored.
    cluster.router.psql("SELECT docshard.remove_shard('shard2')");
    cluster.router.psql("SELECT docshard.remove_shard('shard2')");
    prepare(&cluster);
    let before = seen(&cluster.router, "postgres");
    assert_eq!(before["things"].as_array().unwrap().len(), 300);
    assert_eq!(before["few"][0]["n"], 90);
    assert_eq!((before["views"].as_array().unwrap().len(), before["viewed"].as_array().unwrap().len()), (1, 30));
    assert_eq!(before["shards"].as_array().unwrap().len(), 3);

    let file = cluster.router.scratch_file("dump");
    let file = file.to_str().unwrap();
    let spare = &cluster.shards[2];
    let roles = cluster.router.scratch_file("roles.sql");
    let roles = roles.to_str().unwrap();
    cluster.router.program("pg_dump", &["-Fc", "-f", file]);
    cluster.router.program("pg_dumpall", &["--roles-only", "-f", roles]);
    // The dump's roles include the superuser, which exists already.
    spare.program("psql", &["-X", "-q", "-o", "/dev/null", "-f", roles]);
    for (database, options) in [("restored", &["--single-transaction"][..]), ("cleaned", &["--clean", "--if-exists"])] {
        spare.psql(&format!("CREATE DATABASE {database}"));
        spare.program("pg_restore", &[&["--exit-on-error"], options, &["-d", database, file]].concat());
    }
    cluster.router.stop();
    for database in ["cleaned", "restored"] {
        let after = seen(spare, database);
        for (what, expected) in before.as_object().unwrap() {
            assert_eq!(&after[what], expected, "{database}: {what}");
        }
    }
    goes_on(spare, "restored");
    // pg_restore has lost the restored router's own service role, which shards use to reach it.
    let repair = format!(
        "SELECT docshard.add_shard('host=127.0.0.1 port={} dbname=postgres user=postgres', '{{\"name\": \"shard0\"}}')->>'ok'",
        cluster.shards[0].port
    );
    let mut client = spare.try_client_as("postgres", "restored").unwrap();
    let repaired: String = client.query_one(&repair, &[]).unwrap_or_else(|e| panic!("{e:?}")).get(0);
    assert_eq!(repaired, "1");
}

#[test]
fn a_plain_dump_into_the_same_server_works_too() {
    let cluster = Cluster::start(2);
    prepare(&cluster);
    let before = seen(&cluster.router, "postgres");
    let file = cluster.router.scratch_file("dump.sql");
    let file = file.to_str().unwrap();
    cluster.router.program("pg_dump", &["-f", file]);
    cluster.router.psql("CREATE DATABASE restored");
    cluster
        .router
        .program("psql", &["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "restored", "-o", "/dev/null", "-f", file]);
    let after = seen(&cluster.router, "restored");
    for (what, expected) in before.as_object().unwrap() {
        assert_eq!(&after[what], expected, "{what}");
    }
    goes_on(&cluster.router, "restored");
}

/// The reply to a find, with the bytes of all documents.
fn reply(node: &Node, database: &str) -> Vec<u8> {
    // {find: "ordered", sort: {_id: 1}, batchSize: 300, singleBatch: true}
    let find =
        bson::doc! { "find": "ordered", "sort": { "_id": 1 }, "batchSize": 300, "singleBatch": true }.to_vec().unwrap();
    let mut client = node.try_client_as("postgres", database).unwrap();
    client.query_one("SELECT docshard.run_command_bson('shop', $1)", &[&find]).unwrap().get(0)
}

/// A dump has text, to which jsonb's order and the type of small integers are lost.
#[test]
fn a_dump_keeps_the_order_of_fields() {
    let cluster = Cluster::start(1);
    let documents: Vec<_> = (0..200_i32)
        .map(|n| bson::doc! { "_id": n, "zone": "z", "b": i64::from(n), "a": [{ "y": 1, "x": 2_i64 }, { "x": 2, "y": 1 }] })
        .collect();
    let insert = bson::doc! { "insert": "ordered", "documents": documents.clone() }.to_vec().unwrap();
    let mut client = cluster.router.client();
    client.execute("SELECT docshard.run_command_bson('shop', $1)", &[&insert]).unwrap();
    let before = reply(&cluster.router, "postgres");
    let one = documents[7].to_vec().unwrap();
    assert!(before.windows(one.len()).any(|bytes| bytes == one), "documents come back as they were");
    let file = cluster.router.scratch_file("dump.sql");
    let file = file.to_str().unwrap();
    for (database, options) in [("copied", &[][..]), ("inserted", &["--inserts"])] {
        cluster.router.program("pg_dump", &[&["-f", file], options].concat());
        cluster.router.psql(&format!("CREATE DATABASE {database}"));
        let restore = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-o", "/dev/null", "-f", file];
        cluster.router.program("psql", &restore);
        assert_eq!(reply(&cluster.router, database), before, "{database}");
        let mut client = cluster.router.try_client_as("postgres", database).unwrap();
        let left: i64 = client.query_one("SELECT count(*) FROM docshard_data.field_orders", &[]).unwrap().get(0);
        assert_eq!(left, 0, "{database}");
    }
}

/// A dump of the schema alone has the collections' tables, without documents and without the catalog.
#[test]
fn a_dump_of_the_schema_alone_leaves_nothing_behind() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.enable_sharding('shop', 'local')",
        "SELECT docshard.insert_one('shop.a', '{\"_id\": 1}')",
        "SELECT docshard.insert_one('shop.b', '{\"_id\": 1}')",
        "SELECT docshard.shard_collection('shop.c', '{\"_id\": \"hashed\"}')",
        "SELECT docshard.create_index('shop.b', '{\"n\": 1}', '{\"unique\": true}')",
        "SELECT docshard.drop_collection('shop.a')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let file = cluster.router.scratch_file("schema.sql");
    let file = file.to_str().unwrap();
    cluster.router.program("pg_dump", &["--schema-only", "-f", file]);
    for database in ["first", "second", "third"] {
        cluster.router.psql(&format!("CREATE DATABASE {database}"));
        let options = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-o", "/dev/null", "-f", file];
        cluster.router.program("psql", &options);
    }
    let tables = "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class \
                  WHERE relnamespace = 'docshard_data'::regnamespace AND relkind = 'r' AND relname ~ '^c[0-9]+$'";
    let mut client = cluster.router.try_client_as("postgres", "first").unwrap();
    let left: Vec<String> = client.query_one(tables, &[]).unwrap().get(0);
    assert_eq!(left, ["c2", "c3"], "the dump has the tables");
    for (sql, expected) in [
        ("SELECT docshard.create_collection('shop.x')->>'ok'", "1"),
        ("SELECT docshard.insert_one('shop.y', '{\"_id\": 1, \"n\": 1}')->>'insertedId'", "1"),
        ("SELECT docshard.insert_one('shop.y', '{\"_id\": 2, \"n\": 1}')->>'insertedId'", "2"),
        ("SELECT docshard.create_collection('shop.z')->>'ok'", "1"),
        ("SELECT count(*)::text FROM docshard.list_orphaned_relations()", "0"),
    ] {
        let got: String = client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0);
        assert_eq!(got, expected, "{sql}");
    }
    let left: Vec<String> = client.query_one(tables, &[]).unwrap().get(0);
    assert_eq!(left, ["c1", "c2", "c3"], "the tables of the new collections alone");
    // A table with documents stays: somebody must look.
    let mut client = cluster.router.try_client_as("postgres", "second").unwrap();
    client
        .batch_execute("INSERT INTO docshard_data.c2 VALUES ('\\x00', '\\x00', '{\"_id\": 1}')")
        .expect("a document in a table that no collection has");
    client.batch_execute("SELECT docshard.create_collection('shop.x')").expect("the collection 1");
    let left: Vec<String> = client.query_one(tables, &[]).unwrap().get(0);
    assert_eq!(left, ["c1", "c2"]);
    let error = client.batch_execute("SELECT docshard.create_collection('shop.y')").expect_err("c2 has documents");
    let message = error.as_db_error().map(postgres::error::DbError::message).unwrap_or_default();
    assert!(message.contains("has a table docshard_data.c2 already"), "{error:?}");
    client.batch_execute("SELECT docshard.create_collection('shop.y')").expect("the collection 3");
    // A database that becomes a shard: there the router's role may not drop what others have restored.
    let url = format!("postgresql://postgres@127.0.0.1:{}/third", cluster.router.port);
    cluster.router.psql(&format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"third\"}}')"));
    let mut client = cluster.router.try_client_as("postgres", "third").unwrap();
    let left: Option<Vec<String>> = client.query_one(tables, &[]).unwrap().get(0);
    assert_eq!(left, None);
}

/// A shard that is restored by pg_restore has no service role that it has accepted, and no password for other shards.
#[test]
fn a_restored_shard_gets_its_logins_back() {
    let mut cluster = Cluster::start(3);
    cluster.router.psql("SELECT docshard.remove_shard('shard2')");
    cluster.router.psql("SELECT docshard.remove_shard('shard2')");
    prepare(&cluster);
    cluster.router.psql("CREATE ROLE app LOGIN; SELECT docshard.grant_access('app', '{\"write\": \"shop\"}')");
    let [file, roles] = ["dump", "roles.sql"].map(|name| cluster.shards[0].scratch_file(name));
    let [file, roles] = [file.to_str().unwrap(), roles.to_str().unwrap()];
    cluster.shards[0].program("pg_dump", &["-Fc", "-f", file]);
    cluster.shards[0].program("pg_dumpall", &["--roles-only", "-f", roles]);
    cluster.shards[0].stop();
    let spare = &cluster.shards[2];
    // The dump's roles include the superuser, which exists already.
    spare.program("psql", &["-X", "-q", "-o", "/dev/null", "-f", roles]);
    spare.psql("CREATE DATABASE restored");
    spare.program("pg_restore", &["--exit-on-error", "-d", "restored", file]);
    let protected = "SELECT count(*) FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c JOIN pg_database d \
                     ON d.oid = s.setdatabase WHERE d.datname = 'restored' AND c = 'docshard.part_of_cluster=shard'";
    assert_eq!(spare.value::<i64>(protected), 1);
    for node in [&cluster.router, &cluster.shards[1]] {
        let to = format!("SET port '{}', SET dbname 'restored'", spare.port);
        node.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({to})"));
    }
    cluster.router.psql("SELECT docshard.accept_shard('shard0')");

    let mut client = cluster.router.client();
    let grant = "SELECT docshard.grant_access('app', '{\"write\": \"shop\"}')";
    let error = client.batch_execute(grant).expect_err("no router was accepted there");
    let error = error.as_db_error().expect("an error of the server");
    assert!(error.message().contains("has accepted no router"), "{error:?}");
    assert!(error.hint().unwrap_or_default().contains("docshard.add_shard()"), "{error:?}");
    let add = format!(
        "SELECT docshard.add_shard('host=127.0.0.1 port={} dbname=restored user=postgres', '{{\"name\": \"shard0\"}}')",
        spare.port
    );
    for sql in [
        add.as_str(),
        grant,
        "SELECT docshard.move_chunk('shop.things', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.move_chunk('shop.things', '{\"k\": 100}', 'shard0')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let answer: Value = client.query_one("SELECT docshard.rotate_service_password()", &[]).expect("a rotation").get(0);
    assert_eq!(answer, json!({"ok": 1}));
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('shop.things')"), 300);
}

/// Message, SQLSTATE and hint of the error of a take-over with these options.
fn refused_take_over(client: &mut Client, options: &Value) -> (String, String, String) {
    let error = client.query("SELECT docshard.take_over_cluster($1)", &[options]).expect_err("a refusal");
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
    let hint = error.hint().unwrap_or_default().to_owned();
    (error.message().to_owned(), error.code().code().to_owned(), hint)
}

/// The router's dump is older than its present passwords at the shards. One call takes the cluster over, and mends the logins.
#[test]
fn a_router_whose_dump_is_older_than_a_rotation_takes_over() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let (first, dump) = (secrets(&cluster), cluster.router.dump("postgres"));
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    let mut all = [first, secrets(&cluster)].concat();
    cluster.router.psql("CREATE DATABASE restored");
    let unlogged = "SET log_statement = 'none'; SET log_min_error_statement = 'panic'; SET log_parameter_max_length_on_error = 0;\n";
    let printed = cluster.router.psql_script("restored", &["-v", "ON_ERROR_STOP=1"], &(unlogged.to_owned() + &dump));
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut copy = cluster.router.try_client_as("postgres", "restored").expect("a session");
    copy.batch_execute(unlogged).expect("settings of a superuser");
    let verifiers = |cluster: &Cluster| -> Vec<Option<String>> {
        let sql = "SELECT string_agg(rolpassword, ' ' ORDER BY rolname) FROM pg_authid WHERE rolname LIKE 'docshard%'";
        cluster.shards.iter().map(|shard| shard.value(sql)).collect()
    };
    let epochs = |cluster: &Cluster| -> Vec<i64> {
        cluster.shards.iter().map(|shard| shard.value("SELECT epoch FROM docshard_data.node")).collect()
    };
    let before = (verifiers(&cluster), epochs(&cluster));

    let (message, code, hint) = refused_take_over(&mut copy, &json!({}));
    assert!(code.starts_with("08") && message.contains("password authentication failed"), "{code}: {message}");
    assert!(hint.contains(r#"docshard.take_over_cluster('{"user": "#), "{hint}");

    // Logins that are of no use change nothing, at no shard, and the present router goes on.
    let port = cluster.shards[1].port;
    let password = |shard: usize| cluster.shards[shard].password().expect("a password").to_owned();
    let (zero, one) = (password(0), password(1));
    let wrong = "wrong-password-of-postgres";
    all.push(wrong.to_owned());
    cluster.shards[1].unlogged_client().batch_execute(&format!("CREATE ROLE plain LOGIN PASSWORD '{one}'")).unwrap();
    for (options, expected) in [
        (json!({"user": "postgres", "password": wrong}), "password authentication failed"),
        (json!({"user": "postgres", "password": &zero}), "password authentication failed"),
        (
            json!({"user": "postgres", "password": &zero, "logins": {"shard1": {"user": "plain", "password": &one}}}),
            "no superuser",
        ),
        (json!({"logins": {"shard7": {"user": "postgres", "password": &zero}}}), "shard7"),
        (json!({"logins": {"shard1": {"user": "postgres", "passwort": &zero}}}), "passwort"),
        (json!({"logins": {"shard1": [&zero]}}), "logins"),
        (json!({"logins": &zero}), "logins"),
        (json!({"user": "postgres", "password": [&zero]}), "password"),
        (json!({"password": &zero}), "user"),
    ] {
        let (message, _, hint) = refused_take_over(&mut copy, &options);
        assert!(message.contains(expected), "{expected}: {message}");
        for secret in [&zero, &one, &wrong.to_owned()] {
            assert!(!message.contains(secret.as_str()) && !hint.contains(secret.as_str()), "{message}; {hint}");
        }
        assert_eq!((verifiers(&cluster), epochs(&cluster)), before, "{expected}");
    }
    cluster.router.psql(&format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')"));

    // Each shard's superuser has another password. One of the shards is down.
    let options =
        json!({"user": "postgres", "password": zero, "logins": {"shard1": {"user": "postgres", "password": one}}});
    cluster.shards[1].stop();
    let mut take =
        |sql: &str| -> Value { copy.query_one(sql, &[&options]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0) };
    let taken = take("SELECT to_jsonb(docshard.take_over_cluster($1))");
    assert_eq!(taken["loginsRepaired"], json!(["shard0"]), "{taken}");
    let first = taken["epoch"].as_i64();
    assert!(first > Some(1), "{taken}");
    assert_eq!(taken["unreachable"].as_array().map(Vec::len), Some(1), "{taken}");
    assert_eq!(taken["unreachable"][0]["shard"], "shard1", "{taken}");
    cluster.shards[1].start();
    let taken = take("SELECT to_jsonb(docshard.take_over_cluster($1))");
    assert!(taken["epoch"].as_i64() > first, "{taken}");
    assert_eq!(taken, json!({"epoch": taken["epoch"], "loginsRepaired": ["shard1"], "ok": 1}), "port {port}");

    let error = cluster.router.client().batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 150}}')"));
    assert!(error.is_err(), "the former router is one no more");
    // Nor does it take the present router's login away, whatever hints say.
    let before = verifiers(&cluster);
    let given = json!({"name": "shard0", "user": "postgres", "password": zero});
    let conn = format!("host=127.0.0.1 port={} dbname=postgres", cluster.shards[0].port);
    let added = cluster.router.unlogged_client().query("SELECT docshard.add_shard($1, $2)", &[&conn, &given]);
    let error = added.expect_err("another router has the shard");
    assert!(format!("{error:?}").contains("another router has taken over"), "{error:?}");
    assert_eq!(verifiers(&cluster), before);
    for (sql, expected) in [
        (format!("SELECT to_jsonb(docshard.count_documents('{NS}'))"), json!(3)),
        (format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"n\", \"k\": 250}}')->'acknowledged'"), json!(true)),
        (
            format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$set\": {{\"n\": 7}}}}')->'modifiedCount'"),
            json!(4),
        ),
        (format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')->'documents'"), json!(1)),
        ("SELECT docshard.rotate_service_password()".to_owned(), json!({"ok": 1})),
    ] {
        let mut done = None;
        wait_until("the keeper has its locks", PATIENCE, || {
            done = match copy.query_one(&sql, &[]) {
                Ok(row) => Some(row.get::<_, Value>(0)),
                Err(e) if e.code().is_some_and(|code| code.code() == "57P03") => None,
                Err(e) => panic!("{sql}: {e:?}"),
            };
            done.is_some()
        });
        assert_eq!(done, Some(expected), "{sql}");
    }
    all.extend(secrets(&cluster));
    assert_not_logged(&cluster, &all);
}
