//! Plans a find as if the collection had another shard key. The chunks under that key are computed from a sample of its documents.

use super::statement::{Explained, targets};
use crate::catalog::cache;
use crate::catalog::collections::sharding::usable_shards;
use crate::pg::error::Result;
use crate::router::reads::key_sample::{self, Share};
use crate::router::session;
use docshard_core::advice::layout::{Cluster, Layout};
use docshard_core::cluster::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::{self, Allowed, Read};
use docshard_core::routing::request::options::FindOptions;
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::rc::Rc;

/// The approximate number of documents in the sample.
const SAMPLE: u64 = 5000;

/// Plans a find of a collection under another key. Only the request for a sample is sent to shards.
///
/// # Errors
/// `NamespaceNotFound`; `CommandNotSupportedOnView`; `Unauthorized`; `ShardNotFound` if no shard can take data; `ShardKeyNotFound` for a
/// document that cannot have the key.
pub fn explain(
    namespace: &str,
    query: &Query,
    options: &FindOptions,
    key: &KeyPattern,
    chunk_bytes: u64,
) -> Result<Json> {
    let collection = cache::get(namespace)?;
    let sample = key_sample::read(namespace, Share::Documents(SAMPLE), None)?.sample;
    let shards: Vec<ShardId> = usable_shards()?.iter().map(|shard| shard.id).collect();
    let cluster = Cluster { shards: shards.len(), chunk_bytes };
    let layout = Layout::of(key, &sample.keys(key)?, sample.bytes, cluster)?;
    let owned =
        layout.map().chunks().map(|chunk| Chunk { shard: shards[chunk.shard as usize % shards.len()], ..chunk });
    let assumed = Collection {
        key: key.clone(),
        unique: false,
        has_key_index: true,
        map: Rc::new(ChunkMap::new(owned)?),
        placements: shards.iter().map(|shard| (*shard, 1)).collect(),
        ..(*collection).clone()
    };
    let search = session::search(&assumed, query)?;
    let plan = plan::find(&search, options, Allowed::Planned)?;
    let mut answer = targets(&search, Explained::Read(Read::Find(options)).stage(&plan), &plan);
    answer["assumed"] = true.into();
    answer["sampledDocuments"] = json!(sample.len());
    Ok(answer)
}
