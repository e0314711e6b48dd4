//! Documents: insert, find, count, update, delete.

use crate::command::failure;
use crate::command::write::insert_each;
use crate::pg::client::sole_call;
use crate::pg::client::text_output;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::router::by_key;
use crate::router::change::{self, Change, Updated};
use crate::router::execute;
use crate::router::insert::{self, Storable};
use crate::router::modification::Modification;
use crate::router::options::{CountOptions, FindOptions, Options};
use crate::router::query::Query;
use crate::router::read;
use crate::{catalog, router};
use docshard_core::error::Kind;
use docshard_core::query::update::Style;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use pgrx::prelude::*;
use std::rc::Rc;

/// A result document as drivers know it.
fn result<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Result<RawJsonb> {
    let all = std::iter::once(("acknowledged", Value::Bool(true))).chain(fields);
    let parts = all.map(|(name, value)| (name.into(), Part::Owned(value))).collect();
    Ok(RawJsonb::from_bytes(&write::document(&Part::Object(parts))?))
}

fn number(n: i64) -> Value {
    Value::Number(Number::Int(n))
}

/// Inserts one document; an `_id` is made where it is missing.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_one(ns: &str, doc: RawJsonb, options: default!(Json, "'{}'"), fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    let _call = sole_call::Call::of(fcinfo);
    let run = || -> Result<RawJsonb> {
        if options.0 != "{}" {
            Options::of(&options.parse()?, "insert_one", &["comment"])?;
        }
        let mut document = Some(Storable::new(doc.bytes())?);
        let inserted = insert::insert(ns, &mut || Ok(document.take()))?;
        let id = inserted.into_iter().next().map_or(Value::Null, |document| document.id);
        result([("insertedId", id)])
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Inserts many documents, a batch a shard. Options: ordered (default true). With `ordered: false` documents that are
/// refused, or whose key is taken, are left out and reported in `writeErrors`; otherwise the first of them fails the
/// statement.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_many(ns: &str, docs: pgrx::Array<'_, RawJsonb>, options: default!(Json, "'{}'")) -> RawJsonb {
    let run = || -> Result<RawJsonb> {
        let json = options.parse()?;
        let ordered = Options::of(&json, "insert_many", &["ordered", "comment"])?.boolean("ordered")?.unwrap_or(true);
        if docs.is_empty() {
            return Err(Error::new(
                Kind::InvalidLength,
                "Write batch sizes must be between 1 and 100000. Got 0 operations.",
            ));
        }
        let mut docs = docs.iter().enumerate().map(|(index, doc)| -> Result<(usize, RawJsonb)> {
            Ok((index, doc.ok_or_else(|| Error::null(format!("document {index} is null")))?))
        });
        if !ordered {
            return insert_unordered(ns, docs);
        }
        let documents = insert::insert(ns, &mut || {
            let Some((index, doc)) = docs.next().transpose()? else { return Ok(None) };
            Storable::new(doc.bytes())
                .map(Some)
                .map_err(|e| Error { message: format!("document {index}: {}", e.message), ..e })
        })?;
        let inserted = documents.len() as i64;
        let ids = documents.into_iter().map(|document| document.id).collect();
        result([("insertedCount", number(inserted)), ("insertedIds", Value::Array(ids))])
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Inserts what can be; the others are reported.
fn insert_unordered(ns: &str, docs: impl Iterator<Item = Result<(usize, RawJsonb)>>) -> Result<RawJsonb> {
    let mut documents = Vec::new();
    let mut positions = Vec::new();
    let mut errors: Vec<(usize, Error)> = Vec::new();
    for doc in docs {
        let (index, doc) = doc?;
        match Storable::new(doc.bytes()) {
            Ok(document) => {
                documents.push(document);
                positions.push(index);
            }
            Err(error) => errors.push((index, error)),
        }
    }
    let mut failed = Vec::new();
    let inserted = insert_each(ns, &documents, false, &mut failed)?;
    failed.sort_unstable_by_key(|(at, _)| *at);
    let ids = documents
        .into_iter()
        .enumerate()
        .filter(|(at, _)| failed.binary_search_by_key(at, |(at, _)| *at).is_err())
        .map(|(_, document)| document.id)
        .collect();
    let mut fields = vec![("insertedCount", number(inserted)), ("insertedIds", Value::Array(ids))];
    errors.extend(failed.into_iter().map(|(at, error)| (positions[at], error)));
    errors.sort_unstable_by_key(|(index, _)| *index);
    if !errors.is_empty() {
        let errors = errors.iter().map(|(index, error)| write_error(*index, error));
        fields.push(("writeErrors", Value::Array(errors.collect())));
    }
    result(fields)
}

/// An element of `writeErrors`.
pub fn write_error(index: usize, error: &Error) -> Value {
    let mut fields = vec![
        ("index".to_owned(), number(index as i64)),
        ("code".to_owned(), number(failure::code(error).0)),
        ("errmsg".to_owned(), Value::String(error.message.clone())),
    ];
    fields.extend(error.duplicate_fields());
    Value::Object(fields)
}

/// Inserts the documents that a query returns in its first column, jsonb or what casts to it, without holding them all in memory.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_select(ns: &str, query: &str) -> RawJsonb {
    let run = || -> Result<RawJsonb> {
        const BATCH: usize = 2000;
        catalog::namespace::split(ns)?;
        let snapshot = ActiveSnapshot::of_statement();
        // The cast sees to it that what comes is jsonb, whatever the query has.
        let query = query.trim_end().trim_end_matches(';');
        let documents = format!("SELECT documents.doc::pg_catalog.jsonb FROM (\n{query}\n) AS documents (doc)");
        let mut rows = spi::Cursor::open(&documents, &[])?;
        drop(snapshot);
        let mut inserted = 0;
        loop {
            // All of a batch is read before the first of it is sent, as the query may send things to shards itself.
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some(row) = rows.next_row()?
            {
                batch.push(row);
            }
            if batch.is_empty() {
                return result([("insertedCount", number(inserted))]);
            }
            let mut batch = batch.into_iter();
            let documents = insert::insert(ns, &mut || {
                let Some(row) = batch.next() else { return Ok(None) };
                let bytes = row.get(0).ok_or_else(|| Error::null("a document is null"))?;
                Storable::new(bytes).map(Some)
            })?;
            inserted += documents.len() as i64;
        }
    };
    run().unwrap_or_else(|e| e.raise())
}

fn find_parts(ns: &str, filter: &Json, options: &Json, operation: &'static str) -> Result<(Query, Rc<FindOptions>)> {
    catalog::namespace::split(ns)?;
    let options = FindOptions::of_call(ns, &options.0, operation)?;
    Ok((Query::of_find(&filter.0, &options)?, options))
}

/// The documents that match. Options: sort, projection, skip, limit, hint, min, max, collation, let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find(
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> SetOfIterator<'static, RawJsonb> {
    text_output::take_over(fcinfo);
    let run = || -> Result<execute::Documents> {
        let (query, options) = find_parts(ns, &filter, &options, "find")?;
        read::find(ns, &query, &options)
    };
    let mut documents = run().unwrap_or_else(|e| e.raise());
    SetOfIterator::new(std::iter::from_fn(move || documents.next_document().unwrap_or_else(|e| e.raise())))
}

