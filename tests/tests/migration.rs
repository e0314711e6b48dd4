//! Moves of chunks: under reads and writes, cancelled, and with servers killed at any time.

use docshard_tests::moving::{
    NS, check_clean, count, create, in_tables, keep_from_loading, move_chunk, owner, recover, start_move, step,
};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A router and two shards with a collection of `documents` documents, `k` from 0. It has two chunks, each with half of the
/// documents, both on `shard0`.
fn cluster(documents: i64) -> Cluster {
    let cluster = Cluster::start(2);
    create(&cluster, "local", documents, "'pad', repeat('x', 200)", [documents / 2]);
    let mut client = cluster.router.client();
    for k in [0, documents - 1] {
        move_chunk(&mut client, k, "shard0").expect("a move");
    }
    assert_eq!(count(&mut client), documents);
    cluster
}

/// Checks that no leftovers of a move exist and that no document is lost or duplicated.
fn check_all(cluster: &Cluster, documents: i64) {
    check_clean(cluster);
    assert_eq!(in_tables(cluster), documents, "documents in all tables");
    let mut client = cluster.router.client();
    assert_eq!(count(&mut client), documents);
    let sum: i64 = client
        .query_one(&format!("SELECT sum((d->>'k')::int8)::int8 FROM docshard.find('{NS}', '{{}}') d"), &[])
        .expect("a find")
        .get(0);
    assert_eq!(sum, documents * (documents - 1) / 2);
}

#[test]
fn reads_never_differ_while_chunks_move() {
    let cluster = cluster(20_000);
    let stop = Arc::new(AtomicBool::new(false));
    let slowest = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..3)
        .map(|reader| {
            let (stop, slowest) = (Arc::clone(&stop), Arc::clone(&slowest));
            let mut client = cluster.router.client();
            thread::spawn(move || {
                let mut reads = 0;
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let found: i64 = if reader == 0 {
                        let sql = format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"k\": {{\"$gte\": 100}}}}')");
                        client.query_one(&sql, &[]).expect("a find").get::<_, i64>(0) + 100
                    } else {
                        count(&mut client)
                    };
                    assert_eq!(found, 20_000);
                    slowest.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    let mut client = cluster.router.client();
    for round in 0..8 {
        for k in [0, 15_000] {
            let to = ["shard1", "local", "shard0"][round % 3];
            let answer = move_chunk(&mut client, k, to).expect("a move");
            assert_eq!(answer["ok"], 1);
            assert_eq!(answer["documents"], 10_000, "{answer}");
            assert_eq!(owner(&cluster.router, k), to);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let reads: i32 = readers.into_iter().map(|reader| reader.join().expect("a reader")).sum();
    println!("{reads} reads, the slowest took {} ms", slowest.load(Ordering::Relaxed));
    assert!(reads > 0);
    check_all(&cluster, 20_000);
}

#[test]
fn writes_wait_for_the_move_and_succeed() {
    let cluster = cluster(10_000);
    let stop = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicU64::new(10_000));
    let writers: Vec<_> = (0..3)
        .map(|role| {
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            let mut client = cluster.router.client();
            // One of the writers uses transactions, which must be repeated if the chunk moves between their statements.
            let (begin, commit) = if role == 0 { ("BEGIN; ", "; SELECT pg_sleep(0.01); COMMIT") } else { ("", "") };
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let k = next.fetch_add(1, Ordering::Relaxed);
                    let sql = format!(
                        "{begin}SELECT docshard.insert_one('{NS}', '{{\"_id\": {k}, \"k\": {k}}}'); \
                         SELECT docshard.update_one('{NS}', '{{\"k\": {}}}', '{{\"$inc\": {{\"n\": 1}}}}'){commit}",
                        k % 10_000
                    );
                    while let Err(error) = client.batch_execute(&sql) {
                        assert_eq!(error.code().map(|c| c.code()), Some("40001"), "{error:?}");
                        client.batch_execute("ROLLBACK").expect("a rollback");
                    }
                }
            })
        })
        .collect();
    let mut client = cluster.router.client();
    for to in ["shard1", "shard0", "shard1", "local", "shard0"] {
        for k in [0, 9_000] {
            move_chunk(&mut client, k, to).expect("a move");
        }
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("a writer");
    }
    let total = next.load(Ordering::Relaxed) as i64;
    let updates: i64 = client
        .query_one(
            &format!(
                "SELECT sum((d->>'n')::int8)::int8 FROM docshard.find('{NS}', '{{\"n\": {{\"$exists\": true}}}}') d"
            ),
            &[],
        )
        .expect("a find")
        .get(0);
    assert_eq!(updates, total - 10_000, "updates lost or done twice");
    check_all(&cluster, total);
}

