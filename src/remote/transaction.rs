//! Makes remote transactions follow the local one, by its callbacks.
//!
//! Before the local commit, unfinished streams are ended, and every shard that was written to must be in a sound transaction.
//! Then:
//! * no shard was written to: the remote transactions are ended;
//! * one shard was written to, and nothing here: its commit decides, in one round trip. If the write has committed by itself (`deciding`),
//!   no round trip is needed;
//! * otherwise two-phase commit: all shards prepare, the [`Coordinator`] writes the decision into the local transaction, and
//!   after the local commit all shards are sent COMMIT PREPARED. Recovery completes the commit of a shard that cannot be reached
//!   then;
//! * a shard cannot prepare, and `docshard.multi_shard_commit` allows it: the shards commit one after the other.
//!
//! A local PREPARE TRANSACTION prepares all shards, and the decision is part of the local transaction. After an abort,
//! statements are cancelled, answers drained, and transactions rolled back, also prepared ones, within [`PROMPT`]; a connection
//! that takes longer is closed. No error is raised there.
//!
//! [`Coordinator`]: super::Coordinator

use super::cache::{self, Pool, with_free_pool, with_pool};
use super::connection::{CLEANUP, Connection, PROMPT};
use super::coordinator::coordinator;
use super::ffi::{self, HoldCancel, Xact};
use super::settings::{MULTI_SHARD_COMMIT, MultiShardCommit};
use super::wire::Limit;
use crate::pg::error::{Error, Raise as _, Result};
use crate::pg::events::Event;
use crate::pg::transaction::snapshot::{self, ActiveSnapshot};
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use docshard_core::sql::column::Column;
use docshard_core::sql::quote::quote_literal;
use pgrx::pg_sys::Oid;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// How long the local commit waits for shards to commit prepared transactions.
const FINISH: Duration = Duration::from_secs(10);

/// How long an unfinished answer may take before its statement is cancelled.
const BRIEF: Duration = Duration::from_millis(1);

/// A shard's part of a two-phase commit.
#[derive(Debug, Clone)]
struct Branch {
    connection: u64,
    server: Oid,
    gid: String,
}

thread_local! {
    static BRANCHES: RefCell<Vec<Branch>> = const { RefCell::new(Vec::new()) };
    static COUNTER: Cell<u64> = const { Cell::new(0) };
}

/// Registers the callbacks; called before the first connection is opened.
pub(super) fn follow(pool: &Pool) {
    if pool.connections.is_empty() {
        ffi::register(on_event, cache::invalidate);
        ffi::at_exit(cache::close_all);
    }
}

/// True if the last request may be sent again: the remote transaction has written nothing and has not failed.
pub fn can_retry(server: Oid) -> bool {
    let refuses = |c: &Connection| c.server == server && (c.state.depth() > 0 || c.state.is_broken()) && !c.may_retry();
    !with_pool(|pool| Ok(pool.connections.iter().any(refuses))).unwrap_or(false)
}

/// Rolls a server's remote transaction back if it consists of the last request only, so that the request may be sent again.
pub fn undo(server: Oid) {
    with_free_pool(|pool| pool.connections.iter_mut().filter(|c| c.server == server).for_each(Connection::undo));
}

/// True if this transaction has used a connection.
pub fn is_used() -> bool {
    with_pool(|pool| Ok(pool.used)).unwrap_or(true)
}

/// True if a remote transaction has failed, so that only the whole local transaction can be retried.
pub fn has_failed() -> bool {
    let failed = |c: &mut Connection| {
        // A batch in flight may still fail.
        if c.state.depth() > 0 {
            c.settle();
        }
        c.state.depth() > 0 && (c.state.is_broken() || c.xact() == Xact::Failed)
    };
    with_pool(|pool| Ok(pool.connections.iter_mut().any(failed))).unwrap_or(false)
}

