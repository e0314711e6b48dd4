//! Zones: which shards belong to one, and which ranges of a collection's keys live there.
//!
//! A range may be given before its collection is sharded: then its bounds are kept as they were written, and encoded
//! once the shard key is known. RULE: who changes or relies on zones first calls [`lock`], before any row is locked.

use super::change;
use super::{cache, namespace};
use crate::pg::datum::json::parse;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::zone::{Home, ZoneMap, ZoneRange};
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Lets nobody else change zones until the transaction ends.
///
/// # Errors
/// Internal ones.
pub fn lock() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.zone_ranges IN SHARE ROW EXCLUSIVE MODE")
}

fn check_name(zone: &str) -> Result<()> {
    if zone.is_empty() {
        return Err(Error::new(Kind::BadValue, "a zone's name must not be empty"));
    }
    Ok(())
}

/// Puts a shard into a zone, which is made by that.
///
/// # Errors
/// `ShardNotFound`, `BadValue` for an empty name.
pub fn add_shard(shard: &str, zone: &str) -> Result<()> {
    check_name(zone)?;
    lock()?;
    let shard = cache::shard_named(shard)?;
    let added = spi::query(
        "INSERT INTO docshard_catalog.zones (shard_id, zone) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING zone",
        &[Param::Int4(shard.id), Param::Text(zone)],
    )?;
    if !added.is_empty() {
        change::log("addShardToZone", None, &json!({"shard": shard.name, "zone": zone}))?;
        change::announce();
    }
    Ok(())
}

/// Takes a shard out of a zone.
///
/// # Errors
/// `ShardNotFound`; `ZoneStillInUse` for the last shard of a zone with ranges.
pub fn remove_shard(shard: &str, zone: &str) -> Result<()> {
    check_name(zone)?;
    lock()?;
    let shard = cache::shard_named(shard)?;
    if needed_by(shard.id)?.iter().any(|needed| needed == zone) {
        return Err(Error::new(
            Kind::ZoneStillInUse,
            format!("{} is the last shard of the zone '{zone}', which has ranges of keys", shard.name),
        )
        .with_hint(format!(
            "Add another shard to the zone, or remove its ranges: \
             docshard.update_zone_key_range(ns, min, max, NULL); docshard.zone_ranges lists those of '{zone}'."
        )));
    }
    let removed = spi::query(
        "DELETE FROM docshard_catalog.zones WHERE shard_id = $1 AND zone = $2 RETURNING zone",
        &[Param::Int4(shard.id), Param::Text(zone)],
    )?;
    if !removed.is_empty() {
        change::log("removeShardFromZone", None, &json!({"shard": shard.name, "zone": zone}))?;
        change::announce();
    }
    Ok(())
}

/// Zones with ranges of which this is the last shard that takes data.
///
/// # Errors
/// Internal ones.
pub fn needed_by(shard: ShardId) -> Result<Vec<String>> {
    let rows = spi::query(
        "SELECT z.zone FROM docshard_catalog.zones z WHERE z.shard_id = $1 \
           AND EXISTS (SELECT FROM docshard_catalog.zone_ranges r WHERE r.zone = z.zone) \
           AND NOT EXISTS (SELECT FROM docshard_catalog.zones o JOIN docshard_catalog.shards s ON s.id = o.shard_id \
                           WHERE o.zone = z.zone AND o.shard_id <> $1 AND NOT s.draining) ORDER BY z.zone",
        &[Param::Int4(shard)],
    )?;
    Ok(rows.iter().map(|row| row.text(0).to_owned()).collect())
}