/// The document with this `_id`, as a MongoDB client gets it.
fn as_bson(client: &mut Client, id: &str) -> bson::Document {
    let (database, collection) = NS.split_once('.').unwrap();
    let find = bson::doc! { "find": collection, "filter": { "_id": id }, "limit": 1 }.to_vec().unwrap();
    let reply: Vec<u8> =
        client.query_one("SELECT docshard.run_command_bson($1, $2)", &[&database, &find]).expect("a find").get(0);
    let reply = bson::Document::from_reader(reply.as_slice()).unwrap();
    let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    found[0].as_document().unwrap().clone()
}

/// Changes reach the recipient as text.
#[test]
fn documents_that_change_while_their_chunk_moves_keep_the_order_of_fields() {
    let cluster = cluster(2_000);
    let mut client = cluster.router.client();
    move_chunk(&mut client, 1_999, "shard1").expect("a move");
    let (database, collection) = NS.split_once('.').unwrap();
    let mut run = |command: bson::Document| {
        let bytes = command.to_vec().unwrap();
        client.execute("SELECT docshard.run_command_bson($1, $2)", &[&database, &bytes]).expect("a command");
    };
    let (mut holder, mover) = held_while_copying(&cluster);
    run(bson::doc! { "insert": collection, "documents": [{ "_id": "new", "zone": "z", "k": 5, "b": 1_i64 }] });
    run(bson::doc! { "update": collection, "updates": [
        { "q": { "_id": "new", "k": 5 }, "u": { "$set": { "a": { "y": 2_i64, "x": 1 } } } },
    ] });
    holder.batch_execute("COMMIT").unwrap();
    mover.join().unwrap().expect("a move");
    assert_eq!(owner(&cluster.router, 0), "shard1");
    let expected = bson::doc! { "_id": "new", "zone": "z", "k": 5, "b": 1_i64, "a": { "y": 2_i64, "x": 1 } };
    let mut client = cluster.router.client();
    assert_eq!(as_bson(&mut client, "new").to_vec().unwrap(), expected.to_vec().unwrap());
}

/// Starts a move of the chunk with `k` = 0 to `shard1`. It has begun to copy and waits until the returned client's transaction
/// ends.
fn held_while_copying(cluster: &Cluster) -> (Client, thread::JoinHandle<Result<Value, postgres::Error>>) {
    let holder = keep_from_loading(cluster, &cluster.shards[1]);
    let mover = start_move(cluster, 0, "shard1");
    wait_until("cloning", Duration::from_secs(20), || step(&cluster.router) == "cloning");
    (holder, mover)
}

