//! The permissions of one node of a cluster on another. A node can do no more than its part of the work requires.

use docshard_tests::logins::{NS, service_login, service_session, spread, sqlstate_of, table};
use docshard_tests::{Cluster, Node};
use postgres::Client;
use serde_json::Value;
use std::fs;

/// Databases of one server share its roles. The router of one cluster cannot affect roles of another.
#[test]
fn a_router_reaches_no_roles_but_its_own() {
    let cluster = Cluster::with_passwords(1);
    let shard = &cluster.shards[0];
    let theirs = "password-of-another-router";
    shard
        .unlogged_client()
        .batch_execute(&format!(
            "CREATE ROLE docshard_0badf00d LOGIN PASSWORD '{theirs}'; CREATE ROLE docshard_0badf00d_1 LOGIN PASSWORD '{theirs}'; \
             CREATE ROLE tenant; CREATE ROLE boss SUPERUSER; CREATE ROLE keeper CREATEROLE; \
             CREATE ROLE deputy IN ROLE pg_read_server_files; CREATE ROLE friend IN ROLE boss; CREATE ROLE group_of_friends; \
             GRANT friend TO group_of_friends; CREATE ROLE mate IN ROLE tenant; CREATE ROLE insider IN ROLE docshard_0badf00d"
        ))
        .expect("roles of others");
    shard.psql("CREATE DATABASE tenants OWNER tenant");
    let mut client = service_session(&cluster, shard);
    // A valid verifier that belongs to no password.
    let verifier = format!("SCRAM-SHA-256$4096:AAAAAAAAAAAAAAAAAAAAAA==${0}:{0}", "A".repeat(43) + "=");
    for role in ["docshard_0badf00d", "docshard_0badf00d_1"] {
        for sql in [
            format!("SELECT docshard_internal.accept_puller('{role}', '{verifier}')"),
            format!("SELECT docshard_internal.disconnect_shard('docshard_none', '{role}')"),
            format!("SELECT docshard_internal.create_role('{role}')"),
        ] {
            assert_eq!(sqlstate_of(&mut client, &sql), "55000", "{sql}");
        }
        shard.try_client_with(role, theirs).unwrap_or_else(|e| panic!("{role}: {e}"));
    }
    for role in [
        "postgres",
        "boss",
        "keeper",
        "deputy",
        "tenant",
        "friend",
        "group_of_friends",
        "mate",
        "insider",
        "pg_signal_backend",
        "pg_monitor",
        "pg_read_all_data",
    ] {
        for sql in [format!("SELECT docshard_internal.create_role('{role}')"), format!("SET ROLE {role}")] {
            let code = sqlstate_of(&mut client, &sql);
            assert!(["55000", "42501"].contains(&code.as_str()), "{sql}: {code}");
        }
    }
    for sql in [
        "ALTER ROLE CURRENT_USER SUPERUSER",
        "ALTER ROLE postgres PASSWORD NULL",
        "CREATE ROLE mine",
        "CREATE EXTENSION file_fdw",
        "COPY docshard_data.node TO '/tmp/x'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT * FROM docshard_data.service",
        "SELECT docshard.accept_router('tenant')",
        "ALTER FUNCTION docshard_internal.create_role(text) SECURITY INVOKER",
    ] {
        assert_eq!(sqlstate_of(&mut client, sql), "42501", "{sql}");
    }
    for text in ["SCRAM-SHA-256$garbage", "secret", "md5d41d8cd98f00b204e9800998ecf8427e"] {
        let sql = format!("SELECT docshard_internal.set_service_password('{text}')");
        assert_eq!(sqlstate_of(&mut client, &sql), "22023", "{sql}");
    }
    for option in ["passfile", "sslkey", "sslcert", "service", "krbsrvname", "options"] {
        let sql = format!(
            "SELECT docshard_internal.connect_shard('docshard_x', ARRAY['{option}'], ARRAY['/etc/passwd'], 'docshard_x_1')"
        );
        assert_eq!(sqlstate_of(&mut client, &sql), "22023", "{sql}");
    }
}

