//! The router as the coordinator of transactions over several shards: takes the lock, and writes and deletes the decisions.

use super::deadlock;
use crate::catalog::cluster::identity;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction::durability;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, server};
use crate::remote::Coordinator;
use crate::storage::lock::{self, Mode, Tag};
use crate::store;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;

pub(super) struct Router;

thread_local! {
    /// Transactions that have ended at their shards, whose rows can be deleted.
    static FINISHED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The largest number of transactions in [`FINISHED`]. The worker deletes the rows of further ones.
const MAX_FINISHED: usize = 1000;

impl Coordinator for Router {
    fn token(&self) -> Result<String> {
        let transaction = server::transaction_id();
        lock::acquire(Tag::Transaction(transaction.into()), Mode::Exclusive);
        // This is called at the local pre-commit, where there is no snapshot, and the session's user has no rights in the
        // catalog.
        let _snapshot = ActiveSnapshot::latest();
        Ok(user::as_extension_owner(identity::coordinator)?.token(transaction))
    }

    fn decide(&self, gids: &[(Oid, String)], at_once: bool) -> Result<()> {
        fault::point("decide.prepared")?;
        // A crash or a failover here must not undo a decision by which a shard has committed.
        durability::require();
        // If a client's prepared transaction deleted rows, other processes could not delete them until it ends.
        let finished = if at_once { FINISHED.take() } else { Vec::new() };
        let finished: Vec<&str> = finished.iter().map(String::as_str).collect();
        // This transaction may have dropped the server, by remove_shard.
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
            if finished.len() < MAX_FINISHED {
                finished.extend(gids.iter().map(|(_, gid)| gid.clone()));
            }
        });
    }
}

/// Returns the decided transactions of a server, by the newest snapshot.
pub(super) fn decisions(server: &str) -> Result<Vec<String>> {
    let _snapshot = ActiveSnapshot::latest();
    store::transactions::read_of_server(server)
}
