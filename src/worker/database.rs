//! The worker of one database.

use super::activity;
use super::expiry::Expiry;
use super::own_process::{FREE, KEEPER_KIND, WORKER, enter, report};
use super::pulse::Pulse;
use super::samples;
use crate::catalog::cache;
use crate::catalog::cluster::{contacts, field_order, history, identity, nodes, pending_drops, rotation, settings};
use crate::catalog::collections::last_sizes;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::process::settings::limit_lock_waits;
use crate::pg::process::{self, Started};
use crate::pg::transaction;
use crate::remote::hung;
use crate::shard::once;
use crate::storage::lock::{self, Mode};
use crate::store;
use crate::{balancer, indexing, migration, resharding, transactions};
use docshard_core::cluster::standing::Standing;
use docshard_core::error::sqlstate::UNDEFINED_FUNCTION;
use docshard_core::routing::protocol::migration::ForgetNumberedWrites;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The interval at which the worker checks whether its database is being dropped: DROP DATABASE waits five seconds for it.
const POLL: Duration = Duration::from_secs(1);
/// The interval of the [`DUTIES`], unless rounds are more frequent.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval at which numbered writes and excess samples are deleted, and the sizes of collections are stored.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);
/// The most numbered writes that a statement deletes.
const FORGOTTEN: i64 = 10_000;
/// The most such statements of a round at a shard.
const MAX_FORGETTING: usize = 100;
/// The longest pause after failed rounds.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The interval at which the worker checks whether this database is the router, until that is known.
const UNSURE: Duration = Duration::from_millis(100);

/// The lock timeout. A user who may write to a collection can lock its table for any time, which must not stop the worker.
const LOCK_PATIENCE: &CStr = c"2s";

type Duty = (&'static str, &'static str, fn() -> Result<()>);

/// The regular work besides balancing. Each duty has its name in `balancer_status()`, and the prefix of its errors.
const DUTIES: [Duty; 9] = [
    ("resolving transactions", "", || transactions::resolve_all().map(drop)),
    ("ending changes of layout", "", || resharding::recover().map(drop)),
    ("handing over sampled statements", "", samples::hand_over),
    ("removing what moves have left", "", sweep),
    ("completing drops", "completing drops on shards that can be reached again: ", pending_drops::finish),
    ("changing passwords", "changing passwords: ", rotation::finish),
    ("removing failed index builds", "", || indexing::sweep().map(drop)),
    ("looking for the releases of shards", "looking for the releases of shards: ", field_order::begin),
    ("reporting refused hosts", "reporting refused hosts: ", contacts::report_refused_hosts),
];

fn sweep() -> Result<()> {
    if fault::is_off("sweep") {
        return Ok(());
    }
    migration::sweep().map(drop)
}

/// Runs until SIGTERM, or until the database has no more work.
pub(super) fn run(database: Oid) {
    match transaction::run(|| Ok(has_work()? && lock::try_acquire_for_session(WORKER, Mode::Exclusive))) {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            pgrx::log!("docshard worker: {}", error.message);
            return;
        }
    }
    process::enter(Some(database));
    serve(database);
    process::leave(database);
}

/// True if this database is a router with other shards; if it has moves, changes of layout, transactions or index builds to finish; if it
/// has documents, numbered writes or sampled statements that expire; or if statements are sampled.
fn has_work() -> Result<bool> {
    if !enter() {
        return Ok(false);
    }
    Ok(store::shards::count()? > 1
        || store::migrations::exist_unfinished()?
        || resharding::exist_unfinished()?
        || store::transactions::exist()?
        || store::index_builds::exist()?
        || store::indexes::exist_expiring()?
        || once::exist()?
        || store::collections::any_is_sampled()?
        || store::sampled_statements::exist()?)
}

fn serve(database: Oid) {
    hung::become_worker();
    limit_lock_waits(LOCK_PATIENCE);
    let mut balancer = balancer::Balancer::default();
    let mut expiry = Expiry::default();
    let mut pulse = Pulse::default();
    let mut prune = history::Prune::default();
    let mut failures = 0;
    let mut resolved: Option<Instant> = None;
    let mut counted: Option<Instant> = None;
    let (mut logged, mut keeper) = (None, Keeper::default());
    while !process::is_being_dropped(database) {
        let wakes = process::wakes();
        match transaction::run(has_work) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => pgrx::log!("docshard worker: {}", error.message),
        }
        if !may_act(database, &mut logged, &mut keeper) {
            let pause = if logged.is_some() { POLL } else { UNSURE };
            rest_until(database, Instant::now() + pause, wakes, || {});
            continue;
        }
        activity::show("advancing the counters of shards");
        // This comes first, because it detects that this database is an old copy of the router.
        pulse.beat();
        if !may_act(database, &mut logged, &mut keeper) {
            continue;
        }
        let interval = transaction::run(|| settings::integer("balancer_interval_ms")).unwrap_or(10_000);
        let interval = Duration::from_millis(u64::try_from(interval).unwrap_or(10_000));
        if resolved.is_none_or(|at| at.elapsed() >= interval.min(RESOLVE_INTERVAL)) {
            fulfil_duties(&mut counted);
            resolved = Some(Instant::now());
        }
        if let Err(error) = prune.round() {
            pgrx::log!("docshard worker: {}", error.message);
        }
        samples::store();
        expiry.round();
        activity::show("balancing");
        let outcome = balancer.round();
        process::show_activity(None);
        failures = if outcome.failed { failures + 1 } else { 0 };
        if outcome.again && failures == 0 {
            process::sleep(Duration::from_millis(1));
            continue;
        }
        let rest = pause(interval, failures, outcome.rest);
        rest_until(database, expiry.due().min(Instant::now() + rest), wakes, || {
            samples::store();
            // A copy of the router must not advance the shards' counters.
            if is_free() {
                activity::show("advancing the counters of shards");
                pulse.beat();
                process::show_activity(None);
            }
        });
        if process::wakes() != wakes {
            expiry.hasten();
            balancer.hasten();
        }
    }
}

