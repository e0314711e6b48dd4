//! Real documents on real servers: through all changes of the cluster, results equal those of a simple evaluation of the
//! files.

use docshard_tests::{Cluster, docs, shared_data, wait_until};
use postgres::Client;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const ZIPS: &str = "geo.zips";

/// The files with their numbers of documents, to check that they are read completely.
const FILES: &[(&str, usize)] = &[
    ("accounts", 1746),
    ("books", 431),
    ("countries-small", 248),
    ("customers", 500),
    ("grades", 280),
    ("products", 11),
    ("restaurant", 2548),
    ("students", 200),
    ("theaters", 1564),
    ("users", 185),
    ("zips", 29464),
];

type Outcome<T> = Result<T, postgres::Error>;

fn insert_all(client: &mut Client, namespace: &str, documents: &[String]) {
    for batch in documents.chunks(1000) {
        client
            .execute(
                "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[], '{\"ordered\": true}'::json)",
                &[&namespace, &batch],
            )
            .unwrap_or_else(|e| panic!("insert_many into {namespace}: {e:?}"));
    }
}

/// Runs one of the functions that take a namespace and a json, and returns its answer as text.
fn call(client: &mut Client, function: &str, namespace: &str, argument: &Value) -> String {
    let sql = format!("SELECT docshard.{function}($1::text, $2::text::json)::text");
    let row = client.query_one(&sql, &[&namespace, &argument.to_string()]);
    row.unwrap_or_else(|e| panic!("{function}('{namespace}', '{argument}'): {e:?}"))
        .get::<_, Option<_>>(0)
        .unwrap_or_default()
}

