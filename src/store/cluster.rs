//! `docshard_catalog.cluster`, one row: the cluster's identity, and which database is its router.

use crate::pg::error::Result;
use docshard_core::cluster::prepared_name::Coordinator;
use docshard_core::cluster::standing::{LOCKED_OUT, Registration};
use docshard_core::error::{Kind, error};

stored! { Coordinator from "cluster" { cluster = "id", epoch } }

stored! { Registration from "cluster" {
    router,
    copy,
    has_shards = "EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL)"
} }

fn initialized<T>(row: Option<T>) -> Result<T> {
    row.ok_or_else(|| error!(Kind::NotYetInitialized, "this cluster has no identity"))
}

/// The cluster's identity, and the router's epoch.
/// Errors: `NotYetInitialized` if there is none.
pub fn coordinator() -> Result<Coordinator> {
    initialized(find_coordinator()?)
}

/// Like [`coordinator`], in the active snapshot.
pub fn read_coordinator() -> Result<Coordinator> {
    initialized(find_coordinator_active()?)
}

/// What the catalog says of its router, in the active snapshot.
pub fn read_registration() -> Result<Registration> {
    Ok(find_registration()?.unwrap_or_default())
}

/// The router's epoch, locked until the transaction ends.
/// Errors: `NotYetInitialized` if there is none.
pub fn lock_epoch() -> Result<i64> {
    initialized(find_and_lock_epoch()?)
}

statements! {
    fn find_coordinator() -> Option<Coordinator> { select "" }

    fn find_coordinator_active() -> Option<Coordinator> { select_active "" }

    fn find_registration() -> Option<Registration> { select_active "" }

    fn find_and_lock_epoch() -> Option<i64> { run "SELECT epoch FROM docshard_catalog.cluster FOR UPDATE" }

    /// The timeline in which numbers were last assigned; None in a catalog that does not store it.
    pub fn find_timeline() -> Option<i64> {
        run "SELECT (pg_catalog.to_jsonb(c) ->> 'timeline')::pg_catalog.int8 FROM docshard_catalog.cluster c \
             WHERE pg_catalog.jsonb_exists(pg_catalog.to_jsonb(c), 'timeline')"
    }

    pub fn set_timeline(timeline: i64) { run "UPDATE docshard_catalog.cluster SET timeline = $1" }

    /// True if documents keep the order of their fields.
    pub fn keeps_order() -> bool { run "SELECT FROM docshard_catalog.cluster WHERE keeps_order" }

    /// True if the catalog has the column `keeps_order`: since release 0.4.0.
    pub fn knows_order() -> bool {
        run "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'docshard_catalog.cluster'::pg_catalog.regclass \
             AND attname = 'keeps_order' AND NOT attisdropped"
    }

    /// Makes documents keep the order of their fields from now on. Does nothing while a move or a change of a layout runs, because it began
    /// before documents had an order.
    pub fn keep_order() {
        run "UPDATE docshard_catalog.cluster SET keeps_order = true WHERE NOT keeps_order \
             AND NOT EXISTS (SELECT FROM docshard_catalog.migrations WHERE state = 'running') \
             AND NOT EXISTS (SELECT FROM docshard_catalog.resharding WHERE state = 'running')"
    }

    /// Sets the router, unless one is set and the cluster has shards on other nodes.
    pub fn set_first_router(router: &str) {
        run "UPDATE docshard_catalog.cluster SET router = $1, copy = NULL \
             WHERE (router IS DISTINCT FROM $1 OR copy IS NOT NULL) \
             AND (router IS NULL OR NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL))"
    }

    /// Sets the router and its epoch.
    pub fn set_router(router: &str, epoch: i64) {
        run "UPDATE docshard_catalog.cluster SET router = $1, copy = NULL, epoch = $2"
    }

    /// Records why this database is a copy of the router. False if a reason is recorded already, or if the epoch is not the given one.
    pub fn set_copy(reason: &str, epoch: Option<i64>) -> bool {
        run format!(
            "UPDATE docshard_catalog.cluster SET copy = $1 \
             WHERE (copy IS NULL OR pg_catalog.starts_with(copy, '{LOCKED_OUT}')) AND epoch = coalesce($2, epoch)"
        )
    }

    /// Records that shards refuse this router's login, unless a reason to write nothing is recorded already, or the epoch is not the given
    /// one. `reason` begins with [`LOCKED_OUT`].
    pub fn lock_out(reason: &str, epoch: i64) -> bool {
        run "UPDATE docshard_catalog.cluster SET copy = $1 WHERE copy IS NULL AND epoch = $2"
    }

    /// Removes what [`lock_out`] has recorded. False if there was nothing.
    pub fn let_in() -> bool {
        run format!("UPDATE docshard_catalog.cluster SET copy = NULL WHERE pg_catalog.starts_with(copy, '{LOCKED_OUT}')")
    }

    /// Makes this database a new cluster, with another identity and without a router.
    pub fn renew() {
        run "UPDATE docshard_catalog.cluster SET id = ('x' || pg_catalog.substr(pg_catalog.md5( \
               pg_catalog.random()::pg_catalog.text || pg_catalog.clock_timestamp()::pg_catalog.text), 1, 16))::pg_catalog.bit(64)::pg_catalog.int8, \
             router = NULL, copy = NULL, epoch = DEFAULT"
    }
}
