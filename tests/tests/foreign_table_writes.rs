//! Writes to foreign tables over collections on several shards: random statements do the same as on plain tables, whatever parts, triggers
//! and values that do not fit there are; what another transaction changes in between is not lost; and the owner of a table gets no more
//! than its own rights.

use docshard_tests::logins::sqlstate_of;
use docshard_tests::{Cluster, is_thorough, wait_until};
use fastrand::Rng;
use postgres::Client;
use serde_json::json;
use std::time::Duration;

/// Sharded by ranges of `k`, as [`Cluster::spread`] does.
const NS: &str = "test.rows";

fn one<T: for<'a> postgres::types::FromSql<'a>>(client: &mut Client, sql: &str) -> T {
    client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0)
}

fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}

/// A random value to set, of columns and constants.
fn value(random: &mut Rng, column: &str) -> String {
    let own: &[&str] = match column {
        "a" => &["a + 1", "NULL", "7", "id", "-a", "coalesce(a, 0) + length(s)"],
        "s" => &["s || 'x'", "NULL", "'é'", "lower(s)", "a::text", "coalesce(s, 'none')"],
        "n" => &["n + 0.1", "NULL", "1.50", "n * 2", "a"],
        "r" => &["r + 1.5", "NULL", "a", "'NaN'"],
        "y" => &["y || '\\x01'", "NULL", "'\\x0102'"],
        "g" => &["g || 'b'::text", "NULL", "ARRAY['a', NULL]", "'{}'"],
        _ => &["k + 0", "k"],
    };
    pick(random, own).to_owned()
}

fn condition(random: &mut Rng) -> String {
    let conditions = [
        format!("id = {}", random.u8(..60)),
        format!("id % {} = 0", random.u8(2..9)),
        format!("k BETWEEN {0} AND {0} + 80", random.u32(..300)),
        format!("a > {}", random.u8(..40)),
        "s IS NULL".to_owned(),
        "s LIKE 'x%' OR r > 3".to_owned(),
        "n = 1.5 AND id < 40".to_owned(),
        format!("id IN (SELECT id FROM other WHERE id % 5 = {})", random.u8(..5)),
        "g @> ARRAY['a']".to_owned(),
        "length(y) > 1".to_owned(),
    ];
    let first = conditions[random.usize(..conditions.len())].clone();
    if random.bool() { first } else { format!("({first}) AND id < {}", random.u8(10..60)) }
}

/// The same rows in parts of a partitioned table that are collections, and in plain ones.
const PARTS: &str = "\
    CREATE TABLE other AS SELECT id, id * 5 AS k FROM generate_series(0, 59) id; \
    CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS \
      $$BEGIN IF NEW.id % 7 = 0 THEN NEW.s = coalesce(NEW.s, '') || '!'; END IF; RETURN NEW; END$$; \
    CREATE TABLE docs (id int, k int, a int, s text, n numeric, r real, y bytea, g text[]) PARTITION BY RANGE (k); \
    CREATE FOREIGN TABLE d1 (id int OPTIONS (path '_id'), k int, a int, s text, n numeric, r real, y bytea, g text[]) SERVER docshard OPTIONS (namespace 'test.rows'); \
    CREATE FOREIGN TABLE d2 (g text[], y bytea, odd int, k int NOT NULL, a int, n numeric, id int OPTIONS (path '_id'), r real OPTIONS (path 'm.r'), s text, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'test.mixed', on_mismatch 'null'); \
    ALTER FOREIGN TABLE d2 DROP COLUMN odd, DROP COLUMN doc; \
    CREATE TABLE rows (LIKE docs) PARTITION BY RANGE (k); \
    CREATE TABLE r1 PARTITION OF rows FOR VALUES FROM (0) TO (150); \
    CREATE TABLE r2 PARTITION OF rows FOR VALUES FROM (150) TO (250); \
    CREATE TABLE r3 PARTITION OF rows FOR VALUES FROM (250) TO (400); \
    ALTER TABLE docs ATTACH PARTITION d1 FOR VALUES FROM (0) TO (150); \
    ALTER TABLE docs ATTACH PARTITION d2 FOR VALUES FROM (150) TO (250); \
    CREATE TABLE d3 PARTITION OF docs FOR VALUES FROM (250) TO (400); \
    CREATE TRIGGER mark BEFORE UPDATE ON d2 FOR EACH ROW EXECUTE FUNCTION mark(); \
    CREATE TRIGGER mark BEFORE UPDATE ON r2 FOR EACH ROW EXECUTE FUNCTION mark(); \
    INSERT INTO rows SELECT id, k, nullif(id % 11, 3), nullif(left(md5(id::text), id % 3), ''), nullif(id * 0.25, 2), nullif(id * 0.5, 3), \
      decode(left(md5(id::text), 2 * (id % 4)), 'hex'), CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN '{}' ELSE ARRAY['a', 'b'] END FROM other; \
    INSERT INTO docs TABLE rows";

