//! Chooses the chunks that move, and their recipients.

use super::load;
use super::round::Round;
use super::state::{Chunk, Cluster, Move, Reason, Split, weight};
use super::targets::{Class, classes};
use std::cmp::Reverse;
use std::ops::Range;

/// Largest number of recipients that are tried for a donor. A recipient that can take nothing from one donor stays in the list, as it may
/// take from a later one. Without a limit each donor would try all such recipients again, which is slow.
const TRIED_RECIPIENTS: usize = 8;
/// Largest number of chunks that are tried for a shard that must give chunks away. Most chunks have one size, and a recipient
/// without room for the largest may have room for a smaller one.
const TRIED_CHUNKS: usize = 4;

/// Largest size of a chunk that moves together with its neighbours, in bytes.
const TINY: u64 = 64 << 10;
/// Largest total size of neighbouring chunks that move in one migration, in bytes.
const TOGETHER_BYTES: u64 = 1 << 20;
/// Largest number of neighbouring chunks that move in one migration. Each is a row of the catalog, and one transaction changes
/// them all.
const TOGETHER_CHUNKS: usize = 1000;

/// Plans moves, no two of which share a shard, and the splits for load that must come before them.
pub(super) fn moves(cluster: &Cluster) -> (Vec<Move>, Vec<Split>) {
    let mut round = Round::of(cluster);
    let mut classes: Vec<_> =
        (0..cluster.collections.len()).flat_map(|collection| classes(&round.shards, collection)).collect();
    let balanced = |class: &Class| cluster.collections[class.collection].balance;
    for class in classes.iter().filter(|class| class.zone.is_some() && balanced(class)) {
        let astray = |round: &Round<'_>, shard: usize| !round.shards.allows(shard, class.zone);
        round.expel(class, Reason::Zone, astray);
    }
    for class in &classes {
        round.expel(class, Reason::Draining, |round, shard| round.shards.cluster.shards[shard].draining);
    }
    // The most uneven class first, since a shard takes part in one move only.
    classes.retain(|class| balanced(class) && !cluster.collections[class.collection].by_load);
    classes
        .sort_by_cached_key(|class| Reverse(class.homes.iter().map(|&shard| class.excess(shard)).max().unwrap_or(0)));
    for class in &classes {
        round.even_out(class);
    }
    let splits = load::even_out(&mut round);
    (round.moves, splits)
}