fn on_event(event: Event) {
    if !is_used() {
        return;
    }
    let done = match event {
        Event::PreCommit => with_pool(Pool::pre_commit).and_then(|prepared| decide(prepared, true)),
        Event::PrePrepare => with_pool(Pool::pre_prepare).and_then(|prepared| decide(prepared, false)),
        Event::PreCommitSub(level) => with_pool(|pool| {
            pool.connections.iter_mut().for_each(|c| c.commit_sub(level));
            Ok(())
        }),
        Event::Prepared => {
            BRANCHES.take();
            with_free_pool(Pool::next_epoch);
            Ok(())
        }
        Event::Committed => {
            committed();
            Ok(())
        }
        Event::Aborted => with_pool(|pool| {
            pool.abort();
            Ok(())
        }),
        Event::AbortedSub(level) => with_pool(|pool| {
            pool.abort_sub(level);
            Ok(())
        }),
    };
    done.unwrap_or_else(|error| error.raise());
}

/// Lets the coordinator write the decision, if shards have prepared. `at_once`: the local transaction commits now.
fn decide(prepared: bool, at_once: bool) -> Result<()> {
    if !prepared {
        return Ok(());
    }
    let gids = gids(&BRANCHES.with_borrow(Vec::clone));
    let coordinator = coordinator().ok_or_else(no_coordinator)?;
    let _snapshot = ActiveSnapshot::of_statement();
    coordinator.decide(&gids, at_once)
}

fn committed() {
    let branches = BRANCHES.take();
    let mut late: Vec<String> = Vec::new();
    let mut finished = Vec::new();
    with_free_pool(|pool| {
        finished = pool.finish_branches(branches.clone(), "COMMIT", Instant::now() + FINISH);
        let unfinished = branches.iter().filter(|branch| !finished.iter().any(|done| done.gid == branch.gid));
        late = unfinished.filter_map(|branch| Some(pool.by_id(branch.connection)?.wire.shard().to_owned())).collect();
        pool.next_epoch();
    });
    if !late.is_empty() {
        pgrx::warning!(
            "the transaction is committed, but shard \"{}\" could not be reached yet: its writes there become visible \
             later",
            late.join("\", \"")
        );
    }
    if let (Some(coordinator), false) = (coordinator(), finished.is_empty()) {
        coordinator.finished(&gids(&finished));
    }
}

fn gids(branches: &[Branch]) -> Vec<(Oid, String)> {
    branches.iter().map(|b| (b.server, b.gid.clone())).collect()
}

fn no_coordinator() -> Error {
    error!(Kind::IllegalOperation, "this process cannot decide a transaction over several shards")
}

impl Pool {
    /// Prepares or commits the remote transactions. True if shards have prepared, so that the local commit decides.
    fn pre_commit(&mut self) -> Result<bool> {
        self.make_sound()?;
        match self.writers().count() {
            0 => self.end_readers(&[]).map(|()| false),
            1 if !ffi::local_writes() => self.commit_single().map(|()| false),
            _ => {
                self.make_blocks()?;
                if self.all_can_prepare()? {
                    self.prepare().map(|()| true)
                } else {
                    self.commit_one_by_one().map(|()| false)
                }
            }
        }
    }

    /// Like [`Pool::pre_commit`], for a local PREPARE TRANSACTION.
    fn pre_prepare(&mut self) -> Result<bool> {
        self.make_sound()?;
        if self.writers().next().is_none() {
            return self.end_readers(&[]).map(|()| false);
        }
        self.make_blocks()?;
        if !self.all_can_prepare()? {
            let error = self.cannot_prepare("prepare the transaction");
            return Err(error.with_hint("Set max_prepared_transactions above 0 there, and restart it."));
        }
        self.prepare().map(|()| true)
    }

    fn make_blocks(&mut self) -> Result<()> {
        self.writers().try_for_each(Connection::make_block)
    }

    fn cannot_prepare(&mut self, what: &str) -> Error {
        let unable = self.writers().filter(|w| w.two_phase == Some(false));
        let names = unable.map(|w| w.wire.shard().to_owned()).collect::<Vec<_>>().join("\", \"");
        let message = format!("cannot {what}, as shard \"{names}\" prepares no transactions");
        Error::new(Kind::IllegalOperation, message)
    }

    /// Ends all streams, and checks that all writers can commit.
    fn make_sound(&mut self) -> Result<()> {
        self.end_streams()?;
        for writer in self.writers() {
            // A shard that is lost before the commit is sent has not committed.
            if !writer.is_alive() {
                writer.state.set_broken();
                return Err(writer.wire.broken("It had written in this transaction."));
            }
            if writer.xact() != Xact::Open {
                let shard = writer.wire.shard();
                let message = format!("the transaction on shard \"{shard}\" was aborted by an earlier error");
                return Err(writer
                    .abort_cause()
                    .unwrap_or_else(|| Error::of_sqlstate(sqlstate::TRANSACTION_ROLLBACK, message)));
            }
        }
        Ok(())
    }

