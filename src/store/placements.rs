//! `docshard_catalog.placements`: the shards that have a collection's table, each with its version of the collection.

use docshard_core::cluster::chunk_map::ShardId;

rows! {
    /// A shard that has a collection's table.
    Placement from "placements" {
        shard: ShardId = "shard_id",
        /// the version of the last change of ownership that touched the shard
        version: i64,
    }

    /// A collection, and a shard that has its table.
    Place from "placements" { collection: i32 = "collection_id", shard: ShardId = "shard_id" }

    /// A collection that a shard has.
    PlacedCollection from "placements p JOIN docshard_catalog.collections c ON c.id = p.collection_id" {
        collection: i32 = "c.id",
        namespace: String = "c.namespace",
        token: i64 = "c.token",
        /// the shard's version of the collection
        version: i64 = "p.version",
    }
}

statements! {
    /// The collections that a shard has.
    pub fn of_shard(shard: ShardId) -> Vec<PlacedCollection> { select "WHERE p.shard_id = $1" }

    /// Every collection at every shard that has it.
    pub fn all() -> Vec<Place> { select "" }

    /// A collection's placements, in the active snapshot.
    pub fn read(collection: i32) -> Vec<Placement> { select_active "WHERE collection_id = $1" }

    /// The shards that have a collection's table, by number.
    pub fn shards(collection: i32) -> Vec<ShardId> {
        run "SELECT shard_id FROM docshard_catalog.placements WHERE collection_id = $1 ORDER BY shard_id"
    }

    /// A shard's version of a collection; None if it does not have the collection's table.
    pub fn version(collection: i32, shard: ShardId) -> Option<i64> {
        run "SELECT version FROM docshard_catalog.placements WHERE collection_id = $1 AND shard_id = $2"
    }

    /// Inserts a placement; fails if there is one.
    pub fn insert(collection: i32, shard: ShardId, version: i64) {
        run "INSERT INTO docshard_catalog.placements (collection_id, shard_id, version) VALUES ($1, $2, $3)"
    }

    /// Inserts placements, or sets their version.
    pub fn insert_or_set(collection: i32, shards: &[ShardId], version: i64) {
        run "INSERT INTO docshard_catalog.placements (collection_id, shard_id, version) \
             SELECT $1, shard, $3 FROM pg_catalog.unnest($2) AS shard \
             ON CONFLICT (collection_id, shard_id) DO UPDATE SET version = excluded.version"
    }

    /// Sets the version of shards; returns how many of them have a placement.
    pub fn set_version(collection: i32, shards: &[ShardId], version: i64) -> u64 {
        run "UPDATE docshard_catalog.placements SET version = $3 WHERE collection_id = $1 AND shard_id = ANY ($2)"
    }

    /// Deletes a placement.
    pub fn delete(collection: i32, shard: ShardId) {
        run "DELETE FROM docshard_catalog.placements WHERE collection_id = $1 AND shard_id = $2"
    }

    /// Deletes a shard's placements; returns the collections.
    pub fn delete_of_shard(shard: ShardId) -> Vec<i32> {
        run "DELETE FROM docshard_catalog.placements WHERE shard_id = $1 RETURNING collection_id"
    }
}
