//! `docshard_catalog.zone_ranges`: which keys belong to the shards of a zone.

use crate::pg::error::Result;
use crate::pg::spi;

rows! {
    /// A range of a collection that belongs to a zone.
    StoredRange from "zone_ranges" {
        namespace: String,
        /// the lower bound, encoded
        min_key: Vec<u8>,
        /// the upper bound, encoded
        max_key: Vec<u8>,
        /// the lower bound, as JSON text
        min: String,
        /// the upper bound, as JSON text
        max: String,
        zone: String,
    }
}

/// Blocks other changes of ranges until the transaction ends.
pub fn lock() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.zone_ranges IN SHARE ROW EXCLUSIVE MODE")
}

statements! {
    /// A collection's ranges by lower bound, in the active snapshot.
    pub fn read(namespace: &str) -> Vec<StoredRange> { select_active "WHERE namespace = $1 ORDER BY min_key" }

    /// All ranges, in the active snapshot.
    pub fn read_all() -> Vec<StoredRange> { select_active "ORDER BY namespace, min_key" }

    /// The first range of a collection that overlaps these bounds; a range with exactly these bounds does not count.
    pub fn overlapping(namespace: &str, min: &[u8], max: &[u8]) -> Option<StoredRange> {
        select "WHERE namespace = $1 AND (min_key, max_key) <> ($2, $3) AND min_key < $3 AND max_key > $2 ORDER BY min_key"
    }

    /// Inserts a range, or sets the zone of the one that has its bounds.
    pub fn insert_or_set(range: &StoredRange) {
        run "INSERT INTO docshard_catalog.zone_ranges (namespace, min_key, max_key, min, max, zone) \
             VALUES ($1, $2, $3, $4::text::json, $5::text::json, $6) \
             ON CONFLICT (namespace, min_key) DO UPDATE SET zone = excluded.zone",
            [range.namespace, range.min_key, range.max_key, range.min, range.max, range.zone]
    }

    /// Deletes the range with these bounds.
    pub fn delete(namespace: &str, min: &[u8], max: &[u8]) {
        run "DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1 AND min_key = $2 AND max_key = $3"
    }

    /// Changes the name of the collection in its ranges.
    pub fn rename(from: &str, to: &str) {
        run "UPDATE docshard_catalog.zone_ranges SET namespace = $2 WHERE namespace = $1"
    }

    /// Deletes a collection's ranges.
    pub fn delete_of_collection(namespace: &str) {
        run "DELETE FROM docshard_catalog.zone_ranges WHERE namespace = $1"
    }

    /// Deletes the ranges of a database's collections.
    pub fn delete_of_database(database: &str) {
        run "DELETE FROM docshard_catalog.zone_ranges WHERE pg_catalog.split_part(namespace, '.', 1) = $1"
    }
}
