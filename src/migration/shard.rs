//! Sessions of the router on a shard, for moves, changes of layout and index builds. The router's own database is reached over libpq, too.

use super::record::Record;
use crate::catalog::cache;
use crate::catalog::cluster::shard::{LOCAL_SERVER, Shard};
use crate::pg::error::{Error, Result};
use crate::pg::server::foreign_server_oid;
use crate::pg::transaction;
use crate::remote::{RemoteRow, Session};
use crate::shard::access::ADDRESS;
use crate::storage::lock::{self, Tag};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Found, Part};
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::Connection;
use docshard_core::routing::protocol::node::ReadPrepared;
use docshard_core::routing::protocol::shard_tables::ReadPlacements;
use docshard_core::sql::column::Column;
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_literal;
use docshard_core::sql::record;

/// The application name of sessions that complete or clean up moves, changes of layout and index builds. It differs from the name of the
/// sessions that do the work, because cleaning up terminates all sessions with that name.
pub const RECOVERY: &str = "docshard recovery";

/// The settings of every session; they override those of the role and the database. Before PostgreSQL 17 there is no
/// `transaction_timeout`.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp; SET statement_timeout = 0; SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0; \
    SET client_connection_check_interval = '2s'; SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_read_only = off; SET default_transaction_deferrable = off; SET row_security = off; \
    SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'";

/// Returns the hint to call `add_shard`, which restores the foreign servers and logins by which shards reach each other.
pub(super) fn repair_hint(shard: &str) -> String {
    format!(
        "Call docshard.add_shard() with the address and the name of the shard \"{shard}\": it sets the servers and logins between the \
         shards again."
    )
}

/// A session on a shard. Errors name the shard.
#[derive(Debug)]
pub struct ShardSession {
    pub name: String,
    /// The foreign server, which has the same name on the router and on all other shards.
    pub server: String,
    session: Session,
}

impl ShardSession {
    /// Opens a session as the service role. Must be called inside a transaction.
    pub fn open(shard: &Shard, application: &str) -> Result<Self> {
        let (server, oid) = match &shard.server {
            Some(server) => (server.name.as_str(), server.oid),
            None => {
                let missing = || {
                    error!(
                        Kind::OperationFailed,
                        "chunks of shard \"{}\" cannot be moved: there is no foreign server \"{LOCAL_SERVER}\"",
                        shard.name
                    )
                    .with_hint("docshard.add_shard() creates it when the first other shard is added.")
                };
                (LOCAL_SERVER, foreign_server_oid(LOCAL_SERVER).ok_or_else(missing)?)
            }
        };
        let session = Session::open(oid).map_err(|error| name_shard(error, &shard.name))?;
        let mut opened = Self { name: shard.name.clone(), server: server.to_owned(), session };
        opened.execute(&format!("{SETTINGS}; SET application_name = {}", quote_literal(application)))?;
        Ok(opened)
    }

    /// Declares that statements of this session may wait for the other session's shard. While this session waits, that shard is then
    /// probed, too.
    pub fn waits_also_for(&mut self, other: &Self) {
        self.session.waits_also_for(&other.session);
    }

    pub fn query<T: record::Record>(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
        self.named(|session| session.query(sql, params))
    }

