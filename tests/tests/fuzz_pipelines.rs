//! Random pipelines from a grammar, inside running servers, over unsharded and sharded documents of all types.
//!
//! A pipeline may be refused or fail, but not with an internal error, a lost connection or a timeout.
//! Names of stages, accumulators, window functions and expressions are those of the language's tables, so new ones
//! are included; arguments mostly have the form that they need. `DOCSHARD_SEED` chooses the pipelines, and a failure is reported with
//! the seed and the pipeline. `make soak SECONDS=…` runs longer.

use docshard_core::query::vocabulary;
use docshard_tests::Cluster;
use fastrand::Rng;
use postgres::Client;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

const SETUP: &str = r#"
    SELECT docshard.stop_balancer();
    SELECT docshard.insert_many('fuzz.c', ARRAY['{"_id": 1, "a": [1, {"b": 2}, [3]], "b": "x", "d": {"$date": "2026-01-31T00:00:00Z"}}',
      '{"_id": 2, "a": 5, "n": 1.5, "c": {"a": 1, "b": [2, 3]}}', '{"_id": {"x": 1}, "a": {"$date": "1970-01-01T00:00:00Z"}, "b": "Ý"}',
      '{"_id": 4, "n": {"$numberDecimal": "1E+6000"}, "b": null, "a": []}', '{"_id": 5, "n": {"$numberDouble": "NaN"}, "a": {"$oid": "0123456789abcdef01234567"}}',
      '{"_id": 6, "n": 9223372036854775807, "a": {"$binary": {"base64": "AAEC", "subType": "00"}}, "b": {"$minKey": 1}}']::jsonb[]);
    SELECT docshard.shard_collection('fuzz.s', '{"a": 1}');
    SELECT docshard.split_at('fuzz.s', '{"a": 20}');
    SELECT docshard.move_chunk('fuzz.s', '{"a": 20}', 'shard0');
    SELECT docshard.insert_many('fuzz.s', array_agg(jsonb_build_object('_id', n, 'a', n, 'b', 'text ' || n % 3, 'n', n % 7 - 2.5,
      'c', jsonb_build_object('a', n % 5, 'b', jsonb_build_array(n, n % 2)), 'd', jsonb_build_object('$date', jsonb_build_object('$numberLong', (n * 86400000::bigint)::text)))))
      FROM generate_series(1, 40) n;
    SELECT docshard.shard_collection('fuzz.h', '{"_id": "hashed"}');
    SELECT docshard.insert_many('fuzz.h', array_agg(jsonb_build_object('_id', n, 'n', n % 4, 'b', repeat('long ', n)))) FROM generate_series(1, 60) n;
    CREATE ROLE fuzz_app LOGIN;
    SELECT docshard.grant_access('fuzz_app')"#;

/// How deep pipelines contain pipelines.
const DEPTH: u32 = 2;

const NAMESPACES: &[&str] = &["fuzz.c", "fuzz.s", "fuzz.s", "fuzz.h"];
const PATHS: &[&str] = &["_id", "a", "b", "c", "d", "n", "c.a", "c.b", "a.b", "x", "x.y"];
const UNITS: &[&str] = &["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"];

/// Returns the argument names of an expression operator that takes an object.
fn named(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "$cond" => &["if", "then", "else"],
        "$filter" => &["input", "cond"],
        "$map" => &["input", "in"],
        "$reduce" => &["input", "initialValue", "in"],
        "$convert" => &["input", "to", "onError"],
        "$dateAdd" | "$dateSubtract" => &["startDate", "unit", "amount"],
        "$dateDiff" => &["startDate", "endDate", "unit"],
        "$dateTrunc" => &["date", "unit"],
        "$dateToString" | "$dateToParts" => &["date"],
        "$dateFromString" => &["dateString", "onError"],
        "$dateFromParts" => &["year", "month"],
        "$regexMatch" | "$regexFind" | "$regexFindAll" => &["input", "regex"],
        "$replaceOne" | "$replaceAll" => &["input", "find", "replacement"],
        "$trim" | "$ltrim" | "$rtrim" => &["input"],
        "$sortArray" => &["input", "sortBy"],
        "$zip" => &["inputs"],
        "$getField" => &["field", "input"],
        "$setField" => &["field", "input", "value"],
        "$unsetField" => &["field", "input"],
        "$firstN" | "$lastN" | "$minN" | "$maxN" => &["n", "input"],
        "$median" => &["input", "method"],
        "$percentile" => &["input", "method", "p"],
        "$top" | "$bottom" => &["output", "sortBy"],
        "$topN" | "$bottomN" => &["n", "output", "sortBy"],
        _ => return None,
    })
}

