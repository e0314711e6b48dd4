//! Zones.

use super::required;
use crate::catalog::shards::check_may_change;
use crate::catalog::zones;
use crate::pg::datum::json::Json;
use crate::pg::error::Result;
use crate::worker;
use pgrx::prelude::*;
use serde_json::json;

fn answer(change: impl FnOnce() -> Result<()>) -> Json {
    check_may_change().and_then(|()| change()).unwrap_or_else(|e| e.raise());
    worker::wake_at_commit();
    Json(json!({"ok": 1}).to_string())
}

/// Puts a shard into a zone, which is made by that.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn add_shard_to_zone(shard: &str, zone: &str) -> Json {
    answer(|| zones::add_shard(shard, zone))
}

/// Takes a shard out of a zone; refused for the last shard of a zone that has ranges of keys.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn remove_shard_from_zone(shard: &str, zone: &str) -> Json {
    answer(|| zones::remove_shard(shard, zone))
}

/// Lets the documents with keys from `min` up to but not including `max` live on the shards of a zone only; zone null
/// takes that range back. It may be said before the collection is sharded, which then starts with chunks in place.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_zone_key_range(ns: Option<&str>, min: Option<Json>, max: Option<Json>, zone: Option<&str>) -> Json {
    answer(|| {
        let (min, max) = (required(min, "min"), required(max, "max"));
        zones::update_range(required(ns, "ns")?, &min?.parse()?, &max?.parse()?, zone)
    })
}
