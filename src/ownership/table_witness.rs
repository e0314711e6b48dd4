//! The witness of each collection's table, a row of `docshard_data.tables`: see [`super::table_shape`].

use crate::pg::error::Result;
use crate::pg::server::relation_oid;
use crate::pg::spi::{self, param::Param};
use crate::storage::SCHEMA;
use pgrx::pg_sys::Oid;

/// False until the extension is updated from a version that had no witnesses.
pub(super) fn exists() -> bool {
    relation_oid(SCHEMA, c"tables").is_some()
}

/// Stores or renews the witness of a collection's table.
pub fn renew(collection: i32, table: Oid) -> Result<()> {
    if !exists() {
        return Ok(());
    }
    let sql = "INSERT INTO docshard_data.tables (collection_id, relation, file) \
               SELECT $1, c.oid, c.relfilenode FROM pg_catalog.pg_class c WHERE c.oid = $2::oid \
               ON CONFLICT (collection_id) DO UPDATE SET relation = excluded.relation, file = excluded.file";
    spi::execute(sql, &[Param::Int4(collection), Param::Int8(table.to_u32().into())]).map(drop)
}

/// Removes the witness of a table that is dropped.
pub fn forget(collection: i32) -> Result<()> {
    if exists() {
        spi::execute("DELETE FROM docshard_data.tables WHERE collection_id = $1", &[Param::Int4(collection)])?;
    }
    Ok(())
}

/// Returns the collection that a table was created for, by the witness.
pub fn collection_of(table: Oid) -> Result<Option<i32>> {
    if !exists() {
        return Ok(None);
    }
    let sql = "SELECT collection_id FROM docshard_data.tables WHERE relation = $1::oid";
    Ok(spi::query(sql, &[Param::Int8(table.to_u32().into())])?.first().map(|row| row.i32(0)))
}
