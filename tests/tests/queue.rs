//! `skipLocked`: workers that take jobs from a queue do not wait for one another, and none takes another's job, while chunks move.

use docshard_tests::Cluster;
use postgres::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const NS: &str = "test.queue";

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Calls a function on the queue; None after a serialization error.
fn try_call(client: &mut Client, function: &str, arguments: &[Value]) -> Option<Value> {
    let arguments: String = arguments.iter().map(|a| format!(", '{a}'")).collect();
    let sql = format!("SELECT to_jsonb(docshard.{function}('{NS}'{arguments}))");
    match client.query_one(&sql, &[]) {
        Ok(row) => Some(row.get::<_, Option<Value>>(0).unwrap_or(Value::Null)),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some("40001"), "{sql}: {error:?}");
            None
        }
    }
}

fn call(client: &mut Client, function: &str, arguments: &[Value]) -> Value {
    try_call(client, function, arguments).expect("no conflict")
}

/// Inserts that many jobs, spread over the shards, so that neighbours are on different ones. Some are in no b-tree of an index.
fn insert_jobs(client: &mut Client, jobs: i64) {
    for n in 0..jobs {
        let state = if n % 7 == 3 { json!(["new", "odd"]) } else { json!("new") };
        call(client, "insert_one", &[json!({"_id": n, "k": n * 100 % 300 + n, "state": state, "at": n})]);
    }
}

/// Takes a job without waiting.
fn take(client: &mut Client, sort: &Value) -> Option<i64> {
    let options = json!({"sort": sort, "skipLocked": true});
    let taken =
        call(client, "find_one_and_update", &[json!({"state": "new"}), json!({"$set": {"state": "taken"}}), options]);
    taken["_id"].as_i64()
}

/// Eight workers take all jobs; `delete`: by deleting them. Some transactions are rolled back, and so are some savepoints.
fn each_job_is_taken_once(sort: Value, index: Option<&str>, delete: bool) {
    const JOBS: i64 = 120;
    const WORKERS: u64 = 8;
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    if let Some(keys) = index {
        run(&mut client, &format!("SELECT docshard.create_index('{NS}', '{keys}')"));
    }
    insert_jobs(&mut client, JOBS);
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let mut client = cluster.router.client();
            let (done, sort) = (Arc::clone(&done), sort.clone());
            thread::spawn(move || {
                let (mut taken, mut round) = (Vec::new(), number);
                let options = json!({"sort": sort, "skipLocked": true, "projection": {"_id": 1}});
                let take = |client: &mut Client| {
                    let (filter, update) = (json!({"state": "new"}), json!({"$set": {"state": "taken", "by": number}}));
                    match delete {
                        true => try_call(client, "find_one_and_delete", &[filter, options.clone()]),
                        false => try_call(client, "find_one_and_update", &[filter, update, options.clone()]),
                    }
                };
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    match round % 5 {
                        0 => {
                            run(&mut client, "BEGIN");
                            take(&mut client);
                            run(&mut client, "ROLLBACK");
                        }
                        1 => {
                            run(&mut client, "BEGIN; SAVEPOINT a");
                            take(&mut client);
                            run(&mut client, "ROLLBACK TO a");
                            let got = take(&mut client);
                            let failed = got.is_none();
                            run(&mut client, if failed { "ROLLBACK" } else { "COMMIT" });
                            taken.extend(got.and_then(|job| job["_id"].as_i64()));
                        }
                        _ => taken.extend(take(&mut client).and_then(|job| job["_id"].as_i64())),
                    }
                }
                taken
            })
        })
        .collect();
    let moves = [(50, "shard1"), (150, "local"), (250, "shard0"), (50, "shard0"), (150, "shard1")];
    let moves: Vec<_> = moves.iter().map(|(k, to)| (NS, json!({"k": k}), *to)).collect();
    cluster.while_chunks_move(&moves, || {});
    while call(&mut client, "count_documents", &[json!({"state": "new"})]) != 0 {
        thread::yield_now();
    }
    done.store(true, Ordering::Relaxed);
    let mut taken: Vec<i64> = workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..JOBS).collect::<Vec<_>>(), "{sort} {index:?} {delete}");
    let left = if delete { 0 } else { JOBS };
    assert_eq!(call(&mut client, "count_documents", &[]), left);
}

