//! The targets: how much of each class of a collection each shard should hold.
//!
//! A class's *homes* are the shards that may take its chunks. Classes are distributed one after the other, those with the fewest homes
//! first. Each fills its homes up to one common level; what earlier classes have put there counts. If zones are disjoint or nested, as most
//! are, no distribution is more even.

use super::state::{Cluster, ZoneId, weight};
use crate::cluster::chunk_map::ShardId;
use std::collections::{HashMap, HashSet};

/// The shards by number and by zone, with the bytes that they hold.
pub(super) struct Shards<'a> {
    pub(super) cluster: &'a Cluster,
    position: HashMap<ShardId, usize>,
    /// bytes of all collections on each shard
    pub(super) used: Vec<u64>,
    zones: HashSet<(usize, ZoneId)>,
}

impl<'a> Shards<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Self {
        let position: HashMap<_, _> = cluster.shards.iter().enumerate().map(|(i, shard)| (shard.id, i)).collect();
        let mut used = vec![0; cluster.shards.len()];
        for chunk in cluster.collections.iter().flat_map(|collection| &collection.chunks) {
            if let Some(&shard) = position.get(&chunk.shard) {
                used[shard] += chunk.bytes;
            }
        }
        let zones = cluster.shards.iter().enumerate();
        let zones = zones.flat_map(|(i, shard)| shard.zones.iter().map(move |&zone| (i, zone))).collect();
        Self { cluster, position, used, zones }
    }

    /// The position of a shard.
    pub(super) fn position(&self, shard: ShardId) -> Option<usize> {
        self.position.get(&shard).copied()
    }

    /// True if the shard may hold chunks of the zone.
    pub(super) fn allows(&self, shard: usize, zone: Option<ZoneId>) -> bool {
        zone.is_none_or(|zone| self.zones.contains(&(shard, zone)))
    }

    /// The bytes that the shard may still take; None if it has no limit.
    pub(super) fn room(&self, shard: usize) -> Option<u64> {
        self.cluster.shards[shard].max_bytes.map(|max| max.saturating_sub(self.used[shard]))
    }

    /// True if the shard may take this many more bytes. A shard above its limit takes nothing, not even an empty chunk.
    pub(super) fn has_room(&self, shard: usize, bytes: u64) -> bool {
        self.cluster.shards[shard].max_bytes.is_none_or(|max| self.used[shard].saturating_add(bytes) <= max)
    }
}

/// The chunks of a collection in one zone, or in none.
pub(super) struct Class {
    /// the collection, by position
    pub(super) collection: usize,
    pub(super) zone: Option<ZoneId>,
    /// positions of chunks, those of shard 0 first; those of shard i end at `ends[i]`
    chunks: Vec<u32>,
    ends: Vec<u32>,
    /// weight on each shard
    pub(super) has: Vec<u64>,
    /// weight that each shard should have; 0 outside the homes
    pub(super) target: Vec<u64>,
    /// shards that may take its chunks
    pub(super) homes: Vec<usize>,
    /// two shards are even if the one's excess and the other's lack are together at most this
    pub(super) threshold: u64,
}

impl Class {
    /// The chunks on a shard, by position.
    pub(super) fn chunks(&self, shard: usize) -> &[u32] {
        let start = if shard == 0 { 0 } else { self.ends[shard - 1] };
        &self.chunks[start as usize..self.ends[shard] as usize]
    }

    pub(super) fn excess(&self, shard: usize) -> u64 {
        self.has[shard].saturating_sub(self.target[shard])
    }

    pub(super) fn lack(&self, shard: usize) -> u64 {
        self.target[shard].saturating_sub(self.has[shard])
    }

    /// Returns the least weight that must move for every shard to have its target.
    pub(super) fn astray(&self) -> u64 {
        (0..self.has.len()).map(|shard| self.lack(shard)).sum()
    }
}