    /// Runs statements that return nothing.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        self.named(|session| session.execute(sql))
    }

    /// Commits or rolls back a prepared transaction, unless another process has ended it.
    pub fn end_prepared(&mut self, gid: &str, commits: bool) -> Result<()> {
        self.named(|session| session.end_prepared(gid, commits))
    }

    /// Terminates the other sessions of this role on the shard whose last statement names a prepared transaction; returns how many there were.
    /// Where PostgreSQL's `track_activities` is off, statements are not known: then all sessions count that are older than the one with which this
    /// router holds the shard's lock, so those of a former server.
    pub fn end_users_of(&mut self, gid: &str) -> Result<i64> {
        let is_router = lock::is_held_in_pg_locks(Tag::Router);
        let ended = self.query::<i64>(
            &format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user \
                 AND (strpos(query, $1) > 0 OR state = 'disabled' AND backend_start < (SELECT min(backend_start) \
                 FROM pg_catalog.pg_stat_activity WHERE pid IN (SELECT pid FROM pg_catalog.pg_locks WHERE {is_router})))"
            ),
            &[Param::Text(gid)],
        )?;
        Ok(ended.into_iter().sum())
    }

    /// Terminates the other sessions on the shard that have this application name. Waits up to 5 seconds for each; returns how many have
    /// not ended. Any role may use the name, so sessions of roles whose rights this one does not have stay, and do not count.
    pub fn end_sessions(&mut self, application: &str) -> Result<i64> {
        let staying = self.query::<i64>(
            "SELECT count(*) FILTER (WHERE NOT pg_terminate_backend(pid, 5000)) FROM pg_catalog.pg_stat_activity \
             WHERE application_name = $1 AND datname = current_database() AND pid <> pg_backend_pid() \
             AND pg_catalog.pg_has_role(usesysid, 'USAGE')",
            &[Param::Text(application)],
        )?;
        Ok(staying.into_iter().sum())
    }

    /// Waits for the answer.
    pub fn finish(&mut self) -> Result<Vec<RemoteRow>> {
        self.poll(-1).map(Option::unwrap_or_default)
    }

    /// Waits up to `milliseconds` for the answer; None if it has not arrived.
    pub fn poll(&mut self, milliseconds: i64) -> Result<Option<Vec<RemoteRow>>> {
        self.named(|session| session.poll_finish(milliseconds))
    }

    /// Cancels a started statement that has not been answered, and discards the answer.
    pub fn cancel(&mut self) {
        self.session.cancel();
    }

    /// Closes the postgres_fdw connections of a session that has read from another shard, and then the session.
    pub fn leave(mut self) {
        self.session.close_foreign();
    }

    /// Returns the shard's address options with the host that this session has reached moved to the front of the list; None if there is
    /// only one host.
    pub(super) fn address_with_host_first(&self) -> Result<Option<Vec<(String, String)>>> {
        let options = transaction::run(|| self.session.options_with_host_first())?;
        Ok(options.map(|mut options| {
            options.retain(|(option, _)| ADDRESS.contains(&option.as_str()));
            options
        }))
    }

    /// Prepares the session's transaction and checks that it is prepared: for a failed transaction, PREPARE TRANSACTION rolls back without
    /// an error.
    pub(super) fn prepare(&mut self, gid: &str) -> Result<()> {
        self.execute(&format!("PREPARE TRANSACTION {}", quote_literal(gid)))?;
        if self.is_prepared(gid)? {
            return Ok(());
        }
        Err(error!(Kind::OperationFailed, "shard \"{}\" did not prepare its part of the move", self.name))
    }

    pub(super) fn is_prepared(&mut self, gid: &str) -> Result<bool> {
        Ok(ReadPrepared { prefixes: &[gid] }.call(self)?.iter().any(|name| name == gid))
    }

    pub(super) fn commit_prepared(&mut self, gid: &str) -> Result<()> {
        self.named(|session| session.end_prepared(gid, true))
    }

    pub(super) fn rollback_prepared(&mut self, gid: &str) -> Result<()> {
        self.named(|session| session.end_prepared(gid, false))
    }

    /// Returns the shard's placement version of the move's collection; None if it has none.
    pub(super) fn version(&mut self, record: &Record) -> Result<Option<i64>> {
        let placed = ReadPlacements { collection: Some(record.collection) }.call(self)?;
        Ok(placed.iter().find(|row| row.token == record.token).map(|row| row.version))
    }

    /// Returns the state of the shard's part of a move that is known to be committed.
    pub(super) fn part(&mut self, record: &Record, gid: &str) -> Result<Part> {
        if self.is_prepared(gid)? {
            return Ok(Part::Prepared);
        }
        let is_committed = self.version(record)?.is_some_and(|version| version >= record.version);
        Ok(if is_committed { Part::Committed } else { Part::Nothing })
    }

    /// Returns the state of the shard's part of a move, without assuming, as [`Self::part`] does, that the move is committed. For moves
    /// that another server has begun, or whose other shard is lost.
    pub(super) fn find_part(&mut self, record: &Record, gid: &str) -> Result<Found> {
        if self.is_prepared(gid)? {
            return Ok(Found::Prepared);
        }
        Ok(Found::at(self.version(record)?, record.version))
    }

    fn named<T>(&mut self, run: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        run(&mut self.session).map_err(|error| name_shard(error, &self.name))
    }
}

fn name_shard(error: Error, shard: &str) -> Error {
    if error.has_place() { error } else { error.at_shard(shard) }
}

impl Connection for ShardSession {
    type Row = RemoteRow;

    fn ask(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<Vec<RemoteRow>> {
        self.named(|session| session.ask(sql, params, columns))
    }

    fn start(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<()> {
        self.named(|session| session.start(sql, params, columns))
    }

    fn name_node(&self, error: Error) -> Error {
        name_shard(error, &self.name)
    }
}

/// Opens a session, in a separate transaction.
pub fn connect(shard: ShardId, application: &str) -> Result<ShardSession> {
    transaction::run(|| ShardSession::open(&*cache::shard(shard)?, application))
}

/// Sessions on both shards of a move. They are opened when they are needed.
#[derive(Default)]
pub(super) struct Sides {
    pub(super) donor: Option<ShardSession>,
    /// the load session, or a new one
    pub(super) recipient: Option<ShardSession>,
    /// the pull session, which has read from the donor
    pub(super) puller: Option<ShardSession>,
}

impl Sides {
    pub(super) fn donor(&mut self, record: &Record) -> Result<&mut ShardSession> {
        open_once(&mut self.donor, record.donor)
    }

    pub(super) fn recipient(&mut self, record: &Record) -> Result<&mut ShardSession> {
        open_once(&mut self.recipient, record.recipient)
    }
}

fn open_once(side: &mut Option<ShardSession>, shard: ShardId) -> Result<&mut ShardSession> {
    match side {
        Some(session) => Ok(session),
        None => Ok(side.insert(connect(shard, RECOVERY)?)),
    }
}
