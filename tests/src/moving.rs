//! A cluster with one collection, of which a test moves one chunk back and forth.

use crate::cluster::{Cluster, Node};
use crate::wait_until;
use postgres::Client;
use serde_json::Value;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The collection.
pub const NS: &str = "test.moved";

/// Limit for every wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a statement in a thread of its own.
pub type Pending<T = ()> = JoinHandle<Result<T, postgres::Error>>;

/// A router and two shards with a collection of documents `{_id: k, k: k, n: 0}`, `k` from 0. The first are the chunk that
/// moves, on `shard0`; of the others each shard has a chunk that stays: first `shard1`, then `shard0`.
#[derive(Debug)]
pub struct Moving {
    /// the servers
    pub cluster: Cluster,
    /// how many documents there are
    pub documents: i64,
    /// how many of them are in the chunk that moves
    pub chunk: i64,
}

impl Moving {
    /// Starts the cluster; half of the documents are in the chunk that moves.
    pub fn start(documents: i64) -> Self {
        Self::with_chunk(documents / 2, documents - documents / 2)
    }

    /// Starts the cluster with the given numbers of documents inside and outside the chunk that moves.
    ///
    /// # Panics
    /// If that fails.
    pub fn with_chunk(chunk: i64, beside: i64) -> Self {
        let moving = Self { cluster: Cluster::start(2), documents: chunk + beside, chunk };
        create(&moving.cluster, "shard0", chunk + beside, "'n', 0", [chunk, chunk + beside / 2]);
        moving.move_to("shard0").expect("a move");
        moving.move_chunk(chunk, "shard1").expect("a move");
        moving.move_chunk(chunk + beside - 1, "shard0").expect("a move");
        moving
    }

    /// A statement in a connection of its own to the router.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, sql: &str) {
        self.cluster.router.client().batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// A statement in a thread and a connection of its own to the router.
    pub fn spawn(&self, sql: impl Into<String>) -> Pending {
        let (mut client, sql) = (self.cluster.router.client(), sql.into());
        thread::spawn(move || client.batch_execute(&sql))
    }

    /// A query of one value in a thread and a connection of its own to the router.
    pub fn spawn_value<T: postgres::types::FromSqlOwned + Send + 'static>(&self, sql: impl Into<String>) -> Pending<T> {
        let (mut client, sql) = (self.cluster.router.client(), sql.into());
        thread::spawn(move || client.query_one(&sql, &[])?.try_get(0))
    }

    /// Moves the chunk of a key.
    ///
    /// # Errors
    /// What the router answers.
    pub fn move_chunk(&self, k: i64, to: &str) -> Result<Value, postgres::Error> {
        move_chunk(&mut self.cluster.router.try_client()?, k, to)
    }

    /// Moves the chunk that moves.
    ///
    /// # Errors
    /// What the router answers.
    pub fn move_to(&self, to: &str) -> Result<Value, postgres::Error> {
        self.move_chunk(0, to)
    }

    /// Like [`Moving::move_to`], in a thread.
    pub fn start_move(&self, to: &str) -> Pending {
        self.spawn(format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', '{to}')"))
    }

    /// The shard that owns the chunk that moves, in the catalog.
    pub fn owner(&self) -> String {
        owner(&self.cluster.router, 0)
    }

    /// The other shard than the owner.
    pub fn other(&self) -> String {
        if self.owner() == "shard0" { "shard1".to_owned() } else { "shard0".to_owned() }
    }

    /// A shard by its name.
    ///
    /// # Panics
    /// If there is none.
    pub fn shard(&self, name: &str) -> &Node {
        self.cluster.shards.iter().find(|shard| shard.name == name).unwrap_or_else(|| panic!("no shard {name}"))
    }

    /// The collection's table on shards, qualified.
    pub fn table(&self) -> String {
        table(&self.cluster)
    }

    /// The field of a document, as a client sees it; None if there is no such document.
    ///
    /// # Panics
    /// If the find fails.
    pub fn field(&self, k: i64, field: &str) -> Option<String> {
        let sql = format!("SELECT d->>'{field}' FROM docshard.find('{NS}', '{{\"k\": {k}, \"_id\": {k}}}') d");
        let mut client = self.cluster.router.client();
        client.query_opt(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).and_then(|row| row.get(0))
    }

    /// The step of the only move under way; empty if there is none.
    ///
    /// # Panics
    /// If the catalog cannot be read.
    pub fn step(&self) -> String {
        step(&self.cluster.router)
    }

    /// Waits until that many backends of a shard wait for one of docshard's own locks.
    pub fn await_waiting(&self, shard: &str, writers: i64) {
        wait_until("writers wait", PATIENCE, || {
            let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            self.shard(shard).value::<i64>(sql) == writers
        });
    }

    /// Completes the moves of dead coordinators, once all servers run.
    pub fn recover(&self) {
        recover(&self.cluster);
    }

    /// Checks that no leftovers of a move exist on any node.
    ///
    /// # Panics
    /// If there are some.
    pub fn check_clean(&self) {
        check_clean(&self.cluster);
    }

    /// The number of documents of the moving chunk in each shard's table, whether or not the shard owns them.
    pub fn halves(&self) -> (i64, i64) {
        let (table, chunk) = (self.table(), self.chunk);
        let on = |shard: &str| {
            self.shard(shard).value::<i64>(&format!("SELECT count(*) FROM {table} WHERE (doc->>'k')::int8 < {chunk}"))
        };
        (on("shard0"), on("shard1"))
    }

    /// Checks that the moving chunk is completely on one shard, its owner in the catalog, without leftovers of a move.
    ///
    /// # Panics
    /// If not.
    pub fn check_chunk(&self) {
        self.check_clean();
        let expected = if self.owner() == "shard0" { (self.chunk, 0) } else { (0, self.chunk) };
        assert_eq!(self.halves(), expected, "documents of the chunk in the tables of shard0 and shard1");
        assert_eq!(count(&mut self.cluster.router.client()), self.documents);
    }

    /// Like [`Moving::check_chunk`]; also checks that every document exists once.
    ///
    /// # Panics
    /// If not.
    pub fn check(&self) {
        self.check_chunk();
        let sql = format!("SELECT count(DISTINCT d->>'_id') FROM docshard.find('{NS}', '{{}}') d");
        assert_eq!(self.cluster.router.value::<i64>(&sql), self.documents);
    }
}

