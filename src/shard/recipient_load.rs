//! Loads the documents that a move has pulled into its staging table, and applies later changes, without planner, executor and
//! trigger. Nothing is captured: the caller's transaction is the move's own, see `capture::bypass`.
//!
//! Neither the donor nor the staging table is trusted: see [`Expected::check`].

use super::stored::document;
use super::{clone_parts, table};
use crate::pg::error::{Error, Result};
use crate::pg::memory::allocator;
use crate::pg::memory::context::OwnContext;
use crate::pg::server::relation_oid;
use crate::pg::transaction::subtransaction::attempt;
use crate::storage::SCHEMA;
use crate::storage::lock;
use crate::storage::rows::{Change, Purpose, TableRow};
use crate::storage::scan::{Look, by_int4};
use docshard_core::error::sqlstate::UNIQUE_VIOLATION;
use docshard_core::error::{Kind, error};
use docshard_core::query::specification;
use docshard_core::routing::protocol::migration::{ApplyChanges, LoadBatch};
use docshard_core::values::document::element::Element;
use docshard_core::values::document::ext_json::to_json;
use docshard_core::values::document::raw::RawObject;
use docshard_core::values::document::{detached, normalise, raw};
use docshard_core::values::key::KeyPattern;
use docshard_core::values::key::encode::{decode, encode};
use pgrx::pg_sys::Oid;
use std::collections::HashSet;
use std::ffi::CString;

/// The values that a move's documents are checked against.
struct Expected<'a> {
    lo: &'a [u8],
    hi: Option<&'a [u8]>,
    key: &'a KeyPattern,
}

impl Expected<'_> {
    /// Checks a row before it is stored, or before its key is used to delete one.
    ///
    /// # Errors
    /// `OperationFailed` for a key outside the range, or one that is not the document's key; those of
    /// [`normalise::check_stored`].
    fn check(&self, skey: &[u8], id: &[u8], doc: Option<&[u8]>) -> Result<()> {
        if skey < self.lo || self.hi.is_some_and(|hi| skey >= hi) {
            return Err(refused("a key outside of the moved range", id));
        }
        let Some(doc) = doc else { return Ok(()) };
        let doc = check_document(id, doc)?;
        if self.key.key_of(doc).is_ok_and(|key| key == skey) { Ok(()) } else { Err(refused("another shard key", id)) }
    }
}

/// Checks a document of another shard before it is stored.
///
/// # Errors
/// `OperationFailed` if its `_id` is not that of its key; those of [`normalise::check_stored`].
pub(super) fn check_document<'d>(id: &[u8], doc: &'d [u8]) -> Result<RawObject<'d>> {
    normalise::check_stored(doc)?;
    let doc = document(doc)?;
    let mut of_document = Vec::with_capacity(id.len());
    encode(&doc.get("_id").map_or(Element::Null, Element::of), &mut of_document);
    if of_document == id { Ok(doc) } else { Err(refused("an _id that differs from its key", id)) }
}

/// Parses a shard key; `{}` is the key of an unsharded collection.
pub fn read_key(text: &str) -> Result<KeyPattern> {
    let json = specification::parse(text)?;
    if json.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok(KeyPattern::unsharded());
    }
    KeyPattern::parse(&json)
}

/// The error for a document of another shard that is refused; `what` tells what is wrong with it.
pub(super) fn refused(what: &str, id: &[u8]) -> Error {
    let error = error!(Kind::OperationFailed, "a document arrived with {what}; nothing was changed");
    let error = match decode(id) {
        Ok((id, _)) => error.with_detail(format!("Its _id is {}.", to_json(&id))),
        Err(_) => error,
    };
    error.with_hint("docshard.check_collection(ns) finds all documents that are not stored by their keys.")
}

/// Columns of a staging table, counted from 0. In the row of a change, DOC is null for a deleted document.
pub(super) const SKEY: usize = 2;
pub(super) const ID: usize = 3;
pub(super) const DOC: usize = 4;
pub(super) const PACKED: usize = 6;
/// The order of the document's fields. Only shards that keep it have this column.
pub(super) const FIELD_ORDER: usize = 7;
/// The size in bytes of the batches in which changed documents are inserted.
const BATCH_BYTES: usize = 4 << 20;

/// Returns a move's staging table, and its index on the batch.
pub(super) fn staging(migration: i64) -> Result<(Oid, Oid)> {
    let relation = |suffix: &str| {
        let name = CString::new(format!("m{migration}_staging{suffix}")).expect("a name without a zero byte");
        relation_oid(SCHEMA, &name)
            .ok_or_else(|| error!(Kind::InternalError, "migration {migration} has no staging table here"))
    };
    let (staging, index) = (relation("")?, relation("_batch_idx")?);
    lock::keep_relation(staging);
    Ok((staging, index))
}

