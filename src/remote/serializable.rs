//! Transactions under SERIALIZABLE, which PostgreSQL holds to that within one server: none of several knows what the others'
//! transactions have read. So such a transaction has to do with documents of one node.

use crate::pg::error::{Error, Result};
use crate::pg::transaction::{epoch, snapshot};
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::cell::Cell;

/// Where documents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// in this database
    Here,
    /// at a foreign server
    Server(pg_sys::Oid),
}

thread_local! {
    /// The node of the transaction with this number, which is one of this process.
    static NODE: Cell<Option<(u32, Node)>> = const { Cell::new(None) };
}

/// The present transaction is about to read or write documents at a node.
///
/// # Errors
/// `NotImplemented` (0A000) if it is serializable and has been to another node.
pub fn touch(node: Node) -> Result<()> {
    if !snapshot::is_serializable() {
        return Ok(());
    }
    let transaction = epoch::local_id();
    match NODE.get().filter(|(of, _)| *of == transaction) {
        Some((_, before)) if before != node => Err(Error::new(
            Kind::NotImplemented,
            "a SERIALIZABLE transaction cannot read or write documents of more than one shard",
        )
        .with_hint("Use REPEATABLE READ, or have what the transaction needs on one shard.")),
        Some(_) => Ok(()),
        None => {
            NODE.set(Some((transaction, node)));
            Ok(())
        }
    }
}
