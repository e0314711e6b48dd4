//! insert, update, delete: batches whose operations succeed or fail one by one.
//!
//! Each operation runs in a subtransaction, so that one that fails leaves nothing behind and those before it stay.
//! `ordered` (the default) stops at the first that fails. Inserts go many at a time; where a document is refused, the batch is
//! cut in halves until it stands alone.

use super::failure::{self, WriteError};
use super::reply::{Node, Reply, integer};
use super::request::{Field, Fields, Request, Type, may, must, number};
use crate::catalog::namespace::check_writable;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::subtransaction::attempt;
use crate::router::change::{self, Change};
use crate::router::insert::{self, Storable};
use crate::router::modification::Modification;
use crate::router::options;
use crate::router::query::Query;
use docshard_core::error::Kind;
use docshard_core::query::envelope;
use docshard_core::query::sort::Sort;
use docshard_core::query::update::Style;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, write};
use serde_json::Value as Json;

/// The most operations of a batch: MongoDB's number.
pub const MAX_BATCH: usize = 100_000;

/// An element of `updates`.
const UPDATE: &[Field] = &[
    must("q", Type::Object),
    must("u", Type::Any),
    may("c", Type::Object),
    may("upsert", Type::StrictBool),
    may("multi", Type::StrictBool),
    may("arrayFilters", Type::Array),
    may("collation", Type::Object),
    may("hint", Type::Any),
    may("sort", Type::Object),
];

/// An element of `deletes`.
const DELETE: &[Field] =
    &[must("q", Type::Object), must("limit", Type::Integer), may("collation", Type::Object), may("hint", Type::Any)];

/// The namespace, the operations, and whether the first that fails ends the batch.
fn batch<'a>(request: &Request<'a>, field: &str) -> Result<(String, &'a [Json], bool)> {
    let namespace = request.namespace()?;
    check_writable(&namespace)?;
    let operations = request.fields.array(field);
    if operations.is_empty() || operations.len() > MAX_BATCH {
        let count = operations.len();
        let message = format!("Write batch sizes must be between 1 and {MAX_BATCH}. Got {count} operations.");
        return Err(Error::new(Kind::InvalidLength, message));
    }
    Ok((namespace, operations, request.fields.flag("ordered").unwrap_or(true)))
}

fn finish(mut reply: Reply, errors: &[WriteError]) -> Reply {
    if !errors.is_empty() {
        reply = reply.with("writeErrors", failure::write_errors(errors));
    }
    reply
}

/// Runs one operation; one that fails is noted, unless that is not its own fault.
fn run<T>(index: usize, errors: &mut Vec<WriteError>, operation: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    match attempt(operation) {
        Ok(done) => Ok(Some(done)),
        Err(error) if !failure::is_of_one_operation(&error) => Err(error),
        Err(error) => {
            errors.push(WriteError { index, error });
            Ok(None)
        }
    }
}

/// insert.
pub fn insert(request: &Request<'_>) -> Result<Reply> {
    let (namespace, documents, ordered) = batch(request, "documents")?;
    let mut errors = Vec::new();
    let mut storable = Vec::with_capacity(documents.len());
    let mut positions = Vec::with_capacity(documents.len());
    for (index, json) in documents.iter().enumerate() {
        if !json.is_object() {
            let message = format!("BSON field 'insert.documents.{index}' is the wrong type, expected type 'object'");
            return Err(Error::new(Kind::TypeMismatch, message));
        }
        let made = ext_json::from_json(json)
            .and_then(|value| write::value(&value))
            .map_err(Error::from)
            .and_then(|bytes| Storable::new(&bytes));
        match made {
            Ok(document) => {
                storable.push(document);
                positions.push(index);
            }
            Err(error) => {
                errors.push(WriteError { index, error });
                if ordered {
                    break;
                }
            }
        }
    }
    let mut failed = Vec::new();
    let inserted = insert_each(&namespace, &storable, ordered, &mut failed)?;
    // Of an ordered batch, what comes before in it counts.
    if ordered && !failed.is_empty() {
        errors.clear();
    }
    errors.extend(failed.into_iter().map(|(at, error)| WriteError { index: positions[at], error }));
    errors.sort_by_key(|failed| failed.index);
    Ok(finish(Reply::ok().with("n", integer(inserted)), &errors))
}

/// Inserts documents; answers how many were inserted, and notes those that were not, by their positions: the first only if
/// `ordered`.
///
/// # Errors
/// What is no single document's fault.
pub fn insert_each(
    namespace: &str,
    documents: &[Storable],
    ordered: bool,
    failed: &mut Vec<(usize, Error)>,
) -> Result<i64> {
    put(namespace, documents, 0, ordered, failed)
}

