//! Sampled statements: which ones are sampled, how many, who may read them, and when they are forgotten.

use docshard_tests::{Cluster, wait_until};
use postgres::Client;
use serde_json::Value;
use std::time::{Duration, Instant};

const NS: &str = "test.sampled";
const LONG: Duration = Duration::from_secs(30);

/// Documents `{_id, k, n}`; keys `k` on three nodes.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    run(
        &cluster,
        &format!(
            "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'n', 0) FROM generate_series(0, 299) i$$)"
        ),
    );
    cluster
}

fn run(cluster: &Cluster, sql: &str) {
    cluster.router.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

fn configure(cluster: &Cluster, options: &str) {
    run(cluster, &format!("SELECT docshard.configure_query_analyzer('{NS}', '{options}')"));
}

/// The samples as `kind filter many`, after there are so many.
fn samples(cluster: &Cluster, number: i64) -> Vec<String> {
    let count = "SELECT count(*) FROM docshard_catalog.sampled_statements";
    wait_until(&format!("{number} samples"), LONG, || cluster.router.value::<i64>(count) >= number);
    let sql = "SELECT kind || ' ' || filter || ' ' || many FROM docshard_catalog.sampled_statements ORDER BY id";
    cluster.router.client().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Executes a statement, and waits until the next one is sampled again.
fn paced(client: &mut Client, sql: &str) {
    let rest = Instant::now() + Duration::from_millis(4);
    let _ = client.simple_query(sql);
    std::thread::sleep(rest.saturating_duration_since(Instant::now()));
}

#[test]
fn statements_of_each_kind_are_sampled() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    paced(&mut client, &format!("SELECT docshard.find_one('{NS}', '{{\"k\": 1}}')"));
    configure(&cluster, r#"{"mode": "full", "samplesPerSecond": 1000}"#);
    let long = "x".repeat(5000);
    for (function, arguments) in [
        ("find", r#"'{"k": 1}'"#),
        ("find_one", r#"'{"k": 2}'"#),
        ("count_documents", r#"'{"k": 3}'"#),
        ("distinct", r#"'n', '{"k": 4}'"#),
        ("aggregate", r#"'[{"$match": {"k": 5}}, {"$group": {"_id": "$n"}}]'"#),
        ("aggregate", r#"'[{"$match": {"k": 14}}, {"$limit": 3}]'"#),
        ("aggregate", r#"'[{"$match": {"k": 15}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]'"#),
        ("update_one", r#"'{"k": 6}', '{"$set": {"n": 1}}'"#),
        ("update_many", r#"'{"k": 7}', '{"$set": {"n": 1}}'"#),
        ("delete_one", r#"'{"k": 8}'"#),
        ("find_one_and_update", r#"'{"k": 9}', '{"$set": {"n": 1}}'"#),
        ("find", &format!(r#"'{{"k": "{long}"}}'"#)),
        ("explain", r#"'{"k": 10}'"#),
    ] {
        paced(&mut client, &format!("SELECT docshard.{function}('{NS}', {arguments})"));
    }
    // In a read-only transaction, and in one that is rolled back.
    paced(&mut client, &format!("BEGIN READ ONLY; SELECT docshard.find('{NS}', '{{\"k\": 11}}'); COMMIT"));
    paced(&mut client, &format!("BEGIN; SELECT docshard.delete_many('{NS}', '{{\"k\": 12}}'); ROLLBACK"));
    let wanted = [
        r#"find {"k": 1} true"#,
        r#"find {"k": 2} true"#,
        r#"count {"k": 3} true"#,
        r#"distinct {"k": 4} true"#,
        r#"aggregate {"k":5} true"#,
        r#"aggregate {"k":14} true"#,
        r#"aggregate {"k":15} true"#,
        r#"update {"k": 6} false"#,
        r#"update {"k": 7} true"#,
        r#"delete {"k": 8} false"#,
        r#"findAndModify {"k": 9} false"#,
        r#"find {"k": 11} true"#,
        r#"delete {"k": 12} true"#,
    ];
    assert_eq!(samples(&cluster, wanted.len() as i64), wanted);
    configure(&cluster, r#"{"mode": "off"}"#);
    let mut client = cluster.router.client();
    paced(&mut client, &format!("SELECT docshard.find('{NS}', '{{\"k\": 13}}')"));
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(samples(&cluster, 0).len(), wanted.len());
}

#[test]
fn no_more_statements_are_sampled_than_wanted_however_many_sessions_there_are() {
    let cluster = cluster();
    configure(&cluster, r#"{"mode": "full", "samplesPerSecond": 20}"#);
    let began = Instant::now();
    let find = format!(
        "SELECT count(*) FROM generate_series(1, 20) i, LATERAL docshard.find('{NS}', json_build_object('k', i))"
    );
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = cluster.router.client();
                while began.elapsed() < Duration::from_secs(3) {
                    client.batch_execute(&find).unwrap();
                }
            });
        }
    });
    let most = (began.elapsed().as_secs_f64() * 20.0).ceil() as usize + 1;
    std::thread::sleep(Duration::from_millis(2500));
    let found = samples(&cluster, 1).len();
    assert!(found <= most && found >= 20, "{found} samples, at most {most}");
}

#[test]
fn samples_stay_with_administrators_and_go_with_their_collection() {
    let cluster = cluster();
    configure(&cluster, r#"{"mode": "full", "samplesPerSecond": 1000}"#);
    let router = &cluster.router;
    let mut client = router.client();
    let find = format!("SELECT docshard.find('{NS}', '{{\"k\": 1}}')");
    paced(&mut client, &find);
    assert_eq!(samples(&cluster, 1).len(), 1);
    run(&cluster, &format!("CREATE ROLE reader; SELECT docshard.grant_access('reader', '{{\"read\": [\"{NS}\"]}}')"));
    client.batch_execute("SET ROLE reader").unwrap();
    paced(&mut client, &find);
    for sql in [
        "SELECT * FROM docshard_catalog.sampled_statements".to_owned(),
        format!("SELECT docshard.configure_query_analyzer('{NS}', '{{\"mode\": \"off\"}}')"),
    ] {
        assert_eq!(client.batch_execute(&sql).unwrap_err().code().unwrap().code(), "42501", "{sql}");
    }
    client.batch_execute("RESET ROLE").unwrap();
    assert_eq!(samples(&cluster, 2).len(), 2);
    // A change of layout keeps them, and goes on. While writers wait for it, it does nothing to samples: there may be many.
    let mut locking = router.client();
    locking.batch_execute("BEGIN; LOCK TABLE docshard_catalog.sampled_statements IN SHARE MODE").unwrap();
    run(&cluster, &format!("SELECT docshard.reshard_collection('{NS}', '{{\"n\": 1, \"k\": 1}}')"));
    let analysed: Value = router.value(&format!(
        "SELECT docshard.analyze_shard_key('{NS}', '{{\"k\": 1}}', '{{\"keyCharacteristics\": false}}') #> '{{readDistribution,sampleSize,total}}'"
    ));
    assert_eq!(analysed, 2);
    locking.batch_execute("COMMIT").unwrap();
    paced(&mut client, &find);
    assert_eq!(samples(&cluster, 3).len(), 3);
    let of = format!(
        "SELECT count(*) FROM docshard_catalog.sampled_statements s JOIN docshard_catalog.collections c ON c.id = s.collection_id \
         WHERE c.namespace = '{NS}'"
    );
    wait_until("all belong to the new layout", LONG, || router.value::<i64>(&of) == 3);
    // Old ones are forgotten; a changed setting makes the worker look.
    run(&cluster, "UPDATE docshard_catalog.sampled_statements SET at = at - interval '6 days'");
    run(&cluster, "SELECT docshard.set_setting('samples_days', '5')");
    wait_until("old samples are gone", LONG, || samples(&cluster, 0).is_empty());
    paced(&mut client, &find);
    assert_eq!(samples(&cluster, 1).len(), 1);
    run(&cluster, &format!("SELECT docshard.drop_collection('{NS}'), docshard.set_setting('samples_days', '4')"));
    wait_until("samples of the dropped collection are gone", LONG, || samples(&cluster, 0).is_empty());
}

#[test]
fn a_configuration_is_checked() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    run(&cluster, "SELECT docshard.create_collection('test.view', '{\"viewOn\": \"sampled\", \"pipeline\": []}')");
    for (ns, options, wanted) in [
        (NS, r#"{"mode": "full"}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "full", "samplesPerSecond": 0}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "full", "samplesPerSecond": -1}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "full", "samplesPerSecond": 1001}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "full", "samplesPerSecond": {"$numberDouble": "NaN"}}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "full", "samplesPerSecond": "1"}"#, "14 (TypeMismatch)"),
        (NS, r#"{"mode": "off", "samplesPerSecond": 1}"#, "72 (InvalidOptions)"),
        (NS, r#"{"mode": "half"}"#, "2 (BadValue)"),
        (NS, "{}", "40414"),
        ("test.none", r#"{"mode": "off"}"#, "26 (NamespaceNotFound)"),
        ("test.view", r#"{"mode": "off"}"#, "166 (CommandNotSupportedOnView)"),
        ("config.chunks", r#"{"mode": "off"}"#, "20 (IllegalOperation)"),
    ] {
        let sql = format!("SELECT docshard.configure_query_analyzer('{ns}', '{options}')");
        let error = client.batch_execute(&sql).unwrap_err();
        let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default().to_owned();
        assert!(detail.contains(wanted), "{ns} {options}: {error:?}");
    }
    let run = |rate: f64| -> Value {
        let command = format!(r#"{{"configureQueryAnalyzer": "{NS}", "mode": "full", "samplesPerSecond": {rate}}}"#);
        cluster.router.value(&format!("SELECT docshard.run_command('admin', '{command}')"))
    };
    let reply = run(5.0);
    assert_eq!(reply["ok"], 1.0, "{reply}");
    assert_eq!(reply["oldConfiguration"]["mode"], "off");
    // The rate is shown as it was given.
    let mut before = 5.0;
    for rate in [5.0, 51.0, 700.0, 1000.0, 0.5, 3.0] {
        let reply = run(rate);
        let shown = ["oldConfiguration", "newConfiguration"].map(|which| reply[which]["samplesPerSecond"].as_f64());
        assert_eq!(shown, [Some(before), Some(rate)], "{reply}");
        before = rate;
    }
}

/// The analysis of a key by statements that were sampled, and who may ask for it.
#[test]
fn a_key_is_analysed_by_sampled_statements() {
    let cluster = cluster();
    let router = &cluster.router;
    configure(&cluster, r#"{"mode": "full", "samplesPerSecond": 1000}"#);
    let mut client = router.client();
    for call in [
        r#"find('test.sampled', '{"k": 1}')"#,
        r#"find('test.sampled', '{"k": {"$gt": 100}}')"#,
        r#"find('test.sampled', '{"n": 0}')"#,
        r#"count_documents('test.sampled', '{"n": 0}')"#,
        r#"update_one('test.sampled', '{"k": 3}', '{"$set": {"n": 1}}')"#,
        r#"update_many('test.sampled', '{"n": 5}', '{"$set": {"m": 1}}')"#,
        r#"delete_one('test.sampled', '{"k": 4}')"#,
        r#"find_one_and_update('test.sampled', '{"k": 5}', '{"$set": {"k": 305}}')"#,
    ] {
        paced(&mut client, &format!("SELECT docshard.{call}"));
    }
    samples(&cluster, 8);
    let analyze = |key: &str| -> Value { router.value(&format!("SELECT docshard.analyze_shard_key('{NS}', '{key}')")) };
    let found = analyze(r#"{"k": 1}"#);
    let (reads, writes) = (&found["readDistribution"], &found["writeDistribution"]);
    assert_eq!(
        reads["sampleSize"],
        serde_json::json!({"total": 4, "find": 3, "aggregate": 0, "count": 1, "distinct": 0}),
        "{found}"
    );
    assert_eq!(
        [
            &reads["percentageOfSingleShardReads"],
            &reads["percentageOfMultiShardReads"],
            &reads["percentageOfScatterGatherReads"]
        ],
        [25.0, 25.0, 50.0]
    );
    assert_eq!(
        writes["sampleSize"],
        serde_json::json!({"total": 4, "update": 2, "delete": 1, "findAndModify": 1}),
        "{found}"
    );
    assert_eq!([&writes["percentageOfSingleShardWrites"], &writes["percentageOfScatterGatherWrites"]], [75.0, 25.0]);
    assert_eq!(writes["percentageOfShardKeyUpdates"], 25.0);
    assert_eq!(writes["percentageOfMultiWritesWithoutShardKey"], 25.0);
    assert_eq!(found["keyCharacteristics"]["isUnique"], true, "{found}");
    assert_eq!(analyze(r#"{"n": 1}"#)["writeDistribution"]["percentageOfShardKeyUpdates"], 25.0);
    let hashed = analyze(r#"{"k": "hashed"}"#);
    assert_eq!(hashed["readDistribution"]["percentageOfScatterGatherReads"], 75.0);
    assert!(hashed["bytesToMove"].as_u64().unwrap() > 0, "{hashed}");
    // The right to call it is not enough.
    run(&cluster, "CREATE ROLE adviser; SELECT docshard.grant_access('adviser', '{\"read\": [\"other.c\"]}')");
    run(&cluster, "GRANT EXECUTE ON FUNCTION docshard.suggest_shard_key TO adviser");
    client.batch_execute("SET ROLE adviser").unwrap();
    let suggest = format!("SELECT docshard.suggest_shard_key('{NS}')");
    assert_eq!(client.batch_execute(&suggest).unwrap_err().code().unwrap().code(), "42501");
    run(&cluster, &format!("SELECT docshard.grant_access('adviser', '{{\"read\": [\"{NS}\"]}}')"));
    client.batch_execute(&suggest).unwrap();
    client.batch_execute("RESET ROLE").unwrap();
    let best: Value = router.value(&format!("SELECT docshard.suggest_shard_key('{NS}') #> '{{keys,0}}'"));
    // A third of the updates may change it.
    assert_eq!(
        (&best["key"], &best["verdict"]),
        (&serde_json::json!({"k": 1}), &serde_json::json!("acceptable")),
        "{best}"
    );
}
