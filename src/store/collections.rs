//! `docshard_catalog.collections`: names, shard keys, versions.

use super::row::{self, row};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::protocol::sql;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;
use serde_json::Value as Json;

row! {
    /// What a router caches of a collection, beside chunks, placements and indexes.
    pub struct Definition from "collections" {
        /// the collection's number
        pub id: i32,
        /// random: tells two collections of one number apart
        pub token: i64,
        /// advanced with every change that cached maps must notice
        pub revision: i64,
        /// the shard key; None if unsharded
        pub key: Option<Json>,
        /// no two documents have the same shard key
        pub unique: bool = "is_unique",
        /// how statements compare strings that name no collation; None: by their bytes
        pub collation: Option<Json> = "collation_spec",
    }
}

row! {
    /// A collection's row, as whoever locks it sees it.
    pub struct Locked from "collections" {
        /// the collection's number
        pub id: i32,
        /// its token
        pub token: i64,
        /// the last version given out
        pub version: i64,
        /// its shard key; None if unsharded
        pub key: Option<Json>,
    }
}

row! {
    /// What the balancer asks of a collection.
    pub struct Balanced from "collections c" {
        /// the collection's number
        pub id: i32,
        /// `db.coll`
        pub namespace: String,
        /// the shard key; None if unsharded
        pub key: Option<Json>,
        /// its own chunk size, in MiB
        pub chunk_size_mb: Option<i32>,
        /// its chunks may be moved, and no index is being built
        pub balance: bool =
            "balance AND NOT EXISTS (SELECT FROM docshard_catalog.index_builds b WHERE b.collection_id = c.id)",
        /// no two documents have the same shard key
        pub unique: bool = "is_unique",
    }
}

row! {
    /// A collection, as MongoDB's listCollections shows it.
    pub struct ListedCollection from "collections" {
        /// its name in its database
        pub name: String = "pg_catalog.substr(namespace, pg_catalog.length(database) + 2)",
        /// its UUID, in Extended JSON
        pub uuid: Json = sql::collection_uuid("id", "token") + "::pg_catalog.text",
        /// how statements compare strings that name no collation; None: by their bytes
        pub collation: Option<Json> = "collation_spec",
    }
}

row! {
    /// A collection's number and name.
    pub struct Named from "collections" {
        /// the number
        pub id: i32,
        /// `db.coll`
        pub namespace: String,
    }
}

/// The pattern of a stored shard key.
///
/// # Errors
/// Those of an invalid one.
pub fn pattern(key: Option<&Json>) -> Result<KeyPattern> {
    Ok(key.map(KeyPattern::parse).transpose()?.unwrap_or_else(KeyPattern::unsharded))
}

/// The collection of that name, in the active snapshot.
pub fn read_definition(namespace: &str) -> Result<Option<Definition>> {
    Ok(row::read("WHERE namespace = $1", &[Param::Text(namespace)])?.into_iter().next())
}

/// The number of the collection of that name, in the active snapshot.
pub fn read_id(namespace: &str) -> Result<Option<i32>> {
    let ids = row::read_values("collections", "id", "WHERE namespace = $1", &[Param::Text(namespace)])?;
    Ok(ids.into_iter().next())
}

/// All collections by name, in the active snapshot.
pub fn read_balanced(sharded_only: bool) -> Result<Vec<Balanced>> {
    row::read("WHERE key IS NOT NULL OR NOT $1 ORDER BY namespace", &[Param::Bool(sharded_only)])
}

/// The collection of that name, its row locked until the transaction ends.
pub fn lock(namespace: &str) -> Result<Option<Locked>> {
    row::find("WHERE namespace = $1 FOR UPDATE", &[Param::Text(namespace)])
}

/// As [`lock`], by number; None if it is gone.
pub fn lock_id(id: i32) -> Result<Option<Locked>> {
    row::find("WHERE id = $1 FOR UPDATE", &[Param::Int4(id)])
}

/// All collections, by number.
pub fn all() -> Result<Vec<Named>> {
    row::query("ORDER BY id", &[])
}

/// The name of a collection; None if it is gone.
pub fn namespace(id: i32) -> Result<Option<String>> {
    row::value("collections", "namespace", "WHERE id = $1", &[Param::Int4(id)])
}

/// The names of a database's collections.
pub fn of_database(database: &str) -> Result<Vec<String>> {
    row::values("collections", "namespace", "WHERE database = $1 ORDER BY namespace", &[Param::Text(database)])
}

/// A database's collections by name, as MongoDB's listCollections shows them.
pub fn listed(database: &str) -> Result<Vec<ListedCollection>> {
    row::query("WHERE database = $1 ORDER BY namespace", &[Param::Text(database)])
}

