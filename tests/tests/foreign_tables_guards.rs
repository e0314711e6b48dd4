//! Foreign tables over collections on several shards: planning asks no shard, plans with parallel parts read the catalog, and no role
//! learns by another one's statements, or by a view, what it may not read.

use docshard_tests::Cluster;
use docshard_tests::logins::sqlstate_of;
use postgres::Client;

/// Sharded by ranges of `k`, as [`Cluster::spread`] does: below 100 on `local`, below 200 on `shard0`, the others on `shard1`.
const NS: &str = "test.rows";

const TABLE: &str =
    "CREATE FOREIGN TABLE rows (_id int, k int NOT NULL, v int) SERVER docshard OPTIONS (namespace 'test.rows')";

fn count(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
}

/// PostgreSQL's executor is in parallel mode while any part of its plan may be parallel, also in the leader's foreign scans.
#[test]
fn plans_with_parallel_parts_read_the_catalog() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    let mut client = router.client();
    router.psql(TABLE);
    router.psql(
        "INSERT INTO rows SELECT n, n, n % 7 FROM generate_series(0, 299) n; \
         SELECT docshard.create_collection('test.through', '{\"viewOn\": \"rows\", \"pipeline\": []}'); \
         CREATE FOREIGN TABLE through (_id int, k int, v int) SERVER docshard OPTIONS (namespace 'test.through'); \
         CREATE FOREIGN TABLE missing (_id int) SERVER docshard OPTIONS (namespace 'test.missing'); \
         CREATE FOREIGN TABLE config (_id text) SERVER docshard OPTIONS (namespace 'config.collections'); \
         CREATE FUNCTION all_rows() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN (SELECT count(*) FROM rows); END'; \
         CREATE FUNCTION of_router() RETURNS bigint LANGUAGE plpgsql PARALLEL RESTRICTED AS 'BEGIN RETURN (SELECT count(*) FROM rows); END'",
    );
    let names = "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')";
    let setting: String = client.query_one(names, &[]).unwrap().get(0);
    client.batch_execute(&format!("SET {setting} = on")).unwrap();
    let read = |client: &mut Client| {
        for (sql, found) in [
            ("SELECT count(*) FROM rows", 300),
            ("SELECT count(*) FROM (SELECT * FROM rows WHERE v = 1 OFFSET 0) r", 43),
            ("SELECT count(*) FROM through WHERE k >= 150", 150),
            ("SELECT count(*) FROM (SELECT * FROM through OFFSET 0) r", 300),
            ("SELECT count(*) FROM rows a JOIN through b USING (_id) WHERE a.k < 50", 50),
            ("SELECT count(*) FROM config WHERE _id = 'test.rows'", 1),
            ("SELECT of_router()", 300),
        ] {
            assert_eq!(count(client, sql), found, "{sql}");
        }
    };
    read(&mut client);
    // After a change of the catalog, and in a session that has read nothing yet.
    router.psql("SELECT docshard.create_index('test.rows', '{\"v\": 1}')");
    read(&mut client);
    router.psql("SELECT docshard.move_chunk('test.rows', '{\"k\": 150}', 'shard1')");
    read(&mut client);
    let mut fresh = router.client();
    fresh.batch_execute(&format!("SET {setting} = on")).unwrap();
    assert_eq!(sqlstate_of(&mut fresh, "SELECT count(*) FROM missing"), "42P01");
    read(&mut fresh);
    // The catalog is as new as the statement, also within a transaction with an older snapshot.
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class").unwrap();
    router.psql("SELECT docshard.drop_index('test.rows', 'v_1')");
    read(&mut client);
    client.batch_execute("SELECT docshard.create_collection('test.missing')").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM missing"), 0);
    client.batch_execute("COMMIT").unwrap();
    // A parallel worker has no part in the transaction at the shards.
    assert_eq!(sqlstate_of(&mut client, "SELECT all_rows()"), "0A000");
}

