//! Servers in the place of a shard that break the protocol: messages without end, of any length, or that nobody asked for. Sessions and
//! workers get an error, their memory is bounded, and they can be cancelled and terminated.

use docshard_tests::impostor::{Attack, Change, Impostor, Row, TlsServer, header, message, scram_server};
use docshard_tests::logins::{self, sqlstate_of};
use docshard_tests::{Cluster, wait_until};
use postgres::Client;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const NS: &str = "test.things";

const PATIENCE: Duration = Duration::from_secs(60);

/// The most memory that a process of the router may take in a test, in MB. Without an attack a session takes about 60.
const MOST_MB: usize = 200;

fn find() -> String {
    format!("SELECT docshard.find('{NS}', '{{\"k\": {{\"$gte\": 100, \"$lt\": 200}}}}')")
}

/// A cluster whose router reaches `shard0` through an impostor.
fn cluster() -> (Cluster, Impostor) {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(100, 290, 10) k"
    ));
    let impostor = Impostor::of(cluster.shards[0].port);
    let options = format!("SET port '{}', ADD sslmode 'disable'", impostor.port);
    cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({options})"));
    assert_eq!(cluster.router.client().query(&find(), &[]).expect("a find").len(), 10);
    (cluster, impostor)
}

fn pid(client: &mut Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).expect("a session").get(0)
}

/// The largest memory that a process has had, in MB; None if there is none.
fn memory(pid: i32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 1024)
}

/// Pid and kind of the router's processes.
fn processes(cluster: &Cluster) -> Vec<(i32, String)> {
    let sql = "SELECT pid, coalesce(backend_type, '') FROM pg_stat_activity WHERE datname = current_database()";
    let rows = cluster.router.client().query(sql, &[]).expect("processes");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn megabyte(kind: u8, before: &[u8]) -> Vec<u8> {
    message(kind, &[before, &vec![b'x'; 1_000_000], b"\0\0"].concat())
}

fn instead_of(kind: u8, first: Vec<u8>, then: fn(usize) -> Vec<u8>) -> Attack {
    Attack { instead_of: kind, at_login: false, first, then, pause: Duration::ZERO }
}

fn setting(name: &str, value: &str) -> Vec<u8> {
    message(b'S', format!("{name}\0{value}\0").as_bytes())
}

fn text(_: usize) -> Vec<u8> {
    vec![b'z'; 1_000_000]
}

fn nothing(_: usize) -> Vec<u8> {
    Vec::new()
}

const GIGABYTE: usize = 0x3fff_fff0;

/// Messages that a statement's answer cannot contain, or not so many of them, and of such a size.
fn attacks() -> Vec<(&'static str, Attack)> {
    let long_row = [&header(b'D', GIGABYTE)[..], &[0, 1], &(GIGABYTE as u32 - 6).to_be_bytes()].concat();
    let description: fn(usize) -> Vec<u8> =
        |_| message(b'T', b"\0\x01run\0\0\0\0\0\0\0\0\0\0\x11\xff\xff\xff\xff\xff\xff\0\x01");
    vec![
        ("notifications", instead_of(b'D', vec![], |_| megabyte(b'A', b"\0\0\0\x01channel\0"))),
        ("small notifications", instead_of(b'D', vec![], |_| message(b'A', b"\0\0\0\x01c\0\0").repeat(10_000))),
        ("notices", instead_of(b'D', vec![], |_| megabyte(b'N', b"SNOTICE\0VNOTICE\0C00000\0M"))),
        (
            "settings",
            instead_of(b'D', vec![], |n| {
                (0..100).flat_map(|i| setting(&format!("name{}", n * 100 + i), &"y".repeat(20_000))).collect()
            }),
        ),
        ("a row of 1 GB", instead_of(b'D', long_row, text)),
        ("a description of 1 GB", instead_of(b'2', header(b'T', GIGABYTE), text)),
        ("a command's end of 1 GB", instead_of(b'C', header(b'C', GIGABYTE), text)),
        ("descriptions", instead_of(b'D', vec![], description)),
        ("ends of commands", instead_of(b'D', vec![], |_| message(b'C', b"SELECT 1\0").repeat(1000))),
        ("synchronisation points", instead_of(b'D', vec![], |_| message(b'Z', b"I").repeat(1000))),
        ("another encoding", instead_of(b'D', setting("client_encoding", "LATIN1"), nothing)),
        ("other dates", instead_of(b'D', setting("DateStyle", "German, DMY"), nothing)),
        ("other strings", instead_of(b'D', setting("standard_conforming_strings", "off"), nothing)),
        ("COPY to the router", instead_of(b'D', message(b'H', &[0, 0, 0]), |_| message(b'd', &[b'q'; 100_000]))),
        ("COPY from the router", instead_of(b'D', message(b'G', &[0, 0, 0]), nothing)),
        ("a malformed row", instead_of(b'D', message(b'D', b"\0\x02\0\0\0\x01"), nothing)),
        ("a notification in between", instead_of(b'C', message(b'A', b"\0\0\0\x01c\0\0"), nothing)),
    ]
}

#[test]
fn messages_that_nobody_asked_for_end_the_connection() {
    let (cluster, impostor) = cluster();
    for (what, attack) in attacks() {
        // A new connection, and one that exists.
        for used in [false, true] {
            let mut client = cluster.router.client();
            client.batch_execute("SET statement_timeout = '40s'").expect("a setting");
            if used {
                assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10);
            }
            impostor.set(Some(attack.clone()));
            assert_eq!(sqlstate_of(&mut client, &find()), "08P01", "{what}");
            assert!(impostor.attacked() > 0, "{what}");
            let taken = memory(pid(&mut client)).expect("a session");
            assert!(taken < MOST_MB, "{what}: {taken} MB");
            // A write whose outcome the shard decides.
            let update = format!("SELECT docshard.update_one('{NS}', '{{\"k\": 100}}', '{{\"$set\": {{\"a\": 1}}}}')");
            let code = sqlstate_of(&mut client, &update);
            assert!(["08007", "08P01"].contains(&code.as_str()), "{what}: {code}");
            impostor.set(None);
            assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10, "{what}");
        }
    }
}

