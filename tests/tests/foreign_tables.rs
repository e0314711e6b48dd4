//! Foreign tables over collections on several shards: nobody reads or writes through one what it may not; scans, joins by batches and
//! samples may end early and restart, and are complete; and concurrent writes are not lost.

use docshard_tests::Cluster;
use docshard_tests::logins::sqlstate_of;
use postgres::Client;

/// Sharded by ranges of `k`, as [`Cluster::spread`] does.
const NS: &str = "test.rows";

/// The rights of a scan are those of the user whose rights PostgreSQL checks for the table.
#[test]
fn a_foreign_table_gives_no_right_to_its_collection() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', n, 'secret', 'secret' || n))) FROM generate_series(0, 299) n",
    );
    for role in ["reader", "maker", "other"] {
        router.psql(&format!("CREATE ROLE {role} LOGIN"));
        router.psql(&format!("CREATE SCHEMA {role} AUTHORIZATION {role}"));
        router.psql(&format!("GRANT USAGE ON SCHEMA {role} TO PUBLIC"));
    }
    router.psql("SELECT docshard.grant_access('reader', '{\"read\": \"test.rows\"}')");
    router.psql("SELECT docshard.grant_access('maker', '{\"write\": \"test.own\"}')");
    router.psql("SELECT docshard.insert_one('test.own', '{\"_id\": 1, \"k\": 1}')");
    let session = |role: &str| router.try_client_as(role, "postgres").unwrap();
    let (mut reader, mut maker, mut other) = (session("reader"), session("maker"), session("other"));
    let count = |client: &mut Client, table: &str| {
        client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).unwrap().get::<_, i64>(0)
    };

    // Only a role with USAGE on the server makes foreign tables.
    let table = "CREATE FOREIGN TABLE maker.rows (_id int, k int, secret text, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'test.rows')";
    assert_eq!(sqlstate_of(&mut maker, table), "42501");
    router.psql("GRANT USAGE ON FOREIGN SERVER docshard TO maker");
    maker.batch_execute(table).unwrap();
    // Its owner may not read the collection, nor learn anything by plans.
    for sql in [
        "SELECT * FROM maker.rows",
        "SELECT count(*) FROM maker.rows",
        "SELECT 1 FROM maker.rows WHERE k = 5",
        "SELECT 1 FROM maker.rows WHERE k = 1 LIMIT 0",
        "EXPLAIN SELECT * FROM maker.rows WHERE k = 5",
        "EXPLAIN VERBOSE SELECT * FROM maker.rows",
        "CREATE TABLE maker.copy AS SELECT * FROM maker.rows",
        "ANALYZE maker.rows",
        "SELECT k, max(secret COLLATE \"C\") FROM maker.rows GROUP BY k",
        "IMPORT FOREIGN SCHEMA test LIMIT TO (rows) FROM SERVER docshard INTO maker",
    ] {
        assert_eq!(sqlstate_of(&mut maker, sql), "42501", "{sql}");
    }
    // A view over a collection that it may not read is not imported, and does not end the import.
    router.psql("SELECT docshard.create_collection('test.through', '{\"viewOn\": \"rows\", \"pipeline\": []}')");
    maker.batch_execute("IMPORT FOREIGN SCHEMA test FROM SERVER docshard INTO maker").unwrap();
    assert_eq!(count(&mut maker, "maker.own"), 1);
    assert_eq!(sqlstate_of(&mut maker, "SELECT * FROM maker.through"), "42P01");
    // A role with rights to the collection has none to the table, until the owner grants them.
    assert_eq!(sqlstate_of(&mut reader, "SELECT * FROM maker.rows"), "42501");
    maker.batch_execute("GRANT SELECT ON maker.rows TO reader, other").unwrap();
    // The owner needs the right to the collection, too.
    assert_eq!(sqlstate_of(&mut reader, "SELECT * FROM maker.rows"), "42501");
    router.psql("ALTER FOREIGN TABLE maker.rows OWNER TO CURRENT_USER; GRANT SELECT ON maker.rows TO maker");
    assert_eq!(count(&mut reader, "maker.rows"), 300);
    assert_eq!(sqlstate_of(&mut other, "SELECT * FROM maker.rows"), "42501");

    // A view reads with the rights of its owner, whoever reads it.
    reader
        .batch_execute(
            "CREATE VIEW reader.low AS SELECT _id, k FROM maker.rows WHERE k < 10; \
             CREATE VIEW reader.barrier WITH (security_barrier) AS SELECT _id, k, secret FROM maker.rows WHERE k < 10; \
             GRANT SELECT ON reader.low, reader.barrier TO other, maker",
        )
        .unwrap();
    assert_eq!(count(&mut other, "reader.low"), 10);
    assert_eq!(count(&mut maker, "reader.low"), 10);
    maker
        .batch_execute("CREATE VIEW maker.through AS SELECT * FROM maker.rows; GRANT SELECT ON maker.through TO reader")
        .unwrap();
    assert_eq!(sqlstate_of(&mut reader, "SELECT * FROM maker.through"), "42501");
    // So it does in a cursor, of which rows are fetched later, and from several shards.
    other
        .batch_execute(
            "BEGIN; DECLARE c CURSOR FOR SELECT _id FROM reader.low; FETCH 3 FROM c; FETCH ALL FROM c; COMMIT",
        )
        .unwrap();
    // A function of the reader does not see rows that the view leaves out, and a value that does not fit says nothing about these.
    other
        .batch_execute(
            "CREATE FUNCTION other.leak(text, int) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS \
             $$BEGIN RAISE EXCEPTION 'seen %', $1 USING ERRCODE = 'P0009'; END$$;\
             CREATE FUNCTION other.note(int) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS \
             $$BEGIN IF $1 >= 10 THEN RAISE EXCEPTION 'seen %', $1 USING ERRCODE = 'P0009'; END IF; RETURN true; END$$",
        )
        .unwrap();
    for sql in [
        "SELECT count(*) FROM reader.barrier WHERE other.note(k)",
        "SELECT count(*) FROM reader.barrier WHERE other.note(k) AND secret LIKE 'secret%'",
        "SELECT count(*) FROM reader.barrier WHERE secret = 'secret5' OR other.note(k)",
        "SELECT count(*) FROM (SELECT * FROM reader.barrier LIMIT 1000) b WHERE other.note(k)",
    ] {
        assert_eq!(other.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get::<_, i64>(0), 10, "{sql}");
    }
    assert_eq!(count(&mut other, "reader.barrier b JOIN (VALUES (200), (5)) v (x) ON b.k = v.x"), 1);
    let hidden = "SELECT count(*) FROM reader.barrier WHERE k > 20 AND other.leak(secret, k)";
    assert_eq!(other.query_one(hidden, &[]).unwrap().get::<_, i64>(0), 0);
    router.psql("SELECT docshard.update_one('test.rows', '{\"k\": 5}', '{\"$set\": {\"secret\": [\"hidden\"]}}')");
    let error = other.query("SELECT secret FROM reader.barrier", &[]).expect_err("an array is no text");
    let message = error.as_db_error().unwrap().message();
    assert!(
        message.contains("column \"secret\"") && !message.contains("_id") && !message.contains("hidden"),
        "{message}"
    );

    // Nor does it if groups are made of it. Hidden rows are in no group.
    let error =
        other.query("SELECT max(secret COLLATE \"C\") FROM reader.barrier", &[]).expect_err("an array is no text");
    let message = error.as_db_error().unwrap().message();
    assert!(message.contains("column \"secret\"") && !message.contains("_id"), "{message}");
    let groups = "SELECT count(*) FROM (SELECT k FROM reader.barrier GROUP BY k HAVING other.note(k)) g";
    assert_eq!(other.query_one(groups, &[]).unwrap().get::<_, i64>(0), 10);

    // Such a value says nothing either if it is in a row that the view hides, whatever the reader asks for.
    let hide = |k: i32, secret: &str| {
        router.psql(&format!(
            "SELECT docshard.update_one('test.rows', '{{\"k\": {k}}}', '{{\"$set\": {{\"secret\": {secret}}}}}')"
        ));
    };
    hide(5, "\"secret5\"");
    hide(150, "[\"guessed\"]");
    reader
        .batch_execute(
            "CREATE VIEW reader.computed WITH (security_barrier) AS SELECT k, secret FROM maker.rows WHERE k % 100 < 10; GRANT SELECT ON reader.computed TO other",
        )
        .unwrap();
    for sql in [
        "SELECT k FROM reader.computed WHERE secret = 'guessed'",
        "SELECT k FROM reader.computed WHERE secret = 'guessed' LIMIT 1",
    ] {
        assert!(other.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).is_empty(), "{sql}");
    }
    assert_eq!(other.query("SELECT secret FROM reader.computed", &[]).unwrap().len(), 30);
    hide(205, "[\"guessed\"]");
    let error = other.query("SELECT secret FROM reader.computed", &[]).expect_err("an array is no text");
    assert!(!error.as_db_error().unwrap().message().contains("_id"), "{error:?}");

    // SECURITY DEFINER functions have their owner's rights.
    reader
        .batch_execute(
            "CREATE FUNCTION reader.how_many() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT count(*) FROM maker.rows'",
        )
        .unwrap();
    assert_eq!(other.query_one("SELECT reader.how_many()", &[]).unwrap().get::<_, i64>(0), 300);
    // Rights that are revoked are gone, also for prepared statements.
    let prepared = reader.prepare("SELECT k FROM maker.rows WHERE k < 5").unwrap();
    assert_eq!(reader.query(&prepared, &[]).unwrap().len(), 5);
    router.psql("SELECT docshard.revoke_access('reader', '{\"read\": \"test.rows\"}')");
    let error = reader.query(&prepared, &[]).expect_err("the right is gone");
    assert_eq!(error.code().map(|code| code.code()), Some("42501"));
    assert_eq!(sqlstate_of(&mut other, "SELECT * FROM reader.low"), "42501");
}

