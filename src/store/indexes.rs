//! `docshard_catalog.indexes`: secondary indexes.

use crate::pg::error::Result;
use serde_json::Value as Json;

rows! {
    /// A secondary index.
    StoredIndex from "indexes" {
        id: i32,
        name: String,
        /// its keys, as text
        keys: String,
        /// no two documents have the same keys
        unique: bool = "is_unique",
        /// searches do not use the index
        hidden: bool = "is_hidden",
        /// documents are deleted this number of seconds after the date in the index's field; None: they do not expire
        expire_after_s: Option<i64>,
        /// the index has only documents with at least one of its fields
        sparse: bool = "is_sparse",
        /// the index has only documents that match this filter, as text; None: all
        partial_filter: Option<String>,
        /// the collation of its strings; None: by their bytes
        collation: Option<Json> = "collation_spec",
        /// the fields that a wildcard index has, as text; None: all
        wildcard_projection: Option<String>,
    }

    /// An index, or one that is being built.
    NumberedIndex from "indexes i FULL JOIN docshard_catalog.index_builds b ON b.id = i.id" {
        id: i32 = "coalesce(i.id, b.id)",
        collection: i32 = "coalesce(i.collection_id, b.collection_id)",
        name: String = "coalesce(i.name, b.name)",
        /// false: it is being built
        is_built: bool = "i.id IS NOT NULL",
    }

    /// An index by which documents expire.
    Expiring from "indexes i JOIN docshard_catalog.collections c ON c.id = i.collection_id" {
        id: i32 = "i.id",
        /// the collection's name
        namespace: String = "c.namespace",
        /// the index's name
        name: String = "i.name",
        /// the field with the date
        path: String = "(SELECT k FROM pg_catalog.json_object_keys(i.keys) AS k LIMIT 1)",
        /// documents with this date or an earlier one have expired; in milliseconds since 1970
        until: i64 = "(extract(epoch FROM pg_catalog.now()) * 1000)::pg_catalog.int8 - i.expire_after_s * 1000",
        /// the index has only documents that match this filter; None: all
        partial_filter: Option<Json> = "i.partial_filter",
        /// the collation of its strings; None: by their bytes
        collation: Option<Json> = "i.collation_spec",
    }
}

/// A number for a new index.
pub fn next_id() -> Result<i32> {
    super::next_id("indexes")
}

statements! {
    /// A collection's indexes by number, in the active snapshot.
    pub fn read(collection: i32) -> Vec<StoredIndex> { select_active "WHERE collection_id = $1 ORDER BY id" }

    /// All indexes, and those that are being built.
    pub fn numbered() -> Vec<NumberedIndex> { select "" }

    /// The indexes by which documents expire, by number.
    pub fn expiring() -> Vec<Expiring> { select "WHERE i.expire_after_s IS NOT NULL ORDER BY i.id" }

    /// True if a collection has a unique secondary index.
    pub fn has_unique(collection: i32) -> bool {
        run "SELECT FROM docshard_catalog.indexes WHERE collection_id = $1 AND is_unique LIMIT 1"
    }

    /// True if there is an index of that number.
    pub fn exists(id: i32) -> bool { run "SELECT FROM docshard_catalog.indexes WHERE id = $1" }

    /// True if there is an index by which documents expire.
    pub fn exist_expiring() -> bool {
        run "SELECT FROM docshard_catalog.indexes WHERE expire_after_s IS NOT NULL LIMIT 1"
    }

    /// Inserts an index.
    pub fn insert(collection: i32, index: &StoredIndex) {
        run "INSERT INTO docshard_catalog.indexes \
               (id, collection_id, name, keys, is_unique, is_hidden, expire_after_s, is_sparse, partial_filter, collation_spec, \
                wildcard_projection) \
             VALUES ($1, $2, $3, $4::text::json, $5, $6, $7, $8, $9::text::json, $10::text::json, $11::text::json)",
            [
                index.id, collection, index.name, index.keys, index.unique, index.hidden, index.expire_after_s,
                index.sparse, index.partial_filter, index.collation.as_ref().map(Json::to_string),
                index.wildcard_projection,
            ]
    }

    /// Sets whether an index is hidden, and when its documents expire.
    pub fn set_options(id: i32, hidden: bool, expire_after_s: Option<i64>) {
        run "UPDATE docshard_catalog.indexes SET is_hidden = $2, expire_after_s = $3 WHERE id = $1"
    }

    /// Sets the changeable options of a copy's indexes to those of the collection's.
    pub fn complete_copy(copy: i32, collection: i32) {
        run "UPDATE docshard_catalog.indexes c SET is_hidden = o.is_hidden, expire_after_s = o.expire_after_s \
             FROM docshard_catalog.indexes o WHERE c.collection_id = $1 AND o.collection_id = $2 AND o.name = c.name"
    }

    /// Deletes an index.
    pub fn delete(id: i32) { run "DELETE FROM docshard_catalog.indexes WHERE id = $1" }
}
