//! The last known number of documents of each collection on each shard, which the worker reads from PostgreSQL's statistics. It is
//! reported when a shard is removed as lost.

use super::cache;
use super::nodes::read_on;
use crate::catalog::shard::{Place, Shard};
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::store::last_sizes as store;

/// Asks every shard on another node, each in a transaction of its own; called outside a transaction. An unreachable shard keeps its
/// last number.
pub fn note_all() -> Result<()> {
    let shards = transaction::run(cache::shards)?;
    for shard in shards.values().filter(|shard| shard.place != Place::Local) {
        let _ = transaction::run(|| note(shard));
    }
    Ok(())
}

fn note(shard: &Shard) -> Result<()> {
    let rows: Vec<(i32, i64)> = read_on(
        shard,
        "SELECT p.collection_id, greatest(pg_catalog.pg_stat_get_live_tuples(c.oid), 0) \
         FROM docshard_data.placement p JOIN pg_catalog.pg_class c ON c.relname = 'c' || p.collection_id \
         AND c.relnamespace = 'docshard_data'::pg_catalog.regnamespace",
        &[],
    )?;
    for (collection, documents) in rows {
        store::set(shard.id, collection, documents)?;
    }
    Ok(())
}
