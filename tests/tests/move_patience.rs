//! Waiting: changes of a collection wait for moves of its chunks, and writers wait for a hand-over.

use docshard_tests::faults::Fault;
use docshard_tests::moving::{Moving, NS, PATIENCE};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

/// SQLSTATE and DETAIL of a statement's error.
fn error_of(client: &mut Client, sql: &str) -> (String, String) {
    let error = client.batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().expect("an error of the server");
    (error.code().code().to_owned(), error.detail().unwrap_or_default().to_owned())
}

fn set_max_write_stall(router: &Node, value: &str) {
    run(&mut router.client(), &format!("ALTER SYSTEM SET docshard.max_write_stall = '{value}'"));
    router.psql("SELECT pg_reload_conf()");
    let shown = || router.value::<String>("SELECT current_setting('docshard.max_write_stall')") == value;
    wait_until("the setting is read", PATIENCE, shown);
}

/// Starts the balancer with a short interval, and drains the router's own database.
fn start_balancer(cluster: &Cluster) {
    run(
        &mut cluster.router.client(),
        "SELECT docshard.set_setting('balancer_interval_ms', '100'); SELECT docshard.remove_shard('local'); \
         SELECT docshard.start_balancer()",
    );
}

/// An index that is being created or dropped exists on some shards only. A move waits for that, or is refused while an index is
/// being built; it does not report that the shard lacks the index.
#[test]
fn moves_wait_while_indexes_come_and_go() {
    let moving = Moving::start(40);
    let over = AtomicBool::new(false);
    let mut changes = 0;
    thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let mut client = moving.cluster.router.client();
            let mut changes = 0;
            while !over.load(Ordering::Relaxed) {
                run(&mut client, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
                run(&mut client, &format!("SELECT docshard.drop_index('{NS}', 'n_1')"));
                changes += 1;
            }
            changes
        });
        let moves: Vec<_> = (0..12).map(|n| moving.move_to(["shard1", "shard0"][n % 2])).collect();
        over.store(true, Ordering::Relaxed);
        changes = changer.join().expect("changes");
        for error in moves.into_iter().filter_map(Result::err) {
            let message = error.as_db_error().expect("an error of the server").message();
            assert_eq!(message, format!("the index n_1 of {NS} is being built"));
        }
    });
    assert!(changes > 2, "{changes}");
    moving.check();
}

#[test]
fn changes_wait_for_a_users_move() {
    let moving = Moving::start(400);
    let router = &moving.cluster.router;
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloned");

    // Changes wait for `lock_timeout`, and can be cancelled.
    let split = format!("SELECT docshard.split_at('{NS}', '{{\"k\": 50}}')");
    let index = format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')");
    let mut client = router.client();
    run(&mut client, "SET lock_timeout = '300ms'");
    for sql in [&split, &index, &format!("SELECT docshard.drop_collection('{NS}')")] {
        let began = Instant::now();
        let (sqlstate, detail) = error_of(&mut client, sql);
        assert_eq!((sqlstate.as_str(), detail.as_str()), ("55P03", "MongoDB error 24 (LockTimeout)."), "{sql}");
        assert!(began.elapsed() >= Duration::from_millis(300), "{sql}: {:?}", began.elapsed());
    }
    run(&mut client, "SET lock_timeout = 0; SET statement_timeout = '300ms'");
    assert_eq!(error_of(&mut client, &split).0, "57014");
    // A transaction with a lock that the move needs must not wait for the move.
    run(&mut client, "SET statement_timeout = 0");
    let both = format!("BEGIN; SELECT docshard.disable_balancing('{NS}'); {split}");
    assert_eq!(error_of(&mut client, &both).0, "55006");
    run(&mut client, "ROLLBACK");

    // The changes continue after the move, including one in a transaction with several changes.
    let pending = [
        moving.spawn(format!(
            "BEGIN; {split}; SELECT docshard.merge_chunks('{NS}', \
            '[{{\"k\": {{\"$minKey\": 1}}}}, {{\"k\": {}}}]'); COMMIT",
            moving.chunk
        )),
        moving.spawn(index),
        // It may come first, so it splits another chunk than those that the transaction merges.
        moving.spawn(format!("SELECT docshard.split_at('{NS}', '{{\"k\": {}}}')", moving.chunk + 50)),
    ];
    thread::sleep(Duration::from_millis(1500));
    assert!(pending.iter().all(|pending| !pending.is_finished()), "a user's move is not aborted");
    router.release("move.cloned");
    mover.join().expect("a thread").expect("the move");
    for pending in pending {
        pending.join().expect("a thread").expect("a change");
    }
    let chunks: i64 = router.value(&format!("SELECT count(*) FROM docshard.chunks WHERE namespace = '{NS}'"));
    assert_eq!(chunks, 4);
    assert_eq!(moving.owner(), "shard1");
    moving.check_clean();
}

