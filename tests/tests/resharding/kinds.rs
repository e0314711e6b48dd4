//! The kinds of changes, each from end to end, and input for which MongoDB has error codes.

use crate::{NS, check, check_clean, cluster, code, json, key, reshard, run, start};
use docshard_tests::Cluster;
use docshard_tests::faults::Fault;
use serde_json::{Value, json as doc};

#[test]
fn a_collection_gets_another_shard_key() {
    let cluster = cluster(3000);
    for (key, options) in [
        (r#"{"u": 1}"#, "{}"),
        (r#"{"_id": "hashed"}"#, r#"{"numInitialChunks": 9}"#),
        (r#"{"n": 1, "k": 1}"#, "{}"),
        (r#"{"_id": 1}"#, r#"{"numInitialChunks": 5}"#),
        (r#"{"k": 1}"#, r#"{"unique": true}"#),
        (r#"{"k": 1}"#, r#"{"forceRedistribution": true, "numInitialChunks": 7}"#),
    ] {
        if options.contains("unique") {
            // The former shard key has kept its index, which is not unique.
            run(&cluster, &format!("SELECT docshard.drop_index('{NS}', 'k_1')"));
        }
        let done =
            json(&mut cluster.router.client(), &reshard(key, options)).unwrap_or_else(|e| panic!("{key}: {e:?}"));
        println!("{key}: {done}");
        assert_eq!((&done["ok"], &done["documents"]), (&1.into(), &3000.into()), "{key}: {done}");
        check(&cluster, 3000);
        assert_eq!(self::key(&cluster).map(|key| key.replace(' ', "")), Some(key.replace(' ', "")));
        let shards: i64 = cluster
            .router
            .value(&format!("SELECT count(DISTINCT shard) FROM docshard.chunks WHERE namespace = '{NS}'"));
        assert_eq!(shards, 3, "{key}");
        let names: Vec<String> = cluster
            .router
            .client()
            .query(&format!("SELECT name FROM docshard.list_indexes('{NS}')"), &[])
            .expect("the indexes")
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(names.iter().any(|name| name == "n_1"), "{names:?}");
        check_clean(&cluster);
    }
    let error = cluster
        .router
        .client()
        .execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": -1, \"k\": 5}}')"), &[])
        .expect_err("k is unique");
    assert_eq!(code(&error), "MongoDB error 11000 (DuplicateKey)");
}

/// The sample for the new chunks is of all documents, not of those that were stored first.
#[test]
fn chunks_of_a_key_that_follows_the_order_of_insertions_are_even() {
    let cluster = cluster(0);
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 't', i) \
             FROM generate_series(0, 59999) i$$)"
        ),
    );
    run(&cluster, &reshard(r#"{"t": 1}"#, r#"{"numInitialChunks": 6}"#));
    let bounds: Vec<i64> = cluster.router.value(&format!(
        "SELECT array_agg(t::int8 ORDER BY t::int8) FROM (SELECT min::jsonb -> 't' AS t FROM docshard.chunks \
         WHERE namespace = '{NS}') c WHERE jsonb_typeof(t) = 'number'"
    ));
    assert_eq!(bounds.len(), 5, "{bounds:?}");
    assert!(bounds.iter().zip(1..).all(|(bound, n)| (bound - 10_000 * n).abs() < 1000), "{bounds:?}");
}

#[test]
fn bad_input_gets_codes_of_mongodb() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    run(
        &cluster,
        &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 1000, \"k\": 1000, \"a\": [1, 2], \"n\": 9}}')"),
    );
    run(&cluster, &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 5, \"k\": 1001, \"n\": 9}}')"));
    run(&cluster, "SELECT docshard.create_collection('test.plain')");
    run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"a\": 1}}')"));
    for (statement, code) in [
        ("reshard_collection('test.none', '{\"u\": 1}')", "26 (NamespaceNotFound)"),
        ("reshard_collection('test.plain', '{\"u\": 1}')", "118 (NamespaceNotSharded)"),
        ("unshard_collection('test.plain')", "118 (NamespaceNotSharded)"),
        ("refine_collection_shard_key('test.plain', '{\"u\": 1}')", "118 (NamespaceNotSharded)"),
        ("move_collection('test.resharded', 'shard1')", "26 (NamespaceNotFound)"),
        ("move_collection('test.plain', 'nowhere')", "70 (ShardNotFound)"),
        ("reshard_collection('test.resharded', '{}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"u\": 5}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"u\": 1}', '{\"other\": 1}')", "40415 (UnknownOption)"),
        ("reshard_collection('test.resharded', '{\"u\": 1}', '{\"numInitialChunks\": 0}')", "72 (InvalidOptions)"),
        ("reshard_collection('test.resharded', '{\"u\": \"hashed\"}', '{\"unique\": true}')", "72 (InvalidOptions)"),
        (
            "reshard_collection('test.resharded', '{\"u\": 1}', '{\"zones\": [{\"min\": {\"u\": 1}, \"max\": {\"u\": 2}, \"zone\": \"z\"}]}')",
            "177 (ZoneNotFound)",
        ),
        (
            "reshard_collection('test.resharded', '{\"u\": 1}', '{\"implicitlyCreateIndex\": false}')",
            "72 (InvalidOptions)",
        ),
        // Documents that cannot have the key.
        ("reshard_collection('test.resharded', '{\"a\": 1}')", "61 (ShardKeyNotFound)"),
        // Two documents with the same _id, which would have the same shard key.
        ("reshard_collection('test.resharded', '{\"_id\": 1}')", "11000 (DuplicateKey)"),
        ("reshard_collection('test.resharded', '{\"n\": 1}', '{\"unique\": true}')", "72 (InvalidOptions)"),
        ("refine_collection_shard_key('test.resharded', '{\"n\": 1, \"k\": 1}')", "72 (InvalidOptions)"),
        ("refine_collection_shard_key('test.resharded', '{\"k\": 1, \"z\": 1}')", "72 (InvalidOptions)"),
        ("refine_collection_shard_key('test.resharded', '{\"k\": 1, \"a\": 1}')", "72 (InvalidOptions)"),
        // Also where nothing would be done.
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"zones\": {}}')", "14 (TypeMismatch)"),
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"zones\": [1]}')", "2 (BadValue)"),
        ("reshard_collection('test.resharded', '{\"k\": 1}', '{\"commitTimeoutMS\": -1}')", "2 (BadValue)"),
        ("refine_collection_shard_key('test.resharded', '{\"k\": 1}', '{\"commitTimeoutMS\": -1}')", "2 (BadValue)"),
        ("commit_reshard_collection('test.resharded')", "339 (NoSuchReshardCollection)"),
    ] {
        let error = client.query(&format!("SELECT docshard.{statement}"), &[]).expect_err(statement);
        assert_eq!(self::code(&error), format!("MongoDB error {code}"), "{statement}: {error:?}");
        assert_eq!(key(&cluster).as_deref(), Some(r#"{"k":1}"#), "{statement}");
    }
    let error = client
        .batch_execute(&format!("BEGIN; {}", reshard(r#"{"u": 1}"#, "{}")))
        .expect_err("not in a transaction block");
    assert_eq!(code(&error), "MongoDB error 263 (OperationNotSupportedInTransaction)");
    client.batch_execute("ROLLBACK; SELECT docshard.drop_collection('test.plain')").expect("cleaning up");
    check_clean(&cluster);
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 302);
}

#[test]
fn a_shard_key_is_refined() {
    let cluster = cluster(600);
    run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}')"));
    let bounds = format!(
        "SELECT string_agg(shard || min::text, ' ' ORDER BY min_key) FROM docshard.chunks WHERE namespace = '{NS}'"
    );
    let done = json(
        &mut cluster.router.client(),
        &format!("SELECT docshard.refine_collection_shard_key('{NS}', '{{\"k\": 1, \"u\": 1}}')"),
    )
    .expect("it is refined");
    assert_eq!(done["documents"], 600, "{done}");
    let after: String = cluster.router.value(&bounds);
    assert_eq!(
        after.replace(' ', ""),
        "local{\"k\":{\"$minKey\":1},\"u\":{\"$minKey\":1}}shard0{\"k\":100,\"u\":{\"$minKey\":1}}shard1{\"k\":200,\"u\":{\"$minKey\":1}}"
    );
    check(&cluster, 600);
    // A chunk of one value of `k` can be split now.
    run(&cluster, &format!("SELECT docshard.split_at('{NS}', '{{\"k\": 150, \"u\": 7}}')"));
    check_clean(&cluster);
}

#[test]
fn compacting_gives_back_the_space_of_documents_that_have_left() {
    let cluster = cluster(4000);
    run(&cluster, &format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$gte\": 400}}}}')"));
    let mut client = cluster.router.client();
    let dry =
        json(&mut client, &format!("SELECT docshard.compact('{NS}', '{{\"dryRun\": true}}')")).expect("an estimate");
    let size = |table: &str| -> i64 { cluster.shards[1].value(&format!("SELECT pg_table_size('{table}')")) };
    let table = |cluster: &Cluster| -> String {
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
    };
    let before = size(&table(&cluster));
    json(&mut client, &format!("SELECT docshard.compact('{NS}')")).expect("it is compacted");
    let freed = before - size(&table(&cluster));
    let estimated = dry["estimatedBytesFreed"].as_i64().expect("a number");
    assert!(freed > before / 2 && estimated > freed / 2 && estimated < freed * 2, "{before} {freed} {dry}");
    check(&cluster, 400);
    check_clean(&cluster);
}

#[test]
fn commands_of_mongodb_change_layouts() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    let mut command = |command: &str| {
        json(&mut client, &format!("SELECT docshard.run_command('admin', '{command}')"))
            .unwrap_or_else(|e| panic!("{command}: {e:?}"))
    };
    for text in [
        format!(r#"{{"reshardCollection": "{NS}", "key": {{"_id": "hashed"}}, "numInitialChunks": 6}}"#),
        format!(r#"{{"unshardCollection": "{NS}", "toShard": "shard0"}}"#),
        format!(r#"{{"moveCollection": "{NS}", "toShard": "shard1"}}"#),
    ] {
        assert_eq!(command(&text)["ok"], 1, "{text}");
    }
    // An unsharded collection that is not on the primary shard is shown as MongoDB shows it.
    let of_config = |collection: &str, filter: &str| -> Value {
        cluster.router.value(&format!("SELECT docshard.find_one('config.{collection}', '{filter}')"))
    };
    let shown = of_config("collections", &format!(r#"{{"_id": "{NS}"}}"#));
    assert_eq!((&shown["key"], &shown["unsplittable"]), (&doc!({"_id": 1}), &doc!(true)), "{shown}");
    let chunk = of_config("chunks", &format!(r#"{{"ns": "{NS}"}}"#));
    assert_eq!((&chunk["shard"], &chunk["min"]), (&doc!("shard1"), &doc!({"_id": {"$minKey": 1}})), "{chunk}");
    assert_eq!(chunk["uuid"], shown["uuid"]);
    for text in [
        format!(r#"{{"shardCollection": "{NS}", "key": {{"_id": 1}}}}"#),
        format!(
            r#"{{"reshardCollection": "{NS}", "key": {{"_id": 1}}, "forceRedistribution": true, "numInitialChunks": 6}}"#
        ),
    ] {
        assert_eq!(command(&text)["ok"], 1, "{text}");
    }
    for (name, code) in
        [("abortReshardCollection", 339), ("abortMoveCollection", 339), ("commitReshardCollection", 339)]
    {
        assert_eq!(command(&format!(r#"{{"{name}": "{NS}"}}"#))["code"], code, "{name}");
    }
    check(&cluster, 300);
    check_clean(&cluster);
}

#[test]
fn a_draining_primary_shard_gets_no_chunk_of_a_new_layout() {
    let cluster = cluster(300);
    run(&cluster, "SELECT docshard.enable_sharding('drained', 'shard0')");
    run(&cluster, "SELECT docshard.shard_collection('drained.old', '{\"_id\": 1}')");
    run(&cluster, "SELECT docshard.start_shard_draining('shard0')");
    run(&cluster, "SELECT docshard.shard_collection('drained.new', '{\"_id\": 1}')");
    run(&cluster, "SELECT docshard.reshard_collection('drained.old', '{\"k\": 1}', '{\"numInitialChunks\": 1}')");
    let there = "SELECT count(*) FROM docshard.chunks WHERE namespace LIKE 'drained.%' AND shard = 'shard0'";
    assert_eq!(cluster.router.value::<i64>(there), 0);
}

#[test]
fn a_change_of_layout_is_shown_with_the_command_that_began_it() {
    let cluster = cluster(300);
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let pending = start(&cluster, format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    cluster.router.await_fault("reshard.cloned");
    let shown: Value = cluster.router.value(
        "SELECT docshard.run_command('admin', '{\"currentOp\": 1, \"provenance\": \"unshardCollection\"}') #> '{inprog}'",
    );
    assert_eq!(shown[0]["ns"], NS, "{shown}");
    cluster.router.release("reshard.cloned");
    pending.join().expect("no panic").expect("unsharded");
    check(&cluster, 300);
}

#[test]
fn a_router_without_other_shards_changes_layouts() {
    let alone = Cluster::start(0);
    run(&alone, &format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    run(&alone, &format!("SELECT docshard.create_index('{NS}', '{{\"k\": 1, \"u\": 1}}')"));
    run(
        &alone,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', -i, 'n', 0) \
             FROM generate_series(0, 499) i$$)"
        ),
    );
    // It has no way to reach itself yet.
    let servers = "SELECT count(*) FROM pg_foreign_server WHERE srvname = 'docshard_local'";
    assert_eq!(alone.router.value::<i64>(servers), 0);
    for sql in [
        format!("SELECT docshard.refine_collection_shard_key('{NS}', '{{\"k\": 1, \"u\": 1}}')"),
        reshard(r#"{"u": 1}"#, r#"{"numInitialChunks": 3}"#),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'local')"),
        format!("SELECT docshard.compact('{NS}')"),
    ] {
        let done = json(&mut alone.router.client(), &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert_eq!((&done["ok"], &done["documents"]), (&1.into(), &500.into()), "{sql}: {done}");
        check(&alone, 500);
    }
    assert_eq!(alone.router.value::<i64>(servers), 1);
    check_clean(&alone);
    run(&alone, &format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')"));
    check(&alone, 500);
}

/// A validator checks only what is written after it was set, and some roles may bypass it: documents that it refuses are copied like others.
#[test]
fn documents_that_the_validator_refuses_are_copied() {
    let cluster = cluster(300);
    let mut client = cluster.router.client();
    let validator = r#"{"collMod": "resharded", "validator": {"n": {"$exists": true}}}"#;
    run(&cluster, &format!("SELECT docshard.update_one('{NS}', '{{\"_id\": 1}}', '{{\"$unset\": {{\"n\": 1}}}}')"));
    run(&cluster, &format!("SELECT docshard.run_command('test', '{validator}')"));
    for (round, sql) in [
        reshard(r#"{"u": 1}"#, "{}"),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"),
        format!("SELECT docshard.move_collection('{NS}', 'shard1')"),
    ]
    .into_iter()
    .enumerate()
    {
        cluster.router.arm("reshard.cloned", Fault::Pause);
        let pending = start(&cluster, sql.clone());
        cluster.router.await_fault("reshard.cloned");
        // The document comes by the log, too.
        run(
            &cluster,
            &format!(
                "SELECT docshard.update_one('{NS}', '{{\"_id\": 1}}', '{{\"$set\": {{\"round\": {round}}}}}', \
                 '{{\"bypassDocumentValidation\": true}}')"
            ),
        );
        cluster.router.release("reshard.cloned");
        let done = pending.join().expect("a thread").unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert_eq!(done["documents"], 300, "{sql}: {done}");
        let found =
            json(&mut client, &format!("SELECT docshard.find_one('{NS}', '{{\"_id\": 1}}')")).expect("it is there");
        assert_eq!((&found["round"], found.get("n")), (&round.into(), None), "{sql}: {found}");
        // The copy has the validator.
        let error = client
            .query(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 1000, \"k\": 1, \"u\": 1}}')"), &[])
            .expect_err("a document without n");
        assert_eq!(code(&error), "MongoDB error 121 (DocumentValidationFailure)", "{sql}: {error:?}");
    }
    check(&cluster, 300);
    check_clean(&cluster);
}

/// The index on the former shard key stays if there is place for it.
#[test]
fn a_collection_has_at_most_64_indexes_after_a_change() {
    let cluster = cluster(30);
    let mut client = cluster.router.client();
    let count = |cluster: &Cluster| -> i64 {
        cluster.router.value(&format!("SELECT count(*) FROM docshard.list_indexes('{NS}')"))
    };
    for n in count(&cluster)..64 {
        run(&cluster, &format!("SELECT docshard.create_index('{NS}', '{{\"f{n}\": 1}}')"));
    }
    for sql in [
        reshard(r#"{"u": 1}"#, r#"{"numInitialChunks": 3}"#),
        reshard(r#"{"k": 1}"#, r#"{"numInitialChunks": 3}"#),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"),
    ] {
        let done = json(&mut client, &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert_eq!((&done["documents"], count(&cluster)), (&30.into(), 64), "{sql}: {done}");
    }
    // This key needs no index of its own.
    run(&cluster, &format!("SELECT docshard.shard_collection('{NS}', '{{\"_id\": 1}}')"));
    let error = json(&mut client, &reshard(r#"{"q": 1}"#, "{}")).expect_err("it would have 65");
    assert_eq!(code(&error), "MongoDB error 67 (CannotCreateIndex)", "{error:?}");
    check_clean(&cluster);
}

#[test]
fn a_key_of_32_fields_is_changed() {
    let cluster = cluster(30);
    let mut client = cluster.router.client();
    let fields: Vec<String> = (0..31).map(|n| format!("\"f{n}\": 1")).collect();
    let key = format!("{{\"k\": 1, {}}}", fields.join(", "));
    for sql in [
        reshard(&key, r#"{"numInitialChunks": 3}"#),
        reshard(r#"{"u": 1}"#, r#"{"numInitialChunks": 3}"#),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"),
    ] {
        let done = json(&mut client, &sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert_eq!(done["documents"], 30, "{sql}: {done}");
    }
    // The former shard key has an index, which is used.
    let find = format!("SELECT docshard.find_one('{NS}', '{{\"k\": 7, \"f0\": null}}')");
    assert_eq!(json(&mut client, &find).expect("it is found")["_id"], 7);
    check(&cluster, 30);
    let error = json(
        &mut client,
        &format!("SELECT to_jsonb(docshard.create_index('{NS}', '{}'))", key.replacen("1", "\"hashed\"", 1)),
    )
    .expect_err("a hashed index has another column");
    assert_eq!(code(&error), "MongoDB error 67 (CannotCreateIndex)", "{error:?}");
}
