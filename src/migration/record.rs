//! The catalog row of a move, with the rules that are not in [`crate::store::migrations`].

use crate::catalog::cluster::identity;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store::migrations::{self, Range, begin_step, last_removals, set_attempts, set_error, standing};
pub use crate::store::migrations::{
    Migration as Record, advance, busy_shards, decided, get as load, give_up, insert, next_id, outcome, set_estimate,
    set_progress, set_stall, undecided, undecided_at, unfinished,
};
use crate::store::resharding;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::State;
use docshard_core::cluster::take_over;
use docshard_core::error::{Kind, error};
use serde_json::json;

/// The number of hand-overs that are tried before a move is aborted.
pub const MAX_ATTEMPTS: i32 = 20;
/// Moves with fewer documents say little about a donor's delete rate.
const MIN_MEASURED: i64 = 1000;
/// Number of moves whose delete rate is averaged.
const MEASURED_MOVES: i64 = 10;

/// Returns the ranges whose moves were given up after [`MAX_ATTEMPTS`] hand-overs, less than an hour ago. The balancer skips
/// these ranges.
pub fn resting_ranges() -> Result<Vec<Range>> {
    migrations::recently_given_up(MAX_ATTEMPTS)
}

/// True if the catalog has a move of that number, or a change of a collection's layout.
pub fn is_in_catalog(id: i64) -> Result<bool> {
    Ok(migrations::exists(id)? || resharding::unfinished()?.iter().any(|change| change.id == id))
}

/// True if this router has begun the move. After a take-over, it may not know whether the former router has decided its moves: see
/// [`abort`].
pub fn is_of_this_router(id: i64) -> Result<bool> {
    Ok(take_over::is_move_of(identity::coordinator()?.epoch, id))
}

/// True if a process of this server has begun the move, so that the catalog shows whether it is decided. The catalog may lack the decisions
/// of another server: a router that this one has replaced, one whose last commits were lost with it, or one whose files were copied.
pub fn is_of_this_server(id: i64) -> Result<bool> {
    Ok(is_of_this_router(id)? && migrations::is_of_this_server(id)?)
}

/// Returns the moves that the balancer of this router has begun and that are not decided, oldest first, in the active snapshot.
pub fn running_of_balancer() -> Result<Vec<i64>> {
    let running = migrations::running_of_balancer()?;
    running.into_iter().filter_map(|id| is_of_this_router(id).map(|is| is.then_some(id)).transpose()).collect()
}

/// Aborts a running move. False if the move is not running, or if another server has begun it, as that server may have decided it.
pub fn abort(id: i64) -> Result<bool> {
    Ok(is_of_this_server(id)? && advance(id, State::Running, State::Aborted)?)
}

/// Returns an error if no move has this number, which a user has given.
pub fn require(id: i64) -> Result<()> {
    if migrations::exists(id)? {
        return Ok(());
    }
    Err(error!(Kind::NoMatchingDocument, "there is no migration {id}")
        .with_hint("The view docshard.migrations shows them."))
}

pub fn require_running(id: i64) -> Result<()> {
    if standing(id)?.state == State::Running { Ok(()) } else { Err(interrupted()) }
}

/// Stores that a running move begins its next step.
pub fn note_step(id: i64, step: &str) -> Result<()> {
    if begin_step(id, step)? { Ok(()) } else { Err(interrupted()) }
}

/// Stores the number of failed hand-overs; the move catches up again.
pub fn note_attempt(id: i64, attempts: i32) -> Result<()> {
    set_attempts(id, attempts)?;
    note_step(id, "catching up")
}

/// Returns how many documents per millisecond a donor has deleted, over its last [`MEASURED_MOVES`] moves of at least [`MIN_MEASURED`]
/// documents; None if there are none.
pub fn delete_rate(donor: ShardId) -> Result<Option<f64>> {
    let removals = last_removals(donor, MIN_MEASURED, MEASURED_MOVES)?;
    let documents: i64 = removals.iter().map(|removal| removal.documents).sum();
    let millis: i64 = removals.iter().map(|removal| removal.millis).sum();
    Ok((!removals.is_empty()).then(|| documents as f64 / millis.max(1) as f64))
}

/// If a move was given up after [`MAX_ATTEMPTS`] hand-overs, logs the reason in the changelog. Called before the abort is
/// committed.
pub fn log_if_given_up(id: i64, cause: &Error) -> Result<()> {
    let summary = migrations::summary(id)?;
    if summary.attempts < MAX_ATTEMPTS {
        return Ok(());
    }
    let record = load(id)?;
    let key = cache::get(&record.namespace)?.key.clone();
    let details = json!({
        "migration": id,
        "from": summary.donor.unwrap_or_default(),
        "to": summary.recipient.unwrap_or_default(),
        "min": key.bound_to_json(&record.min),
        "max": key.bound_to_json(&record.max),
        "attempts": summary.attempts,
        "errmsg": cause.message_without_values(),
    });
    change::log("moveChunk.error", Some(&record.namespace), &details)
}

/// Stores an error, unless one is stored: the first one is the cause.
pub fn note_error(id: i64, error: &Error) -> Result<()> {
    set_error(id, &error.text_without_values())
}

/// The error of a move that was aborted.
pub(super) fn interrupted() -> Error {
    error!(Kind::Interrupted, "the move was aborted on request").with_hint(
        "The request came from docshard.abort_migration(), from docshard.stop_balancer() after its \
             timeout, or from a change of the collection's indexes or chunks that had waited for the balancer for a \
             second.",
    )
}
