//! Bad input through SQL: malformed values are refused with an error code and never stored, and no argument of any function
//! crashes a backend.

use docshard_core::query::vocabulary;
use docshard_tests::Cluster;
use postgres::Client;
use postgres::error::{ErrorPosition, SqlState};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The MongoDB code of an error.
fn code(error: &postgres::Error) -> Option<i64> {
    let detail = error.as_db_error()?.detail()?.strip_prefix("MongoDB error ")?;
    detail.split(' ').next()?.parse().ok()
}

/// Each value violates Extended JSON's specification.
fn malformed() -> Vec<Value> {
    let lines = include_str!("../../core/tests/data/malformed_ext_json.jsonl").lines();
    let values: Vec<Value> =
        lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON")["value"].clone()).collect();
    assert!(values.len() >= 180, "only {} values", values.len());
    values
}

#[test]
fn malformed_values_are_never_stored() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            r#"SELECT docshard.insert_one('bad.c', '{"_id": 1, "a": [1]}');
               SELECT docshard.shard_collection('bad.s', '{"a": 1}');
               SELECT docshard.insert_one('bad.s', '{"_id": 1, "a": 1}')"#,
        )
        .expect("two collections");
    for value in malformed() {
        let inside = json!({"_id": 2, "a": value}).to_string();
        let list = json!({"_id": 2, "a": [{"b": value}]}).to_string();
        let id = json!({"_id": value}).to_string();
        let set = json!({"$set": {"b": value}}).to_string();
        let push = json!({"$push": {"a": {"$each": [value]}}}).to_string();
        let mut attempts: Vec<(&str, [&str; 3])> = Vec::new();
        for document in [&inside, &list, &id] {
            attempts.push(("SELECT docshard.insert_one('bad.c', $1::text::jsonb)::text", [document, "", ""]));
            attempts.push(("SELECT docshard.insert_one('bad.s', $1::text::jsonb)::text", [document, "", ""]));
            attempts
                .push(("SELECT docshard.insert_many('bad.c', ARRAY['{}', $1::text::jsonb])::text", [document, "", ""]));
        }
        for update in [&set, &push] {
            attempts
                .push(("SELECT docshard.update_one('bad.c', '{\"_id\": 1}', $1::text::json)::text", [update, "", ""]));
            attempts.push(("SELECT docshard.update_many('bad.s', '{}', $1::text::json)::text", [update, "", ""]));
        }
        let replacement = json!({"a": value}).to_string();
        attempts.push((
            "SELECT docshard.replace_one('bad.c', '{\"_id\": 1}', $1::text::json)::text",
            [&replacement, "", ""],
        ));
        for (sql, [argument, ..]) in attempts {
            match client.query_one(sql, &[&argument]) {
                Ok(row) => panic!("{sql} takes {argument}: {:?}", row.get::<_, Option<String>>(0)),
                Err(error) => assert!(code(&error).is_some(), "{sql} of {argument}: {error:?}"),
            }
        }
    }
    for namespace in ["bad.c", "bad.s"] {
        let sql = "SELECT string_agg(d::text, ' ') FROM docshard.find($1::text) AS d";
        let found: String = client.query_one(sql, &[&namespace]).expect("a find").get(0);
        assert!(found == r#"{"a": [1], "_id": 1}"# || found == r#"{"a": 1, "_id": 1}"#, "{namespace}: {found}");
    }
}

