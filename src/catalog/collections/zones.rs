//! Zones: the shards that belong to a zone, and the ranges of collections' keys that are stored on these shards.
//!
//! A range may be assigned before its collection is sharded. Its bounds are then kept as they were written, and encoded once the
//! shard key is known. RULE: call [`lock`] before zones are changed or relied on, and before any row is locked.

use super::namespace;
use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::cluster::move_exclusion::refuse_while_resharding;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::resharding;
use crate::store::zone_ranges::{self, StoredRange};
use crate::store::zones::{self, Membership};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::zone::{Home, ZoneMap, ZoneRange};
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::specification::parse;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value, json};
use std::collections::HashMap;

pub use crate::store::zone_ranges::lock;

fn check_name(zone: &str) -> Result<()> {
    if zone.is_empty() {
        bail!(Kind::BadValue, "a zone's name must not be empty");
    }
    Ok(())
}

/// Adds a shard to a zone; a new name creates the zone.
/// Errors: `ShardNotFound`, `BadValue` for an empty name.
pub fn add_shard(shard: &str, zone: &str) -> Result<()> {
    check_name(zone)?;
    lock()?;
    let shard = cache::shard_named(shard)?;
    if zones::insert(shard.id, zone)? {
        change::log("addShardToZone", None, &json!({"shard": shard.name, "zone": zone}))?;
        change::announce();
    }
    Ok(())
}

/// Removes a shard from a zone.
/// Errors: `ShardNotFound`; `ZoneStillInUse` for the last shard of a zone with ranges.
pub fn remove_shard(shard: &str, zone: &str) -> Result<()> {
    check_name(zone)?;
    lock()?;
    let shard = cache::shard_named(shard)?;
    refuse_last(&shard, Some(zone))?;
    if zones::delete(shard.id, zone)? {
        change::log("removeShardFromZone", None, &json!({"shard": shard.name, "zone": zone}))?;
        change::announce();
    }
    Ok(())
}

/// Refuses to remove a shard from `zone` (None: from all its zones) if all other shards of the zone are draining, or there are none, and the
/// zone has ranges, or may get some by a running change of layout.
/// Errors: `ZoneStillInUse`.
pub fn refuse_last(shard: &Shard, zone: Option<&str>) -> Result<()> {
    let may_get_ranges = resharding::running()?.iter().any(|change| change.command == "reshardCollection");
    refuse_last_of(shard, zone, may_get_ranges)
}

/// Like [`refuse_last`], for a lost shard. A running change of layout does not prevent the removal, because the change may be waiting for it.
/// Errors: `ZoneStillInUse`.
pub fn refuse_lost(shard: &Shard) -> Result<()> {
    refuse_last_of(shard, None, false)
}

fn refuse_last_of(shard: &Shard, zone: Option<&str>, may_get_ranges: bool) -> Result<()> {
    let needed = zones::depending_on(shard.id, may_get_ranges)?;
    let Some(zone) = needed.iter().find(|needed| zone.is_none_or(|zone| *needed == zone)) else { return Ok(()) };
    let or_may = if may_get_ranges { ", or may get some by the reshard_collection that runs" } else { "" };
    Err(error!(
        Kind::ZoneStillInUse,
        "{} is the last shard of the zone '{zone}', which has ranges of keys{or_may}", shard.name
    )
    .with_hint(format!(
        "Add another shard to the zone, or remove its ranges: \
         docshard.update_zone_key_range(ns, min, max, NULL); docshard.zone_ranges lists those of '{zone}'."
    )))
}

/// Assigns a range of keys to a zone; None removes the range with exactly these bounds.
/// Errors: `BadValue` for malformed bounds, `FailedToParse` for an empty range, `RangeOverlapConflict`, `ZoneNotFound`;
/// `InvalidNamespace`; `ReshardCollectionInProgress`.
pub fn update_range(ns: &str, min: &Value, max: &Value, zone: Option<&str>) -> Result<()> {
    namespace::split(ns)?;
    lock()?;
    let collection = cache::find(ns)?;
    // A running change of layout may replace the shard key and the ranges, so these cannot be changed until it ends.
    if let Some(collection) = &collection {
        refuse_while_resharding(collection.id)?;
    }
    let sharded = collection.map(|collection| collection.key.clone()).filter(|key| !key.is_unsharded());
    // Until the shard key is known, the fields of the bounds are used as the pattern.
    let pattern = match sharded {
        Some(pattern) => pattern,
        None => provisional(min)?,
    };
    let (min_key, max_key) = bounds(&pattern, min, max)?;
    let Some(zone) = zone else {
        zone_ranges::delete(ns, &min_key, &max_key)?;
        change::log("updateZoneKeyRange", Some(ns), &json!({"min": min, "max": max, "zone": null}))?;
        return Ok(());
    };
    check_name(zone)?;
    if !zones::exists(zone)? {
        return Err(error!(Kind::ZoneNotFound, "no shard belongs to the zone '{zone}'")
            .with_hint(format!("docshard.add_shard_to_zone(shard, '{zone}') makes it.")));
    }
    // A range with exactly these bounds does not count as overlapping: only its zone is changed.
    if let Some(other) = zone_ranges::overlapping(ns, &min_key, &max_key)? {
        return Err(error!(
            Kind::RangeOverlapConflict,
            "the range {} -->> {} overlaps the existing one {} -->> {} of the zone '{}'",
            pattern.bound_to_json(&min_key),
            pattern.bound_to_json(&max_key),
            other.min,
            other.max,
            other.zone
        )
        .with_hint("Remove that one first: docshard.update_zone_key_range(ns, min, max, NULL)."));
    }
    store(ns, &pattern, &min_key, &max_key, zone)?;
    change::log("updateZoneKeyRange", Some(ns), &json!({"min": min, "max": max, "zone": zone}))
}

