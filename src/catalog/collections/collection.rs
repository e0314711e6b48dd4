//! Creating and dropping collections. The changes of the catalog and of the shards' tables commit together.

use super::grants;
use super::{databases, missing_grant, namespace, validation, views, zones};
use crate::catalog::cluster::access;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::nodes::call_on_all;
use crate::catalog::cluster::pending_drops::{self, Dropped};
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::pg::security::function::Executable;
use crate::store::collections::Locked;
use crate::store::{self, collections, placements};
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::model::{Collection, Validation};
use docshard_core::routing::protocol::table::CreateTable;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::rc::Rc;

pub(in crate::catalog) fn random_token() -> i64 {
    i64::from_ne_bytes(bson::oid::ObjectId::new().bytes()[4..12].try_into().expect("8 bytes"))
        ^ i64::from(std::process::id())
}

/// The options of a new collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// statements that name no collation use it
    pub collation: Option<&'a Collator>,
    /// the collection's options of validation
    pub validation: Option<&'a Validation>,
}

/// Creates an unsharded collection on its database's primary shard. `may_exist`: one that exists with exactly these options is no error.
/// Errors: `NamespaceExists`; those of [`namespace::split`], [`check_may_change`] and [`databases::ensure`]; the shards' errors.
pub fn create(name: &str, options: Options<'_>, may_exist: bool) -> Result<()> {
    namespace::split(name)?;
    loop {
        if may_exist && exists_with(name, options)? {
            return Ok(());
        }
        views::check_free(name)?;
        // Another session may create it meanwhile, with other options.
        if create_unsharded(name, options)? {
            return Ok(());
        }
    }
}

/// True if there is a collection of this name with exactly these options.
fn exists_with(name: &str, options: Options<'_>) -> Result<bool> {
    let Some(collection) = cache::find(name)? else { return Ok(false) };
    let has_collation = collection.collation.as_ref().map(|collator| collator.definition())
        == options.collation.map(Collator::definition);
    let has_validation =
        collection.validation.as_ref().map(|known| &known.options) == options.validation.map(|given| &given.options);
    Ok(has_collation && has_validation)
}

/// Checks that the current user may create a collection by a write to it.
/// Errors: `Unauthorized`.
pub fn check_may_create_implicitly(name: &str) -> Result<()> {
    if collections::may_insert()? || grants::owns(name)? {
        return Ok(());
    }
    Err(error!(Kind::Unauthorized, "not authorized to create the collection {name}")
        .with_hint(missing_grant::hint_to_create(name)))
}

/// Creates the collection for a write to an unknown namespace, as MongoDB does.
/// Errors: `Unauthorized`; `CommandNotSupportedOnView` if there is a view of that name; those of [`create`], except `NamespaceExists`.
pub fn create_implicitly(name: &str) -> Result<Rc<Collection>> {
    check_may_create_implicitly(name)?;
    // If another session has just created it, that collection is used.
    let create = || create_unsharded(name, Options::default());
    if collections::may_insert()? {
        create()?
    } else {
        Executable::granted("create_collection")?.run(create)?
    };
    cache::get(name)
}

/// False if there is a collection of that name.
fn create_unsharded(name: &str, options: Options<'_>) -> Result<bool> {
    check_may_change()?;
    let (database, _) = namespace::split(name)?;
    let primary = databases::ensure(database, None)?;
    let pattern = KeyPattern::unsharded();
    let Some(id) = insert_row(name, database, None, options)? else { return Ok(false) };
    let chunk = Chunk { min: pattern.min_bound(), max: pattern.max_bound(), shard: primary };
    lay_out(id, name, &pattern, &[chunk], options.validation)?;
    change::log("createCollection", Some(name), &json!({"primary": cache::shard(primary)?.name}))?;
    change::touch(id)?;
    Ok(true)
}

/// Inserts the collection's row; None if the collection exists already.
/// Errors: `CommandNotSupportedOnView` if there is a view of that name.
pub(super) fn insert_row(
    name: &str,
    database: &str,
    key: Option<&KeyPattern>,
    options: Options<'_>,
) -> Result<Option<i32>> {
    views::lock_name(name);
    views::refuse(name)?;
    let key = key.map(|key| key.to_json().to_string());
    let collation = options.collation.map(|collator| collator.definition().to_string());
    let id = collections::insert(name, database, key.as_deref(), random_token(), collation.as_deref())?;
    if let Some((id, validation)) = id.zip(options.validation) {
        collections::set_validation(id, Some(&Json::Object(validation.options.clone()).to_string()))?;
    }
    Ok(id)
}

