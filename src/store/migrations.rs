//! `docshard_catalog.migrations`: a row for each move of a chunk, its durable state.
//!
//! INVARIANT: [`advance`] is the only function that changes the state. It compares before it sets, and refuses what
//! `core::cluster::migration` does not allow. The exception is [`give_up`], for a decided move that cannot be completed.

use crate::pg::error::Result;
use crate::pg::fault;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Outcome, State};
use docshard_core::error::{Kind, error};
use serde_json::Value as Json;

rows! {
    /// A move.
    Migration from "migrations" {
        /// part of every name that the move leaves on shards
        id: i64,
        /// the collection's token
        token: i64,
        collection: i32 = "collection_id",
        /// the collection's name
        namespace: String,
        /// the chunk's lower bound
        min: Vec<u8>,
        /// the chunk's upper bound, as in the catalog
        max: Vec<u8>,
        /// the shard that has the chunk
        donor: ShardId,
        /// the shard that gets it
        recipient: ShardId,
        /// the version that both shards get
        version: i64,
        /// the donor's version before the move
        donor_version: i64,
        /// the recipient's version before the move
        recipient_version: i64,
        state: State,
        /// documents copied
        documents: i64,
        /// bytes copied, before compression
        bytes: i64,
    }

    /// A move that is decided but not yet in the map. The fields without a comment are those of [`Migration`].
    Decided from "migrations" {
        id: i64,
        token: i64,
        min: Vec<u8>,
        max: Vec<u8>,
        donor: ShardId,
        recipient: ShardId,
        version: i64,
        /// the move was decided more than half a second ago
        is_late: bool = "clock_timestamp() - step_at > interval '0.5 s'",
        /// why the move cannot be completed (see [`set_lost`]); None if it can
        lost: Option<String> = "CASE WHEN step = 'lost' THEN error END",
    }

    /// A move that may still change owners.
    Undecided from "migrations" {
        id: i64,
        /// the move is not decided, and can be aborted
        running: bool = "state = 'running'",
        /// no user began the move
        of_balancer: bool = OF_BALANCER,
        /// why only an administrator can end the move (see [`set_in_doubt`]); None if it ends by itself
        doubt: Option<String> = "CASE WHEN state = 'running' AND step = 'in doubt' THEN error END",
    }

    /// The state of a move, and what was decided.
    Standing from "migrations" { state: State, outcome: Outcome }

    /// The changelog's details of a move.
    Summary from "migrations m LEFT JOIN docshard_catalog.shards d ON d.id = m.donor \
                  LEFT JOIN docshard_catalog.shards r ON r.id = m.recipient" {
        /// the donor's name; None if it was removed
        donor: Option<String> = "d.name",
        /// the recipient's name; None if it was removed
        recipient: Option<String> = "r.name",
        /// the duration of each step, in milliseconds
        durations: Json = "m.durations::pg_catalog.text",
        /// how long writers waited, in milliseconds
        stall_ms: i64 = "m.stall_ms",
        /// how often changes were copied
        rounds: i32 = "m.rounds",
        /// how often the hand-over was given up
        attempts: i32 = "m.attempts",
    }

    /// A range of keys of a collection.
    Range from "migrations" { collection: i32 = "collection_id", min: Vec<u8>, max: Vec<u8> }

    /// The number of documents of a range that a donor has removed, and the time that this took, in milliseconds.
    Removal from "migrations" { documents: i64, millis: i64 = "(durations ->> 'removing')::int8" }
}

/// The reasons of moves that users begin.
pub const MANUAL: &str = "manual";
pub const MOVE_PRIMARY: &str = "movePrimary";

/// The SQL condition for a move of the balancer.
const OF_BALANCER: &str = "reason NOT IN ('manual', 'movePrimary')";

/// The SQL condition for a move that may still change owners.
const MAY_CHANGE_OWNERS: &str = "state IN ('running', 'committed')";

