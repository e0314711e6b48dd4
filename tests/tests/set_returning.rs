//! Functions that return sets, read in every way, where reading ends in every way: their memory, files and scans are freed once, and the
//! session and the server live on.
//!
//! A set is read over many calls. What a function keeps between them is dropped by PostgreSQL, at a time that depends on who reads:
//! a statement of the client, PL/pgSQL, a cursor; and on how it ends: an error, a cancel, a rollback to a savepoint, a limit. Too late or
//! twice may crash the server only later, or not at all. So `.ci/test_checked` runs this also in a PostgreSQL that overwrites memory
//! that is freed, and checks what is released.

use docshard_tests::{Cluster, Node};
use postgres::Client;
use std::fmt::Write;

const NS: &str = "test.read";

/// Counts its calls, and causes the accident `test.kind` in that of number `test.at`.
const ACCIDENT: &str = "CREATE FUNCTION accident(item text) RETURNS int LANGUAGE plpgsql AS $f$
    DECLARE seen int := current_setting('test.seen')::int + 1;
    BEGIN
      PERFORM set_config('test.seen', seen::text, false);
      IF seen = current_setting('test.at')::int THEN
        CASE current_setting('test.kind')
          WHEN 'error' THEN RAISE division_by_zero;
          WHEN 'cancel' THEN PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(60);
          WHEN 'timeout' THEN PERFORM pg_sleep(60);
          WHEN 'terminate' THEN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60);
          WHEN 'none' THEN NULL;
        END CASE;
      END IF;
      RETURN seen;
    END $f$";

/// How reading ends before the end of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accident {
    Error,
    Cancel,
    Timeout,
    Terminate,
}

impl Accident {
    const ALL: [Self; 4] = [Self::Error, Self::Cancel, Self::Timeout, Self::Terminate];

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Cancel => "cancel",
            Self::Timeout => "timeout",
            Self::Terminate => "terminate",
        }
    }

    /// The ends with which the n-th way of reading is tried: an error and another one; in thorough tests all.
    fn some(n: usize) -> Vec<Self> {
        let others = &Self::ALL[1..];
        if docshard_tests::is_thorough() { Self::ALL.to_vec() } else { vec![Self::Error, others[n % others.len()]] }
    }

    /// The SQLSTATE that the client gets; None if the connection may be gone before.
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Error => Some("22012"),
            Self::Cancel | Self::Timeout => Some("57014"),
            Self::Terminate => None,
        }
    }
}

/// Who reads the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Statement,
    ReturnQuery,
    Perform,
    Assignment,
    Loop,
    SqlFunction,
}

use Way::{Assignment, Loop, Perform, ReturnQuery, SqlFunction, Statement};

impl Way {
    const ALL: [Self; 6] = [Statement, ReturnQuery, Perform, Assignment, Loop, SqlFunction];

    /// The function of PL/pgSQL or SQL that reads; `early`: only the first row; `catching`: in a block that handles errors.
    fn function(self, name: &str, query: &str) -> String {
        let (returns, body) = match self {
            Statement => return String::new(),
            SqlFunction => {
                return format!(
                    "CREATE FUNCTION {name}_{self:?}() RETURNS SETOF int LANGUAGE sql VOLATILE AS $f${query}$f$"
                );
            }
            ReturnQuery => {
                ("SETOF int", format!("IF early THEN RETURN QUERY {query} LIMIT 1; ELSE RETURN QUERY {query}; END IF;"))
            }
            Perform => {
                let performed = query.replacen("SELECT", "PERFORM", 1);
                ("void", format!("IF early THEN {performed} LIMIT 1; ELSE {performed}; END IF;"))
            }
            Assignment => {
                let sum = format!("one := (SELECT sum(n) FROM ({query}) AS all_of_them (n))");
                ("void", format!("IF early THEN one := ({query} LIMIT 1); ELSE {sum}; END IF;"))
            }
            Loop => ("void", format!("FOR one IN {query} LOOP EXIT WHEN early; END LOOP;")),
        };
        format!(
            "CREATE FUNCTION {name}_{self:?}(early boolean, catching boolean) RETURNS {returns} LANGUAGE plpgsql AS $f$
             DECLARE one int := (SELECT 1);
             BEGIN
               IF catching THEN
                 BEGIN {body} EXCEPTION WHEN OTHERS OR query_canceled THEN NULL; END;
               ELSE
                 {body}
               END IF;
             END $f$"
        )
    }

