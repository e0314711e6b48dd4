//! `docshard_catalog.migrations`: a row for each move of a chunk, its durable state.
//!
//! INVARIANT: [`advance`] is the only function that changes the state; it compares before it sets, and refuses what
//! `core::cluster::migration` does not allow. The exception is [`give_up`], for a shard that is lost.

use super::row::{self, Column, row};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Outcome, State};
use docshard_core::error::Kind;
use serde_json::Value as Json;

impl Column for State {
    const TYPE: &'static str = "state of a migration";
    fn decode(value: &[u8]) -> Option<Self> {
        State::parse(std::str::from_utf8(value).ok()?)
    }
}

impl Column for Outcome {
    const TYPE: &'static str = "outcome of a migration";
    fn decode(value: &[u8]) -> Option<Self> {
        Outcome::parse(std::str::from_utf8(value).ok()?)
    }
}

row! {
    /// A move.
    pub struct Migration from "migrations" {
        /// its number, part of every name that the move leaves on shards
        pub id: i64,
        /// the collection's token
        pub token: i64,
        /// the collection
        pub collection: i32 = "collection_id",
        /// its name
        pub namespace: String,
        /// the chunk's lower bound
        pub min: Vec<u8>,
        /// the chunk's upper bound, as in the catalog
        pub max: Vec<u8>,
        /// the shard that has the chunk
        pub donor: ShardId,
        /// the shard that gets it
        pub recipient: ShardId,
        /// the version that both shards get
        pub version: i64,
        /// the donor's version before
        pub donor_version: i64,
        /// the recipient's version before
        pub recipient_version: i64,
        /// how far it has come
        pub state: State,
        /// documents copied
        pub documents: i64,
        /// bytes copied, before compression
        pub bytes: i64,
    }
}

row! {
    /// A move that is decided but not yet in the map.
    pub struct Decided from "migrations" {
        /// its number
        pub id: i64,
        /// the collection's token
        pub token: i64,
        /// the chunk's lower bound
        pub min: Vec<u8>,
        /// the chunk's upper bound
        pub max: Vec<u8>,
        /// the shard that had the chunk
        pub donor: ShardId,
        /// the shard that gets it
        pub recipient: ShardId,
        /// the version that both shards get
        pub version: i64,
        /// it was decided more than half a second ago
        pub is_late: bool = "clock_timestamp() - step_at > interval '0.5 s'",
    }
}

row! {
    /// A move that may still change who owns what.
    pub struct Undecided from "migrations" {
        /// its number
        pub id: i64,
        /// it can be aborted
        pub running: bool = "state = 'running'",
        /// the balancer has begun it
        pub of_balancer: bool = "reason <> 'manual'",
    }
}

row! {
    /// Where a move stands.
    pub struct Standing from "migrations" {
        /// its state
        pub state: State,
        /// what was decided
        pub outcome: Outcome,
    }
}

row! {
    /// What the changelog tells of a move.
    pub struct Summary from "migrations m LEFT JOIN docshard_catalog.shards d ON d.id = m.donor \
                             LEFT JOIN docshard_catalog.shards r ON r.id = m.recipient" {
        /// the donor's name; None if it was removed
        pub donor: Option<String> = "d.name",
        /// the recipient's name; None if it was removed
        pub recipient: Option<String> = "r.name",
        /// milliseconds by step
        pub durations: Json = "m.durations::pg_catalog.text",
        /// how long writers waited, in milliseconds
        pub stall_ms: i64 = "m.stall_ms",
        /// how often changes were copied
        pub rounds: i32 = "m.rounds",
        /// how often the hand-over was given up
        pub attempts: i32 = "m.attempts",
    }
}

row! {
    /// A range of keys of a collection.
    pub struct Range from "migrations" {
        /// the collection
        pub collection: i32 = "collection_id",
        /// the lower bound
        pub min: Vec<u8>,
        /// the upper bound
        pub max: Vec<u8>,
    }
}

row! {
    /// How fast a donor has removed a range.
    pub struct Removal from "migrations" {
        /// documents removed
        pub documents: i64,
        /// the time it took, in milliseconds
        pub millis: i64 = "(durations ->> 'removing')::int8",
    }
}

/// In SQL, true for a move that may still change who owns what.
const MAY_CHANGE_OWNERS: &str = "state IN ('running', 'committed')";

fn gone(id: i64) -> Error {
    Error::new(Kind::InternalError, format!("migration {id} is gone"))
}

/// One move.
///
/// # Errors
/// `InternalError` if there is none of that number.
pub fn get(id: i64) -> Result<Migration> {
    row::find("WHERE id = $1", &[Param::Int8(id)])?.ok_or_else(|| gone(id))
}

/// True if there is a move of that number.
pub fn exists(id: i64) -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.migrations WHERE id = $1", &[Param::Int8(id)])
}