struct Grammar {
    rng: Rng,
    expressions: Vec<&'static str>,
    accumulators: Vec<&'static str>,
    windows: Vec<&'static str>,
    stages: Vec<&'static str>,
}

impl Grammar {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            expressions: vocabulary::expression_operators().collect(),
            accumulators: vocabulary::accumulators().collect(),
            windows: vocabulary::window_functions().collect(),
            stages: vocabulary::stages().map(|(name, _)| name).collect(),
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(0..from.len())].clone()
    }

    fn path(&mut self) -> String {
        self.pick(PATHS).to_owned()
    }

    fn literal(&mut self) -> Value {
        match self.rng.u32(0..8) {
            0 => json!(null),
            1 => json!(self.rng.bool()),
            2 => json!(self.pick(&["", "x", "text 1", "long", "2026-01-01", "^t", "day"])),
            3 => self.pick(&[
                json!(1.5),
                json!(1e308),
                json!(i64::MAX),
                json!(i64::MIN),
                json!({"$numberDecimal": "0.1"}),
            ]),
            4 => self.pick(&[json!({"$date": "2024-02-29T12:00:00Z"}), json!({"$date": {"$numberLong": "-1"}})]),
            5 => json!([1, "x", null]),
            _ => json!(self.rng.i64(-3..9)),
        }
    }

    fn expression(&mut self, depth: u32) -> Value {
        match self.rng.u32(0..if depth == 0 { 5 } else { 12 }) {
            0..=2 => json!(format!("${}", self.path())),
            3 => self.literal(),
            4 => json!(self.pick(&["$$ROOT", "$$CURRENT.a", "$$NOW", "$$REMOVE", "$$v", "$$this"])),
            5 => {
                let fields =
                    (0..self.rng.u32(0..3)).map(|_| (self.pick(PATHS).replace('.', ""), self.expression(depth - 1)));
                Value::Object(fields.collect())
            }
            6 => (0..self.rng.u32(0..4)).map(|_| self.expression(depth - 1)).collect(),
            _ => {
                let operators = self.expressions.clone();
                let name = self.pick(&operators);
                json!({name: self.operands(name, depth - 1)})
            }
        }
    }

    fn operands(&mut self, name: &str, depth: u32) -> Value {
        if let Some(names) = named(name)
            && !self.one_in(12)
        {
            let fields = names.iter().map(|field| ((*field).to_owned(), self.argument(field, depth)));
            return Value::Object(fields.collect());
        }
        match name {
            "$let" => json!({"vars": {"v": self.expression(depth)}, "in": self.expression(depth)}),
            "$switch" => {
                json!({"branches": [{"case": self.expression(depth), "then": self.expression(depth)}], "default": self.expression(depth)})
            }
            "$literal" | "$const" => self.literal(),
            "$range" => json!([0, self.rng.i64(0..20)]),
            "$rand" => json!({}),
            _ => match self.rng.u32(0..6) {
                0 | 1 => self.expression(depth),
                2 | 3 => json!([self.expression(depth), self.expression(depth)]),
                n => (0..n - 2).map(|_| self.expression(depth)).collect(),
            },
        }
    }

    /// Makes a value for a named argument.
    fn argument(&mut self, name: &str, depth: u32) -> Value {
        match name {
            _ if self.one_in(20) => self.expression(depth),
            "n" => json!(self.rng.i64(1..5)),
            "sortBy" => self.sort(),
            "unit" => json!(self.pick(UNITS)),
            "method" => json!(self.pick(&["approximate", "discrete", "continuous"])),
            "p" => json!([0.5, self.rng.f64()]),
            "to" => json!(self.pick(&["int", "long", "double", "decimal", "string", "date", "bool", "objectId"])),
            "field" | "find" | "replacement" | "regex" => json!(self.pick(&["a", "b", "t.*", "^x", ""])),
            "input" if self.rng.bool() => json!(self.pick(&["$c.b", "$b", "$n"])),
            "inputs" => json!([self.expression(depth), "$c.b"]),
            "date" | "startDate" | "endDate" => self.pick(&[json!("$d"), json!("$a"), json!("$$NOW")]),
            _ => self.expression(depth),
        }
    }

    fn sort(&mut self) -> Value {
        let fields = (0..self.rng.u32(1..3)).map(|_| (self.path(), json!(self.pick(&[1, -1]))));
        Value::Object(fields.collect())
    }

    fn filter(&mut self, depth: u32) -> Value {
        let path = self.path();
        match self.rng.u32(0..8) {
            0 => json!({"$expr": self.expression(depth)}),
            1 => json!({path: self.literal()}),
            2 => json!({path: {self.pick(&["$gt", "$gte", "$lt", "$lte", "$ne", "$eq"]): self.literal()}}),
            3 => json!({path: {"$in": [self.literal(), self.literal()]}}),
            4 => json!({path: {"$exists": self.rng.bool()}}),
            5 if depth > 0 => {
                json!({self.pick(&["$and", "$or", "$nor"]): [self.filter(depth - 1), self.filter(depth - 1)]})
            }
            6 => json!({path: {"$type": self.pick(&["int", "number", "string", "array", "object", "date"])}}),
            _ => json!({}),
        }
    }

    fn accumulator(&mut self, name: &str) -> Value {
        let argument = if name == "$count" { json!({}) } else { self.operands(name, 2) };
        // Most accumulators take one value.
        if argument.is_array() { self.expression(2) } else { argument }
    }

    fn output(&mut self) -> Map<String, Value> {
        let accumulators = self.accumulators.clone();
        let fields = (0..self.rng.u32(1..4)).map(|_| {
            let name = self.pick(&accumulators);
            (self.pick(&["r", "s", "t"]).to_owned(), json!({name: self.accumulator(name)}))
        });
        fields.collect()
    }

    fn bound(&mut self) -> Value {
        match self.rng.u32(0..4) {
            0 => json!("unbounded"),
            1 => json!("current"),
            _ => json!(self.rng.i64(-5..6)),
        }
    }

    fn window_function(&mut self) -> Value {
        let windows = self.windows.clone();
        let name = self.pick(&windows);
        // One in three has arguments as users write them, as random ones seldom succeed.
        let usual = match name {
            "$expMovingAvg" => json!({name: {"input": "$n", "N": 2}}),
            "$derivative" | "$integral" => json!({name: {"input": "$n"}, "window": {"documents": [-1, 0]}}),
            "$linearFill" | "$locf" => json!({name: "$n"}),
            "$covariancePop" | "$covarianceSamp" => json!({name: ["$n", "$a"]}),
            "$concatArrays" | "$setUnion" => json!({name: "$c.b"}),
            _ => Value::Null,
        };
        if !usual.is_null() && self.one_in(3) {
            return usual;
        }
        let mut function = match name {
            "$rank" | "$denseRank" | "$documentNumber" => json!({name: {}}),
            "$shift" => {
                json!({name: {"output": self.expression(1), "by": self.rng.i64(-3..4), "default": self.literal()}})
            }
            "$expMovingAvg" => json!({name: {"input": self.expression(1), "N": self.rng.i64(1..9)}}),
            "$derivative" | "$integral" => json!({name: {"input": self.pick(&["$n", "$a", "$c.a"])}}),
            "$linearFill" | "$locf" => json!({name: self.expression(1)}),
            "$covariancePop" | "$covarianceSamp" => json!({name: [self.expression(1), self.expression(1)]}),
            name => json!({name: self.accumulator(name)}),
        };
        let refuses = ["$rank", "$denseRank", "$documentNumber", "$shift", "$expMovingAvg", "$linearFill", "$locf"];
        if !refuses.contains(&name) && !self.one_in(3) || self.one_in(20) {
            let kind = self.pick(&["documents", "documents", "range"]);
            let (mut lower, mut upper) = (self.bound(), self.bound());
            if lower.as_i64().unwrap_or(0) > upper.as_i64().unwrap_or(0) && !self.one_in(9) {
                std::mem::swap(&mut lower, &mut upper);
            }
            function["window"] = json!({kind: [lower, upper]});
            if kind == "range" && self.one_in(3) {
                function["window"]["unit"] = json!(self.pick(UNITS));
            }
        }
        function
    }

    fn stage(&mut self, depth: u32) -> Value {
        let stages = self.stages.clone();
        let name = self.pick(&stages);
        json!({name: self.of_stage(name, depth)})
    }

    fn of_stage(&mut self, name: &str, depth: u32) -> Value {
        let path = self.path();
        match name {
            _ if self.one_in(40) => self.literal(),
            "$match" => self.filter(2),
            "$set" | "$addFields" => json!({path: self.expression(3), "y": self.expression(1)}),
            "$unset" => json!([path]),
            "$project" => match self.rng.u32(0..3) {
                0 => json!({path: 0}),
                1 => json!({path: 1, "z": self.expression(2)}),
                _ => json!({"z": self.expression(3)}),
            },
            "$replaceWith" => {
                self.pick(&[json!("$$ROOT"), json!({"a": "$a", "n": "$n"}), json!({"$mergeObjects": ["$c", "$$ROOT"]})])
            }
            "$replaceRoot" => json!({"newRoot": {"$mergeObjects": [{"a": self.expression(1)}, "$$ROOT"]}}),
            "$redact" => json!({"$cond": [self.expression(2), "$$PRUNE", self.pick(&["$$KEEP", "$$DESCEND"])]}),
            "$unwind" => json!({"path": format!("${path}"), "preserveNullAndEmptyArrays": self.rng.bool()}),
            "$limit" => json!(self.rng.i64(1..30)),
            "$skip" => json!(self.rng.i64(0..9)),
            "$sort" => self.sort(),
            "$sample" => json!({"size": self.rng.i64(1..9)}),
            "$count" => json!("n"),
            "$sortByCount" => json!(format!("${path}")),
            "$group" => {
                let mut group = self.output();
                group.insert("_id".to_owned(), self.expression(2));
                Value::Object(group)
            }
            "$bucket" => {
                json!({"groupBy": self.expression(1), "boundaries": [-5, 1, 4, 50], "default": "other", "output": self.output()})
            }
            "$bucketAuto" => {
                json!({"groupBy": self.expression(1), "buckets": self.rng.i64(1..6), "output": self.output()})
            }
            "$facet" if depth > 0 => json!({"f": self.pipeline(depth - 1), "g": self.pipeline(depth - 1)}),
            "$documents" => json!([{"a": 1, "n": self.literal()}, {"a": 2}]),
            "$listClusterCatalog" => json!({"shards": self.rng.bool(), "tracked": self.rng.bool()}),
            "$currentOp" => json!({"allUsers": self.rng.bool(), "idleConnections": self.rng.bool()}),
            "$shardedDataDistribution" => json!({}),
            "$setWindowFields" => {
                let output: Map<_, _> = (0..self.rng.u32(1..4))
                    .map(|_| (self.pick(&["r", "s", "c.t"]).to_owned(), self.window_function()))
                    .collect();
                let mut stage = json!({"output": output, "sortBy": {self.path(): 1}});
                if self.rng.bool() {
                    stage["partitionBy"] = self.expression(1);
                }
                if self.one_in(4) {
                    stage["sortBy"] = self.sort();
                }
                stage
            }
            "$fill" => json!({"sortBy": {path: 1}, "output": {
                self.path(): {"method": self.pick(&["linear", "locf"])}, "f": {"value": self.expression(1)}}}),
            "$densify" => {
                let bounds = self.pick(&[json!("full"), json!("partition"), json!([0, 12])]);
                let fields = if bounds == "partition" { json!(["b"]) } else { json!([]) };
                json!({"field": self.pick(&["n", "a", "_id", "c.a"]), "partitionByFields": fields, "range": {"step": self.rng.i64(1..5), "bounds": bounds}})
            }
            "$lookup" => json!({"from": "c", "localField": path, "foreignField": self.path(), "as": "l"}),
            "$unionWith" => {
                json!({"coll": self.pick(&["c", "s"]), "pipeline": if depth > 0 { self.pipeline(depth - 1) } else { json!([]) }})
            }
            "$graphLookup" => {
                json!({"from": "s", "startWith": self.expression(1), "connectFromField": "c.a", "connectToField": "a", "as": "g", "maxDepth": 2})
            }
            "$out" => json!("out"),
            "$merge" => json!({"into": "into"}),
            _ if self.rng.bool() => json!({}),
            _ => self.expression(2),
        }
    }

    fn pipeline(&mut self, depth: u32) -> Value {
        let mut stages: Vec<_> = (0..self.rng.u32(1..5)).map(|_| self.stage(depth)).collect();
        if depth == DEPTH && self.one_in(20) {
            stages.push(if self.rng.bool() { json!({"$out": "out"}) } else { json!({"$merge": {"into": "into"}}) });
        }
        Value::Array(stages)
    }

    fn options(&mut self) -> Value {
        let mut options = json!({"let": {"v": self.literal()}});
        if self.one_in(4) {
            options["collation"] = json!({"locale": "en", "strength": self.rng.i64(1..4)});
        }
        if self.one_in(4) {
            options["allowDiskUse"] = json!(self.rng.bool());
        }
        options
    }
}