    fn statement(self, name: &str, query: &str, early: bool, catching: bool) -> String {
        let limit = if early { " LIMIT 1" } else { "" };
        let read = match self {
            Statement => format!("{query}{limit}"),
            SqlFunction => format!("SELECT {name}_{self:?}(){limit}"),
            _ => return format!("SELECT {name}_{self:?}({early}, {catching})"),
        };
        match catching {
            true => {
                format!("DO $d$ BEGIN EXECUTE $q${read}$q$; EXCEPTION WHEN OTHERS OR query_canceled THEN NULL; END $d$")
            }
            false => read,
        }
    }
}

/// A call of a function that returns a set.
struct Call {
    /// the name of its functions
    name: String,
    /// its number
    at: usize,
    sql: String,
    /// the number of its rows
    rows: i64,
}

/// A session, and what it does.
struct Reader<'a> {
    node: &'a Node,
    client: Client,
    what: String,
}

impl<'a> Reader<'a> {
    fn new(node: &'a Node) -> Self {
        Self { node, client: node.client(), what: String::new() }
    }

    fn try_run(&mut self, sql: &str) -> Result<(), String> {
        self.client.batch_execute(sql).map_err(|error| match error.code() {
            Some(code) => code.code().to_owned(),
            None => format!("{error:?}"),
        })
    }

    fn run(&mut self, sql: &str) {
        let done = self.client.batch_execute(sql);
        done.unwrap_or_else(|error| panic!("{}: {sql}: {error:?}", self.what));
    }

    /// Arms the next accident, or none. A timeout is that of the running transaction.
    fn arm(&mut self, accident: Option<Accident>, at: i64) {
        let kind = accident.map_or("none", Accident::name);
        let limit = if accident == Some(Accident::Timeout) { "; SET LOCAL statement_timeout = '40ms'" } else { "" };
        self.run(&format!("SET test.kind = '{kind}'; SET test.at = {at}; SET test.seen = 0{limit}"));
    }

    /// Runs a statement in which the accident happens.
    fn fail(&mut self, accident: Accident, sql: &str) {
        let failed = self.try_run(sql).expect_err(&self.what);
        match accident.code() {
            Some(code) => assert_eq!(failed, code, "{}: {sql}", self.what),
            None => {
                assert!(failed == "57P01" || self.client.is_closed(), "{}: {sql}: {failed}", self.what);
                self.client = self.node.client();
            }
        }
    }

    fn rows_of(&mut self, call: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM (SELECT {call} AS x) AS t");
        let row = self.client.query_one(&sql, &[]);
        row.unwrap_or_else(|error| panic!("{}: {sql}: {error:?}", self.what)).get(0)
    }

    fn read_in_every_way(&mut self, call: &Call) {
        // In the second row, if there is one: then the first one has been used, and forgotten.
        let at = call.rows.min(2);
        let query = format!("SELECT accident(t.x::text) FROM (SELECT {} AS x) AS t", call.sql);
        for (n, way) in Way::ALL.into_iter().enumerate() {
            self.what = format!("{} in a {way:?}", call.sql);
            self.arm(None, 0);
            self.run(&way.function(&call.name, &query));
            let statement = |early, catching| way.statement(&call.name, &query, early, catching);
            self.run(&statement(false, false));
            self.run(&statement(true, false));
            for accident in Accident::some(call.at + n) {
                self.what = format!("{} in a {way:?}, {accident:?}", call.sql);
                if accident == Accident::Timeout {
                    self.run("BEGIN");
                }
                self.arm(Some(accident), at);
                self.fail(accident, &statement(false, false));
                match accident {
                    Accident::Error | Accident::Cancel => {}
                    Accident::Timeout => {
                        self.run("ROLLBACK");
                        continue;
                    }
                    Accident::Terminate => continue,
                }
                self.arm(Some(accident), at);
                self.run("BEGIN; SAVEPOINT s");
                self.fail(accident, &statement(false, false));
                self.run("ROLLBACK TO s");
                self.arm(None, 0);
                self.run(&statement(false, false));
                self.run(&statement(true, false));
                self.run("COMMIT");
                self.arm(Some(accident), at);
                self.run("BEGIN");
                self.run(&statement(false, true));
                self.arm(None, 0);
                self.run(&statement(false, false));
                self.run("COMMIT");
            }
            assert_eq!(self.rows_of(&call.sql), call.rows, "{}", self.what);
        }
    }