/// The names of a database's unsharded collections.
pub fn unsharded_of_database(database: &str) -> Result<Vec<String>> {
    let rest = "WHERE database = $1 AND key IS NULL ORDER BY namespace";
    row::values("collections", "namespace", rest, &[Param::Text(database)])
}

/// The collections of which a shard owns chunks, by name.
pub fn with_chunks_on(shard: ShardId) -> Result<Vec<Balanced>> {
    row::query(
        "WHERE EXISTS (SELECT FROM docshard_catalog.chunks k WHERE k.collection_id = c.id AND k.shard_id = $1) \
         ORDER BY c.namespace",
        &[Param::Int4(shard)],
    )
}

/// The names of the collections that a shard has, or may get by a move.
pub fn on_or_moving_to(shard: ShardId) -> Result<Vec<String>> {
    row::values(
        "collections c",
        "namespace",
        "WHERE EXISTS (SELECT FROM docshard_catalog.placements p WHERE p.collection_id = c.id AND p.shard_id = $1) \
         OR EXISTS (SELECT FROM docshard_catalog.chunks k WHERE k.collection_id = c.id AND k.shard_id = $1) \
         OR EXISTS (SELECT FROM docshard_catalog.migrations m WHERE m.collection_id = c.id AND m.state <> 'done' \
                    AND (m.donor = $1 OR m.recipient = $1)) ORDER BY namespace",
        &[Param::Int4(shard)],
    )
}

/// In SQL, how many collections there are: also for asking another database.
pub const COUNT: &str = "SELECT pg_catalog.count(*) FROM docshard_catalog.collections";

/// How many collections there are.
pub fn count() -> Result<i64> {
    row::scalar(COUNT, &[])
}

/// True if the present user may create collections.
pub fn may_insert() -> Result<bool> {
    row::scalar("SELECT pg_catalog.has_table_privilege('docshard_catalog.collections', 'INSERT')", &[])
}

/// Inserts a collection; returns its number, None if the name is taken.
pub fn insert(
    namespace: &str,
    database: &str,
    key: Option<&str>,
    token: i64,
    collation: Option<&str>,
) -> Result<Option<i32>> {
    let ids = row::returning(
        "collections",
        "id",
        "INSERT INTO docshard_catalog.collections (namespace, database, key, token, collation_spec) \
         VALUES ($1, $2, $3::pg_catalog.text::pg_catalog.json, $4, $5::pg_catalog.text::pg_catalog.json) \
         ON CONFLICT (namespace) DO NOTHING",
        &[
            Param::Text(namespace),
            Param::Text(database),
            Param::OptText(key),
            Param::Int8(token),
            Param::OptText(collation),
        ],
    )?;
    Ok(ids.into_iter().next())
}

/// The next version of a collection: never given out before, and never again.
///
/// # Errors
/// `NamespaceNotFound`.
pub fn next_version(id: i32) -> Result<i64> {
    let sql = "UPDATE docshard_catalog.collections SET version = version + 1 WHERE id = $1";
    let versions = row::returning("collections", "version", sql, &[Param::Int4(id)])?;
    versions.into_iter().next().ok_or_else(|| Error::new(Kind::NamespaceNotFound, "the collection is gone"))
}

/// Advances a collection's revision.
pub fn advance_revision(id: i32) -> Result<()> {
    let sql = "UPDATE docshard_catalog.collections SET revision = revision + 1 WHERE id = $1";
    row::execute(sql, &[Param::Int4(id)])
}

/// Sets the shard key.
pub fn set_key(id: i32, key: &str) -> Result<()> {
    let sql = "UPDATE docshard_catalog.collections SET key = $2::pg_catalog.text::pg_catalog.json WHERE id = $1";
    row::execute(sql, &[Param::Int4(id), Param::Text(key)])
}

/// Makes the shard key unique.
pub fn set_unique(id: i32) -> Result<()> {
    row::execute("UPDATE docshard_catalog.collections SET is_unique = true WHERE id = $1", &[Param::Int4(id)])
}

/// Lets the balancer move the collection's chunks, or not.
pub fn set_balance(id: i32, balance: bool) -> Result<()> {
    let sql = "UPDATE docshard_catalog.collections SET balance = $2 WHERE id = $1";
    row::execute(sql, &[Param::Int4(id), Param::Bool(balance)])
}

/// Sets the collection's own chunk size, in MiB; None: the cluster's.
pub fn set_chunk_size(id: i32, mb: Option<i32>) -> Result<()> {
    let sql = "UPDATE docshard_catalog.collections SET chunk_size_mb = $2::pg_catalog.int4 WHERE id = $1";
    row::execute(sql, &[Param::Int4(id), Param::OptText(mb.map(|mb| mb.to_string()).as_deref())])
}

/// Deletes a collection, with its chunks, placements and indexes.
pub fn delete(id: i32) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.collections WHERE id = $1", &[Param::Int4(id)])
}
