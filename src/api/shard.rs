//! What routers call at a shard: checks, locks and tables.

use super::{given, required};
use crate::ownership::placement::{Placement, check_read};
use crate::ownership::updating::{self, Updating};
use crate::ownership::{
    access, clone_parts, documents, donor_delete, index_range, recipient_load, router_lock, table, writing,
};
use crate::pg::datum::json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::memory::aggregate_state;
use crate::protocol::documents::{DeleteDocument, FindByIndexRange, FindDocument, InsertDocuments, UpdateDocument};
use crate::protocol::migration::{ApplyChanges, DeleteRange, Deleted, DivideRange, LoadBatch, LocateRange};
use crate::protocol::table::{CreateIndex, CreateTable};
use crate::storage::rows::{Found, Row, capture};
use docshard_core::query::filter::Filter;
use pgrx::datum::{Array, Internal};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// True if this shard is at the version that the router assumed, in the snapshot of the statement that asks;
/// otherwise an ERROR. STABLE, so that it looks with the statement's own snapshot, once.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn at_version(collection: i32, token: i64, version: i64) -> bool {
    check_read(collection, Placement { token, version }).unwrap_or_else(|e| e.raise());
    true
}

/// True. Says, while a statement is planned, which index is to be used: see `storage::planning`.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, strict, requires = ["catalog"])]
fn by_index(_index: &str) -> bool {
    true
}

/// True. A constant, so that who plans a statement with it has loaded this library.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, requires = ["catalog"])]
fn steers() -> bool {
    true
}

/// The first document of a shard key, and of an `_id` unless that is null, that matches the filter unless that is null,
/// packed, in the snapshot of the statement that asks, under the check that this needs; null if there is none.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn find_document(
    collection: Option<i32>,
    token: Option<i64>,
    version: Option<i64>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    filter: Option<&str>,
) -> Option<Vec<u8>> {
    given!(collection, token, version, skey);
    let (skey, id, filter) = (skey.into(), id.map(Into::into), filter.map(Into::into));
    documents::find_one(&FindDocument { collection, token, version, skey, id, filter }).unwrap_or_else(|e| e.raise())
}

/// The first documents of a range of an index, packed, in the snapshot of the statement that asks, under the check that this
/// needs; null if the executor has to look. See `ownership::index_range`; `search` is a `protocol::documents::IndexRangeSearch`.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn find_by_index_range(
    collection: i32,
    token: i64,
    version: i64,
    lo: Array<'_, &[u8]>,
    hi: Array<'_, &[u8]>,
    search: &str,
) -> Option<Vec<u8>> {
    let lo = lo.iter().map(|key| key.unwrap_or_default().into()).collect();
    let hi = hi.iter().map(|key| key.unwrap_or_default().into()).collect();
    let search = search.into();
    index_range::find(&FindByIndexRange { collection, token, version, lo, hi, search }).unwrap_or_else(|e| e.raise())
}

/// How many documents of a collection this shard has, in the snapshot of the statement that asks.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn count_all(collection: i32) -> i64 {
    table::count(collection).unwrap_or_else(|e| e.raise()).cast_signed()
}

/// How many documents of a collection on this shard match a filter, in the snapshot of the statement that asks, where no
/// index narrows the search.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn count_matching(collection: i32, filter: &str) -> i64 {
    table::count_matching(collection, filter).unwrap_or_else(|e| e.raise()).cast_signed()
}

/// Takes the router's lock on this shard for the session; null if it has it, or else who has. A holder that has said nothing for so
/// many milliseconds is ended.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn hold_router_lock(silence_ms: i64) -> Option<String> {
    router_lock::hold(silence_ms).unwrap_or_else(|e| e.raise())
}

/// Takes the locks that a write to `[lo, hi)` needs and checks the version under them; null means no bound.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn lock_and_check(
    collection: Option<i32>,
    token: Option<i64>,
    version: Option<i64>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
) -> bool {
    given!(collection, token, version);
    writing::lock_and_check(collection, Placement { token, version }, lo, hi).unwrap_or_else(|e| e.raise());
    true
}

/// Lets the upserts of a collection that share a number come one after the other, until the transaction ends.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn lock_upsert(collection: i32, number: i64) {
    writing::lock_upsert(collection, number).unwrap_or_else(|e| e.raise());
}

/// Takes the locks that inserting these documents needs, checks the version under them, and inserts; answers how many.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn insert_documents(collection: i32, token: i64, version: i64, documents: &[u8]) -> i64 {
    let documents = documents.into();
    let inserted = documents::insert(&InsertDocuments { collection, token, version, documents });
    inserted.unwrap_or_else(|e| e.raise()).cast_signed()
}

