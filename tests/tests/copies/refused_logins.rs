//! A router whose login shards refuse: another router may have taken them over and replaced the password, or somebody has changed it by
//! mistake.

use super::{LOCK_TIMEOUT, PATIENCE};
use docshard_tests::logins::{NS, service_login, spread};
use docshard_tests::{Cluster, Node, wait_until};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A cluster with passwords, and with documents of the router itself. Its router has `LOCK_TIMEOUT`.
fn cluster(shards: usize) -> Cluster {
    let cluster = Cluster::with_passwords(shards);
    spread(&cluster, shards);
    cluster.router.psql(&format!("ALTER SYSTEM SET docshard.router_lock_timeout = '{LOCK_TIMEOUT}'"));
    cluster.router.psql("SELECT pg_reload_conf()");
    wait_until("the router has its shards' locks", PATIENCE, || {
        cluster.lock_holders().iter().all(|holder| *holder == Some(true))
    });
    cluster
}

/// Inserts a document on `local`; returns SQLSTATE, message and hint of the error.
fn insert(router: &Node) -> Result<(), (String, String, String)> {
    let sql = format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 1}}')");
    router.client().batch_execute(&sql).map_err(|error| {
        let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
        (error.code().code().to_owned(), error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
    })
}

/// Replaces the password of the router's role at a shard, and ends the router's sessions there.
fn change_password(cluster: &Cluster, shard: &Node) {
    let (service, _) = service_login(cluster, &shard.name);
    shard
        .unlogged_client()
        .batch_execute(&format!(
            "ALTER ROLE {service} PASSWORD 'mistake'; \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{service}'"
        ))
        .expect("another password");
}

/// More than the time after which the router stops writing.
const LONG_ENOUGH: Duration = Duration::from_secs(13);

/// For [`LONG_ENOUGH`], documents of the router itself can be written.
fn assert_goes_on(cluster: &Cluster) {
    let began = Instant::now();
    while began.elapsed() < LONG_ENOUGH {
        insert(&cluster.router).expect("a document of the router itself");
        sleep(Duration::from_millis(200));
    }
}

fn await_stop(cluster: &Cluster) {
    wait_until("the router stops writing", PATIENCE, || insert(&cluster.router).is_err());
    let (state, message, hint) = insert(&cluster.router).expect_err("it is locked out");
    assert_eq!(state, "25006", "{message}");
    assert!(message.contains("shards refuse its login") && message.contains("shard0"), "{message}");
    for said in ["take_over_cluster", "add_shard"] {
        assert!(hint.contains(said), "{said}: {hint}");
    }
}

/// A take-over with a superuser's login replaces the password of the router that it replaces.
#[test]
fn a_router_that_was_replaced_with_its_password_stops_writing() {
    let cluster = cluster(2);
    let twin = cluster.router.clone_disk();
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    let login = |shard: &Node| json!({"user": "postgres", "password": shard.password()});
    let options = json!({"logins": {"shard0": login(&cluster.shards[0]), "shard1": login(&cluster.shards[1])}});
    let sql = "SELECT to_jsonb(docshard.take_over_cluster($1::text::json))";
    let taken: Value = twin.0.unlogged_client().query_one(sql, &[&options.to_string()]).expect("a take-over").get(0);
    assert_eq!(taken["loginsRepaired"], json!(["shard0", "shard1"]), "{taken}");
    await_stop(&cluster);

    let mut router = cluster.router.client();
    for sql in [
        format!("SELECT docshard.update_many('{NS}', '{{\"k\": 1}}', '{{\"$set\": {{\"n\": 1}}}}')"),
        format!("SELECT docshard.delete_many('{NS}', '{{\"k\": 1}}')"),
        "SELECT docshard.create_collection('test.more')".to_owned(),
        "SELECT docshard.set_setting('chunk_size_mb', '7')".to_owned(),
        "SELECT docshard.insert_one('other.things', '{\"k\": 1}')".to_owned(),
    ] {
        let (state, message) = super::refused(&mut router, &sql);
        assert_eq!(state, "25006", "{sql}: {message}");
    }
    let status: String = cluster.router.value("SELECT docshard.status()");
    assert!(status.contains("shards refuse its login"), "{status}");
    // Its login is not repaired at a shard that another router has.
    let error = add_shard(&cluster, 0).expect_err("it has another router");
    assert!(error.contains("another router has taken over shard"), "{error}");
    // It still knows after a restart. The other one works.
    insert(&twin.0).expect("a document of the new router");
    twin.0.psql("SELECT docshard.create_collection('test.more')");
    let mut cluster = cluster;
    cluster.router.stop();
    cluster.router.start();
    assert_eq!(insert(&cluster.router).expect_err("it is locked out").0, "25006");
    sleep(LONG_ENOUGH);
    assert_eq!(insert(&cluster.router).expect_err("it is locked out").0, "25006");

    // It learns the reason from a shard that lets it in.
    let (service, password) = service_login(&cluster, "shard1");
    let unlogged = |sql: &str| cluster.shards[1].unlogged_client().batch_execute(sql).expect(sql);
    unlogged(&format!("ALTER ROLE {service} PASSWORD '{password}'"));
    wait_until("it knows that it is a copy", PATIENCE, || {
        insert(&cluster.router).is_err_and(|(_, message, _)| message.contains("belongs to a router with the epoch"))
    });
}

