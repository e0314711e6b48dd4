//! A write to one document without the shard key is held between its two phases: it has found a candidate, but has not
//! written.

use docshard_tests::moving::{Moving, NS, Pending};
use docshard_tests::{Cluster, Fault};
use serde_json::{Value, json};

/// Returns whether a write's answer reports a match.
type Hit = fn(&Value) -> bool;

/// The writes to the document whose tag is `sought`, each with its check.
fn writes() -> [(String, Hit); 5] {
    let hit: Hit = |answer| answer["matchedCount"] == 1;
    let sorted = r#"'{"tag": "sought"}', '{"$inc": {"n": 1}}', '{"sort": {"place": 1}}'"#;
    [
        (format!(r#"docshard.update_one('{NS}', '{{"tag": "sought"}}', '{{"$inc": {{"n": 1}}}}')"#), hit),
        (format!("docshard.update_one('{NS}', {sorted})"), hit),
        (format!("docshard.find_one_and_update('{NS}', {sorted})"), |answer| answer["tag"] == "sought"),
        (format!(r#"docshard.update_one('{NS}', '{{"tag": "sought"}}', '{{"$inc": {{"k": 1, "n": 1}}}}')"#), hit),
        (format!(r#"docshard.delete_one('{NS}', '{{"tag": "sought"}}')"#), |answer| answer["deletedCount"] == 1),
    ]
}

/// A collection with chunks on two shards, and two tagged documents.
fn start() -> Moving {
    let moving = Moving::start(200);
    set(&moving, 10, &json!({"place": 1, "n": 0, "tag": "sought"}));
    set(&moving, 150, &json!({"place": 2, "n": 0, "tag": ""}));
    moving
}

fn set(moving: &Moving, id: i64, fields: &Value) {
    moving.run(&format!("SELECT docshard.update_one('{NS}', '{{\"_id\": {id}}}', '{{\"$set\": {fields}}}')"));
}

fn held(moving: &Moving, write: &str) -> Pending<Value> {
    moving.cluster.router.arm("write_target.found", Fault::Pause);
    let pending = moving.spawn_value::<Value>(format!("SELECT coalesce({write}, 'null')"));
    moving.cluster.router.await_fault("write_target.found");
    pending
}

fn sum(cluster: &Cluster) -> i64 {
    let sql =
        format!("SELECT sum((d->>'n')::int8)::int8 FROM docshard.find('{NS}', '{{\"place\": {{\"$gt\": 0}}}}') d");
    cluster.router.value(&sql)
}

#[test]
fn a_candidate_that_moves_or_changes_before_it_is_written() {
    let moving = start();
    let router = &moving.cluster.router;
    let mut expected = 0;
    for (round, (write, hit)) in writes().into_iter().enumerate() {
        let is_delete = write.contains("delete_one");
        // The candidate's chunk moves; the write follows it.
        if !is_delete {
            let pending = held(&moving, &write);
            moving.start_move(["shard1", "shard0"][round % 2]).join().unwrap().expect("a move");
            router.release("write_target.found");
            assert!(hit(&pending.join().unwrap().unwrap_or_else(|e| panic!("{write}: {e:?}"))), "{write}");
            expected += 1;
            assert_eq!(sum(&moving.cluster), expected, "{write}");
        }
        // The candidate no longer matches, and another document at another shard does.
        let pending = held(&moving, &write);
        set(&moving, 150, &json!({"tag": "sought"}));
        set(&moving, 10, &json!({"tag": ""}));
        router.release("write_target.found");
        assert!(hit(&pending.join().unwrap().unwrap_or_else(|e| panic!("{write}: {e:?}"))), "{write}");
        if is_delete {
            let left = format!(
                "SELECT string_agg(d->>'_id', ' ') FROM docshard.find('{NS}', '{{\"place\": {{\"$gt\": 0}}}}') d"
            );
            assert_eq!(router.value::<String>(&left), "10");
            break;
        }
        expected += 1;
        assert_eq!(sum(&moving.cluster), expected, "{write}");
        // No document matches any more.
        let pending = held(&moving, &write);
        set(&moving, 150, &json!({"tag": ""}));
        router.release("write_target.found");
        let answer = pending.join().unwrap().unwrap_or_else(|e| panic!("{write}: {e:?}"));
        assert!(!hit(&answer), "{write}: {answer}");
        assert_eq!(sum(&moving.cluster), expected, "{write}");
        set(&moving, 10, &json!({"tag": "sought"}));
    }
}

#[test]
fn a_candidate_that_loses_its_place_in_the_order_before_it_is_written() {
    let moving = start();
    let router = &moving.cluster.router;
    set(&moving, 150, &json!({"tag": "sought"}));
    let write = format!(
        r#"docshard.find_one_and_update('{NS}', '{{"tag": "sought"}}', '{{"$inc": {{"n": 1}}}}', '{{"sort": {{"place": 1}}}}')"#
    );
    let pending = held(&moving, &write);
    set(&moving, 10, &json!({"place": 3}));
    router.release("write_target.found");
    assert_eq!(pending.join().unwrap().expect("a write")["place"], 2);
    // A change of a field that is not in the sort order does not repeat the search.
    let pending = held(&moving, &write);
    set(&moving, 150, &json!({"other": 3}));
    set(&moving, 10, &json!({"place": 1}));
    router.release("write_target.found");
    assert_eq!(pending.join().unwrap().expect("a write")["place"], 2);
}
