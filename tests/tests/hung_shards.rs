//! Shards that do not answer: all their processes get SIGSTOP. The operating system still accepts connections, but no
//! answer arrives.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::Value;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const NS: &str = "test.c";
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of a statement, and how long it took.
struct Ended {
    error: Option<postgres::Error>,
    took: Duration,
}

impl Ended {
    /// The error's SQLSTATE.
    #[track_caller]
    fn sqlstate(&self) -> &str {
        self.error.as_ref().expect("an error").code().expect("one of the server").code()
    }

    /// Checks that the error names shard0 and has MongoDB's code for a timeout.
    #[track_caller]
    fn names_the_shard(&self) {
        let error = self.error.as_ref().and_then(|error| error.as_db_error()).expect("one of the server");
        assert!(error.message().contains("shard0"), "{error:?}");
        assert_eq!(error.detail(), Some("MongoDB error 89 (NetworkTimeout)."), "{error:?}");
    }
}

fn run(mut client: Client, sql: String) -> JoinHandle<Ended> {
    thread::spawn(move || {
        let began = Instant::now();
        let error = client.batch_execute(&sql).err();
        Ended { error, took: began.elapsed() }
    })
}

fn find(k: i64) -> String {
    format!("SELECT docshard.find_one('{NS}', '{{\"k\": {k}}}')")
}

fn insert(k: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{{\"k\": {k}, \"_id\": \"{k}\"}}')")
}

/// A session that has a connection to each shard.
fn session(cluster: &Cluster, sql: &str) -> Client {
    let mut client = cluster.router.client();
    client.batch_execute(&format!("{}; {}; {sql}", find(150), find(250))).expect("all is well");
    client
}

fn table(cluster: &Cluster) -> String {
    cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
}

/// The number of a shard's processes that serve the router's sessions and are busy or in a transaction.
fn at_work(shard: &Node) -> i64 {
    shard.value(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'docshard %' AND state <> 'idle' \
         AND backend_type = 'client backend'",
    )
}

#[test]
fn a_cancelled_statement_ends_at_once_and_so_does_its_session_at_the_shard() {
    let cluster = Cluster::spread(NS);
    let shard = &cluster.shards[0];
    let timeout = "SET statement_timeout = '2s'";
    let statements = [find(150), insert(151), insert(152)];
    let clients = || {
        let [reader, block, single] =
            [timeout, &format!("{timeout}; BEGIN"), timeout].map(|sql| session(&cluster, sql));
        [reader, block, single]
    };
    // A write that is the whole transaction is sent with its COMMIT, so only the shard knows the outcome.
    let check = |what: &str, ended: Vec<Ended>, expected: &[&str]| {
        for (ended, expected) in ended.iter().zip(expected) {
            assert_eq!(ended.sqlstate(), *expected, "{what}: {:?}", ended.error);
            assert!(ended.took >= Duration::from_millis(1_900), "{what}: {:?}", ended.took);
            assert!(ended.took < Duration::from_secs(3), "{what}: {:?}", ended.took);
        }
        assert_eq!(ended.len(), expected.len());
    };
    let all = |clients: Vec<(Client, String)>| {
        let running: Vec<_> = clients.into_iter().map(|(client, sql)| run(client, sql)).collect();
        move || running.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
    };

    // The shard's processes are frozen.
    let mut ready: Vec<_> = clients().into_iter().zip(statements.clone()).collect();
    let committing = session(&cluster, &format!("BEGIN; {}", insert(153)));
    let cancel = committing.cancel_token();
    ready.push((committing, "COMMIT".to_owned()));
    shard.freeze_all();
    let ended = all(ready);
    // During COMMIT no statement_timeout applies.
    thread::sleep(Duration::from_secs(2));
    cancel.cancel_query(postgres::NoTls).expect("the router takes it");
    let ended = ended();
    shard.thaw_all();
    check("stopped", ended, &["57014", "57014", "08007", "08007"]);
    wait_until("the stopped sessions end", Duration::from_secs(5), || at_work(shard) == 0);

    // The shard waits for a lock, and obeys the cancel.
    let ready = clients();
    let mut holder = shard.client();
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}", table(&cluster))).expect("a lock");
    let ended = all(ready.into_iter().zip(statements.clone()).collect())();
    check("waiting", ended, &["57014", "57014", "57014"]);
    wait_until("the waiting sessions end", Duration::from_secs(5), || at_work(shard) == 0);
    holder.batch_execute("COMMIT").expect("no lock");

    // The shard executes something that a cancel does not end.
    shard.psql(&format!(
        "CREATE FUNCTION public.stubborn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOOP \
           BEGIN PERFORM pg_catalog.pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$; \
         CREATE TRIGGER stubborn BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION public.stubborn()",
        table(&cluster)
    ));
    let [_, block, single] = clients();
    let ended = all(vec![(block, insert(161)), (single, insert(162))])();
    check("stubborn", ended, &["57014", "08007"]);
    wait_until("the stubborn sessions end", Duration::from_secs(5), || at_work(shard) == 0);
    assert_eq!(
        cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}', '{{\"k\": {{\"$gt\": 160}}}}')")),
        0
    );
}

