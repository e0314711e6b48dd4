//! `docshard_catalog.contacts`: how far each shard is known to have come.

use super::row::{self, row, row_of};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::Position;

row_of! { Position from "contacts" { timeline, counter, } }

row! {
    /// A shard's position.
    pub struct Contact from "contacts" {
        /// the shard
        pub shard: ShardId = "shard_id",
        /// of WAL insertion
        pub timeline: i64,
        /// advanced by the router's worker
        pub counter: i64,
        /// when it was advanced, in microseconds since 2000
        pub at: i64 = "(extract(epoch FROM at) * 1000000)::pg_catalog.int8 - 946684800000000",
    }
}

row! {
    /// What this router says to the shard behind a server.
    pub struct Peer from "cluster c LEFT JOIN docshard_catalog.shards s ON s.server = $1::pg_catalog.name \
                          LEFT JOIN docshard_catalog.contacts k ON k.shard_id = s.id" {
        /// the cluster's number
        pub cluster: i64 = "c.id",
        /// the router's epoch
        pub epoch: i64 = "c.epoch",
        /// the shard's name; None if the server leads to none
        pub shard: Option<String> = "s.name",
        /// the shard's timeline, if it is known
        pub timeline: Option<i64> = "k.timeline",
        /// the shard's counter, if it is known
        pub counter: Option<i64> = "k.counter",
    }
}

row! {
    /// What people should know of a shard.
    pub struct Trouble from "contacts" {
        /// why it is refused
        pub trouble: Option<String>,
        /// when writes may have been lost, as text: from; None for the beginning
        pub lost_from: Option<String> = "lost_from::pg_catalog.text",
        /// and to; None if none were
        pub lost_to: Option<String> = "lost_to::pg_catalog.text",
    }
}

/// What this router says to the shard behind a server, in the active snapshot; None without an identity.
pub fn read_peer(server: &str) -> Result<Option<Peer>> {
    Ok(row::read("", &[Param::Text(server)])?.into_iter().next())
}

/// A shard's position; None if nothing is known.
pub fn position(shard: ShardId) -> Result<Option<Position>> {
    row::find("WHERE shard_id = $1", &[Param::Int4(shard)])
}

/// All shards of which something is known.
pub fn all() -> Result<Vec<Contact>> {
    row::query("", &[])
}

/// What people should know of a shard.
pub fn trouble(shard: ShardId) -> Result<Option<Trouble>> {
    row::find("WHERE shard_id = $1", &[Param::Int4(shard)])
}

/// True if a shard is ahead of the catalog.
pub fn exist_ahead() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.contacts WHERE is_ahead", &[])
}

/// Sets a shard's position; what was wrong with it is forgotten. Nothing is done for a shard that is gone.
pub fn set_position(shard: ShardId, position: Position) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.contacts (shard_id, timeline, counter, at) \
         SELECT id, $2, $3, pg_catalog.clock_timestamp() FROM docshard_catalog.shards WHERE id = $1 \
         ON CONFLICT (shard_id) DO UPDATE SET timeline = excluded.timeline, counter = excluded.counter, at = excluded.at, \
           trouble = NULL, is_ahead = false",
        &[Param::Int4(shard), Param::Int8(position.timeline), Param::Int8(position.counter)],
    )
}

/// Sets why a shard is refused, unless it is set; false if it is.
pub fn set_trouble(shard: ShardId, trouble: &str, is_ahead: bool) -> Result<bool> {
    let sql =
        "UPDATE docshard_catalog.contacts SET trouble = $2, is_ahead = $3 WHERE shard_id = $1 AND trouble IS NULL";
    Ok(row::count_changed(sql, &[Param::Int4(shard), Param::Text(trouble), Param::Bool(is_ahead)])? > 0)
}

/// Sets that writes may have been lost since a time until now.
pub fn set_lost_writes(shard: ShardId, since: Option<&str>) -> Result<Option<Trouble>> {
    let sql = "UPDATE docshard_catalog.contacts SET lost_from = least(lost_from, $2::pg_catalog.timestamptz), \
               lost_to = pg_catalog.clock_timestamp() WHERE shard_id = $1";
    Ok(row::changed(sql, &[Param::Int4(shard), Param::OptText(since)])?.into_iter().next())
}

/// Forgets that writes may have been lost.
pub fn clear_lost_writes(shard: ShardId) -> Result<()> {
    let sql = "UPDATE docshard_catalog.contacts SET lost_from = NULL, lost_to = NULL WHERE shard_id = $1";
    row::execute(sql, &[Param::Int4(shard)])
}
