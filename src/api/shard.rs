//! Functions that routers call on a shard. `protocol` declares and describes them.

use super::{given, run, shard_functions};
use crate::catalog::cluster::protection;
use crate::migration;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::pg::memory::aggregate_state;
use crate::shard::placement::{Placement, check_read};
use crate::shard::updating::{self, Updating};
use crate::shard::{
    access, accesses, clone_parts, documents, donor_delete, index_range, inspect, once, pipeline, recipient_load,
    router_lock, share_load, table, writing,
};
use crate::storage::lock::{self, Tag};
use crate::storage::rows::{FoundRow, TableRow, capture};
use docshard_core::cluster::share::Share;
use docshard_core::query::filter::Filter;
use docshard_core::query::specification;
use docshard_core::routing::protocol::documents::{
    DeleteDocument, FindByIndexRange, FindDocument, FindViolations, InsertDocuments, InspectDocuments, UpdateDocument,
};
use docshard_core::routing::protocol::migration::{
    ApplyChanges, DeleteRange, Deleted, DivideRange, LoadBatch, LocateRange, NumberedWrites,
};
use docshard_core::routing::protocol::once::{
    ClaimOutcome, ClaimWrite, DeleteOnce, InsertOnce, RememberReply, UpdateOnce,
};
use docshard_core::routing::protocol::pipeline::RunPipeline;
use docshard_core::routing::protocol::resharding::{ApplyShare, LoadShare, Stored};
use docshard_core::routing::protocol::table::{CreateIndex, CreateTable, SetValidator};
use pgrx::datum::{Array, Internal};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::borrow::Cow;

fn done<T>(_: T) -> bool {
    true
}

fn keys<'k>(keys: &'k Array<'_, &[u8]>) -> Vec<Cow<'k, [u8]>> {
    keys.iter().map(|key| key.unwrap_or_default().into()).collect()
}

fn texts(texts: &Array<'_, &str>) -> Vec<String> {
    texts.iter().flatten().map(str::to_owned).collect()
}

