//! Validators are checked at the shards: for every router, whatever it knows, from the moment when a change has returned; and what is
//! stored is not checked again by moves.

use docshard_tests::logins::sqlstate_of;
use docshard_tests::{Cluster, Node, wait_until};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const REFUSED: &str = "23514";

/// A router with two shards and a collection whose documents must have a number `v`, with chunks on both shards.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    let router = &cluster.router;
    router.psql("SELECT docshard.create_collection('v.c', '{\"validator\": {\"v\": {\"$type\": \"number\"}}}')");
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.shard_collection('v.c', '{\"_id\": 1}')",
        "SELECT docshard.split_at('v.c', '{\"_id\": 100}')",
        "SELECT docshard.move_chunk('v.c', '{\"_id\": 0}', 'shard0')",
        "SELECT docshard.move_chunk('v.c', '{\"_id\": 100}', 'shard1')",
    ] {
        router.psql(sql);
    }
    cluster
}

fn insert(id: i64, v: &str, options: &str) -> String {
    format!("SELECT docshard.insert_one('v.c', '{{\"_id\": {id}, \"v\": {v}}}', '{options}')")
}

fn count(router: &Node, filter: &str) -> i64 {
    router.value(&format!("SELECT docshard.count_documents('v.c', '{filter}')"))
}

#[test]
fn a_shard_refuses_and_a_bypass_is_of_its_statement() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    for id in [1, 101] {
        assert_eq!(sqlstate_of(&mut client, &insert(id, "\"x\"", "{}")), REFUSED);
        let error = client.batch_execute(&insert(id, "\"x\"", "{}")).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.schema(), error.table(), error.constraint()), (Some("v"), Some("c"), Some("validator")));
        assert!(error.detail().unwrap().contains("\"consideredType\":\"string\""), "{error:?}");
        // Each of these sessions has a transaction, a rollback, and a statement before it that bypassed.
        client.batch_execute(&insert(id, "\"x\"", "{\"bypassDocumentValidation\": true}")).unwrap();
        assert_eq!(sqlstate_of(&mut client, &insert(id + 1, "\"x\"", "{}")), REFUSED);
        client.batch_execute("BEGIN").unwrap();
        client.batch_execute(&insert(id + 1, "\"x\"", "{\"bypassDocumentValidation\": true}")).unwrap();
        client.batch_execute("SAVEPOINT s").unwrap();
        assert_eq!(sqlstate_of(&mut client, &insert(id + 2, "\"x\"", "{}")), REFUSED);
        client.batch_execute("ROLLBACK TO s").unwrap();
        assert_eq!(sqlstate_of(&mut client, &insert(id + 2, "\"x\"", "{}")), REFUSED);
        client.batch_execute("ROLLBACK").unwrap();
        assert_eq!(sqlstate_of(&mut client, &insert(id + 2, "\"x\"", "{}")), REFUSED);
        client.batch_execute(&insert(id + 1, "2", "{}")).unwrap();
    }
    // Updates of several shards, and one that takes a document to another shard.
    let update = "SELECT docshard.update_many('v.c', '{}', '{\"$set\": {\"v\": true}}')";
    assert_eq!(sqlstate_of(&mut client, update), REFUSED);
    let takes = "SELECT docshard.insert_many('v.c', ARRAY['{\"_id\": 7, \"v\": 1}', '{\"_id\": 107}']::jsonb[])";
    assert_eq!(sqlstate_of(&mut client, takes), REFUSED);
    assert_eq!((count(&cluster.router, "{}"), count(&cluster.router, "{\"v\": {\"$type\": \"number\"}}")), (4, 2));
}

