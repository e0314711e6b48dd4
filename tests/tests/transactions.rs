//! Transactions over several shards: they are atomic under failures at any time, and lose no updates among concurrent clients while
//! chunks split and move.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use postgres::error::SqlState;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

const NS: &str = "test.things";

/// A key on each node: see `Cluster::spread`.
const KEYS: [i64; 3] = [1, 100, 200];
const NODES: [&str; 3] = ["local", "shard0", "shard1"];

fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let sooner = "SELECT docshard.set_setting('balancer_interval_ms', '500')";
    cluster.router.client().batch_execute(sooner).expect("a setting");
    cluster
}

type Outcome<T> = Result<T, postgres::Error>;

/// Runs one of the functions with its arguments as JSON.
fn call(client: &mut Client, function: &str, arguments: &[&Value]) -> Outcome<Value> {
    let arguments: Vec<String> =
        arguments.iter().map(|a| format!(", '{}'", a.to_string().replace('\'', "''"))).collect();
    let sql = format!("SELECT to_jsonb(docshard.{function}('{NS}'{}))", arguments.concat());
    client.query_one(&sql, &[]).map(|row| row.get(0))
}

fn insert(client: &mut Client, document: &Value) -> Outcome<Value> {
    call(client, "insert_one", &[document])
}

fn count(client: &mut Client, filter: &Value) -> i64 {
    call(client, "count_documents", &[filter]).expect("a count").as_i64().expect("a number")
}

/// A field of the one document with that key.
fn field(client: &mut Client, k: i64, name: &str) -> Value {
    let document = call(client, "find_one", &[&json!({"k": k})]).expect("a find");
    document[name].clone()
}

