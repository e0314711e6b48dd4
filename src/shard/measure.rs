//! Measures the chunks of a collection on this shard, and finds keys at which a chunk can be split.
//!
//! The router passes the lower bounds of the chunks on this shard; a document belongs to the chunk with the greatest bound that is not
//! above the document's key. A document's bytes are the size of its columns as stored (compressed, or out of line), plus the row's header.

use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::server::disk;
use crate::pg::spi::{self, SpiRow};
use docshard_core::routing::names;
use docshard_core::routing::protocol::measure::{ChunkSize, Estimate, FindSplitPoints, RangeSize, StorageSpace};
use docshard_core::routing::protocol::shard_tables::key_range;
use docshard_core::routing::protocol::sql;
use docshard_core::sql::param::Param;

/// The number of pages in a sample: about 30,000 rows of 500 bytes.
const SAMPLED_PAGES: i64 = 2048;
const PAGE_BYTES: i64 = 8192;
/// Split points of ranges with more documents are taken from a sample of about this number.
const SORTED_DOCUMENTS: i64 = 300_000;

/// SQL for the bytes of a document: columns, row header and line pointer.
const BYTES: &str =
    "(pg_catalog.pg_column_size(doc) + pg_catalog.pg_column_size(skey) + pg_catalog.pg_column_size(id) + 28)";

/// The bytes of a row beside its columns, as in [`BYTES`].
const HEADER: i64 = 28;

/// Returns the size of each chunk that has documents, with its position in `bounds`, which are ascending. In a table of less than
/// `counted_mb` MiB the documents are counted; otherwise their number is estimated from a sample.
pub fn chunks(collection: i32, bounds: &[&[u8]], counted_mb: i32) -> Result<Vec<ChunkSize>> {
    let table = names::table(collection);
    let Some(table_bytes) = table_bytes(&table)? else { return Ok(Vec::new()) };
    let (sample, share) = if table_bytes >> 20 < i64::from(counted_mb) {
        (String::new(), 1.0)
    } else {
        sample(SAMPLED_PAGES * PAGE_BYTES, table_bytes)
    };
    let sql = format!(
        "SELECT pg_catalog.width_bucket(skey, $1), pg_catalog.count(*), pg_catalog.sum({BYTES})::int8 \
         FROM {table} {sample} GROUP BY 1"
    );
    let scale = |n: i64| (n as f64 / share) as i64;
    let rows = spi::read(&sql, &[Param::ByteaArray(bounds)])?;
    let size = |row: &SpiRow| ChunkSize {
        chunk: (row.i32(0) - 1).max(0),
        documents: scale(row.i64(1)),
        bytes: scale(row.i64(2)),
    };
    Ok(rows.iter().map(size).collect())
}

/// Returns the clause that samples `wanted` of `all` (bytes or documents), and the sampled share. The share is rounded to a hundredth of a
/// percent, so that there are few different statements.
fn sample(wanted: i64, all: i64) -> (String, f64) {
    let parts = (wanted * 10_000 / all).clamp(1, 10_000);
    (format!("TABLESAMPLE SYSTEM ({}.{:02})", parts / 100, parts % 100), parts as f64 / 10_000.0)
}

/// Limits for counting the documents of tables without statistics: the largest number of pages of a counted table, and
/// of all counted tables together.
const COUNTED_PAGES: (i64, i64) = (128, 1024);

/// The largest row of a TOAST table, in bytes: a part of a document that is stored out of line.
const TOAST_ROW: i64 = 2032;