impl Round<'_> {
    /// The chunk and the tiny neighbours that move with it, up to the recipient's target.
    fn together(&self, class: &Class, chunk: usize, to: usize) -> Range<usize> {
        let chunks = &self.shards.cluster.collections[class.collection].chunks;
        let first = &chunks[chunk];
        let is_alike = |other: &Chunk| {
            (other.shard, other.zone) == (first.shard, first.zone)
                && other.bytes <= TINY
                && !other.straddles
                && !other.resting
        };
        let (mut start, mut end) = (chunk, chunk + 1);
        if !is_alike(first) {
            return start..end;
        }
        let (mut bytes, mut lack) = (first.bytes, class.lack(to).saturating_sub(weight(first)));
        let mut goes_along = |other: &Chunk, count: usize| {
            let fits = is_alike(other)
                && count < TOGETHER_CHUNKS
                && weight(other) <= lack
                && bytes + other.bytes <= TOGETHER_BYTES
                && self.shards.has_room(to, bytes + other.bytes);
            if fits {
                bytes += other.bytes;
                lack -= weight(other);
            }
            fits
        };
        while chunks.get(end).is_some_and(|next| goes_along(next, end - start)) {
            end += 1;
        }
        while start > 0 && goes_along(&chunks[start - 1], end - start) {
            start -= 1;
        }
        start..end
    }

    /// Plans a move off each shard that must give chunks away, to the home that is farthest below its target.
    fn expel(&mut self, class: &Class, reason: Reason, must_give: impl Fn(&Self, usize) -> bool) {
        let chunks = &self.shards.cluster.collections[class.collection].chunks;
        let can_move = |chunk: &u32| !chunks[*chunk as usize].resting;
        let gives =
            |shard: &usize| class.chunks(*shard).iter().any(can_move) && !self.busy[*shard] && must_give(self, *shard);
        let donors: Vec<usize> = (0..class.has.len()).filter(gives).collect();
        for from in donors {
            if self.busy[from] {
                continue;
            }
            let takes =
                |home: &usize| *home != from && !self.busy[*home] && self.may_exchange(class.collection, from, *home);
            let free = || class.homes.iter().copied().filter(takes);
            let best = |bytes: u64| {
                free().filter(|&home| self.shards.has_room(home, bytes)).min_by_key(|&home| {
                    let lack = i128::from(class.target[home]) - i128::from(class.has[home]);
                    (Reverse(lack), self.shards.used[home], home)
                })
            };
            let bytes = |chunk: &u32| chunks[*chunk as usize].bytes;
            let here: Vec<u32> = class.chunks(from).iter().copied().filter(can_move).collect();
            let Some(&largest) = here.iter().max_by_key(|chunk| (bytes(chunk), Reverse(**chunk))) else { continue };
            let found = best(bytes(&largest)).map(|to| (largest, to)).or_else(|| {
                // The largest chunk fits nowhere: try those that fit into the largest room.
                let room = free().map(|home| self.shards.room(home).unwrap_or(u64::MAX)).max()?;
                let mut fitting: Vec<u32> = here.iter().copied().filter(|chunk| bytes(chunk) <= room).collect();
                fitting.sort_unstable_by_key(|chunk| (Reverse(bytes(chunk)), *chunk));
                fitting.truncate(TRIED_CHUNKS);
                fitting.into_iter().find_map(|chunk| best(bytes(&chunk)).map(|to| (chunk, to)))
            });
            if let Some((chunk, to)) = found {
                let chunks = self.together(class, chunk as usize, to);
                self.push(class.collection, chunks, from, to, reason);
            }
        }
    }

    fn even_out(&mut self, class: &Class) {
        let free = |shard: &usize| !self.busy[*shard];
        let mut donors: Vec<(u64, usize)> =
            class.homes.iter().copied().filter(free).map(|shard| (class.excess(shard), shard)).collect();
        let mut recipients: Vec<(u64, usize)> =
            class.homes.iter().copied().filter(free).map(|shard| (class.lack(shard), shard)).collect();
        donors.retain(|(excess, _)| *excess > 0);
        recipients.retain(|(lack, _)| *lack > 0);
        donors.sort_unstable_by_key(|&(excess, shard)| (Reverse(excess), shard));
        recipients.sort_unstable_by_key(|&(lack, shard)| (Reverse(lack), self.shards.used[shard], shard));
        for (excess, from) in donors {
            recipients.retain(|(_, shard)| !self.busy[*shard]);
            let uneven = recipients.iter().take_while(|(lack, _)| excess + lack > class.threshold);
            let pick = uneven
                .filter(|(_, to)| self.may_exchange(class.collection, from, *to))
                .take(TRIED_RECIPIENTS)
                .find_map(|&(lack, to)| self.best(class, from, to, excess, lack).map(|chunk| (chunk, to)));
            if let Some((chunk, to)) = pick {
                self.push(class.collection, chunk as usize..chunk as usize + 1, from, to, Reason::Evenness);
            }
        }
    }

    /// The chunk whose move brings both shards closest to their targets.
    fn best(&self, class: &Class, from: usize, to: usize, excess: u64, lack: u64) -> Option<u32> {
        let chunks = &self.shards.cluster.collections[class.collection].chunks;
        let half = (excess + lack) / 2;
        let wanted = excess.min(lack);
        let candidates = class.chunks(from).iter().copied().filter(|&chunk| {
            let state = &chunks[chunk as usize];
            !state.jumbo
                && !state.pinned
                && !state.resting
                && weight(state) <= half
                && self.shards.has_room(to, state.bytes)
        });
        // The largest chunk up to the wanted weight, otherwise the smallest above it.
        candidates.min_by_key(|&chunk| {
            let weight = weight(&chunks[chunk as usize]);
            if weight <= wanted { (0, wanted - weight, chunk) } else { (1, weight, chunk) }
        })
    }
}
