//! `docshard_catalog.databases`: the primary shard of each database.

use docshard_core::cluster::chunk_map::ShardId;

rows! {
    /// A database; its primary shard has its unsharded collections.
    Database from "databases" { name: String, primary: ShardId = "primary_shard" }
}

statements! {
    /// All databases, by name.
    pub fn all() -> Vec<Database> { select "ORDER BY name" }

    /// A database's primary shard; None if there is no such database.
    pub fn primary(name: &str) -> Option<ShardId> {
        run "SELECT primary_shard FROM docshard_catalog.databases WHERE name = $1"
    }

    /// The names of the databases that have this primary shard.
    pub fn of_primary(shard: ShardId) -> Vec<String> {
        run "SELECT name FROM docshard_catalog.databases WHERE primary_shard = $1 ORDER BY name"
    }

    /// Like [`of_primary`], with the rows locked until the transaction ends.
    pub fn lock_of_primary(shard: ShardId) -> Vec<String> {
        run "SELECT name FROM docshard_catalog.databases WHERE primary_shard = $1 ORDER BY name FOR UPDATE"
    }

    /// Inserts a database, unless there is one of that name.
    pub fn insert(name: &str, primary: ShardId) {
        run "INSERT INTO docshard_catalog.databases (name, primary_shard) VALUES ($1, $2) ON CONFLICT DO NOTHING"
    }

    /// Sets the primary shard.
    pub fn set_primary(name: &str, shard: ShardId) {
        run "UPDATE docshard_catalog.databases SET primary_shard = $2 WHERE name = $1"
    }

    /// Marks a database as enabled for sharding; false if it is marked already.
    pub fn set_partitioned(name: &str) -> bool {
        run "UPDATE docshard_catalog.databases SET partitioned = true WHERE name = $1 AND NOT partitioned"
    }

    /// Deletes a database.
    pub fn delete(name: &str) { run "DELETE FROM docshard_catalog.databases WHERE name = $1" }
}
