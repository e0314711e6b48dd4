//! One libpq connection with waiting, interrupts and errors: what cached connections and sessions have in common.
//!
//! INVARIANT: the server at the other end is no standby. A standby lags, and shows none of the prepared transactions that it will
//! have when it is promoted: what it does not show, a router would take for gone. A server that was none when the connection was
//! made stays none as long as the connection lasts.
//!
//! A wire never retries and knows no transactions. Where it waits with [`Limit::Served`], an interrupt unwinds out of
//! the wait and leaves the wire in the middle of an answer; its owner must then cancel and drain it, or drop it.

use super::ffi::{self, Field, PgConn, PgResult, Poll, WaitSet};
use super::options;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use std::time::{Duration, Instant};

/// SQLSTATE of a password that was refused.
pub(super) const INVALID_PASSWORD: [u8; 5] = *b"28P01";

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// for ever, but cancel, timeouts and shutdown are served by unwinding
    Served,
    /// not beyond this moment, and nothing is served: for cleaning up, where raising is forbidden
    Until(Instant),
    /// not beyond this moment; interrupts are served
    ServedUntil(Instant),
    /// for ever, but a cancel that is held back ends the wait ([`Lost::Late`]); a shutdown is served by unwinding
    Outcome,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Lost {
    /// the connection is unusable; libpq's message
    Broken(String),
    /// the time is over, the answer may still come
    Late,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) pg: PgConn,
    /// the server's name for messages
    pub(super) name: String,
    unflushed: bool,
    /// the result that `finish` will return, while it waits for the command's end
    last: Option<PgResult>,
}

impl Wire {
    /// Connects to the first of the hosts that can be reached, each within `connect_timeout`, serving interrupts.
    pub(super) fn connect(name: &str, options: &[(String, String)], needs_password: bool) -> Result<Self> {
        let mut failure: Option<Error> = None;
        for one in options::alternatives(options) {
            match (Self::attempt(name, &one, needs_password), &mut failure) {
                (Ok(wire), _) => return Ok(wire),
                (Err(next), None) => failure = Some(next),
                (Err(next), Some(first)) => {
                    let place = format!("could not connect to shard \"{name}\": ");
                    let next = next.message.strip_prefix(&place).unwrap_or(&next.message);
                    first.message = format!("{}; {next}", first.message);
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::HostUnreachable, format!("shard \"{name}\" has no host"))))
    }