/// A scan that is cancelled, fails or is left early leaves its session usable, and one that reads much needs no more memory for it.
#[test]
fn scans_end_early_and_interleave() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 'a', n % 7, 'x', repeat('x', 300)))) FROM generate_series(0, 8999) n; \
             CREATE FOREIGN TABLE rows (_id int, k int, a int, x text) SERVER docshard OPTIONS (namespace 'test.rows'); \
             CREATE FUNCTION inner_count(int) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM rows WHERE k = $1'",
        )
        .unwrap();
    let one = |client: &mut Client, sql: &str| -> i64 {
        client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
    };
    // A query within a scan, several scans at the same time, cursors that are left.
    assert_eq!(one(&mut client, "SELECT sum(inner_count(k))::int8 FROM rows WHERE _id < 20"), 600);
    assert_eq!(one(&mut client, "SELECT count(*) FROM rows a JOIN rows b ON a._id = b._id"), 9000);
    client.batch_execute("SET enable_hashjoin = off; SET enable_mergejoin = off").unwrap();
    assert_eq!(one(&mut client, "SELECT count(*) FROM rows a JOIN rows b ON a._id = b.k WHERE a._id < 5"), 150);
    client.batch_execute("RESET ALL").unwrap();
    client.batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT * FROM rows; DECLARE d CURSOR FOR SELECT * FROM rows; FETCH 5 FROM c; FETCH 5 FROM d; FETCH 5 FROM c; CLOSE c; FETCH 100 FROM d; COMMIT").unwrap();
    assert_eq!(client.query("SELECT * FROM (SELECT * FROM rows OFFSET 0) r LIMIT 3", &[]).unwrap().len(), 3);
    // A table with children has their rows, too.
    client.batch_execute("CREATE TABLE child () INHERITS (rows); INSERT INTO child VALUES (-1, -1, -1, '')").unwrap();
    assert_eq!(one(&mut client, "SELECT _id::int8 FROM rows ORDER BY _id LIMIT 1"), -1);
    assert_eq!(one(&mut client, "SELECT _id::int8 FROM rows WHERE k = -1 LIMIT 1"), -1);
    client.batch_execute("DROP TABLE child").unwrap();
    // An error in the middle, also one that is caught.
    assert_eq!(sqlstate_of(&mut client, "SELECT 1 / (_id - 500) FROM rows"), "22012");
    client
        .batch_execute(
            "DO $$DECLARE n bigint; BEGIN FOR i IN 1..5 LOOP BEGIN PERFORM 1 / (_id - 500) FROM rows; EXCEPTION WHEN division_by_zero THEN \
             SELECT count(*) INTO n FROM rows WHERE k = i; ASSERT n = 30; END; END LOOP; END$$",
        )
        .unwrap();
    let cancel = client.cancel_token();
    let cancelling = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        cancel.cancel_query(postgres::NoTls).unwrap();
    });
    assert_eq!(sqlstate_of(&mut client, "SELECT count(*) FROM rows a, rows b, rows c"), "57014");
    cancelling.join().unwrap();
    assert_eq!(one(&mut client, "SELECT count(*) FROM rows"), 9000);
    // Memory of the executor does not grow with rows, nor with scans of a nested loop.
    let used = |client: &mut Client| one(client, "SELECT sum(total_bytes)::int8 FROM pg_backend_memory_contexts");
    client.batch_execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off").unwrap();
    client
        .batch_execute(
            "BEGIN; DECLARE c CURSOR FOR SELECT a.x, b.x FROM rows a JOIN rows b ON b._id = a._id; MOVE 200 IN c",
        )
        .unwrap();
    let before = used(&mut client);
    client.batch_execute("MOVE 4000 IN c").unwrap();
    let after = used(&mut client);
    assert!(after < before + (1 << 20), "{before} bytes, then {after}");
    client.batch_execute("COMMIT").unwrap();
}