    fn writers(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().filter(|c| c.is_writer())
    }

    /// Ends the streams. A writer's answers are read to the end, as a cancel would roll the transaction back.
    fn end_streams(&mut self) -> Result<()> {
        for writer in self.writers().filter(|w| w.is_busy()) {
            writer.drain(Limit::Served)?;
        }
        self.stop(|c| !c.is_writer(), Instant::now() + CLEANUP);
        Ok(())
    }

    /// Cancels the statements of some connections at the same time, and drains them.
    fn stop(&mut self, which: impl Fn(&Connection) -> bool, deadline: Instant) {
        let mut cancels = Vec::new();
        for connection in self.connections.iter_mut().filter(|c| which(c) && c.is_busy()) {
            // Often only the end of the answer is missing.
            connection.drain_briefly(BRIEF);
            if let Some(cancel) = connection.canceller() {
                cancels.push((connection.id, cancel.send()));
            } else if connection.is_busy() {
                connection.state.set_broken();
            }
        }
        for (id, request) in cancels {
            if let Some(connection) = self.by_id(id) {
                connection.stopped(&request, deadline);
            }
        }
    }

    /// Ends the transactions that only read. Errors matter only under SERIALIZABLE: there PostgreSQL may refuse a commit because
    /// of earlier reads.
    fn end_readers(&mut self, except: &[u64]) -> Result<()> {
        let deadline = Instant::now() + CLEANUP;
        let mut readers = Vec::new();
        for reader in self
            .connections
            .iter_mut()
            .filter(|c| c.state.depth() > 0 && !c.state.has_written() && !except.contains(&c.id))
        {
            if !reader.state.is_broken() && reader.send_commit().is_ok() {
                readers.push(reader.id);
            }
            reader.ended();
        }
        let mut refused = None;
        for id in readers {
            if let Some(reader) = self.by_id(id)
                && let Err(error) = reader.drain(Limit::Until(deadline))
            {
                reader.state.set_broken();
                refused = Some(error);
            }
        }
        refused.filter(|_| ffi::local().serializable).map_or(Ok(()), Err)
    }

    fn commit_single(&mut self) -> Result<()> {
        if ffi::local().serializable {
            snapshot::check_serializable();
            self.end_readers(&[])?;
        }
        // The answer to a commit must be awaited, so a cancel is delayed; a shutdown is not.
        let _hold = HoldCancel::new();
        let mut writer_id = 0;
        for writer in self.writers() {
            writer_id = writer.id;
            writer.send_commit()?;
        }
        self.end_readers(&[writer_id])?;
        self.by_id(writer_id).map_or(Ok(()), await_commit)
    }

    fn commit_one_by_one(&mut self) -> Result<()> {
        if MULTI_SHARD_COMMIT.get() != MultiShardCommit::OneByOne {
            return Err(self.cannot_prepare("commit on several shards").with_hint(
                "Set max_prepared_transactions above 0 there, or docshard.multi_shard_commit to one_by_one here, \
                 which can leave a transaction partly committed.",
            ));
        }
        let _hold = HoldCancel::new();
        let mut done: Vec<String> = Vec::new();
        let ids: Vec<u64> = self.writers().map(|w| w.id).collect();
        for id in ids {
            let Some(writer) = self.by_id(id) else { continue };
            let committed = writer.send_commit().and_then(|()| await_commit(writer));
            let name = writer.wire.shard().to_owned();
            if let Err(mut error) = committed {
                if !done.is_empty() {
                    let before = error.detail.take().map(|detail| format!("{detail} ")).unwrap_or_default();
                    error.detail = Some(format!("{before}Already committed on shard \"{}\".", done.join("\", \"")));
                }
                return Err(error);
            }
            done.push(name);
        }
        self.end_readers(&[])
    }

