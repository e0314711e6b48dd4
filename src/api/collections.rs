//! Administration of collections and indexes.

use crate::catalog::sharding::{self, ShardOptions};
use crate::catalog::{cache, collections, indexes, namespace, shards};
use crate::pg::error::Result;
use crate::pg::json::Json;
use crate::router::options::Options;
use docshard_core::key::KeyPattern;
use pgrx::prelude::*;
use serde_json::json;

fn answer(value: &serde_json::Value) -> Json {
    Json(value.to_string())
}

/// Creates an unsharded collection on its database's primary shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_collection(ns: &str, options: default!(Json, "'{}'")) -> Json {
    let run = || -> Result<Json> {
        shards::check_router()?;
        Options::of(&options.parse()?, "create_collection", &[])?;
        collections::create(ns)?;
        Ok(answer(&json!({"ok": 1})))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Drops a collection, its documents and its metadata, everywhere.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_collection(ns: &str) -> bool {
    collections::drop(ns).unwrap_or_else(|e| e.raise())
}

/// Shards a collection by `key`, such as `{"recipient": 1, "sent": 1}` or `{"user_name": "hashed"}`.
/// Options: unique, numInitialChunks.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn shard_collection(ns: &str, key: Json, options: default!(Json, "'{}'")) -> Json {
    let run = || -> Result<Json> {
        shards::check_router()?;
        namespace::split(ns)?;
        let pattern = KeyPattern::parse(&key.parse()?)?;
        let json = options.parse()?;
        let options = Options::of(&json, "shard_collection", &["unique", "numInitialChunks"])?;
        let options = ShardOptions {
            unique: options.boolean("unique")?.unwrap_or(false),
            initial_chunks: options.integer("numInitialChunks")?,
        };
        sharding::shard(ns, &pattern, &options)?;
        Ok(answer(&json!({"collectionsharded": ns, "ok": 1})))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Creates an index such as `{"from": 1, "sent": -1}` on every shard; answers its name. Options: name, unique.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_index(ns: &str, keys: Json, options: default!(Json, "'{}'")) -> String {
    let run = || -> Result<String> {
        shards::check_router()?;
        let json = options.parse()?;
        let options = Options::of(&json, "create_index", &["name", "unique"])?;
        indexes::create(ns, &keys.0, options.text("name")?, options.boolean("unique")?.unwrap_or(false))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Drops an index, by its name, on every shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_index(ns: &str, name: &str) -> Json {
    indexes::drop(ns, name).unwrap_or_else(|e| e.raise());
    answer(&json!({"ok": 1}))
}

/// The indexes of a collection, a row each.
#[pg_extern(stable, parallel_unsafe, requires = ["catalog"])]
fn list_indexes(ns: &str) -> TableIterator<'static, (name!(name, String), name!(keys, Json), name!(is_unique, bool))> {
    let run = || -> Result<Vec<_>> {
        namespace::split(ns)?;
        let collection = cache::get(ns)?;
        let mut rows = vec![("_id_".to_owned(), Json(json!({"_id": 1}).to_string()), collection.key.is_unsharded())];
        rows.extend(
            collection.indexes.iter().map(|index| (index.name.clone(), Json(index.keys_json.clone()), index.unique)),
        );
        Ok(rows)
    };
    TableIterator::new(run().unwrap_or_else(|e| e.raise()))
}