/// Statements whose answers have rows, by the functions that read them.
fn statements() -> Vec<String> {
    let calls = [
        "find('$', '{\"k\": {\"$gte\": 100, \"$lt\": 200}}')",
        "find('$', '{}', '{\"sort\": {\"x\": 1}}')",
        "find('$', '{\"n\": {\"$gte\": 0}}', '{\"sort\": {\"n\": 1}, \"limit\": 3}')",
        "find_one('$', '{\"k\": 110}')",
        "count_documents('$')",
        "count_documents('$', '{\"n\": 0}')",
        "estimated_document_count('$')",
        "distinct('$', 'n')",
        "aggregate('$', '[{\"$group\": {\"_id\": \"$n\", \"all\": {\"$sum\": \"$k\"}}}]')",
        "aggregate('$', '[{\"$sort\": {\"n\": 1}}]')",
        "insert_many('$', ARRAY['{\"_id\": 100, \"k\": 100}', '{\"_id\": 101, \"k\": 100}']::jsonb[], '{\"ordered\": false}')",
        "insert_one('$', '{\"_id\": 150, \"k\": 150, \"n\": 7}')",
        "insert_one('$', '{\"_id\": 151, \"k\": 151, \"n\": 7}')",
        "update_one('$', '{\"k\": 120}', '{\"$inc\": {\"n\": 1}}')",
        "update_one('$', '{\"n\": 0}', '{\"$inc\": {\"m\": 1}}')",
        "update_many('$', '{\"k\": {\"$lt\": 150}}', '{\"$inc\": {\"m\": 1}}')",
        "update_one('$', '{\"k\": 160, \"z\": 1}', '{\"$set\": {\"n\": 1}}', '{\"upsert\": true}')",
        "replace_one('$', '{\"k\": 130}', '{\"k\": 130, \"n\": 9}')",
        "delete_one('$', '{\"k\": 140}')",
        "delete_many('$', '{\"k\": {\"$gte\": 170, \"$lt\": 200}}')",
        "find_one_and_update('$', '{\"k\": 120}', '{\"$inc\": {\"m\": 1}}')",
        "find_one_and_update('$', '{}', '{\"$inc\": {\"m\": 1}}', '{\"sort\": {\"n\": 1}}')",
        "bulk_write('$', '[{\"updateOne\": {\"filter\": {\"k\": 100}, \"update\": {\"$set\": {\"b\": 1}}}}, \
          {\"updateOne\": {\"filter\": {\"k\": 110}, \"update\": {\"$set\": {\"b\": 1}}}}]')",
        "explain('$', '{\"n\": 0}', '{}', 'executionStats')",
        "explain('$', '{\"n\": 0}')",
        "check_collection('$')",
        "index_stats('$')",
        "list_indexes('$')",
        "create_index('$', '{\"later\": 1}')",
        "split_find('$', '{\"k\": 150}')",
        "get_shard_distribution('$', '{\"count\": true}')",
        "run_command('test', '{\"collStats\": \"things\"}')",
        "run_command('test', '{\"dbStats\": 1}')",
        "insert_many('$', ARRAY(SELECT jsonb_build_object('_id', n, 'k', n) FROM generate_series(180, 185) n))",
    ];
    calls
        .iter()
        .map(|call| {
            format!("SELECT docshard.{}", call.replace('$', "\u{1}").replacen('\u{1}', NS, 1).replace('\u{1}', "$"))
        })
        .collect()
}

