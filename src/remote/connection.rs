//! A cached connection to one shard, which follows the local transaction.
//!
//! # Batches
//! A request goes out as one batch, in one network write: `BEGIN` and savepoints where the remote transaction is behind
//! the local one, the preparation of statements that the connection hasn't seen, the preamble, the statement. `steps`
//! holds what is still to be answered, in order. A batch of one prepared statement is sent alone, others as a pipeline.
//!
//! # Implicit transactions
//! A write that is the local transaction's first at this shard, and goes to this shard alone, is sent without `BEGIN`:
//! what a pipeline runs between two synchronisation points is one transaction of the shard. The pipeline stays open, its
//! answers are asked for by a flush request, and the synchronisation point is sent in place of `COMMIT`. As long as it is
//! not, the shard can't commit: an error or a lost connection rolls back, and so do `BEGIN` and `ROLLBACK` in the pipeline.
//! Where more is needed (savepoints, PREPARE TRANSACTION, a text command) a `BEGIN` makes a transaction block of it, with
//! all that it has done. How transactions end is in `ending`.
//!
//! A write that is the whole local transaction is sent with its synchronisation point, and commits at once: see `deciding`.
//!
//! A new connection first says hello, in front of its first statement in the same pipeline: see `handshake`.
//!
//! A write that waits long may be part of a deadlock: see `watch`. Settings that the shard's session takes over from this one
//! go in front of a statement: see `session_state`.
//!
//! # Invariants
//! - A batch is sent only while `steps` is empty and no text command is active: an unfinished stream is spooled first.
//! - `steps` is complete before anything is awaited. So whatever interrupts a wait, the connection can be drained.
//! - `state` is a pure state machine, see [`ConnectionState`]: the shard's transaction, what is under way, and whether the
//!   connection can be used. Savepoints are called `s2`, `s3` …, by their depth.
//! - In an implicit transaction libpq is in pipeline mode and the last synchronisation point is behind all that was sent; no
//!   transaction block is open. That holds from a batch's sending until the transaction ends or becomes a block.
//! - A connection that is broken is never used again; while it has a transaction it stays, so that commit sees it.

mod deciding;
mod draining;
mod ending;
mod session_state;
mod watch;

use self::session_state::SessionState;
use self::watch::Watch;
use super::ffi::{HoldCancel, Local, PgResult, Status, Xact};
use super::handshake::{self, Greeting};
use super::login;
use super::options::{self, Route};
use super::param::{Encoded, Request, Role, Share, Sql};
use super::prepared::Prepared;
use super::row::{Row, Spool};
use super::session::Session;
use super::wire::{Limit, Lost, Wire};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::connection::ConnectionState;
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long cleaning up may take before the connection is closed. Then the shard's session ends by itself, as its
/// `client_connection_check_interval` finds.
pub(super) const CLEANUP: Duration = Duration::from_secs(2);

/// How long all that ends a cancelled statement may take, where the client waits for its error: a second would be noticed.
pub(super) const PROMPT: Duration = Duration::from_millis(900);

/// Rolls an implicit transaction back. `ROLLBACK` alone would do, but the shard would warn that there is no transaction.
const ROLL_BACK: &[&CStr] = &[c"BEGIN", c"ROLLBACK"];

/// What becomes of a stream's rows.
#[derive(Debug)]
pub(super) enum Phase {
    /// they come from the connection
    Live,
    /// they made room for another statement
    Spooled(Spool),
    Done,
    Failed(Error),
    /// nobody reads them any more
    Dropped,
}

/// What a stream and its connection share.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    pub(super) affected: u64,
}

/// The meaning of the answers to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// BEGIN or SAVEPOINT: the remote transaction then has this depth
    Open(i32),
    /// SAVEPOINT of a subtransaction that has committed before the answer came
    Outlived(i32),
    /// the handshake
    Hello,
    /// the preparation of the statement with this number
    Prepare(u64),
    /// rows that nobody reads
    Silent,
    /// the rows of the stream
    Main,
    /// a statement of several that are sent one by one, and awaited together; its rows are of no interest
    Fed,
    /// the end of the pipeline
    Sync,
}

