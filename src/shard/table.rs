//! A collection's table on this shard. It is created and dropped together with its placement.

use super::{here, index_functions, node, table_witness};
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::object::drop_guard;
use crate::pg::object::lookup_cache;
use crate::pg::server::{self, relation_oid};
use crate::pg::spi;
use crate::storage::SCHEMA;
use crate::storage::counting;
use crate::storage::lock::{self, Mode, Tag};
use crate::storage::matching;
use crate::storage::rows::{Owner, Purpose, Writer, validation};
use crate::storage::scan::document_by_key;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::index::IndexKeys;
use docshard_core::routing::names;
use docshard_core::routing::protocol::shard_tables::{DeleteCaptures, ReadPlacements};
use docshard_core::routing::protocol::table::{CreateIndex, CreateTable, SetValidator};
use docshard_core::routing::protocol::{qualified, sql};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::{quote_ident, quote_literal};
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, CString};

const OWNER: Owner = Owner { schema: c"docshard_internal", function: index_functions::function };

/// Opens a collection's table for writing.
pub(super) fn writer(collection: i32, purpose: Purpose) -> Result<Writer> {
    Writer::open(collection, oid(collection)?, purpose, &OWNER)
}

/// Returns the document of a key, by the active snapshot.
pub fn document(collection: i32, skey: &[u8], id: &[u8]) -> Result<Option<RawJsonb>> {
    let (table, index) = oids(collection)?;
    Ok(document_by_key(table, index, [skey, id]))
}

/// Counts all documents, by the active snapshot.
pub fn count(collection: i32) -> Result<u64> {
    let (table, primary) = oids(collection)?;
    // The index on `id` is the smaller one, if there is one. A row's `id` never changes, so this index finds every row
    // even of a snapshot that is older than the index.
    if let Some(count) = counting::rows(table, relation(collection, c"_id").unwrap_or(primary)) {
        return Ok(count);
    }
    let rows = spi::read(&format!("SELECT pg_catalog.count(*) FROM {}", names::table(collection)), &[])?;
    Ok(rows.first().map_or(0, |row| row.i64(0).unsigned_abs()))
}

/// Columns of the table, counted from 0: see [`create`].
pub(super) const SKEY: usize = 0;
pub(super) const DOC: usize = 2;

/// Counts the documents that match a filter, by the active snapshot.
pub fn count_matching(collection: i32, filter: &str) -> Result<u64> {
    if let Some(count) = matching::rows(oid(collection)?, DOC as i32 + 1, filter)? {
        return Ok(count);
    }
    let table = names::table(collection);
    let sql = format!("SELECT pg_catalog.count(*) FROM {table} WHERE {}", sql::matches("doc", "$1"));
    let rows = spi::read(&sql, &[Param::Text(filter)])?;
    Ok(rows.first().map_or(0, |row| row.i64(0).unsigned_abs()))
}

fn relation(collection: i32, suffix: &'static CStr) -> Result<Oid> {
    let look_up = || {
        let name = [format!("c{collection}").as_bytes(), suffix.to_bytes()].concat();
        relation_oid(SCHEMA, &CString::new(name).expect("a name without a zero byte"))
    };
    lookup_cache::relation((collection, suffix), look_up).ok_or_else(|| {
        let message = match suffix.to_str() {
            Ok("") | Err(_) => format!("collection {collection} has no table here"),
            Ok(suffix) => format!("the table docshard_data.c{collection} has no index c{collection}{suffix} here"),
        };
        Error::new(Kind::NamespaceNotFound, message)
    })
}

/// Returns the table; `NamespaceNotFound` if this shard has none.
pub fn oid(collection: i32) -> Result<Oid> {
    relation(collection, c"")
}

