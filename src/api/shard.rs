//! Functions that routers call on a shard. `protocol` declares and describes them.

use super::{given, required, run};
use crate::migration;
use crate::ownership::placement::{Placement, check_read};
use crate::ownership::updating::{self, Updating};
use crate::ownership::{
    access, clone_parts, documents, donor_delete, index_range, inspect, recipient_load, router_lock, table, writing,
};
use crate::pg::datum::json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::memory::aggregate_state;
use crate::protocol::documents::{
    DeleteDocument, FindByIndexRange, FindDocument, InsertDocuments, InspectDocuments, UpdateDocument,
};
use crate::protocol::migration::{ApplyChanges, DeleteRange, Deleted, DivideRange, LoadBatch, LocateRange};
use crate::protocol::table::{CreateIndex, CreateTable};
use crate::storage::lock::{self, Tag};
use crate::storage::rows::{Found, Row, capture};
use docshard_core::query::filter::Filter;
use pgrx::datum::{Array, Internal};
use pgrx::pg_sys;
use pgrx::prelude::*;

/// STABLE and without columns, so that it is evaluated once, with the snapshot of the statement.
#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn at_version(collection: i32, token: i64, version: i64) -> bool {
    check_read(collection, Placement { token, version }).unwrap_or_else(|e| e.raise());
    true
}

#[pg_extern(schema = "docshard_internal", stable, parallel_safe, strict, requires = ["catalog"])]
fn by_index(_index: &str) -> bool {
    true
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, requires = ["catalog"])]
fn steers() -> bool {
    true
}

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
    run(|| documents::find_one(&FindDocument { collection, token, version, skey, id, filter }))
}

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
    run(|| index_range::find(&FindByIndexRange { collection, token, version, lo, hi, search }))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn count_all(collection: i32) -> i64 {
    run(|| table::count(collection)).cast_signed()
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn count_matching(collection: i32, filter: &str) -> i64 {
    run(|| table::count_matching(collection, filter)).cast_signed()
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn hold_router_lock(silence_ms: i64) -> Option<String> {
    run(|| router_lock::hold(silence_ms))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn lock_and_check(
    collection: Option<i32>,
    token: Option<i64>,
    version: Option<i64>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
) -> bool {
    given!(collection, token, version);
    run(|| writing::lock_and_check(collection, Placement { token, version }, lo, hi));
    true
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn lock_upsert(collection: i32, number: i64) {
    run(|| writing::lock_upsert(collection, number));
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn insert_documents(collection: i32, token: i64, version: i64, documents: &[u8]) -> i64 {
    let documents = documents.into();
    let inserted = documents::insert(&InsertDocuments { collection, token, version, documents });
    inserted.unwrap_or_else(|e| e.raise()).cast_signed()
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn taken(
    collection: i32,
    skey: &[u8],
    id: &[u8],
    document: &[u8],
) -> TableIterator<'static, (name!(relation, String), name!(key, Vec<u8>))> {
    let taken = run(|| documents::taken(collection, &Row { skey, id, doc: document }));
    TableIterator::new(taken.into_iter().map(|taken| (taken.index, taken.key)))
}

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
    run(|| {
        let fixed = required(fixed, "fixed")?.iter().flatten().map(str::to_owned).collect();
        let (skey, id, filter, update) = (skey.into(), id.map(Into::into), filter.map(Into::into), update.into());
        let call = UpdateDocument { collection, token, version, skey, id, filter, update, fixed };
        Ok(documents::update_one(&call)?.map_or(0, |changed| 1 + i64::from(changed)))
    })
}

/// The calling statement has found and locked the row at `place`.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn put_document(
    collection: i32,
    place: pg_sys::ItemPointerData,
    skey: &[u8],
    id: &[u8],
    doc: RawJsonb,
    after: RawJsonb,
) {
    run(|| documents::replace(collection, &Found::new(place, skey, id, &doc), &after));
}

/// STABLE, so that it is evaluated once, and first.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn may_update(collection: i32) -> bool {
    run(|| updating::check_permission(collection));
    true
}

/// The transition function of the aggregate `update_found`: see [`Updating`].
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
    run(|| {
        let (updating, state) = aggregate_state::state(fcinfo, state, || -> Result<Updating> {
            let filter = Filter::read(&json::parse(filter)?)?;
            let update = updating::read_update(update)?;
            Updating::begin(collection, filter, update, fixed.iter().flatten().map(str::to_owned).collect())
        })?;
        updating.update(&Found::new(place, skey, id, &doc))?;
        Ok(state)
    })
}

/// The final function of the aggregate; returns how many documents matched, and how many changed.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn update_done(state: Internal) -> Vec<i64> {
    let done = aggregate_state::finished::<Updating>(state).map(Updating::finish).unwrap_or_default();
    vec![done.matched, done.modified]
}

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

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_writers(collection: i32) {
    writing::exclude_writers(collection);
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table(collection: i32, token: i64, version: i64, id_index: bool) {
    run(|| table::create(&CreateTable { collection, token, version, id_index }));
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table(collection: i32) {
    run(|| table::drop(collection));
}

#[pg_extern(name = "create_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn create_table_index(
    collection: Option<i32>,
    index: Option<i32>,
    keys: Option<&str>,
    is_unique: Option<bool>,
    partial: Option<&str>,
) {
    given!(collection, index, keys, is_unique);
    run(|| table::create_index(&CreateIndex { collection, index, keys, is_unique, partial }));
}

#[pg_extern(name = "drop_index", schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_table_index(index: i32) {
    run(|| table::drop_index(index));
}

