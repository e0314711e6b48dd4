//! The parts of what is copied: of a range, in the order of keys, by a move; of a whole table, in the order of places, by a change of
//! layout, because that order reads each page once. The donor makes the division, and packs the documents of a part into one value, which
//! is transferred and staged. A separate value for each document would cost more than the document itself: a conversion to text and back,
//! a row in the staging table and its index entry.
//!
//! A packed value has, for each document in the order of the scan, the lengths of `skey`, `id` and `doc` (4 bytes each,
//! little-endian), and then their bytes. postgres_fdw transfers values as text, so the value is sent in base64:
//! PostgreSQL's own text of a bytea is 1.5 times as long and takes many times as long to write and read.
//!
//! INVARIANT: each part reaches from its key, or place, to that of the next part. So parts by keys cover the whole
//! range, also after later writes to it. Parts by places have each document that does not change after the division
//! exactly once, because such a document stays in its place as long as the table has the same file, which is checked.
//! Changed documents are logged. The last part by places ends where the table ends at its division. A document behind
//! that end was written by a transaction that had not ended when the division's snapshot was taken, because the end is
//! read later. All transactions that wrote without the capture had ended before that, so the writer of this document
//! has logged it.

use super::stored::document;
use super::table;
use crate::pg::error::{Error, Result};
use crate::pg::memory::allocator;
use crate::pg::spi;
use crate::storage::rows::TableRow;
use crate::storage::scan::{self, Bound, Columns, Place};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use docshard_core::cluster::share::Share;
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::migration::DivideRange;
use docshard_core::sql::param::Param;
use docshard_core::values::key::KeyPattern;

/// The largest size of a part, and of a packed value, in bytes, apart from its last document. A part may have grown
/// since the division, for example by later documents in free space between its own. It is then packed into several
/// values, so that donor and recipient need memory for one value at a time.
const MAX_BYTES: usize = 8 << 20;

/// The largest number of pages of a part by places. New documents may fill the free space of a part's pages before the part is read: this
/// bounds how many. A part whose pages are full reaches its limit of documents or bytes first.
const MAX_PAGES: Place = 1024;

/// Divides a range into parts of the given number of documents, or of fewer if they are large, as a part is held in memory. Returns the
/// number of parts.
pub fn divide(range: &DivideRange<'_>) -> Result<i64> {
    let &DivideRange { migration, collection, lo, hi, documents } = range;
    let mut dividing = Dividing { documents: documents.max(1), number: 0, bytes: 0 };
    let Some(lo) = lo else { return divide_table(migration, collection, dividing) };
    let mut begins: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    visit(collection, lo, hi, |row| {
        if dividing.begins_with(row) {
            begins.extend(row.bytes(0).zip(row.bytes(1)));
        }
        true
    })?;
    let (skeys, ids): (Vec<&[u8]>, Vec<&[u8]>) = begins.iter().map(|(skey, id)| (&skey[..], &id[..])).unzip();
    let inserted = spi::execute(
        "INSERT INTO docshard_data.capture_parts (migration_id, part, collection_id, skey, id, next_skey, next_id) \
         SELECT $1, pg_catalog.row_number() OVER keys, $2, skey, id, \
                pg_catalog.lead(skey, 1, $4::bytea) OVER keys, pg_catalog.lead(id) OVER keys \
         FROM (SELECT $3::bytea AS skey, NULL::bytea AS id UNION ALL \
               SELECT * FROM ROWS FROM (pg_catalog.unnest($5::bytea[]), pg_catalog.unnest($6::bytea[])) AS others) AS begins \
         WINDOW keys AS (ORDER BY skey, id NULLS FIRST)",
        &[
            Param::Int8(migration),
            Param::Int4(collection),
            Param::Bytea(lo),
            Param::OptBytea(hi),
            Param::ByteaArray(&skeys),
            Param::ByteaArray(&ids),
        ],
    )?;
    Ok(i64::try_from(inserted.processed).unwrap_or(i64::MAX))
}

/// How many documents the present part has, and their size.
struct Dividing {
    /// the largest number of documents
    documents: i64,
    number: i64,
    bytes: usize,
}

impl Dividing {
    /// Adds the row to the present part, or to a new one, if the present one is full. Returns true for a new one.
    fn begins_with(&mut self, row: &Columns<'_>) -> bool {
        self.bytes += row.size(2);
        let is_full = self.number == self.documents || (self.number > 0 && self.bytes > MAX_BYTES);
        if is_full {
            (self.number, self.bytes) = (0, row.size(2));
        }
        self.number += 1;
        is_full
    }
}