fn session(cluster: &Cluster, memory: &str) -> Client {
    let mut client = cluster.router.try_client_as("fuzz_app", "postgres").expect("a session");
    let limits = format!(
        "SET statement_timeout = {}; SET client_min_messages = error; SET work_mem = '{memory}'",
        TIMEOUT.as_millis()
    );
    client.batch_execute(&limits).expect("settings");
    client
}

/// Runs pipelines until `enough` returns true for the number that has run. Returns how many ran, how many succeeded, and the operators of the successful ones.
fn fuzz(seed: u64, enough: impl Fn(u64) -> bool) -> (u64, u64, BTreeSet<String>) {
    println!("SEED={seed}");
    let cluster = Cluster::start(1);
    let mut admin = cluster.router.client();
    for statement in SETUP.split(";\n") {
        admin.batch_execute(statement).unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }
    let mut sessions = [session(&cluster, "4MB"), session(&cluster, "64kB")];
    let mut grammar = Grammar::new(seed);
    let (mut count, mut succeeded, mut seen) = (0, 0, BTreeSet::new());
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    while !enough(count) && failures.len() < 20 {
        count += 1;
        let (namespace, pipeline, options) = (grammar.pick(NAMESPACES), grammar.pipeline(DEPTH), grammar.options());
        let begins_with = |name: &&str| pipeline[0].get(*name).is_some();
        let namespace = if ["$documents", "$listClusterCatalog"].iter().any(begins_with) {
            "fuzz.$cmd.aggregate"
        } else if ["$currentOp", "$shardedDataDistribution"].iter().any(begins_with) {
            "admin.$cmd.aggregate"
        } else {
            namespace
        };
        let what =
            |problem: &str| format!("SEED={seed}, pipeline {count}: {problem}\n{namespace} {pipeline} {options}");
        let client = &mut sessions[count as usize % 2];
        client.batch_execute("BEGIN").unwrap_or_else(|e| panic!("{}", what(&format!("no session: {e:?}"))));
        let sql = "SELECT count(d::text) FROM docshard.aggregate($1::text, $2::text::json, $3::text::json) AS d";
        match client.query_one(sql, &[&namespace, &pipeline.to_string(), &options.to_string()]) {
            Ok(_) => {
                succeeded += 1;
                names(&pipeline, &mut seen);
            }
            Err(error) => {
                let Some(db) = error.as_db_error() else {
                    panic!("{}", what(&format!("the session is lost: {error:?}")))
                };
                let wrong = ["XX000", "XX001", "XX002", "57P01", "57P02", "57014", "08006", "08001", "08007"];
                if wrong.contains(&db.code().code()) || db.message().contains("panicked") {
                    let problem = format!("{}: {}", db.code().code(), db.message());
                    failures.entry(problem).or_insert_with(|| what(&format!("{db:?}")));
                }
            }
        }
        client.batch_execute("ROLLBACK").unwrap_or_else(|e| panic!("{}", what(&format!("no session: {e:?}"))));
    }
    let failures: Vec<String> = failures.into_values().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    (count, succeeded, seen)
}