#[test]
fn random_writes_do_what_they_do_to_plain_tables() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.shard_collection('test.mixed', '{\"_id\": \"hashed\"}')").unwrap();
    client.batch_execute(PARTS).unwrap();
    // Fields that no column has, or that do not fit: nothing may change them.
    let odd = "SELECT docshard.update_many('test.mixed', '{}', '{\"$set\": {\"x\": {\"$numberDecimal\": \"0.1\"}, \"m.y\": [1]}}')";
    client.batch_execute(odd).unwrap();
    // Values that do not fit, which are NULL.
    let misfits =
        "SELECT docshard.update_many('test.mixed', '{\"_id\": {\"$mod\": [3, 0]}}', '{\"$set\": {\"a\": \"text\"}}')";
    client.batch_execute(misfits).unwrap();
    client.batch_execute("ALTER TABLE r2 DISABLE TRIGGER mark; UPDATE r2 SET a = NULL WHERE id % 3 = 0; ALTER TABLE r2 ENABLE TRIGGER mark").unwrap();
    let misfits = "SELECT count(*) FROM docshard.find('test.mixed', '{\"a\": \"text\"}')";
    let different =
        "SELECT count(*) FROM (TABLE docs EXCEPT ALL TABLE rows UNION ALL (TABLE rows EXCEPT ALL TABLE docs)) d";
    assert_eq!(one::<i64>(&mut client, different), 0, "seed {seed}");
    let rounds = if is_thorough() { 500 } else { 50 };
    for _ in 0..rounds {
        let condition = condition(&mut random);
        let mut columns = vec!["a", "s", "n", "r", "y", "g", "k"];
        random.shuffle(&mut columns);
        columns.truncate(random.usize(1..4));
        let set: Vec<String> =
            columns.iter().map(|column| format!("{column} = {}", value(&mut random, column))).collect();
        let set = set.join(", ");
        let (of_docs, of_rows) = match random.u8(..10) {
            0 => (
                format!("DELETE FROM docs WHERE ({condition}) AND id % 3 = 1"),
                format!("DELETE FROM rows WHERE ({condition}) AND id % 3 = 1"),
            ),
            // One part alone.
            1 | 2 => {
                (format!("UPDATE d2 SET {set} WHERE {condition}"), format!("UPDATE r2 SET {set} WHERE {condition}"))
            }
            _ => {
                (format!("UPDATE docs SET {set} WHERE {condition}"), format!("UPDATE rows SET {set} WHERE {condition}"))
            }
        };
        let returning = if random.bool() { " RETURNING id, a, s, n, r, y, g, k" } else { "" };
        let run = |client: &mut Client, sql: &str| {
            if returning.is_empty() {
                return client.execute(sql, &[]).unwrap_or_else(|e| panic!("{sql}, seed {seed}: {e:?}")).to_string();
            }
            let sql = format!(
                "WITH w AS ({sql}{returning}) SELECT coalesce(string_agg(w::text, E'\\n' ORDER BY w), '') FROM w"
            );
            one::<String>(client, &sql)
        };
        let before: i64 = one(&mut client, misfits);
        let (found, wanted) = (run(&mut client, &of_docs), run(&mut client, &of_rows));
        assert_eq!(found, wanted, "{of_docs}{returning}, seed {seed}");
        assert_eq!(one::<i64>(&mut client, different), 0, "after {of_docs}, seed {seed}");
        if !columns.contains(&"a") && of_docs.starts_with("UPDATE") {
            assert_eq!(one::<i64>(&mut client, misfits), before, "after {of_docs}, seed {seed}");
        }
    }
    let kept = "SELECT count(*) FROM docshard.find('test.mixed') d WHERE d -> 'x' IS DISTINCT FROM '{\"$numberDecimal\": \"0.1\"}' OR d -> 'm' -> 'y' IS DISTINCT FROM '[1]'";
    assert_eq!(one::<i64>(&mut client, kept), 0, "seed {seed}");
}

/// A random condition that shards evaluate exactly.
fn exact_condition(random: &mut Rng) -> String {
    let one = |random: &mut Rng| match random.u8(..9) {
        0 => format!("k = {}", random.u32(..300)),
        1 => format!("k BETWEEN {0} AND {0} + 60", random.u32(..300)),
        2 => format!("a = {}", random.u8(..12)),
        3 => format!("a IN ({}, NULL, {})", random.u8(..12), random.u8(..12)),
        4 => "s IS NULL".to_owned(),
        5 => format!("s <> 'x{}'", random.u8(..4)),
        6 => format!("at >= '2026-01-0{}T00:00:00.0005Z'", random.u8(1..9)),
        7 => "NOT b".to_owned(),
        _ => format!("a > {}", random.i8(-3..12)),
    };
    let (first, second) = (one(random), one(random));
    match random.u8(..4) {
        0 => format!("{first} AND {second}"),
        1 => format!("{first} OR {second}"),
        _ => first,
    }
}

