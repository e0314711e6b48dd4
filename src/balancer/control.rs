//! Starts, stops and reports the balancer.
//!
//! The setting `balancer_enabled` switches it on. Its current action is in the catalog table `balancer_state`, which has one
//! row. The row is written only when something changes or once a minute, so that an idle cluster writes little.

use crate::catalog::cluster::settings;
use crate::migration;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{process, spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::balancer_state::{self, BalancerState};
use docshard_core::cluster::balancer::time_of_day;
use std::time::{Duration, Instant};

/// The number of the lock `Tag::Worker` that the balancer's process holds while a step (a split, merge or move) runs.
pub(super) const STEP: i32 = 3;
/// The number of the lock `Tag::Worker` that sessions share while the balancer must begin no step.
pub(super) const STOP: i32 = 4;

pub struct State {
    pub enabled: bool,
    /// A split, merge or move is running.
    pub in_step: bool,
    pub stored: BalancerState,
}

/// True if the balancer is on, and within its active window.
pub fn may_work() -> Result<bool> {
    Ok(settings::boolean(settings::BALANCER)? && is_in_window()?)
}

/// True if the current time of day is within the active window, or there is no window.
pub fn is_in_window() -> Result<bool> {
    let Some(window) = settings::active_window()? else { return Ok(true) };
    let rows = spi::query("SELECT pg_catalog.to_char(pg_catalog.clock_timestamp(), 'HH24:MI')", &[])?;
    Ok(rows.first().and_then(|row| time_of_day(row.text(0))).is_none_or(|now| window.contains(now)))
}

pub fn state() -> Result<State> {
    let in_step = !lock::is_free(Tag::Worker(STEP));
    let mut stored = balancer_state::find()?.unwrap_or_default();
    stored.action = stored.action.filter(|_| in_step);
    Ok(State { enabled: settings::boolean(settings::BALANCER)?, in_step, stored })
}

/// Switches the balancer on when this transaction commits.
pub fn start() -> Result<()> {
    settings::set(settings::BALANCER, Some("true"))?;
    process::wake_at_commit();
    Ok(())
}

pub struct Stopped {
    /// No step is running any more.
    pub quiet: bool,
    /// The number of aborted moves.
    pub aborted: usize,
}

/// The time limit for an aborted move to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Switches the balancer off, and waits until the running step has ended. Moves that take longer than `timeout` are aborted. No
/// other step begins until this transaction ends.
pub fn stop(timeout: Duration) -> Result<Stopped> {
    settings::set(settings::BALANCER, Some("false"))?;
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
        stopped.quiet = await_quiet(ABORT_TIMEOUT);
    }
    Ok(stopped)
}

/// Waits until no step is running; false on a timeout.
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

pub(super) fn is_stop_wanted() -> bool {
    !lock::is_free(Tag::Worker(STOP))
}

/// Shows the worker's current action in `pg_stat_activity` and in `balancer_status()`.
pub(super) fn show(action: &str) {
    process::show_activity(Some(&format!("docshard: {action}")));
    if let Err(error) = transaction::run(|| balancer_state::set_action(action)) {
        pgrx::log!("docshard balancer: {}", error.message);
    }
}
