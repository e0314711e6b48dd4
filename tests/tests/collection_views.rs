//! Views over sharded collections: whose rights count, and that they stay whole while others define, change and drop them.

use docshard_tests::logins::sqlstate_of;
use docshard_tests::{Cluster, wait_until};
use postgres::Client;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const NS: &str = "test.things";

/// A collection with keys 0 to 299 on all nodes, and a view of those from 150 on.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(0, 299) k"
    ));
    create(&mut cluster.router.client(), "high", "things", "[{\"$match\": {\"k\": {\"$gte\": 150}}}]").unwrap();
    cluster
}

fn create(client: &mut Client, name: &str, on: &str, pipeline: &str) -> Result<(), postgres::Error> {
    let options = format!("{{\"viewOn\": \"{on}\", \"pipeline\": {pipeline}}}");
    client.batch_execute(&format!("SELECT docshard.create_collection('test.{name}', '{options}')"))
}

fn count(client: &mut Client, name: &str) -> i64 {
    let sql = format!("SELECT docshard.count_documents('test.{name}')");
    client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

fn code(error: &postgres::Error) -> &str {
    error.code().map_or("", |state| state.code())
}

#[test]
fn a_view_gives_no_right_to_what_it_reads() {
    let cluster = cluster();
    let router = &cluster.router;
    for (role, granted) in [
        ("reader", "{\"read\": \"test.things\"}"),
        ("writer", "{\"write\": \"test\"}"),
        ("other", "{\"write\": [\"test.high\", \"test.elsewhere\"]}"),
    ] {
        router.psql(&format!("CREATE ROLE {role} LOGIN"));
        router.psql(&format!("SELECT docshard.grant_access('{role}', '{granted}')"));
    }
    let session = |role: &str| router.try_client_as(role, "postgres").unwrap();
    let reads = [
        "SELECT docshard.find('test.high')",
        "SELECT docshard.find_one('test.high', '{\"k\": 200}')",
        "SELECT docshard.count_documents('test.high', '{\"k\": 200}')",
        "SELECT docshard.distinct('test.high', 'k')",
        "SELECT docshard.aggregate('test.high', '[{\"$count\": \"n\"}]')",
        "SELECT docshard.estimated_document_count('test.high')",
    ];
    for role in ["reader", "writer"] {
        let mut client = session(role);
        for sql in reads {
            assert!(!client.query(sql, &[]).unwrap_or_else(|e| panic!("{role}: {sql}: {e:?}")).is_empty(), "{sql}");
        }
        assert_eq!(count(&mut client, "high"), 150);
        for sql in [
            "SELECT docshard.insert_one('test.high', '{\"_id\": 1, \"k\": 1}')",
            "SELECT docshard.update_many('test.high', '{}', '{\"$set\": {\"n\": 1}}')",
            "SELECT docshard.delete_many('test.high', '{}')",
        ] {
            assert_eq!(sqlstate_of(&mut client, sql), "42809", "{role}: {sql}");
        }
        for sql in [
            "SELECT docshard.create_collection('test.own', '{\"viewOn\": \"things\"}')",
            "SELECT docshard.modify_collection('test.high', '{\"pipeline\": []}')",
            "SELECT docshard.drop_collection('test.high')",
            "INSERT INTO docshard_catalog.views (namespace, database, view_on, pipeline) VALUES ('test.own', 'test', 'things', '[]')",
            "DELETE FROM docshard_catalog.views",
        ] {
            assert_eq!(sqlstate_of(&mut client, sql), "42501", "{role}: {sql}");
        }
        let command = "SELECT docshard.run_command('test', '{\"create\": \"own\", \"viewOn\": \"things\"}') ->> 'code'";
        assert_eq!(client.query_one(command, &[]).unwrap().get::<_, String>(0), "13", "{role}");
    }
    let mut other = session("other");
    for sql in reads {
        assert_eq!(sqlstate_of(&mut other, sql), "42501", "{sql}");
    }
    // What it may read is below a view, too.
    router.psql("SELECT docshard.create_collection('test.of_other', '{\"viewOn\": \"elsewhere\"}')");
    router.psql("SELECT docshard.insert_one('test.elsewhere', '{\"_id\": 1}')");
    assert_eq!(count(&mut other, "of_other"), 1);
    // A view that is made to read something else gives nothing away.
    router.psql("SELECT docshard.modify_collection('test.of_other', '{\"viewOn\": \"high\"}')");
    assert_eq!(sqlstate_of(&mut other, "SELECT docshard.find('test.of_other')"), "42501");
}

/// Runs a statement in a session of its own, and waits until it waits for a lock.
fn blocked(cluster: &Cluster, sql: String) -> thread::JoinHandle<Result<(), postgres::Error>> {
    let mut client = cluster.router.client();
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let running = thread::spawn(move || client.batch_execute(&sql));
    let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
    wait_until("a lock", Duration::from_secs(30), || cluster.router.value::<i64>(&waits) > 0);
    running
}

#[test]
fn a_name_is_of_a_view_or_of_a_collection() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN").unwrap();
    create(&mut client, "x", "things", "[]").unwrap();
    let insert = blocked(&cluster, "SELECT docshard.insert_one('test.x', '{\"_id\": 1}')".to_owned());
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(code(&insert.join().unwrap().unwrap_err()), "42809");
    assert_eq!(count(&mut client, "x"), 300);

    client.batch_execute("BEGIN; SELECT docshard.insert_one('test.y', '{\"_id\": 1}')").unwrap();
    let view = blocked(&cluster, "SELECT docshard.create_collection('test.y', '{\"viewOn\": \"things\"}')".to_owned());
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(code(&view.join().unwrap().unwrap_err()), "42P07");
    assert_eq!(count(&mut client, "y"), 1);

    // What is rolled back is in nobody's way.
    client.batch_execute("BEGIN").unwrap();
    create(&mut client, "z", "things", "[]").unwrap();
    let shard = blocked(&cluster, "SELECT docshard.shard_collection('test.z', '{\"k\": 1}')".to_owned());
    assert_eq!(count(&mut client, "z"), 300);
    client.batch_execute("ROLLBACK").unwrap();
    shard.join().unwrap().unwrap();
    assert_eq!(count(&mut client, "z"), 0);
}