fn code(error: &postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// The documents in the tables of all nodes, whether or not the shards own them.
fn stored(cluster: &Cluster) -> Vec<i64> {
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    nodes(cluster).map(|node| node.value(&format!("SELECT count(*) FROM {table}"))).collect()
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

fn prepared(cluster: &Cluster) -> i64 {
    nodes(cluster).map(|node| node.value::<i64>("SELECT count(*) FROM pg_prepared_xacts")).sum()
}

#[test]
fn rolled_back_here_is_rolled_back_there() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for k in KEYS {
        insert(&mut client, &json!({"_id": k, "k": k, "n": 0})).unwrap();
    }
    assert_eq!(stored(&cluster), [1, 1, 1]);

    client.batch_execute("BEGIN").unwrap();
    for k in KEYS {
        insert(&mut client, &json!({"_id": "new", "k": k})).unwrap();
        call(&mut client, "update_one", &[&json!({"k": k, "_id": k}), &json!({"$inc": {"n": 1}})]).unwrap();
    }
    call(&mut client, "delete_many", &[&json!({"_id": "new"})]).unwrap();
    call(&mut client, "update_many", &[&json!({}), &json!({"$inc": {"n": 1}})]).unwrap();
    assert_eq!(
        (count(&mut client, &json!({})), count(&mut client, &json!({"n": 2}))),
        (3, 3),
        "one sees what one wrote"
    );
    assert_eq!(count(&mut cluster.router.client(), &json!({"n": 0})), 3, "others don't");
    client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(count(&mut client, &json!({"n": 0})), 3);
    assert_eq!(stored(&cluster), [1, 1, 1]);

    // Nested savepoints, released and rolled back.
    client.batch_execute("BEGIN; SAVEPOINT a").unwrap();
    for k in KEYS {
        insert(&mut client, &json!({"_id": "a", "k": k})).unwrap();
    }
    client.batch_execute("SAVEPOINT b").unwrap();
    for k in KEYS {
        insert(&mut client, &json!({"_id": "b", "k": k})).unwrap();
    }
    assert_eq!(count(&mut client, &json!({})), 9);
    client.batch_execute("ROLLBACK TO b").unwrap();
    assert_eq!(count(&mut client, &json!({})), 6);
    insert(&mut client, &json!({"_id": "c", "k": 200})).unwrap();
    client.batch_execute("RELEASE b; SAVEPOINT d").unwrap();
    call(&mut client, "delete_many", &[&json!({})]).unwrap();
    assert_eq!(count(&mut client, &json!({})), 0);
    client.batch_execute("ROLLBACK TO d; COMMIT").unwrap();
    assert_eq!(count(&mut client, &json!({})), 7);
    assert_eq!(stored(&cluster), [2, 2, 3]);

    // An error ends only its subtransaction. A function's exception block is a subtransaction, too.
    client.batch_execute("BEGIN").unwrap();
    insert(&mut client, &json!({"_id": "e", "k": 100})).unwrap();
    client.batch_execute("SAVEPOINT s").unwrap();
    let error = insert(&mut client, &json!({"_id": "e", "k": 100})).unwrap_err();
    assert_eq!(code(&error), "23505", "{error:?}");
    assert_eq!(code(&insert(&mut client, &json!({"k": 1})).unwrap_err()), "25P02");
    client.batch_execute("ROLLBACK TO s").unwrap();
    insert(&mut client, &json!({"_id": "f", "k": 200})).unwrap();
    client
        .batch_execute(&format!(
            "DO $$ BEGIN
               PERFORM docshard.insert_one('{NS}', '{{\"_id\": \"g\", \"k\": 200}}');
               PERFORM docshard.insert_one('{NS}', '{{\"_id\": \"f\", \"k\": 200}}');
             EXCEPTION WHEN unique_violation THEN
               PERFORM docshard.insert_one('{NS}', '{{\"_id\": \"h\", \"k\": 1}}');
             END $$; COMMIT"
        ))
        .unwrap();
    assert_eq!(stored(&cluster), [3, 3, 4]);
    assert_eq!(count(&mut client, &json!({"_id": "g"})), 0);
    assert_eq!(count(&mut client, &json!({"_id": {"$in": ["e", "f", "h"]}})), 3);
}

#[test]
fn a_cursor_is_read_on_after_a_rollback_to_a_savepoint() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let fill = "SELECT docshard.insert_many('test.things', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 'f', n % 7))) FROM generate_series(0, 2999) n";
    client.batch_execute(fill).unwrap();
    let within = |client: &mut Client, sql: &str| {
        client.batch_execute("SAVEPOINT s").unwrap();
        let rows = client.query(sql, &[]).unwrap();
        client.batch_execute(&format!("SELECT docshard.count_documents('{NS}'); ROLLBACK TO s")).unwrap();
        rows
    };
    for call in [
        r#"find('test.things')"#,
        r#"find('test.things', '{"k": {"$gte": 100, "$lt": 200}}')"#,
        r#"find('test.things', '{}', '{"sort": {"f": 1}}')"#,
        r#""distinct"('test.things', '_id')"#,
        r#"aggregate('test.things', '[{"$group": {"_id": "$_id", "n": {"$sum": 1}}}]')"#,
        r#"aggregate('test.things', '[{"$limit": 50}, {"$unionWith": "things"}]')"#,
        r#"aggregate('test.things', '[{"$lookup": {"from": "things", "localField": "_id", "foreignField": "k", "as": "l"}}]')"#,
        r#"aggregate('test.things', '[{"$limit": 90}, {"$lookup": {"from": "things", "let": {"f": "$f"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$_id", "$$f"]}}}], "as": "l"}}]')"#,
        r#"aggregate('test.things', '[{"$lookup": {"from": "things", "pipeline": [{"$match": {"k": 3}}, {"$project": {"k": 1}}], "as": "l"}}]')"#,
        r#"aggregate('test.things', '[{"$limit": 90}, {"$graphLookup": {"from": "things", "startWith": "$f", "connectFromField": "f", "connectToField": "k", "as": "l"}}]')"#,
    ] {
        let select = format!("SELECT docshard.{call}");
        let sorted = |rows: Vec<postgres::Row>| {
            let mut texts: Vec<String> = rows.iter().map(|row| row.get::<_, Value>(0).to_string()).collect();
            texts.sort_unstable();
            texts
        };
        let expected = sorted(client.query(&select, &[]).unwrap());
        client.batch_execute(&format!("BEGIN; DECLARE c CURSOR FOR {select}")).unwrap();
        let mut rows = within(&mut client, "FETCH 1 FROM c");
        rows.extend(within(&mut client, "FETCH 60 FROM c"));
        client.batch_execute("SAVEPOINT a; SAVEPOINT b").unwrap();
        rows.extend(client.query("FETCH 1 FROM c", &[]).unwrap());
        client.batch_execute("RELEASE b; ROLLBACK TO a").unwrap();
        rows.extend(client.query("FETCH ALL FROM c", &[]).unwrap());
        client.batch_execute("COMMIT").unwrap();
        assert!(sorted(rows) == expected, "{call}");
        // The savepoint in which it was opened is released; another one takes its place.
        client.batch_execute(&format!("BEGIN; SAVEPOINT a; DECLARE c CURSOR FOR {select}")).unwrap();
        let mut rows = client.query("FETCH 1 FROM c", &[]).unwrap();
        client.batch_execute("RELEASE a; SAVEPOINT b; ROLLBACK TO b").unwrap();
        rows.extend(client.query("FETCH ALL FROM c", &[]).unwrap());
        client.batch_execute("COMMIT").unwrap();
        assert!(sorted(rows) == expected, "{call} after a release");
        // The cursor ends with its own subtransaction.
        client.batch_execute(&format!("BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR {select}; SAVEPOINT t")).unwrap();
        client.batch_execute("FETCH 1 FROM c; ROLLBACK TO t; FETCH 1 FROM c; ROLLBACK TO s").unwrap();
        assert_eq!(code(&client.batch_execute("FETCH 1 FROM c").unwrap_err()), "34000");
        client.batch_execute("ROLLBACK").unwrap();
    }
}

