//! `docshard_catalog.pending_drops`: drops that must still be made at shards which could not be reached.

use docshard_core::cluster::chunk_map::ShardId;

/// The kind of an object that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedKind {
    /// a collection's table
    Collection,
    /// a secondary index
    Index,
}

impl DroppedKind {
    /// The name in the catalog.
    fn name(self) -> &'static str {
        match self {
            DroppedKind::Collection => "collection",
            DroppedKind::Index => "index",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [DroppedKind::Collection, DroppedKind::Index].into_iter().find(|kind| kind.name() == name)
    }
}

docshard_core::sql::record::text_columns! { DroppedKind: "kind of a pending drop" }

rows! {
    /// A drop of the object with that number at a shard.
    PendingDrop from "pending_drops p JOIN docshard_catalog.shards s ON s.id = p.shard_id" {
        shard: ShardId = "p.shard_id",
        kind: DroppedKind = "p.kind",
        number: i32 = "p.number",
        /// the database that the object was in
        database: String = "pg_catalog.split_part(p.namespace, '.', 1)",
    }
}

statements! {
    /// All drops by shard.
    pub fn all() -> Vec<PendingDrop> { select "ORDER BY p.shard_id, p.kind, p.number" }

    /// The drops at the shard behind a server, in the active snapshot.
    pub fn read_of_server(server: &str) -> Vec<PendingDrop> {
        select_active "WHERE s.server = $1::pg_catalog.name ORDER BY p.kind, p.number"
    }

    /// Inserts a drop, unless it exists. The name is only for display.
    pub fn insert(shard: ShardId, kind: DroppedKind, number: i32, name: &str) {
        run "INSERT INTO docshard_catalog.pending_drops (shard_id, kind, number, namespace) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING",
            [shard, kind.name(), number, name]
    }

    /// Deletes a drop.
    pub fn delete(shard: ShardId, kind: DroppedKind, number: i32) {
        run "DELETE FROM docshard_catalog.pending_drops WHERE shard_id = $1 AND kind = $2 AND number = $3",
            [shard, kind.name(), number]
    }
}
