//! Sends one query to many servers at once, each over a new connection, within a time limit.
//!
//! A server that does not answer delays no other one; its result is an error. All hosts of a server are tried at the same time;
//! the first answer counts. A refused password may be changing, so the server is tried again, as by [`super::login`].

use super::ffi::{self, PgConn, Poll, WaitSet};
use super::libpq_message::INVALID_PASSWORD;
use super::login::{PAUSE_MS, RETRY_PASSWORD};
use super::options;
use super::param::{Encoded, Param, c_string};
use super::row::Row;
use super::wire::{Finished, Limit, Lost, NO_RESOURCES, Wire, shard_of};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::frontend::Answer;
use crate::pg::server::sleep_ms;
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, c_int};
use std::time::{Duration, Instant};

/// The answer of one server.
#[derive(Debug)]
pub struct Surveyed {
    pub rows: Result<Vec<Row>>,
    /// the round trip of the query, without connecting; None without an answer
    pub latency: Option<Duration>,
}

/// The connection to one host of one server.
struct Attempt {
    /// the server's position
    server: usize,
    shard: String,
    options: Vec<(String, String)>,
    needs_password: bool,
    stage: Stage,
}

enum Stage {
    Connecting(PgConn, Poll),
    Queried(Wire, Instant),
    Done(Result<(Vec<Row>, Duration)>),
}

/// Queries every server, as the service role; answers come in the order of `servers`. The system resolves host names before
/// that, without a time limit. Serves interrupts.
///
/// # Errors
/// `BSONObjectTooLarge` for a parameter that is too long.
pub fn survey(servers: &[Oid], sql: &str, params: &[Param<'_>], limit: Duration) -> Result<Vec<Surveyed>> {
    let text = c_string(sql)?;
    let mut encoded = Encoded::default();
    encoded.encode(params)?;
    let (began, pause) = (Instant::now(), Duration::from_millis(PAUSE_MS.unsigned_abs()));
    let mut outcomes: Vec<Option<Surveyed>> = servers.iter().map(|_| None).collect();
    let mut due: Vec<(usize, Oid)> = servers.iter().copied().enumerate().collect();
    while !due.is_empty() {
        ask(&due, &text, &encoded, (began + limit, limit), &mut outcomes);
        let is_refused = |outcome: &Option<Surveyed>| {
            outcome
                .as_ref()
                .is_some_and(|outcome| matches!(&outcome.rows, Err(error) if error.sqlstate == INVALID_PASSWORD))
        };
        due.retain(|(server, _)| is_refused(&outcomes[*server]));
        if due.is_empty() || began.elapsed() + pause > RETRY_PASSWORD.min(limit) {
            break;
        }
        sleep_ms(PAUSE_MS);
        ffi::accept_invalidations();
        due.iter().for_each(|(server, _)| outcomes[*server] = None);
    }
    let unasked = || Surveyed { rows: Err(Error::new(Kind::InternalError, "a shard was not asked")), latency: None };
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unasked)).collect())
}

/// Asks servers, each given with its position, until the deadline, which ends a time limit.
fn ask(
    servers: &[(usize, Oid)],
    text: &CStr,
    encoded: &Encoded,
    (deadline, limit): (Instant, Duration),
    outcomes: &mut [Option<Surveyed>],
) {
    let mut attempts = Vec::new();
    for &(server, oid) in servers {
        match begin(server, oid) {
            Ok(begun) => attempts.extend(begun),
            Err(error) => note(&mut outcomes[server], error),
        }
    }
    while !attempts.is_empty() && Instant::now() < deadline {
        let sockets: Vec<_> = attempts.iter().filter_map(Attempt::waits_for).collect();
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
            let attempt = if ready { attempt.step(text, encoded) } else { attempt };
            let outcome = &mut outcomes[attempt.server];
            match attempt.stage {
                _ if outcome.as_ref().is_some_and(|outcome| outcome.rows.is_ok()) => {}
                Stage::Done(Ok((rows, latency))) => {
                    *outcome = Some(Surveyed { rows: Ok(rows), latency: Some(latency) });
                }
                Stage::Done(Err(error)) => note(outcome, error),
                stage => rest.push(Attempt { stage, ..attempt }),
            }
        }
        attempts = rest;
    }
    for Attempt { server, shard, .. } in &attempts {
        let message = format!("shard \"{shard}\" did not answer within {} ms", limit.as_millis());
        note(&mut outcomes[*server], Error::new(Kind::HostUnreachable, message));
    }
}

