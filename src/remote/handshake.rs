//! The first thing that a connection says: who is meant, and who asks. What it says and how it is answered is in
//! `docshard_core::cluster::handshake`; what the catalog knows comes from a [`Cluster`], as this module knows no catalog.

use super::ffi::PgResult;
use super::param::Encoded;
use crate::pg::error::{Error, Result};
use crate::protocol::node::SayHello;
use crate::protocol::{Call, Row};
use crate::remote::refusal::REFUSED_CONNECTION;
use docshard_core::cluster::handshake::{Hello, Welcome};
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::cell::Cell;
use std::ffi::CString;
use std::sync::LazyLock;

/// The statement that says hello, as libpq takes it.
pub(super) static STATEMENT: LazyLock<CString> =
    LazyLock::new(|| CString::new(SayHello::statement()).expect("a statement without a zero byte"));

/// Who knows the cluster.
pub trait Cluster {
    /// What to say at a server, as the newest snapshot of the catalog has it; None for a server that is no shard's.
    fn hello(&self, server: Oid) -> Result<Option<Hello>>;

    /// What is to be done at a server's shard before anything else, as statements that may be run again.
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
        let rows = [OnlyRow(result)];
        if !accept(&hello, if result.rows() == 1 { &rows } else { &[] })? {
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

/// The row of a result that has one.
struct OnlyRow<'a>(&'a PgResult);

impl Row for OnlyRow<'_> {
    fn column(&self, column: usize) -> Option<&[u8]> {
        self.0.value(0, column)
    }
}

fn encode(hello: &Hello, writes: bool) -> Result<Encoded> {
    let mut encoded = Encoded::default();
    if encoded.encode(&SayHello::of(hello, writes).params()) {
        return Ok(encoded);
    }
    Err(Error::new(Kind::BSONObjectTooLarge, "a shard's name is too long for a message"))
}

/// Compares the answer with what was said; true if the shard is neither behind nor ahead.
pub(super) fn accept(hello: &Hello, rows: &[impl Row]) -> Result<bool> {
    let welcome: Welcome =
        SayHello::decode(rows).map_err(|error| Error::new(Kind::HostUnreachable, error.message))?.into();
    hello.accept(&welcome).map_err(|error| Error { sqlstate: REFUSED_CONNECTION, ..error.into() })
}