/// The unique index, beside the primary key, in which another document has one of the keys of this one, and that key; no row if
/// there is none. It looks at what is there now, and waits for transactions that are writing or removing such a document.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn taken(
    collection: i32,
    skey: &[u8],
    id: &[u8],
    document: &[u8],
) -> TableIterator<'static, (name!(relation, String), name!(key, Vec<u8>))> {
    let taken = documents::taken(collection, &Row { skey, id, doc: document }).unwrap_or_else(|e| e.raise());
    TableIterator::new(taken.into_iter().map(|taken| (taken.index, taken.key)))
}

/// Updates one document of a shard key, and of an `_id` unless that is null, that matches the filter unless that is null,
/// under the locks that this needs; answers 0 if there is none, 1 if it stays as it is, 2 if it changed.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::too_many_arguments, reason = "a router sends it as one statement")]
fn update_document(
    collection: Option<i32>,
    token: Option<i64>,
    version: Option<i64>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    filter: Option<&str>,
    update: Option<&str>,
    fixed: Option<Array<'_, &str>>,
) -> i64 {
    given!(collection, token, version, skey, update);
    let run = || -> Result<i64> {
        let fixed = required(fixed, "fixed")?.iter().flatten().map(str::to_owned).collect();
        let (skey, id, filter, update) = (skey.into(), id.map(Into::into), filter.map(Into::into), update.into());
        let call = UpdateDocument { collection, token, version, skey, id, filter, update, fixed };
        Ok(documents::update_one(&call)?.map_or(0, |changed| 1 + i64::from(changed)))
    };
    run().unwrap_or_else(|e| e.raise())
}

/// Gives a row, which the statement that asks has found at that place and locked, another document.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn put_document(
    collection: i32,
    place: pg_sys::ItemPointerData,
    skey: &[u8],
    id: &[u8],
    doc: RawJsonb,
    after: RawJsonb,
) {
    documents::replace(collection, &Found::new(place, skey, id, &doc), &after).unwrap_or_else(|e| e.raise());
}

/// True; an ERROR if the caller may not update documents of the collection. STABLE, so that it is asked once, first.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn may_update(collection: i32) -> bool {
    updating::check_permission(collection).unwrap_or_else(|e| e.raise());
    true
}

/// What [`update_found`](Updating) does at each of its rows.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::too_many_arguments, reason = "the row's columns, and the update's")]
fn update_next(
    state: Internal,
    collection: Option<i32>,
    place: Option<pg_sys::ItemPointerData>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    doc: Option<RawJsonb>,
    filter: Option<&str>,
    update: Option<&str>,
    fixed: Option<Array<'_, &str>>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Internal {
    given!(collection, place, skey, id, doc, filter, update, fixed);
    let run = || -> Result<Internal> {
        let (updating, state) = aggregate_state::state(fcinfo, state, || -> Result<Updating> {
            let filter = Filter::read(&json::parse(filter)?)?;
            let update = updating::read_update(update)?;
            Updating::begin(collection, filter, update, fixed.iter().flatten().map(str::to_owned).collect())
        })?;
        updating.update(&Found::new(place, skey, id, &doc))?;
        Ok(state)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// What it answers: how many documents matched, and how many changed.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn update_done(state: Internal) -> Vec<i64> {
    let done = aggregate_state::finished::<Updating>(state).map(Updating::finish).unwrap_or_default();
    vec![done.matched, done.modified]
}

/// Deletes one document of a shard key, and of an `_id` unless that is null, that matches the filter unless that is null,
/// under the locks that this needs; answers how many.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_document(
    collection: Option<i32>,
    token: Option<i64>,
    version: Option<i64>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    filter: Option<&str>,
) -> i64 {
    given!(collection, token, version, skey);
    let (skey, id, filter) = (skey.into(), id.map(Into::into), filter.map(Into::into));
    let call = DeleteDocument { collection, token, version, skey, id, filter };
    i64::from(documents::delete_one(&call).unwrap_or_else(|e| e.raise()))
}

/// Excludes every writer of a collection on this shard until the transaction ends.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_writers(collection: i32) {
    writing::exclude_writers(collection);
}

/// Makes a collection's table and places it at a version.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table(collection: i32, token: i64, version: i64, id_index: bool) {
    table::create(&CreateTable { collection, token, version, id_index }).unwrap_or_else(|e| e.raise());
}

/// Drops a collection's table and its placement.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table(collection: i32) {
    table::drop(collection).unwrap_or_else(|e| e.raise());
}