shard_functions! {
    /// STABLE and without columns, so that it is evaluated once, with the snapshot of the statement.
    [stable, parallel_safe] at_version(collection: i32, token: i64, version: i64) -> bool =>
        check_read(collection, Placement { token, version }).map(done);

    /// Like `at_version`, it is evaluated once.
    [stable, parallel_safe, strict] at_keys(collection: i32, token: i64, version: i64, keys: Array<'_, &[u8]>) -> bool => {
        check_read(collection, Placement { token, version })?;
        accesses::read_at(collection, keys.iter().flatten());
        Ok(true)
    };

    [stable, parallel_safe, strict] by_index(_index: &str) -> bool => Ok(true);

    [immutable, parallel_safe] load_library() -> bool => Ok(true);

    /// For the event triggers of sql/protection.sql.
    [volatile, strict, parallel_unsafe] watch_change(phase: &str) => protection::watch_change(phase);

    // Documents.

    [stable, parallel_unsafe] find_document(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, skey: Option<&[u8]>, id: Option<&[u8]>, filter: Option<&str>,
    ) -> Option<Vec<u8>> => {
        given!(collection, token, version, skey);
        let (skey, id, filter) = (skey.into(), id.map(Into::into), filter.map(Into::into));
        documents::find_one(&FindDocument { collection, token, version, skey, id, filter })
    };

    [stable, parallel_unsafe, strict] find_by_index_range(
        collection: i32, token: i64, version: i64, lo: Array<'_, &[u8]>, hi: Array<'_, &[u8]>, search: &str,
    ) -> Option<Vec<u8>> => {
        let (lo, hi, search) = (keys(&lo), keys(&hi), search.into());
        index_range::find(&FindByIndexRange { collection, token, version, lo, hi, search })
    };

    [stable, parallel_unsafe, strict] find_in_index_range(
        collection: i32, token: i64, version: i64, lo: Array<'_, &[u8]>, hi: Array<'_, &[u8]>, search: &str, keys_read: Array<'_, &[u8]>,
    ) -> Option<Vec<u8>> => {
        let (lo, hi, search) = (keys(&lo), keys(&hi), search.into());
        let found = index_range::find(&FindByIndexRange { collection, token, version, lo, hi, search })?;
        // If the shard declines, another statement follows, which is counted.
        if found.is_some() {
            accesses::read_at(collection, keys_read.iter().flatten());
        }
        Ok(found)
    };

    [stable, parallel_unsafe, strict] run_pipeline(
        collection: i32, token: i64, version: i64, work: &str,
    ) -> SetOfIterator<'static, Vec<u8>> => {
        let mut answer = pipeline::run(&RunPipeline { collection, token, version, work: work.into() })?;
        Ok(SetOfIterator::new(std::iter::from_fn(move || run(|| answer.next_row()))))
    };

    [stable, parallel_unsafe, strict] count_all(collection: i32) -> i64 => table::count(collection).map(u64::cast_signed);

    [stable, parallel_unsafe, strict] count_matching(collection: i32, filter: &str) -> i64 =>
        table::count_matching(collection, filter).map(u64::cast_signed);

    [volatile, parallel_unsafe] lock_and_check(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, lo: Option<&[u8]>, hi: Option<&[u8]>,
    ) -> bool => {
        given!(collection, token, version);
        writing::lock_and_check(collection, Placement { token, version }, lo, hi)?;
        accesses::write(collection, lo);
        Ok(true)
    };

    [volatile, parallel_unsafe] lock_upsert(collection: i32, number: i64) => writing::lock_upsert(collection, number);

    [volatile, parallel_unsafe, strict] insert_documents(collection: i32, token: i64, version: i64, documents: &[u8]) -> i64 => {
        let documents = documents.into();
        documents::insert(&InsertDocuments { collection, token, version, documents }).map(u64::cast_signed)
    };

    [volatile, parallel_unsafe, strict] find_violations(collection: i32, token: i64, version: i64, documents: &[u8]) -> String => {
        let documents = documents.into();
        let refused = documents::find_violations(&FindViolations { collection, token, version, documents })?;
        Ok(serde_json::to_string(&refused).unwrap_or_default())
    };

    [volatile, parallel_unsafe, strict] find_conflict(
        collection: i32, skey: &[u8], id: &[u8], document: &[u8],
    ) -> TableIterator<'static, (name!(relation, String), name!(key, Vec<u8>))> => {
        let conflict = documents::find_conflict(collection, &TableRow { skey, id, doc: document })?;
        Ok(TableIterator::new(conflict.into_iter().map(|conflict| (conflict.index, conflict.key))))
    };

    [volatile, parallel_unsafe] update_document(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, skey: Option<&[u8]>, id: Option<&[u8]>, filter: Option<&str>,
        update: Option<&str>, fixed: Option<Array<'_, &str>>,
    ) -> i64 => {
        given!(collection, token, version, skey, update, fixed);
        let (skey, id, filter, update) = (skey.into(), id.map(Into::into), filter.map(Into::into), update.into());
        let call = UpdateDocument { collection, token, version, skey, id, filter, update, fixed: texts(&fixed) };
        documents::update_one(&call).map(once::answer_of_update)
    };

    /// The calling statement has found and locked the row at `place`.
    [volatile, parallel_unsafe] replace_document(
        collection: i32, place: pg_sys::ItemPointerData, skey: &[u8], id: &[u8], doc: RawJsonb, after: RawJsonb,
    ) => documents::replace(collection, &FoundRow::new(place, skey, id, &doc), &after);

    /// STABLE and called without columns, so that PostgreSQL evaluates it once, before any row is updated.
    [stable, parallel_unsafe] may_update(collection: i32) -> bool => updating::check_permission(collection).map(done);

    /// The transition function of the aggregate `update_found`: see [`Updating`].
    [volatile, parallel_unsafe] update_next(
        state: Internal, collection: Option<i32>, place: Option<pg_sys::ItemPointerData>, skey: Option<&[u8]>, id: Option<&[u8]>,
        doc: Option<RawJsonb>, filter: Option<&str>, update: Option<&str>, fixed: Option<Array<'_, &str>>,
        fcinfo: pg_sys::FunctionCallInfo,
    ) -> Internal => {
        given!(collection, place, skey, id, doc, filter, update, fixed);
        let (updating, state) = aggregate_state::state(fcinfo, state, || -> Result<Updating> {
            let filter = Filter::read(&specification::parse(filter)?)?;
            Updating::begin(collection, filter, updating::read_update(update)?, texts(&fixed))
        })?;
        updating.update(&FoundRow::new(place, skey, id, &doc))?;
        Ok(state)
    };

    /// The final function of the aggregate; returns how many documents matched, and how many changed.
    [volatile, parallel_unsafe] update_done(state: Internal) -> Vec<i64> => {
        let done = aggregate_state::finished::<Updating>(state).map(Updating::finish).unwrap_or_default();
        Ok(vec![done.matched, done.modified])
    };

    [volatile, parallel_unsafe] delete_document(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, skey: Option<&[u8]>, id: Option<&[u8]>, filter: Option<&str>,
    ) -> i64 => {
        given!(collection, token, version, skey);
        let (skey, id, filter) = (skey.into(), id.map(Into::into), filter.map(Into::into));
        documents::delete_one(&DeleteDocument { collection, token, version, skey, id, filter }).map(i64::from)
    };

    // Numbered writes.

    [volatile, parallel_unsafe, strict] claim_write(
        collection: i32, token: i64, version: i64, number: &[u8], skey: &[u8],
    ) -> Option<Vec<u8>> => {
        let (number, skey) = (number.into(), skey.into());
        let claimed = once::claim(&ClaimWrite { collection, token, version, number, skey })?;
        Ok(claimed.as_ref().map(ClaimOutcome::encode))
    };

    [volatile, parallel_unsafe, strict] remember_reply(
        collection: i32, token: i64, version: i64, number: &[u8], reply: &[u8],
    ) -> bool => {
        let (number, reply) = (number.into(), reply.into());
        once::remember(&RememberReply { collection, token, version, number, reply })
    };

    [volatile, parallel_unsafe, strict] insert_once(
        collection: i32, token: i64, version: i64, number: &[u8], documents: &[u8],
    ) -> i64 => {
        let (number, documents) = (number.into(), documents.into());
        once::insert(&InsertOnce { collection, token, version, number, documents })
    };

    [volatile, parallel_unsafe] update_once(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, number: Option<&[u8]>, skey: Option<&[u8]>, id: Option<&[u8]>,
        filter: Option<&str>, update: Option<&str>, fixed: Option<Array<'_, &str>>,
    ) -> i64 => {
        given!(collection, token, version, number, skey, update, fixed);
        let (number, skey, id, filter, update) = (number.into(), skey.into(), id.map(Into::into), filter.map(Into::into), update.into());
        once::update(&UpdateOnce { collection, token, version, number, skey, id, filter, update, fixed: texts(&fixed) })
    };

    [volatile, parallel_unsafe] delete_once(
        collection: Option<i32>, token: Option<i64>, version: Option<i64>, number: Option<&[u8]>, skey: Option<&[u8]>, id: Option<&[u8]>,
        filter: Option<&str>,
    ) -> i64 => {
        given!(collection, token, version, number, skey);
        let (number, skey, id, filter) = (number.into(), skey.into(), id.map(Into::into), filter.map(Into::into));
        once::delete(&DeleteOnce { collection, token, version, number, skey, id, filter })
    };

    [volatile, parallel_unsafe, strict] forget_numbered_writes(most: i64) -> i64 => once::forget(most);

    [stable, parallel_unsafe, strict] inspect_documents(
        collection: i32, token: i64, version: i64, key: &str, owned: Array<'_, &[u8]>, most: i32,
    ) -> String => {
        let owned = owned.iter().flatten().map(Into::into).collect();
        let call = InspectDocuments { collection, token, version, key: key.into(), owned, most };
        Ok(inspect::inspect(&call)?.to_string())
    };

    // Tables and indexes.

    [volatile, parallel_unsafe] exclude_writers(collection: i32) => Ok(writing::exclude_writers(collection));

    [volatile, parallel_unsafe] create_table(collection: i32, token: i64, version: i64, id_index: bool) =>
        table::create(&CreateTable { collection, token, version, id_index });

    [volatile, parallel_unsafe] set_validator(collection: Option<i32>, token: Option<i64>, definition: Option<&str>) => {
        given!(collection, token);
        table::set_validator(&SetValidator { collection, token, definition })
    };

    [volatile, parallel_unsafe] drop_table(collection: i32) => table::drop(collection);

    [name = "create_index", volatile, parallel_unsafe] create_table_index(
        collection: Option<i32>, index: Option<i32>, keys: Option<&str>, is_unique: Option<bool>, partial: Option<&str>,
    ) => {
        given!(collection, index, keys, is_unique);
        table::create_index(&CreateIndex { collection, index, keys, is_unique, partial })
    };

    [name = "drop_index", volatile, parallel_unsafe] drop_table_index(index: i32) => table::drop_index(index);

    [volatile, parallel_unsafe, strict] hold_router_lock(silence_ms: i64) -> Option<String> => router_lock::hold(silence_ms);

    // Moves.

    [stable, parallel_safe] current_document(collection: i32, skey: &[u8], id: &[u8]) -> Option<RawJsonb> => {
        // No key lies between this one and the same one with a zero byte added.
        access::require_captured(collection, skey, Some(&[skey, &[0]].concat()))?;
        table::document(collection, skey, id)
    };

    [volatile, parallel_unsafe] bypass_capture() => Ok(capture::bypass());

    [volatile, parallel_unsafe] divide_range(
        migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>, documents: Option<i64>,
    ) -> i64 => {
        given!(migration, collection, documents);
        clone_parts::divide(&DivideRange { migration, collection, lo, hi, documents })
    };

    [stable, parallel_safe] pack_part(
        collection: Option<i32>, skey: Option<&[u8]>, id: Option<&[u8]>, next_skey: Option<&[u8]>, next_id: Option<&[u8]>,
    ) -> TableIterator<'static, (name!(documents, i64), name!(packed, String))> => {
        given!(collection, skey);
        // With a `next_id`, the part ends among the documents of `next_skey`, so that key must be captured, too.
        let end = next_skey.map(|next| if next_id.is_some() { [next, &[0]].concat() } else { next.to_vec() });
        access::require_captured(collection, skey, end.as_deref())?;
        Ok(TableIterator::new(clone_parts::pack(collection, (skey, id), (next_skey, next_id))?))
    };

    /// Like `pack_part`, for a recipient of another layout.
    [stable, parallel_safe] pack_share(
        collection: Option<i32>, file: Option<i64>, place: Option<i64>, next_place: Option<i64>, key: Option<&str>, share: Option<&[u8]>,
    ) -> TableIterator<'static, (name!(documents, i64), name!(packed, String))> => {
        given!(collection, file, place, next_place, key, share);
        access::require_captured(collection, &[], None)?;
        let wanted = clone_parts::Wanted { key: recipient_load::read_key(key)?, share: Share::decode(share)? };
        Ok(TableIterator::new(clone_parts::pack_share(collection, file, place, next_place, wanted)?))
    };

    [volatile, parallel_unsafe, strict] load_share(
        resharding: i64, collection: i32, batch: i32, key: &str, share: &[u8],
    ) -> TableIterator<'static, (name!(documents, i64), name!(refused, Vec<u8>))> => {
        let Stored { documents, refused } = share_load::load(&LoadShare { resharding, collection, batch, key, share })?;
        Ok(TableIterator::once((documents, refused)))
    };

    [volatile, parallel_unsafe, strict] apply_share(
        resharding: i64, collection: i32, batch: i32, old_key: &str, key: &str, share: &[u8],
    ) -> TableIterator<'static, (name!(documents, i64), name!(refused, Vec<u8>))> => {
        let changes = ApplyShare { resharding, collection, batch, old_key, key, share };
        let Stored { documents, refused } = share_load::apply(&changes)?;
        Ok(TableIterator::once((documents, refused)))
    };

    [volatile, parallel_unsafe] load_batch(
        migration: Option<i64>, collection: Option<i32>, batch: Option<i32>, is_unique: Option<bool>, lo: Option<&[u8]>,
        hi: Option<&[u8]>, key: Option<&str>,
    ) -> i64 => {
        given!(migration, collection, batch, is_unique, lo, key);
        let batch = LoadBatch { migration, collection, batch, is_unique, lo, hi, key };
        recipient_load::load_batch(&batch).map(u64::cast_signed)
    };

    [volatile, parallel_unsafe] apply_changes(
        migration: Option<i64>, collection: Option<i32>, batch: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>, key: Option<&str>,
    ) -> i64 => {
        given!(migration, collection, batch, lo, key);
        recipient_load::apply_changes(&ApplyChanges { migration, collection, batch, lo, hi, key })
    };

    [volatile, parallel_unsafe] locate_range(
        migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>,
    ) -> i64 => {
        given!(migration, collection, lo);
        donor_delete::locate(&LocateRange { migration, collection, lo, hi })
    };

    [volatile, parallel_unsafe] delete_copied_changes(migration: i64, applied: Vec<i64>) -> bool =>
        donor_delete::delete_copied_changes(migration, &applied);

    [volatile, parallel_unsafe] delete_range(
        migration: Option<i64>, collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>,
    ) -> TableIterator<'static, (name!(documents, i64), name!(micros, i64))> => {
        given!(migration, collection, lo);
        let Deleted { documents, micros } = donor_delete::delete(&DeleteRange { migration, collection, lo, hi })?;
        Ok(TableIterator::once((documents, micros)))
    };

    [volatile, parallel_unsafe] numbered_writes(
        collection: Option<i32>, lo: Option<&[u8]>, hi: Option<&[u8]>, since: Option<&str>, after: Option<&[u8]>,
    ) -> Option<String> => {
        given!(collection, lo, since, after);
        once::after(&NumberedWrites { collection, lo, hi, since, after })
    };

    [volatile, parallel_unsafe, strict] load_numbered_writes(writes: &str) -> Option<Vec<u8>> => once::load(writes);

    [volatile, parallel_unsafe] exclude_range_writers(migration: i64) => Ok(migration::exclude_range_writers(migration));

    [volatile, parallel_unsafe] release_range_writers(migration: i64) => Ok(migration::release_range_writers(migration));
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn collection_writers(collection: i32) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    TableIterator::new(run(|| lock::holding_processes(Tag::Collection(collection))))
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn range_writers(migration: i64) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    TableIterator::new(run(|| lock::holding_processes(Tag::Migration(migration))))
}

/// The documents are validated when they are loaded, not here.
#[pg_extern(schema = "docshard_internal", immutable, strict, parallel_safe)]
fn decode_part(packed: &str) -> Vec<u8> {
    run(|| clone_parts::decode(packed))
}

extension_sql_file!(
    "../../sql/shard.sql",
    name = "shard_objects",
    requires = [update_next, update_done, current_document, pack_part, pack_share, detach_order, attach_order]
);