/// Why there is no next row.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(Error),
    /// the time is over
    Late,
}

/// Facts about the batch in flight, or the last one.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    write: bool,
    /// the rows of the main statement come together
    few_rows: bool,
    /// the whole remote transaction may be rolled back if it fails: nothing was written, no snapshot is to be kept
    fresh: bool,
    /// local nest level when it was sent
    level: i32,
}

/// From the sending of a write that decides until the local transaction's end.
#[derive(Debug)]
struct Deciding {
    _hold: HoldCancel,
    /// a cancel was passed on, and how long its effect is waited for
    cancelling: Option<(Receiver<()>, Instant)>,
    /// it has committed
    done: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) server: Oid,
    pub(super) server_hash: u32,
    pub(super) mapping_hash: u32,
    pub(super) wire: Wire,
    pub(super) state: ConnectionState,
    /// a write decides the local transaction, or has decided it
    deciding: Option<Deciding>,
    greeting: Greeting,
    /// whether the shard can prepare transactions, once known
    pub(super) two_phase: Option<bool>,
    session: SessionState,
    steps: VecDeque<Step>,
    /// the main statement gives its rows one by one
    row_mode: bool,
    /// rows of the main statement that have come together, and the number of the next
    rows: Option<(Rc<PgResult>, c_int)>,
    failure: Option<Error>,
    affected: u64,
    batch: Batch,
    current: Option<Rc<RefCell<Progress>>>,
    prepared: Prepared,
    /// statements whose preparation is unconfirmed
    preparing: Vec<u64>,
    /// the shard should forget all prepared statements first
    purge: bool,
}

impl Connection {
    /// Connects. The shard plans each prepared statement once, for all parameters.
    pub(super) fn open(id: u64, server: Oid) -> Result<Self> {
        // A shard that was away for a while; a session does it, and says hello before.
        if !handshake::pending(server)?.is_empty() {
            drop(Session::open(server)?);
        }
        let (route, wire) = login::connect(server, Self::settings)?;
        Ok(Self {
            id,
            server,
            server_hash: route.server_hash,
            mapping_hash: route.mapping_hash,
            wire,
            state: ConnectionState::NEW,
            deciding: None,
            greeting: Greeting::Due,
            two_phase: None,
            session: SessionState::new(),
            steps: VecDeque::new(),
            row_mode: false,
            rows: None,
            failure: None,
            affected: 0,
            batch: Batch::default(),
            current: None,
            prepared: Prepared::default(),
            preparing: Vec::new(),
            purge: false,
        })
    }

    /// The options of a cached connection.
    fn settings(route: &Route) -> Vec<(String, String)> {
        let options = options::with_setting(&route.options, "plan_cache_mode=force_generic_plan");
        // What a transaction without BEGIN has; BEGIN always says it.
        let mut options = options::with_setting(&options, "default_transaction_isolation=read\\ committed");
        if options::shares_processors(&route.options) {
            // Shards work at the same time as it is: workers of theirs would only get into each other's way.
            options = options::with_setting(&options, "max_parallel_workers_per_gather=0");
        }
        options
    }

    /// True while an answer is outstanding.
    pub(super) fn is_busy(&self) -> bool {
        self.state.is_busy(!self.steps.is_empty())
    }

    /// True if it holds nothing of the local transaction.
    pub(super) fn is_idle(&self) -> bool {
        self.state.depth() == 0 && !self.is_busy()
    }

    /// True if the remote transaction has written, or may have.
    pub(super) fn is_writer(&self) -> bool {
        self.state.has_written() || (self.is_busy() && self.batch.write)
    }

    /// True if the batch in flight was sent in the subtransaction of this level, or in one within it.
    pub(super) fn is_busy_since(&self, level: i32) -> bool {
        self.is_busy() && self.batch.level >= level
    }

    /// True if what was sent last may be undone and sent again.
    pub(super) fn may_retry(&self) -> bool {
        self.state.depth() == 0 || (!self.state.has_written() && !self.state.is_broken() && self.xact() != Xact::Failed)
    }