/// Divides a whole table by the places of its documents.
fn divide_table(migration: i64, collection: i32, mut dividing: Dividing) -> Result<i64> {
    let (relation, _) = table::oids(collection)?;
    // From here on the table keeps this file until the transaction ends.
    let file = scan::file(relation);
    let end = scan::end(relation);
    let mut places: Vec<Place> = vec![0];
    scan::by_place(relation, 0, end, |row| {
        let place = row.place_number();
        if limit_pages(&mut places, place) {
            (dividing.number, dividing.bytes) = (0, 0);
        }
        if dividing.begins_with(&row) {
            places.push(place);
        }
        true
    });
    limit_pages(&mut places, end);
    let inserted = spi::execute(
        "INSERT INTO docshard_data.capture_parts (migration_id, part, collection_id, skey, file, place, next_place) \
         SELECT $1, pg_catalog.row_number() OVER places, $2, '', $3, place, pg_catalog.lead(place, 1, $5) OVER places \
         FROM pg_catalog.unnest($4::int8[]) AS place WINDOW places AS (ORDER BY place)",
        &[
            Param::Int8(migration),
            Param::Int4(collection),
            Param::Int8(file),
            Param::Int8Array(&places),
            Param::Int8(end),
        ],
    )?;
    Ok(i64::try_from(inserted.processed).unwrap_or(i64::MAX))
}

/// Adds bounds of parts below `before`, so that no part has more than [`MAX_PAGES`] pages. Returns true if it adds any.
fn limit_pages(places: &mut Vec<Place>, before: Place) -> bool {
    let limit = |place: Place| scan::beginning(scan::block(place) + MAX_PAGES);
    let count = places.len();
    while let Some(next) = places.last().map(|last| limit(*last)).filter(|next| *next < before) {
        places.push(next);
    }
    places.len() > count
}