#[test]
fn a_shard_that_does_not_answer_ends_the_statement() {
    let cluster = Cluster::spread(NS);
    let (shard, other) = (&cluster.shards[0], &cluster.shards[1]);
    let timeout = "SET docshard.shard_timeout = '2s'";
    let open = |sql: &str| session(&cluster, &format!("{timeout}; {sql}"));
    let reader = open("");
    let scatter = open("");
    let block = open("BEGIN");
    let single = open("");
    let committing = open(&format!("BEGIN; {}", insert(153)));
    let preparing = open(&format!("BEGIN; {}; {}", insert(154), insert(254)));
    let large = open("BEGIN");
    let mut new = cluster.router.client();
    new.batch_execute(timeout).expect("a setting");
    let healthy = open("");

    shard.freeze_all();
    let many = format!(
        "SELECT docshard.insert_many('{NS}', ARRAY(SELECT jsonb_build_object('k', 155, 't', repeat('x', 15000000)) \
         FROM generate_series(1, 2)))"
    );
    let reader = run(reader, find(150));
    let scatter = run(scatter, format!("SELECT docshard.find_one('{NS}', '{{\"x\": 1}}')"));
    let block = run(block, insert(151));
    let single = run(single, insert(152));
    let committing = run(committing, "COMMIT".to_owned());
    let preparing = run(preparing, "COMMIT".to_owned());
    let large = run(large, many);
    let new = run(new, find(150));
    let healthy = run(healthy, format!("{}; {}", insert(250), find(250))).join().expect("no panic");
    assert!(healthy.error.is_none(), "{:?}", healthy.error);
    assert!(healthy.took < Duration::from_secs(2), "{:?}", healthy.took);
    let expected = [
        ("a read", reader, "08006"),
        ("a scattered read", scatter, "08006"),
        ("a write in a transaction", block, "08006"),
        ("a single write", single, "08007"),
        ("a commit", committing, "08007"),
        ("a commit over two shards", preparing, "08006"),
        ("a write that does not get through", large, "08006"),
        ("a new session", new, "08001"),
    ];
    for (what, ended, sqlstate) in expected {
        let ended = ended.join().expect("no panic");
        assert_eq!(ended.sqlstate(), sqlstate, "{what}: {:?}", ended.error);
        assert!(ended.took >= Duration::from_millis(1_900), "{what}: {:?}", ended.took);
        assert!(ended.took < Duration::from_secs(12), "{what}: {:?}", ended.took);
        if sqlstate != "08007" {
            ended.names_the_shard();
        }
    }
    shard.thaw_all();
    wait_until("nothing is left", PATIENCE, || {
        let prepared = "SELECT count(*) FROM pg_prepared_xacts";
        at_work(shard) == 0 && shard.value::<i64>(prepared) == 0 && other.value::<i64>(prepared) == 0
    });
    let count = format!("SELECT docshard.count_documents('{NS}', '{{\"k\": {{\"$in\": [151, 154, 155, 254]}}}}')");
    assert_eq!(cluster.router.value::<i64>(&count), 0, "what ended with 08006 has not happened");
}

