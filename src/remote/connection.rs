//! A cached connection to one shard, whose remote transaction follows the local one.
//!
//! A request is sent as one batch, in one network write: `BEGIN` and savepoints that the remote transaction lacks, new prepared
//! statements, the preamble, the statement. `steps` holds the expected answers in order. A batch that is one prepared statement
//! is sent by itself, any other batch as a pipeline.
//!
//! The first write at a shard is sent without `BEGIN` if it goes to this shard alone: an *implicit transaction*. PostgreSQL
//! executes the commands between two synchronisation points of a pipeline as one transaction. The pipeline stays open, a flush
//! request asks for its answers, and its synchronisation point is sent in place of `COMMIT`. Until then an error, a lost
//! connection, or `BEGIN` and `ROLLBACK` in the pipeline roll back. Before a savepoint, PREPARE TRANSACTION or SQL text, `BEGIN`
//! turns the implicit transaction into a transaction block.
//!
//! Invariants: a batch is sent only while `steps` is empty and no text command is active. `steps` is complete before the
//! connection waits for anything, so it can be drained after any interrupt. While a transaction is implicit, the wire is in
//! pipeline mode and no synchronisation point is outstanding. A broken connection is never used again; it is kept until its
//! transaction ends.

mod deciding;
mod draining;
mod ending;
mod receiving;
mod session_state;
mod watch;

use self::session_state::SessionState;
pub use self::session_state::grants_changed;
use super::ffi::{HoldCancel, Local, Xact};
use super::handshake::{self, HandshakeState};
use super::login;
use super::options::{self, Route};
use super::param::{Encoded, Request, Role, Sql, c_string};
use super::prepared::Prepared;
use super::row::Spool;
use super::session::Session;
use super::wire::{Finished, Limit, Lost, Wire};
use crate::pg::error::{Error, Result};
use crate::pg::server::current_user;
use docshard_core::cluster::connection::ConnectionState;
use docshard_core::cluster::frontend::Answer;
use docshard_core::error::sqlstate::{self, REFUSED_CONNECTION};
use docshard_core::error::{Kind, bail};
use docshard_core::sql::column::Columns;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long cleanup may take before the connection is closed. The shard's session then ends by its
/// `client_connection_check_interval`.
pub(super) const CLEANUP: Duration = Duration::from_secs(2);

/// How long cleanup may take after a cancel, while the client waits for its error.
pub(super) const PROMPT: Duration = Duration::from_millis(900);

/// Rolls an implicit transaction back. After `ROLLBACK` alone the shard would warn that there is no transaction.
const ROLL_BACK: &[&CStr] = &[c"BEGIN", c"ROLLBACK"];

/// The place of a stream's unread rows.
#[derive(Debug)]
pub(super) enum Phase {
    /// on the connection
    Live,
    /// in a spool, as another statement needed the connection
    Spooled(Spool),
    Done,
    Failed(Error),
    Dropped,
}

/// The state that a stream and its connection share.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    pub(super) affected: u64,
}

/// An expected answer, named by the command of the batch that it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// to BEGIN or SAVEPOINT, which gives the remote transaction this depth
    Open(i32),
    /// to the SAVEPOINT of a subtransaction that has committed meanwhile
    Outlived(i32),
    Handshake,
    /// to the preparation of the statement with this number
    Prepare(u64),
    /// to an auxiliary statement, such as the preamble or `SET`; its rows are discarded
    Silent,
    /// to the statement whose rows are the stream's
    Main,
    /// to a statement of a [`super::Feed`]
    Fed,
    Sync,
}

/// The reason why there is no next row.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(Error),
    /// the time limit has passed
    Late,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Properties of the batch in flight, or of the last one.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    write: bool,
    /// after an error the whole remote transaction may be rolled back: before this batch it had written nothing, and its snapshot need
    /// not be kept
    fresh: bool,
    /// the local nest level
    level: i32,
    /// the current user when the batch was sent
    user: Oid,
}

/// The largest number of rows that the statements of a batch other than the main one may return in total. Each returns at most one row;
/// the limit stops a shard that sends rows without end.
const MAX_UNREAD_ROWS: u32 = 1_000;