#[test]
fn a_single_write_is_rolled_back_without_a_warning() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    // The transaction's only write goes to one shard, without BEGIN.
    let error = client
        .batch_execute(&format!(
            "DO $$ BEGIN
               PERFORM docshard.insert_one('{NS}', '{{\"_id\": 1, \"k\": 100}}');
               RAISE EXCEPTION 'no';
             END $$"
        ))
        .expect_err("it is raised");
    assert_eq!(code(&error), "P0001", "{error:?}");
    assert_eq!(stored(&cluster), [0, 0, 0]);
    // The session still works, and can write on that shard.
    insert(&mut client, &json!({"_id": 1, "k": 100})).unwrap();
    assert_eq!(stored(&cluster), [0, 1, 0]);
    for node in nodes(&cluster) {
        let log = node.log_tail(usize::MAX);
        assert!(!log.contains("no transaction in progress"), "{}: {log}", node.name);
    }
}

#[test]
fn a_deferred_error_at_commit_undoes_all_shards() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "CREATE TABLE parent (n int PRIMARY KEY);
             CREATE TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             BEGIN; INSERT INTO child VALUES (1)",
        )
        .unwrap();
    for k in KEYS {
        insert(&mut client, &json!({"k": k})).unwrap();
    }
    assert_eq!(code(&client.batch_execute("COMMIT").unwrap_err()), "23503");
    assert_eq!(stored(&cluster), [0, 0, 0]);
    assert_eq!(prepared(&cluster), 0);
    insert(&mut client, &json!({"k": 200})).unwrap();
    assert_eq!(stored(&cluster), [0, 0, 1]);
}

#[test]
fn duplicates_are_refused_as_mongodb_does() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for k in KEYS {
        insert(&mut client, &json!({"_id": 1, "k": k})).unwrap();
        let error = insert(&mut client, &json!({"_id": 1, "k": k})).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "23505", "{error:?}");
        assert!(error.message().starts_with("E11000 duplicate key error"), "{error:?}");
        assert!(error.detail().is_some_and(|d| d.contains("11000") && d.contains("DuplicateKey")), "{error:?}");
        // Equal numbers of different types are the same key.
        let error = insert(&mut client, &json!({"_id": 1.0, "k": {"$numberLong": k.to_string()}})).unwrap_err();
        assert_eq!(code(&error), "23505", "{error:?}");
    }
    assert_eq!(stored(&cluster), [1, 1, 1]);

    let documents: Vec<String> = [(1, 1), (2, 1), (3, 100), (1, 100), (4, 200), (4, 200)]
        .map(|(id, k)| format!("{{\"_id\": {id}, \"k\": {k}}}"))
        .into();
    let many = format!("SELECT docshard.insert_many('{NS}', $1::text[]::jsonb[], $2::text::json)");
    let error = client.query_one(&many, &[&documents, &"{\"ordered\": true}"]).unwrap_err();
    assert_eq!(code(&error), "23505", "{error:?}");
    assert_eq!(stored(&cluster), [1, 1, 1], "a statement that fails leaves nothing");
    let answer: Value = client.query_one(&many, &[&documents, &"{\"ordered\": false}"]).unwrap().get(0);
    assert_eq!(answer["insertedCount"], 3, "{answer}");
    let errors: Vec<_> = answer["writeErrors"].as_array().unwrap().iter().map(|e| (&e["index"], &e["code"])).collect();
    assert_eq!(json!(errors), json!([[0, 11000], [3, 11000], [5, 11000]]), "{answer}");
    assert_eq!(stored(&cluster), [2, 2, 2]);
}

/// Runs a piece of work in several clients concurrently; returns the sum of their results.
fn clients(cluster: &Cluster, clients: i64, work: impl Fn(i64, &mut Client) -> i64 + Sync) -> i64 {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|number| {
                let (mut client, work) = (cluster.router.client(), &work);
                scope.spawn(move || work(number, &mut client))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).sum()
    })
}