#[test]
fn writes_go_on_while_a_chunk_is_copied() {
    const DOCUMENTS: i64 = 10_000;
    let cluster = cluster(DOCUMENTS);
    move_chunk(&mut cluster.router.client(), DOCUMENTS - 1, "shard1").expect("a move");
    let stop = Arc::new(AtomicBool::new(false));
    let done: Vec<_> = (0..6).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let writers: Vec<_> = (0..6_u64)
        .map(|writer| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done[writer as usize]));
            let mut client = cluster.router.client();
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Two writers of each kind, all in the moving chunk. Each may delete up to a thousand documents.
                    let n = done.load(Ordering::Relaxed) * 2 + writer % 2;
                    let sql = match writer / 2 {
                        0 => format!(
                            "SELECT docshard.insert_one('{NS}', '{{\"_id\": {}, \"k\": {}}}')",
                            100_000 + n,
                            n % 5_000
                        ),
                        1 => format!(
                            "SELECT docshard.update_one('{NS}', '{{\"k\": {0}, \"_id\": {0}}}', '{{\"$inc\": {{\"n\": 1}}}}')",
                            2_000 + n % 3_000
                        ),
                        _ if n >= 2_000 => break,
                        _ => format!("SELECT docshard.delete_one('{NS}', '{{\"k\": {n}, \"_id\": {n}}}')"),
                    };
                    client.batch_execute(&sql).expect("a write of one statement never fails");
                    done.fetch_add(1, Ordering::SeqCst);
                    // A pause, so that the deleting writers do not run out of documents.
                    thread::sleep(Duration::from_millis(5));
                }
            })
        })
        .collect();

    let (mut holder, mover) = held_while_copying(&cluster);
    let before: Vec<_> = done.iter().map(|n| n.load(Ordering::SeqCst)).collect();
    wait_until("every writer writes on", Duration::from_secs(9), || {
        done.iter().zip(&before).all(|(now, before)| now.load(Ordering::SeqCst) >= before + 10)
    });
    assert_eq!(step(&cluster.router), "cloning", "the move did not wait for this test");
    holder.batch_execute("COMMIT").unwrap();
    let answer = mover.join().unwrap().expect("a move");
    assert_eq!(owner(&cluster.router, 0), "shard1");
    // The chunk moves back, without concurrent writers.
    move_chunk(&mut cluster.router.client(), 0, "shard0").expect("a move");
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("a writer");
    }

    let of = |kind: usize| (done[kind * 2].load(Ordering::SeqCst) + done[kind * 2 + 1].load(Ordering::SeqCst)) as i64;
    let expected = DOCUMENTS + of(0) - of(2);
    check_clean(&cluster);
    assert_eq!(in_tables(&cluster), expected, "documents in all tables");
    assert_eq!(count(&mut cluster.router.client()), expected);
    let (sum, distinct): (i64, i64) = {
        let sql = format!(
            "SELECT coalesce(sum((d->>'n')::int8), 0)::int8, count(DISTINCT d->>'_id') FROM docshard.find('{NS}', '{{}}') d"
        );
        let row = cluster.router.client().query_one(&sql, &[]).expect("a find");
        (row.get(0), row.get(1))
    };
    assert_eq!(sum, of(1), "updates lost or done twice");
    assert_eq!(distinct, expected, "documents found twice");
    let progress = cluster.router.psql(&format!(
        "SELECT documents, estimated, rounds, lag, stall_ms, durations FROM docshard.migrations \
         WHERE namespace = '{NS}' ORDER BY id DESC LIMIT 2"
    ));
    println!("{answer}; {} writes; {progress}", of(0) + of(1) + of(2));
    let rounds: i32 = cluster.router.value("SELECT min(rounds) FROM docshard.migrations WHERE documents > 0");
    assert!(rounds > 0, "a move without catching up");
    let steps: i64 = cluster.router.value(
        "SELECT count(*) FROM docshard.changelog, json_object_keys(details->'millis') AS step \
         WHERE what = 'moveChunk' AND step IN ('cloning', 'catching up', 'handing over')",
    );
    assert!(steps >= 6, "the changelog tells how long each step took");
}

#[test]
fn every_way_to_write_is_captured() {
    let cluster = cluster(1_000);
    let mut client = cluster.router.client();
    let mut run = |sql: &str| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    run(&format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}', '{{\"unique\": true}}')"));
    for u in [1, 2] {
        run(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"u{u}\", \"k\": 7, \"u\": {u}}}')"));
    }
    run(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 999}}', 'shard1')"));
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));

    // Snapshots from before the capture.
    let mut repeatable = cluster.router.client();
    repeatable.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(count(&mut repeatable), 1_002);
    let mut direct = cluster.shards[0].client();
    direct.batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {table}")).unwrap();

    let (mut holder, mover) = held_while_copying(&cluster);
    // Two documents exchange their values of a unique index.
    run(&format!("SELECT docshard.delete_one('{NS}', '{{\"_id\": \"u1\", \"k\": 7}}')"));
    run(&format!("SELECT docshard.update_one('{NS}', '{{\"_id\": \"u2\", \"k\": 7}}', '{{\"$set\": {{\"u\": 1}}}}')"));
    run(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"u1\", \"k\": 7, \"u\": 2}}')"));
    let mark = |k: i64| {
        format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}, \"_id\": {k}}}', '{{\"$set\": {{\"m\": {k}}}}}')")
    };
    repeatable.batch_execute(&format!("{}; COMMIT", mark(10))).expect("an old snapshot may write before the hand-over");
    let set = |k: i64| format!("UPDATE {table} SET doc = doc || '{{\"m\": {k}}}' WHERE doc->>'_id' = '{k}'");
    direct.batch_execute(&format!("{}; COMMIT", set(11))).unwrap();
    direct.batch_execute(&format!("{}; DELETE FROM {table} WHERE doc->>'_id' = '13'", set(12))).unwrap();
    direct
        .batch_execute(&format!("SET session_replication_role = replica; {}; RESET session_replication_role", set(14)))
        .unwrap();
    run(&format!("BEGIN; {}; SAVEPOINT a; {}; ROLLBACK TO a; {}; COMMIT", mark(15), mark(16), mark(17)));
    direct.batch_execute(&format!("BEGIN; SAVEPOINT a; {}; ROLLBACK TO a; {}; COMMIT", set(18), set(19))).unwrap();
    // A prepared transaction keeps its locks, and postpones the hand-over.
    direct.batch_execute(&format!("BEGIN; {}; PREPARE TRANSACTION 'prepared by a user'", set(20))).unwrap();
    holder.batch_execute("COMMIT").unwrap();
    wait_until("handing over", Duration::from_secs(20), || step(&cluster.router) == "handing over");
    run(&mark(21));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(step(&cluster.router), "handing over");
    run(&mark(22));
    direct.batch_execute("COMMIT PREPARED 'prepared by a user'").unwrap();
    mover.join().unwrap().expect("a move");

    check_clean(&cluster);
    assert_eq!(owner(&cluster.router, 0), "shard1");
    assert_eq!(cluster.shards[0].value::<i64>(&format!("SELECT count(*) FROM {table}")), 0);
    assert_eq!(count(&mut cluster.router.client()), 1_001);
    let marked = cluster.router.psql(&format!(
        "SELECT string_agg(d->>'m', ' ' ORDER BY (d->>'m')::int) FROM docshard.find('{NS}', '{{\"m\": {{\"$exists\": true}}}}') d"
    ));
    assert_eq!(marked.trim(), "10 11 12 14 15 17 19 20 21 22");
    let unique = cluster.router.psql(&format!(
        "SELECT string_agg((d->>'_id') || '=' || (d->>'u'), ' ' ORDER BY d->>'_id') FROM docshard.find('{NS}', '{{\"u\": {{\"$exists\": true}}}}') d"
    ));
    assert_eq!(unique.trim(), "u1=2 u2=1");
}

