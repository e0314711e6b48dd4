//! One connection with waiting, interrupts and error reports. Cached connections and sessions are built on it.
//!
//! A wire never retries and knows no transactions. An interrupt unwinds out of a wait with [`Limit::Served`] in the middle of an
//! answer; the owner must then cancel and drain the wire, or drop it. If nothing arrives for `docshard.shard_timeout`, the shard is
//! probed over another connection ([`ProbeTarget`]), except during a wait with [`Limit::Until`].
//!
//! Invariant: the server is not a standby. A standby does not show the prepared transactions that it will have after its
//! promotion, so a router would conclude that they have ended. A server that is no standby when the connection is made never
//! becomes one.

use super::ffi::{self, PgConn, Poll, WaitSet, Woken};
use super::hung::{self, NO_CONNECTION};
use super::libpq_message::{one_line, without_sqlstate};
use super::options;
use super::probe::{ProbeResult, ProbeTarget};
use super::row::{RemoteRow, Rows};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::frontend::{Answer, Report};
use docshard_core::cluster::silence::Silence;
use docshard_core::error::report::Fields;
use docshard_core::error::sqlstate::{self, INVALID_PASSWORD};
use docshard_core::error::{Kind, Parts, error};
use std::time::{Duration, Instant};

/// The reason why libpq could not begin to connect.
pub(super) const NO_RESOURCES: &str = "out of memory or file descriptors";

/// How long to wait for an answer, and whether interrupts are served by unwinding.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// for ever; interrupts are served
    Served,
    /// until this time; interrupts are not served: for cleanup that must not raise
    Until(Instant),
    /// until this time; interrupts are served
    ServedUntil(Instant),
    /// until a cancel is pending: the wait then ends with [`Lost::Late`], and the cancel is not served; a shutdown is served
    Outcome,
    /// like [`Limit::Outcome`], but at most until this time
    OutcomeUntil(Instant),
}

impl Limit {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Served | Self::Outcome => None,
            Self::Until(deadline) | Self::ServedUntil(deadline) | Self::OutcomeUntil(deadline) => Some(deadline),
        }
    }

    fn is_for_outcome(self) -> bool {
        matches!(self, Self::Outcome | Self::OutcomeUntil(_))
    }
}

#[derive(Debug)]
pub(super) enum Lost {
    /// the connection is unusable, for this reason
    Broken(String),
    /// the server has sent something that is not an answer to what was asked
    Violation(String),
    /// the time limit has passed; the answer may still arrive
    Late,
    /// the shard, or one that it waits for, does not respond: its name, and the reason
    Hung(Box<(String, String)>),
    /// the answer is too large to be read
    TooLarge(Box<Error>),
}

/// The end of a command: its last answer, or the first error report, and its rows.
pub(super) struct Finished {
    pub(super) result: Answer,
    pub(super) rows: Vec<RemoteRow>,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) pg: PgConn,
    /// the name of the foreign server
    pub(super) name: String,
    /// the position of the connected host
    pub(super) host: usize,
    unflushed: bool,
    /// the answer that `finish` will return
    last: Option<Answer>,
    /// the rows that `finish` will return
    rows: Rows,
    silence: Silence,
    /// the statement's deadline and time limit: see [`hung::due`]
    due: Option<(Instant, Duration)>,
    /// the shards to probe if nothing arrives: this one, and shards that it may wait for
    targets: Vec<ProbeTarget>,
    /// a shard that did not respond while a batch was written
    hung: Option<Box<(String, String)>>,
}

