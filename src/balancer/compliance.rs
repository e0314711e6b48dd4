//! Whether a collection is where the balancer wants it.

use super::view::{Known, View};
use crate::catalog::sizes::{self, COUNTED_OFTEN_MB};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::balancer::{self as policy, Compliance};
use docshard_core::error::Kind;

/// What the balancer thinks of a collection.
#[derive(Debug)]
pub struct CollectionStatus {
    /// chunks above so many MiB are split
    pub chunk_size_mb: u64,
    /// the balancer may move its chunks
    pub balance: bool,
    /// why not all is well
    pub compliance: Compliance,
}

/// Measures a sharded collection, and asks the policy.
///
/// # Errors
/// `NamespaceNotFound`, `NamespaceNotSharded`; what a shard raises.
pub fn collection_status(ns: &str) -> Result<CollectionStatus> {
    let mut view = View::load()?;
    view.collections.retain(|collection| collection.namespace == ns);
    let Some(collection) = view.collections.first_mut() else {
        crate::catalog::cache::get(ns)?;
        return Err(Error::new(Kind::NamespaceNotSharded, format!("ns not sharded: {ns}")));
    };
    for shard in &view.shards {
        sizes::measure(shard, collection, COUNTED_OFTEN_MB)?;
    }
    let known = Known { unavailable: &|_| false, resting: &|_| false, pinned: &|_, _| false };
    let cluster = view.describe(&known);
    let policy::Collection { chunk_size, balance, .. } = cluster.collections[0];
    Ok(CollectionStatus { chunk_size_mb: chunk_size >> 20, balance, compliance: policy::compliance(&cluster, 0) })
}
