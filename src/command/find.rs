//! find, getMore, killCursors, explain.

use super::cursors::{self, FIRST_BATCH, Opening};
use super::reply::Reply;
use super::request::{Fields, Request};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::router::explain::{Explained, Verbosity, explain as explained};
use crate::router::options::FindOptions;
use crate::router::query::Query;
use crate::router::read;
use docshard_core::error::Kind;
use serde_json::{Map, Value as Json, json};

/// Fields of a find that are options of `docshard.find`.
const OPTIONS: &[&str] = &["sort", "projection", "hint", "min", "max", "collation", "let"];

/// The options of a find as those of `docshard.find`.
fn options_of(fields: &Fields<'_>) -> Result<Json> {
    let mut options = Map::new();
    for name in OPTIONS {
        if let Some(value) = fields.get(name) {
            options.insert((*name).to_owned(), value.clone());
        }
    }
    for name in ["skip", "limit"] {
        if let Some(n) = fields.count(name)? {
            options.insert(name.to_owned(), Json::from(n));
        }
    }
    Ok(Json::Object(options))
}

/// Refuses what asks for something that is not there; false says nothing.
pub fn refuse(fields: &Fields<'_>, names: &[&str]) -> Result<()> {
    match names.iter().find(|name| fields.get(name).is_some() && fields.flag(name) != Some(false)) {
        Some(name) => Err(Error::new(Kind::NotImplemented, format!("the option '{name}' is not supported"))),
        None => Ok(()),
    }
}

/// find.
pub fn find(request: &Request<'_>) -> Result<Reply> {
    let fields = &request.fields;
    refuse(fields, &["tailable", "awaitData", "returnKey", "showRecordId"])?;
    let namespace = request.namespace()?;
    let filter = fields.json_or("filter", "{}");
    let options = options_of(fields)?;
    let batch = size(fields.count("batchSize")?, FIRST_BATCH);
    let limit = fields.count("limit")?.filter(|limit| *limit > 0);
    let single_batch = fields.flag("singleBatch").unwrap_or(false);
    let opening = Opening {
        namespace: &namespace,
        batch,
        single_batch,
        may_expire: !fields.flag("noCursorTimeout").unwrap_or(false),
    };
    // What ends within one batch needs nothing that outlives the transaction.
    if batch > 0 && limit.is_some_and(|limit| usize::try_from(limit).is_ok_and(|limit| limit <= batch)) {
        let options = FindOptions::parse(&namespace, &options, "find")?;
        let query = Query::of_find(&filter, &options)?;
        let mut documents = read::find(&namespace, &query, &options)?;
        let mut found = Vec::new();
        while let Some(document) = documents.next_document()? {
            found.push(document.bytes().to_vec());
        }
        return Ok(cursors::open_over(&opening, found)?.reply("firstBatch", &namespace));
    }
    let params = [Param::Text(&namespace), Param::Text(&filter), Param::Text(&options.to_string())];
    let found = cursors::open(&opening, "SELECT docshard.find($1, $2::json, $3::json)", &params)?;
    Ok(found.reply("firstBatch", &namespace))
}

