//! Random statements over foreign tables, whose collections are on several shards, return the same as over plain tables with the same rows,
//! also while chunks move.

use docshard_tests::{Cluster, is_thorough};
use fastrand::Rng;
use postgres::Client;
use serde_json::{Value, json};
use std::fmt::Write;

/// Sharded by ranges of `k`, as [`Cluster::spread`] does.
const NS: &str = "test.rows";

/// A value of a document with the SQL literal that its column has; None: the field is missing.
type Cell = (Option<Value>, String);

const NULL: &str = "NULL";

/// Strings whose orders by bytes and by a language differ, with characters that patterns and JSON escape.
const STRINGS: &[&str] = &[
    "",
    "a",
    "A",
    "b",
    "ab",
    "aB",
    "a%b",
    "a_b",
    "a\\b",
    "é",
    "z",
    "Z",
    "10",
    "5",
    "true",
    "{\"x\": 1}",
    "5.50",
    "\u{1F600}",
    "a\u{E000}",
];
const UUIDS: &[&str] = &[
    "00000000-0000-0000-0000-000000000001",
    "7f000000-0000-4000-8000-000000000000",
    "ffffffff-ffff-4fff-bfff-ffffffffffff",
];
const DATES: &[(&str, &str)] = &[
    ("1969-12-31T23:59:59.999Z", "1969-12-31 23:59:59.999+00"),
    ("2024-02-29T00:00:00Z", "2024-02-29 00:00:00+00"),
    ("2026-01-01T12:34:56.789Z", "2026-01-01 12:34:56.789+00"),
];
const COLUMNS: &str =
    "id int, k int, a int, l bigint, s text, f float8, n numeric, t timestamptz, b boolean, u uuid, o text, g text[]";

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn pick<'a, T>(random: &mut Rng, from: &'a [T]) -> &'a T {
    &from[random.usize(..from.len())]
}

/// A value for each column after `id` and `k`, most of them not NULL.
fn cells(random: &mut Rng) -> Vec<(&'static str, Cell)> {
    let mut cells = Vec::new();
    for column in ["a", "l", "s", "f", "n", "t", "b", "u", "o", "g"] {
        let cell = match random.u8(..10) {
            0 => (None, NULL.to_owned()),
            1 => (Some(Value::Null), NULL.to_owned()),
            _ => value(random, column),
        };
        cells.push((column, cell));
    }
    cells
}

fn value(random: &mut Rng, column: &str) -> Cell {
    match column {
        "a" => {
            let n = random.i32(-3..8);
            (Some(if random.bool() { json!(n) } else { json!({"$numberDecimal": n.to_string()}) }), n.to_string())
        }
        "l" => {
            let n = *pick(random, &[0, 1, -1, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1]);
            (Some(json!(n)), n.to_string())
        }
        "s" => {
            let s = pick(random, STRINGS);
            (Some(json!(s)), quoted(s))
        }
        "f" => {
            let (json, sql) = pick(
                random,
                &[
                    (json!(0.1), "0.1"),
                    (json!({"$numberDecimal": "0.1"}), "0.1"),
                    (json!(0.30000000000000004), "0.30000000000000004"),
                    (json!(5), "5"),
                    (json!({"$numberDouble": "NaN"}), "'NaN'"),
                    (json!({"$numberDouble": "Infinity"}), "'Infinity'"),
                    (json!({"$numberDouble": "-Infinity"}), "'-Infinity'"),
                    (json!({"$numberDouble": "-0.0"}), "'-0'"),
                    (json!(-2.5), "-2.5"),
                ],
            )
            .clone();
            (Some(json), sql.to_owned())
        }
        "n" => {
            let (json, sql) = pick(
                random,
                &[
                    (json!(0.1), "0.1"),
                    (json!({"$numberDecimal": "0.1"}), "0.1"),
                    (json!({"$numberDecimal": "12345678901234567890.123"}), "12345678901234567890.123"),
                    (json!(5), "5"),
                    (json!({"$numberDecimal": "5.00"}), "5.00"),
                    (json!({"$numberDecimal": "NaN"}), "'NaN'"),
                    (json!({"$numberDecimal": "-Infinity"}), "'-Infinity'"),
                    (json!(-7), "-7"),
                ],
            )
            .clone();
            (Some(json), sql.to_owned())
        }
        "t" => {
            let (json, sql) = pick(random, DATES);
            (Some(json!({"$date": json})), quoted(sql))
        }
        "b" => {
            let b = random.bool();
            (Some(json!(b)), b.to_string())
        }
        "u" => {
            let text = *pick(random, UUIDS);
            (Some(json!({"$uuid": text})), quoted(text))
        }
        "o" => {
            let text = format!("{:024x}", random.u8(..4));
            (Some(json!({"$oid": text})), quoted(&text))
        }
        _ => {
            let items: Vec<&str> = (0..random.usize(..3)).map(|_| *pick(random, &["a", "b", "x y"])).collect();
            let literals: Vec<String> = items.iter().map(|item| quoted(item)).collect();
            (Some(json!(items)), format!("ARRAY[{}]::text[]", literals.join(", ")))
        }
    }
}

