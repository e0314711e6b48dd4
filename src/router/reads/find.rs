//! Reads documents: find and count.

use crate::catalog::cache;
use crate::catalog::collections::grants::{self, Level};
use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::router::dispatch::reading;
use crate::router::execute::{Documents, Part};
use crate::router::fresh_map::read_with_fresh_map;
use crate::router::merged_rows::MergedRows;
use crate::router::source::{self, Source};
use docshard_core::routing::plan::Read;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::statement::NUMBER;
use docshard_core::routing::protocol::sql;
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
    let exists = Source::of(namespace)?.exists() || cache::view(namespace)?.is_some();
    if exists { Ok(()) } else { Err(cache::not_found(namespace)) }
}

/// Finds documents. Empty for a collection that does not exist.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Documents> {
    source::read(namespace, query, Read::Find(options))
}

/// Like [`find`], with the measurements of each shard.
pub fn find_observed(namespace: &str, query: &Query, options: &FindOptions) -> Result<(Documents, Vec<Part>)> {
    source::read_observed(namespace, query, Read::Find(options))
}

pub fn count(namespace: &str, query: &Query, options: &CountOptions) -> Result<i64> {
    limited(source::read(namespace, query, Read::Count(options))?, options)
}

/// The sum of the shards' counts, after the options' skip and limit.
pub(super) fn limited(counts: Documents, options: &CountOptions) -> Result<i64> {
    let counted = counts.into_rows().sum()?;
    let after_skip = counted.saturating_sub(i64::try_from(options.skip).unwrap_or(i64::MAX)).max(0);
    Ok(options.limit.map_or(after_skip, |limit| after_skip.min(i64::try_from(limit).unwrap_or(i64::MAX))))
}

/// Returns the number of documents according to PostgreSQL's statistics, scaled to the tables' present sizes. A shard that has no
/// statistics yet counts its documents.
pub fn estimated_count(namespace: &str) -> Result<i64> {
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return count(namespace, &Query::all()?, &CountOptions::default());
        };
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!(
            "SELECT coalesce({estimated}, (SELECT count(*) FROM {table})) \
             FROM pg_catalog.pg_class c WHERE c.oid = '{table}'::regclass AND {check}",
            estimated = sql::estimated_documents("c"),
            table = collection.table(),
            check = conditions.sql()
        );
        let statement = conditions.into_statement(sql, NUMBER);
        MergedRows::new(reading::read(&collection, &destinations, &statement)?, Order::None).sum()
    })
}
