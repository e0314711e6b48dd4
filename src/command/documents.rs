//! count, distinct, findAndModify.

use super::reply::{Node, Reply, integer};
use super::request::{Request, number};
use super::write::sort_of;
use crate::pg::error::{Error, Result};
use crate::router;
use crate::router::find_and_modify::{self, FindAndModify, Returned};
use crate::router::modification::Modification;
use crate::router::options::{self, CountOptions};
use crate::router::query::Query;
use crate::router::read;
use docshard_core::error::Kind;
use docshard_core::query::update::Style;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{MAX_DOCUMENT_BYTES, raw};
use serde_json::Value as Json;

/// count.
pub fn count(request: &Request<'_>) -> Result<Reply> {
    let (query, options) = counted(request)?;
    let n = read::count(&request.namespace()?, &query, &options)?;
    Ok(Reply::ok().with("n", integer(n)))
}

/// What a count asks for.
///
/// # Errors
/// Those of the filter's parser and of the options.
pub fn counted(request: &Request<'_>) -> Result<(Query, CountOptions)> {
    let fields = &request.fields;
    let namespace = request.namespace()?;
    let filter = fields.json_or("query", "{}");
    let setting = options::setting(&namespace, fields.get("collation"), None, &[&filter])?;
    let limit = fields.get("limit").map(count_limit).transpose()?.filter(|limit| *limit > 0);
    let options = CountOptions { skip: fields.count("skip")?.unwrap_or(0), limit, setting, hint: None };
    let query = Query::parse_in(&filter, options.setting.as_ref())?.hinted(fields.get("hint"))?;
    Ok((query, options))
}

/// The limit of a count: 0 is none, and a negative one means its size, as in MongoDB. Unlike other numbers of commands it
/// has to be an integer.
fn count_limit(json: &Json) -> Result<u64> {
    let number = number(json).ok_or_else(|| Error::new(Kind::BadValue, "limit value is not a valid number"))?;
    match number.as_i64() {
        None => Err(Error::new(Kind::FailedToParse, format!("Expected an integer, but found: limit: {json}"))),
        Some(i64::MIN) => Err(Error::new(Kind::BadValue, "the limit of a count cannot be the smallest of integers")),
        Some(n) => Ok(n.unsigned_abs()),
    }
}

/// distinct.
pub fn distinct(request: &Request<'_>) -> Result<Reply> {
    let fields = &request.fields;
    let namespace = request.namespace()?;
    let filter = fields.json_or("query", "{}");
    let setting = options::setting(&namespace, fields.get("collation"), None, &[&filter])?;
    let query = Query::parse_in(&filter, setting.as_ref())?.hinted(fields.get("hint"))?;
    let mut found = router::distinct::distinct(&namespace, fields.text("key").unwrap_or_default(), &query)?;
    let (mut values, mut bytes) = (Vec::new(), 0);
    while let Some(value) = found.next_value()? {
        bytes += value.bytes().len();
        // One answer has them all: MongoDB's limit, and its error.
        if bytes > MAX_DOCUMENT_BYTES {
            let message = format!("distinct too big, {} MB cap", MAX_DOCUMENT_BYTES >> 20);
            return Err(Error::new(Kind::BSONObjectTooLarge, message));
        }
        values.push(Value::from_raw(raw::root(value.bytes())));
    }
    Ok(Reply::ok().with("values", Value::Array(values)))
}

/// findAndModify.
pub fn find_and_modify(request: &Request<'_>) -> Result<Reply> {
    let fields = &request.fields;
    let namespace = request.namespace()?;
    let flag = |name| fields.flag(name).unwrap_or(false);
    let (remove, new, upsert) = (flag("remove"), flag("new"), flag("upsert"));
    let update = fields.get("update").map(Json::to_string);
    let conflict = match &update {
        Some(_) if remove => "Cannot specify both an update and remove=true",
        None if !remove => "Either an update or remove=true must be specified",
        None if new => "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
        None if upsert => "Cannot specify both upsert=true and remove=true",
        None if fields.get("arrayFilters").is_some() => "Cannot specify arrayFilters and remove=true",
        _ => "",
    };
    if !conflict.is_empty() {
        return Err(Error::new(Kind::FailedToParse, conflict));
    }
    let filter = fields.json_or("query", "{}");
    let projected = fields.json_or("fields", "{}");
    let setting = options::setting(&namespace, fields.get("collation"), fields.get("let"), &[&filter, &projected])?;
    let query = Query::parse_in(&filter, setting.as_ref())?.hinted(fields.get("hint"))?;
    let array_filters = fields.get("arrayFilters").map(Json::to_string);
    let modification = update
        .map(|update| Modification::parse(&update, Style::Either, array_filters.as_deref(), &query))
        .transpose()?;
    let operation = FindAndModify {
        query: &query,
        modification: modification.as_deref(),
        sort: sort_of(fields, setting.as_ref())?,
        projection: find_and_modify::projection(fields.get("fields"), &query)?,
        returned: if new { Returned::After } else { Returned::Before },
        upsert,
    };
    let found = find_and_modify::find_and_modify(&namespace, &operation)?;
    let n = i64::from(found.matched || found.upserted.is_some());
    let mut last = vec![("n", Node::Value(integer(n)))];
    if !remove {
        last.push(("updatedExisting", Node::Value(Value::Bool(found.matched))));
    }
    if let Some(id) = found.upserted {
        last.push(("upserted", Node::Value(id)));
    }
    let value = found.document.map_or(Node::Value(Value::Null), Node::Document);
    Ok(Reply::ok().with("lastErrorObject", Node::Object(last)).with("value", value))
}