    /// Asks each writer's shard, once per connection, whether it can prepare transactions.
    fn all_can_prepare(&mut self) -> Result<bool> {
        for writer in self.writers().filter(|w| w.two_phase.is_none()) {
            writer.ask_text("SHOW max_prepared_transactions", Some((&[Column::BYTES]).into()))?;
        }
        for writer in self.writers().filter(|w| w.two_phase.is_none()) {
            let answer = writer.answer(Limit::Served)?;
            writer.two_phase = Some(answer.rows.first().is_some_and(|row| row.get(0) != Some(b"0")));
        }
        Ok(self.writers().all(|w| w.two_phase == Some(true)))
    }

    fn prepare(&mut self) -> Result<()> {
        let coordinator = coordinator().ok_or_else(no_coordinator)?;
        let token = coordinator.token()?;
        let (pid, xid) = (ffi::process_id(), ffi::local_xid());
        let mut ids = Vec::new();
        for writer in self.writers() {
            let counter = COUNTER.get();
            COUNTER.set(counter + 1);
            let server = writer.server;
            let gid = format!("docshard_{token}_{pid}_{xid}_{counter}_{}", server.to_u32());
            ids.push(writer.id);
            // Recorded before it is sent, so that an abort finds it.
            BRANCHES.with_borrow_mut(|b| b.push(Branch { connection: writer.id, server, gid: gid.clone() }));
            writer.send_prepare(&gid)?;
        }
        self.end_readers(&ids)?;
        for id in ids {
            if let Some(writer) = self.by_id(id) {
                writer.finish_text(Some("PREPARE TRANSACTION"), Limit::Served)?;
                writer.ended();
            }
        }
        Ok(())
    }

    /// Commits or rolls back prepared transactions in parallel; returns those that succeeded. Never raises.
    fn finish_branches(&mut self, branches: Vec<Branch>, verb: &str, deadline: Instant) -> Vec<Branch> {
        let mut sent = Vec::new();
        for branch in branches {
            if let Some(connection) = self.by_id(branch.connection).filter(|c| !c.state.is_broken())
                && connection.send_text(&format!("{verb} PREPARED {}", quote_literal(&branch.gid))).is_ok()
            {
                sent.push(branch);
            }
        }
        sent.retain(|branch| {
            let tag = format!("{verb} PREPARED");
            self.by_id(branch.connection).is_some_and(|c| c.finish_text(Some(&tag), Limit::Until(deadline)).is_ok())
        });
        sent
    }

    fn abort(&mut self) {
        let deadline = Instant::now() + PROMPT;
        self.stop(|_| true, deadline);
        let mut open = Vec::new();
        for connection in self.connections.iter_mut().filter(|c| c.state.depth() > 0) {
            let needed = matches!(connection.xact(), Xact::Open | Xact::Failed);
            if needed && !connection.state.is_broken() && connection.send_rollback().is_ok() {
                open.push(connection.id);
            }
            connection.ended();
        }
        for id in open {
            if let Some(connection) = self.by_id(id)
                && connection.drain(Limit::Until(deadline)).is_err()
            {
                connection.state.set_broken();
            }
        }
        self.finish_branches(BRANCHES.take(), "ROLLBACK", deadline);
        for connection in &mut self.connections {
            if connection.release() {
                let shard = connection.wire.shard();
                pgrx::warning!("what the failed statement wrote on shard \"{shard}\" is committed");
            }
        }
        self.next_epoch();
    }

    fn abort_sub(&mut self, level: i32) {
        self.stop(|c| c.state.depth() >= level || c.is_busy_since(level), Instant::now() + PROMPT);
        let deadline = Instant::now() + CLEANUP;
        let mut sent = Vec::new();
        for connection in self.connections.iter_mut().filter(|c| c.state.depth() >= level && !c.state.is_broken()) {
            if connection.send_abort_sub(level) {
                sent.push(connection.id);
            }
        }
        for id in sent {
            if let Some(connection) = self.by_id(id) {
                match connection.finish_text(None, Limit::Until(deadline)) {
                    Ok(()) => connection.state.aborted_sub(level),
                    // The connection keeps its depth, so that the commit fails.
                    Err(_) => connection.state.set_broken(),
                }
            }
        }
    }
}

fn await_commit(writer: &mut Connection) -> Result<()> {
    match writer.await_commit() {
        Ok(()) => {
            writer.ended();
            Ok(())
        }
        Err(_) if writer.state.is_broken() => Err(writer.in_doubt()),
        Err(error) => Err(error),
    }
}
