//! Administration of collections and indexes.

use crate::catalog::indexes::{IndexOptions, Made};
use crate::catalog::sharding::{self, ShardOptions};
use crate::catalog::{cache, collections, indexes, namespace, shards};
use crate::indexing;
use crate::indexing::progress::{self, Progress};
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::router::index_stats::{self, IndexStats};
use crate::router::options::Options;
use docshard_core::error::Kind;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys;
use pgrx::prelude::*;
use serde_json::json;

fn answer(value: &serde_json::Value) -> Json {
    Json(value.to_string())
}

/// Creates an unsharded collection on its database's primary shard. Option: collation, by which statements compare
/// strings that name none.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_collection(ns: &str, options: default!(Json, "'{}'")) -> Json {
    let run = || -> Result<Json> {
        shards::check_may_change()?;
        let json = options.parse()?;
        let options = Options::of(&json, "create_collection", &["collation"])?;
        let collation = options.get("collation").map(Collator::parse).transpose()?.flatten();
        collections::create(ns, collation.as_ref())?;
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
/// Options: unique, numInitialChunks, collation, which can only be simple.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn shard_collection(ns: &str, key: Json, options: default!(Json, "'{}'")) -> Json {
    let run = || -> Result<Json> {
        shards::check_may_change()?;
        namespace::split(ns)?;
        let pattern = KeyPattern::parse(&key.parse()?)?;
        let json = options.parse()?;
        let options = Options::of(&json, "shard_collection", &["unique", "numInitialChunks", "collation"])?;
        let collation = options.get("collation");
        if let Some(other) = collation.map(Collator::parse).transpose()?.flatten() {
            let message = "The collation for shardCollection must be {locale: 'simple'}, but found: ";
            return Err(Error::new(Kind::BadValue, format!("{message}{}", other.definition())));
        }
        let options = ShardOptions {
            unique: options.boolean("unique")?.unwrap_or(false),
            initial_chunks: options.integer("numInitialChunks")?,
            simple_collation: collation.is_some(),
        };
        sharding::shard(ns, &pattern, &options)?;
        Ok(answer(&json!({"collectionsharded": ns, "ok": 1})))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Creates an index such as `{"from": 1, "sent": -1}` on every shard; answers its name. Options: name, unique, hidden,
/// expireAfterSeconds, sparse, partialFilterExpression, collation, wildcardProjection.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_index(ns: &str, keys: Json, options: default!(Json, "'{}'"), fcinfo: pg_sys::FunctionCallInfo) -> String {
    let _call = sole_call::Call::of(fcinfo);
    let run = || -> Result<String> {
        shards::check_may_change()?;
        let json = options.parse()?;
        let given = Options::of(&json, "create_index", indexing::OPTIONS)?;
        let options = indexing::options(ns, &given)?;
        if indexing::is_called_for(ns)? {
            let names = indexing::build_and_wait(ns, &[(keys.0, options)])?;
            return Ok(names.into_iter().next().unwrap_or_default());
        }
        indexes::create(ns, &keys.0, &options)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Creates several indexes, all or none; answers their names. Each is `{"key": {"from": 1}, …}` with the options of
/// `create_index` beside the key.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_indexes(ns: &str, indexes: Json, fcinfo: pg_sys::FunctionCallInfo) -> Vec<String> {
    let _call = sole_call::Call::of(fcinfo);
    let run = || -> Result<Vec<String>> {
        shards::check_may_change()?;
        let serde_json::Value::Array(wanted) = indexes.parse()? else {
            return Err(Error::new(Kind::TypeMismatch, "indexes must be an array, such as [{\"key\": {\"from\": 1}}]"));
        };
        if wanted.is_empty() {
            return Err(Error::new(Kind::BadValue, "Must specify at least one index to create"));
        }
        let known = [&["key"], indexing::OPTIONS].concat();
        namespace::split(ns)?;
        let read = |index| -> Result<(String, IndexOptions<'_>)> {
            let given = Options::of(index, "create_indexes", &known)?;
            let missing =
                || Error::new(Kind::FailedToParse, "The 'key' field is a required property of an index specification");
            Ok((given.get("key").ok_or_else(missing)?.to_string(), indexing::options(ns, &given)?))
        };
        let wanted = wanted.iter().map(read).collect::<Result<Vec<_>>>()?;
        if indexing::is_called_for(ns)? {
            return indexing::build_and_wait(ns, &wanted);
        }
        let mut made = Made::none(ns)?;
        let create = |(keys, options): &(String, IndexOptions<'_>)| -> Result<String> {
            let name = indexes::create(ns, keys, options)?;
            made.add(&name)?;
            Ok(name)
        };
        wanted.iter().map(create).collect()
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Drops an index, by its name, on every shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_index(ns: &str, name: &str) -> Json {
    indexes::drop(ns, name).unwrap_or_else(|e| e.raise());
    answer(&json!({"ok": 1}))
}

/// Drops indexes on every shard: by a name, an array of names, keys, or all (`"*"`) but the one on `_id`.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_indexes(ns: &str, indexes: default!(Json, "'\"*\"'")) -> Json {
    let run = || Ok(answer(&json!({"nIndexesWas": indexes::drop_some(ns, &indexes.parse()?)?, "ok": 1})));
    run().unwrap_or_else(|e: Error| e.raise())
}

/// The indexes of a collection, a row each.
#[pg_extern(stable, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of a row")]
fn list_indexes(
    ns: &str,
) -> TableIterator<
    'static,
    (
        name!(name, String),
        name!(keys, Json),
        name!(is_unique, bool),
        name!(is_hidden, bool),
        name!(expire_after_s, Option<i64>),
        name!(is_sparse, bool),
        name!(partial_filter, Option<Json>),
        name!(collation, Option<Json>),
        name!(wildcard_projection, Option<Json>),
    ),
> {
    let run = || -> Result<Vec<_>> {
        namespace::split(ns)?;
        let collection = cache::get(ns)?;
        let of_id = Json(json!({"_id": 1}).to_string());
        let mut rows =
            vec![("_id_".to_owned(), of_id, collection.key.is_unsharded(), false, None, false, None, None, None)];
        rows.extend(collection.key_index().map(|keys| {
            let pattern = Json(collection.key.to_json().to_string());
            (keys.default_name(), pattern, false, false, None, false, None, None, None)
        }));
        rows.extend(collection.indexes.iter().map(|index| {
            let keys = Json(index.keys_json.clone());
            let partial = index.partial_filter().map(|text| Json(text.to_owned()));
            let collation = index.collation().map(|collator| Json(collator.definition().to_string()));
            let projection = index.wildcard_projection.as_ref().map(|json| Json(json.to_string()));
            let name = index.name.clone();
            let (unique, hidden, sparse) = (index.unique, index.hidden, index.sparse);
            (name, keys, unique, hidden, index.expire_after_s, sparse, partial, collation, projection)
        }));
        Ok(rows)
    };
    TableIterator::new(run().unwrap_or_else(|e| e.raise()))
}

/// How often each index of a collection is used, and how large it is: a row a shard and index.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of a row")]
fn index_stats(
    ns: &str,
) -> TableIterator<
    'static,
    (
        name!(shard, String),
        name!(name, String),
        name!(keys, Json),
        name!(accesses, i64),
        name!(bytes, i64),
        name!(since, Option<TimestampWithTimeZone>),
    ),
> {
    let run = || -> Result<Vec<_>> {
        namespace::split(ns)?;
        shards::check_router()?;
        let row = |index: IndexStats| {
            let since = index.since.and_then(|since| TimestampWithTimeZone::try_from(since).ok());
            (index.shard, index.name, Json(index.keys_json), index.accesses, index.bytes, since)
        };
        Ok(index_stats::of(ns)?.into_iter().map(row).collect())
    };
    TableIterator::new(run().unwrap_or_else(|e| e.raise()))
}

/// How far the indexes are that are being built while writes go on: a row an index and shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of a row")]
fn list_index_builds() -> TableIterator<
    'static,
    (
        name!(namespace, String),
        name!(name, String),
        name!(keys, Json),
        name!(shard, String),
        name!(phase, String),
        name!(blocks_done, i64),
        name!(blocks_total, i64),
        name!(documents_done, i64),
        name!(documents_total, i64),
        name!(waits_for, Option<i32>),
        name!(started_at, Option<TimestampWithTimeZone>),
    ),
> {
    let run = || -> Result<Vec<_>> {
        shards::check_router()?;
        let row = |build: Progress| {
            let since = TimestampWithTimeZone::try_from(build.since).ok();
            let Progress { namespace, name, keys_json, shard, phase, blocks, tuples, waits_for, .. } = build;
            let (keys, (blocks, all), (documents, total)) = (Json(keys_json), blocks, tuples);
            (namespace, name, keys, shard, phase, blocks, all, documents, total, waits_for, since)
        };
        Ok(progress::of_all()?.into_iter().map(row).collect())
    };
    TableIterator::new(run().unwrap_or_else(|e| e.raise()))
}

extension_sql_file!("../../sql/index_usage.sql", name = "index_usage", requires = [index_stats]);
