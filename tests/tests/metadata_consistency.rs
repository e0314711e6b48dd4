//! `check_metadata_consistency`: the tests damage nodes as a user with rights could. Each inconsistency is reported, and its repair removes
//! it. Nothing is reported while metadata change.

use docshard_tests::faults::Fault;
use docshard_tests::{Cluster, Node, is_thorough, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const NS: &str = "test.c";
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Found {
    kind: String,
    namespace: Option<String>,
    shard: Option<String>,
    details: Value,
    repair: Option<String>,
}

fn check(cluster: &Cluster, arguments: &str) -> Vec<Found> {
    let sql = format!(
        "SELECT type, namespace, shard, details::jsonb, repair FROM docshard.check_metadata_consistency({arguments})"
    );
    let rows = cluster.router.client().query(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    rows.iter()
        .map(|row| Found {
            kind: row.get(0),
            namespace: row.get(1),
            shard: row.get(2),
            details: row.get(3),
            repair: row.get(4),
        })
        .collect()
}

fn check_nothing(cluster: &Cluster, after: &str) {
    let found = check(cluster, "");
    assert!(found.is_empty(), "after {after}: {found:#?}");
}

/// Checks that exactly this is found: type, namespace (empty: none) and shard (empty: none).
fn expect(cluster: &Cluster, what: &str, expected: &[(&str, &str, &str)]) -> Vec<Found> {
    let found = check(cluster, "");
    let shown: Vec<_> = found
        .iter()
        .map(|one| (&*one.kind, one.namespace.as_deref().unwrap_or(""), one.shard.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(shown, expected, "{what}: {found:#?}");
    assert!(found.iter().all(|one| one.repair.is_some() != one.details["noRepair"].is_string()), "{what}: {found:#?}");
    found
}

/// Checks that exactly this is found, and that its repairs, one after the other, repair it.
fn repaired(cluster: &Cluster, what: &str, expected: &[(&str, &str, &str)]) {
    for one in expect(cluster, what, expected) {
        let repair = one.repair.unwrap_or_else(|| panic!("{what}: no repair of {}", one.kind));
        cluster.router.client().batch_execute(&repair).unwrap_or_else(|e| panic!("{what}: {repair}: {e:?}"));
    }
    check_nothing(cluster, what);
}

/// Checks that exactly this is found, and nothing after the damage has been undone.
fn undone(cluster: &Cluster, node: &Node, what: &str, expected: (&str, &str, &str), undo: &str) {
    let found = expect(cluster, what, &[expected]);
    assert_eq!(found[0].repair, None, "{what}");
    node.psql(undo);
    check_nothing(cluster, what);
}

/// Starts three nodes, all with documents of `test.c` and an index. Superusers may change their tables directly.
fn start() -> (Cluster, i32, i32) {
    let cluster = Cluster::spread(NS);
    let router = &cluster.router;
    router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n, 'v', n))) FROM generate_series(0, 299) n"
    ));
    router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"v\": 1}}')"));
    let id = router.value(&format!("SELECT id FROM docshard_catalog.collections WHERE namespace = '{NS}'"));
    let index = router.value("SELECT id FROM docshard_catalog.indexes WHERE name = 'v_1'");
    for node in std::iter::once(router).chain(&cluster.shards) {
        node.unguard();
    }
    check_nothing(&cluster, "the start");
    (cluster, id, index)
}

/// The present numbers of `test.c` and its index: `compact` gives it others.
fn numbers(cluster: &Cluster) -> (i32, i32) {
    let id = cluster.router.value(&format!("SELECT id FROM docshard_catalog.collections WHERE namespace = '{NS}'"));
    (
        id,
        cluster
            .router
            .value(&format!("SELECT id FROM docshard_catalog.indexes WHERE name = 'v_1' AND collection_id = {id}")),
    )
}

fn count(cluster: &Cluster, ns: &str) -> i64 {
    cluster.router.value(&format!("SELECT docshard.count_documents('{ns}')"))
}