/// A value that no column but `doc` can have.
fn misfit(random: &mut Rng, column: &str) -> Value {
    let all = [
        json!([1, "a"]),
        json!({"x": 5}),
        json!({"$timestamp": {"t": 1, "i": 1}}),
        json!("text"),
        json!(true),
        json!(4.5),
        json!([[5]]),
    ];
    loop {
        let value = pick(random, &all).clone();
        let fits = match (&value, column) {
            (Value::String(_), "s") | (Value::Bool(_), "b") => true,
            (Value::Number(_), column) => matches!(column, "f" | "n"),
            _ => false,
        };
        if !fits {
            return value;
        }
    }
}

struct Tables {
    cluster: Cluster,
}

/// Foreign tables `strict` and `lenient`, and plain tables `strict_rows` and `lenient_rows` with what they should have.
fn tables(random: &mut Rng) -> Tables {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client.batch_execute("SELECT docshard.create_index('test.rows', '{\"a\": 1}')").unwrap();
    client.batch_execute("SELECT docshard.create_index('test.rows', '{\"s\": 1, \"t\": -1}')").unwrap();
    client.batch_execute("SELECT docshard.shard_collection('test.mixed', '{\"_id\": \"hashed\"}')").unwrap();
    client.batch_execute("SELECT docshard.create_index('test.mixed', '{\"a\": 1}')").unwrap();
    for (namespace, name, options, misfits) in
        [(NS, "strict", "", 0), ("test.mixed", "lenient", ", on_mismatch 'null'", 3)]
    {
        let columns = COLUMNS
            .replace("id int", "id int OPTIONS (path '_id')")
            .replace("o text", "o text OPTIONS (type 'objectId')");
        let mut sql = format!(
            "CREATE FOREIGN TABLE {name} ({columns}, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace '{namespace}'{options}); \
             CREATE TABLE {name}_rows ({COLUMNS}, doc jsonb);"
        );
        let mut documents = Vec::new();
        for id in 0..400 {
            let k = random.i32(0..300);
            let mut document = json!({"_id": id, "k": k});
            let mut literals = vec![id.to_string(), k.to_string()];
            for (column, (json, literal)) in cells(random) {
                let is_misfit = misfits > 0 && random.usize(..misfits) == 0;
                let json = if is_misfit { Some(misfit(random, column)) } else { json };
                literals.push(if is_misfit { NULL.to_owned() } else { literal });
                if let Some(json) = json {
                    document[column] = json;
                }
            }
            write!(sql, "INSERT INTO {name}_rows VALUES ({});", literals.join(", ")).unwrap();
            documents.push(document.to_string());
        }
        client.batch_execute(&sql).unwrap();
        client
            .execute("SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])", &[&namespace, &documents])
            .unwrap();
        let fill =
            format!("UPDATE {name}_rows SET doc = d FROM docshard.find('{namespace}') d WHERE (d ->> '_id')::int = id");
        client.batch_execute(&fill).unwrap();
    }
    Tables { cluster }
}

/// A random literal for comparisons with a column, not always one that occurs.
fn literal(random: &mut Rng, column: &str) -> String {
    if random.u8(..12) == 0 {
        return "NULL".to_owned();
    }
    match column {
        "id" | "k" => random.i32(-1..400).to_string(),
        "t" if random.bool() => {
            let more = ["'infinity'", "'-infinity'", "'2024-02-29 00:00:00.0005+00'", "'1969-12-31 23:59:59.9985+00'"];
            format!("{}::timestamptz", pick(random, &more))
        }
        "a" if random.bool() => pick(random, &["2147483648", "-3000000000", "5::int2", "5::int8"]).to_string(),
        "s" if random.bool() => pick(random, &["'aa'", "'a\u{7F}'", "'Ab'", "'zz'"]).to_string(),
        "o" if random.bool() => {
            pick(random, &["'00000000000000000000000A'", "'x'", "'000000000000000000000001 '"]).to_string()
        }
        _ => {
            let text = value(random, column).1;
            let kind = match column {
                "f" => "::float8",
                "n" => "::numeric",
                "t" => "::timestamptz",
                "u" => "::uuid",
                _ => "",
            };
            format!("{text}{kind}")
        }
    }
}