#[test]
fn of_two_that_create_a_collection_at_once_one_is_refused() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let with = |options: &str| format!("SELECT docshard.create_collection('test.fresh', '{options}')");
    client.batch_execute(&format!("BEGIN; {}", with("{}"))).expect("created");
    let second = blocked(&cluster, with(r#"{"collation": {"locale": "en", "strength": 2}}"#));
    let same =
        blocked(&cluster, r#"SELECT 1 / (docshard.run_command('test', '{"create": "fresh"}') ->> 'ok')::int"#.into());
    let insert = blocked(&cluster, "SELECT docshard.insert_one('test.fresh', '{\"_id\": 1}')".into());
    client.batch_execute("COMMIT").expect("kept");
    let refused = second.join().expect("it ends").expect_err("there is one with other options");
    assert_eq!(code(&refused), "42P07");
    same.join().expect("it ends").expect("there is one with these options");
    insert.join().expect("it ends").expect("there is one");
    assert_eq!(count(&mut client, "fresh"), 1);
}

#[test]
fn views_that_are_defined_at_once_form_no_cycle() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN").unwrap();
    create(&mut client, "a", "b", "[]").unwrap();
    let other = blocked(&cluster, "SELECT docshard.create_collection('test.b', '{\"viewOn\": \"a\"}')".to_owned());
    client.batch_execute("COMMIT").unwrap();
    let error = other.join().unwrap().unwrap_err();
    assert!(
        error.as_db_error().and_then(|e| e.detail()).is_some_and(|detail| detail.contains("GraphContainsCycle")),
        "{error:?}"
    );
    assert_eq!(count(&mut client, "a"), 0);
}

/// A chain that the catalog has from elsewhere, such as a damaged dump, ends reads in an error, not in a loop.
#[test]
fn a_damaged_catalog_is_an_error() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "INSERT INTO docshard_catalog.views (namespace, database, view_on, pipeline) VALUES \
             ('test.p', 'test', 'q', '[]'), ('test.q', 'test', 'p', '[]'), ('test.r', 'test', 'things', '{}'), ('test.s', 'test', 'things', '[1]')",
        )
        .unwrap();
    for (name, detail) in [("p", "ViewDepthLimitExceeded"), ("r", "InvalidViewDefinition"), ("s", "TypeMismatch")] {
        let error = client.batch_execute(&format!("SELECT docshard.find('test.{name}')")).unwrap_err();
        assert!(error.as_db_error().and_then(|e| e.detail()).is_some_and(|found| found.contains(detail)), "{error:?}");
    }
    for name in ["p", "q", "s"] {
        client.batch_execute(&format!("SELECT docshard.drop_collection('test.{name}')")).unwrap();
    }
}

#[test]
fn views_are_read_while_they_are_changed_and_dropped() {
    let cluster = cluster();
    let (router, done) = (&cluster.router, AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut seen) = (router.client(), [0; 3]);
                    while !done.load(Ordering::Relaxed) {
                        // One of its definitions, or none.
                        let which = match count(&mut client, "changing") {
                            150 => 0,
                            100 => 1,
                            0 => 2,
                            other => panic!("{other} documents"),
                        };
                        seen[which] += 1;
                        assert_eq!(count(&mut client, "high"), 150);
                    }
                    seen
                })
            })
            .collect();
        let mut client = router.client();
        for round in 0..40 {
            create(&mut client, "changing", "high", "[]").unwrap();
            let low = "{\"viewOn\": \"things\", \"pipeline\": [{\"$match\": {\"k\": {\"$lt\": 100}}}]}";
            client.batch_execute(&format!("SELECT docshard.modify_collection('test.changing', '{low}')")).unwrap();
            if round % 4 == 0 {
                client.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 0}', 'shard0')").unwrap();
                client.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 0}', 'local')").unwrap();
            }
            client.batch_execute("SELECT docshard.drop_collection('test.changing')").unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let seen = reader.join().unwrap();
            assert!(seen.iter().sum::<i32>() > 10, "{seen:?}");
        }
    });
}

/// `$$NOW` is one time in a statement, also if only a view names it, and the statement reads the view once for each document.
#[test]
fn a_view_has_the_time_of_its_statement() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    create(&mut client, "timed", "things", r#"[{"$limit": 1}, {"$project": {"now": "$$NOW"}}]"#).unwrap();
    let lookup = r#"{"$lookup": {"from": "timed", "let": {"k": "$k"}, "as": "found",
        "pipeline": [{"$match": {"$expr": {"$gte": ["$$k", 0]}}}]}}"#;
    for (time, other) in [("null", "null"), ("\"$$NOW\"", "\"$time\"")] {
        let sql = format!(
            r#"SELECT DISTINCT d FROM docshard.aggregate('{NS}', '[{{"$set": {{"time": {time}}}}}, {lookup}, {{"$unwind": "$found"}},
               {{"$project": {{"_id": 0, "found.now": 1, "late": {{"$subtract": ["$found.now", {other}]}}}}}}]') AS d"#
        );
        let times = client.query(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        let times: Vec<serde_json::Value> = times.iter().map(|row| row.get(0)).collect();
        assert_eq!(times.len(), 1, "{times:?}");
        assert!(time == "null" || times[0]["late"] == 0, "{times:?}");
    }
}