#[test]
fn differences_of_a_shard_are_found_and_repaired() {
    let (cluster, id, index) = start();
    indexes_and_documents(&cluster, id, index);
    validator_and_privileges(&cluster);
    versions(&cluster);
    documents_at_a_shard_without_chunks(&cluster);
}

/// The repair copies the documents of all tables that it drops.
fn documents_at_a_shard_without_chunks(cluster: &Cluster) {
    let shard0 = &cluster.shards[0];
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let (id, _) = numbers(cluster);
    let before = count(cluster, NS);
    let key = |json: &str| format!("docshard_internal.shard_key('{json}', '{{\"k\": 1}}')");
    let document = |id: i64| format!("'{{\"_id\": {id}, \"k\": 250}}'");
    let (skey, own) = (key("{\"k\": 250}"), key("{\"k\": 1002}"));
    shard0.psql(&format!("INSERT INTO docshard_data.c{id} VALUES ({skey}, {own}, {})", document(1002)));
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}')");
    let refused = cluster.router.client().batch_execute(&reshard).expect_err("it would be seen");
    assert!(refused.as_db_error().is_some_and(|e| e.message().contains("outside of its ranges")), "{refused:?}");
    repaired(cluster, "a document at a shard without chunks", &[("OrphanedDocuments", NS, "shard0")]);
    assert_eq!(count(cluster, NS), before + 1);
    // Nothing is dropped if two shards have the document.
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard0')"));
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let (id, _) = numbers(cluster);
    shard0.psql(&format!("INSERT INTO docshard_data.c{id} VALUES ({skey}, {own}, {})", document(1002)));
    let found = expect(cluster, "a document at two shards", &[("OrphanedDocuments", NS, "shard0")]);
    let repair = found[0].repair.as_deref().expect("a repair");
    let refused = cluster.router.client().batch_execute(repair).expect_err("two documents have the same key");
    assert_eq!(refused.code().map(postgres::error::SqlState::code), Some("23505"), "{refused:?}");
    assert_eq!(count(cluster, NS), before + 1);
    shard0.psql(&format!("DELETE FROM docshard_data.c{id}"));
    check_nothing(cluster, "a document at two shards");
}

fn indexes_and_documents(cluster: &Cluster, id: i32, index: i32) {
    let [shard0, shard1] = cluster.shards.as_slice() else { panic!("two shards") };
    shard0.psql(&format!("DROP INDEX docshard_data.i{index}"));
    repaired(cluster, "a missing index", &[("InconsistentIndex", NS, "shard0")]);
    shard1.psql(&format!("CREATE INDEX i99999 ON docshard_data.c{id} (id)"));
    repaired(cluster, "an index that the catalog does not have", &[("InconsistentIndex", NS, "shard1")]);
    cluster.router.psql(&format!("DROP INDEX docshard_data.i{index}"));
    repaired(cluster, "a missing index of the router's own database", &[("InconsistentIndex", NS, "local")]);
    let (id, index) = numbers(cluster);
    shard1.psql(&format!("DROP INDEX docshard_data.i{index}; CREATE INDEX i{index} ON docshard_data.c{id} (id)"));
    repaired(cluster, "another index", &[("InconsistentIndex", NS, "shard1")]);
    let (id, _) = numbers(cluster);
    shard0.psql(&format!("DROP INDEX docshard_data.c{id}_id"));
    repaired(cluster, "no index on _id", &[("InconsistentIndex", NS, "shard0")]);
    let (id, _) = numbers(cluster);
    shard1.psql(&format!("ALTER TABLE docshard_data.c{id} DROP CONSTRAINT c{id}_pkey"));
    let again = format!("ALTER TABLE docshard_data.c{id} ADD CONSTRAINT c{id}_pkey PRIMARY KEY (skey, id)");
    undone(cluster, shard1, "no primary key", ("MissingShardKeyIndex", NS, "shard1"), &again);

    let key = |k: i64| format!("docshard_internal.shard_key('{{\"k\": {k}}}', '{{\"k\": 1}}')");
    shard0.psql(&format!(
        "INSERT INTO docshard_data.c{id} VALUES ({}, {}, '{{\"_id\": 1000, \"k\": 250}}')",
        key(250),
        key(1000)
    ));
    repaired(cluster, "a document of another shard", &[("OrphanedDocuments", NS, "shard0")]);
    assert_eq!(count(cluster, NS), 301);
    let (id, _) = numbers(cluster);
    assert_eq!(shard1.value::<i64>(&format!("SELECT count(*) FROM docshard_data.c{id} WHERE skey = {}", key(250))), 2);
}

