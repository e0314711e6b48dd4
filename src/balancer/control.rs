//! Starting, stopping and watching the balancer: what the worker tells others, and what others ask of it.
//!
//! The setting `balancer_enabled` says whether it works. Its doings are in `docshard_catalog.balancer_state`, one row,
//! written only when something changes or a minute has gone, so that an idle cluster stays quiet.

use crate::catalog::settings;
use crate::migration;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{process, spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::cluster::balancer::time_of_day;
use std::time::{Duration, Instant};

/// The role (`Tag::Worker`) of whoever splits or moves for the balancer at this moment.
pub(super) const STEP: i32 = 3;
/// Shared by those who want the balancer to begin nothing.
pub(super) const STOP: i32 = 4;

/// What the balancer does.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// it may work
    pub enabled: bool,
    /// a split or a move is under way
    pub in_step: bool,
    /// what it does
    pub action: Option<String>,
    /// when its last round ended, as PostgreSQL prints it
    pub last_round: Option<String>,
    /// the last error
    pub last_error: Option<String>,
    /// when that was
    pub last_error_at: Option<String>,
    /// shards and collections that are left alone for a while, with the error of each: a JSON array
    pub resting: serde_json::Value,
}

/// True if the balancer is on, and this is a time of day when it works.
///
/// # Errors
/// Internal ones.
pub fn may_work() -> Result<bool> {
    Ok(settings::boolean("balancer_enabled")? && is_in_window()?)
}

/// True if this is a time of day when the balancer works.
///
/// # Errors
/// Internal ones.
pub fn is_in_window() -> Result<bool> {
    let Some(window) = settings::active_window()? else { return Ok(true) };
    let rows = spi::query("SELECT pg_catalog.to_char(pg_catalog.clock_timestamp(), 'HH24:MI')", &[])?;
    Ok(rows.first().and_then(|row| time_of_day(row.text(0))).is_none_or(|now| window.contains(now)))
}

/// The present state.
///
/// # Errors
/// Internal ones.
pub fn state() -> Result<State> {
    let rows = spi::query(
        "SELECT action, last_round_at::text, last_error, last_error_at::text, resting::text \
         FROM docshard_catalog.balancer_state",
        &[],
    )?;
    let in_step = !lock::is_free(Tag::Worker(STEP));
    let mut state = State { enabled: settings::boolean("balancer_enabled")?, in_step, ..State::default() };
    if let Some(row) = rows.first() {
        let text = |column| row.opt_text(column).map(str::to_owned);
        state.action = text(0).filter(|_| in_step);
        (state.last_round, state.last_error, state.last_error_at) = (text(1), text(2), text(3));
        state.resting = serde_json::from_str(row.text(4)).unwrap_or_default();
    }
    Ok(state)
}

/// Lets the balancer work, from this transaction's commit on.
///
/// # Errors
/// Internal ones.
pub fn start() -> Result<()> {
    settings::set("balancer_enabled", Some("true"))?;
    process::wake_at_commit();
    Ok(())
}

/// How a stop went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// nothing is under way any more
    pub quiet: bool,
    /// so many moves had to be aborted
    pub aborted: usize,
}

/// How long an aborted move may take to end.
const END: Duration = Duration::from_secs(10);

/// Stops the balancer, and waits until the step under way has ended; a move that has not within `timeout` is aborted.
/// Until this transaction ends no other step begins.
///
/// # Errors
/// `ExceededMemoryLimit` (53200) if no worker is free to abort a move.
pub fn stop(timeout: Duration) -> Result<Stopped> {
    settings::set("balancer_enabled", Some("false"))?;
    lock::acquire(Tag::Worker(STOP), Mode::Shared);
    let mut stopped = Stopped { quiet: await_quiet(timeout), aborted: 0 };
    if !stopped.quiet {
        let running = {
            let _snapshot = ActiveSnapshot::latest();
            migration::running_of_balancer()?
        };
        for id in running {
            stopped.aborted += usize::from(migration::jobs::abort_and_wait(id)?.now);
        }
        stopped.quiet = await_quiet(END);
    }
    Ok(stopped)
}

/// Waits until no step is under way; false if one is when the time is over.
fn await_quiet(timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while !lock::is_free(Tag::Worker(STEP)) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep_ms(20);
    }
    true
}

pub(super) fn stop_is_not_wanted() -> bool {
    lock::is_free(Tag::Worker(STOP))
}

/// Shows what the worker does.
pub(super) fn show(action: &str) {
    process::show_activity(Some(&format!("docshard: {action}")));
    let noted = transaction::run(|| {
        spi::execute(
            "INSERT INTO docshard_catalog.balancer_state (action) VALUES ($1) \
             ON CONFLICT (one) DO UPDATE SET action = excluded.action",
            &[Param::Text(action)],
        )
    });
    if let Err(error) = noted {
        pgrx::log!("docshard balancer: {}", error.message);
    }
}

/// Notes a round's end, and who rests: a JSON array; if all is well, the last error is forgotten. A clock that was set back
/// does not keep it from being noted.
pub(super) fn note_round(busy: bool, resting: &serde_json::Value, well: bool) -> Result<()> {
    let resting = if resting.is_null() { "[]".to_owned() } else { resting.to_string() };
    spi::execute(
        "INSERT INTO docshard_catalog.balancer_state AS state (last_round_at, resting) \
         VALUES (pg_catalog.now(), $2::text::jsonb) \
         ON CONFLICT (one) DO UPDATE SET last_round_at = excluded.last_round_at, action = NULL, \
            resting = excluded.resting, last_error = CASE WHEN NOT $3 THEN state.last_error END, \
            last_error_at = CASE WHEN NOT $3 THEN state.last_error_at END \
         WHERE $1 OR ($3 AND state.last_error IS NOT NULL) OR state.action IS NOT NULL OR state.last_round_at IS NULL OR state.resting <> excluded.resting \
            OR state.last_round_at NOT BETWEEN pg_catalog.now() - interval '1 minute' AND pg_catalog.now()",
        &[Param::Bool(busy), Param::Text(&resting), Param::Bool(well)],
    )?;
    Ok(())
}

/// The last error is cured, if its text begins like this.
pub(super) fn forget_error(start: &str) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.balancer_state SET last_error = NULL, last_error_at = NULL \
         WHERE pg_catalog.starts_with(last_error, $1)",
        &[Param::Text(start)],
    )?;
    Ok(())
}

pub(super) fn note_error(text: &str) -> Result<()> {
    spi::execute(
        "INSERT INTO docshard_catalog.balancer_state (last_error, last_error_at) VALUES ($1, pg_catalog.now()) \
         ON CONFLICT (one) DO UPDATE SET last_error = excluded.last_error, last_error_at = excluded.last_error_at",
        &[Param::Text(text)],
    )?;
    Ok(())
}
