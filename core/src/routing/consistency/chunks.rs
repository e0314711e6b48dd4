//! Checks that a collection's chunks cover every key once, that their bounds are keys of its shard key, and that they are on shards which
//! have the collection.

use super::{Finding, MAX_OF_KIND};
use crate::cluster::chunk_map::{Chunk, ShardId};
use crate::error::Result;
use crate::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// The reason that is reported for why no statement repairs chunks.
const NO_REPAIR: &str =
    "the catalog does not say which shard has these keys: restore the router's catalog from a backup";

/// Reads chunks by lower bound, one after the other.
struct Check<'a> {
    namespace: &'a str,
    key: &'a KeyPattern,
    placements: &'a BTreeMap<ShardId, i64>,
    previous: Option<Chunk>,
    count: usize,
    found: Vec<Finding>,
}

/// Checks the chunks of a collection, which come in the order of their lower bounds.
///
/// # Errors
/// Those of reading the chunks.
pub fn check(
    namespace: &str,
    key: &KeyPattern,
    placements: &BTreeMap<ShardId, i64>,
    chunks: impl IntoIterator<Item = Result<Chunk>>,
) -> Result<Vec<Finding>> {
    let mut check = Check { namespace, key, placements, previous: None, count: 0, found: Vec::new() };
    for chunk in chunks {
        check.push(chunk?);
    }
    Ok(check.finish())
}

impl Check<'_> {
    fn add(&mut self, kind: &'static str, description: String, details: Json) {
        if self.found.iter().filter(|found| found.kind == kind).count() >= MAX_OF_KIND {
            return;
        }
        let mut finding = Finding::new(kind, Some(self.namespace), None, description).without_repair(NO_REPAIR);
        if let Json::Object(details) = details {
            finding.details.extend(details);
        }
        self.found.push(finding);
    }

    fn shown(&self, chunk: &Chunk) -> Json {
        let bound = |bound: &[u8]| self.key.bound_to_json(bound);
        json!({"min": bound(&chunk.min), "max": bound(&chunk.max), "shard": chunk.shard})
    }

    fn push(&mut self, chunk: Chunk) {
        self.count += 1;
        if [&chunk.min, &chunk.max].into_iter().any(|bound| self.key.decode(bound).is_err()) {
            let description = format!("a chunk's bounds are no keys of the shard key {}", self.key.to_json());
            self.add("CorruptedChunkShardKey", description, json!({"chunk": self.shown(&chunk)}));
        }
        match &self.previous {
            None => {
                let lowest = self.key.min_bound();
                if chunk.min != lowest {
                    let details = json!({"chunk": self.shown(&chunk)});
                    self.add("RoutingTableMissingMinKey", "no chunk has the lowest keys".to_owned(), details);
                }
            }
            Some(previous) if previous.max != chunk.min => {
                let details = json!({"previousChunk": self.shown(previous), "nextChunk": self.shown(&chunk)});
                let (kind, what) = match previous.max < chunk.min {
                    true => ("RoutingTableRangeGap", "no chunk has the keys between two chunks"),
                    false => ("RoutingTableRangeOverlap", "two chunks have the same keys"),
                };
                self.add(kind, what.to_owned(), details);
            }
            Some(_) => {}
        }
        let is_known = |found: &Finding| {
            found.kind == "ShardMissingCollectionRoutingInfo" && found.details["shardId"] == chunk.shard
        };
        if !self.placements.contains_key(&chunk.shard) && !self.found.iter().any(is_known) {
            let description =
                format!("a chunk is on shard {}, which has no version of the collection in the catalog", chunk.shard);
            self.add("ShardMissingCollectionRoutingInfo", description, json!({"shardId": chunk.shard}));
        }
        self.previous = Some(chunk);
    }

    fn finish(mut self) -> Vec<Finding> {
        match self.previous.take() {
            None => self.add("MissingRoutingTable", "the collection has no chunks".to_owned(), json!({})),
            Some(last) if last.max != self.key.max_bound() => {
                let details = json!({"chunk": self.shown(&last)});
                self.add("RoutingTableMissingMaxKey", "no chunk has the highest keys".to_owned(), details);
            }
            Some(_) => {}
        }
        if self.key.is_unsharded() && self.count > 1 {
            let description = format!("an unsharded collection has {} chunks", self.count);
            self.add("TrackedUnshardedCollectionHasMultipleChunks", description, json!({"chunks": self.count}));
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(bounds: &[(i64, i64)], shard: ShardId) -> Vec<&'static str> {
        let key = KeyPattern::parse(&json!({"k": 1})).unwrap();
        let bound = |n: i64| match n {
            i64::MIN => key.min_bound(),
            i64::MAX => key.max_bound(),
            n => key.bound_from_json(&json!({"k": n})).unwrap(),
        };
        let chunks = bounds.iter().map(|(min, max)| Ok(Chunk { min: bound(*min), max: bound(*max), shard }));
        let found = check("a.b", &key, &BTreeMap::from([(1, 1)]), chunks).unwrap();
        assert!(found.iter().all(|one| one.repair.is_none() && one.details.contains_key("noRepair")));
        found.iter().map(|one| one.kind).collect()
    }

    #[test]
    fn every_fault_of_chunks_is_found() {
        let (lowest, highest) = (i64::MIN, i64::MAX);
        assert!(kinds(&[(lowest, 1), (1, 5), (5, highest)], 1).is_empty());
        assert_eq!(kinds(&[], 1), ["MissingRoutingTable"]);
        assert_eq!(kinds(&[(lowest, 1), (2, highest)], 1), ["RoutingTableRangeGap"]);
        assert_eq!(kinds(&[(lowest, 3), (2, highest)], 1), ["RoutingTableRangeOverlap"]);
        assert_eq!(kinds(&[(0, highest)], 1), ["RoutingTableMissingMinKey"]);
        assert_eq!(kinds(&[(lowest, 0)], 1), ["RoutingTableMissingMaxKey"]);
        assert_eq!(kinds(&[(lowest, 1), (1, highest)], 2), ["ShardMissingCollectionRoutingInfo"]);
        let many: Vec<_> = (0..100).map(|n| (2 * n, 2 * n + 1)).collect();
        assert_eq!(kinds(&many, 1).len(), MAX_OF_KIND + 2);
    }

    #[test]
    fn bounds_of_another_key_are_corrupted() {
        let key = KeyPattern::parse(&json!({"a": 1, "b": 1})).unwrap();
        let other = KeyPattern::parse(&json!({"a": 1})).unwrap();
        let middle = other.bound_from_json(&json!({"a": 1})).unwrap();
        let chunks = [(key.min_bound(), middle.clone()), (middle, key.max_bound())];
        let chunks = chunks.map(|(min, max)| Ok(Chunk { min, max, shard: 1 }));
        let found = check("a.b", &key, &BTreeMap::from([(1, 1)]), chunks).unwrap();
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), ["CorruptedChunkShardKey"; 2]);
    }

    #[test]
    fn an_unsharded_collection_has_one_chunk() {
        let key = KeyPattern::unsharded();
        let chunk = Chunk { min: key.min_bound(), max: key.max_bound(), shard: 1 };
        let of = |chunks: Vec<Chunk>| {
            let found = check("a.b", &key, &BTreeMap::from([(1, 1)]), chunks.into_iter().map(Ok)).unwrap();
            found.iter().map(|one| one.kind).collect::<Vec<_>>()
        };
        assert!(of(vec![chunk.clone()]).is_empty());
        assert_eq!(of(vec![chunk.clone(), chunk]), ["TrackedUnshardedCollectionHasMultipleChunks"]);
    }
}
