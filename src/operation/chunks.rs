//! Operations that split, merge and move chunks.

use super::request_parts::Specification;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::collections::{chunks, namespace, views};
use crate::migration::{self, MANUAL, MoveRequest, MoveResult, RangeRequest, jobs};
use crate::pg::error::{Error, Result};
use crate::pg::process;
use crate::pg::server;
use docshard_core::cluster::targeting;
use docshard_core::error::{Kind, ensure, error};
use docshard_core::query::filter::Filter;
use docshard_core::query::specification::Role;
use docshard_core::routing::model::Collection;
use docshard_core::values::key::KeyPattern;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// How a request identifies a chunk.
#[derive(Clone, Copy, Debug)]
pub enum ChunkSelector<'a> {
    /// by a filter that gives a value for every field of the shard key
    Find(Specification<'a>),
    Bounds(&'a Json, &'a Json),
}

pub fn bounds(json: &Json) -> Result<(&Json, &Json)> {
    match json.as_array().map(Vec::as_slice) {
        Some([min, max]) => Ok((min, max)),
        _ => Err(error!(Kind::BadValue, "bounds must be two key documents: [min, max]")),
    }
}

fn key_of(pattern: &KeyPattern, find: Specification<'_>) -> Result<Vec<u8>> {
    let json = find.value(Role::Filter)?;
    ensure!(json.is_object(), Kind::TypeMismatch, "find must be a document, not {}", find.text());
    targeting::exact_key(pattern, &Filter::parse(&json)?).ok_or_else(|| {
        error!(Kind::ShardKeyNotFound, "no shard key found in chunk query {}", find.text())
            .with_hint(format!("Give every field of the shard key {}.", pattern.to_json()))
    })
}

fn check(ns: &str) -> Result<()> {
    check_may_change()?;
    namespace::split(ns)?;
    views::refuse_sharded(ns)
}

fn ok() -> Json {
    json!({"ok": 1})
}

fn no_such_chunk(ns: &str) -> Error {
    error!(Kind::BadValue, "{ns} has no chunk with these bounds")
        .with_hint("The collection config.chunks shows the bounds.")
}

/// Splits a chunk at the key `middle`. For a hashed field the key contains the hash itself, a 64-bit integer.
pub fn split_at(ns: &str, middle: Specification<'_>) -> Result<Json> {
    check(ns)?;
    let (locked, pattern) = chunks::lock(ns)?;
    chunks::split(&locked, ns, &pattern, &[pattern.bound_from_json(&*middle.value(Role::Plain)?)?])?;
    Ok(ok())
}

/// Splits a chunk at the median of its keys.
pub fn split(ns: &str, which: ChunkSelector<'_>) -> Result<Json> {
    check(ns)?;
    let (locked, pattern) = chunks::lock(ns)?;
    let chunk = match which {
        ChunkSelector::Find(find) => chunks::containing(locked.id, &key_of(&pattern, find)?)?,
        ChunkSelector::Bounds(min, max) => {
            let (min, max) = (pattern.bound_from_json(min)?, pattern.bound_from_json(max)?);
            let chunk = chunks::containing(locked.id, &min)?;
            if (&chunk.min, &chunk.max) != (&min, &max) {
                return Err(no_such_chunk(ns));
            }
            chunk
        }
    };
    let point = migration::median(locked.id, &pattern, &chunk)?;
    chunks::split(&locked, ns, &pattern, &[point])?;
    Ok(ok())
}

/// Clears the mark "jumbo", so that the balancer tries again to split the chunk.
pub fn clear_jumbo_flag(ns: &str, find: Specification<'_>) -> Result<Json> {
    check(ns)?;
    let (locked, pattern) = chunks::lock(ns)?;
    chunks::clear_jumbo(&locked, ns, &pattern, &key_of(&pattern, find)?)?;
    process::wake_at_commit();
    Ok(ok())
}

/// Merges the chunks between two bounds, `[{"field": min}, {"field": max}]`, which must be on one shard.
pub fn merge(ns: &str, bounds: Specification<'_>) -> Result<Json> {
    check(ns)?;
    let (locked, pattern) = chunks::lock(ns)?;
    let parsed = bounds.value(Role::Plain)?;
    let [min, max] = parsed.as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(error!(Kind::BadValue, "bounds must be two key documents, not {}", bounds.text())
            .with_hint("For example: [{\"field\": {\"$minKey\": 1}}, {\"field\": 10}]"));
    };
    let (min, max) = (pattern.bound_from_json(min)?, pattern.bound_from_json(max)?);
    chunks::merge(&locked, ns, &pattern, &min, &max)?;
    Ok(ok())
}

pub fn move_chunk(ns: &str, find: Specification<'_>, to: &str, force_jumbo: bool) -> Result<Json> {
    check(ns)?;
    let collection = sharded(ns)?;
    let chunk = collection.map.find(&key_of(&collection.key, find)?);
    refuse_in_block()?;
    let shard = cache::shard_named(to)?;
    if chunk.shard == shard.id {
        return Ok(there_already("chunk", to));
    }
    let request = MoveRequest {
        namespace: ns.to_owned(),
        min: chunk.min,
        max: chunk.max,
        to: shard.id,
        force_jumbo,
        bytes_per_second: 0,
        reason: MANUAL.to_owned(),
    };
    Ok(moved(&jobs::move_and_wait(&request)?, None))
}

