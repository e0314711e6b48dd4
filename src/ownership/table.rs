//! A collection's table on this shard: made and dropped together with its placement row.

use super::{index_functions, leftovers, node};
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::object::drop_guard;
use crate::pg::object::lookup_cache;
use crate::pg::server::{self, relation_oid};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::{quote_ident, quote_literal};
use crate::protocol::table::{CreateIndex, CreateTable};
use crate::protocol::{qualified, sql};
use crate::storage::SCHEMA;
use crate::storage::counting;
use crate::storage::matching;
use crate::storage::rows::{Owner, Purpose, Writer};
use crate::storage::scan::document_by_key;
use docshard_core::error::Kind;
use docshard_core::query::index::IndexKeys;
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, CString};

/// What the functions in the tables' indexes are.
const OWNER: Owner = Owner { schema: c"docshard_internal", function: index_functions::function };

/// Opens a collection's table for writing.
///
/// # Errors
/// `NamespaceNotFound` if the collection has no table here; those of [`Writer::open`].
pub(super) fn writer(collection: i32, purpose: Purpose) -> Result<Writer> {
    Writer::open(collection, oid(collection)?, purpose, &OWNER)
}

/// The document of that key, in the active snapshot.
///
/// # Errors
/// `NamespaceNotFound` if the collection has no table here.
pub fn document(collection: i32, skey: &[u8], id: &[u8]) -> Result<Option<RawJsonb>> {
    let (table, index) = oids(collection)?;
    Ok(document_by_key(table, index, [skey, id]))
}

/// How many documents there are, in the active snapshot.
///
/// # Errors
/// `NamespaceNotFound` if the collection has no table here.
pub fn count(collection: i32) -> Result<u64> {
    let (table, primary) = oids(collection)?;
    // The smaller one, where there is a choice. A row's `id` never changes, so a snapshot that is older than the index finds
    // every row by it, too.
    if let Some(count) = counting::rows(table, relation(collection, c"_id").unwrap_or(primary)) {
        return Ok(count);
    }
    let rows = spi::read(&format!("SELECT pg_catalog.count(*) FROM {}", name(collection)), &[])?;
    Ok(rows.first().map_or(0, |row| row.i64(0).unsigned_abs()))
}

/// The position of the document among the table's columns, from 0: see [`create`].
pub(super) const DOC: usize = 2;

/// How many documents match a filter, in the active snapshot.
///
/// # Errors
/// As [`count`]; those of the filter.
pub fn count_matching(collection: i32, filter: &str) -> Result<u64> {
    if let Some(count) = matching::rows(oid(collection)?, DOC as i32 + 1, filter)? {
        return Ok(count);
    }
    let table = name(collection);
    let sql = format!("SELECT pg_catalog.count(*) FROM {table} WHERE {}", sql::matches("doc", "$1"));
    let rows = spi::read(&sql, &[Param::Text(filter)])?;
    Ok(rows.first().map_or(0, |row| row.i64(0).unsigned_abs()))
}

fn relation(collection: i32, suffix: &'static CStr) -> Result<Oid> {
    let look_up = || {
        let name = [format!("c{collection}").as_bytes(), suffix.to_bytes()].concat();
        relation_oid(SCHEMA, &CString::new(name).expect("a name without a zero byte"))
    };
    lookup_cache::relation((collection, suffix), look_up)
        .ok_or_else(|| Error::new(Kind::NamespaceNotFound, format!("collection {collection} has no table here")))
}

/// The table.
///
/// # Errors
/// `NamespaceNotFound` if the collection has none here.
pub fn oid(collection: i32) -> Result<Oid> {
    relation(collection, c"")
}

/// The table and its primary key's index.
///
/// # Errors
/// As [`oid`].
pub fn oids(collection: i32) -> Result<(Oid, Oid)> {
    Ok((oid(collection)?, relation(collection, c"_pkey")?))
}

/// The b-tree of a secondary index and the entries beside it; None if it has not both.
pub fn index_oids(index: i32) -> Option<(Oid, Oid)> {
    let relation = |kind, name: fn(i32) -> String| {
        lookup_cache::relation((index, kind), || {
            relation_oid(SCHEMA, &CString::new(name(index)).expect("a name without a zero byte"))
        })
    };
    Some((relation(c"index", index_name)?, relation(c"entries", entries_name)?))
}

