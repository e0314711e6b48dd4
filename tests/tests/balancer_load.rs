//! The load of chunks: what is counted and shown, and the balancer that evens it out.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

const NS: &str = "t.c";
const LONG: Duration = Duration::from_secs(90);
const DOCUMENTS: i64 = 1000;

/// Documents `{_id, k, n}` in one chunk, on `shard0` of two shards.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    run(
        &cluster.router,
        &format!(
            "SELECT docshard.set_setting('balancer_interval_ms', '200'); SELECT docshard.set_setting('load_delay_s', '1'); SELECT docshard.remove_shard('local'); \
             SELECT docshard.enable_sharding('t', 'shard0'); SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}'); \
             SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'n', 0) FROM generate_series(1, {DOCUMENTS}) i$$)"
        ),
    );
    cluster
}

fn run(node: &Node, sql: &str) {
    node.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

/// The estimated reads and writes in a second of the chunks on a shard.
fn rates(cluster: &Cluster, shard: &str) -> (f64, f64) {
    let sql = "SELECT coalesce(sum(reads), 0), coalesce(sum(writes), 0) FROM docshard.hot_chunks \
               WHERE namespace = $1 AND shard = $2 AND min IS NOT NULL";
    let row = cluster.router.client().query_one(sql, &[&NS, &shard]).expect("the view");
    (row.get(0), row.get(1))
}

fn shards_with_chunks(cluster: &Cluster) -> i64 {
    cluster.router.value(&format!("SELECT count(DISTINCT shard) FROM docshard.chunks WHERE namespace = '{NS}'"))
}

fn moves(cluster: &Cluster) -> i64 {
    cluster.router.value("SELECT count(*) FROM docshard.migrations WHERE namespace LIKE 't.%'")
}

/// Reads and increments documents of keys up to `keys` until the end; returns the number of increments.
fn work(client: &mut Client, first: i64, keys: i64, end: &AtomicBool) -> i64 {
    let (mut key, mut done) = (first, 0);
    while !end.load(Ordering::Relaxed) {
        key = (key * 7 + 3) % keys + 1;
        let sql = format!(
            "SELECT docshard.find_one('{NS}', '{{\"k\": {key}}}'); \
             SELECT docshard.update_one('{NS}', '{{\"k\": {key}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
        );
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        done += 1;
    }
    done
}

#[test]
fn busy_chunks_are_shown_split_and_moved_if_the_balancer_evens_out_load() {
    let cluster = cluster();
    let (end, done) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for first in 1..=3 {
            let (end, done, cluster) = (&end, &done, &cluster);
            scope.spawn(move || {
                done.fetch_add(work(&mut cluster.router.client(), first, DOCUMENTS, end), Ordering::Relaxed)
            });
        }
        // The clients end also if an assertion fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&end);
        wait_until("the load is shown", LONG, || {
            let (reads, writes) = rates(&cluster, "shard0");
            reads > 30.0 && writes > 30.0
        });
        // By bytes the collection is even enough.
        assert_eq!((shards_with_chunks(&cluster), moves(&cluster)), (1, 0));
        run(&cluster.router, "SELECT docshard.set_setting('balancer_mode', 'load')");
        wait_until("a half has moved", LONG, || shards_with_chunks(&cluster) == 2);
        wait_until("the other shard has load", LONG, || rates(&cluster, "shard1").0 > 1.0);
    });
    let (why, count): (String, i64) = {
        let sql = "SELECT string_agg(DISTINCT reason, ' '), count(*) FROM docshard.migrations WHERE state = 'done' AND outcome = 'committed' AND namespace = $1";
        let row = cluster.router.client().query_one(sql, &[&NS]).expect("migrations");
        (row.get(0), row.get(1))
    };
    // Both shards settle after the first move.
    assert_eq!((why.as_str(), count), ("load", 1));
    let there: i64 = cluster.router.value(&format!(
        "SELECT documents FROM docshard.get_shard_distribution('{NS}', '{{\"count\": true}}') WHERE shard = 'shard1'"
    ));
    let share = there as f64 / DOCUMENTS as f64;
    assert!((0.2..0.8).contains(&share), "the median of even accesses divides documents, too: {share}");
    let total: i64 = cluster.router.value(&format!("SELECT sum((d ->> 'n')::int8)::int8 FROM docshard.find('{NS}') d"));
    assert_eq!(total, done.load(Ordering::Relaxed));
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}', '{{}}')")), DOCUMENTS);
}

