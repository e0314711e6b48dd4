//! Documents: insert, find, count, update, delete.

use super::{run, with_options};
use crate::operation::errors;
use crate::operation::reading::{self, Count};
use crate::operation::source::{Shared, Source};
use crate::operation::table::{self, Operation};
use crate::operation::writing::{self, Delete, Update, insert_each};
use crate::pg::client::{sole_call, text_output};
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::router::change::Updated;
use crate::router::insert::{self, Storable};
use crate::router::{by_key, execute, read};
use crate::{catalog, router};
use docshard_core::query::update::Style;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use pgrx::prelude::*;

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
    run(|| {
        if options.0 != "{}" {
            with_options(&options, &table::INSERT_ONE, |_| Ok(()))?;
        }
        let mut document = Some(Storable::new(doc.bytes())?);
        let inserted = insert::insert(ns, &mut || Ok(document.take()))?;
        let id = inserted.into_iter().next().map_or(Value::Null, |document| document.id);
        result([("insertedId", id)])
    })
}

/// Inserts many documents, a batch a shard. Options: ordered (default true). With `ordered: false` documents that are
/// refused, or whose key is taken, are left out and reported in `writeErrors`; otherwise the first of them fails the
/// statement.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_many(ns: &str, docs: pgrx::Array<'_, RawJsonb>, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| {
        let ordered = with_options(&options, &table::INSERT_MANY, |options| Ok(options.flag("ordered")))?;
        if docs.is_empty() {
            writing::check_size(0)?;
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
    })
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
        ("code".to_owned(), number(errors::code(error).0)),
        ("errmsg".to_owned(), Value::String(error.message.clone())),
    ];
    fields.extend(error.duplicate_fields());
    Value::Object(fields)
}

/// Inserts the documents that a query returns in its first column, jsonb or what casts to it, without holding them all in memory.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_select(ns: &str, query: &str) -> RawJsonb {
    const BATCH: usize = 2000;
    run(|| {
        catalog::namespace::split(ns)?;
        let snapshot = ActiveSnapshot::of_statement();
        // The cast sees to it that what comes is jsonb, whatever the query has.
        let query = query.trim_end().trim_end_matches(';');
        let documents = format!("SELECT documents.doc::pg_catalog.jsonb FROM (\n{query}\n) AS documents (doc)");
        let mut rows = spi::cursor::Cursor::open(&documents, &[])?;
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
    })
}

fn find_documents(
    ns: &str,
    filter: &Json,
    options: &Json,
    operation: &'static Operation,
) -> Result<execute::Documents> {
    catalog::namespace::split(ns)?;
    let options = reading::find_options_of_call(ns, &options.0, operation)?;
    reading::find(ns, Source::Text(&filter.0), &options)
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
    let mut documents = run(|| find_documents(ns, &filter, &options, &table::FIND));
    SetOfIterator::new(std::iter::from_fn(move || run(|| documents.next_document())))
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
    run(|| {
        if options.0 == "{}"
            && let Some(found) = by_key::find_one(ns, &filter.0)?
        {
            return Ok(found);
        }
        find_documents(ns, &filter, &options, &table::FIND_ONE)?.next_document()
    })
}

/// How many documents match, exactly. Options: skip, limit, hint, collation, let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn count_documents(ns: &str, filter: default!(Json, "'{}'"), options: default!(Json, "'{}'")) -> i64 {
    run(|| {
        catalog::namespace::split(ns)?;
        with_options(&options, &table::COUNT, |options| Count::of_options(Source::Text(&filter.0), options)?.run(ns))
    })
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
    let mut values = run(|| {
        catalog::namespace::split(ns)?;
        with_options(&options, &table::DISTINCT, |options| {
            reading::distinct(ns, field, Source::Text(&filter.0), &Shared::of(options, None))
        })
    });
    SetOfIterator::new(std::iter::from_fn(move || run(|| values.next_value())))
}

/// About how many documents the collection has, from PostgreSQL's statistics.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn estimated_document_count(ns: &str) -> i64 {
    run(|| {
        catalog::namespace::split(ns)?;
        read::estimated_count(ns)
    })
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
    run(|| {
        use router::explain::{Explained, Verbosity};
        let verbosity = Verbosity::parse(verbosity)?;
        catalog::namespace::split(ns)?;
        let options = reading::find_options_of_call(ns, &options.0, &table::EXPLAIN)?;
        let query = reading::find_query(Source::Text(&filter.0), &options)?;
        let explained = router::explain::explain(ns, &query, Explained::Find(&options), verbosity)?;
        Ok(Json(router::explain::pretty(&explained)))
    })
}

/// Runs an update of one document or of all that match, or the replacement of one.
fn run_update(
    ns: &str,
    filter: &Json,
    update: &Json,
    options: &Json,
    operation: &'static Operation,
) -> Result<RawJsonb> {
    catalog::namespace::split(ns)?;
    let function = operation.function;
    let style = if function == table::REPLACE_ONE.function { Style::Replacement } else { Style::Operators };
    let (filter, update) = (Source::Text(&filter.0), Source::Text(&update.0));
    let updated = with_options(options, operation, |options| {
        let update = Update::of(filter, update, style, options, None);
        update.of_many(function == table::UPDATE_MANY.function).run(ns)
    })?;
    updated_result(updated)
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
    run(|| {
        if options.0 == "{}"
            && let Some(updated) = by_key::update_one(ns, &filter.0, &update.0)?
        {
            return updated_result(updated);
        }
        run_update(ns, &filter, &update, &options, &table::UPDATE_ONE)
    })
}

/// Updates every document that matches. Options: upsert, arrayFilters.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_many(ns: &str, filter: Json, update: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| run_update(ns, &filter, &update, &options, &table::UPDATE_MANY))
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
    run(|| run_update(ns, &filter, &replacement, &options, &table::REPLACE_ONE))
}

fn run_delete(ns: &str, filter: &Json, options: &Json, many: bool) -> Result<RawJsonb> {
    catalog::namespace::split(ns)?;
    let (operation, filter) = (if many { &table::DELETE_MANY } else { &table::DELETE_ONE }, Source::Text(&filter.0));
    deleted_result(with_options(options, operation, |options| {
        Delete { filter, many, shared: Shared::of(options, None) }.run(ns)
    })?)
}

fn deleted_result(deleted: i64) -> Result<RawJsonb> {
    result([("deletedCount", number(deleted))])
}

/// Deletes one document, named by the full shard key or by `_id`.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_one(ns: &str, filter: Json, options: default!(Json, "'{}'"), fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    let _call = sole_call::Call::of(fcinfo);
    run(|| {
        if options.0 == "{}"
            && let Some(deleted) = by_key::delete_one(ns, &filter.0)?
        {
            return deleted_result(deleted);
        }
        run_delete(ns, &filter, &options, false)
    })
}

/// Deletes every document that matches.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_many(ns: &str, filter: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| run_delete(ns, &filter, &options, true))
}
