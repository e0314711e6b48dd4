//! `docshard_catalog.indexes`: secondary indexes.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use serde_json::Value as Json;

row! {
    /// A secondary index.
    pub struct StoredIndex from "indexes" {
        /// its number
        pub id: i32,
        /// its name
        pub name: String,
        /// its keys, as text
        pub keys: String,
        /// no two documents have the same keys
        pub unique: bool = "is_unique",
        /// searches do not use it
        pub hidden: bool = "is_hidden",
        /// documents are deleted so many seconds after the date in its field
        pub expire_after_s: Option<i64>,
        /// holds only documents that have at least one of its fields
        pub sparse: bool = "is_sparse",
        /// holds only documents that match this filter, as text
        pub partial_filter: Option<String>,
        /// what its strings are ordered by
        pub collation: Option<Json> = "collation_spec",
        /// which fields a wildcard index has, as text
        pub wildcard_projection: Option<String>,
    }
}

row! {
    /// An index by which documents expire.
    pub struct Expiring from "indexes i JOIN docshard_catalog.collections c ON c.id = i.collection_id" {
        /// the collection's name
        pub namespace: String = "c.namespace",
        /// the index's name
        pub name: String = "i.name",
        /// the field with the date
        pub path: String = "(SELECT k FROM pg_catalog.json_object_keys(i.keys) AS k LIMIT 1)",
        /// documents with a date up to this one have expired, in milliseconds since 1970
        pub until: i64 = "(extract(epoch FROM pg_catalog.now()) * 1000)::pg_catalog.int8 - i.expire_after_s * 1000",
        /// holds only documents that match this filter
        pub partial_filter: Option<Json> = "i.partial_filter",
        /// what its strings are ordered by
        pub collation: Option<Json> = "i.collation_spec",
    }
}

/// A collection's indexes by number, in the active snapshot.
pub fn read(collection: i32) -> Result<Vec<StoredIndex>> {
    row::read("WHERE collection_id = $1 ORDER BY id", &[Param::Int4(collection)])
}

/// The indexes by which documents expire, by number.
pub fn expiring() -> Result<Vec<Expiring>> {
    row::query("WHERE i.expire_after_s IS NOT NULL ORDER BY i.id", &[])
}

/// True if a collection has a unique index beside the primary key.
pub fn has_unique(collection: i32) -> Result<bool> {
    let sql = "SELECT FROM docshard_catalog.indexes WHERE collection_id = $1 AND is_unique LIMIT 1";
    row::exists(sql, &[Param::Int4(collection)])
}

/// True if there is an index of that number.
pub fn exists(id: i32) -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.indexes WHERE id = $1", &[Param::Int4(id)])
}

/// True if there is an index by which documents expire.
pub fn exist_expiring() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.indexes WHERE expire_after_s IS NOT NULL LIMIT 1", &[])
}

/// A number for a new index.
pub fn next_id() -> Result<i32> {
    super::next_id("indexes")
}

/// Inserts an index.
pub fn insert(collection: i32, index: &StoredIndex) -> Result<()> {
    let collation = index.collation.as_ref().map(Json::to_string);
    row::execute(
        "INSERT INTO docshard_catalog.indexes \
           (id, collection_id, name, keys, is_unique, is_hidden, expire_after_s, is_sparse, partial_filter, collation_spec, \
            wildcard_projection) \
         VALUES ($1, $2, $3, $4::text::json, $5, $6, nullif($7, -1), $8, $9::text::json, $10::text::json, $11::text::json)",
        &[
            Param::Int4(index.id),
            Param::Int4(collection),
            Param::Text(&index.name),
            Param::Text(&index.keys),
            Param::Bool(index.unique),
            Param::Bool(index.hidden),
            Param::Int8(index.expire_after_s.unwrap_or(-1)),
            Param::Bool(index.sparse),
            Param::OptText(index.partial_filter.as_deref()),
            Param::OptText(collation.as_deref()),
            Param::OptText(index.wildcard_projection.as_deref()),
        ],
    )
}

/// Deletes an index.
pub fn delete(id: i32) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.indexes WHERE id = $1", &[Param::Int4(id)])
}
