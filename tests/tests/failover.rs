//! Failover of shards to asynchronous standbys, with moves: documents that a move has brought are as safe as those that were there, and a
//! shard that has lost commits is adopted.

use docshard_tests::faults::Fault;
use docshard_tests::moving::{Moving, NS, PATIENCE, count, increment, insert};
use docshard_tests::{Cluster, FrozenReceiver, Node, Standby, Started, wait_until};
use postgres::error::DbError;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Limit for a statement that must fail without waiting: shorter than any wait of docshard, and long enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(8);

fn refusal<T>(answer: Result<T, postgres::Error>) -> DbError {
    let Err(error) = answer else { panic!("not refused") };
    error.as_db_error().unwrap_or_else(|| panic!("{error}")).clone()
}

fn set(router: &Node, name: &str, value: &str) {
    router.psql(&format!("SELECT docshard.set_setting('{name}', '{value}')"));
}

fn adopt(cluster: &Cluster, shard: &str) -> Value {
    cluster.router.value(&format!("SELECT docshard.accept_shard('{shard}', '{{\"adopt\": true}}')::json"))
}

fn number(moving: &Moving, shard: &str) -> usize {
    moving.cluster.shards.iter().position(|node| node.name == shard).expect("a shard")
}

fn logged(cluster: &Cluster, what: &str) -> i64 {
    cluster.router.value(&format!("SELECT count(*) FROM docshard.changelog WHERE what = '{what}'"))
}

fn check_collection(cluster: &Cluster) -> Value {
    cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')::json"))
}

/// An asynchronous standby that has everything, and receives nothing more.
fn cut_off(node: &Node) -> Standby {
    let standby = node.asynchronous_standby();
    wait_until("the standby has all", PATIENCE, || {
        node.value::<i64>("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()") == 1
    });
    standby.cut_off();
    standby
}

/// A move must not make documents depend on a standby that does not follow; when it follows again, the move succeeds, and a failover
/// loses none of them.
#[test]
fn a_move_gives_way_to_a_standby_that_does_not_follow() {
    for shard in ["shard1", "shard0"] {
        let mut moving = Moving::start(200);
        set(&moving.cluster.router, "move_wait_ms", "2000");
        let place = number(&moving, shard);
        let standby = moving.cluster.shards[place].asynchronous_standby();
        let receiver = standby.freeze_receiver();
        let error = refusal(moving.move_to("shard1"));
        assert_eq!(error.code().code(), "55P03", "{error:?}");
        assert!(error.message().contains(&format!("of shard \"{shard}\"")), "{error:?}");
        assert!(error.hint().unwrap_or_default().contains("move_waits_for_standbys"), "{error:?}");
        assert_eq!(moving.owner(), "shard0");
        moving.run(&increment(1));
        moving.check();
        let shown = "SELECT error FROM docshard.migrations ORDER BY id DESC LIMIT 1";
        assert!(moving.cluster.router.value::<String>(shown).contains("gave up waiting for the standby"));

        standby.thaw_receiver(&receiver);
        moving.move_to("shard1").expect("it follows again");
        moving.cluster.shards[place].fail_over(standby);
        wait_until("its position is known", PATIENCE, || {
            moving.cluster.router.client().batch_execute(&format!("SELECT docshard.count_documents('{NS}')")).is_ok()
        });
        moving.check();
        assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    }
}

/// While writers are excluded the wait is limited, too: what is prepared is rolled back, and they continue.
#[test]
fn a_standby_that_stops_during_the_hand_over_ends_the_move() {
    let moving = Moving::start(200);
    let standby = moving.cluster.shards[1].asynchronous_standby();
    moving.cluster.router.arm("move.frozen", Fault::Pause);
    moving.cluster.router.psql("ALTER SYSTEM SET docshard.max_write_stall = '8s'");
    moving.cluster.router.psql("SELECT pg_reload_conf()");
    let mover = moving.start_move("shard1");
    moving.cluster.router.await_fault("move.frozen");
    let receiver = standby.freeze_receiver();
    let writer = moving.spawn(increment(1));
    moving.cluster.router.release("move.frozen");
    let error = refusal(mover.join().expect("a thread"));
    assert!(error.message().contains("standby"), "{error:?}");
    writer.join().expect("a thread").expect("the writer continues");
    assert_eq!(moving.owner(), "shard0");
    moving.check();
    standby.thaw_receiver(&receiver);
    moving.move_to("shard1").expect("a later move");
    moving.check();
}

