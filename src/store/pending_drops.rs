//! `docshard_catalog.pending_drops`: drops that are still to be done at shards which could not be reached.

use super::row::{self, Column, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedKind {
    /// a collection's table
    Collection,
    /// a secondary index
    Index,
}

impl DroppedKind {
    /// As the catalog has it.
    fn name(self) -> &'static str {
        match self {
            DroppedKind::Collection => "collection",
            DroppedKind::Index => "index",
        }
    }
}

impl Column for DroppedKind {
    const TYPE: &'static str = "kind of a pending drop";
    fn decode(value: &[u8]) -> Option<Self> {
        [DroppedKind::Collection, DroppedKind::Index].into_iter().find(|kind| kind.name().as_bytes() == value)
    }
}

row! {
    /// A drop.
    pub struct PendingDrop from "pending_drops p JOIN docshard_catalog.shards s ON s.id = p.shard_id" {
        /// where
        pub shard: ShardId = "p.shard_id",
        /// what
        pub kind: DroppedKind = "p.kind",
        /// its number
        pub number: i32 = "p.number",
    }
}

/// All drops by shard.
pub fn all() -> Result<Vec<PendingDrop>> {
    row::query("ORDER BY p.shard_id, p.kind, p.number", &[])
}

/// The drops at the shard behind a server, in the active snapshot.
pub fn read_of_server(server: &str) -> Result<Vec<PendingDrop>> {
    row::read("WHERE s.server = $1::pg_catalog.name ORDER BY p.kind, p.number", &[Param::Text(server)])
}

/// Inserts a drop, unless it is there; it is shown to people with the name.
pub fn insert(shard: ShardId, kind: DroppedKind, number: i32, name: &str) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.pending_drops (shard_id, kind, number, namespace) VALUES ($1, $2, $3, $4) \
         ON CONFLICT DO NOTHING",
        &[Param::Int4(shard), Param::Text(kind.name()), Param::Int4(number), Param::Text(name)],
    )
}

/// Deletes a drop.
pub fn delete(shard: ShardId, kind: DroppedKind, number: i32) -> Result<()> {
    let sql = "DELETE FROM docshard_catalog.pending_drops WHERE shard_id = $1 AND kind = $2 AND number = $3";
    row::execute(sql, &[Param::Int4(shard), Param::Text(kind.name()), Param::Int4(number)])
}
