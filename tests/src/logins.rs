//! Clusters whose servers require passwords: the logins between their nodes, and everything secret in them.

use crate::cluster::{Cluster, Node};
use crate::moving::nodes;
use postgres::Client;
use serde_json::Value;
use std::time::Duration;

/// The collection.
pub const NS: &str = "test.things";

/// Limit for everything that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a collection on `local` and on the shards: keys from `100 * (n + 1)` are on `shard<n>`.
///
/// # Panics
/// If a statement fails.
pub fn spread(cluster: &Cluster, shards: usize) {
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.enable_sharding('test', 'local')");
    router.psql(&format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    for n in 0..shards {
        let k = 100 * (n + 1);
        router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": {k}}}')"));
        router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', 'shard{n}')"));
    }
    for k in (0..=shards).map(|n| 100 * n) {
        router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {k}, \"k\": {k}, \"n\": 0}}')"));
    }
}

/// Creates a role that logs in to the router, grants it access, and returns its password.
///
/// # Panics
/// If a statement fails.
pub fn create_role(cluster: &Cluster, role: &str, grants: &Value) -> String {
    let password = format!("password-of-{role}");
    cluster
        .router
        .unlogged_client()
        .batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'"))
        .expect(role);
    if !grants.is_null() {
        cluster.router.psql(&format!("SELECT docshard.grant_access('{role}', '{grants}')"));
    }
    password
}

/// The SQLSTATE of a statement that must fail.
///
/// # Panics
/// If it succeeds.
pub fn sqlstate_of(client: &mut Client, sql: &str) -> String {
    let error = client.batch_execute(sql).expect_err(sql);
    error.code().unwrap_or_else(|| panic!("{sql}: {error}")).code().to_owned()
}

/// The SQLSTATE of a connection that must be refused.
///
/// # Panics
/// If it is accepted.
pub fn sqlstate_of_login(result: Result<Client, postgres::Error>) -> String {
    match result {
        Ok(_) => panic!("it is accepted"),
        Err(error) => error.code().unwrap_or_else(|| panic!("{error}")).code().to_owned(),
    }
}

/// User and password of the router's login to a shard.
pub fn service_login(cluster: &Cluster, shard: &str) -> (String, String) {
    let option = |name: &str| -> String {
        cluster.router.value(&format!(
            "SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions)
              WHERE srvname = 'docshard_{shard}' AND usename = 'postgres' AND option_name = '{name}'"
        ))
    };
    (option("user"), option("password"))
}

/// A session on a shard with the router's login.
///
/// # Panics
/// If the login fails.
pub fn service_session(cluster: &Cluster, shard: &Node) -> Client {
    let (user, password) = service_login(cluster, &shard.name);
    shard.try_client_with(&user, &password).unwrap_or_else(|e| panic!("{} as {user}: {e}", shard.name))
}

/// The collection's table on shards, qualified.
pub fn table(cluster: &Cluster) -> String {
    cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
}

/// All passwords, verifiers and secrets that the nodes know at present.
///
/// # Panics
/// If a query fails.
pub fn secrets(cluster: &Cluster) -> Vec<String> {
    let mut all = Vec::new();
    for node in nodes(cluster) {
        all.extend(node.password().map(str::to_owned));
        let mut ask = |sql: &str| {
            let rows = node.client().query(sql, &[]).unwrap_or_else(|e| panic!("{}: {sql}: {e}", node.name));
            all.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        };
        ask("SELECT rolpassword FROM pg_authid");
        ask("SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions) WHERE option_name = 'password'");
        if node.value::<bool>("SELECT to_regclass('docshard_data.service') IS NOT NULL") {
            ask("SELECT secret FROM docshard_data.service");
            ask("SELECT password FROM docshard_catalog.rotation");
        }
    }
    all
}

/// Asserts that no node has logged a secret, and that the nodes log statements at all.
///
/// # Panics
/// If one has.
pub fn assert_not_logged(cluster: &Cluster, secrets: &[String]) {
    assert!(secrets.len() > 10, "only {} secrets", secrets.len());
    for node in nodes(cluster) {
        let log = node.log();
        assert!(log.contains("LOG:  statement: ") && log.contains("connection authorized"), "{}", node.name);
        for secret in secrets {
            assert!(secret.len() >= 12, "too short to be told from other text: {secret}");
            let found = log.lines().find(|line| line.contains(secret.as_str()));
            assert!(found.is_none(), "{}: {found:?}", node.name);
        }
        let found = log.lines().find(|line| line.contains("SCRAM-SHA-256$"));
        assert!(found.is_none(), "{}: {found:?}", node.name);
    }
}
