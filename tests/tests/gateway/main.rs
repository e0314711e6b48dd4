//! MongoDB's own clients over the gateway. Each test runs a program of this folder with pymongo, mongosh or
//! Node, which checks the answers.

mod once;

use docshard_tests::{Authority, Cluster, Gateway, Node, wait_until};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ChildStdout;
use std::time::Duration;

/// Limit for everything that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

const PASSWORD: &str = "sécret, =ß€";

/// A cluster whose servers require passwords, with a superuser `boss`, an `app` that may do what MongoDB's `readWrite` allows, and roles that
/// may write a collection each: `ann` the collection `test.things`, `bob` another one.
fn cluster() -> Cluster {
    let cluster = Cluster::with_passwords(2);
    let router = &cluster.router;
    let create = |role: &str| {
        let sql = format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'");
        router.unlogged_client().batch_execute(&sql).expect(role);
    };
    ["boss", "app", "ann", "bob"].into_iter().for_each(create);
    router.psql("ALTER ROLE boss SUPERUSER");
    router.psql("SELECT docshard.create_collection('test.things')");
    router.psql("SELECT docshard.create_collection('test.other')");
    router.psql(&format!(
        "SELECT docshard.grant_access('app', '{}')",
        json!({"own": ["blog", "files", "node", "shop", "test"]})
    ));
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
        let uri = gateway.uri("app", PASSWORD) + options;
        assert!(gateway.python("crud.py", &[&uri]).contains("done"));
        cluster.router.psql("SELECT docshard.drop_database('shop')");
    }
}

/// Order of fields and 64-bit integers: on both shards, after moves, and after statements of SQL.
#[test]
fn what_a_driver_stores_comes_back() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.shard_collection('shop.orders', '{\"_id\": 1}')");
    for (at, shard) in [(100, "shard0"), (200, "shard1")] {
        router.psql(&format!("SELECT docshard.split_at('shop.orders', '{{\"_id\": {at}}}')"));
        router.psql(&format!("SELECT docshard.move_chunk('shop.orders', '{{\"_id\": {at}}}', '{shard}')"));
    }
    let gateway = Gateway::start(router, &[]);
    let uri = gateway.uri("boss", PASSWORD);
    assert!(gateway.python("order.py", &[&uri]).contains("done"));
    for (at, shard) in [(0, "shard1"), (100, "local"), (200, "shard0")] {
        router.psql(&format!("SELECT docshard.move_chunk('shop.orders', '{{\"_id\": {at}}}', '{shard}')"));
    }
    assert!(gateway.python("order.py", &[&uri, "again"]).contains("done"));
    // What SQL has added comes last, and the rest stays.
    router.psql("SELECT docshard.update_many('shop.orders', '{}', '{\"$set\": {\"A\": 1}}')");
    router.psql("SELECT docshard.update_many('shop.orders', '{}', '{\"$unset\": {\"A\": 1}}')");
    assert!(gateway.python("order.py", &[&uri, "again"]).contains("done"));
}

#[test]
fn mongosh_uses_a_cluster() {
    let cluster = cluster();
    let plum = json!({"_id": 2, "name": "plum", "price": 0.4, "tags": ["ripe", "blue"]});
    cluster.router.psql(&format!("SELECT docshard.insert_one('shop.fruit', '{plum}')"));
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.mongosh("shell.js", &gateway.uri("boss", PASSWORD)).contains("done"));
}

/// At a pseudo-terminal, as a person uses it.
#[test]
fn mongosh_runs_at_a_terminal() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    let home = cluster.router.scratch_file("home");
    std::fs::create_dir(&home).unwrap();
    let shell = Gateway::mongosh_path();
    let arguments = ["boss", PASSWORD, shell.to_str().unwrap(), home.to_str().unwrap()];
    let mut program = gateway.start_python("terminal.py", &arguments);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    await_line(&mut output, "runs");
    wait_until("its statement runs", PATIENCE, || sessions(&cluster, "state = 'active'") > 0);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    await_line(&mut output, "interrupted");
    wait_until("its statement ends", PATIENCE, || sessions(&cluster, "state = 'active'") == 0);
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
}

#[test]
fn mongosh_administers_a_cluster() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.mongosh("sharding.js", &gateway.uri("boss", PASSWORD)).contains("done"));
}

#[test]
fn programs_of_node_use_a_cluster() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    for program in ["node.js", "mongoose.js"] {
        assert!(gateway.node(program, &gateway.uri("app", PASSWORD)).contains("done"), "{program}");
    }
}

#[test]
fn pymongo_stores_files() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("gridfs.py", &[&gateway.uri("app", PASSWORD)]).contains("done"));
}