/// Statements that the shards do alone.
#[test]
fn direct_writes_do_what_they_do_to_plain_tables() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "CREATE FOREIGN TABLE docs (id int OPTIONS (path '_id') NOT NULL, k int NOT NULL, a int, s text, at timestamptz, b boolean, n numeric OPTIONS (path 'm.n')) \
               SERVER docshard OPTIONS (namespace 'test.rows'); \
             CREATE TABLE rows (id int, k int, a int, s text, at timestamptz, b boolean, n numeric); \
             CREATE INDEX ON rows (id); \
             CREATE FUNCTION is_direct(statement text) RETURNS boolean LANGUAGE plpgsql AS $$ \
             DECLARE plan jsonb; BEGIN EXECUTE 'EXPLAIN (FORMAT json) ' || statement INTO plan; \
               RETURN plan @? '$.** ? (@.\"Node Type\" == \"Foreign Scan\" && @.\"Operation\" != \"Select\")'; END$$",
        )
        .unwrap();
    let fill = "INSERT INTO rows SELECT id, id * 7 % 300, nullif(id % 11, 3), nullif('x' || id % 5, 'x3'), timestamptz '2026-01-01 00:00Z' + id * interval '1 hour', id % 3 = 0, id / 4.0 \
                  FROM generate_series(0, 299) id; INSERT INTO docs TABLE rows";
    client.batch_execute(fill).unwrap();
    let different =
        "SELECT count(*) FROM (TABLE docs EXCEPT ALL TABLE rows UNION ALL (TABLE rows EXCEPT ALL TABLE docs)) d";
    let (mut rounds, mut direct) = (0, 0);
    let mut round = |client: &mut Client, retries: bool| {
        let condition = exact_condition(&mut random);
        let sets =
            ["a = NULL", "a = 7", "s = 'x2'", "s = NULL", "at = '2026-01-05 10:00Z'", "b = true", "n = 1.50", "n = 12"];
        let mut sets = sets.to_vec();
        random.shuffle(&mut sets);
        let mut columns: Vec<&str> = Vec::new();
        sets.retain(|set| {
            let is_new = !columns.contains(&&set[..2]);
            columns.push(&set[..2]);
            is_new
        });
        sets.truncate(random.usize(1..4));
        let deletes = random.bool() && condition.contains("k = ");
        let statement = |table: &str| {
            if deletes {
                return format!("DELETE FROM {table} WHERE {condition}");
            }
            format!("UPDATE {table} SET {} WHERE {condition}", sets.join(", "))
        };
        let (of_docs, of_rows) = (statement("docs"), statement("rows"));
        let asked = client.query_one("SELECT is_direct($1)", &[&of_docs]).unwrap();
        direct += u32::from(asked.get::<_, bool>(0));
        rounds += 1;
        let found = loop {
            match client.execute(&of_docs, &[]) {
                Err(error) if retries && error.code().is_some_and(|code| code.code() == "40001") => {}
                done => break done.unwrap_or_else(|e| panic!("{of_docs}, seed {seed}: {e:?}")),
            }
        };
        assert_eq!(found, client.execute(&of_rows, &[]).unwrap(), "{of_docs}, seed {seed}");
        assert_eq!(one::<i64>(client, different), 0, "after {of_docs}, seed {seed}");
    };
    for _ in 0..if is_thorough() { 500 } else { 60 } {
        round(&mut client, false);
    }
    // Chunks that move meanwhile are neither left out nor written twice.
    let moves = [
        (NS, json!({"k": 150}), "local"),
        (NS, json!({"k": 250}), "shard0"),
        (NS, json!({"k": 150}), "shard1"),
        (NS, json!({"k": 50}), "shard1"),
    ];
    let mut other = cluster.router.client();
    cluster.while_chunks_move(&moves, || round(&mut other, true));
    // Few are not, as their conditions select too little for what they look at.
    assert!(direct * 2 > rounds, "{direct} of {rounds}, seed {seed}");
}