fn validator_and_privileges(cluster: &Cluster) {
    let [shard0, shard1] = cluster.shards.as_slice() else { panic!("two shards") };
    let (id, _) = numbers(cluster);
    cluster
        .router
        .psql(&format!("SELECT docshard.modify_collection('{NS}', '{{\"validator\": {{\"k\": {{\"$gt\": -1}}}}}}')"));
    shard1.psql("UPDATE docshard_data.placement SET validator = NULL, validator_id = NULL");
    repaired(cluster, "no validator", &[("CollectionOptionsMismatch", NS, "shard1")]);
    cluster.router.psql(&format!("SELECT docshard.modify_collection('{NS}', '{{\"validator\": {{}}}}')"));
    shard0.psql("UPDATE docshard_data.placement SET validator = '{\"validator\": {\"a\": 1}}', validator_id = 7");
    repaired(cluster, "a validator that is none", &[("CollectionOptionsMismatch", NS, "shard0")]);

    cluster.router.psql("CREATE ROLE app; CREATE ROLE other");
    cluster.router.psql(&format!("SELECT docshard.grant_access('app', '{{\"read\": \"{NS}\"}}')"));
    cluster.router.psql("SELECT docshard.grant_access('other', '{\"write\": \"elsewhere\"}')");
    check_nothing(cluster, "grants");
    shard0.psql(&format!("REVOKE SELECT ON docshard_data.c{id} FROM app"));
    shard1.psql(&format!("GRANT INSERT ON docshard_data.c{id} TO app; GRANT SELECT ON docshard_data.c{id} TO other"));
    let expected = [
        ("PrivilegesMismatch", NS, "shard0"),
        ("PrivilegesMismatch", NS, "shard1"),
        ("PrivilegesMismatch", NS, "shard1"),
    ];
    repaired(cluster, "privileges", &expected);
    // The repair names a grant that covers the collection.
    cluster.router.psql("SELECT docshard.grant_access('app', '{\"read\": \"aaa\", \"write\": \"zzz\"}')");
    shard0.psql(&format!("REVOKE SELECT ON docshard_data.c{id} FROM app"));
    let found = expect(cluster, "a privilege", &expected[..1]);
    let repair = found[0].repair.clone().expect("a repair");
    assert!(repair.contains(NS), "{repair}");
    cluster.router.psql(&repair);
    check_nothing(cluster, "the repair");
}

fn versions(cluster: &Cluster) {
    let [shard0, shard1] = cluster.shards.as_slice() else { panic!("two shards") };
    let mismatch = "ShardCatalogCacheCollectionMetadataMismatch";
    shard1.psql("UPDATE docshard_data.placement SET version = version - 1");
    repaired(cluster, "an older version", &[(mismatch, NS, "shard1")]);
    assert_eq!(count(cluster, NS), 301);
    shard0.psql("UPDATE docshard_data.placement SET version = version + 1");
    repaired(cluster, "a newer version", &[(mismatch, NS, "shard0")]);

    // A transaction that a coordinator has prepared may be the reason of a difference.
    shard0.psql("UPDATE docshard_data.placement SET version = version + 1");
    shard0.psql("BEGIN; SELECT 1; PREPARE TRANSACTION 'docshard_test'");
    let undo = "ROLLBACK PREPARED 'docshard_test'; UPDATE docshard_data.placement SET version = version - 1";
    let found = expect(cluster, "a prepared transaction", &[("UnresolvedTransaction", "", "shard0")]);
    assert_eq!(found[0].details["prepared"], json!(["docshard_test"]));
    for statement in undo.split("; ") {
        shard0.psql(statement);
    }
    check_nothing(cluster, "a prepared transaction");

    // Another role may use such a name, but its transaction is no router's. It does not count as being in doubt, either.
    shard0.psql("CREATE ROLE stranger");
    shard0.psql("BEGIN; SET LOCAL ROLE stranger; SELECT txid_current(); PREPARE TRANSACTION 'docshard_test'");
    check_nothing(cluster, "another role's prepared transaction");
    let in_doubt = "SELECT count(oldest_in_doubt_s) FROM docshard.health";
    assert_eq!(cluster.router.value::<i64>(in_doubt), 0);
    shard0.psql("ROLLBACK PREPARED 'docshard_test'");
}

