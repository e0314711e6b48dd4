//! This backend's connections: one for each server, opened on demand and kept. All log in as the service role.
//!
//! The pool stays borrowed during a wait. An interrupt that unwinds ends the borrow before the transaction's callbacks run. Invalidations
//! arrive in the middle of catalog lookups, so they are queued and applied by the next request.

use super::connection::{Connection, Progress};
use super::ffi::{self, Invalidated, Local};
use super::param::{Encoded, Request, RequestScope};
use crate::pg::error::Result;
use crate::remote::serializable::{self, UsedNode};
use docshard_core::error::{Kind, error};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// The largest number of queued invalidations. One more makes all connections invalid.
const MAX_INVALIDATIONS: usize = 64;

thread_local! {
    // Never dropped, as thread-locals are dropped after PostgreSQL's own cleanup; `close_all` runs before that.
    static POOL: ManuallyDrop<RefCell<Pool>> = ManuallyDrop::new(RefCell::new(Pool::default()));
    static INVALID: RefCell<Vec<Invalidated>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) connections: Vec<Connection>,
    next_id: u64,
    /// the number of the current local transaction, counted by this process
    pub(super) epoch: u64,
    /// a request was sent in this local transaction
    pub(super) used: bool,
    scratch: Encoded,
}

impl Default for Pool {
    fn default() -> Self {
        Self { connections: Vec::new(), next_id: 0, epoch: 1, used: false, scratch: Encoded::default() }
    }
}

pub(super) fn with_pool<T>(f: impl FnOnce(&mut Pool) -> Result<T>) -> Result<T> {
    POOL.with(|pool| match pool.try_borrow_mut() {
        Ok(mut pool) => f(&mut pool),
        Err(_) => Err(error!(Kind::InternalError, "connections to shards are used while they are in use")),
    })
}

/// Like [`with_pool`], for callers that cannot report errors: does nothing if the pool is in use.
pub(super) fn with_free_pool(f: impl FnOnce(&mut Pool)) {
    drop(with_pool(|pool| {
        f(pool);
        Ok(())
    }));
}

pub(super) fn invalidate(what: Invalidated) {
    INVALID.with(|list| {
        if let Ok(mut list) = list.try_borrow_mut() {
            if list.len() < MAX_INVALIDATIONS {
                list.push(what);
            } else {
                list.clear();
                list.extend([Invalidated::Server(0), Invalidated::Mapping(0)]);
            }
        }
    });
}

/// Closes all connections in an orderly way, when the process exits.
pub(super) fn close_all() {
    with_free_pool(|pool| pool.connections.drain(..).for_each(|mut connection| connection.prepare_to_close()));
}

impl Pool {
    fn doom(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.iter_mut().filter(|c| which(c)) {
            connection.state.doom();
        }
        self.sweep();
    }

    /// Closes connections that are doomed or broken, unless the transaction needs them.
    pub(super) fn sweep(&mut self) {
        self.connections.retain(|c| !(c.state.is_to_be_closed() && c.is_idle()));
    }

    fn apply_invalidations(&mut self) {
        let list = INVALID.with(|list| list.try_borrow_mut().map(|mut l| std::mem::take(&mut *l)).unwrap_or_default());
        if !list.is_empty() {
            self.doom(|c| {
                list.iter().any(|what| match what {
                    Invalidated::Server(hash) => *hash == 0 || *hash == c.server_hash,
                    Invalidated::Mapping(hash) => *hash == 0 || *hash == c.mapping_hash,
                })
            });
        }
    }

    pub(super) fn by_id(&mut self, id: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|c| c.id == id)
    }

    /// Returns the position of the connection to the server. Opens one if there is none, or if it is lost and the transaction does
    /// not need it.
    fn connection(&mut self, server: Oid, scope: RequestScope) -> Result<usize> {
        if scope != RequestScope::Metadata {
            serializable::touch(UsedNode::Server(server))?;
        }
        self.apply_invalidations();
        if let Some(at) = self.connections.iter().position(|c| c.server == server) {
            let connection = &mut self.connections[at];
            if !connection.is_idle() || connection.is_alive() {
                return Ok(at);
            }
            self.connections.remove(at);
        }
        self.next_id += 1;
        let connection = Connection::open(self.next_id, server)?;
        self.connections.push(connection);
        Ok(self.connections.len() - 1)
    }

    /// Sends a request; returns the connection's id, and the state that it shares with the stream.
    pub(super) fn send(
        &mut self,
        server: Oid,
        request: &Request<'_>,
        local: Local,
    ) -> Result<(u64, Rc<RefCell<Progress>>)> {
        let at = self.connection(server, request.scope)?;
        self.used = true;
        let decides = request.write
            && request.scope == RequestScope::WholeTransaction
            && !ffi::local_writes()
            && self.connections.iter().all(|c| c.state.depth() == 0 && !c.is_writer());
        let connection = &mut self.connections[at];
        let progress = connection.send(request, local, decides, &mut self.scratch)?;
        Ok((connection.id, progress))
    }

    /// Sends a statement of a feed; returns the connection's id.
    pub(super) fn feed(&mut self, server: Oid, request: &Request<'_>, local: Local) -> Result<u64> {
        let at = self.connection(server, request.scope)?;
        self.used = true;
        let connection = &mut self.connections[at];
        connection.feed(request, local, &mut self.scratch)?;
        Ok(connection.id)
    }

    /// Called at the end of the local transaction.
    pub(super) fn next_epoch(&mut self) {
        self.epoch += 1;
        self.used = false;
        self.connections.iter_mut().for_each(|connection| _ = connection.release());
        self.sweep();
    }
}
