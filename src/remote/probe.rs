//! Checks whether a silent shard still responds, by `SELECT 1` over another connection.
//!
//! A shard that runs a long statement responds; a shard whose processes are stopped, or that the network has lost, does not. An
//! error message of the server, for example that there are too many connections, is a response.

use super::ffi::{self, PgConn, Poll};
use super::hung::{self, NO_CONNECTION};
use super::libpq_message::{is_of_server, one_line};
use docshard_core::cluster::frontend::Answer;
use std::fmt;
use std::time::Instant;

#[derive(Clone)]
pub(super) struct ProbeTarget {
    pub(super) shard: String,
    options: Vec<(String, String)>,
}

impl fmt::Debug for ProbeTarget {
    /// Omits the options, which contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeTarget").field("shard", &self.shard).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) enum ProbeResult {
    /// the shard responds
    Yes,
    /// the shard does not respond, for this reason
    No(String),
    /// a pending cancel has ended the probe, and has not been served
    Canceled,
}

struct Probe {
    deadline: Instant,
    /// a pending cancel ends the probe
    heeds_cancel: bool,
}

impl ProbeTarget {
    pub(super) fn new(shard: &str, options: &[(String, String)]) -> Self {
        Self { shard: shard.to_owned(), options: options.to_vec() }
    }

    /// Probes the shard, for as long as connecting may take. Serves interrupts. `heeds_cancel`: a pending cancel ends the probe.
    pub(super) fn probe(&self, heeds_cancel: bool) -> ProbeResult {
        let probe = Probe { deadline: Instant::now() + hung::connecting(&self.options), heeds_cancel };
        probe.run(&self.options).err().unwrap_or(ProbeResult::Yes)
    }
}

impl Probe {
    fn run(&self, options: &[(String, String)]) -> Result<(), ProbeResult> {
        // A lack of memory or file descriptors in this process says nothing about the shard.
        let Some(mut pg) = PgConn::start(options) else { return Err(ProbeResult::Yes) };
        let mut state = if pg.is_good() { Poll::Writing } else { Poll::Failed };
        loop {
            match state {
                Poll::Ready => break,
                Poll::Failed => return Err(Self::refused(&pg)),
                Poll::Reading | Poll::Writing => self.wait(&pg, state == Poll::Reading)?,
            }
            state = pg.poll();
        }
        pg.send_text(c"SELECT 1", None);
        while !pg.flush() {
            self.wait(&pg, false)?;
        }
        while pg.is_busy() {
            self.wait(&pg, true)?;
            if !pg.consume() {
                return Err(Self::refused(&pg));
            }
        }
        match pg.result() {
            Some(Answer::Row(_) | Answer::Error(_)) => Ok(()),
            _ => Err(Self::refused(&pg)),
        }
    }

    fn wait(&self, pg: &PgConn, read: bool) -> Result<(), ProbeResult> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProbeResult::No(NO_CONNECTION.into()));
        }
        ffi::wait_socket(pg.socket(), read, left.as_millis() as i64 + 1);
        ffi::check_for_interrupts();
        if self.heeds_cancel && ffi::cancel_is_due() { Err(ProbeResult::Canceled) } else { Ok(()) }
    }

    /// Returns the answer of a failed connection: an error of the server is a response, an error of libpq is not.
    fn refused(pg: &PgConn) -> ProbeResult {
        let message = pg.message();
        if is_of_server(&message) { ProbeResult::Yes } else { ProbeResult::No(one_line(&message)) }
    }
}
