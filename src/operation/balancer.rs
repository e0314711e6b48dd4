//! Operations that start, stop, configure and observe the balancer.

use super::arguments::Arguments;
use crate::balancer::{self, control};
use crate::catalog::cluster::identity::{check_may_change, check_router};
use crate::catalog::cluster::settings;
use crate::catalog::collections::{collection, namespace, views};
use crate::pg::error::Result;
use crate::pg::process;
use crate::worker;
use docshard_core::cluster::balancer::{Compliance, Reason};
use docshard_core::error::{Kind, bail};
use serde_json::{Value as Json, json};
use std::time::Duration;

pub fn start() -> Result<Json> {
    check_may_change()?;
    worker::require_preloaded()?;
    control::start()?;
    Ok(json!({"ok": 1}))
}

/// Switches the balancer off and waits for its running moves. A move that takes longer than `timeout_ms` is aborted.
pub fn stop(timeout_ms: i64) -> Result<Json> {
    check_may_change()?;
    let stopped = control::stop(Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)))?;
    if !stopped.quiet {
        pgrx::warning!("the balancer is off, but after {timeout_ms} ms a step is still running");
    }
    let mut answer = json!({"stopped": stopped.quiet});
    if stopped.aborted > 0 {
        answer["aborted"] = stopped.aborted.into();
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

pub fn status() -> Result<Json> {
    check_router()?;
    let state = control::state()?;
    let hint = worker::require_preloaded().err().and_then(|error| error.into_parts().hint);
    let mut status = json!({
        "mode": if state.enabled { "full" } else { "off" },
        "inBalancerRound": state.in_step,
        "action": state.stored.action,
        "activity": worker::activity::current()?.map(|activity| json!({
            "what": activity.what, "shard": activity.shard, "since": activity.since, "seconds": activity.seconds,
        })),
        "lastRound": state.stored.last_round,
        "lastError": state.stored.last_error,
        "lastErrorAt": state.stored.last_error_at,
        "resting": state.stored.resting,
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

/// Measures at the shards whether a collection is balanced, and returns the most severe reason if it is not.
pub fn collection_status(ns: &str) -> Result<Json> {
    check_router()?;
    namespace::split(ns)?;
    views::refuse_sharded(ns)?;
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
            Reason::Evenness | Reason::Load => "chunksImbalance",
        }
        .into();
    }
    status["ok"] = 1.into();
    Ok(status)
}

fn change(ns: &str, change: impl FnOnce() -> Result<()>) -> Result<Json> {
    check_may_change()?;
    namespace::split(ns)?;
    views::refuse_sharded(ns)?;
    change()?;
    process::wake_at_commit();
    Ok(json!({"ok": 1}))
}

pub fn set_balancing(ns: &str, on: bool) -> Result<Json> {
    change(ns, || collection::set_balancing(ns, on))
}

pub fn configure(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    change(ns, || {
        let size = match options.integer("chunkSize")? {
            None | Some(0) => None,
            Some(mb @ 1..=1024) => i32::try_from(mb).ok(),
            Some(other) => {
                bail!(Kind::InvalidOptions, "chunkSize must be from 1 to 1024 MiB, not {other}");
            }
        };
        // A missing option leaves its value unchanged.
        if options.is_named("chunkSize") { collection::set_chunk_size(ns, size) } else { Ok(()) }
    })
}