#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn current_document(collection: i32, skey: &[u8], id: &[u8]) -> Option<RawJsonb> {
    run(|| {
        // No key lies between this one and the same one with a zero byte added.
        access::require_captured(collection, skey, Some(&[skey, &[0]].concat()))?;
        table::document(collection, skey, id)
    })
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn bypass_capture() {
    capture::bypass();
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn divide_range(
    migration: Option<i64>,
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
    documents: Option<i64>,
) -> i64 {
    given!(migration, collection, lo, documents);
    run(|| clone_parts::divide(&DivideRange { migration, collection, lo, hi, documents }))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_safe, requires = ["catalog"])]
fn pack_part(
    collection: Option<i32>,
    skey: Option<&[u8]>,
    id: Option<&[u8]>,
    next_skey: Option<&[u8]>,
    next_id: Option<&[u8]>,
) -> TableIterator<'static, (name!(documents, i64), name!(packed, String))> {
    given!(collection, skey);
    TableIterator::new(run(|| {
        // With an `id`, the end lies after some documents of its shard key.
        let end = next_skey.map(|next| if next_id.is_some() { [next, &[0]].concat() } else { next.to_vec() });
        access::require_captured(collection, skey, end.as_deref())?;
        clone_parts::pack(collection, (skey, id), (next_skey, next_id))
    }))
}

/// The documents are checked when they are loaded.
#[pg_extern(schema = "docshard_internal", immutable, strict, parallel_safe)]
fn decode_part(packed: &str) -> Vec<u8> {
    run(|| clone_parts::decode(packed))
}

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
    run(|| recipient_load::load_batch(&batch)).cast_signed()
}

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
    run(|| recipient_load::apply_changes(&ApplyChanges { migration, collection, batch, lo, hi, key }))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn locate_range(migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> i64 {
    given!(migration, collection, lo);
    run(|| donor_delete::locate(&LocateRange { migration, collection, lo, hi }))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_copied_changes(migration: i64, applied: Vec<i64>) -> bool {
    run(|| donor_delete::delete_copied_changes(migration, &applied))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_range(
    migration: Option<i64>,
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
) -> TableIterator<'static, (name!(documents, i64), name!(micros, i64))> {
    given!(migration, collection, lo);
    let Deleted { documents, micros } = run(|| donor_delete::delete(&DeleteRange { migration, collection, lo, hi }));
    TableIterator::once((documents, micros))
}

fn holders(tag: Tag) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    TableIterator::new(run(|| lock::holding_processes(tag)))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn collection_writers(collection: i32) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Collection(collection))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn range_writers(migration: i64) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Migration(migration))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_range_writers(migration: i64) {
    migration::exclude_range_writers(migration);
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn release_range_writers(migration: i64) {
    migration::release_range_writers(migration);
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn inspect_documents(
    collection: i32,
    token: i64,
    version: i64,
    key: &str,
    owned: Array<'_, &[u8]>,
    most: i32,
) -> String {
    run(|| {
        let owned = owned.iter().flatten().map(Into::into).collect();
        Ok(inspect::inspect(&InspectDocuments { collection, token, version, key: key.into(), owned, most })?
            .to_string())
    })
}

extension_sql_file!(
    "../../sql/shard.sql",
    name = "shard_objects",
    requires = [update_next, update_done, current_document, pack_part]
);
