//! What a find would do: which shards and why, the statement each gets, and each shard's own plan; and, if it is run, what
//! that took.

use super::dispatch::reading;
use super::explain_stages::{self, Examined};
use super::fresh_map::with_fresh_map;
use super::options::{CountOptions, FindOptions};
use super::order::Order;
use super::plan::search::Search;
use super::plan::{self, Allowed, Plan};
use super::query::Query;
use super::statement::Statement;
use crate::catalog::model::Collection;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::values::key::encode::{decode, prefix_successor};
use docshard_core::values::key::{KeyRange, KeyRanges};
use serde_json::{Map, Value as Json, json};
use std::time::Instant;

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// what would be done
    #[default]
    Planned,
    /// it is done, and what that took
    Run,
}

impl Verbosity {
    /// Reads MongoDB's name for it. Plans that PostgreSQL's planner has rejected are not known, so `allPlansExecution` tells
    /// no more than `executionStats`.
    ///
    /// # Errors
    /// `BadValue`.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "queryPlanner" => Ok(Self::Planned),
            "executionStats" | "allPlansExecution" => Ok(Self::Run),
            other => Err(Error::new(
                Kind::BadValue,
                format!("Enumeration value '{other}' for field 'explain.verbosity' is not a valid value."),
            )
            .with_hint("It is one of queryPlanner, executionStats, allPlansExecution.")),
        }
    }
}

/// Explains a find.
///
/// # Errors
/// As `read::find`; `NamespaceNotFound`.
pub fn find(namespace: &str, query: &Query, options: &FindOptions, verbosity: Verbosity) -> Result<Json> {
    explained(namespace, query, Asked::Documents(options), verbosity)
}

/// Explains a count. One that a shard does without PostgreSQL's executor is explained, and run, with it.
///
/// # Errors
/// As `read::count`; `NamespaceNotFound`.
pub fn count(namespace: &str, query: &Query, options: &CountOptions, verbosity: Verbosity) -> Result<Json> {
    explained(namespace, query, Asked::Number(options), verbosity)
}

/// What is asked for.
#[derive(Clone, Copy)]
enum Asked<'a> {
    Documents(&'a FindOptions),
    Number(&'a CountOptions),
}

fn explained(namespace: &str, query: &Query, asked: Asked<'_>, verbosity: Verbosity) -> Result<Json> {
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return Ok(json!({"namespace": namespace, "exists": false, "shards": []}));
        };
        let search = Search::new(&collection, query)?;
        let plan = match asked {
            Asked::Documents(options) => plan::find(&search, options, Allowed::Planned)?,
            Asked::Number(options) => plan::count(&search, options, Allowed::Planned)?,
        };
        let Plan { destinations, statement, order, .. } = &plan;
        let (keys, single) = (&search.keys, destinations.len() == 1);
        let texts = plans(&collection, &plan, "COSTS OFF")?;
        let began = Instant::now();
        let form = match verbosity {
            Verbosity::Planned => "COSTS OFF, FORMAT JSON",
            Verbosity::Run => "COSTS OFF, FORMAT JSON, ANALYZE, TIMING OFF",
        };
        let trees = plans(&collection, &plan, form)?;
        let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut shards = Vec::new();
        let mut runs = Vec::new();
        let (mut returned, mut examined) = (0, Examined::default());
        for ((destination, text), tree) in destinations.iter().zip(texts).zip(trees) {
            let tree: Json = serde_json::from_str(&tree.concat()).unwrap_or_default();
            let (root, took) = (&tree[0]["Plan"], &tree[0]["Execution Time"]);
            let stages = explain_stages::stages(root, &|index| described(&collection, index));
            if verbosity == Verbosity::Run {
                let (rows, looked_at) = (explain_stages::returned(root), explain_stages::examined(root));
                returned += rows;
                examined = examined + looked_at;
                let mut run = Map::from_iter([("shardName".to_owned(), destination.shard.name.as_str().into())]);
                run.extend(explain_stages::statistics(rows, took.as_f64().unwrap_or(0.0).round() as u64, looked_at));
                run.insert("executionStages".into(), stages.clone());
                runs.push(Json::Object(run));
            }
            let mut shard = json!({
                "shard": destination.shard.name,
                "chunks": destination.chunks,
                "version": destination.version,
            });
            if verbosity == Verbosity::Planned {
                shard["winningPlan"] = stages;
            }
            shard["plan"] = text.into();
            shards.push(shard);
        }
        let targeted: usize = destinations.iter().map(|d| d.chunks).sum();
        let mut explained = json!({
            "namespace": namespace,
            "shardKey": if collection.key.is_unsharded() { Json::Null } else { collection.key.to_json() },
            "stage": match destinations.len() { 0 => "EOF", 1 => "SINGLE_SHARD", _ if *order != Order::None => "SHARD_MERGE_SORT", _ => "SHARD_MERGE" },
            "reason": reason(&collection, keys, destinations.len()),
            "keyBounds": bounds(&collection, keys),
            "targetedShards": destinations.len(),
            "totalShards": collection.map.shards().len(),
            "targetedChunks": targeted,
            "totalChunks": collection.map.len(),
            "sql": statement.sql,
            "shards": shards,
        });
        if verbosity == Verbosity::Run {
            let returned = match asked {
                // Several shards send what skipping may need, and the router skips.
                Asked::Documents(options) => {
                    let skipped = if single { returned } else { returned.saturating_sub(options.skip) };
                    options.limit.map_or(skipped, |limit| skipped.min(limit))
                }
                Asked::Number(_) => 0,
            };
            let mut statistics = explain_stages::statistics(returned, milliseconds, examined);
            statistics.insert("shards".into(), runs.into());
            explained["executionStats"] = Json::Object(statistics);
        }
        Ok(explained)
    })
}

