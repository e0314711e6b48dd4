//! Builds an index on all shards of a collection at once, without blocking writes.
//!
//! PostgreSQL's `CREATE INDEX CONCURRENTLY` cannot run in a transaction. So a background worker builds the index while the caller waits.
//! The caller's transaction must do nothing else.
//!
//! # Steps
//! 1. The build is registered in `docshard_catalog.index_builds`, under the collection's lock and durably before any side
//!    effect. Its builder, the worker's process, holds the lock `Builder` of the build until the build is over or the process ends.
//! 2. All shards build at the same time, each in a session of the builder; a router that is the only shard builds in the
//!    builder's own process. Then each shard collects statistics of the index's expressions, by which PostgreSQL chooses among
//!    indexes.
//! 3. One commit in the catalog makes the index known and deletes the build. Before that no statement uses the index.
//!
//! # Invariants
//! 1. While a build has a living builder, no chunk of the collection moves, no other index of it is created or dropped, and the
//!    collection is not dropped. So when the index becomes known, exactly the shards that have the collection's table have built it.
//! 2. A build whose builder has ended is removed by the next process that gets its lock: first its sessions are ended, then its
//!    indexes on the shards are dropped, then its row is deleted. Until then the build blocks nothing.
//! 3. An invalid index on a shard with the name of a collection's index, which is neither known nor being built, is dropped.

mod build;
mod clear;
pub mod progress;
mod sessions;

