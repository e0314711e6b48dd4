//! Shards a collection. An empty collection gets its initial chunks on all shards; one with documents is split on its shard.

use super::{databases, indexes, namespace, views, zones};
use crate::catalog::change::refuse_while_building;
use crate::catalog::cluster::nodes::{call_on, query_on, run_on};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::{move_exclusion, settings};
use crate::catalog::collections::collection::{Options, drop_but_zones, insert_row, lay_out};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store;
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::cluster::zone::ZoneMap;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::query::index::IndexKeys;
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::protocol::sql;
use docshard_core::routing::protocol::table::ExcludeWriters;
use docshard_core::sql::param::Param;
use docshard_core::values::key::KeyPattern;
use serde_json::json;
use std::rc::Rc;

/// Chunks that an empty hashed collection starts with on each shard.
const HASHED_CHUNKS_PER_SHARD: usize = 2;
/// The largest number of initial chunks of a collection for each shard: MongoDB's limit.
const MAX_INITIAL_CHUNKS_PER_SHARD: usize = 8192;

/// Options of [`shard`].
#[derive(Debug, Default)]
pub struct ShardOptions {
    /// no two documents with the same shard key
    pub unique: bool,
    /// how many chunks an empty hashed collection starts with
    pub initial_chunks: Option<i64>,
    /// an error if no index serves the key of an empty collection
    pub needs_index: bool,
    /// the caller gave the simple collation, which a collection with a collation requires: shard keys compare by bytes
    pub simple_collation: bool,
}

/// Shards a collection, which may have documents already.
/// Errors: different ones for a malformed or unsuitable key, a missing index, and documents without the key.
pub fn shard(name: &str, pattern: &KeyPattern, options: &ShardOptions) -> Result<()> {
    let (database, _) = namespace::split(name)?;
    if namespace::is_reserved(database) {
        bail!(Kind::IllegalOperation, "can't shard a collection of '{database}'");
    }
    let shards = usable_shards()?;
    check_options(pattern, options, shards.len())?;
    views::refuse(name)?;
    zones::lock()?;
    databases::enable_sharding(database, None)?;
    let existing = cache::find(name)?;
    if let Some(collection) = &existing
        && !collection.key.is_unsharded()
    {
        if collection.key == *pattern && collection.unique == options.unique {
            return Ok(());
        }
        bail!(
            Kind::AlreadyInitialized,
            "sharding already enabled for collection {name} with shard key {}{}",
            collection.key.to_json(),
            if collection.unique { " (unique)" } else { "" }
        );
    }
    if let Some(collation) = existing.as_ref().and_then(|collection| collection.collation.as_ref())
        && !options.simple_collation
    {
        bail!(
            Kind::BadValue,
            "Collection has default collation: {}. Must specify collation {{locale: 'simple'}}",
            collation.definition()
        );
    }
    let zones = zones::adopt(name, pattern)?;
    let id = match existing {
        Some(collection) if shard_existing(&collection, pattern, options, &zones)? => collection.id,
        existing => {
            if let Some(collection) = existing {
                // The collection is empty, so it is created anew.
                drop_but_zones(name)?;
                shard_new(name, database, pattern, options, (&shards, &zones), Some(&collection))?
            } else {
                shard_new(name, database, pattern, options, (&shards, &zones), None)?
            }
        }
    };
    let details = json!({"key": pattern.to_json(), "unique": options.unique});
    change::log("shardCollection", Some(name), &details)?;
    change::touch(id)
}

fn check_options(pattern: &KeyPattern, options: &ShardOptions, shards: usize) -> Result<()> {
    check_unique_option(pattern, options)?;
    if let Some(wanted) = options.initial_chunks {
        if pattern.hashed_field() != Some(0) {
            let message = "numInitialChunks is only supported when the shard key starts with a hashed field";
            return Err(Error::new(Kind::InvalidOptions, message));
        }
        check_chunk_count(wanted, shards)?;
    }
    Ok(())
}

