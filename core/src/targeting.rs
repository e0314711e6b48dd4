//! From a filter to the keys, and so to the shards, that can hold matching documents.
//!
//! RULE: targeting may over-select, never under-select. What the analysis does not know widens to everything.

use crate::filter::Filter;
use crate::key::{KeyPattern, KeyRanges};

/// The shard keys that a matching document can have.
pub fn key_ranges(_pattern: &KeyPattern, _filter: &Filter) -> KeyRanges {
    todo!()
}

/// Some(key) if the filter gives every field of the shard key by equality: the statement concerns that key alone.
pub fn exact_key(_pattern: &KeyPattern, _filter: &Filter) -> Option<Vec<u8>> {
    todo!()
}
