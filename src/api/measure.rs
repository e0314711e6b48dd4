//! Functions that measure a shard's documents. `protocol::measure` declares and describes them.

use super::given;
use crate::pg::error::Raise as _;
use crate::shard::{accesses, measure};
use docshard_core::routing::protocol::measure::FindSplitPoints;
use pgrx::prelude::*;

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn measure_chunks(
    collection: i32,
    bounds: pgrx::Array<'_, &[u8]>,
    counted_mb: i32,
) -> TableIterator<'static, (name!(chunk, i32), name!(documents, i64), name!(bytes, i64))> {
    let sizes = measure::chunks(collection, &bounds.iter().flatten().collect::<Vec<_>>(), counted_mb)
        .unwrap_or_else(|e| e.raise());
    TableIterator::new(sizes.into_iter().map(|size| (size.chunk, size.documents, size.bytes)))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn estimate_sizes(
    collections: Vec<i32>,
) -> TableIterator<'static, (name!(collection, i32), name!(documents, Option<i64>), name!(bytes, i64))> {
    let found = measure::estimates(&collections).unwrap_or_else(|e| e.raise());
    TableIterator::new(found.into_iter().map(|one| (one.collection, one.documents, one.bytes)))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, strict, requires = ["catalog"])]
fn storage_space(
    collection: i32,
) -> TableIterator<'static, (name!(documents, i64), name!(stored, i64), name!(indexes, i64), name!(free, i64))> {
    let space = measure::space(collection).unwrap_or_else(|e| e.raise());
    TableIterator::once((space.documents, space.stored, space.indexes, space.free))
}

#[allow(clippy::type_complexity, reason = "the columns of the SQL function")]
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
fn sampled_accesses(
    most: i32,
) -> TableIterator<
    'static,
    (name!(collection, i32), name!(key, Option<Vec<u8>>), name!(reads, i64), name!(writes, i64), name!(samples, i64)),
> {
    let sampled = accesses::sampled(most).unwrap_or_else(|e| e.raise());
    TableIterator::new(sampled.into_iter().map(|one| (one.collection, one.key, one.reads, one.writes, one.samples)))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn measure_range(
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
) -> TableIterator<'static, (name!(documents, i64), name!(bytes, i64))> {
    given!(collection, lo);
    let size = measure::range(collection, lo, hi).unwrap_or_else(|e| e.raise());
    TableIterator::once((size.documents, size.bytes))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn split_points(
    collection: Option<i32>,
    lo: Option<&[u8]>,
    hi: Option<&[u8]>,
    parts: Option<i32>,
    documents: Option<i64>,
) -> SetOfIterator<'static, Vec<u8>> {
    given!(collection, lo, parts, documents);
    let call = FindSplitPoints { collection, lo, hi, parts, documents };
    SetOfIterator::new(measure::split_points(&call).unwrap_or_else(|e| e.raise()))
}
