//! Finds the key at which to split a chunk: the median of its documents' keys.

use crate::catalog::cache;
use crate::catalog::collections::sizes::ask_split_points;
use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::Chunk;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::measure::FindSplitPoints;
use docshard_core::values::key::KeyPattern;

/// Returns the key that halves a chunk's documents; if that is the smallest key, the next one. `OperationFailed` if the chunk
/// has fewer than two different keys.
pub fn median(collection: i32, pattern: &KeyPattern, chunk: &Chunk) -> Result<Vec<u8>> {
    let hi = (chunk.max != pattern.max_bound()).then_some(chunk.max.as_slice());
    // With a count of 0 documents, all keys are read.
    let call = FindSplitPoints { collection, lo: &chunk.min, hi, parts: 2, documents: 0 };
    ask_split_points(&*cache::shard(chunk.shard)?, &call)?.into_iter().next().ok_or_else(|| {
        error!(
            Kind::OperationFailed,
            "Unable to find median in chunk: it holds fewer than two different values of the shard key"
        )
        .with_hint("This chunk cannot be split; with more different shard keys it could be.")
    })
}