/// Collects the names of operators.
fn names(json: &Value, seen: &mut BTreeSet<String>) {
    match json {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            if name.starts_with('$') {
                seen.insert(name.clone());
            }
            names(value, seen);
        }),
        Value::Array(items) => items.iter().for_each(|item| names(item, seen)),
        _ => {}
    }
}

/// Checks that enough pipelines succeed, and that nearly all stages and window functions occur in them if there are as many as in
/// [`random_pipelines_cause_no_internal_error`].
fn check((count, succeeded, seen): (u64, u64, BTreeSet<String>)) {
    println!("{succeeded} of {count} pipelines succeeded, with {} operators", seen.len());
    assert!(succeeded * 6 > count, "only {succeeded} of {count} pipelines succeed");
    let known = vocabulary::stages().map(|(name, _)| name).chain(vocabulary::window_functions());
    let never: Vec<_> = known.filter(|name| !seen.contains(*name)).collect();
    assert!(count < PIPELINES || never.len() <= 8, "never succeeded: {never:?}");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// A number and not a time, so that the same pipelines run on every machine.
const PIPELINES: u64 = 4_000;

#[test]
fn random_pipelines_cause_no_internal_error() {
    check(fuzz(number("DOCSHARD_SEED").unwrap_or(1), |count| count == PIPELINES));
}

/// Runs for DOCSHARD_SOAK_SECONDS, with a random seed unless one is given.
#[test]
#[ignore = "runs for as long as one likes: make soak SECONDS=600"]
fn soak() {
    let seconds = number("DOCSHARD_SOAK_SECONDS").unwrap_or(60);
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| Rng::new().u64(0..1_000_000));
    let (began, time) = (Instant::now(), Duration::from_secs(seconds));
    check(fuzz(seed, |_| began.elapsed() >= time));
}
