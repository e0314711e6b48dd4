//! The durable row of a move, in `docshard_catalog.migrations`.
//!
//! Functions here run in the caller's transaction. INVARIANT: [`advance`] is the only one that changes the state, it
//! compares before it sets, and it refuses what `core::migration` does not allow; but for [`give_up`], when a shard is lost.

use crate::catalog::{cache, change, cluster};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::spi::param::Param;
use crate::pg::spi::{self, Row};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::State;
use docshard_core::error::Kind;
use serde_json::json;

/// A row.
#[derive(Clone, Debug)]
pub struct Record {
    /// its number, part of every name that the move leaves on shards
    pub id: i64,
    /// the collection's token
    pub token: i64,
    /// the collection
    pub collection: i32,
    /// its name
    pub namespace: String,
    /// the chunk's lower bound
    pub min: Vec<u8>,
    /// the chunk's upper bound, as in the catalog
    pub max: Vec<u8>,
    /// who gives
    pub donor: ShardId,
    /// who takes
    pub recipient: ShardId,
    /// the version that both shards get
    pub version: i64,
    /// the donor's version before
    pub donor_version: i64,
    /// the recipient's version before
    pub recipient_version: i64,
    /// where the move stands
    pub state: State,
    /// documents moved
    pub documents: i64,
    /// the bytes that were copied, before compression
    pub bytes: i64,
}

const COLUMNS: &str = "id, token, collection_id, namespace, min, max, donor, recipient, version, donor_version, \
                       recipient_version, state, documents, bytes";

fn from_row(row: &Row) -> Result<Record> {
    let state = State::parse(row.text(11))
        .ok_or_else(|| Error::new(Kind::InternalError, format!("unknown state of a migration: {}", row.text(11))))?;
    Ok(Record {
        id: row.i64(0),
        token: row.i64(1),
        collection: row.i32(2),
        namespace: row.text(3).to_owned(),
        min: row.bytes(4),
        max: row.bytes(5),
        donor: row.i32(6),
        recipient: row.i32(7),
        version: row.i64(8),
        donor_version: row.i64(9),
        recipient_version: row.i64(10),
        state,
        documents: row.i64(12),
        bytes: row.i64(13),
    })
}

/// A key above the lower bounds of all chunks that end at `max` or before: an unsharded collection's only chunk ends where
/// it begins, at the empty key.
pub fn end_of(max: &[u8]) -> &[u8] {
    if max.is_empty() { &[0] } else { max }
}

/// A range of a collection whose move was given up, and that the balancer leaves alone for a while.
#[derive(Clone, Debug)]
pub struct RestingRange {
    collection: i32,
    min: Vec<u8>,
    max: Vec<u8>,
}

impl RestingRange {
    /// True if a chunk is in the range, or a part of it is.
    pub fn meets(&self, collection: i32, min: &[u8], max: &[u8]) -> bool {
        self.collection == collection && min < self.max.as_slice() && self.min.as_slice() < max
    }
}

/// The ranges whose moves were given up after [`super::stall::ATTEMPTS`] attempts, less than an hour ago.
///
/// # Errors
/// Internal ones.
pub fn resting_ranges() -> Result<Vec<RestingRange>> {
    let rows = spi::query(
        "SELECT collection_id, min, max FROM docshard_catalog.migrations WHERE state = 'done' AND step = 'aborted' \
         AND attempts >= $1 AND updated_at > pg_catalog.clock_timestamp() - interval '1 hour'",
        &[Param::Int4(super::stall::ATTEMPTS)],
    )?;
    Ok(rows.iter().map(|row| RestingRange { collection: row.i32(0), min: row.bytes(1), max: row.bytes(2) }).collect())
}

/// One row.
///
/// # Errors
/// `InternalError` if it is gone.
pub fn load(id: i64) -> Result<Record> {
    let rows =
        spi::query(&format!("SELECT {COLUMNS} FROM docshard_catalog.migrations WHERE id = $1"), &[Param::Int8(id)])?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, format!("migration {id} is gone")))?;
    from_row(row)
}

/// True if a move of that number is this router's, or the catalog knows it. Numbers begin with the epoch of the router: see
/// `catalog::takeover`.
///
/// # Errors
/// Internal ones.
pub fn is_own(id: i64) -> Result<bool> {
    if id >= cluster::first_number(cluster::coordinator()?.epoch) {
        return Ok(true);
    }
    let rows = spi::query("SELECT FROM docshard_catalog.migrations WHERE id = $1", &[Param::Int8(id)])?;
    Ok(!rows.is_empty())
}

