//! A collection's table on this shard: made and dropped together with its placement row.

use crate::pg::error::Result;
use crate::pg::param::Param;
use crate::pg::spi;

/// The table's qualified name.
pub fn name(collection: i32) -> String {
    format!("docshard_data.c{collection}")
}

/// Makes the table, empty, and places it at a version. `id_index` asks for an index on `id`, needed where the shard key
/// does not follow from `_id`. Does nothing but move the version if it is there already.
///
/// # Errors
/// Internal ones; PostgreSQL raises what DDL raises.
pub fn create(collection: i32, token: i64, version: i64, id_index: bool) -> Result<()> {
    let table = name(collection);
    spi::run_script(&format!(
        "CREATE TABLE IF NOT EXISTS {table} (skey bytea NOT NULL, id bytea NOT NULL, doc docshard.document NOT NULL, \
         CONSTRAINT c{collection}_pkey PRIMARY KEY (skey, id))"
    ))?;
    set_id_index(collection, id_index)?;
    spi::execute(
        "INSERT INTO docshard_data.placement (collection_id, token, version) VALUES ($1, $2, $3) \
         ON CONFLICT (collection_id) DO UPDATE SET token = excluded.token, version = excluded.version",
        &[Param::Int4(collection), Param::Int8(token), Param::Int8(version)],
    )?;
    Ok(())
}

/// Makes or drops the index on `id`.
///
/// # Errors
/// As [`create`].
pub fn set_id_index(collection: i32, wanted: bool) -> Result<()> {
    let table = name(collection);
    if wanted {
        spi::run_script(&format!("CREATE INDEX IF NOT EXISTS c{collection}_id ON {table} (id)"))
    } else {
        spi::run_script(&format!("DROP INDEX IF EXISTS docshard_data.c{collection}_id"))
    }
}

/// Drops the table and its placement; does nothing if they are not there.
///
/// # Errors
/// As [`create`].
pub fn drop(collection: i32) -> Result<()> {
    spi::run_script(&format!("DROP TABLE IF EXISTS {}", name(collection)))?;
    spi::execute("DELETE FROM docshard_data.placement WHERE collection_id = $1", &[Param::Int4(collection)])?;
    spi::execute("DELETE FROM docshard_data.capture WHERE collection_id = $1", &[Param::Int4(collection)])?;
    Ok(())
}