    fn read_by_cursor(&mut self, call: &Call) {
        let at = call.rows.min(2);
        let query = format!("SELECT accident(t.x::text) FROM (SELECT {} AS x) AS t", call.sql);
        let declare = format!("BEGIN; DECLARE c CURSOR FOR {query}");
        let before = format!("MOVE {} FROM c", at - 1);
        self.what = format!("{} by a cursor", call.sql);
        self.arm(None, 0);
        for end in ["CLOSE c; COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s; CLOSE c; ROLLBACK TO s; COMMIT"] {
            self.run(&declare);
            self.run("FETCH 1 FROM c");
            self.run(end);
        }
        // It outlives a rollback to a savepoint.
        self.run(&declare);
        self.run("SAVEPOINT s; FETCH 1 FROM c; ROLLBACK TO s; FETCH ALL FROM c; COMMIT");
        for accident in Accident::some(call.at) {
            self.what = format!("{} by a cursor, {accident:?}", call.sql);
            self.run(&declare);
            self.run(&before);
            self.arm(Some(accident), 1);
            self.fail(accident, "FETCH 1 FROM c");
            if accident == Accident::Terminate {
                continue;
            }
            self.run("ROLLBACK");
            if accident == Accident::Timeout {
                continue;
            }
            // The cursor cannot be read any more, and has what it has until it is closed.
            for end in ["CLOSE c; COMMIT", "COMMIT", "ROLLBACK"] {
                self.arm(None, 0);
                self.run(&declare);
                self.run(&before);
                self.run("SAVEPOINT s");
                self.arm(Some(accident), 1);
                self.fail(accident, "FETCH 1 FROM c");
                self.run("ROLLBACK TO s");
                self.arm(None, 0);
                assert_eq!(self.rows_of(&call.sql), call.rows, "{}", self.what);
                self.run(end);
            }
        }
        self.arm(None, 0);
        let hold = declare.replace("CURSOR", "CURSOR WITH HOLD");
        for (what, end) in [("COMMIT; FETCH 1 FROM c", "CLOSE c"), ("SELECT 1", "ROLLBACK")] {
            self.run(&hold);
            self.run(&before);
            self.run(what);
            self.run(end);
        }
        for accident in Accident::some(call.at + 1) {
            // A commit has none.
            if accident == Accident::Timeout {
                continue;
            }
            self.what = format!("{} by a cursor that the commit reads, {accident:?}", call.sql);
            self.run(&hold);
            self.run(&before);
            self.arm(Some(accident), 1);
            self.fail(accident, "COMMIT");
            self.arm(None, 0);
        }
        assert_eq!(self.rows_of(&call.sql), call.rows, "{}", self.what);
    }
}

/// A collection on three nodes. Some documents are stored compressed, and some out of line.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let sql = format!(
        "SELECT docshard.create_index('{NS}', '{{\"n\": 1}}');
         SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n * 3 % 300, 'n', n % 7,
           'text', CASE WHEN n % 3 = 0 THEN repeat('compressed ', 500) WHEN n % 20 = 1 THEN
             (SELECT string_agg(md5(n::text || m), '') FROM generate_series(1, 200) AS m) ELSE repeat(md5(n::text), 10) END)))
         FROM generate_series(0, 149) AS n;
         SELECT docshard.create_collection('test.joined', '{{\"viewOn\": \"read\", \"pipeline\": [{{\"$sort\": {{\"text\": 1}}}}]}}')"
    );
    cluster.router.client().batch_execute(&sql).unwrap_or_else(|e| panic!("{e:?}"));
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        // Sorts of the documents use files.
        node.client().batch_execute(&format!("ALTER ROLE ALL SET work_mem = '64kB'; {ACCIDENT}")).unwrap();
    }
    cluster
}

/// Fails if a server's log shows a crash, a failed assertion, or something that was not released.
fn check_logs(cluster: &Cluster) {
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        let log = node.log();
        let is_bad = |line: &&str| {
            ["TRAP", "PANIC", "WARNING", "terminated by signal", "consistency check", "corrupt", "leak", "not owned"]
                .iter()
                .any(|sign| line.contains(sign))
                // A session of a move that is terminated may have ended by itself.
                && !line.contains("is not a PostgreSQL backend process")
        };
        let bad = log.lines().filter(is_bad).take(20).fold(String::new(), |mut all, line| {
            let _ = writeln!(all, "{line}");
            all
        });
        assert!(bad.is_empty(), "{}:\n{bad}", node.name);
    }
}

/// An application's mistake: a subquery with more than one row, of a function that still has some.
#[test]
fn a_subquery_with_more_than_one_row() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client
        .batch_execute(&format!(
            "CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS $f$
             DECLARE one int := (SELECT 1); x jsonb;
             BEGIN x := (SELECT docshard.aggregate('{NS}', '[{{\"$bucketAuto\": {{\"groupBy\": \"$_id\", \"buckets\": 100}}}}]')); END $f$"
        ))
        .unwrap();
    for call in 0..10 {
        let failed = client.batch_execute("SELECT pg_temp.f()").expect_err("more than one row");
        assert_eq!(failed.code().map(|code| code.code()), Some("21000"), "call {call}: {failed:?}");
    }
    check_logs(&cluster);
}

