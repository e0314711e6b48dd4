//! The cluster at a glance, and the views.

use super::given;
use crate::catalog::settings;
use crate::catalog::shards::check_router;
use crate::pg::error::Result;
use crate::pg::json::{self, Json};
use crate::status;
use docshard_core::key::KeyPattern;
use pgrx::prelude::*;

/// The cluster as text: shards, balancer, databases, collections, and their chunks; all of these with `verbose`.
#[pg_extern(name = "status", volatile, parallel_unsafe, requires = ["catalog"])]
fn cluster_status(verbose: default!(bool, "false")) -> String {
    check_router().and_then(|()| status::text(verbose)).unwrap_or_else(|e| e.raise())
}

/// How a collection's documents and bytes are spread over the shards, one row a shard, measured at the shards.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn get_shard_distribution(
    ns: &str,
) -> TableIterator<
    'static,
    (name!(shard, String), name!(chunks, i64), name!(documents, i64), name!(bytes, i64), name!(percent, f64)),
> {
    let rows = check_router().and_then(|()| status::distribution(ns)).unwrap_or_else(|e| e.raise());
    TableIterator::new(rows.into_iter().map(|row| (row.shard, row.chunks, row.documents, row.bytes, row.percent)))
}

/// A chunk's bound as a readable key document; the pattern of an unsharded collection is null.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, requires = ["schemas"])]
fn bound_json(pattern: Option<&str>, bound: Option<&[u8]>) -> Json {
    given!(bound);
    let run = || -> Result<Json> {
        let pattern = match pattern {
            Some(text) => KeyPattern::parse(&json::parse(text)?)?,
            None => KeyPattern::unsharded(),
        };
        Ok(Json(pattern.bound_to_json(bound).to_string()))
    };
    run().unwrap_or_else(|e| e.raise())
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

extension_sql_file!("../../sql/views.sql", name = "views", requires = ["catalog", bound_json, list_settings]);
extension_sql_file!("../../sql/config.sql", name = "config", requires = ["views"]);
