//! The foundation of all other tests: servers start, survive a crash, and leave nothing behind.

use docshard_tests::{Cluster, is_alive, wait_until};
use std::process::Command;
use std::time::Duration;

#[test]
fn every_node_preloads_and_creates_the_extension() {
    let cluster = Cluster::servers(2);
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        assert_eq!(node.value::<String>("SELECT current_setting('shared_preload_libraries')"), "docshard");
        node.psql("CREATE EXTENSION docshard CASCADE");
        let version: String = node.value("SELECT extversion FROM pg_extension WHERE extname = 'docshard'");
        assert_eq!(version, env!("CARGO_PKG_VERSION"), "the installed extension is another version");
    }
}

#[test]
fn a_killed_node_comes_back_with_what_was_committed() {
    let mut cluster = Cluster::servers(1);
    let shard = &mut cluster.shards[0];
    let mut client = shard.client();
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    client.batch_execute("BEGIN; INSERT INTO t VALUES (2)").unwrap();
    let (pid, port) = (shard.pid().unwrap(), shard.port);

    shard.kill9();
    assert!(!is_alive(pid));
    wait_until("the session notices", Duration::from_secs(20), || client.simple_query("SELECT 1").is_err());
    assert!(shard.try_client().is_err());

    shard.start();
    assert_eq!(shard.port, port);
    assert_eq!(shard.value::<i64>("SELECT sum(n) FROM t"), 1);

    shard.stop();
    shard.start();
    assert_eq!(shard.value::<i64>("SELECT sum(n) FROM t"), 1);
}

/// An environment variable that makes [`a_process_that_starts_servers_and_dies`] start servers and die.
const DIE: &str = "DOCSHARD_TESTS_DIE";

#[test]
fn no_server_outlives_the_process_that_started_it() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "a_process_that_starts_servers_and_dies"])
        .env(DIE, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let pid = stdout.lines().find_map(|line| line.split("postmaster ").nth(1)).expect("it printed the pid");
    let pid: u32 = pid.trim().parse().unwrap();
    assert!(!output.status.success());
    wait_until("the server ends", Duration::from_secs(20), || !is_alive(pid));
}

#[test]
fn a_process_that_starts_servers_and_dies() {
    if std::env::var_os(DIE).is_none() {
        return;
    }
    let cluster = Cluster::servers(0);
    println!("postmaster {}", cluster.router.pid().unwrap());
    std::process::abort();
}