#[test]
fn operations_count_for_the_chunks_that_they_are_for() {
    let cluster = cluster();
    let router = &cluster.router;
    run(router, &format!("SELECT docshard.stop_balancer(); SELECT docshard.split_at('{NS}', '{{\"k\": 500}}')"));
    run(router, &format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 500}}', 'shard1')"));
    let of = |what: &str| -> Vec<f64> {
        let sql =
            format!("SELECT {what} FROM docshard.hot_chunks WHERE namespace = '{NS}' ORDER BY min_key NULLS FIRST");
        router.client().query(&sql, &[]).expect("the view").iter().map(|row| row.get(0)).collect()
    };
    // The documents were inserted before they moved: what the donor has counted for the recipient's chunk does not count.
    assert!(matches!(of("writes")[..], [low] if low > 0.0), "{:?}", of("writes"));
    let times = |sql: &str| {
        let mut client = router.client();
        (0..200).for_each(|_| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}")));
    };
    // By key, by a range within one chunk, by an index, and over both chunks.
    for filter in [r#"{"k": 700}"#, r#"{"k": {"$gte": 700, "$lt": 710}}"#, r#"{"k": 700, "n": {"$gte": 0}}"#] {
        let before = of("reads").last().copied().unwrap_or(0.0);
        times(&format!("SELECT docshard.find('{NS}', '{filter}')"));
        let after = of("reads");
        assert!(after.len() == 2 && after[0] == 0.0 && after[1] > before + 1.0, "{filter}: {before} {after:?}");
    }
    times(&format!("SELECT docshard.find('{NS}', '{{\"k\": {{\"$gte\": 400, \"$lt\": 600}}}}')"));
    assert!(of("reads")[0] > 1.0, "{:?}", of("reads"));
    let pipeline = r#"[{"$match": {"k": 100}}, {"$group": {"_id": "$n", "all": {"$sum": 1}}}]"#;
    let before = of("reads")[0];
    times(&format!("SELECT docshard.aggregate('{NS}', '{pipeline}')"));
    assert!(of("reads")[0] > before + 1.0);
    // Updates by a filter on the key, and deletions.
    let before = of("writes").last().copied().unwrap_or(0.0);
    times(&format!(
        "SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$gte\": 700, \"$lt\": 702}}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
    ));
    assert!(of("writes")[1] > before + 1.0);
    // Statements over many chunks are shown apart.
    for k in [600, 650, 700, 750, 800, 850, 900, 950] {
        run(router, &format!("SELECT docshard.split_at('{NS}', '{{\"k\": {k}}}')"));
    }
    times(&format!("SELECT docshard.count_documents('{NS}', '{{\"n\": 5}}')"));
    let sql = format!(
        "SELECT count(*) FROM docshard.hot_chunks WHERE namespace = '{NS}' AND min IS NULL AND reads > 1 AND note ~ 'shard key'"
    );
    assert_eq!(router.value::<i64>(&sql), 2);
    let all: f64 = router.value(&format!("SELECT sum(share) FROM docshard.hot_chunks WHERE namespace = '{NS}'"));
    assert!((all - 100.0).abs() < 0.001, "{all}");
}

#[test]
fn a_hot_key_is_reported_and_stays() {
    let cluster = cluster();
    let router = &cluster.router;
    run(router, "SELECT docshard.set_setting('balancer_mode', 'load')");
    let mut client = router.client();
    let find = format!("SELECT docshard.find_one('{NS}', '{{\"k\": 7}}')");
    let note = format!("SELECT note FROM docshard.hot_chunks WHERE namespace = '{NS}' ORDER BY reads DESC LIMIT 1");
    // The inserts of the other documents lose their weight.
    let is_told = || -> bool {
        let row = router.client().query_opt(&note, &[]).expect("the view");
        row.and_then(|row| row.get::<_, Option<String>>(0)).is_some_and(|note| note.starts_with("one key has "))
    };
    wait_until("the key is reported", Duration::from_secs(180), || {
        (0..2000).for_each(|_| client.batch_execute(&find).expect("a find"));
        is_told()
    });
    // What is beside the key has been split off before that, or not; the chunk stays as it is, and where it is.
    let hottest = format!(
        "SELECT shard || min::text || max::text FROM docshard.hot_chunks WHERE namespace = '{NS}' ORDER BY reads DESC LIMIT 1"
    );
    let before: String = router.value(&hottest);
    (0..5000).for_each(|_| client.batch_execute(&find).expect("a find"));
    assert_eq!(router.value::<String>(&hottest), before);
}

#[test]
fn a_shard_that_does_not_count_says_so() {
    let mut cluster = cluster();
    cluster.node("shard1").configure("shared_preload_libraries = ''");
    let node = cluster.node("shard1");
    node.stop();
    node.start();
    let note = "SELECT note FROM docshard.hot_chunks WHERE namespace IS NULL AND shard = 'shard1'";
    let note: String = cluster.router.value(note);
    assert!(note.contains("not preloaded"), "{note}");
    // It can be reached no more.
    cluster.node("shard1").stop();
    let silent =
        "SELECT count(*) FROM docshard.hot_chunks WHERE namespace IS NULL AND shard = 'shard1' AND note IS NOT NULL";
    assert_eq!(cluster.router.value::<i64>(silent), 1);
}
