//! Starting, stopping and watching the balancer.

use crate::balancer::control;
use crate::catalog::shards::check_router;
use crate::pg::error::Result;
use crate::pg::json::Json;
use crate::worker;
use pgrx::prelude::*;
use serde_json::json;
use std::time::Duration;

/// Lets the balancer split and move chunks.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn start_balancer() -> Json {
    let run = || -> Result<Json> {
        check_router()?;
        worker::require_preloaded()?;
        control::start()?;
        Ok(Json(json!({"ok": 1}).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Stops the balancer and waits until the chunk that it moves has arrived, at most so many milliseconds.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn stop_balancer(timeout_ms: default!(i64, "60000")) -> Json {
    let run = || -> Result<Json> {
        check_router()?;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let stopped = control::stop(timeout)?;
        if !stopped {
            pgrx::warning!("the balancer is off, but after {timeout_ms} ms a chunk is still being moved");
        }
        Ok(Json(json!({"stopped": stopped, "ok": 1}).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// What the balancer does: mode, whether it is in a round, the last error.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn balancer_status() -> Json {
    let run = || -> Result<Json> {
        check_router()?;
        let state = control::state()?;
        let hint = worker::require_preloaded().err().and_then(|error| error.hint);
        let mut status = json!({
            "mode": if state.enabled { "full" } else { "off" },
            "inBalancerRound": state.in_step,
            "action": state.action,
            "lastRound": state.last_round,
            "lastError": state.last_error,
            "lastErrorAt": state.last_error_at,
            "preloaded": hint.is_none(),
            "ok": 1,
        });
        if let Some(hint) = hint {
            status["hint"] = hint.into();
        }
        Ok(Json(status.to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}
