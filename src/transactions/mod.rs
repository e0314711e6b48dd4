//! Two-phase commit of transactions that wrote on several shards: the router's own database decides.
//!
//! 1. *Before the first PREPARE* the transaction takes an exclusive lock named by its local transaction id, which is
//!    part of every prepared transaction's name (`decision::Router`). It is held to the transaction's end.
//! 2. *After the last PREPARE* a row for each prepared transaction is written into `docshard_catalog.transactions`, in
//!    the local transaction: its commit is the decision, and durable whatever the session's `synchronous_commit`.
//! 3. *After the local commit* the shards commit. The rows of shards that have committed are deleted by this backend's next
//!    such transaction, or by [`resolve_all`].
//!
//! A client's PREPARE TRANSACTION does 1 and 2: lock and rows are part of the local prepared transaction, and survive a restart.
//! After its COMMIT PREPARED or ROLLBACK PREPARED, [`prepared`] ends the shards' transactions.
//!
//! [`deadlock`] finds transactions that wait for each other at several nodes, and ends one of them.
//!
//! [`resolve_all`] ends what a crash or a lost connection has left. A prepared transaction of this router whose lock is free has
//! no living originator: with a row it is committed, without one it is rolled back. One of a router that this one has replaced
//! is committed if it has a row here, and left alone otherwise, as its decision may not be in this catalog.
//!
//! INVARIANTS
//! * A lock is released only after its transaction's rows are visible or never will be. So whoever gets the lock and
//!   then looks for the row with a new snapshot, sees the decision.
//! * A row is removed only if, after it was seen, its shard was seen without the prepared transaction: a row appears
//!   only after the PREPARE.

mod deadlock;
mod decision;
mod prepared;
mod resolve;

use crate::remote;

pub use resolve::resolve_all;

/// Called from `_PG_init`.
pub fn init() {
    remote::set_coordinator(&decision::Router);
    prepared::init();
    deadlock::init();
}
