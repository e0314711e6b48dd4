//! The background workers: one launcher for each server, and one worker for each database that is a router.
//!
//! * The *launcher* has no database. At intervals it starts a worker in each database, which ends at once if it has no work. The
//!   intervals double up to a minute; changes that may give a worker work, such as `add_shard`, wake the launcher. The launcher also starts
//!   the process that runs the gateway, if the server is configured to have one.
//! * A *worker* stays while its database is a router with other shards; has documents, numbered writes or sampled
//!   statements that expire; has unfinished moves, changes of layout, transactions or index builds; or samples
//!   statements. It starts the database's *keeper*, whose locks show that this database is its cluster's router; then it
//!   advances each shard's counter, resolves transactions, recovers migrations, deletes expired documents and balances.
//!   It ends for DROP DATABASE.
//!
//! INVARIANT: a database has at most one worker, by the session lock `Tag::Worker(1)`. A worker survives every error; after
//! SIGTERM or a crash the launcher starts it again.

pub mod activity;
mod database;
mod expiry;
mod gateway;
mod keeper;
mod launcher;
mod own_process;
mod pulse;
mod samples;

use crate::pg::error::Result;
use crate::pg::process;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;
use std::time::Duration;

/// The default of `max_prepared_transactions` on a server that preloads docshard. The move of a chunk needs one on each of its two shards,
/// a multi-shard transaction one on each shard.
const MAX_PREPARED: &std::ffi::CStr = c"64";

/// The default of `max_worker_processes` on a server that preloads docshard: enough for PostgreSQL's own workers, the launcher, and a
/// worker and a keeper for a few databases.
const MAX_WORKERS: &std::ffi::CStr = c"16";

/// Called from `_PG_init`.
pub fn init() {
    keeper::init();
    gateway::init();
    if !process::is_preloading() {
        return;
    }
    process::set_default(c"max_prepared_transactions", MAX_PREPARED);
    process::set_default(c"max_worker_processes", MAX_WORKERS);
    process::define(main);
    process::mailbox::define();
    process::access_ring::define();
    // While pg_upgrade runs, workers must neither write nor stay in a database that it replaces.
    if !process::is_pg_upgrade() {
        process::register("docshard launcher", Duration::from_secs(5));
    }
}

fn main(database: Option<pg_sys::Oid>, kind: &str) {
    match database {
        None if kind == gateway::KIND => gateway::run(),
        None => launcher::run(),
        Some(database) if kind == own_process::KEEPER_KIND => keeper::run(database),
        Some(database) => database::run(database),
    }
}

/// True if docshard is in `shared_preload_libraries`, which workers need.
pub fn is_preloaded() -> bool {
    process::is_preloaded()
}

/// Returns an error (`IllegalOperation`) on a server without workers.
pub fn require_preloaded() -> Result<()> {
    if is_preloaded() {
        return Ok(());
    }
    Err(error!(Kind::IllegalOperation, "docshard's background worker does not run on this server")
        .with_hint("Add docshard to shared_preload_libraries and restart the server."))
}
