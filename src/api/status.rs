//! The cluster at a glance, and the views.

use super::{given, run, with_options};
use crate::catalog::cluster::check_router;
use crate::catalog::settings;
use crate::operation::table;
use crate::ownership::health;
use crate::pg::datum::json::{self, Json};
use crate::pg::error::{Error, Result};
use crate::status;
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;
use pgrx::prelude::*;
use std::time::Duration;

/// The cluster as text: shards, balancer, databases, collections, and their chunks; all of these with `verbose`. Options: count,
/// which has documents and bytes counted at the shards; else they are estimated from statistics.
#[pg_extern(name = "status", volatile, parallel_unsafe, requires = ["catalog"])]
fn cluster_status(verbose: default!(bool, "false"), options: default!(Json, "'{}'")) -> String {
    run(|| {
        check_router()?;
        status::text(verbose, with_options(&options, &table::STATUS, |options| Ok(options.flag("count")))?)
    })
}

/// How a collection's documents and bytes are spread over the shards, one row a shard, estimated from statistics. Options: count,
/// which has them counted at the shards. What a shard that cannot be reached has is null.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of the SQL function")]
fn get_shard_distribution(
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
    let run = || -> Result<(Vec<status::Part>, bool)> {
        check_router()?;
        let count = with_options(&options, &table::GET_SHARD_DISTRIBUTION, |options| Ok(options.flag("count")))?;
        Ok((status::distribution(ns, count)?, !count))
    };
    let (rows, estimated) = run().unwrap_or_else(|e| e.raise());
    let row = move |row: status::Part| (row.shard, row.chunks, row.documents, row.bytes, row.percent, estimated);
    TableIterator::new(rows.into_iter().map(row))
}

/// How each shard is: a row a shard, all of them asked at once and for at most so many milliseconds. The view docshard.health
/// shows it.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of the SQL function")]
fn shard_health(
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
    ),
> {
    let run = || -> Result<Vec<status::health::Health>> {
        check_router()?;
        let limit = u64::try_from(timeout_ms).ok().filter(|ms| (1..=60_000).contains(ms)).ok_or_else(|| {
            Error::new(Kind::BadValue, format!("timeout_ms is a number from 1 to 60000, not {timeout_ms}"))
        })?;
        status::health::of_shards(Duration::from_millis(limit))
    };
    let rows = run().unwrap_or_else(|e| e.raise());
    TableIterator::new(rows.into_iter().map(|row| {
        let (reachable, error) = (row.error.is_none(), row.error);
        let node = row.node.unwrap_or_default();
        (
            row.shard,
            reachable,
            row.latency_ms,
            node.version,
            node.postgresql,
            node.timeline,
            node.standbys,
            node.sync_standbys,
            node.lag_bytes,
            node.replication.map(Json),
            node.oldest_in_doubt_s,
            node.free_connections,
            row.last_contact,
            error,
        )
    }))
}

/// What a node tells of itself, as JSON. It runs as the extension's owner, as others are shown less.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn node_health() -> String {
    health::of_this_node().unwrap_or_else(|e| e.raise())
}

/// A chunk's bound as a readable key document; the pattern of an unsharded collection is null.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, requires = ["schemas"])]
fn bound_json(pattern: Option<&str>, bound: Option<&[u8]>) -> Json {
    given!(bound);
    run(|| {
        let pattern = match pattern {
            Some(text) => KeyPattern::parse(&json::parse(text)?)?,
            None => KeyPattern::unsharded(),
        };
        Ok(Json(pattern.bound_to_json(bound).to_string()))
    })
}

/// Every setting: what the view docshard.settings shows.
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

extension_sql_file!(
    "../../sql/views.sql",
    name = "views",
    requires = ["catalog", bound_json, list_settings, shard_health]
);
extension_sql_file!("../../sql/config.sql", name = "config", requires = ["views"]);