#[test]
fn no_increment_is_lost() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for k in KEYS {
        insert(&mut client, &json!({"_id": format!("counter {k}"), "k": k, "n": 0})).unwrap();
    }
    let increment = json!({"$inc": {"n": 1}});
    let done = clients(&cluster, 6, |number, client| {
        for round in 0..60 {
            let k = KEYS[round % 3];
            // Filters by shard key, by _id alone, and by other fields.
            let (function, filter) = match number % 3 {
                0 => ("update_one", json!({"k": k})),
                1 => ("update_one", json!({"_id": format!("counter {k}")})),
                _ => ("update_many", json!({"k": k, "n": {"$gte": 0}})),
            };
            let answer = call(client, function, &[&filter, &increment]).unwrap_or_else(|e| panic!("{filter}: {e:?}"));
            assert_eq!(
                (&answer["matchedCount"], &answer["modifiedCount"]),
                (&json!(1), &json!(1)),
                "{filter}: {answer}"
            );
        }
        60
    });
    let sum: i64 = KEYS.iter().map(|&k| field(&mut client, k, "n").as_i64().unwrap()).sum();
    assert_eq!(sum, done);

    // Under REPEATABLE READ one of two transactions gets a serialization error.
    let mut other = cluster.router.client();
    for k in KEYS {
        let filter = json!({"k": k});
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        let before = field(&mut client, k, "n").as_i64().unwrap();
        call(&mut other, "update_one", &[&filter, &increment]).unwrap();
        assert_eq!(field(&mut client, k, "n"), before, "the snapshot stays");
        let error = call(&mut client, "update_one", &[&filter, &increment]).unwrap_err();
        assert_eq!(code(&error), "40001", "{k}: {error:?}");
        client.batch_execute("ROLLBACK").unwrap();
        assert_eq!(field(&mut client, k, "n"), before + 1);
    }
}

/// Accounts on different shards; transfers between them keep the sum.
fn accounts(client: &mut Client) {
    for k in KEYS {
        insert(client, &json!({"_id": k, "k": k, "n": 100})).unwrap();
    }
}

fn transfer(client: &mut Client, from: i64, to: i64) -> Outcome<()> {
    let add = |n: i64| json!({"$inc": {"n": n}});
    client.batch_execute("BEGIN")?;
    let moved = call(client, "update_one", &[&json!({"k": from}), &add(-1)])
        .and_then(|_| call(client, "update_one", &[&json!({"k": to}), &add(1)]))
        .and_then(|_| client.batch_execute("COMMIT"));
    if moved.is_err() {
        let _ = client.batch_execute("ROLLBACK");
    }
    moved
}

fn balances(client: &mut Client) -> Vec<i64> {
    KEYS.iter().map(|&k| field(client, k, "n").as_i64().unwrap()).collect()
}

/// Waits until all prepared transactions have ended and no decision is left.
fn all_resolved(cluster: &Cluster) {
    wait_until("prepared transactions are resolved", Duration::from_secs(60), || prepared(cluster) == 0);
    wait_until("decisions are forgotten", Duration::from_secs(60), || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.transactions") == 0
    });
}

/// Holds a transfer from `shard0` to `shard1` after both shards have prepared and before the decision, by a lock on the table
/// of decisions. Calls `act`, releases the transfer, and returns its result.
fn at_the_decision(cluster: &mut Cluster, act: impl FnOnce(&mut Cluster, &postgres::CancelToken)) -> Outcome<()> {
    let mut holder = cluster.router.client();
    holder.batch_execute("BEGIN; LOCK TABLE docshard_catalog.transactions IN EXCLUSIVE MODE").unwrap();
    let mut client = cluster.router.client();
    let cancel = client.cancel_token();
    let transfer = thread::spawn(move || transfer(&mut client, 100, 200));
    wait_until("both shards have prepared", Duration::from_secs(30), || prepared(cluster) == 2);
    act(cluster, &cancel);
    let _ = holder.batch_execute("COMMIT");
    transfer.join().expect("the transfer does not panic")
}

/// The worker has deleted the record of the session's last decision since the transaction's snapshot.
#[test]
fn a_repeatable_read_commit_does_not_meet_the_records_of_earlier_ones() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    accounts(&mut client);
    // The worker may be faster.
    wait_until("the snapshot has the record", Duration::from_secs(60), || {
        client.batch_execute("ROLLBACK").unwrap();
        transfer(&mut client, KEYS[1], KEYS[2]).expect("a transfer over two shards");
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        client.query_one("SELECT FROM docshard_catalog.transactions LIMIT 1", &[]).is_ok()
    });
    all_resolved(&cluster);
    for k in [KEYS[1], KEYS[2]] {
        let sql = format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$set\": {{\"seen\": true}}}}')");
        client.batch_execute(&sql).unwrap();
    }
    client.batch_execute("COMMIT").expect("nobody else has written");
}

