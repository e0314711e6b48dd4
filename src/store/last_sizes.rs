//! `docshard_catalog.last_sizes`: how many documents a shard had when it was last asked.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

row! {
    /// How many documents of a collection a shard had.
    pub struct LastSize from "last_sizes" {
        /// how many
        pub documents: i64,
        /// when, as text in ISO 8601
        pub asked_at: String = "pg_catalog.to_char(asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
    }
}

/// How many documents of a collection a shard had; None if it was never asked.
pub fn find(shard: ShardId, collection: i32) -> Result<Option<LastSize>> {
    row::find("WHERE shard_id = $1 AND collection_id = $2", &[Param::Int4(shard), Param::Int4(collection)])
}

/// Sets how many documents of a collection a shard has; what has not changed is written again once in ten minutes. Nothing is
/// done for a collection that is gone.
pub fn set(shard: ShardId, collection: i32, documents: i64) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.last_sizes AS l (shard_id, collection_id, documents) \
         SELECT $1, id, $3 FROM docshard_catalog.collections WHERE id = $2 \
         ON CONFLICT (shard_id, collection_id) DO UPDATE SET documents = excluded.documents, asked_at = excluded.asked_at \
         WHERE l.documents <> excluded.documents OR l.asked_at < excluded.asked_at - interval '10 minutes'",
        &[Param::Int4(shard), Param::Int4(collection), Param::Int8(documents)],
    )
}