/// A shard may read the moving documents of another shard, and nothing else there.
#[test]
fn a_shard_reads_at_another_only_what_moves() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let id: i32 = cluster.router.value("SELECT id FROM docshard.shards WHERE name = 'shard1'");
    let (service, _) = service_login(&cluster, "shard0");
    let secret: String = cluster.shards[1].value("SELECT secret FROM docshard_data.service");
    let prefix = service.rsplit_once("_s").expect("a service role's name").0;
    let mut client = cluster.shards[0].try_client_with(&format!("{prefix}_{id}"), &secret).expect("shard1 at shard0");
    let table = table(&cluster);
    let number = table.trim_start_matches("docshard_data.c");
    let (skey, after): (String, String) = {
        let row = cluster.shards[0]
            .client()
            .query_one(&format!("SELECT skey::text, (skey || '\\x00')::text FROM {table}"), &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    let documents = [
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, '{after}', NULL)"),
        format!("SELECT docshard_internal.current_document({number}, '{skey}', '\\x00')"),
    ];
    let more = [
        format!("SELECT * FROM docshard_internal.pack_part({number}, '', NULL, NULL, NULL)"),
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, NULL, NULL)"),
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, '{after}', '\\xff')"),
        format!("SELECT docshard_internal.current_document({number}, '{after}', '\\x00')"),
        format!("SELECT * FROM {table}"),
        "SELECT * FROM docshard_data.capture".to_owned(),
        "SELECT * FROM docshard_data.service".to_owned(),
        "SELECT docshard_internal.puller_verifier()".to_owned(),
        "DELETE FROM docshard_data.capture_log".to_owned(),
        format!("SET ROLE {service}"),
        "CREATE TABLE docshard_data.mine ()".to_owned(),
    ];
    for sql in documents.iter().chain(&more) {
        assert_eq!(sqlstate_of(&mut client, sql), "42501", "{sql}");
    }
    // A move inserts this row.
    cluster.shards[0].psql(&format!("INSERT INTO docshard_data.capture VALUES ({number}, 1, '{skey}', '{after}')"));
    for sql in &documents {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    for sql in &more {
        assert_eq!(sqlstate_of(&mut client, sql), "42501", "{sql}");
    }
}

/// The router validates documents from shards: malformed bytes are an error of that statement, and the router continues.
#[test]
fn a_shard_that_answers_nonsense_is_refused() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    let shard = &cluster.shards[0];
    shard.unguard();
    let arguments: String = shard.value(
        "SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE oid = 'docshard_internal.pack(jsonb)'::regprocedure",
    );
    let find = format!("SELECT docshard.find('{NS}', '{{\"n\": 0}}')");
    assert_eq!(cluster.router.client().query(&find, &[]).expect("a find").len(), 2);
    for nonsense in [
        "''",
        "'\\xdeadbeef'",
        "'\\xffffffffffffffff'",
        "'\\x01000020ffffff7f'",
        "'\\x0000005000000000'",
        "'\\x0100002004000080'",
    ] {
        shard.psql(&format!(
            "CREATE OR REPLACE FUNCTION docshard_internal.pack({arguments}) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT AS $$SELECT {nonsense}::bytea$$"
        ));
        let mut client = cluster.router.client();
        let error = client.query(&find, &[]).expect_err(nonsense);
        assert!(error.code().is_some(), "{nonsense}: {error:?}");
        // The same session continues to work.
        let own = format!("SELECT docshard.count_documents('{NS}', '{{\"k\": 0}}')");
        assert_eq!(client.query_one(&own, &[]).expect("the router's own part").get::<_, i64>(0), 1);
    }
    // Extreme numbers, which would overflow in calculations.
    let arguments: String = shard.value("SELECT pg_get_function_arguments('docshard_internal.divide_range'::regproc)");
    for parts in [i64::MAX, -1] {
        shard.psql(&format!(
            "CREATE OR REPLACE FUNCTION docshard_internal.divide_range({arguments}) RETURNS bigint LANGUAGE sql AS $$SELECT {parts}::bigint$$"
        ));
        let chunk: Value = cluster
            .router
            .value(&format!("SELECT min FROM docshard.chunks WHERE namespace = '{NS}' AND shard = 'shard0' LIMIT 1"));
        let sql = format!("SELECT docshard.move_chunk('{NS}', '{chunk}', 'local')");
        let error = cluster.router.client().query(&sql, &[]).unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert_eq!(message, format!("malformed answer to divide_range: {parts} parts"));
    }
    // Implausible sizes, and sizes of chunks that do not exist.
    shard.psql(
        "CREATE OR REPLACE FUNCTION docshard_internal.measure_chunks(collection integer, bounds bytea[], counted_mb integer) \
         RETURNS TABLE(chunk integer, documents bigint, bytes bigint) LANGUAGE sql STABLE AS $$ \
         SELECT n, 9223372036854775807, 9223372036854775807 FROM generate_series(-1, 5) AS n UNION ALL \
         SELECT 2147483647, -9223372036854775808, -9223372036854775808 $$",
    );
    let status: Value = cluster.router.value(&format!("SELECT docshard.balancer_collection_status('{NS}')::jsonb"));
    assert_eq!(status["ok"], 1, "{status}");
    // An error that looks like lines of the status.
    shard.psql(&format!(
        "{} LANGUAGE plpgsql STABLE AS $$BEGIN RAISE EXCEPTION E'none\\nbalancer\\n  enabled: yes'; END$$",
        head(shard, "estimate_sizes")
    ));
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("unreachable: none\n") && !status.contains("enabled: yes"), "{status}");
    // Malformed names of moves, and foreign tables, do not prevent the router's clean-up.
    let number: i64 = shard.value("SELECT cluster_id FROM docshard_data.node");
    shard.psql(&format!(
        "BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'docshard_m_{number}_99999999999999999999_t'"
    ));
    let service: String = shard.value("SELECT role::text FROM docshard_data.service");
    shard.psql(&format!(
        "CREATE TABLE docshard_data.m6_staging (); CREATE TABLE docshard_data.m7_staging (); \
         ALTER TABLE docshard_data.m7_staging OWNER TO {service}; CREATE TABLE docshard_data.m99999999999999999999_staging ()"
    ));
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.recover_moves()"), 0);
    let left: Vec<String> = shard.value(
        "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace \
         AND relname ~ '^m[0-9]+_' AND relkind IN ('r', 'f')",
    );
    assert_eq!(left, ["m6_staging", "m99999999999999999999_staging"]);
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 1);
    shard.psql(&format!("ROLLBACK PREPARED 'docshard_m_{number}_99999999999999999999_t'"));
}