/// The relation of a secondary index on every shard, in the schema `docshard_data`.
pub fn index_name(index: i32) -> String {
    format!("i{index}")
}

/// The table's qualified name.
pub fn name(collection: i32) -> String {
    format!("docshard_data.c{collection}")
}

/// Makes the table, empty, and places it at a version. `id_index` asks for an index on `id`, needed where the shard key
/// is not in the order of `_id`. Does nothing but move the version if it is there already.
///
/// # Errors
/// `NamespaceExists` if the table is another collection's, which its token tells; PostgreSQL raises what DDL raises.
pub fn create(table: &CreateTable) -> Result<()> {
    let &CreateTable { collection, token, version, id_index } = table;
    let table = name(collection);
    if has_relation(&format!("c{collection}")) {
        refuse_foreign(collection, token)?;
    } else {
        spi::run_script(&format!(
            "CREATE TABLE {table} (skey bytea NOT NULL, id bytea NOT NULL, doc docshard.document NOT NULL, \
         CONSTRAINT c{collection}_pkey PRIMARY KEY (skey, id)); \
         CREATE TRIGGER capture AFTER INSERT OR UPDATE OR DELETE ON {table} \
         FOR EACH ROW EXECUTE FUNCTION {}(); \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER capture",
            qualified("capture_change")
        ))?;
        // Sessions of moves and of index builds change it, as the service role.
        if server::is_superuser()
            && let Some(service) = node::service_role()?
        {
            spi::run_script(&format!("ALTER TABLE {table} OWNER TO {}", quote_ident(&service)))?;
        }
    }
    set_id_index(collection, id_index)?;
    spi::execute(
        "INSERT INTO docshard_data.placement (collection_id, token, version) VALUES ($1, $2, $3) \
         ON CONFLICT (collection_id) DO UPDATE SET token = excluded.token, version = excluded.version",
        &[Param::Int4(collection), Param::Int8(token), Param::Int8(version)],
    )?;
    Ok(())
}

/// Refuses a table that is there already, with documents of another collection of the same number: one that a router has made
/// which knew more collections than this one, as it was restored from an older backup.
fn refuse_foreign(collection: i32, token: i64) -> Result<()> {
    let rows =
        spi::query("SELECT token FROM docshard_data.placement WHERE collection_id = $1", &[Param::Int4(collection)])?;
    if rows.first().is_some_and(|row| row.i64(0) == token) {
        return Ok(());
    }
    Err(Error::new(
        Kind::NamespaceExists,
        format!("this shard has a table {} already, of another collection", name(collection)),
    )
    .with_hint("Was the router restored from an older backup? The same statement again takes another number."))
}

/// Makes or drops the index on `id`.
///
/// # Errors
/// As [`create`].
pub fn set_id_index(collection: i32, wanted: bool) -> Result<()> {
    match (has_relation(&format!("c{collection}_id")), wanted) {
        (false, true) => spi::run_script(&format!("CREATE INDEX c{collection}_id ON {} (id)", name(collection))),
        (true, false) => spi::run_script(&format!("DROP INDEX docshard_data.c{collection}_id")),
        _ => Ok(()),
    }
}

/// True if there is a relation of that name. Asked before IF [NOT] EXISTS, which would send the client a NOTICE.
pub fn has_relation(relation: &str) -> bool {
    let relation = CString::new(relation).expect("a name without a zero byte");
    relation_oid(SCHEMA, &relation).is_some()
}

/// The name of a secondary index's entries, where they stand beside a b-tree: see `docshard_core::query::index`.
pub fn entries_name(index: i32) -> String {
    format!("i{index}_entries")
}

/// The name of what makes a secondary index unique: see `docshard_core::query::index::unique`.
pub fn unique_name(index: i32) -> String {
    format!("i{index}_unique")
}

/// The names of all relations that a secondary index may have.
pub fn possible_relations(index: i32) -> [String; 3] {
    [index_name(index), entries_name(index), unique_name(index)]
}

