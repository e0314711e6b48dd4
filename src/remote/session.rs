//! A connection outside the caller's transaction, for migrations, workers, recovery, and checks of a new shard.

use super::ffi;
use super::handshake;
use super::login;
use super::options::{self, Route};
use super::param::{Encoded, Param, c_string};
use super::row::RemoteRow;
use super::wire::{Finished, Limit, Lost, Wire};
use crate::pg::error::{Error, Result};
use crate::pg::transaction;
use docshard_core::cluster::frontend::Answer;
use docshard_core::cluster::handshake::{Hello, LOCAL, REFUSED_AHEAD};
use docshard_core::error::sqlstate::{LOCK_NOT_AVAILABLE, READ_ONLY, REFUSED_CONNECTION, UNDEFINED_OBJECT};
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::protocol::node::Identity;
use docshard_core::routing::protocol::{Call, Connection};
use docshard_core::sql::column::{Column, Columns};
use docshard_core::sql::quote::quote_literal;
use docshard_core::sql::record::{Record, decode_all};
use pgrx::pg_sys::Oid;
use std::cell::Cell;
use std::time::{Duration, Instant};

const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Lock timeout for missed statements.
const CATCH_UP_MS: u32 = 2_000;

/// A connection outside the caller's transaction. Statements commit by themselves unless [`Session::execute`] begins a transaction.
/// A commit survives a crash of the shard and a failover to its synchronous standby, whatever the shard's `synchronous_commit`.
///
/// A session of a foreign server becomes unusable when the options of the server or of the user mapping lead elsewhere: see
/// [`Destination`].
///
/// Dropping a session cancels the running statement and closes the connection.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    scratch: Encoded,
    /// an answer is outstanding
    active: bool,
    broken: bool,
    /// None for a session that was opened by an address
    destination: Option<Destination>,
}

/// Where a session leads. A session outlives transactions, so it must notice when the options of its server or user mapping change.
#[derive(Debug)]
struct Destination {
    server: Oid,
    /// without the password: a change of the password does not end the session
    options: Vec<Vec<(String, String)>>,
    /// `ffi::option_changes` when the options were compared last
    compared: Cell<u64>,
}

impl Destination {
    fn is_current(&self) -> bool {
        let changes = ffi::option_changes();
        let is_same = || match transaction::within(|| options::route(self.server)) {
            Some(Ok(route)) => options::destination(&route.options) == self.options,
            // The server or the mapping was dropped.
            Some(Err(_)) => false,
            None => true,
        };
        if self.compared.get() != changes {
            if !is_same() {
                return false;
            }
            self.compared.set(changes);
        }
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.active && !self.broken {
            self.cancel();
        }
    }
}

impl Session {
    /// Connects as the service role, under the same rules as cached connections. The handshake takes a round trip of its own, because
    /// COMMIT PREPARED, or a text of several statements, cannot share a transaction with the handshake.
    ///
    /// # Errors
    /// 08004 if the server is not the shard that the catalog names, or if this database's own server leads to another database.
    pub fn open(server: Oid) -> Result<Session> {
        let mut session = Self::greet(server, |hello| hello)?;
        for sql in handshake::pending(server)? {
            session.catch_up(&sql)?;
        }
        Ok(session)
    }

    /// Like [`Session::open`], but accepts any position of the shard, and does not run the statements that the shard has missed.
    pub fn open_at_any_position(server: Oid) -> Result<Session> {
        Self::greet(server, |hello| Hello { known: None, ..hello })
    }

    fn greet(server: Oid, saying: impl Fn(Hello) -> Hello) -> Result<Session> {
        let mut refused_ahead = 0;
        loop {
            let mut session = Self::connect(server, |route| durable(&route.options))?;
            let host = session.wire.host;
            let Some(hello) = handshake::hello(server)?.map(&saying) else { return Ok(session) };
            let said = handshake::greet(&mut session.wire, &hello, true);
            match said.and_then(|()| session.require_here(&hello)) {
                Err(error)
                    if error.sqlstate == REFUSED_CONNECTION && login::pass_over(server, host, &error.message) => {}
                Err(error) if error.sqlstate == READ_ONLY && refused_ahead < REFUSED_AHEAD => refused_ahead += 1,
                said => return said.map(|()| session),
            }
        }
    }

    /// Checks the identity of the database that a session to this database has reached. The handshake does not suffice: the database of a
    /// former router, or a copy of this one, gives the same answer.
    fn require_here(&mut self, hello: &Hello) -> Result<()> {
        if hello.to.shard != LOCAL {
            return Ok(());
        }
        let found = Identity {}.call(self)?;
        handshake::require_here(&found)
    }