/// Where a move stands.
///
/// # Errors
/// `InternalError` if there is none of that number.
pub fn standing(id: i64) -> Result<Standing> {
    row::find("WHERE id = $1", &[Param::Int8(id)])?.ok_or_else(|| gone(id))
}

/// What the changelog tells of a move.
///
/// # Errors
/// `InternalError` if there is none of that number.
pub fn summary(id: i64) -> Result<Summary> {
    row::find("WHERE m.id = $1", &[Param::Int8(id)])?.ok_or_else(|| gone(id))
}

/// The ranges whose moves were aborted in the last hour after that many attempts at the hand-over.
pub fn recently_given_up(attempts: i32) -> Result<Vec<Range>> {
    row::query(
        "WHERE state = 'done' AND outcome = 'aborted' AND attempts >= $1 \
         AND updated_at > pg_catalog.clock_timestamp() - interval '1 hour'",
        &[Param::Int4(attempts)],
    )
}

/// The balancer's moves that are not decided, oldest first, in the active snapshot.
pub fn running_of_balancer() -> Result<Vec<i64>> {
    row::read_values("migrations", "id", "WHERE state = 'running' AND reason <> 'manual' ORDER BY id", &[])
}

/// The shards that take part in moves which may still change who owns what.
pub fn busy_shards() -> Result<Vec<ShardId>> {
    let rest = format!("WHERE {MAY_CHANGE_OWNERS}");
    row::values("migrations", "unnest(ARRAY[donor, recipient])", &rest, &[])
}

/// Every move that is not done, oldest first.
pub fn unfinished() -> Result<Vec<Migration>> {
    row::query("WHERE state <> 'done' ORDER BY id", &[])
}

/// True if there is a move that is not done.
pub fn exist_unfinished() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.migrations WHERE state <> 'done' LIMIT 1", &[])
}

/// How many moves that are not done a shard takes part in.
pub fn count_unfinished_at(shard: ShardId) -> Result<i64> {
    row::count("migrations", "WHERE state <> 'done' AND (donor = $1 OR recipient = $1)", &[Param::Int4(shard)])
}

/// The moves of a collection that may still change who owns what, oldest first.
pub fn undecided(collection: i32) -> Result<Vec<i64>> {
    let rest = format!("WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} ORDER BY id");
    row::values("migrations", "id", &rest, &[Param::Int4(collection)])
}

/// As [`undecided`], in the active snapshot, with who has begun them.
pub fn read_undecided(collection: i32) -> Result<Vec<Undecided>> {
    row::read(&format!("WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} ORDER BY id"), &[Param::Int4(collection)])
}

/// As [`undecided`], the first one in which one of these shards takes part.
pub fn undecided_at(collection: i32, shards: [ShardId; 2]) -> Result<Option<i64>> {
    row::value(
        "migrations",
        "id",
        &format!(
            "WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} AND (donor IN ($2, $3) OR recipient IN ($2, $3)) \
             ORDER BY id LIMIT 1"
        ),
        &[Param::Int4(collection), Param::Int4(shards[0]), Param::Int4(shards[1])],
    )
}

/// True if a move may still bring a part of a collection to a shard.
pub fn may_bring(collection: i32, recipient: ShardId) -> Result<bool> {
    row::exists(
        &format!(
            "SELECT FROM docshard_catalog.migrations WHERE collection_id = $1 AND recipient = $2 AND {MAY_CHANGE_OWNERS}"
        ),
        &[Param::Int4(collection), Param::Int4(recipient)],
    )
}

/// The moves of a collection that are decided but not yet in the map, oldest first.
pub fn decided(collection: i32) -> Result<Vec<Decided>> {
    row::query("WHERE collection_id = $1 AND state = 'committed' ORDER BY id", &[Param::Int4(collection)])
}

/// Inserts a move in state *running*.
pub fn insert(migration: &Migration, reason: &str) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.migrations (id, token, collection_id, namespace, min, max, donor, recipient, \
         version, donor_version, recipient_version, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        &[
            Param::Int8(migration.id),
            Param::Int8(migration.token),
            Param::Int4(migration.collection),
            Param::Text(&migration.namespace),
            Param::Bytea(&migration.min),
            Param::Bytea(&migration.max),
            Param::Int4(migration.donor),
            Param::Int4(migration.recipient),
            Param::Int8(migration.version),
            Param::Int8(migration.donor_version),
            Param::Int8(migration.recipient_version),
            Param::Text(reason),
        ],
    )
}

/// A number for a new move.
pub fn next_id() -> Result<i64> {
    super::next_id("migrations")
}

/// In SQL, how long the present step has taken; 0 if the clock was set back meanwhile.
const STEP_MS: &str = "greatest(extract(epoch FROM clock_timestamp() - step_at) * 1000, 0)::int8";

/// In SQL, ends the present step: adds the time that it took to `durations`.
fn step_ends() -> String {
    format!(
        "updated_at = clock_timestamp(), step_at = clock_timestamp(), \
         durations = durations || jsonb_build_object(step, coalesce((durations ->> step)::int8, 0) + {STEP_MS})"
    )
}

