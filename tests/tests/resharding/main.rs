//! Changes of a collection's layout: another shard key, unsharding, moving, refining, compacting; beside writers, with crashes at every
//! fault point, with cancels and aborts, and with input for which MongoDB has error codes.

mod concurrent;
mod faults;
mod kinds;
mod space;
mod surroundings;

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NS: &str = "test.resharded";
const LONG: Duration = Duration::from_secs(60);

/// Three nodes; keys `k` below 100 are on `local`, below 200 on `shard0`, others on `shard1`. Documents `{_id, k, u, n, text}` with
/// `_id` and `k` from 0.
fn cluster(documents: i64) -> Cluster {
    let cluster = Cluster::spread(NS);
    run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    let sql = format!(
        "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', (i * 7919) % 1000003, 'n', 0, \
         'text', repeat('x', 200)) FROM generate_series(0, {documents} - 1) i$$)"
    );
    run(&cluster, &sql);
    cluster
}

fn run(cluster: &Cluster, sql: &str) {
    cluster.router.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

fn json(client: &mut Client, sql: &str) -> Result<Value, postgres::Error> {
    client.query_one(sql, &[])?.try_get(0)
}

fn reshard(key: &str, options: &str) -> String {
    format!("SELECT docshard.reshard_collection('{NS}', '{key}', '{options}')")
}

/// MongoDB's code of what failed at the server.
fn code(error: &postgres::Error) -> String {
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    detail.split('.').next().unwrap_or_default().to_owned()
}

fn start(cluster: &Cluster, sql: String) -> JoinHandle<Result<Value, postgres::Error>> {
    let mut client = cluster.router.client();
    thread::spawn(move || json(&mut client, &sql))
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

/// Checks that every document is there once, found by any of its fields, and stored where the map says.
fn check(cluster: &Cluster, documents: i64) {
    let router = &cluster.router;
    assert_eq!(router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), documents);
    let distinct = format!("SELECT count(DISTINCT d -> '_id') FROM docshard.find('{NS}', '{{}}') d");
    assert_eq!(router.value::<i64>(&distinct), documents);
    let found: i64 = router.value(&format!(
        "SELECT count(*) FROM generate_series(0, {documents} - 1, 17) i, \
         LATERAL docshard.find('{NS}', json_build_object('k', i)) d WHERE d -> 'k' = to_jsonb(i)"
    ));
    assert_eq!(found, (documents + 16) / 17);
    let checked: Value = router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert_eq!(checked["ok"], 1, "{checked}");
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
}

/// Ends what dead coordinators have left, and checks that nothing is left.
fn check_clean(cluster: &Cluster) {
    wait_until("recovery", LONG, || {
        cluster.router.try_client().is_ok_and(|mut client| {
            let _ = client.execute("SELECT docshard.recover_moves()", &[]);
            let left = "SELECT count(*) FROM docshard.resharding WHERE state <> 'done'";
            client.query_one(left, &[]).is_ok_and(|row| row.get::<_, i64>(0) == 0)
        })
    });
    let collections: i64 = cluster.router.value("SELECT count(*) FROM docshard_catalog.collections");
    assert_eq!(collections, 1, "copies");
    for node in nodes(cluster) {
        wait_until("the server is back", LONG, || node.try_client().is_ok());
        for (what, sql) in [
            ("captures", "SELECT count(*) FROM docshard_data.capture"),
            ("parts", "SELECT count(*) FROM docshard_data.capture_parts"),
            ("prepared transactions", "SELECT count(*) FROM pg_prepared_xacts"),
            (
                "tables of changes",
                "SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^m[0-9]+_'",
            ),
            (
                "tables",
                "SELECT count(*) - (SELECT count(*) FROM docshard_data.placement) FROM pg_class \
                 WHERE relnamespace = 'docshard_data'::regnamespace AND relkind = 'r' AND relname ~ '^c[0-9]+$'",
            ),
            ("other collections", "SELECT greatest(count(*) - 1, 0) FROM docshard_data.placement"),
        ] {
            wait_until(&format!("{what} on {} are gone", node.name), LONG, || {
                node.try_client()
                    .is_ok_and(|mut client| client.query_one(sql, &[]).is_ok_and(|row| row.get::<_, i64>(0) == 0))
            });
        }
        wait_until("the log is swept", LONG, || {
            let log: i64 = node.value("SELECT count(*) FROM docshard_data.capture_log");
            if log > 0 {
                run(cluster, "SELECT docshard.recover_moves()");
            }
            log == 0
        });
    }
}

fn key(cluster: &Cluster) -> Option<String> {
    let sql = format!("SELECT key::text FROM docshard.collections WHERE namespace = '{NS}'");
    cluster.router.client().query_one(&sql, &[]).expect("a query").get(0)
}

/// Number of clients that write.
const CLIENTS: i64 = 4;

/// Clients that update, insert and delete documents, until they are told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    /// the longest statement, in milliseconds
    longest: Arc<AtomicI64>,
    /// each returns `n` of its documents by `_id`
    threads: Vec<JoinHandle<BTreeMap<i64, i64>>>,
}

