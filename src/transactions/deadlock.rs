//! Detects deadlocks over several nodes. PostgreSQL itself detects deadlocks on one node.
//!
//! 1. A process whose statement at a shard has not been answered for `deadlock_timeout` starts a job that searches for deadlocks, unless
//!    one is running. While the process waits, it repeats this, and doubles the pause each time.
//! 2. The job asks every node which processes wait for which. The application name of the service role's session at a shard contains the id
//!    of the router's session for which it works ([`remote::APPLICATION`]). Any role may choose the names of its own sessions. So all other
//!    sessions at a shard, and all sessions at the router, count as processes of that node.
//! 3. The job asks twice. A wait that both answers contain, with the same start, has lasted the whole time in between: a cycle
//!    of such waits is a deadlock.
//! 4. The job chooses one of the processes, the victim, and takes the lock [`Tag::Victim`] of that process. The victim polls this lock.
//!    It then takes [`Tag::Failing`], which it holds until it has failed, and fails with an error (40P01). Meanwhile no other process of
//!    the deadlock is chosen. A victim that does not notice, because it executes something else or waits where it does not poll, is not
//!    chosen again for the same wait.
//!
//! The job has the rights of the extension's owner, and skips shards that do not answer. No process waits for the job.

use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::{process::job, spi, transaction};
use crate::remote::{self, Session};
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::deadlock::{self, Process, Wait};
use docshard_core::routing::protocol::Connection as _;
use docshard_core::sql::record::{Record, decode_all};
use pgrx::pg_sys::Oid;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

const JOB: &str = "find deadlocks";

/// Held by the job, so that only one runs.
const DETECTOR: Tag = Tag::Worker(5);

/// Held while the job is started.
const STARTER: Tag = Tag::Worker(6);

/// The time between the two queries, in milliseconds.
const PAUSE_MS: i64 = 100;

/// The time limit for a shard's answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The time limit for a victim to notice. Its polling interval is 100 ms.
const NOTICE: Duration = Duration::from_secs(1);

/// The time limit for a victim that has noticed to fail: a cancel has to reach the shard, and its answer the router.
const FAILURE: Duration = Duration::from_secs(30);

/// Called from `_PG_init`.
pub fn init() {
    job::register(JOB, |_| find().map(|()| Value::Null));
}

/// Starts the job, unless it is running or being started. Does nothing if no worker is free: the caller tries again.
pub fn suspect() {
    if !lock::try_acquire(STARTER, Mode::Exclusive) {
        return;
    }
    // `STARTER` is held until the job has its own lock, so the next process that gets `STARTER` sees that the job runs. An ERROR releases
    // `STARTER` with the transaction.
    let has_begun = || Ok(lock::is_excluded(DETECTOR));
    if !lock::is_excluded(DETECTOR) {
        drop(job::run_detached(JOB, "docshard: looking for deadlocks", &Value::Null, has_begun));
    }
    lock::release(STARTER, Mode::Exclusive);
}

struct WaitNode {
    shard: ShardId,
    session: Session,
}

struct Waits {
    waits: BTreeSet<Wait>,
    /// when the transaction of each of the router's processes began, by pid
    begun: BTreeMap<i32, i64>,
}

/// Finds and ends deadlocks.
fn find() -> Result<()> {
    if !lock::try_acquire_for_session(DETECTOR, Mode::Exclusive) {
        return Ok(());
    }
    let mut nodes = open()?;
    // The waits of the victims, and the time from which on another victim may be chosen.
    let mut tried: BTreeMap<Wait, Instant> = BTreeMap::new();
    loop {
        let first = query_all(&mut nodes)?;
        if deadlock::deadlocks(&first.waits).is_empty() {
            return Ok(());
        }
        sleep_ms(PAUSE_MS);
        let mut second = query_all(&mut nodes)?;
        let lasting: BTreeSet<Wait> = first.waits.intersection(&second.waits).copied().collect();
        tried.retain(|wait, _| lasting.contains(wait));
        let spared: BTreeSet<i32> = tried.keys().map(|wait| wait.waiter.pid).collect();
        second.begun.retain(|pid, _| !spared.contains(pid));
        let now = Instant::now();
        let (ending, left): (Vec<_>, Vec<_>) = deadlock::deadlocks(&lasting)
            .into_iter()
            .partition(|waits| waits.iter().any(|wait| tried.get(wait).is_some_and(|until| now < *until)));
        let victim = |waits: &Vec<Wait>| deadlock::victim(waits, &second.waits, &second.begun);
        let victims: Vec<_> = left.iter().filter_map(|waits| Some((victim(waits)?, waits))).collect();
        if victims.is_empty() && ending.is_empty() {
            return Ok(());
        }
        for (pid, waits) in victims {
            let until = Instant::now() + if end(pid, waits)? { FAILURE } else { Duration::ZERO };
            tried.extend(waits.iter().filter(|wait| wait.waiter == here(pid)).map(|wait| (*wait, until)));
        }
    }
}

fn here(pid: i32) -> Process {
    Process { shard: None, pid }
}