/// No password reaches the router, and no verifier its log, where it logs every statement with its parameters.
#[test]
fn pymongo_sends_other_commands() {
    let cluster = cluster();
    let settings = [
        ("log_statement", "'all'"),
        ("log_min_duration_statement", "0"),
        ("log_min_error_statement", "'debug5'"),
        ("log_parameter_max_length_on_error", "-1"),
    ];
    for (name, value) in settings {
        cluster.router.psql(&format!("ALTER SYSTEM SET {name} = {value}"));
    }
    cluster.router.psql("SELECT pg_reload_conf()");
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("commands.py", &[&gateway.uri("boss", PASSWORD)]).contains("done"));
    let log = cluster.router.log();
    // Parameters are logged as bytea.
    let hex = |text: &str| -> String { text.bytes().map(|byte| format!("{byte:02x}")).collect() };
    let shows = |text: &str| log.contains(text) || log.contains(&hex(text));
    assert!(log.contains("fastpath function call") && shows("usersInfo") && shows("updateUser"), "commands are logged");
    for secret in ["another password", "hidden password", "SCRAM-SHA-256$15000", "15000:"] {
        assert!(!shows(secret), "{secret} is in the log");
    }
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

#[test]
fn names_and_definitions_are_checked() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("names.py", &["boss", PASSWORD, "ann", PASSWORD]).contains("done"));
}

/// A cursor's client does not wait for others' commands while other sessions are idle, and cursors are spread over the sessions.
#[test]
fn commands_leave_sessions_with_cursors_alone() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--pool-size", "8", "--pool-timeout", "5"]);
    assert!(gateway.python("cursor_sessions.py", &["ann", PASSWORD, "bob", PASSWORD]).contains("done"));
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

/// PostgreSQL says for which roles a certificate is enough: by a map of the gateway's user at a socket, or of its own certificate.
#[test]
fn postgresql_decides_who_logs_in_by_certificate() {
    let cluster = Cluster::secure_servers(0);
    let router = &cluster.router;
    let verified = router.verified_address();
    let root = Path::new(verified.rsplit_once('=').unwrap().1);
    let (authority, folder) = (Authority::of(root), root.parent().unwrap().to_str().unwrap());
    let file = |name: &str| format!("{folder}/{name}");
    let elsewhere = root.with_file_name("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let of_clients = "extendedKeyUsage = clientAuth";
    Authority::new(&elsewhere).certify("ann", "/CN=ann", of_clients);
    let long = format!("/CN={}", "x".repeat(64));
    for (name, subject) in [
        ("ann", "/O=Shop, Ltd/CN=ann"),
        ("jörg", "/CN=jörg"),
        ("bob", "/CN=bob"),
        ("unmapped", "/CN=unmapped"),
        ("ghost", "/CN=ghost"),
        ("two", "/CN=ann/CN=ann"),
        ("none", "/O=ann"),
        ("long", &long),
        ("gateway", "/CN=gateway"),
    ] {
        authority.certify(name, subject, of_clients);
    }
    let (roles, mapped) = (["ann", "jörg", "bob", "unmapped"], ["ann", "jörg", "ghost"]);
    for role in roles {
        let sql = format!("CREATE ROLE \"{role}\" LOGIN PASSWORD '{PASSWORD}'");
        router.unlogged_client().batch_execute(&sql).unwrap();
    }
    router.psql("SELECT docshard.create_collection('test.things')");
    for role in roles {
        router.psql(&format!("SELECT docshard.grant_access('{role}', '{}')", json!({"write": "test.things"})));
    }
    let scram = "local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
    let configure = |setting: &str, lines: &str| {
        std::fs::write(router.psql(&format!("SHOW {setting}")).trim(), lines).unwrap();
        router.psql("SELECT pg_reload_conf()");
    };
    let user = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let maps = mapped.map(|role| format!("gateway {} {role}\ngateway gateway {role}\n", user.trim())).concat();
    configure("ident_file", &maps);
    router.psql(&format!("ALTER SYSTEM SET ssl_ca_file = '{}'", root.display()));
    let tcp = format!("host=127.0.0.1 port={} dbname=postgres sslmode=require", router.port);
    let socket =
        format!("host={} port={} dbname=postgres", router.psql("SHOW unix_socket_directories").trim(), router.port);
    let (certificate, key) = (file("server.crt"), file("server.key"));
    let (own, own_key, root) = (file("gateway.crt"), file("gateway.key"), file("root.crt"));
    let clients = ["--certificate", &certificate, "--key", &key, "--client-ca", &root];
    let routers = ["--router-ca", &root, "--router-certificate", &own, "--router-key", &own_key];
    for (address, options) in [(&socket, clients.to_vec()), (&tcp, [clients, routers].concat())] {
        let roles = "ann,jörg,unmapped,ghost";
        let own =
            format!("local all {roles} peer map=gateway\nhostssl all {roles} 127.0.0.1/32 cert map=gateway\n{scram}");
        configure("hba_file", &own);
        let gateway = Gateway::start_for(router, address, &options);
        let mut program = gateway.start_python("certificates.py", &[folder, PASSWORD]);
        let mut output = BufReader::new(program.stdout.take().unwrap());
        await_line(&mut output, "logged in");
        assert!(gateway.log().contains("its pg_hba.conf must let the gateway in as a role with a certificate"));
        assert!(sessions(&cluster, "usename = 'ann'") > 0);
        let uri = format!(
            "mongodb://127.0.0.1:{}/?tls=true&tlsCAFile={root}&tlsCertificateKeyFile={}&authMechanism=MONGODB-X509",
            gateway.port,
            file("ann.pem")
        );
        assert!(gateway.mongosh("certificate.js", &uri).contains("done"));
        // Withdrawn, as docs/clients.md says.
        configure("hba_file", scram);
        router.psql(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
             WHERE usename = 'ann' AND application_name = 'docshard-gateway'",
        );
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        await_line(&mut output, "done");
        assert!(program.wait().unwrap().success());
    }
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

/// Random bytes and mutated messages for DOCSHARD_SOAK_SECONDS, with a new seed unless one is given.
#[test]
#[ignore = "runs as long as it is told to: make soak SECONDS=600"]
fn soak() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let seconds = number("DOCSHARD_SOAK_SECONDS").unwrap_or(60).to_string();
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| fastrand::u32(..1_000_000)).to_string();
    let cluster = cluster();
    let mut gateway = Gateway::start(&cluster.router, &[]);
    let arguments = ["ann", PASSWORD, "bob", PASSWORD, &seconds, &seed];
    println!("{}", gateway.python("mutations.py", &arguments));
    assert!(gateway.is_running());
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    assert!(peak_memory(&gateway) < 300_000, "its memory was {} kB", peak_memory(&gateway));
    // Nor has a session of a server crashed.
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        assert!(!node.log().contains("was terminated by signal"), "{}", node.log());
    }
    wait_until("sessions come back", PATIENCE, || unclean(&cluster).is_empty());
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

