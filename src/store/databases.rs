//! `docshard_catalog.databases`: the primary shard of each database.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

row! {
    /// A database.
    pub struct Database from "databases" {
        /// its name
        pub name: String,
        /// where its unsharded collections are
        pub primary: ShardId = "primary_shard",
    }
}

/// All databases, by name.
pub fn all() -> Result<Vec<Database>> {
    row::query("ORDER BY name", &[])
}

/// A database's primary shard; None if there is no such database.
pub fn primary(name: &str) -> Result<Option<ShardId>> {
    row::value("databases", "primary_shard", "WHERE name = $1", &[Param::Text(name)])
}

/// The names of the databases whose primary shard it is.
pub fn of_primary(shard: ShardId) -> Result<Vec<String>> {
    row::values("databases", "name", "WHERE primary_shard = $1 ORDER BY name", &[Param::Int4(shard)])
}

/// As [`of_primary`], their rows locked until the transaction ends.
pub fn lock_of_primary(shard: ShardId) -> Result<Vec<String>> {
    row::values("databases", "name", "WHERE primary_shard = $1 ORDER BY name FOR UPDATE", &[Param::Int4(shard)])
}

/// Inserts a database, unless there is one of that name.
pub fn insert(name: &str, primary: ShardId) -> Result<()> {
    let sql = "INSERT INTO docshard_catalog.databases (name, primary_shard) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    row::execute(sql, &[Param::Text(name), Param::Int4(primary)])
}

/// Sets the primary shard.
pub fn set_primary(name: &str, shard: ShardId) -> Result<()> {
    let sql = "UPDATE docshard_catalog.databases SET primary_shard = $2 WHERE name = $1";
    row::execute(sql, &[Param::Text(name), Param::Int4(shard)])
}

/// Marks a database as enabled for sharding; false if it is so already.
pub fn set_partitioned(name: &str) -> Result<bool> {
    let sql = "UPDATE docshard_catalog.databases SET partitioned = true WHERE name = $1 AND NOT partitioned";
    Ok(row::count_changed(sql, &[Param::Text(name)])? > 0)
}

/// Deletes a database.
pub fn delete(name: &str) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.databases WHERE name = $1", &[Param::Text(name)])
}