    /// The remote transaction's state. Of an implicit one libpq doesn't know: it is in order, as an error ends it.
    pub(super) fn xact(&self) -> Xact {
        match (self.state.is_void(), self.state.is_implicit()) {
            (true, _) => Xact::Failed,
            (_, true) => Xact::Open,
            _ => self.wire.pg.xact(),
        }
    }

    /// The connection is to be closed in order: reads what has arrived, as the system tells the other side of an accident where
    /// something was left unread.
    pub(super) fn take_leave(&mut self) {
        if !self.state.is_broken() {
            self.wire.pg.consume();
        }
    }

    /// While no answer is outstanding: false if the other side has closed the connection.
    pub(super) fn is_alive(&mut self) -> bool {
        !self.state.is_broken() && self.wire.pg.is_open_and_quiet()
    }

    /// Sends a request; its rows belong to what is returned. `decides`: the local transaction has done nothing so far, and this
    /// is all of it.
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
        self.batch = Batch { few_rows: request.few_rows, ..self.describe(request.write, local) };
        let implicit = self.state.is_implicit() || (request.write && self.state.depth() == 0);
        let implicit = implicit && !decides && request.share != Share::Part && local.is_plain();
        let alone = request.preamble.is_none()
            && !self.purge
            && self.greeting.is_done()
            && self.session.is_as_wanted(request.role)
            && !implicit
            && !self.state.is_implicit()
            && (!follows || (self.state.depth() == local.level && !self.state.has_release()));
        encode(scratch, &request.statement)?;
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
                let open = if implicit { Open::Implicit } else { follows.then_some(local).into() };
                self.pipeline(open, Some(request.role), preamble.into_iter().chain([main]), scratch)?
            }
        };
        if !sent || self.wire.sent().is_err() {
            return Err(self.break_down(&Lost::Broken(self.wire.pg.message())));
        }
        let progress = Rc::new(RefCell::new(Progress { phase: Phase::Live, affected: 0 }));
        self.current = Some(progress.clone());
        Ok(progress)
    }

    /// Sends one of several statements that write, which are awaited together by [`Connection::drain`] after
    /// [`Connection::end_feed`]. Nothing else may be sent in between.
    pub(super) fn feed(&mut self, request: &Request<'_>, local: Local, scratch: &mut Encoded) -> Result<()> {
        if !self.state.is_feeding() {
            self.ready(local)?;
            self.batch = self.describe(true, local);
            self.current = None;
        }
        let implicit =
            (self.state.is_implicit() || self.state.depth() == 0) && request.share != Share::Part && local.is_plain();
        let open = match (self.state.is_feeding(), implicit) {
            (true, _) => Open::No,
            (false, true) => Open::Implicit,
            (false, false) => Open::Block(local),
        };
        self.state.begin_feed();
        let sent =
            self.pipeline(open, Some(request.role), std::iter::once((&request.statement, Step::Fed)), scratch)?;
        if !sent || self.wire.sent().is_err() {
            return Err(self.break_down(&Lost::Broken(self.wire.pg.message())));
        }
        Ok(())
    }

    /// Sends the end of what [`Connection::feed`] has sent.
    pub(super) fn end_feed(&mut self) {
        if self.state.end_feed() && !self.state.is_broken() {
            let sent = if self.state.is_implicit() {
                self.wire.pg.request_flush()
            } else {
                self.steps.push_back(Step::Sync);
                self.wire.pg.sync()
            };
            if !sent || self.wire.sent().is_err() {
                let lost = Lost::Broken(self.wire.pg.message());
                self.break_down(&lost);
            }
        }
    }

    /// Refuses what cannot succeed.
    fn ready(&mut self, local: Local) -> Result<()> {
        if self.state.is_feeding() {
            return Err(Error::new(Kind::InternalError, "a request is sent between statements that belong together"));
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

    /// The error of a statement in a failed remote transaction.
    fn aborted(&self) -> Error {
        Error::of_sqlstate(*b"25P02", format!("the transaction on shard \"{}\" is aborted", self.wire.shard()))
            .with_hint("Roll back the transaction, or to a savepoint before the error.")
    }

    fn describe(&self, write: bool, local: Local) -> Batch {
        let fresh = !self.state.has_written() && (self.state.depth() == 0 || !local.one_snapshot);
        Batch { write, few_rows: false, fresh, level: local.level }
    }

    /// Gives libpq a pipeline that first opens the remote transaction as far as `open` says. False if libpq refuses.
    fn pipeline<'a, 'b: 'a>(
        &mut self,
        open: Open,
        role: Option<Role>,
        statements: impl Iterator<Item = (&'a Sql<'b>, Step)>,
        scratch: &mut Encoded,
    ) -> Result<bool> {
        let none = Encoded::default();
        if let Err(error) = self.greeting.prepare(self.server) {
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
                let release = c_string(format!("RELEASE SAVEPOINT s{level}"));
                sent &= self.plain(&release, &none, Step::Silent);
            }
            for level in self.state.depth() + 1..=local.level {
                sent &= match level {
                    1 => self.plain(begin(local), &none, Step::Open(1)),
                    _ => self.plain(&c_string(format!("SAVEPOINT s{level}")), &none, Step::Open(level)),
                };
            }
        }
        // As the service role, whatever the statements are for.
        if let Some(hello) = self.greeting.say(self.batch.write) {
            self.steps.push_back(Step::Hello);
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
        let mut refused = None;
        for (statement, step) in statements {
            if let Err(error) = encode(scratch, statement) {
                refused = Some(error);
                break;
            }
            let lookup = self.prepared.find_or_add(statement.sql, &scratch.types);
            if let Some(victim) = lookup.evict {
                let text = c_string(format!("DEALLOCATE {}", victim.to_string_lossy()));
                sent &= self.plain(&text, &none, Step::Silent);
            }
            if let Some(number) = lookup.prepare {
                let Ok(sql) = CString::new(statement.sql) else {
                    self.prepared.forget(number);
                    refused = Some(Error::new(Kind::BadValue, "a statement contains NUL"));
                    break;
                };
                self.steps.push_back(Step::Prepare(number));
                self.preparing.push(number);
                sent &= self.wire.pg.send_prepare(&lookup.name, &sql, &scratch.types);
            }
            self.steps.push_back(step);
            sent &= self.wire.pg.send_prepared(&lookup.name, scratch);
        }
        if let Some(error) = refused {
            // What was given to libpq before can't be taken back.
            self.session.rolled_back();
            self.state.end_feed();
            self.deciding = None;
            if self.state.roll_back_implicit(self.batch.fresh) {
                // Here a synchronisation point alone would commit.
                drop(self.send_sync(ROLL_BACK));
            } else {
                self.steps.push_back(Step::Sync);
                self.wire.pg.sync();
                drop(self.wire.sent());
            }
            drop(self.drain(Limit::Until(Instant::now() + CLEANUP)));
            return Err(error);
        }
        if !self.state.is_feeding() {
            if self.state.is_implicit() {
                sent &= self.wire.pg.request_flush();
            } else {
                self.steps.push_back(Step::Sync);
                sent &= self.wire.pg.sync();
            }
        }
        Ok(sent)
    }

    fn plain(&mut self, sql: &CStr, none: &Encoded, step: Step) -> bool {
        self.steps.push_back(step);
        self.wire.pg.send_params(sql, none)
    }

    /// The next row of the main statement; None at the end of the batch. An error comes when the batch is at its end,
    /// and the connection is in order again.
    pub(super) fn next(&mut self, limit: Limit) -> std::result::Result<Option<Row>, Stop> {
        if let Some((result, row)) = &mut self.rows {
            if *row < result.rows() {
                *row += 1;
                return Ok(Some(Row::of(Rc::clone(result), *row - 1)));
            }
            self.rows = None;
        }
        self.end_feed();
        let mut nothing_at_sync = 0;
        let mut watch: Option<Watch> = None;
        loop {
            let Some(&step) = self.steps.front() else {
                // The shard has rolled an implicit transaction back, and skips what comes up to here. This is sent only
                // now, as libpq takes an aborted pipeline's next command for the end of the one that failed.
                if self.state.take_sync_due() {
                    self.send_sync(&[]).map_err(Stop::Failed)?;
                    continue;
                }
                break;
            };
            if step == Step::Main && !self.row_mode && !self.batch.few_rows {
                self.row_mode = true;
                self.wire.pg.single_row_mode();
            }
            let patience = match self.patience(limit) {
                // What only reads keeps nobody waiting.
                Limit::Served if self.batch.write => Limit::ServedUntil(watch.get_or_insert_with(Watch::new).next()),
                limit => limit,
            };
            let result = match self.wire.result(patience) {
                Ok(result) => result,
                Err(Lost::Late) if let Some(watch) = &mut watch => {
                    watch.look();
                    continue;
                }
                Err(Lost::Late) if matches!(patience, Limit::Outcome) => {
                    self.pass_cancel_on();
                    continue;
                }
                Err(Lost::Late) if !self.is_deciding() || matches!(limit, Limit::Until(_)) => return Err(Stop::Late),
                Err(lost) => return Err(Stop::Failed(self.break_down(&lost))),
            };
            let Some(result) = result else {
                if !self.wire.pg.is_good() {
                    let lost = Lost::Broken(self.wire.pg.message());
                    return Err(Stop::Failed(self.break_down(&lost)));
                }
                self.row_mode = false;
                if step != Step::Sync {
                    self.steps.pop_front();
                } else {
                    nothing_at_sync += 1;
                    if nothing_at_sync > 1 {
                        let lost = Lost::Broken("answers and questions do not fit together".into());
                        return Err(Stop::Failed(self.break_down(&lost)));
                    }
                }
                continue;
            };
            match result.status() {
                Status::Row if step == Step::Main => return Ok(Some(Row::single(result))),
                Status::Row | Status::Skipped => {}
                Status::Command | Status::Rows => {
                    self.succeeded(step, &result);
                    if step == Step::Main && result.rows() > 0 {
                        let result = Rc::new(result);
                        self.rows = Some((Rc::clone(&result), 1));
                        return Ok(Some(Row::of(result, 0)));
                    }
                }
                Status::Sync => {
                    self.steps.pop_front();
                    if !self.wire.pg.exit_pipeline() {
                        let lost = Lost::Broken(self.wire.pg.message());
                        return Err(Stop::Failed(self.break_down(&lost)));
                    }
                }
                Status::Error => {
                    let error = self.wire.report(&result);
                    if result.is_fatal() || !self.wire.pg.is_good() {
                        // Only the shard's own report says that nothing was committed.
                        let in_doubt = self.is_deciding() && !result.is_fatal();
                        let lost = self.break_down(&Lost::Broken(String::new()));
                        return Err(Stop::Failed(if in_doubt { lost } else { error }));
                    }
                    self.failure.get_or_insert(error);
                    if step == Step::Hello {
                        self.state.refuse();
                    }
                    if self.state.roll_back_implicit(self.batch.fresh) {
                        self.state.set_sync_due();
                    }
                }
                Status::Unexpected => {
                    let lost = Lost::Broken("unexpected answer".into());
                    return Err(Stop::Failed(self.break_down(&lost)));
                }
            }
        }
        self.current = None;
        if !self.preparing.is_empty() {
            for number in std::mem::take(&mut self.preparing) {
                self.prepared.forget(number);
            }
        }
        match self.failure.take() {
            None => {
                if self.state.depth() == 0 {
                    self.session.committed();
                }
                self.decided(true);
                Ok(None)
            }
            Some(mut error) => {
                self.failed(&error);
                self.greeting.unanswered();
                if self.state.is_refused() {
                    // It is opened anew, maybe to another host.
                    self.state.set_broken();
                    if login::pass_over(self.server, self.wire.host) {
                        error = error.at_one_host();
                    }
                }
                self.decided(false);
                Err(Stop::Failed(error))
            }
        }
    }

    fn succeeded(&mut self, step: Step, result: &PgResult) {
        self.state.answered();
        match step {
            Step::Open(depth) => self.state.opened(depth),
            Step::Outlived(level) => self.state.outlived(level),
            Step::Prepare(number) => self.preparing.retain(|n| *n != number),
            Step::Main => {
                self.affected = if self.batch.write { result.affected() } else { 0 };
                if self.batch.write && !self.is_deciding() {
                    self.state.written();
                }
            }
            Step::Fed => self.state.written(),
            Step::Hello => {
                if let Err(error) = self.greeting.answered(result) {
                    self.failure.get_or_insert(error);
                    self.state.refuse();
                }
            }
            Step::Silent | Step::Sync => {}
        }
    }

    /// After the error of a batch that is at its end.
    fn failed(&mut self, error: &Error) {
        self.session.rolled_back();
        if &error.sqlstate == b"42501" {
            self.session.refused();
        }
        // The statement is unknown there, or its plan doesn't fit the table any more: prepare again next time.
        if &error.sqlstate == b"26000" || &error.sqlstate == b"0A000" {
            self.prepared.clear();
            self.purge = true;
        }
        if self.xact() == Xact::Idle {
            self.ended();
        } else if self.xact() == Xact::Failed {
            self.undo();
        }
    }

    /// The connection is unusable from now on.
    fn break_down(&mut self, lost: &Lost) -> Error {
        self.state.break_down();
        self.steps.clear();
        self.rows = None;
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

    /// The rows that the main statement's command tag named, if it is one that writes.
    pub(super) fn affected(&self) -> u64 {
        self.affected
    }

    /// Sends a text command.
    pub(super) fn send_text(&mut self, sql: &str) -> Result<()> {
        let text = CString::new(sql).map_err(|_| Error::new(Kind::BadValue, "a statement contains NUL"))?;
        self.state.send_text();
        if !self.wire.pg.send_text(&text) || self.wire.sent().is_err() {
            return Err(self.break_down(&Lost::Broken(self.wire.pg.message())));
        }
        Ok(())
    }

    /// Awaits the answer to a text command; with a tag, the answer must be exactly that.
    pub(super) fn finish_text(&mut self, tag: Option<&str>, limit: Limit) -> Result<()> {
        let result = self.answer(limit)?;
        match tag {
            Some(tag) if !result.tag_is(tag) => {
                let message = format!("the transaction was rolled back on shard \"{}\"", self.wire.shard());
                Err(Error::of_sqlstate(*b"40000", message))
            }
            _ => Ok(()),
        }
    }

    /// Awaits the last result of a text command.
    pub(super) fn answer(&mut self, limit: Limit) -> Result<PgResult> {
        match self.wire.finish(limit) {
            Ok(Some(result)) => {
                self.state.text_answered();
                if result.status() != Status::Error {
                    return Ok(result);
                }
                self.session.rolled_back();
                let error = self.wire.report(&result);
                if result.is_fatal() || !self.wire.pg.is_good() {
                    self.break_down(&Lost::Broken(String::new()));
                }
                Err(error)
            }
            Ok(None) => Err(self.break_down(&Lost::Broken(self.wire.pg.message()))),
            Err(lost) => Err(self.break_down(&lost)),
        }
    }
}

/// How far a batch opens the remote transaction first.
#[derive(Debug, Clone, Copy)]
enum Open {
    /// not at all
    No,
    /// the pipeline itself is the transaction
    Implicit,
    /// a transaction block, with the local transaction's savepoints
    Block(Local),
}

impl From<Option<Local>> for Open {
    fn from(local: Option<Local>) -> Self {
        local.map_or(Self::No, Self::Block)
    }
}

fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}

fn encode(scratch: &mut Encoded, statement: &Sql<'_>) -> Result<()> {
    if scratch.encode(statement.params) {
        return Ok(());
    }
    Err(Error::new(Kind::BSONObjectTooLarge, "a parameter is too long for a message"))
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
