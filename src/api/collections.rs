//! Administration of collections and indexes.

use super::{answer, run, with_options};
use crate::catalog::cluster::{check_may_change, check_router};
use crate::catalog::index_removal;
use crate::catalog::{cache, namespace};
use crate::indexing::progress::{self, Progress};
use crate::operation::arguments::{Arguments, Form};
use crate::operation::{collections, table};
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::router::index_stats::{self, IndexStats};
use docshard_core::error::Kind;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys;
use pgrx::prelude::*;
use serde_json::json;

/// Creates an unsharded collection on its database's primary shard. Option: collation, by which statements compare
/// strings that name none.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_collection(ns: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| with_options(&options, &table::CREATE_COLLECTION, |options| collections::create(ns, options)))
}

/// Drops a collection, its documents and its metadata, everywhere.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_collection(ns: &str) -> bool {
    run(|| crate::catalog::collections::drop(ns))
}

/// Shards a collection by `key`, such as `{"recipient": 1, "sent": 1}` or `{"user_name": "hashed"}`.
/// Options: unique, numInitialChunks, collation, which can only be simple.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn shard_collection(ns: &str, key: Json, options: default!(Json, "'{}'")) -> Json {
    answer(|| {
        with_options(&options, &table::SHARD_COLLECTION, |options| collections::shard(ns, &key.parse()?, options))
    })
}

/// Creates an index such as `{"from": 1, "sent": -1}` on every shard; answers its name. Options: name, unique, hidden,
/// expireAfterSeconds, sparse, partialFilterExpression, collation, wildcardProjection.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_index(ns: &str, keys: Json, options: default!(Json, "'{}'"), fcinfo: pg_sys::FunctionCallInfo) -> String {
    let _call = sole_call::Call::of(fcinfo);
    run(|| {
        with_options(&options, &table::CREATE_INDEX, |options| {
            let wanted = [(keys.0, collections::index_options(ns, options)?)];
            Ok(collections::create_indexes(ns, &wanted)?.into_iter().next().unwrap_or_default())
        })
    })
}

/// Creates several indexes, all or none; answers their names. Each is `{"key": {"from": 1}, …}` with the options of
/// `create_index` beside the key.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_indexes(ns: &str, indexes: Json, fcinfo: pg_sys::FunctionCallInfo) -> Vec<String> {
    let _call = sole_call::Call::of(fcinfo);
    run(|| {
        check_may_change()?;
        let serde_json::Value::Array(wanted) = indexes.parse()? else {
            return Err(Error::new(Kind::TypeMismatch, "indexes must be an array, such as [{\"key\": {\"from\": 1}}]"));
        };
        if wanted.is_empty() {
            return Err(Error::new(Kind::BadValue, "Must specify at least one index to create"));
        }
        namespace::split(ns)?;
        let table::Operation { function, options, conflicts } = &table::CREATE_INDEXES;
        let read = |index| -> Result<_> {
            let given = Arguments::parse(index, Form::Options(function), options)?;
            given.check_conflicts(conflicts)?;
            let keys = given.get("key").map(ToString::to_string).unwrap_or_default();
            Ok((keys, collections::index_options(ns, &given)?))
        };
        collections::create_indexes(ns, &wanted.iter().map(read).collect::<Result<Vec<_>>>()?)
    })
}

/// Drops an index, by its name, on every shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_index(ns: &str, name: &str) -> Json {
    answer(|| index_removal::drop(ns, name).map(|()| json!({"ok": 1})))
}

/// Drops indexes on every shard: by a name, an array of names, keys, or all (`"*"`) but the one on `_id`.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_indexes(ns: &str, indexes: default!(Json, "'\"*\"'")) -> Json {
    answer(|| collections::drop_indexes(ns, &indexes.parse()?))
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
    let rows = || -> Result<Vec<_>> {
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
    TableIterator::new(run(rows))
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
    let rows = || -> Result<Vec<_>> {
        namespace::split(ns)?;
        check_router()?;
        let row = |index: IndexStats| {
            let since = index.since.and_then(|since| TimestampWithTimeZone::try_from(since).ok());
            (index.shard, index.name, Json(index.keys_json), index.accesses, index.bytes, since)
        };
        Ok(index_stats::of(ns)?.into_iter().map(row).collect())
    };
    TableIterator::new(run(rows))
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
    let rows = || -> Result<Vec<_>> {
        check_router()?;
        let row = |build: Progress| {
            let since = TimestampWithTimeZone::try_from(build.since).ok();
            let Progress { namespace, name, keys_json, shard, phase, blocks, tuples, waits_for, .. } = build;
            let (keys, (blocks, all), (documents, total)) = (Json(keys_json), blocks, tuples);
            (namespace, name, keys, shard, phase, blocks, all, documents, total, waits_for, since)
        };
        Ok(progress::of_all()?.into_iter().map(row).collect())
    };
    TableIterator::new(run(rows))
}

extension_sql_file!("../../sql/index_usage.sql", name = "index_usage", requires = [index_stats]);