#[test]
fn a_writer_that_stays_in_the_way_of_the_hand_over_ends_the_move() {
    let cluster = cluster(1_000);
    cluster.router.psql("INSERT INTO docshard_catalog.settings VALUES ('move_wait_ms', '1000')");
    move_chunk(&mut cluster.router.client(), 999, "shard1").expect("a move");
    let (mut holder, mover) = held_while_copying(&cluster);
    let mut writer = cluster.router.client();
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1, \"_id\": \"new\"}}')")).unwrap();
    holder.batch_execute("COMMIT").unwrap();
    let error = mover.join().unwrap().expect_err("somebody writes to the chunk");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55P03", "{error:?}");
    assert!(error.message().contains("process"), "{error:?}");
    writer.batch_execute("ROLLBACK").unwrap();
    assert_eq!(owner(&cluster.router, 0), "shard0");
    check_all(&cluster, 1_000);
    move_chunk(&mut cluster.router.client(), 0, "shard1").expect("nobody is in the way now");
    check_all(&cluster, 1_000);
}

#[test]
fn an_open_writer_postpones_the_move_and_is_named() {
    let cluster = cluster(1_000);
    cluster.router.psql("INSERT INTO docshard_catalog.settings VALUES ('move_wait_ms', '500')");
    let mut writer = cluster.router.client();
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1, \"_id\": \"new\"}}')")).unwrap();

    let mut client = cluster.router.client();
    let error = move_chunk(&mut client, 1, "shard1").expect_err("somebody writes to the chunk");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55P03", "{error:?}");
    assert!(error.message().contains("process"), "{error:?}");
    assert_eq!(owner(&cluster.router, 1), "shard0");
    writer.batch_execute("ROLLBACK").unwrap();
    check_all(&cluster, 1_000);
    move_chunk(&mut client, 1, "shard1").expect("nobody is in the way now");
    check_all(&cluster, 1_000);
}

#[test]
fn a_cancelled_move_leaves_nothing() {
    let cluster = cluster(1_000);
    let mut writer = cluster.router.client();
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1, \"_id\": \"new\"}}')")).unwrap();

    let mut client = cluster.router.client();
    let cancel = client.cancel_token();
    let canceller = thread::spawn(move || {
        thread::sleep(Duration::from_millis(1000));
        let _ = cancel.cancel_query(postgres::NoTls);
    });
    let error = move_chunk(&mut client, 1, "shard1").expect_err("it was cancelled");
    assert_eq!(error.code().map(|c| c.code()), Some("57014"), "{error:?}");
    canceller.join().unwrap();
    writer.batch_execute("COMMIT").unwrap();
    wait_until("the move is taken back", Duration::from_secs(20), || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    assert_eq!(owner(&cluster.router, 1), "shard0");
    client.batch_execute(&format!("SELECT docshard.delete_one('{NS}', '{{\"_id\": \"new\", \"k\": 1}}')")).unwrap();
    check_all(&cluster, 1_000);
}

