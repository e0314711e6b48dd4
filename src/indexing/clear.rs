//! Removes the remains of index builds that failed.
//!
//! DROP INDEX CONCURRENTLY waits for all transactions that have used the table. The owner of a collection can keep such transactions open, and
//! leave any number of failed builds. So each wait is short, and a call ends after waits of [`PATIENCE`] together. The next call tries last what
//! could not be dropped, and databases take turns: see [`Turns`].

use super::sessions::{application, is_alone};
use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::migration::shard::{RECOVERY, ShardSession};
use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use crate::pg::process::timeout::Deadline;
use crate::pg::{transaction, transaction::top_level};
use crate::shard::table;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::index_builds::{self, Build};
use crate::store::{indexes, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::turns::Turns;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::names;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{FindRelations, ReadInvalidIndexes, drop_index_concurrently};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The limits of a statement at a shard: its wait for each lock, and its whole time, as it may wait for many locks.
const LIMITS: &str = "SET lock_timeout = '2s'; SET statement_timeout = '5s'";
/// The same limit of the whole time for a statement that this process runs itself, in milliseconds. Its `lock_timeout` is that of the process.
const LIMIT_MS: i64 = 5_000;
/// After failures that together took this time, the rest is left to the next call.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// The failed builds for which this process has waited in vain, by database.
    static BUILDS: RefCell<Turns<String>> = RefCell::default();
    /// The same for invalid indexes that belong to no build, by shard.
    static STRAYS: RefCell<Turns<ShardId>> = RefCell::default();
}

/// Removes builds whose builder has ended, and invalid indexes that belong to no build. Returns the number of shards that could not be
/// checked. Must be called outside any transaction.
pub fn sweep() -> Result<usize> {
    clear_dead(transaction::run(index_builds::all)?);
    let known = transaction::run(cache::shards)?;
    // A single node has no invalid indexes without a build: its builds run in the builder's own process.
    let mut shards: Vec<_> = known.values().filter(|_| known.len() > 1).collect();
    STRAYS.with_borrow(|turns| shards.sort_by_key(|shard| turns.place(&shard.id, 0)));
    let mut waited = Duration::ZERO;
    for (at, shard) in shards.iter().enumerate() {
        let began = Instant::now();
        if transaction::guarded(|| drop_strays(&mut transaction::run(|| open(shard))?, shard.id)).is_err() {
            waited += began.elapsed();
        }
        if waited >= PATIENCE {
            return Ok(shards.len() - at);
        }
    }
    Ok(0)
}

/// Removes builds of a collection whose builder has ended.
///
/// # Errors
/// Those of [`sweep`].
pub(super) fn sweep_collection(namespace: &str) -> Result<()> {
    clear_dead(transaction::run(|| index_builds::of_namespace(namespace))?);
    Ok(())
}

fn clear_dead(mut builds: Vec<Build>) {
    let database = |build: &Build| build.namespace.split('.').next().unwrap_or_default().to_owned();
    BUILDS.with_borrow(|turns| builds.sort_by_cached_key(|build| turns.place(&database(build), build.id)));
    let mut waited = Duration::ZERO;
    for build in &builds {
        let Build { id, collection, .. } = *build;
        let mine = transaction::guarded(|| Ok(lock::try_acquire_for_session(Tag::Builder(id), Mode::Exclusive)));
        if !matches!(mine, Ok(true)) {
            continue;
        }
        let began = Instant::now();
        if let Err(error) = clear(id, collection) {
            pgrx::log!("docshard: could not remove the remains of index {id}: {}", error.message);
            BUILDS.with_borrow_mut(|turns| turns.pass(database(build), id));
            waited += began.elapsed();
        }
        lock::release_for_session(Tag::Builder(id), Mode::Exclusive);
        if waited >= PATIENCE {
            return;
        }
    }
}

/// Opens a session whose waits are limited. Must be called inside a transaction.
fn open(shard: &Shard) -> Result<ShardSession> {
    let mut session = ShardSession::open(shard, RECOVERY)?;
    session.execute(LIMITS)?;
    Ok(session)
}

/// Drops what a build has created on the shards, and then its row. Called under the builder's lock, outside any transaction.
///
/// # Errors
/// A shard's error. Then the row stays, so that a later call tries again. If a shard cannot be reached, the others are cleared nevertheless;
/// any other error, for example of a lock, ends the attempt.
pub(super) fn clear(id: i32, collection: i32) -> Result<()> {
    if transaction::run(is_alone)? {
        for relation in names::possible_relations(id) {
            if transaction::run(|| Ok(table::has_relation(&relation)))? {
                let _deadline = Deadline::after(LIMIT_MS);
                drop_guard::unguarded(|| top_level::run(&drop_index_concurrently(&relation)))?;
            }
        }
        return forget(id);
    }
    let shards = transaction::run(|| placements::shards(collection))?;
    let mut failed = None;
    for shard in shards {
        let cleared = transaction::guarded(|| {
            let mut session = transaction::run(|| open(&*cache::shard(shard)?))?;
            end_sessions(&mut session, id)?;
            for relation in names::possible_relations(id) {
                drop_index(&mut session, &relation)?;
            }
            Ok(())
        });
        match cleared {
            Err(error) if !error.is_out_of_reach() => return Err(error),
            other => failed = failed.or(other.err()),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => forget(id),
    }
}

fn forget(id: i32) -> Result<()> {
    transaction::run(|| index_builds::delete(id)).map(drop)
}

/// Ends the sessions of a builder that has ended, so that they create nothing while its build is removed.
fn end_sessions(shard: &mut ShardSession, id: i32) -> Result<()> {
    if shard.end_sessions(&application(id))? > 0 {
        bail!(Kind::OperationFailed, "sessions that build index {id} on shard \"{}\" do not end", shard.name);
    }
    Ok(())
}

/// Drops an index, if it exists, without blocking writers.
fn drop_index(shard: &mut ShardSession, relation: &str) -> Result<()> {
    let found = FindRelations { relations: &[relation] }.call(shard)?;
    if found.is_empty() {
        return Ok(());
    }
    shard.execute(&drop_index_concurrently(relation))
}

/// Drops invalid indexes that are not in the catalog.
///
/// INVARIANT: it reads the shard first, and the catalog afterwards. A build's row is durable before the build changes a shard, and is
/// deleted in the commit that makes the index known. So an index that the shard has, but neither table of the catalog, belongs to no build.
fn drop_strays(shard: &mut ShardSession, at: ShardId) -> Result<()> {
    let relations = ReadInvalidIndexes {}.call(shard)?;
    let mut strays: Vec<(i32, &String)> =
        relations.iter().filter_map(|relation| Some((names::index_of(relation)?, relation))).collect();
    STRAYS.with_borrow(|turns| strays.sort_by_key(|(id, _)| turns.place(&at, *id)));
    for (id, relation) in strays {
        if !transaction::run(|| Ok(index_builds::exists(id)? || indexes::exists(id)?))? {
            drop_index(shard, relation).inspect_err(|_| STRAYS.with_borrow_mut(|turns| turns.pass(at, id)))?;
        }
    }
    Ok(())
}
