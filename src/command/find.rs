//! The commands find, getMore and killCursors.

use super::cursors::{self, Batch, FIRST_BATCH, MAX_BATCH_BYTES, Opening};
use super::reply::{Document, Reply};
use super::request::{MAX_NAMED, Request};
use crate::operation::arguments::{Arguments, Fields, Form, Type, may, must, number};
use crate::operation::reading::{self, Found};
use crate::operation::request_parts::Specification;
use crate::operation::table;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, bail, ensure};
use serde_json::json;

const CURSOR_ID: Fields = &[&[must("id", Type::Long)]];
const CURSOR_OPTIONS: Fields = &[&[may("batchSize", Type::Count)]];

pub fn find(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::FIND)?;
    let fields = &request.fields;
    let namespace = request.namespace()?;
    let filter = Specification::of(fields.get("filter"));
    let (_, limit) = (fields.count("skip")?, fields.count("limit")?.filter(|limit| *limit > 0));
    let batch = size(fields.count("batchSize")?, FIRST_BATCH);
    let opening = Opening {
        namespace: &namespace,
        batch,
        single_batch: fields.flag("singleBatch"),
        may_expire: !fields.flag("noCursorTimeout"),
        sole: request.sole,
    };
    // A portal is needed only if documents may remain after the first batch. None remain if the limit is at most the size of the batch, or
    // if there is only one batch, whose size is then the limit.
    let documents = if batch > 0 && limit.is_some_and(|limit| size(Some(limit), 0) <= batch) {
        Some(reading::find(&namespace, filter, fields)?)
    } else if batch > 0 && opening.single_batch {
        let mut options = fields.as_options(table::FIND.options);
        options["limit"] = batch.into();
        let limited = Arguments::parse(&options, Form::Options(table::FIND.function), table::FIND.options)?;
        Some(reading::find(&namespace, filter, &limited)?)
    } else {
        None
    };
    let opened = match documents {
        Some(documents) => first_batch(&opening, documents)?,
        None => {
            let options = fields.as_options(table::FIND.options).to_string();
            cursors::open(&opening, &table::FIND, &filter.text(), &options)?
        }
    };
    Ok(opened.reply("firstBatch", &namespace))
}

/// Reads the documents to their end, and opens a cursor over them at the router, so that later batches need no shard.
fn first_batch(opening: &Opening<'_>, mut documents: Found) -> Result<Batch> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(document) = documents.next_document()? {
        bytes += document.bytes().len();
        found.push(Document::Stored(document.bytes().to_vec()));
        if opening.single_batch && bytes > MAX_BATCH_BYTES {
            break;
        }
    }
    cursors::open_over(opening, found, documents.is_partial())
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
        bail!(Kind::InvalidNamespace, "Collection names cannot be empty");
    }
    if request.generic.get("maxTimeMS").is_some() && cursors::is_open(id) {
        bail!(Kind::BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor");
    }
    let limit = request.fields.count("batchSize")?.filter(|n| *n > 0).map(|n| size(Some(n), 0));
    Ok(cursors::next(id, &namespace, limit)?.reply("nextBatch", &namespace))
}

pub fn kill_cursors(request: &Request<'_>) -> Result<Reply> {
    let (mut killed, mut unknown) = (Vec::new(), Vec::new());
    let ids = request.fields.array("cursors");
    ensure!(ids.len() <= MAX_NAMED, Kind::BadValue, "{} names at most {MAX_NAMED} cursors", request.name);
    // Null is no cursor, and no error.
    for (at, id) in ids.iter().enumerate().filter(|(_, id)| !id.is_null()) {
        let holder = json!({ "id": id });
        let path = format!("{}.cursors.{at}", request.name);
        let id = Arguments::parse(&holder, Form::Command(&path), CURSOR_ID)?;
        let id = id.integer("id")?.unwrap_or(0);
        if cursors::kill(id)? { &mut killed } else { &mut unknown }.push(id);
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

/// Returns documents in memory through a cursor, which may have several batches.
pub fn listing(request: &Request<'_>, namespace: &str, documents: Vec<Document>) -> Result<Reply> {
    let batch = batch_size(request)?;
    let opening = Opening {
        namespace,
        batch: size(batch, usize::MAX),
        single_batch: false,
        may_expire: true,
        sole: request.sole,
    };
    Ok(cursors::open_over(&opening, documents, false)?.reply("firstBatch", namespace))
}
