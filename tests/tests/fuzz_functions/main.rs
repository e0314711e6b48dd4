//! Calls every function that an application's role may call with malformed arguments, inside running servers.
//!
//! A call may fail, but not with an internal error, a lost connection, or after a longer time than `statement_timeout`. Arguments
//! are damaged copies of what a router really sends, recorded from the servers, or nonsense. `DOCSHARD_SEED` chooses them;
//! a failure is reported with the seed and the number of the call. `make soak SECONDS=…` runs longer.

mod examples;

use docshard_tests::Cluster;
use examples::{NAMES, NAMESPACES, TEXTS, examples};
use fastrand::Rng;
use postgres::{Client, SimpleQueryMessage};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);
/// For each function the number of its calls, and of successful ones.
type Calls = BTreeMap<String, (u64, u64)>;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

const SETUP: &str = r#"
    SELECT docshard.stop_balancer();
    SELECT docshard.insert_many('fuzz.c', ARRAY['{"_id": 1, "a": [1, {"b": 2}], "b": "x"}', '{"_id": 2, "a": 5, "n": 1}',
      '{"_id": {"x": 1}, "a": {"$date": "2026-01-01T00:00:00Z"}, "b": "y"}']::jsonb[]);
    SELECT docshard.create_index('fuzz.c', '{"b": 1}', '{"unique": true, "partialFilterExpression": {"b": {"$exists": true}}}');
    SELECT docshard.create_index('fuzz.c', '{"a": 1, "n": -1}');
    SELECT docshard.create_index('fuzz.c', '{"$**": 1}');
    SELECT docshard.create_index('fuzz.c', '{"n": "hashed"}');
    SELECT docshard.shard_collection('fuzz.s', '{"a": 1}');
    SELECT docshard.split_at('fuzz.s', '{"a": 10}');
    SELECT docshard.move_chunk('fuzz.s', '{"a": 10}', 'shard0');
    SELECT docshard.insert_many('fuzz.s', array_agg(jsonb_build_object('_id', n, 'a', n, 'b', 'text ' || n % 3))) FROM generate_series(1, 20) n;
    SELECT docshard.create_index('fuzz.s', '{"b": 1, "a": 1}');
    SELECT docshard.shard_collection('fuzz.h', '{"_id": "hashed"}');
    SELECT docshard.insert_many('fuzz.h', array_agg(jsonb_build_object('_id', n, 'a', null))) FROM generate_series(1, 9) n;
    CREATE ROLE fuzz_app LOGIN;
    SELECT docshard.grant_access('fuzz_app')"#;

/// A collection at one node, as a router addresses it, with an existing document.
#[derive(Clone, Debug)]
struct Target {
    id: String,
    token: String,
    version: String,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    place: String,
    skey: String,
    id: String,
    doc: String,
    packed: String,
}

/// A session, and the objects on its node.
struct Session {
    name: &'static str,
    client: Client,
    targets: Vec<Target>,
    indexes: Vec<String>,
    /// keys, entries and types of indexes
    keys: Vec<String>,
}

fn rows(client: &mut Client, sql: &str) -> Vec<Vec<String>> {
    let messages = client.simple_query(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    });
    rows.collect()
}

fn targets(client: &mut Client) -> Vec<Target> {
    let placed = rows(client, "SELECT collection_id, token, version FROM docshard_data.placement ORDER BY 1");
    let target = |row: Vec<String>| {
        let sql = format!(
            "SELECT ctid, skey, id, doc, docshard_internal.pack(doc) FROM docshard_data.c{} ORDER BY skey, id LIMIT 5",
            row[0]
        );
        let documents = rows(client, &sql).into_iter().map(|row| {
            let [place, skey, id, doc, packed] = <[String; 5]>::try_from(row).expect("five columns");
            Row { place, skey, id, doc, packed }
        });
        let documents = documents.collect();
        Target { id: row[0].clone(), token: row[1].clone(), version: row[2].clone(), rows: documents }
    };
    placed.into_iter().map(target).collect()
}