fn add_shard(cluster: &Cluster, shard: usize) -> Result<(), String> {
    let shard = &cluster.shards[shard];
    let conn = format!("host=127.0.0.1 port={} dbname=postgres", shard.port);
    let options = json!({"name": shard.name, "user": "postgres", "password": shard.password()}).to_string();
    let mut client = cluster.router.unlogged_client();
    let added = client.execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&conn, &options]);
    added.map(drop).map_err(|error| format!("{error:?}"))
}

/// A password that was changed by mistake stops writing only if no more shards accept the router than refuse it. The router goes on when a
/// login works again, whether it is repaired here or there.
#[test]
fn a_router_whose_password_was_changed_by_mistake_goes_on() {
    let cluster = cluster(2);
    change_password(&cluster, &cluster.shards[0]);
    assert_goes_on(&cluster);
    change_password(&cluster, &cluster.shards[1]);
    await_stop(&cluster);
    add_shard(&cluster, 0).expect("a repair");
    wait_until("the router writes", PATIENCE, || insert(&cluster.router).is_ok());
    assert_goes_on(&cluster);
    add_shard(&cluster, 1).expect("a repair");
    cluster.router.psql("SELECT docshard.create_collection('test.more')");
    let sql = format!("SELECT docshard.insert_many('{NS}', ARRAY['{{\"k\": 101}}', '{{\"k\": 201}}']::jsonb[])");
    cluster.router.psql(&sql);
}

/// With a single shard a mistake cannot be told from a take-over.
#[test]
fn a_router_that_its_only_shard_refuses_stops_until_the_login_works() {
    let cluster = cluster(1);
    let (service, password) = service_login(&cluster, "shard0");
    change_password(&cluster, &cluster.shards[0]);
    await_stop(&cluster);
    // Nothing is known while the shard does not answer.
    let mut cluster = cluster;
    cluster.shards[0].stop();
    sleep(Duration::from_secs(5));
    assert_eq!(insert(&cluster.router).expect_err("it is locked out").0, "25006");
    cluster.shards[0].start();
    let sql = format!("ALTER ROLE {service} PASSWORD '{password}'");
    cluster.shards[0].unlogged_client().batch_execute(&sql).expect("the password");
    wait_until("the router writes", PATIENCE, || insert(&cluster.router).is_ok());
    cluster.router.psql("SELECT docshard.create_collection('test.more')");
    // A shard that is down does not stop the router.
    cluster.shards[0].stop();
    assert_goes_on(&cluster);

    // If it is lost while it refuses the router, the router can go on without it.
    cluster.shards[0].start();
    change_password(&cluster, &cluster.shards[0]);
    await_stop(&cluster);
    cluster.shards[0].stop();
    cluster.router.client().batch_execute("SELECT docshard.take_over_cluster()").expect_err("no shard answers");
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    assert_goes_on(&cluster);
    cluster.router.psql("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')");
}