/// Each probe of a shard opens a connection to it.
fn an_application_sets_no_shard_timeout(cluster: &Cluster) {
    cluster.router.psql("CREATE ROLE app LOGIN");
    let mut client = cluster.router.try_client_as("app", "postgres").expect("it may log in");
    let error = client.batch_execute("SET docshard.shard_timeout = '1ms'").expect_err("it is refused");
    assert_eq!(error.code().expect("one of the server").code(), "42501", "{error:?}");
}

/// After how many seconds the system sends keepalive probes on idle connections to a port of this machine.
fn keepalive_timers(port: u16) -> Vec<u64> {
    const KEEPALIVE: &str = "02";
    /// the number of the kernel's timer ticks in a second
    const TICKS: u64 = 100;
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let timer = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, remote_port) = columns.get(2)?.split_once(':')?;
        let (kind, when) = columns.get(5)?.split_once(':')?;
        let is_wanted = u16::from_str_radix(remote_port, 16) == Ok(port) && kind == KEEPALIVE;
        is_wanted.then(|| u64::from_str_radix(when, 16).ok()).flatten().map(|ticks| ticks / TICKS)
    };
    table.lines().filter_map(timer).collect()
}

#[test]
fn a_shard_that_works_for_long_is_waited_for() {
    let cluster = Cluster::spread(NS);
    an_application_sets_no_shard_timeout(&cluster);
    let shard = &cluster.shards[0];
    let open = |sql: &str| session(&cluster, &format!("SET docshard.shard_timeout = '500ms'; {sql}"));
    // The session's process is frozen, but the server answers.
    let mut reader = open("");
    let name: String = reader
        .query_one(
            "SELECT to_hex(trunc(extract(epoch FROM backend_start))::int8) || '.' || to_hex(pid) \
                    FROM pg_stat_activity WHERE pid = pg_backend_pid()",
            &[],
        )
        .expect("a row")
        .get(0);
    let pid =
        shard.value::<i32>(&format!("SELECT pid FROM pg_stat_activity WHERE application_name = 'docshard {name}'"));
    assert!(keepalive_timers(shard.port).iter().any(|seconds| *seconds <= 30), "a lost host is noticed");
    let (locked, single) = (open("BEGIN"), open(""));
    let mut holder = shard.client();
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {} IN EXCLUSIVE MODE", table(&cluster))).expect("a lock");
    shard.freeze(pid.unsigned_abs());
    let running = [run(reader, find(150)), run(locked, insert(151)), run(single, insert(152))];
    thread::sleep(Duration::from_secs(3));
    assert!(running.iter().all(|one| !one.is_finished()), "they wait");
    shard.thaw(pid.unsigned_abs());
    holder.batch_execute("COMMIT").expect("no lock");
    for ended in running {
        let ended = ended.join().expect("no panic");
        assert!(ended.error.is_none(), "{:?}", ended.error);
    }
}

#[test]
fn a_move_ends_though_its_recipient_waits_for_a_hung_donor() {
    let cluster = Cluster::spread(NS);
    let (donor, recipient) = (&cluster.shards[0], &cluster.shards[1]);
    cluster.router.psql("ALTER SYSTEM SET docshard.shard_timeout = '1s'");
    cluster.router.psql("SELECT pg_reload_conf()");
    cluster.router.client().batch_execute(&insert(150)).expect("all is well");
    let mut holder = recipient.client();
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {} IN SHARE MODE", table(&cluster))).expect("a lock");
    let moving =
        run(cluster.router.client(), format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 150}}', 'shard1')"));
    wait_until("the recipient loads", PATIENCE, || {
        recipient.value::<i64>("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") > 0
    });
    donor.freeze_all();
    let began = Instant::now();
    // Next the recipient reads changes from the donor. It still answers the router.
    holder.batch_execute("COMMIT").expect("no lock");
    let ended = moving.join().expect("no panic");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(ended.sqlstate(), "08006", "{:?}", ended.error);
    ended.names_the_shard();
    donor.thaw_all();
    wait_until("the move is taken back", PATIENCE, || {
        cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'") == 0
    });
    cluster.router.client().batch_execute(&insert(151)).expect("all is well again");
}

