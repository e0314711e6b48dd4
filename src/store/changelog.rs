//! `docshard_catalog.changelog`: the cluster's history.

use serde_json::Value as Json;

statements! {
    /// Inserts an entry; `details` is a JSON object.
    pub fn insert(what: &str, namespace: Option<&str>, details: &Json) {
        run "INSERT INTO docshard_catalog.changelog (what, namespace, details) VALUES ($1, $2, $3::text::json)",
            [what, namespace, details.to_string()]
    }

    /// Deletes at most `limit` entries older than `days` days, the oldest first; returns the number of deleted entries.
    pub fn delete_old(days: i32, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.changelog WHERE id IN (SELECT id FROM docshard_catalog.changelog \
               WHERE at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)"
    }

    /// True if, at this version of the collection, ranges were given back to a shard that still had their documents.
    pub fn has_returned(namespace: &str, version: i64) -> bool {
        run "SELECT FROM docshard_catalog.changelog WHERE what = 'adoptShard.returned' AND namespace = $1 \
               AND details ->> 'version' = $2::text LIMIT 1"
    }
}