impl Wire {
    /// Connects to the first reachable host, each within `connect_timeout`; tries `passed_over` hosts last. Serves interrupts.
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
            let beginning = if failure.is_none() { cannot_connect(name) } else { String::new() };
            let attempt = Self::attempt(name, &beginning, &one, needs_password);
            timed_out |= attempt.as_ref().is_err_and(hung::is_timeout);
            match (attempt, &mut failure) {
                (Ok(wire), _) => {
                    hung::note_answer(wire.shard());
                    return Ok(Self { host, ..wire });
                }
                (Err(next), None) => failure = Some(next),
                (Err(next), Some(first)) => {
                    first.message = format!("{}; {}", first.message, next.message);
                    if next.sqlstate == INVALID_PASSWORD {
                        first.sqlstate = INVALID_PASSWORD;
                    }
                }
            }
        }
        if timed_out {
            hung::note_silence(shard_of(name), NO_CONNECTION);
        }
        Err(failure.unwrap_or_else(|| error!(Kind::HostUnreachable, "shard \"{name}\" has no host")))
    }

    /// Connects to one host. `beginning`: how the message of an error begins.
    fn attempt(name: &str, beginning: &str, options: &[(String, String)], needs_password: bool) -> Result<Self> {
        let failed = |message: String| Self::refused(beginning, &message);
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
                        let Parts { sqlstate, message, .. } = failed(TIMEOUT.into()).into_parts();
                        return Err(Error::new(Kind::NetworkTimeout, message).with_sqlstate(sqlstate));
                    }
                    ffi::wait_socket(pg.socket(), state == Poll::Reading, left.as_millis() as i64 + 1);
                    ffi::check_for_interrupts();
                    if Instant::now() < deadline {
                        state = pg.poll();
                    }
                }
            }
        }
        Self::admit(name, beginning, pg, options, needs_password)
    }

    /// The error of a connection that could not be made, from libpq's message. See [`cannot_connect`].
    pub(super) fn refused(beginning: &str, message: &str) -> Error {
        let (message, refused) = without_sqlstate(message);
        let error = error!(Kind::HostUnreachable, "{beginning}{}", one_line(&message));
        if refused { error.with_sqlstate(INVALID_PASSWORD) } else { error }
    }

    /// Turns an established connection into a wire; refuses standbys, and servers that did not ask for a required password.
    pub(super) fn admit(
        name: &str,
        beginning: &str,
        mut pg: PgConn,
        options: &[(String, String)],
        needs_password: bool,
    ) -> Result<Self> {
        if needs_password && !pg.used_password() {
            return Err(options::password_error(name, "The shard did not request a password."));
        }
        if pg.reported(c"in_hot_standby").as_deref() != Some("off") {
            let message = format!("{beginning}the server is a standby");
            return Err(Error::new(Kind::HostUnreachable, message)
                .with_hint("Give the hosts of all its servers and target_session_attrs=read-write, or promote it."));
        }
        pg.established();
        let targets = vec![ProbeTarget::new(shard_of(name), options)];
        let silence = Silence::default();
        Ok(Self {
            pg,
            name: name.into(),
            host: 0,
            unflushed: false,
            last: None,
            rows: Rows::default(),
            silence,
            due: None,
            targets,
            hung: None,
        })
    }

    /// Declares that statements here may wait for the shard of `other`, which is then probed, too.
    pub(super) fn waits_also_for(&mut self, other: &Wire) {
        self.targets.extend_from_slice(&other.targets);
    }

    /// Called when a batch was begun: writes as much of it as the socket accepts.
    pub(super) fn sent(&mut self) {
        self.due = hung::due();
        self.write();
    }

    fn write(&mut self) {
        self.silence.end();
        self.unflushed = !self.pg.flush();
    }

    /// Fails if the statement's deadline has passed.
    fn check_due(&self, now: Instant) -> std::result::Result<(), Lost> {
        let Some((_, limit)) = self.due.filter(|(due, _)| *due <= now) else { return Ok(()) };
        let why = format!("a statement has not ended within {} s", limit.as_secs());
        hung::note_silence(self.shard(), &why);
        Err(Lost::Hung(Box::new((self.shard().to_owned(), why))))
    }

    /// Why the connection is unusable.
    pub(super) fn loss(&self) -> Lost {
        match self.pg.violation() {
            Some(what) => Lost::Violation(what.to_owned()),
            None => Lost::Broken(self.pg.message()),
        }
    }

    /// True while part of a batch is unwritten.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Reads and writes without waiting.
    pub(super) fn push(&mut self) -> std::result::Result<(), Lost> {
        if !self.pg.consume() && self.pg.is_busy() {
            return Err(self.loss());
        }
        self.write();
        Ok(())
    }

    /// The next part of an answer, or None at its end.
    pub(super) fn result(&mut self, limit: Limit) -> std::result::Result<Option<Answer>, Lost> {
        self.ready(limit)?;
        Ok(self.pg.result())
    }

    /// True if the next result, or the command's end, has arrived.
    pub(super) fn has_arrived(&mut self) -> bool {
        !self.unflushed && !self.pg.is_busy()
    }

    /// Waits until the next result, or the command's end, has arrived.
    pub(super) fn ready(&mut self, limit: Limit) -> std::result::Result<(), Lost> {
        if let Some(hung) = self.hung.take() {
            return Err(Lost::Hung(hung));
        }
        loop {
            if self.unflushed {
                self.unflushed = !self.pg.flush();
            }
            if !self.unflushed && !self.pg.is_busy() {
                return Ok(());
            }
            if !self.pg.is_good() {
                return Err(self.loss());
            }
            let deadline = limit.deadline();
            let patience = if matches!(limit, Limit::Until(_)) { None } else { hung::patience() };
            let mut is_due = false;
            let ends = if matches!(limit, Limit::Until(_)) { None } else { self.due.map(|(due, _)| due) };
            let timeout = if deadline.is_none() && patience.is_none() && ends.is_none() {
                -1
            } else {
                let now = Instant::now();
                if ends.is_some() {
                    self.check_due(now)?;
                }
                if deadline.is_some_and(|deadline| deadline <= now) {
                    return Err(Lost::Late);
                }
                let due = patience.map(|patience| self.silence.due(now, patience));
                is_due = due.is_some_and(|due| due <= now);
                // With a timeout of 0, only what has arrived is read.
                let until = [deadline, due, ends].into_iter().flatten().min().unwrap_or(now);
                until.checked_duration_since(now).map_or(0, |left| left.as_millis() as i64 + 1)
            };
            hung::show_wait(self.shard());
            match self.pg.wait(self.unflushed, timeout) {
                Woken::Sign => self.silence.end(),
                Woken::Silence if is_due => self.probe(limit)?,
                Woken::Silence => {}
                Woken::Orphaned => return Err(Lost::Late),
            }
            if !matches!(limit, Limit::Until(_)) {
                ffi::check_for_interrupts();
            }
            let canceled = limit.is_for_outcome() && ffi::cancel_is_due();
            // Answers that arrived before the connection broke are parsed first.
            if !self.pg.consume() && self.pg.is_busy() {
                return Err(self.loss());
            }
            if canceled && self.pg.is_busy() {
                return Err(Lost::Late);
            }
        }
    }

    /// Checks that the shard, and those that it may wait for, still respond.
    fn probe(&mut self, limit: Limit) -> std::result::Result<(), Lost> {
        for target in &self.targets {
            match target.probe(limit.is_for_outcome()) {
                ProbeResult::Yes => {}
                ProbeResult::Canceled => return Err(Lost::Late),
                ProbeResult::No(why) => {
                    hung::note_silence(&target.shard, &why);
                    return Err(Lost::Hung(Box::new((target.shard.clone(), why))));
                }
            }
        }
        self.silence.end();
        Ok(())
    }

    /// Reads to the end of a command outside a pipeline; None if there was no answer. May be called again after [`Lost::Late`].
    pub(super) fn finish(&mut self, limit: Limit) -> std::result::Result<Option<Finished>, Lost> {
        while let Some(result) = self.result(limit)? {
            match result {
                Answer::Row(columns) => {
                    self.rows.add(RemoteRow::of(columns)).map_err(|error| Lost::TooLarge(Box::new(error)))?;
                }
                _ if matches!(self.last, Some(Answer::Error(_))) => {}
                result => self.last = Some(result),
            }
        }
        let rows = std::mem::take(&mut self.rows).into_vec();
        Ok(self.last.take().map(|result| Finished { result, rows }))
    }

    /// The error that the server reports.
    pub(super) fn report(&self, report: &Report) -> Error {
        let message = report.message.clone().unwrap_or_default();
        let sqlstate = report.sqlstate.filter(|_| !report.is_fatal() && self.pg.is_good());
        let Some(sqlstate) = sqlstate else { return self.broken(&message) };
        let Report { detail, hint, context, .. } = report.clone();
        let mut error = Error::from(Fields { sqlstate, message, detail, hint, context });
        error.shards.push(self.shard().to_owned());
        error
    }

    pub(super) fn shard(&self) -> &str {
        shard_of(&self.name)
    }

    pub(super) fn broken(&self, message: &str) -> Error {
        let lost = format!("lost the connection to shard \"{}\"", self.shard());
        let mut error = Error::of_sqlstate(sqlstate::CONNECTION_FAILURE, lost);
        error.detail = Some(one_line(message)).filter(|m| !m.is_empty());
        error
    }

    pub(super) fn lost(&self, lost: &Lost) -> Error {
        match lost {
            Lost::Broken(message) => self.broken(message),
            Lost::Violation(what) => {
                let message = format!("protocol violation by shard \"{}\": {what}", self.shard());
                Error::protocol_violation(message).at_shard(self.shard())
            }
            Lost::Late => self.broken(TIMEOUT),
            Lost::Hung(hung) => hung::does_not_answer(&hung.0, &hung.1),
            Lost::TooLarge(error) => (**error).clone().at_shard(self.shard()),
        }
    }
}

