//! Statements that are the whole transaction: outside a transaction block `SELECT docshard.insert_one(…)` commits at its
//! shard immediately. Any larger statement is rolled back as a whole, and no outcome is reported wrongly.

use docshard_tests::{Cluster, Node, wait_until};
use fallible_iterator::FallibleIterator;
use postgres::Client;
use postgres_protocol::message::{backend, frontend};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NS: &str = "test.whole";

/// All documents are on one shard.
fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    let mut client = cluster.router.client();
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.enable_sharding('test', 'shard0')",
        "SELECT docshard.shard_collection('test.whole', '{\"k\": 1}')",
        "SELECT docshard.insert_one('test.whole', '{\"_id\": 0, \"k\": 0, \"n\": 0}')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    cluster
}

fn insert(k: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {k}, \"k\": {k}, \"n\": 0}}')")
}

fn update(set: &str) -> String {
    format!("SELECT docshard.update_one('{NS}', '{{\"k\": 0, \"_id\": 0}}', '{set}')")
}

fn count(client: &mut Client) -> i64 {
    client.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]).expect("a count").get(0)
}

fn shard(cluster: &Cluster) -> &Node {
    &cluster.shards[0]
}

#[test]
fn whatever_is_more_than_the_call_is_rolled_back_with_it() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let (one, two) = (insert(1), insert(2));
    let nested = format!(
        "SELECT docshard.insert_one('{NS}', jsonb_build_object('_id', 0, 'k', 0, 'inner', docshard.insert_one('{NS}', \
         '{{\"_id\": 1, \"k\": 1}}')))"
    );
    for sql in [
        // A second statement in the message, a second column, an expression over the answer, a second row.
        format!("{one}; SELECT 1 / 0"),
        format!("{one}, 1 / (random() * 0)::int"),
        format!("SELECT 1 / (random() * 0)::int + length(({one})::text)"),
        format!("{one} FROM generate_series(1, 2)"),
        format!("{one} UNION ALL {two} UNION ALL SELECT to_jsonb(1 / (random() * 0)::int)"),
        format!("WITH done AS MATERIALIZED ({one}) SELECT 1 / (random() * 0)::int FROM done"),
        nested,
        // Inside PostgreSQL's own statements and languages.
        format!("EXPLAIN ANALYZE {one} UNION ALL SELECT to_jsonb(1 / (random() * 0)::int)"),
        format!("DO $$ BEGIN PERFORM 1 FROM ({one}) x; RAISE division_by_zero; END $$"),
        format!("CREATE TEMPORARY TABLE t AS SELECT 1 / (random() * 0)::int FROM ({one} OFFSET 0) x"),
        format!("BEGIN; {one}; SELECT 1 / 0"),
    ] {
        let error = client.batch_execute(&sql).expect_err(&sql);
        client.batch_execute("ROLLBACK").unwrap();
        let code = error.code().map(|code| code.code().to_owned());
        assert!(matches!(code.as_deref(), Some("22012" | "23505")), "{sql}: {error:?}");
        assert_eq!(count(&mut client), 1, "{sql}");
    }
    client.batch_execute(&format!("PREPARE one AS {one}; BEGIN; EXECUTE one; ROLLBACK")).unwrap();
    assert_eq!(count(&mut client), 1);
    client.batch_execute("EXECUTE one").unwrap();
    client.execute(&two, &[]).unwrap();
    assert_eq!(count(&mut client), 3);
}

/// A connection that uses the protocol directly, as drivers with pipelining do.
struct Raw {
    stream: TcpStream,
    received: bytes::BytesMut,
}

impl Raw {
    fn connect(node: &Node) -> Self {
        let config: postgres::Config = node.url().parse().unwrap();
        let stream = TcpStream::connect(("127.0.0.1", config.get_ports()[0])).unwrap();
        let mut raw = Self { stream, received: bytes::BytesMut::new() };
        let mut message = bytes::BytesMut::new();
        frontend::startup_message([("user", "postgres"), ("database", "postgres")], &mut message).unwrap();
        raw.stream.write_all(&message).unwrap();
        raw.until_ready();
        raw
    }

    /// Sends statements with one synchronisation point after them; returns the SQLSTATEs of errors.
    fn pipeline(&mut self, statements: &[&str]) -> Vec<String> {
        let mut message = bytes::BytesMut::new();
        for sql in statements {
            frontend::parse("", sql, [], &mut message).unwrap();
            frontend::bind("", "", [], [(); 0], |(), _| unreachable!(), [], &mut message).map_err(|_| "bind").unwrap();
            frontend::execute("", 0, &mut message).unwrap();
        }
        frontend::sync(&mut message);
        self.stream.write_all(&message).unwrap();
        self.until_ready()
    }