/// Exists from the moment when a write that commits by itself is sent until the local transaction ends.
#[derive(Debug)]
struct Deciding {
    _hold: HoldCancel,
    /// a cancel that was passed on to the shard
    cancelling: Option<Receiver<()>>,
    /// when a cancel of this process must have had its effect; None without a cancel
    deadline: Option<Instant>,
    /// the cancel was passed on to end a deadlock
    is_victim: bool,
    committed: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) server: Oid,
    pub(super) server_hash: u32,
    pub(super) mapping_hash: u32,
    pub(super) wire: Wire,
    pub(super) state: ConnectionState,
    deciding: Option<Deciding>,
    handshake: HandshakeState,
    /// whether the shard can prepare transactions; None: not asked yet
    pub(super) two_phase: Option<bool>,
    session: SessionState,
    steps: VecDeque<Step>,
    failure: Option<Error>,
    /// the error of the read that has aborted the remote transaction, and the user who ran that read
    abort_cause: Option<(Error, Oid)>,
    affected: u64,
    batch: Batch,
    current: Option<Rc<RefCell<Progress>>>,
    prepared: Prepared,
    /// statements whose preparation is unconfirmed
    preparing: Vec<u64>,
    /// the next batch begins with DEALLOCATE ALL
    purge: bool,
}

impl Connection {
    pub(super) fn open(id: u64, server: Oid) -> Result<Self> {
        // A session runs the statements that the shard has missed, after its handshake.
        if !handshake::pending(server)?.is_empty() {
            drop(Session::open(server)?);
        }
        let (route, wire) = Self::connect(server)?;
        Ok(Self {
            id,
            server,
            server_hash: route.server_hash,
            mapping_hash: route.mapping_hash,
            wire,
            state: ConnectionState::NEW,
            deciding: None,
            handshake: HandshakeState::Due,
            two_phase: None,
            session: SessionState::new(),
            steps: VecDeque::new(),
            failure: None,
            abort_cause: None,
            affected: 0,
            batch: Batch::default(),
            current: None,
            prepared: Prepared::default(),
            preparing: Vec::new(),
            purge: false,
        })
    }

    /// Connects. The first of several hosts that accepts the login may be an old primary. So with several hosts the handshake is made
    /// before the first statement, and a host that refuses it is passed over.
    fn connect(server: Oid) -> Result<(Route, Wire)> {
        loop {
            let (route, mut wire) = login::connect(server, Self::settings)?;
            let is_only = options::alternatives(&route.options).len() == 1;
            let Some(hello) = (if is_only { None } else { handshake::hello(server)? }) else {
                return Ok((route, wire));
            };
            match handshake::greet(&mut wire, &hello, false) {
                Err(error)
                    if error.sqlstate == REFUSED_CONNECTION && login::pass_over(server, wire.host, &error.message) => {}
                said => return said.map(|()| (route, wire)),
            }
        }
    }

    fn settings(route: &Route) -> Vec<(String, String)> {
        let options = options::with_setting(&route.options, "plan_cache_mode=force_generic_plan");
        // For transactions without BEGIN.
        let mut options = options::with_setting(&options, "default_transaction_isolation=read\\ committed");
        if options::shares_processors(&route.options) {
            // The shards work in parallel already, on the same processors.
            options = options::with_setting(&options, "max_parallel_workers_per_gather=0");
        }
        options
    }

    pub(super) fn is_busy(&self) -> bool {
        self.state.is_busy(!self.steps.is_empty())
    }

    /// True if the local transaction does not need the connection.
    pub(super) fn is_idle(&self) -> bool {
        self.state.depth() == 0 && !self.is_busy()
    }

    /// True if the remote transaction may have written.
    pub(super) fn is_writer(&self) -> bool {
        self.state.has_written() || (self.is_busy() && self.batch.write)
    }

    /// True if the batch in flight was sent in the subtransaction of this level, or in a nested one.
    pub(super) fn is_busy_since(&self, level: i32) -> bool {
        self.is_busy() && self.batch.level >= level
    }

    /// True if the last request may be sent again, after [`Connection::undo`].
    pub(super) fn may_retry(&self) -> bool {
        self.state.depth() == 0 || (!self.state.has_written() && !self.state.is_broken() && self.xact() != Xact::Failed)
    }

    /// The remote transaction's state. The wire does not report an implicit transaction: it counts as open until an error or its commit
    /// ends it.
    pub(super) fn xact(&self) -> Xact {
        match (self.state.is_void(), self.state.is_implicit()) {
            (true, _) => Xact::Failed,
            (_, true) => Xact::Open,
            _ => self.wire.pg.xact(),
        }
    }