/// 20 clients of one role run commands that do not end.
#[test]
fn a_role_leaves_sessions_to_others() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--pool-size", "8"]);
    let mut program = gateway.start_python("hog.py", &["ann", PASSWORD, "bob", PASSWORD]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    await_line(&mut output, "ready");
    wait_until("it uses its part", PATIENCE, || sessions(&cluster, "usename = 'ann' AND state = 'active'") == 6);
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert_eq!(sessions(&cluster, "usename = 'ann' AND state = 'active'"), 6);
    input.write_all(b"\n").unwrap();
    assert!(program.wait().unwrap().success());
    wait_until("its statements end", PATIENCE, || sessions(&cluster, "state = 'active'") == 0);
}

/// The gateway opens the sessions of these clients itself, and no more than they use.
#[test]
fn clients_without_a_user_share_sessions() {
    let cluster = cluster();
    cluster.router.psql("ALTER SYSTEM SET log_connections = on");
    cluster.router.psql("SELECT pg_reload_conf()");
    let file = cluster.router.scratch_file("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let options = ["--anonymous-role", "ann", "--router-password-file", file, "--pool-size", "8"];
    let gateway = Gateway::start(&cluster.router, &options);
    assert!(gateway.python("anonymous.py", &["60"]).contains("done"));
    let log = cluster.router.log();
    let opened = log.lines().filter(|line| line.contains("connection authorized: user=ann")).count();
    assert!((1..=6).contains(&opened), "{opened} sessions were opened");
}

#[test]
fn an_address_leaves_connections_to_others() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--max-connections", "80", "--max-unauthenticated", "40"]);
    assert!(gateway.python("crowd.py", &["ann", PASSWORD]).contains("done"));
    assert!(gateway.log().contains("too many connections"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let values: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(values[0], values[1], "the limit is raised");
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

/// Sessions of the gateway that are not as they were before: in a transaction, or with locks, or settings of their own.
fn unclean(cluster: &Cluster) -> String {
    cluster.router.value(
        "SELECT coalesce(string_agg(concat_ws(' ', pid, state, backend_xmin, locktype, mode), ','), '')
         FROM pg_stat_activity LEFT JOIN pg_locks USING (pid)
         WHERE application_name = 'docshard-gateway' AND (state <> 'idle' OR locktype IS NOT NULL)",
    )
}

#[test]
fn the_wire_protocol_beyond_crud() {
    let cluster = cluster();
    cluster.router.psql("SELECT docshard.enable_sharding('here', 'local')");
    let (gateway, other) = (Gateway::start(&cluster.router, &[]), Gateway::start(&cluster.router, &[]));
    assert!(gateway.python("wire.py", &["boss", PASSWORD, &other.port.to_string()]).contains("done"));
}

#[test]
fn transactions_of_drivers() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &[]);
    assert!(gateway.python("transactions.py", &["ann", PASSWORD, "bob", PASSWORD]).contains("done"));
    wait_until("sessions come back", PATIENCE, || unclean(&cluster).is_empty());
    assert!(sessions(&cluster, "true") > 0);
    for shard in &cluster.shards {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'";
        wait_until("shards' transactions end", PATIENCE, || shard.value::<i64>(open) == 0);
        assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_prepared_xacts"), 0);
    }
}

#[test]
fn transactions_that_nobody_ends_are_aborted() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--transaction-lifetime", "2"]);
    assert!(gateway.python("abandoned.py", &["ann", PASSWORD]).contains("done"));
    wait_until("they are aborted", PATIENCE, || unclean(&cluster).is_empty());
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.find('test.things')"), 1);
}

