//! Writes to one document by many clients while its chunk moves: no increment is lost, no document is created twice, and none is
//! lost or duplicated when it changes its shard. Also writes to many documents under concurrent writes.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

const NS: &str = "test.single";

fn move_chunk(client: &mut Client, k: i64, to: &str) {
    let sql = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', '{to}')");
    client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

/// Calls a function on the collection; repeats the call after a serialization error.
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

/// The number of rows in the tables of all nodes, whether or not the shards own them.
fn stored(cluster: &Cluster) -> i64 {
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    let nodes = std::iter::once(&cluster.router).chain(&cluster.shards);
    nodes.map(|node: &Node| node.value::<i64>(&format!("SELECT count(*) FROM {table}"))).sum()
}

/// Clients that repeat a piece of work until they are stopped. Each gets its number.
struct Clients<T> {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<T>>>,
}

impl<T: Send + 'static> Clients<T> {
    fn start(cluster: &Cluster, count: usize, work: impl Fn(&mut Client, usize) -> T + Clone + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..count)
            .map(|number| {
                let mut client = cluster.router.client();
                let (stop, work) = (Arc::clone(&stop), work.clone());
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
    let cluster = Cluster::spread(NS);
    // The counter does not exist yet: the clients race to create it, too.
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

/// The counter is found by its name through different functions. Its shard key changes, and chunks move.
#[test]
fn no_increment_without_the_shard_key_is_lost() {
    let mut cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    for k in [20, 120, 220] {
        call(&mut client, "insert_one", &[&json!({"k": k, "name": "another", "n": 0})]);
    }
    // The counter does not exist yet. The clients race to create it, each at another shard.
    let clients = Clients::start(&cluster, 6, |client, number| {
        let filter = json!({"name": "counter"});
        let k = [50, 150, 250][number % 3];
        let fresh = json!({"k": k});
        let options = match number {
            0 | 1 => json!({"upsert": true, "returnDocument": "after"}),
            _ => json!({"upsert": true, "returnDocument": "after", "sort": {"n": -1}}),
        };
        let update = json!({"$inc": {"n": 1}, "$setOnInsert": fresh});
        let counter = call(client, "find_one_and_update", &[&filter, &update, &options]);
        counter["n"].as_i64().expect("a number")
    });
    for (k, to) in [(50, "shard1"), (150, "local"), (250, "shard0"), (50, "shard0"), (150, "shard1"), (250, "local")] {
        move_chunk(&mut client, k, to);
    }
    let mut numbers = clients.stop();
    numbers.sort_unstable();
    let all = i64::try_from(numbers.len()).expect("a number");
    assert_eq!(numbers, (1..=all).collect::<Vec<_>>());
    // ObjectIds that were generated within a second have no defined order.
    let mut found: Vec<_> = documents(&mut client).iter().map(|d| d["n"].as_i64()).collect();
    found.sort_unstable();
    assert_eq!(found, [Some(0), Some(0), Some(0), Some(all)]);
    assert_eq!(stored(&cluster), 4);
    println!("{all} increments");

    // Writes whose filter restricts them to one shard ask no other shard, whatever the form of the filter.
    let sql = format!(
        "SELECT d->>'shard' FROM jsonb_array_elements(docshard.explain('{NS}', '{{\"k\": 20}}')::jsonb -> 'shards') d"
    );
    let here: String = cluster.router.value(&sql);
    assert_eq!(here, "shard0");
    cluster.shards[1].stop_immediately();
    for filter in [
        json!({"k": {"$lt": 100}, "name": "another"}),
        json!({"k": {"$in": [19, 20, 21]}}),
        json!({"$or": [{"k": 20}, {"k": {"$gte": 30, "$lt": 40}}]}),
        json!({"k": {"$lt": 100}, "$expr": {"$lt": ["$k", 21]}}),
    ] {
        let update = json!({"$inc": {"v": 1}});
        assert_eq!(call(&mut client, "update_one", &[&filter, &update])["modifiedCount"], 1, "{filter}");
        let sorted = json!({"sort": {"v": 1}});
        assert_eq!(call(&mut client, "find_one_and_update", &[&filter, &update, &sorted])["k"], 20, "{filter}");
        let replacement = json!({"k": 20, "name": "another"});
        assert_eq!(call(&mut client, "replace_one", &[&filter, &replacement])["modifiedCount"], 1, "{filter}");
    }
    let bulk = json!([{"updateOne": {"filter": {"k": {"$lt": 100}}, "update": {"$set": {"w": 1}}}}, {"deleteOne": {"filter": {"w": 1, "k": {"$lt": 21}}}}]);
    assert_eq!(call(&mut client, "bulk_write", &[&bulk])["deletedCount"], 1);
    let sql = format!("SELECT docshard.delete_one('{NS}', '{{\"name\": \"another\"}}')");
    client.batch_execute(&sql).expect_err("a shard is down that may have it");
}

#[test]
fn concurrent_upserts_make_one_document() {
    static ROUND: AtomicI64 = AtomicI64::new(0);
    let cluster = Cluster::spread(NS);
    for round in 0..10 {
        ROUND.store(round * 25, Ordering::Relaxed);
        let threads: Vec<_> = (0..6)
            .map(|number| {
                let mut client = cluster.router.client();
                thread::spawn(move || {
                    let round = ROUND.load(Ordering::Relaxed);
                    // Without the shard key, each upsert would insert the document at another shard.
                    let (filter, update) = match round % 2 {
                        0 => (json!({"k": round, "kind": "bucket"}), json!({"$push": {"m": number}})),
                        _ => (
                            json!({"round": round, "kind": "bucket"}),
                            // A key that no other round uses.
                            json!({"$push": {"m": number}, "$setOnInsert": {"k": number * 50 + 7}}),
                        ),
                    };
                    call(&mut client, "update_one", &[&filter, &update, &json!({"upsert": true})])
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

/// Creates jobs, with one shard key or with several, and lets clients take them by updates of the first job in this order.
fn a_queue_gives_each_job_to_one_client(k: Option<i64>, sort: &str, index: Option<&str>) {
    const JOBS: i64 = 60;
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    if let Some(keys) = index {
        client.batch_execute(&format!("SELECT docshard.create_index('{NS}', '{keys}')")).unwrap();
    }
    for n in 0..JOBS {
        // An array is not stored in the index's b-tree.
        let state = if n % 7 == 0 { json!(["new", "odd"]) } else { json!("new") };
        call(
            &mut client,
            "insert_one",
            &[&json!({"_id": n, "k": k.unwrap_or(n * 5), "state": state, "due": JOBS - n})],
        );
    }
    let sort: Value = serde_json::from_str(sort).unwrap();
    let filter = match k {
        Some(k) => json!({"k": k, "state": "new"}),
        None => json!({"state": "new"}),
    };
    let new = filter.clone();
    let take = move |client: &mut Client, number: usize| {
        let taken = call(
            client,
            "find_one_and_update",
            &[
                &filter,
                &json!({"$set": {"state": "taken", "by": number}}),
                &json!({"sort": sort, "projection": {"_id": 1}}),
            ],
        );
        taken["_id"].as_i64()
    };
    let clients = Clients::start(&cluster, 4, take);
    move_chunk(&mut client, 120, "shard1");
    move_chunk(&mut client, 120, "shard0");
    while call(&mut client, "count_documents", &[&new]) != 0 {
        thread::yield_now();
    }
    let mut taken: Vec<i64> = clients.stop().into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..JOBS).collect::<Vec<_>>());
}

#[test]
fn a_queue_by_id_gives_each_job_to_one_client() {
    a_queue_gives_each_job_to_one_client(Some(120), r#"{"_id": 1}"#, None);
}

#[test]
fn a_queue_by_an_index_gives_each_job_to_one_client() {
    a_queue_gives_each_job_to_one_client(Some(120), r#"{"due": 1}"#, Some(r#"{"k": 1, "state": 1, "due": 1}"#));
}

#[test]
fn a_queue_over_all_shards_gives_each_job_to_one_client() {
    a_queue_gives_each_job_to_one_client(None, "{}", None);
    a_queue_gives_each_job_to_one_client(None, r#"{"due": 1}"#, Some(r#"{"state": 1, "due": 1}"#));
}

#[test]
fn a_job_that_becomes_an_array_while_its_lock_is_awaited_is_still_found() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client
        .batch_execute(&format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"state\": 1, \"due\": 1}}')"))
        .unwrap();
    let filter = json!({"k": 120, "state": "new"});
    for (from, to) in [(json!("new"), json!(["new"])), (json!(["new"]), json!("new"))] {
        call(&mut client, "insert_one", &[&json!({"_id": 1, "k": 120, "state": from, "due": 1})]);
        let mut other = cluster.router.client();
        other.batch_execute("BEGIN").unwrap();
        call(&mut other, "update_one", &[&json!({"k": 120, "_id": 1}), &json!({"$set": {"state": to}})]);
        let clients = Clients::start(&cluster, 1, {
            let filter = filter.clone();
            move |client, _| {
                let sorted = json!({"sort": {"due": 1}});
                call(client, "find_one_and_delete", &[&filter, &sorted])["_id"].as_i64()
            }
        });
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'";
        wait_until("it waits", PATIENCE, || {
            cluster.shards.iter().map(|shard| shard.value::<i64>(waits)).sum::<i64>() > 0
        });
        other.batch_execute("COMMIT").unwrap();
        assert_eq!(clients.stop()[0], Some(1), "{to}");
    }
}

#[test]
fn documents_that_change_their_shard_are_neither_lost_nor_doubled() {
    const DOCUMENTS: i64 = 12;
    static SEED: AtomicI64 = AtomicI64::new(1);
    let cluster = Cluster::spread(NS);
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
    // Each document is on the shard that owns its key.
    for document in &documents {
        assert_eq!(call(&mut client, "count_documents", &[&json!({"k": document["k"], "_id": document["_id"]})]), 1);
    }
    println!("{} updates, {changes} changes", modified.len());
}

/// An update of many documents waits for another transaction, which changes or removes some of them. With a user's trigger on
/// the table, rows are written by another code path.
#[test]
fn an_update_of_many_looks_again_at_what_it_waited_for() {
    let cluster = Cluster::spread(NS);
    let mut other = cluster.router.client();
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    let trigger = format!(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER theirs BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION nothing()"
    );
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        for with_trigger in [false, true] {
            let case = format!("{isolation}, trigger {with_trigger}");
            call(&mut other, "delete_many", &[&json!({})]);
            for k in 1..=6 {
                call(&mut other, "insert_one", &[&json!({"_id": k, "k": k, "n": 0})]);
            }
            if with_trigger {
                cluster.router.client().batch_execute(&trigger).expect("a trigger");
            }
            other.batch_execute("BEGIN").unwrap();
            call(&mut other, "update_one", &[&json!({"k": 2}), &json!({"$set": {"n": 1}})]);
            call(&mut other, "update_one", &[&json!({"k": 3}), &json!({"$set": {"n": 9}})]);
            call(&mut other, "delete_one", &[&json!({"k": 4})]);
            let mut client = cluster.router.client();
            let sql = format!(
                "BEGIN ISOLATION LEVEL {isolation}; \
                 SELECT docshard.update_many('{NS}', '{{\"n\": {{\"$lt\": 5}}}}', '{{\"$inc\": {{\"n\": 10}}}}'); COMMIT"
            );
            let writer = thread::spawn(move || client.batch_execute(&sql));
            wait_until("the update waits", Duration::from_secs(20), || {
                cluster.router.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            });
            other.batch_execute("COMMIT").unwrap();
            let done = writer.join().expect("a client");
            let numbers: Vec<i64> = documents(&mut other).iter().map(|d| d["n"].as_i64().expect("a number")).collect();
            if isolation == "READ COMMITTED" {
                done.unwrap_or_else(|e| panic!("{case}: {e:?}"));
                assert_eq!(numbers, [10, 11, 9, 10, 10], "{case}");
            } else {
                let code = done.expect_err(&case).code().map(|code| code.code().to_owned());
                assert_eq!(code.as_deref(), Some("40001"), "{case}");
                assert_eq!(numbers, [0, 1, 9, 0, 0], "{case}");
            }
            if with_trigger {
                cluster.router.client().batch_execute("DROP FUNCTION nothing CASCADE").expect("no trigger");
            }
        }
    }
}

/// A scan may return a document twice, for example by two index entries. It must be updated once.
#[test]
fn an_update_of_many_updates_each_document_once() {
    let cluster = Cluster::spread(NS);
    let mut client = cluster.router.client();
    client.batch_execute(&format!("SELECT docshard.create_index('{NS}', '{{\"tags\": 1}}')")).unwrap();
    for k in 0..300 {
        call(&mut client, "insert_one", &[&json!({"_id": k, "k": k, "tags": [k % 7, 20 + k % 5], "n": 0})]);
    }
    let filter = json!({"$or": [{"tags": {"$lt": 3}}, {"tags": {"$gte": 20}}, {"tags": {"$in": [4, 21]}}]});
    // The update adds another element that matches its condition.
    let update = json!({"$inc": {"n": 1}, "$push": {"tags": 21}});
    for round in 1..=3 {
        let done = call(&mut client, "update_many", &[&filter, &update, &json!({"hint": {"tags": 1}})]);
        assert_eq!((&done["matchedCount"], &done["modifiedCount"]), (&json!(300), &json!(300)), "{done}");
        assert!(documents(&mut client).iter().all(|document| document["n"] == round));
    }
}
