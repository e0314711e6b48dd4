//! Deadlocks of transactions over several nodes: one of the transactions gets an error, the others continue.

use docshard_tests::{Cluster, Conditions, Node, Proxy, wait_until};
use postgres::Client;
use postgres::error::SqlState;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const NS: &str = "test.things";

/// Documents 1, 101 and 201 are at the router itself, at `shard0` and at `shard1`.
const KEYS: [i64; 3] = [1, 101, 201];

fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let documents = format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', 0))) \
         FROM unnest('{{1, 101, 201}}'::int[]) k"
    );
    cluster.router.client().batch_execute(&documents).expect("documents");
    cluster
}

/// A session with a short `deadlock_timeout`.
fn client(cluster: &Cluster) -> Client {
    let mut client = cluster.router.client();
    client.batch_execute("SET deadlock_timeout = '100ms'").unwrap();
    client
}

fn increase(k: i64) -> String {
    format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')")
}

/// A transaction block with one update. Without the block, the call would commit at its shard and hold no locks.
fn alone(k: i64) -> String {
    format!("BEGIN; {}; COMMIT", increase(k))
}

/// The number of transactions that got a deadlock error. Each increments two documents, the second one after all transactions
/// have incremented their first.
fn told(cluster: &Cluster, pairs: &[(i64, i64)]) -> usize {
    let met = Barrier::new(pairs.len());
    let ends: Vec<_> = thread::scope(|scope| {
        let run = |first: i64, second: i64| {
            let mut client = client(cluster);
            client.batch_execute(&format!("BEGIN; {}", increase(first))).unwrap();
            met.wait();
            client.batch_execute(&format!("{}; COMMIT", increase(second)))
        };
        let threads: Vec<_> = pairs.iter().map(|&(a, b)| scope.spawn(move || run(a, b))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
    for error in &errors {
        let report = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(*report.code(), SqlState::T_R_DEADLOCK_DETECTED, "{report:?}");
        assert_eq!(report.detail(), Some("MongoDB error 112 (WriteConflict)."));
    }
    errors.len()
}

fn sum(cluster: &Cluster) -> i64 {
    cluster.router.value(&format!("SELECT sum((d ->> 'n')::int8)::int8 FROM docshard.find('{NS}') d"))
}

#[test]
fn one_of_a_circle_is_told() {
    let cluster = cluster();
    let [here, a, b] = KEYS;
    // In each cycle a transaction waits for the document of the next one: at two shards, at the router and a shard, at all
    // three.
    for circle in [&[(a, b), (b, a)][..], &[(here, a), (a, here)], &[(here, a), (a, b), (b, here)]] {
        let before = sum(&cluster);
        assert_eq!(told(&cluster, circle), 1, "{circle:?}");
        assert_eq!(sum(&cluster) - before, 2 * (circle.len() as i64 - 1), "{circle:?}: all or nothing of each");
    }
    assert_eq!(told(&cluster, &[(a, b), (b, a), (a + 1, b + 1), (b + 1, a + 1)]), 1, "others are left alone");
    let held: i64 = cluster.router.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid > 2");
    assert_eq!(held, 0, "locks of the search are given back");
}

/// The last transaction of the cycle is one update that commits at its shard by itself: the router waits for its outcome.
#[test]
fn an_update_that_is_its_own_transaction_is_told() {
    let cluster = cluster();
    let [_, a, b] = KEYS;
    let index = format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')");
    cluster.router.client().batch_execute(&index).unwrap();
    let (mut both, mut dropper) = (client(&cluster), client(&cluster));
    let waiting = |shard: usize, locktype: &str| {
        let sql = format!("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = '{locktype}'");
        wait_until("it waits", Duration::from_secs(20), || cluster.shards[shard].value(&sql));
    };
    dropper.batch_execute("BEGIN; SELECT 1").unwrap();
    both.batch_execute(&format!("BEGIN; {}", increase(b))).unwrap();
    let ends: Vec<_> = thread::scope(|scope| {
        let single = scope.spawn(|| client(&cluster).batch_execute(&increase(b)));
        waiting(1, "transactionid");
        // Waits at the last shard for both updates, and excludes writers from the others.
        let dropper = scope.spawn(|| {
            dropper
                .batch_execute(&format!("SELECT docshard.drop_index('{NS}', 'n_1')"))
                .and_then(|()| dropper.batch_execute("COMMIT"))
        });
        waiting(1, "relation");
        let both = scope.spawn(|| both.batch_execute(&format!("{}; COMMIT", increase(a))));
        [single, dropper, both].into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let codes: Vec<_> = ends.iter().map(|end| end.as_ref().err().and_then(|error| error.code()).cloned()).collect();
    // With the update gone, the other two still wait for each other: the one that began last is the next victim.
    assert_eq!(codes, [Some(SqlState::T_R_DEADLOCK_DETECTED), None, Some(SqlState::T_R_DEADLOCK_DETECTED)]);
    assert_eq!(sum(&cluster), 0);
}

/// A read holds locks on its tables, for which a change of indexes waits.
#[test]
fn a_read_that_waits_for_a_change_of_indexes_is_told() {
    let cluster = cluster();
    let more = format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(2, 90) k; \
         SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"
    );
    cluster.router.client().batch_execute(&more).unwrap();
    let drop = format!("SELECT docshard.drop_index('{NS}', 'n_1')");
    let find = |filter: &str| format!("SELECT docshard.find('{NS}', '{filter}')");
    let mut reader = client(&cluster);
    // The cursor has not read all, so it holds its lock at the router.
    let begin = format!("BEGIN; DECLARE opened CURSOR FOR {}; FETCH opened", find(r#"{"k": {"$lt": 90}}"#));
    reader.batch_execute(&begin).unwrap();
    thread::scope(|scope| {
        let dropper = scope.spawn(|| client(&cluster).batch_execute(&drop));
        let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'relation'";
        wait_until("it waits at the router", Duration::from_secs(20), || cluster.router.value(waits));
        let error = reader.batch_execute(&find(r#"{"k": 101}"#)).expect_err("both wait for each other");
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}");
        dropper.join().unwrap().unwrap();
    });
}

/// Waits until a process waits for a lock of this kind.
fn wait_for(node: &Node, locktype: &str) {
    let sql = format!("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = '{locktype}'");
    wait_until("it waits", Duration::from_secs(20), || node.value(&sql));
}

/// The victims so far.
fn chosen(cluster: &Cluster) -> usize {
    cluster.router.log_tail(1_000_000).matches("was chosen to end a deadlock").count()
}

/// A single update waits at a shard for a transaction, which waits for a lock that the update's session holds at the router. With `delay`,
/// the update's cancel and its answer need longer than a client waits for the effect of a cancel.
fn single_update_with_a_lock(delay: Duration) {
    let cluster = cluster();
    let proxy = Proxy::before(cluster.shards[0].port);
    let options = format!("SET port '{}', ADD sslmode 'disable'", proxy.port);
    cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS ({options})"));
    let lock = "SELECT pg_advisory_lock(7)";
    // The session connects to the shard with its first statement, or has before.
    for first in ["SELECT 1", &increase(KEYS[1])] {
        let (mut single, mut both) = (client(&cluster), client(&cluster));
        single.batch_execute(&format!("{first}; {lock}")).unwrap();
        both.batch_execute(&format!("BEGIN; {}", increase(KEYS[1]))).unwrap();
        proxy.set(Conditions { delay, ..Conditions::default() });
        let before = chosen(&cluster);
        thread::scope(|scope| {
            let both = scope.spawn(move || both.batch_execute(&format!("{lock}; COMMIT")));
            wait_for(&cluster.router, "advisory");
            single.batch_execute("SET statement_timeout = '60s'").unwrap();
            let error = single.batch_execute(&increase(KEYS[1])).expect_err("both wait for each other");
            assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}");
            single.batch_execute("SELECT pg_advisory_unlock_all()").unwrap();
            both.join().unwrap().unwrap();
        });
        assert_eq!(chosen(&cluster) - before, 1, "one victim");
        proxy.set(Conditions::default());
    }
}

#[test]
fn a_single_update_of_a_session_with_a_lock_at_the_router_is_told() {
    single_update_with_a_lock(Duration::ZERO);
}

#[test]
fn a_single_update_is_told_although_its_shard_is_far_away() {
    single_update_with_a_lock(Duration::from_millis(700));
}

/// A role without any grant names its sessions as the router names those that work for other sessions.
#[test]
fn names_that_a_role_gives_its_sessions_mean_nothing() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("CREATE ROLE nobody LOGIN");
    let names = "SELECT to_hex(trunc(extract(epoch FROM backend_start))::int8) || '.' || to_hex(pid) \
                 FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let (mut holder, mut waiter) = (client(&cluster), client(&cluster));
    let [holder_name, waiter_name]: [String; 2] =
        [&mut holder, &mut waiter].map(|client| client.query_one(names, &[]).unwrap().get(0));
    holder.batch_execute(&format!("BEGIN; {}", increase(KEYS[1]))).unwrap();
    // The holder does not wait for the waiter; sessions of these names do, at the router and at the shard.
    let mut pretenders = Vec::new();
    for node in [router, &cluster.shards[0]] {
        if node.name != "router" {
            node.psql("CREATE ROLE nobody LOGIN");
        }
        let pretend = |name: &str| {
            let mut client = node.try_client_as("nobody", "postgres").unwrap();
            client.batch_execute(&format!("SET application_name = 'docshard {name}'")).unwrap();
            client
        };
        let (mut first, mut second) = (pretend(&waiter_name), pretend(&holder_name));
        first.batch_execute("SELECT pg_advisory_lock(42)").unwrap();
        pretenders.push(thread::spawn(move || second.batch_execute("SELECT pg_advisory_lock(42)")));
        wait_for(node, "advisory");
        pretenders.push(thread::spawn(move || {
            let slept = first.batch_execute("SELECT pg_sleep(6)");
            drop(first);
            slept
        }));
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(move || waiter.batch_execute(&alone(KEYS[1])));
        wait_for(&cluster.shards[0], "transactionid");
        thread::sleep(Duration::from_secs(4));
        assert!(!waiter.is_finished(), "it still waits");
        holder.batch_execute("COMMIT").unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(chosen(&cluster), 0);
    for pretender in pretenders {
        drop(pretender.join().unwrap());
    }
}

/// The youngest transaction of the deadlock waits at a shard where it does not look whether it was chosen, so it is spared: another one
/// fails.
#[test]
fn a_victim_that_does_not_notice_is_spared() {
    let cluster = cluster();
    let [_, a, b] = KEYS;
    let (mut older, mut younger) = (client(&cluster), client(&cluster));
    older.batch_execute(&format!("BEGIN; {}", increase(a))).unwrap();
    younger.batch_execute(&format!("BEGIN; {}", increase(b))).unwrap();
    let pid: i32 = younger.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill").success());
    };
    thread::scope(|scope| {
        let younger = scope.spawn(move || younger.batch_execute(&format!("{}; COMMIT", increase(a))));
        wait_for(&cluster.shards[0], "transactionid");
        signal("-STOP");
        let error = older.batch_execute(&increase(b)).expect_err("it is chosen next");
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}");
        older.batch_execute("ROLLBACK").unwrap();
        signal("-CONT");
        younger.join().unwrap().unwrap();
    });
    assert_eq!(chosen(&cluster), 2);
}

#[test]
fn who_waits_long_is_not_told() {
    let cluster = cluster();
    let [here, a, b] = KEYS;
    let mut holder = client(&cluster);
    for k in [here, a, b] {
        holder.batch_execute(&format!("BEGIN; {}", increase(k))).unwrap();
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| client(&cluster).batch_execute(&alone(k)))).collect();
            thread::sleep(Duration::from_millis(1500));
            holder.batch_execute("COMMIT").unwrap();
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
        });
    }
    assert_eq!(sum(&cluster), 12);
}