    /// Prepares an orderly close by reading what has arrived: the kernel resets a connection that is closed with unread data.
    pub(super) fn prepare_to_close(&mut self) {
        if !self.state.is_broken() {
            self.wire.pg.consume();
        }
    }

    /// False if the shard has closed the connection. Must not be called while an answer is outstanding.
    pub(super) fn is_alive(&mut self) -> bool {
        !self.state.is_broken() && self.wire.pg.is_open_and_quiet()
    }

    /// Sends a request. `decides`: the local transaction consists of this request only.
    pub(super) fn send(
        &mut self,
        request: &Request<'_>,
        local: Local,
        decides: bool,
        scratch: &mut Encoded,
    ) -> Result<Rc<RefCell<Progress>>> {
        self.ready(local)?;
        let decides = decides && self.state.depth() == 0 && local.is_plain();
        let follows = (request.write && !decides) || self.state.depth() > 0 || local.one_snapshot;
        self.batch = self.describe(request.write, local);
        let implicit = self.state.is_implicit() || (request.write && self.state.depth() == 0);
        let implicit = implicit && !decides && request.scope.is_whole() && local.is_plain();
        let alone = request.preamble.is_none()
            && !self.purge
            && self.handshake.is_done()
            && self.session.is_as_wanted(request.role)
            && !implicit
            && !self.state.is_implicit()
            && (!follows || (self.state.depth() == local.level && !self.state.has_release()));
        scratch.encode(&request.statement.params, Some(request.statement.columns.into()))?;
        self.deciding = decides.then(Deciding::begin);
        let found = if alone { self.prepared.find(request.statement.sql, &scratch.types) } else { None };
        let sent = match found {
            Some(name) => {
                self.steps.push_back(Step::Main);
                self.wire.pg.send_prepared(name, scratch)
            }
            None => {
                let preamble = request.preamble.as_ref().map(|p| (p, Step::Silent));
                let main = (&request.statement, Step::Main);
                let open = match (implicit, follows) {
                    (true, _) => Open::Implicit,
                    (false, true) => Open::Block(local),
                    (false, false) => Open::No,
                };
                self.pipeline(open, Some(request.role), preamble.into_iter().chain([main]), scratch)?
            }
        };
        self.transmit(sent)?;
        let progress = Rc::new(RefCell::new(Progress { phase: Phase::Live, affected: 0 }));
        self.current = Some(progress.clone());
        Ok(progress)
    }

    /// Sends one of several writing statements, which [`Connection::drain`] awaits together after [`Connection::end_feed`].
    /// Nothing else may be sent in between.
    pub(super) fn feed(&mut self, request: &Request<'_>, local: Local, scratch: &mut Encoded) -> Result<()> {
        if !self.state.is_feeding() {
            self.ready(local)?;
            self.batch = self.describe(true, local);
            self.current = None;
        }
        let implicit =
            (self.state.is_implicit() || self.state.depth() == 0) && request.scope.is_whole() && local.is_plain();
        let open = match (self.state.is_feeding(), implicit) {
            (true, _) => Open::No,
            (false, true) => Open::Implicit,
            (false, false) => Open::Block(local),
        };
        self.state.begin_feed();
        let sent =
            self.pipeline(open, Some(request.role), std::iter::once((&request.statement, Step::Fed)), scratch)?;
        self.transmit(sent)
    }

    /// Ends the batch of [`Connection::feed`], if there is one. If that fails the connection is broken.
    pub(super) fn end_feed(&mut self) {
        if self.state.end_feed() && !self.state.is_broken() {
            let sent = self.end_batch();
            drop(self.transmit(sent));
        }
    }

    /// Sends the end of a batch. False if the wire refuses.
    fn end_batch(&mut self) -> bool {
        if self.state.is_implicit() {
            self.wire.pg.request_flush()
        } else {
            self.steps.push_back(Step::Sync);
            self.wire.pg.sync()
        }
    }

    /// Writes a batch to the socket. `accepted`: the wire took the batch; otherwise the connection breaks.
    fn transmit(&mut self, accepted: bool) -> Result<()> {
        if !accepted {
            return Err(self.lost());
        }
        self.wire.sent();
        Ok(())
    }

    fn ready(&mut self, local: Local) -> Result<()> {
        if self.state.is_feeding() {
            bail!(Kind::InternalError, "a request was sent in the middle of a feed");
        }
        self.settle();
        if self.state.is_broken() {
            return Err(self.wire.broken(&self.wire.pg.message()));
        }
        if self.state.depth() > 0 && self.xact() == Xact::Failed {
            return Err(self.aborted());
        }
        debug_assert!(self.state.depth() <= local.level);
        Ok(())
    }

