//! How much of a collection is on this shard, chunk by chunk, and where a chunk can be cut.
//!
//! The router passes the lower bounds of the chunks that it believes to be here; a document belongs to the last bound
//! that is not above its key. A document's bytes are what its columns take as stored (compressed and out of line counts
//! as it is), plus the row's header.

use super::table;
use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::spi::param::Param;

/// So many pages are sampled: some 30,000 rows of 500 bytes.
const SAMPLED_PAGES: i64 = 2048;
const PAGE_BYTES: i64 = 8192;
/// Split points of ranges with more documents are the quantiles of about so many.
const SORTED_DOCUMENTS: i64 = 300_000;

/// A document's bytes, in SQL: columns, row header and line pointer.
const BYTES: &str =
    "(pg_catalog.pg_column_size(doc) + pg_catalog.pg_column_size(skey) + pg_catalog.pg_column_size(id) + 28)";

/// A chunk's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// documents
    pub documents: i64,
    /// their bytes
    pub bytes: i64,
}

/// The size of each chunk that has documents, by its position among `bounds`, which ascend: counted in a table of at most
/// `counted_mb` MiB, else estimated from a sample.
pub fn chunks(collection: i32, bounds: &[&[u8]], counted_mb: i32) -> Result<Vec<(usize, Size)>> {
    let table = table::name(collection);
    let Some(table_bytes) = table_bytes(&table)? else { return Ok(Vec::new()) };
    let (sample, share) = if table_bytes >> 20 < i64::from(counted_mb) {
        (String::new(), 1.0)
    } else {
        // In steps of a hundredth of a percent, so that few texts arise.
        let parts = (SAMPLED_PAGES * PAGE_BYTES * 10_000 / table_bytes).clamp(1, 10_000);
        (format!("TABLESAMPLE SYSTEM ({}.{:02})", parts / 100, parts % 100), parts as f64 / 10_000.0)
    };
    let sql = format!(
        "SELECT pg_catalog.width_bucket(skey, $1), pg_catalog.count(*), pg_catalog.sum({BYTES})::int8 \
         FROM {table} {sample} GROUP BY 1"
    );
    let scale = |n: i64| (n as f64 / share) as i64;
    let rows = spi::read(&sql, &[Param::ByteaArray(bounds)])?;
    Ok(rows
        .iter()
        .map(|row| {
            let chunk = usize::try_from(row.i32(0) - 1).unwrap_or(0);
            (chunk, Size { documents: scale(row.i64(1)), bytes: scale(row.i64(2)) })
        })
        .collect())
}

/// Pages of tables that no statistics tell of, up to which they are counted, each and all together.
const COUNTED_PAGES: (i64, i64) = (128, 1024);

/// What PostgreSQL's statistics tell of a collection's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// the collection's number
    pub collection: i32,
    /// documents; None if nothing tells: a large table that was not analysed since the server crashed
    pub documents: Option<i64>,
    /// bytes of the table on disk, without its indexes
    pub bytes: i64,
}

/// What is known of these collections' tables without reading them; nothing of those that are not here. Small tables that were
/// never analysed are counted.
pub fn estimates(collections: &[i32]) -> Result<Vec<Estimate>> {
    let rows = spi::read(
        "SELECT t.id, c.reltuples::float8::int8, c.relpages::int8, \
                pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int8, \
                pg_catalog.pg_relation_size(c.oid) + coalesce(pg_catalog.pg_relation_size(nullif(c.reltoastrelid, 0)), 0), \
                pg_catalog.pg_stat_get_live_tuples(c.oid), \
                pg_catalog.pg_stat_get_vacuum_count(c.oid) + pg_catalog.pg_stat_get_autovacuum_count(c.oid) \
                  + pg_catalog.pg_stat_get_analyze_count(c.oid) + pg_catalog.pg_stat_get_autoanalyze_count(c.oid) > 0 \
         FROM (SELECT id, pg_catalog.to_regclass('docshard_data.c' || id) AS oid FROM pg_catalog.unnest($1) AS id) AS t \
         JOIN pg_catalog.pg_class c ON c.oid = t.oid ORDER BY t.id",
        &[Param::Int4Array(collections)],
    )?;
    let mut budget = COUNTED_PAGES.1;
    let mut estimates = Vec::with_capacity(rows.len());
    for row in &rows {
        let (collection, rows_then, pages_then, pages) = (row.i32(0), row.i64(1), row.i64(2), row.i64(3));
        let (live, counted_since) = (row.i64(5), row.bool(6));
        // The counters begin at 0 after a crash, and are right again after the next VACUUM or ANALYZE.
        let documents = if pages == 0 {
            Some(0)
        } else if counted_since {
            Some(live)
        } else if rows_then > 0 && pages_then > 0 {
            Some((rows_then as f64 * pages as f64 / pages_then as f64) as i64)
        } else if pages <= COUNTED_PAGES.0.min(budget) {
            budget -= pages;
            let sql = format!("SELECT pg_catalog.count(*) FROM {}", table::name(collection));
            spi::read(&sql, &[])?.first().map(|row| row.i64(0))
        } else {
            Some(live).filter(|live| *live > 0)
        };
        estimates.push(Estimate { collection, documents, bytes: row.i64(4) });
    }
    Ok(estimates)
}

