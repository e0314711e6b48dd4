//! Talks to shards over libpq.

use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

mod param;

pub use param::{Param, Request, Statement};

fn todo() -> Error {
    Error::new(Kind::NotImplemented, "not yet")
}

/// What a transaction does that wrote on several shards of which one cannot prepare transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum MultiShardCommit {
    /// an error
    #[name = c"two_phase"]
    TwoPhase,
    /// commit one shard after the other
    #[name = c"one_by_one"]
    OneByOne,
}

/// `docshard.multi_shard_commit`
pub static MULTI_SHARD_COMMIT: GucSetting<MultiShardCommit> =
    GucSetting::<MultiShardCommit>::new(MultiShardCommit::TwoPhase);

/// Registers this module's settings; called once, from `_PG_init`.
pub fn init_gucs() {
    GucRegistry::define_enum_guc(
        c"docshard.multi_shard_commit",
        c"How a transaction commits that wrote on several shards of which one allows no prepared transactions.",
        c"two_phase refuses it; one_by_one commits one shard after the other, so a crash can leave it half done.",
        &MULTI_SHARD_COMMIT,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// Registers the transaction callbacks. Called by whatever opens the first connection; calling it earlier is harmless.
pub fn init() {}

/// Sends all requests before awaiting any answer; returns one stream a request, in order.
pub fn start(_requests: &[Request<'_>]) -> Result<Vec<Stream>> {
    Err(todo())
}

/// Waits until every stream has its first row, its end or an error. On an error it cancels and drains all and returns
/// the error, a stale one (`Error::is_stale`) rather than another.
pub fn await_all(_streams: &mut [Stream]) -> Result<()> {
    Err(todo())
}

/// The rows of one request.
#[derive(Debug)]
pub struct Stream;

impl Stream {
    /// The next row, or None at the end.
    pub fn next(&mut self) -> Result<Option<Row>> {
        Err(todo())
    }
    /// The rows of the command tag; 0 before the end.
    pub fn affected(&self) -> u64 {
        0
    }
}

/// One row, in binary format.
#[derive(Debug)]
pub struct Row;

impl Row {
    /// A column's value; None is NULL.
    pub fn get(&self, _column: usize) -> Option<&[u8]> {
        None
    }
    /// An `int8` column.
    pub fn i64(&self, _column: usize) -> Option<i64> {
        None
    }
    /// An `int4` column.
    pub fn i32(&self, _column: usize) -> Option<i32> {
        None
    }
    /// A `text` column.
    pub fn text(&self, _column: usize) -> Option<&str> {
        None
    }
    /// A `bool` column.
    pub fn bool(&self, _column: usize) -> Option<bool> {
        None
    }
}

/// True if this backend's transaction on the server is open, so that reads must go through it.
pub fn in_transaction(_server: Oid) -> bool {
    false
}

/// True if nothing has been written in the remote transaction, so that a failed request may be sent again.
pub fn can_retry(_server: Oid) -> bool {
    true
}

/// Any SQL, possibly several statements, in the remote transaction that follows the local one.
pub fn run(_server: Oid, _sql: &str) -> Result<()> {
    Err(todo())
}

/// Closes this backend's cached connections of a server.
pub fn forget(_server: Oid) {}

/// The libpq options of a server and a user's mapping there.
pub fn connection_options(_server: Oid, _user: Oid) -> Result<Vec<(String, String)>> {
    Err(todo())
}

/// Parses a libpq connection string or URI.
pub fn parse_conninfo(_conninfo: &str) -> Result<Vec<(String, String)>> {
    Err(todo())
}

/// Who decides the outcome of a transaction that was prepared on shards.
pub trait Coordinator {
    /// The part of the prepared transactions' names that tells this cluster from others: letters and digits.
    fn token(&self) -> Result<String> {
        Ok("0".into())
    }
    /// Writes the decision into the local transaction, after all shards have prepared.
    fn decide(&self, gids: &[(Oid, String)]) -> Result<()>;
    /// The shards have committed these; called after the local commit, so without access to tables.
    fn finished(&self, gids: &[(Oid, String)]);
}

/// Sets the coordinator, once.
pub fn set_coordinator(_coordinator: &'static dyn Coordinator) {}

/// A connection of its own, outside the caller's transaction.
#[derive(Debug)]
pub struct Session;

impl Session {
    /// Connects as a cached connection of `user` would.
    pub fn open(_server: Oid, _user: Oid) -> Result<Session> {
        Err(todo())
    }
    /// Connects with libpq's keywords.
    pub fn open_conninfo(_keywords: &[(String, String)]) -> Result<Session> {
        Err(todo())
    }
    /// One statement and all its rows.
    pub fn query(&mut self, _sql: &str, _params: &[Param<'_>]) -> Result<Vec<Row>> {
        Err(todo())
    }
    /// SQL, possibly many statements.
    pub fn execute(&mut self, _sql: &str) -> Result<()> {
        Err(todo())
    }
    /// Sends one statement without awaiting its answer.
    pub fn start(&mut self, _sql: &str, _params: &[Param<'_>]) -> Result<()> {
        Err(todo())
    }
    /// Waits for the statement's answer; None if the time is over. A negative time waits for ever.
    pub fn poll_finish(&mut self, _timeout_ms: i64) -> Result<Option<Vec<Row>>> {
        Err(todo())
    }
    /// Cancels the statement that is running.
    pub fn cancel(&mut self) {}
}
