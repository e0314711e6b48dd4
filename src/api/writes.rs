//! SQL functions that write documents; docs/sql-reference.md describes them.

use super::{run, with_options};
use crate::catalog::collections::namespace;
use crate::operation::bulk_write::{self, BulkOperation};
use crate::operation::errors;
use crate::operation::find_and_modify::FindAndModify;
use crate::operation::request_parts::Specification;
use crate::operation::table::{self, Operation};
use crate::operation::writing::{self, DocumentWrite};
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::{Error, Result, keeping_names};
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::router::by_key;
use crate::router::writes::insert::{self, Storable, WriteError};
use docshard_core::error::{Kind, bail};
use docshard_core::query::specification::Role;
use docshard_core::query::update::Style;
use docshard_core::routing::request::modification::WriteResult;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use pgrx::prelude::*;

/// The result document that MongoDB's drivers return.
fn result<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Result<RawJsonb> {
    let all = std::iter::once(("acknowledged", Value::Bool(true))).chain(fields);
    let parts = all.map(|(name, value)| (name.into(), Part::Owned(value))).collect();
    Ok(RawJsonb::from_bytes(&write::document(&Part::Object(parts))?))
}

fn number(n: i64) -> Value {
    Value::Number(Number::Int(n))
}

fn write_errors(errors: &[WriteError]) -> Option<(&'static str, Value)> {
    (!errors.is_empty()).then(|| ("writeErrors", errors::write_errors(errors, errors::write_error)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    doc: RawJsonb,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let sole = sole_call::may_commit_first(fcinfo);
    run(|| {
        let insert = || {
            let mut document = Some(Storable::new(doc.bytes())?);
            let inserted = insert::insert(ns, sole, &mut || Ok(document.take()))?;
            let id = inserted.into_iter().next().map_or(Value::Null, |document| document.id);
            result([("insertedId", id)])
        };
        if options.is_empty() { insert() } else { with_options(&options, &table::INSERT_ONE, |_| insert()) }
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_many(
    _nulls: Option<NoNulls>,
    ns: &str,
    docs: pgrx::Array<'_, RawJsonb>,
    options: default!(Json, "'{}'"),
) -> RawJsonb {
    run(|| insert_all(ns, docs.iter(), &options))
}

fn insert_all(ns: &str, docs: impl ExactSizeIterator<Item = Option<RawJsonb>>, options: &Json) -> Result<RawJsonb> {
    with_options(options, &table::INSERT_MANY, |options| insert_batch(ns, docs, options.flag("ordered")))
}

fn insert_batch(ns: &str, docs: impl ExactSizeIterator<Item = Option<RawJsonb>>, ordered: bool) -> Result<RawJsonb> {
    if docs.len() == 0 {
        writing::check_size(0)?;
    }
    let mut docs = docs.enumerate().map(|(index, doc)| -> Result<(usize, RawJsonb)> {
        Ok((index, doc.ok_or_else(|| Error::null(format!("document {index} is null")))?))
    });
    if !ordered {
        let documents = docs.map(|doc| doc.map(|(_, doc)| Storable::new(doc.bytes())));
        let (ids, errors) = writing::insert_batch(ns, documents, false)?;
        let fields = [("insertedCount", number(ids.len() as i64)), ("insertedIds", Value::fixed_array(ids))];
        return result(fields.into_iter().chain(write_errors(&errors)));
    }
    let documents = insert::insert(ns, false, &mut || {
        let Some((index, doc)) = docs.next().transpose()? else { return Ok(None) };
        Storable::new(doc.bytes()).map(Some).map_err(|e| {
            let message = format!("document {index}: {}", e.message);
            e.with_message(message)
        })
    })?;
    let inserted = documents.len() as i64;
    let ids = documents.into_iter().map(|document| document.id).collect();
    result([("insertedCount", number(inserted)), ("insertedIds", Value::fixed_array(ids))])
}

/// `insert_one` for a document that is not jsonb. sql/privileges.sql declares it.
#[pg_extern(sql = false)]
fn insert_one_any(
    nulls: Option<NoNulls>,
    ns: &str,
    doc: Json,
    options: Json,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let doc = RawJsonb::of_text(doc.document_text());
    insert_one(nulls, ns, doc, options, fcinfo)
}

/// `insert_many` for documents that are not jsonb. sql/privileges.sql declares it.
#[pg_extern(sql = false)]
fn insert_many_any(_nulls: Option<NoNulls>, ns: &str, docs: pgrx::Array<'_, &str>, options: Json) -> RawJsonb {
    let docs = docs.iter().map(|doc| doc.map(RawJsonb::of_text));
    run(|| insert_all(ns, docs, &options))
}

/// Inserts the first column of a query, in batches, so that memory does not grow.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_select(_nulls: Option<NoNulls>, ns: &str, query: &str) -> RawJsonb {
    const BATCH: usize = 2000;
    run(|| {
        keeping_names(|| {
            namespace::split(ns)?;
            let snapshot = ActiveSnapshot::of_statement();
            // The cast makes sure that the column is jsonb.
            let query = query.trim_end().trim_end_matches(';');
            let documents = format!("SELECT documents.doc::pg_catalog.jsonb FROM (\n{query}\n) AS documents (doc)");
            let mut rows = spi::cursor::Cursor::open(&documents, &[])?;
            drop(snapshot);
            let mut inserted = 0;
            loop {
                // The whole batch is read before its first document is sent, as the query may itself send statements to shards.
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
                let documents = insert::insert(ns, false, &mut || {
                    let Some(row) = batch.next() else { return Ok(None) };
                    let bytes = row.get(0).ok_or_else(|| Error::null("a document is null"))?;
                    Storable::new(bytes).map(Some)
                })?;
                inserted += documents.len() as i64;
            }
        })
    })
}

fn run_update(
    ns: &str,
    filter: &Json,
    update: (&Json, Style),
    (many, sole): (bool, bool),
    options: &Json,
    operation: &'static Operation,
) -> Result<RawJsonb> {
    namespace::split(ns)?;
    let (filter, (update, style)) = (Specification::Text(filter.text(Role::Filter)?), update);
    let update = (Specification::Text(update.text(Role::Update)?), style);
    update_result(with_options(options, operation, |options| {
        DocumentWrite { sole, ..DocumentWrite::of(filter, Some(update), many, options, None) }.run(ns)
    })?)
}

fn update_result(WriteResult { matched, modified, upserted, .. }: WriteResult) -> Result<RawJsonb> {
    result([
        ("matchedCount", number(matched)),
        ("modifiedCount", number(modified)),
        ("upsertedCount", number(upserted.is_some().into())),
        ("upsertedId", upserted.unwrap_or(Value::Null)),
    ])
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let sole = sole_call::may_commit_first(fcinfo);
    run(|| {
        if options.is_empty()
            && let Some(updated) = by_key::update_one(ns, filter.text(Role::Filter)?, update.text(Role::Update)?, sole)?
        {
            return update_result(updated);
        }
        run_update(ns, &filter, (&update, Style::Operators), (false, sole), &options, &table::UPDATE_ONE)
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_many(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
) -> RawJsonb {
    run(|| run_update(ns, &filter, (&update, Style::Operators), (true, false), &options, &table::UPDATE_MANY))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn replace_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let sole = sole_call::may_commit_first(fcinfo);
    run(|| run_update(ns, &filter, (&replacement, Style::Replacement), (false, sole), &options, &table::REPLACE_ONE))
}

fn run_delete(
    ns: &str,
    filter: &Json,
    (many, sole): (bool, bool),
    options: &Json,
    operation: &'static Operation,
) -> Result<RawJsonb> {
    namespace::split(ns)?;
    let filter = Specification::Text(filter.text(Role::Filter)?);
    delete_result(with_options(options, operation, |options| {
        DocumentWrite { sole, ..DocumentWrite::of(filter, None, many, options, None) }.run(ns)
    })?)
}

fn delete_result(deleted: WriteResult) -> Result<RawJsonb> {
    result([("deletedCount", number(deleted.matched))])
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    let sole = sole_call::may_commit_first(fcinfo);
    run(|| {
        if options.is_empty()
            && let Some(deleted) = by_key::delete_one(ns, filter.text(Role::Filter)?, sole)?
        {
            return delete_result(deleted);
        }
        run_delete(ns, &filter, (false, sole), &options, &table::DELETE_ONE)
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_many(_nulls: Option<NoNulls>, ns: &str, filter: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| run_delete(ns, &filter, (true, false), &options, &table::DELETE_MANY))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn bulk_write(_nulls: Option<NoNulls>, ns: &str, operations: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| {
        namespace::split(ns)?;
        with_options(&options, &table::BULK_WRITE, |options| {
            let json = operations.parse(Role::Request)?;
            let serde_json::Value::Array(operations) = &json else {
                bail!(Kind::TypeMismatch, "operations of bulk_write must be an array");
            };
            writing::check_size(operations.len())?;
            let parse = |(index, json)| BulkOperation::parse(index, json, options.get("let"));
            let writes = operations.iter().enumerate().map(parse).collect::<Result<Vec<_>>>()?;
            let totals = bulk_write::run(ns, &writes, options.flag("ordered"))?;
            let fields = [
                ("insertedCount", number(totals.inserted.len() as i64)),
                ("insertedIds", Value::fixed_object(totals.inserted)),
                ("matchedCount", number(totals.matched)),
                ("modifiedCount", number(totals.modified)),
                ("deletedCount", number(totals.deleted)),
                ("upsertedCount", number(totals.upserted.len() as i64)),
                ("upsertedIds", Value::fixed_object(totals.upserted)),
            ];
            result(fields.into_iter().chain(write_errors(&totals.errors)))
        })
    })
}

fn returned(operation: FindAndModify<'_>, ns: &str) -> Result<Option<RawJsonb>> {
    Ok(operation.run(ns)?.0.map(|document| RawJsonb::from_bytes(&document)))
}

/// Runs one of the drivers' findOneAnd… functions; without an `update` the document is deleted.
fn find_one_and(
    ns: &str,
    filter: &Json,
    update: Option<(&Json, Style)>,
    options: &Json,
    operation: &'static Operation,
) -> Result<Option<RawJsonb>> {
    namespace::split(ns)?;
    let filter = Specification::Text(filter.text(Role::Filter)?);
    let update = match update {
        Some((update, style)) => Some((Specification::Text(update.text(Role::Update)?), style)),
        None => None,
    };
    with_options(options, operation, |options| returned(FindAndModify::of(filter, update, options), ns))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_update(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, Some((&update, Style::Operators)), &options, &table::FIND_ONE_AND_UPDATE))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_replace(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, Some((&replacement, Style::Replacement)), &options, &table::FIND_ONE_AND_REPLACE))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_delete(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| find_one_and(ns, &filter, None, &options, &table::FIND_ONE_AND_DELETE))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_and_modify(_nulls: Option<NoNulls>, ns: &str, spec: Json) -> Option<RawJsonb> {
    run(|| {
        namespace::split(ns)?;
        with_options(&spec, &table::FIND_AND_MODIFY, |spec| returned(FindAndModify::of_specification(spec), ns))
    })
}
