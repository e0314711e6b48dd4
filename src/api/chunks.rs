//! Administration of chunks: splitting, merging, moving; and what moves call at shards.

use super::required;
use crate::catalog::model::Collection;
use crate::catalog::{cache, chunks, namespace, shards};
use crate::migration::{self, MoveRequest, MoveResult, RangeRequest, jobs};
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::router::options::Options;
use crate::storage::lock::{self, Tag};
use crate::worker;
use docshard_core::cluster::chunk_map::Chunk;
use docshard_core::cluster::targeting;
use docshard_core::error::Kind;
use docshard_core::query::filter::Filter;
use docshard_core::values::key::KeyPattern;
use pgrx::prelude::*;
use serde_json::{Map, Value, json};

/// The shard key that the filter `find` gives, which must give one.
fn key_of(pattern: &KeyPattern, find: &Json) -> Result<Vec<u8>> {
    let json = find.parse()?;
    if !json.is_object() {
        return Err(Error::new(Kind::TypeMismatch, format!("find must be a document, not {}", find.0)));
    }
    targeting::exact_key(pattern, &Filter::parse(&json)?).ok_or_else(|| {
        Error::new(Kind::ShardKeyNotFound, format!("no shard key found in chunk query {}", find.0))
            .with_hint(format!("Give every field of the shard key {}.", pattern.to_json()))
    })
}

/// Splits the chunk that holds the key `middle`, there. A hashed field takes the hash itself, a 64-bit integer.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn split_at(ns: &str, middle: Json) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let (locked, pattern) = chunks::lock(ns)?;
        let point = pattern.bound_from_json(&middle.parse()?)?;
        chunks::split(&locked, ns, &pattern, &[point])?;
        Ok(ok())
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Splits the chunk that holds the document `find` in halves, at the median of its keys.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn split_find(ns: &str, find: Json) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let (locked, pattern) = chunks::lock(ns)?;
        let chunk = chunks::containing(locked.id, &key_of(&pattern, &find)?)?;
        let point = migration::median(locked.id, &pattern, &chunk)?;
        chunks::split(&locked, ns, &pattern, &[point])?;
        Ok(ok())
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Takes the mark "jumbo" from the chunk that holds the document `find`: the balancer tries again to split it.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn clear_jumbo_flag(ns: &str, find: Json) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let (locked, pattern) = chunks::lock(ns)?;
        chunks::clear_jumbo(&locked, ns, &pattern, &key_of(&pattern, &find)?)?;
        worker::wake_at_commit();
        Ok(ok())
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Merges the chunks between two bounds, `[{"field": min}, {"field": max}]`, which must be on one shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn merge_chunks(ns: &str, bounds: Json) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let (locked, pattern) = chunks::lock(ns)?;
        let parsed = bounds.parse()?;
        let [min, max] = parsed.as_array().map_or(&[][..], Vec::as_slice) else {
            return Err(Error::new(Kind::BadValue, format!("bounds must be two key documents, not {}", bounds.0))
                .with_hint("For example: [{\"field\": {\"$minKey\": 1}}, {\"field\": 10}]"));
        };
        let (min, max) = (pattern.bound_from_json(min)?, pattern.bound_from_json(max)?);
        chunks::merge(&locked, ns, &pattern, &min, &max)?;
        Ok(ok())
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Moves the chunk that holds the document `find` to a shard. Options: forceJumbo.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn move_chunk(ns: &str, find: Json, to: &str, options: default!(Json, "'{}'")) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let json = options.parse()?;
        let options = Options::of(&json, "move_chunk", &["forceJumbo"])?;
        let force_jumbo = options.boolean("forceJumbo")?.unwrap_or(false);
        let collection = sharded(ns)?;
        let chunk = collection.map.find(&key_of(&collection.key, &find)?);
        move_to(ns, chunk, to, force_jumbo)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Moves the range of keys from `min` up to but not including `max` to a shard; chunks are split at its ends. Where one end