#[test]
fn errors_say_what_to_do() {
    let mut cluster = cluster(100);
    let mut client = cluster.router.client();
    let mut fails = |sql: &str, sqlstate: &str, part: &str| {
        let error = client.batch_execute(sql).expect_err(sql);
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), sqlstate, "{sql}: {error:?}");
        assert!(error.message().contains(part), "{sql}: {error:?}");
    };
    let call = |k: &str, to: &str| format!("SELECT docshard.move_chunk('{NS}', '{k}', '{to}')");
    fails(&call("{\"k\": 1}", "nowhere"), "42704", "nowhere");
    fails(&call("{\"z\": 1}", "shard1"), "22023", "no shard key");
    fails("SELECT docshard.move_chunk('test.none', '{}', 'shard1')", "42P01", "ns not found");
    fails(&format!("BEGIN; {}", call("{\"k\": 1}", "shard1")), "25001", "transaction block");
    client.batch_execute("ROLLBACK").unwrap();

    let mut fails = |sql: &str, sqlstate: &str, part: &str| {
        let error = client.batch_execute(sql).expect_err(sql);
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), sqlstate, "{sql}: {error:?}");
        assert!(error.message().contains(part), "{sql}: {error:?}");
    };
    cluster.router.psql("UPDATE docshard_catalog.chunks SET jumbo = true");
    fails(&call("{\"k\": 1}", "shard1"), "54000", "jumbo");
    cluster.router.psql("UPDATE docshard_catalog.chunks SET jumbo = false");
    cluster.shards[1].psql("ALTER SERVER docshard_shard0 OPTIONS (SET port '1')");
    fails(&call("{\"k\": 1}", "shard1"), "08001", "the recipient cannot read from the donor");
    assert_eq!(cluster.shards[0].value::<i64>("SELECT count(*) FROM docshard_data.capture"), 0, "nothing was captured");
    cluster.shards[1].unguard();
    cluster.shards[1].psql("ALTER SERVER docshard_shard0 RENAME TO mistake");
    fails(&call("{\"k\": 1}", "shard1"), "55000", "no foreign server");
    cluster.shards[1].configure("max_prepared_transactions = 0");
    cluster.shards[1].stop();
    cluster.shards[1].start();
    fails(&call("{\"k\": 1}", "shard1"), "55000", "no prepared transactions");
    cluster.router.psql("SELECT docshard.remove_shard('shard1')");
    fails(&call("{\"k\": 1}", "shard1"), "55000", "draining");
    check_all(&cluster, 100);
}

/// Starts a move of the chunk with `k` = 0 to `shard1`, and holds it right before its decision, when both shards have prepared,
/// until the returned client's transaction ends.
fn held_before_the_decision(cluster: &Cluster) -> (Client, thread::JoinHandle<Result<Value, postgres::Error>>) {
    let step = |name: &str| {
        wait_until(name, Duration::from_secs(20), || {
            let sql =
                format!("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done' AND step = '{name}'");
            cluster.router.value::<i64>(&sql) == 1
        });
    };
    // A writer holds the move at one step and a lock on the donor at another, so that the step between can be held.
    let mut writer = cluster.router.client();
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1, \"_id\": \"new\"}}')")).unwrap();
    let mut client = cluster.router.client();
    let mover = thread::spawn(move || move_chunk(&mut client, 0, "shard1"));
    step("waiting for writers");
    wait_until("the donor captures", Duration::from_secs(20), || {
        cluster.shards[0].value::<i64>("SELECT count(*) FROM docshard_data.capture") == 1
    });
    let mut capture = cluster.shards[0].client();
    capture.batch_execute("BEGIN; LOCK TABLE docshard_data.capture IN EXCLUSIVE MODE").unwrap();
    writer.batch_execute("ROLLBACK").unwrap();
    step("handing over");
    let mut holder = cluster.router.client();
    let row = "FROM docshard_catalog.migrations WHERE state <> 'done'";
    holder.batch_execute(&format!("BEGIN; SELECT {row} FOR UPDATE")).unwrap();
    capture.batch_execute("COMMIT").unwrap();
    for shard in &cluster.shards {
        wait_until("both shards have prepared", Duration::from_secs(20), || {
            shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts") == 1
        });
    }
    let state: String = holder.query_one(&format!("SELECT state {row}"), &[]).unwrap().get(0);
    assert_eq!(state, "running", "the move was quicker than this test");
    (holder, mover)
}

fn kill_coordinator(node: &Node) {
    let pid: i32 = node.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard job'");
    std::process::Command::new("kill").arg("-9").arg(pid.to_string()).status().unwrap();
    // All sessions of that server end, and it restarts.
    thread::sleep(Duration::from_millis(200));
    wait_until("the router is back", Duration::from_secs(60), || node.try_client().is_ok());
}

