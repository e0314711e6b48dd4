//! The virtual database `config`: the catalog in the shapes of MongoDB's config servers, read-only, for every role that has access to docshard.
//!
//! Its collections are views over the catalog (`sql/config.sql`), and a find is a SELECT with the same functions that
//! shards run for documents, so filters, projections and sorts mean the same, and PostgreSQL sorts and streams.

use super::rows::RowStream;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::plan::Read;
use docshard_core::routing::plan::statement::{DOCUMENT, DOCUMENT_AND_KEY, Statement, TWO_NUMBERS, borrowed};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::options::FindOptions;
use docshard_core::routing::request::query::Query;
use docshard_core::sql::param::Param;
use docshard_core::values::document::value::Value;

pub const DATABASE: &str = namespace::CONFIG;

/// The collections, whether the view has a column `ns` to filter by, and the fields in MongoDB's order.
const COLLECTIONS: &[(&str, bool, &str)] = &[
    ("actionlog", false, LOGGED),
    ("changelog", true, LOGGED),
    ("chunks", true, "_id uuid ns min max shard lastmod lastmodEpoch jumbo"),
    ("collections", false, "_id lastmodEpoch lastmod timestamp uuid key unique noBalance maxChunkSizeBytes dropped"),
    ("databases", false, "_id primary partitioned"),
    ("locks", true, "_id state process who when why"),
    ("mongos", false, "_id mongoVersion docshardVersion ping up waiting"),
    ("settings", false, "_id value enabled mode stopped activeWindow"),
    ("shards", false, "_id host state tags draining maxSize addedAt"),
    ("tags", true, "_id ns min max tag"),
    ("version", false, "_id minCompatibleVersion currentVersion clusterId"),
];
/// The collections whose views a catalog has only after `ALTER EXTENSION docshard UPDATE` to 0.4.0.
const NEW: &[&str] = &["actionlog", "locks"];
const LOGGED: &str = "_id server shard clientAddr time what ns details";

pub fn collections() -> impl Iterator<Item = &'static str> {
    COLLECTIONS.iter().map(|(name, ..)| *name)
}

/// The fields of a collection's documents in MongoDB's order, separated by spaces; None for other namespaces.
pub fn fields(namespace: &str) -> Option<&'static str> {
    let (database, name) = namespace.split_once('.')?;
    view(name).filter(|_| database == DATABASE).map(|(_, _, fields)| *fields)
}

/// True for a collection that exists.
pub fn has(namespace: &str) -> bool {
    namespace.split_once('.').is_some_and(|(database, name)| database == DATABASE && view(name).is_some())
}

fn view(name: &str) -> Option<&'static (&'static str, bool, &'static str)> {
    COLLECTIONS.iter().find(|(known, ..)| *known == name)
}

/// The statement of a read; None if this is no collection of the database, or the catalog does not have its view yet.
pub fn statement(namespace: &str, query: &Query, read: Read<'_>) -> Result<Option<Statement>> {
    if !has(namespace) {
        return Ok(None);
    }
    match read {
        Read::Find(options) => find(namespace, query, options),
        Read::Count(_) => count(namespace, query),
        Read::Distinct(field) => distinct(namespace, field, query),
    }
}

/// The rows of a read; empty where [`statement`] returns None.
pub fn rows(namespace: &str, query: &Query, read: Read<'_>) -> Result<Vec<RowStream>> {
    let Some(Statement { sql, params, .. }) = statement(namespace, query, read)? else { return Ok(Vec::new()) };
    let _snapshot = ActiveSnapshot::of_statement();
    Ok(vec![RowStream::Local(spi::cursor::Cursor::open(&sql, &borrowed(&params))?)])
}

/// The statement that returns the matching documents, in the order of the view unless a sort is given. None if the catalog does not have
/// the view yet.
fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Option<Statement>> {
    if query.bounds.is_some() {
        bail!(Kind::NotImplemented, "min and max are not supported in the database config");
    }
    let mut params = Vec::new();
    let document = match &options.projection {
        Some(projection) => sql::project("t.doc", param(&mut params, Parameter::Text(projection.clone()))),
        None => "t.doc".to_owned(),
    };
    let Some(from) = source(namespace, query, &mut params)? else { return Ok(None) };
    let order = match &options.sort {
        Some((_, text)) => sql::sort_key("t.doc", param(&mut params, Parameter::Text(text.clone()))),
        None => "t.position".to_owned(),
    };
    let mut sql = format!("SELECT {} {from} ORDER BY {order}, t.position", sql::pack(document));
    if let Some(limit) = options.limit {
        sql += &format!(" LIMIT {}", limit.min(i64::MAX as u64));
    }
    if options.skip > 0 {
        sql += &format!(" OFFSET {}", options.skip.min(i64::MAX as u64));
    }
    Ok(Some(Statement { sql, params, columns: DOCUMENT }))
}

/// The statement that returns the distinct values of a field with their keys, in the order of the keys. None as for [`find`].
fn distinct(namespace: &str, field: &str, query: &Query) -> Result<Option<Statement>> {
    let environment = query.environment.json().map(|json| json.to_string()).unwrap_or_default();
    let mut params = vec![Parameter::Text(field.to_owned()), Parameter::Text(environment)];
    let Some(from) = source(namespace, query, &mut params)? else { return Ok(None) };
    let sql = format!(
        "SELECT DISTINCT ON (v.key) v.value, v.key FROM (SELECT t.doc {from}) AS d, \
                {} AS v ORDER BY v.key, v.value",
        sql::distinct_values("d.doc", "$1", "$2")
    );
    Ok(Some(Statement { sql, params, columns: DOCUMENT_AND_KEY }))
}

/// The statement that returns the number of matching documents and the sum of their sizes in bytes. None as for [`find`].
fn count(namespace: &str, query: &Query) -> Result<Option<Statement>> {
    let mut params = Vec::new();
    let Some(from) = source(namespace, query, &mut params)? else { return Ok(None) };
    let bytes = format!("pg_catalog.sum(pg_catalog.octet_length({}))", sql::pack("t.doc"));
    let sql = format!("SELECT pg_catalog.count(*), coalesce({bytes}, 0)::int8 {from}");
    Ok(Some(Statement { sql, params, columns: TWO_NUMBERS }))
}

fn param(params: &mut Vec<Parameter>, value: Parameter) -> String {
    params.push(value);
    format!("${}", params.len())
}

fn exists(name: &str) -> Result<bool> {
    let sql = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
    Ok(spi::query(sql, &[Param::Text(&sql::config_view(name))])?.first().is_some_and(|row| row.bool(0)))
}

fn source(namespace: &str, query: &Query, params: &mut Vec<Parameter>) -> Result<Option<String>> {
    cache::require_access()?;
    check_router()?;
    let name = namespace.split_once('.').map_or("", |(_, name)| name);
    let Some((name, has_namespace, _)) = view(name) else { return Ok(None) };
    if NEW.contains(name) && !exists(name)? {
        return Ok(None);
    }
    let mut from = format!("FROM {} t WHERE true", sql::config_view(name));
    if *has_namespace && let Some(Value::String(ns)) = query.filter.equality_of("ns") {
        from += &format!(" AND t.ns = {}", param(params, Parameter::Text(ns)));
    }
    if !query.filter.is_empty() {
        from += &format!(" AND {}", sql::matches("t.doc", param(params, Parameter::Text(query.text()))));
    }
    Ok(Some(from))
}
