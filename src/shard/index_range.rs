//! Fast path for small result sets: scans a range of one index directly, as planner and executor take longer than such a scan,
//! and returns all documents as one packed value, which is cheaper than a row for each. [`find`] lists the cases in which it
//! declines.
//!
//! The value has, in the requested order, the projection of each document with its sort key
//! ([`docshard_core::values::document::packed`]).

use super::placement::{Placement, check_read};
use super::stored::document;
use super::table;
use crate::pg::error::Result;
use crate::pg::transaction::snapshot;
use crate::storage::scan::{self, Bound, Columns, Direction};
use crate::storage::{gin, lock};
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::query::specification;
use docshard_core::routing::protocol::documents::{FindByIndexRange, IndexRangeSearch, SHARD_KEY};
use docshard_core::values::document::packed::Packer;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BinaryHeap;

/// The largest number of documents that are read to find the first ones, if not all are returned.
const MAX_SORTED: usize = 1_000;
/// The largest number of bytes of documents that are read.
const MAX_BYTES: usize = 4 << 20;

/// Checks the version in the statement's snapshot, and returns the first documents that this snapshot shows, packed.
/// None if the fast path declines, so that the executor must find the documents: if the index is missing or unusable,
/// or some documents are not in its b-tree; if there are too many documents or bytes; if row-level security applies;
/// and under SERIALIZABLE, which requires predicate locks.
///
/// # Errors
/// `STALE`; those of the parsers; `NamespaceNotFound` if the shard has no table; 42501 without the privilege to read it.
pub fn find(call: &FindByIndexRange<'_>) -> Result<Option<Vec<u8>>> {
    let &FindByIndexRange { collection, token, version, ref lo, ref hi, ref search } = call;
    let search = IndexRangeSearch::parse(search)?;
    check_read(collection, Placement { token, version })?;
    if snapshot::is_serializable() {
        return Ok(None);
    }
    // From here on a drop of the table or of an index waits; the lookups below detect an earlier one.
    lock::keep_relation(table::oid(collection)?);
    let Ok((table, primary_key)) = table::oids(collection) else { return Ok(None) };
    let index = match search.index {
        SHARD_KEY => Some(primary_key),
        index => table::index_oids(index).filter(|(_, entries)| gin::is_empty(*entries)).map(|(btree, _)| btree),
    };
    let Some(index) = index else { return Ok(None) };
    let sort =
        search.sort.as_deref().map(|text| -> Result<Sort> { Sort::read(&specification::parse(text)?) }).transpose()?;
    let projection = search
        .projection
        .as_deref()
        .map(|text| -> Result<Projection> { Projection::read(&specification::parse(text)?) })
        .transpose()?;
    let (most_seen, most) = match search.all {
        true => (search.most, usize::MAX),
        false => (MAX_SORTED, search.most),
    };
    let mut first = FirstDocuments::new(most, search.in_order, search.keyed);
    let (mut seen, mut bytes) = (0, 0);
    let (is_small, failed) = (Cell::new(true), Cell::new(None));
    let mut take = |row: &Columns<'_>, doc: &[u8]| -> Result<bool> {
        let key = match &sort {
            Some(sort) => Cow::from(sort.key_of(document(doc)?)?),
            None if search.keyed && search.index == SHARD_KEY => Cow::from(row.slice(table::SKEY)),
            None => Cow::default(),
        };
        first.take(&key, || match &projection {
            None => Ok(Cow::from(doc)),
            Some(projection) => Ok(Cow::from(projection.apply(document(doc)?)?)),
        })
    };
    let keys: Vec<_> = lo.iter().zip(hi).map(|(lo, hi)| (&**lo, &**hi)).collect();
    let direction = if search.backward { Direction::Backward } else { Direction::Forward };
    let visited = scan::user_in_order(table, index, &bounds(&keys), direction, |row| {
        let doc = row.slice(table::DOC);
        seen += 1;
        bytes += doc.len();
        if bytes > MAX_BYTES || seen > most_seen {
            is_small.set(false);
            return false;
        }
        take(&row, doc).unwrap_or_else(|error| {
            failed.set(Some(error));
            false
        })
    });
    if let Some(error) = failed.take() {
        return Err(error);
    }
    Ok(visited.filter(|_| is_small.get()).and_then(|_| first.packed()))
}