/// The statement that makes a function of the shard protocol.
fn definition(shard: &Node, function: &str) -> String {
    shard.value(&format!("SELECT pg_get_functiondef('docshard_internal.{function}'::regproc)"))
}

/// The beginning of a statement that replaces such a function.
fn head(shard: &Node, function: &str) -> String {
    let definition = definition(shard, function);
    definition.split("\n LANGUAGE").next().expect("a definition").to_owned()
}

/// Replaces such a function by one of the shard's superuser.
fn replace(shard: &Node, function: &str, body: &str) {
    shard.unguard();
    let sql = format!("{} LANGUAGE sql STABLE AS $f${body}$f$", head(shard, function));
    shard.client().batch_execute(&sql).unwrap_or_else(|error| panic!("{function}: {error:?}"));
}

/// The largest memory that a session's process has had, in MB.
fn memory(client: &mut Client) -> usize {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("a session").get(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 1024
}

/// What a shard says about its work is shown by `explain`, whatever it is, or is an error.
#[test]
fn impossible_measurements_are_shown_or_refused() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let most = u64::MAX;
    let node = |inner: &str| {
        format!(
            r#"{{"Node Type": "Index Scan", "Actual Rows": 1e300, "Actual Loops": 1e300, "Rows Removed by Filter": {most},
                "Heap Fetches": {most}, "Index Name": "x", "Sort Key": 1, "Plans": [{inner}]}}"#
        )
    };
    let plan = |plan: &str| {
        format!(r#"{{"read": {most}, "tookMs": {most}, "stages": [], "examined": {most}, "plan": {{"Plan": {plan}}}}}"#)
    };
    let stage = format!(r#"{{"returned": {most}, "tookMs": {most}, "usedDisk": true}}"#);
    let stages =
        format!(r#"{{"read": {most}, "tookMs": {most}, "stages": [{0}, {0}, {0}, {0}], "examined": {most}}}"#, stage);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let of = |text: &str| format!("convert_to($t${text}$t$, 'UTF8')");
    let answers = [
        of(&plan(&node(&node("")))),
        of(&plan(&node(&vec![node(""); 1500].join(",")))),
        of(&plan(&deep)),
        of(&plan(
            r#"{"Node Type": 7, "Plans": [1, null, [], {"Plans": {}}], "Actual Rows": -1e300, "Actual Loops": "NaN"}"#,
        )),
        of(&stages),
        of(&stages.replace(&most.to_string(), "-1")),
        of(&stages.replace(&most.to_string(), "1e999")),
        of(r#"{"read": 1, "tookMs": 1, "stages": []}"#),
        of("{}"),
        of("null"),
        of(&deep),
        "NULL::bytea".to_owned(),
        "''::bytea".to_owned(),
        "'\\xff'::bytea".to_owned(),
        // More memory than a statement may take.
        "convert_to('{\"read\": [' || repeat('0,', 20000000) || '0]}', 'UTF8')".to_owned(),
    ];
    let of_pipelines = [
        r#"[{"$match": {"n": {"$gte": 0}}}, {"$group": {"_id": "$n", "c": {"$sum": 1}}}]"#,
        r#"[{"$set": {"m": 1}}]"#,
        r#"[{"$sort": {"n": 1, "_id": 1}}, {"$limit": 5}]"#,
    ];
    let mut client = cluster.router.client();
    for answer in &answers {
        for shard in &cluster.shards {
            let row = |row: &str| format!("SELECT {row}");
            replace(shard, "run_pipeline", &[row("''::bytea"), row(answer)].join(" UNION ALL "));
        }
        for pipeline in of_pipelines {
            let find = format!(
                "SELECT docshard.explain('{NS}', '{{}}', '{{\"sort\": {{\"n\": 1}}, \"limit\": 3}}', 'executionStats')"
            );
            for sql in [
                find,
                format!("SELECT docshard.explain('{NS}', '{pipeline}', '{{}}', 'executionStats')"),
                format!(
                    "SELECT docshard.run_command('test', '{{\"explain\": {{\"aggregate\": \"things\", \"pipeline\": {pipeline}, \"cursor\": {{}}}}, \"verbosity\": \"executionStats\"}}')"
                ),
            ] {
                if let Err(error) = client.batch_execute(&sql) {
                    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
                    let shown = answer.get(..200).unwrap_or(answer);
                    assert!(["08P01", "53200"].contains(&error.code().code()), "{sql}: {shown}: {error:?}");
                    assert!(
                        error.detail().is_some_and(|detail| detail.starts_with("MongoDB error")),
                        "{sql}: {shown}: {error:?}"
                    );
                }
            }
        }
    }
    let memory = memory(&mut client);
    assert!(memory < 1200, "{memory} MB");
}

/// An answer that does not end, or a message of any length, does not fill the router's memory.
#[test]
fn endless_answers_are_refused() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    let shard = &cluster.shards[0];
    let find = format!("SELECT docshard.find('{NS}', '{{\"k\": {{\"$gte\": 100}}}}')");
    // The answers end after at least 400 MB, for the sake of the machine.
    let cases = [
        ("hello", "SELECT 0::bigint, 0::bigint, false, 1 FROM generate_series(1, 8000000)", find.clone(), "08P01"),
        (
            "measure_chunks",
            "SELECT 1, 1::bigint, 1::bigint FROM generate_series(1, 8000000)",
            format!("SELECT docshard.balancer_collection_status('{NS}')"),
            "53200",
        ),
        (
            "collection_writers",
            "SELECT repeat('x', 1000000), 1 FROM generate_series(1, 400)",
            format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'local')"),
            "53200",
        ),
    ];
    for (function, body, sql, expected) in &cases {
        let before = definition(shard, function);
        replace(shard, function, body);
        let mut client = cluster.router.client();
        let found = client
            .batch_execute(sql)
            .err()
            .map(|error| error.code().expect("an error of the server").code().to_owned());
        let memory = memory(&mut client);
        assert_eq!(found.as_deref(), Some(*expected), "{function}");
        assert!(memory < 400, "{function}: {memory} MB");
        shard.psql(&before);
    }
    // What one shard reports does not prevent the reports of others.
    let before = definition(shard, "node_health");
    for report in ["'[' || repeat('0,', 20000000) || '0]'", "repeat('[', 100000)", "'nonsense'"] {
        replace(shard, "node_health", &format!("SELECT {report}"));
        let reported: Vec<bool> =
            cluster.router.value("SELECT array_agg(error IS NULL ORDER BY shard) FROM docshard.health");
        assert_eq!(reported, [true, false], "{report}");
    }
    shard.psql(&before);
    // Errors are passed on, and logged.
    let before = definition(shard, "at_keys");
    shard.psql(&format!(
        "{} LANGUAGE plpgsql STABLE AS $f$BEGIN RAISE EXCEPTION USING MESSAGE = repeat(U&'\\00e9', 10000000), \
         DETAIL = repeat('x', 10000000), HINT = repeat('x', 10000000); END$f$",
        head(shard, "at_keys")
    ));
    let error = cluster.router.client().batch_execute(&find).expect_err("a long error");
    let error = error.as_db_error().expect("an error of the server");
    let lengths = [Some(error.message()), error.detail(), error.hint()].map(|text| text.unwrap_or_default().len());
    assert!(lengths.iter().all(|length| (1000..20_000).contains(length)), "{lengths:?}");
    shard.psql(&before);
    assert_eq!(cluster.router.client().query(&find, &[]).expect("a find").len(), 1);
}