    fn until_ready(&mut self) -> Vec<String> {
        let mut errors = Vec::new();
        loop {
            while let Some(message) = backend::Message::parse(&mut self.received).unwrap() {
                match message {
                    backend::Message::ReadyForQuery(_) => return errors,
                    backend::Message::ErrorResponse(body) => {
                        let code = body.fields().find(|field| Ok(field.type_() == b'C')).unwrap();
                        errors.push(String::from_utf8_lossy(code.expect("an SQLSTATE").value_bytes()).into_owned());
                    }
                    _ => {}
                }
            }
            let mut piece = [0; 8192];
            let length = self.stream.read(&mut piece).unwrap();
            assert_ne!(length, 0, "the server has closed the connection");
            self.received.extend_from_slice(&piece[..length]);
        }
    }
}

#[test]
fn statements_up_to_a_synchronisation_point_are_one_transaction() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    let mut raw = Raw::connect(&cluster.router);
    let (one, two) = (insert(1), insert(2));
    assert_eq!(raw.pipeline(&[&one, "SELECT 1 / 0"]), ["22012"]);
    assert_eq!(count(&mut client), 1);
    assert_eq!(raw.pipeline(&[&format!("PREPARE one AS {one}")]), [""; 0]);
    assert_eq!(raw.pipeline(&["EXECUTE one", "SELECT 1 / 0"]), ["22012"]);
    assert_eq!(count(&mut client), 1);
    assert_eq!(raw.pipeline(&[&one, &two, &one]), ["23505"]);
    assert_eq!(count(&mut client), 1);
    assert_eq!(raw.pipeline(&[&one]), [""; 0]);
    assert_eq!(raw.pipeline(&[&two, &insert(3)]), [""; 0]);
    assert_eq!(count(&mut client), 4);
}

/// Runs a write that waits at the shard until the session that has locked the document ends.
fn waiting(cluster: &Cluster, sql: String) -> (Client, postgres::CancelToken, JoinHandle<Result<(), postgres::Error>>) {
    let mut holder = shard(cluster).client();
    let table: String =
        cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"));
    holder.batch_execute(&format!("BEGIN; SELECT FROM {table} FOR UPDATE")).unwrap();
    let mut client = cluster.router.client();
    let token = client.cancel_token();
    let writer = thread::spawn(move || client.batch_execute(&sql));
    wait_until("the write waits at the shard", Duration::from_secs(20), || waiting_session(cluster).is_some());
    (holder, token, writer)
}

fn waiting_session(cluster: &Cluster) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    shard(cluster).client().query_opt(sql, &[]).unwrap().map(|row| row.get(0))
}

#[test]
fn a_cancel_is_the_shards_to_obey() {
    let cluster = cluster();
    let increment = update(r#"{"$inc": {"n": 1}}"#);
    let (mut holder, token, writer) = waiting(&cluster, increment.clone());
    token.cancel_query(postgres::NoTls).unwrap();
    let error = writer.join().unwrap().expect_err("it was cancelled");
    assert_eq!(error.as_db_error().unwrap().message(), "canceling statement due to user request");
    holder.batch_execute("COMMIT").unwrap();

    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = 300").unwrap();
    let (mut holder, _, writer) = waiting(&cluster, increment.clone());
    let error = client.batch_execute(&increment).expect_err("it took too long");
    assert_eq!(error.as_db_error().unwrap().message(), "canceling statement due to statement timeout");
    holder.batch_execute("COMMIT").unwrap();
    writer.join().unwrap().expect("nobody is in the way");
    client.batch_execute(&increment).expect("nobody is in the way");
    let document: String = cluster.router.value(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": 0}}')->>'n'"));
    assert_eq!(document, "2");
}

#[test]
fn a_lost_shard_leaves_the_outcome_unknown_unless_it_says_otherwise() {
    let cluster = cluster();
    let increment = update(r#"{"$inc": {"n": 1}}"#);
    let (holder, _, writer) = waiting(&cluster, increment.clone());
    let session = waiting_session(&cluster).unwrap();
    shard(&cluster).client().execute("SELECT pg_terminate_backend($1)", &[&session]).unwrap();
    let error = writer.join().unwrap().expect_err("its session was ended");
    assert_eq!(error.code().unwrap().code(), "08006", "{error:?}");
    drop(holder);

    let (holder, _, writer) = waiting(&cluster, increment.clone());
    let session = waiting_session(&cluster).unwrap();
    assert!(shard(&cluster).kill(u32::try_from(session).unwrap()), "it ran");
    let error = writer.join().unwrap().expect_err("its session was killed");
    assert_eq!(error.code().unwrap().code(), "08007", "{error:?}");
    drop(holder);
    let document: String = cluster.router.value(&format!("SELECT docshard.find_one('{NS}', '{{\"k\": 0}}')->>'n'"));
    assert_eq!(document, "0");
    cluster.router.client().batch_execute(&increment).expect("the shard is back");
}
