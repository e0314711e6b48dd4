//! Nodes with different versions of PostgreSQL in one cluster, and upgrades of a node to a newer version.
//!
//! Run by `make test-all`, which names the installations of all versions: see [`Installation`].

use docshard_tests::{Cluster, Installation, Node, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Two collections: `shop.things` has a chunk on `local` (`k` below 100), one on `shard0` (below 200) and one on `shard1`.
const PREPARE: &[&str] = &[
    "SELECT docshard.stop_balancer()",
    "SELECT docshard.enable_sharding('shop', 'local')",
    "SELECT docshard.shard_collection('shop.things', '{\"k\": 1}')",
    "SELECT docshard.create_index('shop.things', '{\"n\": 1, \"k\": -1}')",
    "SELECT docshard.create_index('shop.things', '{\"k\": 1, \"u\": 1}', '{\"unique\": true, \"sparse\": true}')",
    "SELECT docshard.create_index('shop.things', '{\"tags.$**\": 1}')",
    "SELECT docshard.create_index('shop.things', '{\"n\": \"hashed\"}')",
    "SELECT docshard.insert_many('shop.things', array_agg(jsonb_build_object('_id', k, 'k', k, 'n', k % 10, 'u', k,
       'tags', jsonb_build_object('a', jsonb_build_array(k % 3, k % 5))))) FROM generate_series(0, 299) k",
    "SELECT docshard.split_at('shop.things', '{\"k\": 100}')",
    "SELECT docshard.split_at('shop.things', '{\"k\": 200}')",
    "SELECT docshard.move_chunk('shop.things', '{\"k\": 100}', 'shard0')",
    "SELECT docshard.move_chunk('shop.things', '{\"k\": 200}', 'shard1')",
    "SELECT docshard.shard_collection('shop.hashed', '{\"_id\": \"hashed\"}')",
    "SELECT docshard.insert_many('shop.hashed', array_agg(jsonb_build_object('_id', k))) FROM generate_series(0, 99) k",
    "SELECT docshard.insert_one('shop.notes', '{\"_id\": 1, \"text\": \"unsharded\"}')",
];

/// Different queries with their expected answers.
fn answers() -> Vec<(&'static str, Value)> {
    let of_n = |n: i64| (0..30).rev().map(|i| json!(10 * i + n)).collect::<Value>();
    vec![
        ("SELECT to_jsonb(docshard.count_documents('shop.things'))", json!(300)),
        ("SELECT docshard.find_one('shop.things', '{\"k\": 50}')->'u'", json!(50)),
        ("SELECT docshard.find_one('shop.things', '{\"k\": 150}')->'u'", json!(150)),
        ("SELECT docshard.find_one('shop.things', '{\"k\": 250}')->'u'", json!(250)),
        (
            "SELECT jsonb_agg(d->'k') FROM docshard.find('shop.things', '{\"n\": 3}', '{\"sort\": {\"k\": -1}}') d",
            of_n(3),
        ),
        (
            "SELECT jsonb_agg(d->'k') FROM docshard.find('shop.things', '{}', '{\"sort\": {\"k\": 1}, \"skip\": 99, \"limit\": 3}') d",
            json!([99, 100, 101]),
        ),
        ("SELECT to_jsonb(docshard.count_documents('shop.things', '{\"tags.a\": 4}'))", json!(60)),
        ("SELECT jsonb_agg(d ORDER BY d) FROM docshard.distinct('shop.things', 'tags.a') d", json!([0, 1, 2, 3, 4])),
        ("SELECT to_jsonb(docshard.count_documents('shop.hashed', '{\"_id\": {\"$gte\": 90}}'))", json!(10)),
        ("SELECT docshard.find_one('shop.notes', '{}')->'text'", json!("unsharded")),
        ("SELECT docshard.check_collection('shop.things')::jsonb->'valid'", json!(true)),
        ("SELECT docshard.check_collection('shop.hashed')::jsonb->'valid'", json!(true)),
    ]
}

