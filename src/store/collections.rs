//! `docshard_catalog.collections`: names, shard keys, versions, and options of collections.

use crate::pg::error::Result;
use crate::pg::server::wal;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::sql;
use docshard_core::values::key::KeyPattern;
use serde_json::Value as Json;

rows! {
    /// What a router caches of a collection, besides chunks, placements and indexes.
    Definition from "collections" {
        id: i32,
        /// a random number that distinguishes two collections which have the same `id`
        token: i64,
        /// advanced with every change that cached maps must notice
        revision: i64,
        /// the shard key; None if unsharded
        key: Option<Json>,
        /// no two documents have the same shard key
        unique: bool = "is_unique",
        /// the shard key has an index of its own
        has_key_index: bool,
        /// how statements that name no collation compare strings; None: by their bytes
        collation: Option<Json> = "collation_spec",
        /// the options of its validation, as JSON; None: it has none
        validation: Option<String> = "to_jsonb(collections) ->> 'validation'",
        /// at most one statement in this number of microseconds is sampled; None: none is
        sampled_every_us: Option<i64> = "(to_jsonb(collections) ->> 'sampled_every_us')::pg_catalog.int8",
    }

    /// A collection's row while it is locked.
    Locked from "collections" {
        id: i32,
        token: i64,
        /// the last version that was assigned
        version: i64,
        /// the shard key; None if unsharded
        key: Option<Json>,
    }

    /// A collection whose statements are sampled.
    Sampled from "collections" {
        namespace: String,
        /// its UUID, in Extended JSON
        uuid: Json = sql::collection_uuid("id", "token") + "::pg_catalog.text",
        /// at most one statement in this number of microseconds is sampled
        every_us: i64 = "(to_jsonb(collections) ->> 'sampled_every_us')::pg_catalog.int8",
    }

    /// What the balancer needs to know of a collection.
    Balanced from "collections c" {
        id: i32,
        namespace: String,
        /// the shard key; None if unsharded
        key: Option<Json>,
        /// its own chunk size, in MiB; None: the cluster's
        chunk_size_mb: Option<i32>,
        /// its chunks may be moved, and no index is being built
        balance: bool =
            "balance AND NOT EXISTS (SELECT FROM docshard_catalog.index_builds b WHERE b.collection_id = c.id)",
        /// no two documents have the same shard key
        unique: bool = "is_unique",
    }

    /// A collection, as MongoDB's listCollections shows it.
    ListedCollection from "collections" {
        /// its name in its database
        name: String = "pg_catalog.substr(namespace, pg_catalog.length(database) + 2)",
        /// its UUID, in Extended JSON
        uuid: Json = sql::collection_uuid("id", "token") + "::pg_catalog.text",
        /// how statements that name no collation compare strings; None: by their bytes
        collation: Option<Json> = "collation_spec",
        /// the options of its validation, as JSON; None: it has none
        validation: Option<String> = "to_jsonb(collections) ->> 'validation'",
    }

    /// A collection's number, name and token.
    Identified from "collections" { id: i32, namespace: String, token: i64 }

    /// A collection's number and name.
    Named from "collections" { id: i32, namespace: String }
}

/// Parses a stored shard key; None is the key of an unsharded collection.
pub fn pattern(key: Option<&Json>) -> Result<KeyPattern> {
    Ok(key.map(KeyPattern::parse).transpose()?.unwrap_or_else(KeyPattern::unsharded))
}

/// The SQL condition that a collection is not the copy that a change of a layout makes. Users cannot choose the name of such a copy.
macro_rules! is_no_copy {
    () => {
        "NOT pg_catalog.starts_with(namespace, database || '.system.resharding.')"
    };
}

/// The SQL query for the number of collections, for this database or another one.
pub const COUNT: &str = "SELECT pg_catalog.count(*) FROM docshard_catalog.collections";

/// Advances a collection's version and returns it. No other change of ownership has this version, not even one that another server has
/// decided and this server has lost: each timeline begins with greater versions than the one before, and the step is random, because two
/// servers may be promoted to the same timeline.
/// Errors: `NamespaceNotFound`.
pub fn next_version(id: i32) -> Result<i64> {
    let after = (wal::timeline() - 1).clamp(0, LAST_TIMELINE) << 32;
    advance_version(id, after)?.ok_or_else(|| error!(Kind::NamespaceNotFound, "the collection was dropped"))
}

/// Later timelines begin with the same versions as this one, so that versions stay far below the largest bigint.
const LAST_TIMELINE: i64 = 1 << 24;

/// The most by which a shard's version may exceed the catalog's. A greater difference would take hundreds of millions of moves: the shard is
/// damaged or malicious.
const FARTHEST: i64 = 1 << 52;

