//! Checks that the ranges of a collection's zones do not overlap, and that their bounds are keys of its shard key.

use super::{Finding, MAX_OF_KIND, Repair};
use crate::json;
use crate::values::key::KeyPattern;
use serde_json::{Value as Json, json};

/// A range of a zone, as the catalog has it.
#[derive(Clone, Debug)]
pub struct Range {
    /// the encoded bounds
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    /// the bounds as JSON text
    pub min: String,
    pub max: String,
    pub zone: String,
}

impl Range {
    /// The call that removes the range.
    fn removal(&self, namespace: &str) -> Repair {
        Repair::new("update_zone_key_range", [namespace, &self.min, &self.max]).with_null()
    }

    fn shown(&self) -> Json {
        json!({"min": self.min, "max": self.max, "zone": self.zone})
    }

    /// True if each bound is a key of the shard key, and its text says the same as the encoded key.
    fn is_sound(&self, key: &KeyPattern) -> bool {
        let is_of = |text: &str, bound: &[u8]| {
            key.decode(bound).is_ok()
                && json::parse(text).is_ok_and(|json| key.bound_from_json(&json).is_ok_and(|encoded| encoded == bound))
        };
        // The text of the highest bound may omit fields.
        is_of(&self.min, &self.min_key) && (is_of(&self.max, &self.max_key) || self.max_key == key.max_bound())
    }
}

/// Checks ranges, which are in the order of their lower bounds. `key` is None if the collection is not sharded, or does not exist: then
/// only overlaps are found.
pub fn check(namespace: &str, key: Option<&KeyPattern>, ranges: &[Range]) -> Vec<Finding> {
    let mut found = Vec::new();
    for [first, second] in
        ranges.array_windows().filter(|[first, second]| first.max_key > second.min_key).take(MAX_OF_KIND)
    {
        let description = format!(
            "ranges of the zones '{}' and '{}' overlap; the repair removes the second one",
            first.zone, second.zone
        );
        let finding = Finding::new("ZonesRangeOverlap", Some(namespace), None, description)
            .with("ranges", json!([first.shown(), second.shown()]))
            .repaired_by(second.removal(namespace));
        found.push(finding);
    }
    let Some(key) = key else { return found };
    for range in ranges.iter().filter(|range| !range.is_sound(key)).take(MAX_OF_KIND) {
        let description = format!(
            "the bounds of a range of the zone '{}' are no keys of the shard key {}",
            range.zone,
            key.to_json()
        );
        let finding = Finding::new("CorruptedZoneShardKey", Some(namespace), None, description)
            .with("range", range.shown())
            .without_repair("no function names such bounds: restore the router's catalog from a backup");
        found.push(finding);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &KeyPattern, min: i64, max: i64, zone: &str) -> Range {
        let (min, max) = (json!({"k": min}), json!({"k": max}));
        let encoded = |json: &Json| key.bound_from_json(json).unwrap();
        let (min_key, max_key) = (encoded(&min), encoded(&max));
        Range { min_key, max_key, min: min.to_string(), max: max.to_string(), zone: zone.to_owned() }
    }

    #[test]
    fn overlapping_and_foreign_ranges_are_found() {
        let key = KeyPattern::parse(&json!({"k": 1})).unwrap();
        let ranges = [range(&key, 0, 10, "A"), range(&key, 5, 20, "B"), range(&key, 20, 30, "A")];
        let found = check("a.b", Some(&key), &ranges);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, "ZonesRangeOverlap");
        assert_eq!(
            found[0].repair.as_ref().unwrap().to_string(),
            r#"SELECT docshard.update_zone_key_range('a.b', '{"k":5}', '{"k":20}', NULL)"#
        );
        assert!(check("a.b", Some(&key), &[ranges[0].clone(), ranges[2].clone()]).is_empty());
        let other = KeyPattern::parse(&json!({"j": 1})).unwrap();
        let kinds: Vec<_> = check("a.b", Some(&other), &ranges[..1]).iter().map(|one| one.kind).collect();
        assert_eq!(kinds, ["CorruptedZoneShardKey"]);
        assert!(check("a.b", None, &ranges[..1]).is_empty());
        let highest =
            Range { max_key: key.max_bound(), max: r#"{"k": {"$maxKey": 1}}"#.to_owned(), ..ranges[0].clone() };
        assert!(check("a.b", Some(&key), &[highest]).is_empty());
    }
}