/// A direct write waits for another transaction, and compares what that has left.
#[test]
fn direct_writes_see_what_others_have_committed() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "CREATE FOREIGN TABLE docs (id int OPTIONS (path '_id') NOT NULL, k int NOT NULL, a int, s text) SERVER docshard OPTIONS (namespace 'test.rows'); \
             INSERT INTO docs SELECT n, n * 10, 1, NULL FROM generate_series(0, 29) n",
        )
        .unwrap();
    for (statement, left) in [("UPDATE docs SET s = 'seen' WHERE a = 1", 30), ("DELETE FROM docs WHERE a = 1", 15)] {
        let mut holder = cluster.router.client();
        holder.batch_execute("BEGIN; UPDATE docs SET a = 2 WHERE k < 150").unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| cluster.router.client().execute(statement, &[]));
            wait_until("the writer waits", Duration::from_secs(60), || {
                let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
                let nodes = std::iter::once(&cluster.router).chain(&cluster.shards);
                nodes.into_iter().any(|node| node.value::<i64>(waiting) > 0)
            });
            holder.batch_execute("COMMIT").unwrap();
            assert_eq!(writer.join().unwrap().unwrap(), 15, "{statement}");
        });
        assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM docs"), left, "{statement}");
        client.batch_execute("UPDATE docs SET a = 1 WHERE a = 2").unwrap();
    }
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM docs WHERE s IS NULL AND k < 150"), 15);
}

/// Runs a statement that reads rows and then waits, while another session runs `meanwhile`. `$wait` in the statement is an integer, 0.
fn with_change_between(cluster: &Cluster, statement: &str, meanwhile: &str) -> Result<u64, String> {
    let (mut holder, mut writer, mut other) =
        (cluster.router.client(), cluster.router.client(), cluster.router.client());
    holder.batch_execute("SELECT pg_advisory_lock(43)").unwrap();
    let waits = "(SELECT count(*)::int * 0 FROM (SELECT pg_advisory_xact_lock_shared(43)) w)";
    let sql = statement.replace("$wait", waits);
    let running = std::thread::spawn(move || {
        writer.execute(&sql, &[]).map_err(|error| error.code().map_or(String::new(), |code| code.code().to_owned()))
    });
    wait_until("the statement waits", Duration::from_secs(60), || {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 43 AND NOT granted";
        one::<i64>(&mut other, waiting) == 1
    });
    other.batch_execute(meanwhile).unwrap_or_else(|e| panic!("{meanwhile}: {e:?}"));
    holder.batch_execute("SELECT pg_advisory_unlock(43)").unwrap();
    running.join().unwrap()
}

/// A statement that has read what another one changes meanwhile fails, whatever it reads it through, and whatever its type is.
#[test]
fn changes_between_reading_and_writing_are_noticed() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "CREATE FOREIGN TABLE rows (_id int, k int, v int, owner text, r real, n numeric(6, 2), f float8, y bytea, j json, g numeric[], x int OPTIONS (path 'm.x'), doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE TABLE parent (v int, k int, _id int); \
         CREATE FOREIGN TABLE child (_id int, extra text, k int, v int) INHERITS (parent) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE TABLE parts (v int, k int, _id int) PARTITION BY RANGE (k); \
         CREATE FOREIGN TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (300) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE FOREIGN TABLE lenient (_id int, k int, v bool, owner int) SERVER docshard OPTIONS (namespace 'test.rows', on_mismatch 'null'); \
         CREATE VIEW hidden WITH (security_barrier) AS SELECT * FROM rows WHERE owner = 'bob'; \
         CREATE VIEW computed WITH (security_barrier) AS SELECT _id, k, v FROM rows WHERE lower(owner) = 'bob'",
    );
    let reset = "DELETE FROM rows; INSERT INTO rows (_id, k, v, owner, r, n, f, y, j, g, x) VALUES (1, 150, 1, 'bob', 1.5, 1.5, 0.1, '\\x01', '{\"a\": [1]}', '{0.1}', 1)";
    let refused = Err("40001".to_owned());
    // What is read, and a change of it.
    for (statement, change) in [
        ("UPDATE rows SET v = v + 1 + $wait", "v = v + 10"),
        ("UPDATE rows SET v = v + 1 + $wait", "k = 50"),
        ("DELETE FROM parts WHERE _id + $wait = 1", "k = 50"),
        ("UPDATE parent SET v = v + 1 + $wait", "v = v + 10"),
        ("UPDATE parts SET v = v + 1 + $wait", "v = v + 10"),
        ("DELETE FROM parent WHERE v + $wait = 1", "v = v + 10"),
        ("DELETE FROM parts WHERE v + $wait = 1", "v = v + 10"),
        ("UPDATE hidden SET v = v * 0 + 77 + $wait", "owner = 'eve'"),
        ("UPDATE computed SET v = 77 + $wait", "owner = 'eve'"),
        ("DELETE FROM computed WHERE _id + $wait = 1", "owner = 'eve'"),
        ("UPDATE rows SET r = r + 1 + $wait", "r = r + 10"),
        ("UPDATE rows SET n = n + 1 + $wait", "n = n + 10"),
        ("UPDATE rows SET f = f + 1 + $wait", "f = f + 10"),
        ("UPDATE rows SET y = y || set_byte('\\x00', 0, $wait)", "y = y || '\\x02'"),
        ("UPDATE rows SET v = length(j::text) + $wait", "j = '{\"a\": [2]}'"),
        ("UPDATE rows SET g = g || (1 + $wait)::numeric", "g = '{0.1, 2}'"),
        ("UPDATE rows SET x = x + 1 + $wait", "x = NULL"),
        ("UPDATE rows SET v = x + $wait", "doc = '{\"k\": 150, \"m\": [{\"x\": 1}]}'"),
        ("UPDATE rows SET doc = doc || jsonb_build_object('v', 5 + $wait)", "r = 3"),
        ("DELETE FROM lenient WHERE v IS NULL AND owner IS NULL AND _id + $wait = 1", "v = 2"),
        ("DELETE FROM lenient WHERE v IS NULL AND _id + $wait = 1", "v = NULL"),
    ] {
        router.psql(reset);
        let change = format!("UPDATE rows SET {change}");
        assert_eq!(with_change_between(&cluster, statement, &change), refused, "{statement} with {change}");
    }
    // What is not read may change; a document that is gone is not written.
    for (statement, meanwhile, rows) in [
        ("UPDATE rows SET v = v + 1 + $wait", "UPDATE rows SET r = 7, x = 5", 1),
        // The shards do this alone, and compare what there is.
        ("UPDATE hidden SET v = 77 + $wait", "UPDATE rows SET owner = 'eve'", 0),
        (
            "UPDATE rows SET x = x + 1 + $wait",
            "SELECT docshard.update_one('test.rows', '{\"_id\": 1}', '{\"$set\": {\"m.y\": 1}}')",
            1,
        ),
        ("UPDATE parts SET v = v + 1 + $wait", "DELETE FROM rows", 0),
        ("DELETE FROM parent WHERE v + $wait = 1", "UPDATE rows SET owner = 'eve'", 1),
        ("DELETE FROM hidden WHERE _id + $wait = 1", "DELETE FROM rows", 0),
    ] {
        router.psql(reset);
        assert_eq!(with_change_between(&cluster, statement, meanwhile), Ok(rows), "{statement} with {meanwhile}");
    }
}