/// A join by batches restarts, ends early and fails as any other node, with flat memory.
#[test]
fn joins_by_batches() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 'x', repeat('x', 300)))) FROM generate_series(0, 8999) n; \
             CREATE FOREIGN TABLE rows (_id int, k int, x text) SERVER docshard OPTIONS (namespace 'test.rows'); \
             CREATE TABLE outside AS SELECT n, n % 400 AS k FROM generate_series(0, 1999) n; INSERT INTO outside VALUES (-1, NULL); ANALYZE outside; \
             SET enable_nestloop = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
        )
        .unwrap();
    let one = |client: &mut Client, sql: &str| -> i64 {
        client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
    };
    let is_batched = |client: &mut Client, sql: &str| {
        let plan = client.query(&format!("EXPLAIN {sql}"), &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        plan.iter().any(|row| row.get::<_, String>(0).contains("docshard batched join"))
    };
    // 1,500 outer rows have 30 partners each.
    for (sql, count) in [
        ("SELECT count(*) FROM outside o JOIN rows r ON r.k = o.k", 1500 * 30),
        ("SELECT count(*) FROM outside o LEFT JOIN rows r ON r.k = o.k", 1500 * 30 + 501),
        ("SELECT count(*) FROM outside o LEFT JOIN rows r ON r.k = o.k AND r._id < 300", 1500 + 501),
        ("SELECT count(*) FROM outside o LEFT JOIN rows r ON r.k = o.k WHERE r._id IS NULL", 501),
        ("SELECT count(coalesce(r._id, -1) + o.n) FROM outside o LEFT JOIN rows r ON r.k = o.k", 1500 * 30 + 501),
        (
            "SELECT count(*) FILTER (WHERE v = -2) FROM (SELECT coalesce(r._id, -2) AS v, o.n FROM outside o LEFT JOIN rows r ON r.k = o.k OFFSET 0) s",
            501,
        ),
        ("SELECT count(r.k) + count(o.k) FROM outside o LEFT JOIN rows r ON r.k = o.k AND r._id < 300", 1500 + 2000),
        (
            "SELECT count(*) FROM (SELECT DISTINCT r._id, o.n FROM outside o LEFT JOIN rows r ON r.k = o.k) s",
            1500 * 30 + 501,
        ),
        ("SELECT count(*) FROM outside o JOIN rows r ON o.k = r.k AND r._id = o.n", 600),
        ("SELECT count(*) FROM outside o JOIN rows r ON r._id = o.k + 1 AND o.n > 1000 AND r.x LIKE 'x%'", 999),
        ("SELECT count(*) FROM (SELECT * FROM outside WHERE n < 0) o JOIN rows r ON r.k = o.k", 0),
    ] {
        assert!(is_batched(&mut client, sql), "{sql}");
        assert_eq!(one(&mut client, sql), count, "{sql}");
    }
    // It starts again for each row of an outer query.
    let again = "SELECT sum((SELECT count(*) FROM (SELECT * FROM outside WHERE n > v * 100 AND n < 1900 OFFSET 0) o JOIN rows r ON r.k = o.k))::int8 FROM generate_series(16, 19) v";
    assert!(is_batched(&mut client, again));
    // Of the rows from 1601 to 1899, those up to 1899 have k from 1 to 299.
    assert_eq!(one(&mut client, again), (299 + 199 + 99) * 30);
    // It ends early, by a cursor, a LIMIT and an error.
    client.batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT r._id FROM outside o JOIN rows r ON r.k = o.k; FETCH 40 FROM c; MOVE 100 FROM c; CLOSE c; COMMIT").unwrap();
    assert_eq!(client.query("SELECT r._id FROM outside o JOIN rows r ON r.k = o.k LIMIT 7", &[]).unwrap().len(), 7);
    assert_eq!(sqlstate_of(&mut client, "SELECT 1 / (r._id - 500) FROM outside o JOIN rows r ON r.k = o.k"), "22012");
    assert_eq!(sqlstate_of(&mut client, "SELECT 1 FROM outside o JOIN rows r ON r.k = 1 / (o.n - 700)"), "22012");
    client.batch_execute("EXPLAIN (ANALYZE, VERBOSE) SELECT r._id FROM outside o JOIN rows r ON r.k = o.k").unwrap();
    // Statements that lock or write rows, and conditions behind a security barrier, have none.
    client.batch_execute("CREATE VIEW barrier WITH (security_barrier) AS SELECT * FROM rows WHERE k % 2 = 0").unwrap();
    assert!(!is_batched(&mut client, "SELECT 1 FROM outside o JOIN rows r ON r.k = o.k FOR UPDATE OF o"));
    assert!(!is_batched(&mut client, "SELECT 1 FROM outside o JOIN barrier r ON r.k = o.k"));
    assert_eq!(
        client
            .execute("UPDATE outside SET n = 5000 + n FROM rows WHERE rows.k = outside.k AND rows._id < 10", &[])
            .unwrap(),
        50
    );
    // A key that finds much needs no memory for it.
    client
        .batch_execute(
            "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', 7, 'x', repeat('x', 300)))) FROM generate_series(20000, 40000) n; \
             BEGIN; DECLARE c CURSOR FOR SELECT r._id, r.x FROM (VALUES (7), (8)) o (k) JOIN rows r ON r.k = o.k",
        )
        .unwrap();
    let used = "SELECT sum(total_bytes)::int8 FROM pg_backend_memory_contexts";
    client.batch_execute("FETCH 10 FROM c").unwrap();
    let before = one(&mut client, used);
    client.batch_execute("MOVE 19000 FROM c").unwrap();
    let after = one(&mut client, used);
    assert!(after < before + (4 << 20), "{before} bytes, then {after}");
    client.batch_execute("COMMIT").unwrap();
}