/// Keys that the indexes have stored for the documents.
fn keys(client: &mut Client, targets: &[Target]) -> Vec<String> {
    let mut all = Vec::new();
    for (keys, target) in examples("keys").iter().flat_map(|keys| targets.iter().map(move |target| (keys, target))) {
        for row in &target.rows {
            let (doc, keys) = (quote(&row.doc), quote(&keys.to_string()));
            let sql = format!(
                "SELECT docshard_internal.index_types({doc}, {keys}) UNION SELECT docshard_internal.index_key({doc}, {keys}, 0)
                 UNION SELECT unnest(docshard_internal.index_entries({doc}, {keys})) ORDER BY 1 LIMIT 5"
            );
            all.extend(rows(client, &sql).into_iter().map(|mut row| row.remove(0)));
        }
    }
    all
}

/// A function: its name, and its arguments' names and types.
#[derive(Debug)]
struct Function {
    name: String,
    variadic: bool,
    arguments: Vec<(String, String)>,
}

/// All functions that an application's role may call.
fn functions(client: &mut Client) -> Vec<Function> {
    let sql = "SELECT p.pronamespace::regnamespace || '.' || p.proname,
                 ARRAY(SELECT coalesce(p.proargnames[n], '') FROM generate_subscripts(p.proargtypes, 1) AS s, LATERAL (SELECT s + 1) AS o (n) ORDER BY n),
                 ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n) ORDER BY n),
                 p.provariadic <> 0
               FROM pg_proc p WHERE p.pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace)
                 AND has_schema_privilege('fuzz_app', p.pronamespace, 'USAGE') AND has_function_privilege('fuzz_app', p.oid, 'EXECUTE')
                 AND p.prokind IN ('f', 'a') AND NOT 'internal'::regtype = ANY (p.proargtypes)
                 AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'internal'::regtype)
               ORDER BY 1, p.proargtypes::text";
    let rows = client.query(sql, &[]).expect("functions");
    let function = |row: &postgres::Row| {
        let (names, types): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
        Function { name: row.get(0), variadic: row.get(3), arguments: names.into_iter().zip(types).collect() }
    };
    let all: Vec<_> = rows.iter().map(function).collect();
    assert!(all.len() > 60, "only {} functions", all.len());
    all
}

struct Fuzz {
    rng: Rng,
    /// the call that is made has arguments as users write them
    plain: bool,
}

impl Function {
    fn call(&self, mut arguments: Vec<String>, variadic: bool) -> String {
        if let Some(last) = arguments.last_mut().filter(|_| self.variadic && variadic) {
            *last = format!("VARIADIC {last}");
        }
        format!("SELECT {}({})", self.name, arguments.join(", "))
    }
}

