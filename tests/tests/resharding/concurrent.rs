//! Changes of layouts beside others: clients that write, transactions and readers that stand in the way, crashes, cancels, lost shards.

use crate::{LONG, NS, Writers, change, check, check_clean, cluster, code, json, key, reshard, run, start};
use docshard_tests::faults::Fault;
use docshard_tests::{is_thorough, wait_until};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn writers_go_on_while_a_collection_gets_other_layouts() {
    let documents = 6000;
    let cluster = cluster(documents);
    let writers = Writers::start(&cluster, documents);
    for sql in [
        reshard(r#"{"u": 1}"#, "{}"),
        reshard(r#"{"_id": "hashed"}"#, "{}"),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"),
        format!("SELECT docshard.move_collection('{NS}', 'shard1')"),
    ] {
        let done = json(&mut cluster.router.client(), &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        println!("{sql}: {done}");
        assert_eq!(done["ok"], 1, "{done}");
    }
    let longest = writers.stop_and_check(&cluster);
    println!("the longest statement took {longest} ms");
    assert_eq!(key(&cluster), None);
    let shards: Vec<String> = cluster
        .router
        .client()
        .query(&format!("SELECT shard FROM docshard.chunks WHERE namespace = '{NS}'"), &[])
        .expect("the chunks")
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(shards, ["shard1"]);
    check_clean(&cluster);
    assert!(cluster.router.value::<i32>("SELECT max(rounds) FROM docshard.resharding") > 0, "writes were copied");
}

/// Statements that begin while the decision drops the old tables wait for it, and read the new ones: also in the router's own database.
#[test]
fn readers_wait_for_the_decision() {
    let documents = 300;
    let cluster = cluster(documents);
    cluster.router.arm("reshard.deciding", Fault::Pause);
    let changed = start(&cluster, reshard(r#"{"_id": "hashed"}"#, "{}"));
    cluster.router.await_fault("reshard.deciding");
    let reads = [
        (format!("SELECT docshard.count_documents('{NS}')"), documents),
        (format!("SELECT docshard.count_documents('{NS}', '{{\"n\": 0}}')"), documents),
        (format!("SELECT count(*) FROM docshard.find('{NS}', '{{}}')"), documents),
        (format!("SELECT (docshard.find_one('{NS}', '{{\"k\": 7}}') ->> 'k')::int8"), 7),
        (
            format!(
                "SELECT sum((d ->> 'c')::int8)::int8 FROM docshard.aggregate('{NS}', '[{{\"$group\": {{\"_id\": \"$k\", \"c\": {{\"$sum\": 1}}}}}}]') d"
            ),
            documents,
        ),
        (format!("SELECT count(*) FROM docshard.\"distinct\"('{NS}', 'u')"), documents),
    ];
    let reading: Vec<_> = reads
        .into_iter()
        .map(|(sql, expected)| {
            let mut client = cluster.router.client();
            thread::spawn(move || (client.query_one(&sql, &[]).map(|row| row.get::<_, i64>(0)), expected, sql))
        })
        .collect();
    thread::sleep(std::time::Duration::from_millis(500));
    assert!(reading.iter().any(|one| !one.is_finished()), "some wait");
    cluster.router.release("reshard.deciding");
    changed.join().expect("a session").expect("it is decided");
    for one in reading {
        let (found, expected, sql) = one.join().expect("a session");
        assert_eq!(found.unwrap_or_else(|e| panic!("{sql}: {e:?}")), expected, "{sql}");
    }
}

#[test]
fn a_crash_at_any_step_leaves_one_layout_or_the_other() {
    let documents = 1500;
    let cluster = cluster(documents);
    let points: Vec<&str> = docshard_tests::faults::names("point", "router")
        .into_iter()
        .filter(|name| name.starts_with("reshard."))
        .collect();
    assert!(points.len() > 10, "{points:?}");
    for (number, point) in points.iter().enumerate() {
        // `make test` has an error at one step and a crash at the next one, `make test-all` both at each.
        let both = [Fault::Error, Fault::Kill];
        let faults = if is_thorough() { &both[..] } else { &both[number % 2..=number % 2] };
        for &fault in faults {
            // Some points are reached only by an abort.
            let aborts = *point == "reshard.aborted";
            println!("{fault:?} at {point}");
            let before = key(&cluster);
            let target =
                if before.as_deref().is_some_and(|key| key.contains('u')) { r#"{"k": 1}"# } else { r#"{"u": 1}"# };
            if aborts {
                cluster.router.arm("reshard.cloned", Fault::Error);
            }
            cluster.router.arm(point, fault);
            // With changes, so that there is a round.
            let logged = matches!(*point, "reshard.pulled" | "reshard.applied");
            if logged {
                cluster.router.arm("reshard.cloned", Fault::Pause);
            }
            let pending = start(&cluster, reshard(target, "{}"));
            if logged {
                cluster.router.await_fault("reshard.cloned");
                run(
                    &cluster,
                    &format!(
                        "SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$lt\": 250}}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
                    ),
                );
                cluster.router.release("reshard.cloned");
            }
            let ended = pending.join().expect("a thread");
            cluster.router.await_fault(point);
            wait_until("the router is back", LONG, || cluster.router.try_client().is_ok());
            check_clean(&cluster);
            let is_decided = ["reshard.decided", "reshard.cleaned"].contains(point);
            let now = key(&cluster);
            if is_decided {
                assert_ne!(now, before, "{point}");
            } else {
                assert!(ended.is_err(), "{point}: {ended:?}");
                assert_eq!(now, before, "{point}");
            }
            assert_eq!(
                cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")),
                documents,
                "{point}"
            );
            if number % 4 == 0 {
                check(&cluster, documents);
            }
        }
    }
    check(&cluster, documents);
}

#[test]
fn a_change_of_layout_can_be_aborted_and_cancelled() {
    let cluster = cluster(1000);
    let mut client = cluster.router.client();
    let missing =
        client.query(&format!("SELECT docshard.abort_reshard_collection('{NS}')"), &[]).expect_err("none runs");
    assert_eq!(code(&missing), "MongoDB error 339 (NoSuchReshardCollection)");
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");

    // Meanwhile, nothing else changes the collection's metadata, and statements work.
    for statement in [
        format!("docshard.drop_collection('{NS}')"),
        format!("docshard.rename_collection('{NS}', 'test.other')"),
        format!("docshard.create_index('{NS}', '{{\"x\": 1}}')"),
        format!("docshard.split_at('{NS}', '{{\"k\": 50}}')"),
        format!("docshard.move_chunk('{NS}', '{{\"k\": 50}}', 'shard1')"),
        format!("docshard.modify_collection('{NS}', '{{\"validator\": {{\"k\": {{\"$gt\": -1}}}}}}')"),
        format!("docshard.reshard_collection('{NS}', '{{\"n\": 1}}')"),
        // The same key, but not the same change.
        format!("docshard.reshard_collection('{NS}', '{{\"u\": 1}}', '{{\"unique\": true}}')"),
        format!("docshard.reshard_collection('{NS}', '{{\"u\": 1}}', '{{\"numInitialChunks\": 9}}')"),
        format!("docshard.reshard_collection('{NS}', '{{\"u\": 1}}', '{{\"zones\": []}}')"),
    ] {
        let error = client.query(&format!("SELECT {statement}"), &[]).expect_err(&statement);
        assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{statement}: {error:?}");
    }
    let mut command = |command: &str| -> Value {
        json(&mut client, &format!("SELECT docshard.run_command('admin', '{command}')")).expect("a reply")
    };
    for name in ["abortMoveCollection", "abortUnshardCollection"] {
        assert_eq!(command(&format!(r#"{{"{name}": "{NS}"}}"#))["code"], 20, "{name}");
    }
    let operations = command(&format!(
        r#"{{"currentOp": 1, "type": "op", "ns": "{NS}", "desc": {{"$regex": "^Resharding"}}, "opStatus": "running"}}"#
    ));
    assert_eq!(operations["inprog"].as_array().map(Vec::len), Some(1), "{operations}");
    assert_eq!(command(r#"{"currentOp": 1, "ns": "test.none"}"#)["inprog"], serde_json::json!([]));
    let counted = command(r#"{"serverStatus": 1}"#)["shardingStatistics"]["resharding"].clone();
    assert_eq!(
        (&counted["countStarted"], &counted["active"]["documentsCopied"]),
        (&1.into(), &1000.into()),
        "{counted}"
    );
    let shown = client
        .query_one(
            "SELECT docshard.aggregate('admin.$cmd.aggregate', '[{\"$currentOp\": {\"allUsers\": true}}, \
               {\"$match\": {\"type\": \"op\", \"originatingCommand.reshardCollection\": {\"$exists\": true}}}]')::text",
            &[],
        )
        .expect("an operation");
    let shown: Value = serde_json::from_str(shown.get(0)).expect("JSON");
    assert_eq!(
        (&shown["ns"], &shown["originatingCommand"]["key"]),
        (&serde_json::json!(NS), &serde_json::json!({"u": 1})),
        "{shown}"
    );
    assert_eq!(
        (&shown["coordinatorState"], &shown["opStatus"]),
        (&serde_json::json!("cloning"), &serde_json::json!("running")),
        "{shown}"
    );
    let progress = client
        .query_one(
            "SELECT namespace, command, state, step, documents FROM docshard.resharding WHERE state = 'running'",
            &[],
        )
        .expect("the progress");
    assert_eq!(progress.get::<_, &str>(0), NS);
    assert_eq!((progress.get::<_, &str>(1), progress.get::<_, &str>(3)), ("reshardCollection", "cloning"));
    assert_eq!(progress.get::<_, i64>(4), 1000);
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("reshardCollection: cloning, 1000 of about"), "{status}");
    let names: Vec<Value> = client
        .query_one("SELECT docshard.run_command('test', '{\"listCollections\": 1}') #> '{cursor,firstBatch}'", &[])
        .map(|row| row.get::<_, Value>(0).as_array().cloned().unwrap_or_default())
        .expect("the collections");
    assert_eq!(names.len(), 1, "{names:?}");

    let answer = json(&mut client, &format!("SELECT docshard.abort_reshard_collection('{NS}')")).expect("an abort");
    assert_eq!(answer["ok"], 1);
    let error = pending.join().expect("a thread").expect_err("it was aborted");
    assert_eq!(code(&error), "MongoDB error 341 (ReshardCollectionAborted)", "{error:?}");
    check_clean(&cluster);

    cluster.router.arm("reshard.cloned", Fault::Pause);
    let mut cancelled = cluster.router.client();
    let token = cancelled.cancel_token();
    let pending = thread::spawn(move || json(&mut cancelled, &reshard(r#"{"u": 1}"#, "{}")));
    cluster.router.await_fault("reshard.cloned");
    token.cancel_query(postgres::NoTls).expect("a cancel");
    let error = pending.join().expect("a thread").expect_err("it was cancelled");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    check_clean(&cluster);
    check(&cluster, 1000);
}

/// A client that has lost its connection sends its call again.
#[test]
fn a_repeated_call_waits_for_the_change_that_runs() {
    let cluster = cluster(300);
    let call = reshard(r#"{"u": 1}"#, r#"{"unique": true, "numInitialChunks": 9}"#);
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let calls = [start(&cluster, call.clone()), {
        cluster.router.await_fault("reshard.cloned");
        start(&cluster, call)
    }];
    thread::sleep(std::time::Duration::from_secs(1));
    cluster.router.release("reshard.cloned");
    for call in calls {
        let done = call.join().expect("a thread").expect("the change");
        assert_eq!(done["ok"], 1, "{done}");
    }
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding"), 1);
    check(&cluster, 300);
}

#[test]
fn a_long_transaction_puts_the_decision_off() {
    let cluster = cluster(500);
    let mut writer = cluster.router.client();
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 2000}"#));
    cluster.router.await_fault("reshard.cloned");
    writer
        .batch_execute(&format!(
            "BEGIN; SELECT docshard.update_one('{NS}', '{{\"k\": 7}}', '{{\"$set\": {{\"n\": 5}}}}')"
        ))
        .expect("a write");
    // The same request waits for the running change; a cancel of it changes nothing.
    let mut cancelled = cluster.router.client();
    let token = cancelled.cancel_token();
    let joined = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    let impatient = thread::spawn(move || json(&mut cancelled, &reshard(r#"{"u": 1}"#, "{}")));
    wait_until("three calls wait", LONG, || {
        cluster.router.value::<i64>("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'") == 3
    });
    token.cancel_query(postgres::NoTls).expect("a cancel");
    let error = impatient.join().expect("a thread").expect_err("it was cancelled");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    cluster.router.release("reshard.cloned");
    let error = joined.join().expect("a thread").expect_err("the change is given up");
    assert_eq!(code(&error), "MongoDB error 341 (ReshardCollectionAborted)", "{error:?}");
    let error = pending.join().expect("a thread").expect_err("a transaction stays");
    assert_eq!(code(&error), "MongoDB error 342 (ReshardingCriticalSectionTimeout)", "{error:?}");
    writer.batch_execute("COMMIT").expect("the writer was not disturbed");
    check_clean(&cluster);
    check(&cluster, 500);
    let joined: Vec<_> = (0..3).map(|_| start(&cluster, reshard(r#"{"u": 1}"#, "{}"))).collect();
    for call in joined {
        call.join().expect("a thread").expect("it works afterwards, also for several callers");
    }
    assert_eq!(
        cluster.router.value::<String>(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": 7}}') ->> 'n'")),
        "5"
    );
}

#[test]
fn transactions_of_several_statements_let_the_decision_pass() {
    let cluster = cluster(1000);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |number: i64| {
        let (stop, mut client) = (stop.clone(), cluster.router.client());
        thread::spawn(move || {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                let update = change(number, "{\"$inc\": {\"n\": 1}}");
                let run = client.batch_execute(&format!("BEGIN; SELECT {update}; SELECT pg_sleep(0.3); COMMIT"));
                match run {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert!(error.code().is_some_and(|code| code.code().starts_with("40")), "{error:?}");
                        client.batch_execute("ROLLBACK").expect("a rollback");
                    }
                }
            }
            written
        })
    };
    let writers: Vec<_> = (0..12).map(|number| writer(number * 20)).collect();
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 40000}"#));
    cluster.router.await_fault("reshard.cloned");
    run(&cluster, &format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("writers wait for it");
    stop.store(true, Ordering::Relaxed);
    let written: i64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    let sum = format!("SELECT sum((d ->> 'n')::int8)::int8 FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(cluster.router.value::<i64>(&sum), written);
    check(&cluster, 1000);
}

/// Checks of a change are repeated when it begins, as another one may have been committed since.
#[test]
fn a_change_does_not_begin_on_what_its_caller_saw() {
    let cluster = cluster(300);
    run(
        &cluster,
        &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}', '{{\"name\": \"refining\"}}')"),
    );
    run(&cluster, "SELECT docshard.add_shard_to_zone('shard0', 'z')");
    for n in 0..3 {
        run(&cluster, &format!("SELECT docshard.insert_one('test.plain', '{{\"_id\": {n}}}')"));
    }
    let refining = format!("SELECT docshard.refine_collection_shard_key('{NS}', '{{\"k\": 1, \"u\": 1}}')");
    let of = |ns: &str, call: &str| format!("SELECT docshard.{call}").replace("NS", ns);
    for (first, second, wanted) in [
        (
            of(NS, r#"update_zone_key_range('NS', '{"k": 100}', '{"k": 110}', 'z')"#),
            reshard(r#"{"u": 1}"#, "{}"),
            "2 (BadValue)",
        ),
        (of(NS, "drop_index('NS', 'refining')"), refining, "72 (InvalidOptions)"),
        (
            of(NS, r#"drop_collection('NS'), docshard.shard_collection('NS', '{"k": 1}')"#),
            reshard(r#"{"u": 1}"#, "{}"),
            "117 (ConflictingOperationInProgress)",
        ),
        (of(NS, "drop_collection('NS')"), of(NS, "unshard_collection('NS', 'shard1')"), "26 (NamespaceNotFound)"),
        (
            of("test.plain", "start_shard_draining('shard1')"),
            of("test.plain", "move_collection('NS', 'shard1')"),
            "70 (ShardNotFound)",
        ),
        (
            of("test.plain", r#"stop_shard_draining('shard1'), docshard.shard_collection('NS', '{"_id": 1}')"#),
            of("test.plain", "move_collection('NS', 'shard0')"),
            "117 (ConflictingOperationInProgress)",
        ),
        (
            of("test.plain", r#"drop_collection('NS'), docshard.create_collection('NS')"#),
            of("test.plain", "compact('NS')"),
            "117 (ConflictingOperationInProgress)",
        ),
    ] {
        let mut client = cluster.router.client();
        client
            .batch_execute(&format!(
                "BEGIN; LOCK TABLE docshard_catalog.zone_ranges IN SHARE ROW EXCLUSIVE MODE; {first}"
            ))
            .unwrap_or_else(|e| panic!("{first}: {e:?}"));
        let pending = start(&cluster, second.clone());
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        wait_until("the second one waits", LONG, || cluster.router.value::<i64>(waits) > 0);
        client.batch_execute("COMMIT").expect("the first one");
        let error = pending.join().expect("a thread").expect_err(&second);
        assert_eq!(code(&error), format!("MongoDB error {wanted}"), "{first}; {second}: {error:?}");
        assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding"), 0, "{second}");
    }
    let sharded = "SELECT sharded FROM docshard.collections WHERE namespace = 'test.plain'";
    assert!(!cluster.router.value::<bool>(sharded));
}

#[test]
fn a_reader_that_keeps_the_decision_from_its_locks_is_named() {
    let cluster = cluster(300);
    let mut reader = cluster.router.client();
    reader
        .batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT docshard.count_documents('{NS}', '{{\"k\": {{\"$gte\": 200}}}}')"))
        .expect("a read");
    let error = json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, r#"{"commitTimeoutMS": 3000}"#))
        .expect_err("a reader stays");
    assert_eq!(code(&error), "MongoDB error 342 (ReshardingCriticalSectionTimeout)", "{error:?}");
    assert!(
        error.to_string().contains("on shard") || format!("{error:?}").contains("on shard \\\"shard1"),
        "{error:?}"
    );
    reader.batch_execute("COMMIT").expect("the reader was not disturbed");
    check_clean(&cluster);
    json(&mut reader, &reshard(r#"{"u": 1}"#, "{}")).expect("it works afterwards");
}

#[test]
fn a_snapshot_from_before_the_decision_does_not_see_the_copy() {
    let cluster = cluster(500);
    let mut reader = cluster.router.client();
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT docshard.count_documents('test.none')")
        .expect("a snapshot");
    // A snapshot at each shard, without a lock of the collection's table.
    run(&cluster, "SELECT docshard.shard_collection('test.beside', '{\"_id\": \"hashed\"}')");
    run(&cluster, "SELECT docshard.drop_collection('test.beside')");
    json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, "{}")).expect("the change");
    match reader.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]) {
        Ok(row) => assert_eq!(row.get::<_, i64>(0), 500),
        Err(error) => {
            assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error:?}");
            let message = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
            assert!(message.contains("layout"), "{message}");
        }
    }
}

#[test]
fn a_donor_that_is_down_ends_the_change_cleanly() {
    let mut cluster = cluster(500);
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");
    cluster.shards[1].crash();
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect_err("a donor is down");
    cluster.shards[1].start();
    check_clean(&cluster);
    check(&cluster, 500);
}

/// The statement of a command that a client has numbered.
fn numbered(session: u8, command: &bson::Document) -> String {
    let mut command = command.clone();
    command.extend(bson::doc! { "lsid": { "id": bson::Uuid::from_bytes([session; 16]) }, "txnNumber": 1_i64 });
    let hex: String = command.to_vec().expect("BSON").iter().map(|byte| format!("{byte:02x}")).collect();
    format!("SELECT docshard.run_command_bson('test', '\\x{hex}')")
}

#[test]
fn a_write_that_is_sent_again_after_a_change_of_layout_is_not_executed_again() {
    let cluster = cluster(300);
    let collection = NS.split_once('.').expect("a namespace").1;
    let update = |k: i32| {
        let updates = vec![bson::doc! { "q": { "_id": k, "k": k }, "u": { "$inc": { "n": 1 } } }];
        bson::doc! { "update": collection, "updates": updates }
    };
    let send = |k: i32| {
        let reply: Vec<u8> = cluster.router.value(&numbered(k as u8, &update(k)));
        bson::Document::from_reader(reply.as_slice()).expect("BSON")
    };
    // Keys of all three shards.
    let keys = [10, 20, 30, 110, 120, 130, 210, 220, 230];
    for k in keys {
        assert!(send(k).get_f64("ok").is_ok_and(|ok| ok > 0.0), "{k}");
    }
    json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, "{}")).expect("the change");
    for k in keys {
        let reply = send(k);
        let is_known =
            reply.get_f64("ok").is_ok_and(|ok| ok > 0.0) || reply.get_i32("code").is_ok_and(|code| code == 217);
        assert!(is_known, "{k}: {reply}");
        let n: String = cluster.router.value(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": {k}}}') ->> 'n'"));
        assert_eq!(n, "1", "{k}: {reply}");
    }
}