/// Many sessions count in the same rows by different tables; nothing is lost.
#[test]
fn concurrent_updates_through_parents_and_views_are_not_lost() {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(
        "CREATE TABLE parts (k int, _id int, v int, r real) PARTITION BY RANGE (k); \
         CREATE FOREIGN TABLE low (_id int, v int, r real, k int) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE FOREIGN TABLE high (r real, k int, _id int, v int) SERVER docshard OPTIONS (namespace 'test.mixed'); \
         ALTER TABLE parts ATTACH PARTITION low FOR VALUES FROM (0) TO (150); ALTER TABLE parts ATTACH PARTITION high FOR VALUES FROM (150) TO (300); \
         CREATE VIEW barrier WITH (security_barrier) AS SELECT * FROM parts WHERE abs(v) >= 0; \
         CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$; \
         CREATE TRIGGER same BEFORE UPDATE ON high FOR EACH ROW EXECUTE FUNCTION same(); \
         INSERT INTO parts SELECT n * 50, n, 0, 0 FROM generate_series(0, 5) n",
    );
    let add = |sql, times| cluster.router.repeat(sql, times);
    let threads = [
        add("UPDATE parts SET v = v + 1", 15),
        add("UPDATE barrier SET v = v + 1 WHERE k IN (100, 200)", 15),
        add("UPDATE high SET v = v + 1, r = r + 1 WHERE _id = 4", 30),
        add("UPDATE low SET r = r + 1 WHERE _id = 2", 30),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    let mut client = cluster.router.client();
    let values = one::<String>(&mut client, "SELECT string_agg(v || ' ' || r, ', ' ORDER BY _id) FROM parts");
    assert_eq!(values, "15 0, 15 0, 30 30, 15 0, 60 30, 15 0");
}

/// An UPDATE that locks unchanged rows changes no row that another session has inserted since it began.
#[test]
fn an_update_that_locks_rows_changes_no_newer_ones() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_many('test.rows', ARRAY['{\"_id\": 1, \"k\": 150, \"n\": 60}', '{\"_id\": 2, \"k\": 151, \"n\": 100}']::jsonb[]); \
         CREATE FOREIGN TABLE rows (_id int, k int, n int) SERVER docshard OPTIONS (namespace 'test.rows')",
    );
    let (mut holder, mut writer, mut other) = (router.client(), router.client(), router.client());
    holder.batch_execute("BEGIN; UPDATE rows SET n = 61 WHERE _id = 1").unwrap();
    let running = std::thread::spawn(move || writer.execute("UPDATE rows SET n = 100 WHERE n > 50", &[]));
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')";
    wait_until("the update waits", Duration::from_secs(60), || cluster.shards[0].value::<i64>(waits) > 0);
    other.batch_execute("INSERT INTO rows (_id, k, n) VALUES (3, 152, 70)").unwrap();
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(running.join().unwrap().unwrap(), 2);
    assert_eq!(one::<i32>(&mut other, "SELECT n FROM rows WHERE _id = 3"), 70);
}

