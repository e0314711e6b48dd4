//! Measures the load of chunks for the policy, if the setting `balancer_mode` is `load`.
//!
//! Loads are rates that the shards have smoothed. After a move the donor's rate falls at once, but the recipient's rises slowly. So the
//! recipient *settles* for [`SETTLE`]: during this time it takes part in no move for load.

use super::view::View;
use crate::catalog::cluster::nodes::{read_call_on, read_calls_at_once};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::loads::{self, Loads};
use crate::pg::transaction;
use docshard_core::cluster::balancer::{Cluster, Patience};
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
    /// since when shards have been busier than others, counted from `began`
    patience: Patience,
    began: Option<Instant>,
    /// for how long a shard must have been busier: the setting `load_delay_s`
    delay: Duration,
}

impl Measured {
    /// A move has brought a chunk to this shard.
    pub(super) fn moved(&mut self, to: ShardId) {
        self.settling.insert(to, Instant::now());
    }

    /// Notes which shards are busy, by loads that were measured just now.
    pub(super) fn note(&mut self, cluster: &Cluster, delay: Duration) {
        self.delay = delay;
        let now = self.began.get_or_insert_with(Instant::now).elapsed();
        self.patience.note(cluster, now);
    }

    /// Marks the shards that have not been busy for long enough.
    pub(super) fn mark(&self, cluster: &mut Cluster) {
        let now = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.patience.mark(cluster, now, self.delay);
    }

    /// True if the shard has got a chunk lately.
    pub(super) fn is_settling(&self, shard: ShardId) -> bool {
        self.settling.get(&shard).is_some_and(|since| since.elapsed() < SETTLE)
    }

    /// Measures the loads of all chunks at these shards, unless they were measured just now. A shard whose load cannot
    /// be read takes part in no move for load. Its error is not reported here, but where sizes are measured. Returns
    /// true if the loads were measured by this call.
    pub(super) fn measure(&mut self, view: &mut View, asked: &[Rc<Shard>]) -> bool {
        if !view.by_load {
            return false;
        }
        self.settling.retain(|_, since| since.elapsed() < SETTLE);
        let is_due = self.at.is_none_or(|at| at.elapsed() >= FRESH);
        if is_due {
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
        is_due
    }
}