/// The SQL expression for the duration of the present step, in milliseconds; 0 if the clock was set back meanwhile.
const STEP_MS: &str = "greatest(extract(epoch FROM clock_timestamp() - step_at) * 1000, 0)::int8";

/// The SQL assignments that end the present step: they add its duration to `durations`.
fn step_ends() -> String {
    format!(
        "updated_at = clock_timestamp(), step_at = clock_timestamp(), \
         durations = durations || jsonb_build_object(step, coalesce((durations ->> step)::int8, 0) + {STEP_MS})"
    )
}

fn present<T>(id: i64, row: Option<T>) -> Result<T> {
    row.ok_or_else(|| error!(Kind::InternalError, "migration {id} is gone"))
}

/// One move.
/// Errors: `InternalError` if there is none of that number.
pub fn get(id: i64) -> Result<Migration> {
    present(id, find(id)?)
}

/// The state of a move, and what was decided.
/// Errors: `InternalError` if there is none of that number.
pub fn standing(id: i64) -> Result<Standing> {
    present(id, find_standing(id)?)
}

/// The changelog's details of a move.
/// Errors: `InternalError` if there is none of that number.
pub fn summary(id: i64) -> Result<Summary> {
    present(id, find_summary(id)?)
}

/// A number for a new move.
pub fn next_id() -> Result<i64> {
    super::next_id("migrations")
}

/// Compares and sets the state; false if the move is in another state than `from`.
/// Errors: `InternalError` for a transition that the states do not allow.
pub fn advance(id: i64, from: State, to: State) -> Result<bool> {
    if from.may_become(to) {
        set_state(id, from, to)
    } else {
        Err(error!(Kind::InternalError, "a migration cannot go from {from} to {to}"))
    }
}

