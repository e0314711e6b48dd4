//! Functions that change one document and return it.

use crate::catalog;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::router::find_and_modify::{self as router, FindAndModify, Returned};
use crate::router::modification::Modification;
use crate::router::options::Options;
use crate::router::query::Query;
use docshard_core::error::Kind;
use docshard_core::query::update::Style;
use pgrx::prelude::*;

/// What the drivers' three functions have in common; `update` is the update and its style, None deletes.
fn find_one_and(
    ns: &str,
    filter: &Json,
    update: Option<(&Json, Style)>,
    options: &Json,
    operation: &str,
) -> Result<Option<RawJsonb>> {
    catalog::namespace::split(ns)?;
    let known: &[&str] = match update {
        None => &["sort", "projection", "hint", "collation", "let", "comment"],
        Some((_, Style::Replacement)) => &[
            "sort",
            "projection",
            "upsert",
            "returnDocument",
            "returnNewDocument",
            "hint",
            "collation",
            "let",
            "comment",
        ],
        Some(_) => &[
            "sort",
            "projection",
            "upsert",
            "returnDocument",
            "returnNewDocument",
            "arrayFilters",
            "hint",
            "collation",
            "let",
            "comment",
        ],
    };
    let json = options.parse()?;
    let options = Options::of(&json, operation, known)?;
    let projected = options.get("projection").map(serde_json::Value::to_string).unwrap_or_default();
    let setting = options.setting(ns, &[&projected])?;
    let query = Query::parse_in(&filter.0, setting.as_ref())?.hinted(options.get("hint"))?;
    let array_filters = options.get("arrayFilters").map(ToString::to_string);
    let modification = update
        .map(|(text, style)| Modification::parse(&text.0, style, array_filters.as_deref(), &query))
        .transpose()?;
    let found = router::find_and_modify(
        ns,
        &FindAndModify {
            query: &query,
            modification: modification.as_deref(),
            sort: options.sort("sort", setting.as_ref())?,
            projection: router::projection(options.get("projection"), &query)?,
            returned: returned(&options)?,
            upsert: options.boolean("upsert")?.unwrap_or(false),
        },
    )?;
    Ok(found.document.map(|document| RawJsonb::from_bytes(&document)))
}

/// `returnDocument`, as the drivers have it, or mongosh's `returnNewDocument`.
fn returned(options: &Options<'_>) -> Result<Returned> {
    match (options.text("returnDocument")?, options.boolean("returnNewDocument")?) {
        (Some("before"), _) => Ok(Returned::Before),
        (Some("after"), _) => Ok(Returned::After),
        (Some(other), _) => Err(Error::new(
            Kind::BadValue,
            format!("option \"returnDocument\" must be \"before\" or \"after\", not \"{other}\""),
        )),
        (None, Some(true)) => Ok(Returned::After),
        (None, _) => Ok(Returned::Before),
    }
}

/// Updates one document, named by the full shard key or by `_id`, and returns it as it was, or as it is; null if there is
/// none. Options: sort, projection, upsert, returnDocument ("before", "after"), arrayFilters.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_update(ns: &str, filter: Json, update: Json, options: default!(Json, "'{}'")) -> Option<RawJsonb> {
    find_one_and(ns, &filter, Some((&update, Style::Operators)), &options, "find_one_and_update")
        .unwrap_or_else(|e| e.raise())
}

/// Replaces one document, named by the full shard key or by `_id`, and returns it as it was, or as it is; null if there is
/// none. Options: sort, projection, upsert, returnDocument ("before", "after").
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_replace(
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    find_one_and(ns, &filter, Some((&replacement, Style::Replacement)), &options, "find_one_and_replace")
        .unwrap_or_else(|e| e.raise())
}

/// Deletes one document, named by the full shard key or by `_id`, and returns it; null if there is none. Options: sort,
/// projection.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_delete(ns: &str, filter: Json, options: default!(Json, "'{}'")) -> Option<RawJsonb> {
    find_one_and(ns, &filter, None, &options, "find_one_and_delete").unwrap_or_else(|e| e.raise())
}

/// The shell's `findAndModify`: `{"query": …, "sort": …, "update": … or "remove": true, "new": …, "fields": …, "upsert": …,
/// "arrayFilters": …}`. Returns the document, or null.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_and_modify(ns: &str, spec: Json) -> Option<RawJsonb> {
    let run = || -> Result<Option<RawJsonb>> {
        catalog::namespace::split(ns)?;
        let json = spec.parse()?;
        let known = [
            "query",
            "sort",
            "remove",
            "update",
            "new",
            "fields",
            "upsert",
            "arrayFilters",
            "hint",
            "collation",
            "let",
            "comment",
        ];
        let options = Options::of(&json, "find_and_modify", &known)?;
        let flag = |name: &str| -> Result<bool> { Ok(options.boolean(name)?.unwrap_or(false)) };
        let (remove, new, upsert) = (flag("remove")?, flag("new")?, flag("upsert")?);
        for name in ["query", "sort", "fields"] {
            if let Some(other) = options.get(name).filter(|json| !json.is_object()) {
                let message = format!("BSON field 'findAndModify.{name}' must be an object, not {other}");
                return Err(Error::new(Kind::TypeMismatch, message));
            }
        }
        let update = options.get("update");
        let conflict = match update {
            Some(_) if remove => "Cannot specify both an update and remove=true",
            None if !remove => "Either an update or remove=true must be specified",
            None if new => "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
            None if upsert => "Cannot specify both upsert=true and remove=true",
            None if options.get("arrayFilters").is_some() => "Cannot specify arrayFilters and remove=true",
            _ => "",
        };
        if !conflict.is_empty() {
            return Err(Error::new(Kind::FailedToParse, conflict));
        }
        let projected = options.get("fields").map(serde_json::Value::to_string).unwrap_or_default();
        let setting = options.setting(ns, &[&projected])?;
        let filter = options.get("query").map_or_else(|| "{}".to_owned(), ToString::to_string);
        let query = Query::parse_in(&filter, setting.as_ref())?.hinted(options.get("hint"))?;
        let array_filters = options.get("arrayFilters").map(ToString::to_string);
        let modification = update
            .map(|update| Modification::parse(&update.to_string(), Style::Either, array_filters.as_deref(), &query))
            .transpose()?;
        let found = router::find_and_modify(
            ns,
            &FindAndModify {
                query: &query,
                modification: modification.as_deref(),
                sort: options.sort("sort", setting.as_ref())?,
                projection: router::projection(options.get("fields"), &query)?,
                returned: if new { Returned::After } else { Returned::Before },
                upsert,
            },
        )?;
        Ok(found.document.map(|document| RawJsonb::from_bytes(&document)))
    };
    run().unwrap_or_else(|e| e.raise())
}
