//! Drops secondary indexes.

use super::namespace;
use crate::catalog::change::refuse_while_building;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::pending_drops::{self, Dropped};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, bail, error};
use docshard_core::json::pairs_as_object;
use docshard_core::query::index::IndexKeys;
use docshard_core::routing::model::{Collection, Index};
use serde_json::{Value as Json, json};

/// Drops indexes on all shards. `which`: an array of names, one name, the keys of one index (an object), or `"*"`. `"*"` drops all indexes
/// except the one on `_id`; if the shard key is ranged, the indexes that begin with it stay, too. If the shard key is hashed, its own index
/// is also dropped. Returns how many indexes there were before, including the one on `_id`.
/// Errors: those of [`drop`] and [`named_by`]; `TypeMismatch`.
pub fn drop_some(ns: &str, which: &Json) -> Result<usize> {
    check_may_change()?;
    namespace::split(ns)?;
    let collection = cache::get(ns)?;
    let mut names: Vec<String> = Vec::new();
    // MongoDB reads `["*"]` as `"*"`.
    let which = match which {
        Json::Array(list) if list.len() == 1 && list[0] == "*" => &list[0],
        which => which,
    };
    match &*pairs_as_object(which) {
        Json::String(all) if all == "*" => {
            let key = &collection.key;
            let hashed = key.hashed_field().is_some();
            let stays = |index: &&Index| !key.is_unsharded() && !hashed && index.begins_with_key(key);
            names.extend(collection.indexes.iter().filter(|index| !stays(index)).map(|index| index.name.clone()));
            names.extend(collection.key_index().filter(|_| hashed).map(|keys| keys.default_name()));
        }
        Json::String(name) => names.push(name.clone()),
        Json::Array(list) => {
            for name in list {
                let wrong = || error!(Kind::TypeMismatch, "an array of indexes to drop must contain names");
                names.push(name.as_str().ok_or_else(wrong)?.to_owned());
            }
        }
        keys @ Json::Object(_) => names.push(named_by(&collection, keys)?),
        _ => {
            let message = "the index to drop must be a name, keys, an array of names, or \"*\"";
            return Err(Error::new(Kind::TypeMismatch, message));
        }
    }
    for name in &names {
        drop(ns, name)?;
    }
    Ok(collection.count_of_indexes())
}

/// True if the shard key needs an index, and no index except `name` serves it. MongoDB's rule: a ranged shard key needs a visible index that
/// begins with it, a hashed one does not. A unique shard key needs a unique index with exactly its keys.
pub(super) fn is_last_of_key(collection: &Collection, name: &str) -> bool {
    let key = &collection.key;
    let is_enough = |index: &Index| !collection.unique || (index.unique && index.is_of_key(key));
    let serves = |index: &Index| !index.hidden && index.name != name && index.begins_with_key(key) && is_enough(index);
    let keeps_own_index = collection.key_index().is_some_and(|keys| keys.default_name() != name);
    key.hashed_field().is_none()
        && !key.is_in_order_of_id()
        && !keeps_own_index
        && !collection.indexes.iter().any(serves)
}

/// Returns the name of the index that has these keys.
/// Errors: `IndexNotFound`, `AmbiguousIndexKeyPattern`; those of [`IndexKeys::parse`].
pub(super) fn named_by(collection: &Collection, keys: &Json) -> Result<String> {
    let pattern = IndexKeys::parse(keys)?;
    if pattern.is_of_id() {
        return Ok("_id_".to_owned());
    }
    let own = collection.key_index().filter(|own| own.has_pattern_of(&pattern)).map(|own| own.default_name());
    let same = collection.indexes.iter().filter(|index| index.keys.has_pattern_of(&pattern));
    let found: Vec<String> = own.into_iter().chain(same.map(|index| index.name.clone())).collect();
    match found.as_slice() {
        [] => Err(error!(Kind::IndexNotFound, "can't find index with key: {keys}")),
        [name] => Ok(name.clone()),
        several => {
            let message = format!("{} indexes found for key: {keys}", several.len());
            let hint = format!("Identify it by its name instead: {}.", several.join(", "));
            Err(Error::new(Kind::AmbiguousIndexKeyPattern, message).with_hint(hint))
        }
    }
}

/// Drops an index on all shards.
/// Errors: `IndexNotFound`, `InvalidOptions` for `_id_`, `CannotDropShardKeyIndex`; those of [`check_may_change`], [`namespace::split`],
/// [`move_exclusion::lock`] and [`refuse_while_building`]; the shards' errors.
pub fn drop(ns: &str, name: &str) -> Result<()> {
    check_may_change()?;
    namespace::split(ns)?;
    if name == "_id_" {
        bail!(Kind::InvalidOptions, "cannot drop _id index");
    }
    let not_found = || error!(Kind::IndexNotFound, "index not found with name [{name}]");
    let is_own = |collection: &Collection| collection.key_index().is_some_and(|keys| keys.default_name() == name);
    let known = cache::get(ns)?;
    if !is_own(&known) && !known.indexes.iter().any(|index| index.name == name) {
        return Err(not_found());
    }
    let locked = move_exclusion::lock(ns)?;
    let collection = cache::get(ns)?;
    let found = collection.indexes.iter().find(|index| index.name == name);
    if found.is_none() && !is_own(&collection) {
        return Err(not_found());
    }
    // An index with the keys of the shard key, but other options, is not the shard key's own index: if it is dropped, the own index stays. If
    // both have the same name, `Collection::key_index` returns the own index only after the other one is dropped.
    let own_index_stays = collection.has_key_index
        && found.is_some_and(|index| {
            let options = (index.unique, index.hidden, index.expire_after_s);
            index.is_of_key(&collection.key) && options != (collection.unique, false, None)
        });
    let serves_key = found.is_none_or(|index| index.begins_with_key(&collection.key));
    if serves_key && !own_index_stays && is_last_of_key(&collection, name) {
        let message = "Cannot drop the only compatible index for this collection's shard key";
        return Err(Error::new(Kind::CannotDropShardKeyIndex, message));
    }
    refuse_while_building(locked.id, ns)?;
    let mut pending = Vec::new();
    if let Some(index) = found {
        let shards: Vec<ShardId> = collection.placements.keys().copied().collect();
        pending =
            pending_drops::drop_everywhere(&shards, Dropped::Index(index.id), &format!("the index {name} of {ns}"))?;
        store::indexes::delete(index.id)?;
    }
    if !own_index_stays && found.is_none_or(|index| index.is_of_key(&collection.key)) {
        store::collections::drop_key_index(collection.id)?;
    }
    let details = if pending.is_empty() { json!({"name": name}) } else { json!({"name": name, "pending": pending}) };
    change::log("dropIndex", Some(ns), &details)?;
    change::touch(collection.id)
}
