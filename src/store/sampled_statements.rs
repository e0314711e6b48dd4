//! `docshard_catalog.sampled_statements`: some of the statements of collections, for advice on their shard keys.
//!
//! When a collection gets another layout, and so another number, its rows get that number afterwards, in batches: see [`hand_over`].
//! They do not get it in the change itself, for which writers wait.
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

/// Assigns at most `limit` statements of collections that a change of layout has replaced to their replacements; returns the number of these
/// statements.
pub fn hand_over(limit: i64) -> Result<u64> {
    if is_there() { replace_numbers(limit) } else { Ok(0) }
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

    /// The last statements of a collection, at most `most`; also those that it had before its layout changed.
    pub fn last(collection: i32, most: i64) -> Vec<SampledStatement> {
        select "WHERE collection_id = $1 OR collection_id IN (SELECT r.collection_id FROM docshard_catalog.resharding r \
                  WHERE r.copy_id = $1 AND r.outcome = 'committed') ORDER BY id DESC LIMIT $2"
    }

    fn replace_numbers(limit: i64) -> u64 {
        run "UPDATE docshard_catalog.sampled_statements s SET collection_id = r.copy_id FROM docshard_catalog.resharding r \
              WHERE r.collection_id = s.collection_id AND r.outcome = 'committed' AND s.id IN ( \
                    SELECT o.id FROM docshard_catalog.resharding p JOIN docshard_catalog.sampled_statements o USING (collection_id) \
                     WHERE p.outcome = 'committed' LIMIT $1)"
    }

    fn any() -> bool { run "SELECT FROM docshard_catalog.sampled_statements LIMIT 1" }

    fn delete_before(days: i32, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.sampled_statements WHERE id IN (SELECT s.id FROM docshard_catalog.sampled_statements s \
               WHERE s.at < pg_catalog.now() - pg_catalog.make_interval(days => $1) \
                 OR NOT EXISTS (SELECT FROM docshard_catalog.collections c WHERE c.id = s.collection_id) \
                    AND NOT EXISTS (SELECT FROM docshard_catalog.resharding r WHERE r.collection_id = s.collection_id AND r.outcome = 'committed') \
               ORDER BY s.id LIMIT $2)"
    }

    fn delete_beyond(most: i64, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.sampled_statements WHERE id IN ( \
               SELECT s.id FROM docshard_catalog.collections c, LATERAL ( \
                 SELECT o.id FROM docshard_catalog.sampled_statements o WHERE o.collection_id = c.id ORDER BY o.id DESC OFFSET $1) AS s \
               LIMIT $2)"
    }
}
