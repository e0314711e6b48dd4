//! From a filter to the keys, and so to the shards, that can hold matching documents.
//!
//! RULE: targeting may over-select, never under-select. What the analysis does not know widens to everything.
//!
//! Field by field in the pattern's order, as long as the filter leaves single values to every field before: the values
//! are appended to the prefixes found so far. The first field with a range ends the analysis, since beyond it the keys
//! of one value and the next interleave. So do a hashed field with anything but single values, and too many ranges.

pub mod point;

use crate::query::filter::Filter;
use crate::values::key::encode::{encode_hash, hash_encoded};
use crate::values::key::pattern::FieldKind;
use crate::values::key::{KeyPattern, KeyRange, KeyRanges};

/// More ranges than this are widened: a statement that carries them costs more than it saves.
const MAX_RANGES: usize = 1000;

/// The shard keys that a matching document can have.
pub fn key_ranges(pattern: &KeyPattern, filter: &Filter) -> KeyRanges {
    compound_ranges(pattern, |path| filter.ranges_within(path))
}

/// Some(key) if the filter gives every field of the shard key by equality: the statement concerns that key alone. None
/// for an unsharded collection, whose key says nothing.
pub fn exact_key(pattern: &KeyPattern, filter: &Filter) -> Option<Vec<u8>> {
    key_ranges(pattern, filter).as_point().map(<[u8]>::to_vec)
}

/// True if every document with the one shard key that the filter gives, [`exact_key`], matches it: it need not be looked at. If the
/// filter gives one `_id`, too, that is of every document with both.
pub fn key_tells_all(pattern: &KeyPattern, filter: &Filter, gives_id: bool) -> bool {
    let ranged = pattern.fields.iter().filter(|(_, kind)| *kind == FieldKind::Ranged).map(|(path, _)| path.as_str());
    let paths: Vec<&str> = ranged.chain(gives_id.then_some("_id")).collect();
    filter.is_ranges_of(&paths)
}

/// The shard keys made of each field's encodings.
fn compound_ranges(pattern: &KeyPattern, ranges_of: impl Fn(&str) -> KeyRanges) -> KeyRanges {
    if pattern.is_unsharded() {
        return KeyRanges::all();
    }
    let mut prefixes = vec![Vec::new()];
    for (path, kind) in &pattern.fields {
        let ranges = ranges_of(path);
        if ranges.is_none() {
            return KeyRanges::none();
        }
        if let (Some(point), [prefix]) = (ranges.as_point(), prefixes.as_mut_slice()) {
            append(prefix, point, *kind);
            continue;
        }
        let fits = prefixes.len().saturating_mul(ranges.as_slice().len()) <= MAX_RANGES;
        let points: Option<Vec<&[u8]>> = ranges.as_slice().iter().map(KeyRange::as_point).collect();
        match (kind, points) {
            (_, Some(points)) if fits => {
                prefixes = prefixes
                    .iter()
                    .flat_map(|prefix| points.iter().map(|point| appended(prefix, point, *kind)))
                    .collect();
            }
            (FieldKind::Ranged, _) => {
                let hull = ranges.hull().map(|hull| KeyRanges::new(vec![hull])).unwrap_or_default();
                let ranges = if fits { ranges } else { hull };
                let below = |prefix: &Vec<u8>| {
                    let prefix = prefix.clone();
                    ranges.as_slice().iter().map(move |range| range.under(&prefix)).collect::<Vec<_>>()
                };
                return KeyRanges::new(prefixes.iter().flat_map(below).collect());
            }
            (FieldKind::Hashed, _) => {
                return KeyRanges::new(prefixes.iter().map(|prefix| KeyRange::all().under(prefix)).collect());
            }
        }
    }
    if prefixes.len() == 1 {
        return prefixes.pop().map_or_else(KeyRanges::none, KeyRanges::point);
    }
    KeyRanges::new(prefixes.iter().map(|key| KeyRange::point(key)).collect())
}

fn appended(prefix: &[u8], value: &[u8], kind: FieldKind) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + value.len());
    key.extend_from_slice(prefix);
    append(&mut key, value, kind);
    key
}

fn append(key: &mut Vec<u8>, value: &[u8], kind: FieldKind) {
    match kind {
        FieldKind::Ranged => key.extend_from_slice(value),
        FieldKind::Hashed => encode_hash(hash_encoded(value), key),
    }
}
