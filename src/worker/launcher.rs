//! The launcher: starts a worker in every database, one after the other, at increasing intervals.

use super::gateway;
use super::own_process::WORKER_KIND;
use crate::pg::process::{self, Started};
use pgrx::pg_sys::Oid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The first interval after a worker has ended; it is doubled up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// If a worker has lived this long, the next interval is short again.
const LONG_LIFE: Duration = Duration::from_secs(60);
/// The longest time for which a worker delays the start of others: until it has decided whether it has work.
const MAX_DECISION: Duration = Duration::from_secs(10);

struct Database {
    worker: Option<Started>,
    started: Instant,
    rest: Duration,
    due: Instant,
}

/// Runs until SIGTERM.
pub(super) fn run() {
    process::enter(None);
    let mut known: HashMap<Oid, Database> = HashMap::new();
    let mut wakes = process::wakes();
    let mut list: Vec<(Oid, String)> = Vec::new();
    let mut listed: Option<Instant> = None;
    let mut gateway: Option<Started> = None;
    let mut gateway_due = Instant::now();
    loop {
        let now = Instant::now();
        let is_missing = gateway::is_wanted() && gateway.as_ref().is_none_or(|worker| !worker.is_alive());
        if is_missing && now >= gateway_due {
            gateway_due = now + FIRST_REST;
            gateway = Started::new(gateway::KIND, gateway::KIND, Oid::INVALID);
            if gateway.is_none() {
                pgrx::log!("docshard launcher: no worker for the gateway: max_worker_processes is used up");
                gateway_due = now + LONGEST_REST;
            }
        }
        let woken = std::mem::replace(&mut wakes, process::wakes()) != wakes;
        if woken || listed.is_none_or(|at| now >= at + LONGEST_REST) {
            match process::databases() {
                Ok(databases) => list = databases,
                Err(error) => pgrx::log!("docshard launcher: {}", error.message),
            }
            listed = Some(now);
            known.retain(|database, _| list.iter().any(|(oid, _)| oid == database));
        }
        let is_deciding = review(&mut known, now, woken);
        if !is_deciding {
            start_next(&mut known, &list, now);
        }
        let rest = rest(&known, &list, now);
        let is_due = is_missing && gateway_due > now;
        process::sleep(if is_due { rest.min(gateway_due - now) } else { rest });
    }
}

/// Records which workers have ended; true while one has not decided whether it has work.
fn review(known: &mut HashMap<Oid, Database>, now: Instant, woken: bool) -> bool {
    let mut is_deciding = false;
    for (&oid, database) in known {
        if woken {
            database.rest = FIRST_REST;
        }
        match &database.worker {
            Some(worker) if worker.is_alive() => {
                is_deciding |= process::resident(oid).is_none() && now < database.started + MAX_DECISION;
            }
            Some(_) => {
                database.worker = None;
                process::leave(oid);
                if now >= database.started + LONG_LIFE {
                    database.rest = FIRST_REST;
                }
                database.due = now + database.rest;
                database.rest = (database.rest * 2).min(LONGEST_REST);
            }
            None if woken => database.due = now,
            None => {}
        }
    }
    is_deciding
}

fn start_next(known: &mut HashMap<Oid, Database>, list: &[(Oid, String)], now: Instant) {
    let due = |oid: &Oid| known.get(oid).is_none_or(|database| database.worker.is_none() && database.due <= now);
    let next = list.iter().find(|(oid, _)| due(oid) && !process::is_being_dropped(*oid));
    let Some((oid, name)) = next else { return };
    let worker = Started::new(&format!("docshard worker for {name}"), WORKER_KIND, *oid);
    let entry = known.entry(*oid).or_insert(Database { worker: None, started: now, rest: FIRST_REST, due: now });
    if worker.is_none() {
        pgrx::log!("docshard launcher: no worker for database \"{name}\": max_worker_processes is used up");
        entry.due = now + LONGEST_REST;
    }
    entry.worker = worker;
    entry.started = now;
}

/// Returns the time until the next database is due. The end of a worker wakes the launcher.
fn rest(known: &HashMap<Oid, Database>, list: &[(Oid, String)], now: Instant) -> Duration {
    if list.iter().any(|(oid, _)| !known.contains_key(oid)) {
        return Duration::from_millis(100);
    }
    let waiting = known.iter().filter_map(|(&oid, database)| match &database.worker {
        None => Some(database.due),
        // The launcher is not woken when a worker has decided, so it polls.
        Some(_) if process::resident(oid).is_none() => Some(now + Duration::from_millis(200)),
        Some(_) => None,
    });
    let next = waiting.min().unwrap_or(now + LONGEST_REST);
    next.saturating_duration_since(now).clamp(Duration::from_millis(50), LONGEST_REST)
}
