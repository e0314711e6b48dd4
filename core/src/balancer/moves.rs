//! Which chunks go where.

use super::{Cluster, Collection, Move, Reason, weight};
use crate::chunk_map::ShardId;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The cluster's shards by position, and what this plan has already given them to do.
struct Round<'a> {
    cluster: &'a Cluster,
    position: HashMap<ShardId, usize>,
    /// bytes of all collections on each shard
    used: Vec<u64>,
    /// takes part in a move of this plan, or cannot in any
    busy: Vec<bool>,
    moves: Vec<Move>,
}

/// A collection's chunks, sorted out by shard.
struct Spread<'a> {
    index: usize,
    collection: &'a Collection,
    /// positions of chunks on each shard
    chunks: Vec<Vec<usize>>,
    /// their weight
    weight: Vec<u64>,
}

/// A disjoint set of moves.
pub(super) fn moves(cluster: &Cluster) -> Vec<Move> {
    let position: HashMap<_, _> = cluster.shards.iter().enumerate().map(|(i, shard)| (shard.id, i)).collect();
    let mut used = vec![0; cluster.shards.len()];
    for chunk in cluster.collections.iter().flat_map(|collection| &collection.chunks) {
        if let Some(&shard) = position.get(&chunk.shard) {
            used[shard] += chunk.bytes;
        }
    }
    let busy = cluster.shards.iter().map(|shard| shard.unavailable).collect();
    let mut round = Round { cluster, position, used, busy, moves: Vec::new() };
    let mut spreads: Vec<_> = (0..cluster.collections.len()).map(|index| round.spread(index)).collect();
    for spread in &spreads {
        round.drain(spread);
    }
    // The most uneven collection first: a shard serves one move only.
    spreads.retain(|spread| spread.collection.balance);
    spreads.sort_by_cached_key(|spread| Reverse(round.gap(spread)));
    for spread in &spreads {
        round.even_out(spread);
    }
    round.moves
}

impl<'a> Round<'a> {
    fn spread(&self, index: usize) -> Spread<'a> {
        let collection = &self.cluster.collections[index];
        let mut chunks = vec![Vec::new(); self.cluster.shards.len()];
        let mut weights = vec![0; self.cluster.shards.len()];
        for (i, chunk) in collection.chunks.iter().enumerate() {
            if let Some(&shard) = self.position.get(&chunk.shard) {
                chunks[shard].push(i);
                weights[shard] += weight(chunk);
            }
        }
        Spread { index, collection, chunks, weight: weights }
    }

    /// True if the shard may take that many bytes more.
    fn has_room(&self, shard: usize, bytes: u64) -> bool {
        let state = &self.cluster.shards[shard];
        !state.draining && state.max_bytes.is_none_or(|max| self.used[shard] + bytes <= max)
    }

    fn push(&mut self, spread: &Spread<'_>, chunk: usize, from: usize, to: usize, reason: Reason) {
        self.busy[from] = true;
        self.busy[to] = true;
        let (from, to) = (self.cluster.shards[from].id, self.cluster.shards[to].id);
        self.moves.push(Move { collection: spread.index, chunk, from, to, reason });
    }

    /// Any chunk of each draining shard, to the shard that holds least of the collection.
    fn drain(&mut self, spread: &Spread<'_>) {
        for from in 0..self.cluster.shards.len() {
            if !self.cluster.shards[from].draining || self.busy[from] {
                continue;
            }
            // The largest chunk that somebody can take.
            let mut chunks = spread.chunks[from].clone();
            chunks.sort_by_key(|&chunk| Reverse(spread.collection.chunks[chunk].bytes));
            let found = chunks.into_iter().find_map(|chunk| {
                let bytes = spread.collection.chunks[chunk].bytes;
                let to = (0..self.cluster.shards.len())
                    .filter(|&shard| !self.busy[shard] && self.has_room(shard, bytes))
                    .min_by_key(|&shard| (spread.weight[shard], self.used[shard], shard))?;
                Some((chunk, to))
            });
            if let Some((chunk, to)) = found {
                self.push(spread, chunk, from, to, Reason::Draining);
            }
        }
    }

    /// The difference between the fullest and the emptiest shard.
    fn gap(&self, spread: &Spread<'_>) -> u64 {
        let weights = || {
            let shards = self.cluster.shards.iter().zip(&spread.weight);
            shards.filter(|(shard, _)| !shard.draining).map(|(_, &weight)| weight)
        };
        weights().max().unwrap_or(0) - weights().min().unwrap_or(0)
    }

    /// The collection's weight divided by the shards that can hold their part; a full shard counts with what it has.
    fn ideal(&self, spread: &Spread<'_>) -> u64 {
        let mut homes: Vec<_> = (0..self.cluster.shards.len()).filter(|&s| !self.cluster.shards[s].draining).collect();
        let mut total: u64 = spread.weight.iter().sum();
        loop {
            let ideal = total / (homes.len() as u64).max(1);
            let before = homes.len();
            homes.retain(|&shard| {
                let capped = spread.weight[shard] < ideal && !self.has_room(shard, ideal - spread.weight[shard]);
                let room = self.cluster.shards[shard].max_bytes.map_or(0, |max| max.saturating_sub(self.used[shard]));
                if capped {
                    total = total.saturating_sub(spread.weight[shard] + room);
                }
                !capped
            });
            if homes.len() == before {
                return ideal;
            }
        }
    }

    fn even_out(&mut self, spread: &Spread<'_>) {
        let ideal = self.ideal(spread);
        let threshold = (3 * spread.collection.chunk_size).min(ideal / 8);
        let free = |round: &Self, shard: usize| !round.busy[shard] && !round.cluster.shards[shard].draining;
        let all = 0..self.cluster.shards.len();
        let mut donors: Vec<_> = all.clone().filter(|&s| free(self, s) && spread.weight[s] > ideal).collect();
        let mut recipients: Vec<_> = all.filter(|&s| free(self, s) && spread.weight[s] < ideal).collect();
        donors.sort_by_key(|&shard| (Reverse(spread.weight[shard]), shard));
        recipients.sort_by_key(|&shard| (spread.weight[shard], self.used[shard], shard));
        for from in donors {
            let mut pick = None;
            // Who cannot take anything from the fullest donors may still take from a later one; but looking far costs.
            for &to in recipients.iter().filter(|&&to| !self.busy[to]).take(8) {
                if spread.weight[from] - spread.weight[to] <= threshold {
                    break;
                }
                pick = self.best(spread, from, to, ideal).map(|chunk| (chunk, to));
                if pick.is_some() {
                    break;
                }
            }
            if let Some((chunk, to)) = pick {
                self.push(spread, chunk, from, to, Reason::Evenness);
            }
        }
    }

    /// The chunk that best closes the gap.
    fn best(&self, spread: &Spread<'_>, from: usize, to: usize, ideal: u64) -> Option<usize> {
        let (donor, recipient) = (spread.weight[from], spread.weight[to]);
        let half = (donor - recipient) / 2;
        let wanted = (donor - ideal).min(ideal - recipient);
        let candidates = spread.chunks[from].iter().copied().filter(|&chunk| {
            let state = &spread.collection.chunks[chunk];
            !state.jumbo && !state.pinned && weight(state) <= half && self.has_room(to, state.bytes)
        });
        // Largest first up to what is wanted, then smallest first.
        candidates.min_by_key(|&chunk| {
            let weight = weight(&spread.collection.chunks[chunk]);
            if weight <= wanted { (0, wanted - weight, chunk) } else { (1, weight, chunk) }
        })
    }
}
