//! The functions in the definitions of indexes, and the operator class of entries. `protocol::sql` declares and describes the
//! functions.

use super::engine::document;
use super::run;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::memory::call_state::compiled;
use crate::shard::index_functions::parsed;
use crate::storage::gin;
use docshard_core::query::index::{IndexKeys, unique};
use pgrx::datum::Internal;
use pgrx::pg_sys;
use pgrx::prelude::*;

type Result<T> = crate::pg::error::Result<T>;

/// Calls `work` with the parsed keys of an index.
fn with_index<T>(fcinfo: pg_sys::FunctionCallInfo, keys: &str, work: impl FnOnce(&IndexKeys) -> Result<T>) -> T {
    run(|| compiled(fcinfo, keys, parsed).and_then(|index| work(index)))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 5, requires = ["schemas"])]
fn index_key(doc: RawJsonb, keys: &str, position: i32, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    with_index(fcinfo, keys, |index| Ok(index.key(document(&doc)?, usize::try_from(position).unwrap_or(0))))
}

/// Raises the error of a document that the index cannot hold; otherwise returns an empty value. This is an index column of its
/// own, because searches compute the other columns also for documents that the index does not contain, and must not fail on them.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 5, requires = ["schemas"])]
fn check_index_key(doc: RawJsonb, keys: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    with_index(fcinfo, keys, |index| {
        index.check(document(&doc)?)?;
        Ok(Vec::new())
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn unique_keys(doc: RawJsonb, keys: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    with_index(fcinfo, keys, |index| Ok(unique::pack(&index.unique_keys(document(&doc)?)?)))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 5, requires = ["schemas"])]
fn index_types(doc: RawJsonb, keys: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    with_index(fcinfo, keys, |index| Ok(index.types(document(&doc)?)))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn restore_document(
    keys: &str,
    types: &[u8],
    columns: VariadicArray<'_, &[u8]>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    with_index(fcinfo, keys, |index| {
        Ok(RawJsonb::from_bytes(&index.restore_document(columns.iter().flatten(), types)?))
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 5, requires = ["schemas"])]
fn has_index_entries(doc: RawJsonb, keys: &str, fcinfo: pg_sys::FunctionCallInfo) -> bool {
    with_index(fcinfo, keys, |index| Ok(index.has_entries_of(document(&doc)?)))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn key_within(doc: RawJsonb, keys: &str, lo: &[u8], hi: &[u8], fcinfo: pg_sys::FunctionCallInfo) -> Option<Vec<u8>> {
    with_index(fcinfo, keys, |index| Ok(index.first_key_within(document(&doc)?, lo, hi).map(|(key, _)| key)))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn key_field_within(
    doc: RawJsonb,
    keys: &str,
    lo: &[u8],
    hi: &[u8],
    field: i32,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<Vec<u8>> {
    with_index(fcinfo, keys, |index| {
        let first = index.first_key_within(document(&doc)?, lo, hi);
        Ok(first.and_then(|(_, fields)| fields.into_iter().nth(usize::try_from(field).unwrap_or(usize::MAX))))
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 50, requires = ["schemas"])]
fn index_entries(doc: RawJsonb, keys: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<Vec<u8>> {
    with_index(fcinfo, keys, |index| index.entries(document(&doc)?))
}

/// The ranges in `lo, hi, lo, hi, …`.
fn pairs<'r>(ranges: &'r Array<'_, &[u8]>) -> Vec<(&'r [u8], &'r [u8])> {
    let flat: Vec<&'r [u8]> = ranges.iter().flatten().collect();
    flat.chunks_exact(2).map(|range| (range[0], range[1])).collect()
}

/// True if an entry is in one of the ranges, which are `lo, hi, lo, hi, …` with `hi` excluded.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 10, requires = ["schemas"])]
fn entries_meet(entries: Array<'_, &[u8]>, ranges: Array<'_, &[u8]>) -> bool {
    let mut ranges = pairs(&ranges);
    ranges.retain(|(lo, hi)| lo < hi);
    ranges.sort_unstable();
    // The ranges become disjoint and ordered: each entry is compared with one.
    ranges.dedup_by(|next, before| {
        let meets = next.0 <= before.1;
        if meets {
            before.1 = before.1.max(next.1);
        }
        meets
    });
    entries.iter().flatten().any(|entry| {
        let at = ranges.partition_point(|(lo, _)| *lo <= entry);
        at > 0 && entry < ranges[at - 1].1
    })
}

/// `extractQuery` of the operator class.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn entries_search(
    ranges: Array<'_, &[u8]>,
    count: Internal,
    _strategy: i16,
    partial: Internal,
    extra: Internal,
    _nulls: Internal,
    _mode: Internal,
) -> Internal {
    gin::search(&pairs(&ranges), gin::Search { count, partial, extra })
}

/// `comparePartial` of the operator class: 0 in the range, 1 after it.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn entries_compare(_lo: &[u8], key: &[u8], _strategy: i16, extra: Internal) -> i32 {
    i32::from(gin::is_beyond(key, extra))
}

/// `consistent` of the operator class.
#[allow(clippy::too_many_arguments, reason = "PostgreSQL defines the signature")]
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn entries_met(
    met: Internal,
    _strategy: i16,
    _ranges: Array<'_, &[u8]>,
    keys: i32,
    _extra: Internal,
    recheck: Internal,
    _query_keys: Internal,
    _nulls: Internal,
) -> bool {
    gin::is_met(met, keys, recheck)
}

extension_sql_file!(
    "../../sql/indexes.sql",
    name = "index_classes",
    requires = [entries_meet, entries_search, entries_compare, entries_met]
);