/// A small generator of random numbers (xorshift), so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) as usize % n
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn json(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 12 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(9) as i64 - 4),
            3 => json!([i64::MAX, i64::MIN, 1 << 31][self.below(3)]),
            4 => json!([1.5, -0.0, 1e308][self.below(3)]),
            5 => json!(self.pick(TEXTS)),
            6 | 7 => (0..self.below(4)).map(|_| self.json(depth - 1)).collect(),
            _ => Value::Object(
                (0..self.below(4)).map(|_| (self.pick(&NAMES).to_owned(), self.json(depth - 1))).collect::<Map<_, _>>(),
            ),
        }
    }

    /// SQL for a random argument of that type.
    fn argument(&mut self, type_name: &str) -> String {
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        if self.below(20) == 0 {
            return format!("NULL::{type_name}");
        }
        match type_name {
            "json" | "jsonb" | "docshard.document" | "docshard.any_json" => {
                let json = if self.below(4) == 0 { self.json(3) } else { self.object(3) };
                format!("{}::{type_name}", literal(&json.to_string()))
            }
            "text" => match self.below(4) {
                0 => format!("{}::text", literal(&self.object(3).to_string())),
                1 => format!("{}::text", literal(self.pick(TEXTS))),
                _ => literal(self.pick(NAMESPACES)),
            },
            "character varying" => format!("{}::varchar", literal(self.pick(NAMESPACES))),
            "bytea" => {
                let digits: String = (0..self.below(40)).map(|_| format!("{:02x}", self.below(256))).collect();
                format!("'\\x{digits}'::bytea")
            }
            "boolean" => self.pick(&["true", "false"]).to_owned(),
            "integer" => self.pick(&["0", "1", "-1", "2147483647", "(-2147483648)"]).to_owned(),
            "bigint" => self.pick(&["0", "1", "-1", "9223372036854775807", "(-9223372036854775808)"]).to_owned(),
            "double precision" => self.pick(&["0", "1.5", "'NaN'", "'Infinity'"]).to_owned(),
            "text[]" => format!("ARRAY[{}]::text[]", literal(self.pick(TEXTS))),
            "bytea[]" => "ARRAY['\\x10'::bytea, '\\xff']".to_owned(),
            "jsonb[]" => {
                let documents: Vec<String> = (0..self.below(3)).map(|_| literal(&self.object(3).to_string())).collect();
                format!("ARRAY[{}]::jsonb[]", documents.join(", "))
            }
            other => format!("NULL::{other}"),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let fields = self.below(4);
        Value::Object((0..fields).map(|_| (self.pick(&NAMES).to_owned(), self.json(depth))).collect::<Map<_, _>>())
    }
}

const NAMESPACES: &[&str] =
    &["fuzz.c", "fuzz.s", "fuzz.h", "fuzz.none", "fuzz", "", ".", "a.b.c", "local", "shard0", "f c.d"];

const TEXTS: &[&str] = &[
    "",
    "a",
    "fuzz.c",
    "$a",
    "$$ROOT",
    "^a",
    "(a+)+$",
    "[",
    "hashed",
    "1",
    "NaN",
    "2020-01-01T00:00:00Z",
    "0123456789abcdef01234567",
    "{}",
    "[]",
    "{\"a\":",
    "ä",
    "SELECT 1",
    "host=127.0.0.1 port=1",
    "x'; --",
];

/// Paths, commands, options, and names that are in no table of the language.
const OWN_NAMES: &[&str] = &[
    "a",
    "b",
    "_id",
    "a.b",
    "a.0",
    "",
    ".",
    "$",
    "a.$",
    "a.$[]",
    "a.$[x]",
    "x",
    "sort",
    "projection",
    "skip",
    "limit",
    "upsert",
    "arrayFilters",
    "collation",
    "let",
    "hint",
    "ordered",
    "unique",
    "min",
    "max",
    "find",
    "filter",
    "insert",
    "documents",
    "update",
    "updates",
    "q",
    "u",
    "multi",
    "delete",
    "deletes",
    "findAndModify",
    "query",
    "new",
    "remove",
    "count",
    "distinct",
    "key",
    "aggregate",
    "pipeline",
    "cursor",
    "getMore",
    "killCursors",
    "createIndexes",
    "indexes",
    "listIndexes",
    "dropIndexes",
    "name",
    "ping",
    "hello",
    "collStats",
    "dbStats",
    "listCollections",
    "listDatabases",
    "batchSize",
    "insertOne",
    "updateOne",
    "document",
    "locale",
    "strength",
    "input",
    "as",
    "in",
];

/// Names with a meaning in some context.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| OWN_NAMES.iter().copied().chain(vocabulary::names()).collect());

/// Functions that are not called: they change the cluster permanently, or block.
const LEFT_OUT: &[&str] = &["add_shard", "remove_shard", "move_primary", "stop_balancer", "drop_database"];

/// The schema's functions with their argument types.
fn functions(client: &mut Client, schema: &str) -> Vec<(String, Vec<String>)> {
    let sql = "SELECT proname::text, ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) AS t)
               FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND prokind = 'f'
                 AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'internal'::regtype)
               ORDER BY 1";
    let rows = client.query(sql, &[&schema]).expect("functions");
    let all: Vec<(String, Vec<String>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(!all.is_empty(), "no functions in {schema}");
    all.into_iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())).collect()
}