/// What a plan estimates does not depend on shards that the statement does not need.
#[test]
fn planning_asks_no_shard() {
    let mut cluster = Cluster::spread(NS);
    cluster.router.psql(TABLE);
    cluster.router.psql("INSERT INTO rows SELECT n, n, 0 FROM generate_series(0, 299) n");
    let mut client = cluster.router.client();
    // A serializable transaction reads from one shard.
    client.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM (SELECT _id FROM rows WHERE k = 150 OFFSET 0) r"), 1);
    client.batch_execute("COMMIT").unwrap();
    cluster.shards[1].stop();
    let mut client = cluster.router.client();
    for (sql, rows) in [
        ("SELECT _id FROM rows WHERE k = 150", 1),
        ("UPDATE rows SET v = v + 1 WHERE k = 150", 1),
        ("UPDATE rows SET v = 7 WHERE k = 50", 1),
        ("DELETE FROM rows WHERE k = 151", 1),
        ("INSERT INTO rows VALUES (151, 151, 1)", 1),
    ] {
        assert_eq!(client.execute(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")), rows, "{sql}");
    }
    let plan = client.query("EXPLAIN SELECT * FROM rows WHERE k = 150", &[]).unwrap();
    assert!(plan.iter().any(|row| row.get::<_, String>(0).contains("Shards: 1 of 3")));
    assert_eq!(sqlstate_of(&mut client, "SELECT count(*) FROM rows"), "08001");
    cluster.shards[1].start();
    // ANALYZE asks the shards. What it has counted is the estimate until they have told the router.
    let mut client = cluster.router.client();
    client.batch_execute("ANALYZE rows").unwrap();
    let estimate = |client: &mut Client| {
        let plan: String = client.query("EXPLAIN SELECT * FROM rows", &[]).unwrap()[0].get(0);
        plan.split("rows=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse::<i64>().unwrap()
    };
    assert!((300..900).contains(&estimate(&mut client)), "{}", estimate(&mut client));
}

/// What one role has made in a session, another one cannot use.
#[test]
fn no_role_reads_config_by_the_statements_of_another_one() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "CREATE ROLE reader LOGIN; CREATE ROLE other LOGIN; CREATE ROLE pool LOGIN NOINHERIT; GRANT reader, other TO pool; \
         GRANT USAGE ON FOREIGN SERVER docshard TO reader, other; \
         CREATE SCHEMA reader AUTHORIZATION reader; CREATE SCHEMA other AUTHORIZATION other; GRANT USAGE ON SCHEMA reader TO other; \
         SELECT docshard.grant_access('reader', '{\"read\": \"test.rows\"}')",
    );
    let session = |role: &str| router.try_client_as(role, "postgres").unwrap();
    let (mut reader, mut other, mut pool) = (session("reader"), session("other"), session("pool"));
    let table = |role: &str, name: &str| {
        format!(
            "CREATE FOREIGN TABLE {role}.{name} (_id text, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'config.{name}')"
        )
    };
    for name in ["collections", "shards"] {
        reader.batch_execute(&table("reader", name)).unwrap();
        other.batch_execute(&table("other", name)).unwrap();
    }
    reader
        .batch_execute(
            "CREATE FUNCTION reader.counts() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS \
             'SELECT count(c.doc) + (SELECT count(s.doc) FROM reader.shards s) FROM reader.collections c'",
        )
        .unwrap();
    let reads = [
        "SELECT _id FROM other.collections",
        "SELECT doc FROM other.collections",
        "SELECT count(*) FROM other.collections",
        "SELECT count(doc) FROM other.shards",
        "EXPLAIN SELECT * FROM other.shards",
        "EXPLAIN (VERBOSE) SELECT * FROM other.collections WHERE _id = 'a'",
    ];
    let refused = |client: &mut Client| {
        for sql in reads {
            assert_eq!(sqlstate_of(client, sql), "42501", "{sql}");
        }
    };
    refused(&mut other);
    assert!(count(&mut other, "SELECT reader.counts()") > 1);
    refused(&mut other);
    for sql in [
        "SELECT doc FROM reader.collections",
        "SELECT count(*) FROM reader.collections",
        "SELECT doc FROM reader.shards",
    ] {
        pool.batch_execute(&format!("SET ROLE reader; {sql}")).unwrap();
    }
    pool.batch_execute("SET ROLE other").unwrap();
    refused(&mut pool);
    // A right that is taken away is gone in an open session.
    pool.batch_execute("SET ROLE reader; SELECT doc FROM reader.collections").unwrap();
    router.psql("SELECT docshard.revoke_access('reader', '{\"read\": \"test.rows\"}')");
    assert_eq!(sqlstate_of(&mut pool, "SELECT doc FROM reader.collections"), "42501");
}

/// A row whose value does not fit the condition of a view with `security_barrier` is not visible; its error would say that the reader's
/// condition holds for it.
#[test]
fn a_value_that_does_not_fit_the_condition_of_a_view_hides_its_row() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_many('test.rows', ARRAY['{\"_id\": 1, \"k\": 1, \"owner\": [\"eve\", \"bob\"], \"v\": 4242}', \
           '{\"_id\": 2, \"k\": 150, \"owner\": \"eve\", \"v\": 1}', '{\"_id\": 3, \"k\": 250, \"owner\": \"bob\", \"v\": 4242}']::jsonb[]); \
         CREATE FOREIGN TABLE rows (_id int, k int, owner text, v int) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE VIEW mine WITH (security_barrier) AS SELECT * FROM rows WHERE owner = 'eve'; \
         CREATE VIEW counts WITH (security_barrier) AS SELECT k, count(*) AS n FROM rows WHERE owner = 'eve' GROUP BY k; \
         CREATE ROLE eve LOGIN; GRANT ALL ON mine, counts TO eve",
    );
    let mut eve = router.try_client_as("eve", "postgres").unwrap();
    for (sql, found) in [
        ("SELECT count(*) FROM mine WHERE v = 4242", 0),
        ("SELECT count(*) FROM mine WHERE v = 4241", 0),
        ("SELECT count(*) FROM (SELECT v FROM mine WHERE v > 0 OFFSET 0) m", 1),
        ("SELECT count(*) FROM mine", 1),
        ("SELECT sum(n)::bigint FROM counts", 1),
    ] {
        assert_eq!(count(&mut eve, sql), found, "{sql}");
    }
    assert_eq!(eve.execute("UPDATE mine SET v = v + 1 WHERE v = 4242", &[]).unwrap(), 0);
    assert_eq!(eve.execute("UPDATE mine SET v = 5 WHERE v = 4242", &[]).unwrap(), 0);
    assert_eq!(eve.execute("DELETE FROM mine WHERE v = 4242 RETURNING _id", &[]).unwrap(), 0);
    assert_eq!(eve.execute("UPDATE mine SET v = v + 1", &[]).unwrap(), 1);
    // To the view's owner it is an error, as without the view.
    assert_eq!(sqlstate_of(&mut router.client(), "SELECT * FROM mine WHERE v = 4242"), "42804");
}