/// The exact size of `[lo, hi)`; None means no upper end. Reads every row of the range.
pub fn range(collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<Size> {
    let table = table::name(collection);
    if table_bytes(&table)?.is_none() {
        return Ok(Size::default());
    }
    let (condition, params) = condition(lo, hi);
    let sql = format!(
        "SELECT pg_catalog.count(*), coalesce(pg_catalog.sum({BYTES}), 0)::int8 FROM {table} WHERE {condition}"
    );
    let rows = spi::read(&sql, &params)?;
    Ok(rows.first().map_or(Size::default(), |row| Size { documents: row.i64(0), bytes: row.i64(1) }))
}

/// Keys that cut `[lo, hi)` into up to `parts` parts of equally many documents, ascending, all above the range's least
/// key. None at all: there are not two different keys. `documents` is an estimate of how many there are.
pub fn split_points(collection: i32, lo: &[u8], hi: Option<&[u8]>, parts: i32, documents: i64) -> Result<Vec<Vec<u8>>> {
    let table = table::name(collection);
    if table_bytes(&table)?.is_none() {
        return Ok(Vec::new());
    }
    let (condition, params) = condition(lo, hi);
    let first = spi::read(&format!("SELECT skey FROM {table} WHERE {condition} ORDER BY skey LIMIT 1"), &params)?;
    let Some(first) = first.first().map(|row| row.bytes(0)) else { return Ok(Vec::new()) };
    let sample = if documents <= SORTED_DOCUMENTS {
        String::new()
    } else {
        let parts = (SORTED_DOCUMENTS * 10_000 / documents).clamp(1, 10_000);
        format!("TABLESAMPLE SYSTEM ({}.{:02})", parts / 100, parts % 100)
    };
    let parts = parts.max(2);
    let rows = spi::read(
        &format!(
            "SELECT DISTINCT ON (part) skey FROM (SELECT skey, pg_catalog.ntile({parts}) OVER (ORDER BY skey) AS part \
             FROM {table} {sample} WHERE {condition}) AS keys ORDER BY part, skey"
        ),
        &params,
    )?;
    let mut points: Vec<_> = rows.iter().skip(1).map(|row| row.bytes(0)).filter(|key| *key > first).collect();
    points.dedup();
    if points.is_empty() {
        // One key has most of the documents: cut behind it.
        let (condition, params) = condition_above(&first, hi);
        let next = spi::read(&format!("SELECT skey FROM {table} WHERE {condition} ORDER BY skey LIMIT 1"), &params)?;
        points.extend(next.first().map(|row| row.bytes(0)));
    }
    Ok(points)
}

/// The table's bytes; None if it does not exist.
fn table_bytes(table: &str) -> Result<Option<i64>> {
    let rows = spi::read("SELECT pg_catalog.pg_relation_size(pg_catalog.to_regclass($1))", &[Param::Text(table)])?;
    Ok(rows.first().and_then(|row| row.get(0).map(|_| row.i64(0))))
}

fn condition<'a>(lo: &'a [u8], hi: Option<&'a [u8]>) -> (&'static str, Vec<Param<'a>>) {
    match hi {
        Some(hi) => ("skey >= $1 AND skey < $2", vec![Param::Bytea(lo), Param::Bytea(hi)]),
        None => ("skey >= $1", vec![Param::Bytea(lo)]),
    }
}

fn condition_above<'a>(key: &'a [u8], hi: Option<&'a [u8]>) -> (&'static str, Vec<Param<'a>>) {
    match hi {
        Some(hi) => ("skey > $1 AND skey < $2", vec![Param::Bytea(key), Param::Bytea(hi)]),
        None => ("skey > $1", vec![Param::Bytea(key)]),
    }
}