#[test]
fn tables_that_are_missing_or_left_are_found_and_repaired() {
    let (cluster, id, _) = start();
    let [shard0, shard1] = cluster.shards.as_slice() else { panic!("two shards") };
    let copy =
        |from: i32, to: i32| format!("CREATE TABLE docshard_data.c{to} (LIKE docshard_data.c{from} INCLUDING ALL)");
    shard0.psql(&copy(id, 99_999));
    let service = shard0.service_role();
    shard0.psql(&format!("ALTER TABLE docshard_data.c99999 OWNER TO {service}"));
    // No repair drops a table that may have documents. An administrator may.
    let drop = |number: i32| format!("SELECT docshard.drop_orphaned_relation('shard0', 'docshard_data.c{number}')");
    let expected = ("MisplacedCollection", "", "shard0");
    undone(&cluster, &cluster.router, "a table of no collection", expected, &drop(99_999));
    cluster.router.psql("SELECT docshard.insert_one('test.one', '{\"_id\": 1}')");
    let one: i32 = cluster.router.value("SELECT id FROM docshard_catalog.collections WHERE namespace = 'test.one'");
    shard0.psql(&copy(id, one));
    shard0.psql(&format!("ALTER TABLE docshard_data.c{one} OWNER TO {service}"));
    let expected = ("MisplacedCollection", "test.one", "shard0");
    undone(&cluster, &cluster.router, "a table of a collection that is elsewhere", expected, &drop(one));
    assert_eq!(count(&cluster, "test.one"), 1);

    shard1.psql("CREATE TABLE saved AS SELECT * FROM docshard_data.placement; DELETE FROM docshard_data.placement");
    let again = "INSERT INTO docshard_data.placement SELECT * FROM saved";
    undone(&cluster, shard1, "no version", ("MissingLocalCollection", NS, "shard1"), again);
    assert_eq!(count(&cluster, NS), 300);
    shard1.psql(&format!(
        "SELECT docshard_internal.drop_table({id}); \
         INSERT INTO docshard_data.placement SELECT * FROM saved"
    ));
    repaired(&cluster, "no table", &[("MissingLocalCollection", NS, "shard1")]);
    assert_eq!(count(&cluster, NS), 200);
    cluster.router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 1000, \"k\": 250}}')"));

    shard0.psql("UPDATE docshard_data.placement SET token = token + 1");
    let found = expect(&cluster, "another collection", &[("CollectionUUIDMismatch", NS, "shard0")]);
    cluster.router.psql(found[0].repair.as_deref().expect("a repair"));
    repaired(&cluster, "another collection was dropped", &[("MissingLocalCollection", NS, "shard0")]);
    assert_eq!(count(&cluster, NS), 101);

    cluster.router.psql(&format!("DELETE FROM docshard_data.placement WHERE collection_id = {one}"));
    let expected = ("MissingLocalCollection", "test.one", "local");
    let again = format!(
        "INSERT INTO docshard_data.placement (collection_id, token, version) \
         SELECT c.id, c.token, p.version FROM docshard_catalog.collections c JOIN docshard_catalog.placements p ON p.collection_id = c.id WHERE c.id = {one}"
    );
    undone(&cluster, &cluster.router, "no version in the router's own database", expected, &again);
}