/// Gives a range of keys to a zone; None takes the range, with exactly these bounds, out of its zone.
///
/// # Errors
/// `BadValue` for malformed bounds, `RangeOverlapConflict`, `ZoneNotFound`; `InvalidNamespace`.
pub fn update_range(ns: &str, min: &Value, max: &Value, zone: Option<&str>) -> Result<()> {
    namespace::split(ns)?;
    lock()?;
    let sharded = cache::find(ns)?.map(|collection| collection.key.clone()).filter(|key| !key.is_unsharded());
    // Until the shard key is known, that of the bounds' own fields stands for it.
    let pattern = match sharded {
        Some(pattern) => pattern,
        None => provisional(min)?,
    };
    let (min_key, max_key) = bounds(&pattern, min, max)?;
    let Some(zone) = zone else {
        spi::execute(
            "DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1 AND min_key = $2 AND max_key = $3",
            &[Param::Text(ns), Param::Bytea(&min_key), Param::Bytea(&max_key)],
        )?;
        change::log("updateZoneKeyRange", Some(ns), &json!({"min": min, "max": max, "zone": null}))?;
        return Ok(());
    };
    check_name(zone)?;
    let known = spi::query("SELECT FROM docshard_catalog.zones WHERE zone = $1 LIMIT 1", &[Param::Text(zone)])?;
    if known.is_empty() {
        return Err(Error::new(Kind::ZoneNotFound, format!("no shard belongs to the zone '{zone}'"))
            .with_hint(format!("docshard.add_shard_to_zone(shard, '{zone}') makes it.")));
    }
    // The same range again only changes its zone.
    let others = spi::query(
        "SELECT min, max, zone FROM docshard_catalog.zone_ranges \
         WHERE namespace = $1 AND (min_key, max_key) <> ($2, $3) AND min_key < $3 AND max_key > $2 ORDER BY min_key",
        &[Param::Text(ns), Param::Bytea(&min_key), Param::Bytea(&max_key)],
    )?;
    if let Some(row) = others.first() {
        return Err(Error::new(
            Kind::RangeOverlapConflict,
            format!(
                "the range {} -->> {} overlaps the existing one {} -->> {} of the zone '{}'",
                pattern.bound_to_json(&min_key),
                pattern.bound_to_json(&max_key),
                row.text(0),
                row.text(1),
                row.text(2)
            ),
        )
        .with_hint("Remove that one first: docshard.update_zone_key_range(ns, min, max, NULL)."));
    }
    store(ns, &pattern, &min_key, &max_key, zone)?;
    change::log("updateZoneKeyRange", Some(ns), &json!({"min": min, "max": max, "zone": zone}))
}

fn store(ns: &str, pattern: &KeyPattern, min: &[u8], max: &[u8], zone: &str) -> Result<()> {
    spi::execute(
        "INSERT INTO docshard_catalog.zone_ranges (namespace, min_key, max_key, min, max, zone) \
         VALUES ($1, $2, $3, $4::text::json, $5::text::json, $6) \
         ON CONFLICT (namespace, min_key) DO UPDATE SET zone = excluded.zone",
        &[
            Param::Text(ns),
            Param::Bytea(min),
            Param::Bytea(max),
            Param::Text(&pattern.bound_to_json(min).to_string()),
            Param::Text(&pattern.bound_to_json(max).to_string()),
            Param::Text(zone),
        ],
    )?;
    Ok(())
}

/// A pattern with the fields of a bound.
fn provisional(bound: &Value) -> Result<KeyPattern> {
    let Value::Object(members) = bound else {
        return Err(Error::new(Kind::TypeMismatch, format!("A bound must be an object, not {bound}")));
    };
    let fields = members.keys().map(|name| (name.clone(), Value::from(1))).collect();
    KeyPattern::parse(&Value::Object(fields)).map_err(|error| Error::new(Kind::BadValue, error.message))
}

/// A range's bounds, encoded. An upper bound of nothing but MaxKey is the highest, however many fields it names.
fn bounds(pattern: &KeyPattern, min: &Value, max: &Value) -> Result<(Vec<u8>, Vec<u8>)> {
    let fields = |bound: &Value| bound.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>());
    if let (Some(of_min), Some(of_max)) = (fields(min), fields(max))
        && of_min != of_max
    {
        return Err(Error::new(Kind::BadValue, format!("the bounds {min} and {max} must have the same fields")));
    }
    let min_key = pattern.bound_from_json(min)?;
    let max_key = pattern.bound_from_json(max)?;
    let is_highest = |value: &Value| value.as_object().is_some_and(|value| value.contains_key("$maxKey"));
    let highest = max.as_object().is_some_and(|members| members.values().all(is_highest));
    let max_key = if highest { pattern.max_bound() } else { max_key };
    if min_key >= max_key {
        return Err(Error::new(Kind::BadValue, format!("the range's min {min} must be below its max {max}")));
    }
    Ok((min_key, max_key))
}