/// Inserts the chunks of a collection, and creates its table, with its validator, on every shard that has chunks.
pub(super) fn lay_out(
    id: i32,
    namespace: &str,
    pattern: &KeyPattern,
    chunks: &[Chunk],
    validation: Option<&Validation>,
) -> Result<()> {
    let gone = || error!(Kind::NamespaceNotFound, "the collection was dropped");
    let Locked { token, version, .. } = collections::lock_id(id)?.ok_or_else(gone)?;
    let mut shards: Vec<ShardId> = chunks.iter().map(|chunk| chunk.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    for chunk in chunks {
        store::chunks::insert(id, chunk, version)?;
    }
    placements::insert_or_set(id, &shards, version)?;
    call_on_all(&shards, &CreateTable { collection: id, token, version, id_index: !pattern.is_in_order_of_id() })?;
    access::for_new_table(namespace, id, |access| call_on_all(&shards, access))?;
    validation::place(&shards, id, token, validation)
}

fn lock_sharded(name: &str) -> Result<Locked> {
    let locked = change::lock(name)?;
    if locked.key.is_none() {
        bail!(Kind::NamespaceNotSharded, "ns not sharded: {name}");
    }
    Ok(locked)
}

/// Enables or disables the balancer for a sharded collection.
/// Errors: `NamespaceNotSharded`; those of [`change::lock`].
pub fn set_balancing(name: &str, on: bool) -> Result<()> {
    let locked = lock_sharded(name)?;
    collections::set_balance(locked.id, on)?;
    change::log(if on { "enableBalancing" } else { "disableBalancing" }, Some(name), &json!({}))
}

/// Sets a sharded collection's own chunk size; None: the cluster's.
/// Errors: `NamespaceNotSharded`; those of [`change::lock`].
pub fn set_chunk_size(name: &str, mb: Option<i32>) -> Result<()> {
    let locked = lock_sharded(name)?;
    collections::set_chunk_size(locked.id, mb)?;
    change::log("configureCollectionBalancing", Some(name), &json!({"chunkSize": mb}))
}

/// Sets how often statements of a collection are sampled: at most one in `every_us` microseconds; None: never. Returns the former value.
/// Errors: those of [`change::lock`].
pub fn set_sampling(name: &str, every_us: Option<i64>) -> Result<Option<i64>> {
    let locked = change::lock(name)?;
    let before = cache::get(name)?.sampled_every_us;
    collections::set_sampling(locked.id, every_us)?;
    change::log("configureQueryAnalyzer", Some(name), &json!({"everyMicros": every_us}))?;
    change::touch(locked.id)?;
    Ok(before)
}

/// Drops a view, or a collection with its documents and metadata on all nodes. False if there is none.
/// Errors: those of [`check_may_change`], [`namespace::split`], [`move_exclusion::lock`] (except `NamespaceNotFound`) and
/// [`change::refuse_while_building`]; the shards' errors.
pub fn drop(name: &str) -> Result<bool> {
    check_may_change()?;
    check_name(name)?;
    if views::drop(name)? {
        return Ok(true);
    }
    let dropped = drop_but_zones(name)?;
    zones::forget(name)?;
    Ok(dropped)
}

/// Checks a name. The name of a copy is accepted: a copy that remains, for example in a restored catalog, can be dropped.
fn check_name(name: &str) -> Result<()> {
    if !collections::is_copy(name)? {
        namespace::split(name)?;
    }
    Ok(())
}

/// Like [`drop`] for a collection, but keeps its zone ranges.
pub(super) fn drop_but_zones(name: &str) -> Result<bool> {
    check_name(name)?;
    let locked = match move_exclusion::lock(name) {
        Err(error) if error.sqlstate == Kind::NamespaceNotFound.sqlstate() => return Ok(false),
        locked => locked?,
    };
    change::refuse_while_building(locked.id, name)?;
    let late = take_away(locked.id, name)?;
    let details = if late.is_empty() { json!({}) } else { json!({"pending": late}) };
    change::log("dropCollection", Some(name), &details)?;
    change::announce();
    Ok(true)
}

/// Drops the collection's tables and deletes it from the catalog. Returns the unreachable shards, where the table is dropped later.
fn take_away(id: i32, name: &str) -> Result<Vec<String>> {
    // This excludes a concurrent change of grants, which would change the privileges of these tables.
    access::lock_shared()?;
    let late = pending_drops::drop_everywhere(&placements::shards(id)?, Dropped::Collection(id), name)?;
    collections::delete(id)?;
    Ok(late)
}

/// Drops a database with all its collections, on all nodes. False if there is none.
/// Errors: `ReshardCollectionInProgress`; those of [`drop`].
pub fn drop_database(name: &str) -> Result<bool> {
    namespace::check_database(name)?;
    if databases::primary(name)?.is_none() {
        return Ok(false);
    }
    // Copies come first, so that a running change of layout refuses the drop before any collection is dropped.
    for copy in collections::copies_of_database(name)? {
        move_exclusion::refuse_while_resharding(copy.id)?;
        take_away(copy.id, &copy.namespace)?;
    }
    for collection in collections::of_database(name)? {
        drop(&collection)?;
    }
    views::drop_of_database(name)?;
    zones::forget_database(name)?;
    databases::forget(name)?;
    Ok(true)
}