/// The first document that matches, or null. Options: sort, projection, skip, hint, min, max, collation, let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one(
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<RawJsonb> {
    text_output::take_over(fcinfo);
    let run = || -> Result<Option<RawJsonb>> {
        if options.0 == "{}"
            && let Some(found) = by_key::find_one(ns, &filter.0)?
        {
            return Ok(found);
        }
        let (query, options) = find_parts(ns, &filter, &options, "find_one")?;
        read::find(ns, &query, &options)?.next_document()
    };
    run().unwrap_or_else(|e| e.raise())
}

/// How many documents match, exactly. Options: skip, limit, hint, collation, let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn count_documents(ns: &str, filter: default!(Json, "'{}'"), options: default!(Json, "'{}'")) -> i64 {
    let run = || -> Result<i64> {
        catalog::namespace::split(ns)?;
        let options = CountOptions::parse(ns, &options.parse()?)?;
        let query = Query::parse_in(&filter.0, options.setting.as_ref())?.hinted(options.hint.as_ref())?;
        read::count(ns, &query, &options)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// The values that a field has in the documents that match, each once, in order. Arrays give their elements. Options:
/// hint, collation, let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn distinct(
    ns: &str,
    field: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
) -> SetOfIterator<'static, RawJsonb> {
    let run = || -> Result<router::distinct::Values> {
        catalog::namespace::split(ns)?;
        let options = options.parse()?;
        let options = Options::of(&options, "distinct", &["hint", "collation", "let", "comment"])?;
        let setting = options.setting(ns, &[&filter.0])?;
        let query = Query::parse_in(&filter.0, setting.as_ref())?.hinted(options.get("hint"))?;
        router::distinct::distinct(ns, field, &query)
    };
    let mut values = run().unwrap_or_else(|e| e.raise());
    SetOfIterator::new(std::iter::from_fn(move || values.next_value().unwrap_or_else(|e| e.raise())))
}

