//! Administration of the cluster. Each command calls the SQL function of schema `docshard` that does it: whoever may
//! execute that may run the command, in PostgreSQL's own words.

use super::reply::{Node, Reply};
use super::request::{Request, Type};
use crate::catalog::{cache, change, chunks};
use crate::migration;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::protocol::sql;
use docshard_core::error::Kind;
use serde_json::{Map, Value as Json, json};

/// Calls a function that answers JSON.
pub fn call_json(sql: &str, params: &[Param<'_>]) -> Result<Json> {
    let rows = spi::query(sql, params)?;
    crate::pg::datum::json::parse(rows.first().map_or("{}", |row| row.text(0)))
}

/// The same as an answer.
pub fn call(sql: &str, params: &[Param<'_>]) -> Result<Reply> {
    Ok(Reply::of(call_json(sql, params)?))
}

/// Refuses a role that may not execute a function of schema `docshard`.
fn authorize(request: &Request<'_>, function: &str) -> Result<()> {
    let rows = spi::query(
        "SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc \
         WHERE pronamespace = 'docshard'::pg_catalog.regnamespace AND proname = $1",
        &[Param::Text(function)],
    )?;
    if rows.first().is_some_and(|row| row.bool(0)) {
        return Ok(());
    }
    let message = format!("not authorized on {} to execute command {}", request.db, request.name);
    Err(Error::new(Kind::Unauthorized, message))
}

fn text(request: &Request<'_>, name: &str) -> String {
    request.fields.text(name).unwrap_or_default().to_owned()
}

/// Two bounds, `[min, max]`.
fn bounds<'a>(request: &Request<'a>) -> Result<Option<(&'a Json, &'a Json)>> {
    match request.fields.array("bounds") {
        _ if request.fields.get("bounds").is_none() => Ok(None),
        [min, max] => Ok(Some((min, max))),
        _ => Err(Error::new(Kind::BadValue, "bounds must be two key documents: [min, max]")),
    }
}

fn exactly_one(request: &Request<'_>, names: &[&str]) -> Result<()> {
    if names.iter().filter(|name| request.fields.get(name).is_some()).count() == 1 {
        return Ok(());
    }
    let message = format!("{}: give exactly one of {}", request.name, names.join(", "));
    Err(Error::new(Kind::InvalidOptions, message))
}

/// addShard.
pub fn add_shard(request: &Request<'_>) -> Result<Reply> {
    let mut options = Map::new();
    for name in ["name", "maxSize", "user", "password"] {
        if let Some(value) = request.fields.get(name) {
            options.insert(name.to_owned(), value.clone());
        }
    }
    let options = Json::Object(options).to_string();
    call("SELECT docshard.add_shard($1, $2::json)", &[Param::Text(request.target_text()), Param::Text(&options)])
}

/// removeShard.
pub fn remove_shard(request: &Request<'_>) -> Result<Reply> {
    call("SELECT docshard.remove_shard($1)", &[Param::Text(request.target_text())])
}

/// listShards: as `config.shards` has them.
pub fn list_shards(_request: &Request<'_>) -> Result<Reply> {
    let rows = spi::query(&format!("SELECT doc FROM {} ORDER BY position", sql::config_view("shards")), &[])?;
    Ok(Reply::ok().with("shards", Node::Documents(rows.iter().map(|row| row.bytes(0)).collect())))
}

/// getShardMap.
pub fn get_shard_map(_request: &Request<'_>) -> Result<Reply> {
    let rows = spi::query("SELECT name, host FROM docshard.shards ORDER BY id", &[])?;
    let (mut map, mut hosts) = (Map::new(), Map::new());
    for row in &rows {
        map.insert(row.text(0).to_owned(), format!("{}/{}", row.text(0), row.text(1)).into());
        hosts.insert(row.text(1).to_owned(), row.text(0).into());
    }
    Ok(Reply::of(json!({"map": map, "hosts": hosts, "connStrings": {}})))
}

/// flushRouterConfig: every session reads the catalog again.
pub fn flush_router_config(request: &Request<'_>) -> Result<Reply> {
    // Every session pays for it: it is for those who may change settings.
    authorize(request, "set_setting")?;
    change::announce();
    Ok(Reply::of(json!({"flushed": true})))
}

/// shardCollection.
pub fn shard_collection(request: &Request<'_>) -> Result<Reply> {
    super::find::refuse(&request.fields, &["timeseries", "presplitHashedZones"])?;
    let mut options = Map::new();
    if let Some(unique) = request.fields.flag("unique") {
        options.insert("unique".to_owned(), unique.into());
    }
    if let Some(chunks) = request.fields.integer("numInitialChunks")? {
        options.insert("numInitialChunks".to_owned(), chunks.into());
    }
    if let Some(collation) = request.fields.get("collation") {
        options.insert("collation".to_owned(), collation.clone());
    }
    let (key, options) = (request.fields.json_or("key", "{}"), Json::Object(options).to_string());
    call(
        "SELECT docshard.shard_collection($1, $2::json, $3::json)",
        &[Param::Text(request.target_text()), Param::Text(&key), Param::Text(&options)],
    )
}

/// split: at a key, or the chunk of a key or with these bounds in halves.
pub fn split(request: &Request<'_>) -> Result<Reply> {
    exactly_one(request, &["find", "middle", "bounds"])?;
    let ns = request.target_text();
    if let Some(middle) = request.fields.get("middle") {
        return call("SELECT docshard.split_at($1, $2::json)", &[Param::Text(ns), Param::Text(&middle.to_string())]);
    }
    if let Some(find) = request.fields.get("find") {
        return call("SELECT docshard.split_find($1, $2::json)", &[Param::Text(ns), Param::Text(&find.to_string())]);
    }
    authorize(request, "split_find")?;
    let Some((min, max)) = bounds(request)? else { return Ok(Reply::ok()) };
    let (locked, pattern) = chunks::lock(ns)?;
    let (min, max) = (pattern.bound_from_json(min)?, pattern.bound_from_json(max)?);
    let chunk = chunks::containing(locked.id, &min)?;
    if (&chunk.min, &chunk.max) != (&min, &max) {
        return Err(no_such_chunk(ns));
    }
    let point = migration::median(locked.id, &pattern, &chunk)?;
    chunks::split(&locked, ns, &pattern, &[point])?;
    Ok(Reply::ok())
}

fn no_such_chunk(ns: &str) -> Error {
    Error::new(Kind::BadValue, format!("{ns} has no chunk with these bounds"))
        .with_hint("The collection config.chunks shows the bounds.")
}

/// moveChunk: the chunk of a key, or with these bounds.
pub fn move_chunk(request: &Request<'_>) -> Result<Reply> {
    exactly_one(request, &["find", "bounds"])?;
    let (ns, to) = (request.target_text(), text(request, "to"));
    let options = json!({"forceJumbo": request.fields.flag("forceJumbo").unwrap_or(false)}).to_string();
    if let Some((min, max)) = bounds(request)? {
        let collection = cache::get(ns)?;
        if !collection.key.is_unsharded() {
            let (lo, hi) = (collection.key.bound_from_json(min)?, collection.key.bound_from_json(max)?);
            let chunk = collection.map.find(&lo);
            if (&chunk.min, &chunk.max) != (&lo, &hi) {
                return Err(no_such_chunk(ns));
            }
        }
        return move_bounds(ns, &min.to_string(), &max.to_string(), &to, &options);
    }
    let find = request.fields.json_or("find", "{}");
    call(
        "SELECT docshard.move_chunk($1, $2::json, $3, $4::json)",
        &[Param::Text(ns), Param::Text(&find), Param::Text(&to), Param::Text(&options)],
    )
}

fn move_bounds(ns: &str, min: &str, max: &str, to: &str, options: &str) -> Result<Reply> {
    call(
        "SELECT docshard.move_range($1, $2::json, $3::json, $4, $5::json)",
        &[Param::Text(ns), Param::Text(min), Param::Text(max), Param::Text(to), Param::Text(options)],
    )
}

/// moveRange: from `min` to `max`; one of them alone means the chunk that starts or ends there.
pub fn move_range(request: &Request<'_>) -> Result<Reply> {
    let (ns, to) = (request.target_text(), text(request, "toShard"));
    let options = json!({"forceJumbo": request.fields.flag("forceJumbo").unwrap_or(false)}).to_string();
    let given = |name: &str| request.fields.get(name).map(Json::to_string);
    let (min, max) = match (given("min"), given("max")) {
        (Some(min), Some(max)) => (min, max),
        (None, None) => {
            return Err(Error::new(Kind::InvalidOptions, "moveRange: give min, max or both"));
        }
        (min, max) => {
            let rows = spi::query(
                "SELECT min::text, max::text FROM docshard.chunks WHERE namespace = $1 \
                 AND ($2 IS NULL OR min::pg_catalog.jsonb = $2::pg_catalog.jsonb) \
                 AND ($3 IS NULL OR max::pg_catalog.jsonb = $3::pg_catalog.jsonb)",
                &[Param::Text(ns), Param::OptText(min.as_deref()), Param::OptText(max.as_deref())],
            )?;
            let row = rows.first().ok_or_else(|| no_such_chunk(ns))?;
            (row.text(0).to_owned(), row.text(1).to_owned())
        }
    };
    move_bounds(ns, &min, &max, &to, &options)
}

/// mergeChunks.
pub fn merge_chunks(request: &Request<'_>) -> Result<Reply> {
    let bounds = request.fields.json_or("bounds", "[]");
    call("SELECT docshard.merge_chunks($1, $2::json)", &[Param::Text(request.target_text()), Param::Text(&bounds)])
}

/// clearJumboFlag.
pub fn clear_jumbo_flag(request: &Request<'_>) -> Result<Reply> {
    let find = request.fields.json_or("find", "{}");
    call("SELECT docshard.clear_jumbo_flag($1, $2::json)", &[Param::Text(request.target_text()), Param::Text(&find)])
}

/// addShardToZone.
pub fn add_shard_to_zone(request: &Request<'_>) -> Result<Reply> {
    let zone = text(request, "zone");
    call("SELECT docshard.add_shard_to_zone($1, $2)", &[Param::Text(request.target_text()), Param::Text(&zone)])
}

/// removeShardFromZone.
pub fn remove_shard_from_zone(request: &Request<'_>) -> Result<Reply> {
    let zone = text(request, "zone");
    call("SELECT docshard.remove_shard_from_zone($1, $2)", &[Param::Text(request.target_text()), Param::Text(&zone)])
}

/// updateZoneKeyRange; a zone of null takes the range back.
pub fn update_zone_key_range(request: &Request<'_>) -> Result<Reply> {
    let (min, max) = (request.fields.json_or("min", "{}"), request.fields.json_or("max", "{}"));
    let zone = match request.fields.get("zone") {
        None => None,
        Some(Json::String(zone)) => Some(zone.as_str()),
        Some(other) => {
            let kind = Type::String;
            let message = format!("updateZoneKeyRange.zone must be a {kind:?} or null, not {other}");
            return Err(Error::new(Kind::TypeMismatch, message));
        }
    };
    call(
        "SELECT docshard.update_zone_key_range($1, $2::json, $3::json, $4)",
        &[Param::Text(request.target_text()), Param::Text(&min), Param::Text(&max), Param::OptText(zone)],
    )
}

/// balancerStart.
pub fn balancer_start(_request: &Request<'_>) -> Result<Reply> {
    call("SELECT docshard.start_balancer()", &[])
}

/// balancerStop: `maxTimeMS` says how long to wait for the chunk that is being moved.
pub fn balancer_stop(request: &Request<'_>) -> Result<Reply> {
    let wait = request.fields.integer("maxTimeMS")?.filter(|n| *n > 0).unwrap_or(60_000);
    call("SELECT docshard.stop_balancer($1)", &[Param::Int8(wait)])
}

/// balancerStatus.
pub fn balancer_status(_request: &Request<'_>) -> Result<Reply> {
    call("SELECT docshard.balancer_status()", &[])
}

/// balancerCollectionStatus.
pub fn balancer_collection_status(request: &Request<'_>) -> Result<Reply> {
    call("SELECT docshard.balancer_collection_status($1)", &[Param::Text(request.target_text())])
}

/// configureCollectionBalancing.
pub fn configure_collection_balancing(request: &Request<'_>) -> Result<Reply> {
    let mut options = Map::new();
    if let Some(size) = request.fields.get("chunkSize") {
        options.insert("chunkSize".to_owned(), size.clone());
    }
    call(
        "SELECT docshard.configure_collection_balancing($1, $2::json)",
        &[Param::Text(request.target_text()), Param::Text(&Json::Object(options).to_string())],
    )
}

/// movePrimary.
pub fn move_primary(request: &Request<'_>) -> Result<Reply> {
    let to = text(request, "to");
    call("SELECT docshard.move_primary($1, $2)", &[Param::Text(request.target_text()), Param::Text(&to)])
}
