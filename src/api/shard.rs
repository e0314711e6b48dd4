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
use crate::protocol::migration::{ApplyChanges, DeleteRange, Deleted, DivideRange, LoadBatch, LocateRange};
use crate::protocol::table::{CreateIndex, CreateTable};
use crate::storage::rows::{Found, Row, capture};
use crate::storage::scan::Direction;
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
    documents::find_one(collection, Placement { token, version }, (skey, id), filter).unwrap_or_else(|e| e.raise())
}

/// The first few documents that an index leads to, packed, in the snapshot of the statement that asks, under the check that
/// this needs; null if the executor has to look. See `ownership::index_range`, also for the arguments: of texts an empty one is none.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
#[allow(clippy::too_many_arguments, reason = "an SQL function has no structures")]
fn find_few(
    collection: i32,
    token: i64,
    version: i64,
    index: i32,
    lo: Array<'_, &[u8]>,
    hi: Array<'_, &[u8]>,
    backward: bool,
    most: i32,
    all: bool,
    sort: &str,
    in_order: bool,
    keyed: bool,
    projection: &str,
) -> Option<Vec<u8>> {
    let bounds = lo.iter().zip(hi.iter()).map(|(lo, hi)| (lo.unwrap_or_default(), hi.unwrap_or_default()));
    let search = index_range::Search {
        index,
        bounds: bounds.collect(),
        direction: if backward { Direction::Backward } else { Direction::Forward },
        most: usize::try_from(most).unwrap_or(0),
        all,
        sort: Some(sort).filter(|text| !text.is_empty()),
        in_order,
        keyed,
        projection: Some(projection).filter(|text| !text.is_empty()),
    };
    index_range::find(collection, Placement { token, version }, &search).unwrap_or_else(|e| e.raise())
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
    let inserted = documents::insert(collection, Placement { token, version }, documents);
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
        let fixed: Vec<String> = required(fixed, "fixed")?.iter().flatten().map(str::to_owned).collect();
        let filter = documents::read_filter(filter)?;
        let update = updating::read_update(update)?;
        let assumed = Placement { token, version };
        let done = documents::update_one(collection, assumed, (skey, id), filter.as_ref(), &update, &fixed)?;
        Ok(done.map_or(0, |changed| 1 + i64::from(changed)))
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
    documents::put(collection, &Found::new(place, skey, id, &doc), &after).unwrap_or_else(|e| e.raise());
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

extension_sql!(
    r#"
CREATE AGGREGATE docshard_internal.update_found(
  collection int, place tid, skey bytea, id bytea, doc jsonb, filter text, update text, fixed text[]
) (SFUNC = docshard_internal.update_next, STYPE = internal,
   FINALFUNC = docshard_internal.update_done, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE);
"#,
    name = "update_found",
    requires = [update_next, update_done]
);

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
    let run = || -> Result<i64> {
        let filter = documents::read_filter(filter)?;
        let done = documents::delete_one(collection, Placement { token, version }, (skey, id), filter.as_ref())?;
        Ok(i64::from(done))
    };
    run().unwrap_or_else(|e| e.raise())
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

extension_sql!(
    r#"
CREATE FUNCTION docshard_internal.capture_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'docshard_row_changed';
CREATE VIEW docshard_data.capture_changes AS
SELECT migration_id, seq, skey, id, docshard_internal.current_document(collection_id, skey, id) AS doc
  FROM docshard_data.capture_log;
COMMENT ON VIEW docshard_data.capture_changes IS 'Keys that changed in a captured range, with their documents now; null if there is none';
"#,
    name = "capture_changes",
    requires = [current_document]
);

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
    clone_parts::receive(packed).unwrap_or_else(|e| e.raise())
}

extension_sql!(
    r#"
CREATE VIEW docshard_data.capture_packed AS
SELECT migration_id, part, documents, packed
  FROM docshard_data.capture_parts, LATERAL docshard_internal.pack_part(collection_id, skey, id, next_skey, next_id);
COMMENT ON VIEW docshard_data.capture_packed IS 'The documents of a captured range as they are now, part by part, packed';
"#,
    name = "capture_packed",
    requires = [pack_part]
);

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
    recipient_load::load(&batch).unwrap_or_else(|e| e.raise()).cast_signed()
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
    recipient_load::apply(&ApplyChanges { migration, collection, batch, lo, hi, key }).unwrap_or_else(|e| e.raise())
}

/// Notes, for a move, where the documents of a range are; returns how many.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn locate_range(migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> i64 {
    given!(migration, collection, lo);
    donor_delete::note(&LocateRange { migration, collection, lo, hi }).unwrap_or_else(|e| e.raise())
}

/// Removes rows of a move's log that have been copied; false if the range's documents should be noted again.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_copied_changes(migration: i64, applied: Vec<i64>) -> bool {
    donor_delete::forget(migration, &applied).unwrap_or_else(|e| e.raise())
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
        donor_delete::remove(&DeleteRange { migration, collection, lo, hi }).unwrap_or_else(|e| e.raise());
    TableIterator::once((documents, micros))
}
