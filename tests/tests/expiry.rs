//! The worker deletes expired documents (`expireAfterSeconds`) on every shard, and no others.

use docshard_tests::{Cluster, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn ids(cluster: &Cluster, ns: &str) -> Vec<String> {
    let sql = format!(
        "SELECT coalesce(array_agg(doc ->> '_id' ORDER BY doc ->> '_id'), '{{}}') FROM docshard.find('{ns}') AS doc"
    );
    cluster.router.value(&sql)
}

#[test]
fn expired_documents_go_away_on_every_shard() {
    let cluster = Cluster::start(2);
    let mut client = cluster.router.client();
    let date = |from_now: &str| {
        format!(
            "jsonb_build_object('$date', to_char(now() AT TIME ZONE 'UTC' + '{from_now}', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))"
        )
    };
    let (past, recent, future) = (date("-2 hours"), date("-10 minutes"), date("2 hours"));
    for sql in [
        "SELECT docshard.set_setting('ttl_interval_s', '1')".to_owned(),
        "SELECT docshard.stop_balancer()".to_owned(),
        "SELECT docshard.enable_sharding('ttl', 'shard0')".to_owned(),
        "SELECT docshard.shard_collection('ttl.c', '{\"k\": 1}')".to_owned(),
        "SELECT docshard.split_at('ttl.c', '{\"k\": 10}')".to_owned(),
        "SELECT docshard.move_chunk('ttl.c', '{\"k\": 10}', 'shard1')".to_owned(),
        // All documents twice, once on each shard.
        format!(
            "SELECT docshard.insert_many('ttl.c', array_agg(doc || jsonb_build_object('k', k, '_id', k || name))) \
             FROM (VALUES (1), (11)) AS shard (k), (VALUES \
                 ('past', jsonb_build_object('at', {past})), ('recent', jsonb_build_object('at', {recent})), \
                 ('future', jsonb_build_object('at', {future})), ('none', '{{}}'), ('null', '{{\"at\": null}}'), \
                 ('text', '{{\"at\": \"2001-01-01\"}}'), ('number', '{{\"at\": 5}}'), ('elsewhere', jsonb_build_object('on', {past})), \
                 ('one_past', jsonb_build_object('at', jsonb_build_array({future}, {past}, 7))), \
                 ('all_future', jsonb_build_object('at', jsonb_build_array({future})))) AS d (name, doc)"
        ),
        "SELECT docshard.create_index('ttl.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 3600}')".to_owned(),
    ] {
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let stay = ["all_future", "elsewhere", "future", "none", "null", "number", "recent", "text"];
    let expected: Vec<String> = ["11", "1"].iter().flat_map(|k| stay.map(|name| format!("{k}{name}"))).collect();
    wait_until("what has expired is gone", PATIENCE, || ids(&cluster, "ttl.c").len() <= expected.len());
    let mut sorted = expected.clone();
    sorted.sort();
    let mut found = ids(&cluster, "ttl.c");
    found.sort();
    assert_eq!(found, sorted);

    // Documents that expire later are deleted later, even if nothing else happens. After the index is dropped none are deleted.
    client.batch_execute("SELECT docshard.drop_index('ttl.c', 'at_1')").unwrap();
    client
        .batch_execute("SELECT docshard.create_index('ttl.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 60}')")
        .unwrap();
    wait_until("recent ones are gone", PATIENCE, || ids(&cluster, "ttl.c").len() == expected.len() - 2);
    client.batch_execute("SELECT docshard.drop_indexes('ttl.c')").unwrap();
    client
        .batch_execute(&format!(
            "SELECT docshard.insert_one('ttl.c', jsonb_build_object('_id', 'late', 'k', 1, 'at', {past}))"
        ))
        .unwrap();
    client
        .batch_execute("SELECT docshard.create_index('ttl.d', '{\"at\": 1}', '{\"expireAfterSeconds\": 0}')")
        .unwrap();
    client
        .batch_execute(&format!("SELECT docshard.insert_one('ttl.d', jsonb_build_object('_id', 'mark', 'at', {past}))"))
        .unwrap();
    wait_until("a later round", PATIENCE, || ids(&cluster, "ttl.d").is_empty());
    assert!(ids(&cluster, "ttl.c").contains(&"late".to_owned()));

    // With a partial index only documents in the index expire. The setting `notablescan` does not prevent that.
    cluster.router.psql("ALTER SYSTEM SET docshard.notablescan = on");
    cluster.router.psql("SELECT pg_reload_conf()");
    for sql in [
        format!(
            "SELECT docshard.insert_many('ttl.p', ARRAY[jsonb_build_object('_id', 'done', 'at', {past}, 'done', true), \
               jsonb_build_object('_id', 'open', 'at', {past}), jsonb_build_object('_id', 'early', 'at', {future}, 'done', true)])"
        ),
        "SELECT docshard.create_index('ttl.p', '{\"at\": 1}', \
           '{\"expireAfterSeconds\": 0, \"hidden\": true, \"partialFilterExpression\": {\"done\": true}}')"
            .to_owned(),
    ] {
        client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    wait_until("what is done is gone", PATIENCE, || ids(&cluster, "ttl.p").len() == 2);
    assert_eq!(ids(&cluster, "ttl.p"), ["early", "open"]);
}

/// The worker must not wait for locks of transactions that only the worker itself ends, such as those that a crash left
/// prepared.
#[test]
fn what_holds_up_a_delete_does_not_hold_up_the_worker() {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.set_setting('ttl_interval_s', '1')",
        "SELECT docshard.enable_sharding('ttl', 'shard0')",
        "SELECT docshard.create_index('ttl.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 3600}')",
        "SELECT docshard.insert_one('ttl.c', jsonb_build_object('_id', 1, 'at', jsonb_build_object('$date', \
           to_char(now() AT TIME ZONE 'UTC' - '3590 s'::interval, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))))",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    let table: String = cluster.router.value("SELECT \"table\" FROM docshard.collections");
    let mut holder = cluster.shards[0].client();
    holder.batch_execute(&format!("BEGIN; SELECT FROM {table} FOR UPDATE")).unwrap();
    wait_until("the delete gives up", PATIENCE, || cluster.router.log_tail(50).contains("expire by at_1"));
    assert_eq!(ids(&cluster, "ttl.c"), ["1"]);
    holder.batch_execute("ROLLBACK").unwrap();
    wait_until("it is gone", PATIENCE, || ids(&cluster, "ttl.c").is_empty());
}

/// A document that cannot be deleted does not keep those that expired before it.
#[test]
fn what_expired_earlier_is_deleted_though_a_delete_fails() {
    let cluster = Cluster::start(1);
    cluster.router.configure("docshard.worker_timeout = '3s'");
    cluster.router.psql("SELECT pg_reload_conf()");
    cluster.router.psql(
        "SELECT docshard.set_setting('ttl_interval_s', '3600'); SELECT docshard.enable_sharding('ttl', 'shard0');
         SELECT docshard.insert_many('ttl.c', array_agg(jsonb_build_object('_id', n, 'at', jsonb_build_object('$date',
           to_char(now() AT TIME ZONE 'UTC' - n * interval '10 days', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))))) FROM generate_series(1, 40) AS n",
    );
    cluster.router.psql("SELECT docshard.create_index('ttl.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 315360000}')");
    let mut holder = cluster.router.client();
    holder
        .batch_execute("BEGIN; SELECT docshard.update_one('ttl.c', '{\"_id\": 1}', '{\"$set\": {\"held\": 1}}')")
        .expect("a lock");
    cluster.router.psql("UPDATE docshard_catalog.indexes SET expire_after_s = 60");
    cluster.router.psql("SELECT docshard.set_setting('ttl_interval_s', '1')");
    wait_until("older documents are gone", PATIENCE, || ids(&cluster, "ttl.c").len() <= 2);
    assert!(ids(&cluster, "ttl.c").contains(&"1".to_owned()));
    holder.batch_execute("ROLLBACK").expect("the lock is released");
    wait_until("the last document is gone", PATIENCE, || ids(&cluster, "ttl.c").is_empty());
}

#[test]
fn documents_expire_on_a_server_without_shards_too() {
    let cluster = Cluster::start(0);
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.set_setting('ttl_interval_s', '1')",
        "SELECT docshard.insert_one('ttl.c', '{\"_id\": 1, \"at\": {\"$date\": \"2020-01-01T00:00:00Z\"}}')",
        "SELECT docshard.insert_one('ttl.c', '{\"_id\": 2, \"at\": {\"$date\": \"2920-01-01T00:00:00Z\"}}')",
        "SELECT docshard.create_index('ttl.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 1}')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    wait_until("it is gone", PATIENCE, || ids(&cluster, "ttl.c") == ["2"]);
}