#[test]
fn each_job_is_taken_once_by_an_index() {
    each_job_is_taken_once(json!({"at": 1}), Some(r#"{"state": 1, "at": 1}"#), false);
}

#[test]
fn each_job_is_taken_once_without_an_index() {
    each_job_is_taken_once(json!({"at": -1}), None, true);
}

#[test]
fn each_job_is_taken_once_in_any_order() {
    each_job_is_taken_once(json!({}), Some(r#"{"state": 1}"#), false);
}

/// Every worker that has a transaction open has the first job that those before it have left, wherever that is, and has locked no other.
#[test]
fn the_first_job_that_is_not_locked_is_taken() {
    const JOBS: i64 = 14;
    for (sort, index) in [
        (json!({"at": 1}), Some(r#"{"state": 1, "at": 1}"#)),
        (json!({"at": -1}), None),
        (json!({"_id": 1}), None),
        (json!({"k": -1}), None),
        (json!({}), None),
        (json!({}), Some(r#"{"state": 1}"#)),
    ] {
        let cluster = Cluster::spread(NS);
        let mut client = cluster.router.client();
        if let Some(keys) = index {
            run(&mut client, &format!("SELECT docshard.create_index('{NS}', '{keys}')"));
        }
        insert_jobs(&mut client, JOBS);
        let order = json!({"sort": sort});
        let sql = format!("SELECT d->'_id' FROM docshard.find('{NS}', '{{}}', '{order}') AS d");
        let in_order: Vec<i64> =
            client.query(&sql, &[]).unwrap().iter().filter_map(|row| row.get::<_, Value>(0).as_i64()).collect();
        let is_sorted = sort != json!({});
        let mut workers: Vec<Client> = (0..JOBS).map(|_| cluster.router.client()).collect();
        let mut taken = Vec::new();
        for worker in &mut workers {
            run(worker, "SET statement_timeout = '60s'; BEGIN");
            taken.push(take(worker, &sort).expect("a job is left"));
        }
        match is_sorted {
            true => assert_eq!(taken, in_order, "{sort}"),
            false => assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), in_order.len()),
        }
        assert_eq!(take(&mut client, &sort), None, "all are locked");
        // A rollback, also to a savepoint, gives a job back, and nothing else.
        run(&mut workers[5], "ROLLBACK");
        assert_eq!(take(&mut client, &sort), Some(taken[5]), "{sort}");
        assert_eq!(take(&mut client, &sort), None, "{sort}");
        run(&mut workers[5], "BEGIN; SAVEPOINT a");
        run(&mut workers[6], "ROLLBACK");
        assert_eq!(take(&mut workers[5], &sort), Some(taken[6]), "{sort}");
        assert_eq!(take(&mut client, &sort), None, "{sort}");
        run(&mut workers[5], "ROLLBACK TO a");
        assert_eq!(take(&mut client, &sort), Some(taken[6]), "{sort}");
        run(&mut workers[5], "COMMIT");
        for (at, worker) in workers.iter_mut().enumerate().filter(|(at, _)| *at != 5 && *at != 6) {
            run(worker, "COMMIT");
            assert_eq!(take(&mut client, &sort), None, "{sort} {at}");
        }
        assert_eq!(call(&mut client, "count_documents", &[json!({"state": "taken"})]), JOBS);
    }
}

/// A shard whose jobs are all locked takes no part in the transaction of a worker that finds its job elsewhere.
#[test]
fn a_shard_without_a_job_takes_no_part_in_the_commit() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    // Job 0 is on shard0, job 1 on shard1.
    for (n, k) in [(0, 150), (1, 250)] {
        call(&mut client, "insert_one", &[json!({"_id": n, "k": k, "state": "new", "at": n})]);
    }
    let (mut first, mut second) = (cluster.router.client(), cluster.router.client());
    let sort = json!({"at": 1});
    run(&mut first, "BEGIN");
    assert_eq!(take(&mut first, &sort), Some(0));
    run(&mut second, "BEGIN");
    assert_eq!(take(&mut second, &sort), Some(1));
    let using = "SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
                 WHERE c.relnamespace = 'docshard_data'::regnamespace";
    assert_eq!(cluster.shards.iter().map(|shard| shard.value::<i64>(using)).collect::<Vec<_>>(), [1, 1]);
    run(&mut second, "COMMIT");
    run(&mut first, "COMMIT");
}

#[test]
fn under_repeatable_read_a_job_that_has_changed_is_a_conflict() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    insert_jobs(&mut client, 3);
    let mut other = cluster.router.client();
    run(&mut other, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_eq!(call(&mut other, "count_documents", &[json!({"state": "new"})]), 3);
    assert_eq!(take(&mut client, &json!({"at": 1})), Some(0));
    let options = json!({"sort": {"at": 1}, "skipLocked": true});
    let arguments = [json!({"state": "new"}), json!({"$set": {"state": "taken"}}), options];
    assert_eq!(try_call(&mut other, "find_one_and_update", &arguments), None, "40001, as in PostgreSQL");
    run(&mut other, "ROLLBACK");
}
