//! Zones of one collection: ranges of keys whose documents may live only on the shards of a zone.
//!
//! INVARIANT: ranges do not overlap. Keys outside all ranges may live anywhere.

use crate::cluster::chunk_map::{Chunk, ShardId};
use crate::error::{Kind, Result, bail, ensure};
use crate::values::key::KeyPattern;

/// A range of keys that belongs to a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRange {
    /// the lower bound, inclusive
    pub min: Vec<u8>,
    /// the upper bound, exclusive; the pattern's highest bound is inclusive, as for the last chunk
    pub max: Vec<u8>,
    /// the zone
    pub zone: String,
}

/// All ranges of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneMap(Vec<ZoneRange>);

/// A shard to which initial chunks may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// its number
    pub id: ShardId,
    /// its zones
    pub zones: Vec<String>,
}

impl ZoneMap {
    /// Makes a map of ranges in any order.
    ///
    /// # Errors
    /// `BadValue` for an empty range, `RangeOverlapConflict`.
    pub fn new(mut ranges: Vec<ZoneRange>) -> Result<Self> {
        ranges.sort_by(|a, b| a.min.cmp(&b.min));
        let in_order = ranges.iter().all(|range| range.min < range.max);
        ensure!(in_order, Kind::BadValue, "a zone's range ends before it starts");
        if let Some([a, b]) = ranges.array_windows().find(|[a, b]| a.max > b.min) {
            bail!(Kind::RangeOverlapConflict, "ranges of the zones '{}' and '{}' overlap", a.zone, b.zone);
        }
        Ok(Self(ranges))
    }

    /// The ranges, in key order.
    pub fn ranges(&self) -> &[ZoneRange] {
        &self.0
    }

    /// True if there is no range.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The range that covers all of `[min, max)`, if there is one.
    pub fn covering(&self, min: &[u8], max: &[u8]) -> Option<&ZoneRange> {
        let behind = self.0.partition_point(|range| range.min.as_slice() <= min);
        let range = self.0.get(behind.checked_sub(1)?)?;
        (max <= range.max.as_slice()).then_some(range)
    }

    /// The bounds of ranges strictly between two keys, ascending, at which a chunk that straddles zones is split.
    pub fn cuts(&self, min: &[u8], max: &[u8]) -> Vec<Vec<u8>> {
        let first = self.0.partition_point(|range| range.max.as_slice() <= min);
        let mut cuts: Vec<Vec<u8>> = Vec::new();
        for range in self.0.iter().skip(first).take_while(|range| range.min.as_slice() < max) {
            for bound in [&range.min, &range.max] {
                if bound.as_slice() > min && bound.as_slice() < max && cuts.last() != Some(bound) {
                    cuts.push(bound.clone());
                }
            }
        }
        cuts
    }

    /// True if there are [`Self::cuts`]; cheaper than computing them.
    pub fn straddles(&self, min: &[u8], max: &[u8]) -> bool {
        let first = self.0.partition_point(|range| range.max.as_slice() <= min);
        self.0.get(first).is_some_and(|range| {
            let inside = |bound: &[u8]| bound > min && bound < max;
            inside(&range.min) || inside(&range.max)
        })
    }

