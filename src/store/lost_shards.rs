//! `docshard_catalog.lost_shards`: shards that were removed as lost, and the tokens that confirm such a removal.

use docshard_core::cluster::chunk_map::ShardId;

rows! {
    /// A shard that was removed as lost.
    LostShard from "lost_shards" {
        name: String,
        /// when it was removed, in UTC, as text
        removed_at: String = "pg_catalog.to_char(removed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')",
    }
}

statements! {
    /// The last shard of that node or name that was removed as lost.
    pub fn find_removed(node: &str, name: &str) -> Option<LostShard> {
        select "WHERE removed_at IS NOT NULL AND (node = $1 OR name = $2) ORDER BY removed_at DESC LIMIT 1"
    }

    /// True if the token was set for the shard in the last ten minutes.
    pub fn is_token(shard: ShardId, token: &str) -> bool {
        run "SELECT FROM docshard_catalog.lost_shards WHERE shard_id = $1 AND token = $2 \
             AND asked_at > pg_catalog.clock_timestamp() - interval '10 minutes'"
    }

    /// Sets the token for the removal of a shard.
    pub fn set_token(shard: ShardId, token: &str) {
        run "INSERT INTO docshard_catalog.lost_shards (shard_id, name, node, token) \
             SELECT id, name, node, $2 FROM docshard_catalog.shards WHERE id = $1 \
             ON CONFLICT (shard_id) DO UPDATE SET token = excluded.token, asked_at = pg_catalog.clock_timestamp()"
    }

    /// Records that a shard has been removed, now.
    pub fn set_removed(shard: ShardId) {
        run "UPDATE docshard_catalog.lost_shards SET removed_at = pg_catalog.clock_timestamp() WHERE shard_id = $1"
    }
}