const KEYS: &[&str] = &["a", "g", "x", "a.x", "$a", ""];
const SCALARS: &[&str] = &["id", "k", "a", "l", "s", "f", "n", "t", "b", "u", "o"];

/// A random condition.
fn condition(random: &mut Rng, depth: usize) -> String {
    if depth > 0 && random.bool() {
        let (one, two) = (condition(random, depth - 1), condition(random, depth - 1));
        return match random.u8(..3) {
            0 => format!("({one} AND {two})"),
            1 => format!("({one} OR {two})"),
            _ => format!("(NOT ({one}))"),
        };
    }
    let column = *pick(random, SCALARS);
    match random.u8(..16) {
        0..=5 => {
            let operator = pick(random, &["=", "=", "<>", "<", "<=", ">", ">="]);
            let collate = if column == "s" && random.bool() { " COLLATE \"C\"" } else { "" };
            let literal = literal(random, column);
            if random.bool() {
                format!("{column} {operator} {literal}{collate}")
            } else {
                format!("{literal} {operator} {column}{collate}")
            }
        }
        6 => format!("{column} IS NULL"),
        7 => format!("{column} IS NOT NULL"),
        8 => {
            let list: Vec<String> = (0..random.usize(1..4)).map(|_| literal(random, column)).collect();
            format!("{column} {} ({})", pick(random, &["IN", "NOT IN"]), list.join(", "))
        }
        9 => format!("{column} BETWEEN {} AND {}", literal(random, column), literal(random, column)),
        10 => {
            let pattern = pick(random, &["a%", "a\\%%", "a\\_b", "%b", "_", "a_b", "", "\u{1F600}%", "é%"]);
            format!("s {} {}", pick(random, &["LIKE", "NOT LIKE", "ILIKE"]), quoted(pattern))
        }
        11 => pick(
            random,
            &[
                "b",
                "NOT b",
                "b IS TRUE",
                "b IS NOT TRUE",
                "b IS FALSE",
                "b IS UNKNOWN",
                "g = ARRAY['a']",
                "'a' = ANY (g)",
                "g @> ARRAY['b']",
            ],
        )
        .to_string(),
        12 => {
            let contained = [
                json!({"a": 5}),
                json!({"s": "a"}),
                json!({"g": ["a"]}),
                json!({"f": 0.1}),
                json!({"a": null}),
                json!({"x": {}}),
                json!({"a": {"x": 5}}),
                json!({"g": []}),
                json!({"n": 5, "b": true}),
                json!({}),
                json!([]),
                json!("a"),
                json!({"o": {"$oid": "000000000000000000000001"}}),
                json!({"a": [[5]]}),
                json!({"a": [1, "a"]}),
            ];
            format!("doc @> {}", quoted(&pick(random, &contained).to_string()))
        }
        13 => format!("doc ? {}", quoted(pick::<&str>(random, KEYS))),
        14 => {
            let field = pick(
                random,
                &[
                    "doc ->> 'a'",
                    "doc ->> 's'",
                    "doc ->> 'f'",
                    "doc #>> '{g,0}'",
                    "doc #>> '{g,-1}'",
                    "doc -> 'a' ->> 'x'",
                    "doc ->> 'b'",
                    "doc #>> '{a,x}'",
                ],
            );
            let texts = ["'5'", "'a'", "'true'", "'0.1'", "'10'", "'5.50'", "'{\"x\": 1}'", "'[1, \"a\"]'", "NULL"];
            let text = pick(random, &texts);
            match random.u8(..3) {
                0 => format!("{field} = {text}"),
                1 => format!("{field} <> {text}"),
                _ => format!("{field} IN ({text}, {})", pick(random, &texts)),
            }
        }
        _ => format!("(doc ->> '_id')::int {} {}", pick(random, &["=", "<", ">="]), random.i32(0..400)),
    }
}

