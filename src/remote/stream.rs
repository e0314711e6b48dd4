//! Requests and their rows.
//!
//! A stream names its connection by an id that is never used again, and its local transaction by number; what outlives
//! either answers an error. Its rows come from the connection until another statement needs that, then from a spool.

use super::cache::{Pool, with_pool};
use super::connection::{CLEANUP, Phase, Progress, Stop};
use super::ffi;
use super::param::Request;
use super::row::Row;
use super::transaction;
use super::wire::{self, Limit};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use docshard_core::error::Kind;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// The rows of one request. Dropping it early is allowed.
#[derive(Debug)]
pub struct Stream {
    connection: u64,
    epoch: u64,
    progress: Rc<RefCell<Progress>>,
    /// a row that was awaited but not yet asked for
    head: Option<Row>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut progress = self.progress.borrow_mut();
        if !matches!(progress.phase, Phase::Done) {
            progress.phase = Phase::Dropped;
        }
    }
}

/// Sends all requests before awaiting any answer; returns one stream a request, in order.
///
/// Requests for one server are sent one after the other, each when the rows before it have arrived.
pub fn start(requests: &[Request<'_>]) -> Result<Vec<Stream>> {
    let local = ffi::local();
    with_pool(|pool| {
        transaction::follow(pool);
        let mut streams = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            if at > 0 {
                fault::point("dispatch.sent")?;
            }
            match pool.send(request, local) {
                Ok((connection, progress)) => {
                    streams.push(Stream { connection, epoch: pool.epoch, progress, head: None })
                }
                Err(error) => return Err(void(pool, &mut streams, error)),
            }
        }
        wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
        Ok(streams)
    })
}

/// Waits until every stream has its first row, its end or an error. On an error it cancels and drains all and returns
/// the error, a stale one (`Error::is_stale`) rather than another.
///
/// After an error, remote transactions in which nothing had been written before are rolled back, so that the requests
/// can be sent again where [`super::can_retry`] says so of every server.
pub fn await_all(streams: &mut [Stream]) -> Result<()> {
    with_pool(|pool| {
        for at in 0..streams.len() {
            if let Err(error) = streams[at].fill(pool) {
                return Err(void(pool, streams, error));
            }
        }
        Ok(())
    })
}

/// Ends streams of which one failed; returns the error that counts.
fn void(pool: &mut Pool, streams: &mut [Stream], error: Error) -> Error {
    let live: Vec<u64> = streams.iter().filter(|s| s.is_live()).map(|s| s.connection).collect();
    let error = cancel(pool, &live, error);
    for stream in streams {
        if let Some(connection) = pool.by_id(stream.connection) {
            connection.undo();
        }
        stream.fail(&error);
    }
    error
}

/// Cancels what runs on these connections, at the same time, and awaits its end; returns the error that counts: a stale one
/// that had come before its statement was cancelled, otherwise the one given.
fn cancel(pool: &mut Pool, connections: &[u64], mut error: Error) -> Error {
    let deadline = Instant::now() + CLEANUP;
    let mut cancels = Vec::new();
    for id in connections {
        if let Some(cancel) = pool.by_id(*id).and_then(|connection| connection.canceller()) {
            cancels.push((*id, cancel.send()));
        }
    }
    for (id, cancel) in cancels {
        let Some(connection) = pool.by_id(id) else { continue };
        if !ffi::await_cancel(&cancel, deadline) {
            connection.state.set_broken();
        } else if let Err(other) = connection.drain(Limit::Until(deadline))
            && other.is_stale()
            && !error.is_stale()
        {
            error = other;
        }
    }
    error
}

/// Writing statements for any number of shards that are sent as they come, so that the shards work meanwhile, and awaited
/// together at the end. What they answer is thrown away, but for errors. No other request may be sent in between.
///
/// Dropped before [`Feed::finish`], it leaves the transaction unfit to commit what was sent: the caller raises an error.
#[derive(Debug, Default)]
pub struct Feed {
    connections: Vec<u64>,
}