/// A standby counts until the end of a move that has seen it, even if its server ends the connection meanwhile. It may come back; a move
/// that begins while it is away leaves it out.
#[test]
fn a_standby_that_disconnects_during_a_move_counts() {
    let mut moving = Moving::start(200);
    set(&moving.cluster.router, "move_wait_ms", "8000");
    let shard = &moving.cluster.shards[1];
    shard.drop_silent_receivers();
    let standby = shard.asynchronous_standby();
    let gave_way = |answer| {
        let error = refusal(answer);
        assert_eq!(error.code().code(), "55P03", "{error:?}");
        assert!(error.message().contains("of shard \"shard1\", which has disconnected"), "{error:?}");
        assert_eq!(moving.owner(), "shard0");
        moving.check();
    };
    let back = |receiver: &FrozenReceiver| {
        standby.thaw_receiver(receiver);
        shard.await_receivers(1);
    };

    // While the move waits for it.
    let receiver = standby.freeze_receiver();
    gave_way(moving.move_to("shard1").map(drop));
    shard.await_receivers(0);
    back(&receiver);

    // At the beginning of the move, and with writers excluded.
    for (point, stall) in [("move.placed", "500"), ("move.frozen", "8s"), ("move.prepared", "8s")] {
        moving.cluster.router.psql(&format!("ALTER SYSTEM SET docshard.max_write_stall = '{stall}'"));
        moving.cluster.router.psql("SELECT pg_reload_conf()");
        moving.cluster.router.arm(point, Fault::Pause);
        let mover = moving.start_move("shard1");
        moving.cluster.router.await_fault(point);
        let receiver = standby.freeze_receiver();
        shard.await_receivers(0);
        moving.cluster.router.release(point);
        gave_way(mover.join().expect("a thread"));
        back(&receiver);
    }

    // It is back in time.
    set(&moving.cluster.router, "move_wait_ms", "60000");
    let receiver = standby.freeze_receiver();
    let mover = moving.start_move("shard1");
    shard.await_receivers(0);
    wait_until("the move waits", PATIENCE, || moving.step() == "waiting for standbys");
    assert_eq!(moving.owner(), "shard0");
    standby.thaw_receiver(&receiver);
    mover.join().expect("a thread").expect("it follows again");
    moving.cluster.shards[1].fail_over(standby);
    wait_until("its position is known", PATIENCE, || {
        moving.cluster.router.client().batch_execute(&format!("SELECT docshard.count_documents('{NS}')")).is_ok()
    });
    moving.check();
}

/// The same for a change of layout.
#[test]
fn a_standby_that_disconnects_during_a_change_of_layout_counts() {
    let mut moving = Moving::start(200);
    let shard = &moving.cluster.shards[1];
    shard.drop_silent_receivers();
    let standby = shard.asynchronous_standby();
    let reshard = |wait: i32| {
        format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}', '{{\"commitTimeoutMS\": {wait}}}')")
    };
    for point in ["reshard.prepared", "reshard.caught_up", "reshard.last_round"] {
        moving.cluster.router.arm(point, Fault::Pause);
        let change = moving.spawn(reshard(4000));
        moving.cluster.router.await_fault(point);
        let receiver = standby.freeze_receiver();
        shard.await_receivers(0);
        moving.cluster.router.release(point);
        let error = refusal(change.join().expect("a thread"));
        assert_eq!(error.code().code(), "55P03", "{point}: {error:?}");
        assert!(error.message().contains("of shard \"shard1\", which has disconnected"), "{point}: {error:?}");
        moving.check();
        standby.thaw_receiver(&receiver);
        shard.await_receivers(1);
    }

    moving.cluster.router.arm("reshard.cloned", Fault::Pause);
    let change = moving.spawn(reshard(60_000));
    moving.cluster.router.await_fault("reshard.cloned");
    let receiver = standby.freeze_receiver();
    shard.await_receivers(0);
    moving.cluster.router.release("reshard.cloned");
    // Meanwhile writers go on.
    moving.run(&increment(1));
    standby.thaw_receiver(&receiver);
    change.join().expect("a thread").expect("it follows again");
    moving.cluster.shards[1].fail_over(standby);
    let all = format!("SELECT docshard.count_documents('{NS}')");
    wait_until("its position is known", PATIENCE, || moving.cluster.router.client().batch_execute(&all).is_ok());
    assert_eq!(moving.cluster.router.value::<i64>(&all), moving.documents);
}

/// Standbys that are away when a move begins are not waited for.
#[test]
fn a_standby_that_is_gone_blocks_no_move() {
    let moving = Moving::start(100);
    let _gone = [cut_off(&moving.cluster.shards[0]), cut_off(&moving.cluster.shards[1])];
    moving.move_to("shard1").expect("a move");
    moving.check();
}

