//! The database `config`. Orders the fields of its documents as MongoDB does, and runs the updates by which helpers of MongoDB's shell
//! change settings, such as `sh.disableBalancing()`. Nothing is stored there: each field that may be set stands for an operation.

use super::reply::{Document, Reply, integer};
use super::request::Request;
use crate::catalog::cache;
use crate::catalog::collections::namespace::check_writable;
use crate::operation::arguments::{Arguments, Form, Type, mismatch, number};
use crate::operation::table;
use crate::operation::{balancer, cluster, writing};
use crate::pg::error::Result;
use crate::router::source;
use docshard_core::error::{Kind, bail};
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use docshard_core::values::key::KeyPattern;
use serde_json::{Map, Value as Json};

/// The operation that sets a field of a document. Its arguments are the request, the document's `_id`, and the field's new value;
/// None: the field is removed.
type Set = fn(&Request<'_>, &str, Option<&Json>) -> Result<()>;

/// The fields that may be set: collection, `_id` (None: any), field, and the operation.
const SETTABLE: &[(&str, Option<&str>, &str, Set)] = &[
    ("settings", Some("chunksize"), "value", set_chunk_size),
    ("settings", Some("balancer"), "stopped", |request, _, value| set_balancer(request, boolean("stopped", value)?)),
    ("settings", Some("balancer"), "mode", set_mode),
    ("settings", Some("balancer"), "activeWindow", set_window),
    ("collections", None, "noBalance", set_balancing),
];

/// Runs the updates of a command. They are one transaction, so the first error fails the command.
pub fn update(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let updates = request.fields.array("updates");
    writing::check_size(updates.len())?;
    let mut matched = 0;
    for update in updates {
        let update = Arguments::parse(update, Form::Command("update.updates"), table::UPDATE_ELEMENT)?;
        let Some(id) = update.get("filter").and_then(id) else { return refused(&namespace) };
        if request.target_text() == "collections" && cache::find(id)?.is_none_or(|found| found.key.is_unsharded()) {
            continue;
        }
        let Some(changes) = changes(update.get("update")).filter(|changes| !changes.is_empty()) else {
            return refused(&namespace);
        };
        for (field, value) in changes {
            let is_wanted = |row: &&(&str, Option<&str>, &str, Set)| {
                row.0 == request.target_text() && row.1.is_none_or(|known| known == id) && row.2 == field
            };
            let Some((_, _, _, set)) = SETTABLE.iter().find(is_wanted) else { return refused(&namespace) };
            set(request, id, value)?;
        }
        matched += 1;
    }
    Ok(Reply::ok().with("n", integer(matched)).with("nModified", integer(matched)))
}

/// Puts the fields of documents of a virtual collection into MongoDB's order, and the fields of shard keys and bounds into the order of the
/// shard key: jsonb keeps no order. Documents of other collections stay as they are.
pub fn ordered(documents: Vec<Document>, namespace: &str) -> Result<Vec<Document>> {
    let Some(fields) = source::field_order(namespace) else { return Ok(documents) };
    documents.into_iter().map(|document| in_order(document, fields)).collect()
}

fn in_order(document: Document, names: &str) -> Result<Document> {
    let Document::Stored(bytes) = document else { return Ok(document) };
    let Some(stored) = raw::document(&bytes) else { return Ok(Document::Stored(bytes)) };
    let mut fields: Vec<(String, Value)> =
        stored.iter().map(|(name, value)| (name.to_owned(), Value::from_raw(value))).collect();
    let position = |wanted: &str| names.split(' ').position(|name| name == wanted).unwrap_or(usize::MAX);
    fields.sort_by_key(|(name, _)| position(name));
    let namespace = ["ns", "_id"].into_iter().find_map(|wanted| match fields.iter().find(|(name, _)| name == wanted) {
        Some((_, Value::String(namespace))) => Some(namespace.clone()),
        _ => None,
    });
    let collection = namespace.map(|namespace| cache::find(&namespace)).transpose()?.flatten();
    for (name, value) in fields.iter_mut().filter(|(name, _)| ["_id", "key", "min", "max"].contains(&name.as_str())) {
        if let Some(collection) = &collection {
            order_key(value, &collection.key, name == "_id");
        }
    }
    Ok(Document::Made(Value::fixed_object(fields), bytes))
}

/// Orders the fields of a shard key or a bound. If `is_id` is true, the value is an `_id` instead, which may have a bound as its field
/// `min`.
fn order_key(value: &mut Value, key: &KeyPattern, is_id: bool) {
    let Value::Object(fields) = value else { return };
    let mut fields: Vec<(String, Value)> = fields.iter().cloned().collect();
    if is_id {
        fields.sort_by_key(|(name, _)| name != "ns");
        fields.iter_mut().filter(|(name, _)| name == "min").for_each(|(_, min)| order_key(min, key, false));
    } else {
        let position = |wanted: &str| key.fields.iter().position(|(path, _)| path == wanted);
        fields.sort_by_key(|(name, _)| position(name).unwrap_or(usize::MAX));
    }
    *value = Value::fixed_object(fields);
}

fn refused(namespace: &str) -> Result<Reply> {
    check_writable(namespace).map(|()| Reply::ok())
}

/// Returns the `_id` of a filter by `_id` alone; None for another filter.
fn id(filter: &Json) -> Option<&str> {
    let fields = filter.as_object().filter(|fields| fields.len() == 1)?;
    let id = fields.get("_id")?;
    id.get("$eq").unwrap_or(id).as_str()
}

/// Returns the fields that an update sets (with values) or removes (None); None if the update does anything else.
fn changes(update: Option<&Json>) -> Option<Vec<(&String, Option<&Json>)>> {
    let fields = update?.as_object()?;
    let mut changes = Vec::new();
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("$set", Json::Object(set)) => changes.extend(set.iter().map(|(field, value)| (field, Some(value)))),
            ("$unset", Json::Object(unset)) => changes.extend(unset.keys().map(|field| (field, None))),
            // A replacement may repeat the `_id`, which does not change.
            ("_id", _) => {}
            (operator, _) if operator.starts_with('$') => return None,
            (_, value) => changes.push((name, Some(value))),
        }
    }
    Some(changes)
}