/// The router crashes before it has written the transaction to disk for any other reason.
#[test]
fn the_id_of_a_lost_transaction_is_not_given_again() {
    let mut cluster = cluster();
    cluster.router.psql("SELECT docshard.enable_sharding('here', 'local'), docshard.create_collection('here.things')");
    cluster.router.psql("ALTER SYSTEM SET wal_writer_delay = '10s'");
    cluster.router.psql("SELECT pg_reload_conf()");
    let (gateway, other) = (Gateway::start(&cluster.router, &[]), Gateway::start(&cluster.router, &[]));
    let mut program = gateway.start_python("lost_id.py", &[&other.port.to_string(), "boss", PASSWORD]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    await_line(&mut output, "in a transaction");
    cluster.router.crash();
    cluster.router.start();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
}

/// Long before the transactions' lifetime.
#[test]
fn transactions_of_ended_sessions_end_whoever_waits() {
    let cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--transaction-lifetime", "600"]);
    assert!(gateway.python("ended.py", &["ann", PASSWORD]).contains("done"));
    wait_until("they are aborted", PATIENCE, || unclean(&cluster).is_empty());
}

/// The router ends the session of a transaction that waits for its client.
#[test]
fn a_transaction_whose_session_ends_is_run_again() {
    let cluster = cluster();
    cluster.router.psql("ALTER ROLE boss SET idle_in_transaction_session_timeout = '1s'");
    let gateway = Gateway::start(&cluster.router, &[]);
    for (ends_by, seconds) in [("the role's limit", "3"), ("an administrator", "0")] {
        let mut program = gateway.start_python("run_again.py", &["boss", PASSWORD, seconds]);
        let mut output = BufReader::new(program.stdout.take().unwrap());
        await_line(&mut output, "in a transaction");
        if seconds == "0" {
            cluster.router.psql("ALTER ROLE boss RESET idle_in_transaction_session_timeout");
            let end =
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE state = 'idle in transaction'";
            assert!(cluster.router.value::<bool>(end), "{ends_by}");
        }
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        await_line(&mut output, "done");
        assert!(program.wait().unwrap().success());
    }
}

/// The router's session ends while it commits: the transaction's id tells the result, if it has one.
#[test]
fn a_lost_commit_is_asked_for() {
    let cluster = cluster();
    let router = &cluster.router;
    let gateway = Gateway::start(router, &[]);
    for (database, shard, expected) in [("here", "local", "committed 1 1"), ("there", "shard0", "failed 1 251 None")] {
        router.psql(&format!("SELECT docshard.enable_sharding('{database}', '{shard}')"));
        router.psql(&format!("SELECT docshard.create_collection('{database}.things')"));
        let node = if shard == "local" { router } else { &cluster.shards[0] };
        node.hold_commits();
        let mut program = gateway.start_python("lost_commit.py", &["boss", PASSWORD, database]);
        let mut output = BufReader::new(program.stdout.take().unwrap());
        await_line(&mut output, "writes");
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query !~ 'pg_stat_activity'";
        wait_until("the commit waits", PATIENCE, || node.value::<i64>(waits) > 0);
        router.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard-gateway' AND state <> 'idle'");
        node.forget_standbys();
        await_line(&mut output, expected);
        assert!(program.wait().unwrap().success());
    }
}

/// No read fails, and at most one write of each client, which was in flight.
#[test]
fn fifty_clients_survive_a_restart_of_the_router() {
    let mut cluster = cluster();
    let gateway = Gateway::start(&cluster.router, &["--hold-timeout", "60"]);
    let mut program = gateway.start_python("restarts.py", &["ann", PASSWORD, "50"]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    await_line(&mut output, "ready");
    cluster.router.stop();
    cluster.router.start();
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "goes on");
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
}

/// The gateway finds the primary among its routers, and waits for its promotion.
#[test]
fn clients_survive_a_failover_of_the_router() {
    let mut cluster = cluster();
    let standby = cluster.router.standby();
    let address = format!("postgresql://127.0.0.1:{},127.0.0.1:{}/postgres", cluster.router.port, standby.port());
    let gateway = Gateway::start_for(&cluster.router, &address, &["--hold-timeout", "60"]);
    let mut program = gateway.start_python("restarts.py", &["ann", PASSWORD, "5"]);
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    await_line(&mut output, "ready");
    cluster.router.stop();
    standby.promote();
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "goes on");
    input.write_all(b"\n").unwrap();
    await_line(&mut output, "done");
    assert!(program.wait().unwrap().success());
}

