//! The shards that a statement goes to.

use crate::catalog::cache;
use crate::catalog::model::{Collection, Shard};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::chunk_map::{ShardId, Target};
use docshard_core::error::Kind;
use docshard_core::values::key::KeyRanges;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub struct Destination {
    pub shard: Rc<Shard>,
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
    Ok(Destination { shard: cache::shard(shard)?, version, chunks })
}
