//! Measures the private memory of router and shards while pipelines keep more documents than `work_mem` allows.

use docshard_tests::{Cluster, Node};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const NS: &str = "test.large";
const MB: u64 = 1 << 20;
/// `work_mem`, and `work_mem × hash_mem_multiplier`.
const SORT: u64 = 4 * MB;
const GROUP: u64 = 8 * MB;
/// The memory that a session may use besides its stages.
const BESIDE: u64 = 20 * MB;

/// A collection of this number of documents, with `bytes` of text in each, on three nodes.
fn cluster(documents: u32, bytes: u32) -> Cluster {
    let cluster = Cluster::spread(NS);
    for node in nodes(&cluster) {
        node.configure("work_mem = '4MB'\nhash_mem_multiplier = 2");
        node.psql("SELECT pg_reload_conf()");
    }
    const BATCH: u32 = 10_000;
    let mut client = cluster.router.client();
    for from in (0..documents).step_by(BATCH as usize) {
        let sql = format!(
            "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 'key', 'key ' || n * 7919 % {documents}, \
             'text', repeat(md5(n::text), {bytes} / 32)))) FROM generate_series({from}::int8, {to}) n",
            to = (from + BATCH).min(documents) - 1
        );
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    cluster
}

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.shards.iter().chain([&cluster.router])
}