/// Checks the number of initial chunks.
pub(super) fn check_chunk_count(wanted: i64, shards: usize) -> Result<()> {
    let most = (MAX_INITIAL_CHUNKS_PER_SHARD * shards) as i64;
    ensure!(
        (1..=most).contains(&wanted),
        Kind::InvalidOptions,
        "numInitialChunks must be from 1 to {most} with {} shards, not {wanted}",
        shards
    );
    Ok(())
}

/// Refuses the option `unique` for a hashed shard key.
pub(super) fn check_unique_option(pattern: &KeyPattern, options: &ShardOptions) -> Result<()> {
    if options.unique && pattern.hashed_field().is_some() {
        bail!(
            Kind::InvalidOptions,
            "Hashed shard keys cannot be declared unique. It's possible to \
            ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field."
        );
    }
    Ok(())
}

/// The shards that take data, by number.
/// Errors: `ShardNotFound` if there is none.
pub fn usable_shards() -> Result<Vec<Rc<Shard>>> {
    let mut shards: Vec<_> = cache::shards()?.values().filter(|shard| !shard.draining).cloned().collect();
    shards.sort_unstable_by_key(|shard| shard.id);
    if shards.is_empty() {
        bail!(Kind::ShardNotFound, "no shard can take data");
    }
    Ok(shards)
}

/// The shard of a layout with one chunk: the database's primary shard, or the one with the least data if the primary is draining.
///
/// # Errors
/// Those of [`databases::ensure`].
pub fn home_of_one_chunk(database: &str, usable: &[Rc<Shard>]) -> Result<ShardId> {
    let primary = databases::ensure(database, None)?;
    if usable.iter().any(|shard| shard.id == primary) {
        return Ok(primary);
    }
    Ok(store::shards::emptiest()?.unwrap_or(primary))
}

/// Creates an empty sharded collection. If the first field of its key is hashed, it has chunks on every shard; if it has zones, on the zones'
/// shards; otherwise it has one chunk, see [`home_of_one_chunk`]. It gets the collation, validation and indexes of `former`, the empty
/// collection that it replaces.
fn shard_new(
    name: &str,
    database: &str,
    pattern: &KeyPattern,
    options: &ShardOptions,
    (shards, zones): (&[Rc<Shard>], &ZoneMap),
    former: Option<&Collection>,
) -> Result<i32> {
    let primary = home_of_one_chunk(database, shards)?;
    let collation = former.and_then(|former| former.collation.as_deref());
    let validation = former.and_then(|former| former.validation.as_deref());
    former.map_or(Ok(()), |former| check_unique_indexes(former, pattern))?;
    let serves = former.map_or(Ok(false), |former| has_index_or_place(former, pattern, options))?;
    if options.needs_index && !serves && needs_index(pattern) {
        return Err(no_index(name, former, pattern));
    }
    let Some(id) = insert_row(name, database, Some(pattern), Options { collation, validation })? else {
        bail!(Kind::ConflictingOperationInProgress, "{name} was created concurrently");
    };
    let mut bounds = Vec::new();
    if pattern.hashed_field() == Some(0) {
        let wanted = options.initial_chunks.and_then(|n| usize::try_from(n).ok());
        bounds = pattern.even_hash_bounds(wanted.unwrap_or(HASHED_CHUNKS_PER_SHARD * shards.len()));
    }
    let homes = zones::homes(&shards.iter().map(|shard| shard.id).collect::<Vec<_>>())?;
    let chunks = zones.initial_chunks(pattern, bounds, &homes, primary);
    lay_out(id, name, pattern, &chunks, validation)?;
    if serves {
        store::collections::drop_key_index(id)?;
    }
    if options.unique {
        make_unique(id, name, pattern)?;
    }
    for index in former.iter().flat_map(|former| &former.indexes) {
        indexes::create(name, &index.keys_json, &index.into(), &|_| Ok(()))?;
    }
    Ok(id)
}

