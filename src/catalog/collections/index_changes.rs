//! Changes what the router does with an index: whether it uses the index, and when documents expire. Nothing changes on the shards.

use super::namespace;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::collections::index_options::IndexOptions;
use crate::catalog::collections::index_removal::{is_last_of_key, named_by};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store;
use docshard_core::error::{Kind, bail, error};
use serde_json::{Value as Json, json};

/// The changes of an index; None leaves a property unchanged.
#[derive(Clone, Copy, Debug)]
pub struct IndexChange {
    pub hidden: Option<bool>,
    pub expire_after_s: Option<i64>,
}

/// The properties of an index before and after a change.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    pub hidden: (bool, bool),
    pub expire_after_s: (Option<i64>, Option<i64>),
}

/// How an index is identified.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    Name(&'a str),
    Keys(&'a Json),
}

/// Changes an index.
/// Errors: `IndexNotFound`, `AmbiguousIndexKeyPattern`; `BadValue` for the index on `_id`; `InvalidOptions` for the shard key's own index,
/// for a change that the index's other options exclude, and for one that would hide the last index of the shard key; those of
/// [`check_may_change`], [`namespace::split`], [`change::lock`] and [`change::refuse_while_building`].
pub fn change(ns: &str, which: Which<'_>, wanted: IndexChange) -> Result<Changed> {
    check_may_change()?;
    namespace::split(ns)?;
    let locked = change::lock(ns)?;
    let collection = cache::get(ns)?;
    let name = match which {
        Which::Name(name) => name.to_owned(),
        Which::Keys(keys) => named_by(&collection, keys)?,
    };
    if name == "_id_" {
        bail!(Kind::BadValue, "the index _id_ cannot be changed");
    }
    let Some(index) = collection.indexes.iter().find(|index| index.name == name) else {
        if collection.key_index().is_some_and(|own| own.default_name() == name) {
            bail!(Kind::InvalidOptions, "{name} is the shard key's own index, which cannot be changed");
        }
        return Err(error!(Kind::IndexNotFound, "cannot find index {name} for ns {ns}"));
    };
    let options = IndexOptions {
        hidden: wanted.hidden.unwrap_or(index.hidden),
        expire_after_s: wanted.expire_after_s.or(index.expire_after_s),
        ..IndexOptions::from(index)
    };
    options.check(&index.keys).map_err(|error| Error::new(Kind::InvalidOptions, error.message.clone()))?;
    let hides = options.hidden && !index.hidden;
    if hides && index.begins_with_key(&collection.key) && is_last_of_key(&collection, &name) {
        bail!(Kind::InvalidOptions, "Cannot hide the only compatible index for this collection's shard key");
    }
    change::refuse_while_building(locked.id, ns)?;
    let changed = Changed {
        hidden: (index.hidden, options.hidden),
        expire_after_s: (index.expire_after_s, options.expire_after_s),
    };
    store::indexes::set_options(index.id, options.hidden, options.expire_after_s)?;
    let details = json!({"index": name, "hidden": options.hidden, "expireAfterSeconds": options.expire_after_s});
    change::log("collMod", Some(ns), &details)?;
    change::touch(collection.id)?;
    Ok(changed)
}