/// One row, that a user named.
///
/// # Errors
/// `NoMatchingDocument` if there is none.
pub fn find(id: i64) -> Result<()> {
    let rows = spi::query("SELECT FROM docshard_catalog.migrations WHERE id = $1", &[Param::Int8(id)])?;
    if rows.is_empty() {
        return Err(Error::new(Kind::NoMatchingDocument, format!("there is no migration {id}"))
            .with_hint("The view docshard.migrations shows them."));
    }
    Ok(())
}

/// Where a move stands, and whether the chunk has, or will have, its new owner.
///
/// # Errors
/// `InternalError` if it is gone.
pub fn fate(id: i64) -> Result<(State, bool)> {
    let rows = spi::query(
        "SELECT state, state IN ('committed', 'moved') OR (state = 'done' AND step = 'moved') \
         FROM docshard_catalog.migrations WHERE id = $1",
        &[Param::Int8(id)],
    )?;
    rows.first()
        .and_then(|row| Some((State::parse(row.text(0))?, row.bool(1))))
        .ok_or_else(|| Error::new(Kind::InternalError, format!("migration {id} is gone")))
}

/// The balancer's moves that are not decided, in the active snapshot.
///
/// # Errors
/// Internal ones.
pub fn undecided_of_balancer() -> Result<Vec<i64>> {
    let rows = spi::read(
        "SELECT id FROM docshard_catalog.migrations WHERE state = 'running' AND reason <> 'manual' ORDER BY id",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.i64(0)).collect())
}

/// The shards that take part in moves which may still change who owns what.
///
/// # Errors
/// Internal ones.
pub fn shards_of_undecided() -> Result<Vec<ShardId>> {
    let rows = spi::query(
        "SELECT unnest(ARRAY[donor, recipient]) FROM docshard_catalog.migrations WHERE state IN ('running', 'committed')",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.i32(0)).collect())
}

/// Every row that is not done, oldest first.
///
/// # Errors
/// Internal ones.
pub fn unfinished() -> Result<Vec<Record>> {
    let sql = format!("SELECT {COLUMNS} FROM docshard_catalog.migrations WHERE state <> 'done' ORDER BY id");
    spi::query(&sql, &[])?.iter().map(from_row).collect()
}

/// The moves of a collection that may still change who owns what, oldest first.
///
/// # Errors
/// Internal ones.
pub fn undecided(collection: i32) -> Result<Vec<i64>> {
    let rows = spi::query(
        "SELECT id FROM docshard_catalog.migrations WHERE collection_id = $1 AND state IN ('running', 'committed') \
         ORDER BY id",
        &[Param::Int4(collection)],
    )?;
    Ok(rows.iter().map(|row| row.i64(0)).collect())
}

/// The moves of a collection that are decided but not yet in the map, oldest first; and whether that was so half a second
/// ago.
///
/// # Errors
/// Internal ones.
pub fn decided(collection: i32) -> Result<Vec<(bool, Record)>> {
    let sql = format!(
        "SELECT {COLUMNS}, clock_timestamp() - step_at > interval '0.5 s' FROM docshard_catalog.migrations \
         WHERE collection_id = $1 AND state = 'committed' ORDER BY id"
    );
    spi::query(&sql, &[Param::Int4(collection)])?.iter().map(|row| Ok((row.bool(14), from_row(row)?))).collect()
}

/// The move of a collection in which one of these shards takes part, and which may still change who owns what; None if
/// there is none. Whoever asks holds the collection's row locked.
///
/// # Errors
/// Internal ones.
pub fn undecided_at(collection: i32, shards: [ShardId; 2]) -> Result<Option<i64>> {
    let rows = spi::query(
        "SELECT id FROM docshard_catalog.migrations WHERE collection_id = $1 AND state IN ('running', 'committed') \
         AND (donor IN ($2, $3) OR recipient IN ($2, $3)) ORDER BY id LIMIT 1",
        &[Param::Int4(collection), Param::Int4(shards[0]), Param::Int4(shards[1])],
    )?;
    Ok(rows.first().map(|row| row.i64(0)))
}

/// Writes a new row in state *running*.
///
/// # Errors
/// Internal ones.
pub fn insert(record: &Record, reason: &str) -> Result<()> {
    spi::execute(
        "INSERT INTO docshard_catalog.migrations (id, token, collection_id, namespace, min, max, donor, recipient, \
         version, donor_version, recipient_version, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        &[
            Param::Int8(record.id),
            Param::Int8(record.token),
            Param::Int4(record.collection),
            Param::Text(&record.namespace),
            Param::Bytea(&record.min),
            Param::Bytea(&record.max),
            Param::Int4(record.donor),
            Param::Int4(record.recipient),
            Param::Int8(record.version),
            Param::Int8(record.donor_version),
            Param::Int8(record.recipient_version),
            Param::Text(reason),
        ],
    )?;
    Ok(())
}