#[test]
fn inconsistencies_of_the_catalog_are_found() {
    let (cluster, id, _) = start();
    let router = &cluster.router;
    router.psql(&format!(
        "CREATE TABLE saved AS SELECT * FROM docshard_catalog.chunks WHERE collection_id = {id}; \
         CREATE TABLE placed AS SELECT * FROM docshard_catalog.placements WHERE collection_id = {id}"
    ));
    let chunks = format!("docshard_catalog.chunks WHERE collection_id = {id}");
    let update = |what: &str, end: &str| {
        format!(
            "UPDATE docshard_catalog.chunks SET {what} WHERE collection_id = {id} \
             AND min = (SELECT min FROM {chunks} ORDER BY min {end} LIMIT 1)"
        )
    };
    let restore = format!("DELETE FROM {chunks}; INSERT INTO docshard_catalog.chunks SELECT * FROM saved");
    for (damage, kind) in [
        (update("max = '\\xff'", "DESC"), "RoutingTableMissingMaxKey"),
        (update("min = min || '\\x00'::bytea", "ASC"), "RoutingTableMissingMinKey"),
        (format!("DELETE FROM {chunks}"), "MissingRoutingTable"),
    ] {
        router.psql(&damage);
        let found = check(&cluster, &format!("'{NS}'"));
        assert!(found.iter().any(|one| one.kind == kind && one.repair.is_none()), "{damage}: {found:#?}");
        router.psql(&restore);
        check_nothing(&cluster, &damage);
    }
    let second = format!("(SELECT min FROM {chunks} ORDER BY min OFFSET 1 LIMIT 1)");
    let third = format!("(SELECT min FROM {chunks} ORDER BY min OFFSET 2 LIMIT 1)");
    router.psql(&format!("DELETE FROM {chunks} AND min = {second}"));
    undone(&cluster, router, "a gap", ("RoutingTableRangeGap", NS, ""), &restore);
    router.psql(&update(&format!("max = {third}"), "ASC"));
    undone(&cluster, router, "an overlap", ("RoutingTableRangeOverlap", NS, ""), &restore);
    router.psql(&format!("DELETE FROM docshard_catalog.placements WHERE collection_id = {id} AND shard_id <> 1"));
    let found = check(&cluster, "'test'");
    assert!(found.iter().filter(|one| one.kind == "ShardMissingCollectionRoutingInfo").count() == 2, "{found:#?}");
    router.psql("INSERT INTO docshard_catalog.placements SELECT * FROM placed ON CONFLICT DO NOTHING");
    check_nothing(&cluster, "placements");

    router.psql("SELECT docshard.add_shard_to_zone('shard0', 'A'); SELECT docshard.add_shard_to_zone('shard0', 'B')");
    router.psql(&format!("SELECT docshard.update_zone_key_range('{NS}', '{{\"k\": 0}}', '{{\"k\": 10}}', 'A')"));
    let key = |k: i64| format!("docshard_internal.shard_key('{{\"k\": {k}}}', '{{\"k\": 1}}')");
    router.psql(&format!(
        "INSERT INTO docshard_catalog.zone_ranges VALUES ('{NS}', {}, {}, '{{\"k\": 5}}', '{{\"k\": 20}}', 'B')",
        key(5),
        key(20)
    ));
    repaired(&cluster, "ranges of zones", &[("ZonesRangeOverlap", NS, "")]);
    router.psql("UPDATE docshard_catalog.zone_ranges SET min = '{\"other\": 0}'");
    let again = "UPDATE docshard_catalog.zone_ranges SET min = '{\"k\": 0}'";
    undone(&cluster, router, "a zone of another key", ("CorruptedZoneShardKey", NS, ""), again);

    router.psql(&format!(
        "UPDATE docshard_catalog.collections SET has_key_index = false, revision = revision + 1 WHERE id = {id}"
    ));
    repaired(&cluster, "no index of the shard key", &[("MissingShardKeyIndex", NS, "")]);
    router.psql(&format!("INSERT INTO docshard_catalog.views VALUES ('{NS}', 'test', 'other', '[]')"));
    let again = "DELETE FROM docshard_catalog.views";
    undone(&cluster, router, "a view of the same name", ("HiddenCollection", NS, ""), again);
    assert_eq!(count(&cluster, NS), 300);
}

