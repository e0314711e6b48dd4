//! Writes to one document by many clients, while its chunk moves: no increment is lost, no document made twice, none lost
//! or doubled when it changes its shard.

use docshard_tests::{Cluster, Node};
use postgres::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};

const NS: &str = "test.single";

/// A router and two shards; keys below 100 on `local`, from 100 on `shard0`, from 200 on `shard1`.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.stop_balancer()".to_owned(),
        "SELECT docshard.enable_sharding('test', 'local')".to_owned(),
        format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"),
        format!("SELECT docshard.split_at('{NS}', '{{\"k\": 100}}')"),
        format!("SELECT docshard.split_at('{NS}', '{{\"k\": 200}}')"),
    ] {
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    move_chunk(&mut client, 100, "shard0");
    move_chunk(&mut client, 200, "shard1");
    cluster
}

fn move_chunk(client: &mut Client, k: i64, to: &str) {
    let sql = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', '{to}')");
    client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

/// Calls a function on the collection; runs it again if the transaction could not be serialized.
fn call(client: &mut Client, function: &str, arguments: &[&Value]) -> Value {
    let arguments: Vec<String> =
        arguments.iter().map(|a| format!(", '{}'", a.to_string().replace('\'', "''"))).collect();
    let sql = format!("SELECT to_jsonb(docshard.{function}('{NS}'{}))", arguments.concat());
    loop {
        match client.query_one(&sql, &[]) {
            Ok(row) => return row.get::<_, Option<Value>>(0).unwrap_or(Value::Null),
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned());
                assert_eq!(code.as_deref(), Some("40001"), "{sql}: {error:?}");
            }
        }
    }
}

fn documents(client: &mut Client) -> Vec<Value> {
    let sql = format!("SELECT d FROM docshard.find('{NS}', '{{}}', '{{\"sort\": {{\"_id\": 1}}}}') AS d");
    client.query(&sql, &[]).expect("a find").iter().map(|row| row.get(0)).collect()
}

/// Rows in the tables of all nodes, whatever the map says.
fn stored(cluster: &Cluster) -> i64 {
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    let nodes = std::iter::once(&cluster.router).chain(&cluster.shards);
    nodes.map(|node: &Node| node.value::<i64>(&format!("SELECT count(*) FROM {table}"))).sum()
}

/// Clients that repeat a piece of work until they are told to stop; each is given its number.
struct Clients<T> {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<T>>>,
}

impl<T: Send + 'static> Clients<T> {
    fn start(cluster: &Cluster, count: usize, work: fn(&mut Client, usize) -> T) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..count)
            .map(|number| {
                let mut client = cluster.router.client();
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    let mut done = vec![work(&mut client, number)];
                    while !stop.load(Ordering::Relaxed) {
                        done.push(work(&mut client, number));
                    }
                    done
                })
            })
            .collect();
        Self { stop, threads }
    }

    fn stop(self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    }
}

#[test]
fn no_increment_of_a_counter_is_lost() {
    let cluster = cluster();
    // The counter is not there yet: the clients race to make it, too.
    let clients = Clients::start(&cluster, 5, |client, _| {
        let options = json!({"upsert": true, "returnDocument": "after"});
        let counter = call(client, "find_one_and_update", &[&json!({"k": 150}), &json!({"$inc": {"n": 1}}), &options]);
        counter["n"].as_i64().expect("a number")
    });
    let mut client = cluster.router.client();
    for to in ["shard1", "local", "shard0", "shard1", "shard0"] {
        move_chunk(&mut client, 150, to);
    }
    let numbers = clients.stop();
    let documents = documents(&mut client);
    assert_eq!(documents.len(), 1, "{documents:?}");
    assert_eq!(documents[0]["n"], numbers.len() as i64);
    let distinct: BTreeSet<i64> = numbers.iter().copied().collect();
    assert_eq!(
        (distinct.len(), distinct.first(), distinct.last()),
        (numbers.len(), Some(&1), Some(&(numbers.len() as i64)))
    );
    assert_eq!(stored(&cluster), 1);
    println!("{} increments", numbers.len());
}