/// The pause after a round: the balancer's `wish` or its interval, and longer after failures in a row.
fn pause(interval: Duration, failures: u32, wish: Option<Duration>) -> Duration {
    let rest = (interval * 2_u32.pow(failures.min(6))).min(LONGEST_REST.max(interval));
    wish.map_or(rest, |wish| if failures == 0 { wish } else { rest.max(wish) })
}

/// Performs the [`DUTIES`], and every [`COUNT_INTERVAL`] those that are done less often. `counted` is the last time of the latter.
fn fulfil_duties(counted: &mut Option<Instant>) {
    for (name, what, duty) in DUTIES {
        activity::show(name);
        duty().unwrap_or_else(|error| report(&error, what));
    }
    if counted.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL) {
        activity::show("forgetting numbered writes");
        forget_numbered_writes();
        samples::forget_excess();
        activity::show("noting the sizes of collections");
        last_sizes::note_all().unwrap_or_else(|error| report(&error, ""));
        *counted = Some(Instant::now());
    }
}

/// Deletes the numbered writes that have expired, step by step, on each shard.
fn forget_numbered_writes() {
    let Ok(shards) = transaction::run(cache::shards) else { return };
    for shard in shards.values() {
        for _ in 0..MAX_FORGETTING {
            match transaction::run(|| nodes::call_on(shard, &ForgetNumberedWrites { most: FORGOTTEN })) {
                Ok(FORGOTTEN) => {}
                Ok(_) => break,
                // A shard of an earlier release does not have this function.
                Err(error) if error.sqlstate == UNDEFINED_FUNCTION => break,
                Err(error) => {
                    report(&error, &format!("forgetting numbered writes at shard \"{}\": ", shard.name));
                    break;
                }
            }
        }
    }
}

/// True if this database is its cluster's router: it has no other shards, or its keeper has found no other router. `logged` is
/// the last logged reason why it is not.
fn may_act(database: Oid, logged: &mut Option<String>, keeper: &mut Keeper) -> bool {
    let look = || Ok((identity::standing()?, is_alone()?));
    let (why, alone) = match transaction::run(look) {
        Ok((Standing::Router, alone)) => (None, alone),
        Ok((Standing::LockedOut(reason), alone)) => {
            // The keeper goes on: it finds out whether this is still the router.
            keeper.ensure(database);
            (Some(format!("this router does nothing, as {reason}")), alone)
        }
        Ok((Standing::Copy(reason), _)) => {
            (Some(format!("this database is a copy of its cluster's router, and does nothing: {reason}")), false)
        }
        Err(error) => (Some(error.into_message()), false),
    };
    let is_router = why.is_none();
    if *logged != why {
        match &why {
            Some(why) => pgrx::log!("docshard worker: {why}"),
            None => pgrx::log!("docshard worker: this database is its cluster's router"),
        }
        *logged = why;
    }
    if !is_router || alone {
        return is_router;
    }
    keeper.ensure(database);
    is_free()
}

fn is_alone() -> Result<bool> {
    Ok(cache::remote_shards()?.is_empty())
}

/// True if the keeper has found no other router.
fn is_free() -> bool {
    transaction::run(|| Ok(lock::is_excluded(FREE))).unwrap_or(false)
}

/// Sleeps until `then`, until the workers are woken, or until the database is being dropped; calls `meanwhile` at short
/// intervals.
fn rest_until(database: Oid, then: Instant, wakes: u32, mut meanwhile: impl FnMut()) {
    loop {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() || process::wakes() != wakes || process::is_being_dropped(database) {
            return;
        }
        process::sleep(left.min(POLL));
        meanwhile();
    }
}

#[derive(Default)]
struct Keeper {
    started: Option<Started>,
    at: Option<Instant>,
}

impl Keeper {
    /// Starts the keeper's process, unless it is running.
    fn ensure(&mut self, database: Oid) {
        if self.started.as_ref().is_some_and(Started::is_alive) || self.at.is_some_and(|at| at.elapsed() < POLL) {
            return;
        }
        self.at = Some(Instant::now());
        self.started = Started::new("docshard keeper", KEEPER_KIND, database);
        if self.started.is_none() {
            pgrx::log!("docshard worker: no keeper for this database: max_worker_processes is used up");
        }
    }
}