/// About how many documents the collection has, from PostgreSQL's statistics.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn estimated_document_count(ns: &str) -> i64 {
    let run = || -> Result<i64> {
        catalog::namespace::split(ns)?;
        read::estimated_count(ns)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// What a find would do: targeted shards and why, chunks, the shards' SQL and their plans. With the verbosity
/// "executionStats" it is done, and what that took is told too.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn explain(
    ns: &str,
    filter: default!(Json, "'{}'"),
    options: default!(Json, "'{}'"),
    verbosity: default!(&str, "'queryPlanner'"),
) -> Json {
    let run = || -> Result<Json> {
        use router::explain::{Explained, Verbosity};
        let verbosity = Verbosity::parse(verbosity)?;
        let (query, options) = find_parts(ns, &filter, &options, "explain")?;
        let explained = router::explain::explain(ns, &query, Explained::Find(&options), verbosity)?;
        Ok(Json(router::explain::pretty(&explained)))
    };
    run().unwrap_or_else(|e| e.raise())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    UpdateOne,
    UpdateMany,
    ReplaceOne,
}

fn run_update(ns: &str, filter: &Json, update: &Json, options: &Json, what: What) -> Result<RawJsonb> {
    catalog::namespace::split(ns)?;
    let operation = match what {
        What::UpdateOne => "update_one",
        What::UpdateMany => "update_many",
        What::ReplaceOne => "replace_one",
    };
    let json = options.parse()?;
    let known: &[&str] = match what {
        What::UpdateOne => &["upsert", "arrayFilters", "sort", "hint", "collation", "let", "comment"],
        What::UpdateMany => &["upsert", "arrayFilters", "hint", "collation", "let", "comment"],
        What::ReplaceOne => &["upsert", "sort", "hint", "collation", "let", "comment"],
    };
    let options = Options::of(&json, operation, known)?;
    let setting = options.setting(ns, &[])?;
    let query = Query::parse_in(&filter.0, setting.as_ref())?.hinted(options.get("hint"))?;
    let array_filters = options.get("arrayFilters").map(ToString::to_string);
    let style = if what == What::ReplaceOne { Style::Replacement } else { Style::Operators };
    let modification = Modification::parse(&update.0, style, array_filters.as_deref(), &query)?;
    let change = Change {
        query: &query,
        modification: &modification,
        many: what == What::UpdateMany,
        upsert: options.boolean("upsert")?.unwrap_or(false),
        sort: options.sort("sort", setting.as_ref())?,
    };
    updated_result(change::update(ns, &change)?)
}

fn updated_result(Updated { matched, modified, upserted }: Updated) -> Result<RawJsonb> {
    result([
        ("matchedCount", number(matched)),
        ("modifiedCount", number(modified)),
        ("upsertedCount", number(upserted.is_some().into())),
        ("upsertedId", upserted.unwrap_or(Value::Null)),
    ])
}

/// Updates one document, named by the full shard key or by `_id`. Options: upsert, arrayFilters, sort.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_one(
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let _call = sole_call::Call::of(fcinfo);
    let run = || -> Result<RawJsonb> {
        if options.0 == "{}"
            && let Some(updated) = by_key::update_one(ns, &filter.0, &update.0)?
        {
            return updated_result(updated);
        }
        run_update(ns, &filter, &update, &options, What::UpdateOne)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Updates every document that matches. Options: upsert, arrayFilters.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_many(ns: &str, filter: Json, update: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run_update(ns, &filter, &update, &options, What::UpdateMany).unwrap_or_else(|e| e.raise())
}

/// Replaces one document, named by the full shard key or by `_id`, or else by the new document's shard key. Options:
/// upsert, sort.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn replace_one(
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let _call = sole_call::Call::of(fcinfo);
    run_update(ns, &filter, &replacement, &options, What::ReplaceOne).unwrap_or_else(|e| e.raise())
}

fn run_delete(ns: &str, filter: &Json, options: &Json, many: bool) -> Result<RawJsonb> {
    catalog::namespace::split(ns)?;
    let operation = if many { "delete_many" } else { "delete_one" };
    let json = options.parse()?;
    let options = Options::of(&json, operation, &["hint", "collation", "let", "comment"])?;
    let query = Query::parse_in(&filter.0, options.setting(ns, &[])?.as_ref())?.hinted(options.get("hint"))?;
    deleted_result(change::delete(ns, &query, many)?)
}

fn deleted_result(deleted: i64) -> Result<RawJsonb> {
    result([("deletedCount", number(deleted))])
}

/// Deletes one document, named by the full shard key or by `_id`.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_one(ns: &str, filter: Json, options: default!(Json, "'{}'"), fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    let _call = sole_call::Call::of(fcinfo);
    let run = || -> Result<RawJsonb> {
        if options.0 == "{}"
            && let Some(deleted) = by_key::delete_one(ns, &filter.0)?
        {
            return deleted_result(deleted);
        }
        run_delete(ns, &filter, &options, false)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Deletes every document that matches.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_many(ns: &str, filter: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run_delete(ns, &filter, &options, true).unwrap_or_else(|e| e.raise())
}
