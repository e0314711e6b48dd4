//! The commands count, distinct and findAndModify.

use super::reply::{Reply, ReplyNode, integer};
use super::request::Request;
use crate::operation::arguments::number;
use crate::operation::find_and_modify::FindAndModify;
use crate::operation::reading::{self, Count};
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::table;
use crate::pg::error::Result;
use docshard_core::error::{Kind, bail, error};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{MAX_DOCUMENT_BYTES, raw};
use serde_json::Value as Json;

pub fn count(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::COUNT)?;
    Ok(Reply::ok().with("n", integer(counted(request)?.run(&request.namespace()?)?)))
}

pub fn counted<'a>(request: &Request<'a>) -> Result<Count<'a>> {
    let fields = &request.fields;
    Ok(Count {
        filter: Specification::of(fields.get("filter")),
        skip: fields.count("skip")?.unwrap_or(0),
        limit: fields.raw("limit").map(count_limit).transpose()?.filter(|limit| *limit > 0),
        shared: Shared::of(fields, None),
    })
}

/// Returns the limit; 0 means no limit, and a negative one its absolute value. Unlike other numbers in commands, it must be an
/// integer, and null is an error.
fn count_limit(json: &Json) -> Result<u64> {
    let number = number(json).ok_or_else(|| error!(Kind::BadValue, "limit value is not a valid number"))?;
    match number.as_i64() {
        None => Err(error!(Kind::FailedToParse, "Expected an integer, but found: limit: {json}")),
        Some(i64::MIN) => Err(error!(Kind::BadValue, "the limit of a count cannot be the smallest 64-bit integer")),
        Some(n) => Ok(n.unsigned_abs()),
    }
}

pub fn distinct(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::DISTINCT)?;
    let fields = &request.fields;
    let (key, filter) = (fields.text("key").unwrap_or_default(), Specification::of(fields.get("filter")));
    if key.contains('\0') {
        bail!(Kind::Location(31_032), "Key field cannot contain an embedded null byte");
    }
    let mut found = reading::distinct(&request.namespace()?, key, filter, &Shared::of(fields, None))?;
    let (mut values, mut bytes) = (Vec::new(), 0);
    while let Some(value) = found.next_value()? {
        bytes += value.bytes().len();
        // All values are in one answer, which has MongoDB's size limit.
        if bytes > MAX_DOCUMENT_BYTES {
            bail!(Kind::BSONObjectTooLarge, "distinct too big, {} MB cap", MAX_DOCUMENT_BYTES >> 20);
        }
        values.push(Value::from_raw(raw::root(value.bytes())));
    }
    Ok(Reply::ok().with("values", Value::fixed_array(values)))
}

pub fn find_and_modify(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::FIND_AND_MODIFY)?;
    let (document, result) = FindAndModify::of_specification(&request.fields).run(&request.namespace()?)?;
    let updated_existing = result.matched > 0;
    let n = i64::from(updated_existing || result.upserted.is_some());
    let mut last = vec![("n", ReplyNode::Value(integer(n)))];
    if !request.fields.flag("remove") {
        last.push(("updatedExisting", ReplyNode::Value(Value::Bool(updated_existing))));
    }
    last.extend(result.upserted.map(|id| ("upserted", ReplyNode::Value(id))));
    let value = document.map_or(ReplyNode::Value(Value::Null), ReplyNode::Document);
    Ok(Reply::ok().with("lastErrorObject", ReplyNode::Object(last)).with("value", value))
}