/// A number for a new row.
///
/// # Errors
/// Internal ones.
pub fn next_id() -> Result<i64> {
    let rows = spi::query("SELECT nextval(pg_get_serial_sequence('docshard_catalog.migrations', 'id'))", &[])?;
    rows.first().map(|row| row.i64(0)).ok_or_else(|| Error::new(Kind::InternalError, "no number for a migration"))
}

/// How long the present step has taken, in SQL; nothing if the clock was set back meanwhile.
const STEP_MS: &str = "greatest(extract(epoch FROM clock_timestamp() - step_at) * 1000, 0)::int8";
/// Notes how long the present step took, in SQL.
const STEP_ENDS: &str = "step_at = clock_timestamp(), durations = durations || jsonb_build_object(step, \
    coalesce((durations ->> step)::int8, 0) + greatest(extract(epoch FROM clock_timestamp() - step_at) * 1000, 0)::int8)";

/// Compares and sets the state; false if the row is in another state than `from`.
///
/// # Errors
/// `InternalError` for a step that the states do not allow.
pub fn advance(id: i64, from: State, to: State) -> Result<bool> {
    if !from.may_become(to) {
        return Err(Error::new(Kind::InternalError, format!("a migration cannot go from {from} to {to}")));
    }
    let compared = if fault::is_off("compare_and_set") { "$2 <> ''" } else { "state = $2" };
    // The step of a row that is done tells what became of the move; what hindered one that succeeded is forgotten.
    let answer = spi::execute(
        &format!(
            "UPDATE docshard_catalog.migrations SET state = $3, updated_at = clock_timestamp(), {STEP_ENDS}, \
         step = CASE WHEN $3 = 'done' THEN step ELSE $3 END, error = CASE WHEN $3 = 'moved' THEN NULL ELSE error END, \
         stall_ms = stall_ms + CASE WHEN $3 = 'moved' THEN {STEP_MS} ELSE 0 END WHERE id = $1 AND {compared}"
        ),
        &[Param::Int8(id), Param::Text(from.name()), Param::Text(to.name())],
    )?;
    Ok(answer.processed == 1)
}

/// Ends a move that is decided, and of which neither the donor's side nor the recipient's can be completed, because one of the
/// two is lost: the range stays with its donor.
///
/// # Errors
/// Internal ones.
pub fn give_up(id: i64) -> Result<()> {
    spi::execute(
        &format!(
            "UPDATE docshard_catalog.migrations SET state = 'done', step = 'aborted', updated_at = clock_timestamp(), \
             error = coalesce(error, 'a shard was removed as lost'), {STEP_ENDS} WHERE id = $1 AND state = 'committed'"
        ),
        &[Param::Int8(id)],
    )
    .map(drop)
}

/// Makes sure that a move has not been aborted.
///
/// # Errors
/// `Interrupted` if it does not run any more.
pub fn require_running(id: i64) -> Result<()> {
    let (state, _) = fate(id)?;
    if state == State::Running { Ok(()) } else { Err(super::abort::interrupted()) }
}

/// Notes how far a running move is.
///
/// # Errors
/// `Interrupted` if it does not run any more.
pub fn note_step(id: i64, step: &str) -> Result<()> {
    let noted = spi::execute(
        &format!(
            "UPDATE docshard_catalog.migrations SET step = $2, updated_at = clock_timestamp(), {STEP_ENDS} \
             WHERE id = $1 AND state = 'running'"
        ),
        &[Param::Int8(id), Param::Text(step)],
    )?;
    if noted.processed == 1 { Ok(()) } else { Err(super::abort::interrupted()) }
}

/// Notes how many documents are expected.
///
/// # Errors
/// Internal ones.
pub fn note_estimate(id: i64, documents: i64) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.migrations SET estimated = $2 WHERE id = $1",
        &[Param::Int8(id), Param::Int8(documents)],
    )?;
    Ok(())
}

/// Notes how much has been copied.
///
/// # Errors
/// Internal ones.
pub fn note_progress(id: i64, documents: i64, bytes: i64, rounds: i32, lag: i64) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.migrations SET documents = $2, bytes = $3, rounds = $4, lag = $5, \
         updated_at = clock_timestamp() WHERE id = $1",
        &[Param::Int8(id), Param::Int8(documents), Param::Int8(bytes), Param::Int4(rounds), Param::Int8(lag)],
    )?;
    Ok(())
}

/// Notes for how long writers have waited when it is decided, in milliseconds, and how long the donor took to remove the
/// range's documents, in microseconds.
///
/// # Errors
/// Internal ones.
pub fn note_stall(id: i64, millis: i64, removal_micros: i64) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.migrations SET stall_ms = $2, \
         durations = durations || pg_catalog.jsonb_build_object('removing', $3 / 1000) WHERE id = $1",
        &[Param::Int8(id), Param::Int8(millis), Param::Int8(removal_micros)],
    )?;
    Ok(())
}

