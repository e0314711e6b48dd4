//! An update that changes no indexed value creates a heap-only tuple, and no index entries. PostgreSQL allows that only if no index
//! mentions a changed column; docshard removes the document from that list for one update, after comparing the keys of every
//! index (`src/storage/rows/heap_only.rs`).
//!
//! A wrong comparison would leave an index without a row. amcheck detects that here, while clients change the same few documents,
//! one and many at a time, indexes are built and dropped, a chunk moves, and VACUUM prunes and freezes.

use docshard_tests::moving::{NS, PATIENCE, create, move_chunk, owner, sqlstate, table};
use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const DURATION: Duration = Duration::from_secs(12);
/// The number of documents; the first half is the moving chunk.
const DOCUMENTS: i64 = 200;
/// The number of documents that single updates change: few, so that their tuples form long chains.
const HOT: i64 = 12;

/// Keys and options of permanent indexes.
const STAYING: &[(&str, &str)] = &[
    (r#"{"v": 1}"#, "{}"),
    (r#"{"w": -1, "v": 1}"#, "{}"),
    (r#"{"v": "hashed"}"#, "{}"),
    (r#"{"optional": 1}"#, r#"{"sparse": true}"#),
    (r#"{"w": 1}"#, r#"{"partialFilterExpression": {"flag": true}}"#),
    (r#"{"tags": 1}"#, "{}"),
    (r#"{"k": 1, "tags": 1, "u": 1}"#, r#"{"unique": true}"#),
];
/// Keys and options of indexes that are built and dropped during the test.
const COMING: &[(&str, &str)] = &[
    (r#"{"n": 1}"#, "{}"),
    (r#"{"flag": 1, "w": 1}"#, "{}"),
    (r#"{"other": 1}"#, r#"{"partialFilterExpression": {"v": {"$gt": 3}}}"#),
];

/// A random update; only the first two kinds change no permanent index.
fn change(random: &mut fastrand::Rng) -> Value {
    let (few, many) = (random.i64(0..8), random.i64(0..1000));
    match random.u8(0..10) {
        0..4 => json!({"$inc": {"n": 1}}),
        4 => json!({"$set": {"other": "x".repeat(random.usize(0..300))}}),
        5 => json!({"$set": {"v": few}}),
        6 => json!({"$set": {"w": many}, "$inc": {"n": 1}}),
        7 => json!({"$set": {"flag": random.bool()}}),
        8 => json!({"$set": {"tags": [few, many, "x"]}}),
        _ if random.bool() => json!({"$unset": {"optional": ""}}),
        _ => json!({"$set": {"optional": few}}),
    }
}

/// Runs a statement; false if it conflicts with another transaction, which this test ignores.
fn run(client: &mut Client, sql: &str) -> bool {
    match client.batch_execute(sql) {
        Ok(()) => true,
        Err(error) if ["40001", "40P01"].contains(&sqlstate(&error)) => false,
        Err(error) => panic!("{sql}: {error:?}"),
    }
}

fn update(client: &mut Client, random: &mut fastrand::Rng, many: bool) {
    let change = change(random);
    if many {
        let from = random.i64(0..DOCUMENTS);
        let filter = json!({"k": {"$gte": from, "$lt": from + 40}});
        run(client, &format!("SELECT docshard.update_many('{NS}', '{filter}', '{change}')"));
    } else {
        // Half of them are in the moving chunk.
        let k = random.i64(0..HOT) + if random.bool() { 0 } else { DOCUMENTS / 2 };
        let filter = json!({"k": k, "_id": k});
        run(client, &format!("SELECT docshard.update_one('{NS}', '{filter}', '{change}')"));
    }
}

/// Checks the collection's table on a shard with amcheck, and all its valid b-trees: each must have an entry for every row.
fn check(client: &mut Client, shard: &str, table: &str) -> usize {
    let corrupt = client.query(&format!("SELECT blkno, offnum, msg FROM verify_heapam('{table}')"), &[]);
    let corrupt = corrupt.unwrap_or_else(|error| panic!("{shard}: {error:?}"));
    assert!(corrupt.is_empty(), "{shard}: {corrupt:?}");
    let indexes = format!(
        "SELECT c.relname::text, c.oid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = '{table}'::regclass AND i.indisvalid AND a.amname = 'btree'"
    );
    let indexes = client.query(&indexes, &[]).expect("the indexes");
    for index in &indexes {
        let (name, oid): (String, u32) = (index.get(0), index.get(1));
        if let Err(error) = client.batch_execute(&format!("SELECT bt_index_check({oid}, heapallindexed => true)")) {
            let dropped: bool = client
                .query_one("SELECT NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = $1 AND indisvalid)", &[&oid])
                .expect("the catalog")
                .get(0);
            assert!(dropped, "{shard}: {name}: {error:?}");
        }
    }
    indexes.len()
}

/// The number of heap-only updates of the collection's table, and of all updates.
fn updates(shard: &Node, table: &str) -> (i64, i64) {
    let sql = format!("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_all_tables WHERE relid = '{table}'::regclass");
    let row = shard.client().query_one(&sql, &[]).expect("statistics");
    (row.get(0), row.get(1))
}

/// True if there were enough heap-only updates, and enough others.
fn has_both((hot, all): (i64, i64)) -> bool {
    hot > 100 && all - hot > 100
}

#[test]
fn indexes_hold_every_row_whatever_is_done_to_it() {
    let cluster = Cluster::start(2);
    create(
        &cluster,
        "shard0",
        DOCUMENTS,
        "'n', 0, 'v', k % 8, 'w', k, 'u', k, 'tags', jsonb_build_array(k)",
        [DOCUMENTS / 2],
    );
    let table = table(&cluster);
    let mut client = cluster.router.client();
    move_chunk(&mut client, DOCUMENTS / 2, "shard1").expect("a move");
    for (keys, options) in STAYING {
        let sql = format!("SELECT docshard.create_index('{NS}', '{keys}', '{options}')");
        client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    for shard in &cluster.shards {
        shard.client().batch_execute("CREATE EXTENSION amcheck").expect("it is installed");
    }
    let (ended, builds, moves, vacuums) =
        (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let goes_on = || !ended.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let clients: Vec<_> = [false, false, false, true]
            .into_iter()
            .enumerate()
            .map(|(seed, many)| {
                let (mut client, mut random) = (cluster.router.client(), fastrand::Rng::with_seed(seed as u64));
                scope.spawn(move || {
                    while goes_on() {
                        update(&mut client, &mut random, many);
                    }
                })
            })
            .collect();
        let administrator = scope.spawn(|| {
            let mut client = cluster.router.client();
            for (keys, options) in COMING.iter().cycle().take_while(|_| goes_on()) {
                let create = format!("SELECT docshard.create_index('{NS}', '{keys}', '{options}')");
                let name: String =
                    client.query_one(&create, &[]).unwrap_or_else(|error| panic!("{create}: {error:?}")).get(0);
                builds.fetch_add(1, Ordering::Relaxed);
                let to = if owner(&cluster.router, 0) == "shard0" { "shard1" } else { "shard0" };
                if move_chunk(&mut client, 0, to).is_ok() {
                    moves.fetch_add(1, Ordering::Relaxed);
                }
                let drop = format!("SELECT docshard.drop_index('{NS}', '{name}')");
                // It may be chosen to end a deadlock with an update of documents on both shards.
                while !run(&mut client, &drop) {}
            }
        });
        let maintenance: Vec<_> = cluster
            .shards
            .iter()
            .map(|shard| {
                let (table, vacuums) = (&table, &vacuums);
                scope.spawn(move || {
                    let mut client = shard.client();
                    for options in ["", "(FREEZE)"].into_iter().cycle().take_while(|_| goes_on()) {
                        client.batch_execute(&format!("VACUUM {options} {table}")).expect("VACUUM");
                        vacuums.fetch_add(1, Ordering::Relaxed);
                        check(&mut client, &shard.name, table);
                    }
                })
            })
            .collect();
        let began = Instant::now();
        let all = || clients.iter().chain(&maintenance).chain([&administrator]);
        // A busy machine needs more time for as many updates.
        let is_enough = || cluster.shards.iter().all(|shard| has_both(updates(shard, &table)));
        while (began.elapsed() < DURATION || began.elapsed() < PATIENCE && !is_enough())
            && !all().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(100));
        }
        ended.store(true, Ordering::Relaxed);
    });
    let done = [&builds, &moves, &vacuums].map(|count| count.load(Ordering::Relaxed));
    assert!(done.iter().all(|count| *count > 1), "index builds, moves, VACUUMs: {done:?}");
    for shard in &cluster.shards {
        wait_until("updates of both kinds are counted", PATIENCE, || {
            let (hot, all) = updates(shard, &table);
            eprintln!("{}: {hot} heap-only updates of {all}", shard.name);
            has_both((hot, all))
        });
        let indexes = check(&mut shard.client(), &shard.name, &table);
        assert!(indexes >= 6, "{}: the primary key and five more: {indexes}", shard.name);
    }
    // amcheck supports only b-trees: an index over arrays is compared with the documents by the results of finds.
    for value in (0..8).map(|value| json!(value)).chain([json!("x")]) {
        let count = |hint: &str| -> i64 {
            let sql =
                format!("SELECT docshard.count_documents('{NS}', '{{\"tags\": {value}}}', '{{\"hint\": {hint}}}')");
            cluster.router.value(&sql)
        };
        assert_eq!(count(r#""tags_1""#), count(r#"{"$natural": 1}"#), "tags: {value}");
    }
}

/// From PostgreSQL 16 on, an update that changes only values in summarizing indexes (BRIN) is heap-only, but still writes to these
/// indexes.
#[test]
fn a_summarizing_index_gets_what_heap_only_updates_write() {
    const SOME: i64 = 40;
    let cluster = Cluster::start(1);
    create(&cluster, "shard0", SOME, "'n', 0", []);
    let (shard, table) = (&cluster.shards[0], table(&cluster));
    let mut client = shard.client();
    client
        .batch_execute(&format!(
            "CREATE INDEX summary ON {table} USING brin (((doc ->> 'n')::int8)); SET enable_seqscan = off"
        ))
        .expect("PostgreSQL's own index");
    for k in 0..SOME {
        cluster.router.psql(&format!(
            "SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$set\": {{\"n\": {}}}}}')",
            1000 + k
        ));
    }
    let found = format!("SELECT count(*) FROM {table} WHERE (doc ->> 'n')::int8 >= 1000");
    let plan = client.query(&format!("EXPLAIN {found}"), &[]).expect("a plan");
    assert!(plan.iter().any(|line| line.get::<_, String>(0).contains("summary")), "{plan:?}");
    assert_eq!(client.query_one(&found, &[]).expect("a count").get::<_, i64>(0), SOME);
    let summarizing: bool = shard.value("SELECT current_setting('server_version_num')::int >= 160000");
    wait_until("the updates are counted", PATIENCE, || updates(shard, &table).1 == SOME);
    assert_eq!(updates(shard, &table).0 > 0, summarizing, "heap-only updates");
}