type Edit = fn(&mut Row);

/// Changes of a row. True: of its columns, which statements refuse; false: of values, which some types of columns accept.
fn changes() -> Vec<(bool, &'static str, Edit)> {
    let columns: [(&str, Edit); 7] = [
        ("the first column is NULL", |row| row[..1].fill(None)),
        ("the last column is NULL", |row| {
            if let Some(last) = row.last_mut() {
                *last = None;
            }
        }),
        ("all columns are NULL", |row| row.fill(None)),
        ("the last column is missing", |row| {
            row.pop();
        }),
        ("there are no columns", Row::clear),
        ("there is another column", |row| row.push(Some(vec![1]))),
        ("another column is NULL", |row| row.push(None)),
    ];
    let values: [(&str, Edit); 3] = [
        ("empty values", |row| row.iter_mut().flatten().for_each(Vec::clear)),
        ("a longer value", |row| row.iter_mut().flatten().for_each(|value| value.push(0))),
        ("a shorter value", |row| {
            row.iter_mut().flatten().for_each(|value| {
                value.pop();
            });
        }),
    ];
    let all = columns.map(|(what, change)| (true, what, change)).into_iter();
    all.chain(values.map(|(what, change)| (false, what, change))).collect()
}

/// The error's SQLSTATE and text, if there is one.
fn outcome(client: &mut Client, sql: &str) -> Result<Vec<String>, (String, String)> {
    match client.simple_query(sql) {
        Ok(messages) => Ok(messages
            .iter()
            .filter_map(|message| match message {
                postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
                _ => None,
            })
            .collect()),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            Err((error.code().code().to_owned(), format!("{error:?}")))
        }
    }
}

/// Rows with other columns than the statement returns, NULL or values of another length. Only what the protocol allows in that place may
/// have another effect: NULL for a document that is not there.
#[test]
fn rows_with_other_columns_break_the_protocol() {
    let (cluster, impostor) = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '40s'").expect("a setting");
    let (mut wrong, find_one) = (Vec::new(), format!("find_one('{NS}', '{{\"k\": 110}}')"));
    for sql in statements() {
        let sql = format!("BEGIN; {sql}; ROLLBACK");
        client.batch_execute(&format!("ROLLBACK; {}", find())).expect("a find");
        let expected = outcome(&mut client, &sql);
        for (of_columns, what, change) in changes() {
            // With a connection that exists, so that the handshake is not changed.
            client.batch_execute(&format!("ROLLBACK; {}", find())).expect("a find");
            impostor.change_rows(Some(Arc::new(change) as Change));
            let found = outcome(&mut client, &sql);
            impostor.change_rows(None);
            match &found {
                Err((code, text)) if code == "08P01" && text.contains("shard0") => {}
                // A row that nobody reads.
                _ if found == expected => {}
                Err((code, _)) if !of_columns && code != "XX000" => {}
                Ok(_) if !of_columns => {}
                Ok(rows) if sql.contains(&find_one) && what.contains("NULL") && rows == &["NULL"] => {}
                // The time of the last reset of statistics may be NULL; the numbers change.
                Ok(_) if sql.contains("index_stats") && what == "the last column is NULL" => {}
                // A command's reply has the error, and a report leaves out a shard that breaks the protocol.
                Ok(rows) if rows.iter().any(|row| row.contains("protocol violation by shard \\\"shard0")) => {}
                Ok(rows) if rows.iter().any(|row| row.starts_with("(shard0,1,,")) => {}
                _ => wrong.push(format!("{sql}: {what}: {found:?}")),
            }
        }
    }
    client.batch_execute(&format!("ROLLBACK; {}", find())).expect("a find");
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

/// A random change of a row's columns and values.
fn random_change(row: &mut Row, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..4) {
        let at = random.usize(0..=row.len());
        let value = (0..random.usize(0..20)).map(|_| random.u8(..)).collect();
        match (random.u8(0..9), row.get_mut(at)) {
            (0, Some(column)) => *column = None,
            (1, Some(_)) => drop(row.remove(at)),
            (2, _) => row.insert(at, None),
            (3, _) => row.insert(at, Some(value)),
            (4, Some(column)) => *column = Some(value),
            (5, Some(Some(column))) => column.truncate(random.usize(0..=column.len())),
            (6, Some(Some(column))) => column.extend(value),
            (7, Some(Some(column))) if !column.is_empty() => {
                let byte = random.usize(0..column.len());
                column[byte] = random.u8(..);
            }
            (8, _) => random.shuffle(row),
            _ => {}
        }
    }
}

