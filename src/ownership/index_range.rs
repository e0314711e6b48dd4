//! Finding few documents by one index, in one call with the check that every read needs: without plan and executor, which
//! take longer than such a search, and with one value as the answer, which takes less than a row for each.
//!
//! What turns out to be something else is left to PostgreSQL: see [`find`].
//!
//! The answer is what is told of each document, in the order that was asked for, and the key that it comes by, packed
//! ([`docshard_core::values::document::packed`]).

use super::placement::{Placement, check_read};
use super::stored::document;
use super::table;
use crate::pg::error::Result;
use crate::pg::{datum::json, transaction::snapshot};
use crate::protocol::documents::{FindByIndexRange, IndexRangeSearch};
use crate::storage::scan::{self, Bound, Direction};
use crate::storage::{gin, lock};
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::packed::Packer;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BinaryHeap;

/// Documents that are looked at for an order that the index does not have.
const MOST_SEEN: usize = 1_000;
/// Bytes of documents that are looked at.
const MOST_BYTES: usize = 4 << 20;

/// The first documents, packed, in the active snapshot, a statement's, which is held to the version. None, which says
/// nothing of what there is: the executor has to look. That is so if there is no such index that may be used, or documents
/// have entries beside it; if there is more to tell, or to look at, than few documents; if row-level security hides rows;
/// and under SERIALIZABLE, which wants it remembered that there are no entries.
///
/// # Errors
/// `STALE`; those of the parsers; `NamespaceNotFound` if the collection has no table here; PostgreSQL's own error (42501)
/// without the privilege to read the table.
pub fn find(call: &FindByIndexRange<'_>) -> Result<Option<Vec<u8>>> {
    let &FindByIndexRange { collection, token, version, ref lo, ref hi, ref search } = call;
    let search = IndexRangeSearch::parse(search)?;
    check_read(collection, Placement { token, version })?;
    if snapshot::is_serializable() {
        return Ok(None);
    }
    // Who drops the table or an index of it waits from here on, or was quicker: then there is no such relation any more.
    lock::keep_relation(table::oid(collection)?);
    let Ok((table, _)) = table::oids(collection) else { return Ok(None) };
    let index = table::index_oids(search.index).filter(|(_, entries)| gin::is_empty(*entries));
    let Some((index, _)) = index else { return Ok(None) };
    let sort =
        search.sort.as_deref().map(|text| -> Result<Sort> { Ok(Sort::read(&json::parse(text)?)?) }).transpose()?;
    let projection = search
        .projection
        .as_deref()
        .map(|text| -> Result<Projection> { Ok(Projection::read(&json::parse(text)?)?) })
        .transpose()?;
    let (most_seen, most) = match search.all {
        true => (search.most, usize::MAX),
        false => (MOST_SEEN, search.most),
    };
    let mut found = Found::new(most, search.in_order, search.keyed);
    let (mut seen, mut bytes) = (0, 0);
    let (few, failed) = (Cell::new(true), Cell::new(None));
    let mut take = |doc: &[u8]| -> Result<bool> {
        let key = match &sort {
            Some(sort) => Cow::from(sort.key_of(document(doc)?)),
            None => Cow::default(),
        };
        found.take(&key, || match &projection {
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
        if bytes > MOST_BYTES || seen > most_seen {
            few.set(false);
            return false;
        }
        take(doc).unwrap_or_else(|error| {
            failed.set(Some(error));
            false
        })
    });
    if let Some(error) = failed.take() {
        return Err(error);
    }
    Ok(visited.filter(|_| few.get()).and_then(|_| found.packed()))
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

/// The first documents so far.
struct Found {
    most: usize,
    keyed: bool,
    /// those that came in order
    packer: Packer,
    count: usize,
    /// key and what is told of those that did not, the last of them on top; None: they come in order
    first: Option<BinaryHeap<(Vec<u8>, Vec<u8>)>>,
}

impl Found {
    fn new(most: usize, in_order: bool, keyed: bool) -> Self {
        Self { most, keyed, packer: Packer::default(), count: 0, first: (!in_order).then(BinaryHeap::new) }
    }

    /// Takes a document, if it is one of the first; true if there can be others.
    fn take<'a>(&mut self, key: &[u8], told: impl FnOnce() -> Result<Cow<'a, [u8]>>) -> Result<bool> {
        let Some(first) = &mut self.first else {
            self.put(key, &told()?);
            self.count += 1;
            return Ok(self.count < self.most);
        };
        if first.len() == self.most {
            if first.peek().is_none_or(|(last, _)| last.as_slice() <= key) {
                return Ok(true);
            }
            first.pop();
        }
        first.push((key.to_vec(), told()?.into_owned()));
        Ok(true)
    }

    fn put(&mut self, key: &[u8], told: &[u8]) {
        self.packer.put(if self.keyed { key } else { &[] }, told);
    }

    /// None: it is more than a router would take.
    fn packed(mut self) -> Option<Vec<u8>> {
        for (key, told) in self.first.take().map(BinaryHeap::into_sorted_vec).unwrap_or_default() {
            self.put(&key, &told);
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
    fn the_first_by_key_are_kept_and_come_in_order() {
        let keys: Vec<u8> = (0..200).map(|n| (n * 37 % 101) as u8).collect();
        for most in [1, 7, 300] {
            let mut found = Found::new(most, false, true);
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
    fn what_comes_in_order_stays_in_it() {
        let mut found = Found::new(3, true, true);
        let more: Vec<bool> = (0..3).map(|n| found.take(&[9 - n], || Ok(vec![n].into())).unwrap()).collect();
        assert_eq!(more, [true, true, false]);
        let expected = [(vec![9], vec![0]), (vec![8], vec![1]), (vec![7], vec![2])];
        assert_eq!(unpacked(&found.packed().unwrap()), expected);
    }

    #[pg_test]
    fn keys_that_nobody_asked_for_only_sort() {
        let mut found = Found::new(2, false, false);
        for key in [3, 1, 2] {
            found.take(&[key], || Ok(vec![key].into())).unwrap();
        }
        assert_eq!(unpacked(&found.packed().unwrap()), [(vec![], vec![1]), (vec![], vec![2])]);
    }

    #[pg_test]
    fn bounds_are_of_their_columns() {
        let keys: [(&[u8], &[u8]); 4] = [(b"a", b"a"), (b"", b""), (b"b", b""), (b"c", b"d")];
        let told = format!("{:?}", bounds(&keys));
        assert_eq!(told, "[(0, Is([97])), (2, From([98])), (3, From([99])), (3, Below([100]))]");
    }
}