/// Rows that have the new values when an UPDATE begins, and are changed by a transaction that it waits for, are updated as those of a plain table are.
#[test]
fn an_update_waits_for_changes_of_rows_that_have_the_new_values() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_many('test.rows', ARRAY['{\"_id\": 1, \"k\": 150, \"n\": 100}', '{\"_id\": 2, \"k\": 151, \"n\": 100}', \
         '{\"_id\": 3, \"k\": 152}']::jsonb[]); \
         CREATE FOREIGN TABLE rows (_id int, k int, n int) SERVER docshard OPTIONS (namespace 'test.rows')",
    );
    for (first, second, count, values) in [
        ("UPDATE rows SET n = 101 WHERE _id = 1", "UPDATE rows SET n = 100 WHERE _id = 1", 1, "100, 100"),
        ("UPDATE rows SET n = 101 WHERE _id = 1", "UPDATE rows SET n = 100 WHERE n = 100", 1, "101, 100"),
        ("UPDATE rows SET n = 5 WHERE _id = 3", "UPDATE rows SET n = NULL WHERE _id = 3", 1, "100, 100"),
        ("DELETE FROM rows WHERE _id = 2", "UPDATE rows SET n = 100 WHERE _id < 3", 1, "100"),
    ] {
        router
            .psql("DELETE FROM rows; INSERT INTO rows (_id, k, n) VALUES (1, 150, 100), (2, 151, 100), (3, 152, NULL)");
        let (mut holder, mut writer) = (router.client(), router.client());
        holder.batch_execute(&format!("BEGIN; {first}")).unwrap();
        let running = std::thread::spawn(move || writer.execute(second, &[]));
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')";
        wait_until("the update waits", Duration::from_secs(60), || cluster.shards[0].value::<i64>(waits) > 0);
        holder.batch_execute("COMMIT").unwrap();
        assert_eq!(running.join().unwrap().unwrap(), count, "{first}; {second}");
        let seen = "SELECT string_agg(n::text, ', ' ORDER BY _id) FROM rows";
        assert_eq!(one::<String>(&mut holder, seen), values, "{first}; {second}");
    }
}

/// As in a plain table, an UPDATE locks a row that has the new value already: another session waits, or notices that the row has changed.
#[test]
fn an_update_that_changes_nothing_locks_its_rows() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(
        "SELECT docshard.insert_many('test.rows', ARRAY['{\"_id\": 1, \"k\": 50, \"n\": 100}', '{\"_id\": 2, \"k\": 150, \"n\": 5}']::jsonb[]); \
         CREATE FOREIGN TABLE rows (_id int, k int, n int, s text) SERVER docshard OPTIONS (namespace 'test.rows')",
    );
    for locking in [
        "UPDATE rows SET n = n WHERE _id = 1",
        "UPDATE rows SET n = n WHERE k = 50",
        "UPDATE rows SET n = 100 WHERE _id = 1 AND k = 50",
        "UPDATE rows SET n = 100 WHERE n > 50",
        "UPDATE rows SET s = NULL",
    ] {
        let (mut first, mut second) = (router.client(), router.client());
        first.batch_execute(&format!("BEGIN; {locking}")).unwrap();
        second.batch_execute("BEGIN; SET LOCAL lock_timeout = '300ms'").unwrap();
        assert_eq!(sqlstate_of(&mut second, locking), "55P03", "{locking}");
        second.batch_execute("ROLLBACK").unwrap();
        let seen: i32 = one(&mut first, "SELECT n FROM rows WHERE _id = 1");
        first.batch_execute(&format!("UPDATE rows SET n = {} WHERE _id = 1; ROLLBACK", seen + 1)).unwrap();
        assert!(second.execute(locking, &[]).unwrap() > 0, "{locking}");
    }
    // The second session counts on, or gets an error; it loses nothing.
    let add = |statement: &'static str| {
        let mut client = router.client();
        std::thread::spawn(move || {
            let mut done = 0;
            while done < 20 {
                client.batch_execute("BEGIN").unwrap();
                let added = client.execute(statement, &[]).and_then(|_| {
                    let seen: i32 = client.query_one("SELECT n FROM rows WHERE _id = 2", &[])?.get(0);
                    client.execute(&format!("UPDATE rows SET n = {} WHERE _id = 2", seen + 1), &[])
                });
                client.batch_execute(if added.is_ok() { "COMMIT" } else { "ROLLBACK" }).unwrap();
                done += i32::from(added.is_ok());
            }
        })
    };
    let threads = [add("UPDATE rows SET n = n WHERE _id = 2"), add("UPDATE rows SET s = NULL WHERE _id = 2")];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(one::<i32>(&mut router.client(), "SELECT n FROM rows WHERE _id = 2"), 45);
}