#[test]
fn random_rows_are_refused_in_order() {
    let (cluster, impostor) = cluster();
    let rounds = std::env::var("DOCSHARD_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '40s'").expect("a setting");
    let mut outcomes = std::collections::BTreeMap::<_, usize>::new();
    for (seed, sql) in (0..rounds).flat_map(|_| statements()).enumerate() {
        client.batch_execute(&format!("ROLLBACK; {}", find())).expect("a find");
        let random = std::sync::Mutex::new(fastrand::Rng::with_seed(seed as u64));
        let change = move |row: &mut Row| random_change(row, &mut random.lock().expect("no panic"));
        impostor.change_rows(Some(Arc::new(change)));
        let found = outcome(&mut client, &format!("BEGIN; {sql}; ROLLBACK"));
        impostor.change_rows(None);
        let code = found.as_ref().map_or_else(|(code, _)| code.as_str(), |_| "00000");
        assert_ne!(code, "XX000", "{seed}: {sql}: {found:?}");
        *outcomes.entry(code.to_owned()).or_default() += 1;
    }
    client.batch_execute(&format!("ROLLBACK; {}", find())).expect("a find");
    assert!(outcomes.get("08P01").is_some_and(|count| *count > 20), "{outcomes:?}");
    println!("{outcomes:?}");
}

/// The statements before the main one of a request return one row at most.
#[test]
fn rows_that_nobody_reads_have_an_end() {
    let (cluster, impostor) = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '40s'").expect("a setting");
    assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10);
    let row: fn(usize) -> Vec<u8> = |_| message(b'D', b"\0\x01\0\0\0\x01\x01").repeat(1_000);
    impostor.set(Some(instead_of(b'D', vec![], row)));
    let delete = format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$gte\": 100, \"$lt\": 120}}}}')");
    assert_eq!(sqlstate_of(&mut client, &delete), "08P01");
    assert!(impostor.attacked() > 0);
    impostor.set(None);
    assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10);
}

/// A row that comes byte by byte.
fn drip() -> Attack {
    let first = [&header(b'D', 100_000)[..], &[0, 1]].concat();
    Attack { pause: Duration::from_secs(1), ..instead_of(b'D', first, |_| vec![0]) }
}

#[test]
fn statement_timeout_ends_a_statement_whose_answer_comes_byte_by_byte() {
    let (cluster, impostor) = cluster();
    for (sql, expected) in [
        (find(), "57014"),
        (format!("SELECT docshard.find('{NS}', '{{}}', '{{\"sort\": {{\"x\": 1}}}}')"), "57014"),
        (format!("SELECT docshard.count_documents('{NS}')"), "57014"),
        (format!("SELECT docshard.update_one('{NS}', '{{\"k\": 110}}', '{{\"$set\": {{\"a\": 1}}}}')"), "08007"),
        (format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$set\": {{\"a\": 1}}}}')"), "57014"),
        (format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$lt\": 150}}}}')"), "57014"),
    ] {
        impostor.set(None);
        let mut client = cluster.router.client();
        assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10);
        client.batch_execute("SET statement_timeout = '2s'").expect("a setting");
        impostor.set(Some(drip()));
        let began = Instant::now();
        assert_eq!(sqlstate_of(&mut client, &sql), expected, "{sql}");
        assert!(began.elapsed() < Duration::from_secs(20), "{sql}: {:?}", began.elapsed());
        assert!(impostor.attacked() > 0, "{sql}");
    }
}