use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_calls_at_once;
use crate::catalog::collections::index_options::IndexOptions;
use crate::catalog::collections::index_removal;
use crate::catalog::collections::indexes::Made;
use crate::catalog::collections::namespace;
use crate::pg::error::{self, Result};
use crate::pg::process::job;
use crate::pg::server::lock_timeout_ms;
use crate::pg::transaction;
use crate::pg::transaction::snapshot::{self, IgnoredByIndexBuilds};
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::error::{Kind, ensure, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::shard_tables::ReadTableSize;
use serde_json::{Value as Json, json};

pub use clear::sweep;

const BUILD: &str = "build indexes";

/// Registers the job; called from `_PG_init`.
pub fn init() {
    job::register(BUILD, |request| Ok(json!(build_all(request)?)));
}

/// How many index builds of owners may use background workers at a time. A build waits for all older snapshots, and an owner can keep one
/// open: without a limit, owners could occupy all background workers of the server.
///
/// Each has a place. The caller reserves it, and the worker holds it as long as it lives: an owner can end the caller at any time, and the
/// worker then still removes what it has begun, for which it waits again.
const BUILDS_OF_OWNERS: i32 = 2;

/// A caller's lock of a place.
const fn reserved(place: i32) -> Tag {
    Tag::Worker(10 + place)
}

/// A worker's lock of a place. Only the caller that has reserved the place starts a worker that takes it.
const fn occupied(place: i32) -> Tag {
    Tag::Worker(12 + place)
}

/// Reserves a background worker, until the transaction ends, for an index build of a role that owns the collection. False if other owners'
/// builds use all [`BUILDS_OF_OWNERS`]: then the build runs in the caller's transaction.
pub fn reserve_for_owner() -> bool {
    (0..BUILDS_OF_OWNERS).any(|place| {
        let reserved = reserved(place);
        if !lock::try_acquire(reserved, Mode::Exclusive) {
            return false;
        }
        // The worker of an earlier caller may live still.
        let is_free = lock::is_free(occupied(place));
        if !is_free {
            lock::release(reserved, Mode::Exclusive);
        }
        is_free
    })
}

/// Called by the worker of a build for an owner, before it does anything. It holds the place until it ends.
///
/// # Errors
/// `ExceededMemoryLimit` (53200) if the worker of an earlier caller has the place: that caller ended when its worker had just been started.
fn occupy(place: i32) -> Result<()> {
    let is_mine = transaction::run(|| Ok(lock::try_acquire_for_session(occupied(place), Mode::Exclusive)))?;
    ensure!(is_mine, Kind::ExceededMemoryLimit, "no background worker is free for index builds of owners");
    Ok(())
}

/// True if indexes of a collection should be built by a worker: the call is the whole transaction (`sole`), and the collection may have
/// documents.
pub fn is_called_for(namespace: &str, sole: bool) -> Result<bool> {
    namespace::split(namespace)?;
    if !sole {
        return Ok(false);
    }
    let Some(collection) = cache::find(namespace)? else { return Ok(false) };
    // Under REPEATABLE READ the shards are not asked: this transaction would keep a snapshot there, for which the build would wait.
    Ok(!snapshot::per_statement() || !is_empty(&collection)?)
}

/// Called before an index is built in the caller's transaction, which blocks writes to the collection until it ends. If there are
/// documents, reports a WARNING; with `concurrently: true` this is an error, and with `concurrently: false` nothing is reported.
///
/// # Errors
/// `OperationNotSupportedInTransaction` if there are documents and `concurrently` is true.
pub fn before_blocking_build(namespace: &str, index: &str, concurrently: Option<bool>, sole: bool) -> Result<()> {
    if sole || concurrently == Some(false) || is_empty(&*cache::get(namespace)?)? {
        return Ok(());
    }
    let hint = "Call docshard.create_index(…) as a statement of its own, outside a transaction block and not in a function or DO.";
    if concurrently == Some(true) {
        return Err(error!(
            Kind::OperationNotSupportedInTransaction,
            "the index {index} of {namespace} cannot be built concurrently in this transaction"
        )
        .with_hint(hint));
    }
    let message = format!("building the index {index} blocks all writes to {namespace} until this transaction ends");
    let detail = "An index is built concurrently if the call is the whole transaction. The option \"concurrently\" chooses: true makes \
                  this an error, false omits this warning.";
    error::warn(message, detail.to_owned(), Some(hint));
    Ok(())
}

/// True if the collection's tables have never had documents, so that building takes no time.
fn is_empty(collection: &Collection) -> Result<bool> {
    let shards = collection.placements.keys().map(|id| cache::shard(*id)).collect::<Result<Vec<_>>>()?;
    let ask = ReadTableSize { collection: collection.id };
    let asked: Vec<_> = shards.iter().map(|shard| (&**shard, ask)).collect();
    Ok(read_calls_at_once(&asked)?.iter().all(|size| *size == Some(0)))
}

/// Builds all of these indexes or none, in a background worker, and waits for it. Returns the indexes' names. A cancel ends the builds.
///
/// The caller's transaction must do nothing else.
///
/// # Errors
/// Those of `catalog::indexes::create`; `IndexAlreadyExists` if two of the indexes are the same; `ExceededMemoryLimit` (53200) if no worker
/// is free.
pub fn build_and_wait(namespace: &str, wanted: &[(String, IndexOptions<'_>)]) -> Result<Vec<String>> {
    let wanted: Vec<Json> = wanted.iter().map(|(keys, options)| json!([keys, options.to_json()])).collect();
    let place = (0..BUILDS_OF_OWNERS).find(|place| lock::is_held(reserved(*place), Mode::Exclusive));
    let request = json!({"namespace": namespace, "wanted": wanted, "lockTimeout": lock_timeout_ms(), "place": place});
    let _ignored = IgnoredByIndexBuilds::new();
    let answer = job::run(BUILD, &format!("docshard: building an index of {namespace}"), &request)?;
    let names = answer.as_array().into_iter().flatten();
    Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

/// Builds the indexes one after the other: PostgreSQL builds only one index of a table at a time.
fn build_all(request: &Json) -> Result<Vec<String>> {
    let malformed = || error!(Kind::InternalError, "a background worker got a malformed request");
    let namespace = request["namespace"].as_str().ok_or_else(malformed)?;
    if let Some(place) = request["place"].as_i64() {
        occupy(i32::try_from(place).map_err(|_| malformed())?)?;
    }
    clear::sweep_collection(namespace)?;
    let mut made = transaction::run(|| Made::none(namespace))?;
    let mut names = Vec::new();
    let mut build = || -> Result<()> {
        for wanted in request["wanted"].as_array().ok_or_else(malformed)? {
            let options = IndexOptions::from_json(&wanted[1])?;
            let keys = wanted[0].as_str().ok_or_else(malformed)?;
            let name = build::build(namespace, keys, &options, request["lockTimeout"].as_u64().unwrap_or(0))?;
            made.add(&name)?;
            names.push(name);
        }
        Ok(())
    };
    match transaction::guarded(&mut build) {
        Ok(()) => Ok(names),
        Err(error) => {
            for name in made.made() {
                transaction::run(|| index_removal::drop(namespace, name))?;
            }
            Err(error)
        }
    }
}
