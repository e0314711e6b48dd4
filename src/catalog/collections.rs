//! Collections: created and dropped. The catalog's change and the tables' on the shards commit together.

use super::access;
use super::change::NEXT_REVISION;
use super::model::Collection;
use super::nodes::run_on_all;
use super::pending_drops::{self, Dropped};
use super::shards::check_may_change;
use super::{cache, change, databases, namespace, undisturbed, zones};
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::storage::lock::{self, Tag};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use serde_json::json;
use std::rc::Rc;

fn random_token() -> i64 {
    i64::from_ne_bytes(bson::oid::ObjectId::new().bytes()[4..12].try_into().expect("8 bytes"))
        ^ i64::from(std::process::id())
}

/// Creates an unsharded collection on its database's primary shard. Statements that name no collation compare strings by
/// its own.
///
/// # Errors
/// `NamespaceExists`, `InvalidNamespace`.
pub fn create(name: &str, collation: Option<&Collator>) -> Result<()> {
    namespace::split(name)?;
    if cache::find(name)?.is_some() {
        return Err(Error::new(Kind::NamespaceExists, format!("Collection {name} already exists.")));
    }
    create_unsharded(name, collation)
}

/// Creates the collection that a write to an unknown namespace asks for, as MongoDB does.
///
/// # Errors
/// `Unauthorized`; as [`create`], without `NamespaceExists`.
pub fn create_implicitly(name: &str) -> Result<Rc<Collection>> {
    let may = spi::query("SELECT pg_catalog.has_table_privilege('docshard_catalog.collections', 'INSERT')", &[])?;
    if !may.first().is_some_and(|row| row.bool(0)) {
        return Err(Error::new(Kind::Unauthorized, format!("not authorized to create the collection {name}"))
            .with_hint("An administrator can: docshard.create_collection()."));
    }
    create_unsharded(name, None)?;
    cache::get(name)
}

fn create_unsharded(name: &str, collation: Option<&Collator>) -> Result<()> {
    check_may_change()?;
    let (database, _) = namespace::split(name)?;
    let primary = databases::ensure(database, None)?;
    let pattern = KeyPattern::unsharded();
    // Somebody else may create it at the same moment: one of both does, the other finds it.
    let Some(id) = insert_row(name, database, None, collation)? else { return Ok(()) };
    lay_out(id, &pattern, &[(pattern.min_bound(), pattern.max_bound(), primary)])?;
    change::log("createCollection", Some(name), &json!({"primary": cache::shard(primary)?.name}))?;
    change::touch(id)
}

/// Inserts the collection's row; None if it is there already.
pub(super) fn insert_row(
    name: &str,
    database: &str,
    key: Option<&KeyPattern>,
    collation: Option<&Collator>,
) -> Result<Option<i32>> {
    let key = key.map(|key| key.to_json().to_string());
    let collation = collation.map(|collator| collator.definition().to_string());
    let rows = spi::query(
        "INSERT INTO docshard_catalog.collections (namespace, database, key, token, collation_spec) \
         VALUES ($1, $2, $3::text::json, $4, $5::text::json) ON CONFLICT (namespace) DO NOTHING RETURNING id",
        &[
            Param::Text(name),
            Param::Text(database),
            Param::OptText(key.as_deref()),
            Param::Int8(random_token()),
            Param::OptText(collation.as_deref()),
        ],
    )?;
    Ok(rows.first().map(|row| row.i32(0)))
}

/// Writes the chunks of a collection and makes its tables where they are.
pub(super) fn lay_out(id: i32, pattern: &KeyPattern, chunks: &[(Vec<u8>, Vec<u8>, ShardId)]) -> Result<()> {
    let rows = spi::query(
        "SELECT token, version, namespace FROM docshard_catalog.collections WHERE id = $1",
        &[Param::Int4(id)],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::NamespaceNotFound, "the collection is gone"))?;
    let (token, version) = (row.i64(0), row.i64(1));
    let mut shards: Vec<ShardId> = chunks.iter().map(|(_, _, shard)| *shard).collect();
    shards.sort_unstable();
    shards.dedup();
    for (min, max, shard) in chunks {
        spi::execute(
            &format!(
                "INSERT INTO docshard_catalog.chunks (collection_id, min, max, shard_id, version, revision) \
                 VALUES ($1, $2, $3, $4, $5, {NEXT_REVISION})"
            ),
            &[Param::Int4(id), Param::Bytea(min), Param::Bytea(max), Param::Int4(*shard), Param::Int8(version)],
        )?;
    }
    for shard in &shards {
        spi::execute(
            "INSERT INTO docshard_catalog.placements (collection_id, shard_id, version) VALUES ($1, $2, $3) \
             ON CONFLICT (collection_id, shard_id) DO UPDATE SET version = excluded.version",
            &[Param::Int4(id), Param::Int4(*shard), Param::Int8(version)],
        )?;
    }
    run_on_all(
        &shards,
        "SELECT docshard_internal.create_table($1, $2, $3, $4)",
        &[Param::Int4(id), Param::Int8(token), Param::Int8(version), Param::Bool(!pattern.is_in_order_of_id())],
    )?;
    let (sql, readers, writers) = access::of_new_table(row.text(2))?;
    let (readers, writers) = (texts(&readers), texts(&writers));
    let access = [Param::Int4(id), Param::TextArray(&readers), Param::TextArray(&writers), Param::TextArray(&[])];
    run_on_all(&shards, sql, &access)
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Refuses to go on while an index of the collection is being built. What a builder that is gone has left is in nobody's
/// way.
///
/// # Errors
/// `ConflictingOperationInProgress`.
pub fn refuse_while_building(id: i32, name: &str) -> Result<()> {
    let rows = spi::query(
        "SELECT id, name FROM docshard_catalog.index_builds WHERE collection_id = $1 ORDER BY id",
        &[Param::Int4(id)],
    )?;
    match rows.iter().find(|row| !lock::is_free(Tag::Builder(row.i32(0)))) {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::ConflictingOperationInProgress,
            format!("the index {} of {name} is being built", row.text(1)),
        )
        .with_hint("Run it again when that is over; docshard.list_index_builds() shows how far it is.")),
    }
}

