//! Moves of chunks: under reads and writes, cancelled, and with servers killed at any time ([`accidents`]).

mod accidents;

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
