//! Writes that drivers send again are applied once, whatever is killed meanwhile.

use crate::{PASSWORD, PATIENCE, await_line, cluster, sessions};
use docshard_tests::{Cluster, Gateway, wait_until};
use std::io::{BufReader, Write};
use std::process::{Child, ChildStdout};
use std::time::Duration;

/// The clients of a test, and their output.
fn start(gateway: &Gateway, other: u16) -> (Child, BufReader<ChildStdout>) {
    let mut program = gateway.start_python("once.py", &["boss", PASSWORD, &other.to_string(), "4"]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    await_line(&mut output, "ready");
    (program, output)
}

/// Ends the clients, which check their writes.
fn finish((mut program, _output): (Child, BufReader<ChildStdout>)) {
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(program.wait().unwrap().success());
}

/// A collection with chunks on all shards, which are found by `_id`.
fn shard(cluster: &Cluster) {
    cluster.router.psql("SELECT docshard.stop_balancer(); SELECT docshard.drop_collection('test.things')");
    cluster.router.psql("SELECT docshard.shard_collection('test.things', '{\"_id\": \"hashed\"}')");
}

fn move_a_chunk(cluster: &Cluster, round: usize) {
    let to = ["local", "shard0", "shard1"][round % 3];
    let of = format!(
        "SELECT docshard.move_range(namespace, min::json, max::json, '{to}') FROM docshard.chunks
         WHERE namespace = 'test.things' AND shard <> '{to}' ORDER BY min_key LIMIT 1"
    );
    cluster.router.psql(&of);
}

#[test]
#[cfg(feature = "fault_points")]
fn an_answer_is_lost() {
    let cluster = cluster();
    shard(&cluster);
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("retries.py", &["boss", PASSWORD]).contains("done"));
}

#[test]
fn gateways_are_killed_while_chunks_move() {
    let cluster = cluster();
    shard(&cluster);
    let mut gateways = [Gateway::start(&cluster.router, &[]), Gateway::start(&cluster.router, &[])];
    let clients = start(&gateways[0], gateways[1].port);
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        let killed = &mut gateways[round % 2];
        let address = format!("127.0.0.1:{}", killed.port);
        killed.kill();
        move_a_chunk(&cluster, round);
        *killed = Gateway::start(&cluster.router, &["--listen", &address]);
    }
    finish(clients);
}

#[test]
fn the_routers_sessions_are_killed_while_chunks_move() {
    let cluster = cluster();
    shard(&cluster);
    let gateways = [Gateway::start(&cluster.router, &[]), Gateway::start(&cluster.router, &[])];
    let clients = start(&gateways[0], gateways[1].port);
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        cluster.router.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard-gateway' AND state = 'active'",
        );
        move_a_chunk(&cluster, round);
    }
    // The clients go on, so the gateways open sessions again.
    wait_until("there are sessions again", PATIENCE, || sessions(&cluster, "true") > 0);
    finish(clients);
}

#[test]
fn the_router_crashes() {
    let mut cluster = cluster();
    shard(&cluster);
    let gateways = ["60", "60"].map(|hold| Gateway::start(&cluster.router, &["--hold-timeout", hold]));
    let clients = start(&gateways[0], gateways[1].port);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        cluster.router.kill9();
        cluster.router.start();
    }
    finish(clients);
}
