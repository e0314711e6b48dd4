//! The last known number of documents of each collection on each shard, which the worker reads from PostgreSQL's statistics. It is
//! reported when a shard is removed as lost.

use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::store::last_sizes as store;
use docshard_core::routing::protocol::shard_tables::ReadRelations;

/// Asks every shard on another node, each in a transaction of its own; called outside a transaction. An unreachable shard keeps its
/// last number.
pub fn note_all() -> Result<()> {
    for (shard, _) in transaction::run(cache::remote_shards)? {
        let _ = transaction::run(|| note(&shard));
    }
    Ok(())
}

fn note(shard: &Shard) -> Result<()> {
    for found in read_call_on(shard, &ReadRelations {})? {
        if let (Some(_), Some(documents)) = (found.version, found.documents) {
            store::set(shard.id, found.collection, documents.max(0))?;
        }
    }
    Ok(())
}
