//! The shards that a statement goes to.

use crate::catalog::cache;
use crate::catalog::model::{Collection, Shard};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::chunk_map::{ShardId, Target};
use docshard_core::error::Kind;
use docshard_core::values::key::KeyRanges;
use std::rc::Rc;

/// A shard that a statement goes to.
#[derive(Clone, Debug)]
pub struct Destination {
    /// the shard
    pub shard: Rc<Shard>,
    /// the version that the map assumes it to be at
    pub version: i64,
    /// how many of its chunks are concerned
    pub chunks: usize,
}

/// The destinations of keys, by shard number.
///
/// # Errors
/// `ShardNotFound`, `InternalError` if the catalog breaks its invariants.
pub fn destinations(collection: &Collection, keys: &KeyRanges) -> Result<Vec<Destination>> {
    collection
        .map
        .targets(keys)
        .into_iter()
        .map(|Target { shard, chunks, .. }| destination(collection, shard, chunks))
        .collect()
}

/// Every shard that has the collection's table, with or without chunks, by shard number.
///
/// # Errors
/// As [`destinations`].
pub fn placed(collection: &Collection) -> Result<Vec<Destination>> {
    collection.placements.keys().map(|shard| destination(collection, *shard, 0)).collect()
}

/// The destination of one key.
///
/// # Errors
/// As [`destinations`].
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