/// A sample has rows of each shard in proportion, and statements over groups and joins are estimated by it.
#[test]
fn analyze_samples_all_shards_in_proportion() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', CASE WHEN n % 10 = 0 THEN 50 WHEN n % 10 < 4 THEN 150 ELSE 250 END, 'n', n % 1000))) FROM generate_series(0, 4999) n; \
             CREATE FOREIGN TABLE rows (_id int, k int, n int, x text) SERVER docshard OPTIONS (namespace 'test.rows'); \
             SET default_statistics_target = 4; ANALYZE rows",
        )
        .unwrap();
    let statistics = "SELECT most_common_vals::text::int[], most_common_freqs FROM pg_stats WHERE tablename = 'rows' AND attname = 'k'";
    let row = client.query_one(statistics, &[]).unwrap();
    let (values, shares): (Vec<i32>, Vec<f32>) = (row.get(0), row.get(1));
    for (value, share) in [(50, 0.1), (150, 0.3), (250, 0.6)] {
        let at = values.iter().position(|known| *known == value).unwrap_or_else(|| panic!("{value} in {values:?}"));
        // 1,200 rows: more than five standard deviations.
        assert!((shares[at] - share).abs() < 0.08, "{values:?} {shares:?}");
    }
    let distinct: f32 = client
        .query_one("SELECT n_distinct FROM pg_stats WHERE tablename = 'rows' AND attname = 'n'", &[])
        .unwrap()
        .get(0);
    assert!(distinct > 500.0 && distinct < 2500.0 || distinct < -0.1, "{distinct}");
    let tuples: f32 = client.query_one("SELECT reltuples FROM pg_class WHERE relname = 'rows'", &[]).unwrap().get(0);
    assert_eq!(tuples, 5000.0);
}

