//! Reads documents: find and count.

use crate::catalog::cache;
use crate::catalog::collections::grants::{self, Level};
use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::router::config;
use crate::router::dispatch::reading;
use crate::router::execute::{self, Documents};
use crate::router::fresh_map::read_with_fresh_map;
use crate::router::session;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::routing::plan::statement::NUMBER;
use docshard_core::routing::plan::{self, Allowed};
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::KeyRanges;

/// Checks that the caller may read a collection, if it exists.
/// Errors: `InvalidNamespace`, `Unauthorized`.
pub fn check(namespace: &str) -> Result<()> {
    namespace::split(namespace)?;
    match cache::find(namespace)? {
        Some(collection) => grants::require(&collection, Level::Read).map(|_| ()),
        None => Ok(()),
    }
}

/// Errors: `NamespaceNotFound` if there is neither a collection nor a view of that name.
pub fn require_existing(namespace: &str) -> Result<()> {
    let exists = config::has(namespace) || cache::find(namespace)?.is_some() || cache::view(namespace)?.is_some();
    if exists { Ok(()) } else { Err(cache::not_found(namespace)) }
}

/// Finds documents. A collection that does not exist has none.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Documents> {
    if config::is_of(namespace) {
        return Ok(Documents::of_streams(config::rows(config::find(namespace, query, options)?)?, u64::MAX));
    }
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return Ok(Documents::of_streams(Vec::new(), 0)) };
        let search = session::search(&collection, query)?;
        let plan = plan::find(&search, options, Allowed::All(&session::declined()))?;
        if let Some(documents) = execute::documents(&collection, &plan)? {
            return Ok(documents);
        }
        let plan = plan::find(&search, options, Allowed::Planned)?;
        Ok(execute::documents(&collection, &plan)?.unwrap_or_else(|| Documents::of_streams(Vec::new(), 0)))
    })
}

pub fn count(namespace: &str, query: &Query, options: &CountOptions) -> Result<i64> {
    let counted = read_with_fresh_map(namespace, |collection| {
        if config::is_of(namespace) {
            return execute::sum(config::rows(config::count(namespace, query)?)?);
        }
        let Some(collection) = collection else { return Ok(0) };
        let plan = plan::count(&session::search(&collection, query)?, options)?;
        execute::sum(execute::rows(&collection, &plan)?.unwrap_or_default())
    })?;
    let after_skip = counted.saturating_sub(i64::try_from(options.skip).unwrap_or(i64::MAX)).max(0);
    Ok(options.limit.map_or(after_skip, |limit| after_skip.min(i64::try_from(limit).unwrap_or(i64::MAX))))
}

/// Returns the number of documents according to PostgreSQL's statistics; they are counted if there are none yet.
pub fn estimated_count(namespace: &str) -> Result<i64> {
    if config::is_of(namespace) {
        return count(namespace, &Query::all()?, &CountOptions::default());
    }
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return Ok(0) };
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!(
            "SELECT CASE WHEN c.reltuples < 0 THEN (SELECT count(*) FROM {table}) ELSE c.reltuples::bigint END \
             FROM pg_catalog.pg_class c WHERE c.oid = '{table}'::regclass AND {check}",
            table = collection.table(),
            check = conditions.sql()
        );
        let statement = conditions.into_statement(sql, NUMBER);
        execute::sum(reading::read(&collection, &destinations, &statement)?)
    })
}