fn bounds<'a>(keys: &[(&'a [u8], &'a [u8])]) -> Vec<(usize, Bound<'a>)> {
    let of_column = |(column, &(lo, hi)): (usize, &(&'a [u8], &'a [u8]))| {
        let both = match lo == hi {
            true => [Some(Bound::Is(lo)), None],
            false => {
                [Some(Bound::From(lo)).filter(|_| !lo.is_empty()), Some(Bound::Below(hi)).filter(|_| !hi.is_empty())]
            }
        };
        both.into_iter().flatten().map(move |bound| (column, bound))
    };
    keys.iter().enumerate().filter(|(_, (lo, hi))| !lo.is_empty() || !hi.is_empty()).flat_map(of_column).collect()
}

/// Collects the first documents.
struct FirstDocuments {
    limit: usize,
    keyed: bool,
    packer: Packer,
    count: usize,
    /// Keys and projected documents that must be sorted; None if they arrive in order.
    sorting: Option<BinaryHeap<(Vec<u8>, Vec<u8>)>>,
}

impl FirstDocuments {
    fn new(limit: usize, in_order: bool, keyed: bool) -> Self {
        Self { limit, keyed, packer: Packer::default(), count: 0, sorting: (!in_order).then(BinaryHeap::new) }
    }

    /// Adds a document if it is one of the first. Returns false if no later document can be one of them.
    fn take<'a>(&mut self, key: &[u8], project: impl FnOnce() -> Result<Cow<'a, [u8]>>) -> Result<bool> {
        let Some(sorting) = &mut self.sorting else {
            self.put(key, &project()?);
            self.count += 1;
            return Ok(self.count < self.limit);
        };
        if sorting.len() == self.limit {
            if sorting.peek().is_none_or(|(last, _)| last.as_slice() <= key) {
                return Ok(true);
            }
            sorting.pop();
        }
        sorting.push((key.to_vec(), project()?.into_owned()));
        Ok(true)
    }

    fn put(&mut self, key: &[u8], document: &[u8]) {
        self.packer.put(if self.keyed { key } else { &[] }, document);
    }

    /// Returns the packed documents; None if they are larger than a router accepts.
    fn packed(mut self) -> Option<Vec<u8>> {
        for (key, document) in self.sorting.take().map(BinaryHeap::into_sorted_vec).unwrap_or_default() {
            self.put(&key, &document);
        }
        self.packer.into_bytes()
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use docshard_core::values::document::packed::Documents;
    use pgrx::pg_test;

    fn unpacked(packed: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = Documents::unpack(packed).expect("whole");
        (0..all.count()).map(|n| (all.key(n).unwrap().to_vec(), all.document(n).unwrap().to_vec())).collect()
    }

    #[pg_test]
    fn the_first_by_key_are_sorted() {
        let keys: Vec<u8> = (0..200).map(|n| (n * 37 % 101) as u8).collect();
        for most in [1, 7, 300] {
            let mut found = FirstDocuments::new(most, false, true);
            for key in &keys {
                assert!(found.take(&[*key], || Ok(vec![!key, 1].into())).unwrap());
            }
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            sorted.truncate(most);
            let expected: Vec<_> = sorted.iter().map(|key| (vec![*key], vec![!key, 1])).collect();
            assert_eq!(unpacked(&found.packed().unwrap()), expected);
        }
    }

    #[pg_test]
    fn documents_in_order_are_limited() {
        let mut found = FirstDocuments::new(3, true, true);
        let more: Vec<bool> = (0..3).map(|n| found.take(&[9 - n], || Ok(vec![n].into())).unwrap()).collect();
        assert_eq!(more, [true, true, false]);
        let expected = [(vec![9], vec![0]), (vec![8], vec![1]), (vec![7], vec![2])];
        assert_eq!(unpacked(&found.packed().unwrap()), expected);
    }

    #[pg_test]
    fn without_keyed_no_keys_are_packed() {
        let mut found = FirstDocuments::new(2, false, false);
        for key in [3, 1, 2] {
            found.take(&[key], || Ok(vec![key].into())).unwrap();
        }
        assert_eq!(unpacked(&found.packed().unwrap()), [(vec![], vec![1]), (vec![], vec![2])]);
    }

    #[pg_test]
    fn bounds_are_of_their_columns() {
        let keys: [(&[u8], &[u8]); 4] = [(b"a", b"a"), (b"", b""), (b"b", b""), (b"c", b"d")];
        let bounds = format!("{:?}", super::bounds(&keys));
        assert_eq!(bounds, "[(0, Is([97])), (2, From([98])), (3, From([99])), (3, Below([100]))]");
    }
}