/// Writes on every shard, alone and in a transaction over all three, which are then undone.
const WRITES: &[&str] = &[
    "SELECT docshard.insert_many('shop.things', array_agg(jsonb_build_object('_id', 1000 + k, 'k', k, 'n', 77)))
       FROM generate_series(0, 299, 50) k",
    "SELECT docshard.update_many('shop.things', '{\"n\": 77}', '{\"$inc\": {\"n\": 1}, \"$push\": {\"tags\": 1}}')",
    "SELECT docshard.delete_many('shop.things', '{\"n\": 78}')",
    "BEGIN",
    "SELECT docshard.insert_one('shop.things', '{\"_id\": 2000, \"k\": 1}')",
    "SELECT docshard.update_one('shop.things', '{\"k\": 150}', '{\"$set\": {\"x\": {\"y\": [1, 2]}}}')",
    "SELECT docshard.find_one_and_update('shop.things', '{\"k\": 250}', '{\"$inc\": {\"x\": 1}}')",
    "COMMIT",
    "SELECT docshard.delete_one('shop.things', '{\"_id\": 2000, \"k\": 1}')",
    "SELECT docshard.update_many('shop.things', '{\"x\": {\"$exists\": true}}', '{\"$unset\": {\"x\": 1}}')",
];

/// Moves from every node to every other one, and back.
const MOVES: &[(i64, &str)] = &[
    (50, "shard0"),
    (50, "shard1"),
    (50, "local"),
    (150, "local"),
    (150, "shard1"),
    (250, "local"),
    (250, "shard0"),
    (150, "shard0"),
    (250, "shard1"),
];

fn run(node: &Node, statements: &[&str]) {
    let mut client = node.client();
    statements.iter().for_each(|sql| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}")));
}

fn answers_are_right(cluster: &Cluster, when: &str) {
    let mut client = cluster.router.client();
    for (sql, expected) in answers() {
        let found: Value = client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{when}: {sql}: {e:?}")).get(0);
        assert_eq!(found, expected, "{when}: {sql}");
    }
}

/// Reads, writes, moves and index builds.
fn works(cluster: &Cluster, when: &str) {
    answers_are_right(cluster, when);
    run(&cluster.router, WRITES);
    answers_are_right(cluster, when);
    for (k, shard) in MOVES {
        let sql = format!("SELECT docshard.move_chunk('shop.things', '{{\"k\": {k}}}', '{shard}')->'documents'");
        let moved: Value = cluster.router.value(&sql);
        assert_eq!(moved, json!(100), "{when}: {sql}");
    }
    run(
        &cluster.router,
        &[
            "SELECT docshard.create_index('shop.things', '{\"u\": -1}')",
            "SELECT docshard.drop_index('shop.things', 'u_-1')",
        ],
    );
    answers_are_right(cluster, when);
}

/// All pairs of versions, the older one first.
fn upgrades() -> impl Iterator<Item = (&'static Installation, &'static Installation)> {
    let all = Installation::all();
    assert!(all.len() > 1, "only PostgreSQL {} is here", all[0].major());
    all.iter().enumerate().flat_map(move |(at, &old)| all[at + 1..].iter().map(move |&new| (old, new)))
}

#[test]
fn nodes_of_different_versions_work_together() {
    let all = Installation::all();
    assert!(all.len() > 1, "only PostgreSQL {} is here", all[0].major());
    for at in 0..all.len() {
        let next = |by: usize| all[(at + by) % all.len()];
        let (router, shards) = (next(0), [next(1), next(2)]);
        let when = format!("router {}, shards {} and {}", router.major(), shards[0].major(), shards[1].major());
        println!("{when}");
        let cluster = Cluster::start_on(router, &shards);
        run(&cluster.router, PREPARE);
        works(&cluster, &when);
    }
}

