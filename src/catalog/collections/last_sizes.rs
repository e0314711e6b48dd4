//! The last known number of documents of each collection on each shard, which the worker reads from the shards' statistics. The number is
//! reported when a shard is removed as lost, and serves to estimate the rows of a foreign table without a query to the shards.

use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::{Error, Result};
use crate::pg::security::user;
use crate::pg::transaction;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::last_sizes as store;
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::shard_tables::ReadRelations;

/// Stores the numbers of every shard on another node, each shard in a transaction of its own. Must be called outside a transaction. An
/// unreachable shard keeps its last numbers.
pub fn note_all() -> Result<()> {
    for (shard, _) in transaction::run(cache::remote_shards)? {
        let _ = transaction::run(|| note(&shard));
    }
    Ok(())
}

/// The last known number of documents of a collection; None if the number is unknown for every shard. A shard with an unknown number counts
/// as the average of the others. The number on this node is estimated from PostgreSQL's statistics and the size of the table. No shard is
/// asked.
pub fn documents(collection: &Collection) -> Result<Option<i64>> {
    let shards = collection.map.shards();
    let known: Vec<i64> = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        let mut known = Vec::new();
        for shard in &shards {
            known.extend(match cache::shard(*shard)?.is_local() {
                true => store::estimate_here(&collection.table())?,
                false => store::documents(*shard, collection.id)?,
            });
        }
        Ok::<_, Error>(known)
    })?;
    let sum = known.iter().fold(0_i64, |sum, documents| sum.saturating_add(*documents));
    Ok((!known.is_empty()).then(|| (sum as f64 * shards.len() as f64 / known.len() as f64) as i64))
}

fn note(shard: &Shard) -> Result<()> {
    for found in read_call_on(shard, &ReadRelations {})? {
        if let (Some(_), Some(documents)) = (found.version, found.documents) {
            store::set(shard.id, found.collection, documents.max(0))?;
        }
    }
    Ok(())
}
