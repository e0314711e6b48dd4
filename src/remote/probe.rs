//! Asks a shard that says nothing whether it still answers: `SELECT 1` over another connection.
//!
//! A shard that works for long on one statement answers there; one whose processes are stopped, or that the network has lost,
//! does not. An error of the server is an answer, too: it has no room for another session, say.

use super::ffi::{self, PgConn, Poll, Status};
use super::hung::{self, NO_CONNECTION};
use super::libpq_message::{is_of_server, one_line};
use std::fmt;
use std::time::Instant;

/// How to reach a shard.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) shard: String,
    options: Vec<(String, String)>,
}

impl fmt::Debug for Target {
    /// Without the options, among which is a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("shard", &self.shard).finish_non_exhaustive()
    }
}

/// What became of the question.
#[derive(Debug)]
pub(super) enum Answer {
    /// the shard answers
    Yes,
    /// it does not, and why that is thought
    No(String),
    /// a cancel is due that is held back
    Canceled,
}

/// One attempt.
struct Probe {
    deadline: Instant,
    /// a cancel that is held back ends it
    heeds_cancel: bool,
}

impl Target {
    pub(super) fn new(shard: &str, options: &[(String, String)]) -> Self {
        Self { shard: shard.to_owned(), options: options.to_vec() }
    }

    /// Asks, for as long as connecting may take. Serves interrupts; `heeds_cancel`: also ends for a cancel that is held back.
    pub(super) fn ask(&self, heeds_cancel: bool) -> Answer {
        let probe = Probe { deadline: Instant::now() + hung::connecting(&self.options), heeds_cancel };
        probe.ask(&self.options).err().unwrap_or(Answer::Yes)
    }
}

impl Probe {
    fn ask(&self, options: &[(String, String)]) -> Result<(), Answer> {
        // This process is short of something, which says nothing about the shard.
        let Some(mut pg) = PgConn::start(options) else { return Err(Answer::Yes) };
        let mut state = if pg.is_good() { Poll::Writing } else { Poll::Failed };
        loop {
            match state {
                Poll::Ready => break,
                Poll::Failed => return Err(Self::refused(&pg)),
                Poll::Reading | Poll::Writing => self.wait(&pg, state == Poll::Reading)?,
            }
            state = pg.poll();
        }
        if !pg.send_text(c"SELECT 1") {
            return Err(Self::refused(&pg));
        }
        while pg.is_busy() {
            self.wait(&pg, true)?;
            if !pg.consume() {
                return Err(Self::refused(&pg));
            }
        }
        match pg.result() {
            Some(result) if result.status() == Status::Rows || !result.message().is_empty() && pg.is_good() => Ok(()),
            _ => Err(Self::refused(&pg)),
        }
    }

    fn wait(&self, pg: &PgConn, read: bool) -> Result<(), Answer> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Answer::No(NO_CONNECTION.into()));
        }
        ffi::wait_socket(pg.socket(), read, left.as_millis() as i64 + 1);
        ffi::check_for_interrupts();
        if self.heeds_cancel && ffi::cancel_is_due() { Err(Answer::Canceled) } else { Ok(()) }
    }

    /// The server's own error is an answer; libpq's is none.
    fn refused(pg: &PgConn) -> Answer {
        let message = pg.message();
        if is_of_server(&message) { Answer::Yes } else { Answer::No(one_line(&message)) }
    }
}
