//! `docshard_catalog.changelog`: the cluster's history.
//!
//! Some entries record changes of *definitions*: what the catalog has of collections, views, indexes, zones, grants, settings and shards, and
//! what a copy of the router that is older than the entry lacks. A change and its entry commit together. The router's keeper notes the newest of
//! these entries at the shards, where a take-over compares it with the copy's changelog.
//!
//! INVARIANT: the newest of these entries is never deleted, so a changelog that once had an entry has one that is at least as new. Else a
//! copy that lacks nothing would look older.

use serde_json::Value as Json;

/// The entries that record changes of definitions. These are left out:
/// * moves and changes of layout: shards show them, and a restored router completes those that have been decided;
/// * splits and merges, which the balancer does at any time: a catalog without them lacks no document;
/// * what switches the balancer and sampling on and off: backups may do that themselves.
const CHANGES_OF_DEFINITIONS: [&str; 23] = [
    "createCollection",
    "dropCollection",
    "renameCollection",
    "shardCollection",
    "collMod",
    "createIndex",
    "dropIndex",
    "createView",
    "modifyView",
    "dropView",
    "enableSharding",
    "movePrimary",
    "dropDatabase",
    "addShard",
    "removeShard",
    "removeShard.lost",
    "addShardToZone",
    "removeShardFromZone",
    "updateZoneKeyRange",
    "configureCollectionBalancing",
    "grantAccess",
    "revokeAccess",
    "setSetting",
];

/// True for an entry that records a change of definitions.
pub fn changes_definitions(what: &str) -> bool {
    CHANGES_OF_DEFINITIONS.contains(&what)
}

/// The same as a condition in SQL.
fn condition() -> String {
    format!("what IN ('{}')", CHANGES_OF_DEFINITIONS.join("', '"))
}

statements! {
    /// Inserts an entry; `details` is a JSON object.
    pub fn insert(what: &str, namespace: Option<&str>, details: &Json) {
        run "INSERT INTO docshard_catalog.changelog (what, namespace, details) VALUES ($1, $2, $3::text::json)",
            [what, namespace, details.to_string()]
    }

    /// Deletes at most `limit` entries older than `days` days, the oldest first, but not the newest one that changes definitions; returns the
    /// number of deleted entries.
    pub fn delete_old(days: i32, limit: i64) -> u64 {
        run format!(
            "DELETE FROM docshard_catalog.changelog WHERE id IN (SELECT id FROM docshard_catalog.changelog \
               WHERE at < pg_catalog.now() - pg_catalog.make_interval(days => $1) \
                 AND id IS DISTINCT FROM (SELECT pg_catalog.max(id) FROM docshard_catalog.changelog WHERE {}) \
               ORDER BY id LIMIT $2)",
            condition()
        )
    }

    /// The newest entry; 0 if there is none.
    pub fn newest() -> i64 { run "SELECT coalesce(pg_catalog.max(id), 0) FROM docshard_catalog.changelog" }

    /// The newest entry that changes definitions, if it is not older than `from`, else 0.
    pub fn newest_definitions(from: i64) -> i64 {
        run format!(
            "SELECT coalesce(pg_catalog.max(id), 0) FROM docshard_catalog.changelog WHERE id >= $1 AND {}",
            condition()
        )
    }

    /// True if, at this version of the collection, ranges were given back to a shard that still had their documents.
    pub fn has_returned(namespace: &str, version: i64) -> bool {
        run "SELECT FROM docshard_catalog.changelog WHERE what = 'adoptShard.returned' AND namespace = $1 \
               AND details ->> 'version' = $2::text LIMIT 1"
    }
}