/// Begins to connect to all hosts of a server.
fn begin(server: usize, oid: Oid) -> Result<Vec<Attempt>> {
    let route = options::route(oid)?;
    let shard = shard_of(&route.server_name);
    let begun = options::alternatives(&route.options).into_iter().map(|options| {
        let pg = PgConn::start(&options).ok_or_else(|| Wire::refused(shard, NO_RESOURCES))?;
        if !pg.is_good() {
            return Err(Wire::refused(shard, &pg.message()));
        }
        let stage = Stage::Connecting(pg, Poll::Writing);
        Ok(Attempt { server, shard: shard.to_owned(), options, needs_password: route.needs_password, stage })
    });
    let (begun, failed): (Vec<_>, Vec<_>) = begun.partition(Result::is_ok);
    match failed.into_iter().find_map(Result::err) {
        Some(error) if begun.is_empty() => Err(error),
        _ => Ok(begun.into_iter().filter_map(Result::ok).collect()),
    }
}

/// Records an error of a host, unless another host has answered. Messages of several are joined; a refused password counts more.
fn note(outcome: &mut Option<Surveyed>, error: Error) {
    match outcome {
        Some(Surveyed { rows: Err(first), .. }) => {
            first.message = format!("{}; {}", first.message, error.message);
            if error.sqlstate == INVALID_PASSWORD {
                first.sqlstate = INVALID_PASSWORD;
            }
        }
        Some(_) => {}
        None => *outcome = Some(Surveyed { rows: Err(error), latency: None }),
    }
}

impl Attempt {
    /// Reads or writes what the socket is ready for.
    fn step(self, text: &CStr, params: &Encoded) -> Self {
        let stage = match self.stage {
            Stage::Connecting(mut pg, _) => match pg.poll() {
                Poll::Failed => Stage::Done(Err(Wire::refused(&self.shard, &pg.message()))),
                Poll::Ready => match Wire::admit(&self.shard, pg, &self.options, self.needs_password) {
                    Err(error) => Stage::Done(Err(error)),
                    Ok(mut wire) => {
                        let began = Instant::now();
                        wire.pg.send_params(text, params);
                        wire.sent();
                        Stage::Queried(wire, began)
                    }
                },
                state => Stage::Connecting(pg, state),
            },
            Stage::Queried(mut wire, began) => {
                match wire.push().and_then(|()| wire.finish(Limit::Until(Instant::now()))) {
                    Err(Lost::Late) => Stage::Queried(wire, began),
                    Err(lost) => Stage::Done(Err(wire.lost(&lost))),
                    Ok(Some(Finished { result: Answer::Done(_), rows })) => Stage::Done(Ok((rows, began.elapsed()))),
                    Ok(Some(Finished { result: Answer::Error(report), .. })) => Stage::Done(Err(wire.report(&report))),
                    Ok(_) => Stage::Done(Err(wire.broken("unexpected answer"))),
                }
            }
            done @ Stage::Done(_) => done,
        };
        Self { stage, ..self }
    }

    /// The socket, and true if it must be readable, false if writable.
    fn waits_for(&self) -> Option<(c_int, bool)> {
        match &self.stage {
            Stage::Connecting(pg, state) => Some((pg.socket(), *state == Poll::Reading)),
            Stage::Queried(wire, _) => Some((wire.pg.socket(), !wire.is_unflushed())),
            Stage::Done(_) => None,
        }
    }
}
