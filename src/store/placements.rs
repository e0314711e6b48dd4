//! `docshard_catalog.placements`: the shards that have a collection's table, each with its version of the collection.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

row! {
    /// A shard that has a collection's table.
    pub struct Placement from "placements" {
        /// the shard
        pub shard: ShardId = "shard_id",
        /// the version of the last change of ownership that touched it
        pub version: i64,
    }
}

row! {
    /// A collection that a shard has.
    pub struct PlacedCollection from "placements p JOIN docshard_catalog.collections c ON c.id = p.collection_id" {
        /// the collection
        pub collection: i32 = "c.id",
        /// its name
        pub namespace: String = "c.namespace",
        /// its token
        pub token: i64 = "c.token",
        /// the shard's version of it
        pub version: i64 = "p.version",
    }
}

/// The collections that a shard has.
pub fn of_shard(shard: ShardId) -> Result<Vec<PlacedCollection>> {
    row::query("WHERE p.shard_id = $1", &[Param::Int4(shard)])
}

/// A collection's placements, in the active snapshot.
pub fn read(collection: i32) -> Result<Vec<Placement>> {
    row::read("WHERE collection_id = $1", &[Param::Int4(collection)])
}

/// The shards that have a collection's table, by number.
pub fn shards(collection: i32) -> Result<Vec<ShardId>> {
    row::values("placements", "shard_id", "WHERE collection_id = $1 ORDER BY shard_id", &[Param::Int4(collection)])
}

/// A shard's version of a collection; None if it does not have the collection's table.
pub fn version(collection: i32, shard: ShardId) -> Result<Option<i64>> {
    let params = [Param::Int4(collection), Param::Int4(shard)];
    row::value("placements", "version", "WHERE collection_id = $1 AND shard_id = $2", &params)
}

/// Inserts a placement; fails if there is one.
pub fn insert(collection: i32, shard: ShardId, version: i64) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.placements (collection_id, shard_id, version) VALUES ($1, $2, $3)",
        &[Param::Int4(collection), Param::Int4(shard), Param::Int8(version)],
    )
}

/// Inserts placements, or sets their version.
pub fn insert_or_set(collection: i32, shards: &[ShardId], version: i64) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.placements (collection_id, shard_id, version) \
         SELECT $1, shard, $3 FROM pg_catalog.unnest($2) AS shard \
         ON CONFLICT (collection_id, shard_id) DO UPDATE SET version = excluded.version",
        &[Param::Int4(collection), Param::Int4Array(shards), Param::Int8(version)],
    )
}

/// Sets the version of shards; returns how many of them have a placement.
pub fn set_version(collection: i32, shards: &[ShardId], version: i64) -> Result<u64> {
    row::count_changed(
        "UPDATE docshard_catalog.placements SET version = $3 WHERE collection_id = $1 AND shard_id = ANY ($2)",
        &[Param::Int4(collection), Param::Int4Array(shards), Param::Int8(version)],
    )
}

/// Deletes a placement.
pub fn delete(collection: i32, shard: ShardId) -> Result<()> {
    let sql = "DELETE FROM docshard_catalog.placements WHERE collection_id = $1 AND shard_id = $2";
    row::execute(sql, &[Param::Int4(collection), Param::Int4(shard)])
}

/// Deletes a shard's placements; returns the collections.
pub fn delete_of_shard(shard: ShardId) -> Result<Vec<i32>> {
    let sql = "DELETE FROM docshard_catalog.placements WHERE shard_id = $1";
    row::returning("placements", "collection_id", sql, &[Param::Int4(shard)])
}