/// The worker gives such a shard up, serves the others, and shows what it waits for.
#[test]
fn a_shard_that_answers_byte_by_byte_does_not_stop_the_worker() {
    let (cluster, impostor) = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '1000')");
    router.psql("SELECT docshard.set_setting('balancer_interval_ms', '1000')");
    router.psql("ALTER SYSTEM SET docshard.worker_timeout = '8s'");
    router.psql("SELECT pg_reload_conf()");
    let counter = || cluster.shards[1].value::<i64>("SELECT counter FROM docshard_data.node");
    let status = |field: &str| {
        router.value::<Option<String>>(&format!("SELECT docshard.balancer_status()::jsonb #>> '{{{field}}}'"))
    };
    let error = "SELECT error FROM docshard.shard_health() WHERE shard = 'shard0'";
    // The worker reads its settings between two advances.
    let before = counter();
    wait_until("the counter advances twice", PATIENCE, || counter() > before + 1);

    impostor.set(Some(drip()));
    wait_until("the worker waits for the shard", PATIENCE, || status("activity,shard").as_deref() == Some("shard0"));
    assert!(status("activity,what").is_some() && status("activity,since").is_some());
    wait_until("the worker gives it up", PATIENCE, || {
        status("lastError")
            .is_some_and(|error| error.contains("shard \"shard0\" does not answer: a statement has not ended"))
    });
    assert!(status("resting").expect("a list").contains("shard0"));
    for _ in 0..2 {
        let before = counter();
        wait_until("the other shard is served", PATIENCE, || counter() > before);
    }

    // Only the worker's connections that exist are attacked, so that the report is not.
    router.psql("ALTER SYSTEM SET docshard.worker_timeout = '20s'");
    router.psql("SELECT pg_reload_conf()");
    wait_until("a long wait is an error in the report", PATIENCE, || {
        let is_long = status("activity,seconds").is_some_and(|seconds| seconds.parse::<i64>().expect("a number") >= 10);
        if !is_long || status("activity,shard").as_deref() != Some("shard0") {
            return false;
        }
        impostor.pause(true);
        let error = router.value::<Option<String>>(error);
        impostor.pause(false);
        error.is_some_and(|error| error.contains("the background worker has waited for it"))
    });
    impostor.set(None);
    wait_until("the shard is served again", PATIENCE, || {
        router.value::<Option<String>>(error).is_none() && status("lastError").is_none()
    });
}

/// TLS records without data keep no process from serving a cancel, or SIGTERM.
#[test]
fn key_updates_over_tls_do_not_outlive_a_cancel() {
    let (cluster, impostor) = cluster();
    let server = TlsServer::of_key_updates();
    let options = format!("SET port '{}', SET sslmode 'require'", server.port);
    cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({options})"));
    let (mut canceled, mut terminated) = (cluster.router.client(), cluster.router.client());
    canceled.batch_execute("SET statement_timeout = '12s'").expect("a setting");
    let terminated_pid = pid(&mut terminated);
    let canceled = thread::spawn(move || sqlstate_of(&mut canceled, &find()));
    let terminated = thread::spawn(move || terminated.batch_execute(&find()).expect_err("it is terminated"));
    // The server begins after 8 seconds.
    thread::sleep(Duration::from_secs(12));
    cluster.router.client().execute("SELECT pg_terminate_backend($1)", &[&terminated_pid]).expect("a signal");
    wait_until("both have ended", Duration::from_secs(30), || canceled.is_finished() && terminated.is_finished());
    assert_eq!(canceled.join().expect("no panic"), "57014");
    drop(impostor);
}

