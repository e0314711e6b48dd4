//! Commands that create, drop, list and measure databases, collections and indexes.

use super::find::listing;
use super::reply::{Document, Reply, ReplyNode};
use super::request::Request;
use crate::catalog::cache;
use crate::catalog::collections::{grants, namespace, views};
use crate::indexing;
use crate::operation::arguments::{Arguments, Fields, Form, Type, mismatch, number};
use crate::operation::{collections, shards, table};
use crate::pg::error::{Error, Result};
use crate::router::reads::cluster_statistics::readable;
use crate::router::reads::collection_sizes::{self, Measured};
use crate::router::source::{self, Source};
use crate::store;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::filter::Filter;
use docshard_core::routing::model::Collection;
use docshard_core::values::collation::Collator;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, raw};
use serde_json::{Map, Value as Json, json};
use std::time::Instant;

pub fn create(request: &Request<'_>) -> Result<Reply> {
    if let Some(index) = request.fields.get("idIndex") {
        check_id_index(index, request.fields.get("collation"))?;
    }
    let namespace = request.namespace()?;
    let create = || collections::create(&namespace, &request.fields, true);
    request.change(&table::CREATE_COLLECTION, owned(request, &namespace), create).map(Reply::of)
}

/// Returns what a role must own to make this change: the database for a change of a view, otherwise the collection.
///
/// A view reads any collection of its database, with the rights of the role that reads the view. Suppose that a role owns the name `one`
/// only, and replaces the collection by a view of `two`: other roles' functions and views that read `one` would show it the documents of `two`.
fn owned<'a>(request: &Request<'a>, namespace: &'a str) -> &'a str {
    let is_view = ["viewOn", "pipeline"].iter().any(|field| request.fields.get(field).is_some());
    if is_view { request.db } else { namespace }
}

/// Checks a definition of the index on `_id`. Every collection has this index, and its name is always the same.
fn check_id_index(index: &Json, collation: Option<&Json>) -> Result<()> {
    let index = read_index(index, "create.idIndex", table::ID_INDEX)?;
    let key = index.get("key").unwrap_or(&Json::Null);
    let is_ascending = |direction: &Json| number(direction).is_some_and(|number| number.to_f64() == 1.0);
    if key.as_object().is_none_or(|key| key.len() != 1 || !key.get("_id").is_some_and(is_ascending)) {
        bail!(Kind::BadValue, "The field 'key' for an _id index must be {{_id: 1}}, but got {key}");
    }
    if index.text("name") == Some("") {
        bail!(Kind::CannotCreateIndex, "The name of an index cannot be empty");
    }
    let Some(own) = index.get("collation") else { return Ok(()) };
    let definition = |json: &Json| Ok::<_, Error>(Collator::parse(json)?.map(|parsed| parsed.definition().clone()));
    if definition(own)? != collation.map(definition).transpose()?.flatten() {
        bail!(Kind::BadValue, "The _id index must have the collection's collation, but got {own}");
    }
    Ok(())
}

pub fn modify(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let modify = || collections::modify(&namespace, &request.fields);
    let mut answer = request.change(&table::MODIFY_COLLECTION, owned(request, &namespace), modify)?;
    // In MongoDB's answer these are 64-bit integers, whatever their values.
    let longs: Vec<(&str, i64)> = ["expireAfterSeconds_old", "expireAfterSeconds_new"]
        .into_iter()
        .filter_map(|name| Some((name, answer.as_object_mut()?.shift_remove(name)?.as_i64()?)))
        .collect();
    Ok(longs.into_iter().fold(Reply::of(answer), |reply, (name, value)| reply.with(name, ReplyNode::Long(value))))
}

fn count_of_indexes(collection: &Collection) -> i64 {
    i64::try_from(collection.count_of_indexes()).unwrap_or(i64::MAX)
}

pub fn drop(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let collection = cache::find(&namespace)?;
    // To drop what does not exist is no error.
    if collection.is_none() && cache::view(&namespace)?.is_none() {
        return request.change(&table::DROP_COLLECTION, &namespace, || Ok(Reply::ok()));
    }
    let drop = || {
        crate::catalog::collections::collection::drop(&namespace)?;
        Ok(match &collection {
            Some(collection) => json!({"nIndexesWas": count_of_indexes(collection), "ns": namespace}),
            None => json!({"ns": namespace}),
        })
    };
    request.change(&table::DROP_COLLECTION, &namespace, drop).map(Reply::of)
}