impl Writers {
    /// Each client has documents of its own: those whose number is congruent to its own.
    fn start(cluster: &Cluster, documents: i64) -> Self {
        let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let start = |number| {
            let (stop, longest, mut client) = (stop.clone(), longest.clone(), cluster.router.client());
            thread::spawn(move || write(&mut client, number, documents, &stop, &longest))
        };
        let threads = (0..CLIENTS).map(start).collect();
        Self { stop, longest, threads }
    }

    /// Stops them, and checks that the collection has exactly what they have written; returns the longest statement.
    fn stop_and_check(self, cluster: &Cluster) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut expected = BTreeMap::new();
        for client in self.threads {
            expected.extend(client.join().expect("a client"));
        }
        let sql = format!("SELECT (d ->> '_id')::int8, (d ->> 'n')::int8 FROM docshard.find('{NS}', '{{}}') d");
        let rows = cluster.router.client().query(&sql, &[]).expect("the documents");
        assert_eq!(rows.len(), expected.len(), "documents that were found");
        let found: BTreeMap<i64, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let differs = |(id, n): &(&i64, &i64)| found.get(id) != Some(n);
        let wrong: Vec<_> = expected.iter().filter(differs).map(|(id, n)| (id, n, found.get(id))).take(10).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        self.longest.load(Ordering::Relaxed)
    }
}

fn write(
    client: &mut Client,
    number: i64,
    documents: i64,
    stop: &AtomicBool,
    longest: &AtomicI64,
) -> BTreeMap<i64, i64> {
    let mut own: BTreeMap<i64, i64> = (number..documents).step_by(CLIENTS as usize).map(|id| (id, 0)).collect();
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let id = (turn * 37 % documents / CLIENTS) * CLIENTS + number;
        let is_there = own.contains_key(&id);
        let (statement, count) = match turn % 6 {
            _ if !is_there => {
                own.insert(id, 0);
                (
                    format!("docshard.insert_one('{NS}', '{{\"_id\": {id}, \"k\": {id}, \"u\": {turn}, \"n\": 0}}')"),
                    "insertedId",
                )
            }
            1 => {
                own.remove(&id);
                (format!("docshard.delete_one('{NS}', '{{\"_id\": {id}}}')"), "deletedCount")
            }
            // The value of a shard key changes, perhaps to that of another shard.
            2 => (change(id, &format!("{{\"$set\": {{\"u\": {}}}}}", turn * 7919 % 1_000_003)), "matchedCount"),
            3 => (change(id, &format!("{{\"$set\": {{\"k\": {}}}}}", turn % 300)), "matchedCount"),
            _ => {
                *own.get_mut(&id).expect("it is there") += 1;
                (change(id, "{\"$inc\": {\"n\": 1}}"), "matchedCount")
            }
        };
        let began = Instant::now();
        let answer = retry(client, &statement);
        longest.fetch_max(began.elapsed().as_millis() as i64, Ordering::Relaxed);
        assert!(count == "insertedId" || answer[count] == 1, "{statement}: {answer}");
    }
    own
}

fn change(id: i64, update: &str) -> String {
    format!("docshard.update_one('{NS}', '{{\"_id\": {id}}}', '{update}')")
}

/// Runs a statement until it succeeds; errors other than those that ask for it are none of a change of layout.
fn retry(client: &mut Client, statement: &str) -> Value {
    loop {
        match json(client, &format!("SELECT to_jsonb({statement})")) {
            Ok(answer) => return answer,
            Err(error) if error.code().is_some_and(|code| code.code().starts_with("40")) => {}
            Err(error) => panic!("{statement}: {error:?}"),
        }
    }
}
