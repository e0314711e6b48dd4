//! Commit and rollback of a connection's remote transaction, as a whole or to a savepoint.

use super::super::ffi::Local;
use super::super::param::Encoded;
use super::super::wire::{Limit, Lost};
use super::{CLEANUP, Connection, Open, PROMPT, ROLL_BACK, Step};
use crate::pg::error::Result;
use docshard_core::sql::quote::quote_literal;
use std::ffi::CStr;
use std::time::Instant;

impl Connection {
    /// Turns an implicit transaction into a transaction block; does nothing if there is no implicit one.
    pub fn make_block(&mut self) -> Result<()> {
        if !self.state.is_implicit() || self.state.is_broken() {
            return Ok(());
        }
        let begin = Open::Block(Local::PLAIN);
        let sent = self.pipeline(begin, None, std::iter::empty(), &mut Encoded::default())?;
        self.transmit(sent)?;
        self.drain(Limit::Served)
    }

    /// Sends the commit, to be followed by [`Connection::await_commit`].
    pub fn send_commit(&mut self) -> Result<()> {
        if self.state.is_implicit() { self.send_sync(&[]) } else { self.send_text("COMMIT") }
    }

    /// Sends PREPARE TRANSACTION. The prepared transaction and the next command, which commits it or rolls it back, survive a failover to a
    /// synchronous standby, whatever the shard's `synchronous_commit`.
    pub fn send_prepare(&mut self, gid: &str) -> Result<()> {
        let text = self.session.durably(&format!("PREPARE TRANSACTION {}", quote_literal(gid)));
        self.send_text(&text)
    }

    /// Awaits the outcome of [`Connection::send_commit`]. A cancel does not stop the commit, but limits the wait to [`PROMPT`];
    /// after that the outcome is unknown.
    pub fn await_commit(&mut self) -> Result<()> {
        let limit = match self.wire.ready(Limit::Outcome) {
            Ok(()) => Limit::Served,
            Err(Lost::Late) => Limit::Until(Instant::now() + PROMPT),
            Err(lost) => return Err(self.break_down(&lost)),
        };
        if self.state.awaits_text() {
            return self.finish_text(Some("COMMIT"), limit);
        }
        self.drain(limit)
    }

    /// Sends the rollback, to be followed by [`Connection::drain`].
    pub fn send_rollback(&mut self) -> Result<()> {
        self.session.rolled_back();
        match (self.state.is_void(), self.state.is_implicit()) {
            (true, _) => Ok(()),
            (_, true) => self.send_sync(ROLL_BACK),
            _ => self.send_text("ROLLBACK"),
        }
    }

    /// Sends the last commands of an implicit transaction, and its synchronisation point.
    pub(super) fn send_sync(&mut self, commands: &[&CStr]) -> Result<()> {
        self.state.end_pipeline();
        let mut sent = commands.iter().all(|sql| self.plain(sql, &Encoded::default(), Step::Silent));
        self.steps.push_back(Step::Sync);
        sent &= self.wire.pg.sync();
        self.transmit(sent)
    }

    /// Rolls the remote transaction back if it consists of the last batch only, so that the request can be sent again.
    pub fn undo(&mut self) {
        if !self.batch.fresh || self.state.depth() == 0 || self.is_busy() || self.state.is_broken() {
            return;
        }
        let limit = Limit::Until(Instant::now() + CLEANUP);
        if self.send_rollback().and_then(|()| self.drain(limit)).is_ok() {
            self.ended();
        } else {
            self.state.set_broken();
        }
    }

    pub fn ended(&mut self) {
        self.session.committed();
        self.abort_cause = None;
        self.state.ended();
    }

    /// Called when the local subtransaction of this level commits: the next batch releases its savepoint. A batch in flight
    /// then belongs to the level below, so a later rollback at this level does not cancel it.
    pub fn commit_sub(&mut self, level: i32) {
        self.batch.level = self.batch.level.min(level - 1);
        for step in &mut self.steps {
            if let Step::Open(depth) = *step
                && depth >= level
            {
                *step = Step::Outlived(depth);
            }
        }
        self.state.commit_sub(level);
    }

    /// Sends the rollback of the subtransaction of this level, to be followed by [`Connection::finish_text`]. False if it could not be
    /// sent.
    pub fn send_abort_sub(&mut self, level: i32) -> bool {
        self.session.rolled_back();
        self.abort_cause = None;
        self.state.abort_sub(level);
        self.send_text(&format!("ROLLBACK TO SAVEPOINT s{level}; RELEASE SAVEPOINT s{level}")).is_ok()
    }
}
