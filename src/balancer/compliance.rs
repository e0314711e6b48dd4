//! Reports whether a collection's chunks are distributed as the balancer's policy wants.

use super::view::{Exceptions, View};
use crate::catalog::collections::databases;
use crate::catalog::collections::sizes::{self, COUNTED_OFTEN_MB};
use crate::pg::error::Result;
use docshard_core::cluster::balancer::{self as policy, Compliance};
use docshard_core::error::{Kind, bail};
use std::collections::BTreeSet;

pub struct CollectionStatus {
    /// Larger chunks are split.
    pub chunk_size_mb: u64,
    /// The balancer may move chunks.
    pub balance: bool,
    pub compliance: Compliance,
}

/// Measures a sharded collection, and asks the policy for splits and moves.
pub fn collection_status(ns: &str) -> Result<CollectionStatus> {
    let mut view = View::load()?;
    view.collections.retain(|collection| collection.namespace == ns);
    let Some(collection) = view.collections.first_mut() else {
        let database = ns.split_once('.').map_or(ns, |(database, _)| database);
        if databases::primary(database)?.is_none() {
            bail!(Kind::NamespaceNotFound, "database {database} not found");
        }
        bail!(Kind::NamespaceNotSharded, "ns not sharded: {ns}");
    };
    for shard in &view.shards {
        sizes::measure(shard, collection, COUNTED_OFTEN_MB)?;
    }
    let (unavailable, pairs) = (&|_| false, &|_| BTreeSet::new());
    let none = Exceptions { unavailable, settling: &|_| false, resting: &|_| false, pinned: &|_, _| false, pairs };
    let cluster = view.describe(&none);
    let policy::Collection { chunk_size, balance, .. } = cluster.collections[0];
    Ok(CollectionStatus { chunk_size_mb: chunk_size >> 20, balance, compliance: policy::compliance(&cluster, 0) })
}