    /// The options of the session's server, with the host that the session has reached as the first one. None if the server has only one
    /// host, or if the session was opened by an address.
    pub fn options_with_host_first(&self) -> Result<Option<Vec<(String, String)>>> {
        let Some(to) = &self.destination else { return Ok(None) };
        Ok(options::with_host_first(&options::server_options(to.server)?, self.wire.host))
    }

    /// Passes over a host that turned out to be another server. True if the next session connects to another host.
    pub fn reject(self, why: &str) -> bool {
        self.destination.as_ref().is_some_and(|to| login::pass_over(to.server, self.wire.host, why))
    }

    /// Connects without handshake, with a timeout in seconds for each host.
    pub fn open_ungreeted(server: Oid, seconds: u32) -> Result<Session> {
        Self::connect(server, |route| options::with_connect_timeout(&durable(&route.options), seconds))
    }

    fn connect(server: Oid, complete: impl Fn(&Route) -> Vec<(String, String)>) -> Result<Session> {
        let compared = Cell::new(ffi::option_changes());
        let (route, wire) = login::connect(server, complete)?;
        Ok(Self::of(wire, Some(Destination { server, options: options::destination(&route.options), compared })))
    }

    /// Runs a statement that the shard missed. If another transaction holds a lock that the statement needs, the statement is left to a later
    /// session: the other transaction may be prepared, and the caller may need this session to end it.
    fn catch_up(&mut self, sql: &str) -> Result<()> {
        match self.execute(&format!("BEGIN; SET LOCAL lock_timeout = '{CATCH_UP_MS}'; {sql}; COMMIT")) {
            Err(error) if error.sqlstate == LOCK_NOT_AVAILABLE => self.execute("ROLLBACK"),
            other => other,
        }
    }

    /// Connects with libpq's options. `needs_password`: the server must ask for a password. A database name that looks like a
    /// connection string is not expanded.
    pub fn open_conninfo(keywords: &[(String, String)], needs_password: bool) -> Result<Session> {
        let mut keywords = keywords.to_vec();
        let value = |keyword: &str| keywords.iter().find(|(k, _)| k == keyword).map(|(_, v)| v.clone());
        let host = value("host").or_else(|| value("hostaddr")).unwrap_or_else(|| "local socket".into());
        let name = value("port").map_or(host.clone(), |port| format!("{host}:{port}"));
        options::finish(&mut keywords);
        Ok(Self::of(Wire::connect(&name, &durable(&keywords), needs_password, &[])?, None))
    }

    fn of(wire: Wire, destination: Option<Destination>) -> Session {
        Session { wire, scratch: Encoded::default(), active: false, broken: false, destination }
    }

    /// Declares that statements here may wait for the other session's shard, for example over postgres_fdw.
    pub fn waits_also_for(&mut self, other: &Session) {
        self.wire.waits_also_for(&other.wire);
    }

    /// Performs the handshake of a shard's server, for a session that was opened by another address.
    ///
    /// # Errors
    /// 08004 if the session has reached another shard, or an older copy of the expected one.
    pub fn greet_as(&mut self, server: Oid) -> Result<()> {
        handshake::hello(server)?.map_or(Ok(()), |hello| handshake::greet(&mut self.wire, &hello, true))
    }

    /// Runs one statement, and discards its rows.
    pub fn run(&mut self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        self.begin(sql, params, None)?;
        self.finish(Limit::Served).map(drop)
    }

    /// Runs one statement, and decodes its rows.
    ///
    /// # Errors
    /// 08P01 for rows with other columns.
    pub fn query<T: Record>(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
        let rows = self.ask(sql, params, T::WIRE)?;
        self.decoded(&rows)
    }

    /// Like [`Session::query`]; fails with `HostUnreachable` after this time.
    pub fn query_within<T: Record>(&mut self, sql: &str, params: &[Param<'_>], milliseconds: i64) -> Result<Vec<T>> {
        self.start(sql, params, T::WIRE)?;
        let rows = self.within(milliseconds)?;
        self.decoded(&rows)
    }

    /// Makes a call; fails with `HostUnreachable` after this time.
    pub fn call_within<C: Call>(&mut self, call: &C, milliseconds: i64) -> Result<C::Answer> {
        call.start(self)?;
        let rows = self.within(milliseconds)?;
        C::decode(&rows).map_err(|error| self.name_node(error))
    }

    fn within(&mut self, milliseconds: i64) -> Result<Vec<RemoteRow>> {
        self.poll_finish(milliseconds)?
            .ok_or_else(|| error!(Kind::HostUnreachable, "shard \"{}\" does not answer", self.wire.shard()))
    }

    fn decoded<T: Record>(&self, rows: &[RemoteRow]) -> Result<Vec<T>> {
        decode_all("a statement", rows).map_err(|error| self.name_node(error))
    }

    /// Commits or rolls back a prepared transaction, unless another process has ended it.
    pub fn end_prepared(&mut self, gid: &str, commits: bool) -> Result<()> {
        let verb = if commits { "COMMIT" } else { "ROLLBACK" };
        match self.execute(&format!("{verb} PREPARED {}", quote_literal(gid))) {
            Err(error) if error.sqlstate == UNDEFINED_OBJECT => Ok(()),
            other => other,
        }
    }

    /// Runs SQL text, any number of statements.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        self.ready()?;
        let text = c_string(sql)?;
        let sent = self.wire.pg.send_text(&text, None);
        self.sent(sent)?;
        self.finish(Limit::Served).map(drop)
    }