impl Feed {
    /// Sends a statement, after the shard's earlier ones. Waits only while what was sent before is still here.
    pub fn send(&mut self, request: &Request<'_>) -> Result<()> {
        let local = ffi::local();
        with_pool(|pool| {
            transaction::follow(pool);
            let sent = pool.feed(request, local);
            match sent {
                Ok(id) if !self.connections.contains(&id) => self.connections.push(id),
                Ok(_) => {}
                Err(error) => return Err(self.void(pool, error)),
            }
            wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
            Ok(())
        })
    }

    /// Waits for the end of all statements. An error is handled as by [`await_all`]; a stale one counts most.
    pub fn finish(self) -> Result<()> {
        with_pool(|pool| {
            for id in &self.connections {
                if let Some(connection) = pool.by_id(*id) {
                    connection.end_feed();
                }
            }
            wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
            for id in &self.connections {
                let drained = match pool.by_id(*id) {
                    Some(connection) => connection.drain(Limit::Served),
                    None => Err(Error::new(Kind::HostUnreachable, "the connection to the shard was closed")),
                };
                if let Err(error) = drained {
                    return Err(self.void(pool, error));
                }
            }
            Ok(())
        })
    }

    /// Cancels what runs, and rolls back where nothing had been written before; returns the error that counts.
    fn void(&self, pool: &mut Pool, error: Error) -> Error {
        for id in &self.connections {
            if let Some(connection) = pool.by_id(*id) {
                connection.end_feed();
            }
        }
        let error = cancel(pool, &self.connections, error);
        for id in &self.connections {
            if let Some(connection) = pool.by_id(*id) {
                connection.undo();
            }
        }
        error
    }
}

impl Stream {
    fn is_live(&self) -> bool {
        matches!(self.progress.borrow().phase, Phase::Live)
    }

    fn fail(&mut self, error: &Error) {
        self.head = None;
        self.progress.borrow_mut().phase = Phase::Failed(error.clone());
    }

    /// The next row, or None at the end.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and an iterator of results would go on after that")]
    pub fn next(&mut self) -> Result<Option<Row>> {
        match self.head.take() {
            Some(row) => Ok(Some(row)),
            None => with_pool(|pool| self.advance(pool)),
        }
    }

    /// The rows of the command tag of a request that writes; 0 before the end.
    pub fn affected(&self) -> u64 {
        let progress = self.progress.borrow();
        if matches!(progress.phase, Phase::Done) { progress.affected } else { 0 }
    }

    /// Waits for the first row, the end or an error.
    fn fill(&mut self, pool: &mut Pool) -> Result<()> {
        if self.head.is_none() {
            self.head = self.advance(pool)?;
        }
        Ok(())
    }

    fn advance(&mut self, pool: &mut Pool) -> Result<Option<Row>> {
        if self.epoch != pool.epoch {
            return Err(Error::new(Kind::NoSuchTransaction, "the transaction that read from the shard is over"));
        }
        let mut progress = self.progress.borrow_mut();
        match &mut progress.phase {
            Phase::Done => Ok(None),
            Phase::Failed(error) => Err(error.clone()),
            Phase::Dropped => Err(Error::new(Kind::InternalError, "a dropped stream is read")),
            Phase::Spooled(spool) => match spool.next() {
                Some(Some(row)) => Ok(Some(row)),
                Some(None) => Err(Error::new(Kind::InternalError, "could not read a temporary file")),
                None => {
                    progress.phase = Phase::Done;
                    Ok(None)
                }
            },
            Phase::Live => {
                drop(progress);
                self.receive(pool)
            }
        }
    }

    fn receive(&mut self, pool: &mut Pool) -> Result<Option<Row>> {
        let Some(connection) = pool.by_id(self.connection) else {
            return Err(Error::new(Kind::HostUnreachable, "the connection to the shard was closed"));
        };
        let received = connection.next(Limit::Served);
        let affected = connection.affected();
        let mut progress = self.progress.borrow_mut();
        match received {
            Ok(Some(row)) => Ok(Some(row)),
            Ok(None) => {
                *progress = Progress { phase: Phase::Done, affected };
                Ok(None)
            }
            Err(Stop::Failed(error)) => {
                progress.phase = Phase::Failed(error.clone());
                Err(error)
            }
            Err(Stop::Late) => Err(Error::new(Kind::HostUnreachable, "timeout expired")),
        }
    }
}
