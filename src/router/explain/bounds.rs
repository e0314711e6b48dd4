//! Ranges of encoded shard keys as `explain` shows them.

use docshard_core::routing::model::Collection;
use docshard_core::values::key::encode::{decode, prefix_successor};
use docshard_core::values::key::{KeyRange, KeyRanges};
use serde_json::{Value as Json, json};

/// Returns the first twenty ranges of shard keys; null if there is no bound.
pub fn bounds(collection: &Collection, keys: &KeyRanges) -> Json {
    if collection.key.is_unsharded() || keys.is_all() {
        return Json::Null;
    }
    let shown = keys.as_slice().iter().take(20).map(|range| bound(collection, range)).collect::<Vec<_>>();
    Json::from(shown)
}

fn bound(collection: &Collection, range: &KeyRange) -> Json {
    let key = |bytes: &[u8]| collection.key.bound_to_json(bytes);
    if let Some(point) = range.as_point() {
        return json!({"key": key(point)});
    }
    // A range of all keys with a common prefix is shown as ending with MaxKey in the other fields.
    if is_key(&range.lo) && range.hi.is_some() && range.hi == prefix_successor(&range.lo) {
        let mut last = range.lo.clone();
        let max = collection.key.max_bound();
        let missing = missing_fields(collection, &range.lo);
        last.extend_from_slice(&max[max.len().saturating_sub(missing)..]);
        return json!({"from": key(&range.lo), "to": key(&last)});
    }
    let mut shown = serde_json::Map::new();
    shown.extend(end(collection, &range.lo, "from", "above"));
    shown.extend(range.hi.as_ref().and_then(|hi| end(collection, hi, "below", "to")));
    Json::Object(shown)
}

/// Renders one bound under a field name: `at` if it is a key, `after` if it follows all keys with a common prefix. None for the end of the
/// values of a type, which is not shown.
fn end(collection: &Collection, bytes: &[u8], at: &str, after: &str) -> Option<(String, Json)> {
    if is_key(bytes) {
        return Some((at.to_owned(), collection.key.bound_to_json(bytes)));
    }
    let mut last = bytes.to_vec();
    let byte = last.last_mut()?;
    *byte = byte.checked_sub(1)?;
    if !is_key(&last) {
        return None;
    }
    let max = collection.key.max_bound();
    let missing = missing_fields(collection, &last);
    last.extend_from_slice(&max[max.len().saturating_sub(missing)..]);
    Some((after.to_owned(), collection.key.bound_to_json(&last)))
}

/// True if the bytes are a sequence of complete encoded values.
fn is_key(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match decode(bytes) {
            Ok((_, rest)) => bytes = rest,
            Err(_) => return false,
        }
    }
    true
}

/// The number of shard key fields that this prefix does not contain.
fn missing_fields(collection: &Collection, start: &[u8]) -> usize {
    let mut rest = start;
    let mut fields = collection.key.fields.len();
    while fields > 0 {
        match decode(rest) {
            Ok((_, behind)) => rest = behind,
            Err(_) => break,
        }
        fields -= 1;
    }
    fields
}