/// An error report of 1 GB: the statement can be cancelled, the process terminated.
#[test]
fn a_long_error_does_not_outlive_a_cancel() {
    let (cluster, impostor) = cluster();
    let first = [&header(b'E', GIGABYTE)[..], b"SERROR\0VERROR\0CXX000\0M"].concat();
    let fast = instead_of(b'D', first, text);
    let slow = Attack { pause: Duration::from_millis(5), ..fast.clone() };
    let mut client = cluster.router.client();
    // The fast one arrives before a cancel, and has no end, so it is malformed.
    for (attack, timeout, expected) in [(slow.clone(), "1s", "57014"), (fast, "40s", "08P01")] {
        client.batch_execute(&format!("SET statement_timeout = '{timeout}'")).expect("a setting");
        impostor.set(Some(attack));
        let began = Instant::now();
        assert_eq!(sqlstate_of(&mut client, &find()), expected);
        assert!(timeout != "1s" || began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let taken = memory(pid(&mut client)).expect("a session");
        assert!(taken < MOST_MB, "{taken} MB");
    }
    impostor.set(Some(slow));

    let mut other = cluster.router.client();
    let other_pid = pid(&mut other);
    thread::scope(|scope| {
        let attacked = impostor.attacked();
        let running = scope.spawn(move || other.batch_execute(&find()).expect_err("it is terminated"));
        wait_until("it is attacked", PATIENCE, || impostor.attacked() > attacked);
        thread::sleep(Duration::from_millis(500));
        client.execute("SELECT pg_terminate_backend($1)", &[&other_pid]).expect("a signal");
        wait_until("it has ended", Duration::from_secs(20), || memory(other_pid).is_none());
        drop(running.join());
    });
}

#[test]
fn a_login_that_does_not_end_is_refused() {
    let (cluster, impostor) = cluster();
    let settings: fn(usize) -> Vec<u8> =
        |n| (0..100).flat_map(|i| setting(&format!("name{}", n * 100 + i), &"y".repeat(20_000))).collect();
    let row: fn(usize) -> Vec<u8> = |n| match n {
        0 => message(b'T', b"\0\x01run\0\0\0\0\0\0\0\0\0\0\x11\xff\xff\xff\xff\xff\xff\0\x01"),
        _ => message(b'D', b"\0\x01\0\0\0\x04abcd").repeat(10_000),
    };
    let cases = [
        ("settings", b'S', vec![], settings),
        ("notifications", b'K', vec![], (|_| megabyte(b'A', b"\0\0\0\x01channel\0")) as fn(usize) -> Vec<u8>),
        ("notices", b'S', vec![], |_| megabyte(b'N', b"SNOTICE\0VNOTICE\0C00000\0M")),
        ("rows", b'S', vec![], row),
        ("an error of 1 GB", b'S', [&header(b'E', GIGABYTE)[..], b"SERROR\0VERROR\0CXX000\0M"].concat(), text),
        ("an error of 1 GB first", b'R', [&header(b'E', GIGABYTE)[..], b"SERROR\0VERROR\0CXX000\0M"].concat(), text),
        ("an error without end", b'R', b"E".to_vec(), text),
        ("a notice of 1 GB", b'K', header(b'N', GIGABYTE), text),
    ];
    for (what, kind, first, then) in cases {
        let mut client = cluster.router.client();
        client.batch_execute("SET statement_timeout = '40s'").expect("a setting");
        impostor.set(Some(Attack { at_login: true, ..instead_of(kind, first, then) }));
        assert_eq!(sqlstate_of(&mut client, &find()), "08001", "{what}");
        let taken = memory(pid(&mut client)).expect("a session");
        assert!(taken < MOST_MB, "{what}: {taken} MB");
        impostor.set(None);
        assert_eq!(client.query(&find(), &[]).expect("a find").len(), 10, "{what}");
    }
}

/// libpq would hash the password for half an hour, and would not notice any signal.
#[test]
fn a_server_cannot_keep_libpq_busy() {
    let (cluster, _impostor) = cluster();
    let refused = |options: &str, reason: &str| {
        cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({options})"));
        let mut client = cluster.router.client();
        client.batch_execute("SET statement_timeout = '20s'").expect("a setting");
        let error = client.query(&find(), &[]).expect_err("a refused login");
        let error = error.as_db_error().expect("the router's error");
        assert_eq!(error.code().code(), "08001");
        assert!(format!("{error:?}").contains(reason), "{error:?}");
    };
    let iterations_of_scram = "iterations of SCRAM";
    // libpq would take what is behind the list of mechanisms for the header of the next message.
    for (iterations, behind) in [("2147483647", &b""[..]), ("4096", b"R\0\0\x01\x34\0\0\0\x0b")] {
        refused(&format!("SET port '{}'", scram_server(iterations, behind)), iterations_of_scram);
    }
    let server = TlsServer::of_scram("2147483647");
    refused(&format!("SET port '{}', SET sslmode 'require'", server.port), iterations_of_scram);
    // In another handshake libpq would wait for what it gets between its calls only.
    let server = TlsServer::of_renegotiation();
    refused(&format!("SET port '{}'", server.port), "could not connect");
    // Worker and keeper connect, too: none of them may keep the server from stopping.
    let mut cluster = cluster;
    cluster.router.stop();
}

/// The worker, the keeper and `status()` use the same connections.
#[test]
fn workers_and_reports_survive_the_attacks() {
    let (cluster, impostor) = cluster();
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '1000')");
    let is_worker = |kind: &str| kind.starts_with("docshard");
    let before: Vec<_> = processes(&cluster).into_iter().filter(|(_, kind)| is_worker(kind)).collect();
    assert!(!before.is_empty());
    for (what, attack) in attacks().into_iter().filter(|(what, _)| {
        ["notifications", "notices", "settings", "a row of 1 GB", "ends of commands"].contains(what)
    }) {
        impostor.set(Some(attack));
        wait_until("a worker is attacked", PATIENCE, || impostor.attacked() > 2);
        let status: String = cluster.router.value("SELECT docshard.status()");
        assert!(status.contains("unreachable"), "{what}: {status}");
        for (pid, kind) in processes(&cluster) {
            let taken = memory(pid).unwrap_or(0);
            assert!(taken < MOST_MB, "{what}: {kind}: {taken} MB");
        }
        impostor.set(None);
    }
    wait_until("the shard is reached again", PATIENCE, || {
        !cluster.router.value::<String>("SELECT docshard.status()").contains("unreachable")
    });
    let after = processes(&cluster);
    for worker in before.iter().filter(|(_, kind)| kind == "docshard worker") {
        assert!(after.contains(worker), "{worker:?} has survived");
    }
}