pub fn drop_database(request: &Request<'_>) -> Result<Reply> {
    if number(request.target).map(|number| number.to_i64_rounded()) != Some(1) {
        bail!(Kind::Location(5255100), "have to pass 1 as db parameter");
    }
    request.administer(&table::DROP_DATABASE, || shards::drop_database(request.db))?;
    Ok(Reply::ok())
}

/// Makes the checks for which MongoDB has special error codes.
fn check_index(fields: &Arguments<'_>) -> Result<()> {
    fields.check_conflicts(table::INDEX_CONFLICTS)?;
    if let Some(given) = fields.raw("expireAfterSeconds").filter(|given| number(given).is_none()) {
        bail!(Kind::CannotCreateIndex, "TTL index 'expireAfterSeconds' option must be numeric, not {given}");
    }
    let Some(version) = fields.get("v").and_then(number) else { return Ok(()) };
    match version.as_i64() {
        Some(2) => Ok(()),
        Some(1) if fields.get("collation").is_none() => Ok(()),
        Some(1) => Err(error!(Kind::CannotCreateIndex, "an index of version 1 has no collation")),
        Some(n) => {
            Err(error!(Kind::CannotCreateIndex, "Invalid index specification: cannot create an index with v={n}"))
        }
        None => Err(error!(Kind::BadValue, "Index version must be representable as a 32-bit integer")),
    }
}

fn read_index<'a>(index: &'a Json, path: &'a str, known: Fields) -> Result<Arguments<'a>> {
    let is_known = |name: &str| known.iter().flat_map(|group| group.iter()).any(|field| field.name == name);
    if let Some(name) = index.as_object().and_then(|fields| fields.keys().find(|name| !is_known(name))) {
        bail!(Kind::InvalidIndexSpecificationOption, "The field '{name}' is not valid for an index specification");
    }
    let fields = Arguments::parse(index, Form::Command(path), known)?;
    check_index(&fields)?;
    Ok(fields)
}

pub fn create_indexes(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let indexes = request.fields.array("indexes");
    if indexes.is_empty() {
        bail!(Kind::BadValue, "Must specify at least one index to create");
    }
    let before = cache::find(&namespace)?;
    let element = |index| read_index(index, "createIndexes.indexes", table::INDEX_ELEMENT);
    let given = indexes.iter().map(element).collect::<Result<Vec<_>>>()?;
    let is_owner = grants::owns(&namespace)?;
    request.change(&table::CREATE_INDEX, &namespace, || {
        let wanted = given.iter().map(|fields| {
            let keys = fields.get("key").map(Json::to_string).unwrap_or_default();
            Ok((keys, collections::index_options(&namespace, fields)?))
        });
        let sole = request.sole && (!is_owner || indexing::reserve_for_owner());
        collections::create_indexes(&namespace, &wanted.collect::<Result<Vec<_>>>()?, None, sole)
    })?;
    let (was, is) = (before.as_ref().map_or(1, |c| count_of_indexes(c)), count_of_indexes(&*cache::get(&namespace)?));
    let mut answer = json!({
        "numIndexesBefore": was, "numIndexesAfter": is, "createdCollectionAutomatically": before.is_none(),
    });
    if was == is {
        answer["note"] = "all indexes already exist".into();
    }
    Ok(Reply::of(answer))
}

pub fn drop_indexes(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let which = request.fields.get("index").unwrap_or(&Json::Null);
    if !which.is_string() && !which.is_array() && ext_json::document(which).is_none() {
        return Err(mismatch("dropIndexes.index", which, Type::StringOrObject));
    }
    let drop = || collections::drop_indexes(&namespace, which);
    request.change(&table::DROP_INDEXES, &namespace, drop).map(Reply::of)
}

fn id_index() -> Json {
    json!({"v": 2, "key": {"_id": 1}, "name": "_id_"})
}

pub fn list_indexes(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::LIST_INDEXES)?;
    let namespace = request.namespace()?;
    let source = Source::of(&namespace)?;
    if !source.exists() {
        views::refuse(&namespace)?;
        bail!(Kind::NamespaceNotFound, "ns does not exist: {namespace}");
    }
    let mut indexes = vec![id_index()];
    if let Some(collection) = source.stored() {
        if let Some(keys) = collection.key_index() {
            indexes.push(json!({"v": 2, "key": collection.key.to_json(), "name": keys.default_name()}));
        }
        for index in &collection.indexes {
            indexes.push(index.shown()?);
        }
    }
    // The catalog has only indexes that are complete, so no information about their build is added.
    let is_nested = request.fields.flag("includeIndexBuildInfo");
    let documents =
        indexes.into_iter().map(|index| Document::made(&if is_nested { json!({"spec": index}) } else { index }));
    listing(request, &namespace, documents.collect::<Result<_>>()?)
}

