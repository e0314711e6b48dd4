//! What becomes of a batch in flight that nobody waits for, or that is in the way of another one.

use super::super::ffi::{self, Cancel};
use super::super::row::Spool;
use super::super::wire::{Limit, Lost};
use super::{CLEANUP, Connection, Phase, Progress, Stop};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use std::cell::RefCell;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long an abandoned answer may take to arrive before it is cancelled.
const PATIENCE: Duration = Duration::from_millis(20);

impl Connection {
    /// Reads the batch in flight to its end, throwing its rows away.
    pub(in crate::remote) fn drain(&mut self, limit: Limit) -> Result<()> {
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

    /// Makes the connection free for another batch: keeps the rows of a stream that is still read, throws others away.
    pub(in crate::remote) fn settle(&mut self) {
        if !self.is_busy() {
            return;
        }
        match self.current.clone() {
            Some(progress) if matches!(progress.borrow().phase, Phase::Live) => self.spool(&progress),
            // In a transaction a cancel would abort what was done before.
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
        // An interrupt in between loses rows, so the stream must not go on.
        let interrupted = Error::of_sqlstate(*b"57014", "reading from a shard was interrupted");
        progress.borrow_mut().phase = Phase::Failed(interrupted);
        let mut spool = Spool::default();
        let phase = loop {
            match self.next(Limit::Served) {
                Ok(Some(row)) if spool.push(&row) => {}
                Ok(None) if spool.rewind() => break Phase::Spooled(spool),
                Ok(_) => break Phase::Failed(Error::new(Kind::InternalError, "could not write a temporary file")),
                Err(Stop::Failed(error)) => break Phase::Failed(error),
                Err(Stop::Late) => break Phase::Failed(self.break_down(&Lost::Late)),
            }
        };
        let mut progress = progress.borrow_mut();
        progress.affected = self.affected;
        progress.phase = phase;
    }

    /// Cancels what runs, if anything does.
    pub(in crate::remote) fn canceller(&self) -> Option<Cancel> {
        if self.is_busy() { self.wire.pg.canceller() } else { None }
    }

    /// Reads and throws away what arrives within a short time, which often is the end.
    pub(in crate::remote) fn drain_briefly(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.state.awaits_text() && Instant::now() < deadline {
            match self.next(Limit::Until(deadline)) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Waits for a cancel request and drains, without raising.
    pub(in crate::remote) fn stopped(&mut self, request: &Receiver<()>, deadline: Instant) {
        if ffi::await_cancel(request, deadline) {
            drop(self.drain(Limit::Until(deadline)));
        } else {
            self.break_down(&Lost::Late);
        }
    }
}
