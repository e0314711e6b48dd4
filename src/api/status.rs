//! SQL functions that report on the cluster, and the views.

#![allow(clippy::type_complexity, reason = "the columns of SQL functions")]

use super::{given, run};
use crate::catalog::cluster::identity::check_router;
use crate::catalog::cluster::settings;
use crate::indexing::progress::{self, Progress};
use crate::operation::calls::with_options;
use crate::operation::consistency::{self, Finding};
use crate::operation::inspect::{self, IndexStats};
use crate::operation::table;
use crate::pg::datum::json::Json;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::{Raise as _, Result};
use crate::shard::health;
use crate::status::{self, health::Health, load::LoadRow};
use docshard_core::error::{Kind, error};
use docshard_core::query::specification;
use docshard_core::routing::names;
use docshard_core::routing::protocol::shard_tables::BuildProgress;
use docshard_core::values::key::KeyPattern;
use pgrx::prelude::*;
use std::time::Duration;

#[pg_extern(name = "status", volatile, parallel_unsafe, requires = ["catalog"])]
fn cluster_status(
    _nulls: Option<NoNulls>,
    verbose: default!(bool, "false"),
    options: default!(Json, "'{}'"),
) -> String {
    run(|| {
        check_router()?;
        status::text(verbose, with_options(&options, &table::STATUS, |options| Ok(options.flag("count")))?)
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn get_shard_distribution(
    _nulls: Option<NoNulls>,
    ns: &str,
    options: default!(Json, "'{}'"),
) -> TableIterator<
    'static,
    (
        name!(shard, String),
        name!(chunks, i64),
        name!(documents, Option<i64>),
        name!(bytes, Option<i64>),
        name!(percent, Option<f64>),
        name!(estimated, bool),
    ),
> {
    let (rows, estimated) = run(|| {
        check_router()?;
        let count = with_options(&options, &table::GET_SHARD_DISTRIBUTION, |options| Ok(options.flag("count")))?;
        Ok((status::distribution(ns, count)?, !count))
    });
    let row = move |row: status::Part| (row.shard, row.chunks, row.documents, row.bytes, row.percent, estimated);
    TableIterator::new(rows.into_iter().map(row))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn shard_health(
    _nulls: Option<NoNulls>,
    timeout_ms: default!(i32, "2500"),
) -> TableIterator<
    'static,
    (
        name!(shard, String),
        name!(reachable, bool),
        name!(latency_ms, Option<f64>),
        name!(version, Option<String>),
        name!(postgresql, Option<String>),
        name!(timeline, Option<i32>),
        name!(standbys, Option<i64>),
        name!(sync_standbys, Option<i64>),
        name!(lag_bytes, Option<i64>),
        name!(replication, Option<Json>),
        name!(oldest_in_doubt_s, Option<f64>),
        name!(free_connections, Option<i64>),
        name!(last_contact, Option<TimestampWithTimeZone>),
        name!(error, Option<String>),
        // Columns are added at the end: until ALTER EXTENSION UPDATE the function has those of the previous release.
        name!(library, Option<String>),
        name!(max_prepared_transactions, Option<i32>),
        name!(oldest_sync_wait_s, Option<f64>),
    ),
> {
    let health = run(|| {
        check_router()?;
        status::health::of_shards(time_limit(timeout_ms)?)
    });
    TableIterator::new(health.into_iter().map(|Health { shard, latency_ms, reachable, node, last_contact, error }| {
        let text = |name: &str| node[name].as_str().map(str::to_owned);
        let number = |name: &str| node[name].as_i64();
        (
            shard,
            reachable,
            latency_ms,
            text("version"),
            text("postgresql"),
            number("timeline").and_then(|timeline| timeline.try_into().ok()),
            number("standbys"),
            number("syncStandbys"),
            number("lagBytes"),
            node["replication"].is_array().then(|| Json::new(node["replication"].to_string())),
            node["oldestInDoubt"].as_f64(),
            number("freeConnections"),
            last_contact,
            error,
            text("library"),
            number("maxPrepared").and_then(|most| most.try_into().ok()),
            node["oldestSyncWait"].as_f64(),
        )
    }))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn check_metadata_consistency(
    ns: default!(Option<&str>, "NULL"),
    options: default!(Option<Json>, "'{}'"),
) -> TableIterator<
    'static,
    (
        name!(type, String),
        name!(namespace, Option<String>),
        name!(shard, Option<String>),
        name!(description, String),
        name!(details, Json),
        name!(repair, Option<String>),
    ),
> {
    let found = run(|| {
        with_options(&options.unwrap_or_default(), &table::CHECK_METADATA_CONSISTENCY, |options| {
            consistency::check(ns, options)
        })
    });
    TableIterator::new(found.into_iter().map(|Finding { kind, namespace, shard, description, details, repair }| {
        let details = Json::new(serde_json::Value::Object(details).to_string());
        (kind.to_owned(), namespace, shard, description, details, repair.map(|repair| repair.to_string()))
    }))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn chunk_load(
    _nulls: Option<NoNulls>,
    timeout_ms: default!(i32, "2500"),
) -> TableIterator<
    'static,
    (
        name!(namespace, Option<String>),
        name!(shard, String),
        name!(min, Option<Json>),
        name!(max, Option<Json>),
        name!(reads, f64),
        name!(writes, f64),
        name!(share, Option<f64>),
        name!(note, Option<String>),
        name!(min_key, Option<Vec<u8>>),
    ),
> {
    let rows = run(|| {
        check_router()?;
        status::load::of_chunks(time_limit(timeout_ms)?)
    });
    TableIterator::new(rows.into_iter().map(|LoadRow { namespace, shard, chunk, reads, writes, share, note }| {
        let (min, max, key) = chunk.map_or((None, None, None), |(min, max, key)| (Some(min), Some(max), Some(key)));
        (namespace, shard, min.map(Json::new), max.map(Json::new), reads, writes, share, note, key)
    }))
}

/// Returns how long to wait for the answers of shards.
fn time_limit(ms: i32) -> Result<Duration> {
    let limit = u64::try_from(ms).ok().filter(|ms| (1..=60_000).contains(ms)).map(Duration::from_millis);
    limit.ok_or_else(|| error!(Kind::BadValue, "timeout_ms must be from 1 to 60000, not {ms}"))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn list_orphaned_relations()
-> TableIterator<'static, (name!(shard, String), name!(relation, String), name!(documents, Option<i64>))> {
    let orphans = run(|| {
        check_router()?;
        status::orphans()
    });
    TableIterator::new(
        orphans.into_iter().map(|orphan| (orphan.shard, names::relation_name(orphan.relation), orphan.documents)),
    )
}

/// This function runs as the extension's owner, as other roles see less of PostgreSQL's statistics.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn node_health() -> String {
    health::of_this_node().unwrap_or_else(|e| e.raise())
}

/// The pattern of an unsharded collection is null.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, requires = ["schemas"])]
fn bound_json(pattern: Option<&str>, bound: Option<&[u8]>) -> Json {
    given!(bound);
    run(|| {
        let pattern = match pattern {
            Some(text) => KeyPattern::parse(&specification::parse(text)?)?,
            None => KeyPattern::unsharded(),
        };
        Ok(Json::new(pattern.bound_to_json(bound).to_string()))
    })
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn list_settings() -> TableIterator<
    'static,
    (name!(name, String), name!(value, String), name!(default, String), name!(description, String)),
> {
    let settings = settings::all().unwrap_or_else(|e| e.raise());
    TableIterator::new(settings.into_iter().map(|(setting, value)| {
        (setting.name.to_owned(), value, setting.default.to_owned(), setting.description.to_owned())
    }))
}

#[pg_extern(stable, parallel_unsafe, requires = ["catalog"])]
fn list_shards() -> TableIterator<
    'static,
    (
        name!(name, String),
        name!(server, Option<String>),
        name!(state, String),
        name!(max_size_mb, Option<i32>),
        name!(chunks, i64),
        name!(databases, i64),
    ),
> {
    let shards = run(inspect::shards);
    let rows = shards.into_iter().map(|shard| {
        let state = if shard.draining { "draining" } else { "active" };
        (shard.name, shard.server, state.to_owned(), shard.max_size_mb, shard.chunks, shard.databases)
    });
    TableIterator::new(rows)
}

#[pg_extern(stable, parallel_unsafe, requires = ["catalog"])]
fn list_indexes(
    _nulls: Option<NoNulls>,
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
    TableIterator::new(run(|| inspect::indexes(ns)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn index_stats(
    _nulls: Option<NoNulls>,
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
    TableIterator::new(run(|| {
        let row = |index: IndexStats| {
            let since = index.since.and_then(|since| TimestampWithTimeZone::try_from(since).ok());
            (index.shard, index.name, Json::new(index.keys_json), index.accesses, index.bytes, since)
        };
        Ok(inspect::index_stats(ns)?.into_iter().map(row).collect::<Vec<_>>())
    }))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
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
    TableIterator::new(run(|| {
        check_router()?;
        let row = |build: Progress| {
            let since = TimestampWithTimeZone::try_from(build.since).ok();
            let Progress { namespace, name, keys_json, shard, at_shard, .. } = build;
            let BuildProgress { phase, blocks_done: blocks, blocks_total: all, .. } = at_shard;
            let BuildProgress { tuples_done: documents, tuples_total: total, waits_for, .. } = at_shard;
            (namespace, name, Json::new(keys_json), shard, phase, blocks, all, documents, total, waits_for, since)
        };
        Ok(progress::of_all()?.into_iter().map(row).collect::<Vec<_>>())
    }))
}

extension_sql_file!("../../sql/index_usage.sql", name = "index_usage", requires = [index_stats]);
extension_sql_file!(
    "../../sql/views.sql",
    name = "views",
    requires = ["catalog", bound_json, list_settings, shard_health, chunk_load]
);
extension_sql_file!("../../sql/config.sql", name = "config", requires = ["views"]);
