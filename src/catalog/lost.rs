//! Shards that are lost for good: what is lost with them, the token that confirms it, and where their ranges of keys go, empty.
//!
//! The rows of `docshard_catalog.lost_shards` stay: a database that comes back is known by them, and refused.

use super::change;
use super::collections::refuse_while_building;
use super::model::{Index, Shard};
use super::nodes::{call_on_all, read_on};
use super::{access, cache, last_sizes, zones};
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::protocol::table::CreateTable;
use crate::store::{chunks, collections, databases, placements, shards};
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

/// So many ranges of a collection are named.
const NAMED_RANGES: usize = 100;

/// What would be lost with a shard, for people: a collection each, with its ranges and the documents that were last known there.
///
/// # Errors
/// Internal ones.
pub fn loss(shard: ShardId) -> Result<Vec<Json>> {
    let owning = collections::with_chunks_on(shard)?;
    let mut lost = Vec::with_capacity(owning.len());
    for collection in &owning {
        let key = collections::pattern(collection.key.as_ref())?;
        let chunks = chunks::of_shard(collection.id, shard)?;
        let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for chunk in &chunks {
            match ranges.last_mut() {
                Some(last) if last.1 == chunk.min => last.1.clone_from(&chunk.max),
                _ => ranges.push((chunk.min.clone(), chunk.max.clone())),
            }
        }
        let known = last_sizes::last_known(shard, collection.id)?;
        let named: Vec<Json> = ranges
            .iter()
            .take(NAMED_RANGES)
            .map(|(min, max)| json!({"min": key.bound_to_json(min), "max": key.bound_to_json(max)}))
            .collect();
        lost.push(json!({
            "ns": collection.namespace, "chunks": chunks.len(),
            "ranges": if collection.key.is_some() { json!(named) } else { Json::Null },
            "documents": known.as_ref().map(|(documents, _)| documents),
            "asOf": known.as_ref().map(|(_, at)| at),
        }));
    }
    Ok(lost)
}

/// Gives out a token for the removal of a lost shard, in place of one that was given out before.
///
/// # Errors
/// Internal ones.
pub fn give_token(shard: &Shard) -> Result<String> {
    let token = credentials::random_password()?;
    spi::execute(
        "INSERT INTO docshard_catalog.lost_shards (shard_id, name, node, token) \
         SELECT id, name, node, $2 FROM docshard_catalog.shards WHERE id = $1 \
         ON CONFLICT (shard_id) DO UPDATE SET token = excluded.token, asked_at = pg_catalog.clock_timestamp()",
        &[Param::Int4(shard.id), Param::Text(&token)],
    )?;
    Ok(token)
}

/// Refuses a token that is not the shard's, or too old.
///
/// # Errors
/// `BadValue`.
pub fn check_token(shard: &Shard, token: &str) -> Result<()> {
    let rows = spi::query(
        "SELECT token = $2 AND asked_at > pg_catalog.clock_timestamp() - interval '10 minutes' \
         FROM docshard_catalog.lost_shards WHERE shard_id = $1",
        &[Param::Int4(shard.id), Param::Text(token)],
    )?;
    if rows.first().is_some_and(|row| row.bool(0)) {
        return Ok(());
    }
    Err(Error::new(Kind::BadValue, format!("this token does not confirm that shard \"{}\" is lost", shard.name))
        .with_hint("A token holds for ten minutes; docshard.remove_shard(name, '{\"lost\": true}') gives a new one."))
}

/// Notes that the shard was removed as lost.
///
/// # Errors
/// Internal ones.
pub fn note_removed(shard: ShardId) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.lost_shards SET removed_at = pg_catalog.clock_timestamp() WHERE shard_id = $1",
        &[Param::Int4(shard)],
    )
    .map(drop)
}

/// Refuses a database that says of itself that it is a shard of this cluster, and was removed as lost: what it has is of the
/// past. `has_documents`: it has tables of collections.
///
/// # Errors
/// `IllegalOperation`.
pub fn refuse_returned(node: &str, name: &str, has_documents: bool) -> Result<()> {
    let rows = spi::query(
        "SELECT name, pg_catalog.to_char(removed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') \
         FROM docshard_catalog.lost_shards WHERE removed_at IS NOT NULL AND $3 AND (node = $1 OR name = $2) \
         ORDER BY removed_at DESC LIMIT 1",
        &[Param::Text(node), Param::Text(name), Param::Bool(has_documents)],
    )?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::IllegalOperation,
            format!("the database is the shard \"{}\", which was removed as lost at {} UTC", row.text(0), row.text(1)),
        )
        .with_hint(
            "Its documents are not the cluster's any more. Save there what is of use; then, as a superuser there, \
             docshard.dismantle() makes it a database that can be added.",
        )),
    }
}

