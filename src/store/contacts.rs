//! `docshard_catalog.contacts`: the last known position of each shard.

use super::declare::Stored;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::Position;

use crate::pg::error::Result;

stored! { Position from "contacts" { timeline, counter } }

rows! {
    /// A shard's position.
    Contact from "contacts" {
        shard: ShardId = "shard_id",
        /// of WAL insertion
        timeline: i64,
        /// advanced by the router's worker
        counter: i64,
        /// when it was advanced, in microseconds since 2000
        at: i64 = "(extract(epoch FROM at) * 1000000)::pg_catalog.int8 - 946684800000000",
    }

    /// The content of this router's handshake with the shard behind a server.
    Peer from "cluster c LEFT JOIN docshard_catalog.shards s ON s.server = $1::pg_catalog.name \
               LEFT JOIN docshard_catalog.contacts k ON k.shard_id = s.id" {
        cluster: i64 = "c.id",
        /// of this router at the shard
        epoch: i64 = "greatest(c.epoch, (pg_catalog.to_jsonb(k) ->> 'epoch')::pg_catalog.int8)",
        /// the shard's name; None if the server leads to none
        shard: Option<String> = "s.name",
        /// the shard's timeline, if it is known
        timeline: Option<i64> = "k.timeline",
        /// the shard's counter, if it is known
        counter: Option<i64> = "k.counter",
    }

    /// What is wrong with a shard.
    Trouble from "contacts" {
        /// why it is refused
        trouble: Option<String>,
        /// from when writes may have been lost, as text; None for the beginning
        lost_from: Option<String> = "lost_from::pg_catalog.text",
        /// until when; None if none were lost
        lost_to: Option<String> = "lost_to::pg_catalog.text",
    }
}

/// Sets whether sessions of a replaced router may go on at a shard. Before `ALTER EXTENSION docshard UPDATE` to 0.4.0 nothing is set.
pub fn set_must_fence(shard: ShardId, must: bool) -> Result<()> {
    if have_epochs()? { set_fencing(shard, must) } else { Ok(()) }
}

statements! {
    /// The content of this router's handshake with the shard behind a server, in the active snapshot; None without an identity.
    pub fn read_peer(server: &str) -> Option<Peer> { select_active "" }

    /// A shard's position; None if nothing is known.
    pub fn position(shard: ShardId) -> Option<Position> { select "WHERE shard_id = $1" }

    /// The epoch of this router at a shard.
    pub fn epoch(shard: ShardId) -> i64 {
        run "SELECT greatest(c.epoch, (pg_catalog.to_jsonb(k) ->> 'epoch')::pg_catalog.int8) \
             FROM docshard_catalog.cluster c LEFT JOIN docshard_catalog.contacts k ON k.shard_id = $1"
    }

    /// True if sessions of a replaced router may go on at a shard.
    pub fn must_fence(shard: ShardId) -> bool {
        run "SELECT FROM docshard_catalog.contacts k WHERE k.shard_id = $1 AND (pg_catalog.to_jsonb(k) ->> 'must_fence')::pg_catalog.bool"
    }

    fn set_fencing(shard: ShardId, must: bool) {
        run "UPDATE docshard_catalog.contacts SET must_fence = $2 WHERE shard_id = $1"
    }

    /// True if the table has the columns `epoch` and `must_fence`: not before `ALTER EXTENSION docshard UPDATE` to 0.4.0.
    pub fn have_epochs() -> bool {
        run "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'docshard_catalog.contacts'::pg_catalog.regclass AND attname = 'epoch'"
    }

    /// Sets the epoch of this router at a shard, if it is higher than the router's own one.
    pub fn set_epoch(shard: ShardId, epoch: i64) {
        run "UPDATE docshard_catalog.contacts SET epoch = $2 WHERE shard_id = $1"
    }

    /// The known positions of shards.
    pub fn all() -> Vec<Contact> { select "" }

    /// What is wrong with a shard.
    pub fn trouble(shard: ShardId) -> Option<Trouble> { select "WHERE shard_id = $1" }

    /// Sets a shard's position, and removes what was wrong with it. Does nothing for a shard that is gone.
    pub fn set_position(shard: ShardId, position: Position) {
        run "INSERT INTO docshard_catalog.contacts (shard_id, timeline, counter, at) \
             SELECT id, $2, $3, pg_catalog.clock_timestamp() FROM docshard_catalog.shards WHERE id = $1 \
             ON CONFLICT (shard_id) DO UPDATE SET timeline = excluded.timeline, counter = excluded.counter, at = excluded.at, \
               trouble = NULL, is_ahead = false",
            [shard, position.timeline, position.counter]
    }

    /// Sets why a shard is refused; false if a reason is set already.
    pub fn set_trouble(shard: ShardId, trouble: &str, is_ahead: bool) -> bool {
        run "UPDATE docshard_catalog.contacts SET trouble = $2, is_ahead = $3 WHERE shard_id = $1 AND trouble IS NULL"
    }

    /// Records that writes may have been lost since a time until now.
    pub fn set_lost_writes(shard: ShardId, since: Option<&str>) -> Option<Trouble> {
        run format!(
            "UPDATE docshard_catalog.contacts SET lost_from = least(lost_from, $2::pg_catalog.timestamptz), \
             lost_to = pg_catalog.clock_timestamp() WHERE shard_id = $1 RETURNING {}", Trouble::columns()
        )
    }

    /// Removes the record of lost writes.
    pub fn clear_lost_writes(shard: ShardId) {
        run "UPDATE docshard_catalog.contacts SET lost_from = NULL, lost_to = NULL WHERE shard_id = $1"
    }
}