/// Opens a session at each shard that can be reached.
fn open() -> Result<Vec<WaitNode>> {
    let open = |(shard, server): (Rc<Shard>, Oid)| {
        let session = transaction::run(|| Session::open(server)).ok()?;
        Some(WaitNode { shard: shard.id, session })
    };
    Ok(transaction::run(cache::remote_shards)?.into_iter().filter_map(open).collect())
}

/// Queries all nodes, and removes shards that do not answer from `nodes`.
fn query_all(nodes: &mut Vec<WaitNode>) -> Result<Waits> {
    nodes.retain_mut(|node| node.session.start(WAITS, &[], WaitRow::WIRE).is_ok());
    let (sessions, mut found) = transaction::run(|| {
        let rows = spi::query(SESSIONS, &[])?;
        let sessions: BTreeMap<String, i32> = rows.iter().map(|row| (row.text(1).to_owned(), row.i32(0))).collect();
        let begun = rows.iter().filter(|row| row.get(2).is_some()).map(|row| (row.i32(0), row.i64(2))).collect();
        let waits = spi::query(WAITS, &[])?;
        let wait = |waiter, blocker, since| Wait { waiter: here(waiter), blocker: here(blocker), at: None, since };
        let waits = waits.iter().map(|row| wait(row.i32(0), row.i32(2), row.i64(4))).collect();
        Ok((sessions, Waits { waits, begun }))
    })?;
    let deadline = Instant::now() + ANSWER;
    nodes.retain_mut(|WaitNode { shard, session }| {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let Ok(Some(rows)) = session.poll_finish(i64::try_from(left).unwrap_or(0)) else { return false };
        let Ok(waits) = decode_all::<WaitRow, _>("a statement", &rows) else { return false };
        found.waits.extend(waits.into_iter().map(|(waiter, waiter_name, blocker, blocker_name, since)| {
            let process = |pid: i32, name: Option<String>| {
                let session =
                    name.as_deref().and_then(|name| name.strip_prefix(remote::APPLICATION)).map(str::trim_start);
                let known = session.and_then(|session| sessions.get(session));
                known.map_or(Process { shard: Some(*shard), pid }, |pid| here(*pid))
            };
            let (waiter, blocker) = (process(waiter, waiter_name), process(blocker, blocker_name));
            Wait { waiter, blocker, at: Some(*shard), since }
        }));
        true
    });
    Ok(found)
}

/// Queries the router's processes: pid, session id, and the start of the transaction in microseconds.
const SESSIONS: &str = "SELECT pid, pg_catalog.to_hex(pg_catalog.trunc(extract(epoch FROM backend_start))::int8) || '.' || pg_catalog.to_hex(pid), \
        (extract(epoch FROM xact_start) * 1000000)::int8 \
   FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()";

/// A wait: the pid and application name of the waiting process, those of the blocking one, and the start in microseconds since 1970. A name
/// is null unless the session's role is the one that executes the query. At a shard that is the service role, as which only the router logs
/// in.
type WaitRow = (i32, Option<String>, i32, Option<String>, i64);
const WAITS: &str = "SELECT w.pid, CASE w.usesysid WHEN s.usesysid THEN w.application_name END, \
        b.pid, CASE b.usesysid WHEN s.usesysid THEN b.application_name END, l.since \
   FROM (SELECT pid, (extract(epoch FROM pg_catalog.min(waitstart)) * 1000000)::int8 AS since \
           FROM pg_catalog.pg_locks WHERE NOT granted GROUP BY pid) l \
   JOIN pg_catalog.pg_stat_activity w ON w.pid = l.pid AND w.datname = pg_catalog.current_database() \
   CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS p (pid) \
   JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid \
   LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = pg_catalog.pg_backend_pid() \
  WHERE l.since IS NOT NULL";

/// Asks a process that is part of a deadlock to fail. False if it does not notice in time.
fn end(pid: i32, waits: &[Wait]) -> Result<bool> {
    pgrx::log!("docshard: process {pid} was chosen to end a deadlock over several nodes: {}", describe(waits)?);
    if !lock::try_acquire_for_session(Tag::Victim(pid), Mode::Exclusive) {
        return Ok(false);
    }
    let since = Instant::now();
    let mut notices = false;
    while !notices && since.elapsed() < NOTICE {
        sleep_ms(20);
        notices = lock::is_requested(Tag::Failing(pid));
    }
    lock::release_for_session(Tag::Victim(pid), Mode::Exclusive);
    Ok(notices)
}

fn describe(waits: &[Wait]) -> Result<String> {
    let shards = transaction::run(cache::shards)?;
    let node = |shard: Option<ShardId>| match shard {
        None => "the router".to_owned(),
        Some(id) => shards.get(&id).map_or_else(|| format!("shard {id}"), |shard| format!("shard \"{}\"", shard.name)),
    };
    let process = |process: Process| match process.shard {
        None => format!("process {}", process.pid),
        shard => format!("process {} of {}", process.pid, node(shard)),
    };
    let wait = |w: &Wait| format!("{} waits for {} at {}", process(w.waiter), process(w.blocker), node(w.at));
    Ok(waits.iter().map(wait).collect::<Vec<_>>().join("; "))
}