/// EXPLAIN ANALYZE says what each shard has returned, also over several starts of a scan.
#[test]
fn explain_shows_the_rows_of_each_shard() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "CREATE FOREIGN TABLE rows (_id int NOT NULL, k int NOT NULL) SERVER docshard OPTIONS (namespace 'test.rows'); \
         INSERT INTO rows SELECT n, n FROM generate_series(50, 219) n",
    );
    let plan = |options: &str, sql: &str| router.psql(&format!("EXPLAIN (ANALYZE, COSTS OFF, {options}) {sql}"));
    let whole = plan("TIMING OFF", "SELECT _id FROM rows");
    for part in ["local 50", "shard0 100", "shard1 20"] {
        assert!(whole.contains("Rows of Shards: ") && whole.contains(part), "{part}: {whole}");
    }
    let part = plan("TIMING OFF", "SELECT _id FROM rows WHERE k >= 200");
    assert!(part.contains("Rows of Shards: shard1 20\n"), "{part}");
    assert!(plan("TIMING ON", "SELECT _id FROM rows WHERE k < 100").contains("Rows of Shards: local 50 in "));
    let loops = plan("TIMING OFF", "SELECT (SELECT _id FROM rows WHERE k = n OFFSET 0) FROM generate_series(50, 59) n");
    assert!(loops.contains("loops=10") && loops.contains("Rows of Shards: local 10\n"), "{loops}");
}