/// Calls `each` with the rows of a range that the active snapshot shows, in the order of their keys, until `each` returns false. Returns
/// false if `each` did.
pub(super) fn visit(
    collection: i32,
    lo: &[u8],
    hi: Option<&[u8]>,
    mut each: impl FnMut(&Columns<'_>) -> bool,
) -> Result<bool> {
    let (relation, index) = table::oids(collection)?;
    let (mut key, mut stopped) = (Vec::new(), false);
    scan::by_key(relation, index, &[Bound::From(lo)], |row| {
        key.clear();
        row.append(0, &mut key);
        if hi.is_some_and(|hi| key.as_slice() >= hi) {
            return false;
        }
        stopped = !each(&row);
        !stopped
    });
    Ok(!stopped)
}

/// The documents that a recipient gets when a collection is copied into another layout: those whose new shard key is in
/// its share.
pub struct Wanted {
    pub key: KeyPattern,
    pub share: Share,
}

impl Wanted {
    /// True if the recipient gets the document. Also true for a document that cannot have the shard key, so that the recipient reports it.
    fn includes(&self, doc: &[u8]) -> bool {
        document(doc).and_then(|doc| self.key.key_of(doc)).map_or(true, |key| self.share.contains(&key))
    }
}

/// Documents that are packed into one value.
struct Packing {
    documents: i64,
    bytes: Vec<u8>,
}

impl Packing {
    fn new() -> Self {
        allocator::keep_large_blocks();
        Self { documents: 0, bytes: Vec::new() }
    }

    /// Packs the row if `takes` returns true for its key, `_id` and document.
    fn add(&mut self, row: &Columns<'_>, takes: impl FnOnce(&[u8], &[u8], &[u8]) -> bool) {
        let bytes = &mut self.bytes;
        let start = bytes.len();
        bytes.extend([0; 12]);
        let mut ends = [bytes.len(); 4];
        for column in 0..3 {
            row.append(column, bytes);
            ends[column + 1] = bytes.len();
            let length = u32::try_from(ends[column + 1] - ends[column]).unwrap_or(u32::MAX).to_le_bytes();
            bytes[start + 4 * column..][..4].copy_from_slice(&length);
        }
        let part = |column: usize| &bytes[ends[column]..ends[column + 1]];
        if takes(part(0), part(1), part(2)) {
            self.documents += 1;
        } else {
            bytes.truncate(start);
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= MAX_BYTES
    }

    /// The number of documents, and the value as text; None without documents.
    fn encoded(self) -> Option<(i64, String)> {
        (self.documents > 0).then(|| (self.documents, STANDARD_NO_PAD.encode(self.bytes)))
    }
}

/// Packs the documents of a part of a range, by the active snapshot. Returns one or several packed values, each with its number of
/// documents. The part reaches from its key to the next part's key: without an `id` it starts at the shard key's first document; without a
/// next key it ends with the table. Each value is packed when it is asked for, so only one is in memory: the caller keeps the snapshot
/// active.
pub fn pack(
    collection: i32,
    (skey, id): (&[u8], Option<&[u8]>),
    (next_skey, next_id): (Option<&[u8]>, Option<&[u8]>),
) -> Result<impl Iterator<Item = (i64, String)> + use<>> {
    let (relation, index) = table::oids(collection)?;
    let (next_skey, next_id) = (next_skey.map(<[u8]>::to_vec), next_id.map(<[u8]>::to_vec));
    let is_here = move |skey: &[u8], id: &[u8]| {
        next_skey.as_deref().is_none_or(|next| match skey.cmp(next) {
            std::cmp::Ordering::Equal => next_id.as_deref().is_some_and(|next| id < next),
            order => order.is_lt(),
        })
    };
    let mut rest = Some((skey.to_vec(), id.map(<[u8]>::to_vec)));
    Ok(std::iter::from_fn(move || {
        let (skey, id) = rest.take()?;
        let mut packing = Packing::new();
        let mut pack_one = |row: Columns<'_>| {
            let mut goes_on = true;
            packing.add(&row, |skey, id, _| {
                goes_on = is_here(skey, id);
                goes_on
            });
            if goes_on && packing.is_full() {
                // The least key above this one is the same key with a zero byte appended.
                let next = |id: Vec<u8>| [id, vec![0]].concat();
                rest = row.bytes(0).map(|skey| (skey, row.bytes(1).map(next)));
                goes_on = false;
            }
            goes_on
        };
        let goes_on = match &id {
            Some(id) => scan::by_key(relation, index, &[Bound::Is(&skey), Bound::From(id)], &mut pack_one),
            None => true,
        };
        if goes_on {
            let from = if id.is_some() { Bound::Above(&skey) } else { Bound::From(&skey) };
            scan::by_key(relation, index, &[from], &mut pack_one);
        }
        packing.encoded()
    }))
}

/// Like [`pack`], of those documents of a part of a table that a recipient gets. The part reaches from its place to the next part's place.
///
/// # Errors
/// `ConflictingOperationInProgress` if the table no longer has this file, so that the documents may have other places.
pub fn pack_share(
    collection: i32,
    file: i64,
    from: Place,
    before: Place,
    wanted: Wanted,
) -> Result<impl Iterator<Item = (i64, String)>> {
    let (relation, _) = table::oids(collection)?;
    // From here on the table keeps this file until the transaction ends.
    if scan::file(relation) != file {
        bail!(
            Kind::ConflictingOperationInProgress,
            "the table of collection {collection} was written anew, as by VACUUM FULL, while its documents were copied"
        );
    }
    let mut rest = Some(from);
    Ok(std::iter::from_fn(move || {
        let from = rest.take()?;
        let mut packing = Packing::new();
        scan::by_place(relation, from, before, |row| {
            packing.add(&row, |_, _, doc| wanted.includes(doc));
            rest = packing.is_full().then(|| row.place_number() + 1);
            rest.is_none()
        });
        packing.encoded()
    }))
}

/// Decodes a packed value that was transferred. Its documents are checked when they are loaded: see [`super::recipient_load`].
pub fn decode(text: &str) -> Result<Vec<u8>> {
    allocator::keep_large_blocks();
    let packed = STANDARD_NO_PAD.decode(text).map_err(|_| truncated())?;
    unpack(&packed)?;
    Ok(packed)
}

fn truncated() -> Error {
    error!(Kind::BadValue, "malformed packed documents: truncated")
}

/// Returns the rows in a packed value.
///
/// # Errors
/// `BadValue` for a malformed value.
pub fn unpack(packed: &[u8]) -> Result<Vec<TableRow<'_>>> {
    let mut rows = Vec::new();
    let mut rest = packed;
    while !rest.is_empty() {
        let (row, after) = first(rest).ok_or_else(truncated)?;
        rows.push(row);
        rest = after;
    }
    Ok(rows)
}

fn first(bytes: &[u8]) -> Option<(TableRow<'_>, &[u8])> {
    let (lengths, rest) = bytes.split_at_checked(12)?;
    let length =
        |column: usize| lengths[4 * column..][..4].try_into().map(u32::from_le_bytes).map_or(0, |n| n as usize);
    let (skey, rest) = rest.split_at_checked(length(0))?;
    let (id, rest) = rest.split_at_checked(length(1))?;
    let (doc, rest) = rest.split_at_checked(length(2))?;
    Some((TableRow { skey, id, doc }, rest))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn a_truncated_value_is_refused() {
        let mut packed = Vec::new();
        for (skey, id, doc) in [("a", "1", "document"), ("", "22", "")] {
            for part in [skey, id, doc] {
                packed.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
            }
            packed.extend([skey, id, doc].concat().bytes());
        }
        let rows = unpack(&packed).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].skey, rows[0].id, rows[0].doc), (&b"a"[..], &b"1"[..], &b"document"[..]));
        assert_eq!((rows[1].skey, rows[1].id, rows[1].doc), (&b""[..], &b"22"[..], &b""[..]));
        let whole = |length: usize| [0, 22, 36].contains(&length);
        for length in 0..packed.len() {
            assert_eq!(unpack(&packed[..length]).is_ok(), whole(length), "{length}");
        }
    }
}
