//! Sends one query to many servers at once, each over a new connection, within a time limit.
//!
//! A server that does not answer delays no other one; its result is an error. All hosts of a server are tried at the same time. An old
//! primary may be among them, so the result is the first answer that the caller accepts.

use super::ffi::{self, PgConn, Poll, WaitSet};
use super::login::{self, Passwords};
use super::options::{self, Route};
use super::param::{Encoded, Param, c_string};
use super::row::RemoteRow;
use super::wire::{Finished, Limit, Lost, NO_RESOURCES, Wire, cannot_connect, shard_of};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::frontend::Answer;
use docshard_core::error::{Kind, error};
use docshard_core::sql::column::Column;
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, c_int};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The answer of one server.
#[derive(Debug)]
pub struct Surveyed {
    pub rows: Result<Vec<RemoteRow>>,
    /// the time from sending the query to its answer, without connecting; None without an answer
    pub latency: Option<Duration>,
}

/// The connection to one host of one server.
struct Attempt {
    /// the server's index in the list of servers
    server: usize,
    oid: Oid,
    /// the host's index among those of the server
    host: usize,
    route: Rc<Route>,
    passwords: Passwords,
    stage: Stage,
}

enum Stage {
    Connecting(PgConn, Poll),
    Queried(Wire, Instant),
    Done(Result<(Vec<RemoteRow>, Duration)>),
}

/// Queries every server, as the service role, for rows with these columns; answers come in the order of `servers`. `accept` gets
/// a server's index in `servers`, and its answer: an error refuses the host that the answer came from. `limit` does not
/// cover the resolution of host names. Serves interrupts.
///
/// # Errors
/// `BSONObjectTooLarge` for a parameter that is too long.
pub fn survey(
    servers: &[Oid],
    sql: &str,
    params: &[Param<'_>],
    columns: Vec<Column>,
    limit: Duration,
    accept: &dyn Fn(usize, &[RemoteRow]) -> Result<()>,
) -> Result<Vec<Surveyed>> {
    let text = c_string(sql)?;
    let mut encoded = Encoded::default();
    encoded.encode(params, Some(columns.into()))?;
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
            let attempt = if ready { attempt.step(&text, &encoded, accept) } else { attempt };
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
    for Attempt { server, route, .. } in &attempts {
        let shard = shard_of(&route.server_name);
        let message = format!("shard \"{shard}\" did not answer within {} ms", limit.as_millis());
        note(&mut outcomes[*server], Error::new(Kind::HostUnreachable, message));
    }
    let unasked = || Surveyed { rows: Err(error!(Kind::InternalError, "a shard was not asked")), latency: None };
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unasked)).collect())
}

/// Begins to connect to all hosts of a server.
fn begin(server: usize, oid: Oid) -> Result<Vec<Attempt>> {
    let route = Rc::new(options::route(oid)?);
    let hosts = options::alternatives(&route.options).len();
    let begun = (0..hosts).map(|host| {
        let (stage, route) = (Stage::begin(&route, host)?, Rc::clone(&route));
        Ok(Attempt { server, oid, host, route, passwords: Passwords::default(), stage })
    });
    let (begun, failed): (Vec<_>, Vec<_>) = begun.partition(Result::is_ok);
    match failed.into_iter().find_map(Result::err) {
        Some(error) if begun.is_empty() => Err(error),
        _ => Ok(begun.into_iter().filter_map(Result::ok).collect()),
    }
}

/// Records an error of a host, unless another host of the server has answered. The messages of several hosts are joined.
fn note(outcome: &mut Option<Surveyed>, error: Error) {
    match outcome {
        Some(Surveyed { rows: Err(first), .. }) => first.message = format!("{}; {}", first.message, error.message),
        Some(_) => {}
        None => *outcome = Some(Surveyed { rows: Err(error), latency: None }),
    }
}

impl Stage {
    /// Begins to connect to a host of a route.
    fn begin(route: &Route, host: usize) -> Result<Self> {
        let shard = shard_of(&route.server_name);
        let mut hosts = options::alternatives(&route.options);
        // The hosts may have changed since the first attempt.
        let one = hosts.swap_remove(host.min(hosts.len() - 1));
        let pg = PgConn::start(&one).ok_or_else(|| Wire::refused(&cannot_connect(shard), NO_RESOURCES))?;
        if pg.is_good() {
            Ok(Self::Connecting(pg, Poll::Writing))
        } else {
            Err(Wire::refused(&cannot_connect(shard), &pg.message()))
        }
    }
}

impl Attempt {
    /// Reads or writes what the socket is ready for.
    fn step(self, text: &CStr, params: &Encoded, accept: &dyn Fn(usize, &[RemoteRow]) -> Result<()>) -> Self {
        let shard = shard_of(&self.route.server_name);
        let stage = match self.stage {
            Stage::Connecting(mut pg, _) => match pg.poll() {
                Poll::Failed => Stage::Done(Err(Wire::refused(&cannot_connect(shard), &pg.message()))),
                Poll::Ready => {
                    match Wire::admit(shard, &cannot_connect(shard), pg, &self.route.options, self.route.needs_password)
                    {
                        Err(error) => Stage::Done(Err(error)),
                        Ok(mut wire) => {
                            let began = Instant::now();
                            wire.pg.send_params(text, params);
                            wire.sent();
                            Stage::Queried(wire, began)
                        }
                    }
                }
                state => Stage::Connecting(pg, state),
            },
            Stage::Queried(mut wire, began) => {
                match wire.push().and_then(|()| wire.finish(Limit::Until(Instant::now()))) {
                    Err(Lost::Late) => Stage::Queried(wire, began),
                    Err(lost) => Stage::Done(Err(wire.lost(&lost))),
                    Ok(Some(Finished { result: Answer::Done(_), rows })) => {
                        Stage::Done(accept(self.server, &rows).map(|()| (rows, began.elapsed())))
                    }
                    Ok(Some(Finished { result: Answer::Error(report), .. })) => Stage::Done(Err(wire.report(&report))),
                    Ok(_) => Stage::Done(Err(wire.broken("unexpected answer"))),
                }
            }
            done @ Stage::Done(_) => done,
        };
        Self { stage, ..self }.with_next_password()
    }

    /// If the login was refused, begins another one with the next password that the catalog knows.
    fn with_next_password(mut self) -> Self {
        let Stage::Done(Err(error)) = &self.stage else { return self };
        match self.passwords.next(self.oid, &self.route, error) {
            Ok(Some(route)) => {
                self.stage = Stage::begin(&route, self.host).unwrap_or_else(|error| Stage::Done(Err(error)));
                self.route = Rc::new(route);
            }
            Ok(None) => self.stage = Stage::Done(Err(login::explained(self.oid, &self.route, error.clone()))),
            Err(error) => self.stage = Stage::Done(Err(error)),
        }
        self
    }

    /// The socket that the attempt waits for, and true if it must be readable, false if writable.
    fn waits_for(&self) -> Option<(c_int, bool)> {
        match &self.stage {
            Stage::Connecting(pg, state) => Some((pg.socket(), *state == Poll::Reading)),
            Stage::Queried(wire, _) => Some((wire.pg.socket(), !wire.is_unflushed())),
            Stage::Done(_) => None,
        }
    }
}