/// Inserts documents, the first of which is number `start` of the batch; answers how many were inserted, and notes
/// those that were not, the first only if `ordered`.
fn put(
    namespace: &str,
    documents: &[Storable],
    start: usize,
    ordered: bool,
    failed: &mut Vec<(usize, Error)>,
) -> Result<i64> {
    if documents.is_empty() {
        return Ok(0);
    }
    let mut refused = Vec::new();
    let done = attempt(|| {
        refused = insert::insert_unordered(namespace, documents)?;
        // Of an ordered batch, nothing behind the first that is refused may stay.
        match refused.iter().min_by_key(|refused| refused.index) {
            Some(first) if ordered => Err(first.error.clone()),
            _ => Ok(()),
        }
    });
    match done {
        Ok(()) => {
            let inserted = documents.len() - refused.len();
            failed.extend(refused.into_iter().map(|refused| (start + refused.index, refused.error)));
            Ok(inserted as i64)
        }
        Err(error) if !failure::is_of_one_operation(&error) => Err(error),
        Err(error) if documents.len() == 1 => {
            failed.push((start, error));
            Ok(0)
        }
        Err(error) => {
            if let Some(first) = refused.iter().map(|refused| refused.index).min() {
                let inserted = put(namespace, &documents[..first], start, ordered, failed)?;
                if failed.is_empty() {
                    failed.push((start + first, error));
                }
                return Ok(inserted);
            }
            let (left, right) = documents.split_at(documents.len() / 2);
            let mut inserted = put(namespace, left, start, ordered, failed)?;
            if !ordered || failed.is_empty() {
                inserted += put(namespace, right, start + left.len(), ordered, failed)?;
            }
            Ok(inserted)
        }
    }
}

/// update.
pub fn update(request: &Request<'_>) -> Result<Reply> {
    let (namespace, operations, ordered) = batch(request, "updates")?;
    let operations =
        operations.iter().map(|json| Fields::parse(json, "update.updates", UPDATE)).collect::<Result<Vec<_>>>()?;
    let (mut matched, mut modified) = (0, 0);
    let (mut upserted, mut errors) = (Vec::new(), Vec::new());
    for (index, operation) in operations.iter().enumerate() {
        match run(index, &mut errors, || update_one(&namespace, operation, request.fields.get("let")))? {
            Some(done) => {
                matched += done.matched;
                modified += done.modified;
                if let Some(id) = done.upserted {
                    let fields = vec![("index".to_owned(), integer(index as i64)), ("_id".to_owned(), id)];
                    upserted.push(Value::Object(fields));
                }
            }
            None if ordered => break,
            None => {}
        }
    }
    let n = matched + upserted.len() as i64;
    let mut reply = Reply::ok().with("n", integer(n)).with("nModified", integer(modified));
    if !upserted.is_empty() {
        reply = reply.with("upserted", Node::Value(Value::Array(upserted)));
    }
    Ok(finish(reply, &errors))
}

fn update_one(namespace: &str, operation: &Fields<'_>, variables: Option<&Json>) -> Result<change::Updated> {
    super::find::refuse(operation, &["c"])?;
    let query = query_of(namespace, operation, variables)?;
    let many = operation.flag("multi").unwrap_or(false);
    if many && operation.get("sort").is_some() {
        return Err(Error::new(Kind::FailedToParse, "Cannot specify sort with multi=true"));
    }
    let array_filters = operation.get("arrayFilters").map(Json::to_string);
    let update = operation.json_or("u", "{}");
    let modification = Modification::parse(&update, Style::Either, array_filters.as_deref(), &query)?;
    if modification.update.is_replacement() && many {
        let message = "multi update is not supported for replacement-style update";
        return Err(Error::new(Kind::FailedToParse, message));
    }
    let change = Change {
        query: &query,
        modification: &modification,
        many,
        upsert: operation.flag("upsert").unwrap_or(false),
        sort: sort_of(operation, query.setting.as_ref())?,
    };
    change::update(namespace, &change)
}

/// The filter of an operation, with its collation and the command's variables.
fn query_of(namespace: &str, operation: &Fields<'_>, variables: Option<&Json>) -> Result<Query> {
    let filter = operation.json_or("q", "{}");
    let setting = options::setting(namespace, operation.get("collation"), variables, &[&filter])?;
    Query::parse_in(&filter, setting.as_ref())?.hinted(operation.get("hint"))
}

/// The field `sort`, and its text, under a setting; None for an empty one.
pub fn sort_of(fields: &Fields<'_>, setting: Option<&Json>) -> Result<Option<(Sort, String)>> {
    match fields.get("sort") {
        Some(Json::Object(empty)) if empty.is_empty() => Ok(None),
        Some(sort) => Ok(Some((
            Sort::parse_in(sort, &options::parsed_setting(setting)?)?,
            envelope::wrap(&sort.to_string(), setting, None),
        ))),
        None => Ok(None),
    }
}

/// delete.
pub fn delete(request: &Request<'_>) -> Result<Reply> {
    let (namespace, operations, ordered) = batch(request, "deletes")?;
    let operations =
        operations.iter().map(|json| Fields::parse(json, "delete.deletes", DELETE)).collect::<Result<Vec<_>>>()?;
    let mut deleted = 0;
    let mut errors = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        match run(index, &mut errors, || delete_one(&namespace, operation, request.fields.get("let")))? {
            Some(n) => deleted += n,
            None if ordered => break,
            None => {}
        }
    }
    Ok(finish(Reply::ok().with("n", integer(deleted)), &errors))
}

fn delete_one(namespace: &str, operation: &Fields<'_>, variables: Option<&Json>) -> Result<i64> {
    let limit = operation.get("limit").unwrap_or(&Json::Null);
    let many = match number(limit).and_then(|number| number.as_i64()) {
        Some(0) => true,
        Some(1) => false,
        _ => {
            let message = format!("The limit field in delete objects must be 0 or 1. Got {limit}");
            return Err(Error::new(Kind::FailedToParse, message));
        }
    };
    change::delete(namespace, &query_of(namespace, operation, variables)?, many)
}