/// The names of those that it has, with such keys.
pub fn relations(index: i32, keys: &IndexKeys, unique: bool) -> Vec<String> {
    let entries = (keys.has_tree() && keys.has_entries()).then(|| entries_name(index));
    let unique = unique.then(|| unique_name(index));
    std::iter::once(index_name(index)).chain(entries).chain(unique).collect()
}

/// Makes a secondary index, if it is not there; of the documents that match `partial`, a filter, or of all.
///
/// # Errors
/// As [`create`]; a unique index over equal keys is PostgreSQL's 23505; `CannotIndexParallelArrays`.
pub fn create_index(index: &CreateIndex<'_>) -> Result<()> {
    if has_relation(&index_name(index.index)) {
        return Ok(());
    }
    let statements = index_statements(index, "")?;
    spi::run_script(&statements.join("; "))
}

/// The statements that make a secondary index of a collection; `how` is `CONCURRENTLY` or nothing.
///
/// # Errors
/// Those of [`IndexKeys::read`].
pub fn index_statements(create: &CreateIndex<'_>, how: &str) -> Result<Vec<String>> {
    let &CreateIndex { collection, index, keys: definition, is_unique, partial } = create;
    let keys = IndexKeys::read(&crate::pg::datum::json::parse(definition)?)?;
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
    // What `router::plan::conditions` says word for word, so that the planner knows that the index holds all that it needs.
    let held = partial.map(|filter| sql::matches("doc", format_args!("{}::text", quote_literal(filter))));
    let table = name(collection);
    let holding = |conditions: &[String]| match conditions {
        [] => String::new(),
        conditions => format!(" WHERE {}", conditions.join(" AND ")),
    };
    let held: Vec<String> = held.into_iter().collect();
    let mut script = Vec::new();
    if is_unique {
        // First, as it is the one that documents may keep from being built.
        script.push(format!(
            "CREATE INDEX {how} {} ON {table} USING docshard_unique ({} {}){}",
            unique_name(index),
            sql::unique_keys("doc", &definition),
            qualified("unique_ops"),
            holding(&held)
        ));
    }
    if keys.has_tree() {
        let (name, columns) = (index_name(index), columns.join(", "));
        script.push(format!("CREATE INDEX {how} {name} ON {table} ({columns}){}", holding(&held)));
    }
    let apart = sql::has_index_entries("doc", &definition);
    if keys.has_entries() {
        let (name, held) = match keys.has_tree() {
            true => (entries_name(index), [vec![apart], held].concat()),
            false => (index_name(index), held),
        };
        // Entries that wait in a list would be read by every search.
        script.push(format!(
            "CREATE INDEX {how} {name} ON {table} USING gin ({} {}) WITH (fastupdate = off){}",
            sql::index_entries("doc", &definition),
            qualified("entry_ops"),
            holding(&held)
        ));
    }
    Ok(script)
}

/// Drops a secondary index, if it is there.
///
/// # Errors
/// As [`create`].
pub fn drop_index(index: i32) -> Result<()> {
    for relation in possible_relations(index) {
        if has_relation(&relation) {
            spi::run_script(&format!("DROP INDEX docshard_data.{relation}"))?;
        }
    }
    Ok(())
}

/// The number of the secondary index that a relation of this name belongs to: see [`possible_relations`].
pub fn index_of(relation: &str) -> Option<i32> {
    let index = relation.strip_prefix('i')?;
    index.split_once('_').map_or(index, |(index, _)| index).parse().ok()
}

/// Drops the table and its placement; does nothing if they are not there.
///
/// # Errors
/// As [`create`].
pub fn drop(collection: i32) -> Result<()> {
    if has_relation(&format!("c{collection}")) {
        drop_guard::unguarded(|| spi::run_script(&format!("DROP TABLE {}", name(collection))))?;
    }
    spi::execute("DELETE FROM docshard_data.placement WHERE collection_id = $1", &[Param::Int4(collection)])?;
    leftovers::delete_captures("collection_id = $1")
        .try_for_each(|sql| spi::execute(&sql, &[Param::Int4(collection)]).map(std::mem::drop))
}
