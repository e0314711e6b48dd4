//! Starting, stopping, setting and watching the balancer.

use super::arguments::Arguments;
use crate::balancer::{self, control};
use crate::catalog::cluster::{check_may_change, check_router};
use crate::catalog::{collections, namespace, settings};
use crate::pg::error::{Error, Result};
use crate::worker;
use docshard_core::cluster::balancer::{Compliance, Reason};
use docshard_core::error::Kind;
use serde_json::{Value as Json, json};
use std::time::Duration;

/// Lets the balancer split and move chunks.
pub fn start() -> Result<Json> {
    check_may_change()?;
    worker::require_preloaded()?;
    control::start()?;
    Ok(json!({"ok": 1}))
}

/// Stops the balancer and waits until the chunks that it moves have arrived; a move that has not within so many milliseconds
/// is aborted.
pub fn stop(timeout_ms: i64) -> Result<Json> {
    check_may_change()?;
    let stopped = control::stop(Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)))?;
    if !stopped.quiet {
        pgrx::warning!("the balancer is off, but after {timeout_ms} ms something is still under way");
    }
    let mut answer = json!({"stopped": stopped.quiet});
    if stopped.aborted > 0 {
        answer["aborted"] = stopped.aborted.into();
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

/// What the balancer does: mode, whether it is in a round, the last error.
pub fn status() -> Result<Json> {
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
        "resting": state.resting,
        "preloaded": hint.is_none(),
        "ok": 1,
    });
    if settings::active_window()?.is_some() {
        status["activeWindow"] = json!({
            "start": settings::get("active_window_start")?, "stop": settings::get("active_window_stop")?,
            "open": control::is_in_window()?,
        });
    }
    if let Some(hint) = hint {
        status["hint"] = hint.into();
    }
    Ok(status)
}

/// Whether a collection is where the balancer wants it, and the gravest reason if not: zoneViolation, draining, or
/// chunksImbalance. It is measured at the shards.
pub fn collection_status(ns: &str) -> Result<Json> {
    check_router()?;
    namespace::split(ns)?;
    let found = balancer::collection_status(ns)?;
    let mut status = json!({
        "chunkSize": found.chunk_size_mb,
        "balancing": found.balance,
        "balancerCompliant": found.compliance == Compliance::Compliant,
    });
    if let Compliance::Violated(reason) = found.compliance {
        status["firstComplianceViolation"] = match reason {
            Reason::Zone => "zoneViolation",
            Reason::Draining => "draining",
            Reason::Evenness => "chunksImbalance",
        }
        .into();
    }
    status["ok"] = 1.into();
    Ok(status)
}

fn change(ns: &str, change: impl FnOnce() -> Result<()>) -> Result<Json> {
    check_may_change()?;
    namespace::split(ns)?;
    change()?;
    worker::wake_at_commit();
    Ok(json!({"ok": 1}))
}

/// Lets the balancer move a collection's chunks for evenness and zones, or keeps it from that, except off a shard that is being
/// removed.
pub fn set_balancing(ns: &str, on: bool) -> Result<Json> {
    change(ns, || collections::set_balancing(ns, on))
}

/// Sets how a collection is balanced. Options: chunkSize (MiB; 0 or null goes back to the cluster's chunk_size_mb).
///
/// # Errors
/// `InvalidOptions`; those of [`collections::set_chunk_size`].
pub fn configure(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    change(ns, || {
        let size = match options.integer("chunkSize")? {
            None | Some(0) => None,
            Some(mb @ 1..=1024) => i32::try_from(mb).ok(),
            Some(other) => {
                let message = format!("chunkSize is from 1 to 1024 MiB, not {other}");
                return Err(Error::new(Kind::InvalidOptions, message));
            }
        };
        // What is not named stays as it is.
        if options.is_named("chunkSize") { collections::set_chunk_size(ns, size) } else { Ok(()) }
    })
}
