//! A database's worker.

use super::expiry::Expiry;
use super::own_process::{FREE, KEEPER_KIND, WORKER, enter, report};
use super::pulse::Pulse;
use crate::catalog::model::Place;
use crate::catalog::{cache, cluster, history, last_sizes, pending_drops, rotation, settings};
use crate::pg::error::Result;
use crate::pg::process::timeout::limit_lock_waits;
use crate::pg::process::{self, Started};
use crate::pg::transaction;
use crate::remote::hung;
use crate::storage::lock::{self, Mode};
use crate::store;
use crate::{balancer, indexing, migration, transactions};
use docshard_core::cluster::standing::Standing;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// How often it looks whether its database is being dropped: DROP DATABASE waits for five seconds.
const GLANCE: Duration = Duration::from_secs(1);
/// How often transactions are resolved, and shards swept for what dead moves left there; more often if
/// rounds are.
const RESOLVE: Duration = Duration::from_secs(10);
/// How often shards are asked how many documents they have.
const ASK: Duration = Duration::from_secs(60);
/// The longest rest after rounds that failed.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// While it is not known whether this is the router, it looks again after so long.
const UNSURE: Duration = Duration::from_millis(100);

/// How long it waits for a lock. Whoever may write to a collection may lock its table, for as long as he likes; the worker's other
/// duties do not wait for him.
const LOCK_PATIENCE: &CStr = c"2s";

/// Runs until SIGTERM, or until the database gives nothing more to do.
pub(super) fn run(database: Oid) {
    match transaction::run(|| Ok(has_work()? && prepare())) {
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

/// True if this database is a router with other shards, has moves or transactions to finish, or documents that expire.
fn has_work() -> Result<bool> {
    if !enter() {
        return Ok(false);
    }
    Ok(store::shards::count()? > 1
        || store::migrations::exist_unfinished()?
        || store::transactions::exist()?
        || store::index_builds::exist()?
        || store::indexes::exist_expiring()?)
}

/// Takes the worker's lock; false if another worker is there.
fn prepare() -> bool {
    lock::try_acquire_for_session(WORKER, Mode::Exclusive)
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
    let mut asked: Option<Instant> = None;
    let (mut said, mut keeper) = (None, Keeper::default());
    while !process::is_being_dropped(database) {
        let wakes = process::wakes();
        match transaction::run(has_work) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => pgrx::log!("docshard worker: {}", error.message),
        }
        if !may_act(database, &mut said, &mut keeper) {
            pause(database, if said.is_some() { GLANCE } else { UNSURE }, wakes);
            continue;
        }
        // First of all: an old copy of the router is found by that.
        pulse.beat();
        if !may_act(database, &mut said, &mut keeper) {
            continue;
        }
        let interval = transaction::run(|| settings::integer("balancer_interval_ms")).unwrap_or(10_000);
        let interval = Duration::from_millis(u64::try_from(interval).unwrap_or(10_000));
        if resolved.is_none_or(|at| at.elapsed() >= interval.min(RESOLVE)) {
            process::show_activity(Some("docshard: resolving transactions"));
            if let Err(error) = transactions::resolve_all() {
                report(&error, "");
            }
            if let Err(error) = migration::sweep() {
                report(&error, "");
            }
            if let Err(error) = pending_drops::finish() {
                report(&error, "dropping what was dropped meanwhile: ");
            }
            if let Err(error) = rotation::finish() {
                report(&error, "changing passwords: ");
            }
            if let Err(error) = indexing::sweep() {
                report(&error, "");
            }
            if asked.is_none_or(|at| at.elapsed() >= ASK) {
                if let Err(error) = last_sizes::note_all() {
                    report(&error, "");
                }
                asked = Some(Instant::now());
            }
            resolved = Some(Instant::now());
        }
        if let Err(error) = prune.round() {
            pgrx::log!("docshard worker: {}", error.message);
        }
        expiry.round();
        process::show_activity(Some("docshard: balancing"));
        let outcome = balancer.round();
        process::show_activity(None);
        failures = if outcome.failed { failures + 1 } else { 0 };
        if outcome.again && failures == 0 {
            process::sleep(Duration::from_millis(1));
            continue;
        }
        let rest = (interval * 2_u32.pow(failures.min(6))).min(LONGEST_REST.max(interval));
        let rest = outcome.rest.map_or(rest, |pause| if failures == 0 { pause } else { rest.max(pause) });
        rest_until(database, expiry.due().min(Instant::now() + rest), wakes, &mut pulse);
        if process::wakes() != wakes {
            expiry.hasten();
        }
    }
}

/// True if this database is the router of its cluster, alone or with a keeper that knows of no other one. `said` is what the log has
/// been told of it.
fn may_act(database: Oid, said: &mut Option<String>, keeper: &mut Keeper) -> bool {
    let look = || Ok((cluster::standing()?, is_alone()?));
    let (why, alone) = match transaction::run(look) {
        Ok((Standing::Router, alone)) => (None, alone),
        Ok((Standing::Copy(reason), _)) => {
            (Some(format!("this database is a copy of its cluster's router, and does nothing: {reason}")), false)
        }
        Err(error) => (Some(error.message), false),
    };
    let is_router = why.is_none();
    if *said != why {
        match &why {
            Some(why) => pgrx::log!("docshard worker: {why}"),
            None => pgrx::log!("docshard worker: this database is its cluster's router"),
        }
        *said = why;
    }
    if !is_router || alone {
        return is_router;
    }
    keeper.ensure(database);
    is_free()
}

fn is_alone() -> Result<bool> {
    Ok(cache::shards()?.values().all(|shard| shard.place == Place::Local))
}

/// True if the keeper knows of no other router.
fn is_free() -> bool {
    transaction::run(|| Ok(lock::is_excluded(FREE))).unwrap_or(false)
}

/// Sleeps for so long, until somebody wakes the workers, or until the database is being dropped.
fn pause(database: Oid, time: Duration, wakes: u32) {
    let then = Instant::now() + time;
    loop {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() || process::wakes() != wakes || process::is_being_dropped(database) {
            return;
        }
        process::sleep(left.min(GLANCE));
    }
}

/// The worker's keeper.
#[derive(Default)]
struct Keeper {
    started: Option<Started>,
    /// when the last one was started
    at: Option<Instant>,
}

impl Keeper {
    /// Makes sure that one runs.
    fn ensure(&mut self, database: Oid) {
        if self.started.as_ref().is_some_and(Started::is_alive) || self.at.is_some_and(|at| at.elapsed() < GLANCE) {
            return;
        }
        self.at = Some(Instant::now());
        self.started = Started::new("docshard keeper", KEEPER_KIND, database);
        if self.started.is_none() {
            pgrx::log!("docshard worker: no keeper for this database: max_worker_processes is used up");
        }
    }
}

/// Sleeps until then, until somebody wakes the workers, or until the database is being dropped; counts at shards meanwhile.
fn rest_until(database: Oid, then: Instant, wakes: u32, pulse: &mut Pulse) {
    loop {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() || process::wakes() != wakes || process::is_being_dropped(database) {
            return;
        }
        process::sleep(left.min(GLANCE));
        // A copy of the router must not count.
        if is_free() {
            pulse.beat();
        }
    }
}
