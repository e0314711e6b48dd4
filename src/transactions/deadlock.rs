//! Deadlocks over several nodes. PostgreSQL sees those that lie on one.
//!
//! 1. A process whose write at a shard has not been answered for `deadlock_timeout` starts a job that looks for deadlocks,
//!    unless one runs; and again, each time after twice as long.
//! 2. The job asks every node who waits for whom. Whom a connection to a shard works for, its application name says, which is
//!    the session's id at the router ([`remote::APPLICATION`]).
//! 3. Waits that are there twice, since the same time, were all there in between: what makes a circle of them is a deadlock.
//! 4. The job takes a lock that tells one of its processes, which looks for that, to end it, by an error (40P01).
//!
//! The job sees what the extension's owner may, and a shard that does not answer is left out. Nobody waits for the job.

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

/// Who looks for deadlocks; one at a time.
const DETECTOR: Tag = Tag::Worker(5);

/// Who starts the job.
const STARTER: Tag = Tag::Worker(6);

/// Between the two looks, in milliseconds.
const PAUSE_MS: i64 = 100;

/// How long a shard may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// How long a victim may take to notice. Shorter than most waits before they look whether they are one, so that who has noticed,
/// and goes on in the same statement, is not told again.
const NOTICE: Duration = Duration::from_millis(500);

/// Makes the job known; called from `_PG_init`.
pub fn init() {
    job::register(JOB, |_| find().map(|()| Value::Null));
}

/// Has somebody look for deadlocks, unless somebody does, or is about to: however many wait, one job looks. If no worker is
/// free, the next look may find one.
pub fn suspect() {
    if !lock::try_acquire(STARTER, Mode::Exclusive) {
        return;
    }
    // Who starts the job keeps the lock until the job has its own, so that who gets this lock sees that. An ERROR gives it
    // back with the transaction.
    let has_begun = || Ok(lock::is_excluded(DETECTOR));
    if !lock::is_excluded(DETECTOR) {
        drop(job::run_detached(JOB, "docshard: looking for deadlocks", &Value::Null, has_begun));
    }
    lock::release(STARTER, Mode::Exclusive);
}

/// A shard's session, for as long as it answers.
struct Asked {
    shard: ShardId,
    session: Session,
}

/// What the nodes tell.
struct Found {
    waits: BTreeSet<Wait>,
    /// when the transactions of the router's processes began
    begun: BTreeMap<i32, i64>,
}

/// Ends the deadlocks that there are.
fn find() -> Result<()> {
    if !lock::try_acquire_for_session(DETECTOR, Mode::Exclusive) {
        return Ok(());
    }
    let mut asked = open()?;
    loop {
        let first = look(&mut asked)?;
        if deadlock::deadlocks(&first.waits).is_empty() {
            return Ok(());
        }
        sleep_ms(PAUSE_MS);
        let second = look(&mut asked)?;
        let lasting = first.waits.intersection(&second.waits).copied().collect();
        let deadlocks = deadlock::deadlocks(&lasting);
        let victim = |waits: &Vec<Wait>| deadlock::victim(waits, &second.waits, &second.begun);
        let victims: Vec<_> = deadlocks.iter().filter_map(|waits| Some((victim(waits)?, waits))).collect();
        if victims.is_empty() {
            return Ok(());
        }
        for (pid, waits) in victims {
            end(pid, waits)?;
        }
    }
}

/// Sessions at the shards that can be reached.
fn open() -> Result<Vec<Asked>> {
    let shards = transaction::run(|| Ok(cache::shards()?.values().cloned().collect::<Vec<_>>()))?;
    let open = |shard: &Rc<Shard>| {
        let server = shard.place.server()?;
        let session = transaction::run(|| Session::open(server)).ok()?;
        Some(Asked { shard: shard.id, session })
    };
    Ok(shards.iter().filter_map(open).collect())
}

/// Asks all nodes. A shard that does not answer is not asked again.
fn look(asked: &mut Vec<Asked>) -> Result<Found> {
    asked.retain_mut(|asked| asked.session.start(WAITS, &[]).is_ok());
    let (sessions, mut found) = transaction::run(|| {
        let rows = spi::query(SESSIONS, &[])?;
        let sessions: BTreeMap<String, i32> = rows.iter().map(|row| (row.text(1).to_owned(), row.i32(0))).collect();
        let begun = rows.iter().filter(|row| row.get(2).is_some()).map(|row| (row.i32(0), row.i64(2))).collect();
        let waits = spi::query(WAITS, &[])?;
        let waits = waits
            .iter()
            .map(|row| wait(None, &sessions, (row.i32(0), row.text(1)), (row.i32(2), row.text(3)), row.i64(4)));
        let waits = waits.collect();
        Ok((sessions, Found { waits, begun }))
    })?;
    let deadline = Instant::now() + ANSWER;
    asked.retain_mut(|Asked { shard, session }| {
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

/// The router's processes: number, session's id, and when the transaction began, in microseconds.
const SESSIONS: &str = "SELECT pid, pg_catalog.to_hex(pg_catalog.trunc(extract(epoch FROM backend_start))::int8) || '.' || pg_catalog.to_hex(pid), \
        (extract(epoch FROM xact_start) * 1000000)::int8 \
   FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()";

/// Who waits for whom: each one's number and application, and since when.
const WAITS: &str = "SELECT w.pid, w.application_name, b.pid, b.application_name, l.since \
   FROM (SELECT pid, (extract(epoch FROM pg_catalog.min(waitstart)) * 1000000)::int8 AS since \
           FROM pg_catalog.pg_locks WHERE NOT granted GROUP BY pid) l \
   JOIN pg_catalog.pg_stat_activity w ON w.pid = l.pid AND w.datname = pg_catalog.current_database() \
   CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS p (pid) \
   JOIN pg_catalog.pg_stat_activity b ON b.pid = p.pid \
  WHERE l.since IS NOT NULL";

/// A wait of two processes that are given with their applications.
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

/// Tells a process to end the deadlock that it is part of, and waits until it has noticed; or has not, as it waits for something
/// else by now: then the next look will tell.
fn end(pid: i32, waits: &[Wait]) -> Result<()> {
    pgrx::log!("docshard: process {pid} is to end a deadlock over shards: {}", told(waits)?);
    if !lock::try_acquire_for_session(Tag::Victim(pid), Mode::Exclusive) {
        return Ok(());
    }
    let begun = || transaction::run(|| Ok(spi::query(BEGUN, &[Param::Int4(pid)])?.first().map(|row| row.i64(0))));
    let (before, told) = (begun()?, Instant::now());
    while before.is_some() && told.elapsed() < NOTICE && begun()? == before {
        sleep_ms(20);
    }
    lock::release_for_session(Tag::Victim(pid), Mode::Exclusive);
    Ok(())
}

/// When the statement of a process began that waits for a shard, if it still does.
const BEGUN: &str = "SELECT (extract(epoch FROM query_start) * 1000000)::int8 FROM pg_catalog.pg_stat_activity \
  WHERE pid = $1 AND state = 'active' AND wait_event_type = 'Extension'";

/// The waits, for the log.
fn told(waits: &[Wait]) -> Result<String> {
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
