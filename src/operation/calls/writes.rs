//! Calls of the functions that write documents.

use super::with_options;
use crate::catalog::collections::namespace;
use crate::operation::bulk_write::{self, BulkOperation};
use crate::operation::errors;
use crate::operation::find_and_modify::FindAndModify;
use crate::operation::request_parts::Specification;
use crate::operation::table::{self, Operation};
use crate::operation::writing::{self, DocumentWrite};
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
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

/// The result document that MongoDB's drivers return.
fn result<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Result<RawJsonb> {
    let all = std::iter::once(("acknowledged", Value::Bool(true))).chain(fields);
    let parts = all.map(|(name, value)| (name.into(), Part::Owned(value))).collect();
    Ok(RawJsonb::from_bytes(&write::document(&Part::Object(parts))?))
}

fn number(n: i64) -> Value {
    Value::Number(Number::int(n))
}

fn write_errors(errors: &[WriteError]) -> Option<(&'static str, Value)> {
    (!errors.is_empty()).then(|| ("writeErrors", errors::write_errors(errors, errors::write_error)))
}

pub fn insert_one(ns: &str, doc: &RawJsonb, options: &Json, sole: bool) -> Result<RawJsonb> {
    let insert = || {
        let mut document = Some(Storable::new(doc.bytes())?);
        let inserted = insert::insert(ns, sole, &mut || Ok(document.take()))?;
        let id = inserted.into_iter().next().map_or(Value::Null, |document| document.id);
        result([("insertedId", id)])
    };
    if options.is_empty() { insert() } else { with_options(options, &table::INSERT_ONE, |_| insert()) }
}

pub fn insert_many(
    ns: &str,
    docs: impl ExactSizeIterator<Item = Option<RawJsonb>>,
    options: &Json,
) -> Result<RawJsonb> {
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

/// Inserts the first column of a query, in batches, so that memory does not grow.
pub fn insert_select(ns: &str, query: &str) -> Result<RawJsonb> {
    const BATCH: usize = 2000;
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
}

pub fn update_one(ns: &str, filter: &Json, update: &Json, options: &Json, sole: bool) -> Result<RawJsonb> {
    if options.is_empty()
        && let Some(updated) = by_key::update_one(ns, filter.text(Role::Filter)?, update.text(Role::Update)?, sole)?
    {
        return update_result(updated);
    }
    update_by((&table::UPDATE_ONE, false, sole), ns, filter, (update, Style::Operators), options)
}

pub fn update_many(ns: &str, filter: &Json, update: &Json, options: &Json) -> Result<RawJsonb> {
    update_by((&table::UPDATE_MANY, true, false), ns, filter, (update, Style::Operators), options)
}

pub fn replace_one(ns: &str, filter: &Json, replacement: &Json, options: &Json, sole: bool) -> Result<RawJsonb> {
    update_by((&table::REPLACE_ONE, false, sole), ns, filter, (replacement, Style::Replacement), options)
}

fn update_by(
    call: (&'static Operation, bool, bool),
    ns: &str,
    filter: &Json,
    update: (&Json, Style),
    options: &Json,
) -> Result<RawJsonb> {
    update_result(write(call, ns, filter, Some(update), options)?)
}

pub fn delete_one(ns: &str, filter: &Json, options: &Json, sole: bool) -> Result<RawJsonb> {
    if options.is_empty()
        && let Some(deleted) = by_key::delete_one(ns, filter.text(Role::Filter)?, sole)?
    {
        return delete_result(deleted);
    }
    delete_result(write((&table::DELETE_ONE, false, sole), ns, filter, None, options)?)
}

pub fn delete_many(ns: &str, filter: &Json, options: &Json) -> Result<RawJsonb> {
    delete_result(write((&table::DELETE_MANY, true, false), ns, filter, None, options)?)
}

/// Updates documents; if `update` is None, deletes them. The first argument is the operation, whether it writes many documents, and whether
/// the call is `sole`.
fn write(
    (operation, many, sole): (&'static Operation, bool, bool),
    ns: &str,
    filter: &Json,
    update: Option<(&Json, Style)>,
    options: &Json,
) -> Result<WriteResult> {
    namespace::split(ns)?;
    let (filter, update) = parts(filter, update)?;
    with_options(options, operation, |options| {
        DocumentWrite { sole, ..DocumentWrite::of(filter, update, many, options, None) }.run(ns)
    })
}

type Parts<'a> = (Specification<'a>, Option<(Specification<'a>, Style)>);

fn parts<'a>(filter: &'a Json, update: Option<(&'a Json, Style)>) -> Result<Parts<'a>> {
    let filter = Specification::Text(filter.text(Role::Filter)?);
    let Some((update, style)) = update else { return Ok((filter, None)) };
    Ok((filter, Some((Specification::Text(update.text(Role::Update)?), style))))
}

fn update_result(WriteResult { matched, modified, upserted, .. }: WriteResult) -> Result<RawJsonb> {
    result([
        ("matchedCount", number(matched)),
        ("modifiedCount", number(modified)),
        ("upsertedCount", number(upserted.is_some().into())),
        ("upsertedId", upserted.unwrap_or(Value::Null)),
    ])
}

fn delete_result(deleted: WriteResult) -> Result<RawJsonb> {
    result([("deletedCount", number(deleted.matched))])
}

pub fn bulk_write(ns: &str, operations: &Json, options: &Json) -> Result<RawJsonb> {
    namespace::split(ns)?;
    with_options(options, &table::BULK_WRITE, |options| {
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
}

pub fn find_one_and_update(ns: &str, filter: &Json, update: &Json, options: &Json) -> Result<Option<RawJsonb>> {
    find_one_and(&table::FIND_ONE_AND_UPDATE, ns, filter, Some((update, Style::Operators)), options)
}

pub fn find_one_and_replace(ns: &str, filter: &Json, replacement: &Json, options: &Json) -> Result<Option<RawJsonb>> {
    find_one_and(&table::FIND_ONE_AND_REPLACE, ns, filter, Some((replacement, Style::Replacement)), options)
}

pub fn find_one_and_delete(ns: &str, filter: &Json, options: &Json) -> Result<Option<RawJsonb>> {
    find_one_and(&table::FIND_ONE_AND_DELETE, ns, filter, None, options)
}

/// Updates or, if `update` is None, deletes one document, and returns it.
fn find_one_and(
    operation: &'static Operation,
    ns: &str,
    filter: &Json,
    update: Option<(&Json, Style)>,
    options: &Json,
) -> Result<Option<RawJsonb>> {
    namespace::split(ns)?;
    let (filter, update) = parts(filter, update)?;
    with_options(options, operation, |options| returned(FindAndModify::of(filter, update, options), ns))
}

pub fn find_and_modify(ns: &str, spec: &Json) -> Result<Option<RawJsonb>> {
    namespace::split(ns)?;
    with_options(spec, &table::FIND_AND_MODIFY, |spec| returned(FindAndModify::of_specification(spec), ns))
}

fn returned(operation: FindAndModify<'_>, ns: &str) -> Result<Option<RawJsonb>> {
    Ok(operation.run(ns)?.0.map(|document| RawJsonb::from_bytes(&document)))
}