fn store(ns: &str, pattern: &KeyPattern, min: &[u8], max: &[u8], zone: &str) -> Result<()> {
    zone_ranges::insert_or_set(&StoredRange {
        namespace: ns.to_owned(),
        min_key: min.to_owned(),
        max_key: max.to_owned(),
        min: pattern.bound_to_json(min).to_string(),
        max: pattern.bound_to_json(max).to_string(),
        zone: zone.to_owned(),
    })
}

/// Returns a shard key pattern with the fields of a bound.
fn provisional(bound: &Value) -> Result<KeyPattern> {
    let Value::Object(members) = bound else {
        bail!(Kind::TypeMismatch, "A bound must be an object, not {bound}");
    };
    let fields = members.keys().map(|name| (name.clone(), Value::from(1))).collect();
    KeyPattern::parse(&Value::Object(fields)).map_err(|error| Error::new(Kind::BadValue, error.into_message()))
}

/// Encodes a range's bounds. An upper bound whose values are all MaxKey is the highest, however many fields it has.
fn bounds(pattern: &KeyPattern, min: &Value, max: &Value) -> Result<(Vec<u8>, Vec<u8>)> {
    let fields = |bound: &Value| bound.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>());
    if let (Some(of_min), Some(of_max)) = (fields(min), fields(max))
        && of_min != of_max
    {
        bail!(Kind::BadValue, "the bounds {min} and {max} must have the same fields");
    }
    let min_key = pattern.bound_from_json(min)?;
    let max_key = pattern.bound_from_json(max)?;
    let is_highest = |value: &Value| value.as_object().is_some_and(|value| value.contains_key("$maxKey"));
    let highest = max.as_object().is_some_and(|members| members.values().all(is_highest));
    let max_key = if highest { pattern.max_bound() } else { max_key };
    if min_key >= max_key {
        bail!(Kind::FailedToParse, "the range's min {min} must be below its max {max}");
    }
    Ok((min_key, max_key))
}

/// Encodes the bounds of a range as [`update_range`] does.
/// Errors: `BadValue`, `FailedToParse`.
pub(super) fn range_bounds(pattern: &KeyPattern, min: &Value, max: &Value) -> Result<(Vec<u8>, Vec<u8>)> {
    bounds(pattern, min, max)
}

fn range(stored: StoredRange) -> ZoneRange {
    ZoneRange { min: stored.min_key, max: stored.max_key, zone: stored.zone }
}

/// A collection's ranges.
/// Errors: `InternalError` if the catalog holds ranges that overlap.
pub fn of(ns: &str) -> Result<ZoneMap> {
    let _snapshot = ActiveSnapshot::latest();
    ZoneMap::new(zone_ranges::read(ns)?.into_iter().map(range).collect())
}

/// The ranges of all collections that have some.
pub fn all() -> Result<HashMap<String, ZoneMap>> {
    let _snapshot = ActiveSnapshot::latest();
    let mut ranges: HashMap<String, Vec<ZoneRange>> = HashMap::new();
    for mut stored in zone_ranges::read_all()? {
        ranges.entry(std::mem::take(&mut stored.namespace)).or_default().push(range(stored));
    }
    ranges.into_iter().map(|(ns, ranges)| Ok((ns, ZoneMap::new(ranges)?))).collect()
}

/// Every shard's zones.
pub fn of_shards() -> Result<HashMap<ShardId, Vec<String>>> {
    let _snapshot = ActiveSnapshot::latest();
    let mut zones: HashMap<_, Vec<String>> = HashMap::new();
    for Membership { shard, zone } in zones::read_all()? {
        zones.entry(shard).or_default().push(zone);
    }
    Ok(zones)
}

/// Encodes the ranges of a collection that is about to be sharded by `pattern`. The caller has called [`lock`].
/// Errors: `InvalidOptions` for ranges that don't fit the shard key.
pub fn adopt(ns: &str, pattern: &KeyPattern) -> Result<ZoneMap> {
    let stored = {
        let _snapshot = ActiveSnapshot::latest();
        zone_ranges::read(ns)?
    };
    let mut ranges = Vec::with_capacity(stored.len());
    for range in &stored {
        let (min, max) = (parse(&range.min)?, parse(&range.max)?);
        let (min, max) = bounds(pattern, &min, &max).map_err(|error| {
            let hashed =
                if pattern.hashed_field().is_some() { "; bounds of a hashed field are 64-bit integers" } else { "" };
            error!(
                Kind::InvalidOptions,
                "the shard key {} does not fit the range {} -->> {} of the zone '{}': {}",
                pattern.to_json(),
                range.min,
                range.max,
                range.zone,
                error.message
            )
            .with_hint(format!("Remove that range first: docshard.update_zone_key_range(ns, min, max, NULL){hashed}."))
        })?;
        ranges.push(ZoneRange { min, max, zone: range.zone.clone() });
    }
    let map = ZoneMap::new(ranges)?;
    if !stored.is_empty() {
        forget(ns)?;
        for range in map.ranges() {
            store(ns, pattern, &range.min, &range.max, &range.zone)?;
        }
    }
    Ok(map)
}

pub use crate::store::zone_ranges::{delete_of_collection as forget, delete_of_database as forget_database};

/// Returns these shards, which may get the chunks of an empty collection, with their zones.
pub fn homes(shards: &[ShardId]) -> Result<Vec<Home>> {
    let mut zones = of_shards()?;
    Ok(shards.iter().map(|&id| Home { id, zones: zones.remove(&id).unwrap_or_default() }).collect())
}