fn size(given: Option<u64>, otherwise: usize) -> usize {
    given.map_or(otherwise, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// getMore.
pub fn get_more(request: &Request<'_>) -> Result<Reply> {
    let id = request.fields.integer("getMore")?.unwrap_or(0);
    let namespace = format!("{}.{}", request.db, request.fields.text("collection").unwrap_or_default());
    if request.fields.text("collection") == Some("") {
        return Err(Error::new(Kind::InvalidNamespace, "Collection names cannot be empty"));
    }
    let limit = request.fields.count("batchSize")?.filter(|n| *n > 0).map(|n| size(Some(n), 0));
    Ok(cursors::next(id, &namespace, limit)?.reply("nextBatch", &namespace))
}

/// killCursors.
pub fn kill_cursors(request: &Request<'_>) -> Result<Reply> {
    let namespace = format!("{}.{}", request.db, request.target_text());
    let (mut killed, mut unknown) = (Vec::new(), Vec::new());
    for (at, id) in request.fields.array("cursors").iter().enumerate() {
        let holder = json!({ "id": id });
        let fields = [super::request::must("id", super::request::Type::Integer)];
        let path = format!("{}.cursors.{at}", request.name);
        let id = Fields::parse(&holder, &path, &fields)?.integer("id")?.unwrap_or(0);
        if cursors::kill(id, &namespace)? { &mut killed } else { &mut unknown }.push(id);
    }
    Ok(Reply::of(json!({
        "cursorsKilled": killed, "cursorsNotFound": unknown, "cursorsAlive": [], "cursorsUnknown": [],
    })))
}

/// An answer that holds documents made here, as a cursor that may need more than one batch.
pub fn listing(request: &Request<'_>, namespace: &str, documents: Vec<Vec<u8>>) -> Result<Reply> {
    let batch = match request.fields.get("cursor") {
        None => None,
        Some(cursor) => {
            let fields = [super::request::may("batchSize", super::request::Type::Count)];
            Fields::parse(cursor, &format!("{}.cursor", request.name), &fields)?.count("batchSize")?
        }
    };
    let opening = Opening { namespace, batch: size(batch, usize::MAX), single_batch: false, may_expire: true };
    Ok(cursors::open_over(&opening, documents)?.reply("firstBatch", namespace))
}

/// explain: which shards a command for documents would ask, and why. Writes are not done, whatever the verbosity: what is
/// explained is how their documents are found.
pub fn explain(request: &Request<'_>) -> Result<Reply> {
    let verbosity = request.fields.text("verbosity").map(Verbosity::parse).transpose()?.unwrap_or_default();
    let inner = Request::parse(request.db, request.target())?;
    let namespace = || inner.namespace();
    if ["updates", "deletes"].iter().any(|list| inner.fields.array(list).len() > 1) {
        return Err(Error::new(Kind::InvalidLength, "explained write batches must be of size 1"));
    }
    let first = |list: &str, field: &str| -> String {
        let operation = inner.fields.array(list).first();
        operation.and_then(|operation| operation.get(field)).map_or_else(|| "{}".to_owned(), Json::to_string)
    };
    let first_hint = |list: &str| inner.fields.array(list).first().and_then(|operation| operation.get("hint")).cloned();
    let hint = match inner.spec.name {
        "update" => first_hint("updates"),
        "delete" => first_hint("deletes"),
        _ => inner.fields.get("hint").cloned(),
    };
    let (filter, options) = match inner.spec.name {
        "find" => (
            inner.fields.json_or("filter", "{}"),
            FindOptions::parse(&namespace()?, &options_of(&inner.fields)?, "find")?,
        ),
        "count" | "distinct" | "findAndModify" => (inner.fields.json_or("query", "{}"), FindOptions::default()),
        "update" => (first("updates", "q"), FindOptions::default()),
        "delete" => (first("deletes", "q"), FindOptions::default()),
        other => {
            let error = Error::new(Kind::CommandNotFound, format!("Explain failed due to unknown command: {other}"));
            let known: Vec<_> = ["find", "count", "distinct", "update", "delete", "findAndModify"].into();
            return Err(error.with_hint(format!("Commands that can be explained: {}.", known.join(", "))));
        }
    };
    let query = Query::of_find(&filter, &FindOptions { hint, ..options.clone() })?;
    let namespace = namespace()?;
    let mut plan = match inner.spec.name {
        "find" => explained(&namespace, &query, Explained::Find(&options), verbosity)?,
        "count" => {
            let (query, options) = super::documents::counted(&inner)?;
            explained(&namespace, &query, Explained::Count(&options), verbosity)?
        }
        "distinct" => {
            let field = inner.fields.text("key").unwrap_or_default();
            explained(&namespace, &query, Explained::Distinct(field), verbosity)?
        }
        _ => explained(&namespace, &query, Explained::Write, verbosity)?,
    };
    let run = plan.as_object_mut().and_then(|plan| plan.remove("executionStats"));
    let mut reply = json!({
        "queryPlanner": {
            "namespace": namespace,
            "parsedQuery": { "text": filter },
            "winningPlan": plan,
        },
    });
    if let Some(run) = run {
        reply["executionStats"] = run;
    }
    reply["serverInfo"] = super::information::server()?;
    reply["command"] = json!({ "text": request.target().to_string() });
    Ok(Reply::of(reply))
}
