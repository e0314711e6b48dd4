//! Starting, stopping and watching the balancer: what the worker tells others, and what others ask of it.
//!
//! The setting `balancer_enabled` says whether it works. Its doings are in the store `balancer_state`, one row,
//! written only when something changes or a minute has gone, so that an idle cluster stays quiet.

use crate::catalog::settings;
use crate::migration;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{process, spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::balancer_state;
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
pub fn may_work() -> Result<bool> {
    Ok(settings::boolean("balancer_enabled")? && is_in_window()?)
}

/// True if this is a time of day when the balancer works.
pub fn is_in_window() -> Result<bool> {
    let Some(window) = settings::active_window()? else { return Ok(true) };
    let rows = spi::query("SELECT pg_catalog.to_char(pg_catalog.clock_timestamp(), 'HH24:MI')", &[])?;
    Ok(rows.first().and_then(|row| time_of_day(row.text(0))).is_none_or(|now| window.contains(now)))
}

/// The present state.
pub fn state() -> Result<State> {
    let in_step = !lock::is_free(Tag::Worker(STEP));
    let mut state = State { enabled: settings::boolean("balancer_enabled")?, in_step, ..State::default() };
    if let Some(stored) = balancer_state::find()? {
        state.action = stored.action.filter(|_| in_step);
        state.last_round = stored.last_round;
        (state.last_error, state.last_error_at) = (stored.last_error, stored.last_error_at);
        state.resting = stored.resting;
    }
    Ok(state)
}

/// Lets the balancer work, from this transaction's commit on.
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
    let noted = transaction::run(|| balancer_state::set_action(action));
    if let Err(error) = noted {
        pgrx::log!("docshard balancer: {}", error.message);
    }
}
