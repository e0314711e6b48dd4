//! The commands insert, update and delete: batches whose operations succeed or fail one by one.

use super::failure;
use super::numbered;
use super::reply::{Reply, ReplyNode, integer};
use super::request::Request;
use crate::catalog::collections::namespace::check_writable;
use crate::operation::arguments::{Arguments, Fields, Form, number};
use crate::operation::request_parts::Specification;
use crate::operation::table::{self, Operation};
use crate::operation::writing::{self, DocumentWrite, each};
use crate::pg::error::Result;
use crate::router::source;
use crate::router::writes::insert::WriteError;
use docshard_core::error::{Kind, bail};
use docshard_core::query::update::Style;
use docshard_core::values::document::bson::read as bson;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

fn batch<'a>(request: &Request<'a>, field: &str) -> Result<(String, &'a [Json])> {
    let namespace = request.namespace()?;
    check_writable(&namespace)?;
    let operations = request.fields.array(field);
    writing::check_size(request.documents.map_or(operations.len(), <[_]>::len))?;
    Ok((namespace, operations))
}

/// Parses the operations of a batch and checks the caller's right to each corresponding SQL function.
fn operations<'a>(
    request: &Request<'a>,
    batch: &'a [Json],
    (path, known): (&'static str, Fields),
    function: fn(&Arguments<'a>) -> &'static Operation,
) -> Result<Vec<Arguments<'a>>> {
    let parse = |json| Arguments::parse(json, Form::Command(path), known);
    let operations = batch.iter().map(parse).collect::<Result<Vec<_>>>()?;
    for like in request.spec.operations {
        if operations.iter().any(|operation| std::ptr::eq(function(operation), *like)) {
            request.check_right(like)?;
        }
    }
    Ok(operations)
}

fn finish(mut reply: Reply, errors: &[WriteError]) -> Reply {
    if !errors.is_empty() {
        reply = reply.with("writeErrors", failure::write_errors(errors));
    }
    reply
}

pub fn insert(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::INSERT_MANY)?;
    let (namespace, documents) = batch(request, "documents")?;
    let ordered = request.fields.flag("ordered");
    if let Some(documents) = request.documents {
        let read = |bytes: &&[u8]| bson::value(bytes).and_then(|value| writing::storable_value(&value));
        let documents = documents.iter().map(|bytes| Ok(read(bytes)));
        return inserted(writing::insert_batch(&namespace, documents, ordered)?);
    }
    let documents = documents.iter().enumerate().map(|(index, json)| {
        if ext_json::document(json).is_none() {
            bail!(
                Kind::TypeMismatch,
                "BSON field 'insert.documents.{index}' is the wrong type, expected type 'object'"
            );
        }
        Ok(writing::storable(json))
    });
    inserted(writing::insert_batch(&namespace, documents, ordered)?)
}

fn inserted((ids, errors): (Vec<Value>, Vec<WriteError>)) -> Result<Reply> {
    Ok(finish(Reply::ok().with("n", integer(ids.len() as i64)), &errors))
}

/// Returns the operation that corresponds to an element of `updates`.
pub fn kind_of_update(update: &Arguments<'_>) -> &'static Operation {
    let is_operators =
        |fields: &serde_json::Map<String, Json>| fields.keys().next().is_some_and(|name| name.starts_with('$'));
    match update.get("update") {
        _ if update.flag("multi") => &table::UPDATE_MANY,
        Some(Json::Object(fields)) if !is_operators(fields) => &table::REPLACE_ONE,
        _ => &table::UPDATE_ONE,
    }
}

pub fn update(request: &Request<'_>) -> Result<Reply> {
    if source::VIRTUAL.contains(&request.db) {
        return super::config::update(request);
    }
    let (namespace, batch) = batch(request, "updates")?;
    let form = ("update.updates", table::UPDATE_ELEMENT);
    let operations = operations(request, batch, form, kind_of_update)?;
    let variables = request.fields.get("let");
    let (mut matched, mut modified, mut upserted) = (0, 0, Vec::new());
    numbered::claim(&namespace, operations.iter().any(|update| update.flag("upsert")))?;
    let errors =
        each(&operations, request.fields.flag("ordered"), |index, operation| {
            operation.check_conflicts(table::UPDATE_CONFLICTS)?;
            let specification = |name| Specification::of(operation.get(name));
            let (update, many) = ((specification("update"), Style::Either), operation.flag("multi"));
            let done =
                DocumentWrite::of(specification("filter"), Some(update), many, operation, variables).run(&namespace)?;
            matched += done.matched;
            modified += done.modified;
            upserted.extend(done.upserted.map(|id| {
                Value::fixed_object(vec![("index".to_owned(), integer(index as i64)), ("_id".to_owned(), id)])
            }));
            Ok(())
        })?;
    let n = matched + upserted.len() as i64;
    let mut reply = Reply::ok().with("n", integer(n)).with("nModified", integer(modified));
    if !upserted.is_empty() {
        reply = reply.with("upserted", ReplyNode::Value(Value::fixed_array(upserted)));
    }
    Ok(finish(reply, &errors))
}

pub fn delete(request: &Request<'_>) -> Result<Reply> {
    let (namespace, batch) = batch(request, "deletes")?;
    let form = ("delete.deletes", table::DELETE_ELEMENT);
    let operations = operations(request, batch, form, |delete| {
        if delete.safe_integer("limit") == Some(0) { &table::DELETE_MANY } else { &table::DELETE_ONE }
    })?;
    let variables = request.fields.get("let");
    let mut deleted = 0;
    numbered::claim(&namespace, false)?;
    let errors = each(&operations, request.fields.flag("ordered"), |_, operation| {
        let limit = operation.get("limit").unwrap_or(&Json::Null);
        let many = match number(limit).and_then(|number| number.as_i64()) {
            Some(0) => true,
            Some(1) => false,
            _ => {
                bail!(Kind::FailedToParse, "The limit field in delete objects must be 0 or 1. Got {limit}");
            }
        };
        let filter = Specification::of(operation.get("filter"));
        deleted += DocumentWrite::of(filter, None, many, operation, variables).run(&namespace)?.matched;
        Ok(())
    })?;
    Ok(finish(Reply::ok().with("n", integer(deleted)), &errors))
}
