//! `docshard_catalog.zone_ranges`: which keys live on the shards of a zone.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::{self, param::Param};

row! {
    /// A range.
    pub struct StoredRange from "zone_ranges" {
        /// the collection's name
        pub namespace: String,
        /// the lower bound, encoded
        pub min_key: Vec<u8>,
        /// the upper bound, encoded
        pub max_key: Vec<u8>,
        /// the lower bound, as JSON text
        pub min: String,
        /// the upper bound, as JSON text
        pub max: String,
        /// the zone
        pub zone: String,
    }
}

/// Lets nobody else change ranges until the transaction ends.
pub fn lock() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.zone_ranges IN SHARE ROW EXCLUSIVE MODE")
}

/// A collection's ranges by lower bound, in the active snapshot.
pub fn read(namespace: &str) -> Result<Vec<StoredRange>> {
    row::read("WHERE namespace = $1 ORDER BY min_key", &[Param::Text(namespace)])
}

/// All ranges, in the active snapshot.
pub fn read_all() -> Result<Vec<StoredRange>> {
    row::read("ORDER BY namespace, min_key", &[])
}

/// The first range of a collection that overlaps these bounds and does not have them itself.
pub fn overlapping(namespace: &str, min: &[u8], max: &[u8]) -> Result<Option<StoredRange>> {
    row::find(
        "WHERE namespace = $1 AND (min_key, max_key) <> ($2, $3) AND min_key < $3 AND max_key > $2 ORDER BY min_key",
        &[Param::Text(namespace), Param::Bytea(min), Param::Bytea(max)],
    )
}

/// Inserts a range, or sets the zone of the one that has its bounds.
pub fn insert_or_set(range: &StoredRange) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.zone_ranges (namespace, min_key, max_key, min, max, zone) \
         VALUES ($1, $2, $3, $4::text::json, $5::text::json, $6) \
         ON CONFLICT (namespace, min_key) DO UPDATE SET zone = excluded.zone",
        &[
            Param::Text(&range.namespace),
            Param::Bytea(&range.min_key),
            Param::Bytea(&range.max_key),
            Param::Text(&range.min),
            Param::Text(&range.max),
            Param::Text(&range.zone),
        ],
    )
}

/// Deletes the range with these bounds.
pub fn delete(namespace: &str, min: &[u8], max: &[u8]) -> Result<()> {
    row::execute(
        "DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1 AND min_key = $2 AND max_key = $3",
        &[Param::Text(namespace), Param::Bytea(min), Param::Bytea(max)],
    )
}

/// Deletes a collection's ranges.
pub fn delete_of_collection(namespace: &str) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1", &[Param::Text(namespace)])
}

/// Deletes the ranges of a database's collections.
pub fn delete_of_database(database: &str) -> Result<()> {
    let sql = "DELETE FROM docshard_catalog.zone_ranges WHERE pg_catalog.split_part(namespace, '.', 1) = $1";
    row::execute(sql, &[Param::Text(database)])
}
