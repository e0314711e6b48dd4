//! The background workers: a launcher a server, and one worker for each database that is a router.
//!
//! * The *launcher* has no database. It looks at each database now and then: a worker is started there, and ends at
//!   once where there is nothing to do. The rests between two looks double up to a minute; `add_shard` and
//!   `start_balancer` wake the launcher.
//! * A *database's worker* stays while its database is a router with other shards, has documents that expire, or has
//!   something unfinished. It
//!   starts the database's *keeper*, by whose locks it knows that this database is its cluster's router; then it
//!   counts at each shard, resolves transactions, recovers migrations, deletes what has expired and balances. It leaves for DROP DATABASE.
//!
//! INVARIANT: at most one worker a database, by the session lock `Tag::Worker(1)`. A worker lives on after every error;
//! only SIGTERM or a crash ends it, and the launcher starts it again.

mod database;
mod expiry;
mod keeper;
mod launcher;
mod own_process;
mod pulse;

use crate::pg::error::{Error, Result};
use crate::pg::process;
use docshard_core::error::Kind;
use pgrx::pg_sys;
use std::time::Duration;

/// Prepared transactions that a preloaded server allows unless its configuration says something: a chunk's move needs
/// one on each side, a multi-shard transaction one a shard.
const MAX_PREPARED: &std::ffi::CStr = c"64";

/// Background workers that a preloaded server allows unless its configuration says something: PostgreSQL's own default, and room
/// for the launcher, and a worker and a keeper for each of a few databases.
const MAX_WORKERS: &std::ffi::CStr = c"16";

/// Called from `_PG_init`: in `shared_preload_libraries`, prepares everything that needs it.
pub fn init() {
    keeper::init();
    if !process::is_preloading() {
        return;
    }
    process::set_default(c"max_prepared_transactions", MAX_PREPARED);
    process::set_default(c"max_worker_processes", MAX_WORKERS);
    process::define(main);
    process::register("docshard launcher", Duration::from_secs(5));
}

fn main(database: Option<pg_sys::Oid>, kind: &str) {
    match database {
        None => launcher::run(),
        Some(database) if kind == own_process::KEEPER_KIND => keeper::run(database),
        Some(database) => database::run(database),
    }
}

/// True if docshard is in `shared_preload_libraries`, so that workers run.
pub fn is_preloaded() -> bool {
    process::is_preloaded()
}

pub fn require_preloaded() -> Result<()> {
    if is_preloaded() {
        return Ok(());
    }
    Err(Error::new(Kind::IllegalOperation, "docshard's background worker does not run on this server")
        .with_hint("Add docshard to shared_preload_libraries and restart the server."))
}

/// Wakes the worker of this database when the present transaction has committed; harmless where none runs.
pub fn wake_at_commit() {
    process::wake_at_commit();
}