#[test]
fn a_shard_lost_after_it_prepared_commits_when_it_is_back() {
    let mut cluster = cluster();
    accounts(&mut cluster.router.client());
    for (round, victim) in [0, 1].into_iter().enumerate() {
        at_the_decision(&mut cluster, |cluster, _| cluster.shards[victim].kill9())
            .expect("both had prepared, so it is committed");
        cluster.shards[victim].start();
        all_resolved(&cluster);
        let sum = i64::try_from(round).unwrap() + 1;
        assert_eq!(balances(&mut cluster.router.client()), [100, 100 - sum, 100 + sum]);
    }
}

#[test]
fn a_router_lost_while_it_commits_at_the_shards_has_committed() {
    let mut cluster = cluster();
    accounts(&mut cluster.router.client());
    let mut holder = cluster.router.client();
    holder.batch_execute("BEGIN; LOCK TABLE docshard_catalog.transactions IN EXCLUSIVE MODE").unwrap();
    let mut client = cluster.router.client();
    let transfer = thread::spawn(move || transfer(&mut client, 100, 200));
    wait_until("both shards have prepared", Duration::from_secs(30), || prepared(&cluster) == 2);
    // The shard's sessions are frozen, so the router waits after its decision.
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard %'";
    let frozen: Vec<(usize, u32)> = (0..2)
        .flat_map(|shard| {
            let rows = cluster.shards[shard].client().query(sessions, &[]).expect("sessions");
            rows.into_iter().map(move |row| (shard, row.get::<_, i32>(0).unsigned_abs()))
        })
        .collect();
    frozen.iter().for_each(|(shard, pid)| cluster.shards[*shard].freeze(*pid));
    holder.batch_execute("COMMIT").unwrap();
    wait_until("it is decided", Duration::from_secs(30), || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.transactions") > 0
    });
    cluster.router.kill9();
    // The client's result does not matter: the transfer is committed and cannot be rolled back.
    let _ = transfer.join().expect("the transfer does not panic");
    let log = cluster.router.log_tail(50);
    assert!(!log.contains("PANIC"), "{log}");
    frozen.iter().for_each(|(shard, pid)| cluster.shards[*shard].thaw(*pid));
    cluster.router.start();
    all_resolved(&cluster);
    assert_eq!(balances(&mut cluster.router.client()), [100, 99, 101]);
}

#[test]
fn a_router_lost_before_it_decided_takes_all_back() {
    let mut cluster = cluster();
    accounts(&mut cluster.router.client());
    at_the_decision(&mut cluster, |cluster, _| cluster.router.crash()).expect_err("the router is gone");
    assert_eq!(cluster.shards.iter().map(|s| s.value::<i64>("SELECT count(*) FROM pg_prepared_xacts")).sum::<i64>(), 2);
    cluster.router.start();
    all_resolved(&cluster);
    assert_eq!(balances(&mut cluster.router.client()), [100, 100, 100]);
    transfer(&mut cluster.router.client(), 100, 200).unwrap();
    assert_eq!(balances(&mut cluster.router.client()), [100, 99, 101]);
}

