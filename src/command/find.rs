//! The commands find, getMore, killCursors and explain.

use super::cursors::{self, FIRST_BATCH, Opening};
use super::reply::Reply;
use super::request::Request;
use crate::operation::arguments::{Arguments, Fields, Form, Type, may, must, number};
use crate::operation::reading;
use crate::operation::source::{self, Source};
use crate::operation::table;
use crate::pg::error::{Error, Result};
use crate::router::explain::{Explained, Verbosity, explain as explained};
use crate::router::query::Query;
use docshard_core::error::Kind;
use serde_json::json;

const CURSOR_ID: Fields = &[&[must("id", Type::Integer)]];
const CURSOR_OPTIONS: Fields = &[&[may("batchSize", Type::Count)]];

pub fn find(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::FIND)?;
    let fields = &request.fields;
    let namespace = request.namespace()?;
    let filter = Source::of(fields.get("filter"));
    let (_, limit) = (fields.count("skip")?, fields.count("limit")?.filter(|limit| *limit > 0));
    let batch = size(fields.count("batchSize")?, FIRST_BATCH);
    let opening = Opening {
        namespace: &namespace,
        batch,
        single_batch: fields.flag("singleBatch"),
        may_expire: !fields.flag("noCursorTimeout"),
    };
    // A result that fits into the first batch needs no portal that outlives the transaction.
    if batch > 0 && limit.is_some_and(|limit| usize::try_from(limit).is_ok_and(|limit| limit <= batch)) {
        let mut documents = reading::find(&namespace, filter, fields)?;
        let mut found = Vec::new();
        while let Some(document) = documents.next_document()? {
            found.push(document.bytes().to_vec());
        }
        return Ok(cursors::open_over(&opening, found, documents.is_partial())?.reply("firstBatch", &namespace));
    }
    let options = fields.as_options(table::FIND.options).to_string();
    let found = cursors::open(&opening, &table::FIND, &filter.text(), &options)?;
    Ok(found.reply("firstBatch", &namespace))
}

pub fn size(given: Option<u64>, otherwise: usize) -> usize {
    given.map_or(otherwise, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

pub fn get_more(request: &Request<'_>) -> Result<Reply> {
    let id = number(request.target).and_then(|id| id.as_i64()).ok_or_else(|| {
        let message = format!("getMore.getMore must be an integer, not {}", request.target);
        Error::new(Kind::BadValue, message)
    })?;
    let namespace = format!("{}.{}", request.db, request.fields.text("collection").unwrap_or_default());
    if request.fields.text("collection") == Some("") {
        return Err(Error::new(Kind::InvalidNamespace, "Collection names cannot be empty"));
    }
    let limit = request.fields.count("batchSize")?.filter(|n| *n > 0).map(|n| size(Some(n), 0));
    Ok(cursors::next(id, &namespace, limit)?.reply("nextBatch", &namespace))
}

pub fn kill_cursors(request: &Request<'_>) -> Result<Reply> {
    let namespace = format!("{}.{}", request.db, request.target_text());
    let (mut killed, mut unknown) = (Vec::new(), Vec::new());
    for (at, id) in request.fields.array("cursors").iter().enumerate() {
        let holder = json!({ "id": id });
        let path = format!("{}.cursors.{at}", request.name);
        let id = Arguments::parse(&holder, Form::Command(&path), CURSOR_ID)?;
        let id = id.integer("id")?.unwrap_or(0);
        if cursors::kill(id, &namespace)? { &mut killed } else { &mut unknown }.push(id);
    }
    Ok(Reply::of(json!({
        "cursorsKilled": killed, "cursorsNotFound": unknown, "cursorsAlive": [], "cursorsUnknown": [],
    })))
}

/// Returns `batchSize` of the field `cursor`.
pub fn batch_size(request: &Request<'_>) -> Result<Option<u64>> {
    let Some(cursor) = request.fields.get("cursor") else { return Ok(None) };
    let path = format!("{}.cursor", request.name);
    Arguments::parse(cursor, Form::Command(&path), CURSOR_OPTIONS)?.count("batchSize")
}

/// Returns documents in memory as a cursor, which may have several batches.
pub fn listing(request: &Request<'_>, namespace: &str, documents: Vec<Vec<u8>>) -> Result<Reply> {
    let batch = batch_size(request)?;
    let opening = Opening { namespace, batch: size(batch, usize::MAX), single_batch: false, may_expire: true };
    Ok(cursors::open_over(&opening, documents, false)?.reply("firstBatch", namespace))
}

const EXPLAINED: &[&str] = &["find", "count", "distinct", "aggregate", "update", "delete", "findAndModify"];

/// Writes are never executed: the plan shows how their documents are found.
pub fn explain(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::EXPLAIN)?;
    let verbosity = request.fields.text("verbosity").map(Verbosity::parse).transpose()?.unwrap_or_default();
    let inner = Request::parse(request.db, request.target, request.commands)?;
    if inner.spec.name == "aggregate" {
        return Ok(Reply::of(super::aggregate::explain(&inner, verbosity)?));
    }
    let first = |list: &str, path, known| -> Result<_> {
        let operations = inner.fields.array(list);
        if operations.len() != 1 {
            return Err(Error::new(Kind::InvalidLength, "explained write batches must be of size 1"));
        }
        let parse = |json| Arguments::parse(json, Form::Command(path), known);
        operations.first().map(parse).transpose()
    };
    let of_batch = match inner.spec.name {
        "update" => first("updates", "update.updates", table::UPDATE_ELEMENT)?,
        "delete" => first("deletes", "delete.deletes", table::DELETE_ELEMENT)?,
        name if EXPLAINED.contains(&name) => None,
        other => {
            let error = Error::new(Kind::CommandNotFound, format!("Explain failed due to unknown command: {other}"));
            return Err(error.with_hint(format!("Commands that can be explained: {}.", EXPLAINED.join(", "))));
        }
    };
    let arguments = of_batch.unwrap_or(inner.fields);
    let filter = Source::of(arguments.get("filter"));
    let namespace = inner.namespace()?;
    let explain = |query: &Query, what| explained(&namespace, query, what, verbosity);
    let plain = || source::query(filter, None, arguments.get("hint"));
    let mut plan = match inner.spec.name {
        "find" => {
            arguments.count("limit")?;
            let options = reading::find_options(&namespace, &arguments)?;
            explain(&reading::find_query(filter, &options)?, Explained::Find(&options))?
        }
        "count" => {
            let (query, options) = super::documents::counted(&inner)?.parts(&namespace)?;
            explain(&query, Explained::Count(&options))?
        }
        "distinct" => explain(&plain()?, Explained::Distinct(inner.fields.text("key").unwrap_or_default()))?,
        name => {
            let deletes = name == "delete" || inner.fields.flag("remove");
            let stage = if deletes { "DELETE" } else { "UPDATE" };
            explain(&plain()?, Explained::Write { stage, batch: name != "findAndModify" })?
        }
    };
    let run = plan.as_object_mut().and_then(|plan| plan.remove("executionStats"));
    let mut reply = json!({
        "queryPlanner": {
            "namespace": namespace,
            "parsedQuery": { "text": filter.text() },
            "winningPlan": plan,
        },
    });
    if let Some(run) = run {
        reply["executionStats"] = run;
    }
    reply["serverInfo"] = super::information::server()?;
    reply["command"] = json!({ "text": request.target.to_string() });
    Ok(Reply::of(reply))
}