/// A rename changes the foreign tables that nobody uses, and neither waits long for the others nor keeps readers waiting.
#[test]
fn a_rename_does_not_wait_for_readers() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_one('test.rows', '{\"_id\": 1, \"k\": 1}'); \
         CREATE FOREIGN TABLE app (_id int) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE FOREIGN TABLE used (_id int) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE FOREIGN TABLE last (_id int) SERVER docshard OPTIONS (namespace 'test.rows')",
    );
    let (mut reader, mut client) = (router.client(), router.client());
    reader.batch_execute("BEGIN; SELECT * FROM used").unwrap();
    client.batch_execute("SELECT docshard.rename_collection('test.rows', 'test.renamed')").unwrap();
    let names =
        "SELECT string_agg(ftrelid::regclass || ' ' || ftoptions[1], ', ' ORDER BY ftrelid) FROM pg_foreign_table";
    let renamed: String = client.query_one(names, &[]).unwrap().get(0);
    assert_eq!(renamed, "app namespace=test.renamed, used namespace=test.rows, last namespace=test.renamed");
    assert_eq!(client.query_one("SELECT count(*) FROM app", &[]).unwrap().get::<_, i64>(0), 1);
    reader.batch_execute("COMMIT").unwrap();
    // A setting of the session counts again.
    let timeout: String = client.query_one("SHOW lock_timeout", &[]).unwrap().get(0);
    assert_eq!(timeout, "0");
}

