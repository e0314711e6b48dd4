//! The virtual database `config`: the catalog in the shapes of MongoDB's config servers, read-only, for every role that has access to
//! docshard.
//!
//! Its collections are views over the catalog (`sql/config.sql`), and a find is a SELECT with the same functions that
//! shards run for documents, so filters, projections and sorts mean the same, and PostgreSQL sorts and streams.

use super::rows::RowStream;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_router;
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

/// A collection of the database.
#[derive(Debug)]
pub struct CatalogView {
    pub name: &'static str,
    /// it has a column `ns` to filter by
    has_namespace: bool,
    /// the fields of its documents in MongoDB's order, separated by spaces
    pub fields: &'static str,
}

const fn view(name: &'static str, has_namespace: bool, fields: &'static str) -> CatalogView {
    CatalogView { name, has_namespace, fields }
}

pub const VIEWS: &[CatalogView] = &[
    view("actionlog", false, LOGGED),
    view("changelog", true, LOGGED),
    view("chunks", true, "_id uuid ns min max shard lastmod lastmodEpoch jumbo"),
    view(
        "collections",
        false,
        "_id lastmodEpoch lastmod timestamp uuid key unique noBalance maxChunkSizeBytes dropped unsplittable",
    ),
    view("databases", false, "_id primary partitioned"),
    view("locks", true, "_id state process who when why"),
    view("mongos", false, "_id mongoVersion docshardVersion ping up waiting"),
    view("settings", false, "_id value enabled mode stopped activeWindow"),
    view("shards", false, "_id host state tags draining maxSize addedAt"),
    view("tags", true, "_id ns min max tag"),
    view("version", false, "_id minCompatibleVersion currentVersion clusterId"),
];
/// The collections whose views a catalog has only after `ALTER EXTENSION docshard UPDATE` to 0.4.0.
const NEW: &[&str] = &["actionlog", "locks"];
const LOGGED: &str = "_id server shard clientAddr time what ns details";

/// The statement of a read; None if the catalog does not have the view yet.
pub fn statement(view: &CatalogView, query: &Query, read: Read<'_>) -> Result<Option<Statement>> {
    match read {
        Read::Find(options) => find(view, query, options),
        Read::Count(_) => count(view, query),
        Read::Distinct(field) => distinct(view, field, query),
    }
}

/// The rows of a statement.
pub fn rows(statement: &Statement) -> Result<RowStream> {
    let _snapshot = ActiveSnapshot::of_statement();
    Ok(RowStream::Local(spi::cursor::Cursor::open(&statement.sql, &borrowed(&statement.params))?))
}

/// The statement that returns the matching documents, in the order of the view unless a sort is given. None if the catalog does not have
/// the view yet.
fn find(view: &CatalogView, query: &Query, options: &FindOptions) -> Result<Option<Statement>> {
    if query.bounds.is_some() {
        bail!(Kind::NotImplemented, "min and max are not supported in the database config");
    }
    let mut params = Vec::new();
    let document = match &options.projection {
        Some(projection) => sql::project("t.doc", param(&mut params, Parameter::Text(projection.clone()))),
        None => "t.doc".to_owned(),
    };
    let Some(from) = source(view, query, &mut params)? else { return Ok(None) };
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
fn distinct(view: &CatalogView, field: &str, query: &Query) -> Result<Option<Statement>> {
    let environment = query.environment.json().map(|json| json.to_string()).unwrap_or_default();
    let mut params = vec![Parameter::Text(field.to_owned()), Parameter::Text(environment)];
    let Some(from) = source(view, query, &mut params)? else { return Ok(None) };
    let sql = format!(
        "SELECT DISTINCT ON (v.key) v.value, v.key FROM (SELECT t.doc {from}) AS d, \
                {} AS v ORDER BY v.key, v.value",
        sql::distinct_values("d.doc", "$1", "$2")
    );
    Ok(Some(Statement { sql, params, columns: DOCUMENT_AND_KEY }))
}

/// The statement that returns the number of matching documents and the sum of their sizes in bytes. None as for [`find`].
fn count(view: &CatalogView, query: &Query) -> Result<Option<Statement>> {
    let mut params = Vec::new();
    let Some(from) = source(view, query, &mut params)? else { return Ok(None) };
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

fn source(view: &CatalogView, query: &Query, params: &mut Vec<Parameter>) -> Result<Option<String>> {
    cache::require_access()?;
    check_router()?;
    if NEW.contains(&view.name) && !exists(view.name)? {
        return Ok(None);
    }
    let mut from = format!("FROM {} t WHERE true", sql::config_view(view.name));
    if view.has_namespace
        && let Some(Value::String(ns)) = query.filter.equality_of("ns")
    {
        from += &format!(" AND t.ns = {}", param(params, Parameter::Text(ns)));
    }
    if !query.filter.is_empty() {
        from += &format!(" AND {}", sql::matches("t.doc", param(params, Parameter::Text(query.text()))));
    }
    Ok(Some(from))
}