/// The possible leftovers of a move on a node.
const LEFTOVERS: [(&str, &str); 4] = [
    ("prepared transactions", "SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'docshard_m%'"),
    ("captures", "SELECT count(*) FROM docshard_data.capture"),
    ("parts", "SELECT count(*) FROM docshard_data.capture_parts"),
    (
        "staging tables",
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^m[0-9]'",
    ),
];

/// The router and the shards.
pub fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

/// Creates the collection with a number of documents `{_id: k, k: k}` with further fields, given as arguments of
/// `jsonb_build_object`, and splits it at these keys. All chunks are on the database's primary shard. The balancer is off.
///
/// # Panics
/// If that fails.
pub fn create(cluster: &Cluster, primary: &str, documents: i64, fields: &str, splits: impl IntoIterator<Item = i64>) {
    let mut client = cluster.router.client();
    let mut run = |sql: &str| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    run("SELECT docshard.stop_balancer()");
    run(&format!("SELECT docshard.enable_sharding('test', '{primary}')"));
    run(&format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    run(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', k, 'k', k, {fields}))) \
         FROM generate_series(0, {documents} - 1) k"
    ));
    for k in splits {
        run(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": {k}}}')"));
    }
}

/// Moves the chunk of a key.
///
/// # Errors
/// What the router answers.
pub fn move_chunk(client: &mut Client, k: i64, to: &str) -> Result<Value, postgres::Error> {
    client.query_one(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', '{to}')"), &[])?.try_get(0)
}

/// Like [`move_chunk`], in a thread and a connection of its own.
pub fn start_move(cluster: &Cluster, k: i64, to: &'static str) -> Pending<Value> {
    let mut client = cluster.router.client();
    thread::spawn(move || move_chunk(&mut client, k, to))
}

/// The shard that owns a key, in the catalog.
pub fn owner(router: &Node, k: i64) -> String {
    router.value(&format!(
        "SELECT s.name FROM docshard_catalog.chunks c JOIN docshard_catalog.shards s ON s.id = c.shard_id \
         JOIN docshard_catalog.collections n ON n.id = c.collection_id WHERE n.namespace = '{NS}' \
         AND min <= docshard_internal.shard_key('{{\"k\": {k}}}', '{{\"k\": 1}}') ORDER BY min DESC LIMIT 1"
    ))
}

/// The collection's table on shards, qualified.
pub fn table(cluster: &Cluster) -> String {
    cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
}

/// The step of the only move under way; empty if there is none.
///
/// # Panics
/// If the catalog cannot be read.
pub fn step(router: &Node) -> String {
    let sql = "SELECT step FROM docshard_catalog.migrations WHERE state <> 'done'";
    router.client().query_opt(sql, &[]).expect("a query").map_or_else(String::new, |row| row.get(0))
}

/// Returns a transaction that keeps moves to this shard, which has the collection's table, from loading the documents that they have
/// pulled.
///
/// # Panics
/// If the table cannot be locked.
pub fn keep_from_loading(cluster: &Cluster, shard: &Node) -> Client {
    let mut client = shard.client();
    client.batch_execute(&format!("BEGIN; LOCK TABLE {} IN SHARE MODE", table(cluster))).expect("the lock");
    client
}

/// Completes the moves of dead coordinators, once all servers run.
pub fn recover(cluster: &Cluster) {
    let mut last = String::new();
    wait_until("recovery", PATIENCE, || {
        let ended = cluster.router.try_client().and_then(|mut client| {
            client.execute("SELECT docshard.recover_moves()", &[])?;
            let sql = "SELECT state || ' ' || step || coalesce(' ' || error, '') FROM docshard_catalog.migrations \
                       WHERE state <> 'done'";
            client.query(sql, &[])
        });
        let now = match ended {
            Ok(rows) if rows.is_empty() => return true,
            Ok(rows) => rows[0].get(0),
            Err(error) => format!("{error:?}"),
        };
        if now != last {
            eprintln!("recovery: {now}");
            last = now;
        }
        false
    });
}

/// Checks that no leftovers of a move exist on any node.
///
/// # Panics
/// If there are some.
pub fn check_clean(cluster: &Cluster) {
    let unfinished = "SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done'";
    assert_eq!(cluster.router.value::<i64>(unfinished), 0, "unfinished moves");
    let sql = LEFTOVERS.map(|(_, sql)| format!("({sql})")).join(", ");
    for node in nodes(cluster) {
        // A session that was killed after the move's last statement may have taken the server with it.
        wait_until("the server is back", PATIENCE, || node.try_client().is_ok());
        let mut client = node.client();
        let row = client.query_one(&format!("SELECT {sql}"), &[]).expect("a query");
        for (column, (what, _)) in LEFTOVERS.iter().enumerate() {
            assert_eq!(row.get::<_, i64>(column), 0, "{what} left on {}", node.name);
        }
        // A writer may log more after the move has been cleaned up.
        wait_until("the log is swept", PATIENCE, || {
            let sql = "SELECT count(*) FROM docshard_data.capture_log";
            client.query_one(sql, &[]).expect("a query").get::<_, i64>(0) == 0
        });
    }
}

/// The number of documents in the collection's tables, whether or not the shards own them.
pub fn in_tables(cluster: &Cluster) -> i64 {
    let table = table(cluster);
    nodes(cluster)
        .filter(|node| node.value(&format!("SELECT to_regclass('{table}') IS NOT NULL")))
        .map(|node| node.value::<i64>(&format!("SELECT count(*) FROM {table}")))
        .sum()
}

/// All documents, counted by a scatter.
///
/// # Panics
/// If that fails.
pub fn count(client: &mut Client) -> i64 {
    client.query_one(&format!("SELECT docshard.count_documents('{NS}')"), &[]).expect("a count").get(0)
}

/// Sets `n` of a document one higher.
pub fn increment(k: i64) -> String {
    format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}, \"_id\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')")
}

/// Inserts a document.
pub fn insert(k: i64, id: i64) -> String {
    format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {id}, \"k\": {k}, \"n\": 0}}')")
}

/// Deletes a document.
pub fn delete(k: i64, id: i64) -> String {
    format!("SELECT docshard.delete_one('{NS}', '{{\"k\": {k}, \"_id\": {id}}}')")
}

/// The SQLSTATE of what failed at the server.
pub fn sqlstate(error: &postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}