/// The name that the router used for a transaction which it prepared at a shard and rolled back.
fn name_of_prepared(cluster: &Cluster, shard: &Node) -> String {
    let mut client = cluster.router.client();
    client
        .batch_execute(&format!("BEGIN; {}; {}; PREPARE TRANSACTION 'theirs'", insert(160), insert(260)))
        .expect("it can be prepared");
    let gid: String = shard.value("SELECT gid FROM pg_prepared_xacts");
    client.batch_execute("ROLLBACK PREPARED 'theirs'").expect("it is rolled back");
    wait_until("it is rolled back", PATIENCE, || prepared(shard) == 0);
    gid
}

fn prepared(shard: &Node) -> i64 {
    shard.value("SELECT count(*) FROM pg_prepared_xacts")
}

#[test]
fn a_worker_leaves_a_hung_shard_alone_and_serves_the_others() {
    let cluster = Cluster::spread(NS);
    let (shard, other) = (&cluster.shards[0], &cluster.shards[1]);
    // A short timeout makes the test faster.
    cluster.router.psql("ALTER SYSTEM SET docshard.shard_timeout = '1s'");
    cluster.router.psql("SELECT pg_reload_conf()");
    let mut client = cluster.router.client();
    client
        .batch_execute(
            "SELECT docshard.set_setting('balancer_interval_ms', '1000'), docshard.set_setting('ttl_interval_s', '1'); \
             SELECT docshard.enable_sharding('other', 'shard1'); \
             SELECT docshard.create_index('other.c', '{\"at\": 1}', '{\"expireAfterSeconds\": 1}')",
        )
        .expect("settings and an index");
    let (gid, role) = (name_of_prepared(&cluster, other), other.service_role());
    // Checks that documents still expire, and that abandoned prepared transactions are rolled back.
    let mut serves = |what: &str| {
        client
            .batch_execute("SELECT docshard.insert_one('other.c', '{\"at\": {\"$date\": \"2020-01-01T00:00:00Z\"}}')")
            .expect("it is well");
        other
            .client()
            .batch_execute(&format!(
                "SET SESSION AUTHORIZATION {role}; BEGIN; SELECT txid_current(); PREPARE TRANSACTION '{gid}'"
            ))
            .expect("it can be prepared");
        wait_until(what, PATIENCE, || {
            let left: i64 = cluster.router.value("SELECT docshard.count_documents('other.c')");
            left == 0 && prepared(other) == 0
        });
    };
    serves("at first");
    let status = || cluster.router.value::<Value>("SELECT docshard.balancer_status()");
    let alarm = "shard \"shard0\" does not answer";
    let rests = |status: &Value| {
        status["resting"].as_array().is_some_and(|all| all.iter().any(|entry| entry["shard"] == "shard0"))
    };

    shard.freeze_all();
    wait_until("there is an alarm", PATIENCE, || {
        let status = status();
        status["lastError"].as_str().is_some_and(|error| error.contains(alarm)) && rests(&status)
    });
    serves("while a shard hangs");
    shard.thaw_all();
    wait_until("the alarm is over", PATIENCE, || {
        let status = status();
        status["lastError"].is_null() && !rests(&status)
    });
    let log = cluster.router.log_tail(100_000);
    let told = |text: &str| log.lines().filter(|line| line.contains("LOG:") && line.contains(text)).count();
    assert_eq!(told(alarm), 1, "{log}");
    assert_eq!(told("shard \"shard0\" answers again"), 1, "{log}");
    serves("at last");
}
