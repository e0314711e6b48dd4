//! `docshard_catalog.sampled_statements`: some of the statements of collections, for advice on their shard keys.
//!
//! A row has no foreign key to its collection, because an insertion would then wait for transactions that have locked the collection's
//! metadata. Rows of dropped collections are deleted like old ones.

use crate::pg::error::Result;

rows! {
    /// A sampled statement.
    SampledStatement from "sampled_statements" {
        /// what the statement does: see `router::sampling`
        kind: String,
        filter: String,
        modification: Option<String>,
        many: bool,
    }
}

/// True if the extension is updated to the release that has the table.
fn is_there() -> bool {
    super::relation(c"sampled_statements").is_some()
}

/// True if there is any sampled statement.
pub fn exist() -> Result<bool> {
    if is_there() { any() } else { Ok(false) }
}

/// Deletes at most `limit` statements that are older than `days` days, or whose collections were dropped; returns their number.
pub fn delete_old(days: i32, limit: i64) -> Result<u64> {
    if is_there() { delete_before(days, limit) } else { Ok(0) }
}

/// Deletes at most `limit` statements: of each collection that has more than `most`, the oldest ones. Returns their number.
pub fn delete_excess(most: i64, limit: i64) -> Result<u64> {
    if is_there() { delete_beyond(most, limit) } else { Ok(0) }
}

statements! {
    /// Stores statements, given as a JSON array. Omits those of dropped collections.
    pub fn insert(statements: &str) -> u64 {
        run "INSERT INTO docshard_catalog.sampled_statements (collection_id, at, kind, filter, modification, many) \
             SELECT g.collection_id, pg_catalog.to_timestamp(g.at / 1000.0), g.kind, g.filter, g.modification, g.many \
             FROM pg_catalog.json_to_recordset($1::text::json) \
               AS g (collection_id int, at float8, kind text, filter text, modification text, many bool) \
             WHERE EXISTS (SELECT FROM docshard_catalog.collections c WHERE c.id = g.collection_id) ORDER BY g.at"
    }

    /// The last statements of a collection, at most `most`.
    pub fn last(collection: i32, most: i64) -> Vec<SampledStatement> {
        select "WHERE collection_id = $1 ORDER BY id DESC LIMIT $2"
    }

    /// Gives the statements of a collection to the collection that replaces it.
    pub fn hand_over(collection: i32, to: i32) {
        run "UPDATE docshard_catalog.sampled_statements SET collection_id = $2 WHERE collection_id = $1"
    }

    fn any() -> bool { run "SELECT FROM docshard_catalog.sampled_statements LIMIT 1" }

    fn delete_before(days: i32, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.sampled_statements WHERE id IN (SELECT s.id FROM docshard_catalog.sampled_statements s \
               WHERE s.at < pg_catalog.now() - pg_catalog.make_interval(days => $1) \
                 OR NOT EXISTS (SELECT FROM docshard_catalog.collections c WHERE c.id = s.collection_id) ORDER BY s.id LIMIT $2)"
    }

    fn delete_beyond(most: i64, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.sampled_statements WHERE id IN ( \
               SELECT s.id FROM docshard_catalog.collections c, LATERAL ( \
                 SELECT o.id FROM docshard_catalog.sampled_statements o WHERE o.collection_id = c.id ORDER BY o.id DESC OFFSET $1) AS s \
               LIMIT $2)"
    }
}