/// is null, the range has about the chunk size, and stays within a chunk. Options: forceJumbo.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn move_range(
    ns: Option<&str>,
    min: Option<Json>,
    max: Option<Json>,
    to: Option<&str>,
    options: default!(Option<Json>, "'{}'"),
) -> Json {
    let run = || -> Result<Json> {
        let (ns, to) = (required(ns, "ns")?, required(to, "to")?);
        let options = required(options, "options")?;
        check(ns)?;
        let json = options.parse()?;
        let options = Options::of(&json, "move_range", &["forceJumbo"])?;
        let force_jumbo = options.boolean("forceJumbo")?.unwrap_or(false);
        let collection = sharded(ns)?;
        let bound = |json: Option<Json>| -> Result<Option<Vec<u8>>> {
            json.map(|json| Ok(collection.key.bound_from_json(&json.parse()?)?)).transpose()
        };
        let (min, max) = (bound(min)?, bound(max)?);
        refuse_in_block()?;
        let to = cache::shard_named(to)?;
        let request = RangeRequest { namespace: ns.to_owned(), min, max, to: to.id, force_jumbo };
        let (outcome, moves) = jobs::move_range_and_wait(&request)?;
        if moves == 0 {
            return Ok(there_already("range", &to.name));
        }
        Ok(Json(answer(&outcome, Some(moves)).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
}

fn check(ns: &str) -> Result<()> {
    shards::check_may_change()?;
    namespace::split(ns).map(|_| ())
}

fn ok() -> Json {
    Json(json!({"ok": 1}).to_string())
}

fn sharded(ns: &str) -> Result<std::rc::Rc<Collection>> {
    let collection = cache::get(ns)?;
    if collection.key.is_unsharded() {
        return Err(Error::new(Kind::NamespaceNotSharded, format!("ns not sharded: {ns}"))
            .with_hint("docshard.shard_collection() shards it; docshard.move_primary() moves unsharded collections."));
    }
    Ok(collection)
}

fn refuse_in_block() -> Result<()> {
    if server::in_transaction_block() {
        return Err(Error::new(
            Kind::OperationNotSupportedInTransaction,
            "a chunk cannot be moved inside a transaction block",
        )
        .with_hint("Call it by itself: a move commits in steps of its own."));
    }
    Ok(())
}

fn there_already(what: &str, shard: &str) -> Json {
    let note = format!("the {what} is on shard {shard} already");
    Json(json!({"ok": 1, "millis": 0, "documents": 0, "bytes": 0, "note": note}).to_string())
}

fn answer(outcome: &MoveResult, chunks: Option<i64>) -> serde_json::Value {
    let MoveResult { documents, bytes, millis, .. } = outcome;
    let mut answer = json!({"ok": 1, "millis": millis, "documents": documents, "bytes": bytes});
    if let Some(chunks) = chunks {
        answer["chunks"] = chunks.into();
    }
    answer
}

fn move_to(ns: &str, chunk: Chunk, to: &str, force_jumbo: bool) -> Result<Json> {
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
        reason: "manual".to_owned(),
    };
    let outcome = jobs::move_and_wait(&request)?;
    Ok(Json(answer(&outcome, None).to_string()))
}

/// Ends a move that is under way, by its number in `docshard.migrations`: the chunk stays where it is. If the move is
/// decided already it is completed, and the answer says so.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn abort_migration(migration: i64) -> Json {
    let run = || -> Result<Json> {
        shards::check_may_change()?;
        end_move(migration)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Ends all moves of chunks of a collection.
#[pg_extern(name = "abort_migration", volatile, parallel_unsafe, requires = ["catalog"])]
fn abort_migration_of(ns: &str) -> Json {
    let run = || -> Result<Json> {
        check(ns)?;
        let collection = cache::get(ns)?;
        match migration::undecided(collection.id)?[..] {
            [] => Err(Error::new(Kind::NoMatchingDocument, format!("no chunk of {ns} is being moved"))
                .with_hint("The view docshard.migrations shows the moves under way, and those that ended.")),
            [migration] => end_move(migration),
            ref several => {
                let ended = several.iter().map(|id| end_one(*id)).collect::<Result<Vec<_>>>()?;
                let all = ended.iter().all(|answer| answer["aborted"] == true);
                Ok(Json(json!({"ok": 1, "aborted": all, "migrations": ended}).to_string()))
            }
        }
    };
    run().unwrap_or_else(|e| e.raise())
}

fn end_move(migration: i64) -> Result<Json> {
    let mut answer = Map::from_iter([("ok".to_owned(), 1.into())]);
    answer.extend(end_one(migration)?);
    Ok(Json(Value::Object(answer).to_string()))
}

/// Ends a move; answers what is told of it.
fn end_one(migration: i64) -> Result<Map<String, Value>> {
    let ended = jobs::abort_and_wait(migration)?;
    let mut answer =
        Map::from_iter([("migration".to_owned(), migration.into()), ("aborted".to_owned(), ended.now.into())]);
    let note = match (ended.now, ended.moved) {
        (true, _) => None,
        (false, true) => Some("the move was decided already: the chunk is at its new shard"),
        (false, false) => Some("the move had ended without moving the chunk"),
    };
    if let Some(note) = note {
        answer.insert("note".to_owned(), note.into());
    }
    if ended.unfinished {
        pgrx::warning!("what the move left on its shards is cleaned up when they can be reached");
    }
    Ok(answer)
}

/// Completes or takes back moves whose process is gone, and removes what they left on shards; the balancer does it by
/// itself. Answers how many moves could not be ended, as a shard cannot be reached.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn recover_moves() -> i64 {
    shards::check_may_change().and_then(|()| jobs::recover_and_wait()).unwrap_or_else(|e| e.raise())
}

fn holders(tag: Tag) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    TableIterator::new(lock::holding_processes(tag).unwrap_or_else(|e| e.raise()))
}

/// Who holds a collection's lock on this shard: the transaction, and its process unless it is prepared.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn collection_writers(collection: i32) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Collection(collection))
}

/// Who holds a migration's lock on this shard: those who write to its range.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn range_writers(migration: i64) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Migration(migration))
}

/// Excludes all writers to the range of a migration on this shard until the transaction ends.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_range_writers(migration: i64) {
    migration::exclude_range_writers(migration);
}

/// Lets the writers go on that this session has excluded.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn release_range_writers(migration: i64) {
    migration::release_range_writers(migration);
}
