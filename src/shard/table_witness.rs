//! Recognizes a collection's table: by its witness, a row of `docshard_data.tables` ([`super::table_shape`]), by its name, or by its
//! triggers. The triggers remain even if rows of docshard's own tables are deleted, and a drop of them is refused.

use crate::pg::error::Result;
use crate::pg::server::{self, relation_oid};
use crate::pg::spi;
use crate::storage::SCHEMA;
use docshard_core::sql::param::Param;
use pgrx::pg_sys::Oid;

/// True if this database has the table of witnesses. False until the extension is updated, if it was created by a version without it.
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

/// The SQL expression for the collection to which a table belongs, given its row `c` of `pg_class`: the collection's number by the witness
/// or the name; 0 if only its triggers show that it is a collection's; NULL for any other table. docshard's own tables have such a
/// trigger, too, but are members of the extension.
pub(super) fn collection_of_row() -> String {
    let witness =
        if exists() { "(SELECT t.collection_id FROM docshard_data.tables t WHERE t.relation = c.oid), " } else { "" };
    format!(
        "coalesce({witness}\
           CASE WHEN c.relname ~ '^c[0-9]{{1,9}}$' AND c.relnamespace = \
             (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = 'docshard_data') \
             THEN pg_catalog.substr(c.relname, 2)::int4 END, \
           CASE WHEN c.relhastriggers AND EXISTS ( \
               SELECT FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid \
                 JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace \
                WHERE g.tgrelid = c.oid AND f.proname = 'capture_change' AND n.nspname = 'docshard_internal') \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
                WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e') \
             THEN 0 END)"
    )
}

/// Returns the collection to which a table belongs; 0 if its number is not known, None if the table is not a collection's.
pub fn collection_of(table: Oid) -> Result<Option<i32>> {
    let sql =
        format!("SELECT {} FROM pg_catalog.pg_class c WHERE c.oid = $1::oid AND c.relkind = 'r'", collection_of_row());
    let rows = spi::query(&sql, &[Param::Int8(table.to_u32().into())])?;
    Ok(rows.first().filter(|row| row.get(0).is_some()).map(|row| row.i32(0)))
}

/// Returns the collection's table that has this trigger; None if the trigger is not docshard's, or the table not a collection's.
pub fn marked_by(trigger: Oid) -> Result<Option<Oid>> {
    let sql = "SELECT g.tgrelid::int8 FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid \
               WHERE g.oid = $1::oid AND NOT g.tgisinternal AND f.proname = 'capture_change'";
    let rows = spi::query(sql, &[Param::Int8(trigger.to_u32().into())])?;
    let table = rows.first().map(|row| server::oid(row.i64(0)));
    Ok(match table {
        Some(table) if collection_of(table)?.is_some() => Some(table),
        _ => None,
    })
}

/// True if a collection's table has rows. It runs no code of the table's owner, who is not trusted: rows of child tables are not read, and
/// a table with row-level security counts as one that has rows.
pub fn has_rows(table: Oid) -> Result<bool> {
    let sql = "SELECT c.oid::pg_catalog.regclass::text, c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid = $1::oid AND c.relkind = 'r'";
    let named = spi::query(sql, &[Param::Int8(table.to_u32().into())])?;
    let Some(row) = named.first() else { return Ok(false) };
    Ok(row.bool(1) || !spi::query(&format!("SELECT FROM ONLY {} LIMIT 1", row.text(0)), &[])?.is_empty())
}

/// Returns all tables of collections in this database.
pub fn all() -> Result<Vec<Oid>> {
    let sql = format!(
        "SELECT c.oid::int8 FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND {} IS NOT NULL ORDER BY c.oid",
        collection_of_row()
    );
    Ok(spi::query(&sql, &[])?.iter().map(|row| server::oid(row.i64(0))).collect())
}
