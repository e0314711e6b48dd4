//! Zones.

use super::{answer, required};
use crate::operation::shards;
use crate::pg::datum::json::Json;
use pgrx::prelude::*;

/// Puts a shard into a zone, which is made by that.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn add_shard_to_zone(shard: &str, zone: &str) -> Json {
    answer(|| shards::add_to_zone(shard, zone))
}

/// Takes a shard out of a zone; refused for the last shard of a zone that has ranges of keys.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn remove_shard_from_zone(shard: &str, zone: &str) -> Json {
    answer(|| shards::remove_from_zone(shard, zone))
}

/// Lets the documents with keys from `min` up to but not including `max` live on the shards of a zone only; zone null
/// takes that range back. It may be said before the collection is sharded, which then starts with chunks in place.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_zone_key_range(ns: Option<&str>, min: Option<Json>, max: Option<Json>, zone: Option<&str>) -> Json {
    answer(|| {
        let (min, max) = (required(min, "min"), required(max, "max"));
        shards::update_zone_range(required(ns, "ns")?, &min?.parse()?, &max?.parse()?, zone)
    })
}
