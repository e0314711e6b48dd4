//! Inserts documents, or changes or finds one, in a single call that includes the version check.
//!
//! Elsewhere `lock_and_check` is a separate statement, so that the next statement's snapshot is taken after the lock. Here it is part of
//! the call, and:
//! * an insert needs no snapshot, because unique indexes see the newest rows; it runs after the lock;
//! * a change takes a new snapshot after the lock. Under REPEATABLE READ there is only one snapshot; `lock_and_check` has also checked the
//!   version that this snapshot shows.

use super::placement::{Placement, check_read};
use super::stored::document;
use super::updating::{apply, read_update};
use super::{accesses, table, writing};
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::security::permission;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::storage::rows::{Change, Conflict, FoundRow, Purpose, TableRow, validation};
use crate::storage::scan::{self, Bound};
use docshard_core::error::{Kind, bail};
use docshard_core::query::filter::Filter;
use docshard_core::query::specification;
use docshard_core::routing::names;
use docshard_core::routing::protocol::documents::{
    DeleteDocument, FindDocument, FindViolations, InsertDocuments, Refused, UpdateDocument, unpack,
};
use docshard_core::routing::protocol::sql;
use docshard_core::sql::param::Param;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::{normalise, raw};
use docshard_core::values::key::encode::encode;

/// Inserts packed documents; returns their number.
///
/// # Errors
/// Those of `lock_and_check`; `BadValue` for malformed bytes; 23505 for a key that exists.
pub fn insert(call: &InsertDocuments<'_>) -> Result<u64> {
    let &InsertDocuments { collection, token, version, ref documents } = call;
    let rows: Vec<TableRow<'_>> =
        unpack(documents)?.into_iter().map(|[skey, id, doc]| TableRow { skey, id, doc }).collect();
    let Some(lo) = rows.iter().map(|row| row.skey).min() else { return Ok(0) };
    let hi = rows.iter().map(|row| row.skey).max().map(above);
    writing::lock_and_check(collection, Placement { token, version }, Some(lo), hi.as_deref())?;
    rows.iter().for_each(|row| accesses::write(collection, Some(row.skey)));
    let mut writer = table::writer(collection, Purpose::Insert)?;
    writer.insert(&rows)?;
    writer.finish();
    Ok(rows.len() as u64)
}

/// Returns which of some packed documents the collection's validator refuses.
pub fn find_violations(call: &FindViolations<'_>) -> Result<Refused> {
    let &FindViolations { collection, token, version, ref documents } = call;
    permission::require_any_write(table::oid(collection)?);
    check_read(collection, Placement { token, version })?;
    validation::refused(collection, unpack(documents)?.into_iter().map(|[.., doc]| doc))
}

/// Returns a unique index other than the primary key in which another row has a key of this row, and the key; None if there is none.
pub fn find_conflict(collection: i32, row: &TableRow<'_>) -> Result<Option<Conflict>> {
    raw::validate(row.doc)?;
    let mut writer = table::writer(collection, Purpose::Insert)?;
    let conflict = writer.conflict(row);
    writer.finish();
    Ok(conflict)
}

/// Returns the first document with these keys that matches the filter. Checks the version in the statement's snapshot.
pub fn find_one(call: &FindDocument<'_>) -> Result<Option<Vec<u8>>> {
    let &FindDocument { collection, token, version, ref skey, ref id, ref filter } = call;
    let (skey, id, filter) = (&**skey, id.as_deref(), filter.as_deref());
    check_read(collection, Placement { token, version })?;
    let (table, index) = table::oids(collection)?;
    let bounds: Vec<Bound<'_>> = [Some(skey), id].into_iter().flatten().map(Bound::Is).collect();
    let parsed = read_filter(filter)?;
    let mut found: Result<Option<Vec<u8>>> = Ok(None);
    let visited = scan::user_by_key(table, index, &bounds, |row| {
        let mut bytes = Vec::new();
        row.append(table::DOC, &mut bytes);
        match matches(parsed.as_ref(), &bytes) {
            Ok(false) => return true,
            Ok(true) => found = Ok(Some(bytes)),
            Err(error) => found = Err(error),
        }
        false
    });
    if visited.is_some() {
        accesses::read(collection, skey);
        return found;
    }
    let sql = format!(
        "SELECT {} FROM {} t WHERE t.skey = $1 AND ($2::bytea IS NULL OR t.id = $2) \
         AND ($3::text IS NULL OR {}) LIMIT 1",
        sql::pack("t.doc"),
        names::table(collection),
        sql::matches("t.doc", "$3")
    );
    let rows = spi::read(&sql, &[Param::Bytea(skey), Param::OptBytea(id), Param::OptText(filter)])?;
    accesses::read(collection, skey);
    Ok(rows.first().map(|row| row.bytes(0)))
}

