//! `docshard_catalog.zones`: which shards belong to which zone.

use docshard_core::cluster::chunk_map::ShardId;

rows! {
    /// A shard's membership in a zone.
    Membership from "zones" { shard: ShardId = "shard_id", zone: String }
}

statements! {
    /// All memberships by shard and zone, in the active snapshot.
    pub fn read_all() -> Vec<Membership> { select_active "ORDER BY shard_id, zone" }

    /// True if a shard belongs to the zone.
    pub fn exists(zone: &str) -> bool { run "SELECT FROM docshard_catalog.zones WHERE zone = $1 LIMIT 1" }

    /// The zones of a shard in which all other shards are draining, or which have no other shard: those with ranges, or, if `also_others`, all.
    pub fn depending_on(shard: ShardId, also_others: bool) -> Vec<String> {
        run "SELECT z.zone FROM docshard_catalog.zones z \
             WHERE z.shard_id = $1 AND ($2 OR EXISTS (SELECT FROM docshard_catalog.zone_ranges r WHERE r.zone = z.zone)) \
             AND NOT EXISTS (SELECT FROM docshard_catalog.zones o JOIN docshard_catalog.shards s ON s.id = o.shard_id \
                             WHERE o.zone = z.zone AND o.shard_id <> $1 AND NOT s.draining) ORDER BY z.zone"
    }

    /// Inserts a membership; false if it exists already.
    pub fn insert(shard: ShardId, zone: &str) -> bool {
        run "INSERT INTO docshard_catalog.zones (shard_id, zone) VALUES ($1, $2) ON CONFLICT DO NOTHING"
    }

    /// Deletes a membership; false if there is none.
    pub fn delete(shard: ShardId, zone: &str) -> bool {
        run "DELETE FROM docshard_catalog.zones WHERE shard_id = $1 AND zone = $2"
    }
}