    /// Closes the connections that postgres_fdw has opened in the shard's session; without this the other servers log lost connections.
    /// Must be called outside a transaction.
    pub fn close_foreign(&mut self) {
        let schema = "SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e \
                      JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'postgres_fdw'";
        for schema in self.query::<String>(schema, &[]).unwrap_or_default() {
            let _ = self.run(&format!("SELECT {schema}.postgres_fdw_disconnect_all()"), &[]);
        }
    }

    fn begin(&mut self, sql: &str, params: &[Param<'_>], columns: Columns) -> Result<()> {
        self.ready()?;
        let text = c_string(sql)?;
        self.scratch.encode(params, columns)?;
        let sent = self.wire.pg.send_params(&text, &self.scratch);
        self.sent(sent)
    }

    /// Awaits the answer to [`Connection::start`]; None after a timeout. A negative timeout waits for ever, 0 does not wait.
    pub fn poll_finish(&mut self, timeout_ms: i64) -> Result<Option<Vec<RemoteRow>>> {
        let Ok(timeout) = u64::try_from(timeout_ms) else { return self.finish(Limit::Served) };
        if timeout == 0 && self.active && !self.wire.pg.consume() {
            let loss = self.wire.loss();
            return Err(self.broken(&loss));
        }
        self.finish(Limit::ServedUntil(Instant::now() + Duration::from_millis(timeout)))
    }

    /// Cancels the running statement and discards its answer. If that takes longer than [`CANCEL_TIMEOUT`] the session is broken.
    pub fn cancel(&mut self) {
        if !self.active || self.broken {
            return;
        }
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        let taken = self.wire.pg.canceller().is_some_and(|c| ffi::await_cancel(&c.send(), deadline));
        let drained = taken && self.wire.finish(Limit::Until(deadline)).is_ok();
        self.active = false;
        self.broken = !drained;
    }

    /// False if the connection is lost, or its server's options have changed.
    pub fn is_usable(&self) -> bool {
        !self.broken && self.wire.pg.is_good() && self.leads_to_its_server()
    }

    fn leads_to_its_server(&self) -> bool {
        self.destination.as_ref().is_none_or(Destination::is_current)
    }

    fn ready(&mut self) -> Result<()> {
        if self.broken {
            return Err(self.wire.broken(&self.wire.pg.message()));
        }
        if self.active {
            bail!(Kind::InternalError, "the session has a statement running");
        }
        if !self.leads_to_its_server() {
            return Err(self.broken(&Lost::Broken("the options of its foreign server have changed".to_owned())));
        }
        Ok(())
    }

    fn sent(&mut self, sent: bool) -> Result<()> {
        self.active = true;
        if !sent {
            let loss = self.wire.loss();
            return Err(self.broken(&loss));
        }
        self.wire.sent();
        Ok(())
    }

    fn broken(&mut self, lost: &Lost) -> Error {
        self.broken = true;
        self.active = false;
        self.wire.lost(lost)
    }

    fn finish(&mut self, limit: Limit) -> Result<Option<Vec<RemoteRow>>> {
        ensure!(self.active, Kind::InternalError, "the session has no statement running");
        match self.wire.finish(limit) {
            Err(Lost::Late) => Ok(None),
            Err(lost) => Err(self.broken(&lost)),
            Ok(None) => {
                let loss = self.wire.loss();
                Err(self.broken(&loss))
            }
            Ok(Some(Finished { result, rows })) => {
                self.active = false;
                let Answer::Error(report) = result else { return Ok(Some(rows)) };
                self.broken = report.is_fatal() || !self.wire.pg.is_good();
                Err(self.wire.report(&report))
            }
        }
    }
}

impl Connection for Session {
    type Row = RemoteRow;

    fn ask(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<Vec<RemoteRow>> {
        self.start(sql, params, columns)?;
        self.finish(Limit::Served).map(Option::unwrap_or_default)
    }

    fn start(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<()> {
        self.begin(sql, params, Some(columns.into()))
    }

    fn name_node(&self, error: Error) -> Error {
        error.at_shard(self.wire.shard())
    }
}

/// Makes commits durable, because the router's catalog assumes that what a session has committed is not lost.
fn durable(options: &[(String, String)]) -> Vec<(String, String)> {
    options::with_setting(options, "synchronous_commit=on")
}
