//! Where to split a chunk: at the median of the keys that are really there.

use super::donor::range;
use crate::catalog::cache;
use crate::catalog::nodes::query_on;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use docshard_core::chunk_map::Chunk;
use docshard_core::error::Kind;
use docshard_core::key::KeyPattern;

/// The key that halves a chunk's documents; if the smallest key is already that, the next one.
///
/// # Errors
/// `OperationFailed` if the chunk has fewer than two different keys.
pub fn median(collection: i32, pattern: &KeyPattern, chunk: &Chunk) -> Result<Vec<u8>> {
    let end = (chunk.max != pattern.max_bound()).then_some(chunk.max.as_slice());
    let mut params = vec![Param::Bytea(&chunk.min)];
    params.extend(end.map(Param::Bytea));
    let (table, range) = (table::name(collection), range(end));
    let rows = query_on(
        &*cache::shard(chunk.shard)?,
        &format!(
            "WITH least AS (SELECT min(skey) AS key FROM {table} WHERE {range}), \
                  middle AS (SELECT skey AS key FROM {table} WHERE {range} ORDER BY skey \
                             OFFSET (SELECT count(*) / 2 FROM {table} WHERE {range}) LIMIT 1) \
             SELECT CASE WHEN middle.key > least.key THEN middle.key \
                         ELSE (SELECT min(skey) FROM {table} WHERE {range} AND skey > least.key) END \
             FROM least, middle"
        ),
        &params,
        1,
    )?;
    rows.first().filter(|row| row.get(0).is_some()).map(|row| row.bytes(0)).ok_or_else(|| {
        Error::new(
            Kind::OperationFailed,
            "Unable to find median in chunk: it holds fewer than two different values of the shard key",
        )
        .with_hint("A shard key with more values can be split; this chunk cannot.")
    })
}
