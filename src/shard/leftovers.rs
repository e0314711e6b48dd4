//! The tables that a move or a change of layout creates for itself on a recipient, and that stay there until it is
//! cleaned up. On a donor it leaves rows of the capture tables: see
//! [`DeleteCaptures`](docshard_core::routing::protocol::shard_tables::DeleteCaptures).

/// The foreign table over the donor's report of its identity.
pub const IDENTITY: &str = "identity";
/// The foreign table over the donor's packed parts.
pub const SOURCE: &str = "source";
/// The foreign table over the donor's captured changes.
pub const CHANGES: &str = "changes";
/// The table of the documents and changes that have arrived.
pub const STAGING: &str = "staging";

/// Returns a regular expression for the names of all moves' own tables.
pub fn move_tables() -> String {
    format!("m[0-9]{{1,18}}_({})(_[0-9]{{1,10}})?", [IDENTITY, SOURCE, CHANGES, STAGING].join("|"))
}

/// Like [`table`], for one of several donors, by its number; None: there is only one donor.
pub fn table_of(migration: i64, name: &str, donor: Option<i32>) -> String {
    donor.map_or_else(|| table(migration, name), |donor| format!("{}_{donor}", table(migration, name)))
}

/// Returns the name of one of a move's own tables on the recipient.
pub fn table(migration: i64, name: &str) -> String {
    format!("docshard_data.m{migration}_{name}")
}

/// Returns the statements that drop a move's own tables.
pub fn drop_tables(migration: i64) -> String {
    let foreign = [IDENTITY, SOURCE, CHANGES].map(|name| table(migration, name)).join(", ");
    format!("DROP FOREIGN TABLE IF EXISTS {foreign}; DROP TABLE IF EXISTS {}", table(migration, STAGING))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use docshard_core::sql::param::Param;
    use pgrx::pg_test;

    #[pg_test]
    fn every_table_of_a_move_is_dropped_and_swept() {
        for (name, donor) in [IDENTITY, SOURCE, CHANGES, STAGING].map(|name| [(name, None), (name, Some(3))]).concat() {
            let table = table_of(12, name, donor);
            assert!(donor.is_some() || drop_tables(12).contains(&table), "{table}");
            let relation = table.strip_prefix("docshard_data.").unwrap();
            let sql = "SELECT $1 ~ ('^' || $2 || '$')";
            let is_swept =
                |name: &str| spi::query(sql, &[Param::Text(name), Param::Text(&move_tables())]).unwrap()[0].bool(0);
            assert!(is_swept(relation), "{relation}");
            for other in ["c12", "m12_", "m_staging", "mx_staging", "m99999999999999999999_staging", "m12_staging_x"] {
                assert!(!is_swept(other), "{other}");
            }
        }
    }
}
