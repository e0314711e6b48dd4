//! `docshard_catalog.chunks`: which shard owns which keys. A row is a half-open range [min, max) of encoded shard keys; the rows of
//! a collection leave no gap and do not overlap.
//!
//! RULE: after a change of a chunk's bounds or owner, the caller calls `catalog::change::touch`, which advances the collection's revision.
//! The changed chunk has this new revision already. A session with an older map reads only chunks of newer revisions.

use super::declare::stream;
use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::sql::param::Param;

stored! { Chunk from "chunks" { min, max, shard = "shard_id" } }

rows! {
    /// A chunk with its properties.
    StoredChunk from "chunks" {
        collection: i32 = "collection_id",
        min: Vec<u8>,
        max: Vec<u8>,
        shard: ShardId = "shard_id",
        /// the chunk is too big, and cannot be split
        jumbo: bool,
    }
}

rows! {
    /// A chunk with the version of the change of ownership that brought it to its shard.
    VersionedChunk from "chunks" { min: Vec<u8>, max: Vec<u8>, shard: ShardId = "shard_id", version: i64 }
}

/// The SQL expression for the revision of a chunk that is changed now; `$1` is the collection.
const NEXT_REVISION: &str = "(SELECT revision + 1 FROM docshard_catalog.collections WHERE id = $1)";

/// The SQL condition for the chunks between the bounds `$2` and `$3`; `$4` is [`end`] of the upper bound.
const WITHIN: &str = "collection_id = $1 AND min >= $2 AND min < $4 AND max <= $3";

/// A key above the lower bounds of all chunks that end at `max` or before. It is `max` itself, except for the only chunk of an unsharded
/// collection, which begins and ends at the empty key.
fn end(max: &[u8]) -> &[u8] {
    if max.is_empty() { &[0] } else { max }
}

/// All chunks of a collection in the active snapshot, by lower bound. They are read by a cursor, because all rows at once would take many
/// times the memory of a map. After an error the iterator ends.
pub fn read_all(collection: i32) -> Result<impl Iterator<Item = Result<Chunk>>> {
    stream("WHERE collection_id = $1 ORDER BY min", &[Param::Int4(collection)])
}

statements! {
    /// At most `limit` chunks of a collection whose bounds or owner have changed after a revision, in the active snapshot.
    pub fn read_changed(collection: i32, revision: i64, limit: usize) -> Vec<Chunk> {
        // ORDER BY an indexed column, so that the planner scans that index and does not read all chunks.
        select_active format!("WHERE collection_id = $1 AND revision > $2 ORDER BY revision LIMIT {limit}"),
            [collection, revision]
    }

    /// The chunks of all collections in the active snapshot, by collection and lower bound.
    pub fn read_of_all_collections() -> Vec<StoredChunk> { select_active "ORDER BY collection_id, min" }

    /// The chunk that holds a key.
    pub fn containing(collection: i32, key: &[u8]) -> Option<Chunk> {
        select "WHERE collection_id = $1 AND min <= $2 ORDER BY min DESC LIMIT 1"
    }

    /// The chunks between two bounds, by lower bound.
    pub fn within(collection: i32, min: &[u8], max: &[u8]) -> Vec<StoredChunk> {
        select format!("WHERE {WITHIN} ORDER BY min"), [collection, min, max, end(max)]
    }

    /// The chunks of a collection that a shard owns, by lower bound.
    pub fn of_shard(collection: i32, shard: ShardId) -> Vec<Chunk> {
        select "WHERE collection_id = $1 AND shard_id = $2 ORDER BY min"
    }

    /// The chunks of a collection with their versions, by lower bound.
    pub fn with_versions(collection: i32) -> Vec<VersionedChunk> { select "WHERE collection_id = $1 ORDER BY min" }

    /// The number of chunks that a shard owns.
    pub fn count_of_shard(shard: ShardId) -> i64 {
        run "SELECT pg_catalog.count(*) FROM docshard_catalog.chunks WHERE shard_id = $1"
    }

    /// The number of a shard's chunks that are marked as jumbo.
    pub fn count_of_jumbo(shard: ShardId) -> i64 {
        run "SELECT pg_catalog.count(*) FROM docshard_catalog.chunks WHERE shard_id = $1 AND jumbo"
    }

    /// True if there is a chunk with these bounds and this owner.
    pub fn exists(collection: i32, chunk: &Chunk) -> bool {
        run "SELECT FROM docshard_catalog.chunks WHERE collection_id = $1 AND min = $2 AND max = $3 AND shard_id = $4",
            [collection, chunk.min, chunk.max, chunk.shard]
    }

    /// Inserts a chunk.
    pub fn insert(collection: i32, chunk: &Chunk, version: i64) {
        run format!(
            "INSERT INTO docshard_catalog.chunks (collection_id, min, max, shard_id, version, revision) \
             VALUES ($1, $2, $3, $4, $5, {NEXT_REVISION})"
        ), [collection, chunk.min, chunk.max, chunk.shard, version]
    }

    /// Splits a chunk at a key inside it.
    pub fn split(collection: i32, chunk: &Chunk, key: &[u8]) {
        run format!(
            "WITH old AS (UPDATE docshard_catalog.chunks SET max = $3, jumbo = false, revision = {NEXT_REVISION} \
                          WHERE collection_id = $1 AND min = $2 RETURNING shard_id, version, revision) \
             INSERT INTO docshard_catalog.chunks (collection_id, min, max, shard_id, version, revision) \
             SELECT $1, $3, $4, shard_id, version, revision FROM old"
        ), [collection, chunk.min, key, chunk.max]
    }

    /// Merges the chunks between two bounds, which are all on one shard.
    pub fn merge(collection: i32, min: &[u8], max: &[u8]) {
        run format!(
            "WITH gone AS (DELETE FROM docshard_catalog.chunks WHERE collection_id = $1 AND min > $2 AND max <= $3 \
                           RETURNING version) \
             UPDATE docshard_catalog.chunks AS c SET max = $3, jumbo = false, revision = {NEXT_REVISION}, \
                    version = greatest(c.version, (SELECT max(version) FROM gone)) \
             WHERE collection_id = $1 AND min = $2"
        )
    }

    /// Changes the owner of the chunks between two bounds that the shard `from` owns to `to`; returns their number.
    pub fn set_owner(collection: i32, range: (&[u8], &[u8]), from: ShardId, to: ShardId, version: i64) -> u64 {
        run format!(
            "UPDATE docshard_catalog.chunks SET shard_id = $6, version = $7, revision = {NEXT_REVISION} \
             WHERE {WITHIN} AND shard_id = $5"
        ), [collection, range.0, range.1, end(range.1), from, to, version]
    }

    /// Marks the chunk that begins at a key as jumbo, or removes the mark; false if nothing changes.
    pub fn set_jumbo(collection: i32, min: &[u8], jumbo: bool) -> bool {
        run "UPDATE docshard_catalog.chunks SET jumbo = $3 WHERE collection_id = $1 AND min = $2 AND jumbo <> $3"
    }

    /// Deletes all chunks of a collection.
    pub fn delete_all(collection: i32) { run "DELETE FROM docshard_catalog.chunks WHERE collection_id = $1" }
}