/// The shards that can take ranges over: those that answer, and do not drain.
///
/// # Errors
/// `HostUnreachable` if there is none.
pub fn heirs(lost: ShardId) -> Result<Vec<ShardId>> {
    let mut heirs: Vec<ShardId> = cache::shards()?
        .values()
        .filter(|shard| shard.id != lost && !shard.draining)
        .filter(|shard| read_on(shard, "SELECT 1", &[], 1).is_ok())
        .map(|shard| shard.id)
        .collect();
    heirs.sort_unstable();
    if heirs.is_empty() {
        return Err(Error::new(Kind::HostUnreachable, "no other shard answers that could take the ranges over"));
    }
    Ok(heirs)
}

/// Gives the databases whose primary it was another one.
///
/// # Errors
/// Internal ones.
pub fn move_databases(lost: ShardId, heirs: &[ShardId]) -> Result<Vec<String>> {
    let moved = databases::lock_of_primary(lost)?;
    for database in &moved {
        let none = || Error::new(Kind::ShardNotFound, "no shard is left");
        databases::set_primary(database, shards::emptiest_of(heirs)?.ok_or_else(none)?)?;
    }
    Ok(moved)
}

/// Gives a collection's ranges on the lost shard to others, where they are empty. Its row is locked, and no chunk of it moves.
///
/// Those who still have the old map ask the lost shard, or are told by the heirs that it is stale.
///
/// # Errors
/// Those of the heirs.
pub fn reassign(namespace: &str, lost: ShardId, heirs: &[ShardId]) -> Result<()> {
    let locked = change::lock(namespace)?;
    refuse_while_building(locked.id, namespace)?;
    let collection = cache::get(namespace)?;
    let chunks = chunks::of_shard(locked.id, lost)?;
    if !chunks.is_empty() {
        let version = change::next_version(locked.id)?;
        let primary = match &locked.key {
            None => databases::primary(super::namespace::split(namespace)?.0)?,
            Some(_) => None,
        };
        let primary = primary.filter(|primary| heirs.contains(primary));
        let ranges = zones::of(namespace)?;
        let zones = zones::of_shards()?;
        let mut targets: HashMap<ShardId, usize> = HashMap::new();
        for Chunk { min, max, .. } in &chunks {
            let zone = ranges.covering(min, max).map(|range| range.zone.as_str());
            let in_zone = |shard: &ShardId| {
                zone.is_none_or(|zone| zones.get(shard).is_some_and(|all| all.iter().any(|one| one == zone)))
            };
            // Each in turn, so that they stay even.
            let fewest = |among: &mut dyn Iterator<Item = &ShardId>| {
                among.min_by_key(|shard| (targets.get(shard).copied().unwrap_or(0), **shard)).copied()
            };
            let target = primary
                .or_else(|| fewest(&mut heirs.iter().filter(|shard| in_zone(shard))))
                .or_else(|| fewest(&mut heirs.iter()))
                .ok_or_else(|| Error::new(Kind::ShardNotFound, "no shard is left"))?;
            *targets.entry(target).or_default() += 1;
            chunks::set_owner(locked.id, (min, max), lost, target, version)?;
            chunks::set_jumbo(locked.id, min, false)?;
        }
        let mut targets: Vec<ShardId> = targets.into_keys().collect();
        targets.sort_unstable();
        place(namespace, &locked, &targets, version, &collection.key, &collection.indexes)?;
    }
    placements::delete(locked.id, lost)?;
    change::touch(locked.id)
}

/// Brings shards to a version of a collection, whose table and indexes they get if they have none.
fn place(
    namespace: &str,
    locked: &change::Locked,
    targets: &[ShardId],
    version: i64,
    key: &KeyPattern,
    indexes: &[Index],
) -> Result<()> {
    placements::insert_or_set(locked.id, targets, version)?;
    let id_index = !key.is_in_order_of_id();
    call_on_all(targets, &CreateTable { collection: locked.id, token: locked.token, version, id_index })?;
    access::for_new_table(namespace, locked.id, |access| call_on_all(targets, access))?;
    indexes.iter().try_for_each(|index| call_on_all(targets, &index.creation(locked.id)))
}