/// An INSERT of many large rows needs memory for some of them.
#[test]
fn an_insert_of_large_rows_keeps_few_of_them() {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(
        "CREATE FOREIGN TABLE rows (_id int, k int, s text) SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE TABLE parts (_id int, k int, s text) PARTITION BY LIST (_id); \
         CREATE FOREIGN TABLE part PARTITION OF parts DEFAULT SERVER docshard OPTIONS (namespace 'test.rows'); \
         CREATE TABLE stored AS SELECT n AS _id, n AS k, repeat('x', 4000000) AS s FROM generate_series(201, 260) n",
    );
    for insert in [
        "INSERT INTO rows SELECT n, n, repeat('x', 4000000) FROM generate_series(1, 60) n",
        "INSERT INTO parts SELECT n, n, repeat('x', 4000000) FROM generate_series(101, 160) n",
        "INSERT INTO rows SELECT * FROM stored",
        "INSERT INTO rows SELECT * FROM stored ON CONFLICT DO NOTHING",
    ] {
        let mut client = cluster.router.client();
        let backend: i32 = one(&mut client, "SELECT pg_backend_pid()");
        let inserted = client.execute(insert, &[]).unwrap();
        assert_eq!(inserted, if insert.ends_with("NOTHING") { 0 } else { 60 }, "{insert}");
        let status = std::fs::read_to_string(format!("/proc/{backend}/status")).unwrap();
        let size = |name: &str| -> u64 {
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok()).unwrap()
        };
        let most = size("VmHWM:") - size("RssShmem:");
        assert!(most < 200_000, "{insert}: {most} kB");
    }
}

