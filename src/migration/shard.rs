//! Sessions of a move on its shards, the router's own database included: all are reached over libpq alike.

use crate::catalog::cache;
use crate::catalog::model::{Place, Shard};
use crate::pg::error::{Error, Result};
use crate::pg::server::foreign_server_oid;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::quote_literal;
use crate::pg::transaction;
use crate::protocol::Connection;
use crate::remote::{Row, Session};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::Kind;

/// The foreign server through which the router, and other shards, reach the router's own database.
pub const LOCAL_SERVER: &str = "docshard_local";

/// A session on a shard.
#[derive(Debug)]
pub struct Remote {
    /// the shard's name
    pub name: String,
    /// the foreign server's name, the same on the router and on all other shards
    pub server: String,
    session: Session,
}

/// What every session of a move wants, whatever the role or the database says.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp; SET statement_timeout = 0; SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0; \
    SET client_connection_check_interval = '2s'; SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_read_only = off; SET default_transaction_deferrable = off; SET row_security = off";

impl Remote {
    /// Opens a session on a shard, as the service role. Called inside a transaction.
    ///
    /// # Errors
    /// `HostUnreachable` and its relatives.
    pub fn open(shard: &Shard, application: &str) -> Result<Self> {
        let (server, oid) = match (shard.place, &shard.server) {
            (Place::Remote(oid), Some(server)) => (server.clone(), oid),
            _ => {
                let oid = foreign_server_oid(LOCAL_SERVER).ok_or_else(|| {
                    Error::new(
                        Kind::OperationFailed,
                        format!(
                            "chunks of shard \"{}\" cannot be moved: there is no foreign server \"{LOCAL_SERVER}\"",
                            shard.name
                        ),
                    )
                    .with_hint("docshard.add_shard makes it when the first other shard is added.")
                })?;
                (LOCAL_SERVER.to_owned(), oid)
            }
        };
        let named =
            |e: Error| if e.context.is_some() { e } else { e.with_context(format!("shard \"{}\"", shard.name)) };
        let mut session = Session::open(oid).map_err(named)?;
        session.execute(&format!("{SETTINGS}; SET application_name = {}", quote_literal(application)))?;
        Ok(Self { name: shard.name.clone(), server, session })
    }

    /// Statements here may wait for the other's shard.
    pub(super) fn waits_also_for(&mut self, other: &Self) {
        self.session.waits_also_for(&other.session);
    }

    /// One statement and all its rows.
    ///
    /// # Errors
    /// The shard's, naming it.
    pub fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.session.query(sql, params).map_err(|e| self.named(e))
    }

    /// SQL without answer.
    ///
    /// # Errors
    /// As [`Remote::query`].
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        self.session.execute(sql).map_err(|e| self.named(e))
    }

    /// The first column of the only row, an int8; None if there is no row, or it is null.
    ///
    /// # Errors
    /// As [`Remote::query`].
    pub fn number(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Option<i64>> {
        Ok(self.query(sql, params)?.first().and_then(|row| row.i64(0)))
    }

    /// Sends one statement without waiting for its answer, for which [`Remote::finish`] asks.
    ///
    /// # Errors
    /// As [`Remote::query`].
    pub fn start(&mut self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        self.session.start(sql, params).map_err(|e| self.named(e))
    }

    /// Waits for the answer of what [`Remote::start`] sent.
    ///
    /// # Errors
    /// As [`Remote::query`].
    pub fn finish(&mut self) -> Result<Vec<Row>> {
        self.session.poll_finish(-1).map(Option::unwrap_or_default).map_err(|e| self.named(e))
    }

    /// As [`Remote::finish`], for at most so many milliseconds; None if the answer is not there yet.
    ///
    /// # Errors
    /// As [`Remote::query`].
    pub fn poll(&mut self, milliseconds: i64) -> Result<Option<Vec<Row>>> {
        self.session.poll_finish(milliseconds).map_err(|e| self.named(e))
    }

    /// Cancels what [`Remote::start`] sent, if it has not been answered, and throws the answer away.
    pub fn cancel(&mut self) {
        self.session.cancel();
    }

    /// The session has read at another shard, and ends.
    pub fn leave(mut self) {
        self.session.close_foreign();
    }

    fn named(&self, error: Error) -> Error {
        if error.context.is_some() { error } else { error.with_context(format!("shard \"{}\"", self.name)) }
    }
}

impl Connection for Remote {
    type Row = Row;

    fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        Remote::query(self, sql, params)
    }

    fn start(&mut self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        Remote::start(self, sql, params)
    }
}

/// Opens a session of a move, in a transaction of its own.
///
/// # Errors
/// As [`Remote::open`]; `ShardNotFound`.
pub fn connect(shard: ShardId, application: &str) -> Result<Remote> {
    transaction::run(|| Remote::open(&*cache::shard(shard)?, application))
}
