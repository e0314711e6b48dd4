//! The virtual database `config`: the catalog in the shapes of MongoDB's config servers, read-only.
//!
//! Its collections are views over the catalog (`sql/config.sql`), and a find is a SELECT with the same functions that
//! shards run for documents, so filters, projections and sorts mean the same, and PostgreSQL sorts and streams.

use super::options::FindOptions;
use super::query::Query;
use super::rows::RowStream;
use super::statement::{Parameter, borrowed};
use crate::catalog::cluster::check_router;
use crate::catalog::namespace;
use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::protocol::sql;
use docshard_core::values::document::value::Value;

pub const DATABASE: &str = namespace::CONFIG;

/// The collections, and whether the view has a column `ns` to filter by.
const COLLECTIONS: &[(&str, bool)] = &[
    ("changelog", true),
    ("chunks", true),
    ("collections", false),
    ("databases", false),
    ("mongos", false),
    ("settings", false),
    ("shards", false),
    ("tags", true),
    ("version", false),
];

pub fn collections() -> impl Iterator<Item = &'static str> {
    COLLECTIONS.iter().map(|(name, _)| *name)
}

/// Also true for a collection that does not exist.
pub fn is_of(namespace: &str) -> bool {
    namespace.split_once('.').is_some_and(|(database, _)| database == DATABASE)
}

/// Returns the matching documents in the order of the view unless a sort is given; none if the collection does not
/// exist.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Vec<RowStream>> {
    let mut params = Vec::new();
    let mut param = |value: Parameter| {
        params.push(value);
        format!("${}", params.len())
    };
    let document = match &options.projection {
        Some(projection) => sql::project("t.doc", param(Parameter::Text(projection.clone()))),
        None => "t.doc".to_owned(),
    };
    let Some(from) = source(namespace, query, &mut param)? else { return Ok(Vec::new()) };
    let order = match &options.sort {
        Some((_, text)) => sql::sort_key("t.doc", param(Parameter::Text(text.clone()))),
        None => "t.position".to_owned(),
    };
    let mut sql = format!("SELECT {} {from} ORDER BY {order}, t.position", sql::pack(document));
    if let Some(limit) = options.limit {
        sql += &format!(" LIMIT {}", limit.min(i64::MAX as u64));
    }
    if options.skip > 0 {
        sql += &format!(" OFFSET {}", options.skip.min(i64::MAX as u64));
    }
    let _snapshot = ActiveSnapshot::of_statement();
    Ok(vec![RowStream::Local(spi::cursor::Cursor::open(&sql, &borrowed(&params))?)])
}

/// Returns the distinct values of a field with their keys, in the order of the keys.
pub fn distinct(namespace: &str, field: &str, query: &Query) -> Result<Vec<RowStream>> {
    let setting = query.setting.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut params = vec![Parameter::Text(field.to_owned()), Parameter::Text(setting)];
    let mut param = |value: Parameter| {
        params.push(value);
        format!("${}", params.len())
    };
    let Some(from) = source(namespace, query, &mut param)? else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT DISTINCT ON (v.key) v.value, v.key FROM (SELECT t.doc {from}) AS d, \
                {} AS v ORDER BY v.key, v.value",
        sql::distinct_values("d.doc", "$1", "$2")
    );
    let _snapshot = ActiveSnapshot::of_statement();
    Ok(vec![RowStream::Local(spi::cursor::Cursor::open(&sql, &borrowed(&params))?)])
}

pub fn count(namespace: &str, query: &Query) -> Result<i64> {
    let mut params = Vec::new();
    let mut param = |value: Parameter| {
        params.push(value);
        format!("${}", params.len())
    };
    let Some(from) = source(namespace, query, &mut param)? else { return Ok(0) };
    let rows = spi::query(&format!("SELECT pg_catalog.count(*) {from}"), &borrowed(&params))?;
    Ok(rows.first().map_or(0, |row| row.i64(0)))
}

fn source(namespace: &str, query: &Query, param: &mut impl FnMut(Parameter) -> String) -> Result<Option<String>> {
    check_router()?;
    let name = namespace.split_once('.').map_or("", |(_, name)| name);
    let Some((name, has_namespace)) = COLLECTIONS.iter().find(|(known, _)| *known == name) else { return Ok(None) };
    let mut from = format!("FROM {} t WHERE true", sql::config_view(name));
    if *has_namespace && let Some(Value::String(ns)) = query.filter.equality_of("ns") {
        from += &format!(" AND t.ns = {}", param(Parameter::Text(ns)));
    }
    if !query.filter.is_empty() {
        from += &format!(" AND {}", sql::matches("t.doc", param(Parameter::Text(query.text.clone()))));
    }
    Ok(Some(from))
}
