//! `check_collection` over several shards: it finds deliberate damage, and reports none otherwise, also while chunks move and
//! documents change their shards.

use docshard_tests::Cluster;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const NS: &str = "test.c";

fn check(cluster: &Cluster) -> Value {
    let text: String = cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')::text"));
    serde_json::from_str(&text).expect("JSON")
}

fn start() -> (Cluster, String) {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n, 'v', 0))) FROM generate_series(0, 299) n"
    ));
    let table = cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    (cluster, table)
}

#[test]
fn damage_is_found_at_every_shard() {
    let (cluster, table) = start();
    let report = check(&cluster);
    assert_eq!((&report["valid"], &report["documents"]), (&json!(true), &json!(300)), "{report}");
    let key = |k: i64| format!("docshard_internal.shard_key('{{\"k\": {k}}}', '{{\"k\": 1}}')");
    let [shard0, shard1] = cluster.shards.as_slice() else { panic!("two shards") };
    // Documents that belong to another shard; a wrong key at each shard; a document that exists on both.
    shard0.psql(&format!("INSERT INTO {table} VALUES ({}, {}, '{{\"_id\": 1000, \"k\": 250}}')", key(250), key(1000)));
    shard1.psql(&format!("UPDATE {table} SET skey = {} WHERE id = {}", key(999), key(210)));
    cluster.router.psql(&format!("UPDATE {table} SET id = {} WHERE id = {}", key(-5), key(7)));
    cluster.router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 150, \"k\": 290}}')"));
    let report = check(&cluster);
    let mut found: Vec<(&str, &str, i64)> = report["found"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|p| (p["shard"].as_str().unwrap(), p["problem"].as_str().unwrap(), p["_id"].as_i64().unwrap()))
        .collect();
    found.sort_unstable();
    let expected =
        [("local", "wrongIdKey", 7), ("shard0", "outsideOwnedRanges", 1000), ("shard1", "wrongShardKey", 210)];
    assert_eq!(found, expected, "{report}");
    assert_eq!(report["duplicateIds"], json!([150]));
    assert_eq!((&report["valid"], &report["problems"], &report["documents"]), (&json!(false), &json!(3), &json!(302)));
    // A move does not copy the damaged documents.
    let error = cluster
        .router
        .client()
        .batch_execute(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 200}}', 'local')"))
        .expect_err("a wrong key");
    let message = error.as_db_error().expect("an answer").message().to_owned();
    assert!(message.contains("arrived with"), "{message}");
    assert_eq!(check(&cluster)["problems"], json!(3));
}

#[test]
fn nothing_is_found_while_chunks_move() {
    let (cluster, _) = start();
    let over = AtomicBool::new(false);
    let run = |sql: &dyn Fn(u64) -> String| {
        let mut client = cluster.router.client();
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            let sql = sql(done);
            client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            done += 1;
        }
        done
    };
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            run(&|n| {
                let to = ["shard1", "local", "shard0"][n as usize % 3];
                format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', '{to}')")
            })
        });
        // A document whose update moves it from shard to shard.
        let writer = scope.spawn(|| {
            run(&|n| {
                format!(
                    "SELECT docshard.update_one('{NS}', '{{\"_id\": 5}}', '{{\"$set\": {{\"k\": {}}}}}')",
                    (n % 3) * 100 + 5
                )
            })
        });
        for _ in 0..25 {
            let report = check(&cluster);
            let nothing = report["valid"] == true && report["duplicateIds"] == json!([]);
            if !nothing {
                over.store(true, Ordering::Relaxed);
            }
            assert!(nothing, "{report}");
        }
        over.store(true, Ordering::Relaxed);
        assert!(mover.join().expect("moves") > 2 && writer.join().expect("writes") > 2);
    });
    assert_eq!(check(&cluster)["documents"], json!(300));
}
