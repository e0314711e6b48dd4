//! How a connection's remote transaction ends: committed, rolled back, as a whole or to a savepoint; and how an implicit one
//! becomes a block, which can do more.

use super::super::ffi::Local;
use super::super::param::Encoded;
use super::super::wire::{Limit, Lost};
use super::{CLEANUP, Connection, Open, PROMPT, ROLL_BACK, Step};
use crate::pg::error::Result;
use crate::pg::spi::quote::quote_literal;
use std::ffi::CStr;
use std::time::Instant;

impl Connection {
    /// Makes a transaction block of an implicit transaction, for what only blocks can.
    pub(in crate::remote) fn make_block(&mut self) -> Result<()> {
        if !self.state.is_implicit() || self.state.is_broken() {
            return Ok(());
        }
        let begin = Open::Block(Local::PLAIN);
        if !self.pipeline(begin, None, std::iter::empty(), &mut Encoded::default())? || self.wire.sent().is_err() {
            return Err(self.break_down(&Lost::Broken(self.wire.pg.message())));
        }
        self.drain(Limit::Served)
    }

    /// Sends what commits the remote transaction; to be followed by [`Connection::await_commit`].
    pub(in crate::remote) fn send_commit(&mut self) -> Result<()> {
        if self.state.is_implicit() { self.send_sync(&[]) } else { self.send_text("COMMIT") }
    }

    /// Sends what prepares the remote transaction, which is a block. It survives a failover to a synchronous standby, and so
    /// does its end by the next command, whatever the shard's `synchronous_commit`.
    pub(in crate::remote) fn send_prepare(&mut self, gid: &str) -> Result<()> {
        let text = self.session.durably(&format!("PREPARE TRANSACTION {}", quote_literal(gid)));
        self.send_text(&text)
    }

    /// Awaits the outcome of what [`Connection::send_commit`] sent. A cancel that is held back undoes nothing, but ends the wait:
    /// if the outcome does not come soon then, it stays unknown.
    pub(in crate::remote) fn await_commit(&mut self) -> Result<()> {
        let limit = match self.wire.ready(Limit::Outcome) {
            Ok(()) => Limit::Served,
            Err(Lost::Late) => Limit::Until(Instant::now() + PROMPT),
            Err(lost) => return Err(self.break_down(&lost)),
        };
        if self.state.awaits_text() {
            return self.finish_text(Some("COMMIT"), limit);
        }
        // An error, at the latest that of the commit itself, comes before the synchronisation point.
        self.drain(limit)
    }

    /// Sends what rolls the remote transaction back; to be followed by [`Connection::drain`].
    pub(in crate::remote) fn send_rollback(&mut self) -> Result<()> {
        self.session.rolled_back();
        match (self.state.is_void(), self.state.is_implicit()) {
            (true, _) => Ok(()),
            (_, true) => self.send_sync(ROLL_BACK),
            _ => self.send_text("ROLLBACK"),
        }
    }

    /// Ends an implicit transaction, after last commands.
    pub(super) fn send_sync(&mut self, commands: &[&CStr]) -> Result<()> {
        self.state.end_pipeline();
        let mut sent = commands.iter().all(|sql| self.plain(sql, &Encoded::default(), Step::Silent));
        self.steps.push_back(Step::Sync);
        sent &= self.wire.pg.sync();
        if !sent || self.wire.sent().is_err() {
            return Err(self.break_down(&Lost::Broken(self.wire.pg.message())));
        }
        Ok(())
    }

    /// Rolls the remote transaction back if the last batch allows it, so that the request can be sent again.
    pub(in crate::remote) fn undo(&mut self) {
        if self.batch.fresh && self.state.depth() > 0 && !self.is_busy() && !self.state.is_broken() {
            self.rollback();
        }
    }

    /// Rolls the remote transaction back, within bounds.
    pub(super) fn rollback(&mut self) {
        let limit = Limit::Until(Instant::now() + CLEANUP);
        if self.send_rollback().and_then(|()| self.drain(limit)).is_ok() {
            self.ended();
        } else {
            self.state.set_broken();
        }
    }

    /// The remote transaction is over.
    pub(in crate::remote) fn ended(&mut self) {
        self.session.committed();
        self.state.ended();
    }

    /// The subtransaction at this level commits: its savepoint is released with whatever is sent next.
    pub(in crate::remote) fn commit_sub(&mut self, level: i32) {
        for step in &mut self.steps {
            if let Step::Open(depth) = *step
                && depth >= level
            {
                *step = Step::Outlived(depth);
            }
        }
        self.state.commit_sub(level);
    }

    /// The subtransaction at this level was aborted: sends what rolls it back. To be finished with `finish_text`.
    pub(in crate::remote) fn send_abort_sub(&mut self, level: i32) -> bool {
        self.session.rolled_back();
        self.state.abort_sub(level);
        let sql = format!("ROLLBACK TO SAVEPOINT s{level}; RELEASE SAVEPOINT s{level}");
        self.send_text(&sql).is_ok()
    }
}
