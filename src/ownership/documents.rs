//! Inserting documents, and changing or finding one, in one call with the checks that every write or read needs.
//!
//! Elsewhere `lock_and_check` is a statement of its own, so that the statement after it has a snapshot that is younger
//! than the lock. Here the same holds inside one statement:
//! * an insert looks at no snapshot at all (unique indexes look at what is there now), and comes after the lock;
//! * a change takes a new snapshot after the lock. Under REPEATABLE READ there is only the one, and `lock_and_check` has
//!   held that to the version too.

use super::placement::{Placement, check_read};
use super::stored::document;
use super::updating::{apply, read_update};
use super::{table, writing};
use crate::pg::datum::json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::protocol::documents::{DeleteDocument, FindDocument, InsertDocuments, UpdateDocument};
use crate::protocol::sql;
use crate::storage::rows::{Change, Found, Purpose, Row, Taken};
use crate::storage::scan::{self, Bound};
use docshard_core::error::Kind;
use docshard_core::query::filter::Filter;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::{normalise, raw};
use docshard_core::values::key::encode::encode;

/// Adds a document to what [`insert`] takes: skey, id and jsonb's bytes, each after its length.
pub fn pack(into: &mut Vec<u8>, row: &Row<'_>) {
    for part in [row.skey, row.id, row.doc] {
        into.extend_from_slice(&u32::try_from(part.len()).expect("shorter than a document may be").to_be_bytes());
        into.extend_from_slice(part);
    }
}

fn unpack(mut bytes: &[u8]) -> Result<Vec<Row<'_>>> {
    fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        *bytes = rest;
        Some(part)
    }
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let row = || Some(Row { skey: part(&mut bytes)?, id: part(&mut bytes)?, doc: part(&mut bytes)? });
        let row = { row }().ok_or_else(|| Error::new(Kind::BadValue, "these bytes are no documents: cut off"))?;
        raw::validate(row.doc)?;
        normalise::check_stored(row.doc)?;
        rows.push(row);
    }
    Ok(rows)
}

/// Inserts documents that were [packed](pack); answers how many.
///
/// # Errors
/// Those of `lock_and_check`; `BadValue` for bytes that are no documents; a key that is taken is PostgreSQL's 23505.
pub fn insert(call: &InsertDocuments<'_>) -> Result<u64> {
    let &InsertDocuments { collection, token, version, ref documents } = call;
    let rows = unpack(documents)?;
    let Some(lo) = rows.iter().map(|row| row.skey).min() else { return Ok(0) };
    let hi = rows.iter().map(|row| row.skey).max().map(above);
    writing::lock_and_check(collection, Placement { token, version }, Some(lo), hi.as_deref())?;
    let mut writer = table::writer(collection, Purpose::Insert)?;
    writer.insert(&rows)?;
    writer.finish();
    Ok(rows.len() as u64)
}

/// The unique index, beside the primary key, that would keep a row out: see `Writer::taken`.
///
/// # Errors
/// `NamespaceNotFound` if the collection has no table here; `BadValue` for bytes that are no document.
pub fn taken(collection: i32, row: &Row<'_>) -> Result<Option<Taken>> {
    raw::validate(row.doc)?;
    let mut writer = table::writer(collection, Purpose::Insert)?;
    let taken = writer.taken(row);
    writer.finish();
    Ok(taken)
}

/// The first document of a shard key, and of an `_id` if one is given, that matches a filter, if one is given; jsonb's bytes. In
/// the active snapshot, a statement's, which is held to the version.
///
/// # Errors
/// `STALE`; those of the filter; `NamespaceNotFound` if the collection has no table here.
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
        return found;
    }
    let sql = format!(
        "SELECT {} FROM {} t WHERE t.skey = $1 AND ($2::bytea IS NULL OR t.id = $2) \
         AND ($3::text IS NULL OR {}) LIMIT 1",
        sql::pack("t.doc"),
        table::name(collection),
        sql::matches("t.doc", "$3")
    );
    let rows = spi::read(&sql, &[Param::Bytea(skey), Param::OptBytea(id), Param::OptText(filter)])?;
    Ok(rows.first().map(|row| row.bytes(0)))
}

/// Parses the filter that came with a key, if one did: where the key tells all, there is none.
fn read_filter(text: Option<&str>) -> Result<Option<Filter>> {
    text.map(|text| Ok(Filter::read(&json::parse(text)?)?)).transpose()
}

fn matches(filter: Option<&Filter>, doc: &[u8]) -> Result<bool> {
    filter.map_or(Ok(true), |filter| Ok(filter.evaluate(document(doc)?)?))
}

/// Updates one document of a shard key, and of an `_id` if one is given, that matches; tells whether it changed. None: there
/// is no such document.
///
/// # Errors
/// Those of `lock_and_check` and of the update; `WriteConflict` (40001) under REPEATABLE READ; PostgreSQL's 23505.
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

/// Gives a row, which the running statement has found and locked, another document. Any role that may write the collection
/// may call it with whatever it likes, so the document is checked as the table's domain would.
///
/// # Errors
/// What [`normalise::check_stored`] refuses; `ImmutableField` for another `_id`; `NamespaceNotFound` if the collection has no
/// table here; PostgreSQL's 23505.
pub fn put(collection: i32, found: &Found, after: &RawJsonb) -> Result<()> {
    normalise::check_stored(after.bytes())?;
    let mut id = Vec::with_capacity(found.id().len());
    encode(&document(after.bytes())?.get("_id").map_or(Element::Null, Element::of), &mut id);
    if id != found.id() {
        return Err(Error::new(Kind::ImmutableField, "the _id of a document cannot be changed"));
    }
    let mut writer = table::writer(collection, Purpose::Update)?;
    // If that is none any more, something that this statement has set off was quicker: as for PostgreSQL's own UPDATE, that stays.
    writer.change_found(found, |_| Ok(Some((Change::Update(after.bytes().to_vec()), ()))))?;
    writer.finish();
    Ok(())
}

/// Deletes one document of a shard key, and of an `_id` if one is given, that matches; tells whether there was one.
///
/// # Errors
/// Those of `lock_and_check`; `WriteConflict` (40001) under REPEATABLE READ.
pub fn delete_one(call: &DeleteDocument<'_>) -> Result<bool> {
    let &DeleteDocument { collection, token, version, ref skey, ref id, ref filter } = call;
    let (key, filter) = ((&**skey, id.as_deref()), read_filter(filter.as_deref())?);
    let done = change_one(collection, Placement { token, version }, Purpose::Delete, key, |doc| {
        Ok(matches(filter.as_ref(), doc)?.then_some((Change::Delete, ())))
    })?;
    Ok(done.is_some())
}

/// Does with one document of a key what `accept` answers for it, and tells what it tells. None: it took none.
fn change_one<T>(
    collection: i32,
    assumed: Placement,
    purpose: Purpose,
    key: (&[u8], Option<&[u8]>),
    accept: impl FnMut(&[u8]) -> Result<Option<(Change, T)>>,
) -> Result<Option<T>> {
    let (skey, id) = key;
    writing::lock_and_check(collection, assumed, Some(skey), Some(&above(skey)))?;
    let _snapshot = ActiveSnapshot::of_statement();
    let (_, index) = table::oids(collection)?;
    let mut writer = table::writer(collection, purpose)?;
    let done = writer.change_one(index, skey, id, accept)?;
    writer.finish();
    Ok(done)
}

/// The least key above.
fn above(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