/// Other receivers of WAL than standbys are not waited for, neither while they hang nor when they disconnect.
#[test]
fn other_receivers_of_wal_block_no_move() {
    let mut moving = Moving::start(100);
    let shard = &mut moving.cluster.shards[1];
    shard.stop();
    shard.configure("wal_level = logical");
    shard.start();
    let shard = &moving.cluster.shards[1];
    wait_until("the router is connected again", PATIENCE, || {
        moving.cluster.router.client().batch_execute(&format!("SELECT docshard.count_documents('{NS}')")).is_ok()
    });
    for (turn, to) in [(0, "shard1"), (1, "shard0")] {
        let scratch = |name: &str| shard.scratch_file(&format!("{name}{turn}")).to_str().expect("a path").to_owned();
        let slot = format!("subscriber{turn}");
        shard.psql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"));
        let (wal, backup, changes) = (scratch("wal"), scratch("backup"), scratch("changes"));
        std::fs::create_dir(&wal).expect("a folder");
        std::fs::set_permissions(&wal, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a folder");
        let receivers = [
            shard.start_program("pg_receivewal", &["-D", &wal, "--no-loop"]),
            shard.start_program(
                "pg_recvlogical",
                &["-d", "postgres", "-S", &slot, "--start", "--no-loop", "-f", &changes],
            ),
            shard.start_program("pg_basebackup", &["-D", &backup, "--checkpoint=fast", "--max-rate=32k"]),
        ];
        // The backup has two connections.
        shard.await_receivers(4);
        moving.cluster.router.arm("move.placed", Fault::Pause);
        let mover = moving.start_move(to);
        moving.cluster.router.await_fault("move.placed");
        receivers.iter().for_each(Started::freeze);
        if turn == 1 {
            drop(receivers);
            shard.await_receivers(0);
        }
        moving.cluster.router.release("move.placed");
        mover.join().expect("a thread").expect("a move");
        moving.check();
    }
}

/// The commits of a move are lost, but not what was prepared: the decision completes it, without an administrator.
#[test]
fn a_failover_after_the_decision_completes_the_move() {
    for shards in [vec!["shard1"], vec!["shard0"], vec!["shard0", "shard1"]] {
        let mut moving = Moving::start(200);
        set(&moving.cluster.router, "balancer_interval_ms", "500");
        let standbys: Vec<_> =
            shards.iter().map(|shard| moving.cluster.shards[number(&moving, shard)].asynchronous_standby()).collect();
        moving.cluster.router.arm("move.replicated", Fault::Pause);
        let mover = moving.start_move("shard1");
        moving.cluster.router.await_fault("move.replicated");
        let receivers: Vec<_> = standbys.iter().map(Standby::freeze_receiver).collect();
        moving.cluster.router.release("move.replicated");
        mover.join().expect("a thread").expect("the move");
        wait_until("it is cleaned up", PATIENCE, || moving.step().is_empty());
        for (shard, (standby, receiver)) in shards.iter().zip(standbys.into_iter().zip(receivers)) {
            let place = number(&moving, shard);
            moving.cluster.shards[place].fail_over_without(standby, &receiver);
            let prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'docshard_m_%'";
            wait_until("the decision is carried out", PATIENCE, || {
                moving.cluster.shards[place].value::<i64>(prepared) == 0
            });
        }
        assert_eq!(moving.owner(), "shard1", "{shards:?}");
        moving.check();
        moving.move_to("shard0").expect("a later move");
        moving.check();
    }
}

/// Checks that statements for a shard fail at once, and that the shard is shown as behind.
fn refused(moving: &Moving, shard: &str, statements: &[String]) {
    for sql in statements {
        let began = Instant::now();
        let error = refusal(moving.cluster.router.client().batch_execute(sql));
        assert!(began.elapsed() < AT_ONCE, "{sql}: {:?}", began.elapsed());
        assert_eq!(error.code().code(), "55000", "{sql}: {error:?}");
        assert!(error.detail().unwrap_or_default().contains("StaleShardVersion"), "{sql}: {error:?}");
        assert!(error.message().contains(&format!("shard \"{shard}\" has lost")), "{sql}: {error:?}");
        assert!(error.message().contains(NS), "{sql}: {error:?}");
        let hint = format!("docshard.accept_shard('{shard}', '{{\"adopt\": true}}')");
        assert!(error.hint().unwrap_or_default().contains(&hint), "{sql}: {error:?}");
    }
    let health =
        format!("SELECT reachable AND error LIKE '%behind the catalog%' FROM docshard.health WHERE shard = '{shard}'");
    assert!(moving.cluster.router.value::<bool>(&health));
    let status: String = moving.cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("behind the catalog") && status.contains("accept_shard"), "{status}");
}