/// Calls every function many times with random arguments of the right types. Errors are fine, except internal ones.
#[test]
fn nonsense_never_crashes_a_backend() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            r#"SET statement_timeout = '5s'; SET client_min_messages = error;
               SELECT docshard.insert_one('fuzz.c', '{"_id": 1, "a": [1, {"b": 2}], "b": "x"}');
               SELECT docshard.shard_collection('fuzz.s', '{"a": 1}');
               SELECT docshard.insert_one('fuzz.s', '{"_id": 1, "a": 1, "b": {"a": 1}}');
               SELECT docshard.shard_collection('fuzz.h', '{"_id": "hashed"}');
               SELECT docshard.insert_one('fuzz.h', '{"_id": 1, "a": null}')"#,
        )
        .expect("three collections");
    let public = functions(&mut client, "docshard");
    let internal = functions(&mut client, "docshard_internal");
    let mut random = Random(0x5EED_F00D);
    let rounds: usize = std::env::var("FUZZ_ROUNDS").ok().map_or(15, |n| n.parse().expect("FUZZ_ROUNDS is a number"));
    let (mut succeeded, mut failed) = (0, 0);
    for _ in 0..rounds {
        for (schema, functions) in [("docshard", &public), ("docshard_internal", &internal)] {
            for (name, types) in functions {
                let arguments: Vec<String> = types.iter().map(|t| random.argument(t)).collect();
                let sql = format!("SELECT * FROM {schema}.{name}({})", arguments.join(", "));
                let mut transaction = client.transaction().expect("the backend lives");
                let outcome = transaction.batch_execute(&sql);
                // Each call is rolled back, so that all calls see the same state.
                let rolled_back = transaction.rollback();
                match outcome {
                    Ok(()) => succeeded += 1,
                    Err(error) => {
                        let db =
                            error.as_db_error().unwrap_or_else(|| panic!("the backend is gone after {sql}: {error}"));
                        // pgrx raises this error for a null argument; users do not call internal functions.
                        let null = schema == "docshard_internal" && db.message().ends_with("must not be null");
                        let internal = *db.code() == SqlState::INTERNAL_ERROR && db.detail().is_none() && !null;
                        assert!(!internal && !db.message().contains("panicked"), "{sql}: {db:?}");
                        failed += 1;
                    }
                }
                rolled_back.unwrap_or_else(|e| panic!("the backend is gone after {sql}: {e}"));
            }
        }
    }
    assert!(succeeded > failed / 50, "{succeeded} of {} calls succeed: the input is too bad", succeeded + failed);
    let left: i64 = client.query_one("SELECT docshard.count_documents('fuzz.c')", &[]).expect("a count").get(0);
    assert_eq!(left, 1);
}

