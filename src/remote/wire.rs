//! One libpq connection with waiting, interrupts and errors: what cached connections and sessions have in common.
//!
//! INVARIANT: the server at the other end is no standby. A standby lags, and shows none of the prepared transactions that it will
//! have when it is promoted: what it does not show, a router would take for gone. A server that was none when the connection was
//! made stays none as long as the connection lasts.
//!
//! Where nothing arrives for as long as `docshard.shard_timeout` says, the shard is asked over another connection whether it still
//! answers ([`Target`]), but not where the wait has an end that does not serve interrupts ([`Limit::Until`]).
//!
//! A wire never retries and knows no transactions. Where it waits with [`Limit::Served`], an interrupt unwinds out of
//! the wait and leaves the wire in the middle of an answer; its owner must then cancel and drain it, or drop it.

use super::ffi::{self, Field, PgConn, PgResult, Poll, WaitSet, Woken};
use super::hung::{self, NO_CONNECTION};
use super::libpq_message::{INVALID_PASSWORD, one_line, without_sqlstate};
use super::options;
use super::probe::{Answer, Target};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::silence::Silence;
use docshard_core::error::Kind;
use std::time::Instant;

/// Why a connection cannot even be begun.
pub(super) const NO_RESOURCES: &str = "out of memory or file descriptors";

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
    /// a shard does not answer, this one or one that it waits for, and why that is thought
    Hung(Box<(String, String)>),
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) pg: PgConn,
    /// the server's name for messages
    pub(super) name: String,
    /// which of the hosts it is connected to
    pub(super) host: usize,
    unflushed: bool,
    /// the result that `finish` will return, while it waits for the command's end
    last: Option<PgResult>,
    silence: Silence,
    /// who is asked where nothing arrives: its own shard, and those that this may wait for
    targets: Vec<Target>,
    /// a shard that did not answer while something was to be written
    hung: Option<Box<(String, String)>>,
}