#[test]
fn a_coordinator_that_dies_after_preparing_is_taken_back() {
    let cluster = cluster(20_000);
    let (holder, mover) = held_before_the_decision(&cluster);
    kill_coordinator(&cluster.router);
    drop(holder);
    mover.join().unwrap().expect_err("the coordinator was killed");
    recover(&cluster);
    assert_eq!(owner(&cluster.router, 0), "shard0");
    check_all(&cluster, 20_000);
    move_chunk(&mut cluster.router.client(), 0, "shard1").expect("another attempt");
    check_all(&cluster, 20_000);
}

/// Lets a held move decide and commit on both shards. It then waits for the map until that client's transaction ends.
fn decided(cluster: &Cluster, holder: &mut Client) -> Client {
    let mut map = cluster.router.client();
    map.batch_execute("BEGIN; SELECT FROM docshard_catalog.collections FOR UPDATE").unwrap();
    holder.batch_execute("COMMIT").unwrap();
    for shard in &cluster.shards {
        wait_until("the shard has committed", Duration::from_secs(20), || {
            shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts") == 0
        });
    }
    map
}

#[test]
fn a_coordinator_that_dies_after_the_decision_is_replaced() {
    let cluster = cluster(20_000);
    let (mut holder, mover) = held_before_the_decision(&cluster);
    let _map = decided(&cluster, &mut holder);
    // A reader now has an old map, and waits for the new one.
    kill_coordinator(&cluster.router);
    mover.join().unwrap().expect_err("the coordinator was killed");
    let url = cluster.router.url();
    let reader = thread::spawn(move || count(&mut Client::connect(&url, postgres::NoTls).unwrap()));
    recover(&cluster);
    assert_eq!(reader.join().unwrap(), 20_000);
    assert_eq!(owner(&cluster.router, 0), "shard1");
    check_all(&cluster, 20_000);
}

#[test]
fn however_many_meet_a_decided_move_one_worker_completes_it() {
    const CLIENTS: usize = 12;
    let mut cluster = cluster(1_000);
    // The router has no worker of its own, and logs each worker that is started.
    cluster.router.configure("shared_preload_libraries = ''\nlog_min_messages = debug1");
    cluster.router.stop();
    cluster.router.start();
    let (mut holder, mover) = held_before_the_decision(&cluster);
    let _map = decided(&cluster, &mut holder);
    kill_coordinator(&cluster.router);
    mover.join().unwrap().expect_err("the coordinator was killed");
    let mut map = cluster.router.client();
    map.batch_execute("BEGIN; SELECT FROM docshard_catalog.collections FOR UPDATE").unwrap();

    // Readers use the foreseen map, and wait until they see that the catalog's map does not change.
    thread::sleep(Duration::from_millis(600));
    let read = || {
        let readers: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut client = cluster.router.client();
                thread::spawn(move || count(&mut client))
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 1_000);
        }
    };
    let jobs = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
    let started = || {
        let log = cluster.router.log_tail(usize::MAX);
        log.matches("starting background worker process \"docshard: completing a move\"").count()
    };
    read();
    wait_until("a worker waits for the map", Duration::from_secs(20), || cluster.router.value::<i64>(jobs) == 1);
    read();
    assert_eq!((started(), cluster.router.value::<i64>(jobs)), (1, 1), "one worker is enough");
    // If the worker dies, one of the clients starts another.
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
    assert_eq!(cluster.router.value::<i64>(end), 1);
    wait_until("the worker is gone", Duration::from_secs(20), || cluster.router.value::<i64>(jobs) == 0);
    read();
    wait_until("another worker waits", Duration::from_secs(20), || {
        started() == 2 && cluster.router.value::<i64>(jobs) == 1
    });
    map.batch_execute("COMMIT").unwrap();
    wait_until("the map is changed", Duration::from_secs(20), || owner(&cluster.router, 0) == "shard1");
    read();
    assert_eq!(started(), 2);
    recover(&cluster);
    assert_eq!(owner(&cluster.router, 0), "shard1");
    check_all(&cluster, 1_000);
}

#[test]
fn moves_of_one_chunk_at_the_same_time() {
    let cluster = cluster(2_000);
    for round in 0..6 {
        let movers: Vec<_> = ["shard0", "shard1", "local", "shard1"]
            .into_iter()
            .map(|to| {
                let mut client = cluster.router.client();
                thread::spawn(move || (to, move_chunk(&mut client, 0, to)))
            })
            .collect();
        let mut moved = Vec::new();
        for mover in movers {
            match mover.join().expect("no panic") {
                (to, Ok(_)) => moved.push(to),
                (to, Err(error)) => {
                    let error = error.as_db_error().unwrap_or_else(|| panic!("to {to}: {error:?}"));
                    let detail = error.detail().unwrap_or_default();
                    assert!(detail.contains("117"), "round {round}, to {to}: {error:?}");
                }
            }
        }
        assert!(!moved.is_empty(), "round {round}: nobody got anywhere");
        assert!(moved.contains(&owner(&cluster.router, 0).as_str()), "round {round}: {moved:?}");
        check_all(&cluster, 2_000);
    }
}

