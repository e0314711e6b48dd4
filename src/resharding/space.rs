//! Refuses a change of layout if a recipient has not enough free space for its part of the copy. The old tables stay until the decision.
//!
//! Sizes are estimates: that of documents by PostgreSQL's statistics, and that of indexes in proportion to the documents. [`MARGIN`] and
//! [`STAGING`] are added; logs of changes are not counted. So a change may still run out of space: it then ends, and its copy is dropped.

use super::request::Target;
use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_calls_at_once;
use crate::catalog::collections::layout::Layout;
use crate::pg::error::{Error, Result};
use docshard_core::cluster::chunk_map::{ChunkMap, ShardId};
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::measure::{MeasureSpace, StorageSpace};
use std::collections::{BTreeMap, BTreeSet};

/// This part of the estimate is added to it, for pages that are not full, and for errors of the estimate.
const MARGIN: f64 = 0.2;
/// The largest size of a staging table, in bytes. It is truncated when it has 64 MiB or more; the last batch before
/// that may be large.
const STAGING: f64 = (96 << 20) as f64;
/// Documents in staging tables are not compressed. They take at most about this many times the space of compressed ones.
const COMPRESSION: f64 = 100.0;

/// Checks the recipients of a layout. `sample`: the new shard keys of some documents; empty except for [`Target::Key`].
///
/// # Errors
/// `OutOfDiskSpace` (53100); those of the shards.
pub(super) fn check(of: &Collection, target: &Target, layout: &Layout, sample: &[Vec<u8>]) -> Result<()> {
    let recipients = layout.shards();
    let shards: BTreeSet<ShardId> = of.map.shards().into_iter().chain(recipients.iter().copied()).collect();
    let shards = shards.into_iter().map(cache::shard).collect::<Result<Vec<_>>>()?;
    let asked: Vec<_> = shards.iter().map(|shard| (&**shard, MeasureSpace { collection: of.id })).collect();
    let spaces: BTreeMap<ShardId, StorageSpace> =
        shards.iter().map(|shard| shard.id).zip(read_calls_at_once(&asked)?).collect();
    let sizes: BTreeMap<ShardId, f64> = spaces.iter().map(|(shard, space)| (*shard, copied(space))).collect();
    let total: f64 = sizes.values().sum();
    let shares = match target {
        Target::Key { .. } => shares(layout, sample)?,
        Target::Shard(shard) => BTreeMap::from([(*shard, 1.0)]),
        // Documents stay at their shards.
        Target::Refined(_) | Target::Same => {
            sizes.iter().map(|(shard, size)| (*shard, size / total.max(1.0))).collect()
        }
    };
    for shard in recipients {
        let own = total * shares.get(&shard).copied().unwrap_or(0.0);
        let needed = (own * (1.0 + MARGIN) + (own * COMPRESSION).min(STAGING)) as i64;
        let free = spaces.get(&shard).map_or(0, |space| space.free);
        if needed > free {
            return Err(not_enough(&cache::shard(shard)?.name, &of.namespace, needed, free));
        }
    }
    Ok(())
}

/// Returns the bytes that a copy of a shard's documents takes, with indexes.
fn copied(space: &StorageSpace) -> f64 {
    let (documents, stored, indexes) =
        (space.documents.max(0) as f64, space.stored.max(0) as f64, space.indexes.max(0) as f64);
    documents + indexes * (documents / stored.max(1.0)).min(1.0)
}

/// Returns each shard's share of the sampled documents; without a sample, its share of the chunks.
fn shares(layout: &Layout, sample: &[Vec<u8>]) -> Result<BTreeMap<ShardId, f64>> {
    let owners: Vec<ShardId> = match sample {
        [] => layout.chunks.iter().map(|chunk| chunk.shard).collect(),
        keys => {
            let map = ChunkMap::new(layout.chunks.iter().cloned())?;
            keys.iter().map(|key| map.owner(key)).collect()
        }
    };
    let mut shares = BTreeMap::new();
    for owner in &owners {
        *shares.entry(*owner).or_insert(0.0) += 1.0 / owners.len() as f64;
    }
    Ok(shares)
}

fn not_enough(shard: &str, namespace: &str, needed: i64, free: i64) -> Error {
    let mib = |bytes: i64| (bytes >> 10) as f64 / 1024.0;
    error!(
        Kind::OutOfDiskSpace,
        "shard \"{shard}\" has not enough free space for the copy of {namespace}: about {:.1} MiB are needed, {:.1} MiB are free",
        mib(needed),
        mib(free)
    )
    .with_hint("Free or add space there, or choose other shards. The option {\"checkSpace\": false} skips this estimate.")
}