/// The table and its primary key's index.
pub fn oids(collection: i32) -> Result<(Oid, Oid)> {
    let table = oid(collection)?;
    let key = relation(collection, c"_pkey").map_err(|_| {
        let (table, key) = (names::table(collection), names::primary_key(collection));
        error!(Kind::OperationFailed, "the collection's table {table} has no primary key {key}").with_hint(format!(
            "On the shard, a superuser can create it: ALTER TABLE {table} ADD CONSTRAINT {key} PRIMARY KEY (skey, id)"
        ))
    })?;
    Ok((table, key))
}

/// The table's index on `id`; None if the primary key is in the order of `_id`, so that no such index is needed.
pub(super) fn id_index(collection: i32) -> Option<Oid> {
    relation(collection, c"_id").ok()
}

/// Returns the b-tree of a secondary index and its inverted index of entries; None unless it has both.
pub fn index_oids(index: i32) -> Option<(Oid, Oid)> {
    let relation = |kind, name: fn(i32) -> String| {
        lookup_cache::relation((index, kind), || {
            relation_oid(SCHEMA, &CString::new(name(index)).expect("a name without a zero byte"))
        })
    };
    Some((relation(c"index", names::index)?, relation(c"entries", names::entries)?))
}

/// Creates the empty table at a version, with an index on `id` if the shard key is not in the order of `_id`. If the table exists already,
/// sets only the version and that index.
///
/// # Errors
/// `NamespaceExists` if the table belongs to another collection, which its token shows; those of DDL.
pub fn create(table: &CreateTable) -> Result<()> {
    let &CreateTable { collection, token, version, id_index } = table;
    let table = names::table(collection);
    drop_leftovers()?;
    if has_relation(&format!("c{collection}")) {
        refuse_foreign(collection, token)?;
    } else {
        run_own(&format!(
            "CREATE TABLE {table} (skey bytea NOT NULL, id bytea NOT NULL, doc docshard.document NOT NULL, \
         CONSTRAINT c{collection}_pkey PRIMARY KEY (skey, id)) USING heap; \
         CREATE TRIGGER capture AFTER INSERT OR UPDATE OR DELETE ON {table} \
         FOR EACH ROW EXECUTE FUNCTION {function}(); \
         CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION {function}(); \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER capture, ENABLE ALWAYS TRIGGER refuse_truncate",
            function = qualified("capture_change")
        ))?;
        // The service role alters the table for moves and index builds, so it must own it.
        if server::is_superuser()
            && let Some(service) = node::service_role()?
        {
            run_own(&format!("ALTER TABLE {table} OWNER TO {}", quote_ident(&service)))?;
        }
        table_witness::renew(collection, oid(collection)?)?;
    }
    set_id_index(collection, id_index)?;
    spi::execute(
        "INSERT INTO docshard_data.placement (collection_id, token, version) VALUES ($1, $2, $3) \
         ON CONFLICT (collection_id) DO UPDATE SET token = excluded.token, version = excluded.version",
        &[Param::Int4(collection), Param::Int8(token), Param::Int8(version)],
    )?;
    Ok(())
}

/// Sets the collection's validator, or removes it. Excludes writers until the transaction ends: see `rows::validation`.
///
/// # Errors
/// `NamespaceNotFound` if this shard does not have the collection.
pub fn set_validator(set: &SetValidator<'_>) -> Result<()> {
    let &SetValidator { collection, token, definition } = set;
    lock::acquire(Tag::Collection(collection), Mode::Exclusive);
    let number = definition.map(validation::number_of);
    let sql = "UPDATE docshard_data.placement SET validator_id = $3, validator = $4 WHERE collection_id = $1 AND token = $2 RETURNING true";
    let params = [Param::Int4(collection), Param::Int8(token), Param::OptInt8(number), Param::OptText(definition)];
    if spi::query(sql, &params)?.is_empty() {
        bail!(Kind::NamespaceNotFound, "collection {collection} is not placed on this shard");
    }
    validation::set(collection, number);
    Ok(())
}