/// How many documents a millisecond a donor has removed in its last moves; None if nothing is known.
///
/// # Errors
/// Internal ones.
pub fn removal_rate(donor: ShardId) -> Result<Option<f64>> {
    let rows = spi::query(
        "SELECT pg_catalog.sum(documents)::text, greatest(pg_catalog.sum(removing), 1)::text FROM (\
           SELECT documents, (durations ->> 'removing')::int8 AS removing FROM docshard_catalog.migrations \
           WHERE donor = $1 AND state IN ('moved', 'done') AND documents >= 1000 AND durations ? 'removing' \
           ORDER BY id DESC LIMIT 10) AS last",
        &[Param::Int4(donor)],
    )?;
    let number = |column| rows.first().and_then(|row| row.opt_text(column)?.parse::<f64>().ok());
    Ok(number(0).zip(number(1)).map(|(documents, millis)| documents / millis))
}

/// Notes that a hand-over was given up, for the so-manieth time: the move catches up again.
///
/// # Errors
/// `Interrupted` if it does not run any more.
pub fn note_attempt(id: i64, attempts: i32) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.migrations SET attempts = $2 WHERE id = $1",
        &[Param::Int8(id), Param::Int4(attempts)],
    )?;
    note_step(id, "catching up")
}

/// Writes into the changelog why a move has ended that was tried for as often as it may be. Before the abort is committed.
///
/// # Errors
/// Internal ones.
pub fn log_if_given_up(id: i64, cause: &Error) -> Result<()> {
    let rows = spi::query(
        "SELECT m.attempts, donor.name, recipient.name FROM docshard_catalog.migrations m \
         LEFT JOIN docshard_catalog.shards donor ON donor.id = m.donor \
         LEFT JOIN docshard_catalog.shards recipient ON recipient.id = m.recipient WHERE m.id = $1",
        &[Param::Int8(id)],
    )?;
    let Some(row) = rows.first().filter(|row| row.i32(0) >= super::stall::ATTEMPTS) else { return Ok(()) };
    let record = load(id)?;
    let key = cache::get(&record.namespace)?.key.clone();
    let details = json!({
        "migration": id,
        "from": row.opt_text(1).unwrap_or_default(),
        "to": row.opt_text(2).unwrap_or_default(),
        "min": key.bound_to_json(&record.min),
        "max": key.bound_to_json(&record.max),
        "attempts": row.i32(0),
        "errmsg": cause.message,
    });
    change::log("moveChunk.error", Some(&record.namespace), &details)
}

/// Notes what went wrong. The first error of an attempt stays: it is the cause.
///
/// # Errors
/// Internal ones.
pub fn note_error(id: i64, error: &Error) -> Result<()> {
    let text = match &error.context {
        Some(context) => format!("{} ({context})", error.message),
        None => error.message.clone(),
    };
    spi::execute(
        "UPDATE docshard_catalog.migrations SET error = coalesce(error, $2), updated_at = clock_timestamp() WHERE id = $1",
        &[Param::Int8(id), Param::Text(&text)],
    )?;
    Ok(())
}

/// The names that a move leaves on shards; all begin with what [`super::recovery::sweep`] looks for.
pub mod names {
    use super::Record;

    /// The beginning of the prepared transactions' names in this cluster.
    pub fn gid_prefix(cluster: i64) -> String {
        format!("docshard_m_{cluster}_")
    }
    /// What the donor prepares.
    pub fn donor_gid(cluster: i64, id: i64) -> String {
        format!("docshard_m_{cluster}_{id}_t")
    }
    /// What the recipient prepares.
    pub fn recipient_gid(cluster: i64, id: i64) -> String {
        format!("docshard_m_{cluster}_{id}_r")
    }
    /// The application name of the move's sessions.
    pub fn application(cluster: i64, id: i64) -> String {
        format!("docshard m {cluster} {id}")
    }
    /// The recipient's foreign table over the donor's table.
    pub fn source(record: &Record) -> String {
        format!("docshard_data.m{}_source", record.id)
    }
    /// The recipient's foreign table over what is captured at the donor.
    pub fn changes(record: &Record) -> String {
        format!("docshard_data.m{}_changes", record.id)
    }
    /// The recipient's foreign table over what the donor says of itself.
    pub fn identity(record: &Record) -> String {
        format!("docshard_data.m{}_identity", record.id)
    }
    /// The recipient's table of documents that have arrived.
    pub fn staging(record: &Record) -> String {
        format!("docshard_data.m{}_staging", record.id)
    }
}