/// Returns a collection's classes, each with its targets.
pub(super) fn classes(shards: &Shards<'_>, position: usize) -> Vec<Class> {
    let count = shards.cluster.shards.len();
    let collection = &shards.cluster.collections[position];
    let mut found: HashMap<Option<ZoneId>, usize> = HashMap::new();
    let mut classes: Vec<Class> = Vec::new();
    let mut totals: Vec<u64> = Vec::new();
    // A counting sort by class and shard: this loop counts the chunks, the last one places them. A chunk of an unknown shard is
    // in no class.
    for chunk in &collection.chunks {
        let Some(&shard) = shards.position.get(&chunk.shard) else { continue };
        let class = *found.entry(chunk.zone).or_insert_with(|| {
            let homes = |&shard: &usize| !shards.cluster.shards[shard].draining && shards.allows(shard, chunk.zone);
            classes.push(Class {
                collection: position,
                zone: chunk.zone,
                chunks: Vec::new(),
                ends: vec![0; count],
                has: vec![0; count],
                target: vec![0; count],
                homes: (0..count).filter(homes).collect(),
                threshold: 0,
            });
            totals.push(0);
            classes.len() - 1
        });
        classes[class].ends[shard] += 1;
        classes[class].has[shard] += weight(chunk);
        totals[class] += weight(chunk);
    }
    for class in &mut classes {
        let mut start = 0;
        for end in &mut class.ends {
            start += std::mem::replace(end, start);
        }
        class.chunks = vec![0; start as usize];
    }
    for (i, chunk) in collection.chunks.iter().enumerate() {
        let Some(&shard) = shards.position.get(&chunk.shard) else { continue };
        let class = &mut classes[found[&chunk.zone]];
        class.chunks[class.ends[shard] as usize] = i as u32;
        class.ends[shard] += 1;
    }
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by_key(|&i| (classes[i].homes.len(), classes[i].zone));
    let mut below = vec![0; count];
    for i in order {
        let level = fill(shards, &mut classes[i], totals[i], &mut below);
        classes[i].threshold = (3 * collection.chunk_size).min(level / 8);
    }
    classes
}

/// Sets a class's targets: fills all homes up to one level, which includes the weight that earlier classes have there (`below`). Returns
/// the level.
fn fill(shards: &Shards<'_>, class: &mut Class, total: u64, below: &mut [u64]) -> u64 {
    let homes = std::mem::take(&mut class.homes);
    let limit = |shard: usize| shards.room(shard).map_or(u64::MAX, |room| class.has[shard].saturating_add(room));
    let limits: Vec<u64> = homes.iter().map(|&shard| limit(shard)).collect();
    let share = |level: u64, i: usize| level.saturating_sub(below[homes[i]]).min(limits[i]);
    let held = |level: u64| (0..homes.len()).map(|i| share(level, i)).fold(0, u64::saturating_add);
    // A binary search for the highest level that needs no more than the total.
    let most = homes.iter().map(|&shard| below[shard]).max().unwrap_or(0).saturating_add(total);
    let mut low = total / (homes.len() as u64).max(1);
    // Without limits and earlier classes `low` is the level already.
    let mut high = if held(low + 1) > total { low + 1 } else { most + 1 };
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if held(middle) <= total { low = middle } else { high = middle }
    }
    let shares: Vec<u64> = (0..homes.len()).map(|i| share(low, i)).collect();
    for (&shard, share) in homes.iter().zip(shares) {
        class.target[shard] = share;
        below[shard] += share;
    }
    class.homes = homes;
    low
}

/// How far a cluster is from its targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// the least weight that must move for every shard to have its target
    pub astray: u64,
    /// the most by which a class's largest excess plus its largest lack exceeds its threshold
    pub beyond: u64,
}

/// Returns how far the cluster is from its targets, all collections together.
pub fn spread(cluster: &Cluster) -> Spread {
    let shards = Shards::of(cluster);
    let mut spread = Spread::default();
    for class in (0..cluster.collections.len()).flat_map(|collection| classes(&shards, collection)) {
        spread.astray += class.astray();
        let excess = class.homes.iter().map(|&shard| class.excess(shard)).max().unwrap_or(0);
        let lack = class.homes.iter().map(|&shard| class.lack(shard)).max().unwrap_or(0);
        spread.beyond = spread.beyond.max((excess + lack).saturating_sub(class.threshold));
    }
    spread
}