#[test]
fn however_many_wait_one_looks() {
    const WAITERS: usize = 40;
    let cluster = cluster();
    let (mut holder, mut observer) = (client(&cluster), cluster.router.client());
    let (connected, locked) = (Barrier::new(WAITERS + 1), Barrier::new(WAITERS + 1));
    holder.batch_execute(&format!("BEGIN; {}", increase(KEYS[1]))).unwrap();
    thread::scope(|scope| {
        let wait = || {
            let mut client = client(&cluster);
            client.batch_execute(&format!("BEGIN; {}; ROLLBACK", increase(KEYS[1] + 1))).unwrap();
            connected.wait();
            locked.wait();
            client.batch_execute(&alone(KEYS[1]))
        };
        let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
        connected.wait();
        // The detector has to read this table, so it does not finish.
        holder.batch_execute("LOCK TABLE docshard_catalog.shards IN ACCESS EXCLUSIVE MODE").unwrap();
        locked.wait();
        let looking = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'docshard job'";
        let until = Instant::now() + Duration::from_secs(2);
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(observer.query_one(looking, &[]).unwrap().get::<_, i64>(0));
        }
        holder.batch_execute("COMMIT").unwrap();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        assert_eq!(most, 1);
    });
}

#[test]
fn updates_of_many_end_or_are_told() {
    let cluster = cluster();
    let documents = format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', 0))) \
         FROM generate_series(2, 290) k WHERE k NOT IN (101, 201)"
    );
    cluster.router.client().batch_execute(&documents).unwrap();
    let all = format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    let done: i64 = thread::scope(|scope| {
        let run = || {
            let mut client = client(&cluster);
            let mut done = 0;
            for _ in 0..10 {
                match client.batch_execute(&all) {
                    Ok(()) => done += 1,
                    Err(error) => assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error:?}"),
                }
            }
            done
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(done > 0);
    assert_eq!(sum(&cluster), done * 290, "what ended counts everywhere, and what was told nowhere");
}