#[test]
fn what_moves_and_changes_of_layout_leave_is_found_and_repaired() {
    let (mut cluster, id, _) = start();
    let service = cluster.shards[0].service_role();
    cluster.shards[0].psql(&format!("INSERT INTO docshard_data.capture VALUES ({id}, 99999, '', NULL)"));
    cluster.shards[0].psql(&format!(
        "CREATE TABLE docshard_data.m99998_staging (); ALTER TABLE docshard_data.m99998_staging OWNER TO {service}"
    ));
    repaired(&cluster, "a capture and a table", &[("LeftoverState", "", "shard0")]);

    // The row of a change is gone, as if the router had been restored to a time before it. The worker must not remove what the
    // change has left before it is looked for.
    cluster.router.switch_off("sweep");
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let mut client = cluster.router.client();
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"v\": 1}}')");
    let pending = thread::spawn(move || client.batch_execute(&reshard));
    cluster.router.await_fault("reshard.cloned");
    check_nothing(&cluster, "a change that runs");
    cluster.router.psql("DELETE FROM docshard_catalog.resharding");
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect_err("its row is gone");
    let copy: String = cluster
        .router
        .value("SELECT namespace FROM docshard_catalog.collections WHERE namespace LIKE '%.resharding.%'");
    let state = |shard| ("LeftoverState", "", shard);
    repaired(
        &cluster,
        "a change without its row",
        &[state("local"), state("shard0"), state("shard1"), ("LeftoverCopy", &copy, "")],
    );
    cluster.router.switch_on("sweep");

    // A change that nobody completes, as a shard is down.
    cluster.router.arm("reshard.cloned", Fault::Pause);
    let mut client = cluster.router.client();
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"v\": 1}}')");
    let pending = thread::spawn(move || client.batch_execute(&reshard));
    cluster.router.await_fault("reshard.cloned");
    cluster.shards[1].crash();
    cluster.router.release("reshard.cloned");
    pending.join().expect("a thread").expect_err("a shard is down");
    let mut found = Vec::new();
    wait_until("the change has ended", LONG, || {
        found = check(&cluster, "");
        found.iter().any(|one| one.kind == "UnfinishedChange")
    });
    let down = found.iter().find(|one| one.kind == "ShardUnreachable").expect("the shard");
    assert_eq!((down.shard.as_deref(), down.repair.as_deref()), (Some("shard1"), None));
    assert!(down.details["error"].as_str().is_some_and(|error| error.contains("shard1")), "{down:?}");
    cluster.shards[1].start();
    let repair = found.iter().find(|one| one.kind == "UnfinishedChange").and_then(|one| one.repair.clone());
    cluster.router.psql(&repair.expect("a repair"));
    check_nothing(&cluster, "a shard that was down");
    assert_eq!(count(&cluster, NS), 300);
}

