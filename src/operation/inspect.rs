//! Checks that a collection is consistent.

use super::arguments::Arguments;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::router;
use docshard_core::error::{Kind, error};
use serde_json::Value as Json;

/// The largest number of problems of each shard that are reported, by default.
const LIMIT: i64 = 100;

/// Reads every document on every shard: whether it is valid, has the right keys, and belongs to the shard.
pub fn check_collection(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    check_router()?;
    namespace::split(ns)?;
    let limit = options.integer("limit")?.unwrap_or(LIMIT);
    match usize::try_from(limit) {
        Ok(limit @ 0..=10_000) => router::reads::inspect::collection(ns, limit),
        _ => Err(error!(Kind::BadValue, "limit must be from 0 to 10000, not {limit}")),
    }
}