/// The examples of a section of docs/operations.md: language and text.
fn examples(heading: &str) -> Vec<(String, String)> {
    let page = include_str!("../../docs/operations.md");
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let section = rest.split("\n## ").next().and_then(|rest| rest.split("\n### ").next()).expect("a section");
    let blocks = section.split("```").skip(1).step_by(2);
    let blocks = blocks.map(|block| block.split_once('\n').expect("a language"));
    // In a list they are indented.
    let text = |text: &str| text.lines().map(|line| line.trim_start().to_owned() + "\n").collect();
    blocks.map(|(language, block)| (language.to_owned(), text(block))).collect()
}

/// Follows docs/operations.md: shard1 is replaced by shard2, on a server of a newer version.
#[test]
fn a_shard_is_replaced_by_one_of_a_newer_version() {
    for (old, new) in upgrades() {
        let when = format!("{} to {}", old.major(), new.major());
        println!("{when}");
        let mut cluster = Cluster::start_on(old, &[old, old]);
        run(&cluster.router, PREPARE);
        cluster.add_server(new);
        let router = &cluster.router;
        let examples = examples("### By draining");
        assert_eq!(examples.len(), 1);
        let host = |node: &Node| format!("-h 127.0.0.1 -p {} -U postgres", node.port);
        let script = examples[0].1.replace("-h router.example docs", &format!("{} postgres", host(router))).replace(
            "host=db2.example dbname=docs",
            &format!("host=127.0.0.1 port={} dbname=postgres user=postgres", cluster.shards[2].port),
        );
        assert!(!script.contains("example"), "{script}");
        router.shell(old, &script);
        wait_until("shard1 is drained", Duration::from_secs(120), || {
            let state: Value = router.value("SELECT docshard.remove_shard('shard1')->'state'");
            state == json!("completed")
        });
        router.psql("SELECT docshard.stop_balancer()");
        cluster.shards[1].stop();
        answers_are_right(&cluster, &when);
        run(&cluster.router, WRITES);
        for shard in ["local", "shard0", "shard2"] {
            let sql = format!("SELECT docshard.move_chunk('shop.things', '{{\"k\": 250}}', '{shard}')");
            run(&cluster.router, &[&sql]);
        }
        answers_are_right(&cluster, &when);
    }
}

/// Follows docs/operations.md for one node of a cluster; the other nodes keep their version.
fn pg_upgrade(cluster: &mut Cluster, name: &str, new: &'static Installation) {
    let mut ran = 0;
    for (language, text) in examples("### By pg_upgrade") {
        match language.as_str() {
            "sql" if text.contains("take_over_cluster") && name != "router" => {}
            "sql" => drop(cluster.router.psql(&text)),
            "sh" => cluster.node(name).run_upgrade(new, &text),
            other => panic!("a block of {other}"),
        }
        ran += 1;
    }
    assert!(ran > 4, "only {ran} examples");
}

#[test]
fn nodes_are_upgraded_by_pg_upgrade() {
    let mut upgraded = 0;
    for (old, new) in upgrades() {
        if !Cluster::can_upgrade(old, new) {
            println!("SKIPPED: pg_upgrade from {} to {}, which fails without docshard too", old.major(), new.major());
            continue;
        }
        upgraded += 1;
        let mut cluster = Cluster::start_on(old, &[old, old]);
        run(&cluster.router, PREPARE);
        for name in ["shard1", "router", "shard0"] {
            let when = format!("{name} from {} to {}", old.major(), new.major());
            println!("{when}");
            pg_upgrade(&mut cluster, name, new);
            assert_eq!(cluster.node(name).value::<String>("SHOW server_version_num")[..2], new.major().to_string());
            run(&cluster.router, &["SELECT docshard.stop_balancer()"]);
            works(&cluster, &when);
        }
    }
    assert!(upgraded > 0, "pg_upgrade works between no two versions");
}