/// The private memory of a process.
fn private(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    kilobytes.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Returns the processes at all nodes that run stages of pipelines or their finds.
fn sessions(cluster: &Cluster) -> Vec<i32> {
    let sql = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' \
               AND (query LIKE '%run_pipeline%' OR query LIKE '%docshard_data.c%' OR query LIKE '%docshard.aggregate%')";
    nodes(cluster).flat_map(|node| node.value::<Vec<i32>>(sql)).collect()
}

/// Runs a pipeline over a few documents, then over all, and checks how much the memory of each session grows.
fn check(cluster: &Cluster, pipeline: &str, results: i64, limit: u64) {
    let mut client = cluster.router.client();
    let run = |first: &str| {
        format!("SELECT count(*) FROM (SELECT docshard.aggregate('{NS}', '[{first}{pipeline}]')) AS results")
    };
    client.query_one(&run(r#"{"$match": {"_id": {"$lt": 600}}}, "#), &[]).unwrap();
    let before: BTreeMap<i32, u64> =
        sessions(cluster).into_iter().filter_map(|pid| Some((pid, private(pid)?))).collect();
    assert!(before.len() >= 3, "router and shards: {before:?}");
    let done = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut most = before.clone();
            while !done.load(Ordering::Relaxed) {
                for (pid, most) in &mut most {
                    *most = private(*pid).unwrap_or(0).max(*most);
                }
                thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let found = client.query_one(&run(""), &[]);
        done.store(true, Ordering::Relaxed);
        assert_eq!(found.unwrap().get::<_, i64>(0), results, "{pipeline}");
        sampler.join().unwrap()
    });
    let after: Vec<i32> = sessions(cluster);
    assert!(before.keys().all(|pid| after.contains(pid)), "the same sessions: {before:?} {after:?}");
    for (pid, most) in most {
        let growth = most - before[&pid];
        println!("{pipeline}: process {pid} grew by {} KB", growth >> 10);
        assert!(growth <= limit, "{pipeline}: process {pid} grew by {growth} bytes");
    }
}

fn groups(keys: u32) {
    let cluster = cluster(keys, 32);
    let results = i64::from(keys);
    // The first is divided and merged at the router. The second runs at the shards only.
    check(
        &cluster,
        r#"{"$group": {"_id": "$key", "n": {"$sum": 1}, "least": {"$min": "$text"}}}"#,
        results,
        GROUP + SORT + BESIDE,
    );
    check(
        &cluster,
        r#"{"$group": {"_id": {"k": "$k", "id": "$_id"}, "n": {"$sum": 1}}}"#,
        results,
        GROUP + SORT + BESIDE,
    );
}

fn sorts(documents: u32) {
    let cluster = cluster(documents, 1000);
    check(&cluster, r#"{"$unwind": "$text"}, {"$sort": {"key": 1}}"#, i64::from(documents), SORT + BESIDE);
    check(&cluster, r#"{"$sort": {"key": 1}}, {"$facet": {"n": [{"$count": "n"}]}}"#, 1, 2 * SORT + BESIDE);
}

fn windows(documents: u32) {
    let cluster = cluster(documents, 500);
    // One partition, whose documents are read several times. It needs a sort and a row store.
    let output = r#"{"all": {"$sum": "$k"}, "rest": {"$sum": "$k", "window": {"documents": ["current", "unbounded"]}},
        "near": {"$max": "$key", "window": {"documents": [-2000, 2000]}}, "line": {"$linearFill": {"$cond": [{"$in": ["$_id", [0, 7]]}, "$_id", null]}}}"#;
    check(
        &cluster,
        &format!(r#"{{"$setWindowFields": {{"sortBy": {{"_id": 1}}, "output": {output}}}}}, {{"$unset": "text"}}"#),
        i64::from(documents),
        2 * SORT + BESIDE,
    );
}

fn lookups(documents: u32) {
    let cluster = cluster(documents, 500);
    let lookup = |fields: &str, rest: &str| {
        format!(r#"{{"$lookup": {{"from": "large", {fields}, "as": "found"}}}}, {{"$unwind": "$found"}}{rest}"#)
    };
    let by = |local: &str, foreign: &str| {
        lookup(&format!(r#""localField": "{local}", "foreignField": "{foreign}""#), r#", {"$unset": "text"}"#)
    };
    // In batches: one document for each, and so many for each of 310 that only some of the 300 values fit into memory.
    check(&cluster, &by("_id", "_id"), i64::from(documents), GROUP + BESIDE);
    let with = |k: u32| (0..documents).filter(|n| n % 300 == k).count() as i64;
    let of_few = r#"{"$match": {"_id": {"$gte": 590, "$lt": 900}}}"#;
    let found = (590..900).map(|id| with(id % 300)).sum();
    check(&cluster, &format!("{of_few}, {}", by("k", "k")), found, GROUP + BESIDE);
    // A query for each document.
    let pipeline = r#"[{"$match": {"_id": {"$lt": 3}, "$expr": {"$lt": ["$k", "$$id"]}}}, {"$limit": 1}]"#;
    let each = lookup(&format!(r#""let": {{"id": "$_id"}}, "pipeline": {pipeline}"#), "");
    let of_some = format!(r#"{{"$match": {{"_id": {{"$lt": {}}}}}}}"#, documents / 20);
    check(&cluster, &format!("{of_some}, {each}"), i64::from(documents / 20 - 1), GROUP + BESIDE);
}

/// The first query for other documents makes the router keep the rest of the rows of all shards.
fn lookups_of_large(documents: u32) {
    let cluster = cluster(documents, 10_000);
    let lookup = r#"{"$lookup": {"from": "large", "localField": "k", "foreignField": "_id", "as": "found",
        "pipeline": [{"$unset": "text"}]}}"#;
    check(&cluster, lookup, i64::from(documents), GROUP + SORT + BESIDE);
}

/// The limit of 100 MiB is for the groups, however often a group's state changes.
#[test]
fn groups_without_disk_may_have_100_mb() {
    let cluster = cluster(40_000, 32);
    let mut client = cluster.router.client();
    let mut groups = |count: u32| {
        let group = format!(r#"{{"_id": {{"$mod": ["$_id", {count}]}}, "most": {{"$max": {{"$range": [0, 500]}}}}}}"#);
        let stages = format!(r#"[{{"$group": {group}}}, {{"$unset": "most"}}]"#);
        let sql = format!("SELECT docshard.aggregate('{NS}', '{stages}', '{{\"allowDiskUse\": false}}')");
        client.query(&sql, &[]).map(|rows| rows.len())
    };
    assert_eq!(groups(1_000).unwrap(), 1_000);
    let error = groups(20_000).unwrap_err();
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    assert!(detail.contains("error 292 "), "{error:?}");
}

/// The stages and the variables of `whenMatched` may be much larger than the documents of a batch.
#[test]
fn updates_with_large_variables_are_sent_in_parts() {
    const DOCUMENTS: u32 = 300;
    let cluster = cluster(DOCUMENTS, 32);
    let mut client = cluster.router.client();
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let peak = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim_end_matches(" kB");
        kilobytes.trim().parse::<u64>().unwrap() << 10
    };
    let megabyte = r#"{"$reduce": {"input": {"$range": [0, 20]}, "initialValue": "x", "in": {"$concat": ["$$value", "$$value"]}}}"#;
    let mut merge = |below: u32| {
        let merge = format!(
            r#"{{"into": "target", "let": {{"large": {megabyte}}}, "whenMatched": [{{"$set": {{"length": {{"$strLenBytes": "$$large"}}}}}}]}}"#
        );
        let stages = format!(r#"[{{"$match": {{"_id": {{"$lt": {below}}}}}}}, {{"$merge": {merge}}}]"#);
        client
            .batch_execute(&format!("SELECT docshard.aggregate('{NS}', '{stages}')"))
            .unwrap_or_else(|e| panic!("{e:?}"));
    };
    // The first one inserts the documents.
    merge(DOCUMENTS);
    merge(1);
    let before = peak();
    merge(DOCUMENTS);
    let growth = peak() - before;
    println!("{} KB for {DOCUMENTS} updates of a megabyte", growth >> 10);
    assert!(growth < 150 * MB, "{growth} bytes");
    let changed = format!("SELECT docshard.count_documents('test.target', '{{\"length\": {MB}}}')");
    assert_eq!(cluster.router.value::<i64>(&changed), i64::from(DOCUMENTS));
}

#[test]
fn lookups_of_large_documents_keep_to_their_memory() {
    lookups_of_large(10_000);
}

#[test]
fn lookups_of_many_documents_keep_to_their_memory() {
    lookups(100_000);
}

#[test]
fn windows_over_a_large_partition_keep_to_their_memory() {
    windows(100_000);
}

#[test]
fn groups_of_many_keys_keep_to_their_memory() {
    groups(500_000);
}

#[test]
fn sorts_of_many_documents_keep_to_their_memory() {
    sorts(200_000);
}

/// At full size: `make soak`.
#[test]
#[ignore = "takes minutes, and gigabytes of disk"]
fn soak_of_memory() {
    groups(5_000_000);
    windows(1_000_000);
    lookups(1_000_000);
    lookups_of_large(100_000);
    sorts(2_000_000);
}