/// PL/pgSQL commits or rolls back in a loop over a query: PostgreSQL reads the rest of the query first, while it iterates over its table
/// of portals. Whether an entry that is removed meanwhile is the one that it comes to next depends on the portals' numbers.
#[test]
fn a_loop_that_commits() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for call in [
        format!("docshard.find('{NS}', '{{}}')"),
        format!("docshard.distinct('{NS}', '_id', '{{}}')"),
        format!("docshard.aggregate('{NS}', '[{{\"$group\": {{\"_id\": \"$_id\"}}}}]')"),
    ] {
        for end in ["COMMIT", "ROLLBACK"] {
            let block = format!(
                "DO $d$ DECLARE x text; n int := 0;
                 BEGIN FOR x IN SELECT {call} LOOP n := n + 1; IF n IN (1, 30) THEN {end}; END IF; END LOOP; ASSERT n = 150, n; END $d$"
            );
            for turn in 0..100 {
                client.batch_execute(&block).unwrap_or_else(|e| panic!("{call}, {end}, turn {turn}: {e:?}"));
            }
        }
    }
    check_logs(&cluster);
}

/// Pipelines of `aggregate`, whose stages keep documents at the router, at shards, or nowhere.
const PIPELINES: [&str; 12] = [
    r#"{"$match": {"n": {"$gt": 1}}}"#,
    r#"{"$documents": [{"a": 1}, {"a": 2}, {"a": 3}]}, {"$sort": {"a": 1}}"#,
    r#"{"$documents": [{"a": 1}, {"a": 2}, {"a": 3}]}, {"$group": {"_id": "$a"}}, {"$sort": {"_id": 1}}"#,
    r#"{"$sort": {"text": 1}}"#,
    r#"{"$sort": {"text": 1}}, {"$limit": 100}, {"$match": {"n": {"$gt": 0}}}"#,
    r#"{"$group": {"_id": "$text", "n": {"$push": "$n"}}}, {"$sort": {"n": 1}}"#,
    r#"{"$bucketAuto": {"groupBy": "$_id", "buckets": 9}}"#,
    r#"{"$setWindowFields": {"partitionBy": "$n", "sortBy": {"text": 1}, "output": {"before": {"$sum": "$k", "window": {"documents": [-1, 0]}}}}}"#,
    r#"{"$lookup": {"from": "read", "localField": "n", "foreignField": "n", "pipeline": [{"$sort": {"text": 1}}], "as": "all"}}, {"$sort": {"k": 1}}, {"$project": {"k": 1}}"#,
    r#"{"$facet": {"a": [{"$count": "n"}], "b": [{"$sort": {"k": 1}}]}}, {"$unwind": "$b"}, {"$unwind": "$a"}"#,
    r#"{"$unionWith": "joined"}, {"$sample": {"size": 200}}"#,
    r#"{"$graphLookup": {"from": "read", "startWith": "$n", "connectFromField": "n", "connectToField": "_id", "as": "all"}}, {"$project": {"n": 1}}"#,
];

/// Calls at the router of functions whose rows are read as they are asked for.
fn lazy_at_router() -> Vec<String> {
    let pipelines = PIPELINES.iter().map(|stages| format!("docshard.aggregate('{NS}', '[{stages}]')"));
    let mut calls: Vec<String> = pipelines.collect();
    calls[1] = calls[1].replace(NS, "test.$cmd.aggregate");
    calls[2] = calls[2].replace(NS, "test.$cmd.aggregate");
    calls.extend([
        format!("docshard.aggregate('{NS}', '[{{\"$sort\": {{\"n\": 1}}}}]', '{{\"maxTimeMS\": 60000}}')"),
        format!("docshard.find('{NS}')"),
        format!("docshard.find('{NS}', '{{\"k\": {{\"$lt\": 90}}}}', '{{\"sort\": {{\"text\": 1}}, \"skip\": 1}}')"),
        format!("docshard.find('{NS}', '{{\"n\": 3}}', '{{\"limit\": 20}}')"),
        "docshard.find('test.joined', '{}')".to_owned(),
        format!("docshard.distinct('{NS}', 'text')"),
    ]);
    calls
}

