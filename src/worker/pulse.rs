//! Advances each shard's counter, by which an old copy of a shard is told: see `catalog::contacts`.
//!
//! A shard that hangs keeps no other one waiting: its answer is looked for at each [`Pulse::beat`]. Between two advances a
//! copy cannot be told from its original; what is written meanwhile is what a restore, or a failover to an asynchronous
//! standby, may lose unnoticed.

use crate::catalog::cache;
use crate::catalog::contacts::{self, Visit};
use crate::catalog::model::{Place, Shard};
use crate::catalog::settings;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::remote::{Session, hung};
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The worker's sessions at shards for that.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    shards: HashMap<ShardId, Beat>,
}

/// The setting that says how often a counter is advanced.
const INTERVAL: &str = "shard_count_interval_ms";

#[derive(Debug, Default)]
struct Beat {
    session: Option<Box<Session>>,
    /// the value that the shard is committing
    advancing: Option<i64>,
    /// the value that it has committed last, in this session
    counter: i64,
    began: Option<Instant>,
    /// the last message about this shard that went to the log
    said: Option<String>,
}

impl Pulse {
    /// Takes the answers that are there, and advances the counters whose time has come.
    pub(super) fn beat(&mut self) {
        let (shards, interval) = match transaction::run(|| Ok((cache::shards()?, settings::integer(INTERVAL)?))) {
            Ok((shards, interval)) => (shards, Duration::from_millis(u64::try_from(interval).unwrap_or(0))),
            Err(error) => {
                pgrx::log!("docshard worker: {}", error.message);
                return;
            }
        };
        self.shards.retain(|id, _| shards.contains_key(id));
        for shard in shards.values().filter(|shard| shard.place != Place::Local) {
            self.shards.entry(shard.id).or_default().beat(shard, interval);
        }
    }
}

impl Beat {
    fn beat(&mut self, shard: &Rc<Shard>, interval: Duration) {
        let said = match self.step(shard, interval) {
            Ok(None) => return,
            Ok(Some(refused)) => refused,
            Err(error) if hung::is_known(&error) => String::new(),
            Err(error) => format!("counting at shard \"{}\": {}", shard.name, error.message),
        };
        (self.session, self.advancing) = (None, None);
        if !said.is_empty() && self.said.as_ref() != Some(&said) {
            pgrx::log!("docshard worker: {said}");
            self.said = Some(said);
        }
    }

    /// None: all is well, or under way; otherwise why the shard is refused.
    fn step(&mut self, shard: &Rc<Shard>, interval: Duration) -> Result<Option<String>> {
        if let (Some(session), Some(counter)) = (&mut self.session, self.advancing) {
            let Some(rows) = transaction::guarded(|| session.poll_finish(0))? else { return Ok(None) };
            transaction::run(|| contacts::note_advanced(shard, counter, &rows))?;
            (self.advancing, self.counter, self.said) = (None, counter, None);
        }
        if self.began.is_some_and(|began| began.elapsed() < interval) {
            return Ok(None);
        }
        self.began = Some(Instant::now());
        if self.session.as_ref().is_none_or(|session| !session.is_usable()) {
            match transaction::run(|| contacts::visit(shard))? {
                Visit::Refused(why) => return Ok(Some(why)),
                Visit::Advance(session, next) => (self.session, self.counter) = (Some(session), next - 1),
            }
        }
        let Some(session) = &mut self.session else { return Ok(None) };
        let next = self.counter.saturating_add(1);
        transaction::run(|| contacts::start_advancing(session, next))?;
        self.advancing = Some(next);
        Ok(None)
    }
}