    fn aborted(&self) -> Error {
        let aborted = || {
            Error::of_sqlstate(
                sqlstate::IN_FAILED_TRANSACTION,
                format!("the transaction on shard \"{}\" is aborted", self.wire.shard()),
            )
        };
        let error = self.abort_cause().unwrap_or_else(aborted);
        let hint = "Roll back the transaction, or to a savepoint before the error.";
        if error.hint.is_some() { error } else { error.with_hint(hint) }
    }

    /// The error of the read that has aborted the remote transaction, to be reported by a later statement. The client may not have seen the
    /// error, if the rows of a cursor were read only because another statement needed the connection. None if the read ran as another
    /// user, such as the owner of a `SECURITY DEFINER` function: the message may contain values of documents.
    pub(super) fn abort_cause(&self) -> Option<Error> {
        let (cause, _) = self.abort_cause.clone().filter(|(_, user)| *user == current_user())?;
        let shard = self.wire.shard();
        let message = format!("an earlier read of the transaction failed on shard \"{shard}\": {}", cause.message);
        Some(cause.with_message(message))
    }

    fn describe(&self, write: bool, local: Local) -> Batch {
        let fresh = !self.state.has_written() && (self.state.depth() == 0 || !local.one_snapshot);
        Batch { write, fresh, level: local.level, user: current_user() }
    }