/// Compares and sets the state; false if the move is in another state than `from`.
///
/// # Errors
/// `InternalError` for a transition that the states do not allow.
pub fn advance(id: i64, from: State, to: State) -> Result<bool> {
    if !from.may_become(to) {
        return Err(Error::new(Kind::InternalError, format!("a migration cannot go from {from} to {to}")));
    }
    let compared = if fault::is_off("compare_and_set") { "$2 <> ''" } else { "state = $2" };
    // The errors of a move that succeeded are forgotten.
    let sql = format!(
        "UPDATE docshard_catalog.migrations SET state = $3, step = $3, {}, \
         outcome = CASE WHEN $3 IN ('committed', 'aborted') THEN $3 ELSE outcome END, error = CASE WHEN $3 = 'moved' THEN NULL ELSE error END, \
         stall_ms = stall_ms + CASE WHEN $3 = 'moved' THEN {STEP_MS} ELSE 0 END WHERE id = $1 AND {compared}",
        step_ends()
    );
    Ok(row::count_changed(&sql, &[Param::Int8(id), Param::Text(from.name()), Param::Text(to.name())])? == 1)
}

/// Ends a decided move of which neither the donor's side nor the recipient's can be completed, because one of the two is
/// lost: the donor keeps the range.
pub fn give_up(id: i64) -> Result<()> {
    let sql = format!(
        "UPDATE docshard_catalog.migrations SET state = 'done', step = 'done', outcome = 'aborted', {}, \
         error = coalesce(error, 'a shard was removed as lost') WHERE id = $1 AND state = 'committed'",
        step_ends()
    );
    row::execute(&sql, &[Param::Int8(id)])
}

/// Begins another step of a running move; false if it does not run any more.
pub fn begin_step(id: i64, step: &str) -> Result<bool> {
    let sql = format!(
        "UPDATE docshard_catalog.migrations SET step = $2, {} WHERE id = $1 AND state = 'running'",
        step_ends()
    );
    Ok(row::count_changed(&sql, &[Param::Int8(id), Param::Text(step)])? == 1)
}

/// Sets how many documents are expected.
pub fn set_estimate(id: i64, documents: i64) -> Result<()> {
    let sql = "UPDATE docshard_catalog.migrations SET estimated = $2 WHERE id = $1";
    row::execute(sql, &[Param::Int8(id), Param::Int8(documents)])
}

/// Sets how much has been copied.
pub fn set_progress(id: i64, documents: i64, bytes: i64, rounds: i32, lag: i64) -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.migrations SET documents = $2, bytes = $3, rounds = $4, lag = $5, \
         updated_at = clock_timestamp() WHERE id = $1",
        &[Param::Int8(id), Param::Int8(documents), Param::Int8(bytes), Param::Int4(rounds), Param::Int8(lag)],
    )
}

/// Sets for how long writers have waited, in milliseconds, and how long the donor took to remove the range's documents, in
/// microseconds.
pub fn set_stall(id: i64, millis: i64, removal_micros: i64) -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.migrations SET stall_ms = $2, \
         durations = durations || pg_catalog.jsonb_build_object('removing', $3 / 1000) WHERE id = $1",
        &[Param::Int8(id), Param::Int8(millis), Param::Int8(removal_micros)],
    )
}

/// Sets how often the hand-over was given up.
pub fn set_attempts(id: i64, attempts: i32) -> Result<()> {
    let sql = "UPDATE docshard_catalog.migrations SET attempts = $2 WHERE id = $1";
    row::execute(sql, &[Param::Int8(id), Param::Int4(attempts)])
}

/// Sets what went wrong, unless it is set already: the first error is the cause.
pub fn set_error(id: i64, error: &str) -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.migrations SET error = coalesce(error, $2), updated_at = clock_timestamp() WHERE id = $1",
        &[Param::Int8(id), Param::Text(error)],
    )
}

/// Deletes moves that ended more than so many days ago, the oldest first; returns how many, at most `limit`.
pub fn delete_old(days: i32, limit: i64) -> Result<u64> {
    row::count_changed(
        "DELETE FROM docshard_catalog.migrations WHERE id IN (SELECT id FROM docshard_catalog.migrations \
           WHERE state = 'done' AND updated_at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)",
        &[Param::Int4(days), Param::Int8(limit)],
    )
}

/// What a donor removed in its last moves, of those with at least that many documents, the latest first.
pub fn last_removals(donor: ShardId, fewest_documents: i64, moves: i64) -> Result<Vec<Removal>> {
    row::query(
        "WHERE donor = $1 AND state IN ('moved', 'done') AND documents >= $2 AND durations ? 'removing' \
         ORDER BY id DESC LIMIT $3",
        &[Param::Int4(donor), Param::Int8(fewest_documents), Param::Int8(moves)],
    )
}
