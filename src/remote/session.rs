//! A connection of its own, outside the caller's transaction: for migrations, workers, recovery, checks of a new shard.

use super::ffi::{self, Status};
use super::handshake;
use super::login;
use super::options::{self, Route};
use super::param::{Encoded, Param};
use super::row::Row;
use super::wire::{Limit, Lost, Wire};
use crate::pg::error::{Error, Result};
use crate::protocol::node::SayHello;
use crate::protocol::{Call, Connection};
use crate::remote::refusal::REFUSED_CONNECTION;
use docshard_core::cluster::handshake::Hello;
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long dropping or cancelling waits for the other side.
const CANCEL: Duration = Duration::from_secs(2);

/// How long what is to be done first waits for transactions at the shard, in milliseconds.
const CATCH_UP_MS: u32 = 2_000;

/// SQLSTATE `lock_not_available`.
const LOCK_NOT_AVAILABLE: [u8; 5] = *b"55P03";

/// A connection of its own. Statements commit by themselves unless [`Session::execute`] begins a transaction. A commit survives a
/// crash of the shard and a failover to its synchronous standby, whatever `synchronous_commit` is there.
///
/// Dropping it cancels what runs and closes the connection, which rolls back what is open.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    scratch: Encoded,
    /// an answer is outstanding
    active: bool,
    broken: bool,
    server: Option<Oid>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.active && !self.broken {
            self.cancel();
        }
    }
}

impl Session {
    /// Connects as the service role, under the same rules as cached connections.
    ///
    /// The handshake is a round trip of its own, as what sessions do (COMMIT PREPARED, text of several statements) cannot
    /// share a transaction with it.
    ///
    /// # Errors
    /// What connecting answers; 08004 for a server that is not the shard that the catalog knows.
    pub fn open(server: Oid) -> Result<Session> {
        let mut session = Self::greet(server, |hello| hello)?;
        for sql in handshake::pending(server)? {
            session.catch_up(&sql)?;
        }
        Ok(session)
    }