pub fn filtered(request: &Request<'_>, documents: Vec<Document>) -> Result<Vec<Document>> {
    let Some(filter) = request.fields.get("filter") else { return Ok(documents) };
    let filter = Filter::parse(filter)?;
    let matches = |it: &Document| raw::document(it.bytes()).is_some_and(|document| filter.matches(document));
    Ok(documents.into_iter().filter(matches).collect())
}

pub fn list_collections(request: &Request<'_>) -> Result<Reply> {
    let name_only = request.fields.flag("nameOnly");
    let mut documents = Vec::new();
    for name in source::virtual_names(request.db) {
        let mut shown = json!({"name": name, "type": "collection"});
        if !name_only {
            shown["options"] = json!({});
            shown["info"] = json!({"readOnly": true});
            shown["idIndex"] = id_index();
        }
        documents.push(Document::made(&shown)?);
    }
    for collection in store::collections::listed(request.db)? {
        let mut shown = json!({"name": collection.name, "type": "collection"});
        if !name_only {
            let mut options = match collection.validation {
                Some(validation) => docshard_core::query::specification::parse(&validation)?,
                None => json!({}),
            };
            if let Some(collation) = collection.collation {
                options["collation"] = collation;
            }
            shown["options"] = options;
            shown["info"] = json!({"readOnly": false, "uuid": collection.uuid});
            shown["idIndex"] = id_index();
        }
        documents.push(Document::made(&shown)?);
    }
    for view in views::of_database(request.db)? {
        let mut shown = json!({"name": view.name(), "type": "view"});
        if !name_only {
            let mut options = json!({"viewOn": view.view_on, "pipeline": view.stages});
            if let Some(collator) = view.collation() {
                options["collation"] = collator.definition().clone();
            }
            shown["options"] = options;
            shown["info"] = json!({"readOnly": true});
        }
        documents.push(Document::made(&shown)?);
    }
    let documents = filtered(request, documents)?;
    listing(request, &format!("{}.$cmd.listCollections", request.db), documents)
}

pub fn list_databases(request: &Request<'_>) -> Result<Reply> {
    let name_only = request.fields.flag("nameOnly");
    let stored = store::databases::all()?.into_iter().map(|database| database.name);
    let names = stored.chain(source::VIRTUAL.iter().map(|name| (*name).to_owned()));
    let (mut documents, mut total) = (Vec::new(), 0);
    for name in names {
        let mut shown = json!({"name": name});
        let mut size = 0;
        if !name_only {
            let mut by_shard: Map<String, Json> = Map::new();
            for collection in readable(Some(&name))? {
                for part in collection_sizes::collection(&collection)? {
                    size += part.total();
                    let before = by_shard.get(&part.shard).and_then(Json::as_i64).unwrap_or(0);
                    by_shard.insert(part.shard.clone(), (before + part.total()).into());
                }
            }
            shown["sizeOnDisk"] = json!({"$numberLong": size.to_string()});
            shown["empty"] = (size == 0 && !source::VIRTUAL.contains(&name.as_str())).into();
            shown["shards"] = by_shard.into();
        }
        let wanted = filtered(request, vec![Document::made(&shown)?])?;
        total += if wanted.is_empty() { 0 } else { size };
        documents.extend(wanted);
    }
    let mut reply = Reply::ok().with("databases", ReplyNode::Documents(documents));
    if !name_only {
        reply = reply.with("totalSize", ReplyNode::Long(total)).with("totalSizeMb", ReplyNode::Long(total >> 20));
    }
    Ok(reply)
}

fn scale(request: &Request<'_>) -> Result<i64> {
    match request.fields.safe_integer("scale") {
        None => Ok(1),
        Some(n) if n > 0 => Ok(n),
        Some(n) => Err(error!(Kind::BadValue, "BSON field 'scale' value must be >= 1, actual value '{n}'")),
    }
}

