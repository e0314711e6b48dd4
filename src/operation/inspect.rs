//! Describes a collection's indexes, and checks that a collection is consistent.

use super::arguments::Arguments;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::collections::namespace;
use crate::pg::datum::json::Json as Text;
use crate::pg::error::Result;
use crate::router;
use crate::router::reads::index_stats;
pub use crate::router::reads::index_stats::IndexStats;
use crate::router::source::Source;
use crate::store::{self, shards::ListedShard};
use docshard_core::error::{Kind, error};
use serde_json::{Value as Json, json};

/// The largest number of problems of each shard that are reported, by default.
const LIMIT: i64 = 100;

/// Reads every document on every shard, and checks whether it is valid, has the right keys, and belongs to the shard.
pub fn check_collection(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    check_router()?;
    namespace::split(ns)?;
    let limit = options.integer("limit")?.unwrap_or(LIMIT);
    match usize::try_from(limit) {
        Ok(limit @ 0..=10_000) => router::reads::inspect::collection(ns, limit),
        _ => Err(error!(Kind::BadValue, "limit must be from 0 to 10000, not {limit}")),
    }
}

/// An index as `list_indexes` returns it: its name and keys; whether it is unique, hidden; its expiry in seconds; whether it is sparse; its
/// partial filter, collation and wildcard projection.
pub type ListedIndex = (String, Text, bool, bool, Option<i64>, bool, Option<Text>, Option<Text>, Option<Text>);

pub fn indexes(ns: &str) -> Result<Vec<ListedIndex>> {
    namespace::split(ns)?;
    let source = Source::of(ns)?;
    if !source.exists() {
        return Err(cache::not_found(ns));
    }
    let of_id = Text::new(json!({"_id": 1}).to_string());
    let is_unique = source.stored().is_none_or(|collection| collection.key.is_unsharded());
    let mut rows = vec![("_id_".to_owned(), of_id, is_unique, false, None, false, None, None, None)];
    let Some(collection) = source.stored() else { return Ok(rows) };
    rows.extend(collection.key_index().map(|keys| {
        let pattern = Text::new(collection.key.to_json().to_string());
        (keys.default_name(), pattern, false, false, None, false, None, None, None)
    }));
    rows.extend(collection.indexes.iter().map(|index| {
        let keys = Text::new(index.keys_json.clone());
        let partial = index.partial_filter().map(|text| Text::new(text.to_owned()));
        let collation = index.collation().map(|collator| Text::new(collator.definition().to_string()));
        let projection = index.wildcard_projection.as_ref().map(|json| Text::new(json.to_string()));
        let name = index.name.clone();
        let (unique, hidden, sparse) = (index.unique, index.hidden, index.sparse);
        (name, keys, unique, hidden, index.expire_after_s, sparse, partial, collation, projection)
    }));
    Ok(rows)
}

/// The shards, in the order of their numbers.
/// Errors: `Unauthorized` for a role to which nothing was granted.
pub fn shards() -> Result<Vec<ListedShard>> {
    cache::require_access()?;
    store::shards::listed()
}

pub fn index_stats(ns: &str) -> Result<Vec<IndexStats>> {
    namespace::split(ns)?;
    check_router()?;
    index_stats::of(ns)
}
