//! Sends requests and returns streams of their rows.
//!
//! A stream refers to its connection by a unique id, and to its local transaction by number; a stream that outlives either
//! returns an error. It reads its rows from the connection; when another statement needs the connection, unread rows move to a
//! spool.

use super::cache::{Pool, with_pool};
use super::connection::{CLEANUP, Phase, Progress, Stop};
use super::ffi;
use super::param::Request;
use super::row::{RemoteRow, Rows};
use super::transaction;
use super::wire::{self, Limit};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction::is_parallel_worker;
use docshard_core::error::{Kind, bail, error};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// The rows of one request. May be dropped before its end.
#[derive(Debug)]
pub struct Stream {
    connection: u64,
    epoch: u64,
    progress: Rc<RefCell<Progress>>,
    /// the first row, which [`await_all`] has read
    head: Option<RemoteRow>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut progress = self.progress.borrow_mut();
        if !matches!(progress.phase, Phase::Done) {
            progress.phase = Phase::Dropped;
        }
    }
}

/// Sends all requests before it awaits any answer; returns a stream for each, and None for one of this database. A second request
/// for the same server is sent when the rows of the first one have arrived.
pub fn start(requests: &[Request<'_>]) -> Result<Vec<Option<Stream>>> {
    let mut streams = Vec::with_capacity(requests.len());
    if requests.iter().all(|request| request.server.is_none()) {
        streams.resize_with(requests.len(), || None);
        return Ok(streams);
    }
    if is_parallel_worker() {
        let message = "a parallel worker cannot take part in the transaction at other servers";
        return Err(Error::new(Kind::NotImplemented, message).with_hint(
            "A function that reads or writes collections is PARALLEL UNSAFE, or RESTRICTED if it only reads.",
        ));
    }
    let local = ffi::local();
    with_pool(|pool| {
        transaction::follow(pool);
        for request in requests {
            let Some(server) = request.server else {
                streams.push(None);
                continue;
            };
            if streams.iter().any(Option::is_some) {
                fault::point("dispatch.sent")?;
            }
            match pool.send(server, request, local) {
                Ok((connection, progress)) => {
                    streams.push(Some(Stream { connection, epoch: pool.epoch, progress, head: None }))
                }
                Err(error) => return Err(fail_all(pool, &mut streams, error)),
            }
        }
        wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
        Ok(streams)
    })
}

/// Waits for every stream's first row, end or error. After an error it cancels and drains all, and rolls back remote
/// transactions that had written nothing before, so that the requests can be sent again if [`super::can_retry`] allows it for
/// every server. If there are several errors, it returns one that reports a stale map (`Error::is_stale`).
pub fn await_all(streams: &mut [Option<Stream>]) -> Result<()> {
    with_pool(|pool| {
        for at in 0..streams.len() {
            if let Some(stream) = &mut streams[at]
                && stream.head.is_none()
            {
                match stream.advance(pool) {
                    Ok(row) => stream.head = row,
                    Err(error) => return Err(fail_all(pool, streams, error)),
                }
            }
        }
        Ok(())
    })
}

/// Ends all streams after an error of one of them; returns the error to report.
fn fail_all(pool: &mut Pool, streams: &mut [Option<Stream>], error: Error) -> Error {
    let live = |s: &&Stream| matches!(s.progress.borrow().phase, Phase::Live);
    let live: Vec<u64> = streams.iter().flatten().filter(live).map(|s| s.connection).collect();
    let error = cancel(pool, &live, error);
    for stream in streams.iter_mut().flatten() {
        if let Some(connection) = pool.by_id(stream.connection) {
            connection.undo();
        }
        stream.head = None;
        stream.progress.borrow_mut().phase = Phase::Failed(error.clone());
    }
    error
}

/// Cancels these connections' statements at the same time, and drains them. Returns the first stale error, or else the given one.
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

/// Sends writing statements one by one, so that shards work while the caller prepares more, and awaits them together. Their rows
/// are discarded. No other request may be sent in between. A caller that does not reach [`Feed::finish`] must raise an error.
#[derive(Debug, Default)]
pub struct Feed {
    connections: Vec<u64>,
}

impl Feed {
    /// Sends a statement. Waits only for earlier ones to be written to the socket.
    pub fn send(&mut self, request: &Request<'_>) -> Result<()> {
        let Some(server) = request.server else { bail!(Kind::InternalError, "this database cannot be fed") };
        let local = ffi::local();
        with_pool(|pool| {
            transaction::follow(pool);
            match pool.feed(server, request, local) {
                Ok(id) if !self.connections.contains(&id) => self.connections.push(id),
                Ok(_) => {}
                Err(error) => return Err(self.fail_all(pool, error)),
            }
            wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
            Ok(())
        })
    }

    /// Waits for the end of all statements. Errors are handled as by [`await_all`].
    pub fn finish(self) -> Result<()> {
        with_pool(|pool| {
            for id in &self.connections {
                if let Some(connection) = pool.by_id(*id) {
                    connection.end_feed();
                }
            }
            wire::flush_all(pool.connections.iter_mut().map(|c| &mut c.wire));
            for id in &self.connections {
                let drained = pool.by_id(*id).ok_or_else(closed).and_then(|connection| connection.drain(Limit::Served));
                if let Err(error) = drained {
                    return Err(self.fail_all(pool, error));
                }
            }
            Ok(())
        })
    }

    fn fail_all(&self, pool: &mut Pool, error: Error) -> Error {
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

fn closed() -> Error {
    error!(Kind::HostUnreachable, "the connection to the shard was closed")
}

impl Stream {
    /// The next row; None at the end.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and an iterator of results would go on after that")]
    pub fn next(&mut self) -> Result<Option<RemoteRow>> {
        match self.head.take() {
            Some(row) => Ok(Some(row)),
            None => with_pool(|pool| self.advance(pool)),
        }
    }

    /// Reads all remaining rows, of a statement that returns few.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if they do not fit into memory.
    pub fn rows(&mut self) -> Result<Vec<RemoteRow>> {
        let mut rows = Rows::default();
        while let Some(row) = self.next()? {
            if let Err(error) = rows.add(row) {
                return with_pool(|pool| {
                    let connection = pool.by_id(self.connection);
                    Err(connection.map_or(error.clone(), |connection| error.at_shard(connection.wire.shard())))
                });
            }
        }
        Ok(rows.into_vec())
    }

    /// Moves the unread rows to a spool, unless that has happened already, so that they outlive the current subtransaction.
    pub fn keep(&self) -> Result<()> {
        with_pool(|pool| {
            pool.by_id(self.connection).ok_or_else(closed)?.settle();
            Ok(())
        })
    }

    /// The row count of a writing request's command tag; 0 before the end.
    pub fn affected(&self) -> u64 {
        let progress = self.progress.borrow();
        if matches!(progress.phase, Phase::Done) { progress.affected } else { 0 }
    }

    fn advance(&mut self, pool: &mut Pool) -> Result<Option<RemoteRow>> {
        if self.epoch != pool.epoch {
            bail!(Kind::NoSuchTransaction, "the transaction that read from the shard has ended");
        }
        let mut progress = self.progress.borrow_mut();
        match &mut progress.phase {
            Phase::Done => Ok(None),
            Phase::Failed(error) => Err(error.clone()),
            Phase::Dropped => Err(error!(Kind::InternalError, "a dropped stream is read")),
            Phase::Spooled(spool) => {
                let row = spool.next()?;
                if row.is_none() {
                    progress.phase = Phase::Done;
                }
                Ok(row)
            }
            Phase::Live => {
                drop(progress);
                self.receive(pool)
            }
        }
    }

    fn receive(&mut self, pool: &mut Pool) -> Result<Option<RemoteRow>> {
        let connection = pool.by_id(self.connection).ok_or_else(closed)?;
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
            Err(Stop::Late) => Err(error!(Kind::HostUnreachable, "timeout expired")),
        }
    }
}
