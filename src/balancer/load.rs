//! Measures the load of chunks for the policy, if the setting `balancer_mode` is `load`.
//!
//! Loads are rates that the shards have smoothed. After a move the donor's rate falls at once, but the recipient's rises slowly. So both
//! shards *settle* for [`SETTLE`]: during this time they take part in no move for load.

use super::view::View;
use crate::catalog::cluster::nodes::{read_call_on, read_calls_at_once};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::loads::{self, Loads};
use crate::pg::transaction;
use docshard_core::cluster::chunk_map::ShardId;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Three times the half-life of a rate: then 88 % of what has moved is measured at the recipient.
const SETTLE: Duration = Duration::from_secs(180);
/// The time for which measured loads are used.
const FRESH: Duration = Duration::from_secs(5);

/// The last measured loads, which the balancer keeps between rounds.
#[derive(Debug, Default)]
pub(super) struct Measured {
    loads: Rc<Loads>,
    at: Option<Instant>,
    /// the shards that settle, each with the time when it began
    settling: HashMap<ShardId, Instant>,
}

impl Measured {
    /// A move has changed the load of these shards.
    pub(super) fn moved(&mut self, shards: [ShardId; 2]) {
        self.settling.extend(shards.map(|shard| (shard, Instant::now())));
    }

    /// True if a move has changed the shard's load lately.
    pub(super) fn is_settling(&self, shard: ShardId) -> bool {
        self.settling.get(&shard).is_some_and(|since| since.elapsed() < SETTLE)
    }

    /// Measures the loads of all chunks at these shards, unless they were measured just now. A shard whose load cannot be read takes part
    /// in no move for load. Its error is not reported here, but where sizes are measured.
    pub(super) fn measure(&mut self, view: &mut View, asked: &[Rc<Shard>]) {
        if !view.by_load {
            return;
        }
        self.settling.retain(|_, since| since.elapsed() < SETTLE);
        if self.at.is_none_or(|at| at.elapsed() >= FRESH) {
            let call = loads::call(view.shards.len());
            let calls: Vec<_> = asked.iter().map(|shard| (&**shard, call)).collect();
            let mut measured = Loads::default();
            if let Ok(answers) = transaction::run(|| read_calls_at_once(&calls)) {
                asked.iter().zip(answers).for_each(|(shard, found)| measured.add(shard, &view.collections, found));
            } else {
                // Then one by one: a single shard may be of an earlier release, or not preload docshard.
                for shard in asked {
                    match transaction::run(|| read_call_on(shard, &call)) {
                        Ok(found) => measured.add(shard, &view.collections, found),
                        Err(_) => drop(self.settling.insert(shard.id, Instant::now())),
                    }
                }
            }
            (self.loads, self.at) = (Rc::new(measured), Some(Instant::now()));
        }
        view.loads = Rc::clone(&self.loads);
    }
}
