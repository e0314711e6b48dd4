//! Shards that do not answer: how long one may say nothing before it is asked, and, in a worker, which are left alone.
//!
//! A worker has duties at all shards, one after the other. So it is less patient than a client's session, and a shard that has
//! not answered it rests: connecting there fails at once until the rest is over. The log is told once when a shard stops
//! answering, and once when it is back; the worker learns of both by [`changes`].

use super::options;
use crate::pg::error::{Error, Result};
use docshard_core::cluster::silence::Resting;
use docshard_core::error::Kind;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// The setting `docshard.shard_timeout`, in milliseconds; 0: no limit.
static SHARD_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(30_000);

/// How long a worker waits at most, be it for a sign of a shard, an answer to the question whether it lives, or a connection.
const WORKER_PATIENCE: Duration = Duration::from_secs(4);

/// Why a shard is thought not to answer.
pub(super) const NO_CONNECTION: &str = "a new connection gets no answer";

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
    static RESTING: RefCell<Resting> = RefCell::default();
    static CHANGES: RefCell<Vec<Change>> = const { RefCell::new(Vec::new()) };
}

/// A shard of which a worker has noticed that it does not answer any more, or does again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// its name
    pub shard: String,
    /// why that is thought; None if it answers
    pub error: Option<String>,
}

/// Registers the setting; called once, from `_PG_init`. As it makes connections to shards, superusers set it.
pub(super) fn init_gucs() {
    GucRegistry::define_int_guc(
        c"docshard.shard_timeout",
        c"How long a shard may say nothing while it is waited for, before it is asked over another connection.",
        c"If it does not answer there either, the statement ends with an error. 0 waits for ever.",
        &SHARD_TIMEOUT,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
}

/// This process is a worker that serves all shards, one after the other.
pub fn become_worker() {
    IS_WORKER.set(true);
}

/// How long a shard may say nothing; None: for ever.
pub(super) fn patience() -> Option<Duration> {
    let limit = Duration::from_millis(u64::try_from(SHARD_TIMEOUT.get()).unwrap_or(0));
    let limit = if IS_WORKER.get() { limit.min(WORKER_PATIENCE) } else { limit };
    Some(limit).filter(|limit| !limit.is_zero())
}

/// How long connecting to one host, or asking it whether it answers, may take.
pub(super) fn connecting(options: &[(String, String)]) -> Duration {
    let limit = options::connect_timeout(options);
    match patience() {
        Some(patience) if IS_WORKER.get() || !limit.is_given => limit.time.min(patience),
        _ => limit.time,
    }
}

/// The error of a shard that does not answer, as this worker knows.
pub(super) fn check(shard: &str) -> Result<()> {
    if !IS_WORKER.get() {
        return Ok(());
    }
    RESTING.with_borrow(|resting| match resting.refused(shard, Instant::now()) {
        None => Ok(()),
        Some(why) => Err(Error { sqlstate: *b"08001", ..does_not_answer(shard, why) }),
    })
}

/// The shard has not answered.
pub(super) fn note_silence(shard: &str, why: &str) {
    if IS_WORKER.get() && RESTING.with_borrow_mut(|resting| resting.hung(shard, why, Instant::now())) {
        pgrx::log!("docshard worker: shard \"{shard}\" does not answer, and is left alone for a while: {why}");
        changed(shard, Some(why));
    }
}

/// The shard has answered.
pub(super) fn note_answer(shard: &str) {
    if IS_WORKER.get() && RESTING.with_borrow_mut(|resting| resting.answered(shard)) {
        pgrx::log!("docshard worker: shard \"{shard}\" answers again");
        changed(shard, None);
    }
}

fn changed(shard: &str, error: Option<&str>) {
    CHANGES.with_borrow_mut(|all| all.push(Change { shard: shard.to_owned(), error: error.map(str::to_owned) }));
}

/// What this worker has noticed since the last call.
pub fn changes() -> Vec<Change> {
    CHANGES.take()
}

/// The shards that have not answered this worker, each with why that is thought.
pub fn silent() -> Vec<(String, String)> {
    RESTING.with_borrow(|resting| resting.all().map(|(shard, why)| (shard.to_owned(), why.to_owned())).collect())
}

/// True if the shard has not answered this worker when it was asked last.
pub fn is_silent(shard: &str) -> bool {
    RESTING.with_borrow(|resting| resting.is_silent(shard))
}

/// True if an error tells no more than that a shard does not answer, which the worker's log has been told.
pub fn is_known(error: &Error) -> bool {
    IS_WORKER.get()
        && is_timeout(error)
        && silent().iter().any(|(shard, _)| error.message.contains(&format!("\"{shard}\"")))
}

/// True if a shard, or a connection that was being made, was given up as it did not answer.
pub(super) fn is_timeout(error: &Error) -> bool {
    error.detail == does_not_answer("", "").detail
}

/// The error of a shard that does not answer.
pub(super) fn does_not_answer(shard: &str, why: &str) -> Error {
    Error::new(Kind::NetworkTimeout, format!("shard \"{shard}\" does not answer: {why}"))
        .with_context(format!("shard \"{shard}\""))
}