    /// The initial chunks of an empty collection, split at `bounds` (ascending, strictly inside the key space) and at the zones'
    /// bounds. Chunks in a zone are assigned to its shards in turn, other chunks to all shards in turn. Without zones, neighbours stay
    /// together, and a single chunk is on the primary shard.
    pub fn initial_chunks(
        &self,
        pattern: &KeyPattern,
        bounds: Vec<Vec<u8>>,
        homes: &[Home],
        primary: ShardId,
    ) -> Vec<Chunk> {
        let (lowest, highest) = (pattern.min_bound(), pattern.max_bound());
        let mut all = bounds;
        all.extend(self.cuts(&lowest, &highest));
        all.push(lowest);
        all.push(highest);
        all.sort_unstable();
        all.dedup();
        let count = all.len() - 1;
        let mut turns = std::collections::HashMap::<Option<&str>, usize>::new();
        let mut chunks = Vec::with_capacity(count);
        for (i, pair) in all.windows(2).enumerate() {
            let zone = self.covering(&pair[0], &pair[1]).map(|range| range.zone.as_str());
            let inside = |home: &&Home| zone.is_none_or(|zone| home.zones.iter().any(|own| own == zone));
            let allowed: Vec<_> = homes.iter().filter(inside).collect();
            // If all shards of the zone are being removed, the chunk goes to any shard; the balancer reports the violation later.
            let allowed = if allowed.is_empty() { homes.iter().collect() } else { allowed };
            let shard = if count == 1 || allowed.is_empty() {
                if zone.is_none() || allowed.is_empty() { primary } else { allowed[0].id }
            } else if self.is_empty() {
                allowed[i * allowed.len() / count.max(allowed.len())].id
            } else {
                let turn = turns.entry(zone).or_default();
                *turn += 1;
                allowed[(*turn - 1) % allowed.len()].id
            };
            chunks.push(Chunk { min: pair[0].clone(), max: pair[1].clone(), shard });
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u8, max: u8, zone: &str) -> ZoneRange {
        ZoneRange { min: vec![min], max: vec![max], zone: zone.to_owned() }
    }

    fn map() -> ZoneMap {
        ZoneMap::new(vec![range(50, 60, "b"), range(10, 20, "a"), range(20, 30, "c")]).unwrap()
    }

    #[test]
    fn ranges_must_not_overlap_nor_be_empty() {
        let kind = |ranges| ZoneMap::new(ranges).unwrap_err().kind;
        assert_eq!(kind(vec![range(1, 5, "a"), range(4, 6, "a")]), Kind::RangeOverlapConflict);
        assert_eq!(kind(vec![range(1, 9, "a"), range(4, 6, "b")]), Kind::RangeOverlapConflict);
        assert_eq!(kind(vec![range(5, 5, "a")]), Kind::BadValue);
        assert_eq!(kind(vec![range(5, 4, "a")]), Kind::BadValue);
        assert!(ZoneMap::new(vec![range(4, 6, "b"), range(1, 4, "a")]).is_ok());
    }

    #[test]
    fn a_chunk_belongs_to_the_range_that_covers_it() {
        let zone = |min: u8, max: u8| map().covering(&[min], &[max]).map(|range| range.zone.clone());
        assert_eq!(zone(10, 20).as_deref(), Some("a"));
        assert_eq!(zone(12, 13).as_deref(), Some("a"));
        assert_eq!(zone(20, 30).as_deref(), Some("c"));
        for (min, max) in [(0, 5), (5, 15), (15, 25), (30, 50), (55, 61), (60, 70)] {
            assert_eq!(zone(min, max), None, "{min} {max}");
        }
    }

    #[test]
    fn cuts_lie_strictly_inside() {
        for (min, max, cuts) in [
            (0, 255, vec![10, 20, 30, 50, 60]),
            (10, 20, vec![]),
            (10, 21, vec![20]),
            (11, 12, vec![]),
            (0, 10, vec![]),
            (30, 50, vec![]),
            (25, 55, vec![30, 50]),
            (60, 255, vec![]),
        ] {
            let found: Vec<u8> = map().cuts(&[min], &[max]).into_iter().map(|cut| cut[0]).collect();
            assert_eq!(found, cuts, "{min} {max}");
            assert_eq!(map().straddles(&[min], &[max]), !cuts.is_empty(), "{min} {max}");
        }
    }

    #[test]
    fn initial_chunks_respect_zones() {
        let pattern = KeyPattern::parse(&serde_json::json!({"a": 1})).unwrap();
        let bound = |n: i64| pattern.bound_from_json(&serde_json::json!({"a": n})).unwrap();
        let home = |id, zones: &[&str]| Home { id, zones: zones.iter().map(|zone| (*zone).to_owned()).collect() };
        let homes = [home(1, &["x"]), home(2, &["x", "y"]), home(3, &[])];
        let zone = |min, max, zone: &str| ZoneRange { min: bound(min), max: bound(max), zone: zone.to_owned() };
        let zones =
            ZoneMap::new(vec![zone(0, 10, "x"), zone(10, 20, "y"), zone(30, 40, "x"), zone(40, 50, "x")]).unwrap();
        let chunks = zones.initial_chunks(&pattern, Vec::new(), &homes, 3);
        let shards: Vec<_> = chunks.iter().map(|chunk| chunk.shard).collect();
        // outside, x, y, outside, x, x, outside
        assert_eq!(shards, [1, 1, 2, 2, 2, 1, 3]);
        assert!(crate::cluster::chunk_map::ChunkMap::new(chunks).is_ok());
        let whole = ZoneMap::default().initial_chunks(&pattern, Vec::new(), &homes, 3);
        assert_eq!((whole.len(), whole[0].shard), (1, 3));
        let everything = ZoneRange { min: pattern.min_bound(), max: pattern.max_bound(), zone: "y".to_owned() };
        let whole = ZoneMap::new(vec![everything]).unwrap().initial_chunks(&pattern, Vec::new(), &homes, 3);
        assert_eq!((whole.len(), whole[0].shard), (1, 2));
    }
}
