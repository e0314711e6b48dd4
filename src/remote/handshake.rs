//! The handshake, the first statement of each connection, names the router and the shard that the router means to reach.
//! `docshard_core::cluster::handshake` defines its content; a [`Cluster`] reads the content from the catalog.

use super::param::Encoded;
use super::row::RemoteRow;
use super::wire::{Finished, Limit, Wire};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use docshard_core::cluster::frontend::Answer;
use docshard_core::cluster::handshake::{Hello, Welcome};
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::REFUSED_CONNECTION;
use docshard_core::routing::protocol::node::SayHello;
use docshard_core::routing::protocol::{Answer as _, Call};
use docshard_core::sql::column::Columns;
use pgrx::pg_sys::Oid;
use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::CString;
use std::sync::LazyLock;

pub(super) static STATEMENT: LazyLock<CString> =
    LazyLock::new(|| CString::new(SayHello::SIGNATURE.statement()).expect("a statement without a zero byte"));

const COLUMNS: Columns = Some(Cow::Borrowed(<SayHello<'static> as Call>::Answer::COLUMNS));

/// Access to the catalog, for connections.
pub trait Cluster {
    /// The handshake for a server, in the newest snapshot of the catalog; None if the server is not a shard's.
    fn hello(&self, server: Oid) -> Result<Option<Hello>>;

    /// Returns the statements that the shard missed while it was unavailable. They must run before any other statement, and
    /// running one of them twice is harmless.
    fn pending(&self, server: Oid) -> Result<Vec<String>>;

    /// The new password of the service role at a server's shard, in the newest snapshot; None if the password is not being changed.
    fn next_password(&self, server: Oid) -> Result<Option<String>>;

    /// The name of another shard whose server has the same address as this server; None if there is none.
    fn same_address(&self, server: Oid) -> Result<Option<String>>;

    /// Refuses (08004) an identity that is not that of the database which this process serves, the router's own.
    fn require_here(&self, identity: &str) -> Result<()>;
}

thread_local! {
    static CLUSTER: Cell<Option<&'static dyn Cluster>> = const { Cell::new(None) };
}

/// Called in the postmaster or at the start of a process.
pub fn set_cluster(cluster: &'static dyn Cluster) {
    CLUSTER.set(Some(cluster));
}

pub(super) fn hello(server: Oid) -> Result<Option<Hello>> {
    let hello = CLUSTER.get().map_or(Ok(None), |cluster| cluster.hello(server));
    fault::point("handshake.read")?;
    hello
}

pub(super) fn pending(server: Oid) -> Result<Vec<String>> {
    CLUSTER.get().map_or_else(|| Ok(Vec::new()), |cluster| cluster.pending(server))
}

pub(super) fn next_password(server: Oid) -> Result<Option<String>> {
    CLUSTER.get().map_or(Ok(None), |cluster| cluster.next_password(server))
}

pub(super) fn same_address(server: Oid) -> Result<Option<String>> {
    CLUSTER.get().map_or(Ok(None), |cluster| cluster.same_address(server))
}

pub(super) fn require_here(identity: &str) -> Result<()> {
    CLUSTER.get().map_or(Ok(()), |cluster| cluster.require_here(identity))
}

/// The state of a connection's handshake.
#[derive(Debug)]
pub(super) enum HandshakeState {
    /// the next batch begins with the handshake
    Due,
    /// the batch that is being built begins with this handshake
    Ready(Box<Hello>),
    /// sent, and not yet answered completely; with the rows of the answer that have arrived, at most two
    Sent(Box<Hello>, Vec<RemoteRow>),
    Done,
}

impl HandshakeState {
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Reads the handshake from the catalog. Called as late as possible, because the worker advances the shard's position in the catalog.
    pub(super) fn prepare(&mut self, server: Oid) -> Result<()> {
        if matches!(self, Self::Due) {
            *self = hello(server)?.map_or(Self::Done, |hello| Self::Ready(Box::new(hello)));
        }
        Ok(())
    }

    /// Returns the parameters of the handshake, if the batch must begin with it.
    pub(super) fn take(&mut self, writes: bool) -> Option<Result<Encoded>> {
        if !matches!(self, Self::Ready(_)) {
            return None;
        }
        let Self::Ready(hello) = std::mem::replace(self, Self::Done) else { return None };
        let mut encoded = Encoded::default();
        let done = encoded.encode(&SayHello::of(&hello, writes).params(), COLUMNS);
        *self = Self::Sent(hello, Vec::new());
        Some(done.map(|()| encoded))
    }

    /// Keeps a row of the answer. A valid answer has one row, and two rows are enough to recognize an invalid one.
    pub(super) fn receive(&mut self, row: RemoteRow) {
        if let Self::Sent(_, rows) = self
            && rows.len() < 2
        {
            rows.push(row);
        }
    }

    /// Evaluates the answer. If the shard's position differs from the catalog's, the next batch repeats the handshake, because the shard
    /// may refuse writes.
    pub(super) fn answered(&mut self) -> Result<()> {
        let Self::Sent(hello, rows) = std::mem::replace(self, Self::Done) else { return Ok(()) };
        if !accept(&hello, &rows)? {
            *self = Self::Due;
        }
        Ok(())
    }

    /// Called when the batch has failed: if its handshake was not answered, the next batch repeats it.
    pub(super) fn unanswered(&mut self) {
        if matches!(self, Self::Sent(..)) {
            *self = Self::Due;
        }
    }
}

/// Performs the handshake in a round trip of its own. `writes`: the statements after it write.
///
/// # Errors
/// 08004 if the server is another shard, or an older copy of the expected one.
pub(super) fn greet(wire: &mut Wire, hello: &Hello, writes: bool) -> Result<()> {
    let mut encoded = Encoded::default();
    encoded.encode(&SayHello::of(hello, writes).params(), COLUMNS)?;
    if !wire.pg.send_params(&STATEMENT, &encoded) {
        let loss = wire.loss();
        return Err(wire.lost(&loss));
    }
    wire.sent();
    match wire.finish(Limit::Served).map_err(|lost| wire.lost(&lost))? {
        Some(Finished { result: Answer::Done(_), rows }) => accept(hello, &rows).map(drop),
        Some(Finished { result: Answer::Error(report), .. }) => Err(wire.report(&report)),
        _ => Err(wire.broken("unexpected answer")),
    }
}

/// Checks the answer to a handshake. True if the shard is at the position that the catalog has for it.
pub(super) fn accept(hello: &Hello, rows: &[RemoteRow]) -> Result<bool> {
    let welcome: Welcome =
        SayHello::decode(rows).map_err(|error| Error::new(Kind::HostUnreachable, error.into_message()))?.into();
    hello.accept(&welcome).map_err(|error| error.with_sqlstate(REFUSED_CONNECTION))
}
