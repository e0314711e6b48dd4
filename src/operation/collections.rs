//! Administration of collections and their indexes.

use super::arguments::{Arguments, Field, Form};
use super::table::{CREATE_INDEXES, INDEX_CHANGE, INDEX_CHANGE_CONFLICTS, OF_COLLECTIONS, Operation, VALIDATION};
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::collections::index_changes::{self, IndexChange, Which};
use crate::catalog::collections::index_options::{self, IndexOptions};
use crate::catalog::collections::index_removal;
use crate::catalog::collections::indexes::{Draft, Made};
use crate::catalog::collections::sharding::{self, ShardOptions};
use crate::catalog::collections::{collection, indexes, namespace, rename, validation, views};
use crate::indexing;
use crate::pg::error::{Error, Result};
use crate::router::writes::expiry;
use crate::store;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::index::Partial;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// `may_exist`: a collection that has the same options already is no error, as for MongoDB's command.
pub fn create(ns: &str, options: &Arguments<'_>, may_exist: bool) -> Result<Json> {
    check_may_change()?;
    let collation = options.get("collation").map(Collator::parse).transpose()?.flatten();
    match options.text("viewOn") {
        Some(view_on) => views::create(ns, view_on, &stages(options)?.unwrap_or_default(), collation)?,
        None => {
            let collation = collation.as_ref();
            let validation = validation::of_options(ns, given_validation(options), collation)?;
            let options = collection::Options { collation, validation: validation.as_ref() };
            collection::create(ns, options, may_exist)?;
        }
    }
    Ok(json!({"ok": 1}))
}

/// The options of a collection's validation that the caller has given, by name.
fn given_validation(options: &Arguments<'_>) -> Map<String, Json> {
    let given = VALIDATION.iter().filter_map(|field| Some((field.name.to_owned(), options.get(field.name)?.clone())));
    given.collect()
}

/// The stages of a view. Null among them is left out, as MongoDB does.
fn stages(options: &Arguments<'_>) -> Result<Option<Vec<Json>>> {
    match options.get("pipeline") {
        None => Ok(None),
        Some(Json::Array(stages)) => Ok(Some(stages.iter().filter(|stage| !stage.is_null()).cloned().collect())),
        Some(other) => Err(error!(Kind::TypeMismatch, "the pipeline must be an array, not {other}")),
    }
}

/// Renames a collection.
pub fn rename(from: &str, to: &str, options: &Arguments<'_>) -> Result<Json> {
    rename::rename(from, to, options.flag("dropTarget"))?;
    Ok(json!({"ok": 1}))
}

/// Changes an index: `{name or keyPattern, hidden, expireAfterSeconds}`. Returns the old and the new value of each property that
/// changed, and of a given `expireAfterSeconds` even if it is unchanged, as MongoDB does.
fn modify_index(ns: &str, given: &Json) -> Result<Json> {
    let given = Arguments::parse(given, Form::Command("collMod.index"), INDEX_CHANGE)?;
    given.check_conflicts(INDEX_CHANGE_CONFLICTS)?;
    let which = match (given.text("name"), given.get("keyPattern")) {
        (Some(name), _) => Which::Name(name),
        (None, keys) => Which::Keys(keys.unwrap_or(&Json::Null)),
    };
    let hidden = given.get("hidden").map(|_| given.flag("hidden"));
    // Unlike createIndexes, collMod accepts a number above the limit, and sets the limit.
    let seconds = given.safe_integer("expireAfterSeconds").map(|seconds| seconds.min(i32::MAX.into()));
    let wanted = IndexChange { hidden, expire_after_s: seconds };
    if wanted.hidden.is_none() && wanted.expire_after_s.is_none() {
        bail!(Kind::InvalidOptions, "no expireAfterSeconds, hidden, unique, or prepareUnique field");
    }
    let changed = index_changes::change(ns, which, wanted)?;
    let mut answer = json!({});
    let mut show = |name: &str, is_wanted: bool, before: Json, after: Json| {
        if before != after || is_wanted {
            answer[format!("{name}_old")] = before;
            answer[format!("{name}_new")] = after;
        }
    };
    show("expireAfterSeconds", seconds.is_some(), changed.expire_after_s.0.into(), changed.expire_after_s.1.into());
    show("hidden", false, changed.hidden.0.into(), changed.hidden.1.into());
    if let Json::Object(fields) = &mut answer {
        fields.retain(|_, value| !value.is_null());
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

/// Changes a view; or, of a collection, an index or the validation.
pub fn modify(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    check_may_change()?;
    namespace::split(ns)?;
    let is_view = cache::view(ns)?.is_some();
    if !is_view {
        cache::get(ns)?;
    }
    let is_given = |field: &&Field| options.get(field.name).is_some();
    if let Some(field) = OF_COLLECTIONS.iter().chain(VALIDATION).find(is_given)
        && is_view
    {
        bail!(Kind::InvalidOptions, "the option '{}' is not supported on a view", field.name);
    }
    if let Some(field) = OF_COLLECTIONS.iter().find(is_given) {
        bail!(Kind::NotImplemented, "the option '{}' is not supported by docshard", field.name);
    }
    let (view_on, stages) = (options.text("viewOn"), stages(options)?);
    let (index, validating) = (options.get("index"), given_validation(options));
    if index.is_some() && is_view {
        bail!(Kind::InvalidOptions, "the option 'index' is not supported on a view");
    }
    if view_on.is_some() || stages.is_some() {
        if index.is_some() || !validating.is_empty() {
            bail!(Kind::InvalidOptions, "{ns} is not a view: viewOn and pipeline are for views");
        }
        views::modify(ns, view_on, stages.as_deref())?;
    }
    if !validating.is_empty() {
        validation::change(ns, validating)?;
    }
    index.map_or(Ok(json!({"ok": 1})), |index| modify_index(ns, index))
}

pub fn shard(ns: &str, key: &Json, options: &Arguments<'_>) -> Result<Json> {
    check_may_change()?;
    namespace::split(ns)?;
    let pattern = KeyPattern::parse(key)?;
    let collation = options.get("collation");
    if let Some(other) = collation.map(Collator::parse).transpose()?.flatten() {
        let message = "The collation for shardCollection must be {locale: 'simple'}, but found: ";
        bail!(Kind::BadValue, "{message}{}", other.definition());
    }
    let options = ShardOptions {
        unique: options.flag("unique"),
        initial_chunks: options.integer("numInitialChunks")?,
        needs_index: !options.flag("implicitlyCreateIndex"),
        simple_collation: collation.is_some(),
    };
    sharding::shard(ns, &pattern, &options)?;
    Ok(json!({"collectionsharded": ns, "ok": 1}))
}

pub fn index_options<'a>(ns: &str, given: &Arguments<'a>) -> Result<IndexOptions<'a>> {
    let collation = index_options::collation(ns, given.get("collation"))?;
    let partial = given.get("partialFilterExpression");
    Ok(IndexOptions {
        name: given.text("name"),
        unique: given.flag("unique"),
        hidden: given.flag("hidden"),
        expire_after_s: given.safe_integer("expireAfterSeconds"),
        sparse: given.flag("sparse"),
        partial: partial.map(|json| Partial::parse(json, collation.as_deref())).transpose()?.map(Rc::new),
        collation,
        wildcard_projection: given.get("wildcardProjection"),
    })
}

