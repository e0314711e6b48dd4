//! `docshard_catalog.zones`: which shards belong to which zone.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

row! {
    /// A shard's membership in a zone.
    pub struct Membership from "zones" {
        /// the shard
        pub shard: ShardId = "shard_id",
        /// the zone
        pub zone: String,
    }
}

/// All memberships by shard and zone, in the active snapshot.
pub fn read_all() -> Result<Vec<Membership>> {
    row::read("ORDER BY shard_id, zone", &[])
}

/// True if a shard belongs to the zone.
pub fn exists(zone: &str) -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.zones WHERE zone = $1 LIMIT 1", &[Param::Text(zone)])
}

/// Zones with ranges of which this is the last shard that is not draining.
pub fn depending_on(shard: ShardId) -> Result<Vec<String>> {
    row::values(
        "zones z",
        "z.zone",
        "WHERE z.shard_id = $1 AND EXISTS (SELECT FROM docshard_catalog.zone_ranges r WHERE r.zone = z.zone) \
         AND NOT EXISTS (SELECT FROM docshard_catalog.zones o JOIN docshard_catalog.shards s ON s.id = o.shard_id \
                         WHERE o.zone = z.zone AND o.shard_id <> $1 AND NOT s.draining) ORDER BY z.zone",
        &[Param::Int4(shard)],
    )
}

/// Inserts a membership; false if there is one.
pub fn insert(shard: ShardId, zone: &str) -> Result<bool> {
    let sql = "INSERT INTO docshard_catalog.zones (shard_id, zone) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    Ok(row::count_changed(sql, &[Param::Int4(shard), Param::Text(zone)])? > 0)
}

/// Deletes a membership; false if there is none.
pub fn delete(shard: ShardId, zone: &str) -> Result<bool> {
    let sql = "DELETE FROM docshard_catalog.zones WHERE shard_id = $1 AND zone = $2";
    Ok(row::count_changed(sql, &[Param::Int4(shard), Param::Text(zone)])? > 0)
}