impl Wire {
    /// Connects to the first of the hosts that can be reached, each within `connect_timeout`, serving interrupts; to those that
    /// are `passed_over` only if there is no other.
    pub(super) fn connect(
        name: &str,
        options: &[(String, String)],
        needs_password: bool,
        passed_over: &[usize],
    ) -> Result<Self> {
        hung::check(shard_of(name))?;
        let mut failure: Option<Error> = None;
        let mut timed_out = false;
        let mut hosts: Vec<_> = options::alternatives(options).into_iter().enumerate().collect();
        hosts.sort_by_key(|(host, _)| passed_over.contains(host));
        for (host, one) in hosts {
            let attempt = Self::attempt(name, &one, needs_password);
            timed_out |= attempt.as_ref().is_err_and(hung::is_timeout);
            match (attempt, &mut failure) {
                (Ok(wire), _) => {
                    hung::note_answer(wire.shard());
                    return Ok(Self { host, ..wire });
                }
                (Err(next), None) => failure = Some(next),
                (Err(next), Some(first)) => {
                    let place = format!("could not connect to shard \"{name}\": ");
                    let next = next.message.strip_prefix(&place).unwrap_or(&next.message);
                    first.message = format!("{}; {next}", first.message);
                }
            }
        }
        if timed_out {
            hung::note_silence(shard_of(name), NO_CONNECTION);
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::HostUnreachable, format!("shard \"{name}\" has no host"))))
    }

    fn attempt(name: &str, options: &[(String, String)], needs_password: bool) -> Result<Self> {
        let failed = |message: String| Self::refused(name, &message);
        let deadline = Instant::now() + hung::connecting(options);
        let mut pg = PgConn::start(options).ok_or_else(|| failed(NO_RESOURCES.into()))?;
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
                        let Error { sqlstate, message, .. } = failed(TIMEOUT.into());
                        return Err(Error { sqlstate, ..Error::new(Kind::NetworkTimeout, message) });
                    }
                    ffi::wait_socket(pg.socket(), state == Poll::Reading, left.as_millis() as i64 + 1);
                    ffi::check_for_interrupts();
                    if Instant::now() < deadline {
                        state = pg.poll();
                    }
                }
            }
        }
        Self::admit(name, pg, options, needs_password)
    }

    /// The error of a connection that cannot be made, from libpq's message.
    pub(super) fn refused(name: &str, message: &str) -> Error {
        let (message, refused) = without_sqlstate(message);
        let error = format!("could not connect to shard \"{name}\": {}", one_line(&message));
        let error = Error::new(Kind::HostUnreachable, error);
        if refused { Error { sqlstate: INVALID_PASSWORD, ..error } } else { error }
    }

    /// Makes a wire of a connection that is ready, unless it may not be used.
    pub(super) fn admit(
        name: &str,
        mut pg: PgConn,
        options: &[(String, String)],
        needs_password: bool,
    ) -> Result<Self> {
        if needs_password && !pg.used_password() {
            return Err(options::password_error(name, "The shard did not request a password."));
        }
        if pg.reported(c"in_hot_standby").as_deref() != Some("off") {
            let message = format!("could not connect to shard \"{name}\": the server is a standby");
            return Err(Error::new(Kind::HostUnreachable, message)
                .with_hint("Give the hosts of all its servers and target_session_attrs=read-write, or promote it."));
        }
        if !pg.established() {
            return Err(Self::refused(name, &pg.message()));
        }
        let targets = vec![Target::new(shard_of(name), options)];
        let silence = Silence::default();
        Ok(Self { pg, name: name.into(), host: 0, unflushed: false, last: None, silence, targets, hung: None })
    }

    /// What runs here may wait for the other's shard: that is asked, too, where nothing arrives.
    pub(super) fn waits_also_for(&mut self, other: &Wire) {
        self.targets.extend_from_slice(&other.targets);
    }

    /// Called after a batch was given to libpq: writes what the socket takes now.
    pub(super) fn sent(&mut self) -> std::result::Result<(), Lost> {
        self.silence.end();
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
        self.ready(limit)?;
        Ok(self.pg.result())
    }

    /// Waits until the next result, or the command's end, is here.
    pub(super) fn ready(&mut self, limit: Limit) -> std::result::Result<(), Lost> {
        if let Some(hung) = self.hung.take() {
            return Err(Lost::Hung(hung));
        }
        loop {
            if self.unflushed {
                self.unflushed = !self.flush()?;
            }
            if !self.unflushed && !self.pg.is_busy() {
                return Ok(());
            }
            if !self.pg.is_good() {
                return Err(Lost::Broken(self.pg.message()));
            }
            let deadline = match limit {
                Limit::Served | Limit::Outcome => None,
                Limit::Until(deadline) | Limit::ServedUntil(deadline) => Some(deadline),
            };
            let patience = if matches!(limit, Limit::Until(_)) { None } else { hung::patience() };
            let mut is_due = false;
            let timeout = if deadline.is_none() && patience.is_none() {
                -1
            } else {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    return Err(Lost::Late);
                }
                let due = patience.map(|patience| self.silence.due(now, patience));
                is_due = due.is_some_and(|due| due <= now);
                // What has arrived while nobody waited comes first.
                let until = [deadline, due].into_iter().flatten().min().unwrap_or(now);
                until.checked_duration_since(now).map_or(0, |left| left.as_millis() as i64 + 1)
            };
            match self.pg.wait(self.unflushed, timeout) {
                Woken::Sign => self.silence.end(),
                Woken::Silence if is_due => self.ask(limit)?,
                Woken::Silence => {}
                Woken::Orphaned => return Err(Lost::Late),
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

    /// Nothing has arrived for long: asks whether the shard, and those that it may wait for, still answer.
    fn ask(&mut self, limit: Limit) -> std::result::Result<(), Lost> {
        for target in &self.targets {
            match target.ask(matches!(limit, Limit::Outcome)) {
                Answer::Yes => {}
                Answer::Canceled => return Err(Lost::Late),
                Answer::No(why) => {
                    hung::note_silence(&target.shard, &why);
                    return Err(Lost::Hung(Box::new((target.shard.clone(), why))));
                }
            }
        }
        self.silence.end();
        Ok(())
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
            detail: result.field(Field::Detail),
            hint: result.field(Field::Hint),
            context: Some(match result.field(Field::Context) {
                Some(remote) => format!("{remote}\n{place}"),
                None => place,
            }),
            ..Error::of_sqlstate(sqlstate, result.field(Field::Message).unwrap_or_else(|| result.message()))
        }
    }

    /// The shard's name, for people: the server's without what marks it as ours.
    pub(super) fn shard(&self) -> &str {
        shard_of(&self.name)
    }

    /// The error of a connection that is lost.
    pub(super) fn broken(&self, message: &str) -> Error {
        let detail = Some(one_line(message)).filter(|m| !m.is_empty());
        let lost = format!("lost the connection to shard \"{}\"", self.shard());
        Error { detail, ..Error::of_sqlstate(*b"08006", lost) }
    }

    pub(super) fn lost(&self, lost: &Lost) -> Error {
        match lost {
            Lost::Broken(message) => self.broken(message),
            Lost::Late => self.broken(TIMEOUT),
            Lost::Hung(hung) => hung::does_not_answer(&hung.0, &hung.1),
        }
    }
}

/// Why something was given up.
const TIMEOUT: &str = "timeout expired";

/// The shard's name, for people, of a foreign server's.
fn shard_of(server: &str) -> &str {
    server.strip_prefix("docshard_").unwrap_or(server)
}

/// Writes everything out on all wires, which takes turns only where messages exceed what the sockets buffer.
///
/// A connection that breaks is left to whoever awaits its answer.
pub(super) fn flush_all<'a>(wires: impl Iterator<Item = &'a mut Wire>) {
    let mut pending: Vec<&mut Wire> = wires.filter(|w| w.is_unflushed()).collect();
    let mut silence = Silence::default();
    while !pending.is_empty() {
        let mut set = WaitSet::new(pending.len());
        for wire in &pending {
            set.add(wire.pg.socket(), true, true);
        }
        let due = hung::patience().map(|patience| silence.due(Instant::now(), patience));
        let left = due.map(|due| due.saturating_duration_since(Instant::now()).as_millis() as i64 + 1);
        let woken = set.wait(left.unwrap_or(-1));
        drop(set);
        if woken == Woken::Orphaned {
            return;
        }
        ffi::check_for_interrupts();
        let is_due = woken == Woken::Silence && due.is_some_and(|due| due <= Instant::now());
        if woken == Woken::Sign || is_due {
            silence.end();
        }
        for wire in &mut pending {
            let done = if is_due { wire.ask(Limit::Served) } else { wire.push() };
            if let Err(lost) = done {
                wire.unflushed = false;
                wire.hung = if let Lost::Hung(hung) = lost { Some(hung) } else { None };
            }
        }
        pending.retain(|w| w.is_unflushed());
    }
}
