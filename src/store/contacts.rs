//! `docshard_catalog.contacts`: what this router knows of its contact with each shard: the shard's last known position, the router's epoch
//! there, and what is wrong with the shard.

use super::declare::Stored;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::Position;

use crate::pg::error::Result;

stored! { Position from "contacts" { timeline, counter } }

rows! {
    /// A shard's position.
    Contact from "contacts" {
        shard: ShardId = "shard_id",
        /// the timeline of the shard's WAL
        timeline: i64,
        /// a counter at the shard that the router's worker advances
        counter: i64,
        /// when the counter was advanced, in microseconds since 2000
        at: i64 = "(extract(epoch FROM at) * 1000000)::pg_catalog.int8 - 946684800000000",
    }

    /// The content of this router's handshake with the shard behind a server.
    Peer from "cluster c LEFT JOIN docshard_catalog.shards s ON s.server = $1::pg_catalog.name \
               LEFT JOIN docshard_catalog.contacts k ON k.shard_id = s.id" {
        cluster: i64 = "c.id",
        /// the epoch of this router at the shard
        epoch: i64 = "greatest(c.epoch, (pg_catalog.to_jsonb(k) ->> 'epoch')::pg_catalog.int8)",
        /// the shard's name; None if the server leads to no shard
        shard: Option<String> = "s.name",
        /// the shard's timeline, if it is known
        timeline: Option<i64> = "k.timeline",
        /// the shard's counter, if it is known
        counter: Option<i64> = "k.counter",
    }

    /// What is wrong with a shard.
    Trouble from "contacts" {
        /// why the shard is refused; None if it is not
        trouble: Option<String>,
        /// writes since this time may have been lost, as text; None: since the beginning
        lost_from: Option<String> = "lost_from::pg_catalog.text",
        /// writes until this time may have been lost, as text; None: no writes were lost
        lost_to: Option<String> = "lost_to::pg_catalog.text",
    }
}

/// Sets whether sessions of a replaced router may still be active at a shard. Does nothing before the extension is updated to 0.4.0.
pub fn set_must_fence(shard: ShardId, must: bool) -> Result<()> {
    if have_epochs()? { set_fencing(shard, must) } else { Ok(()) }
}

statements! {
    /// The content of this router's handshake with the shard behind a server, in the active snapshot; None if this cluster has no identity.
    pub fn read_peer(server: &str) -> Option<Peer> { select_active "" }

    /// A shard's position; None if nothing is known.
    pub fn position(shard: ShardId) -> Option<Position> { select "WHERE shard_id = $1" }

    /// Like [`position`], locked until the transaction ends.
    pub fn lock_position(shard: ShardId) -> Option<Position> { select "WHERE shard_id = $1 FOR UPDATE" }

    /// The epoch of this router at a shard.
    pub fn epoch(shard: ShardId) -> i64 {
        run "SELECT greatest(c.epoch, (pg_catalog.to_jsonb(k) ->> 'epoch')::pg_catalog.int8) \
             FROM docshard_catalog.cluster c LEFT JOIN docshard_catalog.contacts k ON k.shard_id = $1"
    }

    /// True if sessions of a replaced router may still be active at a shard.
    pub fn must_fence(shard: ShardId) -> bool {
        run "SELECT FROM docshard_catalog.contacts k WHERE k.shard_id = $1 AND (pg_catalog.to_jsonb(k) ->> 'must_fence')::pg_catalog.bool"
    }

    fn set_fencing(shard: ShardId, must: bool) {
        run "UPDATE docshard_catalog.contacts SET must_fence = $2 WHERE shard_id = $1"
    }

    /// True if the table has the columns `epoch` and `must_fence`: since release 0.4.0.
    pub fn have_epochs() -> bool {
        run "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'docshard_catalog.contacts'::pg_catalog.regclass AND attname = 'epoch'"
    }

    /// Sets the epoch of this router at a shard. It counts only while it is higher than the router's own epoch.
    pub fn set_epoch(shard: ShardId, epoch: i64) {
        run "UPDATE docshard_catalog.contacts SET epoch = $2 WHERE shard_id = $1"
    }

    /// The known positions of shards.
    pub fn all() -> Vec<Contact> { select "" }

    /// What is wrong with a shard; None if the shard has no contact.
    pub fn trouble(shard: ShardId) -> Option<Trouble> { select "WHERE shard_id = $1" }

    /// Sets a shard's position, and removes the reason for which the shard was refused. Does nothing for a shard that was removed.
    pub fn set_position(shard: ShardId, position: Position) {
        run "INSERT INTO docshard_catalog.contacts (shard_id, timeline, counter, at) \
             SELECT id, $2, $3, pg_catalog.clock_timestamp() FROM docshard_catalog.shards WHERE id = $1 \
             ON CONFLICT (shard_id) DO UPDATE SET timeline = excluded.timeline, counter = excluded.counter, at = excluded.at, \
               trouble = NULL, is_ahead = false",
            [shard, position.timeline, position.counter]
    }

    /// Like [`set_position`], but only if the shard's position is `known`; else returns false. The updated row stays locked until the
    /// transaction ends.
    pub fn replace_position(shard: ShardId, known: Position, position: Position) -> bool {
        run "UPDATE docshard_catalog.contacts SET timeline = $4, counter = $5, at = pg_catalog.clock_timestamp(), trouble = NULL, \
             is_ahead = false WHERE shard_id = $1 AND timeline = $2 AND counter = $3",
            [shard, known.timeline, known.counter, position.timeline, position.counter]
    }

    /// Sets why a shard is refused, and whether the reason is that the shard is ahead of this catalog. False if a reason is set already, or if
    /// the shard's position is no longer `known`.
    pub fn set_trouble(shard: ShardId, known: Position, trouble: &str, is_ahead: bool) -> bool {
        run "UPDATE docshard_catalog.contacts SET trouble = $4, is_ahead = $5 \
             WHERE shard_id = $1 AND timeline = $2 AND counter = $3 AND trouble IS NULL",
            [shard, known.timeline, known.counter, trouble, is_ahead]
    }

    /// Records that writes from `since` until now may have been lost; None: from the beginning. Extends an earlier record.
    pub fn set_lost_writes(shard: ShardId, since: Option<&str>) -> Option<Trouble> {
        run format!(
            "UPDATE docshard_catalog.contacts SET lost_from = CASE WHEN $2 IS NOT NULL AND (lost_to IS NULL OR lost_from IS NOT NULL) \
             THEN least(lost_from, $2::pg_catalog.timestamptz) END, \
             lost_to = pg_catalog.clock_timestamp() WHERE shard_id = $1 RETURNING {}", Trouble::columns()
        )
    }

    /// Removes the record of lost writes.
    pub fn clear_lost_writes(shard: ShardId) {
        run "UPDATE docshard_catalog.contacts SET lost_from = NULL, lost_to = NULL WHERE shard_id = $1"
    }
}
