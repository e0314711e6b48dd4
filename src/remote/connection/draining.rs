//! Ends a batch in flight whose rows are not read any more, or whose connection another batch needs.

use super::super::ffi::{self, Cancel};
use super::super::row::Spool;
use super::super::wire::{Limit, Lost};
use super::{CLEANUP, Connection, Phase, Progress, Stop};
use crate::pg::error::{Error, Result};
use docshard_core::error::sqlstate;
use std::cell::RefCell;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long an abandoned answer may take before its statement is cancelled.
const PATIENCE: Duration = Duration::from_millis(20);

fn interrupted() -> Error {
    Error::of_sqlstate(sqlstate::QUERY_CANCELED, "reading from a shard was interrupted")
}

impl Connection {
    /// Makes the stream of the batch fail. The rows will be discarded, and the reader must not take what it got for the whole answer.
    fn fail_stream(&self) {
        if let Some(progress) = &self.current
            && matches!(progress.borrow().phase, Phase::Live)
        {
            progress.borrow_mut().phase = Phase::Failed(interrupted());
        }
    }

    /// Reads the batch in flight to its end and discards its rows.
    pub fn drain(&mut self, limit: Limit) -> Result<()> {
        self.fail_stream();
        if self.state.awaits_text() {
            return self.finish_text(None, limit);
        }
        loop {
            match self.next(limit) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Late) => return Err(self.break_down(&Lost::Late)),
            }
        }
    }

    /// Makes the connection free for another batch. Rows of a stream that is still read are kept, and others discarded.
    pub fn settle(&mut self) {
        if !self.is_busy() {
            return;
        }
        match self.current.clone() {
            Some(progress) if matches!(progress.borrow().phase, Phase::Live) => self.spool(&progress),
            // A cancel would abort the transaction.
            _ if self.state.depth() > 0 => drop(self.drain(Limit::Served)),
            _ => {
                self.drain_briefly(PATIENCE);
                if let Some(cancel) = self.canceller() {
                    self.stopped(&cancel.send(), Instant::now() + CLEANUP);
                }
            }
        }
    }

    fn spool(&mut self, progress: &RefCell<Progress>) {
        // If an interrupt unwinds, rows are lost and the stream fails.
        progress.borrow_mut().phase = Phase::Failed(interrupted());
        let mut spool = Spool::default();
        let phase = loop {
            let row = match self.next(Limit::Served) {
                Ok(row) => row,
                Err(Stop::Failed(error)) => break Phase::Failed(error),
                Err(Stop::Late) => break Phase::Failed(self.break_down(&Lost::Late)),
            };
            let Some(row) = row else {
                break spool.rewind().map_or_else(Phase::Failed, |()| Phase::Spooled(spool));
            };
            if let Err(error) = spool.push(&row) {
                drop(self.drain(Limit::Served));
                break Phase::Failed(error);
            }
        };
        let mut progress = progress.borrow_mut();
        progress.affected = self.affected;
        progress.phase = phase;
    }

    /// A cancel request for the batch in flight, if there is one.
    pub fn canceller(&self) -> Option<Cancel> {
        if self.is_busy() { self.wire.pg.canceller() } else { None }
    }

    /// Reads and discards what arrives within a short time, which is often the rest of the batch.
    pub fn drain_briefly(&mut self, time: Duration) {
        self.fail_stream();
        let deadline = Instant::now() + time;
        while !self.state.awaits_text() && Instant::now() < deadline {
            match self.next(Limit::Until(deadline)) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Awaits a cancel request and drains. Raises nothing.
    pub fn stopped(&mut self, request: &Receiver<()>, deadline: Instant) {
        if ffi::await_cancel(request, deadline) {
            drop(self.drain(Limit::Until(deadline)));
        } else {
            self.break_down(&Lost::Late);
        }
    }
}