/// A move of `move_primary` is a user's, too.
#[test]
fn changes_wait_for_a_move_of_the_primary_shard() {
    let moving = Moving::start(40);
    let router = &moving.cluster.router;
    run(&mut router.client(), "SELECT docshard.insert_one('other.plain', '{\"_id\": 1}')");
    run(&mut router.client(), "SELECT docshard.move_primary('other', 'shard0')");
    router.arm("move.cloned", Fault::Pause);
    let mover = moving.spawn("SELECT docshard.move_primary('other', 'shard1')");
    router.await_fault("move.cloned");
    let mut client = router.client();
    run(&mut client, "SET lock_timeout = '2500ms'");
    let (sqlstate, _) = error_of(&mut client, "SELECT docshard.create_index('other.plain', '{\"n\": 1}')");
    assert_eq!(sqlstate, "55P03");
    assert!(!mover.is_finished());
    router.release("move.cloned");
    mover.join().expect("a thread").expect("the move");
    let owner: String = router.value("SELECT shard FROM docshard.chunks WHERE namespace = 'other.plain'");
    assert_eq!(owner, "shard1");
}

#[test]
fn the_balancers_move_gives_way_to_changes() {
    let moving = Moving::start(2000);
    let router = &moving.cluster.router;
    router.arm("move.cloned", Fault::Pause);
    start_balancer(&moving.cluster);
    run(&mut router.client(), "SELECT docshard.remove_shard('shard0')");
    router.await_fault("move.cloned");
    let began = Instant::now();
    run(&mut router.client(), &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    let took = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(20)).contains(&took), "{took:?}");
    let aborted = "SELECT count(*) FROM docshard.migrations WHERE reason = 'draining' AND outcome = 'aborted'";
    wait_until("it is aborted", PATIENCE, || router.value::<i64>(aborted) == 1);
    router.release("move.cloned");

    // Changes and other moves run concurrently, and no change is refused.
    for k in 0..6 {
        let mut client = router.client();
        run(&mut client, &format!("SELECT docshard.split_at('{NS}', '{{\"k\": {}}}')", 10 + k * 100));
        run(&mut client, &format!("SELECT docshard.drop_index('{NS}', 'n_1')"));
        run(&mut client, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    }
    let left = format!("SELECT count(*) FROM docshard.chunks WHERE namespace = '{NS}' AND shard = 'shard0'");
    wait_until("it is drained", PATIENCE, || router.value::<i64>(&left) == 0);
    let valid = format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"n\": 0}}', '{{\"hint\": \"n_1\"}}')");
    assert_eq!(router.value::<i64>(&valid), moving.documents);
    wait_until("all is clean", PATIENCE, || {
        router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
}

/// Updates random documents of the moving chunk until `stop` is set; returns the number of updates.
fn update(moving: &Moving, stop: &Arc<AtomicBool>, slowest: &Arc<AtomicI64>) -> thread::JoinHandle<i64> {
    let (mut client, stop, slowest) = (moving.cluster.router.client(), Arc::clone(stop), Arc::clone(slowest));
    let chunk = moving.chunk;
    thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let k = number * 7919 % chunk;
            let began = Instant::now();
            run(
                &mut client,
                &format!(
                    "SELECT docshard.update_one('{NS}', '{{\"_id\": {k}, \"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
                ),
            );
            slowest.fetch_max(began.elapsed().as_millis() as i64, Ordering::Relaxed);
            number += 1;
        }
        number
    })
}

