//! Administration of the cluster.

use super::collections::filtered;
use super::config;
use super::find::listing;
use super::reply::{Document, Reply, ReplyNode};
use super::request::Request;
use crate::catalog::change;
use crate::operation::chunks::{self, ChunkSelector, MoveRange, bounds};
use crate::operation::consistency::{self, Finding};
use crate::operation::{balancer, shards, table};
use crate::pg::error::Result;
use crate::pg::spi;
use crate::store;
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::sql;
use serde_json::{Map, Value as Json, json};

pub fn list_shards(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::LIST_SHARDS)?;
    let rows = spi::query(&format!("SELECT doc FROM {} ORDER BY position", sql::config_view("shards")), &[])?;
    let shards = rows.iter().map(|row| Document::Stored(row.bytes(0))).collect();
    let shards = filtered(request, shards)?;
    Ok(Reply::ok().with("shards", ReplyNode::Documents(config::ordered(shards, "config.shards")?)))
}

pub fn get_shard_map(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::LIST_SHARDS)?;
    let (mut map, mut hosts) = (Map::new(), Map::new());
    for store::shards::Location { name, host, .. } in store::shards::locations()? {
        map.insert(name.clone(), format!("{name}/{host}").into());
        hosts.insert(host, name.into());
    }
    Ok(Reply::of(json!({"map": map, "hosts": hosts, "connStrings": {}})))
}

/// Checks the collection that the command names; without one, its database; in the database `admin`, the whole cluster.
pub fn check_metadata_consistency(request: &Request<'_>) -> Result<Reply> {
    let (named, place) = match request.target {
        Json::String(_) => {
            let namespace = request.namespace()?;
            (Some(namespace.clone()), namespace)
        }
        _ => (Some(request.db.to_owned()).filter(|db| db != "admin"), format!("{}.$cmd.aggregate", request.db)),
    };
    let found = request
        .administer(&table::CHECK_METADATA_CONSISTENCY, || consistency::check(named.as_deref(), &request.fields))?;
    let shown = |Finding { kind, namespace, shard, description, details, repair }: Finding| {
        let place = [("namespace", namespace), ("shard", shard)];
        let place = place.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Json::String(value?))));
        let details: Map<String, Json> = place.chain(details).collect();
        let repair = repair.map(|repair| repair.to_string());
        Document::made(&json!({"type": kind, "description": description, "details": details, "repair": repair}))
    };
    listing(request, &place, found.into_iter().map(shown).collect::<Result<_>>()?)
}

/// Makes all sessions read the catalog again. That is expensive, so it requires the right to change settings.
pub fn flush_router_config(request: &Request<'_>) -> Result<Reply> {
    request.answer(&table::SET_SETTING, || {
        change::announce();
        Ok(json!({"flushed": true}))
    })
}

/// Splits at `middle`, or halves the chunk that `find` or `bounds` identifies.
pub fn split(request: &Request<'_>) -> Result<Reply> {
    let ns = request.target_text();
    if request.fields.get("middle").is_some() {
        return request.answer(&table::SPLIT_AT, || chunks::split_at(ns, request.specification("middle")));
    }
    let which = match request.fields.get("bounds") {
        Some(given) => {
            let (min, max) = bounds(given)?;
            ChunkSelector::Bounds(min, max)
        }
        None => ChunkSelector::Find(request.specification("find")),
    };
    request.answer(&table::SPLIT_FIND, || chunks::split(ns, which))
}

/// Returns the progress of draining a shard, or all shards that are being drained.
pub fn shard_draining_status(request: &Request<'_>) -> Result<Reply> {
    request.answer(&table::REMOVE_SHARD, || match request.target {
        Json::String(name) => shards::draining_status(name),
        _ => shards::all_draining(),
    })
}

/// Refuses a command of MongoDB's that docshard does not have; its help says why.
pub fn refused(request: &Request<'_>) -> Result<Reply> {
    let name = request.spec.name;
    Err(error!(Kind::CommandNotFound, "no such command: '{name}'").with_hint(request.spec.help))
}

pub fn move_chunk(request: &Request<'_>) -> Result<Reply> {
    let (ns, to, force_jumbo) = (request.target_text(), request.text("to"), request.fields.flag("forceJumbo"));
    let Some(given) = request.fields.get("bounds") else {
        return request
            .answer(&table::MOVE_CHUNK, || chunks::move_chunk(ns, request.specification("find"), to, force_jumbo));
    };
    let (min, max) = bounds(given)?;
    let range = MoveRange { min: Some(min), max: Some(max), to, force_jumbo };
    request.answer(&table::MOVE_RANGE, || range.run_of_chunk(ns))
}

pub fn move_range(request: &Request<'_>) -> Result<Reply> {
    let (min, max, force_jumbo) =
        (request.fields.get("min"), request.fields.get("max"), request.fields.flag("forceJumbo"));
    let range = MoveRange { min, max, to: request.text("to"), force_jumbo };
    request.answer(&table::MOVE_RANGE, || range.run(request.target_text()))
}

/// If `zone` is null, the range is removed from its zone.
pub fn update_zone_key_range(request: &Request<'_>) -> Result<Reply> {
    let zone = match request.fields.get("zone") {
        None => None,
        Some(Json::String(zone)) => Some(zone.as_str()),
        Some(other) => {
            bail!(Kind::TypeMismatch, "updateZoneKeyRange.zone must be a String or null, not {other}");
        }
    };
    request.answer(&table::UPDATE_ZONE_KEY_RANGE, || {
        shards::update_zone_range(request.target_text(), request.json("min"), request.json("max"), zone)
    })
}

/// `maxTimeMS` limits the wait for running moves.
pub fn balancer_stop(request: &Request<'_>) -> Result<Reply> {
    let wait = request.max_time_ms()?.unwrap_or(60_000);
    request.answer(&table::STOP_BALANCER, || balancer::stop(wait))
}