#[test]
fn a_clock_that_is_set_back_in_a_move_makes_no_negative_durations() {
    let cluster = cluster(1_000);
    // Creates the table on the recipient, so that it can be locked.
    move_chunk(&mut cluster.router.client(), 999, "shard1").expect("a move");
    let (mut holder, mover) = held_while_copying(&cluster);
    // The catalog's state after the clock was set back by a day.
    cluster.router.psql(
        "UPDATE docshard_catalog.migrations SET step_at = step_at + interval '1 day', \
                started_at = started_at + interval '1 day', updated_at = updated_at + interval '1 day' \
         WHERE state <> 'done'",
    );
    holder.batch_execute("COMMIT").unwrap();
    mover.join().unwrap().expect("a move");
    let negative: i64 = cluster.router.value(
        "SELECT count(*) FROM docshard_catalog.migrations m, jsonb_each_text(durations) AS d(step, ms) \
         WHERE ms::int8 < 0 OR stall_ms < 0",
    );
    assert_eq!(negative, 0);
    let cloning: i64 = cluster
        .router
        .value("SELECT (durations ->> 'cloning')::int8 FROM docshard_catalog.migrations ORDER BY id DESC LIMIT 1");
    assert_eq!(cloning, 0);
    check_all(&cluster, 1_000);
}

#[test]
fn a_shard_that_crashes_around_the_decision_commits_later() {
    for victim in 0..2 {
        let mut cluster = cluster(20_000);
        let (mut holder, mover) = held_before_the_decision(&cluster);
        cluster.shards[victim].kill9();
        holder.batch_execute("COMMIT").unwrap();
        thread::sleep(Duration::from_millis(500));
        let state: String = cluster.router.value("SELECT state FROM docshard_catalog.migrations WHERE state <> 'done'");
        assert_eq!(state, "committed");
        cluster.shards[victim].start();
        let answer = mover.join().unwrap().expect("completed as soon as the shard is back");
        assert_eq!(answer["ok"], 1);
        recover(&cluster);
        assert_eq!(owner(&cluster.router, 0), "shard1");
        check_all(&cluster, 20_000);
    }
}

/// A small pseudo-random sequence, so that a failure is repeatable.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// An accident while a chunk moves.
#[derive(Clone, Copy, Debug)]
enum Accident {
    /// the postmaster of a node is killed, as if the machine had crashed
    Crash(usize),
    /// a session of the move on a shard is terminated
    EndSession(usize),
    /// a session of the move on a shard is killed, and so all sessions of the shard end
    KillSession(usize),
    /// the coordinator's process is killed, and so all sessions of the router end
    KillCoordinator,
}

impl Accident {
    fn roll(dice: &mut Dice) -> Self {
        match dice.below(8) {
            n @ 0..3 => Accident::Crash(n as usize),
            n @ 3..5 => Accident::EndSession(n as usize - 3),
            n @ 5..7 => Accident::KillSession(n as usize - 5),
            _ => Accident::KillCoordinator,
        }
    }

    /// Injects the accident. Its target may be gone already.
    fn strike(self, cluster: &mut Cluster, downtime: Duration) {
        let session =
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard m %' ORDER BY random() LIMIT 1";
        let pid = |node: &Node, sql: &str| -> Option<i32> {
            node.try_client().ok()?.query_opt(sql, &[]).ok()?.map(|row| row.get(0))
        };
        let kill = |pid: i32| std::process::Command::new("kill").arg("-9").arg(pid.to_string()).status();
        match self {
            Accident::Crash(victim) => {
                let node = if victim == 2 { &mut cluster.router } else { &mut cluster.shards[victim] };
                node.kill9();
                thread::sleep(downtime);
                node.start();
            }
            Accident::EndSession(victim) => {
                if let Some(pid) = pid(&cluster.shards[victim], session) {
                    cluster.shards[victim].psql(&format!("SELECT pg_terminate_backend({pid})"));
                }
            }
            Accident::KillSession(victim) => {
                if let Some(pid) = pid(&cluster.shards[victim], session) {
                    let _ = kill(pid);
                }
            }
            Accident::KillCoordinator => {
                let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard job' LIMIT 1";
                if let Some(pid) = pid(&cluster.router, worker) {
                    let _ = kill(pid);
                }
            }
        }
    }
}