fn find(client: &mut Client, namespace: &str, filter: &Value, options: &Value) -> Outcome<Vec<Value>> {
    let rows = client.query(
        "SELECT d::jsonb FROM docshard.find($1::text, $2::text::json, $3::text::json) AS d",
        &[&namespace, &filter.to_string(), &options.to_string()],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn count(client: &mut Client, namespace: &str, filter: &Value) -> Outcome<i64> {
    let sql = "SELECT docshard.count_documents($1::text, $2::text::json)";
    Ok(client.query_one(sql, &[&namespace, &filter.to_string()])?.get(0))
}

fn move_chunk(client: &mut Client, namespace: &str, find: &Value, to: &str) -> Outcome<()> {
    let sql = "SELECT docshard.move_chunk($1::text, $2::text::json, $3::text)::text";
    client.query_one(sql, &[&namespace, &find.to_string(), &to]).map(|_| ())
}

/// A document in a form that does not depend on the dialect of Extended JSON: numbers as doubles, dates as milliseconds.
fn meaning(value: &Value) -> Value {
    match value {
        Value::Number(n) => json!(n.as_f64()),
        Value::Array(items) => items.iter().map(meaning).collect(),
        Value::Object(fields) => match single(fields) {
            Some(("$numberInt" | "$numberLong" | "$numberDouble", Value::String(digits))) => {
                json!(digits.parse::<f64>().unwrap())
            }
            Some(("$date", date)) => json!({"$date": milliseconds(date)}),
            _ => Value::Object(fields.iter().map(|(name, value)| (name.clone(), meaning(value))).collect()),
        },
        other => other.clone(),
    }
}

fn single(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (name, value) = fields.iter().next()?;
    (fields.len() == 1).then_some((name, value))
}

/// Milliseconds of `2009-04-01T00:00:00.000-0700`, `2009-04-01T07:00:00Z`, `{"$numberLong": "1238569200000"}`.
fn milliseconds(date: &Value) -> i64 {
    let text = match date {
        Value::Object(long) => return long["$numberLong"].as_str().unwrap().parse().unwrap(),
        Value::Number(n) => return n.as_i64().unwrap(),
        Value::String(text) => text,
        other => panic!("a date of {other}"),
    };
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days since 1970 by counting years from March, so that the leap day is the last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = number(11..13) * 3600 + number(14..16) * 60 + number(17..19);
    let rest = &text[19..];
    let (fraction, zone) = rest.split_at(rest.find(['Z', '+', '-']).unwrap());
    let fraction = fraction.trim_start_matches('.');
    let fraction = if fraction.is_empty() { 0 } else { format!("{fraction:0<3}")[..3].parse().unwrap() };
    let zone = if zone == "Z" {
        0
    } else {
        let digits = zone[1..].replace(':', "");
        let minutes = digits[..2].parse::<i64>().unwrap() * 60 + digits[2..].parse::<i64>().unwrap();
        if zone.starts_with('-') { -minutes } else { minutes }
    };
    ((days * 86400 + seconds) - zone * 60) * 1000 + fraction
}

/// A document's meaning as text that does not depend on the order of fields.
fn fingerprint(value: &Value) -> String {
    match meaning(value) {
        Value::Object(fields) => {
            let sorted: BTreeMap<_, _> = fields.iter().map(|(name, value)| (name, fingerprint(value))).collect();
            format!("{sorted:?}")
        }
        Value::Array(items) => format!("{:?}", items.iter().map(fingerprint).collect::<Vec<_>>()),
        other => other.to_string(),
    }
}

#[test]
fn every_dialect_of_extended_json_comes_back_with_its_meaning() {
    if shared_data().is_none() {
        return;
    }
    let cluster = Cluster::start(3);
    let mut client = cluster.router.client();
    for &(file, expected) in FILES {
        let texts = docs(&format!("{file}.json")).unwrap();
        assert_eq!(texts.len(), expected, "{file}");
        let namespace = format!("real.{file}");
        call(&mut client, "shard_collection", &namespace, &json!({"_id": "hashed"}));
        insert_all(&mut client, &namespace, &texts);
        assert_eq!(count(&mut client, &namespace, &json!({})).unwrap(), i64::try_from(expected).unwrap(), "{file}");

        let parse = |text: &String| serde_json::from_str::<Value>(text).unwrap();
        let originals: Vec<Value> = texts.iter().map(parse).collect();
        let stored = find(&mut client, &namespace, &json!({}), &json!({})).unwrap();
        let sorted = |documents: &[Value]| {
            let mut all: Vec<String> = documents.iter().map(fingerprint).collect();
            all.sort();
            all
        };
        for (stored, original) in sorted(&stored).iter().zip(&sorted(&originals)) {
            assert_eq!(stored, original, "{file}");
        }
        // Each is found by its _id in the form of the file.
        for original in originals.iter().step_by(expected / 10) {
            let found = find(&mut client, &namespace, &json!({"_id": original["_id"]}), &json!({})).unwrap();
            assert_eq!(found.len(), 1, "{file}: {}", original["_id"]);
            assert_eq!(fingerprint(&found[0]), fingerprint(original), "{file}");
        }
    }
}

/// Facts about the zip codes, computed from the file without docshard.
struct Zips {
    documents: Vec<Value>,
    /// for each state the number of zip codes and the population
    states: BTreeMap<String, (i64, i64)>,
    /// the ids of the 6th to the 25th zip code by population
    biggest: Vec<String>,
    /// the ids of zip codes with a population of at least 70,000
    big: Vec<String>,
    /// the ids of zip codes with a small population in two states
    small: Vec<String>,
}

impl Zips {
    fn read() -> Option<(Vec<String>, Self)> {
        let texts = docs("zips.json")?;
        let documents: Vec<Value> = texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        let mut states = BTreeMap::new();
        for document in &documents {
            let (number, population) = states.entry(document["state"].as_str().unwrap().to_owned()).or_insert((0, 0));
            *number += 1;
            *population += document["pop"].as_i64().unwrap();
        }
        assert_eq!((documents.len(), states.len()), (29464, 51));
        let mut order: Vec<(i64, &str)> =
            documents.iter().map(|d| (-d["pop"].as_i64().unwrap(), d["_id"].as_str().unwrap())).collect();
        order.sort_unstable();
        let biggest = order[5..25].iter().map(|(_, id)| (*id).to_owned()).collect();
        let big = ids(documents.iter().filter(|d| d["pop"].as_i64() >= Some(70000)));
        let is_small = |d: &&Value| matches!(d["state"].as_str(), Some("RI" | "DE")) && d["pop"].as_i64() < Some(500);
        let small = ids(documents.iter().filter(is_small));
        Some((texts, Self { documents, states, biggest, big, small }))
    }

    /// Queries the cluster, and compares. Returns an error of the cluster; panics for a wrong answer.
    fn compare(&self, client: &mut Client) -> Outcome<()> {
        let total = i64::try_from(self.documents.len()).unwrap();
        assert_eq!(count(client, ZIPS, &json!({}))?, total, "all");

        let rows = client.query(
            "SELECT d->>'state', count(*), sum((d->>'pop')::bigint)::bigint
             FROM docshard.find($1::text, '{}'::json, '{\"projection\": {\"state\": 1, \"pop\": 1}}'::json) AS d
             GROUP BY 1",
            &[&ZIPS],
        )?;
        let states: BTreeMap<String, (i64, i64)> = rows.iter().map(|r| (r.get(0), (r.get(1), r.get(2)))).collect();
        assert_eq!(states, self.states, "sums by state");

        for state in ["AK", "NY", "TX", "WY"] {
            assert_eq!(count(client, ZIPS, &json!({"state": state}))?, self.states[state].0, "{state}");
        }
        let big = find(client, ZIPS, &json!({"pop": {"$gte": 70000}}), &json!({}))?;
        assert_eq!(ids(&big), self.big, "big ones");

        let some = json!({"state": {"$in": ["RI", "DE"]}, "pop": {"$lt": 500}});
        assert_eq!(ids(&find(client, ZIPS, &some, &json!({}))?), self.small, "small ones");

        // This compares the order, too.
        let options = json!({"sort": {"pop": -1, "_id": 1}, "skip": 5, "limit": 20});
        let top = find(client, ZIPS, &json!({}), &options)?;
        assert_eq!(top.iter().map(|d| d["_id"].as_str().unwrap()).collect::<Vec<_>>(), self.biggest, "the biggest");

        for document in self.documents.iter().step_by(997) {
            let filter = json!({"state": document["state"], "_id": document["_id"]});
            let found = find(client, ZIPS, &filter, &json!({}))?;
            assert_eq!(found.len(), 1, "{filter}");
            assert_eq!(fingerprint(&found[0]), fingerprint(document));
        }
        Ok(())
    }

    fn check(&self, cluster: &Cluster, when: &str) {
        self.compare(&mut cluster.router.client()).unwrap_or_else(|e| panic!("{when}: {e:?}"));
    }

    /// Documents whose keys identify chunks.
    fn samples(&self) -> impl Iterator<Item = &Value> {
        self.documents.iter().step_by(self.documents.len() / 7)
    }
}

fn ids<'a>(documents: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let mut ids: Vec<String> = documents.into_iter().map(|d| d["_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// The key of a document, as an argument of `split_find` and `move_chunk`.
fn key(document: &Value) -> Value {
    json!({"state": document["state"], "_id": document["_id"]})
}

/// The shard of each chunk.
fn chunks(client: &mut Client) -> Vec<String> {
    let sql = "SELECT shard::text FROM docshard.chunks WHERE namespace = $1";
    client.query(sql, &[&ZIPS]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Takes the zip codes through all changes of a cluster.
fn zips_stay_right(shard_first: bool, shard_key: &Value) {
    let Some((texts, zips)) = Zips::read() else { return };
    let mut cluster = Cluster::start(3);
    let mut client = cluster.router.client();
    // The test alone moves chunks, and shard2 must be able to drain.
    client.batch_execute("SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('geo', 'shard0')").unwrap();

    // The collection is sharded while it is empty, or with documents, which requires an index.
    if shard_first {
        call(&mut client, "shard_collection", ZIPS, shard_key);
        insert_all(&mut client, ZIPS, &texts);
    } else {
        insert_all(&mut client, ZIPS, &texts);
        zips.check(&cluster, "before sharding");
        call(&mut client, "create_index", ZIPS, shard_key);
        call(&mut client, "shard_collection", ZIPS, shard_key);
    }
    zips.check(&cluster, "before anything");

    // From here on a thread reads all the time. Reads may fail while a server is down, but their results must be right.
    let reading = Reading::default();
    let mut reader = cluster.router.client();
    thread::scope(|scope| {
        let reading_thread = scope.spawn(|| {
            while !reading.stop.load(Ordering::SeqCst) {
                let excused = reading.outage.load(Ordering::SeqCst);
                match zips.compare(&mut reader) {
                    Ok(()) => _ = reading.comparisons.fetch_add(1, Ordering::SeqCst),
                    Err(e) if excused => {
                        assert!(!reader.is_closed(), "the router itself was lost: {e:?}");
                        thread::sleep(Duration::from_millis(50));
                    }
                    // The read may have begun before the outage.
                    Err(_) if reading.outage.load(Ordering::SeqCst) => {}
                    Err(e) => panic!("reading failed with all servers up: {e:?}"),
                }
            }
        });
        // Stops the reader even if a step fails.
        let _stop = StopOnDrop(&reading);

        splits(&cluster, &zips, shard_first);
        moves(&cluster, &zips);
        crashes(&mut cluster, &zips, &reading);
        drain(&cluster, &zips);

        reading.stop.store(true, Ordering::SeqCst);
        reading_thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    zips.check(&cluster, "after everything");
}

/// State that the reader and the rest of the test share.
#[derive(Default)]
struct Reading {
    stop: AtomicBool,
    /// a server is down: reads may fail
    outage: AtomicBool,
    /// the number of successful comparisons
    comparisons: AtomicUsize,
}

impl Reading {
    /// Waits until a read that begins from now on succeeds.
    fn recovers(&self) {
        let seen = self.comparisons.load(Ordering::SeqCst);
        wait_until("reads work again", Duration::from_secs(60), || {
            self.comparisons.load(Ordering::SeqCst) >= seen + 2 || self.stop.load(Ordering::SeqCst)
        });
    }
}

struct StopOnDrop<'a>(&'a Reading);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

fn splits(cluster: &Cluster, zips: &Zips, hashed: bool) {
    let mut client = cluster.router.client();
    let before = chunks(&mut client).len();
    for sample in zips.samples() {
        call(&mut client, "split_find", ZIPS, &key(sample));
    }
    zips.check(cluster, "after splits in the middle");
    if !hashed {
        for state in ["CO", "KS", "MO", "OR"] {
            call(&mut client, "split_at", ZIPS, &json!({"state": state, "_id": {"$minKey": 1}}));
        }
        zips.check(cluster, "after splits at states");
    }
    let after = chunks(&mut client).len();
    assert!(after >= before + 7, "{before} chunks became {after}");
}

fn moves(cluster: &Cluster, zips: &Zips) {
    let mut client = cluster.router.client();
    for (number, sample) in zips.samples().enumerate() {
        for step in 0..2 {
            let to = format!("shard{}", (number + step) % 3);
            move_chunk(&mut client, ZIPS, &key(sample), &to).unwrap_or_else(|e| panic!("to {to}: {e:?}"));
        }
        zips.check(cluster, "after two moves");
    }
    let holding = chunks(&mut client);
    for shard in ["shard0", "shard1", "shard2"] {
        assert!(holding.iter().any(|holder| holder == shard), "{shard} has no chunk: {holding:?}");
    }
}

/// Kills the postmaster of a donor or a recipient during moves. Afterwards a chunk is completely on one shard.
fn crashes(cluster: &mut Cluster, zips: &Zips, reading: &Reading) {
    for (round, delay) in [3, 15, 40, 120].into_iter().enumerate() {
        let sample = zips.samples().nth(round).unwrap();
        let (from, to) = (round % 3, (round + 1) % 3);
        let mut client = cluster.router.client();
        move_chunk(&mut client, ZIPS, &key(sample), &format!("shard{from}")).unwrap();

        let victim = if round % 2 == 0 { to } else { from };
        reading.outage.store(true, Ordering::SeqCst);
        let moved = thread::scope(|scope| {
            let moving = scope.spawn(move || move_chunk(&mut client, ZIPS, &key(sample), &format!("shard{to}")));
            thread::sleep(Duration::from_millis(delay));
            cluster.shards[victim].kill9();
            moving.join().unwrap()
        });
        cluster.shards[victim].start();

        // Decided moves are completed and undecided ones are aborted automatically.
        reading.recovers();
        reading.outage.store(false, Ordering::SeqCst);
        zips.check(cluster, &format!("after killing shard{victim} {delay} ms into a move: {moved:?}"));

        // The chunk can be moved like any other.
        let mut client = cluster.router.client();
        move_chunk(&mut client, ZIPS, &key(sample), &format!("shard{to}")).unwrap_or_else(|e| panic!("again: {e:?}"));
        zips.check(cluster, "after the move that was interrupted");
    }
}

fn drain(cluster: &Cluster, zips: &Zips) {
    let mut client = cluster.router.client();
    client.execute("SELECT docshard.start_balancer()", &[]).unwrap();
    let remove = "SELECT docshard.remove_shard('shard2')::text";
    let answer: String = client.query_one(remove, &[]).unwrap_or_else(|e| panic!("remove_shard: {e:?}")).get(0);
    assert!(answer.contains("started"), "{answer}");
    wait_until("the shard is drained", Duration::from_secs(120), || {
        zips.check(cluster, "while a shard drains");
        client.query_one(remove, &[]).unwrap().get::<_, String>(0).contains("completed")
    });
    assert!(chunks(&mut client).iter().all(|shard| shard != "shard2"));
    let left: i64 = client
        .query_one("SELECT count(*) FROM docshard.list_shards() AS s WHERE to_jsonb(s)->>'name' = 'shard2'", &[])
        .unwrap()
        .get(0);
    assert_eq!(left, 0, "shard2 is still listed");
}

#[test]
fn zips_by_state_stay_right() {
    zips_stay_right(false, &json!({"state": 1, "_id": 1}));
}

#[test]
fn zips_by_hash_stay_right() {
    zips_stay_right(true, &json!({"_id": "hashed"}));
}

#[test]
fn dates_are_understood() {
    assert_eq!(milliseconds(&json!("2009-04-01T00:00:00.000-0700")), 1_238_569_200_000);
    assert_eq!(milliseconds(&json!("2009-04-01T07:00:00Z")), 1_238_569_200_000);
    assert_eq!(milliseconds(&json!("1969-12-31T23:59:59.5Z")), -500);
    assert_eq!(milliseconds(&json!({"$numberLong": "-500"})), -500);
}
