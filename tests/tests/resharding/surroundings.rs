//! What else sees a change of layout: other functions and commands while it runs, stored errors, memory.

use crate::{LONG, NS, check, check_clean, cluster, code, json, reshard, run, start};
use docshard_tests::faults::Fault;
use docshard_tests::wait_until;
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_change_of_layout_is_seen_only_as_itself() {
    let cluster = cluster(1000);
    let mut client = cluster.router.client();
    // A name behind that of a copy, in the order in which a database's collections are dropped.
    run(&cluster, "SELECT docshard.shard_collection('other.users', '{\"k\": 1}')");
    run(
        &cluster,
        "SELECT docshard.insert_select('other.users', $$SELECT jsonb_build_object('_id', i, 'k', i) FROM generate_series(1, 100) i$$)",
    );
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, "SELECT docshard.reshard_collection('other.users', '{\"_id\": 1}')".to_owned());
    cluster.router.await_fault("reshard.cloned");
    let stats = json(&mut client, "SELECT docshard.run_command('other', '{\"dbStats\": 1}')").expect("statistics");
    assert_eq!((&stats["objects"], &stats["collections"]), (&100.into(), &1.into()), "{stats}");
    let listed = json(&mut client, "SELECT docshard.run_command('admin', '{\"listDatabases\": 1}')").expect("a list");
    let size = |answer: &Value| {
        answer["databases"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "other").cloned())
    };
    let during = size(&listed).expect("the database")["sizeOnDisk"].as_f64();
    assert_eq!(during, stats["totalSize"].as_f64(), "{listed} {stats}");
    for view in ["chunks", "collections", "indexes", "index_usage"] {
        let sql = format!("SELECT count(*) FROM docshard.{view} WHERE namespace LIKE 'other.system.%'");
        assert_eq!(cluster.router.value::<i64>(&sql), 0, "{view}");
    }
    assert_eq!(cluster.router.value::<i64>("SELECT collections FROM docshard.databases WHERE name = 'other'"), 1);
    let counted = "SELECT sum(s.chunks)::int8 - (SELECT count(*) FROM docshard.chunks) FROM docshard.shards s";
    assert_eq!(cluster.router.value::<i64>(counted), 0, "chunks of shards");
    let error = client.query("SELECT docshard.drop_database('other')", &[]).expect_err("its layout changes");
    assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{error:?}");
    // Each command ends only its own kind of change.
    for command in ["abortMoveCollection", "abortUnshardCollection"] {
        let answer =
            json(&mut client, &format!("SELECT docshard.run_command('admin', '{{\"{command}\": \"other.users\"}}')"))
                .expect(command);
        assert_eq!(answer["code"], 20, "{command}: {answer}");
    }
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("nothing has ended it");
    run(&cluster, "SELECT docshard.drop_database('other')");
    check(&cluster, 1000);
}

/// A statement that waits for the size of a table may find that the table is gone.
#[test]
fn sizes_are_measured_while_a_layout_is_decided() {
    let cluster = cluster(300);
    cluster.router.arm("reshard.deciding", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.deciding");
    let asked = ["status()".to_owned(), "status(true)".to_owned(), format!("get_shard_distribution('{NS}')")];
    let asked = asked.map(|report| start(&cluster, format!("SELECT to_json(count(*)) FROM docshard.{report}")));
    // They wait for the tables that the decision drops.
    thread::sleep(Duration::from_secs(1));
    cluster.router.release("reshard.deciding");
    for asked in asked {
        asked.join().expect("a thread").expect("sizes");
    }
    pending.join().expect("a thread").expect("the change");
    check(&cluster, 300);
}

#[test]
fn zones_are_not_set_while_a_layout_changes() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(&cluster, "SELECT docshard.add_shard_to_zone('shard0', 'Z')");
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");
    // The change may give it ranges.
    let error = client.query("SELECT docshard.remove_shard_from_zone('shard0', 'Z')", &[]).expect_err("the last shard");
    assert_eq!(code(&error), "MongoDB error 163 (ZoneStillInUse)", "{error:?}");
    for zone in ["'Z'", "NULL"] {
        let statement = format!("docshard.update_zone_key_range('{NS}', '{{\"k\": 1}}', '{{\"k\": 50}}', {zone})");
        let error = client.query(&format!("SELECT {statement}"), &[]).expect_err(&statement);
        assert_eq!(code(&error), "MongoDB error 338 (ReshardCollectionInProgress)", "{statement}: {error:?}");
    }
    // Other collections have nothing to do with it.
    run(&cluster, "SELECT docshard.update_zone_key_range('test.later', '{\"k\": 1}', '{\"k\": 50}', 'Z')");
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("the change");
    assert_eq!(
        cluster.router.value::<i64>(&format!("SELECT count(*) FROM docshard.zone_ranges WHERE namespace = '{NS}'")),
        0
    );
    run(&cluster, &format!("SELECT docshard.update_zone_key_range('{NS}', '{{\"u\": 1}}', '{{\"u\": 50}}', 'Z')"));
    check_clean(&cluster);
}