pub fn coll_stats(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.namespace()?;
    let scale = scale(request)?;
    views::refuse(&namespace)?;
    let collection = cache::find(&namespace)?;
    let parts = collection_sizes::of_namespace(&namespace)?;
    let mut answer = collection_sizes::sizes(&parts, scale);
    answer["ns"] = namespace.as_str().into();
    answer["scaleFactor"] = scale.into();
    answer["capped"] = false.into();
    // A collection of the database config has only the index on _id.
    answer["nindexes"] = collection.as_deref().map_or(parts.len() as i64, count_of_indexes).into();
    let Some(collection) = collection else { return Ok(Reply::of(answer)) };
    let sharded = !collection.key.is_unsharded();
    answer["sharded"] = sharded.into();
    answer["nchunks"] = collection.map.len().into();
    if sharded {
        answer["shardKey"] = collection.key.to_json();
    } else if let Some(part) = parts.first() {
        answer["primary"] = part.shard.as_str().into();
    }
    let shards: Map<String, Json> = parts
        .iter()
        .map(|part| (part.shard.clone(), collection_sizes::sizes(std::slice::from_ref(part), scale)))
        .collect();
    answer["shards"] = shards.into();
    Ok(Reply::of(answer))
}

/// Returns the size of a collection's documents and their number, as measured at its tables.
pub fn data_size(request: &Request<'_>) -> Result<Reply> {
    let namespace = request.target_text();
    namespace::split(namespace)?;
    if let Some(bound) = ["min", "max", "keyPattern"].into_iter().find(|name| request.fields.get(name).is_some()) {
        bail!(Kind::NotImplemented, "the option '{bound}' is not supported");
    }
    views::refuse(namespace)?;
    let began = Instant::now();
    let parts = collection_sizes::of_namespace(namespace)?;
    let sum = |of: fn(&Measured) -> i64| parts.iter().map(of).sum::<i64>();
    Ok(Reply::ok()
        .with("estimate", Value::Bool(request.fields.flag("estimate")))
        .with("size", ReplyNode::Long(sum(|part| part.bytes)))
        .with("numObjects", ReplyNode::Long(sum(|part| part.documents)))
        .with("millis", ReplyNode::Long(i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX))))
}

pub fn rename(request: &Request<'_>) -> Result<Reply> {
    let (from, to) = (request.target_text(), request.text("to"));
    if request.fields.get("dropTarget").is_some_and(|given| !given.is_boolean()) {
        bail!(Kind::NotImplemented, "dropTarget must be true or false: a UUID is not supported");
    }
    for namespace in [from, to] {
        if namespace.len() > namespace::MAX_NAMESPACE || namespace.contains('$') {
            bail!(Kind::IllegalOperation, "a collection cannot be renamed from or to '{namespace}'");
        }
        if namespace::is_system(namespace) || namespace.starts_with("local.oplog.") {
            bail!(Kind::IllegalOperation, "{namespace} is a collection of the system");
        }
    }
    let rename = || collections::rename(from, to, &request.fields);
    // The owner of one of the two names alone needs the right to execute the function.
    let name = if grants::owns(from)? { to } else { from };
    request.change(&table::RENAME_COLLECTION, name, rename).map(Reply::of)
}

pub fn db_stats(request: &Request<'_>) -> Result<Reply> {
    let scale = scale(request)?;
    namespace::check_database(request.db)?;
    let collections = readable(Some(request.db))?;
    let (mut parts, mut indexes) = (Vec::new(), 0);
    for collection in &collections {
        indexes += count_of_indexes(collection);
        parts.extend(collection_sizes::collection(collection)?);
    }
    let mut count = collections.len();
    for name in source::virtual_names(request.db) {
        let measured = collection_sizes::of_namespace(&format!("{}.{name}", request.db))?;
        (count, indexes) = (count + measured.len(), indexes + measured.len() as i64);
        parts.extend(measured);
    }
    let sum = |of: fn(&Measured) -> i64| parts.iter().map(of).sum::<i64>();
    let (documents, bytes) = (sum(|p| p.documents), sum(|p| p.bytes));
    let number = |count: usize| json!({"$numberLong": count.to_string()});
    let long = |value: i64| json!({"$numberLong": value.to_string()});
    let scaled = |size: i64| json!(size as f64 / scale as f64);
    Ok(Reply::of(json!({
        "db": request.db,
        "collections": number(count),
        "views": number(views::of_database(request.db)?.len()),
        "objects": long(documents),
        "avgObjSize": if documents == 0 { 0.0 } else { bytes as f64 / documents as f64 },
        "dataSize": scaled(bytes),
        "storageSize": scaled(sum(|p| p.storage)),
        "indexes": long(indexes),
        "indexSize": scaled(sum(Measured::of_indexes)),
        "totalSize": scaled(sum(Measured::total)),
        "scaleFactor": long(scale),
    })))
}