/// Calls at the router of functions that have all rows when they return the first one.
fn eager_at_router() -> Vec<String> {
    [
        "docshard.get_shard_distribution('test.read')",
        "docshard.index_stats('test.read')",
        "docshard.list_indexes('test.read')",
        "docshard.list_shards()",
        "docshard.shard_health(2000)",
        "docshard.chunk_load(2000)",
        "docshard_internal.list_settings()",
        r#"docshard_internal.distinct_values('{"a": [1, 2, 3]}', 'a', '')"#,
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Calls at a shard, of functions with rows as they are asked for.
fn lazy_at_shard(collection: i32, version: &str) -> Vec<String> {
    let sort = r#"{"$sort": {"text": 1}}"#;
    let group = r#"{"$group": {"_id": "$n", "all": {"$push": "$text"}}}"#;
    [("", true), (sort, true), (sort, false), (group, true), (r#"{"$match": {"n": {"$gt": 1}}}"#, true)]
        .map(|(stages, on_disk)| {
            format!(
                "docshard_internal.run_pipeline({collection}, {version}, '{{\"stages\": [{stages}], \"onDisk\": {on_disk}, \"source\": {{\"scan\": {{}}}}}}')"
            )
        })
        .to_vec()
}

/// Calls at a shard, of functions that have all rows when they return the first one.
fn eager_at_shard(collection: i32) -> Vec<String> {
    vec![
        format!("docshard_internal.estimate_sizes(ARRAY[{collection}])"),
        format!("docshard_internal.measure_range({collection}, '', NULL)"),
        format!("docshard_internal.storage_space({collection})"),
        "docshard_internal.sampled_accesses(8192)".to_owned(),
        format!("docshard_internal.measure_chunks({collection}, ARRAY['', '\\x80']::bytea[], 1)"),
        format!("docshard_internal.split_points({collection}, '', NULL, 3, 10)"),
    ]
}

/// Functions that are not called: they have no rows here, or a single one that is there before it is asked for.
const NOT_CALLED: [&str; 13] = [
    "docshard.check_metadata_consistency",
    "docshard.list_index_builds",
    "docshard.list_orphaned_relations",
    "docshard_internal.apply_share",
    "docshard_internal.collection_writers",
    "docshard_internal.delete_range",
    "docshard_internal.field_orders",
    "docshard_internal.find_conflict",
    "docshard_internal.hello",
    "docshard_internal.load_share",
    "docshard_internal.pack_part",
    "docshard_internal.pack_share",
    "docshard_internal.range_writers",
];

/// Reads in every way at one node.
fn read_all(node: &Node, calls: &[String]) {
    let mut reader = Reader::new(node);
    for (at, sql) in calls.iter().enumerate() {
        let rows = reader.rows_of(sql);
        assert!(rows > 0, "{sql} has no rows");
        let call = Call { name: format!("read{at}"), at, sql: sql.clone(), rows };
        reader.read_by_cursor(&call);
        reader.read_in_every_way(&call);
    }
}

/// The number of the collection, and its version at the first shard.
fn collection(cluster: &Cluster) -> (i32, String) {
    let number =
        format!("SELECT substring(\"table\" FROM '[0-9]+$')::int FROM docshard.collections WHERE namespace = '{NS}'");
    let number: i32 = cluster.router.value(&number);
    let version =
        format!("SELECT token || ', ' || version FROM docshard_data.placement WHERE collection_id = {number}");
    (number, cluster.shards[0].value(&version))
}

#[test]
fn at_the_router() {
    let cluster = cluster();
    read_all(&cluster.router, &lazy_at_router());
    check_logs(&cluster);
}

#[test]
fn at_a_shard() {
    let cluster = cluster();
    let (number, version) = collection(&cluster);
    read_all(&cluster.shards[0], &lazy_at_shard(number, &version));
    read_all(&cluster.shards[1], &eager_at_shard(number));
    read_all(&cluster.router, &eager_at_router());
    check_logs(&cluster);

    let all = [lazy_at_router(), eager_at_router(), lazy_at_shard(number, &version), eager_at_shard(number)].concat();
    let is_read = |name: &str| all.iter().any(|call| call.starts_with(&format!("{name}(")));
    let functions = cluster.router.client().query(
        "SELECT format('%s.%s', pronamespace::regnamespace, proname) FROM pg_proc
          WHERE proretset AND pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace)",
        &[],
    );
    let names: Vec<String> = functions.unwrap().iter().map(|row| row.get(0)).collect();
    let wrong: Vec<_> = names.iter().filter(|name| is_read(name) == NOT_CALLED.contains(&name.as_str())).collect();
    assert!(wrong.is_empty(), "they are to be either called or listed in NOT_CALLED: {wrong:?}");
}