/// Raises the collection's last assigned version to at least `version`, which a shard reports and another router has assigned.
/// Errors: `OperationFailed` if `version` exceeds the catalog's by more than [`FARTHEST`].
pub fn raise_version(id: i32, version: i64) -> Result<()> {
    if set_least_version(id, version, FARTHEST)? > 0 {
        return Ok(());
    }
    Err(error!(Kind::OperationFailed, "a shard reports version {version} of collection {id}, which was never assigned")
        .with_hint("The shard is damaged, or answers wrongly: restore it from a backup, or remove it."))
}

/// Inserts a collection; returns its number, or None if the name is taken.
pub fn insert(
    namespace: &str,
    database: &str,
    key: Option<&str>,
    token: i64,
    collation: Option<&str>,
) -> Result<Option<i32>> {
    insert_row(super::next_id("collections")?, namespace, database, key, token, collation)
}

statements! {
    /// The collection of that name, in the active snapshot.
    pub fn read_definition(namespace: &str) -> Option<Definition> { select_active "WHERE namespace = $1" }

    /// The number of the collection of that name, in the active snapshot.
    pub fn read_id(namespace: &str) -> Option<i32> {
        run_active "SELECT id FROM docshard_catalog.collections WHERE namespace = $1"
    }

    /// All collections, or the sharded ones only, by name, in the active snapshot.
    pub fn read_balanced(sharded_only: bool) -> Vec<Balanced> {
        select_active "WHERE key IS NOT NULL OR NOT $1 ORDER BY namespace"
    }

    /// The collection of that name, its row locked until the transaction ends.
    pub fn lock(namespace: &str) -> Option<Locked> { select "WHERE namespace = $1 FOR UPDATE" }

    /// Like [`lock`], by number; None if the collection was dropped.
    pub fn lock_id(id: i32) -> Option<Locked> { select "WHERE id = $1 FOR UPDATE" }

    /// All collections, by number.
    pub fn all() -> Vec<Named> { select "ORDER BY id" }

    /// All collections with their tokens.
    pub fn identities() -> Vec<Identified> { select "" }

    /// The name of a collection; None if it was dropped.
    pub fn namespace(id: i32) -> Option<String> {
        run "SELECT namespace FROM docshard_catalog.collections WHERE id = $1"
    }

    /// The names of a database's collections, without copies.
    pub fn of_database(database: &str) -> Vec<String> {
        run concat!("SELECT namespace FROM docshard_catalog.collections WHERE database = $1 AND ", is_no_copy!(), " ORDER BY namespace")
    }

    /// A database's collections by name, as MongoDB's listCollections shows them.
    pub fn listed(database: &str) -> Vec<ListedCollection> {
        select concat!("WHERE database = $1 AND ", is_no_copy!(), " ORDER BY namespace")
    }

    /// True if there is a copy of this name.
    pub fn is_copy(namespace: &str) -> bool {
        run concat!("SELECT FROM docshard_catalog.collections WHERE namespace = $1 AND NOT (", is_no_copy!(), ")")
    }

    /// The copies of a database's collections: numbers and names.
    pub fn copies_of_database(database: &str) -> Vec<Named> {
        select concat!("WHERE database = $1 AND NOT (", is_no_copy!(), ") ORDER BY id")
    }

    /// The names of a database's unsharded collections, without copies.
    pub fn unsharded_of_database(database: &str) -> Vec<String> {
        run concat!(
            "SELECT namespace FROM docshard_catalog.collections WHERE database = $1 AND key IS NULL AND ", is_no_copy!(),
            " ORDER BY namespace"
        )
    }

    /// The names of the unsharded collections on a shard that is not their database's primary one, without copies.
    pub fn unsharded_away(shard: ShardId) -> Vec<String> {
        run concat!(
            "SELECT namespace FROM docshard_catalog.collections c WHERE key IS NULL \
             AND EXISTS (SELECT FROM docshard_catalog.chunks k WHERE k.collection_id = c.id AND k.shard_id = $1) \
             AND NOT EXISTS (SELECT FROM docshard_catalog.databases d WHERE d.name = c.database AND d.primary_shard = $1) AND ",
            is_no_copy!(), " ORDER BY namespace"
        )
    }

    /// The collections of which a shard owns chunks, by name.
    pub fn with_chunks_on(shard: ShardId) -> Vec<Balanced> {
        select "WHERE EXISTS (SELECT FROM docshard_catalog.chunks k WHERE k.collection_id = c.id AND k.shard_id = $1) \
                ORDER BY c.namespace"
    }

    /// The names of the collections that a shard has, or may get by a move.
    pub fn on_or_moving_to(shard: ShardId) -> Vec<String> {
        run "SELECT namespace FROM docshard_catalog.collections c \
             WHERE EXISTS (SELECT FROM docshard_catalog.placements p WHERE p.collection_id = c.id AND p.shard_id = $1) \
             OR EXISTS (SELECT FROM docshard_catalog.chunks k WHERE k.collection_id = c.id AND k.shard_id = $1) \
             OR EXISTS (SELECT FROM docshard_catalog.migrations m WHERE m.collection_id = c.id AND m.state <> 'done' \
                        AND (m.donor = $1 OR m.recipient = $1)) ORDER BY namespace"
    }

    /// True if the balancer may move the collection's chunks; None if the collection was dropped.
    pub fn balancing(id: i32) -> Option<bool> {
        run "SELECT balance FROM docshard_catalog.collections WHERE id = $1"
    }

    /// The number of collections.
    pub fn count() -> i64 { run COUNT }

    /// True if the present user may create collections.
    pub fn may_insert() -> bool {
        run "SELECT WHERE pg_catalog.has_table_privilege('docshard_catalog.collections', 'INSERT')"
    }

    fn insert_row(
        id: i32, namespace: &str, database: &str, key: Option<&str>, token: i64, collation: Option<&str>,
    ) -> Option<i32> {
        run "INSERT INTO docshard_catalog.collections (id, namespace, database, key, token, collation_spec) \
             VALUES ($1, $2, $3, $4::pg_catalog.text::pg_catalog.json, $5, $6::pg_catalog.text::pg_catalog.json) \
             ON CONFLICT (namespace) DO NOTHING RETURNING id"
    }

    fn advance_version(id: i32, after: i64) -> Option<i64> {
        run "UPDATE docshard_catalog.collections SET version = greatest(version, $2) + 1 + (pg_catalog.random() * 16777215)::pg_catalog.int8 \
             WHERE id = $1 RETURNING version"
    }

    fn set_least_version(id: i32, version: i64, farthest: i64) -> u64 {
        run "UPDATE docshard_catalog.collections SET version = greatest(version, $2) WHERE id = $1 AND $2 - $3 <= version"
    }

    /// Advances a collection's revision.
    pub fn advance_revision(id: i32) {
        run "UPDATE docshard_catalog.collections SET revision = revision + 1 WHERE id = $1"
    }

    /// Sets the shard key.
    pub fn set_key(id: i32, key: &str) {
        run "UPDATE docshard_catalog.collections SET key = $2::pg_catalog.text::pg_catalog.json WHERE id = $1"
    }

    /// Makes the shard key unique.
    pub fn set_unique(id: i32) { run "UPDATE docshard_catalog.collections SET is_unique = true WHERE id = $1" }

    /// Records that the shard key has no index of its own.
    pub fn drop_key_index(id: i32) {
        run "UPDATE docshard_catalog.collections SET has_key_index = false WHERE id = $1"
    }

    /// Sets whether the balancer may move the collection's chunks.
    pub fn set_balance(id: i32, balance: bool) {
        run "UPDATE docshard_catalog.collections SET balance = $2 WHERE id = $1"
    }

    /// Sets the collection's own chunk size, in MiB; None: the cluster's.
    pub fn set_chunk_size(id: i32, mb: Option<i32>) {
        run "UPDATE docshard_catalog.collections SET chunk_size_mb = $2 WHERE id = $1"
    }

    /// Sets the options of the collection's validation; None: it has none.
    pub fn set_validation(id: i32, validation: Option<&str>) {
        run "UPDATE docshard_catalog.collections SET validation = $2 WHERE id = $1"
    }

    /// Sets that at most one statement in this number of microseconds is sampled; None: none is.
    pub fn set_sampling(id: i32, every_us: Option<i64>) {
        run "UPDATE docshard_catalog.collections SET sampled_every_us = $2 WHERE id = $1"
    }

    /// True if statements of any collection are sampled; false before the extension is updated, when the column does not exist.
    pub fn any_is_sampled() -> bool {
        run "SELECT FROM docshard_catalog.collections WHERE to_jsonb(collections) ->> 'sampled_every_us' IS NOT NULL LIMIT 1"
    }

    /// The collections whose statements are sampled.
    pub fn sampled() -> Vec<Sampled> {
        select "WHERE to_jsonb(collections) ->> 'sampled_every_us' IS NOT NULL ORDER BY namespace"
    }

    /// Renames a collection, within its database.
    pub fn rename(id: i32, namespace: &str) {
        run "UPDATE docshard_catalog.collections SET namespace = $2 WHERE id = $1"
    }

    /// Sets those properties of a copy that do not depend on the layout to the collection's: its own chunk size, whether it is balanced,
    /// when it was created, and how its statements are sampled.
    pub fn complete_copy(copy: i32, collection: i32) {
        run "UPDATE docshard_catalog.collections c SET chunk_size_mb = o.chunk_size_mb, balance = o.balance, created_at = o.created_at, \
               sampled_every_us = o.sampled_every_us \
             FROM docshard_catalog.collections o WHERE c.id = $1 AND o.id = $2"
    }

    /// Deletes a collection, with its chunks, placements and indexes.
    pub fn delete(id: i32) { run "DELETE FROM docshard_catalog.collections WHERE id = $1" }
}