#[test]
fn what_depends_on_a_table_is_named_before_its_documents_are_copied() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    let shard = &cluster.shards[0];
    for (object, drop) in [
        (format!("CREATE VIEW own AS SELECT id FROM {table}"), "DROP VIEW own"),
        (format!("CREATE TABLE own (rows {table}[])"), "DROP TABLE own"),
    ] {
        shard.psql(&object);
        // Before it copies.
        cluster.router.arm("reshard.prepared", Fault::Error);
        let error = json(&mut client, &format!("SELECT docshard.compact('{NS}')")).expect_err(&object);
        assert_eq!(error.code().map(|code| code.code()), Some("2BP01"), "{error:?}");
        let message = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(message.contains("own on shard \"shard0\" depends on "), "{message}");
        cluster.router.clear_faults();
        shard.psql(drop);
    }
    // These go with the table.
    for own in [
        format!("CREATE INDEX own ON {table} (id, skey) WHERE skey IS NOT NULL"),
        format!("ALTER TABLE {table} ADD CONSTRAINT own CHECK (id IS NOT NULL)"),
        format!("CREATE STATISTICS own ON id, skey FROM {table}"),
        format!("CREATE PUBLICATION own FOR TABLE {table}"),
    ] {
        shard.psql(&own);
    }
    let done = json(&mut client, &format!("SELECT docshard.compact('{NS}')")).expect("nothing prevents it");
    assert_eq!(done["documents"], 300, "{done}");
    check(&cluster, 300);
    check_clean(&cluster);
}

#[test]
fn draining_names_the_collections_that_must_be_moved() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(&cluster, &format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"));
    let primary: String = cluster.router.value("SELECT primary_shard FROM docshard.databases WHERE name = 'test'");
    assert_ne!(primary, "shard1");
    for state in ["started", "ongoing"] {
        let answer = json(&mut client, "SELECT docshard.remove_shard('shard1')").expect("draining");
        assert_eq!(answer["state"], state, "{answer}");
        assert_eq!(answer["collectionsToMove"], serde_json::json!([NS]), "{answer}");
        assert_eq!(answer["dbsToMove"], serde_json::json!([]), "{answer}");
        assert!(answer["note"].as_str().is_some_and(|note| note.contains("docshard.move_collection()")), "{answer}");
    }
    let progress = json(&mut client, "SELECT docshard.run_command('admin', '{\"shardDrainingStatus\": \"shard1\"}')")
        .expect("the progress");
    assert_eq!(progress["collectionsToMove"], serde_json::json!([NS]), "{progress}");
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains(&format!("docshard.move_collection('{NS}', ")), "{status}");
    run(&cluster, &format!("SELECT docshard.move_collection('{NS}', 'shard0')"));
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(!status.contains("docshard.move_collection("), "{status}");
    wait_until("shard1 is removed", LONG, || {
        let answer = json(&mut cluster.router.client(), "SELECT docshard.remove_shard('shard1')");
        answer.is_ok_and(|answer| answer["state"] == "completed")
    });
    check(&cluster, 300);
}

#[test]
fn stored_errors_have_no_values_of_documents() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    for k in [1, 250] {
        run(
            &cluster,
            &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": \"bob@secret.example\", \"k\": {k}, \"n\": 0}}')"),
        );
    }
    let error = client.query(&reshard(r#"{"_id": 1}"#, "{}"), &[]).expect_err("two documents have one _id");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)");
    // The caller, who may read the collection, gets the value.
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default().to_owned();
    assert!(detail.contains("bob@secret.example"), "{error:?}");
    // A document that is not stored by its key cannot move.
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    cluster.shards[1]
        .client()
        .batch_execute(&format!(
            "UPDATE {table} SET doc = jsonb_set(doc, '{{k}}', '260') WHERE doc ->> '_id' = 'bob@secret.example'"
        ))
        .expect("a slip");
    let moved = client
        .query(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 250}}', 'shard0')"), &[])
        .expect_err("a wrong key");
    assert!(moved.as_db_error().is_some_and(|error| error.message().contains("another shard key")), "{moved:?}");
    for (what, least) in [
        ("error FROM docshard.resharding", 1_i64),
        ("error FROM docshard_catalog.resharding", 1),
        ("error FROM docshard.migrations", 1),
        ("details::text FROM docshard.changelog", 1),
        ("docshard.balancer_status()::text", 1),
    ] {
        let stored: Vec<Option<String>> =
            client.query(&format!("SELECT {what}"), &[]).expect(what).iter().map(|row| row.get(0)).collect();
        assert!(stored.iter().flatten().count() as i64 >= least, "{what}");
        assert!(stored.iter().flatten().all(|text| !text.contains("secret")), "{what}: {stored:?}");
    }
}

/// The largest memory that a process of a server of this machine has had, in MiB, without the shared memory.
fn peak_mb(pid: i32) -> i64 {
    let field = |name: &str| -> i64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let line = status.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    (field("VmHWM:") - field("RssShmem:")) / 1024
}