/// Drops empty tables that belong to no collection. A dump of the schema alone has the collections' tables, but no rows of docshard's own
/// tables, so its restoration leaves such tables. Does nothing if this node has a collection already.
pub(super) fn drop_leftovers() -> Result<()> {
    // A table and its placement commit together, so one snapshot has both or none.
    let tables = "SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c \
         WHERE c.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND c.relkind = 'r' AND c.relname ~ '^c[0-9]{1,9}$' \
           AND pg_catalog.pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (SELECT FROM docshard_data.placement)";
    for row in spi::query(tables, &[])? {
        let table = format!("docshard_data.{}", row.text(0));
        run_own(&format!("LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE"))?;
        if spi::query(&format!("SELECT FROM ONLY {table} LIMIT 1"), &[])?.is_empty() {
            run_own(&format!("DROP TABLE {table}"))?;
        }
    }
    Ok(())
}

/// Returns an error if the existing table belongs to another collection with the same number. That happens if the router's catalog was
/// restored from a backup that is older than the table.
fn refuse_foreign(collection: i32, token: i64) -> Result<()> {
    if here::call(&ReadPlacements { collection: Some(collection) })?.iter().any(|placed| placed.token == token) {
        return Ok(());
    }
    Err(error!(
        Kind::NamespaceExists,
        "this shard has a table {} already, of another collection",
        names::table(collection)
    )
    .with_hint(
        "The router was probably restored from an older backup. Run the statement again: it then uses another number.",
    ))
}

/// Runs DDL on objects that users may not change.
fn run_own(sql: &str) -> Result<()> {
    drop_guard::unguarded(|| spi::run_script(sql))
}

/// Creates or drops the index on `id`.
fn set_id_index(collection: i32, wanted: bool) -> Result<()> {
    match (has_relation(&format!("c{collection}_id")), wanted) {
        (false, true) => run_own(&format!("CREATE INDEX c{collection}_id ON {} (id)", names::table(collection))),
        (true, false) => run_own(&format!("DROP INDEX docshard_data.c{collection}_id")),
        _ => Ok(()),
    }
}

/// True if there is a relation of that name. Used instead of IF [NOT] EXISTS, which sends the client a NOTICE.
pub fn has_relation(relation: &str) -> bool {
    relation_named(relation).is_some()
}

fn relation_named(name: &str) -> Option<Oid> {
    let name = CString::new(name).expect("a name without a zero byte");
    relation_oid(SCHEMA, &name)
}

/// Creates a secondary index, unless it exists. `partial`: the filter of the documents that it has; None: it has all.
///
/// # Errors
/// 23505 for a unique index over equal keys; `CannotIndexParallelArrays`; those of DDL.
pub fn create_index(index: &CreateIndex<'_>) -> Result<()> {
    let name = names::index(index.index);
    if relation_named(&name).is_some() {
        if is_created(index)? {
            return Ok(());
        }
        return Err(error!(
            Kind::OperationFailed,
            "docshard_data.{name} is not an index of collection {} with the keys {}",
            index.collection,
            index.keys
        )
        .with_hint("The router has probably lost its last commits. docshard.list_orphaned_relations() shows what the catalog does not know."));
    }
    let statements = index_statements(index, "")?;
    spi::run_script(&statements.join("; "))
}

/// True if the relations of an index exist, with its definition.
fn is_created(index: &CreateIndex<'_>) -> Result<bool> {
    let keys = IndexKeys::read(&docshard_core::query::specification::parse(index.keys)?)?;
    let relations = names::relations(index.index, &keys, index.is_unique);
    let created = spi::query(
        "SELECT FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) x.indexrelid, \
           LATERAL pg_catalog.concat(x.indexprs::pg_catalog.text, x.indpred::pg_catalog.text) AS expressions \
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'docshard_data'::pg_catalog.regnamespace \
           AND c.relname OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.name[]) AND x.indrelid OPERATOR(pg_catalog.=) $2::pg_catalog.regclass \
           AND pg_catalog.strpos(expressions, $3) OPERATOR(pg_catalog.>) 0 \
           AND pg_catalog.strpos(expressions, $4) OPERATOR(pg_catalog.>) 0",
        &[
            Param::TextArray(&relations.iter().map(String::as_str).collect::<Vec<_>>()),
            Param::Text(&names::table(index.collection)),
            Param::Text(&sql::constant_in_tree(index.keys)),
            Param::Text(&index.partial.map_or_else(String::new, sql::constant_in_tree)),
        ],
    )?;
    Ok(created.len() == relations.len())
}