/// Applies a batch of changes; returns by how many the number of documents has grown. Deletes all changed documents before it inserts the
/// new versions, as documents may have exchanged unique values. Finds documents by index scans and not by SQL statements, because the
/// planner may believe that a table that is being filled is empty.
pub fn apply_changes(changes: &ApplyChanges<'_>) -> Result<i64> {
    let &ApplyChanges { migration, collection, batch, lo, hi, key } = changes;
    let expected = Expected { lo, hi, key: &read_key(key)? };
    let (staging, index) = staging(migration)?;
    let mut keys: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    by_int4(staging, index, batch, Look::Active, |row| keys.extend(row.bytes(SKEY).zip(row.bytes(ID))));
    keys.sort_unstable();
    keys.dedup();
    let (_, primary) = table::oids(collection)?;
    let (mut deleted, mut inserted) = (0, 0);
    let mut writer = table::writer(collection, Purpose::Delete)?;
    for (skey, id) in &keys {
        expected.check(skey, id, None)?;
        let found = writer.change_one(primary, skey, Some(id), |_| Ok(Some((Change::Delete, ()))))?;
        deleted += i64::from(found.is_some());
    }
    writer.finish();
    let mut writer = table::writer(collection, Purpose::Insert)?;
    let mut pending: HashSet<(Vec<u8>, Vec<u8>)> = keys.into_iter().collect();
    let mut held: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    let mut flush = |held: &mut Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>| -> Result<()> {
        for (skey, id, doc) in &*held {
            expected.check(skey, id, Some(doc))?;
        }
        let rows: Vec<TableRow<'_>> = held.iter().map(|(skey, id, doc)| TableRow { skey, id, doc }).collect();
        if !rows.is_empty() {
            writer.insert(&rows)?;
        }
        inserted += i64::try_from(rows.len()).unwrap_or(i64::MAX);
        held.clear();
        Ok(())
    };
    let mut flushed = Ok(());
    by_int4(staging, index, batch, Look::Active, |row| {
        let Some(((skey, id), doc)) = row.bytes(SKEY).zip(row.bytes(ID)).zip(row.bytes(DOC)) else { return };
        let key = (skey, id);
        // A key that changed several times has several rows in the batch, all with the document that was current when they were
        // pulled.
        if flushed.is_err() || !pending.remove(&key) {
            return;
        }
        let doc = match with_order(doc, row.opt_bytes(FIELD_ORDER)) {
            Ok(doc) => doc,
            Err(error) => {
                flushed = Err(error);
                return;
            }
        };
        bytes += doc.len();
        held.push((key.0, key.1, doc));
        if bytes >= BATCH_BYTES {
            bytes = 0;
            flushed = flush(&mut held);
        }
    });
    flushed?;
    flush(&mut held)?;
    writer.finish();
    Ok(inserted - deleted)
}

/// Restores the order of the fields of a document that was transferred as text; None: it has no order.
pub(super) fn with_order(doc: Vec<u8>, order: Option<Vec<u8>>) -> Result<Vec<u8>> {
    match order {
        Some(order) => detached::attach(document(&doc)?, &order),
        None => Ok(doc),
    }
}

/// Loads a batch of packed documents, one packed value after another. Returns the number of loaded documents. `is_unique`: documents that
/// conflict with another one in a unique index are omitted.
pub fn load_batch(loading: &LoadBatch<'_>) -> Result<u64> {
    let &LoadBatch { migration, collection, batch, is_unique, lo, hi, key } = loading;
    let expected = Expected { lo, hi, key: &read_key(key)? };
    let (staging, index) = staging(migration)?;
    allocator::keep_large_blocks();
    let mut loaded = Ok(0);
    by_int4(staging, index, batch, Look::Active, |row| {
        if let (Ok(before), Some(packed)) = (&loaded, row.bytes(PACKED)) {
            let load = || load_packed(collection, &expected, is_unique, &packed);
            loaded = OwnContext::of_transaction(c"docshard load").within(load).map(|more| before + more);
        }
    });
    loaded
}

fn load_packed(collection: i32, expected: &Expected<'_>, is_unique: bool, packed: &[u8]) -> Result<u64> {
    let rows = clone_parts::unpack(packed)?;
    for row in &rows {
        raw::validate(row.doc)?;
        expected.check(row.skey, row.id, Some(row.doc))?;
    }
    let all_at_once = || {
        let mut writer = table::writer(collection, Purpose::Insert)?;
        writer.insert_by(rows.len().max(1), &rows)?;
        writer.finish();
        Ok(rows.len() as u64)
    };
    if !is_unique {
        return all_at_once();
    }
    match attempt(all_at_once) {
        Err(error) if error.sqlstate == UNIQUE_VIOLATION => load_one_by_one(collection, &rows),
        loaded => loaded,
    }
}

fn load_one_by_one(collection: i32, rows: &[TableRow<'_>]) -> Result<u64> {
    let mut writer = table::writer(collection, Purpose::Insert)?;
    let mut loaded = 0;
    for row in rows {
        if writer.conflict(row).is_none() {
            writer.insert(std::slice::from_ref(row))?;
            loaded += 1;
        }
    }
    writer.finish();
    Ok(loaded)
}
