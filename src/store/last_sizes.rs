//! `docshard_catalog.last_sizes`: the number of documents that a shard had when it was last asked.

use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::routing::protocol::sql;

rows! {
    /// The number of documents of a collection that a shard had.
    LastSize from "last_sizes" {
        documents: i64,
        /// when the shard was asked, as text in ISO 8601
        asked_at: String = "pg_catalog.to_char(asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
    }
}

statements! {
    /// The number of documents of a collection that a shard had; None if it was never asked.
    pub fn find(shard: ShardId, collection: i32) -> Option<LastSize> {
        select "WHERE shard_id = $1 AND collection_id = $2"
    }

    /// The estimated number of documents of a table of this database, by PostgreSQL's statistics and the size of the table; None if there
    /// is no such table. In a table that was never analysed, a document counts as 400 bytes.
    pub fn estimate_here(table: &str) -> Option<i64> {
        run_active format!(
            "SELECT coalesce({}, (pg_catalog.pg_relation_size(c.oid) / 400.0)::int8, 0) \
             FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1)",
            sql::estimated_documents("c")
        )
    }

    /// Like [`find`], but only the number, in the active snapshot.
    pub fn documents(shard: ShardId, collection: i32) -> Option<i64> {
        run_active "SELECT documents FROM docshard_catalog.last_sizes WHERE shard_id = $1 AND collection_id = $2"
    }

    /// Sets the number of documents of a collection that a shard has. An unchanged number is written again at most once in ten minutes.
    /// Does nothing for a collection that was dropped.
    pub fn set(shard: ShardId, collection: i32, documents: i64) {
        run "INSERT INTO docshard_catalog.last_sizes AS l (shard_id, collection_id, documents) \
             SELECT $1, id, $3 FROM docshard_catalog.collections WHERE id = $2 \
             ON CONFLICT (shard_id, collection_id) DO UPDATE SET documents = excluded.documents, asked_at = excluded.asked_at \
             WHERE l.documents <> excluded.documents OR l.asked_at < excluded.asked_at - interval '10 minutes'"
    }
}
