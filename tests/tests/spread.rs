//! The document language over shards: the same statements return the same results, and leave the same documents, in an
//! unsharded collection and in one that is spread by range over four nodes.

use docshard_tests::{Cluster, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

const DB: &str = "lang";
const PATIENCE: Duration = Duration::from_secs(60);
const PLAIN: &str = "plain";
const SPREAD: &str = "spread";

/// A router and three shards; the chunks of `lang.spread` are on the four nodes in turn.
fn cluster() -> Cluster {
    let cluster = Cluster::start(3);
    let mut client = cluster.router.client();
    let mut sql = format!(
        "SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('{DB}', 'local');
         SELECT docshard.create_collection('{DB}.{PLAIN}'); SELECT docshard.shard_collection('{DB}.{SPREAD}', '{{\"k\": 1}}');"
    );
    let splits = [10, 20, 30, 40, 50];
    for k in splits {
        sql += &format!("SELECT docshard.split_at('{DB}.{SPREAD}', '{{\"k\": {k}}}');");
    }
    client.batch_execute(&sql).unwrap_or_else(|e| panic!("{e:?}"));
    for (k, to) in splits.iter().zip(["shard0", "shard1", "shard2", "local", "shard1"]) {
        let sql = format!("SELECT docshard.move_chunk('{DB}.{SPREAD}', '{{\"k\": {k}}}', '{to}')");
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    cluster
}

/// Replaces `C` by the collection's name.
fn named(json: &Value, collection: &str) -> Value {
    let text = json.to_string().replace("\"C\"", &format!("\"{collection}\""));
    serde_json::from_str(&text).expect("JSON")
}

/// Replaces the collections' names in an answer, so that answers can be compared.
fn alike(answer: &Value) -> Value {
    let mut answer: Value =
        serde_json::from_str(&answer.to_string().replace(&format!("{DB}.{SPREAD}"), &format!("{DB}.{PLAIN}")))
            .expect("JSON");
    if let Some(id) = answer.pointer_mut("/cursor/id") {
        *id = json!(if *id == json!(0) { "none" } else { "open" });
    }
    answer
}

fn command(client: &mut Client, command: &Value) -> Value {
    let sql = "SELECT docshard.run_command($1::text, $2::text::json)";
    let row = client.query_one(sql, &[&DB, &command.to_string()]);
    row.unwrap_or_else(|e| panic!("{command}: {e:?}")).get(0)
}

/// Calls a function on a collection; an error is returned as its SQLSTATE and message.
fn call(client: &mut Client, function: &str, collection: &str, arguments: &[Value]) -> Value {
    let arguments: Vec<String> =
        arguments.iter().map(|a| format!(", '{}'", a.to_string().replace('\'', "''"))).collect();
    let sql = format!(
        "SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') FROM (SELECT docshard.{function}('{DB}.{collection}'{})) AS r",
        arguments.concat()
    );
    match client.query_one(&sql, &[]) {
        Ok(row) => row.get(0),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            json!([error.code().code(), error.message(), error.detail()])
        }
    }
}

fn documents(client: &mut Client, collection: &str) -> Value {
    call(client, "find", collection, &[json!({}), json!({"sort": {"_id": 1}})])
}

/// The two collections that are compared.
struct Pair {
    client: Client,
}

impl Pair {
    fn new(cluster: &Cluster) -> Self {
        let mut pair = Self { client: cluster.router.client() };
        pair.call("delete_many", &[json!({})]);
        let people: Vec<Value> = (0..60)
            .map(|n| {
                json!({"_id": n, "k": n, "name": (["ann", "Bob", "ANN", "Cid", "bob"][n % 5]), "n": n % 7,
                       "tags": ["x", (["Y", "y", "z"][n % 3])], "items": [{"q": n % 4, "s": "a"}, {"q": 9, "s": "B"}]})
            })
            .collect();
        let answer = pair.command(&json!({"insert": "C", "documents": people}));
        assert_eq!(answer, json!({"n": 60, "ok": 1}));
        let sql = format!(
            "SELECT count(*) FROM docshard.get_shard_distribution('{DB}.{SPREAD}', '{{\"count\": true}}') WHERE documents > 0"
        );
        let shards: i64 = pair.client.query_one(&sql, &[]).expect("a distribution").get(0);
        assert_eq!(shards, 4, "the documents are not spread");
        pair
    }

    /// Runs a command on both collections, and compares answers and documents.
    fn command(&mut self, json: &Value) -> Value {
        let [plain, spread] = [PLAIN, SPREAD].map(|collection| command(&mut self.client, &named(json, collection)));
        assert_eq!(alike(&plain), alike(&spread), "{json}");
        self.compare(json);
        plain
    }

    /// Calls a function on both collections, and compares.
    fn call(&mut self, function: &str, arguments: &[Value]) -> Value {
        let [plain, spread] = [PLAIN, SPREAD].map(|collection| call(&mut self.client, function, collection, arguments));
        assert_eq!(alike(&plain), alike(&spread), "{function} {arguments:?}");
        self.compare(&json!([function, arguments]));
        plain
    }

    fn compare(&mut self, after: &Value) {
        let [plain, spread] = [PLAIN, SPREAD].map(|collection| documents(&mut self.client, collection));
        assert_eq!(plain, spread, "after {after}");
    }

    /// Reads a cursor to its end in batches, and compares these; returns the number of documents.
    fn read_all(&mut self, find: &Value, batch: usize) -> usize {
        let [plain, spread] = [PLAIN, SPREAD].map(|collection| {
            let first = command(&mut self.client, &named(find, collection));
            let (mut answers, mut key) = (vec![alike(&first)], "firstBatch");
            let mut answer = first;
            let mut count = 0;
            loop {
                count += answer["cursor"][key].as_array().unwrap_or_else(|| panic!("{find}: {answer}")).len();
                let id = answer["cursor"]["id"].clone();
                if id == json!(0) {
                    return (answers, count);
                }
                answer =
                    command(&mut self.client, &json!({"getMore": id, "collection": collection, "batchSize": batch}));
                answers.push(alike(&answer));
                key = "nextBatch";
            }
        });
        assert_eq!(plain, spread, "{find}");
        plain.1
    }
}

fn english() -> Value {
    json!({"locale": "en", "strength": 2})
}

#[test]
fn the_document_language_is_the_same_over_shards() {
    let cluster = cluster();
    updates_over_shards_are_those_of_one_collection(&cluster);
    cursors_and_distinct_read_all_shards(&cluster);
    single_documents_and_bulks_over_shards(&cluster);
}

fn updates_over_shards_are_those_of_one_collection(cluster: &Cluster) {
    let mut pair = Pair::new(cluster);
    let modified = |answer: &Value| answer["nModified"].as_i64().unwrap_or_else(|| panic!("{answer}"));
    for (update, expected) in [
        // pipelines that leave some documents unchanged
        (
            json!({"q": {"n": {"$gte": 3}}, "u": [{"$set": {"sum": {"$add": ["$n", "$k"]}}}, {"$unset": "tags"}], "multi": true}),
            33,
        ),
        (
            json!({"q": {}, "u": [{"$set": {"low": {"$toLower": "$name"}}}, {"$project": {"items.s": 0}}], "multi": true}),
            60,
        ),
        (json!({"q": {"k": 33}, "u": [{"$replaceWith": {"k": "$k", "was": "$$ROOT.name", "items": "$items"}}]}), 1),
        // by a collation
        (json!({"q": {"name": "ANN"}, "u": {"$inc": {"hit": 1}}, "multi": true, "collation": english()}), 24),
        (json!({"q": {"name": "ann", "k": 5}, "u": {"$inc": {"hit": 1}}, "collation": english()}), 1),
        (json!({"q": {}, "u": {"$pull": {"tags": "Y"}}, "multi": true, "collation": english()}), 18),
        // elements by position
        (json!({"q": {"items.q": 2}, "u": {"$inc": {"items.$.q": 100}}, "multi": true}), 15),
        (json!({"q": {"k": {"$gte": 15, "$lt": 45}}, "u": {"$set": {"items.$[].seen": true}}, "multi": true}), 30),
        (
            json!({"q": {}, "u": {"$unset": {"items.$[big].q": ""}}, "arrayFilters": [{"big.q": {"$gte": 50}}], "multi": true}),
            15,
        ),
        // an update that changes nothing
        (json!({"q": {"k": {"$lt": 50}}, "u": {"$set": {"items.$[].none": 1}}, "multi": true, "upsert": false}), 50),
        (json!({"q": {"k": {"$lt": 50}}, "u": {"$set": {"items.$[].none": 1}}, "multi": true}), 0),
        (json!({"q": {"k": 75}, "u": {"$set": {"new": true}, "$setOnInsert": {"_id": "u"}}, "upsert": true}), 0),
    ] {
        let answer = pair.command(&json!({"update": "C", "updates": [update]}));
        assert_eq!(modified(&answer), expected, "{update}: {answer}");
    }
    // A batch whose operations go to different shards, some of which fail.
    for ordered in [false, true] {
        let answer = pair.command(&json!({"update": "C", "ordered": ordered, "updates": [
            {"q": {"k": 1}, "u": {"$inc": {"n": 1}}},
            {"q": {"k": 11}, "u": {"$inc": {"name": 1}}},
            {"q": {"k": {"$gte": 0}}, "u": {"$set": {"_id": 5}}, "multi": true},
            {"q": {"k": 21}, "u": {"$push": {"items": {"$each": [{"q": 0}], "$sort": {"q": 1}, "$slice": 2}}}},
            {"q": {"k": 31}, "u": {"$set": {"a.$[x]": 1}}},
            {"q": {"k": 51, "items.q": 77}, "u": {"$set": {"items.$.q": 1}}},
            {"q": {"k": 41}, "u": {"$rename": {"name": "called"}}},
        ]}));
        let errors = answer["writeErrors"].as_array().expect("errors");
        assert_eq!(errors.len(), if ordered { 1 } else { 3 }, "{answer}");
    }
    pair.command(&json!({"delete": "C", "ordered": false, "deletes": [
        {"q": {"k": 2}, "limit": 1}, {"q": {"n": {"$bad": 1}}, "limit": 0},
        {"q": {"name": "BOB", "k": {"$gte": 25}}, "limit": 0, "collation": english()}]}));
}

fn cursors_and_distinct_read_all_shards(cluster: &Cluster) {
    let mut pair = Pair::new(cluster);
    let sorted = json!({"find": "C", "sort": {"name": 1, "_id": -1}, "batchSize": 7, "collation": english()});
    assert_eq!(pair.read_all(&sorted, 11), 60);
    let window = json!({"find": "C", "filter": {"n": {"$ne": 3}}, "sort": {"n": -1, "k": 1}, "skip": 9, "limit": 25,
                        "projection": {"items": {"$elemMatch": {"q": {"$lt": 3}}}, "tags": {"$slice": -1}}, "batchSize": 4});
    assert_eq!(pair.read_all(&window, 6), 25);
    let positional = json!({"find": "C", "filter": {"items.q": 2}, "projection": {"items.$": 1}, "sort": {"_id": 1}});
    assert_eq!(pair.read_all(&positional, 1), 15);
    let none = json!({"find": "C", "filter": {"k": -5}, "batchSize": 2});
    assert_eq!(pair.read_all(&none, 2), 0);
    let single = json!({"find": "C", "sort": {"k": 1}, "limit": 3, "singleBatch": true, "batchSize": 2});
    assert_eq!(pair.read_all(&single, 2), 2);

    // After a cursor is killed, the session still works.
    for collection in [PLAIN, SPREAD] {
        let answer = command(&mut pair.client, &json!({"find": collection, "batchSize": 0}));
        let id = answer["cursor"]["id"].clone();
        assert!(id != json!(0) && answer["cursor"]["firstBatch"] == json!([]), "{answer}");
        let more = command(&mut pair.client, &json!({"getMore": id, "collection": collection, "batchSize": 5}));
        assert_eq!(more["cursor"]["nextBatch"].as_array().map(Vec::len), Some(5), "{more}");
        let killed = command(&mut pair.client, &json!({"killCursors": collection, "cursors": [id, 12345]}));
        assert_eq!((&killed["cursorsKilled"], &killed["cursorsNotFound"]), (&json!([id]), &json!([12345])), "{killed}");
        let gone = command(&mut pair.client, &json!({"getMore": id, "collection": collection}));
        assert_eq!((&gone["ok"], &gone["code"]), (&json!(0), &json!(43)), "{gone}");
    }

    for distinct in [
        json!({"distinct": "C", "key": "name"}),
        json!({"distinct": "C", "key": "items.q", "query": {"k": {"$gte": 8, "$lt": 33}}}),
        json!({"distinct": "C", "key": "nothing"}),
        json!({"count": "C", "query": {"tags": "y"}, "skip": 3, "limit": 15}),
        json!({"count": "C", "query": {"name": "ann"}, "collation": english()}),
    ] {
        assert_eq!(pair.command(&distinct)["ok"], 1, "{distinct}");
    }
    // Which of several equal values represents them is undefined.
    for collection in [PLAIN, SPREAD] {
        let distinct = json!({"distinct": collection, "key": "name", "collation": english()});
        assert_eq!(command(&mut pair.client, &distinct)["values"].as_array().map(Vec::len), Some(3));
    }
}

fn single_documents_and_bulks_over_shards(cluster: &Cluster) {
    let mut pair = Pair::new(cluster);
    for find_and_modify in [
        json!({"findAndModify": "C", "query": {"k": 17}, "update": {"$inc": {"n": 10}}, "new": true}),
        json!({"findAndModify": "C", "query": {"_id": 58}, "update": [{"$set": {"name": {"$toUpper": "$name"}}}], "new": true, "fields": {"name": 1}}),
        json!({"findAndModify": "C", "query": {"k": 44, "name": "BOB"}, "update": {"$push": {"tags": "new"}}, "collation": english()}),
        json!({"findAndModify": "C", "query": {"k": 23}, "update": {"$set": {"items.$[i].q": -1}}, "arrayFilters": [{"i.s": "b"}], "collation": english(), "new": true}),
        json!({"findAndModify": "C", "query": {"k": 29, "items.q": 9}, "update": {"$inc": {"items.$.q": 1}}, "new": true, "fields": {"items.$": 1}}),
        json!({"findAndModify": "C", "query": {"k": 99}, "update": {"$setOnInsert": {"_id": "f"}, "$inc": {"seq": 1}}, "upsert": true, "new": true}),
        json!({"findAndModify": "C", "query": {"k": 99}, "update": {"$inc": {"seq": 1}}, "upsert": true, "new": true}),
        json!({"findAndModify": "C", "query": {"k": 35}, "remove": true, "fields": {"k": 1}}),
        json!({"findAndModify": "C", "query": {"k": 35}, "remove": true}),
        json!({"findAndModify": "C", "query": {"k": 36}, "update": {"$inc": {"name": 1}}}),
        // The new key is on another shard.
        json!({"findAndModify": "C", "query": {"k": 3}, "update": {"$set": {"k": 53}}, "new": true}),
        json!({"findAndModify": "C", "query": {"_id": 53}, "update": {"$set": {"k": 3}}, "new": true}),
    ] {
        pair.command(&find_and_modify);
    }
    let operations = json!([
        {"insertOne": {"document": {"_id": 100, "k": 5}}},
        {"insertOne": {"document": {"_id": 101, "k": 55}}},
        {"insertOne": {"document": {"_id": 12, "k": 12}}},
        {"insertOne": {"document": {"_id": 102, "k": 25}}},
        {"updateMany": {"filter": {"n": 2}, "update": {"$mul": {"n": 2}}}},
        {"updateOne": {"filter": {"k": 45}, "update": {"$inc": {"name": 1}}}},
        {"updateMany": {"filter": {"name": "ANN"}, "update": [{"$set": {"c": {"$size": "$items"}}}], "collation": english()}},
        {"updateOne": {"filter": {"k": 61}, "update": {"$setOnInsert": {"_id": 61}}, "upsert": true}},
        {"updateMany": {"filter": {"items": {"$size": 2}}, "update": {"$set": {"items.$[e].deep": 1}}, "arrayFilters": [{"e.q": {"$gt": 2}}]}},
        {"replaceOne": {"filter": {"k": 46}, "replacement": {"k": 46, "only": true}}},
        {"deleteOne": {"filter": {"k": 47}}},
        {"deleteMany": {"filter": {"name": "CID"}, "collation": english()}},
        {"updateMany": {"filter": {"k": {"$gt": 1}}, "update": {"$unset": {"_id": ""}}}},
    ]);
    for (options, errors) in [(json!({"ordered": false}), 3), (json!({}), 1)] {
        let answer = pair.call("bulk_write", &[operations.clone(), options]);
        assert_eq!(answer[0]["bulk_write"]["writeErrors"].as_array().map(Vec::len), Some(errors), "{answer}");
    }
    // An error in the middle of a batch of inserts.
    for ordered in [true, false] {
        let base = if ordered { 200 } else { 300 };
        let inserts: Vec<Value> = [0, 10, 20, 30, 12, 40, 50]
            .iter()
            .map(|k| if *k == 12 { json!({"_id": 12, "k": 12}) } else { json!({"_id": base + k, "k": k}) })
            .collect();
        let answer = pair.command(&json!({"insert": "C", "documents": inserts, "ordered": ordered}));
        assert_eq!(answer["n"], if ordered { 4 } else { 6 }, "{answer}");
        assert_eq!(answer["writeErrors"][0]["keyValue"], json!({"_id": 12}), "{answer}");
    }
}

/// The rows that sequential scans have read, and the number of these scans, at all nodes.
fn scanned(cluster: &Cluster) -> (i64, i64) {
    let read = "SELECT ARRAY[coalesce(sum(seq_tup_read), 0), coalesce(sum(seq_scan), 0)]::int8[] \
                FROM pg_stat_all_tables WHERE schemaname = 'docshard_data' AND relname ~ '^c[0-9]+$'";
    let nodes = std::iter::once(&cluster.router).chain(&cluster.shards);
    let counts = nodes.map(|node| node.value::<Vec<i64>>(read));
    counts.fold((0, 0), |sum, counts| (sum.0 + counts[0], sum.1 + counts[1]))
}

/// What does not fit into the only batch is not read. PostgreSQL's statistics say what shards have read.
#[test]
fn a_single_batch_reads_no_more_than_its_documents() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let documents = format!(
        "SELECT docshard.insert_select('{DB}.{SPREAD}', $$SELECT jsonb_build_object('_id', n, 'k', n % 60, 'v', repeat(md5(n::text), 60)) \
         FROM generate_series(1, 12000) n$$)"
    );
    client.batch_execute(&documents).unwrap();
    // A session's statistics are complete when it has ended, at the shards, too.
    drop(client);
    let settled = || {
        let mut before = scanned(&cluster);
        wait_until("no more scans are counted", PATIENCE, || {
            thread::sleep(Duration::from_secs(2));
            let last = std::mem::replace(&mut before, scanned(&cluster));
            last == before
        });
        before
    };
    let before = settled();
    let mut client = cluster.router.client();
    let answer = command(
        &mut client,
        &json!({"find": SPREAD, "filter": {"v": {"$gt": ""}}, "batchSize": 5, "singleBatch": true}),
    );
    assert_eq!(answer["cursor"]["firstBatch"].as_array().map(Vec::len), Some(5), "{answer}");
    assert_eq!(answer["cursor"]["id"], json!(0));
    drop(client);
    let after = settled();
    assert!(after.1 > before.1, "the scans are counted");
    let read = after.0 - before.0;
    assert!(read < 200, "{read} rows were read for a batch of 5");
    let mut client = cluster.router.client();
    // A cursor of an autocommitted find reads everything: see docs/sql-reference.md.
    command(&mut client, &json!({"find": SPREAD, "filter": {"v": {"$gt": ""}}, "batchSize": 5}));
    drop(client);
    assert!(settled().0 - after.0 >= 12000);
    let mut client = cluster.router.client();
    // An only batch ends at 16 MiB, however many documents it may have.
    let answer = command(&mut client, &json!({"find": SPREAD, "batchSize": 12000, "singleBatch": true}));
    let found = answer["cursor"]["firstBatch"].as_array().map_or(0, Vec::len);
    assert!((5000..9000).contains(&found), "{found} documents");
    assert_eq!(answer["cursor"]["id"], json!(0));
}