/// Limits hold over TLS, too: a shard's superuser has replaced a function, and long documents are read.
#[test]
fn long_messages_over_tls() {
    let cluster = Cluster::secure_servers(1);
    for shard in &cluster.shards {
        cluster.router.add_shard(shard);
    }
    logins::spread(&cluster, 1);
    let shard = &cluster.shards[0];
    let find = format!("SELECT docshard.find('{}', '{{\"k\": {{\"$gte\": 100}}}}')", logins::NS);
    assert_eq!(cluster.router.client().query(&find, &[]).expect("a find").len(), 1);
    shard.unguard();
    let definition: String = shard.value("SELECT pg_get_functiondef('docshard_internal.at_keys'::regproc)");
    let head = definition.split("\n LANGUAGE").next().expect("a definition").to_owned();
    for (body, expected) in [
        ("FOR i IN 1..100 LOOP RAISE NOTICE '%', repeat('x', 1000000); END LOOP; RETURN NULL;", "08P01"),
        ("RAISE EXCEPTION '%', repeat('x', 50000000);", "P0001"),
    ] {
        shard.psql(&format!("{head} LANGUAGE plpgsql STABLE AS $f$ BEGIN {body} END $f$"));
        let mut client = cluster.router.client();
        assert_eq!(sqlstate_of(&mut client, &find), expected, "{body}");
        let taken = memory(pid(&mut client)).expect("a session");
        assert!(taken < MOST_MB, "{body}: {taken} MB");
    }
    shard.psql(&definition);
    // Rows of any length arrive whole.
    let mut client = cluster.router.client();
    let long = "x".repeat(3_000_000);
    client
        .batch_execute(&format!(
            "SELECT docshard.insert_one('{}', '{{\"_id\": 1000, \"k\": 1000, \"t\": \"{long}\"}}')",
            logins::NS
        ))
        .expect("a long document");
    let sql = format!("SELECT length(docshard.find_one('{}', '{{\"k\": 1000}}') ->> 't')", logins::NS);
    assert_eq!(client.query_one(&sql, &[]).expect("it").get::<_, i32>(0), 3_000_000);
}