/// An update that another transaction comes between is not lost: it fails, and can be run again.
#[test]
fn concurrent_writes_are_not_lost() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "CREATE FOREIGN TABLE rows (_id int, k int, a int, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'test.rows'); \
             CREATE FOREIGN TABLE keyed (_id int, k int, a int) SERVER docshard OPTIONS (namespace 'test.rows'); \
             INSERT INTO rows SELECT n, n * 100, 0 FROM generate_series(0, 2) n",
        )
        .unwrap();
    let add = |sql, times| cluster.router.repeat(sql, times);
    let threads = [
        add("UPDATE keyed SET a = a + 1 WHERE _id = 1", 40),
        add("UPDATE keyed SET a = a + 1 WHERE _id = 1", 40),
        add("UPDATE rows SET doc = jsonb_set(doc, '{a}', to_jsonb((doc ->> 'a')::int + 1)) WHERE _id = 1", 40),
        add("UPDATE rows SET a = a + 1", 20),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    let values: Vec<i32> =
        client.query("SELECT a FROM rows ORDER BY _id", &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(values, [20, 140, 20]);
    // A row that no longer is as the condition has found it is not deleted; one that is gone is nothing to do.
    let mut other = cluster.router.client();
    client.batch_execute("BEGIN; UPDATE keyed SET a = -1 WHERE _id = 1").unwrap();
    let deleting = std::thread::spawn(move || (other.batch_execute("DELETE FROM keyed WHERE a + 0 = 140"), other));
    std::thread::sleep(std::time::Duration::from_millis(300));
    client.batch_execute("COMMIT").unwrap();
    let (deleted, mut other) = deleting.join().unwrap();
    assert_eq!(deleted.expect_err("it was changed").code().map(|code| code.code()), Some("40001"));
    client.batch_execute("BEGIN; DELETE FROM keyed WHERE _id = 1").unwrap();
    let deleting = std::thread::spawn(move || other.execute("DELETE FROM keyed WHERE a = -1", &[]));
    std::thread::sleep(std::time::Duration::from_millis(300));
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(deleting.join().unwrap().unwrap(), 0);
}

/// Writes need the right to write the collection, of the user whose rights PostgreSQL checks; they are whole on all shards, or not done.
#[test]
fn writes_need_rights_and_are_whole() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    for role in ["reader", "writer", "other"] {
        router.psql(&format!("CREATE ROLE {role} LOGIN"));
    }
    router.psql("SELECT docshard.insert_one('test.rows', '{\"_id\": 1, \"k\": 1}')");
    router.psql("SELECT docshard.grant_access('reader', '{\"read\": \"test.rows\"}'), docshard.grant_access('writer', '{\"write\": \"test.rows\"}')");
    router.psql(
        "CREATE FOREIGN TABLE rows (_id int, k int, a int) SERVER docshard OPTIONS (namespace 'test.rows'); GRANT ALL ON rows TO PUBLIC; \
         CREATE FOREIGN TABLE fresh (_id int) SERVER docshard OPTIONS (namespace 'test.fresh'); GRANT ALL ON fresh TO PUBLIC; \
         GRANT CREATE ON SCHEMA public TO writer",
    );
    let session = |role: &str| router.try_client_as(role, "postgres").unwrap();
    let (mut reader, mut writer, mut other) = (session("reader"), session("writer"), session("other"));
    let writes = [
        "INSERT INTO rows VALUES (2, 2)",
        "UPDATE rows SET a = 1",
        "DELETE FROM rows",
        "INSERT INTO rows VALUES (2, 2) ON CONFLICT DO NOTHING",
        "TRUNCATE rows",
    ];
    for sql in writes {
        assert_eq!(sqlstate_of(&mut reader, sql), "42501", "{sql}");
        assert_eq!(sqlstate_of(&mut other, sql), "42501", "{sql}");
    }
    assert_eq!(sqlstate_of(&mut writer, "INSERT INTO fresh VALUES (1)"), "42501");
    assert_eq!(writer.execute("INSERT INTO rows VALUES (2, 150), (3, 250)", &[]).unwrap(), 2);
    assert_eq!(writer.execute("UPDATE rows SET a = _id", &[]).unwrap(), 3);
    writer.batch_execute("BEGIN; TRUNCATE rows").unwrap();
    assert_eq!(writer.query_one("SELECT count(*) FROM rows", &[]).unwrap().get::<_, i64>(0), 0);
    assert_eq!(reader.query_one("SELECT count(*) FROM docshard.find('test.rows')", &[]).unwrap().get::<_, i64>(0), 3);
    writer.batch_execute("ROLLBACK").unwrap();
    // By a view its owner writes.
    writer.batch_execute("CREATE VIEW low AS SELECT * FROM rows WHERE k < 200; GRANT ALL ON low TO other").unwrap();
    assert_eq!(other.execute("UPDATE low SET a = 7", &[]).unwrap(), 2);
    assert_eq!(other.execute("INSERT INTO low VALUES (9, 9, 9)", &[]).unwrap(), 1);
    assert_eq!(other.execute("DELETE FROM low WHERE _id = 9", &[]).unwrap(), 1);
    assert_eq!(sqlstate_of(&mut other, "DELETE FROM rows"), "42501");
    // An error in the last row of many takes back all, on every shard.
    let rows = |client: &mut Client| client.query_one("SELECT count(*) FROM rows", &[]).unwrap().get::<_, i64>(0);
    let many = "INSERT INTO rows SELECT n, n % 300 FROM generate_series(10, 5000) n UNION ALL SELECT 1, 1";
    assert_eq!(sqlstate_of(&mut writer, many), "23505");
    assert_eq!(rows(&mut writer), 3);
    assert_eq!(sqlstate_of(&mut writer, "UPDATE rows SET a = 1 / (_id - 3)"), "22012");
    assert_eq!(writer.query_one("SELECT sum(a) FROM rows", &[]).unwrap().get::<_, i64>(0), 17);
    let mut copy = writer.copy_in("COPY rows (_id, k) FROM STDIN").unwrap();
    for n in 10..9000 {
        std::io::Write::write_all(&mut copy, format!("{n}\t{}\n", n % 300).as_bytes()).unwrap();
    }
    assert_eq!(copy.finish().unwrap(), 8990);
    assert_eq!(rows(&mut writer), 8993);
    let mut copy = writer.copy_in("COPY rows (_id, k) FROM STDIN").unwrap();
    for n in 9000..15000 {
        std::io::Write::write_all(&mut copy, format!("{n}\t{}\n", n % 300).as_bytes()).unwrap();
    }
    std::io::Write::write_all(&mut copy, b"10\t10\n").unwrap();
    assert_eq!(copy.finish().expect_err("a duplicate").code().map(|code| code.code()), Some("23505"));
    assert_eq!(rows(&mut writer), 8993);
    // Memory of the executor does not grow with the rows of an update.
    let used = "SELECT sum(total_bytes)::int8 FROM pg_backend_memory_contexts WHERE name LIKE 'docshard%' OR name = 'ExecutorState'";
    router.psql("CREATE TABLE used (n int, bytes int8)");
    router.psql(&format!(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW._id IN (100, 8000) THEN INSERT INTO used SELECT NEW._id, ({used}); END IF; RETURN NEW; END$$; \
         CREATE TRIGGER note BEFORE UPDATE ON rows FOR EACH ROW EXECUTE FUNCTION note(); UPDATE rows SET a = a + 1 WHERE _id < 8500"
    ));
    let range: i64 = router.value("SELECT max(bytes) - min(bytes) FROM used");
    assert!(range < 1 << 20, "{range} bytes more");
}
