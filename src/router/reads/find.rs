//! Reads documents: find and count.

use crate::catalog::cache;
use crate::catalog::collections::grants::{self, Level};
use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::router::config;
use crate::router::dispatch::reading;
use crate::router::execute::{self, Documents, Part};
use crate::router::fresh_map::read_with_fresh_map;
use crate::router::merged_rows::MergedRows;
use crate::router::sampling;
use crate::router::session;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::statement::NUMBER;
use docshard_core::routing::plan::{Allowed, Read};
use docshard_core::routing::request::options::{CountOptions, FindOptions};
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::KeyRanges;

/// Checks that the caller may read a collection, if it exists. Every role that has access to docshard may read the database `config`.
/// Errors: `InvalidNamespace`, `Unauthorized`.
pub fn check(namespace: &str) -> Result<()> {
    namespace::split(namespace)?;
    match cache::find(namespace)? {
        Some(collection) => grants::require(&collection, Level::Read).map(|_| ()),
        None => cache::require_access(),
    }
}

/// Errors: `NamespaceNotFound` if there is neither a collection nor a view of that name.
pub fn require_existing(namespace: &str) -> Result<()> {
    let exists = config::has(namespace) || cache::find(namespace)?.is_some() || cache::view(namespace)?.is_some();
    if exists { Ok(()) } else { Err(cache::not_found(namespace)) }
}

/// Finds documents. A collection that does not exist has none.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Documents> {
    read(namespace, query, Read::Find(options))
}

/// As [`find`], with what is observed of each shard.
pub fn find_observed(namespace: &str, query: &Query, options: &FindOptions) -> Result<(Documents, Vec<Part>)> {
    read_with_fresh_map(namespace, |collection| {
        let read = Read::Find(options);
        let Some(collection) = collection else {
            return Ok((Documents::of_streams(config::rows(namespace, query, read)?, u64::MAX), Vec::new()));
        };
        sampling::read(&collection, "find", || query.text());
        let search = session::counted_search(&collection, query)?;
        execute::unless_declined(Allowed::All(&session::declined()), |allowed| {
            execute::observed_documents(&collection, &read.plan(&search, allowed)?)
        })
    })
}

/// Reads the rows of documents, counts or values. A collection that does not exist has none; those of the database `config` are read
/// from the catalog.
pub fn read(namespace: &str, query: &Query, read: Read<'_>) -> Result<Documents> {
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return Ok(Documents::of_streams(config::rows(namespace, query, read)?, u64::MAX));
        };
        sampling::read(&collection, sampling::kind_of(&read), || query.text());
        let search = session::counted_search(&collection, query)?;
        execute::unless_declined(Allowed::All(&session::declined()), |allowed| {
            execute::documents(&collection, &read.plan(&search, allowed)?)
        })
    })
}

pub fn count(namespace: &str, query: &Query, options: &CountOptions) -> Result<i64> {
    let counted = read(namespace, query, Read::Count(options))?.into_rows().sum()?;
    let after_skip = counted.saturating_sub(i64::try_from(options.skip).unwrap_or(i64::MAX)).max(0);
    Ok(options.limit.map_or(after_skip, |limit| after_skip.min(i64::try_from(limit).unwrap_or(i64::MAX))))
}

/// Returns the number of documents according to PostgreSQL's statistics; they are counted if there are none yet.
pub fn estimated_count(namespace: &str) -> Result<i64> {
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return count(namespace, &Query::all()?, &CountOptions::default());
        };
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!(
            "SELECT CASE WHEN c.reltuples < 0 THEN (SELECT count(*) FROM {table}) ELSE c.reltuples::bigint END \
             FROM pg_catalog.pg_class c WHERE c.oid = '{table}'::regclass AND {check}",
            table = collection.table(),
            check = conditions.sql()
        );
        let statement = conditions.into_statement(sql, NUMBER);
        MergedRows::new(reading::read(&collection, &destinations, &statement)?, Order::None).sum()
    })
}