/// A collection's ranges.
///
/// # Errors
/// `InternalError` if the catalog holds ranges that overlap.
pub fn of(ns: &str) -> Result<ZoneMap> {
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read(
        "SELECT min_key, max_key, zone FROM docshard_catalog.zone_ranges WHERE namespace = $1",
        &[Param::Text(ns)],
    )?;
    let range = |row: &spi::Row| ZoneRange { min: row.bytes(0), max: row.bytes(1), zone: row.text(2).to_owned() };
    Ok(ZoneMap::new(rows.iter().map(range).collect())?)
}

/// The ranges of all collections that have some.
///
/// # Errors
/// As [`of`].
pub fn all() -> Result<HashMap<String, ZoneMap>> {
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read("SELECT namespace, min_key, max_key, zone FROM docshard_catalog.zone_ranges", &[])?;
    let mut ranges: HashMap<String, Vec<ZoneRange>> = HashMap::new();
    for row in &rows {
        let range = ZoneRange { min: row.bytes(1), max: row.bytes(2), zone: row.text(3).to_owned() };
        ranges.entry(row.text(0).to_owned()).or_default().push(range);
    }
    ranges.into_iter().map(|(ns, ranges)| Ok((ns, ZoneMap::new(ranges)?))).collect()
}

/// Every shard's zones.
///
/// # Errors
/// Internal ones.
pub fn of_shards() -> Result<HashMap<ShardId, Vec<String>>> {
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read("SELECT shard_id, zone FROM docshard_catalog.zones ORDER BY shard_id, zone", &[])?;
    let mut zones: HashMap<_, Vec<String>> = HashMap::new();
    for row in &rows {
        zones.entry(row.i32(0)).or_default().push(row.text(1).to_owned());
    }
    Ok(zones)
}

/// Encodes the ranges of a collection that is about to be sharded by `pattern`; call it under [`lock`].
///
/// # Errors
/// `InvalidOptions` for ranges that don't fit the shard key.
pub fn adopt(ns: &str, pattern: &KeyPattern) -> Result<ZoneMap> {
    let rows = spi::query(
        "SELECT min, max, zone FROM docshard_catalog.zone_ranges WHERE namespace = $1 ORDER BY min_key",
        &[Param::Text(ns)],
    )?;
    let mut ranges = Vec::with_capacity(rows.len());
    for row in &rows {
        let (min, max) = (parse(row.text(0))?, parse(row.text(1))?);
        let (min, max) = bounds(pattern, &min, &max).map_err(|error| {
            let hashed =
                if pattern.hashed_field().is_some() { "; bounds of a hashed field are 64-bit integers" } else { "" };
            Error::new(
                Kind::InvalidOptions,
                format!(
                    "the shard key {} does not fit the range {} -->> {} of the zone '{}': {}",
                    pattern.to_json(),
                    row.text(0),
                    row.text(1),
                    row.text(2),
                    error.message
                ),
            )
            .with_hint(format!("Remove that range first: docshard.update_zone_key_range(ns, min, max, NULL){hashed}."))
        })?;
        ranges.push(ZoneRange { min, max, zone: row.text(2).to_owned() });
    }
    let map = ZoneMap::new(ranges)?;
    if !rows.is_empty() {
        forget(ns)?;
        for range in map.ranges() {
            store(ns, pattern, &range.min, &range.max, &range.zone)?;
        }
    }
    Ok(map)
}

/// Forgets a collection's ranges.
///
/// # Errors
/// Internal ones.
pub fn forget(ns: &str) -> Result<()> {
    spi::execute("DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1", &[Param::Text(ns)])?;
    Ok(())
}

/// Forgets the ranges of collections of a database that never came to be.
///
/// # Errors
/// Internal ones.
pub fn forget_database(database: &str) -> Result<()> {
    spi::execute(
        "DELETE FROM docshard_catalog.zone_ranges WHERE pg_catalog.split_part(namespace, '.', 1) = $1",
        &[Param::Text(database)],
    )?;
    Ok(())
}

/// Where an empty collection's chunks may go.
///
/// # Errors
/// Internal ones.
pub fn homes(shards: &[ShardId]) -> Result<Vec<Home>> {
    let mut zones = of_shards()?;
    Ok(shards.iter().map(|&id| Home { id, zones: zones.remove(&id).unwrap_or_default() }).collect())
}
