//! Two-phase commit of transactions that have written on several shards: the router's own database decides.
//!
//! 1. *Before the first PREPARE* the transaction takes an exclusive lock whose name contains its local transaction id, which is
//!    also part of every prepared transaction's name (`decision::Router`). It holds the lock until it ends.
//! 2. *After the last PREPARE* a row for each prepared transaction is inserted into `docshard_catalog.transactions`, in the
//!    local transaction. The local commit is the decision. It is durable even if the session's `synchronous_commit` is off.
//! 3. *After the local commit* the shards commit. This backend's next such transaction, or [`resolve_all`], deletes the rows of
//!    shards that have committed.
//!
//! A client's PREPARE TRANSACTION executes 1 and 2: lock and rows are part of the local prepared transaction, and survive a
//! restart. After its COMMIT PREPARED or ROLLBACK PREPARED, [`prepared`] ends the shards' transactions.
//!
//! [`deadlock`] finds transactions on several nodes that wait for each other, and ends one of them.
//!
//! [`resolve_all`] ends prepared transactions that remain after a crash or a lost connection. If the lock of a transaction that
//! this router has prepared is free, the process that prepared it has ended. The transaction is then committed if the catalog has
//! a row for it, and rolled back if not. A prepared transaction of a router that this one has replaced is committed if it has a
//! row here. Otherwise it stays, because its row may be missing in this catalog. A transaction that decides a change of layout which another
//! server has begun stays, too: a standby that was promoted may lack the row, and [`crate::resharding`] finds out what the other shards show.
//!
//! INVARIANTS
//! * A transaction's lock is released only after the transaction has committed, so that its rows are visible, or has aborted. So a
//!   process that gets the lock, and then searches for the row with a new snapshot, sees the decision.
//! * A row is deleted only when its shard's transaction is known to have ended: the shard has acknowledged COMMIT PREPARED; or
//!   [`resolve_all`], after it has read the row, does not find the transaction prepared at the shard (a row is inserted only after
//!   the PREPARE); or the shard was removed.

mod deadlock;
mod decision;
mod prepared;
mod resolve;

use crate::remote;

pub use decision::decides_change;
pub use resolve::resolve_all;

/// Called from `_PG_init`.
pub fn init() {
    remote::set_coordinator(&decision::Router);
    prepared::init();
    deadlock::init();
}
