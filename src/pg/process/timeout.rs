//! A deadline for part of a statement, by PostgreSQL's `statement_timeout` timer.

use crate::pg::error::{Error, Result, catch};
use docshard_core::error::sqlstate::QUERY_CANCELED;
use docshard_core::error::{Kind, error};
use pgrx::{PgSqlErrorCode, pg_sys};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// The timer's number in `utils/timeout.h`, the same in PostgreSQL 15, 17 and 18.
const STATEMENT_TIMEOUT: c_int = 3;

// None of these raises an ERROR, so none needs pgrx's guard: a timer that cannot be set ends the process.
unsafe extern "C-unwind" {
    fn enable_timeout_at(id: c_int, finish: pg_sys::TimestampTz);
    fn disable_timeout(id: c_int, keep_indicator: bool);
    fn get_timeout_active(id: c_int) -> bool;
    fn get_timeout_indicator(id: c_int, reset_indicator: bool) -> bool;
    fn get_timeout_finish_time(id: c_int) -> pg_sys::TimestampTz;
}

/// A deadline at which the statement is cancelled, as by `statement_timeout`, unless the `Deadline` is dropped before. An earlier
/// `statement_timeout` remains effective.
#[derive(Debug)]
pub struct Deadline {
    at: pg_sys::TimestampTz,
    /// when the timer was to fire before this deadline was set; None if it was not set
    before: Option<pg_sys::TimestampTz>,
    /// this deadline has set the timer
    armed: bool,
}

impl Deadline {
    pub fn after(milliseconds: i64) -> Self {
        // SAFETY: inside a statement; the timer is registered in every backend.
        unsafe {
            let at = pg_sys::GetCurrentTimestamp().saturating_add(milliseconds.saturating_mul(1000));
            let before = get_timeout_active(STATEMENT_TIMEOUT).then(|| get_timeout_finish_time(STATEMENT_TIMEOUT));
            // An expired timeout that has not been served must stay: setting the timer again would report it as a user's cancel.
            let over = get_timeout_indicator(STATEMENT_TIMEOUT, false);
            let armed = !over && before.is_none_or(|before| at < before);
            if armed {
                enable_timeout_at(STATEMENT_TIMEOUT, at);
            }
            Self { at, before, armed }
        }
    }

    /// True if the timer was set for this deadline, and not for an earlier `statement_timeout`, and the deadline has passed.
    fn is_over(&self) -> bool {
        // SAFETY: reads the clock.
        self.armed && unsafe { pg_sys::GetCurrentTimestamp() } >= self.at
    }

    /// Returns the error with which work ended, or `MaxTimeMSExpired` instead if this deadline cancelled it.
    pub fn explain(&self, error: Error) -> Error {
        if error.sqlstate == QUERY_CANCELED && self.is_over() {
            return error!(Kind::MaxTimeMSExpired, "operation exceeded time limit");
        }
        error
    }
}

/// A limit of the time that several pieces of work take together. The time between them does not count.
#[derive(Debug)]
pub struct TimeLimit {
    /// None: no limit
    left: Option<Duration>,
}

impl TimeLimit {
    pub fn of_ms(milliseconds: Option<i64>) -> Self {
        Self { left: milliseconds.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))) }
    }

    /// Runs a part of the work. The caller must raise the error `MaxTimeMSExpired`, as the statement has been cancelled.
    pub fn run<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(left) = self.left else { return work() };
        let began = Instant::now();
        let deadline = Deadline::after(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
        let done = catch(PgSqlErrorCode::ERRCODE_QUERY_CANCELED, work).map_err(|error| deadline.explain(error));
        self.left = Some(left.saturating_sub(began.elapsed()));
        done
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // SAFETY: as in `after`. If an ERROR unwinds to the server's main loop, the main loop disables every timer.
        unsafe {
            disable_timeout(STATEMENT_TIMEOUT, false);
            if let Some(before) = self.before {
                enable_timeout_at(STATEMENT_TIMEOUT, before);
            }
        }
    }
}
