//! Reports the progress of index builds, from PostgreSQL's progress views on each shard.

use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_calls_at_once;
use crate::pg::error::Result;
use crate::store::{index_builds, placements};
use docshard_core::routing::protocol::shard_tables::{BuildProgress, ReadBuildProgress};

/// A build on a shard.
#[derive(Clone, Debug)]
pub struct Progress {
    /// the collection
    pub namespace: String,
    /// the index's name
    pub name: String,
    /// its keys
    pub keys_json: String,
    /// the shard's name
    pub shard: String,
    pub at_shard: BuildProgress,
    /// the start of the build, in microseconds since 2000
    pub since: i64,
}

/// Returns the progress of all builds: for each build a row for every shard that takes part in it.
pub fn of_all() -> Result<Vec<Progress>> {
    let mut all = Vec::new();
    for build in &index_builds::all()? {
        let shards = placements::shards(build.collection)?.into_iter().map(cache::shard).collect::<Result<Vec<_>>>()?;
        let ask = ReadBuildProgress { collection: build.collection, relations: &build.relations };
        let asked: Vec<_> = shards.iter().map(|shard| (&**shard, ask)).collect();
        for (shard, rows) in shards.iter().zip(read_calls_at_once(&asked)?) {
            let Some(at_shard) = rows.into_iter().next() else { continue };
            all.push(Progress {
                namespace: build.namespace.clone(),
                name: build.name.clone(),
                keys_json: build.keys.clone(),
                shard: shard.name.clone(),
                at_shard,
                since: build.started_at,
            });
        }
    }
    Ok(all)
}