/// Returns the number of documents of these collections by PostgreSQL's statistics, and their bytes: the number times the average width of
/// a row, plus what is stored out of line. Free space inside of the tables does not count, because it remains after moves. Missing tables
/// are omitted; one that was dropped meanwhile has no documents. The documents of small tables that were never analysed are counted.
pub fn estimates(collections: &[i32]) -> Result<Vec<Estimate>> {
    let rows = spi::read(
        &format!(
            "SELECT t.id, {estimated}, {pages}, coalesce(pg_catalog.pg_relation_size(c.oid), 0), \
                    pg_catalog.pg_stat_get_live_tuples(c.oid), \
                    pg_catalog.pg_stat_get_vacuum_count(c.oid) + pg_catalog.pg_stat_get_autovacuum_count(c.oid) \
                      + pg_catalog.pg_stat_get_analyze_count(c.oid) + pg_catalog.pg_stat_get_autoanalyze_count(c.oid) > 0, \
                    w.width, coalesce(least(pg_catalog.pg_relation_size(x.oid), \
                      pg_catalog.pg_stat_get_live_tuples(x.oid) * {TOAST_ROW}), 0) \
             FROM (SELECT id, pg_catalog.to_regclass('docshard_data.c' || id) AS oid FROM pg_catalog.unnest($1) AS id) AS t \
             JOIN pg_catalog.pg_class c ON c.oid = t.oid LEFT JOIN pg_catalog.pg_class x ON x.oid = c.reltoastrelid \
             LEFT JOIN LATERAL (SELECT pg_catalog.sum(s.avg_width) + {HEADER} AS width FROM pg_catalog.pg_stats s \
               WHERE s.schemaname = 'docshard_data' AND s.tablename = c.relname AND s.attname IN ('doc', 'skey', 'id') \
               HAVING pg_catalog.count(*) = 3) AS w ON true ORDER BY t.id",
            estimated = sql::estimated_documents("c"),
            pages = sql::table_pages("c"),
        ),
        &[Param::Int4Array(collections)],
    )?;
    let mut budget = COUNTED_PAGES.1;
    let mut estimates = Vec::with_capacity(rows.len());
    for row in &rows {
        let (collection, estimated, pages) = (row.i32(0), row.get(1).map(|_| row.i64(1)), row.i64(2));
        let (table_bytes, live, counted_since) = (row.i64(3), row.i64(4), row.bool(5));
        let (width, out_of_line) = (row.get(6).map(|_| row.i64(6)), row.i64(7));
        // After a crash the counters start at 0, and become correct with the next VACUUM or ANALYZE.
        let documents = if pages == 0 {
            Some(0)
        } else if counted_since {
            Some(live)
        } else {
            estimated.filter(|documents| *documents > 0)
        };
        let (documents, bytes) = match (documents, width) {
            // The table may have been dropped.
            _ if pages == 0 => (Some(0), out_of_line),
            (Some(documents), Some(width)) => {
                (Some(documents), documents.saturating_mul(width).saturating_add(out_of_line))
            }
            _ if pages <= COUNTED_PAGES.0.min(budget) => {
                budget -= pages;
                let table = names::table(collection);
                let sql =
                    format!("SELECT pg_catalog.count(*), coalesce(pg_catalog.sum({BYTES}), 0)::int8 FROM {table}");
                let counted = spi::read(&sql, &[])?;
                (Some(counted[0].i64(0)), counted[0].i64(1))
            }
            (documents, _) => (documents.or(Some(live).filter(|live| *live > 0)), table_bytes + out_of_line),
        };
        estimates.push(Estimate { collection, documents, bytes });
    }
    Ok(estimates)
}

/// Returns the size of a collection, and the space that is free where its tables are.
pub fn space(collection: i32) -> Result<StorageSpace> {
    let documents = estimates(&[collection])?.first().map_or(0, |found| found.bytes);
    let sql = "SELECT pg_catalog.pg_table_size(pg_catalog.to_regclass($1)), pg_catalog.pg_indexes_size(pg_catalog.to_regclass($1))";
    let rows = spi::read(sql, &[Param::Text(&names::table(collection))])?;
    let size = |column| rows.first().filter(|row| row.get(column).is_some()).map_or(0, |row| row.i64(column));
    let free = if fault::is_off("free_space") { 0 } else { disk::free_bytes()? };
    Ok(StorageSpace { documents, stored: size(0), indexes: size(1), free })
}

/// Returns the exact size of `[lo, hi)`; None means no upper end. Reads every row of the range.
pub fn range(collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<RangeSize> {
    let table = names::table(collection);
    if table_bytes(&table)?.is_none() {
        return Ok(RangeSize { documents: 0, bytes: 0 });
    }
    let (condition, params) = key_range(lo, hi);
    let sql = format!(
        "SELECT pg_catalog.count(*), coalesce(pg_catalog.sum({BYTES}), 0)::int8 FROM {table} WHERE {condition}"
    );
    let rows = spi::read(&sql, &params)?;
    Ok(RangeSize { documents: rows[0].i64(0), bytes: rows[0].i64(1) })
}

/// Returns keys that divide a range into at most `parts` parts with about equal numbers of documents. They are ascending and above the
/// range's least key; there are none if all documents have one key. Uses a sample if there are more than [`SORTED_DOCUMENTS`] documents.
pub fn split_points(call: &FindSplitPoints<'_>) -> Result<Vec<Vec<u8>>> {
    let &FindSplitPoints { collection, lo, hi, parts, documents } = call;
    let table = names::table(collection);
    if table_bytes(&table)?.is_none() {
        return Ok(Vec::new());
    }
    let (condition, params) = key_range(lo, hi);
    let first = spi::read(&format!("SELECT skey FROM {table} WHERE {condition} ORDER BY skey LIMIT 1"), &params)?;
    let Some(first) = first.first().map(|row| row.bytes(0)) else { return Ok(Vec::new()) };
    let sample = if documents <= SORTED_DOCUMENTS { String::new() } else { sample(SORTED_DOCUMENTS, documents).0 };
    let parts = parts.max(2);
    let rows = spi::read(
        &format!(
            "SELECT DISTINCT ON (part) skey FROM (SELECT skey, ({parts} * pg_catalog.row_number() OVER (ORDER BY skey) - 1) \
               / pg_catalog.count(*) OVER () AS part FROM {table} {sample} WHERE {condition}) AS keys ORDER BY part, skey"
        ),
        &params,
    )?;
    let mut points: Vec<_> = rows.iter().skip(1).map(|row| row.bytes(0)).filter(|key| *key > first).collect();
    points.dedup();
    if points.is_empty() {
        // Most of the documents have the first key: split at the next key after it.
        let above = [&first[..], &[0]].concat();
        let (condition, params) = key_range(&above, hi);
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
