//! One question to many servers, each over a new connection, all at once and within a bound.
//!
//! For looking at a cluster of which parts may hang: a server that does not answer delays nobody, and its error is its own
//! answer. All hosts of a server are tried at the same time; the first that answers counts. A connection that was made for
//! a question is closed after it.

use super::ffi::{self, PgConn, Poll, Status, WaitSet};
use super::options;
use super::param::{Encoded, Param};
use super::row::Row;
use super::wire::{Limit, Lost, NO_RESOURCES, Wire};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// What became of the question at one server.
#[derive(Debug)]
pub struct Surveyed {
    /// the rows of its answer
    pub rows: Result<Vec<Row>>,
    /// the time from the question, over a connection that was ready, to its answer; None without one
    pub latency: Option<Duration>,
}

/// One host of one server.
struct Attempt {
    /// the server's position
    server: usize,
    name: String,
    options: Vec<(String, String)>,
    needs_password: bool,
    stage: Stage,
}

enum Stage {
    Connecting(PgConn, Poll),
    Asked(Wire, Instant),
}

/// How a step went.
enum Step {
    /// it goes on
    Wait(Stage),
    Done(Vec<Row>, Duration),
    Failed(Error),
}

/// Asks every server the same, as the service role; answers come in the order of `servers`, all within `limit`. Names are
/// resolved before that, by the system, in its own time.
///
/// # Errors
/// `BSONObjectTooLarge` for a parameter that is too long. Interrupts are served.
pub fn survey(servers: &[Oid], sql: &str, params: &[Param<'_>], limit: Duration) -> Result<Vec<Surveyed>> {
    let text = CString::new(sql).map_err(|_| Error::new(Kind::BadValue, "a statement contains NUL"))?;
    let mut encoded = Encoded::default();
    if !encoded.encode(params) {
        return Err(Error::new(Kind::BSONObjectTooLarge, "a parameter is too long for a message"));
    }
    let deadline = Instant::now() + limit;
    let mut outcomes: Vec<Option<Surveyed>> = servers.iter().map(|_| None).collect();
    let mut attempts = Vec::new();
    for (server, &oid) in servers.iter().enumerate() {
        match begin(server, oid) {
            Ok(begun) => attempts.extend(begun),
            Err(error) => note(&mut outcomes[server], error),
        }
    }
    while !attempts.is_empty() && Instant::now() < deadline {
        let sockets: Vec<_> = attempts.iter().map(Attempt::waits_for).collect();
        let mut set = WaitSet::new(sockets.len());
        for &(socket, read) in &sockets {
            set.add(socket, read, !read);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let woken = set.wait(left.as_millis() as i64 + 1);
        drop(set);
        ffi::check_for_interrupts();
        if matches!(woken, ffi::Woken::Orphaned) {
            break;
        }
        let mut rest = Vec::new();
        for (attempt, ready) in attempts.into_iter().zip(ffi::ready(&sockets)) {
            let Attempt { server, name, options, needs_password, stage } = attempt;
            if outcomes[server].as_ref().is_some_and(|outcome| outcome.rows.is_ok()) {
                continue;
            }
            match if ready { step(stage, &name, &options, needs_password, &text, &encoded) } else { Step::Wait(stage) }
            {
                Step::Wait(stage) => rest.push(Attempt { server, name, options, needs_password, stage }),
                Step::Done(rows, latency) => {
                    outcomes[server] = Some(Surveyed { rows: Ok(rows), latency: Some(latency) });
                }
                Step::Failed(error) => note(&mut outcomes[server], error),
            }
        }
        attempts = rest;
    }
    for attempt in &attempts {
        let message = format!("shard \"{}\" did not answer within {} ms", shard(&attempt.name), limit.as_millis());
        let outcome = &mut outcomes[attempt.server];
        if outcome.as_ref().is_none_or(|outcome| outcome.rows.is_err()) {
            note(outcome, Error::new(Kind::HostUnreachable, message));
        }
    }
    let unasked = || Surveyed { rows: Err(Error::new(Kind::InternalError, "a shard was not asked")), latency: None };
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unasked)).collect())
}

/// Begins to connect to all hosts of a server.
fn begin(server: usize, oid: Oid) -> Result<Vec<Attempt>> {
    let route = options::route(oid)?;
    let begun = options::alternatives(&route.options).into_iter().map(|options| {
        let pg = PgConn::start(&options).ok_or_else(|| Wire::refused(shard(&route.server_name), NO_RESOURCES))?;
        let state = if pg.is_good() { Poll::Writing } else { Poll::Failed };
        if state == Poll::Failed {
            return Err(Wire::refused(shard(&route.server_name), &pg.message()));
        }
        Ok(Attempt {
            server,
            name: route.server_name.clone(),
            options,
            needs_password: route.needs_password,
            stage: Stage::Connecting(pg, state),
        })
    });
    let (begun, failed): (Vec<_>, Vec<_>) = begun.partition(Result::is_ok);
    match failed.into_iter().find_map(Result::err) {
        Some(error) if begun.is_empty() => Err(error),
        _ => Ok(begun.into_iter().filter_map(Result::ok).collect()),
    }
}

/// Notes an error: the first one's, with the messages of the others.
fn note(outcome: &mut Option<Surveyed>, error: Error) {
    match outcome {
        Some(Surveyed { rows: Err(first), .. }) => first.message = format!("{}; {}", first.message, error.message),
        Some(_) => {}
        None => *outcome = Some(Surveyed { rows: Err(error), latency: None }),
    }
}

fn step(
    stage: Stage,
    name: &str,
    options: &[(String, String)],
    needs_password: bool,
    text: &CString,
    encoded: &Encoded,
) -> Step {
    match stage {
        Stage::Connecting(mut pg, _) => match pg.poll() {
            Poll::Failed => Step::Failed(Wire::refused(shard(name), &pg.message())),
            Poll::Ready => match Wire::admit(shard(name), pg, options, needs_password) {
                Err(error) => Step::Failed(error),
                Ok(mut wire) => {
                    let asked = Instant::now();
                    if wire.pg.send_params(text, encoded) && wire.sent().is_ok() {
                        Step::Wait(Stage::Asked(wire, asked))
                    } else {
                        Step::Failed(wire.broken(&wire.pg.message()))
                    }
                }
            },
            state => Step::Wait(Stage::Connecting(pg, state)),
        },
        Stage::Asked(mut wire, asked) => {
            if let Err(lost) = wire.push() {
                return Step::Failed(wire.lost(&lost));
            }
            match wire.finish(Limit::Until(Instant::now())) {
                Err(Lost::Late) => Step::Wait(Stage::Asked(wire, asked)),
                Err(lost) => Step::Failed(wire.lost(&lost)),
                Ok(Some(result)) if result.status() == Status::Rows => Step::Done(Row::all(result), asked.elapsed()),
                Ok(Some(result)) if result.status() == Status::Error => Step::Failed(wire.report(&result)),
                Ok(_) => Step::Failed(wire.broken("unexpected answer")),
            }
        }
    }
}

/// The shard's name in a server's.
fn shard(server: &str) -> &str {
    server.strip_prefix("docshard_").unwrap_or(server)
}

impl Attempt {
    /// The socket, and whether reading is waited for; else writing is.
    fn waits_for(&self) -> (std::ffi::c_int, bool) {
        match &self.stage {
            Stage::Connecting(pg, state) => (pg.socket(), *state == Poll::Reading),
            Stage::Asked(wire, _) => (wire.pg.socket(), !wire.is_unflushed()),
        }
    }
}
