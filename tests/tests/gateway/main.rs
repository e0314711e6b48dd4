//! MongoDB's own clients over the gateway. Each test runs a program of this folder with pymongo or mongosh, which check the answers.

use docshard_tests::{Cluster, Gateway, wait_until};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdout;
use std::time::Duration;

/// Limit for everything that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

const PASSWORD: &str = "sécret, =ß€";

/// A cluster whose servers require passwords, with a superuser `boss` and roles that may write a
/// collection each: `ann` the collection `test.things`, `bob` another one.
fn cluster() -> Cluster {
    let cluster = Cluster::with_passwords(2);
    let router = &cluster.router;
    let create = |role: &str| {
        let sql = format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'");
        router.unlogged_client().batch_execute(&sql).expect(role);
    };
    ["boss", "ann", "bob"].into_iter().for_each(create);
    router.psql("ALTER ROLE boss SUPERUSER");
    router.psql("SELECT docshard.create_collection('test.things')");
    router.psql("SELECT docshard.create_collection('test.other')");
    router.psql(&format!("SELECT docshard.grant_access('ann', '{}')", json!({"write": "test.things"})));
    router.psql(&format!("SELECT docshard.grant_access('bob', '{}')", json!({"write": "test.other"})));
    cluster
}

/// The gateway's sessions at the router.
fn sessions(cluster: &Cluster, condition: &str) -> i64 {
    cluster.router.value(&format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'docshard-gateway' AND {condition}"
    ))
}

#[test]
fn pymongo_uses_a_cluster() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    for options in ["", "&compressors=zstd"] {
        let uri = gateway.uri("boss", PASSWORD) + options;
        assert!(gateway.python("crud.py", &[&uri]).contains("done"));
        cluster.router.psql("SELECT docshard.drop_database('shop')");
    }
}

#[test]
fn mongosh_uses_a_cluster() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.mongosh("shell.js", &gateway.uri("boss", PASSWORD)).contains("done"));
}

#[test]
fn mongosh_administers_a_cluster() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.mongosh("sharding.js", &gateway.uri("boss", PASSWORD)).contains("done"));
}

/// No password reaches the router, not even where it logs every statement with its parameters.
#[test]
fn pymongo_sends_other_commands() {
    let cluster = cluster();
    cluster.router.psql("ALTER SYSTEM SET log_statement = 'all'");
    cluster.router.psql("SELECT pg_reload_conf()");
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("commands.py", &[&gateway.uri("boss", PASSWORD)]).contains("done"));
    let log = cluster.router.log();
    let hex: String = "another password".bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(log.contains("run_command_bson"), "statements are logged");
    assert!(!log.contains("another password") && !log.contains(&hex) && !log.contains("15000:"));
}

#[test]
fn postgresql_checks_logins() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("logins.py", &["ann", PASSWORD]).contains("done"));
    assert!(!gateway.log().contains(PASSWORD));
    // Also a role's end.
    cluster.router.psql("ALTER ROLE ann VALID UNTIL '2001-01-01'");
    let late = std::panic::catch_unwind(|| gateway.python("logins.py", &["ann", PASSWORD]));
    assert!(late.is_err(), "the password has expired");
}

/// A router that asks the gateway for no password has not checked the client.
#[test]
fn a_router_that_trusts_everybody_is_refused() {
    let cluster = Cluster::start(1);
    cluster.router.psql("CREATE ROLE ann LOGIN PASSWORD 'secret'; SELECT docshard.create_collection('test.things')");
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("refused.py", &["ann", "secret"]).contains("18 the router does not ask for SCRAM-SHA-256"));
    assert!(gateway.python("refused.py", &["", ""]).contains("13 Command find requires authentication"));
    assert_eq!(sessions(&cluster, "true"), 0);
    // The operator can name a role for clients without a user.
    cluster.router.psql("SELECT docshard.grant_access('ann', '{\"read\": \"test.things\"}')");
    let gateway = Gateway::start(&cluster.router, &["--anonymous-role", "ann"]);
    assert!(gateway.python("refused.py", &["", ""]).contains("found None"));
    assert_eq!(sessions(&cluster, "usename <> 'ann'"), 0);
}

