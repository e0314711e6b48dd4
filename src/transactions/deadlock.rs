//! Detects deadlocks over several nodes. PostgreSQL itself detects those on one node.
//!
//! 1. A process whose statement at a shard has not been answered for `deadlock_timeout` starts a job that searches for deadlocks,
//!    unless one is running. It repeats that with doubled pauses.
//! 2. The job asks every node which processes wait for which. The application name of a connection to a shard is the id of the
//!    router's session that it works for ([`remote::APPLICATION`]).
//! 3. The job asks twice. A wait that both answers contain, with the same start, has lasted the whole time in between: a cycle
//!    of such waits is a deadlock.
//! 4. The job takes a lock for one of the processes, the victim. The victim polls that lock, and fails with an error (40P01).
//!
//! The job has the rights of the extension's owner, and skips shards that do not answer. No process waits for the job.

use crate::catalog::cache;
use crate::catalog::model::Shard;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::spi::param::Param;
use crate::pg::{process::job, spi, transaction};
use crate::remote::{self, Session};
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::deadlock::{self, Process, Wait};
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

/// The time limit for a victim to fail. It is shorter than the usual polling interval, so that a victim that continues in the
/// same statement does not fail twice.
const NOTICE: Duration = Duration::from_millis(500);

/// Called from `_PG_init`.
pub fn init() {
    job::register(JOB, |_| find().map(|()| Value::Null));
}

/// Starts the job, unless it is running or being started. Does nothing if no worker is free: the caller tries again.
pub fn suspect() {
    if !lock::try_acquire(STARTER, Mode::Exclusive) {
        return;
    }
    // This lock is held until the job has its own lock, so the next process that gets this one sees the job. An ERROR releases
    // it with the transaction.
    let has_begun = || Ok(lock::is_excluded(DETECTOR));
    if !lock::is_excluded(DETECTOR) {
        drop(job::run_detached(JOB, "docshard: looking for deadlocks", &Value::Null, has_begun));
    }
    lock::release(STARTER, Mode::Exclusive);
}

struct Node {
    shard: ShardId,
    session: Session,
}

struct Waits {
    waits: BTreeSet<Wait>,
    /// The start of the transaction of each of the router's processes.
    begun: BTreeMap<i32, i64>,
}

/// Finds and ends deadlocks.
fn find() -> Result<()> {
    if !lock::try_acquire_for_session(DETECTOR, Mode::Exclusive) {
        return Ok(());
    }
    let mut nodes = open()?;
    // Victims that did not fail, such as one that waits where it cannot notice: another one must.
    let mut spared = BTreeSet::new();
    loop {
        let first = query_all(&mut nodes)?;
        if deadlock::deadlocks(&first.waits).is_empty() {
            return Ok(());
        }
        sleep_ms(PAUSE_MS);
        let mut second = query_all(&mut nodes)?;
        second.begun.retain(|pid, _| !spared.contains(pid));
        let lasting = first.waits.intersection(&second.waits).copied().collect();
        let deadlocks = deadlock::deadlocks(&lasting);
        let victim = |waits: &Vec<Wait>| deadlock::victim(waits, &second.waits, &second.begun);
        let victims: Vec<_> = deadlocks.iter().filter_map(|waits| Some((victim(waits)?, waits))).collect();
        if victims.is_empty() {
            return Ok(());
        }
        for (pid, waits) in victims {
            if !end(pid, waits)? {
                spared.insert(pid);
            }
        }
    }
}

/// Opens sessions at the shards that can be reached.
fn open() -> Result<Vec<Node>> {
    let shards = transaction::run(|| Ok(cache::shards()?.values().cloned().collect::<Vec<_>>()))?;
    let open = |shard: &Rc<Shard>| {
        let server = shard.place.server()?;
        let session = transaction::run(|| Session::open(server)).ok()?;
        Some(Node { shard: shard.id, session })
    };
    Ok(shards.iter().filter_map(open).collect())
}