/// Valid commands, each with its database.
fn commands() -> Vec<(&'static str, Value)> {
    let documents = [
        json!({"insert": "c", "documents": [{"_id": 5, "a": 1}, {"a": [1, {"b": {"$numberLong": "5"}}]}], "ordered": false}),
        json!({"insert": "s", "documents": [{"a": 7}], "comment": "x"}),
        json!({"find": "c", "filter": {"a": {"$elemMatch": {"b": {"$gte": 1}}}}, "projection": {"a.$": 1, "b": 1}, "batchSize": 1}),
        json!({"find": "s", "filter": {"$or": [{"a": {"$in": [1, "x"]}}, {"b": {"$exists": true}}]}, "sort": {"a": -1, "_id": 1},
               "skip": 0, "limit": 5, "collation": {"locale": "en", "strength": 2}}),
        json!({"find": "h", "filter": {"$expr": {"$gt": [{"$add": ["$a", "$$n"]}, 1]}}, "let": {"n": 5}, "singleBatch": true}),
        json!({"find": "c", "filter": {"a": {"$not": {"$type": ["int", "string"]}}, "b": {"$regex": "^x", "$options": "i"}}}),
        json!({"getMore": {"$numberLong": "123"}, "collection": "c", "batchSize": 2}),
        json!({"killCursors": "c", "cursors": [{"$numberLong": "1"}, 2]}),
        json!({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}, "$push": {"a": {"$each": [1], "$slice": -3, "$sort": 1}}}, "upsert": true}]}),
        json!({"update": "s", "updates": [{"q": {}, "u": [{"$set": {"c": {"$concat": ["$b", "!"]}}}, {"$unset": "b"}], "multi": true}], "ordered": false}),
        json!({"update": "c", "updates": [{"q": {"a": {"$size": 2}}, "u": {"$set": {"a.$[x].b": 3}}, "arrayFilters": [{"x.b": {"$gt": 1}}]}]}),
        json!({"update": "h", "updates": [{"q": {"_id": 1}, "u": {"a": 5}}, {"q": {"_id": 2}, "u": {"$currentDate": {"t": {"$type": "date"}}}}]}),
        json!({"update": "c", "updates": [{"q": {"a": 1}, "u": {"$pull": {"a": {"b": 2}}, "$bit": {"n": {"or": 5}}, "$rename": {"b": "z"}}}]}),
        json!({"delete": "c", "deletes": [{"q": {"a": {"$mod": [4, 0]}}, "limit": 0}, {"q": {"_id": 9}, "limit": 1}]}),
        json!({"findAndModify": "c", "query": {"_id": 1}, "update": {"$addToSet": {"a": {"$each": [5]}}}, "new": true, "fields": {"a": {"$slice": 1}}, "sort": {"b": 1}}),
        json!({"findAndModify": "s", "query": {"a": 1}, "remove": true, "collation": {"locale": "de", "numericOrdering": true}}),
        json!({"count": "c", "query": {"b": "x"}, "skip": 1, "limit": 3}),
        json!({"distinct": "c", "key": "a.b", "query": {"_id": {"$lt": 5}}}),
        json!({"create": "new"}),
        json!({"createIndexes": "c", "indexes": [{"key": {"b": 1, "c": -1}, "name": "b_1", "unique": false}]}),
        json!({"dropIndexes": "c", "index": ["b_1"]}),
        json!({"listIndexes": "c", "cursor": {"batchSize": 1}}),
        json!({"listCollections": 1, "filter": {"name": "c"}, "nameOnly": true}),
        json!({"collStats": "c", "scale": 1}),
        json!({"dbStats": 1}),
        json!({"drop": "h"}),
        json!({"hello": 1}),
        json!({"getLastError": 1}),
        json!({"buildInfo": 1}),
        json!({"listCommands": 1}),
    ];
    let administration = [
        json!({"listDatabases": 1, "filter": {"name": {"$regex": "^f"}}}),
        json!({"shardCollection": "fuzz.d", "key": {"a": 1, "b": "hashed"}, "unique": false, "numInitialChunks": 2}),
        json!({"split": "fuzz.s", "middle": {"a": 5}}),
        json!({"split": "fuzz.s", "find": {"a": 5}}),
        json!({"mergeChunks": "fuzz.s", "bounds": [{"a": {"$minKey": 1}}, {"a": {"$maxKey": 1}}]}),
        json!({"moveChunk": "fuzz.s", "find": {"a": 5}, "to": "shard0"}),
        json!({"moveRange": "fuzz.s", "min": {"a": 5}, "max": {"a": 9}, "toShard": "shard0"}),
        json!({"addShardToZone": "shard0", "zone": "EU"}),
        json!({"removeShardFromZone": "shard0", "zone": "EU"}),
        json!({"updateZoneKeyRange": "fuzz.s", "min": {"a": 1}, "max": {"a": 3}, "zone": null}),
        json!({"balancerStatus": 1}),
        json!({"getShardMap": 1}),
        json!({"flushRouterConfig": "fuzz.s"}),
        json!({"enableSharding": "other", "primaryShard": "shard0"}),
        json!({"listShards": 1}),
    ];
    let config = [
        json!({"find": "chunks", "filter": {"ns": "fuzz.s"}, "sort": {"min": 1}}),
        json!({"find": "settings", "projection": {"_id": 1}}),
        json!({"count": "shards", "query": {"host": {"$exists": true}}}),
        json!({"distinct": "collections", "key": "_id"}),
    ];
    let within = |database| move |command| (database, command);
    let documents = documents.into_iter().map(within("fuzz"));
    documents
        .chain(administration.into_iter().map(within("admin")))
        .chain(config.into_iter().map(within("config")))
        .collect()
}