#[test]
fn nothing_is_found_while_metadata_change() {
    let (cluster, ..) = start();
    cluster.router.psql("SELECT docshard.insert_select('test.d', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', i % 7) FROM generate_series(1, 300) i$$)");
    cluster.router.psql("SELECT docshard.shard_collection('test.d', '{\"_id\": \"hashed\"}')");
    cluster.router.psql("CREATE ROLE app");
    let over = AtomicBool::new(false);
    let run = |statements: &[String]| {
        let mut client = cluster.router.client();
        let mut done = 0;
        while !over.load(Ordering::Relaxed) {
            let sql = &statements[done % statements.len()];
            match client.batch_execute(sql) {
                Ok(()) => done += 1,
                // The collection changes its layout, or chunks of it move.
                Err(error) if error.code().is_some_and(|code| ["55006", "55P03"].contains(&code.code())) => {}
                Err(error) => {
                    over.store(true, Ordering::Relaxed);
                    panic!("{sql}: {error:?}");
                }
            }
        }
        done
    };
    let moves =
        ["shard1", "local", "shard0"].map(|to| format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', '{to}')"));
    let layouts = [r#"{"k": 1}"#, r#"{"_id": "hashed"}"#]
        .map(|key| format!("SELECT docshard.reshard_collection('test.d', '{key}')"));
    let definitions = [
        "SELECT docshard.create_collection('test.e')".to_owned(),
        "SELECT docshard.shard_collection('test.e', '{\"_id\": \"hashed\"}')".to_owned(),
        "SELECT docshard.create_index('test.e', '{\"x\": 1}')".to_owned(),
        "SELECT docshard.modify_collection('test.e', '{\"validator\": {\"x\": {\"$ne\": 1}}}')".to_owned(),
        "SELECT docshard.grant_access('app', '{\"read\": \"test\"}')".to_owned(),
        "SELECT docshard.drop_index('test.e', 'x_1')".to_owned(),
        "SELECT docshard.revoke_access('app')".to_owned(),
        "SELECT docshard.drop_collection('test.e')".to_owned(),
    ];
    thread::scope(|scope| {
        let threads = [scope.spawn(|| run(&moves)), scope.spawn(|| run(&layouts)), scope.spawn(|| run(&definitions))];
        for _ in 0..if is_thorough() { 20 } else { 5 } {
            let found = check(&cluster, "");
            if !found.is_empty() {
                over.store(true, Ordering::Relaxed);
            }
            assert!(found.is_empty(), "{found:#?}");
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        let done: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("it goes on")).collect();
        println!("moves, layouts and definitions: {done:?}");
        assert!(done.iter().all(|done| *done > 0), "{done:?}");
    });
    check_nothing(&cluster, "all changes");
}

#[test]
fn it_is_a_command_of_collections_databases_and_the_cluster() {
    let (cluster, _, index) = start();
    let mut client = cluster.router.client();
    let mut run = |db: &str, command: &str| -> Value {
        client.query_one("SELECT docshard.run_command($1, $2::text::json)", &[&db, &command]).expect(command).get(0)
    };
    for (db, command, place) in [
        ("test", r#"{"checkMetadataConsistency": "c"}"#, "test.c"),
        ("test", r#"{"checkMetadataConsistency": 1}"#, "test.$cmd.aggregate"),
        ("none", r#"{"checkMetadataConsistency": 1}"#, "none.$cmd.aggregate"),
        ("admin", r#"{"checkMetadataConsistency": 1, "checkIndexes": true}"#, "admin.$cmd.aggregate"),
    ] {
        let answer = run(db, command);
        assert_eq!(answer, json!({"cursor": {"firstBatch": [], "id": 0, "ns": place}, "ok": 1}), "{command}");
    }
    let answer = run("test", r#"{"checkMetadataConsistency": "none"}"#);
    assert_eq!((&answer["ok"], &answer["code"]), (&json!(0), &json!(26)), "{answer}");
    for shard in &cluster.shards {
        shard.psql(&format!("DROP INDEX docshard_data.i{index}"));
    }
    let answer = run("admin", r#"{"checkMetadataConsistency": 1, "cursor": {"batchSize": 1}}"#);
    let (first, id) = (&answer["cursor"]["firstBatch"][0], answer["cursor"]["id"].as_i64().expect("a number"));
    assert_eq!(
        (&first["type"], &first["details"]["shard"]),
        (&json!("InconsistentIndex"), &json!("shard0")),
        "{answer}"
    );
    assert_eq!(first["details"]["namespace"], json!(NS));
    assert!(first["repair"].as_str().is_some_and(|repair| repair.contains("accept_shard")), "{answer}");
    let answer = run("admin", &format!(r#"{{"getMore": {id}, "collection": "$cmd.aggregate"}}"#));
    assert_eq!(answer["cursor"]["nextBatch"][0]["details"]["shard"], "shard1", "{answer}");
    let without = run("test", r#"{"checkMetadataConsistency": 1, "checkIndexes": false}"#);
    assert_eq!(without["cursor"]["firstBatch"], json!([]), "{without}");
    assert_eq!(check(&cluster, "'test.c'").len(), 2);
    assert_eq!(check(&cluster, "'other'").len(), 0);
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").expect("a transaction");
    let error = client.query("SELECT * FROM docshard.check_metadata_consistency()", &[]).expect_err("an old snapshot");
    assert_eq!(error.code().map(|code| code.code()), Some("25001"), "{error:?}");
}