/// Makes a secondary index of a collection's table; of the documents that match `partial`, or of all.
#[pg_extern(name = "create_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table_index(
    collection: Option<i32>,
    index: Option<i32>,
    keys: Option<&str>,
    is_unique: Option<bool>,
    partial: Option<&str>,
) {
    given!(collection, index, keys, is_unique);
    table::create_index(&CreateIndex { collection, index, keys, is_unique, partial }).unwrap_or_else(|e| e.raise());
}

/// Drops a secondary index.
#[pg_extern(name = "drop_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table_index(index: i32) {
    table::drop_index(index).unwrap_or_else(|e| e.raise());
}

/// The document of that key, in the snapshot of the statement that asks; null if there is none.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn current_document(collection: i32, skey: &[u8], id: &[u8]) -> Option<RawJsonb> {
    let run = || -> Result<Option<RawJsonb>> {
        // No key is between this one and itself with a zero byte more.
        access::require_captured(collection, skey, Some(&[skey, &[0]].concat()))?;
        table::document(collection, skey, id)
    };
    run().unwrap_or_else(|e| e.raise())
}

/// What this transaction writes is not logged for a move: it is the move's own.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn bypass_capture() {
    capture::bypass();
}

/// Divides the range of a move into parts of so many documents; returns how many parts.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn divide_range(
    migration: Option<i64>,
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
    documents: Option<i64>,
) -> i64 {
    given!(migration, collection, lo, documents);
    clone_parts::divide(&DivideRange { migration, collection, lo, hi, documents }).unwrap_or_else(|e| e.raise())
}

/// The documents of a part, packed, in the snapshot of the statement that asks.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn pack_part(
    collection: Option<i32>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    next_skey: Option<&[u8]>,
    next_id: Option<&[u8]>,
) -> TableIterator<'static, (name!(documents, i64), name!(packed, String))> {
    given!(collection, skey);
    let run = || -> Result<Vec<(i64, String)>> {
        // With an `id`, the end is behind some of its shard key's documents.
        let end = next_skey.map(|next| if next_id.is_some() { [next, &[0]].concat() } else { next.to_vec() });
        access::require_captured(collection, skey, end.as_deref())?;
        clone_parts::pack(collection, (skey, id), (next_skey, next_id))
    };
    TableIterator::new(run().unwrap_or_else(|e| e.raise()))
}

/// A packed part that has arrived. Its documents are checked when they are loaded.
#[pg_extern(schema = "docshard_internal", immutable, strict, parallel_safe)]
fn decode_part(packed: &str) -> Vec<u8> {
    clone_parts::decode(packed).unwrap_or_else(|e| e.raise())
}

/// Loads a batch of what a move has pulled, all of it in that range and with the keys that the shard key says, into the
/// collection's table; with `is_unique` but for what a unique index keeps out;
/// returns how many documents that were.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn load_batch(
    migration: Option<i64>,
    collection: Option<i32>,
    batch: Option<i32>,
    is_unique: Option<bool>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
    key: Option<&str>,
) -> i64 {
    given!(migration, collection, batch, is_unique, lo, key);
    let batch = LoadBatch { migration, collection, batch, is_unique, lo, hi, key };
    recipient_load::load_batch(&batch).unwrap_or_else(|e| e.raise()).cast_signed()
}

/// Applies a batch of changes that a move has pulled, all of them in that range and with the keys that the shard key says;
/// returns how many documents there are more than before.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn apply_changes(
    migration: Option<i64>,
    collection: Option<i32>,
    batch: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
    key: Option<&str>,
) -> i64 {
    given!(migration, collection, batch, lo, key);
    recipient_load::apply_changes(&ApplyChanges { migration, collection, batch, lo, hi, key })
        .unwrap_or_else(|e| e.raise())
}

/// Notes, for a move, where the documents of a range are; returns how many.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn locate_range(migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> i64 {
    given!(migration, collection, lo);
    donor_delete::locate(&LocateRange { migration, collection, lo, hi }).unwrap_or_else(|e| e.raise())
}

/// Removes rows of a move's log that have been copied; false if the range's documents should be noted again.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_copied_changes(migration: i64, applied: Vec<i64>) -> bool {
    donor_delete::delete_copied_changes(migration, &applied).unwrap_or_else(|e| e.raise())
}

/// Removes the documents of a range that a move takes away, and from which writers are excluded; returns how many, and how
/// many microseconds it took.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_range(
    migration: Option<i64>,
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
) -> TableIterator<'static, (name!(documents, i64), name!(micros, i64))> {
    given!(migration, collection, lo);
    let Deleted { documents, micros } =
        donor_delete::delete(&DeleteRange { migration, collection, lo, hi }).unwrap_or_else(|e| e.raise());
    TableIterator::once((documents, micros))
}

extension_sql_file!(
    "../../sql/shard.sql",
    name = "shard_objects",
    requires = [update_next, update_done, current_document, pack_part]
);