#[test]
fn a_move_takes_what_is_stored_and_the_recipient_refuses() {
    let cluster = cluster();
    let router = &cluster.router;
    for id in 1..20 {
        router.psql(&insert(id, "\"x\"", "{\"bypassDocumentValidation\": true}"));
    }
    router.psql("SELECT docshard.create_index('v.c', '{\"v\": 1}')");
    for shard in ["local", "shard1", "shard0"] {
        router.psql(&format!("SELECT docshard.move_chunk('v.c', '{{\"_id\": 0}}', '{shard}')"));
        assert_eq!(count(router, "{\"v\": \"x\"}"), 19);
        assert_eq!(sqlstate_of(&mut router.client(), &insert(50, "\"x\"", "{}")), REFUSED, "{shard}");
    }
    // A shard that gets its first chunk after a change has the new validator.
    router.psql("SELECT docshard.modify_collection('v.c', '{\"validator\": {\"v\": {\"$type\": \"string\"}}}')");
    router.psql("SELECT docshard.move_chunk('v.c', '{\"_id\": 0}', 'local')");
    assert_eq!(sqlstate_of(&mut router.client(), &insert(50, "1", "{}")), REFUSED);
    router.psql(&insert(50, "\"y\"", "{}"));
}

/// Writers whose maps are older than a change, and transactions that are open while it waits.
#[test]
fn no_document_passes_by_an_old_validator_after_a_change() {
    let cluster = cluster();
    let router = &cluster.router;
    let (ends, least, next) = (AtomicBool::new(false), AtomicI64::new(0), AtomicI64::new(1));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = router.client();
                while !ends.load(Ordering::SeqCst) {
                    let allowed = least.load(Ordering::SeqCst);
                    let id = next.fetch_add(1, Ordering::SeqCst);
                    // The value is one that the validator of this moment, or a later one, must refuse.
                    let sql = insert(id % 200, &format!("{}", allowed - 1), "{}");
                    let refused = client.batch_execute(&sql).err();
                    let state = refused.as_ref().and_then(postgres::Error::code).map(|state| state.code().to_owned());
                    assert!(allowed == 0 || state.as_deref() == Some(REFUSED), "{allowed}: {refused:?}");
                }
            });
        }
        scope.spawn(|| {
            for bound in 1..=10 {
                let validator = format!("{{\"validator\": {{\"v\": {{\"$gte\": {bound}}}}}}}");
                router.psql(&format!("SELECT docshard.modify_collection('v.c', '{validator}')"));
                least.store(bound, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(100));
            }
            ends.store(true, Ordering::SeqCst);
        });
    });

    // A change waits for a transaction that has written.
    let mut writer = router.client();
    writer.batch_execute("BEGIN").unwrap();
    writer.batch_execute(&insert(1001, "10", "{}")).unwrap();
    let change = "SELECT docshard.modify_collection('v.c', '{\"validator\": {\"v\": {\"$gte\": 1000}}}')";
    thread::scope(|scope| {
        let changed = scope.spawn(|| router.psql(change));
        let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory')";
        wait_until("the change to wait", PATIENCE, || cluster.shards.iter().any(|shard| shard.value::<bool>(waits)));
        writer.batch_execute(&insert(1002, "11", "{}")).unwrap();
        writer.batch_execute("COMMIT").unwrap();
        changed.join().unwrap();
    });
    assert_eq!(sqlstate_of(&mut writer, &insert(1003, "12", "{}")), REFUSED);
    // The old snapshot of a transaction shows no old validator.
    writer.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    writer.batch_execute("SELECT docshard.count_documents('v.c')").unwrap();
    router.psql("SELECT docshard.modify_collection('v.c', '{\"validator\": {\"v\": {\"$gte\": 2000}}}')");
    assert_eq!(sqlstate_of(&mut writer, &insert(1003, "1500", "{}")), REFUSED);
}