#[test]
fn clients_share_the_sessions_of_their_role() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--pool-size", "5"]);
    let mut program = gateway.start_python("sharing.py", &["ann", PASSWORD, "bob", PASSWORD, "40"]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    await_line(&mut output, "ready");
    // 40 clients are connected.
    assert!((1..=5).contains(&sessions(&cluster, "true")));
    assert_eq!(sessions(&cluster, "state <> 'idle'"), 0);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

fn await_line(output: &mut BufReader<ChildStdout>, wanted: &str) {
    let mut line = String::new();
    while line.trim() != wanted {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the program ends before it prints {wanted}");
    }
}

#[test]
fn both_connections_can_be_encrypted() {
    let cluster = Cluster::secure_servers(0);
    let router = &cluster.router;
    router.unlogged_client().batch_execute(&format!("CREATE ROLE boss SUPERUSER LOGIN PASSWORD '{PASSWORD}'")).unwrap();
    let verified = router.verified_address();
    let authority = verified.rsplit_once('=').unwrap().1;
    let beside = |name: &str| Path::new(authority).with_file_name(name).to_str().unwrap().to_owned();
    let address = format!("host=127.0.0.1 port={} dbname=postgres sslmode=require", router.port);
    let (certificate, key) = (beside("server.crt"), beside("server.key"));
    let options = ["--router-ca", authority, "--certificate", &certificate, "--key", &key];
    let gateway = Gateway::start_for(router, &address, &options);
    assert!(gateway.python("tls.py", &["boss", PASSWORD, authority]).contains("done"));
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'docshard-gateway'";
    assert!(router.value::<i64>(encrypted) > 0);
    // An authority that has not signed the router's certificate.
    let stranger = Gateway::start_for(router, &address, &["--router-ca", &certificate]);
    assert!(stranger.python("refused.py", &["boss", PASSWORD]).contains("no router can be reached"));
}

#[test]
fn no_bytes_stop_it() {
    let cluster = cluster();
    let mut gateway = Gateway::start(&cluster.router, &[]);
    let seed = fastrand::u32(..).to_string();
    assert!(gateway.python("hostile.py", &["ann", PASSWORD, &seed]).contains("done"));
    assert!(gateway.is_running());
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    assert!(peak_memory(&gateway) < 300_000, "its memory was {} kB", peak_memory(&gateway));
}

/// The most memory that it has had, in kB.
fn peak_memory(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok());
    peak.unwrap()
}

/// Twelve messages of 47 MB of one role would take 1.1 GB.
#[test]
fn clients_together_have_limits() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--message-memory", "256"]);
    assert!(gateway.python("limits.py", &["ann", PASSWORD, "bob", PASSWORD]).contains("done"));
    assert!(peak_memory(&gateway) < 600_000, "its memory was {} kB", peak_memory(&gateway));
}

#[test]
fn a_client_survives_a_restart_of_the_router() {
    let mut cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    let mut program = gateway.start_python("restart.py", &["ann", PASSWORD]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    await_line(&mut output, "ready");
    cluster.router.stop();
    cluster.router.start();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
}

#[test]
fn who_has_logged_in_with_a_withdrawn_password_is_out() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    let run = |sql: &str| cluster.router.unlogged_client().batch_execute(sql).expect("the role is changed");
    let create = "CREATE ROLE eve LOGIN PASSWORD 'leaked'";
    let grant = || cluster.router.psql("SELECT docshard.grant_access('eve', '{\"write\": \"test.things\"}')");
    run(create);
    grant();
    let mut program = gateway.start_python("withdrawn.py", &["eve", "leaked", "new"]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    await_line(&mut output, "logged in");
    run("ALTER ROLE eve PASSWORD 'new'");
    // As docs/clients.md says.
    cluster.router.psql(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
         WHERE usename = 'eve' AND application_name = 'docshard-gateway'",
    );
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "logged in anew");
    // PostgreSQL drops a role that has sessions.
    cluster.router.psql("SELECT docshard.revoke_access('eve', '{\"write\": \"test.things\"}')");
    run(&format!("DROP OWNED BY eve; DROP ROLE eve; {create}"));
    grant();
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
    let strangers = "SELECT count(*) FROM docshard.find('test.things', '{\"from\": {\"$exists\": true}}')";
    assert_eq!(cluster.router.value::<i64>(strangers), 0);
}

#[test]
fn a_client_that_leaves_ends_its_statement() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("leaving.py", &["boss", PASSWORD]).contains("done"));
    wait_until("its statement ends", PATIENCE, || sessions(&cluster, "state = 'active'") == 0);
}