fn healthy(moving: &Moving) {
    let health = "SELECT coalesce(string_agg(shard || ': ' || error, '; '), '') FROM docshard.health";
    assert_eq!(moving.cluster.router.value::<String>(health), "");
    let checked = check_collection(&moving.cluster);
    assert!(checked["valid"] == true && checked["duplicateIds"] == json!([]), "{checked}");
    moving.run(&insert(3, 3_000));
    moving.run(&format!("SELECT docshard.delete_one('{NS}', '{{\"k\": 3, \"_id\": 3000}}')"));
    for to in [moving.other(), moving.other()] {
        moving.move_to(&to).expect("a later move");
        moving.check_clean();
    }
    let checked = check_collection(&moving.cluster);
    assert!(checked["valid"] == true, "{checked}");
}

/// A shard that was cut off from its standby gets a chunk and loses one; then the standby is promoted.
#[test]
fn a_shard_that_has_lost_moves_is_adopted() {
    let mut moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    let standby = cut_off(&moving.cluster.shards[1]);
    moving.move_to("shard1").expect("a move");
    // Of the documents outside the chunk that moves, shard1 has the first half.
    moving.move_chunk(moving.chunk, "shard0").expect("a move");
    router.psql(&format!("SELECT docshard.drop_index('{NS}', 'n_1')"));
    router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"n\": 1}}', '{{\"unique\": true}}')"));
    router.psql("SELECT docshard.shard_collection('test.later', '{\"k\": 1}')");
    router.psql("SELECT docshard.move_chunk('test.later', '{\"k\": 1}', 'shard1')");
    router.psql("CREATE ROLE late; SELECT docshard.grant_access('late', '{\"write\": [\"test\"]}')");
    moving.cluster.shards[1].fail_over(standby);

    let find = format!("SELECT count(*) FROM docshard.find('{NS}', '{{\"k\": 1}}')");
    let all = format!("SELECT docshard.count_documents('{NS}')");
    refused(&moving, "shard1", &[find, all, insert(1, 1_001), increment(1)]);
    let error = refusal(moving.cluster.router.client().batch_execute("SELECT docshard.count_documents('test.later')"));
    assert!(error.message().contains("test.later is missing there"), "{error:?}");

    // Without the option, the call names what stays refused.
    let accepted: Value = moving.cluster.router.value("SELECT docshard.accept_shard('shard1')::json");
    assert_eq!(accepted["refused"], json!([NS, "test.later"]), "{accepted}");
    assert!(accepted["hint"].as_str().is_some_and(|hint| hint.contains("'{\"adopt\": true}'")), "{accepted}");

    // A failure at any point leaves a state from which the same call continues.
    for (point, fault) in
        [("adopt.moves_ended", Fault::Error), ("adopt.adopting", Fault::Error), ("adopt.adopting", Fault::Kill)]
    {
        moving.cluster.router.arm(point, fault);
        let call = "SELECT docshard.accept_shard('shard1', '{\"adopt\": true}')";
        moving.cluster.router.client().batch_execute(call).expect_err(point);
        wait_until("the router is back", PATIENCE, || moving.cluster.router.try_client().is_ok());
    }
    let said = adopt(&moving.cluster, "shard1");
    let of = |ns: &str| {
        let all = said["adopted"].as_array().expect("an array");
        all.iter().find(|one| one["ns"] == ns).unwrap_or_else(|| panic!("{said}")).clone()
    };
    let adopted = of(NS);
    assert_eq!(adopted["removed"], moving.documents / 4, "{said}");
    let lost = adopted["lost"].as_array().expect("an array");
    assert_eq!(lost.len(), 1, "{said}");
    assert_eq!((&lost[0]["moved"], &lost[0]["found"]), (&json!(moving.chunk), &json!(0)), "{said}");
    assert_eq!(lost[0]["max"], json!({"k": moving.chunk}), "{said}");
    assert!(adopted["from"].as_i64() < adopted["to"].as_i64(), "{said}");
    assert_eq!(
        (&adopted["indexesCreated"], adopted["indexesDropped"].as_array().map(Vec::len)),
        (&json!(["k_1_n_1"]), Some(1)),
        "{said}"
    );
    assert_eq!(of("test.later")["from"], Value::Null, "{said}");
    assert_eq!(logged(&moving.cluster, "adoptShard"), 1);
    assert_eq!(adopt(&moving.cluster, "shard1")["adopted"], json!([]), "nothing is left to do");
    let accepted: Value = moving.cluster.router.value("SELECT docshard.accept_shard('shard1')::json");
    assert_eq!(accepted, json!({"shardAccepted": "shard1", "ok": 1}));

    assert_eq!(count(&mut moving.cluster.router.client()), moving.documents - moving.chunk);
    moving.run("SELECT docshard.insert_one('test.later', '{\"_id\": 1, \"k\": 1}')");
    moving.run(&format!("SET ROLE late; SELECT docshard.count_documents('{NS}'); SELECT docshard.insert_one('test.later', '{{\"k\": 2}}')"));
    healthy(&moving);
}