/// A shard whose release cannot check documents gets no collection with a validator.
#[test]
fn a_validator_needs_shards_that_can_check() {
    let cluster = cluster();
    let (router, shard) = (&cluster.router, &cluster.shards[1]);
    router.psql("SELECT docshard.create_collection('v.plain')");
    router.psql("SELECT docshard.shard_collection('v.plain', '{\"_id\": 1}')");
    router.psql("SELECT docshard.move_chunk('v.plain', '{\"_id\": 0}', 'shard1')");
    router.psql("SELECT docshard.create_collection('v.other', '{\"validator\": {\"v\": 1}}')");
    router.psql("SELECT docshard.shard_collection('v.other', '{\"_id\": 1}')");
    shard.unguard();
    shard.psql("ALTER FUNCTION docshard_internal.set_validator RENAME TO set_validator_later");
    let mut client = router.client();
    for sql in [
        "SELECT docshard.modify_collection('v.plain', '{\"validator\": {\"v\": 1}}')",
        "SELECT docshard.move_chunk('v.other', '{\"_id\": 0}', 'shard1')",
    ] {
        let error = client.batch_execute(sql).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert!(error.message().contains("a collection with a validator needs shards of this release"), "{error:?}");
    }
    assert_eq!(
        router.value::<Option<String>>("SELECT validation::text FROM docshard.collections WHERE namespace = 'v.plain'"),
        None
    );
    router.psql("SELECT docshard.insert_one('v.plain', '{\"_id\": 1}'), docshard.insert_one('v.other', '{\"_id\": 1, \"v\": 1}')");
}

#[test]
fn a_warning_is_in_the_log_of_the_shard() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.modify_collection('v.c', '{\"validationAction\": \"warn\"}')");
    router.psql(&insert(1, "\"only a warning\"", "{}"));
    wait_until("the warning", PATIENCE, || {
        let log = cluster.shards[0].log();
        log.contains("Document would fail validation") && log.contains("only a warning")
    });
    router.psql("SELECT docshard.modify_collection('v.c', '{\"validationAction\": \"errorAndLog\"}')");
    assert_eq!(sqlstate_of(&mut router.client(), &insert(2, "\"not stored\"", "{}")), REFUSED);
    wait_until("the error", PATIENCE, || cluster.shards[0].log().contains("not stored"));
}

/// The shard is asked once which documents of a batch it refuses, and so logs few errors.
#[test]
fn invalid_documents_of_a_batch_are_found_together() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql(&insert(6, "6", "{}"));
    let insert_many = |options: &str| {
        format!(
            "SELECT docshard.insert_many('v.c', (SELECT array_agg(jsonb_build_object('_id', i, \
               'v', CASE WHEN i % 3 = 0 THEN to_jsonb(i) ELSE to_jsonb(repeat('x', 12000)) END) ORDER BY i) \
             FROM generate_series(1, 199) i), '{options}')"
        )
    };
    let result: Value = router.value(&insert_many(r#"{"ordered": false}"#));
    let errors = result["writeErrors"].as_array().unwrap();
    let expected: Vec<(i64, i64)> =
        (1..200).filter(|id| id % 3 != 0 || *id == 6).map(|id| (id - 1, if id == 6 { 11000 } else { 121 })).collect();
    let found: Vec<(i64, i64)> =
        errors.iter().map(|error| (error["index"].as_i64().unwrap(), error["code"].as_i64().unwrap())).collect();
    assert_eq!(found, expected);
    assert_eq!(result["insertedCount"], 65);
    for error in errors {
        let info = &error["errInfo"];
        assert!(info.is_null() || info["failingDocumentId"] == error["index"].as_i64().unwrap() + 1, "{error}");
    }
    let with_info = errors.iter().filter(|error| !error["errInfo"].is_null()).count();
    assert!((20..100).contains(&with_info), "{with_info}");
    for shard in &cluster.shards {
        let logged = shard.log().matches("ERROR:  Document failed validation").count();
        assert!(logged <= 2, "{logged}");
    }
    router.psql("SELECT docshard.delete_many('v.c', '{}')");
    let documents: Vec<String> = [1, 2, 103, 4]
        .iter()
        .map(|id| format!(r#"{{"_id": {id}, "v": {}}}"#, if *id == 103 { "null" } else { "1" }))
        .collect();
    let command = format!(r#"{{"insert": "c", "documents": [{}]}}"#, documents.join(","));
    let reply: Value = router.value(&format!("SELECT docshard.run_command('v', '{command}')"));
    assert_eq!((&reply["n"], &reply["writeErrors"][0]["index"]), (&2.into(), &2.into()), "{reply}");
    assert_eq!(count(router, "{}"), 2);
}
