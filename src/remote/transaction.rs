//! Remote transactions follow the local one.
//!
//! # Commit
//! Before the local commit, unfinished streams are ended and every written shard must be in a sound transaction. Then:
//! - nothing written on shards: the remote transactions are ended;
//! - one shard written and nothing here: its commit decides, one round trip; none where the statement that wrote was all of
//!   the local transaction, and has committed at once;
//! - else two-phase commit: all written shards prepare, the [`Coordinator`] writes the decision into the local
//!   transaction, and after the local commit all are told to commit. What can't be told then is left to recovery;
//! - else, where a shard can't prepare and `docshard.multi_shard_commit` allows it, one shard after the other.
//!
//! No shard commits before all statements on all shards have succeeded.
//!
//! # PREPARE TRANSACTION
//! All written shards prepare, and the decision is written, as above; but it is part of what the client prepares here. So
//! its COMMIT PREPARED decides, and its ROLLBACK PREPARED leaves no decision. The [`Coordinator`] tells the shards then.
//!
//! # Abort
//! What runs is cancelled, answers are drained, transactions rolled back (prepared ones too), all within [`PROMPT`];
//! a connection that takes longer is closed, and the shard ends the session itself. Nothing raises there.
//!
//! [`Coordinator`]: super::Coordinator

use super::cache::{self, Pool, with_pool};
use super::connection::{CLEANUP, Connection, PROMPT};
use super::coordinator::coordinator;
use super::ffi::{self, Event, HoldCancel, Xact};
use super::settings::{MULTI_SHARD_COMMIT, MultiShardCommit};
use super::wire::Limit;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot;
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// How long the local commit waits for shards to take the decision.
const FINISH: Duration = Duration::from_secs(10);

/// How long an unfinished answer may take before it is cancelled.
const BRIEF: Duration = Duration::from_millis(1);

/// One shard's part of a transaction in two-phase commit.
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

/// Registers the callbacks of the local transaction; called before a first connection is opened.
pub(super) fn follow(pool: &Pool) {
    if pool.connections.is_empty() {
        ffi::register(on_event, cache::invalidate);
        ffi::at_exit(cache::close_all);
    }
}

/// True if nothing has been written in the remote transaction and it isn't failed, so that a request that failed, or
/// whose answer doesn't count, may be sent again.
pub fn can_retry(server: Oid) -> bool {
    !any(server, |c| !c.may_retry())
}

/// Rolls the remote transaction on the server back, if all it did there is its last request, which may be sent again.
pub fn undo(server: Oid) {
    drop(with_pool(|pool| {
        pool.connections.iter_mut().filter(|c| c.server == server).for_each(Connection::undo);
        Ok(())
    }));
}

/// True if a remote transaction has failed that follows the local one and may not be begun anew: nothing can be run again
/// but the whole local transaction.
pub fn has_failed() -> bool {
    let failed = |c: &mut Connection| {
        // What is still under way may fail, too.
        if c.state.depth() > 0 {
            c.settle();
        }
        c.state.depth() > 0 && (c.state.is_broken() || c.xact() == Xact::Failed)
    };
    with_pool(|pool| Ok(pool.connections.iter_mut().any(failed))).unwrap_or(false)
}

fn any(server: Oid, is: impl Fn(&Connection) -> bool) -> bool {
    with_pool(|pool| {
        Ok(pool.connections.iter().any(|c| c.server == server && (c.state.depth() > 0 || c.state.is_broken()) && is(c)))
    })
    .unwrap_or(false)
}

fn on_event(event: Event) {
    if !with_pool(|pool| Ok(pool.used)).unwrap_or(true) {
        return;
    }
    let done = match event {
        Event::PreCommit => pre_commit(),
        Event::PrePrepare => pre_prepare(),
        Event::Prepared => {
            BRANCHES.take();
            drop(with_pool(|pool| {
                pool.next_epoch();
                Ok(())
            }));
            Ok(())
        }
        Event::Committed => {
            committed();
            Ok(())
        }
        Event::Aborted => {
            drop(with_pool(|pool| {
                pool.abort();
                Ok(())
            }));
            Ok(())
        }
        Event::PreCommitSub(level) => with_pool(|pool| {
            pool.connections.iter_mut().for_each(|c| c.commit_sub(level));
            Ok(())
        }),
        Event::AbortedSub(level) => with_pool(|pool| {
            pool.abort_sub(level);
            Ok(())
        }),
    };
    if let Err(error) = done {
        error.raise();
    }
}

