//! Finds the shard keys, and so the shards, of the documents that can match a filter.
//!
//! RULE: targeting may over-select, never under-select. A condition that the analysis does not understand allows every key.
//!
//! The pattern's fields are taken in order. While the filter allows only single values of a field, each of them is appended to the
//! prefixes found so far. The first field with a range ends the analysis, because later fields do not select a contiguous range of
//! keys. A hashed field with a range, and too many ranges, end it, too.

pub mod point;

use super::chunk_map::ChunkMap;
use crate::query::filter::Filter;
use crate::values::key::encode::{encode_hash, hash_encoded, split_first};
use crate::values::key::pattern::FieldKind;
use crate::values::key::{KeyPattern, KeyRange, KeyRanges};
use crate::values::order::Class;
use std::iter;

/// Largest number of ranges. More are merged into wider ones: sending them costs more than it saves.
const MAX_RANGES: usize = 1000;

/// The shard keys that a matching document can have.
pub fn key_ranges(pattern: &KeyPattern, filter: &Filter) -> KeyRanges {
    compound_ranges(pattern, |path| filter.ranges_within(path))
}

/// Returns a lower bound of the shard keys of matching documents. It ignores expressions, so it does not depend on the time or the user.
pub fn least_key_as_written(pattern: &KeyPattern, filter: &Filter) -> Vec<u8> {
    let ranges = compound_ranges(pattern, |path| filter.ranges_as_written(path));
    ranges.hull().map(|hull| hull.lo).unwrap_or_default()
}

/// The only shard key that a matching document can have, if the filter has an equality condition for each of its fields. None for
/// an unsharded collection, where all documents have the same key, and for a regular expression.
pub fn exact_key(pattern: &KeyPattern, filter: &Filter) -> Option<Vec<u8>> {
    key_ranges(pattern, filter).as_point().filter(|_| !has_regex(pattern, filter)).map(<[u8]>::to_vec)
}

/// True if the filter has a regular expression for a field of the shard key. A regular expression is not an equality condition,
/// although it also matches an equal regular expression that is stored.
pub fn has_regex(pattern: &KeyPattern, filter: &Filter) -> bool {
    let is_regex = |range: &KeyRange| range.lo.first() == Some(&(Class::Regex as u8));
    pattern.fields.iter().any(|(path, _)| filter.ranges_within(path).as_slice().iter().any(is_regex))
}

/// True if the filter matches every document that has its [`exact_key`], so it need not be evaluated for documents of that key. `gives_id`:
/// the filter also has an equality condition for `_id`; then the document must have that `_id`, too.
pub fn key_decides(pattern: &KeyPattern, filter: &Filter, gives_id: bool) -> bool {
    let ranged = pattern.fields.iter().filter(|(_, kind)| *kind == FieldKind::Ranged).map(|(path, _)| path.as_str());
    let paths: Vec<&str> = ranged.chain(gives_id.then_some("_id")).collect();
    filter.is_ranges_of(&paths)
}

/// How many of the pattern's first fields decide the shard: documents that agree in these are on one shard. 0 for an unsharded
/// collection.
pub fn deciding_fields(pattern: &KeyPattern, map: &ChunkMap) -> usize {
    let least = pattern.fields.len().min(1);
    map.cuts().map(|bound| pattern.given_fields(bound)).fold(least, usize::max)
}

/// The shard keys made of each field's encodings.
fn compound_ranges(pattern: &KeyPattern, ranges_of: impl Fn(&str) -> KeyRanges) -> KeyRanges {
    if pattern.is_unsharded() {
        return KeyRanges::all();
    }
    let mut prefixes = vec![Vec::new()];
    for (at, (path, kind)) in pattern.fields.iter().enumerate() {
        let remaining = pattern.fields.len() - at;
        let ranges = ranges_of(path);
        if ranges.is_none() {
            return KeyRanges::none();
        }
        if let (Some(point), [prefix]) = (ranges.as_point(), prefixes.as_mut_slice()) {
            append(prefix, point, *kind);
            continue;
        }
        let within_limit = prefixes.len().saturating_mul(ranges.as_slice().len()) <= MAX_RANGES;
        let points: Option<Vec<&[u8]>> = ranges.as_slice().iter().map(KeyRange::as_point).collect();
        match (kind, points) {
            (_, Some(points)) if within_limit => {
                let extended = |prefix: &Vec<u8>, point| {
                    let mut key = prefix.clone();
                    append(&mut key, point, *kind);
                    key
                };
                let keys = prefixes.iter().flat_map(|prefix| points.iter().map(move |point| extended(prefix, point)));
                prefixes = keys.collect();
            }
            (FieldKind::Ranged, _) => {
                let hull = ranges.hull().map(|hull| KeyRanges::new(vec![hull])).unwrap_or_default();
                let ranges = if within_limit { ranges } else { hull };
                let under_prefix = |prefix: &Vec<u8>| {
                    let prefix = prefix.clone();
                    ranges
                        .as_slice()
                        .iter()
                        .map(move |range| range_under(range, &prefix, remaining))
                        .collect::<Vec<_>>()
                };
                return KeyRanges::new(prefixes.iter().flat_map(under_prefix).collect());
            }
            (FieldKind::Hashed, _) => {
                let under_prefix = |prefix: &Vec<u8>| range_under(&KeyRange::all(), prefix, remaining);
                return KeyRanges::new(prefixes.iter().map(under_prefix).collect());
            }
        }
    }
    if prefixes.len() == 1 {
        return prefixes.pop().map_or_else(KeyRanges::none, KeyRanges::point);
    }
    KeyRanges::new(prefixes.iter().map(|key| KeyRange::point(key)).collect())
}

/// The keys that consist of the prefix, an encoding in the range, and further fields; `remaining` is the number of fields after the prefix.
///
/// Pads a lower bound that ends after a complete field with MinKey for each field that follows, as the bounds of chunks are padded. No key
/// lies between the two. Without the padding, the range would include the chunk whose upper bound is the padded one.
fn range_under(range: &KeyRange, prefix: &[u8], remaining: usize) -> KeyRange {
    let mut range = range.under(prefix);
    let missing = match &range.lo[prefix.len()..] {
        [] if prefix.is_empty() => 0,
        [] => remaining,
        field if split_first(field).is_some_and(|(_, rest)| rest.is_empty()) => remaining - 1,
        _ => 0,
    };
    range.lo.extend(iter::repeat_n(Class::MinKey as u8, missing));
    range
}

fn append(key: &mut Vec<u8>, value: &[u8], kind: FieldKind) {
    match kind {
        FieldKind::Ranged => key.extend_from_slice(value),
        FieldKind::Hashed => encode_hash(hash_encoded(value), key),
    }
}
