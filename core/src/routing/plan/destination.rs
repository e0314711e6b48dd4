//! The shards that a statement goes to.

use crate::cluster::chunk_map::{ShardId, Target};
use crate::error::Kind;
use crate::error::{Error, Result};
use crate::routing::model::Collection;
use crate::values::key::KeyRanges;

/// A shard to which a statement goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub shard: ShardId,
    /// the shard's version according to the chunk map
    pub version: i64,
    /// the number of targeted chunks
    pub chunks: usize,
}

/// Returns the shards that own the keys, ordered by id.
pub fn destinations(collection: &Collection, keys: &KeyRanges) -> Result<Vec<Destination>> {
    collection
        .map
        .targets(keys)
        .into_iter()
        .map(|Target { shard, chunks, .. }| destination(collection, shard, chunks))
        .collect()
}

/// Returns every shard that has the collection's table, with or without chunks, ordered by id.
pub fn placed(collection: &Collection) -> Result<Vec<Destination>> {
    collection.placements.keys().map(|shard| destination(collection, *shard, 0)).collect()
}

pub fn destination_of(collection: &Collection, skey: &[u8]) -> Result<Destination> {
    destination(collection, collection.map.owner(skey), 1)
}

fn destination(collection: &Collection, shard: ShardId, chunks: usize) -> Result<Destination> {
    let version = *collection.placements.get(&shard).ok_or_else(|| {
        let message = format!("{} has a chunk but no placement on shard {shard}", collection.namespace);
        Error::new(Kind::InternalError, message)
    })?;
    Ok(Destination { shard, version, chunks })
}