/// Moves a chunk under writes while VACUUM finds the recipient's table empty. Returns the durations of the slowest write and of
/// the move, in milliseconds.
fn move_under_writes_and_vacuum(documents: i64, max_write_stall: &str) -> (i64, i64) {
    let moving = Moving::with_chunk(documents, 20);
    let router = &moving.cluster.router;
    set_max_write_stall(router, max_write_stall);
    let (stop, slowest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writers = [update(&moving, &stop, &slowest), update(&moving, &stop, &slowest)];
    router.arm("move.cloning", Fault::Pause);
    let began = Instant::now();
    let mover = moving.start_move("shard1");
    router.await_fault("move.cloning");
    let table = moving.table();
    let vacuum = format!("VACUUM ANALYZE {table}");
    let scans =
        format!("SELECT coalesce(sum(seq_scan), 0)::int8 FROM pg_stat_user_tables WHERE relid = '{table}'::regclass");
    let recipient = moving.shard("shard1");
    run(&mut recipient.client(), &vacuum);
    let live: f32 = recipient.value(&format!("SELECT reltuples FROM pg_class WHERE oid = '{table}'::regclass"));
    assert!(live < 100.0, "{live} rows are thought to be there");
    let before: i64 = recipient.value(&scans);
    router.release("move.cloning");
    while !mover.is_finished() {
        run(&mut recipient.client(), &vacuum);
        thread::sleep(Duration::from_millis(50));
    }
    mover.join().expect("a thread").expect("the move");
    let took = began.elapsed().as_millis() as i64;
    stop.store(true, Ordering::Relaxed);
    let written: i64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    assert!(written > 0);
    // A session reports its statistics within a second.
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(recipient.value::<i64>(&scans), before, "sequential scans of the recipient's table");
    let sum: i64 = router.value(&format!("SELECT sum((d->>'n')::int8)::int8 FROM docshard.find('{NS}', '{{}}') d"));
    assert_eq!(sum, written, "updates");
    assert_eq!(moving.owner(), "shard1");
    moving.check();
    let said: String = router.value(
        "SELECT string_agg(row_to_json(m)::text, E'\\n') FROM (SELECT step, documents, rounds, attempts, stall_ms, durations \
         FROM docshard.migrations WHERE donor = 'shard0' ORDER BY id DESC) m",
    );
    println!("{documents} documents, {written} updates:\n{said}");
    (slowest.load(Ordering::Relaxed), took)
}

#[test]
fn catching_up_does_not_depend_on_statistics() {
    move_under_writes_and_vacuum(20_000, "1min");
}

/// `cargo test … -- --ignored half_a_million`
#[test]
#[ignore = "takes minutes"]
fn half_a_million_documents_move_under_writes_and_vacuum() {
    let (slowest, took) = move_under_writes_and_vacuum(500_000, "500ms");
    println!("the slowest update took {slowest} ms, the move {took} ms");
}

#[test]
fn a_hand_over_that_takes_too_long_lets_writers_go_on_and_is_tried_again() {
    let moving = Moving::start(600);
    let router = &moving.cluster.router;
    set_max_write_stall(router, "400ms");
    router.arm("move.caught_up", Fault::Pause);
    let mover = moving.start_move("shard1");
    router.await_fault("move.caught_up");
    let id: i64 = router.value("SELECT id FROM docshard.migrations WHERE state = 'running'");
    // The lock blocks the last round's writes to the staging table.
    let mut holder = moving.shard("shard1").client();
    run(&mut holder, &format!("BEGIN; LOCK TABLE docshard_data.m{id}_staging IN SHARE MODE"));
    router.release("move.caught_up");
    let held = || {
        let sql = "SELECT count(*) FROM pg_locks WHERE relation::regclass::text LIKE '%_staging' AND NOT granted";
        moving.shard("shard1").value::<i64>(sql) == 1
    };
    wait_until("the last round waits", PATIENCE, held);
    // Meanwhile writers continue.
    let update =
        format!("SELECT docshard.update_one('{NS}', '{{\"_id\": 1, \"k\": 1}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    run(&mut router.client(), &update);
    assert!(held(), "the last round still waits");
    run(&mut holder, "COMMIT");
    mover.join().expect("a thread").expect("the move");
    let attempts: i32 = router.value(&format!("SELECT attempts FROM docshard.migrations WHERE id = {id}"));
    assert!(attempts >= 1, "{attempts}");
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    assert_eq!(moving.owner(), "shard1");
    moving.check();
}

#[test]
fn a_move_that_never_is_quick_enough_ends_and_its_range_rests() {
    let moving = Moving::start(600);
    let router = &moving.cluster.router;
    set_max_write_stall(router, "1ms");
    let error = moving.move_to("shard1").expect_err("not within a millisecond");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "55P03", "{error:?}");
    assert!(error.message().contains("20 attempts"), "{error:?}");
    let log: String = router
        .value("SELECT details::text FROM docshard.changelog WHERE what = 'moveChunk.error' ORDER BY id DESC LIMIT 1");
    assert!(log.contains("\"attempts\":20") && log.contains("docshard.max_write_stall"), "{log}");
    assert_eq!(moving.owner(), "shard0");
    moving.check();

    // The balancer moves the other chunks, and leaves this one alone for a while.
    set_max_write_stall(router, "1min");
    run(&mut router.client(), "SELECT docshard.remove_shard('shard0')");
    start_balancer(&moving.cluster);
    let there = |bound: &str| {
        router.value::<i64>(&format!(
            "SELECT count(*) FROM docshard.chunks WHERE namespace = '{NS}' AND shard = 'shard0' AND {bound}"
        ))
    };
    wait_until("the others have left", PATIENCE, || there("min->>'k' ~ '^[3-9][0-9][0-9]$'") == 0);
    thread::sleep(Duration::from_millis(700));
    assert!(there("true") > 0, "it rests");
    // A user may still move it.
    run(&mut router.client(), "SELECT docshard.stop_balancer()");
    run(
        &mut router.client(),
        &format!("SELECT docshard.move_range('{NS}', '{{\"k\": {{\"$minKey\": 1}}}}', '{{\"k\": 300}}', 'shard1')"),
    );
    assert_eq!(moving.owner(), "shard1");
}

#[test]
fn a_chunk_that_takes_too_long_to_remove_is_split_before_it_moves() {
    let moving = Moving::with_chunk(9_000, 20);
    let router = &moving.cluster.router;
    // Records that the donor needed 10 ms for each document that it removed last.
    run(
        &mut router.client(),
        "INSERT INTO docshard_catalog.migrations (token, collection_id, namespace, min, max, donor, recipient, version, \
         donor_version, recipient_version, state, outcome, documents, durations) \
         SELECT 0, 0, 'gone.c', '', '', id, 0, 0, 0, 0, 'done', 'committed', 1000, '{\"removing\": 10000}' \
         FROM docshard_catalog.shards WHERE name = 'shard0'",
    );
    let answer = moving.move_to("shard1").expect("a move");
    assert_eq!(answer["documents"], 9_000, "{answer}");
    let moves = "SELECT count(*) FROM docshard.migrations WHERE outcome = 'committed' AND documents > 1000";
    let moves: i64 = router.value(moves);
    assert!(moves >= 3, "{moves} moves");
    let elsewhere: i64 = router.value(&format!(
        "SELECT count(*) FROM docshard.chunks WHERE namespace = '{NS}' AND shard <> 'shard1' AND max->>'k' ~ '^[1-9][0-9]*$'"
    ));
    assert_eq!(elsewhere, 0, "all parts have moved");
    moving.check();
}

/// Drains a shard with the given number of empty chunks; returns the number of moves and their duration.
fn drain_empty_chunks(chunks: i32) -> (i64, Duration) {
    let cluster = Cluster::start(2);
    let router = &cluster.router;
    let mut client = router.client();
    run(
        &mut client,
        "SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('test', 'shard0'); \
         SELECT docshard.shard_collection('test.empty', '{\"k\": 1}')",
    );
    // The same as a script with many calls of split_at.
    run(
        &mut client,
        &format!(
            "DO $$ BEGIN FOR k IN 1 .. {chunks} - 1 LOOP \
             PERFORM docshard.split_at('test.empty', ('{{\"k\": ' || k || '}}')::json); END LOOP; END $$"
        ),
    );
    run(&mut client, "SELECT docshard.insert_one('test.empty', '{\"_id\": 1, \"k\": 7}')");
    let count = |shard: &str| {
        router.value::<i64>(&format!(
            "SELECT count(*) FROM docshard.chunks WHERE namespace = 'test.empty' AND shard LIKE '{shard}'"
        ))
    };
    assert_eq!(count("shard0"), i64::from(chunks));
    let began = Instant::now();
    run(&mut client, "SELECT docshard.remove_shard('shard0')");
    run(&mut client, "SELECT docshard.set_setting('balancer_interval_ms', '100'); SELECT docshard.start_balancer()");
    wait_until("it is drained", Duration::from_secs(600), || count("shard0") == 0);
    let took = began.elapsed();
    run(&mut client, "SELECT docshard.stop_balancer()");
    assert_eq!(count("%"), i64::from(chunks), "no chunk is merged");
    assert!(count("shard1") > 0 && count("local") > 0, "both others have got some");
    let found = "SELECT count(*) FROM docshard.find('test.empty', '{\"k\": 7}')";
    assert_eq!(router.value::<i64>(found), 1);
    (router.value("SELECT count(*) FROM docshard.migrations WHERE reason = 'draining'"), took)
}

#[test]
fn empty_neighbours_leave_a_draining_shard_together() {
    let (moves, took) = drain_empty_chunks(300);
    println!("300 chunks: {moves} moves, {took:?}");
    assert!(moves <= 20, "{moves} moves");
}

/// `cargo test … -- --ignored ten_thousand`
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_empty_chunks_are_drained() {
    let (moves, took) = drain_empty_chunks(10_000);
    println!("10,000 chunks: {moves} moves, {took:?}");
}