/// Creates all of these indexes on every shard, or none, and returns their names. Does not block writes if the call is the whole
/// transaction (`sole`). Otherwise, if there are documents, writes are blocked until the transaction ends: `concurrently` Some(true) makes
/// this an error, None a WARNING, Some(false) neither. Each element of `wanted` has the JSON text of the keys, and the options.
pub fn create_indexes(
    ns: &str,
    wanted: &[(String, IndexOptions<'_>)],
    concurrently: Option<bool>,
    sole: bool,
) -> Result<Vec<String>> {
    check_may_change()?;
    if indexing::is_called_for(ns, sole)? {
        return indexing::build_and_wait(ns, wanted);
    }
    let mut made = Made::none(ns)?;
    let create = |(keys, options): &(String, IndexOptions<'_>)| -> Result<String> {
        let before = |draft: &Draft| indexing::before_blocking_build(ns, &draft.name, concurrently, sole);
        let name = indexes::create(ns, keys, options, &before)?;
        made.add(&name)?;
        Ok(name)
    };
    wanted.iter().map(create).collect()
}

/// Creates indexes; each element of `indexes` is `{"key": {"from": 1}, …}`, with the options next to the key.
pub fn create_indexes_of(ns: &str, indexes: &Json, sole: bool) -> Result<Vec<String>> {
    check_may_change()?;
    let Json::Array(indexes) = indexes else {
        return Err(Error::new(Kind::TypeMismatch, "indexes must be an array, such as [{\"key\": {\"from\": 1}}]"));
    };
    if indexes.is_empty() {
        bail!(Kind::BadValue, "Must specify at least one index to create");
    }
    namespace::split(ns)?;
    let Operation { function, options, conflicts } = &CREATE_INDEXES;
    let mut concurrently = Vec::new();
    let read = |index| -> Result<_> {
        let given = Arguments::parse(index, Form::Options(function), options)?;
        given.check_conflicts(conflicts)?;
        concurrently.push(self::concurrently(&given));
        let keys = given.get("key").map(ToString::to_string).unwrap_or_default();
        Ok((keys, index_options(ns, &given)?))
    };
    let wanted = indexes.iter().map(read).collect::<Result<Vec<_>>>()?;
    // Either all indexes are built or none. So `concurrently: true` for one of them refuses a blocking build of all, and the warning is
    // suppressed only if all have `concurrently: false`.
    let all_may = concurrently.iter().all(|given| *given == Some(false));
    let concurrently = if concurrently.contains(&Some(true)) { Some(true) } else { all_may.then_some(false) };
    create_indexes(ns, &wanted, concurrently, sole)
}

/// The option `concurrently`, if it is given.
pub fn concurrently(given: &Arguments<'_>) -> Option<bool> {
    given.get("concurrently").and_then(Json::as_bool)
}

/// Deletes the documents that have expired, of one collection or of all, in the caller's transaction.
pub fn expire(ns: Option<&str>) -> Result<Json> {
    check_may_change()?;
    if let Some(ns) = ns {
        namespace::split(ns)?;
        cache::get(ns)?;
    }
    let indexes = store::indexes::expiring()?;
    let chosen = indexes.iter().filter(|index| ns.is_none_or(|ns| ns == index.namespace));
    let deleted: i64 = chosen.map(|index| expiry::delete(index, index.until)).sum::<Result<i64>>()?;
    Ok(json!({"deletedCount": deleted, "ok": 1}))
}

/// Drops indexes by a name, an array of names, keys, or `"*"` for all but the one on `_id`.
pub fn drop_indexes(ns: &str, which: &Json) -> Result<Json> {
    Ok(json!({"nIndexesWas": index_removal::drop_some(ns, which)?, "ok": 1}))
}