/// What EXPLAIN prints at every destination, by lines.
fn plans(collection: &Collection, plan: &Plan, form: &str) -> Result<Vec<Vec<String>>> {
    let sql = format!("EXPLAIN ({form}) {}", plan.statement.sql);
    let explained = Statement { sql, params: plan.statement.params.clone() };
    let mut all = Vec::new();
    for mut stream in reading::explain(collection, &plan.destinations, &explained)? {
        let mut lines = Vec::new();
        while let Some(row) = stream.next_row()? {
            lines.push(String::from_utf8_lossy(row.get(0).unwrap_or_default()).into_owned());
        }
        all.push(lines);
    }
    Ok(all)
}

/// What users know of an index of a collection's table: its name and its keys.
fn described(collection: &Collection, index: &str) -> Map<String, Json> {
    let (name, keys) = match collection.index_of(index) {
        Some(one) => (one.name.clone(), serde_json::from_str(&one.keys_json).unwrap_or_default()),
        None if index.ends_with("_pkey") && !collection.key.is_unsharded() => {
            let keys = collection.key.to_json();
            let parts = keys.as_object().into_iter().flatten();
            let parts: Vec<String> = parts.map(|(path, kind)| format!("{path}_{}", word(kind))).collect();
            (parts.join("_"), keys)
        }
        None => ("_id_".to_owned(), json!({"_id": 1})),
    };
    let mut described = Map::from_iter([("indexName".to_owned(), name.into()), ("keyPattern".to_owned(), keys)]);
    if collection.index_of(index).is_some_and(|one| table::entries_name(one.id) == index) {
        described.insert("isMultiKey".to_owned(), true.into());
    }
    described
}

/// `1` or `hashed`, as in the names of indexes.
fn word(kind: &Json) -> String {
    kind.as_str().map_or_else(|| kind.to_string(), str::to_owned)
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
    let key = |bytes: &[u8]| collection.key.bound_to_json(bytes);
    if let Some(point) = range.as_point() {
        return json!({"key": key(point)});
    }
    // Everything that starts with the same fields: up to MaxKey in the others.
    if is_key(&range.lo) && range.hi.is_some() && range.hi == prefix_successor(&range.lo) {
        let mut last = range.lo.clone();
        let max = collection.key.max_bound();
        let missing = missing_fields(collection, &range.lo);
        last.extend_from_slice(&max[max.len().saturating_sub(missing)..]);
        return json!({"from": key(&range.lo), "to": key(&last)});
    }
    let mut shown = serde_json::Map::new();
    shown.extend(end(collection, &range.lo, "from", "above"));
    shown.extend(range.hi.as_ref().and_then(|hi| end(collection, hi, "below", "to")));
    Json::Object(shown)
}

/// An end of a range: `at` a key, or right `after` all keys that start with the same fields. None where it ends with all
/// values of a type.
fn end(collection: &Collection, bytes: &[u8], at: &str, after: &str) -> Option<(String, Json)> {
    if is_key(bytes) {
        return Some((at.to_owned(), collection.key.bound_to_json(bytes)));
    }
    let mut last = bytes.to_vec();
    let byte = last.last_mut()?;
    *byte = byte.checked_sub(1)?;
    if !is_key(&last) {
        return None;
    }
    let max = collection.key.max_bound();
    let missing = missing_fields(collection, &last);
    last.extend_from_slice(&max[max.len().saturating_sub(missing)..]);
    Some((after.to_owned(), collection.key.bound_to_json(&last)))
}

/// True for whole values, one after the other.
fn is_key(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match decode(bytes) {
            Ok((_, rest)) => bytes = rest,
            Err(_) => return false,
        }
    }
    true
}

/// How many of the shard key's fields the beginning of a key lacks.
fn missing_fields(collection: &Collection, start: &[u8]) -> usize {
    let mut rest = start;
    let mut fields = collection.key.fields.len();
    while fields > 0 {
        match decode(rest) {
            Ok((_, behind)) => rest = behind,
            Err(_) => break,
        }
        fields -= 1;
    }
    fields
}

/// The explanation as text: a line a fact, a line each for the steps of plans.
pub fn pretty(explained: &Json) -> String {
    let mut out = String::new();
    write_value(explained, 0, &mut out);
    out
}

fn write_value(value: &Json, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth + 1);
    let end = "  ".repeat(depth);
    match value {
        Json::Object(fields) if depth == 0 || fields.contains_key("plan") => {
            let lines: Vec<String> = fields
                .iter()
                .map(|(name, value)| {
                    let mut line = format!("{indent}{}: ", Json::from(name.as_str()));
                    write_value(value, depth + 1, &mut line);
                    line
                })
                .collect();
            *out += &format!("{{\n{}\n{end}}}", lines.join(",\n"));
        }
        Json::Array(items) if !items.is_empty() && items.iter().all(|item| item.is_object() || item.is_string()) => {
            let lines: Vec<String> = items
                .iter()
                .map(|item| {
                    let mut line = indent.clone();
                    write_value(item, depth + 1, &mut line);
                    line
                })
                .collect();
            *out += &format!("[\n{}\n{end}]", lines.join(",\n"));
        }
        other => *out += &other.to_string(),
    }
}
