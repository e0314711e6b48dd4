//! What a find would do: which shards and why, the statement each gets, and each shard's own plan.

use super::dispatch::{self, with_fresh_map};
use super::options::FindOptions;
use super::read::Query;
use super::statement::{self, Statement};
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use docshard_core::key::{KeyRange, KeyRanges};
use serde_json::{Value as Json, json};

/// Explains a find.
///
/// # Errors
/// As `read::find`; `NamespaceNotFound`.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Json> {
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return Ok(json!({"namespace": namespace, "exists": false, "shards": []}));
        };
        let keys = query.keys(&collection);
        let destinations = query.destinations(&collection)?;
        let single = destinations.len() == 1;
        let (statement, _) = statement::find(&collection, &query.filter, &query.text, options, single);
        let explained =
            Statement { sql: format!("EXPLAIN (COSTS OFF) {}", statement.sql), params: statement.params.clone() };
        let mut shards = Vec::new();
        let streams = dispatch::explain(&collection, &destinations, &explained)?;
        for (destination, mut stream) in destinations.iter().zip(streams) {
            let mut plan = Vec::new();
            while let Some(row) = stream.next()? {
                plan.push(Json::from(String::from_utf8_lossy(row.get(0).unwrap_or_default()).into_owned()));
            }
            shards.push(json!({
                "shard": destination.shard.name,
                "chunks": destination.chunks,
                "version": destination.version,
                "plan": plan,
            }));
        }
        let targeted: usize = destinations.iter().map(|d| d.chunks).sum();
        Ok(json!({
            "namespace": namespace,
            "shardKey": if collection.key.is_unsharded() { Json::Null } else { collection.key.to_json() },
            "stage": match destinations.len() { 0 => "EOF", 1 => "SINGLE_SHARD", _ if options.sort.is_some() => "SHARD_MERGE_SORT", _ => "SHARD_MERGE" },
            "reason": reason(&collection, &keys, destinations.len()),
            "keyBounds": bounds(&collection, &keys),
            "targetedShards": destinations.len(),
            "totalShards": collection.map.shards().len(),
            "targetedChunks": targeted,
            "totalChunks": collection.map.chunks().len(),
            "sql": statement.sql,
            "shards": shards,
        }))
    })
}

fn reason(collection: &Collection, keys: &KeyRanges, targets: usize) -> String {
    if collection.key.is_unsharded() {
        return "the collection is not sharded: its database's primary shard has it".to_owned();
    }
    match targets {
        0 => "no document can match the filter".to_owned(),
        _ if keys.is_all() => "the filter does not constrain the shard key: every shard with a chunk".to_owned(),
        _ => "the filter constrains the shard key: the shards whose chunks meet its bounds".to_owned(),
    }
}

fn bounds(collection: &Collection, keys: &KeyRanges) -> Json {
    if collection.key.is_unsharded() || keys.is_all() {
        return Json::Null;
    }
    let shown = keys.as_slice().iter().take(20).map(|range| bound(collection, range)).collect::<Vec<_>>();
    Json::from(shown)
}

fn bound(collection: &Collection, range: &KeyRange) -> Json {
    match range.as_point() {
        Some(key) => json!({"key": collection.key.bound_to_json(key)}),
        None => json!({
            "from": collection.key.bound_to_json(&range.lo),
            "to": range.hi.as_ref().map_or(Json::from("end"), |hi| collection.key.bound_to_json(hi)),
        }),
    }
}
