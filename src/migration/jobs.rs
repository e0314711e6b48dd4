//! Runs moves and recovery as jobs of background workers, for functions that a user calls.

use super::abort::{Aborted, abort};
use super::request::{MoveRequest, MoveResult, RangeRequest};
use super::{adopt, coordinator, range, recovery};
use crate::catalog::cluster::identity;
use crate::catalog::cluster::move_exclusion::ABORT;
use crate::pg::error::Result;
use crate::pg::process::job::{self, from_json, to_json};
use crate::storage::lock::{self, Mode, Tag};
use serde_json::{Value, json};

const MOVE: &str = "move chunk";
const MOVE_RANGE: &str = "move range";
const RECOVER: &str = "recover moves";
const ADOPT: &str = "adopt a shard";
const COMPLETE: &str = "complete a move";

/// Registers the jobs; called from `_PG_init`.
pub fn init() {
    job::register(MOVE, |request| to_json(coordinator::run(&from_json(request)?)?));
    job::register(MOVE_RANGE, |request| to_json(range::run_range(&from_json(request)?)?));
    job::register(RECOVER, |_| to_json(recovery::recover()?));
    job::register(COMPLETE, |id| to_json(recovery::recover_one(from_json(id)?)?));
    job::register(ADOPT, |name| adopt::run(from_json(name)?));
    job::register(ABORT, |id| to_json(abort(from_json(id)?)?));
}

/// Moves a chunk in a background worker and waits for it. A cancel aborts the move.
pub fn move_and_wait(request: &MoveRequest) -> Result<MoveResult> {
    let title = format!("docshard: moving a chunk of {}", request.namespace);
    result(&job::run(MOVE, &title, &to_json(request)?)?)
}

/// Starts a move in a background worker. `jobs` later returns `what` together with the worker's answer, which [`result`] reads.
pub fn start_move<T>(jobs: &mut job::Jobs<T>, request: &MoveRequest, what: T) -> Result<()> {
    let title = format!("docshard: moving a chunk of {}", request.namespace);
    jobs.start(MOVE, &title, &to_json(request)?, what)
}

/// Reads a move's result from the answer of its job.
pub fn result(answer: &Value) -> Result<MoveResult> {
    from_json(answer)
}

/// Moves a range in a background worker and waits for it; also returns how many chunks were moved.
pub fn move_range_and_wait(request: &RangeRequest) -> Result<(MoveResult, i64)> {
    let title = format!("docshard: moving a range of {}", request.namespace);
    from_json(&job::run(MOVE_RANGE, &title, &to_json(request)?)?)
}

/// Aborts a move, in a background worker; if it is decided, waits for its completion.
pub fn abort_and_wait(id: i64) -> Result<Aborted> {
    from_json(&job::run(ABORT, "docshard: aborting a move", &json!(id))?)
}

/// Adopts a shard that has lost commits, in a background worker; returns what was lost and changed.
pub fn adopt_and_wait(shard: &str) -> Result<Value> {
    job::run(ADOPT, "docshard: adopting a shard", &json!(shard))
}

/// Completes or aborts moves without a coordinator, in a background worker, and waits for it. Returns how many moves could not be
/// ended.
pub fn recover_and_wait() -> Result<i64> {
    from_json(&job::run(RECOVER, "docshard: recovering moves", &Value::Null)?)
}

/// Starts a background worker that completes a decided move, without waiting for its end. Does nothing if a process works on the
/// move already, or is about to. Runs in the caller's transaction.
pub fn complete_in_background(id: i64) -> Result<()> {
    let helper = Tag::Helper(id);
    // Only the router completes moves, not a copy of it.
    identity::require_router()?;
    if recovery::is_being_worked_on(id)? || !lock::try_acquire(helper, Mode::Exclusive) {
        return Ok(());
    }
    // Checked again, as another worker may have been started since the first check. The starter of a worker holds the helper
    // lock until the worker has the coordinator lock, so the next holder sees that worker. An ERROR releases the lock with the
    // transaction.
    let started = recovery::is_being_worked_on(id).and_then(|is_worked_on| {
        if is_worked_on {
            return Ok(());
        }
        job::run_detached(COMPLETE, "docshard: completing a move", &json!(id), || recovery::is_being_worked_on(id))
    });
    lock::release(helper, Mode::Exclusive);
    started
}