/// The move of a range of keys to a shard. If one bound is missing, the range is about as large as a chunk, and lies within one chunk.
#[derive(Debug)]
pub struct MoveRange<'a> {
    pub min: Option<&'a Json>,
    /// exclusive
    pub max: Option<&'a Json>,
    pub to: &'a str,
    pub force_jumbo: bool,
}

impl MoveRange<'_> {
    /// Moves the range; splits chunks at its ends.
    pub fn run(&self, ns: &str) -> Result<Json> {
        self.move_if(ns, |_, min, max| Ok((min, max)))
    }

    /// Moves the range if it is exactly one chunk.
    pub fn run_of_chunk(&self, ns: &str) -> Result<Json> {
        self.move_if(ns, |collection, min, max| {
            let chunk = min.as_deref().map(|min| collection.map.find(min));
            let is_chunk =
                chunk.is_some_and(|chunk| Some(&chunk.min) == min.as_ref() && Some(&chunk.max) == max.as_ref());
            if is_chunk { Ok((min, max)) } else { Err(no_such_chunk(ns)) }
        })
    }

    fn move_if(
        &self,
        ns: &str,
        range: impl FnOnce(&Collection, Bound, Bound) -> Result<(Bound, Bound)>,
    ) -> Result<Json> {
        check(ns)?;
        let collection = sharded(ns)?;
        let bound = |json: Option<&Json>| -> Result<Bound> {
            let invalid = |error: Error| error.with_kind(Kind::InvalidOptions);
            json.map(|json| collection.key.bound_from_json(json).map_err(invalid)).transpose()
        };
        let (min, max) = range(&collection, bound(self.min)?, bound(self.max)?)?;
        refuse_in_block()?;
        let to = cache::shard_named(self.to)?;
        let request = RangeRequest { namespace: ns.to_owned(), min, max, to: to.id, force_jumbo: self.force_jumbo };
        let (outcome, moves) = jobs::move_range_and_wait(&request)?;
        Ok(if moves == 0 { there_already("range", &to.name) } else { moved(&outcome, Some(moves)) })
    }
}

type Bound = Option<Vec<u8>>;

fn sharded(ns: &str) -> Result<Rc<Collection>> {
    let collection = cache::get(ns)?;
    if collection.key.is_unsharded() {
        return Err(error!(Kind::NamespaceNotSharded, "ns not sharded: {ns}")
            .with_hint("docshard.shard_collection() shards it; docshard.move_primary() moves unsharded collections."));
    }
    Ok(collection)
}

fn refuse_in_block() -> Result<()> {
    if server::in_transaction_block() {
        return Err(error!(
            Kind::OperationNotSupportedInTransaction,
            "a chunk cannot be moved inside a transaction block"
        )
        .with_hint("Call it outside a transaction block: a move commits transactions of its own."));
    }
    Ok(())
}

fn there_already(what: &str, shard: &str) -> Json {
    let note = format!("the {what} is on shard {shard} already");
    json!({"ok": 1, "millis": 0, "documents": 0, "bytes": 0, "note": note})
}

fn moved(outcome: &MoveResult, chunks: Option<i64>) -> Json {
    let MoveResult { documents, bytes, millis, .. } = outcome;
    let mut answer = json!({"ok": 1, "millis": millis, "documents": documents, "bytes": bytes});
    if let Some(chunks) = chunks {
        answer["chunks"] = chunks.into();
    }
    answer
}

/// Aborts a move. A move that is already decided is completed instead, and the answer says so.
pub fn abort_migration(migration: i64) -> Result<Json> {
    check_may_change()?;
    end_move(migration)
}

pub fn abort_migrations_of(ns: &str) -> Result<Json> {
    check(ns)?;
    match migration::undecided(cache::get(ns)?.id)?[..] {
        [] => Err(error!(Kind::NoMatchingDocument, "no chunk of {ns} is being moved")
            .with_hint("The view docshard.migrations shows the running and the ended moves.")),
        [migration] => end_move(migration),
        ref several => {
            // An error for one move must not keep the others from being aborted.
            let ended: Vec<_> = several.iter().map(|id| end_one(*id)).collect();
            let ended = ended.into_iter().collect::<Result<Vec<_>>>()?;
            let all = ended.iter().all(|answer| answer["aborted"] == true);
            Ok(json!({"ok": 1, "aborted": all, "migrations": ended}))
        }
    }
}

fn end_move(migration: i64) -> Result<Json> {
    let mut answer = Map::from_iter([("ok".to_owned(), 1.into())]);
    answer.extend(end_one(migration)?);
    Ok(Json::Object(answer))
}

fn end_one(migration: i64) -> Result<Map<String, Json>> {
    let ended = jobs::abort_and_wait(migration)?;
    let mut answer =
        Map::from_iter([("migration".to_owned(), migration.into()), ("aborted".to_owned(), ended.now.into())]);
    let note = match (ended.now, ended.moved, ended.unfinished) {
        (true, ..) => None,
        (false, true, false) => Some("the move was already decided: the chunk is on its new shard"),
        (false, true, true) => {
            Some("the move was already decided; its row in docshard.migrations shows why it has not ended")
        }
        (false, false, _) => Some("the move had ended without moving the chunk"),
    };
    if let Some(note) = note {
        answer.insert("note".to_owned(), note.into());
    }
    if ended.unfinished {
        pgrx::warning!("the move ends when its shards can be reached");
    }
    Ok(answer)
}
