//! The moves that a plan has so far. A shard takes part in at most one of them.

use super::state::{Cluster, Move, Reason};
use super::targets::Shards;
use std::ops::Range;

/// The moves planned so far, and the shards that take part in them.
pub(super) struct Round<'a> {
    pub(super) shards: Shards<'a>,
    /// the shard takes part in a planned move, or is unavailable
    pub(super) busy: Vec<bool>,
    pub(super) moves: Vec<Move>,
}

impl<'a> Round<'a> {
    /// A plan without moves.
    pub(super) fn of(cluster: &'a Cluster) -> Self {
        let busy = cluster.shards.iter().map(|shard| shard.unavailable).collect();
        Self { shards: Shards::of(cluster), busy, moves: Vec::new() }
    }

    pub(super) fn push(&mut self, collection: usize, chunks: Range<usize>, from: usize, to: usize, reason: Reason) {
        self.busy[from] = true;
        self.busy[to] = true;
        let shards = &self.shards.cluster.shards;
        let (from, to) = (shards[from].id, shards[to].id);
        self.moves.push(Move { collection, chunks, from, to, reason });
    }

    /// True unless moves of the collection between the two shards failed lately.
    pub(super) fn may_exchange(&self, collection: usize, from: usize, to: usize) -> bool {
        let Cluster { shards, collections } = self.shards.cluster;
        !collections[collection].resting.contains(&(shards[from].id, shards[to].id))
    }
}