#[test]
fn a_commit_cancelled_before_it_is_decided_takes_all_back() {
    let mut cluster = cluster();
    accounts(&mut cluster.router.client());
    let error = at_the_decision(&mut cluster, |_, cancel| {
        cancel.cancel_query(postgres::NoTls).unwrap();
        thread::sleep(Duration::from_millis(200));
    })
    .expect_err("it was cancelled");
    assert_eq!(code(&error), "57014", "{error:?}");
    assert_eq!(prepared(&cluster), 0);
    assert_eq!(balances(&mut cluster.router.client()), [100, 100, 100]);
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

#[test]
fn nodes_killed_at_any_moment_leave_no_transfer_half_done() {
    let seed = std::env::var("DOCSHARD_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_120);
    let rounds = std::env::var("DOCSHARD_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    println!("DOCSHARD_SEED={seed}");
    let mut dice = Dice(seed);
    let mut cluster = cluster();
    accounts(&mut cluster.router.client());
    let mut least = 0;
    let mut most = 0;
    for round in 0..rounds {
        let mut client = cluster.router.client();
        // Transfers run until the crash.
        let transfers = thread::spawn(move || {
            let mut done = 0;
            while transfer(&mut client, 100, 200).is_ok() {
                done += 1;
            }
            done
        });
        thread::sleep(Duration::from_millis(20 + dice.below(100)));
        let node = match dice.below(3) {
            2 => &mut cluster.router,
            shard => &mut cluster.shards[usize::try_from(shard).unwrap()],
        };
        let name = node.name.clone();
        if dice.below(2) == 0 {
            node.kill9();
        } else {
            node.crash();
        }
        let done: i64 = transfers.join().expect("the client does not panic");
        cluster.node(&name).start();
        all_resolved(&cluster);
        // The outcome of the last one is unknown.
        (least, most) = (least + done, most + done + 1);
        let now = balances(&mut cluster.router.client());
        println!("round {round}: {name} killed after {done} transfers; {now:?}");
        assert_eq!(now[1] + now[2], 200, "a transfer is half done: {now:?}");
        let moved = now[2] - 100;
        assert!((least..=most).contains(&moved), "{moved} transfers are stored, expected {least} to {most}");
        least = moved;
        most = moved;
    }
}

#[test]
fn everybody_writes_while_chunks_split_and_move() {
    const BEFORE: i64 = 3000;
    const MOVES: usize = 24;
    let cluster = cluster();
    let mut client = cluster.router.client();
    client
        .batch_execute(&format!(
            "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k % 300, 'n', 0))) \
             FROM generate_series(0, {}) k",
            BEFORE - 1
        ))
        .unwrap();
    let (begun, done) = (AtomicI64::new(BEFORE), AtomicI64::new(BEFORE));
    let (increments, all_increments, counts) = (AtomicI64::new(0), AtomicI64::new(0), AtomicI64::new(0));
    let stop = AtomicBool::new(false);
    let running = || !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        // Stops the threads also if the test panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);

        for _ in 0..2 {
            let mut client = cluster.router.client();
            let (begun, done, increments, running) = (&begun, &done, &increments, &running);
            scope.spawn(move || {
                while running() {
                    let id = begun.fetch_add(1, Ordering::SeqCst);
                    insert(&mut client, &json!({"_id": id, "k": id % 300, "n": 0})).expect("an insert");
                    done.fetch_add(1, Ordering::SeqCst);
                    // By _id alone, or by the shard key.
                    let old = (id * 7919) % BEFORE;
                    let filter = if id % 2 == 0 { json!({"_id": old}) } else { json!({"k": old % 300, "_id": old}) };
                    let answer =
                        call(&mut client, "update_one", &[&filter, &json!({"$inc": {"n": 1}})]).expect("an update");
                    assert_eq!(answer["modifiedCount"], 1, "{filter}");
                    increments.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut everywhere = cluster.router.client();
        let (all_increments, counts, running) = (&all_increments, &counts, &running);
        let (begun, done) = (&begun, &done);
        scope.spawn(move || {
            while running() {
                let filter = json!({"_id": {"$lt": BEFORE}});
                match call(&mut everywhere, "update_many", &[&filter, &json!({"$inc": {"all": 1}})]) {
                    Ok(answer) => {
                        assert_eq!(answer["modifiedCount"], BEFORE, "{answer}");
                        all_increments.fetch_add(1, Ordering::Relaxed);
                    }
                    // The update had written on a shard before it found that a chunk had moved.
                    Err(error) => assert_eq!(code(&error), "40001", "{error:?}"),
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let mut reader = cluster.router.client();
        scope.spawn(move || {
            while running() {
                let least = done.load(Ordering::SeqCst);
                let found = count(&mut reader, &json!({}));
                let most = begun.load(Ordering::SeqCst);
                assert!((least..=most).contains(&found), "{found} counted, of {least} to {most}");
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });

        let mut dice = Dice(20_261_120);
        let mut splits = 0;
        for round in 0..MOVES {
            let key = json!({"k": dice.below(300)});
            if round % 3 == 0 && call(&mut client, "split_find", &[&key]).is_ok() {
                splits += 1;
            }
            let to = json!(NODES[usize::try_from(dice.below(3)).unwrap()]);
            let sql = format!("SELECT docshard.move_chunk('{NS}', '{key}', '{}')", to.as_str().unwrap());
            client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        }
        assert!(splits > 2, "{splits} splits");
    });
    let sum = |client: &mut Client, name: &str| -> i64 {
        let sql = format!(
            "SELECT sum((d->>'{name}')::int8)::int8 FROM docshard.find('{NS}', '{{\"_id\": {{\"$lt\": {BEFORE}}}}}') d"
        );
        client.query_one(&sql, &[]).unwrap().get(0)
    };
    let total = done.into_inner();
    assert!(total > BEFORE, "the clients have written");
    println!(
        "{} inserts, {} counts, {} updates of all",
        total - BEFORE,
        counts.into_inner(),
        all_increments.load(Ordering::Relaxed)
    );
    assert_eq!(count(&mut client, &json!({})), total);
    assert_eq!(stored(&cluster).iter().sum::<i64>(), total);
    assert_eq!(sum(&mut client, "n"), increments.into_inner());
    assert_eq!(sum(&mut client, "all"), all_increments.into_inner() * BEFORE);
    assert_eq!(prepared(&cluster), 0);
}

/// The client's current `lock_timeout` applies at shards to each statement, even if the transaction in which the shard got it
/// was rolled back.
#[test]
fn lock_timeout_reaches_the_shards() {
    const NOT_AVAILABLE: &str = "55P03";
    const CANCELED: &str = "57014";
    let cluster = cluster();
    let (mut holder, mut client) = (cluster.router.client(), cluster.router.client());
    for k in KEYS {
        insert(&mut client, &json!({"_id": k, "k": k, "n": 0})).unwrap();
    }
    let write = |client: &mut Client, k: i64| {
        call(client, "update_one", &[&json!({"_id": k, "k": k}), &json!({"$inc": {"n": 1}})])
    };
    let refused = |client: &mut Client, k: i64| code(&write(client, k).expect_err("a lock")).to_owned();
    holder.batch_execute("BEGIN").unwrap();
    call(&mut holder, "update_many", &[&json!({}), &json!({"$inc": {"n": 1}})]).unwrap();

    // Outside a transaction block. In the second round the connections to the shards have had both settings before.
    for _ in 0..2 {
        client.batch_execute("SET lock_timeout = '100ms'").unwrap();
        for k in KEYS {
            assert_eq!(refused(&mut client, k), NOT_AVAILABLE, "{k}");
        }
        client.batch_execute("RESET lock_timeout; SET statement_timeout = '1s'").unwrap();
        for k in KEYS {
            assert_eq!(refused(&mut client, k), CANCELED, "{k}");
        }
        client.batch_execute("RESET statement_timeout").unwrap();
    }
    // Inside a transaction block, whose end takes the settings back.
    for k in [100, 200] {
        client.batch_execute("BEGIN; SET LOCAL lock_timeout = '100ms'").unwrap();
        count(&mut client, &json!({}));
        client.batch_execute("SAVEPOINT a").unwrap();
        assert_eq!(refused(&mut client, k), NOT_AVAILABLE, "{k}");
        client.batch_execute("ROLLBACK TO a; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '1s'").unwrap();
        assert_eq!(refused(&mut client, k), CANCELED, "{k}");
        client.batch_execute("ROLLBACK TO a; SET LOCAL lock_timeout = '100ms'").unwrap();
        assert_eq!(refused(&mut client, k), NOT_AVAILABLE, "{k}");
        client.batch_execute("ROLLBACK; SET statement_timeout = '1s'").unwrap();
        assert_eq!(refused(&mut client, k), CANCELED, "{k}");
        client.batch_execute("RESET statement_timeout").unwrap();
    }

    // A setting that was sent in a committed transaction stays at the shard.
    client.batch_execute("SET lock_timeout = '100ms'; BEGIN").unwrap();
    for k in KEYS {
        insert(&mut client, &json!({"_id": "new", "k": k})).unwrap();
    }
    client.batch_execute("COMMIT").unwrap();
    for k in KEYS {
        assert_eq!(refused(&mut client, k), NOT_AVAILABLE, "{k}");
    }
    holder.batch_execute("ROLLBACK").unwrap();
    for k in KEYS {
        write(&mut client, k).unwrap();
    }
}

const TWO: &str = r#"{"pair": true, "k": {"$gte": 100, "$lt": 200}}"#;
const TWO_HERE: &str = r#"{"pair": true, "k": {"$lt": 100}}"#;

/// Write skew: two transactions each check that two documents exist, and delete one of them; one transaction must fail. As
/// single statements, in a block, and in a batch without `BEGIN`; on a shard and at the router.
#[test]
fn serializable_transactions_leave_one_of_two() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for (pair, first) in [(TWO, 100), (TWO_HERE, 1)] {
        let count = format!("SELECT docshard.count_documents('{NS}', '{pair}')");
        let delete = |k: i64| format!("SELECT docshard.delete_one('{NS}', '{{\"k\": {k}, \"_id\": {k}}}')");
        for batch in [false, true] {
            for k in [first, first + 1] {
                insert(&mut client, &json!({"_id": k, "k": k, "pair": true})).unwrap();
            }
            client.batch_execute("SELECT pg_advisory_lock(1)").unwrap();
            let (begin, commit) = if batch { ("", "") } else { ("BEGIN ISOLATION LEVEL SERIALIZABLE;", "COMMIT;") };
            let other = format!(
                "{begin} {count}; SELECT pg_advisory_lock(1); SELECT pg_advisory_unlock(1); {}; {commit}",
                delete(first)
            );
            let mut session = cluster.router.client();
            session.batch_execute("SET default_transaction_isolation = serializable").unwrap();
            let running = thread::spawn(move || session.batch_execute(&other));
            wait_until("the other one has counted", Duration::from_secs(30), || {
                cluster.router.value::<i64>(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 1",
                ) == 1
            });
            let mut one = cluster.router.client();
            one.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE").unwrap();
            assert_eq!(one.query_one(&count, &[]).unwrap().get::<_, i64>(0), 2);
            client.batch_execute("SELECT pg_advisory_unlock(1)").unwrap();
            let outcomes = [
                running.join().unwrap(),
                one.batch_execute(&delete(first + 1)).and_then(|()| one.batch_execute("COMMIT")),
            ];
            let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
            assert_eq!(refused.len(), 1, "{pair}, batch {batch}: {outcomes:?}");
            assert_eq!(code(refused[0]), "40001", "{refused:?}");
            drop(one);
            assert_eq!(client.query_one(&count, &[]).unwrap().get::<_, i64>(0), 1);
            call(&mut client, "delete_many", &[&json!({})]).unwrap();
        }
    }
}

#[test]
fn serializable_transactions_have_one_shard() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for k in KEYS {
        insert(&mut client, &json!({"_id": k, "k": k, "n": 0})).unwrap();
    }
    let read = |k: i64| format!("SELECT docshard.find_one('{NS}', '{{\"k\": {k}}}')");
    let write = |k: i64| format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    let all = format!("SELECT docshard.count_documents('{NS}')");
    let refused = |client: &mut Client, sql: &str| {
        let error = client.batch_execute(sql).expect_err(sql);
        let error = error.as_db_error().expect("the server's").clone();
        assert_eq!(error.code().code(), "0A000", "{sql}: {error:?}");
        assert_eq!(error.detail(), Some("MongoDB error 238 (NotImplemented)."));
        assert!(error.hint().unwrap().contains("REPEATABLE READ"), "{error:?}");
    };
    for one in KEYS {
        for other in KEYS.into_iter().filter(|other| *other != one) {
            for (first, second) in [
                (read(one), read(other)),
                (read(one), write(other)),
                (write(one), read(other)),
                (write(one), write(other)),
                (write(one), all.clone()),
            ] {
                client.batch_execute(&format!("BEGIN ISOLATION LEVEL SERIALIZABLE; {first}")).unwrap();
                refused(&mut client, &second);
                client.batch_execute("ROLLBACK").unwrap();
            }
        }
        // A transaction on one shard may read and write repeatedly.
        let own = [read(one), write(one), read(one), write(one)].join("; ");
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL SERIALIZABLE; {own}; COMMIT")).unwrap();
        assert_eq!(field(&mut client, one, "n"), 2);
    }
    client.batch_execute("SET default_transaction_isolation = serializable").unwrap();
    refused(&mut client, &all);
    for k in KEYS {
        client.batch_execute(&write(k)).unwrap();
        assert_eq!(field(&mut client, k, "n"), 3);
    }
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    assert_eq!(count(&mut client, &json!({})), 3);
    client.batch_execute("COMMIT").unwrap();

    // READ ONLY and DEFERRABLE are passed on: the shard's transaction waits for a snapshot with which it cannot fail.
    let mut writer = cluster.shards[0].client();
    writer.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM pg_class").unwrap();
    let reads = format!("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE; {}", read(100));
    let reader = thread::spawn(move || client.batch_execute(&reads).map(|()| client));
    wait_until("it waits", Duration::from_secs(30), || {
        cluster.shards[0].value::<i64>("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SafeSnapshot'") == 1
    });
    writer.batch_execute("COMMIT").unwrap();
    let mut client = reader.join().unwrap().expect("the snapshot is safe");
    assert_eq!(code(&client.batch_execute(&write(100)).unwrap_err()), "25006");
}

/// A call that is the whole transaction commits at its shard before its answer is written. Writing the answer must therefore
/// not fail.
#[test]
fn a_call_whose_answer_cannot_be_written_leaves_nothing() {
    let cluster = Cluster::start(1);
    let router = &cluster.router;
    router.psql("SELECT docshard.enable_sharding('far', 'shard0'); SELECT docshard.create_collection('far.kinds')");
    let script = r#"
        SET client_encoding = 'LATIN1';
        SELECT docshard.insert_one('far.kinds', '{"_id": "\u4e2d"}');
        SELECT docshard.insert_one('far.kinds', '{"_id": "a"}') ->> 'acknowledged';
    "#;
    let printed = router.psql_script("postgres", &["-A", "-t"], script);
    assert!(printed.contains("has no equivalent in encoding"), "{printed}");
    assert!(printed.ends_with("true\n"), "{printed}");
    assert_eq!(router.psql("SELECT docshard.find('far.kinds')").trim(), r#"{"_id": "a"}"#);
}