statements! {
    fn find(id: i64) -> Option<Migration> { select "WHERE id = $1" }

    fn find_standing(id: i64) -> Option<Standing> { select "WHERE id = $1" }

    fn find_summary(id: i64) -> Option<Summary> { select "WHERE m.id = $1" }

    /// What was decided about a move; None if there is none of that number.
    pub fn outcome(id: i64) -> Option<Outcome> { run "SELECT outcome FROM docshard_catalog.migrations WHERE id = $1" }

    /// True if there is a move of that number.
    pub fn exists(id: i64) -> bool { run "SELECT FROM docshard_catalog.migrations WHERE id = $1" }

    /// True if this server has inserted the move since it was started. False before the extension is updated, when the column does not exist.
    pub fn is_of_this_server(id: i64) -> bool {
        run "SELECT FROM docshard_catalog.migrations WHERE id = $1 AND (to_jsonb(migrations) ->> 'server_started_at')::pg_catalog.timestamptz \
             = pg_catalog.pg_postmaster_start_time()"
    }

    /// The ranges whose moves were aborted in the last hour after at least `attempts` attempts at the hand-over.
    pub fn recently_given_up(attempts: i32) -> Vec<Range> {
        select "WHERE state = 'done' AND outcome = 'aborted' AND attempts >= $1 \
                AND updated_at > pg_catalog.clock_timestamp() - interval '1 hour'"
    }

    /// The balancer's moves that are not decided, oldest first, in the active snapshot.
    pub fn running_of_balancer() -> Vec<i64> {
        run_active format!("SELECT id FROM docshard_catalog.migrations WHERE state = 'running' AND {OF_BALANCER} ORDER BY id")
    }

    /// The errors of running moves, oldest first, at most ten. Recovery could not end these moves.
    pub fn errors_of_running() -> Vec<String> {
        run "SELECT error FROM docshard_catalog.migrations WHERE state = 'running' AND error IS NOT NULL ORDER BY id LIMIT 10"
    }

    /// The shards that take part in moves which may still change owners.
    pub fn busy_shards() -> Vec<ShardId> {
        run format!("SELECT unnest(ARRAY[donor, recipient]) FROM docshard_catalog.migrations WHERE {MAY_CHANGE_OWNERS}")
    }

    /// Every move that is not done, oldest first.
    pub fn unfinished() -> Vec<Migration> { select "WHERE state <> 'done' ORDER BY id" }

    /// True if there is a move that is not done.
    pub fn exist_unfinished() -> bool { run "SELECT FROM docshard_catalog.migrations WHERE state <> 'done' LIMIT 1" }

    /// The number of moves that are not done and in which a shard takes part.
    pub fn count_unfinished_at(shard: ShardId) -> i64 {
        run "SELECT pg_catalog.count(*) FROM docshard_catalog.migrations \
             WHERE state <> 'done' AND (donor = $1 OR recipient = $1)"
    }

    /// The moves of a collection that may still change owners, oldest first.
    pub fn undecided(collection: i32) -> Vec<i64> {
        run format!("SELECT id FROM docshard_catalog.migrations WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} ORDER BY id")
    }

    /// Like [`undecided`], in the active snapshot, with the properties of [`Undecided`].
    pub fn read_undecided(collection: i32) -> Vec<Undecided> {
        select_active format!("WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} ORDER BY id")
    }

    /// The first move of [`undecided`] in which one of these shards takes part.
    pub fn undecided_at(collection: i32, shards: [ShardId; 2]) -> Option<i64> {
        run format!(
            "SELECT id FROM docshard_catalog.migrations WHERE collection_id = $1 AND {MAY_CHANGE_OWNERS} \
             AND (donor = ANY ($2) OR recipient = ANY ($2)) ORDER BY id LIMIT 1"
        ), [collection, &shards[..]]
    }

    /// True if a move may still bring a part of a collection to a shard.
    pub fn may_bring(collection: i32, recipient: ShardId) -> bool {
        run format!(
            "SELECT FROM docshard_catalog.migrations WHERE collection_id = $1 AND recipient = $2 AND {MAY_CHANGE_OWNERS}"
        )
    }

    /// The moves of a collection that are decided but not yet in the map, oldest first.
    pub fn decided(collection: i32) -> Vec<Decided> {
        select "WHERE collection_id = $1 AND state = 'committed' ORDER BY id"
    }

    /// The number of documents that a committed move has brought to a shard; the move is identified by the version that it gave both
    /// shards. None if there was no such move, or its row was deleted.
    pub fn brought(collection: i32, recipient: ShardId, version: i64) -> Option<i64> {
        run "SELECT documents FROM docshard_catalog.migrations \
             WHERE collection_id = $1 AND recipient = $2 AND version = $3 AND outcome = 'committed'"
    }

    /// Sets the name of the collection in its moves that have not ended.
    pub fn rename_of(collection: i32, namespace: &str) {
        run "UPDATE docshard_catalog.migrations SET namespace = $2 WHERE collection_id = $1 AND state <> 'done'"
    }

    /// Inserts a move in state *running*.
    pub fn insert(migration: &Migration, reason: &str) {
        run "INSERT INTO docshard_catalog.migrations (id, token, collection_id, namespace, min, max, donor, recipient, \
             version, donor_version, recipient_version, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            [
                migration.id, migration.token, migration.collection, migration.namespace, migration.min, migration.max,
                migration.donor, migration.recipient, migration.version, migration.donor_version,
                migration.recipient_version, reason,
            ]
    }

    // The errors of a move that succeeded are removed.
    fn set_state(id: i64, from: State, to: State) -> bool {
        run format!(
            "UPDATE docshard_catalog.migrations SET state = $3, step = $3, {}, \
             outcome = CASE WHEN $3 IN ('committed', 'aborted') THEN $3 ELSE outcome END, error = CASE WHEN $3 = 'moved' OR $3 = 'done' AND outcome = 'committed' THEN NULL ELSE error END, \
             stall_ms = stall_ms + CASE WHEN $3 = 'moved' THEN {STEP_MS} ELSE 0 END WHERE id = $1 AND {}",
            step_ends(),
            if fault::is_off("compare_and_set") { "$2 <> ''" } else { "state = $2" }
        ), [id, from.name(), to.name()]
    }

    /// Ends a decided move that cannot be completed, because a shard, or its part of the move, is lost. The donor keeps the range.
    pub fn give_up(id: i64, why: &str) {
        run format!(
            "UPDATE docshard_catalog.migrations SET state = 'done', step = 'done', outcome = 'aborted', {}, \
             error = coalesce(error, $2) WHERE id = $1 AND state = 'committed'", step_ends()
        )
    }

    /// Records that a shard has lost its part of a decided move, so that the move cannot be completed.
    pub fn set_lost(id: i64, error: &str) {
        run "UPDATE docshard_catalog.migrations SET step = 'lost', error = $2, updated_at = clock_timestamp() \
             WHERE id = $1 AND state = 'committed' AND step <> 'lost'"
    }

    /// Records that only an administrator can find out how a running move ends, and why.
    pub fn set_in_doubt(id: i64, error: &str) {
        run "UPDATE docshard_catalog.migrations SET step = 'in doubt', error = $2, updated_at = clock_timestamp() \
             WHERE id = $1 AND state = 'running' AND (step <> 'in doubt' OR error IS DISTINCT FROM $2)"
    }

    /// Begins another step of a running move; false if the move no longer runs.
    pub fn begin_step(id: i64, step: &str) -> bool {
        run format!(
            "UPDATE docshard_catalog.migrations SET step = $2, {} WHERE id = $1 AND state = 'running'", step_ends()
        )
    }

    /// Sets the expected number of documents.
    pub fn set_estimate(id: i64, documents: i64) {
        run "UPDATE docshard_catalog.migrations SET estimated = $2 WHERE id = $1"
    }

    /// Sets what is wrong with a running move, instead of an earlier error.
    pub fn replace_error(id: i64, error: &str) {
        run "UPDATE docshard_catalog.migrations SET error = $2, updated_at = clock_timestamp() \
             WHERE id = $1 AND state = 'running' AND error IS DISTINCT FROM $2"
    }

    /// Sets how much has been copied.
    pub fn set_progress(id: i64, documents: i64, bytes: i64, rounds: i32, lag: i64) {
        run "UPDATE docshard_catalog.migrations SET documents = $2, bytes = $3, rounds = $4, lag = $5, \
             updated_at = clock_timestamp() WHERE id = $1"
    }

    /// Sets how long writers have waited, in milliseconds, and how long the donor took to remove the range's documents, in
    /// microseconds.
    pub fn set_stall(id: i64, millis: i64, removal_micros: i64) {
        run "UPDATE docshard_catalog.migrations SET stall_ms = $2, \
             durations = durations || pg_catalog.jsonb_build_object('removing', $3 / 1000) WHERE id = $1"
    }

    /// Sets how often the hand-over was given up.
    pub fn set_attempts(id: i64, attempts: i32) {
        run "UPDATE docshard_catalog.migrations SET attempts = $2 WHERE id = $1"
    }

    /// Sets what went wrong, unless an error is set already: the first one is the cause.
    pub fn set_error(id: i64, error: &str) {
        run "UPDATE docshard_catalog.migrations SET error = coalesce(error, $2), updated_at = clock_timestamp() WHERE id = $1"
    }

    /// Deletes at most `limit` moves that ended more than `days` days ago, the oldest first; returns the number of deleted moves.
    pub fn delete_old(days: i32, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.migrations WHERE id IN (SELECT id FROM docshard_catalog.migrations \
               WHERE state = 'done' AND updated_at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)"
    }

    /// What a donor removed in its last moves of at least `fewest_documents` documents, the latest first.
    pub fn last_removals(donor: ShardId, fewest_documents: i64, moves: i64) -> Vec<Removal> {
        select "WHERE donor = $1 AND state IN ('moved', 'done') AND documents >= $2 AND durations ? 'removing' \
                ORDER BY id DESC LIMIT $3"
    }
}