impl Random {
    /// Damages one place of a document: a value or a field's name.
    fn mutate(&mut self, json: &mut Value) {
        // Rarely at the root, so that the command's name mostly stays.
        let deeper = self.below(5) > 0;
        match json {
            Value::Object(fields) if deeper && !fields.is_empty() => {
                let at = self.below(fields.len());
                if let Some(value) = fields.values_mut().nth(at) {
                    self.mutate(value);
                }
            }
            Value::Array(elements) if deeper && !elements.is_empty() => {
                let at = self.below(elements.len());
                self.mutate(&mut elements[at]);
            }
            Value::Object(fields) => {
                let at = self.below(fields.len() + 1);
                let name = fields.keys().nth(at).cloned();
                match (self.below(3), name) {
                    (0, Some(name)) => {
                        fields.remove(&name);
                    }
                    (1, Some(name)) => {
                        let value = fields.remove(&name).unwrap_or(Value::Null);
                        fields.insert(self.pick(&NAMES).to_owned(), value);
                    }
                    _ => {
                        fields.insert(self.pick(&NAMES).to_owned(), self.json(2));
                    }
                }
            }
            Value::Array(elements) => match self.below(3) {
                0 => elements.clear(),
                1 => elements.push(self.json(2)),
                _ => elements.extend(elements.clone()),
            },
            value => {
                *value = match self.below(4) {
                    0 => json!([value]),
                    1 => json!({ self.pick(&NAMES): value }),
                    _ => self.json(2),
                }
            }
        }
    }
}

/// A command that cannot return its answer has no effect. Errors escape zero bytes, which neither messages nor jsonb can
/// contain.
#[test]
fn what_cannot_be_answered_is_not_done() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    let mut run = |command: &Value| -> Value {
        let sql = "SELECT docshard.run_command('bad', $1::text::json)";
        client.query_one(sql, &[&command.to_string()]).unwrap_or_else(|e| panic!("{command}: {e:?}")).get(0)
    };
    let count =
        |run: &mut dyn FnMut(&Value) -> Value, query: Value| run(&json!({"count": "c", "query": query}))["n"].clone();
    assert_eq!(run(&json!({"insert": "c", "documents": [{"_id": 1, "n": 0}]}))["n"], 1);

    // This nests as deep as a document may, so an answer that contains it nests too deep.
    let deep = (0..98).fold(json!(1), |inside, _| json!({"a": inside}));
    let update = json!({"update": "c", "updates": [
        {"q": {"_id": 1}, "u": {"$set": {"n": 1}}}, {"q": {"_id": deep}, "u": {"$set": {"deep": 1}}, "upsert": true},
    ]});
    let answer = run(&update);
    assert_eq!((&answer["ok"], &answer["codeName"]), (&json!(0), &json!("DocumentTooDeep")), "{answer}");
    assert_eq!(count(&mut run, json!({"$or": [{"deep": 1}, {"n": 1}]})), 0);

    let update = json!({"update": "c", "updates": [
        {"q": {"_id": 1}, "u": {"$set": {"n": 2}}}, {"q": {"_id": 1}, "u": {"$no\0thing": {"n": 3}}},
    ]});
    let answer = run(&update);
    assert_eq!((&answer["ok"], &answer["nModified"]), (&json!(1), &json!(1)), "{answer}");
    assert!(answer["writeErrors"][0]["errmsg"].as_str().unwrap().contains("$no\\u0000thing"), "{answer}");
    assert_eq!(count(&mut run, json!({"n": 2})), 1);

    for (command, quoted) in [
        (json!({"find": "c\0"}), "c\\u0000"),
        (json!({"no\0thing": 1}), "no\\u0000thing"),
        (json!({"find": "c", "no\0thing": 1}), "find.no\\u0000thing"),
        (json!({"find": "c", "filter": {"$no\0thing": 1}}), "$no\\u0000thing"),
        (json!({"insert": "c", "documents": [{"_id": 2}], "no\0thing": 1}), "no\\u0000thing"),
    ] {
        let answer = run(&command);
        assert_eq!(answer["ok"], 0, "{command}: {answer}");
        assert!(answer["errmsg"].as_str().unwrap().contains(quoted), "{command}: {answer}");
    }
    let error = client.query("SELECT docshard.find('bad.c', '{}', '{\"no\\u0000thing\": 1}')", &[]).unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "unknown option \"no\\u0000thing\" of find");
}