/// Shards a collection that has documents. These stay on the collection's shard, which owns all chunks at first. Returns false if the
/// collection is empty.
fn shard_existing(
    collection: &Collection,
    pattern: &KeyPattern,
    options: &ShardOptions,
    zones: &ZoneMap,
) -> Result<bool> {
    let name = &collection.namespace;
    let locked = move_exclusion::lock(name)?;
    refuse_while_building(locked.id, name)?;
    // Read again under the lock: the collection may have been moved to another shard.
    let collection = &*cache::get(name)?;
    let shard = cache::shard(collection.map.owner(&[]))?;
    let table = collection.table();
    call_on(&shard, &ExcludeWriters { collection: collection.id })?;
    let size = query_on::<(i64, i64)>(
        &shard,
        &format!("SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0)::bigint FROM {table} t"),
        &[],
    )?;
    let (documents, bytes) = size.first().copied().unwrap_or_default();
    if documents == 0 {
        return Ok(false);
    }
    if options.initial_chunks.is_some() {
        let message = "numInitialChunks is not supported when the collection is not empty.";
        return Err(Error::new(Kind::InvalidOptions, message));
    }
    check_indexes(collection, pattern, options)?;
    let pattern_json = pattern.to_json().to_string();
    run_on(
        &shard,
        &format!("UPDATE {table} t SET skey = {}", sql::shard_key("t.doc", "$1")),
        &[Param::Text(&pattern_json)],
    )?;
    store::collections::set_key(collection.id, &pattern_json)?;
    change::next_version(collection.id)?;
    let chunk_size = settings::chunk_bytes()?;
    let mut bounds = split_bounds(&shard, &table, pattern, bytes, chunk_size)?;
    bounds.extend(zones.cuts(&pattern.min_bound(), &pattern.max_bound()));
    bounds.sort_unstable();
    bounds.dedup();
    let chunks: Vec<_> =
        bounds.windows(2).map(|pair| Chunk { min: pair[0].clone(), max: pair[1].clone(), shard: shard.id }).collect();
    store::chunks::delete_all(collection.id)?;
    lay_out(collection.id, name, pattern, &chunks, collection.validation.as_deref())?;
    if options.unique {
        make_unique(collection.id, name, pattern)?;
    }
    Ok(true)
}

/// Makes the shard key unique by a unique index, which takes the place of the shard key's own index.
fn make_unique(id: i32, name: &str, pattern: &KeyPattern) -> Result<()> {
    store::collections::set_unique(id)?;
    store::collections::drop_key_index(id)?;
    change::touch(id)?;
    indexes::create_for_unique_key(name, pattern)
}

/// Returns the bounds of chunks of about half the chunk size, from the lowest to the highest key; the bounds in between are existing keys.
fn split_bounds(shard: &Shard, table: &str, pattern: &KeyPattern, bytes: i64, chunk_size: i64) -> Result<Vec<Vec<u8>>> {
    let parts = (bytes / (chunk_size / 2).max(1) + 1).min(10_000);
    let mut bounds = vec![pattern.min_bound()];
    if parts > 1 {
        let keys: Vec<Vec<u8>> = query_on(
            shard,
            &format!(
                "SELECT DISTINCT key FROM (SELECT unnest(percentile_disc(ARRAY(SELECT i / $1::float8 \
                 FROM generate_series(1, $1 - 1) i)) WITHIN GROUP (ORDER BY skey)) AS key FROM {table}) AS cut ORDER BY key"
            ),
            &[Param::Int8(parts)],
        )?;
        for key in keys {
            if bounds.last().is_some_and(|last| *last < key) {
                bounds.push(key);
            }
        }
    }
    bounds.push(pattern.max_bound());
    Ok(bounds)
}

/// True if a collection has an index that serves the shard key, which then gets no index of its own. A unique shard key needs a
/// unique index with exactly its keys.
/// Errors: `InvalidOptions` if such an index is not unique.
fn has_index(collection: &Collection, pattern: &KeyPattern, options: &ShardOptions) -> Result<bool> {
    let mut serving = collection.indexes.iter().filter(|index| !index.hidden && index.begins_with_key(pattern));
    let found = if options.unique { serving.find(|index| index.is_of_key(pattern)) } else { serving.next() };
    if options.unique && found.is_some_and(|index| !index.unique) {
        let (name, key) = (&collection.namespace, pattern.to_json());
        bail!(Kind::InvalidOptions, "can't shard collection '{name}' as unique: its index on {key} is not unique");
    }
    Ok(found.is_some())
}

