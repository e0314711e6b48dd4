//! Whether a collection is in order.

use super::{answer, with_options};
use crate::catalog::cluster::check_router;
use crate::catalog::namespace;
use crate::operation::table;
use crate::ownership::inspect;
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::protocol::documents::InspectDocuments;
use crate::router;
use docshard_core::error::Kind;
use pgrx::datum::Array;
use pgrx::prelude::*;

/// How many problems of each shard are told.
const LIMIT: i64 = 100;

/// Reads every document of a collection on every shard: whether it is one, whether its keys are its own, whether its shard
/// owns it. Options: limit (100), how many problems of each shard are told.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn check_collection(ns: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| {
        check_router()?;
        namespace::split(ns)?;
        let limit = with_options(&options, &table::CHECK_COLLECTION, |options| options.integer("limit"))?;
        let limit = limit.unwrap_or(LIMIT);
        let limit = u32::try_from(limit)
            .ok()
            .filter(|limit| *limit <= 10_000)
            .ok_or_else(|| Error::new(Kind::BadValue, format!("limit is a number from 0 to 10000, not {limit}")))?;
        router::inspect::collection(ns, limit as usize)
    })
}

/// What a shard finds of it, as JSON; `owned` are the bounds of its ranges: lo, hi, lo, hi …, of which an empty hi is none.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn inspect_documents(
    collection: i32,
    token: i64,
    version: i64,
    key: &str,
    owned: Array<'_, &[u8]>,
    most: i32,
) -> String {
    let run = || -> Result<String> {
        let owned = owned.iter().flatten().map(Into::into).collect();
        Ok(inspect::inspect(&InspectDocuments { collection, token, version, key: key.into(), owned, most })?
            .to_string())
    };
    run().unwrap_or_else(|e| e.raise())
}
