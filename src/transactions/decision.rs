//! The router as the coordinator of transactions over several shards: takes the lock, and writes and deletes the decisions.

use super::deadlock;
use crate::catalog::cluster::identity;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::transaction::durability;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::pg::transaction::snapshot::{self, ActiveSnapshot};
use crate::pg::{security::user, server};
use crate::remote::Coordinator;
use crate::storage::lock::{self, Mode, Tag};
use crate::store;
use pgrx::pg_sys::Oid;
use std::cell::{Cell, RefCell};

pub(super) struct Router;

thread_local! {
    /// Prepared transactions that their shards have committed, so that their rows can be deleted.
    static FINISHED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// The change of layout that a transaction decides, with the epoch in which [`decides_change`] was called.
    static CHANGE: Cell<Option<(Epoch, i64)>> = const { Cell::new(None) };
}

/// Declares that the present transaction decides a change of layout, so that its prepared transactions at the shards
/// have the change's number in their names.
pub fn decides_change(id: i64) {
    CHANGE.set(Some((epoch::now(), id)));
}

/// From this number of transactions in [`FINISHED`] on, no more are added. The worker deletes the rows of the others.
const MAX_FINISHED: usize = 1000;

impl Coordinator for Router {
    fn token(&self) -> Result<String> {
        let transaction = server::transaction_id();
        lock::acquire(Tag::Transaction(transaction.into()), Mode::Exclusive);
        // This is called at the local pre-commit, where there is no snapshot, and the session's user has no rights in the
        // catalog.
        let _snapshot = ActiveSnapshot::latest();
        let change = CHANGE.take().filter(|(at, _)| *at == epoch::now()).map(|(_, change)| change);
        Ok(user::as_extension_owner(identity::coordinator)?.token(transaction, change))
    }

    fn decide(&self, gids: &[(Oid, String)], at_once: bool) -> Result<()> {
        fault::point("decide.prepared")?;
        // A crash or a failover of the router must not undo a decision after a shard has committed by it.
        durability::require();
        // A transaction that a client prepares deletes no rows: it would lock them until the client ends it. Neither does one that has kept
        // its first snapshot: if the worker has deleted a row since, that would be a serialization failure.
        let deletes = at_once && snapshot::per_statement();
        let finished = if deletes { FINISHED.take() } else { Vec::new() };
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

/// Returns the names of the committed transactions that have rows for a server, by the newest snapshot.
pub(super) fn decisions(server: &str) -> Result<Vec<String>> {
    let _snapshot = ActiveSnapshot::latest();
    store::transactions::read_of_server(server)
}