fn boolean(name: &str, value: Option<&Json>) -> Result<bool> {
    match value {
        None => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(other) => Err(mismatch(name, other, Type::StrictBool)),
    }
}

fn set(request: &Request<'_>, name: &str, value: Option<&str>) -> Result<()> {
    request.administer(&table::SET_SETTING, || cluster::set_setting(name, value)).map(|_| ())
}

fn set_chunk_size(request: &Request<'_>, _: &str, value: Option<&Json>) -> Result<()> {
    let Some(value) = value else { return set(request, "chunk_size_mb", None) };
    match number(value).and_then(|number| number.as_i64()) {
        Some(mb) => set(request, "chunk_size_mb", Some(&mb.to_string())),
        None => Err(mismatch("value", value, Type::Integer)),
    }
}

fn set_balancer(request: &Request<'_>, stopped: bool) -> Result<()> {
    match stopped {
        true => request.administer(&table::STOP_BALANCER, || balancer::stop(60_000)),
        false => request.administer(&table::START_BALANCER, balancer::start),
    }
    .map(|_| ())
}

fn set_mode(request: &Request<'_>, _: &str, value: Option<&Json>) -> Result<()> {
    match value.and_then(Json::as_str) {
        Some("off") => set_balancer(request, true),
        Some("full") | None => set_balancer(request, false),
        Some(other) => bail!(Kind::BadValue, "the balancer's mode is \"full\" or \"off\", not \"{other}\""),
    }
}

fn set_window(request: &Request<'_>, _: &str, value: Option<&Json>) -> Result<()> {
    let window = match value {
        None => &Map::new(),
        Some(Json::Object(window)) => window,
        Some(other) => return Err(mismatch("activeWindow", other, Type::Object)),
    };
    let ends = [("start", "active_window_start"), ("stop", "active_window_stop")];
    for (end, setting) in ends {
        let time = window.get(end).and_then(Json::as_str);
        if time.is_none() && value.is_some() {
            bail!(Kind::BadValue, "activeWindow needs start and stop, such as \"23:00\"");
        }
        set(request, setting, time)?;
    }
    Ok(())
}

fn set_balancing(request: &Request<'_>, ns: &str, value: Option<&Json>) -> Result<()> {
    match boolean("noBalance", value)? {
        true => request.administer(&table::DISABLE_BALANCING, || balancer::set_balancing(ns, false)),
        false => request.administer(&table::ENABLE_BALANCING, || balancer::set_balancing(ns, true)),
    }
    .map(|_| ())
}
