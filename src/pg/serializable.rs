//! Transactions under SERIALIZABLE, which PostgreSQL holds to that within one server: none of several knows what the others'
//! transactions have read. So such a transaction has to do with documents of one node.

use super::error::{Error, Result};
use super::snapshot;
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::cell::Cell;

// Not in pgrx's bindings (predicate.h); called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn PreCommit_CheckForSerializationFailure();
}

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
    // SAFETY: this process's own entry, which is there as long as the process.
    let transaction = unsafe { (*pg_sys::MyProc).lxid };
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

/// Called before another node is told to commit: afterwards the present transaction, if it has written nothing here, is not
/// refused as one that cannot be serialized. May raise 40001.
pub fn settle() {
    if snapshot::is_serializable() {
        // SAFETY: in the pre-commit of a serializable transaction. What PostgreSQL does a little later itself, when it finds
        // nothing new: who is prepared to commit is nobody's victim.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| PreCommit_CheckForSerializationFailure()) };
    }
}