impl Fuzz {
    fn arguments(&mut self, function: &Function, target: &Target, session: &Session) -> Vec<String> {
        self.plain = self.one_in(5);
        function.arguments.iter().map(|argument| self.argument(&function.name, argument, target, session)).collect()
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.rng.usize(0..from.len())]
    }

    fn json(&mut self, depth: u32) -> Value {
        match self.rng.u32(0..if depth == 0 { 7 } else { 12 }) {
            0 => Value::Null,
            1 => json!(self.rng.bool()),
            2 => json!(self.rng.i64(-4..5)),
            3 => json!(*self.pick(&[i64::MAX, i64::MIN, 1 << 31, 1 << 53])),
            4 => json!(*self.pick(&[1.5, -0.0, 1e308, 5e-324])),
            5 => json!(*self.pick(TEXTS)),
            6 => json!("long ".repeat(self.rng.usize(0..600))),
            7 | 8 => (0..self.rng.u32(0..4)).map(|_| self.json(depth - 1)).collect(),
            _ => {
                let fields = (0..self.rng.u32(0..4)).map(|_| ((*self.pick(&NAMES)).to_owned(), self.json(depth - 1)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }

    /// Damages one place of a document.
    fn mutate(&mut self, json: &mut Value) {
        let deeper = !self.one_in(4);
        match json {
            Value::Object(fields) if deeper && !fields.is_empty() => {
                let at = self.rng.usize(0..fields.len());
                if let Some(value) = fields.values_mut().nth(at) {
                    self.mutate(value);
                }
            }
            Value::Array(elements) if deeper && !elements.is_empty() => {
                let at = self.rng.usize(0..elements.len());
                self.mutate(&mut elements[at]);
            }
            Value::Object(fields) => {
                let name = (*self.pick(&NAMES)).to_owned();
                let value = self.json(2);
                fields.insert(name, value);
            }
            Value::Array(elements) => match self.rng.u32(0..3) {
                0 => elements.clear(),
                1 => elements.push(self.json(2)),
                _ => elements.extend(elements.clone()),
            },
            value => *value = if self.rng.bool() { self.json(2) } else { json!([value]) },
        }
    }

    fn example(&mut self, purpose: &str) -> String {
        let examples = examples(purpose);
        if self.plain {
            // Most options are another function's.
            return if purpose == "options" { &examples[0] } else { self.pick(&examples) }.to_string();
        }
        if self.one_in(12) {
            return self.json(3).to_string();
        }
        let mut json = self.pick(&examples).clone();
        for _ in 0..*self.pick(&[0, 0, 1, 1, 2, 3]) {
            self.mutate(&mut json);
        }
        let mut text = json.to_string();
        if self.one_in(30) {
            let mut at = self.rng.usize(0..=text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            text.truncate(at);
        }
        // Deeper than a parser may recurse.
        if self.one_in(200) {
            let deep = self.rng.usize(50..5_000);
            text = format!("{}{text}{}", "[".repeat(deep), "]".repeat(deep));
        }
        text
    }

    /// Hexadecimal digits of bytes, some of them damaged.
    fn spoil(&mut self, hex: &str) -> String {
        let mut bytes: Vec<u8> =
            (0..hex.len() / 2).filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        for _ in 0..*self.pick(&[0, 1, 1, 2, 5]) {
            let at = self.rng.usize(0..=bytes.len());
            match self.rng.u32(0..5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.rng.u8(..)),
                2 => bytes.extend_from_within(at..),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = *self.pick(&[0, 1, 0x7f, 0x80, 0xff, *byte ^ 1, byte.wrapping_add(16)]);
                    }
                }
            }
        }
        bytes.truncate(1 << 16);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn garbage(&mut self) -> String {
        (0..self.rng.u32(0..60)).map(|_| format!("{:02x}", self.rng.u8(..))).collect()
    }

    fn bytes(&mut self, name: &str, target: &Target, session: &Session) -> String {
        let of_indexes = ["types", "column", "lo", "hi", "entrie", "range"].contains(&name);
        if of_indexes && !session.keys.is_empty() && !self.one_in(4) {
            let key = self.pick(&session.keys).trim_start_matches("\\x").to_owned();
            return if self.one_in(3) { self.spoil(&key) } else { key };
        }
        let row = if target.rows.is_empty() || self.one_in(15) { None } else { Some(self.pick(&target.rows).clone()) };
        let Some(row) = row else { return self.garbage() };
        let digits = |text: &str| text.trim_start_matches("\\x").to_owned();
        let exact = match name {
            "skey" | "lo" | "hi" => digits(&row.skey),
            "id" => digits(&row.id),
            "documents" => {
                let parts = [&row.skey, &row.id, &row.packed].map(|part| digits(part));
                parts.iter().map(|part| format!("{:08x}{part}", part.len() / 2)).collect()
            }
            "document" | "bytes" => digits(&row.packed),
            _ => {
                let parts = [row.skey, row.id, row.packed];
                digits(self.pick::<String>(&parts))
            }
        };
        if self.one_in(3) { self.spoil(&exact) } else { exact }
    }

    /// SQL for a random argument.
    fn argument(
        &mut self,
        function: &str,
        (name, kind): &(String, String),
        target: &Target,
        session: &Session,
    ) -> String {
        if !self.plain && self.one_in(25) {
            return format!("NULL::{kind}");
        }
        let exact = self.plain || !self.one_in(10);
        let internal = function.starts_with("docshard_internal.");
        let purpose = match name.as_str() {
            "filter" | "query" => "filter",
            "update" | "replacement" if internal => "internal update",
            "update" | "replacement" => "update",
            "keys" | "sort" | "pattern" | "key" => "keys",
            "setting" => "setting",
            other => other,
        };
        match kind.as_str() {
            "json" | "jsonb" | "docshard.document" | "docshard.any_json" => {
                let text = match name.as_str() {
                    "doc" | "before" | "document" if exact && (internal || !self.plain) && !target.rows.is_empty() => {
                        self.pick(&target.rows).doc.clone()
                    }
                    _ => self.example(purpose),
                };
                let text = quote(&text);
                if kind == "docshard.any_json" && self.one_in(2) {
                    format!("{text}::jsonb::{kind}")
                } else {
                    format!("{text}::{kind}")
                }
            }
            "character varying" => {
                let text = self.argument(function, &(name.clone(), "text".to_owned()), target, session);
                format!("({text})::varchar")
            }
            "text" | "name" => {
                let text = match name.as_str() {
                    "ns" | "namespace" if exact => (*self.pick(&NAMESPACES[..5])).to_owned(),
                    "verbosity" if exact => (*self.pick(&["queryPlanner", "executionStats"])).to_owned(),
                    "query" if exact => "SELECT jsonb_build_object('a', n) FROM generate_series(1, 3) AS n".to_owned(),
                    "schema" if exact => "public".to_owned(),
                    "db" | "database" if exact => (*self.pick(&["fuzz", "config", "admin"])).to_owned(),
                    "filter" | "update" | "keys" | "sort" | "projection" | "setting" | "pattern" | "key" | "work" => {
                        self.example(purpose)
                    }
                    _ if self.one_in(3) => (*self.pick(NAMESPACES)).to_owned(),
                    _ if self.one_in(3) => self.example(purpose),
                    _ => (*self.pick(TEXTS)).to_owned(),
                };
                format!("{}::{kind}", quote(&text))
            }
            // Of a session of the current role, and of a command.
            "bytea" if name == "number" && exact => {
                "int8send(7) || int4send((SELECT oid FROM pg_roles WHERE rolname = current_user)::int4) \
                 || decode(repeat('07', 16), 'hex') || convert_to('update fuzz.c', 'UTF8')"
                    .to_owned()
            }
            "bytea" => format!("'\\x{}'::bytea", self.bytes(name, target, session)),
            "tid" => match self.rng.u32(0..5) {
                0 => format!(
                    "'({},{})'::tid",
                    self.pick(&[0, 1, 7, u32::MAX, u32::MAX - 1]),
                    self.pick(&[0, 1, 200, 65535])
                ),
                _ => target.rows.first().map_or("'(0,1)'::tid".to_owned(), |_| {
                    let row = self.pick(&target.rows);
                    format!("'{}'::tid", row.place)
                }),
            },
            "boolean" => self.rng.bool().to_string(),
            "smallint" => self.pick(&["0::int2", "1::int2", "(-32768)::int2", "32767::int2"]).to_string(),
            "integer" => match name.as_str() {
                "collection" if exact => target.id.clone(),
                "index" if exact && !session.indexes.is_empty() => self.pick(&session.indexes).clone(),
                _ => self.pick(&["0", "1", "2", "-1", "64", "2147483647", "(-2147483648)"]).to_string(),
            },
            "bigint" => match name.as_str() {
                "token" if exact => target.token.clone(),
                "version" if exact => target.version.clone(),
                _ => self
                    .pick(&["0", "1", "-1", "4294967296", "9223372036854775807", "(-9223372036854775808)"])
                    .to_string(),
            },
            "double precision" | "real" | "numeric" => {
                format!("{}::{kind}", self.pick(&["0", "1.5", "'NaN'", "'Infinity'", "-1e308"]))
            }
            "timestamp with time zone" => {
                format!(
                    "{}::timestamptz",
                    self.pick(&["now()", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-12-31'"])
                )
            }
            array if array.ends_with("[]") => {
                let element = array.trim_end_matches("[]").to_owned();
                let items: Vec<String> = (0..self.rng.u32(0..4))
                    .map(|_| {
                        self.argument(
                            function,
                            &(name.trim_end_matches('s').to_owned(), element.clone()),
                            target,
                            session,
                        )
                    })
                    .collect();
                match self.rng.u32(0..20) {
                    0 => format!("ARRAY[ARRAY[{}]]::{array}", items.join(", ")),
                    1 => format!("'[-2147483648:-2147483647]={{NULL,NULL}}'::{array}"),
                    _ => format!("ARRAY[{}]::{array}", items.join(", ")),
                }
            }
            other => format!("NULL::{other}"),
        }
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// SQLSTATEs of internal errors, and of ended sessions and connections.
const WRONG: [&str; 8] = ["XX000", "XX001", "XX002", "57P01", "57P02", "08006", "08001", "08007"];

/// Starts a cluster, and opens the sessions in which functions are called; returns these functions, too.
fn begin() -> (Cluster, Vec<Session>, Vec<Function>) {
    let cluster = Cluster::start(1);
    let mut admin = cluster.router.client();
    for statement in SETUP.split(";\n") {
        admin.batch_execute(statement).unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }
    let functions = functions(&mut admin);
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    // The role cannot log in at a shard: the router's service role switches to it there.
    let service = shard.psql("SELECT role FROM docshard_data.service").trim().to_owned();
    let as_app = |node: &docshard_tests::Node, login: &str| {
        let mut client = node.try_client_as(login, "postgres").expect("a session");
        client.batch_execute("SET ROLE fuzz_app").expect("it is the role, or acts for it");
        client
    };
    let clients = [
        ("router, application", as_app(router, "fuzz_app"), router),
        ("shard, application", as_app(shard, &service), shard),
        ("router, superuser", router.client(), router),
        ("shard, superuser", shard.client(), shard),
    ];
    let sessions = clients
        .into_iter()
        .map(|(name, mut client, node)| {
            let mut reader = node.client();
            let indexes =
                "SELECT substring(relname FROM '^i([0-9]+)$') FROM pg_class WHERE relname ~ '^i[0-9]+$' ORDER BY oid";
            let limits = format!("SET statement_timeout = {}; SET client_min_messages = error", TIMEOUT.as_millis());
            client.batch_execute(&limits).expect("settings");
            let indexes = rows(&mut reader, indexes).into_iter().map(|mut row| row.remove(0)).collect();
            let targets = targets(&mut reader);
            let keys = keys(&mut reader, &targets);
            Session { name, client, targets, indexes, keys }
        })
        .collect();
    (cluster, sessions, functions)
}

/// Calls functions until the time is over; returns how often each was called, and succeeded.
fn fuzz(seed: u64, time: Duration) -> Calls {
    println!("SEED={seed}");
    let (cluster, mut sessions, functions) = begin();
    let mut fuzz = Fuzz { rng: Rng::with_seed(seed), plain: false };
    let mut calls = Calls::new();
    let began = Instant::now();
    let mut count: u64 = 0;
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    while began.elapsed() < time && failures.len() < 20 {
        count += 1;
        let at = fuzz.rng.usize(0..sessions.len());
        let session = &sessions[at];
        let function = fuzz.pick(&functions);
        let target = fuzz.pick(&session.targets).clone();
        let arguments = fuzz.arguments(function, &target, session);
        let sql = function.call(arguments, !fuzz.one_in(10));
        let session = &mut sessions[at];
        let what = |problem: &str| format!("SEED={seed}, call {count}, {}: {problem}\n{sql}", session.name);
        session.client.batch_execute("BEGIN").unwrap_or_else(|e| panic!("{}", what(&format!("no session: {e:?}"))));
        let started = Instant::now();
        let outcome = session.client.simple_query(&sql).map(drop);
        let took = started.elapsed();
        assert!(took < TIMEOUT * 2, "{}", what(&format!("took {took:?}")));
        let entry = calls.entry(function.name.clone()).or_default();
        entry.0 += 1;
        match &outcome {
            Ok(()) => entry.1 += 1,
            Err(error) => {
                let Some(db) = error.as_db_error() else {
                    panic!("{}", what(&format!("the session is lost: {error:?}")))
                };
                if WRONG.contains(&db.code().code())
                    || ["panicked", "statement timeout"].iter().any(|m| db.message().contains(m))
                {
                    let problem = format!("{} {}: {}", function.name, db.code().code(), db.message());
                    failures.entry(problem).or_insert_with(|| what(&format!("{db:?}")));
                }
            }
        }
        session.client.batch_execute("ROLLBACK").unwrap_or_else(|e| panic!("{}", what(&format!("no session: {e:?}"))));
    }
    let failures: Vec<String> = failures.into_values().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // All calls were rolled back.
    for (namespace, expected) in [("fuzz.c", 3), ("fuzz.s", 20), ("fuzz.h", 9)] {
        let left: i64 = cluster.router.value(&format!("SELECT docshard.count_documents('{namespace}')"));
        assert_eq!(left, expected, "{namespace}");
    }
    let called = |(name, (called, succeeded)): (&String, &(u64, u64))| format!("{name} {succeeded}/{called}");
    println!("{count} calls: {}", calls.iter().map(called).collect::<Vec<_>>().join(", "));
    calls
}

/// Checks that enough calls succeed: arguments must not be so bad that every call fails early.
fn check(calls: &Calls) {
    let never: Vec<_> = calls.iter().filter(|(_, (called, succeeded))| *called > 100 && *succeeded == 0).collect();
    let (called, succeeded) = calls.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(succeeded * 8 > called, "{succeeded} of {called} calls succeed: the input is too bad\n{calls:?}");
    assert!(never.len() <= 5, "never succeeded: {never:?}");
}

#[test]
fn malformed_arguments_are_refused_in_order() {
    let seconds = number("DOCSHARD_FUZZ_SECONDS").unwrap_or(30);
    check(&fuzz(number("DOCSHARD_SEED").unwrap_or(1), Duration::from_secs(seconds)));
}

/// The levels that PostgreSQL accepts in a value of type json or jsonb with `max_stack_depth` at its default.
const DEEP: usize = 5_000;

/// SQL of deep values of a type.
fn deep(kind: &str) -> Vec<String> {
    let nested = |levels: usize| {
        let arrays = format!("(E'{{\"a\":' || repeat('[', {levels}) || repeat(']', {levels}) || '}}')");
        let objects = format!("(repeat('{{\"a\":', {levels}) || '1' || repeat('}}', {levels}))");
        [arrays, objects]
    };
    // Steps that each add 60 levels, where an expression is evaluated.
    let levels = (0..60).fold(json!("$$value"), |inner, _| json!({"a": inner}));
    let reduced = json!({"$type": {"$reduce": {"input": {"$range": [0, 2000]}, "initialValue": "$b", "in": levels}}});
    let expressions = [
        json!({"$expr": {"$eq": [reduced, "x"]}}),
        json!({"x": reduced}),
        json!([{"$set": {"x": reduced}}]),
        json!({"update": [{"$set": {"x": reduced}}]}),
        json!({"stages": [{"$set": {"x": reduced}}], "onDisk": true, "source": {"scan": {}}}),
        json!({"aggregate": "c", "pipeline": [{"$set": {"x": reduced}}], "cursor": {}}),
    ];
    let expressions = expressions.iter().map(|json| quote(&json.to_string()));
    match kind.trim_end_matches("[]") {
        "json" | "jsonb" | "docshard.document" | "docshard.any_json" | "text" => {
            [250, DEEP].into_iter().flat_map(nested).chain(expressions).collect()
        }
        // The jsonb of nested arrays, and the encoding of nested arrays as a key.
        "bytea" => {
            let mut bytes = vec![];
            let mut length = 4 + 8 * (DEEP - 1);
            for _ in 1..DEEP {
                length -= 8;
                bytes.extend(0x4000_0001u32.to_ne_bytes());
                bytes.extend((0xD000_0000u32 | length as u32).to_ne_bytes());
            }
            bytes.extend(0x4000_0000u32.to_ne_bytes());
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            vec![format!("'\\x{hex}'::bytea"), format!("'\\x{}'::bytea", "60".repeat(100_000))]
        }
        _ => vec![],
    }
}

/// Whatever is nested, and however deep: a function may refuse it, but no stack overflows.
#[test]
fn deep_arguments_are_refused_in_order() {
    let (cluster, mut sessions, functions) = begin();
    let mut fuzz = Fuzz { rng: Rng::with_seed(1), plain: false };
    let mut refused = 0;
    // An application's roles, at the router and at a shard.
    for session in &mut sessions[..2] {
        for function in &functions {
            for (at, (_, kind)) in function.arguments.iter().enumerate() {
                for value in deep(kind) {
                    let target = fuzz.pick(&session.targets).clone();
                    let mut arguments = fuzz.arguments(function, &target, session);
                    arguments[at] = match kind.strip_suffix("[]") {
                        Some(element) => format!("ARRAY[({value})::{element}]"),
                        None => format!("({value})::{kind}"),
                    };
                    let sql = function.call(arguments, true);
                    let shown = || format!("{}: {}", session.name, sql.get(..2_000).unwrap_or(&sql));
                    session.client.batch_execute("BEGIN").expect("a session");
                    match session.client.simple_query(&sql) {
                        Ok(_) => {}
                        Err(error) => {
                            let Some(db) = error.as_db_error() else {
                                panic!("the session is lost: {error:?}\n{}", shown())
                            };
                            assert!(!WRONG.contains(&db.code().code()), "{db:?}\n{}", shown());
                            refused +=
                                usize::from(db.detail().is_some_and(|detail| detail.contains("DocumentTooDeep")));
                        }
                    }
                    session.client.batch_execute("ROLLBACK").expect("a session");
                }
            }
        }
    }
    assert!(refused > 100, "only {refused} values were refused for their depth");
    let left: i64 = cluster.router.value("SELECT docshard.count_documents('fuzz.s')");
    assert_eq!(left, 20);
}

/// Any role may call `run_pipeline`, but only routers give it the text of a statement.
#[test]
fn only_the_router_sends_statements() {
    let (cluster, mut sessions, _) = begin();
    let work =
        json!({"stages": [], "onDisk": true, "source": {"select": {"sql": "SELECT '\\x00'::bytea", "params": []}}});
    for session in &mut sessions {
        let target = &session.targets[0];
        let sql = format!(
            "SELECT docshard_internal.run_pipeline({}, {}, {}, {})",
            target.id,
            target.token,
            target.version,
            quote(&work.to_string())
        );
        let error = session.client.simple_query(&sql).expect_err(&sql);
        let code = error.as_db_error().map(|db| db.code().code().to_owned());
        // The router logs in as the service role.
        let expected = if session.name == "shard, application" { "22023" } else { "42501" };
        assert_eq!(code.as_deref(), Some(expected), "{}: {error:?}", session.name);
    }
    // The router's own statements find the documents by an index, here and at the shard.
    let pipeline = r#"[{"$match": {"b": {"$gte": "text 1"}}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]"#;
    for (namespace, options) in [("fuzz.s", r#"{"hint": {"b": 1, "a": 1}}"#), ("fuzz.s", "{}")] {
        let found: String =
            cluster.router.value(&format!("SELECT docshard.aggregate('{namespace}', '{pipeline}', '{options}')->>'n'"));
        assert_eq!(found, "14", "{namespace}");
    }
}

/// Runs for DOCSHARD_SOAK_SECONDS, with a new seed unless one is given.
#[test]
#[ignore = "runs for as long as one likes: make soak SECONDS=600"]
fn soak() {
    let seconds = number("DOCSHARD_SOAK_SECONDS").unwrap_or(60);
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| Rng::new().u64(0..1_000_000));
    check(&fuzz(seed, Duration::from_secs(seconds)));
}
