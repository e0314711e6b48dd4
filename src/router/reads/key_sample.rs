//! Reads a sample of a collection's documents, for advice on shard keys.
//!
//! Of large tables, shards return whole pages, in the order of storage. The sample keeps a bounded number of documents: whenever
//! there are more, every second one is dropped. The keys of all documents that were read can be counted nevertheless.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::memory::stages::StageMemory;
use crate::router::dispatch::reading;
use crate::router::fresh_map::with_fresh_map;
use docshard_core::advice::characteristics::{Counted, Counter};
use docshard_core::advice::sample::{Sample, Sampled};
use docshard_core::query::stage::Memory;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::statement::{DOCUMENT, TWO_NUMBERS};
use docshard_core::routing::protocol::sql;
use docshard_core::values::document::raw;
use docshard_core::values::key::{KeyPattern, KeyRanges};

/// A sample keeps at most this many documents, and at most this many bytes of them.
const MAX_KEPT: usize = 20_000;
const MAX_BYTES: usize = 64 << 20;
/// If the tables together have at most this many pages, documents are chosen one by one: the documents of a few pages would not be
/// representative.
const FEW_PAGES: i64 = 500;

/// The smallest part of the documents that is read. PostgreSQL takes it as a `real`, which cannot be as small as a `double`.
const LEAST_PART: f64 = 1e-8;

/// How many documents are read.
#[derive(Clone, Copy, Debug)]
pub enum Share {
    /// about this many, or all
    Documents(u64),
    /// this fraction of the documents, from 0 to 1
    Part(f64),
}

/// A sample of documents, and the counted keys.
#[derive(Debug)]
pub struct Read {
    pub sample: Sample,
    /// all keys that were read, not only those of the sample; empty without a pattern
    pub counted: Counted,
}

/// Reads a sample of a collection's documents, at least one if there are any. With a pattern, also counts the keys of all documents that
/// are read.
///
/// # Errors
/// `NamespaceNotFound`, `Unauthorized`; `ShardKeyNotFound` for a document that cannot have the key.
pub fn read(namespace: &str, share: Share, pattern: Option<&KeyPattern>) -> Result<Read> {
    with_fresh_map(namespace, |collection| {
        let collection = collection.ok_or_else(|| cache::not_found(namespace))?;
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let (pages, total) = size(&collection, &destinations)?;
        let mut part = match share {
            Share::Part(part) => part.max(LEAST_PART),
            Share::Documents(wanted) => wanted as f64 / total.max(1) as f64,
        };
        loop {
            let read = read_part(&collection, &destinations, (part, pages, total), pattern)?;
            if part >= 1.0 || !read.sample.is_empty() {
                return Ok(read);
            }
            // A small part may have no document by chance.
            part *= 10.0;
        }
    })
}

/// The total numbers of pages and of documents. The documents of a large table are estimated from PostgreSQL's statistics.
fn size(collection: &Collection, destinations: &[Destination]) -> Result<(i64, i64)> {
    let (conditions, table) = (Conditions::new(collection), collection.table());
    let sql = format!(
        "SELECT coalesce({pages}, 0), coalesce(CASE WHEN {pages} > {FEW_PAGES} THEN {estimated} END, (SELECT count(*) FROM {table})) \
         FROM pg_catalog.pg_class c WHERE c.oid = '{table}'::regclass AND {check}",
        pages = sql::table_pages("c"),
        estimated = sql::estimated_documents("c"),
        check = conditions.sql()
    );
    let statement = conditions.into_statement(sql, TWO_NUMBERS);
    let (mut pages, mut documents) = (0_i64, 0_i64);
    for mut stream in reading::read(collection, destinations, &statement)? {
        for row in stream.rows()? {
            pages = pages.saturating_add(row.i64(0).max(0));
            documents = documents.saturating_add(row.i64(1).max(0));
        }
    }
    Ok((pages, documents))
}

fn read_part(
    collection: &Collection,
    destinations: &[Destination],
    (part, pages, total): (f64, i64, i64),
    pattern: Option<&KeyPattern>,
) -> Result<Read> {
    let conditions = Conditions::new(collection);
    let way = if pages <= FEW_PAGES { "BERNOULLI" } else { "SYSTEM" };
    let sample = if part < 1.0 { format!(" TABLESAMPLE {way} ({})", 100.0 * part) } else { String::new() };
    let sql = format!("SELECT {} FROM {} t{sample} WHERE {}", sql::pack("t.doc"), collection.table(), conditions.sql());
    let statement = conditions.into_statement(sql, DOCUMENT);
    let mut sorter = StageMemory::new(true).sorter(None, false)?;
    let mut kept = Kept::default();
    let (mut documents, mut bytes) = (0_u64, 0_u64);
    for mut stream in reading::read(collection, destinations, &statement)? {
        let mut position = 0_u64;
        while let Some(row) = stream.next_row()? {
            let Some(found) = row.document(0)? else { continue };
            if let (Some(pattern), Some(document)) = (pattern, raw::document(found)) {
                sorter.add(&pattern.key_of(document)?, &[])?;
            }
            bytes += found.len() as u64;
            position += 1;
            kept.add(position, found);
        }
        kept.end_shard(position);
        documents += position;
    }
    sorter.sort()?;
    let mut counter = Counter::default();
    while sorter.advance()? {
        counter.add(sorter.key());
    }
    let total = if part < 1.0 { total.unsigned_abs().max(documents) } else { documents };
    let average = bytes as f64 / documents.max(1) as f64;
    let sample = Sample::new(kept.documents, total, (average * total as f64) as u64);
    Ok(Read { sample, counted: counter.finish() })
}

/// The documents of a sample while it is read. Until [`Kept::end_shard`], the place of a document of the present shard is its position
/// there, from 1.
#[derive(Default)]
struct Kept {
    documents: Vec<Sampled>,
    bytes: usize,
    /// one document in 2^`halvings` is kept
    halvings: u32,
    seen: u64,
}

impl Kept {
    fn add(&mut self, position: u64, document: &[u8]) {
        let is_next = self.seen.is_multiple_of(1_u64 << self.halvings.min(63));
        self.seen += 1;
        if !is_next {
            return;
        }
        self.bytes += document.len();
        self.documents.push(Sampled { bytes: document.to_vec(), place: position as f64 });
        if self.documents.len() > MAX_KEPT || self.bytes > MAX_BYTES {
            let mut keep = false;
            self.documents.retain(|_| {
                keep = !keep;
                keep
            });
            self.bytes = self.documents.iter().map(|document| document.bytes.len()).sum();
            self.halvings += 1;
        }
    }

    /// Turns the positions in the present shard's table into places between 0 and 1.
    fn end_shard(&mut self, documents: u64) {
        // The documents of earlier shards already have places below 1, and positions begin with 1. So a place of at least 1 is a
        // position in this shard's table.
        let scale = documents as f64 + 1.0;
        let of_shard = self.documents.iter_mut().rev().take_while(|document| document.place >= 1.0);
        of_shard.for_each(|document| document.place /= scale);
    }
}