/// Clients that insert into the moving chunk and count until they are stopped. Errors are expected, wrong counts are not.
struct Load {
    stop: Arc<AtomicBool>,
    /// the number of inserts that were begun, and of those that were acknowledged
    begun: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(url: &str, documents: u64) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            begun: Arc::new(AtomicU64::new(documents)),
            acknowledged: Arc::new(AtomicU64::new(documents)),
            threads: Vec::new(),
        };
        for role in 0..4 {
            let (stop, begun, acknowledged) =
                (Arc::clone(&load.stop), Arc::clone(&load.begun), Arc::clone(&load.acknowledged));
            let url = url.to_owned();
            load.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                    let Ok(mut client) = Client::connect(&url, postgres::NoTls) else { continue };
                    while !stop.load(Ordering::Relaxed) {
                        let result = if role == 0 {
                            let least = acknowledged.load(Ordering::SeqCst);
                            let count = client.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]);
                            let most = begun.load(Ordering::SeqCst);
                            count.map(|row| {
                                let count = row.get::<_, i64>(0) as u64;
                                assert!((least..=most).contains(&count), "{count} is not from {least} to {most}");
                            })
                        } else {
                            let n = begun.fetch_add(1, Ordering::SeqCst);
                            let sql =
                                format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {n}, \"k\": {}}}')", n % 1000);
                            client.batch_execute(&sql).map(|()| {
                                acknowledged.fetch_add(1, Ordering::SeqCst);
                            })
                        };
                        if result.is_err() && client.is_closed() {
                            break;
                        }
                    }
                }
            }));
        }
        load
    }

    /// Stops the clients; returns the smallest and the largest number of documents that may exist now.
    fn end(self) -> (i64, i64) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("wrong answers under load");
        }
        (self.acknowledged.load(Ordering::SeqCst) as i64, self.begun.load(Ordering::SeqCst) as i64)
    }
}

/// Waits until a move is at that step or a later one.
fn await_step(router: &Node, step: &str) {
    let began = Instant::now();
    let mut client = router.client();
    let sql = format!("SELECT FROM docshard_catalog.migrations WHERE step = '{step}' AND state <> 'done'");
    while client.query_opt(&sql, &[]).expect("a query").is_none() && began.elapsed() < Duration::from_millis(300) {}
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn an_accident_at_any_moment_leaves_the_chunk_on_one_side() {
    let seed = number("DOCSHARD_SEED", 20_261_120);
    println!("DOCSHARD_SEED={seed}");
    let mut dice = Dice(seed);
    let mut cluster = cluster(5_000);
    let load = Load::start(&cluster.router.url(), 5_000);
    for round in 0..number("DOCSHARD_ROUNDS", 12) {
        let to = if owner(&cluster.router, 0) == "shard0" { "shard1" } else { "shard0" };
        let mut client = cluster.router.client();
        let mover = thread::spawn(move || move_chunk(&mut client, 0, to).map(drop));
        let accident = Accident::roll(&mut dice);
        let steps =
            ["preparing the recipient", "waiting for writers", "cloning", "catching up", "handing over", "committed"];
        if let Some(step) = steps.get(dice.below(9) as usize) {
            await_step(&cluster.router, step);
            thread::sleep(Duration::from_micros(dice.below(5_000)));
        } else {
            thread::sleep(Duration::from_millis(dice.below(200)));
        }
        accident.strike(&mut cluster, Duration::from_millis(dice.below(300)));
        let outcome = mover.join().expect("the mover does not panic");
        recover(&cluster);
        let now = owner(&cluster.router, 0);
        let told = match &outcome {
            Ok(()) => "moved".to_owned(),
            Err(e) => e.as_db_error().map_or_else(|| e.to_string(), |e| e.message().to_owned()),
        };
        println!("round {round}: {accident:?}; {told}; the chunk is on {now}");
        if outcome.is_ok() {
            assert_eq!(now, to, "a move that succeeded was taken back");
        }
        check_clean(&cluster);
    }
    let (least, most) = load.end();
    let mut client = cluster.router.client();
    let found = count(&mut client);
    assert!((least..=most).contains(&found), "{found} documents, not from {least} to {most}");
    assert_eq!(in_tables(&cluster), found, "documents in all tables");
    let distinct: i64 = client
        .query_one(&format!("SELECT count(DISTINCT d->>'_id') FROM docshard.find('{NS}', '{{}}') d"), &[])
        .expect("a find")
        .get(0);
    assert_eq!(distinct, found, "documents found twice");
    println!("{found} documents, {} inserts without an acknowledgement", most - least);
}