/// The beginning of the message about a connection that could not be made; the reason follows.
pub(super) fn cannot_connect(name: &str) -> String {
    format!("could not connect to shard \"{name}\": ")
}

const TIMEOUT: &str = "timeout expired";

/// Returns the shard's name for a foreign server's name.
pub(super) fn shard_of(server: &str) -> &str {
    server.strip_prefix("docshard_").unwrap_or(server)
}

/// Writes all batches completely; waits only where they exceed the sockets' buffers. A broken connection is reported when its
/// answer is awaited.
pub(super) fn flush_all<'a>(wires: impl Iterator<Item = &'a mut Wire>) {
    let mut pending: Vec<&mut Wire> = wires.filter(|w| w.is_unflushed()).collect();
    let mut silence = Silence::default();
    while !pending.is_empty() {
        let mut set = WaitSet::new(pending.len());
        for wire in &pending {
            set.add(wire.pg.socket(), true, true);
        }
        let due = hung::patience().map(|patience| silence.due(Instant::now(), patience));
        let ends = pending.iter().filter_map(|wire| wire.due.map(|(due, _)| due)).min();
        let left = [due, ends]
            .into_iter()
            .flatten()
            .min()
            .map(|due| due.saturating_duration_since(Instant::now()).as_millis() as i64 + 1);
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
            let done = match wire.check_due(Instant::now()) {
                Ok(()) if is_due => wire.probe(Limit::Served),
                Ok(()) => wire.push(),
                late => late,
            };
            if let Err(lost) = done {
                wire.unflushed = false;
                wire.hung = if let Lost::Hung(hung) = lost { Some(hung) } else { None };
            }
        }
        pending.retain(|w| w.is_unflushed());
    }
}
