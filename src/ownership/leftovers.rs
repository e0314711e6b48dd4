//! What a move leaves on its shards until it is cleaned, listed here and nowhere else: rows in the capture tables of the donor,
//! and tables of its own on the recipient.

/// The tables that hold a donor's captures, each with the columns `migration_id` and `collection_id`.
const CAPTURE_TABLES: [&str; 3] = ["capture", "capture_log", "capture_parts"];

/// What the names of a move's own tables end with: the foreign tables over what the donor says of itself, over what it packs and
/// over what it captures; and the table of what has arrived.
const MOVE_TABLES: [&str; 4] = ["identity", "source", "changes", "staging"];

/// The statements that delete from every capture table what a condition holds of.
pub fn delete_captures(condition: &str) -> impl Iterator<Item = String> {
    CAPTURE_TABLES.iter().map(move |table| format!("DELETE FROM docshard_data.{table} WHERE {condition}"))
}

/// A query for the number of every move of which a capture table has a row.
pub fn captured_moves() -> String {
    CAPTURE_TABLES.map(|table| format!("SELECT migration_id FROM docshard_data.{table}")).join(" UNION ")
}

/// A regular expression for the names of all moves' own tables.
pub fn move_tables() -> String {
    format!("m[0-9]{{1,18}}_({})", MOVE_TABLES.join("|"))
}

/// The foreign table over what the donor says of itself.
pub fn identity(migration: i64) -> String {
    table(migration, 0)
}

/// The foreign table over what the donor packs.
pub fn source(migration: i64) -> String {
    table(migration, 1)
}

/// The foreign table over what is captured at the donor.
pub fn changes(migration: i64) -> String {
    table(migration, 2)
}

/// The table of documents that have arrived.
pub fn staging(migration: i64) -> String {
    table(migration, 3)
}

fn table(migration: i64, at: usize) -> String {
    format!("docshard_data.m{migration}_{}", MOVE_TABLES[at])
}

/// The statements that drop a move's own tables.
pub fn drop_tables(migration: i64) -> String {
    format!(
        "DROP FOREIGN TABLE IF EXISTS {}, {}, {}; DROP TABLE IF EXISTS {}",
        identity(migration),
        source(migration),
        changes(migration),
        staging(migration)
    )
}