    /// Sends a pipeline, which first opens the remote transaction. False if the wire refuses.
    fn pipeline<'a, 'b: 'a>(
        &mut self,
        open: Open,
        role: Option<Role>,
        statements: impl Iterator<Item = (&'a Sql<'b>, Step)>,
        scratch: &mut Encoded,
    ) -> Result<bool> {
        let none = Encoded::default();
        if let Err(error) = self.handshake.prepare(self.server) {
            self.deciding = None;
            self.state.end_feed();
            return Err(error);
        }
        let mut sent = self.wire.pg.enter_pipeline();
        if let Open::Implicit = open {
            self.state.begin_implicit();
        } else if let Open::Block(local) = open {
            if self.state.make_block() {
                sent &= self.plain(c"BEGIN", &none, Step::Open(1));
            }
            if let Some(level) = self.state.take_release() {
                let release = c_string(&format!("RELEASE SAVEPOINT s{level}"))?;
                sent &= self.plain(&release, &none, Step::Silent);
            }
            for level in self.state.depth() + 1..=local.level {
                sent &= match level {
                    1 => self.plain(begin(local), &none, Step::Open(1)),
                    _ => self.plain(&c_string(&format!("SAVEPOINT s{level}"))?, &none, Step::Open(level)),
                };
            }
        }
        // Before SET ROLE: the service role makes the handshake.
        if let Some(hello) = self.handshake.take(self.batch.write) {
            self.steps.push_back(Step::Handshake);
            sent &= self.wire.pg.send_params(&handshake::STATEMENT, &hello?);
        }
        if let Some(role) = role {
            for step in self.session.steps(role) {
                sent &= self.plain(&step, &none, Step::Silent);
            }
        }
        if std::mem::take(&mut self.purge) {
            sent &= self.plain(c"DEALLOCATE ALL", &none, Step::Silent);
        }
        let accepted = statements.into_iter().try_fold(sent, |sent, (statement, step)| {
            scratch.encode(&statement.params, Some(statement.columns.into()))?;
            Ok(self.statement(statement.sql, step, scratch)? && sent)
        });
        if let Err(error) = accepted {
            self.abandon_batch();
            return Err(error);
        }
        Ok(accepted? && (self.state.is_feeding() || self.end_batch()))
    }

    /// Ends a batch that cannot be completed, but whose beginning was already passed to the wire.
    fn abandon_batch(&mut self) {
        self.session.rolled_back();
        self.state.end_feed();
        self.deciding = None;
        if self.state.roll_back_implicit(self.batch.fresh) {
            // A synchronisation point alone would commit.
            drop(self.send_sync(ROLL_BACK));
        } else {
            self.steps.push_back(Step::Sync);
            self.wire.pg.sync();
            self.wire.sent();
        }
        drop(self.drain(Limit::Until(Instant::now() + CLEANUP)));
    }

    /// Sends a statement, and before that its preparation if the shard has not prepared it. False if the wire refuses.
    fn statement(&mut self, sql: &str, step: Step, params: &Encoded) -> Result<bool> {
        let mut sent = true;
        let lookup = self.prepared.find_or_add(sql, &params.types);
        if let Some(victim) = lookup.evict {
            let deallocate = c_string(&format!("DEALLOCATE {}", victim.to_string_lossy()))?;
            sent &= self.plain(&deallocate, &Encoded::default(), Step::Silent);
        }
        if let Some(number) = lookup.prepare {
            self.preparing.push(number);
            let text = c_string(sql)?;
            self.steps.push_back(Step::Prepare(number));
            sent &= self.wire.pg.send_prepare(&lookup.name, &text, &params.types);
        }
        self.steps.push_back(step);
        Ok(self.wire.pg.send_prepared(&lookup.name, params) && sent)
    }

    fn plain(&mut self, sql: &CStr, none: &Encoded, step: Step) -> bool {
        self.steps.push_back(step);
        self.wire.pg.send_params(sql, none)
    }

    fn lost(&mut self) -> Error {
        let loss = self.wire.loss();
        self.break_down(&loss)
    }

    /// Makes the connection unusable; returns the error to report.
    fn break_down(&mut self, lost: &Lost) -> Error {
        self.state.break_down();
        self.steps.clear();
        self.failure = None;
        if self.batch.fresh && !self.state.has_written() {
            self.ended();
        }
        let error = if self.is_deciding() { self.in_doubt() } else { self.wire.lost(lost) };
        self.deciding = None;
        if let Some(current) = self.current.take() {
            let mut progress = current.borrow_mut();
            if matches!(progress.phase, Phase::Live) {
                progress.phase = Phase::Failed(error.clone());
            }
        }
        error
    }

    /// The row count of the main statement's command tag; 0 if it does not write.
    pub(super) fn affected(&self) -> u64 {
        self.affected
    }

    /// Sends SQL text by the simple query protocol.
    pub(super) fn send_text(&mut self, sql: &str) -> Result<()> {
        self.ask_text(sql, None)
    }

    /// Like [`Connection::send_text`], for statements that return rows with these columns.
    pub(super) fn ask_text(&mut self, sql: &str, columns: Columns) -> Result<()> {
        let text = c_string(sql)?;
        self.state.send_text();
        let sent = self.wire.pg.send_text(&text, columns);
        self.transmit(sent)
    }

    /// Awaits the end of a text command. `tag`: the expected command tag; any other one means that the transaction was rolled back.
    pub(super) fn finish_text(&mut self, tag: Option<&str>, limit: Limit) -> Result<()> {
        let Finished { result, .. } = self.answer(limit)?;
        if tag.is_none_or(|tag| result == Answer::Done(tag.to_owned())) {
            return Ok(());
        }
        let message = format!("the transaction was rolled back on shard \"{}\"", self.wire.shard());
        Err(Error::of_sqlstate(sqlstate::TRANSACTION_ROLLBACK, message))
    }

    /// The answer to a text command.
    pub(super) fn answer(&mut self, limit: Limit) -> Result<Finished> {
        match self.wire.finish(limit) {
            Ok(Some(finished)) => {
                self.state.text_answered();
                let Answer::Error(report) = &finished.result else { return Ok(finished) };
                self.session.rolled_back();
                let error = self.wire.report(report);
                if report.is_fatal() || !self.wire.pg.is_good() {
                    self.break_down(&Lost::Broken(String::new()));
                }
                Err(error)
            }
            Ok(None) => Err(self.lost()),
            Err(lost) => Err(self.break_down(&lost)),
        }
    }
}

/// The remote transaction that a batch opens first.
#[derive(Debug, Clone, Copy)]
enum Open {
    No,
    Implicit,
    /// a block, with the local transaction's savepoints
    Block(Local),
}

fn begin(local: Local) -> &'static CStr {
    match (local.serializable, local.one_snapshot, local.read_only) {
        (true, _, false) => c"BEGIN ISOLATION LEVEL SERIALIZABLE",
        (true, _, true) if local.deferrable => c"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE",
        (true, _, true) => c"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY",
        (_, false, false) => c"BEGIN ISOLATION LEVEL READ COMMITTED",
        (_, false, true) => c"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
        (_, true, false) => c"BEGIN ISOLATION LEVEL REPEATABLE READ",
        (_, true, true) => c"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    }
}
