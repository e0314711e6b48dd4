//! Checks the shape of a collection's table: it must have what docshard created, and nothing else that changes which rows a statement
//! reads or writes. An administrator may add indexes, triggers, constraints and privileges.
//!
//! `docshard_data.tables` has a witness of each table: its OID and its file. TRUNCATE gives a table a new file, and so
//! does a command that rewrites all rows, such as VACUUM FULL. After a rewrite there are rows that are older than the
//! file; after TRUNCATE there are none. If there are such rows, [`check`] renews the witness. It does not detect
//! DELETE; nor a TRUNCATE if there was no witness (dumps contain none), or if a transaction that had begun before the
//! TRUNCATE inserted rows afterwards. VACUUM FULL looks like TRUNCATE if the table was empty, or if all its rows have
//! been replaced since.

use super::{table, table_witness};
use crate::pg::error::Result;
use crate::pg::object::change_watch::Changed;
use crate::pg::spi::{self, SpiRow};
use crate::pg::{security::user, server};
use docshard_core::routing::names;
use docshard_core::sql::param::Param;
use std::collections::BTreeSet;

/// Returns a WITH clause that defines `known`, the collections' tables. `touched`: only tables that are among the relations `$1`, or have
/// an index or a parent among them. PostgreSQL sends no invalidation of a table that inherits from a parent without columns.
fn known(touched: bool) -> String {
    let which = if touched {
        "c.oid IN (SELECT v.oid::oid FROM unnest($1) AS v (oid) \
                   UNION SELECT i.indrelid FROM pg_catalog.pg_index i WHERE i.indexrelid = ANY ($1::oid[]) \
                   UNION SELECT h.inhrelid FROM pg_catalog.pg_inherits h WHERE h.inhparent = ANY ($1::oid[]))"
    } else {
        "true"
    };
    format!(
        "\
    WITH data AS (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = 'docshard_data'), \
    known AS ( \
        SELECT q.*, q.relnamespace = (SELECT oid FROM data) AND q.relname = 'c' || q.collection_id AS has_name \
          FROM (SELECT c.*, {} AS collection_id FROM pg_catalog.pg_class c \
                 WHERE c.relkind IN ('r', 'p') AND {which}) q \
         WHERE q.collection_id IS NOT NULL)",
        table_witness::collection_of_row()
    )
}

/// The query for the properties of the tables of [`known`]: the collection, the property, whether docshard did not create it, and the
/// table's OID.
fn properties_query(touched: bool) -> String {
    format!("{} {PROPERTIES}", known(touched))
}

const PROPERTIES: &str = "\
    SELECT k.collection_id, f.property, f.extra, k.oid::int8 FROM known k CROSS JOIN LATERAL ( \
        SELECT 'its name' AS property, false AS extra WHERE k.has_name \
        UNION ALL SELECT 'its durability', false WHERE k.relpersistence = 'p' \
        UNION ALL SELECT 'its access method', false WHERE k.relam = 2 \
        UNION ALL SELECT 'its owner', false WHERE k.relowner = coalesce((SELECT s.role::oid FROM docshard_data.service s), \
              (SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard')) \
        UNION ALL SELECT 'the column ' || a.attname, a.attnum > 3 FROM pg_catalog.pg_attribute a \
            WHERE a.attrelid = k.oid AND NOT a.attisdropped AND (a.attnum > 3 OR \
              (a.attnum, a.attname) IN ((1, 'skey'), (2, 'id'), (3, 'doc')) AND a.attnotnull AND NOT a.atthasdef \
              AND a.attidentity = '' AND a.attgenerated = '' \
              AND a.atttypid = CASE WHEN a.attnum < 3 THEN 17 ELSE (SELECT t.oid FROM pg_catalog.pg_type t \
                  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = 'docshard' AND t.typname = 'document') END) \
        UNION ALL SELECT 'the index ' || x.relname, false FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid \
            WHERE i.indrelid = k.oid AND i.indisvalid AND CASE WHEN i.indisprimary \
              THEN x.relname = 'c' || k.collection_id || '_pkey' AND i.indimmediate AND i.indkey::text = '1 2' \
              ELSE x.relname ~ '^(c[0-9]+_id|i[0-9]+(_entries|_unique)?)$' END \
        UNION ALL SELECT 'the trigger ' || g.tgname, false FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid \
            WHERE g.tgrelid = k.oid AND g.tgenabled = 'A' AND g.tgname IN ('capture', 'refuse_truncate') AND f.proname = 'capture_change' \
        UNION ALL SELECT 'the rule ' || r.rulename, true FROM pg_catalog.pg_rewrite r WHERE r.ev_class = k.oid \
        UNION ALL SELECT 'row-level security', true WHERE k.relrowsecurity OR k.relforcerowsecurity \
        UNION ALL SELECT 'inheritance', true WHERE k.relispartition \
            OR EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE k.oid IN (h.inhrelid, h.inhparent)) \
        UNION ALL SELECT 'a type', true WHERE k.reloftype <> 0 \
        UNION ALL SELECT 'membership in the extension ' || e.extname, true FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e \
            ON e.oid = d.refobjid AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass \
            WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = k.oid AND d.deptype = 'e') f";

