//! Who decides transactions that wrote on several shards: the router's own database.
//!
//! 1. *Before the first PREPARE* the transaction takes an exclusive lock named by its local transaction id, which is
//!    part of every prepared transaction's name ([`Router::token`]). It is held to the transaction's end.
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
mod prepared;
mod resolve;

use crate::catalog::cluster;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction::durability;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, server};
use crate::remote::{self, Coordinator};
use crate::storage::lock::{self, Mode, Tag};
use crate::store;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;

pub use resolve::resolve_all;

/// Called from `_PG_init`.
pub fn init() {
    remote::set_coordinator(&Router);
    prepared::init();
    deadlock::init();
}

struct Router;

thread_local! {
    /// Decisions that this backend's shards have carried out, whose rows can go.
    static FINISHED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// More than that are left to the worker.
const MOST_FINISHED: usize = 1000;

impl Coordinator for Router {
    fn token(&self) -> Result<String> {
        let transaction = server::transaction_id();
        lock::acquire(Tag::Transaction(transaction.into()), Mode::Exclusive);
        // The local pre-commit calls, and has no snapshot; nor has the session's user any business in the catalog, where functions
        // that run as their owner did the writing.
        let _snapshot = ActiveSnapshot::latest();
        Ok(user::as_extension_owner(cluster::coordinator)?.token(transaction))
    }

    fn decide(&self, gids: &[(Oid, String)], at_once: bool) -> Result<()> {
        fault::point("decide.prepared")?;
        // No shard may be told what a crash, or a failover here, would make undecided.
        durability::require();
        // Rows that a prepared transaction has deleted would be in the way of whoever wants to remove them.
        let finished = if at_once { FINISHED.take() } else { Vec::new() };
        let finished: Vec<&str> = finished.iter().map(String::as_str).collect();
        // This very transaction may have dropped a server, by remove_shard: nobody could resolve it there later.
        let names: Vec<String> = gids
            .iter()
            .map(|(server, _)| server::foreign_server_name(*server).unwrap_or_else(|| format!("dropped {server}")))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let gids: Vec<&str> = gids.iter().map(|(_, gid)| gid.as_str()).collect();
        user::as_extension_owner(|| {
            if !finished.is_empty() {
                store::transactions::delete(&finished)?;
            }
            store::transactions::insert(&gids, &names)
        })
    }

    fn suspect_deadlock(&self) {
        deadlock::suspect();
    }

    fn finished(&self, gids: &[(Oid, String)]) {
        FINISHED.with_borrow_mut(|finished| {
            if finished.len() < MOST_FINISHED {
                finished.extend(gids.iter().map(|(_, gid)| gid.clone()));
            }
        });
    }
}

/// The decided transactions of a server, as they are now.
fn decisions(server: &str) -> Result<Vec<String>> {
    let _snapshot = ActiveSnapshot::latest();
    store::transactions::read_of_server(server)
}
