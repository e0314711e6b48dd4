//! A database's worker.

use super::expiry::Expiry;
use super::pulse::Pulse;
use crate::catalog::{last_sizes, pending_drops, rotation, settings};
use crate::pg::error::{Error, Result};
use crate::pg::extension;
use crate::pg::lock::{self, Mode, Tag};
use crate::pg::server::relation_oid;
use crate::pg::{process, spi, transaction, user};
use crate::remote::hung;
use crate::{balancer, indexing, migration, transactions};
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

/// The relations that [`has_work`] looks into.
const LOOKED_INTO: [&CStr; 5] = [c"shards", c"migrations", c"transactions", c"index_builds", c"indexes"];

/// Makes this process the extension's owner; false if the database does not have the extension.
///
/// INVARIANT: nothing that is named is used before. In a database without the extension everything may be a stranger's, who
/// would have it run by the superuser that a worker is at first.
fn enter() -> bool {
    let Some(extension) = extension::find() else { return false };
    let is_ours = |name: &&CStr| relation_oid(c"docshard_catalog", name).is_some_and(|oid| extension.has(oid));
    if !LOOKED_INTO.iter().all(is_ours) {
        return false;
    }
    user::become_for_session(extension.owner);
    true
}

/// True if this database is a router with other shards, has moves or transactions to finish, or documents that expire.
fn has_work() -> Result<bool> {
    if !enter() {
        return Ok(false);
    }
    let rows = spi::query(
        "SELECT (SELECT count(*) FROM docshard_catalog.shards) > 1 \
             OR EXISTS (SELECT FROM docshard_catalog.migrations WHERE state <> 'done') \
             OR EXISTS (SELECT FROM docshard_catalog.transactions) \
             OR EXISTS (SELECT FROM docshard_catalog.index_builds) \
             OR EXISTS (SELECT FROM docshard_catalog.indexes WHERE expire_after_s IS NOT NULL)",
        &[],
    )?;
    Ok(rows.first().is_some_and(|row| row.bool(0)))
}

/// Takes the worker's lock; false if another worker is there.
fn prepare() -> bool {
    lock::try_acquire_for_session(Tag::Worker(1), Mode::Exclusive)
}

/// Tells the log of an error, unless it is only that a shard does not answer, which the log knows.
pub(super) fn report(error: &Error, what: &str) {
    if !hung::is_known(error) {
        pgrx::log!("docshard worker: {what}{}", error.message);
    }
}

fn serve(database: Oid) {
    hung::become_worker();
    let mut balancer = balancer::Balancer::default();
    let mut expiry = Expiry::default();
    let mut pulse = Pulse::default();
    let mut failures = 0;
    let mut resolved: Option<Instant> = None;
    let mut asked: Option<Instant> = None;
    while !process::is_being_dropped(database) {
        let wakes = process::wakes();
        match transaction::run(has_work) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => pgrx::log!("docshard worker: {}", error.message),
        }
        // First of all: an old copy of the router is found by that.
        pulse.beat();
        let interval = transaction::run(|| settings::integer("balancer_interval_ms")).unwrap_or(10_000);
        let interval = Duration::from_millis(u64::try_from(interval).unwrap_or(10_000));
        if resolved.is_none_or(|at| at.elapsed() >= interval.min(RESOLVE)) {
            process::show_activity(Some("docshard: resolving transactions"));
            if let Err(error) = transactions::resolve_all() {
                report(&error, "");
            }
            if let Err(error) = migration::recovery::sweep() {
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

/// Sleeps until then, until somebody wakes the workers, or until the database is being dropped; counts at shards meanwhile.
fn rest_until(database: Oid, then: Instant, wakes: u32, pulse: &mut Pulse) {
    loop {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() || process::wakes() != wakes || process::is_being_dropped(database) {
            return;
        }
        process::sleep(left.min(GLANCE));
        pulse.beat();
    }
}
