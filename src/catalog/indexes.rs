//! Secondary indexes: the same on every shard that has the collection's table, also on those that get it later.

use super::model::Collection;
use super::nodes::run_on_all;
use super::{cache, change, collections, duplicate, namespace};
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::spi;
use docshard_core::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::index::IndexKeys;
use docshard_core::key::KeyPattern;
use serde_json::json;

/// The most indexes of a collection, the one on `_id` included: MongoDB's limit.
const MAX_INDEXES: usize = 64;
/// The longest name of an index, in bytes.
const MAX_NAME: usize = 128;

/// Creates an index on every shard; answers its name. The same index again is no change.
///
/// # Errors
/// `CannotCreateIndex`, `IndexKeySpecsConflict`, `IndexOptionsConflict`, `ConflictingOperationInProgress`, `DuplicateKey`.
pub fn create(ns: &str, keys_json: &str, name: Option<&str>, unique: bool) -> Result<String> {
    namespace::split(ns)?;
    let parsed = crate::pg::json::parse(keys_json)?;
    let keys = IndexKeys::parse(&parsed)?;
    let keys_json = parsed.to_string();
    let name = name.map_or_else(|| keys.default_name(), str::to_owned);
    if name.is_empty() || name == "*" || name.len() > MAX_NAME {
        let message = format!("an index's name has 1 to {MAX_NAME} bytes and is not \"*\": \"{name}\"");
        return Err(Error::new(Kind::CannotCreateIndex, message));
    }
    if cache::find(ns)?.is_none() {
        collections::create_implicitly(ns)?;
    }
    if keys.fields == [("_id".to_owned(), false)] {
        return Ok("_id_".to_owned());
    }
    if name == "_id_" {
        let message = format!(
            "The index name '_id_' is reserved for the _id index, which has the keys {{\"_id\":1}}, not {keys_json}"
        );
        return Err(Error::new(Kind::BadValue, message));
    }
    let locked = change::lock(ns)?;
    // Under the lock, so that no shard that gets the collection meanwhile is missed.
    let collection = cache::get(ns)?;
    if let Some(existing) = conflicting(&collection, &name, &keys, unique)? {
        return Ok(existing);
    }
    if unique {
        check_unique(&collection.key, &keys, &keys_json)?;
    }
    if collection.indexes.len() + 1 >= MAX_INDEXES {
        let message = format!("add index fails, too many indexes for {ns}: at most {MAX_INDEXES}");
        return Err(Error::new(Kind::CannotCreateIndex, message));
    }
    collections::refuse_while_moving(locked.id, ns)?;
    build(&collection, ns, &name, (&keys, &keys_json), unique)?;
    Ok(name)
}

fn build(
    collection: &Collection,
    ns: &str,
    name: &str,
    (keys, keys_json): (&IndexKeys, &str),
    unique: bool,
) -> Result<()> {
    let rows = spi::query(
        "INSERT INTO docshard_catalog.indexes (collection_id, name, keys, is_unique) \
         VALUES ($1, $2, $3::text::json, $4) RETURNING id",
        &[Param::Int4(collection.id), Param::Text(name), Param::Text(keys_json), Param::Bool(unique)],
    )?;
    let index = rows.first().map_or(0, |row| row.i32(0));
    let shards: Vec<ShardId> = collection.placements.keys().copied().collect();
    run_on_all(
        &shards,
        "SELECT docshard_internal.create_index($1, $2, $3, $4)",
        &[Param::Int4(collection.id), Param::Int4(index), Param::Text(keys_json), Param::Bool(unique)],
    )
    .map_err(|error| duplicate::translate_build(ns, name, &keys.fields, error))?;
    change::log("createIndex", Some(ns), &json!({"name": name, "unique": unique}))?;
    change::touch(collection.id)
}

/// The unique index of a collection that is sharded with `unique`.
///
/// # Errors
/// As [`create`].
pub fn create_for_unique_key(ns: &str, pattern: &KeyPattern) -> Result<()> {
    create(ns, &pattern.to_json().to_string(), None, true).map(|_| ())
}

/// The name of an index that is the same already; an error if one is in the way.
fn conflicting(collection: &Collection, name: &str, keys: &IndexKeys, unique: bool) -> Result<Option<String>> {
    for index in &collection.indexes {
        let same_keys = index.fields == keys.fields;
        if index.name == name {
            if same_keys && index.unique == unique {
                return Ok(Some(name.to_owned()));
            }
            let message =
                format!("An existing index has the same name as the requested index: {name}, keys {}", index.keys_json);
            return Err(Error::new(Kind::IndexKeySpecsConflict, message));
        }
        if same_keys {
            let message = format!("Index already exists with a different name: {}", index.name);
            return Err(Error::new(Kind::IndexOptionsConflict, message));
        }
    }
    Ok(None)
}

/// Uniqueness holds on each shard alone, so the shard key must come first.
fn check_unique(pattern: &KeyPattern, keys: &IndexKeys, keys_json: &str) -> Result<()> {
    let prefixed = pattern.hashed_field().is_none()
        && keys.fields.len() >= pattern.fields.len()
        && pattern.fields.iter().zip(&keys.fields).all(|((path, _), (field, _))| path == field);
    if pattern.is_unsharded() || prefixed {
        return Ok(());
    }
    Err(Error::new(
        Kind::CannotCreateIndex,
        format!("cannot create unique index over {keys_json} with shard key pattern {}", pattern.to_json()),
    )
    .with_hint("A unique index of a sharded collection starts with the fields of its (not hashed) shard key."))
}

/// Drops an index everywhere.
///
/// # Errors
/// `IndexNotFound`, `InvalidOptions` for `_id_`, `NamespaceNotFound`.
pub fn drop(ns: &str, name: &str) -> Result<()> {
    super::shards::check_router()?;
    namespace::split(ns)?;
    if name == "_id_" {
        return Err(Error::new(Kind::InvalidOptions, "cannot drop _id index"));
    }
    let locked = change::lock(ns)?;
    let collection = cache::get(ns)?;
    let Some(index) = collection.indexes.iter().find(|index| index.name == name) else {
        return Err(Error::new(Kind::IndexNotFound, format!("index not found with name [{name}]")));
    };
    let is_key = |path: &(String, _), field: &(String, bool)| path.0 == field.0;
    if collection.unique
        && index.unique
        && index.fields.len() == collection.key.fields.len()
        && collection.key.fields.iter().zip(&index.fields).all(|(path, field)| is_key(&(path.0.clone(), ()), field))
    {
        return Err(Error::new(Kind::InvalidOptions, "cannot drop the unique index of the shard key"));
    }
    collections::refuse_while_moving(locked.id, ns)?;
    let shards: Vec<ShardId> = collection.placements.keys().copied().collect();
    run_on_all(&shards, "SELECT docshard_internal.drop_index($1)", &[Param::Int4(index.id)])?;
    spi::execute("DELETE FROM docshard_catalog.indexes WHERE id = $1", &[Param::Int4(index.id)])?;
    change::log("dropIndex", Some(ns), &json!({"name": name}))?;
    change::touch(collection.id)
}
