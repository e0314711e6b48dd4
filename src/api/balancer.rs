//! Starting, stopping and watching the balancer.

use crate::balancer::{self, control};
use crate::catalog::shards::{check_may_change, check_router};
use crate::catalog::{collections, namespace, settings};
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::router::options::Options;
use crate::worker;
use docshard_core::cluster::balancer::{Compliance, Reason};
use docshard_core::error::Kind;
use pgrx::prelude::*;
use serde_json::json;
use std::time::Duration;

/// Lets the balancer split and move chunks.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn start_balancer() -> Json {
    let run = || -> Result<Json> {
        check_may_change()?;
        worker::require_preloaded()?;
        control::start()?;
        Ok(Json(json!({"ok": 1}).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Stops the balancer and waits until the chunks that it moves have arrived; a move that has not within so many milliseconds
/// is aborted.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn stop_balancer(timeout_ms: default!(i64, "60000")) -> Json {
    let run = || -> Result<Json> {
        check_may_change()?;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let stopped = control::stop(timeout)?;
        if !stopped.quiet {
            pgrx::warning!("the balancer is off, but after {timeout_ms} ms something is still under way");
        }
        let mut answer = json!({"stopped": stopped.quiet});
        if stopped.aborted > 0 {
            answer["aborted"] = stopped.aborted.into();
        }
        answer["ok"] = 1.into();
        Ok(Json(answer.to_string()))
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
        Ok(Json(status.to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Whether a collection is where the balancer wants it, and the gravest reason if not: zoneViolation, draining, or
/// chunksImbalance. It is measured at the shards.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn balancer_collection_status(ns: &str) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
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
        Ok(Json(status.to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Lets the balancer move a collection's chunks for evenness and zones again.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn enable_balancing(ns: &str) -> Json {
    set_balancing(ns, true).unwrap_or_else(|e| e.raise())
}

/// Keeps the balancer from moving a collection's chunks, except off a shard that is being removed.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn disable_balancing(ns: &str) -> Json {
    set_balancing(ns, false).unwrap_or_else(|e| e.raise())
}

fn set_balancing(ns: &str, on: bool) -> Result<Json> {
    check_may_change()?;
    check(ns)?;
    collections::set_balancing(ns, on)?;
    worker::wake_at_commit();
    Ok(Json(json!({"ok": 1}).to_string()))
}

/// Sets how a collection is balanced. Options: chunkSize (MiB; 0 or null goes back to the cluster's chunk_size_mb).
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn configure_collection_balancing(ns: &str, options: Json) -> Json {
    let run = || -> Result<Json> {
        check_may_change()?;
        check(ns)?;
        let json = options.parse()?;
        let options = Options::of(&json, "configure_collection_balancing", &["chunkSize"])?;
        let size = match options.integer("chunkSize")? {
            None | Some(0) => None,
            Some(mb @ 1..=1024) => i32::try_from(mb).ok(),
            Some(other) => {
                let message = format!("chunkSize is from 1 to 1024 MiB, not {other}");
                return Err(Error::new(Kind::InvalidOptions, message));
            }
        };
        // What is not named stays as it is.
        if json.get("chunkSize").is_some() {
            collections::set_chunk_size(ns, size)?;
        }
        worker::wake_at_commit();
        Ok(Json(json!({"ok": 1}).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

fn check(ns: &str) -> Result<()> {
    check_router()?;
    namespace::split(ns).map(|_| ())
}
