//! Unique indexes over arrays: the second of two writers of one element waits for the first, and no two documents share an element
//! while chunks move.

use docshard_tests::moving::{NS, PATIENCE, create, move_chunk};
use docshard_tests::{Cluster, wait_until};
use postgres::{Client, error::SqlState};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A router and two shards; keys below 100 on `local`, from 100 on `shard0`.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    create(&cluster, "local", 1, "'tags', '[]'::jsonb", [100]);
    let mut client = cluster.router.client();
    let index = format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"tags\": 1}}', '{{\"unique\": true}}')");
    client.batch_execute(&index).expect("the index");
    move_chunk(&mut client, 100, "shard0").expect("a move");
    cluster
}

fn call(client: &mut Client, function: &str, arguments: &str) -> Result<Value, postgres::Error> {
    let sql = format!("SELECT to_jsonb(docshard.{function}('{NS}', {arguments}))");
    Ok(client.query_one(&sql, &[])?.get::<_, Option<Value>>(0).unwrap_or(Value::Null))
}

fn is_duplicate(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
        && error.as_db_error().is_some_and(|error| error.message().starts_with("E11000"))
}

/// Runs a call while another transaction has written `["x", "y"]` at this key, and then ends that transaction as given. Returns
/// the call's error.
fn beside(
    cluster: &Cluster,
    k: i64,
    end: &str,
    function: &'static str,
    arguments: String,
) -> Result<Value, postgres::Error> {
    let mut first = cluster.router.client();
    first.batch_execute("BEGIN").unwrap();
    call(&mut first, "insert_one", &format!("'{{\"k\": {k}, \"tags\": [\"x\", \"y\"]}}'")).unwrap();
    let mut second = cluster.router.client();
    let second = thread::spawn(move || call(&mut second, function, &arguments));
    let shard = if k < 100 { &cluster.router } else { &cluster.shards[0] };
    wait_until("the second writer to wait", PATIENCE, || {
        shard.value::<bool>("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')")
    });
    first.batch_execute(end).unwrap();
    second.join().expect("a client")
}

#[test]
fn the_second_writer_of_a_key_waits_for_the_first() {
    let cluster = cluster();
    // On the router and on a shard.
    for k in [10, 110] {
        let at = |n: i64| k + n;
        let insert = |n: i64| format!("'{{\"k\": {}, \"tags\": [\"y\", \"z\"]}}'", at(n));
        let error = beside(&cluster, at(0), "COMMIT", "insert_one", insert(0)).expect_err("its key is taken");
        assert!(is_duplicate(&error), "{error:?}");
        beside(&cluster, at(1), "ROLLBACK", "insert_one", insert(1)).expect("nobody has the key");
        let many = |n: i64| {
            format!(
                "ARRAY['{{\"_id\": \"a{0}\", \"k\": {0}, \"tags\": \"y\"}}', '{{\"_id\": \"b{0}\", \"k\": {0}, \"tags\": \"q\"}}']::jsonb[], \
                     '{{\"ordered\": false}}'",
                at(n)
            )
        };
        let done = beside(&cluster, at(2), "COMMIT", "insert_many", many(2)).expect("what can be is inserted");
        assert_eq!(
            (&done["insertedCount"], &done["writeErrors"][0]["keyValue"]),
            (&json!(1), &json!({"k": at(2), "tags": "y"}))
        );
        let done = beside(&cluster, at(3), "ROLLBACK", "insert_many", many(3)).expect("nobody has the key");
        assert_eq!(done["insertedCount"], 2);
        let upsert = |n: i64| {
            format!("'{{\"k\": {}, \"tags\": \"y\"}}', '{{\"$set\": {{\"n\": 1}}}}', '{{\"upsert\": true}}'", at(n))
        };
        let done = beside(&cluster, at(4), "COMMIT", "update_one", upsert(4)).expect("it is an update now");
        assert_eq!((&done["matchedCount"], &done["upsertedCount"]), (&json!(1), &json!(0)), "{done}");
        let done = beside(&cluster, at(5), "ROLLBACK", "update_one", upsert(5)).expect("nobody has the key");
        assert_eq!(done["upsertedCount"], 1, "{done}");
    }
}

#[test]
fn no_two_documents_share_an_element_while_chunks_move() {
    const TAGS: i64 = 40;
    let cluster = cluster();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..5)
        .map(|number| {
            let (mut client, stop) = (cluster.router.client(), Arc::clone(&stop));
            thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(number);
                let (mut done, mut refused) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let tags: Vec<i64> = (0..rng.usize(1..4)).map(|_| rng.i64(0..TAGS)).collect();
                    let (k, new) = (rng.i64(100..103), json!(tags));
                    let of = json!({"k": k, "tags": rng.i64(0..TAGS)});
                    let result = match rng.u8(0..5) {
                        0 | 1 => call(&mut client, "insert_one", &format!("'{}'", json!({"k": k, "tags": new}))),
                        2 => call(&mut client, "update_one", &format!("'{of}', '{}'", json!({"$set": {"tags": new}}))),
                        3 => call(
                            &mut client,
                            "find_one_and_update",
                            &format!("'{of}', '{}'", json!({"$addToSet": {"tags": tags[0]}})),
                        ),
                        _ => call(&mut client, "delete_one", &format!("'{of}'")),
                    };
                    match result {
                        Ok(_) => done += 1,
                        Err(error) if is_duplicate(&error) => refused += 1,
                        // Two transactions that write each other's elements are a deadlock; one of them gets an error.
                        Err(error) => assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}"),
                    }
                }
                (done, refused)
            })
        })
        .collect();
    let mut client = cluster.router.client();
    for to in ["shard1", "local", "shard0", "shard1"] {
        move_chunk(&mut client, 100, to).expect("a move");
    }
    stop.store(true, Ordering::Relaxed);
    let all: Vec<(u64, u64)> = clients.into_iter().map(|client| client.join().expect("a client")).collect();
    println!("done, and refused: {all:?}");
    assert!(all.iter().all(|(done, refused)| *done > 0 && *refused > 0), "{all:?}");
    let documents = client.query(&format!("SELECT d FROM docshard.find('{NS}') AS d"), &[]).unwrap();
    let mut seen = BTreeSet::new();
    for row in &documents {
        let document: Value = row.get(0);
        let tags: BTreeSet<i64> =
            document["tags"].as_array().expect("an array").iter().filter_map(Value::as_i64).collect();
        for tag in tags {
            assert!(seen.insert((document["k"].as_i64(), tag)), "{document}");
        }
    }
    assert!(!seen.is_empty());
}
