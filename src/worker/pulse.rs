//! Advances each shard's counter, by which an old copy of a shard is recognised: see `catalog::contacts`.
//!
//! A shard that does not respond delays no others: its answer is polled at each [`Pulse::beat`]. A copy made after the last
//! advance is not recognised, so writes since then may be lost by a restore, or by a failover to an asynchronous standby.
//!
//! INVARIANT: a counter is advanced at the server that other sessions reach. A session to a server that the options no longer lead
//! to is closed before its answer is read.

use crate::catalog::cache;
use crate::catalog::cluster::contacts::{self, Visit};
use crate::catalog::cluster::identity;
use crate::catalog::cluster::settings;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::remote::{Session, hung};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Pulse {
    shards: HashMap<ShardId, Beat>,
}

const INTERVAL: &str = "shard_count_interval_ms";

#[derive(Debug, Default)]
struct Beat {
    session: Option<Box<Session>>,
    /// The value that the shard is about to commit.
    advancing: Option<i64>,
    /// The value that the shard last committed in this session.
    counter: i64,
    began: Option<Instant>,
    logged: Option<String>,
}

impl Pulse {
    /// Reads the answers that have arrived, and starts to advance the counters that are due.
    pub(super) fn beat(&mut self) {
        let (shards, interval) = match transaction::run(|| Ok((cache::remote_shards()?, settings::integer(INTERVAL)?)))
        {
            Ok((shards, interval)) => (shards, Duration::from_millis(u64::try_from(interval).unwrap_or(0))),
            Err(error) => {
                pgrx::log!("docshard worker: {}", error.message);
                return;
            }
        };
        self.shards.retain(|id, _| shards.iter().any(|(shard, _)| shard.id == *id));
        for (shard, _) in shards {
            self.shards.entry(shard.id).or_default().beat(&shard, interval);
        }
    }
}

impl Beat {
    fn beat(&mut self, shard: &Rc<Shard>, interval: Duration) {
        let message = match self.step(shard, interval) {
            Ok(None) => return,
            Ok(Some(refused)) => refused,
            Err(error) if hung::is_known(&error) => String::new(),
            Err(error) => format!("advancing the counter of shard \"{}\": {}", shard.name, error.message),
        };
        (self.session, self.advancing) = (None, None);
        if !message.is_empty() && self.logged.as_ref() != Some(&message) {
            pgrx::log!("docshard worker: {message}");
            self.logged = Some(message);
        }
    }

    /// Reads the answer if it has arrived, and starts the next advance if it is due. Returns the reason if the shard is refused; otherwise
    /// None.
    fn step(&mut self, shard: &Rc<Shard>, interval: Duration) -> Result<Option<String>> {
        if self.session.as_ref().is_some_and(|session| !session.is_usable()) {
            // What another server than the shard's has committed must not be recorded.
            (self.session, self.advancing, self.began) = (None, None, None);
        }
        if let (Some(session), Some(counter)) = (&mut self.session, self.advancing) {
            let Some(rows) = transaction::guarded(|| session.poll_finish(0))? else { return Ok(None) };
            transaction::run(|| contacts::note_advanced(shard, counter, &rows))?;
            (self.advancing, self.counter, self.logged) = (None, counter, None);
        }
        if self.began.is_some_and(|began| began.elapsed() < interval) {
            return Ok(None);
        }
        self.began = Some(Instant::now());
        if self.session.is_none() {
            // Until the keeper has replaced another router at the shard, the shard may still belong to that router.
            if !transaction::run(|| Ok(identity::may_finish(shard.id)))? {
                self.began = None;
                return Ok(None);
            }
            match transaction::run(|| contacts::visit(shard))? {
                Visit::Refused(why) => return Ok(Some(why)),
                Visit::Advance(session, next) => (self.session, self.counter) = (Some(session), next - 1),
            }
        }
        let Some(session) = &mut self.session else { return Ok(None) };
        let next = self.counter.saturating_add(1);
        transaction::run(|| contacts::start_advancing(session, shard.id, next))?;
        self.advancing = Some(next);
        Ok(None)
    }
}