/// The query for the relations that are members of extensions. PostgreSQL sends no invalidation when a table becomes one.
const MEMBERS: &str = "\
    SELECT d.objid::int8 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
       AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e'";

/// A property of a collection's table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Property {
    pub collection: i32,
    pub text: String,
    /// docshard did not create the property
    pub extra: bool,
    /// the table's OID
    pub table: i64,
}

fn properties(rows: &[SpiRow]) -> BTreeSet<Property> {
    rows.iter()
        .map(|row| {
            let table = row.i64(3);
            Property { collection: row.i32(0), text: row.text(1).to_owned(), extra: row.bool(2), table }
        })
        .collect()
}

/// Returns the properties of collections' tables that a statement has removed, and properties other than docshard's that it has added.
/// `all`: the statement may have changed the members of extensions.
pub fn damage(changed: &Changed, all: bool) -> Result<Vec<Property>> {
    let mut relations = changed.relations.clone();
    if let (true, Some(relations)) = (all, &mut relations) {
        let (before, now) = changed.read(MEMBERS, &[])?;
        let before: BTreeSet<i64> = before.iter().map(|row| row.i64(0)).collect();
        relations.extend(now.iter().map(|row| row.i64(0)).filter(|member| !before.contains(member)));
    }
    if relations.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let params = [Param::Int8Array(relations.as_deref().unwrap_or_default())];
    // Most statements change other tables, which a short query finds out: planning the whole query would take longer
    // than most of these statements.
    if relations.is_some() {
        let (before, now) = changed.read(&format!("{} SELECT FROM known LIMIT 1", known(true)), &params)?;
        if before.is_empty() && now.is_empty() {
            return Ok(Vec::new());
        }
    }
    let (before, now) = changed.read(&properties_query(relations.is_some()), &params)?;
    let (before, now) = (properties(&before), properties(&now));
    let lost = before.difference(&now).filter(|property| !property.extra);
    Ok(lost.chain(now.difference(&before).filter(|property| property.extra)).cloned().collect())
}

/// Returns what is wrong with a collection's table: the kind of problem, and details.
pub fn check(collection: i32) -> Result<Vec<(&'static str, String)>> {
    if !table_witness::exists() {
        return Ok(Vec::new());
    }
    let table = i64::from(table::oid(collection)?.to_u32());
    user::as_extension_owner(|| {
        let found = properties(&spi::read(&properties_query(true), &[Param::Int8Array(&[table])])?);
        let needed = [
            "its durability",
            "the column skey",
            "the column id",
            "the column doc",
            &format!("the index {}", names::primary_key(collection)),
            "the trigger capture",
            "the trigger refuse_truncate",
        ];
        let has = |needed: &str| found.iter().any(|property| !property.extra && property.text == needed);
        let missing = needed.into_iter().filter(|needed| !has(needed));
        let mut problems: Vec<_> = missing.map(|what| ("damagedTable", format!("the table lacks {what}"))).collect();
        let extra = found.iter().filter(|property| property.extra);
        problems.extend(extra.map(|extra| ("damagedTable", format!("the table has {}", extra.text))));
        problems.extend(compare(collection, table)?);
        Ok(problems)
    })
}

/// Compares a table with its witness. Renews the witness if it is missing, or if the rows were rewritten. The age of the file is taken from
/// the TOAST table's row in `pg_class`, which hardly any command changes except those that give the table a new file.
fn compare(collection: i32, table: i64) -> Result<Option<(&'static str, String)>> {
    let sql = "SELECT t.relation = c.oid, t.file = c.relfilenode, pg_catalog.age(x.xmin) \
               FROM pg_catalog.pg_class c JOIN pg_catalog.pg_class x ON x.oid = c.reltoastrelid \
               LEFT JOIN docshard_data.tables t ON t.collection_id = $1 WHERE c.oid = $2::oid";
    let found = spi::read(sql, &[Param::Int4(collection), Param::Int8(table)])?;
    let Some(row) = found.first() else { return Ok(None) };
    if row.get(0).is_some() {
        if !row.bool(0) {
            let details = "docshard did not create this table: another one had its name".to_owned();
            return Ok(Some(("replacedTable", details)));
        }
        if row.bool(1) {
            return Ok(None);
        }
        let old = format!("SELECT FROM {} t WHERE pg_catalog.age(t.xmin) > $1 LIMIT 1", names::table(collection));
        if spi::read(&old, &[Param::Int4(row.i32(2))])?.is_empty() {
            let details = "this table was truncated or rewritten: it has a new file, and no row is older than that";
            return Ok(Some(("truncatedTable", details.to_owned())));
        }
    }
    if server::may_write() {
        table_witness::renew(collection, table::oid(collection)?)?;
    }
    Ok(None)
}