    /// As [`Session::open`], at a shard however far it has come.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_at_any_position(server: Oid) -> Result<Session> {
        Self::greet(server, |hello| Hello { known: None, ..hello })
    }

    fn greet(server: Oid, saying: impl Fn(Hello) -> Hello) -> Result<Session> {
        loop {
            let (_, wire) = login::connect(server, |route| durable(&route.options))?;
            let host = wire.host;
            let mut session = Self::of(wire);
            session.server = Some(server);
            let Some(hello) = handshake::hello(server)?.map(&saying) else { return Ok(session) };
            match session.say(&hello) {
                Err(error) if error.sqlstate == REFUSED_CONNECTION && login::pass_over(server, host) => {}
                said => return said.map(|()| session),
            }
        }
    }

    /// This is not the server that was meant. True if the shard has another host, to which the next session connects.
    pub fn reject(self) -> bool {
        self.server.is_some_and(|server| login::pass_over(server, self.wire.host))
    }

    fn say(&mut self, hello: &Hello) -> Result<()> {
        let say = SayHello::of(hello, true);
        let rows = self.query(&SayHello::statement(), &say.params())?;
        handshake::accept(hello, &rows).map(drop)
    }

    /// Connects without handshake, taking no more than so many seconds for a host: for who asks itself which shard this is and
    /// whose.
    ///
    /// # Errors
    /// What connecting answers.
    pub fn open_ungreeted(server: Oid, seconds: u32) -> Result<Session> {
        let brief = |route: &Route| options::with_connect_timeout(&durable(&route.options), seconds);
        let (_, wire) = login::connect(server, brief)?;
        let mut session = Self::of(wire);
        session.server = Some(server);
        Ok(session)
    }

    /// Does what was to be done while the shard was not there. What a transaction uses, one that is prepared perhaps, is left for
    /// later, as that transaction's end may need a session.
    fn catch_up(&mut self, sql: &str) -> Result<()> {
        match self.execute(&format!("BEGIN; SET LOCAL lock_timeout = '{CATCH_UP_MS}'; {sql}; COMMIT")) {
            Err(error) if error.sqlstate == LOCK_NOT_AVAILABLE => self.execute("ROLLBACK"),
            other => other,
        }
    }

    /// Connects with libpq's options; a database name is a name, not a connection string. `needs_password`: the other side
    /// must ask for the password.
    pub fn open_conninfo(keywords: &[(String, String)], needs_password: bool) -> Result<Session> {
        let mut keywords = keywords.to_vec();
        let value = |keyword: &str| keywords.iter().find(|(k, _)| k == keyword).map(|(_, v)| v.clone());
        let host = value("host").or_else(|| value("hostaddr")).unwrap_or_else(|| "local socket".into());
        let name = value("port").map_or(host.clone(), |port| format!("{host}:{port}"));
        options::finish(&mut keywords);
        Ok(Self::of(Wire::connect(&name, &durable(&keywords), needs_password, &[])?))
    }

    fn of(wire: Wire) -> Session {
        Session { wire, scratch: Encoded::default(), active: false, broken: false, server: None }
    }

    /// Statements here may wait for the other session's shard, as its documents are pulled from there, say.
    pub fn waits_also_for(&mut self, other: &Session) {
        self.wire.waits_also_for(&other.wire);
    }

    /// Says hello as at a shard's server, though the session was opened by another address: fails if it is another shard, or an older
    /// copy of it.
    ///
    /// # Errors
    /// 08004 for what is not the shard that the catalog knows.
    pub fn greet_as(&mut self, server: Oid) -> Result<()> {
        handshake::hello(server)?.map_or(Ok(()), |hello| self.say(&hello))
    }

    /// Runs one statement and returns all its rows.
    pub fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.start(sql, params)?;
        self.finish(Limit::Served).map(Option::unwrap_or_default)
    }

    /// As [`Session::query`], within so many milliseconds.
    ///
    /// # Errors
    /// `HostUnreachable` if that is not enough.
    pub fn query_within(&mut self, sql: &str, params: &[Param<'_>], milliseconds: i64) -> Result<Vec<Row>> {
        self.start(sql, params)?;
        self.poll_finish(milliseconds)?.ok_or_else(|| {
            Error::new(Kind::HostUnreachable, format!("shard \"{}\" does not answer", self.wire.shard()))
        })
    }

    /// Runs SQL text, any number of statements.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        self.ready()?;
        let text = CString::new(sql).map_err(|_| contains_nul())?;
        let sent = self.wire.pg.send_text(&text);
        self.sent(sent)?;
        self.finish(Limit::Served).map(drop)
    }

    /// Closes in order what postgres_fdw has opened for this session from where it leads to. Else the servers there take its end for
    /// an accident, and log it. Outside a transaction there.
    pub fn close_foreign(&mut self) {
        let schema = "SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e \
                      JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'postgres_fdw'";
        let found = self.query(schema, &[]).ok();
        if let Some(schema) = found.as_ref().and_then(|rows| rows.first()).and_then(|row| row.text(0)) {
            let _ = self.query(&format!("SELECT {schema}.postgres_fdw_disconnect_all()"), &[]);
        }
    }

    /// Sends one statement without awaiting its answer, for which [`Session::poll_finish`] asks.
    pub fn start(&mut self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        self.ready()?;
        let text = CString::new(sql).map_err(|_| contains_nul())?;
        if !self.scratch.encode(params) {
            return Err(Error::new(Kind::BSONObjectTooLarge, "a parameter is too long for a message"));
        }
        let sent = self.wire.pg.send_params(&text, &self.scratch);
        self.sent(sent)
    }

    /// Waits for the answer to [`Session::start`]; None if it isn't there in time. Negative is for ever, 0 only looks.
    pub fn poll_finish(&mut self, timeout_ms: i64) -> Result<Option<Vec<Row>>> {
        let Ok(timeout) = u64::try_from(timeout_ms) else { return self.finish(Limit::Served) };
        if timeout == 0 && self.active && !self.wire.pg.consume() {
            return Err(self.broken(&Lost::Broken(self.wire.pg.message())));
        }
        self.finish(Limit::ServedUntil(Instant::now() + Duration::from_millis(timeout)))
    }

    /// Cancels the statement that runs and throws its answer away, within two seconds; beyond them the session is
    /// unusable.
    pub fn cancel(&mut self) {
        if !self.active || self.broken {
            return;
        }
        let deadline = Instant::now() + CANCEL;
        let taken = self.wire.pg.canceller().is_some_and(|c| ffi::await_cancel(&c.send(), deadline));
        let drained = taken && self.wire.finish(Limit::Until(deadline)).is_ok();
        self.active = false;
        self.broken = !drained;
    }

    /// False after the connection was lost.
    pub fn is_usable(&self) -> bool {
        !self.broken && self.wire.pg.is_good()
    }

    fn ready(&mut self) -> Result<()> {
        if self.broken {
            return Err(self.wire.broken(&self.wire.pg.message()));
        }
        if self.active {
            return Err(Error::new(Kind::InternalError, "the session has a statement running"));
        }
        Ok(())
    }

    fn sent(&mut self, sent: bool) -> Result<()> {
        self.active = true;
        if !sent || self.wire.sent().is_err() {
            return Err(self.broken(&Lost::Broken(self.wire.pg.message())));
        }
        Ok(())
    }

    fn broken(&mut self, lost: &Lost) -> Error {
        self.broken = true;
        self.active = false;
        self.wire.lost(lost)
    }

    /// Reads to the command's end.
    fn finish(&mut self, limit: Limit) -> Result<Option<Vec<Row>>> {
        if !self.active {
            return Err(Error::new(Kind::InternalError, "the session has no statement running"));
        }
        match self.wire.finish(limit) {
            Err(Lost::Late) => Ok(None),
            Err(lost) => Err(self.broken(&lost)),
            Ok(None) => Err(self.broken(&Lost::Broken(self.wire.pg.message()))),
            Ok(Some(result)) => {
                self.active = false;
                match result.status() {
                    Status::Error => {
                        self.broken = result.is_fatal() || !self.wire.pg.is_good();
                        Err(self.wire.report(&result))
                    }
                    Status::Unexpected => Err(self.broken(&Lost::Broken("unexpected answer".into()))),
                    _ => Ok(Some(Row::all(result))),
                }
            }
        }
    }
}

impl Connection for Session {
    type Row = Row;

    fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        Session::query(self, sql, params)
    }

    fn start(&mut self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        Session::start(self, sql, params)
    }
}

/// What is done in a session, the catalog relies on afterwards.
fn durable(options: &[(String, String)]) -> Vec<(String, String)> {
    options::with_setting(options, "synchronous_commit=on")
}

fn contains_nul() -> Error {
    Error::new(Kind::BadValue, "a statement contains NUL")
}
