//! The parts of a range that a move copies. The donor divides the range, and packs the documents of a part into one value, which
//! is transferred and staged. A separate value for each document would cost more than the document itself: a conversion to text
//! and back, a row in the staging table and its index entry.
//!
//! A packed value has, for each document in the order of the keys, the lengths of `skey`, `id` and `doc` (4 bytes each, little-endian),
//! and then their bytes. postgres_fdw transfers values as text, so it is sent in base64: PostgreSQL's own text of a bytea is 1.5 times as
//! long and takes many times as long to write and read.
//!
//! INVARIANT: each part reaches from its key to the key of the next part, so the parts cover the whole range, also after later
//! writes to it.

use super::stored::document;
use super::table;
use crate::pg::error::{Error, Result};
use crate::pg::memory::allocator;
use crate::pg::spi;
use crate::storage::rows::TableRow;
use crate::storage::scan::{self, Bound, Columns};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use docshard_core::cluster::share::Share;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::migration::DivideRange;
use docshard_core::sql::param::Param;
use docshard_core::values::key::KeyPattern;

/// The largest size of a part, in bytes, apart from its last document. A part that has grown since the range was divided is packed into
/// several values.
const MAX_BYTES: usize = 8 << 20;

/// Divides a range into parts of the given number of documents, or of fewer if they are large, as a part is held in memory. Returns the
/// number of parts.
pub fn divide(range: &DivideRange<'_>) -> Result<i64> {
    let &DivideRange { migration, collection, lo, hi, documents } = range;
    let mut begins: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let (mut number, mut bytes) = (0, 0);
    visit(collection, lo, hi, |row| {
        bytes += row.size(2);
        if number == documents.max(1) || (number > 0 && bytes > MAX_BYTES) {
            begins.extend(row.bytes(0).zip(row.bytes(1)));
            (number, bytes) = (0, row.size(2));
        }
        number += 1;
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

/// The documents that a recipient gets when a collection is copied into another layout: those whose shard key there is in its share.
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

/// Packs the documents of a part, by the active snapshot: all, or those that are `wanted`. Returns one or several packed values, each with
/// its number of documents. The part reaches from its key to the next part's key: without an `id` it starts at the shard key's first
/// document; without a next key it ends with the table.
pub fn pack(
    collection: i32,
    (skey, id): (&[u8], Option<&[u8]>),
    (next_skey, next_id): (Option<&[u8]>, Option<&[u8]>),
    wanted: Option<&Wanted>,
) -> Result<Vec<(i64, String)>> {
    allocator::keep_large_blocks();
    let (relation, index) = table::oids(collection)?;
    let mut packed: Vec<(i64, Vec<u8>)> = vec![(0, Vec::new())];
    let mut pack_one = |columns: Columns<'_>| {
        let (documents, bytes) = packed.last_mut().expect("there is one");
        let start = bytes.len();
        bytes.extend([0; 12]);
        let mut end = bytes.len();
        for column in 0..3 {
            columns.append(column, bytes);
            let length = u32::try_from(bytes.len() - end).unwrap_or(u32::MAX).to_le_bytes();
            bytes[start + 4 * column..][..4].copy_from_slice(&length);
            end = bytes.len();
        }
        let length =
            |column: usize| u32::from_le_bytes(bytes[start + 4 * column..][..4].try_into().expect("4 bytes")) as usize;
        let (here_skey, rest) = bytes[start + 12..].split_at(length(0));
        let is_next = next_skey.is_some_and(|next| match here_skey.cmp(next) {
            std::cmp::Ordering::Equal => next_id.is_none_or(|next| &rest[..length(1)] >= next),
            order => order.is_gt(),
        });
        if is_next {
            bytes.truncate(start);
            return false;
        }
        let doc = length(0) + length(1);
        if wanted.is_some_and(|wanted| !wanted.includes(&rest[doc - here_skey.len()..])) {
            bytes.truncate(start);
            return true;
        }
        *documents += 1;
        if bytes.len() >= MAX_BYTES {
            packed.push((0, Vec::new()));
        }
        true
    };
    let rest = match id {
        Some(id) => scan::by_key(relation, index, &[Bound::Is(skey), Bound::From(id)], &mut pack_one),
        None => true,
    };
    if rest {
        let from = if id.is_some() { Bound::Above(skey) } else { Bound::From(skey) };
        scan::by_key(relation, index, &[from], &mut pack_one);
    }
    packed.retain(|(documents, _)| *documents > 0);
    Ok(packed.into_iter().map(|(documents, bytes)| (documents, STANDARD_NO_PAD.encode(bytes))).collect())
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