#[test]
fn large_documents_that_change_are_copied_in_bounded_memory() {
    let cluster = cluster(600);
    // A sample finds small documents only.
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'n', 0, 'text', \
             repeat('x', 1500000)) FROM generate_series(600, 699) i$$)"
        ),
    );
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    cluster.router.await_fault("reshard.cloned");
    let update =
        format!("SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$gte\": 600}}}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    run(&cluster, &update);
    cluster.router.arm("reshard.verified", Fault::Pause);
    cluster.router.release("reshard.cloned");
    cluster.router.await_fault("reshard.verified");
    let pullers =
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard%' AND backend_type = 'client backend'";
    let mut shard = cluster.shards[0].client();
    let peaks: Vec<i64> = shard.query(pullers, &[]).expect("sessions").iter().map(|row| peak_mb(row.get(0))).collect();
    assert!(!peaks.is_empty());
    cluster.router.release("reshard.verified");
    pending.join().expect("a thread").expect("the change");
    // 100 documents of 1.5 MB.
    assert!(peaks.iter().all(|peak| *peak < 150), "{peaks:?} MiB");
    check(&cluster, 700);
    let n: i64 = cluster.router.value(&format!("SELECT docshard.count_documents('{NS}', '{{\"n\": 1}}')"));
    assert_eq!(n, 100);
}

/// Documents that fill the free space of a part's pages after the division are packed with it, however large they are.
#[test]
fn large_documents_in_the_free_space_of_a_part_are_copied_in_bounded_memory() {
    let cluster = cluster(1000);
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    run(&cluster, &format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$gte\": 300, \"$lt\": 900}}}}')"));
    let (recipient, donor) = (&cluster.shards[0], &cluster.shards[1]);
    donor.psql(&format!("VACUUM {table}"));
    cluster.router.arm("reshard.cloning", Fault::Pause);
    let pending = start(&cluster, format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    // The recipient has pulled from the first donor, the router.
    cluster.router.await_fault("reshard.cloning");
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'n', 0, 'text', \
             repeat('x', 1500000)) FROM generate_series(300, 399) i$$)"
        ),
    );
    let in_part = format!(
        "SELECT count(*) FROM {table}, (SELECT max(next_place) AS bound FROM docshard_data.capture_parts) p \
         WHERE pg_column_size(doc) > 10000 AND split_part(trim('(' FROM ctid::text), ',', 1)::int8 < p.bound >> 16"
    );
    assert_eq!(donor.value::<i64>(&in_part), 100);
    cluster.router.arm("reshard.cloned", Fault::Pause);
    cluster.router.release("reshard.cloning");
    cluster.router.await_fault("reshard.cloned");
    let sessions = "SELECT pid, application_name FROM pg_stat_activity \
                    WHERE application_name LIKE 'docshard m %' OR application_name = 'postgres_fdw'";
    for node in [recipient, donor] {
        let sessions = node.client().query(sessions, &[]).expect("sessions");
        let peaks: Vec<(String, i64)> = sessions.iter().map(|row| (row.get(1), peak_mb(row.get(0)))).collect();
        println!("{}: {peaks:?}", node.name);
        assert!(!peaks.is_empty() && peaks.iter().all(|(_, peak)| *peak < 140), "{}: {peaks:?} MiB", node.name);
    }
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("the change");
    check_clean(&cluster);
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 500);
}

/// A document that changes again and again is copied once a round, not once for each of its changes.
#[test]
fn a_large_document_that_changes_often_is_copied_in_few_rounds() {
    let cluster = cluster(300);
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', \
             $$SELECT jsonb_build_object('_id', 300, 'k', 300, 'u', 300, 'n', 0, 'text', repeat('x', 1500000))$$)"
        ),
    );
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, reshard(r#"{"u": 1}"#, "{}"));
    cluster.router.await_fault("reshard.cloned");
    for _ in 0..40 {
        run(&cluster, &format!("SELECT {}", crate::change(300, r#"{"$inc": {"n": 1}}"#)));
    }
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect("the change");
    let rounds: i32 = cluster.router.value("SELECT rounds FROM docshard.resharding");
    assert!((1..5).contains(&rounds), "{rounds} rounds");
    let n: i64 = cluster.router.value(&format!("SELECT docshard.count_documents('{NS}', '{{\"n\": 40}}')"));
    assert_eq!(n, 1);
    check(&cluster, 301);
    check_clean(&cluster);
}

#[test]
fn many_documents_that_are_no_longer_unique_end_the_change() {
    let cluster = cluster(4000);
    run(
        &cluster,
        &format!(
            "SELECT docshard.update_many('{NS}', '{{}}', '[{{\"$set\": {{\"u\": {{\"$floor\": {{\"$divide\": [\"$k\", 2]}}}}}}}}]')"
        ),
    );
    let began = Instant::now();
    let error =
        json(&mut cluster.router.client(), &reshard(r#"{"u": 1}"#, r#"{"unique": true, "commitTimeoutMS": 20000}"#))
            .expect_err("u is not unique");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)", "{error:?}");
    assert!(began.elapsed() < LONG);
    check_clean(&cluster);
    check(&cluster, 4000);
}