/// Like [`has_index`], for a collection whose tables are created anew. False also means that the name of the shard key's own index is free.
/// Errors: those of [`has_index`]; `IndexKeySpecsConflict`.
pub(super) fn has_index_or_place(
    collection: &Collection,
    pattern: &KeyPattern,
    options: &ShardOptions,
) -> Result<bool> {
    let serves = has_index(collection, pattern, options)?;
    let own = IndexKeys::parse(&pattern.to_json())?.default_name();
    match collection.indexes.iter().find(|index| index.name == own).filter(|_| !serves) {
        Some(Index { keys_json: keys, .. }) => Err(error!(
            Kind::IndexKeySpecsConflict,
            "The index {own} has the name of the shard key's index, but other keys: {keys}"
        )),
        None => Ok(serves),
    }
}

/// Checks MongoDB's requirements for the indexes of a collection with documents that is to be sharded.
fn check_indexes(collection: &Collection, pattern: &KeyPattern, options: &ShardOptions) -> Result<()> {
    let paths: Vec<&str> = pattern.fields.iter().map(|(path, _)| path.as_str()).collect();
    if has_index(collection, pattern, options)? {
        store::collections::drop_key_index(collection.id)?;
    } else if paths != ["_id"] {
        return Err(no_index(&collection.namespace, Some(collection), pattern));
    }
    check_unique_indexes(collection, pattern)
}

/// True if the shard key must already have an index when `implicitlyCreateIndex` is false, as in MongoDB: the key has no hashed field, and is
/// not `_id` alone.
pub fn needs_index(pattern: &KeyPattern) -> bool {
    pattern.hashed_field().is_none() && !pattern.is_in_order_of_id()
}

/// The error of a shard key that no index serves. The hint says why an index that begins with its fields does not.
pub(super) fn no_index(name: &str, collection: Option<&Collection>, pattern: &KeyPattern) -> Error {
    let mut hint = String::new();
    let begins = |index: &&Index| {
        let fields = index.fields();
        fields.len() >= pattern.fields.len()
            && fields.iter().zip(&pattern.fields).all(|((field, _), (path, _))| field == path)
    };
    for index in collection.iter().flat_map(|of| &of.indexes).filter(begins) {
        let why = match index {
            Index { hidden: true, .. } => "is hidden",
            Index { sparse: true, .. } => "is sparse",
            Index { partial: Some(_), .. } => "is partial",
            _ if index.collation().is_some() => "has a non-simple collation",
            _ => continue,
        };
        hint += &format!("Index {} {why}. ", index.name);
    }
    hint += &format!(
        "SELECT docshard.create_index('{name}', '{}'{});",
        pattern.to_json(),
        if collection.is_some_and(|of| of.collation.is_some()) {
            ", '{\"collation\": {\"locale\": \"simple\"}}'"
        } else {
            ""
        }
    );
    error!(
        Kind::InvalidOptions,
        "Please create an index that starts with the proposed shard key before sharding the collection: {}",
        pattern.to_json()
    )
    .with_hint(hint)
}

/// Refuses a shard key if documents with equal keys in one of the collection's unique indexes could be on different shards.
pub(super) fn check_unique_indexes(collection: &Collection, pattern: &KeyPattern) -> Result<()> {
    let starts = |fields: &[(String, bool)]| {
        fields.len() >= pattern.fields.len()
            && fields.iter().zip(&pattern.fields).all(|((field, _), (path, _))| field == path)
    };
    for index in collection.indexes.iter().filter(|index| index.unique) {
        if pattern.hashed_field().is_some() || !starts(index.fields()) || index.collation().is_some() {
            bail!(
                Kind::InvalidOptions,
                "can't shard collection '{}' with unique index on {} and proposed shard key {}. Uniqueness can't be \
                     maintained unless unique index is prefixed by shard key",
                collection.namespace,
                index.keys_json,
                pattern.to_json()
            );
        }
    }
    Ok(())
}
