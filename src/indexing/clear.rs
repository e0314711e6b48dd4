//! Removes the remains of index builds that failed.

use super::sessions::{application, is_alone};
use crate::catalog::cache;
use crate::migration::shard::ShardSession;
use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use crate::pg::{transaction, transaction::top_level};
use crate::shard::table;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::index_builds::{self, Build};
use crate::store::{indexes, placements};
use docshard_core::error::{Kind, bail};
use docshard_core::routing::names;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{FindRelations, ReadInvalidIndexes, drop_index_concurrently};

/// Removes builds whose builder has ended, and invalid indexes that belong to no build. Returns the number of shards that could not be
/// checked. Must be called outside any transaction.
pub fn sweep() -> Result<usize> {
    clear_dead(&transaction::run(index_builds::all)?);
    let shards = transaction::run(cache::shards)?;
    let mut left = 0;
    // A single node has no invalid indexes without a build: its builds run in the builder's own process.
    for shard in shards.values().filter(|_| shards.len() > 1) {
        let swept = transaction::guarded(|| {
            let mut session = transaction::run(|| ShardSession::open(shard, "docshard recovery"))?;
            drop_strays(&mut session)
        });
        left += usize::from(swept.is_err());
    }
    Ok(left)
}

/// Removes builds of a collection whose builder has ended.
///
/// # Errors
/// Those of [`sweep`].
pub(super) fn sweep_collection(namespace: &str) -> Result<()> {
    clear_dead(&transaction::run(|| index_builds::of_namespace(namespace))?);
    Ok(())
}

fn clear_dead(builds: &[Build]) {
    for &Build { id, collection, .. } in builds {
        let mine = transaction::guarded(|| Ok(lock::try_acquire_for_session(Tag::Builder(id), Mode::Exclusive)));
        if !matches!(mine, Ok(true)) {
            continue;
        }
        if let Err(error) = clear(id, collection) {
            pgrx::log!("docshard: could not remove the remains of index {id}: {}", error.message);
        }
        lock::release_for_session(Tag::Builder(id), Mode::Exclusive);
    }
}

/// Drops what a build has created on the shards, and then its row. Called under the builder's lock, outside any transaction.
///
/// # Errors
/// A shard's error. Then the row stays, so that a later call tries again.
pub(super) fn clear(id: i32, collection: i32) -> Result<()> {
    if transaction::run(is_alone)? {
        for relation in names::possible_relations(id) {
            if transaction::run(|| Ok(table::has_relation(&relation)))? {
                drop_guard::unguarded(|| top_level::run(&drop_index_concurrently(&relation)))?;
            }
        }
        return forget(id);
    }
    let shards = transaction::run(|| placements::shards(collection))?;
    let mut failed = None;
    for shard in shards {
        let cleared = transaction::guarded(|| {
            let mut session = transaction::run(|| ShardSession::open(&*cache::shard(shard)?, "docshard recovery"))?;
            end_sessions(&mut session, id)?;
            for relation in names::possible_relations(id) {
                drop_index(&mut session, &relation)?;
            }
            Ok(())
        });
        failed = failed.or(cleared.err());
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
fn drop_strays(shard: &mut ShardSession) -> Result<()> {
    let relations = ReadInvalidIndexes {}.call(shard)?;
    for relation in &relations {
        let Some(id) = names::index_of(relation) else { continue };
        if !transaction::run(|| Ok(index_builds::exists(id)? || indexes::exists(id)?))? {
            drop_index(shard, relation)?;
        }
    }
    Ok(())
}