fn pre_commit() -> Result<()> {
    if with_pool(Pool::pre_commit)? { decide(true) } else { Ok(()) }
}

/// The client prepares the local transaction, to end it later.
fn pre_prepare() -> Result<()> {
    if with_pool(Pool::pre_prepare)? { decide(false) } else { Ok(()) }
}

fn decide(at_once: bool) -> Result<()> {
    let gids = gids(&BRANCHES.with_borrow(Vec::clone));
    match coordinator() {
        Some(coordinator) => ffi::with_snapshot(|| coordinator.decide(&gids, at_once)),
        None => Err(no_coordinator()),
    }
}

fn committed() {
    let branches = BRANCHES.take();
    let mut late: Vec<String> = Vec::new();
    let mut finished = Vec::new();
    drop(with_pool(|pool| {
        finished = pool.finish_branches(branches.clone(), "COMMIT", Instant::now() + FINISH);
        let unfinished = branches.iter().filter(|branch| !finished.iter().any(|done| done.gid == branch.gid));
        late = unfinished.filter_map(|branch| Some(pool.by_id(branch.connection)?.wire.shard().to_owned())).collect();
        pool.next_epoch();
        Ok(())
    }));
    if !late.is_empty() {
        pgrx::warning!(
            "the transaction is committed, but shard \"{}\" could not be told yet: what it wrote there is seen once it has been",
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
    Error::new(Kind::IllegalOperation, "this process cannot decide a transaction over several shards")
}

impl Pool {
    /// Brings the remote transactions to where the local commit decides. True if shards have prepared.
    fn pre_commit(&mut self) -> Result<bool> {
        self.make_sound()?;
        match self.writers().count() {
            0 => self.end_readers(&[]).map(|()| false),
            1 if !ffi::local_writes() => self.commit_single().map(|()| false),
            _ => self.commit_several(),
        }
    }

    /// Brings the remote transactions to where the local PREPARE TRANSACTION leaves the decision to later. True if shards
    /// have prepared.
    fn pre_prepare(&mut self) -> Result<bool> {
        self.make_sound()?;
        if self.writers().next().is_none() {
            return self.end_readers(&[]).map(|()| false);
        }
        for writer in self.writers() {
            writer.make_block()?;
        }
        if !self.all_can_prepare()? {
            let names = self.unable_to_prepare();
            return Err(Error::new(
                Kind::IllegalOperation,
                format!("cannot prepare the transaction, as shard \"{names}\" prepares none"),
            )
            .with_hint("Set max_prepared_transactions above 0 there, and restart it."));
        }
        self.prepare().map(|()| true)
    }

    /// Writers that cannot prepare transactions, by name.
    fn unable_to_prepare(&mut self) -> String {
        let names: Vec<_> =
            self.writers().filter(|w| w.two_phase == Some(false)).map(|w| w.wire.shard().to_owned()).collect();
        names.join("\", \"")
    }

    /// Ends what is still being read, and makes sure that all written shards can commit.
    fn make_sound(&mut self) -> Result<()> {
        self.end_streams()?;
        for writer in self.writers() {
            // Looking now tells a shard that is gone from one that vanishes while it commits.
            if !writer.is_alive() {
                writer.state.set_broken();
                return Err(writer.wire.broken("It had written in this transaction."));
            }
            if writer.xact() != Xact::Open {
                let shard = writer.wire.shard();
                let message = format!("the transaction on shard \"{shard}\" was aborted by an earlier error");
                return Err(Error::of_sqlstate(*b"40000", message));
            }
        }
        Ok(())
    }

    /// Prepares the writers, or commits one after the other. True if they have prepared.
    fn commit_several(&mut self) -> Result<bool> {
        for writer in self.writers() {
            writer.make_block()?;
        }
        if self.all_can_prepare()? { self.prepare().map(|()| true) } else { self.commit_one_by_one().map(|()| false) }
    }

    fn writers(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().filter(|c| c.is_writer())
    }

    /// Ends the streams that are still read: a writer's by reading on, as a cancel would lose what it wrote.
    fn end_streams(&mut self) -> Result<()> {
        for writer in self.writers().filter(|w| w.is_busy()) {
            writer.drain(Limit::Served)?;
        }
        self.stop(|c| !c.is_writer(), Instant::now() + CLEANUP);
        Ok(())
    }

    /// Cancels what runs on some connections, all at once, and drains them, within bounds.
    fn stop(&mut self, which: impl Fn(&Connection) -> bool, deadline: Instant) {
        let mut cancels = Vec::new();
        for connection in self.connections.iter_mut().filter(|c| which(c) && c.is_busy()) {
            // A reader that stopped early has most often left no more than the end.
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

    /// Ends the transactions that only read, together with text commands that were sent to others already. Whether that succeeds
    /// is of no consequence but for the connection; unless they are serializable, when PostgreSQL may say only now that what
    /// they read does not fit together.
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

    /// The commit of the one writer decides.
    fn commit_single(&mut self) -> Result<()> {
        if ffi::local().serializable {
            snapshot::check_serializable();
            self.end_readers(&[])?;
        }
        // Once it is sent its outcome must be known, so a cancel has to wait; a shutdown hasn't.
        let _hold = HoldCancel::new();
        let mut writer_id = 0;
        for writer in self.writers() {
            writer_id = writer.id;
            writer.send_commit()?;
        }
        self.end_readers(&[writer_id])?;
        self.by_id(writer_id).map_or(Ok(()), await_commit)
    }

    /// Commits one writer after the other.
    fn commit_one_by_one(&mut self) -> Result<()> {
        if MULTI_SHARD_COMMIT.get() != MultiShardCommit::OneByOne {
            let names = self.unable_to_prepare();
            return Err(Error::new(
                Kind::IllegalOperation,
                format!("cannot commit on several shards, as shard \"{names}\" prepares no transactions"),
            )
            .with_hint(
                "Set max_prepared_transactions above 0 there, or docshard.multi_shard_commit to one_by_one here, which \
                 can leave a transaction half done.",
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
                    error.detail = Some(format!("Already committed on shard \"{}\".", done.join("\", \"")));
                }
                return Err(error);
            }
            done.push(name);
        }
        self.end_readers(&[])
    }

    /// Asks the writers, once a connection, whether they can prepare transactions.
    fn all_can_prepare(&mut self) -> Result<bool> {
        for writer in self.writers().filter(|w| w.two_phase.is_none()) {
            writer.send_text("SHOW max_prepared_transactions")?;
        }
        for writer in self.writers().filter(|w| w.two_phase.is_none()) {
            let answer = writer.answer(Limit::Served)?;
            writer.two_phase = Some(answer.value(0, 0).is_some_and(|v| v != b"0"));
        }
        Ok(self.writers().all(|w| w.two_phase == Some(true)))
    }

    /// Prepares the writers' transactions, all sent before any is awaited.
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
            // Noted before it is sent, so that an abort finds it.
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

    /// Commits or rolls back prepared transactions, in parallel; returns those that are done. Never raises.
    fn finish_branches(&mut self, branches: Vec<Branch>, verb: &str, deadline: Instant) -> Vec<Branch> {
        let mut sent = Vec::new();
        for branch in branches {
            if let Some(connection) = self.by_id(branch.connection).filter(|c| !c.state.is_broken())
                && connection.send_text(&format!("{verb} PREPARED {}", literal(&branch.gid))).is_ok()
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

    /// The local transaction was aborted.
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

    /// The subtransaction at this level was aborted.
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
                    // It keeps its depth, so that the commit of what remains fails.
                    Err(_) => connection.state.set_broken(),
                }
            }
        }
    }
}

/// Awaits the COMMIT that was sent to a writer.
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

/// A quoted name of a prepared transaction; it has no quotes inside, but a token is somebody else's.
fn literal(gid: &str) -> String {
    format!("'{}'", gid.replace('\'', "''"))
}