/// Donor and recipient have both lost a move: the documents are still at the donor, whichever of them is adopted first.
#[test]
fn a_range_that_only_its_former_owner_has_goes_back() {
    for order in [["shard0", "shard1"], ["shard1", "shard0"]] {
        let mut moving = Moving::start(200);
        let standbys: Vec<_> = moving.cluster.shards.iter().map(cut_off).collect();
        moving.move_to("shard1").expect("a move");
        for (place, standby) in standbys.into_iter().enumerate() {
            moving.cluster.shards[place].fail_over(standby);
        }
        for shard in order {
            let said = adopt(&moving.cluster, shard);
            assert_eq!(said["adopted"][0]["removed"], 0, "{said}");
            // The documents of the range that went back are not lost.
            assert_eq!(said["adopted"][0]["lost"], json!([]), "{said}");
            let returned = if shard == "shard0" { json!(1) } else { Value::Null };
            assert_eq!(said["adopted"][0]["returned"], returned, "{said}");
        }
        assert_eq!(moving.owner(), "shard0", "{order:?}");
        assert_eq!(logged(&moving.cluster, "adoptShard.returned"), 1);
        moving.check();
        healthy(&moving);
    }
}

/// The recipient loses its part of a decided move before the donor has committed: the decision must not delete the donor's documents.
#[test]
fn a_decided_move_whose_part_is_lost_leaves_the_documents() {
    let mut moving = Moving::start(200);
    let standby = cut_off(&moving.cluster.shards[1]);
    moving.cluster.router.arm("move.decided", Fault::Pause);
    let mover = moving.start_move("shard1");
    moving.cluster.router.await_fault("move.decided");
    // Recovery must not get between.
    moving.cluster.router.stop_immediately();
    mover.join().expect("a thread").expect_err("the router is gone");
    moving.cluster.shards[1].fail_over(standby);
    moving.cluster.router.clear_faults();
    moving.cluster.router.start();
    wait_until("it is noticed", PATIENCE, || moving.step() == "lost");
    assert_eq!(moving.halves(), (moving.chunk, 0));
    let sql = increment(1);
    refused_move(&moving, &sql);
    adopt(&moving.cluster, "shard1");
    assert_eq!(moving.owner(), "shard0");
    moving.check();
    healthy(&moving);
}

fn refused_move(moving: &Moving, sql: &str) {
    let began = Instant::now();
    // The donor's part excludes writers: they fail with their lock timeout, or at once when they have the foreseen map.
    let error = refusal(moving.cluster.router.client().batch_execute(&format!("SET lock_timeout = '2s'; {sql}")));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(["55000", "55P03"].contains(&error.code().code()), "{error:?}");
}

/// A synchronous standby that hangs blocks writes, and is shown.
#[test]
fn a_commit_that_waits_for_a_standby_is_shown() {
    let moving = Moving::start(20);
    let waits = |shard: &str| {
        let sql = format!("SELECT coalesce(oldest_sync_wait_s, -1) FROM docshard.health WHERE shard = '{shard}'");
        moving.cluster.router.value::<f64>(&sql)
    };
    assert!(waits("shard0") < 0.0);
    let standby = moving.cluster.shards[0].standby();
    let receiver = standby.freeze_receiver();
    let writer = moving.spawn(increment(1));
    wait_until("the wait is shown", PATIENCE, || waits("shard0") > 0.2);
    assert!(waits("shard1") < 0.0);
    standby.thaw_receiver(&receiver);
    writer.join().expect("a thread").expect("a write");
    wait_until("nobody waits", PATIENCE, || waits("shard0") < 0.0);
    moving.cluster.shards[0].remove_standby(standby);
}