/// A foreign table's owner, who chooses the collection, gets by others' use of the table only what the owner may read and write.
#[test]
fn a_tables_owner_needs_the_rights_too() {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql("SELECT docshard.insert_one('test.rows', '{\"_id\": 1, \"k\": 1}'), docshard.insert_one('test.open', '{\"_id\": 2, \"k\": 2}')");
    for role in ["bob", "adm"] {
        router.psql(&format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role}; GRANT USAGE ON SCHEMA {role} TO PUBLIC"));
    }
    router.psql("GRANT USAGE ON FOREIGN SERVER docshard TO bob");
    router.psql("SELECT docshard.grant_access('bob', '{\"read\": \"test.open\"}'), docshard.grant_access('adm', '{\"write\": \"test\"}')");
    let session = |role: &str| router.try_client_as(role, "postgres").unwrap();
    let (mut bob, mut adm) = (session("bob"), session("adm"));
    bob.batch_execute(
        "CREATE FOREIGN TABLE bob.t (_id int, k int, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'test.open'); GRANT ALL ON bob.t TO adm",
    )
    .unwrap();
    adm.batch_execute(
        "CREATE VIEW adm.v AS SELECT * FROM bob.t; \
         CREATE FUNCTION adm.f() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog BEGIN ATOMIC SELECT count(*) FROM bob.t; END; \
         GRANT ALL ON adm.v TO bob; GRANT EXECUTE ON FUNCTION adm.f TO bob",
    )
    .unwrap();
    assert_eq!(one::<i32>(&mut bob, "SELECT _id FROM adm.v"), 2);
    assert_eq!(one::<i64>(&mut bob, "SELECT adm.f()"), 1);
    // It may not write, so nobody may by its table.
    for write in ["INSERT INTO adm.v VALUES (3, 3)", "UPDATE adm.v SET k = 3", "DELETE FROM adm.v"] {
        assert_eq!(sqlstate_of(&mut bob, write), "42501", "{write}");
        assert_eq!(sqlstate_of(&mut adm, write), "42501", "{write}");
    }
    bob.batch_execute("ALTER FOREIGN TABLE bob.t OPTIONS (SET namespace 'test.rows')").unwrap();
    for read in [
        "SELECT * FROM adm.v",
        "SELECT adm.f()",
        "EXPLAIN VERBOSE SELECT * FROM adm.v WHERE k = 1",
        "SELECT count(*) FROM adm.v WHERE k = 1 LIMIT 0",
    ] {
        assert_eq!(sqlstate_of(&mut bob, read), "42501", "{read}");
    }
    let error = adm.query("SELECT * FROM bob.t", &[]).expect_err("its owner may not");
    assert_eq!(
        error.as_db_error().unwrap().hint(),
        Some("The owner of the foreign table \"t\" needs this right, too.")
    );
    // A view of docshard's is no way around, and neither are statistics of a parent.
    router.psql("SELECT docshard.create_collection('test.through', '{\"viewOn\": \"rows\"}'), docshard.create_collection('test.looked', '{\"viewOn\": \"open\", \
                 \"pipeline\": [{\"$lookup\": {\"from\": \"rows\", \"pipeline\": [], \"as\": \"k\"}}]}')");
    for view in ["through", "looked"] {
        bob.batch_execute(&format!("ALTER FOREIGN TABLE bob.t OPTIONS (SET namespace 'test.{view}')")).unwrap();
        assert_eq!(sqlstate_of(&mut adm, "SELECT doc FROM bob.t"), "42501", "{view}");
    }
    bob.batch_execute("ALTER FOREIGN TABLE bob.t OPTIONS (SET namespace 'test.rows')").unwrap();
    router.psql(
        "SELECT docshard.insert_many('test.rows', array_agg(jsonb_build_object('_id', n, 'k', 4711))) FROM generate_series(10, 19) n; \
         CREATE TABLE adm.par (_id int, k int) WITH (autovacuum_enabled = false); INSERT INTO adm.par SELECT n, 12 FROM generate_series(1, 20) n; \
         ALTER TABLE adm.par OWNER TO adm; GRANT SELECT ON adm.par TO bob; \
         CREATE FOREIGN TABLE adm.chi () INHERITS (adm.par) SERVER docshard OPTIONS (namespace 'test.open'); ALTER FOREIGN TABLE adm.chi OWNER TO bob",
    );
    bob.batch_execute("ALTER FOREIGN TABLE adm.chi OPTIONS (SET namespace 'test.rows')").unwrap();
    let values = |client: &mut Client| {
        one::<String>(
            client,
            "SELECT coalesce(string_agg(most_common_vals::text, ' '), 'none') FROM pg_stats WHERE tablename = 'par' AND attname = 'k'",
        )
    };
    assert_eq!(sqlstate_of(&mut adm, "SELECT * FROM adm.par"), "42501");
    adm.batch_execute("ANALYZE adm.par").unwrap();
    assert!(!values(&mut bob).contains("4711"), "{}", values(&mut bob));
    router.psql("ANALYZE adm.par; ANALYZE adm.chi");
    assert!(!values(&mut bob).contains("4711"), "{}", values(&mut bob));
    // What a table names and does not exist is created only if its owner may create it.
    bob.batch_execute("CREATE FOREIGN TABLE bob.fresh (_id int) SERVER docshard OPTIONS (namespace 'test.fresh'); GRANT ALL ON bob.fresh TO PUBLIC").unwrap();
    let mut superuser = router.client();
    assert_eq!(sqlstate_of(&mut superuser, "INSERT INTO bob.fresh VALUES (1)"), "42501");
    assert_eq!(
        router.value::<i64>("SELECT count(*) FROM docshard_catalog.collections WHERE namespace = 'test.fresh'"),
        0
    );
    router.psql("SELECT docshard.grant_access('bob', '{\"write\": \"test.rows\"}')");
    adm.batch_execute("ANALYZE adm.par").unwrap();
    assert!(values(&mut bob).contains("4711"), "{}", values(&mut bob));
    // Autovacuum reads no foreign table, also not as a child.
    router.psql("DELETE FROM pg_statistic WHERE starelid = 'adm.par'::regclass");
    router.psql("ALTER SYSTEM SET autovacuum_naptime = '1s'");
    router.psql("ALTER SYSTEM SET autovacuum = on");
    router.psql("SELECT pg_reload_conf(); ALTER TABLE adm.par SET (autovacuum_enabled = true, autovacuum_analyze_threshold = 1, autovacuum_analyze_scale_factor = 0); \
                 INSERT INTO adm.par SELECT n, 12 FROM generate_series(21, 40) n");
    wait_until("autovacuum has analysed the parent", Duration::from_secs(120), || {
        router.value::<bool>("SELECT autoanalyze_count > 0 FROM pg_stat_all_tables WHERE relid = 'adm.par'::regclass")
    });
    assert!(values(&mut bob).contains("12") && !values(&mut bob).contains("4711"), "{}", values(&mut bob));
    router.psql("SELECT docshard.delete_many('test.rows', '{\"_id\": {\"$gt\": 1}}')");
    assert_eq!(adm.execute("UPDATE bob.t SET k = 3", &[]).unwrap(), 1);
    assert_eq!(bob.execute("DELETE FROM adm.v", &[]).unwrap(), 1);
}