    fn attempt(name: &str, options: &[(String, String)], needs_password: bool) -> Result<Self> {
        let failed = |message: String| {
            let (message, refused) = without_sqlstate(&message);
            let error = format!("could not connect to shard \"{name}\": {}", one_line(&message));
            let error = Error::new(Kind::HostUnreachable, error);
            if refused { Error { sqlstate: INVALID_PASSWORD, ..error } } else { error }
        };
        let deadline = Instant::now() + Duration::from_secs(options::connect_timeout(options));
        let mut pg = PgConn::start(options).ok_or_else(|| failed("out of memory or file descriptors".into()))?;
        if !pg.is_good() {
            return Err(failed(pg.message()));
        }
        let mut state = Poll::Writing;
        loop {
            match state {
                Poll::Ready => break,
                Poll::Failed => return Err(failed(pg.message())),
                Poll::Reading | Poll::Writing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failed("timeout expired".into()));
                    }
                    ffi::wait_socket(pg.socket(), state == Poll::Reading, left.as_millis() as i64 + 1);
                    ffi::check_for_interrupts();
                    if Instant::now() < deadline {
                        state = pg.poll();
                    }
                }
            }
        }
        if needs_password && !pg.used_password() {
            return Err(options::password_error(name, "The shard did not request a password."));
        }
        if pg.reported(c"in_hot_standby").as_deref() != Some("off") {
            let message = format!("could not connect to shard \"{name}\": the server is a standby");
            return Err(Error::new(Kind::HostUnreachable, message)
                .with_hint("Give the hosts of all its servers and target_session_attrs=read-write, or promote it."));
        }
        if !pg.established() {
            return Err(failed(pg.message()));
        }
        Ok(Self { pg, name: name.into(), unflushed: false, last: None })
    }

    /// Called after a batch was given to libpq: writes what the socket takes now.
    pub(super) fn sent(&mut self) -> std::result::Result<(), Lost> {
        self.unflushed = !self.flush()?;
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<bool, Lost> {
        self.pg.flush().ok_or_else(|| Lost::Broken(self.pg.message()))
    }

    /// True while part of what was sent is still here.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Takes a step in writing without waiting, reading what the other side wants to get rid of.
    pub(super) fn push(&mut self) -> std::result::Result<(), Lost> {
        if !self.pg.consume() {
            return Err(Lost::Broken(self.pg.message()));
        }
        self.sent()
    }

    /// The next result, or None at a command's end.
    pub(super) fn result(&mut self, limit: Limit) -> std::result::Result<Option<PgResult>, Lost> {
        loop {
            if self.unflushed {
                self.unflushed = !self.flush()?;
            }
            if !self.unflushed && !self.pg.is_busy() {
                return Ok(self.pg.result());
            }
            if !self.pg.is_good() {
                return Err(Lost::Broken(self.pg.message()));
            }
            let deadline = match limit {
                Limit::Served | Limit::Outcome => None,
                Limit::Until(deadline) | Limit::ServedUntil(deadline) => Some(deadline),
            };
            let timeout = match deadline {
                None => -1,
                Some(deadline) => match deadline.saturating_duration_since(Instant::now()) {
                    left if left.is_zero() => return Err(Lost::Late),
                    left => left.as_millis() as i64 + 1,
                },
            };
            if !self.pg.wait(self.unflushed, timeout) {
                return Err(Lost::Late);
            }
            if !matches!(limit, Limit::Until(_)) {
                ffi::check_for_interrupts();
            }
            let canceled = matches!(limit, Limit::Outcome) && ffi::cancel_is_due();
            // What has arrived before a connection broke is still parsed; the next turn finds the connection bad.
            if !self.pg.consume() && self.pg.is_busy() {
                return Err(Lost::Broken(self.pg.message()));
            }
            if canceled && self.pg.is_busy() {
                return Err(Lost::Late);
            }
        }
    }

    /// Reads until the command's end; the first error report, or else the last result. For commands outside of
    /// pipelines. After [`Lost::Late`] it may be called again.
    pub(super) fn finish(&mut self, limit: Limit) -> std::result::Result<Option<PgResult>, Lost> {
        while let Some(result) = self.result(limit)? {
            if self.last.as_ref().is_none_or(|last| last.status() != ffi::Status::Error) {
                self.last = Some(result);
            }
        }
        Ok(self.last.take())
    }

    /// The error that a result reports, with the shard's name.
    pub(super) fn report(&self, result: &PgResult) -> Error {
        if result.is_fatal() || !self.pg.is_good() {
            return self.broken(&result.message());
        }
        let Some(sqlstate) = result.field(Field::Sqlstate).and_then(|s| <[u8; 5]>::try_from(s.as_bytes()).ok()) else {
            return self.broken(&result.message());
        };
        let place = format!("shard \"{}\"", self.shard());
        Error {
            sqlstate,
            message: result.field(Field::Message).unwrap_or_else(|| result.message()),
            detail: result.field(Field::Detail),
            hint: result.field(Field::Hint),
            context: Some(match result.field(Field::Context) {
                Some(remote) => format!("{remote}\n{place}"),
                None => place,
            }),
            duplicate: None,
        }
    }

    /// The shard's name, for people: the server's without what marks it as ours.
    pub(super) fn shard(&self) -> &str {
        self.name.strip_prefix("docshard_").unwrap_or(&self.name)
    }

    /// The error of a connection that is lost.
    pub(super) fn broken(&self, message: &str) -> Error {
        Error {
            sqlstate: *b"08006",
            message: format!("lost the connection to shard \"{}\"", self.shard()),
            detail: Some(one_line(message)).filter(|m| !m.is_empty()),
            hint: None,
            context: None,
            duplicate: None,
        }
    }

    pub(super) fn lost(&self, lost: &Lost) -> Error {
        match lost {
            Lost::Broken(message) => self.broken(message),
            Lost::Late => self.broken("timeout expired"),
        }
    }
}

/// What a server says that refuses a login, without its SQLSTATE (libpq tells that only in its most verbose messages), and
/// whether that was about the password.
fn without_sqlstate(message: &str) -> (String, bool) {
    let code = std::str::from_utf8(&INVALID_PASSWORD).expect("ASCII");
    let refused = message.contains(&format!(" {code}: "));
    let text = |line: &str| match line.split_once(":  ") {
        Some((severity, rest)) if rest.get(5..7) == Some(": ") => format!("{severity}:  {}", &rest[7..]),
        _ => line.to_owned(),
    };
    let lines = message.lines().filter(|line| !line.trim_start().starts_with("LOCATION:")).map(text);
    (lines.collect::<Vec<_>>().join("\n"), refused)
}

/// libpq's message without its advice: one part for each host that was tried.
fn one_line(message: &str) -> String {
    let advice = |line: &&str| {
        line.is_empty()
            || ["Is the server", "This probably", "before or while"].iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = message.lines().map(str::trim).filter(|line| !advice(line)).collect();
    lines.join("; ")
}

/// Writes everything out on all wires, which takes turns only where messages exceed what the sockets buffer.
///
/// A connection that breaks is left to whoever awaits its answer.
pub(super) fn flush_all<'a>(wires: impl Iterator<Item = &'a mut Wire>) {
    let mut pending: Vec<&mut Wire> = wires.filter(|w| w.is_unflushed()).collect();
    while !pending.is_empty() {
        let mut set = WaitSet::new(pending.len());
        for wire in &pending {
            set.add(wire.pg.socket(), true, true);
        }
        let goes_on = set.wait(-1);
        drop(set);
        if !goes_on {
            return;
        }
        ffi::check_for_interrupts();
        for wire in &mut pending {
            if wire.push().is_err() {
                wire.unflushed = false;
            }
        }
        pending.retain(|w| w.is_unflushed());
    }
}