fn read_filter(text: Option<&str>) -> Result<Option<Filter>> {
    text.map(|text| Filter::read(&specification::parse(text)?)).transpose()
}

fn matches(filter: Option<&Filter>, doc: &[u8]) -> Result<bool> {
    filter.map_or(Ok(true), |filter| filter.evaluate(document(doc)?))
}

/// Updates the first document with these keys that matches the filter. Returns true if the document changed, false if the update left it as
/// it was, and None if there is no such document.
///
/// # Errors
/// Those of `lock_and_check` and of the update; `WriteConflict` (40001) under REPEATABLE READ; 23505.
pub fn update_one(call: &UpdateDocument<'_>) -> Result<Option<bool>> {
    let &UpdateDocument { collection, token, version, ref skey, ref id, ref filter, ref update, ref fixed } = call;
    let (filter, update) = (read_filter(filter.as_deref())?, read_update(update)?);
    change_one(collection, Placement { token, version }, Purpose::Update, (skey, id.as_deref()), |doc| {
        if !matches(filter.as_ref(), doc)? {
            return Ok(None);
        }
        apply(&update, document(doc)?, fixed).map(Some)
    })
}

/// Replaces the document of a row that the running statement has found and locked. Any role that may write to the collection can
/// call this function, so it checks the document as the table's domain does.
pub fn replace(collection: i32, found: &FoundRow, after: &RawJsonb) -> Result<()> {
    normalise::check_stored(after.bytes())?;
    let mut id = Vec::with_capacity(found.id().len());
    encode(&document(after.bytes())?.get("_id").map_or(Element::Null, Element::of), &mut id);
    if id != found.id() {
        bail!(Kind::ImmutableField, "the _id of a document cannot be changed");
    }
    let mut writer = table::writer(collection, Purpose::Update)?;
    // If a trigger of this statement has already changed the row, nothing is done, as in PostgreSQL's own UPDATE.
    writer.change_found(found, |_| Ok(Some((Change::Update(after.bytes().to_vec()), ()))))?;
    writer.finish();
    Ok(())
}

/// Deletes the first document with these keys that matches the filter. Returns false if there is none.
pub fn delete_one(call: &DeleteDocument<'_>) -> Result<bool> {
    let &DeleteDocument { collection, token, version, ref skey, ref id, ref filter } = call;
    let (key, filter) = ((&**skey, id.as_deref()), read_filter(filter.as_deref())?);
    let done = change_one(collection, Placement { token, version }, Purpose::Delete, key, |doc| {
        Ok(matches(filter.as_ref(), doc)?.then_some((Change::Delete, ())))
    })?;
    Ok(done.is_some())
}

/// Changes the first document with these keys that `accept` accepts; `accept` returns the change. None if it accepts no document.
fn change_one<T>(
    collection: i32,
    assumed: Placement,
    purpose: Purpose,
    key: (&[u8], Option<&[u8]>),
    accept: impl FnMut(&[u8]) -> Result<Option<(Change, T)>>,
) -> Result<Option<T>> {
    let (skey, id) = key;
    writing::lock_and_check(collection, assumed, Some(skey), Some(&above(skey)))?;
    accesses::write(collection, Some(skey));
    let _snapshot = ActiveSnapshot::of_statement();
    let (_, index) = table::oids(collection)?;
    let mut writer = table::writer(collection, purpose)?;
    let done = writer.change_one(index, skey, id, accept)?;
    writer.finish();
    Ok(done)
}

/// Returns the least key that is greater than this one.
fn above(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
