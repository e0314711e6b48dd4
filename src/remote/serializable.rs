//! Restricts SERIALIZABLE transactions to the documents of one node, as PostgreSQL detects conflicts only within one server.

use crate::pg::error::Result;
use crate::pg::transaction::snapshot;
use crate::pg::version::local_transaction;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;
use std::cell::Cell;

/// The node whose documents a transaction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedNode {
    Here,
    Server(pg_sys::Oid),
}

thread_local! {
    /// The node that the transaction with this local id has used.
    static NODE: Cell<Option<(u32, UsedNode)>> = const { Cell::new(None) };
}

/// Called before the transaction reads or writes documents at a node.
///
/// # Errors
/// `NotImplemented` (0A000) if the transaction is SERIALIZABLE and has used another node.
pub fn touch(node: UsedNode) -> Result<()> {
    if !snapshot::is_serializable() {
        return Ok(());
    }
    let transaction = local_transaction();
    match NODE.get().filter(|(of, _)| *of == transaction) {
        Some((_, before)) if before != node => Err(error!(
            Kind::NotImplemented,
            "a SERIALIZABLE transaction cannot read or write documents of more than one shard"
        )
        .with_hint("Use REPEATABLE READ, or keep the documents of such a transaction on one shard.")),
        Some(_) => Ok(()),
        None => {
            NODE.set(Some((transaction, node)));
            Ok(())
        }
    }
}