/// Runs slightly damaged commands: each gets an answer, none an internal error. `FUZZ_SEED` chooses others.
#[test]
fn mutated_commands_are_answered() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    client
        .batch_execute(
            r#"SET statement_timeout = '5s'; SET client_min_messages = error;
               SELECT docshard.insert_many('fuzz.c', ARRAY['{"_id": 1, "a": [1, {"b": 2}], "b": "x"}', '{"_id": 2, "a": 5, "n": 1}']::jsonb[]);
               SELECT docshard.shard_collection('fuzz.s', '{"a": 1}');
               SELECT docshard.insert_one('fuzz.s', '{"_id": 1, "a": 1, "b": "y"}');
               SELECT docshard.shard_collection('fuzz.h', '{"_id": "hashed"}');
               SELECT docshard.insert_one('fuzz.h', '{"_id": 1, "a": null}')"#,
        )
        .expect("three collections");
    let run = |client: &mut Client, database: &str, command: &Value| {
        let mut transaction = client.transaction().expect("the backend lives");
        let sql = "SELECT docshard.run_command($1::text, $2::text::json)";
        let answer = transaction.query_one(sql, &[&database, &command.to_string()]).map(|row| row.get::<_, Value>(0));
        // Each command is rolled back, so that all commands see the same state.
        transaction.rollback().unwrap_or_else(|e| panic!("the backend is gone after {command}: {e}"));
        answer
    };
    let commands = commands();
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |n| n.parse::<usize>().expect("a number"));
    let mut random = Random(0xC0FF_EE00 + number("FUZZ_SEED", 0) as u64);
    let (mut succeeded, mut failed) = (0, 0);
    for _ in 0..number("FUZZ_ROUNDS", 30) {
        for (database, command) in &commands {
            let mut command = command.clone();
            for _ in 0..1 + random.below(2) {
                random.mutate(&mut command);
            }
            match run(&mut client, database, &command) {
                Ok(answer) => {
                    let errors = answer["writeErrors"].as_array().into_iter().flatten().chain([&answer]);
                    for error in errors {
                        let internal = error["codeName"] == "InternalError" || error["codeName"] == "UnknownError";
                        assert!(!internal, "{database}: {command}: {answer}");
                    }
                    if answer["ok"] == 1 { succeeded += 1 } else { failed += 1 }
                }
                Err(error) => {
                    let db = error.as_db_error().unwrap_or_else(|| panic!("no answer to {command}: {error}"));
                    assert_ne!(*db.code(), SqlState::INTERNAL_ERROR, "{database}: {command}: {db:?}");
                    failed += 1;
                }
            }
        }
    }
    assert!(succeeded > failed / 10, "{succeeded} of {} commands succeed: too much is spoilt", succeeded + failed);
}

/// docshard's hooks are around statements that have nothing to do with it. Their errors have all fields.
#[test]
fn errors_of_other_statements_are_whole() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    client.batch_execute("CREATE TABLE u (a int PRIMARY KEY)").unwrap();
    let mut error = |sql: &str| {
        let error = client.batch_execute(sql).expect_err(sql);
        error.as_db_error().expect("the server's").clone()
    };
    let raised = error(
        "DO $$BEGIN RAISE 'x' USING ERRCODE = 'ABC01', COLUMN = 'c', TABLE = 't', DETAIL = 'd', HINT = 'h'; END$$",
    );
    assert_eq!((raised.code().code(), raised.column(), raised.table()), ("ABC01", Some("c"), Some("t")));
    assert_eq!((raised.detail(), raised.hint()), (Some("d"), Some("h")));
    assert_eq!(raised.where_(), Some("PL/pgSQL function inline_code_block line 1 at RAISE"));
    let unknown = error("CREATE TABLE v (a int, b nosuch)");
    assert_eq!(unknown.position(), Some(&ErrorPosition::Original(26)));
    // A statement in a statement: each adds its context once.
    let inner = error("DO $$BEGIN EXECUTE 'CREATE TABLE v (b nosuch)'; END$$");
    let query = "CREATE TABLE v (b nosuch)".to_owned();
    assert_eq!(inner.position(), Some(&ErrorPosition::Internal { position: 19, query }));
    assert_eq!(inner.where_(), Some("PL/pgSQL function inline_code_block line 1 at EXECUTE"));
    let nested = error("DO $$BEGIN EXECUTE 'CREATE TABLE u ()'; END$$");
    let lines = "SQL statement \"CREATE TABLE u ()\"\nPL/pgSQL function inline_code_block line 1 at EXECUTE";
    assert_eq!((nested.code(), nested.where_()), (&SqlState::DUPLICATE_TABLE, Some(lines)));
    let copied = (|| {
        let mut writer = client.copy_in("COPY u FROM STDIN")?;
        std::io::Write::write_all(&mut writer, b"1\n1\n").expect("it is sent");
        writer.finish()
    })()
    .expect_err("a duplicate");
    let copied = copied.as_db_error().expect("the server's");
    assert_eq!((copied.constraint(), copied.where_()), (Some("u_pkey"), Some("COPY u, line 2")));
}
