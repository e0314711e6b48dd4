//! `docshard_catalog.index_builds`: indexes that are being built while writes go on, and those whose builder is gone.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;

row! {
    /// A build.
    pub struct Build from "index_builds b JOIN docshard_catalog.collections c ON c.id = b.collection_id" {
        /// the number of the index to be
        pub id: i32 = "b.id",
        /// the collection
        pub collection: i32 = "b.collection_id",
        /// its name
        pub namespace: String = "c.namespace",
        /// the name of the index
        pub name: String = "b.name",
        /// its keys, as text
        pub keys: String = "b.keys",
        /// the relations that it is made of on each shard, as the text of an array
        pub relations: String = "b.relations::pg_catalog.text",
        /// when it began, in microseconds since 2000
        pub started_at: i64 = "(extract(epoch FROM b.started_at - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)::pg_catalog.int8",
    }
}

/// All builds, by number.
pub fn all() -> Result<Vec<Build>> {
    row::query("ORDER BY b.id", &[])
}

/// The builds of the collection of that name, by number.
pub fn of_namespace(namespace: &str) -> Result<Vec<Build>> {
    row::query("WHERE c.namespace = $1 ORDER BY b.id", &[Param::Text(namespace)])
}

/// As [`of_namespace`], by the collection's number.
pub fn of_collection(collection: i32) -> Result<Vec<Build>> {
    row::query("WHERE b.collection_id = $1 ORDER BY b.id", &[Param::Int4(collection)])
}

/// True if there is a build of that number.
pub fn exists(id: i32) -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.index_builds WHERE id = $1", &[Param::Int4(id)])
}

/// True if there is any.
pub fn exist() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.index_builds LIMIT 1", &[])
}

/// Inserts a build.
pub fn insert(id: i32, collection: i32, name: &str, keys: &str, relations: &[&str]) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.index_builds (id, collection_id, name, keys, relations) \
         VALUES ($1, $2, $3, $4::text::json, $5)",
        &[Param::Int4(id), Param::Int4(collection), Param::Text(name), Param::Text(keys), Param::TextArray(relations)],
    )
}

/// Deletes a build; false if there is none of that number.
pub fn delete(id: i32) -> Result<bool> {
    Ok(row::count_changed("DELETE FROM docshard_catalog.index_builds WHERE id = $1", &[Param::Int4(id)])? > 0)
}
