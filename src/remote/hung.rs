//! Shards that do not respond: how long one may be silent before it is probed, and which ones a worker avoids.
//!
//! A worker serves all shards one after the other, so it waits for a shorter time than a client's session. After a shard has not
//! responded, connections to it fail at once for a while. When a shard becomes silent or responds again, this is logged once and
//! returned by [`changes`].
//!
//! A process may also limit the whole time of each of its statements ([`limit`]), as a shard could answer for ever, or byte by byte. In a
//! worker the limit is always set: it is the value that `docshard.worker_timeout` has when the statement is sent. A shard whose statement
//! takes longer counts as one that does not respond.

use super::options;
use crate::pg::error::{Error, Result};
use crate::pg::process;
use docshard_core::cluster::silence::Resting;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// In milliseconds; 0: no limit.
static SHARD_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(30_000);

/// In milliseconds.
static WORKER_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(300_000);

/// The longest time that a worker waits for data before it probes the shard, for the answer to a probe, or for a connection.
const WORKER_PATIENCE: Duration = Duration::from_secs(4);

pub(super) const NO_CONNECTION: &str = "a new connection gets no answer";

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
    static LIMIT: Cell<Option<Duration>> = const { Cell::new(None) };
    static RESTING: RefCell<Resting> = RefCell::default();
    static CHANGES: RefCell<Vec<Change>> = const { RefCell::new(Vec::new()) };
}

/// A shard that has become silent, or responds again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub shard: String,
    /// None if it responds
    pub error: Option<String>,
}

/// Only superusers may change the setting, as a low value causes connections to shards.
pub(super) fn init_gucs() {
    GucRegistry::define_int_guc(
        c"docshard.shard_timeout",
        c"Sets how long to wait for a silent shard before it is probed over another connection.",
        c"If the probe fails, too, the statement ends with an error. 0 means no limit.",
        &SHARD_TIMEOUT,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"docshard.worker_timeout",
        c"Sets how long a statement of the background worker at a shard may take.",
        c"After that the shard counts as one that does not respond, and is skipped for a while. A statement of a move may take 12 times as long.",
        &WORKER_TIMEOUT,
        1_000,
        i32::MAX / 12,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}

/// The setting `docshard.worker_timeout`.
pub fn worker_timeout() -> Duration {
    Duration::from_millis(u64::try_from(WORKER_TIMEOUT.get()).unwrap_or(0))
}

/// A limit for statements. When it is dropped, the previous limit applies again.
#[derive(Debug)]
pub struct Limited(Option<Duration>);

impl Drop for Limited {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

/// Limits the time of each statement that this process sends to a shard from now on. In a worker, this replaces `docshard.worker_timeout`.
pub fn limit(time: Duration) -> Limited {
    Limited(LIMIT.replace(Some(time)))
}

/// The deadline and the time limit of a statement that is sent now; None: no limit.
pub(super) fn due() -> Option<(Instant, Duration)> {
    let limit = LIMIT.get().or_else(|| IS_WORKER.get().then(worker_timeout))?;
    Some((Instant::now() + limit, limit))
}

/// Shows in the worker's activity that it waits for a shard.
pub(super) fn show_wait(shard: &str) {
    if IS_WORKER.get() {
        process::show_place(shard);
    }
}

/// Marks this process as a worker that serves all shards one after the other.
pub fn become_worker() {
    IS_WORKER.set(true);
}

/// How long a shard may be silent before it is probed; None: for ever.
pub(super) fn patience() -> Option<Duration> {
    let limit = Duration::from_millis(u64::try_from(SHARD_TIMEOUT.get()).unwrap_or(0));
    let limit = if IS_WORKER.get() { limit.min(WORKER_PATIENCE) } else { limit };
    Some(limit).filter(|limit| !limit.is_zero())
}

/// How long connecting to one host, or probing it, may take.
pub(super) fn connecting(options: &[(String, String)]) -> Duration {
    let (time, is_given) = options::connect_timeout(options);
    match patience() {
        Some(patience) if IS_WORKER.get() || !is_given => time.min(patience),
        _ => time,
    }
}

/// Refuses a shard that this worker avoids.
pub(super) fn check(shard: &str) -> Result<()> {
    if !IS_WORKER.get() {
        return Ok(());
    }
    RESTING.with_borrow(|resting| match resting.refused(shard, Instant::now()) {
        None => Ok(()),
        Some(why) => Err(does_not_answer(shard, why).with_sqlstate(sqlstate::UNABLE_TO_CONNECT)),
    })
}

pub(super) fn note_silence(shard: &str, why: &str) {
    if IS_WORKER.get() && RESTING.with_borrow_mut(|resting| resting.hung(shard, why, Instant::now())) {
        pgrx::log!("docshard worker: shard \"{shard}\" does not answer and is skipped for a while: {why}");
        changed(shard, Some(why));
    }
}

pub(super) fn note_answer(shard: &str) {
    if IS_WORKER.get() && RESTING.with_borrow_mut(|resting| resting.answered(shard)) {
        pgrx::log!("docshard worker: shard \"{shard}\" answers again");
        changed(shard, None);
    }
}

fn changed(shard: &str, error: Option<&str>) {
    CHANGES.with_borrow_mut(|all| all.push(Change { shard: shard.to_owned(), error: error.map(str::to_owned) }));
}

/// The changes since the last call, in a worker.
pub fn changes() -> Vec<Change> {
    CHANGES.take()
}

/// The silent shards, in a worker, with the reasons.
pub fn silent() -> Vec<(String, String)> {
    RESTING.with_borrow(|resting| resting.all().map(|(shard, why)| (shard.to_owned(), why.to_owned())).collect())
}

pub fn is_silent(shard: &str) -> bool {
    RESTING.with_borrow(|resting| resting.is_silent(shard))
}

/// True if the worker need not log this error: it is a timeout of a shard that was logged when it became silent.
pub fn is_known(error: &Error) -> bool {
    IS_WORKER.get() && is_timeout(error) && error.shards.iter().any(|shard| is_silent(shard))
}

/// True for an error of the kind that [`does_not_answer`] makes.
pub(super) fn is_timeout(error: &Error) -> bool {
    error.kind == Kind::NetworkTimeout
}

pub(super) fn does_not_answer(shard: &str, why: &str) -> Error {
    error!(Kind::NetworkTimeout, "shard \"{shard}\" does not answer: {why}").at_shard(shard)
}
