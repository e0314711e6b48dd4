//! The first thing that a connection says: who is meant, and who asks. What it says and how it is answered is in
//! `docshard_core::cluster::handshake`; what the catalog knows comes from a [`Cluster`], as this module knows no catalog.

use super::ffi::PgResult;
use super::param::{Encoded, Param};
use super::row::Row;
use crate::pg::error::{Error, Result};
use crate::remote::refusal::REFUSED_CONNECTION;
use docshard_core::cluster::handshake::{Hello, Position, Welcome};
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::cell::Cell;
use std::ffi::CStr;

/// The statement that says hello.
pub(super) const STATEMENT: &CStr = c"SELECT timeline, counter, recovery, protocol FROM docshard_internal.hello(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Who knows the cluster.
pub trait Cluster {
    /// What to say at a server, as the newest snapshot of the catalog has it; None for a server that is no shard's.
    ///
    /// # Errors
    /// Internal ones.
    fn hello(&self, server: Oid) -> Result<Option<Hello>>;

    /// What is to be done at a server's shard before anything else, as statements that may be run again.
    ///
    /// # Errors
    /// Internal ones.
    fn pending(&self, server: Oid) -> Result<Vec<String>>;
}

thread_local! {
    static CLUSTER: Cell<Option<&'static dyn Cluster>> = const { Cell::new(None) };
}

/// Sets who knows the cluster. Set in a process before it forks, it holds in all its children.
pub fn set_cluster(cluster: &'static dyn Cluster) {
    CLUSTER.set(Some(cluster));
}

/// What to say at a server.
pub(super) fn hello(server: Oid) -> Result<Option<Hello>> {
    CLUSTER.get().map_or(Ok(None), |cluster| cluster.hello(server))
}

/// What is to be done at a server's shard, once it has answered, before anything else.
pub(super) fn pending(server: Oid) -> Result<Vec<String>> {
    CLUSTER.get().map_or_else(|| Ok(Vec::new()), |cluster| cluster.pending(server))
}

/// Whether a connection has still to say hello.
#[derive(Debug)]
pub(super) enum Greeting {
    /// in front of the next batch
    Due,
    /// this, in front of the batch that is being sent
    Ready(Box<Hello>),
    /// it is said, and not answered yet
    Said(Box<Hello>),
    /// it was answered
    Done,
}

impl Greeting {
    /// True once nothing is to be said any more.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Reads what is to be said in front of a batch that is about to be sent, as late as can be: the worker counts meanwhile.
    pub(super) fn prepare(&mut self, server: Oid) -> Result<()> {
        if matches!(self, Self::Due) {
            *self = hello(server)?.map_or(Self::Done, |hello| Self::Ready(Box::new(hello)));
        }
        Ok(())
    }

    /// What is to be said in front of statements that write or only read, if anything is.
    pub(super) fn say(&mut self, writes: bool) -> Option<Result<Encoded>> {
        match std::mem::replace(self, Self::Done) {
            Self::Ready(hello) => {
                let encoded = encode(&hello, writes);
                *self = Self::Said(hello);
                Some(encoded)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// The answer. A shard that is not just as the catalog has it is asked again each time: it may take no writes.
    pub(super) fn answered(&mut self, result: &PgResult) -> Result<()> {
        let Self::Said(hello) = std::mem::replace(self, Self::Done) else { return Ok(()) };
        let welcome = (result.rows() == 1).then(|| read(|column| result.value(0, column))).flatten();
        if !accept(&hello, &welcome.ok_or_else(no_answer)?)? {
            *self = Self::Due;
        }
        Ok(())
    }

    /// The batch has failed in front of it.
    pub(super) fn unanswered(&mut self) {
        if matches!(self, Self::Said(_)) {
            *self = Self::Due;
        }
    }
}

fn encode(hello: &Hello, writes: bool) -> Result<Encoded> {
    let mut encoded = Encoded::default();
    if with_params(hello, writes, |params| encoded.encode(params)) {
        return Ok(encoded);
    }
    Err(Error::new(Kind::BSONObjectTooLarge, "a shard's name is too long for a message"))
}

/// What a row of the answer says.
fn read<'a>(column: impl Fn(usize) -> Option<&'a [u8]>) -> Option<Welcome> {
    let int8 = |at| Some(i64::from_be_bytes(column(at)?.try_into().ok()?));
    Some(Welcome {
        position: Position { timeline: int8(0)?, counter: int8(1)? },
        recovery: column(2)? != [0],
        protocol: i32::from_be_bytes(column(3)?.try_into().ok()?),
    })
}

/// Reads the answer that a session got.
pub(super) fn check_answer(hello: &Hello, rows: &[Row]) -> Result<()> {
    let welcome = rows.first().and_then(|row| read(|column| row.get(column))).ok_or_else(no_answer)?;
    accept(hello, &welcome).map(drop)
}

fn no_answer() -> Error {
    Error::new(Kind::HostUnreachable, "the shard's answer to the handshake is none")
}

fn accept(hello: &Hello, welcome: &Welcome) -> Result<bool> {
    hello.accept(welcome).map_err(|error| Error { sqlstate: REFUSED_CONNECTION, ..error.into() })
}

/// Says hello with these parameters, by whatever runs a statement.
pub(super) fn with_params<T>(hello: &Hello, writes: bool, run: impl FnOnce(&[Param<'_>]) -> T) -> T {
    let position = |of: fn(&Position) -> i64| hello.known.as_ref().map_or(-1, of);
    run(&[
        Param::Int8(hello.to.cluster),
        Param::Text(&hello.to.shard),
        Param::Text(&hello.router),
        Param::Int8(hello.epoch),
        Param::Int8(position(|known| known.timeline)),
        Param::Int8(position(|known| known.counter)),
        Param::Bool(writes),
        Param::Bool(hello.refuse_lost_writes),
        Param::Int4(hello.oldest),
        Param::Int4(hello.newest),
    ])
}