#[test]
fn concurrent_upserts_make_one_document() {
    static ROUND: AtomicI64 = AtomicI64::new(0);
    let cluster = cluster();
    for round in 0..10 {
        ROUND.store(round * 25, Ordering::Relaxed);
        let threads: Vec<_> = (0..6)
            .map(|number| {
                let mut client = cluster.router.client();
                thread::spawn(move || {
                    let filter = json!({"k": ROUND.load(Ordering::Relaxed), "kind": "bucket"});
                    call(
                        &mut client,
                        "update_one",
                        &[&filter, &json!({"$push": {"m": number}}), &json!({"upsert": true})],
                    )
                })
            })
            .collect();
        let answers: Vec<Value> = threads.into_iter().map(|thread| thread.join().expect("a client")).collect();
        let upserted = answers.iter().filter(|answer| answer["upsertedCount"] == 1).count();
        assert_eq!(upserted, 1, "{answers:?}");
    }
    let documents = documents(&mut cluster.router.client());
    assert_eq!(documents.len(), 10);
    for document in documents {
        let messages: BTreeSet<i64> =
            document["m"].as_array().expect("an array").iter().filter_map(Value::as_i64).collect();
        assert_eq!(messages, (0..6).collect(), "{document}");
    }
}

#[test]
fn a_queue_gives_each_job_to_one_client() {
    const JOBS: i64 = 60;
    let cluster = cluster();
    let mut client = cluster.router.client();
    let jobs: Vec<Value> = (0..JOBS).map(|n| json!({"_id": n, "k": 120, "state": "new"})).collect();
    for job in &jobs {
        call(&mut client, "insert_one", &[job]);
    }
    let clients = Clients::start(&cluster, 4, |client, number| {
        let taken = call(
            client,
            "find_one_and_update",
            &[
                &json!({"k": 120, "state": "new"}),
                &json!({"$set": {"state": "taken", "by": number}}),
                &json!({"sort": {"_id": 1}, "projection": {"_id": 1}}),
            ],
        );
        taken["_id"].as_i64()
    });
    move_chunk(&mut client, 120, "shard1");
    move_chunk(&mut client, 120, "shard0");
    while call(&mut client, "count_documents", &[&json!({"k": 120, "state": "new"})]) != 0 {
        thread::yield_now();
    }
    let mut taken: Vec<i64> = clients.stop().into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..JOBS).collect::<Vec<_>>());
}

#[test]
fn documents_that_change_their_shard_are_neither_lost_nor_doubled() {
    const DOCUMENTS: i64 = 12;
    static SEED: AtomicI64 = AtomicI64::new(1);
    let cluster = cluster();
    let mut client = cluster.router.client();
    for n in 0..DOCUMENTS {
        call(&mut client, "insert_one", &[&json!({"_id": n, "k": n * 25, "n": 0})]);
    }
    let wanderers = Clients::start(&cluster, 4, |client, _| {
        let random = SEED.fetch_add(1, Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005) >> 33;
        let (id, to) = (random.rem_euclid(DOCUMENTS), (random >> 4).rem_euclid(300));
        let update = json!({"$set": {"k": to}, "$inc": {"n": 1}});
        call(client, "update_one", &[&json!({"_id": id}), &update])["modifiedCount"].as_i64().expect("a number")
    });
    for round in 0..3 {
        for (k, to) in [(50, round), (150, round + 1), (250, round + 2)] {
            move_chunk(&mut client, k, ["local", "shard0", "shard1"][to % 3]);
        }
    }
    let modified = wanderers.stop();
    let documents = documents(&mut client);
    let ids: Vec<i64> = documents.iter().filter_map(|d| d["_id"].as_i64()).collect();
    assert_eq!(ids, (0..DOCUMENTS).collect::<Vec<_>>());
    assert_eq!(stored(&cluster), DOCUMENTS);
    let changes: i64 = documents.iter().filter_map(|d| d["n"].as_i64()).sum();
    assert_eq!(changes, modified.iter().sum::<i64>(), "updates lost or done twice");
    // Each is where its key says.
    for document in &documents {
        assert_eq!(call(&mut client, "count_documents", &[&json!({"k": document["k"], "_id": document["_id"]})]), 1);
    }
    println!("{} updates, {changes} changes", modified.len());
}
