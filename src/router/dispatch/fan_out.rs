//! The shards of one statement. Each gets one request, and all are sent before any answer is awaited. If this database is one of the
//! shards, the caller executes its request here, in a snapshot of its own.
//!
//! A write that a shard refused because of a stale map may run again only if everything that it has written on any shard is
//! rolled back.

use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::grants::{self, Level};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::remote::{self, Request, RequestScope, Role, Sql};
use crate::router::fresh_map::{conflict, is_stale};
use crate::shard::placement::{self, Placement};
use crate::shard::table;
use crate::storage;
use crate::storage::scan::Look;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::statement::Statement;
use std::borrow::Cow;
use std::rc::Rc;

/// A destination, with the server of its shard.
pub(super) struct Located {
    pub(super) shard: Rc<Shard>,
    version: i64,
}

impl Located {
    fn sql<'s>(&self, statement: &'s Statement) -> Sql<'s> {
        let params = Cow::Owned(statement.params_at(self.version));
        Sql { sql: &statement.sql, params, columns: statement.columns }
    }
}

pub(super) struct FanOut<'a> {
    pub(super) collection: &'a Collection,
    pub(super) shards: Vec<Located>,
    role: Role,
    write: bool,
    /// the statement can run again without losing earlier writes of this transaction
    retryable: bool,
}

impl<'a> FanOut<'a> {
    /// Looks up the servers of the destinations, and checks the caller's right to read or write the collection.
    pub(super) fn open(collection: &'a Collection, destinations: &[Destination], level: Level) -> Result<Self> {
        let located = |to: &Destination| Ok(Located { shard: cache::shard(to.shard)?, version: to.version });
        let shards = destinations.iter().map(located).collect::<Result<_>>()?;
        let (role, write) = (grants::require(collection, level)?, level == Level::Write);
        let mut opened = Self { collection, shards, role, write, retryable: false };
        opened.retryable = write && opened.can_retry();
        Ok(opened)
    }

    /// The position of this database among the shards; None if it is not one of them.
    pub(super) fn local(&self) -> Option<usize> {
        self.shards.iter().position(|to| to.shard.is_local())
    }

    /// The placement that the statement assumes of the shard at this position.
    pub(super) fn assumed(&self, at: usize) -> Placement {
        Placement { token: self.collection.token, version: self.shards[at].version }
    }

    /// Takes a snapshot of this database, and checks in it the version that is assumed of the shard at this position.
    ///
    /// INVARIANT: the lock on the table is older than the snapshot. So a change of the layout that drops the table has either ended, and
    /// the check finds another version, or it waits for this transaction.
    pub(super) fn checked_snapshot(&self, at: usize) -> Result<ActiveSnapshot> {
        if let Ok(table) = table::oid(self.collection.id) {
            storage::keep(table)?;
        }
        let snapshot = ActiveSnapshot::of_statement();
        placement::check(self.collection.id, self.assumed(at), Look::Active)?;
        Ok(snapshot)
    }

    /// The request for the shard at a position. `scope` applies if only one shard is remote; the requests to several are
    /// [`RequestScope::OneOfSeveral`].
    pub(super) fn request<'s>(&self, at: usize, scope: RequestScope, statement: &'s Statement) -> Request<'s> {
        let sent = self.shards.iter().filter(|to| !to.shard.is_local()).count();
        Request {
            server: self.shards[at].shard.oid(),
            role: self.role,
            preamble: None,
            statement: self.shards[at].sql(statement),
            write: self.write,
            scope: if sent == 1 { scope } else { RequestScope::OneOfSeveral },
        }
    }

    /// The requests for all shards; `statement` maps a position to the statement.
    pub(super) fn requests<'s>(
        &self,
        scope: RequestScope,
        statement: impl Fn(usize) -> &'s Statement,
    ) -> Vec<Request<'s>> {
        (0..self.shards.len()).map(|at| self.request(at, scope, statement(at))).collect()
    }

    /// Like [`requests`](Self::requests); another statement precedes each request, in the same round trip.
    pub(super) fn requests_after<'s>(
        &self,
        before: &'s Statement,
        scope: RequestScope,
        statement: impl Fn(usize) -> &'s Statement,
    ) -> Vec<Request<'s>> {
        let mut requests = self.requests(scope, statement);
        for (request, to) in requests.iter_mut().zip(&self.shards) {
            request.preamble = Some(to.sql(before));
        }
        requests
    }

    /// The error to report if the statement fails. If the map was stale and the statement can run again, rolls it back on all
    /// remote shards.
    pub(super) fn failed(&self, error: Error) -> Error {
        if self.retryable { self.undone(error) } else { never_again(error) }
    }

    /// Like [`failed`](Self::failed), for a statement that has only taken locks.
    pub(super) fn undone(&self, error: Error) -> Error {
        if !is_stale(&error) {
            return error;
        }
        self.shards.iter().filter_map(|to| to.shard.oid()).for_each(remote::undo);
        if self.can_retry() { error } else { conflict(&error) }
    }

    /// True if the map was stale and nothing has been written, so that the statement can run again.
    pub(super) fn may_retry(&self, error: &Error) -> bool {
        self.retryable && is_stale(error)
    }

    fn can_retry(&self) -> bool {
        self.shards.iter().filter_map(|to| to.shard.oid()).all(remote::can_retry)
    }
}

/// The error of a statement of which a part may have been written.
pub(super) fn never_again(error: Error) -> Error {
    if is_stale(&error) { conflict(&error) } else { error }
}

/// Sends all requests before it awaits any answer. Requests to this database are not sent, and have no stream.
pub(super) fn start(requests: &[Request<'_>]) -> Result<Vec<Option<remote::Stream>>> {
    if requests.iter().any(|request| request.server.is_some()) {
        fault::point("dispatch.sending")?;
    }
    remote::start(requests)
}