/// The server's own gateway: it is started, watched, restarted and ended with the server.
#[test]
fn a_server_runs_a_gateway() {
    let mut cluster = cluster();
    let router = &mut cluster.router;
    let program = copied_program(router);
    router.configure(&format!("docshard.gateway_binary = '{program}'"));
    router.configure("docshard.gateway_listen = '127.0.0.1:0'");
    router.configure("docshard.gateway_arguments = '--pool-size 7'");
    router.psql("SELECT pg_reload_conf()");
    let found = |gateway: &Gateway| gateway.python("refused.py", &["ann", PASSWORD]);
    assert!(found(&Gateway::of_server(router, 1)).contains("found None"));
    let [first] = running(&program)[..] else { panic!("there is one gateway") };
    // None of the server's files, nor of its environment.
    let files: Vec<String> = std::fs::read_dir(format!("/proc/{first}/fd"))
        .unwrap()
        .map(|file| {
            std::fs::read_link(file.unwrap().path()).map_or_else(|_| String::new(), |path| path.display().to_string())
        })
        .collect();
    assert!(!files.iter().any(|file| file.contains("/data/") || file.contains("PostgreSQL.")), "{files:?}");
    assert_eq!(std::fs::read(format!("/proc/{first}/environ")).unwrap().len(), 0);
    // Only the operator sees and sets it.
    let refused = |role: &str, sql: &str| {
        let mut client = router.client();
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        let error = client.batch_execute(sql).expect_err(sql);
        error.code().expect("an error of the server").code().to_owned()
    };
    assert_eq!(refused("none", "SET docshard.gateway_binary = '/bin/sh'"), "55P02");
    assert_eq!(refused("ann", "SHOW docshard.gateway_arguments"), "42501");
    assert_eq!(refused("ann", "ALTER SYSTEM SET docshard.gateway_binary = '/bin/sh'"), "42501");
    // It is started again after a crash.
    signal(first, "KILL");
    assert!(found(&Gateway::of_server(router, 2)).contains("found None"));
    // And with its worker.
    let worker = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'docshard gateway'";
    assert!(router.value::<bool>(worker));
    assert!(found(&Gateway::of_server(router, 3)).contains("found None"));
    wait_until("the old one ends", PATIENCE, || running(&program).len() == 1);
    router.configure("docshard.gateway_listen = ''");
    router.psql("SELECT pg_reload_conf()");
    wait_until("it ends", PATIENCE, || running(&program).is_empty());
    router.configure("docshard.gateway_listen = '127.0.0.1:0'");
    router.psql("SELECT pg_reload_conf()");
    assert!(found(&Gateway::of_server(router, 4)).contains("found None"));
    // It does not outlive the postmaster.
    router.kill9();
    wait_until("it ends with the server", PATIENCE, || running(&program).is_empty());
    router.start();
    assert!(found(&Gateway::of_server(router, 5)).contains("found None"));
}

/// A copy of the program that the server's user can execute, by a name of its own.
fn copied_program(router: &Node) -> String {
    let path = router.scratch_file("gateway-of-server");
    std::fs::copy(Gateway::path(), &path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The processes that run a program.
fn running(program: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let runs = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(program.as_bytes())
    };
    all.filter(runs).collect()
}

fn signal(pid: u32, name: &str) {
    assert!(
        std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success()
    );
}