/// Queries all nodes. A shard that does not answer is removed from them.
fn query_all(nodes: &mut Vec<Node>) -> Result<Waits> {
    nodes.retain_mut(|node| node.session.start(WAITS, &[]).is_ok());
    let (sessions, mut found) = transaction::run(|| {
        let rows = spi::query(SESSIONS, &[])?;
        let sessions: BTreeMap<String, i32> = rows.iter().map(|row| (row.text(1).to_owned(), row.i32(0))).collect();
        let begun = rows.iter().filter(|row| row.get(2).is_some()).map(|row| (row.i32(0), row.i64(2))).collect();
        let waits = spi::query(WAITS, &[])?;
        let waits = waits
            .iter()
            .map(|row| wait(None, &sessions, (row.i32(0), row.text(1)), (row.i32(2), row.text(3)), row.i64(4)));
        let waits = waits.collect();
        Ok((sessions, Waits { waits, begun }))
    })?;
    let deadline = Instant::now() + ANSWER;
    nodes.retain_mut(|Node { shard, session }| {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let Ok(Some(rows)) = session.poll_finish(i64::try_from(left).unwrap_or(0)) else { return false };
        found.waits.extend(rows.iter().filter_map(|row| {
            let (waiter, blocker) = ((row.i32(0)?, row.text(1)?), (row.i32(2)?, row.text(3)?));
            Some(wait(Some(*shard), &sessions, waiter, blocker, row.i64(4)?))
        }));
        true
    });
    Ok(found)
}

/// Queries the router's processes: pid, session id, and the start of the transaction in microseconds.
const SESSIONS: &str = "SELECT pid, pg_catalog.to_hex(pg_catalog.trunc(extract(epoch FROM backend_start))::int8) || '.' || pg_catalog.to_hex(pid), \
        (extract(epoch FROM xact_start) * 1000000)::int8 \
   FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()";

/// Queries the waits: pid and application name of both processes, and the start.
const WAITS: &str = "SELECT w.pid, w.application_name, b.pid, b.application_name, l.since \
   FROM (SELECT pid, (extract(epoch FROM pg_catalog.min(waitstart)) * 1000000)::int8 AS since \
           FROM pg_catalog.pg_locks WHERE NOT granted GROUP BY pid) l \
   JOIN pg_catalog.pg_stat_activity w ON w.pid = l.pid AND w.datname = pg_catalog.current_database() \
   CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS p (pid) \
   JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid \
  WHERE l.since IS NOT NULL";

/// Returns the wait of two processes, which are given by pid and application name.
fn wait(
    at: Option<ShardId>,
    sessions: &BTreeMap<String, i32>,
    waiter: (i32, &str),
    blocker: (i32, &str),
    since: i64,
) -> Wait {
    let process = |(pid, application): (i32, &str)| {
        let session = application.strip_prefix(remote::APPLICATION).map(str::trim_start);
        let known = session.and_then(|session| sessions.get(session));
        known.map_or(Process { shard: at, pid }, |pid| Process { shard: None, pid: *pid })
    };
    Wait { waiter: process(waiter), blocker: process(blocker), at, since }
}

/// Makes a process that is part of a deadlock fail. True if it has failed, or no longer waits there.
fn end(pid: i32, waits: &[Wait]) -> Result<bool> {
    pgrx::log!("docshard: process {pid} was chosen to end a deadlock over several nodes: {}", describe(waits)?);
    if !lock::try_acquire_for_session(Tag::Victim(pid), Mode::Exclusive) {
        return Ok(false);
    }
    let begun = || transaction::run(|| Ok(spi::query(BEGUN, &[Param::Int4(pid)])?.first().map(|row| row.i64(0))));
    let (before, since) = (begun()?, Instant::now());
    let mut waits = before.is_some();
    while waits && since.elapsed() < NOTICE {
        sleep_ms(20);
        waits = begun()? == before;
    }
    lock::release_for_session(Tag::Victim(pid), Mode::Exclusive);
    Ok(!waits)
}

/// Queries the start of a process's statement, if that statement waits for a shard.
const BEGUN: &str = "SELECT (extract(epoch FROM query_start) * 1000000)::int8 FROM pg_catalog.pg_stat_activity \
  WHERE pid = $1 AND state = 'active' AND wait_event_type = 'Extension'";

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
