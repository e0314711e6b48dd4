//! Accidents while a chunk moves: the coordinator dies, servers and sessions are killed. The chunk must then be on one side, whole.

use super::{check_all, cluster};
use docshard_tests::moving::{NS, check_clean, count, in_tables, move_chunk, owner, recover};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
