//! Moves and recovery as jobs of background workers, for functions that a user calls.

use super::abort::{Aborted, abort};
use super::request::{MoveRequest, MoveResult, RangeRequest};
use super::{coordinator, range, recovery};
use crate::catalog::cluster;
use crate::catalog::move_exclusion::ABORT;
use crate::pg::error::{Error, Result};
use crate::pg::process::job;
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::error::Kind;
use serde_json::{Value, json};

const MOVE: &str = "move chunk";
const MOVE_RANGE: &str = "move range";
const RECOVER: &str = "recover moves";
const COMPLETE: &str = "complete a move";

/// Makes the jobs known; called from `_PG_init`.
pub fn init() {
    job::register(MOVE, |request| Ok(outcome_to_json(&coordinator::run(&request_from_json(request)?)?)));
    job::register(MOVE_RANGE, |request| {
        let (outcome, moves) = range::run_range(&range_from_json(request)?)?;
        Ok(json!([outcome_to_json(&outcome), moves]))
    });
    job::register(RECOVER, |_| Ok(json!(recovery::recover()?)));
    job::register(COMPLETE, |id| Ok(json!(recovery::recover_one(id.as_i64().unwrap_or(0))?)));
    job::register(ABORT, |id| {
        let aborted = abort(id.as_i64().unwrap_or(0))?;
        Ok(json!([aborted.now, aborted.moved, aborted.unfinished]))
    });
}

/// Moves a chunk in a background worker and waits for it, obeying cancel, which aborts the move.
///
/// # Errors
/// As [`super::run`].
pub fn move_and_wait(request: &MoveRequest) -> Result<MoveResult> {
    let title = format!("docshard: moving a chunk of {}", request.namespace);
    Ok(outcome(&job::run(MOVE, &title, &request_to_json(request))?))
}

/// Starts a move in a background worker of its own, one of several; `what` comes back with its end, of which
/// [`outcome`] tells.
///
/// # Errors
/// `ExceededMemoryLimit` (53200) if no worker is free.
pub fn start_move<T>(jobs: &mut job::Jobs<T>, request: &MoveRequest, what: T) -> Result<()> {
    let title = format!("docshard: moving a chunk of {}", request.namespace);
    jobs.start(MOVE, &title, &request_to_json(request), what)
}

/// As [`move_and_wait`], for a range; returns also how many moves that were.
///
/// # Errors
/// As [`range::run_range`].
pub fn move_range_and_wait(request: &RangeRequest) -> Result<(MoveResult, i64)> {
    let title = format!("docshard: moving a range of {}", request.namespace);
    let RangeRequest { namespace, min, max, to, force_jumbo } = request;
    let request = json!({"namespace": namespace, "min": min, "max": max, "to": to, "force": force_jumbo});
    let answer = job::run(MOVE_RANGE, &title, &request)?;
    Ok((outcome(&answer[0]), answer[1].as_i64().unwrap_or(0)))
}

/// Ends a move, in a background worker, unless it is decided: then waits for its completion.
///
/// # Errors
/// `NoMatchingDocument`; `ExceededMemoryLimit` (53200) if no worker is free.
pub fn abort_and_wait(id: i64) -> Result<Aborted> {
    let answer = job::run(ABORT, "docshard: aborting a move", &json!(id))?;
    let flag = |at: usize| answer[at] == true;
    Ok(Aborted { now: flag(0), moved: flag(1), unfinished: flag(2) })
}

/// Completes or takes back, in a background worker, what coordinators left; waits for it. Returns how many moves could
/// not be ended.
///
/// # Errors
/// `ExceededMemoryLimit` (53200) if no worker is free.
pub fn recover_and_wait() -> Result<i64> {
    let left = job::run(RECOVER, "docshard: recovering moves", &Value::Null)?;
    Ok(left.as_i64().unwrap_or(0))
}

/// Lets a background worker complete a decided move, without waiting for its end; unless a process works on it already, or
/// somebody else is starting one: however many wait for the move, there is one worker for it. Runs in the caller's
/// transaction.
///
/// # Errors
/// As [`recover_and_wait`].
pub fn complete_in_background(id: i64) -> Result<()> {
    let helper = Tag::Helper(id);
    // A copy of the router leaves the move to the router.
    cluster::require_router()?;
    if recovery::is_in_hands(id)? || !lock::try_acquire(helper, Mode::Exclusive) {
        return Ok(());
    }
    // One may have been started since the look. Who starts one keeps the lock until the worker has the migration's, so
    // that who gets this lock sees that. An ERROR gives it back with the transaction.
    let started = recovery::is_in_hands(id).and_then(|in_hands| {
        if in_hands {
            return Ok(());
        }
        let title = "docshard: completing a move";
        job::run_detached(COMPLETE, title, &json!(id), || recovery::is_in_hands(id))
    });
    lock::release(helper, Mode::Exclusive);
    started
}

fn request_to_json(request: &MoveRequest) -> Value {
    json!({
        "namespace": request.namespace,
        "min": request.min,
        "max": request.max,
        "to": request.to,
        "force": request.force_jumbo,
        "rate": request.bytes_per_second,
        "reason": request.reason,
    })
}

fn outcome_to_json(outcome: &MoveResult) -> Value {
    let MoveResult { moved, documents, bytes, millis } = outcome;
    json!({"moved": moved, "documents": documents, "bytes": bytes, "millis": millis})
}

/// What a move came to, from the answer of its job.
pub fn outcome(json: &Value) -> MoveResult {
    let number = |name: &str| json[name].as_i64().unwrap_or(0);
    MoveResult {
        moved: json["moved"] == true,
        documents: number("documents"),
        bytes: number("bytes"),
        millis: number("millis"),
    }
}

fn malformed() -> Error {
    Error::new(Kind::InternalError, "a background worker got a malformed request")
}

fn bytes_from_json(json: &Value) -> Option<Vec<u8>> {
    json.as_array()?.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok())).collect()
}

fn range_from_json(json: &Value) -> Result<RangeRequest> {
    let parse = || {
        Some(RangeRequest {
            namespace: json["namespace"].as_str()?.to_owned(),
            min: bytes_from_json(&json["min"]),
            max: bytes_from_json(&json["max"]),
            to: i32::try_from(json["to"].as_i64()?).ok()?,
            force_jumbo: json["force"].as_bool()?,
        })
    };
    parse().ok_or_else(malformed)
}

fn request_from_json(json: &Value) -> Result<MoveRequest> {
    let parse = || {
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        Some(MoveRequest {
            namespace: text("namespace")?,
            min: bytes_from_json(&json["min"])?,
            max: bytes_from_json(&json["max"])?,
            to: i32::try_from(json["to"].as_i64()?).ok()?,
            force_jumbo: json["force"].as_bool()?,
            bytes_per_second: json["rate"].as_u64()?,
            reason: text("reason")?,
        })
    };
    parse().ok_or_else(malformed)
}