/// Returns the statements that create a secondary index; `how` is `CONCURRENTLY` or nothing.
pub fn index_statements(create: &CreateIndex<'_>, how: &str) -> Result<Vec<String>> {
    let &CreateIndex { collection, index, keys: definition, is_unique, partial } = create;
    let keys = IndexKeys::read(&docshard_core::query::specification::parse(definition)?)?;
    let definition = format!("{}::text", quote_literal(definition));
    let column = |(column, (_, descending)): (usize, &(String, bool))| {
        let direction = if *descending { " DESC" } else { "" };
        sql::index_key("doc", &definition, column) + direction
    };
    let mut columns: Vec<_> = keys.fields.iter().enumerate().map(column).collect();
    if keys.hashed.is_some() {
        columns.push(sql::check_index_key("doc", &definition));
    }
    if keys.has_types() {
        columns.push(sql::index_types("doc", &definition));
    }
    // The same text as in `docshard_core::routing::plan::conditions`, so that PostgreSQL's planner finds that a query implies the
    // predicate.
    let predicate = partial.map(|filter| sql::matches("doc", format_args!("{}::text", quote_literal(filter))));
    let table = names::table(collection);
    let where_clause = |conditions: &[String]| match conditions {
        [] => String::new(),
        conditions => format!(" WHERE {}", conditions.join(" AND ")),
    };
    let predicate = Vec::from_iter(predicate);
    let mut script = Vec::new();
    if is_unique {
        // The unique index is the first one, as the documents may make it fail.
        script.push(format!(
            "CREATE INDEX {how} {} ON {table} USING docshard_unique ({} {}){}",
            names::unique(index),
            sql::unique_keys("doc", &definition),
            qualified("unique_ops"),
            where_clause(&predicate)
        ));
    }
    if keys.has_tree() {
        let (name, columns) = (names::index(index), columns.join(", "));
        script.push(format!("CREATE INDEX {how} {name} ON {table} ({columns}){}", where_clause(&predicate)));
    }
    let apart = sql::has_index_entries("doc", &definition);
    if keys.has_entries() {
        let (name, predicate) = match keys.has_tree() {
            true => (names::entries(index), [vec![apart], predicate].concat()),
            false => (names::index(index), predicate),
        };
        // Without `fastupdate`, as every search would read the pending list.
        script.push(format!(
            "CREATE INDEX {how} {name} ON {table} USING gin ({} {}) WITH (fastupdate = off){}",
            sql::index_entries("doc", &definition),
            qualified("entry_ops"),
            where_clause(&predicate)
        ));
    }
    Ok(script)
}

pub fn drop_index(index: i32) -> Result<()> {
    for relation in names::possible_relations(index) {
        if has_relation(&relation) {
            run_own(&format!("DROP INDEX docshard_data.{relation}"))?;
        }
    }
    Ok(())
}

/// Drops the table and its placement, if they exist.
pub fn drop(collection: i32) -> Result<()> {
    if has_relation(&format!("c{collection}")) {
        run_own(&format!("DROP TABLE {}", names::table(collection)))?;
    }
    table_witness::forget(collection)?;
    spi::execute("DELETE FROM docshard_data.placement WHERE collection_id = $1", &[Param::Int4(collection)])?;
    here::call(&DeleteCaptures { migration: None, collection: Some(collection) }).map(std::mem::drop)
}
