//! Who decides transactions that wrote on several shards: the router's own database.
//!
//! 1. *Before the first PREPARE* the transaction takes an exclusive lock named by its local transaction id, which is
//!    part of every prepared transaction's name (`decision::Router`). It is held to the transaction's end.
//! 2. *After the last PREPARE* a row for each prepared transaction is written into `docshard_catalog.transactions`, in
//!    the local transaction: its commit is the decision, and durable whatever the session's `synchronous_commit`.
//! 3. *After the local commit* the shards are told. Rows whose shards have committed are removed by this backend's next
//!    such transaction, or by [`resolve_all`].
//!
//! A client's PREPARE TRANSACTION does 1 and 2: lock and rows are then part of what is prepared here, and outlive a restart.
//! After its COMMIT PREPARED or ROLLBACK PREPARED, [`prepared`] tells the shards.
//!
//! [`deadlock`] finds transactions that wait for each other at several nodes, and ends one of them.
//!
//! [`resolve_all`] finishes what was left behind by a crash or a lost connection. A prepared transaction of this
//! router whose lock is free has no living originator: with a row it is committed, without one it is rolled back. One of
//! another router of the cluster, which this one has replaced, is committed if it has a row here, and left alone otherwise: the
//! other one may have decided what this catalog does not know.
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