fn lock_sharded(name: &str) -> Result<change::Locked> {
    let locked = change::lock(name)?;
    if locked.key.is_none() {
        return Err(Error::new(Kind::NamespaceNotSharded, format!("ns not sharded: {name}")));
    }
    Ok(locked)
}

/// Lets the balancer move a sharded collection's chunks, or not.
///
/// # Errors
/// `NamespaceNotFound`, `NamespaceNotSharded`.
pub fn set_balancing(name: &str, on: bool) -> Result<()> {
    let locked = lock_sharded(name)?;
    spi::execute(
        "UPDATE docshard_catalog.collections SET balance = $2 WHERE id = $1",
        &[Param::Int4(locked.id), Param::Bool(on)],
    )?;
    change::log(if on { "enableBalancing" } else { "disableBalancing" }, Some(name), &json!({}))
}

/// Sets a sharded collection's own chunk size; None: the cluster's.
///
/// # Errors
/// `NamespaceNotFound`, `NamespaceNotSharded`.
pub fn set_chunk_size(name: &str, mb: Option<i32>) -> Result<()> {
    let locked = lock_sharded(name)?;
    let text = mb.map(|mb| mb.to_string());
    spi::execute(
        "UPDATE docshard_catalog.collections SET chunk_size_mb = $2::text::int WHERE id = $1",
        &[Param::Int4(locked.id), Param::OptText(text.as_deref())],
    )?;
    change::log("configureCollectionBalancing", Some(name), &json!({"chunkSize": mb}))
}

/// Drops a collection, its documents and its metadata, everywhere; tells whether there was one.
///
/// # Errors
/// `ConflictingOperationInProgress`, `LockTimeout`; whatever the shards raise.
pub fn drop(name: &str) -> Result<bool> {
    check_may_change()?;
    let dropped = drop_but_zones(name)?;
    zones::forget(name)?;
    Ok(dropped)
}

/// As [`drop`], and its zones' ranges stay.
pub(super) fn drop_but_zones(name: &str) -> Result<bool> {
    namespace::split(name)?;
    let locked = match undisturbed::lock(name) {
        Err(error) if error.sqlstate == Kind::NamespaceNotFound.sqlstate().as_bytes() => return Ok(false),
        locked => locked?,
    };
    refuse_while_building(locked.id, name)?;
    let rows = spi::query(
        "SELECT shard_id FROM docshard_catalog.placements WHERE collection_id = $1 ORDER BY shard_id",
        &[Param::Int4(locked.id)],
    )?;
    let shards: Vec<ShardId> = rows.iter().map(|row| row.i32(0)).collect();
    let late = pending_drops::drop_everywhere(&shards, Dropped::Collection(locked.id), name)?;
    spi::execute("DELETE FROM docshard_catalog.collections WHERE id = $1", &[Param::Int4(locked.id)])?;
    let details = if late.is_empty() { json!({}) } else { json!({"pending": late}) };
    change::log("dropCollection", Some(name), &details)?;
    change::announce();
    Ok(true)
}

/// Drops a database with all its collections, everywhere; tells whether there was one.
///
/// # Errors
/// As [`drop`].
pub fn drop_database(name: &str) -> Result<bool> {
    namespace::check_database(name)?;
    if databases::primary(name)?.is_none() {
        return Ok(false);
    }
    let rows = spi::query(
        "SELECT namespace FROM docshard_catalog.collections WHERE database = $1 ORDER BY namespace",
        &[Param::Text(name)],
    )?;
    for row in &rows {
        drop(row.text(0))?;
    }
    zones::forget_database(name)?;
    databases::forget(name)?;
    Ok(true)
}
