//! Removal of shards that are lost for good: the report of what is lost, the token that confirms it, and the assignment of their ranges
//! to other shards. The ranges are empty afterwards.
//!
//! A shard that was removed as lost stays recorded, so that its database is recognized and refused if it comes back.

use super::access;
use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::change::refuse_while_building;
use crate::catalog::cluster::nodes::{call_on_all, read_call_on};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::{validation, zones};
use crate::pg::error::Result;
use crate::pg::security::credentials;
use crate::store::{chunks, collections, databases, placements, shards};
use crate::store::{last_sizes, lost_shards};
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::node::Ping;
use docshard_core::routing::protocol::table::{CreateIndex, CreateTable};
use serde_json::{Value as Json, json};
use std::collections::HashMap;

/// The largest number of ranges that the report lists of a collection.
const NAMED_RANGES: usize = 100;

/// Reports what would be lost with a shard: for each collection its ranges, and the last known number of documents there.
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
        let last = last_sizes::find(shard, collection.id)?;
        let named: Vec<Json> = ranges
            .iter()
            .take(NAMED_RANGES)
            .map(|(min, max)| json!({"min": key.bound_to_json(min), "max": key.bound_to_json(max)}))
            .collect();
        lost.push(json!({
            "ns": collection.namespace, "chunks": chunks.len(),
            "ranges": if collection.key.is_some() { json!(named) } else { Json::Null },
            "documents": last.as_ref().map(|last| last.documents),
            "asOf": last.as_ref().map(|last| &last.asked_at),
        }));
    }
    Ok(lost)
}

/// Creates a token for the removal of a lost shard; it replaces an earlier one.
pub fn give_token(shard: &Shard) -> Result<String> {
    let token = credentials::random_password()?;
    lost_shards::set_token(shard.id, &token)?;
    Ok(token)
}

/// Refuses a token that is not the shard's, or too old.
/// Errors: `BadValue`.
pub fn check_token(shard: &Shard, token: &str) -> Result<()> {
    if lost_shards::is_token(shard.id, token)? {
        return Ok(());
    }
    Err(error!(Kind::BadValue, "invalid token for the removal of the lost shard \"{}\"", shard.name).with_hint(
        "A token is valid for ten minutes; docshard.remove_shard(name, '{\"lost\": true}') returns a new one.",
    ))
}

pub use crate::store::lost_shards::set_removed as note_removed;

/// Refuses a database that was a shard of this cluster and was removed as lost, because its documents are out of date.
/// `has_collection_tables`: the database has tables of collections; without any, nothing is out of date.
/// Errors: `IllegalOperation`.
pub fn refuse_returned(node: &str, name: &str, has_collection_tables: bool) -> Result<()> {
    if !has_collection_tables {
        return Ok(());
    }
    match lost_shards::find_removed(node, name)? {
        None => Ok(()),
        Some(lost) => Err(error!(
            Kind::IllegalOperation,
            "the database is the shard \"{}\", which was removed as lost at {} UTC", lost.name, lost.removed_at
        )
        .with_hint(
            "Its documents no longer belong to the cluster. Save those that are of use; then, as a superuser there, \
             docshard.dismantle() makes it a database that can be added.",
        )),
    }
}

/// The shards that can take over ranges: they are reachable and not draining.
/// Errors: `HostUnreachable` if there is none.
pub fn heirs(lost: ShardId) -> Result<Vec<ShardId>> {
    let mut heirs: Vec<ShardId> = cache::shards()?
        .values()
        .filter(|shard| shard.id != lost && !shard.draining)
        .filter(|shard| read_call_on(shard, &Ping {}).is_ok())
        .map(|shard| shard.id)
        .collect();
    heirs.sort_unstable();
    if heirs.is_empty() {
        bail!(Kind::HostUnreachable, "no other shard can be reached to take over the ranges");
    }
    Ok(heirs)
}

/// Sets another primary shard for the databases whose primary shard is lost; returns their names.
pub fn move_databases(lost: ShardId, heirs: &[ShardId]) -> Result<Vec<String>> {
    let moved = databases::lock_of_primary(lost)?;
    for database in &moved {
        let none = || error!(Kind::ShardNotFound, "no shard is left");
        databases::set_primary(database, shards::emptiest_of(heirs)?.ok_or_else(none)?)?;
    }
    Ok(moved)
}

/// Assigns a collection's ranges on the lost shard to `heirs`. Their documents are lost, so the ranges are empty afterwards. The caller has
/// locked the collection's row, and none of its chunks is being moved.
///
/// A session with the old map fails at the lost shard, or a shard that took over ranges answers that the map is stale.
pub fn reassign(namespace: &str, lost: ShardId, heirs: &[ShardId]) -> Result<()> {
    let locked = change::lock(namespace)?;
    refuse_while_building(locked.id, namespace)?;
    let collection = cache::get(namespace)?;
    let chunks = chunks::of_shard(locked.id, lost)?;
    if !chunks.is_empty() {
        let version = change::next_version(locked.id)?;
        let primary = match &locked.key {
            // `namespace::split` would refuse the namespace of a copy, `db.system.resharding.id`, which is not valid for users.
            None => databases::primary(namespace.split_once('.').map_or(namespace, |(database, _)| database))?,
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
            // Ranges are distributed evenly.
            let with_fewest_ranges = |among: &mut dyn Iterator<Item = &ShardId>| {
                among.min_by_key(|shard| (targets.get(shard).copied().unwrap_or(0), **shard)).copied()
            };
            let target = primary
                .or_else(|| with_fewest_ranges(&mut heirs.iter().filter(|shard| in_zone(shard))))
                .or_else(|| with_fewest_ranges(&mut heirs.iter()))
                .ok_or_else(|| error!(Kind::ShardNotFound, "no shard is left"))?;
            *targets.entry(target).or_default() += 1;
            chunks::set_owner(locked.id, (min, max), lost, target, version)?;
            chunks::set_jumbo(locked.id, min, false)?;
        }
        let mut targets: Vec<ShardId> = targets.into_keys().collect();
        targets.sort_unstable();
        place(&collection, &locked, &targets, version)?;
    }
    placements::delete(locked.id, lost)?;
    change::touch(locked.id)
}

/// Sets the version of a collection on shards, creates its table and indexes there where they are missing, and sets the table's privileges
/// and validator.
fn place(collection: &Collection, locked: &change::Locked, targets: &[ShardId], version: i64) -> Result<()> {
    let namespace = &collection.namespace;
    placements::insert_or_set(locked.id, targets, version)?;
    let id_index = !collection.key.is_in_order_of_id();
    call_on_all(targets, &CreateTable { collection: locked.id, token: locked.token, version, id_index })?;
    access::for_new_table(namespace, locked.id, |access| call_on_all(targets, access))?;
    validation::place(targets, locked.id, locked.token, collection.validation.as_deref())?;
    collection.indexes.iter().try_for_each(|index| call_on_all(targets, &CreateIndex::of(locked.id, index)))
}