/// A random order, with or without a limit; it ends with the id, so that there is only one.
fn order(random: &mut Rng) -> String {
    let mut keys = Vec::new();
    for _ in 0..random.usize(..3) {
        let column = pick(random, SCALARS);
        let direction = pick(random, &["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]);
        let collate = if *column == "s" && random.bool() { " COLLATE \"C\"" } else { "" };
        keys.push(format!("{column}{collate}{direction}"));
    }
    keys.push("id".to_owned());
    let mut order = format!("ORDER BY {}", keys.join(", "));
    if random.bool() {
        write!(order, " LIMIT {}", random.usize(..30)).unwrap();
        if random.bool() {
            write!(order, " OFFSET {}", random.usize(..20)).unwrap();
        }
    }
    order
}

/// Random groups: keys, aggregates, and a condition on them.
fn groups(random: &mut Rng) -> (String, String) {
    let call = |random: &mut Rng| match random.u8(..8) {
        0 => "count(*)".to_owned(),
        1 => format!("count({})", pick(random, SCALARS)),
        2 => format!("sum({})", pick(random, &["id", "k", "a", "l", "n"])),
        3 => format!("avg({})", pick(random, &["id", "k", "a", "l", "n"])),
        4 | 5 => {
            let column = pick(random, &["id", "k", "a", "l", "s", "s COLLATE \"C\"", "o COLLATE \"C\"", "t", "f"]);
            format!("{}({column})", pick(random, &["min", "max"]))
        }
        6 => format!("count(DISTINCT {})", pick(random, SCALARS)),
        _ => format!("count(*) FILTER (WHERE {})", pick(random, &["a > 2", "b", "s IS NULL"])),
    };
    let columns = ["a", "l", "s", "t", "b", "o", "u", "k"];
    let mut keys: Vec<&str> = (0..random.usize(..3)).map(|_| *pick(random, &columns)).collect();
    keys.dedup();
    if random.u8(..6) == 0 && !keys.is_empty() {
        return (format!("DISTINCT {}", keys.join(", ")), String::new());
    }
    let mut columns: Vec<String> = keys.iter().map(ToString::to_string).collect();
    // Two aggregates at most, so that most statements have none that PostgreSQL must evaluate.
    columns.extend((0..random.usize(1..3)).map(|_| call(random)));
    let mut tail = if keys.is_empty() { String::new() } else { format!(" GROUP BY {}", keys.join(", ")) };
    if random.u8(..4) == 0 {
        write!(tail, " HAVING {} {}", call(random), pick(random, &["IS NOT NULL", "IS NULL"])).unwrap();
    }
    (columns.join(", "), tail)
}

fn ids(client: &mut Client, sql: &str) -> Result<Vec<i32>, postgres::Error> {
    Ok(client.query(sql, &[])?.iter().map(|row| row.get(0)).collect())
}

#[test]
fn random_statements_return_what_they_return_from_a_plain_table() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let tables = tables(&mut random);
    let mut client = tables.cluster.router.client();
    for name in ["strict", "lenient"] {
        // Every value of every column is what it should be.
        let different = format!(
            "SELECT count(*) FROM (TABLE {name} EXCEPT ALL TABLE {name}_rows UNION ALL (TABLE {name}_rows EXCEPT ALL TABLE {name})) d"
        );
        assert_eq!(client.query_one(&different, &[]).unwrap().get::<_, i64>(0), 0, "{name}, seed {seed}");
    }
    let compare_groups = |random: &mut Rng, client: &mut Client| {
        let name = *pick(random, &["strict", "strict", "strict", "lenient"]);
        let condition = if random.u8(..4) == 0 { "true".to_owned() } else { condition(random, 1) };
        let (columns, tail) = groups(random);
        let sql = |table: &str| {
            format!("SELECT (g.*)::text FROM (SELECT {columns} FROM {table} WHERE {condition}{tail}) g ORDER BY 1")
        };
        let read = |client: &mut Client, table: &str| {
            let rows = client.query(&sql(table), &[])?;
            Ok::<_, postgres::Error>(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>())
        };
        match (read(client, &format!("{name}_rows")), read(client, name)) {
            (Ok(wanted), Ok(found)) => assert_eq!(found, wanted, "{}, seed {seed}", sql(name)),
            (Err(wanted), _) => {
                assert_eq!(wanted.code().map(|code| code.code()), Some("22P02"), "{}, seed {seed}", sql(name))
            }
            (Ok(_), Err(found)) => panic!("{}, seed {seed}: {found:?}", sql(name)),
        }
    };
    let compare = |random: &mut Rng, client: &mut Client| {
        if random.u8(..3) == 0 {
            return compare_groups(random, client);
        }
        let name = *pick(random, &["strict", "strict", "lenient"]);
        let (condition, order) = (condition(random, 2), order(random));
        let sql = |table: &str| format!("SELECT id FROM {table} WHERE {condition} {order}");
        let wanted = ids(client, &sql(&format!("{name}_rows")));
        let found = ids(client, &sql(name));
        match (wanted, found) {
            (Ok(wanted), Ok(found)) => assert_eq!(found, wanted, "{}, seed {seed}", sql(name)),
            // A cast of a text that is no number.
            (Err(wanted), Err(found)) => assert_eq!(found.code(), wanted.code(), "{}, seed {seed}", sql(name)),
            // A shard may have left out the row that cannot be cast.
            (Err(wanted), Ok(_)) => {
                assert_eq!(wanted.code().map(|code| code.code()), Some("22P02"), "{}, seed {seed}", sql(name))
            }
            (Ok(_), Err(found)) => panic!("{}, seed {seed}: {found:?}", sql(name)),
        }
    };
    let rounds = if is_thorough() { 20_000 } else { 1000 };
    for _ in 0..rounds {
        compare(&mut random, &mut client);
    }
    // So they do in parallel mode, in which PostgreSQL forbids much, after each change of the catalog.
    let names = "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')";
    let setting: String = client.query_one(names, &[]).unwrap().get(0);
    client.batch_execute(&format!("SET {setting} = on")).unwrap();
    for round in 0..rounds / 5 {
        if round % 20 == 0 {
            tables.cluster.router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": {}}}')", 10 + round / 20));
        }
        compare(&mut random, &mut client);
    }
    // So does a nested loop that gives the scan one value at a time.
    client.batch_execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off").unwrap();
    for column in SCALARS {
        let joined = |table: &str| {
            format!(
                "SELECT x.id FROM strict_rows r JOIN {table} x ON x.{column} = r.{column} AND x.k > r.k WHERE r.id < 20 ORDER BY x.id, r.id"
            )
        };
        assert_eq!(
            ids(&mut client, &joined("strict")).unwrap(),
            ids(&mut client, &joined("strict_rows")).unwrap(),
            "{column}, seed {seed}"
        );
    }
    // And a join by batches, where a column has an index.
    client.batch_execute("SET enable_nestloop = off").unwrap();
    let mut batched = 0;
    for column in SCALARS {
        for (name, kind) in [("strict", "JOIN"), ("strict", "LEFT JOIN"), ("lenient", "JOIN"), ("lenient", "LEFT JOIN")]
        {
            let key = match (random.u8(..3), *column) {
                (0, "a" | "k" | "id") => format!("r.{column}::int8"),
                (1, "a" | "k" | "id") => format!("(r.{column} + 1)"),
                _ => format!("r.{column}"),
            };
            let joined = |table: &str| {
                format!(
                    "SELECT coalesce(x.id, -1) FROM {name}_rows r {kind} {table} x ON x.{column} = {key} AND x.k > r.k - 50 WHERE coalesce(x.k, 0) < 250 ORDER BY 1, r.id"
                )
            };
            let plan: String = client
                .query(&format!("EXPLAIN {}", joined(name)), &[])
                .unwrap()
                .iter()
                .map(|row| row.get::<_, String>(0))
                .collect();
            batched += usize::from(plan.contains("docshard batched join"));
            assert_eq!(
                ids(&mut client, &joined(name)).unwrap(),
                ids(&mut client, &joined(&format!("{name}_rows"))).unwrap(),
                "{}, seed {seed}",
                joined(name)
            );
        }
    }
    assert!(batched >= 8, "{batched} joins by batches");
    client.batch_execute("RESET ALL; SET plan_cache_mode = force_generic_plan").unwrap();
    for sql in ["a = $1 AND k < $2 ORDER BY id", "k = $1 OR a > $2 ORDER BY id", "k > $1 ORDER BY k DESC, id LIMIT $2"]
    {
        let [of_table, of_rows] = ["strict", "strict_rows"].map(|table| {
            let kinds = [postgres::types::Type::INT4, postgres::types::Type::INT8];
            let sql = format!("SELECT id FROM {table} WHERE {}", sql.replace("< $2", "< $2::int8"));
            client.prepare_typed(&sql, &kinds).unwrap()
        });
        for _ in 0..20 {
            let (one, two) = (random.i32(0..10), random.i64(1..300));
            let read = |client: &mut Client, statement| -> Vec<i32> {
                client.query(statement, &[&one, &two]).unwrap().iter().map(|row| row.get(0)).collect()
            };
            assert_eq!(
                read(&mut client, &of_table),
                read(&mut client, &of_rows),
                "{sql} with {one}, {two}, seed {seed}"
            );
        }
    }
    client.batch_execute("RESET ALL").unwrap();
    let moves = [
        (NS, json!({"k": 150}), "shard1"),
        (NS, json!({"k": 50}), "shard0"),
        (NS, json!({"k": 250}), "local"),
        (NS, json!({"k": 150}), "local"),
    ];
    tables.cluster.while_chunks_move(&moves, || compare(&mut random, &mut client));
    client.batch_execute(&format!("SET {setting} = on")).unwrap();
    tables.cluster.while_chunks_move(&moves[..1], || compare(&mut random, &mut client));
}
